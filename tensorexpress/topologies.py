"""Topologies: what builds the usual clusters, by a few numbers, by names, or from a file of the P4 tutorials.

To add one, write its constructor, name it in `TOPOLOGIES`, and give its parameters rows in `scenario_keys`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from os import PathLike
from reprlib import repr as short_repr
from types import MappingProxyType
from typing import TypeAlias, TypedDict, Unpack

from tensorexpress.cluster import (
    MOST_HOSTS,
    MOST_LINKS,
    Cluster,
    GivenAddress,
    Link,
    check_within,
    with_rates,
)
from tensorexpress.errors import ClusterError, InputError, UnitError
from tensorexpress.files import read_json
from tensorexpress.names import check_name
from tensorexpress.units import parse_limit, parse_rate, parse_time

#: A number in the base unit (ps, bytes, bit/s), or a string with a unit, such as "10 Gbps".
Quantity: TypeAlias = str | int | float


class PortOptions(TypedDict, total=False):
    """What all ports of a cluster have in common; every constructor takes these by keyword.

    `mtu` is the largest IP packet in bytes (9000), `buffer` what a switch port can hold ("16 MB"; 0 is no limit) and
    `queues` the number of its strict-priority queues (8). Hosts send no faster than `send_rate` and are reached no
    faster than `receive_rate`; 0, the default, is what their links carry. `switch_memory` is what a switch has for sums
    ("1 MB"; 0 is no limit), `switch_rate` what it takes in to sum (0 is no limit).
    """

    mtu: int
    buffer: Quantity
    queues: int
    send_rate: Quantity
    receive_rate: Quantity
    switch_memory: Quantity
    switch_rate: Quantity


def _build(
    name: str,
    hosts: Iterable[str],
    switches: Iterable[str],
    links: Iterable[Link],
    *,
    mtu: int = Cluster.mtu,
    buffer: Quantity = Cluster.buffer_bytes,
    queues: int = Cluster.queues,
    send_rate: Quantity = 0,
    receive_rate: Quantity = 0,
    switch_memory: Quantity = Cluster.switch_memory_bytes,
    switch_rate: Quantity = Cluster.switch_rate_bps,
) -> Cluster:
    buffer_bytes = _parsed("buffer", parse_limit, buffer)
    memory_bytes = _parsed("switch_memory", parse_limit, switch_memory)
    cluster = Cluster(
        name,
        tuple(hosts),
        tuple(switches),
        tuple(links),
        mtu,
        buffer_bytes,
        queues,
        switch_memory_bytes=memory_bytes,
        switch_rate_bps=_parsed("switch_rate", parse_rate, switch_rate),
    )
    limits = (_parsed("send_rate", parse_rate, send_rate), _parsed("receive_rate", parse_rate, receive_rate))
    return _limited(cluster, *limits) if any(limits) else cluster


def _limited(cluster: Cluster, send_bps: int, receive_bps: int) -> Cluster:
    """Return the cluster whose hosts send, and are reached, no faster than this; 0 is no limit."""
    hosts = frozenset(cluster.hosts)

    def rate(source: str, target: str, rate_bps: int) -> int:
        limits = (source in hosts and send_bps, target in hosts and receive_bps)
        return min(limit or rate_bps for limit in (rate_bps, *limits))

    links = (
        with_rates(link, rate(link.a, link.b, there_bps), rate(link.b, link.a, back_bps))
        for link in cluster.links
        for there_bps, back_bps in [link.rates_bps]
    )
    return replace(cluster, links=tuple(links))


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
    check_within("hosts", hosts, 1, MOST_HOSTS)
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

    >>> from tensorexpress.cluster import describe
    >>> describe(dumbbell(left=2, right=2, bottleneck="5 Gbps"))
    'dumbbell, 4 hosts, 5 Gbps to 10 Gbps, 1 us, MTU 9000, 8 queues'
    """
    for what, count in (("left", left), ("right", right)):
        check_within(what, count, 1, MOST_HOSTS)
    check_within("left + right hosts", left + right, 1, MOST_HOSTS)
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
        check_within(what, count, 1, MOST_HOSTS)
    check_within("leaves * hosts_per_leaf", leaves * hosts_per_leaf, 1, MOST_HOSTS)
    check_within("leaves * (hosts_per_leaf + spines)", leaves * (hosts_per_leaf + spines), 1, MOST_LINKS)
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
    check_within("k", k, 2, MOST_HOSTS)
    if k % 2:
        raise ClusterError(f"k is {k}; accepted: an even number, because half the ports of a switch face up")
    check_within("k**3 / 4 hosts", k**3 // 4, 1, MOST_HOSTS)
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

    A link is a `Link`, or two nodes and then, as far as they are given, bandwidth, delay and the bandwidth back;
    `bandwidth` and `delay` stand in where a link has none of its own. Two nodes may be joined by several links,
    and two hosts directly.

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
    a, b, *own = _link_entry(where, entry, ("bandwidth", "delay", "bandwidth back"))
    link = default(a, b)
    rate_bps = _parsed(where, parse_rate, own[0]) if own else link.rate_bps
    delay_ps = _parsed(where, parse_time, own[1]) if len(own) > 1 else link.delay_ps
    back_bps = _parsed(where, parse_rate, own[2]) if len(own) > 2 else rate_bps
    if back_bps == 0:
        raise ClusterError(f"{where} has a rate of 0 bit/s back; accepted: more than 0, such as '10 Gbps'")
    return with_rates(Link(a, b, rate_bps, delay_ps), rate_bps, back_bps)


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
        a, b, *own = _link_entry(where, entry, ("latency", "bandwidth"))
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


def _link_entry(where: str, entry: object, options: Sequence[str]) -> tuple[str, str, *tuple[object, ...]]:
    if isinstance(entry, str) or not isinstance(entry, Sequence) or not 2 <= len(entry) <= 2 + len(options):
        accepted = f"[node, node, {', '.join(options)}], all but the nodes optional"
        raise ClusterError(f"{where} is {short_repr(entry)}; accepted: {accepted}")
    a, b, *own = entry
    return (_name(f"a node of {where}", a), _name(f"a node of {where}", b), *own)
