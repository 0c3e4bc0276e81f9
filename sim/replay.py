"""Replay: recorded or made-up packets through a cluster's NICs, links and switch ports, open loop.

Ports behave as in `model.py`, to the picosecond: what arrives at an instant is there before any port chooses what to
send; arrivals at one port and instant are in order of the links they come over; only packets that wait fill a buffer.
There is no transport, so nothing is acknowledged, held back or sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import simpy
from numpy.typing import NDArray

from tensorexpress.buffer import Buffer
from tensorexpress.cluster import Cluster
from tensorexpress.errors import InputError, unknown
from tensorexpress.paths import Paths
from tensorexpress.queueing import DISCIPLINES, Discipline, Fifo, Ranks
from tensorexpress.sim.flat_plan import ARRIVE, BACKGROUND, PHASE, TRANSMIT, Ints
from tensorexpress.units import serialisation_ps

FIELDS = ("time_ps", "src", "dst", "bytes", "rank")
ENGINES = ("auto", "simpy", "fast")

#: Largest packet and most queues of a port.
MOST_BYTES = 1 << 20
MOST_QUEUES = 1024

#: Bound of ranks, times and rates, so that sums stay inside 64 bits; as a time it is 53 days.
_LARGEST = 1 << 62
_LARGEST_RATE = 1 << 59

#: The fields of the packets, each as a contiguous array.
Columns: TypeAlias = dict[str, Ints]

#: Host indices of both ends -> the directed links between them.
Route: TypeAlias = Callable[[int, int], tuple[int, ...]]

#: Arrival time of a packet that found a buffer full.
DROPPED = -1


def replay(
    cluster: Cluster,
    packets: NDArray[np.void],
    discipline: str = "fifo",
    queues: int | None = None,
    engine: str = "auto",
    paths: Paths | None = None,
) -> Ints:
    """Return when each packet arrives at its destination, in ps, or -1 if a switch port had no room for it.

    `packets` is a structured array, in any order, with the integer fields
    - time_ps: when the packet is handed to its host's NIC, which sends in order of time, then of place in the array;
    - src, dst: host indices; a packet to its own host arrives at once;
    - bytes: its size on the wire, 1 to 1048576;
    - rank: for "strict" its queue, 0 the most urgent; for other disciplines any integer, lower is more urgent; equal
      ranks keep their order. "fifo" ignores it.

    `discipline` is what switch ports do: fifo, strict, sp-pifo, pifo, or a name added to `queueing.DISCIPLINES`.
    `queues` is the number of queues of a port, by default the cluster's. `engine` is "simpy", the reference; "fast",
    which knows only the four disciplines above and needs routes that do not form a circle; or "auto", which is "fast"
    where that can be. Both give the same times. Packets take `cluster.route(src, dst)`, or the `paths` of a plan where
    they are given.

    >>> from tensorexpress.topologies import star
    >>> fields = [("time_ps", "i8"), ("src", "i4"), ("dst", "i4"), ("bytes", "i4"), ("rank", "i4")]
    >>> packets = np.array([(0, 0, 2, 1250, 0), (0, 1, 2, 1250, 0)], dtype=fields)
    >>> replay(star(hosts=3, bandwidth="10 Gbps", delay="1 us"), packets).tolist()
    [4000000, 5000000]
    """
    queues = cluster.queues if queues is None else queues
    if discipline not in DISCIPLINES:
        raise InputError(unknown("discipline", discipline, DISCIPLINES))
    if engine not in ENGINES:
        raise InputError(unknown("engine", engine, ENGINES))
    if type(queues) is not int or not 1 <= queues <= MOST_QUEUES:
        raise InputError(f"queues is {queues!r}; accepted: a whole number from 1 to {MOST_QUEUES}")
    columns = _columns(packets)
    _check_ranges(columns, len(cluster.hosts), discipline, queues)
    if len(packets) == 0:
        return np.empty(0, dtype=np.int64)
    _check_magnitude(cluster, columns)
    route = cluster.route if paths is None else paths.between
    times = columns["time_ps"]
    if not (times[1:] < times[:-1]).any():
        return _run(cluster, columns, discipline, queues, engine, route)
    order = np.argsort(times, kind="stable")
    in_order = {name: column[order] for name, column in columns.items()}
    arrival_ps = np.empty(len(packets), dtype=np.int64)
    arrival_ps[order] = _run(cluster, in_order, discipline, queues, engine, route)
    return arrival_ps


def _run(cluster: Cluster, columns: Columns, discipline: str, queues: int, engine: str, route: Route) -> Ints:
    """Replay packets that are in order of injection."""
    if engine == "simpy":
        return _Network(cluster, columns, discipline, queues, route).run()
    # Here, because to import numba takes longer than many a replay.
    from tensorexpress.sim import replay_fast

    try:
        return replay_fast.run(cluster, columns, discipline, queues, route)
    except replay_fast.NotCompiledError:
        if engine == "fast":
            raise
    return _Network(cluster, columns, discipline, queues, route).run()


def _columns(packets: NDArray[np.void]) -> Columns:
    """Return the fields of the packets, each as a contiguous array of int64."""
    if not isinstance(packets, np.ndarray) or packets.dtype.names is None or packets.ndim != 1:
        found = f"{packets.ndim}-d {packets.dtype}" if isinstance(packets, np.ndarray) else type(packets).__name__
        raise InputError(f"packets is {found}; accepted: a 1-d numpy structured array with fields {', '.join(FIELDS)}")
    columns = {}
    for name in FIELDS:
        if name not in packets.dtype.names:
            found = ", ".join(packets.dtype.names)
            raise InputError(f"packets has no field {name!r}, only {found}; accepted: the fields {', '.join(FIELDS)}")
        column = packets[name]
        if column.dtype.kind not in "iu" or column.ndim != 1:
            raise InputError(f"field {name!r} of packets is {packets.dtype[name]}; accepted: integers, such as int64")
        columns[name] = np.array(column, dtype=np.int64)
        if column.dtype.kind == "u" and column.dtype.itemsize == 8:
            # What is too large for int64 became negative; let it be found too large.
            columns[name][columns[name] < 0] = np.iinfo(np.int64).max
    return columns


def _check_ranges(columns: Columns, hosts: int, discipline: str, queues: int) -> None:
    accepted = {
        "time_ps": (0, _LARGEST),
        "src": (0, hosts - 1),
        "dst": (0, hosts - 1),
        "bytes": (1, MOST_BYTES),
    }
    ranks = DISCIPLINES[discipline].ranks
    if ranks is not Ranks.IGNORED:
        accepted["rank"] = (0, queues - 1) if ranks is Ranks.QUEUE else (-_LARGEST, _LARGEST)
    for name, (least, most) in accepted.items():
        column = columns[name]
        if len(column) and not (least <= column.min() and column.max() <= most):
            index = int(np.argmax((column < least) | (column > most)))
            raise InputError(f"packets[{index}]: {name} is {column[index]}; accepted: {least} to {most}")


def _check_magnitude(cluster: Cluster, columns: Columns) -> None:
    """Refuse what could go beyond 64 bits: times, and link rates with which sizes are multiplied."""
    fastest = max(cluster.directed().rate_bps)
    if fastest > _LARGEST_RATE:
        raise InputError(f"a link of the cluster has a rate of {fastest} bit/s; accepted: up to {_LARGEST_RATE}")
    slowest = min(cluster.directed().rate_bps)
    longest_ps = max(link.delay_ps for link in cluster.links)
    # At each hop a packet waits at the most for all others; rounding up adds a picosecond each.
    hop_ps = serialisation_ps(int(columns["bytes"].sum()), slowest) + len(columns["bytes"]) + longest_ps
    if int(columns["time_ps"].max()) + (len(cluster.switches) + 1) * hop_ps > _LARGEST:
        raise InputError(
            f"the last packet could arrive later than {_LARGEST} ps; accepted: earlier times, fewer bytes, faster links"
        )


# The reference, in SimPy.


@dataclass
class _Packet:
    index: int
    bytes: int
    rank: int
    #: The links still to go.
    links: Iterator[int]
    #: The queue in which it waits.
    queue: int = 0


class _Port:
    """The transmitter of one directed link, and the packets that wait for it."""

    def __init__(self, network: _Network, link: int, queue: Discipline, buffer: Buffer):
        self.network, self.link, self.queue, self.buffer = network, link, queue, buffer
        self.rate_bps, self.delay_ps = network.links.rate_bps[link], network.links.delay_ps[link]
        self.is_paced = network.links.paced[link]
        self.idle = True

    def enqueue(self, packet: _Packet) -> None:
        """Let the packet wait, or drop it; an idle port chooses at the end of this instant."""
        place = self.queue.place(packet.rank)
        packet.queue = place if self.queue.has_queues else 0
        if not self.buffer.take(packet.queue, packet.bytes):
            return
        self.queue.push(packet, packet.bytes, place)
        if self.idle:
            self.idle = False
            self.network.at(0, TRANSMIT, self.link).callbacks.append(self.transmit)

    def transmit(self, _: simpy.Event) -> None:
        """Send the next packet, and choose again when the link is free."""
        if not len(self.queue):
            self.idle = True
            return
        packet: _Packet = self.queue.pop()
        self.buffer.release(packet.queue, packet.bytes)
        occupied_ps = serialisation_ps(packet.bytes, self.rate_bps)
        passing_ps = 0 if self.is_paced else occupied_ps
        arrival = self.network.at(passing_ps + self.delay_ps, ARRIVE, self.link)
        arrival.callbacks.append(lambda _: self.network.forward(packet))
        self.network.at(occupied_ps, TRANSMIT, self.link).callbacks.append(self.transmit)


class _Network:
    """The ports of a cluster, and the hosts that feed them."""

    def __init__(self, cluster: Cluster, columns: Columns, discipline: str, queues: int, route: Route):
        self.env = simpy.Environment(initial_time=0)
        self.links = cluster.directed()
        made = DISCIPLINES[discipline]
        self.ports = [
            _Port(self, link, Fifo(), Buffer(0, 1))
            if source < len(cluster.hosts)
            else _Port(self, link, made(queues), Buffer(cluster.buffer_bytes, queues if made.has_queues else 1))
            for link, source in enumerate(self.links.source)
        ]
        remembered = cache(route)
        injections: list[list[tuple[int, _Packet]]] = [[] for _ in cluster.hosts]
        rows = zip(*(columns[name].tolist() for name in FIELDS), strict=True)
        for index, (time_ps, src, dst, size, rank) in enumerate(rows):
            injections[src].append((time_ps, _Packet(index, size, rank, iter(remembered(src, dst)))))
        for host, packets in enumerate(injections):
            self.env.process(self._inject(host, packets))
        self.arrival_ps = np.full(len(columns["time_ps"]), DROPPED, dtype=np.int64)

    def run(self) -> Ints:
        """Run until every packet has arrived or was dropped; return the arrival times."""
        self.env.run()
        return self.arrival_ps

    def at(self, delay_ps: int, phase: int, index: int) -> simpy.Event:
        """Return an event that happens after a delay, at its place among the events of that instant."""
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        self.env.schedule(event, priority=phase * PHASE + index, delay=delay_ps)  # type: ignore[arg-type]
        return event

    def forward(self, packet: _Packet) -> None:
        """Pass a packet on to the next port on its way; at the end of it, note the time."""
        link = next(packet.links, None)
        if link is None:
            self.arrival_ps[packet.index] = self.env.now
        else:
            self.ports[link].enqueue(packet)

    def _inject(self, host: int, packets: list[tuple[int, _Packet]]) -> Generator[simpy.Event, None, None]:
        for time_ps, packet in packets:
            yield self.at(time_ps - int(self.env.now), BACKGROUND, host)
            self.forward(packet)
