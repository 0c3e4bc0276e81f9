"""A server's half of sums that end at it: what has come of every packet, and what it answers.

A state machine without sockets or clock, as pool.py is. The root of a server's tree sends it the sums of all workers,
or, where switches find slots by hash, sums of some of them: what found no slot, or was sent again, comes as it is. The
server adds up sets of workers that have none in common. When all are in, it answers with the sum, which switches hand
down to all workers.

It keeps the sums of the last two turns of every slot: who asks again has not got the answer. A worker begins turn t
when it has the sum of t - 1, for which everybody had that of t - 2, so nobody asks for what was there before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tensorexpress.errors import NetworkError
from tensorexpress.fixed_point import LOWEST, Integers, to_floats
from tensorexpress.host.pool import MOST_DAMAGED, Contribution, Summed, everyone, has_slot, redo_exponent
from tensorexpress.host.tagging import TrafficClass
from tensorexpress.queueing import TURN
from tensorexpress.sums import Pool, SumPlan
from tensorexpress.wire.header import Header, Kind
from tensorexpress.wire.sum_header import CHECK_MODULUS, SumFlag, SumHeader, check_of

_HALF, _WRAP = 1 << 31, 1 << 32

#: Long before any answer.
_NEVER_PS = -(10**18)


@dataclass(frozen=True)
class Service:
    """What a server is in the sums of a job."""

    job: int
    #: How many workers there are.
    workers: int
    #: Names of the job's tensors.
    layers: tuple[str, ...]
    #: Tells this run of the job from all before it.
    epoch: int
    #: Iterations of the run.
    iterations: int
    #: Whoever asks sooner after an answer than this cannot have seen it.
    round_trip_ps: int
    #: How packets of every tensor are marked.
    traffic: Mapping[int, TrafficClass]
    #: How long it takes to make an answer.
    delay_ps: int = 0


class _Sum:
    """What has come of one turn."""

    __slots__ = ("answer", "answered_ps", "damaged", "header", "is_queued", "sums", "turn", "values", "workers")

    def __init__(self, turn: int):
        self.turn = turn
        #: Whose values are in; the headers and values are those of their sum.
        self.workers = 0
        self.header: Header
        self.sums: SumHeader
        self.values: Integers
        #: Of those that came last, without one that was whole.
        self.damaged = 0
        #: Once all are in; and whether it waits to be sent, and when it was last sent.
        self.answer: Contribution | None = None
        self.is_queued, self.answered_ps = False, _NEVER_PS

    @property
    def identity(self) -> tuple[int, int, int, int]:
        """What is summed, and with which exponent."""
        return _identity(self.header, self.sums)


class SumServer:
    """What a server takes from the root of its tree, and what it sends back; to the scheduler it is like a flow."""

    free_of_credit = True
    #: Nobody acknowledges an answer: who has not got it asks again.
    timeouts = 0

    def __init__(self, tree: SumPlan, service: Service):
        self.tree, self.service = tree, service
        self.by_hash = bool(tree.cells)
        self.kind = Kind.PART if self.by_hash else Kind.SUM
        self.full_bytes = tree.framing.full_packet_bytes
        self._everyone = everyone(service.workers)
        #: By pool and place.
        self._sums: dict[tuple[int, int], _Sum] = {}
        #: Those that may be sent, and before that those that are made, until when.
        self._answers: deque[_Sum] = deque()
        self._making: deque[tuple[int, _Sum]] = deque()
        self._left = service.iterations * sum(pool.packets_per_iteration for pool in tree.pools)
        #: What has come; sums that are complete, and those of them that came as one packet.
        self.packets = self.sums = self.whole = 0
        #: Answers that were sent again.
        self.retransmissions = 0
        #: What was of an earlier turn; of another packet than the rest of its turn; no sum that can be; damaged.
        self.late = self.mismatches = self.implausible = self.damaged = 0
        #: Values that were in already, and sets of which some were.
        self.duplicates = self.overlaps = 0
        self.served, self.turn = 0, TURN

    @property
    def is_complete(self) -> bool:
        """Whether every packet of the run has been summed."""
        return self._left == 0

    @property
    def idle(self) -> bool:
        """Whether no answer waits to be sent."""
        return not self._answers and not self._making

    # What comes

    def take(self, header: Header, sums: SumHeader, values: Integers, now_ps: int) -> Summed | None:
        """Take what a switch has summed, of this job and epoch.

        Return the sum of all workers if it is complete now, and one that they will take. What is late or damaged
        changes nothing; NetworkError when what comes is wrong again and again.
        """
        self.packets += 1
        pool = next((pool for pool in self.tree.pools if has_slot(pool, sums.slot, self.by_hash)), None)
        workers = sums.workers if self.by_hash else self._everyone
        if pool is None or not self._can_be(pool, header, sums, workers):
            self.implausible += 1
            return None
        held = self._place(pool, sums)
        if held is None:
            self.late += 1
            return None
        if held.workers and held.identity != _identity(header, sums):
            self.mismatches += 1
        elif held.answer is not None:
            self._answer_again(held, now_ps)
        elif self._is_undamaged(held, header, sums, values) and self._add(held, header, sums, values, workers):
            return self._end_turn(held, pool, now_ps)
        return None

    def _can_be(self, pool: Pool, header: Header, sums: SumHeader, workers: int) -> bool:
        """Whether workers of the plan can have sent it: it is a packet of its pool, at its place, and of members."""
        if header.kind != self.kind or header.tensor not in pool.first_packet:
            return False
        packets = pool.packets[pool.tensors.index(header.tensor)]
        number = pool.number(header.iteration, header.tensor, header.chunk)
        place = sums.turn if self.by_hash else sums.slot - pool.first_slot
        return (
            header.chunk < packets == header.chunks
            and header.iteration < self.service.iterations
            and (number - place) % pool.slots == 0
            and 0 < workers <= self._everyone
            and sums.culprit <= self.service.workers
            and sums.needed >= LOWEST
        )

    def _place(self, pool: Pool, sums: SumHeader) -> _Sum | None:
        """Return what there is of a turn, which may be its first; None for one that is over."""
        key = (pool.first_slot, sums.turn % (2 * pool.slots)) if self.by_hash else (sums.slot, sums.turn & 1)
        held = self._sums.get(key)
        if held is None or 0 < (sums.turn - held.turn) % _WRAP < _HALF:
            held = self._sums[key] = _Sum(sums.turn)
        return held if held.turn == sums.turn else None

    def _is_undamaged(self, held: _Sum, header: Header, sums: SumHeader, values: Integers) -> bool:
        """Whether the check is that of the values; it cannot be where a number has left 32 bits."""
        if sums.flags & SumFlag.OVERFLOW or check_of(values) == sums.check:
            held.damaged = 0
            return True
        self.damaged += 1
        held.damaged += 1
        if held.damaged == MOST_DAMAGED:
            raise NetworkError(
                f"the sum of tensor {header.tensor} ({self.service.layers[header.tensor]}) in iteration "
                f"{header.iteration} came {MOST_DAMAGED} times, and was wrong every time: its check is not that of its "
                "values; do all workers and switches have the same plan?"
            )
        return False

    def _add(self, held: _Sum, header: Header, sums: SumHeader, values: Integers, workers: int) -> bool:
        """Add what came to what is there; return whether all workers are in now."""
        if held.workers & workers:
            if workers & ~held.workers:
                self.overlaps += 1
            else:
                self.duplicates += 1
            return False
        self.whole += workers == self._everyone
        if held.workers:
            sums, values = _added(held.sums, held.values, sums, values)
        held.header, held.sums, held.values = header, sums, values
        held.workers |= workers
        return held.workers == self._everyone

    def _end_turn(self, held: _Sum, pool: Pool, now_ps: int) -> Summed | None:
        """Answer; return the sum unless workers will stop because of it, or sum the packet again."""
        header, sums = held.header, held.sums
        self.sums += 1
        held.answer = self._answer_of(held)
        self._queue(held, now_ps)
        if sums.culprit or sums.flags & SumFlag.OVERFLOW or redo_exponent(sums.exponent, sums.needed) is not None:
            return None
        self._left -= 1
        exact = to_floats(held.values, sums.exponent, self.service.workers)
        place = pool.start_of(header.tensor) + header.chunk
        return Summed(header.iteration, header.tensor, place, exact, now_ps)

    # Answers

    def _answer_of(self, held: _Sum) -> Contribution:
        header, sums = held.header, held.sums
        answered = SumHeader(
            sums.epoch, sums.turn, sums.slot, sums.check, sums.exponent, sums.needed, sums.culprit,
            sums.flags | SumFlag.RESULT, self._everyone if self.by_hash else 0,
        )  # fmt: skip
        return Contribution(
            Header(
                header.job, 0, header.iteration, header.tensor, header.chunk, header.chunks, header.queue,
                header.slack_us, header.payload_bytes, header.kind, 0,
            ),
            answered.pack() + held.values.astype(">i4").tobytes(),
            self.service.traffic[header.tensor],
            self.full_bytes,
        )  # fmt: skip

    def _answer_again(self, held: _Sum, now_ps: int) -> None:
        """Answer who asks for a sum that there is, unless they cannot know yet that it was answered."""
        if held.answered_ps > _NEVER_PS and now_ps - held.answered_ps >= self.service.round_trip_ps:
            self._queue(held, now_ps)

    def _queue(self, held: _Sum, now_ps: int) -> None:
        if held.is_queued:
            return
        held.is_queued = True
        self._making.append((now_ps + self.service.delay_ps, held))
        self.time_out(now_ps)

    # As a sender of its host

    def head(self) -> tuple[bool, int] | None:
        """Return the key of the next answer, before all else: all workers wait for it; None if there is none."""
        return (False, 0) if self._answers else None

    def next_burst(self, now_ps: int, most: int) -> Contribution:
        """Send the answer that has waited longest."""
        held = self._answers.popleft()
        assert held.answer is not None
        self.retransmissions += held.answered_ps > _NEVER_PS
        held.is_queued, held.answered_ps = False, now_ps
        return held.answer

    @property
    def in_flight_bytes(self) -> int:
        """What is under way inside of the server: answers that it makes."""
        return self.full_bytes * len(self._making)

    @property
    def deadline_ps(self) -> int:
        """When the next answer is made; only while something is in flight."""
        return self._making[0][0]

    def time_out(self, now_ps: int) -> None:
        """Let answers go that are made by now."""
        while self._making and self._making[0][0] <= now_ps:
            self._answers.append(self._making.popleft()[1])


def _identity(header: Header, sums: SumHeader) -> tuple[int, int, int, int]:
    return header.iteration, header.tensor, header.chunk, sums.exponent


def _added(one: SumHeader, own: Integers, other: SumHeader, values: Integers) -> tuple[SumHeader, Integers]:
    """Return the sum of two, which may leave 32 bits: then it says so."""
    total = own.astype(np.int64) + values
    overflow = SumFlag.OVERFLOW if (total != total.astype(np.int32)).any() else 0
    sums = SumHeader(
        other.epoch, other.turn, other.slot, (one.check + other.check) % CHECK_MODULUS, other.exponent,
        max(one.needed, other.needed), max(one.culprit, other.culprit), one.flags | other.flags | overflow,
        one.workers | other.workers,
    )  # fmt: skip
    return sums, total.astype(np.int32)
