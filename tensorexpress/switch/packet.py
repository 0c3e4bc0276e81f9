"""A packet on its way through the switch, and what the stages tell each other about it."""

from __future__ import annotations

from typing import Any

from tensorexpress.switch.allowance import Allowance

#: `standard_metadata.egress_spec` of a packet that is to be dropped.
DROP_PORT = 511

#: `standard_metadata.instance_type`, as simple_switch numbers it.
NORMAL, INGRESS_CLONE, EGRESS_CLONE, COALESCED, RECIRCULATED, REPLICATED, RESUBMITTED = range(7)


class EndlessLoop(Exception):
    """Raised by a program whose loops took more steps for a packet than one pass may."""


class SwitchPacket:
    """What is known of one packet. The pipeline fills in what it decided, the traffic manager what happened.

    `state` holds headers and metadata between the stages. It is an immutable tuple that only the pipeline
    understands, so a replica of a packet costs no copy. Times are in microseconds of the switch's clock, as in
    v1model.

    How clones enter the egress pipeline: an INGRESS_CLONE has an empty `state` and the frame as the ingress parser saw
    it, so egress parses it first; an EGRESS_CLONE has the `state` that its original left egress with. Of both, egress
    resets all metadata but what `preserved` holds.
    """

    __slots__ = (
        "allowance",
        "clone_fields",
        "clone_session",
        "deq_qdepth",
        "deq_timedelta",
        "digests",
        "egress_port",
        "egress_rid",
        "egress_spec",
        "egress_us",
        "enq_qdepth",
        "enq_us",
        "frame",
        "ingress_port",
        "ingress_us",
        "instance_type",
        "length",
        "mcast_grp",
        "passes",
        "preserved",
        "priority",
        "recirculate_fields",
        "resubmit_fields",
        "state",
        "truncate_bytes",
        "waiting_bytes",
    )

    def __init__(self, frame: bytes, ingress_port: int, ingress_us: int):
        #: The bytes that the parser sees.
        self.frame = frame
        #: What its arriving frame may still cause, shared by all copies; None as long as there are none.
        self.allowance: Allowance | None = None
        self.length = len(frame)
        self.ingress_port = ingress_port
        self.ingress_us = ingress_us
        self.instance_type = NORMAL
        #: Bytes that it is charged while it waits.
        self.waiting_bytes = 0
        #: How often it, or what it is a clone of, was resubmitted, recirculated or cloned before.
        self.passes = 0
        #: Metadata that a resubmit, recirculate or clone carries into the next pass: the number of its list of fields
        #: and their values; empty on a first pass.
        self.preserved: tuple[Any, ...] = ()
        self.state: tuple[Any, ...] = ()

        # What a pass of the pipeline decided.
        self.egress_spec = 0
        self.mcast_grp = 0
        self.priority = 0
        #: Session of a clone asked for in this pass and the list of fields it preserves; -1 when there is none.
        self.clone_session = -1
        self.clone_fields = 0
        #: The list of fields to preserve; -1 when the packet is not to be resubmitted or recirculated.
        self.resubmit_fields = -1
        self.recirculate_fields = -1
        #: Bytes that leave at most; None when all do.
        self.truncate_bytes: int | None = None
        #: (digest name, values) of every digest sent in this pass.
        self.digests: list[tuple[str, tuple[int, ...]]] = []

        # What the traffic manager tells the egress pipeline.
        self.egress_port = 0
        self.egress_rid = 0
        self.egress_us = 0
        self.enq_us = 0
        self.enq_qdepth = 0
        self.deq_timedelta = 0
        self.deq_qdepth = 0

    def take_copies(self, wanted: int, frame_bytes: int) -> int:
        """Take copies of so many bytes from the allowance; return how many of those wanted there may be."""
        if self.allowance is None:
            self.allowance = Allowance()
        return self.allowance.take(wanted, frame_bytes)
