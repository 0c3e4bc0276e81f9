"""tensorexpress tune: find slices, credit, queues, buckets and sums for a scenario, and write the plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from tensorexpress.cli import say
from tensorexpress.cli.options import (
    NumberRange,
    check_outputs,
    executor_of,
    executor_options,
    policy_option,
    progress,
    scenario_options,
    write_json,
    write_output,
)
from tensorexpress.cli.signals import INTERRUPTED
from tensorexpress.cli.sweep import values_by_key
from tensorexpress.errors import InputError


@click.command(short_help="Find the policy and sizes with the shortest iterations, and plan them.")
@scenario_options
@policy_option
@click.option(
    "--vary",
    metavar="KEY=VALUES",
    multiple=True,
    help="What may be turned, and to which values: a choice of policies (slice, host, credit, switch, queues, sum, "
    "placement) or a key of the scenario, in the forms of `sweep`; may be repeated.",
)
@click.option(
    "--fix",
    metavar="KEY[=VALUE]",
    multiple=True,
    help="What may not: a choice or a key at this value; a key without one stays as it is. May be repeated.",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    default=150,
    show_default=True,
    metavar="SIMULATIONS",
    help="Most simulations, coarse ones included.",
)
@click.option(
    "--within",
    type=NumberRange(min=0.0, max=100.0),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Stop when the lower bound is as near as this.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="What candidates are drawn with."
)
@click.option(
    "--grain",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="PACKETS",
    help="Packets moved as one in the simulations that decide; 1 is packet level.",
)
@executor_options
@click.option("-o", "--output", metavar="FILE", help="Write the plan for `deploy` and `run`; - prints it instead.")
@click.option("--fragment", "fragment_path", metavar="FILE", help="Write what was found for a scenario file (.toml).")
@click.option(
    "--json", "json_path", metavar="FILE", help="Write all trials as JSON; - prints them instead of the table."
)
@click.option("--csv", "csv_path", metavar="FILE", help="Write a row per trial and job; - prints them instead.")
def tune(
    scenario: str | None,
    overrides: tuple[str, ...],
    engine: str,
    policies: tuple[str, ...],
    vary: tuple[str, ...],
    fix: tuple[str, ...],
    budget: int,
    within: float,
    seed: int,
    grain: int,
    processes: int | None,
    scheduler: str | None,
    wait_seconds: float,
    output: str | None,
    fragment_path: str | None,
    json_path: str | None,
    csv_path: str | None,
) -> None:
    """Look for the policy, and sizes of slices, credit and buckets, with the shortest iterations of a scenario.

    Named policies come first; then rounds of candidates, of which the better ones go from coarse simulations to packet
    level. Nothing that is tried needs more hardware than the scenario has, unless --vary says so; the result says what
    it asks for. Ctrl-C or SIGTERM keeps what was found so far.

    \b
      tensorexpress tune --set job.model=vgg16 -o plan.json
      tensorexpress tune examples/two-jobs.toml --fix sum=none --fragment tuned.toml
      tensorexpress tune --vary slice=16,64,256KB --vary cluster.queues=2,4,16 --csv trials.csv
    """
    from tensorexpress.plan import make_plan
    from tensorexpress.plan_file import plan_text
    from tensorexpress.results import tuned_report as report
    from tensorexpress.sim.tune import question_of
    from tensorexpress.sim.tune import tune as search

    check_outputs(output, fragment_path, json_path, csv_path)
    executor = executor_of(processes, scheduler, wait_seconds)
    question = question_of(scenario, overrides, values_by_key(vary), _fixed(fix), policies)
    with progress(budget, "tuning") as advance:
        tuned = search(
            question,
            budget=budget,
            target=within / 100,
            seed=seed,
            finest=grain,
            engine=engine,
            executor=executor,
            on_trial=lambda _: advance(),
        )
    best = tuned.best
    if best is not None:
        plan = make_plan(question.scenario_of(best.candidate), best.candidate.policy)
        if output is not None:
            write_output(output, plan_text(plan))
        if fragment_path is not None:
            write_output(fragment_path, report.fragment(best.candidate, several_jobs=len(plan.jobs) > 1))
        if json_path is not None:
            write_json(json_path, report.as_json(tuned, plan))
        if csv_path is not None:
            write_output(csv_path, report.as_csv(tuned))
        if "-" not in (output, fragment_path, json_path, csv_path):
            click.echo(report.as_table(tuned, plan))
            click.echo(f"- Again: {report.again(best.candidate, scenario, overrides)}")
    if tuned.stopped == "interrupted":
        say(f"stopped after {len(tuned.trials)} simulations")
        sys.exit(INTERRUPTED)


def _fixed(fix: Sequence[str]) -> dict[str, str | None]:
    """Return what --fix fixes, by key; None stands for the scenario's own value."""
    fixed: dict[str, str | None] = {}
    for text in fix:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or (equals and not value) or key in fixed:
            raise InputError(
                f"--fix {text!r}: has no key, no value or is given twice; accepted: KEY, or KEY=VALUE, once"
            )
        fixed[key] = value if equals else None
    return fixed
