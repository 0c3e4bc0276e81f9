"""Predictions of asynchronous training: several ways to commit on one scenario, over seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensorexpress.commits.modes import COMMIT_MODES
from tensorexpress.errors import ScenarioError
from tensorexpress.graph import ASYNC
from tensorexpress.results.convergence import Convergence
from tensorexpress.scenario import Scenario, problems
from tensorexpress.sim.asynchronous import simulate_commits


def train(scenario: Scenario, seeds: int = 1, progress: Callable[[str], None] | None = None) -> Convergence:
    """Train an asynchronous job in each of its modes, with so many seeds: the scenario's and those after it."""
    if not scenario.is_async:
        raise ScenarioError(
            f"{scenario.name}: job.architecture: found no {ASYNC}; accepted: a job of architecture {ASYNC}"
        )
    for path, problem in problems(scenario):
        raise ScenarioError(f"{scenario.name}: {path}: {problem}")
    traces = {}
    for name in scenario.commits.modes:
        of_mode = []
        for number in range(seeds):
            of_mode.append(simulate_commits(replace(scenario, seed=scenario.seed + number), COMMIT_MODES[name]))
            if progress is not None:
                progress(name)
        traces[name] = tuple(of_mode)
    return Convergence(scenario, traces)
