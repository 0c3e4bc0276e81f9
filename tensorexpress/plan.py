"""Plans: what is decided for one scenario and one policy: ranks, queues, slices, servers and routes.

A plan says nothing about when things happen. The simulator, a switch and real hosts execute the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tensorexpress.deadline import equal_map, fewest_map, queue_map, regret_ps, slacks
from tensorexpress.errors import ScenarioError
from tensorexpress.framing import ETHERNET_BYTES, Framing
from tensorexpress.memory import check_memory
from tensorexpress.policy import Policy
from tensorexpress.scenario import Job, Scenario
from tensorexpress.units import PS_PER_SECOND, serialisation_ps
from tensorexpress.wire.dscp import check_dscps, default_dscps

Ints = NDArray[np.int64]

#: Longest run; times of it, and sums of a few of them, stay inside 64 bits.
_LONGEST_RUN_PS = 2**62
_PS_PER_DAY = 86_400 * PS_PER_SECOND


@dataclass(frozen=True)
class SlicePlan:
    """A part of a tensor, and the host that sums it (-1 in a ring, where every worker does)."""

    tensor: int
    bytes: int
    server: int


@dataclass(frozen=True)
class JobPlan:
    """What was decided for one job, per tensor in forward order and per slice."""

    job: Job
    #: Lower is more urgent; the order in which the next forward pass needs the tensors.
    ranks: tuple[int, ...]
    #: The strict-priority queue of every tensor; 0 is the most urgent.
    queues: tuple[int, ...]
    #: Time from gradient ready to when the next forward pass needs the tensor, if nothing stalls.
    slack_ps: tuple[int, ...]
    slices: tuple[SlicePlan, ...]
    #: How long each tensor occupies the job's busiest link in one iteration.
    transfer_ps: tuple[int, ...] = ()
    #: What the map from ranks to queues costs an iteration against a PIFO, on that link in fluid form.
    regret_ps: int = 0


@dataclass(frozen=True)
class Move:
    """What goes from one host to another in every iteration, as bytes on the wire per tensor."""

    src: int
    dst: int
    wire_bytes: Ints
    #: The worker that must have them before its forward pass can go on; -1 when every worker waits for them.
    gates: int


@dataclass(frozen=True)
class Plan:
    """A scenario, a policy and what follows from the two."""

    scenario: Scenario
    policy: Policy
    jobs: tuple[JobPlan, ...]
    #: The DSCP of every queue, most urgent first; none where there are more queues than DSCPs tell apart.
    dscps: tuple[int, ...]

    @cached_property
    def framing(self) -> Framing:
        """How tensors become packets, wherever the plan is executed."""
        return self.scenario.framing


def _cut(total: int, parts: int) -> list[int]:
    """Cut `total` bytes into parts that are as equal as whole bytes allow."""
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


def _slices(job: Job, policy: Policy) -> tuple[SlicePlan, ...]:
    """Cut tensors into slices and give each to the server that has the fewest bytes so far."""
    load = dict.fromkeys(job.servers, 0)
    slices = []
    for tensor, total in enumerate(job.workload.tensor_bytes):
        parts = -(-total // (policy.slice_bytes or total))
        if job.servers and total >= job.shard_bytes:
            parts = max(parts, min(len(job.servers), total))
        for size in _cut(total, parts):
            server = min(load, key=lambda host: (load[host], host)) if load else -1
            if load:
                load[server] += size
            slices.append(SlicePlan(tensor, size, server))
    return tuple(slices)


def ring_segments(size: int, workers: int) -> list[int]:
    """Cut a slice into one segment per worker of a ring; a segment may be empty when the slice is tiny."""
    return _cut(size, workers)


def moves(plan: JobPlan, scenario: Scenario) -> Iterator[Move]:
    """Yield all that a job moves in one iteration; what stays on its host is left out."""
    job, tensors = plan.job, len(plan.ranks)
    if job.architecture == "ring":
        count = len(job.workers)
        segments = np.zeros((tensors, count), dtype=np.int64)
        for piece in plan.slices:
            segments[piece.tensor] += [scenario.framing.wire_bytes(size) for size in ring_segments(piece.bytes, count)]
        for index, src in enumerate(job.workers):
            dst = job.workers[(index + 1) % count]
            # A worker passes on every segment but one while reducing, and every sum but one while gathering.
            yield Move(src, dst, segments.sum(axis=1) - segments[:, (index + 1) % count], -1)
            yield Move(src, dst, segments.sum(axis=1) - segments[:, (index + 2) % count], dst)
    else:
        by_server = {server: np.zeros(tensors, dtype=np.int64) for server in job.servers}
        for piece in plan.slices:
            by_server[piece.server][piece.tensor] += scenario.framing.wire_bytes(piece.bytes)
        for server, sizes in by_server.items():
            for worker in job.workers:
                if worker != server:
                    yield Move(worker, server, sizes, -1)
                    yield Move(server, worker, sizes, worker)


def link_loads(plan: JobPlan, scenario: Scenario) -> tuple[Ints, Ints]:
    """Return how long each tensor occupies each directed link in one iteration, in ps.

    First (links, tensors) for what all workers wait for, then (workers, links, tensors) for what one waits for.
    """
    cluster, job = scenario.cluster, plan.job
    flow = scenario.jobs.index(job)
    rates = cluster.directed().rate_bps
    shared = np.zeros((len(rates), len(plan.ranks)), dtype=np.int64)
    own = np.zeros((len(job.workers), *shared.shape), dtype=np.int64)
    for move in moves(plan, scenario):
        loads = shared if move.gates < 0 else own[job.workers.index(move.gates)]
        for link in cluster.route(move.src, move.dst, flow):
            loads[link] += [serialisation_ps(size, rates[link]) for size in move.wire_bytes.tolist()]
    return shared, own


def early_ps(scenario: Scenario) -> int:
    """Return how long before a link has been occupied by all its bytes the last of them may be there already.

    Where links are paced, that is the time of one packet.
    """
    directed = scenario.cluster.directed()
    rates = [rate_bps for rate_bps, paced in zip(directed.rate_bps, directed.paced, strict=True) if paced]
    return serialisation_ps(scenario.cluster.mtu + ETHERNET_BYTES, min(rates)) if rates else 0


def _plan_job(job: Job, scenario: Scenario, policy: Policy) -> JobPlan:
    forward = [layer.forward_ps for layer in job.workload.layers]
    backward = [layer.backward_ps for layer in job.workload.layers]
    ranks = tuple(range(len(forward)))
    plan = JobPlan(job, ranks, (0,) * len(ranks), slacks(forward, backward), _slices(job, policy))
    queues = scenario.cluster.queues
    shared, own = link_loads(plan, scenario)
    loads = shared + own.sum(axis=0)
    busiest = tuple(loads[loads.sum(axis=1).argmax()].tolist())
    if policy.queue_map == "equal":
        queue_of = equal_map(len(ranks), queues)
    else:
        partition = fewest_map if policy.queue_map == "fewest" else queue_map
        queue_of = partition(forward, backward, busiest, queues).queue_of
    regret = regret_ps(forward, backward, busiest, queue_of)
    return replace(plan, queues=queue_of, transfer_ps=busiest, regret_ps=regret)


def slice_leads_ps(plan: JobPlan) -> list[int]:
    """Return how long before its tensor's deadline each slice should be there: the time the slices after it take.

    Slices of one tensor so have deadlines of their own. Otherwise the worker whose gradient is ready first would send
    all of its slices before any other worker's, and no sum would be complete before the last worker is served.
    """
    count = Counter(piece.tensor for piece in plan.slices)
    seen: Counter[int] = Counter()
    leads = []
    for piece in plan.slices:
        seen[piece.tensor] += 1
        after = count[piece.tensor] - seen[piece.tensor]
        leads.append(plan.transfer_ps[piece.tensor] * after // count[piece.tensor])
    return leads


def _check_memory(scenario: Scenario) -> None:
    """Refuse a scenario for which `link_loads` would not fit into memory."""
    per_tensor = 2 * len(scenario.cluster.links) * np.dtype(np.int64).itemsize
    check_memory(scenario.name, per_tensor * sum(len(job.workers) * len(job.workload.layers) for job in scenario.jobs))


def check_duration(scenario: Scenario) -> None:
    """Refuse a scenario whose times would not fit into 64 bits: one that takes weeks to compute or to send."""
    slowest_bps = min((link.rate_bps for link in scenario.cluster.links), default=1)
    for job in scenario.jobs:
        sent_bytes = 2 * len(job.workers) * sum(scenario.framing.wire_bytes(size) for size in job.workload.tensor_bytes)
        needed_ps = scenario.rounds * (job.workload.compute_ps + serialisation_ps(sent_bytes, slowest_bps))
        if needed_ps > _LONGEST_RUN_PS:
            raise ScenarioError(
                f"{scenario.name}: {job.name} could take {needed_ps // _PS_PER_DAY} days; accepted: at most "
                f"{_LONGEST_RUN_PS // _PS_PER_DAY}; take faster links, shorter times, or fewer iterations"
            )


def make_plan(scenario: Scenario, policy: Policy, dscps: Sequence[int] | None = None) -> Plan:
    """Decide everything the policy leaves to be decided for this scenario; DSCPs that are not given are the default."""
    check_duration(scenario)
    _check_memory(scenario)
    queues = scenario.cluster.queues
    chosen = default_dscps(queues) if dscps is None else check_dscps(dscps, queues)
    return Plan(scenario, policy, tuple(_plan_job(job, scenario, policy) for job in scenario.jobs), chosen)
