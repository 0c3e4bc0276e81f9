"""Streams and adders of a program: where switches and servers sum, who sends to which of them, as flat arrays.

A stream is a flow: what one worker sends of one pool, and gets back. An adder is one pool in one switch, or at the
server behind the root of its tree. `flat_plan` says what the arrays are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import pack
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from tensorexpress.plan import JobPlan, Plan
from tensorexpress.queueing import TURN
from tensorexpress.routing import DirectedLinks
from tensorexpress.scenario import Job
from tensorexpress.sim.flows import Flows, Ints, Links, rows
from tensorexpress.sim.program_changes import CHILD_BELOW, CHILD_LINK, PARENT, UP, LaterPlans, ProgramChange
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
        #: Where their rows of children begin, among all.
        self.child_rows = [0]
        self.moves: list[ProgramChange] = []
        #: By message: the number of its first packet, its stream, and what brings its sum back.
        self.first: list[Ints] = []
        self.flow_of: list[Ints] = []
        self.answer: list[Ints] = []

    def add_job(self, number: int, job: JobPlan, first_message: int, later: Sequence[tuple[int, JobPlan]]) -> None:
        """Add the streams of a job's workers, tree by tree and pool by pool, and its adders.

        Its trees are laid in other ways from some times on.
        """
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
        for place, (sums, turn) in enumerate(zip(job.sums, turns(job.sums), strict=True)):
            laid = [(time_ps, other.sums[place]) for time_ps, other in later]
            end = sums.server if sums.server >= 0 else job.summed[0].server
            link_of = {self.directed.source[link]: link for link in sums.links}
            nics = {host: link_of[host] for host in hosts}
            for pool in sums.pools:
                piece = np.array([slice_of[tensor, end] for tensor in pool.tensors], dtype=np.int64)
                firsts[0, piece] = np.array([pool.first_packet[one] for one in pool.tensors])[:, None]
                flows_of[:, piece] = len(self.flows) + np.arange(workers)
                self.messages += list(first_message + piece * workers + np.arange(workers)[:, None])
                first_adder = self._add_adders(number, job.job, pool, sums, nics, laid)
                self._add_streams(number, pool, sums, nics, turn, first_adder)

    def _add_adders(
        self,
        number: int,
        job: Job,
        pool: Pool,
        sums: SumPlan,
        nics: dict[int, int],
        later: Sequence[tuple[int, SumPlan]],
    ) -> int:
        """Add the adders of a pool, whose streams come next; return which is the first.

        A switch that gets a place in the tree later has an adder of its own from the start, and one that loses its
        place keeps its adder: what is on its way there is still added, and passed on as it was.
        """
        first_adder, first_stream = len(self.children), len(self.flows)
        stream_of = {link: first_stream + index for index, link in enumerate(nics.values())}
        # The server has the place behind all switches.
        places = [(place, each.switch) for place, each in enumerate(sums.switches)]
        places += [(len(sums.switches), -1)] * (sums.server >= 0)
        places += [(place, each.switch) for _, tree in later for place, each in enumerate(tree.switches)]
        adder_at = {place: first_adder + index for index, place in enumerate(dict.fromkeys(places))}
        first, now, moves = dict[int, _Joint](), dict[int, _Joint](), list[tuple[int, int, _Joint, _Joint]]()
        for time_ps, tree in [(0, sums), *later]:
            for adder, joint in _joints(tree, adder_at, stream_of):
                first.setdefault(adder, joint)
                moves.append((time_ps, adder, now.get(adder, joint), joint))
                now[adder] = joint
        workers = _workers_above(sums, nics)
        common = {
            "slots": pool.slots, "stream": first_stream, "queue": pool.queue,
            "hash": crc32(pack(">HH", number, pool.first_slot)),
        }  # fmt: skip
        for (place, switch), adder in adder_at.items():
            if switch < 0:
                everybody = workers[sums.switches[0].up] if sums.cells else 1
                own = {"host": sums.server, **_server_work(job, round_trip_ps(sums, self.directed))}
            else:
                each = sums.switches[place]
                everybody = workers[each.up] if sums.cells else (1 << len(each.children)) - 1
                own = {"host": -1, **self.switch_work}
            up, parent, child, children = first[adder]
            own |= {"up": up, "parent": parent, "child": child, "switch": switch, "everybody": _signed(everybody)}
            for name, value in {**common, **own}.items():
                self.adder[name].append(value)
            self.child_rows.append(self.child_rows[-1] + len(children))
            self.children.append(children)
        for time_ps, adder, before, after in moves:
            self.moves += _moved(time_ps, adder, self.child_rows[adder], before, after)
        return first_adder

    def _add_streams(
        self, number: int, pool: Pool, sums: SumPlan, nics: dict[int, int], turn: int, first_adder: int
    ) -> None:
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


class _Joint(NamedTuple):
    """How an adder is joined to others."""

    #: The link to the one above, that one, and its own number there; -1 where sums end.
    up: int
    parent: int
    child: int
    #: Its children: the link down to each, and the stream or the adder; the other one is -1.
    children: list[tuple[int, int, int]]


def _joints(
    tree: SumPlan, adder_at: Mapping[tuple[int, int], int], stream_of: Mapping[int, int]
) -> Iterator[tuple[int, _Joint]]:
    """Yield how every adder of a tree is joined, where they are known by place in it and switch."""
    adder_of = {each.up: adder_at[place, each.switch] for place, each in enumerate(tree.switches)}

    def below(links: Iterable[int]) -> list[tuple[int, int, int]]:
        return [(link ^ 1, stream_of.get(link, -1), adder_of.get(link, -1)) for link in links]

    server = adder_at.get((len(tree.switches), -1), -1)
    for each in tree.switches:
        above = tree.above.get(each.up)
        if above is not None:
            parent, child = adder_of[above.up], above.children.index(each.up)
        else:
            parent, child = server, 0 if server >= 0 else -1
        yield adder_of[each.up], _Joint(each.up, parent, child, below(each.children))
    if server >= 0:
        yield server, _Joint(-1, -1, -1, below([tree.switches[0].up]))


def _moved(time_ps: int, adder: int, first_row: int, before: _Joint, after: _Joint) -> Iterator[ProgramChange]:
    """Yield what changes for an adder that is joined in another way from a time on; its children have rows in order."""
    if before.up != after.up:
        yield ProgramChange(time_ps, UP, adder, after.up)
    if before.parent != after.parent:
        yield ProgramChange(time_ps, PARENT, adder, after.parent)
    children = zip(before.children, after.children, strict=True)
    for row, ((old_link, _, old_adder), (link, _, below)) in enumerate(children, start=first_row):
        if old_link != link:
            yield ProgramChange(time_ps, CHILD_LINK, row, link)
        if old_adder != below:
            yield ProgramChange(time_ps, CHILD_BELOW, row, below)


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


def streams(plan: Plan, others: int, later: LaterPlans) -> tuple[Flows, dict[str, Any], list[ProgramChange]]:
    """Find who sends to which adder, by which way sums come back, and how adders are joined in other ways later.

    So many other flows follow, of which columns say that they are no streams.
    """
    scenario, first_message = plan.scenario, 0
    cluster = scenario.cluster
    found = _Streams(len(cluster.hosts), scenario.fastest(), cluster.switch_rate_bps)
    for number, job in enumerate(plan.jobs):
        found.add_job(number, job, first_message, [(time_ps, other.jobs[number]) for time_ps, other in later])
        first_message += len(job.graph.kind)
    messages_start, of_streams = rows([*found.messages, *([] for _ in range(others))])
    children = np.array([child for row in found.children for child in row], dtype=np.int64)
    links, stream, below = children.reshape(-1, 3).T
    no_streams = {"turn": [TURN] * others}
    columns = {
        **{
            f"stream_{name}": np.array(column + no_streams.get(name, [0] * others), dtype=np.int64)
            for name, column in found.stream.items()
        },
        "stream_messages_start": messages_start,
        "stream_messages": of_streams,
        "message_first": np.concatenate(found.first),
        "message_answer": np.concatenate(found.answer),
        **{f"adder_{name}": np.array(column, dtype=np.int64) for name, column in found.adder.items()},
        "adder_children_start": np.array(found.child_rows, dtype=np.int64),
        "adder_links": links,
        "adder_streams": stream,
        "adder_below": below,
        "cells": next((tree.cells for job in plan.jobs for tree in job.sums), 0),
        "preempts": plan.policy.orders_in_switches,
        "weighs_turns": plan.policy.weighs_turns,
    }
    return Flows(found.flows, found.ways, found.by_host, np.concatenate(found.flow_of)), columns, found.moves
