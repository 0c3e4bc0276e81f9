"""Placements: how much of a model every server gets, where it is summed on the way, and by which links it goes.

Two phases. Phase 1, rarely: the split of the model over servers. Where one bottleneck decides, a server's share follows
its link (the closed form that Lagrange multipliers give); in general it is what a linear program says. Phase 2,
whenever the network changes: places and paths, drawn by a linear program's flows (`placement_programs`,
`placement_rounding`). docs/placement.md has the forms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from tensorexpress.errors import PlanError, unknown
from tensorexpress.fabric import LINK, SUM_RATE, Fabric, Floats, Resource, check_ways
from tensorexpress.placement_moves import improved
from tensorexpress.placement_programs import Parties, Relaxed, by_places, by_trees
from tensorexpress.placement_rounding import (
    Chosen,
    UpTree,
    best_of_draws,
    draw_places,
    draw_tree,
    rate_of,
    shared_again,
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
    #: What no placement beats, whatever shares, places and paths it has.
    bound_bps: float
    #: Whether the closed form gave the shares, and what was chosen kept them.
    is_closed_form: bool
    seconds: float

    @property
    def of_optimum(self) -> float:
        """Return the rate over the bound."""
        return self.rate_bps / self.bound_bps

    @property
    def usage(self) -> Floats:
        """Return what is used of every resource, 1 for all of it."""
        loads = np.array([choice.loads for choice in self.choices]).T @ np.array(self.shares)
        limits = self.fabric.limits_bps
        used: Floats = np.divide(loads * self.rate_bps, limits, out=np.zeros_like(limits), where=limits > 0)
        return used

    @property
    def bottleneck(self) -> Resource:
        """Return what is used up first."""
        return self.fabric.resources[int(np.argmax(np.round(self.usage, 9)))]


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
    if way == "trees":
        return by_trees(fabric, parties, shares)
    return by_places(fabric, parties, shares, sums=way == "once")


def _split(fabric: Fabric, parties: Parties, way: str) -> tuple[Relaxed, float, bool]:
    """Phase 1: return the optimum with the shares to take, the bound, and whether the closed form gave them.

    Where other shares are as good, those of the closed form are taken, or equal ones: they use all servers.
    """
    most_bps, shares = closed_form(fabric, parties, way)
    by_form = relax(fabric, parties, way, shares)
    # Who works on a server's host sends nothing to it over the network, which the closed form does not know.
    if by_form.rate_bps >= most_bps * (1 - _SAME) and not set(parties.workers) & set(parties.servers):
        return by_form, max(most_bps, by_form.rate_bps), True
    free = relax(fabric, parties, way)
    bound_bps = max(free.rate_bps, by_form.rate_bps)
    if by_form.rate_bps >= bound_bps * (1 - _SAME):
        return by_form, bound_bps, True
    equal = relax(fabric, parties, way, equal_shares(parties))
    return (equal if equal.rate_bps >= bound_bps * (1 - _SAME) else free), bound_bps, False


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
    """Decide a placement; PlanError names what makes it impossible.

    Shares that are given stay, and only places and paths are decided (phase 2). `trees` are those of `atp`.
    """
    # What is loaded once is no part of how long planning takes.
    import scipy.optimize  # noqa: F401

    started = time.perf_counter()
    for what, value, accepted in (("placement", name, PLACEMENTS), ("way to sum", way, WAYS)):
        if value not in accepted or value == "none" == name:
            raise PlanError(f"{parties.name}: {unknown(what, value, accepted)}")
    if name == "load":
        way = "none"
    if not parties.servers:
        raise PlanError(f"{parties.name}: has no servers; accepted for a placement: one or more")
    check_ways(fabric, parties.name, parties.workers, parties.servers, by_trees=way == "trees")
    if name != "inart" and shares is None:
        shares = equal_shares(parties)
    if shares is None:
        relaxed, bound_bps, is_closed_form = _split(fabric, parties, way)
    else:
        relaxed = _for_shares(fabric, parties, name, way, shares)
        bound_bps, is_closed_form = max(relaxed.rate_bps, relax(fabric, parties, way).rate_bps), False

    def rated(choices: Sequence[Chosen]) -> tuple[float, tuple[float, ...]]:
        if shares is None:
            return shared_again(choices, relaxed.shares, fabric)
        return rate_of(choices, relaxed.shares, fabric), relaxed.shares

    if trees is not None:
        choices = tuple(tree_choice(fabric, parties, server, tree) for server, tree in enumerate(trees))
    else:
        draw, servers = _draw(fabric, parties, way, relaxed), len(parties.servers)
        choices = best_of_draws(draw, lambda drawn: rated(drawn)[0], servers, relaxed.rate_bps, seed, draws)
        if way != "trees":
            choices = _moved(fabric, parties if name != "atp" else replace(parties, at_edges=True), way, choices, rated)
    rate_bps, taken = rated(choices)
    is_closed_form = is_closed_form and taken == relaxed.shares
    seconds = time.perf_counter() - started
    found = Placement(name, way, parties, fabric, taken, choices, rate_bps, bound_bps, is_closed_form, seconds)
    if name != "inart" or shares is not None or way != "once" or found.of_optimum > 1 - _SAME:
        return found
    # What is drawn from equal shares may be better than what is drawn from the optimum's.
    other = place(fabric, parties, name, way, seed=seed, draws=draws, shares=equal_shares(parties))
    better = max(found, other, key=lambda each: each.rate_bps)
    return replace(better, seconds=time.perf_counter() - started)


def _moved(
    fabric: Fabric,
    parties: Parties,
    way: str,
    choices: tuple[Chosen, ...],
    rated: Callable[[Sequence[Chosen]], tuple[float, tuple[float, ...]]],
) -> tuple[Chosen, ...]:
    """Return what was drawn after moves that make it better; shares follow, and moves once more."""
    rng = np.random.default_rng(0)
    for _ in range(2):
        rate_bps, shares = rated(choices)
        better = improved(fabric, parties, choices, shares, rng, sums=way == "once")
        if rated(better)[0] <= rate_bps:
            break
        choices = better
    return choices


def _for_shares(fabric: Fabric, parties: Parties, name: str, way: str, shares: Sequence[float]) -> Relaxed:
    if way == "once" and name == "atp":
        return by_places(fabric, replace(parties, at_edges=True), shares)
    return relax(fabric, parties, way, shares)


def _draw(fabric: Fabric, parties: Parties, way: str, relaxed: Relaxed) -> Callable[[int, Generator | None], Chosen]:
    """Return what draws for a server with a random generator."""
    if way == "trees":
        used = fabric.of_summing_switches()
        return lambda server, rng: draw_tree(used, parties, server, relaxed, rng)
    return lambda server, rng: draw_places(fabric, parties, server, relaxed, rng)


def what_more_brings(placement: Placement, spare: Sequence[int] = ()) -> Iterator[Better]:
    """Yield what the bound would be with a tenth more of something, or with one server more on a spare host.

    Single links and switches are those with the highest price in the linear program. Where several are used up at the
    same time, more of one alone brings nothing; so all of a kind are looked at as well.
    """
    fabric, parties, way = placement.fabric, placement.parties, placement.way
    prices = relax(fabric, parties, way).prices * fabric.limits_bps
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
        yield Better(fabric.name_of(resource), relax(_with_more(fabric, [resource]), parties, way).rate_bps)
    for what, resources in kinds:
        if resources:
            yield Better(what, relax(_with_more(fabric, resources), parties, way).rate_bps)
    best = max((_with_server(placement, host) for host in _one_at_each_switch(fabric, spare)), default=None)
    if best is not None:
        yield Better(f"a server on {fabric.nodes[best[1]]}", best[0])


def _with_server(placement: Placement, host: int) -> tuple[float, int]:
    parties = placement.parties
    more = replace(parties, servers=(*parties.servers, host))
    return relax(placement.fabric, more, placement.way).rate_bps, host


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
