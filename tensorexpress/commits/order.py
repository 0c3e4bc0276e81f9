"""The order of commits: as many updates as a bound on their delay allows, the shortest transfers first.

A server commits one update after another, and every commit makes a version. The delay of an update is the number of
versions between the one that it was computed from and the one that it is applied to. A bound tau on it is a bound on
the update's place in the order: with versions up to v0 committed, it is the d-th to commit at the latest, where
d = tau + version - v0 + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from tensorexpress.commits.updates import Bandwidth, Update
from tensorexpress.errors import InputError


@dataclass(frozen=True)
class CommitOrder:
    """Updates in the order in which to commit them, and those that no order can commit in time."""

    commits: tuple[Update, ...]
    drops: tuple[Update, ...] = ()


def latest_position(update: Update, version: int, tau: int) -> int:
    """Return at which place from now, counted from 1, an update must commit at the latest; below 1 it is too late.

    >>> latest_position(Update(host=0, version=5, size_bytes=1), version=7, tau=3)
    2
    """
    return tau + update.version - version + 1


def order(updates: Sequence[Update], version: int, tau: int | None, server: int, bandwidth: Bandwidth) -> CommitOrder:
    """Return the order of updates that wait while the server is at a version; without a tau, any delay will do.

    Nothing is dropped but what must be: the fewest updates and, among ways to do so, the longest transfers. The rest
    goes shortest transfer first, as far as everybody is in time; no other order in time has a lower mean commit time.

    >>> small, large, old = (Update(host, version=v, size_bytes=s) for host, v, s in [(0, 9, 1), (1, 9, 3), (2, 7, 9)])
    >>> [u.host for u in order([large, small, old], 9, tau=2, server=3, bandwidth=lambda a, b: 8).commits]
    [2, 0, 1]
    """
    if tau is not None and tau < 0:
        raise InputError(f"tau: found {tau}; accepted: 0 or more versions, or none for no bound")
    places = len(updates)
    waiting = [
        _Waiting(
            places if tau is None else min(places, latest_position(update, version, tau)),
            update.transfer_ps(server, bandwidth),
            index,
        )
        for index, update in enumerate(updates)
    ]
    kept = _in_time(waiting)
    commits = [updates[index] for index in _shortest_first(kept)]
    staying = {each.index for each in kept}
    return CommitOrder(tuple(commits), tuple(u for index, u in enumerate(updates) if index not in staying))


@dataclass(frozen=True)
class _Waiting:
    """An update as the order sees it: its latest place, its transfer, and where it stood among those given."""

    place: int
    transfer_ps: int
    index: int


def _in_time(waiting: Sequence[_Waiting]) -> list[_Waiting]:
    """Return the most updates that can all commit in time, with the shortest transfers in total.

    So many places are there up to a place, and no more: whenever more updates have to be in them, the longest goes;
    of equal ones the one that must go first, which leaves the others more choice.
    """
    kept: list[tuple[int, int, int]] = []
    by_index = {each.index: each for each in waiting}
    for each in sorted(waiting, key=lambda one: (one.place, one.index)):
        heappush(kept, (-each.transfer_ps, each.place, each.index))
        if len(kept) > max(0, each.place):
            heappop(kept)
    return [by_index[index] for _, _, index in kept]


def _shortest_first(kept: Sequence[_Waiting]) -> list[int]:
    """Return indices in the order of commits, found from its end: last goes the longest that may be last, and so on.

    That is Smith's rule. It puts a short update behind a long one only where the long one would be too late.
    """
    by_place = sorted(kept, key=lambda one: (one.place, one.index))
    last_first: list[int] = []
    free: list[tuple[int, int]] = []
    for place in range(len(kept), 0, -1):
        while by_place and by_place[-1].place >= place:
            each = by_place.pop()
            heappush(free, (-each.transfer_ps, -each.index))
        last_first.append(-heappop(free)[1])
    return last_first[::-1]
