"""Figures of hot keys: coverage and what servers are spared over the memory of a switch, and bytes on the links."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from tensorexpress.hot_keys import RowTraffic, packets_in, traffic
from tensorexpress.results.figure import FAINT, PALETTE, check_suffix, cut, new_figure, save_figure
from tensorexpress.results.hot_report import HotStudy
from tensorexpress.sums import MOST_SLOTS, SLOT_BYTES
from tensorexpress.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Memories at which the curves are drawn.
_POINTS = 80

#: Curves go on to this many times the memory, or what would be best, to show what more of it would do.
_BEYOND = 4

#: How far below nothing the share is shown that servers are spared.
_LOWEST = -0.2

#: Of the memory that is best.
_BEST = "#1E6B4A"


def plot_hot(study: HotStudy, path: str | os.PathLike[str]) -> None:
    """Draw a study to a PNG, SVG or PDF file."""
    check_suffix(path)
    save_figure(draw_hot(study), path, study.provenance)


def draw_hot(study: HotStudy) -> Figure:
    """Return the figure that `plot_hot` saves."""
    figure = new_figure(9, 6.5, study.provenance)
    exchange = study.exchange
    about = f"rows of {exchange.width} values, {exchange.workers} workers, {exchange.servers} servers"
    title = f"{cut(study.title, 90)}\n{about}: hot rows summed in the switch, by its memory"
    figure.suptitle(title, x=0.012, ha="left", fontsize=12, linespacing=1.4, parse_math=False)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.1, 1])
    found = [traffic(study.heat, exchange, packets) for packets in _packets(study)]
    _draw_shares(upper, study, found)
    _draw_bytes(lower, study, found)
    for axes in (upper, lower):
        axes.axvline(study.memory_bytes, color=FAINT, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        axes.axvline(max(SLOT_BYTES, study.best.memory_bytes), color=_BEST, linewidth=1.1, zorder=1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.grid(color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
    _write(lower, study.memory_bytes, 2, "memory", FAINT)
    if study.best.packets:
        _write(lower, study.best.memory_bytes, 14, "best", _BEST)
    lower.set_xscale("log")
    lower.xaxis.set_major_formatter(lambda number, _: format_size(round(number)))
    lower.set_xlabel("memory of the switch for hot rows", fontsize=9)
    return figure


def _packets(study: HotStudy) -> list[int]:
    """Return the numbers of packets to draw, from one to all rows or to well beyond what is there or best."""
    wanted = _BEYOND * max(packets_in(study.memory_bytes), study.best_of_all.packets)
    most = max(2, min(wanted, MOST_SLOTS, study.exchange.packets_for(study.heat.keys)))
    return sorted({round(number) for number in np.geomspace(1, most, _POINTS)})


def _draw_shares(axes: Axes, study: HotStudy, found: list[RowTraffic]) -> None:
    memory = [one.memory_bytes for one in found]
    axes.plot(memory, [one.of_lookups for one in found], color=PALETTE[0], linewidth=2.2, label="of lookups")
    axes.plot(memory, [one.of_rows for one in found], color=PALETTE[4], linewidth=1.6, label="of rows sent")
    spared = [study.spared(one) for one in found]
    axes.plot(memory, spared, color=PALETTE[2], linewidth=1.6, linestyle="--", label="bytes that servers are spared")
    held = [study.at(one).held_out for one in found]
    known = [(size, one) for size, one in zip(memory, held, strict=True) if one is not None]
    if known:
        sizes, ones = zip(*known, strict=True)
        low, high = [one.low for one in ones], [one.high for one in ones]
        axes.fill_between(sizes, low, high, color=PALETTE[1], alpha=0.25, linewidth=0)
        label = "of lookups, in the half held out"
        axes.plot(sizes, [one.of_lookups for one in ones], color=PALETTE[1], linewidth=1.2, linestyle=":", label=label)
    axes.set_ylim(max(_LOWEST, min(0.0, *spared)), 1.02)
    axes.yaxis.set_major_formatter(lambda number, _: f"{number:.0%}")
    axes.set_ylabel("share that hot rows have", fontsize=9)
    axes.legend(framealpha=0.85, edgecolor="none", fontsize=8, loc="upper left")


def _draw_bytes(axes: Axes, study: HotStudy, found: list[RowTraffic]) -> None:
    memory, servers = [one.memory_bytes for one in found], study.exchange.servers
    for label, colour, read in (
        ("a worker's link", PALETTE[5], [one.worker_bytes for one in found]),
        ("a server's link", PALETTE[3], [one.server_bytes / servers for one in found]),
    ):
        axes.plot(memory, read, color=colour, linewidth=1.6, label=label)
    before_bytes = study.alone.busiest_bytes
    axes.axhline(before_bytes, color=FAINT, linewidth=1, linestyle="--", label="busiest with servers alone")
    # Beyond twice what it is without switches nobody needs to see how bad it gets.
    axes.set_ylim(0, 2 * before_bytes)
    axes.yaxis.set_major_formatter(lambda number, _: format_size(round(number)))
    axes.set_ylabel("bytes an iteration, one way", fontsize=9)
    axes.legend(framealpha=0.85, edgecolor="none", fontsize=8, loc="upper left")


def _write(axes: Axes, place: float, above: int, text: str, colour: str) -> None:
    """Write beside a memory what it is, so many points above the axis."""
    axes.annotate(
        f"{text}: {format_size(round(place))}",
        (place, 0),
        xycoords=("data", "axes fraction"),
        xytext=(4, above),
        textcoords="offset points",
        fontsize=8,
        color=colour,
    )
