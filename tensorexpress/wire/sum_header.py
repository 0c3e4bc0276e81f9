"""The header of packets that switches sum: 16 bytes behind the TensorExpress header, before the values.

Packets of kind 5 have 8 bytes more before it, which say whose values are in. docs/wire.md draws it.

>>> header = SumHeader(epoch=7, turn=3, slot=12, check=5, exponent=-2, needed=-4)
>>> SumHeader.unpack(header.pack()) == header
True
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from tensorexpress.errors import HeaderError
from tensorexpress.framing import SUM_BYTES, WORKERS_BYTES
from tensorexpress.sums import VALUE_BYTES, VALUES
from tensorexpress.wire.header import HEADER_BYTES, Header, Kind, unpack

_FORMAT = struct.Struct("!IIHHBBBB")
_WORKERS = struct.Struct("!Q")

#: Exponents are written with this added, so that the larger one is the larger unsigned number.
EXCESS = 128

#: Checks are modulo this prime, and every lane has a weight of its own below it.
CHECK_MODULUS = 65_521
_WEIGHTS: NDArray[np.int64] = 1 + 40_503 * np.arange(VALUES, dtype=np.int64) % (CHECK_MODULUS - 1)


#: Bytes behind the TensorExpress header, by kind.
_SUM_PAYLOADS: dict[int, int] = {
    Kind.SUM: SUM_BYTES + VALUES * VALUE_BYTES,
    Kind.PART: WORKERS_BYTES + SUM_BYTES + VALUES * VALUE_BYTES,
}


class SumFlag(IntFlag):
    """What the receiver of a sum should know; bits that have no name are sent as 0 and ignored."""

    #: Made by the root of the tree, and on its way down.
    RESULT = 1
    #: A number left the range of 32 bits while it was added.
    OVERFLOW = 2


@dataclass(frozen=True, slots=True)
class SumHeader:
    """Which turn of which slot a packet is of, and what its values mean."""

    #: Grows from run to run of a job, modulo 2**32.
    epoch: int
    #: How often the slot has been used since the epoch began.
    turn: int
    slot: int
    #: `check_of` the values; of a sum, the sum of checks.
    check: int
    #: The exponent with which values were scaled, and the one that the sender's own needed; sums have the largest.
    exponent: int
    needed: int
    #: 0, or one more than the number of a worker whose values were not finite.
    culprit: int = 0
    flags: int = 0
    #: A bit for each worker whose values are in, in packets of kind 5; 0 in those of kind 4, which do not say.
    workers: int = 0

    def pack(self) -> bytes:
        """Return the header as bytes, with what stands before it."""
        exponents = (self.exponent + EXCESS, self.needed + EXCESS)
        try:
            whose = _WORKERS.pack(self.workers) if self.workers else b""
            return whose + _FORMAT.pack(
                self.epoch, self.turn, self.slot, self.check, *exponents, self.culprit, self.flags
            )
        except struct.error as error:
            raise HeaderError(f"{self}: {error}") from None

    @classmethod
    def unpack(cls, data: bytes | memoryview, workers: int = 0) -> SumHeader:
        """Return the header at the start of some bytes; what stands before it has been read."""
        if len(data) < SUM_BYTES:
            raise HeaderError(f"found {len(data)} bytes; accepted: the {SUM_BYTES} of a sum header, and values")
        epoch, turn, slot, check, exponent, needed, culprit, flags = _FORMAT.unpack_from(data)
        return cls(epoch, turn, slot, check, exponent - EXCESS, needed - EXCESS, culprit, flags, workers)


def check_of(values: NDArray[np.int32]) -> int:
    """Return the check of the values of a packet: linear, so that the check of a sum is the sum of checks.

    >>> ones = np.ones(VALUES, dtype=np.int32)
    >>> (check_of(ones) + check_of(5 * ones)) % CHECK_MODULUS == check_of(6 * ones)
    True
    """
    return int((values * _WEIGHTS).sum() % CHECK_MODULUS)


def read_sum(datagram: bytes | memoryview) -> tuple[Header, SumHeader, NDArray[np.int32]]:
    """Return headers and values of the UDP payload of a packet that switches sum; HeaderError when it is none.

    Whether the check is that of the values is for the caller to say: it has to count what is damaged.
    """
    header = unpack(datagram)
    if _SUM_PAYLOADS.get(header.kind) != header.payload_bytes:
        accepted = " or ".join(f"kind {int(kind)} with {size}" for kind, size in _SUM_PAYLOADS.items())
        raise HeaderError(f"found kind {header.kind} with {header.payload_bytes} bytes; accepted: {accepted}")
    at, workers = HEADER_BYTES, 0
    if header.kind == Kind.PART:
        (workers,) = _WORKERS.unpack_from(datagram, at)
        at += WORKERS_BYTES
        if workers == 0:
            raise HeaderError("found values of no worker; accepted: a bit for each worker whose values are in")
    sums = SumHeader.unpack(datagram[at:], workers)
    return header, sums, np.frombuffer(datagram, ">i4", offset=at + SUM_BYTES).astype(np.int32)
