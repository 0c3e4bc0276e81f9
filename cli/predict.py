"""tensorexpress predict: what would scheduling gain, before anything is deployed."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from tensorexpress.cli import say
from tensorexpress.cli.options import (
    calibration_option,
    check_file,
    check_outputs,
    policy_option,
    progress,
    read_inputs,
    scenario_options,
    write_json,
    write_output,
)
from tensorexpress.cli.signals import INTERRUPTED

if TYPE_CHECKING:
    from tensorexpress.results.side_by_side import SideBySide


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
    "--json", "json_path", metavar="FILE", help="Write all metrics as JSON; - prints them instead of the table."
)
@click.option("--csv", "csv_path", metavar="FILE", help="Write one row per policy and job; - prints them instead.")
@click.option("--plot", "plot_path", metavar="FILE", help="Draw bars and a timeline of one worker (.png, .svg, .pdf).")
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
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
    trace_path: str | None,
    directory: str | None,
) -> None:
    """Simulate a training job under several policies and compare them with each other and with the optimum.

    Without SCENARIO.toml it looks at ResNet-50 with 8 workers and 4 parameter servers on a 10 Gbps star; --set changes
    any key of that, so a first question needs no file. Ctrl-C or SIGTERM shows the policies that are finished.

    \b
      tensorexpress predict --set job.model=vgg16 --set cluster.bandwidth="25 Gbps"
      tensorexpress predict examples/two-jobs.toml --plot jobs.png
      tensorexpress predict --policy fifo,p3,tensorexpress --json -
    """
    from tensorexpress.calibration import calibrate_scenario, read_calibration
    from tensorexpress.files import locked_directory
    from tensorexpress.results import report
    from tensorexpress.results.figure import check_suffix
    from tensorexpress.results.plot import plot_side_by_side
    from tensorexpress.scaling import scale_scenario
    from tensorexpress.scenario_keys import USUAL_POLICIES
    from tensorexpress.sim.predict import predict as simulate_all

    check_outputs(json_path, csv_path, plot_path, trace_path)
    check_file("--trace", trace_path)
    if plot_path is not None:
        check_suffix(plot_path)
    read = read_inputs(scenario, overrides, policies)
    inputs, compared = scale_scenario(read.scenario, scale), read.policies or USUAL_POLICIES
    if calibration is not None:
        inputs = calibrate_scenario(inputs, read_calibration(calibration))
    with locked_directory(directory) if directory is not None else nullcontext():
        with progress(len(compared), "simulating") as advance:
            prediction = simulate_all(inputs, compared, engine, progress=lambda _: advance(), keeps_finished=True)
        if directory is not None:
            _save(prediction, directory)
    if json_path is not None:
        write_json(json_path, report.as_json(prediction))
    if csv_path is not None:
        write_output(csv_path, report.as_csv(prediction))
    if plot_path is not None:
        plot_side_by_side(prediction, plot_path)
    if trace_path is not None:
        from tensorexpress.results.chrome_trace import write_chrome

        traces = [result.trace for result in prediction.results.values()]
        write_chrome(traces, trace_path, prediction.provenance)
    if "-" not in (json_path, csv_path):
        click.echo(report.as_table(prediction))
    if len(prediction.results) < len(compared):
        say(f"stopped after {len(prediction.results)} of {len(compared)} policies")
        sys.exit(INTERRUPTED)


def _save(prediction: SideBySide, directory: str) -> None:
    from tensorexpress.trace_file import trace_path, write_trace

    for name, result in prediction.results.items():
        write_trace(trace_path(directory, name), result.trace, result.plan)
