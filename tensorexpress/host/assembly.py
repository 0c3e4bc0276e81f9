"""Assembly: putting the segments of messages where the receiver wants them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorexpress.framing import SEGMENT_HEADER_BYTES
from tensorexpress.host.segments import SegmentBuffer, SegmentRun
from tensorexpress.host.tagging import Tag

#: What tells the messages of a flow apart: kind, iteration, tensor and the sender's own number.
_Key = tuple[int, int, int, int]


class Incoming:
    """A message that is being received, or has been: its tag and the caller's buffer that holds it."""

    __slots__ = ("buffer", "missing_bytes", "source", "tag", "view")

    def __init__(self, source: str, tag: Tag, buffer: memoryview):
        #: The name of the peer it comes from.
        self.source = source
        self.tag = tag
        self.view = buffer
        self.buffer: NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8)
        self.missing_bytes = len(buffer)

    @property
    def complete(self) -> bool:
        """Whether every byte is there."""
        return self.missing_bytes == 0

    def place(self, data: SegmentBuffer, run: SegmentRun, new: int) -> None:
        """Copy the segments of a run that are in the set `new` to where they belong."""
        size = run.payload_bytes
        if new == (1 << run.segments) - 1:
            self._copy(data, run)
            self.missing_bytes -= run.segments * size
            return
        rows = data.payloads(run)
        for index in range(run.segments):
            if new >> index & 1:
                start = run.offset + index * size
                self.buffer[start : start + size] = rows[index]
                self.missing_bytes -= size

    def _copy(self, data: SegmentBuffer, run: SegmentRun) -> None:
        """Copy all segments of a run."""
        size = run.payload_bytes
        if run.segments == 1:  # quicker without an array
            start = run.start + SEGMENT_HEADER_BYTES
            self.view[run.offset : run.offset + size] = data.view[start : start + size]
        else:
            there = self.buffer[run.offset : run.offset + run.segments * size]
            there.reshape(run.segments, size)[:] = data.payloads(run)


class Assembly:
    """The messages of one flow that have begun to arrive."""

    def __init__(self) -> None:
        self._begun: dict[_Key, Incoming] = {}

    def find(self, run: SegmentRun) -> Incoming | None:
        """Return the message that a run belongs to, if it has begun."""
        return self._begun.get(_key(run))

    def begin(self, run: SegmentRun, message: Incoming) -> None:
        """Take up the message that a run is the first of."""
        self._begun[_key(run)] = message

    def finish(self, run: SegmentRun) -> None:
        """Let go of a message that is complete."""
        del self._begun[_key(run)]


def fits(run: SegmentRun, message: Incoming) -> bool:
    """Whether the segments of a run lie inside the message they say they belong to."""
    return run.total_bytes == len(message.view) and run.offset + run.segments * run.payload_bytes <= run.total_bytes


def _key(run: SegmentRun) -> _Key:
    return run.kind, run.iteration, run.tensor, run.message
