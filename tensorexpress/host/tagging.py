"""Tagging: for every packet of a tensor the header, the DSCP and the socket priority that a plan gives it.

docs/tagging.md shows how to tag UDP packets, how to set the DSCP of a TCP socket, and what to do where no header fits.
"""

from __future__ import annotations

import socket
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorexpress.classify import QueueMap, queue_map_of
from tensorexpress.deadline import deadlines
from tensorexpress.errors import PlanError, shown, unknown
from tensorexpress.plan import JobPlan, Plan, SlicePlan, slice_leads_ps
from tensorexpress.queueing import DISCIPLINES
from tensorexpress.sums import VALUES
from tensorexpress.wire.dscp import dscp_of_queue
from tensorexpress.wire.header import Header, Kind, clamp_slack_us, pack_many

#: The highest SO_PRIORITY that Linux gives to processes without privileges.
_HIGHEST_PRIORITY = 6


class TrafficClass(NamedTuple):
    """How a packet is marked for equipment that does not know the header."""

    dscp: int
    #: SO_PRIORITY; higher is more urgent.
    priority: int


BEST_EFFORT = TrafficClass(dscp=0, priority=0)


def traffic_class(queue: int, dscps: Sequence[int]) -> TrafficClass:
    """Return how packets of a queue are marked: a DSCP for the network, a priority for this machine's own queues.

    >>> traffic_class(0, (40, 32, 0)), traffic_class(2, (40, 32, 0))
    (TrafficClass(dscp=40, priority=2), TrafficClass(dscp=0, priority=0))
    """
    return TrafficClass(dscp_of_queue(queue, dscps), min(len(dscps) - 1 - queue, _HIGHEST_PRIORITY))


def tag_socket(tagged: socket.socket, traffic: TrafficClass, ecn: int = 0) -> None:
    """Mark all that a socket sends from now on, TCP or UDP; the packets need no header of ours for that.

    >>> with socket.socket() as connection:
    ...     tag_socket(connection, TrafficClass(dscp=40, priority=6))
    ...     connection.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2
    40
    """
    # In this order, because setting the DSCP sets the priority, too, by a table from the days of "type of service".
    if tagged.family == socket.AF_INET6:
        tagged.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, traffic.dscp << 2 | ecn)
    else:
        tagged.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, traffic.dscp << 2 | ecn)
    tagged.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, traffic.priority)


def ancillary(traffic: TrafficClass, *, ipv6: bool = False, ecn: int = 0) -> list[tuple[int, int, bytes]]:
    """Return what `sendmsg` takes to mark one packet of a UDP socket whose other packets are of other queues.

    >>> ancillary(TrafficClass(dscp=40, priority=6))[0][2]
    b'\\xa0\\x00\\x00\\x00'
    """
    value = (traffic.dscp << 2 | ecn).to_bytes(4, sys.byteorder)
    if ipv6:
        return [(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, value)]
    return [(socket.IPPROTO_IP, socket.IP_TOS, value)]


def monotonic_ps() -> int:
    """Return the time of a clock that never goes back, in picoseconds."""
    return time.monotonic_ns() * 1000


@dataclass(frozen=True, slots=True)
class Tag:
    """What all packets of a message say, and how they are sent."""

    job: int
    worker: int
    iteration: int
    tensor: int
    #: Which part of the tensor it is: any number that sender and receiver agree on, such as the slice's place.
    message: int = 0
    kind: int = Kind.GRADIENT
    queue: int = 0
    #: Number of its first packet in the tensor, and packets of the tensor.
    chunk: int = 0
    chunks: int = 1
    #: Messages to one host in one flow share a window and are sent one after the other.
    flow: int = 0
    traffic: TrafficClass = BEST_EFFORT
    #: The place of its tensor in the order in which a forward pass needs them.
    rank: int = 0
    #: When it should be there, in ps of the local clock; where the host order is `priority`, the earliest goes first.
    deadline_ps: int = 0

    def due(self, iteration: int, deadline_ps: int) -> Tag:
        """Return the same of an iteration, which is due at a time; faster than `dataclasses.replace`."""
        return Tag(
            self.job, self.worker, iteration, self.tensor, self.message, self.kind, self.queue, self.chunk,
            self.chunks, self.flow, self.traffic, self.rank, deadline_ps,
        )  # fmt: skip


class Tagger:
    """The tags of one job's packets at one sender, as a plan decides them.

    Slack counts down while an iteration proceeds. `begin` says when the iteration starts; every tensor is then due
    when the next forward pass would need it if nothing stalled. `ready` says that a gradient is there, and sets the
    deadline of its tensor anew from this moment, as the simulator does.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        job: int | str = 0,
        worker: int = 0,
        payload_bytes: int | None = None,
        clock_ps: Callable[[], int] = monotonic_ps,
    ):
        """Tag for a job of the plan, by number or name, as its worker-th sender.

        A server tags as the worker that it answers. Tensors are given by number or by the name of their layer; what
        the plan does not have is a PlanError. `payload_bytes` is what a full packet of a message carries, where that
        is not what the plan assumes.
        """
        self.job = _number("job", job, [each.job.name for each in plan.jobs])
        self.plan: JobPlan = plan.jobs[self.job]
        self.worker = _index(f"worker of {self.plan.job.name}", worker, len(self.plan.job.workers))
        self.iteration = 0
        self.payload_bytes = plan.framing.payload_bytes if payload_bytes is None else payload_bytes
        if type(self.payload_bytes) is not int or self.payload_bytes < 1:
            raise PlanError(f"payload_bytes is {shown(payload_bytes)}; accepted: a whole number of 1 or more")
        self._clock_ps = clock_ps
        self._queues: QueueMap = queue_map_of(plan)
        self._dscps = plan.dscps
        self._discipline = DISCIPLINES[plan.policy.discipline]
        layers = self.plan.job.workload.layers
        self._names = [layer.name for layer in layers]
        self._from_start_ps = deadlines([layer.forward_ps for layer in layers], [layer.backward_ps for layer in layers])
        self._deadlines_ps = [0] * len(layers)
        self._leads_ps = leads_of(self.plan)
        self._number_chunks()
        self.begin(0)

    def _number_chunks(self) -> None:
        """Number the chunks of every tensor; each slice begins a new one."""
        tensors = range(len(self.plan.ranks))
        self._slices_of: list[list[int]] = [[] for _ in tensors]
        #: Number of the first chunk of every slice in its tensor.
        self._first_chunk: list[int] = []
        self._chunks = [0 for _ in tensors]
        for index, piece in enumerate(self.plan.slices):
            self._slices_of[piece.tensor].append(index)
            self._first_chunk.append(self._chunks[piece.tensor])
            self._chunks[piece.tensor] += max(1, -(-piece.bytes // self._bytes_per_packet(piece)))
        self._starts = [[self._first_chunk[index] for index in own] for own in self._slices_of]

    def begin(self, iteration: int, start_ps: int | None = None) -> None:
        """Begin an iteration whose forward pass starts now, or at another time of the clock."""
        start = self._clock_ps() if start_ps is None else start_ps
        self.iteration = iteration
        self._deadlines_ps = [start + after for after in self._from_start_ps]

    def number(self, tensor: int | str) -> int:
        """Return the number of a tensor of the plan, which is given by number or by the name of its layer."""
        return _number("tensor", tensor, self._names)

    def ready(self, tensor: int | str, at_ps: int | None = None) -> None:
        """Note that the gradient of a tensor is there now, or was at another time of the clock."""
        at = self._clock_ps() if at_ps is None else at_ps
        number = self.number(tensor)
        self._deadlines_ps[number] = at + self.plan.slack_ps[number]

    def chunks(self, tensor: int | str) -> int:
        """Return how many packets a tensor takes."""
        return self._chunks[self.number(tensor)]

    def first_chunk(self, index: int) -> int:
        """Return the number of a slice's first packet in its tensor, by the slice's place in the plan."""
        return self._first_chunk[self._slice(index)]

    def _slice(self, index: int) -> int:
        return _index("slice", index, len(self.plan.slices))

    def slice_of(self, tensor: int | str, chunk: int) -> int:
        """Return the place in the plan of the slice that a packet belongs to."""
        number = self.number(tensor)
        if not _is_index(chunk, self._chunks[number]):
            raise PlanError(f"chunk {shown(chunk)} of tensor {number}; accepted: 0 to {self._chunks[number] - 1}")
        return self._slices_of[number][bisect_right(self._starts[number], chunk) - 1]

    def deadline_ps(self, index: int) -> int:
        """Return when a slice should be there, by the clock: what comes after it in its tensor needs time, too."""
        return self.tensor_deadline_ps(self.plan.slices[self._slice(index)].tensor) - self._leads_ps[index]

    def tensor_deadline_ps(self, tensor: int) -> int:
        """Return when all of a tensor should be there, by the clock."""
        return self._deadlines_ps[tensor]

    def slack_us(self, tensor: int | str, chunk: int = 0) -> int:
        """Return the time that is left for a packet; negative when it is late."""
        return clamp_slack_us(self.deadline_ps(self.slice_of(tensor, chunk)) - self._clock_ps())

    def queue(self, tensor: int | str) -> int:
        """Return the queue to ask for: that of the plan, best effort where the policy gives switches no order.

        Where switches rank by slack there is no queue to ask for; the plan's own map is the next best.
        """
        number = self.number(tensor)
        chosen = self._queues.queue_of_tensor(Header(self.job, self.worker, 0, tensor=number, chunk=0, chunks=1))
        return self.plan.queues[number] if chosen is None else chosen

    def traffic_class(self, tensor: int | str) -> TrafficClass:
        """Return DSCP and socket priority of a tensor's packets."""
        return traffic_class(self.queue(tensor), self._dscps)

    def flow_class(self, tensor: int | str) -> int:
        """Return which of the flows to a host a tensor belongs to: by what the discipline tells apart."""
        return self._discipline.class_of(self.queue(tensor), self.number(tensor))

    def header(self, tensor: int | str, chunk: int, payload_bytes: int, kind: Kind = Kind.GRADIENT) -> Header:
        """Return the header of one packet that is sent now."""
        number = self.number(tensor)
        return Header(
            job=self.job,
            worker=self.worker,
            iteration=self.iteration,
            tensor=number,
            chunk=chunk,
            chunks=self._chunks[number],
            queue=self.queue(number),
            slack_us=self.slack_us(number, chunk),
            payload_bytes=payload_bytes,
            kind=kind,
        )

    def tag(self, index: int, kind: Kind = Kind.GRADIENT) -> Tag:
        """Return what the transport needs to send a slice of the plan as one message."""
        tensor = self.plan.slices[self._slice(index)].tensor
        return Tag(
            job=self.job,
            worker=self.worker,
            iteration=self.iteration,
            tensor=tensor,
            message=index,
            kind=kind,
            queue=self.queue(tensor),
            chunk=self._first_chunk[index],
            chunks=self._chunks[tensor],
            flow=self.flow_class(tensor),
            traffic=self.traffic_class(tensor),
            rank=self.plan.ranks[tensor],
            deadline_ps=self.deadline_ps(index),
        )

    def headers(self, tensor: int | str, kind: Kind = Kind.GRADIENT) -> NDArray[np.void]:
        """Return the headers of all packets of a tensor in one call, as records of `wire.header.HEADER_DTYPE`."""
        number = self.number(tensor)
        now_ps, own = self._clock_ps(), self._slices_of[number]
        sizes = [self._chunk_sizes(index) for index in own]
        slacks = [clamp_slack_us(self.deadline_ps(index) - now_ps) for index in own]
        return pack_many(
            job=self.job,
            worker=self.worker,
            iteration=self.iteration,
            tensor=number,
            chunk=np.arange(self._chunks[number]),
            chunks=self._chunks[number],
            queue=self.queue(number),
            slack_us=np.repeat(slacks, [len(each) for each in sizes]),
            payload_bytes=np.concatenate(sizes),
            kind=int(kind),
        )

    def _chunk_sizes(self, index: int) -> NDArray[np.int64]:
        """Return the payload of every packet of a slice: full ones, and what is left in the last."""
        size, full = self.plan.slices[index].bytes, self._bytes_per_packet(self.plan.slices[index])
        sizes = np.full(max(1, -(-size // full)), full, dtype=np.int64)
        sizes[-1] = size - (len(sizes) - 1) * full
        return sizes

    def _bytes_per_packet(self, piece: SlicePlan) -> int:
        """Return how many bytes of a slice a full packet carries: where switches sum it, those of 256 values."""
        return VALUES * self.plan.job.workload.bytes_per_param if piece.summed else self.payload_bytes


def leads_of(plan: JobPlan) -> list[int]:
    """Return how long before its tensor each slice of a job is due."""
    return slice_leads_ps(plan) if plan.transfer_ps else [0] * len(plan.slices)


def _number(what: str, given: int | str, names: Sequence[str]) -> int:
    """Return the number of something that is given by number or by name; PlanError where there is no such thing."""
    if isinstance(given, str):
        if names.count(given) > 1:
            raise PlanError(f"{what} {shown(given)} is the name of {names.count(given)}; accepted: a number")
        if given not in names:
            raise PlanError(unknown(what, given, names))
        return names.index(given)
    return _index(what, given, len(names), " or a name")


def _index(what: str, given: int, count: int, or_else: str = "") -> int:
    if not _is_index(given, count):
        raise PlanError(f"{what} {shown(given)}; accepted: 0 to {count - 1}{or_else}")
    return int(given)


def _is_index(given: object, count: int) -> bool:
    """Whether this is a number from 0 to below a count; numpy's integers are fine, True is not."""
    return isinstance(given, int | np.integer) and not isinstance(given, bool) and 0 <= int(given) < count
