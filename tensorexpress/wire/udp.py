"""UDP wires: cables between processes of one machine, with a frame in each datagram; needs no privilege.

Whoever lays a wire binds and connects both ends before anybody else knows of them, and hands them to the processes that
are to use them. So no other user can take an address first: the kernel chooses free ports, both stay bound as long as
the wire is there, and a connected socket takes datagrams from its other end alone.
"""

from __future__ import annotations

import os
import socket
import struct

_LONGEST_BYTES = 2**16

#: When a frame was sent, in ns of the clock that all processes of a machine share; behind the frame.
_STAMP = struct.Struct("!Q")
STAMP_BYTES = _STAMP.size


def lay_wire() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new wire.

    >>> here, there = lay_wire()
    >>> here.send(b"frame"), there.recv(100)
    (5, b'frame')
    >>> here.close(); there.close()
    """
    here, there = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    for end in (here, there):
        end.bind(("127.0.0.1", 0))
    for end, other in ((here, there), (there, here)):
        end.connect(other.getsockname())
        # Before it was connected it took datagrams from anybody.
        drain(end)
    return here, there


def take_wire(descriptor: int) -> socket.socket:
    """Return the end of a wire that this process was started with; what has come before nobody waits for any more."""
    wire = inherited_socket(descriptor)
    drain(wire)
    return wire


def inherited_socket(descriptor: int) -> socket.socket:
    """Return a socket that this process was started with, under the lowest number: select takes no high ones."""
    low = os.dup(descriptor)
    os.close(descriptor)
    return socket.socket(fileno=low)


def drain(end: socket.socket) -> None:
    """Throw away all that has come so far; leaves the socket non-blocking."""
    end.setblocking(False)
    while True:
        try:
            end.recv(_LONGEST_BYTES)
        except BlockingIOError:
            return
        except ConnectionRefusedError:  # word that the other end was not there when we sent
            continue


def stamped(frame: bytes, sent_ns: int) -> bytes:
    """Return a frame with the time at which it was sent, for wires of which both ends know that.

    >>> unstamped(stamped(b"frame", 7))
    (b'frame', 7)
    """
    return frame + _STAMP.pack(sent_ns)


def unstamped(content: bytes) -> tuple[bytes, int]:
    """Return a frame without its stamp, and when it was sent; what is too short for a stamp has come by accident.

    >>> unstamped(b"noise")
    (b'noise', 0)
    """
    if len(content) < STAMP_BYTES:
        return content, 0
    return content[:-STAMP_BYTES], _STAMP.unpack(content[-STAMP_BYTES:])[0]
