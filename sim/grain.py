"""Grain: how many packets are moved as one where a job is too large for packet level.

docs/simulator.md says what a train of packets leaves out, and how far that is from packet level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorexpress.errors import InputError
from tensorexpress.graph import ARCHITECTURES
from tensorexpress.hot_rows import hot_rows_of
from tensorexpress.plan import Plan, make_plan, mean_hops, parts_of_slices, slice_counts
from tensorexpress.policy import Policy
from tensorexpress.scenario import Job, Scenario
from tensorexpress.sums import packets_of
from tensorexpress.units import format_size

#: The grain that is chosen by how long packet level would take.
AUTO = "auto"

#: Bytes of the longest train; times of one stay inside 64 bits at any rate below `_FASTEST_BPS`.
_LONGEST_TRAIN_BYTES = 1 << 24
_FASTEST_BPS = 10**12

#: What the compiled engine takes on one core of a usual machine. The grain rests on these and not on the pace of the
#: machine at hand, so that the same question has the same answer everywhere.
_SECONDS_PER_TRANSMISSION = 0.4e-6
_SECONDS_PER_MESSAGE = 4e-6
_CORES = 2

#: How long an answer may take that is not asked for at packet level, and what share a larger grain has to save to be
#: worth it: whole tensors that many servers share are no fewer messages with it.
PATIENCE_SECONDS = 30
_WORTH_IT = 0.2


#: By which share an iteration at a grain may be off packet level, at the least: under any policy; under one that orders
#: slices in hosts alone, which larger slices help or hinder; and where workers drift apart, because servers share their
#: hosts, or because workers that sum among themselves compute for different times.
_ERROR, _ERROR_OF_HOST_ORDER, _ERROR_OF_DRIFT = 0.02, 0.06, 0.1

#: The architecture whose iterations often have two lengths, between which little decides, also without jitter.
_NEAR_THRESHOLDS = "tree"

#: How many times the change at another grain is added to that.
_ERROR_PER_CHANGE = 2


def why_not_coarse(scenario: Scenario) -> str | None:
    """Return what of a scenario only packet level can tell, None when nothing; beside what policies say."""
    if scenario.loss:
        return "loss: packets of a train would all be lost together"
    if scenario.transport.ecn_bytes:
        return "transport.ecn: packets of a train would all be marked together"
    if scenario.greatest_rate_bps > _FASTEST_BPS:
        return "a link of more than 1 Tbps"
    return None


def most_packets(scenario: Scenario) -> int:
    """Return the largest grain."""
    return max(1, _LONGEST_TRAIN_BYTES // scenario.framing.full_packet_bytes)


def compared_grain(scenario: Scenario, grain: int) -> int:
    """Return the grain at which a coarse prediction is made again: twice it, or half of it where that is too large."""
    return 2 * grain if 2 * grain <= most_packets(scenario) else grain // 2


def coarse_error(scenario: Scenario, policy: Policy, change: float) -> float:
    """Return the share by which an iteration at a grain may be off packet level, by its change at another grain.

    `benchmarks/announce.py` measures in how many cases that is enough; docs/simulator.md has the result.
    """
    drifts = any(
        set(job.workers) & set(job.servers)
        or job.architecture == _NEAR_THRESHOLDS
        or ((scenario.jitter or scenario.stragglers) and not job.servers)
        for job in scenario.jobs
    )
    least = _ERROR_OF_HOST_ORDER if policy.orders_in_hosts and not policy.orders_in_switches else _ERROR
    return (_ERROR_OF_DRIFT if drifts else least) + _ERROR_PER_CHANGE * change


def check_grain(scenario: Scenario, grain: int, policies: Sequence[Policy] = ()) -> None:
    """Refuse a grain that a scenario, or any of the policies, cannot be simulated with."""
    reason, most = why_not_coarse(scenario), most_packets(scenario)
    summing = [policy.name for policy in policies if policy.in_switches]
    if grain > 1 and summing:
        raise InputError(f"grain {grain}: {summing[0]} sums in switches, packet by packet; accepted: 1")
    if grain > 1 and reason is not None:
        raise InputError(f"grain {grain}: {scenario.name} has {reason}; accepted: 1")
    if not 1 <= grain <= most:
        raise InputError(
            f"grain {grain}: found no number of packets from 1 to {most}, which is a train of "
            f"{format_size(_LONGEST_TRAIN_BYTES)}; accepted: one of these, or {AUTO}"
        )


def coarsened(plan: Plan, grain: int) -> Plan:
    """Return the plan with slices so large that a message of one is at least a train, where the tensor is.

    Whole tensors stay whole, and a tensor still has a slice for every server.
    """
    slice_bytes = coarse_slice_bytes(plan.scenario, plan.policy, grain)
    if slice_bytes == plan.policy.slice_bytes:
        return plan
    coarse = make_plan(plan.scenario, replace(plan.policy, slice_bytes=slice_bytes), plan.dscps or None)
    # Whoever looks at what came of it wants to know what was asked for.
    return replace(coarse, policy=plan.policy)


def coarse_slice_bytes(scenario: Scenario, policy: Policy, grain: int) -> int:
    """Return how large slices of a policy are at a grain; 0 for whole tensors."""
    if grain == 1 or not policy.slice_bytes:
        return policy.slice_bytes
    return max(policy.slice_bytes, grain * scenario.framing.payload_bytes)


def summed_packets(job: Job, scenario: Scenario, policy: Policy) -> tuple[int, Sequence[int]]:
    """Return how many packets switches sum and send back in an iteration, and the bytes left of each tensor."""
    if not policy.in_switches:
        return 0, job.workload.tensor_bytes
    hot = hot_rows_of(job, scenario.cluster)
    layers = zip(job.workload.layers, hot, strict=True)
    sizes = [layer.cold_bytes(job.workload.bytes_per_param, rows) for layer, rows in layers]
    # Packets go to the nearest switch and back, or a bit on.
    return 2 * len(job.hosts) * sum(packets_of(job.workload, hot)), sizes


def usual_seconds(scenario: Scenario, policies: Sequence[Policy], grain: int) -> float:
    """Return about how long simulations of all policies take together on two usual cores."""
    hops, payload = mean_hops(scenario), scenario.framing.payload_bytes
    acks = 1 / scenario.transport.ack_every if grain == 1 and scenario.transport.acks else 0
    seconds = 0.0
    for policy in policies:
        slice_bytes = coarse_slice_bytes(scenario, policy, grain)
        for job in scenario.jobs:
            packets, sizes = summed_packets(job, scenario, policy)
            seconds += scenario.rounds * packets * _SECONDS_PER_TRANSMISSION
            per_slice, parts = ARCHITECTURES[job.architecture].messages_per_slice(len(job.hosts)), parts_of_slices(job)
            for size, count in zip(sizes, slice_counts(job, slice_bytes, sizes), strict=True):
                if not size:
                    continue
                messages = count * per_slice
                trains = messages * -(-size // (count * parts * grain * payload))
                seconds += messages * _SECONDS_PER_MESSAGE
                seconds += scenario.rounds * trains * hops * (1 + acks) * _SECONDS_PER_TRANSMISSION
    return seconds / min(_CORES, len(policies))


def choose_grain(scenario: Scenario, policies: Sequence[Policy]) -> int:
    """Return 1 where packet level does not take long, otherwise the least grain that gives an answer soon enough.

    It leaves time to simulate all again at twice the grain, which tells what the grain costs.
    """
    only_packets = why_not_coarse(scenario) is not None or any(policy.in_switches for policy in policies)
    if only_packets or usual_seconds(scenario, policies, 1) <= PATIENCE_SECONDS:
        return 1
    grain, seconds = 2, both_seconds(scenario, policies, 2)
    while seconds > PATIENCE_SECONDS and 4 * grain <= most_packets(scenario):
        finer, seconds = seconds, both_seconds(scenario, policies, 2 * grain)
        if seconds > (1 - _WORTH_IT) * finer:
            break
        grain *= 2
    return grain


def both_seconds(scenario: Scenario, policies: Sequence[Policy], grain: int) -> float:
    """Return how long it takes with this grain and, to compare, with another one; see `usual_seconds`."""
    other = compared_grain(scenario, grain)
    return usual_seconds(scenario, policies, grain) + usual_seconds(scenario, policies, other)
