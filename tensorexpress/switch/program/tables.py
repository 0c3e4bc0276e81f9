"""Match-action tables while packets pass: the rows, the ways to find one, action profiles.

Generated code looks a key up in `known` first. For an exact table that holds its rows. For every other kind it holds
what earlier packets found, because keys repeat; it is emptied when the table changes or when it grows too large.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from heapq import heappop, heappush
from typing import Any

from tensorexpress.switch.operations import (
    ActionCall,
    DeleteGroup,
    DeleteMember,
    Entry,
    Key,
    SetEntry,
    SetGroup,
    SetMember,
    TableAction,
    UseMember,
)
from tensorexpress.switch.program.bmv2.values import TableInfo
from tensorexpress.switch.program.externs import MeterCell
from tensorexpress.switch.program.match_kinds import BMV2_KINDS, EXACT, LPM

#: Results remembered per table, fewer where tables of a program are many; a table that meets more keys than this starts
#: again from none.
_LARGEST_CACHE = 8192


class TableRow:
    """An entry of a table, a default or a member of a profile: which action, with what arguments, and its counts."""

    __slots__ = ("action", "arguments", "bytes", "choice", "entry", "hit", "hit_us", "meter", "packets", "timeout_us")

    #: What tells a row from a group.
    members = None

    def __init__(self, entry: Entry | None = None):
        self.entry = entry
        #: False for the default, which is what a miss finds.
        self.hit = entry is not None
        self.action = -1
        self.arguments: tuple[int, ...] = ()
        #: The member or group that an indirect table's row points to.
        self.choice: TableRow | RowGroup | None = None
        self.packets = 0
        self.bytes = 0
        #: There where the table has a direct meter.
        self.meter: MeterCell | None = None
        self.hit_us = 0
        #: 0: never idle.
        self.timeout_us = 0


class RowGroup:
    """Members of an action profile that share the traffic."""

    __slots__ = ("members",)

    def __init__(self) -> None:
        self.members: list[TableRow] = []


#: What runs when a group without members is chosen, as in BMv2.
NOTHING = TableRow()


class ActionProfile:
    """An action profile: members and groups by the ids that the controller gave them.

    BMv2 numbers members by the lowest number that is free, and a group lists its members by these numbers, whatever
    their ids are. A member that a group has more than once has as many numbers.
    """

    def __init__(self) -> None:
        self.members: dict[int, TableRow] = {}
        self.groups: dict[int, RowGroup] = {}
        self._numbers: dict[int, list[int]] = {}
        #: Numbers that were given back, a heap, and the lowest one that was never given.
        self._free: list[int] = []
        self._fresh = 0

    def set_member(self, operation: SetMember, actions: dict[str, int]) -> None:
        """Make a member or change it, in all groups and entries at once."""
        row = self.members.get(operation.member) or self._new_member(operation.member)
        row.action = actions[operation.action.action]
        row.arguments = operation.action.arguments
        self._number(operation.member, 1)

    def delete_member(self, operation: DeleteMember) -> None:
        """Forget a member."""
        self.members.pop(operation.member, None)
        for number in self._numbers.pop(operation.member, ()):
            heappush(self._free, number)

    def set_group(self, operation: SetGroup) -> None:
        """Make a group or change it, for all entries at once."""
        numbered = [
            (number, member)
            for member, weight in sorted(Counter(operation.members).items())
            for number in self._number(member, weight)
        ]
        group = self.groups.get(operation.group) or self._new_group(operation.group)
        group.members = [self.members[member] for _, member in sorted(numbered)]

    def delete_group(self, operation: DeleteGroup) -> None:
        """Forget a group."""
        self.groups.pop(operation.group, None)

    def _new_member(self, member: int) -> TableRow:
        self.members[member] = TableRow()
        return self.members[member]

    def _new_group(self, group: int) -> RowGroup:
        self.groups[group] = RowGroup()
        return self.groups[group]

    def _number(self, member: int, weight: int) -> list[int]:
        """Return as many numbers of a member as its weight, taking free ones where it has too few."""
        numbers = self._numbers.setdefault(member, [])
        while len(numbers) < weight:
            if self._free:
                numbers.append(heappop(self._free))
            else:
                numbers.append(self._fresh)
                self._fresh += 1
        return numbers[:weight]


class MatchTable:
    """The rows of one table. Subclasses find the row of a key; a key of one field is a number, else a tuple."""

    def __init__(self, info: TableInfo, profile: ActionProfile | None):
        self.info = info
        self.profile = profile
        self._ids = dict(info.actions)
        self.default = self._new_row(None)
        self.rows: dict[tuple[Key, int], TableRow] = {}
        self.known: dict[Any, TableRow] = {}
        self.most_remembered = _LARGEST_CACHE
        self.set_default(None)

    def set_default(self, action: TableAction | None) -> None:
        """Set the default action; None puts the program's own back."""
        if action is None:
            action = self.info.default
        if action is None:
            self.default.action, self.default.arguments, self.default.choice = -1, (), None
        else:
            self._point(self.default, action)

    def set_entry(self, operation: SetEntry, now_us: int) -> None:
        """Insert a row, or give the row that is there another action."""
        place = self._place(operation.entry)
        row = self.rows.get(place)
        if row is None:
            row = self.rows[place] = self._new_row(operation.entry)
            row.meter = MeterCell() if self.info.direct_meter is not None else None
            self._point(row, operation.action)
            self._insert(row)
        else:
            self._point(row, operation.action)
        row.timeout_us = operation.idle_timeout_ns // 1000
        row.hit_us = now_us

    def delete_entry(self, entry: Entry) -> None:
        """Remove a row."""
        row = self.rows.pop(self._place(entry), None)
        if row is not None:
            self._remove(row)

    def row(self, entry: Entry) -> TableRow | None:
        """Return the row of an entry, None if there is none."""
        return self.rows.get(self._place(entry))

    def _place(self, entry: Entry) -> tuple[Key, int]:
        return entry.key, entry.priority

    def _point(self, row: TableRow, action: TableAction) -> None:
        if isinstance(action, ActionCall):
            row.action, row.arguments, row.choice = self._ids[action.action], action.arguments, None
            return
        assert self.profile is not None
        if isinstance(action, UseMember):
            row.choice = self.profile.members[action.member]
        else:
            row.choice = self.profile.groups[action.group]

    def _new_row(self, entry: Entry | None) -> TableRow:
        return TableRow(entry)

    def _insert(self, row: TableRow) -> None:
        raise NotImplementedError

    def _remove(self, row: TableRow) -> None:
        raise NotImplementedError

    def find(self, key: Any) -> TableRow:
        """Return the row that a key hits, the default if none."""
        raise NotImplementedError

    def _remember(self, key: Any, row: TableRow) -> TableRow:
        if len(self.known) >= self.most_remembered:
            self.known.clear()
        self.known[key] = row
        return row


class ExactTable(MatchTable):
    """One dictionary from keys to rows."""

    def _packed(self, row: TableRow) -> Any:
        assert row.entry is not None
        return row.entry.key[0] if len(row.entry.key) == 1 else row.entry.key

    def _insert(self, row: TableRow) -> None:
        self.known[self._packed(row)] = row

    def _remove(self, row: TableRow) -> None:
        del self.known[self._packed(row)]

    def find(self, key: Any) -> TableRow:
        """Return the row of a key, the default if there is none."""
        return self.known.get(key, self.default)


class LpmTable(MatchTable):
    """One dictionary per prefix length in use, the longest first; the other fields of the key are exact."""

    def __init__(self, info: TableInfo, profile: ActionProfile | None):
        self._position = next(index for index, part in enumerate(info.key) if part.kind == LPM.name)
        self._bits = info.key[self._position].bits
        self._levels: list[tuple[int, dict[Key, TableRow]]] = []
        super().__init__(info, profile)

    def _shifted(self, key: Key, shift: int) -> Key:
        value = key[self._position]
        number = value[0] if isinstance(value, tuple) else value
        assert number is not None
        return (*key[: self._position], number >> shift, *key[self._position + 1 :])

    def _level(self, row: TableRow) -> tuple[int, Key]:
        assert row.entry is not None
        value = row.entry.key[self._position]
        assert isinstance(value, tuple)
        shift = self._bits - value[1]
        return shift, self._shifted(row.entry.key, shift)

    def _insert(self, row: TableRow) -> None:
        shift, key = self._level(row)
        for known_shift, rows in self._levels:
            if known_shift == shift:
                rows[key] = row
                break
        else:
            insort(self._levels, (shift, {key: row}), key=lambda level: level[0])
        self.known.clear()

    def _remove(self, row: TableRow) -> None:
        shift, key = self._level(row)
        for level in self._levels:
            if level[0] == shift:
                del level[1][key]
        self._levels = [level for level in self._levels if level[1]]
        self.known.clear()

    def find(self, key: Any) -> TableRow:
        """Return the row of the longest prefix, the default if no prefix fits."""
        parts = key if len(self.info.key) > 1 else (key,)
        for shift, rows in self._levels:
            row = rows.get(self._shifted(parts, shift))
            if row is not None:
                return self._remember(key, row)
        return self._remember(key, self.default)


class TernaryTable(MatchTable):
    """One dictionary per combination of masks in use, and in it the rows of a masked key by falling priority.

    A field that no mask can describe, such as one with a range, is compared row by row.
    """

    def __init__(self, info: TableInfo, profile: ActionProfile | None):
        self._groups: dict[tuple[int, ...], dict[tuple[int, ...], list[TableRow]]] = {}
        self._order: dict[TableRow, int] = {}
        self._inserted = 0
        self._kinds = [BMV2_KINDS[part.kind] for part in info.key]
        self._compared = [(position, kind) for position, kind in enumerate(self._kinds) if kind.is_compared]
        super().__init__(info, profile)

    def _masked(self, row: TableRow) -> tuple[tuple[int, ...], tuple[int, ...]]:
        assert row.entry is not None
        pairs = [
            kind.mask(value, part.bits)
            for kind, value, part in zip(self._kinds, row.entry.key, self.info.key, strict=True)
        ]
        return tuple(mask for _, mask in pairs), tuple(value & mask for value, mask in pairs)

    def _urgency(self, row: TableRow) -> tuple[int, int]:
        """Return what sorts rows: the highest priority first, of equals the oldest."""
        assert row.entry is not None
        return -row.entry.priority, self._order[row]

    def _insert(self, row: TableRow) -> None:
        self._order[row] = self._inserted
        self._inserted += 1
        masks, values = self._masked(row)
        insort(self._groups.setdefault(masks, {}).setdefault(values, []), row, key=self._urgency)
        self.known.clear()

    def _remove(self, row: TableRow) -> None:
        masks, values = self._masked(row)
        group = self._groups[masks]
        rows = group[values]
        del rows[bisect_left(rows, self._urgency(row), key=self._urgency)]
        del self._order[row]
        if not rows:
            del group[values]
        if not group:
            del self._groups[masks]
        self.known.clear()

    def find(self, key: Any) -> TableRow:
        """Return the matching row of the highest priority, the oldest of equals, the default if none matches."""
        parts: tuple[int, ...] = key if len(self.info.key) > 1 else (key,)
        best = None
        for masks, rows in self._groups.items():
            found = rows.get(tuple(map(int.__and__, parts, masks)))
            row = next((row for row in found or () if self._is_admitted(parts, row)), None)
            if row is not None and (best is None or self._urgency(row) < self._urgency(best)):
                best = row
        return self._remember(key, best or self.default)

    def _is_admitted(self, parts: tuple[int, ...], row: TableRow) -> bool:
        assert row.entry is not None
        key = row.entry.key
        return all(kind.admits(key[position], parts[position]) for position, kind in self._compared)


def make_table(info: TableInfo, profile: ActionProfile | None) -> MatchTable:
    """Return an empty table of the class that its key needs."""
    if info.is_exact:
        return ExactTable(info, profile)
    kinds = sorted(part.kind for part in info.key)
    if kinds == [EXACT.name] * (len(kinds) - 1) + [LPM.name]:
        return LpmTable(info, profile)
    return TernaryTable(info, profile)
