"""Entries of tally.p4: the group of every job, and of how many packets one is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from tensorexpress.control.guard import slot_of_job
from tensorexpress.control.intent import Intent
from tensorexpress.control.readings import StatusReading

JOBS = "tally.jobs"
SEEN = "tally.seen"
ROUNDS = "tally.rounds"
TOLD = "tally.told"

FIRST_GROUP = 100


def entries(intent: Intent) -> Iterator[Entity]:
    for number, job in enumerate(intent.plan.jobs):
        group = FIRST_GROUP + number
        ports = (port for port, host in intent.host_of_port.items() if host in job.job.workers)
        yield MulticastEntry(group, frozenset((port, 1) for port in ports))
        yield RegisterEntry(ROUNDS, slot_of_job(number), len(job.job.workers))
        yield TableEntry(JOBS, (("job", number),), Call("tally.tell", (("group", group),)))


@dataclass(frozen=True)
class Told:
    slot: int
    packets: int


def _told(jobs: Sequence[str], cells: Sequence[CounterEntry]) -> Iterator[Told]:
    return (Told(cell.index, cell.packets) for cell in cells if cell.packets)


CONTROL = P4Control(
    tables=(JOBS,),
    counters=(TOLD,),
    registers=(SEEN, ROUNDS),
    entries=entries,
    references={JOBS: (MULTICAST_GROUPS, ROUNDS)},
    readings=(
        StatusReading("told", "told", (TOLD,), _told, (("slot", "slot"), ("packets", "packets")), empty="none yet"),
    ),
)
