"""The memory of packets that wait in Python, for a link or to pass the program again."""

from __future__ import annotations

from tensorexpress.switch.packet import SwitchPacket

#: Bytes of a packet beside its frame and its state: the object, its times, its places in queues.
_PACKET_BYTES = 1024


class WaitingMemory:
    """Bytes of packets that wait, and the most that there may be."""

    __slots__ = ("bytes", "most_bytes", "state_bytes")

    def __init__(self, most_bytes: int):
        self.bytes = 0
        self.most_bytes = most_bytes
        #: What a packet of the program carries from ingress to egress.
        self.state_bytes = 0

    def take(self, packet: SwitchPacket) -> bool:
        """Charge a packet that is to wait; False, and nothing charged, when there is no room for it."""
        size = _PACKET_BYTES + len(packet.frame) + self.state_bytes
        if self.bytes + size > self.most_bytes:
            return False
        self.bytes += size
        packet.waiting_bytes = size
        return True

    def give_back(self, packet: SwitchPacket) -> None:
        """Note that a packet waits no longer; one that was never charged has nothing to give back."""
        self.bytes -= packet.waiting_bytes
        packet.waiting_bytes = 0
