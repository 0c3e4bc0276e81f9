"""Files of other tools: read within bounds, unpacked within bounds, recognised by what they hold, and read."""

from __future__ import annotations

import gzip
import io
import os
import zlib

from tensorexpress.errors import InputError, WorkloadError, unknown
from tensorexpress.files import open_input
from tensorexpress.foreign.astra_text import UNITS, is_text_workload, read_text_workload
from tensorexpress.foreign.chakra_import import read_chakra
from tensorexpress.foreign.chakra_nodes import is_trace
from tensorexpress.foreign.imported import Imported
from tensorexpress.foreign.kineto import read_kineto
from tensorexpress.workload import DTYPE_BYTES

#: Format -> what it is.
FORMATS = {
    "astra-text": "text workload of ASTRA-sim 1 or AICB",
    "kineto": "trace of PyTorch's profiler (.json, .json.gz)",
    "chakra": "Chakra execution trace (.et)",
}

#: Largest file, packed or not; some hundred iterations of a large model under a profiler.
LARGEST_FILE_BYTES = 2**28

#: Bytes among which JSON has its first bracket.
_BEGINNING = 1024

_GZIP = b"\x1f\x8b"
_ACCEPTED = f"accepted: {', '.join(f'{about} ({name})' for name, about in FORMATS.items())}"


def read_foreign(
    path: str | os.PathLike[str], format_: str | None = None, *, unit: str | None = None, dtype: str | None = None
) -> Imported:
    """Return the workload of a file that another tool wrote.

    The format is found by content where none of FORMATS is given. `unit`, of UNITS, is for texts, which have none of
    their own; `dtype` for formats that count bytes and no parameters, whose gradients are taken for fp32 otherwise.
    """
    place = os.fspath(path)
    content = _content(place)
    chosen = _recognised(place, content) if format_ is None else format_
    if chosen not in FORMATS:
        raise InputError(unknown("format", chosen, FORMATS))
    if dtype is not None and dtype not in DTYPE_BYTES:
        raise InputError(unknown("dtype", dtype, DTYPE_BYTES))
    if chosen == "astra-text":
        return read_text_workload(place, content, _unit(place, unit), dtype or "fp32")
    if unit is not None:
        raise InputError(f"--unit {unit}: {place} is a {FORMATS[chosen]}, which says it; leave it out")
    if chosen == "chakra":
        return read_chakra(place, content, dtype)
    if dtype is not None:
        raise InputError(f"--dtype {dtype}: {place} is a {FORMATS[chosen]}, which says it; leave it out")
    return read_kineto(place, content)


def _unit(place: str, unit: str | None) -> str:
    if unit is None:
        raise InputError(
            f"{place}: a text workload does not say what its times are in; give --unit {', '.join(UNITS)} (AICB: ns)"
        )
    if unit not in UNITS:
        raise InputError(unknown("unit", unit, UNITS))
    return unit


def _content(place: str) -> bytes:
    try:
        with open_input(place) as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise WorkloadError(f"cannot read {place!r}: {reason}; {_ACCEPTED}") from None
    if content.startswith(_GZIP):
        content = _unpacked(place, content)
    if len(content) > LARGEST_FILE_BYTES:
        raise WorkloadError(
            f"{place}: is larger than {LARGEST_FILE_BYTES} bytes; accepted: up to that; take fewer iterations"
        )
    return content


def _unpacked(place: str, content: bytes) -> bytes:
    """Return what gzip packed, or one byte more than is accepted of it."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            return packed.read(LARGEST_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise WorkloadError(f"{place}: cannot be unpacked ({error}); accepted: a whole file that gzip made") from None


def _recognised(place: str, content: bytes) -> str:
    if content[:_BEGINNING].lstrip()[:1] in (b"{", b"["):
        return "kineto"
    if is_text_workload(content):
        return "astra-text"
    if is_trace(content):
        return "chakra"
    raise WorkloadError(f"{place}: is of no format that is known here; {_ACCEPTED}")
