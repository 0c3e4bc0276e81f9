"""What readers of capture files share: a source that is read piece by piece, and frames whatever the link was."""

from __future__ import annotations

from typing import BinaryIO, NamedTuple

from tensorexpress.errors import CaptureError

ETHERNET, COOKED, COOKED_2 = 1, 113, 276

#: What an error calls them.
ETHERNET_ALONE = "1 (Ethernet)"
ALL_LINK_TYPES = "1 (Ethernet), 113 and 276 (Linux cooked)"

#: The most bytes of a frame that are believed. Ethernet's are shorter; longer ones would only cost memory.
LONGEST_FRAME_BYTES = 2**20

#: Bytes before the packet in a frame of each cooked type, and where in them its protocol and its sender's address are.
_COOKED_FORMS = {COOKED: (16, slice(14, 16), slice(6, 12)), COOKED_2: (20, slice(0, 2), slice(12, 18))}


class TimedFrame(NamedTuple):
    """A frame and when it was seen, in nanoseconds since 1970 or since the start of the switch."""

    time_ns: int
    data: bytes


class Source:
    """A capture as a stream of bytes that knows how far it was read; never more is held than was asked for."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.position = 0

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes, or what is left of them."""
        pieces = []
        while count > 0 and (piece := self._file.read(count)):
            pieces.append(piece)
            count -= len(piece)
            self.position += len(piece)
        return b"".join(pieces)

    def skip(self, count: int) -> int:
        """Read on without keeping anything; return how many bytes there were."""
        start = self.position
        while count > 0 and (piece := self._file.read(min(count, 2**16))):
            count -= len(piece)
            self.position += len(piece)
        return self.position - start


def check_link_type(link_type: int, at: int, *, cooked: bool) -> None:
    """Refuse a capture of links whose frames cannot be read."""
    if link_type != ETHERNET and not (cooked and link_type in _COOKED_FORMS):
        accepted = ALL_LINK_TYPES if cooked else ETHERNET_ALONE
        raise CaptureError(f"link type {link_type} at byte {at}; accepted: {accepted}")


def as_ethernet(link_type: int, data: bytes) -> bytes:
    """Return a frame as Ethernet; a cooked one, which Linux records of any device, does not say to whom it goes.

    >>> as_ethernet(COOKED_2, bytes.fromhex("08000000000000020001040602000000000a0000") + b"packet").hex()
    '00000000000002000000000a08007061636b6574'
    """
    if link_type == ETHERNET:
        return data
    header_bytes, protocol, sender = _COOKED_FORMS[link_type]
    return bytes(6) + data[sender].ljust(6, b"\0") + data[protocol] + data[header_bytes:]
