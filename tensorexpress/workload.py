"""Workloads: the layers of a model in forward order, with their parameters and compute times.

A workload comes from the zoo (`tensorexpress.models`) or from a measured profile, in SwitchML's CSV format:

    layer_index,numel,forward_ns,backward_ns
    0,9472,412.5,825
    1,4224,101,202

Four more columns are for layers that are sparse tables: keys,width,lookups,skew. A last column, name, is for layers
that have names.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from math import ceil
from pathlib import Path

from tensorexpress.errors import WorkloadError, shown, unknown
from tensorexpress.files import open_input, write_atomic
from tensorexpress.names import LONGEST_NAME, check_name, name_of_file
from tensorexpress.sparse import SparseTable, sent_bytes
from tensorexpress.units import PS_PER_SECOND, serialisation_ps


@dataclass(frozen=True)
class Layer:
    """One layer: what it computes for and what its gradient weighs."""

    name: str
    params: int
    forward_ps: int
    backward_ps: int
    #: A sparse table among its parameters, of which an iteration touches single rows, in the words of `SparseTable`; 0
    #: where there is none. All other parameters have a gradient in every iteration.
    keys: int = 0
    width: int = 0
    lookups: int = 0
    skew: float = 0.0

    def __post_init__(self) -> None:
        check_name("the name of a layer", self.name, WorkloadError)
        if not 1 <= self.params <= _MOST_PARAMS:
            raise WorkloadError(f"layer {self.name} has {shown(self.params)} parameters; accepted: 1 to {_MOST_PARAMS}")
        for time_ps in (self.forward_ps, self.backward_ps):
            if not 0 <= time_ps <= LONGEST_PS:
                raise WorkloadError(f"layer {self.name} computes for {shown(time_ps)} ps; accepted: 0 to {LONGEST_PS}")
        if self.table is not None and self.table.params > self.params:
            raise WorkloadError(
                f"layer {self.name} has {self.params} parameters and a sparse table of {self.table.params}; "
                "accepted: a table of no more than its parameters"
            )

    @cached_property
    def table(self) -> SparseTable | None:
        """Its sparse table, if it has one."""
        if not (self.keys or self.width or self.lookups or self.skew):
            return None
        return SparseTable(self.keys, self.width, self.lookups, self.skew)

    def gradient_bytes(self, bytes_per_param: int) -> int:
        """Return the bytes of its gradient at one worker; a table that is lighter as a whole goes as a whole.

        >>> Layer("embed", 16_000_010, 0, 0, keys=1_000_000, width=16, lookups=1).gradient_bytes(4)
        112
        """
        return self.dense_values() * bytes_per_param + self.cold_bytes(bytes_per_param)

    def dense_values(self, hot_rows: int = 0) -> int:
        """Return how many of its parameters have a gradient at every worker in every iteration.

        Those are all outside of its table, and rows that are sent whether they were touched or not.
        """
        return self.params if self.table is None else self.params - (self.keys - hot_rows) * self.width

    def cold_bytes(self, bytes_per_param: int, hot_rows: int = 0) -> int:
        """Return the bytes of its table at one worker but for its hot rows: rows with keys, or all where that is less.

        >>> Layer("embed", 64, 0, 0, keys=4, width=16, lookups=1000).cold_bytes(4, hot_rows=1)
        192
        """
        if self.table is None:
            return 0
        whole = (self.keys - hot_rows) * self.width * bytes_per_param
        return min(whole, sent_bytes(self.table, bytes_per_param, hot_rows))


#: Bytes of a parameter's gradient by what is computed in; tf32 is a way to compute with numbers of fp32.
DTYPE_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Workload:
    """A model as the network sees it: layers in forward order, each with at least one parameter."""

    name: str
    layers: tuple[Layer, ...]
    #: What it is computed in, and what gradients are: a key of `DTYPE_BYTES`.
    dtype: str = "fp32"
    #: Samples that a worker takes in an iteration; 0 where nobody said.
    batch: int = 0
    #: How many times smaller gradients and parameters are when they travel.
    compression: float = 1.0
    #: Bit/s at which a worker makes them so, and undoes it; 0 is at once. The time is part of the layers' times.
    compression_rate_bps: int = 0

    def __post_init__(self) -> None:
        check_name("the name of a workload", self.name, WorkloadError)
        if not 1 <= len(self.layers) <= _MOST_LAYERS:
            raise WorkloadError(f"{self.name} has {len(self.layers)} layers; accepted: 1 to {_MOST_LAYERS}")
        if self.dtype not in DTYPE_BYTES:
            raise WorkloadError(f"{self.name}: {unknown('dtype', self.dtype, DTYPE_BYTES)}")
        for what, value, least, most in (
            ("a batch", self.batch, 0, LARGEST_BATCH),
            ("a compression", self.compression, 1, LARGEST_COMPRESSION),
            ("a compression rate", self.compression_rate_bps, 0, _FASTEST_BPS),
        ):
            if not least <= value <= most:
                raise WorkloadError(f"{self.name} has {what} of {shown(value)}; accepted: {least} to {most}")

    @property
    def bytes_per_param(self) -> int:
        """Bytes of one parameter's gradient, before any compression."""
        return DTYPE_BYTES[self.dtype]

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        """Bytes of every layer's gradient as it travels, in forward order."""
        return tuple(ceil(layer.gradient_bytes(self.bytes_per_param) / self.compression) for layer in self.layers)

    @property
    def codec_ps(self) -> tuple[int, ...]:
        """How long every layer's gradient is compressed, which is also how long its parameters are decompressed."""
        if not self.compression_rate_bps:
            return (0,) * len(self.layers)
        return tuple(
            serialisation_ps(layer.gradient_bytes(self.bytes_per_param), self.compression_rate_bps)
            for layer in self.layers
        )

    @property
    def compute_ps(self) -> int:
        """How long one worker computes in an iteration."""
        return sum(layer.forward_ps + layer.backward_ps for layer in self.layers)


_COLUMNS = ("layer_index", "numel", "forward_ns", "backward_ns")
_HEADER = ",".join(_COLUMNS)

#: What a row has further where some layers are sparse tables; empty for all others.
_SPARSE_COLUMNS = ("keys", "width", "lookups", "skew")

#: The last column where layers have names, which may hold commas.
_NAME_COLUMN = "name"

#: Every header that is read.
_HEADERS = tuple((*_COLUMNS, *sparse, *name) for sparse in ((), _SPARSE_COLUMNS) for name in ((), (_NAME_COLUMN,)))
_PS_PER_NS = 1000

#: Beyond these a number in a file is a mistake, and sums over layers would leave 64 bits.
_MOST_PARAMS = 10**12
LONGEST_CSV_PS = 10**15
_MOST_LAYERS = 1_000_000
_LARGEST_FILE_BYTES = 2**26
_FASTEST_BPS = 10**18

#: A batch beyond this is a slip of the keyboard, and would carry times out of 64 bits; so is a compression.
LARGEST_BATCH = 1_000_000
LARGEST_COMPRESSION = 10_000
LEAST_SAMPLES_PER_SECOND, MOST_SAMPLES_PER_SECOND = 1e-6, 1e9

#: The longest time of a layer, in slow motion too.
LONGEST_PS = 10**16

#: PyTorch's DDP keeps its first bucket this small, so that the network starts early in the backward pass.
FIRST_BUCKET_BYTES = 2**20

_INTEGER = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?")
#: As Python writes any floating-point number.
_FLOAT = re.compile(r"[0-9]{1,15}(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?")


def at_throughput(workload: Workload, samples_per_second: float) -> Workload:
    """Return the workload with its times scaled so that a worker computes at a measured throughput.

    >>> one = Workload("one", (Layer("a", 1, 10**9, 2 * 10**9),), batch=6)
    >>> at_throughput(one, 1000).compute_ps == 6 * 10**9
    True
    """
    if not workload.batch:
        raise WorkloadError(f"{workload.name} has no batch; accepted: with the samples that a worker's iteration has")
    if not workload.compute_ps:
        raise WorkloadError(f"{workload.name} computes for no time at all; accepted: times, which are scaled")
    if not LEAST_SAMPLES_PER_SECOND <= samples_per_second <= MOST_SAMPLES_PER_SECOND:
        raise WorkloadError(
            f"found {samples_per_second:g} samples/s; "
            f"accepted: {LEAST_SAMPLES_PER_SECOND:g} to {MOST_SAMPLES_PER_SECOND:g}"
        )
    factor = workload.batch * PS_PER_SECOND / samples_per_second / workload.compute_ps
    return replace(
        workload,
        layers=tuple(
            replace(layer, forward_ps=round(layer.forward_ps * factor), backward_ps=round(layer.backward_ps * factor))
            for layer in workload.layers
        ),
    )


def compressed(workload: Workload, ratio: float, rate_bps: int) -> Workload:
    """Return the workload with gradients and parameters that travel `ratio` times smaller.

    A worker compresses a gradient when backward has made it and decompresses parameters before forward uses them, each
    at `rate_bps` of uncompressed bits (0: at once), in the time of its own computing.
    """
    smaller = replace(workload, compression=float(ratio), compression_rate_bps=rate_bps)
    return replace(
        smaller,
        layers=tuple(
            replace(layer, forward_ps=layer.forward_ps + codec_ps, backward_ps=layer.backward_ps + codec_ps)
            for layer, codec_ps in zip(workload.layers, smaller.codec_ps, strict=True)
        ),
    )


def in_buckets(workload: Workload, bucket_bytes: int) -> Workload:
    """Return the workload with its layers joined as PyTorch's DDP joins gradients; 0 bytes leave it as it is.

    Buckets fill up in the order in which the backward pass makes gradients, last layer first; one is full as soon as it
    holds `bucket_bytes`, the first one at 1 MiB already. A layer with a sparse table is joined with no other. A bucket
    is a layer here, which is the same to everybody: its gradient is ready with that of its front layer, and that layer
    is the first that waits for it. So a workload that is in buckets stays as it is.

    >>> five = Workload("five", tuple(Layer(f"l{i}", 200_000, 1, 2) for i in range(5)))
    >>> [(layer.name, layer.params, layer.backward_ps) for layer in in_buckets(five, 2_000_000).layers]
    [('l0..l2', 600000, 6), ('l3..l4', 400000, 4)]
    """
    if not bucket_bytes:
        return workload
    buckets: list[list[Layer]] = [[]]
    filled_bytes, limit_bytes = 0, min(FIRST_BUCKET_BYTES, bucket_bytes)
    for layer in reversed(workload.layers):
        is_alone = layer.table is not None or (buckets[-1] and buckets[-1][-1].table is not None)
        if filled_bytes >= limit_bytes or (is_alone and buckets[-1]):
            buckets.append([])
            filled_bytes, limit_bytes = 0, bucket_bytes
        buckets[-1].append(layer)
        filled_bytes += layer.gradient_bytes(workload.bytes_per_param)
    return replace(workload, layers=tuple(_joined(bucket[::-1]) for bucket in reversed(buckets)))


def _joined(layers: list[Layer]) -> Layer:
    """Return layers that follow each other as one."""
    first, last = layers[0], layers[-1]
    if first is last:
        return first
    half = LONGEST_NAME // 2 - 1
    return Layer(
        f"{first.name[:half]}..{last.name[-half:]}",
        *(sum(getattr(layer, field) for layer in layers) for field in ("params", "forward_ps", "backward_ps")),
    )


def without_backward(workload: Workload) -> Workload:
    """Return the workload of a job that only infers: its backward pass takes no time."""
    return replace(workload, layers=tuple(replace(layer, backward_ps=0) for layer in workload.layers))


def read_csv(path: str | os.PathLike[str]) -> Workload:
    """Return the workload of a CSV in SwitchML's format: a row per layer, in forward order.

    It may have four more columns, of sparse tables: keys, width, lookups of an iteration, skew; empty for other layers.
    Indices count up by one from 0 or 1. Times are whole or decimal nanoseconds, kept to the picosecond. Where there is
    no last column with names, layers are called layer0, layer1, ...; the workload is called as the file, without its
    ending and with "_" for what no name can have.
    """
    place = os.fspath(path)
    lines = _text(place).splitlines()
    header = lines[0] if lines else ""
    columns = tuple(column.strip() for column in header.split(","))
    if columns not in _HEADERS:
        more = f"and {','.join(_SPARSE_COLUMNS)} behind it for sparse tables, {_NAME_COLUMN} last for names"
        raise WorkloadError(f"{place}:1: header is {shown(header)}; accepted: {_HEADER}, {more}")
    rows = [(f"{place}:{number}", line) for number, line in enumerate(lines[1:], 2) if line.strip()]
    if not rows:
        raise WorkloadError(f"{place}:{len(lines) + 1}: no layer after the header; accepted: a row for every layer")
    start = 1 if rows[0][1].split(",")[0].strip() == "1" else 0
    layers = tuple(_layer(where, line, index, columns) for index, (where, line) in enumerate(rows, start))
    return Workload(name_of_file(Path(place).stem), layers)


def write_csv(workload: Workload, path: str | os.PathLike[str], *, with_names: bool = False) -> bool:
    """Write the layers of a workload as a CSV in SwitchML's format, which has no room for dtype or batch.

    Names of layers are a column that SwitchML's format does not have. Returns what `write_atomic` returns.
    """
    has_tables = any(layer.table for layer in workload.layers)
    columns = (*_COLUMNS, *(_SPARSE_COLUMNS if has_tables else ()), *((_NAME_COLUMN,) if with_names else ()))
    rows = [",".join(_cells(index, layer, columns)) for index, layer in enumerate(workload.layers)]
    return write_atomic(path, "\n".join([",".join(columns), *rows, ""]))


def _cells(index: int, layer: Layer, columns: tuple[str, ...]) -> list[str]:
    cells = [f"{index}", f"{layer.params}", _nanoseconds(layer.forward_ps), _nanoseconds(layer.backward_ps)]
    if _SPARSE_COLUMNS[0] in columns:
        cells += ["" if layer.table is None else repr(getattr(layer, name)) for name in _SPARSE_COLUMNS]
    return [*cells, layer.name] if columns[-1] == _NAME_COLUMN else cells


def _text(place: str) -> str:
    try:
        with open_input(place) as file:
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


def _layer(where: str, line: str, index: int, columns: tuple[str, ...]) -> Layer:
    has_name = columns[-1] == _NAME_COLUMN
    fields = [field.strip() for field in line.split(",", len(columns) - 1 if has_name else -1)]
    if len(fields) != len(columns):
        accepted = ",".join(columns)
        raise WorkloadError(f"{where}: {shown(line)} has {len(fields)} of {len(columns)} columns; accepted: {accepted}")
    if not _INTEGER.fullmatch(fields[0]) or int(fields[0]) != index:
        raise WorkloadError(
            f"{where}: layer_index is {shown(fields[0])}; accepted: {index}, as rows count up by one from 0 or 1"
        )
    params = _params(where, fields[1])
    forward_ps, backward_ps = (
        _picoseconds(where, column, field) for column, field in zip(_COLUMNS[2:], fields[2:4], strict=True)
    )
    name = fields.pop() if has_name else f"layer{index}"
    table = _table(where, fields[len(_COLUMNS) :])
    try:
        return Layer(name, params, forward_ps, backward_ps, *table)
    except WorkloadError as error:
        raise WorkloadError(f"{where}: {error}") from None


def _table(where: str, fields: list[str]) -> tuple[int, int, int, float] | tuple[()]:
    if not any(fields):
        return ()
    for column, field in zip(_SPARSE_COLUMNS, fields, strict=True):
        number = _FLOAT if column == "skew" else _INTEGER
        if not number.fullmatch(field):
            accepted = "a number from 0 on" if column == "skew" else "a whole number from 1 on"
            raise WorkloadError(f"{where}: {column} is {shown(field)}; accepted: {accepted}, or all four columns empty")
    return int(fields[0]), int(fields[1]), int(fields[2]), float(fields[3])


def _params(where: str, field: str) -> int:
    if not _INTEGER.fullmatch(field) or not 1 <= int(field) <= _MOST_PARAMS:
        raise WorkloadError(f"{where}: numel is {shown(field)}; accepted: a whole number from 1 to {_MOST_PARAMS}")
    return int(field)


def _picoseconds(where: str, column: str, field: str) -> int:
    time_ps = round(Decimal(field) * _PS_PER_NS) if _DECIMAL.fullmatch(field) else -1
    if not 0 <= time_ps <= LONGEST_CSV_PS:
        raise WorkloadError(
            f"{where}: {column} is {shown(field)}; "
            f"accepted: a number of nanoseconds from 0 to {LONGEST_CSV_PS // _PS_PER_NS}"
        )
    return time_ps


def _nanoseconds(time_ps: int) -> str:
    whole, part = divmod(time_ps, _PS_PER_NS)
    return f"{whole}.{part:03}".rstrip("0").rstrip(".")
