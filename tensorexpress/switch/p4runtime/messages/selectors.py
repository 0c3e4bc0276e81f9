"""Members and groups of action profiles, with their weights and the ports they watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorexpress.switch.operations import ActionCall
from tensorexpress.switch.p4runtime.matching import read_action, write_action
from tensorexpress.switch.p4runtime.messages.checks import LARGEST_PORT, above_zero
from tensorexpress.switch.p4runtime.p4info import ActionUse, P4Profile, P4Schema
from tensorexpress.switch.p4runtime.status import invalid
from tensorexpress.switch.p4runtime.values import decode_bits, encode_bits

#: The largest group of a selector whose P4Info sets no limit, so that a weight cannot exhaust the memory.
LARGEST_GROUP = 1 << 16

#: A port that a member's liveness depends on, in the form in which the client gave it.
Watch = int | bytes | None


@dataclass(frozen=True)
class GroupMember:
    """A member of a group."""

    member: int
    weight: int
    watch: Watch = None


@dataclass(frozen=True)
class SelectorGroup:
    """A group of an action selector; `max_size` as the client gave it, 0 for none."""

    members: tuple[GroupMember, ...]
    max_size: int = 0


def member_actions(schema: P4Schema, profile: P4Profile) -> Mapping[int, ActionUse]:
    """Return the actions that a member may have: those of the tables that share the profile."""
    tables = [schema.tables[id] for id in profile.tables if id in schema.tables]
    return tables[0].actions if tables else {}


def read_member(schema: P4Schema, profile: P4Profile, message: Any) -> ActionCall:
    """Return the action of a member."""
    if not message.HasField("action"):
        raise invalid(f"{profile.name}: member {message.member_id} has no action; give one")
    return read_action(profile.name, member_actions(schema, profile), message.action)


def read_member_id(profile: P4Profile, id: int) -> int:
    """Return the id of a member to write."""
    return above_zero(f"{profile.name}: member_id", id)


def read_group_id(profile: P4Profile, id: int) -> int:
    """Return the id of a group to write."""
    if not profile.selector:
        raise invalid(f"{profile.name}: has no selector and so no groups; use members")
    return above_zero(f"{profile.name}: group_id", id)


def read_group(profile: P4Profile, message: Any) -> SelectorGroup:
    """Return a group; a `max_size` of 0 stands for the largest the profile allows, as BMv2 takes it."""
    if message.max_size < 0:
        raise invalid(f"{profile.name}: a max_size of {message.max_size}; give 0 or more")
    if profile.max_group_size and message.max_size > profile.max_group_size:
        raise invalid(f"{profile.name}: a max_size of {message.max_size}; at most {profile.max_group_size} is allowed")
    members = tuple(
        GroupMember(
            above_zero(f"{profile.name}: member_id", one.member_id),
            read_weight(profile.name, profile, one.weight),
            read_watch(profile.name, one),
        )
        for one in message.members
    )
    if len({one.member for one in members}) < len(members):
        raise invalid(f"{profile.name}: group {message.group_id} has a member twice; give it a weight")
    return SelectorGroup(members, message.max_size)


def group_size(profile: P4Profile, weights: list[int]) -> int:
    """Return the size of a group with these weights, as the profile counts it."""
    return len(weights) if profile.by_members else sum(weights)


def read_weight(owner: str, profile: P4Profile, weight: int) -> int:
    """Return the weight of a member."""
    if weight <= 0:
        raise invalid(f"{owner}: a weight of {weight}; weights are above zero")
    if profile.max_weight and weight > profile.max_weight:
        raise invalid(f"{owner}: a weight of {weight}; at most {profile.max_weight} is allowed")
    return weight


def read_watch(owner: str, message: Any) -> Watch:
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


def write_member(schema: P4Schema, profile: P4Profile, id: int, call: ActionCall) -> dict[str, Any]:
    """Return the content of the ActionProfileMember of a member."""
    return {"action_profile_id": profile.id, "member_id": id, "action": write_action(schema, call)}


def write_group(profile: P4Profile, id: int, group: SelectorGroup) -> dict[str, Any]:
    """Return the content of the ActionProfileGroup of a group."""
    members = [{"member_id": one.member, "weight": one.weight, **write_watch(one.watch)} for one in group.members]
    return {"action_profile_id": profile.id, "group_id": id, "members": members, "max_size": group.max_size}


def write_watch(watch: Watch) -> dict[str, Any]:
    """Return what a message says of the port that a member watches."""
    if isinstance(watch, bytes):
        return {"watch_port": encode_bits(int.from_bytes(watch, "big")) if watch else watch}
    return {} if watch is None else {"watch": watch}
