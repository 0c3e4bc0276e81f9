"""Protobuf messages as plain values, both ways: ten times as fast as protobuf's own where that is written in Python.

P4Runtime's bulk is thousands of small messages: table entries, cells of counters and registers. Protobuf written in C
is the fastest there is for them. Written in Python, which is all that p4runtime-shell lets be installed, it spends a
tenth of a millisecond on each. What is usual is then read and written here, by tables made from the descriptors. What
is not (fields that nobody knows, a field twice, whatever is no message at all) is left to protobuf, whose word counts.

The content of a message is a dict by name of field: of numbers, strings, bytes, contents, messages, and lists of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.internal import api_implementation

from tensorexpress.p4runtime_messages import is_repeated

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_BITS = 64


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it; IndexError or ValueError when there is none."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
        if shift >= _BITS:
            raise ValueError("a number of more than 64 bits")


@lru_cache(maxsize=4096)  # ids come again and again
def write_varint(value: int) -> bytes:
    """Return a number as protobuf writes it; a negative one has 64 bits.

    >>> write_varint(1), write_varint(300), len(write_varint(-1))
    (b'\\x01', b'\\xac\\x02', 10)
    """
    if value < 0:
        value += 1 << _BITS
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


#: What most lengths, ids and tags are.
_SMALL = tuple(map(write_varint, range(256)))


def _sized(data: bytes) -> bytes:
    size = len(data)
    return (_SMALL[size] if size < len(_SMALL) else write_varint(size)) + data


class _UnusualError(Exception):
    """Something that is left to protobuf."""


#: Kinds of numbers -> the least and the most that they hold.
_NUMBERS = {
    FieldDescriptor.TYPE_BOOL: (0, 1),
    FieldDescriptor.TYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
}

#: Beside messages, what has a length before it.
_SIZED = (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING)


class View:
    """A message that was read. What it holds are its attributes; what it does not hold has the default of its class."""

    #: Tag -> field, of those that can be read here.
    _known: ClassVar[dict[int, _ReadField]]
    #: Name of a oneof -> names of its fields.
    _oneofs: ClassVar[dict[str, tuple[str, ...]]]

    def HasField(self, name: str) -> bool:
        """Whether the message holds this."""
        return name in self.__dict__

    def WhichOneof(self, name: str) -> str | None:
        """Return which of several fields the message holds."""
        held = self.__dict__
        for field in self._oneofs[name]:
            if field in held:
                return field
        return None


class _ReadField(NamedTuple):
    name: str
    #: The class of a message; otherwise the type of the field.
    kind: type[View] | None
    type: int
    is_repeated: bool
    #: The fields that it would take the place of: itself, and others of a oneof.
    rivals: tuple[str, ...]


@cache
def _view_of(descriptor: Any) -> type[View]:
    """Return the class of views of a message, with the defaults of its fields and what it takes to read them."""
    return _make_view(descriptor, {})


def _make_view(descriptor: Any, made: dict[Any, type[View]]) -> type[View]:
    """Make the class of a message and of all in it, but for those that are `made`: messages may be in themselves."""
    kind: type[View] = type(str(descriptor.name), (View,), {})
    made[descriptor] = kind
    kind._oneofs = {one.name: tuple(field.name for field in one.fields) for one in descriptor.oneofs}
    kind._known = {}
    for field in descriptor.fields:
        if is_map(field):
            setattr(kind, field.name, MappingProxyType({}))
            continue
        inner, repeated, oneof = field.message_type, is_repeated(field), field.containing_oneof
        own = (made.get(inner) or _make_view(inner, made)) if inner else None
        setattr(kind, field.name, () if repeated else own() if own else field.default_value)
        rivals = () if repeated else tuple(each.name for each in oneof.fields) if oneof else (field.name,)
        is_sized = own is not None or field.type in _SIZED
        # Repeated numbers come in two forms, which no message of the bulk has.
        if is_sized or (field.type in _NUMBERS and not repeated):
            tag = field.number << 3 | (BYTES if is_sized else VARINT)
            kind._known[tag] = _ReadField(field.name, own, field.type, repeated, rivals)
    return kind


def is_map(field: Any) -> bool:
    """Whether a field holds values by keys, which is written as a list of pairs."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def _number(type: int, value: int) -> int | bool:
    least, most = _NUMBERS[type]
    if least < 0 and value >> _BITS - 1 == 1:
        value -= 1 << _BITS
    if not least <= value <= most:
        raise _UnusualError
    return bool(value) if type == FieldDescriptor.TYPE_BOOL else value


def _read(kind: type[View], data: bytes, position: int, end: int) -> View:
    view, known = kind(), kind._known
    held = view.__dict__
    while position < end:
        tag = data[position]
        position += 1
        if tag > 0x7F:
            tag, position = varint(data, position - 1)
        field = known.get(tag)
        # A last byte of 0 makes a number longer than it has to be.
        if field is None or not data[position - 1]:
            raise _UnusualError
        name, own, type, repeated, rivals = field
        for rival in rivals:
            if rival in held:
                raise _UnusualError
        value: Any = data[position]
        position += 1
        if value > 0x7F:
            value, position = varint(data, position - 1)
        if tag & 7 == VARINT:
            value = _number(type, value)
        else:
            start, position = position, position + value
            if position > end:
                raise _UnusualError
            if own is not None:
                value = _read(own, data, start, position)
            elif type == FieldDescriptor.TYPE_BYTES:
                value = data[start:position]
            else:
                value = data[start:position].decode()
        if repeated:
            if name not in held:
                held[name] = []
            held[name].append(value)
        else:
            held[name] = value
    if position != end:
        raise _UnusualError
    return view


def read_plainly(kind: Any, data: bytes) -> Any:
    """Return a view of the message in these bytes, or the message itself where there is something unusual in it."""
    try:
        return _read(_view_of(kind.DESCRIPTOR), data, 0, len(data))
    except (_UnusualError, IndexError, ValueError, RecursionError):
        return kind.FromString(data)


class _WrittenField(NamedTuple):
    tag: bytes
    #: How messages are written; None where it is none.
    message: Callable[[Any], bytes] | None
    type: int
    is_repeated: bool
    #: Whether a number of 0 differs from none.
    has_presence: bool


@cache
def _writer_of(descriptor: Any) -> Callable[[Any], bytes]:
    """Return what writes the content of a message, or a message; its fields are looked at when they are met."""
    known: dict[str, _WrittenField] = {}

    def field_named(name: str) -> _WrittenField:
        field = descriptor.fields_by_name[name]
        own = _writer_of(field.message_type) if field.message_type else None
        repeated, is_number = is_repeated(field), field.type in _NUMBERS
        if (repeated and is_number) or is_map(field) or not (own or is_number or field.type in _SIZED):
            raise _UnusualError
        tag = write_varint(field.number << 3 | (VARINT if is_number else BYTES))
        known[name] = _WrittenField(tag, own, field.type, repeated, field.containing_oneof is not None)
        return known[name]

    def write(content: Any) -> bytes:
        if not isinstance(content, dict):
            return bytes(content.SerializeToString())
        parts: list[bytes] = []
        for name, value in content.items():
            tag, message, type, repeated, has_presence = known.get(name) or field_named(name)
            for each in value if repeated else (value,):
                if message is not None:
                    parts += (tag, _sized(message(each)))
                elif type in _NUMBERS:
                    least, most = _NUMBERS[type]
                    if not least <= each <= most:
                        raise ValueError(f"{name} is {each}; accepted: {least} to {most}")
                    if each or has_presence:
                        parts += (tag, _SMALL[each] if 0 <= each < len(_SMALL) else write_varint(each))
                elif each or has_presence or repeated:
                    parts += (tag, _sized(each if type == FieldDescriptor.TYPE_BYTES else each.encode()))
        return b"".join(parts)

    return write


def write_plainly(kind: Any, content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message with this content."""
    try:
        return _writer_of(kind.DESCRIPTOR)(content)
    except _UnusualError:
        return _write_with_protobuf(kind, content)


def _read_with_protobuf(kind: Any, data: bytes) -> Any:
    return kind.FromString(data)


def _write_with_protobuf(kind: Any, content: Mapping[str, Any]) -> bytes:
    return bytes(kind(**content).SerializeToString())


_IS_SLOW = api_implementation.Type() == "python"

#: Returns the message in some bytes, or what can be read as if it were; protobuf's error where there is none.
read_message: Callable[[Any, bytes], Any] = read_plainly if _IS_SLOW else _read_with_protobuf
#: Returns the bytes of the message that has some content.
write_message: Callable[[Any, Mapping[str, Any]], bytes] = write_plainly if _IS_SLOW else _write_with_protobuf
