"""Slots: which switches sum the gradients of every job, and how the classes of all jobs share the memory for it.

A tree is made of switches next to each other: every worker's own, and those between them and a root that is as near to
all of them as can be. Jobs choose in turn, so that trees of several jobs part where they can.

A pool has the next power of two of slots that covers the bandwidth-delay product from a worker to the root and back,
and no more than it has packets. Where switches have not the memory for that, the largest pool is halved, of equal ones
the least urgent, until all fit: so urgent classes keep theirs longest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import NamedTuple

from tensorexpress.cluster import Cluster
from tensorexpress.errors import PlanError, shown
from tensorexpress.graph import cut
from tensorexpress.hot_rows import hot_rows_of
from tensorexpress.routing import DirectedLinks
from tensorexpress.scenario import Job, Scenario
from tensorexpress.sums import MOST_CHILDREN, SLOT_BYTES, VALUES, Pool, SummingSwitch, SumPlan, packets_of, slots_in
from tensorexpress.units import PS_PER_SECOND, counted, format_size, serialisation_ps

#: Roots whose links are looked at, of those that are equally near.
_MOST_ROOTS = 64


def grow_trees(scenario: Scenario, sums: str = "pool") -> tuple[tuple[SumPlan, ...], ...]:
    """Return which switches sum the gradients of every job, for a choice of `policy.SUMS`; pools come later.

    That is one tree, or where sums end at servers one for each of these; none where there is nothing for it.

    >>> from tensorexpress.scenario import read_scenario
    >>> scenario = read_scenario(overrides=["cluster.topology=dumbbell", "cluster.left=2", "cluster.right=2",
    ...     "job.workers=h0,h1,h3", "job.servers=1"])
    >>> for switch in grow_trees(scenario)[0][0].switches:
    ...     print(switch)
    SummingSwitch(switch=0, children=(0, 2, 9), up=-1)
    SummingSwitch(switch=1, children=(6,), up=9)
    """
    forest = _Forest(scenario.cluster)
    trees = []
    for job in scenario.jobs:
        packets = packets_of(job.workload, hot_rows_of(job, scenario.cluster))
        trees.append(
            tuple(
                SumPlan(forest.grow(job, sum(packets)), ())
                if server < 0
                else replace(forest.grow_at(job, server, load), cells=cells)
                for server, cells, load in ends_of(job, scenario.cluster, sums, packets)
            )
        )
    return tuple(trees)


def planned_trees(
    scenario: Scenario, job: Job, roots: Mapping[int, tuple[int, Mapping[int, int]]], sums: str
) -> tuple[SumPlan, ...]:
    """Return the trees of servers whose root and links up, by node, are planned."""
    forest = _Forest(scenario.cluster)
    cells = _cells_of(scenario.cluster) if sums == "hashed" else 0
    return tuple(
        replace(forest.planned(job, server, root, up), cells=cells) for server, (root, up) in sorted(roots.items())
    )


def servers_of(job: Job, packets: Sequence[int]) -> tuple[dict[int, int], ...]:
    """Return what servers get of every tensor, of so many packets: all of it the one that has the fewest so far.

    Hot rows of sparse tables are split over all servers as tensors are elsewhere: if they are not too few for that.
    """
    load: dict[int, int] = dict.fromkeys(job.servers, 0)
    packet_bytes = VALUES * job.workload.bytes_per_param
    chosen = []
    for layer, needed in zip(job.workload.layers, packets, strict=True):
        if layer.table and needed * packet_bytes >= job.shard_bytes:
            own = dict(zip(job.servers, cut(needed, len(job.servers)), strict=True))
        else:
            own = {min(load, key=lambda host: (load[host], host)): needed}
        chosen.append({server: part for server, part in sorted(own.items()) if part})
        for server, part in own.items():
            load[server] += part
    return tuple(chosen)


class TreeEnd(NamedTuple):
    """Where the sums of a tree end."""

    #: The host of a server; -1: at the root.
    server: int
    #: As in `SumPlan`.
    cells: int
    #: How many packets of an iteration end there.
    packets: int


def ends_of(job: Job, cluster: Cluster, sums: str, packets: Sequence[int]) -> list[TreeEnd]:
    """Return where sums of a job end, in order, for a choice of `policy.SUMS` and the packets of every tensor."""
    if sums == "pool":
        return [TreeEnd(-1, 0, sum(packets))] if any(packets) else []
    cells = _cells_of(cluster) if sums == "hashed" else 0
    load: Counter[int] = Counter()
    for own in servers_of(job, packets):
        load.update(own)
    return [TreeEnd(server, cells, own) for server, own in sorted(load.items())]


class _Forest:
    """Knows how busy the links between switches are with sums so far, and which switches are roots."""

    def __init__(self, cluster: Cluster):
        self._names, self._hosts = cluster.nodes, len(cluster.hosts)
        directed = cluster.directed()
        self._target, fastest_bps = directed.target, max(directed.rate_bps)
        #: How much longer than the fastest link each takes for a byte, in 16ths, as where paths are chosen.
        self._slowness = [round(16 * fastest_bps / rate_bps) for rate_bps in directed.rate_bps]
        self._nic = [0] * self._hosts
        self._trunks: dict[int, list[int]] = {node: [] for node in range(self._hosts, len(self._names))}
        for link, (source, target) in enumerate(zip(directed.source, directed.target, strict=True)):
            if source < self._hosts:
                self._nic[source] = link
            elif target >= self._hosts:
                self._trunks[source].append(link)
        #: Packets times slowness, by link.
        self._busy: Counter[int] = Counter()
        self._roots: Counter[int] = Counter()

    def grow(self, job: Job, packets: int) -> tuple[SummingSwitch, ...]:
        """Return the tree of a job, of which so many packets are summed, the root first."""
        nics, firsts = self._workers(job)
        trees = [(root, self._up_links(root, firsts)) for root in self._nearest(firsts)]

        def busiest(tree: tuple[int, dict[int, int]]) -> tuple[int, int, int]:
            root, up = tree
            most = max((self._busy[link] + packets * self._slowness[link] for link in up.values()), default=0)
            return most, self._roots[root], root

        root, up = min(trees, key=busiest)
        self._roots[root] += 1
        self._occupy(up.values(), packets)
        return self._tree(job, root, up, nics)

    def grow_at(self, job: Job, server: int, packets: int) -> SumPlan:
        """Return the tree of what a server has of a job, so many packets: its root is the server's own switch."""
        _, firsts = self._workers(job)
        root = self._target[self._nic[server]]
        reached = self._hops_from(root) if root >= self._hosts else {}
        for first in firsts:
            if first not in reached:
                raise PlanError(
                    f"{job.name}: no way leads over switches alone from {self._names[first]} to server "
                    f"{self._names[server]}; accepted where switches sum: one at least"
                )
        up = self._up_links(root, firsts)
        self._occupy(up.values(), packets)
        return self.planned(job, server, root, up)

    def planned(self, job: Job, server: int, root: int, up: Mapping[int, int]) -> SumPlan:
        """Return the tree of a server whose switches and links up are known."""
        nics, _ = self._workers(job)
        top, *others = self._tree(job, root, up, nics)
        return SumPlan((replace(top, up=self._nic[server] ^ 1), *others), (), server)

    def _workers(self, job: Job) -> tuple[list[int], list[int]]:
        """Return the links by which workers send, and the switches at which they are."""
        nics = [self._nic[host] for host in job.hosts]
        firsts = sorted({self._target[link] for link in nics})
        if firsts[0] < self._hosts:
            raise PlanError(f"{job.name}: no switch is between its workers; accepted where switches sum: one at least")
        return nics, firsts

    def _occupy(self, links: Iterable[int], packets: int) -> None:
        for link in links:
            self._busy[link] += packets * self._slowness[link]

    def _nearest(self, firsts: Sequence[int]) -> list[int]:
        """Return the switches from which the farthest of these is nearest; some, where there are many."""
        distances = [self._hops_from(first) for first in firsts]
        reached = set(distances[0]).intersection(*distances[1:])
        depth = {node: max(hops[node] for hops in distances) for node in reached}
        least = min(depth.values())
        nearest = [node for node in sorted(depth) if depth[node] == least]
        return sorted(nearest, key=lambda node: (self._roots[node], node))[:_MOST_ROOTS]

    def _hops_from(self, switch: int) -> dict[int, int]:
        hops, frontier = {switch: 0}, [switch]
        while frontier:
            further = {self._target[link] for node in frontier for link in self._trunks[node]} - hops.keys()
            hops |= dict.fromkeys(further, hops[frontier[0]] + 1)
            frontier = sorted(further)
        return hops

    def _up_links(self, root: int, firsts: Iterable[int]) -> dict[int, int]:
        """Return the link of every switch to the one above, from these switches up to a root by shortest ways.

        Ways join where they can, and otherwise take what is least busy.
        """
        hops = self._hops_from(root)
        up: dict[int, int] = {}
        waiting = set(firsts)
        for distance in range(max(hops[first] for first in firsts), 0, -1):
            joined = {node for node in waiting if hops[node] == distance - 1}
            for node in sorted(node for node in waiting if hops[node] == distance):
                links = [link for link in self._trunks[node] if hops[self._target[link]] < distance]
                link = min(links, key=lambda link: (self._target[link] not in joined, self._busy[link], link))
                up[node] = link
                joined.add(self._target[link])
            waiting |= joined
        return up

    def _tree(self, job: Job, root: int, up: Mapping[int, int], nics: Iterable[int]) -> tuple[SummingSwitch, ...]:
        children: dict[int, list[int]] = {node: [] for node in (root, *up)}
        for links in (sorted(nics), sorted(up.values())):
            for link in links:
                children[self._target[link]].append(link)
        for node, links in children.items():
            if len(links) > MOST_CHILDREN:
                raise PlanError(
                    f"{job.name}: switch {self._names[node]} would sum for {len(links)} hosts and switches below it; "
                    f"accepted: {MOST_CHILDREN} at most; take more switches, or several jobs"
                )
        ordered = [root]
        for node in ordered:
            ordered += sorted(below for below, link in up.items() if self._target[link] == node)
        return tuple(SummingSwitch(node - self._hosts, tuple(children[node]), up.get(node, -1)) for node in ordered)


def round_trip_ps(tree: SumPlan, directed: DirectedLinks, held_ps: Mapping[int, int] | None = None) -> int:
    """Return how long a packet takes from the farthest worker to where sums end and back where nothing else is sent.

    `held_ps` is what it is held up besides, by link that leads up.
    """
    packet_bytes, held = tree.framing.full_packet_bytes, held_ps or {}

    def passes_ps(link: int) -> int:
        occupied_ps = 0 if directed.paced[link] else serialisation_ps(packet_bytes, directed.rate_bps[link])
        return occupied_ps + directed.delay_ps[link]

    return max(
        sum(passes_ps(link) + passes_ps(link ^ 1) + held.get(link, 0) for link in tree.way_up(first))
        for first in tree.links
    )


def needed_slots(tree: SumPlan, directed: DirectedLinks) -> int:
    """Return how many packets must be under way to keep the slowest link of a tree busy."""
    rate_bps = min(directed.rate_bps[way] for link in tree.links for way in (link, link ^ 1))
    per_packet = 8 * tree.framing.full_packet_bytes * PS_PER_SECOND
    return max(1, -(-round_trip_ps(tree, directed) * rate_bps // per_packet))


def paced(tree: SumPlan, rate_bps: float, round_trip_ps: int) -> SumPlan:
    """Return a tree whose pools have slots for a rate at a round trip, and no more than they have packets."""
    per_packet = 8 * tree.framing.full_packet_bytes * PS_PER_SECOND
    slots = max(2, math.ceil(rate_bps * round_trip_ps / per_packet))
    pools = (replace(pool, slots=min(slots, pool.packets_per_iteration)) for pool in tree.pools)
    return replace(tree, pools=tuple(pools))


def throughput_share(pool: Pool, needed: int) -> float:
    """Return what a pool reaches of the throughput that it would have with unlimited memory, if all its packets are
    summed."""
    return min(1.0, pool.slots / min(needed, pool.packets_per_iteration))


def taken_share(sums: int, cells: int) -> float:
    """Return the share of so many sums under way that find their cell taken, where cells are found by a random hash.

    Those of one pool have numbers in a row, and find fewer taken.

    >>> round(taken_share(sums=32, cells=946), 4)
    0.0162
    """
    # Cells that at least one of them finds; whoever comes first has it.
    return 1 - cells * (1 - (1 - 1 / cells) ** sums) / sums


def wanted_pools(own: Mapping[int, tuple[int, int]], queues: Sequence[int], needed: int) -> tuple[Pool, ...]:
    """Return the pools of some tensors of a job with unlimited memory, one for each of their queues.

    Of every tensor there is the first packet, and how many there are.
    """
    pools = []
    for queue in sorted({queues[tensor] for tensor in own}):
        tensors = tuple(tensor for tensor in sorted(own, reverse=True) if queues[tensor] == queue)
        starts, packets = (tuple(own[tensor][which] for tensor in tensors) for which in (0, 1))
        slots = _power_of_two(min(needed, sum(packets)))
        pools.append(Pool(queue, 0, slots, tensors, packets, starts if any(starts) else ()))
    return tuple(pools)


def _power_of_two(least: int) -> int:
    """Return the next power of two.

    >>> [_power_of_two(least) for least in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return 1 << (least - 1).bit_length()


def room_of(cluster: Cluster) -> int:
    """Return how many slots a switch has."""
    return slots_in(cluster.switch_memory_bytes)


def _cells_of(cluster: Cluster) -> int:
    """Return how many cells a switch uses where slots are found by hash; a slot has two of them.

    That is a power of two, even if a switch has more. Packets under way have numbers in a row, and a CRC is linear:
    modulo a power of two, those of a pool find different cells. With all 946 of 1 MB, one sum in a hundred finds its
    cell taken by another of its own pool, with 512 of them next to none.
    """
    room = room_of(cluster)
    if room < 1:
        raise PlanError(
            f"a switch has {format_size(cluster.switch_memory_bytes)} for sums; accepted: a cluster.switch_memory of "
            f"{format_size(SLOT_BYTES)} or more"
        )
    return 1 << ((2 * room).bit_length() - 1)


def numbered(trees: Iterable[SumPlan]) -> tuple[SumPlan, ...]:
    """Return the trees of a job whose slots are found by hash, with pools that have numbers to tell them apart."""
    number, found = count(), []
    for tree in trees:
        found.append(replace(tree, pools=tuple(replace(pool, first_slot=next(number)) for pool in tree.pools)))
    return tuple(found)


def share_out(plans: Sequence[SumPlan], cluster: Cluster, names: Sequence[str]) -> tuple[SumPlan, ...]:
    """Return the plans of trees with pools that fit into the switches' memory, each with slots of its own.

    A pool has the same slots in all switches of its tree, and shares none with a tree that meets it in one of them.
    """
    room, rivals = room_of(cluster), list(_rivals(plans))
    pools = [list(plan.pools) for plan in plans]
    while (crowded := _place(pools, rivals, room)) is not None:
        largest = [(pools[job][place].slots, pools[job][place].queue, job, place) for job, place in _of(pools, crowded)]
        slots, _, job, place = max(largest)
        if slots == 1:
            among = ", ".join(dict.fromkeys(names[job] for job in crowded))
            raise PlanError(
                f"{among}: a switch has room for {counted(room, 'slot')} of {SLOT_BYTES} bytes, and "
                f"{counted(len(largest), 'pool')} need one each; accepted: a cluster.switch_memory of "
                f"{format_size(len(largest) * SLOT_BYTES)} or more, fewer queues, or fewer jobs"
            )
        pools[job][place] = replace(pools[job][place], slots=slots // 2)
    return tuple(replace(plan, pools=tuple(own)) for plan, own in zip(plans, pools, strict=True))


def _rivals(plans: Sequence[SumPlan]) -> Iterator[list[int]]:
    """Yield for every job those that share a switch with it, itself among them."""
    used = [{switch.switch for switch in plan.switches} for plan in plans]
    for own in used:
        yield [job for job, other in enumerate(used) if own & other]


def _of(pools: Sequence[Sequence[Pool]], jobs: Iterable[int]) -> Iterator[tuple[int, int]]:
    return ((job, place) for job in jobs for place in range(len(pools[job])))


def _place(pools: list[list[Pool]], rivals: Sequence[Sequence[int]], room: int) -> Sequence[int] | None:
    """Give every pool the first slots that are free in all its switches; return the jobs among which one has none."""
    for job, own in enumerate(pools):
        for place, pool in enumerate(own):
            before = [pools[other][at] for other, at in _of(pools, rivals[job]) if (other, at) < (job, place)]
            first = 0
            for taken in sorted(before, key=lambda taken: taken.first_slot):
                if taken.first_slot >= first + pool.slots:
                    break
                first = max(first, taken.first_slot + taken.slots)
            if first + pool.slots > room:
                return rivals[job]
            own[place] = replace(pool, first_slot=first)
    return None


def check_tree(tree: SumPlan, job: Job, cluster: Cluster) -> None:
    """Refuse what is no tree of switches that sums gradients of all workers of a job once; PlanError."""
    directed, hosts = cluster.directed(), len(cluster.hosts)
    children: dict[int, list[int]] = {}
    if not tree.switches:
        raise PlanError("switches is []; accepted: one at least, the root first")
    for number, switch in enumerate(tree.switches):
        where, node = f"switches.{number}", hosts + switch.switch
        if not 0 <= switch.switch < len(cluster.switches) or node in children:
            raise PlanError(f"{where}.switch is {shown(switch.switch)}; accepted: a switch of the cluster, each once")
        is_link = 0 <= switch.up < len(directed.source) and directed.source[switch.up] == node
        if number == 0:
            is_right = is_link and directed.target[switch.up] == tree.server if tree.server >= 0 else switch.up == -1
        else:
            is_right = is_link and directed.target[switch.up] in children
        if not is_right:
            first = "-1" if tree.server < 0 else f"the link to {cluster.hosts[tree.server]}"
            raise PlanError(
                f"{where}.up is {shown(switch.up)}; accepted: {first} for the first, then a link to one that stands "
                "before"
            )
        children[node] = []
    nics = {directed.source[link]: link for link in range(len(directed.source)) if directed.source[link] in job.hosts}
    ups = [switch.up for switch in tree.switches[1:]]
    for link in (*sorted(nics.values()), *sorted(ups)):
        if directed.target[link] not in children:
            raise PlanError(f"switches have no {cluster.nodes[directed.target[link]]}, the switch of a worker")
        children[directed.target[link]].append(link)
    for number, switch in enumerate(tree.switches):
        expected = children[hosts + switch.switch]
        # Workers know their numbers; switches keep theirs when another one takes a place in the tree.
        known = sum(directed.source[link] < hosts for link in expected)
        given = [*switch.children[:known], *sorted(switch.children[known:])]
        if given != expected or not 1 <= len(expected) <= MOST_CHILDREN:
            raise PlanError(
                f"switches.{number}.children is {shown(list(switch.children))}; accepted: 1 to {MOST_CHILDREN} links "
                f"from workers and from switches below, here {shown(expected)}"
            )


def check_pools(
    plans: Sequence[SumPlan], wanted: Sequence[SumPlan], cluster: Cluster, places: Sequence[tuple[int, int]]
) -> None:
    """Refuse pools of other tensors than these have, or whose slots are not there or another's; PlanError.

    Of every tree there is its job and which of its trees it is.
    """
    room, rivals = room_of(cluster), list(_rivals(plans))
    for (job, tree), plan, want in zip(places, plans, wanted, strict=True):
        where = f"jobs.{job}.sums.{tree}.pools"
        if not want.pools or [_contents(pool) for pool in plan.pools] != [_contents(pool) for pool in want.pools]:
            raise PlanError(f"{where} are not of the tensors that are in one queue; make the plan again")
        if plan.cells:
            if plan.pools != want.pools:
                raise PlanError(f"{where} have other slots than a worker may have under way; make the plan again")
            continue
        for number, pool in enumerate(plan.pools):
            if not (pool.slots >= 1 and 0 <= pool.first_slot <= room - pool.slots):
                raise PlanError(
                    f"{where}.{number} has {shown(pool.slots)} slots from {shown(pool.first_slot)} on; accepted: 1 or "
                    f"more of the {room} that a switch has"
                )
    for (job, tree), own, others in zip(places, plans, rivals, strict=True):
        if own.cells:
            continue
        pools = [pool for other in others for pool in plans[other].pools]
        pools.sort(key=lambda pool: pool.first_slot)
        for pool, following in pairwise(pools):
            if pool.first_slot + pool.slots > following.first_slot:
                raise PlanError(
                    f"jobs.{job}.sums.{tree}.pools: slot {following.first_slot} is given away twice in switch "
                    f"{cluster.switches[own.switches[0].switch]}'s tree; accepted: to one pool"
                )


def _contents(pool: Pool) -> tuple[object, ...]:
    return pool.queue, pool.tensors, pool.packets, pool.starts
