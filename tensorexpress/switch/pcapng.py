"""Capture files in the newer format, pcapng, which Wireshark, dumpcap and tshark write.

A file is a row of blocks: type, length, body, length again. A section header says the byte order of the blocks that
follow; an interface block says link type and resolution of time stamps; packet blocks hold the frames. All other
blocks are skipped. (draft-ietf-opsawg-pcapng)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tensorexpress.errors import CaptureError
from tensorexpress.switch.captured import LONGEST_FRAME_BYTES, Source, TimedFrame, as_ethernet, check_link_type

#: What a file of this format starts with, whatever its byte order.
MAGIC = b"\n\r\r\n"

_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _PACKET = 0x0A0D0D0A, 1, 2, 3, 6
_BYTE_ORDER_MAGIC = 0x1A2B3C4D
_END_OF_OPTIONS, _RESOLUTION, _OFFSET = 0, 9, 14

#: Bytes of a block around its body: type and length before it, length again behind it.
_AROUND = 12

#: The most bytes of a block that is read: a frame, what stands before it, and comments behind it.
_LONGEST_BLOCK_BYTES = LONGEST_FRAME_BYTES + 2**16

#: The most interfaces of a section.
_MOST_INTERFACES = 4096

_NS_PER_SECOND = 10**9
#: Seconds of a classic pcap file have 32 bits: who reads this format can write that one.
_LATEST_NS = 2**32 * _NS_PER_SECOND


@dataclass(frozen=True)
class _Interface:
    link_type: int
    #: The most bytes of a frame that are kept; 0 is no limit.
    snaplen: int
    #: Ticks of its time stamps in a second, and the second at which they start.
    ticks_per_second: int
    start_s: int

    def time_ns(self, high: int, low: int) -> int:
        """Return a time stamp in nanoseconds."""
        return (high << 32 | low) * _NS_PER_SECOND // self.ticks_per_second + self.start_s * _NS_PER_SECOND


def parse_blocks(source: Source, *, cooked: bool) -> Iterator[TimedFrame]:
    """Yield the frames of a capture whose first four bytes, the magic, were read already."""
    order = ""
    interfaces: list[_Interface] = []
    head = MAGIC
    while head:
        at = source.position - len(head)
        head += source.read(8 - len(head))
        # The type of a section header reads the same in both byte orders, and only its body tells which it is.
        is_section = head[:4] == MAGIC
        magic = source.read(4) if is_section else b""
        if len(head) < 8 or len(magic) < 4 * is_section:
            raise CaptureError(f"the block at byte {at} has no whole header; the file was cut off")
        if is_section:
            order, interfaces = _byte_order(magic, at), []
        kind, length = struct.unpack(order + "II", head)
        body = _body(source, order, at, kind, length, len(magic))
        if kind == _INTERFACE:
            if len(interfaces) == _MOST_INTERFACES:
                raise CaptureError(
                    f"the block at byte {at} is interface {_MOST_INTERFACES} and one more; accepted: fewer"
                )
            interfaces.append(_interface(order, body, at))
        elif kind in (_PACKET, _OLD_PACKET, _SIMPLE_PACKET):
            yield _frame(order, kind, body, at, interfaces, cooked=cooked)
        head = source.read(8)


def _byte_order(magic: bytes, at: int) -> str:
    for order in ("<", ">"):
        if magic == struct.pack(order + "I", _BYTE_ORDER_MAGIC):
            return order
    raise CaptureError(f"the section at byte {at} has no byte-order magic; this is no pcapng there")


def _body(source: Source, order: str, at: int, kind: int, length: int, before: int) -> bytes:
    """Return the body of a block behind `before` bytes of it, nothing of a kind that is not looked at."""
    if length % 4 or length < _AROUND + before:
        raise CaptureError(f"the block at byte {at} claims {length} bytes; this is no pcapng there")
    left = length - _AROUND - before
    looked_at = kind in (_INTERFACE, _PACKET, _OLD_PACKET, _SIMPLE_PACKET)
    if looked_at and length > _LONGEST_BLOCK_BYTES:
        raise CaptureError(f"the block at byte {at} claims {length} bytes; accepted: at most {_LONGEST_BLOCK_BYTES}")
    body = source.read(left) if looked_at else b""
    behind = source.read(4) if (len(body) if looked_at else source.skip(left)) == left else b""
    if len(behind) < 4:
        raise CaptureError(
            f"the block at byte {at} has {source.position - at} of its {length} bytes; the file was cut off"
        )
    if struct.unpack(order + "I", behind)[0] != length:
        raise CaptureError(f"the block at byte {at} does not end with its length of {length}; this is no pcapng there")
    return body


def _interface(order: str, body: bytes, at: int) -> _Interface:
    if len(body) < 8:
        raise CaptureError(f"the interface at byte {at} has {len(body)} bytes; accepted: 8 or more")
    link_type, _, snaplen = struct.unpack_from(order + "HHI", body)
    ticks_per_second, start_s = 10**6, 0
    for code, value in _options(order, body, 8):
        if code == _RESOLUTION and len(value) == 1:
            ticks_per_second = (2 if value[0] & 0x80 else 10) ** (value[0] & 0x7F)
        elif code == _OFFSET and len(value) == 8:
            start_s = struct.unpack(order + "q", value)[0]
    return _Interface(link_type, snaplen, ticks_per_second, start_s)


def _options(order: str, body: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    while start + 4 <= len(body):
        code, length = struct.unpack_from(order + "HH", body, start)
        if code == _END_OF_OPTIONS:
            return
        yield code, body[start + 4 : start + 4 + length]
        start += 4 + length + -length % 4


def _frame(order: str, kind: int, body: bytes, at: int, interfaces: list[_Interface], *, cooked: bool) -> TimedFrame:
    fields = {_PACKET: "IIIII", _OLD_PACKET: "HHIIII", _SIMPLE_PACKET: "I"}[kind]
    form = struct.Struct(order + fields)
    if len(body) < form.size:
        raise CaptureError(f"the packet at byte {at} has no whole header; this is no pcapng there")
    values = form.unpack_from(body)
    number = 0 if kind == _SIMPLE_PACKET else values[0]
    if number >= len(interfaces):
        raise CaptureError(f"the packet at byte {at} is of interface {number}; described are {len(interfaces)}")
    interface = interfaces[number]
    check_link_type(interface.link_type, at, cooked=cooked)
    if kind == _SIMPLE_PACKET:  # it has no time, and the interface says how much was kept
        time_ns, there_were = 0, values[0]
        kept = min(there_were, interface.snaplen) if interface.snaplen else there_were
    else:
        *_, high, low, kept, there_were = values
        time_ns = interface.time_ns(high, low)
        if not 0 <= time_ns < _LATEST_NS:
            seconds = time_ns // _NS_PER_SECOND
            raise CaptureError(
                f"the packet at byte {at} is of second {seconds}; accepted: 0 to {2**32 - 1}, since 1970"
            )
    if kept > min(there_were, len(body) - form.size):
        raise CaptureError(
            f"the packet at byte {at} claims {kept} bytes of a frame of {there_were}; this is no pcapng there"
        )
    if kept < there_were:
        raise CaptureError(
            f"the packet at byte {at} holds {kept} of its {there_were} bytes; capture whole frames (tcpdump -s 0)"
        )
    return TimedFrame(time_ns, as_ethernet(interface.link_type, body[form.size : form.size + kept]))
