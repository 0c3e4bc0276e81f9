"""The scheduler of a host: which flow or pool sends next, by host order, within the credit and at the link's rate."""

from __future__ import annotations

from tensorexpress.host.background import BackgroundSender, Datagrams
from tensorexpress.host.flow import Burst, SendFlow
from tensorexpress.host.pool import Contribution, PoolSender
from tensorexpress.host.sum_server import SumServer
from tensorexpress.queueing import HOST_ORDERS, Slice
from tensorexpress.units import PS_PER_MS, PS_PER_SECOND, serialisation_ps

#: A host that had something to send and was not run in time may catch up with this much of its link's time.
CATCH_UP_PS = 50 * PS_PER_MS

#: What waits to be sent: to a host, through slots of a switch, or as answer to what went through these.
Sender = SendFlow | PoolSender | SumServer

#: The same, and what nobody acknowledges.
AnySender = Sender | BackgroundSender


class Scheduler:
    """Chooses bursts over all flows of a host, as `Host.next_packet` of `sim/model.py` chooses packets."""

    def __init__(
        self, host_order: str = "fifo", credit_bytes: int = 0, rate_bps: int = 0, *, weighs_turns: bool = False
    ):
        self._key = HOST_ORDERS[host_order].key
        self._credit_bytes, self._rate_bps, self._weighs_turns = credit_bytes, rate_bps, weighs_turns
        #: Flows that have something to send or in flight; a dict, because it keeps the order and finds quickly.
        self._active: dict[AnySender, None] = {}
        self._served = 0
        #: When the link has sent what it was given, and whether nothing waited for that; only with a rate.
        self._free_ps, self._is_idle = 0, True
        #: When the burst that was chosen last had to leave; None: without a rate, at once.
        self.left_ps: int | None = None

    def set_rate(self, rate_bps: int) -> None:
        """Send at another rate from now on; what was sent occupies the link as long as it did."""
        self._rate_bps = rate_bps

    def key_of(self, piece: Slice) -> int:
        """Return what the host order sorts a slice by."""
        return self._key(piece)

    def activate(self, flow: AnySender) -> None:
        """Consider a flow or pool that has been offered something."""
        self._active[flow] = None

    @property
    def in_flight_bytes(self) -> int:
        """Bytes on the wire over all flows that are neither acknowledged nor given up."""
        return sum(flow.in_flight_bytes for flow in self._active)

    def next_burst(self, now_ps: int, most: int) -> Burst | Contribution | Datagrams | None:
        """Send at most `most` segments of the most urgent message that may be sent; None when none may."""
        heads = [
            (*head, flow.served, place, flow)
            for place, flow in enumerate(self._active)
            if (head := flow.head()) is not None
        ]
        if not heads:
            self._is_idle = True
            return None
        if self._rate_bps:
            if now_ps < self._free_ps:
                self._is_idle = False
                return None
            # Time of the link that nobody wanted is over; that for which we were not awake is made up for.
            self._free_ps = max(self._free_ps, now_ps - (0 if self._is_idle else CATCH_UP_PS))
        # Equal keys take turns: the flow that was served longest ago goes first, or the one whose turn is next.
        flow: AnySender = min(heads)[-1]
        most = min(most, self._room(flow, now_ps))
        if most < 1:
            self._is_idle = True
            return None
        self._is_idle = False
        if self._weighs_turns:
            self._served = max(self._served, flow.served)
            flow.served = self._served + flow.turn
        else:
            self._served += 1
            flow.served = self._served
        burst = flow.next_burst(now_ps, most)
        if self._rate_bps:
            self.left_ps = self._free_ps
            self._free_ps += serialisation_ps(burst.wire_bytes, self._rate_bps)
        if self._credit_bytes and isinstance(burst, Burst) and self._room(flow, now_ps) < 1:
            burst.asks = True
        return burst

    def _room(self, flow: AnySender, now_ps: int) -> int:
        """Return how many full segments of a flow credit and link let through now; credit never holds a probe back."""
        room, full_bytes = 1 << 30, flow.full_bytes
        if self._credit_bytes and not flow.free_of_credit:
            in_flight = self.in_flight_bytes
            room = max((self._credit_bytes - in_flight) // full_bytes, 0 if in_flight else 1)
        if self._rate_bps:
            late_bytes = (now_ps - self._free_ps) * self._rate_bps // (8 * PS_PER_SECOND)
            room = min(room, max(1, late_bytes // full_bytes))
        return room

    def retire(self, flow: Sender) -> None:
        """Leave out a flow that has nothing left to do, or nobody to do it for."""
        self._active.pop(flow, None)

    def time_out(self, now_ps: int) -> None:
        """Let every time-out strike that is due."""
        for flow in self._active:
            flow.time_out(now_ps)

    def next_timeout_ps(self) -> int | None:
        """Return when the next time-out strikes."""
        return min((flow.deadline_ps for flow in self._active if flow.in_flight_bytes), default=None)

    def next_free_ps(self, now_ps: int) -> int | None:
        """Return when the link is free, which may have been, if something waits for just that."""
        waiting = [flow for flow in self._active if flow.head() is not None] if self._rate_bps else []
        if not waiting or self._room(max(waiting, key=lambda flow: flow.free_of_credit), now_ps) < 1:
            return None
        return self._free_ps
