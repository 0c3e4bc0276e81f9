"""What a switch counts at its ports, and the reasons for which it drops packets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorexpress.switch.traffic import EgressPort, PortSettings

#: Names of the reasons for which a packet is dropped.
NO_PROGRAM = "no program"
INGRESS_DROP = "dropped by ingress"
EGRESS_DROP = "dropped by egress"
BUFFER_FULL = "buffer full"
NO_QUEUE = "priority without queue"
NO_PORT = "no such port"
NO_GROUP = "unknown multicast group"
NO_SESSION = "unknown clone session"
LOOP = "loop"
#: Copies and rounds that one arriving frame may not cause any more.
ALLOWANCE = "allowance of the frame used up"
#: Too many packets wait to pass the program again.
TOO_MANY_ROUNDS = "too many packets go round"
#: Packets that wait take all the memory that the switch has for them.
NO_MEMORY = "no memory left"
FAILED = "failed"
RELOADED = "program replaced"
#: On purpose, where links of a scenario lose packets.
LOST_ON_CABLE = "lost on the cable"
REFUSED = "refused by the interface"
#: Frames that arrived faster than the switch took them; the kernel had no room left, and no program has seen them.
NOT_TAKEN = "receive buffer full"


@dataclass(frozen=True, slots=True)
class PortStatistics:
    """What one port has seen since the switch started."""

    rx_frames: int
    rx_bytes: int
    tx_frames: int
    tx_bytes: int
    #: Reason -> packets. What was not taken or dropped by ingress counts at the port of arrival, all else at that of
    #: departure.
    drops: Mapping[str, int]
    #: Packets that wait now, and the most bytes that ever waited, by queue.
    depths: tuple[int, ...]
    deepest_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a switch has seen since it started, by port."""

    ports: Mapping[int, PortStatistics] = field(default_factory=dict)
    #: Reason -> packets that were dropped at numbers that no port has, all of these numbers together.
    drops: Mapping[str, int] = field(default_factory=dict)
    #: Kind of exception -> packets whose processing raised it: errors of ours, never of the frame's sender.
    failures: Mapping[str, int] = field(default_factory=dict)
    #: Notices that the controlling process was too slow to take.
    dropped_notices: int = 0
    #: Port -> kind -> frames that faults on purpose struck when they arrived there.
    faults: Mapping[int, Counter[str]] = field(default_factory=dict)


class CountedPort(EgressPort):
    """A port of a switch: its queues and its counters."""

    __slots__ = ("attached", "drops", "number", "rx_bytes", "rx_frames", "tx_bytes", "tx_frames", "unlimited")

    def __init__(self, number: int, settings: PortSettings, attached: bool):
        super().__init__(settings)
        self.number = number
        self.attached = attached
        self.unlimited = settings.rate_bps is None
        self.rx_frames = self.rx_bytes = self.tx_frames = self.tx_bytes = 0
        self.drops: Counter[str] = Counter()

    def statistics(self) -> PortStatistics:
        """Return the counters as they are now."""
        return PortStatistics(
            rx_frames=self.rx_frames,
            rx_bytes=self.rx_bytes,
            tx_frames=self.tx_frames,
            tx_bytes=self.tx_bytes,
            drops=dict(self.drops),
            depths=self.depths,
            deepest_bytes=tuple(self.deepest_bytes),
        )
