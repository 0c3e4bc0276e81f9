"""The bmv2 target: simple_switch_grpc on virtual cables, hosts in network namespaces; needs root.

BMv2 has priority queues, but no link rate that they share: it sends as fast as it can, and hosts keep to the rate of
their own links. So it shows which queue every packet gets and that all sums are exact, not what order gains.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tensorexpress import tied
from tensorexpress.addresses import addresses_of
from tensorexpress.doctor import BMV2, BMV2_VARIABLE, bmv2_options, check_bmv2, find_bmv2
from tensorexpress.errors import NetworkError
from tensorexpress.p4.define import CPU_PORT
from tensorexpress.plan import Plan
from tensorexpress.switch.traffic import ETHERNET_OVERHEAD_BYTES
from tensorexpress.target import HostAccess, KernelAccess, PortReport, namespaces
from tensorexpress.target.cabling import cables
from tensorexpress.target.controlled import check_p4runtime, control_address, kept, read_served
from tensorexpress.target.marks import private_directory

#: With them BMv2 would see frames longer than any packet, and checksums that nobody has computed.
_OFFLOADS = ("tso", "gso", "gro", "tx", "rx", "sg")

#: How long a switch may take to answer, and how long after its end it is started again.
_STARTED_S, _RESTART_S = 30.0, 0.1

#: The first switch's; it is of use to nobody, and cannot be left out.
_THRIFT_PORT = 9090

logger = logging.getLogger(__name__)


class Bmv2Network:
    """BMv2 switches that run."""

    def __init__(self, hosts: Mapping[str, HostAccess], switches: Mapping[str, _Switch]):
        self.hosts = hosts
        self.switches = switches

    @property
    def control_addresses(self) -> dict[str, str]:
        """Where the switches are controlled."""
        return {name: switch.address for name, switch in self.switches.items()}

    def report(self) -> list[PortReport]:
        """Return what all ports have seen so far, by the counters of their interfaces."""
        return [report for name, switch in self.switches.items() for report in switch.reports(name)]

    def set_rate(self, link: int, rate_bps: int) -> None:
        """Refuse: the rates of queues are set when a switch starts."""
        raise NetworkError(f"link {link} should get {rate_bps} bit/s, and BMv2 keeps the rates that it starts with")


class Bmv2Target:
    """Runs plans on BMv2."""

    name = variant = "bmv2"
    sums = True
    changes_rates = False

    @property
    def faultless(self) -> Bmv2Target:
        """This target, which makes no faults."""
        return self

    def check(self) -> None:
        """Raise an error, with what to do, when this machine cannot be this target."""
        check_p4runtime()
        namespaces.check_namespaces()
        finding = check_bmv2()
        if finding.state != "ok":
            raise NetworkError(f"target bmv2: {BMV2}: {finding.found}; install it, or name it with {BMV2_VARIABLE}")
        if shutil.which("ethtool") is None:
            raise NetworkError("target bmv2 turns offloads of interfaces off with `ethtool`; install it")

    @contextmanager
    def start(self, plan: Plan) -> Iterator[Bmv2Network]:
        """Lay cables, start a switch for every one of the plan, and put the plan on them."""
        namespaces.remove_leftovers()
        with ExitStack() as cleanup:
            # In a namespace of their own, because their Thrift ports are open to whoever can send a packet there.
            room = cleanup.enter_context(namespaces.namespace())
            hosts, interfaces = _lay(plan, room, cleanup)
            control = cleanup.enter_context(private_directory())
            switches = {
                name: _Switch(
                    room, ports, plan.scenario.cluster.queues, control_address(control, number), _THRIFT_PORT + number
                )
                for number, (name, ports) in enumerate(interfaces.items())
            }
            for switch in switches.values():
                cleanup.callback(switch.stop)
            for name, switch in switches.items():
                switch.wait_until_it_answers(name)
                switch.supervise()
            cleanup.enter_context(kept(plan, {name: switch.address for name, switch in switches.items()}))
            yield Bmv2Network(hosts, switches)


def _lay(plan: Plan, room: str, cleanup: ExitStack) -> tuple[dict[str, HostAccess], dict[str, dict[int, str]]]:
    """Lay all cables, from and into the switches' room; return how to be each host, and the interface of each port."""
    cluster = plan.scenario.cluster
    addresses = addresses_of(cluster)
    hosts: dict[str, HostAccess] = {}
    interfaces: dict[str, dict[int, str]] = {name: {} for name in cluster.switches}
    for cable in cables(plan):
        ends: tuple[str, ...]
        if cable.host is None:
            ends = cleanup.enter_context(namespaces.cable(cluster.mtu))
        else:
            address = addresses[cluster.host_index(cable.host)]
            inside, interface = cleanup.enter_context(namespaces.host(address, cluster.mtu))
            hosts[cable.host] = KernelAccess(inside, str(address.ipv4))
            _offloads_off(namespaces.INTERFACE, inside)
            ends = (interface,)
        for (switch, port), end in zip(cable.ports, ends, strict=True):
            namespaces.move(end, room)
            _offloads_off(end, room)
            interfaces[switch][port] = end
    return hosts, interfaces


def _offloads_off(interface: str, namespace: str) -> None:
    words = [word for name in _OFFLOADS for word in (name, "off")]
    command = ["ip", "netns", "exec", namespace, "ethtool", "-K", interface, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"ethtool cannot turn offloads of {interface} off: {done.stderr.strip()}")


class _Switch:
    """simple_switch_grpc as a process that ends with this one, and is started again when it ends before."""

    def __init__(self, room: str, interfaces: Mapping[int, str], queues: int, address: str, thrift_port: int):
        self._room = room
        self._interfaces = interfaces
        self.address = address
        ports = [word for number, name in sorted(interfaces.items()) for word in ("-i", f"{number}@{name}")]
        program = str(find_bmv2())
        own = ["--grpc-server-addr", self.address, "--cpu-port", str(CPU_PORT), "--priority-queues", str(queues)]
        self._command = tied.command(
            "ip", "netns", "exec", room, program, *bmv2_options(program, thrift_port), *ports, "--", *own
        )
        self._process, self._restarts = self._start(), 0
        self._stopping = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name=f"supervisor of {self.address}", daemon=True)

    @property
    def pid(self) -> int:
        """The process that forwards."""
        return self._process.pid

    def _start(self) -> subprocess.Popen[bytes]:
        return tied.start(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def supervise(self) -> None:
        """From now on start the process again, at the same address, when it ends."""
        self._supervisor.start()

    def _supervise(self) -> None:
        while True:
            self._process.wait()
            # One that ends again and again leaves time to be stopped.
            if self._stopping.wait(_RESTART_S):
                return
            logger.warning("the switch at %s has ended; it is started again", self.address)
            self._restarts += 1
            self._process = self._start()

    def wait_until_it_answers(self, name: str) -> None:
        """Wait until P4Runtime is served; NetworkError when the process ends before, or takes too long."""
        from tensorexpress.control.client import Connection, RemoteSwitch

        end = time.monotonic() + _STARTED_S
        while True:
            try:
                Connection(RemoteSwitch(name, self.address)).close()
                return
            except NetworkError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise NetworkError(
                        f"{name}: {BMV2} did not start; run it by hand with -L trace to see why"
                    ) from None

    def reports(self, name: str) -> Iterator[PortReport]:
        """Return what the switch and its ports have seen."""
        yield PortReport(name, None, 0, served=read_served(name, self.address), restarts=self._restarts)
        command = ["ip", "-n", self._room, "-j", "-s", "link", "show"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        counts = {link["ifname"]: link["stats64"] for link in json.loads(shown)}
        for number, interface in self._interfaces.items():
            tx_bytes, rx_bytes = (
                way["bytes"] + ETHERNET_OVERHEAD_BYTES * way["packets"]
                for way in (counts[interface]["tx"], counts[interface]["rx"])
            )
            yield PortReport(name, number, tx_bytes=tx_bytes, rx_bytes=rx_bytes)

    def stop(self) -> None:
        """End the process, for good."""
        self._stopping.set()
        self._process.kill()
        while self._supervisor.is_alive():  # it may just have started another one
            self._process.kill()
            self._supervisor.join(_RESTART_S)
        self._process.wait()
