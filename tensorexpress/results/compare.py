"""Comparisons: two runs of the same jobs side by side, such as a measurement and its prediction.

One run is the reference; the error, or change, of the other is told in parts of it. When one was measured and the other
simulated, the measured one is the reference: what is judged then is the prediction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from reprlib import repr as short_repr
from typing import Any

import numpy as np

from tensorexpress.errors import PlanError
from tensorexpress.plan import Plan
from tensorexpress.trace import JobMetrics, JobTrace, Trace, measure_job

#: What is compared, in the order shown: name -> the metric in ps.
METRICS: Mapping[str, Callable[[JobMetrics], float]] = {
    "iteration": lambda metrics: metrics.iteration_ps,
    "compute": lambda metrics: metrics.compute_ps,
    "blocking": lambda metrics: metrics.blocking_ps,
    "iteration, median": lambda metrics: metrics.iteration_median_ps,
    "blocking, median": lambda metrics: metrics.blocking_median_ps,
    "blocking, worst worker": lambda metrics: metrics.blocking_worst_ps,
    "latency, mean": lambda metrics: metrics.latency.mean_ps,
    "latency, p50": lambda metrics: metrics.latency.p50_ps,
    "latency, p99": lambda metrics: metrics.latency.p99_ps,
    "latency, first layer": lambda metrics: metrics.latency.first_ps,
}

#: Differences between scenarios that a message lists.
_MOST_LISTED = 3


@dataclass(frozen=True)
class TracedRun:
    """A trace with the plan that was run, under a name such as its policy's."""

    name: str
    trace: Trace
    plan: Plan
    #: The target for which a prediction was calibrated: its links are not quite those of the plan.
    calibrated_for: str | None = None

    @property
    def how(self) -> str:
        """Whether it was measured or predicted."""
        return "predicted" if self.trace.source == "simulated" else self.trace.source

    @property
    def label(self) -> str:
        """What it is called where it stands alone."""
        return f"{self.name}, {self.how}"


@dataclass(frozen=True)
class Value:
    """One quantity of two runs, in ps."""

    reference_ps: float
    other_ps: float

    @property
    def change(self) -> float | None:
        """By how much the other differs, in parts of the reference; None where the reference is nothing.

        >>> Value(reference_ps=200.0, other_ps=190.0).change
        -0.05
        """
        if self.reference_ps == 0:
            return 0.0 if self.other_ps == 0 else None
        return (self.other_ps - self.reference_ps) / abs(self.reference_ps)


@dataclass(frozen=True)
class TensorComparison:
    """One tensor of a job: its queue in both runs, and its mean latency over workers and measured iterations."""

    name: str
    bytes: int
    queues: tuple[int, int]
    latency: Value


@dataclass(frozen=True)
class JobComparison:
    """One job of two runs; `metrics` has the keys of METRICS, tensors are in forward order."""

    name: str
    metrics: Mapping[str, Value]
    tensors: tuple[TensorComparison, ...]


@dataclass(frozen=True)
class Comparison:
    """Two runs and what there is to compare, job by job."""

    reference: TracedRun
    other: TracedRun
    jobs: tuple[JobComparison, ...]

    @property
    def is_prediction(self) -> bool:
        """Whether the other run predicts the reference: the same policy, measured there and simulated here."""
        sources = (self.reference.trace.source, self.other.trace.source)
        return sources == ("measured", "simulated") and self.reference.plan.policy == self.other.plan.policy


def compare(one: TracedRun, other: TracedRun) -> Comparison:
    """Put two runs side by side; jobs, workers and layers must be the same, all else may differ."""
    _check_same_jobs(one, other)
    if (one.trace.source, other.trace.source) == ("simulated", "measured"):
        one, other = other, one
    numbers = range(len(one.trace.jobs))
    return Comparison(one, other, tuple(_compare_job(one, other, number) for number in numbers))


def _compare_job(one: TracedRun, other: TracedRun, number: int) -> JobComparison:
    metrics = [_metrics(run, number) for run in (one, other)]
    latencies = [_tensor_latencies_ps(run.trace.jobs[number], run.trace.warmup) for run in (one, other)]
    plans = [run.plan.jobs[number] for run in (one, other)]
    workload = plans[0].job.workload
    return JobComparison(
        name=one.trace.jobs[number].name,
        metrics={name: Value(read(metrics[0]), read(metrics[1])) for name, read in METRICS.items()},
        tensors=tuple(
            TensorComparison(layer.name, size, queues, Value(*latency))
            for layer, size, queues, latency in zip(
                workload.layers,
                workload.tensor_bytes,
                zip(*(plan.queues for plan in plans), strict=True),
                zip(*latencies, strict=True),
                strict=True,
            )
        ),
    )


def _metrics(run: TracedRun, number: int) -> JobMetrics:
    return measure_job(run.trace.jobs[number], run.trace.warmup)


def _tensor_latencies_ps(job: JobTrace, warmup: int) -> list[float]:
    latency = (job.updated_ps - job.gradient_ps)[warmup:]
    means: list[float] = np.mean(latency, axis=(0, 1)).tolist()
    return means


def gain(first: Comparison, second: Comparison) -> list[dict[str, Value]]:
    """Return what the second pair of runs takes less than the first, per job and metric.

    With two policies, each measured and predicted, this is what one gains over the other: measured, and predicted.
    """
    return [
        {
            name: Value(one.reference_ps - other.reference_ps, one.other_ps - other.other_ps)
            for (name, one), other in zip(before.metrics.items(), after.metrics.values(), strict=True)
        }
        for before, after in zip(first.jobs, second.jobs, strict=True)
    ]


def differences(one: Plan, other: Plan) -> str:
    """Return on one line in what the scenarios of two plans differ, "" where they do not; policies may differ.

    >>> from tensorexpress.plan import make_plan
    >>> from tensorexpress.policy import POLICIES
    >>> from tensorexpress.scenario import read_scenario
    >>> plans = [make_plan(read_scenario(overrides=[f"iterations={n}"]), POLICIES["fifo"]) for n in (2, 9)]
    >>> differences(*plans)
    'iterations is 2 and 9'
    """
    found: dict[str, str] = {}
    for where, a, b in _differing(one.scenario, other.scenario, ""):
        # What differs in the same way for all links, or all layers, is told once.
        found.setdefault(re.sub(r"\.[0-9]+", ".*", where), f"is {short_repr(a)} and {short_repr(b)}")
    listed = [f"{where} {values}" for where, values in islice(found.items(), _MOST_LISTED)]
    more = len(found) - len(listed)
    return "; ".join(listed) + (f"; and {more} more" if more else "")


def _differing(one: Any, other: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the places where two values of dataclasses, tuples and scalars differ, with what is there."""
    if is_dataclass(one) and type(one) is type(other):
        for field in fields(one):
            if where or field.name != "name":  # what a scenario is called says nothing about what happens
                place = f"{where}.{field.name}" if where else field.name
                yield from _differing(getattr(one, field.name), getattr(other, field.name), place)
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _differing(a, b, f"{where}.{index}")
    elif one != other:
        yield where, one, other


def _check_same_jobs(one: TracedRun, other: TracedRun) -> None:
    """Refuse runs of which no tensor of one has its like in the other."""
    names = tuple(tuple(job.name for job in run.trace.jobs) for run in (one, other))
    parts = {"jobs": names}
    for a, b in zip(one.trace.jobs, other.trace.jobs, strict=False):
        parts |= {f"layers of {a.name}": (a.layers, b.layers), f"workers of {a.name}": (a.workers, b.workers)}
    for what, (ones, others) in parts.items():
        if ones != others:
            raise PlanError(
                f"{one.label} and {other.label} cannot be compared: the {what} are {short_repr(ones)} and "
                f"{short_repr(others)}; accepted: two runs of the same jobs"
            )
