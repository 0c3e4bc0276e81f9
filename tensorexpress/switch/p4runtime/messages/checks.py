"""What all entities check: ids that P4Info declares, ids above zero, and how much metadata a client may have kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorexpress.switch.p4runtime.p4info import P4Schema, P4Table
from tensorexpress.switch.p4runtime.status import invalid

#: v1model's ports have 9 bits, and its drop port is the last of them.
LARGEST_PORT = 510
#: Bytes that a client may have kept with an entity.
LONGEST_METADATA = 1024


def find(what: str, declared: Mapping[int, Any], id: int) -> Any:
    """Return what P4Info declares under an id; `what` names its type in the refusal."""
    if id not in declared:
        accepted = ", ".join(f"{one.id} ({one.name})" for one in declared.values()) or "none"
        raise invalid(f"unknown {what} {id}; accepted: {accepted}")
    return declared[id]


def find_table(schema: P4Schema, id: int) -> P4Table:
    """Return the table with that id."""
    return find("table", schema.tables, id)  # type: ignore[no-any-return]


def check_metadata(owner: str, message: Any) -> bytes:
    """Return what a client wants kept with an entity; Refused when that is too much."""
    metadata: bytes = message.metadata
    if len(metadata) > LONGEST_METADATA:
        raise invalid(f"{owner}: metadata of {len(metadata)} bytes; accepted: at most {LONGEST_METADATA}")
    return metadata


def above_zero(what: str, id: int) -> int:
    """Return an id that is not zero."""
    if id == 0:
        raise invalid(f"{what} is 0; ids are above zero")
    return id
