"""Addresses of P4Runtime: HOST:PORT, [IPV6]:PORT or unix:PATH.

Without one, a switch listens on a Unix socket of its user, and other commands look for it there: `default_address`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tensorexpress.errors import InputError
from tensorexpress.user_cache import is_own

#: P4Runtime's port, as registered.
DEFAULT_PORT = 9559

#: Linux keeps the path of a socket in 108 bytes, the last of which is zero.
LONGEST_PATH_BYTES = 107

#: The default address, as help pages show it.
DEFAULT_SHOWN = "unix:$XDG_RUNTIME_DIR/tensorexpress/switch-ID.sock"

ACCEPTED = "accepted: HOST:PORT, [IPV6]:PORT or unix:PATH"

#: Digits of a UDP or TCP port.
_MOST_DIGITS = 5

_HOST_AND_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([A-Za-z0-9._-]+))(?::([0-9]+))?")

#: What gRPC would take for a way to connect and not for a host, some of which anybody may use.
_SCHEMES = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds", "google-c2p")


@dataclass(frozen=True)
class TcpAddress:
    """A host, by name or address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def for_grpc(self) -> str:
        """The address as gRPC takes it."""
        return str(self)

    def is_loopback(self) -> bool:
        """Whether only this machine reaches it, for all that a name stands for; OSError when it stands for nothing."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


@dataclass(frozen=True)
class UnixAddress:
    """A socket in the file system; its mode, and those of its directories, say who may connect."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"

    @property
    def for_grpc(self) -> str:
        """The address as gRPC takes it: a URI, in which other characters are escaped."""
        return f"unix:{quote(self.path)}"


ControlAddress = TcpAddress | UnixAddress


def default_address(device_id: int, *, make: bool = False) -> UnixAddress:
    """Return the socket of this user's switch with a device id; its directory is made when a switch asks.

    The directory is `tensorexpress` in $XDG_RUNTIME_DIR or /run/user/UID, whichever is this user's, or else
    /tmp/tensorexpress-UID. InputError when another user owns it or may enter it: a client would talk to another
    user's switch.
    """
    directory = _runtime_directory()
    address = _unix(f"unix:{directory}/switch-{device_id}.sock", f"the default address {str(directory)!r}")
    try:
        if make:
            directory.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(directory)
    except FileNotFoundError:
        return address
    except OSError as error:
        raise InputError(f"{str(directory)!r} cannot be used ({error.strerror}); {_ELSEWHERE}") from None
    if found.st_uid != os.geteuid():
        raise InputError(f"{str(directory)!r} belongs to another user (uid {found.st_uid}); {_ELSEWHERE}")
    if not is_own(found, stat.S_ISDIR):
        raise InputError(f"{str(directory)!r} is no directory of mode 0700; chmod 0700 or remove it, or {_ELSEWHERE}")
    return address


_ELSEWHERE = "name a socket: `switch --grpc unix:PATH`, other commands `--switch NAME=unix:PATH`"


def _runtime_directory() -> Path:
    user = os.geteuid()
    for base in (Path(os.environ.get("XDG_RUNTIME_DIR", "")), Path(f"/run/user/{user}")):
        try:
            found = base.lstat()
        except OSError:
            continue
        if base.is_absolute() and is_own(found, stat.S_ISDIR):
            return base / "tensorexpress"
    return Path(f"/tmp/tensorexpress-{user}")


def parse_address(text: str, said: str, *, default_port: int | None = None, any_port: bool = False) -> ControlAddress:
    """Return the address in a text; InputError, which begins with what the user said, when there is none.

    Without a default the port must be given; with `any_port` it may be 0.

    >>> parse_address("unix:///run/s0.sock", "--grpc ...")
    UnixAddress(path='/run/s0.sock')
    >>> str(parse_address("[::1]", "--switch ...", default_port=9559))
    '[::1]:9559'
    """
    if text.startswith("unix:"):
        return _unix(text, said)
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None or text.partition(":")[0] in _SCHEMES or (match[3] is None and default_port is None):
        raise InputError(f"{said} is no address; {ACCEPTED}")
    if match[1] is not None and not _is_ipv6(match[1]):
        raise InputError(f"{said}: {match[1]!r} is no IPv6 address; {ACCEPTED}")
    digits, lowest = match[3] or str(default_port or 0), 0 if any_port else 1
    port = int(digits) if len(digits) <= _MOST_DIGITS else -1
    if not lowest <= port <= 65535:
        raise InputError(f"{said}: port {digits} is out of range; accepted: {lowest} to 65535")
    return TcpAddress(match[1] or match[2], port)


def _unix(text: str, said: str) -> UnixAddress:
    # `unix:///run/s0.sock` is how URIs write /run/s0.sock.
    path = re.sub("^//+", "/", text.removeprefix("unix:"))
    if not path or "\0" in path:
        raise InputError(f"{said} names no path; accepted: unix:PATH, such as unix:/run/s0.sock")
    size = len(os.fsencode(path))
    if size > LONGEST_PATH_BYTES:
        raise InputError(f"{said}: a path of {size} bytes; accepted: at most {LONGEST_PATH_BYTES}, give a shorter one")
    return UnixAddress(path)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
