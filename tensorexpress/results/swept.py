"""Sweeps as values: what came out at every combination of the values of some scenario keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tensorexpress.policy import Policy
from tensorexpress.results.columns import Cells, JobResult, cells
from tensorexpress.results.provenance import Provenance, provenance
from tensorexpress.scenario import Scenario
from tensorexpress.vary import number_of


@dataclass(frozen=True)
class Point:
    """One value of every key that is varied, and the results there: policy by policy, and of a policy job by job."""

    values: tuple[str, ...]
    results: tuple[JobResult, ...]
    #: What made them.
    provenance: Provenance

    def rows(self, keys: Iterable[str]) -> list[Cells]:
        """Return one flat row per policy and job; times are in milliseconds."""
        varied = dict(zip(keys, self.values, strict=True))
        return [{**varied, **cells(result), **self.provenance.cells()} for result in self.results]


@dataclass(frozen=True)
class Sweep:
    """The points that are finished, in the order of the values, the last key varying fastest."""

    #: The scenario at the first point.
    scenario: Scenario
    vary: Mapping[str, tuple[str, ...]]
    policies: tuple[Policy, ...]
    points: tuple[Point, ...]

    @property
    def total(self) -> int:
        """How many points there are when all are finished."""
        return math.prod(map(len, self.vary.values()))

    @cached_property
    def provenance(self) -> Provenance:
        """What made this, at the first point."""
        return provenance(self.scenario, self.policies)

    def rows(self) -> list[Cells]:
        """Return one flat row per point, policy and job, as in CSV and for data frames; times are in milliseconds."""
        return [row for point in self.points for row in point.rows(self.vary)]

    def numbers(self) -> list[float] | None:
        """Return the values of the finished points as ascending numbers if one key is varied and all are numbers."""
        found = [number_of(point.values[0]) for point in self.points] if len(self.vary) == 1 else [None]
        known = [number for number in found if number is not None]
        return sorted(known) if len(known) == len(found) else None
