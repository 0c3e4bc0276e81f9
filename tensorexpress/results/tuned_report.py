"""Tunings as a table, as CSV, as JSON, and what came out as a piece of a scenario file."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Sequence
from typing import Any

from tensorexpress import scenario as scenarios
from tensorexpress.knobs import Candidate
from tensorexpress.plan import Plan
from tensorexpress.policy import describe
from tensorexpress.queueing import DISCIPLINES, Ranks
from tensorexpress.results.heading import heading
from tensorexpress.results.report import csv_text
from tensorexpress.results.tuned import Trial, Tuned
from tensorexpress.text import grid
from tensorexpress.units import PS_PER_MS, counted, format_ms

#: Trials of a rung that the table shows; files have all.
_SHOWN = 6

#: Why a search ended, in words.
_ENDS = {
    "target": "The search ended because the bound is near enough (--within {target:.3g}%).",
    "settled": "The search ended because two rounds in a row found nothing better.",
    "budget": "The search ended because all of its simulations were used up; --budget gives it more.",
    "interrupted": "The search was interrupted.",
}


def as_csv(tuned: Tuned) -> str:
    """Return one line per trial and job."""
    return csv_text(tuned.rows())


def as_table(tuned: Tuned, plan: Plan) -> str:
    """Return what was tried, the best of every rung first, with what it says in words below."""
    rows = [["", "", "", "iteration", "above"], ["candidate", "rung", "engine", "ms", "bound"]]
    for stage in dict.fromkeys(trial.stage for trial in tuned.trials):
        own = sorted((each for each in tuned.trials if each.stage == stage), key=lambda each: each.iteration_ps)
        shown = own if stage == "named" else own[:_SHOWN]
        rows += [_row(tuned, trial) for trial in shown]
        if len(own) > len(shown):
            rows.append([f"... {len(own) - len(shown)} more", stage, "", "", ""])
    return "\n".join(
        [
            heading(tuned.scenario),
            "",
            *(line.rstrip() for line in grid(rows)),
            "",
            *(f"- {each}" for each in summary(tuned, plan)),
        ]
    )


def _row(tuned: Tuned, trial: Trial) -> list[str]:
    label = trial.candidate.label + ("" if trial.eligible else " (to compare)")
    if not trial.results:
        return [label, trial.stage, trial.engine, "failed", ""]
    # A bound holds for the packets that were really sent.
    above = f"{tuned.above_bound(trial):.1%}" if trial.grain <= tuned.finest else ""
    return [label, trial.stage, trial.engine, f"{trial.iteration_ps / PS_PER_MS:.2f}", above]


def summary(tuned: Tuned, plan: Plan) -> list[str]:
    """Return what came out, in sentences; the plan is that of the best."""
    best, named, fifo = tuned.best, tuned.best_named, tuned.baseline
    assert best is not None, "a plan was made of it"
    several = " (geometric mean of all jobs)" if len(best.results) > 1 else ""
    lines = [
        f"Best: {best.candidate.label}, {format_ms(best.iteration_ps)}{several}, {tuned.above_bound(best):.1%} above "
        f"{format_ms(tuned.bound_ps)}, which no schedule of what was tried can beat."
    ]
    for what, other in (("the best policy with a name", named), ("what frameworks do", fifo)):
        if other is not None and other is not best:
            gain = other.iteration_ps / best.iteration_ps
            lines.append(f"{gain:.3f}x as fast as {what}: {other.candidate.label}, {format_ms(other.iteration_ps)}.")
    if len(best.results) > 1:
        jobs = (
            f"{each.job} {format_ms(each.metrics.iteration_ps)}, of optimum {each.of_optimal:.1%}"
            for each in best.results
        )
        lines.append(f"By job: {'; '.join(jobs)}.")
    lines += [f"It asks for {need}." for need in needs(best.candidate, plan)]
    if tuned.finest > 1:
        lines.append(
            f"Nothing was simulated at packet level: {tuned.finest} packets moved as one (--grain); sums in switches, "
            "which have no coarse simulation, were left out."
        )
    lines.append(_ENDS[tuned.stopped].format(target=100 * tuned.target))
    return lines


def needs(candidate: Candidate, plan: Plan) -> list[str]:
    """Return what a candidate asks of the network, for who has to buy or to set it."""
    policy, found = plan.policy, []
    discipline = DISCIPLINES[policy.discipline]
    queues = {queue for job in plan.jobs for queue in job.queues}
    if policy.deployment is None:
        found.append(f"switches that sort by rank ({policy.discipline}), which none does")
    elif discipline.ranks is Ranks.QUEUE:
        there = plan.scenario.cluster.queues
        found.append(f"{counted(len(queues), 'strict-priority queue')} at every port of switches; {there} are there")
    if policy.in_switches:
        most = max((_slots_of(plan).values()), default=0)
        found.append(f"switches that sum gradients, in up to {counted(most, 'slot')} at a switch")
    if candidate.hardware:
        changed = ", ".join(f"{key}={value}" for key, value in candidate.hardware.items())
        found.append(f"another network than the scenario's: {changed}")
    return found


def _slots_of(plan: Plan) -> dict[int, int]:
    """Return how many slots the pools of all trees have in every switch."""
    slots: dict[int, int] = {}
    for job in plan.jobs:
        for tree in job.sums:
            own = sum(pool.slots for pool in tree.pools)
            for switch in tree.switches:
                slots[switch.switch] = slots.get(switch.switch, 0) + own
    return slots


def as_json(tuned: Tuned, plan: Plan) -> dict[str, Any]:
    """Return everything as a JSON object; `rows` are those of the CSV."""
    best = tuned.best
    assert best is not None, "a plan was made of it"
    return {
        "provenance": tuned.provenance.to_json(),
        "scenario": scenarios.to_json(tuned.scenario),
        "knobs": {knob.name: list(knob.values) for knob in tuned.knobs},
        "best": {
            "policy": best.candidate.policy.name,
            "choices": describe(best.candidate.policy),
            "keys": dict(best.candidate.keys),
            "iteration_ms": best.iteration_ps / PS_PER_MS,
            "above_bound": tuned.above_bound(best),
            "needs": needs(best.candidate, plan),
        },
        "bound_ms": tuned.bound_ps / PS_PER_MS,
        "stopped": tuned.stopped,
        "rows": tuned.rows(),
        "summary": summary(tuned, plan),
    }


def fragment(candidate: Candidate, several_jobs: bool) -> str:
    """Return the keys of a candidate in TOML, to be copied into the scenario's file.

    >>> print(fragment(Candidate((("slice", "64 KB"),), (("job.bucket", "4 MB"),)), several_jobs=False), end="")
    policies = ["fifo:slice=64 KB"]
    <BLANKLINE>
    [job]
    bucket = "4 MB"
    """
    lines = [f"policies = [{json.dumps(candidate.policy.name)}]"]
    sections: dict[str, list[str]] = {}
    for key, value in candidate.keys:
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {_value(value)}")
    for section, rows in sections.items():
        in_each = "  # of every [[job]]" if section == "job" and several_jobs else ""
        lines += ["", f"[{section}]{in_each}", *rows]
    return "\n".join(lines) + "\n"


def _value(text: str) -> str:
    """Return a value as TOML has it: as it is where it is TOML, as --set reads it, otherwise as a text."""
    try:
        return text if list(tomllib.loads(f"value = {text}")) == ["value"] else json.dumps(text)
    except tomllib.TOMLDecodeError:
        return json.dumps(text)


def again(candidate: Candidate, scenario: str | None, overrides: Sequence[str]) -> str:
    """Return how to predict it once more, as one types it."""
    words = ["tensorexpress", "predict", *([scenario] if scenario else []), "--policy", candidate.policy.name]
    return shlex.join([*words, *(word for each in (*overrides, *candidate.overrides) for word in ("--set", each))])
