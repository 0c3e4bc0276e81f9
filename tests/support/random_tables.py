"""Random entries, registers and frames for any program: some that match each other, many that do not."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tensorexpress.switch.operations import (
    ActionCall,
    DeleteEntry,
    Entry,
    MatchValue,
    MeterRates,
    Operation,
    SetDefault,
    SetEntry,
    SetGroup,
    SetMember,
    SetMeter,
    TableAction,
    UseGroup,
    UseMember,
    WriteRegister,
)
from tensorexpress.switch.program.bmv2.values import ActionInfo, Bmv2Program, KeyField, TableInfo

MEMBERS, GROUPS = 4, 3


class RandomTables:
    """Draws operations for a program; the same seed gives the same ones."""

    def __init__(self, program: Bmv2Program, seed: int):
        self._program = program
        self._random = random.Random(seed)
        self._entries: list[Entry] = []

    def number(self, bits: int) -> int:
        """Return a number of so many bits: any, or one of the few that frames have often."""
        few = [0, 1, 2, (1 << bits) - 1, self._random.getrandbits(bits or 1)]
        return self._random.choice(few) & (1 << bits) - 1

    def first(self) -> Iterator[Operation]:
        """Yield what profiles hold before entries can use them."""
        for name in self._program.profiles:
            tables = [table for table in self._program.tables.values() if table.profile == name]
            for member in range(1, MEMBERS + 1):
                yield SetMember(name, member, self._call(self._random.choice(tables)))
            for group in range(1, GROUPS + 1):
                members = self._random.choices(range(1, MEMBERS + 1), k=self._random.randint(0, MEMBERS))
                yield SetGroup(name, group, tuple(members))

    def operation(self) -> Operation:
        """Return a change of some table or register."""
        registers = self._program.arrays["register"]
        chance = self._random.random()
        if registers and chance < 0.2:
            info = registers[self._random.choice(sorted(registers))]
            if info.size:
                return WriteRegister(info.name, self._random.randrange(info.size), self.number(info.bits))
        meters = [info for info in self._program.arrays["meter"].values() if info.table is None]
        if meters and chance > 0.95:
            meter = self._random.choice(meters)
            rates = [self._random.choice([0, 1, 300, 10**6, 2**62]) for _ in range(4)]
            return SetMeter(meter.name, self._random.choice([None, 0, 1, 2]), MeterRates(*rates))
        if self._entries and chance < 0.4:
            return DeleteEntry(self._entries.pop(self._random.randrange(len(self._entries))))
        table = self._program.tables[self._random.choice(sorted(self._program.tables))]
        if not table.key or chance > 0.9:
            return SetDefault(table.name, None if table.default_is_const else self._action(table))
        ranked = any(part.kind in ("ternary", "range") for part in table.key)
        key = tuple(self._match(part) for part in table.key)
        entry = Entry(table.name, key, self._random.randint(1, 5) if ranked else 0)
        if entry not in self._entries:
            self._entries.append(entry)
        return SetEntry(entry, self._action(table), self._random.choice([0, 10**6]))

    def _match(self, part: KeyField) -> MatchValue:
        value = self.number(part.bits)
        match part.kind:
            case "lpm":
                length = self._random.randint(0, part.bits)
                return value >> part.bits - length << part.bits - length, length
            case "ternary":
                mask = self.number(part.bits)
                return value & mask, mask
            case "range":
                other = self.number(part.bits)
                return min(value, other), max(value, other)
        return value

    def _action(self, table: TableInfo) -> TableAction:
        if table.profile is None:
            return self._call(table)
        if self._program.profiles[table.profile].selector is not None and self._random.random() < 0.5:
            return UseGroup(self._random.randint(1, GROUPS))
        return UseMember(self._random.randint(1, MEMBERS))

    def _call(self, table: TableInfo) -> ActionCall:
        info: ActionInfo = self._program.actions[self._random.choice(sorted(table.actions.values()))]
        return ActionCall(info.name, tuple(self.number(bits) for _, bits in info.parameters))

    def frame(self, seeds: list[bytes]) -> bytes:
        """Return a frame: one of those given, damaged or cut, or bytes of which many are small."""
        draw = self._random
        if seeds and draw.random() < 0.7:
            frame = bytearray(draw.choice(seeds))
            for _ in range(draw.choice([0, 0, 1, 3])):
                if frame:
                    frame[draw.randrange(len(frame))] = draw.choice([0, 1, 2, 255, draw.randrange(256)])
            return bytes(frame[: draw.choice([len(frame)] * 3 + [draw.randint(0, len(frame))])])
        return bytes(draw.choice([0, 1, 2, 3, 255, draw.randrange(256)]) for _ in range(draw.randint(0, 80)))
