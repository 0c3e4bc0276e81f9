"""The flow in virtual time: numbers, windows, acknowledgements and losses, without sockets."""

from __future__ import annotations

import doctest
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress.host import flow
from tensorexpress.host.flow import SPAN, Ack, FlowSettings, Outgoing, ReceiveFlow, SendFlow, unwrap

MS = 10**9
SETTINGS = FlowSettings(payload_bytes=1000, overhead_bytes=130, window_bytes=11_300, rto_min_ps=10 * MS)


def settings(**changes: int) -> FlowSettings:
    values = {"payload_bytes": 1000, "overhead_bytes": 130, "window_bytes": 11_300, "rto_min_ps": 10 * MS}
    return FlowSettings(**{**values, **changes})


def message(segments: int, key: int = 0) -> Outgoing:
    return Outgoing(segments * 1000, 1000, key)


def send_all(sender: SendFlow, now_ps: int = 0) -> list[flow.Burst]:
    bursts = []
    while sender.head() is not None:
        bursts.append(sender.next_burst(now_ps, 64))
    return bursts


def test_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(flow).failed == 0


@given(st.integers(0, 2**40), st.integers(-(2**31), 2**31 - 1))
def test_a_number_modulo_two_to_the_32_is_found_near_another(near: int, distance: int) -> None:
    assert unwrap((near + distance) % 2**32, near) == near + distance


@given(st.integers(0, 2**80), st.integers(0, 60), st.integers(0, 60))
def test_what_has_arrived_can_be_counted_from_any_segment(arrived: int, sequence: int, start: int) -> None:
    seen = Ack(sequence, arrived, 0).arrived_from(start)
    for segment in range(start, start + 100):
        expected = segment < sequence or bool(arrived >> (segment - sequence) & 1)
        assert bool(seen >> (segment - start) & 1) == expected


def test_a_window_is_filled_and_not_exceeded_and_the_last_segment_asks() -> None:
    sender = SendFlow(SETTINGS)
    sender.offer(message(25))
    (burst,) = send_all(sender)
    assert (burst.count, sender.in_flight_bytes, burst.asks) == (10, 11_300, True)


def test_what_is_smaller_than_a_packet_still_goes_out() -> None:
    sender = SendFlow(settings(window_bytes=100))
    sender.offer(message(2))
    assert [burst.count for burst in send_all(sender)] == [1]


def test_a_message_under_way_is_finished_before_a_more_urgent_one_begins() -> None:
    sender = SendFlow(SETTINGS)
    late, urgent = message(12, key=5), message(1, key=1)
    sender.offer(late)
    (burst,) = send_all(sender)
    sender.offer(urgent)
    sender.acknowledge(Ack(10, 0, 9), 5 * MS)
    assert [burst.message for burst in send_all(sender)] == [late, urgent]
    assert burst.message is late


def test_of_those_that_wait_the_lowest_key_goes_first_and_equals_in_order() -> None:
    sender = SendFlow(SETTINGS)
    offered = [message(1, key) for key in (3, 1, 2, 1)]
    for each in offered:
        sender.offer(each)
    assert [burst.message for burst in send_all(sender)] == [offered[i] for i in (1, 3, 2, 0)]


def test_a_segment_is_lost_when_one_sent_three_later_has_arrived() -> None:
    sender = SendFlow(SETTINGS)
    sender.offer(message(8))
    send_all(sender)
    sender.acknowledge(Ack(1, 0b110, 3), MS)
    assert sender.retransmissions == 0
    assert sender.head() is None or not sender.next_burst(MS, 1).retransmitted
    sender.acknowledge(Ack(1, 0b1110, 4), MS)
    again = sender.next_burst(MS, 64)
    assert (again.sequence, again.count, again.retransmitted, again.asks) == (1, 1, True, True)


def test_a_time_out_sends_the_newest_again_and_its_arrival_tells_what_was_lost() -> None:
    sender = SendFlow(SETTINGS)
    sender.offer(message(10))
    send_all(sender)
    sender.acknowledge(Ack(7, 0, 6), MS)
    window = sender.window
    sender.time_out(sender.deadline_ps - 1)
    assert sender.head() is None
    sender.time_out(sender.deadline_ps)
    assert [(burst.sequence, burst.count, burst.asks) for burst in send_all(sender)] == [(9, 1, True)]
    # What only waited is not sent again, and what had been sent before the probe is.
    sender.acknowledge(Ack(8, 0b10, 10), 20 * MS)
    assert [(burst.sequence, burst.count) for burst in send_all(sender)] == [(8, 1)]
    assert (sender.timeouts, sender.retransmissions) == (1, 2)
    assert sender.window < window


def test_packets_that_only_waited_cost_one_retransmission_and_no_window() -> None:
    sender = SendFlow(SETTINGS)
    sender.offer(message(30))
    send_all(sender)
    window, in_flight = sender.window, sender.in_flight_bytes
    sender.time_out(sender.deadline_ps)
    send_all(sender)
    assert (sender.window, sender.in_flight_bytes, sender.retransmissions) == (window, in_flight, 1)
    sender.acknowledge(Ack(10, 0, 9), 30 * MS)
    assert (sender.window, sender.in_flight_bytes, sender.retransmissions) == (window, 0, 1)


def test_a_probe_goes_out_beyond_the_window_and_alone() -> None:
    sender = SendFlow(SETTINGS)
    sender.offer(message(30))
    send_all(sender)
    sender.window = 2_260
    sender.time_out(sender.deadline_ps)
    assert [(burst.sequence, burst.count) for burst in send_all(sender)] == [(9, 1)]


def test_without_a_limit_of_reordering_only_the_time_out_finds_losses() -> None:
    sender = SendFlow(settings(reordering=0))
    sender.offer(message(8))
    send_all(sender)
    sender.acknowledge(Ack(0, 0b11111110, 7), MS)
    assert sender.head() is None
    sender.time_out(sender.deadline_ps)
    assert [(burst.sequence, burst.count) for burst in send_all(sender)] == [(0, 1)]


def test_a_loss_halves_the_window_once_a_round_trip() -> None:
    sender = SendFlow(SETTINGS)
    sender.offer(message(30))
    send_all(sender)
    sender.acknowledge(Ack(0, 0b11110, 4), MS)
    halved = sender.window
    assert halved <= 11_300 // 2
    sender.acknowledge(Ack(0, 0b1111011110, 9), MS)
    assert sender.window >= halved


def test_a_time_out_doubles_until_an_answer_comes() -> None:
    sender, only = SendFlow(SETTINGS), message(1)
    sender.offer(only)
    send_all(sender)
    waits = []
    for _ in range(9):
        now_ps = sender.deadline_ps
        sender.time_out(now_ps)
        send_all(sender, now_ps)
        waits.append(sender.timeout_ps // MS)
    assert waits == [20, 40, 80, 160, 320, 640, 1000, 1000, 1000]
    completed = sender.acknowledge(Ack(1, 0, 9), now_ps + MS)
    assert completed == [only]
    assert only.done
    assert sender.timeout_ps == 10 * MS
    assert sender.idle


def test_marks_close_the_window_by_their_share() -> None:
    unmarked, marked = SendFlow(SETTINGS), SendFlow(SETTINGS)
    for sender, mark in ((unmarked, False), (marked, True)):
        sender.offer(message(200))
        for round_trip in range(1, 15):
            bursts = send_all(sender, round_trip * MS)
            last = bursts[-1]
            sender.acknowledge(
                Ack(last.sequence + last.count, 0, last.transmission + last.count - 1, mark), round_trip * MS + MS // 2
            )
    assert unmarked.window == 11_300
    assert marked.window < 11_300 // 2


@pytest.mark.parametrize(
    "ack", [Ack(11, 0, 3), Ack(0, 1 << 10, 3), Ack(2**31 + 5, 0, 3), Ack(5, 0, 10), Ack(2**32 - 1, 0, 3)]
)
def test_an_acknowledgement_of_what_was_never_sent_changes_nothing(ack: Ack) -> None:
    sender = SendFlow(SETTINGS)
    sender.offer(message(10))
    send_all(sender)
    assert sender.acknowledge(ack, MS) is None
    assert sender.in_flight_bytes == 11_300


def test_a_sender_never_gets_further_ahead_than_an_acknowledgement_can_tell() -> None:
    sender = SendFlow(settings(window_bytes=0))
    sender.offer(message(3 * SPAN))
    assert sum(burst.count for burst in send_all(sender)) == SPAN
    receiver = ReceiveFlow(4)
    assert receiver.new_among(SPAN, 1) == 1
    assert receiver.new_among(SPAN + 1, 1) is None


def test_a_receiver_acknowledges_every_few_and_at_once_where_something_is_amiss() -> None:
    receiver = ReceiveFlow(ack_every=4)
    told = []
    for number, sequence in enumerate([0, 1, 2, 3, 5, 4, 6, 6]):
        new = receiver.new_among(sequence, 1)
        assert new is not None
        receiver.accept(sequence, number, 1, new, at_once=False)
        told.append(receiver.acknowledgement())
    assert told == [
        None, None, None, Ack(4, 0, 3), Ack(4, 0b10, 4), None, None, Ack(7, 0, 7),
    ]  # fmt: skip
    assert receiver.duplicates == 1


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=12),
    window=st.sampled_from([0, 500, 1_130, 3_000, 20_000]),
    start=st.sampled_from([0, 1_130]),
    loss=st.sampled_from([0.0, 0.05, 0.5]),
    disorder=st.sampled_from([0.0, 0.05, 0.6]),
    reordering=st.sampled_from([0, 3]),
)
def test_every_segment_arrives_whatever_the_channel_does(
    seed: int, sizes: list[int], window: int, start: int, loss: float, disorder: float, reordering: int
) -> None:
    """Segments and acknowledgements are lost, repeated and reordered; the window holds and everything gets through."""
    random = Random(seed)
    sender = SendFlow(settings(window_bytes=window, initial_window_bytes=start, reordering=reordering))
    receiver = ReceiveFlow(ack_every=4)
    waiting = [Outgoing(size, 1000, key=random.randrange(3)) for size in sizes]
    messages = list(waiting)
    arrived: list[int] = []
    forward: list[tuple[int, int, bool]] = []
    back: list[Ack] = []
    now_ps = 0
    for _ in range(100_000):
        if waiting and random.random() < 0.3:
            sender.offer(waiting.pop())
        while sender.head() is not None:
            probing = sender.probing
            burst = sender.next_burst(now_ps, random.choice([1, 3, 64]))
            assert burst.count == 1 if probing else sender.in_flight_bytes <= max(sender.window, 1_130)
            forward += [
                (burst.sequence + i, burst.transmission + i, burst.asks or burst.ends_message)
                for i in range(burst.count)
                if random.random() >= loss
                for _ in range(1 + (random.random() < 0.02))
            ]
        if random.random() < disorder:
            random.shuffle(forward)
        if not forward and not back:
            if sender.in_flight_bytes:
                now_ps = max(now_ps, sender.deadline_ps)
                sender.time_out(now_ps)
            elif not waiting:
                break
            continue
        now_ps += MS
        for sequence, transmission, asks in forward[:5]:
            new = receiver.new_among(sequence % 2**32, 1)
            assert new is not None
            arrived += [sequence] * new
            receiver.accept(sequence % 2**32, transmission % 2**32, 1, new, at_once=asks)
            ack = receiver.acknowledgement()
            if ack is not None and random.random() >= loss:
                back.append(ack)
        del forward[:5]
        if random.random() < disorder:
            random.shuffle(back)
        for ack in back[:3]:
            sender.acknowledge(ack, now_ps)
        del back[:3]
    assert all(each.done for each in messages)
    assert sender.idle
    assert sender.in_flight_bytes == 0
    assert sorted(arrived) == list(range(sum(each.segments for each in messages)))
    assert receiver.expected == len(arrived)
