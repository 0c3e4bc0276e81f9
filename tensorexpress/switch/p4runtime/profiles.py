"""Action profiles: members, groups, one-shots, and which entries use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorexpress.switch.operations import (
    ActionCall,
    DeleteGroup,
    DeleteMember,
    Entry,
    SetEntry,
    SetGroup,
    SetMember,
    TableAction,
    UseGroup,
    UseMember,
)
from tensorexpress.switch.p4runtime.batch import DELETE, INSERT, Batch, Found, check_presence, declared_or_all
from tensorexpress.switch.p4runtime.messages import selectors
from tensorexpress.switch.p4runtime.messages.checks import find
from tensorexpress.switch.p4runtime.messages.selectors import LARGEST_GROUP, SelectorGroup
from tensorexpress.switch.p4runtime.messages.table_entries import ClientRow, OneShot, RowAction
from tensorexpress.switch.p4runtime.p4info import P4Profile, P4Schema, P4Table
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid


@dataclass(frozen=True)
class _Handles:
    """The ids that stand for a one-shot group in the data path."""

    group: int
    members: tuple[int, ...]


class Profiles:
    """The members and groups of all action profiles."""

    def __init__(self, schema: P4Schema):
        self._schema = schema
        self._members: dict[int, dict[int, ActionCall]] = {id: {} for id in schema.profiles}
        self._groups: dict[int, dict[int, SelectorGroup]] = {id: {} for id in schema.profiles}
        #: How many entries and groups use a member or group, by (profile id, use).
        self._uses: dict[tuple[int, UseMember | UseGroup], int] = {}
        #: The size of all groups of a profile together, and how many entries are one-shots.
        self._group_load: dict[int, int] = {}
        self._one_shots: dict[int, int] = {}
        self._handles: dict[Entry, _Handles] = {}
        self._last_handle = 0

    # What entries use.

    def check_use(self, table: P4Table, action: RowAction) -> None:
        """Refuse an entry whose member or group is not there, and a one-shot beside members."""
        if isinstance(action, UseMember) and action.member not in self._members[table.profile]:
            raise Refused(Code.NOT_FOUND, f"{table.name}: no member {action.member} in its profile; insert it first")
        if isinstance(action, UseGroup) and action.group not in self._groups[table.profile]:
            raise Refused(Code.NOT_FOUND, f"{table.name}: no group {action.group} in its profile; insert it first")
        if isinstance(action, OneShot) and (self._members[table.profile] or self._groups[table.profile]):
            raise invalid(f"{table.name}: its profile has members; one-shots go only with profiles that have none")

    def check_room_for(self, table: P4Table, action: RowAction, old: ClientRow | None) -> None:
        """Refuse a one-shot that is too large, where it takes the place of the entry's old action."""
        if isinstance(action, OneShot):
            profile = self._schema.profiles[table.profile]
            freed = _size(profile, old.action) if old else 0
            self._check_room(profile, [choice.weight for choice in action.choices], freed, LARGEST_GROUP)

    def point(self, batch: Batch, table: P4Table, row: ClientRow, old: ClientRow | None) -> None:
        """Point an entry at its action, and let go of what it used before."""
        handles = self._handles.get(row.entry)
        if old and handles and old.action == row.action:
            batch.operations.append(SetEntry(row.entry, UseGroup(handles.group), row.idle_timeout_ns))
            return
        action = self._acquire(batch, table, row)
        batch.operations.append(SetEntry(row.entry, action, row.idle_timeout_ns))
        if old:
            self._let_go(batch, table, old, handles)

    def release(self, batch: Batch, table: P4Table, row: ClientRow) -> None:
        """Let go of what an entry used that has been deleted."""
        handles = self._handles.get(row.entry)
        self._let_go(batch, table, row, handles)
        if handles:
            batch.remove(self._handles, row.entry)

    def _acquire(self, batch: Batch, table: P4Table, row: ClientRow) -> TableAction:
        if isinstance(row.action, OneShot):
            return self._make_group(batch, self._schema.profiles[table.profile], row.entry, row.action)
        if isinstance(row.action, UseMember | UseGroup):
            batch.add(self._uses, (table.profile, row.action), 1)
        return row.action

    def _make_group(self, batch: Batch, profile: P4Profile, entry: Entry, action: OneShot) -> UseGroup:
        members = tuple(range(self._last_handle + 1, self._last_handle + 1 + len(action.choices)))
        self._last_handle += len(action.choices) + 1
        group = self._last_handle
        weighted: list[int] = []
        for member, choice in zip(members, action.choices, strict=True):
            batch.operations.append(SetMember(profile.name, member, choice.call))
            weighted += [member] * choice.weight
        batch.operations.append(SetGroup(profile.name, group, tuple(weighted)))
        batch.put(self._handles, entry, _Handles(group, members))
        batch.add(self._one_shots, profile.id, 1)
        batch.add(self._group_load, profile.id, _size(profile, action))
        return UseGroup(group)

    def _let_go(self, batch: Batch, table: P4Table, row: ClientRow, handles: _Handles | None) -> None:
        if isinstance(row.action, UseMember | UseGroup):
            batch.add(self._uses, (table.profile, row.action), -1)
        elif isinstance(row.action, OneShot) and handles:
            profile = self._schema.profiles[table.profile]
            batch.operations.append(DeleteGroup(profile.name, handles.group))
            batch.operations.extend(DeleteMember(profile.name, member) for member in handles.members)
            batch.add(self._one_shots, profile.id, -1)
            batch.add(self._group_load, profile.id, -_size(profile, row.action))

    # Members and groups.

    def write_member(self, batch: Batch, kind: int, message: Any) -> None:
        """Do an update of a member."""
        profile = find("action profile", self._schema.profiles, message.action_profile_id)
        id = selectors.read_member_id(profile, message.member_id)
        members = self._members[profile.id]
        what = f"{profile.name}: member {id}"
        if kind == DELETE:
            check_presence(kind, id in members, what)
            self._check_unused(profile, UseMember(id), what)
            batch.remove(members, id)
            batch.operations.append(DeleteMember(profile.name, id))
            return
        call = selectors.read_member(self._schema, profile, message)
        self._check_no_one_shots(profile)
        check_presence(kind, id in members, what)
        if kind == INSERT and profile.size and len(members) >= profile.size:
            raise Refused(Code.RESOURCE_EXHAUSTED, f"{profile.name}: full with {profile.size} members; delete some")
        batch.put(members, id, call)
        batch.operations.append(SetMember(profile.name, id, call))

    def write_group(self, batch: Batch, kind: int, message: Any) -> None:
        """Do an update of a group."""
        profile = find("action profile", self._schema.profiles, message.action_profile_id)
        id = selectors.read_group_id(profile, message.group_id)
        groups = self._groups[profile.id]
        what = f"{profile.name}: group {id}"
        if kind == DELETE:
            check_presence(kind, id in groups, what)
            self._check_unused(profile, UseGroup(id), what)
            self._count_group(batch, profile, groups[id], -1)
            batch.remove(groups, id)
            batch.operations.append(DeleteGroup(profile.name, id))
            return
        group = selectors.read_group(profile, message)
        self._check_no_one_shots(profile)
        check_presence(kind, id in groups, what)
        self._check_group(profile, what, group, groups.get(id))
        if id in groups:
            self._count_group(batch, profile, groups[id], -1)
        self._count_group(batch, profile, group, 1)
        batch.put(groups, id, group)
        weighted = tuple(one.member for one in group.members for _ in range(one.weight))
        batch.operations.append(SetGroup(profile.name, id, weighted))

    def _check_group(self, profile: P4Profile, what: str, group: SelectorGroup, old: SelectorGroup | None) -> None:
        if old and old.max_size != group.max_size:
            raise invalid(f"{what}: max_size {group.max_size}; it was made with {old.max_size}, which stays")
        for one in group.members:
            if one.member not in self._members[profile.id]:
                raise Refused(Code.NOT_FOUND, f"{what}: no member {one.member}; insert it first")
        limit = group.max_size or profile.max_group_size or LARGEST_GROUP
        freed = selectors.group_size(profile, [one.weight for one in old.members]) if old else 0
        self._check_room(profile, [one.weight for one in group.members], freed, limit)

    def _check_room(self, profile: P4Profile, weights: list[int], freed: int, limit: int) -> None:
        size = selectors.group_size(profile, weights)
        if size > limit or sum(weights) > LARGEST_GROUP:
            raise Refused(Code.RESOURCE_EXHAUSTED, f"{profile.name}: a group of size {size}; at most {limit} fit")
        total = self._group_load.get(profile.id, 0) - freed + size
        if profile.size and total > profile.size:
            raise Refused(
                Code.RESOURCE_EXHAUSTED, f"{profile.name}: groups of size {total} together; at most {profile.size} fit"
            )

    def _count_group(self, batch: Batch, profile: P4Profile, group: SelectorGroup, sign: int) -> None:
        for one in group.members:
            batch.add(self._uses, (profile.id, UseMember(one.member)), sign)
        size = selectors.group_size(profile, [one.weight for one in group.members])
        batch.add(self._group_load, profile.id, sign * size)

    def _check_unused(self, profile: P4Profile, use: UseMember | UseGroup, what: str) -> None:
        if self._uses.get((profile.id, use), 0):
            raise Refused(Code.FAILED_PRECONDITION, f"{what} is in use; change what uses it first")

    def _check_no_one_shots(self, profile: P4Profile) -> None:
        if self._one_shots.get(profile.id, 0):
            raise invalid(f"{profile.name}: programmed by one-shots; members and groups do not go with them")

    def read_members(self, request: Any) -> Found:
        """Return the members that a request selects."""
        found = self._selected(self._members, request.action_profile_id, request.member_id)
        contents = (
            {"action_profile_member": selectors.write_member(self._schema, profile, id, call)}
            for profile, id, call in found
        )
        return Found(len(found), contents)

    def read_groups(self, request: Any) -> Found:
        """Return the groups that a request selects."""
        found = self._selected(self._groups, request.action_profile_id, request.group_id)
        contents = ({"action_profile_group": selectors.write_group(profile, id, group)} for profile, id, group in found)
        return Found(len(found), contents)

    def _selected(self, container: dict[int, dict[int, Any]], profile_id: int, id: int) -> list[tuple[Any, int, Any]]:
        chosen = declared_or_all("action profile", self._schema.profiles, profile_id)
        return [(one, key, value) for one in chosen for key, value in container[one.id].items() if id in (0, key)]


def _size(profile: P4Profile, action: RowAction) -> int:
    if not isinstance(action, OneShot):
        return 0
    return selectors.group_size(profile, [choice.weight for choice in action.choices])
