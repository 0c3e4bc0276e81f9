"""Chakra's messages as Google's own protobuf sees them: the judge of what is written and read here without it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

#: Message -> field -> number, type, and whether it repeats; those of et_def.proto that traces of training use.
_FIELDS = {
    "AttributeProto": {
        "name": (1, "string", False),
        "double_val": (3, "double", False),
        "int32_val": (7, "int32", False),
        "int64_val": (9, "int64", False),
        "uint64_val": (13, "uint64", False),
        "bool_val": (27, "bool", False),
        "string_val": (29, "string", False),
    },
    "GlobalMetadata": {"version": (1, "string", False), "attr": (2, "AttributeProto", True)},
    "Node": {
        "id": (1, "uint64", False),
        "name": (2, "string", False),
        "type": (3, "int32", False),
        "ctrl_deps": (4, "uint64", True),
        "data_deps": (5, "uint64", True),
        "start_time_micros": (6, "uint64", False),
        "duration_micros": (7, "uint64", False),
        "attr": (10, "AttributeProto", True),
    },
}


@cache
def message(name: str) -> Any:
    """Return the class of a message."""
    message_factory = pytest.importorskip("google.protobuf.message_factory")
    found = _pool().FindMessageTypeByName(f"et.{name}")
    # Protobuf had another name for it once.
    make = getattr(message_factory, "GetMessageClass", None)
    return make(found) if make else _old_factory().GetPrototype(found)


@cache
def _old_factory() -> Any:
    from google.protobuf import message_factory

    return message_factory.MessageFactory(_pool())


@cache
def _pool() -> Any:
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    for title, members in _FIELDS.items():
        described = file.message_type.add(name=title)
        if title == "AttributeProto":
            described.oneof_decl.add(name="value")
        for member, (number, type_, repeats) in members.items():
            entry = described.field.add(name=member, number=number)
            if member.endswith("_val"):
                entry.oneof_index = 0
            entry.label = entry.LABEL_REPEATED if repeats else entry.LABEL_OPTIONAL
            if type_ in _FIELDS:
                entry.type, entry.type_name = entry.TYPE_MESSAGE, f".et.{type_}"
            else:
                entry.type = getattr(entry, f"TYPE_{type_.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def trace_of(messages: Iterable[Any]) -> bytes:
    """Return messages one after another, each behind its length."""
    written = bytearray()
    for each in messages:
        content = each.SerializeToString()
        size = len(content)
        while size >= 0x80:
            written.append(size & 0x7F | 0x80)
            size >>= 7
        written.append(size)
        written += content
    return bytes(written)


def messages_of(content: bytes) -> list[Any]:
    """Return the GlobalMetadata and the nodes of a trace."""
    found: list[Any] = []
    place = 0
    while place < len(content):
        size = shift = 0
        while True:
            byte = content[place]
            place += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found.append(message("Node" if found else "GlobalMetadata").FromString(content[place : place + size]))
        place += size
    return found
