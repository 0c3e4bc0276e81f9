"""The memory that the entities of a program take, in both processes of a switch together.

Every value that a write keeps is charged when it is put and given back when it is removed, so that whatever kind of
entity a client makes, and however large P4Info says that a table is, they share one bound.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from tensorexpress.switch.operations import MeterRates
from tensorexpress.switch.p4runtime.status import Code, Refused
from tensorexpress.switch.program.budgets import SwitchMemory
from tensorexpress.units import format_size

#: Bytes that a kept value takes beside its contents: its places in dictionaries, its row and its place in an index.
_KEPT = 1024
#: Bytes of a container and of an object without its contents, and of a small number.
_CONTAINER, _OBJECT, _NUMBER = 56, 64, 32
#: Bytes of a reference.
_REFERENCE = 8
#: Contents stand in both processes.
_PROCESSES = 2
#: A cell of a meter: its rates here, and a meter in the other process.
_CELL = 512
#: Every unit of a member's weight in a group is a number of the member and a place in the group.
_WEIGHT = 96


def kept_bytes(value: object) -> int:
    """Return how many bytes a kept value takes.

    >>> kept_bytes((1, 2)) - kept_bytes((1,))
    80
    """
    if isinstance(value, dict):  # the cells of a meter
        return len(value) * _CELL
    return _CELL if isinstance(value, MeterRates) else _KEPT + _PROCESSES * _content_bytes(value)


def _content_bytes(value: Any) -> int:
    if value is None or isinstance(value, str):  # names are those of the program
        return 0
    if isinstance(value, int):
        return _NUMBER + value.bit_length() // 8
    if isinstance(value, bytes):
        return _CONTAINER + len(value)
    if isinstance(value, tuple):
        return _CONTAINER + sum(_REFERENCE + _content_bytes(item) for item in value)
    kind: Any = type(value)
    names = _fields(kind)
    content = _OBJECT + sum(_REFERENCE + _content_bytes(getattr(value, name)) for name in names)
    return content + _WEIGHT * value.weight if "weight" in names else content


@cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


class Holdings:
    """The bytes that are charged, and the most that may be."""

    __slots__ = ("bytes", "most_bytes")

    def __init__(self, most_bytes: int = SwitchMemory().entities_bytes):
        self.bytes = 0
        self.most_bytes = most_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much more may be charged."""
        return self.bytes + size_bytes <= self.most_bytes

    def charge(self, size_bytes: int) -> None:
        """Add to what is charged; Refused, and nothing added, where there is no room."""
        if size_bytes > 0 and not self.has_room(size_bytes):
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"no memory left for entities, which take {format_size(self.bytes)} of {format_size(self.most_bytes)}; "
                "delete some, or start the switch with a larger --memory",
            )
        self.bytes += size_bytes
