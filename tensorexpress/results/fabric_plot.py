"""Figures of networks under a plan: links by what they have to carry, and the switches that sum."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tensorexpress.cluster import Cluster, describe
from tensorexpress.fabric import Floats
from tensorexpress.plan import Plan, link_loads
from tensorexpress.policy import describe as describe_policy
from tensorexpress.results.figure import FAINT, NORMAL, PALETTE, SMALL, check_suffix, cut, new_figure, save_figure
from tensorexpress.results.provenance import provenance
from tensorexpress.units import format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Nodes of a tier up to which each is labelled.
_MOST_LABELS = 60

#: Colours of links, from idle to the busiest.
_COLOURS = ("#D9E2E8", "#56B4E9", "#0072B2", "#E69F00", "#D55E00")

_IDLE = "#EEF1F3"


def plot_fabric(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Draw the network of a plan to a PNG, SVG or PDF file."""
    check_suffix(path)
    save_figure(draw_fabric(plan), path, provenance(plan.scenario, [plan.policy]))


def draw_fabric(plan: Plan) -> Figure:
    """Return the figure that `plot_fabric` saves."""
    scenario = plan.scenario
    places = positions(scenario.cluster)
    widest = max(Counter(y for _, y in places.values()).values())
    tiers = 1 + max(y for _, y in places.values())
    figure = new_figure(min(16, max(8, 0.28 * widest)), 1.6 + 1.25 * tiers, provenance(scenario, [plan.policy]))
    figure.suptitle(
        f"{cut(scenario.name, 40)}: what links carry under {cut(plan.policy.name, 60)}\n"
        f"{describe_policy(plan.policy)}\n{cut(describe(scenario.cluster), 100)}",
        x=0.012, ha="left", fontsize=NORMAL, linespacing=1.5, parse_math=False,
    )  # fmt: skip
    axes = figure.subplots()
    busy_ps = _busy_ps(plan)
    _draw_links(axes, scenario.cluster, places, busy_ps)
    _draw_nodes(axes, plan, places)
    axes.margins(0.03, 0.12)
    axes.set_axis_off()
    _draw_scale(figure, axes, busy_ps)
    return figure


def _busy_ps(plan: Plan) -> Floats:
    """Return how long every link is occupied in an iteration, in the direction in which it is longer."""
    loads = [link_loads(job, plan.scenario, plan.paths) for job in plan.jobs]
    directed = np.sum([(shared + own).sum(axis=1) for shared, own in loads], axis=0)
    busiest: Floats = directed.reshape(-1, 2).max(axis=1).astype(np.float64)
    return busiest


def positions(cluster: Cluster) -> dict[str, tuple[float, int]]:
    """Return where nodes stand: hosts below their switches, switches by how far they are from hosts.

    In a tier, nodes stand above the middle of what they are joined to below.
    """
    neighbours: dict[str, list[str]] = {node: [] for node in cluster.nodes}
    for link in cluster.links:
        neighbours[link.a].append(link.b)
        neighbours[link.b].append(link.a)
    tier = dict.fromkeys(cluster.hosts, 0)
    frontier = list(cluster.hosts)
    while frontier:
        above = [node for below in frontier for node in neighbours[below] if node not in tier]
        tier.update(dict.fromkeys(above, tier[frontier[0]] + 1))
        frontier = list(dict.fromkeys(above))
    order = {name: place for place, name in enumerate(cluster.switches)}
    hosts = sorted(cluster.hosts, key=lambda host: (order.get(neighbours[host][0], -1), cluster.hosts.index(host)))
    places: dict[str, tuple[float, int]] = {host: (float(place), 0) for place, host in enumerate(hosts)}
    for level in range(1, 1 + max(tier.values())):
        own = [name for name in cluster.switches if tier.get(name) == level]
        middle = {
            name: float(np.mean([places[below][0] for below in neighbours[name] if below in places])) for name in own
        }
        own.sort(key=lambda name: (round(middle[name], 6), order[name]))
        for place, name in enumerate(own):
            # Those with places of their own stand there; those above the same, side by side.
            spread = (place + 0.5) * len(hosts) / len(own) - 0.5
            places[name] = (middle[name] if len(set(middle.values())) == len(own) else spread, level)
    return places


def _draw_links(axes: Axes, cluster: Cluster, places: dict[str, tuple[float, int]], busy_ps: Floats) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("load", _COLOURS)
    share = busy_ps / max(1.0, busy_ps.max())
    # The busiest on top.
    for index in np.argsort(share, kind="stable").tolist():
        link = cluster.links[index]
        line = LineCollection([[places[link.a], places[link.b]]], zorder=1 + share[index])
        used = share[index] > 0
        line.set(color=colours(share[index]) if used else _IDLE, linewidth=0.6 + 3.4 * share[index] if used else 0.6)
        axes.add_collection(line)


def _draw_nodes(axes: Axes, plan: Plan, places: dict[str, tuple[float, int]]) -> None:
    cluster = plan.scenario.cluster
    workers = {cluster.hosts[host] for job in plan.jobs for host in job.job.workers}
    servers = {cluster.hosts[host] for job in plan.jobs for host in job.job.servers}
    trees = Counter(
        cluster.switches[switch.switch] for job in plan.jobs for tree in job.sums for switch in tree.switches
        if len(switch.children) > 1
    )  # fmt: skip
    summing = set(trees)
    few = max(Counter(y for _, y in places.values()).values()) <= _MOST_LABELS
    for label, names, marker, colour, size in (
        ("other host", set(cluster.hosts) - workers - servers, "o", "#C9CFD3", 22),
        ("worker", workers - servers, "o", PALETTE[0], 42),
        ("server", servers, "D", PALETTE[5], 52),
        ("switch", set(cluster.switches) - summing, "s", "#8A949B", 90),
        ("switch that sums, with its trees", summing, "s", PALETTE[2], 190),
    ):
        if names:
            across, up = zip(*(places[name] for name in sorted(names)), strict=True)
            axes.scatter(
                across, up, s=size, marker=marker, color=colour, edgecolor="white", linewidth=0.8, zorder=4, label=label
            )
    for name, (x, y) in places.items():
        if name in trees:
            axes.text(x, y, str(trees[name]), ha="center", va="center", color="white", fontsize=SMALL, zorder=5)
        if few:
            below = y == 0
            axes.annotate(
                name, (x, y), xytext=(0, -8) if below else (9, 3), textcoords="offset points",
                ha="center" if below else "left", va="top" if below else "bottom", fontsize=6.5, color=FAINT, zorder=5,
                parse_math=False, rotation=90 if below else 0,
            )  # fmt: skip
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.02), ncols=5, frameon=False, fontsize=SMALL)


def _draw_scale(figure: Figure, axes: Axes, busy_ps: Floats) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("load", _COLOURS)
    bar = figure.colorbar(ScalarMappable(cmap=colours), ax=axes, fraction=0.02, pad=0.01, shrink=0.7)
    bar.set_ticks([0, 0.5, 1.0], labels=["0", "", format_time(round(float(busy_ps.max())))])
    bar.set_label("occupied in an iteration", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    bar.outline.set_visible(False)
