"""Every flow of a plan takes the plan's path: in the simulator, in P4 switches, in BMv2 and in Linux."""

from __future__ import annotations

import doctest
import json
import select
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import pairwise, permutations
from pathlib import Path as FilePath

import numpy as np
import pytest
from hypothesis import given, settings
from support.deployed import PROGRAM, DeployedSwitch, tagged
from support.namespace_sockets import open_socket
from support.network import BMV2, cable, needs_bmv2, needs_root
from support.strategies import plans, policies, scenarios
from support.switches import Bmv2Switch
from support.thorough import examples, one_in, rest
from support.training_run import small_plan

from tensorexpress import paths as module
from tensorexpress.addresses import GATEWAY_MAC, addresses_of
from tensorexpress.cluster import Cluster
from tensorexpress.control.client import RemoteSwitch
from tensorexpress.control.deploy import deploy, failures, prepare
from tensorexpress.control.intent import Options
from tensorexpress.errors import PlanError
from tensorexpress.paths import Path, Paths, check_paths, choose_paths
from tensorexpress.plan import Plan, link_loads, make_plan
from tensorexpress.policy import POLICIES, Policy
from tensorexpress.scaling import scale_scenario
from tensorexpress.scenario import Scenario, read_scenario
from tensorexpress.sim import flat_plan as simulated
from tensorexpress.switch.ports import InterfacePort
from tensorexpress.target.embedded import EmbeddedTarget
from tensorexpress.target.linux import LinuxNetwork, LinuxTarget
from tensorexpress.target.linux_layout import port_interface
from tensorexpress.target.runner import run_plan
from tensorexpress.topologies import custom, fat_tree, leaf_spine
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.header import UDP_PORT, Kind

TWO_BY_TWO = ["cluster.topology=leaf-spine", "cluster.leaves=2", "cluster.spines=2", "cluster.hosts_per_leaf=2"]
FOUR_BY_FOUR = ["cluster.topology=leaf-spine", "cluster.leaves=4", "cluster.spines=4", "cluster.hosts_per_leaf=4"]
TREE = ["cluster.topology=fat-tree", "cluster.k=4"]

SERVERS = ['job.workers=["h0","h2","h3"]', 'job.servers=["h1"]']
RING = ["job.workers=4", "job.architecture=ring"]
COLOCATED = ["job.workers=4", "job.colocated=true"]


def two_jobs(count: int) -> list[str]:
    """A job whose hosts are all servers, and a ring on the same hosts in another order."""
    hosts = [f"h{i}" for i in range(count)]
    return [
        f"job.0.workers={json.dumps(hosts)}",
        f"job.0.servers={json.dumps(hosts)}",
        "job.0.colocated=true",
        f"job.1.workers={json.dumps(hosts[::2] + hosts[1::2])}",
        "job.1.architecture=ring",
    ]


#: Name -> keys of a scenario in which hosts have several ways to each other.
NETWORKS = {
    "2x2 with servers": TWO_BY_TWO + SERVERS,
    "2x2 ring": TWO_BY_TWO + RING,
    "2x2 colocated": TWO_BY_TWO + COLOCATED,
    "2x2 two jobs": TWO_BY_TWO + two_jobs(4),
    "4x4 two jobs": FOUR_BY_FOUR + two_jobs(16),
    "fat-tree two jobs": TREE + two_jobs(16),
}


def planned(network: str, policy: str = "tensorexpress", *more: str) -> Plan:
    return make_plan(read_scenario(overrides=["job.model=alexnet", *NETWORKS[network], *more]), POLICIES[policy])


def flows(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """Yield the job and the ends of all that a plan's jobs send: messages, and the acknowledgements of these."""
    program = simulated.build(plan)
    ends = zip(program.flow_job.tolist(), program.flow_src.tolist(), program.flow_dst.tolist(), strict=True)
    talking = {(job, src, dst) for job, src, dst in ends if src != dst}
    yield from sorted({*talking, *((job, dst, src) for job, src, dst in talking)})


def frame_of(cluster: Cluster, job: int, src: int, dst: int, version: int = 4, kind: Kind = Kind.GRADIENT) -> bytes:
    sender, target = addresses_of(cluster)[src], addresses_of(cluster)[dst]
    ips = (sender.ipv4, target.ipv4) if version == 4 else (sender.ipv6, target.ipv6)
    ends = FrameEnd(sender.mac, ips[0], UDP_PORT), FrameEnd(GATEWAY_MAC, ips[1], UDP_PORT)
    return build_frame(*ends, tagged(job, kind=kind))


#: Takes a frame through a switch: its name, the port and the frame -> (port, frame) of what leaves.
Through = Callable[[str, int, bytes], tuple[int, bytes]]


def walked(cluster: Cluster, src: int, frame: bytes, through: Through) -> tuple[tuple[int, ...], bytes]:
    """Return the links that a frame of a host takes, switch by switch, and what arrives."""
    leaving, place_of_link, source, target = layout(cluster)
    links = [source.index(src)]
    while (node := target[links[-1]]) >= len(cluster.hosts):
        switch, arrives = place_of_link[links[-1] ^ 1]
        assert switch == cluster.nodes[node]
        port, frame = through(switch, arrives, frame)
        links.append(leaving[switch, port])
    return tuple(links), frame


@cache
def layout(
    cluster: Cluster,
) -> tuple[dict[tuple[str, int], int], dict[int, tuple[str, int]], tuple[int, ...], tuple[int, ...]]:
    """Return (switch, port) -> the link that leaves there, the reverse, and source and target of all links."""
    leaving = {(switch, port): link for switch in cluster.switches for port, link in cluster.ports(switch).items()}
    directed = cluster.directed()
    return leaving, {link: place for place, link in leaving.items()}, directed.source, directed.target


# What is chosen


def test_examples_in_docstrings_hold() -> None:
    assert doctest.testmod(module).failed == 0


@settings(max_examples=examples(100))
@given(plans())
def test_all_who_talk_have_a_shortest_path_each_way_and_nobody_else(plan: Plan) -> None:
    cluster = plan.scenario.cluster
    check_paths(cluster, plan.paths.rows)
    program = simulated.build(plan)
    talking = set(zip(program.flow_src.tolist(), program.flow_dst.tolist(), strict=True))
    both = {pair for src, dst in talking if src != dst for pair in ((src, dst), (dst, src))}
    # A server may have nothing to sum.
    everyone = {
        pair
        for job in plan.scenario.jobs
        for worker in job.workers
        for server in job.servers
        if worker != server
        for pair in ((worker, server), (server, worker))
    }
    assert both <= {(path.src, path.dst) for path in plan.paths} <= both | everyone
    for path in plan.paths:
        assert len(path.links) == len(cluster.route(path.src, path.dst))


@settings(max_examples=examples(50))
@given(scenarios(), policies(), policies())
def test_no_policy_changes_a_path(scenario: Scenario, one: Policy, other: Policy) -> None:
    assert make_plan(scenario, one).paths == make_plan(scenario, other).paths


@pytest.mark.parametrize("network", NETWORKS)
def test_in_slow_motion_paths_are_the_same(network: str) -> None:
    plan = planned(network)
    assert make_plan(scale_scenario(plan.scenario, 500), plan.policy).paths == plan.paths


def busiest_ps(plan: Plan, paths: Paths) -> int:
    loads = [link_loads(job, plan.scenario, paths) for job in plan.jobs]
    return int(sum((shared + own).sum(axis=1) for shared, own in loads).max())


@pytest.mark.parametrize("network", NETWORKS)
def test_the_busiest_link_is_less_busy_than_by_the_hash(network: str) -> None:
    plan = planned(network)
    hashed = Paths(tuple(replace(path, links=plan.scenario.cluster.route(path.src, path.dst)) for path in plan.paths))
    assert busiest_ps(plan, plan.paths) <= busiest_ps(plan, hashed)


@pytest.mark.parametrize("cluster", [leaf_spine(4, 4, 4), fat_tree(4), fat_tree(8)], ids=["4x4", "k=4", "k=8"])
def test_where_all_talk_to_all_links_of_a_tier_carry_nearly_the_same(cluster: Cluster) -> None:
    paths = choose_paths(cluster, dict.fromkeys(permutations(range(len(cluster.hosts)), 2), 1))
    directed, hosts = cluster.directed(), len(cluster.hosts)
    carried = Counter(link for path in paths for link in path.links)
    # Ways up: switches of a lower tier have lower numbers.
    up = [link for link in range(len(directed.source)) if hosts <= directed.source[link] < directed.target[link]]
    tiers: dict[int, list[int]] = {}
    for link in up:
        # What meets hosts is the lowest tier.
        tiers.setdefault(directed.source[link] in directed.target[: 2 * hosts : 2], []).append(carried[link])
    for each in tiers.values():
        assert max(each) <= 1.1 * sum(each) / len(each)


def test_a_faster_link_takes_its_share() -> None:
    cluster = custom(
        ["a", "b", "c", "d", "e", "f"],
        ["x", "y"],
        [*(("x" if i < 3 else "y", host) for i, host in enumerate("abcdef")), ("x", "y"), ("x", "y", "20 Gbps")],
    )
    paths = choose_paths(cluster, {(0, 3): 1000, (1, 4): 1000, (2, 5): 1000})
    assert sorted(path.links[1] for path in paths) == [12, 14, 14]


def test_more_paths_than_can_be_looked_at_are_drawn_from() -> None:
    """Ten times two parallel links: 1,024 paths."""
    switches = [f"s{i}" for i in range(11)]
    links = [("a", "s0"), ("b", "s0"), ("c", "s10"), ("d", "s10")]
    links += [pair for pair in pairwise(switches) for _ in range(2)]
    cluster = custom(["a", "b", "c", "d"], switches, links)
    paths = choose_paths(cluster, {(0, 2): 100, (1, 3): 100})
    check_paths(cluster, paths.rows)
    one, other = (set(path.links) for path in paths)
    assert len(one & other) <= 3


def test_who_does_not_talk_has_no_path() -> None:
    with pytest.raises(PlanError, match="no path from host 0 to host 9"):
        planned("2x2 ring").paths.between(0, 9)
    assert planned("2x2 ring").paths.between(3, 3) == ()


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (Path(4, 0, (0,)), "there is no host 4; accepted: 0 to 3"),
        (Path(0, -1, (0,)), "there is no host -1"),
        (Path(0, 2, (0, 99, 13, 5)), "there is no link 99; accepted: 0 to 15"),
        (Path(0, 2, (0, 12, 9, 5)), "link 12 leaves s1, and the way so far ends at s0"),
        (Path(0, 2, (0, 8, 13)), "it ends at s1; accepted: a way from one host to another, here to h2"),
        (Path(0, 0, ()), "it ends at h0"),
        (Path(0, 2, (0, 8, 9, 10, 15, 5)), "it passes s0 twice"),
        (Path(0, 2, (0, 3, 2, 8, 13, 5)), "it leads through h1; accepted: switches"),
    ],
)
def test_what_is_no_path_is_refused(path: Path, problem: str) -> None:
    with pytest.raises(PlanError) as refusal:
        check_paths(leaf_spine(2, 2, 2), [path])
    assert f"paths.0: {problem}" in str(refusal.value)


# Who takes it


@settings(max_examples=examples(100))
@given(plans())
def test_the_simulator_takes_the_paths_of_the_plan(plan: Plan) -> None:
    program = simulated.build(plan)
    for flow, (src, dst) in enumerate(zip(program.flow_src.tolist(), program.flow_dst.tolist(), strict=True)):
        forth = program.path[program.path_start[flow] : program.path_start[flow + 1]]
        back = program.back[program.back_start[flow] : program.back_start[flow + 1]]
        assert tuple(forth.tolist()) == plan.paths.between(src, dst)
        assert tuple(back.tolist()) == plan.paths.between(dst, src)


@rest(but=2)
@one_in(2)
@pytest.mark.parametrize("network", NETWORKS)
def test_embedded_switches_take_the_paths_of_the_plan(network: str) -> None:
    plan = planned(network)
    cluster = plan.scenario.cluster
    switches = {name: DeployedSwitch(plan, name=name) for name in cluster.switches}

    def through(switch: str, port: int, frame: bytes) -> tuple[int, bytes]:
        [(leaves, sent, _)] = switches[switch].send((port, frame))
        return leaves, sent

    for job, src, dst in flows(plan):
        for version, kind in ((4, Kind.GRADIENT), (4, Kind.ACK), (6, Kind.GRADIENT)):
            links, arrived = walked(cluster, src, frame_of(cluster, job, src, dst, version, kind), through)
            assert links == plan.paths.between(src, dst)
            assert arrived[:6] == addresses_of(cluster)[dst].mac


def test_hosts_that_the_plan_does_not_know_are_still_spread_by_the_hash() -> None:
    plan = planned("2x2 with servers")
    assert (2, 3) not in {(path.src, path.dst) for path in plan.paths}
    cluster = plan.scenario.cluster
    switches = {name: DeployedSwitch(plan, name=name) for name in cluster.switches}
    sender, target = addresses_of(cluster)[0], addresses_of(cluster)[2]
    assert (0, 2) not in {(path.src, path.dst) for path in plan.paths}
    spines = set()
    for port in range(1000, 1020):
        ends = FrameEnd(sender.mac, sender.ipv4, port), FrameEnd(GATEWAY_MAC, target.ipv4, 80)
        [(leaves, _, _)] = switches["s0"].send((0, build_frame(*ends, b"plain")))
        spines.add(leaves)
    assert len(spines) == 2


def test_only_what_routes_leave_open_needs_an_entry_for_a_path() -> None:
    """In a fat-tree that are the two tiers on the way up."""
    plan = planned("fat-tree two jobs")
    wanted = prepare(plan, plan.scenario.cluster.switches, Options(), PROGRAM).wanted
    entries = {
        switch: sum(
            getattr(entity, "table", "") == "forward.ipv4_paths" for entity in entities if hasattr(entity, "key")
        )
        for switch, entities in wanted.items()
    }
    # Two hosts at an edge switch, 14 elsewhere; four in a pod, 12 elsewhere, over two aggregation switches.
    assert [entries[f"s{i}"] for i in range(8)] == [28] * 8
    assert [entries[f"s{i}"] + entries[f"s{i + 1}"] for i in range(8, 16, 2)] == [48] * 4
    assert [entries[f"s{i}"] for i in range(16, 20)] == [0] * 4


@rest()
def test_a_plan_with_more_paths_than_a_switch_has_room_for_is_refused() -> None:
    """24 hosts at one leaf talk to 700 elsewhere over two spines."""
    keys = ["cluster.topology=leaf-spine", "cluster.leaves=31", "cluster.spines=2", "cluster.hosts_per_leaf=24"]
    hosts = [f"h{i}" for i in range(31 * 24)]
    jobs = [f"job.workers={json.dumps(hosts[24:])}", f"job.servers={json.dumps(hosts[:24])}"]
    plan = make_plan(read_scenario(overrides=["job.model=alexnet", *keys, *jobs]), POLICIES["fifo"])
    with pytest.raises(PlanError, match=r"s0: the plan needs 17280 entries in forward\.ipv4_paths; accepted: at most"):
        prepare(plan, ["s0"], Options(), PROGRAM)


@needs_root
@needs_bmv2
def test_bmv2_takes_the_paths_of_the_plan() -> None:
    plan = planned("2x2 two jobs")
    cluster = plan.scenario.cluster
    deployment = prepare(plan, cluster.switches, Options(), PROGRAM)
    with ExitStack() as cleanup:
        cables = [cleanup.enter_context(cable()) for _ in range(4)]
        ends = [InterfacePort(far) for _, far in cables]
        for end in ends:
            cleanup.callback(end.close)
        assert BMV2 is not None
        bmv2 = Bmv2Switch(BMV2, [near for near, _ in cables])
        cleanup.callback(bmv2.stop)
        is_now = ""

        def through(switch: str, port: int, frame: bytes) -> tuple[int, bytes]:
            """One BMv2 is every switch in turn."""
            nonlocal is_now
            if switch != is_now:
                assert failures(deploy(deployment, [RemoteSwitch(switch, bmv2.address)])) is None
                is_now = switch
            assert ends[port].send(frame)
            ready, _, _ = select.select(ends, [], [], 30)
            [(leaves, sent)] = [(ends.index(end), sent) for end in ready for sent in end.receive(1)]
            return leaves, sent

        for job, src, dst in flows(plan):
            links, arrived = walked(cluster, src, frame_of(cluster, job, src, dst), through)
            assert links == plan.paths.between(src, dst)
            assert arrived[:6] == addresses_of(cluster)[dst].mac


@rest()
def test_a_run_sends_over_the_links_of_the_plans_paths_and_no_others(tmp_path: FilePath) -> None:
    # One worker and the server at a leaf each, so that of two spines one may stay unused on the way there or back.
    plan = small_plan(tmp_path, *TWO_BY_TWO, 'job.workers=["h0"]', 'job.servers=["h3"]', "iterations=1", scale=0.2)
    run = run_plan(plan, EmbeddedTarget(wires=True))
    used = {link for path in plan.paths for link in path.links}
    assert set(np.flatnonzero(run.trace.links["bytes"]).tolist()) == used


def kernel_hop(namespace: str, port: int, source: str, target: str) -> int:
    """Return the port on which the kernel of a switch would send a packet that came in at a port."""
    command = ["ip", "-n", namespace, "-j", "route", "get", target, "from", source, "iif", port_interface(port)]
    [route] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return int(route["dev"].removeprefix("p"))


@rest(but=1)
@needs_root
@one_in(2)
@pytest.mark.parametrize("network", ["2x2 two jobs", "fat-tree two jobs"])
@pytest.mark.parametrize("version", [4, 6])
def test_routers_of_linux_take_the_paths_of_the_plan(network: str, version: int) -> None:
    plan = planned(network, "tensorexpress", "cluster.bandwidth=100 Mbps")
    cluster = plan.scenario.cluster
    with LinuxTarget().start(plan) as running:
        for path in plan.paths:
            source, target = addresses_of(cluster)[path.src], addresses_of(cluster)[path.dst]
            ips = (source.ipv4, target.ipv4) if version == 4 else (source.ipv6, target.ipv6)

            def through(switch: str, port: int, frame: bytes, ips: tuple[object, object] = ips) -> tuple[int, bytes]:
                return kernel_hop(running.switches[switch], port, str(ips[0]), str(ips[1])), frame

            links, _ = walked(cluster, path.src, b"", through)
            assert links == path.links


@needs_root
def test_packets_between_namespaces_take_the_paths_of_the_plan() -> None:
    plan = planned("2x2 colocated", "tensorexpress", "cluster.bandwidth=100 Mbps")
    cluster, addresses = plan.scenario.cluster, addresses_of(plan.scenario.cluster)
    with ExitStack() as cleanup:
        network = cleanup.enter_context(LinuxTarget().start(plan))
        sockets = []
        for host, address in zip(cluster.hosts, addresses, strict=True):
            end = cleanup.enter_context(open_socket(network.hosts[host].namespace))
            end.bind((str(address.ipv4), UDP_PORT))
            sockets.append(end)
        for path in plan.paths:
            before = sent_bytes(network)
            sockets[path.src].sendto(bytes(SIZE), sockets[path.dst].getsockname())
            assert sockets[path.dst].recvfrom(2 * SIZE)[1] == sockets[path.src].getsockname()
            after = sent_bytes(network)
            # The kernel sends packets of its own now and then, which are shorter.
            leaving = layout(cluster)[0]
            taken = {leaving[place] for place, total in after.items() if total - before[place] > SIZE}
            assert taken == set(path.links[1:])


#: Bytes of a packet that nobody else sends.
SIZE = 8000


def sent_bytes(network: LinuxNetwork) -> dict[tuple[str, int], int]:
    return {(report.switch, report.port or 0): report.tx_bytes for report in network.report()}
