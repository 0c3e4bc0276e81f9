"""Tunings as values: what was tried for a scenario, how finely, and what came out best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import geometric_mean

from tensorexpress.knobs import Candidate, Knob
from tensorexpress.results.columns import Cells, JobResult, cells
from tensorexpress.results.provenance import Provenance
from tensorexpress.scenario import Scenario


@dataclass(frozen=True)
class Trial:
    """A candidate, simulated once."""

    candidate: Candidate
    #: When it was tried: "named" for policies that have a name, then round and rung, such as "1.2".
    stage: str
    #: Packets that were moved as one; 1 is packet level.
    grain: int
    #: By job; empty where the simulation came to no end.
    results: tuple[JobResult, ...]
    #: Why it came to none.
    problem: str = ""
    #: Whether it may be what comes out; others are there to compare with.
    eligible: bool = True

    @cached_property
    def iteration_ps(self) -> float:
        """The time of an iteration; of several jobs the geometric mean, so that all count by their ratios."""
        if not self.results:
            return float("inf")
        return _mean([result.metrics.iteration_ps for result in self.results])

    @property
    def engine(self) -> str:
        """How it was simulated, in words."""
        return "packet" if self.grain == 1 else f"coarse {self.grain}"

    def rows(self, above_bound: float) -> list[Cells]:
        """Return one flat row per job; times are in milliseconds."""
        own: Cells = {
            "stage": self.stage,
            "engine": self.engine,
            "candidate": self.candidate.label,
            "above_bound": above_bound,
            "problem": self.problem,
        }
        return [own | cells(result) for result in self.results]


@dataclass(frozen=True)
class Tuned:
    """What was tried in a scenario, in this order, and why nothing more was."""

    #: As it is, without anything turned.
    scenario: Scenario
    provenance: Provenance
    knobs: tuple[Knob, ...]
    trials: tuple[Trial, ...]
    #: Packets moved as one in the finest simulations, which decide.
    finest: int
    #: Why it ended: "target", "settled", "budget" or "interrupted".
    stopped: str
    #: How far above the bound is near enough.
    target: float

    @cached_property
    def decisive(self) -> tuple[Trial, ...]:
        """The trials that decide: the finest, of what was simulated to its end."""
        return decisive(self.trials, self.finest)

    @cached_property
    def bound_ps(self) -> float:
        """What no schedule of anything that was tried can beat; of several jobs the geometric mean."""
        return bound_ps(self.decisive)

    @property
    def best(self) -> Trial | None:
        """The best that may come out, the first of equals; None where nothing was finished."""
        return best_of(self.decisive)

    @property
    def best_named(self) -> Trial | None:
        """The best of the policies that have a name, in the scenario as it is."""
        return best_of(
            [trial for trial in self.decisive if trial.stage == "named" and ":" not in trial.candidate.label]
        )

    @property
    def baseline(self) -> Trial | None:
        """What fifo does."""
        return next((trial for trial in self.decisive if trial.candidate.label == "fifo"), None)

    def above_bound(self, trial: Trial) -> float:
        """Return by which share iterations are longer than the bound."""
        return trial.iteration_ps / self.bound_ps - 1

    def rows(self) -> list[Cells]:
        """Return one flat row per trial and job, as in CSV and for data frames."""
        return [row for trial in self.trials for row in trial.rows(self.above_bound(trial))]


def decisive(trials: Sequence[Trial], finest: int) -> tuple[Trial, ...]:
    """Return the trials that are as fine as any is, and were simulated to their end."""
    return tuple(trial for trial in trials if trial.results and trial.grain <= finest)


def bound_ps(trials: Sequence[Trial]) -> float:
    """Return the least bound of these trials, job by job, and of several jobs the geometric mean."""
    by_job = zip(*([result.optimal_ps for result in trial.results] for trial in trials), strict=True)
    return _mean([min(bounds) for bounds in by_job])


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the first of those with the shortest iterations that may come out."""
    return min((trial for trial in trials if trial.eligible), key=lambda trial: trial.iteration_ps, default=None)


def _mean(times_ps: Sequence[float]) -> float:
    """Return the geometric mean; of one number that number, to the last digit."""
    return geometric_mean(times_ps) if len(times_ps) > 1 else times_ps[0]
