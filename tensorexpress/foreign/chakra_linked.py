"""Chakra traces that were linked from a run of PyTorch's: operations of threads, kernels, and sums of buckets.

Their nodes are numbered as they were launched. Kernels have durations and no begins, so they are taken for one after
another. Gradients show only as the buckets that DistributedDataParallel sums: the kernels since the sum before are a
bucket's backward pass. Its forward pass begins with the first operation whose results that backward pass works on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tensorexpress.errors import WorkloadError, shown
from tensorexpress.foreign import chakra_nodes as chakra
from tensorexpress.foreign.chakra_nodes import PS_PER_MICRO, ChakraNode
from tensorexpress.foreign.imported import Imported, Part, imported, listed, not_data_parallel, params_of_bytes
from tensorexpress.units import counted, format_ms

#: What moves no gradients.
_HARMLESS = (chakra.COLLECTIVES.index("BROADCAST"), chakra.COLLECTIVES.index("BARRIER"))


def is_linked(nodes: Sequence[ChakraNode]) -> bool:
    """Whether a trace has operations of a CPU, which launch what others have alone."""
    return any(node.number("is_cpu_op") for node in nodes)


@dataclass(frozen=True)
class _Run:
    """One iteration of a run, in the order of launches."""

    #: Operations of the forward pass that autograd keeps track of, and those of its own thread.
    forward: tuple[ChakraNode, ...]
    backward: tuple[ChakraNode, ...]
    kernels: tuple[ChakraNode, ...]
    sums: tuple[ChakraNode, ...]
    #: Collectives that move no gradients.
    others: tuple[ChakraNode, ...]


def read_linked(place: str, nodes: Sequence[ChakraNode], dtype: str) -> Imported:
    """Return the workload of a trace: a layer for every bucket."""
    run = _run(place, nodes)
    ids = [kernel.id for kernel in run.kernels]
    until_ps = list(accumulate((kernel.duration_micros * PS_PER_MICRO for kernel in run.kernels), initial=0))

    def between_ps(first: int, last: int) -> int:
        return until_ps[bisect_left(ids, last)] - until_ps[bisect_left(ids, first)]

    begin, turn, end = run.forward[0].id, run.backward[0].id, run.sums[-1].id
    spans = list(pairwise([turn, *(node.id for node in run.sums)]))
    uses = _first_uses(run, spans)
    parts = [
        Part(
            f"bucket{number}",
            params_of_bytes(f"{place}: node {shown(node.name)}", node.number("comm_size") or 0, dtype),
            between_ps(use, next_use),
            between_ps(*span),
        )
        for number, (node, span, (use, next_use)) in enumerate(
            zip(run.sums, spans, reversed(list(pairwise([*reversed(uses), turn]))), strict=True)
        )
    ]
    before_ps, after_ps = between_ps(0, begin), until_ps[-1] - until_ps[bisect_left(ids, end)]
    notes = [
        "layers are the buckets that were summed; bucket0 is summed first",
        "kernels have no begins in such a trace and are taken for one after another: nothing of it is idle",
        f"left out: {format_ms(before_ps)} before the first layer and {format_ms(after_ps)} after the last gradient",
    ]
    if run.others:
        notes.append(f"left out: collectives that sum no gradients: {listed({node.name for node in run.others})}")
    return imported(
        place,
        f"Chakra execution trace linked from PyTorch, {counted(len(nodes), 'node')}",
        parts[::-1],
        dtype=dtype,
        iterations=1,
        iteration_ps=until_ps[-1],
        notes=notes,
    )


def _first_uses(run: _Run, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return for every bucket in the order of sums the first forward operation whose results its backward pass needs.

    None is later than that of the bucket summed before it; the last bucket has the first operation.
    """
    known = {operation.id for operation in run.forward}
    uses = []
    first, ids = run.backward[0].id, [node.id for node in run.backward]
    for begin, end in spans:
        of_bucket = run.backward[bisect_left(ids, begin) : bisect_left(ids, end)]
        first = min([first, *(other for node in of_bucket for other in node.depends_on if other in known)])
        uses.append(first)
    return [*uses[:-1], run.forward[0].id]


def _run(place: str, nodes: Sequence[ChakraNode]) -> _Run:
    ordered = sorted(nodes, key=lambda node: node.id)
    tracked = [node for node in ordered if node.number("is_cpu_op") and _sequence(node) >= 0]
    if not tracked:
        raise WorkloadError(f"{place}: no operation has a seq_id; accepted: training that autograd keeps track of")
    thread = tracked[0].number("tid")
    backward = [
        node
        for node in ordered
        if node.number("is_cpu_op") and node.number("tid") != thread and node.id > tracked[0].id
    ]
    if not backward:
        raise WorkloadError(
            f"{place}: no thread but the first computes; accepted: training whose backward pass is seen"
        )
    turn = backward[0].id
    # What autograd keeps track of after the backward pass is another iteration.
    end = next((node.id for node in tracked if node.id > turn and node.number("tid") == thread), 2**64)
    sums, others = _collectives(place, [node for node in ordered if node.id < end], turn)
    return _Run(
        tuple(node for node in tracked if node.id < turn),
        tuple(node for node in backward if node.id < end),
        tuple(
            node for node in ordered if node.type == chakra.COMP_NODE and not node.number("is_cpu_op") and node.id < end
        ),
        sums,
        others,
    )


def _sequence(node: ChakraNode) -> int:
    """Return the number by which autograd keeps track of an operation; -1 where it does not."""
    number = node.number("seq_id")
    return -1 if number is None else number


def _collectives(
    place: str, nodes: Sequence[ChakraNode], turn: int
) -> tuple[tuple[ChakraNode, ...], tuple[ChakraNode, ...]]:
    """Return sums of gradients and what moves none; refuse all others. Operations that launch them say no sizes."""
    sums, others = [], []
    for node in nodes:
        chakra.refuse_transfer(place, node)
        if node.type != chakra.COMM_COLL_NODE or node.number("is_cpu_op"):
            continue
        kind, size = chakra.collective(place, node)
        if kind in _HARMLESS:
            others.append(node)
        elif kind != chakra.ALL_REDUCE or node.id < turn:
            when = "forward" if node.id < turn else "backward"
            raise not_data_parallel(
                place, f"node {shown(node.name)} is {chakra.name_of(kind)} of {size} bytes in the {when} pass"
            )
        else:
            sums.append(node)
    if not sums:
        raise WorkloadError(f"{place}: no kernel sums gradients; accepted: data-parallel training on GPUs")
    return tuple(sums), tuple(others)
