"""Links over UDP wires: whole Ethernet frames in datagrams, a cable to a switch that needs no root.

Frames are made and checked by machine code where it can be had (`native.NativeWire`), several at a time; elsewhere, and
where frames say when they were sent, in Python, one by one (`PlainWire`). Both send the same frames and take the same.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple, Protocol

from tensorexpress.framing import SEGMENT_HEADER_BYTES
from tensorexpress.host.layout import CE, ECT
from tensorexpress.host.links import BUFFER_BYTES, JOINED_BYTES, MOST_BURST_SEGMENTS, Address, Arrival, prepare_socket
from tensorexpress.host.segments import Bytes, SegmentBuffer, SegmentRun, last_bytes_of, machine_code
from tensorexpress.host.tagging import TrafficClass, monotonic_ps
from tensorexpress.wire.checksum import checksum
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.udp import stamped as with_stamp

#: Room for any frame: the largest packet of the Internet protocols and its Ethernet header.
LONGEST_FRAME_BYTES = 65_600

_UDP_BYTES, _CHECKSUM_BYTES = 8, 2
_PS_PER_NS = 1000


class Received(NamedTuple):
    """Datagrams that came in frames: bytes of all and of each, whether a switch marked them, and who sent them."""

    size_bytes: int
    stride_bytes: int
    marked: bool
    ip: bytes
    port: int


class WireEnd(Protocol):
    """What makes and takes the frames of a wire. `headers` are those of a frame, in which the UDP checksum is 0."""

    def send_run(
        self, headers: bytes, last_headers: bytes, run: SegmentRun, payload: memoryview, last_flags: int
    ) -> int:
        """Send segments in frames that begin with some headers; return how many: the rest is to be written first."""
        ...

    def send(self, headers: bytes, datagram: memoryview | bytes) -> None:
        """Send a datagram in a frame that begins with some headers; without room it is lost, as on a cable."""
        ...

    def receive(self) -> Received | None:
        """Receive datagrams of one sender and size that are for this end; None where something else is next, if any."""
        ...

    def take_other(self) -> bytes:
        """Return the frame that is next and not for this end; nothing where there is none."""
        ...


class PlainWire:
    """Frames in Python: what works everywhere, and puts behind frames what the switch wants to know of them."""

    def __init__(
        self,
        wire: socket.socket,
        own: FrameEnd,
        memory: bytearray,
        finished: Callable[[bytes], bytes] = lambda frame: frame,
    ):
        self._socket, self._own, self._memory, self._finished = wire, own, memory, finished
        self._other = b""

    def send_run(
        self, headers: bytes, last_headers: bytes, run: SegmentRun, payload: memoryview, last_flags: int
    ) -> int:
        """Send none."""
        return 0

    def send(self, headers: bytes, datagram: memoryview | bytes) -> None:
        """Send a datagram in a frame that begins with some headers."""
        # Of both families, addresses are what the network header ends with.
        address_bytes = 2 * len(self._own.ip.packed)
        udp = headers[-_UDP_BYTES:]
        addresses = headers[-_UDP_BYTES - address_bytes : -_UDP_BYTES]
        summed = checksum(addresses + struct.pack("!II", _UDP_BYTES + len(datagram), 17) + udp + datagram) or 0xFFFF
        frame = headers[:-_CHECKSUM_BYTES] + summed.to_bytes(_CHECKSUM_BYTES, "big") + datagram
        with suppress(OSError):
            self._socket.send(self._finished(frame))

    def receive(self) -> Received | None:
        """Receive one datagram that is for this end."""
        frame = self._other or self._next_frame()
        arrival = datagram_in(memoryview(frame), self._own)
        if arrival is None or not arrival.size_bytes:
            self._other = frame
            return None
        size, (ip, port) = arrival.size_bytes, arrival.source
        self._memory[:size] = frame[arrival.start : arrival.start + size]
        return Received(size, size, arrival.marked, ip_address(ip).packed, port)

    def _next_frame(self) -> bytes:
        while True:
            with suppress(ConnectionRefusedError):  # the other end was not there; a cable does not tell
                try:
                    frame = self._socket.recv(LONGEST_FRAME_BYTES)
                except BlockingIOError:
                    return b""
                if frame:
                    return frame

    def take_other(self) -> bytes:
        """Return the frame that is next and not for this end."""
        frame, self._other = self._other, b""
        return frame


class WireLink:
    """Whole Ethernet frames in datagrams through one end of a UDP wire: a cable to a switch, without root."""

    def __init__(self, own: FrameEnd, gateway_mac: bytes, wire: socket.socket, *, stamped: bool = False):
        """Send through a wire; `stamped`: the switch wants to know of every frame when it had to leave."""
        self.own, self._gateway_mac, self.is_stamped = own, gateway_mac, stamped
        self.leaves_ps: int | None = None
        self._socket = wire
        prepare_socket(wire)
        self.buffer = SegmentBuffer(BUFFER_BYTES)
        self._end = self._open_end(stamped)
        #: What frames begin with, by target, DSCP and bytes of the datagram.
        self._headers: dict[tuple[Address, int, int], bytes] = {}
        self._diverted: tuple[FrameEnd, Callable[[Arrival], None]] | None = None
        #: Frames that are not UDP packets to this host, or damaged.
        self.ignored = 0

    def _open_end(self, stamped: bool) -> WireEnd:
        if stamped:
            return PlainWire(self._socket, self.own, self.buffer.memory, self._with_stamp)
        native = machine_code()
        if native is None:
            return PlainWire(self._socket, self.own, self.buffer.memory)
        end: WireEnd = native.NativeWire(self._socket.fileno(), self.own, self.buffer.memory, JOINED_BYTES)
        return end

    def _with_stamp(self, frame: bytes) -> bytes:
        left_ps = monotonic_ps() if self.leaves_ps is None else self.leaves_ps
        return with_stamp(frame, left_ps // _PS_PER_NS)

    def headers_to(self, target: Address, traffic: TrafficClass) -> bytes:
        """Return what frames to a target begin with, but for what follows from the length of their datagrams."""
        return self._headers_to(target, traffic, 0)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def most_segments(self, stride_bytes: int) -> int:
        """Return how many frames are sent before others get a turn."""
        return MOST_BURST_SEGMENTS

    def send(self, target: Address, traffic: TrafficClass, data: memoryview | bytes, stride_bytes: int) -> int:
        """Send a frame for every datagram; frames for which there is no room are lost, as on a cable."""
        for start in range(0, len(data), stride_bytes):
            datagram = data[start : start + stride_bytes]
            self._end.send(self._headers_to(target, traffic, len(datagram)), datagram)
        return len(data)

    def send_run(
        self, target: Address, traffic: TrafficClass, run: SegmentRun, payload: memoryview, last_flags: int
    ) -> int:
        """Send as machine code, where that is there."""
        strides = run.stride_bytes, SEGMENT_HEADER_BYTES + last_bytes_of(run, payload)
        headers, last_headers = (self._headers_to(target, traffic, stride) for stride in strides)
        return self._end.send_run(headers, last_headers, run, payload, last_flags)

    def _headers_to(self, target: Address, traffic: TrafficClass, size: int) -> bytes:
        """Return the headers of all frames to a target with datagrams of a size; the UDP checksum in them is 0."""
        key = (target, traffic.dscp, size)
        headers = self._headers.get(key)
        if headers is None:
            there = FrameEnd(self._gateway_mac, ip_address(target[0]), target[1])
            frame = build_frame(self.own, there, bytes(size), dscp=traffic.dscp, ecn=ECT)
            headers = self._headers[key] = frame[: len(frame) - size - _CHECKSUM_BYTES] + bytes(_CHECKSUM_BYTES)
        return headers

    def receive(self) -> Arrival | None:
        """Return the datagrams of the next frames that are for this host: one, or several of one sender."""
        while True:
            received = self._end.receive()
            if received is not None:
                source = _address(received.ip, received.port)
                return Arrival(source, 0, received.size_bytes, received.stride_bytes, received.marked)
            other = self._end.take_other()
            if not other:
                return None
            self.buffer.view[: len(other)] = other
            if not self._divert(self.buffer.view[: len(other)]):
                self.ignored += 1

    def divert(self, port: int, take: Callable[[Arrival], None]) -> None:
        """Give datagrams for another UDP port of this host to somebody else, whenever this link is read."""
        self._diverted = (replace(self.own, port=port), take)

    def _divert(self, frame: memoryview) -> bool:
        if self._diverted is None:
            return False
        end, take = self._diverted
        arrival = datagram_in(frame, end)
        if arrival is not None:
            take(arrival)
        return arrival is not None

    def receive_following(
        self, source: Address, header: bytes, run: SegmentRun, target: Bytes, enough_bytes: int
    ) -> tuple[int, int]:
        """Receive none: every segment has a frame around it."""
        return 0, 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@lru_cache(maxsize=1024)
def _address(ip: bytes, port: int) -> Address:
    return str(ip_address(ip)), port


def datagram_in(frame: memoryview, own: FrameEnd) -> Arrival | None:
    """Return the UDP datagram of a frame, as a kernel would give it to a socket of `own`; None if it would not."""
    kind = int.from_bytes(frame[12:14], "big")
    if own.ip.version == 4 and kind == 0x0800 and len(frame) >= 34 and frame[14] == 0x45 and frame[23] == 17:
        udp, total, traffic_class = 34, 14 + int.from_bytes(frame[16:18], "big"), frame[15]
        source, target = frame[26:30], frame[30:34]
        if checksum(bytes(frame[14:34])) or int.from_bytes(frame[20:22], "big") & 0x3FFF:
            return None
    elif own.ip.version == 6 and kind == 0x86DD and len(frame) >= 54 and frame[20] == 17:
        udp, total = 54, 54 + int.from_bytes(frame[18:20], "big")
        traffic_class = int.from_bytes(frame[14:16], "big") >> 4 & 255
        source, target = frame[22:38], frame[38:54]
    else:
        return None
    length = int.from_bytes(frame[udp + 4 : udp + 6], "big")
    if target != own.ip.packed or length < 8 or udp + length != total or total > len(frame):
        return None
    if int.from_bytes(frame[udp + 2 : udp + 4], "big") != own.port or not _intact(frame, udp, length, source, target):
        return None
    port = int.from_bytes(frame[udp : udp + 2], "big")
    return Arrival(_address(bytes(source), port), udp + 8, length - 8, length - 8 or 1, traffic_class & 3 == CE)


def _intact(frame: memoryview, udp: int, length: int, source: memoryview, target: memoryview) -> bool:
    if not any(frame[udp + 6 : udp + 8]):  # sent without a checksum
        return True
    pseudo_header = bytes(source) + bytes(target) + struct.pack("!II", length, 17)
    return checksum(pseudo_header + bytes(frame[udp : udp + length])) == 0
