"""What a switch that runs our program has done: entries, what its controls count, exceptions, frames it lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorexpress.control.client import Connection
from tensorexpress.control.controls import EXCEPTIONS, controls, exception_names
from tensorexpress.control.entities import TableEntry, table_size
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.control.readings import StatusReading, read_array, take
from tensorexpress.control.reconcile import NONE, OURS, running_program
from tensorexpress.errors import NetworkError
from tensorexpress.p4 import P4Program


@dataclass(frozen=True)
class TableUse:
    """How full a table is."""

    table: str
    entries: int
    size: int


@dataclass(frozen=True)
class Status:
    """What one switch has done since it runs the program."""

    tables: tuple[TableUse, ...]
    #: What controls count -> its rows; None on a switch that cannot read it.
    readings: dict[StatusReading, tuple[Any, ...] | None]
    #: Name -> packets.
    exceptions: dict[str, int]
    #: Port -> frames that came faster than the switch took them; None on a switch that does not say.
    lost_frames: dict[int, int] | None

    def rows(self, name: str) -> tuple[Any, ...] | None:
        """Return the rows of the reading of this name."""
        return next(rows for reading, rows in self.readings.items() if reading.name == name)


def read_status(connection: Connection, program: P4Program, schema: ProgramSchema, jobs: Sequence[str] = ()) -> Status:
    """Return what a switch has done; NetworkError when it does not run our program. `jobs` are names, if known."""
    state = running_program(connection, program, schema)
    if state != OURS:
        what = "runs no program" if state == NONE else "runs another program"
        raise NetworkError(f"{connection.target}: {what}; deploy a plan to it first")
    return Status(
        tables=tuple(_table_use(connection, schema, table) for table in schema.names("table")),
        readings={
            reading: take(connection, schema, reading, jobs) for control in controls() for reading in control.readings
        },
        exceptions=_read_exceptions(connection, schema),
        lost_frames=connection.read_lost_frames(),
    )


def _table_use(connection: Connection, schema: ProgramSchema, table: str) -> TableUse:
    entries = sum(1 for _ in connection.read([TableEntry.query(schema, table)]))
    return TableUse(table, entries, table_size(schema, table))


def _read_exceptions(connection: Connection, schema: ProgramSchema) -> dict[str, int]:
    names = exception_names()
    cells = read_array(connection, schema, EXCEPTIONS) or []
    return {names.get(cell.index, f"exception {cell.index}"): cell.packets for cell in cells}
