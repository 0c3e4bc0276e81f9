"""Figures of explanations: a waterfall from fifo down to the optimum for every job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING

from tensorexpress.policy import describe
from tensorexpress.results.explanation import Explanation, JobExplanation
from tensorexpress.results.explanation_report import gains, percent, reached, signed_ms
from tensorexpress.results.figure import FAINT, PALETTE, check_suffix, new_figure, plain, save_figure
from tensorexpress.units import PS_PER_MS, format_ms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours of whole iterations, and of what a policy leaves to the optimum.
_TOTAL, _LEFT = "#5B7C99", "#B5C7D6"

_NUMBERS = ("iteration ms", "speed-up", "gain ms", "of possible", "alone ms", "last ms")


def plot_explanation(explanation: Explanation, path: str | os.PathLike[str]) -> None:
    """Draw an explanation to a PNG or SVG file: a waterfall from fifo down to the optimum for every job."""
    check_suffix(path)
    save_figure(draw_explanation(explanation), path, explanation.provenance)


def draw_explanation(explanation: Explanation) -> Figure:
    """Return the figure that `plot_explanation` saves."""
    rows = len(explanation.jobs[0].steps) + 2
    height = 0.9 + len(explanation.jobs) * (0.9 + 0.36 * rows)
    figure = new_figure(10, height, explanation.provenance)
    figure.suptitle(
        f"{explanation.scenario.name}: where the gain of {explanation.policy.name} comes from\n"
        f"{describe(explanation.policy)}",
        x=0.012,
        ha="left",
        fontsize=12,
        linespacing=1.4,
        parse_math=False,
    )
    panels = figure.subplots(len(explanation.jobs), 2, squeeze=False, sharey="row", width_ratios=[1, 0.95])
    for (axes, numbers), job in zip(panels, explanation.jobs, strict=True):
        bars = _bars(job, shorten(explanation.policy.name, 24, placeholder="..."))
        _draw_waterfall(axes, job, bars)
        _draw_numbers(numbers, bars)
        if len(explanation.jobs) > 1:
            axes.set_title(job.job, loc="left", fontsize=9, fontweight="bold", parse_math=False)
    return figure


@dataclass(frozen=True)
class _Bar:
    """A row of the waterfall: from where to where, in ps of iteration time, and what is written beside it."""

    label: str
    start_ps: float
    end_ps: float
    colour: str
    cells: tuple[str, ...] = ()


def _bars(job: JobExplanation, policy: str) -> list[_Bar]:
    def whole(label: str, iteration_ps: float) -> _Bar:
        return _Bar(label, job.floor_ps, iteration_ps, _TOTAL, reached(job, iteration_ps))

    bars = [whole("fifo", job.steps[0].iteration_ps)]
    for step in job.steps[1:]:
        before_ps = step.iteration_ps + step.gain_ps
        colour = PALETTE[2] if step.gain_ps >= 0 else PALETTE[5]
        cells = (*reached(job, step.iteration_ps), *gains(job, step))
        bars.append(_Bar(f"+ {step.name}", before_ps, step.iteration_ps, colour, cells))
    left = ("", "", signed_ms(job.left_ps), percent(job.share(job.left_ps)))
    bars.append(_Bar(f"left by {policy}", job.steps[-1].iteration_ps, job.optimal_ps, _LEFT, left))
    return [*bars, whole("optimum", job.optimal_ps)]


def _draw_waterfall(axes: Axes, job: JobExplanation, bars: Sequence[_Bar]) -> None:
    ends_ms = [((bar.start_ps - job.floor_ps) / PS_PER_MS, (bar.end_ps - job.floor_ps) / PS_PER_MS) for bar in bars]
    for row, (bar, (start, end)) in enumerate(zip(bars, ends_ms, strict=True)):
        axes.barh(row, end - start, left=start, height=0.62, color=bar.colour)
        if bar is not bars[-1]:
            axes.plot([end, end], [row - 0.31, row + 1.31], color=FAINT, linewidth=0.8)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=9)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 1.02 * max(map(max, ends_ms)) or 1.0)
    axes.set_xlabel(f"iteration time beyond {format_ms(job.floor_ps)} of compute (ms)", fontsize=8)
    plain(axes)


def _draw_numbers(axes: Axes, bars: Sequence[_Bar]) -> None:
    """Write the numbers of every bar beside it."""
    axes.set_axis_off()
    for column, header in enumerate(_NUMBERS, 1):
        right = column / len(_NUMBERS)
        axes.text(right, 1, header, transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color=FAINT)
        for row, bar in enumerate(bars):
            if column <= len(bar.cells):
                place = axes.get_yaxis_transform()
                axes.text(right, row, bar.cells[column - 1], transform=place, ha="right", va="center", fontsize=9)
