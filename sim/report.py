"""Reports: a prediction as a table, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from statistics import fmean
from typing import Any

from tensorexpress import scenario
from tensorexpress.heading import JOB_LINE, heading
from tensorexpress.policy import describe
from tensorexpress.sim.advice import notes
from tensorexpress.sim.predict import Prediction
from tensorexpress.text import grid
from tensorexpress.trace import busiest_link
from tensorexpress.units import PS_PER_MS


def metrics_of(prediction: Prediction, name: str, job: int) -> dict[str, Any]:
    """Return what is reported of one job under one policy; times are in milliseconds."""
    metrics = prediction.results[name].jobs[job]
    latency = metrics.latency
    return {
        "iteration_ms": metrics.iteration_ps / PS_PER_MS,
        "compute_ms": metrics.compute_ps / PS_PER_MS,
        "blocking_ms": metrics.blocking_ps / PS_PER_MS,
        "blocking_worst_ms": metrics.blocking_worst_ps / PS_PER_MS,
        "latency_ms": {
            "mean": latency.mean_ps / PS_PER_MS,
            "p50": latency.p50_ps / PS_PER_MS,
            "p99": latency.p99_ps / PS_PER_MS,
            "first": latency.first_ps / PS_PER_MS,
        },
        "speedup": prediction.speedup(name, job),
        "optimal_ms": prediction.optimal_ps[job] / PS_PER_MS,
        "of_optimal": prediction.of_optimal(name, job),
    }


def _mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of equal-shaped rows, field by field."""
    return {
        key: _mean([row[key] for row in rows]) if isinstance(value, dict) else fmean(row[key] for row in rows)
        for key, value in rows[0].items()
    }


def as_json(prediction: Prediction) -> dict[str, Any]:
    """Return everything as a JSON object; with several jobs, a policy's own fields are the means over them."""
    policies = {}
    for name, result in prediction.results.items():
        jobs = [metrics_of(prediction, name, index) for index in range(len(result.jobs))]
        link, share = busiest_link(result.trace)
        policies[name] = {
            **_mean(jobs),
            "choices": describe(result.plan.policy),
            "queue_regret_ms": {job.job.name: job.regret_ps / PS_PER_MS for job in result.plan.jobs},
            "utilisation": {"link": link, "share": share},
            "drops": int(result.trace.links["drops"].sum()),
            "retransmissions": result.trace.retransmissions,
            "jobs": {job.job.name: row for job, row in zip(result.plan.jobs, jobs, strict=True)},
        }
    return {"scenario": scenario.to_json(prediction.scenario), "policies": policies, "notes": notes(prediction)}


def as_csv(prediction: Prediction) -> str:
    """Return one row per policy and job."""
    rows = []
    for name, policy in as_json(prediction)["policies"].items():
        for job, metrics in policy["jobs"].items():
            row = {"policy": name, "job": job, **metrics}
            row |= {f"latency_{key}_ms": value for key, value in row.pop("latency_ms").items()}
            row |= {"busiest_link": policy["utilisation"]["link"], "utilisation": policy["utilisation"]["share"]}
            rows.append(row | {key: policy[key] for key in ("drops", "retransmissions")})
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_table(prediction: Prediction) -> str:
    """Return the table for a terminal, with what to make of it below."""
    inputs = prediction.scenario
    lines = [heading(inputs, said=JOB_LINE)]
    several = len(inputs.jobs) > 1
    for index, job in enumerate(inputs.jobs):
        rows = [
            [
                "",
                "iteration",
                "blocking",
                "worst",
                "latency",
                "",
                "",
                "1st layer",
                "speed-",
                "of",
                "busiest",
                "",
                "re-",
            ],
            ["policy", "ms", "ms", "ms", "mean ms", "p50", "p99", "ms", "up", "optimum", "link", "drops", "sent"],
        ]
        for name, result in prediction.results.items():
            row = metrics_of(prediction, name, index)
            latency = row["latency_ms"]
            numbers = [row["iteration_ms"], row["blocking_ms"], row["blocking_worst_ms"], latency["mean"]]
            numbers += [latency["p50"], latency["p99"], latency["first"]]
            rows.append(
                [
                    name,
                    *(f"{number:.2f}" for number in numbers),
                    f"{row['speedup']:.2f}x",
                    f"{row['of_optimal']:.1%}",
                    f"{busiest_link(result.trace)[1]:.0%}",
                    str(int(result.trace.links["drops"].sum())),
                    str(result.trace.retransmissions),
                ]
            )
        where = job.placement
        title = f"{job.name}: {job.workload.name}" if several else job.workload.name
        metrics = prediction.baseline.jobs[index]
        lines += [
            f"{title}, {where}; compute {metrics.compute_ps / PS_PER_MS:.2f} ms an iteration, "
            f"no schedule can take less than {prediction.optimal_ps[index] / PS_PER_MS:.2f} ms",
            "",
            *grid(rows),
            "",
        ]
    return "\n".join([*lines, *(f"- {note}" for note in notes(prediction))])
