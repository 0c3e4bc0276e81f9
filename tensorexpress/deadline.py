"""Deadlines of tensors, the iteration times they allow, and the map from layers to a switch's queues.

Everything here is exact integer arithmetic on plain sequences: one entry per layer, in forward order, in
picoseconds. The backward pass makes gradients from the last layer to the first, then the next forward pass needs
parameters from the first layer to the last. The formulas and their proofs are in docs/deadlines.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import accumulate
from operator import add, index

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorexpress.errors import InputError
from tensorexpress.graph import gathered_after

Ints = NDArray[np.int64]

#: One part in so many of an iteration is what `fewest_map` may lose for the queues that it does not use.
_SPARE_SHARE = 20

#: The cost of a group that cannot be; two of them still add up inside 64 bits.
_NEVER = 2**61


def slacks(forward_ps: Sequence[int], backward_ps: Sequence[int]) -> tuple[int, ...]:
    """Return the slack of every layer's tensor when its gradient is ready, in picoseconds.

    It is the time until the next forward pass needs the tensor if nothing stalls: the backward pass of the layers
    before it, then their forward pass.

    >>> slacks([1, 1, 1], [2, 2, 2])
    (0, 3, 6)
    """
    forward, backward = _per_layer(forward_ps=forward_ps, backward_ps=backward_ps)
    return tuple(map(add, _sums_before(forward), _sums_before(backward)))


def gather_slacks(forward_ps: Sequence[int], backward_ps: Sequence[int], prefetch: int) -> tuple[tuple[int, ...], ...]:
    """Return how long before it is needed each layer may be gathered, if nothing stalls: again, and for the next pass.

    That is at most `prefetch` layers ahead, as `graph.gathered_after` says.

    >>> gather_slacks([1, 1, 1], [2, 2, 2], prefetch=1)
    ((2, 2, 0), (0, 1, 1))
    """
    forward, backward = _per_layer(forward_ps=forward_ps, backward_ps=backward_ps)
    layers = len(forward)
    started = np.array([0, *accumulate((*forward, *reversed(backward), *forward))])
    again, following = gathered_after(layers, prefetch)
    needed = (2 * layers - 1 - np.arange(layers), 2 * layers + np.arange(layers))
    return tuple(
        tuple((started[step] - started[after + 1]).tolist())
        for step, after in zip(needed, (again, following), strict=True)
    )


def deadlines(forward_ps: Sequence[int], backward_ps: Sequence[int]) -> tuple[int, ...]:
    """Return when the next forward pass needs each tensor, in picoseconds from the start of this forward pass.

    >>> deadlines([1, 1, 1], [2, 2, 2])
    (9, 10, 11)
    """
    forward, backward = _per_layer(forward_ps=forward_ps, backward_ps=backward_ps)
    compute_ps = sum(forward) + sum(backward)
    return tuple(compute_ps + before for before in _sums_before(forward))


def fifo_iteration_ps(forward_ps: Sequence[int], backward_ps: Sequence[int], transfer_ps: Sequence[int]) -> int:
    """Return the iteration time when one bottleneck serves tensors in the order of their gradients.

    `transfer_ps` is how long each layer's tensor occupies the bottleneck. The first layer's tensor leaves last, so
    the forward pass starts when everything has been sent.

    >>> fifo_iteration_ps([2, 2, 2], [2, 2, 2], [3, 6, 3])
    20
    """
    forward, backward, transfer = _per_layer(forward_ps=forward_ps, backward_ps=backward_ps, transfer_ps=transfer_ps)
    return max(_front_sent_ps(backward, transfer)) + sum(forward)


def optimal_iteration_ps(forward_ps: Sequence[int], backward_ps: Sequence[int], transfer_ps: Sequence[int]) -> int:
    """Return the least iteration time of any order on one bottleneck; serving the front layers first attains it.

    The example is ByteScheduler's: with push and pull on separate directions and slices that shrink to nothing,
    the pull follows the push at once, so one direction decides.

    >>> optimal_iteration_ps([2, 2, 2], [2, 2, 2], [3, 6, 3])
    17
    """
    forward, backward, transfer = _per_layer(forward_ps=forward_ps, backward_ps=backward_ps, transfer_ps=transfer_ps)
    front_sent = _front_sent_ps(backward, transfer)
    return max(sent + left for sent, left in zip(front_sent, _sums_from(forward), strict=True))


def blocking_ps(forward_ps: Sequence[int], backward_ps: Sequence[int], iteration_ps: int) -> int:
    """Return how much of an iteration the forward pass stands still: what is left after compute.

    >>> blocking_ps([2, 2, 2], [2, 2, 2], 17)
    5
    """
    forward, backward = _per_layer(forward_ps=forward_ps, backward_ps=backward_ps)
    return iteration_ps - sum(forward) - sum(backward)


def largest_gain(forward_ps: Sequence[int], backward_ps: Sequence[int]) -> Fraction:
    """Return the most that ordering alone can gain over FIFO on one bottleneck, whatever the tensors: 1 + F/(F+B).

    >>> largest_gain([1, 1], [2, 2])
    Fraction(4, 3)
    """
    forward, backward = _per_layer(forward_ps=forward_ps, backward_ps=backward_ps)
    compute_ps = sum(forward) + sum(backward)
    return 1 + Fraction(sum(forward), compute_ps) if compute_ps else Fraction(1)


def lower_bound_ps(forward_ps: ArrayLike, backward_ps: ArrayLike, shared_ps: ArrayLike, own_ps: ArrayLike) -> int:
    """Return an iteration time that no schedule of a synchronous job can beat, in picoseconds.

    An iteration runs from the moment the first worker starts its last forward layer to the next such moment.
    `forward_ps` and `backward_ps` are (workers, layers). `shared_ps` is (links, layers): how long each layer occupies
    each link with bytes that all workers wait for (pushes; a ring's reductions). `own_ps` is (workers, links, layers):
    likewise with bytes that only this worker waits for (its pulls; what a ring gathers into it).

    Why: on any link, no byte of layers 1..b can leave before some worker has run its last forward layer and its
    backward pass down to b. Then all that worker u waits for must pass the link; the last of it holds up a layer of u
    no later than b, so u's forward pass of b up to the last layer but one still lies ahead. That is the optimum
    formula, and the first worker is no faster than the fastest u. What only u waits for needs the gradients of all
    workers, so it passes no earlier than after the slowest backward pass.

    Not counted: propagation, store and forward, that a pull follows its push, the time to sum, other traffic. The mean
    of several iterations has a higher bound, in bound.py.

    >>> lower_bound_ps([[2, 2, 2]], [[2, 2, 2]], [[3, 6, 3], [0, 0, 0]], [[[0, 0, 0], [3, 6, 3]]])
    17
    """
    forward, backward = np.asarray(forward_ps, dtype=np.int64), np.asarray(backward_ps, dtype=np.int64)
    shared, own = np.asarray(shared_ps, dtype=np.int64), np.asarray(own_ps, dtype=np.int64)
    if forward.ndim != 2 or not forward.size or forward.shape != backward.shape:
        raise InputError(f"forward_ps is {forward.shape}, backward_ps {backward.shape}; give both as (workers, layers)")
    workers, layers = forward.shape
    if shared.ndim != 2 or shared.shape[1] != layers or own.shape != (workers, *shared.shape):
        raise InputError(
            f"shared_ps is {shared.shape} and own_ps {own.shape}; give (links, layers), (workers, links, layers)"
        )
    # The most that any link has to carry, by (worker, layer); 0 where there are no links.
    waited_ps = np.cumsum(shared + own, axis=2).max(axis=1, initial=0)
    own_ps_most = np.cumsum(own, axis=2).max(axis=1, initial=0)
    ready = gradients_ready_ps(np.zeros(workers, dtype=np.int64), forward, backward)
    return int(next_starts_ps(ready, forward, waited_ps, own_ps_most).min())


def gradients_ready_ps(starts_ps: Ints, forward_ps: Ints, backward_ps: Ints) -> Ints:
    """Return when every gradient is ready, by (worker, layer), from when each worker starts its last forward layer.

    >>> gradients_ready_ps(np.array([10]), np.array([[2, 2, 2]]), np.array([[1, 1, 1]])).tolist()
    [[15, 14, 13]]
    """
    ready: Ints = (starts_ps + forward_ps[:, -1])[:, None] + np.cumsum(backward_ps[:, ::-1], axis=1)[:, ::-1]
    return ready


def next_starts_ps(
    ready_ps: Ints, forward_ps: Ints, waited_ps: Ints, own_ps: Ints, opened_ps: Ints | None = None
) -> Ints:
    """Return before when no worker can start its last forward layer again, whatever the schedule.

    All arrays are (workers, layers). `ready_ps` is when gradients are ready at the earliest, `forward_ps` how long the
    next forward pass takes, of which the last layer does not count any more. The layers up to b occupy
    some link for `waited_ps` with all that the worker waits for, and for `own_ps` with what only it waits for.
    `opened_ps` is when a layer's parameters can be there if nothing ever has to wait for a link.
    """
    first, last = ready_ps.min(axis=0), ready_ps.max(axis=0)
    passed = np.maximum(first + waited_ps, last + own_ps)
    if opened_ps is not None:
        passed = np.maximum(passed, opened_ps)
    # A worker's forward pass from each layer up to the last but one.
    ahead = np.zeros_like(forward_ps)
    ahead[:, :-1] = np.cumsum(forward_ps[:, -2::-1], axis=1)[:, ::-1]
    starts: Ints = (passed + ahead).max(axis=1)
    return starts


def completions_ps(backward_ps: Sequence[int], transfer_ps: Sequence[int], queue_of: Sequence[int]) -> tuple[int, ...]:
    """Return when each tensor has passed the bottleneck, in picoseconds from the start of the backward pass.

    The bottleneck is a fluid: strict and preemptive priority between queues, the lowest number first, and the order
    of gradients within a queue. `queue_of` is any queue per layer.

    >>> completions_ps([2, 2, 2], [3, 6, 3], [0, 1, 2])
    (9, 13, 14)
    """
    backward, transfer = _per_layer(backward_ps=backward_ps, transfer_ps=transfer_ps)
    layers = len(transfer)
    if len(queue_of) != layers:
        raise InputError(f"queue_of has {len(queue_of)} entries for {layers} layers; give one per layer")
    ready = _sums_from(backward)
    after_all = ready[0] + sum(transfer) + 1
    remaining, done = list(transfer), [0] * layers
    waiting: list[tuple[int, int]] = []
    for layer in reversed(range(layers)):
        # Later layers become ready first, so within a queue a higher layer is an earlier arrival.
        heappush(waiting, (queue_of[layer], -layer))
        now = ready[layer]
        until = ready[layer - 1] if layer else after_all
        while waiting and now < until:
            served = -waiting[0][1]
            step = min(remaining[served], until - now)
            now += step
            remaining[served] -= step
            if not remaining[served]:
                done[served] = now
                heappop(waiting)
    return tuple(done)


def partition_iteration_ps(
    forward_ps: Sequence[int],
    backward_ps: Sequence[int],
    transfer_ps: Sequence[int],
    queue_of: Sequence[int],
) -> int:
    """Return the iteration time when the bottleneck serves the queues of `queue_of` as in `completions_ps`.

    >>> partition_iteration_ps([2, 2, 2], [2, 2, 2], [3, 6, 3], [0, 0, 1])
    19
    """
    forward, backward = _per_layer(forward_ps=forward_ps, backward_ps=backward_ps)
    now = sum(backward)
    for layer_ps, arrived in zip(forward, completions_ps(backward, transfer_ps, queue_of), strict=True):
        now = max(now, arrived) + layer_ps
    return now


def regret_ps(
    forward_ps: Sequence[int],
    backward_ps: Sequence[int],
    transfer_ps: Sequence[int],
    queue_of: Sequence[int],
) -> int:
    """Return how much longer an iteration takes with the queues of `queue_of` than with an ideal PIFO.

    >>> regret_ps([2, 2, 2], [2, 2, 2], [3, 6, 3], equal_map(3, queues=2))
    2
    """
    return partition_iteration_ps(forward_ps, backward_ps, transfer_ps, queue_of) - optimal_iteration_ps(
        forward_ps, backward_ps, transfer_ps
    )


@dataclass(frozen=True)
class QueuePartition:
    """Which queue serves each layer, and what that costs on the bottleneck it was made for."""

    #: Queue of every layer in forward order; 0 is the most urgent, and numbers never fall.
    queue_of: tuple[int, ...]
    iteration_ps: int
    #: Iteration time beyond that of an ideal PIFO.
    regret_ps: int


def queue_map(
    forward_ps: Sequence[int], backward_ps: Sequence[int], transfer_ps: Sequence[int], queues: int
) -> QueuePartition:
    """Return the contiguous map from layers to min(queues, layers) queues with the least iteration time.

    Among maps of the same iteration time it is the one with the least inversion: the time that tensors would wait
    behind less urgent ones of their queue if all were there at once, summed over tensors. So spare queues go where
    they help most when compute hides all transfers. Time and memory grow with the square of the layers.

    >>> queue_map([2, 2, 2], [2, 2, 2], [3, 6, 3], queues=2)
    QueuePartition(queue_of=(0, 1, 1), iteration_ps=18, regret_ps=1)
    """
    forward, backward, transfer = _per_layer(forward_ps=forward_ps, backward_ps=backward_ps, transfer_ps=transfer_ps)
    layers = len(forward)
    used = _used_queues(layers, queues)
    if layers * (sum(forward) + sum(backward) + sum(transfer)) >= _NEVER:
        raise InputError(f"the times of {layers} layers are too long to add up in 64 bits; give a higher bandwidth")
    forced_ps = _forced_iteration_ps(forward, backward, transfer)
    iteration_ps, _ = _cheapest_partition(forced_ps, used, np.maximum)
    inversion_ps = np.where(forced_ps <= iteration_ps, _inversion_ps(transfer), _NEVER)
    _, sizes = _cheapest_partition(inversion_ps, used, np.add)
    return QueuePartition(
        queue_of=tuple(np.repeat(np.arange(used), sizes).tolist()),
        iteration_ps=iteration_ps,
        regret_ps=iteration_ps - optimal_iteration_ps(forward, backward, transfer),
    )


def fewest_map(
    forward_ps: Sequence[int], backward_ps: Sequence[int], transfer_ps: Sequence[int], queues: int
) -> QueuePartition:
    """Return the `queue_map` of as few queues as lose at most a twentieth of an iteration against an ideal PIFO.

    Where no number of queues does, all are used. Every queue more lets workers that are ahead overtake those that are
    behind, for whom a sum has to wait; docs/policies.md shows what that costs.

    >>> fewest_map([2, 2, 2], [2, 2, 2], [3, 6, 3], queues=3).queue_of
    (0, 1, 2)
    >>> fewest_map([2, 2, 2], [2, 2, 2], [3, 1, 1], queues=3).queue_of
    (0, 0, 0)
    """
    spare_ps = optimal_iteration_ps(forward_ps, backward_ps, transfer_ps) // _SPARE_SHARE
    maps = (queue_map(forward_ps, backward_ps, transfer_ps, used) for used in range(1, queues))
    enough = (found for found in maps if found.regret_ps <= spare_ps)
    return next(enough, None) or queue_map(forward_ps, backward_ps, transfer_ps, queues)


def equal_map(layers: int, queues: int) -> tuple[int, ...]:
    """Return the queue of every layer when all queues hold as many layers as each other, give or take one.

    >>> equal_map(5, queues=2)
    (0, 0, 0, 1, 1)
    """
    used = _used_queues(layers, queues)
    return tuple(layer * used // layers for layer in range(layers))


def _per_layer(**times: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the sequences as Python integers, which never overflow, once they are one time per layer each."""
    checked = tuple(tuple(map(index, values)) for values in times.values())
    if not checked[0] or len({len(values) for values in checked}) > 1:
        found = ", ".join(f"{len(values)} {name}" for name, values in zip(times, checked, strict=True))
        raise InputError(f"found {found}; give one of each per layer, for at least one layer")
    for name, values in zip(times, checked, strict=True):
        if min(values) < 0:
            raise InputError(f"{name}[{values.index(min(values))}] is {min(values)}; a time is zero or more")
    return checked


def _used_queues(layers: int, queues: int) -> int:
    if layers < 1 or queues < 1:
        raise InputError(f"{layers} layers in {queues} queues; give at least one of each")
    return min(layers, queues)


def _sums_before(times: Sequence[int]) -> tuple[int, ...]:
    """Return for each layer the sum over the layers before it."""
    return tuple(accumulate(times[:-1], initial=0))


def _sums_from(times: Sequence[int]) -> tuple[int, ...]:
    """Return for each layer the sum over itself and the layers after it."""
    return tuple(accumulate(reversed(times)))[::-1]


def _front_sent_ps(backward: Sequence[int], transfer: Sequence[int]) -> tuple[int, ...]:
    """Return for each layer b when layers 1..b can have passed, if the first of them starts as b is ready.

    None of the layers 1..b is ready before b is.
    """
    return tuple(map(add, _sums_from(backward), accumulate(transfer)))


def _forced_iteration_ps(forward: Sequence[int], backward: Sequence[int], transfer: Sequence[int]) -> NDArray[np.int64]:
    """Return [first, last]: the iteration time that these layers force on their own when they share a queue.

    It does not depend on the other queues: those below never delay this one, and those above hold all layers
    before `first` however these are split. Of the queue's layers the first leaves last and has the longest forward
    pass ahead, so it alone decides. It leaves when the queue's own backlog and the layers above that became
    ready meanwhile have passed; `front_sent - sent_before[m]` is that time when layer m came too late to matter.
    """
    layers = len(forward)
    front_sent = np.array(_front_sent_ps(backward, transfer), dtype=np.int64)
    sent_before = np.array((0, *accumulate(transfer)), dtype=np.int64)
    forward_left = _sums_from(forward)
    forced = np.full((layers, layers), _NEVER, dtype=np.int64)
    for first in range(layers):
        own = np.maximum.accumulate(front_sent[first:])
        above = np.maximum.accumulate(front_sent[:first][::-1])
        preempting = np.searchsorted(above, own)
        forced[first, first:] = own - sent_before[first - preempting] + forward_left[first]
    return forced


def _inversion_ps(transfer: Sequence[int]) -> NDArray[np.int64]:
    """Return [first, last]: the sum over these layers of the transfers of the less urgent ones among them."""
    size = np.array(transfer, dtype=np.int64)
    position = np.arange(len(transfer))
    ahead = np.maximum(position[None, :] - position[:, None], 0)
    inversion: NDArray[np.int64] = np.cumsum(ahead * size, axis=1)
    return inversion


def _cheapest_partition(
    cost: NDArray[np.int64],
    groups: int,
    join: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]],
) -> tuple[int, list[int]]:
    """Return the least joint cost of splitting all layers in `groups` runs, and the sizes of the runs.

    `cost[first, last]` is that of one run; `join` is np.maximum or np.add. Dynamic programming over the number of
    runs and the layers they cover; the first of equal choices makes it deterministic.
    """
    least = np.full(len(cost) + 1, _NEVER, dtype=np.int64)
    least[0] = 0
    choices = []
    for _ in range(groups):
        totals = join(least[:-1, None], cost)
        choices.append(totals.argmin(axis=0))
        least[0] = _NEVER
        least[1:] = np.minimum(totals.min(axis=0), _NEVER)
    sizes = []
    end = len(cost)
    for first_of in reversed(choices):
        first = int(first_of[end - 1])
        sizes.append(end - first)
        end = first
    return int(least[-1]), sizes[::-1]
