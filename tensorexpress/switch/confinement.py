"""What the forwarding process gives up once its ports are open: user, capabilities, memory, files and system calls.

A frame that takes the process over, by an error in machine code, finds a process that may forward frames and answer the
controlling process, and little else (docs/security.md). Nothing here is undone: `confine` comes after everything that
opens a file or a socket.

The numbers of Linux's headers are those of x86_64 and of the table that aarch64 shares with newer processors.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress

from tensorexpress import tied
from tensorexpress.switch.program.budgets import MOST_GROWTH_BYTES

#: The user and group "nobody", who owns nothing.
UNPRIVILEGED = 65534

#: What standard error may grow by where it is a file.
_LOG_BYTES = 2**24

_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 38, 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_LAST_CAPABILITY = 63
_CAPABILITIES_VERSION = 0x20080522

_SET_MODE_FILTER, _ALL_THREADS, _AS_FAST = 1, 1, 4
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM = 1

# Instructions of BPF: load a word; jump if equal, if at least; return.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _PROCESSOR_AT, _ARGUMENTS_AT = 0, 4, 16

#: Processor -> its number in Linux's audit.h.
_PROCESSORS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
#: Of x86_64: numbers from here on are of an interface that is not used.
_X32 = 0x40000000

#: System calls that stay, with their numbers on x86_64 and aarch64; None: there is none.
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # Frames, requests, captures: on descriptors that are open.
    "read": (0, 63),
    "readv": (19, 65),
    "pread64": (17, 67),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "recvmmsg": (299, 243),
    "write": (1, 64),
    "writev": (20, 66),
    "pwrite64": (18, 68),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "lseek": (8, 62),
    "fstat": (5, 80),
    "getsockopt": (55, 209),
    "close": (3, 57),
    # Waiting, and the time.
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "futex": (202, 98),
    "sched_yield": (24, 124),
    "restart_syscall": (219, 128),
    # Memory of its own.
    "brk": (12, 214),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "mprotect": (10, 226),
    "madvise": (28, 233),
    # Python's and glibc's housekeeping.
    "getrandom": (318, 278),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getcpu": (309, 168),
    "sched_getaffinity": (204, 123),
    "getrusage": (98, 165),
    "membarrier": (324, 283),
    "rseq": (334, 293),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "exit": (60, 93),
    "exit_group": (231, 94),
}

#: `sendto` stays for messages without an address of their own: argument 4 must be zero.
_SENDTO = (44, 206)
_SECCOMP = (317, 277)


def confine(parent: int, *, grows_files: bool) -> list[str]:
    """Give up what forwarding does not need; return what this machine refused, in words.

    `grows_files`: captures are open, whose size is not limited. The process still ends with its parent.
    """
    _limit(grows_files=grows_files)
    kernel = ctypes.CDLL(None, use_errno=True)
    refused = [*_drop_user(kernel), *_drop_capabilities(kernel)]
    tied.end_with_parent(parent)  # Linux forgets it when the user changes
    if kernel.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        refused.append(_why("no_new_privs"))
    elif not _filter_system_calls(kernel):
        refused.append(_why("a filter of system calls"))
    return refused


def _why(what: str) -> str:
    number = ctypes.get_errno()
    return f"{what} ({os.strerror(number) if number else f'not on {platform.machine()}'})"


def _limit(*, grows_files: bool) -> None:
    """Limit memory, files, descriptors, processes and core dumps."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    _lower(resource.RLIMIT_AS, now_bytes + MOST_GROWTH_BYTES)
    if not grows_files:
        log = os.fstat(2) if _is_open(2) else None
        _lower(resource.RLIMIT_FSIZE, (log.st_size if log and stat.S_ISREG(log.st_mode) else 0) + _LOG_BYTES)
    _lower(resource.RLIMIT_NOFILE, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    _lower(resource.RLIMIT_NPROC, 0)
    _lower(resource.RLIMIT_CORE, 0)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _lower(limit: int, value: int) -> None:
    """Set both limits to a value, or leave a lower one as it is."""
    before = resource.getrlimit(limit)[1]
    most = value if before == resource.RLIM_INFINITY else min(value, before)
    resource.setrlimit(limit, (most, most))


def _drop_user(kernel: ctypes.CDLL) -> list[str]:
    """Become nobody where this process is root; in a namespace without that user it stays who it is."""
    # Only root may do the first; where the user cannot change, capabilities go all the same.
    for number in range(_LAST_CAPABILITY + 1):
        kernel.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    kernel.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if os.geteuid() != 0 or not _has_user(UNPRIVILEGED):
        return []
    with suppress(PermissionError):  # a namespace may forbid it: then no group of root's is there
        os.setgroups([])
    try:
        os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    except OSError as error:
        return [f"another user than root ({error.strerror})"]
    return []


def _has_user(number: int) -> bool:
    """Return whether users and groups of this namespace include a number."""
    return all(
        any(first <= number < first + count for first, _, count in _ids(path))
        for path in ("/proc/self/uid_map", "/proc/self/gid_map")
    )


def _ids(path: str) -> Iterable[tuple[int, ...]]:
    with suppress(OSError), open(path, encoding="ascii") as file:
        for line in file:
            yield tuple(map(int, line.split()))


def _drop_capabilities(kernel: ctypes.CDLL) -> list[str]:
    """Clear the effective, permitted and inheritable set."""
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    if kernel.capset(header, bytes(24)):
        return [_why("no capabilities")]
    return []


def _filter_system_calls(kernel: ctypes.CDLL) -> bool:
    """Refuse all system calls with EPERM but those that forwarding makes; False where that cannot be."""
    ctypes.set_errno(0)
    program = _program(platform.machine())
    if program is None:
        return False
    instructions = b"".join(struct.pack("=HBBI", *each) for each in program)
    held = ctypes.create_string_buffer(instructions, len(instructions))
    pointer = struct.pack("@HP", len(program), ctypes.addressof(held))
    call = _SECCOMP[_column(platform.machine())]
    # Without _AS_FAST a filter slows the process down before Linux 5.16; Linux before 4.17 does not have it.
    flags = (_ALL_THREADS | _AS_FAST, _ALL_THREADS)
    return any(kernel.syscall(call, _SET_MODE_FILTER, each, pointer) == 0 for each in flags)


def _column(machine: str) -> int:
    return list(_PROCESSORS).index(machine)


def _program(machine: str) -> list[tuple[int, int, int, int]] | None:
    """Return a filter as (code, jump if true, jump if false, operand); None for other processors.

    A call through the interface of another processor ends the process.
    """
    if machine not in _PROCESSORS or sys.byteorder != "little" or struct.calcsize("P") != 8:
        return None
    column = _column(machine)
    numbers = [number for each in ALLOWED.values() if (number := each[column]) is not None]
    sendto = _SENDTO[column]
    program = [
        (_LOAD, 0, 0, _PROCESSOR_AT),
        (_IF_EQUAL, 1, 0, _PROCESSORS[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        program += [(_IF_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    refuse = (_RETURN, 0, 0, _REFUSE | _EPERM)
    for number in numbers:
        program += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    address_at = _ARGUMENTS_AT + 4 * 8
    return [
        *program,
        (_IF_EQUAL, 1, 0, sendto),
        refuse,
        (_LOAD, 0, 0, address_at),
        (_IF_EQUAL, 1, 0, 0),
        refuse,
        (_LOAD, 0, 0, address_at + 4),
        (_IF_EQUAL, 1, 0, 0),
        refuse,
        (_RETURN, 0, 0, _ALLOW),
    ]
