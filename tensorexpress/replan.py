"""Phase 2 again: other routes for a plan that is being carried out, when links have other loads or rates.

What hosts know stays: shares, slots, who sends to which switch. So only the switches between may change, and they do in
one way: a tree keeps its shape, and a switch of it that has no worker may give its place to another one that is joined
to the same neighbours. A switch that has had a place in a tree never gets another one in it. Then a bit of a slot
stands for the same workers in a switch at any time, and whatever is under way while switches change one by one, nothing
is added up twice. Where nothing is summed on its way, paths are chosen anew, as phase 2 does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from tensorexpress.errors import PlanError
from tensorexpress.fabric import Fabric, Floats, fabric_of
from tensorexpress.paths import Paths
from tensorexpress.placed import paths_of, taken_by_background
from tensorexpress.placement import place_together
from tensorexpress.placement_programs import Parties
from tensorexpress.placement_rounding import (
    Chosen,
    SumPlaces,
    UpTree,
    is_fairer,
    places_choice,
    rates_of,
    rates_with,
    taken_by,
    tree_choice,
)
from tensorexpress.plan import JobPlan, Plan
from tensorexpress.scenario import Scenario
from tensorexpress.slots import room_of
from tensorexpress.sums import SumPlan

#: Part of the smallest rate that other routes have to gain: less is not worth a change.
WORTH_IT = 0.05

#: Places of a tree that are looked at, and how often all trees are.
_MOST_PLACES = 512
_ROUNDS = 6

#: How much more a busy link counts than several that are not, where rates are the same.
_POWER = 8

#: Rates and loads within this part are the same.
_SAME = 1e-6


#: A tree, counted over all jobs, and a switch -> its place among the switches of the tree.
Places = Mapping[tuple[int, int], int]


def places_of(plan: Plan) -> dict[tuple[int, int], int]:
    """Return which places switches have in the trees of a plan."""
    trees = [tree for job in plan.jobs for tree in job.sums]
    return {
        (number, each.switch): place for number, tree in enumerate(trees) for place, each in enumerate(tree.switches)
    }


@dataclass(frozen=True)
class Replanned:
    """What was decided for other loads or rates of links."""

    #: With other routes, or the same plan where these gain too little.
    plan: Plan
    #: Bit/s at which workers of every job can send now, by the routes that there were, and by those of the plan.
    before_bps: tuple[float, ...]
    after_bps: tuple[float, ...]
    #: What goes another way, for people.
    moved: tuple[str, ...]
    seconds: float


def replan(
    plan: Plan,
    taken_bps: Mapping[int, float],
    rates_bps: Sequence[int] | None = None,
    *,
    worth: float = WORTH_IT,
    places: Places | None = None,
) -> Replanned:
    """Return a plan with the best routes for links of which others take so much, by directed link, or of other rates.

    `places` are those that switches have had in earlier plans with which the same hosts run. PlanError says which plans
    have no routes to choose.
    """
    started = time.perf_counter()
    scenario = plan.scenario
    if plan.policy.in_switches and not plan.policy.sums_end_at_servers:
        raise PlanError(
            f"policy {plan.policy.name!r} has sums end in switches, whose routes are not planned again; accepted: "
            "sum=front, sum=hashed, or sum=none"
        )
    if any(not job.job.servers for job in plan.jobs):
        raise PlanError("a job has no servers, whose routes could be planned again; accepted: servers in all jobs")
    if any(0 < len(job.summed) < len(job.slices) for job in plan.jobs):
        raise PlanError("a job sums some rows in switches and sends others; accepted to plan again: all or none")
    directed = scenario.directed()
    if rates_bps is not None:
        directed = directed._replace(rate_bps=tuple(rates_bps))
    taken = Counter({link: round(bps) for link, bps in taken_bps.items()})
    fabric = fabric_of(scenario.cluster, directed, taken, room_of(scenario.cluster), scenario.cluster.switch_rate_bps)
    if plan.policy.in_switches:
        before_bps, after_bps, other = _other_trees(plan, fabric, {**(places or {}), **places_of(plan)})
    else:
        before_bps, after_bps, other = _other_paths(plan, fabric)
    is_better = is_fairer(after_bps, before_bps, worth)
    return Replanned(
        other if is_better else plan,
        before_bps,
        after_bps if is_better else before_bps,
        tuple(_moves(plan, other)) if is_better else (),
        time.perf_counter() - started,
    )


@dataclass(frozen=True)
class NewRoutes:
    """Routes that were planned again, and from when on packets take them."""

    #: When links or background traffic changed.
    changed_ps: int
    from_ps: int
    replanned: Replanned


def new_routes(plan: Plan, reaction_ps: int) -> tuple[NewRoutes, ...]:
    """Return the other routes that a plan gets, each so long after links or background traffic of its scenario change.

    PlanError says which plans have no routes to choose.
    """
    return tuple(NewRoutes(time_ps, time_ps + reaction_ps, found) for time_ps, found in follow(plan) if found.moved)


def moments(scenario: Scenario) -> list[int]:
    """Return when links or background traffic of a scenario change, in ps."""
    ends = (end for source in scenario.background for end in (source.at_ps, source.until_ps) if end)
    return sorted({*(step.time_ps for step in scenario.rate_steps()), *ends})


def follow(plan: Plan) -> Iterator[tuple[int, Replanned]]:
    """Yield when links or background traffic of the plan's scenario change, in ps, and what is planned again then."""
    scenario, rates_bps = plan.scenario, list(plan.scenario.directed().rate_bps)
    steps, places = scenario.rate_steps(), places_of(plan)
    for time_ps in moments(scenario):
        for step in steps:
            if step.time_ps == time_ps:
                rates_bps[step.thing] = step.value
        there = [
            source
            for source in scenario.background
            if source.at_ps <= time_ps and (source.until_ps is None or time_ps < source.until_ps)
        ]
        found = replan(plan, taken_by_background(there, plan.paths), rates_bps, places=places)
        places |= places_of(found.plan)
        plan = found.plan
        yield time_ps, found


# Trees


def embeddings(
    fabric: Fabric, tree: UpTree, fixed: set[int], may_take: Callable[[int, int], bool]
) -> Iterator[dict[int, int]]:
    """Yield the ways to lay a tree: by switch of it, but for the root, the arc up from whoever has its place.

    The root and `fixed` switches keep their places; `may_take` says of another switch whether it may have that of one.
    """
    below: dict[int, list[int]] = {}
    for switch, arc in tree.up.items():
        below.setdefault(fabric.target(arc), []).append(switch)
    order = [tree.root]
    for switch in order:
        order += below.get(switch, [])
    parent = {switch: fabric.target(arc) for switch, arc in tree.up.items()}
    arcs_into: dict[int, list[int]] = {}
    for arcs in fabric.out_arcs.values():
        for arc in arcs:
            arcs_into.setdefault(fabric.target(arc), []).append(arc)
    stays = {tree.root, *fixed}

    def laid(number: int, image: dict[int, int], up: dict[int, int]) -> Iterator[dict[int, int]]:
        if number == len(order):
            yield dict(up)
            return
        switch = order[number]
        for arc in arcs_into.get(image[parent[switch]], []):
            place = fabric.source(arc)
            if switch in stays:
                fits = place == switch
            else:
                fits = place not in stays and place not in image.values() and may_take(place, switch)
                near = {fabric.target(out) for out in fabric.out_arcs[place]}
                fits = fits and near.issuperset(child for child in below.get(switch, ()) if child in stays)
            if fits:
                yield from laid(number + 1, {**image, switch: place}, {**up, switch: arc})

    return laid(1, {tree.root: tree.root}, {})


class _Trees:
    """The trees of all jobs while other places are looked for."""

    def __init__(self, plan: Plan, fabric: Fabric, places: Places):
        self.plan, self.fabric, self.places = plan, fabric, places
        self.plans = [tree for job in plan.jobs for tree in job.sums]
        self.jobs = [number for number, job in enumerate(plan.jobs) for _ in job.sums]
        hosts = fabric.hosts
        self.trees = [
            UpTree(hosts + tree.switches[0].switch, {hosts + each.switch: each.up for each in tree.switches[1:]})
            for tree in self.plans
        ]
        self.parties = [
            Parties(job.job.name, job.job.hosts, tuple(tree.server for tree in job.sums)) for job in plan.jobs
        ]
        self.shares = [_shares(job) for job in plan.jobs]
        self.up = [dict(tree.up) for tree in self.trees]

    def slots(self, tree: int) -> set[int]:
        """Return the slots of a tree, in which no other may sum where they meet; none where these are hashed."""
        own = self.plans[tree]
        if own.cells:
            return set()
        return {slot for pool in own.pools for slot in range(pool.first_slot, pool.first_slot + pool.slots)}

    def may_be(self, tree: int, up: Mapping[int, int]) -> bool:
        """Whether a tree may be laid so: it meets none that has the same slots."""
        switches = {self.trees[tree].root, *map(self.fabric.source, up.values())}
        return not any(
            switches & {self.trees[other].root, *map(self.fabric.source, self.up[other].values())}
            and self.slots(tree) & self.slots(other)
            for other in range(len(self.trees))
            if other != tree
        )

    def may_take(self, tree: int, other: int, switch: int) -> bool:
        """Whether another switch may have the place of one in a tree: it can sum, and had no other place in it."""
        hosts = self.fabric.hosts
        place = self.places[tree, switch - hosts]
        return self.fabric.can_sum(other) and self.places.get((tree, other - hosts), place) == place

    def taken(self) -> list[Floats]:
        """Return what each bit/s of every job takes."""
        choices: list[list[Chosen]] = [[] for _ in self.parties]
        for tree, job in enumerate(self.jobs):
            laid = UpTree(self.trees[tree].root, {self.fabric.source(arc): arc for arc in self.up[tree].values()})
            choices[job].append(tree_choice(self.fabric, self.parties[job], len(choices[job]), laid))
        return [taken_by(own, shares) for own, shares in zip(choices, self.shares, strict=True)]

    def improve(self) -> None:
        """Lay trees anew, one at a time, as long as that is fairer, or leaves links less busy."""
        for _ in range(_ROUNDS):
            before = [dict(up) for up in self.up]
            for tree, own in enumerate(self.trees):
                fixed = {self.fabric.switch_of(host) for host in self.parties[self.jobs[tree]].workers}
                best, rates, busy = self.up[tree], *self._rated()
                for up in islice(embeddings(self.fabric, own, fixed, partial(self.may_take, tree)), _MOST_PLACES):
                    if not self.may_be(tree, up):
                        continue
                    self.up[tree] = up
                    other_rates, other_busy = self._rated(rates)
                    is_as_fair = not is_fairer(rates, other_rates, _SAME)
                    if is_fairer(other_rates, rates, _SAME) or (is_as_fair and other_busy < busy * (1 - _SAME)):
                        best, rates, busy = up, *self._rated()
                self.up[tree] = best
            if self.up == before:
                break

    def _rated(self, at_bps: Sequence[float] | None = None) -> tuple[tuple[float, ...], float]:
        """Return the rates of jobs, and how busy links are at these or at given ones."""
        taken = self.taken()
        rates = rates_of(taken, self.fabric)
        loads = sum(rate * load for rate, load in zip(at_bps or rates, taken, strict=True))
        limits = np.maximum(self.fabric.limits_bps, 1.0)
        return rates, float(((loads / limits) ** _POWER).sum())

    def laid(self, tree: int) -> SumPlan:
        """Return the plan of a tree as it is laid now; every child keeps its number."""
        hosts, old = self.fabric.hosts, self.plans[tree]
        new_arc = {self.trees[tree].up[switch]: arc for switch, arc in self.up[tree].items()}
        switches = [replace(old.switches[0], children=_renamed(old.switches[0].children, new_arc))]
        for each in old.switches[1:]:
            up = new_arc[each.up]
            children = _renamed(each.children, new_arc)
            switches.append(replace(each, switch=self.fabric.source(up) - hosts, children=children, up=up))
        return replace(old, switches=tuple(switches))


def _renamed(links: Sequence[int], new: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(new.get(link, link) for link in links)


def _shares(job: JobPlan) -> tuple[float, ...]:
    """Return what each tree, or server, has of a job."""
    if job.sums:
        sizes = [sum(count for _, count in job.packets_for(tree.server).values()) for tree in job.sums]
    else:
        sizes = [sum(piece.bytes for piece in job.slices if piece.server == server) for server in job.job.servers]
    return tuple(size / sum(sizes) for size in sizes)


def _other_trees(plan: Plan, fabric: Fabric, places: Places) -> tuple[tuple[float, ...], tuple[float, ...], Plan]:
    trees = _Trees(plan, fabric, places)
    before_bps = rates_of(trees.taken(), fabric)
    trees.improve()
    after_bps = rates_of(trees.taken(), fabric)
    laid = iter([trees.laid(tree) for tree in range(len(trees.plans))])
    jobs = tuple(replace(job, sums=tuple(islice(laid, len(job.sums)))) for job in plan.jobs)
    return before_bps, after_bps, replace(plan, jobs=jobs)


# Paths


def _other_paths(plan: Plan, fabric: Fabric) -> tuple[tuple[float, ...], tuple[float, ...], Plan]:
    parties = [Parties(job.job.name, job.job.hosts, job.job.servers) for job in plan.jobs]
    shares = [_shares(job) for job in plan.jobs]
    before_bps = rates_with([_chosen(fabric, each, plan.paths) for each in parties], shares, fabric)
    placed = place_together(fabric, parties, "equal", "none", seed=plan.scenario.seed, shares=shares)
    paths = paths_of(placed, plan.paths)
    after_bps = rates_with([_chosen(fabric, each, paths) for each in parties], shares, fabric)
    return before_bps, after_bps, replace(plan, paths=paths)


def _chosen(fabric: Fabric, parties: Parties, paths: Paths) -> list[Chosen]:
    """Return the paths of a job's workers to each server as a choice."""
    found = []
    for number, server in enumerate(parties.servers):
        ways = {worker: paths.between(worker, server)[1:-1] for worker in parties.workers if worker != server}
        ways |= {worker: () for worker in parties.workers if worker == server}
        places = SumPlaces(dict.fromkeys(parties.workers, -1), ways, {})
        found.append(places_choice(fabric, parties, number, places))
    return found


# What changed, for people


def _moves(before: Plan, after: Plan) -> Iterator[str]:
    """Yield what goes another way."""
    cluster = before.scenario.cluster
    for old_job, job in zip(before.jobs, after.jobs, strict=True):
        for old, tree in zip(old_job.sums, job.sums, strict=True):
            left, entered = (
                sorted({each.switch for each in one.switches} - {each.switch for each in other.switches})
                for one, other in ((old, tree), (tree, old))
            )
            if old.switches != tree.switches:
                names = [" ".join(cluster.switches[switch] for switch in each) for each in (left, entered)]
                how = f"over {names[1]}, no longer {names[0]}" if entered else "over other links"
                yield f"sums of {job.job.name} to {cluster.hosts[tree.server]} {how}"
    others = sum(old != path for old, path in zip(before.paths, after.paths, strict=True))
    if others:
        yield f"{others} of {len(after.paths)} paths"
