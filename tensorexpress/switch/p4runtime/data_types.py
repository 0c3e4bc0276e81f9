"""The types of what registers and digests hold, as P4Info declares them."""

from __future__ import annotations

from typing import Any

from tensorexpress.errors import ProgramError
from tensorexpress.switch.p4runtime.values import Bits, Bool, DataType, Members, Names
from tensorexpress.switch.program.budgets import MOST_MEMBERS, WIDEST_BITS, beyond


def checked_width(bits: int, owner: Any) -> int:
    """Return a width that is not beyond the budget; `owner` is what declares it."""
    if bits > WIDEST_BITS:
        raise beyond(f"P4Info: a value of {owner.preamble.name!r}", bits, WIDEST_BITS, "bits")
    return bits


def read_data_type(spec: Any, types: Any, owner: Any) -> DataType:
    """Return the type of what a register or a digest holds."""
    return _TypeReader(types, owner).read(spec)


class _TypeReader:
    """Reads the type of one owner's data; types within types may not have more than so many members in all."""

    def __init__(self, types: Any, owner: Any):
        self._types = types
        self._owner = owner
        self._name = owner.preamble.name
        self._members = 0

    def read(self, spec: Any) -> DataType:
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise ProgramError(f"P4Info: {self._name!r} has data of more than {MOST_MEMBERS} members")
        form = spec.WhichOneof("type_spec")
        if form == "bitstring":
            return self._bits(spec.bitstring)
        if form == "bool":
            return Bool()
        if form == "error":
            return Names(tuple(self._types.error.members), is_error=True)
        if form == "tuple":
            return Members("tuple", tuple(self.read(member) for member in spec.tuple.members))
        if form in ("struct", "header", "enum", "serializable_enum", "new_type"):
            return self._named(form, getattr(spec, form).name)
        raise ProgramError(f"P4Info: {self._name!r} has data of type {form!r}, which is not supported")

    def _named(self, form: str, name: str) -> DataType:
        declared = getattr(self._types, {"serializable_enum": "serializable_enums"}.get(form, f"{form}s"))
        if name not in declared:
            raise ProgramError(f"P4Info: {self._name!r} has data of type {name!r}, which type_info lacks")
        spec = declared[name]
        if form == "struct":
            return Members("struct", tuple(self.read(member.type_spec) for member in spec.members))
        if form == "header":
            self._members += len(spec.members)
            return Members("header", tuple(self._bits(member.type_spec) for member in spec.members))
        if form == "enum":
            return Names(tuple(member.name for member in spec.members))
        if form == "serializable_enum":
            return Bits(checked_width(spec.underlying_type.bitwidth, self._owner), is_enum=True)
        if spec.HasField("original_type"):
            return self.read(spec.original_type)
        if spec.translated_type.sdn_bitwidth > 0:
            return Bits(checked_width(spec.translated_type.sdn_bitwidth, self._owner))
        raise ProgramError(f"P4Info: values of type {name!r} are strings (sdn_string), which is not supported")

    def _bits(self, spec: Any) -> Bits:
        form = spec.WhichOneof("type_spec")
        if form == "bit":
            return Bits(checked_width(spec.bit.bitwidth, self._owner))
        if form == "int":
            return Bits(checked_width(spec.int.bitwidth, self._owner), signed=True)
        raise ProgramError(f"P4Info: {self._name!r} has data of type {form!r}; accepted: bit, int")
