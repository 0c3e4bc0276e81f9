"""Places for calls of one kind, which hold a thread each: when all are taken, whoever idles longest makes room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tensorexpress.switch.p4runtime.status import Code, Refused


class Place:
    """The place of one call, which idles until its client has said what it wants."""

    def __init__(self, end: Callable[[], object], patience_s: float):
        #: Ends the call; from any thread, at any time.
        self.end = end
        #: From when on, by `time.monotonic`, the call may be ended for another; None: not at all.
        self.idle_since: float | None = time.monotonic() + patience_s

    def keep(self) -> None:
        """Idle no more."""
        self.idle_since = None

    @contextmanager
    def waiting(self, patience_s: float) -> Iterator[None]:
        """Wait for the client, and idle if that takes longer."""
        self.idle_since = time.monotonic() + patience_s
        yield
        self.idle_since = None


class Places:
    """At most so many calls at once.

    A call that finds all places taken gets that of the one which has been idle longest; without one it waits up to
    `wait_s` for a place to become free, and is then refused. A call that is new has `patience_s` before it is idle.
    """

    def __init__(self, most: int, what: str, *, wait_s: float = 0.0, patience_s: float = 0.0):
        self.most = most
        self._what = what
        self._wait_s = wait_s
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._taken: set[Place] = set()
        #: Calls that were ended to make room for others.
        self.pushed_out = 0

    @contextmanager
    def take(self, end: Callable[[], object]) -> Iterator[Place]:
        """Have a place while inside; Refused when there is none."""
        with self._changed:
            self._wait_for_room()
            place = Place(end, self._patience_s)
            self._taken.add(place)
        try:
            yield place
        finally:
            with self._changed:
                self._taken.discard(place)
                self._changed.notify()

    def _wait_for_room(self) -> None:
        deadline = time.monotonic() + self._wait_s
        while len(self._taken) >= self.most:
            now = time.monotonic()
            idle = [(place.idle_since, place) for place in self._taken if place.idle_since is not None]
            since, idlest = min(idle, key=lambda each: each[0], default=(deadline, None))
            if idlest is not None and since <= now:
                self._push_out(idlest)
            elif now >= deadline:
                raise Refused(Code.RESOURCE_EXHAUSTED, f"{self.most} {self._what} already, which is the most")
            else:
                self._changed.wait(min(since, deadline) - now)

    def _push_out(self, place: Place) -> None:
        self._taken.discard(place)
        self.pushed_out += 1
        place.end()
