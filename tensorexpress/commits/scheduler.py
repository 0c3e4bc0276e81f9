"""The scheduler's decision on a batch of requests: which updates go, in which order, through whom; and which do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorexpress.commits.aggregate import Aggregation, CommitGroup, aggregate
from tensorexpress.commits.order import order
from tensorexpress.commits.updates import Bandwidth, Update


@dataclass(frozen=True)
class CommitPlan:
    """What is decided for good, and what waits for the next decision, in the order that is best by now."""

    groups: tuple[CommitGroup, ...]
    waiting: tuple[Update, ...]
    drops: tuple[Update, ...]


def decide(
    requests: Sequence[Update], version: int, tau: int | None, way: Aggregation, bandwidth: Bandwidth
) -> CommitPlan:
    """Return what to do with all updates that wait, when so many versions are committed or decided already.

    Only what has to begin now is decided for good: everything up to the last group that a helper sums or, without
    one, the first update. The others may still be overtaken by what comes in meanwhile.

    >>> requests = [Update(host, version=0, size_bytes=125) for host in range(5)]
    >>> plan = decide(requests, 0, tau=4, way=Aggregation(server=9, helpers=(8,)), bandwidth=lambda a, b: 1000)
    >>> [(len(group.updates), group.helper) for group in plan.groups], len(plan.waiting)
    ([(1, None), (1, None), (2, 8)], 1)
    """
    ordered = order(requests, version, tau, way.server, bandwidth)
    groups = aggregate(ordered.commits, way, bandwidth)
    summed = [number for number, group in enumerate(groups, 1) if group.helper is not None]
    fixed = groups[: max(summed, default=1)]
    count = sum(len(group.updates) for group in fixed)
    return CommitPlan(fixed, ordered.commits[count:], ordered.drops)
