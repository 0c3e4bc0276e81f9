"""Entities as P4Runtime messages, both ways. Ids, widths and sizes come from P4Info; names lose their outermost part.

p4c names a table after the controls it is nested in, outermost first. Which control that is, is the program's own
affair, so "TensorIngress.forward.l2" is "forward.l2" here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2
from p4runtime_sh.context import Context, P4Type

from tensorexpress.addresses import format_mac
from tensorexpress.control.entries import (
    Call,
    CloneSession,
    DefaultEntry,
    Entity,
    Match,
    Meter,
    MulticastGroup,
    Rates,
    Replicas,
    TableEntry,
)
from tensorexpress.errors import PlanError, ProgramError

_LPM = p4info_pb2.MatchField.LPM


@lru_cache(maxsize=4)  # parsing takes longer than finding out what is wanted
def parse_p4info(text: str) -> Any:
    """Return P4Info from its text form, as a message that nobody may change."""
    message = p4info_pb2.P4Info()
    try:
        # A field that this version of P4Runtime does not know says nothing that it could use.
        text_format.Parse(text, message, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ProgramError(f"P4Info cannot be read ({error}); make it again with `tensorexpress p4 build`") from None
    return message


def encode(value: int) -> bytes:
    """Return the canonical bytes of a value: as few as it needs, but one.

    >>> encode(0), encode(0x1FF)
    (b'\\x00', b'\\x01\\xff')
    """
    return value.to_bytes(max(1, -(-value.bit_length() // 8)), "big")


def decode(data: bytes) -> int:
    """Return the value of bytes, whether or not they are canonical."""
    return int.from_bytes(data, "big")


class Schema:
    """What P4Info says about a program, by name."""

    def __init__(self, p4info: Any):
        self.p4info = p4info
        self._context = Context()
        self._context.set_p4info(p4info)

    def find(self, kind: P4Type, name: str) -> Any:
        """Return the P4Info of a table, action, meter and so on."""
        found = self._context.get_obj(kind, name)
        if found is None:
            raise ProgramError(f"the program has no {kind.name} {name!r}; deploy with the program of this version")
        return found

    def names(self, kind: P4Type) -> list[str]:
        """Return the names of all tables, meters and so on, in the order of the program."""
        return [short(name) for name, _ in self._context.get_objs(kind)]

    def table_size(self, table: str) -> int:
        """Return how many entries a table holds; one without a key has its default action alone."""
        declared = self.find(P4Type.table, table)
        return int(declared.size) if declared.match_fields else 0

    def register(self, name: str) -> Any:
        """Return the P4Info of a register, which p4runtime-shell's context leaves out."""
        for register in self.p4info.registers:
            if short(register.preamble.name) == name:
                return register
        raise ProgramError(f"the program has no register {name!r}; deploy with the program of this version")

    def header_fields(self, header: str) -> dict[str, int]:
        """Return the fields of a controller's header, "packet_in" or "packet_out": name -> id."""
        return {field.name: field.id for field in self.find(P4Type.controller_packet_metadata, header).metadata}

    def to_message(self, entity: Entity) -> Any:
        """Return an entity as a P4Runtime Entity; PlanError where a value does not fit."""
        message = p4runtime_pb2.Entity()
        match entity:
            case TableEntry():
                self._fill_table_entry(message.table_entry, entity)
            case DefaultEntry():
                message.table_entry.table_id = self._id(P4Type.table, entity.table)
                message.table_entry.is_default_action = True
                self._fill_call(message.table_entry.action.action, entity.action)
            case MulticastGroup():
                group = message.packet_replication_engine_entry.multicast_group_entry
                group.multicast_group_id = entity.number
                _fill_replicas(group, entity.replicas)
            case CloneSession():
                session = message.packet_replication_engine_entry.clone_session_entry
                session.session_id = entity.number
                session.class_of_service = entity.class_of_service
                session.packet_length_bytes = entity.packet_length_bytes
                _fill_replicas(session, entity.replicas)
            case Meter():
                self._fill_meter(message.meter_entry, entity)
        return message

    def from_message(self, message: Any) -> Entity:
        """Return the entity that a switch answered with."""
        match message.WhichOneof("entity"):
            case "table_entry":
                return self._table_entry(message.table_entry)
            case "packet_replication_engine_entry":
                return _replication(message.packet_replication_engine_entry)
            case "meter_entry":
                entry = message.meter_entry
                rates = _rates(entry.config) if entry.HasField("config") else None
                return Meter(self._name(entry.meter_id), entry.index.index, rates)
            case kind:
                raise ProgramError(f"a switch answered with {kind!r}, which was not asked for")

    def queries(self) -> Iterator[Any]:
        """Yield what to read, one by one, to know all that a controller can set; one answer is of bounded size."""
        for table in self.names(P4Type.table):
            for is_default in (False, True):
                query = p4runtime_pb2.Entity()
                query.table_entry.table_id = self._id(P4Type.table, table)
                query.table_entry.is_default_action = is_default
                yield query
        for meter in self.names(P4Type.meter):
            query = p4runtime_pb2.Entity()
            query.meter_entry.meter_id = self._id(P4Type.meter, meter)
            yield query
        for kind in ("multicast_group_entry", "clone_session_entry"):
            query = p4runtime_pb2.Entity()
            getattr(query.packet_replication_engine_entry, kind).SetInParent()
            yield query

    def initial(self) -> Iterator[Entity]:
        """Yield what a switch holds that has just begun to run the program: its default actions."""
        for table in self.p4info.tables:
            if table.HasField("initial_default_action"):
                action = table.initial_default_action
                given = {argument.param_id: argument.value for argument in action.arguments}
                yield DefaultEntry(short(table.preamble.name), self._call(action.action_id, given))

    def show(self, entity: Entity) -> str:
        """Return an entity as one line for a person."""
        match entity:
            case TableEntry(table, key, action):
                fields = {field.name: field for field in self.find(P4Type.table, table).match_fields}
                shown = " ".join(f"{name}={_show_match(value, fields[name].bitwidth)}" for name, value in key)
                return f"{shown} -> {self._show_call(action)}"
            case DefaultEntry(_, action):
                return f"default -> {self._show_call(action)}"
            case MulticastGroup(number, replicas) | CloneSession(number, replicas):
                return f"{number} -> ports {', '.join(str(port) for port, _ in sorted(replicas))}"
            case Meter(_, index, rates):
                return f"slot {index}: {f'{rates.cir}/s, burst {rates.cburst}' if rates else 'no limit'}"

    def _show_call(self, call: Call) -> str:
        widths = {param.name: param.bitwidth for param in self.find(P4Type.action, call.action).params}
        shown = ", ".join(f"{name}={_show_value(value, widths[name])}" for name, value in call.arguments)
        return f"{call.action.rpartition('.')[2]}({shown})"

    def _id(self, kind: P4Type, name: str) -> int:
        return int(self.find(kind, name).preamble.id)

    def _name(self, number: int) -> str:
        return short(self._context.get_name_from_id(number))

    def _fill_table_entry(self, message: Any, entry: TableEntry) -> None:
        table = self.find(P4Type.table, entry.table)
        fields = {field.name: field for field in table.match_fields}
        message.table_id = table.preamble.id
        for name, value in entry.key:
            if name not in fields:
                raise ProgramError(f"table {entry.table!r} has no field {name!r}")
            field, where = fields[name], f"{entry.table} {name}"
            if isinstance(value, int):
                match = message.match.add(field_id=field.id)
                match.exact.value = _fitting(where, value, field.bitwidth)
            elif value[1]:
                # A prefix of no bits matches anything; P4Runtime then wants the field left out.
                match = message.match.add(field_id=field.id)
                match.lpm.value = _fitting(where, value[0], field.bitwidth)
                match.lpm.prefix_len = value[1]
        self._fill_call(message.action.action, entry.action)

    def _fill_call(self, message: Any, call: Call) -> None:
        action = self.find(P4Type.action, call.action)
        params = {param.name: param for param in action.params}
        message.action_id = action.preamble.id
        for name, value in call.arguments:
            if name not in params:
                raise ProgramError(f"action {call.action!r} has no parameter {name!r}")
            param = params[name]
            message.params.add(param_id=param.id, value=_fitting(f"{call.action} {name}", value, param.bitwidth))

    def _fill_meter(self, message: Any, meter: Meter) -> None:
        message.meter_id = self._id(P4Type.meter, meter.meter)
        message.index.index = meter.index
        if meter.rates is not None:
            for name in ("cir", "cburst", "pir", "pburst"):
                setattr(message.config, name, getattr(meter.rates, name))

    def _table_entry(self, message: Any) -> TableEntry | DefaultEntry:
        table = self._context.get_obj_by_id(message.table_id)
        name = short(table.preamble.name)
        if message.is_default_action:
            return DefaultEntry(name, self._called(message.action.action))
        given = {match.field_id: match for match in message.match}
        key = tuple((field.name, _match(field, given.get(field.id))) for field in table.match_fields)
        return TableEntry(name, key, self._called(message.action.action))

    def _called(self, message: Any) -> Call:
        return self._call(message.action_id, {param.param_id: param.value for param in message.params})

    def _call(self, number: int, given: Mapping[int, bytes]) -> Call:
        action = self._context.get_obj_by_id(number)
        return Call(
            short(action.preamble.name), tuple((param.name, decode(given[param.id])) for param in action.params)
        )


def short(name: str) -> str:
    """Return a name without the outermost control.

    >>> short("TensorIngress.forward.l2"), short("NoAction")
    ('forward.l2', 'NoAction')
    """
    return name.partition(".")[2] or name


def _fitting(where: str, value: int, width: int) -> bytes:
    if value.bit_length() > width:
        raise PlanError(f"{where} is {value}; accepted: 0 to {(1 << width) - 1}, which {width} bits hold")
    return encode(value)


def _match(field: Any, message: Any) -> Match:
    if field.match_type == _LPM:
        return (decode(message.lpm.value), message.lpm.prefix_len) if message is not None else (0, 0)
    return decode(message.exact.value)


def _fill_replicas(message: Any, replicas: Replicas) -> None:
    for port, instance in sorted(replicas):
        message.replicas.add(egress_port=port, instance=instance)


def _replication(message: Any) -> MulticastGroup | CloneSession:
    if message.WhichOneof("type") == "multicast_group_entry":
        group = message.multicast_group_entry
        return MulticastGroup(group.multicast_group_id, _replicas(group.replicas))
    session = message.clone_session_entry
    return CloneSession(
        session.session_id, _replicas(session.replicas), session.class_of_service, session.packet_length_bytes
    )


def _replicas(messages: Iterable[Any]) -> Replicas:
    return frozenset(
        (decode(each.port) if each.WhichOneof("port_kind") == "port" else each.egress_port, each.instance)
        for each in messages
    )


def _rates(config: Any) -> Rates:
    return Rates(config.cir, config.cburst, config.pir, config.pburst)


def _show_match(value: Match, width: int) -> str:
    return _show_value(value, width) if isinstance(value, int) else f"{_show_value(value[0], width)}/{value[1]}"


def _show_value(value: int, width: int) -> str:
    """Return a value as people write what usually has this width."""
    if width == 48:
        return format_mac(value.to_bytes(6, "big"))
    if width in (32, 128):
        return str(ip_address(value.to_bytes(width // 8, "big")))
    return str(value)
