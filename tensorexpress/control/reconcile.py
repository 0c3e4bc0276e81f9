"""Makes a switch hold exactly what is wanted: reads what it has, and writes only the difference."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorexpress.control.client import Connection
from tensorexpress.control.entries import (
    CloneSession,
    DefaultEntry,
    Entity,
    Meter,
    MulticastGroup,
    TableEntry,
    identity,
    place,
)
from tensorexpress.control.forward import NEXT_HOPS
from tensorexpress.control.messages import Schema
from tensorexpress.control.p4info import P4Type
from tensorexpress.p4 import Program
from tensorexpress.p4runtime_messages import p4runtime_pb2

#: Whether a switch runs our program, another one, or none.
OURS, OTHER, NONE = "ours", "other", "none"

_INSERT = p4runtime_pb2.Update.INSERT
_MODIFY = p4runtime_pb2.Update.MODIFY
_DELETE = p4runtime_pb2.Update.DELETE


@dataclass(frozen=True)
class Changes:
    """What has to be, or was, written so that a switch holds what is wanted."""

    inserted: tuple[Entity, ...]
    #: As they are afterwards.
    modified: tuple[Entity, ...]
    #: Nobody wants them: what an earlier plan, or another controller, left behind.
    deleted: tuple[Entity, ...]
    unchanged: tuple[Entity, ...]
    #: The program that the switch ran before: OURS, OTHER or NONE.
    program: str = OURS

    @property
    def is_empty(self) -> bool:
        """Whether the switch was already as wanted."""
        return self.program == OURS and not (self.inserted or self.modified or self.deleted)


@dataclass(frozen=True)
class TableChanges:
    """How many entries of one table, or of another place, changed."""

    place: str
    inserted: int
    modified: int
    deleted: int
    unchanged: int


def difference(wanted: Iterable[Entity], found: Iterable[Entity]) -> Changes:
    """Return what turns what was found into what is wanted."""
    there = {identity(entity): entity for entity in found}
    inserted, modified, unchanged = [], [], []
    for entity in wanted:
        before = there.pop(identity(entity), None)
        if before == entity:
            unchanged.append(entity)
        elif before is not None or isinstance(entity, DefaultEntry | Meter):
            modified.append(entity)
        else:
            inserted.append(entity)
    deleted = []
    for entity in there.values():
        if isinstance(entity, Meter):
            # Cells of a meter cannot be deleted; what nobody limits has no rates, and is not worth a mention.
            modified += [replace(entity, rates=None)] if entity.rates else []
        elif isinstance(entity, DefaultEntry):
            unchanged.append(entity)
        else:
            deleted.append(entity)
    return Changes(tuple(inserted), tuple(modified), tuple(deleted), tuple(unchanged))


def count(changes: Changes, schema: Schema) -> list[TableChanges]:
    """Return the numbers of changes for each table of the program, and for all else that was looked at."""
    kinds = ("inserted", "modified", "deleted", "unchanged")
    counts = {kind: Counter(map(place, getattr(changes, kind))) for kind in kinds}
    own = [*schema.names(P4Type.table), *schema.names(P4Type.meter)]
    others = sorted(set().union(*counts.values()) - set(own))
    return [TableChanges(name, *(counts[kind][name] for kind in kinds)) for name in [*own, *others]]


def steps(changes: Changes, schema: Schema) -> list[list[tuple[int, Entity]]]:
    """Return the writes in an order in which no packet is without a way, as (type of update, entity) lists.

    What others refer to is there before them and goes after them, and what is no longer wanted goes last of all. Only
    where a table would overflow does it have to make room first. A switch may reorder what is in one list.
    """
    crowded = _crowded_tables(changes, schema)
    early = [entity for entity in changes.deleted if place(entity) in crowded]
    late = [entity for entity in changes.deleted if place(entity) not in crowded]
    written = [*((_INSERT, entity) for entity in changes.inserted), *((_MODIFY, entity) for entity in changes.modified)]
    ordered = [
        [(_DELETE, entity) for entity in early],
        [(kind, entity) for kind, entity in written if _is_referred_to(entity)],
        [(kind, entity) for kind, entity in written if not _is_referred_to(entity)],
        [(_DELETE, entity) for entity in late if not _is_referred_to(entity)],
        [(_DELETE, entity) for entity in late if _is_referred_to(entity)],
    ]
    return [step for step in ordered if step]


def _is_referred_to(entity: Entity) -> bool:
    return isinstance(entity, MulticastGroup | CloneSession) or place(entity) == NEXT_HOPS


def _crowded_tables(changes: Changes, schema: Schema) -> set[str]:
    held = (*changes.inserted, *changes.modified, *changes.deleted, *changes.unchanged)
    needed = Counter(entity.table for entity in held if isinstance(entity, TableEntry))
    return {table for table, entries in needed.items() if entries > schema.table_size(table)}


def cookie_of(program: Program) -> int:
    """Return the number by which a switch is known to run exactly this program."""
    digest = hashlib.sha256(program.document + b"\0" + program.p4info.encode())
    return int.from_bytes(digest.digest()[:8], "big")


def running_program(connection: Connection, program: Program, schema: Schema) -> str:
    """Return whether the switch runs this program (OURS), another (OTHER) or none (NONE)."""
    running = connection.read_pipeline()
    if running is None:
        return NONE
    return OURS if running == (schema.p4info, cookie_of(program)) else OTHER


def read_entities(connection: Connection, schema: Schema) -> list[Entity]:
    """Return all that a controller can set on a switch that runs our program."""
    return [schema.from_message(message) for message in connection.read(schema.queries())]


def reconcile(
    connection: Connection, program: Program, schema: Schema, wanted: Sequence[Entity], *, dry_run: bool = False
) -> Changes:
    """Make the switch run the program and hold exactly the entities wanted; return what that took.

    A dry run writes nothing. What was interrupted can be repeated, because every run starts from what is there.
    """
    state = running_program(connection, program, schema)
    if state != OURS and not dry_run:
        connection.push_pipeline(schema.p4info, program.document, cookie_of(program))
    found = schema.initial() if state != OURS and dry_run else read_entities(connection, schema)
    changes = replace(difference(wanted, found), program=state)
    if not dry_run:
        write_changes(connection, schema, changes)
    return changes


def write_changes(connection: Connection, schema: Schema, changes: Changes) -> None:
    """Write what a difference asks for, step by step."""
    for step in steps(changes, schema):
        connection.write([_update(schema, *change) for change in step], lambda update: _show(schema, update))


def _update(schema: Schema, kind: int, entity: Entity) -> Any:
    return p4runtime_pb2.Update(type=kind, entity=schema.to_message(entity))


def _show(schema: Schema, update: Any) -> str:
    entity = schema.from_message(update.entity)
    return f"{p4runtime_pb2.Update.Type.Name(update.type).lower()} of {place(entity)} {schema.show(entity)}"
