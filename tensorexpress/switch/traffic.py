"""The traffic manager of one port: K strict-priority queues that share one link rate and one buffer.

v1model counts priorities upwards and serves the highest first; our queue 0 is the most urgent. A packet of priority p
waits in queue K - 1 - p.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorexpress.buffer import Buffer
from tensorexpress.errors import InputError, unknown
from tensorexpress.queueing import DISCIPLINES, Discipline, Ranks, StrictPriority
from tensorexpress.switch.packet import SwitchPacket
from tensorexpress.units import serialisation_ps

#: Bytes that a frame occupies the wire for beside its own: preamble 8, check sequence 4, gap 12.
ETHERNET_OVERHEAD_BYTES = 24

#: The shortest frame on the wire, check sequence not counted; what is shorter is padded there.
SHORTEST_FRAME_BYTES = 60

#: Above every priority that there is.
ANY_PRIORITY = 2**32

#: A share is counted in millionths, so that what is owed to a queue is an exact integer.
_WHOLE = 10**6


@dataclass(frozen=True, slots=True)
class PortSettings:
    """What a port's queues and link are like."""

    #: Bit/s that all queues share; None sends every packet at once.
    rate_bps: int | None = None
    #: A name in `queueing.DISCIPLINES`. All but `strict` take any priority.
    discipline: str = "strict"
    #: Strict-priority queues; v1model's priorities are 0 to 7.
    queues: int = 8
    #: Bytes that may wait, as on the wire; 0 is no limit. `buffer.py` says how queues share them.
    buffer_bytes: int = 1_000_000
    #: Part of the link (0 to below 1) that the least urgent queue gets whenever it has packets; only with `strict`.
    lowest_share: float = 0.0
    #: Bytes on the wire beside each frame.
    overhead_bytes: int = ETHERNET_OVERHEAD_BYTES

    def __post_init__(self) -> None:
        if self.rate_bps is not None and self.rate_bps < 1:
            raise InputError(f"rate {self.rate_bps} bit/s; accepted: 1 bit/s or more")
        if self.discipline not in DISCIPLINES:
            raise InputError(unknown("discipline", self.discipline, DISCIPLINES))
        if self.queues < 1:
            raise InputError(f"{self.queues} queues; accepted: 1 or more")
        if not 0 <= self.lowest_share < 1:
            raise InputError(f"share {self.lowest_share} of the least urgent queue; accepted: 0 to below 1")
        if self.lowest_share and (DISCIPLINES[self.discipline] is not StrictPriority or self.queues < 2):
            raise InputError("a share for the least urgent queue needs discipline strict and 2 queues or more")


class GuaranteedPriority(StrictPriority):
    """Strict priority in which the last queue gets a guaranteed share of the bytes while it has some waiting.

    Each byte of another queue that leaves while the last one waits earns the last queue `share` bytes of credit;
    its head leaves as soon as the credit covers what of it is not its own share. Therefore, as long as it
    waits, the last queue lags behind its share by less than one largest packet, and between two packets of
    other queues, of at most L bytes, it sends less than its largest packet and share / (1 - share) * L. What it sends
    when the others are empty is free.
    """

    def __init__(self, queues: int, share: float):
        super().__init__(queues)
        self._share = round(share * _WHOLE)
        self._credit = 0

    def pop(self) -> object:
        """Return the head of the last queue if its share is due, else the oldest item of the most urgent queue."""
        last = self._queues[-1]
        others_bytes = self.backlog_bytes - self._bytes[-1]
        if not last or not others_bytes:
            item = super().pop()
        elif self._credit >= (price := last[0][1] * (_WHOLE - self._share)):
            self._credit -= price
            item, size = last.popleft()
            self._bytes[-1] -= size
            self.backlog_bytes -= size
        else:
            item = super().pop()
            sent_bytes = others_bytes - (self.backlog_bytes - self._bytes[-1])
            self._credit += sent_bytes * self._share
        if not last:
            self._credit = 0
        return item


class EgressPort:
    """The queues of one port and the link behind them. It has no clock: whoever calls says what time it is."""

    __slots__ = (
        "_buffer",
        "_depths",
        "_discipline",
        "_has_queues",
        "_lowest",
        "_overhead_bytes",
        "_waiting",
        "_wire_ps",
        "deepest_bytes",
        "in_flight",
        "settings",
        "top_priority",
    )

    def __init__(self, settings: PortSettings):
        self.settings = settings
        self._discipline = _discipline(settings)
        self._has_queues = self._discipline.has_queues
        count = settings.queues if self._has_queues else 1
        self._lowest = settings.queues - 1
        #: The highest priority that has a queue; BMv2 drops a packet above it, and so does the switch.
        self.top_priority = self._lowest if self._discipline.ranks is Ranks.QUEUE else ANY_PRIORITY
        self._waiting = 0
        self._depths = [0] * count
        self._buffer = Buffer(settings.buffer_bytes, count)
        self._overhead_bytes = settings.overhead_bytes
        #: Picoseconds by length of the frame; there are not many lengths, and the division is slow.
        self._wire_ps: dict[int, int] = {}
        #: Most bytes, as on the wire, that ever waited in each queue.
        self.deepest_bytes = [0] * count
        #: The frame whose bits are on the wire.
        self.in_flight: bytes | None = None

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait, over all queues."""
        return self._discipline.backlog_bytes

    @property
    def depths(self) -> tuple[int, ...]:
        """Packets that wait in each queue."""
        return tuple(self._depths)

    def enqueue(self, packet: SwitchPacket, now_us: int) -> bool:
        """Let a packet, for whose priority there is a queue, wait; False when the buffer has no room for it."""
        place = self._discipline.place(self._lowest - packet.priority)
        queue = place if self._has_queues else 0
        size = self.wire_bytes(packet.length)
        buffer = self._buffer
        if not buffer.take(queue, size):
            return False
        if buffer.queue_bytes[queue] > self.deepest_bytes[queue]:
            self.deepest_bytes[queue] = buffer.queue_bytes[queue]
        packet.enq_us = now_us
        packet.enq_qdepth = self._depths[queue]
        self._depths[queue] += 1
        self._waiting += 1
        self._discipline.push((packet, queue, size), size, place)
        return True

    def dequeue(self, now_us: int) -> SwitchPacket | None:
        """Return the packet that is served next; None when none waits."""
        if not self._waiting:
            return None
        packet: SwitchPacket
        packet, queue, size = self._discipline.pop()
        self._buffer.release(queue, size)
        self._depths[queue] -= 1
        self._waiting -= 1
        packet.deq_qdepth = self._depths[queue]
        packet.deq_timedelta = now_us - packet.enq_us
        return packet

    def wire_ps(self, frame_bytes: int) -> int:
        """Return how long a frame occupies the link; 0 when the link has no rate."""
        known = self._wire_ps.get(frame_bytes)
        if known is not None:
            return known
        rate_bps, size = self.settings.rate_bps, self.wire_bytes(frame_bytes)
        self._wire_ps[frame_bytes] = needed = serialisation_ps(size, rate_bps) if rate_bps is not None else 0
        return needed

    def set_rate(self, rate_bps: int) -> None:
        """Give the link another rate, for all frames that start from now on; it must have had one."""
        self.settings = replace(self.settings, rate_bps=rate_bps)
        self._wire_ps.clear()

    def wire_bytes(self, frame_bytes: int) -> int:
        """Return what a frame weighs on the wire, and in the buffer."""
        return (frame_bytes if frame_bytes > SHORTEST_FRAME_BYTES else SHORTEST_FRAME_BYTES) + self._overhead_bytes


def _discipline(settings: PortSettings) -> Discipline:
    if settings.lowest_share:
        return GuaranteedPriority(settings.queues, settings.lowest_share)
    return DISCIPLINES[settings.discipline](settings.queues)
