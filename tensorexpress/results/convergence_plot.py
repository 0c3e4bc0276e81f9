"""Figures of ways to commit: the loss over time, and how long updates were delayed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from tensorexpress.results.convergence import Convergence, curve
from tensorexpress.results.figure import (
    FAINT,
    NORMAL,
    PALETTE,
    SMALL,
    check_suffix,
    headed_parts,
    new_figure,
    save_figure,
)
from tensorexpress.units import PS_PER_SECOND

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Where nothing is dropped, bounded is fifo: dashes show both.
_DASHED = "bounded"

#: Losses above this many times the first are not drawn: they have diverged.
_DIVERGED = 1.3

#: Seeds after the first that are drawn, faintly.
_OTHER_SEEDS = 9


def plot_convergence(found: Convergence, path: str | os.PathLike[str]) -> None:
    """Draw loss and delays to a PNG, SVG or PDF file."""
    check_suffix(path)
    save_figure(draw_convergence(found), path, found.provenance)


def draw_convergence(found: Convergence) -> Figure:
    """Return the figure that `plot_convergence` saves."""
    figure = new_figure(10, 4.6, found.provenance)
    (part,) = headed_parts(figure, found.scenario, [4.0])
    losses, delays = part.subplots(1, 2, width_ratios=[1.8, 1])
    _draw_losses(losses, found)
    _draw_delays(delays, found)
    for axes in (losses, delays):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=SMALL)
        axes.grid(color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure


def _draw_losses(axes: Axes, found: Convergence) -> None:
    target = found.scenario.commits.target_loss
    start = next(iter(found.traces.values()))[0].start_loss
    longest = 0.0
    for colour, (mode, traces) in zip(PALETTE, found.traces.items(), strict=False):
        for number, trace in enumerate(traces[: 1 + _OTHER_SEEDS]):
            points = np.array(list(curve(trace)))
            seconds, losses = points[:, 0] / PS_PER_SECOND, points[:, 1]
            kept = losses <= _DIVERGED * start
            faint = number > 0
            (line,) = axes.plot(seconds[kept], losses[kept], color=colour, linewidth=0.8 if faint else 1.6)
            line.set_linestyle("--" if mode == _DASHED else "-")
            line.set(alpha=0.18) if faint else line.set(label=mode)
            if trace.reached_ps is not None:
                reached = trace.reached_ps / PS_PER_SECOND
                longest = max(longest, reached)
                axes.plot(
                    [reached], [target], "o", color=colour, markersize=2 if faint else 5, alpha=0.5 if faint else 1
                )
    axes.axhline(target, color=FAINT, linewidth=0.9, linestyle="--", zorder=1)
    axes.annotate(
        f"target {target:g}",
        (0.01, target),
        xycoords=("axes fraction", "data"),
        ha="left",
        va="top",
        fontsize=SMALL,
        color=FAINT,
    )
    axes.set_yscale("log")
    axes.set_ylim(0.85 * target, _DIVERGED * start)
    axes.yaxis.set_major_formatter(lambda number, _: f"{number:g}")
    axes.yaxis.set_minor_formatter(lambda number, _: f"{number:g}")
    axes.tick_params(axis="y", which="minor", labelsize=SMALL)
    axes.set_xlim(0, 1.05 * longest if longest else None)
    axes.set_xlabel("time, s", fontsize=NORMAL)
    axes.set_ylabel(f"loss over all samples, {found.scenario.commits.problem}", fontsize=NORMAL)
    axes.legend(framealpha=0.85, edgecolor="none", fontsize=SMALL, loc="upper right")


def _draw_delays(axes: Axes, found: Convergence) -> None:
    for colour, (mode, traces) in zip(PALETTE, found.traces.items(), strict=False):
        delays = np.sort(np.concatenate([trace.delay for trace in traces]))
        if len(delays) == 0:
            continue
        values, counts = np.unique(delays, return_counts=True)
        shares = np.cumsum(counts) / len(delays)
        axes.step([0, *values, values[-1]], [0, *shares, 1], where="post", color=colour, linewidth=1.6, label=mode)
    axes.axvline(found.scenario.commits.tau, color=FAINT, linewidth=0.9, linestyle="--", zorder=1)
    axes.annotate(
        "tau",
        (found.scenario.commits.tau, 0.02),
        xytext=(3, 0),
        textcoords="offset points",
        fontsize=SMALL,
        color=FAINT,
    )
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda number, _: f"{number:.0%}")
    axes.set_xlabel("delay of a commit, versions", fontsize=NORMAL)
    axes.set_ylabel("share of commits up to it", fontsize=NORMAL)
