"""Entries of tables, and their default actions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, ClassVar, TypeAlias

from tensorexpress.addresses import format_mac
from tensorexpress.control.entities.base import Entity
from tensorexpress.control.messages import ProgramSchema, SchemaPart, decode, fitting, short
from tensorexpress.errors import ProgramError
from tensorexpress.p4runtime_messages import p4runtime_pb2

#: One field of a key: a value where it must match exactly, (value, prefix length) for a longest prefix.
Match: TypeAlias = int | tuple[int, int]


@dataclass(frozen=True, slots=True)
class Call:
    """An action and its arguments, by name, in the order of its parameters."""

    action: str
    arguments: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TableEntry(Entity):
    """An entry of a table; its key holds the fields by name, in the order of the program."""

    plural: ClassVar[str] = "table entries"

    table: str
    key: tuple[tuple[str, Match], ...]
    action: Call

    @property
    def place(self) -> str:
        return self.table

    @property
    def identity(self) -> Hashable:
        return TableEntry, self.table, self.key

    def content(self, schema: ProgramSchema) -> dict[str, Any]:
        fields = schema.parts("table", self.table)
        match = []
        for name, value in self.key:
            if name not in fields:
                raise ProgramError(f"table {self.table!r} has no field {name!r}")
            # A prefix of no bits matches anything; P4Runtime then wants the field left out.
            if isinstance(value, int) or value[1]:
                match.append(_match(f"{self.table} {name}", fields[name], value))
        number = schema.number("table", self.table)
        return {"table_entry": {"table_id": number, "match": match, "action": _action(schema, self.action)}}

    @classmethod
    def is_in(cls, message: Any) -> bool:
        return message.WhichOneof("entity") == "table_entry" and not message.table_entry.is_default_action

    @classmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> TableEntry:
        entry = message.table_entry
        table = schema.name(entry.table_id)
        given = {match.field_id: match for match in entry.match}
        fields = schema.parts("table", table).values()
        key = tuple((field.name, _read_match(field, given.get(field.id))) for field in fields)
        return cls(table, key, _read_call(schema, entry.action.action))

    @classmethod
    def query(cls, schema: ProgramSchema, table: str) -> Any:
        """Return what to read to know the entries of one table."""
        message = p4runtime_pb2.Entity()
        message.table_entry.table_id = schema.number("table", table)
        return message

    @classmethod
    def queries(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Any]:
        return (cls.query(schema, table) for table in schema.names("table"))

    def show(self, schema: ProgramSchema) -> str:
        fields = schema.parts("table", self.table)
        shown = " ".join(f"{name}={_show_match(value, fields[name].width)}" for name, value in self.key)
        return f"{shown} -> {_show_call(schema, self.action)}"

    @classmethod
    def places(cls, schema: ProgramSchema) -> list[str]:
        return schema.names("table")

    def room(self, schema: ProgramSchema) -> int | None:
        return table_size(schema, self.table)


@dataclass(frozen=True, slots=True)
class DefaultEntry(Entity):
    """What a table does with a packet that no entry matches."""

    plural: ClassVar[str] = "default actions"
    is_permanent: ClassVar[bool] = True

    table: str
    action: Call

    @property
    def place(self) -> str:
        return self.table

    @property
    def identity(self) -> Hashable:
        """The table.

        >>> DefaultEntry("l2", Call("drop")).identity == DefaultEntry("l2", Call("flood")).identity
        True
        """
        return DefaultEntry, self.table

    def content(self, schema: ProgramSchema) -> dict[str, Any]:
        number = schema.number("table", self.table)
        entry = {"table_id": number, "action": _action(schema, self.action), "is_default_action": True}
        return {"table_entry": entry}

    @classmethod
    def is_in(cls, message: Any) -> bool:
        return message.WhichOneof("entity") == "table_entry" and bool(message.table_entry.is_default_action)

    @classmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> DefaultEntry:
        entry = message.table_entry
        return cls(schema.name(entry.table_id), _read_call(schema, entry.action.action))

    @classmethod
    def query(cls, schema: ProgramSchema, table: str) -> Any:
        """Return what to read to know the default action of one table."""
        message = p4runtime_pb2.Entity()
        message.table_entry.table_id = schema.number("table", table)
        message.table_entry.is_default_action = True
        return message

    @classmethod
    def queries(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Any]:
        return (cls.query(schema, table) for table in schema.names("table"))

    def show(self, schema: ProgramSchema) -> str:
        return f"default -> {_show_call(schema, self.action)}"

    @classmethod
    def initial(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Entity]:
        for table in schema.p4info.tables:
            if table.HasField("initial_default_action"):
                action = table.initial_default_action
                given = {argument.param_id: argument.value for argument in action.arguments}
                yield cls(short(table.preamble.name), _call(schema, action.action_id, given))


def table_size(schema: ProgramSchema, table: str) -> int:
    """Return how many entries a table holds; one without a key has its default action alone."""
    declared = schema.find("table", table)
    return int(declared.size) if declared.match_fields else 0


def _match(where: str, field: SchemaPart, value: Match) -> dict[str, Any]:
    if isinstance(value, int):
        return {"field_id": field.id, "exact": {"value": fitting(where, value, field.width)}}
    return {"field_id": field.id, "lpm": {"value": fitting(where, value[0], field.width), "prefix_len": value[1]}}


def _read_match(field: SchemaPart, message: Any) -> Match:
    if field.is_prefix:
        return (decode(message.lpm.value), message.lpm.prefix_len) if message is not None else (0, 0)
    return decode(message.exact.value)


def _action(schema: ProgramSchema, call: Call) -> dict[str, Any]:
    """Return the content of a TableAction that makes a call."""
    known, params = schema.parts("action", call.action), []
    for name, value in call.arguments:
        if name not in known:
            raise ProgramError(f"action {call.action!r} has no parameter {name!r}")
        param = known[name]
        params.append({"param_id": param.id, "value": fitting(f"{call.action} {name}", value, param.width)})
    return {"action": {"action_id": schema.number("action", call.action), "params": params}}


def _read_call(schema: ProgramSchema, message: Any) -> Call:
    return _call(schema, message.action_id, {param.param_id: param.value for param in message.params})


def _call(schema: ProgramSchema, number: int, given: Mapping[int, bytes]) -> Call:
    action = schema.name(number)
    params = schema.parts("action", action).values()
    return Call(action, tuple((param.name, decode(given[param.id])) for param in params))


def _show_call(schema: ProgramSchema, call: Call) -> str:
    params = schema.parts("action", call.action)
    shown = ", ".join(f"{name}={_show_value(value, params[name].width)}" for name, value in call.arguments)
    return f"{call.action.rpartition('.')[2]}({shown})"


def _show_match(value: Match, width: int) -> str:
    return _show_value(value, width) if isinstance(value, int) else f"{_show_value(value[0], width)}/{value[1]}"


def _show_value(value: int, width: int) -> str:
    """Return a value as people write what usually has this width."""
    if width == 48:
        return format_mac(value.to_bytes(6, "big"))
    if width in (32, 128):
        return str(ip_address(value.to_bytes(width // 8, "big")))
    return str(value)
