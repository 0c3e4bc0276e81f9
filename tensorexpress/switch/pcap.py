"""Capture files: pcap and pcapng are read, and the classic pcap format is written, with nanoseconds.

A pcap file is a header of 24 bytes (magic number, version, two unused words, the most bytes of a frame that are kept,
link type) and, for each frame, a record header of 16 bytes (seconds, fraction, bytes kept, bytes there were) and the
bytes. The magic number tells the byte order and whether the fraction counts microseconds or nanoseconds.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from io import BufferedWriter, BytesIO

from tensorexpress.errors import CaptureError, InputError
from tensorexpress.files import check_writable, open_input
from tensorexpress.switch import pcapng
from tensorexpress.switch.captured import (
    ETHERNET,
    LONGEST_FRAME_BYTES,
    Source,
    TimedFrame,
    as_ethernet,
    check_link_type,
)

__all__ = [
    "PcapWriter",
    "TimedFrame",
    "capture_frames",
    "capture_name",
    "file_header",
    "parse_pcap",
    "read_pcap",
    "record",
    "write_pcap",
]

#: The most bytes of a frame that we write; what libpcap takes without complaint.
SNAPLEN_BYTES = 262_144

_NS_PER_SECOND = 10**9
_MICROSECONDS = 0xA1B2C3D4
_NANOSECONDS = 0xA1B23C4D
_FILE_HEADER_BYTES = 24
_RECORD_HEADER_BYTES = 16
_RECORD = struct.Struct("<IIII")


def read_pcap(path: str | os.PathLike[str]) -> list[TimedFrame]:
    """Return the Ethernet frames of a capture; CaptureError, with the byte where it goes wrong, if it is not one."""
    return list(capture_frames(path))


def capture_frames(path: str | os.PathLike[str], *, cooked: bool = False) -> Iterator[TimedFrame]:
    """Yield the frames of a pcap or pcapng file one by one, and raise CaptureError where it ends to make sense.

    With `cooked`, frames that Linux recorded without their Ethernet header, as on the device `any`, are given one.
    """
    try:
        with open_input(path) as file:
            yield from _frames(Source(file), cooked=cooked)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = error.strerror if isinstance(error, OSError) else error
        raise CaptureError(f"cannot read {os.fspath(path)!r}: {reason}; give a pcap or pcapng file") from None
    except CaptureError as error:
        raise CaptureError(f"{os.fspath(path)}: {error}") from None


def parse_pcap(content: bytes, *, cooked: bool = False) -> Iterator[TimedFrame]:
    """Yield the frames of a capture held in memory.

    >>> list(parse_pcap(file_header() + record(TimedFrame(1_500_000_000_7, b"frame"))))
    [TimedFrame(time_ns=15000000007, data=b'frame')]
    """
    return _frames(Source(BytesIO(content)), cooked=cooked)


def _frames(source: Source, *, cooked: bool) -> Iterator[TimedFrame]:
    magic = source.read(4)
    if magic == pcapng.MAGIC:
        yield from pcapng.parse_blocks(source, cooked=cooked)
    else:
        yield from _records(source, *_form(magic), cooked=cooked)


def _records(source: Source, order: str, ns_per_unit: int, *, cooked: bool) -> Iterator[TimedFrame]:
    """Yield the frames of a classic pcap file whose magic number was read already."""
    header = source.read(_FILE_HEADER_BYTES - 4)
    if source.position < _FILE_HEADER_BYTES:
        raise CaptureError(
            f"the file header ends at byte {source.position} of {_FILE_HEADER_BYTES}; the file was cut off"
        )
    link_type = struct.unpack_from(order + "I", header, 16)[0] & 0xFFFF  # the upper half holds flags
    check_link_type(link_type, 20, cooked=cooked)
    form = struct.Struct(order + "IIII")
    while header := source.read(_RECORD_HEADER_BYTES):
        start = source.position
        if len(header) < _RECORD_HEADER_BYTES:
            raise CaptureError(f"the record at byte {start - len(header)} has no whole header; the file was cut off")
        seconds, fraction, kept, there_were = form.unpack(header)
        if kept > min(there_were, LONGEST_FRAME_BYTES):
            raise CaptureError(
                f"the record at byte {start - len(header)} claims {kept} bytes of a frame of {there_were}; "
                "this is no pcap there"
            )
        data = source.read(kept)
        if len(data) < kept:
            raise CaptureError(f"the frame at byte {start} has {len(data)} of its {kept} bytes; the file was cut off")
        if kept < there_were:
            raise CaptureError(
                f"the frame at byte {start} holds {kept} of its {there_were} bytes; capture whole frames (tcpdump -s 0)"
            )
        yield TimedFrame(seconds * _NS_PER_SECOND + fraction * ns_per_unit, as_ethernet(link_type, data))


def _form(magic: bytes) -> tuple[str, int]:
    """Return byte order and nanoseconds per fraction."""
    for order in ("<", ">"):
        for known, ns_per_unit in ((_MICROSECONDS, 1000), (_NANOSECONDS, 1)):
            if magic == struct.pack(order + "I", known):
                return order, ns_per_unit
    raise CaptureError(
        f"starts with bytes {magic.hex() or 'none'}, not with the magic number of pcap or pcapng; give such a file"
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

    def write_records(self, records: bytes | memoryview) -> None:
        """Append frames that are records already."""
        self._file.write(records)

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
