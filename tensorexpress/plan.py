"""Plans: what is decided for one scenario and one policy: ranks, queues, slices, servers and routes.

A plan says nothing about when things happen. The simulator, a switch and real hosts execute the same plan.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tensorexpress.deadline import equal_map, fewest_map, queue_map, regret_ps, slacks
from tensorexpress.errors import ScenarioError
from tensorexpress.paths import Paths, choose_paths
from tensorexpress.policy import Policy
from tensorexpress.scenario import Job, Scenario
from tensorexpress.units import PS_PER_SECOND, format_size, serialisation_ps
from tensorexpress.wire.dscp import check_dscps, default_dscps

Ints = NDArray[np.int64]

#: Bytes of memory that a simulation needs for every chunk of an iteration, all tables included.
_BYTES_PER_CHUNK = 64

#: Longest run; times of it, and sums of a few of them, stay inside 64 bits.
_LONGEST_RUN_PS = 2**62
_PS_PER_DAY = 86_400 * PS_PER_SECOND

#: Bytes of a frame on the wire outside the IP packet: preamble, Ethernet header, checksum and gap.
ETHERNET_BYTES = 38


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
    #: By which links the packets of every two hosts go that talk; the same under every policy.
    paths: Paths
    #: The DSCP of every queue, most urgent first; none where there are more queues than DSCPs tell apart.
    dscps: tuple[int, ...]

    @cached_property
    def payload_bytes(self) -> int:
        """Tensor bytes that a full packet carries."""
        return payload_bytes(self.scenario)


def payload_bytes(scenario: Scenario) -> int:
    """Return the tensor bytes that fit into one packet beside the headers inside the MTU."""
    return scenario.cluster.mtu - max(0, scenario.transport.header_bytes - ETHERNET_BYTES)


def wire_bytes(size: int, scenario: Scenario) -> int:
    """Return what `size` tensor bytes weigh on the wire: themselves and a header for every packet."""
    return size + -(-size // payload_bytes(scenario)) * scenario.transport.header_bytes


def _cut(total: int, parts: int) -> list[int]:
    """Cut `total` bytes into parts that are as equal as whole bytes allow."""
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


def _slices(job: Job, slice_bytes: int) -> tuple[SlicePlan, ...]:
    """Cut tensors into slices and give each to the server that has the fewest bytes so far."""
    load = dict.fromkeys(job.servers, 0)
    slices = []
    for tensor, total in enumerate(job.workload.tensor_bytes):
        parts = -(-total // (slice_bytes or total))
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
            segments[piece.tensor] += [wire_bytes(size, scenario) for size in ring_segments(piece.bytes, count)]
        for index, src in enumerate(job.workers):
            dst = job.workers[(index + 1) % count]
            # A worker passes on every segment but one while reducing, and every sum but one while gathering.
            yield Move(src, dst, segments.sum(axis=1) - segments[:, (index + 1) % count], -1)
            yield Move(src, dst, segments.sum(axis=1) - segments[:, (index + 2) % count], dst)
    else:
        by_server = {server: np.zeros(tensors, dtype=np.int64) for server in job.servers}
        for piece in plan.slices:
            by_server[piece.server][piece.tensor] += wire_bytes(piece.bytes, scenario)
        for server, sizes in by_server.items():
            for worker in job.workers:
                if worker != server:
                    yield Move(worker, server, sizes, -1)
                    yield Move(server, worker, sizes, worker)


def pairs_of(plan: JobPlan) -> Iterator[tuple[int, int, int]]:
    """Yield (source, destination, tensor bytes) of what a job moves in one iteration between hosts, each pair once."""
    job = plan.job
    if job.architecture == "ring":
        total = sum(job.workload.tensor_bytes)
        # All segments but one, once to reduce them and once to gather the sums.
        passed_on = 2 * (total - total // len(job.workers))
        for src, dst in zip(job.workers, (*job.workers[1:], job.workers[0]), strict=True):
            yield src, dst, passed_on
    else:
        summed = dict.fromkeys(job.servers, 0)
        for piece in plan.slices:
            summed[piece.server] += piece.bytes
        for server, size in summed.items():
            for worker in job.workers:
                yield worker, server, size
                yield server, worker, size


def traffic(jobs: Iterable[JobPlan], scenario: Scenario) -> Iterator[tuple[int, int, int]]:
    """Yield (source, destination, bytes) of all jobs, and of background traffic during an iteration without stalls."""
    compute_ps = max((job.workload.compute_ps for job in scenario.jobs), default=0)
    background = ((b.src, b.dst, b.rate_bps * compute_ps // (8 * PS_PER_SECOND)) for b in scenario.background)
    for src, dst, size in chain(*map(pairs_of, jobs), background):
        # What stays on a host needs no network.
        if src != dst:
            yield src, dst, size


@lru_cache(maxsize=4)
def _paths(scenario: Scenario) -> Paths:
    """Choose the paths of all hosts that talk, by what they move where no policy has cut anything."""
    moved: Counter[tuple[int, int]] = Counter()
    for src, dst, size in traffic((_undecided(job, slice_bytes=0) for job in scenario.jobs), scenario):
        moved[src, dst] += size
        # Who sends is acknowledged.
        moved[dst, src] += 0
    return choose_paths(scenario.cluster, moved)


def link_loads(plan: JobPlan, scenario: Scenario, paths: Paths) -> tuple[Ints, Ints]:
    """Return how long each tensor occupies each directed link in one iteration, in ps.

    First (links, tensors) for what all workers wait for, then (workers, links, tensors) for what one waits for.
    """
    job, rates = plan.job, scenario.cluster.directed().rate_bps
    shared = np.zeros((len(rates), len(plan.ranks)), dtype=np.int64)
    own = np.zeros((len(job.workers), *shared.shape), dtype=np.int64)
    for move in moves(plan, scenario):
        loads = shared if move.gates < 0 else own[job.workers.index(move.gates)]
        for link in paths.between(move.src, move.dst):
            loads[link] += [serialisation_ps(size, rates[link]) for size in move.wire_bytes.tolist()]
    return shared, own


def early_ps(scenario: Scenario) -> int:
    """Return how long before a link has been occupied by all its bytes the last of them may be there already.

    Where links are paced, that is the time of one packet.
    """
    directed = scenario.cluster.directed()
    rates = [rate_bps for rate_bps, paced in zip(directed.rate_bps, directed.paced, strict=True) if paced]
    return serialisation_ps(scenario.cluster.mtu + ETHERNET_BYTES, min(rates)) if rates else 0


def _undecided(job: Job, slice_bytes: int) -> JobPlan:
    """Return the plan of a job in which queues are still to be decided."""
    forward = [layer.forward_ps for layer in job.workload.layers]
    backward = [layer.backward_ps for layer in job.workload.layers]
    ranks = tuple(range(len(forward)))
    return JobPlan(job, ranks, (0,) * len(ranks), slacks(forward, backward), _slices(job, slice_bytes))


def _plan_job(job: Job, scenario: Scenario, policy: Policy, paths: Paths) -> JobPlan:
    forward = [layer.forward_ps for layer in job.workload.layers]
    backward = [layer.backward_ps for layer in job.workload.layers]
    plan = _undecided(job, policy.slice_bytes)
    queues = scenario.cluster.queues
    shared, own = link_loads(plan, scenario, paths)
    loads = shared + own.sum(axis=0)
    busiest = tuple(loads[loads.sum(axis=1).argmax()].tolist())
    if policy.queue_map == "equal":
        queue_of = equal_map(len(plan.ranks), queues)
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
    """Refuse what cannot fit into memory before hours of swapping tell so."""
    links, payload, needed = 2 * len(scenario.cluster.links), payload_bytes(scenario), 0
    for job in scenario.jobs:
        chunks = sum(-(-size // payload) for size in job.workload.tensor_bytes)
        needed += len(job.workers) * (2 * chunks * _BYTES_PER_CHUNK + links * len(job.workload.layers) * 8)
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > installed:
        raise ScenarioError(
            f"{scenario.name}: found a scenario that needs about {format_size(needed)} of memory; accepted: what fits "
            f"into the {format_size(installed)} of this machine; take fewer workers, a smaller model or a larger mtu"
        )


def check_duration(scenario: Scenario) -> None:
    """Refuse a scenario whose times would not fit into 64 bits: one that takes weeks to compute or to send."""
    slowest_bps = min((link.rate_bps for link in scenario.cluster.links), default=1)
    for job in scenario.jobs:
        sent_bytes = 2 * len(job.workers) * sum(wire_bytes(size, scenario) for size in job.workload.tensor_bytes)
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
    paths = _paths(scenario)
    jobs = tuple(_plan_job(job, scenario, policy, paths) for job in scenario.jobs)
    return Plan(scenario, policy, jobs, paths, chosen)
