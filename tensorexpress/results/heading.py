"""The first line of a result: what it is a result of, with every key that is not as in the default scenario."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from tensorexpress import models
from tensorexpress.changes import describe_change, when
from tensorexpress.cluster import describe
from tensorexpress.commits.settings import CommitSettings, usual_modes
from tensorexpress.errors import InputError
from tensorexpress.graph import ALL_ARCHITECTURES, ASYNC
from tensorexpress.learning import PROBLEMS
from tensorexpress.scenario import Background, Job, Scenario, scenario_from
from tensorexpress.scenario_keys import SECTIONS, Key
from tensorexpress.units import PS_PER_SECOND, format_rate, format_size, format_time
from tensorexpress.workload import Workload, at_throughput, compressed

#: What a line about each job says, where a result has one.
JOB_LINE = ("job.model", "job.workers", "job.servers", "job.architecture")

_UNITS: dict[str, Callable[[int], str]] = {"ps": format_time, "bytes": format_size, "bps": format_rate}


def heading(scenario: Scenario, said: Collection[str] = ()) -> str:
    """Return name and cluster, and the keys that differ from the default scenario and are not `said` elsewhere.

    >>> heading(scenario_from({"loss": 0.01, "job": {"batch": 8}}, "default"))
    'default: star, 12 hosts, 10 Gbps, 1 us, MTU 9000, 8 queues; loss=0.01, job.batch=8'
    """
    changed = [f"{key}={value}" for key, value in changes(scenario).items() if _plain(key) not in said]
    return "; ".join([f"{scenario.name}: {describe(scenario.cluster)}", *filter(None, [", ".join(changed)])])


def changes(scenario: Scenario) -> dict[str, str]:
    """Return the keys that differ from the default scenario, with their values, but for what `describe` says."""
    usual = _usual()
    found = {
        name: f"{getattr(scenario, name):g}"
        for name in ("seed", "iterations", "warmup", "loss")
        if getattr(scenario, name) != getattr(usual, name)
    }
    if scenario.cluster.buffer_bytes != usual.cluster.buffer_bytes:
        found["cluster.buffer"] = _size_limit(scenario.cluster.buffer_bytes)
    if scenario.cluster.switch_memory_bytes != usual.cluster.switch_memory_bytes:
        found["cluster.switch_memory"] = _size_limit(scenario.cluster.switch_memory_bytes)
    if scenario.cluster.switch_rate_bps:
        found["cluster.switch_rate"] = format_rate(scenario.cluster.switch_rate_bps)
    found |= _of_jobs(scenario)
    found |= {f"transport.{name}": text for name, text in _differing("transport", scenario.transport, usual.transport)}
    found |= _of_commits(scenario)
    if scenario.jitter:
        found["compute.jitter"] = f"{scenario.jitter:g}"
    hosts = scenario.cluster.hosts
    found |= {f"compute.stragglers.{hosts[host]}": f"{factor:g}" for host, factor in scenario.stragglers}
    for index, traffic in enumerate(scenario.background):
        ends = f"{hosts[traffic.src]} to {hosts[traffic.dst]}"
        found[f"background.{index}"] = f"{ends}, {format_rate(traffic.rate_bps)}{_while(traffic)}"
    found |= {f"change.{i}": describe_change(change, scenario.cluster) for i, change in enumerate(scenario.changes)}
    return found


def _while(traffic: Background) -> str:
    """Return when traffic is there, where that is not always."""
    return f" {when(traffic.at_ps, traffic.until_ps)}" if traffic.at_ps or traffic.until_ps is not None else ""


def _of_commits(scenario: Scenario) -> dict[str, str]:
    """Return what differs of how updates are committed from a scenario that says no more than its architecture."""
    commits, problem = scenario.commits, PROBLEMS[scenario.commits.problem]
    counts = {"helpers": len(commits.helpers), "replicas": len(commits.replicas)}
    usual = CommitSettings(
        tau=2 * len(scenario.jobs[0].workers) if scenario.is_async else 0,
        problem="logistic",
        learning_rate=problem.learning_rate,
        target_loss=problem.target_loss,
        modes=usual_modes(**counts),
    )
    found = dict(_differing("commits", commits, usual))
    if "modes" in found:
        found["modes"] = ",".join(commits.modes)
    defaults = {"helpers": 2, "replicas": 1} if scenario.is_async else {"helpers": 0, "replicas": 0}
    found |= {name: str(count) for name, count in counts.items() if count != defaults[name]}
    return {f"commits.{name}": text for name, text in found.items()}


@cache
def _usual() -> Scenario:
    return scenario_from({}, "default")


def _plain(key: str) -> str:
    """Return the key without the number of a job."""
    return ".".join(step for step in key.split(".") if not step.isdigit())


def _of_jobs(scenario: Scenario) -> dict[str, str]:
    """Return what differs in jobs; what all jobs share is said once."""
    of_each = [_of_job(job, index) for index, job in enumerate(scenario.jobs)]
    shared = {name: text for name, text in of_each[0].items() if all(one.get(name) == text for one in of_each)}
    found = {f"job.{name}": text for name, text in shared.items()}
    for index, one in enumerate(of_each):
        found |= {f"job.{index}.{name}": text for name, text in one.items() if name not in shared}
    return found


def _of_job(job: Job, index: int) -> dict[str, str]:
    usual = _usual().jobs[0]
    colocated = bool(set(job.servers) & set(job.workers))
    usual_servers = 1 if job.architecture == ASYNC else len(job.hosts) if colocated else len(usual.servers)
    servers = usual_servers if ALL_ARCHITECTURES[job.architecture].has_servers else 0
    found = {} if job.name == f"job{index}" else {"name": job.name}
    found |= _workload(job)
    for name, count, default in (
        ("workers", len(job.hosts), len(usual.hosts)),
        ("servers", len(job.servers), servers),
    ):
        if count != default:
            found[name] = str(count)
    return found | ({"colocated": "true"} if colocated else {}) | dict(_differing("job", job, usual))


def _workload(job: Job) -> dict[str, str]:
    """Return model, batch, device and so on; or what stands in their place where these times are no model's."""
    workload = job.workload
    codec = {}
    if workload.compression != 1:
        codec["compression"] = f"{workload.compression:g}"
    if workload.compression_rate_bps:
        codec["compression_rate"] = format_rate(workload.compression_rate_bps)
    model = _model(job)
    if model is None:
        batch = {"batch": str(workload.batch)} if workload.batch else {}
        return {"csv": workload.name} | batch | _dtype(workload, "fp32") | codec
    found = {} if model.name == _usual().jobs[0].workload.name else {"model": model.name}
    if workload.batch != model.default_batch:
        found["batch"] = str(workload.batch)
    return found | _times(job) | codec


def _model(job: Job) -> models.ModelArchitecture | None:
    """Return the model of the zoo whose layers these are, one by one or in buckets."""
    workload = job.workload
    if not workload.batch:
        return None
    try:
        model = models.architecture(workload.name)
        own = job.exchanges(replace(models.load(workload.name), dtype=workload.dtype))
    except InputError:
        return None
    return model if [layer.name for layer in own.layers] == [layer.name for layer in workload.layers] else None


def _times(job: Job) -> dict[str, str]:
    """Return the device, dtype and throughput with which a model of the zoo takes these times, if there are any."""
    workload = job.workload
    compute_ps = workload.compute_ps - 2 * sum(workload.codec_ps)
    # As many digits as people write.
    throughput = float(f"{workload.batch * PS_PER_SECOND / max(1, compute_ps):.6g}")
    bases = {
        name: models.load(workload.name, workload.batch, name, workload.dtype)
        for name, device in models.DEVICES.items()
        if workload.dtype in device.rates
    }
    for said in ({}, {"samples_per_second": f"{throughput:g}"}):
        for name, base in bases.items():
            made = at_throughput(base, throughput) if said else base
            if job.exchanges(compressed(made, workload.compression, workload.compression_rate_bps)) == workload:
                device = {} if name == "v100" else {"device": name}
                return device | _dtype(workload, models.DEVICES[name].usual_dtype) | said
    usual = models.load(workload.name, workload.batch)
    return _dtype(workload, usual.dtype) | {"compute": f"{workload.compute_ps / usual.compute_ps:.3g}x"}


def _dtype(workload: Workload, usual: str) -> dict[str, str]:
    return {} if workload.dtype == usual else {"dtype": workload.dtype}


def _differing(section: str, value: Any, usual: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys of a section whose fields are not as usual."""
    for name, key in SECTIONS[section].items():
        if key.field in ("name", "workers", "servers", "helpers", "replicas") or not hasattr(value, key.field):
            continue
        found = getattr(value, key.field)
        if found != getattr(usual, key.field):
            yield name, _text(key, found)


def _text(key: Key, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    unit = key.field.rpartition("_")[2]
    if unit in _UNITS and not key.kind.accepted.startswith("a whole number"):
        return _size_limit(value) if unit == "bytes" else _UNITS[unit](value)
    return str(value)


def _size_limit(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes else "0"
