"""Entries of forward.p4: where every host is, over one or several next hops, and where broadcasts go."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from zlib import crc32

from tensorexpress.addresses import GATEWAY_MAC, HostAddress
from tensorexpress.cluster import Cluster, ecmp_hash
from tensorexpress.control.controls import P4Control
from tensorexpress.control.entities import MULTICAST_GROUPS, Call, DefaultEntry, Entity, MulticastEntry, TableEntry
from tensorexpress.control.intent import Intent
from tensorexpress.p4 import define

L2 = "forward.l2"
IPV4 = "forward.ipv4"
IPV6 = "forward.ipv6"
NEXT_HOPS = "forward.next_hops"
ARP = "forward.arp"
MISS = "forward.miss"

#: What becomes of packets to unknown addresses -> the action.
MISSES = {"drop": "forward.drop", "controller": "forward.to_controller"}

BROADCAST_MAC = b"\xff" * 6
BROADCAST_GROUP = 1

#: Numbers of groups of next hops; 0 is none.
_GROUPS = 0xFFFF

#: The ports of equal next hops.
_Ports = tuple[int, ...]


def entries(intent: Intent) -> list[Entity]:
    """Return the way to every host, by every kind of address, and the ports of broadcasts."""
    ports = [_ports_to(intent, host) for host in range(len(intent.addresses))]
    groups = number_groups({equal for equal in ports if len(equal) > 1})
    return [
        MulticastEntry(BROADCAST_GROUP, frozenset((port, 0) for port in broadcast_ports(intent))),
        DefaultEntry(MISS, Call(MISSES[intent.options.miss])),
        *(
            TableEntry(NEXT_HOPS, (("group", number), ("path", path)), _next_hop(port, GATEWAY_MAC))
            for equal, number in groups.items()
            for path, port in enumerate(equal)
        ),
        _switched(GATEWAY_MAC, Call("forward.route")),
        _switched(BROADCAST_MAC, Call("forward.flood", (("group", BROADCAST_GROUP),))),
        *(entry for host, equal in enumerate(ports) for entry in _to_host(intent, host, equal, groups)),
    ]


def number_groups(groups: set[_Ports]) -> dict[_Ports, int]:
    """Give each set of equal next hops a number that follows from its ports.

    A number then means the same ports before and after a change of plan, and no packet on its way between the two
    meets a group that is already another.

    >>> number_groups({(4, 5), (4, 5, 6)}) == {**number_groups({(4, 5)}), **number_groups({(4, 5, 6)})}
    True
    """
    numbers: dict[_Ports, int] = {}
    taken = {0}
    for ports in sorted(groups):
        number = crc32(repr(ports).encode()) % _GROUPS + 1
        while number in taken:
            number = number % _GROUPS + 1
        taken.add(number)
        numbers[ports] = number
    return numbers


def broadcast_ports(intent: Intent) -> list[int]:
    """Return the ports of hosts, and those to switches along the spanning tree."""
    tree = _spanning_tree(intent.cluster)
    return [
        port for link, port in intent.port_of_link.items() if intent.host_of_port[port] is not None or link // 2 in tree
    ]


def _ports_to(intent: Intent, host: int) -> _Ports:
    return tuple(intent.port_of_link[link] for link in intent.cluster.next_hops(intent.switch, host))


def _to_host(intent: Intent, host: int, ports: _Ports, groups: dict[_Ports, int]) -> Iterator[TableEntry]:
    address = intent.addresses[host]
    if not ports:
        return
    # Switched frames have no flow to hash; taking turns by host spreads them all the same.
    yield _switched(address.mac, Call("forward.switch_to", (("port", ports[host % len(ports)]),)))
    route = _spread(intent, ports, groups[ports]) if len(ports) > 1 else _last_hop(intent, host, ports[0], address)
    yield TableEntry(IPV4, (("destination", (int(address.ipv4), 32)),), route)
    yield TableEntry(IPV6, (("destination", (int(address.ipv6), 128)),), route)
    answer = Call("forward.answer", (("address", _number(GATEWAY_MAC)),))
    yield TableEntry(ARP, (("target", int(address.ipv4)),), answer)


def _spread(intent: Intent, ports: _Ports, group: int) -> Call:
    # Any odd number will do that is another on every switch and has bits set all over.
    multiplier = ecmp_hash(intent.cluster.switches.index(intent.switch), 0, 0, 0) >> 32 | 1
    return Call("forward.spread", (("group", group), ("paths", len(ports)), ("multiplier", multiplier)))


def _last_hop(intent: Intent, host: int, port: int, address: HostAddress) -> Call:
    return _next_hop(port, address.mac if intent.host_of_port[port] == host else GATEWAY_MAC)


def _next_hop(port: int, destination: bytes) -> Call:
    macs = (("source", _number(GATEWAY_MAC)), ("destination", _number(destination)))
    return Call("forward.next_hop", (("port", port), *macs))


def _switched(mac: bytes, action: Call) -> TableEntry:
    return TableEntry(L2, (("destination", _number(mac)),), action)


def _number(mac: bytes) -> int:
    return int.from_bytes(mac, "big")


@lru_cache(maxsize=8)
def _spanning_tree(cluster: Cluster) -> frozenset[int]:
    """Return the links between switches over which every switch is reached once, so that broadcasts do not circle."""
    directed, first = cluster.directed(), len(cluster.hosts)
    trunks: dict[int, list[int]] = {node: [] for node in range(first, len(cluster.nodes))}
    for link, (source, target) in enumerate(zip(directed.source, directed.target, strict=True)):
        if source >= first and target >= first:
            trunks[source].append(link)
    tree: set[int] = set()
    reached: set[int] = set()
    for root in trunks:
        queue = deque([root] * (root not in reached))
        reached.add(root)
        while queue:
            for link in trunks[queue.popleft()]:
                if directed.target[link] not in reached:
                    reached.add(directed.target[link])
                    tree.add(link // 2)
                    queue.append(directed.target[link])
    return frozenset(tree)


CONTROL = P4Control(
    tables=(L2, IPV4, IPV6, NEXT_HOPS, MISS, ARP),
    entries=entries,
    references={
        L2: (MULTICAST_GROUPS,),
        IPV4: (NEXT_HOPS, MULTICAST_GROUPS),
        IPV6: (NEXT_HOPS, MULTICAST_GROUPS),
    },
    exceptions={define.TTL_EXPIRED: "TTL expired", define.NO_ROUTE: "no route"},
)
