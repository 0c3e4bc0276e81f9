"""Finish what the kernel left to a network card that is not there: checksums, segments and VLAN tags.

Frames that hosts on the same machine send into a virtual interface carry unfinished checksums and may be as long as
64 KB. On a cable they would be finished and cut, and a P4 program must see them as on a cable. The kernel says what is
missing in a `virtio_net_hdr` in front of each frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tensorexpress.wire.checksum import checksum as internet_checksum

#: flags, kind of segmentation, header length, segment size, where the checksum starts, where in there it is stored.
VIRTIO_HEADER = struct.Struct("=BBHHHH")

_NEEDS_CHECKSUM = 1
_TCP4, _TCP6, _UDP = 1, 4, 5
_CONGESTION_SEEN = 0x80

_ETHERTYPE_BYTE = 12
_VLAN_TYPES = (b"\x81\x00", b"\x88\xa8")
_FIN, _PSH, _CWR = 0x01, 0x08, 0x80


def checksum(data: bytes) -> int:
    """Return the Internet checksum of data, as 0xffff where it is zero, which means "none" in UDP.

    >>> hex(checksum(bytes.fromhex("4500003044224000800600008c7c19acae241e2b")))
    '0x442e'
    """
    return internet_checksum(data) or 0xFFFF


def finish(frame: bytes, virtio_header: bytes) -> list[bytes]:
    """Return the frames that a card would put on the cable; none for a kind of segmentation that cannot be done."""
    flags, kind, _, segment_bytes, start, offset = VIRTIO_HEADER.unpack(virtio_header)
    kind &= ~_CONGESTION_SEEN
    if kind in (_TCP4, _TCP6, _UDP) and segment_bytes:
        return _segments(frame, kind == _UDP, segment_bytes, start)
    if kind:
        return []
    if flags & _NEEDS_CHECKSUM and start + offset + 2 <= len(frame):
        return [_with_checksum(frame, start, offset)]
    return [frame]


def insert_vlan(frame: bytes, ethertype: int, tag: int) -> bytes:
    """Return a frame with the VLAN tag that the kernel took out of it.

    >>> insert_vlan(bytes(12) + b"\\x08\\x00", 0x8100, 5).hex()
    '000000000000000000000000810000050800'
    """
    return frame[:_ETHERTYPE_BYTE] + struct.pack("!HH", ethertype, tag) + frame[_ETHERTYPE_BYTE:]


def _with_checksum(frame: bytes, start: int, offset: int) -> bytes:
    # The field holds the sum over the pseudo-header, so the sum over everything from `start` is complete.
    value = checksum(frame[start:])
    at = start + offset
    return frame[:at] + value.to_bytes(2, "big") + frame[at + 2 :]


def _segments(frame: bytes, is_udp: bool, segment_bytes: int, transport: int) -> list[bytes]:
    network = _ETHERTYPE_BYTE + 2
    while frame[network - 2 : network] in _VLAN_TYPES:
        network += 4
    shortest = 8 if is_udp else 20
    if transport < network + 20 or len(frame) < transport + shortest:
        return []
    payload = transport + (8 if is_udp else max(20, (frame[transport + 12] >> 4) * 4))
    whole = _Whole(frame[:payload], network, transport, is_udp)
    starts = range(payload, max(len(frame), payload + 1), segment_bytes)
    return [
        _segment(whole, frame[at : at + segment_bytes], number, at - payload, at == starts[-1])
        for number, at in enumerate(starts)
    ]


@dataclass(frozen=True, slots=True)
class _Whole:
    """The headers of a frame that is to be cut, and where those of the network and transport layer start."""

    headers: bytes
    network: int
    transport: int
    is_udp: bool


def _segment(whole: _Whole, data: bytes, number: int, sent_bytes: int, is_last: bool) -> bytes:
    """Return one segment: the headers of the whole with lengths, sequence number, flags and checksums of its own."""
    headers, transport = bytearray(whole.headers), whole.transport
    transport_bytes = len(headers) - transport + len(data)
    addresses = _fix_network(headers, number, whole.network, transport, transport_bytes)
    if whole.is_udp:
        struct.pack_into("!H", headers, transport + 4, transport_bytes & 0xFFFF)
        protocol, field = 17, transport + 6
    else:
        (sequence,) = struct.unpack_from("!I", headers, transport + 4)
        struct.pack_into("!I", headers, transport + 4, (sequence + sent_bytes) & 0xFFFFFFFF)
        if not is_last:
            headers[transport + 13] &= ~(_FIN | _PSH) & 0xFF
        if number:
            headers[transport + 13] &= ~_CWR & 0xFF
        protocol, field = 6, transport + 16
    headers[field : field + 2] = b"\0\0"
    covered = addresses + struct.pack("!II", transport_bytes, protocol) + headers[transport:] + data
    struct.pack_into("!H", headers, field, checksum(covered))
    return bytes(headers) + data


def _fix_network(headers: bytearray, number: int, network: int, transport: int, transport_bytes: int) -> bytes:
    """Set the length (and for IPv4 identification and checksum) of a segment; return both addresses."""
    header_bytes = transport - network
    if headers[network] >> 4 == 6:
        struct.pack_into("!H", headers, network + 4, (header_bytes - 40 + transport_bytes) & 0xFFFF)
        return bytes(headers[network + 8 : network + 40])
    (identification,) = struct.unpack_from("!H", headers, network + 4)
    length = (header_bytes + transport_bytes) & 0xFFFF
    struct.pack_into("!HH", headers, network + 2, length, (identification + number) & 0xFFFF)
    headers[network + 10 : network + 12] = b"\0\0"
    struct.pack_into("!H", headers, network + 10, checksum(bytes(headers[network:transport])))
    return bytes(headers[network + 12 : network + 20])
