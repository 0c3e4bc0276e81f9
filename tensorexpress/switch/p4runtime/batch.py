"""Changes of one write request: what to tell the data path, and how to take the changes of the state back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.operations import Operation, Query
from tensorexpress.switch.p4runtime.holdings import Holdings, kept_bytes
from tensorexpress.switch.p4runtime.messages.checks import find
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid

INSERT = p4runtime_pb2.Update.INSERT
MODIFY = p4runtime_pb2.Update.MODIFY
DELETE = p4runtime_pb2.Update.DELETE

_ABSENT = object()


class Batch:
    """Operations for the data path, and the old values of everything that was changed for them."""

    def __init__(self, holdings: Holdings) -> None:
        self.operations: list[Operation] = []
        self._holdings = holdings
        self._undo: list[tuple[dict[Any, Any], Hashable, Any, int]] = []

    def put(self, container: dict[Any, Any], key: Hashable, value: Any) -> None:
        """Set an item; Refused where there is no memory for it."""
        old = container.get(key, _ABSENT)
        charged = kept_bytes(value) - (0 if old is _ABSENT else kept_bytes(old))
        self._holdings.charge(charged)
        self._undo.append((container, key, old, charged))
        container[key] = value

    def remove(self, container: dict[Any, Any], key: Hashable) -> None:
        """Remove an item that is there."""
        old = container.pop(key)
        charged = -kept_bytes(old)
        self._holdings.charge(charged)
        self._undo.append((container, key, old, charged))

    def add(self, container: dict[Any, Any], key: Hashable, amount: int) -> None:
        """Add to a count; a count of 0 is not kept."""
        count = container.get(key, 0) + amount
        if count:
            self.put(container, key, count)
        elif key in container:
            self.remove(container, key)

    def mark(self) -> tuple[int, int]:
        """Return how far the batch is, for `take_back`."""
        return len(self.operations), len(self._undo)

    def take_back(self, to: tuple[int, int] = (0, 0)) -> None:
        """Undo all changes since a mark, the last one first, and forget the operations."""
        operations, changes = to
        del self.operations[operations:]
        while len(self._undo) > changes:
            container, key, old, charged = self._undo.pop()
            self._holdings.bytes -= charged
            if old is _ABSENT:
                del container[key]
            else:
                container[key] = old


#: Does an update (INSERT, MODIFY or DELETE) of an entity's message; Refused if that may not be.
Writer = Callable[[Batch, int, Any], None]


@dataclass(frozen=True)
class Found:
    """What a read selects: how much that is, and the contents of the Entity messages, made as they are taken.

    A content is as in plain_messages.py.
    """

    count: int
    contents: Iterable[dict[str, Any]]


#: Returns what a message with wildcards selects.
Reader = Callable[[Any], Found]
#: Asks the data path for what packets change.
Ask = Callable[[Sequence[Query]], list[list[Any]]]


def check_presence(kind: int, present: bool, what: str) -> None:
    """Refuse to insert what is there, and to modify or delete what is not."""
    if kind == INSERT and present:
        raise Refused(Code.ALREADY_EXISTS, f"{what} is there already; modify it")
    if kind != INSERT and not present:
        raise Refused(Code.NOT_FOUND, f"{what} is not there; insert it first")


def check_modify(kind: int, what: str) -> None:
    """Refuse to insert or delete what is always there."""
    if kind != MODIFY:
        raise invalid(f"a {what} can only be modified, not inserted or deleted")


def declared_or_all(what: str, declared: Mapping[int, Any], id: int) -> list[Any]:
    """Return what P4Info declares under an id, everything for the wildcard 0."""
    return [find(what, declared, id)] if id else list(declared.values())


def stored_or_all(what: str, container: Mapping[int, Any], id: int) -> list[tuple[int, Any]]:
    """Return the item with an id, all items for the wildcard 0."""
    if not id:
        return list(container.items())
    if id not in container:
        raise Refused(Code.NOT_FOUND, f"{what} {id} is not there")
    return [(id, container[id])]
