"""A port whose queues, link and counters are in the memory of native code, as Python sees it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tensorexpress.buffer import shares
from tensorexpress.queueing import DISCIPLINES, Ranks
from tensorexpress.switch.counted import (
    BUFFER_FULL,
    EGRESS_DROP,
    INGRESS_DROP,
    NO_QUEUE,
    REFUSED,
    CountedPort,
    PortStatistics,
)
from tensorexpress.switch.native.allowances import SharedAllowances
from tensorexpress.switch.native.arena import Arena
from tensorexpress.switch.native.build import Functions
from tensorexpress.switch.native.words import *
from tensorexpress.switch.packet import SwitchPacket
from tensorexpress.switch.program.native.layout import TOLD
from tensorexpress.switch.program.native.memory import Block
from tensorexpress.switch.traffic import ANY_PRIORITY, PortSettings

#: What the traffic manager tells a packet that Python has, in the order of a record.
_MANAGED = tuple(enumerate(TOLD))[T_ENQ_US : T_DEQ_QDEPTH + 1]

_DROPS = {
    INGRESS_DROP: P_INGRESS_DROPS,
    EGRESS_DROP: P_EGRESS_DROPS,
    BUFFER_FULL: P_BUFFER_FULL,
    NO_QUEUE: P_NO_QUEUE,
    REFUSED: P_REFUSED,
}


def _word(name: int) -> Any:
    """Return a property that is a word of a port."""

    def read(port: NativePort) -> int:
        return port.cells[port.at + name]

    def write(port: NativePort, value: int) -> None:
        port.cells[port.at + name] = value

    return property(read, write)


class NativePort(CountedPort):
    """A port with strict-priority queues, or one queue. Packets that Python lets wait here are kept by Python."""

    __slots__ = ("_allowances", "_arena", "_foreign", "_frame", "_functions", "address", "at", "cells", "state_bytes")

    rx_frames, rx_bytes = _word(P_RX_FRAMES), _word(P_RX_BYTES)
    tx_frames, tx_bytes = _word(P_TX_FRAMES), _word(P_TX_BYTES)

    def __init__(
        self,
        number: int,
        settings: PortSettings,
        arena: Arena,
        functions: Functions,
        allowances: SharedAllowances,
    ):
        self.settings = settings
        self.number, self.attached, self.unlimited = number, True, settings.rate_bps is None
        discipline = DISCIPLINES[settings.discipline]
        count = settings.queues if discipline.has_queues else 1
        self.top_priority = settings.queues - 1 if discipline.ranks is Ranks.QUEUE else ANY_PRIORITY
        self.drops = Counter()
        self._wire_ps, self._overhead_bytes = {}, settings.overhead_bytes
        self._arena, self._functions, self._allowances = arena, functions, allowances
        #: Packets and the frame on the link that Python has; packets by the address of their records.
        self._foreign: dict[int, tuple[Block, SwitchPacket]] = {}
        self._frame: bytes | None = None
        #: Bytes of the state of a packet.
        self.state_bytes = 0
        self.address = arena.take_among_records(WORD * (P_QUEUES + QUEUE_WORDS * count))
        self.cells, self.at = arena.cells, arena.index(self.address)
        limits = shares(settings.buffer_bytes, count)
        for name, value in (
            (P_SELF, self.address),
            (P_NUMBER, number),
            (P_RATE, settings.rate_bps or 0),
            (P_OVERHEAD, settings.overhead_bytes),
            (P_QUEUE_COUNT, count),
            (P_HAS_QUEUES, int(discipline.has_queues)),
            (P_LOWEST, settings.queues - 1),
            (P_TOP_PRIORITY, self.top_priority),
            (P_OWN_LIMIT, limits.own_bytes),
            (P_COMMON_LIMIT, limits.common_bytes),
            (P_DEPARTS, NEVER),
        ):
            self.cells[self.at + name] = value

    def _queue_words(self, name: int) -> list[int]:
        first = self.at + P_QUEUES + name
        count = self.cells[self.at + P_QUEUE_COUNT]
        return [self.cells[first + QUEUE_WORDS * queue] for queue in range(count)]

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait, over all queues."""
        return sum(self._queue_words(Q_BYTES))

    @property
    def depths(self) -> tuple[int, ...]:
        """Packets that wait in each queue."""
        return tuple(self._queue_words(Q_DEPTH))

    @property
    def in_flight(self) -> bytes | None:
        """The frame whose bits are on the wire."""
        record = self.cells[self.at + P_IN_FLIGHT]
        if record in (0, IN_PYTHON):
            return self._frame
        return self._arena.read(record + RECORD_BYTES, self.cells[self.at + P_IN_FLIGHT_BYTES])

    @in_flight.setter
    def in_flight(self, frame: bytes | None) -> None:
        self._frame = frame
        self.cells[self.at + P_IN_FLIGHT] = 0 if frame is None else IN_PYTHON

    def set_rate(self, rate_bps: int) -> None:
        """Give the link another rate, for all frames that start from now on; it must have had one."""
        super().set_rate(rate_bps)
        self.cells[self.at + P_RATE] = rate_bps

    def statistics(self) -> PortStatistics:
        """Return the counters as they are now."""
        drops = self.drops + Counter({reason: self.cells[self.at + name] for reason, name in _DROPS.items()})
        return PortStatistics(
            rx_frames=self.rx_frames,
            rx_bytes=self.rx_bytes,
            tx_frames=self.tx_frames,
            tx_bytes=self.tx_bytes,
            drops=dict(drops),
            depths=self.depths,
            deepest_bytes=tuple(self._queue_words(Q_DEEPEST)),
        )

    # Packets that Python lets wait or takes.

    def enqueue(self, packet: SwitchPacket, now_us: int) -> bool:
        """Let a packet, for whose priority there is a queue, wait; False when the buffer has no room for it."""
        record = Block(RECORD_BYTES)
        record.data[WORD * R_IS_FOREIGN] = 1
        if not self._functions.enqueue(self.address, record.address, packet.priority, packet.length, now_us):
            return False
        self._foreign[record.address] = record, packet
        return True

    def dequeue(self, now_us: int) -> SwitchPacket | None:
        """Return the packet that is served next; None when none waits."""
        address = self._functions.dequeue(self.address, now_us)
        if not address:
            return None
        if address not in self._foreign:
            return self._taken(address)
        record, packet = self._foreign.pop(address)
        told = memoryview(record.data).cast("q")[R_TOLD:]
        for index, name in _MANAGED:
            setattr(packet, name, told[index])
        return packet

    def _taken(self, address: int) -> SwitchPacket:
        """Return a packet that waited in a record of native code."""
        at = self._arena.index(address)
        length = self.cells[at + R_LENGTH]
        packet = told_packet(self._arena.read(address + RECORD_BYTES, length), self.cells[at + R_TOLD :])
        packet.allowance = self._allowances.of_copy(self.cells[at + R_COPIED], length)
        state = address + RECORD_BYTES + -(-length // WORD) * WORD
        packet.state = (b"", self._arena.read(state, self.state_bytes))
        self._functions.free_record(self._arena.head, address)
        return packet


def told_packet(frame: bytes, told: memoryview) -> SwitchPacket:
    """Return a packet, with what it tells egress."""
    packet = SwitchPacket(frame, told[T_INGRESS_PORT], told[T_INGRESS_US])
    for name, value in zip(TOLD, told[:TOLD_WORDS].tolist(), strict=True):
        setattr(packet, name, value)
    return packet
