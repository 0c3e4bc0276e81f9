"""tensorexpress report: predictions and runs as one page to send to a colleague."""

from __future__ import annotations

import math
import os
import tempfile
import webbrowser
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorexpress.cli import say
from tensorexpress.cli.compare import predicted_run
from tensorexpress.cli.options import (
    calibration_option,
    check_file,
    command_line,
    engine_option,
    grain_option,
    policy_option,
    progress,
    read_inputs,
    say_if_long,
    set_option,
)
from tensorexpress.cli.sweep import values_by_key
from tensorexpress.errors import InputError
from tensorexpress.files import is_special

if TYPE_CHECKING:
    from tensorexpress.baseline import FittedBaseline
    from tensorexpress.calibration import Calibration
    from tensorexpress.plan import Plan
    from tensorexpress.results.explanation import Explanation
    from tensorexpress.results.page.contents import Case
    from tensorexpress.results.side_by_side import SideBySide
    from tensorexpress.results.swept import Sweep
    from tensorexpress.trace import Trace

#: An explanation that takes no longer, about, is made without being asked for.
_CHEAP_SECONDS = 8

#: What is kept of the text of a scenario's file.
_MOST_TEXT = 200_000


@click.command(short_help="Write predictions and runs as one HTML page.")
@click.argument("inputs", nargs=-1, metavar="[SCENARIO.toml|FILE.trace|DIR]...")
@click.option("-o", "--output", "path", metavar="FILE", default="report.html", show_default=True)
@set_option
@policy_option
@click.option("--predict", "predicts", is_flag=True, help="Predict measured runs too, and hold both side by side.")
@calibration_option
@engine_option
@grain_option
@click.option(
    "--explain/--no-explain",
    "explains",
    default=None,
    help="Say where the gain comes from; by default for predictions, where that takes a few seconds.",
)
@click.option(
    "--vary", metavar="KEY=VALUES", multiple=True, help="Also say where scheduling pays, as `sweep --vary` does."
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
def report(
    inputs: tuple[str, ...],
    path: str,
    overrides: tuple[str, ...],
    policies: tuple[str, ...],
    predicts: bool,
    calibration: str | None,
    engine: str,
    grain: int | str,
    explains: bool | None,
    vary: tuple[str, ...],
    opens: bool,
) -> None:
    """Write one HTML page on scenarios, which are predicted, and on traces, alone or side by side.

    The page needs no network: what was asked, the answer, tables, bars, timelines of all workers to zoom into, where
    the gain comes from, loads of links and queues, and what made it. Traces are files that `run -o` or
    `predict --save` wrote, or directories of them. Without any input it is about the default scenario.

    \b
      tensorexpress report examples/two-jobs.toml -o jobs.html
      tensorexpress report runs --predict --calibration calibration.json --open
      tensorexpress report --vary cluster.bandwidth=5,10,20,40Gbps
      tensorexpress report examples/loop.toml examples/changing.toml --policy fifo,tensorexpress
    """
    from tensorexpress.calibration import read_calibration
    from tensorexpress.results.page.contents import Contents
    from tensorexpress.results.page.document import write_page

    check_file("--output", path)
    traced = [each for each in inputs if _is_traced(each)]
    scenarios: list[str | None] = [each for each in inputs if each not in traced] if inputs else [None]
    if not scenarios and (overrides or policies or vary):
        raise click.UsageError(
            "--set, --policy and --vary are for scenarios, and traces have theirs inside; leave them out"
        )
    varied = values_by_key(vary)
    correction = None if calibration is None else read_calibration(calibration)
    if correction is not None and not scenarios and not predicts:
        raise click.UsageError("--calibration is for predictions, and traces need none; add --predict to have them")
    cases = [_predicted_case(each, overrides, policies, engine, grain, correction) for each in scenarios]
    if varied:
        cases = [
            replace(case, sweep=_sweep(each, overrides, policies, engine, varied))
            for each, case in zip(scenarios, cases, strict=True)
        ]
    runs = _traced_cases(traced)
    if predicts:
        cases += [_prediction_of(case, engine, correction) for case in runs if case.how == "measured"]
    shown = [_explained(case, engine, explains) for case in (*runs, *cases)]
    size = write_page(Contents(tuple(shown), command_line()), path)
    if size is None:
        return
    click.echo(f"{path}: {size / 1000:.0f} KB, {_counted_cases(shown)}")
    if opens:
        open_page(path)


def report_prediction(
    prediction: SideBySide, source: str | None, path: str | None, calibrated_for: str | None, opens: bool
) -> None:
    """Write a page on a prediction that is made, to a file of its own where none is named."""
    from tensorexpress.results.page.contents import Contents
    from tensorexpress.results.page.document import write_page

    if path is None:
        directory = tempfile.mkdtemp(prefix="tensorexpress-")
        path = str(Path(directory) / "report.html")
    case = _scenario_case(prediction, source, calibrated_for)
    written = write_page(Contents((_explained(case, "auto", None),), command_line()), path)
    if opens and written is not None:
        open_page(path)


def open_page(path: str) -> None:
    """Show a page in the browser of whoever sits here."""
    if not webbrowser.open(Path(path).resolve().as_uri()):
        say(f"no browser could be started; open {path} in one")


def _is_traced(path: str) -> bool:
    from tensorexpress.trace_file import SUFFIX

    return os.path.isdir(path) or path.endswith(SUFFIX)


def _counted_cases(cases: Sequence[Case]) -> str:
    from tensorexpress.units import counted

    return ", ".join(
        f"{counted(sum(case.how == how for case in cases), 'scenario')} {how}"
        for how in dict.fromkeys(case.how for case in cases)
    )


def _scenario_case(prediction: SideBySide, source: str | None, calibrated_for: str | None) -> Case:
    from tensorexpress.results.page.contents import Case

    if source is None:
        return Case(prediction, calibrated_for=calibrated_for)
    # A pipe has been read already, and has nothing left to show.
    text = "" if is_special(source) else Path(source).read_text(encoding="utf-8", errors="replace")
    cut = text[:_MOST_TEXT] + ("\n[cut here]" if len(text) > _MOST_TEXT else "")
    return Case(prediction, (source,), cut, calibrated_for=calibrated_for)


def _predicted_case(
    source: str | None,
    overrides: Sequence[str],
    policies: Sequence[str],
    engine: str,
    grain: int | str,
    calibration: Calibration | FittedBaseline | None,
) -> Case:
    from tensorexpress.calibration import calibrate_scenario
    from tensorexpress.scenario_keys import USUAL_POLICIES
    from tensorexpress.sim.predict import affords_jitter, checked_policies, grain_of, predict

    study = read_inputs(source, overrides, policies)
    scenario = study.scenario if calibration is None else calibrate_scenario(study.scenario, calibration)
    compared = checked_policies(scenario, study.policies or USUAL_POLICIES)
    packets = grain_of(scenario, compared, grain)
    say_if_long(scenario, compared, packets, engine)
    with progress(len(compared), f"simulating {scenario.name}") as advance:
        prediction = predict(
            scenario,
            compared,
            engine,
            progress=lambda _: advance(),
            grain=packets,
            jittered=affords_jitter(scenario, compared, packets, engine),
        )
    return _scenario_case(prediction, source, None if calibration is None else calibration.target)


def _sweep(
    source: str | None,
    overrides: Sequence[str],
    policies: Sequence[str],
    engine: str,
    varied: dict[str, tuple[str, ...]],
) -> Sweep:
    from tensorexpress.sim.sweep import sweep

    with progress(math.prod(map(len, varied.values())), "sweeping") as advance:
        return sweep(source, overrides, varied, policies, engine, lambda _: advance())


def _traced_cases(paths: Iterable[str]) -> list[Case]:
    """Return traces as cases: those of one scenario and source together, as long as each is of another policy."""
    from tensorexpress.notes_file import read_notes
    from tensorexpress.results.page.contents import Case
    from tensorexpress.results.side_by_side import Result, side_by_side

    groups: list[list[tuple[Trace, Plan]]] = []
    origins: list[list[str]] = []
    notes: list[tuple[str, ...]] = []
    for path in paths:
        own_notes = read_notes(path) if os.path.isdir(path) else ()
        for trace, plan in _traces(path):
            place = next((n for n, group in enumerate(groups) if _belongs(trace, plan, group)), len(groups))
            if place == len(groups):
                groups.append([])
                origins.append([])
                notes.append(())
            groups[place].append((trace, plan))
            origins[place] += [] if path in origins[place] else [path]
            if trace.source == "measured":
                notes[place] += tuple(note for note in own_notes if note not in notes[place])
    return [
        Case(side_by_side([Result.of(plan, trace) for trace, plan in group]), tuple(files), machine=said)
        for group, files, said in zip(groups, origins, notes, strict=True)
    ]


def _traces(path: str) -> Iterable[tuple[Trace, Plan]]:
    from tensorexpress.trace_file import SUFFIX, read_trace

    if not os.path.isdir(path):
        return [read_trace(path)]
    files = sorted(Path(path).glob(f"*{SUFFIX}"))
    if not files:
        raise InputError(
            f"{path}: holds no file that ends with {SUFFIX}; accepted: a directory that `tensorexpress run -o` or "
            "`tensorexpress predict --save` wrote"
        )
    return [read_trace(file) for file in files]


def _belongs(trace: Trace, plan: Plan, group: Sequence[tuple[Trace, Plan]]) -> bool:
    first, its_plan = group[0]
    policies = {each.policy.name for _, each in group}
    return (trace.source, plan.scenario) == (first.source, its_plan.scenario) and plan.policy.name not in policies


def _prediction_of(case: Case, engine: str, calibration: Calibration | FittedBaseline | None) -> Case:
    from tensorexpress.results.page.contents import Case
    from tensorexpress.results.side_by_side import Result, side_by_side

    with progress(len(case.runs), "simulating") as advance:
        results = []
        for run in case.runs:
            predicted = predicted_run(run, engine, calibration)
            results.append(Result.of(run.plan, predicted.trace))
            advance()
    return Case(side_by_side(results), case.origins, calibrated_for=None if calibration is None else calibration.target)


def _explained(case: Case, engine: str, wanted: bool | None) -> Case:
    """Return the case with where its gain comes from, where that is wanted, or cheap."""
    from tensorexpress.sim.explain import choices_of

    policy = case.compared.results[case.spoken_of[-1]].plan.policy
    if wanted is False or not choices_of(policy) or (wanted is None and case.how != "predicted"):
        return case
    explanation = _explanation(case, policy.name, engine, bool(wanted))
    return case if explanation is None else replace(case, explanation=explanation)


def _explanation(case: Case, policy: str, engine: str, wanted: bool) -> Explanation | None:
    from tensorexpress.policy import POLICIES, parse_policy
    from tensorexpress.sim import explain as explaining
    from tensorexpress.sim.grain import usual_seconds

    scenario, chosen = case.compared.scenario, parse_policy(policy)
    count = explaining.simulations(chosen)
    if not wanted and usual_seconds(scenario, [POLICIES["fifo"], chosen], 1) * count / 2 > _CHEAP_SECONDS:
        return None
    with progress(count, "explaining") as advance:
        return explaining.explain(scenario, chosen, engine, progress=lambda _: advance())
