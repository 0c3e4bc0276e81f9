"""tensorexpress predict: what would scheduling gain, before anything is deployed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tensorexpress.cli import say
from tensorexpress.cli.options import (
    calibration_option,
    check_file,
    check_outputs,
    grain_option,
    policy_option,
    progress,
    read_inputs,
    say_if_long,
    scenario_options,
    with_option,
    write_json,
    write_output,
)
from tensorexpress.cli.predict_commits import predict_commits, refuse_options
from tensorexpress.cli.report import report_prediction
from tensorexpress.cli.signals import INTERRUPTED
from tensorexpress.errors import InputError

if TYPE_CHECKING:
    from tensorexpress.policy import Policy
    from tensorexpress.results.seeds import OverSeeds
    from tensorexpress.results.side_by_side import SideBySide
    from tensorexpress.scenario import Scenario


@click.command(short_help="Say what scheduling will gain for a model and a cluster.")
@scenario_options
@policy_option
@calibration_option
@click.option(
    "--scale",
    type=click.IntRange(1),
    default=1,
    metavar="FACTOR",
    help="Predict slow motion: rates divided, times multiplied by this factor, as `run --scale` does.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=1,
    metavar="N",
    help="Repeat with N seeds, the scenario's and those after it, and show means with their confidence.",
)
@grain_option
@click.option(
    "--replan",
    metavar="TIME",
    help="Plan routes again when links or background traffic change, and send by them so long after the change.",
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write all metrics as JSON; - prints them instead of the table."
)
@click.option("--csv", "csv_path", metavar="FILE", help="Write one row per policy and job; - prints them instead.")
@click.option("--plot", "plot_path", metavar="FILE", help="Draw bars and a timeline of one worker (.png, .svg, .pdf).")
@click.option("--report", "report_path", metavar="FILE", help="Write a page for a browser, as `report` does (.html).")
@click.option("--open", "opens", is_flag=True, help="Open that page in a browser.")
@click.option(
    "--trace", "trace_path", metavar="FILE", help="Write what happened as a trace to open in Perfetto (.json)."
)
@click.option(
    "--save", "directory", metavar="DIR", help="Write a trace of every policy for `compare` (DIR/POLICY.trace)."
)
def predict(
    scenario: str | None,
    overrides: tuple[str, ...],
    engine: str,
    policies: tuple[str, ...],
    calibration: str | None,
    scale: int,
    seeds: int,
    grain: int | str,
    replan: str | None,
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
    report_path: str | None,
    opens: bool,
    trace_path: str | None,
    directory: str | None,
) -> None:
    """Simulate a training job under several policies and compare them with each other and with the optimum.

    Without SCENARIO.toml it looks at ResNet-50 with 8 workers and 4 parameter servers on a 10 Gbps star; --set changes
    any key of that, so a first question needs no file. Ctrl-C or SIGTERM shows the policies that are finished.

    \b
      tensorexpress predict --set job.model=vgg16 --set cluster.bandwidth="25 Gbps"
      tensorexpress predict examples/two-jobs.toml --plot jobs.png
      tensorexpress predict --set loss=0.001 --seeds 5
      tensorexpress predict --set job.model=bert-base --open
      tensorexpress predict --policy fifo,p3,tensorexpress --json -
      tensorexpress predict examples/inart-changing.toml --replan "500 ms" --set iterations=30
      tensorexpress predict --set job.architecture=async --seeds 5 --plot loss.png

    With job.architecture=async workers are not in step: it trains a small problem in every mode of commits.modes,
    and says when each has learned it.
    """
    from tensorexpress.calibration import calibrate_scenario, read_calibration
    from tensorexpress.files import locked_directory
    from tensorexpress.results import report
    from tensorexpress.results.figure import check_suffix
    from tensorexpress.results.plot import plot_side_by_side
    from tensorexpress.scaling import scale_scenario
    from tensorexpress.scenario_keys import USUAL_POLICIES
    from tensorexpress.sim.predict import affords_jitter, checked_policies, grain_of
    from tensorexpress.sim.predict import predict as simulate_all
    from tensorexpress.sim.run import load_engine

    check_outputs(json_path, csv_path, plot_path, report_path, trace_path)
    check_file("--report", report_path)
    check_file("--trace", trace_path)
    if plot_path is not None:
        check_suffix(plot_path)
    read = read_inputs(scenario, overrides, policies, takes_async=True)
    if read.scenario.is_async:
        unused = {"--calibration": calibration, "--trace": trace_path, "--save": directory}
        refuse_options(
            {name: value is not None for name, value in unused.items()}
            | {"--policy": bool(read.policies), "--scale": scale > 1, "--grain": grain != "auto"}
            | {"--engine": engine != "auto", "--report": report_path is not None, "--open": opens}
            | {"--replan": replan is not None}
        )
        predict_commits(read.scenario, seeds, json_path, csv_path, plot_path)
        return
    inputs, compared = scale_scenario(read.scenario, scale), read.policies or USUAL_POLICIES
    calibrated_for = None
    if calibration is not None:
        correction = read_calibration(calibration)
        inputs, calibrated_for = calibrate_scenario(inputs, correction), correction.target
    replan_ps = None if replan is None else _reaction_ps(replan, inputs, saves=directory is not None)
    chosen = checked_policies(inputs, compared)
    packets = grain_of(inputs, chosen, grain)
    say_if_long(inputs, chosen, packets, engine)
    load_engine(engine)
    with locked_directory(directory) if directory is not None else nullcontext():
        with progress(seeds * len(compared), "simulating") as advance:
            prediction = simulate_all(
                inputs,
                compared,
                engine,
                progress=lambda _: advance(),
                keeps_finished=True,
                grain=packets,
                advanced=lambda share: advance(0, f"{share:.0%}"),
                replan_ps=replan_ps,
                jittered=affords_jitter(inputs, chosen, packets, engine),
            )
            over_seeds = None
            if seeds > 1 and len(prediction.results) == len(compared):
                over_seeds = _with_other_seeds(prediction, seeds, compared, engine, packets, advance)
        if directory is not None:
            _save(prediction, directory)
    if json_path is not None:
        more = {"over_seeds": over_seeds.to_json()} if over_seeds is not None else {}
        write_json(json_path, report.as_json(prediction) | more)
    if csv_path is not None:
        write_output(csv_path, report.as_csv(prediction))
    if plot_path is not None:
        plot_side_by_side(prediction, plot_path)
    if report_path is not None or opens:
        report_prediction(prediction, scenario, report_path, calibrated_for, opens)
    if trace_path is not None:
        from tensorexpress.results.chrome_trace import write_chrome

        traces = [result.trace for result in prediction.results.values()]
        write_chrome(traces, trace_path, prediction.provenance)
    if "-" not in (json_path, csv_path):
        click.echo(report.as_table(prediction))
        if over_seeds is not None:
            click.echo(over_seeds.as_table())
    if len(prediction.results) < len(compared):
        say(f"stopped after {len(prediction.results)} of {len(compared)} policies")
        sys.exit(INTERRUPTED)


def _with_other_seeds(
    first: SideBySide,
    seeds: int,
    policies: Sequence[Policy | str],
    engine: str,
    grain: int,
    advance: Callable[[], None],
) -> OverSeeds:
    from tensorexpress.results.seeds import OverSeeds
    from tensorexpress.sim.predict import predict as simulate_all

    scenario: Scenario = first.scenario
    others = (replace(scenario, seed=scenario.seed + number) for number in range(1, seeds))

    def simulated(each: Scenario) -> SideBySide:
        return simulate_all(each, policies, engine, lambda _: advance(), grain=grain, replan_ps=first.replan_ps)

    return OverSeeds((first, *map(simulated, others)))


def _reaction_ps(replan: str, scenario: Scenario, *, saves: bool) -> int:
    """Return how long after a change other routes are in force; refuse where nothing changes or traces are kept."""
    from tensorexpress.replan import moments
    from tensorexpress.units import parse_time

    reaction_ps = with_option("--replan", parse_time, replan)
    if not moments(scenario):
        raise InputError(
            "--replan: no link and no background traffic of the scenario changes; accepted: with [[change]] of a link, "
            "or with background.at or background.until"
        )
    if saves:
        raise InputError("--replan goes without --save: a trace file has one plan; leave one of them out")
    return reaction_ps


def _save(prediction: SideBySide, directory: str) -> None:
    from tensorexpress.trace_file import trace_path, write_trace

    for name, result in prediction.results.items():
        write_trace(trace_path(directory, name), result.trace, result.plan)
