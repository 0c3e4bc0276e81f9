"""Ports: where frames come from and go to. A Linux interface, a UDP wire, a pipe inside one process.

    0@veth0                                     a Linux interface; needs root or CAP_NET_RAW
    1@udp:127.0.0.1:9000-127.0.0.1:9001         frames in datagrams from the first to the second address; needs nothing

All of them have one small interface, `FramePort`, and never block.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import re
import socket
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tensorexpress.errors import InputError, NetworkError
from tensorexpress.names import is_interface
from tensorexpress.switch.offload import VIRTIO_HEADER, finish, insert_vlan
from tensorexpress.switch.packet import DROP_PORT
from tensorexpress.wire.udp import drain, take_wire

#: The longest frame a port can take: the largest packet of the Internet protocols and its Ethernet header.
LONGEST_FRAME_BYTES = 65_600

#: Asked of the kernel for frames that wait to be read; it gives less where the system's limit is lower.
SOCKET_BUFFER_BYTES = 4 * 2**20


class FramePort(Protocol):
    """One end of something that carries frames."""

    def fileno(self) -> int:
        """Return what to wait on until there is a frame."""
        ...

    def sending_fileno(self) -> int:
        """Return the descriptor of a socket that sends each message as a frame."""
        ...

    def receive(self, most: int) -> list[bytes]:
        """Return frames that are there, about `most` of them at most, without waiting."""
        ...

    def send(self, frame: bytes) -> bool:
        """Send a frame without waiting; False if it had to be dropped."""
        ...

    def lost(self) -> int:
        """Return how many frames have arrived and were lost because nobody had room for them."""
        ...

    def close(self) -> None:
        """Give everything back to the system."""
        ...


@dataclass(frozen=True, slots=True)
class InterfaceSpec:
    """A Linux interface."""

    name: str


@dataclass(frozen=True, slots=True)
class WireSpec:
    """A UDP wire from a local to a remote address."""

    local: tuple[str, int]
    remote: tuple[str, int]


@dataclass(frozen=True, slots=True)
class SocketSpec:
    """The end of a UDP wire that the forwarding process is started with (`wire.udp.lay_wire`)."""

    descriptor: int


PortSpec = InterfaceSpec | WireSpec | SocketSpec

_ACCEPTED = "accepted: NUMBER@INTERFACE or NUMBER@udp:LOCAL:PORT-REMOTE:PORT, such as 0@veth0"
_WIRE = re.compile(r"(.+?):([0-9]+)-(.+):([0-9]+)\Z")


def parse_port(text: str) -> tuple[int, PortSpec]:
    """Return the number of a port and what it is.

    >>> parse_port("0@veth0")
    (0, InterfaceSpec(name='veth0'))
    >>> parse_port("1@udp:127.0.0.1:9000-127.0.0.1:9001")
    (1, WireSpec(local=('127.0.0.1', 9000), remote=('127.0.0.1', 9001)))
    """
    number, separator, what = text.partition("@")
    if not separator or not what:
        raise InputError(f"port {text!r}; {_ACCEPTED}")
    if not (number.isascii() and number.isdigit() and len(number) < 6 and int(number) < DROP_PORT):
        raise InputError(f"port {text!r} has the number {number!r}; accepted: 0 to {DROP_PORT - 1}")
    return int(number), _parse_wire(text, what) if what.startswith("udp:") else _parse_interface(text, what)


def _parse_interface(text: str, name: str) -> InterfaceSpec:
    if not is_interface(name):
        raise InputError(f"port {text!r}: {name!r} is no name of an interface; {_ACCEPTED}")
    return InterfaceSpec(name)


def _parse_wire(text: str, what: str) -> WireSpec:
    match = _WIRE.match(what.removeprefix("udp:"))
    if match is None:
        raise InputError(f"port {text!r}; {_ACCEPTED.replace('0@veth0', '0@udp:127.0.0.1:9000-127.0.0.1:9001')}")
    local, local_port, remote, remote_port = match.groups()
    for number in (local_port, remote_port):
        if not 0 < int(number[:6]) < 2**16:
            raise InputError(f"port {text!r} names UDP port {number}; accepted: 1 to 65535")
    return WireSpec((local.strip("[]"), int(local_port)), (remote.strip("[]"), int(remote_port)))


def open_port(spec: PortSpec) -> FramePort:
    """Open a port; NetworkError or InputError, with what to do, when that cannot be."""
    if isinstance(spec, SocketSpec):
        return DatagramPort(take_wire(spec.descriptor))
    return InterfacePort(spec.name) if isinstance(spec, InterfaceSpec) else open_wire(spec)


#: Linux's SO_MEMINFO: nine numbers, the last of which counts what was dropped.
_SO_MEMINFO = 55
_MEMORY = struct.Struct("=9I")


class DatagramPort:
    """Frames in datagrams of a connected socket."""

    def __init__(self, connected: socket.socket):
        connected.setblocking(False)
        _enlarge_buffers(connected)
        self._socket = connected
        self._lost = 0

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def sending_fileno(self) -> int:
        """Return the descriptor of the socket that sends: the same one."""
        return self._socket.fileno()

    def receive(self, most: int) -> list[bytes]:
        """Return the datagrams that are there; an empty one is no frame."""
        frames: list[bytes] = []
        receive = self._socket.recv
        try:
            for _ in range(most):
                frames.append(receive(LONGEST_FRAME_BYTES))
        except OSError:  # nothing there, or word that the other end was not there when we sent
            pass
        return frames if all(frames) else [frame for frame in frames if frame]

    def send(self, frame: bytes) -> bool:
        """Send one datagram; a cable does not say that nobody listens, so neither does this."""
        try:
            self._socket.send(frame)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    def lost(self) -> int:
        """Return how many datagrams found the socket's buffer full. The kernel counts them; receiving costs no more."""
        counted = _MEMORY.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMORY.size))[-1]
        self._lost += (counted - self._lost) & 0xFFFFFFFF  # its count has 32 bits
        return self._lost

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def pipe() -> tuple[DatagramPort, DatagramPort]:
    """Return both ends of a cable inside this process."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return DatagramPort(left), DatagramPort(right)


def open_wire(spec: WireSpec) -> DatagramPort:
    """Open the local end of a UDP wire."""
    wire = socket.socket(_family(*spec.local), socket.SOCK_DGRAM)
    try:
        wire.bind(spec.local)
        wire.connect(spec.remote)
        # Before it was connected it took datagrams from anybody.
        drain(wire)
    except OSError as error:
        wire.close()
        local, remote = (f"{host}:{port}" for host, port in (spec.local, spec.remote))
        raise NetworkError(
            f"cannot open the UDP wire {local}-{remote}: {error.strerror}; "
            "give two addresses of one family, the first one of this machine and free"
        ) from None
    return DatagramPort(wire)


def _family(host: str, port: int) -> int:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][0]
    except OSError as error:
        raise InputError(f"address {host!r} of a UDP wire: {error.strerror}; give an IP address") from None


def _enlarge_buffers(endpoint: socket.socket) -> None:
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        endpoint.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)


# Linux's if_packet.h and sockios.h; Python's socket module has only some of them.
_SOL_PACKET = 263
_PACKET_ADD_MEMBERSHIP = 1
_PACKET_RX_RING = 5
_PACKET_STATISTICS = 6
_PACKET_COPY_THRESH = 7
_PACKET_VERSION, _TPACKET_V2 = 10, 1
_PACKET_VNET_HDR = 15
_PACKET_IGNORE_OUTGOING = 23
_PACKET_MR_PROMISC = 1
_ETH_P_ALL = 3
_SIOCGIFFLAGS, _IFF_UP = 0x8913, 1
_SIOCGIFMTU = 0x8921

_STATUS_KERNEL = 0
_STATUS_USER = 1
_STATUS_COPY = 2
_STATUS_VLAN = 0x10
_STATUS_VLAN_TYPE = 0x40
_VLAN = 0x8100

#: Status, bytes there were, bytes kept, offsets of the link and network header, two words of time, VLAN tag and type.
_SLOT_HEADER = struct.Struct("=IIIHHIIHH")
#: What a slot holds beside the frame: its header, an address, the virtio header, and alignment.
_SLOT_OVERHEAD_BYTES = 128
_BLOCK_BYTES = 2**16
_RING_BYTES = 2**23
_NOTHING_TO_FINISH = bytes(VIRTIO_HEADER.size)
#: Frames that the kernel had for a ring, and those of them that found it full, since it was asked last.
_RING_COUNTS = struct.Struct("=II")


class Ring(NamedTuple):
    """Frames that the kernel shares with this process, in slots of one size."""

    address: int
    ring_bytes: int
    slot_bytes: int
    position_address: int


class InterfacePort:
    """A Linux interface, through a ring of frames that the kernel shares with this process.

    The interface's own settings stay as they are: unfinished checksums, segments and VLAN tags are finished here, so
    nothing needs to be restored, however this process ends.
    """

    def __init__(self, name: str):
        self._lost = 0
        with ExitStack() as opened:
            self._receiver = opened.enter_context(_packet_socket(name))
            self._sender = opened.enter_context(_packet_socket(name))
            try:
                self._open_ring(name)
                self._sender.bind((name, 0))
            except OSError as error:
                raise NetworkError(
                    f"cannot open interface {name!r}: {error.strerror}; see `ip link show {name}`"
                ) from None
            opened.pop_all()  # from here on close() is for them

    def _open_ring(self, name: str) -> None:
        receiver = self._receiver
        index = socket.if_nametoindex(name)
        _check_is_up(receiver, name)
        for option in (_PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING, _PACKET_COPY_THRESH):
            receiver.setsockopt(_SOL_PACKET, option, 1)
        receiver.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
        self._slot_bytes = _slot_bytes(receiver, name)
        block_bytes = max(self._slot_bytes, _BLOCK_BYTES)
        blocks = _RING_BYTES // block_bytes
        ring = struct.pack("=IIII", block_bytes, blocks, self._slot_bytes, _RING_BYTES // self._slot_bytes)
        receiver.setsockopt(_SOL_PACKET, _PACKET_RX_RING, ring)
        self._ring = mmap.mmap(receiver.fileno(), _RING_BYTES)
        #: Where the next frame comes, for native code too.
        self._position = ctypes.c_int64(0)
        self.ring = Ring(
            ctypes.addressof(ctypes.c_char.from_buffer(self._ring)),
            _RING_BYTES,
            self._slot_bytes,
            ctypes.addressof(self._position),
        )
        self._status = memoryview(self._ring).cast("I")
        receiver.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, struct.pack("=iHH8x", index, _PACKET_MR_PROMISC, 0))
        receiver.bind((name, _ETH_P_ALL))

    def fileno(self) -> int:
        """Return the descriptor of the receiving socket."""
        return self._receiver.fileno()

    def sending_fileno(self) -> int:
        """Return the descriptor of the socket that sends."""
        return self._sender.fileno()

    def receive(self, most: int) -> list[bytes]:
        """Return the frames in the ring, finished as a network card would."""
        frames: list[bytes] = []
        ring, position = self._ring, self._position.value
        for _ in range(most):
            status, length, kept, link, _, _, _, tag, tag_type = _SLOT_HEADER.unpack_from(ring, position)
            if not status & _STATUS_USER:
                break
            start = position + link
            frame = ring[start : start + kept]
            header = ring[start - VIRTIO_HEADER.size : start]
            if status & (_STATUS_COPY | _STATUS_VLAN) or header != _NOTHING_TO_FINISH or kept < length:
                if status & _STATUS_COPY:
                    header, frame = self._copy()
                elif kept < length:  # too long for its slot, and no room for a copy either
                    header = b""
                if header:
                    finished = finish(frame, header)
                else:
                    finished = []
                    self._lost += 1
                if status & _STATUS_VLAN:
                    tag_type = tag_type if status & _STATUS_VLAN_TYPE else _VLAN
                    finished = [insert_vlan(each, tag_type, tag) for each in finished]
                frames += finished
            else:
                frames.append(frame)
            self._status[position >> 2] = _STATUS_KERNEL
            position += self._slot_bytes
            if position == _RING_BYTES:
                position = 0
        self._position.value = position
        if not frames:  # woken without a frame: the interface went down or away; reading the error lets us sleep again
            self._receiver.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return frames

    def _copy(self) -> tuple[bytes, bytes]:
        """Return virtio header and frame of what was too long for its slot; the kernel queued a copy of it."""
        try:
            copy = self._receiver.recv(VIRTIO_HEADER.size + LONGEST_FRAME_BYTES)
        except OSError:
            return b"", b""
        return copy[: VIRTIO_HEADER.size], copy[VIRTIO_HEADER.size :]

    def send(self, frame: bytes) -> bool:
        """Send a frame; what the interface cannot take, because it is down or the frame too long, is dropped."""
        try:
            self._sender.send(frame)
        except OSError:
            return False
        return True

    def lost(self) -> int:
        """Return how many frames found the ring full, or were cut because there was no room for their copy."""
        counts = self._receiver.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _RING_COUNTS.size)
        self._lost += _RING_COUNTS.unpack(counts)[1]
        return self._lost

    def close(self) -> None:
        """Unmap the ring and close both sockets."""
        self._status.release()
        self._ring.close()
        self._receiver.close()
        self._sender.close()


def _packet_socket(name: str) -> socket.socket:
    """Open a packet socket that receives nothing yet."""
    try:
        socket.if_nametoindex(name)
    except OSError:
        there = ", ".join(name for _, name in socket.if_nameindex())
        raise InputError(f"there is no interface {name!r}; there are: {there}") from None
    try:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise NetworkError(
                f"may not open interface {name!r}; run as root or with CAP_NET_RAW, or use udp: ports instead"
            ) from None
        raise NetworkError(f"cannot open interface {name!r}: {error.strerror}") from None
    opened.setblocking(False)
    _enlarge_buffers(opened)
    return opened


def _check_is_up(endpoint: socket.socket, name: str) -> None:
    (flags,) = struct.unpack_from("=H", _ask_interface(endpoint, name, _SIOCGIFFLAGS), 16)
    if not flags & _IFF_UP:
        raise NetworkError(f"interface {name!r} is down; ip link set {name} up")


def _ask_interface(endpoint: socket.socket, name: str, request: int) -> bytes:
    """Return the kernel's answer, a struct ifreq: the name in 16 bytes, then what was asked for."""
    return fcntl.ioctl(endpoint.fileno(), request, struct.pack("=16s24x", name.encode()))


def _slot_bytes(endpoint: socket.socket, name: str) -> int:
    """Return the power of two that holds the longest frame of an interface; longer ones come as copies."""
    (mtu,) = struct.unpack_from("=i", _ask_interface(endpoint, name, _SIOCGIFMTU), 16)
    needed: int = min(mtu, LONGEST_FRAME_BYTES) + _SLOT_OVERHEAD_BYTES
    return int(max(2048, 1 << (needed - 1).bit_length()))
