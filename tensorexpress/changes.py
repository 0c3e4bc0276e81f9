"""Clusters that change: links whose rate, and workers whose pace, is another one for a while.

One rule holds for all who execute a plan: what is under way when a change comes ends as it began. A packet that
occupies a link ends at the rate at which it started, and a layer that is computed at the pace at which it started.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorexpress.cluster import Cluster
from tensorexpress.errors import ClusterError, shown
from tensorexpress.units import PS_PER_SECOND, format_rate, format_time

Ints = NDArray[np.int64]

#: How many times slower a worker computes is kept in millionths: engines count in whole numbers.
USUAL_PACE = 10**6

#: Links that an error lists.
_MOST_LISTED = 6


@dataclass(frozen=True)
class Change:
    """A link that has another rate, or a worker that has another pace, from a time until another, or for iterations."""

    #: From when on, and until when; None is to the end.
    at_ps: int = 0
    until_ps: int | None = None
    #: In place of that, for workers: the first iteration, and the one before which it ends; None is to the end.
    #: Iterations are those of a trace, the first of the warm-up is 0.
    at_iteration: int | None = None
    until_iteration: int | None = None
    #: The directed links that change, and their rate meanwhile, or which share of their own; () is none.
    links: tuple[int, ...] = ()
    rate_bps: int | None = None
    share: float | None = None
    #: The host whose workers change, and how many times slower they compute meanwhile; None is none.
    worker: int | None = None
    factor: float | None = None

    @property
    def by_iteration(self) -> bool:
        """Whether it comes with an iteration, not at a time."""
        return self.at_iteration is not None or self.until_iteration is not None

    @property
    def pace(self) -> int:
        """How many times slower workers are, in millionths."""
        return round((self.factor or 1) * USUAL_PACE)

    def rate_of(self, usual_bps: int) -> int:
        """Return the rate of a link meanwhile, whose own is this."""
        if self.rate_bps is not None:
            return self.rate_bps
        return usual_bps if self.share is None else max(1, round(usual_bps * self.share))

    def iterations(self, rounds: int) -> range:
        """Return the iterations for which it holds, of so many."""
        last = rounds if self.until_iteration is None else min(rounds, self.until_iteration)
        return range(min(self.at_iteration or 0, last), last)


class ChangeStep(NamedTuple):
    """From a time on, a thing, known by its index, has a value."""

    time_ps: int
    thing: int
    value: int


def rate_steps(changes: Iterable[Change], usual_bps: Sequence[int]) -> list[ChangeStep]:
    """Return when which directed link gets which rate, in the order of time.

    >>> rate_steps([Change(at_ps=5, until_ps=9, links=(1,), share=0.5)], [100, 100])
    [ChangeStep(time_ps=5, thing=1, value=50), ChangeStep(time_ps=9, thing=1, value=100)]
    """
    return _steps(
        ((link, change, change.rate_of(usual_bps[link])) for change in changes for link in change.links),
        lambda link: usual_bps[link],
    )


def pace_steps(changes: Iterable[Change]) -> list[ChangeStep]:
    """Return when the workers of which host get which pace, in millionths, in the order of time.

    >>> pace_steps([Change(at_ps=5, worker=3, factor=2.0)])
    [ChangeStep(time_ps=5, thing=3, value=2000000)]
    """
    timed = ((change.worker, change) for change in changes if not change.by_iteration)
    return _steps(((host, change, change.pace) for host, change in timed if host is not None), lambda _: USUAL_PACE)


def _steps(spans: Iterable[tuple[int, Change, int]], usual: Callable[[int], int]) -> list[ChangeStep]:
    """Return the steps of things, each of which has a usual value outside of its spans."""
    found: dict[tuple[int, int], int] = {}
    for index, change, value in sorted(spans, key=lambda span: span[1].at_ps):
        # One that begins when another ends takes over from it.
        found[change.at_ps, index] = value
        if change.until_ps is not None:
            found[change.until_ps, index] = usual(index)
    return [ChangeStep(time_ps, index, value) for (time_ps, index), value in sorted(found.items())]


def extremes(steps: Iterable[ChangeStep], usual: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the least and the greatest value that every thing ever has; a usual one that never holds does not count.

    >>> extremes([ChangeStep(0, 1, 50)], [100, 100])
    ([100, 50], [100, 50])
    """
    values = [{value} for value in usual]
    for step in steps:
        if step.time_ps == 0:
            values[step.thing] = {step.value}
        else:
            values[step.thing].add(step.value)
    return [min(each) for each in values], [max(each) for each in values]


def carried_ps(steps: Iterable[ChangeStep], usual_bps: int, start_ps: int, size: int) -> int:
    """Return when a link of these steps can have carried so many bytes if it starts at a time and never idles.

    >>> carried_ps([ChangeStep(10**12, 0, 4), ChangeStep(2 * 10**12, 0, 8)], usual_bps=8, start_ps=0, size=2) / 10**12
    2.5
    """
    now_ps, rate_bps, left = start_ps, usual_bps, 8 * PS_PER_SECOND * size
    for step in steps:
        carried = rate_bps * max(0, step.time_ps - now_ps)
        if carried >= left:
            break
        now_ps, rate_bps, left = max(now_ps, step.time_ps), step.value, left - carried
    return now_ps + max(0, left) // rate_bps


def slowed_ps(drawn_ps: int, pace: int) -> int:
    """Return how long a layer takes at a pace; rounded down.

    >>> slowed_ps(3, 1_500_000)
    4
    """
    # In two steps, because the product would not fit where it is compiled.
    return drawn_ps // USUAL_PACE * pace + drawn_ps % USUAL_PACE * pace // USUAL_PACE


class Paces:
    """The pace of every host's workers over time."""

    def __init__(self, changes: Iterable[Change]):
        self._times: dict[int, list[int]] = {}
        self._paces: dict[int, list[int]] = {}
        for time_ps, host, pace in pace_steps(changes):
            self._times.setdefault(host, []).append(time_ps)
            self._paces.setdefault(host, [USUAL_PACE]).append(pace)

    def taken_ps(self, host: int, drawn_ps: int, start_ps: int) -> int:
        """Return how long a layer takes that starts at a time; `drawn_ps` at the usual pace."""
        if host not in self._times:
            return drawn_ps
        return slowed_ps(drawn_ps, self._paces[host][bisect_right(self._times[host], start_ps)])

    def all_taken_ps(self, hosts: Sequence[int], drawn_ps: Ints, starts_ps: Ints) -> Ints:
        """Return the same of many: by (pass, worker, layer), where `hosts` has a host for every worker."""
        taken = drawn_ps.copy()
        for worker, host in enumerate(hosts):
            if host in self._times:
                taken[:, worker] = slowed_all_ps(drawn_ps[:, worker], self._paces_at(host, starts_ps[:, worker]))
        return taken

    def at_fastest_ps(self, hosts: Sequence[int], taken_ps: Ints, starts_ps: Ints) -> Ints:
        """Return what layers would have taken at their worker's fastest pace at the least: what they took, less that.

        By (pass, worker, layer), where `hosts` has a host for every worker.
        """
        fastest = taken_ps.copy()
        for worker, host in enumerate(hosts):
            if host in self._times:
                pace = self._paces_at(host, starts_ps[:, worker])
                fastest[:, worker] = taken_ps[:, worker] // pace * self._fastest(host)
                fastest[:, worker] += taken_ps[:, worker] % pace * self._fastest(host) // pace
        return fastest

    def _paces_at(self, host: int, starts_ps: Ints) -> Ints:
        place = np.searchsorted(self._times[host], starts_ps, side="right")
        return np.array(self._paces[host], dtype=np.int64)[place]

    def _fastest(self, host: int) -> int:
        paces = self._paces[host]
        # The usual pace does not count where another one holds from the start.
        return min(paces[1:] if self._times[host][0] == 0 else paces)


def slowed_all_ps(drawn_ps: Ints, pace: Ints | np.int64) -> Ints:
    """Return `slowed_ps` of arrays."""
    return np.asarray(drawn_ps // USUAL_PACE * pace + drawn_ps % USUAL_PACE * pace // USUAL_PACE)


def links_of(text: str, cluster: Cluster) -> tuple[int, ...]:
    """Return the directed links that a text names: "a>b" is one direction, "a-b" both.

    >>> from tensorexpress.topologies import star
    >>> links_of("h1-s0", star(hosts=2)), links_of("s0>h1", star(hosts=2))
    ((2, 3), (3,))
    """
    found = _links_by_name(cluster).get(text)
    if found is None:
        first = [f"{link.a}-{link.b}" for link in cluster.links[:_MOST_LISTED]]
        more = ", ..." if len(cluster.links) > _MOST_LISTED else ""
        raise ClusterError(
            f"unknown link {shown(text)}; accepted: A-B, or A>B for one direction, where A and B are joined: "
            f"{', '.join(first)}{more}"
        )
    return found


def _links_by_name(cluster: Cluster) -> Mapping[str, tuple[int, ...]]:
    names: dict[str, tuple[int, ...]] = {}
    for index, link in enumerate(cluster.links):
        there, back = 2 * index, 2 * index + 1
        for name, own in (
            (f"{link.a}-{link.b}", (there, back)),
            (f"{link.b}-{link.a}", (there, back)),
            (f"{link.a}>{link.b}", (there,)),
            (f"{link.b}>{link.a}", (back,)),
        ):
            # Several cables between two switches change together.
            names[name] = tuple(sorted({*names.get(name, ()), *own}))
    return names


def change_problems(
    changes: Sequence[Change], cluster: Cluster, workers: Iterable[int], rounds: int
) -> Iterator[tuple[str, str]]:
    """Yield what cannot be among changes: the path of a key, and what was found and is accepted."""
    computing = set(workers)
    sound = True
    for index, change in enumerate(changes):
        for key, problem in (*_contradictions(change, rounds), *_misplaced(change, cluster, computing)):
            sound = False
            yield f"change.{index}.{key}", problem
    if sound:
        yield from _overlaps(changes, cluster)


def _contradictions(change: Change, rounds: int) -> Iterator[tuple[str, str]]:
    """Yield what a change says twice, or not at all."""
    is_link, is_worker = bool(change.links), change.worker is not None
    if is_link == is_worker:
        yield "link", f"found {'link and worker' if is_link else 'neither link nor worker'}; accepted: one of the two"
    for key, value, belongs in (
        ("rate", change.rate_bps, is_link),
        ("share", change.share, is_link),
        ("factor", change.factor, is_worker),
        ("at_iteration", change.at_iteration, is_worker),
        ("until_iteration", change.until_iteration, is_worker),
    ):
        if value is not None and not belongs:
            other = "link, whose rate changes" if key in ("rate", "share") else "worker, who computes"
            yield key, f"found {value:g} without {other.split(',')[0]}; accepted: only with a {other}"
    if is_link and (change.rate_bps is None) == (change.share is None):
        found = "neither rate nor share" if change.rate_bps is None else "rate and share"
        yield "rate", f"found {found}; accepted: one of the two"
    if is_worker and change.factor is None:
        yield "factor", "is missing; accepted: how many times slower the worker computes"
    if change.by_iteration:
        if change.at_ps or change.until_ps is not None:
            yield "at_iteration", "found beside a time; accepted: at and until, or at_iteration and until_iteration"
        first = change.at_iteration or 0
        if first >= rounds:
            yield "at_iteration", f"found {first}; accepted: 0 to {rounds - 1}, as there are {rounds} with the warm-up"
        if change.until_iteration is not None and change.until_iteration <= first:
            yield "until_iteration", f"found {change.until_iteration}; accepted: a later one than at_iteration, {first}"
    elif change.until_ps is not None and change.until_ps <= change.at_ps:
        yield "until", f"found {format_time(change.until_ps)}; accepted: later than at, {format_time(change.at_ps)}"


def _misplaced(change: Change, cluster: Cluster, workers: set[int]) -> Iterator[tuple[str, str]]:
    """Yield what is not in the cluster."""
    for link in change.links:
        if not 0 <= link < 2 * len(cluster.links):
            yield "link", f"found directed link {shown(link)}; accepted: 0 to {2 * len(cluster.links) - 1}"
    if len(set(change.links)) != len(change.links):
        yield "link", "found a directed link twice; accepted: each once"
    if change.worker is not None and change.worker not in workers:
        known = 0 <= change.worker < len(cluster.hosts)
        name = cluster.hosts[change.worker] if known else change.worker
        yield "worker", f"host {shown(name)} is no worker of any job; accepted: a worker's host"


def _overlaps(changes: Sequence[Change], cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield changes of one thing that hold at the same time."""
    spans: dict[tuple[str, str], list[tuple[int, float, int]]] = {}
    for index, change in enumerate(changes):
        if change.by_iteration:
            first, last = change.at_iteration or 0, change.until_iteration
        else:
            first, last = change.at_ps, change.until_ps
        span = (first, float("inf") if last is None else last, index)
        for link in change.links:
            spans.setdefault((cluster.link_names[link], ""), []).append(span)
        if change.worker is not None:
            counted_in = "iterations" if change.by_iteration else "time"
            spans.setdefault((cluster.hosts[change.worker], counted_in), []).append(span)
    for (name, _), own in spans.items():
        for (_, until, one), (at, _, other) in pairwise(sorted(own)):
            if at < until:
                yield f"change.{other}", f"overlaps change.{one}: both are of {name}; accepted: one after the other"
                return


def describe_change(change: Change, cluster: Cluster) -> str:
    """Return a change in words.

    >>> from tensorexpress.topologies import star
    >>> describe_change(Change(at_ps=10**12, until_ps=3 * 10**12, links=(0, 1), rate_bps=10**9), star(hosts=2))
    'h0-s0 at 1 Gbps from 1 s until 3 s'
    """
    if change.worker is not None:
        what = f"{cluster.hosts[change.worker]} {change.factor:g} times slower"
    else:
        rate = f"{change.share:.4g} of its rate" if change.share is not None else format_rate(change.rate_bps or 0)
        what = f"{_name_of(change.links, cluster)} at {rate}"
    return f"{what} {_when(change)}"


def _name_of(links: Sequence[int], cluster: Cluster) -> str:
    first = links[0]
    if len(links) == 1:
        return cluster.link_names[first]
    own = cluster.links[first // 2]
    return f"{own.a}-{own.b}"


def _when(change: Change) -> str:
    if change.by_iteration:
        since = f"from iteration {change.at_iteration or 0}"
        return since if change.until_iteration is None else f"{since} until {change.until_iteration}"
    return when(change.at_ps, change.until_ps)


def when(at_ps: int, until_ps: int | None) -> str:
    """Return from when until when something is, in words.

    >>> when(0, 10**9)
    'from the start until 1 ms'
    """
    since = f"from {format_time(at_ps)}" if at_ps else "from the start"
    return since if until_ps is None else f"{since} until {format_time(until_ps)}"
