"""Queueing: what a switch port sends next (disciplines) and what a host sends next (host orders).

The SimPy model and the switch's traffic manager both use these classes; the compiled engine has its own form of
them, and tests hold the two equal packet by packet. A discipline or a host order of your own goes into DISCIPLINES
or HOST_ORDERS under a new name and can then be named in any policy; see docs/extending.md.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Discipline(Protocol):
    """The queues of one port. Ranks are integers; lower is more urgent."""

    #: Bytes waiting, over all queues of the port.
    backlog_bytes: int

    def push(self, item: Any, size: int, rank: int) -> int:
        """Add an item of `size` bytes; return the bytes that were waiting in the queue it joined."""
        ...

    def pop(self) -> Any:
        """Remove and return the next item; IndexError when there is none."""
        ...

    def __len__(self) -> int:
        """Return how many items wait."""
        ...


class StrictPriority:
    """K queues, each in order of arrival; queue 0 is served before queue 1, and so on. A rank is a queue."""

    def __init__(self, queues: int):
        self.backlog_bytes = 0
        self._queues: list[deque[tuple[Any, int]]] = [deque() for _ in range(queues)]
        self._bytes = [0] * queues

    def push(self, item: Any, size: int, rank: int) -> int:
        """Append to queue `rank`."""
        found = self._bytes[rank]
        self._queues[rank].append((item, size))
        self._bytes[rank] += size
        self.backlog_bytes += size
        return found

    def pop(self) -> Any:
        """Return the oldest item of the most urgent queue that has one."""
        for index, queue in enumerate(self._queues):
            if queue:
                item, size = queue.popleft()
                self._bytes[index] -= size
                self.backlog_bytes -= size
                return item
        raise IndexError("pop from an empty port")

    def __len__(self) -> int:
        return sum(map(len, self._queues))


class Fifo(StrictPriority):
    """One queue in order of arrival, whatever the rank."""

    def __init__(self, queues: int = 1):
        super().__init__(1)

    def push(self, item: Any, size: int, rank: int) -> int:
        """Append to the only queue."""
        return super().push(item, size, 0)


class SpPifo(StrictPriority):
    """K strict-priority queues whose bounds follow the ranks seen: SP-PIFO (Alcoz et al., NSDI 2020).

    An item goes to the least urgent queue whose bound it reaches and raises that bound to its rank (push-up). An
    item more urgent than every bound goes to queue 0, and all bounds fall by the inversion this made (push-down).
    """

    def __init__(self, queues: int):
        super().__init__(queues)
        self.bounds = [0] * queues

    def push(self, item: Any, size: int, rank: int) -> int:
        """Append to the queue that the bounds choose."""
        for queue in reversed(range(len(self.bounds))):
            if rank >= self.bounds[queue]:
                break
        else:
            queue = 0
            inversion = self.bounds[0] - rank
            self.bounds = [bound - inversion for bound in self.bounds]
        self.bounds[queue] = rank
        return super().push(item, size, queue)


class Pifo:
    """Sorted by rank, equal ranks in order of arrival: the reference that no switch builds at this size."""

    def __init__(self, queues: int = 1):
        self.backlog_bytes = 0
        self._heap: list[tuple[int, int, Any, int]] = []
        self._arrivals = 0

    def push(self, item: Any, size: int, rank: int) -> int:
        """Insert by rank."""
        found = self.backlog_bytes
        heapq.heappush(self._heap, (rank, self._arrivals, item, size))
        self._arrivals += 1
        self.backlog_bytes += size
        return found

    def pop(self) -> Any:
        """Return the item of the lowest rank."""
        _, _, item, size = heapq.heappop(self._heap)
        self.backlog_bytes -= size
        return item

    def __len__(self) -> int:
        return len(self._heap)


#: Name -> what makes the discipline of one port, given the number of queues.
DISCIPLINES: dict[str, Callable[[int], Discipline]] = {
    "fifo": Fifo,
    "strict": StrictPriority,
    "sp-pifo": SpPifo,
    "pifo": Pifo,
}


@dataclass(frozen=True)
class Slice:
    """What a host order may look at: one slice that is ready to be sent."""

    ready_ps: int
    rank: int
    bytes: int
    deadline_ps: int


#: Name -> key of a slice; the host sends the slice with the lowest key first, equal keys in turn over its flows.
HOST_ORDERS: dict[str, Callable[[Slice], int]] = {
    "fifo": lambda piece: piece.ready_ps,
    "priority": lambda piece: piece.rank,
}
