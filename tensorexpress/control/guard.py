"""Entries of guard.p4: in whose name a port may send, which jobs may enter at which port, and how fast."""

from __future__ import annotations

from collections.abc import Iterator

from tensorexpress.control.controls import P4Control
from tensorexpress.control.entities import CLONE_SESSIONS, Call, DefaultEntry, Entity, MeterEntry, Rates, TableEntry
from tensorexpress.control.intent import Intent, Options
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.errors import PlanError, unknown
from tensorexpress.p4 import define
from tensorexpress.plan import JobPlan, Plan

SOURCES = "guard.sources"
ADMISSION = "guard.admission"
JOB_METER = "guard.job_meter"
SAMPLED = "guard.sampled"

#: What becomes of strangers -> the action.
STRANGERS = {"remark": "guard.remark_stranger", "drop": "guard.drop_stranger"}

#: A job may send what its rate gives in this time, or so many full packets, at once.
_BURST_MS = 10
_BURST_PACKETS = 64

#: Meters of BMv2 hold bursts in 32 bits.
_LARGEST_BURST = 2**31 - 1


def slot_of_job(number: int) -> int:
    """Return the slot of a job in meters and counters; slot 0 is all other traffic."""
    return number + 1


def job_of_slot(slot: int) -> int | None:
    """Return the job of a slot; None for slot 0, which is all other traffic."""
    return slot - 1 if slot else None


def entries(intent: Intent) -> list[Entity]:
    """Return who is admitted where: a job at the hosts it runs on, every job where another switch admitted it."""
    wanted: list[Entity] = [
        *(_sources(intent) if intent.options.bind_sources else ()),
        DefaultEntry(ADMISSION, Call(STRANGERS[intent.options.strangers])),
    ]
    for number, job in enumerate(intent.plan.jobs):
        admit = Call("guard.admit", (("slot", slot_of_job(number)),))
        hosts = {None, *job.job.workers, *job.job.servers}
        wanted += [
            TableEntry(ADMISSION, (("ingress_port", port), ("job", number)), admit)
            for port, host in intent.host_of_port.items()
            if host in hosts
        ]
        wanted += _limit(intent, number, job)
    return wanted


def _sources(intent: Intent) -> Iterator[TableEntry]:
    """Yield the addresses of the host at each port; packets from another switch were checked where they came in."""
    for port, host in intent.host_of_port.items():
        if host is not None:
            own = intent.addresses[host]
            bind = Call("guard.bind", (("ipv4", int(own.ipv4)), ("ipv6", int(own.ipv6))))
            yield TableEntry(SOURCES, (("ingress_port", port),), bind)


def _limit(intent: Intent, number: int, job: JobPlan) -> list[Entity]:
    rate_bps = intent.options.limits.get(job.job.name)
    if rate_bps is None:
        return []
    rate = max(1, rate_bps // 8)
    burst = min(_LARGEST_BURST, max(rate * _BURST_MS // 1000, _BURST_PACKETS * intent.cluster.mtu))
    return [MeterEntry(JOB_METER, slot_of_job(number), Rates(rate, burst, rate, burst))]


def check(plan: Plan, options: Options, schema: ProgramSchema) -> None:
    """Refuse more jobs than there are slots, and a limit for a job that is not there."""
    names = [job.job.name for job in plan.jobs]
    for name in options.limits:
        if name not in names:
            raise PlanError(unknown("job", name, names))
    slots = schema.find("meter", JOB_METER).size
    if slot_of_job(len(names)) > slots:
        raise PlanError(f"the plan has {len(names)} jobs; accepted: at most {slots - 1}, the slots of {JOB_METER}")


CONTROL = P4Control(
    tables=(SOURCES, ADMISSION),
    meters=(JOB_METER,),
    registers=(SAMPLED,),
    entries=entries,
    # The first packet that is admitted to a slot is cloned to the controller.
    references={ADMISSION: (CLONE_SESSIONS,)},
    check=check,
    exceptions={
        define.MALFORMED: "malformed",
        define.STRANGER_REMARKED: "stranger remarked",
        define.STRANGER_DROPPED: "stranger dropped",
        define.OVER_RATE: "over rate",
        define.SPOOFED: "spoofed",
        define.FRAGMENT: "fragment",
    },
)
