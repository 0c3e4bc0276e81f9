"""Workloads: the layers of a model in forward order, with their parameters and compute times.

A workload comes from the zoo (`tensorexpress.models`) or from a measured profile, in SwitchML's CSV format:

    layer_index,numel,forward_ns,backward_ns
    0,9472,412.5,825
    1,4224,101,202
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from tensorexpress.errors import WorkloadError, shown
from tensorexpress.files import write_atomic
from tensorexpress.names import check_name, name_of_file


@dataclass(frozen=True)
class Layer:
    """One layer: what it computes for and what its gradient weighs."""

    name: str
    params: int
    forward_ps: int
    backward_ps: int

    def __post_init__(self) -> None:
        check_name("the name of a layer", self.name, WorkloadError)
        if not 1 <= self.params <= _MOST_PARAMS:
            raise WorkloadError(f"layer {self.name} has {shown(self.params)} parameters; accepted: 1 to {_MOST_PARAMS}")
        for time_ps in (self.forward_ps, self.backward_ps):
            if not 0 <= time_ps <= LONGEST_PS:
                raise WorkloadError(f"layer {self.name} computes for {shown(time_ps)} ps; accepted: 0 to {LONGEST_PS}")


@dataclass(frozen=True)
class Workload:
    """A model as the network sees it: layers in forward order, each with at least one parameter."""

    name: str
    layers: tuple[Layer, ...]
    bytes_per_param: int = 4

    def __post_init__(self) -> None:
        check_name("the name of a workload", self.name, WorkloadError)
        if not 1 <= len(self.layers) <= _MOST_LAYERS:
            raise WorkloadError(f"{self.name} has {len(self.layers)} layers; accepted: 1 to {_MOST_LAYERS}")
        if not 1 <= self.bytes_per_param <= _MOST_BYTES_PER_PARAM:
            raise WorkloadError(
                f"{self.name} has parameters of {shown(self.bytes_per_param)} bytes; "
                f"accepted: 1 to {_MOST_BYTES_PER_PARAM}"
            )

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        """Bytes of every layer's gradient, in forward order."""
        return tuple(layer.params * self.bytes_per_param for layer in self.layers)

    @property
    def compute_ps(self) -> int:
        """How long one worker computes in an iteration."""
        return sum(layer.forward_ps + layer.backward_ps for layer in self.layers)


_COLUMNS = ("layer_index", "numel", "forward_ns", "backward_ns")
_HEADER = ",".join(_COLUMNS)
_PS_PER_NS = 1000

#: Beyond these a number in a file is a mistake, and sums over layers would leave 64 bits.
_MOST_PARAMS = 10**12
_LONGEST_PS = 10**15
_MOST_LAYERS = 1_000_000
_LARGEST_FILE_BYTES = 2**26
_MOST_BYTES_PER_PARAM = 1024

#: The longest time of a layer, in slow motion too.
LONGEST_PS = 10**16

_INTEGER = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?")


def read_csv(path: str | os.PathLike[str]) -> Workload:
    """Return the workload of a CSV in SwitchML's format: a row per layer, in forward order.

    Indices count up by one from 0 or 1. Times are whole or decimal nanoseconds, kept to the picosecond. The format
    has no names: layers are called layer0, layer1, ... and the workload as the file, without its ending and with "_"
    for what no name can have.
    """
    place = os.fspath(path)
    lines = _text(place).splitlines()
    header = lines[0] if lines else ""
    if tuple(column.strip() for column in header.split(",")) != _COLUMNS:
        raise WorkloadError(f"{place}:1: header is {shown(header)}; accepted: {_HEADER}")
    rows = [(f"{place}:{number}", line) for number, line in enumerate(lines[1:], 2) if line.strip()]
    if not rows:
        raise WorkloadError(f"{place}:{len(lines) + 1}: no layer after the header; accepted: a row for every layer")
    start = 1 if rows[0][1].split(",")[0].strip() == "1" else 0
    layers = tuple(_layer(where, line, index) for index, (where, line) in enumerate(rows, start))
    return Workload(name_of_file(Path(place).stem), layers)


def write_csv(workload: Workload, path: str | os.PathLike[str]) -> None:
    """Write a workload as a CSV in SwitchML's format; what `read_csv` returns for it differs in names alone."""
    rows = [
        f"{index},{layer.params},{_nanoseconds(layer.forward_ps)},{_nanoseconds(layer.backward_ps)}"
        for index, layer in enumerate(workload.layers)
    ]
    write_atomic(path, "\n".join([_HEADER, *rows, ""]))


def _text(place: str) -> str:
    try:
        with open(place, "rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
        if len(content) > _LARGEST_FILE_BYTES:
            raise WorkloadError(f"{place}: is larger than {_LARGEST_FILE_BYTES} bytes; accepted: a row for every layer")
        # Spreadsheets put a byte-order mark in front.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise WorkloadError(
            f"{place}:{line}: byte 0x{error.object[error.start]:02x} is not UTF-8; accepted: a text file in UTF-8"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise WorkloadError(
            f"cannot read {place!r}: {reason}; accepted: a CSV file with the header {_HEADER}"
        ) from None


def _layer(where: str, line: str, index: int) -> Layer:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(_COLUMNS):
        raise WorkloadError(f"{where}: {shown(line)} has {len(fields)} of {len(_COLUMNS)} columns; accepted: {_HEADER}")
    if not _INTEGER.fullmatch(fields[0]) or int(fields[0]) != index:
        raise WorkloadError(
            f"{where}: layer_index is {shown(fields[0])}; accepted: {index}, as rows count up by one from 0 or 1"
        )
    params = _params(where, fields[1])
    forward_ps, backward_ps = (
        _picoseconds(where, column, field) for column, field in zip(_COLUMNS[2:], fields[2:], strict=True)
    )
    return Layer(f"layer{index}", params, forward_ps, backward_ps)


def _params(where: str, field: str) -> int:
    if not _INTEGER.fullmatch(field) or not 1 <= int(field) <= _MOST_PARAMS:
        raise WorkloadError(f"{where}: numel is {shown(field)}; accepted: a whole number from 1 to {_MOST_PARAMS}")
    return int(field)


def _picoseconds(where: str, column: str, field: str) -> int:
    time_ps = round(Decimal(field) * _PS_PER_NS) if _DECIMAL.fullmatch(field) else -1
    if not 0 <= time_ps <= _LONGEST_PS:
        raise WorkloadError(
            f"{where}: {column} is {shown(field)}; "
            f"accepted: a number of nanoseconds from 0 to {_LONGEST_PS // _PS_PER_NS}"
        )
    return time_ps


def _nanoseconds(time_ps: int) -> str:
    whole, part = divmod(time_ps, _PS_PER_NS)
    return f"{whole}.{part:03}".rstrip("0").rstrip(".")
