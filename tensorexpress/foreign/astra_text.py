"""Text workloads of ASTRA-sim 1, which AICB writes for SimAI as well: a row of twelve columns for each layer.

    DATA
    2
    conv1  -1  13003 NONE 0  12864 NONE 0  32291 ALLREDUCE 37632  3229
    fc     -1   3456 NONE 0   3648 NONE 0   7488 ALLREDUCE 65536   749

The first line is the kind of parallelism and, for some kinds, its degrees; the second the number of rows. A row is a
name, a number that nobody uses, time, collective and bytes of the forward pass, of the gradient of the input and of
the gradient of the weights, and the time of an update. The format names no unit of time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from tensorexpress.errors import WorkloadError, shown
from tensorexpress.foreign.imported import MOST_PARTS, Imported, Part, imported, not_data_parallel, params_of_bytes
from tensorexpress.units import counted, format_ms

#: What a time may be in -> picoseconds.
UNITS = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9}

_KIND = re.compile(r"[A-Z][A-Z_]{0,63}")
_NUMBER = re.compile(r"[0-9]{1,15}")

#: What the three times of a row are.
_PASSES = ("forward pass", "gradient of its input", "gradient of its weights")

_COLUMNS = 12

#: Kinds with which ASTRA-sim computes the gradient of a layer's weights before that of its input.
_WEIGHTS_FIRST = ("DATA", "HYBRID_DLRM", "HYBRID_DLRM_ENHANCED")

#: What of the first line says over how many workers a model is spread.
_DEGREES = {
    "model_parallel_NPU_group:": "workers share every layer",
    "ep:": "workers share the experts",
    "pp:": "workers share the layers in a pipeline",
}


@dataclass(frozen=True)
class _Row:
    """One layer: time, collective and bytes of its three passes, and the time of its update."""

    where: str
    name: str
    times: tuple[int, int, int]
    collectives: tuple[str, str, str]
    sizes: tuple[int, int, int]
    update: int


def is_text_workload(content: bytes) -> bool:
    """Whether this begins as a text workload does: a kind of parallelism, and a number below it."""
    first, _, rest = content[:4096].partition(b"\n")
    try:
        words, number = first.decode("ascii").split(), rest.partition(b"\n")[0].decode("ascii").split()
    except UnicodeDecodeError:
        return False
    return bool(words) and _KIND.fullmatch(words[0]) is not None and len(number) == 1 and number[0].isdecimal()


def read_text_workload(place: str, content: bytes, unit: str, dtype: str) -> Imported:
    """Return the workload of a text; times are in `unit`, a key of UNITS, and gradients are of type `dtype`."""
    if content.count(b"\n") > MOST_PARTS + 2:
        raise WorkloadError(f"{place}: has more than {MOST_PARTS} rows; accepted: a row for every layer")
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{place}: byte {error.start} is not UTF-8; accepted: a text in UTF-8") from None
    header, rows = _parsed(place, lines)
    if header[0] == "MICRO":
        raise WorkloadError(
            f"{place}:1: MICRO is a benchmark of collectives without layers; accepted: a model's training"
        )
    for row in rows:
        _check_row(row)
    _check_header(f"{place}:1", header)
    scale = UNITS[unit]
    parts = [
        Part(
            row.name,
            params_of_bytes(row.where, row.sizes[2], dtype) if row.collectives[2] != "NONE" else 0,
            row.times[0] * scale,
            backward * scale,
        )
        for row, backward in zip(rows, _until_gradients(header[0], rows), strict=True)
    ]
    update_ps = sum(row.update for row in rows) * scale
    notes = [f"updates of parameters, {format_ms(update_ps)}: no part of a layer's forward or backward pass"]
    compute_ps = sum(part.forward_ps + part.backward_ps for part in parts)
    return imported(
        place,
        f"text workload of ASTRA-sim or AICB ({header[0]}), times in {unit}",
        parts,
        dtype=dtype,
        iterations=1,
        iteration_ps=compute_ps + update_ps,
        notes=notes if update_ps else [],
    )


def _until_gradients(kind: str, rows: list[_Row]) -> list[int]:
    """Return for every layer how long a worker computes between the gradient of the layer behind it and its own.

    With some kinds ASTRA-sim computes the gradient of the weights first and sums it while it computes that of the
    input, which the layer in front needs; the first layer's input needs none.
    """
    inputs = [row.times[1] for row in rows]
    if kind in _WEIGHTS_FIRST:
        inputs = [*inputs[1:], 0]
    return [of_input + row.times[2] for of_input, row in zip(inputs, rows, strict=True)]


def _parsed(place: str, lines: list[str]) -> tuple[list[str], list[_Row]]:
    header = lines[0].split() if lines else []
    if not header or not _KIND.fullmatch(header[0]):
        found = shown(lines[0]) if lines else "nothing"
        raise WorkloadError(f"{place}:1: found {found}; accepted: a kind of parallelism, such as DATA")
    count = lines[1].strip() if len(lines) > 1 else ""
    if not _NUMBER.fullmatch(count) or not 1 <= int(count) <= MOST_PARTS:
        raise WorkloadError(f"{place}:2: found {shown(count)}; accepted: the number of layers, 1 to {MOST_PARTS}")
    rows = [(f"{place}:{number}", line) for number, line in enumerate(lines[2:], 3) if line.strip()]
    if len(rows) != int(count):
        raise WorkloadError(
            f"{place}: has {counted(len(rows), 'row')}; accepted: {count}, as line 2 says; is the file whole?"
        )
    return header, [_row(where, line) for where, line in rows]


def _row(where: str, line: str) -> _Row:
    fields = line.split()
    if len(fields) == _COLUMNS + 1 and _KIND.fullmatch(fields[-1]):
        kind = fields.pop()
        if kind != "DATA":
            raise not_data_parallel(where, f"layer {shown(fields[0])} is of kind {kind}")
    if len(fields) != _COLUMNS:
        raise WorkloadError(f"{where}: {shown(line)} has {counted(len(fields), 'column')}; accepted: {_COLUMNS}")
    for field in (fields[2], fields[4], fields[5], fields[7], fields[8], fields[10], fields[11]):
        if not _NUMBER.fullmatch(field):
            raise WorkloadError(
                f"{where}: layer {shown(fields[0])} has {shown(field)} for a time or size; "
                "accepted: whole numbers from 0 of at most 15 digits"
            )
    for field in (fields[3], fields[6], fields[9]):
        if not _KIND.fullmatch(field):
            raise WorkloadError(
                f"{where}: layer {shown(fields[0])} has {shown(field)} for a collective; accepted: such as ALLREDUCE"
            )
    return _Row(
        where,
        fields[0],
        (int(fields[2]), int(fields[5]), int(fields[8])),
        (fields[3], fields[6], fields[9]),
        (int(fields[4]), int(fields[7]), int(fields[10])),
        int(fields[11]),
    )


def _check_row(row: _Row) -> None:
    """Refuse a layer that asks for more than the sum of its gradients."""
    for pass_, collective, size in zip(_PASSES, row.collectives, row.sizes, strict=True):
        if collective == "NONE" or (pass_ == _PASSES[2] and collective == "ALLREDUCE"):
            continue
        raise not_data_parallel(row.where, f"layer {row.name} has {collective} of {size} bytes in the {pass_}")


def _check_header(where: str, header: list[str]) -> None:
    """Refuse a model that is spread over workers, or computed twice, whatever its rows say."""
    for word, value in pairwise(header):
        if word in _DEGREES and value != "1":
            raise not_data_parallel(where, f"{word} {shown(value)[1:-1]}: {_DEGREES[word]}")
        if word == "checkpoints:" and value != "0":
            raise WorkloadError(
                f"{where}: {word} {shown(value)[1:-1]}: layers are computed a second time in the backward pass; "
                "accepted: 0"
            )
