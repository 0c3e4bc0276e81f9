"""Recovery: when a flow takes a packet for lost, and how long it waits. Simulated flows and real ones read it here.

`sim/model.py`, its compiled form and `host/flow.py` keep their flows differently, but decide by these rules; tests hold
them to the same times. docs/transport.md has the rules in words.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from tensorexpress.policy import Policy
from tensorexpress.queueing import DISCIPLINES

#: A packet counts as lost when one that was sent this many transmissions later in its flow has arrived.
REORDERING = 3

#: A packet that switches sum counts as lost when the sums of so many others have come that its stream first sent after
#: the last time that it sent this one.
NEWER_SUMS = 3

#: Least time-out where a scenario names no other: many round trips of a data centre, and longer than a host sleeps. One
#: that strikes too early costs a packet, so queues in which packets starve need no longer one.
LEAST_TIMEOUT_PS = 5 * 10**9

#: The time-out no longer doubles beyond this, so that a flow goes on soon after a long interruption.
LONGEST_TIMEOUT_PS = 10**12

#: How long a part of a sum may keep its cell from others, where slots are found by hash.
SUM_AGE_PS = 10**12

#: Of so many round trips through switches that sum, one waited for nobody else.
POOL_SAMPLES = 16

#: DCTCP's estimate of the share of marked bytes is kept in units of 1/1024 and moves by 1/16 a window.
ALPHA_ONE = 1024
ALPHA_SHIFT = 4


def reordering_of(policy: Policy) -> int:
    """Return how many later transmissions tell a loss; 0: switches reorder, and a probe alone tells."""
    return REORDERING if policy.keeps_flows_in_order else 0


def newer_sums_of(policy: Policy) -> int:
    """Return how many newer sums tell a loss; 0: switches reorder what is in one pool, and only time-outs tell.

    >>> from tensorexpress.policy import POLICIES, parse_policy
    >>> newer_sums_of(POLICIES["tensorexpress+sum"]), newer_sums_of(parse_policy("switchml:switch=pifo"))
    (3, 0)
    """
    return 0 if DISCIPLINES[policy.discipline].sorts() else NEWER_SUMS


_Packet = TypeVar("_Packet", bound=Hashable)


class Gaps(Generic[_Packet]):
    """What of a stream, one worker's packets of one pool, waits for its sum, and what the sums of others tell of it.

    Workers send the packets of a pool in the same order, and nothing on the way changes that. So a sum that is missing
    while sums of newer packets come is missing because something was lost, somewhere between workers and sum. Each
    transmission takes `newer_sums` of them; 0 is never.

    >>> gaps = Gaps[str](3)
    >>> for packet in "abcde":
    ...     gaps.sent(packet)
    >>> [gaps.came(packet) for packet in "bcd"]
    [[], [], ['a']]
    >>> gaps.sent("a"), gaps.came("e"), gaps.came("a")
    (None, [], [])
    """

    def __init__(self, newer_sums: int):
        self._newer_sums = newer_sums
        self._transmissions = 0
        #: In the order of the last transmission: number of the first one, of the last, newer sums since.
        self._under_way: dict[_Packet, tuple[int, int, int]] = {}

    def sent(self, packet: _Packet) -> None:
        """Note a packet that is sent, for the first time or again."""
        self._transmissions += 1
        first, _, _ = self._under_way.pop(packet, (self._transmissions, 0, 0))
        self._under_way[packet] = (first, self._transmissions, 0)

    def came(self, packet: _Packet) -> list[_Packet]:
        """Note that the sum of a packet under way is there; return what counts as lost by it, to be sent again."""
        first_of_sum, _, _ = self._under_way.pop(packet)
        lost = []
        for other, (first, last, newer) in self._under_way.items():
            if last > first_of_sum:
                break
            self._under_way[other] = (first, last, newer + 1)
            if newer + 1 == self._newer_sums:
                lost.append(other)
        return lost


def smoothed(round_trip_ps: int, deviation_ps: int, sample_ps: int) -> tuple[int, int]:
    """Return round trip and deviation after one more sample; a round trip of 0 has not been measured yet.

    >>> smoothed(0, 0, 800), smoothed(800, 400, 1600)
    ((800, 400), (900, 500))
    """
    if round_trip_ps == 0:
        return sample_ps, sample_ps // 2
    error = sample_ps - round_trip_ps
    return round_trip_ps + (error >> 3), deviation_ps + ((abs(error) - deviation_ps) >> 2)


def timeout_after(round_trip_ps: int, deviation_ps: int, rto_min_ps: int) -> int:
    """Return the time-out: what a packet may take until it is acknowledged, and no less than the least."""
    return max(rto_min_ps, round_trip_ps + 4 * deviation_ps)


def timeout_of_pool(round_trips_ps: Iterable[int], rto_min_ps: int) -> int:
    """Return the time-out of packets that switches sum, by the last `POOL_SAMPLES` round trips.

    A sum also waits for others: for what they lost, and for how long they compute. By a mean, everybody's time-outs
    would lengthen everybody else's. The shortest of several waited for nobody; queues make it at most a few times as
    long, because a pool has hardly more slots than it takes to keep a link busy.

    >>> timeout_of_pool([7_000, 900, 1_200], rto_min_ps=500), timeout_of_pool([], rto_min_ps=500)
    (3600, 500)
    """
    return max(rto_min_ps, min(4 * min(round_trips_ps, default=0), LONGEST_TIMEOUT_PS))


def timer_sleep_ps(left_ps: int, rto_min_ps: int) -> int:
    """Return how long a simulated timer sleeps: until the time-out, but it may have become shorter, so it looks again.

    Otherwise a flow that has just been starved, and waits long, would still wait long for the next loss.
    """
    return min(left_ps, 4 * rto_min_ps)


def lost_up_to(arrived: int, probe: int, reordering: int) -> int:
    """Return the last transmission of a flow that counts as lost if still in flight, once a given one has arrived.

    `probe` is the transmission that the last time-out sent, -1 if there was none: it went out a time-out after all
    before it, so where it has arrived, they have or never will.

    >>> lost_up_to(9, -1, 3), lost_up_to(9, 9, 3), lost_up_to(8, 9, 3)
    (6, 8, 5)
    """
    by_order = arrived - reordering
    return max(by_order, probe - 1) if arrived >= probe else by_order


def backed_off(timeout_ps: int) -> int:
    """Return the time-out after it has struck.

    >>> [backed_off(ms * 10**9) // 10**9 for ms in (200, 600, 1000, 5000)]
    [400, 1000, 1000, 5000]
    """
    return max(timeout_ps, min(2 * timeout_ps, LONGEST_TIMEOUT_PS))
