"""eBPF by its system call alone, without tools or libraries: instructions, and programs at the egress of an interface.

Programs hang at an interface by tcx, which Linux has from 6.6 on: they stay when whoever attached them ends, go with
the interface, and run before its queues.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tensorexpress.errors import MachineError, NetworkError

#: The number of bpf(2), by machine.
_CALLS = {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "s390x": 351, "riscv64": 280}

_PROG_LOAD, _PROG_ATTACH, _PROG_DETACH, _GET_FD_BY_ID, _GET_INFO, _PROG_QUERY = 5, 8, 9, 13, 15, 16
_SCHED_CLS, _TCX_EGRESS, _REPLACE = 3, 47, 1 << 2
_MOST_PROGRAMS = 64

#: Where a program's name stands in what the kernel tells of it, and how long that is.
_NAME_OFFSET, _NAME_BYTES, _INFO_BYTES = 64, 16, 128

_LOG_BYTES = 1 << 16


def instruction(code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    """Return one instruction; `imm` may be given with or without a sign."""
    return struct.pack("<BBhi", code, src << 4 | dst, off, imm - (1 << 32) if imm >= 1 << 31 else imm)


def attach(ifindex: int, name: str, instructions: Sequence[bytes]) -> None:
    """Load a program and put it at the egress of an interface, in place of those of the same name."""
    with _closing(_load(name, instructions)) as program, _own(ifindex, name) as before:
        replaced = (_REPLACE, before[0]) if before else (0, 0)
        _call(_PROG_ATTACH, struct.pack("<IIIII", ifindex, program, _TCX_EGRESS, *replaced), "attach a program")
        for other in before[1:]:
            _detach(ifindex, other)


def detach(ifindex: int, name: str) -> int:
    """Take the programs of a name from the egress of an interface; return how many there were."""
    with _own(ifindex, name) as programs:
        for program in programs:
            _detach(ifindex, program)
        return len(programs)


def _detach(ifindex: int, program: int) -> None:
    _call(_PROG_DETACH, struct.pack("<III", ifindex, program, _TCX_EGRESS), "detach a program")


def _load(name: str, instructions: Sequence[bytes]) -> int:
    code = ctypes.create_string_buffer(b"".join(instructions))
    licence, log = ctypes.create_string_buffer(b"Apache-2.0"), ctypes.create_string_buffer(_LOG_BYTES)
    addresses = [ctypes.addressof(each) for each in (code, licence)]
    count = sum(map(len, instructions)) // 8
    attributes = struct.pack(
        "<IIQQIIQII16sII",
        *(_SCHED_CLS, count, *addresses, 1, _LOG_BYTES, ctypes.addressof(log)),
        *(0, 0, name.encode(), 0, _TCX_EGRESS),
    )
    return _call(_PROG_LOAD, attributes, "load a program", log)


@contextmanager
def _own(ifindex: int, name: str) -> Iterator[list[int]]:
    """Give the programs of a name at an egress, as file descriptors."""
    ids = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    query = struct.pack("<IIIIQIIQQQQ", ifindex, _TCX_EGRESS, 0, 0, ctypes.addressof(ids), _MOST_PROGRAMS, *[0] * 5)
    found: list[int] = []
    try:
        _call(_PROG_QUERY, query, "look for programs")
        for number in filter(None, ids):
            # It may have gone since.
            with suppress(NetworkError):
                program = _call(_GET_FD_BY_ID, struct.pack("<III", number, 0, 0), "open a program")
                if _name(program) == name:
                    found.append(program)
                else:
                    os.close(program)
        yield found
    finally:
        for program in found:
            os.close(program)


def _name(program: int) -> str:
    info = ctypes.create_string_buffer(_INFO_BYTES)
    _call(_GET_INFO, struct.pack("<IIQ", program, _INFO_BYTES, ctypes.addressof(info)), "ask for a program")
    return info.raw[_NAME_OFFSET : _NAME_OFFSET + _NAME_BYTES].rstrip(b"\0").decode(errors="replace")


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _call(command: int, attributes: bytes, what: str, log: ctypes.Array[ctypes.c_char] | None = None) -> int:
    number = _CALLS.get(platform.machine())
    if number is None or not hasattr(os, "pidfd_open"):
        raise MachineError(
            f"eBPF: this is {platform.system()} on {platform.machine()}; accepted: Linux on {', '.join(_CALLS)}"
        )
    padded = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    # Attributes that a kernel does not know must be 0, and more of them are no matter.
    result = int(ctypes.CDLL(None, use_errno=True).syscall(number, command, padded, 128))
    if result < 0:
        reason = os.strerror(ctypes.get_errno())
        said = log.value.decode(errors="replace").strip().splitlines()[-1:] if log is not None else []
        raise NetworkError(
            f"the kernel does not {what}: {': '.join([reason, *said])}; tagging at an interface needs root, and Linux "
            "6.6 or newer with eBPF (CONFIG_BPF_SYSCALL, CONFIG_NET_SCH_INGRESS)"
        )
    return result
