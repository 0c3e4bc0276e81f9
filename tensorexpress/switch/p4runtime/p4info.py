"""P4Info as frozen values: what a program shows to its control plane, by id and by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf import text_format

from tensorexpress.errors import ProgramError, one_line
from tensorexpress.p4runtime_messages import p4info_pb2
from tensorexpress.switch.p4runtime.data_types import checked_width, read_data_type
from tensorexpress.switch.p4runtime.values import DataType
from tensorexpress.switch.program.budgets import LARGEST_DOCUMENT, LONGEST_NAME, beyond
from tensorexpress.switch.program.match_kinds import MATCH_KINDS

#: P4Info's number of a kind of match -> our word for it, which is P4Info's own in small letters.
_KINDS = {
    number: name.lower() for name, number in p4info_pb2.MatchField.MatchType.items() if name.lower() in MATCH_KINDS
}


@dataclass(frozen=True)
class P4Field:
    """A field of a key, a parameter of an action or a field of a controller's header."""

    id: int
    name: str
    width: int


@dataclass(frozen=True)
class MatchField(P4Field):
    """A field of a key; `kind` is P4Info's word for how it matches."""

    kind: str


@dataclass(frozen=True)
class P4Action:
    """An action and its parameters, in order."""

    id: int
    name: str
    parameters: tuple[P4Field, ...]


@dataclass(frozen=True)
class ActionUse:
    """An action that a table lists, and where it may stand."""

    action: P4Action
    in_entries: bool
    as_default: bool


@dataclass(frozen=True)
class P4Table:
    """A table; `profile`, `counter` and `meter` are ids of what is attached to it, 0 for none.

    `unusable` says why the table takes no entries, nothing where it does.
    """

    id: int
    name: str
    fields: tuple[MatchField, ...]
    actions: Mapping[int, ActionUse]
    size: int
    profile: int
    counter: int
    meter: int
    const_default: bool
    const_entries: bool
    idle_timeout: bool
    unusable: str = ""

    @property
    def needs_priority(self) -> bool:
        """Whether several entries can match one packet, so that a priority must say which wins."""
        return any(MATCH_KINDS[field.kind].is_ranked for field in self.fields)


@dataclass(frozen=True)
class P4Profile:
    """An action profile, or a selector. Sizes of 0 are no limit.

    `by_members`: sizes of groups count members, not weights, and no weight is above `max_weight`.
    """

    id: int
    name: str
    tables: tuple[int, ...]
    selector: bool
    size: int
    max_group_size: int
    by_members: bool
    max_weight: int


@dataclass(frozen=True)
class P4Array:
    """An indirect counter, or what a direct counter is attached to (`table`, with size 0)."""

    id: int
    name: str
    size: int = 0
    table: int = 0


@dataclass(frozen=True)
class P4Meter(P4Array):
    """A meter; its kind is two-rate, single-rate or two-colour, as MeterSpec.Type numbers them."""

    kind: int = 0


@dataclass(frozen=True)
class P4Register:
    """A register array and the type of its cells."""

    id: int
    name: str
    size: int
    type: DataType


@dataclass(frozen=True)
class P4ValueSet:
    """A parser value set: the fields of a member, and how many members it holds."""

    id: int
    name: str
    fields: tuple[MatchField, ...]
    size: int


@dataclass(frozen=True)
class P4Digest:
    """A digest and the type of its data."""

    id: int
    name: str
    type: DataType


@dataclass(frozen=True)
class P4Schema:
    """All that a P4Info declares, by id. The controller's headers are () where the program has none."""

    tables: Mapping[int, P4Table]
    actions: Mapping[int, P4Action]
    profiles: Mapping[int, P4Profile]
    counters: Mapping[int, P4Array]
    direct_counters: Mapping[int, P4Array]
    meters: Mapping[int, P4Meter]
    direct_meters: Mapping[int, P4Meter]
    registers: Mapping[int, P4Register]
    value_sets: Mapping[int, P4ValueSet]
    digests: Mapping[int, P4Digest]
    packet_in: tuple[P4Field, ...]
    packet_out: tuple[P4Field, ...]

    def table_named(self, name: str) -> P4Table | None:
        """Return the table of that name."""
        return _named(self.tables, name)

    def action_named(self, name: str) -> P4Action | None:
        """Return the action of that name."""
        return _named(self.actions, name)

    def digest_named(self, name: str) -> P4Digest | None:
        """Return the digest of that name."""
        return _named(self.digests, name)


_Declared = TypeVar("_Declared", P4Table, P4Action, P4Profile, P4Array, P4Meter, P4Register, P4ValueSet, P4Digest)


def _named(declared: Mapping[int, _Declared], name: str) -> _Declared | None:
    return next((one for one in declared.values() if one.name == name), None)


def read_p4info(source: str | Any) -> P4Schema:
    """Return the schema of a P4Info, given in text form or as a P4Info message.

    Raises ProgramError for what is not P4Info, or declares something that no BMv2 program can have.
    """
    info = parse_p4info(source) if isinstance(source, str) else source
    _check_size(info.ByteSize())
    try:
        return _schema(info)
    except RecursionError:
        raise ProgramError("P4Info: its types contain each other; no compiler writes that") from None


def _check_size(size_bytes: int) -> None:
    if size_bytes > LARGEST_DOCUMENT:
        raise beyond("the program", size_bytes, LARGEST_DOCUMENT, "bytes of P4Info")


def _schema(info: Any) -> P4Schema:
    actions = _by_id(
        P4Action(one.preamble.id, one.preamble.name, tuple(_field(parameter, one) for parameter in one.params))
        for one in info.actions
    )
    direct_counters = _by_id(
        P4Array(one.preamble.id, one.preamble.name, table=one.direct_table_id) for one in info.direct_counters
    )
    direct_meters = _by_id(
        P4Meter(one.preamble.id, one.preamble.name, table=one.direct_table_id, kind=one.spec.type)
        for one in info.direct_meters
    )
    headers = {
        one.preamble.name: tuple(_field(field, one) for field in one.metadata)
        for one in info.controller_packet_metadata
    }
    return P4Schema(
        tables=_by_id(_table(one, actions, direct_counters, direct_meters) for one in info.tables),
        actions=actions,
        profiles=_by_id(_profile(one) for one in info.action_profiles),
        counters=_by_id(P4Array(one.preamble.id, one.preamble.name, one.size) for one in info.counters),
        direct_counters=direct_counters,
        meters=_by_id(P4Meter(one.preamble.id, one.preamble.name, one.size, kind=one.spec.type) for one in info.meters),
        direct_meters=direct_meters,
        registers=_by_id(
            P4Register(one.preamble.id, one.preamble.name, one.size, read_data_type(one.type_spec, info.type_info, one))
            for one in info.registers
        ),
        value_sets=_by_id(
            P4ValueSet(one.preamble.id, one.preamble.name, tuple(_match(field, one) for field in one.match), one.size)
            for one in info.value_sets
        ),
        digests=_by_id(
            P4Digest(one.preamble.id, one.preamble.name, read_data_type(one.type_spec, info.type_info, one))
            for one in info.digests
        ),
        packet_in=headers.get("packet_in", ()),
        packet_out=headers.get("packet_out", ()),
    )


def parse_p4info(text: str) -> Any:
    """Return a P4Info message from its text form."""
    info = p4info_pb2.P4Info()
    _check_size(len(text))
    try:
        # Newer compilers write fields that this version of the protocol lacks and no entity depends on.
        text_format.Parse(text, info, allow_unknown_field=True)
    except (text_format.ParseError, UnicodeError, ValueError, RecursionError) as error:
        raise ProgramError(
            f"not a P4Info in text form: {_one_line(error)}; make one with p4c --p4runtime-files"
        ) from None
    return info


def _one_line(error: Exception) -> str:
    return one_line(" ".join(str(error).split())[:LONGEST_NAME])[:LONGEST_NAME]


def _by_id(declared: Iterable[_Declared]) -> dict[int, _Declared]:
    found: dict[int, _Declared] = {}
    for one in declared:
        if one.id == 0 or one.id in found:
            raise ProgramError(f"P4Info: {one.name!r} has the id {one.id}; every id is above zero and used once")
        if len(one.name) > LONGEST_NAME:
            raise beyond(f"P4Info: the name of {one.id}", len(one.name), LONGEST_NAME, "characters")
        found[one.id] = one
    return found


def _field(field: Any, owner: Any) -> P4Field:
    if field.bitwidth <= 0:
        raise ProgramError(
            f"P4Info: {owner.preamble.name!r} has the field {field.name!r} without a width; "
            "values that are not numbers (strings, errors) are not supported"
        )
    return P4Field(field.id, field.name, checked_width(field.bitwidth, owner))


def _match(field: Any, owner: Any, needs_width: bool = True) -> MatchField:
    kind = _KINDS.get(field.match_type)
    if kind is None:
        found = field.other_match_type or field.match_type
        raise ProgramError(
            f"P4Info: {owner.preamble.name!r} matches {field.name!r} by {found!r}; accepted: {', '.join(MATCH_KINDS)}"
        )
    if needs_width:
        _field(field, owner)
    width = checked_width(max(field.bitwidth, 0), owner)
    return MatchField(field.id, field.name or f"field {field.id}", width, kind)


def _table(
    one: Any, actions: Mapping[int, P4Action], counters: Mapping[int, P4Array], meters: Mapping[int, P4Meter]
) -> P4Table:
    uses = {}
    for reference in one.action_refs:
        if reference.id not in actions:
            raise ProgramError(f"P4Info: table {one.preamble.name!r} lists action {reference.id}, which is not there")
        uses[reference.id] = ActionUse(
            actions[reference.id],
            in_entries=reference.scope != p4info_pb2.ActionRef.DEFAULT_ONLY,
            as_default=reference.scope != p4info_pb2.ActionRef.TABLE_ONLY,
        )
    return P4Table(
        id=one.preamble.id,
        name=one.preamble.name,
        fields=tuple(_match(field, one, needs_width=False) for field in one.match_fields),
        actions=uses,
        size=one.size,
        profile=one.implementation_id,
        counter=next((id for id in one.direct_resource_ids if id in counters), 0),
        meter=next((id for id in one.direct_resource_ids if id in meters), 0),
        const_default=one.const_default_action_id != 0,
        const_entries=one.is_const_table,
        idle_timeout=one.idle_timeout_behavior != p4info_pb2.Table.NO_TIMEOUT,
        unusable=_without_width(one.match_fields),
    )


def _without_width(fields: Iterable[Any]) -> str:
    """Return why a table with these fields in its key takes no entries, nothing if it does."""
    names = [field.name for field in fields if field.bitwidth <= 0]
    return f"match field {names[0]!r} has no width: errors and strings cannot be matched here" if names else ""


def _profile(one: Any) -> P4Profile:
    return P4Profile(
        id=one.preamble.id,
        name=one.preamble.name,
        tables=tuple(one.table_ids),
        selector=one.with_selector,
        size=one.size,
        max_group_size=one.max_group_size,
        by_members=one.HasField("sum_of_members"),
        max_weight=one.sum_of_members.max_member_weight,
    )
