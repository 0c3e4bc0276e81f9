"""A cluster as namespaces: the interfaces, addresses, routes and queues of each of its nodes, as lines for ip and tc.

A switch is a router. All its ports have one hardware address, and whoever is at the other end of a link is known by the
same IP addresses without being asked: nothing but the hosts' packets ever crosses a link.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorexpress import tc
from tensorexpress.addresses import GATEWAY_MAC, HostAddress, addresses_of, format_mac
from tensorexpress.cluster import Cluster
from tensorexpress.plan import Plan
from tensorexpress.target.namespaces import INTERFACE

#: What every node calls its neighbour on a link, whoever that is.
_NEIGHBOUR_IPV4, _NEIGHBOUR_IPV6 = "169.254.1.1", "fe80::1"

#: The routing table of the first host's packets; those of the others follow. Linux itself uses up to 255.
_FIRST_TABLE = 1000

#: A virtual machine may stand still for milliseconds, which a real link would not; what it then missed is made up for.
_CATCH_UP_US = 5_000

#: What makes a namespace a router. Where no path is planned, routes are chosen from by addresses and ports.
FORWARDING = {
    "net/ipv4/ip_forward": 1,
    "net/ipv4/conf/all/rp_filter": 0,
    "net/ipv4/conf/default/rp_filter": 0,
    "net/ipv4/fib_multipath_hash_policy": 1,
    "net/ipv6/conf/all/forwarding": 1,
    "net/ipv6/fib_multipath_hash_policy": 1,
}


@dataclass
class Node:
    """What makes a namespace a host or a switch."""

    ip: list[str] = field(default_factory=list)
    ipv6_rules: list[str] = field(default_factory=list)
    tc: list[str] = field(default_factory=list)


def port_interface(port: int) -> str:
    """Return the interface of a switch's port."""
    return f"p{port}"


def interfaces(cluster: Cluster) -> list[str]:
    """Return the interface from which each directed link leaves.

    >>> from tensorexpress.topologies import star
    >>> interfaces(star(hosts=2))
    ['eth0', 'p0', 'eth0', 'p1']
    """
    names = [INTERFACE] * (2 * len(cluster.links))
    for switch in cluster.switches:
        for port, link in cluster.ports(switch).items():
            names[link] = port_interface(port)
    return names


def cables(cluster: Cluster, namespaces: list[str]) -> list[str]:
    """Return the lines for `ip` that join namespaces, one for each node, as the cluster says."""
    names, macs, directed = interfaces(cluster), _macs(cluster), cluster.directed()
    lines = []
    for link in range(0, len(names), 2):
        near, far = (
            f"{names[end]} address {macs[end]} mtu {cluster.mtu} netns {namespaces[directed.source[end]]}"
            for end in (link, link + 1)
        )
        lines.append(f"link add {near} type veth peer name {far}")
    return lines


def nodes(plan: Plan, *, ipv6: bool = True) -> list[Node]:
    """Return what each node of the plan's cluster is to be told, in the order of `Cluster.nodes`."""
    cluster = plan.scenario.cluster
    made = [Node() for _ in cluster.nodes]
    _add_interfaces(plan, made, ipv6)
    for host, address in enumerate(addresses_of(cluster)):
        _add_host(made[host], address, ipv6)
        for place, switch in enumerate(cluster.switches, start=len(cluster.hosts)):
            _add_routes(made[place], cluster, switch, host, address, ipv6)
    _add_paths(plan, made, ipv6)
    return made


def _macs(cluster: Cluster) -> list[str]:
    """Return the hardware address of the interface from which each directed link leaves."""
    hosts = addresses_of(cluster)
    return [format_mac(hosts[node].mac if node < len(hosts) else GATEWAY_MAC) for node in cluster.directed().source]


def egresses(plan: Plan) -> list[tuple[str, tc.Egress]]:
    """Return the interface from which each directed link leaves, and what its egress is like."""
    cluster, dscps = plan.scenario.cluster, tc.dscps_of(plan)
    directed = cluster.directed()
    found = []
    for name, source, rate_bps in zip(interfaces(cluster), directed.source, directed.rate_bps, strict=True):
        is_host = source < len(cluster.hosts)
        # A host has already put its packets in order, and its memory is its own.
        egress = tc.Egress(
            dscps=dscps[-1:] if is_host else dscps,
            rate_bps=rate_bps,
            buffer_bytes=0 if is_host else cluster.buffer_bytes,
            mtu=cluster.mtu,
            catch_up_us=_CATCH_UP_US,
        )
        found.append((name, egress))
    return found


def _add_interfaces(plan: Plan, made: list[Node], ipv6: bool) -> None:
    cluster = plan.scenario.cluster
    macs, sources = _macs(cluster), cluster.directed().source
    for link, ((name, egress), source) in enumerate(zip(egresses(plan), sources, strict=True)):
        node = made[source]
        # So that the kernel sends nothing by itself.
        node.ip += [f"link set {name} addrgenmode none", f"link set {name} up"]
        for neighbour in (_NEIGHBOUR_IPV4, _NEIGHBOUR_IPV6)[: 1 + ipv6]:
            node.ip.append(f"neigh add {neighbour} lladdr {macs[link ^ 1]} dev {name} nud permanent")
        node.tc += [" ".join(command[1:]) for command in tc.setup(name, egress)]


def _add_host(node: Node, address: HostAddress, ipv6: bool) -> None:
    node.ip += [
        # One at a time onto the cable, so that a switch sees packets and not trains of them.
        f"link set {INTERFACE} gso_max_segs 1",
        f"addr add {address.ipv4}/32 dev {INTERFACE}",
        f"route add 0.0.0.0/0 {_hop(INTERFACE, _NEIGHBOUR_IPV4)}",
    ]
    if ipv6:
        node.ip += [
            f"addr add {address.ipv6}/128 dev {INTERFACE} nodad",
            f"route add ::/0 {_hop(INTERFACE, _NEIGHBOUR_IPV6)}",
        ]


def _add_routes(node: Node, cluster: Cluster, switch: str, host: int, address: HostAddress, ipv6: bool) -> None:
    ports = {link: port_interface(port) for port, link in cluster.ports(switch).items()}
    links = cluster.next_hops(switch, host)
    ways = [(f"{address.ipv4}/32", _NEIGHBOUR_IPV4), (f"{address.ipv6}/128", _NEIGHBOUR_IPV6)]
    for target, neighbour in ways[: 1 + ipv6]:
        hops = [_hop(ports[link], neighbour) for link in links]
        if len(hops) == 1:
            node.ip.append(f"route add {target} {hops[0]}")
        elif hops:
            node.ip.append(f"route add {target} " + " ".join(f"nexthop {hop}" for hop in hops))


def _add_paths(plan: Plan, made: list[Node], ipv6: bool) -> None:
    """Give every switch the planned paths that its routes to hosts leave open.

    A source has a table of its own, and one rule: a switch then looks through as many rules as there are sources, and
    not pairs. What is not in the table follows the routes that all have.
    """
    cluster, names, directed = (
        plan.scenario.cluster,
        interfaces(plan.scenario.cluster),
        plan.scenario.cluster.directed(),
    )
    addresses = addresses_of(cluster)
    ruled = set()
    for path in plan.paths:
        source, target, table = addresses[path.src], addresses[path.dst], _FIRST_TABLE + path.src
        for link in path.links[1:]:
            place = directed.source[link]
            if cluster.next_hops(cluster.nodes[place], path.dst) == [link]:
                continue
            node = made[place]
            if (place, path.src) not in ruled:
                ruled.add((place, path.src))
                node.ip.append(f"rule add from {source.ipv4} lookup {table}")
                node.ipv6_rules += [f"rule add from {source.ipv6} lookup {table}"][:ipv6]
            ways = [(f"{target.ipv4}/32", _NEIGHBOUR_IPV4), (f"{target.ipv6}/128", _NEIGHBOUR_IPV6)]
            node.ip += [f"route add {to} {_hop(names[link], via)} table {table}" for to, via in ways[: 1 + ipv6]]


def _hop(interface: str, neighbour: str) -> str:
    return f"via {neighbour} dev {interface} onlink"
