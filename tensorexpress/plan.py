"""Plans: what is decided for one scenario and one policy: ranks, queues, slices, servers and routes.

A plan says nothing about when things happen. The simulator, a switch and real hosts execute the same plan.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tensorexpress.deadline import equal_map, fewest_map, queue_map, regret_ps, slacks
from tensorexpress.errors import ScenarioError
from tensorexpress.framing import ETHERNET_BYTES, Framing
from tensorexpress.graph import Cargo, Graph, cut, draw
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


@dataclass(frozen=True)
class SlicePlan:
    """A part of a tensor, and the host that sums it (-1 where workers do that among themselves)."""

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

    @cached_property
    def graph(self) -> Graph:
        """Who sends what to whom in an iteration, for all who execute the plan."""
        job = self.job
        tensor, size, server = np.array(
            [(piece.tensor, piece.bytes, piece.server) for piece in self.slices], dtype=np.int64
        ).T
        cargo = Cargo(
            job.hosts,
            len(self.ranks),
            tensor,
            size,
            server,
            job.sum_rate_bps,
            job.gpus_per_host,
            job.local_rate_bps,
        )
        return draw(job.architecture, cargo)


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


def _slices(job: Job, policy: Policy) -> tuple[SlicePlan, ...]:
    """Cut tensors into slices and give each to the server that has the fewest bytes so far."""
    load = dict.fromkeys(job.servers, 0)
    slices = []
    for tensor, total in enumerate(job.workload.tensor_bytes):
        parts = -(-total // (policy.slice_bytes or total))
        if job.servers and total >= job.shard_bytes:
            parts = max(parts, min(len(job.servers), total))
        for size in cut(total, parts):
            server = min(load, key=lambda host: (load[host], host)) if load else -1
            if load:
                load[server] += size
            slices.append(SlicePlan(tensor, size, server))
    return tuple(slices)


def link_loads(plan: JobPlan, scenario: Scenario) -> tuple[Ints, Ints]:
    """Return how long each tensor occupies each directed link in one iteration, in ps.

    First (links, tensors) for what all workers wait for, then (hosts that compute, links, tensors) for what those on
    one host wait for.
    """
    cluster, job, graph, framing = scenario.cluster, plan.job, plan.graph, scenario.framing
    flow, rates = scenario.jobs.index(job), cluster.directed().rate_bps
    shared = np.zeros((len(rates), len(plan.ranks)), dtype=np.int64)
    hosts = job.hosts
    own = np.zeros((len(hosts), *shared.shape), dtype=np.int64)
    wire_bytes = graph.bytes + -(-graph.bytes // framing.payload_bytes) * framing.header_bytes
    for src, dst in graph.pairs:
        between = (graph.src == src) & (graph.dst == dst)
        for is_own in (False, True):
            chosen = between & (graph.brings_sums == is_own)
            loads = own[hosts.index(dst)] if is_own and chosen.any() else shared
            sizes = np.bincount(graph.tensor[chosen], wire_bytes[chosen], len(plan.ranks)).astype(np.int64).tolist()
            for link in cluster.route(src, dst, flow):
                loads[link] += [serialisation_ps(size, rates[link]) for size in sizes]
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
    """Refuse what cannot fit into memory before hours of swapping tell so."""
    links, payload, needed = 2 * len(scenario.cluster.links), scenario.framing.payload_bytes, 0
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
