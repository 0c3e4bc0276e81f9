"""What executors of a plan observe, and the trace that follows: simulated or measured, it is put together here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorexpress.compute import taken_times
from tensorexpress.plan import Plan
from tensorexpress.trace import TRANSFER, Ints, JobTrace, Trace


@dataclass(frozen=True)
class ObservedJob:
    """When things happened in one job, in ps from the start."""

    #: By (pass, worker, layer), and by (iteration, worker, layer).
    forward_start_ps: Ints
    backward_start_ps: Ints
    updated_ps: Ints
    #: By (iteration, message); messages are those of the job's graph.
    ready_ps: Ints
    sent_ps: Ints
    delivered_ps: Ints
    #: None: it was not observed.
    timed_out_ps: Ints | None = None
    #: What layers took, where it was observed and does not follow from the scenario.
    forward_ps: Ints | None = None
    backward_ps: Ints | None = None


@dataclass(frozen=True)
class ObservedNetwork:
    """What the links saw, and what the transport did."""

    links: NDArray[np.void]
    transmissions: int
    retransmissions: int
    timeouts: int
    #: Where sums end at servers; see `Trace`.
    server_sums: int = 0
    whole_sums: int = 0
    server_packets: int = 0


def make_trace(
    plan: Plan, source: str, jobs: Sequence[ObservedJob], network: ObservedNetwork, end_ps: int = 0
) -> Trace:
    """Return the trace of a plan; it ends with the last forward pass where no later end is given."""
    cluster = plan.scenario.cluster
    traces = tuple(_job_trace(plan, number, job) for number, job in enumerate(jobs))
    return Trace(
        source=source,
        policy=plan.policy.name,
        warmup=plan.scenario.warmup,
        hosts=cluster.hosts,
        jobs=traces,
        link_names=cluster.link_names,
        links=network.links,
        end_ps=max(end_ps, *(int(job.forward_end_ps.max()) for job in traces)),
        transmissions=network.transmissions,
        retransmissions=network.retransmissions,
        timeouts=network.timeouts,
        server_sums=network.server_sums,
        whole_sums=network.whole_sums,
        server_packets=network.server_packets,
    )


def _job_trace(plan: Plan, number: int, seen: ObservedJob) -> JobTrace:
    job, scenario = plan.scenario.jobs[number], plan.scenario
    forward, backward = seen.forward_ps, seen.backward_ps
    if forward is None or backward is None:
        forward, backward = taken_times(scenario, number, seen.forward_start_ps, seen.backward_start_ps)
    return JobTrace(
        name=job.name,
        layers=tuple(layer.name for layer in job.workload.layers),
        workers=tuple(scenario.cluster.hosts[host] for host in job.workers),
        forward_ps=forward,
        backward_ps=backward,
        forward_start_ps=seen.forward_start_ps,
        backward_start_ps=seen.backward_start_ps,
        updated_ps=seen.updated_ps,
        transfers=_transfers(plan, number, seen),
    )


def _transfers(plan: Plan, number: int, seen: ObservedJob) -> NDArray[np.void]:
    """Return a row for every message of every iteration."""
    graph = plan.jobs[number].graph
    rows = np.zeros(seen.ready_ps.shape, dtype=TRANSFER)
    rows["iteration"] = np.arange(len(rows))[:, None]
    for name in ("kind", "tensor", "bytes"):
        rows[name] = getattr(graph, name)
    # Switches that sum stand as the worker with which they exchange.
    rows["src"] = np.where(graph.src < graph.first_switch, graph.src, graph.dst)
    rows["dst"] = np.where(graph.dst < graph.first_switch, graph.dst, graph.src)
    rows["queue"] = np.array(plan.jobs[number].queues)[graph.tensor]
    for name in ("ready_ps", "sent_ps", "delivered_ps"):
        rows[name] = getattr(seen, name)
    if seen.timed_out_ps is not None:
        rows["timed_out_ps"] = seen.timed_out_ps
    return rows.ravel()
