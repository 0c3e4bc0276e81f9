"""A plan as a table for a terminal: per job and queue the tensors in it, and the paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tensorexpress import buffer, policy
from tensorexpress.placement import Placement
from tensorexpress.plan import JobPlan, Plan, link_loads, placements_for
from tensorexpress.queueing import DISCIPLINES
from tensorexpress.results.heading import heading
from tensorexpress.scenario import Scenario
from tensorexpress.slots import needed_slots, room_of, round_trip_ps, taken_share, throughput_share
from tensorexpress.sums import SLOT_BYTES, SumPlan
from tensorexpress.text import grid
from tensorexpress.units import counted, format_rate, format_size, format_time


def as_table(plan: Plan, *, paths: bool = False) -> str:
    """Return what was decided, job by job: which tensors share a queue, what they weigh and how urgent they are.

    Where there are several switches a line sums up the paths; `paths` lists them all.
    """
    scenario = plan.scenario
    lines = [
        heading(scenario, said=("job.name", "job.model", "job.workers", "job.servers")),
        f"{plan.policy.name}: {policy.describe(plan.policy)}",
        f"buffer: {buffer.describe(scenario.cluster.buffer_bytes, _queues(plan))}",
    ]
    placements = placements_for(scenario, plan.policy)
    for number, job in enumerate(plan.jobs):
        lines += ["", _title(job, number), *grid(_rows(job, plan.dscps)), *_row_lines(job)]
        if placements:
            lines += ["", *_placement_lines(placements[number], is_alone=len(placements) == 1)]
        for tree in job.sums:
            lines += ["", *sum_lines(tree, scenario)]
    if plan.policy.in_switches:
        lines += ["", memory_line(plan)]
    if len(scenario.cluster.switches) > 1 or paths:
        lines += ["", _paths_line(plan)]
    if paths:
        lines += _path_lines(plan)
    return "\n".join(lines)


def _queues(plan: Plan) -> int:
    """Return between how many queues a port's buffer is shared."""
    return plan.scenario.cluster.queues if DISCIPLINES[plan.policy.discipline].has_queues else 1


def _title(plan: JobPlan, number: int) -> str:
    job = plan.job
    hosts = [counted(len(job.workers), "worker"), counted(len(job.servers), "server")][: 2 if job.servers else 1]
    words = [job.workload.name, *hosts, counted(len(plan.slices), "slice")]
    return f"job {number}, {job.name}: {', '.join(words)}; queues cost {format_time(plan.regret_ps)} against a PIFO"


def _rows(plan: JobPlan, dscps: Sequence[int]) -> list[list[str]]:
    rows = [["queue", "DSCP", "tensors", "from", "to", "bytes", "least slack"]]
    names = [layer.name for layer in plan.job.workload.layers]
    sizes: Counter[int] = Counter()
    for piece in plan.slices:
        sizes[piece.tensor] += piece.bytes
    for queue in sorted(set(plan.queues)):
        tensors = [tensor for tensor, own in enumerate(plan.queues) if own == queue]
        rows.append(
            [
                str(queue),
                str(dscps[queue]) if dscps else "-",
                str(len(tensors)),
                names[tensors[0]],
                names[tensors[-1]],
                format_size(sum(sizes[tensor] for tensor in tensors)),
                format_time(min(plan.slack_ps[tensor] for tensor in tensors)),
            ]
        )
    return rows


def _row_lines(plan: JobPlan) -> list[str]:
    """Return what becomes of sparse tables where switches sum."""
    workload = plan.job.workload
    tables = [layer for layer in workload.layers if layer.table]
    if not tables or not plan.sums:
        return []
    hot = sum(rows * layer.width for rows, layer in zip(plan.hot_rows, workload.layers, strict=True))
    cold = sum(piece.bytes for piece in plan.others)
    return [
        f"hot rows: {sum(plan.hot_rows):,} of {counted(len(tables), 'sparse table')}, "
        f"{format_size(hot * workload.bytes_per_param)} of every worker, are summed in switches; cold ones, "
        f"{format_size(cold)}, go to servers; a layer has its parameters when both are back"
    ]


def _placement_lines(placement: Placement, *, is_alone: bool) -> list[str]:
    """Return what servers get of a model, and the rate that is planned for it."""
    fabric = placement.fabric
    shares = ", ".join(
        f"{fabric.nodes[host]} {share:.1%}"
        for host, share in zip(placement.parties.servers, placement.shares, strict=True)
    )
    rate, bound = format_rate(round(placement.rate_bps)), format_rate(round(placement.bound_bps))
    best = f"the {bound} that no placement beats" if is_alone else f"the {bound} that is fairest to all jobs"
    lines = [
        f"placement {placement.name}: shares {shares}",
        f"every worker sends {rate}, {placement.of_optimum:.0%} of {best}; "
        f"{fabric.name_of(placement.bottleneck)} is used up first",
    ]
    if not is_alone:
        alone = format_rate(round(placement.alone_bps))
        lines.append(f"alone on the network it would send {alone}: sharing costs it {placement.pays:.0%}")
    return lines


def sum_lines(sums: SumPlan, scenario: Scenario) -> list[str]:
    """Return the tree in which switches sum a job's gradients, and the pools of slots that they have for it."""
    cluster, directed = scenario.cluster, scenario.directed()
    needed = needed_slots(sums, directed)
    tree = []
    for number, switch in enumerate(sums.switches):
        below = " ".join(cluster.nodes[directed.source[link]] for link in switch.children)
        tree.append(f"{'root ' if number == 0 else ''}{cluster.switches[switch.switch]} of {below}")
    trip = format_time(round_trip_ps(sums, directed))
    end = f"to server {cluster.hosts[sums.server]}" if sums.server >= 0 else "to the root"
    what = f"{counted(needed, 'packet')} under way" if sums.cells else counted(needed, "slot")
    busy = f"a round trip {end} and back takes {trip}: {what} keep the slowest link busy"
    servers = f"they end at server {cluster.hosts[sums.server]}" if sums.server >= 0 else "servers have none of them"
    pools = _hashed_rows(sums) if sums.cells else _pool_rows(sums, needed)
    return [f"sums in switches: {'; '.join(tree)}; {servers}", *grid(pools), busy]


def _pool_rows(sums: SumPlan, needed: int) -> list[list[str]]:
    rows = [["pool", "slots", "from", "packets", "memory", "of unlimited"]]
    for pool in sums.pools:
        numbers = (pool.queue, pool.slots, pool.first_slot, pool.packets_per_iteration)
        share = throughput_share(pool, needed)
        rows.append([*map(str, numbers), format_size(pool.slots * SLOT_BYTES), f"{share:.0%}"])
    return rows


def _hashed_rows(sums: SumPlan) -> list[list[str]]:
    rows = [["pool", "under way", "packets"]]
    return rows + [[str(pool.queue), str(pool.slots), str(pool.packets_per_iteration)] for pool in sums.pools]


def memory_line(plan: Plan) -> str:
    """Return how full the fullest switch is."""
    cluster = plan.scenario.cluster
    taken: Counter[int] = Counter()
    trees = [tree for job in plan.jobs for tree in job.sums]
    for sums in trees:
        slots = sum(pool.slots for pool in sums.pools)
        taken.update({switch.switch: slots for switch in sums.switches})
    fullest, slots = max(taken.items(), key=lambda item: (item[1], -item[0]))
    room = format_size(cluster.switch_memory_bytes) if cluster.switch_memory_bytes else "no limit"
    if cells := trees[0].cells:
        return (
            f"memory for sums: {format_size(cells * SLOT_BYTES // 2)} in every switch, of {room}: {cells} cells, found "
            f"by hash; with all {slots} sums under way that {cluster.switches[fullest]} may have, "
            f"about {taken_share(slots, cells):.1%} of them or fewer find their cell taken, and a server adds them"
        )
    return (
        f"memory for sums: {format_size(slots * SLOT_BYTES)} in {cluster.switches[fullest]}, the fullest switch, of "
        f"{room}: {slots} of {room_of(cluster)} slots"
    )


def _paths_line(plan: Plan) -> str:
    """Return how many pairs of hosts talk, and which link has the most to carry."""
    loads = [link_loads(job, plan.scenario, plan.paths) for job in plan.jobs]
    busy_ps = sum((shared + own).sum(axis=1) for shared, own in loads)
    busiest = int(np.argmax(busy_ps))
    uses = sum(busiest in path.links for path in plan.paths)
    is_usual = plan.policy.placement == "none" or plan.policy.in_switches
    same = "the same under every policy" if is_usual else "as placed"
    return (
        f"{counted(len(plan.paths), 'path')}, {same}; the busiest link is "
        f"{plan.scenario.cluster.link_names[busiest]}: {counted(uses, 'path')}, "
        f"{format_time(int(busy_ps[busiest]))} in an iteration"
    )


def _path_lines(plan: Plan) -> list[str]:
    """Return a line for each path; parallel links are told apart by the ports at which switches send."""
    cluster = plan.scenario.cluster
    place = {link: f"{name}:{port}" for name in cluster.switches for port, link in cluster.ports(name).items()}
    names = [(cluster.hosts[path.src], cluster.hosts[path.dst]) for path in plan.paths]
    ways = [" ".join(place[link] for link in path.links[1:]) for path in plan.paths]
    width = max(len(name) for name in ("from", *cluster.hosts))
    rows = [("from", "to", "by switch:port"), *((*ends, way) for ends, way in zip(names, ways, strict=True))]
    return [f"{src:{width}}  {dst:{width}}  {way}".rstrip() for src, dst, way in rows]
