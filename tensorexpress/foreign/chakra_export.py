"""A job of a plan as Chakra execution traces, one for each worker, for ASTRA-sim and whatever else reads them.

Every layer is a compute node in each pass, and an all-reduce between its backward node and its forward node of the next
iteration: what a worker waits for, without how the network does it. Times are those that an execution of the plan
draws, with stragglers and jitter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from tensorexpress.compute import compute_times
from tensorexpress.errors import PlanError
from tensorexpress.foreign import chakra_nodes as chakra
from tensorexpress.foreign.chakra_nodes import DTYPE, DURATION_PS, NUMEL, PS_PER_MICRO, ChakraNode, Uint64
from tensorexpress.plan import Plan
from tensorexpress.scenario import Job

_Attributes = dict[str, chakra.Attribute | Uint64]


def chakra_traces(plan: Plan, number: int) -> Iterator[bytes]:
    """Yield the trace of every worker of a plan's job with this number, all iterations of the scenario."""
    job = plan.scenario.jobs[number]
    _check(plan, job)
    rounds = plan.scenario.rounds
    forward, backward = compute_times(plan.scenario, rounds)[number]
    metadata = {"schema": "1.0.2-chakra.0.0.4", DTYPE: job.workload.dtype}
    for worker in range(len(job.workers)):
        nodes = _Nodes(job)
        for iteration in range(rounds):
            nodes.add_iteration(forward[iteration, worker].tolist(), backward[iteration, worker].tolist())
        yield chakra.encode(metadata, nodes.nodes)


def _check(plan: Plan, job: Job) -> None:
    """Refuse a job of which all-reduces would tell something else."""
    table = next((layer.name for layer in job.workload.layers if layer.table), None)
    for is_so, what in (
        (job.architecture == "fsdp", "shards its parameters (fsdp)"),
        (job.forward_only, "only infers (forward_only)"),
        (table is not None, f"sends rows of a sparse table (layer {table})"),
    ):
        if is_so:
            raise PlanError(
                f"job {job.name} {what}, which is no all-reduce; accepted: workers that sum whole gradients"
            )
    if any(change.worker is not None and not change.by_iteration for change in plan.scenario.changes):
        raise PlanError(
            f"{plan.scenario.name} changes the pace of a worker at a time, which a trace cannot say; "
            "accepted: changes by iteration"
        )


class _Nodes:
    """The nodes of one worker, in the order in which it comes to them."""

    def __init__(self, job: Job) -> None:
        self.nodes: list[ChakraNode] = []
        self._job = job
        #: The all-reduce of every layer in the iteration before.
        self._sums: list[int] = []

    def add_iteration(self, forward_ps: Sequence[int], backward_ps: Sequence[int]) -> None:
        """Add a forward pass, a backward pass, and an all-reduce behind each of its layers."""
        layers = self._job.workload.layers
        sizes = self._job.workload.tensor_bytes
        micros = iter(_whole_micros([*forward_ps, *reversed(backward_ps)]))
        before = self._sums
        # Behind the last node, the all-reduce of the first layer, is what it follows: that layer's backward pass.
        last = [self.nodes[-2].id] if self.nodes else []
        for index, (layer, time_ps) in enumerate(zip(layers, forward_ps, strict=True)):
            waits_for = before if self._job.barrier and not index else before[index : index + 1]
            last = [self._compute(f"{layer.name}_FWD", [*last, *waits_for], time_ps, next(micros))]
        self._sums = [0] * len(layers)
        for index in reversed(range(len(layers))):
            name = layers[index].name
            last = [self._compute(f"{name}_BWD", last, backward_ps[index], next(micros))]
            attributes: _Attributes = {
                "is_cpu_op": False,
                "comm_type": chakra.ALL_REDUCE,
                "comm_size": sizes[index],
                NUMEL: Uint64(layers[index].params),
            }
            self._sums[index] = self._add(
                f"COMM_COLL_NODE_{name}_ALLREDUCE", chakra.COMM_COLL_NODE, last, 0, attributes
            )

    def _compute(self, name: str, depends_on: Sequence[int], time_ps: int, micros: int) -> int:
        attributes: _Attributes = {"is_cpu_op": False, DURATION_PS: Uint64(time_ps)}
        return self._add(f"COMP_NODE_{name}", chakra.COMP_NODE, depends_on, micros, attributes)

    def _add(self, name: str, type_: int, depends_on: Sequence[int], micros: int, attributes: _Attributes) -> int:
        node = ChakraNode(len(self.nodes), name, type_, tuple(depends_on), micros, attributes)
        self.nodes.append(node)
        return node.id


def _whole_micros(times_ps: Sequence[int]) -> list[int]:
    """Return times in whole microseconds, so that none of their sums is off by more than half of one.

    >>> _whole_micros([600_000] * 5)
    [1, 0, 1, 0, 1]
    """
    ends = [round(end_ps / PS_PER_MICRO) for end_ps in accumulate(times_ps, initial=0)]
    return [end - begin for begin, end in pairwise(ends)]
