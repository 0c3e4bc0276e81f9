"""Many frames in one piece of memory, to be handed over without an object for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

#: A port, a frame, and when its last bit is there.
PortFrame: TypeAlias = tuple[int, bytes, int]


class PackedFrames(Sequence[PortFrame]):
    """A sequence of (port, frame, time_ps) whose frames stand anywhere in one piece of memory.

    `data` is anything with a buffer, which is not copied: frames change with it. `starts` and `lengths`, in bytes, say
    where in it each frame is. Single frames are copied out of it when they are asked for.

    >>> frames = PackedFrames(b"--frame--other", starts=[2, 9], lengths=[5, 5], ports=[0, 1], times_ps=[7, 8])
    >>> frames[1]
    (1, b'other', 8)
    """

    __slots__ = ("data", "lengths", "ports", "starts", "times_ps")

    def __init__(self, data: Any, starts: Any, lengths: Any, ports: Any, times_ps: Any):
        self.data: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        # Copies, so that nobody moves a frame out of the memory after it was seen to be inside.
        self.starts, self.lengths, self.ports, self.times_ps = (
            np.array(values, np.int64) for values in (starts, lengths, ports, times_ps)
        )
        if not len(self.starts) == len(self.lengths) == len(self.ports) == len(self.times_ps):
            raise ValueError("frames need as many starts as lengths, ports and times")
        if ((self.starts < 0) | (self.lengths < 0) | (self.starts > self.data.size - self.lengths)).any():
            raise ValueError(f"a frame is not inside the {self.data.size} bytes of memory")

    @classmethod
    def of(cls, frames: Sequence[PortFrame]) -> PackedFrames:
        """Return frames side by side; those that are packed already as they are."""
        if isinstance(frames, cls):
            return frames
        ports, contents, times_ps = zip(*frames, strict=True) if frames else ((), (), ())
        lengths = np.fromiter(map(len, contents), np.int64, len(contents))
        return cls(b"".join(contents), np.cumsum(lengths) - lengths, lengths, ports, times_ps)

    @property
    def addresses(self) -> NDArray[np.int64]:
        """Where in the memory of this process each frame is."""
        return self.starts + self.data.ctypes.data

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, at: int) -> PortFrame: ...
    @overload
    def __getitem__(self, at: slice) -> PackedFrames: ...
    def __getitem__(self, at: int | slice) -> PortFrame | PackedFrames:
        start, length, port, time_ps = self.starts[at], self.lengths[at], self.ports[at], self.times_ps[at]
        if isinstance(at, slice):
            return PackedFrames(self.data, start, length, port, time_ps)
        return int(port), self.data[start : start + length].tobytes(), int(time_ps)

    def __iter__(self) -> Iterator[PortFrame]:
        data = self.data.data
        columns = (self.ports, self.starts, self.starts + self.lengths, self.times_ps)
        for port, start, end, time_ps in zip(*(column.tolist() for column in columns), strict=True):
            yield port, data[start:end].tobytes(), time_ps  # twice as fast as bytes(...)
