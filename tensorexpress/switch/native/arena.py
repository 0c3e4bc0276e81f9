"""The memory of a switch: one piece, of which the system gives what is touched."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

from tensorexpress.switch.native.words import *
from tensorexpress.switch.ports import LONGEST_FRAME_BYTES
from tensorexpress.switch.program.budgets import MOST_PORTS

#: Bytes at most, and where the system has not so many; packets for which there is no room left are kept by Python.
REGION_BYTES, FEWER_BYTES = 2**29, 2**25
_LINE_BYTES = 64

#: Bytes of one frame that the kernel hands over.
_RX_BYTES = -(-LONGEST_FRAME_BYTES // _LINE_BYTES) * _LINE_BYTES


class Arena:
    """Records, ports, and what is handed over between Python and native code."""

    def __init__(self, most_bytes: int = REGION_BYTES):
        self.region = _region(min(most_bytes, REGION_BYTES))
        #: All of it, as words.
        self.cells = memoryview(self.region).cast("q")
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.region))
        self._end = 0
        self.head = self.take(WORD * HEAD_WORDS)
        self.frames = self.take(BATCH * _RX_BYTES)
        for name, size in (
            (PORT_AT, PORTS),
            (PORT_LIST, MOST_PORTS + 1),
            (GROUP_AT, GROUPS),
            (ARRIVALS, ARRIVAL_WORDS * MOST_ARRIVALS),
            (SENT, SENT_WORDS * MOST_SENT),
        ):
            self[name] = self.take(WORD * size)
        self[RX_MESSAGES] = self._messages([self.frames + _RX_BYTES * index for index in range(BATCH)])
        self[TX_MESSAGES] = self._messages([0] * BATCH)
        self[SELF] = self.head
        self[DUE] = NEVER
        self[END] = self.base + len(self.region)
        self[UNUSED] = self.base + self._end

    def __getitem__(self, name: int) -> int:
        return self.cells[name]

    def __setitem__(self, name: int, value: int) -> None:
        self.cells[name] = value

    def take(self, size: int) -> int:
        """Return the address of so many bytes, which stay; only as long as there are no records."""
        start = self._end
        self._end = -(-(start + size) // _LINE_BYTES) * _LINE_BYTES
        return self.base + start

    def take_among_records(self, size: int) -> int:
        """Return the address of so many bytes, which stay; MemoryError when there are none left."""
        start = self[UNUSED]
        if start + size > self[END]:
            raise MemoryError
        self[UNUSED] = start + -(-size // _LINE_BYTES) * _LINE_BYTES
        return start

    def index(self, address: int) -> int:
        """Return the word that an address is."""
        return (address - self.base) // WORD

    def read(self, address: int, size: int) -> bytes:
        """Return bytes at an address."""
        start = address - self.base
        return self.region[start : start + size]

    def rows(self, name: int, row_words: int, count: int) -> NDArray[np.int64]:
        """Return the first rows of what the head points at."""
        start = self[name] - self.base
        return np.frombuffer(self.region, np.int64, row_words * count, start).reshape(count, row_words)

    def _messages(self, frames: list[int]) -> int:
        """Return the address of messages for the kernel, each of one piece."""
        messages = self.take(WORD * MESSAGE_WORDS * len(frames))
        pieces = self.take(WORD * PIECE_WORDS * len(frames))
        for index, frame in enumerate(frames):
            piece = pieces + WORD * PIECE_WORDS * index
            at = self.index(messages) + MESSAGE_WORDS * index
            self.cells[at + MESSAGE_PIECES], self.cells[at + MESSAGE_PIECE_COUNT] = piece, 1
            self.cells[self.index(piece)], self.cells[self.index(piece) + 1] = frame, _RX_BYTES
        return messages


def reserved(size: int) -> mmap.mmap:
    """Return so many bytes, of which the system gives what is touched; OSError where the process may not have them."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))


def _region(most_bytes: int) -> mmap.mmap:
    try:
        return reserved(most_bytes // mmap.PAGESIZE * mmap.PAGESIZE)
    except OSError:
        return reserved(FEWER_BYTES)
