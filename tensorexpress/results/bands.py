"""Where scheduling pays in a sweep, and why it does not elsewhere: point by point, as bands of a key, and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from tensorexpress.results.columns import JobResult
from tensorexpress.results.swept import Point, Sweep
from tensorexpress.units import format_ms
from tensorexpress.vary import formatter, number_of

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


@dataclass(frozen=True)
class PointVerdict:
    """What one point means for one job."""

    point: Point
    #: PAYS, or why not.
    verdict: str
    #: The fastest policy, and how many times faster it is than fifo.
    best: JobResult
    #: Iteration time under fifo over the optimum.
    possible: float


def verdicts(sweep: Sweep, job: str, threshold: float = THRESHOLD) -> list[PointVerdict]:
    """Return what each finished point means for a job, in ascending order if one key with numbers is varied."""
    found = [_verdict(point, job, threshold) for point in sweep.points]
    if sweep.numbers() is not None:
        found.sort(key=lambda judged: number_of(judged.point.values[0]) or 0.0)
    return found


def is_spread(values: Sequence[float]) -> bool:
    """Tell whether numbers are better looked at on a logarithmic scale."""
    return min(values) > 0 and max(values) >= _SPREAD * min(values)


def _verdict(point: Point, job: str, threshold: float) -> PointVerdict:
    rows = [row for row in point.results if row.job == job]
    # What a reference gains is nobody's gain, unless one asks for nothing else.
    rows = [row for row in rows if row.policy not in ("fifo", "ideal")] or rows
    best = max(rows, key=lambda row: row.speedup)
    possible = best.baseline_ps / best.optimal_ps
    if best.speedup >= threshold:
        verdict = PAYS
    elif possible >= threshold:
        verdict = MISSED
    else:
        verdict = COMPUTE_BOUND if best.baseline_ps < threshold * best.metrics.compute_ps else NETWORK_BOUND
    return PointVerdict(point, verdict, best, possible)


@dataclass(frozen=True)
class Band:
    """A stretch of a key in which scheduling pays; an end is None where it lies beyond the values tried."""

    lower: float | None
    upper: float | None


def bands(sweep: Sweep, job: str, threshold: float = THRESHOLD) -> list[Band]:
    """Return where scheduling pays for a job; ends are interpolated between the points beside them."""
    values = sweep.numbers()
    if not values:
        return []
    found = verdicts(sweep, job, threshold)
    logarithmic = is_spread(values)
    crossings: dict[int, float] = {}
    for index, (before, after) in enumerate(pairwise(found)):
        if (before.verdict == PAYS) != (after.verdict == PAYS):
            way = (threshold - before.best.speedup) / (after.best.speedup - before.best.speedup)
            a, b = values[index], values[index + 1]
            crossings[index] = a * (b / a) ** way if logarithmic else a + (b - a) * way
    paying = [index for index, judged in enumerate(found) if judged.verdict == PAYS]
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
    found = verdicts(sweep, job, threshold)
    paying = [judged for judged in found if judged.verdict == PAYS]
    if len({judged.best.metrics for judged in found}) == 1 < len(found):
        yield f"Nothing depends on {' or '.join(sweep.vary)} here: all points have the same result."
    if paying:
        most = max(paying, key=lambda judged: judged.best.speedup)
        yield (
            f"Scheduling pays (at least {threshold:g}x) {_where(sweep, job, paying, threshold)}; most at "
            f"{_label(sweep, most)}, where {most.best.policy} takes {format_ms(most.best.metrics.iteration_ps)} and "
            f"fifo {format_ms(most.best.baseline_ps)} ({most.best.speedup:.2f}x)."
        )
    else:
        most = max(found, key=lambda judged: judged.best.speedup)
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


def _runs(sweep: Sweep, found: list[PointVerdict]) -> Iterable[tuple[str, Iterable[PointVerdict]]]:
    """Group points by verdict: stretches of a key with numbers, otherwise wherever they are."""
    ordered = found if sweep.numbers() else sorted(found, key=lambda judged: judged.verdict)
    return groupby(ordered, key=lambda judged: judged.verdict)


def _where(sweep: Sweep, job: str, paying: list[PointVerdict], threshold: float) -> str:
    if sweep.numbers() is None:
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


def _places(sweep: Sweep, found: list[PointVerdict]) -> str:
    if len(sweep.vary) > 1:
        return f"at {len(found)} of {len(sweep.points)} points"
    values = [judged.point.values[0] for judged in found]
    if sweep.numbers() is None:
        return f"at {', '.join(values)}"
    return f"at {values[0]}" if len(values) == 1 else f"from {values[0]} to {values[-1]}"


def _label(sweep: Sweep, judged: PointVerdict) -> str:
    if len(sweep.vary) == 1:
        return judged.point.values[0]
    return ", ".join(map("{} {}".format, sweep.vary, judged.point.values))
