"""Sections of a page: each says one thing about a case, in words, a table or a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tensorexpress.cluster import describe
from tensorexpress.policy import describe as describe_policy
from tensorexpress.results import compare_report
from tensorexpress.results.advice import notes
from tensorexpress.results.bands import PAYS, THRESHOLD, verdicts
from tensorexpress.results.bands import summary as summary_of_sweep
from tensorexpress.results.columns import COLUMNS, TABLE_COLUMNS, UNCLEAR, JobResult
from tensorexpress.results.compare import METRICS, Comparison, Value
from tensorexpress.results.explanation import Explanation, JobExplanation, summary
from tensorexpress.results.explanation_report import gains, reached
from tensorexpress.results.heading import JOB_LINE, changes
from tensorexpress.results.page.charts import (
    BACKWARD,
    BLOCKED,
    FORWARD,
    Bar,
    bars,
    dots,
)
from tensorexpress.results.page.contents import Case, Contents
from tensorexpress.results.page.markup import Markup, joined, section, table, tag
from tensorexpress.results.page.network_sections import network_part, queues_part, slots_part
from tensorexpress.results.plot import parts_ps
from tensorexpress.results.route_report import in_force, route_rows
from tensorexpress.results.side_by_side import SideBySide
from tensorexpress.results.swept import Sweep
from tensorexpress.scenario import Job
from tensorexpress.trace import iterations_ps
from tensorexpress.units import PS_PER_MS, counted, format_ms

#: Fewer iterations than this are said by the table.
_LEAST_DOTS = 4

_PART_NAMES = (FORWARD, BACKWARD, BLOCKED)


def overview(contents: Contents) -> Markup | None:
    """Return all cases side by side on one axis; nothing where there is one."""
    if len(contents.cases) < 2:
        return None
    rows, charted = [], []
    for title, case in zip(contents.titles, contents.cases, strict=True):
        for name in case.compared.results:
            for number, result in enumerate(case.compared.job_results(name)):
                who = f"{name}, {result.job}" if len(case.compared.scenario.jobs) > 1 else name
                charted.append(_iteration_bar(f"{title}: {who}", case.compared, name, number))
                shown = ("iteration_ms", "blocking_ms", "speedup", "of_optimal", "utilisation")
                rows.append([title, who, *(_cell(result, column) for column in shown)])
    head = ["case", "policy", "iteration ms", "blocking ms", "speed-up", "of optimum", "busiest link"]
    return section(
        "side-by-side",
        "Side by side",
        [bars(charted, "Iterations of all cases on one axis", "ms"), _key(), table(head, rows, "All cases")],
    )


def case_section(case: Case, number: int, title: str) -> Markup:
    """Return all that is said of one case."""
    parts = (
        _question(case),
        _answer(case),
        _iterations(case, number),
        _routes(case, number),
        _timelines(case, number),
        _explained(case.explanation, number),
        _swept(case.sweep, number),
        network_part(case, number),
        queues_part(case, number),
        slots_part(case, number),
        _machine(case, number),
        _origin(case, number),
    )
    return tag("article", section(f"case{number}", title, [part for part in parts if part is not None]))


def _question(case: Case) -> Markup:
    scenario = case.compared.scenario
    verb = "would take" if case.how == "predicted" else "took"
    jobs = "; ".join(_job_words(job, len(scenario.jobs) > 1) for job in scenario.jobs)
    said = {key: value for key, value in changes(scenario).items() if key not in JOB_LINE}
    rounds = counted(scenario.iterations, "measured iteration")
    warm = f" after {counted(scenario.warmup, 'iteration')} of warm-up" if scenario.warmup else ""
    words = (
        f"How long an iteration {verb}, and how long workers {'would wait' if verb != 'took' else 'waited'} for the "
        f"network, under {_listed(list(case.compared.results))}. {jobs}, on {describe(scenario.cluster)}. "
        f"{rounds}{warm}, seed {scenario.seed}."
    )
    keys = tag("p", "Other than the default scenario: ", _listed_codes(said), class_="faint") if said else None
    choices = [
        tag("li", tag("b", name), f": {describe_policy(result.plan.policy)}")
        for name, result in case.compared.results.items()
    ]
    return joined(tag("p", words, class_="question"), keys, tag("ul", choices, class_="choices faint"))


def _job_words(job: Job, several: bool) -> str:
    return f"{f'{job.name}: ' if several else ''}{job.workload.name}, {job.placement}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _listed_codes(said: dict[str, str]) -> list[Any]:
    pairs = [[tag("code", f"{key}={value}"), ", "] for key, value in said.items()]
    return [*pairs[:-1], pairs[-1][:1]]


def _answer(case: Case) -> Markup:
    found = notes(case.compared)
    first = found[0] if found else _plainly(case.compared)
    more = tag("ul", [tag("li", note) for note in found[1:]]) if found[1:] else None
    return joined(tag("p", first, class_="answer"), more)


def _plainly(compared: SideBySide) -> str:
    """Return the answer where there is nothing to advise."""
    result = next(iter(compared.results.items()))
    return f"{result[0]} takes {format_ms(result[1].jobs[0].iteration_ps)} an iteration."


def _iterations(case: Case, number: int) -> Markup:
    """Return bars and table of every job."""
    compared, parts = case.compared, []
    for index, job in enumerate(compared.scenario.jobs):
        label = f"{job.name}: " if len(compared.scenario.jobs) > 1 else ""
        rows = [_iteration_bar(name, compared, name, index) for name in compared.results]
        bound_ms = compared.optimal_ps[index] / PS_PER_MS
        parts += [
            tag("h4", job.name) if label else None,
            bars(rows, f"{label}iteration time by policy", "ms", bound_ms),
            _key(f"no schedule can take less than {bound_ms:.2f} ms"),
            _numbers(compared, number, index),
            _over_time(compared, index),
        ]
    return section(f"case{number}-iterations", "Iterations", parts, "h3")


def _iteration_bar(title: str, compared: SideBySide, name: str, job: int) -> Bar:
    result = compared.results[name]
    metrics = result.jobs[job]
    parts = parts_ps(result.trace.jobs[job], compared.scenario.warmup, metrics.iteration_ps)
    beside = (
        f"{metrics.iteration_ps / PS_PER_MS:.2f} ms, blocked {metrics.blocking_ps / PS_PER_MS:.2f} ms, "
        f"{compared.shown_speedup(name, job)}"
    )
    return Bar(title, [(kind, part / PS_PER_MS) for kind, part in zip(_PART_NAMES, parts, strict=True)], beside)


def _key(mark: str | None = None) -> Markup:
    items = [
        tag("li", tag("svg", tag("rect", class_=kind, width=14, height=12), width=14, height=12), said)
        for kind, said in ((FORWARD, "forward"), (BACKWARD, "backward"), (BLOCKED, "what is left: blocked"))
    ]
    if mark:
        line = tag("line", class_="mark", x1=0, x2=14, y1=6, y2=6)
        items.append(tag("li", tag("svg", line, width=14, height=12), mark))
    return tag("ul", items, class_="key")


def _numbers(compared: SideBySide, number: int, job: int) -> Markup:
    """Return the table that `predict` and `run` print; every cell holds the number of --json unrounded."""
    head = ["policy", *(" ".join(filter(None, column.heading or ())) for column in TABLE_COLUMNS)]
    rows = [
        [name, *(_cell(compared.job_results(name)[job], column.name) for column in TABLE_COLUMNS)]
        for name in compared.results
    ]
    how = counted(compared.scenario.iterations, "measured iteration")
    return table(head, rows, f"{compared.scenario.jobs[job].name}, mean of {how}; times in ms", f"numbers case{number}")


def _cell(result: JobResult, column: str) -> Markup:
    shown, value = COLUMNS[column].shown(result), COLUMNS[column].value(result)
    exact = "" if shown == UNCLEAR else repr(value)
    return tag("td", shown, data_column=column, data_policy=result.policy, data_job=result.job, data_value=exact)


def _over_time(compared: SideBySide, job: int) -> Markup | None:
    series = {
        name: (iterations_ps(result.trace.jobs[job]) / PS_PER_MS).tolist() for name, result in compared.results.items()
    }
    if max(map(len, series.values())) < _LEAST_DOTS:
        return None
    warmup = compared.scenario.warmup
    warm = "" if not warmup else " The first is warm-up." if warmup == 1 else f" The first {warmup} are warm-up."
    return tag(
        "figure",
        tag("figcaption", f"Every iteration from left to right, in ms.{warm}"),
        dots(series, 0, "Iteration times one after another", "ms"),
    )


def _routes(case: Case, number: int) -> Markup | None:
    """Return which routes were planned again, and when; nothing where that was not asked for."""
    compared = case.compared
    if compared.replan_ps is None:
        return None
    said = tag("p", f"Routes were planned again, {in_force(compared.replan_ps)}. Iterations before are those between.")
    rates = ["planned as it was", "planned again"]
    head = ["policy", "changed at", "in force", *rates, "iteration before, ms", "after, ms", "what moves"]
    parts = [said, table(head, route_rows(compared), "Routes planned again")]
    return section(f"case{number}-routes", "Routes", parts, "h3")


def _timelines(case: Case, number: int) -> Markup:
    """Return the places that the page's script fills with timelines."""
    needs = tag("p", "This timeline is drawn by the page's script, which this browser does not run.")
    places = [
        tag("div", tag("noscript", needs), class_="timeline", data_case=number, data_job=job)
        for job in range(len(case.compared.scenario.jobs))
    ]
    return section(f"case{number}-timeline", "Timeline", places, "h3")


def _explained(explanation: Explanation | None, number: int) -> Markup | None:
    if explanation is None:
        return None
    parts = [_explained_job(job, explanation.policy.name) for job in explanation.jobs]
    return section(f"case{number}-gain", "Where the gain comes from", parts, "h3")


def _explained_job(job: JobExplanation, policy: str) -> Markup:
    before = job.steps[0].iteration_ps
    charted = [Bar("fifo", [("step", before / PS_PER_MS)], f"{before / PS_PER_MS:.2f} ms")]
    for step in job.steps[1:]:
        low, high = sorted((before, step.iteration_ps))
        kind = "gain" if step.gain_ps >= 0 else "loss"
        said = f"{round(-step.gain_ps / PS_PER_MS, 2) + 0.0:+.2f} ms"  # nothing has no sign of its own
        charted.append(Bar(f"+ {step.name}", [(kind, (high - low) / PS_PER_MS)], said, low / PS_PER_MS))
        before = step.iteration_ps
    charted.append(Bar(policy, [("step", before / PS_PER_MS)], f"{before / PS_PER_MS:.2f} ms"))
    head = ["step", "iteration ms", "speed-up", "gain ms", "of possible", "alone ms", "last ms"]
    rows = [
        [step.name, *reached(job, step.iteration_ps), *(gains(job, step) if index else ("",) * 4)]
        for index, step in enumerate(job.steps)
    ]
    rows.append(["optimum", *reached(job, job.optimal_ps), *("",) * 4])
    reading = (
        "Gain is against the step before; alone is what a choice gains when nothing else is on, last when all else is "
        "on already. By simulation."
    )
    return joined(
        tag("p", summary(job)),
        bars(charted, f"{job.job}: from fifo to {policy}, step by step", "ms", job.optimal_ps / PS_PER_MS),
        tag("details", tag("summary", "The steps as a table"), table(head, rows, f"{job.job}: {policy}, step by step")),
        tag("p", reading, class_="faint"),
    )


def _swept(sweep: Sweep | None, number: int) -> Markup | None:
    """Return where scheduling pays when keys are varied: the best policy at every point."""
    if sweep is None:
        return None
    several, parts = len(sweep.scenario.jobs) > 1, [tag("ul", [tag("li", each) for each in summary_of_sweep(sweep)])]
    keys = ", ".join(sweep.vary)
    for job in sweep.scenario.jobs:
        label = f"{job.name}: speed-up over fifo by {keys}" if several else f"Speed-up over fifo by {keys}"
        judged = verdicts(sweep, job.name)
        charted = [
            Bar(
                ", ".join(each.point.values),
                [("gain" if each.verdict == PAYS else "step", each.best.speedup)],
                f"{each.best.speedup:.2f}× by {each.best.policy}" if each.verdict == PAYS else each.verdict,
            )
            for each in judged
        ]
        parts += [tag("p", f"{label}; the line is at {THRESHOLD:g}×, from where on it is said to pay."),
                  bars(charted, label, "×", THRESHOLD)]  # fmt: skip
    shown = ("iteration_ms", "blocking_ms", "speedup", "of_optimal")
    rows = [
        [", ".join(point.values), result.policy, *([result.job] if several else []), *(_cell(result, c) for c in shown)]
        for point in sweep.points
        for result in point.results
    ]
    head = [keys, "policy", *(["job"] if several else []), "iteration ms", "blocking ms", "speed-up", "of optimum"]
    parts.append(tag("details", tag("summary", "All points as a table"), table(head, rows, f"By {keys}")))
    return section(f"case{number}-sweep", "Where scheduling pays", parts, "h3")


def against(comparisons: Sequence[Comparison]) -> Markup | None:
    """Return measured runs beside their predictions, where there are both."""
    if not comparisons:
        return None
    parts: list[Markup | None] = []
    for comparison in comparisons:
        for job in comparison.jobs:
            name = f"{comparison.reference.name}, {job.name}" if len(comparison.jobs) > 1 else comparison.reference.name
            rows = [[metric, *_compared_cells(metric, job.metrics[metric])] for metric in METRICS]
            charted = [
                bar
                for metric in ("iteration", "blocking")
                for bar in _pair(metric, job.metrics[metric])
            ]  # fmt: skip
            parts += [
                tag("h3", name),
                bars(charted, f"{name}: measured and predicted", "ms"),
                table(["", "measured", "predicted", "error"], rows, f"{name}: times in ms"),
            ]
    said = "Measured runs beside predictions of the same policy on the same scenario; the error is the prediction's."
    lines = [tag("li", note.removeprefix("- ")) for each in comparisons for note in compare_report.notes_on([each])]
    first = [tag("p", _how_near(comparisons), class_="answer"), tag("p", said), tag("ul", lines)]
    return section("against", "Predicted against measured", [*first, *parts])


def _how_near(comparisons: Sequence[Comparison]) -> str:
    """Return in a sentence how far predictions are from what was measured."""

    def worst(metric: str) -> str:
        changes = [job.metrics[metric].change for comparison in comparisons for job in comparison.jobs]
        known = [abs(change) for change in changes if change is not None]
        return f"{max(known):.1%}" if known else "an unknown part"

    runs = counted(len(comparisons), "measured run")
    return f"Predictions of {runs} are within {worst('iteration')} for iterations and {worst('blocking')} for blocking."


def _pair(metric: str, value: Value) -> Iterator[Bar]:
    for how, time_ps in (("measured", value.reference_ps), ("predicted", value.other_ps)):
        yield Bar(f"{metric}, {how}", [(how, time_ps / PS_PER_MS)], f"{time_ps / PS_PER_MS:.2f} ms")


def _compared_cells(metric: str, value: Value) -> list[Markup]:
    cells = []
    for how, time_ps in (("reference", value.reference_ps), ("other", value.other_ps)):
        time_ms = time_ps / PS_PER_MS
        cells.append(tag("td", f"{time_ms:.2f}", data_metric=metric, data_which=how, data_value=repr(time_ms)))
    change = "-" if value.change is None else f"{value.change:+.1%}"
    return [*cells, tag("td", change)]


def _machine(case: Case, number: int) -> Markup | None:
    if not case.machine:
        return None
    items = [tag("li", note) for note in case.machine]
    return section(f"case{number}-machine", "The machine", [tag("ul", items)], "h3")


def _origin(case: Case, number: int) -> Markup:
    """Return what made a case."""
    made_by = case.compared.provenance
    rows = {
        "tensorexpress": made_by.version,
        "scenario": f"{made_by.scenario}, digest {made_by.digest}",
        "seed": made_by.seed,
        "policies": "; ".join(made_by.policies),
        "source": case.compared.baseline.trace.source,
        "files": "; ".join(case.origins) or "none, the default scenario",
    }
    if case.compared.grain > 1:
        rows["grain"] = f"{case.compared.grain} packets moved as one"
    if case.calibrated_for:
        rows["calibrated for"] = case.calibrated_for
    pairs = [[tag("dt", key), tag("dd", value)] for key, value in rows.items()]
    text = (
        tag("details", tag("summary", "The scenario's file"), tag("pre", case.text, tabindex=0)) if case.text else None
    )
    save = tag("button", "Save these numbers (JSON)", type="button", data_save=f"results{number}")
    return section(f"case{number}-origin", "Where this comes from", [tag("dl", pairs), text, tag("p", save)], "h3")
