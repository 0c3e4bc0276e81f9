"""Sums in switches: what the P4 program does with packets to sum, in the embedded switch under a plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.deployed import PROGRAM, SCHEMA
from support.summing import (
    COLOCATED,
    HEADERS_BYTES,
    ONE_SERVER,
    TWO_LEAVES,
    TWO_SERVERS,
    SummingNetwork,
    SumPacket,
    Values,
    operations,
    packet,
    parse,
    pool,
    served_plan,
    star_plan,
    tree_plan,
)
from support.thorough import examples

from tensorexpress.addresses import GATEWAY_IPV4, GATEWAY_MAC
from tensorexpress.control import aggregate
from tensorexpress.control.client import Connection, RemoteSwitch
from tensorexpress.control.deploy import entries, prepare
from tensorexpress.control.entities import DefaultEntry, MulticastEntry
from tensorexpress.control.intent import Intent, Options
from tensorexpress.control.reconcile import difference, reconcile, steps
from tensorexpress.control.report import status_json, status_table
from tensorexpress.control.status import read_status
from tensorexpress.errors import PlanError
from tensorexpress.framing import SUM_BYTES, WORKERS_BYTES
from tensorexpress.p4 import define
from tensorexpress.plan import Plan
from tensorexpress.sums import MOST_CHILDREN, VALUE_BYTES, VALUES, SummingSwitch, SumPlan
from tensorexpress.switch.device import Switch
from tensorexpress.switch.operations import DeleteEntry, ReadRegister, SetEntry
from tensorexpress.switch.p4runtime import service
from tensorexpress.wire.checksum import checksum
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.header import HEADER_BYTES, Flag, Kind
from tensorexpress.wire.sum_header import CHECK_MODULUS, SumFlag, check_of

WORKERS = 3
RESULT, OVERFLOW = SumFlag.RESULT, SumFlag.OVERFLOW


def some(seed: int, most: int = 2**28) -> Values:
    return np.random.default_rng(seed).integers(-most, most, VALUES, dtype=np.int32)


VECTORS = [some(seed) for seed in range(8)]
TOTAL = VECTORS[0] + VECTORS[1] + VECTORS[2]


@pytest.fixture
def star() -> SummingNetwork:
    return SummingNetwork(star_plan(WORKERS))


@pytest.fixture
def tree() -> SummingNetwork:
    return SummingNetwork(tree_plan(4))


def send(network: SummingNetwork, host: int, content: SumPacket) -> list[tuple[int, SumPacket]]:
    """Return what reaches which hosts because of a packet."""
    return [(to, parse(frame)) for to, frame in network.send(host, network.frame(host, content))]


def contribute(network: SummingNetwork, host: int, **fields: Any) -> list[tuple[int, SumPacket]]:
    return send(network, host, packet(VECTORS[host], worker=host, **fields))


def slots_held(network: SummingNetwork, name: str = "s0") -> list[Any]:
    arrays = (aggregate.OWNERS, aggregate.IDENTITIES, aggregate.SEEN, aggregate.HEADS, *aggregate.VALUES)
    return network.switches[name].ask([ReadRegister(f"TensorIngress.{array}", None) for array in arrays])


def test_the_constants_of_the_program_are_those_of_hosts() -> None:
    assert (define.TENSOR_SUM, define.TENSOR_PART, define.TENSOR_RETRANSMITTED) == (
        Kind.SUM,
        Kind.PART,
        Flag.RETRANSMITTED,
    )
    assert (define.SUM_RESULT, define.SUM_OVERFLOW, define.SUM_MODULUS) == (RESULT, OVERFLOW, CHECK_MODULUS)
    assert define.SUM_PAYLOAD_BYTES == SUM_BYTES + VALUES * VALUE_BYTES
    assert define.PART_PAYLOAD_BYTES == define.SUM_PAYLOAD_BYTES + WORKERS_BYTES
    assert define.SUM_UDP_BYTES == define.UDP_BYTES + HEADER_BYTES + define.SUM_PAYLOAD_BYTES
    assert define.PART_UDP_BYTES == define.UDP_BYTES + HEADER_BYTES + define.PART_PAYLOAD_BYTES
    assert define.ETHERNET_BYTES + define.IPV4_BYTES + define.UDP_BYTES == HEADERS_BYTES
    assert SCHEMA.find("register", aggregate.OWNERS).size == 2 * define.SUM_SLOTS
    assert list(aggregate.EVENT_NAMES) == list(range(define.SUM_EVENTS))


def test_the_last_of_all_workers_makes_the_sum_and_everybody_gets_it(star: SummingNetwork) -> None:
    assert contribute(star, 1, needed=3) == []
    assert contribute(star, 0, needed=-4) == []
    results = contribute(star, 2, needed=0, iteration=5)
    assert results == []  # of another iteration than the two before
    results = contribute(star, 2, needed=0)
    assert [host for host, _ in results] == [0, 1, 2]
    for host, result in results:
        assert (result.values == TOTAL).all()
        assert result.sums.flags == RESULT
        assert result.header.worker == host
        assert (result.sums.epoch, result.sums.turn, result.sums.slot) == (7, 0, 4)
        assert (result.sums.exponent, result.sums.needed, result.sums.culprit) == (1, 3, 0)
        assert result.sums.check == check_of(TOTAL)
    assert star.events() == {"added": 3, "sums completed": 1, "mismatches": 1}


def test_a_sum_is_addressed_to_the_worker_that_gets_it(star: SummingNetwork) -> None:
    contribute(star, 0)
    contribute(star, 1)
    last = packet(VECTORS[2], worker=2)
    for host, frame in star.send(
        2, star.frame(2, replace(last, header=replace(last.header, flags=1, slack_us=77, queue=3)))
    ):
        own = star.addresses[host]
        assert frame[:12] == own.mac + GATEWAY_MAC
        assert frame[26:34] == GATEWAY_IPV4.packed + own.ipv4.packed
        assert frame[22] == 64
        assert frame[34:38] == define.TENSOR_PORT.to_bytes(2, "big") * 2
        header = parse(frame).header
        # Queue and slack are those of the last contribution; that it was sent again is not so of the sum.
        assert (header.flags, header.slack_us, header.queue) == (0, 77, 3)


#: Examples share a switch: each begins a new epoch.
shared_star = cache(lambda: SummingNetwork(star_plan(WORKERS)))
epochs = count(100)

lanes = st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1]))
vectors = st.builds(
    lambda seed, first: np.concatenate([some(seed, 2**31 - 1)[len(first) :], np.array(first, np.int32)]).astype(
        np.int32
    ),
    st.integers(0, 2**32 - 1),
    st.lists(lanes, min_size=1, max_size=8),
)


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(vectors, st.integers(-128, 127), st.integers(0, 255)), min_size=WORKERS, max_size=WORKERS),
    st.permutations(range(WORKERS)),
)
def test_sums_are_those_of_numpy_in_any_order(parts: list[tuple[Values, int, int]], order: list[int]) -> None:
    network, epoch = shared_star(), next(epochs)
    for worker in order:
        values, needed, culprit = parts[worker]
        results = send(network, worker, packet(values, worker=worker, needed=needed, culprit=culprit, epoch=epoch))
    assert len(results) == WORKERS
    wide = np.zeros(VALUES, dtype=np.int64)
    overflow = False
    for worker in order:
        wide = wide.astype(np.int32).astype(np.int64) + parts[worker][0]
        overflow |= bool((wide != wide.astype(np.int32)).any())
    for _, result in results:
        assert (result.values == wide.astype(np.int32)).all()
        assert bool(result.sums.flags & OVERFLOW) == overflow
        assert result.sums.needed == max(needed for _, needed, _ in parts)
        assert result.sums.culprit == max(culprit for _, _, culprit in parts)
        assert result.sums.check == sum(check_of(values) for values, _, _ in parts) % CHECK_MODULUS


@pytest.mark.parametrize("lane", [0, 63, 64, 255])
@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [(2**31 - 1, 1, False), (-(2**31), -1, False), (2**31 - 1, -1, True), (-(2**31), 2**31 - 1, True)],
)
def test_a_number_that_does_not_fit_is_told_of_in_the_sum(
    star: SummingNetwork, lane: int, first: int, second: int, fits: bool
) -> None:
    values = np.zeros((WORKERS, VALUES), dtype=np.int32)
    values[0, lane], values[1, lane] = first, second
    for worker in range(WORKERS):
        results = send(star, worker, packet(values[worker], worker=worker))
    assert {result.sums.flags for _, result in results} == {RESULT if fits else RESULT | OVERFLOW}
    assert star.events().get("overflows", 0) == (not fits)
    # What a worker asks for again is told of too.
    assert send(star, 1, packet(values[1], worker=1))[0][1].sums.flags == results[0][1].sums.flags


def test_checks_at_the_modulus_are_added_modulo_it(star: SummingNetwork) -> None:
    for worker, check in enumerate((CHECK_MODULUS - 1, 1, CHECK_MODULUS - 1)):
        results = contribute(star, worker, check=check)
    assert results[0][1].sums.check == CHECK_MODULUS - 1


def test_a_duplicate_before_the_sum_is_dropped_and_after_it_answered_to_its_sender_alone(star: SummingNetwork) -> None:
    contribute(star, 0)
    assert contribute(star, 0) == []
    contribute(star, 1)
    results = dict(contribute(star, 2))
    for worker in (1, 0, 1):
        ((host, again),) = contribute(star, worker)
        assert host == worker
        assert again.payload() == results[worker].payload()
    assert star.events() == {"added": 3, "sums completed": 1, "duplicates dropped": 1, "duplicates answered": 3}


def test_the_sum_of_the_turn_before_is_still_there_and_that_before_it_is_late(star: SummingNetwork) -> None:
    for turn in range(3):
        for worker in range(WORKERS):
            contribute(star, worker, turn=turn, chunk=turn)
        if turn:
            ((_, again),) = contribute(star, 0, turn=turn - 1, chunk=turn - 1)
            assert (again.values == TOTAL).all()
    assert contribute(star, 0, turn=0, chunk=0) == []
    assert star.events()["late"] == 1


@pytest.mark.parametrize(
    "other", [{"iteration": 1}, {"tensor": 1}, {"chunk": 1}, {"exponent": 2}], ids=lambda other: next(iter(other))
)
def test_what_is_of_another_packet_is_never_added(star: SummingNetwork, other: dict[str, int]) -> None:
    contribute(star, 0)
    held = slots_held(star)
    assert contribute(star, 1, **other) == []
    assert star.events() == {"added": 1, "mismatches": 1}
    assert slots_held(star) == held


def test_serial_numbers_go_on_beyond_their_end(star: SummingNetwork) -> None:
    for epoch, turn in ((2**32 - 1, 2**32 - 2), (2**32 - 1, 0), (2**32 - 1, 2), (0, 0), (5, 0)):
        for worker in range(WORKERS):
            results = contribute(star, worker, epoch=epoch, turn=turn)
        assert len(results) == WORKERS, (epoch, turn)
    assert contribute(star, 0, epoch=2**32 - 1, turn=4) == []
    assert star.events()["late"] == 1


def refused(star: SummingNetwork, host: int, frame: bytes, event: str | None) -> None:
    """Nothing leaves the switch, nothing is in a slot, and it is counted as what it was."""
    contribute(star, 1)
    held, before = slots_held(star), star.events()
    assert star.send(host, frame) == []
    assert slots_held(star) == held
    after = star.events()
    assert {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)} == (
        {event: 1} if event else {}
    )


STRANGER_HOST = WORKERS


@pytest.mark.parametrize("strangers", ["remark", "drop"])
def test_a_job_or_host_that_is_not_admitted_never_touches_a_slot(strangers: str) -> None:
    star = SummingNetwork(star_plan(WORKERS), Options(strangers=strangers))
    event = "strangers" if strangers == "remark" else None
    refused(star, 0, star.frame(0, packet(VECTORS[0], job=9)), event)
    refused(star, STRANGER_HOST, star.frame(STRANGER_HOST, packet(VECTORS[0])), event)


@pytest.mark.parametrize("worker", [1, 2, 3, 65535])
def test_a_worker_cannot_speak_for_another(star: SummingNetwork, worker: int) -> None:
    refused(star, 0, star.frame(0, packet(VECTORS[0], worker=worker)), "strangers")


@pytest.mark.parametrize("slot", [0, 3, 12, 1023, 1024, 65535])
def test_a_slot_of_others_is_out_of_range(star: SummingNetwork, slot: int) -> None:
    refused(star, 0, star.frame(0, packet(VECTORS[0], slot=slot)), "slots out of range")


def test_nobody_below_hands_out_results(star: SummingNetwork, tree: SummingNetwork) -> None:
    refused(star, 0, star.frame(0, packet(VECTORS[0], flags=RESULT)), "strangers")
    refused(star, 0, star.frame(0, packet(VECTORS[0], flags=RESULT | OVERFLOW | 0xFC)), "strangers")
    assert send(tree, 0, packet(VECTORS[0], flags=RESULT)) == []
    assert tree.events("s0") == {"strangers": 1}


def damaged(frame: bytes, place: int, bit: int) -> bytes:
    return frame[:place] + bytes([frame[place] ^ 1 << bit]) + frame[place + 1 :]


def with_udp_checksum(frame: bytes, value: int) -> bytes:
    return frame[:40] + value.to_bytes(2, "big") + frame[42:]


@given(st.integers(34, HEADERS_BYTES + HEADER_BYTES + define.SUM_PAYLOAD_BYTES - 1), st.integers(0, 7))
def test_a_damaged_packet_never_touches_a_slot(place: int, bit: int) -> None:
    star = shared_star()
    contribute(star, 1)
    held = slots_held(star)
    damage = damaged(star.frame(0, packet(VECTORS[0])), place, bit)
    # To another port it is no tensor packet, and of another magic number, version or kind none to sum.
    assert star.send(0, damage) == [] or place in (36, 37, 42, 43, 44)
    assert slots_held(star) == held


def test_a_packet_without_a_checksum_never_touches_a_slot(star: SummingNetwork) -> None:
    frame = star.frame(0, packet(VECTORS[0]))
    refused(star, 0, with_udp_checksum(frame, 0), None)  # wrong, and counted as such before all else
    zero = with_udp_checksum(star.frame(0, zero_sum_packet(star, 0)), 0)
    refused(star, 0, zero, "malformed")


def zero_sum_packet(network: SummingNetwork, worker: int) -> SumPacket:
    """Return a packet whose checksum comes to 0, and is therefore sent as 0xffff."""
    values = VECTORS[worker].copy()
    values[-1] = 0
    frame = with_udp_checksum(network.frame(worker, packet(values, worker=worker, check=0)), 0)
    rest = checksum(frame[26:34] + (len(frame) - 34).to_bytes(4, "big") + (17).to_bytes(4, "big") + frame[34:])
    values[-1] = rest
    made = packet(values, worker=worker, check=0)
    assert network.frame(worker, made)[40:42] == b"\xff\xff"
    return made


def test_a_checksum_that_comes_to_zero_is_right_both_ways(star: SummingNetwork) -> None:
    first = zero_sum_packet(star, 0)
    send(star, 0, first)
    contribute(star, 1)
    results = contribute(star, 2)
    assert (results[0][1].values == first.values + VECTORS[1] + VECTORS[2]).all()


def test_checksums_that_a_switch_makes_are_never_none(star: SummingNetwork) -> None:
    """Sums of so many packets that some would have a checksum of 0; `parse` refuses those, and wrong ones."""
    zeros = np.zeros(VALUES, dtype=np.int32)
    for worker in range(WORKERS):
        (*results,) = star.send(worker, star.frame(worker, packet(zeros, worker=worker, check=0)))
    made = int.from_bytes(results[0][1][40:42], "big")
    rest = zeros.copy()
    rest[0] = made  # now all words of the first copy add up to a checksum of 0
    for worker, values in enumerate((rest, zeros, zeros)):
        results = star.send(worker, star.frame(worker, packet(values, worker=worker, check=0, slot=5)))
    shifted = [int.from_bytes(frame[40:42], "big") for _, frame in results]
    rest[0] = made + shifted[0]
    for worker, values in enumerate((rest, zeros, zeros)):
        results = star.send(worker, star.frame(worker, packet(values, worker=worker, check=0, slot=5, turn=1)))
    for _, frame in results:
        parse(frame)


@pytest.mark.parametrize("extra", [-1, 1, 4, 46])
def test_a_packet_of_another_size_is_no_packet_to_sum(star: SummingNetwork, extra: int) -> None:
    content = packet(VECTORS[0])
    payload = content.payload()
    if extra > 0:
        refused(star, 0, star.frame(0, content) + bytes(extra), "malformed")
        payload += bytes(extra)
    else:
        refused(star, 0, star.frame(0, content)[:extra], "malformed")
        payload = payload[:extra]
    header = replace(content.header, payload_bytes=define.SUM_PAYLOAD_BYTES + extra)
    refused(star, 0, star.framed(0, header.pack() + payload[HEADER_BYTES:]), "malformed")


def test_flags_that_have_no_name_are_not_passed_on(star: SummingNetwork) -> None:
    for worker in range(WORKERS):
        results = contribute(star, worker, flags=0xFC)
    assert results[0][1].sums.flags == RESULT


def test_a_job_that_died_leaves_nothing_to_the_next_run(star: SummingNetwork) -> None:
    contribute(star, 0)
    contribute(star, 1)
    for worker in range(WORKERS):
        results = send(star, worker, packet(VECTORS[worker + 3], worker=worker, epoch=8))
        # What the dead run still had on its way comes too late.
        assert contribute(star, 2) == []
    wanted = VECTORS[3] + VECTORS[4] + VECTORS[5]
    assert all((result.values == wanted).all() for _, result in results)
    assert star.events()["late"] == 3


def test_another_job_takes_over_slots_and_the_old_one_never_adds_to_its_sums() -> None:
    """Two jobs with the same slots, which no plan may have, as while one plan replaces another."""
    plan = star_plan(WORKERS, jobs=2)
    (own,) = plan.jobs[0].sums
    second = replace(
        plan.jobs[1],
        sums=(
            replace(
                own, switches=(replace(own.switches[0], children=tuple(2 * host for host in plan.jobs[1].job.workers)),)
            ),
        ),
    )
    network = SummingNetwork(replace(plan, jobs=(plan.jobs[0], second)))
    contribute(network, 0)
    contribute(network, 1)
    for worker in range(WORKERS):
        results = send(network, WORKERS + worker, packet(VECTORS[worker + 3], worker=worker, job=1, epoch=1))
    assert [host for host, _ in results] == [3, 4, 5]
    assert (results[0][1].values == VECTORS[3] + VECTORS[4] + VECTORS[5]).all()
    # The old job's last packet begins afresh: it does not find the two that were overwritten.
    assert contribute(network, 2) == []


def test_leaves_send_one_packet_up_and_the_root_sends_sums_down(tree: SummingNetwork) -> None:
    wanted = TOTAL + VECTORS[3]
    for host in range(3):
        assert send(tree, host, packet(VECTORS[host], worker=host % 2, needed=host)) == []
    results = send(tree, 3, packet(VECTORS[3], worker=1, needed=3))
    assert sorted(host for host, _ in results) == [0, 1, 2, 3]
    for host, result in results:
        assert (result.values == wanted).all()
        assert (result.sums.needed, result.sums.flags, result.header.worker) == (3, RESULT, host % 2)
        assert result.sums.check == check_of(wanted)
    assert tree.events("s2") == {"added": 2, "sums completed": 1}
    for leaf in ("s0", "s1"):
        assert tree.events(leaf) == {"added": 2, "sums completed": 1, "handed down": 1}


def test_a_duplicate_at_a_leaf_brings_the_sum_from_the_root_again(tree: SummingNetwork) -> None:
    for host in range(3):
        send(tree, host, packet(VECTORS[host], worker=host % 2))
    # The leaf is complete, the root is not: it hears of the leaf twice, and says nothing.
    assert send(tree, 0, packet(VECTORS[0], worker=0)) == []
    assert tree.events("s2") == {"added": 1, "duplicates dropped": 1}
    results = send(tree, 3, packet(VECTORS[3], worker=1))
    again = send(tree, 0, packet(VECTORS[0], worker=0))
    assert [host for host, _ in again] == [0, 1]
    assert again[0][1].payload() == next(result for host, result in results if host == 0).payload()
    assert tree.events("s2")["duplicates answered"] == 1


def test_an_overflow_at_a_leaf_reaches_everybody(tree: SummingNetwork) -> None:
    most = np.full(VALUES, 2**31 - 1, dtype=np.int32)
    for host in range(4):
        results = send(tree, host, packet(most if host < 2 else -most, worker=host % 2))
    assert {result.sums.flags for _, result in results} == {RESULT | OVERFLOW}


def test_results_come_to_a_leaf_from_the_link_above_alone(tree: SummingNetwork) -> None:
    result = tree.frame(0, packet(VECTORS[0], flags=RESULT))
    up = next(port for port, link in tree.plan.scenario.cluster.ports("s0").items() if link == 8)
    assert len(tree.pass_one("s0", up, result)) == 2
    assert tree.pass_one("s2", 0, result) == []
    # Nor does a leaf take contributions from above.
    assert tree.pass_one("s0", up, tree.frame(0, packet(VECTORS[0]))) == []
    assert tree.events("s0") == {"handed down": 1, "strangers": 1}


def test_sums_wait_in_the_queue_of_their_tensor() -> None:
    network = SummingNetwork(star_plan(WORKERS))
    dscps = set()
    for tensor in range(8):
        for worker in range(WORKERS):
            results = network.send(
                worker, network.frame(worker, packet(VECTORS[worker], worker=worker, tensor=tensor, turn=tensor))
            )
        dscps.add(results[0][1][15] >> 2)
    assert dscps == {network.plan.dscps[queue] for queue in network.plan.jobs[0].queues}


def test_a_sum_that_nobody_may_leave_by_is_dropped(star: SummingNetwork) -> None:
    """Between two plans a copy may have no address yet."""
    copies = [entity for entity in entries(Intent(star.plan, "s0")) if entity.place == aggregate.COPIES]
    gone = [DeleteEntry(operation.entry) for operation in operations(copies[:1]) if isinstance(operation, SetEntry)]
    star.switches["s0"].apply(gone)
    contribute(star, 0)
    contribute(star, 1)
    assert [host for host, _ in contribute(star, 2)] == [1, 2]


# Sums that end at servers


def served(*words: str) -> SummingNetwork:
    return SummingNetwork(served_plan(*words))


def answered(content: SumPacket, values: Values | None = None) -> SumPacket:
    """Return what a server says to a sum."""
    sums = replace(content.sums, flags=content.sums.flags | RESULT)
    return replace(content, sums=sums, values=content.values if values is None else values)


def test_a_server_gets_the_sum_and_its_answer_goes_to_all() -> None:
    star = served(*ONE_SERVER)
    assert contribute(star, 0, slot=0) == contribute(star, 1, slot=0) == []
    ((server, frame),) = star.send(2, star.frame(2, packet(VECTORS[2], worker=2, slot=0)))
    asked = parse(frame)
    assert server == 3
    assert (asked.values == TOTAL).all()
    assert (asked.sums.flags, asked.header.worker, asked.sums.check) == (0, 0, check_of(TOTAL))
    own = star.addresses[server]
    assert frame[:12] == own.mac + GATEWAY_MAC
    assert frame[26:34] == GATEWAY_IPV4.packed + own.ipv4.packed
    results = star.send(server, star.frame(server, answered(asked)))
    assert [host for host, _ in results] == [0, 1, 2]
    for host, result in results:
        own = star.addresses[host]
        assert result[:12] == own.mac + GATEWAY_MAC
        assert result[26:38] == GATEWAY_IPV4.packed + own.ipv4.packed + define.TENSOR_PORT.to_bytes(2, "big") * 2
        found = parse(result)
        assert (found.values == TOTAL).all()
        assert (found.sums.flags, found.header.worker) == (RESULT, host)
    assert star.events() == {"added": 3, "sums completed": 1, "handed down": 1}


def test_a_server_answers_from_any_port_of_its_own() -> None:
    star = served(*ONE_SERVER)
    own, first = star.addresses[3], star.addresses[0]
    content = packet(VECTORS[0], slot=0, flags=RESULT).payload()
    for port in (1, 1024, 65535):
        frame = build_frame(FrameEnd(own.mac, own.ipv4, port), FrameEnd(GATEWAY_MAC, first.ipv4), content)
        results = star.send(3, frame)
        assert {result[34:36] for _, result in results} == {define.TENSOR_PORT.to_bytes(2, "big")}
        assert all((parse(result).values == VECTORS[0]).all() for _, result in results)


def test_a_duplicate_asks_the_server_again() -> None:
    star = served(*ONE_SERVER)
    for worker in range(WORKERS):
        asked = contribute(star, worker, slot=0)
    for worker in range(WORKERS):
        ((host, again),) = contribute(star, worker, slot=0)
        assert host == 3
        assert again.payload() == asked[0][1].payload()
    assert star.events() == {"added": 3, "sums completed": 1, "duplicates answered": 3}


def test_each_server_has_a_tree_of_its_own() -> None:
    star = served(*TWO_SERVERS)
    for slot, server in ((0, 3), (15, 3), (16, 4), (31, 4)):
        for worker in range(WORKERS):
            asked = contribute(star, worker, slot=slot)
        assert [host for host, _ in asked] == [server]
        # The other server has no say in it, nor has it in sums of its own that are another's.
        other = 7 - server
        assert send(star, other, answered(asked[0][1])) == []
        assert [host for host, _ in send(star, server, answered(asked[0][1]))] == [0, 1, 2]
    assert contribute(star, 0, slot=32) == []
    assert star.events() == {
        "added": 12,
        "sums completed": 4,
        "handed down": 4,
        "strangers": 4,
        "slots out of range": 1,
    }


@pytest.mark.parametrize("host", [0, 1, 2, 5])
def test_a_stranger_that_forges_a_result_is_dropped_and_counted(host: int) -> None:
    star = served(*TWO_SERVERS)
    held = slots_held(star)
    for slot in (0, 16):
        assert send(star, host, packet(VECTORS[0], worker=host, slot=slot, flags=RESULT)) == []
    assert slots_held(star) == held
    assert star.events() == {"strangers": 2}


def test_nobody_forges_a_result_in_the_name_of_the_server_or_of_the_switch() -> None:
    star = served(*ONE_SERVER)
    content = packet(VECTORS[0], slot=0, flags=RESULT).payload()
    for source in (star.addresses[3].ipv4, GATEWAY_IPV4):
        assert star.send(0, star.framed(0, content, source=source)) == []
    assert star.events() == {}  # the guard counts them as spoofed


def test_a_server_that_is_no_worker_adds_nothing() -> None:
    star = served(*ONE_SERVER)
    assert send(star, 3, packet(VECTORS[0], worker=0, slot=0)) == []
    assert star.events() == {"strangers": 1}


def test_a_server_on_the_host_of_a_worker_is_both() -> None:
    star = served(*COLOCATED)
    for slot, server in ((0, 0), (16, 1)):
        for worker in range(WORKERS):
            asked = contribute(star, worker, slot=slot)
        assert [host for host, _ in asked] == [server]
        assert [host for host, _ in send(star, server, answered(asked[0][1]))] == [0, 1, 2]
        # The host is the server of its own tree and of no other.
        assert send(star, 1 - server, answered(asked[0][1])) == []


def test_leaves_pass_partial_sums_on_to_the_server_and_results_down() -> None:
    tree = served(*TWO_LEAVES)
    assert send(tree, 0, packet(VECTORS[0], worker=0, slot=0)) == []
    assert send(tree, 2, packet(VECTORS[2], worker=0, slot=0)) == []
    ((server, asked),) = send(tree, 1, packet(VECTORS[1], worker=1, slot=0))
    assert server == 3
    assert (asked.values == TOTAL).all()
    results = send(tree, server, answered(asked))
    assert sorted(host for host, _ in results) == [0, 1, 2]
    assert all((result.values == TOTAL).all() for _, result in results)
    assert [tree.events(name) for name in ("s0", "s1", "s2")] == [
        {"added": 2, "sums completed": 1, "handed down": 1},
        {"added": 2, "sums completed": 1, "handed down": 1},
        {"added": 1, "sums completed": 1, "handed down": 1},
    ]


# The controller


def test_entries_are_written_where_sums_find_their_way(star: SummingNetwork) -> None:
    wanted = prepare(star.plan, ["s0"], Options(), PROGRAM).wanted["s0"]
    own = {aggregate.MEMBERS, aggregate.COPIES, aggregate.SLOTS}
    order = [{entity.place for _, entity in step} & own for step in steps(difference(wanted, []), SCHEMA)]
    assert [places for places in order if places] == [{aggregate.COPIES, aggregate.SLOTS}, {aggregate.MEMBERS}]
    groups = {entity.number: entity.replicas for entity in wanted if isinstance(entity, MulticastEntry)}
    assert groups[aggregate.FIRST_GROUP] == {(0, 1), (1, 2), (2, 3)}


def test_a_plan_that_sums_nowhere_has_no_entries(star: SummingNetwork) -> None:
    plain = replace(star.plan, jobs=tuple(replace(job, sums=()) for job in star.plan.jobs))
    assert list(aggregate.entries(Intent(plain, "s0"))) == []
    places = {
        entity.place
        for entity in prepare(plain, ["s0"], Options(), PROGRAM).wanted["s0"]
        if not isinstance(entity, DefaultEntry)
    }
    assert not places & {aggregate.MEMBERS, aggregate.SLOTS, aggregate.FROM_ABOVE, aggregate.COPIES}


def changed(plan: Plan, **sums: Any) -> Plan:
    (own,) = plan.jobs[0].sums
    return replace(plan, jobs=(replace(plan.jobs[0], sums=(replace(own, **sums),)), *plan.jobs[1:]))


STAR, TREE, SERVED = star_plan(WORKERS), tree_plan(4), served_plan(*ONE_SERVER)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (changed(STAR, pools=(pool(1012, 13),)), "sums in 13 slots from slot 1012 on; accepted: slots 0 to 1023"),
        (changed(STAR, pools=(pool(0, 4), pool(1024, 1))), "sums in 1 slots from slot 1024 on"),
        (
            changed(STAR, switches=(SummingSwitch(0, (0,) * (MOST_CHILDREN + 1)),)),
            "has 65 children at switch s0; accepted: 1 to 64",
        ),
        (changed(STAR, switches=(SummingSwitch(0, ()),)), "has 0 children at switch s0"),
        (changed(STAR, switches=(SummingSwitch(0, (0, 2, 5)),)), "that is not attached to it"),
        (changed(STAR, switches=(SummingSwitch(0, (0, 2)),)), "no tree over its workers"),
        (changed(STAR, switches=(SummingSwitch(0, (0, 2, 2)),)), "no tree over its workers"),
        (changed(STAR, switches=(SummingSwitch(0, (0, 2, 4), up=0),)), "that begins elsewhere"),
        (changed(STAR, switches=(SummingSwitch(0, (0, 2, 4), up=7),)), "no tree over its workers"),
        (changed(TREE, switches=(SummingSwitch(0, (0, 2)), SummingSwitch(1, (4, 6)))), "no tree over its workers"),
        (changed(star_plan(WORKERS, jobs=2), pools=(pool(4, 9),)), "both sum in slot 12 of switch s0"),
        (changed(SERVED, server=2), "whose sums do not end at its server h2"),
        (changed(SERVED, switches=(SummingSwitch(0, (0, 2, 4)),)), "whose sums do not end at its server h3"),
        (changed(SERVED, switches=(SummingSwitch(0, (0, 2), up=7),)), "no tree over its workers"),
    ],
)
def test_a_plan_that_switches_could_not_follow_is_refused_in_one_line(plan: Plan, message: str) -> None:
    with pytest.raises(PlanError, match=message) as error:
        prepare(plan, ["s0"], Options(), PROGRAM)
    assert "\n" not in str(error.value)


def test_jobs_that_share_no_switch_may_share_slots() -> None:
    plan = star_plan(WORKERS, jobs=2)
    prepare(plan, ["s0"], Options(), PROGRAM)
    (other,) = plan.jobs[1].sums
    assert other == SumPlan((SummingSwitch(0, (6, 8, 10)),), (pool(12, 8),))


def test_status_tells_what_became_of_packets_to_sum() -> None:
    plan = star_plan(WORKERS)
    frames = SummingNetwork(plan)
    deployment = prepare(plan, ["s0"], Options(), PROGRAM)
    switch = Switch(lambda port, frame, time_ps: None)
    with service.serve(switch, "127.0.0.1:0", cpu_port=255) as server:
        target = RemoteSwitch("s0", server.address)
        with Connection(target) as connection:
            connection.become_primary()
            reconcile(connection, PROGRAM, deployment.schema, deployment.wanted["s0"])
            assert reconcile(connection, PROGRAM, deployment.schema, deployment.wanted["s0"]).is_empty
            assert "packets to sum: none yet" in status_table(read_status(connection, PROGRAM, deployment.schema))
            for slot in (4, 5):
                for worker in range(WORKERS):
                    switch.receive(worker, frames.frame(worker, packet(VECTORS[worker], worker=worker, slot=slot)), 0)
            status = read_status(connection, PROGRAM, deployment.schema, ["train"])
            assert reconcile(connection, PROGRAM, deployment.schema, deployment.wanted["s0"]).is_empty
    document = status_json({target: status})["switches"][0]
    assert {"event": "sums completed", "packets": 2} in document["sums"]
    assert document["sum_slots"] == [{"job": 0, "name": "train", "slots": 2}]
    assert "sums completed" in status_table(status)
