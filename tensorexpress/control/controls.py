"""The controls of the P4 program as the controller knows them: what each declares, and the list of all.

A control is a file NAME.p4 that the program includes and, where a controller has to do with it, a module NAME beside
this one that declares it as CONTROL. Nobody else names its tables, counters, meters and registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.util import find_spec

from tensorexpress import p4
from tensorexpress.control.entities import Entity
from tensorexpress.control.intent import Intent, Options
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.control.readings import StatusReading
from tensorexpress.plan import Plan

#: The counter that all controls of ingress share: packets that did not get what they asked for, by why.
EXCEPTIONS = "exceptions"


def _nothing(intent: Intent) -> Iterable[Entity]:
    return ()


def _accept(plan: Plan, options: Options, schema: ProgramSchema) -> None:
    pass


@dataclass(frozen=True)
class P4Control:
    """What one control of the P4 program has, wants and tells."""

    tables: tuple[str, ...] = ()
    meters: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    registers: tuple[str, ...] = ()
    #: What a switch is to hold here. Default actions that are not in it stay those of the program.
    entries: Callable[[Intent], Iterable[Entity]] = _nothing
    #: A place -> places that its entries refer to, which are written before it and deleted after it.
    references: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Refuses a plan, or options, that no switch could follow here; PlanError.
    check: Callable[[Plan, Options, ProgramSchema], None] = _accept
    #: Cell of the counter of exceptions -> what this control counts there, for people.
    exceptions: Mapping[int, str] = field(default_factory=dict)
    #: What it counts, for `status`.
    readings: tuple[StatusReading, ...] = ()


@cache
def controls() -> tuple[P4Control, ...]:
    """Return all controls, in the order in which the program includes them."""
    modules = (f"{__package__}.{name}" for name in p4.included())
    return tuple(import_module(module).CONTROL for module in modules if find_spec(module))


def declared(kind: str) -> list[str]:
    """Return the "tables", "meters", "counters" or "registers" that controls declare."""
    own = [EXCEPTIONS] if kind == "counters" else []
    return [*own, *(name for control in controls() for name in getattr(control, kind))]


def exception_names() -> dict[int, str]:
    """Return what each cell of the counter of exceptions counts, for people."""
    return dict(sorted(item for control in controls() for item in control.exceptions.items()))


def heights(references: Iterable[Mapping[str, tuple[str, ...]]]) -> dict[str, int]:
    """Return how far below others a place is: 1 if something refers to it, 2 if something refers to that, and so on.

    >>> heights([{"routes": ("groups",)}, {"groups": ("hops",)}])
    {'routes': 0, 'groups': 1, 'hops': 2}
    """
    referrers: dict[str, set[str]] = {}
    for mapping in references:
        for place, others in mapping.items():
            for other in others:
                referrers.setdefault(other, set()).add(place)
    height: dict[str, int] = {}
    for place in TopologicalSorter(referrers).static_order():
        height[place] = max((height[other] + 1 for other in referrers.get(place, ())), default=0)
    return height
