"""Whole Ethernet frames: building those of tensor packets, and seeing in any frame what a switch sees in it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address

from tensorexpress.errors import HeaderError
from tensorexpress.wire.checksum import checksum
from tensorexpress.wire.header import UDP_PORT, Header, unpack

_VLAN, _IPV4, _IPV6 = 0x8100, 0x0800, 0x86DD
_UDP = 17
_FRAGMENT_HEADER = 44
_FRAGMENT_HEADER_BYTES = 8
_UDP_BYTES = 8


@dataclass(frozen=True, slots=True)
class FrameEnd:
    """One end of a UDP conversation."""

    mac: bytes
    ip: IPv4Address | IPv6Address
    port: int = UDP_PORT


@dataclass(frozen=True, slots=True)
class Seen:
    """What a switch sees in a frame before it looks into its tables."""

    #: The DSCP of an IP packet, else None.
    dscp: int | None = None
    #: Whether it is a UDP packet to the tensor port.
    to_tensor_port: bool = False
    #: The header of a tensor packet that may be believed, else None. A fragment is none, even if it is the first.
    header: Header | None = None


def build_frame(
    source: FrameEnd, target: FrameEnd, payload: bytes, *, dscp: int = 0, ecn: int = 0, ttl: int = 64
) -> bytes:
    """Return the Ethernet frame of a UDP packet, checksums included.

    >>> ends = [FrameEnd(bytes(6), IPv4Address(f"10.0.0.{host}")) for host in (1, 2)]
    >>> read_frame(build_frame(*ends, Header(3, 0, 0, tensor=1, chunk=0, chunks=1).pack(), dscp=56)).header.job
    3
    """
    length = _UDP_BYTES + len(payload)
    addresses = source.ip.packed + target.ip.packed
    udp = struct.pack("!HHHH", source.port, target.port, length, 0)
    summed = checksum(addresses + struct.pack("!II", length, _UDP) + udp + payload) or 0xFFFF
    udp = udp[:6] + summed.to_bytes(2, "big")
    traffic_class = dscp << 2 | ecn
    if target.ip.version == 4:
        ip = struct.pack("!BBHHHBBH", 0x45, traffic_class, 20 + length, 0, 0x4000, ttl, _UDP, 0) + addresses
        ip = ip[:10] + checksum(ip).to_bytes(2, "big") + ip[12:]
    else:
        ip = struct.pack("!IHBB", 6 << 28 | traffic_class << 20, length, _UDP, ttl) + addresses
    kind = _IPV4 if target.ip.version == 4 else _IPV6
    return target.mac + source.mac + kind.to_bytes(2, "big") + ip + udp + payload


def read_frame(frame: bytes) -> Seen:
    """Return what a switch sees in any bytes; what it would not believe is not there.

    >>> read_frame(b"neither Ethernet nor IP")
    Seen(dscp=None, to_tensor_port=False, header=None)
    """
    kind, start = int.from_bytes(frame[12:14], "big"), 14
    if kind == _VLAN:
        kind, start = int.from_bytes(frame[16:18], "big"), 18
    if kind == _IPV4 and len(frame) >= start + 20:
        return _read_ipv4(frame, start)
    if kind == _IPV6 and len(frame) >= start + 40:
        return _read_ipv6(frame, start)
    return Seen()


def _read_ipv4(frame: bytes, start: int) -> Seen:
    dscp, header_bytes = frame[start + 1] >> 2, (frame[start] & 15) * 4
    fragment = int.from_bytes(frame[start + 6 : start + 8], "big") & 0x3FFF
    if frame[start] >> 4 != 4 or header_bytes < 20 or fragment & 0x1FFF or frame[start + 9] != _UDP:
        return Seen(dscp)
    length = int.from_bytes(frame[start + 2 : start + 4], "big")
    return _read_udp(frame, start, header_bytes, length, Seen(dscp), is_fragment=fragment != 0)


def _read_ipv6(frame: bytes, start: int) -> Seen:
    dscp = int.from_bytes(frame[start : start + 2], "big") >> 6 & 63
    if frame[start] >> 4 != 6:
        return Seen(dscp)
    if frame[start + 6] == _UDP:
        return _read_udp(frame, start, 40, 40 + int.from_bytes(frame[start + 4 : start + 6], "big"), Seen(dscp))
    behind = frame[start + 40 : start + 40 + _FRAGMENT_HEADER_BYTES]
    is_first = len(behind) == _FRAGMENT_HEADER_BYTES and int.from_bytes(behind[2:4], "big") >> 3 == 0
    if frame[start + 6] == _FRAGMENT_HEADER and is_first and behind[0] == _UDP:
        return _read_udp(frame, start, 40 + _FRAGMENT_HEADER_BYTES, 0, Seen(dscp), is_fragment=True)
    return Seen(dscp)


def _read_udp(
    frame: bytes, start: int, header_bytes: int, ip_bytes: int, other: Seen, *, is_fragment: bool = False
) -> Seen:
    """Look behind `header_bytes` of a packet that says it has `ip_bytes`; not to the port it is `other` traffic."""
    udp = start + header_bytes
    if len(frame) < udp + _UDP_BYTES or int.from_bytes(frame[udp + 2 : udp + 4], "big") != UDP_PORT:
        return other
    malformed = replace(other, to_tensor_port=True)
    udp_bytes = int.from_bytes(frame[udp + 4 : udp + 6], "big")
    if is_fragment or header_bytes + udp_bytes != ip_bytes or len(frame) < start + ip_bytes:
        return malformed
    try:
        return replace(malformed, header=unpack(frame[udp + _UDP_BYTES : udp + udp_bytes]))
    except HeaderError:
        return malformed
