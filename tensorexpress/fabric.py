"""Fabrics: a network as placements see it: what links carry, what switches can add up, how far switches are apart.

Sums come back by the way that gradients went, at the same rate. So a link has one rate for both directions, the lower
of the two, and a gradient that goes one way over it takes as much of it as one that goes the other way.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorexpress.cluster import Cluster
from tensorexpress.errors import PlanError
from tensorexpress.routing import DirectedLinks
from tensorexpress.sums import SUM_FRAMING
from tensorexpress.units import PS_PER_SECOND

Floats = NDArray[np.float64]

#: What a resource of a fabric is, for people; those of one kind follow each other.
LINK, SUM_RATE, SLOTS = "link", "summing rate of", "slots of"

#: What is left at the least of a resource that others have used up.
_TRACE = 1e-6

#: Ways with more hops than the shortest are looked at where that is asked for, up to so many.
_MOST_DETOUR = 8


class Resource(NamedTuple):
    """What limits a placement: a link, or what a switch can do; `number` counts links or switches."""

    kind: str
    number: int


class Group(NamedTuple):
    """Workers that are the same to a placement: at one switch, and none of them a server, or one that is."""

    switch: int
    workers: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.workers)


@dataclass(frozen=True)
class Fabric:
    """Hosts, switches and links, with nodes numbered as in a cluster: hosts first."""

    nodes: tuple[str, ...]
    hosts: int
    #: The two ends of every link. An arc is a direction of it: 2 * link from the first, 2 * link + 1 from the second.
    links: tuple[tuple[int, int], ...]
    #: Bit/s that tensors have of every link, each way at the same time.
    rate_bps: tuple[float, ...]
    #: Bit/s that each switch takes in to add up: infinite without a limit, 0 where it cannot.
    sum_bps: tuple[float, ...]
    #: Bit/s of sums for which each switch has slots.
    slots_bps: tuple[float, ...]

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """All that has a limit, links first."""
        switches = range(len(self.sum_bps))
        return (
            *(Resource(LINK, link) for link in range(len(self.links))),
            *(Resource(SUM_RATE, switch) for switch in switches if math.isfinite(self.sum_bps[switch])),
            *(Resource(SLOTS, switch) for switch in switches if math.isfinite(self.slots_bps[switch])),
        )

    @cached_property
    def place_of(self) -> dict[Resource, int]:
        """The place of every resource among all."""
        return {resource: place for place, resource in enumerate(self.resources)}

    @cached_property
    def limits_bps(self) -> Floats:
        """What every resource has."""
        of_kind = {LINK: self.rate_bps, SUM_RATE: self.sum_bps, SLOTS: self.slots_bps}
        return np.array([of_kind[resource.kind][resource.number] for resource in self.resources], dtype=np.float64)

    def name_of(self, resource: Resource) -> str:
        """Return a resource for people: "link h0-s0", "summing rate of s1"."""
        if resource.kind == LINK:
            return "link " + "-".join(self.nodes[node] for node in self.links[resource.number])
        return f"{resource.kind} {self.nodes[self.hosts + resource.number]}"

    def can_sum(self, switch: int) -> bool:
        """Whether a switch, by its node, adds up anything."""
        return self.sum_bps[switch - self.hosts] > 0 and self.slots_bps[switch - self.hosts] > 0

    def source(self, arc: int) -> int:
        """Return the node at which an arc begins."""
        return self.links[arc >> 1][arc & 1]

    def target(self, arc: int) -> int:
        """Return the node at which an arc ends."""
        return self.links[arc >> 1][1 - (arc & 1)]

    @cached_property
    def nic(self) -> dict[int, int]:
        """The arc by which every host sends."""
        return {self.source(arc): arc for arc in range(2 * len(self.links)) if self.source(arc) < self.hosts}

    def switch_of(self, host: int) -> int:
        """Return the node to which a host is attached: a switch, or another host."""
        return self.target(self.nic[host])

    @cached_property
    def out_arcs(self) -> dict[int, tuple[int, ...]]:
        """The arcs from every switch to other switches that carry anything; hosts do not forward."""
        found: dict[int, list[int]] = {switch: [] for switch in range(self.hosts, len(self.nodes))}
        for arc in range(2 * len(self.links)):
            if min(self.source(arc), self.target(arc)) >= self.hosts and self.rate_bps[arc >> 1] > 0:
                found[self.source(arc)].append(arc)
        return {switch: tuple(arcs) for switch, arcs in found.items()}

    def hops_to(self, switch: int) -> dict[int, int]:
        """Return how far every switch that reaches one is from it."""
        if switch not in self._hops:
            hops, queue = {switch: 0}, deque([switch])
            while queue:
                node = queue.popleft()
                for arc in self.out_arcs[node]:
                    if self.target(arc) not in hops:
                        hops[self.target(arc)] = hops[node] + 1
                        queue.append(self.target(arc))
            self._hops[switch] = hops
        return self._hops[switch]

    @cached_property
    def _hops(self) -> dict[int, dict[int, int]]:
        return {}

    def arcs_between(self, first: int, last: int, detour: int = 0) -> list[int]:
        """Return the arcs of all ways from one switch to another that are shortest, or longer by so many hops."""
        there, back = self.hops_to(first), self.hops_to(last)
        most = there.get(last, -1) + min(detour, _MOST_DETOUR)
        return [
            arc
            for node in there
            for arc in self.out_arcs[node]
            if there[node] + 1 + back.get(self.target(arc), most) <= most
        ]

    def of_summing_switches(self) -> Fabric:
        """Return the fabric in which nothing goes over switches that cannot sum."""
        rates = (
            rate if all(node < self.hosts or self.can_sum(node) for node in ends) else 0.0
            for ends, rate in zip(self.links, self.rate_bps, strict=True)
        )
        return replace(self, rate_bps=tuple(rates))

    def less(self, taken_bps: Floats) -> Fabric:
        """Return what others leave of the fabric; a trace of everything, so that what is used up is just very slow."""
        left = np.maximum(self.limits_bps - taken_bps, _TRACE * self.limits_bps)
        found = {LINK: list(self.rate_bps), SUM_RATE: list(self.sum_bps), SLOTS: list(self.slots_bps)}
        for resource, limit in zip(self.resources, left.tolist(), strict=True):
            found[resource.kind][resource.number] = limit
        rates, sums, slots = (tuple(found[kind]) for kind in (LINK, SUM_RATE, SLOTS))
        return replace(self, rate_bps=rates, sum_bps=sums, slots_bps=slots)

    def groups(self, workers: Iterable[int], servers: Sequence[int]) -> tuple[Group, ...]:
        """Return workers in groups that are the same to a placement."""
        found: dict[tuple[int, int], list[int]] = {}
        for worker in workers:
            found.setdefault((self.switch_of(worker), worker if worker in servers else -1), []).append(worker)
        return tuple(Group(switch, tuple(members)) for (switch, _), members in found.items())


def fabric_of(
    cluster: Cluster, directed: DirectedLinks, taken_bps: Counter[int], slots: int, sum_rate_bps: int
) -> Fabric:
    """Return a cluster as placements see it.

    `directed` has the rates that hosts reach, `taken_bps` what others have of directed links, `slots` how many slots a
    switch has, and `sum_rate_bps` what it can take in to sum; 0 is no limit.
    """
    left = [rate - taken_bps[link] for link, rate in enumerate(directed.rate_bps)]
    rates = [max(0, min(there, back)) for there, back in zip(left[::2], left[1::2], strict=True)]
    index = {name: node for node, name in enumerate(cluster.nodes)}
    # A slot is taken for as long as a packet goes to the end of its tree and back.
    round_trip_ps = 2 * _longest_way_ps(cluster, directed)
    slots_bps = slots * 8 * SUM_FRAMING.full_packet_bytes * PS_PER_SECOND / max(1, round_trip_ps)
    switches = len(cluster.switches)
    return Fabric(
        cluster.nodes,
        len(cluster.hosts),
        tuple((index[link.a], index[link.b]) for link in cluster.links),
        tuple(map(float, rates)),
        (float(sum_rate_bps) or math.inf,) * switches,
        (slots_bps,) * switches,
    )


def _longest_way_ps(cluster: Cluster, directed: DirectedLinks) -> int:
    """Return how long a packet takes on the longest of the shortest ways, over links as slow as the slowest."""
    bits = 8 * SUM_FRAMING.full_packet_bytes * PS_PER_SECOND
    per_hop = max(
        delay_ps + bits // rate_bps for delay_ps, rate_bps in zip(directed.delay_ps, directed.rate_bps, strict=True)
    )
    switches = len(cluster.switches)
    fabric = Fabric(
        cluster.nodes,
        len(cluster.hosts),
        tuple(zip(directed.source[::2], directed.target[::2], strict=True)),
        (1.0,) * len(cluster.links),
        (1.0,) * switches,
        (1.0,) * switches,
    )
    farthest = max((max(fabric.hops_to(switch).values()) for switch in fabric.out_arcs), default=0)
    return (farthest + 2) * per_hop


def check_ways(fabric: Fabric, name: str, workers: Sequence[int], servers: Sequence[int], *, by_trees: bool) -> None:
    """Refuse workers and servers between which nothing can be sent, or where switches have to sum that cannot."""
    for host in (*workers, *servers):
        switch = fabric.switch_of(host)
        if switch < fabric.hosts:
            raise PlanError(
                f"{name}: host {fabric.nodes[host]} is attached to no switch; accepted: hosts with switches between"
            )
        if fabric.rate_bps[fabric.nic[host] >> 1] <= 0:
            raise PlanError(
                f"{name}: background traffic leaves nothing of link {fabric.nodes[host]}-{fabric.nodes[switch]}; "
                "accepted: less traffic, or a faster link"
            )
        if by_trees and not fabric.can_sum(switch):
            why = "its summing rate is 0" if fabric.slots_bps[switch - fabric.hosts] > 0 else "it has no slot"
            raise PlanError(
                f"{name}: switch {fabric.nodes[switch]} of host {fabric.nodes[host]} cannot sum: {why}; accepted: a "
                "switch that can, or a policy with sum=none"
            )
    used = fabric.of_summing_switches() if by_trees else fabric
    over = "over switches that can sum" if by_trees else "over switches"
    for server in servers:
        reached = used.hops_to(fabric.switch_of(server))
        for worker in workers:
            if fabric.switch_of(worker) not in reached:
                raise PlanError(
                    f"{name}: no way {over} with anything left on its links leads from worker {fabric.nodes[worker]} "
                    f"to server {fabric.nodes[server]}; accepted: one at least"
                )
