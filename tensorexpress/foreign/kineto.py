"""Traces of PyTorch's profiler (Kineto) as workloads: what is computed before a gradient is ready, and before its use.

Autograd tells in AccumulateGrad when the gradient of a parameter is ready, and of which shape it is. The node of the
graph that ran before it made the gradient; that node's sequence number leads to the operation of the forward pass which
used the parameter. Parameters of one operation, such as weight and bias, are a layer. A layer's forward time runs from
its operation to the next layer's, its backward time from the gradients of the layer behind it to its own.

On a GPU the times of a thread are those of launches. There, an operation begins with the first kernel that is launched
from its begin on, and a gradient is ready when all kernels are through that were launched before. Launch and kernel
have the same correlation, the number that Kineto draws as an arrow (ac2g).

Without shapes, the sums of DistributedDataParallel tell how large its buckets are: then every bucket is a layer.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from tensorexpress.errors import WorkloadError, shown
from tensorexpress.foreign.imported import Imported, Part, imported, listed, mean_parts, not_data_parallel
from tensorexpress.foreign.kineto_events import MODULE, Profile, Timed, read_events
from tensorexpress.units import counted, format_ms

_STEP = re.compile(r"ProfilerStep#?[0-9]+")
_OPTIMIZER = "Optimizer.step#"
_EVALUATES = "autograd::engine::evaluate_function: "
_ACCUMULATES = "torch::autograd::AccumulateGrad"
_SEQUENCE = "Sequence number"

#: Collectives of torch.distributed as operations and as annotations of what carries them out.
_COLLECTIVE = re.compile(r"(?:c10d::|_c10d_functional::|(?:nccl|gloo|mpi|ucc|xccl|hccl):)_*(?P<kind>[a-z_]+?)_*")
_SUMS = ("allreduce", "all_reduce", "allreduce_coalesced", "all_reduce_coalesced")
#: What moves no gradient: buffers, waiting, and each other's presence.
_HARMLESS = ("broadcast", "barrier", "monitored_barrier", "wait_tensor")
_COMMUNICATES = re.compile(r"nccl|rccl|c10d", re.IGNORECASE)

#: What PyTorch calls types of numbers -> ours.
_DTYPES = {"float": "fp32", "half": "fp16", "bfloat16": "bf16"}

_MOST_PARAMS = 10**12
_NO_SHAPES = "profile with record_shapes=True"


@dataclass(frozen=True)
class _Gradient:
    """The gradient of a parameter, or of a bucket: how many parameters, what they are, and when it was ready."""

    params: int
    dtype: str
    ready_ps: int
    #: The operation of the forward pass that used it.
    used_by: Timed
    #: What a bucket is called.
    name: str = ""


@dataclass(frozen=True)
class _Use:
    """An operation of the forward pass with parameters: a layer to be."""

    name: str
    start_ps: int
    params: int
    ready_ps: int


@dataclass(frozen=True)
class _Step:
    """One iteration as it was read."""

    parts: tuple[Part, ...]
    lasts_ps: int
    before_ps: int
    after_ps: int
    dtypes: Counter[str]
    #: Collectives outside of both passes, or such as move no gradient.
    ignored: tuple[str, ...]
    has_buckets: bool
    on_device: bool


def read_kineto(place: str, content: bytes) -> Imported:
    """Return the workload of a trace: the mean of all iterations that have the same layers as most."""
    events = read_events(place, content)
    device = _Device(events)
    steps = [
        step
        for begin_ps, end_ps in _windows(place, events)
        if (step := _step(place, _within(events, begin_ps, end_ps), device, begin_ps, end_ps)) is not None
    ]
    if not steps:
        raise WorkloadError(
            f"{place}: no iteration has a backward pass (AccumulateGrad); accepted: training under torch.profiler"
        )
    layers = Counter(_layers_of(step) for step in steps)
    usual = layers.most_common(1)[0][0]
    alike = [step for step in steps if _layers_of(step) == usual]
    dtypes = sum((step.dtypes for step in alike), Counter[str]())
    dtype, _ = dtypes.most_common(1)[0]
    return imported(
        place,
        f"PyTorch profiler trace, {'a GPU' if alike[0].on_device else 'CPU'}",
        mean_parts([step.parts for step in alike]),
        dtype=dtype,
        iterations=len(alike),
        iteration_ps=sum(step.lasts_ps for step in alike) // len(alike),
        notes=_notes(alike, len(steps) - len(alike), dtypes),
    )


def _layers_of(step: _Step) -> tuple[tuple[str, int], ...]:
    return tuple((part.name, part.params) for part in step.parts)


def _notes(steps: Sequence[_Step], others: int, dtypes: Counter[str]) -> list[str]:
    before_ps, after_ps = (sum(getattr(step, key) for step in steps) // len(steps) for key in ("before_ps", "after_ps"))
    notes = [
        f"left out: {format_ms(before_ps)} before the first layer and {format_ms(after_ps)} after the last gradient, "
        "such as input and optimizer"
    ]
    if steps[0].has_buckets:
        notes.append(
            "no shapes of gradients: layers are the buckets that were summed, bucket0 first; "
            f"for parameters, {_NO_SHAPES}"
        )
    if others:
        notes.append(f"left out: {counted(others, 'iteration')} with other layers")
    if ignored := sorted({name for step in steps for name in step.ignored}):
        notes.append(f"left out: collectives that sum no gradients: {listed(ignored)}")
    if len(dtypes) > 1:
        notes.append(f"gradients are of types {listed(dtypes)}, taken for the first")
    return notes


def _windows(place: str, events: Profile) -> list[tuple[int, int]]:
    """Return begin and end of every iteration: what the profiler marked, or up to every optimizer's step, or all."""
    steps = [event for event in (*events.annotations, *events.operations) if _STEP.fullmatch(event.name)]
    if steps:
        return _apart(sorted((event.start_ps, event.end_ps) for event in steps))
    if not events.operations:
        raise WorkloadError(f"{place}: has no operations of a CPU; accepted: ProfilerActivity.CPU among the activities")
    begin_ps = events.operations[0].start_ps
    end_ps = max(event.end_ps for event in events.operations)
    ends = sorted(event.end_ps for event in events.annotations if event.name.startswith(_OPTIMIZER))
    return list(pairwise(sorted({begin_ps, *ends}))) or [(begin_ps, end_ps)]


def _apart(windows: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return those of sorted windows that do not begin before the one before them ended."""
    found: list[tuple[int, int]] = []
    for window in windows:
        if not found or window[0] >= found[-1][1]:
            found.append(window)
    return found


def _within(events: Profile, begin_ps: int, end_ps: int) -> Profile:
    """Return the events of threads that begin in a window."""
    return Profile(
        *(
            each[_first_from(each, begin_ps) : _first_from(each, end_ps)]
            for each in (events.operations, events.annotations, events.launches, events.kernels, events.modules)
        )
    )


def _first_from(events: Sequence[Timed], at_ps: int) -> int:
    return bisect_left(events, at_ps, key=lambda event: event.start_ps)


def _step(place: str, events: Profile, device: _Device, begin_ps: int, end_ps: int) -> _Step | None:
    """Return an iteration; None for one without a backward pass."""
    evaluated = [event for event in events.operations if event.name.startswith(_EVALUATES)]
    if not any(event.name.endswith(_ACCUMULATES) for event in evaluated):
        return None
    _check_one_pass(place, evaluated)
    backward_ps = evaluated[0].start_ps
    accumulated = [event for event in events.operations if event.name == _ACCUMULATES] or [
        event for event in evaluated if event.name.endswith(_ACCUMULATES)
    ]
    users = _users(events, backward_ps)
    used_by = _used_by(accumulated, evaluated, users)
    gradients = _gradients(place, accumulated, used_by)
    has_buckets = gradients is None
    if gradients is None:
        gradients = _buckets(place, events, device, accumulated, used_by)
    uses = _uses(gradients, events)
    if not uses:
        return None
    clock = device.clock
    ignored = _check_collectives(place, events, uses, backward_ps)
    marks = [clock.begins(use.start_ps) for use in uses]
    backward_began_ps = clock.begins(backward_ps)
    ready = _ready_in_order([clock.ends(use.ready_ps) for use in uses], backward_began_ps)
    parts = tuple(
        Part(use.name, use.params, max(0, after - mark), done - begun)
        for use, (mark, after), (done, begun) in zip(
            uses, pairwise([*marks, backward_began_ps]), pairwise([*ready, backward_began_ps]), strict=True
        )
    )
    dtypes: Counter[str] = Counter()
    for gradient in gradients:
        dtypes[gradient.dtype] += gradient.params
    began_ps, ended_ps = clock.through(begin_ps), clock.through(end_ps)
    return _Step(
        parts,
        ended_ps - began_ps,
        max(0, marks[0] - began_ps),
        max(0, ended_ps - ready[0]),
        dtypes,
        ignored,
        has_buckets,
        bool(clock.launched_ps),
    )


def _check_one_pass(place: str, evaluated: Sequence[Timed]) -> None:
    """Refuse an iteration with several backward passes: each of their graphs is younger than the one before.

    Autograd begins with the youngest node of a graph, the loss.
    """
    numbers = [number for event in evaluated if (number := event.number(_SEQUENCE)) is not None]
    if numbers and max(numbers) > numbers[0]:
        raise WorkloadError(
            f"{place}: an iteration has several backward passes (accumulation, checkpoints, or no marks); "
            "accepted: one forward and one backward pass for every profiler.step()"
        )


def _ready_in_order(ready: Sequence[int], begun_ps: int) -> list[int]:
    """Return when gradients are ready of layers in forward order, none before that of the layer behind it."""
    done: list[int] = []
    last_ps = begun_ps
    for ready_ps in reversed(ready):
        last_ps = max(last_ps, ready_ps)
        done.append(last_ps)
    return done[::-1]


def _users(events: Profile, backward_ps: int) -> dict[int, Timed]:
    """Return the operation of the forward pass by sequence number, as the outermost one that it is a part of.

    Operations that make no node of the graph show the number that the next one will get, so the last one counts.
    """
    users: dict[int, Timed] = {}
    outermost: dict[tuple[str, str], Timed] = {}
    for event in events.operations:
        if event.start_ps >= backward_ps:
            break
        around = outermost.get(event.thread)
        if around is None or event.start_ps >= around.end_ps:
            around = outermost[event.thread] = event
        number = event.number(_SEQUENCE)
        if number is not None:
            users[number] = around
    return users


def _used_by(accumulated: Sequence[Timed], evaluated: Sequence[Timed], users: dict[int, Timed]) -> list[Timed | None]:
    """Return for every gradient what used its parameter: the forward operation of the last node before it."""
    found: list[Timed | None] = []
    last: dict[tuple[str, str], Timed] = {}
    place = 0
    for event in accumulated:
        while place < len(evaluated) and evaluated[place].start_ps < event.start_ps:
            number = evaluated[place].number(_SEQUENCE)
            if number is not None and number in users:
                last[evaluated[place].thread] = users[number]
            place += 1
        found.append(last.get(event.thread))
    return found


def _gradients(place: str, accumulated: Sequence[Timed], used_by: Sequence[Timed | None]) -> list[_Gradient] | None:
    """Return the gradients of an iteration; None where the trace does not say their shapes."""
    found = []
    for event, user in zip(accumulated, used_by, strict=True):
        shapes, types = event.args.get("Input Dims"), event.args.get("Input type")
        if not isinstance(shapes, list) or not shapes:
            return None
        type_ = types[0] if isinstance(types, list) and types and isinstance(types[0], str) else "float"
        params = _params(place, shapes[0])
        if not type_ or not params:
            continue  # no gradient came
        if user is None:
            raise WorkloadError(
                f"{place}: nothing before a gradient of shape {shown(shapes[0])} leads to the forward pass; "
                "accepted: traces with sequence numbers of a whole iteration"
            )
        found.append(_Gradient(params, _dtype(type_), event.end_ps, user))
    return found


def _params(place: str, shape: Any) -> int:
    params = 1
    for side in shape if isinstance(shape, list) else [None]:
        if not isinstance(side, int) or isinstance(side, bool) or side < 0 or params > _MOST_PARAMS:
            raise WorkloadError(f"{place}: a gradient has shape {shown(shape)}; accepted: whole numbers from 0")
        params *= side
    return params


def _dtype(type_: str) -> str:
    return _DTYPES.get(type_.lower().removeprefix("c10::"), "fp32")


def _buckets(
    place: str, events: Profile, device: _Device, accumulated: Sequence[Timed], used_by: Sequence[Timed | None]
) -> list[_Gradient]:
    """Return buckets that were summed as gradients: each has all gradients since the one before."""
    sums = device.sums(events)
    if not sums:
        raise WorkloadError(f"{place}: gradients have no shapes, and no sums say their sizes; {_NO_SHAPES}")
    found = []
    first = 0
    for number, (issued_ps, params, dtype) in enumerate(sums):
        last = first
        while last < len(accumulated) and accumulated[last].end_ps <= issued_ps:
            last += 1
        users = [user for user in used_by[first:last] if user is not None]
        if not users:
            raise WorkloadError(f"{place}: a sum of {params} parameters follows no gradient of its own; {_NO_SHAPES}")
        first_use = min(users, key=lambda user: user.start_ps)
        found.append(_Gradient(params, dtype, issued_ps, first_use, f"bucket{number}"))
        first = last
    return found


def _uses(gradients: Iterable[_Gradient], events: Profile) -> list[_Use]:
    """Return layers in forward order: gradients of the same operation together."""
    together: defaultdict[tuple[int, int, str], list[_Gradient]] = defaultdict(list)
    for gradient in gradients:
        used_by = gradient.used_by
        together[used_by.start_ps, -used_by.end_ps, used_by.name].append(gradient)
    in_order = [same for _, same in sorted(together.items())]
    names = _names([same[0].used_by for same in in_order], events.modules)
    return [
        _Use(
            same[0].name or name,
            same[0].used_by.start_ps,
            sum(gradient.params for gradient in same),
            max(gradient.ready_ps for gradient in same),
        )
        for name, same in zip(names, in_order, strict=True)
    ]


def _names(operations: Sequence[Timed], modules: Sequence[Timed]) -> list[str]:
    """Return what layers are called: the innermost module that was called around each, or the operation itself."""
    found = []
    around: defaultdict[tuple[str, str], list[Timed]] = defaultdict(list)
    place = 0
    for operation in operations:
        while place < len(modules) and modules[place].start_ps <= operation.start_ps:
            _leave(around[modules[place].thread], modules[place].start_ps).append(modules[place])
            place += 1
        inside = _leave(around[operation.thread], operation.start_ps)
        is_inside = inside and inside[-1].end_ps >= operation.end_ps
        found.append(inside[-1].name.removeprefix(MODULE) if is_inside else operation.name.removeprefix("aten::"))
    return found


def _leave(modules: list[Timed], at_ps: int) -> list[Timed]:
    """Take the modules away that were through at a time, and return those that are left."""
    while modules and modules[-1].end_ps <= at_ps:
        modules.pop()
    return modules


def _check_collectives(place: str, events: Profile, uses: Sequence[_Use], backward_ps: int) -> tuple[str, ...]:
    """Refuse an iteration whose passes wait for more than sums of gradients; return what else was found."""
    ignored = []
    last_ps = max(use.ready_ps for use in uses)
    for event in (*events.operations, *events.annotations):
        match = _COLLECTIVE.fullmatch(event.name)
        if match is None:
            continue
        is_sum = match["kind"] in _SUMS
        if is_sum and event.start_ps >= backward_ps:
            continue
        if match["kind"] in _HARMLESS or not uses[0].start_ps <= event.start_ps <= last_ps:
            ignored.append(event.name)
            continue
        if event.start_ps < backward_ps:
            at = [use.name for use in uses if use.start_ps <= event.start_ps][-1]
            where = f"in the forward pass, at layer {shown(at)}"
        else:
            before = [use.name for use in uses if use.ready_ps >= event.start_ps][-1]
            where = f"in the backward pass, before the gradient of {shown(before)}"
        raise not_data_parallel(place, f"{event.name} {where}")
    return tuple(ignored)


class _Clock:
    """When a device began and ended what a thread had begun and ended; the thread itself where nothing was launched."""

    def __init__(self, pairs: Sequence[tuple[Timed, Timed]]) -> None:
        #: By launch: its time, the earliest begin of a kernel from it on, and the latest end of one up to it.
        self.launched_ps = [launch.start_ps for launch, _ in pairs]
        self._begins_ps = list(accumulate((kernel.start_ps for _, kernel in reversed(pairs)), min))[::-1]
        self._ends_ps = list(accumulate((kernel.end_ps for _, kernel in pairs), max))

    def begins(self, at_ps: int) -> int:
        """Return when the device began what a thread launched from a time on; that time, if there is no such thing."""
        index = bisect_left(self.launched_ps, at_ps)
        return self._begins_ps[index] if index < len(self._begins_ps) else self.through(at_ps)

    def ends(self, at_ps: int) -> int:
        """Return when the device was through with what a thread had launched up to a time; without one, that time."""
        index = bisect_left(self.launched_ps, at_ps)
        return self._ends_ps[index - 1] if index else at_ps

    def through(self, at_ps: int) -> int:
        """Return when thread and device were both through with what began before a time."""
        return max(at_ps, self.ends(at_ps))


class _Device:
    """What ran on a device, with the launches of it."""

    def __init__(self, events: Profile) -> None:
        self._kernels: defaultdict[int, list[Timed]] = defaultdict(list)
        for kernel in events.kernels:
            correlation = kernel.number("correlation")
            if correlation is not None:
                self._kernels[correlation].append(kernel)
        # Kernels that communicate are not what a worker computes.
        computes = [pair for pair in self._launched_by(events.launches) if not _COMMUNICATES.search(pair[1].name)]
        self.clock = _Clock(computes)

    def _launched_by(self, launches: Iterable[Timed]) -> list[tuple[Timed, Timed]]:
        """Return launches with their kernels."""
        numbered = [(launch, launch.number("correlation")) for launch in launches]
        return [
            (launch, kernel)
            for launch, number in numbered
            if number is not None
            for kernel in self._kernels.get(number, ())
        ]

    def sums(self, events: Profile) -> list[tuple[int, int, str]]:
        """Return the sums that say their size: when they were issued, of how many parameters, and of what type."""
        found = [(event.start_ps, event) for event in events.operations if _is_sum(event)]
        if not found:
            launched = self._launched_by(events.launches)
            found = [(launch.start_ps, kernel) for launch, kernel in launched if _is_sum(kernel)]
        return sorted(
            (at_ps, event.number("In msg nelems") or 0, _dtype(str(event.args.get("dtype", "float"))))
            for at_ps, event in found
        )


def _is_sum(event: Timed) -> bool:
    return event.args.get("Collective name") in _SUMS and bool(event.number("In msg nelems"))
