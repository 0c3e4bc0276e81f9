"""Figures of comparisons: what one worker did in each run, one below the other on one time axis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tensorexpress.results.compare import TracedRun
from tensorexpress.results.figure import check_suffix, headed_parts, new_figure, save_figure
from tensorexpress.results.provenance import Provenance, provenance
from tensorexpress.results.timelines import LANES, Timeline, draw_legend, draw_timelines, most_blocked
from tensorexpress.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_runs(runs: Sequence[TracedRun], path: str | os.PathLike[str]) -> None:
    """Draw runs of the same jobs to a PNG, SVG or PDF file, job by job."""
    check_suffix(path)
    save_figure(draw_runs(runs), path, _provenance(runs))


def draw_runs(runs: Sequence[TracedRun]) -> Figure:
    """Return the figure that `plot_runs` saves: the worker that is blocked longest in the first run, in all of them."""
    first = runs[0].trace
    inches = [0.55, 0.85 + 1.3 * len(runs)]
    figure = new_figure(10, 0.3 + len(first.jobs) * sum(inches), _provenance(runs))
    parts = headed_parts(figure, runs[0].plan.scenario, inches)
    for job, (head, body) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        worker = most_blocked(first, job)
        draw_legend(head)
        draw_timelines(
            body,
            [Timeline(run.label, run.trace, worker, usual_iteration(run.trace, worker, job), job) for run in runs],
            f"{first.jobs[job].workers[worker]} is the worker blocked longest in {runs[0].label}. Of each run: its "
            f"measured iteration with the median blocking time. {LANES}",
        )
    return figure


def _provenance(runs: Sequence[TracedRun]) -> Provenance:
    """Return what made the figure: the scenario of the first run, and all policies."""
    return provenance(runs[0].plan.scenario, dict.fromkeys(run.plan.policy for run in runs))


def usual_iteration(trace: Trace, worker: int, job: int = 0) -> int:
    """Return the measured iteration whose blocking time is the (lower) median for this worker of a job."""
    blocked_ps = trace.jobs[job].blocking_ps[trace.warmup :, worker]
    order = np.argsort(blocked_ps, kind="stable")
    return trace.warmup + int(order[(len(order) - 1) // 2])
