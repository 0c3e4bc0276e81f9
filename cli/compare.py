"""tensorexpress compare: two runs, or a run and its prediction, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tensorexpress.cli.options import calibration_option, check_outputs, engine_option, write_json

if TYPE_CHECKING:
    from tensorexpress.baseline import FittedBaseline
    from tensorexpress.calibration import Calibration
    from tensorexpress.results.compare import Comparison, TracedRun
    from tensorexpress.trace import Trace


@click.command(short_help="Hold a run against its prediction, or against another run.")
@click.argument("trace", metavar="TRACE")
@click.argument("other", required=False, metavar="[OTHER]")
@click.option("--predict", "predicts", is_flag=True, help="Predict both runs too, and what the second gains.")
@calibration_option
@engine_option
@click.option("--tensors", is_flag=True, help="Also show the latency of every tensor.")
@click.option("--json", "json_path", metavar="FILE", help="Write the comparison as JSON; - prints it instead.")
@click.option(
    "--plot", "plot_path", metavar="FILE", help="Draw the timelines of one worker in all runs (.png, .svg, .pdf)."
)
def compare(
    trace: str,
    other: str | None,
    predicts: bool,
    calibration: str | None,
    engine: str,
    tensors: bool,
    json_path: str | None,
    plot_path: str | None,
) -> None:
    """Show blocking time, latency and iteration time of two runs side by side, and by how much they differ.

    TRACE alone, a file that `run` or `predict --save` wrote, is compared with its prediction, which is made from the
    plan inside the file. Where one run was measured and the other simulated, the error is that of the simulation.

    \b
      tensorexpress compare runs/tensorexpress.trace --calibration calibration.json
      tensorexpress compare runs/fifo.trace runs/tensorexpress.trace --plot both.png
      tensorexpress compare runs/fifo.trace runs/tensorexpress.trace --predict
    """
    from tensorexpress.calibration import read_calibration
    from tensorexpress.results.compare_report import as_json, as_table

    check_outputs(json_path, plot_path)
    if plot_path is not None:
        from tensorexpress.results.figure import check_suffix

        check_suffix(plot_path)
    if other is not None and calibration is not None and not predicts:
        raise click.UsageError("--calibration is for predictions, and two traces need none; add --predict to have them")
    correction = None if calibration is None else read_calibration(calibration)
    comparisons = _comparisons(trace, other, predicts, engine, correction)
    if json_path is not None:
        write_json(json_path, as_json(comparisons))
    if plot_path is not None:
        from tensorexpress.results.compare_plot import plot_runs

        plot_runs([run for each in comparisons for run in (each.reference, each.other)], plot_path)
    if json_path != "-":
        click.echo(as_table(comparisons, tensors))


def _comparisons(
    path: str, other_path: str | None, predicts: bool, engine: str, calibration: Calibration | FittedBaseline | None
) -> list[Comparison]:
    """Return the comparison asked for: of two runs, of a run and its prediction, or of two runs and theirs."""
    from tensorexpress.results.compare import TracedRun
    from tensorexpress.results.compare import compare as side_by_side
    from tensorexpress.trace_file import read_trace

    paths = [path] if other_path is None else [path, other_path]
    read = [read_trace(each) for each in paths]
    names = _names(paths, [trace for trace, _ in read])
    runs = [TracedRun(name, *pair) for name, pair in zip(names, read, strict=True)]
    if len(runs) == 2:
        both = side_by_side(*runs)
        if not predicts:
            return [both]
    return [side_by_side(run, predicted_run(run, engine, calibration)) for run in runs]


def _names(paths: list[str], traces: list[Trace]) -> list[str]:
    """Return the shortest names that tell runs of different sources apart: policies without or with choices, files."""
    policies = [trace.policy for trace in traces]
    for names in ([policy.partition(":")[0] for policy in policies], policies):
        if len({(name, trace.source) for name, trace in zip(names, traces, strict=True)}) == len(traces):
            return names
    return paths


def predicted_run(run: TracedRun, engine: str, calibration: Calibration | FittedBaseline | None) -> TracedRun:
    """Return the prediction of a run, made from its plan; corrected for the target where that was calibrated."""
    from tensorexpress.calibration import calibrate_plan
    from tensorexpress.results.compare import TracedRun
    from tensorexpress.sim.run import simulate

    if calibration is None:
        return TracedRun(run.name, simulate(run.plan, engine), run.plan)
    trace = simulate(calibrate_plan(run.plan, calibration), engine)
    return TracedRun(run.name, trace, run.plan, calibration.target)
