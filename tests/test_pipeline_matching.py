"""Tables, against a search through all entries one by one."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from support.passes import load, through
from support.thorough import examples, rest

from tensorexpress.switch.operations import (
    ActionCall,
    DeleteEntry,
    DeleteGroup,
    DeleteMember,
    Entry,
    Key,
    MatchValue,
    MeterRates,
    ReadCounter,
    SetDefault,
    SetEntry,
    SetGroup,
    SetMember,
    SetMeter,
    UseGroup,
    UseMember,
    WriteCounter,
)
from tensorexpress.switch.program.hashes import crc16
from tensorexpress.switch.program.pipeline import Pipeline

#: For tests that set all they look at.
PIPELINE = load("matching")
NAMES = ("exact", "lpm", "ternary", "range", "optional", "const", "selected", "metered")


def found(pipeline: Pipeline, a: int, b: int, address: int, extra: bytes = b"", now_us: int = 0) -> dict[str, int]:
    """Return what each table wrote."""
    out = through(pipeline, struct.pack(">HBI8x", a, b, address) + extra, now_us=now_us)
    assert out is not None
    return dict(zip(NAMES, out[7:15], strict=True))


def call(table: str, value: int) -> ActionCall:
    return ActionCall(f"In.set_{table}", (value,))


def add(pipeline: Pipeline, table: str, key: Key, value: int, priority: int = 0) -> Entry:
    entry = Entry(f"In.{table}_table", key, priority)
    pipeline.apply(SetEntry(entry, call(table, value)))
    return entry


@dataclass(frozen=True)
class Reference:
    """Matches one field as the P4Runtime specification words it."""

    kind: str
    bits: int

    def matches(self, value: int, part: MatchValue) -> bool:
        if self.kind == "optional":
            return part is None or value == part
        if isinstance(part, int) or part is None:
            return value == part
        if self.kind == "lpm":
            shift = self.bits - part[1]
            return value >> shift == part[0] >> shift
        if self.kind == "ternary":
            return value & part[1] == part[0] & part[1]
        return part[0] <= value <= part[1]


KINDS = {
    "ternary": (Reference("ternary", 16), Reference("lpm", 32), Reference("exact", 8)),
    "range": (Reference("range", 16), Reference("ternary", 8)),
    "optional": (Reference("optional", 16), Reference("optional", 8)),
    "lpm": (Reference("exact", 8), Reference("lpm", 32)),
}

# Few different values, so that entries overlap and keys meet them.
values_16 = st.sampled_from([0, 1, 2, 3, 0x100, 0xFF00, 0xFFFF])
values_8 = st.sampled_from([0, 1, 2, 254])
addresses = st.sampled_from([0, 0x0A000000, 0x0A000001, 0x0A010000, 0xFFFFFFFF])


def prefix(address: int, length: int) -> tuple[int, int]:
    return address >> 32 - length << 32 - length, length


prefixes = st.builds(prefix, addresses, st.sampled_from([0, 1, 8, 16, 24, 31, 32]))
ternary_16 = st.builds(lambda value, mask: (value & mask, mask), values_16, values_16)
ternary_8 = st.builds(lambda value, mask: (value & mask, mask), values_8, values_8)
ranges = st.builds(lambda one, other: (min(one, other), max(one, other)), values_16, values_16)
keys = {
    "ternary": st.tuples(ternary_16, prefixes, values_8),
    "range": st.tuples(ranges, ternary_8),
    "optional": st.tuples(st.none() | values_16, st.none() | values_8),
    "lpm": st.tuples(values_8, prefixes),
}
priorities = st.integers(1, 5)
changes = st.sampled_from(sorted(keys)).flatmap(
    lambda table: st.tuples(st.just(table), keys[table], priorities, st.integers(1, 255), st.booleans())
)
packets = st.tuples(values_16, values_8, addresses)


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(changes, packets), max_size=25))
def test_every_match_kind_finds_what_a_search_of_all_entries_finds(
    story: list[tuple[tuple[str, Key, int, int, bool], tuple[int, int, int]]],
) -> None:
    pipeline = load("matching")
    # Inserted first wins among equal priorities; a dictionary keeps that order and drops it on deletion.
    there: dict[tuple[str, Key, int], int] = {}
    for (table, key, priority, value, delete), (a, b, address) in story:
        priority = 0 if table == "lpm" else priority
        entry = Entry(f"In.{table}_table", key, priority)
        if delete:
            there.pop((table, key, priority), None)
            pipeline.apply(DeleteEntry(entry))
        else:
            there[table, key, priority] = value
            pipeline.apply(SetEntry(entry, call(table, value)))
        got = found(pipeline, a, b, address)
        for name, parts in {
            "ternary": (a, address, b),
            "range": (a, b),
            "optional": (a, b),
            "lpm": (b, address),
        }.items():
            matching = [
                (row_priority if name != "lpm" else row_key[1][1], row_value)  # type: ignore[index]
                for (row_table, row_key, row_priority), row_value in there.items()
                if row_table == name
                and all(
                    kind.matches(part, row_part)
                    for kind, part, row_part in zip(KINDS[name], parts, row_key, strict=True)
                )
            ]
            best = max(matching, key=lambda row: row[0])[1] if matching else 0xDD if name == "lpm" else 0
            assert got[name] == best


def test_const_entries_are_there_and_the_first_that_fits_wins() -> None:
    pipeline = load("matching")
    assert [found(pipeline, a, 0, 0)["const"] for a in (0x0001, 0x0004, 0x1003, 0x2003)] == [1, 2, 3, 9]


def test_a_field_of_a_header_that_is_not_there_matches_zero() -> None:
    pipeline = load("matching")
    add(pipeline, "exact", (7, 8, 0), 5)
    add(pipeline, "exact", (7, 255, 9), 6)
    assert found(pipeline, 7, 8, 0)["exact"] == 5
    assert found(pipeline, 7, 255, 0, extra=b"\t")["exact"] == 6
    assert found(pipeline, 7, 255, 0, extra=b"\n")["exact"] == 0xEE


def test_a_default_action_can_be_replaced_and_put_back() -> None:
    pipeline = load("matching")
    pipeline.apply(SetDefault("In.ternary_table", call("ternary", 77)))
    assert found(pipeline, 1, 2, 3)["ternary"] == 77
    pipeline.apply(SetDefault("In.ternary_table", None))
    assert found(pipeline, 1, 2, 3)["ternary"] == 0


def test_direct_counters_count_hits_of_their_entry_and_outlive_a_change_of_its_action() -> None:
    pipeline = load("matching")
    entry = add(pipeline, "exact", (7, 8, 0), 5)
    other = add(pipeline, "exact", (7, 9, 0), 5)
    for _ in range(3):
        found(pipeline, 7, 8, 0)
    pipeline.apply(SetEntry(entry, call("exact", 6)))
    assert found(pipeline, 7, 8, 0)["exact"] == 6
    assert pipeline.ask(ReadCounter("In.exact_hits", entry)) == [(4, 60)]
    assert pipeline.ask(ReadCounter("In.exact_hits", other)) == [(0, 0)]
    pipeline.apply(WriteCounter("In.exact_hits", entry, 1, 2))
    assert pipeline.ask(ReadCounter("In.exact_hits", entry)) == [(1, 2)]


def test_a_direct_meter_colours_by_two_rates() -> None:
    pipeline = load("matching")
    entry = add(pipeline, "metered", (1,), 1)
    assert found(pipeline, 0, 1, 0)["metered"] == 1
    pipeline.apply(SetMeter("In.entry_meter", entry, MeterRates(cir=1, cburst=1, pir=2, pburst=3)))
    colours = [found(pipeline, 0, 1, 0, now_us=0)["metered"] for _ in range(4)]
    assert colours == [1, 0xC1, 0xC1, 0xC2]
    # Half a second later one packet of the peak rate is back, and none of the committed rate.
    assert [found(pipeline, 0, 1, 0, now_us=500_000)["metered"] for _ in range(2)] == [0xC1, 0xC2]
    pipeline.apply(SetMeter("In.entry_meter", entry, None))
    assert found(pipeline, 0, 1, 0, now_us=500_000)["metered"] == 1


def chosen_by_hash(pipeline: Pipeline, a: int, address: int, members: list[int]) -> bool:
    """Whether the group's member at the place that the hash of the selector's fields points to is the one that ran."""
    expected = members[crc16(struct.pack(">HI", a, address)) % len(members)]
    return found(pipeline, a, 1, address)["selected"] == expected


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.sets(st.integers(1, 9), min_size=1).map(sorted))
def test_a_selector_takes_the_member_that_the_hash_of_its_fields_points_at(
    a: int, address: int, members: list[int]
) -> None:
    for member in range(1, 10):
        PIPELINE.apply(SetMember("In.members", member, call("selected", member)))
    PIPELINE.apply(SetGroup("In.members", 1, tuple(members)))
    PIPELINE.apply(SetEntry(Entry("In.selected_table", (1,)), UseGroup(1)))
    assert chosen_by_hash(PIPELINE, a, address, members)


def test_a_group_lists_its_members_in_the_order_they_were_made_and_further_weight_last() -> None:
    pipeline = load("matching")
    for member in (30, 10, 20):
        pipeline.apply(SetMember("In.members", member, call("selected", member)))
    pipeline.apply(SetGroup("In.members", 1, (10, 10, 20, 30)))
    pipeline.apply(SetEntry(Entry("In.selected_table", (1,)), UseGroup(1)))
    assert all(chosen_by_hash(pipeline, a, 0, [30, 10, 20, 10]) for a in range(50))


def test_members_and_groups_change_under_the_entries_that_use_them() -> None:
    pipeline = load("matching")
    pipeline.apply(SetMember("In.members", 1, call("selected", 11)))
    pipeline.apply(SetMember("In.members", 2, call("selected", 22)))
    pipeline.apply(SetGroup("In.members", 7, (1,)))
    by_member, by_group = Entry("In.selected_table", (1,)), Entry("In.selected_table", (2,))
    pipeline.apply(SetEntry(by_member, UseMember(1)))
    pipeline.apply(SetEntry(by_group, UseGroup(7)))
    assert [found(pipeline, 0, b, 0)["selected"] for b in (1, 2, 3)] == [11, 11, 0]
    pipeline.apply(SetMember("In.members", 1, call("selected", 12)))
    assert [found(pipeline, 0, b, 0)["selected"] for b in (1, 2)] == [12, 12]
    pipeline.apply(SetGroup("In.members", 7, (2,)))
    assert found(pipeline, 0, 2, 0)["selected"] == 22
    pipeline.apply(SetGroup("In.members", 7, ()))
    assert found(pipeline, 0, 2, 0)["selected"] == 0
    for operation in (DeleteEntry(by_member), DeleteEntry(by_group), DeleteGroup("In.members", 7)):
        pipeline.apply(operation)
    pipeline.apply(DeleteMember("In.members", 1))
    assert found(pipeline, 0, 1, 0)["selected"] == 0


@rest()
def test_more_keys_than_are_remembered_are_all_found() -> None:
    pipeline = load("matching")
    add(pipeline, "lpm", (0, (0x0A000000, 8)), 5)
    assert all(found(pipeline, 0, 0, 0x0A000000 + n)["lpm"] == 5 for n in range(9000))
