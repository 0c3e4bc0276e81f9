"""Queueing: what a switch port sends next (disciplines) and what a host sends next (host orders).

The SimPy model and the switch's traffic manager both use these classes; the compiled engine has its own form of
them, and tests hold the two equal packet by packet. What else others need to know of a discipline or a host order
stands beside it: nobody has to compare names. One of your own goes into DISCIPLINES or HOST_ORDERS under a new name
and can then be named in any policy; see docs/extending.md.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeVar

_Numbers = TypeVar("_Numbers")

#: How far the next turn at a host is of whoever has as much to send there as others have, where turns are weighed.
TURN = 1024


class Ranks(Enum):
    """What a rank is to a discipline; what it tells apart is the class of a flow."""

    #: Nothing: all packets are of one class.
    IGNORED = "ignored"
    #: One of the port's queues, which is the class.
    QUEUE = "queue"
    #: Any integer, to sort by; each tensor is a class, because no two of them need to stay in order.
    ORDER = "order"


class Deployment(Enum):
    """What makes a switch with K strict-priority queues do what a discipline does."""

    #: One queue for everything.
    ONE_QUEUE = "one queue"
    #: A table, or the DSCP, says in which queue a tensor waits.
    TABLE = "table"
    #: The P4 program ranks by its clock and the slack in the packet, and moves bounds as SP-PIFO does.
    SLACK = "slack"


class Discipline(ABC):
    """The queues of one port, made with the number of them. Ranks are integers; lower is more urgent."""

    #: What a rank is.
    ranks: ClassVar[Ranks] = Ranks.ORDER
    #: Whether packets of one class leave in the order in which they came, unless ranks follow the clock; only then does
    #: a gap tell a loss.
    keeps_order: ClassVar[bool] = False
    #: Whether `place` gives one of K queues, between which the port's buffer is divided; otherwise all wait in one.
    has_queues: ClassVar[bool] = False
    #: Whether a plan's buffer is a limit. The reference that no switch builds is not short of memory either.
    has_limit: ClassVar[bool] = True
    #: How switches are made to do it; None: they cannot. A subclass does not inherit it: it does something else.
    deployment: ClassVar[Deployment | None] = None
    #: Its number in the compiled engines; None: only SimPy runs it. Not inherited either.
    code: ClassVar[int | None] = None

    #: Bytes waiting, over all queues of the port.
    backlog_bytes: int

    def __init__(self, queues: int) -> None:
        self.backlog_bytes = 0

    def __init_subclass__(cls, *, code: int | None = None, deployment: Deployment | None = None) -> None:
        cls.code, cls.deployment = code, deployment

    @classmethod
    def sorts(cls) -> bool:
        """Whether it takes any rank, such as clock plus slack."""
        return cls.ranks is Ranks.ORDER

    @classmethod
    def rank_of(cls, queue: _Numbers, rank: _Numbers) -> _Numbers:
        """Return the rank that a packet has at a port, of a plan's queue and rank; numbers or arrays of them."""
        return queue if cls.ranks is Ranks.QUEUE else rank

    @classmethod
    def class_of(cls, queue: _Numbers, tensor: _Numbers) -> _Numbers | int:
        """Return the class of a flow: what its packets have in common, and share a window by."""
        if cls.ranks is Ranks.IGNORED:
            return 0
        return queue if cls.ranks is Ranks.QUEUE else tensor

    def place(self, rank: int) -> int:
        """Return where an arrival of this rank belongs, to be given to `push` unless the buffer has no room for it.

        It is a queue where there are queues. Called once for every arrival, dropped or not, as a switch that chooses a
        queue does not know yet whether there is room in it.
        """
        return rank

    @abstractmethod
    def push(self, item: Any, size: int, place: int) -> int:
        """Add an item of `size` bytes; return the bytes that were waiting in the queue it joined."""

    @abstractmethod
    def pop(self) -> Any:
        """Remove and return the next item; IndexError when there is none."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many items wait."""


class StrictPriority(Discipline, code=1, deployment=Deployment.TABLE):
    """K queues, each in order of arrival; queue 0 is served before queue 1, and so on. A rank is a queue."""

    ranks = Ranks.QUEUE
    keeps_order = True
    has_queues = True

    def __init__(self, queues: int):
        super().__init__(queues)
        self._queues: list[deque[tuple[Any, int]]] = [deque() for _ in range(queues)]
        self._bytes = [0] * queues

    def push(self, item: Any, size: int, place: int) -> int:
        """Append to a queue."""
        found = self._bytes[place]
        self._queues[place].append((item, size))
        self._bytes[place] += size
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


class Fifo(StrictPriority, code=0, deployment=Deployment.ONE_QUEUE):
    """One queue in order of arrival, whatever the rank."""

    ranks = Ranks.IGNORED
    has_queues = False

    def __init__(self, queues: int = 1):
        super().__init__(1)

    def push(self, item: Any, size: int, place: int) -> int:
        """Append to the only queue."""
        return super().push(item, size, 0)


class SpPifo(StrictPriority, code=2, deployment=Deployment.SLACK):
    """K strict-priority queues whose bounds follow the ranks seen: SP-PIFO (Alcoz et al., NSDI 2020).

    An item goes to the least urgent queue whose bound it reaches and raises that bound to its rank (push-up). An
    item more urgent than every bound goes to queue 0, and all bounds fall by the inversion this made (push-down).
    """

    ranks = Ranks.ORDER
    keeps_order = False

    def __init__(self, queues: int):
        super().__init__(queues)
        self.bounds = [0] * queues

    def place(self, rank: int) -> int:
        """Return the queue that the bounds choose, and move them."""
        for queue in reversed(range(len(self.bounds))):
            if rank >= self.bounds[queue]:
                break
        else:
            queue = 0
            inversion = self.bounds[0] - rank
            self.bounds = [bound - inversion for bound in self.bounds]
        self.bounds[queue] = rank
        return queue


class Pifo(Discipline, code=3):
    """Sorted by rank, equal ranks in order of arrival: the reference that no switch builds at this size."""

    keeps_order = True
    has_limit = False

    def __init__(self, queues: int = 1):
        super().__init__(queues)
        self._heap: list[tuple[int, int, Any, int]] = []
        self._arrivals = 0

    def push(self, item: Any, size: int, place: int) -> int:
        """Insert by rank."""
        found = self.backlog_bytes
        heapq.heappush(self._heap, (place, self._arrivals, item, size))
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


#: Name -> the class whose instance is the queues of one port, made with the number of them.
DISCIPLINES: dict[str, type[Discipline]] = {
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
    #: When it should be there; what an iteration needs is always due before anything of the next one.
    deadline_ps: int
    #: Which iteration it belongs to, and a number that tells it from others of that iteration.
    iteration: int = 0
    number: int = 0


@dataclass(frozen=True)
class HostOrder:
    """The order in which a host sends slices that are ready."""

    #: The host sends the slice with the lowest key first, equal keys in turn over its flows.
    key: Callable[[Slice], int]
    #: Whether it leaves slices in the order in which they became ready.
    keeps_order: bool = False
    #: Whether workers that have the same slices ready send them in the same order.
    is_same_for_all: bool = False
    #: Its number in the compiled engine; None: only SimPy runs it.
    code: int | None = None


def shuffled(iteration: int, number: int) -> int:
    """Return a number below 2^31 that says nothing about when a slice is needed, the same in every engine."""
    x = (iteration * 40_503 + number * 69_621 + 12_345) % 2_147_483_647
    x = x * 48_271 % 2_147_483_647
    x ^= x >> 13
    return x * 69_621 % 2_147_483_647


#: Name -> host order. `priority` goes by deadlines, not by layers: a layer says nothing of the iteration, and where a
#: host both works and serves, what it pushes for the next iteration would overtake what others still need of this one.
HOST_ORDERS: dict[str, HostOrder] = {
    "fifo": HostOrder(lambda piece: piece.ready_ps, keeps_order=True, is_same_for_all=True, code=0),
    "priority": HostOrder(lambda piece: piece.deadline_ps, is_same_for_all=True, code=1),
    "random": HostOrder(lambda piece: shuffled(piece.iteration, piece.number), code=2),
}


def not_compiled(discipline: str, host_order: str) -> str | None:
    """Return the choice that only SimPy simulates, the discipline or the host order; None if both are compiled.

    >>> not_compiled("strict", "priority")
    """
    if DISCIPLINES[discipline].code is None:
        return f"discipline {discipline!r}"
    if HOST_ORDERS[host_order].code is None:
        return f"host order {host_order!r}"
    return None
