"""How headers are cut into variables: fields, groups of fields as one number, or bytes that nobody looks into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.bmv2.values import Bmv2Program, FieldInfo, HeaderType
from tensorexpress.switch.program.budgets import Work
from tensorexpress.switch.program.codegen.variables import BYTES, Part, Usage, Var

#: struct's codes for a number of that many bytes; where there are two, the first holds the higher bytes.
_CODES = {1: "B", 2: "H", 3: "BH", 4: "I", 5: "BI", 6: "HI", 8: "Q", 9: "BQ", 10: "HQ", 12: "IQ", 16: "QQ"}
_CODE_BITS = {"B": 8, "H": 16, "I": 32, "Q": 64}


@dataclass(frozen=True, slots=True)
class ByteGroup:
    """Fields that together fill whole bytes; `shifts` are the distances of the fields from the group's low end."""

    fields: tuple[FieldInfo, ...]
    shifts: tuple[int, ...]
    size: int

    @property
    def unit(self) -> Part:
        """The part that names the group as one number."""
        return ("unit", self.fields[0].name)

    @property
    def opaque(self) -> Part:
        """The part that names the group as bytes."""
        return ("raw", self.fields[0].name)


def groups_of(header_type: HeaderType) -> tuple[ByteGroup, ...]:
    """Cut a header into its smallest groups of whole bytes; a varbit field is a group of its own."""
    groups: list[ByteGroup] = []
    open_fields: list[FieldInfo] = []
    bits = 0
    for item in header_type.fields:
        if item.varbit:
            if bits:
                raise ProgramError(f"header type {header_type.name!r}: {item.name!r} does not start at a whole byte")
            groups.append(ByteGroup((item,), (0,), 0))
            continue
        open_fields.append(item)
        bits += item.bits
        if bits % 8 == 0:
            groups.append(_group(open_fields, bits))
            open_fields, bits = [], 0
    if bits:
        raise ProgramError(f"header type {header_type.name!r} does not end at a whole byte")
    return tuple(groups)


def _group(fields: list[FieldInfo], bits: int) -> ByteGroup:
    shifts, left = [], bits
    for item in fields:
        left -= item.bits
        shifts.append(left)
    return ByteGroup(tuple(fields), tuple(shifts), bits // 8)


@dataclass(frozen=True, slots=True)
class Slot:
    """One or more groups as one item of a header's struct: `mode` is fields, unit, raw or varbit."""

    groups: tuple[ByteGroup, ...]
    mode: str

    @property
    def size(self) -> int:
        """Bytes of the slot; 0 for a varbit."""
        return sum(group.size for group in self.groups)

    def codes(self) -> tuple[str, ...]:
        """Return struct's codes: one, or two where no single one fits."""
        if self.mode == "raw":
            return (f"{self.size}s",)
        return tuple(_CODES.get(self.size, "")) or (f"{self.size}s",)

    def parts(self) -> tuple[Part, ...]:
        """Return the parts of the header that are variables of this slot."""
        group = self.groups[0]
        if self.mode in ("fields", "varbit"):
            return tuple(item.name for item in group.fields)
        return (group.unit if self.mode == "unit" else group.opaque,)


def code_bits(code: str) -> int | None:
    """Return the width of one struct code, None for bytes."""
    return _CODE_BITS.get(code)


class Layouts:
    """The layouts of all headers in one generation, given what the generation before used."""

    def __init__(self, program: Bmv2Program, previous: Usage | None, work: Work):
        self._headers = program.headers
        self._previous = previous
        self._work = work
        self._slots: dict[str, tuple[Slot, ...]] = {}
        self._rebuilt: dict[str, bool] = {}
        self._used = None if previous is None else previous.wanted | previous.changed
        self._peers: dict[str, list[str]] = {}
        for header in program.headers.values():
            self._peers.setdefault(header.type.name, []).append(header.name)

    def is_rebuilt(self, header: str) -> bool:
        """Whether headers of this one's type are put together from variables, not copied from the frame."""
        kind = self._headers[header].type
        if kind.name not in self._rebuilt:
            self._rebuilt[kind.name] = self._previous is None or any(
                Var(peer, item.name) in self._previous.changed
                for peer in self._peers[kind.name]
                for item in kind.fields
            )
        return self._rebuilt[kind.name]

    def slots(self, header: str) -> tuple[Slot, ...]:
        """Return the slots of a header's type, those that nobody looks into merged."""
        kind = self._headers[header].type
        if kind.name not in self._slots:
            self._work.spend(len(kind.fields) * len(self._peers[kind.name]))
            self._slots[kind.name] = self._merged([self._mode(kind, group) for group in groups_of(kind)])
        return self._slots[kind.name]

    def _mode(self, kind: HeaderType, group: ByteGroup) -> Slot:
        if group.fields[0].varbit:
            return Slot((group,), "varbit")
        if self._is_used(kind, [item.name for item in group.fields]):
            return Slot((group,), "fields")
        if self._is_used(kind, [group.unit]):
            return Slot((group,), "fields" if len(group.fields) == 1 else "unit")
        return Slot((group,), "raw")

    def _is_used(self, kind: HeaderType, parts: Sequence[Part]) -> bool:
        if self._used is None:
            return True
        return any(Var(peer, part) in self._used for peer in self._peers[kind.name] for part in parts)

    @staticmethod
    def _merged(slots: list[Slot]) -> tuple[Slot, ...]:
        merged: list[Slot] = []
        for slot in slots:
            if merged and slot.mode == "raw" == merged[-1].mode:
                merged[-1] = Slot(merged[-1].groups + slot.groups, "raw")
            else:
                merged.append(slot)
        return tuple(merged)

    def variables(self, header: str) -> list[Var]:
        """Return all variables that make up a header's content, validity aside."""
        if self._headers[header].metadata:
            return [Var(header, item.name) for item in self._headers[header].type.fields]
        parts = [Var(header, part) for slot in self.slots(header) for part in slot.parts()]
        return parts if self.is_rebuilt(header) else [*parts, Var(header, BYTES)]
