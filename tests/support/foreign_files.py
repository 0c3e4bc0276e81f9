"""Small files of other tools, written here in their forms, with the workload that each tells."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorexpress.foreign import chakra_nodes as chakra
from tensorexpress.foreign.chakra_nodes import ChakraNode

#: Layers in forward order: name, shapes of parameters, forward and backward time in microseconds.
LAYERS = (
    ("aten::conv2d", ((8, 3, 3, 3), (8,)), 120, 260),
    ("aten::batch_norm", ((8,), (8,)), 30, 45),
    ("aten::linear", ((10, 512), (10,)), 80, 150),
)

TEXT = (
    "DATA\n3\n"
    "conv1\t-1\t120\tNONE\t0\t0\tNONE\t0\t250\tALLREDUCE\t896\t3\n"
    "norm\t-1\t30\tNONE\t0\t10\tNONE\t0\t20\tALLREDUCE\t64\t1\n"
    "fc\t-1\t80\tNONE\t0\t25\tNONE\t0\t150\tALLREDUCE\t20520\t2\n"
)


@dataclass
class Profile:
    """A trace of PyTorch's profiler that is being written: one thread for forward, one for autograd, one stream."""

    #: Microseconds between what a thread launches; None where the thread computes itself.
    launch_us: float | None = None
    with_shapes: bool = True
    #: Layers behind whose gradients a bucket is summed, by index; none without DistributedDataParallel.
    buckets: tuple[int, ...] = ()
    with_modules: bool = False
    dtype: str = "float"

    def __post_init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._now = 1000.0
        self._device = 0.0
        self._sequence = 0
        self._correlation = 0

    def add_step(
        self, number: int, layers: Sequence[Any] = LAYERS, before_us: float = 50, after_us: float = 70
    ) -> None:
        """Add an iteration: something before it, the passes of all layers, and something after them."""
        start = self._now
        self._idle(before_us)
        sequences = [self._forward(name, forward, len(shapes)) for name, shapes, forward, _ in layers]
        unsummed = 0
        for index in reversed(range(len(layers))):
            _, shapes, _, backward = layers[index]
            self._backward(sequences[index], shapes, backward)
            unsummed += sum(_product(shape) for shape in shapes)
            if index in self.buckets:
                self._sum(unsummed)
                unsummed = 0
        self._idle(after_us)
        self._event(f"ProfilerStep#{number}", "user_annotation", "main", start, self._now - start)

    def annotate(self, name: str, at_us: float, thread: str = "main") -> None:
        """Add an annotation of a moment, such as a collective."""
        self._event(name, "user_annotation", thread, at_us, 1)

    def content(self) -> bytes:
        """Return the file."""
        return json.dumps({"schemaVersion": 1, "traceEvents": self.events}).encode()

    def _forward(self, name: str, lasts: float, nodes: int) -> int:
        """Add an operation that makes some nodes of the graph, and return the sequence number of the first."""
        start, first = self._now, self._sequence
        self._sequence += nodes
        self._work(lasts, "main")
        self._event(name, "cpu_op", "main", start, self._now - start)
        if self.with_modules:
            self._event(
                f"nn.Module: {name.removeprefix('aten::')}_0", "python_function", "main", start, self._now - start
            )
        for node in range(nodes):
            args = {"Sequence number": first + node, "Fwd thread id": 0}
            self._event("aten::inner", "cpu_op", "main", start + node / 8, 1 / 8, args)
        return first

    def _backward(self, first: int, shapes: Sequence[Sequence[int]], lasts: float) -> None:
        """Add a node for every parameter, the last of the layer first, each with a share of the time."""
        for node in reversed(range(len(shapes))):
            start = self._now
            self._work(lasts / len(shapes), "autograd")
            args = {"Sequence number": first + node, "Fwd thread id": 1}
            name = "autograd::engine::evaluate_function: InnerBackward0"
            self._event(name, "cpu_op", "autograd", start, self._now - start, args)
            accumulate = "torch::autograd::AccumulateGrad"
            shaped = {"Input Dims": [list(shapes[node])], "Input type": [self.dtype]} if self.with_shapes else {}
            self._event(f"autograd::engine::evaluate_function: {accumulate}", "cpu_op", "autograd", self._now, 0)
            self._event(accumulate, "cpu_op", "autograd", self._now, 0, shaped)

    def _sum(self, elements: int) -> None:
        args = {"Collective name": "allreduce", "In msg nelems": elements, "dtype": "Float"}
        self._event("record_param_comms", "cpu_op", "autograd", self._now, 0, args)
        self._event("nccl:all_reduce", "user_annotation", "autograd", self._now, 0)
        self._kernel("ncclKernel_AllReduce_RING", "autograd", 10_000, stream="comm", args=args)

    def _work(self, lasts: float, thread: str) -> None:
        if self.launch_us is None:
            self._now += lasts
        else:
            self._kernel("sgemm", thread, lasts)
            self._now += self.launch_us

    def _idle(self, lasts: float) -> None:
        self._now += lasts if self.launch_us is None else self.launch_us

    def _kernel(
        self, name: str, thread: str, lasts: float, stream: str = "compute", args: dict[str, Any] | None = None
    ) -> None:
        self._correlation += 1
        correlated = {"correlation": self._correlation}
        self._event("cudaLaunchKernel", "cuda_runtime", thread, self._now, 1 / 8, correlated)
        start = max(self._now + 1, self._device) if stream == "compute" else self._now + 1
        self._event(name, "kernel", stream, start, lasts, {**correlated, **(args or {})})
        if stream == "compute":
            self._device = start + lasts

    def _event(
        self, name: str, category: str, thread: str, start: float, lasts: float, args: dict[str, Any] | None = None
    ) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 1,
                "tid": thread,
                "ts": start,
                "dur": lasts,
                "args": args or {},
            }
        )


def profile(steps: int = 2, **choices: Any) -> bytes:
    """Return a trace of some iterations."""
    made = Profile(**choices)
    for number in range(steps):
        made.add_step(number)
    return made.content()


def packed(content: bytes) -> bytes:
    """Return a file as gzip packs it."""
    return gzip.compress(content, mtime=0)


def _product(shape: Sequence[int]) -> int:
    params = 1
    for side in shape:
        params *= side
    return params


#: What LAYERS have: name of the layer, parameters, forward and backward time in ps.
EXPECTED = [
    (name.removeprefix("aten::"), sum(map(_product, shapes)), forward * 10**6, backward * 10**6)
    for name, shapes, forward, backward in LAYERS
]

#: Buckets in the order of their sums: parameters, then kernels of the forward and of the backward pass in microseconds.
BUCKETS = ((5130, (80,), (150,)), (240, (120, 30), (45, 260)))


def linked(buckets: Sequence[Any] = BUCKETS, collective: int = chakra.ALL_REDUCE) -> bytes:
    """Return a Chakra trace as it is linked from PyTorch's: one thread for each pass, and what they launched."""
    nodes: list[ChakraNode] = []

    def add(name: str, kind: int, depends_on: Sequence[int] = (), micros: int = 1, **attributes: int | bool) -> int:
        # Numbers leave gaps, and depend on nodes that were left out of the file.
        nodes.append(ChakraNode(10 * len(nodes) + 100, name, kind, (3, *depends_on), micros, attributes))
        return nodes[-1].id

    def operation(name: str, thread: int, sequence: int, depends_on: Sequence[int] = ()) -> int:
        return add(name, chakra.COMP_NODE, depends_on, is_cpu_op=True, tid=thread, seq_id=sequence)

    def kernel(micros: int) -> None:
        add("sgemm", chakra.COMP_NODE, (), micros, is_cpu_op=False, tid=7)

    operation("aten::flatten_dense_tensors", 1, -1)
    kernel(9)
    add("ncclBroadcast", chakra.COMM_COLL_NODE, is_cpu_op=False, comm_type=5, comm_size=40)
    used = {}
    for number, (_, forward, _) in reversed(list(enumerate(buckets))):
        used[number] = operation("aten::linear", 1, number)
        for micros in forward:
            kernel(micros)
    for number, (params, _, backward) in enumerate(buckets):
        operation("aten::mm", 2, -1, [used[number]])
        for micros in backward:
            kernel(micros)
        add("c10d::allreduce_", chakra.COMM_COLL_NODE, is_cpu_op=True, tid=2)
        add(
            "ncclAllReduce", chakra.COMM_COLL_NODE, (), 999, is_cpu_op=False, comm_type=collective, comm_size=4 * params
        )
    operation("aten::_foreach_add_", 1, -1)
    kernel(21)
    return chakra.encode({"schema": "1.0.1"}, nodes)
