"""Entries of tables: what names one, and all that a client may set of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorexpress.switch.operations import ActionCall, Entry, MeterRates, UseGroup, UseMember
from tensorexpress.switch.p4runtime.matching import read_action, read_key, read_priority, write_action, write_key
from tensorexpress.switch.p4runtime.messages.cells import read_counts
from tensorexpress.switch.p4runtime.messages.checks import above_zero
from tensorexpress.switch.p4runtime.messages.selectors import Watch, group_size, read_watch, read_weight, write_watch
from tensorexpress.switch.p4runtime.p4info import P4Profile, P4Schema, P4Table
from tensorexpress.switch.p4runtime.status import invalid, unimplemented


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
class ClientRow:
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


def read_entry(table: P4Table, message: Any) -> Entry:
    """Return what names the entry: table, key and priority."""
    return Entry(table.name, read_key(table.name, table.fields, message.match), read_priority(table, message.priority))


def read_table_action(schema: P4Schema, table: P4Table, message: Any) -> RowAction:
    """Return what the TableAction of an entry says; the kind must be the one that the table has."""
    kind = message.WhichOneof("type")
    profile = schema.profiles.get(table.profile)
    accepted = _accepted_actions(profile)
    if kind not in accepted:
        raise invalid(f"{table.name}: an action of kind {kind or 'none'}; accepted: {', '.join(accepted)}")
    if kind == "action":
        return read_action(table.name, table.actions, message.action)
    if kind == "action_profile_member_id":
        return UseMember(above_zero(f"{table.name}: action_profile_member_id", message.action_profile_member_id))
    if kind == "action_profile_group_id":
        return UseGroup(above_zero(f"{table.name}: action_profile_group_id", message.action_profile_group_id))
    assert profile is not None
    return _read_one_shot(table, profile, message.action_profile_action_set)


def _accepted_actions(profile: P4Profile | None) -> tuple[str, ...]:
    if profile is None:
        return ("action",)
    if not profile.selector:
        return ("action_profile_member_id",)
    return "action_profile_member_id", "action_profile_group_id", "action_profile_action_set"


def _read_one_shot(table: P4Table, profile: P4Profile, message: Any) -> OneShot:
    choices = tuple(
        Choice(
            read_action(table.name, table.actions, one.action),
            read_weight(table.name, profile, one.weight),
            read_watch(table.name, one),
        )
        for one in message.action_profile_actions
    )
    size = group_size(profile, [choice.weight for choice in choices])
    if profile.max_group_size and size > profile.max_group_size:
        raise invalid(f"{table.name}: an action set of size {size}; at most {profile.max_group_size} fit a group")
    return OneShot(choices)


def check_idle(table: P4Table, message: Any) -> None:
    """Refuse idle times where there are none."""
    if message.HasField("time_since_last_hit"):
        raise invalid(f"{table.name}: time_since_last_hit is for reading; leave it out")
    if message.idle_timeout_ns and not table.idle_timeout:
        raise invalid(f"{table.name}: an idle timeout on a table that supports none; give 0")
    if message.idle_timeout_ns < 0:
        raise invalid(f"{table.name}: an idle timeout of {message.idle_timeout_ns} ns; give 0 or more")


def check_direct(table: P4Table, message: Any) -> None:
    """Refuse values for direct resources that the table lacks, or that no counter and meter takes."""
    if message.HasField("meter_counter_data"):
        raise unimplemented(f"{table.name}: meters count no colours here; leave meter_counter_data out")
    if message.HasField("counter_data"):
        if not table.counter:
            raise invalid(f"{table.name}: counter_data for a table without a direct counter; leave it out")
        read_counts(table.name, message.counter_data)
    if message.HasField("meter_config") and not table.meter:
        raise invalid(f"{table.name}: meter_config for a table without a direct meter; leave it out")


def write_entry(table: P4Table, entry: Entry) -> dict[str, Any]:
    """Return the content of a TableEntry with the fields that name the entry."""
    return {"table_id": table.id, "match": write_key(table.fields, entry.key), "priority": entry.priority}


def write_row(schema: P4Schema, table: P4Table, row: ClientRow) -> dict[str, Any]:
    """Return the content of the TableEntry of a row, without what is only given when it is asked for."""
    return {
        **write_entry(table, row.entry),
        "action": write_table_action(schema, row.action),
        "idle_timeout_ns": row.idle_timeout_ns,
        "metadata": row.metadata,
        "controller_metadata": row.controller_metadata,
        "is_const": row.is_const,
    }


def write_table_action(schema: P4Schema, action: RowAction) -> dict[str, Any]:
    """Return the content of the TableAction of an entry."""
    if isinstance(action, ActionCall):
        return {"action": write_action(schema, action)}
    if isinstance(action, UseMember):
        return {"action_profile_member_id": action.member}
    if isinstance(action, UseGroup):
        return {"action_profile_group_id": action.group}
    choices = [
        {"action": write_action(schema, choice.call), "weight": choice.weight, **write_watch(choice.watch)}
        for choice in action.choices
    ]
    return {"action_profile_action_set": {"action_profile_actions": choices}}
