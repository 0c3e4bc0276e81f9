"""What a plan wants on a switch: the entries of all controls, and the choices that a plan leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tensorexpress.addresses import HostAddress, addresses_of
from tensorexpress.cluster import Cluster
from tensorexpress.errors import PlanError
from tensorexpress.p4.define import CPU_PORT, PORTS
from tensorexpress.plan import Plan

#: Packets to the last port are dropped: so v1model has it.
_DROP_PORT = PORTS - 1


@dataclass(frozen=True)
class Options:
    """What the one who deploys decides beside the plan."""

    #: Addresses of all hosts, in their order; None gives the default ones.
    addresses: tuple[HostAddress, ...] | None = None
    #: Whether packets to the tensor port are dropped that come from a host in the name of another.
    bind_sources: bool = True
    #: What becomes of tensor packets at a port where their job has no business: "remark" to best effort, or "drop".
    strangers: str = "remark"
    #: Name of a job -> bit/s above which its packets are best effort; jobs that are not named have no limit.
    limits: Mapping[str, int] = field(default_factory=dict)
    #: What becomes of packets to unknown addresses: "drop", or "controller".
    miss: str = "drop"
    #: Whether the DSCP of packets without our header says their queue.
    trust_dscp: bool = False


@dataclass(frozen=True)
class Intent:
    """A plan, one of its switches, and the options: what the entries of every control follow from."""

    plan: Plan
    switch: str
    options: Options = Options()

    @property
    def cluster(self) -> Cluster:
        """The cluster that the switch is in."""
        return self.plan.scenario.cluster

    @cached_property
    def addresses(self) -> tuple[HostAddress, ...]:
        """Addresses of all hosts."""
        return self.options.addresses or addresses_of(self.cluster)

    @cached_property
    def port_of_link(self) -> dict[int, int]:
        """Directed link that leaves the switch -> its port."""
        ports = {link: port for port, link in self.cluster.ports(self.switch).items()}
        for port in ports.values():
            if port >= _DROP_PORT or port == CPU_PORT:
                raise PlanError(
                    f"{self.switch}: the plan has a port {port}; accepted: 0 to {_DROP_PORT - 1} without {CPU_PORT}, "
                    "which is the controller's; take smaller switches"
                )
        return ports

    @cached_property
    def host_of_port(self) -> dict[int, int | None]:
        """Port -> the host behind it, or None where another switch is."""
        target = self.cluster.directed().target
        hosts = len(self.cluster.hosts)
        return {
            port: target[link] if target[link] < hosts else None
            for link, port in sorted(self.port_of_link.items(), key=lambda item: item[1])
        }
