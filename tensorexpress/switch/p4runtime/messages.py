"""Entities of P4Runtime: messages validated and turned into frozen values, and turned back into messages.

Everything here depends on the message and the schema alone. What depends on the other entities (is the member there,
is the table full) is decided by store.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.operations import ActionCall, Entry, Key, MeterRates, UseGroup, UseMember
from tensorexpress.switch.p4runtime.matching import read_action, read_key, read_priority, write_action, write_key
from tensorexpress.switch.p4runtime.p4info import (
    ActionUse,
    Array,
    MeterArray,
    Profile,
    Register,
    Schema,
    Table,
    ValueSet,
)
from tensorexpress.switch.p4runtime.status import Code, Refusal, invalid, unimplemented
from tensorexpress.switch.p4runtime.values import decode_bits, encode_bits, encode_data

#: v1model's ports have 9 bits, and its drop port is the last of them.
LARGEST_PORT = 510
#: The port that P4Runtime calls the CPU, whatever number it has in the data plane.
SDN_PORT_CPU = 0xFFFFFFFD
#: `mcast_grp` and `egress_rid` have 16 bits, a priority 3; simple_switch has that many clone sessions.
LARGEST_MULTICAST_GROUP = 0xFFFF
LARGEST_INSTANCE = 0xFFFF
LARGEST_CLONE_SESSION = 0x7FFF
LARGEST_CLASS_OF_SERVICE = 7

#: The largest group of a selector whose P4Info sets no limit, so that a weight cannot exhaust the memory.
LARGEST_GROUP = 1 << 16
#: Bytes that a client may have kept with an entity.
LONGEST_METADATA = 1024

_TWO_RATE, _SINGLE_RATE, _TWO_COLOUR = range(3)

#: A port that a member's liveness depends on, in the form in which the client gave it.
Watch = int | bytes | None


@dataclass(frozen=True)
class Choice:
    """One of the actions of a one-shot selector, with its weight and the port it watches."""

    call: ActionCall
    weight: int
    watch: Watch = None


@dataclass(frozen=True)
class OneShot:
    """A group and its members given in the entry that uses them."""

    choices: tuple[Choice, ...]


RowAction = ActionCall | UseMember | UseGroup | OneShot


@dataclass(frozen=True)
class Row:
    """All that a client may set of a table entry, apart from its counter. No rates: all packets are green."""

    entry: Entry
    action: RowAction
    meter: MeterRates | None = None
    idle_timeout_ns: int = 0
    metadata: bytes = b""
    controller_metadata: int = 0
    is_const: bool = False


@dataclass(frozen=True)
class Default:
    """The default entry of a table as a client set it."""

    action: ActionCall
    metadata: bytes = b""
    controller_metadata: int = 0


@dataclass(frozen=True)
class GroupMember:
    """A member of a group."""

    member: int
    weight: int
    watch: Watch = None


@dataclass(frozen=True)
class Group:
    """A group of an action selector; `max_size` as the client gave it, 0 for none."""

    members: tuple[GroupMember, ...]
    max_size: int = 0


@dataclass(frozen=True)
class Replica:
    """Where a copy goes; `sdn_port` as the client gave it, a number in the deprecated field or a bytestring."""

    port: int
    instance: int
    sdn_port: int | bytes


@dataclass(frozen=True)
class MulticastGroup:
    """The copies of a multicast group."""

    replicas: tuple[Replica, ...]
    metadata: bytes = b""


@dataclass(frozen=True)
class CloneSession:
    """The copies of a clone session, their class of service and the length they are cut to (0: not cut)."""

    replicas: tuple[Replica, ...]
    class_of_service: int = 0
    packet_length_bytes: int = 0


@dataclass(frozen=True)
class DigestConfig:
    """How digests are gathered into lists: waits in nanoseconds, and messages in a list (0: no limit)."""

    max_timeout_ns: int = 0
    max_list_size: int = 0
    ack_timeout_ns: int = 0


def find_table(schema: Schema, id: int) -> Table:
    """Return the table with that id."""
    return find("table", schema.tables, id)  # type: ignore[no-any-return]


def check_metadata(owner: str, message: Any) -> bytes:
    """Return what a client wants kept with an entity; Refusal when that is too much."""
    metadata: bytes = message.metadata
    if len(metadata) > LONGEST_METADATA:
        raise invalid(f"{owner}: metadata of {len(metadata)} bytes; accepted: at most {LONGEST_METADATA}")
    return metadata


def find(what: str, declared: Mapping[int, Any], id: int) -> Any:
    """Return what P4Info declares under an id; `what` names its type in the refusal."""
    if id not in declared:
        accepted = ", ".join(f"{one.id} ({one.name})" for one in declared.values()) or "none"
        raise invalid(f"unknown {what} {id}; accepted: {accepted}")
    return declared[id]


# Table entries.


def read_entry(table: Table, message: Any) -> Entry:
    """Return what names the entry: table, key and priority."""
    return Entry(table.name, read_key(table.name, table.fields, message.match), read_priority(table, message.priority))


def read_table_action(schema: Schema, table: Table, message: Any) -> RowAction:
    """Return what the TableAction of an entry says; the kind must be the one that the table has."""
    kind = message.WhichOneof("type")
    profile = schema.profiles.get(table.profile)
    accepted = _accepted_actions(profile)
    if kind not in accepted:
        raise invalid(f"{table.name}: an action of kind {kind or 'none'}; accepted: {', '.join(accepted)}")
    if kind == "action":
        return read_action(table.name, table.actions, message.action)
    if kind == "action_profile_member_id":
        return UseMember(_above_zero(f"{table.name}: action_profile_member_id", message.action_profile_member_id))
    if kind == "action_profile_group_id":
        return UseGroup(_above_zero(f"{table.name}: action_profile_group_id", message.action_profile_group_id))
    assert profile is not None
    return _read_one_shot(table, profile, message.action_profile_action_set)


def _accepted_actions(profile: Profile | None) -> tuple[str, ...]:
    if profile is None:
        return ("action",)
    if not profile.selector:
        return ("action_profile_member_id",)
    return "action_profile_member_id", "action_profile_group_id", "action_profile_action_set"


def _above_zero(what: str, id: int) -> int:
    if id == 0:
        raise invalid(f"{what} is 0; ids are above zero")
    return id


def _read_one_shot(table: Table, profile: Profile, message: Any) -> OneShot:
    choices = tuple(
        Choice(
            read_action(table.name, table.actions, one.action),
            _read_weight(table.name, profile, one.weight),
            _read_watch(table.name, one),
        )
        for one in message.action_profile_actions
    )
    size = group_size(profile, [choice.weight for choice in choices])
    if profile.max_group_size and size > profile.max_group_size:
        raise invalid(f"{table.name}: an action set of size {size}; at most {profile.max_group_size} fit a group")
    return OneShot(choices)


def group_size(profile: Profile, weights: list[int]) -> int:
    """Return the size of a group with these weights, as the profile counts it."""
    return len(weights) if profile.by_members else sum(weights)


def _read_weight(owner: str, profile: Profile, weight: int) -> int:
    if weight <= 0:
        raise invalid(f"{owner}: a weight of {weight}; weights are above zero")
    if profile.max_weight and weight > profile.max_weight:
        raise invalid(f"{owner}: a weight of {weight}; at most {profile.max_weight} is allowed")
    return weight


def _read_watch(owner: str, message: Any) -> Watch:
    """Return the port that a member watches. Ports have no link state here, so that a watched port is always up."""
    kind = message.WhichOneof("watch_kind")
    if kind == "watch_port":
        port = decode_bits(message.watch_port, 32, f"{owner}, watch_port") if message.watch_port else 0
    else:
        port = message.watch
    if not 0 <= port <= LARGEST_PORT:
        raise invalid(f"{owner}: watches port {port}; accepted: 0 to {LARGEST_PORT}")
    if kind is None:
        return None
    return message.watch_port if kind == "watch_port" else message.watch  # type: ignore[no-any-return]


def check_idle(table: Table, message: Any) -> None:
    """Refuse idle times where there are none."""
    if message.HasField("time_since_last_hit"):
        raise invalid(f"{table.name}: time_since_last_hit is for reading; leave it out")
    if message.idle_timeout_ns and not table.idle_timeout:
        raise invalid(f"{table.name}: an idle timeout on a table that supports none; give 0")
    if message.idle_timeout_ns < 0:
        raise invalid(f"{table.name}: an idle timeout of {message.idle_timeout_ns} ns; give 0 or more")


def check_direct(table: Table, message: Any) -> None:
    """Refuse values for direct resources that the table lacks, or that no counter and meter takes."""
    if message.HasField("meter_counter_data"):
        raise unimplemented(f"{table.name}: meters count no colours here; leave meter_counter_data out")
    if message.HasField("counter_data"):
        if not table.counter:
            raise invalid(f"{table.name}: counter_data for a table without a direct counter; leave it out")
        read_counts(table.name, message.counter_data)
    if message.HasField("meter_config") and not table.meter:
        raise invalid(f"{table.name}: meter_config for a table without a direct meter; leave it out")


def write_entry(table: Table, entry: Entry) -> Any:
    """Return a TableEntry with the fields that name the entry."""
    message = p4runtime_pb2.TableEntry(table_id=table.id, priority=entry.priority)
    message.match.extend(write_key(table.fields, entry.key))
    return message


def write_row(schema: Schema, table: Table, row: Row) -> Any:
    """Return the TableEntry of a row, without what is only given when it is asked for."""
    message = write_entry(table, row.entry)
    write_table_action(schema, row.action, message.action)
    message.idle_timeout_ns = row.idle_timeout_ns
    message.metadata = row.metadata
    message.controller_metadata = row.controller_metadata
    message.is_const = row.is_const
    return message


def write_table_action(schema: Schema, action: RowAction, message: Any) -> None:
    """Fill in the TableAction of an entry."""
    if isinstance(action, ActionCall):
        message.action.CopyFrom(write_call(schema, action))
    elif isinstance(action, UseMember):
        message.action_profile_member_id = action.member
    elif isinstance(action, UseGroup):
        message.action_profile_group_id = action.group
    else:
        message.action_profile_action_set.SetInParent()
        for choice in action.choices:
            one = message.action_profile_action_set.action_profile_actions.add(weight=choice.weight)
            one.action.CopyFrom(write_call(schema, choice.call))
            _write_watch(choice.watch, one)


def write_call(schema: Schema, call: ActionCall) -> Any:
    """Return the Action message of a call."""
    action = schema.action_named(call.action)
    assert action is not None
    return write_action(action, call)


def _write_watch(watch: Watch, message: Any) -> None:
    if isinstance(watch, bytes):
        message.watch_port = encode_bits(int.from_bytes(watch, "big")) if watch else watch
    elif watch is not None:
        message.watch = watch


# Action profiles.


def member_actions(schema: Schema, profile: Profile) -> Mapping[int, ActionUse]:
    """Return the actions that a member may have: those of the tables that share the profile."""
    tables = [schema.tables[id] for id in profile.tables if id in schema.tables]
    return tables[0].actions if tables else {}


def read_member(schema: Schema, profile: Profile, message: Any) -> ActionCall:
    """Return the action of a member."""
    if not message.HasField("action"):
        raise invalid(f"{profile.name}: member {message.member_id} has no action; give one")
    return read_action(profile.name, member_actions(schema, profile), message.action)


def read_member_id(profile: Profile, id: int) -> int:
    """Return the id of a member to write."""
    return _above_zero(f"{profile.name}: member_id", id)


def read_group_id(profile: Profile, id: int) -> int:
    """Return the id of a group to write."""
    if not profile.selector:
        raise invalid(f"{profile.name}: has no selector and so no groups; use members")
    return _above_zero(f"{profile.name}: group_id", id)


def read_group(profile: Profile, message: Any) -> Group:
    """Return a group; a `max_size` of 0 stands for the largest the profile allows, as BMv2 takes it."""
    if message.max_size < 0:
        raise invalid(f"{profile.name}: a max_size of {message.max_size}; give 0 or more")
    if profile.max_group_size and message.max_size > profile.max_group_size:
        raise invalid(f"{profile.name}: a max_size of {message.max_size}; at most {profile.max_group_size} is allowed")
    members = tuple(
        GroupMember(
            _above_zero(f"{profile.name}: member_id", one.member_id),
            _read_weight(profile.name, profile, one.weight),
            _read_watch(profile.name, one),
        )
        for one in message.members
    )
    if len({one.member for one in members}) < len(members):
        raise invalid(f"{profile.name}: group {message.group_id} has a member twice; give it a weight")
    return Group(members, message.max_size)


def write_member(schema: Schema, profile: Profile, id: int, call: ActionCall) -> Any:
    """Return the ActionProfileMember of a member."""
    return p4runtime_pb2.ActionProfileMember(
        action_profile_id=profile.id, member_id=id, action=write_call(schema, call)
    )


def write_group(profile: Profile, id: int, group: Group) -> Any:
    """Return the ActionProfileGroup of a group."""
    message = p4runtime_pb2.ActionProfileGroup(action_profile_id=profile.id, group_id=id, max_size=group.max_size)
    for one in group.members:
        _write_watch(one.watch, message.members.add(member_id=one.member, weight=one.weight))
    return message


# Counters, meters, registers.


def read_index(array: Any, message: Any) -> int | None:
    """Return the index of a cell, None when all of the array is meant."""
    if not message.HasField("index"):
        return None
    index = message.index.index
    if index < 0:
        raise invalid(f"{array.name}: index {index}; accepted: 0 to {array.size - 1}")
    if index >= array.size:
        raise Refusal(Code.OUT_OF_RANGE, f"{array.name}: index {index}; accepted: 0 to {array.size - 1}")
    return index  # type: ignore[no-any-return]


def read_counts(owner: str, message: Any) -> tuple[int, int]:
    """Return (packets, bytes) of a CounterData."""
    if message.packet_count < 0 or message.byte_count < 0:
        raise invalid(
            f"{owner}: a count of {message.packet_count} packets and {message.byte_count} bytes; give 0 or more"
        )
    return message.packet_count, message.byte_count


def read_rates(meter: MeterArray, message: Any) -> MeterRates:
    """Return the rates of a MeterConfig, which must suit the type of the meter."""
    rates = MeterRates(message.cir, message.cburst, message.pir, message.pburst)
    if min(rates.cir, rates.cburst, rates.pir, rates.pburst, message.eburst) < 0:
        raise invalid(f"{meter.name}: a meter config below zero; rates and bursts are 0 or more")
    if meter.kind in (_SINGLE_RATE, _TWO_COLOUR) and (rates.cir, rates.cburst) != (rates.pir, rates.pburst):
        raise invalid(f"{meter.name}: a single-rate meter has pir equal to cir and pburst equal to cburst")
    if message.eburst and meter.kind in (_TWO_RATE, _TWO_COLOUR):
        raise invalid(f"{meter.name}: eburst is {message.eburst}; only single-rate three-colour meters have one")
    if message.eburst:
        raise unimplemented(f"{meter.name}: an excess burst is not supported; give an eburst of 0")
    if rates.pir < rates.cir:
        raise invalid(f"{meter.name}: a peak rate of {rates.pir} below the committed {rates.cir}; it is at least that")
    return rates


def write_rates(rates: MeterRates) -> Any:
    """Return the MeterConfig of rates."""
    return p4runtime_pb2.MeterConfig(cir=rates.cir, cburst=rates.cburst, pir=rates.pir, pburst=rates.pburst)


def check_no_colours(array: Array, message: Any) -> None:
    """Refuse counters per colour, which this switch has not."""
    if message.HasField("counter_data"):
        raise unimplemented(f"{array.name}: meters count no colours here; leave counter_data out")


def write_counter(counter: Array, cell: int, counts: tuple[int, int]) -> Any:
    """Return the CounterEntry of a cell; counts are (packets, bytes)."""
    message = p4runtime_pb2.CounterEntry(counter_id=counter.id, index=p4runtime_pb2.Index(index=cell))
    write_counts(counts, message.data)
    return message


def write_counts(counts: tuple[int, int], message: Any) -> None:
    """Fill in a CounterData with (packets, bytes)."""
    message.SetInParent()
    message.packet_count, message.byte_count = counts


def write_meter(meter: MeterArray, cell: int, rates: MeterRates | None) -> Any:
    """Return the MeterEntry of a cell."""
    message = p4runtime_pb2.MeterEntry(meter_id=meter.id, index=p4runtime_pb2.Index(index=cell))
    if rates:
        message.config.CopyFrom(write_rates(rates))
    return message


def write_register(register: Register, cell: int, value: int) -> Any:
    """Return the RegisterEntry of a cell."""
    message = p4runtime_pb2.RegisterEntry(register_id=register.id, index=p4runtime_pb2.Index(index=cell))
    message.data.CopyFrom(encode_data(register.type, iter((value,))))
    return message


# Packet replication.


def read_multicast_id(id: int) -> int:
    """Return the id of a multicast group to write."""
    _above_zero("multicast_group_id", id)
    if id > LARGEST_MULTICAST_GROUP:
        raise Refusal(Code.OUT_OF_RANGE, f"multicast_group_id {id}; accepted: 1 to {LARGEST_MULTICAST_GROUP}")
    return id


def read_session_id(id: int) -> int:
    """Return the id of a clone session to write."""
    if not 0 < id <= LARGEST_CLONE_SESSION:
        raise invalid(f"clone session_id {id}; accepted: 1 to {LARGEST_CLONE_SESSION}")
    return id


def read_multicast(message: Any, cpu_port: int | None) -> MulticastGroup:
    """Return a multicast group."""
    owner = f"multicast group {message.multicast_group_id}"
    return MulticastGroup(_read_replicas(owner, message.replicas, cpu_port), check_metadata(owner, message))


def read_clone(message: Any, cpu_port: int | None) -> CloneSession:
    """Return a clone session."""
    owner = f"clone session {message.session_id}"
    if message.class_of_service > LARGEST_CLASS_OF_SERVICE:
        raise invalid(
            f"{owner}: class of service {message.class_of_service}; accepted: 0 to {LARGEST_CLASS_OF_SERVICE}"
        )
    if message.packet_length_bytes < 0:
        raise invalid(f"{owner}: clones of {message.packet_length_bytes} bytes; give 0 or more")
    replicas = _read_replicas(owner, message.replicas, cpu_port)
    return CloneSession(replicas, message.class_of_service, message.packet_length_bytes)


def _read_replicas(owner: str, messages: Iterable[Any], cpu_port: int | None) -> tuple[Replica, ...]:
    replicas = tuple(_read_replica(owner, message, cpu_port) for message in messages)
    if len({(one.port, one.instance) for one in replicas}) < len(replicas):
        raise invalid(f"{owner}: two replicas have the same port and instance; give each pair once")
    return replicas


def _read_replica(owner: str, message: Any, cpu_port: int | None) -> Replica:
    kind = message.WhichOneof("port_kind")
    if kind is None:
        raise invalid(f"{owner}: a replica without a port; give one")
    given = message.port if kind == "port" else message.egress_port
    port = decode_bits(given, 32, f"{owner}, port") if kind == "port" else given
    if port == SDN_PORT_CPU and cpu_port is not None:
        port = cpu_port
    if port > LARGEST_PORT:
        raise invalid(f"{owner}: port {port}; accepted: 0 to {LARGEST_PORT}")
    if message.instance > LARGEST_INSTANCE:
        raise invalid(f"{owner}: instance {message.instance}; accepted: 0 to {LARGEST_INSTANCE}")
    return Replica(port, message.instance, given)


def write_multicast(id: int, group: MulticastGroup) -> Any:
    """Return the MulticastGroupEntry of a group."""
    message = p4runtime_pb2.MulticastGroupEntry(multicast_group_id=id, metadata=group.metadata)
    _write_replicas(group.replicas, message)
    return message


def write_clone(id: int, session: CloneSession) -> Any:
    """Return the CloneSessionEntry of a session."""
    message = p4runtime_pb2.CloneSessionEntry(
        session_id=id,
        class_of_service=session.class_of_service,
        packet_length_bytes=session.packet_length_bytes,
    )
    _write_replicas(session.replicas, message)
    return message


def _write_replicas(replicas: tuple[Replica, ...], message: Any) -> None:
    for replica in replicas:
        one = message.replicas.add(instance=replica.instance)
        if isinstance(replica.sdn_port, bytes):
            one.port = encode_bits(int.from_bytes(replica.sdn_port, "big"))
        else:
            one.egress_port = replica.sdn_port


# Value sets and digests.


def read_value_set(value_set: ValueSet, message: Any) -> tuple[Key, ...]:
    """Return the members of a value set, each once and not more than it holds."""
    members = tuple(read_key(value_set.name, value_set.fields, member.match) for member in message.members)
    if len(members) > value_set.size:
        raise Refusal(
            Code.RESOURCE_EXHAUSTED, f"{value_set.name}: {len(members)} members; at most {value_set.size} fit"
        )
    if len(set(members)) < len(members):
        raise Refusal(Code.ALREADY_EXISTS, f"{value_set.name}: a member is given twice; give each once")
    return members


def write_value_set(value_set: ValueSet, members: tuple[Key, ...]) -> Any:
    """Return the ValueSetEntry of a value set."""
    message = p4runtime_pb2.ValueSetEntry(value_set_id=value_set.id)
    for member in members:
        message.members.add().match.extend(write_key(value_set.fields, member))
    return message


def read_digest(name: str, message: Any) -> DigestConfig:
    """Return how a digest is to be gathered; without a config every message is sent at once."""
    config = message.config
    if min(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns) < 0:
        raise invalid(f"{name}: a digest config below zero; times and sizes are 0 or more")
    return DigestConfig(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns)


def write_digest(id: int, config: DigestConfig) -> Any:
    """Return the DigestEntry of a digest."""
    message = p4runtime_pb2.DigestEntry(digest_id=id)
    message.config.max_timeout_ns = config.max_timeout_ns
    message.config.max_list_size = config.max_list_size
    message.config.ack_timeout_ns = config.ack_timeout_ns
    return message
