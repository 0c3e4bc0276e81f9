"""Tags on the sockets that another process has open, which need not know of it.

A socket is borrowed from the process by its number (pidfd_getfd, Linux 5.6), its options are set, and it is given back.
What the process opens later is not tagged: ask again, or tag at the interface.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tensorexpress.errors import InputError, MachineError, NetworkError
from tensorexpress.host.tagging import BEST_EFFORT, TrafficClass, tag_socket
from tensorexpress.target.tag_program import TagRule

#: The number of pidfd_getfd(2), the same on all machines.
_PIDFD_GETFD = 438

#: The highest SO_PRIORITY that needs no right.
_HIGHEST_PRIORITY = 6


@dataclass(frozen=True)
class TaggedSocket:
    """A socket of a process, and the DSCP that it has now."""

    descriptor: int
    local_port: int
    #: 0 where it is not connected.
    remote_port: int
    dscp: int


def tag_process(pid: int, rules: Sequence[TagRule]) -> list[TaggedSocket]:
    """Tag the sockets of a process whose ports fit a rule, all or none; return them."""
    return _set_all(pid, [(rule, rule.dscp) for rule in rules])


def untag_process(pid: int, rules: Sequence[TagRule]) -> list[TaggedSocket]:
    """Make the sockets of a process whose ports fit a rule best effort; return them."""
    return _set_all(pid, [(rule, BEST_EFFORT.dscp) for rule in rules])


def _set_all(pid: int, wanted: Sequence[tuple[TagRule, int]]) -> list[TaggedSocket]:
    done: list[TaggedSocket] = []
    with _borrowed(pid) as sockets:
        before: list[tuple[socket.socket, TrafficClass]] = []
        try:
            for descriptor, each in sockets:
                ports = _ports(each)
                dscp = next((dscp for rule, dscp in wanted if rule.fits(*ports)), None)
                if dscp is not None:
                    before.append((each, _traffic_of(each)))
                    tag_socket(each, TrafficClass(dscp, min(dscp >> 3, _HIGHEST_PRIORITY)))
                    done.append(TaggedSocket(descriptor, *ports, dscp))
        except OSError as error:
            for each, traffic in before:
                with suppress(OSError):
                    tag_socket(each, traffic)
            raise NetworkError(f"process {pid}: a socket could not be tagged ({error.strerror}); none is") from None
    return done


def _traffic_of(each: socket.socket) -> TrafficClass:
    option = (
        (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
        if each.family == socket.AF_INET6
        else (socket.IPPROTO_IP, socket.IP_TOS)
    )
    return TrafficClass(each.getsockopt(*option) >> 2, each.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY))


def _ports(each: socket.socket) -> tuple[int, int]:
    remote = 0
    with suppress(OSError):  # it listens, or is not connected
        remote = int(each.getpeername()[1])
    return int(each.getsockname()[1]), remote


@contextmanager
def _borrowed(pid: int) -> Iterator[list[tuple[int, socket.socket]]]:
    """Give the sockets of IPv4 and IPv6 that a process has, with their numbers there."""
    if not hasattr(os, "pidfd_open"):
        raise MachineError("the sockets of another process can be tagged on Linux 5.6 or newer alone")
    try:
        process = os.pidfd_open(pid)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"process {pid}: {reason}; accepted: the number of a process that runs, as `pgrep` shows"
        ) from None
    found: list[tuple[int, socket.socket]] = []
    try:
        for descriptor in _socket_numbers(pid):
            borrowed = _borrow(process, descriptor, pid)
            if borrowed is None:
                continue
            each = socket.socket(fileno=borrowed)
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.type in (
                socket.SOCK_STREAM,
                socket.SOCK_DGRAM,
            ):
                found.append((descriptor, each))
            else:
                each.close()
        yield found
    finally:
        os.close(process)
        for _, each in found:
            each.close()


def _socket_numbers(pid: int) -> list[int]:
    numbers = []
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since
                if os.readlink(path).startswith("socket:"):
                    numbers.append(int(path.name))
    except PermissionError:
        raise _not_allowed(pid) from None
    except FileNotFoundError:
        raise InputError(f"process {pid}: has ended; accepted: one that runs") from None
    return sorted(numbers)


def _borrow(process: int, descriptor: int, pid: int) -> int | None:
    """Return a descriptor of ours for one of a process; None where that has closed it."""
    borrowed = int(ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0))
    if borrowed >= 0:
        return borrowed
    problem = ctypes.get_errno()
    if problem in (errno.EBADF, errno.ESRCH):  # closed, or ended, since
        return None
    if problem in (errno.EPERM, errno.EACCES):
        raise _not_allowed(pid)
    raise MachineError(f"process {pid}: {os.strerror(problem)}; needs Linux 5.6 or newer")


def _not_allowed(pid: int) -> NetworkError:
    return NetworkError(
        f"process {pid}: its sockets are not for this user to change; run with sudo, or as its own user"
    )
