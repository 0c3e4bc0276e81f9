"""The header as a scapy layer, for crafting packets and for tests; same bytes as the codec, a thousand times slower.

>>> from scapy.layers.inet import UDP
>>> bytes(UDP(dport=UDP_PORT) / TensorExpress(job=1, chunks=1))[8:12].hex()
'54581000'
"""

from __future__ import annotations

from typing import Any

from scapy.fields import (
    BitField,
    ByteField,
    FlagsField,
    IntField,
    ShortField,
    SignedIntField,
    XByteField,
    XLongField,
    XShortField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers

from tensorexpress.wire.header import MAGIC, UDP_PORT, VERSION, Flag, Kind
from tensorexpress.wire.sum_header import EXCESS, SumFlag


class TensorExpress(Packet):
    """The 32 bytes after the UDP header of a tensor packet; docs/wire.md describes the fields."""

    name = "TensorExpress"
    fields_desc = [  # noqa: RUF012 - scapy's metaclass wants a plain list
        XShortField("magic", MAGIC),
        BitField("version", VERSION, 4),
        BitField("kind", 0, 4),
        FlagsField("flags", 0, 8, [flag.name.lower() for flag in Flag if flag.name]),
        ShortField("job", 0),
        ShortField("worker", 0),
        IntField("iteration", 0),
        ShortField("tensor", 0),
        ByteField("queue", 0),
        XByteField("reserved", 0),
        IntField("chunk", 0),
        IntField("chunks", 1),
        SignedIntField("slack_us", 0),
        ShortField("payload_bytes", None),
        XShortField("reserved_tail", 0),
    ]

    def post_build(self, packet: bytes, payload: bytes) -> bytes:
        """Fill in the payload's length where it was left open."""
        if self.payload_bytes is None:
            packet = packet[:28] + len(payload).to_bytes(2, "big") + packet[30:]
        return packet + payload

    def extract_padding(self, payload: bytes) -> tuple[bytes, Any]:
        """Split what the header covers from padding after it."""
        return payload[: self.payload_bytes], payload[self.payload_bytes :]


class TensorExpressPart(Packet):
    """The 8 bytes before those of `TensorExpressSum` that say whose values are in: a bit for each worker."""

    name = "TensorExpressPart"
    fields_desc = [XLongField("workers", 0)]  # noqa: RUF012 - scapy's metaclass wants a plain list


class TensorExpressSum(Packet):
    """The 16 bytes before the values of a packet that switches sum. Exponents have 128 added."""

    name = "TensorExpressSum"
    fields_desc = [  # noqa: RUF012 - scapy's metaclass wants a plain list
        IntField("epoch", 0),
        IntField("turn", 0),
        ShortField("slot", 0),
        ShortField("check", 0),
        ByteField("exponent", EXCESS),
        ByteField("needed", EXCESS),
        ByteField("culprit", 0),
        FlagsField("flags", 0, 8, [flag.name.lower() for flag in SumFlag if flag.name]),
    ]


bind_layers(UDP, TensorExpress, dport=UDP_PORT)
bind_layers(TensorExpress, TensorExpressSum, kind=Kind.SUM)
bind_layers(TensorExpress, TensorExpressPart, kind=Kind.PART)
bind_layers(TensorExpressPart, TensorExpressSum)
