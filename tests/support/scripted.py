"""A program written in Python, for tests of what is around the pipeline."""

from __future__ import annotations

from tensorexpress.switch.packet import EGRESS_CLONE, INGRESS_CLONE, NORMAL, RECIRCULATED, RESUBMITTED


def forward(packet):
    """The first byte of a frame is the port it leaves at, the second its priority."""
    packet.egress_spec = packet.frame[0]
    packet.priority = packet.frame[1] if packet.length > 1 else 0


class Scripted:
    """Follows the interface of a pipeline; what it decides is up to two functions of a packet.

    `state` is (bytes that leave, metadata); `seen` collects what each pass was told.
    """

    state_bytes = 0

    def __init__(self, ingress=forward, egress=lambda packet: None):
        self._ingress = ingress
        self._egress = egress
        self.seen = []
        self.applied = []
        self.idle = []

    def ingress(self, packet):
        assert packet.instance_type in (NORMAL, RESUBMITTED, RECIRCULATED)
        packet.state = (packet.frame, packet.preserved)
        self.seen.append(("ingress", packet.instance_type, packet.preserved))
        self._ingress(packet)

    def egress(self, packet):
        if packet.instance_type == INGRESS_CLONE:
            assert packet.state == ()
            packet.state = (packet.frame, packet.preserved)
        elif packet.instance_type == EGRESS_CLONE:
            packet.state = (packet.state[0], packet.preserved)
        self.seen.append(("egress", packet.instance_type, packet.egress_port, packet.egress_rid, packet.state[1]))
        self._egress(packet)

    def deparse(self, packet):
        return packet.state[0][: packet.truncate_bytes]

    def preserve(self, packet, field_list):
        return ((field_list, packet.length),)

    def apply(self, operation):
        self.applied.append(operation)

    def ask(self, query):
        return [query]

    def idle_entries(self, now_us):
        entries, self.idle = self.idle, []
        return entries
