"""Sparse layers: tables of rows of which an iteration touches few, and how many rows that are.

A worker looks up `lookups` rows of a table in an iteration. Only these have a gradient, so a worker sends them alone,
each with its key. Rows are numbered by heat, the hottest first, and lookups are drawn one by one: the k-th row with a
probability proportional to 1 / k^skew (Zipf), which is the same for all rows where the skew is 0. A row of probability
p is then among the rows that n lookups touch with the probability 1 - (1 - p)^n, and their expected number is the sum
of that over all rows.

Sums over rows are exact, row by row, for the first `_EXACT` of them. Behind these neighbours are so alike that an
integral is as good as a sum: ranges of ranks, each as wide as its start or narrower, are read at a few points that
stand for all rows between them (Gauss and Legendre). That takes no longer for a billion rows than for a million.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import exp, inf, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorexpress.errors import WorkloadError, shown

Floats = NDArray[np.float64]

#: Bytes of a row's key where rows travel by themselves.
KEY_BYTES = 8

#: Beyond these a number is a slip of the keyboard.
MOST_KEYS = 10**12
MOST_WIDTH = 2**20
MOST_LOOKUPS = 10**9
MOST_SKEW = 10.0

#: Rows that are looked at one by one.
_EXACT = 2**20

#: Points that stand for the rows of a range, from -1 to 1, and the share of them that each stands for, times 2.
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(16)

#: Tables whose rows are remembered once they were counted; a model has tens of them.
_REMEMBERED = 1024


@dataclass(frozen=True)
class SparseTable:
    """A table of an embedding, and how a worker uses it."""

    #: Rows.
    keys: int
    #: Values of a row.
    width: int
    #: Rows that a worker looks up in an iteration; one that is looked up twice counts twice.
    lookups: int
    #: The exponent of Zipf's law; 0 draws all rows alike.
    skew: float = 0.0

    def __post_init__(self) -> None:
        for name, most in (("keys", MOST_KEYS), ("width", MOST_WIDTH), ("lookups", MOST_LOOKUPS)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise WorkloadError(f"{name} of a sparse table are {shown(value)}; accepted: 1 to {most}")
        if not 0 <= self.skew <= MOST_SKEW:
            raise WorkloadError(f"the skew of a sparse table is {shown(self.skew)}; accepted: 0 to {MOST_SKEW:g}")

    @property
    def params(self) -> int:
        """Parameters of all rows."""
        return self.keys * self.width


def touched(probability: Floats, lookups: float) -> Floats:
    """Return how probable it is that some of `lookups` lookups hit a row, by the probability that one does.

    >>> touched(np.array([0.5, 1.0]), 2).tolist()
    [0.75, 1.0]
    """
    with np.errstate(divide="ignore"):  # a row that every lookup hits
        missed: Floats = np.log1p(-probability)
    return -np.expm1(lookups * missed)


class Covered(NamedTuple):
    """What the hottest rows of a table are in for."""

    #: The share of all lookups that hit them.
    of_lookups: float
    #: How many of them a worker touches in an iteration.
    rows: float


@dataclass(frozen=True)
class ZipfHeat:
    """The rows of a table from the hottest on: which share of lookups hits them, and how many an iteration touches."""

    table: SparseTable
    #: Workers whose lookups are taken as those of one.
    workers: int = 1

    @property
    def keys(self) -> int:
        """How many rows there are."""
        return self.table.keys

    def covered(self, hot: int) -> Covered:
        """Return what the `hot` hottest rows are in for."""
        return self._all if hot == self.keys else self._covered(hot)

    @cached_property
    def _all(self) -> Covered:
        return self._covered(self.keys)

    def _covered(self, hot: int) -> Covered:
        exact, behind = min(hot, len(self._head)), self._behind(hot)
        of_lookups, rows = (float(sums[exact - 1]) if exact else 0.0 for sums in self._sums)
        if behind is not None:
            probability, rows_at = behind.weight / self._total, behind.rows
            of_lookups += float(rows_at @ probability)
            rows += float(rows_at @ touched(probability, self._lookups))
        return Covered(min(1.0, of_lookups), min(float(hot), rows))

    def touched_in(self, share: float) -> int:
        """Return how many rows are touched in at least this share of iterations.

        >>> heat = ZipfHeat(SparseTable(keys=1000, width=1, lookups=500, skew=1.0))
        >>> rows = heat.touched_in(0.5)
        >>> before, at, behind = (heat.covered(rows + more).rows for more in (-1, 0, 1))
        >>> at - before > 0.5 > behind - at
        True
        """
        if share > 1:
            return 0
        with np.errstate(divide="ignore"):
            probability = float(-np.expm1(np.log1p(-share) / self._lookups))
        # The k-th row has the probability 1 / (k^skew * total).
        hardly = -log(probability * self._total)
        if not self.table.skew:
            return self.keys if hardly >= 0 else 0
        return self.keys if hardly >= self.table.skew * log(self.keys) else int(exp(hardly / self.table.skew))

    def together(self, workers: int) -> float:
        """Return how many rows so many workers touch in an iteration, a row that several touch once."""
        return replace(self, workers=self.workers * workers).covered(self.keys).rows

    @property
    def _lookups(self) -> int:
        return self.table.lookups * self.workers

    @cached_property
    def _head(self) -> Floats:
        """Probabilities of the first rows, before they are divided by their sum."""
        return np.arange(1, min(self.keys, _EXACT) + 1, dtype=np.float64) ** -self.table.skew

    @cached_property
    def _total(self) -> float:
        behind = self._behind(self.keys)
        # The smallest first, so that none is lost beside the largest.
        return float(np.sum(self._head[::-1])) + (float(behind.rows @ behind.weight) if behind is not None else 0.0)

    @cached_property
    def _sums(self) -> tuple[Floats, Floats]:
        probability = self._head / self._total
        return np.cumsum(probability), np.cumsum(touched(probability, self._lookups))

    def _behind(self, hot: int) -> _Ranges | None:
        """Return the rows up to `hot` that are not in the head."""
        return _ranges(len(self._head), hot, self.table.skew) if hot > len(self._head) else None


class _Ranges(NamedTuple):
    """Points that stand for many rows: the weight 1 / k^skew at each, and how many rows that are."""

    weight: Floats
    rows: Floats


def _ranges(first: int, last: int, skew: float) -> _Ranges:
    """Return points for the ranks from `first` + 1 to `last`.

    A sum over whole numbers is the integral from half below the first to half above the last, but for what the
    function bends between two of them: a part of 1 / rank^2.
    """
    low, high = first + 0.5, last + 0.5
    # A range is narrow enough that probabilities in it differ by no more than a factor of e.
    ratio = exp(min(log(2), 1 / skew if skew else inf))
    pieces = max(1, int(np.ceil(log(high / low) / log(ratio))))
    edges = np.geomspace(low, high, pieces + 1)
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    ranks = (middle[:, None] + half[:, None] * _POINTS).ravel()
    return _Ranges(ranks**-skew, (half[:, None] * _WEIGHTS).ravel())


def expected_rows(table: SparseTable, workers: int = 1) -> float:
    """Return how many rows of a table some workers touch together in an iteration, a row that several touch once.

    >>> expected_rows(SparseTable(keys=2, width=1, lookups=2))
    1.5
    """
    return ZipfHeat(table).together(workers)


def fitted_skew(keys: int, lookups: int, rows: float) -> float:
    """Return the skew, to a thousandth, with which so many lookups of so many keys touch so many rows.

    >>> fitted_skew(1000, 500, expected_rows(SparseTable(1000, 1, 500, skew=0.7)))
    0.7
    """
    low, high = 0.0, MOST_SKEW
    while high - low > 0.0001:
        middle = (low + high) / 2
        if expected_rows(SparseTable(keys, 1, lookups, middle)) > rows:
            low = middle
        else:
            high = middle
    return round((low + high) / 2, 3)


@lru_cache(maxsize=_REMEMBERED)
def rows_sent(table: SparseTable, hot: int = 0) -> int:
    """Return how many rows of a table, behind its `hot` hottest, a worker sends in an iteration: those it is expected
    to touch.

    >>> rows_sent(SparseTable(keys=10**9, width=16, lookups=1000))
    1000
    """
    if hot >= table.keys:
        return 0
    heat = ZipfHeat(table)
    return max(1, round(heat.covered(table.keys).rows - heat.covered(hot).rows))


def sent_bytes(table: SparseTable, bytes_per_value: int, hot: int = 0) -> int:
    """Return the bytes of a table's gradient at one worker: the rows it touches behind the hottest, each with its key.

    >>> sent_bytes(SparseTable(keys=10**9, width=16, lookups=1000), 4)
    72000
    """
    return rows_sent(table, hot) * (KEY_BYTES + table.width * bytes_per_value)
