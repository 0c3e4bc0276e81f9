"""Policies side by side as a table, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from tensorexpress import scenario as scenarios
from tensorexpress.policy import describe
from tensorexpress.results.advice import notes
from tensorexpress.results.columns import JOB_COLUMNS, TABLE_COLUMNS, Cells, JobResult
from tensorexpress.results.heading import JOB_LINE, heading
from tensorexpress.results.route_report import route_lines, routes_to_json
from tensorexpress.results.side_by_side import JITTER, SideBySide
from tensorexpress.text import grid
from tensorexpress.units import PS_PER_MS


def as_json(compared: SideBySide) -> dict[str, Any]:
    """Return everything as a JSON object; with several jobs, a policy's own fields are the means over them."""
    policies = {}
    for name, result in compared.results.items():
        job_results = compared.job_results(name)
        jobs = [_job_to_json(each) for each in job_results]
        network = job_results[0]
        policies[name] = {
            **_mean(jobs),
            "choices": describe(result.plan.policy),
            "source": network.source,
            "queue_regret_ms": {job.job.name: job.regret_ps / PS_PER_MS for job in result.plan.jobs},
            "utilisation": {"link": network.busiest_link, "share": network.utilisation},
            "drops": network.drops,
            "retransmissions": network.retransmissions,
            **({"routes": routes_to_json(result)} if compared.replan_ps is not None else {}),
            "jobs": {each.job: row for each, row in zip(job_results, jobs, strict=True)},
        }
    return {
        "provenance": compared.provenance.to_json(),
        "scenario": scenarios.to_json(compared.scenario),
        "grain": {
            "packets": compared.grain,
            "changes_when_doubled": dict(compared.grain_changes),
            "errors": dict(compared.grain_errors),
        },
        **({"jitter": _jitter_to_json(compared)} if compared.jittered_ps else {}),
        **({"replan_ps": compared.replan_ps} if compared.replan_ps is not None else {}),
        "policies": policies,
        "notes": notes(compared),
    }


def _jitter_to_json(compared: SideBySide) -> dict[str, Any]:
    """Return the range of iterations of every policy and job with and without a little jitter, in milliseconds."""
    ranges: dict[str, dict[str, list[float]]] = {}
    for name, by_job in compared.jittered_ps.items():
        ranges[name] = {}
        for job, own, times in zip(compared.scenario.jobs, compared.results[name].jobs, by_job, strict=True):
            every = (own.iteration_ps, *times)
            ranges[name][job.name] = [min(every) / PS_PER_MS, max(every) / PS_PER_MS]
    return {"share": JITTER, "iteration_range_ms": ranges}


def _job_to_json(result: JobResult) -> dict[str, Any]:
    """Return the job's own columns; latencies are an object of their own."""
    document: dict[str, Any] = {}
    for column in JOB_COLUMNS:
        if column.name.startswith("latency_"):
            kind = column.name.removeprefix("latency_").removesuffix("_ms")
            document.setdefault("latency_ms", {})[kind] = column.value(result)
        else:
            document[column.name] = column.value(result)
    if not result.is_clear:
        document["speedup"] = None
    return document


def _mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of equal-shaped rows, field by field; None where a row has none."""

    def mean(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return _mean(values)
        return None if None in values else fmean(values)

    return {key: mean([row[key] for row in rows]) for key in rows[0]}


def as_csv(compared: SideBySide) -> str:
    """Return one line per policy and job."""
    return csv_text(compared.rows())


def csv_text(rows: Sequence[Cells], header: bool = True) -> str:
    """Return rows of the same columns as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_table(compared: SideBySide) -> str:
    """Return the table for a terminal, with what to make of it below."""
    inputs = compared.scenario
    lines = [heading(inputs, said=JOB_LINE)]
    several = len(inputs.jobs) > 1
    headings = [column.heading for column in TABLE_COLUMNS if column.heading is not None]
    for index, job in enumerate(inputs.jobs):
        rows = [["", *(first for first, _ in headings)], ["policy", *(second for _, second in headings)]]
        for name in compared.results:
            result = compared.job_results(name)[index]
            rows.append([name, *(column.shown(result) for column in TABLE_COLUMNS)])
        title = f"{job.name}: {job.workload.name}" if several else job.workload.name
        metrics = compared.baseline.jobs[index]
        lines += [
            f"{title}, {job.placement}; compute {metrics.compute_ps / PS_PER_MS:.2f} ms an iteration, "
            f"no schedule can take less than {compared.optimal_ps[index] / PS_PER_MS:.2f} ms",
            "",
            *grid(rows),
            "",
        ]
    return "\n".join([*lines, *route_lines(compared), *(f"- {note}" for note in notes(compared))])
