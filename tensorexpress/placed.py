"""What placements mean for the plan of a scenario: what every job has of the network, its trees, paths and slices.

A policy with a placement plans every job by itself, on its part of the network: what jobs share, they have in equal
parts, less what background traffic takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from tensorexpress.fabric import Fabric, fabric_of
from tensorexpress.framing import ETHERNET_BYTES
from tensorexpress.paths import Path, Paths
from tensorexpress.placement import Placement, place
from tensorexpress.placement_programs import Parties
from tensorexpress.placement_rounding import SumPlaces, UpTree
from tensorexpress.scenario import Job, Scenario
from tensorexpress.slots import grow_trees, planned_trees, room_of
from tensorexpress.sums import SumPlan


@lru_cache(maxsize=8)
def placements_of(scenario: Scenario, name: str, sums: str, paths: Paths) -> tuple[Placement, ...]:
    """Decide the placement of every job; `paths` are those of background traffic."""
    way = "none" if sums == "none" else "trees"
    return tuple(place_job(scenario, number, name, way, paths) for number in range(len(scenario.jobs)))


def place_job(scenario: Scenario, number: int, name: str, way: str, paths: Paths) -> Placement:
    """Decide the placement of one job."""
    job = scenario.jobs[number]
    trees = _usual_trees(scenario, number) if name == "atp" and way == "trees" else None
    parties = Parties(job.name, job.hosts, job.servers)
    return place(fabric_for(scenario, number, paths), parties, name, way, seed=scenario.seed, trees=trees)


def fabric_for(scenario: Scenario, number: int, paths: Paths) -> Fabric:
    """Return what a job has of the network."""
    taken: Counter[int] = Counter()
    for source in scenario.background:
        on_wire_bps = source.rate_bps * (source.packet_bytes + ETHERNET_BYTES) // source.packet_bytes
        taken.update(dict.fromkeys(paths.between(source.src, source.dst), on_wire_bps))
    cluster, jobs = scenario.cluster, len(scenario.jobs)
    whole = fabric_of(cluster, scenario.directed(), taken, room_of(cluster), cluster.switch_rate_bps)
    at_host = Counter(host for job in scenario.jobs for host in {*job.hosts, *job.servers})
    parts = [at_host[min(ends)] or 1 if min(ends) < whole.hosts else jobs for ends in whole.links]
    return replace(
        whole,
        rate_bps=tuple(rate / part for rate, part in zip(whole.rate_bps, parts, strict=True)),
        sum_bps=tuple(rate / jobs for rate in whole.sum_bps),
        slots_bps=tuple(rate / jobs for rate in whole.slots_bps),
    )


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
