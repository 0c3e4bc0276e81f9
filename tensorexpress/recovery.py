"""Recovery: when a flow takes a packet for lost, and how long it waits. Simulated flows and real ones read it here.

`sim/model.py`, its compiled form and `host/flow.py` keep their flows differently, but decide by these rules; tests hold
them to the same times. docs/transport.md has the rules in words.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensorexpress.policy import Policy

#: A packet counts as lost when one that was sent this many transmissions later in its flow has arrived.
REORDERING = 3

#: Least time-out where a scenario names no other: many round trips of a data centre, and longer than a host sleeps. One
#: that strikes too early costs a packet, so queues in which packets starve need no longer one.
LEAST_TIMEOUT_PS = 5 * 10**9

#: The time-out no longer doubles beyond this, so that a flow goes on soon after a long interruption.
LONGEST_TIMEOUT_PS = 10**12

#: Of so many round trips through switches that sum, one waited for nobody else.
POOL_SAMPLES = 16

#: A packet that switches sum counts as lost when so many sums have come of packets of its pool that were first sent
#: after it was last sent.
POOL_GAP = 3

#: DCTCP's estimate of the share of marked bytes is kept in units of 1/1024 and moves by 1/16 a window.
ALPHA_ONE = 1024
ALPHA_SHIFT = 4


def reordering_of(policy: Policy) -> int:
    """Return how many later transmissions tell a loss; 0: switches reorder, and a probe alone tells."""
    return REORDERING if policy.keeps_flows_in_order else 0


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
