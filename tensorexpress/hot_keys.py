"""Hot keys: the rows of a sparse table that switches sum, how much they cover, and what traffic is left to servers.

Switches sum hot rows in front of the servers: every worker sends all of them in every iteration, in packets of 256
values that have a slot of their own, with zeros for rows that it did not touch. So it is known without a word when a
round is complete, and keys need not travel. The sum goes on to a server once, for all workers; its answer is copied to
all of them. Cold rows go to servers one by one, each with its key, from every worker that touched them.

A dense row weighs less than a row with its key, but it is always sent. So a row is worth its place where workers touch
it often enough, and there is a best number of them, however much memory there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorexpress.confidence import student_t, wilson
from tensorexpress.framing import Framing
from tensorexpress.lookups import Integers, LookupSample, halves
from tensorexpress.sparse import KEY_BYTES, Covered, touched
from tensorexpress.sums import MOST_SLOTS, SLOT_BYTES, SUM_FRAMING, VALUE_BYTES, VALUES


class Heat(Protocol):
    """The rows of a table from the hottest on: `ZipfHeat` of a model, `SampleHeat` of what was seen."""

    @property
    def keys(self) -> int:
        """How many rows there are."""

    def covered(self, hot: int) -> Covered:
        """Return what the `hot` hottest rows are in for."""

    def together(self, workers: int) -> float:
        """Return how many rows so many workers touch in an iteration, a row that several touch once."""


@dataclass(frozen=True)
class RowExchange:
    """Who exchanges rows with whom."""

    #: Values of a row.
    width: int
    workers: int
    servers: int
    #: Of packets to servers.
    mtu: int = 9000
    #: Of a value in these.
    value_bytes: int = VALUE_BYTES

    @property
    def cold_row_bytes(self) -> float:
        """What a row with its key weighs on the wire, with its part of the headers."""
        framing = Framing(self.mtu)
        per_byte = framing.full_packet_bytes / framing.payload_bytes
        return (KEY_BYTES + self.width * self.value_bytes) * per_byte

    def rows_in(self, packets: int) -> int:
        """Return how many rows fit into so many packets of values, which are as many slots of a switch.

        >>> RowExchange(width=16, workers=8, servers=4).rows_in(3)
        48
        """
        return packets * VALUES // self.width

    def packets_for(self, rows: int) -> int:
        """Return how many packets of values so many rows take.

        >>> RowExchange(width=16, workers=8, servers=4).packets_for(17)
        2
        """
        return -(-rows * self.width // VALUES)


class RowTraffic(NamedTuple):
    """What one iteration sends to servers and switch; as much comes back."""

    #: Rows that switches sum, the packets that take them, and the memory of a switch for these.
    hot: int
    packets: int
    memory_bytes: int
    #: The share that hot rows have of lookups, and of the rows that a worker touches.
    of_lookups: float
    of_rows: float
    #: Bytes on the wire from every worker, and into all servers together.
    worker_bytes: float
    server_bytes: float
    #: Bytes on the busiest link: a worker's, or a server's.
    busiest_bytes: float


def packets_in(memory_bytes: int) -> int:
    """Return how many packets of values have a slot in so much memory of a switch."""
    return min(MOST_SLOTS, memory_bytes // SLOT_BYTES)


def traffic(heat: Heat, exchange: RowExchange, packets: int) -> RowTraffic:
    """Return what an iteration sends where switches sum as many of the hottest rows as go into so many packets."""
    hot = min(heat.keys, exchange.rows_in(packets))
    used = exchange.packets_for(hot)
    covered, everything = heat.covered(hot), heat.covered(heat.keys)
    hot_bytes = used * SUM_FRAMING.full_packet_bytes
    cold_bytes = max(0.0, everything.rows - covered.rows) * exchange.cold_row_bytes
    worker_bytes, server_bytes = hot_bytes + cold_bytes, hot_bytes + exchange.workers * cold_bytes
    return RowTraffic(
        hot=hot,
        packets=used,
        memory_bytes=used * SLOT_BYTES,
        of_lookups=covered.of_lookups,
        of_rows=covered.rows / everything.rows,
        worker_bytes=worker_bytes,
        server_bytes=server_bytes,
        busiest_bytes=max(worker_bytes, server_bytes / exchange.servers),
    )


#: Up to so many packets, each number of them is tried.
_ALL_TRIED = 4096


def best_packets(heat: Heat, exchange: RowExchange, most: int) -> int:
    """Return the number of packets of hot rows, `most` or fewer, that leaves the fewest bytes on the busiest link.

    All numbers are tried if there are few. Otherwise the result leaves one packet more than the best at the most: every
    further row is touched less often than the one before and costs the same, so without the room that packets leave
    empty, bytes fall up to the best number of rows and rise beyond it. Bisection finds it, and those nearby are tried.
    """
    if most <= _ALL_TRIED:
        return _best_of(heat, exchange, range(most + 1))
    low, high = 0, min(heat.keys, exchange.rows_in(most))
    while low < high:
        middle = (low + high) // 2
        if _smooth_busiest(heat, exchange, middle + 1) < _smooth_busiest(heat, exchange, middle):
            low = middle + 1
        else:
            high = middle
    near = exchange.packets_for(low)
    # As many packets as the widest row takes, to both sides.
    around = 2 + exchange.packets_for(1)
    # If bytes hardly fall, the room that packets leave empty may cost more than rows gain: no packet is a choice, too.
    return _best_of(heat, exchange, [0, *range(max(0, near - around), min(most, near + around) + 1)])


def _best_of(heat: Heat, exchange: RowExchange, candidates: Iterable[int]) -> int:
    return min(candidates, key=lambda packets: (traffic(heat, exchange, packets).busiest_bytes, packets))


def _smooth_busiest(heat: Heat, exchange: RowExchange, hot: int) -> float:
    """Return what is on the busiest link if packets could hold parts of rows."""
    hot_bytes = hot * exchange.width * SUM_FRAMING.full_packet_bytes / VALUES
    cold_bytes = (heat.covered(heat.keys).rows - heat.covered(hot).rows) * exchange.cold_row_bytes
    return max(hot_bytes + cold_bytes, (hot_bytes + exchange.workers * cold_bytes) / exchange.servers)


class Connections(NamedTuple):
    """Active connections."""

    of_worker: int
    of_server: int
    together: int


def connections(workers: int, servers: int, with_switch: bool) -> Connections:
    """Return the connections over which hosts exchange rows: each with each, or every host with the switch.

    >>> connections(8, 4, with_switch=False), connections(8, 4, with_switch=True).together
    (Connections(of_worker=4, of_server=8, together=32), 12)
    """
    if with_switch:
        return Connections(1, 1, workers + servers)
    return Connections(servers, workers, workers * servers)


class HeldOut(NamedTuple):
    """What keys cover of the half of a sample in which they were not searched."""

    of_lookups: float
    #: Between these is the share of lookups, with a confidence of 95 %.
    low: float
    high: float
    #: The share of rows that a worker touches.
    of_rows: float


class HotKeys(NamedTuple):
    """The hottest keys of a sample."""

    #: From the hottest on.
    keys: Integers
    counts: Integers
    #: The share that they have of the sample's lookups, and of the rows that its batches touch.
    of_lookups: float
    of_rows: float
    #: The same for as many keys that were found in one half of the sample, in the other half; None if it has no two.
    held_out: HeldOut | None


class Validation:
    """Keys found in one half of a sample, held against the other half; see `lookups.halves`."""

    def __init__(self, sample: LookupSample, lookups: int = 0):
        """Cut a sample; `lookups` of a worker's iteration where it does not know batches."""
        self.parts = halves(sample)
        self._lookups = lookups
        if self.parts is not None:
            found, self._held = self.parts
            self._found_rank = _ranks_in(found, self._held.keys)

    def held_out(self, capacity: int) -> HeldOut | None:
        """Return what the `capacity` hottest keys of one half cover of the other."""
        if self.parts is None:
            return None
        held, is_hot = self._held, self._found_rank < capacity
        hits, tries = int(held.counts[is_hot].sum()), held.lookups
        low, high = _by_batches(held, is_hot) if held.batches > 1 else wilson(hits, tries)
        return HeldOut(hits / tries, low, high, _share_of_rows(held, is_hot, self._lookups))


def identify(sample: LookupSample, capacity: int, lookups: int = 0) -> HotKeys:
    """Return the `capacity` hottest keys of a sample and what they cover, measured on it and validated on a half of it.

    `lookups` is what a worker looks up in an iteration, for samples that do not know batches.
    """
    is_hot = np.arange(len(sample.keys)) < capacity
    return HotKeys(
        keys=sample.keys[is_hot],
        counts=sample.counts[is_hot],
        of_lookups=float(sample.counts[is_hot].sum() / sample.lookups),
        of_rows=_share_of_rows(sample, is_hot, lookups),
        held_out=Validation(sample, lookups).held_out(capacity),
    )


def _ranks_in(found: LookupSample, keys: Integers) -> Integers:
    """Return the rank that keys have in a sample; that of a key which it does not have is beyond all."""
    order = np.argsort(found.keys)
    place = np.minimum(np.searchsorted(found.keys, keys, sorter=order), len(order) - 1)
    ranks = order[place]
    return np.where(found.keys[ranks] == keys, ranks, np.iinfo(np.int64).max)


def _share_of_rows(sample: LookupSample, is_hot: NDArray[np.bool_], lookups: int) -> float:
    rows = sample.touches if sample.batches else touched(sample.counts / sample.lookups, lookups or 1)
    return float(rows[is_hot].sum() / rows.sum())


def _by_batches(held: LookupSample, is_hot: NDArray[np.bool_]) -> tuple[float, float]:
    """Return between what the share of lookups is, from how far batches differ: lookups of one batch are no chance."""
    tries = np.bincount(held.of_batch, held.of_count)
    hits = np.bincount(held.of_batch, held.of_count * is_hot[held.of_rank])
    share, batches = hits.sum() / tries.sum(), held.batches
    error = float(np.sqrt(((hits - share * tries) ** 2).sum() / (batches - 1) / batches) / tries.mean())
    within = student_t(batches - 1) * error
    return max(0.0, float(share) - within), min(1.0, float(share) + within)
