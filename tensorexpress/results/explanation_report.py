"""Explanations as a table and as JSON."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from tensorexpress import scenario as scenarios
from tensorexpress.policy import describe
from tensorexpress.results.explanation import Explanation, JobExplanation, Step, summary
from tensorexpress.results.heading import heading
from tensorexpress.text import grid
from tensorexpress.units import PS_PER_MS

_READING = (
    "gain is against the line above and so depends on the order of switching; alone is the gain when nothing else is "
    "on, last the gain when all else is on; of possible is the part of what lies between fifo and the optimum."
)


def as_table(explanation: Explanation) -> str:
    """Return the table for a terminal, with what it says in words below."""
    inputs = explanation.scenario
    lines = [
        heading(inputs),
        f"{explanation.policy.name}: {describe(explanation.policy)}",
    ]
    for job in explanation.jobs:
        title = [f"{job.job}:"] if len(explanation.jobs) > 1 else []
        lines += ["", *title, *(line.rstrip() for line in grid(_table_rows(job))), "", *wrap(summary(job), 110)]
    return "\n".join([*lines, "", *wrap(_READING, 110)])


def _table_rows(job: JobExplanation) -> list[list[str]]:
    rows = [
        ["", "iteration", "speed-", "blocking", "1st layer", "gain", "of", "alone", "last"],
        ["step", "ms", "up", "ms", "ms", "ms", "possible", "ms", "ms"],
    ]
    for step in job.steps:
        waits = [f"{step.blocking_ps / PS_PER_MS:.2f}", f"{step.first_ps / PS_PER_MS:.2f}"]
        label, gained = (f"+ {step.name}", gains(job, step)) if step is not job.steps[0] else (step.name, ("",) * 4)
        rows.append([label, *reached(job, step.iteration_ps), *waits, *gained])
    left = [signed_ms(job.left_ps), percent(job.share(job.left_ps))]
    return [*rows, ["optimum", *reached(job, job.optimal_ps), "", "", *left, "", ""]]


def reached(job: JobExplanation, iteration_ps: float) -> tuple[str, ...]:
    """Return an iteration time and what it is faster than fifo, as text."""
    return (f"{iteration_ps / PS_PER_MS:.2f}", f"{job.speedup(iteration_ps):.2f}x")


def gains(job: JobExplanation, step: Step) -> tuple[str, ...]:
    """Return what a step gains in its place, as a part of what is possible, alone and last, as text."""
    in_order = (signed_ms(step.gain_ps), percent(job.share(step.gain_ps)))
    return (*in_order, signed_ms(step.alone_ps), signed_ms(step.last_ps))


def signed_ms(gain_ps: float) -> str:
    """Return a gain in ms as text."""
    return f"{gain_ps / PS_PER_MS:+.2f}"


def percent(share: float | None) -> str:
    """Return a share as text."""
    return "-" if share is None else f"{share:.1%}"


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as a JSON object; times are in milliseconds."""
    return {
        "provenance": explanation.provenance.to_json(),
        "scenario": scenarios.to_json(explanation.scenario),
        "policy": {"name": explanation.policy.name, "choices": describe(explanation.policy)},
        "jobs": {job.job: _job_to_json(job) for job in explanation.jobs},
    }


def _job_to_json(job: JobExplanation) -> dict[str, Any]:
    return {
        "steps": [
            {
                "name": step.name,
                "iteration_ms": step.iteration_ps / PS_PER_MS,
                "blocking_ms": step.blocking_ps / PS_PER_MS,
                "latency_first_ms": step.first_ps / PS_PER_MS,
                "gain_ms": step.gain_ps / PS_PER_MS,
                "share": job.share(step.gain_ps),
                "speedup": job.speedup(step.iteration_ps),
                "alone_ms": step.alone_ps / PS_PER_MS,
                "last_ms": step.last_ps / PS_PER_MS,
            }
            for step in job.steps
        ],
        "compute_ms": job.compute_ps / PS_PER_MS,
        "optimal_ms": job.optimal_ps / PS_PER_MS,
        "possible_ms": job.possible_ps / PS_PER_MS,
        "left_ms": job.left_ps / PS_PER_MS,
        "left_share": job.share(job.left_ps),
        "summary": summary(job),
    }
