"""The transport: whole messages, exactly once and intact, over networks that do their worst; in virtual time."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import examples
from support.virtual_network import FAULTLESS, Faults, VirtualLink, VirtualNetwork

from tensorexpress.errors import InputError, NetworkError
from tensorexpress.framing import SEGMENT_HEADER_BYTES, SEGMENT_OVERHEAD_BYTES, Framing
from tensorexpress.host import assembly, endpoint, links, scheduler, segments
from tensorexpress.host.assembly import Incoming
from tensorexpress.host.endpoint import Endpoint, EndpointSettings
from tensorexpress.host.flow import FlowSettings
from tensorexpress.host.segments import Reading, SegmentBuffer, SegmentRun
from tensorexpress.host.tagging import Tag, TrafficClass
from tensorexpress.wire.header import Flag, Kind, unpack

MS = 10**9
A, B = ("10.0.0.1", 1), ("10.0.0.2", 1)
STATED = Faults(loss=0.05, duplication=0.02, reordering=0.05, corruption=0.001)
FAR_WORSE = Faults(loss=0.4, duplication=0.3, reordering=0.6, corruption=0.2, marking=0.3)


def some_settings(**changes: Any) -> EndpointSettings:
    flow = {"window_bytes": 20_000, "rto_min_ps": 5 * MS, **changes.pop("flow", {})}
    return EndpointSettings(FlowSettings(payload_bytes=1000, overhead_bytes=SEGMENT_OVERHEAD_BYTES, **flow), **changes)


class Ends:
    """Two endpoints on a network; each knows the other as "peer" and keeps what it was sent."""

    def __init__(self, faults: Faults = FAULTLESS, seed: int = 0, session: int = 7, **changes: Any):
        self.network = VirtualNetwork(faults, seed)
        self.received: tuple[list[Incoming], list[Incoming]] = ([], [])
        self.links = [VirtualLink(self.network, address) for address in (A, B)]
        self.left, self.right = self.both = [
            Endpoint(
                link,
                {"peer": other},
                some_settings(**changes),
                session=session,
                delivered=self.received[index].append,
                clock_ps=self.network.clock_ps,
            )
            for index, (link, other) in enumerate(zip(self.links, (B, A), strict=True))
        ]

    def run_until(self, condition: Any) -> None:
        self.network.run(self.both, condition)

    def run_until_idle(self) -> None:
        self.run_until(lambda: all(each.idle for each in self.both))


def content(size: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size)


def contents(messages: list[Incoming]) -> list[tuple[int, bytes]]:
    return sorted((message.tag.message, bytes(message.view)) for message in messages)


@pytest.mark.parametrize("module", [segments, assembly, scheduler, links, endpoint])
def test_examples_in_the_documentation_hold(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


# Segments

u16, u32 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)


@st.composite
def runs(draw: st.DrawFn) -> SegmentRun:
    count = draw(st.integers(1, 12))
    below_wrap = st.integers(0, 2**32 - 1 - count)
    return SegmentRun(
        kind=draw(st.integers(0, 3)),
        flags=draw(st.integers(0, 15)),
        job=draw(u16),
        worker=draw(u16),
        iteration=draw(u32),
        tensor=draw(u16),
        queue=draw(st.integers(0, 255)),
        chunk=draw(below_wrap),
        chunks=draw(u32),
        slack_us=draw(st.integers(-(2**31), 2**31 - 1)),
        payload_bytes=draw(st.integers(0, 40)),
        session=draw(u32),
        flow=draw(u16),
        sequence=draw(u32),
        transmission=draw(u32),
        message=draw(u32),
        offset=draw(st.integers(0, 2**31)),
        total_bytes=draw(u32),
        segments=count,
    )


def write(run: SegmentRun, payload: bytes) -> bytes:
    return bytes(SegmentBuffer(4096).write(run, payload))


def read(data: bytes, stride: int) -> tuple[Reading, bytes]:
    """Return what a buffer holds, and the payloads in it."""
    buffer = SegmentBuffer(max(len(data), 1))
    buffer.view[: len(data)] = data
    reading = buffer.read(0, len(data), stride)
    return reading, b"".join(bytes(buffer.payloads(run)) for run in reading.runs)


def join(parts: list[SegmentRun]) -> SegmentRun:
    return parts[0]._replace(segments=sum(part.segments for part in parts))


@given(runs())
def test_a_run_is_read_as_it_was_written_and_every_datagram_is_a_tensor_packet(run: SegmentRun) -> None:
    payload = content(run.segments * run.payload_bytes)
    data = write(run, payload)
    stride = run.stride_bytes
    for index in range(run.segments):
        header = unpack(data[index * stride : (index + 1) * stride])
        assert (header.job, header.tensor, header.chunk) == (run.job, run.tensor, run.chunk + index)
        assert (header.slack_us, header.payload_bytes) == (run.slack_us, 32 + run.payload_bytes)
    reading, payloads = read(data, stride)
    assert (reading.malformed, reading.corrupt) == (0, 0)
    assert join(reading.runs) == run
    assert payloads == payload


def test_golden_bytes_of_a_segment() -> None:
    run = SegmentRun(1, 2, 3, 4, 5, 6, 7, 8, 9, -10, 4, 11, 12, 13, 14, 15, 16, 17)
    assert write(run, b"data").hex(" ", 4) == (
        "54581102 00030004 00000005 00060700 00000008 00000009 fffffff6 00240000 "
        "22a33231 0000000b 000c0000 0000000d 0000000e 0000000f 00000010 00000011 64617461"
    )


@given(runs(), st.randoms(use_true_random=False))
def test_any_flipped_bit_but_those_of_the_slack_is_found(run: SegmentRun, random: Random) -> None:
    data = bytearray(write(run, content(run.segments * run.payload_bytes)))
    position = random.choice([at for at in range(len(data)) if not 24 <= at % run.stride_bytes < 28])
    data[position] ^= 1 << random.randrange(8)
    reading, _ = read(data, run.stride_bytes)
    assert reading.malformed + reading.corrupt == 1
    assert sum(part.segments for part in reading.runs) == run.segments - 1


@given(runs(), st.integers(-(2**31), 2**31 - 1))
def test_a_switch_may_change_the_slack(run: SegmentRun, slack_us: int) -> None:
    data = bytearray(write(run, content(run.segments * run.payload_bytes)))
    data[24:28] = slack_us.to_bytes(4, "big", signed=True)
    reading, _ = read(data, run.stride_bytes)
    assert reading.corrupt == 0
    assert reading.runs[0].slack_us == slack_us


@given(st.binary(max_size=400), st.integers(1, 200))
def test_reading_any_bytes_ends_well(data: bytes, stride: int) -> None:
    reading, _ = read(data, stride)
    found = sum(run.segments for run in reading.runs) + reading.malformed + reading.corrupt
    assert found == -(-len(data) // stride)


# Messages

sends = st.tuples(
    st.integers(0, 1),  # who sends
    st.sampled_from([0, 1, 999, 1000, 1001, 4000, 7_777, 64_000, 90_001]),
    st.integers(0, 2),  # flow
    st.integers(0, 3),  # rank
)


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 2**32),
    faults=st.sampled_from([FAULTLESS, STATED, STATED, FAR_WORSE]),
    plan=st.lists(sends, min_size=1, max_size=10),
    window=st.sampled_from([0, 800, 4_000, 20_000, 200_000]),
    credit=st.sampled_from([0, 1_000, 30_000]),
    order=st.sampled_from(["fifo", "priority"]),
    rate_bps=st.sampled_from([0, 10**8]),
    reordering=st.sampled_from([0, 3]),
)
def test_every_message_is_delivered_once_and_intact(
    seed: int,
    faults: Faults,
    plan: list[tuple[int, int, int, int]],
    window: int,
    credit: int,
    order: str,
    rate_bps: int,
    reordering: int,
) -> None:
    ends = Ends(
        faults,
        seed,
        host_order=order,
        credit_bytes=credit,
        rate_bps=rate_bps,
        flow={"window_bytes": window, "reordering": reordering},
    )
    expected: tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]] = ([], [])
    for number, (sender, size, flow, rank) in enumerate(plan):
        payload = content(size, seed + number)
        ends.both[sender].send("peer", Tag(0, sender, 1, tensor=2, message=number, flow=flow, rank=rank), payload)
        expected[1 - sender].append((number, payload))
    ends.run_until_idle()
    assert tuple(contents(messages) for messages in ends.received) == expected
    if faults == FAULTLESS:
        assert sum(each.duplicates + each.counters.corrupt for each in ends.both) == 0


def test_a_message_is_put_into_the_callers_memory() -> None:
    ends, memory = Ends(), np.zeros(3000, dtype=np.float32)
    gradient = np.arange(3000, dtype=np.float32)
    receiver = Endpoint(
        ends.links[1],
        {"peer": A},
        some_settings(),
        session=7,
        buffer_for=lambda source, tag, size: memory,
        clock_ps=ends.network.clock_ps,
    )
    sent = ends.left.send("peer", Tag(0, 0, 0, 0), gradient)
    assert not sent.done
    ends.network.run([ends.left, receiver], lambda: sent.done)
    assert (memory == gradient).all()


def test_a_message_that_is_refused_comes_again_until_there_is_a_buffer() -> None:
    ends, free, got = Ends(), [False], []
    receiver = Endpoint(
        ends.links[1],
        {"peer": A},
        some_settings(),
        session=7,
        buffer_for=lambda source, tag, size: bytearray(size) if free[0] else None,
        delivered=got.append,
        clock_ps=ends.network.clock_ps,
    )
    ends.left.send("peer", Tag(0, 0, 0, 0), content(5000))
    ends.network.run([ends.left, receiver], lambda: receiver.counters.refused > 4)
    assert not got
    free[0] = True
    ends.network.run([ends.left, receiver], lambda: ends.left.idle)
    assert contents(got) == [(0, content(5000))]


def test_packets_carry_the_tag_the_class_and_a_slack_that_counts_down() -> None:
    ends = Ends(flow={"window_bytes": 2 * (1000 + SEGMENT_OVERHEAD_BYTES)})
    traffic = TrafficClass(dscp=40, priority=5)
    tag = Tag(3, 1, 9, 4, message=77, kind=Kind.PARAMETERS, queue=2, chunk=10, chunks=20, traffic=traffic)
    ends.left.send("peer", replace(tag, deadline_ps=50 * MS), content(4500))
    ends.run_until_idle()
    packets = [(each, unpack(data)) for each, data in ends.links[0].sent]
    assert {each for each, _ in packets} == {traffic}
    headers = [header for _, header in packets]
    assert {(h.job, h.worker, h.iteration, h.tensor, h.queue, h.kind, h.chunks) for h in headers} == {
        (3, 1, 9, 4, 2, Kind.PARAMETERS, 20)
    }
    assert [h.chunk for h in headers] == [10, 11, 12, 13, 14]
    assert [h.flags & Flag.LAST_OF_SLICE for h in headers] == [0, 0, 0, 0, Flag.LAST_OF_SLICE]
    slacks = [h.slack_us for h in headers]
    assert slacks[0] == 50_000
    assert slacks == sorted(slacks, reverse=True)
    assert slacks[-1] < slacks[0]
    (message,) = ends.received[1]
    assert (message.source, message.tag.message, message.tag.iteration) == ("peer", 77, 9)
    assert abs(message.tag.deadline_ps - 50 * MS) <= 10**7 + 10**6  # the time of one hop, and rounding


def test_a_slice_under_way_goes_first_and_then_the_host_order_decides() -> None:
    ends = Ends(host_order="priority", rate_bps=10**8, flow={"window_bytes": 5 * 1130})
    for number, (flow, due) in enumerate([(0, 5), (1, 2), (2, 2)]):
        ends.left.send("peer", Tag(0, 0, 0, tensor=number, flow=flow, deadline_ps=due), content(2000))
    ends.run_until_idle()
    assert [unpack(data).tensor for _, data in ends.links[0].sent] == [1, 1, 2, 2, 0, 0]


def test_credit_bounds_what_all_flows_have_in_flight() -> None:
    full = 1000 + SEGMENT_OVERHEAD_BYTES
    ends = Ends(credit_bytes=3 * full)
    for flow in range(4):
        ends.left.send("peer", Tag(0, 0, 0, tensor=flow, flow=flow), content(5000))
    ends.left.advance()
    assert len(ends.links[0].sent) == 3
    ends.run_until_idle()
    assert len(ends.received[1]) == 4


def test_sending_is_paced_to_the_rate_of_the_link() -> None:
    ends = Ends(rate_bps=10**9, flow={"window_bytes": 0})
    ends.left.send("peer", Tag(0, 0, 0, 0), content(100_000))
    ends.run_until_idle()
    least_ps = 99 * (1000 + SEGMENT_OVERHEAD_BYTES) * 8 * 1000
    assert least_ps <= ends.network.now_ps < least_ps * 1.1


def test_a_host_makes_up_for_time_in_which_it_was_not_run_but_not_for_time_in_which_it_had_nothing_to_send() -> None:
    ends = Ends(rate_bps=10**8, flow={"window_bytes": 0, "rto_min_ps": 5000 * MS})
    packet_ps = (1000 + SEGMENT_OVERHEAD_BYTES) * 8 * 10_000
    sent = ends.links[0].sent

    def sent_after(late_ps: int) -> int:
        before = len(sent)
        ends.network.now_ps += late_ps
        ends.left.advance()
        return len(sent) - before

    ends.left.send("peer", Tag(0, 0, 0, 0), content(2_000_000))
    assert sent_after(0) == 1
    assert sent_after(5 * MS) == 5 * MS // packet_ps
    most = scheduler.CATCH_UP_PS // packet_ps
    assert most <= sent_after(1000 * MS) <= most + 1
    ends.run_until_idle()
    ends.network.now_ps += 5 * MS
    ends.left.send("peer", Tag(0, 0, 1, 0, message=1), content(1000))
    assert sent_after(0) == 1
    # What is offered while the link is still busy waits for it.
    ends.left.send("peer", Tag(0, 0, 2, 0, message=2), content(500_000))
    assert sent_after(packet_ps // 2) == 0
    assert sent_after(5 * MS) == (5 * MS + packet_ps // 2) // packet_ps


def test_a_host_that_is_late_says_when_packets_had_to_leave() -> None:
    ends = Ends(rate_bps=10**8, flow={"window_bytes": 0, "rto_min_ps": 5000 * MS})
    packet_ps = (1000 + SEGMENT_OVERHEAD_BYTES) * 8 * 10_000
    link, said = ends.links[0], []
    send = link.send

    def note(*arguments: Any) -> int:
        said.append(link.leaves_ps)
        return send(*arguments)

    link.send = note
    ends.left.send("peer", Tag(0, 0, 0, 0), content(20_000))
    for late_ps in (0, packet_ps // 2, packet_ps, 3 * packet_ps // 2):
        ends.network.now_ps += late_ps
        ends.left.advance()
    start_ps = said[0]
    assert said == [start_ps, start_ps + packet_ps, start_ps + 2 * packet_ps, start_ps + 3 * packet_ps]
    # What follows, such as an acknowledgement, leaves when it is sent.
    assert link.leaves_ps is None


def test_marks_are_told_to_the_sender() -> None:
    ends = Ends(Faults(marking=1.0))
    ends.left.send("peer", Tag(0, 0, 0, 0), content(50_000))
    ends.run_until_idle()
    assert ends.right.counters.marked == 50
    acks = [unpack(data).flags for _, data in ends.links[1].sent]
    assert acks
    assert set(acks) == {Flag.MARKED}


def test_what_the_link_has_no_room_for_is_sent_when_there_is_room_again() -> None:
    ends = Ends()
    narrow, whole = ends.links[0], ends.links[0].send
    narrow.send = lambda target, traffic, data, stride: whole(target, traffic, data[:stride], stride)  # type: ignore
    ends.left.send("peer", Tag(0, 0, 0, 0), content(9_500))
    ends.run_until_idle()
    assert contents(ends.received[1]) == [(0, content(9_500))]
    assert ends.right.duplicates == 0


# Strangers, replays, forgeries


def test_a_replay_of_everything_changes_nothing_and_is_counted() -> None:
    ends = Ends()
    for iteration in range(3):
        ends.left.send("peer", Tag(0, 0, iteration, 0, message=iteration), content(5000, iteration))
    ends.run_until_idle()
    before = contents(ends.received[1])
    for _, datagram in list(ends.links[0].sent):
        ends.network.carry(A, B, datagram)
    ends.run_until(lambda: not ends.network.on_the_way)
    assert contents(ends.received[1]) == before
    assert ends.right.duplicates == 15


def test_datagrams_of_strangers_other_sessions_and_nonsense_are_counted_and_change_nothing() -> None:
    ends, other = Ends(), Ends(session=8)
    other.left.send("peer", Tag(0, 0, 0, 0), content(2000))
    other.run_until_idle()
    ours = [datagram for _, datagram in other.links[0].sent]
    for datagram in ours:
        ends.network.carry(("10.6.6.6", 1), B, datagram)
        ends.network.carry(A, B, datagram)
    ends.network.carry(A, B, b"hello")
    ends.network.carry(A, B, content(500))
    ends.network.carry(A, B, ours[0][:50] + b"\xff" + ours[0][51:])
    ends.run_until(lambda: not ends.network.on_the_way)
    counters = ends.right.counters
    assert (counters.strangers, counters.foreign, counters.malformed, counters.corrupt) == (2, 2, 2, 1)
    assert not ends.received[1]
    assert not ends.links[1].sent


@pytest.mark.parametrize(
    "forgery",
    [
        {"sequence": 100_000},
        {"offset": 4_999, "sequence": 3},
        {"total_bytes": 50_000, "sequence": 3},
        {"kind": Kind.ACK, "sequence": 3},
        {"kind": 9},
    ],
)
def test_a_forged_segment_with_a_right_crc_cannot_reach_beyond_its_message(forgery: dict[str, int]) -> None:
    ends = Ends(FAULTLESS, flow={"window_bytes": 2000})
    ends.left.send("peer", Tag(0, 0, 0, 0), content(5000))
    ends.left.advance()
    (run,) = read(ends.links[0].sent[0][1], 1064)[0].runs
    forged = write(run._replace(transmission=0, **forgery), content(1000, seed=666))
    ends.network.deliver()
    ends.network.carry(A, B, forged)
    ends.run_until_idle()
    assert contents(ends.received[1]) == [(0, content(5000))]
    counters = ends.right.counters
    assert counters.implausible + counters.malformed + counters.acks_received == 1


# Peers that come and go


def test_a_peer_that_falls_silent_is_named() -> None:
    ends = Ends(silence_ps=100 * MS)
    ends.run_until(lambda: ends.network.now_ps > 300 * MS)
    del ends.network.links[B]
    with pytest.raises(NetworkError, match=r"^peer at 10\.0\.0\.2:1 has been silent for 100 ms; it has ended, or"):
        ends.network.run([ends.left], lambda: False)
    assert 375 * MS <= ends.network.now_ps <= 401 * MS


def test_who_was_away_reads_what_has_come_before_it_calls_others_silent() -> None:
    ends = Ends(silence_ps=100 * MS)
    ends.right.send("peer", Tag(0, 0, 0, 0), content(300_000))
    ends.run_until_idle()
    for _ in range(100):  # more than is read at a time, and the last of it is what counts
        ends.links[0].arrived.append((("10.6.6.6", 1), b"a stranger", False))
    ends.network.now_ps += 90 * MS
    ends.right.advance()
    ends.network.now_ps += 90 * MS
    ends.network.deliver()
    ends.network.run([ends.left], lambda: ends.network.now_ps > 250 * MS)
    with pytest.raises(NetworkError, match="has been silent for 100 ms"):
        ends.network.run([ends.left], lambda: False)
    assert ends.network.now_ps < 281 * MS


def test_who_has_left_or_was_released_may_be_silent() -> None:
    ends = Ends(silence_ps=100 * MS)
    ends.left.release("peer")
    ends.network.run([ends.left], lambda: ends.network.now_ps > 1000 * MS)
    with pytest.raises(NetworkError, match="peer has left"):
        ends.left.send("peer", Tag(0, 0, 0, 0), b"")


def test_an_unknown_peer_and_a_wrong_buffer_are_refused() -> None:
    ends = Ends()
    with pytest.raises(InputError, match="unknown peer 'pear'; did you mean 'peer'"):
        ends.left.send("pear", Tag(0, 0, 0, 0), b"")
    receiver = Endpoint(
        ends.links[1],
        {"peer": A},
        some_settings(),
        session=7,
        buffer_for=lambda *_: bytearray(3),
        clock_ps=ends.network.clock_ps,
    )
    ends.left.send("peer", Tag(0, 0, 0, 0), content(10))
    with pytest.raises(InputError, match="a buffer of 3 bytes for a message of 10"):
        ends.network.run([ends.left, receiver], lambda: False)


def test_timers_run_in_the_order_of_their_times() -> None:
    ends, called = Ends(), []
    for delay in (3, 1, 2):
        ends.left.call_at(delay * MS, lambda delay=delay: called.append((delay, ends.network.now_ps // MS)))
    ends.run_until(lambda: len(called) == 3)
    assert called == [(1, 1), (2, 2), (3, 3)]


def test_the_payload_of_a_segment_fills_the_mtu() -> None:
    assert Framing(1500).payload_bytes + SEGMENT_HEADER_BYTES + 8 + 20 == 1500


def test_examples_in_the_page_hold() -> None:
    page = Path(__file__).parents[1] / "docs" / "transport.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 0


@given(
    run=runs(),
    size=st.sampled_from([0, 7, 80, 81, 200, 1408]),
    flags=st.integers(0, 15),
    damage=st.lists(st.integers(0, 2**20), max_size=3),
)
def test_machine_code_writes_and_reads_the_same(run: SegmentRun, size: int, flags: int, damage: list[int]) -> None:
    native = pytest.importorskip("tensorexpress.host.native", exc_type=ImportError)
    run = run._replace(payload_bytes=size)
    payload = content(run.segments * size)
    results = []
    for codec in (segments.ArrayCodec, native.NativeCodec):
        with using(codec):
            data = bytearray(SegmentBuffer(20_000).write(run, payload, flags))
            results.append((bytes(data), None))
            for at in damage:
                data[at % len(data)] ^= 0x40
            results.append(read(data, run.stride_bytes))
    assert results[:2] == results[2:]


@contextmanager
def using(codec: Any) -> Iterator[None]:
    """Have new buffers use a codec."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "fastest_codec", lambda: codec)
        yield
