"""Network namespaces and virtual cables for hosts, by `ip`. Their names carry the mark of who made them.

A process that is killed cannot clean up. So whoever builds a network first removes what dead processes have left, which
`marks` knows; what others have made is never touched, whatever it is called.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tensorexpress.addresses import GATEWAY_IPV4, GATEWAY_MAC, HostAddress, format_mac
from tensorexpress.errors import NetworkError, NotRootError
from tensorexpress.target.marks import abandoned, mark_of, marked_name

#: The end of a host's cable inside its namespace.
INTERFACE = "eth0"

# Linux's sockios.h and ethtool.h: settings of an interface; checksums and segments that are left to it.
_SIOCETHTOOL = 0x8946
_SET_OFFLOADS = (0x17, 0x24)

#: What `ip` keeps of namespaces is below /run, where only true root may write.
_OWN_RUN = 'mount -t tmpfs tmpfs /run && ip link set lo up && exec "$@"'
_AS_OWN_ROOT = ("unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", _OWN_RUN, "sh")


def may_make_namespaces() -> bool:
    """Whether this process can be expected to be allowed to: it is root, and there is `ip`."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


def check_namespaces() -> None:
    """Raise NetworkError, with what to do, when network namespaces cannot be made."""
    if shutil.which("ip") is None:
        raise NetworkError("network namespaces need the program `ip`; install iproute2")
    if os.geteuid() != 0:
        raise NotRootError(
            "network namespaces need root; run as root, or take the target embedded with --wires, which needs none"
        )


def as_own_root(command: Sequence[str]) -> list[str]:
    """Return how to run a command as root of a user namespace, with a network and a /run of its own.

    NetworkError where users of this machine may not be that.
    """
    try:
        tried = subprocess.run([*_AS_OWN_ROOT, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NetworkError("a user namespace needs the program `unshare`; install util-linux") from None
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["no reason given"])[0]
        raise NetworkError(f"nor may this user be root in a namespace of its own: {reason}")
    return [*_AS_OWN_ROOT, *command]


def ip(commands: Sequence[str], namespace: str | None = None, *, ipv6: bool = False) -> None:
    """Run commands of `ip`, one a line, in this or in another namespace; rules need to be told that they are IPv6's."""
    where = ["-n", namespace] if namespace is not None else []
    done = subprocess.run(
        ["ip", *where, *(["-6"] if ipv6 else []), "-batch", "-"],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        failed = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise NetworkError(f"ip: {failed}; needs root, and a kernel with network namespaces and veth")


@contextmanager
def namespace() -> Iterator[str]:
    """Make a namespace with nothing but loopback, and remove it with all that is in it; gives its name."""
    with marked_name("n") as name:
        try:
            ip([f"netns add {name}"])
            ip(["link set lo up"], name)
            yield name
        finally:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextmanager
def cable(mtu: int, into: str | None = None) -> Iterator[tuple[str, str]]:
    """Make a cable of which one end is here, and the other here or in a namespace; gives the names of its ends.

    What is sent into a namespace's end is whole: a switch at this one need not finish it.
    """
    with marked_name("v") as here, marked_name("w") as other:
        there = other if into is None else INTERFACE
        try:
            ip([f"link add {here} mtu {mtu} type veth peer name {other} mtu {mtu}"])
            if into is not None:
                _finish_frames(other)
                ip([f"link set {other} netns {into} name {there}"])
            # Without its own address generation the kernel sends nothing by itself.
            ip([f"link set {here} addrgenmode none up"])
            ip([f"link set {there} addrgenmode none up"], into)
            yield here, there
        finally:
            subprocess.run(["ip", "link", "del", here], capture_output=True, check=False)


def _finish_frames(interface: str) -> None:
    """Have the kernel cut and sum what it sends through an interface, as for a card that can do neither."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for what in _SET_OFFLOADS:
            value = array("I", [what, 0])
            request = struct.pack("=16sQ16x", interface.encode(), value.buffer_info()[0])
            with suppress(OSError):  # a kernel that cannot leaves it to the switch
                fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def move(interface: str, into: str) -> None:
    """Take an interface into a namespace, where it is as `cable` made it here."""
    ip([f"link set {interface} netns {into}"])
    ip([f"link set {interface} addrgenmode none up"], into)


@contextmanager
def host(address: HostAddress, mtu: int) -> Iterator[tuple[str, str]]:
    """Make a host: a namespace whose cable leads here, and whose router is the switch there.

    Gives the names of the namespace and of the end of the cable that is here.
    """
    with namespace() as name, cable(mtu, into=name) as (here, there):
        ip(
            [
                f"link set {there} address {format_mac(address.mac)}",
                f"addr add {address.ipv4}/32 dev {there}",
                f"neigh add {GATEWAY_IPV4} lladdr {format_mac(GATEWAY_MAC)} dev {there} nud permanent",
                f"route add default via {GATEWAY_IPV4} dev {there} onlink",
            ],
            name,
        )
        yield name, here


def remove_leftovers() -> list[str]:
    """Remove namespaces and cables of processes that are no more; return their names."""
    removed = []
    with abandoned() as marks:
        for kind in ("netns", "link") if marks else ():
            for name in _names(kind):
                if mark_of(name) in marks:
                    subprocess.run(["ip", kind, "del", name], capture_output=True, check=False)
                    removed.append(name)
    return removed


def _names(kind: str) -> list[str]:
    listed = subprocess.run(["ip", "-j", kind, "show"], capture_output=True, text=True, check=False).stdout
    rows = json.loads(listed or "[]")
    return [row.get("name") or row.get("ifname", "") for row in rows]
