"""The compiled engine of `replay.py`: one port after the other, each in a few passes over its packets.

Without a transport nothing flows back, so what reaches a port depends only on the ports before it. A stream is what
passes from one link to the next, in order of time: a port merges the streams that enter it, serves the packets, and
appends them to the streams that leave it. This needs an order of the ports in which every stream is complete before
it is read, and there is none where routes go round in a circle.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import gcd
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numba
import numpy as np
from numba.extending import intrinsic

from tensorexpress.buffer import shares
from tensorexpress.cluster import Cluster
from tensorexpress.errors import SimulationError
from tensorexpress.queueing import DISCIPLINES, Fifo, Pifo, StrictPriority
from tensorexpress.sim.flat_plan import Ints
from tensorexpress.units import PS_PER_SECOND

#: Host indices of both ends -> the directed links between them.
Route: TypeAlias = Callable[[int, int], tuple[int, ...]]

#: The disciplines that the engine knows.
FIFO, STRICT, PIFO = Fifo.code, StrictPriority.code, Pifo.code

NONE = -1

#: Pairs of hosts for which a table is made; where there could be more, those that occur are sorted instead.
MOST_PAIRS = 1 << 22

types: Any = numba.types

_Function = TypeVar("_Function", bound=Callable[..., Any])


class NotCompiledError(SimulationError):
    """Something that only the SimPy engine can replay; use engine="simpy" or "auto"."""


class ReplayMemory(NamedTuple):
    """The arrays of int64 that the compiled functions share. Packets are in order of injection."""

    time_ps: Ints
    src: Ints
    bytes: Ints
    rank: Ints
    #: When each packet reached its destination; NONE until then.
    arrival_ps: Ints
    #: Where in `route` the packet's next stream stands; NONE for a packet to its own host.
    place: Ints
    #: The streams that lead from one host to another, one pair of hosts after the other.
    route: Ints
    #: A row of `ReplayWire` for each host's NIC, and when each is free again.
    nics: Ints
    free_ps: Ints
    #: Stream s is the entries start[s] to end[s] - 1 of the next two; the streams into one port are neighbours.
    start: Ints
    end: Ints
    stream_ps: Ints
    stream_packet: Ints
    #: Room for the packets of one port while its streams are merged.
    spare_ps: Ints
    spare_packet: Ints
    #: Queues are linked lists: what comes after each arrival and, behind these, what each queue begins with.
    following: Ints
    tail: Ints
    #: SP-PIFO's, for each queue.
    bounds: Ints
    #: What waits in each queue.
    queue_bytes: Ints


class Arrivals(NamedTuple):
    """What arrives at one port, in order of time or in several runs that are."""

    time_ps: Ints
    packet: Ints


class ReplayWire(NamedTuple):
    """A directed link, which carries `per_bytes` bytes in `ps` picoseconds."""

    ps: int
    per_bytes: int
    delay_ps: int
    #: Whether a packet is there after the delay alone, as `cluster.Link` has it.
    is_paced: int
    #: Whether it ends at a host.
    is_last: int


WIRE_COLUMNS = len(ReplayWire._fields)


class ReplayPort(NamedTuple):
    """The port of a switch."""

    discipline: int
    queues: int
    #: As `buffer.Shares` has them.
    own_bytes: int
    common_bytes: int
    #: The streams that enter, in order of the links they come from.
    first_stream: int
    streams: int


def _compiled(function: _Function) -> _Function:
    """Compile on first use, keep the result on disk, and let other threads run meanwhile."""
    return cast(_Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def _pointers(context: Any, addresses: Any) -> Any:
    element = types.CPointer(types.int64)
    result = types.NamedUniTuple(element, addresses.count, addresses.instance_class)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        as_pointer = context.get_value_type(element)
        values = [builder.extract_value(arguments[0], index) for index in range(addresses.count)]
        return context.make_tuple(builder, result, [builder.inttoptr(value, as_pointer) for value in values])

    return result(addresses), generate


#: Turns a named tuple of addresses into one of bare pointers, which compile and run much faster than arrays.
pointers: Any = intrinsic(_pointers)


@_compiled
def transmit(memory: ReplayMemory, wire: ReplayWire, packet: int, start_ps: int) -> int:
    """Send a packet to the far end of a wire; return when the wire is free again."""
    size = memory.bytes[packet]
    # At most rates a byte takes a whole number of picoseconds, and a division takes long.
    occupied_ps = size * wire.ps if wire.per_bytes == 1 else (size * wire.ps + wire.per_bytes - 1) // wire.per_bytes
    free_ps: int = start_ps + occupied_ps
    arrives_ps = wire.delay_ps + (start_ps if wire.is_paced else free_ps)
    if wire.is_last:
        memory.arrival_ps[packet] = arrives_ps
    else:
        stream = memory.route[memory.place[packet]]
        memory.place[packet] += 1
        entry = memory.end[stream]
        memory.end[stream] = entry + 1
        memory.stream_ps[entry] = arrives_ps
        memory.stream_packet[entry] = packet
    return free_ps


@_compiled
def inject(addresses: ReplayMemory, packets: int) -> None:
    """Send all packets through the NICs of their hosts."""
    memory: ReplayMemory = pointers(addresses)
    nics, free_ps = memory.nics, memory.free_ps
    for packet in range(packets):
        if memory.place[packet] == NONE:
            memory.arrival_ps[packet] = memory.time_ps[packet]
            continue
        host = memory.src[packet]
        nic = WIRE_COLUMNS * host
        wire = ReplayWire(nics[nic], nics[nic + 1], nics[nic + 2], nics[nic + 3], nics[nic + 4])
        free_ps[host] = transmit(memory, wire, packet, max(free_ps[host], memory.time_ps[packet]))


@_compiled
def serve(addresses: ReplayMemory, port: ReplayPort, wire: ReplayWire) -> None:
    """Do all that one port does."""
    memory: ReplayMemory = pointers(addresses)
    begin = memory.start[port.first_stream]
    for stream in range(port.first_stream, port.first_stream + port.streams):
        memory.start[stream] -= begin
        memory.end[stream] -= begin
    arrivals: Arrivals = pointers(Arrivals(addresses.stream_ps + 8 * begin, addresses.stream_packet + 8 * begin))
    spare = Arrivals(memory.spare_ps, memory.spare_packet)
    runs = port.streams
    while runs > 1:
        runs = merge_pairs(memory, port.first_stream, runs, arrivals, spare)
        arrivals, spare = spare, arrivals
    if port.discipline == FIFO:
        serve_in_order(memory, port, wire, memory.end[port.first_stream], arrivals)
    else:
        serve_by_rank(memory, port, wire, memory.end[port.first_stream], arrivals, spare.time_ps)


@_compiled
def merge_pairs(memory: ReplayMemory, first: int, runs: int, arrivals: Arrivals, merged: Arrivals) -> int:
    """Merge runs 0 and 1, 2 and 3, ... and return how many that makes; at equal times the left run is first."""
    times, packets = arrivals
    merged_ps, merged_packet = merged
    out = 0
    for left in range(0, runs, 2):
        i, i_end = memory.start[first + left], memory.end[first + left]
        j = j_end = 0
        if left + 1 < runs:
            j, j_end = memory.start[first + left + 1], memory.end[first + left + 1]
        memory.start[first + (left >> 1)] = out
        while i < i_end and j < j_end:
            # Selected rather than branched on: half of the branches would be mispredicted.
            is_right = times[j] < times[i]
            entry = j if is_right else i
            j += is_right
            i += not is_right
            merged_ps[out], merged_packet[out] = times[entry], packets[entry]
            out += 1
        if i == i_end:
            i, i_end = j, j_end
        for entry in range(i, i_end):
            merged_ps[out], merged_packet[out] = times[entry], packets[entry]
            out += 1
        memory.end[first + (left >> 1)] = out
    return (runs + 1) >> 1


@_compiled
def serve_in_order(memory: ReplayMemory, port: ReplayPort, wire: ReplayWire, count: int, arrivals: Arrivals) -> None:
    """Send packets in order of arrival. Those kept take the place of those arrived, with the times of their starts."""
    times, packets = arrivals
    free_ps = backlog_bytes = kept = oldest = 0
    for arrived in range(count):
        packet, arrival_ps = packets[arrived], times[arrived]
        # Nothing waits any more once it has started, but at the same instant arrivals come first.
        while oldest < kept and times[oldest] < arrival_ps:
            backlog_bytes -= memory.bytes[packets[oldest]]
            oldest += 1
        backlog_bytes += memory.bytes[packet]
        if backlog_bytes > port.common_bytes:
            backlog_bytes -= memory.bytes[packet]
            continue
        start_ps = max(free_ps, arrival_ps)
        packets[kept], times[kept] = packet, start_ps
        kept += 1
        free_ps = transmit(memory, wire, packet, start_ps)


@_compiled
def serve_by_rank(
    memory: ReplayMemory, port: ReplayPort, wire: ReplayWire, count: int, arrivals: Arrivals, ranks: Ints
) -> None:
    """Send packets as the discipline chooses. A PIFO uses `following` and `ranks` as a heap."""
    times, packets = arrivals
    following, tail, bounds, queue_bytes = memory.following, memory.tail, memory.bounds, memory.queue_bytes
    for queue in range(port.queues):
        bounds[queue] = queue_bytes[queue] = 0
        tail[queue] = count + queue
        following[count + queue] = NONE
    waiting = common_bytes = now_ps = arrived = 0
    while arrived < count or waiting:
        if waiting == 0:
            now_ps = max(now_ps, times[arrived])
        # What arrives at the very instant at which the port chooses takes part.
        while arrived < count and times[arrived] <= now_ps:
            packet = packets[arrived]
            queue = 0 if port.discipline == PIFO else choose_queue(port, bounds, memory.rank[packet])
            held = queue_bytes[queue]
            after = held + memory.bytes[packet]
            beyond = max(0, after - port.own_bytes) - max(0, held - port.own_bytes)
            if common_bytes + beyond <= port.common_bytes:
                if port.discipline == PIFO:
                    push_sorted(following, ranks, waiting, arrived, memory.rank[packet])
                else:
                    following[tail[queue]] = arrived
                    following[arrived] = NONE
                    tail[queue] = arrived
                common_bytes += beyond
                queue_bytes[queue] = after
                waiting += 1
            arrived += 1
        if waiting == 0:
            continue
        queue = 0
        if port.discipline == PIFO:
            chosen = pop_sorted(following, ranks, waiting)
        else:
            head = count
            while following[head] == NONE:
                head += 1
            chosen = following[head]
            following[head] = following[chosen]
            queue = head - count
            if following[head] == NONE:
                tail[queue] = head
        waiting -= 1
        held = queue_bytes[queue]
        after = held - memory.bytes[packets[chosen]]
        common_bytes -= max(0, held - port.own_bytes) - max(0, after - port.own_bytes)
        queue_bytes[queue] = after
        now_ps = transmit(memory, wire, packets[chosen], now_ps)


@_compiled
def choose_queue(port: ReplayPort, bounds: Ints, rank: int) -> int:
    """Return the queue that a packet joins; SP-PIFO's bounds follow."""
    if port.discipline == STRICT:
        return rank
    for queue in range(port.queues - 1, -1, -1):
        if rank >= bounds[queue]:
            bounds[queue] = rank
            return queue
    inversion = bounds[0] - rank
    for queue in range(port.queues):
        bounds[queue] -= inversion
    return 0


@_compiled
def push_sorted(heap: Ints, ranks: Ints, count: int, item: int, rank: int) -> None:
    """Add to a binary heap of `count` an item that goes after others of its rank."""
    at = count
    while at > 0:
        parent = (at - 1) >> 1
        if ranks[parent] <= rank:
            break
        heap[at], ranks[at] = heap[parent], ranks[parent]
        at = parent
    heap[at], ranks[at] = item, rank


@_compiled
def pop_sorted(heap: Ints, ranks: Ints, count: int) -> int:
    """Remove from a binary heap of `count` the item of the lowest rank, and of equal ranks the lowest item."""
    first: int = heap[0]
    last = count - 1
    item, rank = heap[last], ranks[last]
    at = 0
    while 2 * at + 1 < last:
        child, other = 2 * at + 1, 2 * at + 2
        if other < last and (
            ranks[other] < ranks[child] or (ranks[other] == ranks[child] and heap[other] < heap[child])
        ):
            child = other
        if rank < ranks[child] or (rank == ranks[child] and item < heap[child]):
            break
        heap[at], ranks[at] = heap[child], ranks[child]
        at = child
    heap[at], ranks[at] = item, rank
    return first


class Routes(NamedTuple):
    """The ways from host to host that packets take."""

    #: Pair of hosts of each packet, and packets of each pair.
    pair_of: Ints
    packets: Ints
    #: Directed links of each pair; none for a host to itself.
    links: list[tuple[int, ...]]
    #: What passes from a link to a link, by the second and then by the first.
    streams: list[tuple[int, int]]


def find_routes(hosts: int, src: Ints, dst: Ints, route: Route) -> Routes:
    """Return the routes of packets between these hosts."""
    pair_of = src * hosts + dst
    if hosts * hosts > MOST_PAIRS:
        pairs, pair_of, packets = np.unique(pair_of, return_inverse=True, return_counts=True)
    else:
        packets = np.bincount(pair_of, minlength=hosts * hosts)
        pairs = np.flatnonzero(packets)
        number = np.cumsum(packets > 0) - 1
        pair_of, packets = number[pair_of], packets[pairs]
    links = [route(*divmod(pair, hosts)) for pair in pairs.tolist()]
    streams = {step for path in links for step in pairwise(path)}
    return Routes(pair_of, packets, links, sorted(streams, key=lambda step: step[::-1]))


def port_order(routes: Routes) -> list[int]:
    """Return the links that streams enter, in an order in which every stream is written before it is read."""
    before: dict[int, list[int]] = {}
    for source, link in routes.streams:
        before.setdefault(link, []).append(source)
    try:
        order = TopologicalSorter(before).static_order()
        return [link for link in order if link in before]
    except CycleError:
        raise NotCompiledError(
            "the routes of these packets form a circle, which engine 'fast' cannot replay; use engine='simpy'"
        ) from None


def run(cluster: Cluster, columns: dict[str, Ints], discipline: str, queues: int, route: Route) -> Ints:
    """Return the arrival times in ps of packets that are in order of injection; NONE for those dropped.

    The columns are time_ps, src, dst, bytes and rank, contiguous.
    """
    code = DISCIPLINES[discipline].code
    if code is None:
        known = ", ".join(name for name, each in DISCIPLINES.items() if each.code is not None)
        raise NotCompiledError(f"engine 'fast' knows {known}; use engine='simpy' for discipline {discipline!r}")
    routes = find_routes(len(cluster.hosts), columns["src"], columns["dst"], route)
    order = port_order(routes)
    wires = _wires(cluster)
    memory = _memory(routes, _nics(cluster, wires), columns, queues)
    addresses = ReplayMemory(*[cast(Any, array.ctypes.data) for array in memory])
    inject(addresses, len(memory.time_ps))
    into = [link for _, link in routes.streams]
    room = shares(cluster.buffer_bytes, queues if DISCIPLINES[discipline].has_queues else 1)
    for link in order:
        first = bisect_left(into, link)
        streams = bisect_right(into, link) - first
        port = ReplayPort(code, queues, *room, first, streams)
        serve(addresses, port, wires[link])
    return memory.arrival_ps


def _wires(cluster: Cluster) -> list[ReplayWire]:
    directed = cluster.directed()
    wires = []
    for rate_bps, delay_ps, paced, target in zip(
        directed.rate_bps, directed.delay_ps, directed.paced, directed.target, strict=True
    ):
        common = gcd(8 * PS_PER_SECOND, rate_bps)
        is_last = int(target < len(cluster.hosts))
        wires.append(ReplayWire(8 * PS_PER_SECOND // common, rate_bps // common, delay_ps, int(paced), is_last))
    return wires


def _nics(cluster: Cluster, wires: list[ReplayWire]) -> Ints:
    nics = np.zeros((len(cluster.hosts), WIRE_COLUMNS), dtype=np.int64)
    for wire, source in zip(wires, cluster.directed().source, strict=True):
        if source < len(cluster.hosts):
            nics[source] = wire
    return nics


def _memory(routes: Routes, nics: Ints, columns: dict[str, Ints], queues: int) -> ReplayMemory:
    number = {stream: index for index, stream in enumerate(routes.streams)}
    route = np.array([number[step] for path in routes.links for step in pairwise(path)], dtype=np.int64)
    hops = np.array([len(path) for path in routes.links], dtype=np.int64)
    streams = np.maximum(hops - 1, 0)
    first = np.where(hops > 0, np.cumsum(streams) - streams, NONE)
    entries = np.zeros(len(routes.streams), dtype=np.int64)
    np.add.at(entries, route, np.repeat(routes.packets, streams))
    start = np.cumsum(entries) - entries
    into = np.array([link for _, link in routes.streams], dtype=np.int64)
    largest_port = int(np.bincount(into, entries).max(initial=0))

    def room(length: int) -> Ints:
        return np.empty(length, dtype=np.int64)

    return ReplayMemory(
        time_ps=columns["time_ps"],
        src=columns["src"],
        bytes=columns["bytes"],
        rank=columns["rank"],
        arrival_ps=np.full(len(routes.pair_of), NONE, dtype=np.int64),
        place=first[routes.pair_of],
        route=route,
        nics=nics,
        free_ps=np.zeros(len(nics), dtype=np.int64),
        start=start,
        end=start.copy(),
        stream_ps=room(int(entries.sum())),
        stream_packet=room(int(entries.sum())),
        spare_ps=room(largest_port),
        spare_packet=room(largest_port),
        following=room(largest_port + queues),
        tail=room(queues),
        bounds=room(queues),
        queue_bytes=room(queues),
    )
