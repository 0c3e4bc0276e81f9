"""Entries of guard.p4: in whose name a port may send, which jobs may enter at which port, and how fast."""

from __future__ import annotations

from collections.abc import Iterator

from tensorexpress.control.entries import Call, DefaultEntry, Entity, Meter, Rates, TableEntry
from tensorexpress.control.intent import Intent
from tensorexpress.plan import JobPlan

SOURCES = "guard.sources"
ADMISSION = "guard.admission"
JOB_METER = "guard.job_meter"

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


def entries(intent: Intent) -> list[Entity]:
    """Return who is admitted where: a job at the hosts it runs on, every job where another switch admitted it."""
    wanted: list[Entity] = [
        DefaultEntry(SOURCES, Call("NoAction")),
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
    return [Meter(JOB_METER, slot_of_job(number), Rates(rate, burst, rate, burst))]
