"""Entries of aggregate.p4: who may add up in which slots, and where sums go. What became of packets to sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from tensorexpress.addresses import GATEWAY_IPV4, GATEWAY_MAC
from tensorexpress.cluster import Cluster
from tensorexpress.control import hashed
from tensorexpress.control.controls import P4Control
from tensorexpress.control.entities import (
    MULTICAST_GROUPS,
    Call,
    CounterEntry,
    Entity,
    MulticastEntry,
    RegisterEntry,
    TableEntry,
)
from tensorexpress.control.guard import job_of_slot
from tensorexpress.control.intent import Intent, Options
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.control.readings import StatusReading
from tensorexpress.errors import PlanError
from tensorexpress.p4 import define
from tensorexpress.plan import Plan
from tensorexpress.sums import MOST_CHILDREN, SummingSwitch, SumPlan
from tensorexpress.wire.header import Kind

MEMBERS = "aggregate.members"
SLOTS = "aggregate.slots"
FROM_ABOVE = "aggregate.from_above"
COPIES = "address.copies"
EVENTS = "aggregate.events"
OWNERS = "aggregate.owners"
IDENTITIES = "aggregate.identities"
SEEN = "aggregate.seen"
HEADS = "aggregate.heads"
VALUES = tuple(f"aggregate.values{part}" for part in range(4))

#: The group of all children in the first tree; those of other trees follow. Group 1 is that of broadcasts.
FIRST_GROUP = 1024
#: Groups have numbers of 16 bits.
_MOST_TREES = 2**16 - FIRST_GROUP

#: What each cell of the counter counts, for people.
EVENT_NAMES = {
    define.SUM_CONTRIBUTION: "added",
    define.SUM_COMPLETED: "sums completed",
    define.SUM_ANSWERED: "duplicates answered",
    define.SUM_REPEATED: "duplicates dropped",
    define.SUM_LATE: "late",
    define.SUM_MISMATCH: "mismatches",
    define.SUM_STRANGER: "strangers",
    define.SUM_OUT_OF_RANGE: "slots out of range",
    define.SUM_OVERFLOWED: "overflows",
    define.SUM_HANDED_DOWN: "handed down",
    define.SUM_MALFORMED: "malformed",
    define.SUM_PASSED: "passed on as they were",
    define.SUM_COLLISION: "collisions",
    define.SUM_EVICTED: "evictions",
    define.SUM_FLUSHED: "flushed",
    define.SUM_FREED: "freed by results",
}

#: Bits of an owner below the slot of its job: epoch and turn. Above it is whether its cell was found by hash.
_OWNER_SHIFT = 64
_SLOT_MASK = 2**define.SLOT_T_BITS - 1


@dataclass(frozen=True)
class Tree:
    """One tree of one job, and the number by which switches know it."""

    #: Over all trees of all jobs of the plan.
    number: int
    job: int
    sums: SumPlan


def trees_of(plan: Plan) -> Iterator[Tree]:
    """Yield all trees of a plan, by job."""
    each = ((number, sums) for number, job in enumerate(plan.jobs) for sums in job.sums)
    return (Tree(number, job, sums) for number, (job, sums) in enumerate(each))


def entries(intent: Intent) -> Iterator[Entity]:
    """Yield who may add to what on one switch, and the addresses of what leaves it."""
    place = intent.cluster.switches.index(intent.switch)
    for tree in trees_of(intent.plan):
        for own in tree.sums.switches:
            if own.switch == place:
                yield from _of_tree(intent, tree, own)


def _of_tree(intent: Intent, tree: Tree, own: SummingSwitch) -> Iterator[Entity]:
    group, key = FIRST_GROUP + tree.number, ("tree", tree.number)
    ports = [intent.port_of_link[link ^ 1] for link in own.children]
    yield MulticastEntry(group, frozenset((port, child + 1) for child, port in enumerate(ports)))
    yield from _slots_of_tree(intent, tree)
    for child, (port, link) in enumerate(zip(ports, own.children, strict=True)):
        yield _copy(intent, tree, child + 1, intent.cluster.directed().source[link], child)
        member = (("ingress_port", port), key, ("worker", child))
        yield TableEntry(MEMBERS, member, _adding(intent, tree, own, child))
    if own.up >= 0:
        above_key = (("ingress_port", intent.port_of_link[own.up]), key)
        yield TableEntry(FROM_ABOVE, above_key, Call("aggregate.hand_down", (("group", group),)))
        above = intent.cluster.directed().target[own.up]
        yield _copy(intent, tree, define.SUM_COPY_UP, above, _number_above(tree.sums, own))


def _slots_of_tree(intent: Intent, tree: Tree) -> Iterator[TableEntry]:
    """Yield whose slots are a tree's, or pools where cells are found by hash."""
    kind, of_tree = Kind.SUM, Call("aggregate.of_tree", (("tree", tree.number),))
    calls = dict.fromkeys(sorted(_slots_of(tree.sums)), of_tree)
    if tree.sums.cells:
        preempts = intent.plan.policy.orders_in_switches
        kind = Kind.PART
        calls = {
            pool.first_slot: hashed.of_pool(tree.number, tree.sums, pool, preempts=preempts) for pool in tree.sums.pools
        }
    for slot, call in calls.items():
        yield TableEntry(SLOTS, (("kind", kind), ("job", tree.job), ("slot", slot)), call)


def _adding(intent: Intent, tree: Tree, own: SummingSwitch, child: int) -> Call:
    masks = [1 << place for place in range(len(own.children))]
    if tree.sums.cells:
        workers, links = intent.plan.jobs[tree.job].job.workers, intent.cluster.directed()
        masks = [hashed.workers_behind(link, tree.sums, workers, links) for link in own.children]
    adds = (("mask", masks[child]), ("all", sum(masks)))
    if own.up < 0:
        return Call("aggregate.add_at_root", (*adds, ("copy", child + 1), ("group", FIRST_GROUP + tree.number)))
    return Call("aggregate.add_below", (*adds, ("up", intent.port_of_link[own.up])))


def _copy(intent: Intent, tree: Tree, copy: int, node: int, worker: int) -> TableEntry:
    """Return the addresses of a copy for a host or a switch, and the number of the child that it is from or for."""
    hosts = intent.addresses
    mac = hosts[node].mac if node < len(hosts) else GATEWAY_MAC
    # Switches take each other's packets by port and job: any address will do that is routed.
    ipv4 = hosts[node if node < len(hosts) else intent.plan.jobs[tree.job].job.workers[0]].ipv4
    values = (
        ("mac_from", int.from_bytes(GATEWAY_MAC, "big")),
        ("mac_to", int.from_bytes(mac, "big")),
        ("ipv4_from", int(GATEWAY_IPV4)),
        ("ipv4_to", int(ipv4)),
        ("worker", worker),
    )
    return TableEntry(COPIES, (("tree", tree.number), ("copy", copy)), Call("address.readdress", values))


def _slots_of(sums: SumPlan) -> set[int]:
    """Return the slots of a tree; none where cells are found by hash."""
    if sums.cells:
        return set()
    return {slot for pool in sums.pools for slot in range(pool.first_slot, pool.first_slot + pool.slots)}


def _number_above(sums: SumPlan, own: SummingSwitch) -> int:
    """Return which child of the switch above a switch is; to a server it is the only one."""
    return next((other.children.index(own.up) for other in sums.switches if own.up in other.children), 0)


def check(plan: Plan, options: Options, schema: ProgramSchema) -> None:
    """Refuse sums that switches have no room for, and trees that do not hang together."""
    room = schema.find("register", OWNERS).size // 2
    summed = [(job.job.name, tree, job.job.workers) for job in plan.jobs for tree in job.sums]
    if len(summed) > _MOST_TREES:
        raise PlanError(
            f"the plan sums in {len(summed)} trees of switches; accepted: at most {_MOST_TREES}, the groups that are "
            "left; plan for fewer jobs or servers"
        )
    for name, sums, workers in summed:
        _check_tree(plan.scenario.cluster, name, sums, workers)
        for pool in () if sums.cells else sums.pools:
            if not 0 <= pool.first_slot < pool.first_slot + pool.slots <= room:
                raise PlanError(
                    f"job {name!r} sums in {pool.slots} slots from slot {pool.first_slot} on; accepted: slots 0 to "
                    f"{room - 1}, which a switch has; plan with fewer slots"
                )
    for (name, sums, _), (other, others, _) in combinations(summed, 2):
        switches = {each.switch for each in sums.switches} & {each.switch for each in others.switches}
        if switches and bool(sums.cells) != bool(others.cells):
            raise PlanError(
                f"jobs {name!r} and {other!r} meet in switch {plan.scenario.cluster.switches[min(switches)]}, and only "
                "one finds its slots by hash; accepted: both or neither; plan again"
            )
        slots = _slots_of(sums) & _slots_of(others)
        if switches and slots:
            raise PlanError(
                f"jobs {name!r} and {other!r} both sum in slot {min(slots)} of switch "
                f"{plan.scenario.cluster.switches[min(switches)]}; accepted: slots of its own for each tree; plan again"
            )


def _check_tree(cluster: Cluster, name: str, sums: SumPlan, workers: Sequence[int]) -> None:
    """Refuse a tree in which a worker or a switch has not exactly one switch above it."""
    links, first = cluster.directed(), len(cluster.hosts)
    for own in sums.switches:
        switch = cluster.switches[own.switch]
        if not 1 <= len(own.children) <= MOST_CHILDREN:
            raise PlanError(
                f"job {name!r} has {len(own.children)} children at switch {switch}; accepted: 1 to {MOST_CHILDREN}, a "
                "bit for each; plan with fewer workers at a switch"
            )
        if any(links.target[link] != first + own.switch for link in own.children):
            raise PlanError(f"job {name!r} has a child of switch {switch} that is not attached to it; plan again")
        if own.up >= 0 and links.source[own.up] != first + own.switch:
            raise PlanError(f"job {name!r} has a link up from switch {switch} that begins elsewhere; plan again")
    top, below = sums.switches[0].up, sums.switches[1:] if sums.server >= 0 else sums.switches
    if sums.server >= 0 and (top < 0 or links.target[top] != sums.server):
        raise PlanError(
            f"job {name!r} has a tree whose sums do not end at its server {cluster.hosts[sums.server]}; accepted: the "
            "server's own switch as root, and its link to the server; plan again"
        )
    children = Counter(links.source[link] for own in sums.switches for link in own.children)
    ups = [own.up for own in below if own.up >= 0]
    wanted = Counter([*workers, *(links.source[up] for up in ups)])
    all_links = {link for own in sums.switches for link in own.children}
    if children != wanted or not all_links.issuperset(ups) or len(ups) != len(sums.switches) - 1:
        raise PlanError(
            f"job {name!r} sums in switches that are no tree over its workers; accepted: one root, and every worker "
            "and every other switch the child of one switch; plan again"
        )


@dataclass(frozen=True)
class SumEvents:
    """Packets to sum of which the same became."""

    event: str
    packets: int


@dataclass(frozen=True)
class SumSlots:
    """Slots in which a job was the last to sum."""

    job: int
    name: str
    slots: int


def _events(jobs: Sequence[str], cells: Sequence[CounterEntry]) -> Iterator[SumEvents]:
    if any(cell.packets for cell in cells):
        yield from (SumEvents(EVENT_NAMES[cell.index], cell.packets) for cell in cells)


def _slots(jobs: Sequence[str], owners: Sequence[RegisterEntry]) -> Iterator[SumSlots]:
    """Yield the slots that jobs have used; both cells of a slot, one for each turn, count as one."""
    used = {(cell.value >> _OWNER_SHIFT & _SLOT_MASK, cell.index // 2) for cell in owners if cell.value}
    for slot, slots in sorted(Counter(slot for slot, _ in used).items()):
        job = job_of_slot(slot)
        if job is not None:
            yield SumSlots(job, jobs[job] if job < len(jobs) else f"job {job}", slots)


CONTROL = P4Control(
    tables=(MEMBERS, SLOTS, FROM_ABOVE, COPIES),
    counters=(EVENTS,),
    registers=(OWNERS, IDENTITIES, SEEN, HEADS, *VALUES),
    entries=entries,
    # Nobody adds before there is a way for the sum.
    references={MEMBERS: (MULTICAST_GROUPS, COPIES, SLOTS), FROM_ABOVE: (MULTICAST_GROUPS, COPIES)},
    check=check,
    readings=(
        StatusReading(
            name="sums",
            title="packets to sum",
            arrays=(EVENTS,),
            rows=_events,
            columns=(("packets to sum", "event"), ("packets", "packets")),
            empty="none yet",
        ),
        StatusReading(
            name="sum_slots",
            title="slots of sums",
            arrays=(OWNERS,),
            rows=_slots,
            columns=(("job", "name"), ("slots used for sums", "slots")),
            empty="none in use",
        ),
    ),
)
