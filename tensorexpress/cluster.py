"""Clusters: hosts, switches and links; the usual topologies; routes.

A cluster is built by `star`, `dumbbell`, `leaf_spine`, `fat_tree`, `custom` or `read_p4_topology`, and checked when
it is built: one that exists can be routed. Nodes are numbered, hosts first and then switches, in the order of
`Cluster.hosts` and `Cluster.switches`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from os import PathLike
from reprlib import repr as short_repr
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypedDict, Unpack

from tensorexpress.addresses import addresses_of
from tensorexpress.errors import ClusterError, InputError, UnitError, unknown
from tensorexpress.files import read_json
from tensorexpress.names import check_name
from tensorexpress.units import LARGEST, counted, format_rate, format_time, parse_limit, parse_rate, parse_time

#: A number in the base unit (ps, bytes, bit/s), or a string with a unit, such as "10 Gbps".
Quantity: TypeAlias = str | int | float

#: Largest cluster accepted; what is larger is a slip of the finger rather than a cluster.
MOST_HOSTS = 100_000
MOST_LINKS = 1_000_000

#: Highest number of a port that a file may give it.
_HIGHEST_PORT = 999_999

#: Names listed in full in an error message; of more, only the first and the last.
_MOST_LISTED = 12


@dataclass(frozen=True)
class Link:
    """A full-duplex link between two named nodes, the same in both directions."""

    a: str
    b: str
    rate_bps: int
    delay_ps: int
    #: The port number at either end, where the link's source gave one.
    ports: tuple[int | None, int | None] = field(default=(None, None), repr=False)
    #: Whether what `a` sends, and what `b` sends, is paced: a packet is there after the delay alone, and only the next
    #: one waits until it could have passed. So software keeps a cable that has no speed of its own to a rate.
    paced: tuple[bool, bool] = field(default=(False, False), repr=False)


@dataclass(frozen=True)
class GivenAddress:
    """What the file of a cluster says that a host is called on the wire; None where it does not say."""

    host: str
    mac: str | None = None
    ipv4: str | None = None


class DirectedLinks(NamedTuple):
    """The two directions of every link, as columns: entry d of each describes directed link d."""

    #: Index of the node that sends.
    source: tuple[int, ...]
    #: Index of the node that receives.
    target: tuple[int, ...]
    rate_bps: tuple[int, ...]
    #: Propagation delay.
    delay_ps: tuple[int, ...]
    paced: tuple[bool, ...]


@dataclass(frozen=True)
class Cluster:
    """Hosts, switches and the links between them.

    Directed link 2*i is links[i] from a to b, 2*i + 1 is links[i] from b to a.
    """

    name: str
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    links: tuple[Link, ...]
    #: Largest IP packet in bytes.
    mtu: int = 9000
    #: Bytes a switch port can hold; 0 is no limit.
    buffer_bytes: int = 16_000_000
    #: Strict-priority queues per switch port.
    queues: int = 8
    #: Addresses of hosts, where the cluster's source gave them; `addresses.addresses_of` has those of all.
    addresses: tuple[GivenAddress, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes, hosts first: a node's place here is its index."""
        return self.hosts + self.switches

    @property
    def link_names(self) -> tuple[str, ...]:
        """Names of all directed links: both ends, in the direction of sending.

        >>> star(hosts=1).link_names
        ('h0>s0', 's0>h0')
        """
        return tuple(name for link in self.links for name in (f"{link.a}>{link.b}", f"{link.b}>{link.a}"))

    def host_index(self, name: str) -> int:
        """Return the index of a host.

        >>> star(hosts=3).host_index("h2")
        2
        """
        index = self._host_indices.get(name)
        if index is None:
            raise ClusterError(_unknown_name("host", name, self.hosts))
        return index

    def directed(self) -> DirectedLinks:
        """Return both directions of every link; directed link d ^ 1 is the reverse of d.

        >>> star(hosts=2, bandwidth="1 Gbps").directed().target
        (2, 0, 2, 1)
        """
        index = {name: i for i, name in enumerate(self.nodes)}
        ways = [(end, link) for link in self.links for end in ((link.a, link.b), (link.b, link.a))]
        return DirectedLinks(
            source=tuple(index[source] for (source, _), _ in ways),
            target=tuple(index[target] for (_, target), _ in ways),
            rate_bps=tuple(link.rate_bps for _, link in ways),
            delay_ps=tuple(link.delay_ps for _, link in ways),
            paced=tuple(paced for link in self.links for paced in link.paced),
        )

    def route(self, src: int, dst: int, flow: int = 0) -> tuple[int, ...]:
        """Return the directed links from host `src` to host `dst`, on a path with the fewest hops.

        Among equal next hops `ecmp_hash` chooses, so a flow keeps its path on every machine, and flows spread. A
        host reaches itself over no link.

        >>> star(hosts=3).route(0, 2)
        (0, 5)
        """
        for host in (src, dst):
            if not 0 <= host < len(self.hosts):
                raise ClusterError(f"no host has index {host}; accepted: 0 to {len(self.hosts) - 1}")
        return self._router.route(src, dst, flow)

    def ports(self, switch: str) -> dict[int, int]:
        """Return the ports of a switch: port number -> the directed link that leaves there.

        Links keep the number they came with; the others take the lowest free ones in the order of `links`.

        >>> star(hosts=3).ports("s0")
        {0: 1, 1: 3, 2: 5}
        """
        if switch not in self.switches:
            raise ClusterError(_unknown_name("switch", switch, self.switches))
        ends = [
            (2 * index + end, link.ports[end])
            for index, link in enumerate(self.links)
            for end, node in enumerate((link.a, link.b))
            if node == switch
        ]
        taken = {port for _, port in ends if port is not None}
        free = (port for port in range(len(ends) + len(taken)) if port not in taken)
        return dict(sorted((next(free) if port is None else port, link) for link, port in ends))

    def next_hops(self, switch: str, host: int) -> list[int]:
        """Return the directed links on which a switch may send to a host: all that lie on a shortest path.

        >>> leaf_spine(leaves=2, spines=2, hosts_per_leaf=1).next_hops("s0", 1)
        [4, 6]
        """
        return self._router.next_hops(self.nodes.index(switch), host)

    @cached_property
    def _host_indices(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.hosts)}

    @cached_property
    def _router(self) -> _Router:
        return _Router(self)


def describe(cluster: Cluster) -> str:
    """Return the cluster on one line; rates and delays that differ are given as a range.

    >>> describe(star(hosts=12))
    'star, 12 hosts, 10 Gbps, 1 us, MTU 9000, 8 queues'
    """
    words = [
        cluster.name,
        counted(len(cluster.hosts), "host"),
        _span((link.rate_bps for link in cluster.links), format_rate),
        _span((link.delay_ps for link in cluster.links), format_time),
        f"MTU {cluster.mtu}",
        counted(cluster.queues, "queue"),
    ]
    return ", ".join(words)


def _span(values: Iterable[int], show: Callable[[int], str]) -> str:
    distinct = set(values)
    least, most = min(distinct), max(distinct)
    return show(least) if least == most else f"{show(least)} to {show(most)}"


class PortOptions(TypedDict, total=False):
    """What all ports of a cluster have in common; every constructor takes these by keyword.

    `mtu` is the largest IP packet in bytes (9000), `buffer` what a switch port can hold ("16 MB"; 0 is no limit) and
    `queues` the number of its strict-priority queues (8).
    """

    mtu: int
    buffer: Quantity
    queues: int


def _build(
    name: str,
    hosts: Iterable[str],
    switches: Iterable[str],
    links: Iterable[Link],
    *,
    mtu: int = Cluster.mtu,
    buffer: Quantity = Cluster.buffer_bytes,
    queues: int = Cluster.queues,
) -> Cluster:
    buffer_bytes = _parsed("buffer", parse_limit, buffer)
    return Cluster(name, tuple(hosts), tuple(switches), tuple(links), mtu, buffer_bytes, queues)


def star(
    hosts: int,
    bandwidth: Quantity = "10 Gbps",
    delay: Quantity = "1 us",
    **ports: Unpack[PortOptions],
) -> Cluster:
    """Return hosts around one switch.

    >>> star(hosts=9, bandwidth="25 Gbps", delay="500 ns", queues=4).links[8]
    Link(a='h8', b='s0', rate_bps=25000000000, delay_ps=500000)
    """
    _within("hosts", hosts, 1, MOST_HOSTS)
    wire = _wire(bandwidth, delay)
    names = _numbered("h", hosts)
    return _build("star", names, ["s0"], [wire(host, "s0") for host in names], **ports)


def dumbbell(
    left: int,
    right: int,
    bandwidth: Quantity = "10 Gbps",
    bottleneck: Quantity | None = None,
    delay: Quantity = "1 us",
    **ports: Unpack[PortOptions],
) -> Cluster:
    """Return `left` hosts at s0 and `right` hosts at s1, with one link of rate `bottleneck` between the two switches.

    The bottleneck is as fast as a host's link where it is not given.

    >>> describe(dumbbell(left=2, right=2, bottleneck="5 Gbps"))
    'dumbbell, 4 hosts, 5 Gbps to 10 Gbps, 1 us, MTU 9000, 8 queues'
    """
    for what, count in (("left", left), ("right", right)):
        _within(what, count, 1, MOST_HOSTS)
    _within("left + right hosts", left + right, 1, MOST_HOSTS)
    wire = _wire(bandwidth, delay)
    trunk = _wire(bandwidth if bottleneck is None else bottleneck, delay, "bottleneck")
    names = _numbered("h", left + right)
    links = [wire(host, "s0" if i < left else "s1") for i, host in enumerate(names)]
    return _build("dumbbell", names, ["s0", "s1"], [*links, trunk("s0", "s1")], **ports)


def leaf_spine(
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    bandwidth: Quantity = "10 Gbps",
    delay: Quantity = "1 us",
    oversubscription: float = 1.0,
    **ports: Unpack[PortOptions],
) -> Cluster:
    """Return leaf switches that each join some hosts to every spine switch.

    `oversubscription` is what a leaf's hosts can send together over what its uplinks carry together, so an uplink has
    the rate hosts_per_leaf * bandwidth / (spines * oversubscription), rounded to whole bit/s. Switches are numbered
    leaves first.

    >>> leaf_spine(leaves=2, spines=2, hosts_per_leaf=4, oversubscription=2).links[-1]
    Link(a='s1', b='s3', rate_bps=10000000000, delay_ps=1000000)
    """
    for what, count in (("leaves", leaves), ("spines", spines), ("hosts_per_leaf", hosts_per_leaf)):
        _within(what, count, 1, MOST_HOSTS)
    _within("leaves * hosts_per_leaf", leaves * hosts_per_leaf, 1, MOST_HOSTS)
    _within("leaves * (hosts_per_leaf + spines)", leaves * (hosts_per_leaf + spines), 1, MOST_LINKS)
    if not _is_number(oversubscription) or not 0 < oversubscription < math.inf:
        raise ClusterError(f"oversubscription is {oversubscription!r}; accepted: a number above 0, such as 2.0")
    rate_bps = _parsed("bandwidth", parse_rate, bandwidth)
    wire = _wire(rate_bps, delay)
    uplink_bps = round(hosts_per_leaf * rate_bps / (spines * Fraction(oversubscription)))
    uplink = _wire(uplink_bps, delay, "uplink rate")
    names = _numbered("h", leaves * hosts_per_leaf)
    switches = _numbered("s", leaves + spines)
    down = [wire(host, switches[i // hosts_per_leaf]) for i, host in enumerate(names)]
    up = [uplink(leaf, spine) for leaf in switches[:leaves] for spine in switches[leaves:]]
    return _build("leaf-spine", names, switches, down + up, **ports)


def fat_tree(
    k: int,
    bandwidth: Quantity = "10 Gbps",
    delay: Quantity = "1 us",
    **ports: Unpack[PortOptions],
) -> Cluster:
    """Return the three-tier fat-tree of k-port switches: k pods, k**3 / 4 hosts, all links alike.

    Switches are numbered tier by tier, edge, aggregation, core, and pod by pod within a tier. Aggregation switch j of
    every pod meets the same k / 2 cores.

    >>> tree = fat_tree(4)
    >>> len(tree.hosts), len(tree.switches), len(tree.links)
    (16, 20, 48)
    """
    _within("k", k, 2, MOST_HOSTS)
    if k % 2:
        raise ClusterError(f"k is {k}; accepted: an even number, because half the ports of a switch face up")
    _within("k**3 / 4 hosts", k**3 // 4, 1, MOST_HOSTS)
    half = k // 2
    tier = k * half
    names = _numbered("h", tier * half)
    switches = _numbered("s", 2 * tier + half * half)
    edge, aggregation, core = switches[:tier], switches[tier : 2 * tier], switches[2 * tier :]
    pairs = [(host, edge[i // half]) for i, host in enumerate(names)]
    for pod in range(0, tier, half):
        pairs += [(below, above) for below in edge[pod : pod + half] for above in aggregation[pod : pod + half]]
    for i, below in enumerate(aggregation):
        first = i % half * half
        pairs += [(below, above) for above in core[first : first + half]]
    wire = _wire(bandwidth, delay)
    return _build("fat-tree", names, switches, [wire(a, b) for a, b in pairs], **ports)


def custom(
    hosts: Sequence[str],
    switches: Sequence[str],
    links: Sequence[Link | Sequence[Quantity]],
    bandwidth: Quantity = "10 Gbps",
    delay: Quantity = "1 us",
    **ports: Unpack[PortOptions],
) -> Cluster:
    """Return a cluster from its parts.

    A link is a `Link`, or (node, node), (node, node, bandwidth) or (node, node, bandwidth, delay); `bandwidth` and
    `delay` stand in where a link has none of its own. Two nodes may be joined by several links, and two hosts
    directly.

    >>> custom(["a", "b"], [], [("a", "b", "100 Gbps")]).route(0, 1)
    (0,)
    """
    default = _wire(bandwidth, delay)
    if isinstance(links, str) or not isinstance(links, Sequence):
        raise ClusterError(f"links is {short_repr(links)}; accepted: a list of links")
    built = [
        entry if isinstance(entry, Link) else _custom_link(f"links[{i}]", entry, default)
        for i, entry in enumerate(links)
    ]
    return _build("custom", _names("hosts", hosts), _names("switches", switches), built, **ports)


def _custom_link(where: str, entry: object, default: partial[Link]) -> Link:
    a, b, *own = _link_entry(where, entry, "bandwidth, delay")
    link = default(a, b)
    rate_bps = _parsed(where, parse_rate, own[0]) if own else link.rate_bps
    delay_ps = _parsed(where, parse_time, own[1]) if len(own) > 1 else link.delay_ps
    return Link(a, b, rate_bps, delay_ps)


def read_p4_topology(
    path: str | PathLike[str],
    *,
    bandwidth: Quantity = "10 Gbps",
    delay: Quantity = 0,
    **ports: Unpack[PortOptions],
) -> Cluster:
    """Return the cluster in a `topology.json` of the P4 tutorials.

    The file holds "hosts", "switches" and "links"; a link is [node, node, latency, bandwidth], the last two optional:
    latency a number of milliseconds or a string such as "2ms", bandwidth a number of Mbit/s. A switch comes with its
    port, as "s1-p3". `bandwidth` and `delay` stand in where a link has none; the tutorials themselves take a missing
    latency for 0. Nodes keep their names, in natural order (h2 before h10), and hosts their "ip" and "mac".
    """
    default = _wire(bandwidth, delay)
    topology = _read_json_object(path)
    try:
        nodes = {what: sorted(_names(what, topology[what]), key=_natural) for what in ("hosts", "switches")}
        links = _p4_links(topology["links"], {*nodes["hosts"], *nodes["switches"]}, default)
        cluster = _build("p4", nodes["hosts"], nodes["switches"], links, **ports)
        return replace(cluster, addresses=_p4_addresses(topology["hosts"]))
    except InputError as error:
        raise ClusterError(f"{path}: {error}") from None


def _read_json_object(path: str | PathLike[str]) -> dict[str, object]:
    topology = read_json(path, "give the topology.json of a P4 tutorial", ClusterError)
    wanted = "accepted: an object with hosts, switches and links"
    if not isinstance(topology, dict):
        raise ClusterError(f"{path}: holds {short_repr(topology)}; {wanted}")
    for key in ("hosts", "switches", "links"):
        if key not in topology:
            raise ClusterError(f"{path}: has no {key!r}; {wanted}")
    return topology


def _p4_addresses(hosts: object) -> tuple[GivenAddress, ...]:
    """Return the addresses that a topology gives its hosts; an "ip" comes with the length of its network."""
    given = []
    for name, own in hosts.items() if isinstance(hosts, Mapping) else ():
        if not isinstance(own, Mapping):
            raise ClusterError(f"hosts.{name} is {short_repr(own)}; accepted: an object, such as with ip and mac")
        ip, mac = own.get("ip"), own.get("mac")
        for what, value in (("ip", ip), ("mac", mac)):
            if not isinstance(value, str | None):
                raise ClusterError(f"hosts.{name}.{what} is {short_repr(value)}; accepted: text")
        if ip is not None or mac is not None:
            given.append(GivenAddress(name, mac, ip and re.sub(r"/[0-9]{1,2}\Z", "", ip)))
    return tuple(sorted(given, key=lambda each: _natural(each.host)))


def _p4_links(entries: object, nodes: set[str], default: partial[Link]) -> list[Link]:
    if not isinstance(entries, list):
        raise ClusterError(f"links is {short_repr(entries)}; accepted: a list of links")
    links, ports = [], set()
    for i, entry in enumerate(entries):
        where = f"links[{i}]"
        a, b, *own = _link_entry(where, entry, "latency, bandwidth")
        for port in {a, b} - nodes:
            if port in ports:
                raise ClusterError(f"{where}: port {port} has a link already; a port takes one link")
            ports.add(port)
        latency, mbps = (*own, None, None)[:2]
        link = default(_p4_node(a, nodes), _p4_node(b, nodes))
        rate_bps = link.rate_bps if mbps is None else _parsed(where, parse_rate, _in_unit(mbps, "Mbps"))
        delay_ps = link.delay_ps if latency is None else _parsed(where, parse_time, _in_unit(latency, "ms"))
        links.append(Link(link.a, link.b, rate_bps, delay_ps, (_p4_port(a, nodes), _p4_port(b, nodes))))
    return links


def _p4_node(text: str, nodes: set[str]) -> str:
    """Return the node of "s1-p3", "h1-0" or "h1"; a name that is not there is left for `_check` to refuse."""
    return text if text in nodes else text.rpartition("-")[0] or text


def _p4_port(text: str, nodes: set[str]) -> int | None:
    """Return the port number of "s1-p3" or "s1-3"; None where there is none."""
    number = re.search(r"-p?([0-9]{1,6})$", text)
    return None if text in nodes or number is None else int(number[1])


def _in_unit(value: object, unit: str) -> object:
    return f"{value} {unit}" if _is_number(value) else value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _natural(name: str) -> list[int | str]:
    """Return a sort key that compares digits as numbers; digits stand at odd places, so kinds never mix."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", name))]


#: What builds each topology, by the name that a scenario's `cluster.topology` gives it.
TOPOLOGIES: Mapping[str, Callable[..., Cluster]] = MappingProxyType(
    {
        "star": star,
        "dumbbell": dumbbell,
        "leaf-spine": leaf_spine,
        "fat-tree": fat_tree,
        "custom": custom,
        "p4": read_p4_topology,
    }
)


def _numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def _parsed(where: str, parse: Callable[[object], int], value: object) -> int:
    try:
        return parse(value)
    except UnitError as error:
        raise UnitError(f"{where}: {error}") from None


def _wire(rate: Quantity, delay: Quantity, rate_name: str = "bandwidth") -> partial[Link]:
    """Return what makes a link of this rate and delay between two nodes."""
    rate_bps = _parsed(rate_name, parse_rate, rate)
    return partial(Link, rate_bps=rate_bps, delay_ps=_parsed("delay", parse_time, delay))


def _names(what: str, value: object) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence | Mapping):
        raise ClusterError(f"{what} is {short_repr(value)}; accepted: a list of names")
    return [_name(f"a name in {what}", name) for name in value]


def _name(where: str, value: object) -> str:
    return check_name(where, value, ClusterError)


def _link_entry(where: str, entry: object, options: str) -> tuple[str, str, *tuple[object, ...]]:
    if isinstance(entry, str) or not isinstance(entry, Sequence) or not 2 <= len(entry) <= 4:
        raise ClusterError(f"{where} is {short_repr(entry)}; accepted: [node, node, {options}], the last two optional")
    a, b, *own = entry
    return (_name(f"a node of {where}", a), _name(f"a node of {where}", b), *own)


def _within(what: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ClusterError(f"{what} is {value!r}; accepted: a whole number from {least} to {most}")


def _unknown_name(what: str, found: str, accepted: Sequence[str]) -> str:
    if len(accepted) <= _MOST_LISTED:
        return unknown(what, found, accepted)
    first, second, last = accepted[0], accepted[1], accepted[-1]
    return f"unknown {what} {found!r}; accepted: {first}, {second}, ..., {last} ({len(accepted)} in all)"


def _check(cluster: Cluster) -> None:
    """Refuse a cluster in which some host could not reach another, or some port could not work."""
    _name("the name of a cluster", cluster.name)
    _within("mtu", cluster.mtu, 64, 65535)
    _within("queues", cluster.queues, 1, 32)
    if not 0 <= cluster.buffer_bytes <= LARGEST:
        raise ClusterError(f"buffer_bytes is {cluster.buffer_bytes}; accepted: 0 (no limit) to {LARGEST}")
    _within("the number of hosts", len(cluster.hosts), 1, MOST_HOSTS)
    _within("the number of links", len(cluster.links), 0, MOST_LINKS)
    _check_names(cluster)
    _check_links(cluster)
    _check_nics(cluster)
    _check_connected(cluster)
    if cluster.addresses:
        _check_addresses(cluster)


def _check_addresses(cluster: Cluster) -> None:
    for host, uses in Counter(own.host for own in cluster.addresses).items():
        if uses > 1:
            raise ClusterError(f"host {host} has {uses} addresses; accepted: one")
    try:
        addresses_of(cluster)
    except InputError as error:
        raise ClusterError(str(error)) from None


def _check_names(cluster: Cluster) -> None:
    for name, uses in Counter(cluster.nodes).items():
        _name("the name of a node", name)
        if uses > 1:
            raise ClusterError(f"{uses} nodes are named {name}; every host and switch needs a name of its own")


def _check_links(cluster: Cluster) -> None:
    nodes = frozenset(cluster.nodes)
    for i, link in enumerate(cluster.links):
        for end in (link.a, link.b):
            if end not in nodes:
                raise ClusterError(f"links[{i}]: {_unknown_name('node', end, cluster.nodes)}")
        if link.a == link.b:
            raise ClusterError(f"links[{i}] joins {link.a} to itself; a link joins two nodes")
        if not 0 < link.rate_bps <= LARGEST:
            raise ClusterError(
                f"link {link.a} to {link.b} has a rate of {link.rate_bps} bit/s; accepted: more than 0, "
                f"such as '10 Gbps', up to {LARGEST}"
            )
        # A packet never arrives in the instant in which it is sent: the order within an instant could not be kept.
        least_ps = int(any(link.paced))
        if not least_ps <= link.delay_ps <= LARGEST:
            raise ClusterError(
                f"link {link.a} to {link.b} has a delay of {link.delay_ps} ps; accepted: {least_ps} to {LARGEST}"
            )
    _check_ports(cluster)


def _check_ports(cluster: Cluster) -> None:
    """Refuse port numbers that cannot be, or that two links of one node have."""
    numbered = [
        (node, port)
        for link in cluster.links
        for node, port in zip((link.a, link.b), link.ports, strict=True)
        if port is not None
    ]
    for (node, port), uses in Counter(numbered).items():
        if not 0 <= port <= _HIGHEST_PORT:
            raise ClusterError(f"{node} has a port {port}; accepted: 0 to {_HIGHEST_PORT}")
        if uses > 1 and node in cluster.switches:
            raise ClusterError(f"port {port} of {node} has {uses} links; a port takes one link")


def _check_nics(cluster: Cluster) -> None:
    ends = Counter(end for link in cluster.links for end in (link.a, link.b))
    for host in cluster.hosts:
        if ends[host] == 0:
            raise ClusterError(f"host {host} has no link; join it to a switch")
        if ends[host] > 1:
            raise ClusterError(
                f"host {host} has {ends[host]} links; a host has exactly one NIC, so join several through a switch"
            )


def _check_connected(cluster: Cluster) -> None:
    neighbours: dict[str, list[str]] = {node: [] for node in cluster.nodes}
    for link in cluster.links:
        neighbours[link.a].append(link.b)
        neighbours[link.b].append(link.a)
    origin = cluster.hosts[0]
    reached = {origin}
    frontier = [origin]
    while frontier:
        new = set(neighbours[frontier.pop()]) - reached
        reached |= new
        frontier += new
    for host in cluster.hosts:
        if host not in reached:
            raise ClusterError(f"hosts {origin} and {host} cannot reach each other; add a link between their switches")


_MASK64 = 2**64 - 1


def ecmp_hash(src: int, dst: int, flow: int, node: int) -> int:
    """Return the 64-bit hash by which `node` chooses among equal next hops for a flow between two hosts.

    Each of the four numbers is added to the hash so far, and one step of splitmix64 mixes the sum, all modulo 2**64.
    The node takes part, so that switches of different tiers choose independently.

    >>> hex(ecmp_hash(0, 1, 0, 16))
    '0x83571e6c28aff00f'
    """
    mixed = 0
    for word in (src, dst, flow, node):
        mixed = (mixed + word + 0x9E3779B97F4A7C15) & _MASK64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK64
        mixed ^= mixed >> 31
    return mixed


class _Router:
    """Finds routes in a cluster; remembers the next hops towards each switch that it has searched from."""

    def __init__(self, cluster: Cluster) -> None:
        directed = cluster.directed()
        host_count = len(cluster.hosts)
        self._target = directed.target
        #: The one directed link that leaves each host.
        self._nic = [0] * host_count
        #: The directed links from each switch to other switches; hosts do not forward.
        self._trunks: dict[int, list[int]] = {host_count + i: [] for i in range(len(cluster.switches))}
        for link, (source, target) in enumerate(zip(directed.source, directed.target, strict=True)):
            if source < host_count:
                self._nic[source] = link
            elif target >= host_count:
                self._trunks[source].append(link)
        self._next_hops: dict[int, dict[int, list[int]]] = {}

    def route(self, src: int, dst: int, flow: int) -> tuple[int, ...]:
        if src == dst:
            return ()
        path = [self._nic[src]]
        node = self._target[path[0]]
        if node == dst:
            return tuple(path)
        last_switch = self._target[self._nic[dst]]
        next_hops = self._next_hops_to(last_switch)
        while node != last_switch:
            equal = next_hops[node]
            path.append(equal[ecmp_hash(src, dst, flow, node) % len(equal)])
            node = self._target[path[-1]]
        path.append(self._nic[dst] ^ 1)
        return tuple(path)

    def next_hops(self, switch: int, host: int) -> list[int]:
        last_switch = self._target[self._nic[host]]
        return [self._nic[host] ^ 1] if switch == last_switch else self._next_hops_to(last_switch).get(switch, [])

    def _next_hops_to(self, switch: int) -> dict[int, list[int]]:
        """Return, for each switch that reaches `switch`, its links that lead one hop nearer, by link index."""
        if switch not in self._next_hops:
            hops = self._hops_from(switch)
            self._next_hops[switch] = {
                node: [link for link in self._trunks[node] if hops[self._target[link]] < hops[node]] for node in hops
            }
        return self._next_hops[switch]

    def _hops_from(self, switch: int) -> dict[int, int]:
        hops = {switch: 0}
        queue = deque([switch])
        while queue:
            node = queue.popleft()
            for neighbour in (self._target[link] for link in self._trunks[node]):
                if neighbour not in hops:
                    hops[neighbour] = hops[node] + 1
                    queue.append(neighbour)
        return hops
