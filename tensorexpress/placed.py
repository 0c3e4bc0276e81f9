"""What placements mean for the plan of a scenario: what jobs have of the network, their trees, paths and slices.

A policy with a placement plans all jobs together, on what background traffic leaves of the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from tensorexpress.fabric import LINK, SUM_RATE, Fabric, Resource, fabric_of
from tensorexpress.framing import ETHERNET_BYTES
from tensorexpress.paths import Path, Paths
from tensorexpress.placement import Placement, place_together
from tensorexpress.placement_programs import Parties
from tensorexpress.placement_rounding import SumPlaces, UpTree
from tensorexpress.scenario import Background, Job, Scenario
from tensorexpress.slots import grow_trees, paced, planned_trees, room_of, round_trip_ps
from tensorexpress.sums import SumPlan
from tensorexpress.units import serialisation_ps

#: How many of the longest round trips packets wait before whatever is used up, and which part counts as all of it.
_WAITS = 2
_USED_UP = 0.99


@lru_cache(maxsize=8)
def placements_of(scenario: Scenario, name: str, sums: str, paths: Paths) -> tuple[Placement, ...]:
    """Decide the placement of every job; `paths` are those of background traffic."""
    return place_jobs(scenario, name, "none" if sums == "none" else "trees", paths)


def place_jobs(scenario: Scenario, name: str, way: str, paths: Paths) -> tuple[Placement, ...]:
    """Decide the placements of all jobs together, for one way to sum."""
    jobs = range(len(scenario.jobs))
    trees = [_usual_trees(scenario, job) for job in jobs] if name == "atp" and way == "trees" else None
    parties = [Parties(job.name, job.hosts, job.servers) for job in scenario.jobs]
    return place_together(fabric_for(scenario, paths), parties, name, way, seed=scenario.seed, trees=trees)


def fabric_for(scenario: Scenario, paths: Paths) -> Fabric:
    """Return what background traffic leaves of the network."""
    taken, cluster = taken_by_background(scenario.background, paths), scenario.cluster
    return fabric_of(cluster, scenario.directed(), taken, room_of(cluster), cluster.switch_rate_bps)


def taken_by_background(sources: Iterable[Background], paths: Paths) -> Counter[int]:
    """Return what background traffic takes of directed links, in bit/s on the wire."""
    taken: Counter[int] = Counter()
    for source in sources:
        on_wire_bps = source.rate_bps * (source.packet_bytes + ETHERNET_BYTES) // source.packet_bytes
        taken.update(dict.fromkeys(paths.between(source.src, source.dst), on_wire_bps))
    return taken


def _usual_trees(scenario: Scenario, number: int) -> tuple[UpTree, ...]:
    """Return the trees to a job's servers where nobody plans them: the shortest ways to each server's switch."""
    job, hosts = scenario.jobs[number], len(scenario.cluster.hosts)
    (trees,) = grow_trees(replace(scenario, jobs=(_for_all_servers(job),)), "front")
    found = {}
    for tree in trees:
        up = {hosts + switch.switch: switch.up for switch in tree.switches[1:]}
        found[tree.server] = UpTree(hosts + tree.switches[0].switch, up)
    return tuple(found[server] for server in job.servers)


def _for_all_servers(job: Job) -> Job:
    """Return a job of which every server has something: as many layers as servers."""
    layer = max(job.workload.layers, key=lambda layer: layer.params)
    return replace(job, workload=replace(job.workload, layers=(layer,) * len(job.servers)))


def trees_of_placement(scenario: Scenario, job: Job, placement: Placement, sums: str) -> tuple[SumPlan, ...]:
    """Return the trees of the servers that have a share, by host; pools come later."""
    roots = {}
    for server, share, choice in zip(job.servers, placement.shares, placement.choices, strict=True):
        if share > 0 and isinstance(choice.way, UpTree):
            roots[server] = (choice.way.root, choice.way.up)
    return planned_trees(scenario, job, roots, sums)


def with_planned_slots(
    trees: Sequence[Sequence[SumPlan]], placements: Sequence[Placement], scenario: Scenario
) -> list[tuple[SumPlan, ...]]:
    """Return the trees of all jobs with slots for what is planned for each, and no more than they have packets.

    Trees that meet before something that is used up share it by what they have under way, and their packets wait there
    for the same time. So a tree has slots for its planned rate at a round trip with the same wait before everything on
    its way that is used up: then all reach their rates at once. With more, a tree would be through early, and leave
    unused what others do not need.
    """
    directed = scenario.directed()
    wait_ps = _WAITS * max((round_trip_ps(tree, directed) for own in trees for tree in own), default=0)
    found = []
    for own, placement in zip(trees, placements, strict=True):
        share_of = dict(zip(placement.parties.servers, placement.shares, strict=True))
        used_up = {placement.fabric.resources[place] for place in np.flatnonzero(placement.usage >= _USED_UP)}
        trips_ps = (_longest_trip_ps(tree, scenario, used_up, wait_ps) for tree in own)
        found.append(
            tuple(
                paced(tree, placement.rate_bps * share_of[tree.server], trip_ps)
                for tree, trip_ps in zip(own, trips_ps, strict=True)
            )
        )
    return found


def _longest_trip_ps(tree: SumPlan, scenario: Scenario, used_up: Container[Resource], wait_ps: int) -> int:
    """Return how long a packet is under way that waits so long before all that is used up, and at least once."""
    directed, hosts = scenario.directed(), len(scenario.cluster.hosts)
    adds, waits = Counter[int](), Counter[int]()
    for link in tree.links:
        source, target = directed.source[link], directed.target[link]
        # At a worker's own link trees take turns: nobody waits there for others.
        waits[link] += source >= hosts and Resource(LINK, link // 2) in used_up
        if target >= hosts and scenario.cluster.switch_rate_bps:
            adds[link] = serialisation_ps(tree.framing.full_packet_bytes, scenario.cluster.switch_rate_bps)
            waits[link] += Resource(SUM_RATE, target - hosts) in used_up
    with_waits = {link: adds[link] + wait_ps * waits[link] for link in tree.links}
    return max(round_trip_ps(tree, directed, adds) + wait_ps, round_trip_ps(tree, directed, with_waits))


def paths_of(placements: Sequence[Placement], usual: Paths) -> Paths:
    """Return the paths that placements have chosen, both ways, and the usual ones of who else talks.

    Two hosts have one path, whatever job a packet is of: that of the first job that has one.
    """
    chosen = {(path.src, path.dst): path for placement in reversed(placements) for path in _chosen(placement)}
    return Paths(tuple(chosen.get((path.src, path.dst), path) for path in usual))


def _chosen(placement: Placement) -> Iterator[Path]:
    fabric = placement.fabric
    for server, choice in zip(placement.parties.servers, placement.choices, strict=True):
        if not isinstance(choice.way, SumPlaces):
            continue
        for worker, arcs in choice.way.to_place.items():
            if worker != server:
                there = (fabric.nic[worker], *arcs, fabric.nic[server] ^ 1)
                yield Path(worker, server, there)
                yield Path(server, worker, tuple(arc ^ 1 for arc in reversed(there)))


def cut_by_shares(
    sizes: Sequence[int], units: Sequence[int], shares: Sequence[float], least: int
) -> Iterator[list[int]]:
    """Yield what every server gets of each tensor: whole units, so that all sizes so far follow the shares.

    Tensors of fewer than `least` go to one server.

    >>> [parts for parts in cut_by_shares([100, 4, 100], [1, 1, 1], [0.75, 0.25], least=10)]
    [[75, 25], [4, 0], [74, 26]]
    """
    given = [0] * len(shares)
    done = 0
    for size, unit in zip(sizes, units, strict=True):
        done += size
        wanted = [max(0.0, share * done - had) for share, had in zip(shares, given, strict=True)]
        if size < least:
            most = max(range(len(shares)), key=lambda server: (wanted[server], -server))
            parts = [size if server == most else 0 for server in range(len(shares))]
        else:
            parts = _whole_units(size, unit, wanted)
        given = [had + part for had, part in zip(given, parts, strict=True)]
        yield parts


def _whole_units(size: int, unit: int, wanted: Sequence[float]) -> list[int]:
    """Return a size in parts near what is wanted, all but the last that there is of whole units."""
    total, ends, so_far = sum(wanted), [], 0.0
    for amount in wanted:
        so_far += amount
        ends.append(min(size, round(size * so_far / total / unit) * unit))
    ends[-1] = size
    # Whoever wants nothing gets nothing: what is left over is of the last who wants something.
    last = max(server for server, amount in enumerate(wanted) if amount > 0)
    ends[last:] = [size] * (len(ends) - last)
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
