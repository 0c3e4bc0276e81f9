"""Framing: how tensor bytes become packets on the wire. One value, read by the simulator, the hosts and the bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorexpress.wire.header import HEADER_BYTES

#: Bytes of a frame on the wire outside the IP packet: preamble, Ethernet header, checksum and gap.
ETHERNET_BYTES = 38

#: The same beside a frame as switches count it, from its header on and without its checksum.
FRAME_OVERHEAD_BYTES = ETHERNET_BYTES - 14

#: Bytes of an IP packet beside the payload of its UDP datagram.
DATAGRAM_BYTES = 20 + 8

#: What a segment of our transport says of itself, behind the header that switches read.
TRANSPORT_BYTES = 32

#: The two together: the header of a segment.
SEGMENT_HEADER_BYTES = HEADER_BYTES + TRANSPORT_BYTES

#: Bytes on the wire beside the tensor in a packet of our transport. An acknowledgement says all in the same header.
SEGMENT_OVERHEAD_BYTES = ETHERNET_BYTES + DATAGRAM_BYTES + SEGMENT_HEADER_BYTES


#: What a packet says of the slot in which a switch sums it, behind the same header; see docs/wire.md.
SUM_BYTES = 16

#: Bytes on the wire beside the values in a packet that switches sum.
SUM_OVERHEAD_BYTES = ETHERNET_BYTES + DATAGRAM_BYTES + HEADER_BYTES + SUM_BYTES

#: Behind the same header: of which workers the values of a packet are, where that is not always all below a switch.
WORKERS_BYTES = 8

#: One size, or an array of them.
_Sizes = TypeVar("_Sizes", int, NDArray[np.int64])


@dataclass(frozen=True)
class Framing:
    """Sizes of packets: the largest IP packet, and what is no tensor in those that carry one and those that do not."""

    mtu: int
    #: Bytes on the wire beside the tensor, in every packet that carries one.
    header_bytes: int = SEGMENT_OVERHEAD_BYTES
    #: Bytes on the wire of an acknowledgement.
    ack_bytes: int = SEGMENT_OVERHEAD_BYTES

    @property
    def payload_bytes(self) -> int:
        """Tensor bytes of a full packet.

        >>> Framing(mtu=1500).payload_bytes, Framing(mtu=9000).payload_bytes
        (1408, 8908)
        """
        return self.mtu - max(0, self.header_bytes - ETHERNET_BYTES)

    @property
    def full_packet_bytes(self) -> int:
        """Bytes on the wire of a full packet."""
        return self.payload_bytes + self.header_bytes

    def wire_bytes(self, size: _Sizes) -> _Sizes:
        """Return what `size` tensor bytes weigh on the wire: themselves and a header for every packet.

        >>> Framing(mtu=1500).wire_bytes(1408), Framing(mtu=1500).wire_bytes(1409)
        (1538, 1669)
        """
        return size + -(-size // self.payload_bytes) * self.header_bytes
