"""Explanations: the gain of a policy over fifo, split into its choices and what is left to the optimum.

The choices of a policy are switched on one at a time, from what a framework changes first to what needs the network:
slicing, host order, credit, switch order. What a choice gains depends on which others are on already, so each is also
measured alone, and as the last one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten, wrap
from typing import TYPE_CHECKING, Any

from tensorexpress import scenario as scenarios
from tensorexpress.errors import PolicyError
from tensorexpress.heading import heading
from tensorexpress.policy import POLICIES, Policy, describe
from tensorexpress.scenario import Scenario
from tensorexpress.sim.predict import Prediction, predict
from tensorexpress.text import grid
from tensorexpress.trace import JobMetrics
from tensorexpress.units import PS_PER_MS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The choices in the order in which they are switched on, and the fields of `Policy` that each sets.
CHOICES: dict[str, tuple[str, ...]] = {
    "slicing": ("slice_bytes",),
    "host order": ("host_order",),
    "credit": ("credit_bytes",),
    "switch order": ("discipline", "queue_map"),
}

#: A gain below this part of an iteration is called nothing; so is, in words, a time below the second decimal of a ms.
_WORTH_IT = 0.02
_NEGLIGIBLE_PS = PS_PER_MS / 200

#: Part of the possible gain by which a choice must depend on the others for the text to mention it.
_INTERACTS = 0.05


@dataclass(frozen=True)
class Step:
    """One choice switched on beside those before it; times in ps, and a negative gain is a loss."""

    #: A name in CHOICES, or "fifo" for the start.
    name: str
    iteration_ps: float
    blocking_ps: float
    #: Tensor latency of the first layer, which the next forward pass needs first.
    first_ps: float
    #: What the choice takes off the iteration of the step before.
    gain_ps: float = 0.0
    #: What it takes off fifo when it is the only one that is on.
    alone_ps: float = 0.0
    #: What it takes off the iteration when all others are on already.
    last_ps: float = 0.0


@dataclass(frozen=True)
class JobExplanation:
    """The steps of one job from fifo to the policy. Their gains and `left_ps` add up to `possible_ps`."""

    job: str
    steps: tuple[Step, ...]
    #: Forward and backward of the slowest worker.
    compute_ps: float
    #: The iteration time that no schedule can beat.
    optimal_ps: float

    @property
    def possible_ps(self) -> float:
        """What the best schedule there could be takes off an iteration under fifo."""
        return self.steps[0].iteration_ps - self.optimal_ps

    @property
    def left_ps(self) -> float:
        """What the policy leaves to the optimum."""
        return self.steps[-1].iteration_ps - self.optimal_ps

    @property
    def floor_ps(self) -> float:
        """What an iteration takes if nothing ever waits for the network.

        That is compute, or the optimum where workers differ in speed: a fast one need not wait for all that the
        slowest computes.
        """
        return min(self.compute_ps, self.optimal_ps)

    def share(self, gain_ps: float) -> float | None:
        """Return a gain as a part of what is possible; None where it is none: more than all, or of nothing."""
        return gain_ps / self.possible_ps if 0 < self.possible_ps >= abs(gain_ps) else None

    def speedup(self, iteration_ps: float) -> float:
        """Return how many times shorter an iteration is than under fifo."""
        return self.steps[0].iteration_ps / iteration_ps


@dataclass(frozen=True)
class Explanation:
    """Where the gain of a policy comes from, job by job."""

    scenario: Scenario
    policy: Policy
    jobs: tuple[JobExplanation, ...]


def explain(
    scenario: Scenario, policy: Policy, engine: str = "auto", progress: Callable[[str], None] | None = None
) -> Explanation:
    """Split the gain of a policy over fifo into the choices it makes; `progress` is called after each simulation.

    >>> from tensorexpress.scenario import read_scenario
    >>> small = read_scenario(overrides=["job.workers=2", "job.servers=1"])
    >>> [step.name for step in explain(small, POLICIES["p3"]).jobs[0].steps]
    ['fifo', 'slicing', 'host order']
    """
    mixes = _mixes(policy)
    prediction = predict(scenario, [_mixed(policy, mix) for mix in mixes], engine, progress)
    choices = choices_of(policy)
    return Explanation(
        scenario, policy, tuple(_explain_job(prediction, choices, job) for job in range(len(scenario.jobs)))
    )


def choices_of(policy: Policy) -> tuple[str, ...]:
    """Return the choices in which a policy differs from fifo.

    >>> choices_of(POLICIES["bytescheduler"])
    ('slicing', 'host order', 'credit')
    """
    fifo = POLICIES["fifo"]
    return tuple(
        choice
        for choice, fields in CHOICES.items()
        if any(getattr(policy, field) != getattr(fifo, field) for field in fields)
    )


def simulations(policy: Policy) -> int:
    """Return how many simulations an explanation of the policy takes.

    >>> simulations(POLICIES["tensorexpress"])
    8
    """
    return len(_mixes(policy))


def _mixes(policy: Policy) -> list[tuple[str, ...]]:
    """Return the sets of choices to simulate: the steps, each choice alone, and all but one."""
    choices = choices_of(policy)
    if not choices:
        raise PolicyError(f"policy {policy.name!r} makes the same choices as fifo; accepted: one that differs from it")
    steps = [choices[:count] for count in range(len(choices) + 1)]
    alone = [(choice,) for choice in choices]
    return list(dict.fromkeys([*steps, *alone, *(_without(choices, choice) for choice in choices)]))


def _without(choices: Iterable[str], left_out: str) -> tuple[str, ...]:
    return tuple(choice for choice in choices if choice != left_out)


def _mixed(policy: Policy, mix: Sequence[str]) -> Policy:
    """Return fifo with some choices of a policy."""
    changes = {field: getattr(policy, field) for choice in mix for field in CHOICES[choice]}
    return replace(POLICIES["fifo"], name=_name(mix), **changes)


def _name(mix: Sequence[str]) -> str:
    return " + ".join(["fifo", *mix])


def _explain_job(prediction: Prediction, choices: tuple[str, ...], job: int) -> JobExplanation:
    def metrics(*mix: str) -> JobMetrics:
        return prediction.results[_name(mix)].jobs[job]

    def gain_ps(choice: str, others: Sequence[str]) -> float:
        mix = [one for one in choices if one in (*others, choice)]
        return metrics(*others).iteration_ps - metrics(*mix).iteration_ps

    def step(count: int) -> Step:
        measured = metrics(*choices[:count])
        times = (measured.iteration_ps, measured.blocking_ps, measured.latency.first_ps)
        if count == 0:
            return Step("fifo", *times)
        choice = choices[count - 1]
        return Step(
            choice,
            *times,
            gain_ps=gain_ps(choice, choices[: count - 1]),
            alone_ps=gain_ps(choice, ()),
            last_ps=gain_ps(choice, _without(choices, choice)),
        )

    return JobExplanation(
        job=prediction.scenario.jobs[job].name,
        steps=tuple(step(count) for count in range(len(choices) + 1)),
        compute_ps=metrics().compute_ps,
        optimal_ps=prediction.optimal_ps[job],
    )


def to_json(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as a JSON object; times are in milliseconds."""
    return {
        "scenario": scenarios.to_json(explanation.scenario),
        "policy": {"name": explanation.policy.name, "choices": describe(explanation.policy)},
        "jobs": {job.job: _job_to_json(job) for job in explanation.jobs},
    }


def _job_to_json(job: JobExplanation) -> dict[str, Any]:
    return {
        "steps": [
            {
                "name": step.name,
                "iteration_ms": step.iteration_ps / PS_PER_MS,
                "blocking_ms": step.blocking_ps / PS_PER_MS,
                "latency_first_ms": step.first_ps / PS_PER_MS,
                "gain_ms": step.gain_ps / PS_PER_MS,
                "share": job.share(step.gain_ps),
                "speedup": job.speedup(step.iteration_ps),
                "alone_ms": step.alone_ps / PS_PER_MS,
                "last_ms": step.last_ps / PS_PER_MS,
            }
            for step in job.steps
        ],
        "compute_ms": job.compute_ps / PS_PER_MS,
        "optimal_ms": job.optimal_ps / PS_PER_MS,
        "possible_ms": job.possible_ps / PS_PER_MS,
        "left_ms": job.left_ps / PS_PER_MS,
        "left_share": job.share(job.left_ps),
        "summary": summary(job),
    }


def as_table(explanation: Explanation) -> str:
    """Return the table for a terminal, with what it says in words below."""
    inputs = explanation.scenario
    lines = [
        heading(inputs),
        f"{explanation.policy.name}: {describe(explanation.policy)}",
    ]
    for job in explanation.jobs:
        title = [f"{job.job}:"] if len(explanation.jobs) > 1 else []
        lines += ["", *title, *(line.rstrip() for line in grid(_table_rows(job))), "", *wrap(summary(job), 110)]
    return "\n".join([*lines, "", *wrap(_READING, 110)])


_READING = (
    "gain is against the line above and so depends on the order of switching; alone is the gain when nothing else is "
    "on, last the gain when all else is on; of possible is the part of what lies between fifo and the optimum."
)


def _table_rows(job: JobExplanation) -> list[list[str]]:
    rows = [
        ["", "iteration", "speed-", "blocking", "1st layer", "gain", "of", "alone", "last"],
        ["step", "ms", "up", "ms", "ms", "ms", "possible", "ms", "ms"],
    ]
    for step in job.steps:
        waits = [f"{step.blocking_ps / PS_PER_MS:.2f}", f"{step.first_ps / PS_PER_MS:.2f}"]
        label, gains = (f"+ {step.name}", _gains(job, step)) if step is not job.steps[0] else (step.name, ("",) * 4)
        rows.append([label, *_reached(job, step.iteration_ps), *waits, *gains])
    left = [_signed_ms(job.left_ps), _percent(job.share(job.left_ps))]
    return [*rows, ["optimum", *_reached(job, job.optimal_ps), "", "", *left, "", ""]]


def _reached(job: JobExplanation, iteration_ps: float) -> tuple[str, ...]:
    return (f"{iteration_ps / PS_PER_MS:.2f}", f"{job.speedup(iteration_ps):.2f}x")


def _gains(job: JobExplanation, step: Step) -> tuple[str, ...]:
    in_order = (_signed_ms(step.gain_ps), _percent(job.share(step.gain_ps)))
    return (*in_order, _signed_ms(step.alone_ps), _signed_ms(step.last_ps))


def _signed_ms(gain_ps: float) -> str:
    return f"{gain_ps / PS_PER_MS:+.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def summary(job: JobExplanation) -> str:
    """Return in one to three sentences what the steps say."""
    fifo = job.steps[0]
    if job.possible_ps < _WORTH_IT * job.optimal_ps:
        return _nothing_to_gain(job)
    effects = ", ".join(f"{step.name} {_verb(step.gain_ps, 'removes', 'costs')}" for step in job.steps[1:])
    beyond_ps = fifo.iteration_ps - job.floor_ps
    if all(step.gain_ps <= beyond_ps for step in job.steps[1:]):
        start = f"Of the {_ms(beyond_ps)} that an iteration under fifo takes beyond compute, {effects}"
    else:  # a step makes up for what an earlier one has cost
        start = f"An iteration under fifo takes {_ms(beyond_ps)} beyond compute; {effects}"
    sentences = [
        f"{start}; "
        f"{_ms(job.steps[-1].iteration_ps - job.floor_ps)} remain, of which no schedule can remove "
        f"{_ms(job.optimal_ps - job.floor_ps)}."
    ]
    if job.steps[-1].iteration_ps >= fifo.iteration_ps:
        sentences.append("All in all the policy gains nothing over fifo here.")
    return " ".join([*sentences, *_interaction(job)])


def _nothing_to_gain(job: JobExplanation) -> str:
    fifo = job.steps[0]
    if fifo.iteration_ps - job.compute_ps < _WORTH_IT * job.compute_ps:
        return (
            f"There is nothing to gain: the job is compute-bound. Under fifo an iteration takes "
            f"{_ms(fifo.iteration_ps)}, of which {_ms(job.compute_ps)} are compute; the best schedule would take off "
            f"{_ms(job.possible_ps)}."
        )
    return (
        f"There is nothing to gain: the job is network-bound. Under fifo an iteration takes {_ms(fifo.iteration_ps)}, "
        f"and the bytes alone need {_ms(job.optimal_ps)} in any order; more bandwidth or fewer bytes would help."
    )


def _interaction(job: JobExplanation) -> list[str]:
    """Return the sentence about the choice whose gain depends most on the others, if any does notably."""
    most = max(job.steps[1:], key=lambda step: abs(step.last_ps - step.alone_ps))
    if abs(most.last_ps - most.alone_ps) < _INTERACTS * job.possible_ps:
        return []
    return [
        f"The order of switching matters: {most.name} {_verb(most.alone_ps, 'gains', 'costs')} when it is alone, "
        f"and {_verb(most.last_ps, 'gains', 'costs')} when all else is on already."
    ]


def _verb(gain_ps: float, gains: str, costs: str) -> str:
    """Return a gain in words, so that no reader has to think about signs."""
    if abs(gain_ps) < _NEGLIGIBLE_PS:
        return f"{gains} nothing"
    return f"{gains if gain_ps > 0 else costs} {_ms(abs(gain_ps))}"


def _ms(ps: float) -> str:
    return f"{ps / PS_PER_MS:.2f} ms"


def plot_explanation(explanation: Explanation, path: str | os.PathLike[str]) -> None:
    """Draw an explanation to a PNG or SVG file: a waterfall from fifo down to the optimum for every job."""
    from tensorexpress.sim.plot import check_suffix, save_figure

    check_suffix(path)
    save_figure(draw_explanation(explanation), path)


def draw_explanation(explanation: Explanation) -> Figure:
    """Return the figure that `plot_explanation` saves."""
    from tensorexpress.sim.plot import new_figure

    rows = len(explanation.jobs[0].steps) + 2
    figure = new_figure(10, 0.9 + len(explanation.jobs) * (0.9 + 0.36 * rows))
    figure.suptitle(
        f"{explanation.scenario.name}: where the gain of {explanation.policy.name} comes from\n"
        f"{describe(explanation.policy)}",
        x=0.012,
        ha="left",
        fontsize=12,
        linespacing=1.4,
        parse_math=False,
    )
    panels = figure.subplots(len(explanation.jobs), 2, squeeze=False, sharey="row", width_ratios=[1, 0.95])
    for (axes, numbers), job in zip(panels, explanation.jobs, strict=True):
        bars = _bars(job, shorten(explanation.policy.name, 24, placeholder="..."))
        _draw_waterfall(axes, job, bars)
        _draw_numbers(numbers, bars)
        if len(explanation.jobs) > 1:
            axes.set_title(job.job, loc="left", fontsize=9, fontweight="bold", parse_math=False)
    return figure


@dataclass(frozen=True)
class _Bar:
    """A row of the waterfall: from where to where, in ps of iteration time, and what is written beside it."""

    label: str
    start_ps: float
    end_ps: float
    colour: str
    cells: tuple[str, ...] = ()


_TOTAL, _LEFT, _FAINT = "#5B7C99", "#B5C7D6", "#555555"

_NUMBERS = ("iteration ms", "speed-up", "gain ms", "of possible", "alone ms", "last ms")


def _bars(job: JobExplanation, policy: str) -> list[_Bar]:
    from tensorexpress.sim.plot import PALETTE

    def whole(label: str, iteration_ps: float) -> _Bar:
        return _Bar(label, job.floor_ps, iteration_ps, _TOTAL, _reached(job, iteration_ps))

    bars = [whole("fifo", job.steps[0].iteration_ps)]
    for step in job.steps[1:]:
        before_ps = step.iteration_ps + step.gain_ps
        colour = PALETTE[2] if step.gain_ps >= 0 else PALETTE[5]
        cells = (*_reached(job, step.iteration_ps), *_gains(job, step))
        bars.append(_Bar(f"+ {step.name}", before_ps, step.iteration_ps, colour, cells))
    left = ("", "", _signed_ms(job.left_ps), _percent(job.share(job.left_ps)))
    bars.append(_Bar(f"left by {policy}", job.steps[-1].iteration_ps, job.optimal_ps, _LEFT, left))
    return [*bars, whole("optimum", job.optimal_ps)]


def _draw_waterfall(axes: Axes, job: JobExplanation, bars: Sequence[_Bar]) -> None:
    ends_ms = [((bar.start_ps - job.floor_ps) / PS_PER_MS, (bar.end_ps - job.floor_ps) / PS_PER_MS) for bar in bars]
    for row, (bar, (start, end)) in enumerate(zip(bars, ends_ms, strict=True)):
        axes.barh(row, end - start, left=start, height=0.62, color=bar.colour)
        if bar is not bars[-1]:
            axes.plot([end, end], [row - 0.31, row + 1.31], color=_FAINT, linewidth=0.8)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=9)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 1.02 * max(map(max, ends_ms)) or 1.0)
    axes.set_xlabel(f"iteration time beyond {_ms(job.floor_ps)} of compute (ms)", fontsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_numbers(axes: Axes, bars: Sequence[_Bar]) -> None:
    """Write the numbers of every bar beside it."""
    axes.set_axis_off()
    for column, header in enumerate(_NUMBERS, 1):
        right = column / len(_NUMBERS)
        axes.text(right, 1, header, transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color=_FAINT)
        for row, bar in enumerate(bars):
            if column <= len(bar.cells):
                place = axes.get_yaxis_transform()
                axes.text(right, row, bar.cells[column - 1], transform=place, ha="right", va="center", fontsize=9)
