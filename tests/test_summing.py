"""Sums in switches, simulated, against what is known without it: closed forms, conservation, loss, the slots' rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from support.strategies import SUMMED, US, plans
from support.thorough import examples, one_in, rest
from test_engines import crowded, differences

from tensorexpress.bound import make_demand, run_bound_ps
from tensorexpress.cluster import Cluster
from tensorexpress.errors import InputError
from tensorexpress.plan import Plan, link_loads, make_plan
from tensorexpress.policy import POLICIES, parse_policy
from tensorexpress.recovery import Gaps, newer_sums_of
from tensorexpress.results.advice import notes
from tensorexpress.results.side_by_side import SideBySide
from tensorexpress.scenario import Job, Scenario, Transport, read_scenario
from tensorexpress.sim import fast, model, predict
from tensorexpress.sim.adding import Adder
from tensorexpress.sim.explain import explain
from tensorexpress.sim.flat_plan import build, transmissions_of
from tensorexpress.sim.model import Model
from tensorexpress.sim.packet import Packet
from tensorexpress.sim.predict import grain_of
from tensorexpress.sim.record import ADDEND, TOTAL
from tensorexpress.sim.run import execute, simulate, simulate_coarsely
from tensorexpress.slots import round_trip_ps
from tensorexpress.sums import SLOT_BYTES, SUM_FRAMING, VALUES, SumPlan, packets_of
from tensorexpress.topologies import dumbbell, leaf_spine, star
from tensorexpress.trace import Trace, iterations_ps
from tensorexpress.units import format_ms, serialisation_ps
from tensorexpress.workload import Layer, Workload

GBPS = 10**9

#: Where every packet has a slot to itself.
IN_POOLS = ("pool", "front")

#: A gradient of so many packets, made in no time.
PACKETS = 8000
AT_ONCE = Workload("at once", (Layer("all", PACKETS * VALUES, 0, 0),))


def tree_of(plan: Plan, job: int = 0) -> SumPlan:
    (found,) = plan.jobs[job].sums
    assert found is not None
    return found


def summed(
    cluster: Cluster,
    workers: int,
    workload: Workload = AT_ONCE,
    policy: str = "switchml",
    servers: tuple[int, ...] = (),
) -> Plan:
    job = Job("job", workload, tuple(range(workers)), servers, architecture="ps" if servers else "ring")
    return make_plan(Scenario("summed", cluster, (job,), iterations=1, warmup=0), parse_policy(policy))


def values_per_second(plan: Plan) -> float:
    return PACKETS * VALUES * 10**12 / float(iterations_ps(simulate(plan, "fast").jobs[0])[-1])


def cluster_of(workers: int, bandwidth_bps: int, memory: int = 10**6) -> Cluster:
    """A star, or from 33 workers on two leaves below a spine whose links are as fast as those of hosts."""
    if workers <= 32:
        return star(workers, bandwidth_bps, "1 us", switch_memory=memory)
    half = -(-workers // 2)
    return leaf_spine(2, 1, half, bandwidth_bps, "1 us", oversubscription=half, switch_memory=memory)


class TestThroughput:
    """min(line rate of the packet format, slots x payload / round trip)."""

    @pytest.mark.parametrize("workers", [2, 3, 8, 32, 64])
    @pytest.mark.parametrize(("bandwidth_bps", "millions"), [(10 * GBPS, 281.2), (100 * GBPS, 2812)])
    def test_is_the_line_rate_whatever_the_workers(self, bandwidth_bps: int, millions: float, workers: int) -> None:
        found = values_per_second(summed(cluster_of(workers, bandwidth_bps), workers)) / 10**6
        assert 0.99 * millions < found < 1.001 * millions

    @pytest.mark.parametrize("workers", [2, 8, 64])
    @pytest.mark.parametrize("slots", [1, 2, 4])
    def test_is_a_pool_per_round_trip_where_slots_are_few(self, slots: int, workers: int) -> None:
        plan = summed(cluster_of(workers, 10 * GBPS, slots * SLOT_BYTES), workers)
        tree = tree_of(plan)
        assert [pool.slots for pool in tree.pools] == [slots]
        round_trip = round_trip_ps(tree, plan.scenario.directed()) / 10**12
        line_rate = 10 * GBPS / 8 / SUM_FRAMING.full_packet_bytes * VALUES
        assert values_per_second(plan) == pytest.approx(min(line_rate, slots * VALUES / round_trip), rel=0.01)

    def test_is_exact_for_single_packets(self) -> None:
        plan = summed(cluster_of(4, 10 * GBPS, SLOT_BYTES), 4)
        packet_ps = serialisation_ps(SUM_FRAMING.full_packet_bytes, 10 * GBPS)
        took_ps = iterations_ps(simulate(plan, "fast").jobs[0])[-1]
        # Each waits for the sum of the one before.
        assert took_ps == PACKETS * 2 * (packet_ps + 10**6)

    @pytest.mark.parametrize("workers", [2, 8, 40])
    @pytest.mark.parametrize("slots", [1, 3, 8, 64])
    def test_in_front_of_a_server_counts_the_way_to_it(self, slots: int, workers: int) -> None:
        cluster = cluster_of(workers + 1, 10 * GBPS, slots * SLOT_BYTES)
        plan = summed(cluster, workers, policy="libra", servers=(workers,))
        tree = tree_of(plan)
        (pool,) = tree.pools
        round_trip = round_trip_ps(tree, plan.scenario.directed()) / 10**12
        line_rate = 10 * GBPS / 8 / SUM_FRAMING.full_packet_bytes * VALUES
        expected = min(line_rate, pool.slots * VALUES / round_trip)
        assert values_per_second(plan) == pytest.approx(expected, rel=0.01)
        assert (expected < line_rate) == (slots < 64)

    def test_in_front_of_a_server_is_exact_for_single_packets(self) -> None:
        plan = summed(cluster_of(5, 10 * GBPS, SLOT_BYTES), 4, policy="libra", servers=(4,))
        packet_ps = serialisation_ps(SUM_FRAMING.full_packet_bytes, 10 * GBPS)
        assert iterations_ps(simulate(plan, "fast").jobs[0])[-1] == PACKETS * 4 * (packet_ps + 10**6)

    def test_halves_where_the_only_server_is_a_worker_too(self) -> None:
        # It sends what it has to be summed, and all sums.
        plan = summed(cluster_of(4, 10 * GBPS), 4, policy="libra", servers=(0,))
        assert values_per_second(plan) == pytest.approx(281.2e6 / 2, rel=0.02)

    def test_is_that_of_the_slowest_link(self) -> None:
        plan = summed(dumbbell(4, 4, "10 Gbps", "1 Gbps"), 8)
        assert values_per_second(plan) == pytest.approx(28.12e6, rel=0.01)


def sent_in_order(plan: Plan) -> Plan:
    """Return the plan without copies in hosts, unless these leave the packets of a pool in one order at all workers.

    Copies by urgency, of several jobs, or beside background traffic of one worker begin tensors in different orders, or
    long after each other. Then packets are sent again though nothing is lost.
    """
    if not plan.policy.orders_in_hosts and len(plan.jobs) == 1 and not plan.scenario.background:
        return plan
    free = replace(plan.scenario.transport, copy_rate_bps=0, message_ps=0)
    return make_plan(replace(plan.scenario, transport=free), plan.policy)


class TestConservation:
    @settings(max_examples=examples(60))
    @given(plans(disturbed=False, sums=IN_POOLS).map(sent_in_order))
    def test_every_link_of_a_tree_carries_its_tensors_once_each_way(self, plan: Plan) -> None:
        trace = simulate(plan, "fast")
        expected = np.zeros(len(trace.links), dtype=np.int64)
        for job in plan.jobs:
            packets = packets_of(job.job.workload)
            assert sorted(tensor for tree in job.sums for tensor in tree.tensors) == list(range(len(packets)))
            for tree in job.sums:
                size = sum(packets[tensor] for tensor in tree.tensors) * SUM_FRAMING.full_packet_bytes
                for link in tree.links:
                    expected[[link, link ^ 1]] += size
        assert np.array_equal(trace.links["bytes"], expected * plan.scenario.rounds)
        assert trace.transmissions == transmissions_of(build(plan))
        assert trace.retransmissions == 0

    @settings(max_examples=examples(60))
    @given(plans(disturbed=False, sums=IN_POOLS).map(sent_in_order))
    def test_loads_are_what_links_carry(self, plan: Plan) -> None:
        trace, rates = simulate(plan, "fast"), plan.scenario.directed().rate_bps
        loads = sum(np.sum(link_loads(job, plan.scenario, plan.paths), axis=(0, 2)) for job in plan.jobs)
        carried = [serialisation_ps(int(size), rate) for size, rate in zip(trace.links["bytes"], rates, strict=True)]
        assert np.allclose(np.array(carried) / plan.scenario.rounds, loads, rtol=1e-6, atol=100)

    @settings(max_examples=examples(40))
    @given(plans(disturbed=False, sums=IN_POOLS).map(sent_in_order))
    def test_every_packet_passes_every_link_of_its_tree_once(self, plan: Plan) -> None:
        program = build(plan)
        record = execute(program, "fast", record_packets=True)
        job_of = program.flow_job[record.packets["flow"]]
        for number, job in enumerate(plan.jobs):
            own = record.packets[job_of == number]
            expected: Counter[tuple[int, int]] = Counter()
            for tree in job.sums:
                packets = sum(pool.packets_per_iteration for pool in tree.pools) * plan.scenario.rounds
                for link in tree.links:
                    expected += {(link, ADDEND): packets, (link ^ 1, TOTAL): packets}
            assert Counter(zip(own["link"].tolist(), own["kind"].tolist(), strict=True)) == expected

    @settings(max_examples=examples(60))
    @given(plans(sums=SUMMED))
    def test_sums_come_back_after_every_gradient(self, plan: Plan) -> None:
        for job in simulate(plan, "fast").jobs:
            assert (job.updated_ps >= job.gradient_ps.max(axis=1, keepdims=True)).all()
            rows = job.transfers
            assert (rows["delivered_ps"] >= rows["sent_ps"]).all()
            assert (rows["sent_ps"] >= rows["ready_ps"]).all()
            assert (rows["ready_ps"] >= 0).all()


class TestLoss:
    @pytest.mark.parametrize("policy", ["switchml", "tensorexpress+sum:queues=equal", "switchml:host=random", "libra"])
    @pytest.mark.parametrize("loss", [0.01, 0.1])
    def test_is_recovered(self, loss: float, policy: str) -> None:
        scenario = replace(crowded("ps", loss), background=())
        plan = make_plan(scenario, parse_policy(policy))
        trace = simulate(plan, "fast")
        assert trace.links["losses"].sum() > 0
        assert trace.retransmissions > 0
        assert (trace.jobs[0].updated_ps >= 0).all()
        for tree in plan.jobs[0].sums:
            packets = sum(pool.packets_per_iteration for pool in tree.pools) * scenario.rounds
            for link in tree.links:
                assert trace.links["bytes"][link] >= packets * tree.framing.full_packet_bytes
                assert trace.links["bytes"][link ^ 1] >= packets * tree.framing.full_packet_bytes

    def test_in_a_full_buffer_is_recovered(self) -> None:
        # Four times as much comes down as goes on to h1, where a stranger sends as well.
        cluster = star(7, "1 Gbps", "10 us", mtu=1500, buffer=9_000, queues=3)
        scenario = replace(crowded("ring"), cluster=cluster)
        strangers = (replace(scenario.background[0], rate_bps=950 * 10**6),)
        trace = simulate(make_plan(replace(scenario, background=strangers), parse_policy("switchml")), "fast")
        assert trace.links["drops"].sum() > 0
        assert (trace.jobs[0].updated_ps >= 0).all()

    def test_of_one_packet_holds_up_one_slot_for_a_timeout(self) -> None:
        plan = summed(star(2, "10 Gbps", "1 us"), 2)
        lossy = make_plan(replace(plan.scenario, loss=1e-4, seed=5), plan.policy)
        trace = simulate(lossy, "fast")
        losses = int(trace.links["losses"].sum())
        assert 0 < losses <= trace.retransmissions <= 4 * losses
        extra_ps = iterations_ps(trace.jobs[0])[-1] - iterations_ps(simulate(plan, "fast").jobs[0])[-1]
        assert extra_ps < (losses + 1) * 2 * lossy.scenario.transport.rto_min_ps

    def test_that_cannot_be_needs_no_timer(self) -> None:
        plan = summed(star(2, "10 Gbps", "1 us", buffer=0), 2)
        slow = replace(plan.scenario, stragglers=((0, 100.0),), transport=Transport(rto_min_ps=US))
        assert simulate(make_plan(slow, plan.policy), "fast").timeouts == 0


class TestGaps:
    """A packet counts as lost when three newer ones of its stream have their sums; no time-out is needed for that."""

    def under_way(self, packets: int, newer_sums: int = 3) -> Gaps[int]:
        gaps = Gaps[int](newer_sums)
        for packet in range(packets):
            gaps.sent(packet)
        return gaps

    def test_three_newer_sums_tell_a_loss_once(self) -> None:
        gaps = self.under_way(8)
        assert [gaps.came(packet) for packet in (1, 2, 3, 4, 5)] == [[], [], [0], [], []]

    def test_older_sums_tell_nothing(self) -> None:
        gaps = self.under_way(8)
        assert [gaps.came(packet) for packet in range(7)] == [[]] * 7

    def test_every_transmission_needs_three_of_its_own(self) -> None:
        gaps = self.under_way(8)
        assert [gaps.came(packet) for packet in (1, 2, 3)][-1] == [0]
        gaps.sent(0)
        # First sent before it was sent again.
        assert [gaps.came(packet) for packet in (4, 5, 6, 7)] == [[]] * 4
        for packet in (8, 9, 10):
            gaps.sent(packet)
        assert [gaps.came(packet) for packet in (8, 9, 10)] == [[], [], [0]]

    def test_what_is_sent_again_is_no_newer(self) -> None:
        gaps = self.under_way(5)
        for packet in (2, 3, 4):
            gaps.sent(packet)
        assert [gaps.came(packet) for packet in (2, 3, 4)] == [[], [], [0, 1]]
        gaps.sent(0)
        gaps.sent(1)
        assert gaps.came(1) == []

    def test_tell_several_losses_in_the_order_of_sending(self) -> None:
        gaps = self.under_way(8)
        assert [gaps.came(packet) for packet in (1, 3, 4, 6)] == [[], [], [0], [2]]

    def test_tell_nothing_where_switches_sort(self) -> None:
        gaps = self.under_way(8, newer_sums_of(parse_policy("switchml:switch=sp-pifo")))
        assert [gaps.came(packet) for packet in range(1, 8)] == [[]] * 7

    @pytest.mark.parametrize("policy", ["switchml", "tensorexpress+sum"])
    def test_recover_without_timeouts(self, policy: str) -> None:
        workload = Workload("one", (Layer("all", 4000 * VALUES, 0, 0),))
        scenario = summed(star(4, "10 Gbps", "1 us"), 4, workload).scenario
        patient = replace(scenario, transport=Transport(rto_min_ps=10**12))
        traces = [
            simulate(make_plan(replace(patient, loss=loss), parse_policy(policy)), "fast") for loss in (0.0, 0.001)
        ]
        without_ps, with_loss_ps = (int(iterations_ps(trace.jobs[0])[-1]) for trace in traces)
        assert traces[1].links["losses"].sum() > 20
        assert traces[1].timeouts == 0
        assert with_loss_ps < 1.1 * without_ps

    @settings(max_examples=examples(100))
    @given(plans(sums=IN_POOLS).map(sent_in_order))
    def test_are_none_where_nothing_is_lost(self, plan: Plan) -> None:
        # Whatever workers compute and strangers send.
        scenario = replace(plan.scenario, loss=0.0, cluster=replace(plan.scenario.cluster, buffer_bytes=0))
        assert simulate(make_plan(scenario, plan.policy), "fast").retransmissions == 0


class TestEnginesAreEqual:
    @rest(but=8)
    @one_in(3)
    @pytest.mark.parametrize(
        "policy",
        [
            "switchml",
            "switchml:host=random",
            "libra",
            "tensorexpress+sum:queues=equal,sum=front",
            "tensorexpress+sum:queues=equal",
            "tensorexpress+sum:switch=fifo,queues=optimal",
            "tensorexpress+sum:switch=pifo,queues=slack",
            "tensorexpress+sum:switch=sp-pifo,queues=slack",
        ],
    )
    @pytest.mark.parametrize("loss", [0.0, 0.02])
    @pytest.mark.parametrize("architecture", ["ps", "ring", "tree"])
    def test_on_every_discipline_and_loss(self, architecture: str, loss: float, policy: str) -> None:
        chosen = parse_policy(policy)
        if chosen.sums_end_at_servers:
            architecture = "ps"
        program = build(make_plan(crowded(architecture, loss, ecn_bytes=1500), chosen))
        reference = model.run(program, record_packets=True)
        assert differences(reference, fast.run(program, record_packets=True)) == []
        assert reference.transmissions == len(reference.packets) > 500
        assert (reference.retransmissions > 0) >= (loss > 0)
        # Sums heed no marks.
        assert reference.link_marks.sum() == 0


class _Switch:
    """An adder of a plan, and what it sends: kind, link and number."""

    def __init__(self, plan: Plan, adder: int):
        model = Model(build(plan))
        self.sent: list[tuple[int, int, int]] = []
        model.enqueue = lambda packet: self.sent.append(  # type: ignore[method-assign]
            (packet.kind, packet.path[0], packet.transmission)
        )
        self._model, self.adder = model, model.adders[adder]
        assert isinstance(self.adder, Adder)

    def take(self, number: int, child: int) -> list[tuple[int, int, int]]:
        """Return what the switch sends when this packet of a child arrives."""
        packet = Packet(ADDEND, self._model.streams[0], [0], SUM_FRAMING.full_packet_bytes, 0, 0)
        packet.transmission, packet.child = number, child
        self.sent.clear()
        self.adder.add(packet)
        return list(self.sent)

    def wait(self, time_ps: int) -> None:
        """Let so much time pass, and nothing else."""
        self._model.env = simpy.Environment(initial_time=int(self._model.env.now) + time_ps)


class TestSlotRules:
    """Two workers, a pool of two slots: packets 0 and 2 are turns of slot 0, in sets of their own, and 4 follows 0."""

    def root(self) -> _Switch:
        switch = _Switch(summed(star(2, "10 Gbps", "1 us", switch_memory=2 * SLOT_BYTES), 2), 0)
        assert switch.adder.slots == 2
        return switch

    def test_the_last_child_completes_a_sum_for_everybody(self) -> None:
        root = self.root()
        assert root.take(0, child=0) == []
        assert root.take(0, child=1) == [(TOTAL, 1, 0), (TOTAL, 3, 0)]

    def test_a_duplicate_counts_once(self) -> None:
        root = self.root()
        root.take(0, child=0)
        assert root.take(0, child=0) == []
        assert len(root.take(0, child=1)) == 2

    def test_a_duplicate_of_a_sum_is_answered_to_its_sender_alone(self) -> None:
        root = self.root()
        root.take(0, child=0)
        root.take(0, child=1)
        assert root.take(0, child=1) == [(TOTAL, 3, 0)]

    def test_the_sum_of_the_last_turn_is_kept_for_who_has_not_heard_of_it(self) -> None:
        root = self.root()
        root.take(0, child=0)
        root.take(0, child=1)
        assert root.take(2, child=0) == []
        assert root.take(0, child=1) == [(TOTAL, 3, 0)]
        assert len(root.take(2, child=1)) == 2

    def test_a_later_turn_begins_anew_and_earlier_ones_are_too_late(self) -> None:
        root = self.root()
        root.take(0, child=0)
        root.take(0, child=1)
        assert root.take(4, child=0) == []
        assert root.take(0, child=1) == []
        assert root.take(4, child=1) == [(TOTAL, 1, 4), (TOTAL, 3, 4)]

    def test_a_switch_below_sends_its_sum_up_and_again_when_asked(self) -> None:
        plan = summed(dumbbell(2, 2, "10 Gbps"), 4)
        below = tree_of(plan).switches[1]
        switch = _Switch(plan, 1)
        assert switch.take(0, child=0) == []
        assert switch.take(0, child=1) == [(ADDEND, below.up, 0)]
        assert switch.take(0, child=0) == [(ADDEND, below.up, 0)]


class TestServerRules:
    """A server behind one switch, with a pool of two slots."""

    def server(self) -> _Switch:
        plan = summed(star(3, "10 Gbps", "1 us", switch_memory=2 * SLOT_BYTES), 2, policy="libra", servers=(2,))
        server = _Switch(plan, 1)
        assert (server.adder.slots, server.adder.up) == (2, -1)
        assert server.adder.round_trip_ps == round_trip_ps(tree_of(plan), plan.scenario.directed())
        return server

    def test_a_sum_is_answered_by_its_own_link(self) -> None:
        # To the switch, which hands it down to all workers.
        assert self.server().take(0, child=0) == [(TOTAL, 4, 0)]

    def test_a_sum_that_comes_again_is_answered_again_but_not_within_a_round_trip(self) -> None:
        server = self.server()
        server.take(0, child=0)
        server.wait(server.adder.round_trip_ps - 1)
        assert server.take(0, child=0) == []
        server.wait(1)
        assert server.take(0, child=0) == [(TOTAL, 4, 0)]
        assert server.take(0, child=0) == []

    def test_the_sum_of_the_turn_before_is_kept_and_older_ones_are_dropped(self) -> None:
        server = self.server()
        for number in (0, 2, 4):
            assert server.take(number, child=0) == [(TOTAL, 4, number)]
        server.wait(server.adder.round_trip_ps)
        assert server.take(0, child=0) == []
        assert server.take(2, child=0) == [(TOTAL, 4, 2)]

    @pytest.mark.parametrize(
        ("job", "per_packet_ns"), [({"add_rate_bps": GBPS}, 8192), ({"update_rate_bps": GBPS // 2}, 16384)]
    )
    def test_what_servers_do_for_packets_is_done_one_after_another(
        self, job: dict[str, int], per_packet_ns: int
    ) -> None:
        plan = summed(star(5, "10 Gbps", "1 us"), 4, policy="libra", servers=(4,))
        (own,) = plan.scenario.jobs
        busy = make_plan(replace(plan.scenario, jobs=(replace(own, **job),)), plan.policy)
        took_ps = iterations_ps(simulate(busy, "fast").jobs[0])[-1]
        # Far longer than a link takes for one; the first comes later, the last goes on.
        assert PACKETS * per_packet_ns * 1000 < took_ps < (PACKETS + 1) * per_packet_ns * 1000

    def test_the_sum_rate_delays_every_answer(self) -> None:
        plan = summed(star(5, "10 Gbps", "1 us", switch_memory=SLOT_BYTES), 4, policy="libra", servers=(4,))
        (own,) = plan.scenario.jobs
        slower = make_plan(replace(plan.scenario, jobs=(replace(own, sum_rate_bps=GBPS),)), plan.policy)
        without_ps, with_ps = (int(iterations_ps(simulate(each, "fast").jobs[0])[-1]) for each in (plan, slower))
        # One slot: every packet waits for the one before.
        assert with_ps - without_ps == PACKETS * 8192 * 1000

    def test_the_root_sends_its_sum_up_and_again_when_asked(self) -> None:
        root = _Switch(summed(star(3), 2, policy="libra", servers=(2,)), 0)
        assert root.take(0, child=0) == []
        assert root.take(0, child=1) == root.take(0, child=0) == [(ADDEND, 5, 0)]


class TestOrder:
    def test_urgent_classes_do_not_wait_for_others(self) -> None:
        # The front layer is small and made last; the back one is large.
        layers = (Layer("front", 20 * VALUES, 100 * US, 10 * US), Layer("back", 2000 * VALUES, 100 * US, 10 * US))
        workload, cluster = Workload("two", layers), star(4, "10 Gbps", "1 us")
        first_ps = {}
        for policy in ("switchml", "tensorexpress+sum:queues=equal", "tensorexpress+sum:queues=equal,switch=fifo"):
            job = simulate(summed(cluster, 4, workload, policy), "fast").jobs[0]
            first_ps[policy] = int((job.updated_ps - job.gradient_ps)[0, :, 0].max())
        fifo_ps, both_ps, hosts_ps = first_ps.values()
        # What every slot sends waits for its sum, so little waits in switches for them to order.
        assert both_ps <= hosts_ps < fifo_ps / 10

    def test_nothing_of_the_bound_is_beaten_and_pools_come_near_it(self) -> None:
        plan = summed(cluster_of(8, 10 * GBPS), 8)
        took_ps = iterations_ps(simulate(plan, "fast").jobs[0])[-1]
        assert 0.99 * took_ps < make_demand(plan, 0).busiest_ps <= took_ps

    def test_the_bound_counts_what_gpus_sum_by_bytes_and_what_switches_sum_by_packets(self) -> None:
        one = Workload("one", (Layer("single", 1, 1, 1),))
        job = Job("job", one, (0, 0, 1, 1), architecture="ring", gpus_per_host=2, local_rate_bps=200 * GBPS)
        plan = make_plan(Scenario("gpus", star(2, "100 Mbps", 0), (job,), iterations=1), POLICIES["switchml"])
        trace = simulate(plan, "fast").jobs[0]
        # Every packet takes its time on two links; two GPUs share half of four bytes, twice.
        waits_ps = 2 * serialisation_ps(SUM_FRAMING.full_packet_bytes, 10**8) + 2 * serialisation_ps(2, 200 * GBPS)
        took_ps = iterations_ps(trace)[-1]
        assert took_ps == waits_ps + 2
        # Times on links are rounded down.
        assert took_ps - 10 <= run_bound_ps(make_demand(plan, 0), trace, 0) <= took_ps


class TestNotes:
    """What `predict` and `explain` say of sums that end at servers."""

    small = ("job.model=alexnet", "job.workers=3", "job.servers=1", "iterations=1", "warmup=0")

    def predicted(self, *policies: str, more: tuple[str, ...] = ()) -> SideBySide:
        return predict(read_scenario(overrides=[*self.small, *more]), policies)

    @rest()
    def test_tell_order_from_sums_by_policies_that_sum_in_the_same_way(self) -> None:
        compared = self.predicted("fifo", "switchml", "atp", "tensorexpress+sum:sum=hashed")
        fifo, _, hashed, both = (result.jobs[0].iteration_ps for result in compared.results.values())
        (note,) = [note for note in notes(compared) if note.startswith("Sums in switches without any order")]
        assert f"take off {format_ms(fifo - hashed)} (atp)" in note
        assert f"on top of them {format_ms(hashed - both)} (tensorexpress+sum:sum=hashed)" in note
        without = self.predicted("fifo", "switchml", "tensorexpress+sum:sum=front")
        assert not any("without any order" in note for note in notes(without))

    def test_say_what_was_left_to_servers(self) -> None:
        said = {}
        for memory in ("5 KB", "10 MB"):
            compared = self.predicted("atp", more=(f"cluster.switch_memory={memory}",))
            trace = compared.baseline.trace
            (said[memory],) = [note for note in notes(compared) if "came whole from a switch" in note]
            assert f"{trace.whole_sums / trace.server_sums:.1%} of sums" in said[memory]
            assert f"{trace.server_packets / trace.server_sums:.2f} packets for a sum, where 1 is" in said[memory]
        assert said["5 KB"].endswith(
            "16 packets under way, and a switch has 4 cells; a larger cluster.switch_memory has more."
        )
        assert said["10 MB"].endswith("where 1 is the fewest and 3 is all of them.")

    def test_speak_of_timeouts_where_only_these_tell_of_losses(self) -> None:
        loss = ("loss=0.001", "transport.rto_min=100 us")
        for policy, memory, is_said in (
            ("switchml", 1, True),
            ("switchml", 8, False),
            ("switchml:switch=pifo", 8, True),
        ):
            more = (*loss, f"cluster.switch_memory={memory * SLOT_BYTES}")
            said = notes(self.predicted("fifo", policy, more=more))
            assert any("a slot stands still for transport.rto_min" in note for note in said) == is_said

    @rest()
    @pytest.mark.parametrize("sums", ["front", "hashed"])
    def test_explain_the_step_to_sums_in_the_switch(self, sums: str) -> None:
        policy = f"tensorexpress+sum:sum={sums}"
        scenario = read_scenario(overrides=[*self.small])
        (job,) = explain(scenario, policy).jobs
        assert [step.name for step in job.steps] == ["fifo", "host order", "switch order", "sums in the switch"]
        assert sum(step.gain_ps for step in job.steps) + job.left_ps == job.possible_ps
        results = predict(scenario, ["fifo", f"fifo:sum={sums}", policy, "tictac:switch=strict,queues=fewest"]).results
        fifo, alone, last, ordered = (result.jobs[0].iteration_ps for result in results.values())
        step = job.steps[-1]
        assert (step.iteration_ps, step.alone_ps) == (last, fifo - alone)
        assert step.gain_ps == step.last_ps == ordered - last


class TestRefusals:
    def test_a_grain_is_refused_and_not_chosen(self) -> None:
        plan = summed(star(2), 2)
        with pytest.raises(InputError, match="grain 4: switchml sums in switches, packet by packet; accepted: 1"):
            simulate_coarsely(plan, 4)
        with pytest.raises(InputError, match="grain 4: switchml sums in switches, packet by packet; accepted: 1"):
            grain_of(plan.scenario, [POLICIES["fifo"], POLICIES["switchml"]], 4)
        large = replace(plan.scenario, iterations=1000)
        assert grain_of(large, [POLICIES["switchml"]], "auto") == 1


def test_a_trace_has_a_row_for_what_every_worker_sends_and_gets() -> None:
    trace: Trace = simulate(summed(star(3), 3), "fast")
    rows = trace.jobs[0].transfers
    assert rows["src"].tolist() == rows["dst"].tolist() == [0, 1, 2, 0, 1, 2]
    assert len(set(rows["delivered_ps"].tolist())) == 1
