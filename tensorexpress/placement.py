"""Placements: how much of a model every server gets, where it is summed on the way, and by which links it goes.

Two phases. Phase 1, rarely: the split of the model over servers. Where one bottleneck decides, a server's share follows
its link (the closed form that Lagrange multipliers give); in general it is what a linear program says. Phase 2,
whenever the network changes: places and paths, drawn by a linear program's flows (`placement_programs`,
`placement_rounding`). Jobs that share a fabric are placed together, so that the slowest is as fast as can be, and
then the next. docs/placement.md has the forms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from tensorexpress.errors import PlanError, unknown
from tensorexpress.fabric import LINK, SUM_RATE, Fabric, Floats, Resource, check_ways
from tensorexpress.placement_moves import improved
from tensorexpress.placement_programs import Parties, Relaxed, optimum
from tensorexpress.placement_rounding import (
    Choices,
    Chosen,
    Shares,
    UpTree,
    best_of_draws,
    draw_places,
    draw_tree,
    is_fairer,
    rates_of,
    rates_with,
    shared_again,
    taken_by,
    tree_choice,
)
from tensorexpress.policy import PLACEMENTS

#: How gradients are summed on their way, in words.
WAYS = {
    "none": "by servers alone",
    "once": "at one switch at the most, of every worker's own choice, as in InArt's paper",
    "trees": "by every switch on the way, as ours do",
}

#: Draws of which the best is kept.
DRAWS = 64

#: How near to the optimum counts as the optimum.
_SAME = 1e-6

#: How much more of a resource is looked at.
_MORE = 1.1


@dataclass(frozen=True)
class Placement:
    """What was decided for one job on one fabric."""

    name: str
    way: str
    parties: Parties
    fabric: Fabric
    #: What every server gets of the model; they add up to 1.
    shares: tuple[float, ...]
    #: By server.
    choices: tuple[Chosen, ...]
    #: Bit/s on the wire at which every worker sends.
    rate_bps: float
    #: What no placement beats, whatever shares, places and paths it has; with several jobs, what is fairest to all.
    bound_bps: float
    #: Whether the closed form gave the shares, and what was chosen kept them.
    is_closed_form: bool
    #: How long planning took, for all jobs together.
    seconds: float
    #: Bit/s that other jobs take of every resource.
    others_bps: Floats
    #: What the job would reach if it were alone on the fabric.
    alone_bps: float

    @property
    def of_optimum(self) -> float:
        """Return the rate over the bound."""
        return self.rate_bps / self.bound_bps

    @property
    def pays(self) -> float:
        """Return the part of its own rate that a job leaves to others."""
        return 1 - self.rate_bps / self.alone_bps

    @property
    def usage(self) -> Floats:
        """Return what all jobs use of every resource, 1 for all of it."""
        used_bps = taken_by(self.choices, self.shares) * self.rate_bps + self.others_bps
        limits = self.fabric.limits_bps
        used: Floats = np.divide(used_bps, limits, out=np.zeros_like(limits), where=limits > 0)
        return used

    @property
    def bottleneck(self) -> Resource:
        """Return what is used up first of what the job uses."""
        own = taken_by(self.choices, self.shares) > 0
        return self.fabric.resources[int(np.argmax(np.where(own, np.round(self.usage, 9), -1.0)))]


class Better(NamedTuple):
    """What the bound would be if there were more of something."""

    what: str
    bound_bps: float


def closed_form(fabric: Fabric, parties: Parties, way: str) -> tuple[float, tuple[float, ...]]:
    """Return the rate and the shares where nothing but servers' links, or workers' links, limits them.

    The rate is the least of limit / load over servers' links, x_s n / B_s without sums and x_s / B_s with them. By
    Lagrange multipliers all of them bind, so that x_s is B_s over the sum of all B.

    >>> from tensorexpress.topologies import star
    >>> from tensorexpress.scenario import make_scenario
    >>> scenario = make_scenario(job={"workers": 6, "servers": 2})
    >>> from tensorexpress.fabric import fabric_of
    >>> from collections import Counter
    >>> fabric = fabric_of(scenario.cluster, scenario.directed(), Counter(), 64, 0)
    >>> closed_form(fabric, Parties("job", tuple(range(6)), (6, 7)), "none")[1]
    (0.5, 0.5)
    """
    links = np.array([fabric.rate_bps[fabric.nic[host] >> 1] for host in parties.servers])
    if way == "none":
        links = links / len(parties.workers)
    slowest_bps = min(fabric.rate_bps[fabric.nic[host] >> 1] for host in parties.workers)
    total = float(links.sum())
    return min(total, slowest_bps), tuple((links / total).tolist())


def relax(fabric: Fabric, parties: Parties, way: str, shares: Sequence[float] | None = None) -> Relaxed:
    """Return the optimum of the linear program of a way to sum."""
    return optimum(fabric, [parties], way, [shares])[0]


def _split(fabric: Fabric, jobs: Sequence[Parties], way: str) -> tuple[tuple[Relaxed, ...], list[float], bool]:
    """Phase 1: return the optimum with the shares to take, the bounds, and whether the closed form gave them.

    Where other shares are as good, those of the closed form are taken, or equal ones: they use all servers.
    """
    most_bps, shares = zip(*(closed_form(fabric, parties, way) for parties in jobs), strict=True)
    by_form = optimum(fabric, jobs, way, shares)
    # Who works on a server's host sends nothing to it over the network, which the closed form does not know.
    is_known = not any(set(parties.workers) & set(parties.servers) for parties in jobs)
    if is_known and _reach(by_form, most_bps):
        return by_form, [max(most, each.rate_bps) for most, each in zip(most_bps, by_form, strict=True)], True
    free = optimum(fabric, jobs, way, [None] * len(jobs))
    bounds_bps = [each.rate_bps for each in free]
    if _reach(by_form, bounds_bps):
        return by_form, [max(pair) for pair in zip(bounds_bps, (each.rate_bps for each in by_form), strict=True)], True
    equal = optimum(fabric, jobs, way, [equal_shares(parties) for parties in jobs])
    return (equal if _reach(equal, bounds_bps) else free), bounds_bps, False


def _reach(found: Sequence[Relaxed], bounds_bps: Sequence[float]) -> bool:
    return all(each.rate_bps >= bound * (1 - _SAME) for each, bound in zip(found, bounds_bps, strict=True))


def equal_shares(parties: Parties) -> tuple[float, ...]:
    """Return the same share for every server."""
    return (1 / len(parties.servers),) * len(parties.servers)


def place(
    fabric: Fabric,
    parties: Parties,
    name: str = "inart",
    way: str = "trees",
    *,
    seed: int = 1,
    draws: int = DRAWS,
    shares: Sequence[float] | None = None,
    trees: Sequence[UpTree] | None = None,
) -> Placement:
    """Decide the placement of one job that has a fabric for itself: see `place_together`."""
    own, ready = None if shares is None else [tuple(shares)], None if trees is None else [trees]
    return place_together(fabric, [parties], name, way, seed=seed, draws=draws, shares=own, trees=ready)[0]


def place_together(
    fabric: Fabric,
    jobs: Sequence[Parties],
    name: str = "inart",
    way: str = "trees",
    *,
    seed: int = 1,
    draws: int = DRAWS,
    shares: Shares | None = None,
    trees: Sequence[Sequence[UpTree]] | None = None,
) -> tuple[Placement, ...]:
    """Decide the placements of jobs that share a fabric; PlanError names what makes it impossible.

    Shares that are given stay, and only places and paths are decided (phase 2). `trees` are those of `atp`.
    """
    # What is loaded once is no part of how long planning takes.
    import scipy.optimize  # noqa: F401

    started = time.perf_counter()
    way = _checked(fabric, jobs, name, way)
    alone: list[Placement] = []
    for job, parties in enumerate(jobs if len(jobs) > 1 else ()):
        parts, ready = None if shares is None else shares[job], None if trees is None else trees[job]
        alone.append(place(fabric, parties, name, way, seed=seed, draws=draws, shares=parts, trees=ready))
    given = shares
    if name != "inart" and shares is None:
        given = [equal_shares(parties) for parties in jobs]
    relaxed, bounds_bps, is_closed_form = _optimum(fabric, jobs, name, way, given)
    planned = [each.shares for each in relaxed]

    def rated(choices: Choices) -> tuple[tuple[float, ...], Shares]:
        if given is None:
            return shared_again(choices, planned, fabric)
        return rates_with(choices, planned, fabric), planned

    choices: list[Sequence[Chosen]]
    if trees is not None:
        choices = [
            [tree_choice(fabric, parties, server, tree) for server, tree in enumerate(own)]
            for parties, own in zip(jobs, trees, strict=True)
        ]
    else:
        known = [choice for each in alone for choice in each.choices]
        choices = _drawn(fabric, jobs, way, relaxed, rated, seed, draws, known)
        if way != "trees":
            edges = [replace(parties, at_edges=name == "atp") for parties in jobs]
            choices = _moved(fabric, edges, way, choices, rated)
    rates_bps, taken = rated(choices)
    loads = [taken_by(own, parts) for own, parts in zip(choices, taken, strict=True)]
    carried = np.array(rates_bps)[:, None] * loads
    found = []
    for job, parties in enumerate(jobs):
        # What was chosen for all may by chance suit a job better than what was drawn for it alone.
        alone_bps = max(*rates_of([loads[job]], fabric), *(each.rate_bps for each in alone[job : job + 1]), 0.0)
        found.append(
            Placement(
                name,
                way,
                parties,
                fabric,
                taken[job],
                tuple(choices[job]),
                rates_bps[job],
                bounds_bps[job],
                is_closed_form and taken[job] == planned[job],
                time.perf_counter() - started,
                carried.sum(axis=0) - carried[job],
                alone_bps,
            )
        )
    if name != "inart" or shares is not None or way != "once" or all(each.of_optimum > 1 - _SAME for each in found):
        return tuple(found)
    # What is drawn from equal shares may be better than what is drawn from the optimum's.
    equal = [equal_shares(parties) for parties in jobs]
    other = place_together(fabric, jobs, name, way, seed=seed, draws=draws, shares=equal)
    better = other if is_fairer([each.rate_bps for each in other], rates_bps) else found
    return tuple(replace(each, seconds=time.perf_counter() - started) for each in better)


def _optimum(
    fabric: Fabric, jobs: Sequence[Parties], name: str, way: str, shares: Shares | None
) -> tuple[tuple[Relaxed, ...], list[float], bool]:
    """Return the optimum to draw from, the bounds, and whether shares are those of the closed form."""
    if shares is None:
        return _split(fabric, jobs, way)
    searched = [replace(parties, at_edges=way == "once" and name == "atp") for parties in jobs]
    relaxed = optimum(fabric, searched, way, shares)
    return relaxed, [each.rate_bps for each in optimum(fabric, jobs, way, [None] * len(jobs))], False


def _checked(fabric: Fabric, jobs: Sequence[Parties], name: str, way: str) -> str:
    """Return the way to sum; refuse what cannot be placed."""
    for parties in jobs:
        for what, value, accepted in (("placement", name, PLACEMENTS), ("way to sum", way, WAYS)):
            if value not in accepted or value == "none" == name:
                raise PlanError(f"{parties.name}: {unknown(what, value, accepted)}")
        if name == "load":
            way = "none"
        if not parties.servers:
            raise PlanError(f"{parties.name}: has no servers; accepted for a placement: one or more")
        check_ways(fabric, parties.name, parties.workers, parties.servers, by_trees=way == "trees")
    return way


def _by_job(choices: Sequence[Chosen], jobs: Sequence[Parties]) -> list[Sequence[Chosen]]:
    """Return what was chosen for the servers of all jobs job by job."""
    each = iter(choices)
    return [list(islice(each, len(parties.servers))) for parties in jobs]


def _moved(
    fabric: Fabric,
    jobs: Sequence[Parties],
    way: str,
    choices: list[Sequence[Chosen]],
    rated: Callable[[Choices], tuple[tuple[float, ...], Shares]],
) -> list[Sequence[Chosen]]:
    """Return what was drawn after moves that make it better, job by job on what others leave; shares follow, and moves
    once more."""
    rng = np.random.default_rng(0)
    for _ in range(2):
        before = choices
        for job, parties in enumerate(jobs):
            rates, shares = rated(choices)
            carried = [rates[each] * taken_by(choices[each], shares[each]) for each in range(len(jobs)) if each != job]
            left = fabric.less(np.sum(carried, axis=0)) if carried else fabric
            moved = improved(left, parties, choices[job], shares[job], rng, sums=way == "once")
            better = [*choices[:job], moved, *choices[job + 1 :]]
            if is_fairer(rated(better)[0], rates):
                choices = better
        if choices is before:
            break
    return choices


def _drawn(
    fabric: Fabric,
    jobs: Sequence[Parties],
    way: str,
    relaxed: Sequence[Relaxed],
    rated: Callable[[Choices], tuple[tuple[float, ...], Shares]],
    seed: int,
    draws: int,
    known: Sequence[Chosen],
) -> list[Sequence[Chosen]]:
    """Return what is drawn from an optimum for the servers of every job."""
    used = fabric.of_summing_switches() if way == "trees" else fabric
    draw = draw_tree if way == "trees" else draw_places
    each = [
        (parties, server, own)
        for parties, own in zip(jobs, relaxed, strict=True)
        for server in range(len(parties.servers))
    ]
    found = best_of_draws(
        lambda number, rng: draw(used, *each[number], rng),
        lambda choices: rated(_by_job(choices, jobs))[0],
        len(each),
        [own.rate_bps for own in relaxed],
        seed,
        draws,
        known,
    )
    return _by_job(found, jobs)


def what_more_brings(placements: Sequence[Placement], job: int = 0, spare: Sequence[int] = ()) -> Iterator[Better]:
    """Yield what a job's bound would be with a tenth more of something, or with one server more on a spare host.

    `placements` are those of all jobs on the fabric. Single links and switches are those with the highest price in the
    linear program. Where several are used up at the same time, more of one alone brings nothing; so all of a kind are
    looked at as well.
    """
    fabric, way = placements[job].fabric, placements[job].way
    jobs = [placement.parties for placement in placements]
    parties = jobs[job]

    def relaxed(fabric: Fabric, servers: tuple[int, ...] = parties.servers) -> Relaxed:
        asked = [*jobs[:job], replace(parties, servers=servers), *jobs[job + 1 :]]
        return optimum(fabric, asked, way, [None] * len(jobs))[job]

    prices = relaxed(fabric).prices * fabric.limits_bps
    dearest = [int(index) for index in np.argsort(-prices, kind="stable")[:3] if prices[index] > 0]
    nics = {host: fabric.nic[host] >> 1 for host in range(fabric.hosts)}
    trunks = [link for link, ends in enumerate(fabric.links) if min(ends) >= fabric.hosts]
    kinds = [
        ("all links of workers", [Resource(LINK, nics[host]) for host in parties.workers]),
        ("all links of servers", [Resource(LINK, nics[host]) for host in parties.servers]),
        ("all links between switches", [Resource(LINK, link) for link in trunks]),
        ("all switches' summing rate", [each for each in fabric.resources if each.kind == SUM_RATE]),
    ]
    for index in dearest:
        resource = fabric.resources[index]
        yield Better(fabric.name_of(resource), relaxed(_with_more(fabric, [resource])).rate_bps)
    for what, resources in kinds:
        if resources:
            yield Better(what, relaxed(_with_more(fabric, resources)).rate_bps)
    hosts = _one_at_each_switch(fabric, spare)
    best = max(((relaxed(fabric, (*parties.servers, host)).rate_bps, host) for host in hosts), default=None)
    if best is not None:
        yield Better(f"a server on {fabric.nodes[best[1]]}", best[0])


def _one_at_each_switch(fabric: Fabric, hosts: Sequence[int]) -> list[int]:
    """Return the host with the fastest link at every switch; some, where there are many."""
    best: dict[int, int] = {}
    for host in sorted(hosts, key=lambda host: fabric.rate_bps[fabric.nic[host] >> 1]):
        best[fabric.switch_of(host)] = host
    return sorted(best.values())[:: 1 + len(best) // 8]


def _with_more(fabric: Fabric, resources: Sequence[Resource]) -> Fabric:
    """Return the fabric with a tenth more of some resources."""
    links = {each.number for each in resources if each.kind == LINK}
    sums = {each.number for each in resources if each.kind == SUM_RATE}
    slots = {each.number for each in resources} - links - sums if not links | sums else set()

    def more(values: Sequence[float], which: set[int]) -> tuple[float, ...]:
        return tuple(value * _MORE if index in which else value for index, value in enumerate(values))

    return replace(
        fabric,
        rate_bps=more(fabric.rate_bps, links),
        sum_bps=more(fabric.sum_bps, sums),
        slots_bps=more(fabric.slots_bps, slots),
    )
