"""What a controller can set on a switch: a class for each kind of entity, and the list of them, `KINDS`.

An entity is a frozen value that speaks of the program by name alone. Its class knows all that there is to know about
its kind: how P4Runtime says it, both ways; what to ask a switch for; what makes two of them the same one; how it comes
and goes; and words for people. Whoever deploys, compares or shows entities knows none of the kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorexpress.control.entities.base import Entity
from tensorexpress.control.entities.cells import CellEntry, CounterEntry, MeterEntry, Rates, RegisterEntry
from tensorexpress.control.entities.copies import CLONE_SESSIONS, MULTICAST_GROUPS, CloneEntry, MulticastEntry
from tensorexpress.control.entities.tables import Call, DefaultEntry, TableEntry, table_size
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.errors import ProgramError

__all__ = [
    "CELL_KINDS",
    "CLONE_SESSIONS",
    "KINDS",
    "MULTICAST_GROUPS",
    "Call",
    "CellEntry",
    "CloneEntry",
    "CounterEntry",
    "DefaultEntry",
    "Entity",
    "MeterEntry",
    "MulticastEntry",
    "Rates",
    "RegisterEntry",
    "TableEntry",
    "all_places",
    "cells_of",
    "decode_entity",
    "initial_entities",
    "table_size",
]

#: All kinds there are.
KINDS: tuple[type[Entity], ...] = (
    TableEntry,
    DefaultEntry,
    MulticastEntry,
    CloneEntry,
    MeterEntry,
    CounterEntry,
    RegisterEntry,
)

#: Those of them that are cells of arrays.
CELL_KINDS: tuple[type[CellEntry], ...] = (MeterEntry, CounterEntry, RegisterEntry)


def decode_entity(schema: ProgramSchema, message: Any) -> Entity:
    """Return the entity that a switch answered with."""
    for kind in KINDS:
        if kind.is_in(message):
            return kind.decode(schema, message)
    raise ProgramError(f"a switch answered with {message.WhichOneof('entity')!r}, which was not asked for")


def initial_entities(schema: ProgramSchema, wanted: Sequence[Entity] = ()) -> list[Entity]:
    """Return what a switch holds that has just begun to run the program; of arrays the cells that are wanted."""
    return [entity for kind in KINDS for entity in kind.initial(schema, wanted)]


def all_places(schema: ProgramSchema) -> list[str]:
    """Return the places that belong to the program and a controller can set."""
    return [place for kind in KINDS for place in kind.places(schema)]


def cells_of(schema: ProgramSchema, array: str) -> type[CellEntry]:
    """Return the kind of an array's cells."""
    for kind in CELL_KINDS:
        if array in schema.names(kind.kind):
            return kind
    known = ", ".join(kind.kind for kind in CELL_KINDS)
    raise ProgramError(f"the program has no {array!r} among these: {known}; deploy with the program of this version")
