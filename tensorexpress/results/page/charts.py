"""Charts of a page: rows of bars, dots over iterations, and the network; small SVG without fixed widths.

Positions across are per cent of the room there is, so that letters keep their size on every screen and on paper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tensorexpress.plan import Plan
from tensorexpress.results.fabric_plot import positions
from tensorexpress.results.page.markup import Markup, tag
from tensorexpress.trace import Trace

#: Classes of bars that the style gives colours: of compute, and of standing still.
FORWARD, BACKWARD, BLOCKED = "forward", "backward", "blocked"

#: Nodes from which on a drawing of the network would show nothing.
MOST_NODES = 220

#: Hosts up to which each is named in a drawing.
_MOST_NAMED = 40

_BAR_PX, _DOTS_PX = 18, 120


@dataclass(frozen=True)
class Bar:
    """One row of a chart: parts one after another, from `start` on, and what is written beside them."""

    name: str
    parts: Sequence[tuple[str, float]]
    beside: str
    start: float = 0.0


def bars(rows: Sequence[Bar], label: str, unit: str, mark: float | None = None) -> Markup:
    """Return rows of bars on one axis from zero, with a dashed line at `mark`."""
    ends = [row.start + sum(length for _, length in row.parts) for row in rows]
    top = max([*ends, mark or 0.0], default=0.0) * 1.02 or 1.0
    lines = [
        [
            tag("span", row.name, class_="bar-name"),
            tag("svg", *_parts(row, top, unit), *_mark(mark, top), height=_BAR_PX, aria_hidden="true"),
            tag("span", row.beside, class_="bar-beside"),
        ]
        for row in rows
    ]
    axis = [tag("span"), tag("svg", *_ticks(top, unit), height=18, aria_hidden="true", class_="axis"), tag("span")]
    said = "; ".join(f"{row.name}: {row.beside}" for row in rows)
    return tag("div", *lines, axis, class_="bars", role="img", aria_label=f"{label}. {said}")


def _parts(row: Bar, top: float, unit: str) -> list[Markup]:
    found, left = [], row.start
    for kind, length in row.parts:
        if length > 0:
            x, width = f"{100 * left / top:.3f}%", f"{100 * length / top:.3f}%"
            title = tag("title", f"{row.name}: {kind} {length:.2f} {unit}")
            found.append(tag("rect", title, class_=kind, x=x, y=1, width=width, height=_BAR_PX - 2))
        left += length
    return found


def _mark(mark: float | None, top: float) -> list[Markup]:
    if mark is None:
        return []
    x = f"{100 * mark / top:.3f}%"
    return [tag("line", class_="mark", x1=x, x2=x, y1=0, y2=_BAR_PX)]


def _ticks(top: float, unit: str) -> list[Markup]:
    """Return about four round numbers below an axis."""
    found: list[Markup] = []
    for value in round_values(top, 4):
        x = f"{100 * value / top:.3f}%"
        text = f"{value:g} {unit}" if not found else f"{value:g}"
        found.append(tag("text", text, x=x, y=13, text_anchor="middle" if found else "start"))
    return found


def round_values(top: float, about: int) -> list[float]:
    """Return about so many round numbers from 0 to `top`.

    >>> round_values(240.0, 4)
    [0.0, 50.0, 100.0, 150.0, 200.0]
    """
    rough = top / about
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(step for step in (1, 2, 5, 10) if step * power >= rough * 0.75) * power
    return [float(f"{number * step:.6g}") for number in range(int(top / step) + 1)]


def dots(series: dict[str, Sequence[float]], first: int, label: str, unit: str) -> Markup:
    """Return values over iterations: a row of dots for each name, in its own colour and form, from zero."""
    top = max(max(values) for values in series.values()) * 1.08 or 1.0
    longest = max(len(values) for values in series.values())
    found = []
    for value in round_values(top, 3):
        y = _DOTS_PX * (1 - value / top)
        found.append(tag("line", class_="rule", x1=0, x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}"))
        found.append(tag("text", f"{value:g} {unit}" if not value else f"{value:g}", x=2, y=f"{y - 3:.1f}"))
    for number, (name, values) in enumerate(series.items()):
        places = [(6 + 92 * (i + 0.5) / longest, _DOTS_PX * (1 - value / top)) for i, value in enumerate(values)]
        colour = f"series{number % 8}"
        for (x1, y1), (x2, y2) in pairwise(places):
            ends = {"x1": f"{x1:.2f}%", "y1": f"{y1:.1f}", "x2": f"{x2:.2f}%", "y2": f"{y2:.1f}"}
            found.append(tag("line", class_=f"{colour} series", **ends))
        for i, ((x, y), value) in enumerate(zip(places, values, strict=True)):
            title = tag("title", f"{name}, iteration {first + i}: {value:.2f} {unit}")
            found.append(tag("circle", title, class_=colour, cx=f"{x:.2f}%", cy=f"{y:.1f}", r=3))
    drawn = tag("svg", *found, height=_DOTS_PX + 6, class_="dots", role="img", aria_label=label)
    keys = [tag("li", tag("i", class_=f"series{number % 8}"), name) for number, name in enumerate(series)]
    return tag("div", drawn, tag("ul", keys, class_="key"))


def network(plan: Plan, trace: Trace) -> Markup | None:
    """Return the network with links by how busy they were, in the direction in which they were busier."""
    cluster = plan.scenario.cluster
    if len(cluster.nodes) > MOST_NODES:
        return None
    places = positions(cluster)
    widest = max(Counter(level for _, level in places.values()).values())
    tiers = 1 + max(level for _, level in places.values())
    pace, width, height = 44 if widest <= _MOST_NAMED else 18, 0, 40 + 90 * (tiers - 1)
    width = 60 + pace * (widest - 1)
    across = [x for x, _ in places.values()]
    spread = max(across) - min(across) or 1.0

    def at(node: str) -> tuple[float, float]:
        x, level = places[node]
        centred = (x - min(across)) / spread if max(across) > min(across) else 0.5
        return 30 + centred * (width - 60), 20 + 90 * (tiers - 1 - level)

    busy = busy_shares(trace).reshape(-1, 2).max(axis=1)
    found = []
    for index in np.argsort(busy, kind="stable").tolist():
        link = cluster.links[index]
        (x1, y1), (x2, y2) = at(link.a), at(link.b)
        title = tag("title", f"{link.a} to {link.b}: busy {busy[index]:.0%} of the run")
        ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
        found.append(
            tag(
                "line",
                title,
                class_=f"load{load_class(busy[index])}",
                stroke_width=f"{1 + 5 * busy[index]:.1f}",
                **ends,
            )
        )
    roles = _roles(plan)
    for node in places:
        x, y = at(node)
        role = roles.get(node, "host" if node in cluster.hosts else "switch")
        title = tag("title", f"{node}: {role}")
        side = 7 if node in cluster.hosts else 11
        square = {"x": f"{x - side:.1f}", "y": f"{y - side:.1f}", "width": 2 * side, "height": 2 * side}
        rounding = side if role == "worker" else 2
        found.append(tag("rect", title, class_=f"node {role.replace(' ', '-')}", rx=rounding, **square))
        if widest <= _MOST_NAMED:
            is_host = node in cluster.hosts
            place = {"x": f"{x if is_host else x + side + 4:.1f}", "y": f"{y + 20 if is_host else y + 4:.1f}"}
            found.append(
                tag("text", _short(node), text_anchor="middle" if is_host else "start", class_="halo", **place)
            )
    box = f"0 -8 {width + 40} {height + 16}"
    label = "The network: links are the wider the busier they were; the table of links has the numbers"
    drawn = tag("svg", *found, viewBox=box, width=width + 40, class_="network", role="img", aria_label=label)
    return tag("div", drawn, class_="scroll")


def busy_shares(trace: Trace) -> NDArray[np.float64]:
    """Return for every directed link the part of the run during which it was busy."""
    return np.asarray(trace.links["busy_ps"] / trace.end_ps)


def load_class(share: float) -> int:
    """Return the colour of a load, 0 to 4.

    >>> [load_class(share) for share in (0, 0.3, 0.95)]
    [0, 1, 4]
    """
    return min(4, int(share * 5))


def _roles(plan: Plan) -> dict[str, str]:
    cluster = plan.scenario.cluster
    roles = {cluster.hosts[host]: "worker" for job in plan.jobs for host in job.job.workers}
    roles |= {cluster.hosts[host]: "server" for job in plan.jobs for host in job.job.servers}
    sums = (switch for job in plan.jobs for tree in job.sums for switch in tree.switches)
    return roles | {cluster.switches[switch.switch]: "switch that sums" for switch in sums}


def _short(name: str) -> str:
    return name if len(name) <= 7 else name[:6] + "…"
