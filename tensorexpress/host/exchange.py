"""A host's part in the communication of one job: it receives, adds and passes on, as the graph of the job says.

There is one of these on every host of a job, whether it computes, sums or both, in every architecture.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tensorexpress.errors import NetworkError
from tensorexpress.graph import GRADIENT, MESSAGE, index_of, kind_of
from tensorexpress.host.gradients import FLOAT_BYTES, Floats, Tensors, gradients_of
from tensorexpress.host.part import GATES, GRADIENTS, MESSAGES, HostPart, part_of_host
from tensorexpress.host.tagging import Tag, Tagger
from tensorexpress.host.training import Station, slice_tags
from tensorexpress.plan import Plan
from tensorexpress.wire.header import Kind

#: Told (tensor, time) when the updated parameters of a layer are complete.
Updated = Callable[[int, int], None]


class _Node:
    """Something that a host sends, sums or waits for once in every iteration."""

    __slots__ = ("after", "carries", "deadline_ps", "iteration", "missing")

    def __init__(self) -> None:
        #: The nodes whose sum it carries, in the order of the graph, so that sums are the same in every run.
        self.carries: list[int] = []
        #: How many others it comes after.
        self.after = 0
        self.missing = 0
        self.iteration = 0
        #: The earliest of all that it carries.
        self.deadline_ps: int | None = None


class Exchange:
    """What one host does for one job between the gradients and the parameters of its workers, as far as these are
    messages; what switches sum is for `summing.PoolExchange`.

    A message of the next iteration never comes before that of the present one has been used: whoever sends it has got
    the sum of the present iteration, to which everybody's message belongs.
    """

    def __init__(self, station: Station, plan: Plan, job: int, host: int, tensors: Tensors | None = None):
        """Take a host's part in a job; gradients are by default those that cost nothing."""
        self._station, self._plan = station, plan.jobs[job]
        self._graph = self._plan.graph
        self._names = plan.scenario.cluster.hosts
        self._tensors = tensors or gradients_of(self._plan, plan.scenario.seed)
        self._layers = len(self._plan.ranks)
        self._workers: dict[int, tuple[Tagger, Updated]] = {}
        part = part_of_host(self._plan, host)
        self._elements, self._deliveries = part.elements, Deliveries(station, plan, job, part, self._tensors)
        self._nodes, self._successors = _nodes_of(part)
        self._tags = _tags_of(plan, job, part)
        self._senders = {number: self._names[int(self._graph.src[number])] for number in part.coming.tolist()}
        #: What was received or summed and is still to be used, and by how many.
        self._values: dict[int, tuple[Floats, int]] = {}
        self._receiving: dict[int, Floats] = {}
        self._due: defaultdict[int, int] = defaultdict(int)
        self._left = plan.scenario.rounds * len(part.leaving)
        station.play(self, job, Kind.GRADIENT)
        station.play(self, job, Kind.PARAMETERS)

    @property
    def done(self) -> bool:
        """Whether all that is to be sent has been handed to the transport."""
        return self._left == 0

    def join(self, worker: int, tagger: Tagger, updated: Updated) -> None:
        """Let a worker of this host take part: its tagger knows deadlines, and it is told of updates."""
        self._workers[worker] = tagger, updated

    def gradient_ready(self, worker: int, tensor: int, ready_ps: int) -> None:
        """Give a worker's gradient away."""
        self._done(GRADIENT + worker * self._layers + tensor, None, ready_ps)

    # As a role of its station

    def buffer_for(self, source: str, tag: Tag, size: int) -> Floats | None:
        """Return the memory for a message; None for one that is not due here."""
        number = tag.message
        if self._senders.get(number) != source or tag.iteration != self._due[number]:
            return None
        elements = self._elements(MESSAGE + number)
        if size != FLOAT_BYTES * (elements.stop - elements.start):
            return None
        memory: Floats = np.empty(elements.stop - elements.start, dtype=np.float32)
        self._receiving[number] = memory
        return memory

    def delivered(self, source: str, tag: Tag) -> None:
        """Use a message that is complete."""
        number = tag.message
        now_ps = self._station.note_delivered(number, tag)
        self._due[number] += 1
        self._have(MESSAGE + number, self._receiving.pop(number), tag.deadline_ps, now_ps)

    # The graph

    def _have(self, node: int, value: Floats, deadline_ps: int, now_ps: int) -> None:
        self._values[node] = value, len(self._successors[node])
        self._done(node, deadline_ps, now_ps)

    def _done(self, source: int, deadline_ps: int | None, now_ps: int) -> None:
        """Count down what comes after a node, and do what then can be done."""
        for target in self._successors[source]:
            node = self._nodes[target]
            due_ps = self._deadline_of(source, target) if deadline_ps is None else deadline_ps
            node.deadline_ps = due_ps if node.deadline_ps is None else min(node.deadline_ps, due_ps)
            if kind_of(target) == GATES and source in node.carries:
                self._deliveries.deliver(source, target, node.iteration, self._values[source][0])
            node.missing -= 1
            if node.missing == 0:
                self._fire(target, node, now_ps)

    def _deadline_of(self, gradient: int, target: int) -> int:
        tagger, _ = self._workers[index_of(gradient) // self._layers]
        return tagger.deadline_ps(self._slice(target))

    def _fire(self, target: int, node: _Node, now_ps: int) -> None:
        kind, number = kind_of(target), index_of(target)
        iteration, deadline_ps = node.iteration, node.deadline_ps
        assert deadline_ps is not None
        node.iteration, node.missing, node.deadline_ps = iteration + 1, len(node.carries) + node.after, None
        if kind == GATES:
            for source in node.carries:
                self._use(source)
            _, updated = self._workers[number // self._layers]
            updated(number % self._layers, now_ps)
            return
        value = self._sum(target, node, iteration)
        if kind == MESSAGES:
            tag = self._tags[number].due(iteration, deadline_ps)
            self._left -= 1
            self._station.send(self._names[int(self._graph.dst[number])], number, tag, value, now_ps)
            return
        delay_ps = int(self._graph.sum_delay_ps[number])
        if delay_ps:
            ready_ps = now_ps + delay_ps
            self._station.call_at(ready_ps, lambda: self._have(target, value, deadline_ps, ready_ps))
        else:
            self._have(target, value, deadline_ps, now_ps)

    def _sum(self, target: int, node: _Node, iteration: int) -> Floats:
        """Return the sum of what a node carries; what only one has is passed on as it is."""
        elements = self._elements(target)
        total, *others = [self._value(source, iteration, elements) for source in node.carries]
        if others:
            total = total + others[0]
            for other in others[1:]:
                total += other
        for source in node.carries:
            self._use(source)
        return total

    def _value(self, source: int, iteration: int, elements: slice) -> Floats:
        if kind_of(source) == GRADIENTS:
            worker, tensor = divmod(index_of(source), self._layers)
            return self._tensors.of(worker, iteration, tensor, elements)
        return self._values[source][0]

    def _use(self, source: int) -> None:
        """Let go of what nobody else will use."""
        if kind_of(source) != GRADIENTS:
            value, uses = self._values.pop(source)
            if uses > 1:
                self._values[source] = value, uses - 1

    def _slice(self, node: int) -> int:
        columns = self._graph.slice if kind_of(node) == MESSAGES else self._graph.sum_slice
        return int(columns[index_of(node)])


def _nodes_of(part: HostPart) -> tuple[dict[int, _Node], defaultdict[int, list[int]]]:
    """Return the nodes that happen here, and what comes here after each node."""
    nodes: defaultdict[int, _Node] = defaultdict(_Node)
    successors: defaultdict[int, list[int]] = defaultdict(list)
    edges = zip(part.source.tolist(), part.target.tolist(), part.carries.tolist(), strict=True)
    for source, target, carries in edges:
        successors[source].append(target)
        if carries:
            nodes[target].carries.append(source)
        else:
            nodes[target].after += 1
    for node in nodes.values():
        node.missing = len(node.carries) + node.after
    return dict(nodes), successors


def _tags_of(plan: Plan, job: int, part: HostPart) -> dict[int, Tag]:
    """Return the tags of the messages that leave a host, in which iteration and deadline are still to be filled in."""
    planned = plan.jobs[job]
    graph, first = planned.graph, planned.job.workers.index
    of_slice = slice_tags(plan, Tagger(plan, job=job), Kind.GRADIENT)
    tags = {}
    for number in part.leaving.tolist():
        brings_sum = bool(graph.brings_sums[number])
        tags[number] = replace(
            of_slice[int(graph.slice[number])],
            message=number,
            kind=Kind.PARAMETERS if brings_sum else Kind.GRADIENT,
            worker=first(int((graph.dst if brings_sum else graph.src)[number])),
        )
    return tags


class Deliveries:
    """Where updates go, and who sent what is in them."""

    def __init__(self, station: Station, plan: Plan, job: int, part: HostPart, tensors: Tensors):
        self._host, self._plan, self._part, self._tensors = station.name, plan.jobs[job], part, tensors
        self._names = plan.scenario.cluster.hosts

    def deliver(self, source: int, gate: int, iteration: int, found: Floats) -> None:
        """Give a worker a part of an update; NetworkError when it is not the sum of all workers' gradients."""
        worker, tensor = divmod(index_of(gate), len(self._plan.ranks))
        if wrong := self._tensors.deliver(worker, iteration, tensor, self._part.elements(source).start, found):
            is_message = kind_of(source) == MESSAGES
            sender = self._names[int(self._plan.graph.src[index_of(source)])] if is_message else self._host
            raise NetworkError(
                f"{self._host}: in iteration {iteration}, {self._plan.job.workload.layers[tensor].name} from "
                f"{sender} is not the sum of all gradients: {wrong}"
            )
