"""Routes planned again during a simulation: when, what was planned, and what iterations took before and after."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tensorexpress.replan import NewRoutes, moments
from tensorexpress.results.side_by_side import Result, SideBySide
from tensorexpress.text import grid
from tensorexpress.trace import JobTrace
from tensorexpress.units import PS_PER_MS, format_rate, format_time


def route_lines(compared: SideBySide) -> Iterator[str]:
    """Yield a table of all routes that were planned again, if that was asked for."""
    if compared.replan_ps is None:
        return
    yield f"routes planned again, {in_force(compared.replan_ps)}"
    rows = [["", "changed", "in", "planned", "planned", "iteration", "ms", ""]]
    rows.append(["policy", "at", "force", "as it was", "again", "before", "after", "what moves"])
    yield from grid([*rows, *route_rows(compared)])
    yield ""


def in_force(replan_ps: int) -> str:
    """Return from when on other routes are taken, in words."""
    return f"in force {format_time(replan_ps)} after links or background traffic change"


def route_rows(compared: SideBySide) -> list[list[str]]:
    """Return a row for all routes that were planned again, and one for every policy whose routes stay.

    Policy, when something changed and when they were in force, planned rates as it was and planned again, mean
    iterations before and after in ms, and what moves.
    """
    rows = []
    for name, result in compared.results.items():
        for each in result.routes:
            found = each.replanned
            times = (format_time(time_ps) for time_ps in (each.changed_ps, each.from_ps))
            rates = (" ".join(format_rate(round(bps)) for bps in of) for of in (found.before_bps, found.after_bps))
            taken = (" ".join("-" if ms is None else f"{ms:.2f}" for ms in of) for of in _taken_ms(result, each))
            rows.append([name, *times, *rates, *taken, "; ".join(found.moved)])
        if not result.routes:
            rows.append([name, *"------", "nothing: no other routes gain enough"])
    return rows


def routes_to_json(result: Result) -> list[dict[str, Any]]:
    """Return the routes that a plan got on the way."""
    names = [job.name for job in result.plan.scenario.jobs]
    found = []
    for each in result.routes:
        before, after = _taken_ms(result, each)
        found.append(
            {
                "changed_ps": each.changed_ps,
                "from_ps": each.from_ps,
                "moved": list(each.replanned.moved),
                "jobs": {
                    name: {
                        "planned_as_it_was_bps": each.replanned.before_bps[job],
                        "planned_again_bps": each.replanned.after_bps[job],
                        "iteration_before_ms": before[job],
                        "iteration_after_ms": after[job],
                    }
                    for job, name in enumerate(names)
                },
            }
        )
    return found


def _taken_ms(result: Result, routes: NewRoutes) -> tuple[list[float | None], list[float | None]]:
    """Return what iterations of every job took between a change and new routes, and from then until the next change."""
    later = (time_ps for time_ps in moments(result.plan.scenario) if time_ps >= routes.from_ps)
    until_ps = next(later, result.trace.end_ps)
    spans = (routes.changed_ps, routes.from_ps), (routes.from_ps, until_ps)
    before, after = ([_mean_ms(job, *span) for job in result.trace.jobs] for span in spans)
    return before, after


def _mean_ms(job: JobTrace, since_ps: int, until_ps: int) -> float | None:
    """Return how long iterations take on average that lie in a span as a whole; None where there are none."""
    starts = job.forward_start_ps[:, :, -1].min(axis=1).tolist()
    taken = [end - start for start, end in pairwise(starts) if since_ps <= start and end <= until_ps]
    return sum(taken) / len(taken) / PS_PER_MS if taken else None
