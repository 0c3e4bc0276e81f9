"""The machine code of kernel.py and frame_kernel.py: made by numba once, kept on disk, then loaded without numba."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from llvmlite.binding import get_host_cpu_features
from numpy.typing import NDArray

from tensorexpress.compiled_functions import Library
from tensorexpress.framing import SEGMENT_HEADER_BYTES
from tensorexpress.host import layout
from tensorexpress.host.segments import SegmentBuffer, SegmentRun, last_bytes_of
from tensorexpress.host.wire_link import LONGEST_FRAME_BYTES, Received
from tensorexpress.wire.frame import FrameEnd

Bytes = NDArray[np.uint8]

_SEGMENTS = Library(
    "segments",
    {"fill": 6, "check": 4, "send": 12, "receive": 12, "send_frames": 12, "send_frame": 6, "receive_frames": 6},
    ("tensorexpress.host.kernel", "tensorexpress.host.frame_kernel"),
    part="the segments of hosts",
)

if not get_host_cpu_features().get("pclmul", False):
    raise ImportError("this processor does not multiply without carries")
_fill, _check, _send, _receive, _send_frames, _send_frame, _receive_frames = _SEGMENTS.functions()


class Followed(NamedTuple):
    """What came after a run."""

    #: Segments that follow it and are in their place, and the flags of them all.
    segments: int
    flags: int
    #: Datagrams that were something else, at the start of the buffer: bytes of all and of each; 0: none.
    size_bytes: int
    stride_bytes: int
    marked: bool
    #: Their socket address.
    source: bytes


class NativeCodec:
    """Machine code, about ten times as fast as arrays and zlib."""

    def __init__(self, memory: Bytes):
        self._memory, self._address = memory, address_of(memory)

    def fill(self, stride: int, count: int, payload: Bytes, slack_us: int, last_flags: int) -> None:
        """Make a burst of the headers of its first segment."""
        _fill(self._address, stride, count, address_of(payload), slack_us, last_flags)

    def check(self, stride: int, count: int) -> list[int] | None:
        """Return which segments lack the CRC of their bytes; None: they make no run."""
        right = bytearray(count)
        found = _check(self._address, stride, count, ctypes.addressof(ctypes.c_char.from_buffer(right)))
        if found == count:
            return []
        return None if found < 0 else [row for row in range(count) if not right[row]]


class NativeSender:
    """Writes and sends bursts of segments through a socket, as much at a time as the kernel takes."""

    def __init__(self, descriptor: int, most_bytes: int):
        self._descriptor = descriptor
        self._buffer = SegmentBuffer(SEGMENT_HEADER_BYTES + most_bytes)
        self._header = address_in(self._buffer.memory)

    def send(self, target: bytes, run: SegmentRun, payload: memoryview, last_flags: int, each: int) -> int:
        """Send a run to a socket address; return for how many segments there was room before anything failed.

        The last segment has what is left of the payload.
        """
        self._buffer.pack(run, 0)
        return _send(
            self._descriptor,
            address_in(target),
            len(target),
            self._header,
            self._header + SEGMENT_HEADER_BYTES,
            run.stride_bytes,
            run.segments,
            each,
            address_in(payload),
            run.slack_us,
            last_flags,
            last_bytes_of(run, payload),
        )


class NativeReceiver:
    """Receives segments that follow each other through a socket, and puts their payload where it belongs."""

    def __init__(self, descriptor: int, memory: bytearray):
        self._descriptor = descriptor
        self._buffer = address_in(memory)
        self._found = np.zeros(layout.FOUND_WORDS, dtype=np.int64)
        self._message, self._name, *self._kept = message_words(memory)
        self._addresses = address_of(self._message), address_of(self._found)

    def receive(self, source: bytes, header: bytes, run: SegmentRun, target: Bytes, enough_bytes: int) -> Followed:
        """Receive what follows a run, of which the first segment has some header, from a socket address.

        The target begins where the run's payload ends. What it has no room for does not follow.
        """
        message, found = self._addresses
        count = _receive(
            self._descriptor,
            message,
            self._buffer,
            address_in(header),
            run.segments,
            run.stride_bytes,
            -(-enough_bytes // run.stride_bytes),
            len(target) // run.payload_bytes,
            address_in(source),
            len(source),
            address_of(target),
            found,
        )
        size, stride, marked, name_bytes, flags = self._found.tolist()
        return Followed(count, flags, size, stride, bool(marked), self._name[:name_bytes].tobytes() if size else b"")


class NativeWire:
    """Sends and receives datagrams in frames through the end of a UDP wire."""

    def __init__(self, descriptor: int, own: FrameEnd, memory: bytearray, most_bytes: int):
        """Receive at most so many bytes together, to some memory."""
        self._memory, self._most_bytes = address_in(memory), most_bytes
        self._descriptor = descriptor
        self._own, self._found = wire_words(descriptor, own)
        self._ip = self._found[layout.FRAME_SOURCE :].view(np.uint8)[: len(own.ip.packed)]
        self._run = SegmentBuffer(SEGMENT_HEADER_BYTES)
        self._arrived, self._leaving = bytearray(LONGEST_FRAME_BYTES), bytearray(LONGEST_FRAME_BYTES)
        self._arrived_at, self._leaving_at = address_in(self._arrived), address_in(self._leaving)
        self._own_at, self._found_at = address_of(self._own), address_of(self._found)
        self._run_at = address_in(self._run.memory)

    def send_run(
        self, headers: bytes, last_headers: bytes, run: SegmentRun, payload: memoryview, last_flags: int
    ) -> int:
        """Send the segments of a run in frames that begin with some headers; return how many, which is all."""
        self._run.pack(run._replace(start=0), 0)
        return _send_frames(
            self._descriptor,
            address_in(headers),
            address_in(last_headers),
            len(headers),
            self._run_at,
            self._leaving_at,
            run.stride_bytes,
            run.segments,
            address_in(payload),
            run.slack_us,
            last_flags,
            last_bytes_of(run, payload),
        )

    def send(self, headers: bytes, datagram: memoryview | bytes) -> None:
        """Send a datagram in a frame that begins with some headers."""
        begins, content = address_in(headers), address_in(datagram)
        _send_frame(self._descriptor, begins, len(headers), self._leaving_at, content, len(datagram))

    def receive(self) -> Received | None:
        """Receive datagrams of one sender and size that are for this end; None where something else is next, if any."""
        size = _receive_frames(
            self._own_at, self._arrived_at, LONGEST_FRAME_BYTES, self._memory, self._most_bytes, self._found_at
        )
        if not size:
            return None
        stride, marked, port = self._found[layout.FRAME_STRIDE : layout.FRAME_SOURCE].tolist()
        return Received(size, stride, bool(marked), self._ip.tobytes(), port)

    def take_other(self) -> bytes:
        """Return the frame that is next and not for this end; nothing where there is none."""
        size = int(self._found[layout.FRAME_PENDING_BYTES])
        self._found[layout.FRAME_PENDING_BYTES] = 0
        return bytes(self._arrived[:size])


def message_words(memory: bytearray) -> tuple[NDArray[Any], ...]:
    """Return what `recvmsg` needs to receive to some memory: its words, where a sender's address is, and the rest."""
    message = np.zeros(layout.MESSAGE_WORDS, dtype=np.int64)
    name, control = (np.zeros(room, dtype=np.uint8) for room in (layout.NAME_ROOM, layout.CONTROL_ROOM))
    pieces = np.array([address_in(memory), len(memory)], dtype=np.int64)
    message[[layout.NAME, layout.NAME_BYTES]] = address_of(name), len(name)
    message[[layout.CONTROL, layout.CONTROL_BYTES]] = address_of(control), len(control)
    message[[layout.PIECES, layout.PIECE_COUNT]] = address_of(pieces), 1
    return message, name, control, pieces


def wire_words(descriptor: int, own: FrameEnd) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what machine code has to know of the end of a wire, and the words in which it says what it found."""
    words, ip = np.zeros(layout.OWN_WORDS, dtype=np.int64), own.ip.packed
    words[[layout.OWN_WIRE, layout.OWN_PORT, layout.OWN_IP_BYTES]] = descriptor, own.port, len(ip)
    words[layout.OWN_IP :].view(np.uint8)[: len(ip)] = np.frombuffer(ip, dtype=np.uint8)
    return words, np.zeros(layout.FRAME_WORDS, dtype=np.int64)


def address_in(content: bytes | bytearray | memoryview) -> int:
    """Return where a buffer is that is not empty."""
    return address_of(np.frombuffer(content, dtype=np.uint8))


def memory_at(address: int, size: int) -> memoryview:
    """Return the bytes at an address, which last as long as whoever keeps them lets them."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def address_of(memory: NDArray[Any]) -> int:
    """Return where an array is, faster than its `ctypes` says."""
    address: int = memory.__array_interface__["data"][0]
    return address
