"""What `tensorexpress predict` does with a job whose workers are not in step: it trains it in every mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from tensorexpress.cli.options import progress, write_json, write_output
from tensorexpress.errors import InputError

if TYPE_CHECKING:
    from tensorexpress.results.convergence import Convergence
    from tensorexpress.scenario import Scenario


def predict_commits(
    scenario: Scenario, seeds: int, json_path: str | None, csv_path: str | None, plot_path: str | None
) -> None:
    """Train, and show or write what came out."""
    from tensorexpress.results.convergence_plot import plot_convergence
    from tensorexpress.sim.train import train

    with progress(seeds * len(scenario.commits.modes), "training") as advance:
        found = train(scenario, seeds, lambda _: advance())
    if plot_path is not None:
        plot_convergence(found, plot_path)
    show_convergence(found, json_path, csv_path)


def show_convergence(found: Convergence, json_path: str | None, csv_path: str | None) -> None:
    """Write what came out of training, or print it as a table where nothing else is printed."""
    from tensorexpress.results.report import csv_text

    if json_path is not None:
        write_json(json_path, found.to_json())
    if csv_path is not None:
        write_output(csv_path, csv_text(found.rows()))
    if "-" not in (json_path, csv_path):
        click.echo(found.as_table())


def refuse_options(given: Mapping[str, bool]) -> None:
    """Refuse options that are about packets, queues and iterations, by whether each was given."""
    for option, is_given in given.items():
        if is_given:
            accepted = "commits.modes" if option == "--policy" else "an architecture in step"
            raise InputError(
                f"{option}: found with architecture async, which it says nothing about; accepted: {accepted}"
            )
