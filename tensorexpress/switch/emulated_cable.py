"""Cables with a delay and with losses: what is on its way to a port and from it, which a cable on one machine has not.

A cable has no clock: whoever calls says what time it is, so both engines of the switch meet the same delays.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter


@dataclass(frozen=True, slots=True)
class CableSettings:
    """What the cable at a port is like."""

    #: How long a frame is under way to the port, and from the port, after its last bit was sent.
    arriving_ps: int = 0
    leaving_ps: int = 0
    #: Whether frames to the port, and from it, say when they were sent: then no end adds how late it wakes up.
    arriving_stamped: bool = False
    leaving_stamped: bool = False
    #: Share of the frames that are lost on their way from the port; on the way to it, that is for `faults.Faults`.
    leaving_loss: float = 0.0
    seed: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether nothing has to be emulated."""
        return not (self.arriving_ps or self.leaving_ps or self.leaving_loss)


class DelayLine:
    """Frames under way in one direction; they stay in order, and each is there a fixed time after it was sent.

    >>> line = DelayLine(delay_ps=100)
    >>> line.put(b"first", 5); line.put(b"second", 7)
    >>> line.next_ps, line.take(104), line.take(106), line.next_ps
    (105, [], [(105, b'first')], 107)
    """

    def __init__(self, delay_ps: int):
        self.delay_ps = delay_ps
        #: When the last one that set out is there.
        self._last_ps = 0
        self._under_way: deque[tuple[int, bytes]] = deque()

    def put(self, frame: bytes, sent_ps: int) -> None:
        """Let a frame set out whose last bit was sent at a time; it overtakes none of those before it."""
        self._last_ps = max(self._last_ps, sent_ps + self.delay_ps)
        self._under_way.append((self._last_ps, frame))

    def take(self, now_ps: int) -> list[tuple[int, bytes]]:
        """Return the frames that are there by now, and since when."""
        there: list[tuple[int, bytes]] = []
        while self._under_way and self._under_way[0][0] <= now_ps:
            there.append(self._under_way.popleft())
        return there

    @property
    def next_ps(self) -> int | None:
        """When the next frame is there; None while none is under way."""
        return self._under_way[0][0] if self._under_way else None


class EmulatedCable:
    """What is under way at one port, in both directions."""

    def __init__(self, settings: CableSettings, port: int):
        self.arriving, self.leaving = DelayLine(settings.arriving_ps), DelayLine(settings.leaving_ps)
        self.settings = settings
        # Faults of what arrives at the port have a chance of their own.
        self._random = random.Random(settings.seed << 16 | port | 1 << 15)

    def loses(self) -> bool:
        """Whether the frame that leaves next is lost; asked once for each."""
        loss = self.settings.leaving_loss
        return bool(loss) and self._random.random() < loss

    @property
    def next_ps(self) -> int | None:
        """When a frame is at one of the ends next; None while none is under way."""
        times = (self.arriving.next_ps, self.leaving.next_ps)
        return min((time_ps for time_ps in times if time_ps is not None), default=None)


def arrivals(cables: Mapping[int, EmulatedCable], since_ps: int, now_ps: int) -> list[tuple[int, bytes, int]]:
    """Return the frames that have come to the ends of cables by now: port, frame and when, in the order of that.

    When is the time at which they had to be there, however late somebody looks, but not before `since_ps`: all until
    then has happened.
    """
    there = [
        (due_ps, number, frame) for number, cable in cables.items() for due_ps, frame in cable.arriving.take(now_ps)
    ]
    return [(number, frame, max(due_ps, since_ps)) for due_ps, number, frame in sorted(there, key=itemgetter(0))]
