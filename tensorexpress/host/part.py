"""Which part of a job's graph happens on one host, as arrays: edges, and elements of tensors that messages carry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorexpress.graph import GATE, GRADIENT, MESSAGE, SUM, Edges, index_of, kind_of
from tensorexpress.host.gradients import elements_of
from tensorexpress.plan import JobPlan

Ints = NDArray[np.int64]

MESSAGES, SUMS, GATES, GRADIENTS = (kind_of(node) for node in (MESSAGE, SUM, GATE, GRADIENT))


@dataclass(frozen=True)
class HostPart:
    """What happens on one host; what carries nothing, of which a tiny slice has some, does not."""

    #: From nodes to those that come after them, in the order of the graph, so that sums are the same in every run.
    source: Ints
    target: Ints
    #: Whether the later one carries the earlier one, or comes later for no other reason than that they share something.
    carries: NDArray[np.bool_]
    #: Numbers of messages that leave here, and of those that come.
    leaving: Ints
    coming: Ints
    #: The first element of its tensor that every message and every sum of the job carries, and the first after these.
    message_elements: Ints
    sum_elements: Ints

    def elements(self, node: int) -> slice:
        """Return the elements of its tensor that a message or a sum carries."""
        columns = self.message_elements if kind_of(node) == MESSAGES else self.sum_elements
        first, end = columns[:, index_of(node)].tolist()
        return slice(first, end)


def part_of_host(plan: JobPlan, host: int) -> HostPart:
    """Return the part of a job's graph that happens on a host, as far as it is about messages.

    What switches sum is for others, and so is a worker's wait for both.
    """
    graph = plan.graph
    ends = np.array([(each.start, each.stop) for each in elements_of(plan)], dtype=np.int64).reshape(-1, 2).T
    elements = {
        MESSAGES: _shares(ends, graph.slice, graph.part, graph.parts),
        SUMS: _shares(ends, graph.sum_slice, graph.sum_part, graph.sum_parts),
    }
    is_here = {
        kind: (first < end) & (slices >= graph.sums_under_way)
        for (kind, (first, end)), slices in zip(elements.items(), (graph.slice, graph.sum_slice), strict=True)
    }
    orders = () if plan.sums else graph.orders
    found = [
        (*_on_host(plan, host, edges, is_here), carries)
        for every, carries in ((graph.edges, True), (orders, False))
        for edges in every
    ]
    source, target = (np.concatenate([edges[end] for edges in found]) for end in (0, 1))
    return HostPart(
        source,
        target,
        carries=np.concatenate([np.full(len(edges[0]), edges[2]) for edges in found]),
        leaving=np.unique(index_of(target[kind_of(target) == MESSAGES])),
        coming=np.flatnonzero((graph.dst == host) & is_here[MESSAGES]),
        message_elements=elements[MESSAGES],
        sum_elements=elements[SUMS],
    )


def _shares(ends: Ints, slices: Ints, part: Ints, parts: Ints) -> Ints:
    """Return first and last elements of equal parts of slices."""
    first, end = ends[:, slices]
    return np.stack([first + (end - first) * part // parts, first + (end - first) * (part + 1) // parts])


def _on_host(plan: JobPlan, host: int, edges: Edges, is_here: dict[int, NDArray[np.bool_]]) -> tuple[Ints, Ints]:
    """Return those edges that lead to what a host sends, sums, or waits for."""
    graph, (source, target) = plan.graph, edges
    workers, layers = np.array(plan.job.workers), len(plan.ranks)
    kind, index = kind_of(target), index_of(target)
    chosen = np.zeros(len(target), dtype=np.bool_)
    for code, hosts in ((MESSAGES, graph.src), (SUMS, graph.sum_host)):
        own = kind == code
        chosen[own] = (hosts[index[own]] == host) & is_here[code][index[own]]
    own = kind == GATES
    chosen[own] = workers[index[own] // layers] == host
    for code, here in is_here.items():
        own = kind_of(source) == code
        chosen[own] &= here[index_of(source[own])]
    return source[chosen], target[chosen]
