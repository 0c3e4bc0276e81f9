"""Cost: about how much time and memory a prediction takes, known before it starts.

The constants were fitted to `benchmarks/announce.py`; a short simulation gives the pace of the machine at hand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from tensorexpress.graph import ARCHITECTURES
from tensorexpress.plan import make_plan, mean_hops, parts_of_slices, slice_counts
from tensorexpress.policy import POLICIES, Policy
from tensorexpress.queueing import DISCIPLINES, not_compiled
from tensorexpress.scenario import Job, Scenario, read_scenario
from tensorexpress.sim.grain import coarse_slice_bytes, compared_grain, summed_packets
from tensorexpress.sim.run import simulate

#: CPU seconds of the machine on which the constants were fitted: of a transmission; of a message, where hosts talk to
#: few others, to many servers, and where switches sort; to lay out a message, and a layer of a pair of hosts.
_TRANSMISSION = 0.1e-6
_MESSAGE_BETWEEN_FEW, _MESSAGE_TO_SERVERS, _MESSAGE_SORTED = 0.45e-6, 1.6e-6, 2.6e-6
_MESSAGE_LAID_OUT, _LAYER_OF_PAIR = 1.2e-6, 0.5e-6

#: SimPy's CPU seconds of a transmission, on the same machine.
_TRANSMISSION_BY_SIMPY = 16e-6

#: How many times as long that is as for the compiled engine.
SIMPY_FACTOR = round(_TRANSMISSION_BY_SIMPY / _TRANSMISSION)

#: The most times that packets are sent where the windows of all workers overflow the buffer of a port.
_SENT_AGAIN = 4.0

#: Bytes: of a process that has simulated nothing yet; of a message, and more for every iteration; of the same when a
#: policy is done; of a packet under way, and of one that is sorted; what memory that grows takes beside that.
_PROCESS_BYTES = 95 << 20
_MESSAGE_BYTES, _MESSAGE_BYTES_PER_ITERATION = 710, 64
_DONE_MESSAGE_BYTES, _DONE_MESSAGE_BYTES_PER_ITERATION = 250, 32
_PACKET_BYTES, _SORTED_PACKET_BYTES, _GROWTH = 64, 128, 2.5

#: How long the pace of a machine is measured.
_PROBE_SECONDS = 0.3


class Counts(NamedTuple):
    """What a simulation of one policy at one grain handles in all its iterations; about."""

    transmissions: float
    #: Messages of one iteration, and packets or trains that are under way at a time, at the most.
    messages: float
    under_way: float
    #: Pairs of hosts that talk, times layers.
    layers_of_pairs: float


class Cost(NamedTuple):
    """Seconds on the clock, bytes of memory, and CPU seconds that a prediction takes; about."""

    seconds: float
    bytes: float
    cpu_seconds: float


def counts_of(scenario: Scenario, policy: Policy, grain: int) -> Counts:
    """Return how much a simulation of a policy handles."""
    hops, framing, transport = mean_hops(scenario), scenario.framing, scenario.transport
    acks = 1 / transport.ack_every if grain == 1 and transport.acks else 0
    window = max(transport.window_bytes // framing.full_packet_bytes, 1) if transport.window_bytes else 1 << 40
    in_flight = max(2, window // grain)
    slice_bytes = coarse_slice_bytes(scenario, policy, grain)
    transmissions = messages = under_way = layers_of_pairs = 0.0
    for job in scenario.jobs:
        packets, sizes = summed_packets(job, scenario, policy)
        transmissions += packets
        per_slice, parts = ARCHITECTURES[job.architecture].messages_per_slice(len(job.hosts)), parts_of_slices(job)
        own = trains = 0.0
        for size, slices in zip(sizes, slice_counts(job, slice_bytes, sizes), strict=True):
            if size:
                own += slices * per_slice
                trains += slices * per_slice * -(-size // (slices * parts * grain * framing.payload_bytes))
        pairs = 2 * len(job.hosts) * max(1, len(job.servers))
        again = _sent_again(job, scenario, policy) if grain == 1 else 1.0
        transmissions += trains * hops * (1 + acks) * again
        messages += own
        under_way += min(trains, pairs * _classes(job, scenario, policy) * in_flight)
        layers_of_pairs += pairs * len(job.workload.layers)
    return Counts(scenario.rounds * transmissions, messages, under_way, layers_of_pairs)


def _sent_again(job: Job, scenario: Scenario, policy: Policy) -> float:
    """Return how many times packets are sent: more than once where workers' windows overflow the port of a server."""
    buffer_bytes = scenario.cluster.buffer_bytes if DISCIPLINES[policy.discipline].has_limit else 0
    if not (job.servers and buffer_bytes):
        return 1.0
    return min(_SENT_AGAIN, max(1.0, len(job.workers) * scenario.transport.window_bytes / buffer_bytes))


def _classes(job: Job, scenario: Scenario, policy: Policy) -> int:
    """Return how many flows two hosts have at the most."""
    discipline = DISCIPLINES[policy.discipline]
    if discipline.sorts():
        return len(job.workload.layers)
    return scenario.cluster.queues if discipline.has_queues and policy.orders_in_switches else 1


def _simulating_seconds(scenario: Scenario, policy: Policy, counts: Counts, engine: str) -> float:
    if engine == "simpy" or not_compiled(policy.discipline, policy.host_order):
        return counts.transmissions * _TRANSMISSION_BY_SIMPY
    if DISCIPLINES[policy.discipline].sorts():
        message = _MESSAGE_SORTED
    else:
        message = _MESSAGE_TO_SERVERS if any(job.servers for job in scenario.jobs) else _MESSAGE_BETWEEN_FEW
    return counts.transmissions * _TRANSMISSION + scenario.rounds * counts.messages * message


def expected_cost(scenario: Scenario, policies: Sequence[Policy], grain: int = 1, engine: str = "auto") -> Cost:
    """Return about what a prediction takes on the machine on which the constants were fitted."""
    grains = [grain, compared_grain(scenario, grain)] if grain > 1 else [1]
    rounds, at_once = scenario.rounds, min(os.cpu_count() or 1, len(policies))
    own_seconds, planning, running_bytes, done_bytes = [], 0.0, [], 0.0
    for policy in policies:
        all_counts = [counts_of(scenario, policy, each) for each in grains]
        own_seconds.append(sum(_simulating_seconds(scenario, policy, each, engine) for each in all_counts))
        planning += sum(
            _MESSAGE_LAID_OUT * each.messages + _LAYER_OF_PAIR * each.layers_of_pairs for each in all_counts
        )
        counts = all_counts[0]
        packet = _SORTED_PACKET_BYTES if DISCIPLINES[policy.discipline].sorts() else _PACKET_BYTES
        done = counts.messages * (_DONE_MESSAGE_BYTES + _DONE_MESSAGE_BYTES_PER_ITERATION * rounds)
        running = counts.messages * (_MESSAGE_BYTES + _MESSAGE_BYTES_PER_ITERATION * rounds)
        # While it is simulated at another grain, what came of the first one stays.
        held = done if grain > 1 else 0.0
        running_bytes.append(running + _GROWTH * packet * counts.under_way + held - done)
        done_bytes += done
    seconds = planning + max(sum(own_seconds) / at_once, max(own_seconds))
    peak_bytes = _PROCESS_BYTES + done_bytes + sum(sorted(running_bytes)[-at_once:])
    return Cost(seconds, peak_bytes, planning + sum(own_seconds))


def pace() -> float:
    """Return how many times as long this machine takes as the one on which the constants were fitted."""
    probe = read_scenario(None, ["job.workers=2", "job.servers=1", "iterations=1", "warmup=0"])
    plan = make_plan(probe, POLICIES["fifo"])
    # The first one loads the compiled code.
    simulate(plan)
    expected = _simulating_seconds(probe, plan.policy, counts_of(probe, plan.policy, 1), "auto")
    start, runs = time.perf_counter(), 0
    while time.perf_counter() - start < _PROBE_SECONDS:
        simulate(plan)
        runs += 1
    return (time.perf_counter() - start) / runs / expected
