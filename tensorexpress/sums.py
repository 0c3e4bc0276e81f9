"""Sums in switches: which switches sum the gradients of a job on their way, and in which of their slots.

A packet carries `VALUES` whole numbers of a tensor. Every worker sends it to the switch that it is attached to, which
adds up what comes from its children in a *slot*; a switch with another one above it passes one packet on for all of
them; the root of the tree sends the sum back to everybody. Nobody acknowledges: the sum of a packet says that it has
arrived, and releases the next one of its slot.

Workers agree on slots without talking. A *pool* is the slots of one class of a job, as a flow is its connection of
one class; the packets of a class have numbers, in the order in which a backward pass makes its tensors, which go on
from iteration to iteration; packet number i goes through slot i modulo the slots of the pool. What a slot does one
after another are its *turns*: a switch keeps the sums of two of them, because a worker that has not heard of the last
one may still ask for it.

Where policies let sums end at servers, the root is not the end: its sum goes on to the host of a server, which answers
in its place. There is a tree for every server then, with the tensors that are its own (`front`). Slots may also be
found by hash (`hashed`): all jobs share them, and `Pool.slots` is no more than how many packets a worker may have under
way. What finds its slot taken goes on as it is, and the server adds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from struct import pack
from zlib import crc32

from tensorexpress.framing import ETHERNET_BYTES, SUM_OVERHEAD_BYTES, WORKERS_BYTES, Framing
from tensorexpress.queueing import TURN
from tensorexpress.workload import Workload

#: Whole numbers of 32 bits that a packet carries.
VALUES = 256
VALUE_BYTES = 4


def _framing(overhead_bytes: int) -> Framing:
    mtu = VALUES * VALUE_BYTES + overhead_bytes - ETHERNET_BYTES
    return Framing(mtu=mtu, header_bytes=overhead_bytes, ack_bytes=0)


#: How tensors become packets where switches sum them; a sum is the only acknowledgement.
SUM_FRAMING = _framing(SUM_OVERHEAD_BYTES)

#: The same where packets say whose values are in them.
PART_FRAMING = _framing(SUM_OVERHEAD_BYTES + WORKERS_BYTES)

#: What a slot takes of a switch: the values of two sets, and what is known of each.
SLOT_BYTES = 2 * VALUES * VALUE_BYTES + 64

#: Slots that packets can name.
MOST_SLOTS = 1 << 16

#: Children of one switch, and workers of a job whose packets say who is in them; each has a bit.
MOST_CHILDREN = 64


def slots_in(memory_bytes: int) -> int:
    """Return how many slots a switch with so much memory for sums has; 0 is no limit."""
    return min(MOST_SLOTS, memory_bytes // SLOT_BYTES) if memory_bytes else MOST_SLOTS


def packets_of(workload: Workload, hot_rows: Sequence[int] = ()) -> tuple[int, ...]:
    """Return how many packets each tensor takes: there is a value of 32 bits for every parameter, whatever it is.

    Of sparse tables these are the hot rows, so many of each.
    """
    rows = hot_rows or (0,) * len(workload.layers)
    return tuple(-(-layer.dense_values(hot) // VALUES) for layer, hot in zip(workload.layers, rows, strict=True))


def packets_of_parts(workload: Workload, parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the first packet and the number of packets of parts of tensors, given as (tensor, bytes), in order.

    Every part but the last of its tensor ends with a full packet.
    """
    begun: Counter[int] = Counter()
    found = []
    for tensor, size in parts:
        found.append((begun[tensor], -(-size // (VALUES * workload.bytes_per_param))))
        begun[tensor] += found[-1][1]
    return found


@dataclass(frozen=True)
class SummingSwitch:
    """One switch of a job's tree."""

    #: Its index among the switches of the cluster.
    switch: int
    #: The directed links by which its children send to it: from hosts of workers in ascending order, then from switches
    #: below. A child's place is its number in packets, and stays when a switch gives its place in the tree to another.
    children: tuple[int, ...]
    #: The directed link to the switch above; -1 at the root.
    up: int = -1


@dataclass(frozen=True)
class Pool:
    """The slots of one class of a job: the same ones in every switch of its tree.

    Where slots are found by hash, `first_slot` tells the pools of a job apart, and nothing else.
    """

    #: The queue in which its packets wait.
    queue: int
    first_slot: int
    slots: int
    #: Its tensors in the order in which their packets are numbered, the last layer first.
    tensors: tuple[int, ...]
    #: Packets of each of them.
    packets: tuple[int, ...]
    #: Where these begin, of tensors that are split over servers: how many packets of each come before. () is 0 for all.
    starts: tuple[int, ...] = ()

    def start_of(self, tensor: int) -> int:
        """Return how many packets of a tensor other servers have before its first one here."""
        return self.starts[self.tensors.index(tensor)] if self.starts else 0

    @cached_property
    def first_packet(self) -> dict[int, int]:
        """The number of the first packet of every tensor, in an iteration that starts at 0."""
        before = [sum(self.packets[:place]) for place in range(len(self.packets))]
        return dict(zip(self.tensors, before, strict=True))

    @cached_property
    def packets_per_iteration(self) -> int:
        """How far numbers go on in an iteration."""
        return sum(self.packets)

    def number(self, iteration: int, tensor: int, packet: int) -> int:
        """Return the number of a packet of a tensor.

        >>> pool = Pool(queue=1, first_slot=8, slots=4, tensors=(5, 4), packets=(3, 2))
        >>> pool.number(iteration=1, tensor=4, packet=1), pool.slot_of(9)
        (9, 9)
        """
        return iteration * self.packets_per_iteration + self.first_packet[tensor] + packet

    def slot_of(self, number: int) -> int:
        """Return the slot through which a packet goes."""
        return self.first_slot + number % self.slots


@dataclass(frozen=True)
class SumPlan:
    """Where and how some of a job's gradients are summed on their way: in one tree of switches."""

    #: The root first; every other one after the switch above it.
    switches: tuple[SummingSwitch, ...]
    #: By class, most urgent first.
    pools: tuple[Pool, ...]
    #: The host of the server to which the root sends sums, by its link `up`, and which answers; -1: the root does.
    server: int = -1
    #: Cells of every switch in which all jobs find slots by hash; 0 where pools have slots of their own.
    cells: int = 0

    @property
    def framing(self) -> Framing:
        """How its tensors become packets."""
        return PART_FRAMING if self.cells else SUM_FRAMING

    @cached_property
    def tensors(self) -> frozenset[int]:
        """What it sums."""
        return frozenset(tensor for pool in self.pools for tensor in pool.tensors)

    @cached_property
    def above(self) -> dict[int, SummingSwitch]:
        """A link by which a child sends -> the switch that sums what comes over it."""
        return {link: switch for switch in self.switches for link in switch.children}

    def way_up(self, link: int) -> tuple[int, ...]:
        """Return the directed links from a child to where sums end, from the one by which it sends on."""
        way = [link]
        while (switch := self.above.get(way[-1])) is not None and switch.up >= 0:
            way.append(switch.up)
        return tuple(way)

    @cached_property
    def links(self) -> tuple[int, ...]:
        """All directed links that lead up; sums come down the same ones, the other way."""
        return tuple(self.above) if self.server < 0 else (*self.above, self.switches[0].up)


def turns(trees: Sequence[SumPlan]) -> list[int]:
    """Return how far the next turn of each tree is at a host that sends to all of them, by what they have to send.

    Trees that took turns alike would reach the same rate: a small one would be done early, and links that only the
    large ones need would then have been used too little.
    """
    packets = [max(1, sum(pool.packets_per_iteration for pool in tree.pools)) for tree in trees]
    return [max(1, TURN * sum(packets) // (len(packets) * own)) for own in packets]


def cell_of(job: int, pool: int, sequence: int, cells: int) -> int:
    """Return the cell that packets of one sequence number of a pool (by `first_slot`) find by hash, in every switch.

    >>> [cell_of(job=0, pool=1, sequence=number, cells=512) for number in range(3)]
    [217, 79, 501]
    """
    return crc32(pack(">HHI", job, pool, sequence & 0xFFFFFFFF)) % cells
