"""DSCP: what tells a switch, NIC or qdisc without P4 which queue a packet belongs to.

A plan holds one DSCP for each queue, most urgent first, each lower than the one before. docs/wire.md says why the
default ones are what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tensorexpress.errors import InputError
from tensorexpress.p4.define import QUEUE_T_BITS

#: Most queues that a plan's DSCPs tell apart, which is what the P4 program has.
MOST_QUEUES = 1 << QUEUE_T_BITS

#: Values of a DSCP.
DSCPS = 64

#: CS5 to CS2. Those above belong to routing protocols; CS1 is worth less than best effort in many networks.
_CLASS_SELECTORS = (40, 32, 24, 16)
#: AF41, AF31, AF21: between the former, and dropped last of their class.
_ASSURED = (34, 26, 18)
_BEST_EFFORT = 0


def default_dscps(queues: int) -> tuple[int, ...]:
    """Return the DSCP of every queue where nothing else is said: CS5 to CS2, AFx1 between them, best effort last.

    More queues than DSCPs tell apart have none.

    >>> default_dscps(4), default_dscps(8)
    ((40, 32, 24, 0), (40, 34, 32, 26, 24, 18, 16, 0))
    """
    if queues > MOST_QUEUES:
        return ()
    urgent = queues - 1
    assured = max(0, urgent - len(_CLASS_SELECTORS))
    return (*sorted((*_CLASS_SELECTORS[:urgent], *_ASSURED[:assured]), reverse=True), _BEST_EFFORT)


def first_dscps(queues: int) -> tuple[int, ...]:
    """Return the DSCPs of a plan file that says nothing about them, as the first ones did: up to CS7.

    >>> first_dscps(4), first_dscps(8)
    ((24, 16, 8, 0), (56, 48, 40, 32, 24, 16, 8, 0))
    """
    return tuple(range(8 * (queues - 1), -1, -8)) if queues <= MOST_QUEUES else ()


def check_dscps(dscps: Sequence[int], queues: int) -> tuple[int, ...]:
    """Return DSCPs if they tell so many queues apart; InputError says what is wrong with them."""
    if len(dscps) != queues or queues > MOST_QUEUES:
        raise InputError(
            f"{len(dscps)} DSCPs for {queues} queues; accepted: one for each of at most {MOST_QUEUES} queues"
        )
    for dscp in dscps:
        if not 0 <= dscp < DSCPS:
            raise InputError(f"DSCP {dscp}; accepted: 0 to {DSCPS - 1}")
    for urgent, other in pairwise(dscps):
        if urgent <= other:
            raise InputError(
                f"DSCP {urgent} before {other}; accepted: the most urgent queue's first, each lower than the one before"
            )
    return tuple(dscps)


def dscp_of_queue(queue: int, dscps: Sequence[int]) -> int:
    """Return the DSCP of a queue.

    >>> [dscp_of_queue(queue, (40, 32, 0)) for queue in range(3)]
    [40, 32, 0]
    """
    if not 0 <= queue < len(dscps):
        raise InputError(
            f"queue {queue} has no DSCP; accepted: a queue of at most {MOST_QUEUES}, of which there are "
            f"{len(dscps)} here"
        )
    return dscps[queue]


def queue_of_dscp(dscp: int, dscps: Sequence[int]) -> int:
    """Return the queue of any DSCP: the most urgent one whose own is not above it.

    So one table orders all 64, and what networks need to live (CS6, CS7) is in queue 0 with the most urgent tensors.

    >>> [queue_of_dscp(dscp, (40, 32, 24, 0)) for dscp in (0, 8, 24, 46, 56)]
    [3, 3, 2, 0, 0]
    """
    return next((queue for queue, own in enumerate(dscps) if own <= dscp), len(dscps) - 1)


def dscp_blocks(queue: int, dscps: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield all DSCPs of a queue as (value, mask): what equipment matches that compares under a mask.

    >>> list(dscp_blocks(0, (40, 0))), list(dscp_blocks(1, (40, 34, 32, 0)))
    ([(40, 56), (48, 48)], [(34, 62), (36, 60)])
    """
    dscp = 0
    members = [queue_of_dscp(each, dscps) == queue for each in range(DSCPS)]
    while dscp < DSCPS:
        size = 1
        if members[dscp]:
            while dscp % (2 * size) == 0 and dscp + 2 * size <= DSCPS and all(members[dscp : dscp + 2 * size]):
                size *= 2
            yield dscp, DSCPS - size
        dscp += size
