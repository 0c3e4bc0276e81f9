"""The buffer of a switch port: how many bytes may wait, and how the port's queues share them.

Half of the buffer is kept for the single queues in equal parts, so that whatever fills the other half, a packet of an
empty queue finds room. The other half belongs to whoever comes first. Where everything waits in one queue, it has the
whole. Bytes are counted as on the wire. docs/clusters.md says why; simulator, replay and embedded switch count by this
module, and what a target does otherwise is said there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tensorexpress.units import format_size

#: Stands for no limit; sums with it stay inside 64 bits.
_ENDLESS_BYTES = 1 << 60


class Shares(NamedTuple):
    """How the queues of a port share its buffer."""

    #: Bytes that each queue has for itself.
    own_bytes: int
    #: Bytes for what queues hold beyond that, all together.
    common_bytes: int


def shares(buffer_bytes: int, queues: int) -> Shares:
    """Return how a buffer, 0 for one without limit, is shared.

    >>> shares(16_000_000, queues=8), shares(16_000_000, queues=1)
    (Shares(own_bytes=1000000, common_bytes=8000000), Shares(own_bytes=0, common_bytes=16000000))
    """
    if not buffer_bytes:
        return Shares(0, _ENDLESS_BYTES)
    own_bytes = buffer_bytes // (2 * queues) if queues > 1 else 0
    return Shares(own_bytes, buffer_bytes - queues * own_bytes)


def most_in_queue(buffer_bytes: int, queues: int) -> int:
    """Return how many bytes a queue holds at the most, when the others are short.

    >>> most_in_queue(16_000_000, queues=8)
    9000000
    """
    return sum(shares(buffer_bytes, queues))


#: Target -> what its ports do otherwise; the embedded switch's do as the simulator's.
OTHERWISE: Mapping[str, str] = MappingProxyType(
    {
        "linux": "limits every queue by itself, to what it may hold while the others are short",
        "bmv2": "holds 64 packets of any size in each queue",
    }
)


def describe(buffer_bytes: int, queues: int) -> str:
    """Return what a buffer means, and where it means something else.

    >>> print(describe(16_000_000, queues=8).replace("; ", ";\\n"))
    16 MB at a port: 1 MB for each of 8 queues, 8 MB for whoever comes first;
    linux limits every queue by itself, to what it may hold while the others are short;
    bmv2 holds 64 packets of any size in each queue
    """
    own_bytes, common_bytes = shares(buffer_bytes, queues)
    if not buffer_bytes:
        words = "no limit at a port"
    elif not own_bytes:
        words = f"{format_size(buffer_bytes)} at a port"
    else:
        words = (
            f"{format_size(buffer_bytes)} at a port: {format_size(own_bytes)} for each of {queues} queues, "
            f"{format_size(common_bytes)} for whoever comes first"
        )
    return "; ".join([words, *(f"{target} {otherwise}" for target, otherwise in OTHERWISE.items())])


class Buffer:
    """What waits at one port."""

    __slots__ = ("_common_bytes", "_common_limit", "_own_limit", "queue_bytes")

    def __init__(self, buffer_bytes: int, queues: int):
        self._own_limit, self._common_limit = shares(buffer_bytes, queues)
        self._common_bytes = 0
        #: Bytes that wait in each queue.
        self.queue_bytes = [0] * queues

    def take(self, queue: int, size: int) -> bool:
        """Let `size` bytes wait in a queue; False when there is no room for them."""
        before, own = self.queue_bytes[queue], self._own_limit
        after = before + size
        if after > own:
            common = self._common_bytes + after - (before if before > own else own)
            if common > self._common_limit:
                return False
            self._common_bytes = common
        self.queue_bytes[queue] = after
        return True

    def release(self, queue: int, size: int) -> None:
        """Note that `size` bytes of a queue wait no longer."""
        before, own = self.queue_bytes[queue], self._own_limit
        after = before - size
        if before > own:
            self._common_bytes -= before - (after if after > own else own)
        self.queue_bytes[queue] = after
