"""An exchange that machine code carries out: `exchange_kernel.py` does what `Exchange` does, without Python.

What is left to Python is what workers do and see: gradients that are there, and layers whose parameters are. So a
message costs what its bytes cost, and a host wakes up for layers, not for slices of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorexpress.errors import NetworkError
from tensorexpress.graph import GRADIENT, MESSAGE, index_of, kind_of
from tensorexpress.host import exchange_layout as at
from tensorexpress.host import native
from tensorexpress.host.exchange import Deliveries, Updated
from tensorexpress.host.flow_layout import DELAYED, NEVER, NONE, OPENED, OUTGOING_WORDS, UNWANTED, WRONG
from tensorexpress.host.gradients import DISTANCE, FLOAT_BYTES, Floats, Gradients, gradients_of
from tensorexpress.host.native_endpoint import NativeEndpoint
from tensorexpress.host.part import GATES, GRADIENTS, MESSAGES, SUMS, part_of_host
from tensorexpress.host.tables import Words
from tensorexpress.host.tagging import Tag, Tagger, leads_of
from tensorexpress.host.training import Station, slice_tag
from tensorexpress.plan import Plan
from tensorexpress.wire.header import Kind

_KINDS = {MESSAGES: at.IS_MESSAGE, SUMS: at.IS_SUM, GATES: at.IS_GATE, GRADIENTS: at.IS_GRADIENT}

_UNSEEN_PS = -1


class NativeExchange:
    """What one host does for one job, as `Exchange`, on an endpoint of machine code; gradients cost nothing."""

    def __init__(self, station: Station, plan: Plan, job: int, host: int):
        assert isinstance(station.endpoint, NativeEndpoint)
        self._station, self._endpoint, self._plan = station, station.endpoint, plan.jobs[job]
        self._graph, self._rounds, self._host = self._plan.graph, plan.scenario.rounds, host
        self._names, self._layers = plan.scenario.cluster.hosts, len(self._plan.ranks)
        self._workers: dict[int, tuple[Tagger, Updated]] = {}
        self._part = part_of_host(self._plan, host)
        gradients = gradients_of(self._plan, plan.scenario.seed)
        self._deliveries = Deliveries(station, plan, job, self._part, gradients)
        part = self._part
        #: All nodes that have a part here, as the graph numbers them; their places are what machine code calls them.
        self._nodes = np.unique(np.concatenate([part.source, part.target, MESSAGE + part.coming]))
        self._source, self._target = (self._places(each) for each in (part.source, part.target))
        self._times = {
            what: np.full((self._rounds, len(numbers)), _UNSEEN_PS, dtype=np.int64)
            for what, numbers in (("ready", part.leaving), ("sent", part.leaving), ("delivered", part.coming))
        }
        self._words_of_nodes, self._edges = self._graph_words()
        self._rows = self._message_words(plan, job)
        #: Messages that leave at the most because of a node, at once.
        self._sends = self._messages_after()
        # See `native_endpoint.Told`.
        self.most_told = 2 * len(self._nodes) + 1
        self.most_sent = max(self._sends[self._places(MESSAGE + part.coming)].tolist(), default=0)
        self.words: Words = self._own_words(gradients, job)
        self.words[at.X_INDEX] = self._endpoint.carry_out(self)
        for kind in (Kind.GRADIENT, Kind.PARAMETERS):
            station.play(self, job, kind)
        station.transfers[job].others.append(self.seen)

    @property
    def done(self) -> bool:
        """Whether all that is to be sent has been handed to the transport."""
        return int(self.words[at.X_LEFT]) == 0

    def join(self, worker: int, tagger: Tagger, updated: Updated) -> None:
        """Let a worker of this host take part: its tagger knows deadlines, and it is told of updates."""
        self._workers[worker] = tagger, updated

    def gradient_ready(self, worker: int, tensor: int, ready_ps: int) -> None:
        """Give a worker's gradient away."""
        tagger, _ = self._workers[worker]
        place = self._place(GRADIENT + worker * self._layers + tensor)
        self._words_of_nodes[place, at.N_DUE_PS] = tagger.tensor_deadline_ps(tensor) - self._endpoint.origin_ps
        self._go_on_from(place, ready_ps)

    def seen(self, what: str) -> NDArray[np.int64]:
        """Return when messages were ready, sent or delivered, as `Transfers` has it."""
        times = self._times[what]
        rounds, columns = np.nonzero(times != _UNSEEN_PS)
        numbers = (self._part.coming if what == "delivered" else self._part.leaving)[columns]
        return np.stack([rounds, numbers, times[rounds, columns] + self._endpoint.origin_ps], axis=1)

    def buffer_for(self, source: str, tag: Tag, size: int) -> Any:
        """Refuse messages: machine code takes those that are due."""
        return None

    def delivered(self, source: str, tag: Tag) -> None:
        """Be told of no message: machine code takes them all."""

    # What machine code says

    def told(self, what: int, place: int) -> None:
        """Take what machine code says of a node."""
        node, words = int(self._nodes[place]), self._words_of_nodes[place]
        at_ps = int(words[at.N_AT_PS]) + self._endpoint.origin_ps
        if what == OPENED:
            worker, tensor = divmod(index_of(node), self._layers)
            _, updated = self._workers[worker]
            updated(tensor, at_ps)
        elif what == DELAYED:
            ready_ps = at_ps + int(words[at.N_DELAY_PS])
            self._station.call_at(ready_ps, lambda: self._go_on_from(place, ready_ps))
        elif what == UNWANTED:
            self._endpoint.check_present(self._names[int(self._graph.dst[index_of(node)])])
        elif what == WRONG:
            self._raise_wrong(node, words)

    def _go_on_from(self, place: int, now_ps: int) -> None:
        self.words[at.X_NOW_PS] = now_ps - self._endpoint.origin_ps
        self._endpoint.go_on_from(self, place, int(self._sends[place]))

    def _raise_wrong(self, node: int, words: Words) -> None:
        """Say what is wrong with a part of an update."""
        if kind_of(node) != GATES:
            raise NetworkError(f"{self._station.name}: there is no memory left for sums of gradients")
        source, iteration = int(self._nodes[words[at.N_COUNT]]), int(words[at.N_FIRST])
        elements = self._part.elements(source)
        size = FLOAT_BYTES * (elements.stop - elements.start)
        found: Floats = np.frombuffer(native.memory_at(int(words[at.N_CONTENT]), size), dtype=np.float32)
        self._deliveries.deliver(source, node, iteration, found)

    # Layout

    def _places(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._nodes, nodes)

    def _place(self, node: int) -> int:
        return int(np.searchsorted(self._nodes, node))

    def _graph_words(self) -> tuple[Words, Words]:
        """Return all nodes, and the edges that they find there."""
        part, graph, nodes = self._part, self._graph, self._nodes
        kinds, words = kind_of(nodes), np.zeros((len(nodes), at.NODE_WORDS), dtype=np.int64)
        words[:, at.N_DEADLINE_PS] = NEVER
        words[:, [at.N_FLOW, at.N_SENDER]] = NONE
        for kind, code in _KINDS.items():
            words[kinds == kind, at.N_KIND] = code
        is_layer = (kinds == GATES) | (kinds == GRADIENTS)
        words[is_layer, at.N_WORKER], words[is_layer, at.N_TENSOR] = divmod(index_of(nodes[is_layer]), self._layers)
        leads_ps = np.array(leads_of(self._plan), dtype=np.int64)
        for kind, (first, end), slices in (
            (MESSAGES, part.message_elements, graph.slice),
            (SUMS, part.sum_elements, graph.sum_slice),
        ):
            own = kinds == kind
            index = index_of(nodes[own])
            words[own, at.N_FIRST], words[own, at.N_COUNT] = first[index], (end - first)[index]
            words[own, at.N_LEAD_PS] = leads_ps[slices[index]]
        words[kinds == SUMS, at.N_DELAY_PS] = graph.sum_delay_ps[index_of(nodes[kinds == SUMS])]
        coming = self._places(MESSAGE + part.coming)
        rows = {name: row for row, name in enumerate(self._endpoint.peer_names)}
        words[coming, at.N_COME] = np.arange(len(coming))
        words[coming, at.N_SENDER] = [rows.get(self._names[sender], NONE) for sender in graph.src[part.coming].tolist()]
        return words, self._edge_words(words)

    def _edge_words(self, words: Words) -> Words:
        """Return what follows each node and what each one carries, and tell the nodes where that is."""
        source, target, carries = self._source, self._target, self._part.carries
        follows = np.argsort(source, kind="stable")
        carried = np.argsort(target[carries], kind="stable")
        count = len(words)
        for first, counts, ends in (
            (at.N_FOLLOWS, at.N_FOLLOWS_COUNT, source),
            (at.N_CARRIED, at.N_CARRIED_COUNT, target[carries]),
        ):
            words[:, counts] = np.bincount(ends, minlength=count)
            words[:, first] = np.cumsum(words[:, counts]) - words[:, counts]
        words[:, at.N_CARRIED] += len(follows)
        words[:, at.N_HEIRS] = np.bincount(source[carries], minlength=count)
        words[:, at.N_NEEDED] = words[:, at.N_MISSING] = np.bincount(target, minlength=count)
        following = at.BY_NODE * target[follows] + carries[follows]
        return np.concatenate([following, source[carries][carried]])

    def _message_words(self, plan: Plan, job: int) -> Words:
        """Return the rows of messages that leave, and tell their nodes of them."""
        graph, numbers, tagger = self._graph, self._part.leaving, Tagger(plan, job=job)
        brings_sums, slices = graph.brings_sums[numbers], graph.slice[numbers]
        concerned = np.where(brings_sums, graph.dst[numbers], graph.src[numbers])
        # Messages of a tensor to a host differ in their numbers and lengths, and in where they are in the tensor.
        alike, first, which = np.unique(
            np.stack([graph.dst[numbers], concerned, brings_sums, graph.tensor[numbers]]),
            axis=1, return_index=True, return_inverse=True,
        )  # fmt: skip
        templates = np.zeros((alike.shape[1], OUTGOING_WORDS), dtype=np.int64)
        flows = np.full(alike.shape[1], NONE, dtype=np.int64)
        for place, (target, host, brings_sum, _) in enumerate(alike.T.tolist()):
            if target != self._host:
                kind, name = Kind.PARAMETERS if brings_sum else Kind.GRADIENT, self._names[target]
                tag = replace(
                    slice_tag(plan, tagger, int(slices[first[place]]), kind), worker=self._plan.job.workers.index(host)
                )
                flows[place] = self._endpoint.flow_to(name, tag.flow)
                templates[place] = np.frombuffer(self._endpoint.new_template(name, tag, 1, int(flows[place])), np.int64)
        which = which.reshape(-1)
        leaving, nodes = self._places(MESSAGE + numbers), self._words_of_nodes
        nodes[leaving, at.N_NUMBER], nodes[leaving, at.N_LEAVE] = numbers, np.arange(len(numbers))
        nodes[leaving, at.N_FLOW] = flows[which]
        chunks = np.array([tagger.first_chunk(piece) for piece in slices.tolist()], dtype=np.int64)
        return self._endpoint.rows_like(templates[which], numbers, chunks, FLOAT_BYTES * nodes[leaving, at.N_COUNT])

    def _messages_after(self) -> NDArray[np.int64]:
        nodes = self._words_of_nodes[self._target]
        is_message = nodes[:, at.N_KIND] == at.IS_MESSAGE
        goes_on = (nodes[:, at.N_KIND] == at.IS_SUM) | (is_message & (nodes[:, at.N_FLOW] == NONE))
        sends = np.zeros(len(self._nodes), dtype=np.int64)
        while True:
            through = is_message + np.where(goes_on, sends[self._target], 0)
            found = np.bincount(self._source, weights=through, minlength=len(sends)).astype(np.int64)
            if (found == sends).all():
                return sends
            sends = found

    def _own_words(self, gradients: Gradients, job: int) -> Words:
        """Return the words of the exchange itself."""
        words, part = np.zeros(at.EXCHANGE_WORDS, dtype=np.int64), self._part
        node_of = np.full(len(self._graph.kind), NONE, dtype=np.int32)
        node_of[part.coming] = self._places(MESSAGE + part.coming)
        places = gradients.places(self._rounds, self._layers)
        table, totals = gradients.tables
        #: Whatever machine code has the address of.
        self._kept: dict[int, NDArray[Any]] = {
            at.X_NODES: self._words_of_nodes, at.X_EDGES: self._edges, at.X_ROWS: self._rows, at.X_NODE_OF: node_of,
            at.X_READY: self._times["ready"], at.X_SENT: self._times["sent"],
            at.X_DELIVERED: self._times["delivered"], at.X_PLACES: places, at.X_TABLE: table, at.X_TOTALS: totals,
            at.X_STACK: np.zeros(len(self._nodes), dtype=np.int64),
        }  # fmt: skip
        for place, memory in self._kept.items():
            words[place] = native.address_of(memory)
        for place, value in (
            (at.X_JOB, job), (at.X_ROUNDS, self._rounds), (at.X_LAYERS, self._layers), (at.X_MESSAGES, len(node_of)),
            (at.X_LEAVING, len(part.leaving)), (at.X_COMING, len(part.coming)),
            (at.X_LEFT, self._rounds * len(part.leaving)), (at.X_DISTANCE, DISTANCE),
        ):  # fmt: skip
            words[place] = value
        return words
