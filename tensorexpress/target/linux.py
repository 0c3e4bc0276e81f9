"""The linux target: no P4. Hosts and switches are network namespaces; switches route, and `tc` queues by DSCP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorexpress import tc
from tensorexpress.addresses import addresses_of
from tensorexpress.cluster import Cluster
from tensorexpress.doctor import check_qdisc
from tensorexpress.errors import NetworkError
from tensorexpress.plan import Plan
from tensorexpress.switch.counted import BUFFER_FULL
from tensorexpress.target import BACKLOG_FULL, HostAccess, KernelAccess, PortReport, namespaces
from tensorexpress.target.linux_device import run_tool
from tensorexpress.target.linux_layout import FORWARDING, cables, egresses, nodes, port_interface


class LinuxNetwork:
    """Namespaces that are joined as a cluster says."""

    def __init__(self, plan: Plan, hosts: Mapping[str, HostAccess], names: Sequence[str]):
        """Take namespaces that are ready, by their names: those of hosts, then those of switches."""
        self.cluster = cluster = plan.scenario.cluster
        self._names, self._egresses = names, egresses(plan)
        switches = dict(zip(cluster.switches, names[len(cluster.hosts) :], strict=True))
        self.hosts = hosts
        self.switches = switches
        # While one end of a cable is up and the other not yet, the kernel may already try to send.
        self._lost_before = {
            switch: {interface: counts["tx"]["dropped"] for interface, counts in _link_counts(name).items()}
            for switch, name in switches.items()
        }

    @property
    def control_addresses(self) -> dict[str, str]:
        """Return nothing: kernels forward here."""
        return {}

    def report(self) -> list[PortReport]:
        """Return what the ports of all switches have seen so far.

        Linux does not look for our header, so all packets count as those of slot 0.
        """
        return [report for switch in self.switches for report in self._reports(switch)]

    def set_rate(self, link: int, rate_bps: int) -> None:
        """Give a directed link another rate."""
        interface, egress = self._egresses[link]
        commands = tc.reshape(interface, replace(egress, rate_bps=rate_bps))
        namespace = self._names[self.cluster.directed().source[link]]
        run_tool("tc", "-n", namespace, "-batch", "-", lines=[" ".join(command[1:]) for command in commands])

    def _reports(self, switch: str) -> Iterator[PortReport]:
        namespace = self.switches[switch]
        queue_counts = tc.queue_counts(run_tool("tc", "-n", namespace, "-s", "-j", "qdisc", "show"))
        link_counts = _link_counts(namespace)
        for port in self.cluster.ports(switch):
            interface = port_interface(port)
            queues, link = queue_counts[interface], link_counts[interface]
            drops = {
                BUFFER_FULL: sum(count.drops for count in queues.values()),
                BACKLOG_FULL: link["tx"]["dropped"] - self._lost_before[switch][interface],
            }
            yield PortReport(
                switch=switch,
                port=port,
                tx_bytes=sum(tc.wire_bytes(count.bytes, count.packets) for count in queues.values()),
                rx_bytes=tc.wire_bytes(link["rx"]["bytes"], link["rx"]["packets"]),
                drops={reason: packets for reason, packets in drops.items() if packets},
                served={(0, queue): count.packets for queue, count in sorted(queues.items())},
            )


def _link_counts(namespace: str) -> dict[str, Any]:
    """Return the kernel's counters of every interface of a namespace."""
    links = json.loads(run_tool("ip", "-n", namespace, "-s", "-j", "link", "show"))
    return {link["ifname"]: link["stats64"] for link in links}


class LinuxTarget:
    """Runs plans whose queues follow the DSCP: those with switch=strict or switch=fifo."""

    name = variant = "linux"
    sums = False
    changes_rates = True

    @property
    def faultless(self) -> LinuxTarget:
        """This target, which makes no faults."""
        return self

    def check(self) -> None:
        """Raise NetworkError, with what to do, when this machine cannot be this target."""
        namespaces.check_namespaces()
        htb = check_qdisc("htb")
        if htb.state != "ok":
            raise NetworkError(f"target linux needs the qdisc htb: {htb.found}; {htb.remedy}")

    @contextmanager
    def start(self, plan: Plan) -> Iterator[LinuxNetwork]:
        """Build the network of a plan; what dead processes left behind is removed first."""
        self.check()
        cluster, layout = plan.scenario.cluster, nodes(plan, ipv6=Path("/proc/net/if_inet6").exists())
        namespaces.remove_leftovers()
        with ExitStack() as cleanup:
            names = [cleanup.enter_context(namespaces.namespace()) for _ in layout]
            for name in names[len(cluster.hosts) :]:
                _forward(name)
            namespaces.ip(cables(cluster, names))
            for name, node in zip(names, layout, strict=True):
                namespaces.ip(node.ip, name)
                namespaces.ip(node.ipv6_rules, name, ipv6=True)
                run_tool("tc", "-n", name, "-batch", "-", lines=node.tc)
            yield LinuxNetwork(plan, _hosts(cluster, names), names)


def _forward(namespace: str) -> None:
    """Make a namespace a router; what this kernel does not have is left out."""
    settings = [f"test ! -e /proc/sys/{name} || echo {value} > /proc/sys/{name}" for name, value in FORWARDING.items()]
    run_tool("ip", "netns", "exec", namespace, "sh", "-e", "-c", "\n".join(settings))


def _hosts(cluster: Cluster, names: list[str]) -> dict[str, HostAccess]:
    addresses = addresses_of(cluster)
    return {host: KernelAccess(names[index], str(addresses[index].ipv4)) for index, host in enumerate(cluster.hosts)}
