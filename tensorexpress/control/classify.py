"""Entries of classify.p4: the queue of every tensor, and how jobs and other traffic get theirs."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tensorexpress.classify import QueueMap, queue_map_of
from tensorexpress.control.controls import P4Control
from tensorexpress.control.entities import Call, DefaultEntry, Entity, TableEntry
from tensorexpress.control.intent import Intent, Options
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.errors import PlanError
from tensorexpress.plan import Plan
from tensorexpress.wire.dscp import DSCPS, MOST_QUEUES, queue_of_dscp

QUEUES = "classify.queues"
TENSOR_QUEUE = "classify.tensor_queue"
JOB_MODE = "classify.job_mode"
DSCP_QUEUE = "classify.dscp_queue"
DSCP6_QUEUE = "classify.dscp6_queue"
OFFERED = "classify.offered"
BOUNDS = "classify.bounds"


def queue_map(intent: Intent) -> QueueMap:
    """Return what the switch is to know about queues: what the plan says, and which DSCPs are trusted."""
    queues = queue_map_of(intent.plan)
    if not intent.options.trust_dscp:
        return queues
    chosen = {dscp: queue_of_dscp(dscp, intent.plan.dscps) for dscp in range(DSCPS)}
    return replace(queues, dscp_queue=MappingProxyType(chosen))


def entries(intent: Intent) -> list[Entity]:
    """Return a queue map as entries."""
    queues = queue_map(intent)
    return [
        DefaultEntry(QUEUES, Call("classify.use_queues", (("lowest", queues.best_effort),))),
        *(
            TableEntry(TENSOR_QUEUE, (("job", job), ("tensor", tensor)), _set_queue(queue))
            for (job, tensor), queue in queues.tensor_queue.items()
        ),
        *(
            TableEntry(JOB_MODE, (("job", job),), Call("classify.queue_asked", (("most_urgent", queue),)))
            for job, queue in queues.asking_jobs.items()
        ),
        *(TableEntry(JOB_MODE, (("job", job),), Call("classify.queue_by_slack")) for job in sorted(queues.slack_jobs)),
        *(
            TableEntry(table, (("dscp", dscp),), _set_queue(queue))
            for table in (DSCP_QUEUE, DSCP6_QUEUE)
            for dscp, queue in queues.dscp_queue.items()
        ),
    ]


def _set_queue(queue: int) -> Call:
    return Call("classify.set_queue", (("queue", queue),))


def check(plan: Plan, options: Options, schema: ProgramSchema) -> None:
    """Refuse more queues than a port may have."""
    queues = plan.scenario.cluster.queues
    if queues > MOST_QUEUES:
        raise PlanError(
            f"the plan has {queues} queues at a port; accepted: at most {MOST_QUEUES}; plan again with "
            f"--set cluster.queues={MOST_QUEUES}"
        )


CONTROL = P4Control(
    tables=(QUEUES, TENSOR_QUEUE, JOB_MODE, DSCP_QUEUE, DSCP6_QUEUE),
    counters=(OFFERED,),
    registers=(BOUNDS,),
    entries=entries,
    check=check,
)
