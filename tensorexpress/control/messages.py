"""What P4Info says of a program, by name, and values as P4Runtime writes them. Names lose their outermost part.

p4c names a table after the controls it is nested in, outermost first. Which control that is, is the program's own
affair, so "Ingress.inner.table" is "inner.table" here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf import text_format

from tensorexpress.errors import PlanError, ProgramError
from tensorexpress.p4 import P4Program
from tensorexpress.p4runtime_messages import p4info_pb2

#: What a program may have of its own that a controller speaks of -> where P4Info lists it.
_LISTS = {
    "table": "tables",
    "action": "actions",
    "counter": "counters",
    "meter": "meters",
    "register": "registers",
    "header": "controller_packet_metadata",
}


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


def encode_signed(value: int) -> bytes:
    """Return the canonical bytes of a value that may be negative: two's complement, as few as it needs.

    >>> encode_signed(-1), encode_signed(127), encode_signed(128)
    (b'\\xff', b'\\x7f', b'\\x00\\x80')
    """
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


def fitting(where: str, value: int, width: int) -> bytes:
    """Return the bytes of a value of so many bits; PlanError where it has more."""
    if value < 0 or value.bit_length() > width:
        raise PlanError(f"{where} is {value}; accepted: 0 to {(1 << width) - 1}, which {width} bits hold")
    return encode(value)


def short(name: str) -> str:
    """Return a name without the outermost control.

    >>> short("Ingress.inner.table"), short("NoAction")
    ('inner.table', 'NoAction')
    """
    return name.partition(".")[2] or name


class SchemaPart(NamedTuple):
    """A field of a table's key, or a parameter of an action."""

    id: int
    name: str
    #: Bits.
    width: int
    #: Whether it is matched by its longest prefix, and not exactly.
    is_prefix: bool = False


#: Kinds of what is made of parts -> where P4Info lists these.
_PARTS = {"table": "match_fields", "action": "params"}


class ProgramSchema:
    """What P4Info says about a program, by name.

    Kinds are "table", "action", "counter", "meter", "register" and, of packets to and from a controller, "header".
    """

    def __init__(self, p4info: Any):
        self.p4info = p4info
        self._by_name = {
            kind: {short(one.preamble.name): one for one in getattr(p4info, field)} for kind, field in _LISTS.items()
        }
        self._by_id = {one.preamble.id: one for those in self._by_name.values() for one in those.values()}
        # What is looked up for every entry is kept as plain values, since those of messages are slow to get.
        self._names = {number: short(one.preamble.name) for number, one in self._by_id.items()}
        self._numbers = {
            kind: {name: int(one.preamble.id) for name, one in those.items()} for kind, those in self._by_name.items()
        }
        self._parts = {
            kind: {name: _parts(getattr(one, field)) for name, one in self._by_name[kind].items()}
            for kind, field in _PARTS.items()
        }

    @classmethod
    def of(cls, program: P4Program) -> ProgramSchema:
        """Return what the P4Info of a program says."""
        return cls(parse_p4info(program.p4info))

    def find(self, kind: str, name: str) -> Any:
        """Return the P4Info of a table, action, meter and so on."""
        found = self._by_name[kind].get(name)
        if found is None:
            raise ProgramError(f"the program has no {kind} {name!r}; deploy with the program of this version")
        return found

    def names(self, kind: str) -> list[str]:
        """Return the names of all tables, meters and so on, in the order of the program."""
        return list(self._by_name[kind])

    def number(self, kind: str, name: str) -> int:
        """Return the id of a table, action, meter and so on."""
        number = self._numbers[kind].get(name)
        return int(self.find(kind, name).preamble.id) if number is None else number

    def parts(self, kind: str, name: str) -> dict[str, SchemaPart]:
        """Return the fields of a table's key, or the parameters of an action, by name, in the order of the program."""
        parts = self._parts[kind].get(name)
        if parts is None:
            self.find(kind, name)
        return parts or {}

    def numbered(self, number: int) -> Any:
        """Return the P4Info of what has this id."""
        found = self._by_id.get(number)
        if found is None:
            raise ProgramError(f"a switch speaks of id {number}, which the program does not have")
        return found

    def name(self, number: int) -> str:
        """Return the name of what has this id."""
        return self._names.get(number) or short(self.numbered(number).preamble.name)

    def header_fields(self, header: str) -> dict[str, int]:
        """Return the fields of a controller's header, "packet_in" or "packet_out": name -> id."""
        return {field.name: field.id for field in self.find("header", header).metadata}


def _parts(messages: Iterable[Any]) -> dict[str, SchemaPart]:
    is_lpm = p4info_pb2.MatchField.LPM
    return {
        one.name: SchemaPart(one.id, one.name, one.bitwidth, getattr(one, "match_type", None) == is_lpm)
        for one in messages
    }
