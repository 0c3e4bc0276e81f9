"""Timelines: what one worker did in one iteration, as lanes of compute and of transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorexpress.graph import KINDS
from tensorexpress.results.chrome_trace import worker_transfers
from tensorexpress.results.figure import FAINT, NORMAL, SMALL, cut, plain
from tensorexpress.trace import Ints, JobTrace, Trace
from tensorexpress.units import PS_PER_MS, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure, SubFigure

#: Colours of layers: from light to dark blue, far from that of blocking for colour-blind readers too.
LAYER_COLOURS = ("YlGnBu", 0.25, 1.0)

#: Colours of what a worker computes.
FORWARD, BACKWARD = "#B5C7D6", "#5B7C99"

_IDLE = "#F0F0F0"

#: How all figures show that a forward pass stands still.
BLOCKED_STYLE: dict[str, Any] = {"facecolor": "white", "edgecolor": "#D55E00", "hatch": "//////", "linewidth": 0.6}

#: Points in time at which a timeline looks at a transfer lane: more than a figure has pixels.
_SAMPLES = 2400

#: What footnotes say of the transfer lanes.
LANES = "Transfer lanes: at each moment the tensor, among those on their way, that arrives next."


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
    panels[-1].set_xlabel("time since the worker began its last forward layer (ms)", fontsize=SMALL)
    figure.supxlabel(fill(footnote, width=175), x=0.012, ha="left", fontsize=7, color=FAINT)
    if len(names) > 1:
        bar = figure.colorbar(colours, ax=panels, pad=0.01, aspect=15 * len(timelines))
        ticks = sorted({0, (len(names) - 1) // 2, len(names) - 1})
        bar.set_ticks(ticks, labels=[cut(names[tick], 16) for tick in ticks])
        bar.ax.tick_params(labelsize=SMALL, length=2)
        bar.ax.invert_yaxis()
        bar.set_label("layer, first on top", fontsize=SMALL)


def draw_legend(figure: Figure | SubFigure) -> None:
    """Say below a figure how it shows what a worker does."""
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Patch(color=FORWARD, label="forward"),
            Patch(color=BACKWARD, label="backward"),
            Patch(**BLOCKED_STYLE, label="blocked: the worker waits for parameters"),
        ],
        loc="outside lower left",
        ncols=3,
        frameon=False,
        fontsize=SMALL,
    )


def layer_shades(count: int, lightest: float = LAYER_COLOURS[1], darkest: float = LAYER_COLOURS[2]) -> list[str]:
    """Return colours of layers as #rrggbb, from the first layer to the last, for drawings other than matplotlib's.

    >>> layer_shades(2)
    ['#c6e9b4', '#081d58']
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    colours = colormaps[LAYER_COLOURS[0]]
    return [to_hex(colours(place)) for place in np.linspace(lightest, darkest, count)]


def most_blocked(trace: Trace, job: int = 0) -> int:
    """Return the worker of a job that stood still longest in the measured iterations."""
    return int(trace.jobs[job].blocking_ps[trace.warmup :].sum(axis=0).argmax())


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
    blocked = milliseconds(job.blocking_ps[shown, worker])
    axes.set_title(
        f"{cut(timeline.name, 64)}: worker {cut(job.workers[worker], 20)} is blocked for {blocked}",
        loc="left",
        fontsize=NORMAL,
        fontweight="bold",
        parse_math=False,
    )
    axes.set_yticks(range(len(lanes)), lanes, fontsize=NORMAL)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    plain(axes)
    return span_ms


def _draw_compute(axes: Axes, job: JobTrace, worker: int, shown: int) -> None:
    """Draw a last forward layer, the backward pass, and the next forward pass with its stops."""
    origin_ps = int(job.forward_start_ps[shown, worker, -1])

    def draw(start_ps: Ints, length_ps: Ints, **style: Any) -> None:
        starts_ms, lengths_ms = (start_ps - origin_ps) / PS_PER_MS, length_ps / PS_PER_MS
        spans = [(start, length) for start, length in zip(starts_ms, lengths_ms, strict=True) if length]
        axes.broken_barh(spans, (-0.4, 0.8), **style)

    waits_ps, next_start_ps = job.waits_ps[shown, worker], job.forward_start_ps[shown + 1, worker]
    backward_ps, backward_start_ps = job.backward_ps[shown, worker], job.backward_start_ps[shown, worker]
    backward_waits_ps = job.backward_waits_ps[shown, worker]
    draw(job.forward_start_ps[shown, worker, -1:], job.forward_ps[shown, worker, -1:], color=FORWARD)
    draw(backward_start_ps, backward_ps, color=BACKWARD)
    draw(backward_start_ps - backward_waits_ps, backward_waits_ps, **BLOCKED_STYLE)
    draw(next_start_ps, job.forward_ps[shown + 1, worker], color=FORWARD)
    draw(next_start_ps - waits_ps, waits_ps, **BLOCKED_STYLE)


def milliseconds(time_ps: float) -> str:
    """Return a time as text: in ms, with as many decimals as say something.

    >>> milliseconds(65_866_511_012), milliseconds(212_000_000), milliseconds(29_614_080)
    ('65.9 ms', '0.212 ms', '29.61 us')
    """
    time_ms = time_ps / PS_PER_MS
    if 0 < time_ms < 0.1:
        return format_time(round(time_ps))
    decimals = next(decimals for decimals, least in enumerate((1000, 10, 1, 0)) if time_ms >= least)
    return f"{time_ms:.{decimals}f} ms"
