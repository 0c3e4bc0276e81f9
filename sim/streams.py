"""Streams and adders of a program: where switches sum, who sends to which of them, as flat arrays.

A stream is a flow: what one worker sends of one pool, and gets back. An adder is one pool in one switch. `flat_plan`
says what the arrays are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorexpress.plan import JobPlan, Plan
from tensorexpress.sim.flows import Ints, Links, flow_columns, rows
from tensorexpress.sums import Pool, SumPlan


def no_streams(flows: int, messages: int) -> dict[str, Ints]:
    """Return the arrays where no switch sums."""
    none, one = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    of_adders = ("slots", "up", "parent", "child", "stream", "links", "streams", "below")
    return {
        **{f"stream_{name}": np.zeros(flows, dtype=np.int64) for name in ("slots", "packets", "adder", "child")},
        "stream_messages_start": np.zeros(flows + 1, dtype=np.int64),
        "stream_messages": none,
        "message_first": np.zeros(messages, dtype=np.int64),
        "message_answer": np.full(messages, -1),
        **{f"adder_{name}": none for name in of_adders},
        "adder_children_start": one,
    }


class _Streams:
    """Puts the streams and adders of all jobs one after another."""

    def __init__(self, hosts: int):
        self.flows: list[tuple[int, int, int]] = []
        self.ways: list[tuple[Links, Links]] = []
        self.by_host: list[list[int]] = [[] for _ in range(hosts)]
        self.stream: dict[str, list[int]] = {name: [] for name in ("slots", "packets", "adder", "child")}
        self.messages: list[Ints] = []
        self.adder: dict[str, list[int]] = {name: [] for name in ("slots", "up", "parent", "child", "stream")}
        self.children: list[list[tuple[int, int, int]]] = []
        #: By message.
        self.first: list[Ints] = []
        self.flow_of: list[Ints] = []

    def add_job(self, number: int, job: JobPlan, sums: SumPlan, source: Sequence[int], first_message: int) -> None:
        """Add the streams of a job's workers, pool by pool, and its adders."""
        hosts, tensors = job.job.hosts, len(job.ranks)
        workers, link_of = len(hosts), {source[link]: link for link in sums.links}
        nics = {host: link_of[host] for host in hosts}
        # By way up and down, tensor and worker, as messages are: a slice is a tensor here.
        first, flow_of = np.zeros((2, 2, tensors, workers), dtype=np.int64)
        for pool in sums.pools:
            tensor = np.array(pool.tensors, dtype=np.int64)
            first[0, tensor] = np.array([pool.first_packet[one] for one in pool.tensors])[:, None]
            flow_of[:, tensor] = len(self.flows) + np.arange(workers)
            self.messages += list(first_message + tensor * workers + np.arange(workers)[:, None])
            self._add_adders(pool, sums, nics)
            self._add_streams(number, pool, sums, nics)
        self.first.append(first.ravel())
        self.flow_of.append(flow_of.ravel())

    def _add_adders(self, pool: Pool, sums: SumPlan, nics: dict[int, int]) -> None:
        """Add the adders of a pool, whose streams come next."""
        first_adder, first_stream = len(self.children), len(self.flows)
        place = {switch.switch: index for index, switch in enumerate(sums.switches)}
        stream_of = {link: first_stream + index for index, link in enumerate(nics.values())}
        adder_of = {switch.up: first_adder + place[switch.switch] for switch in sums.switches}
        for switch in sums.switches:
            above = sums.above.get(switch.up)
            self.adder["slots"].append(pool.slots)
            self.adder["up"].append(switch.up)
            self.adder["parent"].append(-1 if above is None else first_adder + place[above.switch])
            self.adder["child"].append(-1 if above is None else above.children.index(switch.up))
            self.adder["stream"].append(first_stream)
            self.children.append(
                [(link ^ 1, stream_of.get(link, -1), adder_of.get(link, -1)) for link in switch.children]
            )

    def _add_streams(self, number: int, pool: Pool, sums: SumPlan, nics: dict[int, int]) -> None:
        first_adder = len(self.children) - len(sums.switches)
        place = {switch.switch: index for index, switch in enumerate(sums.switches)}
        for host, link in nics.items():
            self.by_host[host].append(len(self.flows))
            self.flows.append((number, host, host))
            self.ways.append(((link,), (link ^ 1,)))
            self.stream["slots"].append(pool.slots)
            self.stream["packets"].append(pool.packets_per_iteration)
            self.stream["adder"].append(first_adder + place[sums.above[link].switch])
            self.stream["child"].append(sums.above[link].children.index(link))


def streams(plan: Plan) -> dict[str, Any]:
    """Find who sends to which adder, and by which way sums come back."""
    scenario, source = plan.scenario, plan.scenario.cluster.directed().source
    found, first_message = _Streams(len(scenario.cluster.hosts)), 0
    answers: list[Ints] = []
    for number, job in enumerate(plan.jobs):
        (tree,) = job.sums
        found.add_job(number, job, tree, source, first_message)
        messages = len(job.graph.kind)
        there = first_message + np.arange(messages // 2)
        answers += [there + messages // 2, np.full(messages // 2, -1)]
        first_message += messages
    streams = len(found.flows)
    flows = found.flows + [(len(plan.jobs) + index, b.src, b.dst) for index, b in enumerate(scenario.background)]
    ways = found.ways + [
        (plan.paths.between(b.src, b.dst), plan.paths.between(b.dst, b.src)) for b in scenario.background
    ]
    others = [0] * len(scenario.background)
    messages_start, of_streams = rows([*found.messages, *([] for _ in others)])
    children_start, _ = rows([[0] * len(row) for row in found.children])
    links, stream, below = np.array([child for row in found.children for child in row], dtype=np.int64).T
    return {
        **flow_columns(flows, ways, found.by_host),
        **{f"stream_{name}": np.array(column + others, dtype=np.int64) for name, column in found.stream.items()},
        "stream_messages_start": messages_start,
        "stream_messages": of_streams,
        "message_flow": np.concatenate(found.flow_of),
        "message_first": np.concatenate(found.first),
        "message_answer": np.concatenate(answers),
        **{f"adder_{name}": np.array(column, dtype=np.int64) for name, column in found.adder.items()},
        "adder_children_start": children_start,
        "adder_links": links,
        "adder_streams": stream,
        "adder_below": below,
        "background_flow": np.arange(streams, len(flows)),
    }
