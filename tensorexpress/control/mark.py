"""Entries of mark.p4: the DSCP of every queue, where ECN begins, and where samples go."""

from __future__ import annotations

from tensorexpress.control.entries import Call, CloneSession, DefaultEntry, Entity, TableEntry
from tensorexpress.control.intent import CPU_PORT, Intent

QUEUE_DSCP = "mark.queue_dscp"
ECN = "mark.ecn"

#: SAMPLE_SESSION in define.p4.
SAMPLE_SESSION = 255

#: A queue that is never found so long: the largest `enq_qdepth`.
_NEVER_PACKETS = 2**19 - 1


def entries(intent: Intent) -> list[Entity]:
    """Return what a packet carries on from here."""
    return [
        CloneSession(SAMPLE_SESSION, frozenset({(CPU_PORT, 0)})),
        DefaultEntry(ECN, Call("mark.mark_over", (("packets", _ecn_packets(intent)),))),
        DefaultEntry(QUEUE_DSCP, Call("NoAction")),
        *(
            TableEntry(
                QUEUE_DSCP,
                (("queue", queue), ("is_ipv4", is_ipv4)),
                Call(f"mark.{action}", (("dscp", dscp),)),
            )
            for queue, dscp in enumerate(intent.plan.dscps)
            for is_ipv4, action in ((1, "set_dscp"), (0, "set_dscp6"))
        ),
    ]


def _ecn_packets(intent: Intent) -> int:
    """Return the packets in a queue over which packets are marked; switches count packets where plans count bytes."""
    ecn_bytes = intent.plan.scenario.transport.ecn_bytes
    return min(_NEVER_PACKETS, max(1, ecn_bytes // intent.cluster.mtu)) if ecn_bytes else _NEVER_PACKETS
