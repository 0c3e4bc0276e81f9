"""Switches that sum, as plain Python in virtual time: the slot protocols of docs/aggregation.md and nothing else.

They know no P4, tables or queues: what hosts do is tested against them, and the P4 program can be held to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from support.virtual_network import FAULTLESS, Faults, VirtualNetwork
from tensorexpress.host.links import Address
from tensorexpress.recovery import SUM_AGE_PS
from tensorexpress.sums import VALUES, cell_of
from tensorexpress.wire.header import Flag, Header, Kind, unpack
from tensorexpress.wire.sum_header import CHECK_MODULUS, SumFlag, SumHeader, read_sum


def is_newer(one: int, other: int) -> bool:
    """Whether a number of 32 bits comes after another one, by RFC 1982."""
    return 0 < (one - other) % 2**32 < 2**31


def is_sum(datagram: bytes) -> bool:
    """Whether it is for switches that sum, or from one."""
    return unpack(datagram).kind in (Kind.SUM, Kind.PART)


class ReferenceNetwork(VirtualNetwork):
    """Hosts behind switches. A packet to be summed goes to the sender's switch, wherever it is addressed to.

    UDP has a checksum, so damage loses a packet; but in what a switch sends down it may also flip values or their check
    in a way that the checksum misses.
    """

    def __init__(self, faults: Faults = FAULTLESS, seed: int = 0):
        super().__init__(faults, seed)
        self.switches: dict[Address, ReferenceSwitch | HashedSwitch] = {}
        #: Of a host and a job: which slots (or pools, where these are found by hash) are summed in which switch.
        self._routes: dict[tuple[Address, int], list[tuple[range, Address]]] = {}
        #: Sums that were damaged where only the check can tell.
        self.flipped = 0

    def attach(self, host: Address, job: int, slots: range, switch: Address) -> None:
        """Let a host's packets to some slots of a job go to a switch."""
        self._routes.setdefault((host, job), []).append((slots, switch))

    def carry(self, source: Address, target: Address, datagram: bytes) -> None:
        if is_sum(datagram) and source not in self.switches:
            header, sums, _ = read_sum(datagram)
            routes = self._routes.get((source, header.job), [])
            target = next((switch for slots, switch in routes if sums.slot in slots), ("nowhere", 0))
        super().carry(source, target, datagram)

    def damaged(self, target: Address, datagram: bytes) -> bytes:
        if target in self.switches or not is_sum(datagram) or self.random.random() < 0.5:
            return b""  # found out by the checksum of UDP
        self.flipped += 1
        data = bytearray(datagram)
        start = len(data) - 4 * VALUES
        place = self.random.choice([start - 6, self.random.randrange(start, len(data))])
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
    """One switch of one job's tree; its children are hosts or switches, each at a port of its own.

    Above it is another switch, or a server that answers.
    """

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
        for neighbour in [*self.children, *(above or ())[:1]]:
            network.attach(neighbour, job, slots, address)

    def forget(self) -> None:
        """Start again with nothing."""
        self.cells.clear()

    def append(self, arrival: tuple[Address, bytes, bool]) -> None:
        source, data, _ = arrival
        header, sums, values = read_sum(data)
        if self.above and source == self.above[0] and sums.flags & SumFlag.RESULT:
            self.events["handed down"] += 1
            self._down(data)
            return
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
            cell = merge(cell, Cell(header, sums, bit, values))
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


def _packet(cell: Cell, worker: int, flags: int) -> bytes:
    overflow = SumFlag.OVERFLOW if cell.overflow else 0
    sums = replace(cell.sums, flags=cell.sums.flags | flags | overflow)
    assert len(cell.values) == VALUES
    return replace(cell.header, worker=worker, flags=0).pack() + sums.pack() + cell.values.astype(">i4").tobytes()


@dataclass
class HashedTree:
    """A switch's place in one tree of a job."""

    job: int
    pools: range
    children: list[Address]
    #: Which workers are below each of them.
    own: list[int]
    #: A switch or a server, and this switch's number there.
    above: tuple[Address, int]

    @property
    def everyone(self) -> int:
        return sum(self.own)


@dataclass
class HashedCell:
    """What a switch knows of one cell."""

    tree: HashedTree
    part: Cell
    taken_ps: int
    is_complete: bool = False

    @property
    def owner(self) -> tuple[int, int, int, int]:
        return owner_of(self.part.header, self.part.sums)


def owner_of(header: Header, sums: SumHeader) -> tuple[int, int, int, int]:
    return header.job, sums.epoch, sums.slot, sums.turn


class HashedSwitch:
    """A switch whose cells are found by hash: all jobs and trees share them."""

    def __init__(self, network: ReferenceNetwork, address: Address, cells: int, *, preempts: bool = False):
        self.network, self.address, self.count, self.preempts = network, address, cells, preempts
        self.trees: list[HashedTree] = []
        self.cells: dict[int, HashedCell] = {}
        self.events: Counter[str] = Counter()
        self.arrived = self
        network.links[address] = self  # type: ignore[assignment]
        network.switches[address] = self

    def join(self, tree: HashedTree) -> None:
        self.trees.append(tree)
        for neighbour in [*tree.children, tree.above[0]]:
            self.network.attach(neighbour, tree.job, tree.pools, self.address)

    def forget(self) -> None:
        """Start again with nothing."""
        self.cells.clear()

    def append(self, arrival: tuple[Address, bytes, bool]) -> None:
        source, data, _ = arrival
        header, sums, values = read_sum(data)
        tree = next((each for each in self.trees if each.job == header.job and sums.slot in each.pools), None)
        if tree is None or header.kind != Kind.PART:
            self.events["out of range"] += 1
        elif sums.flags & SumFlag.RESULT:
            self._result(tree, source, header, sums, data)
        elif tree.children[header.worker : header.worker + 1] != [source] or sums.workers & ~tree.own[header.worker]:
            self.events["strangers"] += 1
        else:
            self._contribution(tree, Cell(header, sums, sums.workers, values))

    def _result(self, tree: HashedTree, source: Address, header: Header, sums: SumHeader, data: bytes) -> None:
        if source != tree.above[0]:
            self.events["strangers"] += 1
            return
        place = self._place(header, sums)
        if place in self.cells and self.cells[place].owner == owner_of(header, sums):
            del self.cells[place]
        self.events["handed down"] += 1
        for child in tree.children:
            self.network.carry(self.address, child, data)

    def _place(self, header: Header, sums: SumHeader) -> int:
        return cell_of(header.job, sums.slot, sums.turn, self.count)

    def _contribution(self, tree: HashedTree, part: Cell) -> None:
        header, sums = part.header, part.sums
        place = self._place(header, sums)
        cell, again = self.cells.get(place), bool(header.flags & Flag.RETRANSMITTED)
        if cell is not None and cell.owner[0] == header.job and cell.owner[1] != sums.epoch:
            if is_newer(cell.owner[1], sums.epoch):
                self.events["late"] += 1
                return
            del self.cells[place]
            cell = None
        if cell is None:
            self._alone(tree, place, part, again)
        elif cell.owner == owner_of(header, sums):
            self._together(tree, place, cell, part, again)
        else:
            self._collide(tree, place, cell, part, again)

    def _alone(self, tree: HashedTree, place: int, part: Cell, again: bool) -> None:
        if again or part.seen == tree.everyone:
            self._up(tree, part, again)
        else:
            self.events["cells taken"] += 1
            self.cells[place] = HashedCell(tree, part, self.network.now_ps)

    def _together(self, tree: HashedTree, place: int, cell: HashedCell, part: Cell, again: bool) -> None:
        held, is_disjoint = cell.part, not cell.part.seen & part.seen
        if (held.identity, held.sums.exponent) != (part.identity, part.sums.exponent):
            self.events["mismatches"] += 1
        elif is_disjoint:
            merged = merge(held, part)
            if again:
                self._up(tree, merged, again=True)
                del self.cells[place]
                return
            cell.part = merged
            self.events["contributions"] += 1
            if merged.seen == tree.everyone:
                cell.is_complete = True
                self.events["sums completed"] += 1
                self._up(tree, merged, again=False)
        elif part.seen & ~held.seen:
            self.events["overlaps"] += 1
            self._up(tree, part, again)
        elif again:
            self.events["flushed"] += 1
            self._up(tree, held, again=True)
            del self.cells[place]
        else:
            self.events["duplicates dropped"] += 1

    def _collide(self, tree: HashedTree, place: int, cell: HashedCell, part: Cell, again: bool) -> None:
        is_old = self.network.now_ps - cell.taken_ps > SUM_AGE_PS
        is_more_urgent = self.preempts and part.header.queue < cell.part.header.queue
        if again or part.seen == tree.everyone or not (is_old or is_more_urgent):
            self.events["collisions"] += 1
            self._up(tree, part, again)
            return
        self.events["evictions"] += 1
        if not cell.is_complete:
            self._up(cell.tree, cell.part, again=True)
        self.cells[place] = HashedCell(tree, part, self.network.now_ps)

    def _up(self, tree: HashedTree, part: Cell, again: bool) -> None:
        above, number = tree.above
        overflow = SumFlag.OVERFLOW if part.overflow else 0
        sums = replace(part.sums, workers=part.seen, flags=part.sums.flags | overflow)
        header = replace(part.header, worker=number, flags=Flag.RETRANSMITTED if again else 0)
        data = header.pack() + sums.pack() + part.values.astype(">i4").tobytes()
        self.network.carry(self.address, above, data)


def merge(one: Cell, other: Cell) -> Cell:
    """Return the sum of two of which nobody is in both."""
    assert not one.seen & other.seen
    total = one.values.astype(np.int64) + other.values
    sums = replace(
        other.sums,
        check=(one.sums.check + other.sums.check) % CHECK_MODULUS,
        needed=max(one.sums.needed, other.sums.needed),
        culprit=max(one.sums.culprit, other.sums.culprit),
        flags=one.sums.flags | other.sums.flags,
    )
    overflow = one.overflow or other.overflow or bool((abs(total) >= 2**31).any())
    return Cell(other.header, sums, one.seen | other.seen, total.astype(np.int32), overflow)
