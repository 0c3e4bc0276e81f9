"""Clusters: hosts, switches and links, and what is true of any such network.

A cluster is checked when it is built: one that exists can be routed. Nodes are numbered, hosts first and then switches,
in the order of `Cluster.hosts` and `Cluster.switches`. `topologies` builds the usual ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tensorexpress.addresses import addresses_of
from tensorexpress.errors import ClusterError, InputError, unknown
from tensorexpress.names import check_name
from tensorexpress.routing import DirectedLinks, Router
from tensorexpress.units import LARGEST, counted, format_rate, format_time

#: Largest cluster accepted; what is larger is a slip of the finger rather than a cluster.
MOST_HOSTS = 100_000
MOST_LINKS = 1_000_000

#: Highest number of a port that a file may give it.
_HIGHEST_PORT = 999_999

#: Names listed in full in an error message; of more, only the first and the last.
_MOST_LISTED = 12


@dataclass(frozen=True)
class Link:
    """A full-duplex link between two named nodes."""

    a: str
    b: str
    rate_bps: int
    delay_ps: int
    #: The port number at either end, where the link's source gave one.
    ports: tuple[int | None, int | None] = field(default=(None, None), repr=False)
    #: Whether what `a` sends, and what `b` sends, is paced: a packet is there after the delay alone, and only the next
    #: one waits until it could have passed. So software keeps a cable that has no speed of its own to a rate.
    paced: tuple[bool, bool] = field(default=(False, False), repr=False)
    #: Bit/s from b to a where that is another rate; 0 is the same.
    back_rate_bps: int = field(default=0, repr=False)

    @property
    def rates_bps(self) -> tuple[int, int]:
        """Bit/s of what `a` sends, and of what `b` sends."""
        return self.rate_bps, self.back_rate_bps or self.rate_bps


@dataclass(frozen=True)
class GivenAddress:
    """What the file of a cluster says that a host is called on the wire; None where it does not say."""

    host: str
    mac: str | None = None
    ipv4: str | None = None


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
    #: Bytes that a switch has for sums; 0 is no limit.
    switch_memory_bytes: int = 1_000_000
    #: Bit/s of packets that a switch takes in to sum; 0 is no limit.
    switch_rate_bps: int = 0

    def __post_init__(self) -> None:
        _check(self)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes, hosts first: a node's place here is its index."""
        return self.hosts + self.switches

    @property
    def link_names(self) -> tuple[str, ...]:
        """Names of all directed links: both ends, in the direction of sending.

        >>> from tensorexpress.topologies import star
        >>> star(hosts=1).link_names
        ('h0>s0', 's0>h0')
        """
        return tuple(name for link in self.links for name in (f"{link.a}>{link.b}", f"{link.b}>{link.a}"))

    def host_index(self, name: str) -> int:
        """Return the index of a host.

        >>> from tensorexpress.topologies import star
        >>> star(hosts=3).host_index("h2")
        2
        """
        index = self._host_indices.get(name)
        if index is None:
            raise ClusterError(_unknown_name("host", name, self.hosts))
        return index

    def directed(self) -> DirectedLinks:
        """Return both directions of every link; directed link d ^ 1 is the reverse of d.

        >>> from tensorexpress.topologies import star
        >>> star(hosts=2, bandwidth="1 Gbps").directed().target
        (2, 0, 2, 1)
        """
        index = {name: i for i, name in enumerate(self.nodes)}
        ways = [(end, link) for link in self.links for end in ((link.a, link.b), (link.b, link.a))]
        return DirectedLinks(
            source=tuple(index[source] for (source, _), _ in ways),
            target=tuple(index[target] for (_, target), _ in ways),
            rate_bps=tuple(rate_bps for link in self.links for rate_bps in link.rates_bps),
            delay_ps=tuple(link.delay_ps for _, link in ways),
            paced=tuple(paced for link in self.links for paced in link.paced),
        )

    def route(self, src: int, dst: int, flow: int = 0) -> tuple[int, ...]:
        """Return the directed links from host `src` to host `dst` that a hash chooses among the shortest paths.

        It is for packets that no plan knows of: what a plan moves takes the plan's own paths. Among equal next hops
        `ecmp_hash` chooses, so a flow keeps its path on every machine, and flows spread. A host reaches itself over no
        link.

        >>> from tensorexpress.topologies import star
        >>> star(hosts=3).route(0, 2)
        (0, 5)
        """
        for host in (src, dst):
            if not 0 <= host < len(self.hosts):
                raise ClusterError(f"no host has index {host}; accepted: 0 to {len(self.hosts) - 1}")
        return self.router.route(src, dst, flow)

    def ports(self, switch: str) -> dict[int, int]:
        """Return the ports of a switch: port number -> the directed link that leaves there.

        Links keep the number they came with; the others take the lowest free ones in the order of `links`.

        >>> from tensorexpress.topologies import star
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

        >>> from tensorexpress.topologies import leaf_spine
        >>> leaf_spine(leaves=2, spines=2, hosts_per_leaf=1).next_hops("s0", 1)
        [4, 6]
        """
        return self.router.next_hops(self.nodes.index(switch), host)

    @cached_property
    def _host_indices(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.hosts)}

    @cached_property
    def router(self) -> Router:
        """What finds routes in this cluster."""
        return Router(self.directed(), len(self.hosts), len(self.nodes))


def with_rates(link: Link, there_bps: int, back_bps: int) -> Link:
    """Return the link with other rates from a to b, and from b to a."""
    return replace(link, rate_bps=there_bps, back_rate_bps=back_bps if back_bps != there_bps else 0)


def describe(cluster: Cluster) -> str:
    """Return the cluster on one line; rates and delays that differ are given as a range.

    >>> from tensorexpress.topologies import star
    >>> describe(star(hosts=12))
    'star, 12 hosts, 10 Gbps, 1 us, MTU 9000, 8 queues'
    """
    words = [
        cluster.name,
        counted(len(cluster.hosts), "host"),
        _span((rate_bps for link in cluster.links for rate_bps in link.rates_bps), format_rate),
        _span((link.delay_ps for link in cluster.links), format_time),
        f"MTU {cluster.mtu}",
        counted(cluster.queues, "queue"),
    ]
    return ", ".join(words)


def _span(values: Iterable[int], show: Callable[[int], str]) -> str:
    distinct = set(values)
    least, most = min(distinct), max(distinct)
    return show(least) if least == most else f"{show(least)} to {show(most)}"


def check_within(what: str, value: int, least: int, most: int) -> None:
    """Refuse what is no whole number between two others."""
    if type(value) is not int or not least <= value <= most:
        raise ClusterError(f"{what} is {value!r}; accepted: a whole number from {least} to {most}")


def _unknown_name(what: str, found: str, accepted: Sequence[str]) -> str:
    if len(accepted) <= _MOST_LISTED:
        return unknown(what, found, accepted)
    first, second, last = accepted[0], accepted[1], accepted[-1]
    return f"unknown {what} {found!r}; accepted: {first}, {second}, ..., {last} ({len(accepted)} in all)"


def _check(cluster: Cluster) -> None:
    """Refuse a cluster in which some host could not reach another, or some port could not work."""
    check_name("the name of a cluster", cluster.name, ClusterError)
    check_within("mtu", cluster.mtu, 64, 65535)
    check_within("queues", cluster.queues, 1, 32)
    if not 0 <= cluster.buffer_bytes <= LARGEST:
        raise ClusterError(f"buffer_bytes is {cluster.buffer_bytes}; accepted: 0 (no limit) to {LARGEST}")
    if not 0 <= cluster.switch_memory_bytes <= LARGEST:
        raise ClusterError(f"switch_memory_bytes is {cluster.switch_memory_bytes}; accepted: 0 (no limit) to {LARGEST}")
    if not 0 <= cluster.switch_rate_bps <= LARGEST:
        raise ClusterError(f"switch_rate_bps is {cluster.switch_rate_bps}; accepted: 0 (no limit) to {LARGEST}")
    check_within("the number of hosts", len(cluster.hosts), 1, MOST_HOSTS)
    check_within("the number of links", len(cluster.links), 0, MOST_LINKS)
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
        check_name("the name of a node", name, ClusterError)
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
        for rate_bps in link.rates_bps:
            if not 0 < rate_bps <= LARGEST:
                raise ClusterError(
                    f"link {link.a} to {link.b} has a rate of {rate_bps} bit/s; accepted: more than 0, "
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
