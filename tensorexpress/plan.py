"""Plans: what is decided for one scenario and one policy: ranks, queues, slices, servers and routes.

A plan says nothing about when things happen. The simulator, a switch and real hosts execute the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorexpress.changes import USUAL_PACE
from tensorexpress.deadline import equal_map, fewest_map, gather_slacks, queue_map, regret_ps, slacks
from tensorexpress.errors import PolicyError, ScenarioError
from tensorexpress.framing import ETHERNET_BYTES, Framing
from tensorexpress.graph import (
    ARCHITECTURES,
    BEFORE_SERVERS,
    IN_SWITCHES,
    KINDS,
    Architecture,
    Cargo,
    Graph,
    cut,
    draw,
    share,
)
from tensorexpress.hot_rows import hot_rows_of
from tensorexpress.memory import check_memory
from tensorexpress.paths import Paths, choose_paths
from tensorexpress.placed import cut_by_shares, paths_of, placements_of, trees_of_placement, with_planned_slots
from tensorexpress.placement import Placement
from tensorexpress.policy import Policy
from tensorexpress.scenario import Job, Scenario, policy_problems, sum_problems
from tensorexpress.slots import grow_trees, needed_slots, numbered, servers_of, share_out, wanted_pools
from tensorexpress.sums import PART_FRAMING, SUM_FRAMING, VALUES, SumPlan, packets_of, packets_of_parts
from tensorexpress.units import PS_PER_SECOND, serialisation_ps
from tensorexpress.wire.dscp import check_dscps, default_dscps
from tensorexpress.workload import Workload

Ints = NDArray[np.int64]

#: Bytes of memory of a slice of a plan.
_BYTES_PER_SLICE = 200

#: Memory that drawing a message takes, and messages that are looked at in one go.
_BYTES_PER_MESSAGE = 200
_AT_ONCE = 10_000

#: Longest run; times of it, and sums of a few of them, stay inside 64 bits.
_LONGEST_RUN_PS = 2**62
_PS_PER_DAY = 86_400 * PS_PER_SECOND


@dataclass(frozen=True)
class SlicePlan:
    """A part of a tensor, and who sums it: a server's host, the switch at the root of those that do, or -1 for workers.

    Hosts and switches have their numbers in `Cluster.nodes`.
    """

    tensor: int
    bytes: int
    server: int
    #: Whether switches sum it on its way.
    summed: bool = False


def rows_in(summed: Iterable[SlicePlan], workload: Workload) -> tuple[int, ...]:
    """Return how many rows of every layer's sparse table are in slices that switches sum; 0 where it has none."""
    size: Counter[int] = Counter()
    for piece in summed:
        size[piece.tensor] += piece.bytes
    row_bytes = [layer.width * workload.bytes_per_param for layer in workload.layers]
    dense_bytes = [layer.dense_values() * workload.bytes_per_param for layer in workload.layers]
    return tuple(
        max(0, size[tensor] - dense_bytes[tensor]) // row_bytes[tensor] if layer.table else 0
        for tensor, layer in enumerate(workload.layers)
    )


@dataclass(frozen=True)
class JobPlan:
    """What was decided for one job, per tensor in forward order and per slice."""

    job: Job
    #: Lower is more urgent; the order in which the next forward pass needs the tensors.
    ranks: tuple[int, ...]
    #: The strict-priority queue of every tensor; 0 is the most urgent.
    queues: tuple[int, ...]
    #: Time from gradient ready to when the next forward pass needs the tensor, if nothing stalls.
    slack_ps: tuple[int, ...]
    #: Those that switches sum come first.
    slices: tuple[SlicePlan, ...]
    #: How long each tensor occupies the job's busiest link in one iteration.
    transfer_ps: tuple[int, ...] = ()
    #: What the map from ranks to queues costs an iteration against a PIFO, on that link in fluid form.
    regret_ps: int = 0
    #: Where switches sum it, tree by tree; none where they do not.
    sums: tuple[SumPlan, ...] = ()

    @property
    def architecture(self) -> Architecture:
        """How gradients are summed."""
        if not self.sums:
            return ARCHITECTURES[self.job.architecture]
        return IN_SWITCHES if self.sums[0].server < 0 else BEFORE_SERVERS

    @cached_property
    def summed(self) -> tuple[SlicePlan, ...]:
        """The slices that switches sum."""
        return tuple(piece for piece in self.slices if piece.summed)

    @cached_property
    def others(self) -> tuple[SlicePlan, ...]:
        """The slices that go as messages."""
        return self.slices[len(self.summed) :]

    @cached_property
    def packets(self) -> list[tuple[int, int]]:
        """The first packet in its tensor, and the number of packets, of every slice that switches sum."""
        return packets_of_parts(self.job.workload, ((piece.tensor, piece.bytes) for piece in self.summed))

    def packets_for(self, end: int) -> dict[int, tuple[int, int]]:
        """Return what is summed up to one end, a server's host or a root: by tensor the first packet, and how many."""
        each = zip(self.summed, self.packets, strict=True)
        return {piece.tensor: packets for piece, packets in each if piece.server == end}

    @cached_property
    def hot_rows(self) -> tuple[int, ...]:
        """How many rows of every layer's sparse table switches sum; 0 where it has none."""
        return rows_in(self.summed, self.job.workload)

    @cached_property
    def graph(self) -> Graph:
        """Who sends what to whom in an iteration, for all who execute the plan."""
        job = self.job
        tensor, size, server = np.array(
            [(piece.tensor, piece.bytes, piece.server) for piece in self.slices], dtype=np.int64
        ).T
        cargo = Cargo(
            job.hosts,
            len(self.ranks),
            tensor,
            size,
            server,
            job.sum_rate_bps,
            job.gpus_per_host,
            job.local_rate_bps,
            job.prefetch,
            job.forward_only,
            job.barrier,
            len(self.summed),
        )
        return draw(self.architecture, cargo)


@dataclass(frozen=True)
class Plan:
    """A scenario, a policy and what follows from the two."""

    scenario: Scenario
    policy: Policy
    jobs: tuple[JobPlan, ...]
    #: By which links the packets of every two hosts go that talk; the same under every policy that plans no placement.
    paths: Paths
    #: The DSCP of every queue, most urgent first; none where there are more queues than DSCPs tell apart.
    dscps: tuple[int, ...]

    def with_barriers(self) -> Plan:
        """Return the plan with `barrier` for all jobs: a worker's iterations start when it has all parameters."""
        jobs = tuple(replace(each, job=replace(each.job, barrier=True)) for each in self.jobs)
        return replace(self, scenario=replace(self.scenario, jobs=tuple(each.job for each in jobs)), jobs=jobs)

    @property
    def framing(self) -> Framing:
        """How messages become packets, wherever the plan is executed."""
        return self.scenario.framing

    @property
    def sum_framing(self) -> Framing:
        """How what switches sum becomes packets."""
        return PART_FRAMING if self.policy.sums == "hashed" else SUM_FRAMING

    @property
    def longest_packet_bytes(self) -> int:
        """What the longest packet weighs on the wire."""
        framings = [self.framing, self.sum_framing] if self.policy.in_switches else [self.framing]
        return max(framing.full_packet_bytes for framing in framings)


def slice_counts(job: Job, slice_bytes: int, sizes: Sequence[int] | None = None) -> list[int]:
    """Return into how many slices each tensor is cut: by size, and from `shard_bytes` on at least one per server.

    Sizes are those of whole tensors, unless others are given.

    What a host sends as one has at most `slice_bytes`. Where workers pass parts of a slice around, those parts do:
    otherwise they would be the smaller the more workers there are, down to packets that are mostly header.
    """
    most_bytes = slice_bytes * parts_of_slices(job)
    counts = []
    for total in job.workload.tensor_bytes if sizes is None else sizes:
        parts = -(-total // (most_bytes or max(1, total)))
        if job.servers and total >= job.shard_bytes:
            parts = max(parts, min(len(job.servers), total))
        counts.append(parts)
    return counts


def _slices(job: Job, slice_bytes: int, sizes: Sequence[int]) -> tuple[SlicePlan, ...]:
    """Cut tensors of these sizes into slices and give each to the server that has the fewest bytes so far."""
    load = dict.fromkeys(job.servers, 0)
    slices = []
    for tensor, (total, parts) in enumerate(zip(sizes, slice_counts(job, slice_bytes, sizes), strict=True)):
        for size in cut(total, parts):
            server = min(load, key=lambda host: (load[host], host)) if load else -1
            if load:
                load[server] += size
            slices.append(SlicePlan(tensor, size, server))
    return tuple(slices)


def one_slice_each(job: Job) -> Graph:
    """Return the graph of a job with one slice for each of its servers, or one where there are none.

    All slices of a server move alike, so this says who talks to whom without a message for every slice of a model.
    """
    architecture = ARCHITECTURES[job.architecture]
    servers = np.array(job.servers or [-1], dtype=np.int64)
    check_memory(job.name, len(servers) * architecture.messages_per_slice(len(job.hosts)) * _BYTES_PER_MESSAGE)
    cargo = Cargo(job.hosts, 1, np.zeros_like(servers), np.ones_like(servers), servers, forward_only=job.forward_only)
    return draw(job.architecture, cargo)


def parts_of_slices(job: Job) -> int:
    """Return into how many parts the job's architecture cuts a slice to send it."""
    return ARCHITECTURES[job.architecture].parts_per_slice(len(job.hosts))


def moved_bytes(plan: JobPlan, scenario: Scenario) -> Iterator[tuple[int, int, Ints]]:
    """Yield what messages of a job move in one iteration between two hosts: source, destination, bytes on the wire.

    Bytes are by (brings sums, tensor): first those that all workers wait for, then those for the destination alone.
    What is gathered again for the backward pass is left out: it is not on the way from gradients to parameters.
    """
    graph, hosts, tensors = one_slice_each(plan.job), len(scenario.cluster.hosts), len(plan.ranks)
    counts = graph.kind != KINDS.index("regather")
    parts = int(graph.parts[0])
    weights = _weights(plan, scenario, parts).reshape(-1, tensors)
    pairs, pair = np.unique((graph.src * hosts + graph.dst)[counts], return_inverse=True)
    place = pair.ravel() * 2 + graph.brings_sums[counts]
    weight = (graph.slice * parts + graph.part)[counts]
    moved = np.zeros((len(pairs) * 2, tensors), dtype=np.int64)
    for first in range(0, len(place), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        np.add.at(moved, place[some], weights[weight[some]])
    for code, sizes in zip(pairs.tolist(), moved.reshape(-1, 2, tensors), strict=True):
        src, dst = divmod(code, hosts)
        if src != dst:
            yield src, dst, sizes


def changed_links(plan: Plan, later: Iterable[Plan]) -> set[int]:
    """Return the directed links over which something goes in a plan, or in one with other routes, and not in all."""
    found: set[int] = set()
    for other in later:
        for job, its in zip(plan.jobs, other.jobs, strict=True):
            for tree, moved in zip(job.sums, its.sums, strict=True):
                up = set(tree.links) ^ set(moved.links)
                found |= up | {link ^ 1 for link in up}
        for path, another in zip(plan.paths, other.paths, strict=True):
            found |= set(path.links) ^ set(another.links)
    return found


class Carried(NamedTuple):
    """What a job puts on a directed link in one iteration, in bytes by tensor."""

    link: int
    #: What all workers wait for, and what the workers on some hosts alone wait for.
    shared: Ints
    own: Ints
    hosts: tuple[int, ...]


def carried_bytes(plan: JobPlan, scenario: Scenario, paths: Paths) -> Iterator[Carried]:
    """Yield what a job puts on links; a link may come again, with other bytes."""
    for tree in plan.sums:
        yield from _carried_sums(plan, tree, scenario)
    if not plan.others:
        return
    for src, dst, (shared, own) in moved_bytes(plan, scenario):
        for link in paths.between(src, dst):
            yield Carried(link, shared, own, (dst,))


def _carried_sums(plan: JobPlan, sums: SumPlan, scenario: Scenario) -> Iterator[Carried]:
    """Yield what sums in switches put on links: the same on every one of the tree, however many workers there are."""
    source = scenario.cluster.directed().source
    size = np.zeros(len(plan.ranks), dtype=np.int64)
    for tensor, (_, packets) in plan.packets_for(top_of(sums, scenario)).items():
        size[tensor] = packets * sums.framing.full_packet_bytes
    nothing = np.zeros_like(size)
    below: dict[int, tuple[int, ...]] = {}
    # Whoever is above comes first in a plan.
    for switch in reversed(sums.switches):
        hosts: tuple[int, ...] = ()
        for link in switch.children:
            own = below.get(link, (source[link],))
            yield Carried(link, size, nothing, ())
            yield Carried(link ^ 1, nothing, size, own)
            hosts += own
        below[switch.up] = hosts
    if sums.server >= 0:
        up = sums.switches[0].up
        yield Carried(up, size, nothing, ())
        yield Carried(up ^ 1, nothing, size, below[up])


def _weights(plan: JobPlan, scenario: Scenario, parts: int) -> Ints:
    """Return what all slices that are messages weigh on the wire, by (server, part, tensor)."""
    framing, servers = scenario.framing, plan.job.servers or (-1,)
    index = {server: place for place, server in enumerate(servers)}
    place, tensor, size = np.array(
        [(index[piece.server], piece.tensor, piece.bytes) for piece in plan.others], dtype=np.int64
    ).T
    weights = np.zeros((len(servers), parts, len(plan.ranks)), dtype=np.int64)
    for part in range(parts):
        sizes = share(size, np.int64(part), np.int64(parts))
        np.add.at(weights[:, part], (place, tensor), framing.wire_bytes(sizes))
    return weights


def talking(scenario: Scenario) -> Iterator[tuple[int, int]]:
    """Yield the pairs of hosts that have something to send each other under some policy; a pair may come again."""
    for job in scenario.jobs:
        yield from one_slice_each(job).pairs
    for source in scenario.background:
        if source.src != source.dst:
            yield source.src, source.dst


def traffic(jobs: Iterable[JobPlan], scenario: Scenario) -> Iterator[tuple[int, int, int]]:
    """Yield (source, destination, bytes) of all jobs, and of background traffic during an iteration without stalls."""
    for job in jobs:
        again = ARCHITECTURES[job.job.architecture].regathers
        for src, dst, sizes in moved_bytes(job, scenario):
            yield src, dst, int(sizes.sum() + again * sizes[1].sum())
    compute_ps = max(job.workload.compute_ps for job in scenario.jobs)
    for source in scenario.background:
        if source.src != source.dst:
            yield source.src, source.dst, source.rate_bps * compute_ps // (8 * PS_PER_SECOND)


@lru_cache(maxsize=4)
def usual_paths(scenario: Scenario) -> Paths:
    """Choose the paths of all hosts that talk, by what they move where no policy has cut anything."""
    moved: Counter[tuple[int, int]] = Counter()
    for src, dst, size in traffic((_undecided(job, slice_bytes=0) for job in scenario.jobs), scenario):
        moved[src, dst] += size
    # Who sends is acknowledged; and where tensors are cut, a server may have a part that had none of whole ones.
    for src, dst in talking(scenario):
        moved[src, dst] += 0
        moved[dst, src] += 0
    return choose_paths(scenario.cluster, moved)


@lru_cache(maxsize=4)
def mean_hops(scenario: Scenario) -> float:
    """Return how many links a packet crosses on average between hosts that talk, looking at some of them."""
    check_duration(scenario)
    _check_memory(scenario)
    pairs = list(talking(scenario))
    some = pairs[:: 1 + len(pairs) // 1000]
    paths = usual_paths(scenario)
    return sum(len(paths.between(src, dst)) for src, dst in some) / max(1, len(some))


def link_loads(plan: JobPlan, scenario: Scenario, paths: Paths) -> tuple[Ints, Ints]:
    """Return how long each tensor occupies each directed link in one iteration, in ps by (link, tensor).

    First for what all workers wait for, then for what those on single hosts wait for, over all hosts.
    """
    rates = scenario.directed().rate_bps
    shared = np.zeros((len(rates), len(plan.ranks)), dtype=np.int64)
    own = np.zeros_like(shared)
    # Most pairs of hosts move the same.
    known: dict[tuple[bytes, int], list[int]] = {}
    for carried in carried_bytes(plan, scenario, paths):
        link = carried.link
        for sizes, loads in ((carried.shared, shared), (carried.own, own)):
            if not sizes.any():
                continue
            key = sizes.tobytes(), rates[link]
            if key not in known:
                known[key] = [serialisation_ps(size, rates[link]) for size in sizes.tolist()]
            loads[link] += known[key]
    return shared, own


def early_ps(scenario: Scenario) -> int:
    """Return how long before a link has been occupied by all its bytes the last of them may be there already.

    Where links are paced, that is the time of one packet.
    """
    directed = scenario.slowest()
    rates = [rate_bps for rate_bps, paced in zip(directed.rate_bps, directed.paced, strict=True) if paced]
    return serialisation_ps(scenario.cluster.mtu + ETHERNET_BYTES, min(rates)) if rates else 0


def _slices_by_shares(job: Job, slice_bytes: int, shares: Sequence[float], *, summed: bool) -> tuple[SlicePlan, ...]:
    """Cut tensors by what servers get of them, and what each gets into slices; where switches sum, by whole packets."""
    sizes = job.workload.tensor_bytes
    params = [layer.params for layer in job.workload.layers]
    units = [VALUES * size // count if summed else 1 for size, count in zip(sizes, params, strict=True)]
    slices = []
    for tensor, parts in enumerate(cut_by_shares(sizes, units, shares, job.shard_bytes)):
        for server, part in zip(job.servers, parts, strict=True):
            pieces = 1 if summed or not slice_bytes else -(-part // slice_bytes)
            slices += [SlicePlan(tensor, size, server, summed) for size in cut(part, max(1, pieces)) if size]
    return tuple(slices)


def _undecided(job: Job, slice_bytes: int) -> JobPlan:
    """Return the plan of a job in which queues are still to be decided."""
    forward = [layer.forward_ps for layer in job.workload.layers]
    backward = [layer.backward_ps for layer in job.workload.layers]
    ranks = tuple(range(len(forward)))
    slices = _slices(job, slice_bytes, job.workload.tensor_bytes)
    return JobPlan(job, ranks, (0,) * len(ranks), slacks(forward, backward), slices)


def top_of(tree: SumPlan, scenario: Scenario) -> int:
    """Return the node at which sums of a tree are complete: a server's host, or the switch at the root."""
    return tree.server if tree.server >= 0 else len(scenario.cluster.hosts) + tree.switches[0].switch


def _placed(plan: JobPlan, policy: Policy, placement: Placement, trees: tuple[SumPlan, ...]) -> JobPlan:
    """Return the plan of a job whose servers have the shares of a placement."""
    slices = _slices_by_shares(plan.job, policy.slice_bytes, placement.shares, summed=bool(trees))
    # Small models may have nothing for some servers, whatever their share is.
    given = {piece.server for piece in slices}
    return replace(plan, slices=slices, sums=tuple(tree for tree in trees if tree.server in given))


def _in_switches(plan: JobPlan, trees: tuple[SumPlan, ...], scenario: Scenario, slice_bytes: int) -> JobPlan:
    """Return the plan of a job whose tensors are summed by the switches of trees.

    Of sparse tables these sum the hot rows; the cold ones go to servers, cut and shared out as tensors are elsewhere.
    """
    job, workload = plan.job, plan.job.workload
    hot, width = hot_rows_of(job, scenario.cluster), workload.bytes_per_param
    packets = packets_of(workload, hot)
    root = top_of(trees[0], scenario)
    ends = servers_of(job, packets) if trees[0].server >= 0 else [{root: count} for count in packets]
    summed = []
    for tensor, (layer, rows) in enumerate(zip(workload.layers, hot, strict=True)):
        left = layer.dense_values(rows) * width
        for end, count in ends[tensor].items():
            # Only the last packet of a tensor may be short.
            size = min(left, count * VALUES * width)
            summed += [SlicePlan(tensor, size, end, summed=True)] if size else []
            left -= size
    cold = [layer.cold_bytes(width, rows) for layer, rows in zip(workload.layers, hot, strict=True)]
    return replace(plan, slices=(*summed, *_slices(job, slice_bytes, cold)), sums=trees)


def _plan_job(
    job: Job,
    scenario: Scenario,
    policy: Policy,
    paths: Paths,
    trees: tuple[SumPlan, ...],
    placement: Placement | None,
) -> JobPlan:
    forward = [layer.forward_ps for layer in job.workload.layers]
    backward = [layer.backward_ps for layer in job.workload.layers]
    plan = _undecided(job, policy.slice_bytes)
    if placement is not None:
        plan = _placed(plan, policy, placement, trees)
    elif trees:
        plan = _in_switches(plan, trees, scenario, policy.slice_bytes)
    queues = scenario.cluster.queues
    shared, own = link_loads(plan, scenario, paths)
    loads = shared + own
    busiest = tuple(loads[loads.sum(axis=1).argmax()].tolist())
    if policy.queue_map == "equal":
        queue_of = equal_map(len(plan.ranks), queues)
    else:
        partition = fewest_map if policy.queue_map == "fewest" else queue_map
        queue_of = partition(forward, backward, busiest, queues).queue_of
    regret = regret_ps(forward, backward, busiest, queue_of)
    return replace(plan, queues=queue_of, transfer_ps=busiest, regret_ps=regret)


def slice_leads_ps(plan: JobPlan) -> list[int]:
    """Return how long before its tensor's deadline each slice should be there: the time the messages after it take.

    Slices of one tensor so have deadlines of their own. Otherwise the worker whose gradient is ready first would send
    all of its slices before any other worker's, and no sum would be complete before the last worker is served.

    Where parameters are sharded, tensors are gathered for a deadline of their own. A lead that counted the reduction as
    well would let slices of a large layer overtake those of the layer that is needed before it.
    """
    crossings = 2 if ARCHITECTURES[plan.job.architecture].regathers else 1
    count = Counter(piece.tensor for piece in plan.others)
    seen: Counter[int] = Counter()
    # Those of one tensor that switches sum are in different trees, and none is after another.
    leads = [0] * len(plan.summed)
    for piece in plan.others:
        seen[piece.tensor] += 1
        after = count[piece.tensor] - seen[piece.tensor]
        leads.append(plan.transfer_ps[piece.tensor] * after // (crossings * count[piece.tensor]))
    return leads


def own_slacks_ps(plan: JobPlan, never_ps: int) -> Ints:
    """Return the slack of each message whose deadline counts from when it may be sent; others have `never_ps`.

    Those are due when what they carry is: a gradient, and a sum of them, when the next forward pass needs it. Sharded
    parameters are not sent when they are summed but when a pass comes near them. If that pass stood still meanwhile,
    their gradient's deadline is over, and they would overtake what is needed now.
    """
    job, graph = plan.job, plan.graph
    by_kind = np.full((len(KINDS), len(plan.ranks)), never_ps, dtype=np.int64)
    if ARCHITECTURES[job.architecture].regathers:
        forward, backward = (
            [getattr(layer, name) for layer in job.workload.layers] for name in ("forward_ps", "backward_ps")
        )
        again, following = gather_slacks(forward, backward, job.prefetch)
        by_kind[KINDS.index("regather")] = again
        # What may be gathered from its own gradient on keeps that deadline: nothing between them can stand still.
        by_kind[KINDS.index("gather")] = np.where(np.equal(following, plan.slack_ps), never_ps, following)
    if job.forward_only:
        by_kind[KINDS.index("pull")] = plan.slack_ps
    return np.where(graph.passes_on, never_ps, by_kind[graph.kind, graph.tensor])


def _check_memory(scenario: Scenario) -> None:
    """Refuse a scenario for which `moved_bytes` and `link_loads` would not fit into memory."""
    links = 2 * len(scenario.cluster.links)
    numbers = 0
    for job in scenario.jobs:
        # A host talks to all servers both ways, or to a few others. Of each tensor there are both kinds of bytes
        # between every two and on every link, and once more those on the way to a host.
        pairs = 4 * len(job.hosts) * max(1, len(job.servers))
        numbers += (2 * links + 3 * pairs) * len(job.workload.layers)
    check_memory(scenario.name, numbers * np.dtype(np.int64).itemsize)


def _check_slices(scenario: Scenario, policy: Policy) -> None:
    """Refuse a policy whose slices, each of them an object, would not fit into memory."""
    slices = sum(sum(slice_counts(job, policy.slice_bytes)) for job in scenario.jobs)
    check_memory(scenario.name, slices * _BYTES_PER_SLICE, f"the {slices:,} slices of policy {policy.name}")


def check_duration(scenario: Scenario) -> None:
    """Refuse a scenario whose times would not fit into 64 bits: one that takes weeks to compute or to send."""
    links, copies = scenario.slowest().rate_bps, [scenario.transport.copy_rate_bps] * 2
    slowest = max((USUAL_PACE, *(change.pace for change in scenario.changes)))
    for job in scenario.jobs:
        crossings = 2 + ARCHITECTURES[job.architecture].regathers
        sent_bytes = (
            crossings * len(job.workers) * sum(scenario.framing.wire_bytes(size) for size in job.workload.tensor_bytes)
        )
        rates = filter(None, (min(links, default=1), *copies, job.add_rate_bps, job.update_rate_bps))
        compute_ps = (job.workload.compute_ps + job.overhead_ps) * slowest // USUAL_PACE
        needed_ps = scenario.rounds * (compute_ps + sum(serialisation_ps(sent_bytes, rate) for rate in rates))
        if needed_ps > _LONGEST_RUN_PS:
            raise ScenarioError(
                f"{scenario.name}: {job.name} could take {needed_ps // _PS_PER_DAY} days; accepted: at most "
                f"{_LONGEST_RUN_PS // _PS_PER_DAY}; take faster links, shorter times, or fewer iterations"
            )


def make_plan(scenario: Scenario, policy: Policy, dscps: Sequence[int] | None = None) -> Plan:
    """Decide everything the policy leaves to be decided for this scenario; DSCPs that are not given are the default."""
    scenario.check_in_step()
    check_duration(scenario)
    _check_memory(scenario)
    _check_slices(scenario, policy)
    queues = scenario.cluster.queues
    chosen = default_dscps(queues) if dscps is None else check_dscps(dscps, queues)
    paths, placements = usual_paths(scenario), placements_for(scenario, policy)
    trees = _trees(scenario, policy, placements) if policy.in_switches else [()] * len(scenario.jobs)
    if policy.placement != "atp":
        paths = paths_of(placements, paths)
    jobs = [
        _plan_job(job, scenario, policy, paths, own, placements[number] if placements else None)
        for number, (job, own) in enumerate(zip(scenario.jobs, trees, strict=True))
    ]
    return Plan(scenario, policy, _with_pools(jobs, scenario, policy, placements), paths, chosen)


def placements_for(scenario: Scenario, policy: Policy) -> tuple[Placement, ...]:
    """Return the placement of every job; none where the policy plans none."""
    if policy.placement == "none":
        return ()
    for path, problem in policy_problems(scenario, [policy]):
        raise PolicyError(f"{scenario.name}: {path}: {problem}")
    return placements_of(scenario, policy.placement, policy.sums, usual_paths(scenario))


def _trees(scenario: Scenario, policy: Policy, placements: Sequence[Placement]) -> Sequence[tuple[SumPlan, ...]]:
    for path, problem in sum_problems(scenario, policy):
        raise PolicyError(f"{scenario.name}: policy {policy.name!r} has switches sum, and {path}: {problem}")
    if not placements:
        return grow_trees(scenario, policy.sums)
    return [
        trees_of_placement(scenario, job, placement, policy.sums)
        for job, placement in zip(scenario.jobs, placements, strict=True)
    ]


def _with_pools(
    jobs: Sequence[JobPlan], scenario: Scenario, policy: Policy, placements: Sequence[Placement]
) -> tuple[JobPlan, ...]:
    """Return the jobs with the slots that their classes have in switches, where these sum."""
    if not policy.in_switches:
        return tuple(jobs)
    wanted = [unlimited_sums(job, scenario, policy) for job in jobs]
    if policy.sums != "hashed":
        if placements:
            wanted = with_planned_slots(wanted, placements, scenario)
        names = [job.job.name for job in jobs for _ in job.sums]
        trees = iter(share_out([tree for own in wanted for tree in own], scenario.cluster, names))
        wanted = [tuple(next(trees) for _ in own) for own in wanted]
    return tuple(replace(job, sums=own) for job, own in zip(jobs, wanted, strict=True))


def unlimited_sums(job: JobPlan, scenario: Scenario, policy: Policy) -> tuple[SumPlan, ...]:
    """Return the trees of a job with the pools that they would have if switches had all the memory they want.

    There is one for each queue of a tree's tensors, and one for all where neither hosts nor switches tell tensors
    apart. Where slots are found by hash, that is all there is to decide.
    """
    classes = job.queues if policy.orders_in_hosts or policy.orders_in_switches else (0,) * len(job.queues)
    trees = []
    for tree in job.sums:
        own = job.packets_for(top_of(tree, scenario))
        needed = needed_slots(tree, scenario.directed())
        trees.append(replace(tree, pools=wanted_pools(own, classes, needed)))
    return numbered(trees) if policy.sums == "hashed" else tuple(trees)
