"""A plan as a table for a terminal: per job and queue the tensors in it."""

from __future__ import annotations

from collections.abc import Sequence

from tensorexpress import buffer, policy
from tensorexpress.heading import heading
from tensorexpress.plan import JobPlan, Plan
from tensorexpress.queueing import DISCIPLINES
from tensorexpress.text import grid
from tensorexpress.units import counted, format_size, format_time


def as_table(plan: Plan) -> str:
    """Return what was decided, job by job: which tensors share a queue, what they weigh and how urgent they are."""
    scenario = plan.scenario
    lines = [
        heading(scenario, said=("job.name", "job.model", "job.workers", "job.servers")),
        f"{plan.policy.name}: {policy.describe(plan.policy)}",
        f"buffer: {buffer.describe(scenario.cluster.buffer_bytes, _queues(plan))}",
    ]
    for number, job in enumerate(plan.jobs):
        lines += ["", _title(job, number), *grid(_rows(job, plan.dscps))]
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
    for queue in sorted(set(plan.queues)):
        tensors = [tensor for tensor, own in enumerate(plan.queues) if own == queue]
        rows.append(
            [
                str(queue),
                str(dscps[queue]) if dscps else "-",
                str(len(tensors)),
                names[tensors[0]],
                names[tensors[-1]],
                format_size(_sum(plan.job.workload.tensor_bytes, tensors)),
                format_time(min(plan.slack_ps[tensor] for tensor in tensors)),
            ]
        )
    return rows


def _sum(sizes: Sequence[int], chosen: Sequence[int]) -> int:
    return sum(sizes[index] for index in chosen)
