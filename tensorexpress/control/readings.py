"""What the controls of a program count: cells of its counters and registers, read from a switch, as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorexpress.control.client import Connection
from tensorexpress.control.entities import CellEntry, cells_of
from tensorexpress.control.messages import ProgramSchema


@dataclass(frozen=True)
class StatusReading:
    """Something that `status` tells of a switch, made of arrays of the program.

    `rows` is called with the names of the plan's jobs and, for each array, its cells by index. It returns dataclasses.
    """

    #: Its name in JSON.
    name: str
    #: Its name for people.
    title: str
    #: Counters and registers.
    arrays: tuple[str, ...]
    rows: Callable[..., Iterable[Any]]
    #: (heading, field of a row) of every column for people.
    columns: tuple[tuple[str, str], ...]
    #: What to say where there is no row.
    empty: str


def read_array(connection: Connection, schema: ProgramSchema, array: str) -> list[Any] | None:
    """Return all cells of a meter, counter or register by index; None where the switch cannot read such."""
    kind = cells_of(schema, array)
    answer = connection.read_if_implemented(kind.query(schema, array))
    return None if answer is None else sorted((kind.decode(schema, each) for each in answer), key=_index)


def _index(cell: CellEntry) -> int:
    return cell.index


def take(
    connection: Connection, schema: ProgramSchema, reading: StatusReading, jobs: Sequence[str]
) -> tuple[Any, ...] | None:
    """Return the rows of a reading; None where the switch cannot read what they are made of."""
    arrays = [read_array(connection, schema, array) for array in reading.arrays]
    return None if None in arrays else tuple(reading.rows(jobs, *arrays))
