"""Clusters: what each topology consists of, where routes lead, and what is refused."""

from __future__ import annotations

import doctest
import json
import pickle
import re
from collections import Counter, deque
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorexpress import cluster, routing, topologies
from tensorexpress.addresses import addresses_of, default_address, format_mac
from tensorexpress.cluster import Cluster, Link, describe
from tensorexpress.control.intent import Intent
from tensorexpress.errors import ClusterError, UnitError
from tensorexpress.plan import make_plan
from tensorexpress.plan_file import plan_from_json, plan_text
from tensorexpress.policy import POLICIES
from tensorexpress.routing import ecmp_hash
from tensorexpress.scenario import read_scenario
from tensorexpress.target.linux_layout import nodes
from tensorexpress.topologies import TOPOLOGIES, custom, dumbbell, fat_tree, leaf_spine, read_p4_topology, star

DOCS = Path(__file__).parents[1] / "docs" / "clusters.md"

SMALL = [
    star(hosts=5),
    dumbbell(left=2, right=3),
    leaf_spine(leaves=3, spines=2, hosts_per_leaf=2),
    fat_tree(4),
    custom(["a", "b"], [], [("a", "b")]),
    custom(["a", "b"], ["x", "y"], [("a", "x"), ("x", "y"), ("y", "x"), ("y", "b")]),
]


def hop_count(cluster: Cluster, src: str, dst: str) -> int:
    """Breadth-first search over names: an oracle that shares nothing with the router."""
    hops, queue = {src: 0}, deque([src])
    while queue:
        node = queue.popleft()
        if node in cluster.hosts and node != src:
            continue
        for link in cluster.links:
            if node in (link.a, link.b):
                other = link.b if node == link.a else link.a
                if other not in hops:
                    hops[other] = hops[node] + 1
                    queue.append(other)
    return hops[dst]


def assert_routes_are_shortest_paths(cluster: Cluster, flow: int = 0) -> None:
    directed = cluster.directed()
    for src, dst in permutations(range(len(cluster.hosts)), 2):
        path = cluster.route(src, dst, flow)
        visited = [src, *(directed.target[d] for d in path)]
        assert [directed.source[d] for d in path] == visited[:-1]
        assert visited[-1] == dst
        assert all(node >= len(cluster.hosts) for node in visited[1:-1]), "a host forwards"
        assert len(path) == hop_count(cluster, cluster.hosts[src], cluster.hosts[dst])


def test_docstring_examples() -> None:
    for module in (cluster, routing, topologies):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed


def test_docs_examples() -> None:
    result = doctest.testfile(str(DOCS), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_docs_have_a_section_for_every_topology() -> None:
    assert set(re.findall(r'^topology = "(.+)"$', DOCS.read_text(encoding="utf-8"), re.MULTILINE)) == set(TOPOLOGIES)


# What the topologies consist of


def test_star_joins_every_host_to_one_switch() -> None:
    cluster = star(hosts=3, bandwidth="25 Gbps", delay="2 us", mtu=9000, buffer="1 MiB", queues=4)
    assert cluster == Cluster(
        name="star",
        hosts=("h0", "h1", "h2"),
        switches=("s0",),
        links=tuple(Link(host, "s0", 25 * 10**9, 2 * 10**6) for host in ("h0", "h1", "h2")),
        mtu=9000,
        buffer_bytes=2**20,
        queues=4,
    )


def test_quantities_may_be_numbers_in_base_units() -> None:
    assert star(2, 10**10, 10**6, buffer=16_000_000) == star(2, "10 Gbps", "1 us", buffer="16 MB") == star(2)


def test_dumbbell_has_one_bottleneck_between_its_sides() -> None:
    cluster = dumbbell(left=2, right=1, bandwidth="10 Gbps", bottleneck="1 Gbps", delay=7)
    assert [(link.a, link.b) for link in cluster.links] == [("h0", "s0"), ("h1", "s0"), ("h2", "s1"), ("s0", "s1")]
    assert [link.rate_bps for link in cluster.links] == [10**10, 10**10, 10**10, 10**9]
    assert {link.delay_ps for link in cluster.links} == {7}


def test_dumbbell_bottleneck_is_a_host_rate_unless_given() -> None:
    assert dumbbell(1, 1, bandwidth="40 Gbps").links[-1] == Link("s0", "s1", 40 * 10**9, 10**6)


@pytest.mark.parametrize(
    ("spines", "hosts_per_leaf", "oversubscription", "uplink_bps"),
    [
        (4, 8, 1.0, 20 * 10**9),
        (4, 8, 2, 10 * 10**9),
        (2, 4, 4.0, 5 * 10**9),
        (3, 2, 1.0, 6_666_666_667),
        (1, 1, 0.5, 20 * 10**9),
    ],
)
def test_uplink_rate(spines: int, hosts_per_leaf: int, oversubscription: float, uplink_bps: int) -> None:
    cluster = leaf_spine(2, spines, hosts_per_leaf, "10 Gbps", oversubscription=oversubscription)
    uplinks = cluster.links[len(cluster.hosts) :]
    assert {link.rate_bps for link in uplinks} == {uplink_bps}
    assert len(uplinks) == 2 * spines


def test_leaf_spine_joins_every_leaf_to_every_spine() -> None:
    cluster = leaf_spine(leaves=3, spines=2, hosts_per_leaf=4)
    assert (len(cluster.hosts), len(cluster.switches), len(cluster.links)) == (12, 5, 18)
    assert [link.b for link in cluster.links[:12]] == ["s0"] * 4 + ["s1"] * 4 + ["s2"] * 4
    pairs = {(link.a, link.b) for link in cluster.links[12:]}
    assert pairs == {(leaf, spine) for leaf in ("s0", "s1", "s2") for spine in ("s3", "s4")}


@pytest.mark.parametrize(("k", "hosts", "switches", "links"), [(2, 2, 5, 6), (4, 16, 20, 48), (6, 54, 45, 162)])
def test_fat_tree_counts(k: int, hosts: int, switches: int, links: int) -> None:
    cluster = fat_tree(k)
    assert (len(cluster.hosts), len(cluster.switches), len(cluster.links)) == (hosts, switches, links)
    assert len({frozenset((link.a, link.b)) for link in cluster.links}) == links


@pytest.mark.parametrize("k", [4, 6])
def test_every_switch_of_a_fat_tree_uses_its_k_ports(k: int) -> None:
    cluster = fat_tree(k)
    ports = Counter(end for link in cluster.links for end in (link.a, link.b))
    assert {ports[switch] for switch in cluster.switches} == {k}


def test_fat_tree_distances_are_2_4_and_6_hops() -> None:
    cluster = fat_tree(4)
    assert Counter(len(cluster.route(0, dst)) for dst in range(1, 16)) == {2: 1, 4: 2, 6: 12}


def test_custom_links_take_the_defaults_they_do_not_give() -> None:
    links = [Link("a", "x", 1, 2), ("b", "x"), ["c", "x", "1 Gbps"], ("d", "x", "2 Gbps", "3 us")]
    cluster = custom(["a", "b", "c", "d"], ["x"], links, bandwidth="5 Gbps", delay="4 us")
    assert [(link.rate_bps, link.delay_ps) for link in cluster.links] == [
        (1, 2),
        (5 * 10**9, 4 * 10**6),
        (10**9, 4 * 10**6),
        (2 * 10**9, 3 * 10**6),
    ]


def test_directed_links_are_the_two_ways_of_each_link() -> None:
    directed = custom(["a", "b"], ["x"], [("x", "a", 5, 6), ("b", "x", 7, 8)]).directed()
    assert directed.source == (2, 0, 1, 2)
    assert directed.target == (0, 2, 2, 1)
    assert directed.rate_bps == (5, 5, 7, 7)
    assert directed.delay_ps == (6, 6, 8, 8)


@pytest.mark.parametrize(
    ("cluster", "line"),
    [
        (star(12), "star, 12 hosts, 10 Gbps, 1 us, MTU 9000, 8 queues"),
        (star(1, queues=1), "star, 1 host, 10 Gbps, 1 us, MTU 9000, 1 queue"),
        (leaf_spine(2, 1, 8), "leaf-spine, 16 hosts, 10 Gbps to 80 Gbps, 1 us, MTU 9000, 8 queues"),
        (
            custom(["a", "b"], [], [("a", "b", "1 Gbps", 0)], mtu=9000),
            "custom, 2 hosts, 1 Gbps, 0 ps, MTU 9000, 8 queues",
        ),
    ],
)
def test_describe(cluster: Cluster, line: str) -> None:
    assert describe(cluster) == line


# Routes


@pytest.mark.parametrize("cluster", SMALL, ids=describe)
def test_every_route_is_a_shortest_path(cluster: Cluster) -> None:
    for flow in range(3):
        assert_routes_are_shortest_paths(cluster, flow)


@st.composite
def connected_clusters(draw: st.DrawFn) -> Cluster:
    """A random tree of switches with some more links, parallel ones among them, and hosts anywhere."""
    switches = [f"s{i}" for i in range(draw(st.integers(1, 7)))]
    hosts = [f"h{i}" for i in range(draw(st.integers(1, 5)))]
    index = st.integers(0, len(switches) - 1)
    tree = [(switches[i], switches[draw(st.integers(0, i - 1))]) for i in range(1, len(switches))]
    more = [(switches[i], switches[j]) for i, j in draw(st.lists(st.tuples(index, index), max_size=8)) if i != j]
    access = [(host, switches[draw(index)]) for host in hosts]
    return custom(hosts, switches, draw(st.permutations(tree + more + access)))


@settings(deadline=None)
@given(connected_clusters(), st.integers(0, 2**64))
def test_routes_in_random_clusters_are_shortest_paths(cluster: Cluster, flow: int) -> None:
    assert_routes_are_shortest_paths(cluster, flow)


@settings(deadline=None)
@given(connected_clusters(), st.integers(0, 99))
def test_a_route_does_not_depend_on_the_routes_asked_before(cluster: Cluster, flow: int) -> None:
    pairs = list(permutations(range(len(cluster.hosts)), 2))
    forth = {pair: cluster.route(*pair, flow) for pair in pairs}
    fresh = replace(cluster)
    assert {pair: fresh.route(*pair, flow) for pair in reversed(pairs)} == forth


def test_a_host_reaches_itself_over_no_link() -> None:
    assert star(3).route(1, 1) == ()


@pytest.mark.parametrize("host", [-1, 3])
def test_route_refuses_an_index_that_is_no_host(host: int) -> None:
    for pair in ((host, 0), (0, host)):
        with pytest.raises(ClusterError, match=rf"no host has index {host}; accepted: 0 to 2"):
            star(3).route(*pair)


def test_a_cluster_that_has_routed_is_still_equal_hashable_and_picklable() -> None:
    used, fresh = fat_tree(4), fat_tree(4)
    path = used.route(0, 15)
    assert used == fresh
    assert hash(used) == hash(fresh)
    assert pickle.loads(pickle.dumps(used)).route(0, 15) == path


# Equal-cost multi-path


def test_ecmp_hash_of_zeros_starts_as_the_published_splitmix64() -> None:
    """The first output of splitmix64 seeded with 0 is widely published; chaining continues from it."""
    first = 0xE220A8397B1DCDAF
    golden = 0x9E3779B97F4A7C15

    def undone(mixed: int) -> int:
        """Run one step of splitmix64 backwards, with word 0."""
        mixed ^= mixed >> 31 ^ mixed >> 62
        mixed = mixed * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
        mixed ^= mixed >> 27 ^ mixed >> 54
        mixed = mixed * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
        mixed ^= mixed >> 30 ^ mixed >> 60
        return (mixed - golden) % 2**64

    assert undone(undone(undone(ecmp_hash(0, 0, 0, 0)))) == first


def test_ecmp_hash_golden_values() -> None:
    assert [hex(ecmp_hash(*words)) for words in [(0, 0, 0, 0), (1, 2, 3, 4), (4, 3, 2, 1), (0, 1, 2**64, 5)]] == [
        "0x2130748aaac80268",
        "0x336c3255cbcc01fe",
        "0x9fa2bd3915e1e6e6",
        "0x5aa9c756d3b6f69a",
    ]


@given(*[st.integers(0, 2**64 - 1)] * 4)
def test_ecmp_hash_in_64_bit_arithmetic_is_the_same(src: int, dst: int, flow: int, node: int) -> None:
    mixed = np.zeros(1, dtype=np.uint64)
    for word in (src, dst, flow, node):
        mixed = mixed + np.uint64(word) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    assert int(mixed[0]) == ecmp_hash(src, dst, flow, node)


def test_ecmp_golden_routes() -> None:
    cluster = fat_tree(4)
    assert [cluster.route(0, 15, flow) for flow in range(4)] == [
        (0, 34, 70, 95, 63, 31),
        (0, 34, 70, 95, 63, 31),
        (0, 34, 68, 93, 63, 31),
        (0, 34, 70, 95, 63, 31),
    ]


def test_flows_between_two_hosts_spread_evenly_over_the_spines() -> None:
    cluster = leaf_spine(leaves=2, spines=4, hosts_per_leaf=2)
    target = cluster.directed().target
    flows = 4000
    spines = Counter(target[cluster.route(0, 2, flow)[1]] for flow in range(flows))
    assert len(spines) == 4
    # Five standard deviations of a fair choice among four.
    assert all(abs(count - flows / 4) < 5 * (flows * 3 / 16) ** 0.5 for count in spines.values())


def test_pairs_of_hosts_spread_evenly_over_all_cores_of_a_fat_tree() -> None:
    """Hashes that ignore the node would let the second tier repeat the first one's choice and starve some cores."""
    cluster = fat_tree(8)
    target = cluster.directed().target
    paths = [cluster.route(src, dst) for src, dst in permutations(range(128), 2) if src // 16 != dst // 16]
    cores = Counter(target[path[2]] for path in paths)
    assert len(cores) == 16
    expected = len(paths) / 16
    assert all(abs(count - expected) < 5 * expected**0.5 for count in cores.values())


def test_parallel_links_share_the_flows() -> None:
    cluster = custom(["a", "b"], ["x", "y"], [("a", "x"), ("x", "y"), ("x", "y"), ("b", "y")])
    assert {cluster.route(0, 1, flow) for flow in range(20)} == {(0, 2, 7), (0, 4, 7)}


# Names


def test_host_index_is_the_place_among_the_hosts() -> None:
    cluster = fat_tree(4)
    assert [cluster.host_index(name) for name in cluster.hosts] == list(range(16))


def test_host_index_lists_few_names_and_abbreviates_many() -> None:
    with pytest.raises(ClusterError, match=r"unknown host 'h3'; .*Accepted: h0, h1, h2$"):
        star(3).host_index("h3")
    with pytest.raises(ClusterError, match=r"unknown host 's0'; accepted: h0, h1, \.\.\., h999 \(1000 in all\)$"):
        star(1000).host_index("s0")


# Ports and next hops


def test_links_without_a_port_number_take_the_free_ones_in_order() -> None:
    links = [Link("a", "s", 10**9, 0, (None, 1)), Link("s", "b", 10**9, 0), Link("c", "s", 10**9, 0)]
    assert custom(["a", "b", "c"], ["s"], links).ports("s") == {0: 2, 1: 1, 2: 5}


@given(connected_clusters())
def test_next_hops_hold_the_link_of_every_route(cluster: Cluster) -> None:
    directed = cluster.directed()
    for dst in range(1, len(cluster.hosts)):
        for link in cluster.route(0, dst)[1:]:
            assert link in cluster.next_hops(cluster.nodes[directed.source[link]], dst)


# The topology.json of the P4 tutorials

P4_TOPOLOGY = {
    "hosts": {
        name: {"ip": f"10.0.{i}.1/24", "mac": f"08:00:00:00:0{i}:00", "commands": ["route add default gw 10.0.0.1"]}
        for i, name in enumerate(["h10", "h1", "h2", "h11"])
    },
    "switches": {"s2": {"runtime_json": "s2-runtime.json"}, "s1": {"cpu_port": "510"}},
    "links": [
        ["h1", "s1-p1"],
        ["s1-p2", "h2-0", 2],
        ["h10", "s2-p1", "300us", None],
        ["h11", "s2-p2", "0", 100],
        ["s1-p3", "s2-p3", "2ms", 0.5],
        ["s1-p4", "s2-p4"],
    ],
}


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "topology.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_hosts_have_the_addresses_of_the_topology_in_every_plan_of_it(tmp_path: Path) -> None:
    path = written(tmp_path, P4_TOPOLOGY)
    cluster = read_p4_topology(path)
    assert [str(address.ipv4) for address in addresses_of(cluster)] == ["10.0.1.1", "10.0.2.1", "10.0.0.1", "10.0.3.1"]
    assert format_mac(addresses_of(cluster)[3].mac) == "08:00:00:00:03:00"
    overrides = ["cluster.topology=p4", f"cluster.file={path}", "job.workers=2", "job.servers=1"]
    plan = make_plan(read_scenario(overrides=overrides), POLICIES["fifo"])
    assert plan_from_json(json.loads(plan_text(plan))) == plan
    assert addresses_of(plan.scenario.cluster) == addresses_of(cluster)
    lines = nodes(plan)[0].ip
    assert "addr add 10.0.1.1/32 dev eth0" in lines
    assert Intent(plan, "s1").addresses == addresses_of(cluster)


def test_a_host_without_an_address_has_the_default_one(tmp_path: Path) -> None:
    hosts = {"h1": {"ip": "192.168.1.1"}, "h2": {}}
    cluster = read_p4_topology(
        written(tmp_path, {"hosts": hosts, "switches": ["s1"], "links": [["h1", "s1-p1"], ["h2", "s1-p2"]]})
    )
    first, second = addresses_of(cluster)
    assert str(first.ipv4) == "192.168.1.1"
    assert first.mac == default_address(0).mac
    assert second == default_address(1)


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ({"ip": "10.0.1"}, "h1.ipv4 is '10.0.1'; accepted: a unicast address"),
        ({"ip": "10.0.0.1/24 dev x"}, "h1.ipv4 is"),
        ({"ip": 7}, "hosts.h1.ip is 7; accepted: text"),
        ({"mac": "ff:ff:ff:ff:ff:ff"}, "h1.mac is 'ff:ff:ff:ff:ff:ff'; accepted: a unicast address"),
        ({"mac": "08:00\n"}, "h1.mac is"),
        ({"ip": "10.0.0.2"}, "2 hosts have ipv4 10.0.0.2"),
        (7, "hosts.h1 is 7; accepted: an object"),
    ],
)
def test_an_address_that_cannot_be_is_refused(tmp_path: Path, host: object, message: str) -> None:
    topology = {"hosts": {"h1": host, "h2": {}}, "switches": ["s1"], "links": [["h1", "s1-p1"], ["h2", "s1-p2"]]}
    with pytest.raises(ClusterError) as refusal:
        read_p4_topology(written(tmp_path, topology))
    assert message in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_p4_topology_is_read_as_it_is(tmp_path: Path) -> None:
    cluster = read_p4_topology(written(tmp_path, P4_TOPOLOGY), bandwidth="1 Gbps", delay="5 us", queues=4)
    assert cluster.hosts == ("h1", "h2", "h10", "h11")
    assert cluster.switches == ("s1", "s2")
    assert cluster.queues == 4
    assert cluster.links == (
        Link("h1", "s1", 10**9, 5 * 10**6, (None, 1)),
        Link("s1", "h2", 10**9, 2 * 10**9, (2, 0)),
        Link("h10", "s2", 10**9, 300 * 10**6, (None, 1)),
        Link("h11", "s2", 100 * 10**6, 0, (None, 2)),
        Link("s1", "s2", 500_000, 2 * 10**9, (3, 3)),
        Link("s1", "s2", 10**9, 5 * 10**6, (4, 4)),
    )
    assert cluster.ports("s2") == {1: 5, 2: 7, 3: 9, 4: 11}
    assert_routes_are_shortest_paths(cluster)


def test_p4_link_without_latency_has_none_as_in_the_tutorials(tmp_path: Path) -> None:
    assert read_p4_topology(written(tmp_path, P4_TOPOLOGY)).links[0] == Link("h1", "s1", 10**10, 0, (None, 1))


def test_p4_node_names_may_hold_a_dash(tmp_path: Path) -> None:
    links = [["gpu-1", "leaf-1-p1"], ["gpu-2-0", "leaf-1-p2"]]
    topology = {"hosts": ["gpu-2", "gpu-1"], "switches": {"leaf-1": {}}, "links": links}
    cluster = read_p4_topology(written(tmp_path, topology))
    assert [(link.a, link.b) for link in cluster.links] == [("gpu-1", "leaf-1"), ("gpu-2", "leaf-1")]


def changed(**parts: object) -> dict[str, object]:
    return {**P4_TOPOLOGY, **parts}


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        ("", "is not JSON"),
        (json.dumps(P4_TOPOLOGY)[:200], "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ([], r"holds \[\]; accepted: an object with hosts, switches and links"),
        ({"hosts": {}, "switches": {}}, "has no 'links'"),
        (changed(hosts=3), "hosts is 3; accepted: a list of names"),
        (changed(hosts="h1"), "hosts is 'h1'; accepted: a list of names"),
        (changed(switches=[1]), "a name in switches is 1"),
        (changed(hosts={}), "number of hosts is 0"),
        (changed(links={}), "links is {}; accepted: a list of links"),
        (changed(links=["h1"]), r"links\[0\] is 'h1'; accepted: \[node, node, latency, bandwidth\]"),
        (changed(links=[["h1"]]), r"links\[0\] is \['h1'\]"),
        (changed(links=[["h1", 3]]), r"a node of links\[0\] is 3"),
        (changed(links=[["h1", "s1-p1", "soon"]]), r"links\[0\]: 'soon' is not a time"),
        (changed(links=[["h1", "s1-p1", True]]), r"links\[0\]: True is not a time"),
        (changed(links=[["h1", "s1-p1", 0, -1]]), r"links\[0\]: '-1 Mbps' is negative"),
        (changed(links=[["h1", "s1-p1", 0, 0]]), "link h1 to s1 has a rate of 0 bit/s"),
        (changed(links=[["h1", "s9-p1"]]), r"links\[0\]: unknown node 's9'"),
        (changed(links=[["h1", "s1-p1"], ["h2", "s1-p1"]]), r"links\[1\]: port s1-p1 has a link already"),
        (changed(links=[["h1", "s1-p1"], ["h1", "s2-p1"]]), "host h1 has 2 links"),
    ],
)
def test_bad_p4_topology_is_one_line_with_the_file(tmp_path: Path, content: object, phrase: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ClusterError, match=phrase) as caught:
        read_p4_topology(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_p4_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(ClusterError, match=rf"^{re.escape(str(path))}: cannot be read \("):
            read_p4_topology(path)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterError, match="is not JSON"):
        read_p4_topology(binary)


# What is refused


@pytest.mark.parametrize(
    ("build", "phrase"),
    [
        (lambda: star(0), "hosts is 0; accepted: a whole number from 1 to 100000"),
        (lambda: star(-3), "hosts is -3"),
        (lambda: star(100_001), "hosts is 100001"),
        (lambda: star(2.5), r"hosts is 2\.5"),
        (lambda: star("4"), "hosts is '4'"),
        (lambda: star(True), "hosts is True"),
        (lambda: star(2, bandwidth=0), "link h0 to s0 has a rate of 0 bit/s"),
        (lambda: star(2, mtu=63), "mtu is 63; accepted: a whole number from 64 to 65535"),
        (lambda: star(2, mtu=65536), "mtu is 65536"),
        (lambda: star(2, queues=0), "queues is 0; accepted: a whole number from 1 to 32"),
        (lambda: star(2, queues=33), "queues is 33"),
        (lambda: replace(star(2), buffer_bytes=-1), "buffer_bytes is -1"),
        (lambda: dumbbell(0, 1), "left is 0"),
        (lambda: dumbbell(1, 0), "right is 0"),
        (lambda: dumbbell(60_000, 60_000), r"left \+ right hosts is 120000"),
        (lambda: leaf_spine(0, 1, 1), "leaves is 0"),
        (lambda: leaf_spine(1, 0, 1), "spines is 0"),
        (lambda: leaf_spine(1, 1, 0), "hosts_per_leaf is 0"),
        (lambda: leaf_spine(1000, 1, 1000), r"leaves \* hosts_per_leaf is 1000000"),
        (lambda: leaf_spine(100_000, 100_000, 1), r"leaves \* \(hosts_per_leaf \+ spines\) is"),
        (lambda: leaf_spine(1, 1, 1, oversubscription=0), "oversubscription is 0; accepted: a number above 0"),
        (lambda: leaf_spine(1, 1, 1, oversubscription=float("nan")), "oversubscription is nan"),
        (lambda: leaf_spine(1, 1, 1, oversubscription=float("inf")), "oversubscription is inf"),
        (lambda: leaf_spine(1, 1, 1, oversubscription="2"), "oversubscription is '2'"),
        (lambda: leaf_spine(1, 1, 1, bandwidth=1, oversubscription=9), "link s0 to s1 has a rate of 0 bit/s"),
        (lambda: fat_tree(3), "k is 3; accepted: an even number"),
        (lambda: fat_tree(0), "k is 0"),
        (lambda: fat_tree(74), r"k\*\*3 / 4 hosts is 101306"),
        (lambda: custom(["a", "a"], [], [("a", "a")]), "2 nodes are named a"),
        (lambda: custom(["a"], ["a"], [("a", "a")]), "2 nodes are named a"),
        (lambda: custom(["a", ""], ["x"], []), "a name in hosts is ''"),
        (lambda: custom(["a\n"], ["x"], []), r"a name in hosts is 'a\\n'"),
        (lambda: custom(4, ["x"], []), "hosts is 4; accepted: a list of names"),
        (lambda: custom("ab", ["x"], []), "hosts is 'ab'; accepted: a list of names"),
        (lambda: custom(["a"], ["x"], 1), "links is 1; accepted: a list of links"),
        (lambda: custom(["a"], ["x"], [("a",)]), r"links\[0\] is \('a',\); accepted: \[node, node, bandwidth, delay"),
        (lambda: custom(["a"], ["x"], ["ax"]), r"links\[0\] is 'ax'"),
        (lambda: custom(["a"], ["x"], [("a", "x", 1, 1, 0)]), r"links\[0\] has a rate of 0 bit/s back"),
        (lambda: custom(["a"], ["x"], [("a", "x", 1, 1, 1, 1)]), r"links\[0\] is .*all but the nodes optional"),
        (lambda: custom(["a"], ["x"], [("a", 5)]), r"a node of links\[0\] is 5"),
        (lambda: custom(["a"], ["x"], [("a", "y")]), r"links\[0\]: unknown node 'y'; Accepted: a, x"),
        (lambda: custom(["a"], ["x"], [("a", "x"), ("x", "x")]), r"links\[1\] joins x to itself"),
        (lambda: custom(["a"], ["x"], [Link("a", "x", 1, -1)]), "link a to x has a delay of -1 ps"),
        (lambda: custom(["a", "b"], ["x"], [("a", "x")]), "host b has no link"),
        (lambda: custom(["a"], ["x"], [("a", "x"), ("a", "x")]), "host a has 2 links; a host has exactly one NIC"),
        (lambda: custom([], ["x"], []), "the number of hosts is 0"),
        (
            lambda: custom(["a", "b", "c"], ["x", "y"], [("a", "x"), ("b", "x"), ("c", "y")]),
            "hosts a and c cannot reach each other",
        ),
        (
            lambda: custom(["a", "b", "c", "d"], [], [("a", "b"), ("c", "d")]),
            "hosts a and c cannot reach each other",
        ),
    ],
)
def test_bad_cluster_is_one_line(build, phrase: str) -> None:
    with pytest.raises(ClusterError, match=phrase) as caught:
        build()
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("build", "phrase"),
    [
        (lambda: star(2, bandwidth="fast"), "bandwidth: 'fast' is not a rate"),
        (lambda: star(2, delay="-1 us"), "delay: '-1 us' is negative"),
        (lambda: star(2, buffer="16 Gbps"), "buffer: '16 Gbps' is not a size"),
        (lambda: dumbbell(1, 1, bottleneck="slow"), "bottleneck: 'slow' is not a rate"),
        (lambda: leaf_spine(1, 1, 10_000, bandwidth="100 Tbps"), "uplink rate: "),
        (lambda: custom(["a"], ["x"], [("a", "x", "1 us")]), r"links\[0\]: '1 us' is not a rate"),
    ],
)
def test_bad_quantity_names_its_key(build, phrase: str) -> None:
    with pytest.raises(UnitError, match=phrase) as caught:
        build()
    assert "\n" not in str(caught.value)
