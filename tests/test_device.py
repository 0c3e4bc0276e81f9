"""The switch on a clock: what becomes of a packet after ingress and egress, and when it leaves."""

from __future__ import annotations

import json
import logging
import struct
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scripted import Scripted, forward

from tensorexpress.errors import InputError, ProgramError
from tensorexpress.p4.define import CPU_PORT
from tensorexpress.queueing import DISCIPLINES
from tensorexpress.switch import counted
from tensorexpress.switch.device import Switch
from tensorexpress.switch.operations import (
    CpuFrame,
    Digest,
    Entry,
    IdleEntry,
    ReadRegister,
    SetCloneSession,
    SetDefault,
    SetMulticastGroup,
)
from tensorexpress.switch.packet import (
    DROP_PORT,
    EGRESS_CLONE,
    INGRESS_CLONE,
    NORMAL,
    RECIRCULATED,
    REPLICATED,
    RESUBMITTED,
)
from tensorexpress.switch.pcap import TimedFrame
from tensorexpress.switch.program.budgets import MOST_COPIES, MOST_PASSES
from tensorexpress.switch.replay import VirtualSwitch
from tensorexpress.switch.traffic import PortSettings
from tensorexpress.units import PS_PER_SECOND

US = 10**6
RATE_BPS = 8 * 10**6  # a byte a microsecond
BYTE_PS = US


class Bench:
    """A switch, and what it sent and told."""

    def __init__(self, program=None, **settings):
        self.sent = []
        self.notices = []
        self.program = program or Scripted()
        self.switch = Switch(
            lambda port, frame, time_ps: self.sent.append((port, frame, time_ps)),
            self.notices.append,
            program=self.program,
            **settings,
        )

    def drops(self, port):
        return self.switch.statistics().ports[port].drops

    def run_out(self):
        """Let everything leave that waits."""
        while (due_ps := self.switch.next_event_ps()) is not None:
            self.switch.advance(due_ps)
        return self.sent


def paced(**settings):
    """A switch all of whose ports send a byte a microsecond, without overhead."""
    return Bench(default=PortSettings(rate_bps=RATE_BPS, overhead_bytes=0, **settings))


def frame(port, priority=0, size=100, name=0):
    return bytes([port, priority, name]).ljust(size, b"\0")


def test_a_link_without_rate_sends_at_once():
    bench = Bench()
    bench.switch.receive(0, frame(3), 5 * US)
    assert bench.sent == [(3, frame(3), 5 * US)]
    assert bench.switch.next_event_ps() is None


def test_a_frame_leaves_when_its_last_bit_does_and_the_next_follows_without_a_gap():
    bench = paced()
    for _ in range(3):
        bench.switch.receive(0, frame(1), 7 * US)
    assert bench.switch.next_event_ps() == 107 * US
    assert [time_ps for _, _, time_ps in bench.run_out()] == [107 * US, 207 * US, 307 * US]


def test_late_calls_do_not_slow_a_link_down():
    """Everything due leaves at its own time, however late the caller comes."""
    late, punctual = paced(), paced()
    for bench in (late, punctual):
        for number in range(50):
            bench.switch.receive(0, frame(1, name=number), number * 60 * US)
    late.switch.advance(PS_PER_SECOND)
    assert late.sent == punctual.run_out()


def test_a_frame_under_way_ends_at_the_rate_at_which_it_started():
    bench = paced()
    for _ in range(3):
        bench.switch.receive(0, frame(1), 0)
    bench.switch.advance(50 * US)
    bench.switch.set_rate(1, RATE_BPS // 2)
    assert [time_ps for _, _, time_ps in bench.run_out()] == [100 * US, 300 * US, 500 * US]


@pytest.mark.parametrize("ports", [{}, {1: PortSettings()}])
def test_a_port_without_a_rate_is_given_none(ports):
    with pytest.raises(InputError, match="port 1 has no rate that could change; accepted: a port that was given one"):
        Bench(ports=ports).switch.set_rate(1, RATE_BPS)


def test_ports_have_links_of_their_own():
    bench = paced()
    for port in (1, 2, 1, 2):
        bench.switch.receive(0, frame(port), 0)
    assert [(port, time_ps // US) for port, _, time_ps in bench.run_out()] == [(1, 100), (2, 100), (1, 200), (2, 200)]


ARRIVALS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(60, 1500), st.integers(0, 3)), min_size=1, max_size=60
)  # microseconds since the one before, bytes, priority


def arrive(bench, arrivals):
    """Let packets arrive at one port; return (arrival, size, priority) and the departures by number."""
    now_ps, given_ = 0, []
    for number, (gap_us, size, priority) in enumerate(arrivals):
        now_ps += gap_us * US
        given_.append((now_ps, size, priority))
        bench.switch.receive(0, bytes([1, priority]) + number.to_bytes(2, "big").ljust(size - 2, b"\0"), now_ps)
    bench.run_out()
    return given_, [(int.from_bytes(sent[2:4], "big"), time_ps) for _, sent, time_ps in bench.sent]


@pytest.mark.parametrize("discipline", DISCIPLINES)
@given(arrivals=ARRIVALS)
def test_every_discipline_keeps_the_link_busy_and_at_its_rate(discipline, arrivals):
    given_, departures = arrive(paced(discipline=discipline, queues=4), arrivals)
    assert sorted(number for number, _ in departures) == list(range(len(arrivals)))
    free_ps = 0
    waiting = sorted(given_)
    for number, left_ps in departures:
        _, size, _ = given_[number]
        started_ps = left_ps - size * BYTE_PS
        # It starts when the link is free and something waits: never earlier, never later.
        assert started_ps == max(free_ps, min(waiting)[0])
        waiting.remove(given_[number])
        free_ps = left_ps


@given(arrivals=ARRIVALS)
def test_strict_priority_starts_nothing_while_something_more_urgent_waits(arrivals):
    """So a packet is passed by a less urgent one only while that one's bits are on the wire: one packet at most."""
    given_, departures = arrive(paced(queues=4), arrivals)
    left = dict(departures)
    for number, left_ps in departures:
        _, size, priority = given_[number]
        started_ps = left_ps - size * BYTE_PS
        for other, (arrived_ps, _, other_priority) in enumerate(given_):
            if arrived_ps < started_ps < left[other] - given_[other][1] * BYTE_PS:
                assert other_priority <= priority
    by_priority = [[number for number, _ in departures if given_[number][2] == priority] for priority in range(4)]
    assert all(first < second for numbers in by_priority for first, second in pairwise(numbers))


def test_a_packet_is_told_how_it_waited():
    told = []
    bench = Bench(
        Scripted(
            egress=lambda packet: told.append(
                (packet.enq_us, packet.enq_qdepth, packet.deq_timedelta, packet.deq_qdepth, packet.egress_us)
            )
        ),
        default=PortSettings(rate_bps=RATE_BPS, overhead_bytes=0),
    )
    for time_us in (10, 20, 30, 40):
        bench.switch.receive(0, frame(1), time_us * US)
    bench.run_out()
    assert told == [(10, 0, 0, 0, 10), (20, 0, 90, 2, 110), (30, 1, 180, 1, 210), (40, 2, 270, 0, 310)]


def test_egress_runs_when_the_packet_is_dequeued_and_its_drops_take_no_time():
    def drop_odd(packet):
        if packet.frame[2] % 2:
            packet.egress_spec = DROP_PORT

    bench = Bench(Scripted(egress=drop_odd), default=PortSettings(rate_bps=RATE_BPS, overhead_bytes=0))
    for name in range(4):
        bench.switch.receive(0, frame(1, name=name), 0)
    assert [(sent[2], time_ps // US) for _, sent, time_ps in bench.run_out()] == [(0, 100), (2, 200)]
    assert bench.drops(1) == {counted.EGRESS_DROP: 2}


def test_a_link_is_busy_for_the_bytes_that_leave_not_those_that_came():
    def shorten(packet):
        packet.truncate_bytes = 70

    bench = Bench(Scripted(egress=shorten), default=PortSettings(rate_bps=RATE_BPS, overhead_bytes=0))
    for _ in range(2):
        bench.switch.receive(0, frame(1, size=1000), 0)
    assert [(len(sent), time_ps // US) for _, sent, time_ps in bench.run_out()] == [(70, 70), (70, 140)]


def test_each_drop_is_counted_by_its_reason():
    def script(packet):
        forward(packet)
        if packet.frame[0] == 9:
            packet.egress_spec = DROP_PORT

    settings = PortSettings(rate_bps=RATE_BPS, queues=2, buffer_bytes=500)
    bench = Bench(Scripted(script), ports={0: settings, 1: settings})
    bench.switch.receive(0, frame(9), 0)
    bench.switch.receive(0, frame(1, priority=2), 0)
    bench.switch.receive(0, frame(200), 0)
    for _ in range(5):
        bench.switch.receive(0, frame(1), 0)
    assert bench.drops(0) == {counted.INGRESS_DROP: 1}
    assert bench.drops(1) == {counted.NO_QUEUE: 1, counted.BUFFER_FULL: 1}
    assert bench.switch.statistics().drops == {counted.NO_PORT: 1}


def test_a_priority_without_queue_is_dropped_where_the_link_has_no_rate_too():
    bench = Bench(default=PortSettings(queues=1))
    bench.switch.receive(0, frame(1, priority=1), 0)
    assert (bench.sent, bench.drops(1)) == ([], {counted.NO_QUEUE: 1})


def test_counters_of_frames_and_bytes():
    bench = Bench()
    for size in (1, 60, 1500):
        bench.switch.receive(0, bytes([3]) * size, 0)
    arrived, left = bench.switch.statistics().ports[0], bench.switch.statistics().ports[3]
    assert (arrived.rx_frames, arrived.rx_bytes) == (3, 1561)
    assert (left.tx_frames, left.tx_bytes) == (3, 1561)


def test_multicast_gives_every_replica_its_id_and_keeps_priority_and_metadata():
    def group(packet):
        packet.mcast_grp = 7
        packet.egress_spec = DROP_PORT  # multicast goes before
        packet.priority = 2
        packet.state = (packet.frame, "metadata")

    bench = Bench(Scripted(group))
    bench.switch.apply([SetMulticastGroup(7, ((1, 10), (2, 20), (1, 11)))])
    bench.switch.receive(0, b"frame", 0)
    assert [port for port, _, _ in bench.sent] == [1, 2, 1]
    assert bench.program.seen[1:] == [
        ("egress", REPLICATED, 1, 10, "metadata"),
        ("egress", REPLICATED, 2, 20, "metadata"),
        ("egress", REPLICATED, 1, 11, "metadata"),
    ]


@pytest.mark.parametrize("replicas", [None, ()])
def test_a_group_that_is_not_there_swallows_the_packet(replicas):
    def group(packet):
        packet.mcast_grp = 7

    bench = Bench(Scripted(group))
    if replicas is not None:
        bench.switch.apply([SetMulticastGroup(7, replicas)])
    bench.switch.receive(0, b"frame", 0)
    assert (bench.sent, bench.drops(0)) == ([], {counted.NO_GROUP: 1})


def test_an_ingress_clone_is_the_frame_that_came_and_leaves_before_the_packet():
    def clone(packet):
        packet.egress_spec = 1
        packet.state = (b"changed", ())
        packet.clone_session = 5
        packet.clone_fields = 42

    bench = Bench(Scripted(clone))
    bench.switch.apply([SetCloneSession(5, ((2, 9), (3, 0)), packet_length_bytes=4)])
    bench.switch.receive(0, b"original", 0)
    assert [(port, sent) for port, sent, _ in bench.sent] == [(2, b"orig"), (3, b"orig"), (1, b"changed")]
    assert bench.program.seen[1:] == [
        ("egress", INGRESS_CLONE, 2, 9, ((42, 8),)),
        ("egress", INGRESS_CLONE, 3, 0, ((42, 8),)),
        ("egress", NORMAL, 1, 0, ()),
    ]


def test_a_clone_waits_in_the_queue_of_its_class_of_service():
    def clone(packet):
        forward(packet)
        packet.clone_session = 5

    bench = Bench(Scripted(clone), default=PortSettings(rate_bps=RATE_BPS))
    bench.switch.apply([SetCloneSession(5, ((1, 0),), class_of_service=7)])
    for name in (1, 2):
        bench.switch.receive(0, frame(1, priority=3, name=name), 0)
    bench.run_out()
    kinds = [(kind[1]) for kind in bench.program.seen if kind[0] == "egress"]
    assert kinds == [INGRESS_CLONE, INGRESS_CLONE, NORMAL, NORMAL]


def test_an_egress_clone_is_the_packet_as_egress_left_it_and_may_be_of_a_dropped_one():
    def clone(packet):
        if packet.instance_type == NORMAL:
            packet.state = (b"left egress", ())
            packet.clone_session = 5
            packet.clone_fields = 3
            packet.egress_spec = DROP_PORT

    bench = Bench(Scripted(egress=clone))
    bench.switch.apply([SetCloneSession(5, ((2, 1),))])
    bench.switch.receive(0, b"\x01", 0)
    assert [(port, sent) for port, sent, _ in bench.sent] == [(2, b"left egress")]
    assert bench.program.seen[-1][:4] == ("egress", EGRESS_CLONE, 2, 1)


def test_an_unknown_clone_session_does_not_hold_the_packet_up():
    def clone(packet):
        forward(packet)
        packet.clone_session = 5

    bench = Bench(Scripted(clone))
    bench.switch.receive(0, frame(1), 0)
    assert [port for port, _, _ in bench.sent] == [1]
    assert bench.drops(0) == {counted.NO_SESSION: 1}


def test_a_resubmitted_packet_is_the_frame_that_came_with_the_fields_listed():
    def resubmit(packet):
        packet.egress_spec = 1
        if packet.instance_type != RESUBMITTED:
            packet.state = (b"changed", ())
            packet.resubmit_fields = 8

    bench = Bench(Scripted(resubmit))
    bench.switch.receive(4, b"original", 0)
    assert [(port, sent) for port, sent, _ in bench.sent] == [(1, b"original")]
    # simple_switch calls it normal again once it has left ingress
    assert bench.program.seen == [
        ("ingress", NORMAL, ()),
        ("ingress", RESUBMITTED, ((8, 8),)),
        ("egress", NORMAL, 1, 0, ((8, 8),)),
    ]


def test_a_recirculated_packet_is_the_frame_that_would_have_left():
    def recirculate(packet):
        if packet.state[0] == b"\x02\0came":
            packet.state = (b"\x03\0went", ())
            packet.recirculate_fields = 6

    bench = Bench(Scripted(egress=recirculate))
    bench.switch.receive(0, b"\x02\0came", 0)
    assert bench.sent == [(3, b"\x03\0went", 0)]
    assert ("ingress", RECIRCULATED, ((6, 6),)) in bench.program.seen


@pytest.mark.parametrize("rate_bps", [None, RATE_BPS])
@pytest.mark.parametrize("way", ["resubmit", "recirculate", "clone", "clone twice"])
def test_a_packet_that_goes_round_for_ever_is_stopped_and_counted(way, rate_bps):
    def ingress(packet):
        packet.egress_spec = 1
        packet.resubmit_fields = 1 if way == "resubmit" else -1

    def egress(packet):
        if way == "recirculate":
            packet.recirculate_fields = 1
        elif way.startswith("clone"):
            packet.clone_session = 5
            packet.egress_spec = DROP_PORT

    bench = Bench(Scripted(ingress, egress), default=PortSettings(rate_bps=rate_bps))
    bench.switch.apply([SetCloneSession(5, ((1, 0),) * (2 if way == "clone twice" else 1))])
    bench.switch.receive(0, b"frame", 0)
    bench.run_out()
    assert bench.sent == []
    reason = counted.ALLOWANCE if way == "clone twice" else counted.LOOP
    assert sum(port.drops.get(reason, 0) for port in bench.switch.statistics().ports.values()) > 0
    assert MOST_PASSES < len(bench.program.seen) <= 2 * (MOST_COPIES + 1)
    assert bench.switch.statistics().failures == {}


def test_digests_and_packets_to_the_cpu_port_become_notices_in_order():
    def script(packet):
        packet.digests = [("learn", (1, 2)), ("learn", (3, 4))]
        packet.egress_spec = CPU_PORT

    bench = Bench(Scripted(script))
    bench.switch.receive(0, b"frame", 0)
    assert bench.notices == [Digest("learn", (1, 2)), Digest("learn", (3, 4)), CpuFrame(b"frame")]
    assert bench.sent == []


def test_a_packet_out_enters_at_the_cpu_port_at_the_time_it_is():
    arrivals = []

    def script(packet):
        forward(packet)
        arrivals.append((packet.ingress_port, packet.ingress_us))

    bench = Bench(Scripted(script))
    bench.switch.advance(9 * US)
    bench.switch.packet_out(frame(2))
    assert (arrivals, bench.sent) == ([(CPU_PORT, 9)], [(2, frame(2), 9 * US)])


def test_idle_entries_are_looked_for_as_time_goes_by():
    bench = Bench()
    bench.program.idle = [Entry("table", (1,))]
    bench.switch.advance(US)
    assert bench.notices == []
    bench.switch.advance(PS_PER_SECOND)
    assert bench.notices == [IdleEntry(Entry("table", (1,)))]


def test_operations_reach_the_program_except_those_that_are_the_switch_s_own():
    bench = Bench()
    bench.switch.apply([SetDefault("table", None), SetMulticastGroup(1, ()), SetCloneSession(1, ())])
    assert bench.program.applied == [SetDefault("table", None)]
    assert bench.switch.ask([ReadRegister("r", 0)]) == [[ReadRegister("r", 0)]]


def test_without_a_program_frames_are_counted_and_dropped():
    switch = Switch(lambda *_: pytest.fail("sent"))
    switch.receive(0, b"frame", 0)
    switch.packet_out(b"frame")
    assert switch.statistics().ports[0].drops == {counted.NO_PROGRAM: 1}


@pytest.mark.parametrize("rate_bps", [None, RATE_BPS])
@pytest.mark.parametrize("stage", ["ingress", "egress"])
def test_an_exception_costs_one_packet_and_is_logged_once(stage, rate_bps, caplog):
    def fail(packet):
        forward(packet) if stage == "ingress" else None
        if packet.frame[2] == 1:
            raise ZeroDivisionError("a bug")

    bench = Bench(Scripted(**{stage: fail}), default=PortSettings(rate_bps=rate_bps))
    with caplog.at_level(logging.ERROR):
        for name in (0, 1, 1, 2):
            bench.switch.receive(0, frame(1, name=name), 0)
        bench.run_out()
    assert [sent[2] for _, sent, _ in bench.sent] == [0, 2]
    assert bench.switch.statistics().failures == {"ZeroDivisionError": 2}
    assert len(caplog.records) == 1


@given(frames=st.lists(st.binary(min_size=1, max_size=40), max_size=30), seed=st.integers(0, 3))
def test_the_same_calls_give_the_same_frames_at_the_same_times(frames, seed):
    def run():
        bench = paced(queues=8)
        for number, data in enumerate(frames):
            bench.switch.receive(seed, data, number * 10 * US)
        return bench.run_out()

    assert run() == run()


@pytest.mark.parametrize(("discipline", "least", "most"), [("strict", 399, 400), ("fifo", 180, 220)])
def test_of_two_senders_at_the_rate_of_the_link_strict_priority_serves_the_urgent_one_and_fifo_both(
    discipline, least, most
):
    bench = paced(discipline=discipline, buffer_bytes=20_000)
    for number in range(400):
        senders = ((0, 0), (2, 7)) if number % 2 else ((2, 7), (0, 0))
        for sender, priority in senders:
            bench.switch.receive(sender, frame(1, priority, size=1000), number * 1000 * BYTE_PS)
    bench.switch.advance(400_000 * BYTE_PS)
    urgent = [data for _, data, _ in bench.sent if data[1] == 7]
    assert least <= len(urgent) <= most
    assert len(bench.sent) == 400


# What p4c compiled from rounds.p4, whose egress writes what it was told into the frame.

ROUNDS = Path(__file__).parent / "programs" / "build" / "rounds.json"
RESUBMIT, RECIRCULATE, CLONE_AT_INGRESS, CLONE_AT_EGRESS, MULTICAST, DIGEST, TRUNCATE, FOR_EVER = range(1, 9)


class Report(NamedTuple):
    """The header of rounds.p4."""

    way: int
    priority: int
    passes: int
    instance_type: int
    replication_id: int
    ingress_port: int
    enqueue_depth: int
    dequeue_depth: int
    waited_us: int
    arrived_us: int
    left_us: int

    @classmethod
    def of(cls, data):
        *short, arrived, left = struct.unpack_from("!BBBBHHHHI6s6s", data)
        return cls(*short, int.from_bytes(arrived, "big"), int.from_bytes(left, "big"))


def rounds(way, priority=3):
    """Return the reports of all packets that leave, by port."""
    switch = VirtualSwitch(ROUNDS)
    switch.apply([SetCloneSession(5, ((2, 21),)), SetMulticastGroup(3, ((4, 40), (5, 50)))])
    sent = switch.run({7: [bytes([way, priority]).ljust(60, b"\0")]})
    return switch, {port: [Report.of(data) for data in frames] for port, frames in sent.items()}


def test_a_new_program_takes_the_place_of_the_old_one_and_its_packets_and_a_bad_one_changes_nothing():
    sent = []
    slow = PortSettings(rate_bps=RATE_BPS)
    switch = Switch(lambda *each: sent.append(each), ports={1: slow, 2: slow})
    switch.load(ROUNDS.read_bytes())
    switch.apply([SetMulticastGroup(3, ((2, 0),))])
    for way in (0, 0, 0, MULTICAST, MULTICAST):
        switch.receive(0, bytes([way]).ljust(60, b"\0"), 0)
    with pytest.raises(ProgramError):
        switch.load(b"{}")
    assert switch.statistics().ports[1].depths[7] == 2
    switch.load(ROUNDS.read_bytes())
    switch.advance(PS_PER_SECOND)
    assert sorted(port for port, _, _ in sent) == [1, 2]  # what was on the wire
    assert switch.statistics().ports[1].drops == {counted.RELOADED: 2}
    switch.receive(0, bytes([MULTICAST]).ljust(60, b"\0"), PS_PER_SECOND)
    assert switch.statistics().drops == {counted.NO_GROUP: 1}


def test_v1model_a_plain_packet():
    assert rounds(0)[1] == {1: [Report(0, 3, 1, NORMAL, 0, 7, 0, 0, 0, 0, 0)]}


def test_v1model_a_resubmitted_packet_has_its_old_header_and_the_listed_field_alone():
    """The field that is not listed starts at 0 again, and so does the ingress port, as in simple_switch."""
    assert rounds(RESUBMIT)[1] == {1: [Report(RESUBMIT, 3, 2, NORMAL, 0, 0, 0, 0, 0, 0, 0)]}


def test_v1model_a_recirculated_packet_has_its_new_header():
    assert rounds(RECIRCULATE)[1] == {1: [Report(0, 3, 2, NORMAL, 0, 0, 0, 0, 0, 0, 0)]}


def test_v1model_an_ingress_clone_has_the_header_that_came():
    sent = rounds(CLONE_AT_INGRESS)[1]
    assert sent[1] == [Report(0, 3, 1, NORMAL, 0, 7, 0, 0, 0, 0, 0)]
    assert [(clone.way, clone.passes, clone.instance_type, clone.replication_id) for clone in sent[2]] == [
        (CLONE_AT_INGRESS, 1, INGRESS_CLONE, 21)
    ]


def test_v1model_an_egress_clone_has_the_header_that_left():
    sent = rounds(CLONE_AT_EGRESS)[1]
    assert sent[1] == [Report(0, 3, 1, NORMAL, 0, 7, 0, 0, 0, 0, 0)]
    assert sent[2] == [Report(0, 3, 1, EGRESS_CLONE, 21, 0, 0, 0, 0, 0, 0)]


def test_v1model_replicas_have_their_ids():
    sent = rounds(MULTICAST)[1]
    assert sent == {
        port: [Report(MULTICAST, 3, 1, REPLICATED, replication_id, 7, 0, 0, 0, 0, 0)]
        for port, replication_id in ((4, 40), (5, 50))
    }


def test_v1model_digest_truncate_and_endless_resubmission():
    assert rounds(DIGEST)[0].notices == [Digest("news_t", (DIGEST, 3))]
    switch = VirtualSwitch(ROUNDS)
    assert [len(data) for data in switch.run({0: [bytes([TRUNCATE]).ljust(60, b"\0")]})[1]] == [10]
    assert switch.run({7: [bytes([FOR_EVER]).ljust(60, b"\0")]}) == {}
    assert switch.statistics().ports[7].drops == {counted.LOOP: 1}


@pytest.mark.parametrize("size", [0, 1, 9])
def test_v1model_a_packet_is_truncated_to_any_size_even_to_nothing(size):
    document = json.loads(ROUNDS.read_bytes())
    (step,) = [step for action in document["actions"] for step in action["primitives"] if step["op"] == "truncate"]
    step["parameters"][0]["value"] = hex(size)
    switch = VirtualSwitch(json.dumps(document).encode())
    frame = bytes([TRUNCATE]).ljust(60, b"\7")
    assert [len(data) for data in switch.run({0: [frame]})[1]] == [size]


def test_v1model_queueing_metadata_is_in_packets_and_microseconds():
    """Three frames of 60 bytes at a byte a microsecond; the urgent one overtakes the second."""
    switch = VirtualSwitch(ROUNDS, settings=PortSettings(rate_bps=RATE_BPS, overhead_bytes=0))
    arrivals = [
        TimedFrame(time_us * 1000, bytes([0, priority]).ljust(60)) for time_us, priority in ((0, 1), (10, 1), (20, 6))
    ]
    sent = switch.run_timed({7: arrivals})[1]
    assert [frame.time_ns for frame in sent] == [60_000, 120_000, 180_000]
    reports = [Report.of(frame.data) for frame in sent]
    assert [(each.priority, each.enqueue_depth, each.dequeue_depth, each.waited_us) for each in reports] == [
        (1, 0, 0, 0),
        (6, 0, 0, 40),
        (1, 0, 0, 110),
    ]
    assert [(each.arrived_us, each.left_us) for each in reports] == [(0, 0), (20, 60), (10, 120)]
