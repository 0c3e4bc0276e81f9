"""The simulator against what is known without it: a worked example, closed forms, bounds and conservation laws."""

from __future__ import annotations

import doctest
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bounds import forced_ps
from support.strategies import SUMMED, US, paced_plans, plans, scenarios
from support.thorough import examples, rest

from tensorexpress.bound import make_demand
from tensorexpress.cluster import Cluster
from tensorexpress.deadline import fifo_iteration_ps, lower_bound_ps, optimal_iteration_ps
from tensorexpress.graph import KINDS
from tensorexpress.plan import Plan, early_ps, link_loads, make_plan
from tensorexpress.policy import Policy, parse_policy
from tensorexpress.queueing import HOST_ORDERS
from tensorexpress.scenario import Job, Scenario, Transport
from tensorexpress.sim.flat_plan import FlatPlan, build
from tensorexpress.sim.record import ACK, Record
from tensorexpress.sim.run import execute, simulate
from tensorexpress.topologies import custom, star
from tensorexpress.trace import JobTrace, Trace, iterations_ps
from tensorexpress.units import serialisation_ps
from tensorexpress.workload import Layer, Workload

#: Forward, backward and transfer times of layers, in us.
Times = tuple[list[int], list[int], list[int]]

#: At this rate 1000 bytes take a microsecond.
UNIT_BPS = 8 * 10**9
UNIT_BYTES = 1000

#: No acknowledgements, headers or windows: the network of the closed forms.
BARE = Transport(window_bytes=0, acks=False, header_bytes=0)

#: What a mean may be off by because it is no whole number.
FLOATING = 1e-12


def workload(forward_us: list[int], backward_us: list[int], sizes_bytes: list[int]) -> Workload:
    layers = zip(forward_us, backward_us, sizes_bytes, strict=True)
    return Workload("oracle", tuple(Layer(f"l{i}", size // 4, f * US, b * US) for i, (f, b, size) in enumerate(layers)))


def cable(mtu: int) -> Cluster:
    """One worker and one server without a switch between them."""
    return custom(["h0", "h1"], [], [("h0", "h1", UNIT_BPS, 0)], mtu=mtu, buffer=0)


def hub(workers: int, worker_bps: int, server_bps: int, mtu: int) -> Cluster:
    """A switch with a server, which is h0, and workers at another rate."""
    hosts = [f"h{i}" for i in range(workers + 1)]
    links = [(host, "s0", worker_bps if i else server_bps, 0) for i, host in enumerate(hosts)]
    return custom(hosts, ["s0"], links, mtu=mtu, buffer=0)


def in_order(packet_bytes: int) -> Policy:
    return Policy("fifo", slice_bytes=packet_bytes)


def most_urgent_first(packet_bytes: int) -> Policy:
    return Policy("ideal", slice_bytes=packet_bytes, host_order="priority", discipline="pifo")


class TestByteSchedulersExample:
    """Three layers, 2 forward and 2 backward each; tensors of 3, 6 and 3 time units each way."""

    scenario = Scenario(
        "bytescheduler",
        cable(UNIT_BYTES),
        (Job("job", workload([2, 2, 2], [2, 2, 2], [3 * UNIT_BYTES, 6 * UNIT_BYTES, 3 * UNIT_BYTES]), (0,), (1,)),),
        BARE,
    )

    @pytest.mark.parametrize("engine", ["simpy", "fast"])
    @pytest.mark.parametrize(
        ("policy", "units"),
        [
            (Policy("whole tensors in order"), 26),
            (Policy("one-unit slices by priority", UNIT_BYTES, "priority"), 18),
        ],
    )
    def test_takes_exactly_as_long_as_published(self, policy: Policy, units: int, engine: str) -> None:
        trace = simulate(make_plan(self.scenario, policy), engine)
        assert iterations_ps(trace.jobs[0]).tolist() == [units * US] * 3

    def test_its_blocking_is_what_compute_leaves_of_the_iteration(self) -> None:
        trace = simulate(make_plan(self.scenario, Policy("whole")))
        assert trace.jobs[0].waits_ps.sum(axis=2).ravel().tolist() == [(26 - 12) * US] * 3


@st.composite
def bottlenecks(draw: st.DrawFn) -> Times:
    """Forward, backward and transfer times in us, with 2,000 to 3,000 us of transfers: as many kB."""
    layers = draw(st.integers(3, 8))
    times = st.lists(st.integers(1, 300), min_size=layers, max_size=layers)
    weights = draw(st.lists(st.integers(1, 100), min_size=layers, max_size=layers))
    return draw(times), draw(times), [1 + 2000 * weight // sum(weights) for weight in weights]


class TestClosedForms:
    """With small packets, the iteration time is the fluid's of one bottleneck: in order, and most urgent first."""

    @staticmethod
    def excess(
        times: Times, cluster: Cluster, transport: Transport = BARE, shares: int = 1, queue_map: str = "optimal"
    ) -> tuple[float, float]:
        """Return by how much FIFO and the most urgent first exceed their closed forms, as ratios.

        `shares` is how many workers share the bottleneck.
        """
        forward, backward, transfer = times
        workers = tuple(range(1, len(cluster.hosts)))
        sizes = [UNIT_BYTES * units // shares // 4 * 4 for units in transfer]
        job = Job("job", workload(forward, backward, sizes), workers, (0,))
        scenario = Scenario("closed form", cluster, (job,), transport, warmup=2, iterations=1)
        in_ps = [[time * US for time in row] for row in times]
        excess = []
        for policy, closed_form in (
            (in_order(cluster.mtu), fifo_iteration_ps),
            (replace(most_urgent_first(cluster.mtu), queue_map=queue_map), optimal_iteration_ps),
        ):
            trace = simulate(make_plan(scenario, policy), "fast")
            excess.append(float(iterations_ps(trace.jobs[0])[-1]) / closed_form(*in_ps) - 1)
        return excess[0], excess[1]

    @settings(max_examples=30)
    @given(bottlenecks())
    def test_of_a_cable_hold_within_a_few_packets(self, times: Times) -> None:
        for excess in self.excess(times, cable(UNIT_BYTES)):
            assert 0 <= excess < 0.002

    @rest()
    @settings(max_examples=10)
    @given(bottlenecks())
    def test_are_approached_in_step_with_the_packet_size(self, times: Times) -> None:
        by_size = [self.excess(times, cable(mtu)) for mtu in (4000, 1000, 250)]
        for errors in zip(*by_size, strict=True):
            for large, small in pairwise(errors):
                # A packet is a constant part of the iteration, four times as large a packet about four times as much.
                assert 0 <= small <= large / 2
            assert errors[-1] < 0.0005

    @rest()
    @settings(max_examples=10)
    @given(bottlenecks())
    def test_hold_for_workers_whose_own_links_are_the_bottleneck(self, times: Times) -> None:
        for excess in self.excess(times, hub(4, UNIT_BPS, 1000 * UNIT_BPS, mtu=UNIT_BYTES)):
            assert 0 <= excess < 0.002

    @rest()
    @settings(max_examples=10)
    @given(bottlenecks())
    def test_hold_for_workers_that_meet_at_the_server_with_a_window_of_one_packet(self, times: Times) -> None:
        for excess in self.excess(times, self.meeting(mtu=250), self.paced(250), shares=4):
            # Tensors are whole parameters: a quarter of one can be a few bytes short of its quarter of the time.
            assert -0.001 < excess < 0.02

    def test_do_not_hold_for_workers_that_are_out_of_step_where_nothing_paces_them(self) -> None:
        """The burst of the worker that is ahead goes first among equals, and sums wait for the last burst."""
        times = [100] * 4, [100] * 4, [500] * 4
        in_order, urgent_first = self.excess(times, self.meeting(UNIT_BYTES), shares=4)
        assert 0.1 < in_order < 0.2
        assert 0.25 < urgent_first < 0.35
        # Either a window, or slices with deadlines of their own.
        assert max(self.excess(times, self.meeting(UNIT_BYTES), self.paced(UNIT_BYTES), shares=4)) < 0.01
        assert self.excess(times, self.meeting(UNIT_BYTES), shares=4, queue_map="slack")[1] < 0.01

    @staticmethod
    def meeting(mtu: int) -> Cluster:
        """Four workers with fast links to a server with a slow one."""
        return hub(4, 100 * UNIT_BPS, UNIT_BPS, mtu)

    @staticmethod
    def paced(packet_bytes: int) -> Transport:
        return replace(BARE, acks=True, window_bytes=packet_bytes, ack_bytes=1, rto_min_ps=10**6 * US)


def stretch(job: JobTrace, first: int, end: int) -> JobTrace:
    """Return some iterations of a job as if nothing had been before and after them."""
    passes, iterations = slice(first, end + 1), slice(first, end)
    return replace(
        job,
        forward_ps=job.forward_ps[passes],
        backward_ps=job.backward_ps[iterations],
        forward_start_ps=job.forward_start_ps[passes],
        backward_start_ps=job.backward_start_ps[iterations],
        updated_ps=job.updated_ps[iterations],
    )


class TestLowerBound:
    """Nothing beats the bound: no iteration, and no stretch of them, with the times that were drawn for it."""

    @settings(max_examples=examples(200) * int(os.environ.get("TENSOREXPRESS_BOUNDS", "1")))
    @given(plans() | paced_plans() | plans(sums=SUMMED, sparse=None) | paced_plans(sums=SUMMED), st.integers(1, 5))
    def test_is_never_beaten(self, plan: Plan, iterations: int) -> None:
        scenario = replace(plan.scenario, iterations=iterations)
        plan = make_plan(scenario, plan.policy)
        trace = simulate(plan, "fast")
        for number, job in enumerate(trace.jobs):
            demand, took_ps = make_demand(plan, number), iterations_ps(job)
            for first, end in combinations(range(len(took_ps) + 1), 2):
                mean_ps = took_ps[first:end].mean()
                assert forced_ps(demand, stretch(job, first, end), warmup=0) <= mean_ps * (1 + FLOATING)

    @settings(max_examples=30)
    @given(bottlenecks())
    def test_is_attained_by_the_most_urgent_first_on_one_bottleneck(self, times: Times) -> None:
        forward, backward, transfer = times
        job = Job("job", workload(forward, backward, [UNIT_BYTES * units for units in transfer]), (0,), (1,))
        plan = make_plan(Scenario("bound", cable(UNIT_BYTES), (job,), BARE), most_urgent_first(UNIT_BYTES))
        shared, own = link_loads(plan.jobs[0], plan.scenario, plan.paths)
        rows = ([[time * US for time in row]] for row in (forward, backward))
        bound_ps = lower_bound_ps(*rows, shared, own[None])
        assert bound_ps <= iterations_ps(simulate(plan).jobs[0])[-1] < 1.01 * bound_ps


class TestCommunicationTime:
    """When nothing is computed, an iteration is the time that the busiest link needs."""

    size_bytes = 2_000_000

    def seconds(self, workers: int, servers: int, architecture: str, colocated: bool = False) -> float:
        hosts = workers if colocated else workers + servers
        summing = range(servers) if colocated else range(workers, workers + servers)
        job = Job(
            "job",
            workload([0], [0], [self.size_bytes]),
            tuple(range(workers)),
            tuple(summing) if architecture == "ps" else (),
            architecture,
            shard_bytes=0,
        )
        cluster = star(hosts, UNIT_BPS, 0, mtu=500, buffer=0)
        trace = simulate(make_plan(Scenario("wire", cluster, (job,), BARE), in_order(4000)), "fast")
        return float(iterations_ps(trace.jobs[0])[-1]) / 10**12

    @property
    def once(self) -> float:
        """M / B."""
        return self.size_bytes * 8 / UNIT_BPS

    @pytest.mark.parametrize("workers", [2, 3, 4, 8])
    def test_of_a_ring(self, workers: int) -> None:
        expected = 2 * (workers - 1) / workers * self.once
        assert expected <= self.seconds(workers, 0, "ring") < 1.001 * expected

    @pytest.mark.parametrize(("workers", "busiest"), [(2, 1.0), (3, 1.5), (4, 2.0), (7, 2.0)])
    def test_of_two_trees(self, workers: int, busiest: float) -> None:
        # Who has a parent and two children in one tree and a parent in the other sends four halves; small trees have
        # nobody like this. Deeper trees take longer: links stand still while sums are on their way up.
        expected = busiest * self.once
        assert expected <= self.seconds(workers, 0, "tree") < 1.002 * expected

    @pytest.mark.parametrize("workers", [2, 3, 8])
    def test_of_sharded_parameters(self, workers: int) -> None:
        # Gathered, gathered again, and reduced: half as much again as in a ring.
        expected = 3 * (workers - 1) / workers * self.once
        assert expected <= self.seconds(workers, 0, "fsdp") < 1.001 * expected

    @pytest.mark.parametrize("workers", [2, 4, 8])
    def test_of_servers_on_all_workers(self, workers: int) -> None:
        expected = 2 * (workers - 1) / workers * self.once
        assert expected <= self.seconds(workers, workers, "ps", colocated=True) < 1.005 * expected

    @pytest.mark.parametrize(("workers", "servers"), [(1, 1), (4, 1), (4, 2), (4, 4), (8, 4), (2, 4)])
    def test_of_separate_servers(self, workers: int, servers: int) -> None:
        expected = max(1, workers / servers) * self.once
        assert 0.999 * expected <= self.seconds(workers, servers, "ps") < 1.02 * expected


class TestGpus:
    """One slice of 8,000 bytes on an idle network, with GPUs that sum and share at 8 bits a ns."""

    def latency_ps(self, gpus: int, local_rate_bps: int = 8 * 10**9) -> int:
        job = Job(
            "job",
            workload([10], [10], [8 * UNIT_BYTES]),
            (0,) * gpus,
            (1,),
            gpus_per_host=gpus,
            local_rate_bps=local_rate_bps,
        )
        scenario = Scenario("idle", star(2, UNIT_BPS, 0, mtu=UNIT_BYTES), (job,), BARE)
        trace = simulate(make_plan(scenario, Policy("whole"))).jobs[0]
        latency = (trace.updated_ps - trace.gradient_ps)[0]
        assert len(set(latency.ravel().tolist())) == 1
        return int(latency[0, 0])

    @pytest.mark.parametrize("gpus", [2, 3, 4, 8])
    def test_take_what_a_ring_of_them_takes(self, gpus: int) -> None:
        local_ps = serialisation_ps(8 * UNIT_BYTES * (gpus - 1) // gpus, 8 * 10**9)
        assert self.latency_ps(gpus) == self.latency_ps(1) + 2 * local_ps

    def test_take_no_time_at_once(self) -> None:
        assert self.latency_ps(4, local_rate_bps=0) == self.latency_ps(1)


class TestSharded:
    """FSDP: four workers, four equal layers of 96 packets, so that a ring of them gathers a layer in 72 us."""

    def plan(
        self, forward: int, backward: int, prefetch: int, host_order: str = "fifo", packets: Sequence[int] = (96,) * 4
    ) -> Plan:
        layers = len(packets)
        model = workload([forward] * layers, [backward] * layers, [count * UNIT_BYTES for count in packets])
        job = Job("job", model, (0, 1, 2, 3), (), "fsdp", prefetch=prefetch)
        # Slices let a worker pass on a part before it has all of it.
        scenario = Scenario("sharded", star(4, UNIT_BPS, 0, mtu=UNIT_BYTES), (job,), BARE)
        return make_plan(scenario, replace(in_order(4 * UNIT_BYTES), host_order=host_order))

    def trace(self, forward: int, backward: int, prefetch: int, host_order: str = "fifo") -> Trace:
        return simulate(self.plan(forward, backward, prefetch, host_order))

    def test_every_link_carries_three_times_all_but_ones_own_part(self) -> None:
        trace = self.trace(100, 200, prefetch=1)
        rounds = len(trace.jobs[0].backward_ps)
        assert set(trace.links["bytes"].tolist()) == {rounds * 3 * 4 * 72 * UNIT_BYTES}

    def test_without_prefetch_all_gathers_are_waited_for(self) -> None:
        job = self.trace(100, 200, prefetch=0).jobs[0]
        # Eight gathers; three of them share the links with the reduction that began in the same moment; and before the
        # first layer is gathered for the next pass, it has to be reduced.
        blocked_us = job.blocking_ps[-1] / US
        assert 12 * 72 <= blocked_us.min() <= blocked_us.max() < 12 * 72 * 1.02

    def test_prefetch_hides_gathers_behind_layers_that_take_longer(self) -> None:
        job = self.trace(100, 200, prefetch=1).jobs[0]
        # Left are those with nothing to hide behind: the last layer's, which is computed forward and backward in a row,
        # and the first layer's, which is reduced and gathered between two iterations. In the order of arrival, two of
        # these three share the links with what is prefetched in the same moment.
        blocked_us = job.blocking_ps[-1] / US
        assert 5 * 72 <= blocked_us.min() <= blocked_us.max() < 5 * 72 * 1.02

    @pytest.mark.parametrize("prefetch", [1, 2])
    def test_in_the_order_of_deadlines_only_gathers_with_nothing_to_hide_behind_are_waited_for(
        self, prefetch: int
    ) -> None:
        job = self.trace(100, 200, prefetch, host_order="priority").jobs[0]
        blocked_us = job.blocking_ps[-1] / US
        assert 3 * 72 <= blocked_us.min() <= blocked_us.max() < 3 * 72 * 1.02

    def test_a_large_layer_does_not_overtake_what_is_needed_before_it(self) -> None:
        plan = self.plan(100, 200, prefetch=1, host_order="priority", packets=(384, 96, 96, 96))
        blocked_us = simulate(plan).jobs[0].blocking_ps[-1] / US
        # The last layer is gathered again, the first one reduced and gathered; and to gather that one again takes 288
        # us, of which the backward pass of the second hides 200.
        expected_us = 72 + 2 * 288 + 88
        assert expected_us <= blocked_us.min() <= blocked_us.max() < 1.02 * expected_us

    @pytest.mark.parametrize("prefetch", [0, 1, 2])
    def test_an_order_by_deadlines_costs_nothing_where_passes_stand_still(self, prefetch: int) -> None:
        # Like a language model: large embeddings, and bytes take three times as long as layers.
        packets = (384, *[96] * 7)
        fifo_ps, deadlines_ps = (
            iterations_ps(simulate(self.plan(30, 60, prefetch, order, packets)).jobs[0])[-2]
            for order in ("fifo", "priority")
        )
        assert deadlines_ps <= fifo_ps

    def test_a_bound_on_bytes_is_nearly_reached_when_little_is_computed(self) -> None:
        plan = self.plan(10, 20, prefetch=2)
        trace = simulate(plan).jobs[0]
        bound_ps = make_demand(plan, 0).busiest_ps
        # The last iteration is shorter: nothing is gathered again for a backward pass that does not come.
        took_ps = iterations_ps(trace)[-2]
        assert 0.9 * took_ps < bound_ps <= took_ps

    def test_more_prefetch_never_lets_a_worker_hold_more_layers(self) -> None:
        for prefetch in (0, 1, 2):
            job = self.trace(1, 1, prefetch).jobs[0]
            gathers = job.transfers[job.transfers["kind"] == KINDS.index("gather")]
            for piece in gathers[gathers["tensor"] > prefetch]:
                # For the next pass: layer l may come when that pass is through layer l - prefetch - 1.
                worker, layer = int(piece["src"]), int(piece["tensor"]) - prefetch - 1
                assert piece["sent_ps"] >= job.forward_end_ps[piece["iteration"] + 1, worker, layer]

    @rest()
    def test_examples_in_the_documentation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(HOST_ORDERS, "layer", HOST_ORDERS["fifo"])  # so that the page's own is gone afterwards
        page = Path(__file__).parents[1] / "docs" / "training-today.md"
        assert doctest.testfile(str(page), module_relative=False).failed == 0


class TestForwardOnly:
    def test_a_pass_waits_for_what_it_pulls_and_nothing_is_pushed(self) -> None:
        model = workload([10, 10], [0, 0], [20 * UNIT_BYTES, 10 * UNIT_BYTES])
        job = Job("job", model, (0,), (1,), forward_only=True)
        plan = make_plan(Scenario("infer", cable(UNIT_BYTES), (job,), BARE), most_urgent_first(UNIT_BYTES))
        trace = simulate(plan)
        assert trace.links["bytes"].tolist() == [0, 3 * 30 * UNIT_BYTES]
        # The first layer after 20 packets, the second after 30: ten of them while the first is computed.
        assert set(np.diff(trace.jobs[0].forward_start_ps[:, 0, 0]).tolist()) == {(20 + 10 + 10) * US}


class TestIdleNetwork:
    @pytest.mark.parametrize("packets", [1, 2, 7])
    def test_a_slice_takes_exactly_its_time_to_store_and_forward(self, packets: int) -> None:
        job = Job("job", workload([10], [10], [packets * UNIT_BYTES]), (0,), (1,))
        scenario = Scenario("idle", star(2, UNIT_BPS, 3 * US, mtu=UNIT_BYTES), (job,), BARE)
        transfers = simulate(make_plan(scenario, Policy("whole"))).jobs[0].transfers
        # All packets on the first link, the last one on the second, and the propagation of both.
        assert set((transfers["delivered_ps"] - transfers["sent_ps"]).tolist()) == {(packets + 1 + 2 * 3) * US}
        assert np.array_equal(transfers["sent_ps"], transfers["ready_ps"])

    def test_acknowledgements_of_a_window_of_one_packet_pace_the_sender(self) -> None:
        job = Job("job", workload([10], [10], [5 * UNIT_BYTES]), (0,), (1,))
        transport = Transport(UNIT_BYTES, header_bytes=0, ack_bytes=500)
        scenario = Scenario("paced", star(2, UNIT_BPS, 3 * US, mtu=UNIT_BYTES), (job,), transport)
        transfers = simulate(make_plan(scenario, Policy("whole"))).jobs[0].transfers
        round_trip_ps = 2 * (1 + 3) * US + 2 * (US // 2 + 3 * US)
        last_packet_ps = 2 * (1 + 3) * US
        assert set((transfers["delivered_ps"] - transfers["sent_ps"]).tolist()) == {4 * round_trip_ps + last_packet_ps}


class TestConservation:
    @settings(max_examples=examples(60))
    @given(plans(disturbed=False))
    def test_every_link_carries_exactly_what_was_planned(self, plan: Plan) -> None:
        scenario = plan.scenario
        trace = simulate(plan, "fast")
        expected = np.zeros(len(trace.links), dtype=np.int64)
        for job in plan.jobs:
            for src, dst, size in zip(job.graph.src, job.graph.dst, job.graph.bytes, strict=True):
                path = plan.paths.between(int(src), int(dst))
                expected[list(path)] += plan.framing.wire_bytes(int(size))
        assert np.array_equal(trace.links["bytes"], expected * (scenario.warmup + scenario.iterations))

    @settings(max_examples=examples(40))
    @given(scenarios(disturbed=False), st.sampled_from([0, 3000]))
    def test_every_work_conserving_discipline_keeps_links_busy_for_the_same_time(
        self, scenario: Scenario, slice_bytes: int
    ) -> None:
        busy = [
            simulate(make_plan(scenario, Policy("any", slice_bytes, order, 0, discipline, map_)), "fast").links
            for order, discipline, map_ in (
                ("fifo", "fifo", "optimal"),
                ("priority", "strict", "equal"),
                ("priority", "sp-pifo", "slack"),
                ("fifo", "pifo", "optimal"),
            )
        ]
        for links in busy[1:]:
            assert np.array_equal(links["busy_ps"], busy[0]["busy_ps"])
            assert np.array_equal(links["bytes"], busy[0]["bytes"])

    @settings(max_examples=examples(80))
    @given(plans() | paced_plans())
    def test_a_slice_is_never_faster_than_its_links(self, plan: Plan) -> None:
        cluster = plan.scenario.cluster
        directed = cluster.directed()
        for job in simulate(plan, "fast").jobs:
            for piece in job.transfers[job.transfers["src"] != job.transfers["dst"]]:
                path = plan.paths.between(int(piece["src"]), int(piece["dst"]))
                least_ps = max(serialisation_ps(int(piece["bytes"]), directed.rate_bps[link]) for link in path)
                least_ps += sum(directed.delay_ps[link] for link in path) - early_ps(plan.scenario)
                if piece["bytes"]:
                    assert piece["delivered_ps"] - piece["sent_ps"] >= least_ps
                assert piece["delivered_ps"] >= piece["sent_ps"] >= piece["ready_ps"] >= 0

    @settings(max_examples=examples(80))
    @given(plans() | plans(sums=SUMMED))
    def test_a_worker_computes_or_stands_still_for_parameters_and_nothing_else(self, plan: Plan) -> None:
        for job in simulate(plan, "fast").jobs:
            self.check_forward_waits_only_for_parameters(job)
            self.check_backward_waits_only_for_parameters(job)
            self.check_intervals(job)
            self.check_transfers_start_at_gradients(job)

    @staticmethod
    def check_forward_waits_only_for_parameters(job: JobTrace) -> None:
        could_start_ps = job.forward_start_ps[1:] - job.waits_ps
        assert np.array_equal(job.forward_start_ps[1:], np.maximum(could_start_ps, job.updated_ps))
        assert (job.updated_ps >= job.gradient_ps).all()

    @staticmethod
    def check_backward_waits_only_for_parameters(job: JobTrace) -> None:
        transfers = job.transfers[job.transfers["kind"] == KINDS.index("regather")]
        arrived_ps = np.zeros(job.backward_start_ps.shape, dtype=np.int64)
        for worker, name in enumerate(job.workers):
            own = transfers[transfers["dst"] == int(name[1:])]
            np.maximum.at(arrived_ps[:, worker], (own["iteration"], own["tensor"]), own["delivered_ps"])
        could_start_ps = job.backward_start_ps - job.backward_waits_ps
        started_ps = np.maximum(could_start_ps, arrived_ps)
        if len(set(job.workers)) == len(job.workers):
            assert np.array_equal(job.backward_start_ps, started_ps)
        else:  # Several workers of a host share among themselves after that.
            assert (job.backward_start_ps >= started_ps).all()

    @staticmethod
    def check_intervals(job: JobTrace) -> None:
        computed_ps = job.forward_ps[:-1, :, -1] + job.backward_ps.sum(axis=2) + job.forward_ps[1:, :, :-1].sum(axis=2)
        interval_ps = np.diff(job.forward_start_ps[:, :, -1], axis=0)
        assert np.array_equal(interval_ps, computed_ps + job.blocking_ps)

    @staticmethod
    def check_transfers_start_at_gradients(job: JobTrace) -> None:
        for piece in job.transfers[job.transfers["kind"] == KINDS.index("push")]:
            workers = [index for index, name in enumerate(job.workers) if name == f"h{piece['src']}"]
            ready_ps = job.gradient_ps[piece["iteration"], workers, piece["tensor"]].max()
            # Several workers of a host sum among themselves before.
            assert piece["ready_ps"] == ready_ps if len(workers) == 1 else piece["ready_ps"] >= ready_ps


def port_visits(plan: Plan, program: FlatPlan, record: Record) -> dict[int, list[tuple[int, int, int, int, int]]]:
    """Return what passed each switch port, in the order it left: (arrived, over link, left, occupied, rank), in ps.

    Nothing may have been sent twice, so that a packet is known by its chunk.
    """
    directed = plan.scenario.cluster.directed()
    left_before: dict[tuple[int, ...], tuple[int, int]] = {}
    visits = defaultdict(list)
    for row in record.packets:
        time_ps, link, kind, _, message, iteration, chunk, size = row.tolist()
        occupied_ps = serialisation_ps(size, directed.rate_bps[link])
        packet = (kind, message, iteration, chunk)
        if directed.source[link] >= program.hosts:
            arrived_ps, over = left_before[packet]
            rank = 0 if kind == ACK else int(program.message_switch_rank[message])
            visits[link].append((arrived_ps, over, time_ps, occupied_ps, rank))
        passing_ps = 0 if directed.paced[link] else occupied_ps
        left_before[packet] = (time_ps + passing_ps + directed.delay_ps[link], link)
    return visits


class TestSwitchPorts:
    """What leaves a port, reconstructed from the log: the first of all that has arrived, with nothing in between."""

    @settings(max_examples=examples(60))
    @given(
        plans(disturbed=False) | paced_plans(disturbed=False),
        st.sampled_from(["fifo", "strict", "pifo"]),
        st.booleans(),
    )
    def test_serve_the_most_urgent_packet_there_is_and_never_idle(
        self, plan: Plan, discipline: str, acks: bool
    ) -> None:
        patient = Transport(window_bytes=20_000, rto_min_ps=10**8 * US) if acks else BARE
        scenario = replace(plan.scenario, transport=patient)
        plan = make_plan(scenario, replace(plan.policy, discipline=discipline, queue_map="optimal"))
        program = build(plan)
        record = execute(program, "fast", record_packets=True)
        assert record.retransmissions == 0
        for visits in port_visits(plan, program, record).values():
            self.check_port(visits, discipline)

    @staticmethod
    def check_port(visits: list[tuple[int, int, int, int, int]], discipline: str) -> None:
        waiting = sorted((arrived_ps, over, rank) for arrived_ps, over, _, _, rank in visits)
        free_ps = 0
        for arrived_ps, over, left_ps, occupied_ps, rank in visits:
            assert left_ps == max(free_ps, waiting[0][0])
            there = [(0 if discipline == "fifo" else r, t, o) for t, o, r in waiting if t <= left_ps]
            assert min(there)[1:] == (arrived_ps, over)
            waiting.remove((arrived_ps, over, rank))
            free_ps = left_ps + occupied_ps


def incast(**transport: int) -> Scenario:
    """Four workers that send to one server at the same time."""
    job = Job("job", workload([200, 200], [300, 300], [100_000, 400_000]), (0, 1, 2, 3), (4,))
    return Scenario("incast", star(5, "1 Gbps", "2 us", mtu=1500), (job,), Transport(**transport), iterations=2)


class TestCongestion:
    #: A first burst comes before any mark; so that marks decide, windows open from three packets.
    opens_slowly: ClassVar = {"window_bytes": 100_000, "initial_window_bytes": 4700}

    @staticmethod
    def run(scenario: Scenario, policy: str) -> Trace:
        return simulate(make_plan(scenario, parse_policy(policy)), "fast")

    @pytest.mark.parametrize("policy", ["fifo", "tensorexpress", "ideal:switch=sp-pifo,queues=optimal"])
    def test_marks_keep_queues_short(self, policy: str) -> None:
        blind, marked = (self.run(incast(**self.opens_slowly, ecn_bytes=ecn), policy) for ecn in (0, 15_000))
        assert blind.links["marks"].sum() == 0 < marked.links["marks"].sum()
        assert marked.links["peak_bytes"].max() < blind.links["peak_bytes"].max() / 5

    def test_marks_cost_little_throughput(self) -> None:
        blind, marked = (self.run(incast(**self.opens_slowly, ecn_bytes=ecn), "fifo") for ecn in (0, 15_000))
        assert iterations_ps(marked.jobs[0]).mean() < 1.1 * iterations_ps(blind.jobs[0]).mean()

    @pytest.mark.parametrize(
        "policy", ["fifo", "p3", "bytescheduler", "tensorexpress", "ideal:switch=sp-pifo,queues=optimal"]
    )
    def test_everything_lost_is_sent_again(self, policy: str) -> None:
        trace = self.run(replace(incast(rto_min_ps=5000 * US), loss=0.02), policy)
        assert trace.links["losses"].sum() > 0 < trace.retransmissions
        assert (trace.jobs[0].transfers["delivered_ps"] >= 0).all()

    @pytest.mark.parametrize("policy", ["fifo", "p3", "tensorexpress", "ideal:switch=sp-pifo,queues=optimal"])
    def test_a_full_buffer_drops_and_everything_still_arrives(self, policy: str) -> None:
        scenario = incast(rto_min_ps=5000 * US)
        small = replace(scenario, cluster=replace(scenario.cluster, buffer_bytes=20_000))
        trace = self.run(small, policy)
        assert trace.links["drops"].sum() > 0 < trace.retransmissions
        assert trace.links["peak_bytes"].max() <= 20_000
        assert (trace.jobs[0].transfers["delivered_ps"] >= 0).all()

    def test_the_reference_pifo_is_not_short_of_memory(self) -> None:
        scenario = incast()
        small = replace(scenario, cluster=replace(scenario.cluster, buffer_bytes=20_000))
        trace = self.run(small, "ideal")
        assert (trace.links["drops"].sum(), trace.retransmissions, trace.timeouts) == (0, 0, 0)
        assert trace.links["peak_bytes"].max() > 20_000

    def test_acknowledgements_do_not_wait_behind_late_data(self) -> None:
        # The network is the bottleneck, so every deadline is missed; a window must open all the same.
        by_layer, by_slack = (
            iterations_ps(self.run(incast(window_bytes=200_000), policy).jobs[0]).mean()
            for policy in ("ideal:slice=10 KB", "ideal:slice=10 KB,queues=slack")
        )
        assert by_slack < 1.05 * by_layer

    def test_without_loss_nothing_is_sent_twice(self) -> None:
        trace = self.run(incast(), "tensorexpress")
        assert (trace.retransmissions, trace.timeouts) == (0, 0)

    def test_no_flow_exceeds_its_window(self) -> None:
        # Four workers with one flow each, and nothing else on the way to the server.
        window_bytes = 10_000
        trace = self.run(incast(window_bytes=window_bytes), "fifo")
        assert trace.links["peak_bytes"].max() <= 4 * window_bytes
