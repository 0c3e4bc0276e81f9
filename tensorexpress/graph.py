"""Communication graphs: who sends what to whom in one iteration of a job, after what, and where it is summed.

A graph has six kinds of node and repeats in every iteration:

    message   a part of a slice from one host to another, or to and from the switches that sum; done when its last byte
              has arrived
    sum       an addition at a host or in switches; done after its delay
    gate      the parameters of one layer at one worker, for which its next forward pass waits; done when that pass is
              through the layer
    gradient  one layer's gradient at one worker, made by its backward pass
    forward   one layer at one worker; done when the forward pass of this iteration is through it
    backward  one layer at one worker: if anything comes before it, the backward pass waits for that; done when that
              pass is through the layer

A node fires when all its predecessors are done, and carries the sum of what they carry; a gradient carries itself. So
the graph says both when things may happen, which is what a simulator wants to know, and what they are, which is what
hosts need. An iteration begins with a forward pass and ends with the gates of the next one; the first forward pass of
a run has all it needs.

An architecture is a way to draw this graph: to add one, write a function like `_ring` and give it a row in
ARCHITECTURES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorexpress.units import serialisation_ps

Ints = NDArray[np.int64]
Edges = tuple[Ints, Ints]

#: What a message does: push and pull with servers, reduce and gather between workers, and gather again what the
#: backward pass needs once more. By index in `Graph.kind`.
KINDS = ("push", "pull", "reduce", "gather", "regather")

#: Those that bring sums: they belong to the worker that receives them, the others to the one that sends.
BRINGS_SUMS = ("pull", "gather", "regather")

#: A node is its kind and an index: a message or a sum by number, all others by worker * layers + tensor.
NODE_KINDS = 6
MESSAGE, SUM, GATE, GRADIENT, FORWARD, BACKWARD = (kind << 40 for kind in range(NODE_KINDS))
_INDEX = (1 << 40) - 1


@dataclass(frozen=True)
class Cargo:
    """What a job has to exchange in one iteration."""

    #: Hosts that compute.
    hosts: tuple[int, ...]
    layers: int
    #: Of every slice: its tensor, its size, and who sums it where that is a server or a switch.
    tensor: Ints
    bytes: Ints
    server: Ints
    #: Bit/s at which a server sums; 0 is at once.
    sum_rate_bps: int = 0
    #: Workers on every host, and bit/s between them; 0 is at once.
    gpus_per_host: int = 1
    local_rate_bps: int = 0
    #: How many layers ahead parameters may be gathered where they are sharded.
    prefetch: int = 1
    #: Whether nothing is trained: parameters are pulled, and no gradient is pushed.
    forward_only: bool = False
    #: Whether the first forward layer waits for all parameters of its worker.
    barrier: bool = False
    #: How many of the slices, the first ones, switches sum.
    summed: int = 0


@dataclass(frozen=True)
class Graph:
    """The messages and sums of one iteration and what follows what; columns have one entry for each."""

    kind: Ints
    src: Ints
    dst: Ints
    #: What a message carries: part `part` of `parts` equal ones of a slice.
    slice: Ints
    part: Ints
    parts: Ints
    tensor: Ints
    bytes: Ints
    sum_host: Ints
    sum_slice: Ints
    sum_part: Ints
    sum_parts: Ints
    sum_delay_ps: Ints
    #: From nodes to those that carry them on.
    edges: tuple[Edges, ...]
    #: From nodes to those that come later for no other reason than that they share something that is busy.
    orders: tuple[Edges, ...] = ()
    #: Who sends, receives and sums is a host below this number, and a switch from it on, as in `Cluster.nodes`.
    first_switch: int = 1 << 40
    #: How many of the sums, the first ones, are made packet by packet while messages are under way: in switches, and
    #: at servers behind these. Nobody has such a message whole before sums of it come back. They are of as many slices.
    sums_under_way: int = 0

    @cached_property
    def brings_sums(self) -> NDArray[np.bool_]:
        """Whether each message comes after the sum, and so concerns the worker that receives it alone."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in BRINGS_SUMS])

    @cached_property
    def under_way(self) -> NDArray[np.bool_]:
        """Whether each message is summed packet by packet while it is under way, or brings such sums back."""
        return np.asarray(self.slice < self.sums_under_way)

    @cached_property
    def passes_on(self) -> NDArray[np.bool_]:
        """Whether each message carries what another one has brought."""
        passes_on = np.zeros(len(self.kind), dtype=np.bool_)
        for source, target in self.edges:
            between = (kind_of(source) == kind_of(MESSAGE)) & (kind_of(target) == kind_of(MESSAGE))
            passes_on[index_of(target[between])] = True
        return passes_on

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Hosts that send messages to others, and to whom, in order; what switches sum is for nobody else."""
        apart = (self.src != self.dst) & ~self.under_way
        pairs = np.unique(np.stack([self.src[apart], self.dst[apart]], axis=1), axis=0)
        return tuple((src, dst) for src, dst in pairs.tolist())

    @cached_property
    def hosts(self) -> frozenset[int]:
        """Hosts that send, receive or sum."""
        return frozenset(np.concatenate([self.src, self.dst, self.sum_host]).tolist())


@dataclass(frozen=True)
class Architecture:
    """A way to sum gradients."""

    draw: Callable[[Cargo], Graph]
    #: Messages of one slice among so many hosts that compute.
    messages_per_slice: Callable[[int], int]
    #: Parts into which they cut a slice, each of which goes its own way.
    parts_per_slice: Callable[[int], int] = lambda n: 1
    has_servers: bool = False
    fewest_hosts: int = 2
    #: Whether what was gathered for the forward pass is let go, and comes the same way again for the backward pass.
    regathers: bool = False


_Numbers = TypeVar("_Numbers", int, Ints)


def index_of(nodes: _Numbers) -> _Numbers:
    """Return the indices of nodes inside their kind."""
    return nodes & _INDEX


def kind_of(nodes: _Numbers) -> _Numbers:
    """Return the kinds of nodes: 0 for a message, then in the order of the list above."""
    return nodes >> 40


def cut(total: int, parts: int) -> list[int]:
    """Cut a number into parts that are as equal as whole numbers allow; some are 0 where there are more parts.

    >>> cut(10, 4)
    [2, 3, 2, 3]
    """
    return [share(total, part, parts) for part in range(parts)]


def share(total: _Numbers, part: _Numbers, parts: _Numbers) -> _Numbers:
    """Return how much of a number one of its parts is; of arrays, element by element."""
    return total * (part + 1) // parts - total * part // parts


def draw(architecture: str | Architecture, cargo: Cargo) -> Graph:
    """Return the graph of a job."""
    graph = (ARCHITECTURES[architecture] if isinstance(architecture, str) else architecture).draw(cargo)
    if cargo.gpus_per_host > 1:
        graph = _through_gpus(graph, cargo)
    return _with_barrier(graph, cargo.layers) if cargo.barrier else graph


def delays_ps(sizes: Sequence[int] | Ints, rate_bps: int) -> Ints:
    """Return how long so many bytes take at a rate, each; 0 is at once."""
    distinct, of_each = np.unique(np.asarray(sizes, dtype=np.int64), return_inverse=True)
    times = [serialisation_ps(size, rate_bps) if rate_bps else 0 for size in distinct.tolist()]
    return np.array(times, dtype=np.int64)[of_each.ravel()]


def _servers(cargo: Cargo) -> Graph:
    """Every worker pushes every slice to its server, which sums it and sends the sum back."""
    return _pulls(cargo) if cargo.forward_only else _pushes_and_pulls(cargo)


def _pulls(cargo: Cargo) -> Graph:
    """Servers send every worker every slice for its next forward pass when it is through the present one.

    To ask for them costs nothing here: a request is one small packet, and all are on the way at once.
    """
    workers, slices = len(cargo.hosts), len(cargo.tensor)
    piece = np.repeat(np.arange(slices), workers)
    index = np.tile(np.arange(workers), slices)
    pull = np.arange(slices * workers)
    none = np.zeros(0, dtype=np.int64)
    last_layer = index * cargo.layers + cargo.layers - 1
    return Graph(
        kind=np.full(len(pull), KINDS.index("pull")),
        src=cargo.server[piece],
        dst=np.array(cargo.hosts)[index],
        slice=piece,
        part=np.zeros_like(pull),
        parts=np.ones_like(pull),
        tensor=cargo.tensor[piece],
        bytes=cargo.bytes[piece],
        sum_host=none,
        sum_slice=none,
        sum_part=none,
        sum_parts=none,
        sum_delay_ps=none,
        edges=((MESSAGE + pull, GATE + index * cargo.layers + cargo.tensor[piece]),),
        orders=((FORWARD + last_layer, MESSAGE + pull),),
    )


def _pushes_and_pulls(cargo: Cargo) -> Graph:
    workers, slices = len(cargo.hosts), len(cargo.tensor)
    piece = np.repeat(np.arange(slices), workers)
    index = np.tile(np.arange(workers), slices)
    host, server = np.array(cargo.hosts)[index], cargo.server[piece]
    push = np.arange(slices * workers)
    pull = push + slices * workers
    own = index * cargo.layers + cargo.tensor[piece]
    zeros, ones = np.zeros(slices, dtype=np.int64), np.ones(slices, dtype=np.int64)
    return Graph(
        kind=np.repeat([KINDS.index("push"), KINDS.index("pull")], slices * workers),
        src=np.concatenate([host, server]),
        dst=np.concatenate([server, host]),
        slice=np.tile(piece, 2),
        part=np.zeros(2 * len(push), dtype=np.int64),
        parts=np.ones(2 * len(push), dtype=np.int64),
        tensor=np.tile(cargo.tensor[piece], 2),
        bytes=np.tile(cargo.bytes[piece], 2),
        sum_host=cargo.server,
        sum_slice=np.arange(slices),
        sum_part=zeros,
        sum_parts=ones,
        sum_delay_ps=delays_ps(cargo.bytes, cargo.sum_rate_bps),
        edges=(
            (GRADIENT + own, MESSAGE + push),
            (MESSAGE + push, SUM + piece),
            (SUM + piece, MESSAGE + pull),
            (MESSAGE + pull, GATE + own),
        ),
    )


def _before_servers(cargo: Cargo) -> Graph:
    """Every worker sends every slice to its server, the first ones through switches that sum them, and gets sums back.

    What switches sum goes packet by packet: the first of a sum are back before the last have left.
    """
    graph = _pushes_and_pulls(cargo)
    delays = np.where(graph.sum_slice < cargo.summed, 0, graph.sum_delay_ps)
    return replace(graph, sum_delay_ps=delays, sums_under_way=cargo.summed)


def _in_switches(cargo: Cargo) -> Graph:
    """Every worker sends the first slices to the root of the switches that sum them, and gets sums back from there.

    `JobPlan.sums` has the switches between. All other slices go to servers.
    """
    graph = _before_servers(cargo)
    kind = np.where(graph.brings_sums, KINDS.index("gather"), KINDS.index("reduce"))
    return replace(
        graph,
        kind=np.where(graph.under_way, kind, graph.kind),
        first_switch=int(cargo.server[: cargo.summed].min()),
    )


def _ring(cargo: Cargo) -> Graph:
    """Reduce-scatter, then all-gather: at step k, worker s + k passes part s on to worker s + k + 1."""
    n, slices = len(cargo.hosts), len(cargo.tensor)
    steps = 2 * (n - 1)
    piece, part, step = (axis.ravel() for axis in np.indices((slices, n, steps)))
    message = np.arange(len(piece))
    sender, receiver = (part + step) % n, (part + step + 1) % n
    tensor, hosts = cargo.tensor[piece], np.array(cargo.hosts)
    reduces, gathers = step < n - 1, step >= n - 1
    starts_gather, ends_reduce = step == n - 1, step == n - 2
    goes_on = ~starts_gather & (step > 0)
    total = piece * n + part
    sums = np.arange(slices * n)
    # The worker before the part's first one adds the last gradient and so holds the sum first.
    last = (sums % n + n - 1) % n
    last_own = last * cargo.layers + cargo.tensor[sums // n]
    return Graph(
        kind=np.where(reduces, KINDS.index("reduce"), KINDS.index("gather")),
        src=hosts[sender],
        dst=hosts[receiver],
        slice=piece,
        part=part,
        parts=np.full(len(piece), n),
        tensor=tensor,
        bytes=_part_bytes(cargo, n)[piece, part],
        sum_host=hosts[last],
        sum_slice=sums // n,
        sum_part=sums % n,
        sum_parts=np.full(len(sums), n),
        sum_delay_ps=np.zeros(len(sums), dtype=np.int64),
        edges=(
            (GRADIENT + (sender * cargo.layers + tensor)[reduces], MESSAGE + message[reduces]),
            (MESSAGE + (message - 1)[goes_on], MESSAGE + message[goes_on]),
            (MESSAGE + message[ends_reduce], SUM + total[ends_reduce]),
            (GRADIENT + last_own, SUM + sums),
            (SUM + total[starts_gather], MESSAGE + message[starts_gather]),
            (SUM + sums, GATE + last_own),
            (MESSAGE + message[gathers], GATE + (receiver * cargo.layers + tensor)[gathers]),
        ),
    )


def gathered_after(layers: int, prefetch: int) -> tuple[Ints, Ints]:
    """Return after which step of an iteration each layer's parameters may be gathered: again, and for the next pass.

    An iteration has 2 L steps, the forward pass of L layers and the backward pass of the last to the first; those of
    the next iteration follow. What step p needs may be gathered when step p - prefetch - 1 is over, so that a worker
    never holds more than prefetch + 1 layers. It is not gathered again before its forward pass is over, nor for the
    next iteration before its backward pass is, whose gradient changes it.

    >>> [steps.tolist() for steps in gathered_after(layers=3, prefetch=1)]
    [[3, 2, 2], [5, 5, 6]]
    """
    layer = np.arange(layers)
    backward = 2 * layers - 1 - layer
    again: Ints = np.maximum(backward - prefetch - 1, layer)
    following: Ints = np.maximum(2 * layers + layer - prefetch - 1, backward)
    return again, following


def _after(worker: Ints, step: Ints, layers: int) -> Ints:
    """Return the nodes that are done when workers are through steps of `gathered_after`."""
    kind = np.select([step < layers, step < 2 * layers], [FORWARD, BACKWARD], GATE)
    layer = np.select([step < layers, step < 2 * layers], [step, 2 * layers - 1 - step], step - 2 * layers)
    return np.asarray(kind + worker * layers + layer, dtype=np.int64)


def _sharded(cargo: Cargo) -> Graph:
    """Every worker keeps a part of all parameters (FSDP, ZeRO-3): a ring whose gathers wait until they are asked for.

    Gradients are reduce-scattered as in `_ring`; what is gathered for the next forward pass is let go and gathered
    again for the backward pass. A worker passes on parts of a layer once it may gather that layer itself.
    """
    n, slices, layers = len(cargo.hosts), len(cargo.tensor), cargo.layers
    ring = _ring(cargo)
    piece, part, step = (axis.ravel() for axis in np.indices((slices, n, 2 * (n - 1))))
    (gather,) = np.nonzero(step >= n - 1)
    piece, part, step = piece[gather], part[gather], step[gather]
    again = len(ring.kind) + np.arange(len(gather))
    sender, receiver, tensor = (part + step) % n, (part + step + 1) % n, cargo.tensor[piece]
    goes_on = step > n - 1
    for_backward, for_forward = (steps[tensor] for steps in gathered_after(layers, cargo.prefetch))

    def twice(column: Ints) -> Ints:
        return np.concatenate([column, column[gather]])

    columns = ("src", "dst", "slice", "part", "parts", "tensor", "bytes")
    both: dict[str, Any] = {name: twice(getattr(ring, name)) for name in columns}
    return replace(
        ring,
        kind=np.concatenate([ring.kind, np.full(len(again), KINDS.index("regather"))]),
        **both,
        edges=(
            *ring.edges,
            (MESSAGE + (again - 1)[goes_on], MESSAGE + again[goes_on]),
            (MESSAGE + again, BACKWARD + receiver * layers + tensor),
        ),
        orders=(
            (_after(sender, for_forward, layers), MESSAGE + gather),
            (_after(sender, for_backward, layers), MESSAGE + again),
        ),
    )


def _part_bytes(cargo: Cargo, parts: int) -> Ints:
    """Return the size of every part of every slice."""
    return np.array([cut(size, parts) for size in cargo.bytes.tolist()], dtype=np.int64).reshape(-1, parts)


#: Trees of a tree all-reduce: with two, who passes on in one is a leaf of the other, and both directions of all links
#: work.
TREES = 2


def tree_parents(workers: int, tree: int) -> list[int]:
    """Return the parent of every worker in one of the two trees, -1 for the root.

    The first tree numbers workers from 1 in order: who has an odd number is a leaf, and above a number whose lowest
    set bit is b there is the one nearest with the lowest set bit 2b. The second is the first in a mirror, or, for an
    odd number of workers, shifted by one, so that leaves become inner nodes.

    >>> tree_parents(4, 0), tree_parents(4, 1)
    ([1, 3, 1, -1], [-1, 2, 0, 2])
    """
    parents = []
    for worker in range(workers):
        position = worker + 1
        if tree:
            position = workers + 1 - position if workers % 2 == 0 else position % workers + 1
        lowest = position & -position
        above = (position ^ lowest) | lowest << 1
        if above > workers:
            above = position ^ lowest
        if tree and above:
            above = workers + 1 - above if workers % 2 == 0 else (above - 2) % workers + 1
        parents.append(above - 1)
    return parents


def _tree(cargo: Cargo) -> Graph:
    """Half of every slice is summed up one binary tree and handed down it again, the other half another one."""
    n, slices = len(cargo.hosts), len(cargo.tensor)
    hosts = np.array(cargo.hosts)
    parents = np.array([tree_parents(n, tree) for tree in range(TREES)])
    roots = parents.argmin(axis=1)
    # By slice, tree and child, first all that go up and then all that go down; a root is no child.
    place = np.full((TREES, n), -1)
    child_tree, child = np.nonzero(parents >= 0)
    place[child_tree, child] = np.arange(len(child))
    each = len(child)
    piece = np.repeat(np.arange(slices), each)
    tree, below = np.tile(child_tree, slices), np.tile(child, slices)
    above = parents[tree, below]
    up = np.arange(slices * each)
    down = up + slices * each
    total = piece * TREES + tree
    tensor = cargo.tensor[piece]
    to_root = above == roots[tree]
    # What a child sends up is carried on by what its parent sends up, and what the parent gets from above by what it
    # hands down.
    carried_on = (piece * each + place[tree, above])[~to_root]
    sums = np.arange(slices * TREES)
    root_own = roots[sums % TREES] * cargo.layers + cargo.tensor[sums // TREES]
    own = below * cargo.layers + tensor
    return Graph(
        kind=np.repeat([KINDS.index("reduce"), KINDS.index("gather")], len(up)),
        src=np.concatenate([hosts[below], hosts[above]]),
        dst=np.concatenate([hosts[above], hosts[below]]),
        slice=np.tile(piece, 2),
        part=np.tile(tree, 2),
        parts=np.full(2 * len(up), TREES),
        tensor=np.tile(tensor, 2),
        bytes=np.tile(_part_bytes(cargo, TREES)[piece, tree], 2),
        sum_host=hosts[roots[sums % TREES]],
        sum_slice=sums // TREES,
        sum_part=sums % TREES,
        sum_parts=np.full(len(sums), TREES),
        sum_delay_ps=np.zeros(len(sums), dtype=np.int64),
        edges=(
            (GRADIENT + own, MESSAGE + up),
            (MESSAGE + up[~to_root], MESSAGE + carried_on),
            (MESSAGE + up[to_root], SUM + total[to_root]),
            (GRADIENT + root_own, SUM + sums),
            (SUM + sums, GATE + root_own),
            (SUM + total[to_root], MESSAGE + down[to_root]),
            (MESSAGE + carried_on + len(up), MESSAGE + down[~to_root]),
            (MESSAGE + down, GATE + own),
        ),
    )


#: By the name that a scenario gives them.
ARCHITECTURES = {
    "ps": Architecture(_servers, lambda n: 2 * n, has_servers=True, fewest_hosts=1),
    "ring": Architecture(_ring, lambda n: 2 * n * (n - 1), lambda n: n),
    "tree": Architecture(_tree, lambda n: 2 * TREES * (n - 1), lambda n: TREES),
    "fsdp": Architecture(_sharded, lambda n: 3 * n * (n - 1), lambda n: n, regathers=True),
}

#: The name of the architecture whose workers are not in step: it has no graph of an iteration (docs/asynchronous.md).
ASYNC = "async"


def _not_in_step(cargo: Cargo) -> Graph:
    raise ValueError(f"architecture {ASYNC} has no graph of an iteration")


#: Those of jobs in step, and the one of jobs that are not.
ALL_ARCHITECTURES = ARCHITECTURES | {
    ASYNC: Architecture(_not_in_step, lambda n: 2 * n, has_servers=True, fewest_hosts=1)
}

#: What a policy that has switches sum makes of any architecture, and of servers where sums end at these.
IN_SWITCHES = Architecture(_in_switches, lambda n: 2 * n)
BEFORE_SERVERS = Architecture(_before_servers, lambda n: 2 * n, has_servers=True)


def _through_gpus(graph: Graph, cargo: Cargo) -> Graph:
    """Return the graph among hosts as one among all their GPUs.

    The gradients of a host's GPUs are summed there before its one gradient of the graph goes on, and what comes to its
    gate goes on to all of them; each takes what a ring of them takes, (g - 1) / g of the bytes at the local rate. The
    way to the network is shared, so parts are summed one after another, in the order in which a backward pass makes
    them. What waits until a worker is through a layer waits for all GPUs of its host.
    """
    gpus, layers = cargo.gpus_per_host, cargo.layers
    sources, targets = (np.concatenate([edge[end] for edge in graph.edges]) for end in (0, 1))
    leaves = kind_of(sources) == kind_of(GRADIENT)
    comes = np.isin(kind_of(targets), [kind_of(GATE), kind_of(BACKWARD)])
    kept = ~leaves & ~comes

    def carried(nodes: Ints) -> Ints:
        """Return (slice, part, parts) of messages and sums, one row each."""
        index, is_sum = index_of(nodes), kind_of(nodes) == kind_of(SUM)
        columns = ((graph.slice, graph.sum_slice), (graph.part, graph.sum_part), (graph.parts, graph.sum_parts))
        return np.stack([np.concatenate(both)[index + is_sum * len(graph.kind)] for both in columns], axis=1)

    def on_gpus(nodes: Ints) -> Ints:
        """Return the nodes of all GPUs, one row for each of their host's."""
        worker, layer = np.divmod(index_of(nodes), layers)
        gpu = (worker * gpus)[:, None] + np.arange(gpus)
        return np.asarray((nodes - index_of(nodes))[:, None] + gpu * layers + layer[:, None], dtype=np.int64)

    first = len(graph.sum_host)
    hosts = np.array(cargo.hosts)

    # Up: one sum for every host and part of a slice that leaves it, however many nodes take it on.
    source, target = sources[leaves], targets[leaves]
    what = carried(target)
    tensor = cargo.tensor[what[:, 0]]
    # Backward passes make the last tensor first.
    keys = np.stack([index_of(source) // layers, -tensor, *what.T], axis=1)
    ups, up_of = np.unique(keys, axis=0, return_inverse=True)
    up_of = up_of.ravel()
    up_sum = first + np.arange(len(ups))
    up_gradient = GRADIENT + ups[:, 0] * layers - ups[:, 1]

    # Down: one sum for every part that comes to a gate.
    in_source, in_gate = sources[comes], targets[comes]
    come = carried(in_source)
    down_sum = first + len(ups) + np.arange(len(in_source))
    host = index_of(in_gate) // layers

    added = np.concatenate([ups[:, 2:], come])
    of_slice, part, parts = added.T
    size = share(cargo.bytes[of_slice], part, parts)
    follows = ups[1:, 0] == ups[:-1, 0]
    return replace(
        graph,
        sum_host=np.concatenate([graph.sum_host, hosts[ups[:, 0]], hosts[host]]),
        sum_slice=np.concatenate([graph.sum_slice, of_slice]),
        sum_part=np.concatenate([graph.sum_part, part]),
        sum_parts=np.concatenate([graph.sum_parts, parts]),
        sum_delay_ps=np.concatenate([graph.sum_delay_ps, delays_ps(size * (gpus - 1) // gpus, cargo.local_rate_bps)]),
        edges=(
            (sources[kept], targets[kept]),
            (on_gpus(up_gradient).ravel(), np.repeat(SUM + up_sum, gpus)),
            (SUM + up_sum[up_of], target),
            (in_source, SUM + down_sum),
            (np.repeat(SUM + down_sum, gpus), on_gpus(in_gate).ravel()),
        ),
        orders=(
            *((on_gpus(source).ravel(), np.repeat(target, gpus)) for source, target in graph.orders),
            *([(SUM + up_sum[:-1][follows], SUM + up_sum[1:][follows])] if cargo.local_rate_bps else []),
        ),
    )


def _with_barrier(graph: Graph, layers: int) -> Graph:
    """Return the graph in which a worker's first gate opens after all that opens its other gates."""
    sources, targets = (np.concatenate([edge[end] for edge in graph.edges]) for end in (0, 1))
    later = (kind_of(targets) == kind_of(GATE)) & (index_of(targets) % layers > 0)
    first = targets[later] - index_of(targets[later]) % layers
    return replace(graph, orders=(*graph.orders, (sources[later], first)))
