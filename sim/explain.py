"""Explanations: the gain of a policy over fifo, split into its choices and what is left to the optimum.

The choices of a policy are switched on one at a time, from what a framework changes first to what needs the network:
slicing, host order, credit, switch order, sums in the switch, and last the placement. What a choice gains depends on
which others are on already, so each is also measured alone, and as the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tensorexpress.errors import PolicyError
from tensorexpress.policy import POLICIES, Policy, parse_policy
from tensorexpress.results.explanation import Explanation, JobExplanation, Step
from tensorexpress.results.side_by_side import SideBySide
from tensorexpress.scenario import Scenario
from tensorexpress.sim.predict import predict
from tensorexpress.trace import JobMetrics

#: The choices in the order in which they are switched on, and the fields of `Policy` that each sets.
CHOICES: dict[str, tuple[str, ...]] = {
    "slicing": ("slice_bytes",),
    "host order": ("host_order",),
    "credit": ("credit_bytes",),
    "switch order": ("discipline", "queue_map"),
    "sums in the switch": ("sums",),
    "placement": ("placement",),
}


def explain(
    scenario: Scenario, policy: Policy | str, engine: str = "auto", progress: Callable[[str], None] | None = None
) -> Explanation:
    """Split the gain of a policy over fifo into the choices it makes; `progress` is called after each simulation.

    >>> from tensorexpress.scenario import read_scenario
    >>> small = read_scenario(overrides=["job.workers=2", "job.servers=1"])
    >>> [step.name for step in explain(small, "p3").jobs[0].steps]
    ['fifo', 'slicing', 'host order']
    """
    policy = parse_policy(policy) if isinstance(policy, str) else policy
    mixes = _mixes(policy)
    prediction = predict(scenario, [_mixed(policy, mix) for mix in mixes], engine, progress, grain=1)
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


def _explain_job(prediction: SideBySide, choices: tuple[str, ...], job: int) -> JobExplanation:
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
