"""Integers as P4Runtime writes them: bytestrings, and P4Data for values with a type of their own.

A bytestring of any length is accepted when its value fits the width, and the shortest one is given back. One that
does not fit is INVALID_ARGUMENT: the specification names OUT_OF_RANGE in one section and INVALID_ARGUMENT in those
on match fields and action parameters, and BMv2 answers the latter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorexpress.switch.p4runtime.status import Refused, invalid


def encode_bits(value: int) -> bytes:
    r"""Return the shortest bytestring of an unsigned value.

    >>> encode_bits(0), encode_bits(99), encode_bits(12388)
    (b'\x00', b'c', b'0d')
    """
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode_bits(data: bytes, width: int, what: str) -> int:
    r"""Return the value of a bytestring that is to fit `width` bits; `what` names it in the refusal.

    >>> decode_bits(b"\x00\x00\x63", 12, "port")
    99
    """
    if not data:
        raise invalid(f"{what}: an empty bytestring is no value; give a number of at most {width} bits")
    value = int.from_bytes(data, "big")
    if value.bit_length() > width:
        raise invalid(f"{what}: a value of {value.bit_length()} bits; at most {width} fit")
    return value


def encode_signed(value: int) -> bytes:
    r"""Return the shortest two's complement bytestring of a signed value.

    >>> encode_signed(-99), encode_signed(-739), encode_signed(0)
    (b'\x9d', b'\xfd\x1d', b'\x00')
    """
    bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes((bits + 7) // 8, "big", signed=True)


def decode_signed(data: bytes, width: int, what: str) -> int:
    r"""Return the value of a two's complement bytestring that is to fit `width` bits.

    >>> decode_signed(b"\xff\x9d", 8, "register")
    -99
    """
    if not data:
        raise invalid(f"{what}: an empty bytestring is no value; give a number of at most {width} bits")
    value = int.from_bytes(data, "big", signed=True)
    if not -(1 << (width - 1)) <= value < 1 << (width - 1):
        raise invalid(f"{what}: the value does not fit int<{width}>")
    return value


@dataclass(frozen=True)
class Bits:
    """`bit<width>`, or `int<width>` when signed; a serialisable enum is sent in a field of its own."""

    width: int
    signed: bool = False
    is_enum: bool = False


@dataclass(frozen=True)
class Bool:
    """`bool`."""


@dataclass(frozen=True)
class Names:
    """An enum without numbers, or `error`: the names in the order of their values."""

    names: tuple[str, ...]
    is_error: bool = False


@dataclass(frozen=True)
class Members:
    """A struct, tuple or header and its members in order; `form` is the field of P4Data that carries it."""

    form: str
    members: tuple[DataType, ...]


DataType = Bits | Bool | Names | Members


def leaves(kind: DataType) -> int:
    """Return how many numbers a value of this type is made of."""
    return sum(map(leaves, kind.members)) if isinstance(kind, Members) else 1


def encode_data(kind: DataType, values: Iterator[int]) -> dict[str, Any]:
    """Return the content of a P4Data of this type, taking as many of the values as it needs."""
    if isinstance(kind, Members):
        members = [encode_data(member, values) for member in kind.members]
        if kind.form == "header":
            return {"header": {"is_valid": True, "bitstrings": [member["bitstring"] for member in members]}}
        return {kind.form: {"members": members}}
    value = next(values)
    if isinstance(kind, Bool):
        return {"bool": bool(value)}
    if isinstance(kind, Names):
        name = kind.names[value] if value < len(kind.names) else str(value)
        return {"error" if kind.is_error else "enum": name}
    if kind.signed and not kind.is_enum:
        return {"bitstring": encode_signed(_as_signed(value, kind.width))}
    return {"enum_value" if kind.is_enum else "bitstring": encode_bits(value)}


def decode_data(kind: DataType, data: Any, what: str) -> int:
    """Return the value of a P4Data that holds a single number; a signed one as its two's complement bits."""
    form = data.WhichOneof("data")
    expected = _form(kind)
    if form != expected:
        raise invalid(f"{what}: data is {form or 'not set'}; accepted: {expected}")
    if isinstance(kind, Bool):
        return int(data.bool)
    if isinstance(kind, Names):
        return _index_of(kind, data, what)
    if isinstance(kind, Members):
        raise invalid(f"{what}: a {kind.form} is not a single number")
    if kind.signed:
        return decode_signed(data.bitstring, kind.width, what) & ((1 << kind.width) - 1)
    return decode_bits(data.enum_value if kind.is_enum else data.bitstring, kind.width, what)


def _form(kind: DataType) -> str:
    if isinstance(kind, Bool):
        return "bool"
    if isinstance(kind, Names):
        return "error" if kind.is_error else "enum"
    if isinstance(kind, Members):
        return kind.form
    return "enum_value" if kind.is_enum else "bitstring"


def _index_of(kind: Names, data: Any, what: str) -> int:
    name = data.error if kind.is_error else data.enum
    if name not in kind.names:
        raise _unknown_name(what, name, kind.names)
    return kind.names.index(name)


def _unknown_name(what: str, name: str, names: tuple[str, ...]) -> Refused:
    return invalid(f"{what}: unknown name {name!r}; accepted: {', '.join(names)}")


def _as_signed(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value
