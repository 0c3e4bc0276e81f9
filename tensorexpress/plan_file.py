"""Plan files: a plan as JSON, both ways. A file holds all of a plan; deploying and running need nothing else."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import takewhile
from os import PathLike
from reprlib import repr as short_repr
from typing import Any, Union, get_args, get_origin, get_type_hints

import tensorexpress
from tensorexpress.cluster import Cluster
from tensorexpress.errors import InputError, PlanError, shown, unknown
from tensorexpress.files import read_json
from tensorexpress.paths import Path, Paths, check_paths
from tensorexpress.plan import JobPlan, Plan, SlicePlan, check_duration, rows_in, talking, top_of, unlimited_sums
from tensorexpress.policy import Policy
from tensorexpress.scenario import Job, Scenario, problems, sum_problems
from tensorexpress.slots import check_pools, check_tree, ends_of
from tensorexpress.sums import VALUES, SumPlan, packets_of
from tensorexpress.text import json_text
from tensorexpress.wire.dscp import MOST_QUEUES, check_dscps

#: What says that a JSON file is a plan, and of which form.
FORMAT = "tensorexpress plan"
VERSION = 6

#: Times of a plan are shorter, and sums of them stay inside 64 bits.
_LONGEST_PS = 2**62

#: Whole numbers up to this one are floating-point numbers, too.
_LARGEST_EXACT = 2**53

#: What the values of a column are.
_PLAIN = (bool, int, str)

#: Column of a tensor's row in the file -> the field of `JobPlan` that holds it for all tensors.
_PER_TENSOR = {"rank": "ranks", "queue": "queues", "slack_ps": "slack_ps", "transfer_ps": "transfer_ps"}


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object: policy, jobs with a row per tensor and slices as columns, scenario."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_by": f"tensorexpress {tensorexpress.__version__}",
        "policy": _encode(plan.policy),
        "dscps": _encode(plan.dscps),
        "paths": [[path.src, path.dst, *path.links] for path in plan.paths],
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
        "sums": _encode(plan.sums),
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
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise PlanError(f"version is {short_repr(document.get('version'))}; accepted: {VERSION}; make the plan again")
    _check_keys(document, ("format", "version", "made_by", "policy", "dscps", "paths", "jobs", "scenario"), "the plan")
    _decode(str, document.get("made_by", ""), "made_by")
    scenario = _decode(Scenario, document.get("scenario"), "scenario")
    for path, problem in problems(scenario):
        raise PlanError(f"scenario: {path}: {problem}")
    scenario.check_in_step()
    check_duration(scenario)
    jobs = document.get("jobs")
    if not isinstance(jobs, list) or len(jobs) != len(scenario.jobs):
        raise PlanError(f"jobs is {short_repr(jobs)}; accepted: one for each of the scenario's {len(scenario.jobs)}")
    policy = _decode(Policy, document.get("policy"), "policy")
    planned = tuple(_job_from_json(scenario, number, job, policy) for number, job in enumerate(jobs))
    _check_sums(planned, scenario, policy)
    return Plan(
        scenario,
        policy,
        planned,
        _paths_from_json(_member(document, "paths", "the plan"), scenario),
        _dscps_from_json(document, scenario.cluster.queues),
    )


def _paths_from_json(document: Any, scenario: Scenario) -> Paths:
    """Return the paths of a plan: one each way for every two hosts that talk, and no other."""
    cluster, lists = scenario.cluster, _decode(tuple[tuple[int, ...], ...], document, "paths")
    for number, row in enumerate(lists):
        if len(row) < 3:
            raise PlanError(f"paths.{number} is {short_repr(list(row))}; accepted: two hosts, and links between them")
    rows = [Path(row[0], row[1], row[2:]) for row in lists]
    check_paths(cluster, rows)
    found = {(path.src, path.dst): number for number, path in enumerate(rows)}
    for number, path in enumerate(rows):
        if found[path.src, path.dst] != number:
            raise PlanError(f"paths.{number} is another from {_hosts(cluster, path.src, path.dst)}; accepted: one")
    both_ways = set()
    for src, dst in talking(scenario):
        for pair in ((src, dst), (dst, src)):
            if pair not in found:
                raise PlanError(f"paths has none from {_hosts(cluster, *pair)}, who talk; accepted: one for each way")
            both_ways.add(pair)
    for pair in found.keys() - both_ways:
        raise PlanError(f"paths.{found[pair]} is from {_hosts(cluster, *pair)}, who do not talk; leave it out")
    return Paths(tuple(sorted(rows, key=lambda path: (path.src, path.dst))))


def _hosts(cluster: Cluster, src: int, dst: int) -> str:
    return f"{cluster.hosts[src]} to {cluster.hosts[dst]}"


def _dscps_from_json(document: Mapping[str, Any], queues: int) -> tuple[int, ...]:
    """Return the DSCPs of a plan; where there are more queues than they tell apart, none."""
    dscps: tuple[int, ...] = _decode(tuple[int, ...], _member(document, "dscps", "the plan"), "dscps")
    return check_dscps(dscps, queues) if dscps or queues <= MOST_QUEUES else ()


def _check_sums(jobs: Collection[JobPlan], scenario: Scenario, policy: Policy) -> None:
    """Refuse slots in switches that are not there, or another's."""
    if policy.in_switches:
        places = [(number, tree) for number, job in enumerate(jobs) for tree in range(len(job.sums))]
        wanted = [tree for job in jobs for tree in unlimited_sums(job, scenario, policy)]
        check_pools([tree for job in jobs for tree in job.sums], wanted, scenario.cluster, places)


def _sums_from_json(
    document: Any, where: str, job: Job, scenario: Scenario, policy: Policy, summed: tuple[SlicePlan, ...]
) -> tuple[SumPlan, ...]:
    """Return where switches sum slices of a job: in trees of them where the policy says so, and nowhere else."""
    if not policy.in_switches:
        _check_copies(document, {"sums": []}, where)
        return ()
    for path, problem in sum_problems(scenario, policy):
        raise PlanError(f"policy.sums is {policy.sums!r}, and scenario: {path}: {problem}")
    sums: tuple[SumPlan, ...] = _decode(tuple[SumPlan, ...], _member(document, "sums", where), f"{where}.sums")
    # How many there are, where they end and how their slots are found follows from the scenario.
    packets = packets_of(job.workload, rows_in(summed, job.workload))
    expected = [(end.server, end.cells) for end in ends_of(job, scenario.cluster, policy.sums, packets)]
    if policy.placement != "none":
        # A placement may have planned nothing for some servers, and all that have something are its own.
        chosen = [tree.server for tree in sums if tree.server in job.servers]
        expected = [(server, expected[0][1]) for server in sorted(set(chosen))]
    if [(tree.server, tree.cells) for tree in sums] != expected:
        raise PlanError(
            f"{where}.sums has (server, cells) {shown([(tree.server, tree.cells) for tree in sums])}; accepted for "
            f"sum={policy.sums}: {shown(expected)}"
        )
    for number, tree in enumerate(sums):
        try:
            check_tree(tree, job, scenario.cluster)
        except PlanError as error:
            raise PlanError(f"{where}.sums.{number}.{error}") from None
    return sums


def _job_from_json(scenario: Scenario, number: int, document: Any, policy: Policy) -> JobPlan:
    job, where = scenario.jobs[number], f"jobs.{number}"
    tensors = _member(document, "tensors", where)
    if not isinstance(tensors, list) or len(tensors) != len(job.workload.layers):
        raise PlanError(f"{where}.tensors does not hold the {len(job.workload.layers)} tensors of {job.workload.name}")
    _check_keys(document, ("name", "number", "regret_ps", "tensors", "slices", "sums"), where)
    _check_copies(document, {"name": job.name, "number": number}, where)
    for i, (row, layer, size) in enumerate(zip(tensors, job.workload.layers, job.workload.tensor_bytes, strict=True)):
        _check_copies(row, {"name": layer.name, "bytes": size}, f"{where}.tensors.{i}")
        _check_keys(row, ("name", "bytes", *_PER_TENSOR), f"{where}.tensors.{i}")
    most = {"rank": len(tensors) - 1, "queue": scenario.cluster.queues - 1}
    columns = {
        field: tuple(_whole(row, name, f"{where}.tensors.{i}", most.get(name)) for i, row in enumerate(tensors))
        for name, field in _PER_TENSOR.items()
    }
    slices = _slices_from_json(_member(document, "slices", where), f"{where}.slices")
    summed = tuple(takewhile(lambda piece: piece.summed, slices))
    if any(piece.summed for piece in slices[len(summed) :]):
        raise PlanError(f"{where}.slices.summed holds true behind false; accepted: first those that switches sum")
    sums = _sums_from_json(document, where, job, scenario, policy, summed)
    _check_slices(slices, summed, job, [top_of(tree, scenario) for tree in sums], f"{where}.slices")
    if policy.placement == "none":
        _check_whole([piece for piece in summed if not job.workload.layers[piece.tensor].table], f"{where}.slices")
    _check_parts(summed, job, f"{where}.slices")
    return JobPlan(job, slices=slices, regret_ps=_whole(document, "regret_ps", where), sums=sums, **columns)


def _slices_from_json(document: Any, where: str) -> tuple[SlicePlan, ...]:
    columns = [
        _decode(tuple[bool, ...] if f.name == "summed" else tuple[int, ...], column, f"{where}.{f.name}")
        for f, column in ((f, _member(document, f.name, where)) for f in fields(SlicePlan))
    ]
    _check_keys(document, tuple(f.name for f in fields(SlicePlan)), where)
    if len({len(column) for column in columns}) != 1:
        raise PlanError(f"{where} has columns of different lengths; accepted: a value of each for every slice")
    return tuple(SlicePlan(*row) for row in zip(*columns, strict=True))


def _check_whole(slices: Sequence[SlicePlan], where: str) -> None:
    """Refuse slices of tensors whose packets switches sum where servers get whole ones."""
    tensors = [piece.tensor for piece in slices]
    if tensors != sorted(set(tensors)):
        raise PlanError(f"{where}.tensor holds parts of tensors; accepted where switches sum: each whole, in order")


def _check_parts(slices: tuple[SlicePlan, ...], job: Job, where: str) -> None:
    """Refuse parts of tensors whose packets switches sum that are not of whole packets, or two for one server."""
    places = [(piece.tensor, piece.server) for piece in slices]
    if len(set(places)) < len(places) or [tensor for tensor, _ in places] != sorted(tensor for tensor, _ in places):
        raise PlanError(f"{where}.server holds a server twice for a tensor; accepted: each once, by tensor")
    packet_bytes = VALUES * job.workload.bytes_per_param
    for number, piece in enumerate(slices[:-1]):
        if slices[number + 1].tensor == piece.tensor and piece.bytes % packet_bytes:
            raise PlanError(f"{where}.bytes holds {piece.bytes}; accepted: packets of {packet_bytes} bytes")


def _check_slices(
    slices: tuple[SlicePlan, ...], summed: tuple[SlicePlan, ...], job: Job, tops: Collection[int], where: str
) -> None:
    """Refuse slices that are no parts of the job's tensors, or that nobody sums who should.

    Those that switches sum come first and end where their trees do, with whole rows of sparse tables; the others have
    what is left.
    """
    layers, width = job.workload.layers, job.workload.bytes_per_param
    others = slices[len(summed) :]
    if not summed:
        _check_sizes(others, job, job.servers or (-1,), job.workload.tensor_bytes, where)
        return
    if not tops:
        raise PlanError(f"{where}.summed holds true; accepted: false for all, as no switch sums")
    hot = rows_in(summed, job.workload)
    for tensor, (layer, rows) in enumerate(zip(layers, hot, strict=True)):
        if rows > layer.keys:
            raise PlanError(f"{where} hold {rows} rows of tensor {tensor}; accepted: the {layer.keys} of its table")
    each = list(zip(layers, hot, strict=True))
    _check_sizes(summed, job, tops, [layer.dense_values(rows) * width for layer, rows in each], where)
    _check_sizes(others, job, job.servers, [layer.cold_bytes(width, rows) for layer, rows in each], where)


def _check_sizes(
    slices: tuple[SlicePlan, ...], job: Job, servers: Collection[int], expected: Sequence[int], where: str
) -> None:
    """Refuse slices whose sizes by tensor are others, or that nobody sums who should."""
    sizes = [0] * len(job.workload.layers)
    for piece in slices:
        if not 0 <= piece.tensor < len(sizes):
            raise PlanError(f"{where}.tensor holds {piece.tensor}; accepted: 0 to {len(sizes) - 1}")
        if piece.bytes < 1:
            raise PlanError(f"{where}.bytes holds {piece.bytes}; accepted: 1 or more")
        if piece.server not in servers:
            raise PlanError(
                f"{where}.server holds {piece.server}; accepted: who sums for {job.name}: "
                f"{', '.join(map(str, sorted(servers)))}"
            )
        sizes[piece.tensor] += piece.bytes
    for tensor, (found, planned) in enumerate(zip(sizes, expected, strict=True)):
        if found != planned:
            raise PlanError(f"{where} hold {found} bytes of tensor {tensor}; accepted: its {planned} bytes")


def _whole(document: Any, name: str, where: str, most: int | None = None) -> int:
    """Return a member that is a whole number from 0 on; without a limit of its own it is a time."""
    value = int(_decode(int, _member(document, name, where), f"{where}.{name}"))
    limit = _LONGEST_PS if most is None else most
    if not 0 <= value <= limit:
        raise PlanError(f"{where}.{name} is {short_repr(value)}; accepted: 0 to {limit}")
    return value


def _check_copies(document: Any, scenario_values: Mapping[str, object], where: str) -> None:
    """Refuse a value that stands in the file for readers and is another one than in the scenario it is a copy of."""
    for name, value in scenario_values.items():
        found = _member(document, name, where)
        if type(found) is not type(value) or found != value:
            raise PlanError(
                f"{where}.{name} is {short_repr(found)}; accepted: what the plan's scenario says, {value!r}"
            )


def _check_keys(document: Mapping[str, Any], accepted: Collection[str], where: str) -> None:
    for name in document:
        if name not in accepted:
            raise PlanError(f"{where}: {unknown('key', name, accepted)}")


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
        # Columns have thousands of values, and are as they should be nearly always.
        if inner[-1] is Ellipsis and inner[0] in _PLAIN and set(map(type, value)) <= {inner[0]}:
            return tuple(value)
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) == len(value):
            return tuple(
                _decode(each, item, f"{where}.{i}") for i, (each, item) in enumerate(zip(kinds, value, strict=True))
            )
    elif origin in (Union, types.UnionType):
        for each in inner:
            if type(value) is each:
                return value
    elif kind is float and type(value) in (int, float) and abs(value) <= _LARGEST_EXACT:
        return float(value)
    elif type(value) is kind:
        return value
    raise PlanError(f"{where} is {short_repr(value)}; accepted: {_described(kind)}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode_dataclass(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise PlanError(f"{where} is {short_repr(value)}; accepted: an object")
    hints = _hints(kind)
    names = [field.name for field in fields(kind)]
    _check_keys(value, names, where)
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
