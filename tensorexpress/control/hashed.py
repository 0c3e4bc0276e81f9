"""What hashed.p4 is told by way of aggregate.p4's tables: whose values a child may send, and in which cells they go."""

from __future__ import annotations

from collections.abc import Sequence

from tensorexpress.control.controls import P4Control
from tensorexpress.control.entities import Call
from tensorexpress.control.intent import Options
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.errors import PlanError
from tensorexpress.plan import Plan
from tensorexpress.routing import DirectedLinks
from tensorexpress.sums import MOST_CHILDREN, Pool, SumPlan

WAYS = "aggregate.hashed.ways"

#: Numbers of pools have 16 bits.
_MOST_POOLS = 2**16


def of_pool(tree: int, sums: SumPlan, pool: Pool, *, preempts: bool) -> Call:
    """Return what a switch is told of a pool whose cells are found by hash."""
    values = (("tree", tree), ("cells", sums.cells), ("queue", pool.queue), ("preempts", int(preempts)))
    return Call("aggregate.of_pool", values)


def workers_behind(link: int, sums: SumPlan, workers: Sequence[int], links: DirectedLinks) -> int:
    """Return a bit for every worker, by its number in the job, whose values may come by a link of a tree."""
    below = next((own for own in sums.switches if own.up == link), None)
    if below is None:
        return sum(1 << number for number, host in enumerate(workers) if host == links.source[link])
    behind = 0
    for child in below.children:
        behind |= workers_behind(child, sums, workers, links)
    return behind


def check(plan: Plan, options: Options, schema: ProgramSchema) -> None:
    """Refuse more cells than switches have, more workers than packets can name, and pools that are not told apart."""
    room = schema.find("register", WAYS).size
    for job in plan.jobs:
        name, hashed = job.job.name, [sums for sums in job.sums if sums.cells]
        for sums in hashed:
            if not 1 <= sums.cells <= room:
                raise PlanError(
                    f"job {name!r} finds its slots among {sums.cells} cells; accepted: 1 to {room}, which a switch "
                    "has; plan with less cluster.switch_memory"
                )
        if hashed and len(job.job.workers) > MOST_CHILDREN:
            raise PlanError(
                f"job {name!r} has {len(job.job.workers)} workers; accepted where slots are found by hash: "
                f"{MOST_CHILDREN} at most, a bit for each in every packet"
            )
        numbers = [pool.first_slot for sums in hashed for pool in sums.pools]
        if len(set(numbers)) < len(numbers) or not all(0 <= number < _MOST_POOLS for number in numbers):
            raise PlanError(
                f"job {name!r} has pools with the numbers {', '.join(map(str, numbers))}; accepted: a number of its "
                f"own for each, below {_MOST_POOLS}; plan again"
            )


CONTROL = P4Control(registers=(WAYS,), check=check)
