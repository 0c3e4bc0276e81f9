"""Addresses: what hosts are called on the wire, by default or by a file."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address
from os import PathLike
from reprlib import repr as short_repr
from typing import TYPE_CHECKING, Any

from tensorexpress.errors import InputError, unknown
from tensorexpress.files import read_within

if TYPE_CHECKING:
    from tensorexpress.cluster import Cluster

#: The address under which every switch is the hosts' router.
GATEWAY_MAC = bytes.fromhex("025458000001")

#: The address in whose name switches send what they have made themselves; hosts call their router so. It is on no
#: network, and no switch takes a tensor packet from a host in its name.
GATEWAY_IPV4 = IPv4Address("169.254.1.1")

#: Longest file of addresses that is read.
_LARGEST_FILE_BYTES = 2**24

_FIRST_MAC = 0x025458_010000
_FIRST_IPV4 = IPv4Address("10.0.0.1")
_FIRST_IPV6 = IPv6Address("fd54:58::1")


@dataclass(frozen=True, slots=True)
class HostAddress:
    """The addresses of one host."""

    mac: bytes
    ipv4: IPv4Address
    ipv6: IPv6Address


def format_mac(mac: bytes) -> str:
    """Return a MAC address as people write it.

    >>> format_mac(GATEWAY_MAC)
    '02:54:58:00:00:01'
    """
    return mac.hex(":")


def default_address(host: int) -> HostAddress:
    """Return the addresses of a host that was given none; they follow from its index.

    >>> format_mac(default_address(2).mac), str(default_address(2).ipv4), str(default_address(2).ipv6)
    ('02:54:58:01:00:02', '10.0.0.3', 'fd54:58::3')
    """
    return HostAddress((_FIRST_MAC + host).to_bytes(6, "big"), _FIRST_IPV4 + host, _FIRST_IPV6 + host)


def default_addresses(hosts: Sequence[str]) -> tuple[HostAddress, ...]:
    """Return the default addresses of all hosts of a cluster."""
    return tuple(map(default_address, range(len(hosts))))


def addresses_of(cluster: Cluster) -> tuple[HostAddress, ...]:
    """Return the addresses of all hosts of a cluster: those that its own file gave them, the defaults for the rest."""
    given = {
        own.host: {kind: value for kind, value in (("mac", own.mac), ("ipv4", own.ipv4)) if value is not None}
        for own in cluster.addresses
    }
    return _merge(given, cluster.hosts, default_addresses(cluster.hosts))


def read_addresses(path: str | PathLike[str], cluster: Cluster) -> tuple[HostAddress, ...]:
    """Return the addresses of all hosts of a cluster: what a TOML file says, those of `addresses_of` for the rest.

    The file has a line for each host that differs: `h0 = {mac = "02:00:00:00:00:01", ipv4 = "192.168.0.1"}`.
    """
    try:
        document = tomllib.loads(read_within(path, _LARGEST_FILE_BYTES).decode())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a TOML file of addresses") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not TOML ({error}); give lines such as h0 = {{ipv4 = '10.0.0.1'}}") from None
    try:
        return _merge(document, cluster.hosts, addresses_of(cluster))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _merge(document: Mapping[str, Any], hosts: Sequence[str], others: Sequence[HostAddress]) -> tuple[HostAddress, ...]:
    for name in document:
        if name not in hosts:
            raise InputError(unknown("host", name, hosts))
    addresses = tuple(_own(name, document.get(name, {}), other) for name, other in zip(hosts, others, strict=True))
    for kind in _READERS:
        value, uses = Counter(getattr(address, kind) for address in addresses).most_common(1)[0]
        if uses > 1:
            shown = format_mac(value) if isinstance(value, bytes) else value
            raise InputError(f"{uses} hosts have {kind} {shown}; accepted: one of its own for each host")
    return addresses


def _own(host: str, given: Any, default: HostAddress) -> HostAddress:
    if not isinstance(given, dict):
        raise InputError(f"{host} is {short_repr(given)}; accepted: a table with {', '.join(_READERS)}")
    for kind in given:
        if kind not in _READERS:
            raise InputError(f"{host}: {unknown('address', kind, _READERS)}")
    return replace(default, **{kind: _READERS[kind](f"{host}.{kind}", value) for kind, value in given.items()})


def _mac(where: str, value: object) -> bytes:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", value):
        raise InputError(f"{where} is {short_repr(value)}; accepted: a MAC address such as '02:54:58:01:00:00'")
    mac = bytes.fromhex(value.replace(":", ""))
    if mac[0] & 1 or mac == GATEWAY_MAC or not any(mac):
        raise InputError(f"{where} is {value!r}; accepted: a unicast address other than {format_mac(GATEWAY_MAC)}")
    return mac


def _ipv4(where: str, value: object) -> IPv4Address:
    try:
        address = IPv4Address(value) if isinstance(value, str) else None
    except ValueError:
        address = None
    if address is None or address.is_multicast or address.is_unspecified:
        raise InputError(f"{where} is {short_repr(value)}; accepted: a unicast address such as '10.0.0.1'")
    return address


def _ipv6(where: str, value: object) -> IPv6Address:
    try:
        address = IPv6Address(value) if isinstance(value, str) else None
    except ValueError:
        address = None
    if address is None or address.is_multicast or address.is_unspecified or address.scope_id:
        raise InputError(f"{where} is {short_repr(value)}; accepted: a unicast address such as 'fd54:58::1'")
    return address


_READERS: Mapping[str, Callable[[str, object], Any]] = {"mac": _mac, "ipv4": _ipv4, "ipv6": _ipv6}
