"""Notices of the data path on their way to the control plane: bounded, and worked on by a thread of their own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from tensorexpress.switch.operations import CpuFrame, Notice

#: Notices that wait to be worked on, and the bytes of the frames in them; the oldest make room.
LARGEST_INBOX = 4096
LARGEST_INBOX_BYTES = 4 << 20


class Inbox:
    """Calls `work` with the notices that have come, and again with none at the time it returned.

    The time is in nanoseconds of `time.monotonic_ns`, None for no time. The inbox has a lock of its own: a request that
    waits for the data path must not make the data path wait.
    """

    def __init__(self, work: Callable[[list[Notice]], int | None]):
        self._work = work
        self._waiting: deque[Notice] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._stopped = False
        #: Notices that made room for others.
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="p4runtime notices", daemon=True)
        self._thread.start()

    def put(self, notice: Notice) -> None:
        """Add a notice; never waits."""
        with self._changed:
            self._waiting.append(notice)
            self._bytes += _frame_bytes(notice)
            while len(self._waiting) > LARGEST_INBOX or self._bytes > LARGEST_INBOX_BYTES:
                self._bytes -= _frame_bytes(self._waiting.popleft())
                self.dropped += 1
            self._changed.notify()

    def clear(self) -> None:
        """Forget what waits."""
        with self._changed:
            self._take_all()

    def _take_all(self) -> list[Notice]:
        notices = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return notices

    def stop(self) -> None:
        """Work on nothing more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        due_ns: int | None = None
        while True:
            with self._changed:
                if not self._waiting and not self._stopped:
                    self._changed.wait(None if due_ns is None else max(0, due_ns - time.monotonic_ns()) / 1e9)
                if self._stopped:
                    return
                notices = self._take_all()
            due_ns = self._work(notices)


def _frame_bytes(notice: Notice) -> int:
    return len(notice.frame) if isinstance(notice, CpuFrame) else 0
