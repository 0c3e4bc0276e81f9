"""What a switch that runs our program has done: entries, packets by job and queue, exceptions, longest queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorexpress.control.client import Connection
from tensorexpress.control.guard import slot_of_job
from tensorexpress.control.messages import Schema, decode
from tensorexpress.control.p4info import P4Type
from tensorexpress.control.reconcile import NONE, OURS, running_program
from tensorexpress.errors import NetworkError
from tensorexpress.p4 import Program
from tensorexpress.p4runtime_messages import p4runtime_pb2

#: What the cells of the counter `exceptions` count, in the order of define.p4.
EXCEPTIONS = (
    "malformed",
    "stranger remarked",
    "stranger dropped",
    "over rate",
    "bad checksum",
    "TTL expired",
    "no route",
    "spoofed",
    "fragment",
)

#: A cell of counters and registers is a slot or port and, in its lowest bits, a queue.
_QUEUES = 8


@dataclass(frozen=True)
class TableUse:
    """How full a table is."""

    table: str
    entries: int
    size: int


@dataclass(frozen=True)
class Traffic:
    """Packets of one job (None: all other traffic) in one queue: those that came, and those that left."""

    job: int | None
    queue: int
    offered_packets: int
    offered_bytes: int
    served_packets: int
    served_bytes: int


@dataclass(frozen=True)
class Longest:
    """The longest queue that any packet has found at a port, in packets."""

    port: int
    queue: int
    packets: int


@dataclass(frozen=True)
class Status:
    """What one switch has done since it runs the program."""

    tables: tuple[TableUse, ...]
    #: Jobs and queues that saw a packet.
    traffic: tuple[Traffic, ...]
    #: Name -> packets.
    exceptions: dict[str, int]
    #: Queues that were ever found occupied; None on a switch whose registers cannot be read.
    longest: tuple[Longest, ...] | None
    #: Port -> frames that came faster than the switch took them; None on a switch that does not say.
    lost_frames: dict[int, int] | None


def read_status(connection: Connection, program: Program, schema: Schema) -> Status:
    """Return what a switch has done; NetworkError when it does not run our program."""
    state = running_program(connection, program, schema)
    if state != OURS:
        what = "runs no program" if state == NONE else "runs another program"
        raise NetworkError(f"{connection.target}: {what}; deploy a plan to it first")
    exceptions = _read_counter(connection, schema, "exceptions")
    return Status(
        tables=tuple(_table_use(connection, schema, table) for table in schema.names(P4Type.table)),
        traffic=tuple(
            _traffic(
                _read_counter(connection, schema, "classify.offered"), _read_counter(connection, schema, "mark.served")
            )
        ),
        exceptions={name: packets for name, (packets, _) in zip(EXCEPTIONS, exceptions, strict=True)},
        longest=_read_longest(connection, schema),
        lost_frames=connection.read_lost_frames(),
    )


def read_served(connection: Connection, schema: Schema) -> dict[tuple[int, int], int]:
    """Return the packets that a switch has served, by (slot, queue); much quicker than all of its status."""
    cells = _read_counter(connection, schema, "mark.served")
    return {divmod(cell, _QUEUES): packets for cell, (packets, _) in enumerate(cells) if packets}


def _table_use(connection: Connection, schema: Schema, table: str) -> TableUse:
    query = p4runtime_pb2.Entity()
    query.table_entry.table_id = schema.find(P4Type.table, table).preamble.id
    return TableUse(table, sum(1 for _ in connection.read([query])), schema.table_size(table))


def _read_counter(connection: Connection, schema: Schema, name: str) -> list[tuple[int, int]]:
    """Return (packets, bytes) of all cells of a counter."""
    counter = schema.find(P4Type.counter, name)
    query = p4runtime_pb2.Entity()
    query.counter_entry.counter_id = counter.preamble.id
    cells = [(0, 0)] * counter.size
    for message in connection.read([query]):
        entry = message.counter_entry
        cells[entry.index.index] = (entry.data.packet_count, entry.data.byte_count)
    return cells


def _traffic(offered: Sequence[tuple[int, int]], served: Sequence[tuple[int, int]]) -> list[Traffic]:
    rows = []
    for cell, (came, left) in enumerate(zip(offered, served, strict=True)):
        if came[0] or left[0]:
            slot, queue = divmod(cell, _QUEUES)
            rows.append(Traffic(slot - slot_of_job(0) if slot else None, queue, *came, *left))
    return rows


def _read_longest(connection: Connection, schema: Schema) -> tuple[Longest, ...] | None:
    query = p4runtime_pb2.Entity()
    query.register_entry.register_id = schema.register("mark.longest").preamble.id
    cells = connection.read_if_implemented(query)
    if cells is None:
        return None
    depths = ((message.register_entry.index.index, decode(message.register_entry.data.bitstring)) for message in cells)
    return tuple(Longest(cell // _QUEUES, cell % _QUEUES, depth) for cell, depth in sorted(depths) if depth)
