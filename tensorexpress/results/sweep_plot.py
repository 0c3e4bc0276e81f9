"""Figures of sweeps: curves over one key with the band where scheduling pays, or a map over two."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import cycle, groupby
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorexpress.errors import InputError
from tensorexpress.results.bands import PAYS, THRESHOLD, band_text, bands, is_spread, verdicts
from tensorexpress.results.columns import JobResult
from tensorexpress.results.figure import FAINT, PALETTE, check_suffix, new_figure, save_figure
from tensorexpress.results.swept import Sweep
from tensorexpress.units import PS_PER_MS
from tensorexpress.vary import formatter, number_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Cells along one side of a map up to which the number is written into each.
_MOST_WRITTEN = 14

#: Values of a key that can be written below an axis one by one.
_MOST_TICKS = 12

#: Letters that fit below an axis side by side.
_MOST_LETTERS = 60

_BAND, _PAYING = "#DCEFE6", "#1E6B4A"

_MARKERS = "osD^vP*X"


def plot_sweep(sweep: Sweep, path: str | os.PathLike[str], threshold: float = THRESHOLD) -> None:
    """Draw a sweep over one or two keys to a PNG or SVG file; of several jobs, the first."""
    check_plot(path, len(sweep.vary))
    save_figure(draw_sweep(sweep, threshold), path, sweep.provenance)


def check_plot(path: str | os.PathLike[str], keys: int) -> None:
    """Raise if a sweep over so many keys cannot be drawn to this file."""
    check_suffix(path)
    if keys > 2:
        raise InputError(f"cannot draw {os.fspath(path)!r}: {keys} keys are varied; accepted: one or two in a plot")


def draw_sweep(sweep: Sweep, threshold: float = THRESHOLD) -> Figure:
    """Return the figure that `plot_sweep` saves."""
    return _draw_curves(sweep, threshold) if len(sweep.vary) == 1 else _draw_map(sweep, threshold)


def _title(sweep: Sweep, what: str) -> str:
    job = sweep.scenario.jobs[0]
    several = len(sweep.scenario.jobs) > 1
    lines = [f"{sweep.scenario.name} (job {job.name})" if several else sweep.scenario.name, what]
    if not {"job.model", "job.csv"} & set(sweep.vary):
        lines[0] += f": {job.workload.name}"
    if len(sweep.points) < sweep.total:
        lines[1] += f" ({len(sweep.points)} of {sweep.total} points)"
    return "\n".join(shorten(line, 90, placeholder=" ...") for line in lines)


def _draw_curves(sweep: Sweep, threshold: float) -> Figure:
    """Draw iteration times above and speed-ups below, over one key."""
    job, key = sweep.scenario.jobs[0].name, next(iter(sweep.vary))
    figure = new_figure(9, 7, sweep.provenance)
    title = _title(sweep, f"iteration time, and speed-up over fifo, by {key}")
    figure.suptitle(title, x=0.012, ha="left", fontsize=12, linespacing=1.4, parse_math=False)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.15, 1])
    ordered = [judged.point for judged in verdicts(sweep, job, threshold)]
    places = sweep.numbers() or list(map(float, range(len(ordered))))
    by_policy = {
        policy.name: [
            next(row for row in point.results if (row.policy, row.job) == (policy.name, job)) for point in ordered
        ]
        for policy in sweep.policies
    }
    # Between names there is nothing that a line could show.
    joined = sweep.numbers() is not None
    _draw_times(upper, places, by_policy, joined)
    _draw_speedups(lower, places, by_policy, joined, threshold)
    _draw_bands(sweep, upper, lower, places, threshold)
    _label_values(lower, sweep, [point.values[0] for point in ordered], places)
    lower.set_xlabel(key, fontsize=9)
    figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _draw_times(axes: Axes, places: Sequence[float], by_policy: dict[str, list[JobResult]], joined: bool) -> None:
    fifo = by_policy["fifo"]
    for (name, rows), style in zip(by_policy.items(), _styles(joined), strict=False):
        axes.plot(places, [row.metrics.iteration_ps / PS_PER_MS for row in rows], **style, label=name)
    optimal_ms = [row.optimal_ps / PS_PER_MS for row in fifo]
    compute_ms = [row.metrics.compute_ps / PS_PER_MS for row in fifo]
    axes.plot(places, optimal_ms, **_bound_style("black", "--", joined), label="T*: no schedule is faster")
    axes.plot(places, compute_ms, **_bound_style(FAINT, ":", joined), label="compute alone")
    longest_ms = max(row.metrics.iteration_ps / PS_PER_MS for rows in by_policy.values() for row in rows)
    if is_spread([min(compute_ms), longest_ms]):
        axes.set_yscale("log")
        _plain_log_ticks(axes)
    else:
        axes.set_ylim(0, 1.05 * longest_ms)
    axes.set_ylabel("iteration time (ms)", fontsize=9)
    _plain(axes)


def _draw_speedups(
    axes: Axes, places: Sequence[float], by_policy: dict[str, list[JobResult]], joined: bool, threshold: float
) -> None:
    for rows, style in zip(by_policy.values(), _styles(joined), strict=False):
        axes.plot(places, [row.speedup for row in rows], **style)
    possible = [row.baseline_ps / row.optimal_ps for row in by_policy["fifo"]]
    axes.plot(places, possible, **_bound_style("black", "--", joined))
    axes.axhline(threshold, color=_PAYING, linewidth=0.8, linestyle=(0, (1, 2)))
    reached = [row.speedup for rows in by_policy.values() for row in rows] + possible
    margin = 0.05 * max(max(reached) - min(reached), 0.1)
    # Room above the curves for what is written about the band.
    axes.set_ylim(min(reached) - margin, max(reached) + 4 * margin)
    axes.set_ylabel("speed-up over fifo", fontsize=9)
    axes.yaxis.set_major_formatter("{x:.2f}×")
    _plain(axes)


def _styles(joined: bool) -> Iterator[dict[str, Any]]:
    """Yield the style of one policy after the other."""
    line = {"linewidth": 1.4, "markersize": 4} if joined else {"linestyle": "", "markersize": 7}
    for colour, marker in zip(cycle(PALETTE), cycle(_MARKERS)):
        yield {"color": colour, "marker": marker, **line}


def _bound_style(colour: str, line: str, joined: bool) -> dict[str, Any]:
    if joined:
        return {"color": colour, "linestyle": line, "linewidth": 1.3}
    return {"color": colour, "linestyle": "", "marker": "_", "markersize": 26, "markeredgewidth": 1.3, "zorder": 1}


def _draw_bands(sweep: Sweep, upper: Axes, lower: Axes, places: Sequence[float], threshold: float) -> None:
    """Shade where scheduling pays and write its limits; write beside it why it does not elsewhere."""
    job = sweep.scenario.jobs[0].name
    placed = list(zip(places, verdicts(sweep, job, threshold), strict=True))
    if sweep.numbers() is None:
        for place, judged in placed:
            if judged.verdict == PAYS:
                upper.axvspan(place - 0.4, place + 0.4, color=_BAND, zorder=0)
                lower.axvspan(place - 0.4, place + 0.4, color=_BAND, zorder=0)
            _write_at_top(lower, place, judged.verdict, _PAYING if judged.verdict == PAYS else FAINT)
        return
    for band in bands(sweep, job, threshold):
        left = min(places) if band.lower is None else band.lower
        right = max(places) if band.upper is None else band.upper
        for axes in (upper, lower):
            axes.axvspan(left, right, color=_BAND, zorder=0)
        text = f"pays (≥ {threshold:g}×)\n{band_text(sweep, band)}"
        _write_at_top(lower, _middle(places, left, right), text, _PAYING)
    for verdict, run in groupby(placed, key=lambda item: item[1].verdict):
        if verdict != PAYS:
            stretch = [place for place, _ in run]
            _write_at_top(lower, _middle(places, stretch[0], stretch[-1]), verdict, FAINT)


def _middle(places: Sequence[float], left: float, right: float) -> float:
    """Return the middle of a stretch as it appears on the scale that the places are drawn on."""
    return (left * right) ** 0.5 if is_spread(places) else (left + right) / 2


def _write_at_top(axes: Axes, place: float, text: str, colour: str) -> None:
    axes.annotate(
        text,
        (place, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, -4),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=8,
        color=colour,
    )


def _label_values(axes: Axes, sweep: Sweep, values: Sequence[str], places: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    if sweep.numbers() is None:
        axes.set_xticks(places, [shorten(value, 18, placeholder="...") for value in values])
        _slant_long(axes, values)
        return
    if is_spread(places):
        axes.set_xscale("log")
    if len(values) <= _MOST_TICKS:
        axes.set_xticks(places, values)
        axes.xaxis.set_minor_locator(NullLocator())
        _slant_long(axes, values)
    else:
        write = formatter(values[0])
        axes.xaxis.set_major_formatter(lambda number, _: write(number))
        if is_spread(places):
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_minor_locator(NullLocator())


def _slant_long(axes: Axes, values: Sequence[str]) -> None:
    """Slant the labels of the horizontal axis if they would touch."""
    if sum(map(len, values)) > _MOST_LETTERS:
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")


def _plain_log_ticks(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _plain(axes: Axes) -> None:
    """Leave of a frame only what helps to read values."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)


def mapped_policy(sweep: Sweep) -> str:
    """Return the policy that a map shows: the last that a real system could run, or else the last."""
    names = [policy.name for policy in sweep.policies if policy.name not in ("fifo", "ideal")]
    return names[-1] if names else sweep.policies[-1].name


def _draw_map(sweep: Sweep, threshold: float) -> Figure:
    """Draw the speed-up of one policy over two keys as colours."""
    from matplotlib.colors import Normalize

    name, job = mapped_policy(sweep), sweep.scenario.jobs[0].name
    (row_key, row_values), (column_key, column_values) = (
        (key, _in_order(values)) for key, values in sweep.vary.items()
    )
    speedups = np.full((len(row_values), len(column_values)), np.nan)
    for point in sweep.points:
        row = next(row for row in point.results if (row.policy, row.job) == (name, job))
        speedups[row_values.index(point.values[0]), column_values.index(point.values[1])] = row.speedup
    wide, high = len(column_values), len(row_values)
    inches = min(14, max(6.5, 2.6 + 0.62 * wide)), min(10, max(3.2, 1.6 + 0.42 * high))
    figure = new_figure(*inches, sweep.provenance)
    title = _title(sweep, f"speed-up of {name} over fifo")
    figure.suptitle(title, x=0.012, ha="left", fontsize=12, linespacing=1.4, parse_math=False)
    axes = figure.subplots()
    # Centred, so that white always means: as fast as fifo.
    span = max(np.nanmax(abs(speedups - 1)), 0.1)
    image = axes.pcolormesh(
        speedups, cmap="PRGn", norm=Normalize(1 - span, 1 + span), edgecolors="white", linewidth=0.5
    )
    if max(wide, high) <= _MOST_WRITTEN:
        _write_cells(axes, speedups, threshold, dark=0.7 * span)
    for axis, key, values in ((axes.xaxis, column_key, column_values), (axes.yaxis, row_key, row_values)):
        every = -(-len(values) // _MOST_TICKS)
        axis.set_ticks(np.arange(0, len(values), every) + 0.5, values[::every], fontsize=8)
        axis.set_label_text(key, fontsize=9)
    _slant_long(axes, column_values)
    axes.tick_params(length=0)
    axes.set_facecolor("#EEEEEE")
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=25, format="{x:.2f}×")
    bar.ax.set_ylim(min(np.nanmin(speedups), 1.0), max(np.nanmax(speedups), 1.1))
    bar.ax.tick_params(labelsize=8)
    bar.set_label(f"speed-up over fifo; bold: at least {threshold:g}×", fontsize=9)
    return figure


def _in_order(values: Sequence[str]) -> list[str]:
    found = [number_of(value) for value in values]
    known = [number for number in found if number is not None]
    if len(known) < len(found):
        return list(values)
    return [value for _, value in sorted(zip(known, values, strict=True))]


def _write_cells(axes: Axes, speedups: NDArray[np.float64], threshold: float, dark: float) -> None:
    """Write the numbers, in white where they are so far from 1 that black could not be read."""
    for (row, column), speedup in np.ndenumerate(speedups):
        if not np.isnan(speedup):
            axes.text(
                column + 0.5,
                row + 0.5,
                f"{speedup:.2f}",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if abs(speedup - 1) > dark else "black",
                fontweight="bold" if speedup >= threshold else "normal",
            )
