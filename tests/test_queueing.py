"""Queueing: each discipline against a list that is sorted anew, and SP-PIFO against a sequence worked by hand."""

from __future__ import annotations

import doctest
from operator import lt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress import queueing as module
from tensorexpress.queueing import DISCIPLINES, HOST_ORDERS, Fifo, Pifo, Ranks, Slice, SpPifo, StrictPriority

QUEUES = 4

#: A push of (size, rank), or None for a pop.
STEPS = st.lists(st.one_of(st.none(), st.tuples(st.integers(1, 9000), st.integers(0, QUEUES - 1))), max_size=60)
ANY_RANKS = st.lists(st.integers(-50, 50), max_size=40)


def push(port, item, size, rank):
    """Let an item wait where the discipline puts its rank."""
    return port.push(item, size, port.place(rank))


def run(port, steps):
    """Push and pop; items are numbered in order of arrival. Return what was popped."""
    popped, arrivals = [], 0
    for step in steps:
        if step is not None:
            push(port, arrivals, *step)
            arrivals += 1
        elif len(port):
            popped.append(port.pop())
    return popped


def expected(steps, key):
    """Pop the waiting item with the least (key of rank, arrival)."""
    popped, waiting, arrivals = [], [], 0
    for step in steps:
        if step is not None:
            waiting.append((key(step[1]), arrivals))
            arrivals += 1
        elif waiting:
            popped.append(min(waiting)[1])
            waiting.remove(min(waiting))
    return popped


@given(STEPS)
def test_fifo_keeps_the_order_of_arrival_whatever_the_rank(steps):
    assert run(Fifo(), steps) == expected(steps, key=lambda rank: 0)


@pytest.mark.parametrize("discipline", [StrictPriority, Pifo])
@given(steps=STEPS)
def test_strict_priority_and_pifo_serve_the_lowest_rank_and_equal_ranks_in_order(discipline, steps):
    assert run(discipline(QUEUES), steps) == expected(steps, key=lambda rank: rank)


@given(ANY_RANKS)
def test_a_pifo_takes_any_rank_and_never_compares_items(ranks):
    port = Pifo()
    for rank in ranks:
        port.push((rank, object()), 1, rank)
    assert [port.pop()[0] for _ in ranks] == sorted(ranks)


@pytest.mark.parametrize("name", list(DISCIPLINES))
@given(steps=STEPS)
def test_every_byte_and_item_is_accounted_for(name, steps):
    port, sizes, waiting = DISCIPLINES[name](QUEUES), [], set()
    for step in steps:
        if step is not None:
            before = port.backlog_bytes
            found = push(port, len(sizes), *step)
            assert 0 <= found <= before
            waiting.add(len(sizes))
            sizes.append(step[0])
        elif waiting:
            waiting.remove(port.pop())
        assert port.backlog_bytes == sum(sizes[item] for item in waiting)
        assert len(port) == len(waiting)


@given(steps=STEPS)
def test_a_push_tells_the_bytes_of_the_queue_it_joined(steps):
    port = StrictPriority(QUEUES)
    for size, rank in filter(None, steps):
        of_same_rank = sum(size for queued_rank, size in waiting_of(port) if queued_rank == rank)
        assert port.push((rank, size), size, rank) == of_same_rank


def waiting_of(port):
    """Return what waits, by taking everything out and putting it back."""
    items = [port.pop() for _ in range(len(port))]
    for rank, size in items:
        port.push((rank, size), size, rank)
    return items


@pytest.mark.parametrize("name", list(DISCIPLINES))
def test_an_empty_port_has_nothing_to_pop(name):
    port = DISCIPLINES[name](QUEUES)
    with pytest.raises(IndexError):
        port.pop()
    push(port, "only", 100, 1)
    assert port.pop() == "only"
    with pytest.raises(IndexError):
        port.pop()
    assert (len(port), port.backlog_bytes) == (0, 0)


def test_sp_pifo_maps_ranks_to_queues_as_worked_by_hand():
    """Two queues with bounds (q0, q1), from (0, 0).

    rank 3 reaches q1's bound 0: q1, bounds (0, 3). Rank 1 reaches only q0's: q0, (1, 3). Rank 5: q1, (1, 5). Rank 0 is
    below both: q0, an inversion of 1 - 0 = 1, so all bounds fall by 1: (0, 4). Rank 4 now reaches q1's: q1, (0, 4).
    Rank 2: q0, (2, 4).
    """
    port = SpPifo(2)
    bounds = []
    for rank in (3, 1, 5, 0, 4, 2):
        push(port, rank, 100, rank)
        bounds.append(tuple(port.bounds))
    assert bounds == [(0, 3), (1, 3), (1, 5), (0, 4), (0, 4), (2, 4)]
    assert [port.pop() for _ in range(6)] == [1, 0, 2, 3, 5, 4]


@given(ANY_RANKS, st.integers(1, 8))
def test_sp_pifos_bounds_stay_in_order(ranks, queues):
    port = SpPifo(queues)
    for rank in ranks:
        push(port, rank, 1, rank)
        assert port.bounds == sorted(port.bounds)
        assert rank in port.bounds


@given(ANY_RANKS)
def test_sp_pifo_with_one_queue_is_a_fifo(ranks):
    port = SpPifo(1)
    for index, rank in enumerate(ranks):
        push(port, index, 1, rank)
    assert [port.pop() for _ in ranks] == list(range(len(ranks)))


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 8))
def test_sp_pifo_keeps_ranks_that_arrive_sorted_sorted(ranks, queues):
    port = SpPifo(queues)
    for rank in sorted(ranks):
        push(port, rank, 1, rank)
    assert [port.pop() for _ in ranks] == sorted(ranks)


@given(st.sets(st.integers(1, 50), max_size=8))
def test_sp_pifo_sorts_distinct_falling_ranks_into_a_queue_each(ranks):
    port = SpPifo(max(1, len(ranks)))
    for rank in sorted(ranks, reverse=True):
        push(port, rank, 1, rank)
    assert [port.pop() for _ in ranks] == sorted(ranks)


def test_codes_in_the_compiled_engines_are_unique_and_never_inherited():
    for registry in (DISCIPLINES, HOST_ORDERS):
        codes = [entry.code for entry in registry.values()]
        assert sorted(codes) == list(range(len(registry)))

    class Mine(StrictPriority):
        """Does something that neither the compiled engine nor a switch knows."""

    assert (Mine.code, Mine.deployment) == (None, None)
    assert (Mine.ranks, Mine.keeps_order, Mine.has_queues) == (Ranks.QUEUE, True, True)


@pytest.mark.parametrize("name", list(DISCIPLINES))
def test_a_place_is_a_queue_where_there_are_queues(name):
    port = DISCIPLINES[name](QUEUES)
    for rank in (3, 0, 2, 2, 1):
        assert port.place(rank) in range(QUEUES)
    if DISCIPLINES[name].has_queues:
        with pytest.raises(IndexError):
            port.push("beyond", 1, QUEUES)


@pytest.mark.parametrize(
    ("name", "rank", "flow_class"), [("fifo", 7, 0), ("strict", 2, 2), ("sp-pifo", 7, 9), ("pifo", 7, 9)]
)
def test_what_a_discipline_tells_apart_is_the_class_of_a_flow(name, rank, flow_class):
    discipline = DISCIPLINES[name]
    assert discipline.rank_of(queue=2, rank=7) == rank
    assert discipline.class_of(queue=2, tensor=9) == flow_class


def test_host_orders_look_at_readiness_or_deadline_whatever_the_layer():
    early = Slice(ready_ps=1, rank=0, bytes=1, deadline_ps=7)
    urgent = Slice(ready_ps=2, rank=9, bytes=1, deadline_ps=5)
    assert min([urgent, early], key=HOST_ORDERS["fifo"].key) is early
    assert min([urgent, early], key=HOST_ORDERS["priority"].key) is urgent


def test_random_order_follows_neither_layers_nor_readiness():
    key = HOST_ORDERS["random"].key
    keys = [key(Slice(number, number, 1, number, iteration=3, number=number)) for number in range(200)]
    assert len(set(keys)) == 200
    assert 70 < sum(map(lt, keys, keys[1:])) < 130
    # Another iteration is another order, and the time of day is not.
    again = [key(Slice(number + 9, number, 1, number, iteration=4, number=number)) for number in range(200)]
    assert sorted(range(200), key=keys.__getitem__) != sorted(range(200), key=again.__getitem__)
    assert key(Slice(1, 2, 3, 4, 5, 6)) == key(Slice(7, 2, 3, 8, 5, 6))


def test_doctests():
    assert doctest.testmod(module).failed == 0
