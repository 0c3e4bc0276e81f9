"""Every rule about entities: what a write is refused with and why, and what reads with wildcards return."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runtime_support import DELETE, INSERT, MODIFY, SCHEMA, StrictDataPath, entity, id_of, new_store, update
from support.thorough import examples

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch import operations as ops
from tensorexpress.switch.p4runtime.status import Code, Refused
from tensorexpress.switch.p4runtime.store import Store


@pytest.fixture
def store() -> Store:
    return new_store()[0]


def answer(store: Store, *updates: Any) -> list[Code]:
    return [refusal.code if refusal else Code.OK for refusal in store.write(updates)]


def refusal(store: Store, one: Any) -> Refused:
    (found,) = store.write([one])
    assert found is not None
    assert "\n" not in str(found)
    return found


def read(store: Store, text: str) -> list[Any]:
    return [getattr(one, one.WhichOneof("entity")) for one in store.read(entity(text))]


FORWARD = r"action { action { action_id: $forward params { param_id: 1 value: '\005' } } }"
DROP = "action { action { action_id: $drop } }"
WATCH = "action { action { action_id: $watch } }"


def l2(dst: str = r"\001", rest: str = FORWARD) -> str:
    fields = f"match {{ field_id: 1 exact {{ value: '{dst}' }} }} match {{ field_id: 2 exact {{ value: '\\000' }} }}"
    return f"table_entry {{ table_id: $l2_exact {fields} {rest} }}"


def l2_matches(matches: str) -> str:
    return f"table_entry {{ table_id: $l2_exact {matches} {FORWARD} }}"


def route(lpm: str, rest: str = DROP) -> str:
    return f"table_entry {{ table_id: $routes match {{ field_id: 1 lpm {{ {lpm} }} }} {rest} }}"


def acl(matches: str = "", rest: str = f"priority: 5 {WATCH}") -> str:
    port = r"match { field_id: 4 exact { value: '\001' } }"
    return f"table_entry {{ table_id: $acl {port} {matches} {rest} }}"


def nexthop(action: str, dst: str = r"\001") -> str:
    match = f"match {{ field_id: 1 exact {{ value: '{dst}' }} }}"
    return f"table_entry {{ table_id: $nexthops {match} action {{ {action} }} }}"


def member(id: int, profile: str = "ecmp", rest: str = FORWARD[9:-2]) -> str:
    return f"action_profile_member {{ action_profile_id: ${profile} member_id: {id} {rest} }}"


def group(id: int, *members: tuple[int, int], rest: str = "", profile: str = "ecmp") -> str:
    texts = " ".join(f"members {{ member_id: {id} weight: {weight} }}" for id, weight in members)
    return f"action_profile_group {{ action_profile_id: ${profile} group_id: {id} {texts} {rest} }}"


def one_shot(*weights: int, action: str = FORWARD[9:-2]) -> str:
    texts = " ".join(f"action_profile_actions {{ {action} weight: {weight} }}" for weight in weights)
    return f"action_profile_action_set {{ {texts} }}"


def replicas(kind: str, id: str, text: str) -> str:
    return f"packet_replication_engine_entry {{ {kind} {{ {id} {text} }} }}"


def multicast(id: int, text: str = "") -> str:
    return replicas("multicast_group_entry", f"multicast_group_id: {id}", text)


def clone(id: int, text: str = "") -> str:
    return replicas("clone_session_entry", f"session_id: {id}", text)


def value_set(*values: str) -> str:
    members = " ".join(f"members {{ match {{ field_id: 1 exact {{ value: '{value}' }} }} }}" for value in values)
    return f"value_set_entry {{ value_set_id: $trill_types {members} }}"


INVALID, DENIED = Code.INVALID_ARGUMENT, Code.PERMISSION_DENIED
MISSING, UNIMPLEMENTED = Code.NOT_FOUND, Code.UNIMPLEMENTED
RANGE, FULL = Code.OUT_OF_RANGE, Code.RESOURCE_EXHAUSTED

REFUSED: list[tuple[int, str, Code, str]] = [
    (0, l2(), INVALID, "update type 0"),
    (INSERT, "", INVALID, "without an entity"),
    (INSERT, "extern_entry {}", UNIMPLEMENTED, "extern_entry"),
    # Keys.
    (INSERT, "table_entry { table_id: 0 }", INVALID, "unknown table 0"),
    (INSERT, "table_entry { table_id: 33554433 }", INVALID, "MyIngress.l2_exact"),
    (INSERT, l2_matches(r"match { field_id: 2 exact { value: '\000' } }"), INVALID, "dst: an exact match field"),
    (INSERT, l2_matches("match { field_id: 9 exact { value: 'a' } }"), INVALID, "unknown match field 9"),
    (INSERT, l2_matches("match { field_id: 1 exact { value: 'a' } }" * 2), INVALID, "given twice"),
    (INSERT, l2("abcdefg"), INVALID, "at most 48 fit"),
    (INSERT, l2(""), INVALID, "empty bytestring"),
    (INSERT, l2_matches("match { field_id: 1 optional { value: 'a' } }"), INVALID, "kind optional; accepted: exact"),
    (INSERT, l2_matches("match { field_id: 1 }"), INVALID, "kind none; accepted: exact"),
    (INSERT, route(r"value: '\012\000\000\000' prefix_len: 0"), INVALID, "1 to 32"),
    (INSERT, route(r"value: '\012\000\000\000' prefix_len: 33"), INVALID, "1 to 32"),
    (INSERT, route(r"value: '\012\000\000\000' prefix_len: -1"), INVALID, "1 to 32"),
    (INSERT, route(r"value: '\012\000\000\001' prefix_len: 31"), INVALID, "behind the prefix"),
    (INSERT, acl(r"match { field_id: 1 ternary { value: '\000' mask: '\000' } }"), INVALID, "leave the field out"),
    (INSERT, acl(r"match { field_id: 1 ternary { value: '\003' mask: '\002' } }"), INVALID, "mask leaves open"),
    (INSERT, acl(r"match { field_id: 2 range { low: '\003' high: '\002' } }"), INVALID, "low is at most high"),
    (INSERT, acl(r"match { field_id: 2 range { low: '\000' high: '\377\377' } }"), INVALID, "covers every value"),
    (INSERT, acl(r"match { field_id: 3 optional { value: '\001\000' } }"), INVALID, "at most 8 fit"),
    (INSERT, acl(rest=WATCH), INVALID, "needs one above zero"),
    (INSERT, acl(rest=f"priority: -3 {WATCH}"), INVALID, "needs one above zero"),
    (INSERT, l2(rest=FORWARD + " priority: 1"), INVALID, "priority 1"),
    # Actions.
    (INSERT, l2(rest=""), INVALID, "without an action"),
    (INSERT, l2(rest="action {}"), INVALID, "kind none; accepted: action"),
    (INSERT, l2(rest="action { action_profile_member_id: 1 }"), INVALID, "accepted: action"),
    (INSERT, l2(rest="action { action { action_id: $watch } }"), INVALID, "unknown action"),
    (INSERT, l2(rest="action { action { action_id: $drop } }"), DENIED, "may not stand in an entry"),
    (INSERT, l2(rest="action { action { action_id: $forward } }"), INVALID, "lacks parameter 1 (port)"),
    (INSERT, l2(rest=FORWARD.replace("param_id: 1", "param_id: 2")), INVALID, "no parameter 2"),
    (INSERT, l2(rest=FORWARD.replace(r"\005", r"\002\000")), INVALID, "forward.port: a value of 10 bits"),
    (INSERT, l2(rest=FORWARD.replace(r"\005", "")), INVALID, "empty bytestring"),
    (INSERT, nexthop("action { action_id: $drop }"), INVALID, "action_profile_member_id"),
    (INSERT, nexthop("action_profile_member_id: 1"), MISSING, "no member 1"),
    (INSERT, nexthop("action_profile_group_id: 1"), MISSING, "no group 1"),
    (INSERT, nexthop("action_profile_member_id: 0"), INVALID, "above zero"),
    (INSERT, nexthop(one_shot(1, 0)), INVALID, "weight of 0"),
    (INSERT, nexthop(one_shot(4, 3)), INVALID, "at most 6 fit a group"),
    (INSERT, nexthop(one_shot(1, action="action { action_id: $NoAction }")), DENIED, "NoAction"),
    # Tables that are not open.
    (INSERT, "table_entry { table_id: $types }", DENIED, "constant"),
    (DELETE, "table_entry { table_id: $types }", DENIED, "constant"),
    (INSERT, "table_entry { table_id: $keyless action { action { action_id: $learn } } }", INVALID, "without a key"),
    (INSERT, l2(rest=FORWARD + " is_const: true"), INVALID, "is_const"),
    (DELETE, l2(r"\011", ""), MISSING, "not there"),
    (MODIFY, l2(r"\011"), MISSING, "not there"),
    # The default entry.
    (INSERT, f"table_entry {{ table_id: $l2_exact is_default_action: true {FORWARD} }}", INVALID, "only be modified"),
    (DELETE, "table_entry { table_id: $l2_exact is_default_action: true }", INVALID, "only be modified"),
    (MODIFY, l2(rest=FORWARD + " is_default_action: true"), INVALID, "no match"),
    (MODIFY, "table_entry { table_id: $acl is_default_action: true priority: 1 }", INVALID, "no priority"),
    (MODIFY, "table_entry { table_id: $l2_exact is_default_action: true idle_timeout_ns: 1 }", INVALID, "idle"),
    (MODIFY, "table_entry { table_id: $routes is_default_action: true }", DENIED, "constant"),
    (MODIFY, "table_entry { table_id: $nexthops is_default_action: true }", DENIED, "constant"),
    (
        MODIFY,
        "table_entry { table_id: $l2_exact is_default_action: true action { action { action_id: $forward_tagged } } }",
        DENIED,
        "may not stand in the default action",
    ),
    (MODIFY, "table_entry { table_id: $l2_exact is_default_action: true action {} }", INVALID, "plain action"),
    (MODIFY, "table_entry { table_id: $l2_exact is_default_action: true counter_data {} }", UNIMPLEMENTED, "default"),
    # Direct resources and idle times.
    (INSERT, route(r"value: '\001' prefix_len: 32", f"{DROP} counter_data {{}}"), INVALID, "without a direct counter"),
    (INSERT, l2(rest=FORWARD + " meter_config {}"), INVALID, "without a direct meter"),
    (INSERT, l2(rest=FORWARD + " counter_data { packet_count: -1 }"), INVALID, "0 or more"),
    (INSERT, l2(rest=FORWARD + " meter_counter_data {}"), UNIMPLEMENTED, "colours"),
    (INSERT, l2(rest=FORWARD + " time_since_last_hit {}"), INVALID, "for reading"),
    (INSERT, l2(rest=FORWARD + " idle_timeout_ns: -1"), INVALID, "0 or more"),
    (INSERT, acl(rest=f"priority: 1 idle_timeout_ns: 1 {WATCH}"), INVALID, "supports none"),
    (INSERT, acl(rest=f"priority: 1 meter_config {{ cir: -1 }} {WATCH}"), INVALID, "below zero"),
    # Members and groups.
    (INSERT, "action_profile_member { action_profile_id: 5 member_id: 1 }", INVALID, "unknown action profile 5"),
    (INSERT, member(0), INVALID, "above zero"),
    (INSERT, member(1, rest=""), INVALID, "has no action"),
    (INSERT, member(1, rest="action { action_id: $NoAction }"), DENIED, "NoAction"),
    (INSERT, member(1, rest="action { action_id: $rewrite }"), INVALID, "unknown action"),
    (MODIFY, member(1), MISSING, "member 1"),
    (DELETE, member(1), MISSING, "member 1"),
    (INSERT, group(0), INVALID, "above zero"),
    (INSERT, group(1, profile="shared"), INVALID, "no selector"),
    (INSERT, group(1, (1, 1)), MISSING, "no member 1"),
    (INSERT, group(1, (1, 0)), INVALID, "weight of 0"),
    (INSERT, group(1, (1, -2)), INVALID, "weight of -2"),
    (INSERT, group(1, (1, 1), (1, 1)), INVALID, "twice"),
    (INSERT, group(1, rest="max_size: 7"), INVALID, "at most 6"),
    (INSERT, group(1, rest="max_size: -1"), INVALID, "0 or more"),
    (INSERT, group(1, rest=r"members { member_id: 1 weight: 1 watch_port: '\001\377' }"), INVALID, "watches port 511"),
    (MODIFY, group(1), MISSING, "group 1"),
    (DELETE, group(1), MISSING, "group 1"),
    # Arrays.
    (INSERT, "counter_entry { counter_id: $port_counter }", INVALID, "only be modified"),
    (DELETE, "meter_entry { meter_id: $port_meter }", INVALID, "only be modified"),
    (INSERT, "register_entry { register_id: $last_seen }", INVALID, "only be modified"),
    (MODIFY, "counter_entry { counter_id: 1 }", INVALID, "unknown counter 1"),
    (MODIFY, "counter_entry { counter_id: $port_counter index { index: -1 } }", INVALID, "0 to 15"),
    (MODIFY, "counter_entry { counter_id: $port_counter index { index: 16 } }", RANGE, "0 to 15"),
    (MODIFY, "counter_entry { counter_id: $port_counter data { byte_count: -1 } }", INVALID, "0 or more"),
    (MODIFY, "meter_entry { meter_id: $port_meter index { index: 8 } }", RANGE, "0 to 7"),
    (MODIFY, "meter_entry { meter_id: $port_meter counter_data {} }", UNIMPLEMENTED, "colours"),
    (MODIFY, "meter_entry { meter_id: $port_meter config { cir: 2 pir: 1 } }", INVALID, "at least that"),
    (MODIFY, "meter_entry { meter_id: $port_meter config { eburst: 1 } }", INVALID, "eburst"),
    (MODIFY, "register_entry { register_id: $last_seen index { index: 32 } }", RANGE, "0 to 31"),
    (MODIFY, "register_entry { register_id: $last_seen }", INVALID, "data is not set; accepted: bitstring"),
    (MODIFY, "register_entry { register_id: $last_seen data { bool: true } }", INVALID, "data is bool"),
    (MODIFY, r"register_entry { register_id: $last_seen data { bitstring: '\001\000\000\000\000' } }", INVALID, "33"),
    (MODIFY, r"register_entry { register_id: $signed_cells data { bitstring: '\010\000' } }", INVALID, "int<12>"),
    # Direct counters and meters by themselves.
    (INSERT, "direct_counter_entry {}", INVALID, "only be modified"),
    (MODIFY, "direct_counter_entry {}", INVALID, "without its table_entry"),
    (MODIFY, f"direct_counter_entry {{ {l2()} }}", MISSING, "not there"),
    (MODIFY, f"direct_counter_entry {{ {acl()} }}", INVALID, "no direct counter"),
    (MODIFY, f"direct_meter_entry {{ {l2()} }}", INVALID, "no direct meter"),
    (MODIFY, f"direct_meter_entry {{ {acl()} }}", MISSING, "not there"),
    (
        MODIFY,
        "direct_counter_entry { table_entry { table_id: $l2_exact is_default_action: true } }",
        UNIMPLEMENTED,
        "default entry",
    ),
    # Replication.
    (INSERT, "packet_replication_engine_entry {}", INVALID, "without a type"),
    (INSERT, multicast(0), INVALID, "above zero"),
    (INSERT, multicast(65536), RANGE, "1 to 65535"),
    (INSERT, multicast(1, "replicas { instance: 1 }"), INVALID, "without a port"),
    (INSERT, multicast(1, "replicas { egress_port: 511 }"), INVALID, "0 to 510"),
    (INSERT, multicast(1, r"replicas { port: '' }"), INVALID, "empty bytestring"),
    (INSERT, multicast(1, "replicas { egress_port: 1 instance: 65536 }"), INVALID, "0 to 65535"),
    (INSERT, multicast(1, r"replicas { egress_port: 1 } replicas { port: '\000\001' }"), INVALID, "same port"),
    (MODIFY, multicast(1), MISSING, "multicast group 1"),
    (DELETE, multicast(1), MISSING, "multicast group 1"),
    (INSERT, clone(0), INVALID, "1 to 32767"),
    (INSERT, clone(32768), INVALID, "1 to 32767"),
    (INSERT, clone(1, "class_of_service: 8"), INVALID, "0 to 7"),
    (INSERT, clone(1, "packet_length_bytes: -1"), INVALID, "0 or more"),
    (MODIFY, clone(1), MISSING, "clone session 1"),
    # Value sets and digests.
    (INSERT, "value_set_entry { value_set_id: $trill_types }", INVALID, "only be modified"),
    (MODIFY, "value_set_entry { value_set_id: 3 }", INVALID, "unknown value set 3"),
    (MODIFY, "value_set_entry { value_set_id: $trill_types members {} }", INVALID, "missing"),
    (
        MODIFY,
        value_set("1", "2", "3", "4", "5"),
        FULL,
        "at most 4 fit",
    ),
    (
        MODIFY,
        value_set("1", "1"),
        Code.ALREADY_EXISTS,
        "twice",
    ),
    (INSERT, "digest_entry { digest_id: 9 }", INVALID, "unknown digest 9"),
    (INSERT, "digest_entry { digest_id: $learn_t config { max_list_size: -1 } }", INVALID, "below zero"),
    (MODIFY, "digest_entry { digest_id: $learn_t }", MISSING, "insert it first"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "code", "reason"), REFUSED)
def test_refused(kind: int, text: str, code: Code, reason: str) -> None:
    store, data_path = new_store()
    before = [list(store.read(one)) for one in ALL]
    found = refusal(store, update(kind, text))
    assert (found.code, reason in str(found)) == (code, True), f"{found.code.name}: {found}"
    assert [list(store.read(one)) for one in ALL] == before
    assert [operations for operations in data_path.batches if operations] == []


ALL = [
    entity(text)
    for text in (
        "table_entry {}",
        "table_entry { is_default_action: true }",
        "action_profile_member {}",
        "action_profile_group {}",
        "meter_entry {}",
        "counter_entry {}",
        "register_entry {}",
        "value_set_entry {}",
        "digest_entry {}",
        "packet_replication_engine_entry { multicast_group_entry {} }",
        "packet_replication_engine_entry { clone_session_entry {} }",
    )
]


def test_delete_looks_at_the_key_alone(store: Store) -> None:
    assert answer(store, update(INSERT, l2())) == [Code.OK]
    nonsense = "action { action { action_id: 7 } } meter_config { cir: -1 } idle_timeout_ns: -5 time_since_last_hit {}"
    assert answer(store, update(DELETE, l2(rest=nonsense))) == [Code.OK]
    assert answer(store, update(INSERT, member(1)), update(DELETE, member(1, rest=""))) == [Code.OK] * 2
    assert answer(store, update(INSERT, clone(1)), update(DELETE, clone(1, "class_of_service: 99"))) == [Code.OK] * 2


def test_a_table_takes_as_many_entries_as_p4info_says(store: Store) -> None:
    inserts = [update(INSERT, acl(rest=f"priority: {number} {WATCH}")) for number in range(1, 10)]
    assert answer(store, *inserts) == [Code.OK] * 8 + [Code.RESOURCE_EXHAUSTED]
    assert answer(store, update(DELETE, acl(rest="priority: 3")), inserts[8]) == [Code.OK] * 2


def test_entries_of_equal_key_and_other_priority_are_two(store: Store) -> None:
    texts = [acl(rest=f"priority: {number} {WATCH}") for number in (1, 2, 1)]
    assert answer(store, *(update(INSERT, text) for text in texts)) == [Code.OK, Code.OK, Code.ALREADY_EXISTS]


def test_bytestrings_are_given_back_in_the_shortest_form(store: Store) -> None:
    longer = FORWARD.replace(r"\005", r"\000\000\005")
    assert answer(store, update(INSERT, l2(r"\000\000\001", longer))) == [Code.OK]
    assert answer(store, update(INSERT, l2(r"\001"))) == [Code.ALREADY_EXISTS]
    (entry,) = read(store, "table_entry { table_id: $l2_exact }")
    assert entry.match[0].exact.value == b"\1"
    assert entry.action.action.params[0].value == b"\5"


def test_what_matches_anything_is_left_out(store: Store) -> None:
    assert answer(store, update(INSERT, acl())) == [Code.OK]
    (entry,) = read(store, "table_entry { table_id: $acl }")
    assert [match.field_id for match in entry.match] == [4]
    (operation,) = [one for batch in _batches(store) for one in batch]
    assert operation.entry.key == ((0, 0), (0, 0xFFFF), None, 1)


def _batches(store: Store) -> list[list[Any]]:
    data_path = store._data_path
    assert isinstance(data_path, StrictDataPath)
    return data_path.batches


def test_modify_without_an_action_keeps_it_and_resets_the_meter(store: Store) -> None:
    config = "meter_config { cir: 1 pir: 2 } metadata: 'a'"
    assert answer(store, update(INSERT, acl(rest=f"priority: 5 {config} {WATCH}"))) == [0]
    assert answer(store, update(MODIFY, acl(rest="priority: 5"))) == [Code.OK]
    (entry,) = read(store, "table_entry { table_id: $acl meter_config {} }")
    assert entry.action.action.action_id == id_of("watch")
    assert not entry.HasField("meter_config")
    assert entry.metadata == b""


def test_direct_resources_of_const_entries_are_open(store: Store) -> None:
    match = r"match { field_id: 1 ternary { value: '\010\006' mask: '\377\377' } } priority: 2147483646"
    assert answer(store, update(MODIFY, f"table_entry {{ table_id: $types {match} }}")) == [Code.OK]
    for more in (FORWARD, "metadata: 'a'", "idle_timeout_ns: 5"):
        assert answer(store, update(MODIFY, f"table_entry {{ table_id: $types {match} {more} }}")) == [DENIED]


def test_members_and_groups_in_use_stay(store: Store) -> None:
    assert (
        answer(store, update(INSERT, member(1)), update(INSERT, member(2)), update(INSERT, group(1, (1, 2)))) == [0] * 3
    )
    assert answer(store, update(INSERT, nexthop("action_profile_group_id: 1"))) == [Code.OK]
    assert answer(store, update(INSERT, nexthop("action_profile_member_id: 2", r"\002"))) == [Code.OK]
    deletes = [update(DELETE, member(1)), update(DELETE, member(2)), update(DELETE, group(1))]
    assert answer(store, *deletes) == [Code.FAILED_PRECONDITION] * 3
    assert answer(store, update(MODIFY, nexthop("action_profile_member_id: 1"))) == [Code.OK]
    assert answer(store, update(DELETE, group(1)), update(DELETE, nexthop("", r"\002"))) == [Code.OK] * 2
    assert answer(store, *deletes[:2]) == [Code.FAILED_PRECONDITION, Code.OK]


def test_profiles_and_groups_have_sizes(store: Store) -> None:
    assert answer(store, *(update(INSERT, member(id)) for id in range(1, 14))) == [Code.OK] * 12 + [FULL]
    assert answer(store, update(INSERT, group(1, (1, 4), (2, 3)))) == [FULL]
    assert answer(store, update(INSERT, group(1, (1, 4), rest="max_size: 3"))) == [FULL]
    assert answer(store, update(INSERT, group(1, (1, 6))), update(INSERT, group(2, (1, 6)))) == [Code.OK] * 2
    assert answer(store, update(INSERT, group(3, (1, 1)))) == [FULL]
    assert answer(store, update(MODIFY, group(2, (1, 5)))) == [Code.OK]
    assert answer(store, update(INSERT, group(3, (1, 1), rest="max_size: 2"))) == [Code.OK]
    assert answer(store, update(MODIFY, group(3, rest="max_size: 3"))) == [INVALID]


def test_one_shots_and_members_do_not_go_together(store: Store) -> None:
    assert answer(store, update(INSERT, nexthop(one_shot(1, 2)))) == [Code.OK]
    assert answer(store, update(INSERT, member(1)), update(INSERT, group(1))) == [INVALID] * 2
    assert read(store, "action_profile_member {}") == []
    assert answer(store, update(DELETE, nexthop("")), update(INSERT, member(1))) == [Code.OK] * 2
    assert answer(store, update(INSERT, nexthop(one_shot(1)))) == [INVALID]


def test_a_one_shot_leaves_nothing_behind() -> None:
    store, data_path = new_store()
    for weights in ((1, 2), (3,), (3,), ()):
        kind = INSERT if weights == (1, 2) else MODIFY
        assert answer(store, update(kind, nexthop(one_shot(*weights)))) == [Code.OK]
        (group,) = data_path.groups.values()
        assert len(group) == sum(weights)
        assert len(data_path.members) == len(weights)
    assert answer(store, update(DELETE, nexthop(""))) == [Code.OK]
    assert not data_path.groups
    assert not data_path.members


def test_weights_cannot_exhaust_the_memory() -> None:
    huge = 2**31 - 1
    store, _ = new_store()
    assert answer(store, update(INSERT, member(1)), update(INSERT, group(1, (1, huge)))) == [Code.OK, FULL]


def test_the_cpu_port_has_its_own_number() -> None:
    store, data_path = new_store(cpu_port=255)
    cpu = r"replicas { port: '\377\377\377\375' instance: 1 }"
    assert answer(store, update(INSERT, clone(1, cpu)), update(INSERT, multicast(1, cpu))) == [Code.OK] * 2
    assert data_path.clones[1].replicas == data_path.multicast[1] == ((255, 1),)
    (found,) = read(store, "packet_replication_engine_entry { clone_session_entry { session_id: 1 } }")
    assert found.clone_session_entry.replicas[0].port == b"\xff\xff\xff\xfd"
    without, _ = new_store(cpu_port=None)
    assert answer(without, update(INSERT, clone(1, cpu))) == [INVALID]


def test_wildcards_write_whole_arrays() -> None:
    store, data_path = new_store()
    assert (
        answer(
            store,
            update(MODIFY, r"register_entry { register_id: $signed_cells data { bitstring: '\377' } }"),
            update(MODIFY, "counter_entry { counter_id: $port_counter data { packet_count: 2 byte_count: 3 } }"),
            update(MODIFY, "meter_entry { meter_id: $port_meter config { cir: 1 pir: 2 } }"),
            update(MODIFY, "meter_entry { meter_id: $port_meter index { index: 3 } }"),
        )
        == [Code.OK] * 4
    )
    assert data_path.registers["MyIngress.signed_cells"] == [0xFFF] * 4
    assert [one.data.bitstring for one in read(store, "register_entry { register_id: $signed_cells }")] == [b"\xff"] * 4
    assert {one.data.byte_count for one in read(store, "counter_entry {}")} == {3}
    configured = [one.index.index for one in read(store, "meter_entry {}") if one.HasField("config")]
    assert configured == [0, 1, 2, 4, 5, 6, 7]


# Reads.


@pytest.fixture
def filled(store: Store) -> Store:
    inserts = [
        l2(r"\001", FORWARD + " metadata: 'a' counter_data { packet_count: 7 }"),
        l2(r"\002", "action { action { action_id: $to_controller } } controller_metadata: 5"),
        acl(r"match { field_id: 3 optional { value: '\006' } }"),
        acl(rest=f"priority: 6 meter_config {{ cir: 1 pir: 2 }} {WATCH}"),
        member(1),
        member(2),
        group(1, (1, 1)),
        multicast(1),
        multicast(2),
        clone(3),
        "digest_entry { digest_id: $learn_t }",
    ]
    assert answer(store, *(update(INSERT, text) for text in inserts)) == [Code.OK] * len(inserts)
    return store


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("table_entry {}", 8),
        ("table_entry { table_id: $l2_exact }", 2),
        ("table_entry { table_id: $l2_exact metadata: 'a' }", 1),
        ("table_entry { table_id: $l2_exact controller_metadata: 5 }", 1),
        ("table_entry { table_id: $l2_exact action { action { action_id: $forward } } }", 1),
        (l2(r"\002", ""), 1),
        (l2(r"\000\002", ""), 1),
        (l2(r"\003", ""), 0),
        ("table_entry { table_id: $acl priority: 6 }", 1),
        ("table_entry { table_id: $acl priority: 7 }", 0),
        (acl(rest=""), 1),
        ("table_entry { is_default_action: true }", 8),
        ("table_entry { table_id: $acl is_default_action: true }", 1),
        ("action_profile_member {}", 2),
        ("action_profile_member { action_profile_id: $shared }", 0),
        ("action_profile_member { action_profile_id: $ecmp member_id: 2 }", 1),
        ("action_profile_group {}", 1),
        ("action_profile_group { action_profile_id: $ecmp group_id: 2 }", 0),
        ("counter_entry {}", 16),
        ("counter_entry { counter_id: $port_counter index { index: 3 } }", 1),
        ("meter_entry { meter_id: $port_meter }", 8),
        ("register_entry {}", 36),
        ("register_entry { register_id: $signed_cells index {} }", 1),
        ("direct_counter_entry { table_entry {} }", 2),
        (f"direct_counter_entry {{ {l2()} }}", 1),
        ("direct_meter_entry { table_entry { table_id: $acl } }", 2),
        ("packet_replication_engine_entry { multicast_group_entry {} }", 2),
        ("packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 2 } }", 1),
        ("packet_replication_engine_entry { clone_session_entry {} }", 1),
        ("value_set_entry {}", 1),
        ("digest_entry {}", 1),
        ("digest_entry { digest_id: $learn_t }", 1),
    ],
)
def test_reads_select(filled: Store, text: str, count: int) -> None:
    assert len(read(filled, text)) == count


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("table_entry { table_id: 3 }", INVALID),
        ("table_entry { priority: 3 }", INVALID),
        ("table_entry { match { field_id: 1 } }", INVALID),
        ("table_entry { table_id: $l2_exact match { field_id: 1 exact { value: 'a' } } }", INVALID),
        ("table_entry { table_id: $acl time_since_last_hit {} }", INVALID),
        ("table_entry { meter_counter_data {} }", UNIMPLEMENTED),
        ("table_entry { table_id: $l2_exact action { action { action_id: $watch } } }", INVALID),
        ("table_entry { table_id: $nexthops action { action_profile_member_id: 1 } }", INVALID),
        ("action_profile_member { action_profile_id: 1 }", INVALID),
        ("counter_entry { counter_id: $port_counter index { index: 16 } }", RANGE),
        ("meter_entry { counter_data {} }", UNIMPLEMENTED),
        ("direct_counter_entry {}", INVALID),
        ("direct_counter_entry { table_entry { table_id: $acl } }", INVALID),
        (f"direct_counter_entry {{ {l2('9')} }}", MISSING),
        ("direct_meter_entry { counter_data {} }", UNIMPLEMENTED),
        ("packet_replication_engine_entry {}", INVALID),
        ("packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 9 } }", MISSING),
        ("packet_replication_engine_entry { clone_session_entry { session_id: 9 } }", MISSING),
        ("value_set_entry { value_set_id: 1 }", INVALID),
        ("digest_entry { digest_id: 1 }", INVALID),
        ("extern_entry {}", UNIMPLEMENTED),
        ("", INVALID),
    ],
)
def test_reads_that_are_refused(filled: Store, text: str, code: Code) -> None:
    with pytest.raises(Refused) as found:
        read(filled, text)
    assert found.value.code == code


def test_what_is_asked_for_is_returned_and_nothing_else(filled: Store) -> None:
    plain, _ = read(filled, "table_entry { table_id: $l2_exact }")
    assert not plain.HasField("counter_data")
    assert not plain.HasField("time_since_last_hit")
    first, second = read(filled, "table_entry { table_id: $l2_exact counter_data {} time_since_last_hit {} }")
    assert (first.counter_data.packet_count, second.counter_data.packet_count) == (7, 0)
    assert second.HasField("counter_data")
    assert first.time_since_last_hit.elapsed_ns == 12345
    meters = [one.HasField("meter_config") for one in read(filled, "table_entry { table_id: $acl meter_config {} }")]
    assert meters == [False, True]


def test_default_entries_are_those_of_the_program_until_they_are_set(store: Store) -> None:
    wanted = "table_entry { table_id: $l2_exact is_default_action: true }"
    (before,) = read(store, wanted)
    assert before.action.action.action_id == id_of("drop")
    text = f"table_entry {{ table_id: $l2_exact is_default_action: true metadata: 'm' {FORWARD} }}"
    assert answer(store, update(MODIFY, text)) == [Code.OK]
    (during,) = read(store, wanted)
    assert (during.action.action.action_id, during.metadata) == (id_of("forward"), b"m")
    assert answer(store, update(MODIFY, wanted)) == [Code.OK]
    assert read(store, wanted) == [before]
    (constant,) = read(store, "table_entry { table_id: $routes is_default_action: true }")
    assert constant.is_const


def test_a_read_sees_the_state_of_its_moment(filled: Store) -> None:
    found = filled.read(entity("table_entry { table_id: $l2_exact }"))
    assert answer(filled, update(DELETE, l2(r"\001")), update(DELETE, l2(r"\002"))) == [Code.OK] * 2
    assert len(list(found)) == 2


@settings(max_examples=examples(300))
@given(st.binary(max_size=60))
def test_no_bytes_make_an_entity_that_raises_anything_but_a_refusal(data: bytes) -> None:
    one = p4runtime_pb2.Update()
    try:
        one.ParseFromString(data)
    except Exception:
        return
    store, _ = new_store()
    store.write([one])
    with suppress(Refused):
        list(store.read(one.entity))


def test_names_of_operations_are_those_of_p4info(filled: Store) -> None:
    tables = {table.name for table in SCHEMA.tables.values()}
    entries = [one for batch in _batches(filled) for one in batch if isinstance(one, ops.SetEntry)]
    assert entries
    assert {one.entry.table for one in entries} <= tables
