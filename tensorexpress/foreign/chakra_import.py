"""Chakra execution traces (.et) as workloads: compute nodes of both passes, and the all-reduce of every gradient.

Nodes are named as MLCommons' text converter names them: COMP_NODE_conv1_FWD, COMP_NODE_conv1_BWD (or _BWD_WG and
_BWD_IG for the gradients of weights and input), COMM_COLL_NODE_conv1_ALLREDUCE. Their order is that of their
dependencies. What `chakra_export.py` writes also says times to the picosecond, and parameters.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tensorexpress.errors import WorkloadError, shown
from tensorexpress.foreign import chakra_nodes as chakra
from tensorexpress.foreign.chakra_linked import is_linked, read_linked
from tensorexpress.foreign.chakra_nodes import DTYPE, DURATION_PS, NUMEL, PS_PER_MICRO, ChakraNode
from tensorexpress.foreign.imported import (
    MOST_PARTS,
    Imported,
    Part,
    imported,
    mean_parts,
    not_data_parallel,
    params_of_bytes,
)
from tensorexpress.units import counted, format_ms
from tensorexpress.workload import DTYPE_BYTES

_COMPUTE = re.compile(r"(?:COMP_NODE_)?(?P<layer>.+?)_(?P<pass>FWD|FORWARD|BWD|BACKWARD)(?:_WG|_IG)?", re.IGNORECASE)
_COLLECTIVE = re.compile(r"(?:COMM_COLL_NODE_)?(?P<layer>.+?)(?:_ALL_?REDUCE|_NONE)?", re.IGNORECASE)


@dataclass
class _Iteration:
    """One iteration as it is read: layers of the forward pass, then gradients as they become ready."""

    forward: list[tuple[str, int]] = field(default_factory=list)
    #: Layer, parameters, and how long the backward pass went on since the gradient before.
    gradients: list[tuple[str, int, int]] = field(default_factory=list)
    #: Backward pass since the last gradient.
    since_ps: int = 0
    #: Whether the backward pass has begun.
    is_backward: bool = False

    def parts(self, place: str) -> list[Part]:
        """Return its layers, each with the gradient of its name; where names come again, the last layer's is first."""
        gradients = defaultdict(list)
        for layer, params, backward_ps in self.gradients:
            gradients[layer].append((params, backward_ps))
        found = []
        for layer, forward_ps in self.forward:
            params, backward_ps = gradients[layer].pop() if gradients[layer] else (0, 0)
            found.append(Part(layer, params, forward_ps, backward_ps))
        for layer, left in gradients.items():
            if left:
                raise WorkloadError(
                    f"{place}: the gradient of {shown(layer)} is summed, and no forward pass has such a layer; "
                    f"accepted: nodes such as COMP_NODE_{shown(layer)[1:-1]}_FWD"
                )
        return found


def read_chakra(place: str, content: bytes, dtype: str | None) -> Imported:
    """Return the workload of a trace; gradients are of type `dtype` where it does not say itself."""
    try:
        metadata, found = chakra.decode(content, MOST_PARTS)
        nodes = list(found)
    except ValueError as error:
        raise WorkloadError(f"{place}: found {error}; accepted: a whole Chakra execution trace (.et)") from None
    said = str(metadata.get(DTYPE, ""))
    of_type = dtype or (said if said in DTYPE_BYTES else "fp32")
    if is_linked(nodes):
        return read_linked(place, nodes, of_type)
    iterations, left_out = _iterations(place, _in_order(place, nodes), of_type)
    of_iterations = [iteration.parts(place) for iteration in iterations]
    _check_same(place, of_iterations)
    parts = mean_parts(of_iterations)
    after_ps = sum(iteration.since_ps for iteration in iterations) // len(iterations)
    notes = [f"compute after the last gradient, {format_ms(after_ps)}"] if after_ps else []
    compute_ps = sum(part.forward_ps + part.backward_ps for part in parts)
    return imported(
        place,
        f"Chakra execution trace, {counted(len(nodes), 'node')}",
        parts,
        dtype=of_type,
        iterations=len(iterations),
        iteration_ps=compute_ps + after_ps,
        notes=[*notes, *left_out],
    )


def _in_order(place: str, nodes: Sequence[ChakraNode]) -> list[ChakraNode]:
    """Return nodes each behind all that it depends on, otherwise as they are in the file."""
    index = {node.id: position for position, node in enumerate(nodes)}
    if len(index) < len(nodes):
        raise WorkloadError(f"{place}: two nodes have the same id; accepted: a trace of one worker, ids that differ")
    waits = [0] * len(nodes)
    followers = defaultdict(list)
    for position, node in enumerate(nodes):
        for other in set(node.depends_on):
            if other not in index:
                raise WorkloadError(
                    f"{place}: node {shown(node.name)} depends on node {other}, which is not there; is the file whole?"
                )
            waits[position] += 1
            followers[index[other]].append(position)
    ready = [position for position, count in enumerate(waits) if not count]
    ordered = []
    while ready:
        position = heapq.heappop(ready)
        ordered.append(nodes[position])
        for follower in followers[position]:
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(ready, follower)
    if len(ordered) < len(nodes):
        raise WorkloadError(f"{place}: {len(nodes) - len(ordered)} nodes depend on each other; accepted: no circles")
    return ordered


def _iterations(place: str, nodes: Iterable[ChakraNode], dtype: str) -> tuple[list[_Iteration], list[str]]:
    """Return iterations, and what was left out; forward compute after backward compute begins the next one."""
    iterations = [_Iteration()]
    left_out: defaultdict[str, int] = defaultdict(int)
    for node in nodes:
        chakra.refuse_transfer(place, node)
        if node.type == chakra.COMP_NODE:
            _compute(place, node, iterations)
        elif node.type == chakra.COMM_COLL_NODE:
            _collective(place, node, iterations[-1], dtype)
        elif node.type in (chakra.MEM_LOAD_NODE, chakra.MEM_STORE_NODE):
            left_out["of memory, whose time the trace does not say"] += 1
    if not iterations[-1].forward:
        raise WorkloadError(
            f"{place}: no node computes a forward pass; accepted: a model's training, not collectives alone"
        )
    return iterations, [f"{counted(count, 'node')} {what}" for what, count in left_out.items()]


def _compute(place: str, node: ChakraNode, iterations: list[_Iteration]) -> None:
    match = _COMPUTE.fullmatch(node.name)
    if match is None:
        raise WorkloadError(
            f"{place}: compute node {shown(node.name)} is of no pass; "
            "accepted: names such as COMP_NODE_conv1_FWD and COMP_NODE_conv1_BWD"
        )
    exact_ps = node.number(DURATION_PS)
    time_ps = node.duration_micros * PS_PER_MICRO if exact_ps is None or exact_ps < 0 else exact_ps
    if match["pass"].upper().startswith("F"):
        if iterations[-1].is_backward:
            iterations.append(_Iteration())
        iterations[-1].forward.append((match["layer"], time_ps))
    else:
        iterations[-1].is_backward = True
        iterations[-1].since_ps += time_ps


def _collective(place: str, node: ChakraNode, iteration: _Iteration, dtype: str) -> None:
    kind, size = chakra.collective(place, node)
    if kind != chakra.ALL_REDUCE:
        raise not_data_parallel(place, f"node {shown(node.name)} is {chakra.name_of(kind)} of {size} bytes")
    if iteration.forward and not iteration.is_backward:
        raise not_data_parallel(place, f"node {shown(node.name)} is ALL_REDUCE of {size} bytes in the forward pass")
    match = _COLLECTIVE.fullmatch(node.name)
    params = node.number(NUMEL)
    if params is None or params < 0:
        params = params_of_bytes(f"{place}: node {shown(node.name)}", size, dtype)
    iteration.gradients.append((match["layer"] if match else node.name, params, iteration.since_ps))
    iteration.since_ps = 0


def _check_same(place: str, iterations: Sequence[Sequence[Part]]) -> None:
    first = [(part.name, part.params) for part in iterations[0]]
    for number, parts in enumerate(iterations[1:], 2):
        if [(part.name, part.params) for part in parts] != first:
            raise WorkloadError(
                f"{place}: iteration {number} has other layers than the first; accepted: the same in all"
            )
