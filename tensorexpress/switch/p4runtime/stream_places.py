"""Places for streams: each peer has a limit, and when a newcomer finds none free, another stream makes room."""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any
from urllib.parse import unquote

from tensorexpress.switch.p4runtime.status import Code, Refused

#: Every stream holds two threads, so that their number is limited.
LARGEST_NUMBER_OF_STREAMS = 32
#: Streams of one peer; the places beyond are for streams of other peers.
STREAMS_OF_A_PEER = 24

_LOOPBACK = "this machine"
#: A host with IPv6 chooses the lower half of its address freely.
_IPV6_PREFIX = 64


class StreamStanding(IntEnum):
    """What a stream is to the switch; a lower one makes room before a higher one."""

    SILENT = 0
    """Its client has not arbitrated."""
    BACKUP = 1
    ROLE_PRIMARY = 2
    """The primary of a role with a name: makes room only for a peer that holds fewer streams."""
    PRIMARY = 3
    """The primary of the default role: never makes room."""


def peer_of(context: Any) -> str:
    """Return the peer that a call counts for: the client's certificate, or else its address.

    All Unix sockets and loopback addresses are one peer, since gRPC tells no user and a client chooses its address
    there; an IPv6 network of 64 bits is one as well.
    """
    identities = context.peer_identities()
    if identities:
        return f"certificate {b', '.join(identities).decode(errors='replace')!a}"
    return peer_of_address(context.peer())


def peer_of_address(text: str) -> str:
    """Return the peer of an address as gRPC writes it.

    >>> peer_of_address("ipv4:192.0.2.7:40000"), peer_of_address("unix:")
    ('192.0.2.7', 'this machine')
    >>> peer_of_address("ipv6:%5B2001:db8::1%5D:40000")
    '2001:db8::/64'
    """
    host = unquote(text).partition(":")[2].rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _LOOPBACK
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return _LOOPBACK if address.is_loopback else str(ipaddress.ip_network((address, _IPV6_PREFIX), False))
        address = address.ipv4_mapped
    return _LOOPBACK if address.is_loopback else str(address)


class _Place:
    def __init__(self, peer: str, standing: Callable[[], StreamStanding], end: Callable[[Refused], object]):
        self.peer, self.standing, self.end = peer, standing, end


class StreamPlaces:
    """At most LARGEST_NUMBER_OF_STREAMS at once, and STREAMS_OF_A_PEER of one peer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The oldest first.
        self._taken: list[_Place] = []
        #: Streams that were ended to make room for others.
        self.displaced = 0

    @contextmanager
    def take(
        self, peer: str, standing: Callable[[], StreamStanding], end: Callable[[Refused], object]
    ) -> Iterator[None]:
        """Have a place while inside; Refused when no stream may make room.

        `standing` and `end`, which ends the stream and must not wait, are called from any thread.
        """
        place = _Place(peer, standing, end)
        with self._lock:
            self._make_room(peer)
            self._taken.append(place)
        try:
            yield
        finally:
            with self._lock:
                if place in self._taken:
                    self._taken.remove(place)

    def _make_room(self, peer: str) -> None:
        held = Counter(place.peer for place in self._taken)
        if held[peer] >= STREAMS_OF_A_PEER:
            limit = f"{peer} has {STREAMS_OF_A_PEER} streams, the most of one peer"
            among, highest = [peer], StreamStanding.BACKUP
        elif len(self._taken) >= LARGEST_NUMBER_OF_STREAMS:
            limit = f"{LARGEST_NUMBER_OF_STREAMS} streams are open, the most of all peers"
            # Those that hold most come first; none holds fewer than the newcomer will.
            among = [each for each, count in held.most_common() if each == peer or count > held[peer]]
            highest = StreamStanding.ROLE_PRIMARY
        else:
            return
        found = self._lowest(peer, among, highest)
        if found is None:
            raise Refused(
                Code.RESOURCE_EXHAUSTED, f"{limit}, and primaries make no room; close a stream that is not needed"
            )
        self._taken.remove(found)
        self.displaced += 1
        found.end(
            Refused(
                Code.RESOURCE_EXHAUSTED,
                f"a newer stream needed this place: {limit}; close streams that are not needed, then retry",
            )
        )

    def _lowest(self, newcomer: str, among: list[str], highest: StreamStanding) -> _Place | None:
        """Return the stream that makes room: a silent one, then a backup, then a role's primary, of the first peer."""
        standings = {place: place.standing() for place in self._taken if place.peer in among}
        for standing in StreamStanding:
            if standing > highest:
                break
            for peer in among:
                if standing == StreamStanding.ROLE_PRIMARY and peer == newcomer:
                    continue
                for place, its in standings.items():
                    if its == standing and place.peer == peer:
                        return place
        return None
