"""What PyTorch's profiler (Kineto) writes: events of threads and devices, checked and sorted by what they are.

Times of a file are microseconds, here they are integer picoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorexpress.errors import WorkloadError, shown
from tensorexpress.files import parse_json

#: The category of an event, old and new -> what it is here.
_OPERATION, _ANNOTATION, _LAUNCH, _KERNEL, _MODULE = "operation", "annotation", "launch", "kernel", "module"
_CATEGORIES = {
    "cpu_op": _OPERATION,
    "operator": _OPERATION,
    "user_annotation": _ANNOTATION,
    "cuda_runtime": _LAUNCH,
    "cuda_driver": _LAUNCH,
    "runtime": _LAUNCH,
    "kernel": _KERNEL,
    "gpu_memcpy": _KERNEL,
    "gpu_memset": _KERNEL,
    "memcpy": _KERNEL,
    "memset": _KERNEL,
    "python_function": _MODULE,
}

#: What the name of a call of a module begins with.
MODULE = "nn.Module: "

#: Events of a file, and how far from 0 a time may be, in microseconds.
_MOST_EVENTS = 5_000_000
_LATEST_US = 1e17
_LONGEST_US = 1e12
_PS_PER_US = 10**6

_REMEDY = "accepted: a trace that torch.profiler exported (export_chrome_trace)"


@dataclass(frozen=True, slots=True)
class Timed:
    """Something that took time in a thread or on a device."""

    name: str
    thread: tuple[str, str]
    start_ps: int
    end_ps: int
    args: Mapping[str, Any]

    def number(self, key: str) -> int | None:
        """Return an argument that is a whole number from 0 on."""
        value = self.args.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@dataclass
class Profile:
    """The events of a trace by what they are, each list in the order of their starts, enclosing ones first."""

    operations: list[Timed] = field(default_factory=list)
    annotations: list[Timed] = field(default_factory=list)
    launches: list[Timed] = field(default_factory=list)
    kernels: list[Timed] = field(default_factory=list)
    #: Calls of modules, where the profiler was asked for these or for stacks.
    modules: list[Timed] = field(default_factory=list)


def read_events(place: str, content: bytes) -> Profile:
    """Return the events of a trace."""
    try:
        document = parse_json(content)
    except ValueError as error:
        raise WorkloadError(f"{place}: is not JSON ({error}); {_REMEDY}") from None
    listed = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(listed, list):
        if isinstance(document, dict) and "nodes" in document:
            raise WorkloadError(
                f"{place}: is an execution trace of PyTorch's (nodes without times); {_REMEDY} of the same run"
            )
        raise WorkloadError(f"{place}: traceEvents is no list; {_REMEDY}")
    if len(listed) > _MOST_EVENTS:
        raise WorkloadError(f"{place}: has {len(listed)} events; accepted: up to {_MOST_EVENTS}; take fewer iterations")
    return _sorted_out(place, listed)


def _sorted_out(place: str, listed: Iterable[Any]) -> Profile:
    events = Profile()
    lists = {
        _OPERATION: events.operations,
        _ANNOTATION: events.annotations,
        _LAUNCH: events.launches,
        _KERNEL: events.kernels,
        _MODULE: events.modules,
    }
    for number, raw in enumerate(listed):
        if not isinstance(raw, dict):
            raise WorkloadError(f"{place}: event {number} is {shown(raw)}; accepted: an object")
        category = raw.get("cat")
        kind = _CATEGORIES.get(category.lower()) if isinstance(category, str) else None
        if raw.get("ph") == "X" and kind is not None:
            lists[kind].append(_event(f"{place}: event {number}", raw))
    events.modules = [event for event in events.modules if event.name.startswith(MODULE)]
    for each in lists.values():
        each.sort(key=_enclosing_first)
    events.modules.sort(key=_enclosing_first)
    return events


def _enclosing_first(event: Timed) -> tuple[int, int]:
    return event.start_ps, -event.end_ps


def _event(where: str, raw: Mapping[str, Any]) -> Timed:
    name, args = raw.get("name"), raw.get("args", {})
    if not isinstance(name, str) or not isinstance(args, dict):
        raise WorkloadError(f"{where}: name is {shown(name)}, args {shown(args)}; accepted: a text and an object")
    start = _microseconds(where, "ts", raw.get("ts"), -_LATEST_US, _LATEST_US)
    lasts = _microseconds(where, "dur", raw.get("dur", 0), 0, _LONGEST_US)
    thread = (str(raw.get("pid"))[:100], str(raw.get("tid"))[:100])
    return Timed(name, thread, start, start + lasts, args)


def _microseconds(where: str, key: str, value: object, least: float, most: float) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        return round(value * _PS_PER_US)
    raise WorkloadError(f"{where}: {key} is {shown(value)}; accepted: microseconds from {least:g} to {most:g}")
