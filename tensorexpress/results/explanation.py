"""Explanations as values: the gain of a policy over fifo in steps, one for each of its choices, and in words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tensorexpress.policy import POLICIES, Policy
from tensorexpress.results.provenance import Provenance, provenance
from tensorexpress.scenario import Scenario
from tensorexpress.units import PS_PER_MS, format_ms

#: A gain below this part of an iteration is called nothing; so is, in words, a time below the second decimal of a ms.
_WORTH_IT = 0.02
_NEGLIGIBLE_PS = PS_PER_MS / 200

#: Part of the possible gain by which a choice must depend on the others for the text to mention it.
_INTERACTS = 0.05


@dataclass(frozen=True)
class Step:
    """One choice switched on beside those before it; times in ps, and a negative gain is a loss."""

    #: A name in `sim.explain.CHOICES`, or "fifo" for the start.
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

        That is compute, or the optimum where it is less: compute times are drawn, and at both ends of what is measured
        a fast worker need not wait for all that a slow one computes.
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

    @cached_property
    def provenance(self) -> Provenance:
        """What made this."""
        return provenance(self.scenario, [POLICIES["fifo"], self.policy])


def summary(job: JobExplanation) -> str:
    """Return in one to three sentences what the steps say."""
    fifo = job.steps[0]
    if job.possible_ps < _WORTH_IT * job.optimal_ps:
        return _nothing_to_gain(job)
    effects = ", ".join(f"{step.name} {_verb(step.gain_ps, 'removes', 'costs')}" for step in job.steps[1:])
    beyond_ps = fifo.iteration_ps - job.floor_ps
    if all(step.gain_ps <= beyond_ps for step in job.steps[1:]):
        start = f"Of the {format_ms(beyond_ps)} that an iteration under fifo takes beyond compute, {effects}"
    else:  # a step makes up for what an earlier one has cost
        start = f"An iteration under fifo takes {format_ms(beyond_ps)} beyond compute; {effects}"
    sentences = [
        f"{start}; "
        f"{format_ms(job.steps[-1].iteration_ps - job.floor_ps)} remain, of which no schedule can remove "
        f"{format_ms(job.optimal_ps - job.floor_ps)}."
    ]
    if job.steps[-1].iteration_ps >= fifo.iteration_ps:
        sentences.append("All in all the policy gains nothing over fifo here.")
    return " ".join([*sentences, *_interaction(job)])


def _nothing_to_gain(job: JobExplanation) -> str:
    fifo = job.steps[0]
    if fifo.iteration_ps - job.compute_ps < _WORTH_IT * job.compute_ps:
        return (
            f"There is nothing to gain: the job is compute-bound. Under fifo an iteration takes "
            f"{format_ms(fifo.iteration_ps)}, of which {format_ms(job.compute_ps)} are compute; the best schedule "
            f"would take off {format_ms(job.possible_ps)}."
        )
    return (
        f"There is nothing to gain: the job is network-bound. Under fifo an iteration takes "
        f"{format_ms(fifo.iteration_ps)}, and the bytes alone need {format_ms(job.optimal_ps)} in any order; "
        "more bandwidth or fewer bytes would help."
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
    return f"{gains if gain_ps > 0 else costs} {format_ms(abs(gain_ps))}"
