"""The copies and rounds that one arriving frame may cause, all of its descendants together.

A program may multicast a packet, clone it and send it round again, and so may each copy do: without a bound one frame
becomes any number. Each frame therefore has an allowance, which it shares with its copies. One is made when the first
copy is, so a packet that is only forwarded costs nothing.
"""

from __future__ import annotations

from tensorexpress.switch.program.budgets import MOST_COPIES, MOST_COPY_BYTES


class Allowance:
    """Copies, and bytes of copies, that a frame may still cause."""

    __slots__ = ("_bytes", "_copies")

    def __init__(self, copies: int = MOST_COPIES, size_bytes: int = MOST_COPY_BYTES):
        self._copies = copies
        self._bytes = size_bytes

    def take(self, wanted: int, frame_bytes: int) -> int:
        """Take copies of so many bytes each and return how many of those wanted there may be.

        >>> Allowance(3, 1000).take(5, 100), Allowance(3, 1000).take(2, 100), Allowance(3, 1000).take(3, 400)
        (3, 2, 2)
        """
        granted = min(wanted, self._copies, self._bytes // max(1, frame_bytes))
        self._copies -= granted
        self._bytes -= granted * frame_bytes
        return granted
