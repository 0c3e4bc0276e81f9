"""Gradients that cost nothing to make and little to check: parts of one table of whole numbers.

Every worker reads the table from a place that follows from (seed, iteration, tensor), each worker a fixed distance
further on. The sum over all workers is then a part of a second table, at the same place, which is made once. The
numbers are small and whole, so that float32 sums are exact in any order.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tensorexpress.plan import JobPlan

Floats = NDArray[np.float32]

FLOAT_BYTES = 4

#: Numbers of the table are below this, so that sums of 2^24 / 512 workers are exact.
_LARGEST = 512

#: How far two workers read apart, and over how many places the parts of iterations and tensors are spread.
DISTANCE = 257
_PLACES = 4099


class Tensors(Protocol):
    """Where the gradients of a job come from, and where their sums go."""

    def of(self, worker: int, iteration: int, tensor: int, elements: slice) -> Floats:
        """Return a part of one worker's gradient, which does not change before its next but one."""
        ...

    def deliver(self, worker: int, iteration: int, tensor: int, first: int, found: Floats) -> str | None:
        """Give a worker a part of a sum, from an element on; return what is wrong with it."""
        ...

    def wrong(self, iteration: int, tensor: int, first: int, found: Floats) -> str | None:
        """Return what is wrong with a part of a sum, from an element on, as far as that is known here."""
        ...


class Gradients:
    """The gradients of all workers of a job and their sums; both are views that nobody may write to."""

    def __init__(self, seed: int, workers: int, most_elements: int):
        self._seed = seed
        length = _PLACES + most_elements
        noise = np.random.default_rng([seed, workers]).integers(
            -_LARGEST, _LARGEST, length + workers * DISTANCE, dtype=np.int16
        )
        self._table: Floats = noise.astype(np.float32)
        self._sums: Floats = np.zeros(length, dtype=np.float32)
        for worker in range(workers):
            self._sums += self._table[worker * DISTANCE :][:length]
        self._table.flags.writeable = self._sums.flags.writeable = False

    def of(self, worker: int, iteration: int, tensor: int, elements: slice) -> Floats:
        """Return a part of one worker's gradient.

        >>> gradients = Gradients(seed=1, workers=3, most_elements=100)
        >>> part = slice(10, 90)
        >>> total = sum(gradients.of(worker, 5, 7, part) for worker in range(3))
        >>> bool((total == gradients.total(5, 7, part)).all())
        True
        """
        return self._part(self._table, worker * DISTANCE + self._place(iteration, tensor), elements)

    def total(self, iteration: int, tensor: int, elements: slice) -> Floats:
        """Return a part of the sum over all workers."""
        return self._part(self._sums, self._place(iteration, tensor), elements)

    def deliver(self, worker: int, iteration: int, tensor: int, first: int, found: Floats) -> str | None:
        """Check a part of a sum, which nobody needs otherwise."""
        return self.wrong(iteration, tensor, first, found)

    def wrong(self, iteration: int, tensor: int, first: int, found: Floats) -> str | None:
        """Return which element of a part of a sum is not that of all gradients."""
        return wrong_element(found, self.total(iteration, tensor, slice(first, first + len(found))), first)

    @property
    def tables(self) -> tuple[Floats, Floats]:
        """The numbers of all gradients, of which workers read `DISTANCE` apart, and those of all sums."""
        return self._table, self._sums

    def places(self, rounds: int, tensors: int) -> NDArray[np.int64]:
        """Return where tensors begin in the tables, by iteration."""
        every = [[self._place(iteration, tensor) for tensor in range(tensors)] for iteration in range(rounds)]
        return np.array(every, dtype=np.int64)

    def _place(self, iteration: int, tensor: int) -> int:
        return zlib.crc32(b"%d %d %d" % (self._seed, iteration, tensor)) % _PLACES

    @staticmethod
    def _part(table: Floats, place: int, elements: slice) -> Floats:
        return table[place + elements.start : place + elements.stop]


def wrong_element(found: Floats, expected: Floats, first: int = 0) -> str | None:
    """Return which element of a sum is not as expected, counted from `first`; None: all are.

    >>> wrong_element(np.float32([1, 2]), np.float32([1, 3]), first=10)
    'element 11 is 2.0, not 3.0'
    """
    if np.array_equal(found, expected):
        return None
    place = int(np.flatnonzero(found != expected)[0])
    return f"element {first + place} is {found[place]}, not {expected[place]}"


def elements_of(plan: JobPlan) -> Sequence[slice]:
    """Return which elements of its tensor every slice of a plan holds.

    What switches sum is a number for every parameter. Behind these are messages. Plans cut them at bytes, sums need
    whole numbers: a cut moves to the end of the float32 that it would go through.
    """
    parts, values = [], [0] * len(plan.ranks)
    for piece in plan.summed:
        start = values[piece.tensor]
        values[piece.tensor] += piece.bytes // plan.job.workload.bytes_per_param
        parts.append(slice(start, values[piece.tensor]))
    ends = [FLOAT_BYTES * count for count in values]
    for piece in plan.others:
        start = ends[piece.tensor]
        ends[piece.tensor] += piece.bytes
        parts.append(slice(-(-start // FLOAT_BYTES), -(-ends[piece.tensor] // FLOAT_BYTES)))
    return parts


def gradients_of(plan: JobPlan, seed: int) -> Gradients:
    """Return the gradients of a job; all its hosts get the same ones for the same seed."""
    most = max(part.stop for part in elements_of(plan))
    return Gradients(seed, len(plan.job.workers), most)
