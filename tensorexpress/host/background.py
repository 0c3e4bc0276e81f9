"""Other traffic of a host: datagrams that it sends at the times of the scenario, and those that it counts and drops.

It is open loop, as in the simulator: nobody acknowledges it, and nothing is sent again. It goes to a UDP port of its
own, so that neither switches nor transports take it for tensors, whatever is in it; there, only datagrams count that
say of which source of this run they are, come from its host and have its length.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tensorexpress.background import background_gaps, send_times_ps
from tensorexpress.framing import DATAGRAM_BYTES, ETHERNET_BYTES
from tensorexpress.host.links import Address, Arrival, HostLink, KernelLink
from tensorexpress.host.wire_link import WireLink
from tensorexpress.scenario import Background, Scenario
from tensorexpress.wire.header import UDP_PORT

if TYPE_CHECKING:
    from tensorexpress.host.endpoint import Endpoint

#: Where other traffic goes, beside the port of tensors.
BACKGROUND_PORT = UDP_PORT + 1

#: The shortest IP packet that a frame carries without being padded, which would make it longer than the model says.
LEAST_PACKET_BYTES = 46

#: What a datagram begins with: the session of its run, and the number of its source in the scenario.
_HEADER = struct.Struct("!II")

#: Before the key of every message.
_FIRST = (False, -math.inf)

#: What is taken of arrivals before the transport has its turn.
_MOST_ARRIVALS = 32


#: Calls an action at a time of a clock.
CallAt = Callable[[int, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Datagrams:
    """Datagrams of one source that leave together."""

    target: Address
    data: bytes
    stride_bytes: int
    wire_bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class _Source:
    target: Address
    datagram: bytes
    wire_bytes: int


class BackgroundSender:
    """Other traffic as the scheduler of a host's link sees it: always first, in the order in which it was due."""

    #: It is in no window, and counts against no credit.
    in_flight_bytes, free_of_credit, turn, deadline_ps = 0, True, 0, 0

    def __init__(self) -> None:
        self.served = 0
        #: Number of a source -> datagrams that have left.
        self.sent: Counter[int] = Counter()
        self._sources: dict[int, _Source] = {}
        self._waiting: deque[int] = deque()

    def add(self, number: int, source: _Source, times_ps: Iterator[int], call_at: CallAt) -> None:
        """Send what a source has at some times of the clock of `call_at`."""
        self._sources[number] = source
        self._await(number, times_ps, call_at)

    def _await(self, number: int, times_ps: Iterator[int], call_at: CallAt) -> None:
        for due_ps in times_ps:
            call_at(due_ps, partial(self._is_due, number, times_ps, call_at))
            return

    def _is_due(self, number: int, times_ps: Iterator[int], call_at: CallAt) -> None:
        self._waiting.append(number)
        self._await(number, times_ps, call_at)

    @property
    def full_bytes(self) -> int:
        """Bytes on the wire of the datagram that goes next."""
        return self._sources[self._waiting[0]].wire_bytes

    def head(self) -> tuple[bool, float] | None:
        """Return the key of what goes next; None when nothing is due."""
        return _FIRST if self._waiting else None

    def next_burst(self, now_ps: int, most: int) -> Datagrams:
        """Send at most `most` datagrams of the source that is first."""
        number, count = self._waiting[0], 0
        while count < most and self._waiting and self._waiting[0] == number:
            self._waiting.popleft()
            count += 1
        self.sent[number] += count
        source = self._sources[number]
        size = len(source.datagram)
        return Datagrams(source.target, source.datagram * count, size, source.wire_bytes * count, count)

    def time_out(self, now_ps: int) -> None:
        """Nothing is waited for."""


class BackgroundSink:
    """Counts what arrives of other traffic."""

    def __init__(self) -> None:
        #: Number of a source -> datagrams that have arrived.
        self.arrived: Counter[int] = Counter()
        #: Datagrams that are of no source.
        self.strangers = 0
        self._expected: dict[tuple[Address, bytes], tuple[int, int]] = {}

    def expect(self, number: int, source: Address, datagram: bytes) -> None:
        """Count the datagrams of a source."""
        self._expected[source, datagram[: _HEADER.size]] = (number, len(datagram))

    def take(self, link: HostLink, arrival: Arrival) -> None:
        """Count what has arrived in the buffer of a link."""
        end = arrival.start + arrival.size_bytes
        for start in range(arrival.start, end, arrival.stride_bytes):
            stop = min(end, start + arrival.stride_bytes)
            header = bytes(link.buffer.view[start : min(stop, start + _HEADER.size)])
            number, size = self._expected.get((arrival.source, header), (-1, -1))
            if stop - start == size:
                self.arrived[number] += 1
            else:
                self.strangers += 1


class BackgroundTraffic:
    """What a host has to do with the background traffic of a scenario."""

    def __init__(self, scenario: Scenario, host: int, addresses: Sequence[str], session: int, link: HostLink):
        """Take what comes for a host from now on, over its link or beside it."""
        self._scenario, self._host, self._addresses, self._session = scenario, host, addresses, session
        self.sender, self.sink = BackgroundSender(), BackgroundSink()
        #: Where other traffic comes in, if not over the link of the transport.
        self._beside: KernelLink | None = None
        for number, source in enumerate(scenario.background):
            if source.dst == host:
                self.sink.expect(number, (addresses[source.src], UDP_PORT), self._datagram(number, source))
        if isinstance(link, WireLink):
            link.divert(BACKGROUND_PORT, partial(self.sink.take, link))
        elif any(source.dst == host for source in scenario.background):
            self._beside = KernelLink((addresses[host], BACKGROUND_PORT))

    def _datagram(self, number: int, source: Background) -> bytes:
        return _HEADER.pack(self._session, number).ljust(source.packet_bytes - DATAGRAM_BYTES, b"\0")

    def start(self, endpoint: Endpoint, start_ps: int) -> None:
        """Send over the link of an endpoint what this host sends in a run that starts at a time of its clock."""
        if self._beside is not None:
            endpoint.watch(self._beside.fileno(), partial(self._drain, self._beside))
        endpoint.send_background(self.sender)
        gaps = background_gaps(self._scenario)
        for number, source in enumerate(self._scenario.background):
            if source.src == self._host:
                until_ps = None if source.until_ps is None else start_ps + source.until_ps
                times_ps = send_times_ps(gaps[number].tolist(), start_ps + source.at_ps, until_ps)
                target = (self._addresses[source.dst], BACKGROUND_PORT)
                wire_bytes = source.packet_bytes + ETHERNET_BYTES
                own = _Source(target, self._datagram(number, source), wire_bytes)
                self.sender.add(number, own, times_ps, endpoint.call_at)

    def _drain(self, beside: KernelLink) -> None:
        for _ in range(_MOST_ARRIVALS):
            arrival = beside.receive()
            if arrival is None:
                return
            self.sink.take(beside, arrival)

    def counts(self) -> NDArray[np.int64]:
        """Return what this host has sent and got, by (source, which of the two)."""
        numbers = range(len(self._scenario.background))
        rows = [(self.sender.sent[number], self.sink.arrived[number]) for number in numbers]
        return np.array(rows, dtype=np.int64).reshape(-1, 2)


def takes_part(scenario: Scenario, host: int) -> bool:
    """Return whether a host sends or gets background traffic."""
    return any(host in (source.src, source.dst) for source in scenario.background)
