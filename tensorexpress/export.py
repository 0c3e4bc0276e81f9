"""A plan as configuration for equipment that tensorexpress does not drive itself: SONiC, NCCL and Linux.

What these share is the DSCP of a packet: hosts set it by the plan, and the equipment is told which queue it means.
docs/export.md says what each format can and cannot do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from tensorexpress import tc
from tensorexpress.errors import InputError, PlanError, unknown
from tensorexpress.names import check_interface
from tensorexpress.plan import JobPlan, Plan
from tensorexpress.units import counted
from tensorexpress.wire.dscp import DSCPS, dscp_of_queue, queue_of_dscp

FORMATS = {
    "sonic": "QoS tables for config_db.json of SONiC switches",
    "nccl": "environment variables for one job's NCCL",
    "linux": "shell script of tc commands for the egress of an interface",
    "chakra": "execution traces of one job's workers, for ASTRA-sim",
}

#: Which of a job's queues stands for all of it where it can have only one.
JOB_CLASSES = {
    "median": "the queue of the middle byte: half of the job's bytes are as urgent or more",
    "urgent": "the job's most urgent queue",
}

#: What the maps and the scheduler are called in SONiC.
_MAP, _SCHEDULER = "TENSOREXPRESS", "scheduler.tensorexpress"


def sonic(plan: Plan, ports: Sequence[str] = ()) -> dict[str, Any]:
    """Return the tables of SONiC's config_db that map DSCP to queues and serve these by strict priority.

    SONiC's highest queue is the most urgent, so queue q of the plan's K is queue K - 1 - q there. Ports are named as
    SONiC names them; where none are given they are those of a switch with four lanes a port: Ethernet0, Ethernet4, ...
    """
    dscps = tc.dscps_of(plan)
    lowest = len(dscps) - 1
    names = [check_interface(port) for port in ports] or default_ports(plan)
    classes = {str(number): str(number) for number in range(len(dscps))}
    maps = {"dscp_to_tc_map": _MAP, "tc_to_queue_map": _MAP}
    return {
        "DSCP_TO_TC_MAP": {_MAP: {str(dscp): str(lowest - queue_of_dscp(dscp, dscps)) for dscp in range(DSCPS)}},
        "TC_TO_QUEUE_MAP": {_MAP: classes},
        "SCHEDULER": {_SCHEDULER: {"type": "STRICT"}},
        "PORT_QOS_MAP": {port: dict(maps) for port in names},
        "QUEUE": {f"{port}|{number}": {"scheduler": _SCHEDULER} for port in names for number in classes},
    }


def default_ports(plan: Plan) -> list[str]:
    """Return SONiC's names for the ports of the plan's largest switch, if every port has four lanes."""
    cluster = plan.scenario.cluster
    most = max((len(cluster.ports(switch)) for switch in cluster.switches), default=0)
    if not most:
        raise PlanError("the plan's cluster has no switch; accepted: one at least, or name the ports")
    return [f"Ethernet{4 * number}" for number in range(most)]


def nccl(plan: Plan, job: str | None = None, job_class: str = "median") -> str:
    """Return the environment of one job's NCCL, as lines that a shell or nccl.conf takes."""
    job_plan = plan.jobs[job_number(plan, job)]
    dscps = tc.dscps_of(plan)
    queues = len(dscps)
    queue = job_queue(job_plan, job_class) if queues > 1 else 0
    dscp = dscp_of_queue(queue, dscps)
    lines = [
        f"# {job_plan.job.name} of {plan.scenario.name}, policy {plan.policy.name}, {counted(queues, 'queue')}.",
        "# NCCL gives all packets of a communicator one class: a tensor does not get the queue the plan has for it.",
        f"# All of the job goes to queue {queue}: {JOB_CLASSES[job_class]}.",
        "# That puts whole jobs in order on shared links, and not the tensors of one job.",
        "# To have both on RoCE, leave out NCCL_IB_TC, which would win, and make a communicator for each line here,",
        "# with its class as trafficClass in ncclConfig_t:",
        *(f"#   {line}" for line in _queue_lines(job_plan, dscps)),
        "# The byte in IP headers that holds the DSCP, DSCP << 2; sent by RoCE, while plain sockets know no class.",
        f"NCCL_IB_TC={dscp << 2}",
        "# What InfiniBand goes by instead; the subnet manager maps it to a virtual lane.",
        f"NCCL_IB_SL={queues - 1 - queue}",
    ]
    return "\n".join(lines) + "\n"


def job_number(plan: Plan, name: str | None) -> int:
    """Return which job of a plan has a name; where there is one job alone, it needs none."""
    jobs = {job_plan.job.name: number for number, job_plan in enumerate(plan.jobs)}
    if name is None and len(jobs) > 1:
        raise InputError(f"the plan has {len(jobs)} jobs and each needs its own file; give --job {next(iter(jobs))}")
    chosen = next(iter(jobs)) if name is None else name
    if chosen not in jobs:
        raise InputError(unknown("job", chosen, jobs))
    return jobs[chosen]


def job_queue(plan: JobPlan, job_class: str) -> int:
    """Return the queue that stands for all of a job; `job_class` is one of JOB_CLASSES."""
    if job_class not in JOB_CLASSES:
        raise InputError(unknown("job class", job_class, JOB_CLASSES))
    sizes = _bytes_by_queue(plan)
    if job_class == "urgent":
        return min(sizes)
    middle, seen = sum(sizes.values()) / 2, 0
    for queue, size in sorted(sizes.items()):
        seen += size
        if seen >= middle:
            return queue
    raise AssertionError("a job has tensors")


def _bytes_by_queue(plan: JobPlan) -> Mapping[int, int]:
    sizes: dict[int, int] = {}
    for queue, size in zip(plan.queues, plan.job.workload.tensor_bytes, strict=True):
        sizes[queue] = sizes.get(queue, 0) + size
    return sizes


def _queue_lines(plan: JobPlan, dscps: Sequence[int]) -> list[str]:
    """Return a line for each run of tensors that share a queue."""
    if len(dscps) == 1:
        return [f"queue 0: all tensors, trafficClass {dscps[0] << 2}"]
    lines = []
    for queue, members in groupby(range(len(plan.queues)), key=plan.queues.__getitem__):
        tensors = list(members)
        span = f"tensor {tensors[0]}" if len(tensors) == 1 else f"tensors {tensors[0]} to {tensors[-1]}"
        lines.append(f"queue {queue}: {span}, trafficClass {dscp_of_queue(queue, dscps) << 2}")
    return lines


def linux(plan: Plan, device: str, rate_bps: int | None) -> str:
    """Return a shell script that sets up the egress of an interface as `tensorexpress deploy --target linux` does."""
    egress = tc.egress_of(plan, rate_bps)
    return tc.script(tc.setup(device, egress), f"{device}: {tc.summary(egress)} (policy {plan.policy.name}).")


def sonic_text(plan: Plan, ports: Sequence[str] = ()) -> str:
    """Return what `sonic` returns as JSON text."""
    return json.dumps(sonic(plan, ports), indent=2) + "\n"
