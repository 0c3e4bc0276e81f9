"""Sums in switches, in SimPy: what workers send to be summed, and the slots in which switches add it up.

Follow a packet: a gradient's message lets its packets wait for their slots (`Stream.copied`); the NIC takes the first
(`Stream.next_chunk`); the worker's switch adds it (`Adder.add`); the last one of all children makes a packet to the
switch above, or at the root one for every child, which switches below hand down; a sum at the worker (`Stream.receive`)
frees the slot for the next packet, and the last one of a tensor ends its message. Where sums end at servers, the root
sends its sum on, and the server behind it answers (`Adder` as well). Where slots are found by hash, switches have
`CellAdder`s, which pass on what finds no cell, and servers are `PartAdder`s, which put parts together.

`tensorexpress.sums` says how packets find slots, and docs/aggregation.md what a switch does with which.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial
from itertools import takewhile
from struct import pack
from typing import TYPE_CHECKING
from zlib import crc32

import simpy

from tensorexpress.queueing import Slice
from tensorexpress.recovery import SUM_AGE_PS, Gaps, backed_off, smoothed, timeout_after, timer_sleep_ps
from tensorexpress.sim.flat_plan import ANSWER, TIMER
from tensorexpress.sim.packet import Packet
from tensorexpress.sim.record import ADDEND, TOTAL
from tensorexpress.software import OUT

if TYPE_CHECKING:
    from tensorexpress.sim.model import Host, Message, Model

#: Sets of children or workers are numbers of so many bits, which arrays hold as signed ones.
_ALL = (1 << 64) - 1


class Adder:
    """The slots of one pool in one switch, or at a server to which switches send sums."""

    def __init__(self, model: Model, index: int):
        program = model.program
        self.model, self.index = model, index
        self.slots = int(program.adder_slots[index])
        self.up, self.child = int(program.adder_up[index]), int(program.adder_child[index])
        self.parent = int(program.adder_parent[index])
        self.stream, self.switch = int(program.adder_stream[index]), int(program.adder_switch[index])
        self.everybody = int(program.adder_everybody[index]) & _ALL
        host = int(program.adder_host[index])
        self.server = model.hosts[host] if host >= 0 else None
        self.round_trip_ps, self.delay_ps = int(program.adder_round_trip_ps[index]), int(program.adder_delay_ps[index])
        self.add_ps, self.update_ps = int(program.adder_add_ps[index]), int(program.adder_update_ps[index])
        children = slice(*program.adder_children_start[index : index + 2].tolist())
        #: Link, stream and adder of every child.
        self.children = [
            column[children].tolist() for column in (program.adder_links, program.adder_streams, program.adder_below)
        ]
        #: Of every slot and set: the packet that it adds up, who has sent it, and when it was last answered.
        self.number = [-1] * (2 * self.slots)
        self.seen = [0] * (2 * self.slots)
        self.answered_ps = [0] * (2 * self.slots)

    def place_of(self, number: int) -> int:
        """Return the set of the slot through which a packet goes."""
        turn, slot = divmod(number, self.slots)
        return 2 * slot + turn % 2

    def add(self, packet: Packet) -> None:
        """Take a packet of a child: add it, or answer what is there already; what is too late counts no more."""
        place, bit = self.place_of(packet.transmission), 1 << packet.child
        is_late = self._is_late(packet, place)
        is_new = not is_late and not self.seen[place] & bit
        if self.server is not None:
            self._work_at(self.server, is_new, is_new, is_new)
        elif self.add_ps:
            busy_ps = max(int(self.model.env.now), self.model.switch_busy_ps[self.switch])
            self.model.switch_busy_ps[self.switch] = busy_ps + self.add_ps
        if is_late:
            return
        self.seen[place] |= bit
        if self.seen[place] != self.everybody:
            return
        if self.up >= 0:
            self._at(self._leaves_ps(), lambda: self._pass_up(packet))
        elif is_new:
            self._answer(packet, place, range(len(self.children[0])))
        elif int(self.model.env.now) >= self.answered_ps[place] + self.round_trip_ps:
            self._answer(packet, place, [packet.child])

    def _is_late(self, packet: Packet, place: int) -> bool:
        """Whether a packet is older than what its place has; a newer one begins it anew."""
        number = packet.transmission
        if number > self.number[place]:
            # Everybody has the sum that was there: nobody sends a packet before the one two turns ago is summed.
            self.number[place], self.seen[place] = number, 0
        return number < self.number[place]

    def _work_at(self, server: Host, is_added: bool, is_complete: bool, is_whole: bool) -> None:
        """Let a server do for a packet what it costs, one after another, and count it."""
        record, now = self.model.record, int(self.model.env.now)
        record.server_packets += 1
        record.server_sums += is_complete
        record.whole_sums += is_whole
        server.server_busy_ps = max(now, server.server_busy_ps) + is_added * self.add_ps + is_complete * self.update_ps

    def _leaves_ps(self) -> int:
        """Return when a sum leaves: when the server, or the switch, is through with all that came before."""
        now = int(self.model.env.now)
        if self.server is not None:
            return max(now, self.server.server_busy_ps) + self.delay_ps
        return self.model.switch_busy_ps[self.switch] if self.add_ps else now

    def _at(self, time_ps: int, send: Callable[[], None]) -> None:
        """Send something at once, or later."""
        now = int(self.model.env.now)
        if time_ps > now:
            self.model.at(time_ps - now, ANSWER, self.index).callbacks.append(lambda _: send())
        else:
            send()

    def _answer(self, packet: Packet, place: int, children: Iterable[int]) -> None:
        """Send a sum to children."""
        self.answered_ps[place] = self._leaves_ps()

        def send() -> None:
            for child in children:
                self._pass_down(packet, child)

        self._at(self.answered_ps[place], send)

    def hand_down(self, packet: Packet) -> None:
        """Send a sum to all children."""
        for child in range(len(self.children[0])):
            self._pass_down(packet, child)

    def _pass_up(self, packet: Packet, workers: int = 0, again: bool = False) -> None:
        copy = self._copy(packet, ADDEND, self.stream, self.up)
        copy.adder, copy.child = self.model.adders[self.parent], self.child
        copy.workers, copy.again = workers, again
        self.model.enqueue(copy)

    def _pass_down(self, packet: Packet, child: int) -> None:
        link, stream, below = (column[child] for column in self.children)
        copy = self._copy(packet, TOTAL, self.stream if stream < 0 else stream, link)
        copy.adder = None if below < 0 else self.model.adders[below]
        self.model.enqueue(copy)

    def _copy(self, packet: Packet, kind: int, stream: int, link: int) -> Packet:
        """Return what a switch makes of a packet: as urgent as that one."""
        copy = Packet(kind, self.model.streams[stream], [link], packet.size, packet.rank, packet.slack_ps)
        copy.iteration, copy.chunk, copy.transmission = packet.iteration, packet.chunk, packet.transmission
        return copy


class Cell:
    """What a cell of a switch holds: a sum of one packet of some workers."""

    def __init__(self, adder: CellAdder, packet: Packet, taken_ps: int):
        #: Whose it is, and the packet that took it, which says all but the sum's own.
        self.adder, self.packet, self.taken_ps = adder, packet, taken_ps
        self.seen = packet.workers

    @property
    def is_complete(self) -> bool:
        """Whether the sum has gone up; it is kept until the result comes, for late duplicates to find it."""
        return self.seen == self.adder.everybody


class CellAdder(Adder):
    """One pool in a switch whose cells all jobs share; packets say whose values are in them."""

    def __init__(self, model: Model, index: int):
        super().__init__(model, index)
        program = model.program
        self.cells = model.cells[int(program.adder_switch[index])]
        self.queue, self.hash = int(program.adder_queue[index]), int(program.adder_hash[index])

    def cell_of(self, number: int) -> int:
        """Return the cell of a packet; see `sums.cell_of`."""
        return crc32(pack(">I", number & 0xFFFFFFFF), self.hash) % len(self.cells)

    def add(self, packet: Packet) -> None:
        """Take a packet from below: hold it, add it to what is held of its sum, or pass on one or the other."""
        place = self.cell_of(packet.transmission)
        cell = self.cells[place]
        if cell is not None and self._owns(cell, packet):
            self._add_to(cell, place, packet)
        elif packet.again or packet.workers == self.everybody:
            self._pass_up(packet, packet.workers, packet.again)
        elif cell is None:
            self._take(place, packet)
        elif self._may_evict(cell):
            self.model.record.evictions += 1
            if not cell.is_complete:
                cell.adder._pass_up(cell.packet, cell.seen, again=True)
            self._take(place, packet)
        else:
            self.model.record.collisions += 1
            self._pass_up(packet, packet.workers, again=False)

    def _owns(self, cell: Cell, packet: Packet) -> bool:
        return cell.adder is self and cell.packet.transmission == packet.transmission

    def _may_evict(self, cell: Cell) -> bool:
        is_more_urgent = self.model.program.preempts and self.queue < cell.adder.queue
        return is_more_urgent or int(self.model.env.now) - cell.taken_ps > SUM_AGE_PS

    def _take(self, place: int, packet: Packet) -> None:
        self.cells[place] = Cell(self, packet, int(self.model.env.now))

    def _add_to(self, cell: Cell, place: int, packet: Packet) -> None:
        """Take a packet whose sum is under way in its cell."""
        is_apart = not packet.workers & cell.seen
        is_known = packet.workers & cell.seen == packet.workers
        if packet.again and (is_apart or is_known):
            # Whatever is missing of this sum, the rest does not wait here any longer.
            self._pass_up(packet, cell.seen if is_known else cell.seen | packet.workers, again=True)
            self.cells[place] = None
        elif is_apart:
            cell.seen |= packet.workers
            if cell.is_complete:
                self._pass_up(packet, cell.seen, again=False)
        elif packet.again or not is_known:
            self._pass_up(packet, packet.workers, packet.again)

    def hand_down(self, packet: Packet) -> None:
        """Send a sum to all children; nobody needs its cell any more."""
        place = self.cell_of(packet.transmission)
        cell = self.cells[place]
        if cell is not None and self._owns(cell, packet):
            self.cells[place] = None
        super().hand_down(packet)


class PartAdder(Adder):
    """One pool at a server to which switches send whole sums, or parts where these found no cell."""

    def place_of(self, number: int) -> int:
        """Return the place of a packet: there are two for each that a worker may have under way."""
        return number % (2 * self.slots)

    def add(self, packet: Packet) -> None:
        """Take a sum or a part of it, unless some of it is there already; answer when all is there, and when asked."""
        place = self.place_of(packet.transmission)
        is_late = self._is_late(packet, place)
        was_complete = not is_late and self.seen[place] == self.everybody
        is_apart = not is_late and not packet.workers & self.seen[place]
        if is_apart:
            self.seen[place] |= packet.workers
        is_complete = is_apart and self.seen[place] == self.everybody
        assert self.server is not None
        self._work_at(self.server, is_apart, is_complete, is_complete and packet.workers == self.everybody)
        asks_again = was_complete and int(self.model.env.now) >= self.answered_ps[place] + self.round_trip_ps
        if is_complete or asks_again:
            self._answer(packet, place, [0])


def make_adder(model: Model, index: int) -> Adder:
    """Return an adder of the kind that the program has there."""
    if not model.program.cells:
        return Adder(model, index)
    return (PartAdder if int(model.program.adder_switch[index]) < 0 else CellAdder)(model, index)


class Stream:
    """What one worker sends of one pool: packet number i goes through slot i modulo the slots, in turn."""

    def __init__(self, model: Model, index: int):
        program = model.program
        self.model, self.index = model, index
        self.src = self.dst = int(program.flow_src[index])
        self.path = program.path[program.path_start[index] : program.path_start[index + 1]].tolist()
        self.slots, self.packets = int(program.stream_slots[index]), int(program.stream_packets[index])
        self.adder, self.child = int(program.stream_adder[index]), int(program.stream_child[index])
        rows = slice(*program.stream_messages_start[index : index + 2].tolist())
        self.messages: list[int] = program.stream_messages[rows].tolist()
        self.first: list[int] = program.message_first[program.stream_messages[rows]].tolist()
        self.served = 0
        #: The packet that each slot takes next, or has under way.
        self.number = list(range(self.slots))
        #: Packets that may be sent, and those under way with when they were sent, in that order.
        self.waiting: list[int] = []
        self.under_way: dict[int, int] = {}
        self.sent_again: set[int] = set()
        self.gaps = Gaps[int](program.newer_sums)
        self.round_trip_ps = self.deviation_ps = 0
        self.timeout_ps = program.rto_min_ps
        self.timer_armed = False

    def message_of(self, number: int) -> Message:
        """Return the message to which a packet belongs."""
        message: Message = self.model.messages[self.messages[bisect_right(self.first, number % self.packets) - 1]]
        return message

    # Sending

    def start(self, message: Message, iteration: int, deadline_ps: int) -> None:
        """Begin a message whose gradient is there."""
        now = int(self.model.env.now)
        message.iteration, message.deadline_ps = iteration, deadline_ps
        message.key = self.model.host_key(
            Slice(now, message.rank, message.bytes, deadline_ps - message.lead_ps, iteration, message.index)
        )
        message.next_unsent = message.received = 0
        if message.out_ps == 0:
            self.copied(message)
        else:
            lane = self.model.lane(self.src, OUT)
            lane.add(message.key, message.index, message.out_ps, partial(self.copied, message))

    def copied(self, message: Message) -> None:
        """Let the packets of a message wait whose slots are free."""
        message.copied_iteration = message.iteration
        first = message.iteration * self.packets + int(self.model.program.message_first[message.index])
        for number in range(first, first + min(self.slots, message.chunks)):
            if self.number[number % self.slots] == number:
                heapq.heappush(self.waiting, number)
        self.model.hosts[self.src].kick()

    def head(self) -> tuple[bool, int] | None:
        """Return the key of the next packet; None when nothing may be sent."""
        return (True, self.message_of(self.waiting[0]).key) if self.waiting else None

    def next_chunk(self) -> Packet:
        """Return the packet that `head` spoke of."""
        number = heapq.heappop(self.waiting)
        message = self.message_of(number)
        if message.next_unsent == 0:
            self.model.record.sent_ps[message.iteration, message.index] = self.model.env.now
        message.next_unsent += 1
        if not self.timer_armed:
            self._arm(self.timeout_ps)
        return self._sent(number)

    def _sent(self, number: int) -> Packet:
        """Return a packet that goes out now."""
        now, message = int(self.model.env.now), self.message_of(number)
        self.under_way.pop(number, None)
        self.under_way[number] = now
        self.gaps.sent(number)
        size, slack_ps = self.model.program.sum_packet_bytes, message.deadline_ps - message.lead_ps - now
        packet = Packet(ADDEND, self, self.path, size, message.switch_rank, slack_ps)
        packet.message, packet.iteration, packet.chunk = message, message.iteration, number % self.packets
        packet.transmission = number
        packet.adder, packet.child = self.model.adders[self.adder], self.child
        packet.workers, packet.again = 1 << self.child, number in self.sent_again
        return packet

    # Sums

    def receive(self, packet: Packet) -> None:
        """Take a sum, unless it has come before: it frees its slot, and the last one of a message ends that."""
        model, now, number = self.model, int(self.model.env.now), packet.transmission
        if number not in self.under_way:
            return
        sent_ps, message = self.under_way.pop(number), self.message_of(number)
        for lost in self.gaps.came(number):
            self._send_again(lost)
        if number in self.sent_again:
            # It may answer either packet.
            self.sent_again.remove(number)
        else:
            self.round_trip_ps, self.deviation_ps = smoothed(self.round_trip_ps, self.deviation_ps, now - sent_ps)
            self.timeout_ps = timeout_after(self.round_trip_ps, self.deviation_ps, model.program.rto_min_ps)
        following = self.number[number % self.slots] = number + self.slots
        if self.message_of(following).copied_iteration == following // self.packets:
            heapq.heappush(self.waiting, following)
            model.hosts[self.src].kick()
        answer = model.messages[int(model.program.message_answer[message.index])]
        if message.received == 0:
            model.record.ready_ps[message.iteration, answer.index] = now
            model.record.sent_ps[message.iteration, answer.index] = now
        message.received += 1
        if message.received == message.chunks:
            model.record.delivered_ps[message.iteration, message.index] = now
            answer.iteration, answer.deadline_ps = message.iteration, message.deadline_ps
            model.arrived(answer)

    # Loss

    def _send_again(self, number: int) -> None:
        self.model.record.retransmissions += 1
        self.sent_again.add(number)
        self.model.hosts[self.src].send(self._sent(number))

    def _arm(self, delay_ps: int) -> None:
        self.timer_armed = True
        sleep_ps = timer_sleep_ps(delay_ps, self.model.program.rto_min_ps)
        self.model.at(sleep_ps, TIMER, self.index).callbacks.append(self._timer)

    def _timer(self, _: simpy.Event) -> None:
        """Send again all that has waited for a time-out: not every loss has newer sums to tell of it."""
        now = int(self.model.env.now)
        self.timer_armed = False
        if not self.under_way:
            return
        overdue_ps = now - self.timeout_ps
        overdue = list(takewhile(lambda number: self.under_way[number] <= overdue_ps, self.under_way))
        if overdue:
            self.model.record.timeouts += 1
            self.timeout_ps = backed_off(self.timeout_ps)
        for number in overdue:
            self._send_again(number)
        oldest_ps = next(iter(self.under_way.values()))
        self._arm(oldest_ps + self.timeout_ps - now)
