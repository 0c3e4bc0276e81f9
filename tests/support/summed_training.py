"""Hosts that train while switches sum, in virtual time: over the reference switch, or over the P4 program itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.summing import SummingNetwork
from support.summing_switch import HashedSwitch, HashedTree, ReferenceNetwork, ReferenceSwitch, is_sum
from support.training_run import small_plan
from support.virtual_network import FAULTLESS, Faults, VirtualLink, VirtualNetwork
from tensorexpress.addresses import addresses_of
from tensorexpress.host.links import Address
from tensorexpress.host.process import jobs_of, join_job, peers_of
from tensorexpress.host.training import Station, host_settings
from tensorexpress.host.wire_link import datagram_in
from tensorexpress.host.worker import Worker
from tensorexpress.plan import Plan
from tensorexpress.policy import parse_policy
from tensorexpress.sums import SummingSwitch, SumPlan
from tensorexpress.wire.frame import FrameEnd
from tensorexpress.wire.header import UDP_PORT

LEAF_SPINE = (
    "cluster.topology=leaf-spine", "cluster.leaves=2", "cluster.spines=1", "cluster.hosts_per_leaf=2", "job.workers=4",
)  # fmt: skip

#: The same with servers: one on every leaf.
LEAF_SPINE_SERVERS = (*LEAF_SPINE[:3], "cluster.hosts_per_leaf=3", "job.workers=h0,h1,h3,h4", "job.servers=h2,h5")


def summed_plan(directory: Path, *overrides: str, policy: str = "switchml", scale: float = 0.1) -> Plan:
    """Return a plan for 3 workers whose gradients switches sum, and servers if the policy has sums end at some."""
    servers = (
        ["job.servers=2"] if parse_policy(policy).sums_end_at_servers else ["job.servers=0", "job.architecture=ring"]
    )
    usual = ["job.workers=3", *servers, "iterations=3"]
    return small_plan(directory, *usual, *overrides, policy=policy, scale=scale)


def address_of(plan: Plan, host: int) -> Address:
    return str(addresses_of(plan.scenario.cluster)[host].ipv4), UDP_PORT


def over_reference(plan: Plan, faults: Faults = FAULTLESS, seed: int = 0) -> ReferenceNetwork:
    """Return the switches of a plan: each tree in switches of its own, or all in the same where cells are shared."""
    network = ReferenceNetwork(faults, seed)
    for number, job in enumerate(plan.jobs):
        for place, tree in enumerate(job.sums):
            if tree.cells:
                _plant_hashed(plan, network, number, tree)
            else:
                _plant(plan, network, number, tree, 100 * number + place)
    return network


def _place(plan: Plan, node: int, number: int) -> Address:
    """Return the address of a host, or of a switch as it is known in a tree."""
    cluster = plan.scenario.cluster
    return address_of(plan, node) if node < len(cluster.hosts) else (cluster.nodes[node], number)


def _above(plan: Plan, tree: SumPlan, switch: SummingSwitch, number: int) -> tuple[Address, int] | None:
    """Return what is above a switch of a tree, and which child it is there."""
    if switch.up < 0:
        return None
    parent = next((each for each in tree.switches if switch.up in each.children), None)
    place = 0 if parent is None else parent.children.index(switch.up)
    return _place(plan, plan.scenario.cluster.directed().target[switch.up], number), place


def _plant(plan: Plan, network: ReferenceNetwork, job: int, tree: SumPlan, number: int) -> None:
    directed, hosts = plan.scenario.cluster.directed(), len(plan.scenario.cluster.hosts)
    slots = range(min(pool.first_slot for pool in tree.pools), max(p.first_slot + p.slots for p in tree.pools))
    for switch in tree.switches:
        children = [_place(plan, directed.source[link], number) for link in switch.children]
        own = _place(plan, hosts + switch.switch, number)
        above = _above(plan, tree, switch, number)
        ReferenceSwitch(network, own, children, above=above, job=job, slots=slots)


def _plant_hashed(plan: Plan, network: ReferenceNetwork, job: int, tree: SumPlan) -> None:
    directed, hosts = plan.scenario.cluster.directed(), len(plan.scenario.cluster.hosts)
    pools = range(tree.pools[0].first_slot, tree.pools[-1].first_slot + 1)
    workers = plan.jobs[job].job.workers

    def below(link: int) -> int:
        node = directed.source[link]
        if node < hosts:
            return 1 << workers.index(node)
        (switch,) = [each for each in tree.switches if each.switch == node - hosts]
        return sum(map(below, switch.children))

    for each in tree.switches:
        own = _place(plan, hosts + each.switch, 0)
        preempts = plan.policy.orders_in_switches
        switch = network.switches.get(own) or HashedSwitch(network, own, tree.cells, preempts=preempts)
        assert isinstance(switch, HashedSwitch)
        children = [_place(plan, directed.source[link], 0) for link in each.children]
        above = _above(plan, tree, each, 0)
        assert above is not None
        switch.join(HashedTree(job, pools, children, [below(link) for link in each.children], above))


class PipelineNetwork(VirtualNetwork):
    """Hosts behind switches that run the P4 program as a plan's controller sets it up; faults are on every link.

    What is no packet to sum goes from host to host.
    """

    def __init__(self, plan: Plan, faults: Faults = FAULTLESS, seed: int = 0):
        super().__init__(faults, seed)
        self.plan, self.switches = plan, SummingNetwork(plan)
        cluster = plan.scenario.cluster
        self._directed, self._nodes = cluster.directed(), cluster.nodes
        self._ports = {name: cluster.ports(name) for name in cluster.switches}
        self._port_of = {link: port for ports in self._ports.values() for port, link in ports.items()}
        self._addresses = [address_of(plan, host) for host in range(len(cluster.hosts))]
        self._host_of = {address: host for host, address in enumerate(self._addresses)}
        for link, target in enumerate(self._directed.target):
            self.links[self._place(link)] = _End(self, link, target)  # type: ignore[assignment]

    @staticmethod
    def _place(link: int) -> Address:
        return "link", link

    def carry(self, source: Address, target: Address, datagram: bytes) -> None:
        if source not in self._host_of or not is_sum(datagram):
            super().carry(source, target, datagram)
            return
        host = self._host_of[source]
        frame = self.switches.framed(host, datagram)
        super().carry(source, self._place(self._directed.source.index(host)), frame)

    def arrive(self, link: int, node: int, frame: bytes) -> None:
        """Take a frame at the end of a link."""
        if node < len(self._host_of):
            self._reach(node, frame)
            return
        name = self._nodes[node]
        for port, out in self.switches.pass_one(name, self._port_of[link ^ 1], frame):
            super().carry(("switch", node), self._place(self._ports[name][port]), out)

    def _reach(self, host: int, frame: bytes) -> None:
        own = self.switches.addresses[host]
        arrival = datagram_in(memoryview(frame), FrameEnd(own.mac, own.ipv4))
        link = self.links.get(self._addresses[host])
        if arrival is not None and link is not None:
            data = frame[arrival.start : arrival.start + arrival.size_bytes]
            link.arrived.append((arrival.source, data, False))


class _End:
    """The end of a link of a `PipelineNetwork`, as it is for hosts: what arrives is appended."""

    def __init__(self, network: PipelineNetwork, link: int, node: int):
        self._network, self._link, self._node = network, link, node
        self.arrived = self

    def append(self, arrival: tuple[Address, bytes, bool]) -> None:
        self._network.arrive(self._link, self._node, arrival[1])


class Training:
    """The hosts of a plan on a network with its switches."""

    def __init__(self, plan: Plan, network: VirtualNetwork, epoch: int = 5):
        self.plan, self.network, self.epoch = plan, network, epoch
        self.stations: list[Station] = []
        self.workers: list[Worker] = []
        for host in range(len(plan.scenario.cluster.hosts)):
            for job in jobs_of(plan, host):
                self._join(host, job)

    def _join(self, host: int, job: int) -> None:
        plan, names = self.plan, self.plan.scenario.cluster.hosts
        station = Station(
            names[host],
            VirtualLink(self.network, address_of(plan, host)),
            {names[peer]: address_of(plan, peer) for peer in peers_of(plan, host)},
            host_settings(plan, host, job, silence_ps=10**13),
            session=self.epoch,
            clock_ps=self.network.clock_ps,
        )
        self.stations.append(station)
        addresses = [address_of(plan, each)[0] for each in range(len(names))]
        exchange = join_job(plan, job, host, station, addresses, self.epoch)
        if exchange is None:
            return
        worker = Worker(station, plan, job, plan.jobs[job].job.workers.index(host), exchange)
        worker.start(self.network.now_ps)
        self.workers.append(worker)

    def run(self, until: Any = None, most_events: int = 10**6) -> None:
        """Run to the end, or until a condition holds."""
        endpoints: list[Any] = [station.endpoint for station in self.stations]
        is_over = until or (lambda: all(worker.done for worker in self.workers))
        self.network.run(endpoints, is_over, most_events)

    @property
    def retransmissions(self) -> int:
        return sum(station.endpoint.retransmissions for station in self.stations)
