"""Targets: what can run a plan with real hosts and a real network. One small interface; each cleans up after itself.

embedded.py     the embedded P4 switch: hosts in network namespaces over veth as root, over UDP wires otherwise
bmv2.py         simple_switch_grpc on veth, hosts in network namespaces
linux.py        no P4 at all: namespaces joined by Linux, whose egress queues by DSCP with `tc`
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from tensorexpress.plan import Plan
from tensorexpress.switch.counted import BUFFER_FULL, NOT_TAKEN


@dataclass(frozen=True, slots=True)
class KernelAccess:
    """A host with a network stack of its own: a UDP socket on its address, in a namespace."""

    #: What `ip netns` calls it.
    namespace: str
    address: str


@dataclass(frozen=True, slots=True)
class WireAccess:
    """A host that speaks Ethernet frames through a UDP wire to its switch; needs no root."""

    #: The host's end of the wire, by its descriptor in this process.
    descriptor: int
    mac: bytes
    address: str
    gateway_mac: bytes
    #: Whether its frames say when they were sent (`wire.udp.stamped`).
    stamped: bool = False


HostAccess = KernelAccess | WireAccess

#: Why packets are dropped for want of room: a queue was full, or the kernel or the switch could not keep up with what
#: arrived at the next node. For any other reason a packet is as good as lost on its link.
BACKLOG_FULL = "backlog full"
NO_ROOM = (BUFFER_FULL, BACKLOG_FULL, NOT_TAKEN)


@dataclass(frozen=True, slots=True)
class PortReport:
    """What a switch's port saw during a run."""

    switch: str
    #: None: the switch as a whole, for what is not counted by port.
    port: int | None
    #: Bytes on the wire, preamble and gap included.
    tx_bytes: int
    #: Reason -> packets.
    drops: Mapping[str, int] = field(default_factory=dict)
    #: Kind -> frames that were harmed on purpose when they came in.
    faults: Mapping[str, int] = field(default_factory=dict)
    #: (slot, queue) -> packets served, where the target can count them; slot n is job n - 1, slot 0 all other traffic.
    served: Mapping[tuple[int, int], int] = field(default_factory=dict)
    #: Bytes on the wire that came in, where the target can count them.
    rx_bytes: int = 0
    #: Of a switch as a whole: how often it has ended and was started again.
    restarts: int = 0


class Network(Protocol):
    """A network that runs: what `Target.start` gives while it is entered."""

    #: Name of a host of the plan -> how to be that host.
    hosts: Mapping[str, HostAccess]

    @property
    def control_addresses(self) -> Mapping[str, str]:
        """Where P4Runtime is served, by the name of a switch; nowhere on a target without P4 switches."""
        ...

    def report(self) -> list[PortReport]:
        """Return what the ports of all switches have seen so far."""
        ...

    def set_rate(self, link: int, rate_bps: int) -> None:
        """Give a directed link another rate, as far as hosts do not keep to it anyway; where `Target.changes_rates`."""
        ...


class Target(Protocol):
    """A way to run plans."""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        ...

    @property
    def variant(self) -> str:
        """What its speed depends on beside the machine: the name, and how it is the target here."""
        ...

    @property
    def faultless(self) -> Target:
        """The same target without the faults that its switches make on purpose."""
        ...

    @property
    def sums(self) -> bool:
        """Whether its switches can sum gradients on their way."""
        ...

    @property
    def changes_rates(self) -> bool:
        """Whether links can get other rates while they are used."""
        ...

    def check(self) -> None:
        """Raise NetworkError, with what to do, when this machine cannot be this target."""
        ...

    def start(self, plan: Plan) -> AbstractContextManager[Network]:
        """Build the network of a plan and put the plan on its switches; leave nothing behind on the way out."""
        ...
