"""Placements found another way: by listing all paths, with a variable for every worker, and by trying everything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice, product

import numpy as np
from numpy.random import Generator
from scipy.optimize import linprog

from tensorexpress.fabric import LINK, SLOTS, SUM_RATE, Fabric, Resource
from tensorexpress.placement_programs import Parties
from tensorexpress.placement_rounding import Chosen, SumPlaces, UpTree, places_choice, tree_choice


def random_fabric(rng: Generator) -> tuple[Fabric, Parties]:
    """Return two to four switches joined at random, two to four workers, and one or two servers."""
    switches, workers, servers = int(rng.integers(2, 5)), int(rng.integers(2, 5)), int(rng.integers(1, 3))
    colocated = bool(rng.random() < 0.2)
    hosts = workers if colocated else workers + servers
    links = [(host, hosts + int(rng.integers(switches))) for host in range(hosts)]
    links += [(hosts + node, hosts + int(rng.integers(node))) for node in range(1, switches)]
    extra = [(hosts + a, hosts + b) for a in range(switches) for b in range(a) if rng.random() < 0.5]
    links += [ends for ends in extra if ends not in links]
    limited = rng.random() < 0.6
    fabric = Fabric(
        nodes=(*(f"h{host}" for host in range(hosts)), *(f"s{switch}" for switch in range(switches))),
        hosts=hosts,
        links=tuple(links),
        rate_bps=tuple(float(rate) for rate in rng.integers(1, 11, len(links))),
        sum_bps=tuple(float(rng.integers(2, 16)) if limited else math.inf for _ in range(switches)),
        slots_bps=tuple(float(rng.integers(3, 16)) if rng.random() < 0.2 else math.inf for _ in range(switches)),
    )
    first = 0 if colocated else workers
    parties = Parties("job", tuple(range(workers)), tuple(range(first, first + servers)), int(rng.integers(0, 2)))
    return fabric, parties


def paths_between(fabric: Fabric, first: int, last: int, detour: int) -> list[tuple[int, ...]]:
    """Return all ways from one switch to another that pass none twice and are no longer than allowed."""
    found: list[tuple[int, ...]] = []

    def walk(node: int, arcs: tuple[int, ...], met: frozenset[int]) -> None:
        if node == last:
            found.append(arcs)
            return
        for arc in range(2 * len(fabric.links)):
            if fabric.source(arc) == node and fabric.target(arc) >= fabric.hosts and fabric.target(arc) not in met:
                walk(fabric.target(arc), (*arcs, arc), met | {fabric.target(arc)})

    walk(first, (), frozenset({first}))
    shortest = min(map(len, found), default=0)
    return [arcs for arcs in found if len(arcs) <= shortest + detour]


class PathProgram:
    """A linear program whose columns are paths."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.below: list[dict[int, float]] = [{} for _ in fabric.resources]
        self.equal: list[dict[int, float]] = []
        #: What columns are at the least, where that is not 0.
        self.floors: dict[int, float] = {}
        self.columns = 0

    def column(self, *resources: Resource) -> int:
        for resource in resources:
            if resource in self.fabric.place_of:
                row = self.below[self.fabric.place_of[resource]]
                row[self.columns] = row.get(self.columns, 0.0) + 1.0
        self.columns += 1
        return self.columns - 1

    def best(self, rates: Sequence[int]) -> float:
        def matrix(rows: list[dict[int, float]]) -> np.ndarray:
            dense = np.zeros((len(rows), self.columns))
            for number, row in enumerate(rows):
                for column, times in row.items():
                    dense[number, column] = times
            return dense

        costs = np.zeros(self.columns)
        costs[list(rates)] = -1
        limits = np.zeros(len(self.below))
        limits[: len(self.fabric.resources)] = self.fabric.limits_bps
        found = linprog(
            costs,
            matrix(self.below),
            limits,
            matrix(self.equal),
            np.zeros(len(self.equal)),
            bounds=[(self.floors.get(column, 0.0), None) for column in range(self.columns)],
            method="highs-ipm",
        )
        return float(-found.fun)


def links_of(arcs: Sequence[int]) -> list[Resource]:
    return [Resource(LINK, arc >> 1) for arc in arcs]


def nic(fabric: Fabric, host: int) -> Resource:
    return Resource(LINK, fabric.nic[host] >> 1)


def best_by_places(fabric: Fabric, parties: Parties, *, sums: bool) -> float:
    """Return the rate with split shares, places and paths: a column for every worker, place and path."""
    program = PathProgram(fabric)
    rates = [program.column() for _ in parties.servers]
    for server, rate in zip(parties.servers, rates, strict=True):
        root = fabric.switch_of(server)
        leaves: dict[int, list[int]] = {}
        uses: dict[int, list[list[int]]] = {}
        for worker in parties.workers:
            own: list[int] = []
            switch = fabric.switch_of(worker)
            for arcs in paths_between(fabric, switch, root, parties.detour):
                ends = [] if worker == server else [nic(fabric, worker), nic(fabric, server), *links_of(arcs)]
                own.append(program.column(*ends))
            shortest = min(map(len, paths_between(fabric, switch, root, 0)))
            for place in range(fabric.hosts, len(fabric.nodes)) if sums else ():
                there = paths_between(fabric, switch, place, parties.detour)
                on = paths_between(fabric, place, root, parties.detour)
                if min(map(len, there)) + min(map(len, on)) > shortest + parties.detour or not fabric.can_sum(place):
                    continue
                to_place = [
                    program.column(nic(fabric, worker), Resource(SUM_RATE, place - fabric.hosts), *links_of(arcs))
                    for arcs in there
                ]
                if place not in leaves:
                    leaves[place] = [
                        program.column(nic(fabric, server), Resource(SLOTS, place - fabric.hosts), *links_of(arcs))
                        for arcs in on
                    ]
                uses.setdefault(place, []).append(to_place)
                own += to_place
            program.equal.append({**dict.fromkeys(own, 1.0), rate: -1.0})
        for place, each in uses.items():
            for to_place in each:
                program.below.append({**dict.fromkeys(to_place, 1.0), **dict.fromkeys(leaves[place], -1.0)})
    return program.best(rates)


def best_by_trees(fabric: Fabric, parties: Parties) -> float:
    """Return the rate with split shares and paths where every switch on the way sums: a column for every path."""
    program = PathProgram(fabric.of_summing_switches())
    return program.best(add_trees(program, parties))


def add_trees(program: PathProgram, parties: Parties) -> list[int]:
    """Add a job's trees to a program; return the columns of its servers' rates."""
    fabric, rates = program.fabric, []
    switches = sorted({fabric.switch_of(worker) for worker in parties.workers})
    for server in parties.servers:
        root = fabric.switch_of(server)
        entering = [nic(fabric, worker) for worker in parties.workers]
        summed = [Resource(SUM_RATE, fabric.switch_of(worker) - fabric.hosts) for worker in parties.workers]
        rate = program.column(*entering, *summed, nic(fabric, server), Resource(SLOTS, root - fabric.hosts))
        rates.append(rate)
        over: dict[int, int] = {}
        for switch in switches:
            ways = {program.column(): arcs for arcs in paths_between(fabric, switch, root, parties.detour)}
            program.equal.append({**dict.fromkeys(ways, 1.0), rate: -1.0})
            for arc in sorted({arc for arcs in ways.values() for arc in arcs}):
                if arc not in over:
                    adds = Resource(SUM_RATE, fabric.target(arc) - fabric.hosts)
                    slots = Resource(SLOTS, fabric.source(arc) - fabric.hosts)
                    over[arc] = program.column(Resource(LINK, arc >> 1), adds, slots)
                taken = {column: 1.0 for column, arcs in ways.items() if arc in arcs}
                program.below.append({**taken, over[arc]: -1.0})
    return rates


class TreePrograms:
    """What jobs that share a fabric reach, asked one question at a time."""

    def __init__(self, fabric: Fabric, jobs: Sequence[Parties]) -> None:
        self._fabric, self._jobs = fabric.of_summing_switches(), jobs

    def best_of_all(self) -> float:
        """Return the highest rate that all jobs reach."""
        program, rates = self._program()
        level = program.column()
        program.below += [{level: 1.0, **dict.fromkeys(own, -1.0)} for own in rates]
        return program.best([level])

    def best_of(self, job: int, level: float) -> float:
        """Return the highest rate of one job while the others have no less than a level."""
        program, rates = self._program()
        for other, own in enumerate(rates):
            if other != job:
                # A column that is the level, and no more than the other's rate.
                held = program.column()
                program.floors[held] = level * (1 - 1e-9)
                program.below.append({held: 1.0, **dict.fromkeys(own, -1.0)})
        return program.best(rates[job])

    def _program(self) -> tuple[PathProgram, list[list[int]]]:
        program = PathProgram(self._fabric)
        return program, [add_trees(program, parties) for parties in self._jobs]


def all_trees(fabric: Fabric, parties: Parties, server: int) -> Iterator[Chosen]:
    """Yield every tree of a server whose ways are no longer than allowed for the workers' switches."""
    fabric = fabric.of_summing_switches()
    root = fabric.switch_of(parties.servers[server])
    switches = sorted({fabric.switch_of(worker) for worker in parties.workers} - {root})
    ways = [paths_between(fabric, switch, root, parties.detour) for switch in switches]
    seen = set()
    for arcs in product(*ways):
        up: dict[int, int] = {}
        if all(up.setdefault(fabric.source(arc), arc) == arc for way in arcs for arc in way):
            key = tuple(sorted(up.items()))
            if key not in seen:
                seen.add(key)
                yield tree_choice(fabric, parties, server, UpTree(root, up))


def all_places(fabric: Fabric, parties: Parties, server: int, *, sums: bool) -> Iterator[Chosen]:
    """Yield every choice of a place and a path for every worker, and of a path on from every place."""
    root = fabric.switch_of(parties.servers[server])
    options = []
    for worker in parties.workers:
        switch = fabric.switch_of(worker)
        shortest = min(map(len, paths_between(fabric, switch, root, 0)))
        own = [(-1, arcs) for arcs in paths_between(fabric, switch, root, parties.detour)]
        for place in range(fabric.hosts, len(fabric.nodes)) if sums else ():
            there, on = paths_between(fabric, switch, place, 0), paths_between(fabric, place, root, 0)
            if len(there[0]) + len(on[0]) <= shortest + parties.detour and fabric.can_sum(place):
                own += [(place, arcs) for arcs in paths_between(fabric, switch, place, parties.detour)]
        options.append(own)
    for chosen in product(*options):
        place = {worker: each[0] for worker, each in zip(parties.workers, chosen, strict=True)}
        to_place = {worker: each[1] for worker, each in zip(parties.workers, chosen, strict=True)}
        used = sorted(set(place.values()) - {-1})
        for onward in product(*(paths_between(fabric, each, root, parties.detour) for each in used)):
            places = SumPlaces(place, to_place, dict(zip(used, onward, strict=True)))
            yield places_choice(fabric, parties, server, places)


def best_whole(fabric: Fabric, each: Sequence[Iterator[Chosen]], most: int) -> float | None:
    """Return the best rate of all choices that cannot be split; None where there are too many of them."""
    listed = [list(islice(choices, most + 1)) for choices in each]
    if math.prod(map(len, listed)) > most:
        return None
    return max(best_rate(fabric, choices) for choices in product(*listed))


def best_rate(fabric: Fabric, choices: Sequence[Chosen]) -> float:
    """Return the rate of what is chosen for one or two servers, with the best shares.

    With the share x for the first, what is used of every resource at a rate of 1 is a line over x. The highest of them
    is lowest at an end, or where two of them meet.
    """
    used = np.array([choice.loads for choice in choices]) / fabric.limits_bps
    first, last = used[0], used[-1]
    slope = first - last
    with np.errstate(divide="ignore", invalid="ignore"):
        meet = ((last[:, None] - last) / (slope - slope[:, None])).ravel()
    shares = np.concatenate([[0.0, 1.0], meet[(meet > 0) & (meet < 1)]])
    return float(1 / (last[:, None] + slope[:, None] * shares).max(axis=0).min())
