"""The variables of generated code: which there are, and which of them the stages read and write.

A program is generated several times. Each time records which variables the stages read and write; the next time leaves
out what nobody reads, until nothing changes. So a field that is never looked at is never extracted, and a header that
is never written to leaves as the bytes it came in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: A part of a header: the name of a field, or a tuple, which no name can be.
Part = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Var:
    """A variable of generated code: a field of a header, or one of the parts below."""

    header: str
    part: Part


VALID, BYTES, NEXT, PACKED = ("valid",), ("bytes",), ("next",), ("packed",)

_DECISION = "decision"


def decision(what: str) -> Var:
    """Return the variable that stands for something that a pass decides about the packet itself."""
    return Var("", (_DECISION, what))


def is_decision(var: Var) -> bool:
    """Whether a variable stands for a decision about the packet."""
    return isinstance(var.part, tuple) and var.part[0] == _DECISION


@dataclass
class Usage:
    """Which variables the stages use. Stages are "ingress" (with the parser) and "egress" (with the deparser)."""

    #: Read or carried along, by stage.
    live: dict[str, set[Var]] = field(default_factory=lambda: {"ingress": set(), "egress": set()})
    #: Read where no value is sure to be, by stage: these start with one.
    exposed: dict[str, set[Var]] = field(default_factory=lambda: {"ingress": set(), "egress": set()})
    #: Given a value, by stage.
    written: dict[str, set[Var]] = field(default_factory=lambda: {"ingress": set(), "egress": set()})
    #: Read by the program itself, not only carried along.
    wanted: set[Var] = field(default_factory=set)
    #: Written by the program itself, not only extracted.
    changed: set[Var] = field(default_factory=set)
    #: Headers that may lose their validity.
    invalidated: set[str] = field(default_factory=set)
