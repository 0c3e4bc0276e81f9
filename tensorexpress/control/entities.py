"""What a controller can set on a switch: a class for each kind of entity, and the list of them, `KINDS`.

An entity is a frozen value that speaks of the program by name alone. Its class knows all that there is to know about
its kind: how P4Runtime says it, both ways; what to ask a switch for; what makes two of them the same one; how it comes
and goes; and words for people. Whoever deploys, compares or shows entities knows none of the kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any, ClassVar, TypeAlias

from tensorexpress.addresses import format_mac
from tensorexpress.control.messages import ProgramSchema, decode, encode_signed, fitting, short
from tensorexpress.errors import PlanError, ProgramError
from tensorexpress.p4runtime_messages import p4info_pb2, p4runtime_pb2

#: One field of a key: a value where it must match exactly, (value, prefix length) for a longest prefix.
Match: TypeAlias = int | tuple[int, int]

#: (port, replication id) pairs.
Replicas: TypeAlias = frozenset[tuple[int, int]]

#: The switch's own lists, which every program has.
MULTICAST_GROUPS = "multicast groups"
CLONE_SESSIONS = "clone sessions"

_LPM = p4info_pb2.MatchField.LPM


class Entity(ABC):
    """Something that a controller can set."""

    __slots__ = ()

    #: What people call many of this kind.
    plural: ClassVar[str]
    #: Whether it is there as long as the program runs, so that it can be modified and neither inserted nor deleted.
    is_permanent: ClassVar[bool] = False
    #: What to do about a switch that cannot read or set any of this kind.
    remedy: ClassVar[str] = "take a switch that implements all of P4Runtime"

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it is, for reports and references: a table, a counter, or one of the switch's own lists."""

    @property
    @abstractmethod
    def identity(self) -> Hashable:
        """What two entities have in common when one of them takes the place of the other."""

    @abstractmethod
    def encode(self, schema: ProgramSchema) -> Any:
        """Return it as a message; PlanError where a value does not fit, ProgramError where a name is not there."""

    @classmethod
    @abstractmethod
    def is_in(cls, message: Any) -> bool:
        """Whether a message holds an entity of this kind."""

    @classmethod
    @abstractmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> Entity:
        """Return the entity that a message holds, which is of this kind."""

    @classmethod
    @abstractmethod
    def queries(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Any]:
        """Yield what to read, one by one, to know all of this kind that may differ from what is wanted."""

    @abstractmethod
    def show(self, schema: ProgramSchema) -> str:
        """Return it as one line for a person, without its place."""

    @classmethod
    def initial(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Entity]:
        """Yield what a switch holds that has just begun to run the program, of arrays the cells that are wanted."""
        return iter(())

    @classmethod
    def places(cls, schema: ProgramSchema) -> list[str]:
        """Return the places of this kind that belong to the program."""
        return []

    def room(self, schema: ProgramSchema) -> int | None:
        """Return how many of its kind its place has room for; None where nobody says."""
        return None

    def at_rest(self) -> Entity:
        """Return what takes its place when nobody wants it any more but it is permanent."""
        return self


# Tables.


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


# Copies of packets.


@dataclass(frozen=True, slots=True)
class MulticastEntry(Entity):
    """A group of ports that a packet is copied to."""

    plural: ClassVar[str] = MULTICAST_GROUPS

    number: int
    replicas: Replicas

    @property
    def place(self) -> str:
        return MULTICAST_GROUPS

    @property
    def identity(self) -> Hashable:
        return MulticastEntry, self.number

    def encode(self, schema: ProgramSchema) -> Any:
        message = p4runtime_pb2.Entity()
        group = message.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = self.number
        _fill_replicas(group, self.replicas)
        return message

    @classmethod
    def is_in(cls, message: Any) -> bool:
        return _replicates(message) == "multicast_group_entry"

    @classmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> MulticastEntry:
        group = message.packet_replication_engine_entry.multicast_group_entry
        return cls(group.multicast_group_id, _read_replicas(group.replicas))

    @classmethod
    def queries(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Any]:
        query = p4runtime_pb2.Entity()
        query.packet_replication_engine_entry.multicast_group_entry.SetInParent()
        yield query

    def show(self, schema: ProgramSchema) -> str:
        return _show_replicas(self.number, self.replicas)


@dataclass(frozen=True, slots=True)
class CloneEntry(Entity):
    """A session: where clones of a packet go; 0 bytes: they are not truncated."""

    plural: ClassVar[str] = CLONE_SESSIONS

    number: int
    replicas: Replicas
    class_of_service: int = 0
    packet_length_bytes: int = 0

    @property
    def place(self) -> str:
        """Among the sessions.

        >>> CloneEntry(255, frozenset({(255, 0)})).place
        'clone sessions'
        """
        return CLONE_SESSIONS

    @property
    def identity(self) -> Hashable:
        return CloneEntry, self.number

    def encode(self, schema: ProgramSchema) -> Any:
        message = p4runtime_pb2.Entity()
        session = message.packet_replication_engine_entry.clone_session_entry
        session.session_id = self.number
        session.class_of_service = self.class_of_service
        session.packet_length_bytes = self.packet_length_bytes
        _fill_replicas(session, self.replicas)
        return message

    @classmethod
    def is_in(cls, message: Any) -> bool:
        return _replicates(message) == "clone_session_entry"

    @classmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> CloneEntry:
        session = message.packet_replication_engine_entry.clone_session_entry
        replicas = _read_replicas(session.replicas)
        return cls(session.session_id, replicas, session.class_of_service, session.packet_length_bytes)

    @classmethod
    def queries(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Any]:
        query = p4runtime_pb2.Entity()
        query.packet_replication_engine_entry.clone_session_entry.SetInParent()
        yield query

    def show(self, schema: ProgramSchema) -> str:
        return _show_replicas(self.number, self.replicas)


# Cells of arrays.


@dataclass(frozen=True, slots=True)
class CellEntry(Entity):
    """A cell of an array of the program: of a meter, a counter or a register."""

    is_permanent: ClassVar[bool] = True
    #: What P4Info calls such arrays, and P4Runtime their cells.
    kind: ClassVar[str]

    array: str
    index: int

    @property
    def place(self) -> str:
        return self.array

    @property
    def identity(self) -> Hashable:
        return type(self), self.array, self.index

    def encode(self, schema: ProgramSchema) -> Any:
        size = schema.find(self.kind, self.array).size
        if not 0 <= self.index < size:
            raise PlanError(f"{self.kind} {self.array} has no cell {self.index}; accepted: 0 to {size - 1}")
        message = self.query(schema, self.array)
        entry = getattr(message, f"{self.kind}_entry")
        entry.index.index = self.index
        self._fill(schema, entry)
        return message

    @abstractmethod
    def _fill(self, schema: ProgramSchema, entry: Any) -> None:
        """Write what the cell holds."""

    @classmethod
    def is_in(cls, message: Any) -> bool:
        return bool(message.WhichOneof("entity") == f"{cls.kind}_entry")

    @classmethod
    def query(cls, schema: ProgramSchema, array: str) -> Any:
        """Return what to read to know all cells of one array."""
        message = p4runtime_pb2.Entity()
        setattr(getattr(message, f"{cls.kind}_entry"), f"{cls.kind}_id", schema.number(cls.kind, array))
        return message

    @classmethod
    def queries(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Any]:
        # Packets change what these arrays hold; only cells that somebody wants to be so and not otherwise are ours.
        arrays = {entity.array for entity in wanted if isinstance(entity, cls)}
        return (cls.query(schema, array) for array in schema.names(cls.kind) if array in arrays)

    @classmethod
    def initial(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Entity]:
        return (cls(entity.array, entity.index) for entity in wanted if isinstance(entity, cls))

    @classmethod
    def all_of(cls, schema: ProgramSchema, array: str, *content: Any) -> list[Entity]:
        """Return all cells of an array, each with the same content."""
        return [cls(array, index, *content) for index in range(schema.find(cls.kind, array).size)]

    def show(self, schema: ProgramSchema) -> str:
        return f"cell {self.index}: {self._show(schema)}"

    @abstractmethod
    def _show(self, schema: ProgramSchema) -> str:
        """Return what the cell holds."""


@dataclass(frozen=True, slots=True)
class Rates:
    """A two-rate three-colour meter: units/s and burst units, bytes or packets as the meter counts."""

    cir: int
    cburst: int
    pir: int
    pburst: int


@dataclass(frozen=True, slots=True)
class MeterEntry(CellEntry):
    """A cell of a meter; without rates every packet is green."""

    plural: ClassVar[str] = "meters"
    kind: ClassVar[str] = "meter"

    rates: Rates | None = None

    def _fill(self, schema: ProgramSchema, entry: Any) -> None:
        if self.rates is not None:
            for name in ("cir", "cburst", "pir", "pburst"):
                setattr(entry.config, name, getattr(self.rates, name))

    @classmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> MeterEntry:
        entry, rates = message.meter_entry, None
        if entry.HasField("config"):
            rates = Rates(entry.config.cir, entry.config.cburst, entry.config.pir, entry.config.pburst)
        return cls(schema.name(entry.meter_id), entry.index.index, rates)

    @classmethod
    def queries(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Any]:
        return (cls.query(schema, meter) for meter in schema.names(cls.kind))

    def _show(self, schema: ProgramSchema) -> str:
        return f"{self.rates.cir}/s, burst {self.rates.cburst}" if self.rates else "no limit"

    @classmethod
    def places(cls, schema: ProgramSchema) -> list[str]:
        return schema.names(cls.kind)

    def at_rest(self) -> MeterEntry:
        return replace(self, rates=None)


@dataclass(frozen=True, slots=True)
class CounterEntry(CellEntry):
    """A cell of a counter, which packets change."""

    plural: ClassVar[str] = "counters"
    kind: ClassVar[str] = "counter"

    packets: int = 0
    octets: int = 0

    def _fill(self, schema: ProgramSchema, entry: Any) -> None:
        entry.data.packet_count = self.packets
        entry.data.byte_count = self.octets

    @classmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> CounterEntry:
        entry = message.counter_entry
        return cls(schema.name(entry.counter_id), entry.index.index, entry.data.packet_count, entry.data.byte_count)

    def _show(self, schema: ProgramSchema) -> str:
        return f"{self.packets} packets, {self.octets} bytes"


@dataclass(frozen=True, slots=True)
class RegisterEntry(CellEntry):
    """A cell of a register, which packets change. It holds a number; no server of P4Runtime gives structs away yet."""

    plural: ClassVar[str] = "registers"
    kind: ClassVar[str] = "register"
    remedy: ClassVar[str] = (
        "BMv2 implements neither reading nor setting them; take the embedded switch, or let packets set them"
    )

    value: int = 0

    def _fill(self, schema: ProgramSchema, entry: Any) -> None:
        where, (width, is_signed) = f"{self.array} cell {self.index}", _number_type(schema, self.array)
        if not is_signed:
            entry.data.bitstring = fitting(where, self.value, width)
            return
        most = (1 << width - 1) - 1
        if not ~most <= self.value <= most:
            raise PlanError(f"{where} is {self.value}; accepted: {~most} to {most}, which {width} bits hold")
        entry.data.bitstring = encode_signed(self.value)

    @classmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> RegisterEntry:
        entry = message.register_entry
        name = schema.name(entry.register_id)
        _, is_signed = _number_type(schema, name)
        return cls(name, entry.index.index, int.from_bytes(entry.data.bitstring, "big", signed=is_signed))

    def _show(self, schema: ProgramSchema) -> str:
        return str(self.value)


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


# Matches, actions, replicas, numbers.


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


def _replicates(message: Any) -> str | None:
    if message.WhichOneof("entity") != "packet_replication_engine_entry":
        return None
    kind: str | None = message.packet_replication_engine_entry.WhichOneof("type")
    return kind


def _fill_replicas(message: Any, replicas: Replicas) -> None:
    for port, instance in sorted(replicas):
        message.replicas.add(egress_port=port, instance=instance)


def _read_replicas(messages: Iterable[Any]) -> Replicas:
    return frozenset(
        (decode(each.port) if each.WhichOneof("port_kind") == "port" else each.egress_port, each.instance)
        for each in messages
    )


def _number_type(schema: ProgramSchema, register: str) -> tuple[int, bool]:
    """Return the bits of a register's cells, and whether they are signed."""
    kind = schema.find("register", register).type_spec
    if kind.WhichOneof("type_spec") != "bitstring" or kind.bitstring.WhichOneof("type_spec") not in ("bit", "int"):
        raise ProgramError(f"register {register!r} does not hold numbers; accepted: cells of bit<N> or int<N>")
    is_signed = kind.bitstring.WhichOneof("type_spec") == "int"
    return (kind.bitstring.int if is_signed else kind.bitstring.bit).bitwidth, is_signed


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


def _show_replicas(number: int, replicas: Replicas) -> str:
    return f"{number} -> ports {', '.join(str(port) for port, _ in sorted(replicas))}"
