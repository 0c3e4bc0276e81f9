"""DSCP: what tells a switch, NIC or qdisc without P4 which queue a packet belongs to."""

from __future__ import annotations

from tensorexpress.errors import InputError

#: Most queues that the class selectors tell apart.
CLASS_SELECTORS = 8


def dscp_of_queue(queue: int, queues: int) -> int:
    """Return the DSCP of a queue: the class selectors, with CS0 (best effort) for the least urgent queue.

    Equipment takes the upper three bits of a DSCP for its traffic class unless told otherwise.

    >>> [dscp_of_queue(queue, queues=4) for queue in range(4)]
    [24, 16, 8, 0]
    """
    if not 1 <= queues <= CLASS_SELECTORS or not 0 <= queue < queues:
        raise InputError(f"found queue {queue} of {queues}; accepted: a queue of at most {CLASS_SELECTORS}")
    return (queues - 1 - queue) * 8


def queue_of_dscp(dscp: int, queues: int) -> int:
    """Return the queue of a DSCP; what is more urgent than any queue goes to queue 0.

    >>> [queue_of_dscp(dscp, queues=4) for dscp in (0, 8, 24, 46)]
    [3, 2, 0, 0]
    """
    return max(0, queues - 1 - dscp // 8)
