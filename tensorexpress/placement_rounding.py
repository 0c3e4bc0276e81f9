"""Placements that can be carried out: what is whole is drawn from a split optimum, by its shares, and the best is kept.

Every server has one tree of switches, or every worker one place and one path for every server. Drawn by the optimum's
flows, an arc that carries much is taken often. Draws depend on nothing but the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from tensorexpress.fabric import LINK, SLOTS, SUM_RATE, Fabric, Floats, Resource
from tensorexpress.placement_programs import Parties, Relaxed, best_shares

#: A flow below this part of the largest is a rounding error of the solver.
_LEAST_SHARE = 1e-9

#: How often each server draws anew while the others stay.
_SECOND_THOUGHTS = 8

#: Part of a rate by which other shares have to be better to be taken.
_WORTH_IT = 0.001

#: How near to the optimum counts as the optimum.
_SAME = 1e-9


class UpTree(NamedTuple):
    """The switches that sum for one server: each but the root with the arc to the next."""

    root: int
    up: Mapping[int, int]

    def way(self, fabric: Fabric, switch: int) -> tuple[int, ...]:
        """Return the arcs from a switch to the root."""
        arcs: list[int] = []
        while switch != self.root:
            arcs.append(self.up[switch])
            switch = fabric.target(arcs[-1])
        return tuple(arcs)


class SumPlaces(NamedTuple):
    """Where what workers have for one server is summed: by worker, -1 for nowhere, and the arcs there and on."""

    place: Mapping[int, int]
    to_place: Mapping[int, tuple[int, ...]]
    #: By switch that sums: the arcs to the server's switch.
    onward: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Chosen:
    """What is chosen for one server, and what each bit/s for it takes of every resource."""

    way: UpTree | SumPlaces
    loads: Floats


def taken_by(choices: Sequence[Chosen], shares: Sequence[float]) -> Floats:
    """Return what each bit/s of a job's workers takes of every resource."""
    taken: Floats = np.array([choice.loads for choice in choices]).T @ np.array(shares)
    return taken


def rates_of(taken: Sequence[Floats], fabric: Fabric) -> tuple[float, ...]:
    """Return the rates of jobs by what each bit/s of them takes.

    All rise together until a resource is used up, and those that do not use it go on.

    >>> from tensorexpress.fabric import Fabric
    >>> fabric = Fabric(("h0", "s0", "s1"), 1, ((0, 1), (1, 2)), (10.0, 8.0), (), ())
    >>> rates_of([np.array([1.0, 1.0]), np.array([0.0, 1.0]), np.array([2.0, 0.0])], fabric)
    (3.3333333333333335, 4.666666666666666, 3.3333333333333335)
    """
    loads, left = np.array(taken), fabric.limits_bps.copy()
    rates, rising = np.zeros(len(loads)), np.ones(len(loads), dtype=bool)
    while rising.any():
        slope = loads[rising].sum(axis=0)
        used = slope > 0
        step = float((left[used] / slope[used]).min())
        rates[rising] += step
        left -= step * slope
        full = used & (left <= _SAME * fabric.limits_bps)
        rising &= ~(loads[:, full] > 0).any(axis=1)
    return tuple(rates.tolist())


def is_fairer(one: Sequence[float], other: Sequence[float], by: float = 0.0) -> bool:
    """Whether rates are better for jobs: the smallest that differs by more than a part is larger.

    >>> is_fairer([3, 5], [9, 2]), is_fairer([3, 5], [6, 3]), is_fairer([2], [2])
    (True, False, False)
    """
    for own, their in zip(sorted(one), sorted(other), strict=True):
        if own > their * (1 + by):
            return True
        if their > own * (1 + by):
            return False
    return False


def tree_choice(fabric: Fabric, parties: Parties, server: int, tree: UpTree) -> Chosen:
    """Return a tree with what it takes: of every link once, of switches all that comes in."""
    loads = np.zeros(len(fabric.resources))

    def take(resource: Resource, times: float = 1.0) -> None:
        place = fabric.place_of.get(resource)
        if place is not None:
            loads[place] += times

    for worker in parties.workers:
        take(Resource(LINK, fabric.nic[worker] >> 1))
        take(Resource(SUM_RATE, fabric.switch_of(worker) - fabric.hosts))
    take(Resource(LINK, fabric.nic[parties.servers[server]] >> 1))
    for arc in tree.up.values():
        take(Resource(LINK, arc >> 1))
        take(Resource(SUM_RATE, fabric.target(arc) - fabric.hosts))
    for switch in (tree.root, *tree.up):
        take(Resource(SLOTS, switch - fabric.hosts))
    return Chosen(tree, loads)


def places_choice(fabric: Fabric, parties: Parties, server: int, places: SumPlaces) -> Chosen:
    """Return places with what they take."""
    loads = np.zeros(len(fabric.resources))

    def take(resource: Resource) -> None:
        place = fabric.place_of.get(resource)
        if place is not None:
            loads[place] += 1.0

    host = parties.servers[server]
    nic = Resource(LINK, fabric.nic[host] >> 1)
    for worker, place in places.place.items():
        if place < 0 and worker == host:
            continue
        take(Resource(LINK, fabric.nic[worker] >> 1))
        for arc in places.to_place[worker]:
            take(Resource(LINK, arc >> 1))
        take(nic if place < 0 else Resource(SUM_RATE, place - fabric.hosts))
    for place, arcs in places.onward.items():
        for arc in arcs:
            take(Resource(LINK, arc >> 1))
        take(Resource(SLOTS, place - fabric.hosts))
        take(nic)
    return Chosen(places, loads)


def _drawn(weights: Sequence[float], rng: Generator | None) -> int:
    """Return a place by weights: drawn, or where nothing is drawn the heaviest."""
    if rng is None:
        return max(range(len(weights)), key=lambda place: weights[place])
    total, point = sum(weights), rng.random()
    for place, weight in enumerate(weights):
        point -= weight / total
        if point < 0:
            return place
    return len(weights) - 1


def _walk(
    fabric: Fabric, first: int, ends: Callable[[int], bool], flow: Mapping[int, float], rng: Generator | None
) -> list[int]:
    """Return arcs from a switch to where a way ends, drawn by flow; a loop is cut off where it closes."""
    arcs, met, node = list[int](), {first: 0}, first
    while not ends(node):
        out = [arc for arc in fabric.out_arcs[node] if arc in flow]
        arc = out[_drawn([flow[arc] for arc in out], rng)]
        arcs.append(arc)
        node = fabric.target(arc)
        if node in met:
            del arcs[met[node] :]
            met = {first: 0} | {fabric.target(arc): place + 1 for place, arc in enumerate(arcs)}
            # Without chance the same loop would close for ever.
            rng = rng or np.random.default_rng(0)
        met[node] = len(arcs)
    return arcs


def _shortest(fabric: Fabric, first: int, last: int, flow: Mapping[int, float]) -> dict[int, float]:
    """Return a flow on shortest ways alone: what there is of it, and something where there is none."""
    return {
        arc: flow.get(arc, 0.0) + 1e-3 * max(flow.values(), default=1.0) for arc in fabric.arcs_between(first, last)
    }


def _flowing(flow: Mapping[int, float]) -> dict[int, float]:
    """Return a flow without what is as good as none."""
    most = max(flow.values(), default=0.0)
    return {arc: amount for arc, amount in flow.items() if amount > _LEAST_SHARE * most}


def draw_tree(fabric: Fabric, parties: Parties, server: int, relaxed: Relaxed, rng: Generator | None) -> Chosen:
    """Draw the tree of a server: workers' switches in turn walk by the flow until they meet the tree."""
    root = fabric.switch_of(parties.servers[server])
    flow = _flowing(relaxed.to_server[server])
    switches = sorted({fabric.switch_of(worker) for worker in parties.workers})
    if rng is not None:
        switches = rng.permutation(switches).tolist()
    tree = _grown(fabric, switches, root, flow, rng)
    hops = fabric.hops_to(root)
    if not flow or any(len(tree.way(fabric, switch)) > hops[switch] + parties.detour for switch in switches):
        ways = [_shortest(fabric, switch, root, flow) for switch in switches]
        tree = _grown(fabric, switches, root, {arc: amount for way in ways for arc, amount in way.items()}, rng)
    return tree_choice(fabric, parties, server, tree)


def _grown(
    fabric: Fabric, switches: Sequence[int], root: int, flow: Mapping[int, float], rng: Generator | None
) -> UpTree:
    up: dict[int, int] = {}
    for switch in switches if flow else ():
        for arc in _walk(fabric, switch, lambda node: node == root or node in up, flow, rng):
            up[fabric.source(arc)] = arc
    return UpTree(root, up)


class _Clocks:
    """Draws places: each has a clock, exponential in time, and the first to strike among a worker's is taken.

    A clock runs as fast as the worker's rate for its place, so that places are drawn by their rates. With the same
    clocks for all workers, those who can meet at one switch, which is what makes sums worth it; every other draw has
    clocks of their own.
    """

    def __init__(self, places: int, rng: Generator | None):
        self._places, self._rng = places, rng
        self._are_shared = rng is None or rng.random() < 0.5
        self._strike = np.ones(places + 1) if rng is None else rng.exponential(size=places + 1)

    def first(self, rates: Mapping[int, float]) -> int:
        """Return a place; -1 is one, too."""
        if not self._are_shared and self._rng is not None:
            self._strike = self._rng.exponential(size=self._places + 1)
        return min(rates, key=lambda place: (self._strike[place] / rates[place], place))


def draw_places(fabric: Fabric, parties: Parties, server: int, relaxed: Relaxed, rng: Generator | None) -> Chosen:
    """Draw place and path of every worker for one server, and one path on for all that is summed at one switch."""
    root = fabric.switch_of(parties.servers[server])
    to_root = _flowing(relaxed.to_server[server])
    place: dict[int, int] = {}
    to_place: dict[int, tuple[int, ...]] = {}
    onward: dict[int, tuple[int, ...]] = {}
    flows = {switch: _flowing(flow) for switch, flow in relaxed.to_place.items()}
    clocks = _Clocks(len(fabric.nodes), rng)
    for number, group in enumerate(parties.groups(fabric)):
        rates = _flowing(relaxed.places[number, server]) or {-1: 1.0}
        for worker in group.workers:
            chosen = clocks.first(rates)
            end, flow = (root, to_root) if chosen < 0 else (chosen, flows[chosen])
            place[worker] = chosen
            to_place[worker] = tuple(_way(fabric, group.switch, end, flow, parties.detour, rng))
            if chosen >= 0 and chosen not in onward:
                onward[chosen] = tuple(_way(fabric, chosen, root, to_root, parties.detour, rng))
    return places_choice(fabric, parties, server, SumPlaces(place, to_place, onward))


def _way(
    fabric: Fabric, first: int, last: int, flow: Mapping[int, float], detour: int, rng: Generator | None
) -> list[int]:
    """Return a way drawn by flow; where that has none, or only one that is too long, any shortest one."""
    if any(fabric.source(arc) == first for arc in flow):
        way = _walk(fabric, first, lambda node: node == last, flow, rng)
        if len(way) <= fabric.hops_to(last)[first] + detour:
            return way
    return _walk(fabric, first, lambda node: node == last, _shortest(fabric, first, last, flow), rng)


def any_way(fabric: Fabric, first: int, last: int, busy: Sequence[float], rng: Generator) -> tuple[int, ...]:
    """Return one of the shortest ways, drawn so that links that are not busy are taken more often."""
    hops, arcs, node = fabric.hops_to(last), list[int](), first
    while node != last:
        out = [arc for arc in fabric.out_arcs[node] if hops.get(fabric.target(arc), hops[node]) < hops[node]]
        arcs.append(out[_drawn([(1e-3 + max(0.0, 1 - busy[arc >> 1])) ** 2 for arc in out], rng)])
        node = fabric.target(arcs[-1])
    return tuple(arcs)


def best_of_draws(
    draw: Callable[[int, Generator | None], Chosen],
    rates: Callable[[Sequence[Chosen]], Sequence[float]],
    servers: int,
    most_bps: Sequence[float],
    seed: int,
    draws: int,
    known: Sequence[Chosen] = (),
) -> tuple[Chosen, ...]:
    """Return the best of several draws for all servers of all jobs, after each has thought again while others stay.

    A draw as fast as `most_bps`, which none can beat, is the last. What is `known` already is looked at, too.
    """
    rng = np.random.default_rng(seed)

    def drawn() -> Iterator[Sequence[Chosen]]:
        yield [draw(server, None) for server in range(servers)]
        if known:
            yield known
        for _ in range(draws - 1):
            yield [draw(server, rng) for server in range(servers)]
        for server in range(servers):
            for _ in range(_SECOND_THOUGHTS):
                yield [*best[:server], draw(server, rng), *best[server + 1 :]]

    goal = sorted(most_bps)
    best: Sequence[Chosen] = ()
    best_bps: Sequence[float] = [0.0] * len(goal)
    for choices in drawn():
        each_bps = rates(choices)
        if is_fairer(each_bps, best_bps):
            best, best_bps = choices, each_bps
        if all(rate >= most * (1 - _SAME) for rate, most in zip(sorted(best_bps), goal, strict=True)):
            break
    return tuple(best)


#: What is chosen for the servers of every job, and their shares.
Choices = Sequence[Sequence[Chosen]]
Shares = Sequence[tuple[float, ...]]


def rates_with(choices: Choices, shares: Shares, fabric: Fabric) -> tuple[float, ...]:
    """Return the rates of jobs with what is chosen for them."""
    return rates_of([taken_by(own, parts) for own, parts in zip(choices, shares, strict=True)], fabric)


def shared_again(choices: Choices, shares: Shares, fabric: Fabric) -> tuple[tuple[float, ...], Shares]:
    """Return rates and shares for what was chosen: those that it was chosen for, unless others are faster."""
    rates = rates_with(choices, shares, fabric)
    if all(len(own) == 1 for own in choices):
        return rates, shares
    better = best_shares(fabric, [[choice.loads for choice in own] for own in choices])
    faster = rates_with(choices, better, fabric)
    return (faster, better) if is_fairer(faster, rates, _WORTH_IT) else (rates, shares)
