"""Trace files: a trace and the plan that it is a run of, in one file, both ways and exactly.

The file is a zip archive that numpy opens too (`numpy.load`):

    trace.json          what it is, and all that is not an array
    plan.json           the plan, as a plan file holds it
    links.npy           an array of LINK
    jobs/0/NAME.npy     the arrays of the first job, by the names of `JobTrace`; jobs/1/... of the second
"""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tensorexpress.errors import InputError, PlanError, unknown
from tensorexpress.files import LARGEST_JSON_BYTES, parse_json, write_atomic
from tensorexpress.graph import KINDS
from tensorexpress.plan import Plan
from tensorexpress.plan_file import plan_from_json, plan_text
from tensorexpress.text import json_text
from tensorexpress.trace import LINK, SOURCES, TRANSFER, JobTrace, Trace

#: What says that a file is a trace, and of which form.
FORMAT = "tensorexpress trace"
VERSION = 2

#: The ending that verbs give to trace files.
SUFFIX = ".trace"

_MAKE_ONE = "make one with `tensorexpress run` or `tensorexpress predict --save`"

#: Fields of `JobTrace` that are arrays by (iteration, worker, layer) -> how many passes more than iterations they hold.
_PASSES = {"forward_ps": 1, "backward_ps": 0, "forward_start_ps": 1, "backward_start_ps": 0, "updated_ps": 0}

#: Fields of `Trace` that are whole numbers.
_COUNTS = (
    *("warmup", "end_ps", "transmissions", "retransmissions", "timeouts"),
    *("server_sums", "whole_sums", "server_packets"),
)

#: How numpy's files of version 1.0 start; the length of what the array says of itself follows in two bytes.
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_NPY_START = len(_NPY_MAGIC) + 2

#: Times and counts of runs are smaller, and differences of two of them stay inside 64 bits.
_LARGEST = 2**62

#: Archives carry the time of every member; a fixed one lets the same trace give the same bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def trace_path(directory: str | PathLike[str], policy: str) -> Path:
    """Return where the trace of a policy goes in a directory; different policies never share a file.

    >>> trace_path("runs", "tensorexpress:slice=50 KB").name, trace_path("runs", "tensorexpress+sum").name
    ('tensorexpress:slice=50%20KB.trace', 'tensorexpress+sum.trace')
    """
    return Path(directory) / (quote(policy, safe=":=,+") + SUFFIX)


def write_trace(path: str | PathLike[str], trace: Trace, plan: Plan) -> None:
    """Write a trace and the plan it is a run of to one file, whole or not at all; the same trace gives the same bytes.

    A trace that cannot be of this plan is refused, so that no file holds one.
    """
    _check_belonging(trace, plan)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        _add(archive, "trace.json", json_text(_header(trace)).encode())
        _add(archive, "plan.json", plan_text(plan).encode())
        for name, array in _arrays(trace).items():
            column = io.BytesIO()
            npy.write_array(column, np.ascontiguousarray(array, dtype=_stored_type(name)), allow_pickle=False)
            _add(archive, name, column.getvalue())
    write_atomic(path, content.getvalue())


def read_trace(path: str | PathLike[str]) -> tuple[Trace, Plan]:
    """Return the trace of a file, and the plan it is a run of."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise PlanError(f"{path}: is a device or a pipe, which has no end to look for; {_MAKE_ONE}")
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive)
    except InputError as error:
        raise PlanError(f"{path}: {error}") from None
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror or error}); {_MAKE_ONE}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise PlanError(f"{path}: is no trace, or only a part of one ({error}); {_MAKE_ONE}") from None


def _header(trace: Trace) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "source": trace.source,
        "policy": trace.policy,
        **{name: getattr(trace, name) for name in _COUNTS},
        "hosts": list(trace.hosts),
        "link_names": list(trace.link_names),
        "jobs": [
            {
                "name": job.name,
                "layers": list(job.layers),
                "workers": list(job.workers),
                "transfers": len(job.transfers),
            }
            for job in trace.jobs
        ],
    }


def _arrays(trace: Trace) -> dict[str, NDArray[Any]]:
    """Return all arrays of a trace by the names that they have in a file."""
    jobs = {
        f"jobs/{number}/{name}.npy": getattr(job, name)
        for number, job in enumerate(trace.jobs)
        for name in (*_PASSES, "transfers")
    }
    return {"links.npy": trace.links, **jobs}


def _stored_type(name: str) -> np.dtype[Any]:
    """Return the type of an array by its name in a file; bytes are in the same order on every machine."""
    field = name.rpartition("/")[2].removesuffix(".npy")
    return {"links": LINK, "transfers": TRANSFER}.get(field, np.dtype(np.int64)).newbyteorder("<")


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    member = zipfile.ZipInfo(name, _NO_TIME)
    member.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(member, content)


def _read(archive: zipfile.ZipFile) -> tuple[Trace, Plan]:
    header = _json(archive, "trace.json")
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise PlanError(f"trace.json is {short_repr(header)}; accepted: format {FORMAT!r}; {_MAKE_ONE}")
    if type(header.get("version")) is not int or header["version"] != VERSION:
        raise PlanError(f"version is {short_repr(header.get('version'))}; accepted: {VERSION}; make the trace again")
    plan = plan_from_json(_json(archive, "plan.json"))
    jobs = header.get("jobs")
    if not isinstance(jobs, list) or len(jobs) != len(plan.jobs):
        raise PlanError(f"jobs is {short_repr(jobs)}; accepted: one for each of the plan's {len(plan.jobs)}")
    trace = Trace(
        source=_text(header, "source"),
        policy=_text(header, "policy"),
        hosts=_texts(header, "hosts"),
        link_names=_texts(header, "link_names"),
        jobs=tuple(_read_job(archive, number, job, plan) for number, job in enumerate(jobs)),
        links=_array(archive, "links.npy", (2 * len(plan.scenario.cluster.links),)),
        **{name: _count(header, name) for name in _COUNTS},
    )
    _check_keys(header, _header(trace), "trace.json")
    _check_belonging(trace, plan)
    _check_values(trace, plan)
    return trace, plan


def _read_job(archive: zipfile.ZipFile, number: int, header: Any, plan: Plan) -> JobTrace:
    if not isinstance(header, dict):
        raise PlanError(f"jobs.{number} is {short_repr(header)}; accepted: an object; make the trace again")
    transfers, most = _count(header, "transfers"), _most_transfers(plan, number)
    if transfers > most:
        raise PlanError(f"jobs.{number}.transfers is {transfers}; accepted: the plan's {most} at most")
    _check_keys(header, ("name", "layers", "workers", "transfers"), f"jobs.{number}")
    arrays = {
        name: _array(archive, f"jobs/{number}/{name}.npy", shape)
        for name, shape in {**_shapes(plan, number), "transfers": (transfers,)}.items()
    }
    return JobTrace(_text(header, "name"), _texts(header, "layers"), _texts(header, "workers"), **arrays)


def _shapes(plan: Plan, number: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the arrays of a job have in every run of a plan."""
    job, iterations = plan.scenario.jobs[number], plan.scenario.rounds
    return {name: (iterations + more, len(job.workers), len(job.workload.layers)) for name, more in _PASSES.items()}


def _most_transfers(plan: Plan, number: int) -> int:
    """Return how many messages a job exchanges in a run, those that stay on their host included."""
    planned = plan.jobs[number]
    messages = planned.architecture.messages_per_slice(len(planned.job.hosts))
    return plan.scenario.rounds * len(planned.slices) * messages


def _member(archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    """Return a member; what says that it is longer than it can be is not unpacked."""
    try:
        if archive.getinfo(name).file_size > most_bytes:
            raise PlanError(f"{name} in it is longer than {most_bytes} bytes; {_MAKE_ONE}")
        return archive.read(name)
    except KeyError:
        raise PlanError(f"{name} is missing in it; {_MAKE_ONE}") from None


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    try:
        return parse_json(_member(archive, name, LARGEST_JSON_BYTES))
    except ValueError as error:
        raise PlanError(f"{name} in it is not JSON ({error}); {_MAKE_ONE}") from None


def _array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of the file. Shape and type are known, so what it says of itself is skipped, not trusted."""
    kind = _stored_type(name)
    content = _member(archive, name, _NPY_START + 2**16 + kind.itemsize * math.prod(shape))
    start = _NPY_START + int.from_bytes(content[len(_NPY_MAGIC) : _NPY_START], "little")
    values = content[start:]
    if not content.startswith(_NPY_MAGIC) or len(values) != kind.itemsize * math.prod(shape):
        raise PlanError(f"{name} in it is no array of shape {shape} and version {VERSION}; make the trace again")
    return np.frombuffer(values, kind).astype(kind.newbyteorder("=")).reshape(shape)


def _check_keys(header: Mapping[str, Any], accepted: Collection[str], where: str) -> None:
    for name in header:
        if name not in accepted:
            raise PlanError(f"{where}: {unknown('key', name, accepted)}")


def _check_values(trace: Trace, plan: Plan) -> None:
    """Refuse numbers in arrays that cannot be of a run of the plan: indices of nothing, and times beyond all clocks."""
    cluster, rounds = plan.scenario.cluster, plan.scenario.rounds
    if not trace.end_ps:
        raise PlanError("end_ps is 0; accepted: 1 or more; make the trace again")
    for number, job in enumerate(trace.jobs):
        most = {
            "iteration": rounds - 1,
            "kind": len(KINDS) - 1,
            "tensor": len(job.layers) - 1,
            "src": len(cluster.hosts) - 1,
            "dst": len(cluster.hosts) - 1,
            "queue": cluster.queues - 1,
        }
        for name in TRANSFER.names or ():
            _check_range(f"jobs.{number}.transfers.{name}", job.transfers[name], *_range(name, most.get(name)))
        for name in _PASSES:
            _check_range(f"jobs.{number}.{name}", getattr(job, name), *_range(name))
    for name in LINK.names or ():
        _check_range(f"links.{name}", trace.links[name], 0, _LARGEST)


def _range(name: str, most: int | None = None) -> tuple[int, int]:
    """Return what the values of a column lie between; what happened before the start, or never, has a time below 0."""
    return -_LARGEST if name.endswith("_ps") else 0, _LARGEST if most is None else most


def _check_range(what: str, values: NDArray[Any], least: int, most: int) -> None:
    if values.size and not least <= values.min() <= values.max() <= most:
        wrong = values.min() if values.min() < least else values.max()
        raise PlanError(f"{what} holds {wrong}; accepted: {least} to {most}; make the trace again")


def _text(header: Mapping[str, Any], name: str) -> str:
    return str(_typed(header, name, isinstance(header.get(name), str), "a text"))


def _texts(header: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = header.get(name)
    right = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return tuple(_typed(header, name, right, "a list of texts"))


def _count(header: Mapping[str, Any], name: str) -> int:
    value = header.get(name)
    right = type(value) is int and 0 <= value <= _LARGEST
    return int(_typed(header, name, right, f"a whole number from 0 to {_LARGEST}"))


def _typed(header: Mapping[str, Any], name: str, right: bool, accepted: str) -> Any:
    if not right:
        raise PlanError(f"{name} is {short_repr(header.get(name))}; accepted: {accepted}; make the trace again")
    return header[name]


def _check_belonging(trace: Trace, plan: Plan) -> None:
    """Refuse a trace that is no run of the plan, by the first thing that tells."""
    scenario = plan.scenario
    if trace.source not in SOURCES:
        raise PlanError(unknown("source of a trace", trace.source, SOURCES))
    pairs: dict[str, tuple[object, object]] = {
        "policy": (trace.policy, plan.policy.name),
        "warmup": (trace.warmup, scenario.warmup),
        "hosts": (trace.hosts, scenario.cluster.hosts),
        "links": (len(trace.links), 2 * len(scenario.cluster.links)),
        "link_names": (trace.link_names, scenario.cluster.link_names),
        "jobs": (tuple(job.name for job in trace.jobs), tuple(job.name for job in scenario.jobs)),
    }
    for number, (traced, job) in enumerate(zip(trace.jobs, scenario.jobs, strict=False)):
        layers = tuple(layer.name for layer in job.workload.layers)
        pairs[f"jobs.{number}.layers"] = (traced.layers, layers)
        pairs[f"jobs.{number}.workers"] = (traced.workers, tuple(scenario.cluster.hosts[host] for host in job.workers))
        for name, shape in _shapes(plan, number).items():
            pairs[f"shape of jobs.{number}.{name}"] = (getattr(traced, name).shape, shape)
    for what, (found, planned) in pairs.items():
        if found != planned:
            raise PlanError(
                f"{what} of the trace is {short_repr(found)} and of its plan {short_repr(planned)}; "
                "accepted: a trace with the plan it is a run of"
            )
