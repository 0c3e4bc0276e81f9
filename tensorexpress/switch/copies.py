"""The copies of a packet: as it passes the program once more, as a clone, and as one of several replicas."""

from __future__ import annotations

from tensorexpress.switch.configuration import LoadedProgram
from tensorexpress.switch.operations import SetCloneSession
from tensorexpress.switch.packet import SwitchPacket


def next_pass(
    program: LoadedProgram, packet: SwitchPacket, frame: bytes, field_list: int, instance_type: int
) -> SwitchPacket:
    """Return the packet as it enters ingress again: all metadata is new but the fields listed.

    So is the ingress port, which is 0 then, as simple_switch has it.
    """
    again = SwitchPacket(frame, 0, packet.ingress_us)
    again.instance_type = instance_type
    again.allowance = packet.allowance
    again.passes = packet.passes + 1
    again.preserved = program.preserve(packet, field_list)
    return again


def clone_of(
    program: LoadedProgram, packet: SwitchPacket, session: SetCloneSession, instance_type: int
) -> SwitchPacket:
    """Return the clone that a packet asks for, with the length and class of service of its session."""
    clone = SwitchPacket(packet.frame, packet.ingress_port, packet.ingress_us)
    clone.instance_type = instance_type
    clone.allowance = packet.allowance
    clone.passes = packet.passes + 1
    clone.preserved = program.preserve(packet, packet.clone_fields)
    clone.truncate_bytes = session.packet_length_bytes or None
    clone.priority = session.class_of_service
    return clone


def replica_of(packet: SwitchPacket, replication_id: int) -> SwitchPacket:
    """Return a copy that goes through egress on its own."""
    replica = SwitchPacket(packet.frame, packet.ingress_port, packet.ingress_us)
    replica.length = packet.length
    replica.instance_type = packet.instance_type
    replica.allowance = packet.allowance
    replica.passes = packet.passes
    replica.preserved = packet.preserved
    replica.state = packet.state
    replica.priority = packet.priority
    replica.truncate_bytes = packet.truncate_bytes
    replica.egress_rid = replication_id
    return replica
