"""A network in virtual time: links that lose, repeat, reorder, damage and mark datagrams as told by a seed."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass
from random import Random

from tensorexpress.host.links import Address, Arrival
from tensorexpress.host.segments import SegmentBuffer
from tensorexpress.host.tagging import TrafficClass

DELAY_PS = 10**7


@dataclass(frozen=True)
class Faults:
    """Probabilities per datagram."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    corruption: float = 0.0
    marking: float = 0.0


FAULTLESS = Faults()


class VirtualNetwork:
    """All links of a test, the clock that they share, and what is on its way between them."""

    def __init__(self, faults: Faults = FAULTLESS, seed: int = 0):
        self.now_ps = 0
        self.faults, self.random = faults, Random(seed)
        self.on_the_way: list[tuple[int, int, Address, Address, bytes, bool]] = []
        self.order = itertools.count()
        self.links: dict[Address, VirtualLink] = {}
        self.carried = 0

    def clock_ps(self) -> int:
        return self.now_ps

    def carry(self, source: Address, target: Address, datagram: bytes) -> None:
        self.carried += 1
        chance, faults = self.random.random, self.faults
        if chance() < faults.loss:
            return
        for _ in range(1 + (chance() < faults.duplication)):
            data = datagram
            if chance() < faults.corruption:
                data = self.damaged(target, datagram)
            delay_ps = DELAY_PS * (1 + 20 * chance()) if chance() < faults.reordering else DELAY_PS
            marked = chance() < faults.marking
            event = (self.now_ps + int(delay_ps), next(self.order), source, target, data, marked)
            heapq.heappush(self.on_the_way, event)

    def damaged(self, target: Address, datagram: bytes) -> bytes:
        """Return a datagram with one bit flipped; an empty one does not arrive."""
        data = bytearray(datagram)
        data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        return bytes(data)

    def run(self, endpoints, until, most_events=20_000):
        """Let time pass until the condition holds; fail when nothing more would ever happen.

        As in a process of its own, an endpoint is given control when something has arrived or is due, or its link may
        have room again, and not before.
        """
        awake, due = list(endpoints), {}
        for _ in range(most_events):
            for endpoint in awake:
                endpoint.advance()
            if until():
                return
            due |= {endpoint: endpoint.next_event_ps() for endpoint in awake}
            times = [time for time in due.values() if time is not None]
            times += [self.on_the_way[0][0]] if self.on_the_way else []
            assert times, "nothing is on its way and nobody waits for a time: a deadlock"
            self.now_ps = max(self.now_ps, min(times))
            self.deliver()
            awake = [each for each in endpoints if self._wakes(each, due[each])]
            for endpoint in awake:
                endpoint.receive()
        raise AssertionError(f"not done after {most_events} events")

    def _wakes(self, endpoint, due_ps):
        has_arrivals, waits_for_room = bool(endpoint._link.arrived), endpoint._held is not None
        return has_arrivals or waits_for_room or (due_ps is not None and due_ps <= self.now_ps)

    def deliver(self):
        while self.on_the_way and self.on_the_way[0][0] <= self.now_ps:
            _, _, source, target, data, marked = heapq.heappop(self.on_the_way)
            if data and target in self.links:
                self.links[target].arrived.append((source, data, marked))


class VirtualLink:
    """One end; joins what has arrived from one sender as the kernel does."""

    def __init__(self, network: VirtualNetwork, address: Address):
        self.network, self.address = network, address
        self.buffer = SegmentBuffer(2**16)
        self.arrived: deque[tuple[Address, bytes, bool]] = deque()
        self.sent: list[tuple[TrafficClass, bytes]] = []
        network.links[address] = self

    def fileno(self) -> int:
        raise AssertionError("nobody waits in virtual time")

    def most_segments(self, stride_bytes: int) -> int:
        return 64

    def send(self, target: Address, traffic: TrafficClass, data: memoryview | bytes, stride_bytes: int) -> int:
        for start in range(0, len(data), stride_bytes):
            datagram = bytes(data[start : start + stride_bytes])
            self.sent.append((traffic, datagram))
            self.network.carry(self.address, target, datagram)
        return len(data)

    def send_run(self, *_: object) -> int:
        return 0

    def receive_following(self, *_: object) -> tuple[int, int]:
        return 0, 0

    def receive(self) -> Arrival | None:
        if not self.arrived:
            return None
        source, data, marked = self.arrived.popleft()
        joined, stride = bytearray(data), len(data)
        while self.arrived and len(joined) + stride < 2**16 and len(joined) % stride == 0:
            next_source, more, next_marked = self.arrived[0]
            if (next_source, next_marked) != (source, marked) or len(more) > stride:
                break
            joined += more
            self.arrived.popleft()
        self.buffer.view[: len(joined)] = joined
        return Arrival(source, 0, len(joined), stride, marked)

    def close(self) -> None:
        del self.network.links[self.address]
