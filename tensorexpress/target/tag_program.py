"""Tags at an interface: a small eBPF program that writes the DSCP of packets by their ports and their sender's cgroup.

It runs before the queues of the interface, so that these follow the DSCP that it writes. Whoever sends need know
nothing of it, and connections that are open already are tagged from their next packet on.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

from tensorexpress.errors import InputError, NetworkError, unknown
from tensorexpress.names import check_interface
from tensorexpress.target import bpf
from tensorexpress.target.bpf import instruction
from tensorexpress.wire.dscp import DSCPS

#: What the program is called in the kernel, by which it is known again.
PROGRAM = "te_tag"

#: Rules of a program; each is ten instructions.
MOST_RULES = 64

_CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
#: ARPHRD_ETHER and ARPHRD_LOOPBACK: packets begin with an Ethernet header.
_WITH_ETHERNET = (1, 772)
_SIOCGIFHWADDR = 0x8927

_ETHERNET = 14
_TCP, _UDP = 6, 17
_IPV4, _IPV6 = socket.htons(0x0800), socket.htons(0x86DD)

# Instructions of eBPF, each with its operands as registers or constants.
_LOAD32, _LOAD16, _LOAD8, _STORE8, _WIDE = 0x61, 0x69, 0x71, 0x73, 0x18
_MOVE, _MOVE_REGISTER, _ADD, _AND, _OR_REGISTER, _LEFT, _RIGHT = 0xB7, 0xBF, 0x07, 0x57, 0x4F, 0x67, 0x77
_JUMP, _IF_EQUAL, _IF_NOT, _IF_NOT_REGISTER, _IF_SAME, _IF_ABOVE, _IF_BELOW = 0x05, 0x15, 0x55, 0x5D, 0x1D, 0x25, 0xA5
_CALL, _EXIT, _BIG_ENDIAN = 0x85, 0x95, 0xDC
_STORE_BYTES, _IP_CHECKSUM, _LOAD_BYTES, _ANCESTOR_CGROUP = 9, 10, 26, 83

#: On the stack: the beginning of the IP header, and the two ports.
_HEADER, _PORTS = -24, -32


@dataclass(frozen=True)
class TagRule:
    """Packets from or to one of these ports get a DSCP; the first rule that fits is the one."""

    low: int
    high: int
    dscp: int

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= 65535:
            raise InputError(f"ports {self.low}-{self.high}; accepted: 1 to 65535, the lower first")
        if not 0 <= self.dscp < DSCPS:
            raise InputError(f"DSCP {self.dscp}; accepted: 0 to {DSCPS - 1}")

    def fits(self, *ports: int) -> bool:
        """Whether one of a packet's or socket's ports is among those of the rule."""
        return any(self.low <= port <= self.high for port in ports)


@dataclass(frozen=True)
class Cgroup:
    """A cgroup as the kernel knows it: what is in it, and in those below it, is tagged."""

    number: int
    #: How far below the root.
    level: int


def find_cgroup(path: str) -> Cgroup:
    """Return a cgroup (version 2) by its path, from the root of cgroups or from that of the machine."""
    for root in _CGROUPS:
        if not (root / "cgroup.procs").is_file():
            continue
        found = root / path.removeprefix(f"{root}/").strip("/")
        if ".." not in found.parts and (found / "cgroup.procs").is_file():
            return Cgroup(os.stat(found).st_ino, len(found.relative_to(root).parts))
    raise InputError(
        f"cgroup {path!r}: there is none; accepted: a cgroup of version 2, such as /training.slice, as `cat "
        "/proc/PID/cgroup` shows after 0::"
    )


def tag_interface(device: str, rules: Sequence[TagRule], cgroup: Cgroup | None = None) -> None:
    """Tag what leaves by an interface, instead of what was tagged there before."""
    bpf.attach(_checked(device), PROGRAM, program(rules, cgroup))


def untag_interface(device: str) -> bool:
    """Tag nothing more that leaves by an interface; False when nothing was."""
    return bpf.detach(_checked(device), PROGRAM) > 0


def _checked(device: str) -> int:
    """Return the number of an interface."""
    names = [name for _, name in socket.if_nameindex()]
    if check_interface(device) not in names:
        raise InputError(unknown("interface", device, names))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = ioctl(any_socket, _SIOCGIFHWADDR, device.encode().ljust(32, b"\0"))
    if int.from_bytes(answer[16:18], sys.byteorder) not in _WITH_ETHERNET:
        raise InputError(f"interface {device}: its packets have no Ethernet header; accepted: an interface whose have")
    if os.geteuid() != 0:
        raise NetworkError(f"what leaves by {device} can be tagged by root alone; run with sudo")
    return socket.if_nametoindex(device)


class _Code:
    """Instructions with jumps to places that have names."""

    def __init__(self) -> None:
        self._made: list[tuple[bytes, str]] = []
        self._places: dict[str, int] = {}

    def add(self, code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0, to: str = "") -> None:
        self._made.append((instruction(code, dst, src, off, imm), to))

    def place(self, name: str) -> None:
        self._places[name] = len(self._made)

    def load(self, where: int, size: int) -> None:
        """Copy bytes of the packet, from register 2 on, to the stack; what is too short is let pass."""
        self.add(_MOVE_REGISTER, 1, 6)
        self.add(_MOVE_REGISTER, 3, 10)
        self.add(_ADD, 3, imm=where)
        self.add(_MOVE, 4, imm=size)
        self.add(_CALL, imm=_LOAD_BYTES)
        self.add(_IF_NOT, 0, imm=0, to="out")

    def instructions(self) -> list[bytes]:
        def landed(at: int, made: bytes, to: str) -> bytes:
            return made if not to else made[:2] + (self._places[to] - at - 1).to_bytes(2, "little") + made[4:]

        return [landed(at, made, to) for at, (made, to) in enumerate(self._made)]


def program(rules: Sequence[TagRule], cgroup: Cgroup | None = None) -> list[bytes]:
    """Return the instructions of the program. Registers 6 to 9: the packet, its protocol, its two ports or its DSCP."""
    if not 1 <= len(rules) <= MOST_RULES:
        raise InputError(f"{len(rules)} rules; accepted: 1 to {MOST_RULES}")
    code = _Code()
    code.add(_MOVE_REGISTER, 6, 1)
    code.add(_LOAD32, 7, 6, off=16)
    if cgroup is not None:
        code.add(_MOVE, 2, imm=cgroup.level)
        code.add(_CALL, imm=_ANCESTOR_CGROUP)
        code.add(_WIDE, 1, imm=cgroup.number & 0xFFFFFFFF)
        code.add(0, imm=cgroup.number >> 32)
        code.add(_IF_NOT_REGISTER, 0, 1, to="out")
    code.add(_IF_EQUAL, 7, imm=_IPV4, to="ipv4")
    code.add(_IF_NOT, 7, imm=_IPV6, to="out")
    _find_ports(code)
    code.place("ports")
    for register, offset in ((8, _PORTS), (9, _PORTS + 2)):
        code.add(_LOAD16, register, 10, off=offset)
        code.add(_BIG_ENDIAN, register, imm=16)
    for number, rule in enumerate(rules):
        code.add(_IF_BELOW, 8, imm=rule.low, to=f"other{number}")
        code.add(_IF_ABOVE, 8, imm=rule.high, to=f"other{number}")
        code.add(_JUMP, to=f"fits{number}")
        code.place(f"other{number}")
        code.add(_IF_BELOW, 9, imm=rule.low, to=f"next{number}")
        code.add(_IF_ABOVE, 9, imm=rule.high, to=f"next{number}")
        code.place(f"fits{number}")
        code.add(_MOVE, 8, imm=rule.dscp << 2)
        code.add(_JUMP, to="write")
        code.place(f"next{number}")
    code.add(_JUMP, to="out")
    code.place("write")
    _write_dscp(code)
    code.place("out")
    # The next program, or the queues.
    code.add(_MOVE, 0, imm=-1)
    code.add(_EXIT)
    return code.instructions()


def _find_ports(code: _Code) -> None:
    """Put the IP header and the ports on the stack; later fragments, and what is neither TCP nor UDP, have none."""
    code.add(_MOVE, 2, imm=_ETHERNET)
    code.load(_HEADER, 8)
    code.add(_LOAD8, 1, 10, off=_HEADER + 6)
    code.add(_IF_EQUAL, 1, imm=_TCP, to="ipv6 ports")
    code.add(_IF_NOT, 1, imm=_UDP, to="out")
    code.place("ipv6 ports")
    code.add(_MOVE, 2, imm=_ETHERNET + 40)
    code.load(_PORTS, 4)
    code.add(_JUMP, to="ports")
    code.place("ipv4")
    code.add(_MOVE, 2, imm=_ETHERNET)
    code.load(_HEADER, 20)
    code.add(_LOAD16, 1, 10, off=_HEADER + 6)
    code.add(_AND, 1, imm=socket.htons(0x1FFF))
    code.add(_IF_NOT, 1, imm=0, to="out")
    code.add(_LOAD8, 1, 10, off=_HEADER + 9)
    code.add(_IF_EQUAL, 1, imm=_TCP, to="ipv4 ports")
    code.add(_IF_NOT, 1, imm=_UDP, to="out")
    code.place("ipv4 ports")
    code.add(_LOAD8, 8, 10, off=_HEADER)
    code.add(_AND, 8, imm=0x0F)
    code.add(_LEFT, 8, imm=2)
    code.add(_ADD, 8, imm=_ETHERNET)
    code.add(_MOVE_REGISTER, 2, 8)
    code.load(_PORTS, 4)


def _write_dscp(code: _Code) -> None:
    """Write register 8 into the packet, beside the two bits of ECN, and mend the checksum of an IPv4 header."""
    code.add(_IF_EQUAL, 7, imm=_IPV6, to="ipv6 write")
    code.add(_LOAD16, 9, 10, off=_HEADER)
    code.add(_LOAD8, 1, 10, off=_HEADER + 1)
    code.add(_AND, 1, imm=3)
    code.add(_OR_REGISTER, 1, 8)
    code.add(_STORE8, 10, 1, off=_HEADER + 1)
    code.add(_LOAD16, 4, 10, off=_HEADER)
    code.add(_IF_SAME, 9, 4, to="out")
    code.add(_MOVE_REGISTER, 1, 6)
    code.add(_MOVE, 2, imm=_ETHERNET + 10)
    code.add(_MOVE_REGISTER, 3, 9)
    code.add(_MOVE, 5, imm=2)
    code.add(_CALL, imm=_IP_CHECKSUM)
    _store(code, _ETHERNET + 1, _HEADER + 1, 1)
    code.add(_JUMP, to="out")
    code.place("ipv6 write")
    # The traffic class is the second half of the first byte and the first half of the second.
    code.add(_LOAD8, 1, 10, off=_HEADER)
    code.add(_AND, 1, imm=0xF0)
    code.add(_MOVE_REGISTER, 2, 8)
    code.add(_RIGHT, 2, imm=4)
    code.add(_OR_REGISTER, 1, 2)
    code.add(_STORE8, 10, 1, off=_HEADER)
    code.add(_LOAD8, 1, 10, off=_HEADER + 1)
    code.add(_AND, 1, imm=0x3F)
    code.add(_AND, 8, imm=0x0C)
    code.add(_LEFT, 8, imm=4)
    code.add(_OR_REGISTER, 1, 8)
    code.add(_STORE8, 10, 1, off=_HEADER + 1)
    _store(code, _ETHERNET, _HEADER, 2)


def _store(code: _Code, offset: int, where: int, size: int) -> None:
    """Copy bytes from the stack into the packet."""
    code.add(_MOVE_REGISTER, 1, 6)
    code.add(_MOVE, 2, imm=offset)
    code.add(_MOVE_REGISTER, 3, 10)
    code.add(_ADD, 3, imm=where)
    code.add(_MOVE, 4, imm=size)
    code.add(_MOVE, 5, imm=0)
    code.add(_CALL, imm=_STORE_BYTES)
