"""Streams and adders of a program: where switches and servers sum, who sends to which of them, as flat arrays.

A stream is a flow: what one worker sends of one pool, and gets back. An adder is one pool in one switch, or at the
server behind the root of its tree. `flat_plan` says what the arrays are.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Any
from zlib import crc32

import numpy as np

from tensorexpress.plan import JobPlan, Plan
from tensorexpress.queueing import TURN
from tensorexpress.routing import DirectedLinks
from tensorexpress.scenario import Job
from tensorexpress.sim.flows import Flows, Ints, Links, rows
from tensorexpress.slots import round_trip_ps
from tensorexpress.sums import SUM_FRAMING, VALUE_BYTES, VALUES, Pool, SumPlan, turns
from tensorexpress.units import serialisation_ps

_OF_STREAMS = ("slots", "packets", "adder", "child", "turn")
_OF_ADDERS = (
    *("slots", "up", "parent", "child", "stream", "everybody", "switch", "queue", "hash"),
    *("host", "round_trip_ps", "add_ps", "update_ps", "delay_ps"),
)


class _Streams:
    """Puts the streams and adders of all jobs one after another."""

    def __init__(self, hosts: int, directed: DirectedLinks, switch_rate_bps: int):
        self.directed = directed
        packet_bytes = SUM_FRAMING.full_packet_bytes
        #: What switches do: they answer whenever they are asked, and add as fast as packets come or at a rate.
        self.switch_work = {**_NO_WORK, "add_ps": switch_rate_bps and serialisation_ps(packet_bytes, switch_rate_bps)}
        self.flows: list[tuple[int, int, int]] = []
        self.ways: list[tuple[Links, Links]] = []
        self.by_host: list[list[int]] = [[] for _ in range(hosts)]
        self.stream: dict[str, list[int]] = {name: [] for name in _OF_STREAMS}
        self.messages: list[Ints] = []
        self.adder: dict[str, list[int]] = {name: [] for name in _OF_ADDERS}
        self.children: list[list[tuple[int, int, int]]] = []
        #: By message: the number of its first packet, its stream, and what brings its sum back.
        self.first: list[Ints] = []
        self.flow_of: list[Ints] = []
        self.answer: list[Ints] = []

    def add_job(self, number: int, job: JobPlan, first_message: int) -> None:
        """Add the streams of a job's workers, tree by tree and pool by pool, and its adders."""
        hosts, slices, messages = job.job.hosts, len(job.slices), len(job.graph.kind)
        workers = len(hosts)
        first, flow_of, answer = np.zeros(messages, dtype=np.int64), *np.full((2, messages), -1)
        self.first.append(first)
        self.flow_of.append(flow_of)
        self.answer.append(answer)
        if not job.sums:
            return
        (up,) = np.nonzero(job.graph.under_way & ~job.graph.brings_sums)
        answer[up] = first_message + up + messages // 2
        # By way up and down, slice and worker, as messages are; of a tensor there is one slice in a tree.
        by_slice = 2, slices, workers
        firsts, flows_of = first.reshape(by_slice), flow_of.reshape(by_slice)
        slice_of = {(piece.tensor, piece.server): index for index, piece in enumerate(job.summed)}
        for sums, turn in zip(job.sums, turns(job.sums), strict=True):
            end = sums.server if sums.server >= 0 else job.summed[0].server
            link_of = {self.directed.source[link]: link for link in sums.links}
            nics = {host: link_of[host] for host in hosts}
            for pool in sums.pools:
                piece = np.array([slice_of[tensor, end] for tensor in pool.tensors], dtype=np.int64)
                firsts[0, piece] = np.array([pool.first_packet[one] for one in pool.tensors])[:, None]
                flows_of[:, piece] = len(self.flows) + np.arange(workers)
                self.messages += list(first_message + piece * workers + np.arange(workers)[:, None])
                self._add_adders(number, job.job, pool, sums, nics)
                self._add_streams(number, pool, sums, nics, turn)

    def _add_adders(self, number: int, job: Job, pool: Pool, sums: SumPlan, nics: dict[int, int]) -> None:
        """Add the adders of a pool, whose streams come next."""
        first_adder, first_stream = len(self.children), len(self.flows)
        place = {switch.switch: index for index, switch in enumerate(sums.switches)}
        stream_of = {link: first_stream + index for index, link in enumerate(nics.values())}
        adder_of = {switch.up: first_adder + place[switch.switch] for switch in sums.switches}
        workers = _workers_above(sums, nics)
        common = {
            "slots": pool.slots, "stream": first_stream, "queue": pool.queue,
            "hash": crc32(pack(">HH", number, pool.first_slot)),
        }  # fmt: skip

        def add(children: Sequence[int], everybody: int, **columns: int) -> None:
            for name, value in {**common, "everybody": _signed(everybody), **columns}.items():
                self.adder[name].append(value)
            self.children.append([(link ^ 1, stream_of.get(link, -1), adder_of.get(link, -1)) for link in children])

        for switch in sums.switches:
            above = sums.above.get(switch.up)
            if above is not None:
                parent, child = first_adder + place[above.switch], above.children.index(switch.up)
            else:
                parent, child = (-1, -1) if sums.server < 0 else (first_adder + len(sums.switches), 0)
            everybody = workers[switch.up] if sums.cells else (1 << len(switch.children)) - 1
            place_of_it = {"up": switch.up, "parent": parent, "child": child, "switch": switch.switch, "host": -1}
            add(switch.children, everybody, **place_of_it, **self.switch_work)
        if sums.server >= 0:
            up = sums.switches[0].up
            place_of_it = {"up": -1, "parent": -1, "child": -1, "switch": -1, "host": sums.server}
            work = _server_work(job, round_trip_ps(sums, self.directed))
            add([up], workers[up] if sums.cells else 1, **place_of_it, **work)

    def _add_streams(self, number: int, pool: Pool, sums: SumPlan, nics: dict[int, int], turn: int) -> None:
        first_adder = len(self.children) - len(sums.switches) - (sums.server >= 0)
        place = {switch.switch: index for index, switch in enumerate(sums.switches)}
        for worker, (host, link) in enumerate(nics.items()):
            above = sums.above[link]
            self.by_host[host].append(len(self.flows))
            self.flows.append((number, host, host))
            self.ways.append(((link,), (link ^ 1,)))
            self.stream["slots"].append(pool.slots)
            self.stream["packets"].append(pool.packets_per_iteration)
            self.stream["adder"].append(first_adder + place[above.switch])
            self.stream["child"].append(worker if sums.cells else above.children.index(link))
            self.stream["turn"].append(turn)


_NO_WORK = {"round_trip_ps": 0, "add_ps": 0, "update_ps": 0, "delay_ps": 0}


def _server_work(job: Job, back_ps: int) -> dict[str, int]:
    """Return how soon nobody can have seen a server's answer, and what a packet costs it."""
    rates = {"add_ps": job.add_rate_bps, "update_ps": job.update_rate_bps, "delay_ps": job.sum_rate_bps}
    size = VALUES * VALUE_BYTES
    return {"round_trip_ps": back_ps, **{name: rate and serialisation_ps(size, rate) for name, rate in rates.items()}}


def _workers_above(sums: SumPlan, nics: dict[int, int]) -> dict[int, int]:
    """Return whose packets come over every link that leads up, as a set with a bit for each worker."""
    workers = {link: 1 << worker for worker, link in enumerate(nics.values())}
    # Whoever is above comes first in a plan.
    for switch in reversed(sums.switches):
        workers[switch.up] = sum(workers[link] for link in switch.children)
    return workers


def _signed(bits: int) -> int:
    """Return a set of up to 64 as a signed number of 64 bits."""
    return bits - (1 << 64) if bits >> 63 else bits


def streams(plan: Plan, others: int) -> tuple[Flows, dict[str, Any]]:
    """Find who sends to which adder, and by which way sums come back.

    So many other flows follow, of which columns say that they are no streams.
    """
    scenario, first_message = plan.scenario, 0
    cluster = scenario.cluster
    found = _Streams(len(cluster.hosts), scenario.fastest(), cluster.switch_rate_bps)
    for number, job in enumerate(plan.jobs):
        found.add_job(number, job, first_message)
        first_message += len(job.graph.kind)
    messages_start, of_streams = rows([*found.messages, *([] for _ in range(others))])
    children_start, _ = rows([[0] * len(row) for row in found.children])
    children = np.array([child for row in found.children for child in row], dtype=np.int64)
    links, stream, below = children.reshape(-1, 3).T
    no_streams = {"turn": [TURN] * others}
    return Flows(found.flows, found.ways, found.by_host, np.concatenate(found.flow_of)), {
        **{
            f"stream_{name}": np.array(column + no_streams.get(name, [0] * others), dtype=np.int64)
            for name, column in found.stream.items()
        },
        "stream_messages_start": messages_start,
        "stream_messages": of_streams,
        "message_first": np.concatenate(found.first),
        "message_answer": np.concatenate(found.answer),
        **{f"adder_{name}": np.array(column, dtype=np.int64) for name, column in found.adder.items()},
        "adder_children_start": children_start,
        "adder_links": links,
        "adder_streams": stream,
        "adder_below": below,
        "cells": next((tree.cells for job in plan.jobs for tree in job.sums), 0),
        "preempts": plan.policy.orders_in_switches,
        "weighs_turns": plan.policy.weighs_turns,
    }
