"""The TensorExpress header as a codec: 32 bytes in network byte order; docs/wire.md draws them.

`Header.pack` and `unpack` handle one header, `pack_many` and `unpack_many` thousands in one call. What does not
decode raises `HeaderError`, whatever the bytes.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass, fields
from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray

from tensorexpress.errors import HeaderError
from tensorexpress.p4 import define

#: The UDP destination port of tensor packets, and the first two bytes of the header: "TX".
UDP_PORT = define.TENSOR_PORT
MAGIC = define.TENSOR_MAGIC
VERSION = define.TENSOR_VERSION
HEADER_BYTES = define.TENSOR_BYTES

_FORMAT = struct.Struct("!HBBHHIHBxIIiHxx")
MOST_SLACK_US = 2**31 - 1


class Kind(IntEnum):
    """What a packet carries. Switches look for values to sum, and at no other kind."""

    GRADIENT = 0
    PARAMETERS = 1
    ACK = 2
    CONTROL = 3
    #: Whole numbers that switches sum; see `sum_header`.
    SUM = 4
    #: The same where a packet says whose values are in it.
    PART = 5


class Flag(IntFlag):
    """What the receiver should know; bits that have no name are sent as 0 and ignored."""

    RETRANSMITTED = 1
    LAST_OF_SLICE = 2
    #: The sender cannot go on before it has an acknowledgement.
    ASKS_ACK = 4
    #: In an acknowledgement: a switch marked what it speaks of (ECN).
    MARKED = 8


@dataclass(frozen=True, slots=True)
class Header:
    """What a tensor packet says of itself."""

    job: int
    worker: int
    iteration: int
    tensor: int
    chunk: int
    #: Chunks of the tensor, so that a receiver knows when it is complete.
    chunks: int
    #: The queue the sender asks for; a switch grants it only to jobs that the controller trusts with it.
    queue: int = 0
    #: Time left until the deadline; negative when it has passed. A switch deducts the time the packet waited.
    slack_us: int = 0
    #: Bytes after the header.
    payload_bytes: int = 0
    kind: int = Kind.GRADIENT
    flags: int = 0

    def pack(self) -> bytes:
        """Return the 32 bytes; HeaderError when a value does not fit its field.

        >>> Header(job=1, worker=2, iteration=3, tensor=4, chunk=5, chunks=6).pack().hex(" ", 4)
        '54581000 00010002 00000003 00040000 00000005 00000006 00000000 00000000'
        """
        try:
            if self.kind > 15:  # would spill into the version, which shares its byte
                raise struct.error
            return _FORMAT.pack(
                MAGIC,
                VERSION << 4 | self.kind,
                self.flags,
                self.job,
                self.worker,
                self.iteration,
                self.tensor,
                self.queue,
                self.chunk,
                self.chunks,
                self.slack_us,
                self.payload_bytes,
            )
        except (struct.error, TypeError):
            raise HeaderError(_misfit(self)) from None


def unpack(data: bytes | bytearray | memoryview) -> Header:
    """Return the header at the start of a UDP payload; HeaderError when there is none.

    The payload must be as long as the header says: a packet cut short on its way is not a tensor packet.

    >>> unpack(Header(1, 2, 3, tensor=4, chunk=0, chunks=1, slack_us=-7).pack()).slack_us
    -7
    """
    if len(data) < HEADER_BYTES:
        raise HeaderError(f"found {len(data)} bytes; accepted: at least the {HEADER_BYTES} of a header")
    magic, version_kind, flags, job, worker, iteration, tensor, queue, chunk, chunks, slack, payload = (
        _FORMAT.unpack_from(data)
    )
    if magic != MAGIC:
        raise HeaderError(f"found magic {magic:#06x}; accepted: {MAGIC:#06x}")
    if version_kind >> 4 != VERSION:
        raise HeaderError(f"found version {version_kind >> 4}; accepted: {VERSION}")
    if payload != len(data) - HEADER_BYTES:
        raise HeaderError(
            f"found {len(data) - HEADER_BYTES} bytes of payload; accepted: the {payload} that the header says"
        )
    return Header(job, worker, iteration, tensor, chunk, chunks, queue, slack, payload, version_kind & 15, flags)


def clamp_slack_us(slack_ps: int) -> int:
    """Return a slack in whole microseconds as the header can carry it; rounded down, so that it is never too late.

    >>> clamp_slack_us(2_500_000), clamp_slack_us(-1), clamp_slack_us(10**18)
    (2, -1, 2147483647)
    """
    return max(-MOST_SLACK_US - 1, min(MOST_SLACK_US, slack_ps // 10**6))


#: One header as a record of columns, the same bytes as `Header.pack`.
HEADER_DTYPE = np.dtype(
    [
        ("magic", ">u2"),
        ("version_kind", "u1"),
        ("flags", "u1"),
        ("job", ">u2"),
        ("worker", ">u2"),
        ("iteration", ">u4"),
        ("tensor", ">u2"),
        ("queue", "u1"),
        ("reserved", "u1"),
        ("chunk", ">u4"),
        ("chunks", ">u4"),
        ("slack_us", ">i4"),
        ("payload_bytes", ">u2"),
        ("reserved_tail", ">u2"),
    ]
)


def pack_many(**columns: int | NDArray[np.integer]) -> NDArray[np.void]:
    """Return headers as records, a column per field of `Header`; a number stands for a whole column.

    >>> headers = pack_many(job=1, tensor=2, chunk=np.arange(3), chunks=3)
    >>> headers.tobytes()[64:] == Header(1, 0, 0, tensor=2, chunk=2, chunks=3).pack()
    True
    """
    if unknown_names := sorted(set(columns) - set(_NAMES)):
        raise HeaderError(f"unknown field {unknown_names[0]!r}; accepted: {', '.join(sorted(_NAMES))}")
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    for name, array in arrays.items():
        least, most = _limits(name)
        if array.size and not (least <= array.min() and array.max() <= most):
            raise HeaderError(f"{name} reaches from {array.min()} to {array.max()}; accepted: {least} to {most}")
    headers = np.zeros(np.broadcast_shapes(*(array.shape for array in arrays.values())), HEADER_DTYPE)
    headers["magic"] = MAGIC
    headers["version_kind"] = VERSION << 4 | arrays.pop("kind", np.asarray(0))
    for name, array in arrays.items():
        headers[name] = array
    return headers


def unpack_many(data: bytes | bytearray | memoryview, *, stride_bytes: int = HEADER_BYTES) -> NDArray[np.void]:
    """Return the headers that start every `stride_bytes` in a buffer, as records without a copy.

    Records that are no headers are given as they are: `is_header` tells which are.
    """
    if stride_bytes < HEADER_BYTES or len(data) % stride_bytes:
        raise HeaderError(
            f"found {len(data)} bytes in strides of {stride_bytes}; accepted: whole strides of {HEADER_BYTES} or more"
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, stride_bytes)[:, :HEADER_BYTES]
    return np.ascontiguousarray(records).view(HEADER_DTYPE)[:, 0]


def is_header(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return which records have our magic number and version."""
    ours: NDArray[np.bool_] = (records["magic"] == MAGIC) & (records["version_kind"] >> 4 == VERSION)
    return ours


_NAMES = tuple(field.name for field in fields(Header))


def _limits(name: str) -> tuple[int, int]:
    """Return the least and the largest value of a field."""
    if name == "kind":
        return 0, 15
    limits = np.iinfo(HEADER_DTYPE[name])
    return limits.min, limits.max


def _misfit(header: Header) -> str:
    """Return which field does not fit; struct says only that one does not."""
    for name, value in zip(_NAMES, astuple(header), strict=True):
        least, most = _limits(name)
        if not isinstance(value, int) or not least <= value <= most:
            return f"{name} is {value!r}; accepted: a whole number from {least} to {most}"
    raise AssertionError("a header in which every value fits can be packed")
