"""Trays: memory in which native code leaves records of captured frames until somebody takes them to their files."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable

from tensorexpress.switch.native.arena import reserved
from tensorexpress.switch.native.port import NativePort
from tensorexpress.switch.native.words import *

#: Bytes of a tray, of which the system gives what is touched; any frame that native code can have fits into one.
TRAY_BYTES = 2**20

#: Takes records of a port and direction, `in` or `out`, from memory that is written again after the call.
TakeRecords = Callable[[int, str, memoryview], object]


class Trays:
    """A tray for every port and direction, which native code writes to from now on."""

    def __init__(self, ports: Iterable[NativePort], take: TakeRecords):
        """OSError where the system has no memory for them."""
        self._take = take
        self._files = [(port, *way) for port in ports for way in ((P_TAKEN, "in"), (P_SENT, "out"))]
        self._region = reserved(TRAY_BYTES * max(1, len(self._files)))
        self._bytes = memoryview(self._region)
        self._cells = self._bytes.cast("q")
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._region))
        for index, (port, name, _) in enumerate(self._files):
            self._cells[TRAY_BYTES * index // WORD + Y_ROOM] = TRAY_BYTES - WORD * TRAY_WORDS
            port.cells[port.at + name] = base + TRAY_BYTES * index

    def empty(self) -> None:
        """Have all records taken, those of a file in order."""
        for index, (port, _, direction) in enumerate(self._files):
            used_at = TRAY_BYTES * index // WORD + Y_USED
            used = self._cells[used_at]
            if used:
                start = TRAY_BYTES * index + WORD * TRAY_WORDS
                self._take(port.number, direction, self._bytes[start : start + used])
                self._cells[used_at] = 0

    def abandon(self) -> None:
        """Have nothing more written to them."""
        for port, name, _ in self._files:
            port.cells[port.at + name] = 0
