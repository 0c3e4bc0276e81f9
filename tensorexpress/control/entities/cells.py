"""Cells of the arrays of a program: of meters, counters and registers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from tensorexpress.control.entities.base import Entity
from tensorexpress.control.messages import ProgramSchema, encode_signed, fitting
from tensorexpress.errors import PlanError, ProgramError
from tensorexpress.p4runtime_messages import p4runtime_pb2


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

    def content(self, schema: ProgramSchema) -> dict[str, Any]:
        array = schema.find(self.kind, self.array)
        if not 0 <= self.index < array.size:
            raise PlanError(f"{self.kind} {self.array} has no cell {self.index}; accepted: 0 to {array.size - 1}")
        named = {f"{self.kind}_id": array.preamble.id, "index": {"index": self.index}}
        return {f"{self.kind}_entry": {**named, **self._held(schema)}}

    @abstractmethod
    def _held(self, schema: ProgramSchema) -> dict[str, Any]:
        """Return what a message says of what the cell holds."""

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

    def _held(self, schema: ProgramSchema) -> dict[str, Any]:
        return {} if self.rates is None else {"config": asdict(self.rates)}

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

    def _held(self, schema: ProgramSchema) -> dict[str, Any]:
        return {"data": {"byte_count": self.octets, "packet_count": self.packets}}

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

    def _held(self, schema: ProgramSchema) -> dict[str, Any]:
        where, (width, is_signed) = f"{self.array} cell {self.index}", _number_type(schema, self.array)
        if not is_signed:
            return {"data": {"bitstring": fitting(where, self.value, width)}}
        most = (1 << width - 1) - 1
        if not ~most <= self.value <= most:
            raise PlanError(f"{where} is {self.value}; accepted: {~most} to {most}, which {width} bits hold")
        return {"data": {"bitstring": encode_signed(self.value)}}

    @classmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> RegisterEntry:
        entry = message.register_entry
        name = schema.name(entry.register_id)
        _, is_signed = _number_type(schema, name)
        return cls(name, entry.index.index, int.from_bytes(entry.data.bitstring, "big", signed=is_signed))

    def _show(self, schema: ProgramSchema) -> str:
        return str(self.value)


@lru_cache(maxsize=64)  # asked for every cell
def _number_type(schema: ProgramSchema, register: str) -> tuple[int, bool]:
    """Return the bits of a register's cells, and whether they are signed."""
    kind = schema.find("register", register).type_spec
    if kind.WhichOneof("type_spec") != "bitstring" or kind.bitstring.WhichOneof("type_spec") not in ("bit", "int"):
        raise ProgramError(f"register {register!r} does not hold numbers; accepted: cells of bit<N> or int<N>")
    is_signed = kind.bitstring.WhichOneof("type_spec") == "int"
    return (kind.bitstring.int if is_signed else kind.bitstring.bit).bitwidth, is_signed
