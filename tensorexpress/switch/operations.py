"""What a control plane may ask of the data path: plain values that cross from one process to another.

Whoever makes them has checked them: names exist, values fit their widths, members are there. An operation therefore
cannot fail. Names are those of P4Info.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: One field of a table's key: exact and optional a value (None: an optional that matches anything), LPM
#: (value, prefix length), ternary (value, mask), range (low, high).
MatchValue = int | tuple[int, int] | None
Key = tuple[MatchValue, ...]


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action and its arguments in the order of its parameters."""

    action: str
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UseMember:
    """The action of a member of the table's action profile."""

    member: int


@dataclass(frozen=True, slots=True)
class UseGroup:
    """The action of the member that the table's selector chooses from a group."""

    group: int


TableAction = ActionCall | UseMember | UseGroup


@dataclass(frozen=True, slots=True)
class Entry:
    """What names one entry of a table: its key and, where the key needs one, its priority (higher wins)."""

    table: str
    key: Key
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SetEntry:
    """Insert an entry, or give an entry that is there another action; its direct counter and meter stay then."""

    entry: Entry
    action: TableAction
    idle_timeout_ns: int = 0


@dataclass(frozen=True, slots=True)
class DeleteEntry:
    """Remove an entry."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class SetDefault:
    """Set a table's default action; None puts the program's own back."""

    table: str
    action: TableAction | None


@dataclass(frozen=True, slots=True)
class SetMember:
    """Make or change a member of an action profile."""

    profile: str
    member: int
    action: ActionCall


@dataclass(frozen=True, slots=True)
class DeleteMember:
    """Remove a member that no group and no entry uses."""

    profile: str
    member: int


@dataclass(frozen=True, slots=True)
class SetGroup:
    """Make or change a group: member ids, each as often as its weight."""

    profile: str
    group: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Remove a group that no entry uses."""

    profile: str
    group: int


@dataclass(frozen=True, slots=True)
class SetMulticastGroup:
    """Set the (port, replication id) pairs of a multicast group; none removes it."""

    group: int
    replicas: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SetCloneSession:
    """Set the (port, replication id) pairs of a clone session; none removes it. 0 bytes: clones are not truncated."""

    session: int
    replicas: tuple[tuple[int, int], ...]
    class_of_service: int = 0
    packet_length_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WriteRegister:
    """Set one cell of a register array, or all of them when the index is None."""

    register: str
    index: int | None
    value: int


@dataclass(frozen=True, slots=True)
class WriteCounter:
    """Set an indirect counter's cell (all cells when the index is None) or the direct counter of an entry."""

    counter: str
    index: int | Entry | None
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MeterRates:
    """A two-rate three-colour meter: units/s and burst units, units being the meter's own (bytes or packets)."""

    cir: int
    cburst: int
    pir: int
    pburst: int


@dataclass(frozen=True, slots=True)
class SetMeter:
    """Configure an indirect meter's cell (all when the index is None) or an entry's direct meter.

    Rates of None: everything is green.
    """

    meter: str
    index: int | Entry | None
    rates: MeterRates | None


@dataclass(frozen=True, slots=True)
class SetValueSet:
    """Set all members of a parser value set; a member is a key of one or more fields."""

    value_set: str
    members: tuple[Key, ...]


Operation = (
    SetEntry
    | DeleteEntry
    | SetDefault
    | SetMember
    | DeleteMember
    | SetGroup
    | DeleteGroup
    | SetMulticastGroup
    | SetCloneSession
    | WriteRegister
    | WriteCounter
    | SetMeter
    | SetValueSet
)


@dataclass(frozen=True, slots=True)
class ReadRegister:
    """Ask for one cell as [value], or for all cells as a list of values when the index is None."""

    register: str
    index: int | None


@dataclass(frozen=True, slots=True)
class ReadCounter:
    """Ask for a counter as [(packets, bytes)]: one cell, all cells when the index is None, or an entry's direct one."""

    counter: str
    index: int | Entry | None


@dataclass(frozen=True, slots=True)
class ReadIdleTime:
    """Ask how many nanoseconds ago an entry was last hit, as [ns]."""

    entry: Entry


Query = ReadRegister | ReadCounter | ReadIdleTime


@dataclass(frozen=True, slots=True)
class CpuFrame:
    """A frame that left at the CPU port, header of the controller included."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest and its values, in the order of its fields."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IdleEntry:
    """An entry that has not been hit for its idle timeout."""

    entry: Entry


Notice = CpuFrame | Digest | IdleEntry


class DataPath(Protocol):
    """What the control plane sees of a switch: the switch itself, or a link to the process that it runs in.

    Requests are carried out in the order in which they are made: each one sees all of those before it.
    """

    def load(self, document: bytes, operations: Sequence[Operation] = ()) -> None:
        """Replace the program and all of its state, and do the operations before the first packet passes.

        ProgramError, with nothing changed, if the program cannot run.
        """
        ...

    def apply(self, operations: Sequence[Operation], *, atomic: bool = False) -> None:
        """Do all of them, in order and in slices between packets; if `atomic`, all between the same two packets."""
        ...

    def ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        """Return the answer to every query; the cells of one array are those of one instant."""
        ...

    def packet_out(self, frame: bytes) -> None:
        """Let a frame, header of the controller included, enter at the CPU port."""
        ...
