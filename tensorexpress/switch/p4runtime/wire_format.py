"""Protobuf's bytes, looked at before messages are made of them: a byte can become a kilobyte of Python objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from tensorexpress.p4runtime_messages import is_repeated
from tensorexpress.plain_messages import BYTES, FIXED32, FIXED64, VARINT, read_message, varint
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid

#: Parts that one parsed message may have: submessages, strings and repeated numbers. Each takes up to a kilobyte.
LARGEST_NUMBER_OF_PARTS = 50_000
#: Messages of so few bytes have not that many parts.
_SMALL_BYTES = 1 << 14
_DEEPEST = 100


def fields(data: bytes, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, where it begins, where its content begins, where it ends.

    The content of what is no bytes begins at its end. IndexError or ValueError says that this is no message.
    """
    position, end = start, len(data) if end is None else end
    while position < end:
        begin = position
        tag, position = varint(data, position)
        kind, content = tag & 7, None
        if kind == BYTES:
            size, content = varint(data, position)
            position = content + size
        elif kind == VARINT:
            _, position = varint(data, position)
        elif kind in (FIXED64, FIXED32):
            position += 8 if kind == FIXED64 else 4
        else:
            raise ValueError("a group, which these messages do not have")
        if position > end:
            raise ValueError("a field behind the end of its message")
        yield tag >> 3, begin, position if content is None else content, position


def _whole(kind: Any, data: bytes) -> Any:
    return kind.FromString(data)


def split(kind: Any, data: bytes, repeated: str) -> tuple[Any, list[bytes]]:
    """Return a message without one of its repeated fields, and the serialised messages in that field."""
    number = kind.DESCRIPTOR.fields_by_name[repeated].number
    rest, parts = [], []
    try:
        for found, begin, content, end in fields(data):
            if found == number:
                parts.append(data[content:end])
            else:
                rest.append(data[begin:end])
    except (IndexError, ValueError):
        raise invalid(f"not a {kind.DESCRIPTOR.name} message") from None
    return parse(kind, b"".join(rest)), parts


def parse(kind: Any, data: bytes, read: Callable[[Any, bytes], Any] = _whole) -> Any:
    """Return the message in these bytes; Refused when there is none, or one that would take too much memory.

    `read_message` reads faster what nobody changes or keeps.
    """
    name = kind.DESCRIPTOR.name
    try:
        if len(data) > _SMALL_BYTES and _parts(data, kind.DESCRIPTOR) > LARGEST_NUMBER_OF_PARTS:
            raise Refused(
                Code.RESOURCE_EXHAUSTED, f"a {name} message of more than {LARGEST_NUMBER_OF_PARTS} parts; send less"
            )
        return read(kind, data)
    except Refused:
        raise
    except Exception:
        # Bytes that are no message, or one nested deeper than Python's stack, raise whatever the parser stumbles over.
        raise invalid(f"not a {name} message") from None


def _parts(data: bytes, descriptor: Any, start: int = 0, end: int | None = None, depth: int = 0) -> int:
    """Return how many parts a message has; stops counting above the limit."""
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    known, count = descriptor.fields_by_number, 0
    for number, _, content, stop in fields(data, start, end):
        field = known.get(number)
        count += 1
        if field is not None and field.message_type is not None:
            count += _parts(data, field.message_type, content, stop, depth + 1)
        elif field is not None and is_repeated(field) and field.type != field.TYPE_BYTES:
            count += (stop - content) // 4  # numbers, packed
        if count > LARGEST_NUMBER_OF_PARTS:
            break
    return count


@dataclass(frozen=True)
class Messages(Collection[Any]):
    """Serialised messages of one kind, each parsed when it is its turn: together they may take much memory.

    Nobody changes or keeps them.
    """

    kind: Any
    serialised: list[bytes]

    def __len__(self) -> int:
        return len(self.serialised)

    def __iter__(self) -> Iterator[Any]:
        return (parse(self.kind, data, read_message) for data in self.serialised)

    def __contains__(self, message: object) -> bool:
        return any(message == each for each in self)
