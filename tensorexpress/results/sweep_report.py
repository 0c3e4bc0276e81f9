"""Sweeps as a table, as CSV and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tensorexpress import scenario as scenarios
from tensorexpress.policy import describe
from tensorexpress.results.bands import THRESHOLD, summary
from tensorexpress.results.columns import COLUMNS
from tensorexpress.results.heading import heading
from tensorexpress.results.report import csv_text
from tensorexpress.results.swept import Point, Sweep
from tensorexpress.text import grid

#: The columns of the table; files have all of them.
_SHOWN = tuple(COLUMNS[name] for name in ("iteration_ms", "blocking_ms", "speedup", "of_optimal"))


def as_csv(keys: Sequence[str], points: Iterable[Point], header: bool = True) -> str:
    """Return one line per point, policy and job."""
    return csv_text([row for point in points for row in point.rows(keys)], header)


def as_json(sweep: Sweep, threshold: float = THRESHOLD) -> dict[str, Any]:
    """Return everything as a JSON object; `rows` are those of the CSV."""
    return {
        "provenance": sweep.provenance.to_json(),
        "scenario": scenarios.to_json(sweep.scenario),
        "vary": {key: list(values) for key, values in sweep.vary.items()},
        "policies": {policy.name: describe(policy) for policy in sweep.policies},
        "points": {"finished": len(sweep.points), "total": sweep.total},
        "rows": sweep.rows(),
        "threshold": threshold,
        "summary": summary(sweep, threshold),
    }


def as_table(sweep: Sweep, threshold: float = THRESHOLD) -> str:
    """Return the table for a terminal, with what it says in words below."""
    several = len(sweep.scenario.jobs) > 1
    results = [(point, result) for point in sweep.points for result in point.results]
    head = [*sweep.vary, "policy", *(["job"] if several else [])]
    labels = [[*point.values, result.policy, *([result.job] if several else [])] for point, result in results]
    widths = [max(map(len, column)) for column in zip(head, *labels, strict=True)]

    def joined(cells: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))

    headings = [column.heading or ("", "") for column in _SHOWN]
    rows = [["", *(first for first, _ in headings)], [joined(head), *(second for _, second in headings)]]
    for label, (_, result) in zip(labels, results, strict=True):
        rows.append([joined(label), *(column.shown(result) for column in _SHOWN)])
    title = f"{heading(sweep.scenario, said=tuple(sweep.vary))} (at the first point)"
    return "\n".join([title, "", *grid(rows), "", *(f"- {sentence}" for sentence in summary(sweep, threshold))])
