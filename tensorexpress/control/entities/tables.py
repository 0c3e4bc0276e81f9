"""Entries of tables, and their default actions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, ClassVar, TypeAlias

from tensorexpress.addresses import format_mac
from tensorexpress.control.entities.base import Entity
from tensorexpress.control.messages import ProgramSchema, decode, fitting, short
from tensorexpress.errors import ProgramError
from tensorexpress.p4runtime_messages import p4info_pb2, p4runtime_pb2

#: One field of a key: a value where it must match exactly, (value, prefix length) for a longest prefix.
Match: TypeAlias = int | tuple[int, int]

_LPM = p4info_pb2.MatchField.LPM


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

    def encode(self, schema: ProgramSchema) -> Any:
        message = p4runtime_pb2.Entity()
        table = schema.find("table", self.table)
        fields = {field.name: field for field in table.match_fields}
        message.table_entry.table_id = table.preamble.id
        for name, value in self.key:
            if name not in fields:
                raise ProgramError(f"table {self.table!r} has no field {name!r}")
            _fill_match(message.table_entry, f"{self.table} {name}", fields[name], value)
        _fill_call(schema, message.table_entry.action.action, self.action)
        return message

    @classmethod
    def is_in(cls, message: Any) -> bool:
        return message.WhichOneof("entity") == "table_entry" and not message.table_entry.is_default_action

    @classmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> TableEntry:
        entry = message.table_entry
        table = schema.numbered(entry.table_id)
        given = {match.field_id: match for match in entry.match}
        key = tuple((field.name, _read_match(field, given.get(field.id))) for field in table.match_fields)
        return cls(short(table.preamble.name), key, _read_call(schema, entry.action.action))

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
        widths = {field.name: field.bitwidth for field in schema.find("table", self.table).match_fields}
        shown = " ".join(f"{name}={_show_match(value, widths[name])}" for name, value in self.key)
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

    def encode(self, schema: ProgramSchema) -> Any:
        message = self.query(schema, self.table)
        _fill_call(schema, message.table_entry.action.action, self.action)
        return message

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


def _fill_match(message: Any, where: str, field: Any, value: Match) -> None:
    if isinstance(value, int):
        match = message.match.add(field_id=field.id)
        match.exact.value = fitting(where, value, field.bitwidth)
    elif value[1]:
        # A prefix of no bits matches anything; P4Runtime then wants the field left out.
        match = message.match.add(field_id=field.id)
        match.lpm.value = fitting(where, value[0], field.bitwidth)
        match.lpm.prefix_len = value[1]


def _read_match(field: Any, message: Any) -> Match:
    if field.match_type == _LPM:
        return (decode(message.lpm.value), message.lpm.prefix_len) if message is not None else (0, 0)
    return decode(message.exact.value)


def _fill_call(schema: ProgramSchema, message: Any, call: Call) -> None:
    action = schema.find("action", call.action)
    params = {param.name: param for param in action.params}
    message.action_id = action.preamble.id
    for name, value in call.arguments:
        if name not in params:
            raise ProgramError(f"action {call.action!r} has no parameter {name!r}")
        param = params[name]
        message.params.add(param_id=param.id, value=fitting(f"{call.action} {name}", value, param.bitwidth))


def _read_call(schema: ProgramSchema, message: Any) -> Call:
    return _call(schema, message.action_id, {param.param_id: param.value for param in message.params})


def _call(schema: ProgramSchema, number: int, given: Mapping[int, bytes]) -> Call:
    action = schema.numbered(number)
    return Call(short(action.preamble.name), tuple((param.name, decode(given[param.id])) for param in action.params))


def _show_call(schema: ProgramSchema, call: Call) -> str:
    widths = {param.name: param.bitwidth for param in schema.find("action", call.action).params}
    shown = ", ".join(f"{name}={_show_value(value, widths[name])}" for name, value in call.arguments)
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
