"""Figures of policies side by side: bars of all, and what one worker did under two of them."""

from __future__ import annotations

import os
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from tensorexpress.results.changed import disturbances
from tensorexpress.results.changed_plot import draw_iterations
from tensorexpress.results.figure import (
    FAINT,
    NORMAL,
    SMALL,
    check_suffix,
    headed_parts,
    new_figure,
    plain,
    save_figure,
)
from tensorexpress.results.side_by_side import SideBySide
from tensorexpress.results.timelines import (
    BACKWARD,
    BLOCKED_STYLE,
    FORWARD,
    LANES,
    Timeline,
    draw_legend,
    draw_timelines,
    milliseconds,
    most_blocked,
)
from tensorexpress.trace import JobTrace
from tensorexpress.units import PS_PER_MS, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A policy this close to the fastest counts as fast, so that of two that differ by a hair the first is drawn.
_AS_FAST = 1.001


def plot_side_by_side(compared: SideBySide, path: str | os.PathLike[str]) -> None:
    """Draw policies to a PNG, SVG or PDF file: bars of all policies, and what one worker did under two of them."""
    check_suffix(path)
    save_figure(draw_side_by_side(compared), path, compared.provenance)


def draw_side_by_side(compared: SideBySide) -> Figure:
    """Return the figure that `plot_side_by_side` saves; it shows all jobs, one below the other."""
    jobs, shown = len(compared.scenario.jobs), len(timeline_policies(compared))
    found = list(disturbances(compared.scenario))
    inches = [1.35 + 0.34 * len(compared.results), 0.85 + 1.3 * shown, *[1.8] * bool(found)]
    figure = new_figure(10, 0.3 + jobs * sum(inches), compared.provenance)
    parts = headed_parts(figure, compared.scenario, inches)
    by_job = zip(*(parts[place :: len(inches)] for place in range(len(inches))), strict=True)
    for job, (upper, lower, *below) in enumerate(by_job):
        timelines = _timelines(compared, job)
        bars, columns = upper.subplots(1, 2, width_ratios=[1.7, 1])
        _draw_bars(bars, compared, job)
        _draw_columns(columns, compared, job)
        draw_legend(upper)
        draw_timelines(lower, timelines, _footnote(compared, timelines[0]))
        for part in below:
            draw_iterations(part, {each.name: each.job for each in timelines}, found)
    return figure


def timeline_policies(compared: SideBySide) -> list[str]:
    """Return the policies whose timelines are drawn: the baseline and, if there are others, one of them.

    That is tensorexpress if it is compared, else the fastest; what `ideal` does no switch can do, so it comes last.
    """
    baseline = compared.baseline.plan.policy.name
    times = {name: result.jobs[0].iteration_ps for name, result in compared.results.items() if name != baseline}
    family = {name: name.partition(":")[0] for name in times}
    ours = {name: time for name, time in times.items() if family[name] == "tensorexpress"}
    times = ours or {name: time for name, time in times.items() if family[name] != "ideal"} or times
    fast = [name for name, time in times.items() if time <= _AS_FAST * min(times.values())]
    return [baseline, *fast[:1]]


def _timelines(compared: SideBySide, job: int) -> list[Timeline]:
    worker = most_blocked(compared.baseline.trace, job)
    return [
        Timeline(name, compared.results[name].trace, worker, compared.scenario.warmup, job)
        for name in timeline_policies(compared)
    ]


def parts_ps(job: JobTrace, warmup: int, iteration_ps: float) -> tuple[float, float, float]:
    """Split an iteration into forward and backward of the worker that computes longest, and what is left."""
    forward = job.forward_ps[1 + warmup :].sum(axis=2).mean(axis=0)
    backward = job.backward_ps[warmup:].sum(axis=2).mean(axis=0)
    slowest = int((forward + backward).argmax())
    left = iteration_ps - forward[slowest] - backward[slowest]
    return float(forward[slowest]), float(backward[slowest]), max(float(left), 0.0)


def _draw_bars(axes: Axes, compared: SideBySide, job: int) -> None:
    """Draw the iteration time of every policy as a bar of its parts, and the bound as a line."""
    rows, warmup = range(len(compared.results)), compared.scenario.warmup
    parts = np.array(
        [parts_ps(one.trace.jobs[job], warmup, one.jobs[job].iteration_ps) for one in compared.results.values()]
    )
    edges_ms = np.cumsum(parts, axis=1) / PS_PER_MS
    axes.barh(rows, edges_ms[:, 0], height=0.62, color=FORWARD)
    axes.barh(rows, edges_ms[:, 1] - edges_ms[:, 0], left=edges_ms[:, 0], height=0.62, color=BACKWARD)
    axes.barh(rows, edges_ms[:, 2] - edges_ms[:, 1], left=edges_ms[:, 1], height=0.62, **BLOCKED_STYLE)
    bound_ps, longest_ms = compared.optimal_ps[job], float(edges_ms.max())
    _draw_bound(axes, bound_ps, right=bound_ps / PS_PER_MS > longest_ms / 2)
    axes.set_yticks(rows, [_policy_label(name) for name in compared.results], fontsize=NORMAL, linespacing=1.0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, longest_ms * 1.01)
    axes.set_xlabel("iteration time (ms)", fontsize=SMALL)
    plain(axes)


def _policy_label(name: str) -> str:
    """Return a policy's name in at most two lines, broken between its choices."""
    choices = name.replace(":", ": ").replace(",", ", ")
    return fill(choices, 34, max_lines=2, placeholder=" ...", break_on_hyphens=False)


def _draw_bound(axes: Axes, bound_ps: float, right: bool) -> None:
    axes.axvline(bound_ps / PS_PER_MS, color="black", linestyle="--", linewidth=1.2)
    axes.annotate(
        f"no schedule can beat this: {milliseconds(bound_ps)}",
        xy=(bound_ps / PS_PER_MS, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right" if right else "left",
        fontsize=SMALL,
    )


def _draw_columns(axes: Axes, compared: SideBySide, job: int) -> None:
    """Write the numbers of every policy beside its bar."""
    results = compared.results
    columns = {
        "iteration": [milliseconds(result.jobs[job].iteration_ps) for result in results.values()],
        "blocking": [milliseconds(result.jobs[job].blocking_ps) for result in results.values()],
        "speed-up": [compared.shown_speedup(name, job) for name in results],
        "of optimal": [f"{100 * compared.of_optimal(name, job):.1f} %" for name in results],
    }
    axes.set_axis_off()
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(results) - 0.5, -0.5)
    for right, (header, cells) in enumerate(columns.items(), 1):
        axes.annotate(
            header, (right, -0.5), (0, 3), textcoords="offset points", ha="right", fontsize=SMALL, color=FAINT
        )
        for row, cell in enumerate(cells):
            axes.text(right, row, cell, ha="right", va="center", fontsize=NORMAL)


def _footnote(compared: SideBySide, baseline: Timeline) -> str:
    measured = counted(compared.scenario.iterations, "measured iteration")
    worker = baseline.job.workers[baseline.worker]
    return (
        f"Bars: mean of {measured}; forward and backward of the worker that computes longest, and what is left. "
        f"Blocking: mean over workers. Timelines: the first measured iteration of {worker}, the worker blocked longest "
        f"under {baseline.name}. {LANES}"
    )
