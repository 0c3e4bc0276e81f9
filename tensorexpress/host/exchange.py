"""A host's part in the communication of one job: it receives, adds and passes on, as the graph of the job says.

There is one of these on every host of a job, whether it computes, sums or both, in every architecture.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tensorexpress.errors import NetworkError
from tensorexpress.graph import GATE, GRADIENT, MESSAGE, SUM, Graph, index_of, kind_of
from tensorexpress.host.gradients import FLOAT_BYTES, Floats, Tensors, elements_of, gradients_of
from tensorexpress.host.tagging import Tag, Tagger
from tensorexpress.host.training import Station, slice_tags
from tensorexpress.plan import Plan
from tensorexpress.wire.header import Kind

_MESSAGES, _SUMS, _GATES, _GRADIENTS = (kind_of(node) for node in (MESSAGE, SUM, GATE, GRADIENT))

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
        self._host, self._names = host, plan.scenario.cluster.hosts
        self._tensors = tensors or gradients_of(self._plan, plan.scenario.seed)
        self._parts = elements_of(self._plan)
        #: What messages and sums carry, once asked for: every iteration asks again.
        self._carried: dict[int, slice] = {}
        self._layers = len(self._plan.ranks)
        self._workers: dict[int, tuple[Tagger, Updated]] = {}
        self._nodes, self._successors = self._own_part()
        self._tags = self._own_tags(plan, job)
        self._senders = self._incoming()
        #: What was received or summed and is still to be used, and by how many.
        self._values: dict[int, tuple[Floats, int]] = {}
        self._receiving: dict[int, Floats] = {}
        self._due: defaultdict[int, int] = defaultdict(int)
        self._left = plan.scenario.rounds * sum(1 for node in self._nodes if kind_of(node) == _MESSAGES)
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
            if kind_of(target) == _GATES and source in node.carries:
                self._deliver(source, target, node.iteration)
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
        if kind == _GATES:
            for source in node.carries:
                self._use(source)
            _, updated = self._workers[number // self._layers]
            updated(number % self._layers, now_ps)
            return
        value = self._sum(target, node, iteration)
        if kind == _MESSAGES:
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
        if kind_of(source) == _GRADIENTS:
            worker, tensor = divmod(index_of(source), self._layers)
            return self._tensors.of(worker, iteration, tensor, elements)
        return self._values[source][0]

    def _use(self, source: int) -> None:
        """Let go of what nobody else will use."""
        if kind_of(source) != _GRADIENTS:
            value, uses = self._values.pop(source)
            if uses > 1:
                self._values[source] = value, uses - 1

    def _deliver(self, source: int, gate: int, iteration: int) -> None:
        """Give a worker a part of an update; NetworkError when it is not the sum of all workers' gradients."""
        worker, tensor = divmod(index_of(gate), self._layers)
        first, found = self._elements(source).start, self._values[source][0]
        if wrong := self._tensors.deliver(worker, iteration, tensor, first, found):
            raise NetworkError(
                f"{self._station.name}: in iteration {iteration}, {self._plan.job.workload.layers[tensor].name} from "
                f"{self._sender(source)} is not the sum of all gradients: {wrong}"
            )

    def _sender(self, node: int) -> str:
        return self._senders[index_of(node)] if kind_of(node) == _MESSAGES else self._station.name

    # What of the graph belongs to this host

    def _own_part(self) -> tuple[dict[int, _Node], defaultdict[int, list[int]]]:
        """Return the nodes that happen here, and what comes here after each node, without those that carry nothing."""
        nodes: defaultdict[int, _Node] = defaultdict(_Node)
        successors: defaultdict[int, list[int]] = defaultdict(list)
        # Where there is another part of the exchange, who joins the two knows what else a worker waits for.
        orders = () if self._plan.sums else self._graph.orders
        for edges, carries in ((self._graph.edges, True), (orders, False)):
            for source, target in self._here(edges):
                successors[source].append(target)
                if carries:
                    nodes[target].carries.append(source)
                else:
                    nodes[target].after += 1
        for node in nodes.values():
            node.missing = len(node.carries) + node.after
        return dict(nodes), successors

    def _here(self, edges: Sequence[tuple[np.ndarray, np.ndarray]]) -> Iterator[tuple[int, int]]:
        graph, workers = self._graph, np.array(self._plan.job.workers)
        for source, target in edges:
            kind, index = kind_of(target), index_of(target)
            host = np.full(len(target), -1)
            for code, hosts in ((_MESSAGES, graph.src), (_SUMS, graph.sum_host)):
                host[kind == code] = hosts[index[kind == code]]
            host[kind == _GATES] = workers[index[kind == _GATES] // self._layers]
            chosen = host == self._host
            for one, other in zip(source[chosen].tolist(), target[chosen].tolist(), strict=True):
                if self._is_here(one) and self._is_here(other):
                    yield one, other

    def _is_here(self, node: int) -> bool:
        """Whether hosts see a part of a slice: it has elements, of which a tiny one has fewer than parts, and is none
        that switches sum."""
        if kind_of(node) in (_GATES, _GRADIENTS):
            return True
        elements = self._elements(node)
        return bool(elements.start < elements.stop) and self._slice(node) >= self._graph.sums_under_way

    def _incoming(self) -> dict[int, str]:
        """Return who sends the messages that come here."""
        numbers = np.flatnonzero(self._graph.dst == self._host)
        return {
            number: self._names[int(self._graph.src[number])]
            for number in numbers.tolist()
            if self._is_here(MESSAGE + number)
        }

    def _own_tags(self, plan: Plan, job: int) -> dict[int, Tag]:
        """Return the tags of the messages that leave here, in which iteration and deadline are still to be filled
        in."""
        graph, first = self._graph, self._plan.job.workers.index
        of_slice = slice_tags(plan, Tagger(plan, job=job), Kind.GRADIENT)
        tags = {}
        for node in self._nodes:
            if kind_of(node) == _MESSAGES:
                number = index_of(node)
                brings_sum = bool(graph.brings_sums[number])
                tags[number] = replace(
                    of_slice[int(graph.slice[number])],
                    message=number,
                    kind=Kind.PARAMETERS if brings_sum else Kind.GRADIENT,
                    worker=first(int((graph.dst if brings_sum else graph.src)[number])),
                )
        return tags

    def _slice(self, node: int) -> int:
        columns = self._graph.slice if kind_of(node) == _MESSAGES else self._graph.sum_slice
        return int(columns[index_of(node)])

    def _elements(self, node: int) -> slice:
        found = self._carried.get(node)
        if found is None:
            found = self._carried[node] = elements_carried(self._graph, node, self._parts)
        return found


def elements_carried(graph: Graph, node: int, parts: Sequence[slice]) -> slice:
    """Return the elements of its tensor that a message or a sum carries; `parts` are those of every slice."""
    number = index_of(node)
    if kind_of(node) == _MESSAGES:
        piece, part, of = graph.slice[number], graph.part[number], graph.parts[number]
    else:
        piece, part, of = graph.sum_slice[number], graph.sum_part[number], graph.sum_parts[number]
    whole = parts[int(piece)]
    count = whole.stop - whole.start
    return slice(whole.start + count * int(part) // int(of), whole.start + count * (int(part) + 1) // int(of))
