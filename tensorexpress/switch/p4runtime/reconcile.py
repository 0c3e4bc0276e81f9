"""Taking the entities of one program over into another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.p4runtime.batch import DELETE, INSERT, MODIFY
from tensorexpress.switch.p4runtime.status import Code, invalid
from tensorexpress.switch.p4runtime.store import Store

#: Reads that together give the whole state, in an order in which it can be written again.
_EVERYTHING = (
    {"action_profile_member": p4runtime_pb2.ActionProfileMember()},
    {"action_profile_group": p4runtime_pb2.ActionProfileGroup()},
    {
        "table_entry": p4runtime_pb2.TableEntry(
            counter_data=p4runtime_pb2.CounterData(), meter_config=p4runtime_pb2.MeterConfig()
        )
    },
    {
        "packet_replication_engine_entry": p4runtime_pb2.PacketReplicationEngineEntry(
            multicast_group_entry=p4runtime_pb2.MulticastGroupEntry()
        )
    },
    {
        "packet_replication_engine_entry": p4runtime_pb2.PacketReplicationEngineEntry(
            clone_session_entry=p4runtime_pb2.CloneSessionEntry()
        )
    },
    {"digest_entry": p4runtime_pb2.DigestEntry()},
    {"value_set_entry": p4runtime_pb2.ValueSetEntry()},
    {"meter_entry": p4runtime_pb2.MeterEntry()},
    {"counter_entry": p4runtime_pb2.CounterEntry()},
    {"register_entry": p4runtime_pb2.RegisterEntry()},
)

_MODIFIED = frozenset({"value_set_entry", "meter_entry", "counter_entry", "register_entry"})


def reconcile(old: Store, new: Store) -> None:
    """Write the state of one program into the store of another; Refused when some of it does not fit there."""
    for refusal in new.write(list(_updates(old, new)), all_or_none=True):
        if refusal and refusal.code != Code.ABORTED:
            raise invalid(f"the entities on the switch do not fit the new program: {refusal}")


def _updates(old: Store, new: Store) -> Iterator[Any]:
    for row in old.rows.deleted_initial():
        if new.rows.holds(row):
            yield _update(DELETE, table_entry=row)
    for content in _EVERYTHING:
        for entity in old.read(p4runtime_pb2.Entity(**content)):
            if entity.table_entry.is_const:
                continue
            there = entity.WhichOneof("entity") in _MODIFIED or new.rows.holds(entity.table_entry)
            yield p4runtime_pb2.Update(type=MODIFY if there else INSERT, entity=entity)
    for default in old.rows.changed_defaults():
        yield _update(MODIFY, table_entry=default)


def _update(kind: int, **content: Any) -> Any:
    return p4runtime_pb2.Update(type=kind, entity=p4runtime_pb2.Entity(**content))
