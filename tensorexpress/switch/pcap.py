"""Capture files: the classic pcap format, read in all four of its forms and written with nanoseconds.

A file is a header of 24 bytes (magic number, version, two unused words, the most bytes of a frame that are kept, link
type) and, for each frame, a record header of 16 bytes (seconds, fraction, bytes kept, bytes there were) and the bytes.
The magic number tells the byte order and whether the fraction counts microseconds or nanoseconds.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from io import BufferedWriter
from pathlib import Path
from typing import NamedTuple

from tensorexpress.errors import CaptureError, InputError
from tensorexpress.files import check_writable

ETHERNET = 1

#: The most bytes of a frame that we write; what libpcap takes without complaint.
SNAPLEN_BYTES = 262_144

_NS_PER_SECOND = 10**9
_MICROSECONDS = 0xA1B2C3D4
_NANOSECONDS = 0xA1B23C4D
_FILE_HEADER_BYTES = 24
_RECORD_HEADER_BYTES = 16
_RECORD = struct.Struct("<IIII")


class TimedFrame(NamedTuple):
    """A frame and when it was seen, in nanoseconds since 1970 or since the start of the switch."""

    time_ns: int
    data: bytes


def read_pcap(path: str | os.PathLike[str]) -> list[TimedFrame]:
    """Return the frames of a pcap file; CaptureError, with the byte where it goes wrong, if it is not one."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CaptureError(f"cannot read {os.fspath(path)!r}: {error.strerror}; give a pcap file") from None
    try:
        return list(parse_pcap(content))
    except CaptureError as error:
        raise CaptureError(f"{os.fspath(path)}: {error}") from None


def parse_pcap(content: bytes) -> Iterator[TimedFrame]:
    """Yield the frames of a capture held in memory.

    >>> list(parse_pcap(file_header() + record(TimedFrame(1_500_000_000_7, b"frame"))))
    [TimedFrame(time_ns=15000000007, data=b'frame')]
    """
    order, ns_per_unit = _form(content)
    if len(content) < _FILE_HEADER_BYTES:
        raise CaptureError(f"the file header ends at byte {len(content)} of {_FILE_HEADER_BYTES}; the file was cut off")
    snaplen, link_type = struct.unpack_from(order + "II", content, 16)
    if link_type & 0xFFFF != ETHERNET:  # the upper half holds flags
        raise CaptureError(f"link type {link_type & 0xFFFF} at byte 20; accepted: {ETHERNET}, Ethernet")
    longest = max(snaplen, SNAPLEN_BYTES)
    header = struct.Struct(order + "IIII")
    position = _FILE_HEADER_BYTES
    while position < len(content):
        if len(content) - position < _RECORD_HEADER_BYTES:
            raise CaptureError(f"the record at byte {position} has no whole header; the file was cut off")
        seconds, fraction, kept, there_were = header.unpack_from(content, position)
        if kept > min(there_were, longest):
            raise CaptureError(
                f"the record at byte {position} claims {kept} bytes of a frame of {there_were}; this is no pcap there"
            )
        start = position + _RECORD_HEADER_BYTES
        position = start + kept
        if position > len(content):
            raise CaptureError(
                f"the frame at byte {start} has {len(content) - start} of its {kept} bytes; the file was cut off"
            )
        if kept < there_were:
            raise CaptureError(
                f"the frame at byte {start} holds {kept} of its {there_were} bytes; capture whole frames (tcpdump -s 0)"
            )
        yield TimedFrame(seconds * _NS_PER_SECOND + fraction * ns_per_unit, content[start:position])


def _form(content: bytes) -> tuple[str, int]:
    """Return byte order and nanoseconds per fraction."""
    for order in ("<", ">"):
        for magic, ns_per_unit in ((_MICROSECONDS, 1000), (_NANOSECONDS, 1)):
            if content[:4] == struct.pack(order + "I", magic):
                return order, ns_per_unit
    if content[:4] == b"\n\r\r\n":
        raise CaptureError("this is a pcapng file; write pcap (tcpdump does; editcap -F pcap converts)")
    raise CaptureError(
        f"starts with bytes {content[:4].hex() or 'none'}, not with pcap's magic number; give a pcap file"
    )


def file_header() -> bytes:
    """Return the header of a capture of Ethernet frames with nanoseconds."""
    return struct.pack("<IHHiIII", _NANOSECONDS, 2, 4, 0, 0, SNAPLEN_BYTES, ETHERNET)


def record(frame: TimedFrame) -> bytes:
    """Return the record of one frame."""
    seconds, fraction = divmod(frame.time_ns, _NS_PER_SECOND)
    return _RECORD.pack(seconds, fraction, len(frame.data), len(frame.data)) + frame.data


def write_pcap(path: str | os.PathLike[str], frames: Iterable[TimedFrame]) -> None:
    """Write frames to a pcap file."""
    with PcapWriter(path) as capture:
        for frame in frames:
            capture.write(frame.time_ns, frame.data)


class PcapWriter:
    """A pcap file that grows while a switch runs; what is flushed is a valid capture whenever the process ends."""

    def __init__(self, path: str | os.PathLike[str]):
        check_writable(path)
        try:
            with ExitStack() as opened:
                raw = opened.enter_context(open(path, "wb", buffering=0))
                raw.write(file_header())
                opened.pop_all()
        except OSError as error:
            raise InputError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from None
        self._file = BufferedWriter(raw)

    def write(self, time_ns: int, data: bytes) -> None:
        """Append a frame."""
        self._file.write(record(TimedFrame(time_ns, data)))

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()

    def __enter__(self) -> PcapWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def capture_name(port: int, direction: str) -> str:
    """Return the name of the file that holds what a port took `in` or sent `out`.

    >>> capture_name(1, "out")
    'port1-out.pcap'
    """
    return f"port{port}-{direction}.pcap"
