"""The header that a program puts before packets from and to its controller, as metadata of P4Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.p4runtime.p4info import P4Field
from tensorexpress.switch.p4runtime.status import invalid
from tensorexpress.switch.p4runtime.values import decode_bits, encode_bits


def header_bytes(fields: tuple[P4Field, ...]) -> int:
    """Return how long the header is; headers are whole bytes."""
    return (sum(field.width for field in fields) + 7) // 8


def encode_header(fields: tuple[P4Field, ...], metadata: Iterable[Any]) -> bytes:
    """Return the header of a packet-out; its metadata must give every field once."""
    given: dict[int, bytes] = {}
    known = {field.id: field for field in fields}
    for one in metadata:
        if one.metadata_id not in known:
            accepted = ", ".join(f"{field.id} ({field.name})" for field in fields) or "none"
            raise invalid(f"packet-out: unknown metadata {one.metadata_id}; accepted: {accepted}")
        if one.metadata_id in given:
            raise invalid(f"packet-out: metadata {one.metadata_id} is given twice; give it once")
        given[one.metadata_id] = one.value
    header = 0
    for field in fields:
        if field.id not in given:
            raise invalid(f"packet-out: metadata {field.id} ({field.name}) is missing; give its value")
        header = header << field.width | decode_bits(given[field.id], field.width, f"packet-out, {field.name}")
    size = header_bytes(fields)
    return (header << (size * 8 - sum(field.width for field in fields))).to_bytes(size, "big")


def decode_header(fields: tuple[P4Field, ...], frame: bytes) -> Any | None:
    """Return the PacketIn of a frame that left at the CPU port; None when it is shorter than the header."""
    size = header_bytes(fields)
    if len(frame) < size:
        return None
    header = int.from_bytes(frame[:size], "big")
    below = size * 8
    message = p4runtime_pb2.PacketIn(payload=frame[size:])
    for field in fields:
        below -= field.width
        message.metadata.add(metadata_id=field.id, value=encode_bits(header >> below & ((1 << field.width) - 1)))
    return message
