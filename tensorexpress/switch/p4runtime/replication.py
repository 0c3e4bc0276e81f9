"""The packet replication engine: multicast groups and clone sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.operations import SetCloneSession, SetMulticastGroup
from tensorexpress.switch.p4runtime.batch import DELETE, Batch, Found, check_presence, stored_or_all
from tensorexpress.switch.p4runtime.messages import replicas
from tensorexpress.switch.p4runtime.messages.replicas import CloneReplicas, MulticastReplicas, Replica
from tensorexpress.switch.p4runtime.status import Refused, invalid


class Replication:
    """All groups and sessions; `cpu_port` is the data plane's number of the port that P4Runtime calls the CPU."""

    def __init__(self, cpu_port: int | None):
        self._cpu_port = cpu_port
        self._multicast: dict[int, MulticastReplicas] = {}
        self._clones: dict[int, CloneReplicas] = {}

    def write(self, batch: Batch, kind: int, message: Any) -> None:
        """Do an update of a group or session."""
        form = message.WhichOneof("type")
        if form == "multicast_group_entry":
            self._write_multicast(batch, kind, message.multicast_group_entry)
        elif form == "clone_session_entry":
            self._write_clone(batch, kind, message.clone_session_entry)
        else:
            raise _no_type()

    def _write_multicast(self, batch: Batch, kind: int, message: Any) -> None:
        id = replicas.read_multicast_id(message.multicast_group_id)
        what = f"multicast group {id}"
        if kind == DELETE:
            check_presence(kind, id in self._multicast, what)
            batch.remove(self._multicast, id)
            batch.operations.append(SetMulticastGroup(id, ()))
            return
        group = replicas.read_multicast(message, self._cpu_port)
        check_presence(kind, id in self._multicast, what)
        batch.put(self._multicast, id, group)
        batch.operations.append(SetMulticastGroup(id, _pairs(group.replicas)))

    def _write_clone(self, batch: Batch, kind: int, message: Any) -> None:
        id = replicas.read_session_id(message.session_id)
        what = f"clone session {id}"
        if kind == DELETE:
            check_presence(kind, id in self._clones, what)
            batch.remove(self._clones, id)
            batch.operations.append(SetCloneSession(id, ()))
            return
        session = replicas.read_clone(message, self._cpu_port)
        check_presence(kind, id in self._clones, what)
        batch.put(self._clones, id, session)
        batch.operations.append(
            SetCloneSession(id, _pairs(session.replicas), session.class_of_service, session.packet_length_bytes)
        )

    def read(self, request: Any) -> Found:
        """Return the groups or sessions that a request selects."""
        form = request.WhichOneof("type")
        write: Callable[[int, Any], Any]
        if form == "multicast_group_entry":
            id = request.multicast_group_entry.multicast_group_id
            found, write = stored_or_all("multicast group", self._multicast, id), replicas.write_multicast
        elif form == "clone_session_entry":
            id = request.clone_session_entry.session_id
            found, write = stored_or_all("clone session", self._clones, id), replicas.write_clone
        else:
            raise _no_type()
        contents = (
            {"packet_replication_engine_entry": p4runtime_pb2.PacketReplicationEngineEntry(**{form: write(id, value)})}
            for id, value in found
        )
        return Found(len(found), contents)


def _no_type() -> Refused:
    return invalid("a packet_replication_engine_entry without a type; give a multicast group or a clone session")


def _pairs(copies: tuple[Replica, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((replica.port, replica.instance) for replica in copies)
