"""Seeds: what several draws of chance (jitter, loss, background) make of one comparison, and how sure one can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from tensorexpress.confidence import student_t
from tensorexpress.errors import InputError
from tensorexpress.results.columns import UNCLEAR
from tensorexpress.results.side_by_side import SideBySide
from tensorexpress.text import grid
from tensorexpress.units import PS_PER_MS


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; the true one is within `within` of it with a confidence of 95 %."""

    mean: float
    within: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Return the estimate from one value a seed, two at least.

        >>> estimate = Estimate.of([9.0, 10.0, 11.0])
        >>> round(estimate.mean, 2), round(estimate.within, 2)
        (10.0, 2.48)
        """
        within = student_t(len(values) - 1) * stdev(values) / len(values) ** 0.5
        return cls(fmean(values), within)

    def to_json(self) -> dict[str, float]:
        """Return it as a JSON object."""
        return {"mean": self.mean, "within_95": self.within}


@dataclass(frozen=True)
class OverSeeds:
    """The same policies and jobs under several seeds."""

    predictions: tuple[SideBySide, ...]

    def __post_init__(self) -> None:
        if len(self.predictions) < 2:
            raise InputError(f"{len(self.predictions)} seeds; accepted: two or more, to have something to compare")

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        return [each.scenario.seed for each in self.predictions]

    def iteration_ms(self, policy: str, job: int) -> Estimate:
        """Return the iteration time under a policy."""
        return Estimate.of([each.results[policy].jobs[job].iteration_ps / PS_PER_MS for each in self.predictions])

    def speedup(self, policy: str, job: int) -> Estimate:
        """Return how many times shorter an iteration is than under the baseline with the same seed."""
        return Estimate.of([each.speedup(policy, job) for each in self.predictions])

    def to_json(self) -> dict[str, Any]:
        """Return all estimates as a JSON object, by policy and job."""
        first = self.predictions[0]
        return {
            "seeds": self.seeds,
            "policies": {
                name: {
                    job.name: {
                        "iteration_ms": self.iteration_ms(name, index).to_json(),
                        "speedup": self.speedup(name, index).to_json(),
                    }
                    for index, job in enumerate(first.scenario.jobs)
                }
                for name in first.results
            },
        }

    def as_table(self) -> str:
        """Return the table for a terminal."""
        first = self.predictions[0]
        several = len(first.scenario.jobs) > 1
        rows = [["policy", *(["job"] if several else []), "iteration ms", "+-", "speed-up", "+-"]]
        for name in first.results:
            for index, job in enumerate(first.scenario.jobs):
                time, gain = self.iteration_ms(name, index), self.speedup(name, index)
                is_clear = all(each.tells_apart(name, job=index) for each in self.predictions)
                gained = [f"{gain.mean:.2f}x", f"{gain.within:.2f}"] if is_clear else [UNCLEAR, ""]
                numbers = [f"{time.mean:.2f}", f"{time.within:.2f}", *gained]
                rows.append([name, *([job.name] if several else []), *numbers])
        title = (
            f"Seeds {self.seeds[0]} to {self.seeds[-1]}: means, and how far off they are at the most (95 % confidence)"
        )
        return "\n".join(["", title, "", *grid(rows)])
