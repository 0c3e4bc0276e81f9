"""The traffic manager: order, rate and buffer of a port, against the disciplines it is made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress.errors import InputError
from tensorexpress.queueing import DISCIPLINES
from tensorexpress.switch.packet import SwitchPacket
from tensorexpress.switch.traffic import EgressPort, GuaranteedPriority, PortSettings
from tensorexpress.units import PS_PER_SECOND

QUEUES = 4

#: An arrival of (bytes, priority), or None for a departure.
STEPS = st.lists(st.one_of(st.none(), st.tuples(st.integers(1, 9000), st.integers(0, QUEUES - 1))), max_size=80)
SHARES = st.integers(1, 90).map(lambda percent: percent / 100)


def packet(size, priority, name=b""):
    """A packet of a size and priority, told from others by the start of its frame."""
    made = SwitchPacket(name.ljust(size, b"\0")[:size], 0, 0)
    made.priority = priority
    return made


@pytest.mark.parametrize("discipline", DISCIPLINES)
@given(steps=STEPS)
def test_a_port_serves_in_the_order_of_its_discipline(discipline, steps):
    port = EgressPort(PortSettings(discipline=discipline, queues=QUEUES, buffer_bytes=10**9))
    reference = DISCIPLINES[discipline](QUEUES)
    for step in steps:
        if step is not None:
            arrival = packet(*step)
            assert port.enqueue(arrival, 0)
            reference.push(arrival, port.wire_bytes(step[0]), reference.place(QUEUES - 1 - step[1]))
        else:
            assert port.dequeue(0) is (reference.pop() if len(reference) else None)
        assert port.backlog_bytes == reference.backlog_bytes


@given(steps=STEPS)
def test_depths_are_packets_of_the_same_queue_before_and_after(steps):
    port = EgressPort(PortSettings(queues=QUEUES))
    waiting = dict.fromkeys(range(QUEUES), 0)
    for time_us, step in enumerate(steps):
        if step is not None:
            arrival = packet(*step)
            if port.enqueue(arrival, time_us):
                assert arrival.enq_qdepth == waiting[arrival.priority]
                assert arrival.enq_us == time_us
                waiting[arrival.priority] += 1
        elif (departure := port.dequeue(time_us)) is not None:
            waiting[departure.priority] -= 1
            assert departure.deq_qdepth == waiting[departure.priority]
            assert departure.deq_timedelta == time_us - departure.enq_us


@pytest.mark.parametrize("discipline", DISCIPLINES)
@given(steps=STEPS, buffer_bytes=st.integers(1, 40_000))
def test_the_buffer_is_never_exceeded_and_a_packet_that_fits_its_pool_is_never_refused(discipline, steps, buffer_bytes):
    port = EgressPort(PortSettings(discipline=discipline, queues=QUEUES, buffer_bytes=buffer_bytes))
    for step in steps:
        if step is None:
            port.dequeue(0)
        elif not port.enqueue(packet(*step), 0):
            # The half that is shared is full; the rest is kept for the single queues, where there are any.
            kept = buffer_bytes // 2 if DISCIPLINES[discipline].has_queues else 0
            assert port.backlog_bytes + port.wire_bytes(step[0]) > buffer_bytes - kept
        assert port.backlog_bytes <= buffer_bytes
    assert max(port.deepest_bytes) <= buffer_bytes


def test_bulk_traffic_that_fills_the_buffer_leaves_room_for_urgent_packets():
    port = EgressPort(PortSettings(queues=2, buffer_bytes=8000, overhead_bytes=0))
    while port.enqueue(packet(1000, priority=0), 0):
        pass
    assert port.depths == (0, 6)
    assert [port.enqueue(packet(1000, priority=1), 0) for _ in range(3)] == [True, True, False]


def test_an_emptied_port_has_its_whole_buffer_again():
    port = EgressPort(PortSettings(queues=2, buffer_bytes=8000, overhead_bytes=0))
    for _ in range(3):
        assert [port.enqueue(packet(1000, priority=0), 0) for _ in range(7)] == [True] * 6 + [False]
        while port.dequeue(0) is not None:
            pass
    assert port.deepest_bytes == [0, 6000]


def test_strict_has_as_many_priorities_as_queues_and_other_disciplines_take_any():
    assert EgressPort(PortSettings(queues=2)).top_priority == 1
    for discipline in set(DISCIPLINES) - {"strict"}:
        assert EgressPort(PortSettings(discipline=discipline, queues=2)).top_priority > 7


@pytest.mark.parametrize(("frame_bytes", "wire_bytes"), [(1, 84), (60, 84), (61, 85), (1476, 1500)])
def test_a_frame_occupies_the_link_with_preamble_check_sequence_and_gap(frame_bytes, wire_bytes):
    port = EgressPort(PortSettings(rate_bps=8 * 10**6))
    assert port.wire_ps(frame_bytes) == wire_bytes * PS_PER_SECOND // 10**6
    assert EgressPort(PortSettings(rate_bps=8, overhead_bytes=0)).wire_ps(60) == 60 * PS_PER_SECOND
    assert EgressPort(PortSettings(rate_bps=None)).wire_ps(frame_bytes) == 0


@given(steps=STEPS, share=SHARES)
def test_a_guarantee_changes_only_when_the_last_queue_is_served(steps, share):
    """Within every queue, and among all but the last, the order is that of strict priority."""
    guaranteed, strict = GuaranteedPriority(QUEUES, share), DISCIPLINES["strict"](QUEUES)
    for number, step in enumerate(step for step in steps if step is not None):
        guaranteed.push((number, step[1]), step[0], step[1])
        strict.push((number, step[1]), step[0], step[1])
    served = [[queue.pop() for _ in range(len(queue))] for queue in (guaranteed, strict)]
    last = QUEUES - 1
    for kept in (lambda item: item[1] == last, lambda item: item[1] != last):
        assert [item for item in served[0] if kept(item)] == [item for item in served[1] if kept(item)]
    assert guaranteed.backlog_bytes == 0


@given(
    urgent=st.lists(st.integers(60, 1500), min_size=1, max_size=120),
    bulk=st.lists(st.integers(60, 1500), min_size=1, max_size=120),
    share=SHARES,
)
def test_the_last_queue_lags_its_share_by_less_than_a_packet_and_holds_others_up_by_a_bounded_amount(
    urgent, bulk, share
):
    queues = GuaranteedPriority(2, share)
    for rank, sizes in enumerate((urgent, bulk)):
        for size in sizes:
            queues.push((rank, size), size, rank)
    largest_urgent, largest_bulk = max(urgent), max(bulk)
    sent, in_a_row = [0, 0], 0
    left = [len(urgent), len(bulk)]
    while all(left):
        rank, size = queues.pop()
        sent[rank] += size
        left[rank] -= 1
        in_a_row = in_a_row + size if rank == 1 else 0
        lag = share * sum(sent) - sent[1]
        assert -1e-6 < lag < max(largest_urgent, largest_bulk) + 1e-6
        assert in_a_row < largest_bulk + share / (1 - share) * largest_urgent + 1e-6


def test_a_last_queue_that_was_empty_has_saved_nothing_up():
    """A bulk packet that arrives after much urgent traffic waits for its share as any other does."""
    queues = GuaranteedPriority(2, 0.1)
    for _ in range(100):
        queues.push("urgent", 1000, 0)
    assert [queues.pop() for _ in range(50)] == ["urgent"] * 50
    queues.push("bulk", 1000, 1)
    assert [queues.pop() for _ in range(10)] == ["urgent"] * 9 + ["bulk"]


def test_what_the_last_queue_sends_alone_is_not_held_against_it():
    queues = GuaranteedPriority(2, 0.5)
    for _ in range(100):
        queues.push("bulk", 1000, 1)
    assert [queues.pop() for _ in range(50)] == ["bulk"] * 50
    for _ in range(4):
        queues.push("urgent", 1000, 0)
    assert [queues.pop() for _ in range(5)] == ["urgent", "bulk", "urgent", "bulk", "urgent"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate_bps": 0}, "rate 0 bit/s; accepted: 1 bit/s or more"),
        ({"discipline": "strickt"}, "unknown discipline 'strickt'; did you mean 'strict'?"),
        ({"queues": 0}, "0 queues; accepted: 1 or more"),
        ({"lowest_share": 1.0}, "share 1.0 of the least urgent queue; accepted: 0 to below 1"),
        ({"lowest_share": 0.1, "discipline": "fifo"}, "needs discipline strict and 2 queues"),
        ({"lowest_share": 0.1, "queues": 1}, "needs discipline strict and 2 queues"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InputError) as refused:
        PortSettings(**settings)
    assert message in str(refused.value)
