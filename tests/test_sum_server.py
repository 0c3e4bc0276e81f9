"""Sums that end at servers, in virtual time: exact whatever the network does; what a server does with each packet."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.summing_cluster import (
    FAR_WORSE,
    LAYERS_OF,
    MS,
    PACKETS,
    STATED,
    Cluster,
    Kinds,
    check_sums,
    random_gradients,
)
from support.thorough import examples, one_in, rest
from support.virtual_network import FAULTLESS, Faults

from tensorexpress.errors import NetworkError
from tensorexpress.fixed_point import in_blocks
from tensorexpress.host.pool import MOST_DAMAGED
from tensorexpress.host.sum_server import Service, SumServer
from tensorexpress.host.tagging import BEST_EFFORT
from tensorexpress.sums import VALUES, Pool, SumPlan
from tensorexpress.wire.header import Header, Kind
from tensorexpress.wire.sum_header import SumFlag, SumHeader, check_of

FRONT = Kinds("front", servers=1)
HASHED = Kinds("hashed", servers=1, cells=64)

#: From a switch in which nobody is in another's way to one in which everybody is; and pools in front of servers.
KINDS = [
    FRONT,
    replace(FRONT, servers=2),
    replace(FRONT, servers=2, colocated=True),
    HASHED,
    replace(HASHED, servers=2, cells=5),
    replace(HASHED, servers=2, cells=3, preempts=True),
    replace(HASHED, servers=2, cells=2, colocated=True),
    replace(HASHED, cells=1, preempts=True, colocated=True),
]


@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 2**32),
    faults=st.sampled_from([FAULTLESS, STATED, STATED, FAR_WORSE]),
    workers=st.integers(2, 5),
    levels=st.integers(1, 2),
    order=st.sampled_from(["fifo", "priority"]),
    rate_bps=st.sampled_from([0, 10**8]),
    kinds=st.sampled_from(KINDS),
)
def test_every_worker_gets_every_sum_once_and_the_same(
    seed: int, faults: Faults, workers: int, levels: int, order: str, rate_bps: int, kinds: Kinds
) -> None:
    cluster = Cluster(workers, faults, seed, levels, kinds, host_order=order, rate_bps=rate_bps)
    gradients = random_gradients(workers, 4, seed)
    cluster.train(gradients)
    check_sums(cluster, gradients)
    assert all(server.is_complete for server in cluster.servers)


@rest(but=1)
@one_in(2)
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("kinds", KINDS[1:6:2], ids=["front", "hashed", "preempts"])
def test_sums_of_whole_numbers_are_exact_in_a_long_run_with_faults(kinds: Kinds, levels: int) -> None:
    cluster = Cluster(4, STATED, seed=levels, levels=levels, kinds=kinds, iterations=40)
    gradients = random_gradients(4, 40, seed=3, whole=True)
    cluster.train(gradients, most_events=10**6)
    for iteration in range(40):
        for tensor in LAYERS_OF:
            exact = in_blocks(sum(own[iteration][tensor] for own in gradients))
            found = [cluster.sums[2][iteration, tensor, packet] for packet in range(len(exact))]
            assert np.array_equal(found, exact)
    assert cluster.network.flipped > 0
    senders = [*cluster.servers, *(pool for pools in cluster.pools for pool in pools)]
    assert sum(each.damaged for each in senders) > 0
    assert sum(server.retransmissions for server in cluster.servers) > 0


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_where_nothing_is_lost_a_server_gets_one_packet_for_all_that_meet_in_a_switch(kinds: Kinds) -> None:
    cluster = Cluster(4, kinds=kinds)
    gradients = random_gradients(4, 4, seed=1, whole=True)
    cluster.train(gradients)
    received = sum(cluster.endpoints[-1 - number].counters.received for number in range(kinds.servers))
    if kinds.colocated:
        received -= kinds.servers * sum(pool.redone for pool in cluster.pools[0]) + kinds.servers * 4 * PACKETS
    turns = 4 * PACKETS + sum(pool.redone for pool in cluster.pools[0])
    timeouts = sum(endpoint.timeouts for endpoint in cluster.endpoints)
    if kinds.sums == "front" or kinds.cells == 64:
        assert (received, timeouts) == (turns, 0)
    else:
        assert received > turns


@rest(but=1)
@pytest.mark.parametrize("kinds", KINDS[1:6:2], ids=["front", "hashed", "preempts"])
@pytest.mark.parametrize("levels", [1, 2])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=6)
def test_switches_that_forget_everything_in_the_middle_are_survived(levels: int, kinds: Kinds, seed: int) -> None:
    cluster = Cluster(3, STATED, seed, levels, kinds, silence_ps=20_000 * MS)
    random = Random(seed)
    for switch in cluster.switches:
        for _ in range(3):
            cluster.endpoints[0].call_at(random.randrange(200 * MS), switch.forget)
    gradients = random_gradients(3, 4, seed)
    cluster.train(gradients)
    check_sums(cluster, gradients)


# One server, and a switch that sends it what the test wants

POOL = Pool(0, first_slot=8, slots=4, tensors=(1,), packets=(6,))
SERVICE = Service(0, 3, ("conv", "fc"), epoch=5, iterations=2, round_trip_ps=MS, traffic={1: BEST_EFFORT})
ONES = np.ones(VALUES, dtype=np.int32)


def server(cells: int = 0) -> SumServer:
    return SumServer(SumPlan((), (replace(POOL, first_slot=0) if cells else POOL,), server=9, cells=cells), SERVICE)


def packet(chunk: int = 0, times: int = 1, workers: int = 0, **changes: Any) -> tuple[Header, SumHeader, np.ndarray]:
    """Return what a switch sends of a packet: so many times 1, by some workers."""
    values = ONES * times
    names = ("iteration", "tensor", "chunks", "kind", "payload_bytes")
    header = Header(**{
        "job": 0, "worker": 0, "iteration": 0, "tensor": 1, "chunk": chunk, "chunks": 6, "queue": 2, "slack_us": 7,
        "payload_bytes": 1040 + 8 * bool(workers), "kind": Kind.PART if workers else Kind.SUM,
        **{name: changes.pop(name) for name in names if name in changes},
    })  # fmt: skip
    turn, place = divmod(chunk, 4)
    own = {"slot": 0, "turn": 4 * turn + place} if workers else {"slot": 8 + place, "turn": turn}
    usual = {"epoch": 5, **own, "check": check_of(values), "exponent": 1, "needed": 1, "workers": workers}
    return header, SumHeader(**{**usual, **changes}), values


def answers(of: SumServer, now_ps: int = 0) -> list[tuple[Header, SumHeader, int]]:
    """Return what a server sends: headers, and the value that all numbers have."""
    sent = []
    while of.head() is not None:
        burst = of.next_burst(now_ps, 64)
        skip = 8 if burst.header.kind == Kind.PART else 0
        workers = int.from_bytes(burst.payload[:skip], "big")
        values = set(np.frombuffer(burst.payload[skip + 16 :], ">i4").tolist())
        sent.append((burst.header, SumHeader.unpack(burst.payload[skip:], workers), values.pop()))
        assert not values
    return sent


def give(to: SumServer, now_ps: int, *args: Any, **changes: Any) -> None:
    to.take(*packet(*args, **changes), now_ps)


def test_the_answer_is_the_same_packet_as_a_result() -> None:
    one = server()
    give(one, 0, 5, 3)
    header, sums, _ = packet(5, 3)
    assert answers(one) == [(header, replace(sums, flags=SumFlag.RESULT), 3)]
    assert one.full_bytes == 1138


def test_who_asks_again_is_answered_but_not_sooner_than_they_can_know() -> None:
    one = server()
    give(one, 0)
    give(one, 0)
    assert len(answers(one, now_ps=2 * MS)) == 1
    give(one, 3 * MS - 1)
    assert not answers(one)
    for _ in range(2):
        give(one, 3 * MS)
    assert len(answers(one, 3 * MS)) == 1
    assert one.retransmissions == 1


def test_an_answer_takes_the_time_that_the_service_says() -> None:
    one = SumServer(SumPlan((), (POOL,), server=9), replace(SERVICE, delay_ps=4 * MS))
    give(one, MS, 0)
    give(one, 2 * MS, 1)
    assert (one.head(), one.idle, one.deadline_ps) == (None, False, 5 * MS)
    one.time_out(5 * MS)
    assert [sums.slot for _, sums, _ in answers(one)] == [8]
    one.time_out(one.deadline_ps)
    assert [sums.slot for _, sums, _ in answers(one)] == [9]
    assert one.idle


def test_the_sums_of_two_turns_are_kept_and_what_is_older_is_dropped() -> None:
    one = server()
    for turn, iteration, chunk in ((0, 0, 0), (1, 0, 4), (2, 1, 2)):
        give(one, 0, chunk, iteration=iteration, turn=turn, slot=8)
    assert len(answers(one)) == 3
    give(one, 9 * MS, 4)
    assert [sums.turn for _, sums, _ in answers(one)] == [1]
    give(one, 9 * MS, 0)
    assert (answers(one), one.late) == ([], 1)


def test_disjoint_sets_of_workers_add_up_and_the_answer_has_all() -> None:
    one = server(cells=8)
    give(one, 0, 0, 2, workers=0b101, needed=-3)
    assert one.head() is None
    give(one, 0, 0, 1, workers=0b100)
    give(one, 0, 0, 2, workers=0b110)
    assert (one.duplicates, one.overlaps) == (1, 1)
    give(one, 0, 0, 1, workers=0b010, needed=0)
    ((header, sums, value),) = answers(one)
    assert (header.kind, header.payload_bytes, sums.workers, sums.flags, value) == (5, 1048, 7, SumFlag.RESULT, 3)
    assert (sums.needed, sums.check) == (0, check_of(3 * ONES))
    give(one, 9 * MS, 0, 1, workers=0b001)
    assert answers(one) == [(header, sums, 3)]


def test_sequence_numbers_of_two_windows_are_kept() -> None:
    one = server(cells=8)
    give(one, 0, 0, 3, workers=7)
    give(one, 0, 4, 3, workers=7)
    give(one, 0, 2, 3, workers=7, iteration=1, turn=8)
    assert len(answers(one)) == 3
    give(one, 9 * MS, 4, 1, workers=1)
    give(one, 9 * MS, 0, 1, workers=1)
    assert ([sums.turn for _, sums, _ in answers(one)], one.late) == ([4], 1)


def test_sequence_numbers_wrap() -> None:
    one = server(cells=8)
    give(one, 0, 4, 3, workers=7, turn=2**32 - 4)
    give(one, 0, 2, 3, workers=7, iteration=1, turn=4)
    give(one, 9 * MS, 4, 3, workers=7, turn=2**32 - 4)
    assert ([sums.turn for _, sums, _ in answers(one, 0)], one.late) == ([2**32 - 4, 4], 1)


@pytest.mark.parametrize("changes", [
    {"tensor": 0}, {"chunks": 5}, {"iteration": 2}, {"iteration": 1}, {"kind": Kind.PART}, {"culprit": 4},
    {"needed": -127}, {"slot": 7}, {"slot": 12}, {"slot": 9},
])  # fmt: skip
def test_what_no_worker_can_have_sent_changes_nothing(changes: dict[str, Any]) -> None:
    one = server()
    give(one, 0, **changes)
    assert (one.implausible, one.head()) == (1, None)


@pytest.mark.parametrize("changes", [{"workers": 8}, {"workers": 15}, {"turn": 1}, {"slot": 1}, {"kind": Kind.SUM}])
def test_what_no_worker_can_have_sent_changes_nothing_where_slots_are_found_by_hash(changes: dict[str, Any]) -> None:
    one = server(cells=8)
    give(one, 0, **{"workers": 7, **changes})
    assert (one.implausible, one.head()) == (1, None)


def test_what_is_of_another_packet_than_the_rest_of_its_turn_is_dropped() -> None:
    one = server(cells=8)
    give(one, 0, 0, 1, workers=1)
    give(one, 0, 0, 1, workers=2, exponent=2)
    give(one, 0, 4, 1, workers=2, turn=0)
    assert one.mismatches == 2
    give(one, 0, 0, 2, workers=6)
    assert [value for *_, value in answers(one)] == [3]


@pytest.mark.parametrize("workers", [0, 7])
def test_what_is_damaged_counts_as_lost_and_much_of_it_is_an_error(workers: int) -> None:
    one = server(cells=8 * bool(workers))
    for _ in range(MOST_DAMAGED - 1):
        give(one, 0, 0, 3, workers=workers, check=1)
    assert one.head() is None
    with pytest.raises(NetworkError, match=r"^the sum of tensor 1 \(fc\) in iteration 0 came 5 times, and was wrong"):
        give(one, 0, 0, 3, workers=workers, check=1)
    give(one, 0, 0, 3, workers=workers)
    assert len(answers(one)) == 1


def test_what_leaves_32_bits_is_answered_with_a_mark() -> None:
    one = server(cells=8)
    for bit in range(3):
        give(one, 0, 0, 2**30, workers=1 << bit)
    ((_, sums, _),) = answers(one)
    assert sums.flags == SumFlag.RESULT | SumFlag.OVERFLOW
    assert not one.is_complete


def test_it_is_done_when_every_packet_has_a_sum_that_workers_take() -> None:
    one = server()
    for number in range(12):
        assert not one.is_complete
        iteration, chunk = divmod(number, 6)
        slot, turn = 8 + number % 4, number // 4
        give(one, 0, chunk, 3, iteration=iteration, slot=slot, turn=2 * turn, needed=2)  # they will sum it again
        assert not one.is_complete
        give(one, 0, chunk, 3, iteration=iteration, slot=slot, turn=2 * turn + 1, exponent=2, needed=2)
    assert one.is_complete


def test_a_worker_that_was_not_finite_is_passed_on() -> None:
    one = server(cells=8)
    give(one, 0, 0, 2, workers=6)
    give(one, 0, 0, 1, workers=1, culprit=1)
    ((_, sums, _),) = answers(one)
    assert sums.culprit == 1
