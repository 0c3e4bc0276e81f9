"""What `tensorexpress run` does with a job whose workers are not in step: a process for every role, mode after mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorexpress.cli import say
from tensorexpress.cli.options import progress
from tensorexpress.cli.predict_commits import show_convergence

if TYPE_CHECKING:
    from tensorexpress.scenario import Scenario


def run_asynchronously(scenario: Scenario, json_path: str | None, csv_path: str | None) -> None:
    """Train with real processes in every mode, and show or write what came out."""
    from tensorexpress.results.convergence import Convergence
    from tensorexpress.roles.cohort import CohortRun, run_commits

    traces = {}
    for mode in scenario.commits.modes:
        with progress(scenario.commits.updates, f"running {mode}") as advance:
            counted = 0

            def seen(run: CohortRun, advance=advance) -> None:  # type: ignore[no-untyped-def]  # of `progress`
                nonlocal counted
                advance(len(run.rows) - counted)
                counted = len(run.rows)

            traces[mode] = (run_commits(scenario, mode, seen, say).trace(scenario),)
    show_convergence(Convergence(scenario, traces), json_path, csv_path)
