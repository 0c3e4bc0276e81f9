"""Tables of words that Python and the machine code of hosts work on: rows are numbered from 0, and tables grow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorexpress.host import native

Words = NDArray[np.int64]


class WordTable:
    """Rows of words that machine code works on; it grows as needed."""

    def __init__(self, core: Words, place: int, width: int, rows: int = 16):
        self._core, self._place = core, place
        self.words: Words = np.zeros((rows, width), dtype=np.int64)
        self._used = 0
        self._publish()

    def _publish(self) -> None:
        self._core[self._place] = native.address_of(self.words)
        #: The same as bytes, and as numbers: of single rows and words Python reads and writes these faster.
        self.bytes = self.words.data.cast("B")
        self.cells = self.bytes.cast("q")

    def __len__(self) -> int:
        """Return for how many rows there is room."""
        return len(self.words)

    def grow(self) -> None:
        """Have room for twice as many rows."""
        self.words = np.concatenate((self.words, np.zeros_like(self.words)))
        self._publish()

    def take(self) -> int:
        """Return a row for something new."""
        if self._used == len(self.words):
            self.grow()
        self._used += 1
        return self._used - 1

    @property
    def used(self) -> Words:
        """The rows that are used."""
        return self.words[: self._used]


class SharedTable(WordTable):
    """Rows that Python and machine code take and give back: a stack has the numbers of those that are free."""

    def __init__(self, core: Words, place: int, width: int, free: int, rows: int = 16):
        """Keep the address of the stack at word `free` of the core, and its length in the next one."""
        super().__init__(core, place, width, rows)
        self._free_at, self._free = free, np.zeros(0, dtype=np.int64)
        self._add_free(0)

    def _add_free(self, first: int) -> None:
        count, rows = int(self._core[self._free_at + 1]), len(self.words)
        free = np.zeros(rows, dtype=np.int64)
        free[:count] = self._free[:count]
        free[count : count + rows - first] = np.arange(rows - 1, first - 1, -1)
        self._free = free
        self._core[self._free_at : self._free_at + 2] = native.address_of(free), count + rows - first

    def grow(self) -> None:
        """Have room for twice as many rows."""
        first = len(self.words)
        super().grow()
        self._add_free(first)

    def take(self) -> int:
        """Return a row for something new."""
        if self.free_rows == 0:
            self.grow()
        self._core[self._free_at + 1] -= 1
        return int(self._free[self._core[self._free_at + 1]])

    def give_back(self, row: int) -> None:
        """Let a row be used again."""
        self._free[self._core[self._free_at + 1]] = row
        self._core[self._free_at + 1] += 1

    @property
    def free_rows(self) -> int:
        """How many rows are free."""
        return int(self._core[self._free_at + 1])
