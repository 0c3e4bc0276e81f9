"""Clusters that changed: what changed when, and which iterations met it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tensorexpress.changes import describe_change, when
from tensorexpress.scenario import Scenario
from tensorexpress.trace import JobTrace, iterations_ps
from tensorexpress.units import format_rate


class Disturbance(NamedTuple):
    """Something that is otherwise for a while: a change of the scenario, or background traffic that comes and goes."""

    #: In words, with its times.
    description: str
    #: From when until when, or None where it comes with iterations.
    times_ps: tuple[int, float] | None
    #: The iterations for which it holds, where it comes with them.
    iterations: range = range(0)

    def met(self, job: JobTrace) -> list[int]:
        """Return the iterations of a job that it holds for, or for a part of."""
        if self.times_ps is None:
            return list(self.iterations)
        at_ps, until_ps = self.times_ps
        starts = job.forward_start_ps[:, :, -1].min(axis=1)
        return np.flatnonzero((starts[1:] > at_ps) & (starts[:-1] < until_ps)).tolist()


def disturbances(scenario: Scenario) -> Iterator[Disturbance]:
    """Yield all that is otherwise for a while in a scenario."""
    for change in scenario.changes:
        described = describe_change(change, scenario.cluster)
        if change.by_iteration:
            yield Disturbance(described, None, change.iterations(scenario.rounds))
        else:
            yield Disturbance(described, _times(change.at_ps, change.until_ps))
    hosts = scenario.cluster.hosts
    for traffic in scenario.background:
        if traffic.at_ps or traffic.until_ps is not None:
            what = f"{format_rate(traffic.rate_bps)} from {hosts[traffic.src]} to {hosts[traffic.dst]}"
            yield Disturbance(
                f"{what} {when(traffic.at_ps, traffic.until_ps)}", _times(traffic.at_ps, traffic.until_ps)
            )


def _times(at_ps: int, until_ps: int | None) -> tuple[int, float]:
    return at_ps, float("inf") if until_ps is None else until_ps


def met_iterations(found: Sequence[Disturbance], job: JobTrace, warmup: int) -> list[int]:
    """Return the measured iterations of a job that met any of some disturbances."""
    return sorted({iteration for one in found for iteration in one.met(job) if iteration >= warmup})


class Contrast(NamedTuple):
    """The mean of the measured iterations that met changes, and of the others; None where there are none."""

    met: int
    met_ps: float | None
    others_ps: float | None


def contrast(found: Sequence[Disturbance], job: JobTrace, warmup: int) -> Contrast:
    """Return how long iterations took that met any of some disturbances, and the others."""
    lengths = iterations_ps(job)
    is_met = np.zeros(len(lengths), dtype=bool)
    is_met[met_iterations(found, job, warmup)] = True
    parts = (lengths[warmup:][is_met[warmup:] == which] for which in (True, False))
    means = [float(part.mean()) if len(part) else None for part in parts]
    return Contrast(int(is_met.sum()), *means)
