"""Switches that sum, as plain Python in virtual time: the slot protocol of docs/aggregation.md and nothing else.

It knows no P4, tables or queues: what hosts do is tested against it, and the P4 program can be held to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from support.virtual_network import FAULTLESS, Faults, VirtualNetwork
from tensorexpress.host.links import Address
from tensorexpress.sums import VALUES
from tensorexpress.wire.header import HEADER_BYTES, Header, Kind, unpack
from tensorexpress.wire.sum_header import CHECK_MODULUS, SumFlag, SumHeader, read_sum


def is_newer(one: int, other: int) -> bool:
    """Whether a number of 32 bits comes after another one, by RFC 1982."""
    return 0 < (one - other) % 2**32 < 2**31


class ReferenceNetwork(VirtualNetwork):
    """Hosts behind switches. A packet to be summed goes to the sender's switch, wherever it is addressed to.

    UDP has a checksum, so damage loses a packet; but in what a switch sends down it may also flip values or their check
    in a way that the checksum misses.
    """

    def __init__(self, faults: Faults = FAULTLESS, seed: int = 0):
        super().__init__(faults, seed)
        self.switches: dict[Address, ReferenceSwitch] = {}
        self.switch_of: dict[Address, Address] = {}
        #: Sums that were damaged where only the check can tell.
        self.flipped = 0

    def carry(self, source: Address, target: Address, datagram: bytes) -> None:
        if unpack(datagram).kind == Kind.SUM and source not in self.switches:
            target = self.switch_of[source]
        super().carry(source, target, datagram)

    def damaged(self, target: Address, datagram: bytes) -> bytes:
        if target in self.switches or unpack(datagram).kind != Kind.SUM or self.random.random() < 0.5:
            return b""  # found out by the checksum of UDP
        self.flipped += 1
        data = bytearray(datagram)
        place = self.random.choice([HEADER_BYTES + 10, self.random.randrange(HEADER_BYTES + 16, len(data))])
        data[place] ^= 1 << self.random.randrange(8)
        return bytes(data)


@dataclass(frozen=True)
class Cell:
    """What a switch knows of one set of a slot."""

    header: Header
    sums: SumHeader
    seen: int
    values: np.ndarray
    overflow: bool = False

    @property
    def identity(self) -> tuple[int, int, int]:
        return self.header.iteration, self.header.tensor, self.header.chunk


class ReferenceSwitch:
    """One switch of one job's tree; its children are hosts or switches, each at a port of its own."""

    def __init__(
        self,
        network: ReferenceNetwork,
        address: Address,
        children: Sequence[Address],
        *,
        above: tuple[Address, int] | None = None,
        job: int = 0,
        slots: range = range(2**16),
    ):
        self.network, self.address, self.children = network, address, list(children)
        #: The switch above, and this one's number there.
        self.above, self.job, self.slots = above, job, slots
        self.cells: dict[tuple[int, int], Cell] = {}
        self.events: Counter[str] = Counter()
        # What arrives is given to `append`, as to the queue of a host's link.
        self.arrived = self
        network.links[address] = self  # type: ignore[assignment]
        network.switches[address] = self
        for child in self.children:
            network.switch_of.setdefault(child, address)

    def forget(self) -> None:
        """Start again with nothing."""
        self.cells.clear()

    def append(self, arrival: tuple[Address, bytes, bool]) -> None:
        source, data, _ = arrival
        if self.above and source == self.above[0]:
            self.events["handed down"] += 1
            self._down(data)
            return
        header, sums, values = read_sum(data)
        if header.job != self.job or self.children[header.worker : header.worker + 1] != [source]:
            self.events["strangers"] += 1
        elif sums.slot not in self.slots or sums.flags & SumFlag.RESULT:
            self.events["out of range"] += 1
        else:
            self._contribution(header, sums, values)

    def _contribution(self, header: Header, sums: SumHeader, values: np.ndarray) -> None:
        place = (sums.slot, sums.turn & 1)
        cell, bit = self.cells.get(place), 1 << header.worker
        if cell is None or is_newer(sums.epoch, cell.sums.epoch):
            cell = None
        elif sums.epoch != cell.sums.epoch or is_newer(cell.sums.turn, sums.turn):
            self.events["late"] += 1
            return
        elif is_newer(sums.turn, cell.sums.turn):
            cell = None
        if cell is None:
            cell = Cell(header, sums, bit, values)
        elif cell.identity != (header.iteration, header.tensor, header.chunk):
            self.events["mismatches"] += 1
            return
        elif cell.seen & bit:
            self._duplicate(cell, header)
            return
        else:
            cell = added(cell, header, sums, values)
        self.events["contributions"] += 1
        self.cells[place] = cell
        if self._is_complete(cell):
            self.events["sums completed"] += 1
            self._pass_on(cell, None)

    def _is_complete(self, cell: Cell) -> bool:
        return cell.seen == (1 << len(self.children)) - 1

    def _duplicate(self, cell: Cell, header: Header) -> None:
        if not self._is_complete(cell):
            self.events["duplicates dropped"] += 1
            return
        self.events["duplicates answered"] += 1
        self._pass_on(cell, self.children[header.worker])

    def _pass_on(self, cell: Cell, child: Address | None) -> None:
        """Send a complete sum up, or down to one child or all."""
        if self.above is not None:
            above, number = self.above
            self.network.carry(self.address, above, _packet(cell, number, 0))
        elif child is not None:
            self.network.carry(self.address, child, _packet(cell, 0, SumFlag.RESULT))
        else:
            self._down(_packet(cell, 0, SumFlag.RESULT))

    def _down(self, data: bytes) -> None:
        for child in self.children:
            self.network.carry(self.address, child, data)


def added(cell: Cell, header: Header, sums: SumHeader, values: np.ndarray) -> Cell:
    """Return a cell with one more contribution."""
    total = cell.values.astype(np.int64) + values
    return Cell(
        header,
        replace(
            sums,
            check=(cell.sums.check + sums.check) % CHECK_MODULUS,
            needed=max(cell.sums.needed, sums.needed),
            culprit=max(cell.sums.culprit, sums.culprit),
            flags=cell.sums.flags | sums.flags,
        ),
        cell.seen | 1 << header.worker,
        total.astype(np.int32),
        cell.overflow or bool((abs(total) >= 2**31).any()),
    )


def _packet(cell: Cell, worker: int, flags: int) -> bytes:
    overflow = SumFlag.OVERFLOW if cell.overflow else 0
    sums = replace(cell.sums, flags=cell.sums.flags | flags | overflow)
    assert len(cell.values) == VALUES
    return replace(cell.header, worker=worker, flags=0).pack() + sums.pack() + cell.values.astype(">i4").tobytes()
