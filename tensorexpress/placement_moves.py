"""Places that are drawn, made better one move at a time: a worker's gradient goes to another switch, by another path.

Drawing by an optimum's shares ignores that a sum is worth more the more gradients meet in it. So what uses the busiest
links and switches is moved wherever that leaves all of them less busy, as long as it helps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from tensorexpress.fabric import LINK, SLOTS, SUM_RATE, Fabric, Resource
from tensorexpress.placement_programs import Parties, candidates
from tensorexpress.placement_rounding import Chosen, SumPlaces, any_way, places_choice

#: How much more a busy resource counts than several that are not.
_POWER = 12

#: Moves that are looked at, over all workers, servers and places; and how often all of them are.
_MOST_LOOKS = 30_000
_ROUNDS = 6

#: What a move has to gain, in units of the busiest resource's.
_WORTH_IT = 1e-9


class _Goal(NamedTuple):
    """Where a gradient could go, and how much busier that would make resources."""

    place: int
    arcs: tuple[int, ...]
    onward: tuple[int, ...]
    change: dict[int, float]


class _Moves:
    """What every gradient uses, and how busy everything is: 1 for what is used up first at the start."""

    def __init__(self, fabric: Fabric, parties: Parties, choices: Sequence[Chosen], shares: Sequence[float]):
        self.fabric, self.parties, self.shares = fabric, parties, shares
        total = np.array([choice.loads for choice in choices]).T @ np.array(shares)
        # What has nothing to give is used by nobody.
        loads = np.divide(total, fabric.limits_bps, out=np.zeros_like(total), where=total > 0)
        self._scale = float(loads.max())
        self.busy: list[float] = (loads / self._scale).tolist()
        self.place: list[dict[int, int]] = []
        self.to_place: list[dict[int, tuple[int, ...]]] = []
        self.onward: list[dict[int, tuple[int, ...]]] = []
        for choice in choices:
            assert isinstance(choice.way, SumPlaces)
            self.place.append(dict(choice.way.place))
            self.to_place.append(dict(choice.way.to_place))
            self.onward.append(dict(choice.way.onward))
        self.users = [Counter(places.values()) for places in self.place]

    def _uses(self, server: int, worker: int, place: int, arcs: Sequence[int]) -> Iterable[Resource]:
        """Yield what a gradient takes up to where it is summed; its own link stays the same wherever it goes."""
        yield from (Resource(LINK, arc >> 1) for arc in arcs)
        if place >= 0:
            yield Resource(SUM_RATE, place - self.fabric.hosts)
        else:
            yield Resource(LINK, self.fabric.nic[self.parties.servers[server]] >> 1)

    def _goes_on(self, server: int, place: int, arcs: Sequence[int]) -> Iterable[Resource]:
        yield from (Resource(LINK, arc >> 1) for arc in arcs)
        yield Resource(LINK, self.fabric.nic[self.parties.servers[server]] >> 1)
        yield Resource(SLOTS, place - self.fabric.hosts)

    def is_busy(self, server: int, worker: int, least: float) -> bool:
        """Whether a gradient uses anything this busy."""
        place = self.place[server][worker]
        uses = [*self._uses(server, worker, place, self.to_place[server][worker])]
        if place >= 0:
            uses += self._goes_on(server, place, self.onward[server][place])
        index = self.fabric.place_of
        return any(self.busy[index[resource]] >= least for resource in uses if resource in index)

    def change(
        self, server: int, worker: int, place: int, arcs: tuple[int, ...], onward: tuple[int, ...]
    ) -> dict[int, float]:
        """Return how much busier resources would be with a gradient elsewhere."""
        before, users = self.place[server][worker], self.users[server]
        taken: Counter[Resource] = Counter(self._uses(server, worker, place, arcs))
        taken.subtract(self._uses(server, worker, before, self.to_place[server][worker]))
        if before != place:
            if place >= 0 and not users[place]:
                taken.update(self._goes_on(server, place, onward))
            if before >= 0 and users[before] == 1:
                taken.subtract(self._goes_on(server, before, self.onward[server][before]))
        index, limits = self.fabric.place_of, self.fabric.limits_bps
        per_bps = self.shares[server] / self._scale
        return {
            index[resource]: times * per_bps / float(limits[index[resource]])
            for resource, times in taken.items()
            if times and resource in index
        }

    def gain(self, change: dict[int, float]) -> float:
        """Return by how much less busy all is after a change, where busy resources count most."""
        busy = self.busy
        return sum(busy[at] ** _POWER - max(0.0, busy[at] + more) ** _POWER for at, more in change.items())

    def move(self, server: int, worker: int, goal: _Goal) -> None:
        """Let a gradient go elsewhere."""
        before, place = self.place[server][worker], goal.place
        for index, more in goal.change.items():
            self.busy[index] = max(0.0, self.busy[index] + more)
        self.users[server][before] -= 1
        if before >= 0 and not self.users[server][before]:
            del self.onward[server][before]
        self.users[server][place] += 1
        self.place[server][worker], self.to_place[server][worker] = place, goal.arcs
        if place >= 0:
            self.onward[server].setdefault(place, goal.onward)

    def goal(self, server: int, worker: int, place: int, rng: Generator) -> _Goal:
        """Return a place for a gradient, by ways that are not busy."""
        fabric, root = self.fabric, self.fabric.switch_of(self.parties.servers[server])
        arcs = any_way(fabric, fabric.switch_of(worker), root if place < 0 else place, self.busy, rng)
        onward = self.onward[server].get(place)
        if onward is None:
            onward = any_way(fabric, place, root, self.busy, rng) if place >= 0 else ()
        return _Goal(place, arcs, onward, self.change(server, worker, place, arcs, onward))

    def chosen(self, server: int) -> Chosen:
        """Return what one server has now."""
        places = SumPlaces(self.place[server], self.to_place[server], self.onward[server])
        return places_choice(self.fabric, self.parties, server, places)


def improved(
    fabric: Fabric, parties: Parties, choices: Sequence[Chosen], shares: Sequence[float], rng: Generator, *, sums: bool
) -> tuple[Chosen, ...]:
    """Return places and paths that are as good as what was drawn, or better."""
    moves, left = _Moves(fabric, parties, choices, shares), _MOST_LOOKS
    for _ in range(_ROUNDS):
        least, before = 0.9 * max(moves.busy), left
        for server, worker in product(range(len(choices)), parties.workers):
            host = parties.servers[server]
            if left <= 0 or host == worker or not shares[server] or not moves.is_busy(server, worker, least):
                continue
            switch, root = fabric.switch_of(worker), fabric.switch_of(host)
            places = (-1, *(candidates(fabric, switch, root, parties) if sums else ()))
            left -= len(places)
            goals = [moves.goal(server, worker, place, rng) for place in places]
            best = max(goals, key=lambda goal: moves.gain(goal.change))
            if moves.gain(best.change) > _WORTH_IT:
                moves.move(server, worker, best)
        if left == before:
            break
    return tuple(moves.chosen(server) for server in range(len(choices)))
