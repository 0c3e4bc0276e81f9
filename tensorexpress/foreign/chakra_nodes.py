"""Chakra execution traces (.et): what their messages hold, both ways.

A trace is a GlobalMetadata, then a Node for everything that a worker computes or sends, each behind its length
(MLCommons' et_def.proto). Only what a workload needs is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from tensorexpress.errors import WorkloadError, shown
from tensorexpress.foreign.imported import not_data_parallel
from tensorexpress.foreign.protobuf import (
    BYTES,
    delimited,
    encode_field,
    encode_varint,
    fields,
    messages,
    signed,
    varints,
)

METADATA_NODE, MEM_LOAD_NODE, MEM_STORE_NODE, COMP_NODE = 1, 2, 3, 4
COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE = 5, 6, 7

PS_PER_MICRO = 10**6

ALL_REDUCE = 0
COLLECTIVES = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)

#: Numbers of the fields of a GlobalMetadata.
_VERSION, _METADATA_ATTR = 1, 2

#: Of a Node.
_ID, _NAME, _TYPE, _CTRL_DEPS, _DATA_DEPS, _DURATION, _ATTR = 1, 2, 3, 4, 5, 7, 10

#: Of an AttributeProto: its name, and one of the values that a varint or a text holds. Others are left out.
_ATTR_NAME = 1
_INT32, _INT64, _UINT32, _UINT64, _BOOL, _STRING = 7, 9, 11, 13, 27, 29
_SIGNED, _UNSIGNED = (_INT32, _INT64), (_UINT32, _UINT64, _BOOL)

#: What attributes say that the schema has no field for: exact times, and parameters beside bytes.
DURATION_PS, NUMEL, DTYPE = "duration_ps", "numel", "dtype"

#: The attributes that are kept; whatever else a file holds takes no memory.
_KEPT = {"schema", "is_cpu_op", "comm_type", "comm_size", "seq_id", "tid", DURATION_PS, NUMEL, DTYPE}

#: Dependencies of all nodes together; linked traces have some ten for each.
_MOST_DEPENDENCIES = 5_000_000

Attribute = int | bool | str


@dataclass(frozen=True)
class Uint64:
    """A number that is written as an uint64; plain numbers are written as int64, which feeders expect."""

    value: int


@dataclass(frozen=True)
class ChakraNode:
    """Something that a worker does once all that it depends on is done."""

    id: int
    name: str
    type: int
    depends_on: tuple[int, ...] = ()
    duration_micros: int = 0
    attributes: Mapping[str, Attribute | Uint64] = field(default_factory=dict)

    def number(self, attribute: str) -> int | None:
        """Return an attribute that is a number."""
        value = self.attributes.get(attribute)
        return int(value) if isinstance(value, int) else None


def name_of(collective: int) -> str:
    """Return what a collective is called."""
    return COLLECTIVES[collective] if 0 <= collective < len(COLLECTIVES) else f"a collective of type {collective}"


def collective(place: str, node: ChakraNode) -> tuple[int, int]:
    """Return which collective a node is, and of how many bytes."""
    kind, size = node.number("comm_type"), node.number("comm_size")
    if kind is None or size is None or size < 0:
        raise WorkloadError(f"{place}: collective {shown(node.name)} lacks comm_type or comm_size; accepted: both")
    return kind, size


def refuse_transfer(place: str, node: ChakraNode) -> None:
    """Refuse a node that is between two workers alone."""
    if node.type in (COMM_SEND_NODE, COMM_RECV_NODE):
        verb = "sends to" if node.type == COMM_SEND_NODE else "receives from"
        raise not_data_parallel(place, f"node {shown(node.name)} {verb} one other worker")


def is_trace(content: bytes) -> bool:
    """Whether this begins as a trace does: a GlobalMetadata of a version or attributes, and a Node with a type."""
    try:
        trace = messages(content)
        metadata = _metadata(next(trace, (0, b""))[1])
        return bool(metadata) and _node(next(trace, (0, b""))[1]).type > 0
    except ValueError:
        return False


def decode(content: bytes, most: int) -> tuple[dict[str, Attribute], Iterator[ChakraNode]]:
    """Return the metadata of a trace and its nodes, at most so many; ValueError for what is no trace."""
    trace = messages(content)
    _, first = next(trace, (0, b""))
    return _metadata(first), _nodes(trace, most)


def encode(metadata: Mapping[str, Attribute], nodes: Iterable[ChakraNode]) -> bytes:
    """Return a trace."""
    head = encode_field(_VERSION, "0.0.4") + b"".join(
        encode_field(_METADATA_ATTR, _encoded_attribute(name, value)) for name, value in metadata.items()
    )
    return delimited(head) + b"".join(delimited(_encoded_node(node)) for node in nodes)


def _nodes(trace: Iterator[tuple[int, bytes]], most: int) -> Iterator[ChakraNode]:
    dependencies = 0
    for count, (place, message) in enumerate(trace, 1):
        try:
            node = _node(message)
        except ValueError as error:
            raise ValueError(f"{error}, in the node at byte {place}") from None
        dependencies += len(node.depends_on)
        if count > most or dependencies > _MOST_DEPENDENCIES:
            raise ValueError(f"more than {most} nodes or {_MOST_DEPENDENCIES} dependencies")
        yield node


def _metadata(message: bytes) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    for number, kind, value in fields(message):
        if kind != BYTES or not isinstance(value, bytes):
            raise ValueError(f"field {number} of the first message is no text; a trace begins with GlobalMetadata")
        if number == _VERSION:
            found["version"] = _text(value)
        elif number == _METADATA_ATTR:
            _keep(found, value)
    return found


def _node(message: bytes) -> ChakraNode:
    numbers = {_ID: 0, _TYPE: 0, _DURATION: 0}
    name = ""
    depends_on: list[int] = []
    attributes: dict[str, Attribute] = {}
    for number, _, value in fields(message):
        if number in (_CTRL_DEPS, _DATA_DEPS):
            depends_on.extend([value] if isinstance(value, int) else islice(varints(value), _MOST_DEPENDENCIES + 1))
        elif number in numbers:
            if not isinstance(value, int):
                raise ValueError(f"field {number} is no number")
            numbers[number] = value
        elif number in (_NAME, _ATTR):
            if not isinstance(value, bytes):
                raise ValueError(f"field {number} is a number")
            if number == _NAME:
                name = _text(value)
            else:
                _keep(attributes, value)
    return ChakraNode(numbers[_ID], name, numbers[_TYPE], tuple(depends_on), numbers[_DURATION], attributes)


def _keep(attributes: dict[str, Attribute], message: bytes) -> None:
    """Add an attribute, if it is one that counts."""
    name, value = _attribute(message)
    if name in _KEPT:
        attributes[name] = value


def _attribute(message: bytes) -> tuple[str, Attribute]:
    name = ""
    found: Attribute = 0  # what protobuf says where a value is left out
    for number, kind, value in fields(message):
        if isinstance(value, int):
            if number in _SIGNED:
                found = signed(value)
            elif number in _UNSIGNED:
                found = value
        elif number == _ATTR_NAME and kind == BYTES:
            name = _text(value)
        elif number == _STRING and kind == BYTES:
            found = _text(value)
    return name, found


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _encoded_node(node: ChakraNode) -> bytes:
    message = [encode_field(_ID, node.id), encode_field(_NAME, node.name), encode_field(_TYPE, node.type)]
    message += [encode_field(_DATA_DEPS, b"".join(map(encode_varint, node.depends_on)))] if node.depends_on else []
    message += [encode_field(_DURATION, node.duration_micros)] if node.duration_micros else []
    message += [encode_field(_ATTR, _encoded_attribute(name, value)) for name, value in node.attributes.items()]
    return b"".join(message)


def _encoded_attribute(name: str, value: Attribute | Uint64) -> bytes:
    kind, plain = _kind_and_value(value)
    return encode_field(_ATTR_NAME, name) + encode_field(kind, plain)


def _kind_and_value(value: Attribute | Uint64) -> tuple[int, int | str]:
    if isinstance(value, Uint64):
        return _UINT64, value.value
    if isinstance(value, bool):
        return _BOOL, int(value)
    return (_INT64, value) if isinstance(value, int) else (_STRING, value)
