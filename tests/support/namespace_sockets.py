"""Sockets inside network namespaces, opened from this process; root only."""

from __future__ import annotations

import ctypes
import os
import socket
import threading

_CLONE_NEWNET = 0x40000000
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_BUFFER_BYTES = 8_000_000

#: How long a test waits for what must arrive; it never waits for what must not.
PATIENCE_S = 30.0

_libc = ctypes.CDLL(None, use_errno=True)


def open_socket(namespace, family=socket.AF_INET):
    """Return a UDP socket of a namespace. A socket stays where it was opened, so only a thread has to go there."""
    opened = []

    def enter():
        with open(f"/run/netns/{namespace}", "rb") as file:
            if _libc.setns(file.fileno(), _CLONE_NEWNET):
                opened.append(OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))
                return
        opened.append(socket.socket(family, socket.SOCK_DGRAM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(opened[0], OSError):
        raise opened[0]
    made = opened[0]
    made.settimeout(PATIENCE_S)
    for option in (_SO_SNDBUFFORCE, _SO_RCVBUFFORCE):
        made.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
    return made


def mark(sender, dscp):
    """Set the DSCP of all that a socket sends from now on."""
    if sender.family == socket.AF_INET6:
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
    else:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
