"""The standard metadata and the decisions of a packet: what fields start with, and where a program keeps them."""

from __future__ import annotations

from tensorexpress.switch.program.bmv2.values import Bmv2Program, FieldRef
from tensorexpress.switch.program.codegen.variables import Var

#: What fields of the standard metadata hold when ingress starts; the others hold 0.
AT_INGRESS = {
    "ingress_port": "packet.ingress_port",
    "packet_length": "length",
    "instance_type": "packet.instance_type",
    "ingress_global_timestamp": "packet.ingress_us",
}

#: What they hold when egress starts, whatever ingress stored in them.
AT_EGRESS = {
    "egress_port": "packet.egress_port",
    "egress_spec": "0",
    "egress_rid": "packet.egress_rid",
    "egress_global_timestamp": "packet.egress_us",
    "enq_timestamp": "packet.enq_us",
    "enq_qdepth": "packet.enq_qdepth",
    "deq_timedelta": "packet.deq_timedelta",
    "deq_qdepth": "packet.deq_qdepth",
    "packet_length": "packet.length",
    "instance_type": "packet.instance_type",
    "qid": "packet.priority",
}

#: Under these names programs may say which fields of theirs are fields of the standard metadata.
ALIASED = ("standard_metadata", "intrinsic_metadata", "queueing_metadata")

#: Of these, what grows with time or load beyond any width.
MEASURED = frozenset(
    f"packet.{name}" for name in ("ingress_us", "egress_us", "enq_us", "enq_qdepth", "deq_timedelta", "deq_qdepth")
)

#: Bits of the standard metadata's fields, by v1model.
V1MODEL_BITS = {
    "ingress_port": 9,
    "egress_spec": 9,
    "egress_port": 9,
    "instance_type": 32,
    "packet_length": 32,
    "enq_timestamp": 32,
    "enq_qdepth": 19,
    "deq_timedelta": 32,
    "deq_qdepth": 19,
    "ingress_global_timestamp": 48,
    "egress_global_timestamp": 48,
    "mcast_grp": 16,
    "egress_rid": 16,
    "checksum_error": 1,
    "parser_error": 32,
    "priority": 3,
}

#: Decisions of a pass, each with the value that stands for none.
NO_DECISION = {
    "clone_session": "-1",
    "clone_fields": "0",
    "resubmit_fields": "-1",
    "recirculate_fields": "-1",
    "digest": "0",
    "size": "packet.length",
}


def standard_field(program: Bmv2Program, name: str) -> FieldRef | None:
    """Return the field that simple_switch knows by this name, None if the program has none."""
    for prefix in ALIASED:
        alias = program.aliases.get(f"{prefix}.{name}")
        if alias is not None:
            return alias
    header = program.headers.get("standard_metadata")
    if header is not None and header.type.field(name) is not None:
        return FieldRef("standard_metadata", name)
    return None


def standard_variables(program: Bmv2Program) -> dict[str, Var]:
    """Return the variables of the standard fields that the switch itself sets or looks at, by simple_switch's names."""
    names = {*AT_INGRESS, *AT_EGRESS, "mcast_grp", "priority", "parser_error", "checksum_error"}
    found = {name: standard_field(program, name) for name in names}
    return {name: Var(place.header, place.field) for name, place in found.items() if place is not None}
