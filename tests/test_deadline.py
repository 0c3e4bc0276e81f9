"""Deadlines: closed forms against a fluid simulation, the queue map against enumeration, bounds against random runs."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Iterator
from fractions import Fraction
from heapq import heappop, heappush
from itertools import combinations, pairwise
from operator import sub
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.bounds import forced_ps
from support.thorough import examples

from tensorexpress import deadline
from tensorexpress.bound import Demand
from tensorexpress.chain import Chain
from tensorexpress.deadline import (
    blocking_ps,
    completions_ps,
    deadlines,
    equal_map,
    fewest_map,
    fifo_iteration_ps,
    largest_gain,
    lower_bound_ps,
    optimal_iteration_ps,
    partition_iteration_ps,
    queue_map,
    regret_ps,
    slacks,
)
from tensorexpress.errors import InputError
from tensorexpress.trace import TRANSFER, JobTrace

Case = tuple[list[int], list[int], list[int]]
Link = tuple[str, int]
#: A message by its number, or ("gradient" or "gate", worker, layer).
Node = int | tuple[str, int, int]
#: What each link has yet to carry, by urgency: iteration and message.
Waiting = dict[Link, list[tuple[float, int, int]]]

BYTESCHEDULER = ([2, 2, 2], [2, 2, 2], [3, 6, 3])


@st.composite
def training(draw: st.DrawFn, most_layers: int = 12) -> Case:
    """Forward, backward and transfer times; zeros and ties are common, scales of the three differ."""
    layers = draw(st.integers(1, most_layers))

    def times() -> list[int]:
        largest = draw(st.sampled_from([1, 3, 10, 100, 10**12]))
        return draw(st.lists(st.integers(0, largest), min_size=layers, max_size=layers))

    return times(), times(), times()


def partitions(layers: int, queues: int) -> Iterator[list[int]]:
    """Every contiguous map from layers to exactly this many queues."""
    for cuts in combinations(range(1, layers), queues - 1):
        bounds = [0, *cuts, layers]
        yield [queue for queue, (a, b) in enumerate(pairwise(bounds)) for _ in range(a, b)]


def inversion_ps(transfer: list[int], queue_of: list[int]) -> int:
    layers = range(len(transfer))
    return sum(transfer[late] for late in layers for early in range(late) if queue_of[early] == queue_of[late])


def test_the_examples_in_the_docstrings_and_the_page_hold() -> None:
    page = Path(__file__).parent.parent / "docs" / "deadlines.md"
    for results in (doctest.testmod(deadline), doctest.testfile(str(page), module_relative=False)):
        assert results.attempted
        assert not results.failed


@given(training())
def test_a_slack_is_the_time_from_gradient_to_deadline(case: Case) -> None:
    forward, backward, _ = case
    ready = [sum(forward) + sum(backward[layer:]) for layer in range(len(forward))]
    left = zip(deadlines(forward, backward), ready, strict=True)
    assert slacks(forward, backward) == tuple(due - start for due, start in left)


def test_bytescheduler_example_has_the_fluid_bound_17() -> None:
    assert optimal_iteration_ps(*BYTESCHEDULER) == 17
    assert blocking_ps(*BYTESCHEDULER[:2], 17) == 5


@settings(max_examples=examples(1000), deadline=None)
@given(training())
def test_closed_forms_equal_the_fluid_at_one_queue_and_at_one_queue_per_layer(
    case: Case,
) -> None:
    layers = len(case[0])
    assert fifo_iteration_ps(*case) == partition_iteration_ps(*case, [0] * layers)
    assert optimal_iteration_ps(*case) == partition_iteration_ps(*case, range(layers))


@given(training(), st.randoms(use_true_random=False))
def test_no_priorities_beat_the_optimum_and_all_send_the_same_work(case: Case, random: Random) -> None:
    queue_of = [random.randrange(4) for _ in case[0]]
    assert partition_iteration_ps(*case, queue_of) >= optimal_iteration_ps(*case)
    _, backward, transfer = case
    assert max(completions_ps(backward, transfer, queue_of)) == max(
        completions_ps(backward, transfer, [0] * len(transfer))
    )


@given(training())
def test_ordering_gains_at_most_one_forward_pass(case: Case) -> None:
    forward, backward, _ = case
    optimum = optimal_iteration_ps(*case)
    assert sum(forward) + sum(backward) <= optimum <= fifo_iteration_ps(*case) <= optimum + sum(forward)
    if optimum:
        assert Fraction(fifo_iteration_ps(*case), optimum) <= largest_gain(forward, backward)


def test_the_largest_gain_is_approached() -> None:
    forward, backward, transfer = [10**6, 0], [10**6, 0], [1, 2 * 10**6]
    fifo, optimum = (f(forward, backward, transfer) for f in (fifo_iteration_ps, optimal_iteration_ps))
    assert 0 < largest_gain(forward, backward) - Fraction(fifo, optimum) < Fraction(1, 10**6)


@settings(max_examples=examples(400), deadline=None)
@given(training(most_layers=8), st.integers(1, 9))
def test_the_queue_map_is_the_best_of_all_contiguous_maps(case: Case, queues: int) -> None:
    used = min(queues, len(case[0]))
    found = queue_map(*case, queues)
    every = [
        (partition_iteration_ps(*case, queue_of), inversion_ps(case[2], queue_of))
        for queue_of in partitions(len(case[0]), used)
    ]
    assert found.iteration_ps == partition_iteration_ps(*case, found.queue_of)
    assert found.regret_ps == regret_ps(*case, found.queue_of)
    assert (found.iteration_ps, inversion_ps(case[2], list(found.queue_of))) == min(every)


@settings(deadline=None)
@given(training(), st.integers(1, 14))
def test_more_queues_never_add_regret_and_a_queue_per_layer_leaves_none(case: Case, queues: int) -> None:
    layers = len(case[0])
    found, more = queue_map(*case, queues), queue_map(*case, queues + 1)
    assert 0 <= more.regret_ps <= found.regret_ps
    assert found.regret_ps <= regret_ps(*case, equal_map(layers, queues))
    assert queue_map(*case, layers).regret_ps == 0


@settings(deadline=None)
@given(training(), st.integers(1, 14))
def test_the_fewest_queues_are_those_that_lose_a_twentieth_at_most(case: Case, queues: int) -> None:
    found = fewest_map(*case, queues)
    used = max(found.queue_of) + 1
    spare_ps = optimal_iteration_ps(*case) / 20
    assert found == queue_map(*case, used)
    assert found.regret_ps <= spare_ps or used == min(queues, len(case[0]))
    assert all(queue_map(*case, fewer).regret_ps > spare_ps for fewer in range(1, used))


@given(st.integers(1, 40), st.integers(1, 12))
def test_both_maps_are_contiguous_and_use_every_queue_they_can(layers: int, queues: int) -> None:
    ones = [1] * layers
    for queue_of in (equal_map(layers, queues), queue_map(ones, ones, ones, queues).queue_of):
        assert list(queue_of) == sorted(queue_of)
        assert set(queue_of) == set(range(min(layers, queues)))


def test_equal_queues_differ_by_one_layer_at_most() -> None:
    sizes = [equal_map(29, 8).count(queue) for queue in range(8)]
    assert max(sizes) - min(sizes) == 1


def test_spare_queues_split_what_would_wait_when_compute_hides_all_transfers() -> None:
    slow = [1000] * 6
    found = queue_map(slow, slow, [1, 1, 1, 1, 50, 50], queues=3)
    assert (found.queue_of, found.regret_ps) == ((0, 0, 0, 0, 1, 2), 0)


def test_times_too_long_for_the_map_are_refused_and_exact_elsewhere() -> None:
    huge = [10**30, 10**30 + 1]
    assert optimal_iteration_ps(huge, huge, huge) == 5 * 10**30 + 2
    with pytest.raises(InputError, match="64 bits"):
        queue_map(huge, huge, huge, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: slacks([1, 2], [1]), "2 forward_ps, 1 backward_ps"),
        (lambda: slacks([], []), "at least one layer"),
        (lambda: fifo_iteration_ps([1, 1], [1, 1], [1, -2]), r"transfer_ps\[1\] is -2"),
        (lambda: queue_map([1], [1], [1], 0), "0 queues"),
        (lambda: equal_map(0, 8), "0 layers"),
        (lambda: completions_ps([1, 1], [1, 1], [0]), "1 entries for 2 layers"),
        (lambda: lower_bound_ps([1, 2], [1, 2], [[0, 0]], [[[0, 0]]]), r"give both as \(workers, layers\)"),
        (lambda: lower_bound_ps([[1]], [[1, 2]], [[0]], [[[0]]]), r"forward_ps is \(1, 1\), backward_ps \(1, 2\)"),
        (lambda: lower_bound_ps([[]], [[]], [[]], [[[]]]), r"give both as \(workers, layers\)"),
        (lambda: lower_bound_ps([[1]], [[1]], [[0, 0]], [[[0, 0]]]), r"shared_ps is \(1, 2\)"),
        (lambda: lower_bound_ps([[1]], [[1]], [[0]], [[[0]], [[0]]]), r"own_ps \(2, 1, 1\); give \(links, layers\)"),
    ],
)
def test_bad_input_is_refused_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@given(training(), st.integers(0, 4))
def test_the_bound_of_one_worker_and_one_link_is_the_optimum(case: Case, quarters: int) -> None:
    forward, backward, transfer = case
    own = [size * quarters // 4 for size in transfer]
    shared = list(map(sub, transfer, own))
    assert lower_bound_ps([forward], [backward], [shared], [[own]]) == optimal_iteration_ps(*case)


@given(training())
def test_without_traffic_everybody_waits_for_the_slowest_backward_pass(case: Case) -> None:
    forward, backward, slower = case
    no_links = np.empty((0, len(forward))), np.empty((2, 0, len(forward)))
    slowest = max(sum(backward), sum(slower))
    assert lower_bound_ps([forward] * 2, [backward, slower], *no_links) == sum(forward) + slowest


def test_a_worker_that_starts_late_may_be_faster_than_the_bound_but_the_first_start_is_not() -> None:
    """Two workers share a link on which each pushes for 4; worker 1 starts 4 late."""
    starts, compute, push = (0, 4), 10, 4
    summed = starts[0] + compute + push
    assert summed == starts[1] + compute  # so worker 1 need not wait for the link
    summed += push
    bound = lower_bound_ps([[5], [5]], [[5], [5]], [[2 * push]], [[[0]], [[0]]])
    assert summed - min(starts) == bound
    assert summed - starts[1] < bound


def test_pulls_of_one_worker_alone_count_because_the_other_may_be_served_last() -> None:
    """One link brings 4 to each of two workers; the one that is served last shows in the next iteration."""
    compute, pull = 10, 4
    first_starts, last_start = [0], 0
    for _ in range(3):
        first_starts.append(last_start + compute + pull)
        last_start = first_starts[-1] + pull
    bound = lower_bound_ps([[5], [5]], [[5], [5]], [[0]], [[[pull]], [[pull]]])
    assert list(np.diff(first_starts)) == [bound, bound + pull, bound + pull]


class Message(NamedTuple):
    """One unit from host to host."""

    links: tuple[Link, ...]
    layer: int
    #: The worker that waits for it; None when all do.
    waits: int | None


class Exchange:
    """What a job moves in one iteration, as a graph of messages between gradients and gates.

    A message is one unit, which each of its two links needs a unit of time to carry. Worker w is on host w.
    """

    def __init__(self, workers: int, layers: int) -> None:
        self.workers, self.layers = workers, layers
        self.messages: list[Message] = []
        #: What waits for each node, and for how many nodes each node waits.
        self.after: dict[Node, list[Node]] = {}
        self.need: dict[Node, int] = {}

    def send(self, src: int, dst: int, layer: int, before: list[Node], waits: int | None = None) -> Node:
        links = (("up", src), ("down", dst)) if src != dst else ()
        self.messages.append(Message(links, layer, waits))
        return self.join(len(self.messages) - 1, before)

    def join(self, node: Node, before: list[Node]) -> Node:
        for earlier in before:
            self.after.setdefault(earlier, []).append(node)
        self.need[node] = self.need.get(node, 0) + len(before)
        return node

    def loads(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return `shared_ps` and `own_ps` of the bound."""
        links = {link: i for i, link in enumerate({link for message in self.messages for link in message.links})}
        shared = np.zeros((len(links), self.layers), dtype=np.int64)
        own = np.zeros((self.workers, *shared.shape), dtype=np.int64)
        for message in self.messages:
            for link in message.links:
                (shared if message.waits is None else own[message.waits])[links[link], message.layer] += 1
        return shared, own


def with_servers(workers: int, servers: list[list[int]]) -> Exchange:
    """`servers` has, per layer, the host that sums each of its slices."""
    exchange = Exchange(workers, len(servers))
    for layer, hosts in enumerate(servers):
        for host in hosts:
            pushes = [exchange.send(w, host, layer, [("gradient", w, layer)]) for w in range(workers)]
            for w in range(workers):
                exchange.join(("gate", w, layer), [exchange.send(host, w, layer, pushes, waits=w)])
    return exchange


def with_ring(workers: int, slices: list[int]) -> Exchange:
    """`slices` has, per layer, how many there are; each is one segment per worker."""
    exchange = Exchange(workers, len(slices))
    for layer, first in ((layer, w) for layer, count in enumerate(slices) for w in [*range(workers)] * count):
        hosts = [(first + hop) % workers for hop in range(2 * workers - 1)]
        summing = hosts[workers - 1]
        held: list[Node] = []
        for src, dst in pairwise(hosts[:workers]):
            held = [exchange.send(src, dst, layer, [*held, ("gradient", src, layer)])]
        held.append(("gradient", summing, layer))
        exchange.join(("gate", summing, layer), held)
        for src, dst in pairwise(hosts[workers - 1 :]):
            held = [exchange.send(src, dst, layer, held, waits=dst)]
            exchange.join(("gate", dst, layer), held)
    return exchange


class Run:
    """A synchronous job, unit by unit of time, with random compute times and a random order on every link.

    Links neither store and forward nor take the links of a path in order. So there are more schedules here than a
    network has, and a bound on them is one on those of any slices and packets.
    """

    iterations = 4

    def __init__(self, exchange: Exchange, random: Random) -> None:
        self.exchange, self.random = exchange, random
        longest = random.choice([1, 3, 9])
        shape = (self.iterations + 1, exchange.workers, exchange.layers)
        draw = np.random.default_rng(random.randrange(2**32))
        self.forward, self.backward = draw.integers(0, longest, (2, *shape), endpoint=True)
        #: When each worker started its last forward layer, by (iteration, worker).
        self.starts = np.zeros(shape[:2], dtype=np.int64)
        self.need = [dict(exchange.need) for _ in range(self.iterations)]
        self.to_pass = [[len(message.links) for message in exchange.messages] for _ in range(self.iterations)]
        self.waiting: Waiting = {link: [] for message in exchange.messages for link in message.links}
        self.orders = [random.choice(["any", "front", "favourite"]) for _ in range(self.iterations)]
        self.favourites = [random.randrange(exchange.workers) for _ in range(self.iterations)]
        self.idle = random.choice([0, 0, 0.3])
        self.now = 0
        workers = [self.compute(w) for w in range(exchange.workers)]
        while workers:
            workers = [worker for worker in workers if next(worker, "done") != "done"]
            self.serve_links()
            self.now += 1

    def serve_links(self) -> None:
        """Let links carry at most one unit each; what one has carried may follow on the next at once."""
        free = [link for link in self.waiting if self.random.random() >= self.idle]
        while usable := [link for link in free if self.waiting[link]]:
            link = self.random.choice(usable)
            free.remove(link)
            _, i, message = heappop(self.waiting[link])
            self.to_pass[i][message] -= 1
            if not self.to_pass[i][message]:
                self.finish(i, message)

    def compute(self, worker: int) -> Iterator[None]:
        """Every yield is one unit of time."""
        layers = range(self.exchange.layers)
        for i in range(self.iterations + 1):
            for layer in layers:
                while i and self.need[i - 1]["gate", worker, layer]:
                    yield
                self.starts[i, worker] = self.now  # the last layer's stays
                yield from [None] * self.forward[i, worker, layer]
            for layer in reversed(layers) if i < self.iterations else ():
                yield from [None] * self.backward[i, worker, layer]
                self.finish(i, ("gradient", worker, layer))

    def finish(self, i: int, node: Node) -> None:
        for follower in self.exchange.after.get(node, ()):
            self.need[i][follower] -= 1
            if not self.need[i][follower] and isinstance(follower, int):
                self.start(i, follower)

    def start(self, i: int, number: int) -> None:
        message = self.exchange.messages[number]
        for link in message.links:
            heappush(self.waiting[link], (self.urgency(i, message), i, number))
        if not message.links:
            self.finish(i, number)

    def urgency(self, i: int, message: Message) -> float:
        if self.orders[i] == "any":
            return self.random.random()
        unloved = self.orders[i] == "favourite" and message.waits not in (None, self.favourites[i])
        return unloved * self.exchange.layers + message.layer + self.random.random()

    @property
    def trace(self) -> JobTrace:
        """Return what the bound of a run asks for: compute times, and when last layers started."""
        begun = np.zeros_like(self.forward)
        begun[:, :, -1] = self.starts
        backward = self.backward[:-1]
        return JobTrace("job", (), (), self.forward, backward, begun, begun[:-1], begun[1:], np.zeros(0, TRANSFER))

    def demand(self) -> Demand:
        """Return what the exchange asks of its links; nothing takes time but them."""
        shared, own = self.exchange.loads()
        most = [np.cumsum(loads, axis=2).max(axis=1, initial=0) for loads in (shared + own, own)]
        instant = Chain((), np.zeros(0, np.int64), slice(0), slice(0), ())
        none = np.zeros(len(shared), dtype=np.int64)
        return Demand(*most, shared.sum(axis=1), own.sum(axis=(0, 2)), none, early_ps=0, chain=instant)

    def bounds(self) -> list[int]:
        """Return the bound of every iteration: the last forward layer of one pass and the others of the next."""
        loads = self.exchange.loads()
        forward = np.concatenate([self.forward[1:, :, :-1], self.forward[:-1, :, -1:]], axis=2)
        return [lower_bound_ps(f, b, *loads) for f, b in zip(forward, self.backward[:-1], strict=True)]


def assert_never_beaten(run: Run) -> None:
    first_starts = run.starts.min(axis=1)
    assert (np.diff(first_starts) >= run.bounds()).all()
    demand, trace = run.demand(), run.trace
    for measured in range(1, run.iterations + 1):
        bound_ps = forced_ps(demand, trace, run.iterations - measured)
        took = first_starts[-1] - first_starts[-1 - measured]
        # In whole units of time, as means of a few are not exact.
        assert np.ceil(measured * bound_ps - 1e-6) <= took


SLICES = st.lists(st.integers(1, 4), min_size=1, max_size=4)
SEEDS = st.integers(0, 2**32)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 4), SLICES, st.sampled_from(["separate", "colocated"]), SEEDS)
def test_no_schedule_beats_the_bound_with_servers(workers: int, slices: list[int], place: str, seed: int) -> None:
    random = Random(seed)
    hosts = range(workers, workers + 2) if place == "separate" else range(workers)
    exchange = with_servers(workers, [random.choices(hosts, k=count) for count in slices])
    assert_never_beaten(Run(exchange, random))


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(2, 4), SLICES, SEEDS)
def test_no_schedule_beats_the_bound_with_a_ring(workers: int, slices: list[int], seed: int) -> None:
    assert_never_beaten(Run(with_ring(workers, slices), Random(seed)))
