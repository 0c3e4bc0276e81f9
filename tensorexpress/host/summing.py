"""A host's part in a job whose gradients switches sum: a worker sends every gradient up and gets the sum down.

It takes the place of `exchange.Exchange` for what switches sum: what is sent when is for the pools. Where sums end at
servers, a server's host takes what the switches have summed, and answers; it may be a worker's as well. A layer of
which some slices are messages is complete when both parts of the exchange have theirs (`WholeLayers`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensorexpress.errors import NetworkError
from tensorexpress.fixed_point import FLOAT_TYPES, Floats
from tensorexpress.graph import delays_ps
from tensorexpress.host.exchange import Updated
from tensorexpress.host.gradients import Tensors, elements_of, gradients_of
from tensorexpress.host.links import Address
from tensorexpress.host.pool import Membership, PoolSender, Summed
from tensorexpress.host.sum_server import Service, SumServer
from tensorexpress.host.tagging import Tag, Tagger
from tensorexpress.host.training import Station, slice_tags
from tensorexpress.host.worker import Exchanging
from tensorexpress.plan import JobPlan, Plan
from tensorexpress.recovery import newer_sums_of
from tensorexpress.slots import round_trip_ps
from tensorexpress.sums import VALUE_BYTES, VALUES, SumPlan, packets_of, turns
from tensorexpress.wire.header import Kind


class _Update:
    """The sum of a tensor, of which not all packets are here."""

    __slots__ = ("elements", "first_sum_ps", "missing", "ready_ps")

    def __init__(self, elements: int, packets: int, ready_ps: int):
        self.elements: Floats = np.empty(elements, dtype=np.float32)
        self.missing = packets
        #: When the worker had its gradient, and when the first sum came; -1 before.
        self.ready_ps, self.first_sum_ps = ready_ps, -1


class _PoolOrder:
    """Whose turn it is in a pool: tensors go through it in one order, in whichever they become ready."""

    def __init__(self, pool: PoolSender):
        self.pool = pool
        self._offered = 0
        self._ready: dict[int, tuple[Tag, int]] = {}

    def ready(self, tag: Tag, ready_ps: int) -> Iterator[tuple[Tag, int]]:
        """Take a tensor that is ready; yield those whose turn it now is, with when they were."""
        self._ready[tag.tensor] = tag, ready_ps
        tensors = self.pool.pool.tensors
        while (tensor := tensors[self._offered % len(tensors)]) in self._ready:
            self._offered += 1
            yield self._ready.pop(tensor)


class PoolExchange:
    """What one worker's host does for one job between gradients and parameters, where switches sum."""

    def __init__(
        self,
        station: Station,
        plan: Plan,
        job: int,
        host: int,
        *,
        target: Address,
        epoch: int,
        tensors: Tensors | None = None,
    ):
        """Send to any address beyond the switch; `epoch` tells this run of the job from those before."""
        self._station, self._plan, self._job = station, plan.jobs[job], job
        layers, workers = self._plan.job.workload.layers, self._plan.job.workers
        self._elements = _summed_elements(self._plan)
        self._tensors = tensors or gradients_of(self._plan, plan.scenario.seed)
        member = Membership(
            job=job,
            worker=workers.index(host),
            workers=len(workers),
            child=0,
            layers=tuple(layer.name for layer in layers),
            epoch=epoch,
            rto_min_ps=plan.scenario.transport.rto_min_ps,
            newer_sums=newer_sums_of(plan.policy),
        )
        self.pools = [
            PoolSender(pool, replace(member, child=child_number(plan, tree, host)), by_hash=bool(tree.cells), turn=turn)
            for tree, turn in zip(self._plan.sums, turns(self._plan.sums), strict=True)
            for pool in tree.pools
        ]
        #: Several where a tensor is split over servers.
        self._orders_of: dict[int, list[_PoolOrder]] = defaultdict(list)
        for order in map(_PoolOrder, self.pools):
            for tensor in order.pool.pool.tensors:
                self._orders_of[tensor].append(order)
        self._sent, self._received = self._own_messages(host)
        self._iterations = [0] * len(self._plan.ranks)
        self._updates: dict[tuple[int, int], _Update] = {}
        self._left = plan.scenario.rounds * len(self._elements)
        self._tags = _tags(plan, job)
        station.play(self, job, Kind.SUM)
        station.endpoint.sum_through(job, self.pools, target, self._summed)

    @property
    def done(self) -> bool:
        """Whether all sums of the run are here."""
        return self._left == 0

    def join(self, worker: int, tagger: Tagger, updated: Updated) -> None:
        """Let the worker of this host take part: its tagger knows deadlines, and it is told of updates."""
        self._worker, self._tagger, self._updated = worker, tagger, updated

    def gradient_ready(self, worker: int, tensor: int, ready_ps: int) -> None:
        """Send what switches sum of a worker's gradient, if there is any."""
        if tensor not in self._elements:
            return
        iteration, own = self._iterations[tensor], self._orders_of[tensor]
        self._iterations[tensor] += 1
        packets = sum(order.pool.packets_of(tensor) for order in own)
        self._updates[iteration, tensor] = _Update(self._elements[tensor], packets, ready_ps)
        tag = self._tags[tensor]
        tag = replace(tag, iteration=iteration, deadline_ps=self._tagger.deadline_ps(tag.message))
        for order in own:
            for ready, its_ready_ps in order.ready(tag, ready_ps):
                self._contribute(worker, order.pool, ready, its_ready_ps)

    def _contribute(self, worker: int, pool: PoolSender, tag: Tag, ready_ps: int) -> None:
        first, count = pool.pool.start_of(tag.tensor), pool.packets_of(tag.tensor)
        own = slice(first * VALUES, min((first + count) * VALUES, self._elements[tag.tensor]))
        gradient = self._tensors.of(worker, tag.iteration, tag.tensor, own)
        self._station.endpoint.contribute(pool, replace(tag, chunks=count), gradient, ready_ps)

    # As a role of its station: no messages come for it

    def buffer_for(self, source: str, tag: Tag, size: int) -> Any:
        """Refuse a message."""
        return None

    def delivered(self, source: str, tag: Tag) -> None:
        """Raise an error: what was refused cannot be complete."""
        raise AssertionError("nobody sends messages where switches sum")

    # Sums

    def _summed(self, summed: Summed) -> None:
        """Put the sum of a packet into its place; tell the worker if it was the last of its tensor."""
        iteration, tensor = summed.iteration, summed.tensor
        update, now_ps = self._updates[iteration, tensor], self._station.now_ps()
        if update.first_sum_ps < 0:
            update.first_sum_ps = now_ps
        part = update.elements[summed.packet * VALUES : (summed.packet + 1) * VALUES]
        part[:] = FLOAT_TYPES["fp32"].rounded(summed.values)[: len(part)]
        update.missing -= 1
        if update.missing:
            return
        del self._updates[iteration, tensor]
        self._deliver(iteration, tensor, update.elements)
        self._note(iteration, tensor, update, summed.first_sent_ps, now_ps)
        self._left -= 1
        self._updated(tensor, now_ps)

    def _deliver(self, iteration: int, tensor: int, found: Floats) -> None:
        """Give the worker an update; NetworkError if it is not the sum of all gradients, or no number at all."""
        name = self._plan.job.workload.layers[tensor].name
        if not np.isfinite(found).all():
            raise NetworkError(
                f"{self._station.name}: in iteration {iteration}, the sum of {name} is too large for float32; "
                "scale the loss down"
            )
        if wrong := self._tensors.deliver(self._worker, iteration, tensor, 0, found):
            raise NetworkError(
                f"{self._station.name}: in iteration {iteration}, {name} from the switch is not the sum of all "
                f"gradients: {wrong}"
            )

    # What the plan says of this host

    def _own_messages(self, host: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Return the numbers of the messages that leave and that reach the worker of this host, by tensor."""
        graph = self._plan.graph
        sent: dict[int, list[int]] = defaultdict(list)
        received: dict[int, list[int]] = defaultdict(list)
        for own, numbers in (
            (graph.under_way & (graph.src == host) & ~graph.brings_sums, sent),
            (graph.under_way & (graph.dst == host) & graph.brings_sums, received),
        ):
            for number in np.flatnonzero(own).tolist():
                numbers[int(graph.tensor[number])].append(number)
        return sent, received

    def _note(self, iteration: int, tensor: int, update: _Update, sent_ps: int, now_ps: int) -> None:
        """Note what this host saw of a tensor's messages: a gradient has arrived for certain when its sum is here.

        The sum was on its way from its first packet to its last.
        """
        seen = self._station.transfers[self._job]
        for number in self._sent[tensor]:
            seen.ready.append((iteration, number, update.ready_ps))
            seen.sent.append((iteration, number, sent_ps))
            seen.delivered.append((iteration, number, now_ps))
        for number in self._received[tensor]:
            seen.ready.append((iteration, number, update.first_sum_ps))
            seen.sent.append((iteration, number, update.first_sum_ps))
            seen.delivered.append((iteration, number, now_ps))


class WholeLayers:
    """What a worker's host does for a job of which switches sum some slices, or all, and servers the others.

    Hot rows of a layer come back as sums of packets, cold ones as messages: its parameters are there when both are.
    Nobody else has to agree on the end of a round. Parts of the next one cannot come before: whoever sends them has
    computed with the whole layer.
    """

    def __init__(self, plan: JobPlan, parts: Sequence[Exchanging]):
        self._parts = parts
        tensors = [{piece.tensor for piece in slices} for slices in (plan.summed, plan.others)]
        #: How many parts a layer has, and how many of them are missing in the round under way.
        self._of_layer = [sum(tensor in own for own in tensors) for tensor in range(len(plan.ranks))]
        self._missing = list(self._of_layer)
        #: With a barrier: how many layers are missing.
        self._layers_missing = len(plan.ranks)
        self._barrier = plan.job.barrier

    def join(self, worker: int, tagger: Tagger, updated: Updated) -> None:
        """Let the worker of this host take part: its tagger knows deadlines, and it is told of updates."""
        self._updated = updated
        for part in self._parts:
            part.join(worker, tagger, self._part_updated)

    def gradient_ready(self, worker: int, tensor: int, ready_ps: int) -> None:
        """Give a worker's gradient away."""
        for part in self._parts:
            part.gradient_ready(worker, tensor, ready_ps)

    def _part_updated(self, tensor: int, now_ps: int) -> None:
        self._missing[tensor] -= 1
        if self._missing[tensor]:
            return
        self._missing[tensor] = self._of_layer[tensor]
        self._layer_updated(tensor, now_ps)

    def _layer_updated(self, tensor: int, now_ps: int) -> None:
        """Tell the worker of an update; with a barrier, that of the first layer comes when all others are here."""
        if not self._barrier:
            self._updated(tensor, now_ps)
            return
        if tensor:
            self._updated(tensor, now_ps)
        self._layers_missing -= 1
        if not self._layers_missing:
            self._layers_missing = len(self._missing)
            self._updated(0, now_ps)


class SumServing:
    """What a server's host does for one job where the sums of switches end at it: it checks them, and answers."""

    def __init__(
        self,
        station: Station,
        plan: Plan,
        job: int,
        host: int,
        *,
        target: Address,
        epoch: int,
        tensors: Tensors | None = None,
    ):
        """Answer to any address beyond the switch; `epoch` tells this run of the job from those before."""
        self._station, self._job = station, plan.jobs[job].job
        (tree,) = [tree for tree in plan.jobs[job].sums if tree.server == host]
        self._elements = _summed_elements(plan.jobs[job])
        self._tensors = tensors or gradients_of(plan.jobs[job], plan.scenario.seed)
        service = Service(
            job=job,
            workers=len(self._job.workers),
            layers=tuple(layer.name for layer in self._job.workload.layers),
            epoch=epoch,
            iterations=plan.scenario.rounds,
            round_trip_ps=round_trip_ps(tree, plan.scenario.fastest()),
            traffic={tensor: tag.traffic for tensor, tag in _tags(plan, job).items()},
            delay_ps=int(delays_ps([VALUES * VALUE_BYTES], self._job.sum_rate_bps)[0]),
        )
        self.server = SumServer(tree, service)
        station.endpoint.serve_sums(job, self.server, target, self._check)
        station.keep_until(lambda: self.server.is_complete)

    def _check(self, summed: Summed) -> None:
        """Raise NetworkError when what came is not the sum of all workers' gradients."""
        tensor, first = summed.tensor, summed.packet * VALUES
        found: Floats = np.empty(min(VALUES, self._elements[tensor] - first), dtype=np.float32)
        found[:] = FLOAT_TYPES["fp32"].rounded(summed.values)[: len(found)]
        if np.isfinite(found).all() and (wrong := self._tensors.wrong(summed.iteration, tensor, first, found)):
            raise NetworkError(
                f"{self._station.name}: in iteration {summed.iteration}, what came of "
                f"{self._job.workload.layers[tensor].name} is not the sum of all gradients: {wrong}"
            )


def _tags(plan: Plan, job: int) -> dict[int, Tag]:
    """Return a tag for every tensor that switches sum, in which iteration and deadline are still to be filled in."""
    planned = plan.jobs[job]
    packets = packets_of(planned.job.workload, planned.hot_rows)
    tags: dict[int, Tag] = {}
    for index, tag in enumerate(slice_tags(plan, Tagger(plan, job=job), Kind.SUM)[: len(planned.summed)]):
        tags.setdefault(tag.tensor, replace(tag, message=index, chunk=0, chunks=packets[tag.tensor]))
    return tags


def _summed_elements(plan: JobPlan) -> dict[int, int]:
    """Return how many numbers of every tensor switches sum, of those that they do: one for every parameter."""
    parts = zip(plan.summed, elements_of(plan), strict=False)
    return {piece.tensor: part.stop for piece, part in parts}


def child_number(plan: Plan, sums: SumPlan, host: int) -> int:
    """Return the number of a host among the children of its switch in a tree.

    The links of hosts come first there, so every host is a child of one switch alone.
    """
    sources = plan.scenario.cluster.directed().source
    numbers = [
        number for switch in sums.switches for number, link in enumerate(switch.children) if sources[link] == host
    ]
    return numbers[0]
