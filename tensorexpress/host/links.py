"""Links: how datagrams leave and reach a process. Here a kernel socket; `wire_link.py` has frames over a UDP wire.

A link never blocks. It sends datagrams of one size one after the other from one buffer (a burst), and receives bursts
into one buffer of its own, so that nothing is done per packet in Python.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from ipaddress import ip_address
from typing import Any, NamedTuple, Protocol

from tensorexpress.errors import NetworkError
from tensorexpress.framing import SEGMENT_HEADER_BYTES
from tensorexpress.host.layout import (
    CE,
    DO_NOT_FRAGMENT,
    ECT,
    IP_MTU_DISCOVER,
    IP_RECVTOS,
    IPV6_MTU_DISCOVER,
    IPV6_RECVTCLASS,
    IPV6_TCLASS,
    UDP_GRO,
    UDP_SEGMENT,
)
from tensorexpress.host.segments import Bytes, SegmentBuffer, SegmentRun, machine_code
from tensorexpress.host.tagging import TrafficClass, tag_socket

#: IP address and UDP port.
Address = tuple[str, int]

#: What the kernel joins at most, or the longest datagram; and what is received together, and the room for both.
_KERNEL_BYTES = 2**16
JOINED_BYTES = 3 * _KERNEL_BYTES
BUFFER_BYTES = JOINED_BYTES + _KERNEL_BYTES

#: Calls of the kernel with as much as it takes that share the work of one burst in Python.
_CALLS_TOGETHER = 8

#: Asked of the kernel for datagrams that wait; it gives less where the system's limit is lower.
_SOCKET_BUFFER_BYTES = 4 * 2**20

#: What the kernel takes as one send: the bytes of a datagram, and at most so many segments.
_MOST_BURST_BYTES, MOST_BURST_SEGMENTS = 65_507, 64

_ANCILLARY_BYTES = socket.CMSG_SPACE(4) * 3
_INT = struct.Struct("=i")


class Arrival(NamedTuple):
    """Datagrams from one sender: all of `stride_bytes`, but for the last, which may be shorter."""

    source: Address
    #: Where they are in the link's buffer until the next call of `receive`.
    start: int
    size_bytes: int
    stride_bytes: int
    #: Whether a switch marked them (ECN).
    marked: bool


class HostLink(Protocol):
    """What an endpoint needs to reach others."""

    #: What has arrived; who reads it may also write to it.
    buffer: SegmentBuffer
    #: When what is sent now had to leave, by the machine's clock, for links whose frames say so; None is now.
    leaves_ps: int | None

    def fileno(self) -> int:
        """Return what to wait on until something arrives, or until something can be sent again."""
        ...

    def most_segments(self, stride_bytes: int) -> int:
        """Return how many datagrams of this size it is worth to send together."""
        ...

    def send(self, target: Address, traffic: TrafficClass, data: memoryview | bytes, stride_bytes: int) -> int:
        """Send datagrams of `stride_bytes` each without waiting; return for how many bytes there was room."""
        ...

    def send_run(
        self, target: Address, traffic: TrafficClass, run: SegmentRun, payload: memoryview, last_flags: int
    ) -> int:
        """Send segments that the link can write by itself; return how many: the rest is to be sent.

        The last one carries what is left of the payload, which may be less than the others do.
        """
        ...

    def receive(self) -> Arrival | None:
        """Return what has arrived; None when there is nothing."""
        ...

    def receive_following(
        self, source: Address, header: bytes, run: SegmentRun, target: Bytes, enough_bytes: int
    ) -> tuple[int, int]:
        """Receive segments that follow a run straight to where their payload belongs; return how many, and their flags.

        The run is from some source, and `header` is that of its first segment. Anything else that comes is left to
        `receive`. A link that cannot do so receives none.
        """
        ...

    def close(self) -> None:
        """Give everything back to the system."""
        ...


class KernelLink:
    """A UDP socket, with segmentation by the kernel both ways (GSO, GRO) where it is there and wanted."""

    def __init__(self, local: Address, *, offload: bool = True):
        self._socket = _bound(local)
        self._is_ipv6 = self._socket.family == socket.AF_INET6
        self._traffic: TrafficClass | None = None
        #: At what size the kernel cuts up what it is given; what is no longer goes out as it is.
        self._cut_bytes = 0
        #: What has been received and is of another size or sender than what came before it.
        self._next: Arrival | None = None
        self.buffer = SegmentBuffer(BUFFER_BYTES)
        level, option = (socket.IPPROTO_IPV6, IPV6_RECVTCLASS) if self._is_ipv6 else (socket.IPPROTO_IP, IP_RECVTOS)
        self._socket.setsockopt(level, option, 1)
        self.offload = offload and self._has_offload()
        native = machine_code()
        self._sender = native and native.NativeSender(self._socket.fileno(), _KERNEL_BYTES)
        self._receiver = native and native.NativeReceiver(self._socket.fileno(), self.buffer.memory)
        self.leaves_ps: int | None = None
        #: Targets as the kernel writes them.
        self._places: dict[Address, bytes] = {}

    def _has_offload(self) -> bool:
        """Ask for joined datagrams, and whether the kernel would cut up ours."""
        try:
            self._socket.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
            self._socket.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        except OSError:
            return False
        return True

    @property
    def address(self) -> Address:
        """The address that others reach this socket at."""
        host, port, *_ = self._socket.getsockname()
        return host, port

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def most_segments(self, stride_bytes: int) -> int:
        """Return how many datagrams of this size fill the calls that are worth to be made together."""
        return _CALLS_TOGETHER * segments_together(stride_bytes)

    def send(self, target: Address, traffic: TrafficClass, data: memoryview | bytes, stride_bytes: int) -> int:
        """Send with the DSCP and the priority of the class; a network that is away loses packets and raises nothing."""
        self._be_of(traffic)
        sent = 0
        while sent < len(data):
            step = segments_together(stride_bytes) * stride_bytes if self.offload else stride_bytes
            piece = data[sent : sent + step]
            try:
                self._cut_at(stride_bytes, len(piece))
                self._socket.sendto(piece, target)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                    return sent
                if error.errno in (errno.EIO, errno.EINVAL) and len(piece) > stride_bytes:
                    self._stop_offload()
                    continue
                raise_what_can_be_mended(error, target, stride_bytes)
            sent += len(piece)
        return sent

    def send_run(
        self, target: Address, traffic: TrafficClass, run: SegmentRun, payload: memoryview, last_flags: int
    ) -> int:
        """Send as machine code, where that is there and the kernel cuts up what it is given."""
        if self._sender is None or not self.offload:
            return 0
        self._be_of(traffic)
        self._cut_at(run.stride_bytes, run.segments * SEGMENT_HEADER_BYTES + len(payload))
        sent: int = self._sender.send(
            self.place_of(target), run, payload, last_flags, segments_together(run.stride_bytes)
        )
        return sent

    def place_of(self, address: Address) -> bytes:
        """Return an address as the kernel writes it."""
        place = self._places.get(address)
        if place is None:
            place = self._places[address] = _socket_address(address)
        return place

    def forget(self) -> None:
        """Believe nothing of how the kernel marks and cuts what is sent next: somebody else has used the socket."""
        self._traffic, self._cut_bytes = None, 0

    def _be_of(self, traffic: TrafficClass) -> None:
        """Mark what is sent from now on."""
        if traffic != self._traffic:
            tag_socket(self._socket, traffic, ecn=ECT)
            self._traffic = traffic

    def _cut_at(self, stride_bytes: int, size_bytes: int) -> None:
        """Have the kernel cut what comes next at this size, if it is not cut there anyway."""
        if self.offload and stride_bytes != self._cut_bytes and size_bytes > min(stride_bytes, self._cut_bytes):
            self._socket.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, stride_bytes)
            self._cut_bytes = stride_bytes

    def _stop_offload(self) -> None:
        """Send datagrams one by one from now on: a path or driver cannot compute the checksums of segments."""
        self._socket.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
        self.offload = False

    def receive(self) -> Arrival | None:
        """Return one datagram, or several that the kernel joined; several of those if they are of one size."""
        first = self._next or self._receive_at(0)
        self._next = None
        if first is None:
            return None
        if first.start:
            self.buffer.view[: first.size_bytes] = bytes(self.buffer.view[first.start : first.start + first.size_bytes])
            first = first._replace(start=0)
        size = first.size_bytes
        while size < JOINED_BYTES and size % first.stride_bytes == 0 and size > first.stride_bytes:
            more = self._receive_at(size)
            if more is None:
                break
            if more != first._replace(start=size, size_bytes=more.size_bytes):
                self._next = more
                break
            size += more.size_bytes
        return first._replace(size_bytes=size)

    def receive_following(
        self, source: Address, header: bytes, run: SegmentRun, target: Bytes, enough_bytes: int
    ) -> tuple[int, int]:
        """Receive as machine code, where that is there; what does not follow is what `receive` returns next."""
        if self._receiver is None or self._next is not None:
            return 0, 0
        followed = self._receiver.receive(self.place_of(source), header, run, target, enough_bytes)
        if followed.size_bytes:
            there = _address_in(followed.source)
            self._next = Arrival(there, 0, followed.size_bytes, followed.stride_bytes, followed.marked)
        return followed.segments, followed.flags

    def _receive_at(self, start: int) -> Arrival | None:
        """Receive to a place in the buffer."""
        while True:
            try:
                size, ancillary, _, source = self._socket.recvmsg_into([self.buffer.view[start:]], _ANCILLARY_BYTES)
            except BlockingIOError:
                return None
            except OSError:  # word that an earlier datagram did not get through; the transport finds out by itself
                continue
            if size:
                return _arrival(start, size, ancillary, source)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def segments_together(stride_bytes: int) -> int:
    """Return how many datagrams of a size the kernel takes at once."""
    return max(1, min(MOST_BURST_SEGMENTS, _MOST_BURST_BYTES // stride_bytes))


def _socket_address(address: Address) -> bytes:
    """Return an address as Linux's `sockaddr_in` or `sockaddr_in6`."""
    host, port = address
    if ":" not in host:
        return struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, socket.inet_aton(host))
    found: Any = socket.getaddrinfo(host, port, socket.AF_INET6, flags=socket.AI_NUMERICHOST)[0][4]
    _, _, flow, scope = found
    in_network_order = struct.pack("!HI16s", port, flow, ip_address(host).packed)
    return struct.pack("=H", socket.AF_INET6) + in_network_order + struct.pack("=I", scope)


def _address_in(place: bytes) -> Address:
    """Return the address that a `sockaddr_in` or `sockaddr_in6` holds."""
    port = int.from_bytes(place[2:4], "big")
    if place[0] == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, place[4:8]), port
    scoped = (socket.inet_ntop(socket.AF_INET6, place[8:24]), port, 0, int.from_bytes(place[24:28], sys.byteorder))
    return socket.getnameinfo(scoped, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0], port


def _arrival(start: int, size: int, ancillary: list[tuple[int, int, bytes]], source: tuple[str, int]) -> Arrival:
    stride, marked = size, False
    for level, kind, value in ancillary:
        if level == socket.IPPROTO_UDP and kind == UDP_GRO:
            stride = _INT.unpack(value[:4])[0]
        elif kind in (socket.IP_TOS, IPV6_TCLASS):
            marked = value[0] & 3 == CE
    return Arrival(source[:2], start, size, stride, marked)


def raise_what_can_be_mended(error: OSError, target: Address, stride_bytes: int) -> None:
    """Raise what a person can do something about; everything else is a loss, which the transport survives."""
    if error.errno == errno.EMSGSIZE:
        raise NetworkError(
            f"datagrams of {stride_bytes} bytes to {target[0]} do not fit its route's MTU; "
            f"set cluster.mtu to that of the interface (`ip route get {target[0]}`)"
        ) from None
    if error.errno in (errno.EPERM, errno.EACCES):
        raise NetworkError(f"may not send to {target[0]}:{target[1]}: {error.strerror}; check the firewall") from None


def _bound(local: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_DGRAM)
    try:
        bound.bind(local)
    except OSError as error:
        bound.close()
        raise NetworkError(
            f"cannot receive at {local[0]}:{local[1]}: {error.strerror}; "
            "give a free port and an address of this machine"
        ) from None
    prepare_socket(bound)
    return bound


def prepare_socket(opened: socket.socket) -> None:
    """Set what every socket of a host needs; it never blocks."""
    # A packet that does not fit is an error here, rather than fragments that no switch can classify.
    if opened.family == socket.AF_INET6:
        opened.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, DO_NOT_FRAGMENT)
    else:
        opened.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, DO_NOT_FRAGMENT)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        opened.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
    opened.setblocking(False)
