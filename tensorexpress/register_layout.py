"""Layout of hot rows over register arrays, so that rows that are used together can be summed in one packet.

A switch such as Tofino accesses a register array once for a packet. Two rows in one array never go together in a
packet, so rows that the same batches use should be in different arrays. Rows are placed by heat, each in the array with
the fewest uses together: the sum, over the rows there, of the batches that use both. No array gets more rows than it
has cells. Without that limit there are never more uses together in one array than in a random layout on average, for
every row takes the least of numbers whose mean a random choice would give.

This is for switches that sum only rows which a batch touches; dense rows (`hot_keys`) need no layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tensorexpress.errors import InputError
from tensorexpress.lookups import Integers, LookupSample


@dataclass(frozen=True, eq=False)
class CoUse:
    """Which hot rows are used together: the batches that use every row, rows by their rank."""

    rows: int
    batches: int
    #: Every row of every batch once, by batch and then by rank.
    of_batch: Integers
    of_rank: Integers


@dataclass(frozen=True, eq=False)
class RegisterLayout:
    """The array of every hot row, by its rank."""

    arrays: int
    array_of: Integers


class Packing(NamedTuple):
    """Packets that hot rows take in a batch, on average."""

    #: A worker sends rows in the order of their heat and starts a new packet when an array comes again.
    in_order: float
    #: A worker takes one row of every array that has some left: as many packets as the fullest array has rows.
    sorted: float
    #: Every packet but the last has a row of every array.
    ideal: float


def co_use(sample: LookupSample, hot: int) -> CoUse:
    """Return which of the hottest rows of a sample are used together; it must know batches."""
    if not sample.batches:
        raise InputError(f"{sample.name}: does not say which keys are used together; accepted: rows of batch,key")
    chosen = sample.of_rank < hot
    return CoUse(min(hot, len(sample.keys)), sample.batches, sample.of_batch[chosen], sample.of_rank[chosen])


def lay_out(used: CoUse, arrays: int, cells: int = 0) -> RegisterLayout:
    """Return a layout over so many arrays of so many cells; 0 cells are as many as it takes."""
    if arrays < 1 or (cells and arrays * cells < used.rows):
        raise InputError(f"{used.rows} rows do not fit into {arrays} arrays of {cells} cells; accepted: more of them")
    by_rank = np.argsort(used.of_rank, kind="stable")
    batches = np.split(used.of_batch[by_rank], np.cumsum(np.bincount(used.of_rank, minlength=used.rows))[:-1])
    #: How many rows of every array a batch uses: all that a row's uses together depend on.
    loads = np.zeros((used.batches, arrays), dtype=np.int64)
    filled = np.zeros(arrays, dtype=np.int64)
    array_of = np.empty(used.rows, dtype=np.int64)
    for rank in range(used.rows):
        together = loads[batches[rank]].sum(axis=0)
        if cells:
            together[filled >= cells] = np.iinfo(np.int64).max
        # Of equal arrays, the emptiest.
        array = int(np.lexsort((filled, together))[0])
        loads[batches[rank], array] += 1
        filled[array] += 1
        array_of[rank] = array
    return RegisterLayout(arrays, array_of)


def in_turn(rows: int, arrays: int) -> RegisterLayout:
    """Return the layout that knows nothing of use: one row after another in one array after another."""
    return RegisterLayout(arrays, np.arange(rows) % arrays)


def uses_together(used: CoUse, layout: RegisterLayout) -> int:
    """Return how often two rows of one array are used in one batch."""
    loads = _loads(used, layout)
    return int((loads * (loads - 1) // 2).sum())


def packing(used: CoUse, layout: RegisterLayout) -> Packing:
    """Return the packets that a batch takes with a layout, on average over all batches."""
    loads = _loads(used, layout)
    packets, seen, last = 0, 0, -1
    for batch, array in zip(used.of_batch.tolist(), layout.array_of[used.of_rank].tolist(), strict=True):
        if batch != last or seen >> array & 1:
            packets, seen, last = packets + 1, 0, batch
        seen |= 1 << array
    ideal = -(-loads.sum(axis=1) // layout.arrays)
    return Packing(packets / used.batches, float(loads.max(axis=1).mean()), float(ideal.mean()))


def _loads(used: CoUse, layout: RegisterLayout) -> Integers:
    """Return how many rows of every array every batch uses."""
    cells = used.of_batch * layout.arrays + layout.array_of[used.of_rank]
    return np.bincount(cells, minlength=used.batches * layout.arrays).reshape(used.batches, layout.arrays)
