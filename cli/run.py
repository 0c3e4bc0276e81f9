"""tensorexpress run: real traffic of worker and server processes through a real network, measured."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import click

from tensorexpress.cli.deploy_p4 import watch_settings
from tensorexpress.cli.options import (
    check_outputs,
    policy_option,
    progress,
    read_inputs,
    replan_options,
    set_option,
    with_option,
    write_json,
    write_output,
)
from tensorexpress.cli.predict_commits import refuse_options
from tensorexpress.cli.run_commits import run_asynchronously
from tensorexpress.cli.run_notes import notes_on, with_background, with_restarts
from tensorexpress.cli.run_script import (
    check_trainable,
    notes_on_training,
    training_script,
    with_losses,
)
from tensorexpress.cli.run_targets import TARGETS, make_target, wires_option
from tensorexpress.errors import InputError, PlanError
from tensorexpress.program_engines import AUTO, ENGINES

if TYPE_CHECKING:
    from tensorexpress.plan import Plan
    from tensorexpress.scenario import Scenario
    from tensorexpress.target import Target
    from tensorexpress.target.runner import Run

#: Who waits for longer than this is told so.
_LONG_S = 60


@click.command(short_help="Run training traffic through a real network, and measure it.")
@click.argument("scenario", required=False, metavar="[SCENARIO.toml|PLAN.json]")
@set_option
@policy_option
@click.option("--target", "name", type=click.Choice(TARGETS), default="embedded", show_default=True)
@click.option("--plan", "plan_path", metavar="FILE", help="Run this plan; a scenario given with it must be the plan's.")
@click.option(
    "--scale", metavar="FACTOR|auto", default="1", help="Slow motion: divide rates and multiply times by this factor."
)
@click.option(
    "--faults",
    metavar="KIND=SHARE,...",
    default="",
    help="embedded: what goes wrong on purpose at switches: loss, duplicate, reorder, corrupt, such as loss=5%.",
)
@wires_option
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=AUTO,
    show_default=True,
    help="embedded: what switches run their program in: native is machine code, auto that where it can be.",
)
@click.option(
    "--silence",
    metavar="TIME",
    default="10 s",
    show_default=True,
    help="Declare a host failed after TIME without packets; --scale multiplies it.",
)
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Run a policy up to so many times, until this machine did not stand still meanwhile; the calmest run counts.",
)
@replan_options("embedded, bmv2")
@click.option(
    "--script",
    "script_path",
    metavar="FILE",
    help="Train with this PyTorch script, once for every worker: real gradients instead of a timer (docs/train.md).",
)
@click.option("--check-sums", is_flag=True, help="--script: compare every sum with that of all workers' gradients.")
@click.option(
    "--reference", is_flag=True, help="--script: first run it alone, and compare the loss of every step with that."
)
@click.option("-o", "--output", "directory", metavar="DIR", help="Write a trace of every policy (DIR/POLICY.trace).")
@click.option("--json", "json_path", metavar="FILE", help="Write all metrics as JSON; - prints them instead.")
@click.option("--csv", "csv_path", metavar="FILE", help="Write one row per policy and job; - prints them instead.")
def run(
    scenario: str | None,
    overrides: tuple[str, ...],
    policies: tuple[str, ...],
    name: str,
    plan_path: str | None,
    scale: str,
    faults: str,
    wires: bool | None,
    engine: str,
    silence: str,
    attempts: int,
    replan: float | None,
    every: float,
    script_path: str | None,
    check_sums: bool,
    reference: bool,
    directory: str | None,
    json_path: str | None,
    csv_path: str | None,
) -> None:
    """Run worker and server processes over a real network under several policies, and compare them.

    Gradients are real bytes, servers really sum them, and every worker checks every sum; compute is a timer. Policies
    are fifo and tensorexpress unless the scenario or --policy names others.

    \b
      tensorexpress run --set job.model=alexnet --set job.workers=2 --set job.servers=1 --scale auto -o runs
      tensorexpress run small.toml --faults loss=5%,duplicate=2%,reorder=5%,corrupt=0.1%
      tensorexpress run plan.json --scale auto
      tensorexpress run plan.json --target linux
      tensorexpress run plan.json --replan 10
      tensorexpress run examples/asynchronous-run.toml
      tensorexpress run examples/torch/transformer.toml --script examples/torch/train_transformer.py --reference

    With job.architecture=async there is a process for every worker, server, helper and the scheduler, over sockets at
    the pace of their links, in every mode of commits.modes.
    """
    from tensorexpress.files import locked_directory
    from tensorexpress.notes_file import write_notes
    from tensorexpress.results import report
    from tensorexpress.results.side_by_side import Result, side_by_side
    from tensorexpress.scaling import longer_silence_ps
    from tensorexpress.target.runner import check_replan, run_calmly, run_plan
    from tensorexpress.target.scripts import run_reference
    from tensorexpress.target.speed import check_speed
    from tensorexpress.trace_file import trace_path, write_trace
    from tensorexpress.units import PS_PER_SECOND, parse_time

    check_outputs(json_path, csv_path)
    if scenario is None or not scenario.endswith(".json"):
        inputs = read_inputs(scenario, overrides, policies, takes_async=True).scenario
        if inputs.is_async:
            unused = {"--policy": policies, "--plan": plan_path, "--faults": faults, "--output": directory}
            refuse_options(
                {option: bool(value) for option, value in unused.items()}
                | {
                    "--target": name != "embedded",
                    "--wires": wires is True,
                    "--veth": wires is False,
                    "--engine": engine != AUTO,
                    "--scale": scale != "1",
                    "--attempts": attempts > 1,
                    "--replan": replan is not None,
                    "--script": script_path is not None,
                }
            )
            run_asynchronously(inputs, json_path, csv_path)
            return
    script = training_script(script_path, check_sums, reference, scale)
    target = make_target(name, faults, wires, engine)
    target.check()
    if replan is not None and directory is not None:
        raise InputError("--replan goes without -o: a trace file has one plan; leave one of them out")
    allowed_ps = with_option("--silence", parse_time, silence)
    plans, factor = _plans(scenario, overrides, policies, plan_path, scale, target)
    for plan in plans:
        _check_possible(plan, target)
        if replan is not None:
            check_replan(plan, target)
        if script is not None:
            check_trainable(plan, target, [each.policy for each in plans])
        check_speed(plan.scenario, target, [each.policy for each in plans], scaled_by=factor)
    silence_s = longer_silence_ps(allowed_ps, factor) / PS_PER_SECOND
    watched = None if replan is None else watch_settings(replan, every)

    def run_once(plan: Plan, attempt: str) -> Run:
        with progress(plan.scenario.rounds, f"running {plan.policy.name}{attempt}") as advance:
            return run_plan(plan, target, silence_s=silence_s, progress=advance, script=script, replan=watched)

    runs: list[Run] = []
    had_barrier = any(job.barrier for job in plans[0].scenario.jobs)
    expected = run_reference(plans[0], script) if script is not None and reference else None
    with locked_directory(directory) if directory is not None else nullcontext():
        _announce_long(plans, of_file=plan_path is not None or (scenario or "").endswith(".json"))
        for plan in plans:
            runs.append(run_calmly(partial(run_once, plan), attempts))
            if directory is not None:
                write_trace(trace_path(directory, plan.policy.name), runs[-1].trace, runs[-1].plan)
        said = [*notes_on(runs, target), *notes_on_training(runs, script, expected, had_barrier)]
        if directory is not None:
            write_notes(directory, [note.removeprefix("- ") for note in said])
    measured = side_by_side([Result.of(run.plan, run.trace, run.routes) for run in runs])
    if json_path is not None:
        write_json(json_path, with_restarts(with_background(with_losses(report.as_json(measured), runs), runs), runs))
    if csv_path is not None:
        write_output(csv_path, report.as_csv(measured))
    if "-" not in (json_path, csv_path):
        click.echo("\n".join([report.as_table(measured), *said]))


def _plans(
    path: str | None,
    overrides: Sequence[str],
    policies: Sequence[str],
    plan_path: str | None,
    scale: str,
    target: Target,
) -> tuple[list[Plan], int]:
    """Return the plans to run, that of a file or one for each policy of a scenario, and the factor of their scale."""
    from tensorexpress.plan import make_plan
    from tensorexpress.plan_file import read_plan
    from tensorexpress.policy import parse_policy
    from tensorexpress.scaling import scale_plan, scale_scenario
    from tensorexpress.scenario_keys import USUAL_IN_RUNS

    if path is not None and path.endswith(".json"):
        if plan_path is not None:
            raise InputError(f"--plan {plan_path}: found beside the plan {path}; accepted: one of the two")
        _refuse_beside_plan(path, {"--set": overrides, "--policy": policies})
        path, plan_path = None, path
    if plan_path is not None:
        _refuse_beside_plan(plan_path, {"--policy": policies})
        plan = read_plan(plan_path)
        if path is not None or overrides:
            _check_belonging(plan, read_inputs(path, overrides)[0], plan_path)
        factor = _factor(scale, target, [plan])
        return [scale_plan(plan, factor)], factor
    inputs, chosen = read_inputs(path, overrides, policies)
    compared = chosen or [parse_policy(policy) for policy in USUAL_IN_RUNS]
    factor = _factor(scale, target, [make_plan(inputs, policy) for policy in compared] if scale == "auto" else [])
    slow = scale_scenario(inputs, factor)
    return [make_plan(slow, policy) for policy in compared], factor


def _refuse_beside_plan(path: str, options: dict[str, Sequence[str]]) -> None:
    """Refuse options that a plan has decided."""
    for option, values in options.items():
        if values:
            raise InputError(
                f"{option}: found with the plan {path}, which has decided it; leave it out, or make another plan of "
                f"the scenario with `tensorexpress plan {option} {shlex.quote(values[0])}`"
            )


def _check_belonging(plan: Plan, inputs: Scenario, path: str) -> None:
    """Refuse a plan of another scenario."""
    from dataclasses import fields

    for field in fields(plan.scenario):
        if getattr(plan.scenario, field.name) != getattr(inputs, field.name):
            raise PlanError(
                f"{path}: is a plan for another scenario than {inputs.name}: {field.name} differs; "
                "accepted: the plan of this scenario; leave the scenario out, or make the plan again with "
                "`tensorexpress plan`"
            )


def _factor(scale: str, target: Target, plans: Sequence[Plan]) -> int:
    """Return the factor that --scale gives; auto is the least by which the target keeps up with these plans."""
    from tensorexpress.scaling import factor_for
    from tensorexpress.target.speed import fastest_bps

    if scale != "auto":
        if not (scale.isascii() and scale.isdigit() and len(scale) < 10 and int(scale)):
            raise InputError(f"--scale {scale!r}; accepted: a whole number of 1 or more, or auto")
        return int(scale)
    # A plan that cannot be run is not worth a measurement of this machine.
    for plan in plans:
        _check_possible(plan, target)
    inputs = plans[0].scenario
    return factor_for(inputs, fastest_bps(inputs, target, [plan.policy for plan in plans]))


def _check_possible(plan: Plan, target: Target) -> None:
    """Refuse what hosts or the target cannot do, however slow it is."""
    from tensorexpress.host.process import check_runnable
    from tensorexpress.target.runner import check_changes, check_loss, check_sums

    check_runnable(plan)
    check_sums(plan, target)
    check_changes(plan, target)
    check_loss(plan, target)


def _announce_long(plans: Sequence[Plan], of_file: bool) -> None:
    """Print the least duration of a long run, and how to make it shorter."""
    from tensorexpress.target.runner import least_duration_ps
    from tensorexpress.units import PS_PER_SECOND, counted

    least_s = sum(map(least_duration_ps, plans)) // PS_PER_SECOND
    if least_s > _LONG_S:
        rounds = counted(plans[0].scenario.rounds, "iteration")
        names = ", ".join(plan.policy.name for plan in plans)
        click.echo(
            f"This takes {least_s // 60} min {least_s % 60} s or more: {rounds} under {names}; fewer take less "
            f"({'plan them with ' if of_file else ''}--set iterations=N).",
            err=True,
        )
