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


def inside(namespace, work):
    """Do some work in a namespace, and return what comes of it; only a thread goes there."""
    came = []

    def enter():
        try:
            with open(f"/run/netns/{namespace}", "rb") as file:
                if _libc.setns(file.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            came.append((work(), None))
        except Exception as error:
            came.append((None, error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    result, error = came[0]
    if error is not None:
        raise error
    return result


def open_socket(namespace, family=socket.AF_INET, kind=socket.SOCK_DGRAM, protocol=0):
    """Return a socket of a namespace, by default one of UDP; a socket stays where it was opened."""
    made = inside(namespace, lambda: socket.socket(family, kind, protocol))
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
