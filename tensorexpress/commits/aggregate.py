"""Aggregation at idle hosts: updates that would wait for the server's link are summed elsewhere and sent as one.

The order of commits stays. The first updates go straight to the server; while they keep its link busy, idle helpers
take the next ones, sum them, and send each sum as one transfer when the link is free. A group commits as consecutive
versions, so no update commits at another place than it would alone, and its delay in versions is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensorexpress.commits.updates import Bandwidth, Update
from tensorexpress.units import serialisation_ps

#: Updates that a helper sums at the most: it bounds the time of a decision, and what is lost with a helper.
_LARGEST_GROUP = 32


@dataclass(frozen=True)
class CommitGroup:
    """Updates that arrive at the server together and commit as consecutive versions."""

    updates: tuple[Update, ...]
    #: The host that sums them; None: a single update goes straight to the server.
    helper: int | None
    #: When the server will have it, from now on.
    arrives_ps: int


@dataclass(frozen=True)
class Aggregation:
    """Who can sum, at which rate, and until when the server's link is busy."""

    server: int
    helpers: tuple[int, ...] = ()
    #: Bit/s at which a helper adds; 0 is at once.
    add_rate_bps: int = 0
    #: When the server's link is free, from now on.
    free_ps: int = 0


def aggregate(ordered: Sequence[Update], way: Aggregation, bandwidth: Bandwidth) -> tuple[CommitGroup, ...]:
    """Return the groups in which ordered updates reach the server, in that order.

    Helpers are used once each, those with the fastest way to the server first, so as to free its link soonest, for
    that is what everybody else waits for; among equal ways, for the earliest mean commit.

    >>> updates = [Update(host, version=0, size_bytes=125) for host in range(4)]
    >>> groups = aggregate(updates, Aggregation(server=9, helpers=(8,)), lambda a, b: 1000)
    >>> [(len(group.updates), group.helper, group.arrives_ps // 10**12) for group in groups]
    [(1, None, 1), (1, None, 2), (2, 8, 3)]
    """
    helpers = sorted(way.helpers, key=lambda helper: -bandwidth(helper, way.server))
    straight_ps = [update.transfer_ps(way.server, bandwidth) for update in ordered]
    sums = [_Sums(ordered, helper, way, bandwidth) for helper in helpers]
    # The best way to have the first so many updates at the server with the first so many helpers.
    ends: list[list[_End]] = [[_NO_WAY] * (len(helpers) + 1) for _ in range(len(ordered) + 1)]
    ends[0][0] = _End(way.free_ps, 0, 0, 0)
    for first in range(len(ordered)):
        for used, end in enumerate(ends[first]):
            if end is _NO_WAY:
                continue
            free_ps = end.free_ps + straight_ps[first]
            after = _End(free_ps, end.total_ps + free_ps, first, used)
            ends[first + 1][used] = min(ends[first + 1][used], after)
            for members, free_ps in sums[used].groups(first, end.free_ps) if used < len(helpers) else ():
                after = _End(free_ps, end.total_ps + members * free_ps, first, used)
                ends[first + members][used + 1] = min(ends[first + members][used + 1], after)
    return _traced_back(ordered, ends, helpers)


class _End(NamedTuple):
    """A way to bring some updates to the server; the smallest is the best."""

    #: When the server's link is free, and the sum of commit times.
    free_ps: int
    total_ps: int
    #: Updates that were there and helpers that were used before its last group.
    first: int
    used: int


_NO_WAY = _End(1 << 80, 0, 0, 0)


class _Sums:
    """What one helper can sum."""

    def __init__(self, ordered: Sequence[Update], helper: int, way: Aggregation, bandwidth: Bandwidth):
        self._upload_ps = [update.transfer_ps(helper, bandwidth) for update in ordered]
        add_bps, out_bps = way.add_rate_bps, bandwidth(helper, way.server)
        self._add_ps = [serialisation_ps(update.size_bytes, add_bps) if add_bps else 0 for update in ordered]
        self._send_ps = [serialisation_ps(update.size_bytes, out_bps) for update in ordered]

    def groups(self, first: int, free_ps: int) -> Iterator[tuple[int, int]]:
        """Yield how many updates it may sum, two at least, and when the link is free after each such sum."""
        uploaded_ps = summed_ps = self._upload_ps[first]
        send_ps = self._send_ps[first]
        for index in range(first + 1, min(first + _LARGEST_GROUP, len(self._upload_ps))):
            if summed_ps > free_ps:
                return  # the link stands still already
            uploaded_ps += self._upload_ps[index]
            summed_ps = max(summed_ps, uploaded_ps) + self._add_ps[index]
            send_ps = max(send_ps, self._send_ps[index])
            yield index - first + 1, max(free_ps, summed_ps) + send_ps


def _traced_back(
    ordered: Sequence[Update], ends: Sequence[Sequence[_End]], helpers: Sequence[int]
) -> tuple[CommitGroup, ...]:
    """Return the groups of the best way to bring all updates to the server."""
    last_first = []
    count, used = len(ordered), min(range(len(helpers) + 1), key=lambda number: ends[-1][number])
    while count:
        end = ends[count][used]
        helper = None if used == end.used else helpers[end.used]
        last_first.append(CommitGroup(tuple(ordered[end.first : count]), helper, end.free_ps))
        count, used = end.first, end.used
    return tuple(last_first[::-1])
