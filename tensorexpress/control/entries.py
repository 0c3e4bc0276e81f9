"""What a controller may find on a switch or want there: frozen values that speak of the program by name alone.

Ids, widths and sizes belong to P4Info; messages.py translates both ways.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

#: One field of a key: a value where it must match exactly, (value, prefix length) for a longest prefix.
Match: TypeAlias = int | tuple[int, int]

#: (port, replication id) pairs.
Replicas: TypeAlias = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Call:
    """An action and its arguments, by name, in the order of its parameters."""

    action: str
    arguments: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TableEntry:
    """An entry of a table; its key holds the fields by name, in the order of the program."""

    table: str
    key: tuple[tuple[str, Match], ...]
    action: Call


@dataclass(frozen=True, slots=True)
class DefaultEntry:
    """What a table does with a packet that no entry matches."""

    table: str
    action: Call


@dataclass(frozen=True, slots=True)
class MulticastGroup:
    """Where copies of a packet go."""

    number: int
    replicas: Replicas


@dataclass(frozen=True, slots=True)
class CloneSession:
    """Where clones of a packet go; 0 bytes: they are not truncated."""

    number: int
    replicas: Replicas
    class_of_service: int = 0
    packet_length_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """A two-rate three-colour meter: units/s and burst units, bytes or packets as the meter counts."""

    cir: int
    cburst: int
    pir: int
    pburst: int


@dataclass(frozen=True, slots=True)
class Meter:
    """A cell of a meter array; without rates every packet is green."""

    meter: str
    index: int
    rates: Rates | None


Entity: TypeAlias = TableEntry | DefaultEntry | MulticastGroup | CloneSession | Meter


def identity(entity: Entity) -> Hashable:
    """Return what two entities have in common when one of them takes the place of the other.

    >>> identity(DefaultEntry("l2", Call("drop"))) == identity(DefaultEntry("l2", Call("flood")))
    True
    """
    match entity:
        case TableEntry(table, key, _):
            return TableEntry, table, key
        case DefaultEntry(table, _):
            return DefaultEntry, table
        case Meter(meter, index, _):
            return Meter, meter, index
        case MulticastGroup() | CloneSession():
            return type(entity), entity.number


def place(entity: Entity) -> str:
    """Return where an entity is, for reports: a table, a meter, or one of the switch's own lists.

    >>> place(CloneSession(255, frozenset({(255, 0)})))
    'clone sessions'
    """
    match entity:
        case TableEntry() | DefaultEntry():
            return entity.table
        case Meter():
            return entity.meter
        case MulticastGroup():
            return "multicast groups"
        case CloneSession():
            return "clone sessions"
