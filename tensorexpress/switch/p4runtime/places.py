"""Places for calls of one kind, which hold a thread each: when all are taken, whoever idles longest makes room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tensorexpress.switch.p4runtime.status import Code, Refusal


class Place:
    """The place of one call. It idles from the start, and while it waits for its client."""

    def __init__(self, end: Callable[[], object]):
        #: Ends the call; from any thread, at any time.
        self.end = end
        #: When the call began to idle, by `time.monotonic`; None while it must not be ended for another.
        self.idle_since: float | None = time.monotonic()

    def keep(self) -> None:
        """Idle no more."""
        self.idle_since = None

    @contextmanager
    def idling(self) -> Iterator[None]:
        """Idle while something waits for the client."""
        self.idle_since = time.monotonic()
        yield
        self.idle_since = None


class Places:
    """At most so many calls at once.

    A call that finds all places taken gets that of the one which has been idle longest, if that is for `patience_s` at
    least; else it waits up to `wait_s` for one to become free, and is then refused.
    """

    def __init__(self, most: int, what: str, *, patience_s: float = 0.0, wait_s: float = 0.0):
        self.most = most
        self._what = what
        self._patience_s = patience_s
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._taken: set[Place] = set()
        #: Calls that were ended to make room for others.
        self.pushed_out = 0

    @contextmanager
    def take(self, end: Callable[[], object]) -> Iterator[Place]:
        """Have a place while inside; Refusal when there is none."""
        place = Place(end)
        with self._changed:
            if not self._changed.wait_for(self._has_room, self._wait_s):
                raise Refusal(Code.RESOURCE_EXHAUSTED, f"{self.most} {self._what} already, which is the most")
            self._taken.add(place)
        try:
            yield place
        finally:
            with self._changed:
                self._taken.discard(place)
                self._changed.notify()

    def _has_room(self) -> bool:
        if len(self._taken) < self.most:
            return True
        latest = time.monotonic() - self._patience_s
        idle = [(place.idle_since, place) for place in self._taken if place.idle_since is not None]
        since, idlest = min(idle, key=lambda each: each[0], default=(None, None))
        if idlest is None or since is None or since > latest:
            return False
        self._taken.discard(idlest)
        self.pushed_out += 1
        idlest.end()
        return True
