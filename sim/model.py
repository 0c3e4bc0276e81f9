"""The model, in SimPy: hosts, switches, links and training jobs at packet level. The readable reference.

Follow a packet: `SimulatedWorker` finishes a backward layer and its gradient node counts down messages;
`Host.next_packet` chooses what the NIC sends; `Port.run` serialises it; `Model.arrive` hands it to the next port or to
its host; `Message.receive` collects it and acknowledges; the last chunk counts down the sum, the sum counts down the
pulls, and the last pull opens the gate for which the worker's next forward pass waits. Where switches sum, `adding.py`
has what is otherwise.

Simultaneous events happen in the order of `program.ARRIVE ... TRANSMIT`, so that the compiled engine can give the
same result to the picosecond.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import pairwise, takewhile
from typing import Any

import numpy as np
import simpy

from tensorexpress.background import send_times_ps
from tensorexpress.buffer import Buffer
from tensorexpress.changes import USUAL_PACE, slowed_ps
from tensorexpress.errors import SimulationError, StoppedError
from tensorexpress.graph import share
from tensorexpress.queueing import DISCIPLINES, HOST_ORDERS, Slice
from tensorexpress.recovery import (
    ALPHA_ONE,
    ALPHA_SHIFT,
    backed_off,
    lost_up_to,
    smoothed,
    timeout_after,
    timer_sleep_ps,
)
from tensorexpress.sim.adding import Cell, Stream, make_adder
from tensorexpress.sim.flat_plan import (
    ACKNOWLEDGE,
    ARRIVE,
    BACKGROUND,
    CHANGE,
    COMPUTE,
    JOIN,
    NEVER,
    NO_LIMIT,
    PHASE,
    TIMER,
    TRANSMIT,
    WORK,
    FlatPlan,
)
from tensorexpress.sim.packet import Packet
from tensorexpress.sim.program_changes import CHILD_BELOW, CHILD_LINK, PACE, PARENT, PATH, RATE, UP
from tensorexpress.sim.record import ACK, ADDEND, DATA, OTHER, PACKET, TOTAL, Record, empty_record
from tensorexpress.software import IN, LANES, OUT
from tensorexpress.units import serialisation_ps

Process = Generator[simpy.Event, None, None]

#: Events between two looks at whether to stop.
STEPS = 10_000

#: States of a chunk at its sender.
UNSENT, IN_FLIGHT, LOST, ACKED = range(4)

_MASK = (1 << 64) - 1


def is_lost(seed: int, link: int, count: int, threshold: int) -> bool:
    """Whether the count-th packet on a link is lost: a hash, so that every engine loses the same packets."""
    x = (seed * 0x9E3779B97F4A7C15 + link * 0xBF58476D1CE4E5B9 + count * 0x94D049BB133111EB) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) >> 1 < threshold


def loss_threshold(loss: float) -> int:
    """Return the hash below which a packet is lost."""
    return int(loss * (1 << 63))


class Port:
    """The transmitter of one directed link: takes the next packet, occupies the link, starts again."""

    def __init__(self, model: Model, link: int):
        self.model, self.link = model, link
        self.rate_bps = int(model.program.link_rate_bps[link])
        self.delay_ps = int(model.program.link_delay_ps[link])
        self.is_paced = bool(model.program.link_paced[link])
        self.wake: simpy.Event | None = None
        self.carried = self.busy_until_ps = 0
        #: What has been sent, for how long that took, and the most that waited in a switch.
        self.sent_bytes = self.busy_ps = self.peak_bytes = 0
        model.env.process(self.run())

    def next_packet(self) -> Packet | None:
        """Return what goes out next, None when nothing can."""
        raise NotImplementedError

    def kick(self) -> None:
        """Tell an idle port that there may be something to send; it looks at the end of this instant."""
        if self.wake is not None:
            self.model.schedule(self.wake, 0, TRANSMIT, self.link)
            self.wake = None

    def run(self) -> Process:
        """Transmit for ever."""
        model = self.model
        while True:
            while self.busy_until_ps > model.env.now:
                yield model.at(self.busy_until_ps - int(model.env.now), TRANSMIT, self.link)
            packet = self.next_packet()
            if packet is None:
                self.wake = idle = simpy.Event(model.env)
                yield idle
                continue
            occupied_ps = serialisation_ps(packet.size, self.rate_bps)
            self.sent_bytes += packet.size
            self.busy_ps += occupied_ps
            model.note_transmission(self.link, packet)
            arrival = model.at(self.passing_ps(packet, occupied_ps) + self.delay_ps, ARRIVE, self.link)
            arrival.callbacks.append(partial(self.deliver, packet))
            self.busy_until_ps = int(model.env.now) + occupied_ps

    def passing_ps(self, packet: Packet, occupied_ps: int) -> int:
        """Return how long after it starts to occupy the link a packet or train can be passed on.

        That is when its first packet is there, or so much later that the next link, if it is faster, will not run out
        of packets of the train. A host has a train when it has all of it.
        """
        head = self.model.program.head_bytes
        rest = packet.size - head
        # What a paced link sends is at its end at once.
        if rest <= 0:
            return 0 if self.is_paced else occupied_ps
        head_ps = 0 if self.is_paced else serialisation_ps(head, self.rate_bps)
        tail_ps = serialisation_ps(rest, self.rate_bps) if self.is_paced else occupied_ps
        if packet.hop + 1 == len(packet.path):
            return tail_ps
        following = self.model.ports[packet.path[packet.hop + 1]]
        return max(head_ps, tail_ps - serialisation_ps(rest, following.rate_bps))

    def deliver(self, packet: Packet, _: simpy.Event) -> None:
        """Hand the packet to the far end of the link, unless the link loses it."""
        model = self.model
        self.carried += 1
        if model.loss_threshold and is_lost(model.program.seed, self.link, self.carried, model.loss_threshold):
            model.record.link_losses[self.link] += 1
        else:
            model.arrive(packet)


class SwitchPort(Port):
    """An output port of a switch: a discipline with a finite buffer."""

    def __init__(self, model: Model, link: int):
        program = model.program
        self.queue = DISCIPLINES[program.discipline](program.queues)
        self.buffer = Buffer(program.buffer_bytes, program.queues if self.queue.has_queues else 1)
        super().__init__(model, link)

    def enqueue(self, packet: Packet) -> None:
        """Queue the packet, or drop it when the buffer has no room for it; mark it when its queue is long."""
        program, record, now = self.model.program, self.model.record, int(self.model.env.now)
        place = self.queue.place(now + packet.slack_ps if program.slack_mode else packet.rank)
        packet.queue = place if self.queue.has_queues else 0
        if not self.buffer.take(packet.queue, packet.size):
            (record.link_background_drops if packet.kind == OTHER else record.link_drops)[self.link] += 1
            return
        found = self.queue.push(packet, packet.size, place)
        packet.enqueued_ps = now
        if program.ecn_bytes and packet.kind == DATA and found >= program.ecn_bytes:
            packet.marked = True
            record.link_marks[self.link] += 1
        self.peak_bytes = max(self.peak_bytes, self.queue.backlog_bytes)
        self.kick()

    def next_packet(self) -> Packet | None:
        """Serve the discipline; what a packet waited is taken off its slack."""
        if not len(self.queue):
            return None
        packet: Packet = self.queue.pop()
        self.buffer.release(packet.queue, packet.size)
        packet.slack_ps -= int(self.model.env.now) - packet.enqueued_ps
        return packet


class Host(Port):
    """A host's NIC: acknowledgements and background first, then the slice that the host order puts first."""

    def __init__(self, model: Model, link: int):
        self.control: deque[Packet] = deque()
        self.flows: list[Flow | Stream] = []
        self.in_flight_bytes = 0
        self.served = 0
        #: How long it adds and updates what switches have sent to a server on it.
        self.server_busy_ps = 0
        super().__init__(model, link)

    def send(self, packet: Packet) -> None:
        """Send a packet that cannot be held back."""
        self.control.append(packet)
        self.kick()

    def next_packet(self) -> Packet | None:
        """Take control packets in order, then one chunk of the most urgent slice that may be sent."""
        if self.control:
            return self.control.popleft()
        program = self.model.program
        full = program.full_packet_bytes
        if program.credit_bytes and self.in_flight_bytes and self.in_flight_bytes + full > program.credit_bytes:
            return None
        ready = [
            (*key, flow.served, place) for place, flow in enumerate(self.flows) if (key := flow.head()) is not None
        ]
        if not ready:
            return None
        # Equal keys take turns: the flow that was served longest ago goes first, or the one whose turn is next.
        flow = self.flows[min(ready)[-1]]
        if program.weighs_turns:
            self.served = max(self.served, flow.served)
            flow.served = self.served + int(program.stream_turn[flow.index])
        else:
            self.served += 1
            flow.served = self.served
        return flow.next_chunk()


class Lane:
    """What a host's software does one after another, the lowest key first; see `tensorexpress.software`."""

    def __init__(self, model: Model, index: int):
        self.model, self.index = model, index
        #: As (key, node, how long it takes, what follows).
        self.waiting: list[tuple[int, int, int, Callable[[], None]]] = []
        self.taken = 0
        self.is_busy = False
        self.follows: Callable[[], None] | None = None

    def add(self, key: int, node: int, work_ps: int, follows: Callable[[], None]) -> None:
        """Let something wait for its turn; an idle lane looks at the end of this instant."""
        heapq.heappush(self.waiting, (key, node, work_ps, follows))
        if not self.is_busy:
            self.is_busy = True
            self._look_again(0)

    def append(self, node: int, work_ps: int, follows: Callable[[], None]) -> None:
        """Let something wait behind all that came before."""
        self.taken += 1
        self.add(self.taken, node, work_ps, follows)

    def _look_again(self, delay_ps: int) -> None:
        self.model.at(delay_ps, WORK, self.index).callbacks.append(self._next)

    def _next(self, _: simpy.Event) -> None:
        """Finish what was under way, and take up what is first now."""
        follows, self.follows = self.follows, None
        if follows is not None:
            follows()
        self.is_busy = bool(self.waiting)
        if self.waiting:
            _key, _node, work_ps, self.follows = heapq.heappop(self.waiting)
            self._look_again(work_ps)


class Flow:
    """A reliable, windowed flow of slices between two hosts; the network keeps its packets in order."""

    def __init__(self, model: Model, index: int):
        program = model.program
        self.model, self.index = model, index
        self.src, self.dst = int(program.flow_src[index]), int(program.flow_dst[index])
        self.path = program.path[program.path_start[index] : program.path_start[index + 1]].tolist()
        self.back = program.back[program.back_start[index] : program.back_start[index + 1]].tolist()
        self.transmissions = 0
        #: Chunks on their way in the order of sending, each with the number of its transmission.
        self.in_flight: dict[tuple[Message, int], int] = {}
        self.served = 0
        #: Slices that have something to send, as (key, message index); entries may be out of date.
        self.pending: list[tuple[int, int]] = []
        #: The slice under way: a host finishes a slice before it starts the next one of a flow.
        self.current: Message | None = None
        self.in_flight_bytes = self.unasked = 0
        self.largest_window = program.window_bytes or NO_LIMIT
        self.window = min(program.initial_window_bytes or NO_LIMIT, self.largest_window)
        self.slow_start_until = NO_LIMIT
        self.cut_again_ps = 0
        self.alpha = ALPHA_ONE
        self.round_bytes = self.round_marked = 0
        self.round_trip_ps = self.deviation_ps = 0
        self.timeout_ps = program.rto_min_ps
        self.timer_armed = False
        self.deadline_ps = self.last_ack_ps = 0
        #: Number of the transmission that the last time-out sent.
        self.probe = -1
        #: How long it has stood still for time-outs since the last acknowledgement.
        self.stood_ps = 0

    # Sending

    def head(self) -> tuple[bool, int] | None:
        """Return the key of the next slice, those under way before others; None when nothing may be sent."""
        full = self.model.program.full_packet_bytes
        if self.in_flight_bytes and self.in_flight_bytes + full > self.window:
            return None
        if self.current is not None:
            return (False, self.current.key)
        while self.pending:
            key, index = self.pending[0]
            message = self.model.messages[index]
            if message.key == key and message.has_unsent():
                return (True, key)
            heapq.heappop(self.pending)
        return None

    def next_chunk(self) -> Packet:
        """Return the next chunk of the slice that `head` spoke of."""
        if self.current is None:
            self.current = self.model.messages[heapq.heappop(self.pending)[1]]
        message = self.current
        packet = message.send_chunk()
        if not message.has_unsent():
            self.current = None
        return packet

    def sent(self, size: int) -> None:
        """Account for a chunk that went out; the time-out runs from the last one, and from the last news."""
        self.deadline_ps = int(self.model.env.now) + self.timeout_ps
        if not self.timer_armed:
            self._arm(self.timeout_ps)
        self.in_flight_bytes += size
        self.model.hosts[self.src].in_flight_bytes += size

    def asks_for_acks(self, packets: int, slices: int) -> int:
        """Return for how many acknowledgements the chunk just sent asks: one in every few packets, or in fewer where
        the window is small, and in a train also one at the end of every slice. Those of a train come as one that
        weighs as much.
        """
        program = self.model.program
        allowed = min(self.window, program.credit_bytes or NO_LIMIT)
        every = min(program.ack_every, allowed // (2 * program.full_packet_bytes))
        self.unasked += packets
        if self.unasked < every:
            return 0
        self.unasked = 0
        if packets <= 1 or every <= 1:
            return max(1, packets)
        return max(1, (packets + slices * (every - 1)) // every)

    def acknowledge_beside(self, ack: Packet) -> None:
        """Send an acknowledgement beside trains: it waits for what waits in its queue, and they for its bytes.

        Among them, it would also wait for the whole of a train where it waits for a packet at packet level.
        """
        model, now = self.model, int(self.model.env.now)
        arrives_ps = now
        for link in ack.path:
            port = model.ports[link]
            occupied_ps = serialisation_ps(ack.size, port.rate_bps)
            port.sent_bytes += ack.size
            port.busy_ps += occupied_ps
            port.busy_until_ps = max(now, port.busy_until_ps) + occupied_ps
            arrives_ps += port.delay_ps + (0 if port.is_paced else occupied_ps)
            if isinstance(port, SwitchPort) and not port.queue.sorts():
                waiting = port.buffer.queue_bytes[0] * model.program.queue_share // 10**6
                arrives_ps += serialisation_ps(waiting, port.rate_bps)
        assert ack.message is not None
        take = ack.message.acknowledge
        self.last_ack_ps = max(self.last_ack_ps, arrives_ps)
        model.at(self.last_ack_ps - now, ACKNOWLEDGE, self.index).callbacks.append(lambda _: take(ack))

    def left_network(self, size: int) -> None:
        """Account for a chunk that is acknowledged or given up."""
        self.in_flight_bytes -= size
        self.model.hosts[self.src].in_flight_bytes -= size

    # Congestion

    def acknowledged(self, size: int, marked: bool) -> None:
        """Open the window for acknowledged bytes; close it once a window by the share that was marked (DCTCP)."""
        full = self.model.program.full_packet_bytes
        if marked:
            # A mark ends slow start, in which the window grows as fast as it is acknowledged and no round would end.
            self.slow_start_until = min(self.slow_start_until, self.window)
        if self.window < self.slow_start_until:
            self.window += size
        else:
            self.window += full * size // self.window
        self.round_bytes += size
        if marked:
            self.round_marked += size
        if self.round_bytes >= self.window:
            self.alpha += (self.round_marked * ALPHA_ONE // self.round_bytes - self.alpha) >> ALPHA_SHIFT
            if self.round_marked:
                self.window = max(full, self.window - self.window * self.alpha // (2 * ALPHA_ONE))
                self.slow_start_until = self.window
            self.round_bytes = self.round_marked = 0
        self.window = min(self.window, self.largest_window)
        self.deadline_ps = int(self.model.env.now) + self.timeout_ps

    def lost(self) -> None:
        """Halve the window, once a round trip; not what is in flight, which is little where a slice ends."""
        now = int(self.model.env.now)
        if now >= self.cut_again_ps:
            full = self.model.program.full_packet_bytes
            self.window = max(full, self.window // 2)
            self.slow_start_until = self.window
            self.cut_again_ps = now + self.round_trip_ps

    def lose_until(self, last_transmission: int) -> bool:
        """Take for lost what is in flight and was sent no later than this; return whether there was any."""
        overdue = list(takewhile(lambda item: item[1] <= last_transmission, self.in_flight.items()))
        for (message, chunk), _ in overdue:
            message.lose(chunk)
        return bool(overdue)

    def measured_round_trip(self, sample_ps: int) -> None:
        """Follow the round trip and set the retransmission time-out by it."""
        self.round_trip_ps, self.deviation_ps = smoothed(self.round_trip_ps, self.deviation_ps, sample_ps)
        self.timeout_ps = timeout_after(self.round_trip_ps, self.deviation_ps, self.model.program.rto_min_ps)

    # Time-out

    def _arm(self, delay_ps: int) -> None:
        self.timer_armed = True
        sleep_ps = timer_sleep_ps(delay_ps, self.model.program.rto_min_ps)
        self.model.at(sleep_ps, TIMER, self.index).callbacks.append(self._timer)

    def _timer(self, _: simpy.Event) -> None:
        now = int(self.model.env.now)
        self.timer_armed = False
        if not self.in_flight_bytes:
            return
        if now >= self.deadline_ps:
            self.model.record.timeouts += 1
            self.stood_ps += self.timeout_ps
            self.timeout_ps = backed_off(self.timeout_ps)
            self.deadline_ps = now + self.timeout_ps
            self._send_probe()
        self._arm(self.deadline_ps - now)

    def _send_probe(self) -> None:
        """Send the newest chunk again, whatever the window: what its acknowledgement does not find there was lost."""
        message, chunk = next(reversed(self.in_flight))
        self.probe = self.transmissions
        self.in_flight[message, chunk] = self.probe
        packet = message.packet_of(chunk)
        packet.asks = True
        self.model.record.retransmissions += 1
        self.model.hosts[self.src].send(packet)


class Message:
    """A slice on its way from one host to another: the sender's and the receiver's half."""

    def __init__(self, model: Model, index: int):
        program = model.program
        self.model, self.index = model, index
        self.flow: Any = model.flows[int(program.message_flow[index])]
        self.bytes, self.chunks = int(program.message_bytes[index]), int(program.message_chunks[index])
        self.packets, self.slices = int(program.message_packets[index]), int(program.message_slices[index])
        self.lead_ps, self.slack_ps = int(program.message_lead_ps[index]), int(program.message_slack_ps[index])
        self.rank, self.switch_rank = int(program.message_rank[index]), int(program.message_switch_rank[index])
        self.out_ps, self.in_ps = int(program.message_out_ps[index]), int(program.message_in_ps[index])
        self.iteration = -1
        self.key = self.deadline_ps = 0
        # Nothing is out before the first start.
        self.unacknowledged_from = self.next_unsent = self.chunks
        self.state = bytearray()
        self.received = 0
        #: Where switches sum: the last iteration whose packets may be sent.
        self.copied_iteration = -1

    def start(self, iteration: int, deadline_ps: int) -> None:
        """Begin anew in an iteration; acknowledgements of the one before no longer count."""
        now = int(self.model.env.now)
        self._forget_in_flight()
        self.iteration, self.deadline_ps = iteration, deadline_ps
        self.key = self.model.host_key(
            Slice(now, self.rank, self.bytes, deadline_ps - self.lead_ps, iteration, self.index)
        )
        # At the sender.
        self.state = bytearray(self.chunks)
        self.unacknowledged_from = self.lost = self.lost_from = 0
        # At the receiver.
        self.has = bytearray(self.chunks)
        self.received = self.expected = 0
        if self.out_ps == 0:
            self.copied()
            return
        # Before it is copied there is nothing to send, not even where entries of the flow are out of date.
        self.next_unsent = self.chunks
        if self.flow.current is self:
            self.flow.current = None
        self.model.lane(self.flow.src, OUT).add(self.key, self.index, self.out_ps, self.copied)

    def copied(self) -> None:
        """Let the NIC have it."""
        self.next_unsent = 0
        heapq.heappush(self.flow.pending, (self.key, self.index))
        self.model.hosts[self.flow.src].kick()

    def _forget_in_flight(self) -> None:
        for chunk in range(self.unacknowledged_from, self.next_unsent):
            if self.state[chunk] == IN_FLIGHT:
                self._left_network(chunk)

    def _left_network(self, chunk: int) -> None:
        del self.flow.in_flight[self, chunk]
        self.flow.left_network(self.wire_bytes(chunk))

    def packets_of(self, chunk: int) -> int:
        """Return how many packets carry a chunk; one, but for trains."""
        return share(self.packets, chunk, self.chunks)

    def wire_bytes(self, chunk: int) -> int:
        """Return the bytes of a chunk's packet on the wire."""
        program = self.model.program
        carried = min(program.chunk_bytes, self.bytes - chunk * program.chunk_bytes)
        return carried + self.packets_of(chunk) * program.header_bytes

    # Sender

    def has_unsent(self) -> bool:
        """Whether a chunk waits to be sent for the first time or again."""
        return self.lost > 0 or self.next_unsent < self.chunks

    def send_chunk(self) -> Packet:
        """Return the packet of the next chunk; lost ones go before new ones."""
        model, flow, now = self.model, self.flow, int(self.model.env.now)
        again = self.lost > 0
        if again:
            chunk = self.state.index(LOST, self.lost_from)
            self.lost, self.lost_from = self.lost - 1, chunk + 1
            model.record.retransmissions += 1
        else:
            chunk = self.next_unsent
            self.next_unsent += 1
            if chunk == 0:
                model.record.sent_ps[self.iteration, self.index] = now
        packet = self.packet_of(chunk)
        if model.program.acks:
            self.state[chunk] = IN_FLIGHT
            flow.sent(packet.size)
            flow.in_flight[self, chunk] = packet.transmission
            slices = share(self.slices, chunk, self.chunks)
            packet.asks = max(flow.asks_for_acks(self.packets_of(chunk), slices), again)
        return packet

    def packet_of(self, chunk: int) -> Packet:
        """Return a chunk as the flow's next transmission."""
        flow, now = self.flow, int(self.model.env.now)
        slack_ps = self.deadline_ps - self.lead_ps - now
        packet = Packet(DATA, flow, flow.path, self.wire_bytes(chunk), self.switch_rank, slack_ps)
        packet.message, packet.iteration, packet.chunk = self, self.iteration, chunk
        packet.transmission, packet.sent_ps = flow.transmissions, now
        flow.transmissions += 1
        return packet

    def acknowledge(self, ack: Packet) -> None:
        """Take an acknowledgement: all chunks below `acked_to`, and the one that caused it."""
        if ack.iteration != self.iteration:
            return
        flow = self.flow
        newly = 0
        for chunk in (*range(self.unacknowledged_from, ack.acked_to), ack.chunk):
            if self.state[chunk] == IN_FLIGHT:
                self._left_network(chunk)
            elif self.state[chunk] == LOST:
                self.lost -= 1
            if self.state[chunk] != ACKED:
                newly += self.wire_bytes(chunk)
                self.state[chunk] = ACKED
        self.unacknowledged_from = max(self.unacknowledged_from, ack.acked_to)
        flow.measured_round_trip(int(self.model.env.now) - ack.sent_ps)
        if newly:
            flow.acknowledged(newly, ack.marked)
        if flow.stood_ps:
            # An answer to an earlier packet shows that all only waited.
            if ack.transmission >= flow.probe:
                self.model.record.timed_out_ps[self.iteration, self.index] += flow.stood_ps
            flow.stood_ps = 0
        if flow.lose_until(lost_up_to(ack.transmission, flow.probe, self.model.program.reordering)):
            flow.lost()
        if flow.current is self and not self.has_unsent():
            flow.current = None
        self.model.hosts[flow.src].kick()

    def lose(self, chunk: int) -> None:
        """Take a chunk that is in flight for lost, to be sent again."""
        if not self.has_unsent():
            heapq.heappush(self.flow.pending, (self.key, self.index))
        self._left_network(chunk)
        self.state[chunk] = LOST
        self.lost_from = chunk if self.lost == 0 else min(self.lost_from, chunk)
        self.lost += 1

    # Receiver

    def receive(self, packet: Packet) -> None:
        """Collect a chunk; acknowledge when asked, and after a gap, a mark, a duplicate or the last chunk."""
        if packet.iteration != self.iteration:
            return
        chunk, complete = packet.chunk, False
        duplicate = bool(self.has[chunk])
        if not duplicate:
            self.has[chunk] = 1
            self.received += 1
            while self.expected < self.chunks and self.has[self.expected]:
                self.expected += 1
            complete = self.received == self.chunks
        if self.model.program.acks and (
            packet.asks or packet.marked or duplicate or complete or chunk >= self.expected
        ):
            self._send_ack(packet)
        if complete:
            self.model.arrived(self)

    def _send_ack(self, packet: Packet) -> None:
        flow, program = self.flow, self.model.program
        # As urgent as what it acknowledges: with a slack of its own it would wait behind all data that is late.
        ack = Packet(ACK, flow, flow.back, max(1, packet.asks) * program.ack_bytes, 0, packet.slack_ps)
        ack.message, ack.iteration, ack.chunk = self, packet.iteration, packet.chunk
        ack.transmission, ack.sent_ps = packet.transmission, packet.sent_ps
        ack.acked_to, ack.marked = self.expected, packet.marked
        if program.grain > 1:
            flow.acknowledge_beside(ack)
        else:
            self.model.hosts[flow.dst].send(ack)


class SimulatedWorker:
    """One worker: layers wait until they are open, backward ones fire their gradients, and all say when they are done.

    A forward layer is opened by its gate, from the second pass on; a backward layer by what comes before it, if
    anything does.
    """

    def __init__(self, model: Model, index: int):
        self.model, self.index = model, index
        program = model.program
        self.gates = range(int(program.first_gate[index]), int(program.first_gate[index + 1]))
        self.waits_for = -1
        self.wake: simpy.Event | None = None
        #: How many times slower it computes what it starts now, in millionths.
        self.pace = USUAL_PACE
        model.env.process(self.run())

    def run(self) -> Process:
        """Run all iterations, and a last forward pass that shows what the last transfers held up."""
        model, program = self.model, self.model.program
        yield model.at(int(program.worker_start_ps[self.index]), COMPUTE, self.index)
        for iteration in range(program.iterations + 1):
            for gate in self.gates:
                if model.opened[gate] < iteration:
                    yield self._opening(model.first_gate + gate)
                model.record.forward_start_ps[iteration, gate] = model.env.now
                yield model.at(slowed_ps(int(program.forward_ps[iteration, gate]), self.pace), COMPUTE, self.index)
                if iteration < program.iterations:
                    model.worker_passed(model.first_forward + gate)
                if iteration > 0:
                    model.worker_passed(model.first_gate + gate)
            if iteration < program.iterations:
                for gate in reversed(self.gates):
                    if model.opened_backward[gate] <= iteration:
                        yield self._opening(model.first_backward + gate)
                    model.record.backward_start_ps[iteration, gate] = model.env.now
                    taken_ps = slowed_ps(int(program.backward_ps[iteration, gate]), self.pace)
                    yield model.at(taken_ps, COMPUTE, self.index)
                    model.gradient_ready(gate)
                    model.worker_passed(model.first_backward + gate)
        model.worker_finished()

    def _opening(self, node: int) -> simpy.Event:
        """Return what happens when the layer of this node is open."""
        self.waits_for, self.wake = node, simpy.Event(self.model.env)
        return self.wake

    def opened(self, node: int) -> None:
        """Go on if this is the layer that the worker stands at."""
        if self.waits_for == node and self.wake is not None:
            self.wake.succeed()
            self.waits_for, self.wake = -1, None


class Model:
    """All of it: builds the parts, moves packets between them and counts down the graph."""

    def __init__(self, program: FlatPlan, record_packets: bool = False):
        self.program = program
        self.env = simpy.Environment(initial_time=0)
        self.record = empty_record(program)
        self.loss_threshold = loss_threshold(program.loss)
        self.host_key = HOST_ORDERS[program.host_order].key
        self._log: list[tuple[int, ...]] | None = [] if record_packets else None
        self.ports: list[Port] = [
            (Host if source < program.hosts else SwitchPort)(self, link)
            for link, source in enumerate(program.link_source.tolist())
        ]
        self.hosts: list[Host] = [self.ports[port] for port in program.host_port.tolist()]
        #: By switch, where slots are found by hash.
        #: When every switch is through with what it has to add.
        self.switch_busy_ps: Counter[int] = Counter()
        self.cells: dict[int, list[Cell | None]] = {
            switch: [None] * program.cells for switch in set(program.adder_switch.tolist()) if switch >= 0
        }
        self.adders = [make_adder(self, index) for index in range(len(program.adder_slots))]
        self.streams = [Stream(self, index) for index in range(int(np.count_nonzero(program.stream_slots)))]
        # Streams come first.
        others = [Flow(self, index) for index in range(len(self.streams), len(program.flow_src))]
        self.flows: list[Flow | Stream] = [*self.streams, *others]
        for host, row in zip(self.hosts, _rows(program.host_flows_start, program.host_flows), strict=True):
            host.flows = [self.flows[index] for index in row]
        self.lanes = [Lane(self, index) for index in range(LANES * program.hosts)]
        self.messages = [Message(self, index) for index in range(program.messages)]
        self.fired = [0] * program.messages
        _, _, self.first_gate, self.first_gradient, self.first_forward, self.first_backward = program.first_of_kind
        self.need: list[int] = program.need.tolist()
        #: How often each layer was opened, forward and backward; a backward layer that waits for nothing always is.
        self.opened = [0] * program.gates
        self.opened_backward = [0 if need else NEVER for need in self.need[self.first_backward :]]
        self.node_deadline_ps = [NEVER] * len(self.need)
        self.successors = list(_rows(program.successors_start, program.successors))
        self.workers = [SimulatedWorker(self, index) for index in range(program.workers)]
        self.worker_of = np.repeat(np.arange(program.workers), np.diff(program.first_gate)).tolist()
        self.finished = simpy.Event(self.env)
        self._running = program.workers
        for index in range(len(program.background_flow)):
            self.env.process(self._background(index))
        for index, time_ps in enumerate(program.change_ps.tolist()):
            self.at(time_ps, CHANGE, index).callbacks.append(partial(self._change, index))

    def run(self, stopped: Callable[[], bool], advanced: Callable[[int], None]) -> Record:
        """Run until every worker has finished; return what was observed."""
        try:
            while not self._step():
                if stopped():
                    raise StoppedError
                advanced(self.record.transmissions)
        except simpy.core.EmptySchedule:
            raise SimulationError("no packet can make progress any more; this is a defect, please report it") from None
        self.record.end_ps = int(self.env.now)
        self.record.link_bytes[:] = [port.sent_bytes for port in self.ports]
        self.record.link_busy_ps[:] = [port.busy_ps for port in self.ports]
        self.record.link_peak_bytes[:] = [port.peak_bytes for port in self.ports]
        if self._log is not None:
            self.record.packets = np.array(self._log, dtype=PACKET)
        return self.record

    def _step(self) -> bool:
        """Let some events happen; return whether every worker has finished."""
        for _ in range(STEPS):
            self.env.step()
            if self.finished.processed:
                return True
        return False

    # Time

    def schedule(self, event: simpy.Event, delay_ps: int, phase: int, index: int) -> simpy.Event:
        """Let the event happen after a delay, at its place among the events of that instant."""
        event._ok, event._value = True, None
        self.env.schedule(event, priority=phase * PHASE + index, delay=delay_ps)  # type: ignore[arg-type]
        return event

    def at(self, delay_ps: int, phase: int, index: int) -> simpy.Event:
        """Return a new event that happens after a delay."""
        return self.schedule(simpy.Event(self.env), delay_ps, phase, index)

    # Packets

    def note_transmission(self, link: int, packet: Packet) -> None:
        """Count a packet that starts to occupy a link."""
        self.record.transmissions += 1
        if self._log is not None:
            message = -1 if packet.message is None else packet.message.index
            self._log.append((int(self.env.now), link, packet.kind, packet.flow.index, message, packet.iteration,
            packet.chunk, packet.size))  # fmt: skip

    def arrive(self, packet: Packet) -> None:
        """Pass a packet on to the next port on its path, or to its host at the end of it."""
        packet.hop += 1
        if packet.hop < len(packet.path):
            self.enqueue(packet)
        elif packet.adder is not None:
            (packet.adder.add if packet.kind == ADDEND else packet.adder.hand_down)(packet)
        elif packet.kind == TOTAL:
            assert isinstance(packet.flow, Stream)
            packet.flow.receive(packet)
        elif packet.message is not None:
            (packet.message.receive if packet.kind == DATA else packet.message.acknowledge)(packet)

    def enqueue(self, packet: Packet) -> None:
        """Let a packet wait for the next link on its path: in a switch, or at a server that answers."""
        port = self.ports[packet.path[packet.hop]]
        if isinstance(port, Host):
            port.send(packet)
        else:
            assert isinstance(port, SwitchPort)
            port.enqueue(packet)

    def _background(self, index: int) -> Process:
        program = self.program
        flow = self.flows[int(program.background_flow[index])]
        size, gaps = int(program.background_bytes[index]), program.background_gaps_ps[index].tolist()
        span = int(program.background_at_ps[index]), int(program.background_until_ps[index])
        for due_ps in send_times_ps(gaps, *span):
            yield self.at(due_ps - int(self.env.now), BACKGROUND, index)
            packet = Packet(OTHER, flow, flow.path, size, program.background_rank, program.background_slack_ps)
            self.hosts[flow.src].send(packet)

    def _change(self, index: int, _: simpy.Event) -> None:
        """Give a link, a worker, a flow or an adder what it has from now on."""
        program = self.program
        what, thing, value = (
            int(column[index]) for column in (program.change_what, program.change_thing, program.change_value)
        )
        if what == RATE:
            self.ports[thing].rate_bps = value
        elif what == PACE:
            self.workers[thing].pace = value
        elif what == UP:
            self.adders[thing].up = value
        elif what == PARENT:
            self.adders[thing].parent = value
        elif what in (CHILD_LINK, CHILD_BELOW):
            adder = int(np.searchsorted(program.adder_children_start, thing, side="right")) - 1
            links, _streams, below = self.adders[adder].children
            (links if what == CHILD_LINK else below)[thing - int(program.adder_children_start[adder])] = value
        else:
            way = program.later_way[program.later_way_start[value] : program.later_way_start[value + 1]].tolist()
            setattr(self.flows[thing], "path" if what == PATH else "back", way)

    # The graph

    def gradient_ready(self, gate: int) -> None:
        """Fire the gradient node of a worker's layer."""
        self._fire_successors(self.first_gradient + gate, int(self.env.now) + int(self.program.slack_ps[gate]))

    def worker_passed(self, node: int) -> None:
        """Fire what waits until a worker is through a layer; that has no deadline to hand on."""
        self._fire_successors(node, NEVER)

    def lane(self, host: int, direction: int) -> Lane:
        """Return the lane of a host for what goes out, or for what comes in."""
        return self.lanes[LANES * host + direction]

    def arrived(self, message: Message) -> None:
        """Let the receiver take in a message of which all is there."""
        if message.in_ps == 0:
            self._delivered(message)
        else:
            lane = self.lane(message.flow.dst, IN)
            lane.append(message.index, message.in_ps, partial(self._delivered, message))

    def _delivered(self, message: Message) -> None:
        """Fire what waits for a message."""
        self.record.delivered_ps[message.iteration, message.index] = self.env.now
        self._fire_successors(message.index, message.deadline_ps)

    def _fire_successors(self, node: int, deadline_ps: int) -> None:
        """Count down the successors of a node, and of every node that fires at once because of it."""
        done = [(node, deadline_ps)]
        while done:
            node, deadline_ps = done.pop()
            for successor in self.successors[node]:
                self.need[successor] -= 1
                self.node_deadline_ps[successor] = min(self.node_deadline_ps[successor], deadline_ps)
                if self.need[successor] == 0:
                    earliest = self.node_deadline_ps[successor]
                    self.need[successor] = int(self.program.need[successor])
                    self.node_deadline_ps[successor] = NEVER
                    if self._fire(successor, earliest):
                        done.append((successor, earliest))

    def _fire(self, node: int, deadline_ps: int) -> bool:
        """Do what a node stands for; return whether its successors can be counted down at once."""
        program = self.program
        if node < program.messages:
            return self._start_message(self.messages[node], deadline_ps)
        join = node - program.messages
        if join < program.joins:
            delay_ps, work_ps = int(program.join_delay_ps[join]), int(program.join_work_ps[join])
            if delay_ps == work_ps == 0:
                return True
            update = partial(self._update, join, partial(self._fire_successors, node, deadline_ps))
            if delay_ps == 0:
                update()
            else:
                self.at(delay_ps, JOIN, join).callbacks.append(lambda _: update())
            return False
        if node < self.first_gradient:
            gate = node - self.first_gate
            self.record.gate_open_ps[self.opened[gate], gate] = self.env.now
            self.opened[gate] += 1
        else:
            gate = node - self.first_backward
            self.opened_backward[gate] += 1
        self.workers[self.worker_of[gate]].opened(node)
        return False

    def _update(self, join: int, follows: Callable[[], None]) -> None:
        """Let the host that sums make parameters of a sum."""
        program = self.program
        work_ps = int(program.join_work_ps[join])
        if work_ps == 0:
            follows()
        else:
            self.lane(int(program.join_host[join]), IN).append(program.messages + join, work_ps, follows)

    def _start_message(self, message: Message, deadline_ps: int) -> bool:
        record, now = self.record, self.env.now
        iteration = self.fired[message.index]
        self.fired[message.index] += 1
        record.ready_ps[iteration, message.index] = now
        if message.slack_ps != NEVER:
            deadline_ps = int(now) + message.slack_ps
        if isinstance(message.flow, Stream):
            message.flow.start(message, iteration, deadline_ps)
            return False
        if message.flow.path and message.chunks > 0:
            message.start(iteration, deadline_ps)
            return False
        record.sent_ps[iteration, message.index] = now
        if message.in_ps == 0:
            record.delivered_ps[iteration, message.index] = now
            return True
        message.iteration, message.deadline_ps = iteration, deadline_ps
        self.arrived(message)
        return False

    def worker_finished(self) -> None:
        """Stop when no worker runs any more."""
        self._running -= 1
        if self._running == 0:
            self.finished.succeed()


def _rows(start: np.ndarray, flat: np.ndarray) -> Iterator[list[int]]:
    values, bounds = flat.tolist(), start.tolist()
    return (values[a:b] for a, b in pairwise(bounds))


def run(
    program: FlatPlan,
    record_packets: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    advanced: Callable[[int], None] = lambda _: None,
) -> Record:
    """Execute a program with SimPy.

    Now and then `stopped` is asked whether to give up, and `advanced` is told how many transmissions there have been.
    """
    return Model(program, record_packets).run(stopped, advanced)
