"""Figures: the style that all share, and how they are saved.

Figures are drawn through matplotlib's object-oriented interface alone: no display is needed, and nothing that another
user of matplotlib in the same process could notice is changed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorexpress.cluster import describe
from tensorexpress.errors import InputError
from tensorexpress.files import write_atomic
from tensorexpress.results.provenance import Provenance
from tensorexpress.scenario import Job, Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

#: Colours that stay apart in every common form of colour blindness (Okabe and Ito).
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")

#: Of what is said beside the data.
FAINT = "#555555"

#: Sizes of letters.
SMALL, NORMAL, LARGE = 8.0, 9.0, 12.0

#: Endings of the files a figure can be saved as.
SUFFIXES = (".png", ".svg", ".pdf")

_DOTS_PER_INCH = 150

#: At the right of every figure, for a line of small letters.
_MARGIN_INCHES = 0.1


def new_figure(width: float, height: float, made_by: Provenance) -> Figure:
    """Return an empty figure of `width` by `height` inches, whose parts are laid out without overlaps.

    What made it stands in a margin at its right edge, small enough not to disturb.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06, rect=(0, 0, 1 - _MARGIN_INCHES / width, 1))
    figure = Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout=layout)
    right, bottom = 1 - 0.2 * _MARGIN_INCHES / width, 0.5 * _MARGIN_INCHES / height
    line = figure.text(right, bottom, made_by.line, rotation=90, ha="right", va="bottom", parse_math=False)
    line.set(fontsize=4.5, color="#999999", in_layout=False)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str], made_by: Provenance) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of `path`; the same figure gives the same bytes."""
    suffix = check_suffix(path)
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tensorexpress"}):
        figure.savefig(content, format=suffix[1:], metadata=_metadata(suffix, made_by))
    write_atomic(path, content.getvalue())


def _metadata(suffix: str, made_by: Provenance) -> dict[str, str | None]:
    """Return what a file says of itself, in the words of its format; the time of drawing is none of it."""
    creator, title = f"tensorexpress {made_by.version}", made_by.scenario
    policies = f", policies {'; '.join(made_by.policies)}" if made_by.policies else ""
    subject = f"{made_by.line}{policies}"
    words: dict[str, dict[str, str | None]] = {
        ".png": {"Software": creator, "Title": title, "Description": subject},
        ".svg": {"Creator": creator, "Title": title, "Description": subject, "Date": None},
        ".pdf": {"Creator": creator, "Title": title, "Subject": subject, "CreationDate": None},
    }
    return words[suffix]


def check_suffix(path: str | os.PathLike[str]) -> str:
    """Return the ending of a figure's file, or raise if no figure can be saved as that."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"cannot draw {os.fspath(path)!r}: its ending is {suffix!r}; accepted: {', '.join(SUFFIXES)}")
    return suffix


def headed_parts(figure: Figure, scenario: Scenario, inches: Sequence[float]) -> list[SubFigure]:
    """Write above a figure what it is about, and cut it into parts of these heights for each job, under its name."""
    title = cut(scenario.name, 80)
    figure.suptitle(title, x=0.012, ha="left", fontsize=LARGE, fontweight="bold", parse_math=False)
    heights = list(inches) * len(scenario.jobs)
    parts: list[SubFigure] = list(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
    for job, part in zip(scenario.jobs, parts[:: len(inches)], strict=True):
        subtitle = _subtitle(scenario, job)
        part.suptitle(subtitle, x=0.012, ha="left", fontsize=NORMAL, color=FAINT, parse_math=False)
    return parts


def _subtitle(scenario: Scenario, job: Job) -> str:
    name = f"{cut(job.name, 30)}: " if len(scenario.jobs) > 1 else ""
    return cut(f"{name}{job.workload.name} on {job.placement}; {describe(scenario.cluster)}", 130)


def cut(text: str, most: int) -> str:
    """Return a text of at most so many letters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def plain(axes: Axes) -> None:
    """Leave of a frame only what helps to read values."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
