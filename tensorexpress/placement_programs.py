"""The linear programs of placements: how fast all workers could send if every share, place and path could be split.

Rates are bit/s on the wire. All workers send at the rate f; server s gets the share x_s of it, g_s = f x_s. Workers of
one group (`fabric.Group`) are the same to the program, so it has no variable for each of them, and paths are flows on
arcs, one for all that goes to the same switch: the size of a program does not depend on how many paths or workers there
are.

With places, as InArt has it, what a worker has for a server is summed at most once, at a switch of its own choice, or
not at all. With trees, as our switches do it, every switch on the way to a server adds up what comes in and sends one
packet on.

Jobs on one fabric are in one program, and share what it has: all rates are raised together, and when one can rise no
more the others go on, which is max-min fairness.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from tensorexpress.errors import PlanError
from tensorexpress.fabric import LINK, SLOTS, SUM_RATE, Fabric, Floats, Group, Resource

#: Columns from which on an interior-point method is faster than a simplex method; both end at a vertex.
_MANY_COLUMNS = 1000

#: From this price on, of 1 for all jobs that still rise, a job is among those that hold the others back.
_LEAST_PRICE = 1e-6

#: Part of its rate by which a job that rises no more may fall, so that rounding leaves the others a solution.
_GIVES_WAY = 1e-9

#: A sum of columns, each times a number.
Terms = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Parties:
    """Who sends to whom, and how it is summed on the way."""

    name: str
    workers: tuple[int, ...]
    servers: tuple[int, ...]
    #: Hops by which ways may be longer than the shortest.
    detour: int = 0
    #: Whether only the switches of workers and of servers sum, where they sum once.
    at_edges: bool = False

    def groups(self, fabric: Fabric) -> tuple[Group, ...]:
        """Return the workers in groups."""
        return fabric.groups(self.workers, self.servers)


@dataclass(frozen=True)
class Relaxed:
    """The optimum of a linear program for one job: no placement, whatever it is, is faster, or fairer to all jobs."""

    #: Bit/s at which every worker sends.
    rate_bps: float
    #: What each server gets of it; they add up to 1.
    shares: tuple[float, ...]
    #: Bit/s by which the rate grows with each bit/s more of a resource, in the order of `Fabric.resources`.
    prices: Floats
    #: By server: the flow on each arc towards it. With trees what sums take, with places what is under way to it.
    to_server: tuple[Mapping[int, float], ...]
    #: With places, by switch: the flow on each arc of what it is to sum.
    to_place: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    #: With places, by (group, server): the rate by switch that sums, -1 for directly to the server.
    places: Mapping[tuple[int, int], Mapping[int, float]] = field(default_factory=dict)


class _Solution(NamedTuple):
    """The maximum of a program, and what it is at."""

    maximum: float
    columns: Floats
    #: What more of each resource adds to the maximum, and what less of each floor does.
    prices: Floats
    held: Floats


class _Part(NamedTuple):
    """What one job has in a program: the rates of its servers, and what tells flows from the columns of a solution."""

    rates: _Rates
    flows: Callable[[Relaxed, Floats], Relaxed]


class _Program:
    """Collects the rows of a program: maximise a sum of columns, all of them 0 or more."""

    def __init__(self, fabric: Fabric, limits: Floats):
        self.fabric, self.limits = fabric, limits
        self.columns = 0
        self._below: list[tuple[int, int, float]] = []
        self._equal: list[tuple[int, int, float]] = []
        self._rows_below, self._rows_equal = len(limits), 0

    def column(self) -> int:
        """Return a new column."""
        self.columns += 1
        return self.columns - 1

    def uses(self, resource: Resource, terms: Terms) -> None:
        """Let columns take of a resource, if it has a limit."""
        place = self.fabric.place_of.get(resource)
        if place is not None:
            self._below += [(place, column, times) for column, times in terms]

    def at_most_0(self, terms: Terms) -> None:
        """Add a row: a sum is 0 or less."""
        self._below += [(self._rows_below, column, times) for column, times in terms]
        self._rows_below += 1

    def is_0(self, terms: Terms) -> None:
        """Add a row: a sum is 0."""
        self._equal += [(self._rows_equal, column, times) for column, times in terms]
        self._rows_equal += 1

    def solve(self, objective: Terms, what: str, floors: Sequence[tuple[Terms, float]] = ()) -> _Solution:
        """Return the maximum of a sum of columns; every sum of `floors` is no less than its number."""
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

        costs = np.zeros(self.columns)
        for column, times in objective:
            costs[column] -= times

        def matrix(entries: list[tuple[int, int, float]], rows: int) -> Any:
            row, column, times = zip(*entries, strict=True) if entries else ((), (), ())
            shape = (rows, self.columns)
            return coo_array((np.array(times), (np.array(row, int), np.array(column, int))), shape=shape).tocsr()

        resources, below = len(self.limits), self._rows_below
        held = [(below + row, column, -times) for row, (terms, _) in enumerate(floors) for column, times in terms]
        found = linprog(
            costs,
            A_ub=matrix([*self._below, *held], below + len(floors)),
            b_ub=np.concatenate([self.limits, np.zeros(below - resources), [-least for _, least in floors]]),
            A_eq=matrix(self._equal, self._rows_equal) if self._rows_equal else None,
            b_eq=np.zeros(self._rows_equal) if self._rows_equal else None,
            method="highs" if self.columns < _MANY_COLUMNS else "highs-ipm",
        )
        if found.x is None:
            raise PlanError(f"{what}: its linear program has no solution: {found.message.splitlines()[0]}")
        prices = -found.ineqlin.marginals
        return _Solution(-float(found.fun), found.x, prices[:resources], prices[below:])

    def fairest(self, totals: Sequence[Terms], names: Sequence[str]) -> tuple[list[_Solution], Floats]:
        """Raise all totals together, and when some can rise no more the others; return each at its end, and columns.

        Whoever has a price holds the others back: its total is the same in every optimum.
        """
        if len(totals) == 1:
            alone = self.solve(totals[0], names[0])
            return [alone], alone.columns
        level = self.column()
        ends: dict[int, _Solution] = {}
        while len(ends) < len(totals):
            floors = [
                (total, (1 - _GIVES_WAY) * ends[job].maximum) if job in ends else ([*total, (level, -1.0)], 0.0)
                for job, total in enumerate(totals)
            ]
            found = self.solve([(level, 1.0)], "jobs together", floors)
            rising = [job for job in range(len(totals)) if job not in ends]
            least = min(_LEAST_PRICE, max(found.held[job] for job in rising))
            ends |= {job: found for job in rising if found.held[job] >= least}
        return [ends[job] for job in range(len(totals))], found.columns


class _Rates:
    """The rate of every server, as terms: a column each, or shares of one column where shares are given."""

    def __init__(self, program: _Program, servers: int, shares: Sequence[float] | None):
        if shares is None:
            self.of: list[list[tuple[int, float]]] = [[(program.column(), 1.0)] for _ in range(servers)]
            self.total = [term for terms in self.of for term in terms]
        else:
            rate = program.column()
            self.of, self.total = [[(rate, share)] for share in shares], [(rate, 1.0)]

    def shares(self, found: Floats) -> tuple[float, ...]:
        """Return what each server has of the rate in a solution."""
        each = [max(0.0, sum(float(found[column]) * times for column, times in terms)) for terms in self.of]
        return tuple(rate / sum(each) for rate in each)


def _times(terms: Terms, factor: float) -> list[tuple[int, float]]:
    return [(column, factor * times) for column, times in terms]


class _Flow:
    """What flows to one switch over some arcs, a column each."""

    def __init__(self, program: _Program, root: int, arcs: Iterable[int]):
        self._program, self._root = program, root
        self.columns = {arc: program.column() for arc in arcs}

    def conserve(self, entering: Mapping[int, Terms]) -> None:
        """Let what leaves every switch be what comes to it, and what enters there."""
        fabric = self._program.fabric
        rows: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for arc, column in self.columns.items():
            rows[fabric.source(arc)].append((column, 1.0))
            rows[fabric.target(arc)].append((column, -1.0))
        for node in sorted({*rows, *entering} - {self._root}):
            self._program.is_0([*rows[node], *_times(entering.get(node, ()), -1.0)])

    def use_links(self) -> None:
        """Let what flows take of links."""
        for arc, column in self.columns.items():
            self._program.uses(Resource(LINK, arc >> 1), [(column, 1.0)])

    def values(self, found: Floats) -> dict[int, float]:
        """Return what flows on every arc, where anything does."""
        return {arc: float(found[column]) for arc, column in self.columns.items() if found[column] > 0}


def optimum(
    fabric: Fabric, jobs: Sequence[Parties], way: str, shares: Sequence[Sequence[float] | None]
) -> tuple[Relaxed, ...]:
    """Return the optimum of jobs that share a fabric: max-min fair where there are several.

    Shares that are not given are part of what is optimal.
    """
    if way == "trees":
        fabric = fabric.of_summing_switches()
    scale = max(fabric.rate_bps)
    program = _Program(fabric, fabric.limits_bps / scale)
    parts = [
        _with_trees(program, parties, own) if way == "trees" else _with_places(program, parties, own, way == "once")
        for parties, own in zip(jobs, shares, strict=True)
    ]
    ends, columns = program.fairest([part.rates.total for part in parts], [parties.name for parties in jobs])
    found = []
    for parties, part, end in zip(jobs, parts, ends, strict=True):
        if end.maximum <= 1e-12:
            raise PlanError(f"{parties.name}: nothing can be sent: {_dearest(fabric, end.prices)} has no room")
        relaxed = Relaxed(end.maximum * scale, part.rates.shares(columns), end.prices, ())
        found.append(part.flows(relaxed, columns))
    return tuple(found)


def best_shares(fabric: Fabric, loads: Sequence[Sequence[Floats]]) -> tuple[tuple[float, ...], ...]:
    """Return the shares of all jobs' servers for the highest rates, by what each bit/s for a server takes."""
    program = _Program(fabric, fabric.limits_bps / max(fabric.rate_bps))
    rates = [_Rates(program, len(own), None) for own in loads]
    for own, each in zip(rates, loads, strict=True):
        for terms, taken in zip(own.of, each, strict=True):
            for place in np.flatnonzero(taken).tolist():
                program.uses(fabric.resources[place], _times(terms, float(taken[place])))
    _, columns = program.fairest([each.total for each in rates], ["shares"] * len(rates))
    return tuple(each.shares(columns) for each in rates)


def _dearest(fabric: Fabric, prices: Floats) -> str:
    return fabric.name_of(fabric.resources[int(np.argmax(prices))])


def _with_trees(program: _Program, parties: Parties, shares: Sequence[float] | None) -> _Part:
    """Let a job's gradients be summed by every switch on the way."""
    fabric, groups = program.fabric, parties.groups(program.fabric)
    rates = _Rates(program, len(parties.servers), shares)
    switches = sorted({group.switch for group in groups})
    for worker in parties.workers:
        program.uses(Resource(LINK, fabric.nic[worker] >> 1), rates.total)
    flows: list[list[_Flow]] = []
    for server, rate in zip(parties.servers, rates.of, strict=True):
        root = fabric.switch_of(server)
        program.uses(Resource(LINK, fabric.nic[server] >> 1), rate)
        own = [_Flow(program, root, fabric.arcs_between(switch, root, parties.detour)) for switch in switches]
        for switch, flow in zip(switches, own, strict=True):
            flow.conserve({switch: rate} if switch != root else {})
        _sums_at(program, root, rate, groups, _joined(program, own))
        flows.append(own)

    def read(relaxed: Relaxed, found: Floats) -> Relaxed:
        return replace(relaxed, to_server=tuple(_most([flow.values(found) for flow in own]) for own in flows))

    return _Part(rates, read)


def _most(flows: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """Return the largest of some flows on every arc. The column of their sum may be larger where nothing is scarce."""
    most: dict[int, float] = {}
    for flow in flows:
        for arc, amount in flow.items():
            most[arc] = max(amount, most.get(arc, 0.0))
    return most


def _joined(program: _Program, flows: Sequence[_Flow]) -> dict[int, int]:
    """Return a column for every arc that is no less than any flow on it: what is summed takes what one of them does."""
    columns: dict[int, int] = {}
    for flow in flows:
        for arc, column in flow.columns.items():
            if arc not in columns:
                columns[arc] = program.column()
                program.uses(Resource(LINK, arc >> 1), [(columns[arc], 1.0)])
            program.at_most_0([(column, 1.0), (columns[arc], -1.0)])
    return columns


def _sums_at(program: _Program, root: int, rate: Terms, groups: Sequence[Group], sums: Mapping[int, int]) -> None:
    """Let one server's sums take of what switches can do: what comes in, and slots for what goes out."""
    fabric = program.fabric
    for group in groups:
        program.uses(Resource(SUM_RATE, group.switch - fabric.hosts), _times(rate, group.size))
    program.uses(Resource(SLOTS, root - fabric.hosts), rate)
    for arc, column in sums.items():
        program.uses(Resource(SUM_RATE, fabric.target(arc) - fabric.hosts), [(column, 1.0)])
        program.uses(Resource(SLOTS, fabric.source(arc) - fabric.hosts), [(column, 1.0)])


def candidates(fabric: Fabric, switch: int, root: int, parties: Parties) -> list[int]:
    """Return the switches that can sum on the ways from one to another."""
    there, back = fabric.hops_to(switch), fabric.hops_to(root)
    most = there[root] + parties.detour
    nodes = sorted({switch, root} if parties.at_edges else there)
    return [node for node in nodes if there[node] + back.get(node, most + 1) <= most and fabric.can_sum(node)]


def _with_places(program: _Program, parties: Parties, shares: Sequence[float] | None, sums: bool) -> _Part:
    """Let a worker's gradient be summed once at a switch of its choice, or nowhere."""
    fabric, groups = program.fabric, parties.groups(program.fabric)
    rates = _Rates(program, len(parties.servers), shares)
    for worker in parties.workers:
        program.uses(Resource(LINK, fabric.nic[worker] >> 1), rates.total)
    #: By (group, server): the column of every place, -1 for none; by (server, place): that of the sum.
    chosen: dict[tuple[int, int], dict[int, int]] = {}
    leaving: list[dict[int, int]] = [{} for _ in parties.servers]
    for number, group in enumerate(groups):
        for server, host in enumerate(parties.servers):
            root = fabric.switch_of(host)
            places = candidates(fabric, group.switch, root, parties) if sums else []
            columns = {place: program.column() for place in (-1, *places)}
            program.is_0([*((column, 1.0) for column in columns.values()), *_times(rates.of[server], -1.0)])
            for place in places:
                leaves = leaving[server].setdefault(place, program.columns)
                if leaves == program.columns:
                    program.column()
                program.at_most_0([(columns[place], 1.0), (leaves, -1.0)])
                program.uses(Resource(SUM_RATE, place - fabric.hosts), [(columns[place], group.size)])
            chosen[number, server] = columns
    to_place = _flows_to_places(program, groups, chosen, parties.detour)
    to_server = _flows_to_servers(program, parties, groups, chosen, leaving)

    def read(relaxed: Relaxed, found: Floats) -> Relaxed:
        return replace(
            relaxed,
            to_server=tuple(flow.values(found) for flow in to_server),
            to_place={place: flow.values(found) for place, flow in to_place.items()},
            places={
                key: {place: float(found[column]) for place, column in columns.items() if found[column] > 0}
                for key, columns in chosen.items()
            },
        )

    return _Part(rates, read)


def _flows_to_places(
    program: _Program, groups: Sequence[Group], chosen: Mapping[tuple[int, int], Mapping[int, int]], detour: int
) -> dict[int, _Flow]:
    """Let what is to be summed flow to the switches that sum it: one flow for all that goes to the same."""
    fabric = program.fabric
    entering: dict[int, dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for (number, _), columns in chosen.items():
        for place, column in columns.items():
            if place >= 0:
                entering[place][groups[number].switch].append((column, groups[number].size))
    flows = {}
    for place, terms in sorted(entering.items()):
        arcs = sorted({arc for switch in terms for arc in fabric.arcs_between(switch, place, detour)})
        flows[place] = _Flow(program, place, arcs)
        flows[place].conserve(terms)
        flows[place].use_links()
    return flows


def _flows_to_servers(
    program: _Program,
    parties: Parties,
    groups: Sequence[Group],
    chosen: Mapping[tuple[int, int], Mapping[int, int]],
    leaving: Sequence[Mapping[int, int]],
) -> list[_Flow]:
    """Let sums, and what is not summed, flow to servers."""
    fabric, flows = program.fabric, []
    for server, host in enumerate(parties.servers):
        root, nic = fabric.switch_of(host), Resource(LINK, fabric.nic[host] >> 1)
        entering: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for number, group in enumerate(groups):
            column = chosen[number, server][-1]
            if group.workers == (host,):
                # What a worker has for its own host's server takes no link.
                program.uses(nic, [(column, -1.0)])
                continue
            entering[group.switch].append((column, group.size))
            program.uses(nic, [(column, group.size)])
        for place, column in leaving[server].items():
            entering[place].append((column, 1.0))
            program.uses(nic, [(column, 1.0)])
            program.uses(Resource(SLOTS, place - fabric.hosts), [(column, 1.0)])
        arcs = sorted({arc for switch in entering for arc in fabric.arcs_between(switch, root, parties.detour)})
        flow = _Flow(program, root, arcs)
        flow.conserve(entering)
        flow.use_links()
        flows.append(flow)
    return flows
