"""Sections of a page about the network: loads of links and queues, and slots where switches sum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tensorexpress.queueing import DISCIPLINES
from tensorexpress.results.page.charts import busy_shares, load_class, network
from tensorexpress.results.page.contents import Case
from tensorexpress.results.page.markup import Markup, joined, section, table, tag
from tensorexpress.results.plan_report import memory_line, sum_lines
from tensorexpress.results.side_by_side import Result
from tensorexpress.trace import JobTrace
from tensorexpress.units import format_ms, format_rate, format_size

#: Links of a network that are listed, busiest first.
_MOST_LINKS = 10


def network_part(case: Case, number: int) -> Markup:
    """Return how busy links were, under the policies that the case speaks of."""
    shown = {name: case.compared.results[name] for name in case.spoken_of}
    last = list(shown.items())[-1]
    parts: list[Markup | None] = []
    drawing = network(last[1].plan, last[1].trace)
    if drawing is not None:
        parts += [tag("p", f"Under {last[0]}; the wider a link, the busier it was."), drawing, _network_key(last[1])]
    parts.append(_links(*last))
    for name, result in list(shown.items())[:-1]:
        parts.append(tag("details", tag("summary", f"Links under {name}"), _links(name, result)))
    return section(f"case{number}-network", "Links", parts, "h3")


def _network_key(result: Result) -> Markup:
    words = ["worker", "server", "switch"]
    if any(job.sums for job in result.plan.jobs):
        words.append("switch that sums")
    kinds = [
        tag("li", tag("svg", tag("rect", class_=f"node {word.replace(' ', '-')}", width=12, height=12,
            rx=6 if word == "worker" else 2), width=14, height=12), word)
        for word in words
    ]  # fmt: skip
    loads = [
        tag("li", tag("svg", tag("rect", class_=f"load{number} swatch", width=14, height=12), width=14, height=12),
            f"{20 * number} to {20 * number + 20} %")
        for number in range(5)
    ]  # fmt: skip
    return tag("ul", kinds, loads, class_="key")


def _links(name: str, result: Result) -> Markup:
    trace = result.trace
    busy = busy_shares(trace)
    busiest = np.argsort(-busy, kind="stable")[:_MOST_LINKS].tolist()
    carrying = int((trace.links["bytes"] > 0).sum())
    rows = [
        [
            trace.link_names[link],
            _load_cell(float(busy[link])),
            format_size(int(trace.links["bytes"][link])),
            format_rate(round(int(trace.links["bytes"][link]) * 8 * 10**12 / trace.end_ps)),
            format_size(int(trace.links["peak_bytes"][link])),
            *(str(trace.links[column][link]) for column in ("drops", "losses", "marks")),
        ]
        for link in busiest
    ]
    head = ["link", "busy", "bytes", "mean rate", "longest queue", "drops", "lost", "marked"]
    more = f", the busiest {len(rows)} of {carrying} that carry anything" if carrying > len(rows) else ""
    return table(head, rows, f"Links under {name}{more}")


def _load_cell(share: float) -> Markup:
    bar = tag("rect", class_=f"load{load_class(share)} swatch", width=f"{100 * min(share, 1.0):.1f}%", height=10)
    return tag("td", tag("svg", bar, width=60, height=10, aria_hidden="true"), f" {share:.1%}", data_busy=repr(share))


def queues_part(case: Case, number: int) -> Markup:
    """Return what every queue carried, under the same policies."""
    head = ["policy", "queue", "tensors", "bytes an iteration", "wait for the host", "under way"]
    rows = []
    for name in case.spoken_of:
        trace = case.compared.results[name].trace
        for job in trace.jobs:
            label = f"{name}, {job.name}" if len(trace.jobs) > 1 else name
            rows += [[label, *row] for row in _queue_rows(job, case.compared.results[name])]
    reading = (
        "Queue 0 is the most urgent; - is where switches have one for all. Means over slices of measured iterations, "
        "from ready to sent, and from sent to delivered."
    )
    parts = [table(head, rows, "What queues carried"), tag("p", reading, class_="faint")]
    return section(f"case{number}-queues", "Queues", parts, "h3")


def _queue_rows(job: JobTrace, result: Result) -> Iterator[list[str]]:
    warmup, has_queues = result.trace.warmup, DISCIPLINES[result.plan.policy.discipline].has_queues
    transfers = job.transfers[job.transfers["iteration"] >= warmup]
    iterations = max(1, len(job.backward_ps) - warmup)
    queues = transfers["queue"] if has_queues else np.zeros(len(transfers), dtype=np.int64)
    for queue in np.unique(queues).tolist():
        own = transfers[queues == queue]
        waited, under_way = own["sent_ps"] - own["ready_ps"], own["delivered_ps"] - own["sent_ps"]
        yield [
            str(queue) if has_queues else "-",
            str(len(np.unique(own["tensor"]))),
            format_size(int(own["bytes"].sum()) // iterations),
            format_ms(float(waited.mean())),
            format_ms(float(under_way.mean())),
        ]


def slots_part(case: Case, number: int) -> Markup | None:
    """Return the trees and slots of policies under which switches sum."""
    parts = []
    for name, result in case.compared.results.items():
        if result.plan.policy.in_switches:
            trees = [sum_lines(tree, case.compared.scenario) for job in result.plan.jobs for tree in job.sums]
            lines = [line for tree in trees for line in (*tree, "")]
            trace = result.trace
            at_servers = (
                [f"servers completed {trace.server_sums} sums, {trace.whole_sums} of which came whole from a switch"]
                if trace.server_sums
                else []
            )
            text = "\n".join([*lines, memory_line(result.plan), *at_servers])
            parts.append(joined(tag("h4", name), tag("pre", text, tabindex=0)))
    return section(f"case{number}-slots", "Sums in switches", parts, "h3") if parts else None
