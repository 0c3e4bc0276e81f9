"""What a P4Runtime server has to answer, rule by rule over the messages: the oracle of the fuzz test.

Each kind of entity has a list of rules, a condition and the code with which the specification answers it; the first
that holds decides. Nothing of the switch is used here. Contents are kept as the messages that a read must return.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2

OK, INVALID, NOT_FOUND, EXISTS, DENIED, FULL, IN_USE, ABORTED, RANGE, MISSING = 0, 3, 5, 6, 7, 8, 9, 10, 11, 12
INSERT, MODIFY, DELETE = 1, 2, 3

EXACT, LPM, TERNARY, INTERVAL, OPTIONAL = 2, 3, 4, 5, 6
KINDS = {EXACT: "exact", LPM: "lpm", TERNARY: "ternary", INTERVAL: "range", OPTIONAL: "optional"}

Rules = Iterator[tuple[bool, int]]


def number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def fits(data: bytes, bits: int) -> bool:
    return data != b"" and number(data) < 1 << bits


def short(data: bytes) -> bytes:
    return data.lstrip(b"\0") or b"\0"


def first(rules: Rules) -> int:
    return next((code for holds, code in rules if holds), OK)


class Oracle:
    """The state of a switch as messages, and the code that each update must get."""

    def __init__(self, p4info: Any, document: bytes):
        by_id = {
            name: {one.preamble.id: one for one in getattr(p4info, name)}
            for name in ("tables", "actions", "action_profiles", "counters", "meters", "registers", "value_sets")
        }
        self.tables, self.actions, self.profiles = by_id["tables"], by_id["actions"], by_id["action_profiles"]
        self.counters, self.meters, self.registers = by_id["counters"], by_id["meters"], by_id["registers"]
        self.value_sets = by_id["value_sets"]
        self.digests = {one.preamble.id: one for one in p4info.digests}
        self.with_counter = {one.direct_table_id for one in p4info.direct_counters}
        self.with_meter = {one.direct_table_id for one in p4info.direct_meters}
        self.state: dict[Any, Any] = {}
        self.start_with(json.loads(document))

    # The contents: (kind, key...) -> the message that a read returns.

    def start_with(self, program: dict[str, Any]) -> None:
        entries = {table["name"]: table.get("entries", []) for part in program["pipelines"] for table in part["tables"]}
        names = {action["id"]: action["name"] for action in program["actions"]}
        ids = {action.preamble.name: id for id, action in self.actions.items()}
        for id, table in self.tables.items():
            for entry in entries[table.preamble.name]:
                message = p4runtime_pb2.TableEntry(table_id=id, is_const=table.is_const_table)
                for field, match in zip(table.match_fields, entry["match_key"], strict=True):
                    one = message.match.add(field_id=field.id)
                    value = int(match["key"], 16)
                    if match["match_type"] == "exact":
                        one.exact.value = short(value.to_bytes(8, "big"))
                    else:
                        mask = int(match["mask"], 16)
                        one.ternary.value = short((value & mask).to_bytes(8, "big"))
                        one.ternary.mask = short(mask.to_bytes(8, "big"))
                        message.priority = 2**31 - 1 - entry["priority"]
                action = self.actions[ids[names[entry["action_entry"]["action_id"]]]]
                message.action.action.action_id = action.preamble.id
                for param, value in zip(action.params, entry["action_entry"]["action_data"], strict=True):
                    message.action.action.params.add(param_id=param.id, value=short(int(value, 16).to_bytes(8, "big")))
                self.state[self.key_of(message)] = message

    def key_of(self, entry: Any) -> tuple[Any, ...]:
        matches = frozenset(self.canonical_match(match).SerializeToString() for match in entry.match)
        return "entry", entry.table_id, matches, entry.priority

    @staticmethod
    def canonical_match(match: Any) -> Any:
        copy = p4runtime_pb2.FieldMatch()
        copy.CopyFrom(match)
        part = getattr(copy, copy.WhichOneof("field_match_type"))
        for descriptor, value in part.ListFields():
            if isinstance(value, bytes):
                setattr(part, descriptor.name, short(value))
        return copy

    def of(self, *prefix: Any) -> dict[Any, Any]:
        return {key: value for key, value in self.state.items() if key[: len(prefix)] == prefix}

    # The decisions.

    def write(self, updates: list[Any], *, all_or_none: bool = False) -> list[int]:
        """Return the code of every update, and do those that are OK."""
        before = dict(self.state)
        answers: list[int] = []
        for update in updates:
            code = self.decide(update)
            answers.append(code)
            if code and all_or_none:
                self.state = before
                return [code if i == len(answers) - 1 else ABORTED for i in range(len(updates))]
        return answers

    def decide(self, update: Any) -> int:
        kind = update.entity.WhichOneof("entity")
        if update.type not in (INSERT, MODIFY, DELETE) or kind is None:
            return INVALID
        if kind == "extern_entry":
            return MISSING
        message = getattr(update.entity, kind)
        code = first(getattr(self, f"{kind}_rules")(update.type, message))
        if code == OK:
            getattr(self, f"do_{kind}")(update.type, message)
        return code

    def presence(self, type: int, key: Any) -> Rules:
        yield type == INSERT and key in self.state, EXISTS
        yield type != INSERT and key not in self.state, NOT_FOUND

    # Keys and actions.

    def match_rules(self, fields: Any, matches: Any) -> Rules:
        given = [match.field_id for match in matches]
        known = {field.id: field for field in fields}
        yield len(set(given)) < len(given), INVALID
        yield not set(given) <= set(known), INVALID
        yield any(field.match_type == EXACT and field.id not in given for field in fields), INVALID
        for match in matches:
            field = known[match.field_id]
            yield match.WhichOneof("field_match_type") != KINDS[field.match_type], INVALID
            yield from getattr(self, f"{KINDS[field.match_type]}_rules")(
                getattr(match, KINDS[field.match_type]), field.bitwidth
            )

    def exact_rules(self, match: Any, bits: int) -> Rules:
        yield not fits(match.value, bits), INVALID

    optional_rules = exact_rules

    def lpm_rules(self, match: Any, bits: int) -> Rules:
        yield not fits(match.value, bits), INVALID
        yield match.prefix_len < 1 or match.prefix_len > bits, INVALID
        yield number(match.value) % (1 << (bits - match.prefix_len)) != 0, INVALID

    def ternary_rules(self, match: Any, bits: int) -> Rules:
        yield not fits(match.value, bits) or not fits(match.mask, bits), INVALID
        yield number(match.mask) == 0, INVALID
        yield number(match.value) | number(match.mask) != number(match.mask), INVALID

    def range_rules(self, match: Any, bits: int) -> Rules:
        yield not fits(match.low, bits) or not fits(match.high, bits), INVALID
        yield number(match.low) > number(match.high), INVALID
        yield number(match.low) == 0 and number(match.high) == 2**bits - 1, INVALID

    def action_rules(self, refs: Any, action: Any, forbidden_scope: int) -> Rules:
        scope = {ref.id: ref.scope for ref in refs}
        yield action.action_id not in scope, INVALID
        yield scope[action.action_id] == forbidden_scope, DENIED
        bits = {param.id: param.bitwidth for param in self.actions[action.action_id].params}
        yield sorted(param.param_id for param in action.params) != sorted(bits), INVALID
        yield any(not fits(param.value, bits[param.param_id]) for param in action.params), INVALID

    # Table entries.

    def table_entry_rules(self, type: int, entry: Any) -> Rules:
        yield entry.table_id not in self.tables, INVALID
        table = self.tables[entry.table_id]
        yield entry.is_const, INVALID
        if entry.is_default_action:
            yield from self.default_rules(type, table, entry)
            return
        yield type == INSERT and not table.match_fields, INVALID
        yield table.is_const_table and type != MODIFY, DENIED
        yield from self.match_rules(table.match_fields, entry.match)
        ranked = any(field.match_type in (TERNARY, INTERVAL, OPTIONAL) for field in table.match_fields)
        yield ranked and entry.priority < 1, INVALID
        yield not ranked and entry.priority != 0, INVALID
        if type == DELETE:
            yield from self.presence(type, self.key_of(entry))
            return
        yield (
            table.is_const_table
            and bool(entry.HasField("action") or entry.idle_timeout_ns or entry.metadata or entry.controller_metadata),
            DENIED,
        )
        yield entry.HasField("time_since_last_hit"), INVALID
        yield entry.idle_timeout_ns != 0 and table.idle_timeout_behavior == 0, INVALID
        yield entry.idle_timeout_ns < 0, INVALID
        yield type == INSERT and not entry.HasField("action"), INVALID
        if entry.HasField("action"):
            yield from self.table_action_rules(table, entry.action)
        yield from self.direct_rules(entry)
        yield from self.meter_rules(entry.meter_config)
        yield from self.presence(type, self.key_of(entry))
        rows = self.of("entry", entry.table_id)
        yield type == INSERT and len(rows) >= table.size > 0, FULL
        if entry.action.HasField("action_profile_action_set"):
            weights = [one.weight for one in entry.action.action_profile_action_set.action_profile_actions]
            profile = self.profiles[table.implementation_id]
            yield self.load(profile, without=self.key_of(entry)) + sum(weights) > profile.size, FULL

    def direct_rules(self, entry: Any) -> Rules:
        yield entry.HasField("meter_counter_data"), MISSING
        yield entry.HasField("counter_data") and entry.table_id not in self.with_counter, INVALID
        yield min(entry.counter_data.packet_count, entry.counter_data.byte_count) < 0, INVALID
        yield entry.HasField("meter_config") and entry.table_id not in self.with_meter, INVALID

    def default_rules(self, type: int, table: Any, entry: Any) -> Rules:
        yield type != MODIFY, INVALID
        yield len(entry.match) > 0 or entry.priority != 0, INVALID
        yield entry.idle_timeout_ns != 0 or entry.HasField("time_since_last_hit"), INVALID
        yield table.const_default_action_id != 0 or table.implementation_id != 0, DENIED
        yield from self.direct_rules(entry)
        yield entry.HasField("counter_data") or entry.HasField("meter_config"), MISSING
        if entry.HasField("action"):
            yield entry.action.WhichOneof("type") != "action", INVALID
            yield from self.action_rules(table.action_refs, entry.action.action, forbidden_scope=1)

    def table_action_rules(self, table: Any, action: Any) -> Rules:
        kind = action.WhichOneof("type")
        yield kind is None, INVALID
        profile = self.profiles.get(table.implementation_id)
        if profile is None:
            yield kind != "action", INVALID
            yield from self.action_rules(table.action_refs, action.action, forbidden_scope=2)
            return
        yield kind == "action", INVALID
        yield not profile.with_selector and kind != "action_profile_member_id", INVALID
        if kind == "action_profile_member_id":
            yield action.action_profile_member_id == 0, INVALID
            key = "member", profile.preamble.id, action.action_profile_member_id
            yield key not in self.state, NOT_FOUND
        elif kind == "action_profile_group_id":
            yield action.action_profile_group_id == 0, INVALID
            yield ("group", profile.preamble.id, action.action_profile_group_id) not in self.state, NOT_FOUND
        else:
            yield from self.one_shot_rules(table, profile, action.action_profile_action_set.action_profile_actions)

    def one_shot_rules(self, table: Any, profile: Any, actions: Any) -> Rules:
        for one in actions:
            yield from self.action_rules(table.action_refs, one.action, forbidden_scope=2)
            yield from self.weight_rules(one)
        yield sum(one.weight for one in actions) > profile.max_group_size, INVALID
        yield bool(self.of("member", profile.preamble.id) or self.of("group", profile.preamble.id)), INVALID

    def weight_rules(self, one: Any) -> Rules:
        yield one.weight < 1, INVALID
        port = number(one.watch_port) if one.HasField("watch_port") else one.watch
        yield not 0 <= port < 511, INVALID

    def load(self, profile: Any, without: Any) -> int:
        """Return the sum of all weights in groups and one-shots of a profile, but for one of them."""
        total = 0
        for key, message in self.state.items():
            if key == without:
                continue
            if key[:2] == ("group", profile.preamble.id):
                total += sum(one.weight for one in message.members)
            elif key[0] == "entry" and key[1] in profile.table_ids:
                total += sum(one.weight for one in message.action.action_profile_action_set.action_profile_actions)
        return total

    def do_table_entry(self, type: int, entry: Any) -> None:
        key = ("default", entry.table_id) if entry.is_default_action else self.key_of(entry)
        if type == DELETE or (entry.is_default_action and not entry.HasField("action")):
            self.state.pop(key, None)
            self.state.pop(("count", key), None)
            return
        message = p4runtime_pb2.TableEntry()
        message.CopyFrom(entry)
        message.ClearField("counter_data")
        for match in message.match:
            match.CopyFrom(self.canonical_match(match))
        old = self.state.get(key)
        if not entry.HasField("action"):
            message.action.CopyFrom(old.action)
            message.is_const = old.is_const
        canonical_action(message.action)
        self.state[key] = message
        if entry.HasField("counter_data"):
            self.state["count", key] = (entry.counter_data.packet_count, entry.counter_data.byte_count)

    # Action profiles.

    def one_shots(self, profile: Any) -> bool:
        return any(
            message.action.HasField("action_profile_action_set")
            for id in profile.table_ids
            for message in self.of("entry", id).values()
        )

    def action_profile_member_rules(self, type: int, member: Any) -> Rules:
        yield member.action_profile_id not in self.profiles, INVALID
        profile = self.profiles[member.action_profile_id]
        yield member.member_id == 0, INVALID
        key = "member", member.action_profile_id, member.member_id
        if type == DELETE:
            yield from self.presence(type, key)
            groups = self.of("group", member.action_profile_id).values()
            yield any(one.member_id == member.member_id for group in groups for one in group.members), IN_USE
            yield self.pointed_at(profile, "action_profile_member_id", member.member_id), IN_USE
            return
        yield not member.HasField("action"), INVALID
        yield from self.action_rules(self.tables[profile.table_ids[0]].action_refs, member.action, forbidden_scope=2)
        yield self.one_shots(profile), INVALID
        yield from self.presence(type, key)
        yield type == INSERT and len(self.of("member", profile.preamble.id)) >= profile.size, FULL

    def pointed_at(self, profile: Any, kind: str, id: int) -> bool:
        return any(
            message.action.WhichOneof("type") == kind and getattr(message.action, kind) == id
            for table in profile.table_ids
            for message in self.of("entry", table).values()
        )

    def do_action_profile_member(self, type: int, member: Any) -> None:
        message = p4runtime_pb2.ActionProfileMember()
        message.CopyFrom(member)
        canonical_call(message.action)
        self.put(type, ("member", member.action_profile_id, member.member_id), message)

    def action_profile_group_rules(self, type: int, group: Any) -> Rules:
        yield group.action_profile_id not in self.profiles, INVALID
        profile = self.profiles[group.action_profile_id]
        yield not profile.with_selector or group.group_id == 0, INVALID
        key = "group", group.action_profile_id, group.group_id
        if type == DELETE:
            yield from self.presence(type, key)
            yield self.pointed_at(profile, "action_profile_group_id", group.group_id), IN_USE
            return
        yield group.max_size < 0 or group.max_size > profile.max_group_size, INVALID
        for one in group.members:
            yield one.member_id == 0, INVALID
            yield from self.weight_rules(one)
        yield len({one.member_id for one in group.members}) < len(group.members), INVALID
        yield self.one_shots(profile), INVALID
        yield from self.presence(type, key)
        yield type == MODIFY and self.state[key].max_size != group.max_size, INVALID
        there = {member[2] for member in self.of("member", profile.preamble.id)}
        yield not {one.member_id for one in group.members} <= there, NOT_FOUND
        size = sum(one.weight for one in group.members)
        yield size > (group.max_size or profile.max_group_size), FULL
        yield size + self.load(profile, without=key) > profile.size, FULL

    def do_action_profile_group(self, type: int, group: Any) -> None:
        message = p4runtime_pb2.ActionProfileGroup()
        message.CopyFrom(group)
        canonical_watches(message.members)
        self.put(type, ("group", group.action_profile_id, group.group_id), message)

    def put(self, type: int, key: Any, message: Any) -> None:
        if type == DELETE:
            del self.state[key]
        else:
            self.state[key] = message

    # Counters, meters, registers.

    def index_rules(self, arrays: Any, id: int, message: Any) -> Rules:
        yield id not in arrays, INVALID
        yield message.index.index < 0, INVALID
        yield message.index.index >= arrays[id].size, RANGE

    def cells(self, arrays: Any, id: int, message: Any) -> Any:
        return [message.index.index] if message.HasField("index") else range(arrays[id].size)

    def counter_entry_rules(self, type: int, entry: Any) -> Rules:
        yield type != MODIFY, INVALID
        yield from self.index_rules(self.counters, entry.counter_id, entry)
        yield min(entry.data.packet_count, entry.data.byte_count) < 0, INVALID

    def do_counter_entry(self, type: int, entry: Any) -> None:
        for cell in self.cells(self.counters, entry.counter_id, entry) if entry.HasField("data") else ():
            self.state["counter", entry.counter_id, cell] = (entry.data.packet_count, entry.data.byte_count)

    def meter_rules(self, config: Any) -> Rules:
        yield min(config.cir, config.cburst, config.pir, config.pburst, config.eburst) < 0, INVALID
        yield config.eburst != 0, INVALID
        yield config.pir < config.cir, INVALID

    def meter_entry_rules(self, type: int, entry: Any) -> Rules:
        yield type != MODIFY, INVALID
        yield entry.meter_id not in self.meters, INVALID
        yield entry.HasField("counter_data"), MISSING
        yield from self.index_rules(self.meters, entry.meter_id, entry)
        yield from self.meter_rules(entry.config)

    def do_meter_entry(self, type: int, entry: Any) -> None:
        for cell in self.cells(self.meters, entry.meter_id, entry):
            if entry.HasField("config"):
                self.state["meter", entry.meter_id, cell] = entry.config
            else:
                self.state.pop(("meter", entry.meter_id, cell), None)

    def register_entry_rules(self, type: int, entry: Any) -> Rules:
        yield type != MODIFY, INVALID
        yield from self.index_rules(self.registers, entry.register_id, entry)
        yield entry.data.WhichOneof("data") != "bitstring", INVALID
        spec = self.registers[entry.register_id].type_spec.bitstring
        if spec.HasField("bit"):
            yield not fits(entry.data.bitstring, spec.bit.bitwidth), INVALID
        else:
            value = int.from_bytes(entry.data.bitstring, "big", signed=True)
            half = 2 ** (spec.int.bitwidth - 1)
            yield entry.data.bitstring == b"" or not -half <= value < half, INVALID

    def do_register_entry(self, type: int, entry: Any) -> None:
        spec = self.registers[entry.register_id].type_spec.bitstring
        value = int.from_bytes(entry.data.bitstring, "big", signed=spec.HasField("int"))
        for cell in self.cells(self.registers, entry.register_id, entry):
            self.state["register", entry.register_id, cell] = value

    def target_rules(self, type: int, entry: Any, tables: set[int]) -> Rules:
        yield type != MODIFY, INVALID
        yield not entry.HasField("table_entry"), INVALID
        named = entry.table_entry
        yield named.table_id not in tables, INVALID
        yield named.is_default_action, MISSING
        table = self.tables[named.table_id]
        yield from self.match_rules(table.match_fields, named.match)
        ranked = any(field.match_type in (TERNARY, INTERVAL, OPTIONAL) for field in table.match_fields)
        yield (named.priority < 1) if ranked else (named.priority != 0), INVALID
        yield self.key_of(named) not in self.state, NOT_FOUND

    def direct_counter_entry_rules(self, type: int, entry: Any) -> Rules:
        yield from self.target_rules(type, entry, self.with_counter)
        yield min(entry.data.packet_count, entry.data.byte_count) < 0, INVALID

    def do_direct_counter_entry(self, type: int, entry: Any) -> None:
        if entry.HasField("data"):
            self.state["count", self.key_of(entry.table_entry)] = (entry.data.packet_count, entry.data.byte_count)

    def direct_meter_entry_rules(self, type: int, entry: Any) -> Rules:
        yield from self.target_rules(type, entry, self.with_meter)
        yield entry.HasField("counter_data"), MISSING
        yield from self.meter_rules(entry.config)

    def do_direct_meter_entry(self, type: int, entry: Any) -> None:
        key = self.key_of(entry.table_entry)
        message = p4runtime_pb2.TableEntry()
        message.CopyFrom(self.state[key])
        message.ClearField("meter_config")
        if entry.HasField("config"):
            message.meter_config.CopyFrom(entry.config)
        self.state[key] = message

    # Packet replication, value sets, digests.

    def packet_replication_engine_entry_rules(self, type: int, entry: Any) -> Rules:
        kind = entry.WhichOneof("type")
        yield kind is None, INVALID
        message = getattr(entry, kind)
        if kind == "multicast_group_entry":
            yield message.multicast_group_id == 0, INVALID
            yield message.multicast_group_id > 0xFFFF, RANGE
        else:
            yield not 0 < message.session_id < 0x8000, INVALID
            yield type != DELETE and message.class_of_service > 7, INVALID
            yield type != DELETE and message.packet_length_bytes < 0, INVALID
        if type != DELETE:
            yield from self.replica_rules(message.replicas)
        yield from self.presence(type, self.replication_key(entry))

    @staticmethod
    def replication_key(entry: Any) -> Any:
        kind = entry.WhichOneof("type")
        message = getattr(entry, kind)
        return kind, message.multicast_group_id if kind == "multicast_group_entry" else message.session_id

    @staticmethod
    def port(replica: Any) -> int:
        port = number(replica.port) if replica.HasField("port") else replica.egress_port
        return 255 if port == 0xFFFFFFFD else port

    def replica_rules(self, replicas: Any) -> Rules:
        for replica in replicas:
            yield replica.WhichOneof("port_kind") is None, INVALID
            yield replica.HasField("port") and not fits(replica.port, 32), INVALID
            yield self.port(replica) > 510, INVALID
            yield replica.instance > 0xFFFF, INVALID
        yield len({(self.port(one), one.instance) for one in replicas}) < len(replicas), INVALID

    def do_packet_replication_engine_entry(self, type: int, entry: Any) -> None:
        message = p4runtime_pb2.PacketReplicationEngineEntry()
        message.CopyFrom(entry)
        for replica in getattr(message, message.WhichOneof("type")).replicas:
            if replica.HasField("port"):
                replica.port = short(replica.port)
        self.put(type, self.replication_key(entry), message)

    def value_set_entry_rules(self, type: int, entry: Any) -> Rules:
        yield type != MODIFY, INVALID
        yield entry.value_set_id not in self.value_sets, INVALID
        value_set = self.value_sets[entry.value_set_id]
        for member in entry.members:
            yield from self.match_rules(value_set.match, member.match)
        yield len(entry.members) > value_set.size, FULL
        yield len({self.member_key(member) for member in entry.members}) < len(entry.members), EXISTS

    def member_key(self, member: Any) -> Any:
        return frozenset(self.canonical_match(match).SerializeToString() for match in member.match)

    def do_value_set_entry(self, type: int, entry: Any) -> None:
        message = p4runtime_pb2.ValueSetEntry()
        message.CopyFrom(entry)
        for member in message.members:
            for match in member.match:
                match.CopyFrom(self.canonical_match(match))
        self.state["value set", entry.value_set_id] = message

    def digest_entry_rules(self, type: int, entry: Any) -> Rules:
        yield entry.digest_id not in self.digests, INVALID
        config = entry.config
        yield type != DELETE and min(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns) < 0, INVALID
        yield from self.presence(type, ("digest", entry.digest_id))

    def do_digest_entry(self, type: int, entry: Any) -> None:
        message = p4runtime_pb2.DigestEntry()
        message.CopyFrom(entry)
        message.config.SetInParent()
        self.put(type, ("digest", entry.digest_id), message)

    # What reads must return.

    def contents(self) -> list[bytes]:
        """Return every entity that clients have made, in the order of its bytes."""
        kinds = {
            "entry": "table_entry",
            "member": "action_profile_member",
            "group": "action_profile_group",
            "multicast_group_entry": "packet_replication_engine_entry",
            "clone_session_entry": "packet_replication_engine_entry",
            "digest": "digest_entry",
        }
        found = [
            p4runtime_pb2.Entity(**{kinds[key[0]]: self.with_count(key, message)})
            for key, message in self.state.items()
            if key[0] in kinds
        ]
        for id in self.value_sets:
            empty = p4runtime_pb2.ValueSetEntry(value_set_id=id)
            found.append(p4runtime_pb2.Entity(value_set_entry=self.state.get(("value set", id), empty)))
        found += [*self.counter_cells(), *self.meter_cells(), *self.register_cells()]
        return normal(found)

    def with_count(self, key: Any, message: Any) -> Any:
        if key[0] != "entry" or key[1] not in self.with_counter:
            return message
        copy = p4runtime_pb2.TableEntry()
        copy.CopyFrom(message)
        copy.counter_data.packet_count, copy.counter_data.byte_count = self.state.get(("count", key), (0, 0))
        copy.counter_data.SetInParent()
        return copy

    def counter_cells(self) -> Iterator[Any]:
        for id, counter in self.counters.items():
            for cell in range(counter.size):
                entry = p4runtime_pb2.CounterEntry(counter_id=id, index=p4runtime_pb2.Index(index=cell))
                packets, octets = self.state.get(("counter", id, cell), (0, 0))
                entry.data.CopyFrom(p4runtime_pb2.CounterData(packet_count=packets, byte_count=octets))
                yield p4runtime_pb2.Entity(counter_entry=entry)

    def meter_cells(self) -> Iterator[Any]:
        for id, meter in self.meters.items():
            for cell in range(meter.size):
                entry = p4runtime_pb2.MeterEntry(meter_id=id, index=p4runtime_pb2.Index(index=cell))
                if ("meter", id, cell) in self.state:
                    entry.config.CopyFrom(self.state["meter", id, cell])
                yield p4runtime_pb2.Entity(meter_entry=entry)

    def register_cells(self) -> Iterator[Any]:
        for id, register in self.registers.items():
            signed = register.type_spec.bitstring.HasField("int")
            for cell in range(register.size):
                value = self.state.get(("register", id, cell), 0)
                size = next(size for size in range(1, 9) if holds(value, size, signed))
                entry = p4runtime_pb2.RegisterEntry(register_id=id, index=p4runtime_pb2.Index(index=cell))
                entry.data.bitstring = value.to_bytes(size, "big", signed=signed)
                yield p4runtime_pb2.Entity(register_entry=entry)


def holds(value: int, size: int, signed: bool) -> bool:
    bits = 8 * size
    return -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) if signed else value < 2**bits


def canonical_action(action: Any) -> None:
    if action.HasField("action"):
        canonical_call(action.action)
    for one in action.action_profile_action_set.action_profile_actions:
        canonical_call(one.action)
    if action.HasField("action_profile_action_set"):
        canonical_watches(action.action_profile_action_set.action_profile_actions)


def canonical_call(action: Any) -> None:
    for param in action.params:
        param.value = short(param.value)


def canonical_watches(members: Any) -> None:
    for one in members:
        if one.watch_port:
            one.watch_port = short(one.watch_port)


def normal(entities: Any) -> list[bytes]:
    """Return entities in an order that does not depend on that of repeated fields in which it has no meaning."""
    found = []
    for entity in entities:
        copy = p4runtime_pb2.Entity()
        copy.CopyFrom(entity)
        if copy.HasField("table_entry"):
            copy.table_entry.match.sort(key=lambda match: match.field_id)
            copy.table_entry.action.action.params.sort(key=lambda param: param.param_id)
            if not entity.table_entry.action.HasField("action"):
                copy.table_entry.action.CopyFrom(entity.table_entry.action)
        found.append(copy.SerializeToString(deterministic=True))
    return sorted(found)
