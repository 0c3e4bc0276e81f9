"""Parser value sets."""

from __future__ import annotations

from typing import Any

from tensorexpress.switch.operations import Key
from tensorexpress.switch.p4runtime.matching import read_key, write_key
from tensorexpress.switch.p4runtime.p4info import P4ValueSet
from tensorexpress.switch.p4runtime.status import Code, Refused


def read_value_set(value_set: P4ValueSet, message: Any) -> tuple[Key, ...]:
    """Return the members of a value set, each once and not more than it holds."""
    members = tuple(read_key(value_set.name, value_set.fields, member.match) for member in message.members)
    if len(members) > value_set.size:
        raise Refused(
            Code.RESOURCE_EXHAUSTED, f"{value_set.name}: {len(members)} members; at most {value_set.size} fit"
        )
    if len(set(members)) < len(members):
        raise Refused(Code.ALREADY_EXISTS, f"{value_set.name}: a member is given twice; give each once")
    return members


def write_value_set(value_set: P4ValueSet, members: tuple[Key, ...]) -> dict[str, Any]:
    """Return the content of the ValueSetEntry of a value set."""
    written = [{"match": write_key(value_set.fields, member)} for member in members]
    return {"value_set_id": value_set.id, "members": written}
