"""Figures of predictions, and the style that all figures share.

Figures are drawn through matplotlib's object-oriented interface alone: no display is needed, and nothing that another
user of matplotlib in the same process could notice is changed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorexpress.chrome_trace import worker_transfers
from tensorexpress.cluster import describe
from tensorexpress.errors import InputError
from tensorexpress.files import write_atomic
from tensorexpress.graph import KINDS
from tensorexpress.scenario import Job, Scenario
from tensorexpress.sim.predict import Prediction
from tensorexpress.trace import Ints, JobTrace, Trace
from tensorexpress.units import PS_PER_MS, counted, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure, SubFigure

#: Colours that stay apart in every common form of colour blindness (Okabe and Ito).
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")

#: Endings of the files a figure can be saved as.
SUFFIXES = (".png", ".svg", ".pdf")

_DOTS_PER_INCH = 150

#: What keeps the time of drawing out of a file, by its ending.
_UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}

#: Colours of layers: from light to dark blue, far from that of blocking for colour-blind readers too.
LAYER_COLOURS = ("YlGnBu", 0.25, 1.0)

_FORWARD, _BACKWARD, _IDLE, _FAINT = "#B5C7D6", "#5B7C99", "#F0F0F0", "#555555"

#: How all figures show that a forward pass stands still.
BLOCKED_STYLE: dict[str, Any] = {"facecolor": "white", "edgecolor": "#D55E00", "hatch": "//////", "linewidth": 0.6}

#: Points in time at which a timeline looks at a transfer lane: more than a figure has pixels.
_SAMPLES = 2400

#: What footnotes say of the transfer lanes.
LANES = "Transfer lanes: at each moment the tensor, among those on their way, that arrives next."

#: A policy this close to the fastest counts as fast, so that of two that differ by a hair the first is drawn.
_AS_FAST = 1.001

_SMALL, _NORMAL, _LARGE = 8.0, 9.0, 12.0


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of `width` by `height` inches, whose parts are laid out without overlaps."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06)
    return Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout=layout)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of `path`; the same figure gives the same bytes."""
    suffix = check_suffix(path)
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tensorexpress"}):
        figure.savefig(content, format=suffix[1:], metadata=_UNDATED.get(suffix))
    write_atomic(path, content.getvalue())


def check_suffix(path: str | os.PathLike[str]) -> str:
    """Return the ending of a figure's file, or raise if no figure can be saved as that."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"cannot draw {os.fspath(path)!r}: its ending is {suffix!r}; accepted: {', '.join(SUFFIXES)}")
    return suffix


def plot_prediction(prediction: Prediction, path: str | os.PathLike[str]) -> None:
    """Draw a prediction to a PNG, SVG or PDF file: bars of all policies, and what one worker did under two of them."""
    check_suffix(path)
    save_figure(draw_prediction(prediction), path)


def draw_prediction(prediction: Prediction) -> Figure:
    """Return the figure that `plot_prediction` saves; it shows all jobs, one below the other."""
    jobs, shown = len(prediction.scenario.jobs), len(timeline_policies(prediction))
    inches = [1.35 + 0.34 * len(prediction.results), 0.85 + 1.3 * shown]
    figure = new_figure(10, 0.3 + jobs * sum(inches))
    parts = headed_parts(figure, prediction.scenario, inches)
    for job, (upper, lower) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        timelines = _prediction_timelines(prediction, job)
        bars, columns = upper.subplots(1, 2, width_ratios=[1.7, 1])
        _draw_bars(bars, prediction, job)
        _draw_columns(columns, prediction, job)
        draw_legend(upper)
        draw_timelines(lower, timelines, _footnote(prediction, timelines[0]))
    return figure


def draw_legend(figure: Figure | SubFigure) -> None:
    """Say below a figure how it shows what a worker does."""
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Patch(color=_FORWARD, label="forward"),
            Patch(color=_BACKWARD, label="backward"),
            Patch(**BLOCKED_STYLE, label="blocked: the forward pass waits for parameters"),
        ],
        loc="outside lower left",
        ncols=3,
        frameon=False,
        fontsize=_SMALL,
    )


def timeline_policies(prediction: Prediction) -> list[str]:
    """Return the policies whose timelines are drawn: the baseline and, if there are others, one of them.

    That is tensorexpress if it is compared, else the fastest; what `ideal` does no switch can do, so it comes last.
    """
    baseline = prediction.baseline.plan.policy.name
    times = {name: result.jobs[0].iteration_ps for name, result in prediction.results.items() if name != baseline}
    family = {name: name.partition(":")[0] for name in times}
    ours = {name: time for name, time in times.items() if family[name] == "tensorexpress"}
    times = ours or {name: time for name, time in times.items() if family[name] != "ideal"} or times
    fast = [name for name, time in times.items() if time <= _AS_FAST * min(times.values())]
    return [baseline, *fast[:1]]


def next_to_arrive(transfers: NDArray[np.void], times_ps: Ints) -> Ints:
    """Return, at each of some times in ascending order, the tensor under way that arrives next, or -1 if none is."""
    tensors = np.full(len(times_ps), -1, dtype=np.int64)
    by_sending = transfers[np.argsort(transfers["sent_ps"], kind="stable")]
    unsent = iter(zip(*(by_sending[name].tolist() for name in ("sent_ps", "delivered_ps", "tensor")), strict=True))
    coming = next(unsent, None)
    under_way: list[tuple[int, int]] = []
    for index, time in enumerate(times_ps.tolist()):
        while coming is not None and coming[0] <= time:
            heappush(under_way, coming[1:])
            coming = next(unsent, None)
        while under_way and under_way[0][0] < time:
            heappop(under_way)
        if under_way:
            tensors[index] = under_way[0][1]
    return tensors


def headed_parts(figure: Figure, scenario: Scenario, inches: Sequence[float]) -> list[SubFigure]:
    """Write above a figure what it is about, and cut it into parts of these heights for each job, under its name."""
    title = _cut(scenario.name, 80)
    figure.suptitle(title, x=0.012, ha="left", fontsize=_LARGE, fontweight="bold", parse_math=False)
    heights = list(inches) * len(scenario.jobs)
    parts: list[SubFigure] = list(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
    for job, part in zip(scenario.jobs, parts[:: len(inches)], strict=True):
        subtitle = _subtitle(scenario, job)
        part.suptitle(subtitle, x=0.012, ha="left", fontsize=_NORMAL, color=_FAINT, parse_math=False)
    return parts


def _subtitle(scenario: Scenario, job: Job) -> str:
    servers = f"and {counted(len(job.servers), 'server')}" if job.servers else "in a ring"
    hosts = f"{counted(len(job.workers), 'worker')} {servers}"
    name = f"{_cut(job.name, 30)}: " if len(scenario.jobs) > 1 else ""
    return _cut(f"{name}{job.workload.name} on {hosts}; {describe(scenario.cluster)}", 130)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _milliseconds(time_ps: float) -> str:
    """Return a time as text: in ms, with as many decimals as say something.

    >>> _milliseconds(65_866_511_012), _milliseconds(212_000_000), _milliseconds(29_614_080)
    ('65.9 ms', '0.212 ms', '29.61 us')
    """
    time_ms = time_ps / PS_PER_MS
    if 0 < time_ms < 0.1:
        return format_time(round(time_ps))
    decimals = next(decimals for decimals, least in enumerate((1000, 10, 1, 0)) if time_ms >= least)
    return f"{time_ms:.{decimals}f} ms"


def _parts_ps(job: JobTrace, warmup: int, iteration_ps: float) -> tuple[float, float, float]:
    """Split an iteration into forward and backward of the worker that computes longest, and what is left."""
    forward = job.forward_ps[1 + warmup :].sum(axis=2).mean(axis=0)
    backward = job.backward_ps[warmup:].sum(axis=2).mean(axis=0)
    slowest = int((forward + backward).argmax())
    left = iteration_ps - forward[slowest] - backward[slowest]
    return float(forward[slowest]), float(backward[slowest]), max(float(left), 0.0)


def _draw_bars(axes: Axes, prediction: Prediction, job: int) -> None:
    """Draw the iteration time of every policy as a bar of its parts, and the bound as a line."""
    rows, warmup = range(len(prediction.results)), prediction.scenario.warmup
    parts = np.array(
        [_parts_ps(one.trace.jobs[job], warmup, one.jobs[job].iteration_ps) for one in prediction.results.values()]
    )
    edges_ms = np.cumsum(parts, axis=1) / PS_PER_MS
    axes.barh(rows, edges_ms[:, 0], height=0.62, color=_FORWARD)
    axes.barh(rows, edges_ms[:, 1] - edges_ms[:, 0], left=edges_ms[:, 0], height=0.62, color=_BACKWARD)
    axes.barh(rows, edges_ms[:, 2] - edges_ms[:, 1], left=edges_ms[:, 1], height=0.62, **BLOCKED_STYLE)
    bound_ps, longest_ms = prediction.optimal_ps[job], float(edges_ms.max())
    _draw_bound(axes, bound_ps, right=bound_ps / PS_PER_MS > longest_ms / 2)
    axes.set_yticks(rows, [_policy_label(name) for name in prediction.results], fontsize=_NORMAL, linespacing=1.0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, longest_ms * 1.01)
    axes.set_xlabel("iteration time (ms)", fontsize=_SMALL)
    _plain(axes)


def _policy_label(name: str) -> str:
    """Return a policy's name in at most two lines, broken between its choices."""
    choices = name.replace(":", ": ").replace(",", ", ")
    return fill(choices, 34, max_lines=2, placeholder=" ...", break_on_hyphens=False)


def _draw_bound(axes: Axes, bound_ps: float, right: bool) -> None:
    axes.axvline(bound_ps / PS_PER_MS, color="black", linestyle="--", linewidth=1.2)
    axes.annotate(
        f"no schedule can beat this: {_milliseconds(bound_ps)}",
        xy=(bound_ps / PS_PER_MS, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right" if right else "left",
        fontsize=_SMALL,
    )


def _draw_columns(axes: Axes, prediction: Prediction, job: int) -> None:
    """Write the numbers of every policy beside its bar."""
    results = prediction.results
    columns = {
        "iteration": [_milliseconds(result.jobs[job].iteration_ps) for result in results.values()],
        "blocking": [_milliseconds(result.jobs[job].blocking_ps) for result in results.values()],
        "speed-up": [f"{prediction.speedup(name, job):.2f}×" for name in results],
        "of optimal": [f"{100 * prediction.of_optimal(name, job):.1f} %" for name in results],
    }
    axes.set_axis_off()
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(results) - 0.5, -0.5)
    for right, (header, cells) in enumerate(columns.items(), 1):
        axes.annotate(
            header, (right, -0.5), (0, 3), textcoords="offset points", ha="right", fontsize=_SMALL, color=_FAINT
        )
        for row, cell in enumerate(cells):
            axes.text(right, row, cell, ha="right", va="center", fontsize=_NORMAL)


@dataclass(frozen=True)
class Timeline:
    """What one worker of a job of a trace did in one iteration, to be drawn under a name."""

    name: str
    trace: Trace
    worker: int
    iteration: int
    number: int = 0

    @property
    def job(self) -> JobTrace:
        """The job."""
        return self.trace.jobs[self.number]


def draw_timelines(figure: Figure | SubFigure, timelines: Sequence[Timeline], footnote: str) -> None:
    """Draw timelines of jobs with the same layers one below the other, on one time axis."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    names = timelines[0].job.layers
    # The brightest colours of the map vanish on white.
    name, lightest, darkest = LAYER_COLOURS
    light_to_dark = ListedColormap(colormaps[name](np.linspace(lightest, darkest, 256))).with_extremes(under=_IDLE)
    colours = ScalarMappable(Normalize(0, max(len(names) - 1, 1)), light_to_dark)
    panels = figure.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
    spans_ms = [_draw_timeline(axes, timeline, colours) for axes, timeline in zip(panels, timelines, strict=True)]
    panels[-1].set_xlim(0, 1.002 * max(spans_ms))
    panels[-1].set_xlabel("time since the worker began its last forward layer (ms)", fontsize=_SMALL)
    figure.supxlabel(fill(footnote, width=175), x=0.012, ha="left", fontsize=7, color=_FAINT)
    if len(names) > 1:
        bar = figure.colorbar(colours, ax=panels, pad=0.01, aspect=15 * len(timelines))
        ticks = sorted({0, (len(names) - 1) // 2, len(names) - 1})
        bar.set_ticks(ticks, labels=[_cut(names[tick], 16) for tick in ticks])
        bar.ax.tick_params(labelsize=_SMALL, length=2)
        bar.ax.invert_yaxis()
        bar.set_label("layer, first on top", fontsize=_SMALL)


def most_blocked(trace: Trace, job: int = 0) -> int:
    """Return the worker of a job that stood still longest in the measured iterations."""
    return int(trace.jobs[job].waits_ps[trace.warmup :].sum(axis=(0, 2)).argmax())


def _prediction_timelines(prediction: Prediction, job: int) -> list[Timeline]:
    worker = most_blocked(prediction.baseline.trace, job)
    return [
        Timeline(name, prediction.results[name].trace, worker, prediction.scenario.warmup, job)
        for name in timeline_policies(prediction)
    ]


def _draw_timeline(axes: Axes, timeline: Timeline, colours: ScalarMappable) -> float:
    """Draw an iteration of a worker, up to the end of the next forward pass; return its length in ms."""
    job, worker, shown = timeline.job, timeline.worker, timeline.iteration
    start_ps, end_ps = int(job.forward_start_ps[shown, worker, -1]), int(job.forward_end_ps[shown + 1, worker, -1])
    span_ms = (end_ps - start_ps) / PS_PER_MS
    kinds = [kind for code, kind in enumerate(KINDS) if (job.transfers["kind"] == code).any()]
    lanes = ["compute", *kinds]
    _draw_compute(axes, job, worker, shown)
    transfers = job.transfers[job.transfers["iteration"] == shown]
    times_ps = np.linspace(start_ps, end_ps, _SAMPLES, endpoint=False).astype(np.int64)
    host = timeline.trace.hosts.index(job.workers[worker])
    for lane, kind in enumerate(kinds, 1):
        axes.imshow(
            colours.to_rgba(next_to_arrive(worker_transfers(transfers, host, kind), times_ps)[np.newaxis]),
            extent=(0, span_ms, lane - 0.4, lane + 0.4),
            aspect="auto",
            interpolation="nearest",
            zorder=2,
        )
    blocked = _milliseconds(job.waits_ps[shown, worker].sum())
    axes.set_title(
        f"{_cut(timeline.name, 64)}: worker {_cut(job.workers[worker], 20)} is blocked for {blocked}",
        loc="left",
        fontsize=_NORMAL,
        fontweight="bold",
        parse_math=False,
    )
    axes.set_yticks(range(len(lanes)), lanes, fontsize=_NORMAL)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    _plain(axes)
    return span_ms


def _draw_compute(axes: Axes, job: JobTrace, worker: int, shown: int) -> None:
    """Draw a last forward layer, the backward pass, and the next forward pass with its stops."""
    origin_ps = int(job.forward_start_ps[shown, worker, -1])

    def draw(start_ps: Ints, length_ps: Ints, **style: Any) -> None:
        starts_ms, lengths_ms = (start_ps - origin_ps) / PS_PER_MS, length_ps / PS_PER_MS
        spans = [(start, length) for start, length in zip(starts_ms, lengths_ms, strict=True) if length]
        axes.broken_barh(spans, (-0.4, 0.8), **style)

    waits_ps, next_start_ps = job.waits_ps[shown, worker], job.forward_start_ps[shown + 1, worker]
    backward_ps = job.backward_ps[shown, worker]
    draw(job.forward_start_ps[shown, worker, -1:], job.forward_ps[shown, worker, -1:], color=_FORWARD)
    draw(job.gradient_ps[shown, worker] - backward_ps, backward_ps, color=_BACKWARD)
    draw(next_start_ps, job.forward_ps[shown + 1, worker], color=_FORWARD)
    draw(next_start_ps - waits_ps, waits_ps, **BLOCKED_STYLE)


def _footnote(prediction: Prediction, baseline: Timeline) -> str:
    measured = counted(prediction.scenario.iterations, "measured iteration")
    worker = baseline.job.workers[baseline.worker]
    return (
        f"Bars: mean of {measured}; forward and backward of the worker that computes longest, and what is left. "
        f"Blocking: mean over workers. Timelines: the first measured iteration of {worker}, the worker blocked longest "
        f"under {baseline.name}. {LANES}"
    )


def _plain(axes: Axes) -> None:
    """Leave of a frame only what helps to read values."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=_SMALL)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
