"""A host's part in a job whose gradients switches sum: a worker sends every gradient up and gets the sum down.

It takes the place of `exchange.Exchange` where a plan has sums: what is sent when is for the pools. Where sums end at
servers, a server's host takes what the switches have summed, and answers; it may be a worker's as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from tensorexpress.errors import NetworkError
from tensorexpress.fixed_point import FLOAT_TYPES, Floats
from tensorexpress.graph import delays_ps
from tensorexpress.host.exchange import Updated
from tensorexpress.host.gradients import Gradients, wrong_element
from tensorexpress.host.links import Address
from tensorexpress.host.pool import Membership, PoolSender, Summed
from tensorexpress.host.sum_server import Service, SumServer
from tensorexpress.host.tagging import Tag, Tagger
from tensorexpress.host.training import Station, slice_tags
from tensorexpress.plan import Plan
from tensorexpress.recovery import newer_sums_of
from tensorexpress.slots import round_trip_ps
from tensorexpress.sums import VALUE_BYTES, VALUES, SumPlan, packets_of
from tensorexpress.wire.header import Kind


class _Update:
    """The sum of a tensor, of which not all packets are here."""

    __slots__ = ("elements", "first_sum_ps", "missing", "ready_ps")

    def __init__(self, elements: int, packets: int, ready_ps: int):
        self.elements: Floats = np.empty(elements, dtype=np.float32)
        self.missing = packets
        #: When the worker had its gradient, and when the first sum came; -1 before.
        self.ready_ps, self.first_sum_ps = ready_ps, -1


class PoolExchange:
    """What one worker's host does for one job between gradients and parameters, where switches sum."""

    def __init__(self, station: Station, plan: Plan, job: int, host: int, *, target: Address, epoch: int):
        """Send to any address beyond the switch; `epoch` tells this run of the job from those before."""
        self._station, self._plan, self._job = station, plan.jobs[job], job
        layers, workers = self._plan.job.workload.layers, self._plan.job.workers
        #: A whole number of 32 bits for every parameter, whatever its type.
        self._elements = [layer.params for layer in layers]
        self._gradients = Gradients(plan.scenario.seed, len(workers), max(self._elements))
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
            PoolSender(pool, replace(member, child=child_number(plan, tree, host)), by_hash=bool(tree.cells))
            for tree in self._plan.sums
            for pool in tree.pools
        ]
        #: Several where a tensor is split over servers.
        self._pools_of: dict[int, list[PoolSender]] = defaultdict(list)
        for pool in self.pools:
            for tensor in pool.pool.tensors:
                self._pools_of[tensor].append(pool)
        self._sent, self._received = self._own_messages(host)
        self._iterations = [0] * len(self._plan.ranks)
        self._updates: dict[tuple[int, int], _Update] = {}
        #: Of every iteration under way: how many tensors are complete.
        self._complete: Counter[int] = Counter()
        self._left = plan.scenario.rounds * len(self._plan.ranks)
        self._tags = _tags(plan, job)
        station.play(self, job, Kind.SUM)
        station.endpoint.sum_through(job, self.pools, target, self._summed)

    @property
    def done(self) -> bool:
        """Whether all sums of the run are here."""
        return self._left == 0

    def join(self, worker: int, tagger: Tagger, updated: Updated) -> None:
        """Let the worker of this host take part: its tagger knows deadlines, and it is told of updates."""
        self._tagger, self._updated = tagger, updated

    def gradient_ready(self, worker: int, tensor: int, ready_ps: int) -> None:
        """Send a worker's gradient to be summed."""
        iteration, pools = self._iterations[tensor], self._pools_of[tensor]
        self._iterations[tensor] += 1
        packets = sum(pool.packets_of(tensor) for pool in pools)
        self._updates[iteration, tensor] = _Update(self._elements[tensor], packets, ready_ps)
        tag = self._tags[tensor]
        tag = replace(tag, iteration=iteration, deadline_ps=self._tagger.deadline_ps(tag.message))
        for pool in pools:
            first, count = pool.pool.start_of(tensor), pool.packets_of(tensor)
            own = slice(first * VALUES, min((first + count) * VALUES, self._elements[tensor]))
            gradient = self._gradients.of(worker, iteration, tensor, own)
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
        self._check(iteration, tensor, update.elements)
        self._note(iteration, tensor, update, summed.first_sent_ps, now_ps)
        self._left -= 1
        self._tell(iteration, tensor, now_ps)

    def _tell(self, iteration: int, tensor: int, now_ps: int) -> None:
        """Tell the worker of an update; with a barrier, that of the first layer comes when all others are here."""
        if not self._plan.job.barrier:
            self._updated(tensor, now_ps)
            return
        self._complete[iteration] += 1
        if tensor:
            self._updated(tensor, now_ps)
        if self._complete[iteration] == len(self._plan.ranks):
            del self._complete[iteration]
            self._updated(0, now_ps)

    def _check(self, iteration: int, tensor: int, found: Floats) -> None:
        """Raise NetworkError when an update is not the sum of all workers' gradients, or no number at all."""
        name = self._plan.job.workload.layers[tensor].name
        if not np.isfinite(found).all():
            raise NetworkError(
                f"{self._station.name}: in iteration {iteration}, the sum of {name} is too large for float32; "
                "scale the loss down"
            )
        expected = self._gradients.total(iteration, tensor, slice(0, len(found)))
        if wrong := wrong_element(found, expected):
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
            ((graph.src == host) & ~graph.brings_sums, sent),
            ((graph.dst == host) & graph.brings_sums, received),
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


class SumServing:
    """What a server's host does for one job where the sums of switches end at it: it checks them, and answers."""

    def __init__(self, station: Station, plan: Plan, job: int, host: int, *, target: Address, epoch: int):
        """Answer to any address beyond the switch; `epoch` tells this run of the job from those before."""
        self._station, self._job = station, plan.jobs[job].job
        (tree,) = [tree for tree in plan.jobs[job].sums if tree.server == host]
        self._elements = [layer.params for layer in self._job.workload.layers]
        self._gradients = Gradients(plan.scenario.seed, len(self._job.workers), max(self._elements))
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
        expected = self._gradients.total(
            summed.iteration, tensor, slice(first, min(first + VALUES, self._elements[tensor]))
        )
        found: Floats = np.empty(len(expected), dtype=np.float32)
        found[:] = FLOAT_TYPES["fp32"].rounded(summed.values)[: len(expected)]
        if np.isfinite(found).all() and (wrong := wrong_element(found, expected, first)):
            raise NetworkError(
                f"{self._station.name}: in iteration {summed.iteration}, what came of "
                f"{self._job.workload.layers[tensor].name} is not the sum of all gradients: {wrong}"
            )


def _tags(plan: Plan, job: int) -> dict[int, Tag]:
    """Return a tag for every tensor of a job, in which iteration and deadline are still to be filled in."""
    packets = packets_of(plan.jobs[job].job.workload)
    tags: dict[int, Tag] = {}
    for index, tag in enumerate(slice_tags(plan, Tagger(plan, job=job), Kind.SUM)):
        tags.setdefault(tag.tensor, replace(tag, message=index, chunk=0, chunks=packets[tag.tensor]))
    return tags


def child_number(plan: Plan, sums: SumPlan, host: int) -> int:
    """Return the number of a host among the children of its switch in a tree.

    The links of hosts come first there, so every host is a child of one switch alone.
    """
    sources = plan.scenario.cluster.directed().source
    numbers = [
        number for switch in sums.switches for number, link in enumerate(switch.children) if sources[link] == host
    ]
    return numbers[0]
