"""A worker's half of a pool: which packets of its gradients may go to the switch, and what their sums say.

A state machine without sockets or clock, as flow.py is: times are given by the caller. Packet number i goes through
slot i modulo the slots. A slot has one packet under way; its sum comes back to all workers, is the acknowledgement, and
lets the slot take its next packet, in its next *turn*. What all workers decide alike, they decide by the sum alone:

    the exponent    that of a packet's last sum says which one to try next time, so nobody has to ask
    a redo          if the exponent turns out too low for somebody, or far too high for all, the slot's next turn is for
                    the same packet with the exponent that the sum names

A packet counts as lost when the sums of three are here that were first sent later, and after a time-out (recovery.py):
then it is sent again. After three time-outs in a row the worker also *recalls* what it sent in the turn
before, in this slot and in all that wait for nothing, of every pool of the job: a switch that was started again has
forgotten those sums, and others may still wait for them. docs/aggregation.md has all of it in words.

Where switches find slots by hash, the slots of a pool are no more than what a worker may have under way. Packets then
say whose values are in, and have *sequence* numbers, one for every turn of every place. Servers keep sums, so nothing
is recalled.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorexpress.errors import NetworkError
from tensorexpress.fixed_point import (
    HIGHEST,
    LOWEST,
    Floats,
    Integers,
    are_finite,
    exponents_needed,
    in_blocks,
    to_floats,
    to_integers,
)
from tensorexpress.host.tagging import Tag, TrafficClass
from tensorexpress.queueing import TURN
from tensorexpress.recovery import LEAST_TIMEOUT_PS, NEWER_SUMS, POOL_SAMPLES, Gaps, backed_off, timeout_of_pool
from tensorexpress.sums import PART_FRAMING, SUM_FRAMING, Pool
from tensorexpress.wire.header import Flag, Header, Kind, clamp_slack_us
from tensorexpress.wire.sum_header import SumFlag, SumHeader, check_of

#: A packet is tried with the exponent that it needed last time and so many more, because gradients vary.
MARGIN = 1

#: A packet whose exponent was more than this above what anybody needed has lost bits, and is summed again.
COARSEST = 6

#: A sum that is damaged counts as lost; so many of one turn in a row are no accident.
MOST_DAMAGED = 5

#: Time-outs in a row after which a switch may have forgotten sums.
_FORGOTTEN_AFTER = 3

_WRAP = 1 << 32


@dataclass(frozen=True)
class Membership:
    """Who a worker is in the sums of its job."""

    job: int
    #: Its number among the workers of the job, and how many there are.
    worker: int
    workers: int
    #: Its number among the children of its switch, by which the switch knows it.
    child: int
    #: Names of the job's tensors.
    layers: tuple[str, ...]
    #: Tells this run of the job from all before it.
    epoch: int
    rto_min_ps: int = LEAST_TIMEOUT_PS
    #: The exponent with which packets are tried in the first iteration.
    first_exponent: int = MARGIN
    #: How many sums of newer packets tell a loss; 0: switches reorder, and a time-out alone tells.
    newer_sums: int = NEWER_SUMS


@dataclass(frozen=True, slots=True)
class Contribution:
    """A packet for the switch: values to be added, or what a server answers."""

    header: Header
    #: What follows the header: sum header and values.
    payload: bytes
    traffic: TrafficClass
    wire_bytes: int
    count: int = 1


class Summed(NamedTuple):
    """The sum of all workers' packets of one number."""

    iteration: int
    tensor: int
    packet: int
    #: Exactly what the whole numbers stand for.
    values: NDArray[np.float64]
    #: When the first packet of the tensor was first sent.
    first_sent_ps: int


class _Gradient:
    """A tensor that was offered."""

    __slots__ = ("blocks", "finite", "key", "left", "needed", "sent_ps", "tag")

    def __init__(self, tag: Tag, elements: Floats, key: int):
        self.tag, self.key = tag, key
        self.blocks = in_blocks(elements)
        self.finite: list[bool] = are_finite(self.blocks).tolist()
        self.needed: list[int] = exponents_needed(self.blocks).tolist()
        self.left = len(self.blocks)
        #: When its first packet was first sent; -1 before.
        self.sent_ps = -1


class _Slot:
    """What goes through a slot at present."""

    __slots__ = (
        "before", "damaged", "exponent", "is_queued", "number", "order", "packet", "payload", "sent_ps", "timeout_ps",
        "timeouts", "transmissions", "turn",
    )  # fmt: skip

    def __init__(self, number: int):
        #: The packet, which may not have been offered yet.
        self.number = number
        self.turn = 0
        #: The exponent of a redo; None: that of the packet's last sum.
        self.exponent: int | None = None
        #: Whether it waits to be sent, for the first time or again, and how many of the pool could be sent before it.
        self.is_queued, self.order = False, 0
        #: How often it was sent in this turn, and since when it waits for the sum.
        self.transmissions, self.sent_ps, self.timeout_ps = 0, 0, 0
        #: Time-outs in this turn.
        self.timeouts = 0
        self.packet: Header | None = None
        self.payload = b""
        #: What was sent in the turn before.
        self.before: Contribution | None = None
        self.damaged = 0


class PoolSender:
    """What a worker sends through one pool of slots, and takes from it."""

    #: A credit over flows is about queues in hosts. Workers who hold each other's sums back by it would never go on.
    free_of_credit = True

    def __init__(self, pool: Pool, member: Membership, *, by_hash: bool = False, turn: int = TURN):
        """Send through a pool; `by_hash`: its packets find slots by hash, and say whose values are in."""
        self.pool, self.member, self.by_hash = pool, member, by_hash
        self.kind = Kind.PART if by_hash else Kind.SUM
        #: Bytes on the wire that wait for their sums.
        self.in_flight_bytes = 0
        self.timeout_ps = member.rto_min_ps
        self.retransmissions = self.timeouts = self.redone = 0
        #: Sums that came again or too late, and those that were damaged.
        self.late = self.damaged = 0
        #: When it was last chosen, in the count of who chooses, or is next; equal keys take turns by it.
        self.served, self.turn = 0, turn
        self.full_bytes = (PART_FRAMING if by_hash else SUM_FRAMING).full_packet_bytes
        self._slots = [_Slot(number) for number in range(pool.slots)]
        #: The packets before this one were offered; how many of them wait for their sums.
        self._offered, self._left = 0, 0
        self._starts = [pool.first_packet[tensor] for tensor in pool.tensors]
        self._gradients: dict[int, _Gradient] = {}
        #: Of every packet of an iteration.
        self._exponents = np.full(pool.packets_per_iteration, member.first_exponent, dtype=np.int16)
        #: (order, turn, place of the slot, whether it is the packet of the turn before); what is out of date stays.
        self._ready: list[tuple[int, int, int, bool]] = []
        self._order = 0
        #: (time, place of the slot, turn, transmissions); likewise.
        self._timers: list[tuple[int, int, int, int]] = []
        #: By the places of slots.
        self._gaps = Gaps[int](member.newer_sums)
        self._round_trips_ps: deque[int] = deque(maxlen=POOL_SAMPLES)
        #: All pools of the job, and when slots of this one that wait for nothing were last recalled.
        self.pools: Sequence[PoolSender] = (self,)
        self._recalled_ps = -(10**18)
        #: Where and when it last asked whether switches still have a sum, and which turn; None: they had.
        self._asked: tuple[int, int, int] | None = None
        self._next_asked = member.worker

    @property
    def idle(self) -> bool:
        """Whether the sums of all that was offered are here."""
        return self._left == 0

    def has_slot(self, slot: int) -> bool:
        """Whether a slot of the switch is one of this pool."""
        return has_slot(self.pool, slot, self.by_hash)

    def packets_of(self, tensor: int) -> int:
        """Return how many packets a tensor of this pool takes."""
        return self.pool.packets[self.pool.tensors.index(tensor)]

    # Sending

    def offer(self, tag: Tag, elements: Floats, key: int) -> None:
        """Take the gradient of a tensor, which must not change until its sum is here.

        Tensors come in the order of the pool, iteration by iteration, and each after its sum of the iteration before:
        that is how workers agree on slots and exponents without talking.
        """
        pool = self.pool
        gradient = _Gradient(tag, elements, key)
        first = pool.number(tag.iteration, tag.tensor, 0)
        assert (first, gradient.left) == (self._offered, self.packets_of(tag.tensor)), (
            "a tensor that is not the next one of its pool"
        )
        assert first - pool.packets_per_iteration not in self._gradients, "a tensor whose last sum is not here"
        self._gradients[first] = gradient
        self._offered += gradient.left
        self._left += gradient.left
        for number in range(first, min(self._offered, first + pool.slots)):
            place = number % pool.slots
            if self._slots[place].number == number:
                self._queue(place)

    def head(self) -> tuple[bool, int] | None:
        """Return the key of the packet that goes next; None when none may be sent."""
        while self._ready:
            _, turn, place, is_before = self._ready[0]
            slot = self._slots[place]
            if slot.turn == turn and is_before:
                return (False, 0)  # whatever else there is, somebody may wait for it
            if slot.turn == turn and slot.is_queued:
                return (True, self._gradients[self._first_of(slot.number)].key)
            heapq.heappop(self._ready)
        return None

    def next_burst(self, now_ps: int, most: int) -> Contribution:
        """Send the packet that `head` spoke of: what is sent again, and then what could be sent first.

        Sums come to all workers in the same order, so they send in the same one, redos included. By number, a redo
        would overtake others at those workers alone that have not sent them yet, and look like a loss to the rest.
        """
        _, _, place, is_before = heapq.heappop(self._ready)
        slot = self._slots[place]
        if is_before:
            assert slot.before is not None
            self.retransmissions += 1
            return slot.before
        slot.is_queued = False
        gradient = self._gradients[self._first_of(slot.number)]
        if slot.transmissions == 0:
            self._prepare(place, slot, gradient)
            slot.sent_ps, slot.timeout_ps = now_ps, self.timeout_ps
            if gradient.sent_ps < 0:
                gradient.sent_ps = now_ps
        else:
            self.retransmissions += 1
        slot.transmissions += 1
        self._gaps.sent(place)
        self.in_flight_bytes += self.full_bytes
        heapq.heappush(self._timers, (now_ps + slot.timeout_ps, place, slot.turn, slot.transmissions))
        return self._contribution(slot, gradient, now_ps)

    def _queue(self, place: int) -> None:
        slot = self._slots[place]
        slot.is_queued = True
        if not slot.transmissions:
            slot.order, self._order = self._order, self._order + 1
        heapq.heappush(self._ready, (slot.order, slot.turn, place, False))

    def _first_of(self, number: int) -> int:
        """Return the number of the first packet of the tensor that a packet is of."""
        iteration, inside = divmod(number, self.pool.packets_per_iteration)
        start = self._starts[bisect_right(self._starts, inside) - 1]
        return iteration * self.pool.packets_per_iteration + start

    def _prepare(self, place: int, slot: _Slot, gradient: _Gradient) -> None:
        """Scale the values of a packet that is sent for the first time in its turn."""
        member, tag = self.member, gradient.tag
        packet = slot.number - self._first_of(slot.number)
        if slot.exponent is None:
            slot.exponent = int(self._exponents[slot.number % self.pool.packets_per_iteration])
        values = to_integers(gradient.blocks[packet], slot.exponent, member.workers)
        sums = SumHeader(
            epoch=member.epoch,
            turn=self._turn(place, slot),
            slot=self.pool.first_slot + (0 if self.by_hash else place),
            check=check_of(values),
            exponent=slot.exponent,
            needed=gradient.needed[packet],
            culprit=0 if gradient.finite[packet] else member.worker + 1,
            workers=1 << member.worker if self.by_hash else 0,
        )
        slot.payload = sums.pack() + values.astype(">i4").tobytes()
        slot.packet = Header(
            job=member.job,
            worker=member.child,
            iteration=tag.iteration,
            tensor=tag.tensor,
            chunk=packet,
            chunks=tag.chunks,
            queue=tag.queue,
            payload_bytes=len(slot.payload),
            kind=self.kind,
        )

    def _turn(self, place: int, slot: _Slot) -> int:
        """Return the turn of a slot, or the sequence number, as packets have it."""
        return (slot.turn * self.pool.slots + place if self.by_hash else slot.turn) % _WRAP

    def _contribution(self, slot: _Slot, gradient: _Gradient, now_ps: int) -> Contribution:
        assert slot.packet is not None
        slack_us = clamp_slack_us(gradient.tag.deadline_ps - now_ps)
        flags = Flag.RETRANSMITTED if slot.transmissions > 1 else 0
        return Contribution(_with(slot.packet, slack_us, flags), slot.payload, gradient.tag.traffic, self.full_bytes)

    # Time-outs

    @property
    def deadline_ps(self) -> int:
        """When the next time-out strikes; only while something is in flight."""
        while not self._is_due(self._timers[0]):
            heapq.heappop(self._timers)
        return self._timers[0][0]

    def time_out(self, now_ps: int) -> None:
        """Send again what has waited too long for its sum."""
        while self._timers and (self._timers[0][0] <= now_ps or not self._is_due(self._timers[0])):
            timer = heapq.heappop(self._timers)
            if self._is_due(timer):
                self._strike(timer[1], now_ps)

    def _is_due(self, timer: tuple[int, int, int, int]) -> bool:
        """Whether a timer is about the last transmission of its slot, and no sum has come."""
        _, place, turn, transmissions = timer
        slot = self._slots[place]
        return (slot.turn, slot.transmissions) == (turn, transmissions) and not slot.is_queued

    def _strike(self, place: int, now_ps: int) -> None:
        slot = self._slots[place]
        self.timeouts += 1
        slot.timeouts += 1
        self.in_flight_bytes -= self.full_bytes
        if slot.timeouts >= _FORGOTTEN_AFTER:
            self._recall(place)
            for pool in self.pools:
                pool.recall(now_ps, slot.timeout_ps)
        slot.timeout_ps = backed_off(slot.timeout_ps)
        self._queue(place)

    def ask(self, now_ps: int, pause_ps: int) -> None:
        """Find out whether switches have forgotten sums, while this pool waits for none: others may.

        One slot's last packet is sent once more. Whoever has its sum answers; if nobody has within some time, all
        slots' packets are. A switch that was started again may answer nevertheless, if all workers have asked for the
        same slot: so these begin with different ones, and ask for another each time.
        """
        if self._asked is not None:
            if now_ps - self._asked[1] >= pause_ps:
                self._asked = None
                self.recall(now_ps, pause_ps)
            return
        for step in range(self.pool.slots):
            place = (self._next_asked + step) % self.pool.slots
            slot = self._slots[place]
            if slot.before is not None and not slot.transmissions:
                self._asked, self._next_asked = (place, now_ps, slot.turn), place + 1
                self._recall(place)
                return

    def recall(self, now_ps: int, pause_ps: int) -> None:
        """Send the last packets of slots that wait for nothing once more, unless they were within some time."""
        if now_ps < self._recalled_ps + pause_ps:
            return
        self._recalled_ps = now_ps
        for place, slot in enumerate(self._slots):
            if not slot.transmissions:
                self._recall(place)

    def _recall(self, place: int) -> None:
        slot = self._slots[place]
        if slot.before is not None:
            heapq.heappush(self._ready, (-1, slot.turn, place, True))

    def _measure_round_trip(self, slot: _Slot, now_ps: int) -> None:
        # From the first transmission on, whichever the sum answers: the shortest of several counts.
        self._round_trips_ps.append(now_ps - slot.sent_ps)
        self.timeout_ps = timeout_of_pool(self._round_trips_ps, self.member.rto_min_ps)

    # Sums

    def take(self, header: Header, sums: SumHeader, values: Integers, now_ps: int) -> Summed | None:
        """Take what a switch says is the sum of a turn of a slot of this pool, in this job and epoch.

        Return the sum if it is new, right and final. What is late or damaged changes nothing; NetworkError when all
        workers must stop.
        """
        place = sums.turn % self.pool.slots if self.by_hash else sums.slot - self.pool.first_slot
        slot = self._slots[place]
        if not slot.transmissions or sums.turn != self._turn(place, slot):
            self.late += 1
            if self._asked is not None and self._asked[0] == place and sums.turn == (self._asked[2] - 1) % _WRAP:
                self._asked = None
            return None
        assert slot.packet is not None
        assert slot.exponent is not None
        if wrong := self._damage(slot.packet, slot.exponent, header, sums, values):
            self.damaged += 1
            slot.damaged += 1
            if slot.damaged == MOST_DAMAGED:
                raise NetworkError(
                    f"the sum of {self._named(slot.packet)} came {MOST_DAMAGED} times, and was wrong every time: "
                    f"{wrong}; do all workers and switches have the same plan?"
                )
            return None
        self._asked = None
        self._measure_round_trip(slot, now_ps)
        if not slot.is_queued:
            self.in_flight_bytes -= self.full_bytes
        self._send_lost_again(place)
        packet, exponent = slot.packet, slot.exponent
        first_sent_ps = self._gradients[self._first_of(slot.number)].sent_ps
        again = redo_exponent(exponent, sums.needed)
        self._end_turn(slot, again)
        if again is not None:
            self.redone += 1
            self._queue(place)
            return None
        self._end_packet(place, slot, sums.needed)
        exact = to_floats(values, exponent, self.member.workers)
        place = self.pool.start_of(packet.tensor) + packet.chunk
        return Summed(packet.iteration, packet.tensor, place, exact, first_sent_ps)

    def _send_lost_again(self, place: int) -> None:
        """Send again what counts as lost now that the sum of a newer packet is here."""
        for lost in self._gaps.came(place):
            if not self._slots[lost].is_queued:
                self.in_flight_bytes -= self.full_bytes
                self._queue(lost)

    def _damage(self, packet: Header, exponent: int, header: Header, sums: SumHeader, values: Integers) -> str | None:
        """Return what is wrong with a sum; raise what is wrong with somebody's gradient."""
        found = (header.iteration, header.tensor, header.chunk)
        expected = (packet.iteration, packet.tensor, packet.chunk)
        if found != expected:
            return "it is of iteration {}, tensor {}, packet {}".format(*found)
        if sums.exponent != exponent:
            return f"it is for exponent {sums.exponent}, not {exponent}"
        if sums.culprit > self.member.workers or sums.needed < LOWEST:
            return "it speaks of a worker or an exponent that cannot be"
        if self.by_hash and sums.workers != everyone(self.member.workers):
            return "the values of some workers are not in"
        if sums.culprit:
            raise NetworkError(
                f"worker {sums.culprit - 1}'s gradient of {self._named(packet)} has values that are not finite"
            )
        if sums.flags & SumFlag.OVERFLOW:
            raise NetworkError(
                f"the sum of {self._named(packet)} has left 32 bits in a switch; "
                f"are there more than {self.member.workers} workers?"
            )
        return None if check_of(values) == sums.check else "its check is not that of its values"

    def _named(self, packet: Header) -> str:
        return f"tensor {packet.tensor} ({self.member.layers[packet.tensor]}) in iteration {packet.iteration}"

    def _end_turn(self, slot: _Slot, exponent: int | None) -> None:
        """Begin the next turn of a slot, with an exponent if it is a redo."""
        assert slot.packet is not None
        first = self._first_of(slot.number)
        if not self.by_hash:
            again = _with(slot.packet, 0, Flag.RETRANSMITTED)
            slot.before = Contribution(again, slot.payload, self._gradients[first].tag.traffic, self.full_bytes)
        slot.turn += 1
        slot.transmissions = slot.timeouts = slot.damaged = 0
        slot.is_queued, slot.exponent = False, exponent

    def _end_packet(self, place: int, slot: _Slot, needed: int) -> None:
        """Remember what a packet needed, and let its slot take the next one."""
        number, pool = slot.number, self.pool
        if needed > LOWEST:  # zeros say nothing about next time
            self._exponents[number % pool.packets_per_iteration] = min(needed + MARGIN, HIGHEST)
        first = self._first_of(number)
        self._gradients[first].left -= 1
        if self._gradients[first].left == 0:
            del self._gradients[first]
        self._left -= 1
        slot.number += pool.slots
        if slot.number < self._offered:
            self._queue(place)


def has_slot(pool: Pool, slot: int, by_hash: bool) -> bool:
    """Whether packets with a slot are of a pool; with slots found by hash, the number of their pool stands there."""
    return slot == pool.first_slot if by_hash else 0 <= slot - pool.first_slot < pool.slots


def everyone(workers: int) -> int:
    """Return the bits of all workers of a job."""
    return (1 << workers) - 1


def redo_exponent(exponent: int, needed: int) -> int | None:
    """Return with which exponent a packet is to be summed again; None: its sum is good.

    >>> redo_exponent(5, 5), redo_exponent(5, 6), redo_exponent(5, -2), redo_exponent(5, LOWEST)
    (None, 6, -2, None)
    """
    is_coarse = needed + COARSEST < exponent and needed > LOWEST
    return needed if needed > exponent or is_coarse else None


def _with(header: Header, slack_us: int, flags: int) -> Header:
    # `dataclasses.replace` would take as long as all else that is done for a packet.
    return Header(
        header.job, header.worker, header.iteration, header.tensor, header.chunk, header.chunks, header.queue,
        slack_us, header.payload_bytes, header.kind, flags,
    )  # fmt: skip
