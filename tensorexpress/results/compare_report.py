"""Reports of comparisons: as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorexpress.results.compare import METRICS, Comparison, JobComparison, TracedRun, Value, differences, gain
from tensorexpress.results.heading import JOB_LINE, heading
from tensorexpress.results.provenance import provenance
from tensorexpress.text import grid
from tensorexpress.units import PS_PER_MS, counted, format_size

#: The two lines above each of the three columns of a comparison.
Headings = tuple[tuple[str, str], tuple[str, str], tuple[str, str]]


def as_table(comparisons: Sequence[Comparison], tensors: bool = False) -> str:
    """Return the table for a terminal of one comparison, or of two: then with what the second gains over the first."""
    scenario = comparisons[0].reference.plan.scenario
    lines = [heading(scenario, said=(*JOB_LINE, "job.name", "iterations")), *notes_on(comparisons)]
    for number, job in enumerate(scenario.jobs):
        title = f"{job.name}: {job.workload.name}, {job.placement}; times in ms"
        lines += ["", title, "", *grid(_metric_rows(comparisons, number))]
        if tensors:
            for comparison in comparisons:
                lines += ["", *grid(_tensor_rows(comparison, comparison.jobs[number]))]
    return "\n".join(lines)


def as_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return everything as a JSON object; times are in milliseconds, changes in parts of the reference."""
    document: dict[str, Any] = {"comparisons": [_comparison_to_json(comparison) for comparison in comparisons]}
    if len(comparisons) == 2:
        names = [job.name for job in comparisons[0].jobs]
        document["gain"] = dict(zip(names, map(_values_to_json, gain(*comparisons)), strict=True))
    return document


def _comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "reference": _run_to_json(comparison.reference),
        "other": _run_to_json(comparison.other),
        "is_prediction": comparison.is_prediction,
        "differences": differences(comparison.reference.plan, comparison.other.plan),
        "jobs": {
            job.name: {
                "metrics": _values_to_json(job.metrics),
                "tensors": [
                    {
                        "name": tensor.name,
                        "bytes": tensor.bytes,
                        "queues": list(tensor.queues),
                        "latency": _value_to_json(tensor.latency),
                    }
                    for tensor in job.tensors
                ],
            }
            for job in comparison.jobs
        },
    }


def _run_to_json(run: TracedRun) -> dict[str, Any]:
    trace = run.trace
    return {
        "name": run.name,
        "source": trace.source,
        "policy": trace.policy,
        "provenance": provenance(run.plan.scenario, [run.plan.policy]).to_json(),
        "iterations": run.plan.scenario.iterations,
        **_troubles(run),
    }


def _values_to_json(values: Mapping[str, Value]) -> dict[str, Any]:
    return {name.replace(",", "").replace(" ", "_"): _value_to_json(value) for name, value in values.items()}


def _value_to_json(value: Value) -> dict[str, float | None]:
    return {
        "reference_ms": value.reference_ps / PS_PER_MS,
        "other_ms": value.other_ps / PS_PER_MS,
        "change": value.change,
    }


def _troubles(run: TracedRun) -> dict[str, int]:
    """Return what went wrong in a run and was mended, which explains many a difference."""
    trace = run.trace
    return {
        "drops": int(trace.links["drops"].sum()),
        "losses": int(trace.links["losses"].sum()),
        "retransmissions": trace.retransmissions,
        "timeouts": trace.timeouts,
    }


def notes_on(comparisons: Sequence[Comparison]) -> list[str]:
    """Return lines on what was compared that the table cannot show."""
    lines = []
    for run in (run for comparison in comparisons for run in (comparison.reference, comparison.other)):
        troubles = ", ".join(f"{count} {what}" for what, count in _troubles(run).items() if count)
        iterations = counted(run.plan.scenario.iterations, "iteration")
        where = f" on links as calibrated for the target {run.calibrated_for}" if run.calibrated_for else ""
        lines.append(f"- {run.label}: {iterations}{where}{f'; {troubles}' if troubles else ''}")
    pairs = [(comparison.reference, comparison.other) for comparison in comparisons]
    if len(comparisons) == 2:
        pairs.append((comparisons[0].reference, comparisons[1].reference))
    for one, other in pairs:
        found = differences(one.plan, other.plan)
        if found:
            lines.append(f"- the scenarios of {one.label} and {other.label} differ: {found}")
    return lines


def _metric_rows(comparisons: Sequence[Comparison], number: int) -> list[list[str]]:
    """Return three columns for each comparison, and three for what the second gains over the first."""
    blocks = [(_headings(comparison), comparison.jobs[number].metrics) for comparison in comparisons]
    if len(comparisons) == 2:
        first, second = comparisons
        gained = (("gain", first.reference.how), ("gain", first.other.how), ("error", "%"))
        blocks.append((gained, gain(first, second)[number]))
    heads = [[""] + [heading[line] for headings, _ in blocks for heading in headings] for line in (0, 1)]
    return [*heads, *([name, *_row(blocks, name)] for name in METRICS)]


def _row(blocks: Sequence[tuple[Headings, Mapping[str, Value]]], name: str) -> list[str]:
    return [cell for _, values in blocks for cell in _cells(values[name])]


def _headings(comparison: Comparison) -> Headings:
    one, other = comparison.reference, comparison.other
    return (one.name, one.how), (other.name, other.how), ("error" if comparison.is_prediction else "change", "%")


def _cells(value: Value) -> tuple[str, str, str]:
    change = "-" if value.change is None else f"{100 * value.change:+.1f}"
    return f"{value.reference_ps / PS_PER_MS:.2f}", f"{value.other_ps / PS_PER_MS:.2f}", change


def _tensor_rows(comparison: Comparison, job: JobComparison) -> list[list[str]]:
    headings = _headings(comparison)
    rows = [["latency", "", "", *(first for first, _ in headings)]]
    rows.append(["of tensor", "size", "queue", *(second for _, second in headings)])
    for tensor in job.tensors:
        queues = dict.fromkeys(map(str, tensor.queues))
        rows.append([tensor.name, format_size(tensor.bytes), "/".join(queues), *_cells(tensor.latency)])
    return rows
