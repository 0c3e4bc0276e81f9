"""The linux target: what its switches do is measured, in real namespaces where root is there."""

from __future__ import annotations

import doctest
import os
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest
from support.namespace_sockets import PATIENCE_S, mark, open_socket
from support.network import needs_root

from tensorexpress import tc
from tensorexpress.addresses import default_address
from tensorexpress.errors import InputError, NetworkError, PlanError
from tensorexpress.plan import make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.target import linux_layout, marks, namespaces
from tensorexpress.target.linux import LinuxTarget
from tensorexpress.topologies import custom, dumbbell, leaf_spine, star
from tensorexpress.wire.dscp import default_dscps, queue_of_dscp

PORT = 9000
SO_TIMESTAMPNS = 35


def plan_on(cluster, policy="tensorexpress"):
    """A plan whose network is this cluster: its first two hosts are a worker and a server."""
    scenario = read_scenario(overrides=["job.model=alexnet", "job.workers=1", "job.servers=1"])
    return make_plan(replace(scenario, cluster=cluster), parse_policy(policy))


def namespace_of(network, host):
    return network.hosts[host].namespace


@contextmanager
def ends(network, *hosts, family=socket.AF_INET):
    """Sockets on hosts, each bound to its address."""
    with ExitStack() as cleanup:
        opened = []
        for host in hosts:
            address = default_address(network.cluster.host_index(host))
            end = cleanup.enter_context(open_socket(namespace_of(network, host), family))
            end.bind((str(address.ipv4 if family == socket.AF_INET else address.ipv6), PORT))
            opened.append(end)
        yield opened


def test_examples_in_the_documentation_of_modules_are_true():
    for module in (tc, linux_layout):
        assert doctest.testmod(module).failed == 0


def test_the_commands_of_two_queues():
    commands = tc.setup("eth0", tc.Egress((40, 0), rate_bps=10**8, buffer_bytes=100_000, mtu=1500))
    shared = "rate 100000000bit burst 2500 cburst 2500 overhead 24 quantum 1514"
    own = "htb rate 8bit burst 1 ceil 100000000bit cburst 2500 prio {} overhead 24 quantum 1514"
    by_dscp = [
        line
        # CS5 and what is between it and CS6; CS6, CS7 and what is between and above them.
        for value, mask in ((40, 56), (48, 48))
        for line in (
            f"ip prio 3 u32 match u8 {value * 4:#04x} {mask * 4:#04x} at 1",
            f"ipv6 prio 2 u32 match u16 {value * 64:#06x} {mask * 64:#06x} at 0",
        )
    ]
    assert [" ".join(command) for command in commands] == [
        "tc qdisc replace dev eth0 root pfifo",
        "tc qdisc replace dev eth0 root handle 7e: htb default 2",
        f"tc class add dev eth0 parent 7e: classid 7e:ff htb {shared}",
        f"tc class add dev eth0 parent 7e:ff classid 7e:1 {own.format(0)}",
        f"tc class add dev eth0 parent 7e:ff classid 7e:2 {own.format(1)}",
        "tc qdisc add dev eth0 parent 7e:1 bfifo limit 73829",
        "tc qdisc add dev eth0 parent 7e:2 bfifo limit 73829",
        "tc filter add dev eth0 parent 7e: protocol arp prio 1 u32 match u32 0 0 flowid 7e:1",
        "tc filter add dev eth0 parent 7e: protocol ipv6 prio 2 u32 match u8 0x3a 0xff at 6 flowid 7e:1",
        *(f"tc filter add dev eth0 parent 7e: protocol {line} flowid 7e:1" for line in by_dscp),
    ]


def test_another_rate_changes_the_classes_and_nothing_else():
    egress = tc.Egress((40, 0), rate_bps=10**8, buffer_bytes=100_000, mtu=1500)
    made = [command for command in tc.setup("eth0", replace(egress, rate_bps=5 * 10**7)) if command[1] == "class"]
    changed = tc.reshape("eth0", replace(egress, rate_bps=5 * 10**7))
    assert changed == [("tc", "class", "change", *command[3:]) for command in made]
    assert len(changed) == 3


def test_without_a_rate_it_is_prio_and_without_queues_a_fifo():
    several = tc.setup("eth0", tc.Egress(default_dscps(4), rate_bps=None, buffer_bytes=0, mtu=1500))
    assert several[1][8:12] == ("prio", "bands", "4", "priomap")
    assert several[1][12:] == ("3",) * 16
    one = tc.setup("eth0", tc.Egress((0,), rate_bps=None, buffer_bytes=5000, mtu=1500))
    assert [" ".join(command) for command in one[1:]] == ["tc qdisc replace dev eth0 root handle 7e: bfifo limit 4921"]


def test_policies_that_no_dscp_can_express_are_refused():
    for policy in ("ideal", "tensorexpress:switch=sp-pifo,queues=slack"):
        with pytest.raises(PlanError, match="accepted where queues follow the DSCP: switch=fifo or switch=strict"):
            linux_layout.nodes(plan_on(star(hosts=2), policy))
    with pytest.raises(PlanError, match="at most 8"):
        linux_layout.nodes(plan_on(star(hosts=2, queues=9)))


@pytest.mark.parametrize("rate_bps", [1, 9_999, 10**12 + 1])
def test_rates_that_tc_does_not_keep_are_refused(rate_bps):
    with pytest.raises(InputError, match="accepted by tc: 10 Kbps to 1 Tbps"):
        tc.Egress(default_dscps(8), rate_bps=rate_bps, buffer_bytes=0, mtu=1500)


@pytest.mark.parametrize("device", ["", "a b", "eth0/1", "x" * 16, "eth0\nroot"])
def test_what_cannot_be_the_name_of_an_interface_is_refused(device):
    with pytest.raises(InputError, match="is no name of an interface"):
        tc.setup(device, tc.Egress(default_dscps(8), rate_bps=10**9, buffer_bytes=0, mtu=1500))


def test_every_switch_has_a_route_to_every_host_and_no_more():
    cluster = leaf_spine(leaves=2, spines=3, hosts_per_leaf=2)
    nodes = linux_layout.nodes(plan_on(cluster))
    leaf = [line for line in nodes[len(cluster.hosts)].ip if line.startswith("route add 10.")]
    assert leaf == [
        "route add 10.0.0.1/32 via 169.254.1.1 dev p0 onlink",
        "route add 10.0.0.2/32 via 169.254.1.1 dev p1 onlink",
        *(
            f"route add 10.0.0.{host}/32 "
            + " ".join(f"nexthop via 169.254.1.1 dev p{port} onlink" for port in (2, 3, 4))
            for host in (3, 4)
        ),
    ]


def test_a_link_between_namespaces_may_catch_up_with_5_ms():
    for node in linux_layout.nodes(plan_on(star(hosts=2, bandwidth="20 Mbps"))):
        classes = [line.split() for line in node.tc if line.startswith("class add")]
        assert {words[words.index("cburst") + 1] for words in classes} == {str(20_000_000 // 8 * 5 // 1000)}


NO_RIGHTS = """
import os, sys
from tensorexpress.errors import NetworkError
from tensorexpress.target.linux import LinuxTarget
if os.geteuid() == 0:
    os.setuid(65534)
try:
    LinuxTarget().check()
except NetworkError as error:
    print(error)
"""


@pytest.mark.skipif(not os.path.exists("/usr/sbin/ip") and not os.path.exists("/sbin/ip"), reason="needs iproute2")
def test_who_is_not_root_is_told_so_in_one_line():
    said = subprocess.run([sys.executable, "-c", NO_RIGHTS], capture_output=True, text=True, check=True).stdout
    assert "need root" in said
    assert said.count("\n") == 1


@needs_root
@pytest.mark.parametrize("queues", [1, 3, 8])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_every_dscp_waits_in_the_queue_that_the_wire_format_says(queues, family):
    if family == socket.AF_INET6 and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this kernel has no IPv6")
    plan = plan_on(star(hosts=2, bandwidth="1 Gbps", queues=queues), "tensorexpress" if queues > 1 else "fifo")
    with LinuxTarget().start(plan) as network, ends(network, "h0", "h1", family=family) as (sender, receiver):
        for dscp in range(64):
            mark(sender, dscp)
            sender.sendto(bytes([dscp]), receiver.getsockname())
        assert {receiver.recv(100)[0] for _ in range(64)} == set(range(64))
        report = network.report()[1]
    wanted = Counter(queue_of_dscp(dscp, default_dscps(queues)) for dscp in range(64))
    served = {queue: packets for (slot, queue), packets in report.served.items() if slot == 0}
    # A router tells its neighbours which groups it listens to, twice, as best effort.
    assert served.pop(queues - 1) - wanted.pop(queues - 1) in (0, 1, 2, 3)
    assert served == wanted
    assert not report.drops


@needs_root
def test_all_hosts_reach_each_other_over_several_switches():
    cluster = leaf_spine(leaves=2, spines=2, hosts_per_leaf=2, bandwidth="100 Mbps")
    with LinuxTarget().start(plan_on(cluster)) as network, ends(network, *cluster.hosts) as sockets:
        for sender in sockets:
            for receiver in sockets:
                sender.sendto(b"x" * 8000, receiver.getsockname())
        for receiver in sockets:
            assert {receiver.recvfrom(9000)[1] for _ in sockets} == {each.getsockname() for each in sockets}
        assert {report.switch for report in network.report()} == set(cluster.switches)
        assert not any(report.drops for report in network.report())


@needs_root
def test_hosts_without_a_switch_are_joined_directly():
    cluster = custom(["a", "b"], [], [("a", "b", "100 Mbps")])
    with LinuxTarget().start(plan_on(cluster)) as network, ends(network, "a", "b") as (left, right):
        left.sendto(b"x", right.getsockname())
        assert right.recv(10) == b"x"
        assert network.report() == []


#: What a packet of the bottleneck test weighs: payload, UDP, IPv4, Ethernet with preamble and gap.
PAYLOAD_BYTES, WIRE_BYTES, BOTTLENECK_BPS = 1400, 1400 + 8 + 20 + 38, 5_000_000


def through_a_bottleneck(policy):
    """Two hosts send at 20 times the rate of the link they share: first 150 packets of queue 7, then 60 of queue 0.

    Returns the queue and the kernel's time of every packet at the receiver.
    """
    cluster = dumbbell(left=2, right=1, bandwidth="100 Mbps", bottleneck=BOTTLENECK_BPS, mtu=1500)
    bulk, urgent = 150, 60
    with (
        LinuxTarget().start(plan_on(cluster, policy)) as network,
        ends(network, "h0", "h1", "h2") as (slow, fast, receiver),
    ):
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        for sender, queue, count, port in ((slow, 7, bulk, 0), (fast, 0, urgent, 1)):
            mark(sender, default_dscps(8)[queue])
            for _ in range(count):
                sender.sendto(bytes([queue]) * PAYLOAD_BYTES, receiver.getsockname())
            while network.report()[port].rx_bytes < count * WIRE_BYTES:
                pass
        arrivals = [receiver.recvmsg(2000, 100) for _ in range(bulk + urgent)]
        reports = network.report()
    times = [struct.unpack("qq", ancillary[0][2]) for _, ancillary, _, _ in arrivals]
    return [data[0] for data, *_ in arrivals], [s + ns / 1e9 for s, ns in times], reports


@needs_root
def test_queue_0_is_served_before_all_others():
    order, _, reports = through_a_bottleneck("tensorexpress")
    first, last = order.index(0), len(order) - 1 - order[::-1].index(0)
    waiting = order[last:].count(7)
    assert waiting > 0, "nothing was left to overtake"
    # One may be on the wire already, and one is what htb gives a class out of turn, once a minute.
    assert order[first:last].count(7) <= 2
    trunk = next(report for report in reports if report.switch == "s0" and report.port == 2)
    assert trunk.served[0, 0] == 60
    assert trunk.served[0, 7] >= 150


@needs_root
def test_under_fifo_nothing_is_overtaken():
    order, _, _ = through_a_bottleneck("fifo")
    assert order == [7] * 150 + [0] * 60


@needs_root
def test_a_link_has_its_rate():
    _, times, reports = through_a_bottleneck("tensorexpress")
    # Every packet follows the one before it by its time on the wire. The median knows neither the clock being set nor
    # a machine that was busy elsewhere.
    gap = median(later - earlier for earlier, later in pairwise(times))
    assert gap == pytest.approx(WIRE_BYTES * 8 / BOTTLENECK_BPS, rel=0.03)
    trunk = next(report for report in reports if report.switch == "s0" and report.port == 2)
    assert trunk.tx_bytes == pytest.approx(len(times) * WIRE_BYTES, rel=0.01)


@needs_root
def test_what_does_not_fit_into_the_buffer_is_dropped_and_counted():
    """The bottleneck sends a packet in 1.2 s: however long the kernel takes to forward them all, few have left."""
    buffer_bytes, bottleneck_bps = 10_000, 10_000
    cluster = dumbbell(1, 1, bandwidth="100 Mbps", bottleneck=bottleneck_bps, mtu=1500, buffer=buffer_bytes)
    with LinuxTarget().start(plan_on(cluster)) as network, ends(network, "h0", "h1") as (sender, receiver):
        start_s = time.monotonic()
        for _ in range(100):
            sender.sendto(bytes(PAYLOAD_BYTES), receiver.getsockname())
        dropped = kept = 0
        # Two packets more: that on the wire, and one ahead of its time.
        while dropped + kept < 100:
            trunk = network.report()[1]
            dropped = trunk.drops.get("buffer full", 0)
            carried_bytes = (time.monotonic() - start_s) * bottleneck_bps / 8
            kept = (buffer_bytes + carried_bytes) / WIRE_BYTES + 2
        assert 80 < dropped <= 100 + 3 - trunk.served[0, 7]


@needs_root
def test_large_sends_are_cut_before_the_first_switch():
    cluster = star(hosts=2, bandwidth="1 Gbps", mtu=1500)
    with LinuxTarget().start(plan_on(cluster)) as network, ends(network, "h0", "h1") as (sender, receiver):
        sender.sendmsg(
            [bytes(20 * 1000)], [(socket.IPPROTO_UDP, 103, struct.pack("=H", 1000))], 0, receiver.getsockname()
        )
        assert [len(receiver.recv(2000)) for _ in range(20)] == [1000] * 20
        assert network.report()[1].served[0, 7] >= 20


def namespaces_there():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


@needs_root
def test_nothing_is_left_behind_whatever_happens_inside():
    made = set()

    def fail_inside():
        with LinuxTarget().start(plan_on(star(hosts=2))) as network:
            made.update(network.switches.values(), (access.namespace for access in network.hosts.values()))
            assert made <= namespaces_there()
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_inside()
    assert len(made) == 3
    assert not made & namespaces_there()


@needs_root
def test_a_network_that_cannot_be_built_leaves_nothing_behind():
    with namespaces.namespace() as own:  # all that this process makes meanwhile has the same mark
        mark = marks.mark_of(own)
        _cannot_be_built()
        assert [name for name in namespaces_there() if marks.mark_of(name) == mark] == [own]


def _cannot_be_built():
    too_fast = replace(star(hosts=2), links=tuple(replace(link, rate_bps=10**13) for link in star(hosts=2).links))
    with pytest.raises((NetworkError, InputError)), LinuxTarget().start(plan_on(too_fast)):
        pass


STAYS = """
import sys
import time
sys.path.insert(0, sys.argv[1])
from test_linux import LinuxTarget, plan_on, star
with LinuxTarget().start(plan_on(star(hosts=2))) as network:
    print(*network.switches.values(), *(access.namespace for access in network.hosts.values()), flush=True)
    sys.stdin.read()
"""


@needs_root
def test_after_a_kill_the_next_start_cleans_up():
    with subprocess.Popen(
        [sys.executable, "-c", STAYS, os.path.dirname(__file__)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        made = set(child.stdout.readline().split())
        assert len(made) == 3
        assert made <= namespaces_there()
        child.kill()
        child.wait(PATIENCE_S)
    with LinuxTarget().start(plan_on(star(hosts=2))):
        assert not made & namespaces_there()
