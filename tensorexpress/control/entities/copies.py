"""Where copies of packets go: multicast groups and clone sessions, the switch's own lists."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from tensorexpress.control.entities.base import Entity
from tensorexpress.control.messages import ProgramSchema, decode
from tensorexpress.p4runtime_messages import p4runtime_pb2

#: (port, replication id) pairs.
Replicas: TypeAlias = frozenset[tuple[int, int]]

#: The places of these entities, which every program has.
MULTICAST_GROUPS = "multicast groups"
CLONE_SESSIONS = "clone sessions"


@dataclass(frozen=True, slots=True)
class CopiesEntry(Entity):
    """A numbered list of ports that copies go to."""

    #: What P4Runtime calls an entry of this kind, and its number.
    kind: ClassVar[str]
    number_field: ClassVar[str]

    number: int
    replicas: Replicas

    @property
    def place(self) -> str:
        return self.plural

    @property
    def identity(self) -> Hashable:
        return type(self), self.number

    def content(self, schema: ProgramSchema) -> dict[str, Any]:
        replicas = [{"egress_port": port, "instance": instance} for port, instance in sorted(self.replicas)]
        entry = {self.number_field: self.number, "replicas": replicas, **self._rest()}
        return {"packet_replication_engine_entry": {self.kind: entry}}

    def _rest(self) -> dict[str, Any]:
        """Return what this kind says beside number and ports."""
        return {}

    @classmethod
    def _entry(cls, message: Any) -> Any:
        return getattr(message.packet_replication_engine_entry, cls.kind)

    @classmethod
    def is_in(cls, message: Any) -> bool:
        if message.WhichOneof("entity") != "packet_replication_engine_entry":
            return False
        return bool(message.packet_replication_engine_entry.WhichOneof("type") == cls.kind)

    @classmethod
    def queries(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Any]:
        query = p4runtime_pb2.Entity()
        cls._entry(query).SetInParent()
        yield query

    def show(self, schema: ProgramSchema) -> str:
        return f"{self.number} -> ports {', '.join(str(port) for port, _ in sorted(self.replicas))}"


@dataclass(frozen=True, slots=True)
class MulticastEntry(CopiesEntry):
    """A group: where a packet goes instead of to one port."""

    plural: ClassVar[str] = MULTICAST_GROUPS
    kind: ClassVar[str] = "multicast_group_entry"
    number_field: ClassVar[str] = "multicast_group_id"

    @classmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> MulticastEntry:
        group = cls._entry(message)
        return cls(group.multicast_group_id, _read_replicas(group.replicas))


@dataclass(frozen=True, slots=True)
class CloneEntry(CopiesEntry):
    """A session: where clones of a packet go; 0 bytes: they are not truncated.

    >>> CloneEntry(255, frozenset({(255, 0)})).place
    'clone sessions'
    """

    plural: ClassVar[str] = CLONE_SESSIONS
    kind: ClassVar[str] = "clone_session_entry"
    number_field: ClassVar[str] = "session_id"

    class_of_service: int = 0
    packet_length_bytes: int = 0

    def _rest(self) -> dict[str, Any]:
        return {"class_of_service": self.class_of_service, "packet_length_bytes": self.packet_length_bytes}

    @classmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> CloneEntry:
        session = cls._entry(message)
        replicas = _read_replicas(session.replicas)
        return cls(session.session_id, replicas, session.class_of_service, session.packet_length_bytes)


def _read_replicas(messages: Iterable[Any]) -> Replicas:
    return frozenset(
        (decode(each.port) if each.WhichOneof("port_kind") == "port" else each.egress_port, each.instance)
        for each in messages
    )
