"""Whether a P4Info and a BMv2 program belong together, and what the program starts with."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tensorexpress.errors import ProgramError
from tensorexpress.switch.operations import DeleteEntry, Entry, Key, Operation, SetEntry
from tensorexpress.switch.p4runtime.messages.table_entries import ClientRow
from tensorexpress.switch.p4runtime.p4info import (
    P4Action,
    P4Array,
    P4Digest,
    P4Meter,
    P4Profile,
    P4Register,
    P4Schema,
    P4Table,
    P4ValueSet,
)
from tensorexpress.switch.p4runtime.rows import Initial
from tensorexpress.switch.p4runtime.values import Bits, leaves
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.switch.program.bmv2.values import ArrayInfo, Bmv2Program, TableInfo
from tensorexpress.switch.program.match_kinds import MATCH_KINDS

_Declared = TypeVar("_Declared", P4Profile, P4Array, P4Meter, P4Register, P4ValueSet, P4Digest)


@dataclass(frozen=True)
class Fitted:
    """A P4Info as far as its program carries it out, and what the program starts with."""

    schema: P4Schema
    initial: Initial


def fit(schema: P4Schema, document: bytes) -> Fitted:
    """Bring a P4Info and a program in BMv2 JSON together.

    p4c leaves out of the program what nothing uses (a counter that no action counts in, a table that no packet
    reaches). So does the schema that is returned, but for tables: those are there, and unusable. Raises ProgramError,
    naming what does not fit, when something is there with other fields, actions, widths or sizes.
    """
    program = read_program(document)
    _check_names(schema, program)
    tables = {id: _fitted_table(schema, program, table) for id, table in schema.tables.items()}
    usable = {id for id, table in tables.items() if not table.unusable}
    digests = {digest.name: len(digest.fields) for digest in program.digests.values()}
    used = replace(
        schema,
        tables=tables,
        profiles={
            id: replace(profile, tables=tuple(table for table in profile.tables if table in usable))
            for id, profile in _there(schema.profiles, program.profiles).items()
        },
        counters=_there(schema.counters, program.arrays["counter"]),
        meters=_there(schema.meters, program.arrays["meter"]),
        registers=_there(schema.registers, program.arrays["register"]),
        value_sets=_there(schema.value_sets, program.value_sets),
        digests=_there(schema.digests, digests),
    )
    _check_arrays(used, program)
    for digest in used.digests.values():
        if leaves(digest.type) != digests[digest.name]:
            raise _misfit(
                f"digest {digest.name!r} has {leaves(digest.type)} values in P4Info, "
                f"{digests[digest.name]} in BMv2 JSON"
            )
    return Fitted(used, _initial(used, program))


def _misfit(problem: str, hint: str = "") -> ProgramError:
    return ProgramError(f"the P4Info does not fit the program: {problem}; give the two files of one run of p4c{hint}")


def _there(declared: Mapping[int, _Declared], there: Container[str]) -> dict[int, _Declared]:
    return {id: one for id, one in declared.items() if one.name in there}


def _check_names(schema: P4Schema, program: Bmv2Program) -> None:
    """Refuse a P4Info where each of the two has a table that the other lacks; p4c only leaves tables out."""
    listed = {table.name for table in schema.tables.values()}
    left_out = [name for name in listed if name not in program.tables]
    # Tables without a key are p4c's own as a rule, and in no P4Info.
    strange = [name for name, info in program.tables.items() if info.key and name not in listed]
    if left_out and strange:
        raise _misfit(f"table {min(left_out)!r} is only in P4Info, table {strange[0]!r} only in BMv2 JSON")


def _fitted_table(schema: P4Schema, program: Bmv2Program, table: P4Table) -> P4Table:
    """Return a table that fits the program, or can say why nobody can use it."""
    if table.name not in program.tables:
        return replace(table, unusable="p4c left this table out of the program, since no packet reaches it")
    if not table.unusable:
        _check_table(schema, program, table)
    return table


def _check_table(schema: P4Schema, program: Bmv2Program, table: P4Table) -> None:
    info = program.tables[table.name]
    if len(table.fields) != len(info.key):
        raise _misfit(
            f"table {table.name!r} has {len(table.fields)} match fields in P4Info, {len(info.key)} in BMv2 JSON"
        )
    for field, part in zip(table.fields, info.key, strict=True):
        where = f"match field {field.name!r} of table {table.name!r}"
        if MATCH_KINDS[field.kind].bmv2 != part.kind:
            raise _misfit(f"{where} is {field.kind} in P4Info, {part.kind} in BMv2 JSON")
        _check_width(where, field.width, part.bits)
    for use in table.actions.values():
        _check_action(program, table, info, use.action)
    profile = schema.profiles.get(table.profile)
    if (profile.name if profile else None) != info.profile:
        raise _misfit(f"table {table.name!r} has not the same action profile in P4Info and BMv2 JSON")
    if table.counter and not info.counts:
        raise _misfit(f"table {table.name!r} has a direct counter in P4Info, none in BMv2 JSON")
    if (schema.direct_meters[table.meter].name if table.meter else None) != info.direct_meter:
        raise _misfit(f"table {table.name!r} has not the same direct meter in P4Info and BMv2 JSON")


def _check_action(program: Bmv2Program, table: P4Table, info: TableInfo, action: P4Action) -> None:
    if action.name not in info.actions:
        raise _misfit(f"table {table.name!r} has the action {action.name!r} in P4Info, but not in BMv2 JSON")
    parameters = program.actions[info.actions[action.name]].parameters
    if len(action.parameters) != len(parameters):
        raise _misfit(
            f"action {action.name!r} has {len(action.parameters)} parameters in P4Info, {len(parameters)} in BMv2 JSON"
        )
    for parameter, (_, bits) in zip(action.parameters, parameters, strict=True):
        _check_width(f"parameter {parameter.name!r} of action {action.name!r}", parameter.width, bits)


def _check_width(where: str, declared: int, there: int) -> None:
    if declared != there:
        hint = ", and no type that P4Runtime translates to another width"
        raise _misfit(f"{where} has {declared} bits in P4Info, {there} in BMv2 JSON", hint)


def _check_arrays(schema: P4Schema, program: Bmv2Program) -> None:
    arrays: tuple[tuple[Mapping[int, Any], Mapping[str, ArrayInfo]], ...] = (
        (schema.counters, program.arrays["counter"]),
        (schema.meters, program.arrays["meter"]),
        (schema.registers, program.arrays["register"]),
    )
    for declared, there in arrays:
        for one in declared.values():
            if one.size != there[one.name].size:
                raise _misfit(f"{one.name!r} has {one.size} cells in P4Info, {there[one.name].size} in BMv2 JSON")
    for register in schema.registers.values():
        if isinstance(register.type, Bits):
            _check_width(
                f"register {register.name!r}", register.type.width, program.arrays["register"][register.name].bits
            )
    for profile in schema.profiles.values():
        if profile.selector != (program.profiles[profile.name].selector is not None):
            raise _misfit(f"action profile {profile.name!r} has a selector in only one of P4Info and BMv2 JSON")


def _initial(schema: P4Schema, program: Bmv2Program) -> Initial:
    rows, defaults = {}, {}
    renamed: list[Operation] = []
    for table in schema.tables.values():
        if table.unusable:
            continue
        info = program.tables[table.name]
        # A default that P4Info does not list (p4c makes some up) is none that a controller could name.
        if info.default and any(use.action.name == info.default.action for use in table.actions.values()):
            defaults[table.id] = info.default
        found = []
        for entry, action in info.entries:
            canonical = Entry(entry.table, _canonical_key(table, entry.key), entry.priority)
            found.append(ClientRow(canonical, action, is_const=table.const_entries))
            if canonical != entry:
                renamed += [DeleteEntry(entry), SetEntry(canonical, action)]
        rows[table.id] = tuple(found)
    return Initial(rows, defaults, tuple(renamed))


def _canonical_key(table: P4Table, key: Key) -> Key:
    return tuple(
        MATCH_KINDS[field.kind].canonical(value, field.width) for field, value in zip(table.fields, key, strict=True)
    )
