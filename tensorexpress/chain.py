"""Chains: how soon a worker's parameters can be there if nothing ever has to wait for a link.

A layer's gradient goes through messages and sums until its parameters are at a worker: up to a server and back, around
a ring, up a tree and down again. A message is forwarded packet by packet and is there when its last packet is. So the
longest way through the graph of an iteration is a time that no schedule can beat, also where links are hardly used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorexpress.graph import (
    BACKWARD,
    GATE,
    GRADIENT,
    MESSAGE,
    SUM,
    Cargo,
    Graph,
    draw,
    index_of,
    kind_of,
)
from tensorexpress.plan import JobPlan, Plan, parts_of_slices, top_of
from tensorexpress.sums import VALUES, SumPlan
from tensorexpress.units import PS_PER_SECOND

Ints = NDArray[np.int64]

#: About how many messages are looked at; where there are more, fewer layers are, which the bound allows.
_MOST_MESSAGES = 100_000

#: Takes off more than floating point can add, so that what is rounded is never longer than it is.
_ROUNDED_DOWN = 1 - 2.0**-50


def occupied_ps(sizes: Ints, rate_bps: Ints) -> Ints:
    """Return how long bytes occupy links at least; of arrays, element by element.

    >>> occupied_ps(np.array([1250]), np.array([10**10])).tolist()
    [999999]
    """
    return np.floor(sizes * (8 * PS_PER_SECOND / rate_bps) * _ROUNDED_DOWN).astype(np.int64)


@dataclass(frozen=True)
class Chain:
    """The graph of some layers of a job, one slice of each, in the order in which its nodes can be done."""

    #: The layers, ascending.
    layers: tuple[int, ...]
    #: How long each node takes; messages, then sums, gates and gradients.
    takes_ps: Ints
    gates: slice
    gradients: slice
    #: Edges as (nodes that are done, nodes that wait for them), and the nodes that are done after these.
    steps: tuple[tuple[Ints, Ints, Ints], ...]

    def opened_ps(self, ready_ps: Ints) -> Ints:
        """Return when parameters can be there, from when gradients are ready; both by (worker, layer).

        Layers that are not looked at are there when the slowest worker has their gradient.
        """
        chosen = list(self.layers)
        done = np.zeros(len(self.takes_ps), dtype=np.int64)
        done[self.gradients] = ready_ps[:, chosen].ravel()
        for sources, targets, finished in self.steps:
            np.maximum.at(done, targets, done[sources])
            done[finished] += self.takes_ps[finished]
        opened = np.broadcast_to(ready_ps.max(axis=0), ready_ps.shape).copy()
        opened[:, chosen] = done[self.gates].reshape(len(ready_ps), -1)
        return opened


#: Of no layer: parameters are there when the slowest worker has their gradient.
NO_CHAIN = Chain((), np.zeros(0, dtype=np.int64), slice(0), slice(0), ())


def make_chain(plan: Plan, number: int) -> Chain:
    """Return the chain of a job: of every layer, or of as many as are quickly looked at, the largest slices.

    That is one that switches sum and one that is a message, or whichever there is.
    """
    planned = plan.jobs[number]
    layers, cargo = _largest_slices(planned)
    graph = draw(planned.architecture, cargo)
    return _chain(graph, _message_ps(graph, _sizes(graph, plan, planned), plan, planned), layers, planned)


def shortest_chain(plan: Plan, number: int) -> Chain:
    """Return a chain that is no longer than that of any slicing of a job's tensors on a plan's paths.

    Every message has one byte, and goes to the server that it reaches, or comes from, soonest. A slice has a byte for
    every part at least, so layers that are smaller are left out.
    """
    planned = plan.jobs[number]
    job, parts = planned.job, parts_of_slices(planned.job)
    most = max(1, _MOST_MESSAGES // max(1, planned.architecture.messages_per_slice(len(job.hosts))))
    layers = tuple([tensor for tensor, size in enumerate(job.workload.tensor_bytes) if size >= parts][:most])
    if not layers:
        return NO_CHAIN
    takes: list[Ints] = []
    for server in job.servers or (-1,):
        cargo = Cargo(
            job.hosts,
            len(layers),
            np.arange(len(layers)),
            np.full(len(layers), parts, dtype=np.int64),
            np.full(len(layers), server, dtype=np.int64),
            job.sum_rate_bps,
            job.gpus_per_host,
            job.local_rate_bps,
            forward_only=job.forward_only,
        )
        graph = draw(job.architecture, cargo)
        takes.append(_message_ps(graph, graph.bytes, plan, planned))
    return _chain(graph, np.minimum.reduce(takes), layers, planned)


def _sizes(graph: Graph, plan: Plan, planned: JobPlan) -> Ints:
    """Return the bytes of every message. What switches add are whole packets of values."""
    packet_bytes = VALUES * planned.job.workload.bytes_per_param
    of_sums = -(-graph.bytes // packet_bytes) * plan.sum_framing.payload_bytes
    return np.where(graph.under_way, of_sums, graph.bytes)


def _chain(graph: Graph, messages_ps: Ints, layers: tuple[int, ...], planned: JobPlan) -> Chain:
    """Return the chain of a graph of some layers, from how long every message takes."""
    counts = [len(graph.src), len(graph.sum_host), *2 * [len(planned.job.workers) * len(layers)]]
    first = np.cumsum([0, *counts])
    sources, targets = (np.concatenate([edge[end] for edge in (*graph.edges, *graph.orders)]) for end in (0, 1))
    # What waits until a worker is through a layer is left out: here are only some of the layers.
    counts_here = np.isin(kind_of(sources), [kind_of(node) for node in (MESSAGE, SUM, GRADIENT)])
    counts_here &= kind_of(targets) != kind_of(BACKWARD)
    sources, targets = (
        first[kind_of(nodes)] + index_of(nodes) for nodes in (sources[counts_here], targets[counts_here])
    )
    takes_ps = np.zeros(first[-1], dtype=np.int64)
    takes_ps[first[kind_of(MESSAGE)] : first[kind_of(SUM)]] = messages_ps
    takes_ps[first[kind_of(SUM)] : first[kind_of(GATE)]] = graph.sum_delay_ps
    return Chain(
        layers,
        takes_ps,
        slice(int(first[kind_of(GATE)]), int(first[kind_of(GRADIENT)])),
        slice(int(first[kind_of(GRADIENT)]), int(first[-1])),
        _in_order(sources, targets, int(first[-1])),
    )


def _largest_slices(planned: JobPlan) -> tuple[tuple[int, ...], Cargo]:
    """Return the layers to look at, and what they exchange if each were its largest slices alone."""
    job = planned.job
    largest = {(piece.tensor, piece.summed): piece for piece in sorted(planned.slices, key=lambda piece: piece.bytes)}
    # The layer that is needed first has all others ahead; after it, long messages make long chains.
    wanted = sorted(largest.values(), key=lambda piece: (piece.tensor > 0, -piece.bytes, piece.tensor))
    most = max(1, _MOST_MESSAGES // max(1, planned.architecture.messages_per_slice(len(job.hosts))))
    pieces = sorted(wanted[:most], key=lambda piece: (not piece.summed, piece.tensor))
    layers = sorted({piece.tensor for piece in pieces})
    cargo = Cargo(
        job.hosts,
        len(layers),
        np.searchsorted(layers, [piece.tensor for piece in pieces]),
        np.array([piece.bytes for piece in pieces], dtype=np.int64),
        np.array([piece.server for piece in pieces], dtype=np.int64),
        job.sum_rate_bps,
        job.gpus_per_host,
        job.local_rate_bps,
        summed=sum(piece.summed for piece in pieces),
    )
    return tuple(layers), cargo


def _message_ps(graph: Graph, sizes: Ints, plan: Plan, planned: JobPlan) -> Ints:
    """Return how long every message, of so many bytes, takes on an empty network.

    Its last packet is the smallest. It takes its time on every link, and waits for the others on one of them. Where
    switches sum, what comes back is only that packet: the others have come back before.
    """
    directed, summed = plan.scenario.fastest(), graph.under_way
    payload, header = (
        np.where(summed, getattr(plan.sum_framing, part), getattr(plan.framing, part))
        for part in ("payload_bytes", "header_bytes")
    )
    ends = np.stack([graph.src, graph.dst, graph.brings_sums, summed], axis=1)
    pairs, pair = np.unique(ends, axis=0, return_inverse=True)
    ways = [
        _way_in_tree(src, dst, bool(brings_sums), plan, planned.sums) if in_tree else plan.paths.between(src, dst)
        for src, dst, brings_sums, in_tree in pairs.tolist()
    ]
    most = max(map(len, ways), default=0)
    # Shorter ways are filled up with a link, number -1, that takes no time.
    links = np.array([[*way, *[-1] * (most - len(way))] for way in ways], dtype=np.int64).reshape(len(ways), most)
    way = links[pair.ravel()]
    rates, delays = np.array([*directed.rate_bps, PS_PER_SECOND]), np.array([*directed.delay_ps, 0])
    passes = np.array([*(not paced for paced in directed.paced), False])
    chunks = -(-sizes // payload)
    last = np.where(chunks > 0, sizes - (chunks - 1) * payload + header, 0)
    before = np.where(summed & graph.brings_sums, 0, sizes + chunks * header - last)
    used = (way >= 0) & (chunks > 0)[:, None]
    waits = np.where(used, occupied_ps(before[:, None], rates[way]), 0).max(axis=1, initial=0)
    travels = np.where(used, delays[way] + passes[way] * occupied_ps(last[:, None], rates[way]), 0).sum(axis=1)
    taken: Ints = waits + travels
    return taken


def _way_in_tree(src: int, dst: int, brings_sums: bool, plan: Plan, trees: tuple[SumPlan, ...]) -> tuple[int, ...]:
    """Return the directed links that a message takes which switches sum, or its sum."""
    worker, top = (dst, src) if brings_sums else (src, dst)
    tree = next(tree for tree in trees if top_of(tree, plan.scenario) == top)
    up = tree.way_up(plan.scenario.cluster.directed().source.index(worker))
    return tuple(link ^ 1 for link in reversed(up)) if brings_sums else up


def _in_order(sources: Ints, targets: Ints, nodes: int) -> tuple[tuple[Ints, Ints, Ints], ...]:
    """Return the edges in steps: each has those from nodes that are done to whatever waits for them."""
    order = np.argsort(sources, kind="stable")
    targets = targets[order]
    first = np.concatenate([[0], np.cumsum(np.bincount(sources, minlength=nodes))])
    waits_for = np.bincount(targets, minlength=nodes)
    done = np.flatnonzero(waits_for == 0)
    steps = []
    while len(done):
        fans = first[done + 1] - first[done]
        # Places of the edges of all that is done: each node's are neighbours.
        places = np.repeat(first[done] - np.cumsum(fans) + fans, fans) + np.arange(fans.sum())
        reached = targets[places]
        np.subtract.at(waits_for, reached, 1)
        finished = np.unique(reached[waits_for[reached] == 0])
        steps.append((np.repeat(done, fans), reached, finished))
        done = finished
    return tuple(steps)
