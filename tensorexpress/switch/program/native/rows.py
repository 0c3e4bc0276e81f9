"""How rows of tables are laid out in memory, for those who write native code and those who fill tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorexpress.switch.program.bmv2.values import ActionInfo, TableInfo
from tensorexpress.switch.program.match_kinds import BMV2_KINDS
from tensorexpress.switch.program.native.layout import words_of

#: Words that every row starts with; runtime.ll knows them, too.
ROW_WORDS = ("action", "packets", "bytes", "hit_us", "next", "group", "priority", "order", "hash", "choice")
ROW = {name: 8 * index for index, name in enumerate(ROW_WORDS)}


@dataclass(frozen=True, slots=True)
class RowLayout:
    """A row: its words, its key, the bounds of its ranges, and the arguments of its action."""

    #: Words of each field of the key, and of each field that is a range: its place in the key and its words.
    key: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    argument_words: int

    @property
    def words(self) -> int:
        """Words of the key."""
        return sum(self.key)

    @property
    def bounds(self) -> int:
        """Where the bounds of ranges start, in bytes."""
        return 8 * (len(ROW_WORDS) + self.words)

    @property
    def arguments(self) -> int:
        """Where the arguments start, in bytes."""
        return self.bounds + 16 * sum(words for _, words in self.ranges)

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return self.arguments + 8 * self.argument_words


def argument_words(info: ActionInfo) -> int:
    """Return how many words the arguments of an action take."""
    return sum(words_of(bits) for _, bits in info.parameters)


def row_layout(table: TableInfo, actions: Mapping[int, ActionInfo]) -> RowLayout:
    """Return how the rows of a table are laid out."""
    key = tuple(words_of(part.bits) for part in table.key)
    ranges, place = [], 0
    for part, words in zip(table.key, key, strict=True):
        if BMV2_KINDS[part.kind].is_compared:
            ranges.append((place, words))
        place += words
    longest = max((argument_words(actions[number]) for number in table.actions.values()), default=0)
    return RowLayout(key, tuple(ranges), longest)


def member_words(profile: str, tables: Iterable[TableInfo], actions: Mapping[int, ActionInfo]) -> int:
    """Return how many words a member of a profile takes: its action and the arguments of that."""
    numbers = {number for table in tables if table.profile == profile for number in table.actions.values()}
    return 1 + max((argument_words(actions[number]) for number in numbers), default=0)
