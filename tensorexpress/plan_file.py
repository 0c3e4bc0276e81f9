"""Plan files: a plan as JSON, both ways. A file holds all of a plan; deploying and running need nothing else."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from os import PathLike
from reprlib import repr as short_repr
from typing import Any, Union, get_args, get_origin, get_type_hints

from tensorexpress.errors import InputError, PlanError, unknown
from tensorexpress.files import read_json
from tensorexpress.plan import JobPlan, Plan, SlicePlan
from tensorexpress.policy import Policy
from tensorexpress.scenario import Scenario
from tensorexpress.text import json_text
from tensorexpress.wire.dscp import MOST_QUEUES, check_dscps, first_dscps

#: What says that a JSON file is a plan, and of which form.
FORMAT = "tensorexpress plan"
VERSION = 1

#: Column of a tensor's row in the file -> the field of `JobPlan` that holds it for all tensors.
_PER_TENSOR = {"rank": "ranks", "queue": "queues", "slack_ps": "slack_ps", "transfer_ps": "transfer_ps"}


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object: policy, jobs with a row per tensor and slices as columns, scenario."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "policy": _encode(plan.policy),
        "dscps": _encode(plan.dscps),
        "jobs": [_job_to_json(job, number) for number, job in enumerate(plan.jobs)],
        "scenario": _encode(plan.scenario),
    }


def _job_to_json(plan: JobPlan, number: int) -> dict[str, Any]:
    columns = zip(*(getattr(plan, field) for field in _PER_TENSOR.values()), strict=True)
    return {
        "name": plan.job.name,
        "number": number,
        "regret_ps": plan.regret_ps,
        "tensors": [
            {"name": layer.name, "bytes": size, **dict(zip(_PER_TENSOR, row, strict=True))}
            for layer, size, row in zip(plan.job.workload.layers, plan.job.workload.tensor_bytes, columns, strict=True)
        ],
        "slices": {field.name: [getattr(piece, field.name) for piece in plan.slices] for field in fields(SlicePlan)},
    }


def plan_text(plan: Plan) -> str:
    """Return the text of a plan file: a line for every tensor, layer and link, so that two plans can be compared."""
    return json_text(plan_to_json(plan))


def read_plan(path: str | PathLike[str]) -> Plan:
    """Return the plan of a file that `tensorexpress plan` wrote."""
    document = read_json(path, "make one with `tensorexpress plan`", PlanError)
    try:
        return plan_from_json(document)
    except InputError as error:
        raise PlanError(f"{path}: {error}") from None


def plan_from_json(document: Any) -> Plan:
    """Return the plan of a JSON object; PlanError names the part that makes no plan."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else document
        raise PlanError(f"format is {short_repr(found)}; accepted: {FORMAT!r}, as `tensorexpress plan` writes it")
    if document.get("version") != VERSION:
        raise PlanError(f"version is {short_repr(document.get('version'))}; accepted: {VERSION}; make the plan again")
    scenario = _decode(Scenario, document.get("scenario"), "scenario")
    jobs = document.get("jobs")
    if not isinstance(jobs, list) or len(jobs) != len(scenario.jobs):
        raise PlanError(f"jobs is {short_repr(jobs)}; accepted: one for each of the scenario's {len(scenario.jobs)}")
    return Plan(
        scenario,
        _decode(Policy, document.get("policy"), "policy"),
        tuple(_job_from_json(scenario, number, job) for number, job in enumerate(jobs)),
        _dscps_from_json(document, scenario.cluster.queues),
    )


def _dscps_from_json(document: Mapping[str, Any], queues: int) -> tuple[int, ...]:
    """Return the DSCPs of a plan. Files that say nothing about them were written when there was no choice."""
    if "dscps" not in document:
        return first_dscps(queues)
    dscps: tuple[int, ...] = _decode(tuple[int, ...], document["dscps"], "dscps")
    return check_dscps(dscps, queues) if dscps or queues <= MOST_QUEUES else ()


def _job_from_json(scenario: Scenario, number: int, document: Any) -> JobPlan:
    job, where = scenario.jobs[number], f"jobs.{number}"
    _check_hosts(job.workers + job.servers, scenario, where)
    tensors = _member(document, "tensors", where)
    if not isinstance(tensors, list) or len(tensors) != len(job.workload.layers):
        raise PlanError(f"{where}.tensors does not hold the {len(job.workload.layers)} tensors of {job.workload.name}")
    columns = {
        field: tuple(
            _decode(int, _member(row, name, f"{where}.tensors.{i}"), f"{where}.tensors.{i}.{name}")
            for i, row in enumerate(tensors)
        )
        for name, field in _PER_TENSOR.items()
    }
    for tensor, queue in enumerate(columns["queues"]):
        if not 0 <= queue < scenario.cluster.queues:
            raise PlanError(f"{where}.tensors.{tensor}.queue is {queue}; accepted: 0 to {scenario.cluster.queues - 1}")
    slices = _slices_from_json(_member(document, "slices", where), f"{where}.slices")
    for piece in slices:
        if not 0 <= piece.tensor < len(tensors):
            raise PlanError(f"{where}.slices.tensor holds {piece.tensor}; accepted: 0 to {len(tensors) - 1}")
    regret_ps = _decode(int, _member(document, "regret_ps", where), f"{where}.regret_ps")
    return JobPlan(job, slices=slices, regret_ps=regret_ps, **columns)


def _check_hosts(hosts: tuple[int, ...], scenario: Scenario, where: str) -> None:
    for host in hosts:
        if not 0 <= host < len(scenario.cluster.hosts):
            raise PlanError(f"{where} is on host {host}; accepted: 0 to {len(scenario.cluster.hosts) - 1}")


def _slices_from_json(document: Any, where: str) -> tuple[SlicePlan, ...]:
    columns = [
        _decode(tuple[int, ...], _member(document, f.name, where), f"{where}.{f.name}") for f in fields(SlicePlan)
    ]
    if len({len(column) for column in columns}) != 1:
        raise PlanError(f"{where} has columns of different lengths; accepted: a value of each for every slice")
    return tuple(SlicePlan(*row) for row in zip(*columns, strict=True))


def _member(document: Any, name: str, where: str) -> Any:
    if not isinstance(document, dict) or name not in document:
        raise PlanError(f"{where}.{name} is missing; make the plan again with `tensorexpress plan`")
    return document[name]


def _encode(value: Any) -> Any:
    """Return a value of dataclasses, tuples and scalars as JSON; defaults are written too, so that they may change."""
    if is_dataclass(value):
        return {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
    return [_encode(item) for item in value] if isinstance(value, tuple) else value


def _decode(kind: Any, value: Any, where: str) -> Any:
    """Return what `_encode` wrote as a value of this type."""
    if is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, value, where)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, list):
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) == len(value):
            return tuple(
                _decode(each, item, f"{where}.{i}") for i, (each, item) in enumerate(zip(kinds, value, strict=True))
            )
    elif origin in (Union, types.UnionType):
        for each in inner:
            if each is type(None) if value is None else isinstance(value, each):
                return value
    elif kind is float and type(value) in (int, float):
        return float(value)
    elif type(value) is kind:
        return value
    raise PlanError(f"{where} is {short_repr(value)}; accepted: {_described(kind)}")


def _decode_dataclass(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise PlanError(f"{where} is {short_repr(value)}; accepted: an object")
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    for name in value:
        if name not in names:
            raise PlanError(f"{where}: {unknown('key', name, names)}")
    for field in fields(kind):
        if field.name not in value and field.default is MISSING:
            raise PlanError(f"{where}.{field.name} is missing; make the plan again with `tensorexpress plan`")
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in value.items()})


def _described(kind: Any) -> str:
    if kind is int:
        return "a whole number"
    return (
        "a list" if get_origin(kind) is tuple else "a number" if kind is float else getattr(kind, "__name__", str(kind))
    )
