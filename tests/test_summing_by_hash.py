"""Sums in cells found by hash, simulated: the rules of switches and servers one by one, and that every sum is right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from support.strategies import plans
from support.thorough import examples
from test_engines import crowded, differences

from tensorexpress.cluster import Cluster
from tensorexpress.errors import SimulationError
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.recovery import SUM_AGE_PS
from tensorexpress.scenario import Job, Scenario, read_scenario
from tensorexpress.sim import fast, model
from tensorexpress.sim.adding import CellAdder, PartAdder, Stream
from tensorexpress.sim.flat_plan import build
from tensorexpress.sim.model import Model
from tensorexpress.sim.packet import Packet
from tensorexpress.sim.record import ADDEND, TOTAL, Record
from tensorexpress.sim.run import execute, simulate
from tensorexpress.slots import round_trip_ps
from tensorexpress.sums import PART_FRAMING, SLOT_BYTES, VALUES, cell_of
from tensorexpress.topologies import dumbbell, star
from tensorexpress.trace import iterations_ps
from tensorexpress.workload import Layer, Workload

GBPS = 10**9
A, B, C = 1, 2, 4
ALL = A | B | C

#: Two tensors of so many packets, made in no time.
PACKETS = 200
TWO = Workload("two", (Layer("front", PACKETS * VALUES, 0, 0), Layer("back", PACKETS * VALUES, 0, 0)))


def hashed(
    cluster: Cluster, workers: int, servers: tuple[int, ...], policy: str = "atp", workload: Workload = TWO
) -> Plan:
    job = Job("job", workload, tuple(range(workers)), servers)
    return make_plan(Scenario("hashed", cluster, (job,), iterations=1, warmup=0), parse_policy(policy))


class Sent(NamedTuple):
    """A packet that an adder sent."""

    kind: int
    number: int
    workers: int = 0
    again: bool = False


class Net:
    """The adders of a plan, of which each can be given packets; what they send goes nowhere."""

    def __init__(self, plan: Plan):
        self.model = Model(build(plan))
        self.sent: list[tuple[int, Sent]] = []
        self.model.enqueue = self._note  # type: ignore[method-assign]

    def _note(self, packet: Packet) -> None:
        self.sent.append((packet.path[0], Sent(packet.kind, packet.transmission, packet.workers, packet.again)))

    def give(self, adder: int, number: int, workers: int, again: bool = False) -> list[Sent]:
        """Return what an adder sends when this packet arrives."""
        self.sent.clear()
        packet = Packet(ADDEND, self.model.streams[0], [0], PART_FRAMING.full_packet_bytes, 0, 0)
        packet.transmission, packet.workers, packet.again = number, workers, again
        self.model.adders[adder].add(packet)
        return [sent for _, sent in self.sent]

    def answer(self, adder: int, number: int) -> list[Sent]:
        """Return what an adder sends when a result comes from above."""
        self.sent.clear()
        packet = Packet(TOTAL, self.model.streams[0], [0], PART_FRAMING.full_packet_bytes, 0, 0)
        packet.transmission = number
        self.model.adders[adder].hand_down(packet)
        return [sent for _, sent in self.sent]

    def held(self, adder: int, number: int) -> int:
        """Return whose values a switch holds of a packet."""
        own = self.model.adders[adder]
        assert isinstance(own, CellAdder)
        cell = own.cells[own.cell_of(number)]
        return cell.seen if cell is not None and cell.adder is own and cell.packet.transmission == number else 0

    def wait(self, time_ps: int) -> None:
        """Let so much time pass, and nothing else."""
        self.model.env = simpy.Environment(initial_time=int(self.model.env.now) + time_ps)


def up(number: int, workers: int, again: bool = False) -> list[Sent]:
    return [Sent(ADDEND, number, workers, again)]


def one_switch(policy: str = "atp") -> Net:
    """Three workers and a server at a switch with two cells; adder 0 is the switch's, adder 1 the server's."""
    net = Net(hashed(star(4, "10 Gbps", "1 us", switch_memory=SLOT_BYTES), 3, (3,), policy))
    assert isinstance(net.model.adders[1], PartAdder)
    return net


#: Packets that find the same one of two cells.
SAME = (0, 2)


class TestCells:
    def test_are_found_as_switches_find_them(self) -> None:
        net = one_switch()
        adder = net.model.adders[0]
        assert isinstance(adder, CellAdder)
        found = [adder.cell_of(number) for number in range(100)]
        assert found == [cell_of(job=0, pool=0, sequence=number, cells=2) for number in range(100)]
        assert len({found[number] for number in SAME}) == 1 < len(set(found))

    def test_are_shared_by_jobs_that_find_different_ones(self) -> None:
        cluster = star(6, "10 Gbps", "1 us", switch_memory=20 * SLOT_BYTES)
        jobs = tuple(Job(f"job{n}", TWO, (3 * n, 3 * n + 1), (3 * n + 2,)) for n in range(2))
        program = build(make_plan(Scenario("jobs", cluster, jobs), parse_policy("tensorexpress+sum:sum=hashed")))
        net = Model(program)
        switches = [adder for adder in net.adders if isinstance(adder, CellAdder)]
        assert len({id(adder.cells) for adder in switches}) == 1
        places = {tuple(adder.cell_of(number) for number in range(8)) for adder in switches}
        assert len(places) == len(switches) >= 2


class TestSwitch:
    def test_holds_what_finds_a_free_cell_and_sends_the_sum_when_everybody_is_in(self) -> None:
        net = one_switch()
        assert net.give(0, 0, A) == net.give(0, 0, C) == []
        assert net.held(0, 0) == A | C
        assert net.give(0, 0, B) == up(0, ALL)

    def test_keeps_a_complete_sum_until_the_result_comes(self) -> None:
        net = one_switch()
        for worker in (A, B, C):
            net.give(0, 0, worker)
        assert net.held(0, 0) == ALL
        assert net.give(0, 0, B) == []
        assert net.answer(0, 0) == [Sent(TOTAL, 0)] * 3
        assert net.held(0, 0) == 0

    def test_drops_duplicates_of_what_it_holds(self) -> None:
        net = one_switch()
        net.give(0, 0, A)
        assert net.give(0, 0, A) == []
        assert net.held(0, 0) == A

    def test_passes_on_what_overlaps_otherwise(self) -> None:
        net = one_switch()
        net.give(0, 0, A)
        assert net.give(0, 0, A | B) == up(0, A | B)
        assert net.give(0, 0, A | B, again=True) == up(0, A | B, again=True)
        assert net.held(0, 0) == A

    def test_passes_on_what_is_sent_again_and_what_is_complete_and_holds_neither(self) -> None:
        net = one_switch()
        assert net.give(0, 0, A, again=True) == up(0, A, again=True)
        assert net.give(0, 1, ALL) == up(1, ALL)
        assert net.held(0, 0) == net.held(0, 1) == 0

    def test_sends_what_it_holds_with_what_is_sent_again(self) -> None:
        net = one_switch()
        net.give(0, 0, A)
        assert net.give(0, 0, B, again=True) == up(0, A | B, again=True)
        assert net.held(0, 0) == 0
        net.give(0, 1, A)
        net.give(0, 1, C)
        assert net.give(0, 1, A, again=True) == up(1, A | C, again=True)
        assert net.held(0, 1) == 0

    def test_passes_on_what_finds_the_cell_of_another(self) -> None:
        net, (mine, other) = one_switch(), SAME
        net.give(0, mine, A)
        assert net.give(0, other, B) == up(other, B)
        assert net.give(0, other, B, again=True) == up(other, B, again=True)
        assert net.held(0, mine) == A
        assert net.model.record.collisions == 1

    def test_does_not_free_the_cell_of_another_when_a_result_comes(self) -> None:
        net, (mine, other) = one_switch(), SAME
        net.give(0, mine, A)
        net.answer(0, other)
        assert net.held(0, mine) == A

    def test_gives_an_old_cell_away_and_sends_up_what_was_in_it(self) -> None:
        net, (mine, other) = one_switch(), SAME
        net.give(0, mine, A)
        net.wait(SUM_AGE_PS)
        assert net.give(0, other, B) == up(other, B)
        net.wait(1)
        # Sent again never takes one.
        assert net.give(0, other, C, again=True) == up(other, C, again=True)
        assert net.give(0, other, B) == up(mine, A, again=True)
        assert (net.held(0, mine), net.held(0, other)) == (0, B)
        assert net.model.record.evictions == 1

    def test_gives_an_old_cell_whose_sum_has_gone_up_away_without_sending_it(self) -> None:
        net, (mine, other) = one_switch(), SAME
        for worker in (A, B, C):
            net.give(0, mine, worker)
        net.wait(SUM_AGE_PS + 1)
        assert net.give(0, other, B) == []
        assert net.held(0, other) == B


class TestSwitchesInTwoLevels:
    """h0 and h1 at the lower switch, h2, h3 and the server at the upper one."""

    def net(self) -> Net:
        net = Net(hashed(dumbbell(2, 3, "10 Gbps", switch_memory=SLOT_BYTES), 4, (4,)))
        upper, lower, server = net.model.adders
        assert (upper.everybody, lower.everybody, server.everybody) == (15, 3, 15)
        return net

    def test_add_sums_of_switches_below(self) -> None:
        net = self.net()
        assert net.give(1, 0, 1) == []
        assert net.give(1, 0, 2) == up(0, 3)
        assert net.give(0, 0, 3) == net.give(0, 0, 8) == []
        assert net.give(0, 0, 4) == up(0, 15)

    def test_hold_parts_above_that_found_no_cell_below(self) -> None:
        net = self.net()
        assert [net.give(0, 0, part) for part in (1, 12)] == [[], []]
        assert net.give(0, 0, 2) == up(0, 15)

    def test_hand_results_down(self) -> None:
        net = self.net()
        net.give(1, 0, 1)
        assert net.answer(0, 0) == [Sent(TOTAL, 0)] * 3
        assert net.answer(1, 0) == [Sent(TOTAL, 0)] * 2
        assert net.held(1, 0) == 0


class TestPreemption:
    def net(self, policy: str) -> tuple[Net, int, int, int, int]:
        """Return the adders of an urgent and another pool, and packets of each that find the same cell."""
        net = Net(hashed(star(4, "10 Gbps", "1 us", switch_memory=SLOT_BYTES), 3, (3,), policy))
        urgent, _, other, _ = net.model.adders
        assert isinstance(urgent, CellAdder)
        assert isinstance(other, CellAdder)
        assert urgent.queue < other.queue
        same = next(number for number in range(9) if other.cell_of(number) == urgent.cell_of(0))
        return net, 0, 2, 0, same

    def test_takes_cells_from_less_urgent_sums(self) -> None:
        net, urgent, other, mine, theirs = self.net("tensorexpress+sum:sum=hashed,queues=equal")
        net.give(other, theirs, A)
        net.give(other, theirs, B)
        assert net.give(urgent, mine, C) == up(theirs, A | B, again=True)
        assert (net.held(urgent, mine), net.held(other, theirs)) == (C, 0)

    def test_takes_none_from_more_urgent_ones(self) -> None:
        net, urgent, other, mine, theirs = self.net("tensorexpress+sum:sum=hashed,queues=equal")
        net.give(urgent, mine, A)
        assert net.give(other, theirs, B) == up(theirs, B)
        assert net.held(urgent, mine) == A

    def test_is_only_where_switches_order(self) -> None:
        net, urgent, other, mine, theirs = self.net("tensorexpress+sum:sum=hashed,queues=equal,switch=fifo")
        net.give(other, theirs, A)
        assert net.give(urgent, mine, C) == up(mine, C)


class TestServer:
    def test_answers_a_whole_sum(self) -> None:
        net = one_switch()
        assert net.give(1, 0, ALL) == [Sent(TOTAL, 0)]
        assert net.sent[0][0] == 6

    def test_puts_parts_together(self) -> None:
        net = one_switch()
        assert net.give(1, 0, A) == net.give(1, 0, C) == []
        assert net.give(1, 0, B, again=True) == [Sent(TOTAL, 0)]
        record = net.model.record
        assert (record.server_packets, record.server_sums, record.whole_sums) == (3, 1, 0)

    def test_counts_nobody_twice(self) -> None:
        net = one_switch()
        net.give(1, 0, A)
        # What overlaps adds nothing, whatever else is in it.
        assert net.give(1, 0, A) == net.give(1, 0, A | B) == net.give(1, 0, ALL) == []
        assert net.give(1, 0, B) == []
        assert net.give(1, 0, C) == [Sent(TOTAL, 0)]

    def test_answers_again_but_not_within_a_round_trip(self) -> None:
        net = one_switch()
        net.give(1, 0, ALL)
        back_ps = net.model.adders[1].round_trip_ps
        net.wait(back_ps - 1)
        assert net.give(1, 0, A) == []
        net.wait(1)
        assert net.give(1, 0, A, again=True) == [Sent(TOTAL, 0)]
        assert net.give(1, 0, B, again=True) == []

    def test_keeps_two_windows_and_drops_what_is_older(self) -> None:
        net = one_switch()
        window = net.model.adders[1].slots
        for number in (0, window, 2 * window):
            assert net.give(1, number, ALL) == [Sent(TOTAL, number)]
        net.wait(net.model.adders[1].round_trip_ps)
        assert net.give(1, 0, A) == []
        assert net.give(1, window, A) == [Sent(TOTAL, window)]


class Values(int):
    """A set of workers, and the sum of what they sent: worker w adds 256 to the power of w."""

    total: int

    def __new__(cls, workers: int, total: int) -> Values:
        made = super().__new__(cls, workers)
        made.total = total
        return made

    def __or__(self, other: int) -> Values:
        return Values(int(self) | int(other), self.total + (other.total if isinstance(other, Values) else 0))

    __ror__ = __or__


class TestSums:
    @settings(max_examples=examples(60))
    @given(plans(sums=["hashed"]))
    def test_are_complete_and_nobody_is_in_one_twice(self, plan: Plan) -> None:
        program = build(plan)
        completed = set()
        with pytest.MonkeyPatch.context() as patch:
            send, answer = Stream._sent, PartAdder._answer

            def sent(stream: Stream, number: int) -> Packet:
                packet = send(stream, number)
                packet.workers = Values(packet.workers, 256**stream.child)
                return packet

            def answered(server: PartAdder, packet: Packet, place: int, children: Iterable[int]) -> None:
                total = server.seen[place]
                assert isinstance(total, Values)
                assert total.total == sum(256**worker for worker in range(64) if server.everybody >> worker & 1)
                completed.add((server.index, packet.transmission))
                answer(server, packet, place, children)

            patch.setattr(Stream, "_sent", sent)
            patch.setattr(PartAdder, "_answer", answered)
            record = model.run(program)
        self.check_counts(plan, record, len(completed))

    @settings(max_examples=examples(100))
    @given(plans(sums=["hashed"]))
    def test_all_arrive_whatever_is_lost(self, plan: Plan) -> None:
        program = build(plan)
        record = execute(program, "fast")
        self.check_counts(plan, record, record.server_sums)
        assert (record.gate_open_ps >= 0).all()

    @staticmethod
    def check_counts(plan: Plan, record: Record, sums: int) -> None:
        pools = [pool for job in plan.jobs for tree in job.sums for pool in tree.pools]
        assert sums == record.server_sums == plan.scenario.rounds * sum(pool.packets_per_iteration for pool in pools)
        assert record.whole_sums <= record.server_sums <= record.server_packets

    def test_are_put_together_with_loss_and_next_to_no_memory(self) -> None:
        scenario = replace(crowded("ps", 0.02), background=())
        cluster = replace(scenario.cluster, switch_memory_bytes=SLOT_BYTES)
        for policy in ("atp", "tensorexpress+sum:sum=hashed,queues=equal"):
            program = build(make_plan(replace(scenario, cluster=cluster), parse_policy(policy)))
            reference = model.run(program, record_packets=True)
            assert differences(reference, fast.run(program, record_packets=True)) == []
            assert reference.collisions > 100
            assert 0 < reference.whole_sums < reference.server_sums
            assert (reference.evictions > 0) == (policy != "atp")


class TestThroughput:
    """As in front of servers, with 8 bytes more a packet, as long as nobody collides."""

    @pytest.mark.parametrize("workers", [2, 8])
    @pytest.mark.parametrize("bandwidth_bps", [10 * GBPS, 100 * GBPS])
    def test_is_the_line_rate(self, bandwidth_bps: int, workers: int) -> None:
        workload = Workload("at once", (Layer("all", 8000 * VALUES, 0, 0),))
        plan = hashed(star(workers + 1, bandwidth_bps, "1 us", switch_memory=0), workers, (workers,), "atp", workload)
        (tree,) = plan.jobs[0].sums
        trace = simulate(plan, "fast")
        rate = 8000 * VALUES * 10**12 / float(iterations_ps(trace.jobs[0])[-1])
        line_rate = bandwidth_bps / 8 / PART_FRAMING.full_packet_bytes * VALUES
        by_window = tree.pools[0].slots * VALUES * 10**12 / round_trip_ps(tree, plan.scenario.directed())
        assert rate == pytest.approx(min(line_rate, by_window), rel=0.01)

    @settings(max_examples=examples(60))
    @given(plans(disturbed=False, sums=["hashed"]))
    def test_links_carry_tensors_at_least_once_each_way(self, plan: Plan) -> None:
        carried = simulate(plan, "fast").links["bytes"]
        least = np.zeros_like(carried)
        for job in plan.jobs:
            for tree in job.sums:
                packets = sum(pool.packets_per_iteration for pool in tree.pools) * plan.scenario.rounds
                for link in tree.links:
                    least[[link, link ^ 1]] += packets * PART_FRAMING.full_packet_bytes
        assert (carried >= least).all()
        assert (carried[least == 0] == 0).all()


def test_a_simulation_in_which_the_same_packet_is_dropped_for_ever_ends_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "layers.csv").write_text("layer_index,numel,forward_ns,backward_ns\n0,300,1000,1000\n")
    keys = ("job.workers=4", "job.servers=1", "cluster.mtu=1200", "cluster.buffer=2616 B", "cluster.queues=1")
    slots = ("cluster.switch_memory=2200 B", "transport.rto_min=50 us")
    plan = make_plan(read_scenario(None, [f"job.csv={tmp_path / 'layers.csv'}", *keys, *slots]), parse_policy("atp"))
    monkeypatch.setattr(fast, "BUDGET", 1000)
    with pytest.raises(SimulationError, match="no message has arrived in 500,000 events: the same packets are dropped"):
        fast.run(build(plan))
