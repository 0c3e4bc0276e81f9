"""Multicast groups and clone sessions: where the copies of packets go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.p4runtime.messages.checks import LARGEST_PORT, above_zero, check_metadata
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid
from tensorexpress.switch.p4runtime.values import decode_bits, encode_bits
from tensorexpress.switch.program.budgets import MOST_REPLICAS

#: The port that P4Runtime calls the CPU, whatever number it has in the data plane.
SDN_PORT_CPU = 0xFFFFFFFD
#: `mcast_grp` and `egress_rid` have 16 bits, a priority 3; simple_switch has that many clone sessions.
LARGEST_MULTICAST_GROUP = 0xFFFF
LARGEST_INSTANCE = 0xFFFF
LARGEST_CLONE_SESSION = 0x7FFF
LARGEST_CLASS_OF_SERVICE = 7


@dataclass(frozen=True)
class Replica:
    """Where a copy goes; `sdn_port` as the client gave it, a number in the deprecated field or a bytestring."""

    port: int
    instance: int
    sdn_port: int | bytes


@dataclass(frozen=True)
class MulticastReplicas:
    """The copies of a multicast group."""

    replicas: tuple[Replica, ...]
    metadata: bytes = b""


@dataclass(frozen=True)
class CloneReplicas:
    """The copies of a clone session, their class of service and the length they are cut to (0: not cut)."""

    replicas: tuple[Replica, ...]
    class_of_service: int = 0
    packet_length_bytes: int = 0


def read_multicast_id(id: int) -> int:
    """Return the id of a multicast group to write."""
    above_zero("multicast_group_id", id)
    if id > LARGEST_MULTICAST_GROUP:
        raise Refused(Code.OUT_OF_RANGE, f"multicast_group_id {id}; accepted: 1 to {LARGEST_MULTICAST_GROUP}")
    return id


def read_session_id(id: int) -> int:
    """Return the id of a clone session to write."""
    if not 0 < id <= LARGEST_CLONE_SESSION:
        raise invalid(f"clone session_id {id}; accepted: 1 to {LARGEST_CLONE_SESSION}")
    return id


def read_multicast(message: Any, cpu_port: int | None) -> MulticastReplicas:
    """Return a multicast group."""
    owner = f"multicast group {message.multicast_group_id}"
    return MulticastReplicas(_read_replicas(owner, message.replicas, cpu_port), check_metadata(owner, message))


def read_clone(message: Any, cpu_port: int | None) -> CloneReplicas:
    """Return a clone session."""
    owner = f"clone session {message.session_id}"
    if message.class_of_service > LARGEST_CLASS_OF_SERVICE:
        raise invalid(
            f"{owner}: class of service {message.class_of_service}; accepted: 0 to {LARGEST_CLASS_OF_SERVICE}"
        )
    if message.packet_length_bytes < 0:
        raise invalid(f"{owner}: clones of {message.packet_length_bytes} bytes; give 0 or more")
    replicas = _read_replicas(owner, message.replicas, cpu_port)
    return CloneReplicas(replicas, message.class_of_service, message.packet_length_bytes)


def _read_replicas(owner: str, messages: Sequence[Any], cpu_port: int | None) -> tuple[Replica, ...]:
    if len(messages) > MOST_REPLICAS:
        raise Refused(Code.RESOURCE_EXHAUSTED, f"{owner}: {len(messages)} replicas; accepted: at most {MOST_REPLICAS}")
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


def write_multicast(id: int, group: MulticastReplicas) -> Any:
    """Return the MulticastGroupEntry of a group."""
    message = p4runtime_pb2.MulticastGroupEntry(multicast_group_id=id, metadata=group.metadata)
    _write_replicas(group.replicas, message)
    return message


def write_clone(id: int, session: CloneReplicas) -> Any:
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
