"""The embedded target: a plan on embedded P4 switches, one process each.

As root, hosts are network namespaces on virtual cables. Otherwise hosts and switches exchange frames in datagrams on
loopback (UDP wires), which needs nothing. Links between switches are always wires.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

from tensorexpress.addresses import GATEWAY_MAC, addresses_of
from tensorexpress.classify import deployment_of
from tensorexpress.cluster import Cluster
from tensorexpress.emulation import emulated_delay_ps
from tensorexpress.errors import TensorExpressError
from tensorexpress.plan import Plan
from tensorexpress.program_engines import AUTO
from tensorexpress.queueing import Deployment
from tensorexpress.switch.emulated_cable import CableSettings
from tensorexpress.switch.faults import Faults
from tensorexpress.switch.link import LinkClosedError
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.switch.ports import InterfaceSpec, PortSpec, SocketSpec
from tensorexpress.switch.running import RunningSwitch
from tensorexpress.switch.traffic import ETHERNET_OVERHEAD_BYTES, PortSettings
from tensorexpress.target import HostAccess, KernelAccess, PortReport, WireAccess, namespaces
from tensorexpress.target.cabling import cables
from tensorexpress.target.controlled import check_p4runtime, control_address, kept, read_served
from tensorexpress.target.marks import private_directory
from tensorexpress.wire.udp import lay_wire

logger = logging.getLogger(__name__)

NAME = "embedded"


@dataclass(frozen=True)
class EmbeddedTarget:
    """Runs plans on embedded switches."""

    #: UDP wires to hosts, or, where not, veth and namespaces; None: whatever this process may make.
    wires: bool | None = None
    faults: Faults = field(default_factory=Faults)
    #: What the program of switches runs in: `program_engines.ENGINES`.
    engine: str = AUTO
    name: str = NAME
    sums: bool = True
    changes_rates: bool = True

    @property
    def in_namespaces(self) -> bool:
        """Whether hosts are network namespaces on virtual cables."""
        return namespaces.may_make_namespaces() and not self.wires

    @property
    def variant(self) -> str:
        """The name, how hosts are joined to switches, and what these run their program in."""
        return f"{self.name} {'veth' if self.in_namespaces else 'wires'} {self.engine}"

    @property
    def faultless(self) -> EmbeddedTarget:
        """The same target whose switches make no faults."""
        return replace(self, faults=Faults())

    def check(self) -> None:
        """Raise an error, with what to do, when P4Runtime is not installed, or veth wanted and not to be had."""
        check_p4runtime()
        if self.wires is False:
            namespaces.check_namespaces()

    def start(self, plan: Plan) -> AbstractContextManager[EmbeddedNetwork]:
        """Start switches and cables, and put the plan on the switches."""
        return _network(plan, self)


class EmbeddedNetwork:
    """Embedded switches that run."""

    def __init__(self, cluster: Cluster, hosts: Mapping[str, HostAccess], switches: Mapping[str, SupervisedSwitch]):
        self.hosts = hosts
        self.switches = switches
        self._ports = {link: (name, port) for name in switches for port, link in cluster.ports(name).items()}

    @property
    def control_addresses(self) -> dict[str, str]:
        """Where the switches are controlled."""
        return {name: switch.address for name, switch in self.switches.items()}

    def report(self) -> list[PortReport]:
        """Return what all ports have seen since their switch was last started."""
        return [report for name, switch in self.switches.items() for report in _reports(name, switch)]

    def set_rate(self, link: int, rate_bps: int) -> None:
        """Give a directed link another rate, if it leaves a switch."""
        if link in self._ports:
            switch, port = self._ports[link]
            self.switches[switch].set_rate(port, rate_bps)


def _reports(name: str, switch: SupervisedSwitch) -> Iterator[PortReport]:
    statistics = switch.running.data_path.statistics()
    yield PortReport(name, None, 0, served=read_served(name, switch.address), restarts=switch.restarts)
    for number in switch.settings.ports:
        port = statistics.ports[number]
        yield PortReport(
            name,
            number,
            tx_bytes=port.tx_bytes + ETHERNET_OVERHEAD_BYTES * port.tx_frames,
            rx_bytes=port.rx_bytes + ETHERNET_OVERHEAD_BYTES * port.rx_frames,
            drops=port.drops,
            faults=statistics.faults.get(number, {}),
        )


class SupervisedSwitch:
    """A switch that is started again, at the same address, when its forwarding process ends."""

    def __init__(self, settings: LoopSettings, address: str):
        self.settings, self.address = settings, address
        #: How often it was started again.
        self.restarts = 0
        self._stopping, self._changing = False, threading.Lock()
        self.running = RunningSwitch(settings, address)
        self._supervisor = threading.Thread(target=self._supervise, name=f"supervisor of {self.address}", daemon=True)
        self._supervisor.start()

    def _supervise(self) -> None:
        while True:
            self.running.wait()
            with self._changing:
                if self._stopping:
                    return
                logger.warning("the switch at %s has ended; it is started again", self.address)
                self.running.stop()
                self.restarts += 1
                try:
                    self.running = RunningSwitch(self.settings, self.address)
                except TensorExpressError as error:
                    logger.error("the switch at %s cannot be started again: %s", self.address, error)
                    return

    def set_rate(self, port: int, rate_bps: int) -> None:
        """Give a port another rate, which it keeps when the switch is started again."""
        with self._changing:
            spec, queues = self.settings.ports[port]
            changed = {**self.settings.ports, port: (spec, replace(queues, rate_bps=rate_bps))}
            self.settings = replace(self.settings, ports=changed)
            # One that has just ended is started again, with the new rate.
            with suppress(LinkClosedError):
                self.running.data_path.set_rate(port, rate_bps)

    def stop(self) -> None:
        """End both processes of the switch, for good."""
        with self._changing:  # the supervisor may just be starting another one
            self._stopping = True
            self.running.stop()
        self._supervisor.join()


@contextmanager
def _network(plan: Plan, target: EmbeddedTarget) -> Iterator[EmbeddedNetwork]:
    with ExitStack() as cleanup:
        hosts, ports = _lay(plan, target, cleanup)
        control = cleanup.enter_context(private_directory())
        switches, emulated = {}, emulated_cables(plan, wires=not target.in_namespaces)
        for number, (name, specs) in enumerate(ports.items()):
            faults = faults_of(plan, target.faults, number)
            settings = LoopSettings(specs, faults=faults, engine=target.engine, cables=emulated.get(name, {}))
            switches[name] = SupervisedSwitch(settings, control_address(control, number))
            cleanup.callback(switches[name].stop)
        cleanup.enter_context(kept(plan, {name: switch.address for name, switch in switches.items()}))
        for switch in switches.values():  # what is measured shares the machine with no compiler
            switch.running.data_path.wait_for_code()
        yield EmbeddedNetwork(plan.scenario.cluster, hosts, switches)


_Ports = dict[str, dict[int, tuple[PortSpec, PortSettings]]]


def _lay(plan: Plan, target: EmbeddedTarget, cleanup: ExitStack) -> tuple[dict[str, HostAccess], _Ports]:
    """Lay all cables; return how to be each host, and the ports of each switch."""
    cluster = plan.scenario.cluster
    if target.in_namespaces:
        namespaces.remove_leftovers()
    addresses = addresses_of(cluster)
    hosts: dict[str, HostAccess] = {}
    ports: _Ports = {name: {} for name in cluster.switches}
    for cable in cables(plan):
        ends: list[PortSpec]
        if cable.host is not None and target.in_namespaces:
            address = addresses[cluster.host_index(cable.host)]
            inside, interface = cleanup.enter_context(namespaces.host(address, cluster.mtu))
            hosts[cable.host] = KernelAccess(inside, str(address.ipv4))
            ends = [InterfaceSpec(interface)]
        else:
            here, there = (cleanup.enter_context(end) for end in lay_wire())
            ends = [SocketSpec(here.fileno()), SocketSpec(there.fileno())]
            if cable.host is not None:
                address = addresses[cluster.host_index(cable.host)]
                stamped = emulated_delay_ps(cable.link, NAME) > 0
                hosts[cable.host] = WireAccess(there.fileno(), address.mac, str(address.ipv4), GATEWAY_MAC, stamped)
        for (switch, number), spec in zip(cable.ports, ends, strict=False):
            rate_bps = cable.link.rates_bps[switch == cable.link.b]
            ports[switch][number] = (spec, port_settings(plan, rate_bps))
    return hosts, ports


def emulated_cables(plan: Plan, *, wires: bool) -> dict[str, dict[int, CableSettings]]:
    """Return what switches emulate of the cables at their ports: every direction of a link is one switch's to do.

    Of a delay, that is the switch at which it arrives, or to a host the one from which it leaves. Frames on `wires`
    carry the time at which they were sent, so those that set out late are not late at the switch. Losses strike what
    arrives at switches (`faults_of`), so that what is left for a cable is what it carries to a host.
    """
    found: dict[str, dict[int, CableSettings]] = {}
    for cable in cables(plan):
        delay_ps, has_host = emulated_delay_ps(cable.link, NAME), cable.host is not None
        for switch, number in cable.ports:
            settings = CableSettings(
                arriving_ps=delay_ps,
                leaving_ps=delay_ps if has_host else 0,
                arriving_stamped=delay_ps > 0 and (wires or not has_host),
                leaving_stamped=delay_ps > 0 and not has_host,
                leaving_loss=plan.scenario.loss if has_host else 0.0,
                seed=_seed_of(plan, plan.scenario.cluster.switches.index(switch)),
            )
            if not settings.is_plain:
                found.setdefault(switch, {})[number] = settings
    return found


def faults_of(plan: Plan, faults: Faults, switch: int) -> Faults:
    """Return what strikes frames that arrive at a switch: some faults, and the losses of the plan's links."""
    loss = plan.scenario.loss
    if not loss:
        return faults
    return replace(faults, loss=1 - (1 - faults.loss) * (1 - loss), seed=_seed_of(plan, switch))


def _seed_of(plan: Plan, switch: int) -> int:
    """Return a seed for the losses at a switch; ports tell themselves apart."""
    return plan.scenario.seed << 16 | switch


def port_settings(plan: Plan, rate_bps: int) -> PortSettings:
    """Return the queues of a port as the plan's cluster and policy want them.

    Where ranks follow the slack, the P4 program chooses the queue, and the port serves queues by strict priority.
    """
    cluster = plan.scenario.cluster
    return PortSettings(
        rate_bps=rate_bps,
        discipline="fifo" if deployment_of(plan) is Deployment.ONE_QUEUE else "strict",
        queues=cluster.queues,
        buffer_bytes=cluster.buffer_bytes,
    )
