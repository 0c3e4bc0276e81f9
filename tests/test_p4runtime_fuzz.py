"""SwitchV-style: random valid and mutated writes, each answered as an oracle predicts, and the same tables after."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from support.runtime_oracle import Oracle, normal
from support.runtime_support import DOCUMENT, P4INFO, Client, entity, new_store
from support.thorough import rest

from tensorexpress.p4runtime_messages import is_repeated, p4runtime_pb2
from tensorexpress.switch.device import Switch
from tensorexpress.switch.p4runtime.holdings import kept_bytes
from tensorexpress.switch.p4runtime.service import serve
from tensorexpress.switch.p4runtime.store import Store

UPDATES = 10_000
BATCH = 100

EVERYTHING = [
    entity(text)
    for text in (
        "table_entry { counter_data {} meter_config {} }",
        "action_profile_member {}",
        "action_profile_group {}",
        "packet_replication_engine_entry { multicast_group_entry {} }",
        "packet_replication_engine_entry { clone_session_entry {} }",
        "value_set_entry {}",
        "digest_entry {}",
        "counter_entry {}",
        "meter_entry {}",
        "register_entry {}",
    )
]


class Generator:
    """Random updates for a P4Info, from pools so small that updates meet each other."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.actions = {action.preamble.id: action for action in P4INFO.actions}

    def update(self) -> Any:
        update = p4runtime_pb2.Update(type=self.random.choice((1, 1, 1, 2, 3)))
        make = self.random.choices(
            (
                self.table_entry,
                self.member,
                self.group,
                self.counter,
                self.meter,
                self.register,
                self.direct,
                self.replication,
                self.value_set,
                self.digest,
            ),
            (45, 9, 9, 5, 5, 5, 5, 8, 5, 2),
        )[0]
        make(update.entity)
        if update.entity.WhichOneof("entity") in MODIFY_ONLY and self.random.random() < 0.8:
            update.type = 2
        for _ in range(self.random.choice((0, 0, 0, 0, 0, 1, 2))):
            mutate(self.random, update)
        return update

    def value(self, bits: int) -> bytes:
        number = self.random.choice((0, 1, 2, 3, 2**bits - 1, self.random.getrandbits(bits))) % 2**bits
        return self.encoded(number)

    def encoded(self, number: int) -> bytes:
        data = number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")
        return b"\0" * self.random.choice((0,) * 8 + (1, 3)) + data

    def match(self, field: Any, match: Any) -> None:
        match.field_id = field.id
        bits = field.bitwidth
        if field.match_type == 2:
            match.exact.value = self.value(bits)
        elif field.match_type == 6:
            match.optional.value = self.value(bits)
        elif field.match_type == 3:
            match.lpm.prefix_len = self.random.choice((1, 8, bits))
            number = int.from_bytes(self.value(bits), "big") >> (bits - match.lpm.prefix_len)
            match.lpm.value = self.encoded(number << (bits - match.lpm.prefix_len))
        elif field.match_type == 4:
            mask = int.from_bytes(self.value(bits), "big") or 1
            match.ternary.mask = self.encoded(mask)
            match.ternary.value = self.encoded(int.from_bytes(self.value(bits), "big") & mask)
        else:
            low, high = sorted(int.from_bytes(self.value(bits), "big") for _ in range(2))
            match.range.low, match.range.high = self.encoded(low), self.encoded(high if high > low + 1 else low)

    def key(self, fields: Any, matches: Any) -> None:
        for field in fields:
            if field.match_type == 2 or self.random.random() < 0.7:
                self.match(field, matches.add())

    def call(self, refs: Any, action: Any) -> None:
        action.action_id = self.random.choice(refs).id
        for param in self.actions[action.action_id].params:
            action.params.add(param_id=param.id, value=self.value(param.bitwidth))

    def table_entry(self, into: Any) -> None:
        table = self.random.choice(P4INFO.tables)
        entry = into.table_entry
        entry.table_id = table.preamble.id
        if self.random.random() < 0.1:
            entry.is_default_action = True
            self.call(table.action_refs, entry.action.action)
            return
        self.key(table.match_fields, entry.match)
        if any(field.match_type in (4, 5, 6) for field in table.match_fields):
            entry.priority = self.random.choice((1, 2, 2**31 - 2))
        if self.random.random() < 0.9:
            self.table_action(table, entry.action)
        if self.random.random() < 0.1:
            entry.metadata = b"mine"
        if table.idle_timeout_behavior and self.random.random() < 0.3:
            entry.idle_timeout_ns = 1000
        if table.direct_resource_ids and self.random.random() < 0.4:
            if table.idle_timeout_behavior:
                entry.counter_data.packet_count = self.random.randrange(9)
                entry.counter_data.SetInParent()
            else:
                self.config(entry.meter_config)

    def table_action(self, table: Any, action: Any) -> None:
        if not table.implementation_id:
            self.call(table.action_refs, action.action)
        elif self.random.random() < 0.25 and table.preamble.alias == "nexthops":
            action.action_profile_action_set.SetInParent()
            for _ in range(self.random.randrange(4)):
                one = action.action_profile_action_set.action_profile_actions.add(weight=self.random.choice((1, 1, 2)))
                self.call(table.action_refs, one.action)
        elif self.random.random() < 0.5 and table.preamble.alias == "nexthops":
            action.action_profile_group_id = self.random.randrange(1, 4)
        else:
            action.action_profile_member_id = self.random.randrange(1, 6)

    def member(self, into: Any) -> None:
        profile = self.random.choice(P4INFO.action_profiles)
        table = next(table for table in P4INFO.tables if table.preamble.id == profile.table_ids[0])
        into.action_profile_member.action_profile_id = profile.preamble.id
        into.action_profile_member.member_id = self.random.randrange(1, 8)
        self.call(table.action_refs, into.action_profile_member.action)

    def group(self, into: Any) -> None:
        profile = next(profile for profile in P4INFO.action_profiles if profile.with_selector)
        group = into.action_profile_group
        group.action_profile_id, group.group_id = profile.preamble.id, self.random.randrange(1, 4)
        group.max_size = self.random.choice((0, 0, 0, 0, 6, 3))
        for member in self.random.sample(range(1, 6), self.random.randrange(4)):
            one = group.members.add(member_id=member, weight=self.random.choice((1, 1, 2, 3)))
            if self.random.random() < 0.2:
                one.watch_port = self.encoded(self.random.randrange(520))

    def config(self, config: Any) -> None:
        config.cir, config.pir = sorted(self.random.randrange(1000) for _ in range(2))
        config.cburst, config.pburst = self.random.randrange(1000), self.random.randrange(1000)

    def counter(self, into: Any) -> None:
        counter = self.random.choice(P4INFO.counters)
        into.counter_entry.counter_id = counter.preamble.id
        if self.random.random() < 0.9:
            into.counter_entry.index.index = self.random.randrange(counter.size)
            into.counter_entry.index.SetInParent()
        into.counter_entry.data.packet_count = self.random.randrange(100)
        into.counter_entry.data.byte_count = self.random.randrange(100)

    def meter(self, into: Any) -> None:
        meter = self.random.choice(P4INFO.meters)
        into.meter_entry.meter_id = meter.preamble.id
        if self.random.random() < 0.9:
            into.meter_entry.index.index = self.random.randrange(meter.size)
            into.meter_entry.index.SetInParent()
        if self.random.random() < 0.8:
            self.config(into.meter_entry.config)

    def register(self, into: Any) -> None:
        register = self.random.choice(P4INFO.registers)
        into.register_entry.register_id = register.preamble.id
        if self.random.random() < 0.9:
            into.register_entry.index.index = self.random.randrange(register.size)
            into.register_entry.index.SetInParent()
        spec = register.type_spec.bitstring
        bits = spec.bit.bitwidth or spec.int.bitwidth
        into.register_entry.data.bitstring = self.value(bits)

    def direct(self, into: Any) -> None:
        counter, meter = P4INFO.direct_counters[0], P4INFO.direct_meters[0]
        if self.random.random() < 0.5:
            one, id = into.direct_counter_entry, counter.direct_table_id
            one.data.packet_count = self.random.randrange(100)
        else:
            one, id = into.direct_meter_entry, meter.direct_table_id
            self.config(one.config)
        table = next(table for table in P4INFO.tables if table.preamble.id == id)
        one.table_entry.table_id = id
        self.key(table.match_fields, one.table_entry.match)
        if any(field.match_type in (4, 5, 6) for field in table.match_fields):
            one.table_entry.priority = self.random.choice((1, 2))

    def replication(self, into: Any) -> None:
        engine = into.packet_replication_engine_entry
        if self.random.random() < 0.5:
            one = engine.multicast_group_entry
            one.multicast_group_id = self.random.choice((1, 2, 3, 0xFFFF))
            one.metadata = self.random.choice((b"", b"", b"\0\1"))
        else:
            one = engine.clone_session_entry
            one.session_id = self.random.choice((1, 2, 3, 0x7FFF))
            one.class_of_service = self.random.randrange(9)
            one.packet_length_bytes = self.random.choice((0, 128))
        for port in self.random.sample((0, 1, 2, 3, 4, 510, 511), self.random.randrange(4)):
            replica = one.replicas.add(instance=self.random.choice((0, 1, 0xFFFF)))
            if self.random.random() < 0.5:
                replica.port = self.random.choice((self.encoded(port), b"\xff\xff\xff\xfd"))
            else:
                replica.egress_port = port

    def value_set(self, into: Any) -> None:
        value_set = P4INFO.value_sets[0]
        into.value_set_entry.value_set_id = value_set.preamble.id
        for _ in range(self.random.randrange(6)):
            self.key(value_set.match, into.value_set_entry.members.add().match)

    def digest(self, into: Any) -> None:
        into.digest_entry.digest_id = P4INFO.digests[0].preamble.id
        into.digest_entry.config.max_list_size = self.random.randrange(3)


MODIFY_ONLY = {
    "counter_entry",
    "meter_entry",
    "register_entry",
    "direct_counter_entry",
    "direct_meter_entry",
    "value_set_entry",
}

IDS = [one.preamble.id for group in (P4INFO.tables, P4INFO.actions, P4INFO.counters) for one in group]
NUMBERS = (0, 1, 2, 3, 7, 8, 12, 510, 511, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0xFFFFFFFD, *IDS)
BYTES = (b"", b"\0", b"\1", b"\0\2", b"\xff", b"\1\0", b"\xff" * 4, b"\1" + bytes(4), b"\xff" * 6, b"\1" + bytes(6))

_UNSIGNED_32 = {FieldDescriptor.TYPE_UINT32}
_SIGNED = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64}


def parts(message: Any) -> list[Any]:
    """Return the message and all messages in it."""
    found = [message]
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for one in value if is_repeated(field) else [value]:
                found += parts(one)
    return found


def mutate(rng: random.Random, update: Any) -> None:
    """Change one thing, anywhere in an update."""
    message = rng.choice(parts(update))
    field = rng.choice(message.DESCRIPTOR.fields)
    if field.message_type is not None and field.message_type.full_name == "google.protobuf.Any":
        return
    if is_repeated(field):
        change_list(rng, getattr(message, field.name))
    elif rng.random() < 0.3:
        message.ClearField(field.name)
    elif field.type == field.TYPE_MESSAGE:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, scalar(rng, field))


def change_list(rng: random.Random, items: Any) -> None:
    if not items:
        if hasattr(items, "add"):
            items.add()
        return
    position = rng.randrange(len(items))
    if rng.random() < 0.5 or not hasattr(items, "add"):
        del items[position]
    else:
        items.add().CopyFrom(items[position])


def scalar(rng: random.Random, field: Any) -> Any:
    if field.type == field.TYPE_BYTES:
        return rng.choice(BYTES)
    if field.type == field.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == field.TYPE_STRING:
        return rng.choice(("", "x"))
    if field.type == field.TYPE_ENUM:
        return rng.randrange(5)
    number = rng.choice((*NUMBERS, -1, -(2**31))) if field.type in _SIGNED else rng.choice(NUMBERS)
    return min(number, 2**31 - 1) if field.type == field.TYPE_INT32 else number


def play(write: Callable[[list[Any], int], list[int]], read: Callable[[], list[Any]], updates: int, seed: int) -> Any:
    """Write random updates, compare every answer and, now and then, all contents; return how often each code came."""
    generator, oracle = Generator(seed), Oracle(P4INFO, DOCUMENT)
    seen: Counter[int] = Counter()
    for number in range(updates // BATCH):
        # Every tenth batch is small and all or nothing: a large one would hardly ever succeed.
        atomicity = generator.random.choice((1, 2)) if number % 10 == 9 else 0
        size = 4 if atomicity else BATCH
        for _ in range(BATCH // size):
            batch = [generator.update() for _ in range(size)]
            predicted = oracle.write(batch, all_or_none=atomicity > 0)
            answered = write(batch, atomicity)
            for update, expected, found in zip(batch, predicted, answered, strict=True):
                assert found == expected, f"batch {number}: {expected} is predicted, {found} answered to\n{update}"
            seen.update(predicted)
        if number % 10 == 9:
            assert normal(read()) == oracle.contents(), f"after batch {number}"
    return seen


@rest()
def test_ten_thousand_writes_are_answered_as_the_oracle_predicts() -> None:
    switch = Switch(lambda port, frame, time_ps: None, cpu_port=255)
    with serve(switch, "127.0.0.1:0", cpu_port=255) as server, Client(server.address) as client:
        client.join()
        client.set_pipeline()
        seen = play(
            lambda batch, atomicity: client.refused(*batch, atomicity=atomicity),
            lambda: client.read(*EVERYTHING),
            UPDATES,
            seed=1,
        )
    assert sum(seen.values()) == UPDATES
    # The test is only worth what it reaches: every code, and neither only valid nor only invalid updates.
    assert set(seen) == {0, 3, 5, 6, 7, 8, 9, 10, 11, 12}
    assert UPDATES / 5 < seen[0] < UPDATES * 4 / 5


def kept_values(store: Store) -> Iterator[Any]:
    """Yield all values that writes put into the dictionaries of a store."""
    for part in (store, store.rows, store._profiles, store._arrays, store._replication):
        for name, container in vars(part).items():
            if isinstance(container, dict) and name not in ("_writers", "_readers"):
                for value in container.values():
                    yield from value.values() if isinstance(value, dict) else [value]


@pytest.mark.parametrize("seed", range(2, 5))
def test_the_store_decides_like_the_oracle(seed: int) -> None:
    store, data_path = new_store()

    def write(batch: list[Any], atomicity: int) -> list[int]:
        refusals = store.write(batch, all_or_none=atomicity > 0)
        return [refusal.code if refusal else 0 for refusal in refusals]

    play(write, lambda: [found for one in EVERYTHING for found in store.read(one)], 1000, seed)
    rows = [one.table_entry for one in store.read(EVERYTHING[0])]
    assert len(data_path.entries) == len(rows)
    assert store._holdings.bytes == sum(map(kept_bytes, kept_values(store)))
