"""Reports of sweeps: table, CSV and JSON, and in words where scheduling pays and why it does not elsewhere."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from tensorexpress import scenario as scenarios
from tensorexpress.heading import heading
from tensorexpress.policy import describe
from tensorexpress.sim.sweep import Point, Row, Sweep
from tensorexpress.sim.vary import formatter, number_of
from tensorexpress.text import grid
from tensorexpress.units import PS_PER_MS

#: Speed-up over fifo from which scheduling is said to pay.
THRESHOLD = 1.05

#: Largest over smallest value from which a key is looked at on a logarithmic scale.
_SPREAD = 8

PAYS, COMPUTE_BOUND, NETWORK_BOUND, MISSED = "pays", "compute-bound", "network-bound", "missed"

_REASONS = {
    COMPUTE_BOUND: "compute-bound (transfers hide behind compute, whatever their order)",
    NETWORK_BOUND: "network-bound (the bytes need their time in any order)",
    MISSED: "out of reach of these policies (a better schedule could gain as much)",
}


def rows_of(keys: Iterable[str], point: Point) -> list[dict[str, str | float]]:
    """Return one flat row per policy and job of a point, as in CSV and JSON; times are in milliseconds."""
    return [{**dict(zip(keys, point.values, strict=True)), **_columns(row)} for row in point.rows]


def _columns(row: Row) -> dict[str, str | float]:
    metrics, latency = row.metrics, row.metrics.latency
    times_ps = {
        "iteration": metrics.iteration_ps,
        "compute": metrics.compute_ps,
        "optimal": row.optimal_ps,
        "blocking": metrics.blocking_ps,
        "blocking_worst": metrics.blocking_worst_ps,
        "latency_mean": latency.mean_ps,
        "latency_p50": latency.p50_ps,
        "latency_p99": latency.p99_ps,
        "latency_first": latency.first_ps,
    }
    return {
        "policy": row.policy,
        "job": row.job,
        **{f"{name}_ms": time_ps / PS_PER_MS for name, time_ps in times_ps.items()},
        "speedup": row.speedup,
        "of_optimal": row.of_optimal,
        "busiest_link": row.busiest_link,
        "utilisation": row.utilisation,
        "drops": row.drops,
        "retransmissions": row.retransmissions,
    }


def as_csv(keys: Sequence[str], points: Iterable[Point], header: bool = True) -> str:
    """Return one line per point, policy and job."""
    rows = [row for point in points for row in rows_of(keys, point)]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(sweep: Sweep, threshold: float = THRESHOLD) -> dict[str, Any]:
    """Return everything as a JSON object; `rows` are those of the CSV."""
    return {
        "scenario": scenarios.to_json(sweep.scenario),
        "vary": {key: list(values) for key, values in sweep.vary.items()},
        "policies": {policy.name: describe(policy) for policy in sweep.policies},
        "points": {"finished": len(sweep.points), "total": sweep.total},
        "rows": [row for point in sweep.points for row in rows_of(sweep.vary, point)],
        "threshold": threshold,
        "summary": summary(sweep, threshold),
    }


def as_table(sweep: Sweep, threshold: float = THRESHOLD) -> str:
    """Return the table for a terminal, with what it says in words below."""
    several = len(sweep.scenario.jobs) > 1
    head = [*sweep.vary, "policy", *(["job"] if several else [])]
    labels = [
        [*point.values, row.policy, *([row.job] if several else [])] for point in sweep.points for row in point.rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *labels, strict=True)]

    def joined(cells: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))

    rows = [
        ["", "iteration", "blocking", "speed-", "of"],
        [joined(head), "ms", "ms", "up", "optimum"],
    ]
    for label, row in zip(labels, (row for point in sweep.points for row in point.rows), strict=True):
        times = (row.metrics.iteration_ps, row.metrics.blocking_ps)
        cells = [*(f"{ps / PS_PER_MS:.2f}" for ps in times), f"{row.speedup:.2f}x", f"{row.of_optimal:.1%}"]
        rows.append([joined(label), *cells])
    title = f"{heading(sweep.scenario, said=tuple(sweep.vary))} (at the first point)"
    return "\n".join([title, "", *grid(rows), "", *(f"- {sentence}" for sentence in summary(sweep, threshold))])


@dataclass(frozen=True)
class Outcome:
    """What one point means for one job."""

    point: Point
    #: PAYS, or why not.
    verdict: str
    #: The fastest policy, and how many times faster it is than fifo.
    best: Row
    #: Iteration time under fifo over the optimum.
    possible: float


def outcomes(sweep: Sweep, job: str, threshold: float = THRESHOLD) -> list[Outcome]:
    """Return what each finished point means for a job, in ascending order if one key with numbers is varied."""
    found = [_outcome(point, job, threshold) for point in sweep.points]
    if numbers(sweep) is not None:
        found.sort(key=lambda outcome: number_of(outcome.point.values[0]) or 0.0)
    return found


def numbers(sweep: Sweep) -> list[float] | None:
    """Return the values of the finished points as ascending numbers if one key is varied and all are numbers."""
    found = [number_of(point.values[0]) for point in sweep.points] if len(sweep.vary) == 1 else [None]
    known = [number for number in found if number is not None]
    return sorted(known) if len(known) == len(found) else None


def is_spread(values: Sequence[float]) -> bool:
    """Tell whether numbers are better looked at on a logarithmic scale."""
    return min(values) > 0 and max(values) >= _SPREAD * min(values)


def _outcome(point: Point, job: str, threshold: float) -> Outcome:
    rows = [row for row in point.rows if row.job == job]
    # What a reference gains is nobody's gain, unless one asks for nothing else.
    rows = [row for row in rows if row.policy not in ("fifo", "ideal")] or rows
    best = max(rows, key=lambda row: row.speedup)
    possible = best.fifo_ps / best.optimal_ps
    if best.speedup >= threshold:
        verdict = PAYS
    elif possible >= threshold:
        verdict = MISSED
    else:
        verdict = COMPUTE_BOUND if best.fifo_ps < threshold * best.metrics.compute_ps else NETWORK_BOUND
    return Outcome(point, verdict, best, possible)


@dataclass(frozen=True)
class Band:
    """A stretch of a key in which scheduling pays; an end is None where it lies beyond the values tried."""

    lower: float | None
    upper: float | None


def bands(sweep: Sweep, job: str, threshold: float = THRESHOLD) -> list[Band]:
    """Return where scheduling pays for a job; ends are interpolated between the points beside them."""
    values = numbers(sweep)
    if not values:
        return []
    found = outcomes(sweep, job, threshold)
    logarithmic = is_spread(values)
    crossings: dict[int, float] = {}
    for index, (before, after) in enumerate(pairwise(found)):
        if (before.verdict == PAYS) != (after.verdict == PAYS):
            way = (threshold - before.best.speedup) / (after.best.speedup - before.best.speedup)
            a, b = values[index], values[index + 1]
            crossings[index] = a * (b / a) ** way if logarithmic else a + (b - a) * way
    paying = [index for index, outcome in enumerate(found) if outcome.verdict == PAYS]
    first = [index for index in paying if index - 1 not in paying]
    last = [index for index in paying if index + 1 not in paying]
    return [Band(crossings.get(a - 1), crossings.get(b)) for a, b in zip(first, last, strict=True)]


def summary(sweep: Sweep, threshold: float = THRESHOLD) -> list[str]:
    """Return sentences that say where scheduling pays, and why it does not elsewhere."""
    if not sweep.points:
        return []
    if len(sweep.policies) == 1:
        return ["Only fifo was simulated; name policies to compare it with."]
    found = []
    for job in sweep.scenario.jobs:
        prefix = f"{job.name}: " if len(sweep.scenario.jobs) > 1 else ""
        found += [prefix + sentence for sentence in _about_job(sweep, job.name, threshold)]
    return found


def _about_job(sweep: Sweep, job: str, threshold: float) -> Iterator[str]:
    found = outcomes(sweep, job, threshold)
    paying = [outcome for outcome in found if outcome.verdict == PAYS]
    if len({outcome.best.metrics for outcome in found}) == 1 < len(found):
        yield f"Nothing depends on {' or '.join(sweep.vary)} here: all points have the same result."
    if paying:
        most = max(paying, key=lambda outcome: outcome.best.speedup)
        yield (
            f"Scheduling pays (at least {threshold:g}x) {_where(sweep, job, paying, threshold)}; most at "
            f"{_label(sweep, most)}, where {most.best.policy} takes {_ms(most.best.metrics.iteration_ps)} and fifo "
            f"{_ms(most.best.fifo_ps)} ({most.best.speedup:.2f}x)."
        )
    else:
        most = max(found, key=lambda outcome: outcome.best.speedup)
        yield (
            f"Scheduling pays at none of the {len(found)} points: the largest gain is {most.best.speedup:.2f}x "
            f"at {_label(sweep, most)}."
        )
    elsewhere = [
        f"{_places(sweep, list(group))} it is {_REASONS[verdict]}"
        for verdict, group in _runs(sweep, found)
        if verdict != PAYS
    ]
    if elsewhere:
        sentence = "; ".join(elsewhere)
        yield f"{sentence[0].upper()}{sentence[1:]}."


def _runs(sweep: Sweep, found: list[Outcome]) -> Iterable[tuple[str, Iterable[Outcome]]]:
    """Group outcomes by verdict: stretches of a key with numbers, otherwise wherever they are."""
    ordered = found if numbers(sweep) else sorted(found, key=lambda outcome: outcome.verdict)
    return groupby(ordered, key=lambda outcome: outcome.verdict)


def _where(sweep: Sweep, job: str, paying: list[Outcome], threshold: float) -> str:
    if numbers(sweep) is None:
        return _places(sweep, paying)
    stretches = " and ".join(band_text(sweep, band) for band in bands(sweep, job, threshold))
    return f"for {next(iter(sweep.vary))} {stretches}"


def band_text(sweep: Sweep, band: Band) -> str:
    """Return the limits of a band in words."""
    write = formatter(sweep.points[0].values[0])

    def about(value: float) -> str:
        return f"about {write(float(f'{value:.2g}'))}"

    if band.lower is None and band.upper is None:
        return "at all values tried"
    if band.lower is None:
        return f"up to {about(band.upper or math.nan)}"
    if band.upper is None:
        return f"from {about(band.lower)} on"
    return f"from {about(band.lower)} to {about(band.upper)}"


def _places(sweep: Sweep, found: list[Outcome]) -> str:
    if len(sweep.vary) > 1:
        return f"at {len(found)} of {len(sweep.points)} points"
    values = [outcome.point.values[0] for outcome in found]
    if numbers(sweep) is None:
        return f"at {', '.join(values)}"
    return f"at {values[0]}" if len(values) == 1 else f"from {values[0]} to {values[-1]}"


def _label(sweep: Sweep, outcome: Outcome) -> str:
    if len(sweep.vary) == 1:
        return outcome.point.values[0]
    return ", ".join(map("{} {}".format, sweep.vary, outcome.point.values))


def _ms(ps: float) -> str:
    return f"{ps / PS_PER_MS:.2f} ms"
