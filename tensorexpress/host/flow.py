"""Flows: one direction of reliable segments between two hosts, as two state machines without sockets or clocks.

`SendFlow` decides what may go out, what was lost and how far the window is open; `ReceiveFlow` which segments are
new and what to acknowledge. They behave as the flows of `sim/model.py` do. Times are given by the caller, in
picoseconds of any clock that does not go back. Segments are numbered in the order in which they are first sent;
inside, numbers grow without bound, on the wire they are 32 bits wide. Sets of segments are Python integers: bit i is
segment i.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tensorexpress.queueing import TURN
from tensorexpress.recovery import (
    ALPHA_ONE,
    ALPHA_SHIFT,
    LEAST_TIMEOUT_PS,
    REORDERING,
    backed_off,
    lost_up_to,
    smoothed,
    timeout_after,
)

#: Numbers on the wire count modulo this.
_WRAP = 1 << 32

#: Most segments between the first that is missing and the last that was sent; what an acknowledgement can tell apart.
SPAN = 8192

#: A window without a limit, and a slow start that never ends.
_NO_LIMIT = 1 << 62


def unwrap(number: int, near: int) -> int:
    """Return the number, known modulo 2^32, that is nearest to another one.

    >>> unwrap(3, near=2**32 - 1) == 2**32 + 3, unwrap(2**32 - 1, near=2**32 + 3) == 2**32 - 1
    (True, True)
    """
    half = _WRAP >> 1
    return near + (number - near + half) % _WRAP - half


@dataclass(frozen=True)
class FlowSettings:
    """What a flow needs to know; docs/transport.md says how each is chosen."""

    #: Tensor bytes of a full segment.
    payload_bytes: int
    #: Bytes of a segment on the wire that are not payload; windows are counted in bytes on the wire.
    overhead_bytes: int
    #: Most bytes unacknowledged; 0 is no limit.
    window_bytes: int = 128_000
    #: Window at the start; 0 is the whole window.
    initial_window_bytes: int = 0
    #: Segments a receiver takes before it acknowledges.
    ack_every: int = 4
    #: Least time-out.
    rto_min_ps: int = LEAST_TIMEOUT_PS
    #: A segment counts as lost when one sent this many transmissions later has arrived; 0: only a probe tells.
    reordering: int = REORDERING

    @cached_property
    def full_bytes(self) -> int:
        """Bytes of a full segment on the wire."""
        return self.payload_bytes + self.overhead_bytes


class Outgoing:
    """A message at its sender. `content` is the caller's: a flow looks only at the length and the key."""

    __slots__ = (
        "content", "first_sequence", "key", "last_bytes", "length_bytes", "lost", "next_unsent", "segments", "sent_ps",
        "unarrived",
    )  # fmt: skip

    def __init__(self, length_bytes: int, payload_bytes: int, key: int, content: Any = None):
        self.length_bytes, self.key, self.content = length_bytes, key, content
        self.segments = max(1, -(-length_bytes // payload_bytes))
        self.last_bytes = length_bytes - (self.segments - 1) * payload_bytes
        #: Number of its first segment in the flow; known when the first one is sent.
        self.first_sequence = -1
        self.next_unsent = 0
        #: When its first segment was first sent; -1 before.
        self.sent_ps = -1
        #: Segments to be sent again.
        self.lost = 0
        self.unarrived = self.segments

    @property
    def done(self) -> bool:
        """Whether all of it has been acknowledged; only then may its payload change."""
        return self.unarrived == 0


class Burst:
    """Segments of a message that follow each other, sent at one time."""

    __slots__ = (
        "asks", "count", "first", "in_flight", "message", "retransmitted", "sent_ps", "sequence", "transmission",
        "wire_bytes",
    )  # fmt: skip

    def __init__(self, message: Outgoing, first: int, count: int, transmission: int, sent_ps: int, again: bool):
        self.message, self.first, self.count = message, first, count
        #: Number of its first segment in the flow.
        self.sequence = message.first_sequence + first
        self.transmission, self.sent_ps, self.retransmitted = transmission, sent_ps, again
        #: Segments of the burst that have neither arrived nor been given up.
        self.in_flight = (1 << count) - 1
        self.wire_bytes = 0
        #: Whether the sender cannot go on without an acknowledgement.
        self.asks = False

    @property
    def ends_message(self) -> bool:
        """Whether it holds the last segment of the message."""
        return self.first + self.count == self.message.segments


class Ack(NamedTuple):
    """What a receiver tells: all segments before `sequence` have arrived, and those in the set counted from there."""

    sequence: int
    arrived: int
    #: The highest number of a transmission that has arrived.
    transmission: int
    marked: bool = False

    def arrived_from(self, sequence: int) -> int:
        """Return the set of what has arrived, counted from another segment.

        >>> bin(Ack(sequence=10, arrived=0b100, transmission=0).arrived_from(8))
        '0b10011'
        """
        before = self.sequence - sequence
        return self.arrived << before | (1 << before) - 1 if before > 0 else self.arrived >> -before


class SendFlow:
    """The sender's half: messages by key, a window, what is in flight, and when to send again."""

    def __init__(self, settings: FlowSettings):
        self.settings = settings
        #: Bytes on the wire that are neither acknowledged nor given up.
        self.in_flight_bytes = 0
        self.largest_window = settings.window_bytes or _NO_LIMIT
        self.window = min(settings.initial_window_bytes or _NO_LIMIT, self.largest_window)
        #: When the time-out strikes, unless an acknowledgement comes before; only while something is in flight.
        self.deadline_ps = 0
        self.timeout_ps = settings.rto_min_ps
        self.retransmissions = self.timeouts = 0
        #: Whether a time-out has struck and its probe, one segment that no window holds back, waits to be sent.
        self.probing = False
        self._probe = -1
        #: When it was last chosen, in the count of who chooses; equal keys take turns by it.
        self.served, self.turn = 0, TURN
        self._pending: list[tuple[int, int, Outgoing]] = []
        self._offered = 0
        #: The message under way: a host finishes a slice before it starts the next one of a flow.
        self._current: Outgoing | None = None
        #: Messages that have lost segments, the oldest first; a dict, because it keeps the order and finds quickly.
        self._losing: dict[Outgoing, None] = {}
        self._bursts: deque[Burst] = deque()
        self._next_sequence = self._next_transmission = 0
        self._arrived_to = 0
        self._seen_transmission = -1
        self._slow_start_until = _NO_LIMIT
        self._cut_again_ps = 0
        self._alpha = ALPHA_ONE
        self._round_bytes = self._round_marked = 0
        self._round_trip_ps = self._deviation_ps = 0

    @property
    def full_bytes(self) -> int:
        """Bytes of a full segment on the wire."""
        return self.settings.full_bytes

    @property
    def free_of_credit(self) -> bool:
        """Whether no credit holds back what it sends next: a probe."""
        return self.probing

    @property
    def idle(self) -> bool:
        """Whether every message has been acknowledged."""
        return not (self._bursts or self._pending or self._losing or self._current)

    # Sending

    def offer(self, message: Outgoing) -> None:
        """Take a message to be sent; the lowest key goes first, equal keys in the order of offers."""
        heapq.heappush(self._pending, (message.key, self._offered, message))
        self._offered += 1

    def head(self) -> tuple[bool, int] | None:
        """Return the key of what goes next, messages under way before others; None when nothing may be sent."""
        beyond_window = self.in_flight_bytes and self.in_flight_bytes + self.settings.full_bytes > self.window
        if beyond_window and not self.probing:
            return None
        if self._losing:
            return (False, next(iter(self._losing)).key)
        if self._next_sequence - self._arrived_to >= SPAN:
            return None
        if self._current is not None:
            return (False, self._current.key)
        return (True, self._pending[0][0]) if self._pending else None

    def next_burst(self, now_ps: int, most: int) -> Burst:
        """Send at most `most` segments, at least one, of the message that `head` spoke of."""
        settings = self.settings
        room = max(1, min(most, (self.window - self.in_flight_bytes) // settings.full_bytes))
        if self.probing:
            room, self.probing, self._probe = 1, False, self._next_transmission
        message, first, count, again = self._again(room) if self._losing else self._anew(room)
        if message.sent_ps < 0:
            message.sent_ps = now_ps
        burst = Burst(message, first, count, self._next_transmission, now_ps, again)
        self._next_transmission += count
        self.deadline_ps = now_ps + self.timeout_ps
        burst.wire_bytes = self._wire_bytes(message, first, burst.in_flight)
        self.in_flight_bytes += burst.wire_bytes
        self._bursts.append(burst)
        burst.asks = again or self.in_flight_bytes + settings.full_bytes > self.window
        return burst

    def _again(self, room: int) -> tuple[Outgoing, int, int, bool]:
        """Take the first segments that were lost and follow each other."""
        message = next(iter(self._losing))
        first = (message.lost & -message.lost).bit_length() - 1
        following = message.lost >> first
        count = min(room, (~following & following + 1).bit_length() - 1)
        message.lost ^= (1 << count) - 1 << first
        if not message.lost:
            del self._losing[message]
        self.retransmissions += count
        return message, first, count, True

    def _anew(self, room: int) -> tuple[Outgoing, int, int, bool]:
        """Take the next segments of the message under way."""
        if self._current is None:
            self._current = heapq.heappop(self._pending)[2]
            self._current.first_sequence = self._next_sequence
        message = self._current
        first = message.next_unsent
        count = min(room, message.segments - first, SPAN - (self._next_sequence - self._arrived_to))
        message.next_unsent += count
        self._next_sequence += count
        if message.next_unsent == message.segments:
            self._current = None
        return message, first, count, False

    def _wire_bytes(self, message: Outgoing, first: int, segments: int) -> int:
        """Return the bytes on the wire of a set of segments counted from `first`."""
        size = segments.bit_count() * self.settings.full_bytes
        if segments >> message.segments - 1 - first & 1:
            size -= self.settings.payload_bytes - message.last_bytes
        return size

    # Acknowledgements

    def acknowledge(self, ack: Ack, now_ps: int) -> list[Outgoing] | None:
        """Take an acknowledgement, its numbers modulo 2^32; return the messages that it completes.

        None: it speaks of what was never sent, so it is not of this flow, and changes nothing.
        """
        ack = ack._replace(
            sequence=unwrap(ack.sequence, self._arrived_to),
            transmission=unwrap(ack.transmission, self._next_transmission),
        )
        if not self._plausible(ack):
            return None
        self._measure_round_trip(ack.transmission, now_ps)
        completed: list[Outgoing] = []
        arrived_bytes = sum(self._note_arrivals(ack, completed))
        self._arrived_to = max(self._arrived_to, ack.sequence)
        if arrived_bytes:
            self._open_window(arrived_bytes, ack.marked)
            self.probing = False
            self.deadline_ps = now_ps + self.timeout_ps
        reordering = self.settings.reordering or _NO_LIMIT
        if self._lose_until(lost_up_to(ack.transmission, self._probe, reordering)):
            self._cut_window(now_ps)
        while self._bursts and not self._bursts[0].in_flight:
            self._bursts.popleft()
        return completed

    def _plausible(self, ack: Ack) -> bool:
        return (
            ack.sequence >= 0
            and ack.sequence + ack.arrived.bit_length() <= self._next_sequence
            and ack.transmission < self._next_transmission
        )

    def _note_arrivals(self, ack: Ack, completed: list[Outgoing]) -> Iterator[int]:
        """Take what has arrived out of what is in flight or lost; yield bytes on the wire."""
        end = ack.sequence + ack.arrived.bit_length()
        for burst in self._bursts:
            if burst.sequence >= end or not burst.in_flight:
                continue
            arrived = burst.in_flight & ack.arrived_from(burst.sequence)
            if arrived:
                burst.in_flight ^= arrived
                size = self._wire_bytes(burst.message, burst.first, arrived)
                self.in_flight_bytes -= size
                self._arrive(burst.message, arrived, completed)
                yield size
        for message in tuple(self._losing):
            arrived = message.lost & ack.arrived_from(message.first_sequence)
            if arrived:
                message.lost ^= arrived
                if not message.lost:
                    del self._losing[message]
                self._arrive(message, arrived, completed)
                yield self._wire_bytes(message, 0, arrived)

    @staticmethod
    def _arrive(message: Outgoing, arrived: int, completed: list[Outgoing]) -> None:
        message.unarrived -= arrived.bit_count()
        if message.done:
            completed.append(message)

    def _lose_until(self, last_transmission: int) -> bool:
        """Take for lost what is in flight and was sent no later than this; return whether there was any."""
        any_lost = False
        for burst in self._bursts:
            sent_by_then = last_transmission - burst.transmission + 1
            if sent_by_then <= 0:
                break
            lost = burst.in_flight & (1 << sent_by_then) - 1
            if lost:
                any_lost = True
                self._lose(burst, lost)
        return any_lost

    def _lose(self, burst: Burst, lost: int) -> None:
        burst.in_flight ^= lost
        self.in_flight_bytes -= self._wire_bytes(burst.message, burst.first, lost)
        burst.message.lost |= lost << burst.first
        self._losing[burst.message] = None

    def time_out(self, now_ps: int) -> None:
        """Send the newest segment in flight again if the time-out has struck: its arrival tells what was lost."""
        if not self.in_flight_bytes or now_ps < self.deadline_ps:
            return
        self.timeouts += 1
        self.timeout_ps = backed_off(self.timeout_ps)
        self.deadline_ps = now_ps + self.timeout_ps
        self._lose_newest()
        self.probing = True

    def _lose_newest(self) -> None:
        """Take what was sent last for lost, even if it only waits: it is in nobody's way when it comes twice."""
        burst = next(burst for burst in reversed(self._bursts) if burst.in_flight)
        self._lose(burst, 1 << burst.in_flight.bit_length() - 1)

    def _measure_round_trip(self, transmission: int, now_ps: int) -> None:
        """Follow the round trip by the newest transmission that has arrived, and set the time-out by it."""
        if transmission <= self._seen_transmission:
            return
        self._seen_transmission = transmission
        for burst in reversed(self._bursts):
            if burst.transmission <= transmission:
                break
        else:
            return
        if transmission >= burst.transmission + burst.count:
            return
        sample_ps = now_ps - burst.sent_ps
        self._round_trip_ps, self._deviation_ps = smoothed(self._round_trip_ps, self._deviation_ps, sample_ps)
        self.timeout_ps = timeout_after(self._round_trip_ps, self._deviation_ps, self.settings.rto_min_ps)

    # Congestion

    def _open_window(self, size: int, marked: bool) -> None:
        """Open the window for acknowledged bytes; close it once a window by the share that was marked (DCTCP)."""
        full = self.settings.full_bytes
        if marked:
            # A mark ends slow start, in which the window grows as fast as it is acknowledged and no round would end.
            self._slow_start_until = min(self._slow_start_until, self.window)
        self.window += size if self.window < self._slow_start_until else full * size // self.window
        self._round_bytes += size
        if marked:
            self._round_marked += size
        if self._round_bytes >= self.window:
            self._alpha += (self._round_marked * ALPHA_ONE // self._round_bytes - self._alpha) >> ALPHA_SHIFT
            if self._round_marked:
                self.window = max(full, self.window - self.window * self._alpha // (2 * ALPHA_ONE))
                self._slow_start_until = self.window
            self._round_bytes = self._round_marked = 0
        self.window = min(self.window, self.largest_window)

    def _cut_window(self, now_ps: int) -> None:
        """Halve the window, once a round trip; not what is in flight, which is little where a message ends."""
        if now_ps >= self._cut_again_ps:
            self.window = max(self.settings.full_bytes, self.window // 2)
            self._slow_start_until = self.window
            self._cut_again_ps = now_ps + self._round_trip_ps


class ReceiveFlow:
    """The receiver's half: which segments have arrived, and whether it is time to say so."""

    def __init__(self, ack_every: int):
        self._ack_every = ack_every
        #: All segments before this one have arrived.
        self.expected = 0
        #: Those that have arrived beyond, counted from `expected`.
        self._beyond = 0
        self._transmission = -1
        self._unacknowledged = 0
        self._at_once = self._marked = False
        self.duplicates = 0

    def new_among(self, sequence: int, count: int) -> int | None:
        """Return which of the segments that follow each other from `sequence` (modulo 2^32) on have not arrived yet.

        None: so far ahead that no honest sender can be there.
        """
        ahead = self._ahead(sequence)
        if ahead + count > SPAN + 1:
            return None
        if ahead + count <= 0:  # however far behind: a set of all before would have as many bits
            return 0
        known = self._beyond >> ahead if ahead >= 0 else self._beyond << -ahead | (1 << -ahead) - 1
        return (1 << count) - 1 & ~known

    def accept(self, sequence: int, transmission: int, count: int, new: int, *, at_once: bool) -> None:
        """Note segments of which those in the set `new` are new; `at_once` asks for an acknowledgement.

        A gap before them and a duplicate among them ask for one, too.
        """
        ahead = self._ahead(sequence)
        repeated = count - new.bit_count()
        self.duplicates += repeated
        self._beyond |= new << ahead if ahead >= 0 else new >> -ahead
        if self._beyond & 1:
            run = (~self._beyond & self._beyond + 1).bit_length() - 1
            self.expected += run
            self._beyond >>= run
        self._transmission = max(self._transmission, unwrap(transmission, max(self._transmission, 0)) + count - 1)
        self._unacknowledged += count
        self._at_once |= at_once or ahead > 0 or repeated > 0

    def expects(self, sequence: int) -> bool:
        """Whether everything before a segment (modulo 2^32) has arrived, and nothing from it on."""
        return not self._beyond and self.expected % _WRAP == sequence % _WRAP

    def mark(self) -> None:
        """Note that a switch marked what is being accepted: the sender must hear of it at once."""
        self._marked = self._at_once = True

    def _ahead(self, sequence: int) -> int:
        return unwrap(sequence, self.expected) - self.expected

    def acknowledgement(self) -> Ack | None:
        """Return what to acknowledge if it is time to, and start to count again."""
        if not self._at_once and self._unacknowledged < self._ack_every:
            return None
        ack = Ack(self.expected % _WRAP, self._beyond, self._transmission % _WRAP, self._marked)
        self._unacknowledged = 0
        self._at_once = self._marked = False
        return ack
