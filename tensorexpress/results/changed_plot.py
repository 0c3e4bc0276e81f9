"""A figure of a cluster that changed: how long iterations took over time, with what changed when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from tensorexpress.results.changed import Disturbance
from tensorexpress.results.figure import FAINT, PALETTE, SMALL, cut, plain
from tensorexpress.trace import JobTrace, iterations_ps
from tensorexpress.units import PS_PER_MS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

#: Of the times in which something is otherwise.
_SHADE = "#F0E442"

#: Letters of a description.
_LONGEST = 60


def draw_iterations(figure: Figure | SubFigure, jobs: Mapping[str, JobTrace], found: Sequence[Disturbance]) -> None:
    """Draw how long the iterations of a job took under each policy; what changes at times is shaded, and numbered.

    Iterations with which something changes have a mark.
    """
    axes = figure.subplots()
    for (name, job), colour in zip(jobs.items(), PALETTE, strict=False):
        starts_ms = job.forward_start_ps[:, :, -1].min(axis=1) / PS_PER_MS
        lengths_ms = iterations_ps(job) / PS_PER_MS
        axes.stairs(lengths_ms, starts_ms, baseline=None, color=colour, linewidth=1.4, label=cut(name, 40))
        marked = sorted({place for one in found if one.times_ps is None for place in one.met(job)})
        middle_ms = (starts_ms[1:] + starts_ms[:-1]) / 2
        axes.plot(middle_ms[marked], lengths_ms[marked], "v", color=colour, markersize=4)
    end_ms = max(float(job.forward_start_ps[-1, :, -1].min()) for job in jobs.values()) / PS_PER_MS
    for number, one in enumerate(found, 1):
        _shade(axes, number, one, end_ms)
    axes.set_xlim(0, end_ms)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time (ms)", fontsize=SMALL)
    axes.set_ylabel("iteration (ms)", fontsize=SMALL)
    axes.tick_params(axis="y", labelsize=SMALL)
    axes.legend(frameon=False, fontsize=SMALL, loc="lower right", ncols=len(jobs))
    plain(axes)
    descriptions = (f"{number}: {cut(one.description, _LONGEST)}" for number, one in enumerate(found, 1))
    figure.supxlabel(fill("; ".join(descriptions), width=175), x=0.012, ha="left", fontsize=7, color=FAINT)


def _shade(axes: Axes, number: int, one: Disturbance, end_ms: float) -> None:
    """Shade the time in which something is otherwise, and number it."""
    if one.times_ps is None:
        return
    first_ms, last_ms = (min(time_ps / PS_PER_MS, end_ms) for time_ps in one.times_ps)
    if first_ms < last_ms:
        axes.axvspan(first_ms, last_ms, color=_SHADE, alpha=0.35, linewidth=0)
        axes.annotate(
            str(number), (first_ms, 1), xycoords=("data", "axes fraction"), xytext=(2, -2),
            textcoords="offset points", va="top", fontsize=SMALL, color=FAINT,
        )  # fmt: skip
