"""Entries of mark.p4: the DSCP of every queue, where ECN begins, and where samples go. What packets it saw leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tensorexpress.control.classify import OFFERED
from tensorexpress.control.client import Connection
from tensorexpress.control.controls import P4Control
from tensorexpress.control.entities import (
    Call,
    CellEntry,
    CloneEntry,
    CounterEntry,
    DefaultEntry,
    Entity,
    RegisterEntry,
    TableEntry,
)
from tensorexpress.control.guard import job_of_slot
from tensorexpress.control.intent import Intent
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.control.readings import StatusReading, read_array
from tensorexpress.p4.define import CPU_PORT, SAMPLE_SESSION
from tensorexpress.wire.dscp import MOST_QUEUES

QUEUE_DSCP = "mark.queue_dscp"
ECN = "mark.ecn"
SERVED = "mark.served"
PORTS = "mark.ports"
LONGEST = "mark.longest"

#: A queue that is never found so long: the largest `enq_qdepth`.
_NEVER_PACKETS = 2**19 - 1


def entries(intent: Intent) -> list[Entity]:
    """Return what a packet carries on from here."""
    return [
        CloneEntry(SAMPLE_SESSION, frozenset({(CPU_PORT, 0)})),
        DefaultEntry(ECN, Call("mark.mark_over", (("packets", _ecn_packets(intent)),))),
        *(
            TableEntry(
                QUEUE_DSCP,
                (("queue", queue), ("is_ipv4", is_ipv4)),
                Call(f"mark.{action}", (("dscp", dscp),)),
            )
            for queue, dscp in enumerate(intent.plan.dscps)
            for is_ipv4, action in ((1, "set_dscp"), (0, "set_dscp6"))
        ),
    ]


def _ecn_packets(intent: Intent) -> int:
    """Return the packets in a queue over which packets are marked; switches count packets where plans count bytes."""
    ecn_bytes = intent.plan.scenario.transport.ecn_bytes
    return min(_NEVER_PACKETS, max(1, ecn_bytes // intent.cluster.mtu)) if ecn_bytes else _NEVER_PACKETS


@dataclass(frozen=True)
class Traffic:
    """Packets of one job (None: all other traffic) in one queue: those that came, and those that left."""

    job: int | None
    queue: int
    offered_packets: int
    offered_bytes: int
    served_packets: int
    served_bytes: int
    name: str


@dataclass(frozen=True)
class LongestQueue:
    """The longest queue that any packet has found at a port, in packets."""

    port: int
    queue: int
    packets: int


@dataclass(frozen=True)
class PortBytes:
    """What has left by a port, of jobs and of all others; bytes are those of frames."""

    port: int
    packets: int
    octets: int
    other_packets: int
    other_octets: int


def _split(cell: CellEntry) -> tuple[int, int]:
    """Return what a cell of these arrays is about: a slot or a port and, in the lowest bits, a queue."""
    return divmod(cell.index, MOST_QUEUES)


def read_served(connection: Connection, schema: ProgramSchema) -> dict[tuple[int, int], int]:
    """Return the packets that a switch has served, by (slot, queue); much quicker than all of its status."""
    cells = read_array(connection, schema, SERVED) or []
    return {_split(cell): cell.packets for cell in cells if cell.packets}


def read_ports(connection: Connection, schema: ProgramSchema, ports: Iterable[int]) -> dict[int, PortBytes]:
    """Return what has left by some ports; much quicker than all of a switch's status."""
    queries = []
    for index in (2 * port + is_other for port in ports for is_other in (0, 1)):
        queries.append(CounterEntry.query(schema, PORTS))
        queries[-1].counter_entry.index.index = index
    cells = sorted((CounterEntry.decode(schema, each) for each in connection.read_few(queries)), key=_index)
    return {each.port: each for each in _ports((), cells)}


def _index(cell: CellEntry) -> int:
    return cell.index


def _ports(jobs: Sequence[str], cells: Sequence[CounterEntry]) -> Iterator[PortBytes]:
    """Yield ports by which a packet left."""
    for own, other in zip(cells[::2], cells[1::2], strict=True):
        if own.packets or other.packets:
            yield PortBytes(own.index // 2, own.packets, own.octets, other.packets, other.octets)


def _traffic(jobs: Sequence[str], offered: Sequence[CounterEntry], served: Sequence[CounterEntry]) -> Iterator[Traffic]:
    """Yield jobs and queues that saw a packet."""
    for came, left in zip(offered, served, strict=True):
        if came.packets or left.packets:
            slot, queue = _split(came)
            job = job_of_slot(slot)
            counts = (came.packets, came.octets, left.packets, left.octets)
            yield Traffic(job, queue, *counts, _job_name(job, jobs))


def _job_name(job: int | None, jobs: Sequence[str]) -> str:
    if job is None:
        return "other traffic"
    return jobs[job] if job < len(jobs) else f"job {job}"


def _longest(jobs: Sequence[str], depths: Sequence[RegisterEntry]) -> Iterator[LongestQueue]:
    """Yield queues that were ever found occupied."""
    for cell in depths:
        if cell.value:
            yield LongestQueue(*_split(cell), cell.value)


CONTROL = P4Control(
    tables=(QUEUE_DSCP, ECN),
    counters=(SERVED, PORTS),
    registers=(LONGEST,),
    entries=entries,
    readings=(
        StatusReading(
            name="traffic",
            title="traffic",
            arrays=(OFFERED, SERVED),
            rows=_traffic,
            columns=(
                ("job", "name"),
                ("queue", "queue"),
                ("offered packets", "offered_packets"),
                ("bytes", "offered_bytes"),
                ("served packets", "served_packets"),
                ("bytes", "served_bytes"),
            ),
            empty="no packet yet",
        ),
        StatusReading(
            name="ports",
            title="ports",
            arrays=(PORTS,),
            rows=_ports,
            columns=(
                ("port", "port"),
                ("packets of jobs", "packets"),
                ("bytes", "octets"),
                ("others", "other_packets"),
                ("bytes", "other_octets"),
            ),
            empty="no packet yet",
        ),
        StatusReading(
            name="longest",
            title="longest queues",
            arrays=(LONGEST,),
            rows=_longest,
            columns=(("port", "port"), ("queue", "queue"), ("longest in packets", "packets")),
            empty="no packet has waited yet",
        ),
    ),
)
