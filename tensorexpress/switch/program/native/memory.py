"""State that native code and the control plane share: blocks of memory, registers, counters, tables and their rows."""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import Any

from tensorexpress.switch.operations import DeleteGroup, DeleteMember, Entry, MeterRates
from tensorexpress.switch.program.bmv2.values import TableInfo
from tensorexpress.switch.program.match_kinds import BMV2_KINDS, EXACT, LPM
from tensorexpress.switch.program.native.layout import DESCRIPTOR, METER_BYTES, words_of
from tensorexpress.switch.program.native.rows import ROW, RowLayout
from tensorexpress.switch.program.tables import ActionProfile, MatchTable, RowGroup, TableRow

_WORD = Struct("<q")
_GROUP = Struct("<QQ")
_METER = Struct("<7q")
_DESCRIPTOR = Struct(f"<{len(DESCRIPTOR)}Q")
_PLACE = Struct("<qqqq")  # group, priority, order, hash

_WORD_MASK = 2**64 - 1
_MULTIPLIER = -7046029254386353131 & _WORD_MASK

#: An index has a number of a row in every slot, 0 where it never had one, this where it has none any more.
_GONE = 0xFFFFFFFF

_FIRST_ROWS, _FIRST_SLOTS = 8, 16
_HIGHEST_PRIORITY = 2**62


class Block:
    """Zeroed memory at an address that stays."""

    __slots__ = ("_held", "address", "data")

    def __init__(self, size: int):
        size = max(size, 8)
        self.data = bytearray(size)
        self._held = (ctypes.c_char * size).from_buffer(self.data)
        self.address = ctypes.addressof(self._held)

    def grown(self, size: int) -> Block:
        """Return a larger block with the same contents."""
        larger = Block(size)
        larger.data[: len(self.data)] = self.data
        return larger


#: Takes note of the block that a region is in from now on: the checked build needs it.
Note = Callable[[str, Block], None]


def take_no_note(name: str, block: Block) -> None:
    """Take no note of a region: only a checked build asks for it."""


def words_bytes(values: Iterable[int], bits: Iterable[int]) -> bytes:
    """Return numbers as native code keeps them: cut to their bits, each in whole words."""
    return b"".join(
        (value & (1 << width) - 1).to_bytes(8 * words_of(width), "little")
        for value, width in zip(values, bits, strict=True)
    )


class NativeRegisters:
    """An array of numbers, each in whole words."""

    def __init__(self, size: int, bits: int):
        self._size = size
        self._bits = bits
        self._cell = 8 * words_of(bits)
        self.block = Block(size * self._cell)

    def lists(self) -> list[list[int]]:
        """Return none: a block is given back at once."""
        return []

    def write(self, index: int | None, value: int) -> None:
        """Set one cell, or all when the index is None."""
        data = words_bytes([value], [self._bits])
        if index is None:
            self.block.data[: self._size * self._cell] = data * self._size
        else:
            start = range(self._size)[index] * self._cell
            self.block.data[start : start + self._cell] = data

    def read(self, index: int | None) -> list[int]:
        """Return one cell, or all when the index is None."""
        cells = range(self._size) if index is None else [range(self._size)[index]]
        data, size = self.block.data, self._cell
        return [int.from_bytes(data[cell * size : (cell + 1) * size], "little") for cell in cells]


class NativeCounters:
    """An array of counters; every cell counts packets and bytes."""

    def __init__(self, size: int):
        self._size = size
        self.packets = Block(8 * size)
        self.bytes = Block(8 * size)

    def lists(self) -> list[list[int]]:
        """Return none: a block is given back at once."""
        return []

    def write(self, index: int | None, packets: int, size_bytes: int) -> None:
        """Set one cell, or all when the index is None."""
        cells = range(self._size) if index is None else [range(self._size)[index]]
        for cell in cells:
            _WORD.pack_into(self.packets.data, 8 * cell, packets)
            _WORD.pack_into(self.bytes.data, 8 * cell, size_bytes)

    def read(self, index: int | None) -> Iterable[tuple[int, int]]:
        """Return (packets, bytes) of one cell, or of all when the index is None: copies of one instant."""
        if index is None:
            both = [array("q", bytes(block.data[: 8 * self._size])) for block in (self.packets, self.bytes)]
            return zip(*both, strict=True)
        at = 8 * range(self._size)[index]
        return [(_WORD.unpack_from(self.packets.data, at)[0], _WORD.unpack_from(self.bytes.data, at)[0])]


class NativeMeters:
    """An array of meters, each with two buckets; `meter` in runtime.ll takes from them."""

    def __init__(self, size: int):
        self._size = size
        self.block = Block(size * METER_BYTES)

    def lists(self) -> list[list[int]]:
        """Return none: a block is given back at once."""
        return []

    def configure(self, index: int | None, rates: MeterRates | None) -> None:
        """Set the rates of one cell, or of all when the index is None, and fill the buckets; None is green."""
        cell = bytes(METER_BYTES)
        if rates is not None:
            committed = (rates.cir, rates.cburst, rates.cburst)
            peak = (rates.pir, rates.pburst, rates.pburst)
            cell = _METER.pack(1, *committed, *peak).ljust(METER_BYTES, b"\0")
        if index is None:
            self.block.data[: self._size * METER_BYTES] = cell * self._size
        else:
            start = range(self._size)[index] * METER_BYTES
            self.block.data[start : start + METER_BYTES] = cell


class NativeRow(TableRow):
    """A row whose action and counts stand where native code reads and writes them."""

    __slots__ = ("_table", "number")

    def __init__(self, table: NativeTable, number: int, entry: Entry | None):
        self._table = table
        self.number = number
        super().__init__(entry)

    def _get(self, name: str) -> int:
        found: int = _WORD.unpack_from(self._table.rows_block.data, self._at + ROW[name])[0]
        return found

    def _set(self, name: str, value: int) -> None:
        _WORD.pack_into(self._table.rows_block.data, self._at + ROW[name], value)

    @property
    def _at(self) -> int:
        return self.number * self._table.layout.size

    action = property(lambda row: row._get("action"), lambda row, value: row._set("action", value))
    packets = property(lambda row: row._get("packets"), lambda row, value: row._set("packets", value))
    bytes = property(lambda row: row._get("bytes"), lambda row, value: row._set("bytes", value))
    hit_us = property(lambda row: row._get("hit_us"), lambda row, value: row._set("hit_us", value))

    @property
    def arguments(self) -> tuple[int, ...]:
        """Not kept here: native code has them."""
        return ()

    @arguments.setter
    def arguments(self, values: tuple[int, ...]) -> None:
        data = words_bytes(values, self._table.parameters.get(self.action, ()))
        start = self._at + self._table.layout.arguments
        self._table.rows_block.data[start : start + len(data)] = data

    @property
    def choice(self) -> TableRow | RowGroup | None:
        """Not kept here: native code has it."""
        return None

    @choice.setter
    def choice(self, chosen: TableRow | RowGroup | None) -> None:
        number = 0
        if isinstance(chosen, NativeMember):
            number = chosen.number + 1
        elif isinstance(chosen, NativeGroup):
            number = -chosen.number - 1
        self._set("choice", number)


class NativeMember(TableRow):
    """A member of a profile: its action and the arguments of that."""

    __slots__ = ("_profile", "number")

    def __init__(self, profile: NativeProfile, number: int):
        self._profile = profile
        self.number = number
        super().__init__()

    @property
    def action(self) -> int:
        """The number of the action."""
        found: int = _WORD.unpack_from(self._profile.members_block.data, self._at)[0]
        return found

    @action.setter
    def action(self, number: int) -> None:
        _WORD.pack_into(self._profile.members_block.data, self._at, number)

    @property
    def _at(self) -> int:
        return self.number * self._profile.member_bytes

    @property
    def arguments(self) -> tuple[int, ...]:
        """Not kept here: native code has them."""
        return ()

    @arguments.setter
    def arguments(self, values: tuple[int, ...]) -> None:
        data = words_bytes(values, self._profile.parameters.get(self.action, ()))
        self._profile.members_block.data[self._at + 8 : self._at + 8 + len(data)] = data


class NativeGroup(RowGroup):
    """A group of members, as their numbers."""

    __slots__ = ("_block", "_profile", "number")

    def __init__(self, profile: NativeProfile, number: int):
        self._profile = profile
        self.number = number
        super().__init__()

    @property
    def members(self) -> list[TableRow]:
        """Not kept here: native code has them."""
        return []

    @members.setter
    def members(self, rows: list[TableRow]) -> None:
        self._block = Block(8 * len(rows))
        for position, row in enumerate(rows):
            assert isinstance(row, NativeMember)
            _WORD.pack_into(self._block.data, 8 * position, row.number)
        _GROUP.pack_into(self._profile.groups_block.data, 16 * self.number, self._block.address, len(rows))
        self._profile.note(f"members of group {self.number} of profile {self._profile.name!r}", self._block)


class NativeProfile(ActionProfile):
    """An action profile whose members and groups stand in memory. Numbers that are free are given again."""

    def __init__(
        self,
        name: str,
        context: Block,
        place: int,
        member_bytes: int,
        parameters: Mapping[int, tuple[int, ...]],
        note: Note,
    ):
        super().__init__()
        self.name = name
        self.note = note
        self._context = context
        self._place = place
        self.member_bytes = member_bytes
        self.parameters = parameters
        self.members_block = Block(_FIRST_ROWS * member_bytes)
        self.groups_block = Block(_FIRST_ROWS * 16)
        self._member_numbers, self._group_numbers = _Numbers(), _Numbers()
        self._describe()

    def _describe(self) -> None:
        _GROUP.pack_into(self._context.data, self._place, self.members_block.address, self.groups_block.address)
        self.note(f"members of profile {self.name!r}", self.members_block)
        self.note(f"groups of profile {self.name!r}", self.groups_block)

    def _new_member(self, member: int) -> TableRow:
        number = self._member_numbers.take()
        if (number + 1) * self.member_bytes > len(self.members_block.data):
            self.members_block = self.members_block.grown(2 * len(self.members_block.data))
            self._describe()
        row = self.members[member] = NativeMember(self, number)
        return row

    def _new_group(self, group: int) -> RowGroup:
        number = self._group_numbers.take()
        if (number + 1) * 16 > len(self.groups_block.data):
            self.groups_block = self.groups_block.grown(2 * len(self.groups_block.data))
            self._describe()
        found = self.groups[group] = NativeGroup(self, number)
        return found

    def delete_member(self, operation: DeleteMember) -> None:
        """Forget a member."""
        row = self.members.get(operation.member)
        super().delete_member(operation)
        if isinstance(row, NativeMember):
            self._member_numbers.free.append(row.number)

    def delete_group(self, operation: DeleteGroup) -> None:
        """Forget a group."""
        group = self.groups.get(operation.group)
        super().delete_group(operation)
        if isinstance(group, NativeGroup):
            self._group_numbers.free.append(group.number)


class _Numbers:
    """Numbers from 0 on; those that are free again are taken first."""

    def __init__(self) -> None:
        self._fresh = 0
        self.free: list[int] = []

    def take(self) -> int:
        if self.free:
            return self.free.pop()
        self._fresh += 1
        return self._fresh - 1


class NativeTable(MatchTable):
    """A table whose rows stand in memory, and an index that native code finds them by; see `find` in runtime.ll."""

    def __init__(
        self,
        info: TableInfo,
        profile: ActionProfile | None,
        layout: RowLayout,
        parameters: Mapping[int, tuple[int, ...]],
        context: Block,
        descriptor: int,
        fill_index: Callable[[int, int, int], None],
        note: Note,
    ):
        self._note = note
        self.layout = layout
        self.parameters = parameters
        self._context = context
        self._descriptor = descriptor
        self.fill_index = fill_index
        self._kinds = [BMV2_KINDS[part.kind] for part in info.key]
        self._lpm = _lpm_position(info)
        self._is_ranked = not info.is_exact and self._lpm is None
        self.rows_block = Block(_FIRST_ROWS * layout.size)
        self._numbers = _Numbers()
        self.by_number: dict[int, NativeRow] = {}
        self._index = Block(4 * _FIRST_SLOTS)
        self._index_mask = _FIRST_SLOTS - 1
        self._filled = 0
        #: Masks -> number of a group; how many rows have it; numbers that none has any more.
        self._groups: dict[tuple[int, ...], int] = {}
        self._group_rows: dict[int, int] = {}
        self._group_numbers = _Numbers()
        self._group_count = 0
        self._groups_block = Block(8 * layout.words)
        #: Rows of one group and one key, the most urgent first.
        self._chains: dict[tuple[int, bytes], list[NativeRow]] = {}
        self._places: dict[NativeRow, tuple[int, bytes]] = {}
        self._order: dict[NativeRow, tuple[int, int]] = {}
        self._inserted = 0
        self._ranges_block = Block(16 * len(layout.ranges))
        for position, (place, words) in enumerate(layout.ranges):
            _WORD.pack_into(self._ranges_block.data, 16 * position, place)
            _WORD.pack_into(self._ranges_block.data, 16 * position + 8, words)
        super().__init__(info, profile)
        self._describe()

    def _describe(self) -> None:
        """Tell native code where everything is."""
        _DESCRIPTOR.pack_into(
            self._context.data,
            self._descriptor,
            self.rows_block.address,
            self.layout.size,
            self._index.address,
            self._index_mask,
            self._groups_block.address,
            self._group_count,
            self.layout.words,
            self._ranges_block.address,
            len(self.layout.ranges),
        )
        for what, block in (
            ("rows", self.rows_block),
            ("index", self._index),
            ("masks", self._groups_block),
            ("ranges", self._ranges_block),
        ):
            self._note(f"{what} of table {self.info.name!r}", block)

    def _new_row(self, entry: Entry | None) -> NativeRow:
        number, size = self._numbers.take(), self.layout.size
        if (number + 1) * size > len(self.rows_block.data):
            self.rows_block = self.rows_block.grown(2 * len(self.rows_block.data))
            self._describe()
        self.rows_block.data[number * size : (number + 1) * size] = bytes(size)
        row = self.by_number[number] = NativeRow(self, number, entry)
        return row

    def _insert(self, row: TableRow) -> None:
        assert isinstance(row, NativeRow)
        assert row.entry is not None
        pairs = [
            kind.mask(value, part.bits)
            for kind, value, part in zip(self._kinds, row.entry.key, self.info.key, strict=True)
        ]
        if any((value & mask) >> part.bits for (value, mask), part in zip(pairs, self.info.key, strict=True)):
            return  # no field is so wide
        bits = [part.bits for part in self.info.key]
        group = self._group(tuple(mask for _, mask in pairs), bits)
        key = words_bytes((value & mask for value, mask in pairs), bits)
        self._inserted += 1
        # Of equals the oldest wins where rows have priorities, else there is one, the newest.
        self._order[row] = (self._priority(row.entry), self._inserted if self._is_ranked else -self._inserted)
        self._places[row] = (group, key)
        chain = self._chains.get((group, key))
        hashed = _hash(group, key) if chain is None else chain[0]._get("hash")
        self._write(row, group, key, hashed)
        if chain is None:
            self._chains[group, key] = [row]
            self._add_to_index(row)
            return
        head = chain[0]
        insort(chain, row, key=self._urgency)
        self._link(chain, head)

    def _group(self, masks: tuple[int, ...], bits: list[int]) -> int:
        group = self._groups.get(masks)
        if group is None:
            group = self._group_numbers.take()
            self._groups[masks] = group
            self._group_count = max(self._group_count, group + 1)
            size = 8 * self.layout.words
            if self._group_count * size > len(self._groups_block.data):
                self._groups_block = self._groups_block.grown(2 * len(self._groups_block.data))
            self._groups_block.data[group * size : (group + 1) * size] = words_bytes(masks, bits)
            self._describe()
        self._group_rows[group] = self._group_rows.get(group, 0) + 1
        return group

    def _priority(self, entry: Entry) -> int:
        if self._lpm is not None:
            value = entry.key[self._lpm]
            return value[1] if isinstance(value, tuple) else self.info.key[self._lpm].bits
        priority = entry.priority if self._is_ranked else 0
        return max(-_HIGHEST_PRIORITY, min(priority, _HIGHEST_PRIORITY))

    def _urgency(self, row: NativeRow) -> tuple[int, int]:
        """Return what sorts rows: the highest priority first."""
        priority, order = self._order[row]
        return -priority, order

    def _write(self, row: NativeRow, group: int, key: bytes, hashed: int) -> None:
        """Write what native code finds a row by."""
        assert row.entry is not None
        data, start = self.rows_block.data, row.number * self.layout.size
        _PLACE.pack_into(data, start + ROW["group"], group, *self._order[row], hashed)
        at = start + 8 * len(ROW)
        data[at : at + len(key)] = key
        at = start + self.layout.bounds
        for kind, value, part in zip(self._kinds, row.entry.key, self.info.key, strict=True):
            if kind.is_compared:
                everything = (0, (1 << part.bits) - 1)
                low, high = value if isinstance(value, tuple) else everything
                bounds = words_bytes((low, min(high, everything[1])), (part.bits, part.bits))
                data[at : at + len(bounds)] = bounds
                at += len(bounds)

    def _link(self, chain: list[NativeRow], old_head: NativeRow) -> None:
        """Write the links of a chain, and its head to where the old one was."""
        for row, following in zip(chain, [*chain[1:], None], strict=True):
            row._set("next", following.number if following is not None else 0)
        if chain[0] is not old_head:
            self._replace(old_head, chain[0].number)

    def _replace(self, row: NativeRow, number: int) -> None:
        """Put another number to where an index has the one of a row."""
        slots = memoryview(self._index.data).cast("I")
        at = row._get("hash") & self._index_mask
        while slots[at] != row.number:
            at = at + 1 & self._index_mask
        slots[at] = number

    def _add_to_index(self, row: NativeRow) -> None:
        self._filled += 1
        if 2 * self._filled > self._index_mask:
            self._rebuild()
            return
        slots = memoryview(self._index.data).cast("I")
        at = row._get("hash") & self._index_mask
        while slots[at]:
            at = at + 1 & self._index_mask
        slots[at] = row.number

    def _rebuild(self) -> None:
        """Make an index of all chains, twice as large as it needs to be at least."""
        heads = Block(4 * len(self._chains))
        numbers = [chain[0].number for chain in self._chains.values()]
        memoryview(heads.data).cast("I")[: len(numbers)] = array("I", numbers)
        size = max(_FIRST_SLOTS, 1 << (4 * len(numbers)).bit_length())
        self._index, self._index_mask = Block(4 * size), size - 1
        self._filled = len(numbers)
        self._describe()
        self._note("rows that begin chains", heads)
        self.fill_index(self._context.address + self._descriptor, heads.address, len(numbers))

    def _remove(self, row: TableRow) -> None:
        assert isinstance(row, NativeRow)
        place = self._places.pop(row, None)
        if place is not None:
            self._unlink(row, place)
        del self.by_number[row.number]
        self._numbers.free.append(row.number)

    def _unlink(self, row: NativeRow, place: tuple[int, bytes]) -> None:
        chain = self._chains[place]
        head = chain[0]
        del chain[bisect_left(chain, self._urgency(row), key=self._urgency)]
        del self._order[row]
        if chain:
            self._link(chain, head)
        else:
            self._replace(row, _GONE)
            del self._chains[place]
        group = place[0]
        self._group_rows[group] -= 1
        if not self._group_rows[group]:
            masks = next(masks for masks, number in self._groups.items() if number == group)
            del self._groups[masks]
            self._group_numbers.free.append(group)

    def let_go(self) -> None:
        """Forget the default, which refers to its table; no packet comes any more."""
        self.by_number.clear()
        self.default = TableRow()

    def find(self, key: Any) -> TableRow:
        """Native code finds rows."""
        raise NotImplementedError


def _lpm_position(info: TableInfo) -> int | None:
    """Return which field of a key is matched by its longest prefix where the others are exact, None if none is."""
    kinds = [part.kind for part in info.key]
    if kinds.count(LPM.name) == 1 and kinds.count(EXACT.name) == len(kinds) - 1:
        return kinds.index(LPM.name)
    return None


def _hash(group: int, key: bytes) -> int:
    """Return the hash of a cut key, as runtime.ll computes it, as a signed number."""
    found = group
    for at in range(0, len(key), 8):
        found = (found ^ int.from_bytes(key[at : at + 8], "little")) * _MULTIPLIER & _WORD_MASK
        found ^= found >> 32
    return found - 2**64 if found >> 63 else found
