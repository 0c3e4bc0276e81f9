"""Makes a switch hold exactly what is wanted: reads what it has, and writes only the difference."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorexpress.control.client import Connection
from tensorexpress.control.controls import controls, heights
from tensorexpress.control.entities import KINDS, Entity, all_places, decode_entity, initial_entities
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.errors import NetworkError
from tensorexpress.p4 import P4Program
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
    there = {entity.identity: entity for entity in found}
    inserted, modified, unchanged = [], [], []
    for entity in wanted:
        before = there.pop(entity.identity, None)
        if before == entity:
            unchanged.append(entity)
        elif before is not None or entity.is_permanent:
            modified.append(entity)
        else:
            inserted.append(entity)
    left = there.values()
    # What cannot be deleted comes to rest; what rests already is not worth a mention.
    modified += [entity.at_rest() for entity in left if entity.is_permanent and entity.at_rest() != entity]
    deleted = [entity for entity in left if not entity.is_permanent]
    return Changes(tuple(inserted), tuple(modified), tuple(deleted), tuple(unchanged))


def count(changes: Changes, schema: ProgramSchema) -> list[TableChanges]:
    """Return the numbers of changes for each table of the program, and for all else that was looked at."""
    kinds = ("inserted", "modified", "deleted", "unchanged")
    counts = {kind: Counter(entity.place for entity in getattr(changes, kind)) for kind in kinds}
    own = all_places(schema)
    others = sorted(set().union(*counts.values()) - set(own))
    return [TableChanges(name, *(counts[kind][name] for kind in kinds)) for name in [*own, *others]]


def steps(changes: Changes, schema: ProgramSchema) -> list[list[tuple[int, Entity]]]:
    """Return the writes in an order in which no packet is without a way, as (type of update, entity) lists.

    What others refer to is there before them and goes after them, and what is no longer wanted goes last of all. Only
    where a table would overflow does it have to make room first. A switch may reorder what is in one list.
    """
    height = heights(control.references for control in controls())
    upwards = range(max(height.values(), default=0) + 1)
    crowded = _crowded_places(changes, schema)

    def at(level: int, kind: int, entities: Iterable[Entity]) -> list[tuple[int, Entity]]:
        return [(kind, entity) for entity in entities if height.get(entity.place, 0) == level]

    early = [entity for entity in changes.deleted if entity.place in crowded]
    late = [entity for entity in changes.deleted if entity.place not in crowded]
    ordered = [
        *(at(level, _DELETE, early) for level in upwards),
        *(at(level, _INSERT, changes.inserted) + at(level, _MODIFY, changes.modified) for level in reversed(upwards)),
        *(at(level, _DELETE, late) for level in upwards),
    ]
    return [step for step in ordered if step]


def rooms(entities: Iterable[Entity], schema: ProgramSchema) -> Iterator[tuple[str, int, int]]:
    """Yield where there is only so much room: the place, how many of the entities want to be there, its room."""
    needed: Counter[str] = Counter()
    room: dict[str, int] = {}
    for entity in entities:
        size = entity.room(schema)
        if size is not None:
            needed[entity.place] += 1
            room[entity.place] = size
    return ((place, needed[place], room[place]) for place in needed)


def _crowded_places(changes: Changes, schema: ProgramSchema) -> set[str]:
    held = (*changes.inserted, *changes.modified, *changes.deleted, *changes.unchanged)
    return {place for place, needed, room in rooms(held, schema) if needed > room}


def cookie_of(program: P4Program) -> int:
    """Return the number by which a switch is known to run exactly this program."""
    digest = hashlib.sha256(program.document + b"\0" + program.p4info.encode())
    return int.from_bytes(digest.digest()[:8], "big")


def running_program(connection: Connection, program: P4Program, schema: ProgramSchema) -> str:
    """Return whether the switch runs this program (OURS), another (OTHER) or none (NONE)."""
    running = connection.read_pipeline()
    if running is None:
        return NONE
    return OURS if running == (schema.p4info, cookie_of(program)) else OTHER


def read_entities(connection: Connection, schema: ProgramSchema, wanted: Sequence[Entity] = ()) -> list[Entity]:
    """Return all that a controller sets on a switch that runs our program.

    Of arrays that packets change as well, those alone are read of which cells are wanted.
    """
    found = []
    for kind in KINDS:
        for query in kind.queries(schema, wanted):
            answer = connection.read_if_implemented(query)
            if answer is None:
                raise NetworkError(f"{connection.target}: cannot read {kind.plural} over P4Runtime; {kind.remedy}")
            found += [decode_entity(schema, message) for message in answer]
    return found


def reconcile(
    connection: Connection,
    program: P4Program,
    schema: ProgramSchema,
    wanted: Sequence[Entity],
    *,
    dry_run: bool = False,
) -> Changes:
    """Make the switch run the program and hold exactly the entities wanted; return what that took.

    A dry run writes nothing. What was interrupted can be repeated, because every run starts from what is there.
    """
    state = running_program(connection, program, schema)
    if state != OURS and not dry_run:
        connection.push_pipeline(schema.p4info, program.document, cookie_of(program))
    is_foreseen = state != OURS and dry_run
    found = initial_entities(schema, wanted) if is_foreseen else read_entities(connection, schema, wanted)
    changes = replace(difference(wanted, found), program=state)
    if not dry_run:
        write_changes(connection, schema, changes)
    return changes


def write_changes(connection: Connection, schema: ProgramSchema, changes: Changes) -> None:
    """Write what a difference asks for, step by step."""
    for step in steps(changes, schema):
        updates = [{"type": kind, "entity": entity.content(schema)} for kind, entity in step]
        connection.write(updates, lambda update: _show(schema, update))


def _show(schema: ProgramSchema, update: dict[str, Any]) -> str:
    entity = decode_entity(schema, p4runtime_pb2.Entity(**update["entity"]))
    return f"{p4runtime_pb2.Update.Type.Name(update['type']).lower()} of {entity.place} {entity.show(schema)}"
