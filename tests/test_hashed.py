"""Cells found by hash: what the P4 program does with packets that say whose values are in them, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.deployed import PROGRAM
from support.hashed_switch import compare_with_rules
from support.summing import (
    COLOCATED,
    DUMBBELL,
    ONE_SERVER,
    TWO_JOBS,
    TWO_LEAVES,
    TWO_SERVERS,
    SummingNetwork,
    SumPacket,
    Values,
    hashed_plan,
    packet,
    parse,
    pool,
    served_plan,
)
from support.thorough import rest

from tensorexpress.addresses import GATEWAY_IPV4, GATEWAY_MAC
from tensorexpress.control import aggregate, classify, hashed
from tensorexpress.control.deploy import prepare
from tensorexpress.control.intent import Options
from tensorexpress.errors import PlanError
from tensorexpress.p4 import define
from tensorexpress.plan import Plan
from tensorexpress.sums import VALUES, cell_of
from tensorexpress.switch.operations import ReadCounter, ReadRegister, WriteRegister
from tensorexpress.wire.header import HEADER_BYTES, Flag, Kind
from tensorexpress.wire.sum_header import CHECK_MODULUS, SumFlag, check_of

RESULT, OVERFLOW, AGAIN = SumFlag.RESULT, SumFlag.OVERFLOW, Flag.RETRANSMITTED
SERVER, STRANGER = 3, 4
ALL = 0b111
MICROSECOND_PS = 10**6

VECTORS: list[Values] = [
    np.random.default_rng(seed).integers(-(2**28), 2**28, VALUES, dtype=np.int32) for seed in range(8)
]


def total(workers: int) -> Values:
    return sum((VECTORS[worker] for worker in range(8) if workers >> worker & 1), np.zeros(VALUES, np.int32))


def star(cells: int = 1, words: tuple[str, ...] = ONE_SERVER, **chosen: str) -> SummingNetwork:
    return SummingNetwork(hashed_plan(*words, cells=cells, **chosen))


def send(network: SummingNetwork, host: int, content: SumPacket) -> list[tuple[int, SumPacket]]:
    return [(to, parse(frame)) for to, frame in network.send(host, network.frame(host, content))]


def part(worker: int, sequence: int = 0, *, pool: int = 0, **fields: Any) -> SumPacket:
    """Return what a worker of the star sends; its packet is that of its sequence number."""
    usual = {"turn": sequence, "slot": pool, "workers": 1 << worker, "chunk": sequence, "iteration": 9}
    return packet(VECTORS[worker], worker=worker, **{**usual, **fields})


def contribute(network: SummingNetwork, worker: int, sequence: int = 0, **fields: Any) -> list[tuple[int, SumPacket]]:
    return send(network, worker, part(worker, sequence, **fields))


def goes_up(sent: list[tuple[int, SumPacket]], workers: int, *, again: bool = False, sequence: int = 0) -> SumPacket:
    """One packet reaches the server: the sum of some workers."""
    ((host, found),) = sent
    assert host == SERVER
    assert (found.header.kind, found.sums.workers, found.sums.flags) == (Kind.PART, workers, 0)
    assert (found.values == total(workers)).all()
    assert found.sums.check == check_of(found.values)
    assert (found.header.iteration, found.header.chunk, found.sums.turn) == (9, sequence, sequence)
    assert found.header.flags == (AGAIN if again else 0)
    return found


def result(sequence: int = 0, *, pool: int = 0, **fields: Any) -> SumPacket:
    values = total(ALL)
    usual = {"turn": sequence, "slot": pool, "workers": ALL, "chunk": sequence, "iteration": 9, "flags": RESULT}
    return packet(values, **{**usual, **fields})


def owners(network: SummingNetwork, name: str = "s0") -> list[int]:
    """Return the cells that somebody holds."""
    (cells,) = network.switches[name].ask([ReadRegister(f"TensorIngress.{aggregate.OWNERS}", None)])
    return [cell for cell, owner in enumerate(cells) if owner]


# Cells


@pytest.mark.parametrize("cells", [1, 2, 7, 946, define.SUM_CELLS])
def test_switches_and_python_find_the_same_cell(cells: int) -> None:
    network = star(cells, TWO_SERVERS)
    for number, sequence in ((0, 0), (1, 0), (2, 1), (3, 2**31), (0, 2**32 - 1), (3, 0x12345678)):
        before = set(owners(network))
        found = contribute(network, 0, sequence, pool=number)
        cell = cell_of(0, number, sequence, cells)
        assert set(owners(network)) == before | {cell}
        assert bool(found) == (cell in before)


# Taking, adding, completing


def test_the_sum_of_all_goes_up_once_and_is_kept_until_the_result_frees_it() -> None:
    network = star()
    assert contribute(network, 1, needed=3) == contribute(network, 0, needed=-4, culprit=2) == []
    found = goes_up(contribute(network, 2), ALL)
    assert (found.sums.exponent, found.sums.needed, found.sums.culprit, found.header.worker) == (1, 3, 2, 0)
    assert owners(network) == [0]
    assert contribute(network, 2) == []  # a late duplicate
    results = send(network, SERVER, result())
    assert [host for host, _ in results] == [0, 1, 2]
    for host, answer in results:
        assert (answer.values == total(ALL)).all()
        assert (answer.header.kind, answer.sums.workers, answer.sums.flags) == (Kind.PART, ALL, RESULT)
        assert answer.header.worker == host
    assert owners(network) == []
    assert network.events() == {
        "added": 3,
        "sums completed": 1,
        "duplicates dropped": 1,
        "handed down": 1,
        "freed by results": 1,
    }


def test_what_goes_up_is_addressed_to_the_server() -> None:
    network = star()
    for worker in range(3):
        sent = network.send(worker, network.frame(worker, part(worker, slack_us=70 + worker, queue=worker)))
    ((_, frame),) = sent
    own = network.addresses[SERVER]
    assert frame[:12] == own.mac + GATEWAY_MAC
    assert frame[26:38] == GATEWAY_IPV4.packed + own.ipv4.packed + define.TENSOR_PORT.to_bytes(2, "big") * 2
    assert frame[22] == 64
    assert (parse(frame).header.slack_us, parse(frame).header.queue) == (72, 2)


def test_results_of_others_free_nothing() -> None:
    network = star()
    contribute(network, 0, 5)
    for other in (result(6), result(5, pool=1), result(5, epoch=8)):
        assert len(send(network, SERVER, other)) == 3
        assert owners(network) == [0]
    assert len(send(network, SERVER, result(5))) == 3
    assert owners(network) == []
    assert network.events() == {"added": 1, "handed down": 4, "freed by results": 1}


def test_a_duplicate_before_the_sum_is_dropped() -> None:
    network = star()
    contribute(network, 0)
    assert contribute(network, 0) == []
    contribute(network, 1)
    assert contribute(network, 0) == []
    goes_up(contribute(network, 2), ALL)
    assert network.events() == {"added": 3, "sums completed": 1, "duplicates dropped": 2}


@pytest.mark.parametrize("other", [{"iteration": 8}, {"tensor": 1}, {"chunk": 7}, {"exponent": 2}])
def test_what_is_of_another_packet_is_never_added(other: dict[str, int]) -> None:
    network = star()
    contribute(network, 0)
    assert contribute(network, 1, **other) == []
    assert network.events() == {"added": 1, "mismatches": 1}
    contribute(network, 1)
    goes_up(contribute(network, 2), ALL)


def test_overflow_is_told_in_what_goes_up() -> None:
    network, most = star(), np.full(VALUES, 2**31 - 1, np.int32)
    for worker in range(3):
        sent = send(network, worker, replace(part(worker, check=CHECK_MODULUS - 1), values=most))
    assert (sent[0][1].sums.flags, sent[0][1].sums.check) == (OVERFLOW, CHECK_MODULUS - 3)
    assert network.events()["overflows"] == 1
    # And where it is flushed.
    flushed = send(network, 1, replace(part(1, sent_again=1), values=most))
    assert (flushed[0][1].sums.flags, flushed[0][1].sums.workers) == (OVERFLOW, ALL)


# Flushing


def test_what_is_sent_again_is_merged_with_what_is_there_and_goes_on() -> None:
    network = star()
    contribute(network, 0, needed=5)
    found = goes_up(contribute(network, 2, sent_again=1), 0b101, again=True)
    assert found.sums.needed == 5
    assert owners(network) == []
    assert network.events() == {"added": 2, "flushed": 1}


def test_what_is_sent_again_and_is_there_already_makes_all_of_it_go_on() -> None:
    network = star()
    contribute(network, 0, culprit=3)
    contribute(network, 1, needed=2)
    found = goes_up(contribute(network, 0, sent_again=1), 0b011, again=True)
    assert (found.sums.needed, found.sums.culprit) == (2, 3)
    assert owners(network) == []
    assert network.events() == {"added": 2, "flushed": 1}


def test_a_complete_sum_that_was_lost_goes_up_again() -> None:
    network = star()
    for worker in range(3):
        contribute(network, worker)
    goes_up(contribute(network, 1, sent_again=1), ALL, again=True)
    assert owners(network) == []
    # Nothing is there any more: the next one goes on alone.
    goes_up(contribute(network, 2, sent_again=1), 0b100, again=True)
    assert network.events() == {"added": 3, "sums completed": 1, "flushed": 1, "passed on as they were": 1}


def test_what_is_sent_again_is_never_held() -> None:
    network = star(2)
    goes_up(contribute(network, 0, sent_again=1), 0b001, again=True)
    assert owners(network) == []
    contribute(network, 1, 1, pool=1)
    (cell,) = owners(network)
    other = next(sequence for sequence in range(99) if cell_of(0, 0, sequence, 2) == cell)
    network.now_ps = 10**13
    goes_up(contribute(network, 0, other, sent_again=1), 0b001, again=True, sequence=other)
    assert owners(network) == [cell]
    assert network.events() == {"added": 1, "passed on as they were": 2}


def test_flags_that_have_no_name_are_not_passed_on() -> None:
    network = star()
    content = part(0, flags=0xFC)
    content = replace(content, header=replace(content.header, flags=0xFF))
    goes_up(send(network, 0, content), 0b001, again=True)


# Collisions and evictions


def test_who_finds_a_cell_taken_goes_on_alone() -> None:
    network = star()
    contribute(network, 0, 5)
    goes_up(contribute(network, 1, 6), 0b010, sequence=6)
    goes_up(contribute(network, 1, 5, pool=1), 0b010, sequence=5)
    contribute(network, 1, 5)
    goes_up(contribute(network, 2, 5), ALL, sequence=5)
    # A complete sum waits for its result, and others still go on alone.
    goes_up(contribute(network, 0, 6), 0b001, sequence=6)
    assert network.events() == {"added": 3, "sums completed": 1, "collisions": 3, "passed on as they were": 3}


def test_a_more_urgent_class_takes_the_cell_and_what_was_there_goes_on() -> None:
    network = star()
    contribute(network, 0, 5, pool=1, slack_us=-7, queue=6, tensor=3, needed=4, culprit=1, chunks=77, exponent=-3)
    contribute(network, 1, 5, pool=1, slack_us=99, queue=1, tensor=3, exponent=-3)
    found = goes_up(contribute(network, 2, 6, slack_us=1000), 0b011, again=True, sequence=5)
    assert (found.header.tensor, found.header.chunks, found.header.queue, found.header.slack_us) == (3, 77, 6, -7)
    assert (found.sums.slot, found.sums.exponent, found.sums.needed, found.sums.culprit) == (1, -3, 4, 1)
    assert (found.header.job, found.sums.epoch) == (0, 7)
    assert network.events() == {"added": 3, "evictions": 1}
    # The cell is that of the urgent one now, from the beginning.
    contribute(network, 0, 6)
    goes_up(contribute(network, 1, 6), ALL, sequence=6)
    # The other one goes on alone: it is less urgent.
    goes_up(contribute(network, 2, 5, pool=1, tensor=3, exponent=-3), 0b100, sequence=5)


def test_the_same_class_and_policies_that_do_not_order_take_nobodys_cell() -> None:
    for network in (star(), star(policy="atp")):
        contribute(network, 0, 5, pool=1)
        goes_up(contribute(network, 1, 6, pool=1), 0b010, sequence=6)
    goes_up(contribute(network, 1, 6), 0b010, sequence=6)
    assert "evictions" not in network.events()


def test_a_complete_sum_is_overwritten_and_not_sent_again() -> None:
    network = star()
    for worker in range(3):
        contribute(network, worker, 5, pool=1)
    assert contribute(network, 0, 6) == []
    assert network.events() == {"added": 4, "sums completed": 1, "evictions": 1}
    contribute(network, 1, 6)
    goes_up(contribute(network, 2, 6), ALL, sequence=6)


def test_who_is_too_old_is_evicted_by_anybody() -> None:
    network = star(policy="atp")
    network.now_ps = 5 * MICROSECOND_PS
    contribute(network, 0, 5)
    network.now_ps += define.SUM_AGE * MICROSECOND_PS
    goes_up(contribute(network, 1, 6, pool=1), 0b010, sequence=6)
    network.now_ps += MICROSECOND_PS
    goes_up(contribute(network, 1, 6, pool=1), 0b001, again=True, sequence=5)
    assert contribute(network, 2, 6, pool=1) == []
    assert network.events() == {"added": 3, "collisions": 1, "passed on as they were": 1, "evictions": 1}


def test_adding_does_not_make_a_cell_younger() -> None:
    network = star(policy="atp")
    contribute(network, 0, 5)
    network.now_ps = define.SUM_AGE * MICROSECOND_PS
    contribute(network, 1, 5)
    network.now_ps += MICROSECOND_PS
    goes_up(contribute(network, 0, 6), 0b011, again=True, sequence=5)


def offered(network: SummingNetwork) -> dict[tuple[int, int], int]:
    """Return how many packets of which slot of meters and counters were sent to which queue."""
    (cells,) = network.switches["s0"].ask([ReadCounter(f"TensorIngress.{classify.OFFERED}", None)])
    return {divmod(cell, 8): packets for cell, (packets, _) in enumerate(cells) if packets}


def test_the_evicted_goes_the_way_of_its_own_job() -> None:
    """Job 0 has hosts 0 to 2 and server 3, job 1 has hosts 4 to 6 and server 7."""
    network = star(words=TWO_JOBS)
    assert [job.sums[0].server for job in network.plan.jobs] == [3, 7]
    urgent, other = network.plan.jobs[0].queues[0], network.plan.jobs[1].queues[-1]
    assert urgent < other
    last = len(network.plan.jobs[1].queues) - 1
    assert send(network, 4, replace_job(part(0, 5, pool=1, tensor=last), 1)) == []
    ((host, frame),) = network.send(2, network.frame(2, part(2, 6, tensor=0)))
    found = parse(frame)
    assert (host, found.header.job, found.header.tensor, found.sums.workers) == (7, 1, last, 1)
    assert (found.values == VECTORS[0]).all()
    assert frame[30:34] == network.addresses[7].ipv4.packed
    # It waits in the queue of its own tensor, and is counted as its own job's.
    assert frame[15] >> 2 == network.plan.dscps[other]
    assert offered(network) == {(2, other): 1}


def over_rate(job: int) -> SummingNetwork:
    """Return a switch at which a job has sent more than it may."""
    plan = hashed_plan(*TWO_JOBS, cells=1)
    network = SummingNetwork(plan, Options(limits={plan.jobs[job].job.name: 8}))
    for _ in range(600):
        contribute_to(network, job, pool=9)
    return network


def contribute_to(network: SummingNetwork, job: int, **fields: Any) -> list[tuple[int, bytes]]:
    """Let the first worker of a job send a packet."""
    return network.send(4 * job, network.frame(4 * job, replace_job(part(0, **fields), job)))


@pytest.mark.parametrize(("limited", "best_effort"), [(0, False), (1, True)])
def test_a_job_over_its_rate_does_not_take_others_with_it(limited: int, best_effort: bool) -> None:
    network = over_rate(limited)
    assert contribute_to(network, 1, pool=1) == []
    ((_, frame),) = contribute_to(network, 0)
    assert parse(frame).header.job == 1
    queue = network.plan.scenario.cluster.queues - 1 if best_effort else network.plan.jobs[1].queues[0]
    assert frame[15] >> 2 == network.plan.dscps[queue]


def replace_job(content: SumPacket, job: int) -> SumPacket:
    return replace(content, header=replace(content.header, job=job))


# Epochs


def test_a_later_run_takes_the_cells_of_the_dead_one_and_what_is_late_is_dropped() -> None:
    network = star()
    contribute(network, 0, 5)
    assert contribute(network, 1, 4, epoch=8) == []
    assert contribute(network, 2, 5) == contribute(network, 2, 5, sent_again=1) == []
    contribute(network, 0, 4, epoch=8)
    goes_up(contribute(network, 2, 4, epoch=8), ALL, sequence=4)
    assert network.events() == {"added": 4, "late": 2, "sums completed": 1}


@pytest.mark.parametrize(("before", "after"), [(7, 8), (2**32 - 1, 0), (2**31 - 1, 2**31)])
def test_epochs_go_on_beyond_their_end(before: int, after: int) -> None:
    network = star()
    contribute(network, 0, epoch=before)
    goes_up(contribute(network, 1, epoch=after, sent_again=1), 0b010, again=True)
    assert owners(network) == []
    contribute(network, 0, epoch=after)
    assert contribute(network, 1, epoch=before) == []
    assert network.events()["late"] == 1


def test_another_job_is_never_late() -> None:
    network = star(words=TWO_JOBS)
    contribute(network, 0, 5, epoch=100)
    ((host, _),) = send(network, 4, replace_job(part(0, 6, epoch=1), 1))
    assert host == 7
    assert network.events() == {"added": 1, "collisions": 1, "passed on as they were": 1}


@pytest.mark.parametrize("job", [0, 1])
def test_what_a_plan_with_slots_left_in_a_cell_is_nobodys(job: int) -> None:
    network = star(words=TWO_JOBS)
    # Job 0 or 1, a later epoch, some turn: as kind 4 leaves it.
    left = WriteRegister(f"TensorIngress.{aggregate.OWNERS}", 0, (job + 1) << 64 | 9 << 32 | 5)
    network.switches["s0"].apply([left])
    network.now_ps = 10**13
    assert contribute(network, 0) == []
    assert network.events() == {"added": 1}


def test_a_slot_is_none_of_a_cell_that_was_found_by_hash() -> None:
    network = SummingNetwork(served_plan(*ONE_SERVER))
    left = [
        WriteRegister(f"TensorIngress.{aggregate.OWNERS}", 0, 1 << 72 | 1 << 64 | 7 << 32),
        WriteRegister(f"TensorIngress.{aggregate.SEEN}", 0, 0b110),
    ]
    network.switches["s0"].apply(left)
    assert send(network, 0, packet(VECTORS[0], worker=0, slot=0)) == []
    assert network.events() == {"added": 1}


# Who may add


def refused(network: SummingNetwork, host: int, content: SumPacket, event: str) -> None:
    held, before = owners(network), network.events()
    assert send(network, host, content) == []
    assert owners(network) == held
    after = network.events()
    assert after.pop(event) == before.pop(event, 0) + 1
    assert after == before


@pytest.mark.parametrize("workers", [0b010, 0b011, 0b1001, ALL, 2**63])
def test_nobody_speaks_for_other_workers(workers: int) -> None:
    refused(star(), 0, part(0, workers=workers), "strangers")


def test_values_of_nobody_are_a_strangers() -> None:
    network, content = star(), part(0)
    payload = content.header.pack() + bytes(8) + content.payload()[HEADER_BYTES + 8 :]
    assert network.send(0, network.framed(0, payload)) == []
    assert network.events() == {"strangers": 1}


def test_only_members_add_and_only_the_server_answers() -> None:
    network = star()
    refused(network, 0, part(1), "strangers")
    refused(network, SERVER, part(0), "strangers")
    refused(network, 0, part(0, pool=2), "slots out of range")
    for host in range(3):
        refused(network, host, replace(result(), header=part(host).header), "strangers")
    refused(network, STRANGER, part(0), "strangers")


def test_kinds_do_not_stand_in_for_each_other() -> None:
    """A slot of kind 4 would be anybody's cell."""
    network = star()
    contribute(network, 0)
    assert send(network, 0, packet(VECTORS[0], worker=0, slot=0)) == []
    front = SummingNetwork(served_plan(*ONE_SERVER))
    assert contribute(front, 0) == []
    assert front.events() == {"slots out of range": 1}
    assert network.events() == {"added": 1, "slots out of range": 1}
    goes_up(contribute(network, 0, sent_again=1), 0b001, again=True)


def test_a_host_that_is_worker_and_server_is_both() -> None:
    network = star(words=COLOCATED, cells=64)
    for number, server in ((0, 0), (2, 1)):
        for worker in range(3):
            sent = contribute(network, worker, pool=number)
        assert [host for host, _ in sent] == [server]
        assert [host for host, _ in send(network, server, result(pool=number))] == [0, 1, 2]
        assert send(network, 1 - server, result(pool=number)) == []


@pytest.mark.parametrize("extra", [-8, -1, 1, 8])
def test_a_packet_of_another_size_is_none(extra: int) -> None:
    network, content = star(), part(0)
    payload = content.payload() + bytes(max(extra, 0))
    size = content.header.payload_bytes + extra
    header = replace(content.header, payload_bytes=size).pack()
    assert network.send(0, network.framed(0, header + payload[HEADER_BYTES : HEADER_BYTES + size])) == []
    if extra > 0:
        assert network.send(0, network.frame(0, content) + bytes(extra)) == []
    else:
        assert network.send(0, network.frame(0, content)[:extra]) == []
    assert network.events() == {"malformed": 2}


@pytest.mark.parametrize("place", [40, 60, 75, 80, 85, 100, 1121])
def test_a_damaged_packet_never_touches_a_cell(place: int) -> None:
    network = star()
    frame = network.frame(0, part(0))
    assert network.send(0, frame[:place] + bytes([frame[place] ^ 64]) + frame[place + 1 :]) == []
    assert owners(network) == []
    assert network.events() == {}


# Levels: hosts 0 and 1 are at s0, worker 2 and the server at s1.


def leaf(worker: int, sequence: int = 0, **fields: Any) -> SumPacket:
    content = part(worker, sequence, **fields)
    return replace(content, header=replace(content.header, worker=worker % 2))


def test_levels_add_up_what_their_children_have() -> None:
    tree = star(words=TWO_LEAVES)
    assert send(tree, 0, leaf(0)) == send(tree, 2, leaf(2)) == []
    goes_up(send(tree, 1, leaf(1)), ALL)
    assert sorted(host for host, _ in send(tree, SERVER, result())) == [0, 1, 2]
    assert [tree.events(name) for name in ("s0", "s1", "s2")] == [
        {"added": 2, "sums completed": 1, "handed down": 1, "freed by results": 1},
        {"added": 2, "sums completed": 1, "handed down": 1, "freed by results": 1},
        {"passed on as they were": 1, "handed down": 1},
    ]


def test_what_is_sent_again_flushes_every_level() -> None:
    tree = star(words=TWO_LEAVES)
    send(tree, 0, leaf(0))
    send(tree, 2, leaf(2))
    goes_up(send(tree, 0, leaf(0, sent_again=1)), 0b101, again=True)
    assert [owners(tree, name) for name in ("s0", "s1", "s2")] == [[], [], []]


def test_sets_that_overlap_are_not_added() -> None:
    tree = star(words=DUMBBELL)
    # Worker 0 goes on alone, because another packet is there; the root holds it.
    send(tree, 1, leaf(1, 8))
    assert send(tree, 0, leaf(0)) == []
    assert owners(tree, "s1") == [0]
    # Then the leaf has both, of which the root has one.
    goes_up(send(tree, 1, leaf(1, 8, sent_again=1)), 0b010, again=True, sequence=8)
    send(tree, 1, leaf(1))
    goes_up(send(tree, 0, leaf(0)), 0b011)
    assert tree.events("s1")["passed on as they were"] == 2
    # What the root holds is still right.
    goes_up(send(tree, 2, leaf(2, sent_again=1)), 0b101, again=True)


def test_a_set_within_what_is_there_is_a_duplicate() -> None:
    tree = star(words=DUMBBELL)
    send(tree, 1, leaf(1, 8))
    send(tree, 0, leaf(0))
    assert send(tree, 0, leaf(0)) == []
    assert tree.events("s1") == {"added": 1, "duplicates dropped": 1}


def test_a_leaf_sends_for_its_own_workers_alone() -> None:
    tree = star(words=DUMBBELL)
    links = tree.plan.scenario.cluster.ports("s1")
    from_leaf = next(port for port, link in links.items() if link == 9)
    for workers, held in ((0b100, []), (0b111, []), (0b011, [0])):
        assert tree.pass_one("s1", from_leaf, tree.frame(0, part(1, workers=workers))) == []
        assert owners(tree, "s1") == held
    assert tree.events("s1") == {"strangers": 2, "added": 1}


# The controller


def changed(plan: Plan, **sums: Any) -> Plan:
    return replace(
        plan, jobs=tuple(replace(job, sums=(replace(job.sums[0], **sums), *job.sums[1:])) for job in plan.jobs)
    )


PLAN = hashed_plan(*TWO_SERVERS, cells=8)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (changed(PLAN, cells=define.SUM_CELLS + 1), "finds its slots among 2049 cells; accepted: 1 to 2048"),
        (changed(PLAN, cells=-1), "finds its slots among -1 cells"),
        (changed(PLAN, pools=(pool(2, 2),)), "has pools with the numbers 2, 2, 3; accepted: a number of its own"),
        (changed(PLAN, pools=(pool(2**16, 2),)), "has pools with the numbers 65536, 2, 3"),
        (changed(PLAN, cells=0), "only one finds its slots by hash"),
    ],
)
def test_a_plan_that_switches_could_not_follow_is_refused_in_one_line(plan: Plan, message: str) -> None:
    with pytest.raises(PlanError, match=message) as error:
        prepare(plan, ["s0"], Options(), PROGRAM)
    assert "\n" not in str(error.value)


def test_a_link_brings_the_workers_behind_it() -> None:
    plan = hashed_plan(*TWO_LEAVES)
    (sums,) = plan.jobs[0].sums
    links = plan.scenario.cluster.directed()
    behind = {
        link: hashed.workers_behind(link, sums, (0, 1, 2), links) for own in sums.switches for link in own.children
    }
    assert behind == {0: 0b001, 2: 0b010, 4: 0b100, 8: 0b011, 11: 0b011}


# All rules at once

ORDERED = "tensorexpress:sum=hashed"
#: Two jobs of which each child is one worker, and a switch with another one below it.
MANY, ABOVE = hashed_plan(*TWO_JOBS, cells=3), hashed_plan(*DUMBBELL, cells=2)


@rest(but=6)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("plan", "name"),
    [(MANY, "s0"), (hashed_plan(*TWO_JOBS, cells=2, policy="atp"), "s0"), (ABOVE, "s0"), (ABOVE, "s1")],
    ids=["two jobs", "atp", "below", "above"],
)
def test_the_program_does_what_the_rules_say(plan: Plan, name: str, seed: int) -> None:
    events = compare_with_rules(PROGRAM, plan, name, seed)
    assert set(events) >= set(aggregate.EVENT_NAMES.values()) - {"duplicates answered", "malformed"}
