"""The software path: what hosts do for messages beside sending them, one thing after another.

A host has two lanes, one for what goes out and one for what comes in, each of which does one thing at a time:

    out     a message is copied, in the host's order, before its first packet may leave
    in      what has arrived is copied, in the order of arrival; a gradient is then added to the sum, and a server
            updates its parameters when a sum is complete

What costs nothing waits for nothing. A message that stays on its host is not copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tensorexpress.graph import KINDS, MESSAGE, SUM, Graph, Ints, delays_ps, index_of, kind_of
from tensorexpress.scenario import Job, Scenario, Transport

#: The lanes of a host; lane number 2 * host + lane.
OUT, IN = range(2)
LANES = 2


class HostWork(NamedTuple):
    """How long the nodes of a job's graph occupy lanes."""

    #: By message: that of its sender before it is sent, and of its receiver after it has arrived.
    out_ps: Ints
    in_ps: Ints
    #: By sum: that for what comes in of the host that sums.
    sum_ps: Ints


def host_work(job: Job, graph: Graph, transport: Transport) -> HostWork:
    """Return what hosts do for the messages and sums of one iteration of a job."""
    # There are more parts than bytes in a tiny slice: nobody handles what is empty.
    # A worker on its server's host still sends through switches that sum.
    crosses = ((graph.src != graph.dst) | graph.under_way) & (graph.bytes > 0)
    copy_ps = np.where(crosses, delays_ps(graph.bytes, transport.copy_rate_bps) + transport.message_ps, 0)
    add_ps = np.where(graph.brings_sums, 0, delays_ps(graph.bytes, job.add_rate_bps))
    # A switch has no lanes, and a server behind one answers packets, of which none is a message: only workers have any.
    sends, takes = ~(graph.brings_sums & graph.under_way), graph.brings_sums | ~graph.under_way
    return HostWork(np.where(sends, copy_ps, 0), np.where(takes, copy_ps + add_ps, 0), _update_ps(job, graph))


def _update_ps(job: Job, graph: Graph) -> Ints:
    """Return how long every sum takes to become parameters: where servers keep these, that is after pushes alone."""
    found = np.zeros(len(graph.sum_host), dtype=np.int64)
    for sources, targets in graph.edges:
        from_messages = (kind_of(sources) == kind_of(MESSAGE)) & (kind_of(targets) == kind_of(SUM))
        message, total = index_of(sources[from_messages]), index_of(targets[from_messages])
        pushes = graph.kind[message] == KINDS.index("push")
        found[total[pushes]] = delays_ps(graph.bytes[message[pushes]], job.update_rate_bps)
    found[: graph.sums_under_way] = 0
    return found


def lane_work_ps(scenario: Scenario, jobs: Iterable[tuple[Job, Graph]]) -> Ints:
    """Return how long the lanes of every host are occupied in one iteration of these jobs, by (host, lane).

    No iteration is shorter than the work of any lane, on average: a bound may count it as one more link.
    """
    busy = np.zeros((len(scenario.cluster.hosts), LANES), dtype=np.int64)
    for job, graph in jobs:
        work = host_work(job, graph, scenario.transport)
        for lane, nodes, work_ps in (
            (OUT, graph.src, work.out_ps),
            (IN, graph.dst, work.in_ps),
            (IN, graph.sum_host, work.sum_ps),
        ):
            on_hosts = nodes < graph.first_switch
            np.add.at(busy[:, lane], nodes[on_hosts], work_ps[on_hosts])
    return busy
