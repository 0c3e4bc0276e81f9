"""Sums in switches, as hosts see them: the same bits at every worker, whatever the network does; in virtual time."""

from __future__ import annotations

import doctest
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.summing_cluster import (
    ELEMENTS,
    EPOCH,
    FAR_WORSE,
    LAYERS,
    LAYERS_OF,
    MS,
    PACKETS,
    STATED,
    Cluster,
    address,
    check_sums,
    random_gradients,
)
from support.thorough import rest
from support.virtual_network import FAULTLESS, Faults

from tensorexpress.errors import NetworkError
from tensorexpress.fixed_point import LOWEST, in_blocks
from tensorexpress.host import pool as pool_module
from tensorexpress.host.pool import MOST_DAMAGED, Contribution, Membership, PoolSender, Summed
from tensorexpress.host.tagging import Tag, TrafficClass
from tensorexpress.sums import VALUES, Pool
from tensorexpress.wire.header import Flag, Header
from tensorexpress.wire.sum_header import SumFlag, SumHeader, check_of


def test_examples_hold() -> None:
    assert doctest.testmod(pool_module).failed == 0


@rest(but=1)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    faults=st.sampled_from([FAULTLESS, STATED, STATED, FAR_WORSE]),
    workers=st.integers(2, 5),
    levels=st.integers(1, 2),
    order=st.sampled_from(["fifo", "priority"]),
    rate_bps=st.sampled_from([0, 10**8]),
)
def test_every_worker_gets_every_sum_once_and_the_same(
    seed: int, faults: Faults, workers: int, levels: int, order: str, rate_bps: int
) -> None:
    cluster = Cluster(workers, faults, seed, levels, host_order=order, rate_bps=rate_bps)
    gradients = random_gradients(workers, 4, seed)
    cluster.train(gradients)
    check_sums(cluster, gradients)


@rest(but=1)
@pytest.mark.parametrize("levels", [1, 2])
def test_sums_of_whole_numbers_are_exact_in_a_long_run_with_faults(levels: int) -> None:
    cluster = Cluster(4, STATED, seed=levels, levels=levels)
    gradients = random_gradients(4, 60, seed=3, whole=True)
    cluster.train(gradients, most_events=10**6)
    for iteration in range(60):
        for tensor in LAYERS_OF:
            exact = in_blocks(sum(own[iteration][tensor] for own in gradients))
            found = [cluster.sums[2][iteration, tensor, packet] for packet in range(len(exact))]
            assert np.array_equal(found, exact)
    assert cluster.network.flipped > 0
    assert sum(pool.damaged for pools in cluster.pools for pool in pools) > 0
    assert sum(endpoint.retransmissions for endpoint in cluster.endpoints) > 0
    # Exponents are learned: after the first iteration hardly any packet is summed twice.
    turns = sum(switch.events["sums completed"] for switch in cluster.switches[:1])
    assert turns < 1.15 * PACKETS * 60


@rest(but=1)
@pytest.mark.parametrize("levels", [1, 2])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=8)
def test_switches_that_forget_everything_in_the_middle_are_survived(levels: int, seed: int) -> None:
    cluster = Cluster(3, STATED, seed, levels, silence_ps=20_000 * MS)
    random = Random(seed)
    for switch in cluster.switches:
        for _ in range(3):
            cluster.endpoints[0].call_at(random.randrange(200 * MS), switch.forget)
    gradients = random_gradients(3, 4, seed)
    cluster.train(gradients)
    check_sums(cluster, gradients)


# One worker, and a switch that says what the test wants


def sender(slots: int = 2, tensors: tuple[int, ...] = (1,), packets: int = 3, **options: Any) -> PoolSender:
    member = Membership(0, 1, 2, 4, LAYERS, EPOCH, rto_min_ps=5 * MS, **options)
    return PoolSender(Pool(0, first_slot=10, slots=slots, tensors=tensors, packets=(packets,) * len(tensors)), member)


def offered(values: Any = 1.0, iteration: int = 0, **options: Any) -> PoolSender:
    made = sender(**options)
    give(made, values, iteration)
    return made


def give(to: PoolSender, values: Any = 1.0, iteration: int = 0, tensor: int = 1) -> None:
    packets = to.packets_of(tensor)
    gradient = np.full(packets * VALUES, values, dtype=np.float32)
    tag = Tag(0, 1, iteration, tensor, chunks=packets, queue=6, traffic=TrafficClass(40, 6), deadline_ps=2 * MS)
    to.offer(tag, gradient, 77)


def parts(packet: Contribution) -> tuple[SumHeader, np.ndarray]:
    values = np.frombuffer(packet.payload[16:], ">i4").astype(np.int32)
    return SumHeader.unpack(packet.payload), values


def answer(packet: Contribution, to: PoolSender, now_ps: int = 0, times: int = 2, **changes: Any) -> Summed | None:
    """Give a worker the sum of so many packets like its own, changed as the test wants."""
    sums, values = parts(packet)
    header_changes = {name: changes.pop(name) for name in ("iteration", "tensor", "chunk") if name in changes}
    total = values * times
    own = {name: getattr(sums, name) for name in SumHeader.__slots__}
    sums = SumHeader(**{**own, "flags": SumFlag.RESULT, "check": check_of(total), **changes})
    header = {name: getattr(packet.header, name) for name in Header.__slots__}
    return to.take(Header(**{**header, **header_changes}), sums, total, now_ps)


def test_what_a_packet_says() -> None:
    pool = offered(0.75)
    assert pool.head() == (True, 77)
    packet = pool.next_burst(MS, 64)
    assert packet.header == Header(
        job=0, worker=4, iteration=0, tensor=1, chunk=0, chunks=3, queue=6, slack_us=1000, payload_bytes=1040, kind=4
    )
    assert packet.traffic == TrafficClass(40, 6)
    assert packet.wire_bytes == 1024 + 114
    sums, values = parts(packet)
    assert sums == SumHeader(EPOCH, turn=0, slot=10, check=check_of(values), exponent=1, needed=0)
    assert (values == 3 * 2**26).all()


def test_a_slot_takes_its_next_packet_when_the_sum_of_the_last_is_here_and_its_gradient_too() -> None:
    pool = offered(tensors=(1, 0))
    first, second = pool.next_burst(0, 64), pool.next_burst(0, 64)
    assert [packet.header.chunk for packet in (first, second)] == [0, 1]
    assert pool.head() is None
    summed = answer(second, pool)
    assert summed is not None
    assert (summed.iteration, summed.tensor, summed.packet, set(summed.values)) == (0, 1, 1, {2.0})
    # Packet 3 is of the next tensor, whose gradient is not there.
    assert pool.head() is None
    give(pool, tensor=0)
    third = pool.next_burst(0, 64)
    assert (third.header.tensor, third.header.chunk, parts(third)[0].slot, parts(third)[0].turn) == (0, 0, 11, 1)
    answer(first, pool)
    assert pool.next_burst(0, 64).header.chunk == 2
    assert pool.head() is None
    assert pool.in_flight_bytes == 2 * 1138


@pytest.mark.parametrize(("exponent", "needed", "again"), [(1, 5, 5), (20, 1, 1), (1, 1, None), (7, 1, None)])
def test_a_packet_is_summed_again_when_its_exponent_was_too_low_or_far_too_high(
    exponent: int, needed: int, again: int | None
) -> None:
    pool = offered(1.0, first_exponent=exponent, slots=1)
    packet = pool.next_burst(0, 64)
    summed = answer(packet, pool, needed=needed)
    if again is None:
        assert summed is not None
        assert set(summed.values) == {2.0}
        return
    assert summed is None
    redone = pool.next_burst(0, 64)
    sums, _ = parts(redone)
    assert (redone.header.chunk, sums.slot, sums.turn, sums.exponent) == (0, 10, 1, again)
    summed = answer(redone, pool, needed=needed)
    assert summed is not None
    assert set(summed.values) == {2.0}
    assert pool.redone == 1


def test_a_redo_goes_behind_what_could_be_sent_before_it() -> None:
    pool = offered(slots=3)
    first = pool.next_burst(0, 64)
    answer(first, pool, needed=5)
    assert turns_sent(pool, 0) == [(11, 0), (12, 0), (10, 1)]


def test_the_next_iteration_is_tried_with_what_the_last_one_needed() -> None:
    pool = offered(3.0, slots=3)
    packets = [pool.next_burst(0, 64) for _ in range(3)]
    assert not any(parts(packet)[1].any() for packet in packets)  # they would not fit
    for packet in packets:
        assert answer(packet, pool, needed=4) is None
    for packet in [pool.next_burst(0, 64) for _ in range(3)]:
        answer(packet, pool, needed=4)
    give(pool, 3.0, iteration=1)
    sums, _ = parts(pool.next_burst(0, 64))
    assert (sums.turn, sums.exponent, sums.needed) == (2, 5, 2)


def test_zeros_do_not_change_what_is_tried_next() -> None:
    pool = offered(0.0, slots=3, first_exponent=9)
    for packet in [pool.next_burst(0, 64) for _ in range(3)]:
        summed = answer(packet, pool)
        assert summed is not None
        assert not summed.values.any()
    give(pool, 1.0, iteration=1)
    assert parts(pool.next_burst(0, 64))[0].exponent == 9


def test_what_is_late_changes_nothing() -> None:
    pool = offered(slots=1)
    first = pool.next_burst(0, 64)
    assert answer(first, pool, turn=1) is None
    assert answer(first, pool) is not None
    assert answer(first, pool) is None
    assert answer(first, pool, turn=2**32 - 1) is None
    assert pool.late == 3
    # The slot's next packet has not been sent, so nobody can have its sum.
    assert answer(first, pool, turn=1, chunk=1) is None
    assert pool.next_burst(0, 64).header.chunk == 1


@pytest.mark.parametrize(("changes", "message"), [
    ({"check": 1}, "its check is not that of its values"),
    ({"exponent": 3}, "it is for exponent 3, not 1"),
    ({"chunk": 2}, "it is of iteration 0, tensor 1, packet 2"),
    ({"iteration": 9}, "it is of iteration 9, tensor 1, packet 0"),
    ({"culprit": 200}, "it speaks of a worker or an exponent that cannot be"),
    ({"needed": -128}, "it speaks of a worker or an exponent that cannot be"),
])  # fmt: skip
def test_a_damaged_sum_counts_as_lost_and_many_in_a_row_are_an_error(changes: dict[str, int], message: str) -> None:
    pool = offered()
    packet = pool.next_burst(0, 64)
    for _ in range(MOST_DAMAGED - 1):
        assert answer(packet, pool, **changes) is None
    assert pool.damaged == MOST_DAMAGED - 1
    with pytest.raises(NetworkError, match=rf"the sum of tensor 1 \(fc1\) in iteration 0 came 5 times.*: {message}"):
        answer(packet, pool, **changes)
    whole = offered()
    packet = whole.next_burst(0, 64)
    answer(packet, whole, **changes)
    assert answer(packet, whole) is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_told_with_worker_and_tensor(value: float) -> None:
    pool = offered(value)
    packet = pool.next_burst(0, 64)
    sums, values = parts(packet)
    assert (sums.culprit, sums.needed) == (2, LOWEST)
    assert not values.any()
    with pytest.raises(
        NetworkError, match=r"^worker 1's gradient of tensor 1 \(fc1\) in iteration 0 has values that are not finite$"
    ):
        answer(packet, pool)


def test_an_overflow_in_a_switch_is_told() -> None:
    pool = offered()
    packet = pool.next_burst(0, 64)
    with pytest.raises(NetworkError, match=r"the sum of tensor 1 \(fc1\) in iteration 0 has left 32 bits in a switch"):
        answer(packet, pool, flags=SumFlag.RESULT | SumFlag.OVERFLOW, check=0)


def test_time_outs_double_and_send_the_same_packet_again() -> None:
    pool = offered(slots=1)
    first = pool.next_burst(0, 64)
    now_ps = 0
    for wait_ms in (5, 10, 20, 40):
        assert pool.deadline_ps == now_ps + wait_ms * MS
        pool.time_out(pool.deadline_ps - 1)
        assert pool.head() is None
        now_ps = pool.deadline_ps
        pool.time_out(now_ps)
        assert pool.in_flight_bytes == 0
        again = pool.next_burst(now_ps, 64)
        assert again.header.flags == Flag.RETRANSMITTED
        assert again.payload == first.payload
        assert pool.head() is None
    assert (pool.timeouts, pool.retransmissions) == (4, 4)
    # The sum does not say which of them it answers; the shortest of the last round trips sets the next time-out.
    answer(again, pool, now_ps)
    second = pool.next_burst(now_ps, 64)
    assert pool.deadline_ps == now_ps + 4 * 75 * MS
    answer(second, pool, now_ps + 30 * MS)
    pool.next_burst(now_ps, 64)
    assert pool.deadline_ps == now_ps + 4 * 30 * MS


def test_a_packet_is_lost_when_three_are_back_that_were_first_sent_after_it_was_last_sent() -> None:
    pool = offered(slots=8, packets=16)
    sent = [pool.next_burst(0, 64) for _ in range(8)]
    for packet in sent[1:3]:
        answer(packet, pool, MS)
    later = [pool.next_burst(MS, 64) for _ in range(2)]
    assert [packet.header.chunk for packet in later] == [9, 10]
    assert pool.head() is None
    answer(sent[3], pool, MS)
    # The third: packet 0 goes before all others, and is no time-out.
    again = pool.next_burst(2 * MS, 64)
    assert (again.header.chunk, again.header.flags, again.payload) == (0, Flag.RETRANSMITTED, sent[0].payload)
    assert (pool.timeouts, pool.retransmissions, pool.in_flight_bytes) == (0, 1, 7 * 1138)
    assert pool.next_burst(2 * MS, 64).header.chunk == 11
    # Those that were first sent before it was sent again say nothing about that; its time-out has not doubled.
    for packet in (*sent[4:], *later):
        answer(packet, pool, 2 * MS)
    assert turns_sent(pool, 2 * MS) == [(14, 1), (15, 1), (16, 1), (17, 1)]
    assert pool.deadline_ps == 7 * MS


def test_every_transmission_takes_three_sums_of_later_packets_to_be_lost() -> None:
    pool = offered(slots=4, packets=16)
    under_way = [pool.next_burst(0, 64) for _ in range(4)]
    for _ in range(3):
        for packet in under_way[1:]:
            answer(packet, pool)
        under_way = [pool.next_burst(0, 64) for _ in range(4)]
        assert under_way[0].header.chunk == 0
        assert under_way[1].header.flags == 0
    assert (pool.retransmissions, pool.timeouts) == (3, 0)


def test_where_switches_reorder_a_time_out_alone_tells_a_loss() -> None:
    pool = offered(slots=8, packets=16, newer_sums=0)
    for packet in [pool.next_burst(0, 64) for _ in range(8)][1:]:
        answer(packet, pool)
    assert len(turns_sent(pool, 0)) == 7
    assert pool.retransmissions == 0


def turns_sent(pool: PoolSender, now_ps: int) -> list[tuple[int, int]]:
    """Return slot and turn of all that a pool may send."""
    sent = []
    while pool.head() is not None:
        sums, _ = parts(pool.next_burst(now_ps, 64))
        sent.append((sums.slot, sums.turn))
    return sent


def test_after_three_time_outs_what_was_sent_in_the_turn_before_is_sent_as_well() -> None:
    pool, other = offered(slots=2), offered(slots=3)
    pool.pools = other.pools = [pool, other]
    # Slot 11 of one pool and all of the other one wait for nothing; slot 10 waits for its second sum.
    for each in (pool, other):
        for packet in [each.next_burst(0, 64) for _ in range(each.pool.slots)]:
            answer(packet, each)
    now_ps, sent = 0, []
    for _ in range(5):
        sent.append((turns_sent(pool, now_ps), turns_sent(other, now_ps)))
        now_ps = pool.deadline_ps
        pool.time_out(now_ps)
    recalled = [(10, 0), (11, 0), (12, 0)]
    assert sent == [([(10, 1)], [])] * 3 + [([(10, 0), (11, 0), (10, 1)], recalled)] * 2


def test_who_waits_for_nothing_asks_for_one_sum_and_sends_all_again_if_there_is_no_answer() -> None:
    pool = offered(slots=3)
    packets = [pool.next_burst(0, 64) for _ in range(3)]
    for packet in packets:
        answer(packet, pool)
    pool.ask(MS, MS)
    assert turns_sent(pool, MS) == [(11, 0)]  # it is worker 1
    assert answer(packets[1], pool, 2 * MS) is None
    # The next one is for another slot. It is given some time to be answered.
    pool.ask(3 * MS, MS)
    pool.ask(4 * MS - 1, MS)
    assert turns_sent(pool, 3 * MS) == [(12, 0)]
    answer(packets[1], pool, 4 * MS)  # not what it asked for
    pool.ask(4 * MS, MS)
    assert turns_sent(pool, 4 * MS) == [(10, 0), (11, 0), (12, 0)]
    # A new sum is an answer, too.
    pool.ask(5 * MS, MS)
    assert turns_sent(pool, 5 * MS) == [(10, 0)]
    give(pool, iteration=1)
    answer(pool.next_burst(5 * MS, 64), pool, 5 * MS)
    assert turns_sent(pool, 6 * MS) == [(11, 1), (12, 1)]
    pool.ask(6 * MS, MS)
    # Slot 10 alone waits for nothing now.
    assert turns_sent(pool, 6 * MS) == [(10, 1)]


def test_a_worker_that_is_left_alone_without_a_sum_says_so() -> None:
    cluster = Cluster(2, silence_ps=1000 * MS)
    cluster.offer(0, 0, 2, np.ones(ELEMENTS[2], dtype=np.float32))
    cluster.endpoints[0].release("h1")
    with pytest.raises(NetworkError, match=r"^no sum has come for 1 s, and the other hosts have left; the switch has"):
        cluster.network.run(cluster.endpoints[:1], until=lambda: False)


def test_packets_of_several_pools_go_by_host_order() -> None:
    for order, expected in (("fifo", [2, 2, 2, 0, 0]), ("priority", [0, 0, 2, 2, 2])):
        cluster = Cluster(2, host_order=order)
        for tensor in (2, 1, 0):
            cluster.offer(0, 0, tensor, np.ones(ELEMENTS[tensor], dtype=np.float32))
            cluster.network.now_ps += 1
        cluster.endpoints[0].advance()
        link = cluster.network.links[address(0)]
        assert [int.from_bytes(data[12:14], "big") for _, data in link.sent] == expected


@given(st.binary(max_size=40), st.integers(0, 1071), st.integers(0, 7))
def test_hostile_packets_are_counted_and_change_nothing(noise: bytes, at: int, bit: int) -> None:
    cluster = Cluster(2)
    endpoint = cluster.endpoints[0]
    for worker in range(2):
        cluster.offer(worker, 0, 2, np.ones(ELEMENTS[2], dtype=np.float32))
    endpoint.advance()
    link = cluster.network.links[address(0)]
    _, packet = link.sent[0]
    forged = bytearray(packet)
    forged[at] ^= 1 << bit
    for data in (b"TX\x14" + noise, bytes(forged), packet):
        link.arrived.append((("10.9.9.9", 9), data, False))
    endpoint.receive()
    counters = endpoint.counters
    refused = counters.malformed + counters.foreign + counters.implausible + counters.strangers
    late = cluster.pools[0][1].late + cluster.pools[0][1].damaged
    assert refused + late == 3
    cluster.network.run(cluster.endpoints, until=lambda: all(each.idle for each in cluster.endpoints))
    assert all((values == 2.0).all() for values in cluster.sums[0].values())
