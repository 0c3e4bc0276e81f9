"""Segments: what the transport puts into a datagram; the header of docs/wire.md, 32 bytes of its own, payload.

docs/transport.md draws them. A burst of segments that follow each other is written and read in a few operations on
whole arrays, so that no Python code runs per packet but the call of the CRC.

>>> run = SegmentRun(0, 0, 1, 2, 3, 4, 0, 0, 4, -1, 2, 99, 0, 10, 20, 5, 0, 8, segments=4)
>>> buffer = SegmentBuffer(1000)
>>> size = len(buffer.write(run, b"abcdefgh"))
>>> buffer.read(0, size, run.stride_bytes).runs == [run], bytes(buffer.payloads(run)[2])
(True, b'ef')
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from types import ModuleType
from typing import NamedTuple, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tensorexpress.framing import SEGMENT_HEADER_BYTES, TRANSPORT_BYTES
from tensorexpress.wire.header import HEADER_BYTES, MAGIC, VERSION

#: The longest payload of an IPv4 UDP datagram.
LONGEST_DATAGRAM_BYTES = 65_507

_FORMAT = struct.Struct("!HBBHHIHBxIIiHxxIIHxxIIIII")
_MARKS = struct.Struct("!HB25xH")
_SLACK, _CRC = slice(24, 28), slice(32, 36)
_ZERO = bytes(4)

# The 16 words of a segment's headers; those that differ between two segments that follow each other.
_WORDS = 16
_CHUNK, _SLACK_WORD, _CRC_WORD, _SEQUENCE, _TRANSMISSION, _OFFSET = 4, 6, 8, 11, 12, 14
_FLAGS_BYTE = 3

_MOST_SEGMENTS = LONGEST_DATAGRAM_BYTES // SEGMENT_HEADER_BYTES + 1

Bytes = NDArray[np.uint8]
_Words = NDArray[np.uint32]

# What must be equal once the expected step is added: everything but the flags, the slack and the CRC.
_COMPARED: _Words = np.full(_WORDS, 0xFFFFFFFF, dtype=np.uint32)
_COMPARED[0] = 0xFFFFFF00
_COMPARED[[_SLACK_WORD, _CRC_WORD]] = 0


class SegmentRun(NamedTuple):
    """Segments that follow each other: number, transmission, chunk and offset go up, all else stays.

    The values are those of the first segment. `flags` of a run that was read are those of its first and last one.
    """

    kind: int
    flags: int
    job: int
    worker: int
    iteration: int
    tensor: int
    queue: int
    chunk: int
    chunks: int
    slack_us: int
    #: Bytes of payload of every segment.
    payload_bytes: int
    session: int
    flow: int
    #: Number of the segment in its flow; in an acknowledgement the first number that has not arrived.
    sequence: int
    #: Number of the transmission in its flow; in an acknowledgement the highest that has arrived.
    transmission: int
    #: What the sender calls the message.
    message: int
    #: Where the payload goes in the message.
    offset: int
    #: Bytes of the message.
    total_bytes: int
    #: Segments of the run.
    segments: int = 1
    #: Where the first segment starts in the buffer.
    start: int = 0

    @property
    def stride_bytes(self) -> int:
        """Bytes from one segment to the next."""
        return SEGMENT_HEADER_BYTES + self.payload_bytes


class Reading(NamedTuple):
    """What a buffer of datagrams held."""

    runs: list[SegmentRun]
    #: Datagrams that are no segments.
    malformed: int
    #: Segments whose CRC is not that of their bytes.
    corrupt: int


class Codec(Protocol):
    """What fills and checks bursts of segments at the start of some memory."""

    def fill(self, stride: int, count: int, payload: Bytes, slack_us: int, last_flags: int) -> None:
        """Make a burst of the headers of its first segment, which are there already, with slack and CRC 0."""
        ...

    def check(self, stride: int, count: int) -> list[int] | None:
        """Return which segments lack the CRC of their bytes; None: they make no run.

        Slack and CRC are set to 0 on the way, if they make one.
        """
        ...


class ArrayCodec:
    """Arrays and zlib: what works everywhere."""

    def __init__(self, memory: Bytes):
        self._memory = memory

    def fill(self, stride: int, count: int, payload: Bytes, slack_us: int, last_flags: int) -> None:
        """Make a burst of the headers of its first segment."""
        words, datagrams = self._layout(stride, count)
        words[1:] = words[0].astype(np.uint32) + _steps(stride - SEGMENT_HEADER_BYTES)[1:count]
        words[-1, 0] |= last_flags
        rows = self._memory[: count * stride].reshape(count, stride)
        rows[:, SEGMENT_HEADER_BYTES:] = payload.reshape(count, stride - SEGMENT_HEADER_BYTES)
        words[:, _CRC_WORD] = np.fromiter(map(crc32, datagrams), dtype=np.uint32, count=count)
        words[:, _SLACK_WORD] = slack_us & 0xFFFFFFFF

    def check(self, stride: int, count: int) -> list[int] | None:
        """Return which segments lack the CRC of their bytes; None: they make no run."""
        on_wire, datagrams = self._layout(stride, count)
        words = on_wire.astype(np.uint32)
        expected = words[0] + _steps(stride - SEGMENT_HEADER_BYTES)[:count]
        if ((words ^ expected) & _COMPARED).any():
            return None
        on_wire[:, _SLACK_WORD] = 0
        on_wire[:, _CRC_WORD] = 0
        found = np.fromiter(map(crc32, datagrams), dtype=np.uint32, count=count)
        wrong: list[int] = np.flatnonzero(found != words[:, _CRC_WORD]).tolist()
        return wrong

    def _layout(self, stride: int, count: int) -> tuple[_Words, Iterator[memoryview]]:
        """Return the headers of datagrams as words, a row each, and the datagrams."""
        words: _Words = np.ndarray((count, _WORDS), ">u4", self._memory, 0, (stride, 4))
        view = self._memory.data
        return words, (view[at : at + stride] for at in range(0, count * stride, stride))


@cache
def machine_code() -> ModuleType | None:
    """Return the module `native`; None where the processor does not multiply polynomials, or numba is not installed.

    To load it takes a fifth of a second; where none was kept, numba makes it in some seconds.
    """
    try:
        from tensorexpress.host import native
    except ImportError:
        return None
    return native


def fastest_codec() -> Callable[[Bytes], Codec]:
    """Return machine code where it can be had, else arrays; both write and read the same bytes."""
    native = machine_code()
    return ArrayCodec if native is None else native.NativeCodec


class SegmentBuffer:
    """Memory for datagrams, to write segments into or to read them from."""

    def __init__(self, size_bytes: int):
        self.memory = bytearray(size_bytes)
        self.view = memoryview(self.memory)
        self._codec = fastest_codec()(np.frombuffer(self.memory, dtype=np.uint8))

    # Writing

    def write(self, run: SegmentRun, payload: memoryview | bytes, last_flags: int = 0) -> memoryview:
        """Write the segments of a run, one after the other, and return the part that they fill.

        All have the flags of the run, the last one also `last_flags`.
        """
        if run.start == 0:
            self._write_many(run, payload, last_flags)
        else:
            self._write_one_by_one(run, payload, last_flags)
        return self.view[run.start : run.start + run.segments * run.stride_bytes]

    def _write_one_by_one(self, run: SegmentRun, payload: memoryview | bytes, last_flags: int) -> None:
        memory, view, size = self.memory, self.view, run.payload_bytes
        slack = run.slack_us.to_bytes(4, "big", signed=True)
        for index in range(run.segments):
            start = run.start + index * run.stride_bytes
            end = start + run.stride_bytes
            self.pack(run, index)
            if index == run.segments - 1:
                memory[start + _FLAGS_BYTE] |= last_flags
            view[start + SEGMENT_HEADER_BYTES : end] = payload[index * size : (index + 1) * size]
            checked = crc32(view[start:end])
            memory[start + _SLACK.start : start + _SLACK.stop] = slack
            memory[start + _CRC.start : start + _CRC.stop] = checked.to_bytes(4, "big")

    def _write_many(self, run: SegmentRun, payload: memoryview | bytes, last_flags: int) -> None:
        self.pack(run, 0)
        content = np.frombuffer(payload, dtype=np.uint8)
        self._codec.fill(run.stride_bytes, run.segments, content, run.slack_us, last_flags)

    def pack(self, run: SegmentRun, index: int) -> None:
        """Write the headers of one segment of a run; slack and CRC are still 0, as the CRC takes them to be."""
        _FORMAT.pack_into(
            self.memory,
            run.start + index * run.stride_bytes,
            MAGIC,
            VERSION << 4 | run.kind,
            run.flags,
            run.job,
            run.worker,
            run.iteration,
            run.tensor,
            run.queue,
            run.chunk + index,
            run.chunks,
            0,
            TRANSPORT_BYTES + run.payload_bytes,
            0,
            run.session,
            run.flow,
            (run.sequence + index) & 0xFFFFFFFF,
            (run.transmission + index) & 0xFFFFFFFF,
            run.message,
            run.offset + index * run.payload_bytes,
            run.total_bytes,
        )

    # Reading

    def read(self, start: int, size: int, stride_bytes: int) -> Reading:
        """Return the segments in datagrams of `stride_bytes` each (the last may be shorter), joined to runs.

        Slack and CRC are set to 0 in the buffer on the way.
        """
        count = size // stride_bytes
        if not count or start or stride_bytes < SEGMENT_HEADER_BYTES:
            return self._read_one_by_one(start, start + size, stride_bytes)
        reading = self._read_many(count, stride_bytes)
        if count * stride_bytes == size:
            return reading
        last = self._read_one_by_one(count * stride_bytes, size, stride_bytes)
        return Reading(reading.runs + last.runs, reading.malformed + last.malformed, reading.corrupt + last.corrupt)

    def _read_many(self, count: int, stride: int) -> Reading:
        first = self._unpack(0) if self._is_segment(0, stride) else None
        wrong = None if first is None else self._codec.check(stride, count)
        if first is None or wrong is None:
            return self._read_one_by_one(0, count * stride, stride)
        run = first._replace(flags=first.flags | self.memory[(count - 1) * stride + _FLAGS_BYTE], segments=count)
        if not wrong:
            return Reading([run], 0, 0)
        return Reading(list(_without(run, wrong)), 0, len(wrong))

    def _read_one_by_one(self, start: int, end: int, stride: int) -> Reading:
        runs, malformed, corrupt = [], 0, 0
        for begin in range(start, end, stride):
            size = min(stride, end - begin)
            if not self._is_segment(begin, size):
                malformed += 1
                continue
            said = self.view[begin + _CRC.start : begin + _CRC.stop].tobytes()
            run = self._unpack(begin)
            self.view[begin + _SLACK.start : begin + _SLACK.stop] = _ZERO
            self.view[begin + _CRC.start : begin + _CRC.stop] = _ZERO
            if crc32(self.view[begin : begin + size]).to_bytes(4, "big") == said:
                runs.append(run)
            else:
                corrupt += 1
        return Reading(runs, malformed, corrupt)

    def _is_segment(self, start: int, size: int) -> bool:
        if size < SEGMENT_HEADER_BYTES:
            return False
        magic, version_kind, payload_bytes = _MARKS.unpack_from(self.memory, start)
        return bool(magic == MAGIC and version_kind >> 4 == VERSION and payload_bytes == size - HEADER_BYTES)

    def _unpack(self, start: int) -> SegmentRun:
        (
            _, version_kind, flags, job, worker, iteration, tensor, queue, chunk, chunks, slack_us, payload_bytes,
            _, session, flow, sequence, transmission, message, offset, total_bytes,
        ) = _FORMAT.unpack_from(self.memory, start)  # fmt: skip
        return SegmentRun(
            version_kind & 15, flags, job, worker, iteration, tensor, queue, chunk, chunks, slack_us,
            payload_bytes - TRANSPORT_BYTES, session, flow, sequence, transmission, message, offset, total_bytes, 1,
            start,
        )  # fmt: skip

    def payloads(self, run: SegmentRun) -> NDArray[np.uint8]:
        """Return the payloads of a run, a row each, without a copy."""
        shape, strides = (run.segments, run.payload_bytes), (run.stride_bytes, 1)
        return np.ndarray(shape, np.uint8, self.memory, run.start + SEGMENT_HEADER_BYTES, strides)


def _without(run: SegmentRun, wrong: list[int]) -> Iterator[SegmentRun]:
    """Yield what is left of a run when some of its segments are taken out."""
    begin = 0
    for index in (*wrong, run.segments):
        if index > begin:
            yield part_of(run, begin, index - begin)
        begin = index + 1


def part_of(run: SegmentRun, begin: int, count: int) -> SegmentRun:
    """Return `count` segments of a run from the one at `begin` on."""
    return run._replace(
        chunk=run.chunk + begin,
        sequence=(run.sequence + begin) & 0xFFFFFFFF,
        transmission=(run.transmission + begin) & 0xFFFFFFFF,
        offset=run.offset + begin * run.payload_bytes,
        start=run.start + begin * run.stride_bytes,
        segments=count,
    )


def last_bytes_of(run: SegmentRun, payload: memoryview | bytes) -> int:
    """Return what the last segment of a run carries of a payload that may be too short to fill it."""
    return len(payload) - (run.segments - 1) * run.payload_bytes


@lru_cache(maxsize=64)
def _steps(payload_bytes: int) -> _Words:
    """Return by how much the words of the n-th segment exceed those of the first, for every n that fits a burst."""
    step = np.zeros(_WORDS, dtype=np.uint32)
    step[[_CHUNK, _SEQUENCE, _TRANSMISSION]] = 1
    step[_OFFSET] = payload_bytes
    return np.arange(_MOST_SEGMENTS, dtype=np.uint32)[:, None] * step
