"""Refuses, before any switch is asked, a plan that a program has no room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tensorexpress.control.entries import Entity, TableEntry
from tensorexpress.control.guard import JOB_METER, slot_of_job
from tensorexpress.control.intent import Options
from tensorexpress.control.messages import Schema
from tensorexpress.control.p4info import P4Type
from tensorexpress.errors import PlanError, unknown
from tensorexpress.plan import Plan
from tensorexpress.wire.dscp import MOST_QUEUES


def check_plan(plan: Plan, options: Options, schema: Schema) -> None:
    """Refuse what no switch of this plan could have: too many jobs or queues, a limit for a job that is not there."""
    names = [job.job.name for job in plan.jobs]
    for name in options.limits:
        if name not in names:
            raise PlanError(unknown("job", name, names))
    slots = schema.find(P4Type.meter, JOB_METER).size
    if slot_of_job(len(names)) > slots:
        raise PlanError(f"the plan has {len(names)} jobs; accepted: at most {slots - 1}, the slots of {JOB_METER}")
    queues = plan.scenario.cluster.queues
    if queues > MOST_QUEUES:
        raise PlanError(
            f"the plan has {queues} queues at a port; accepted: at most {MOST_QUEUES}; plan again with "
            f"--set cluster.queues={MOST_QUEUES}"
        )


def check_room(switch: str, wanted: Sequence[Entity], schema: Schema) -> None:
    """Refuse more entries than a table holds."""
    for table, needed in Counter(entity.table for entity in wanted if isinstance(entity, TableEntry)).items():
        size = schema.table_size(table)
        if needed > size:
            raise PlanError(
                f"{switch}: the plan needs {needed} entries in {table}; accepted: at most {size}, its size in the "
                "program; plan for fewer hosts, jobs or tensors"
            )
