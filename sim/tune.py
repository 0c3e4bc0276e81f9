"""Tuning: finds a policy, and values of a scenario's keys, with short iterations.

Policies that have a name are simulated first, at packet level; if one is near enough to the bound, that is the answer.
Otherwise there are rounds of successive halving. A round begins with the neighbours of the best so far and some that
are drawn; all are simulated coarsely, the better third less coarsely, the best third of these at packet level. Rounds
go on while they find something better. Only packet level decides, so what comes out is no worse than any named policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorexpress.errors import InputError, TensorExpressError
from tensorexpress.knobs import Candidate, Knob, Space, candidate_of, check_asked, usual_knobs, with_asked
from tensorexpress.policy import CHOICE_NAMES, POLICIES, Policy
from tensorexpress.results.provenance import digest, provenance
from tensorexpress.results.tuned import Trial, Tuned, best_of, bound_ps, decisive
from tensorexpress.scenario import Scenario, chosen_policies, scenario_from, study_from
from tensorexpress.scenario_document import Override
from tensorexpress.sim.grain import most_packets, usual_seconds, why_not_coarse
from tensorexpress.sim.predict import announce_simpy, checked_policies
from tensorexpress.sim.processes import LocalProcesses
from tensorexpress.sim.tasks import Executor, SimulationTask, read_base

#: Packets moved as one in the rungs of a round before the last, by how many seconds packet level usually takes from
#: which on; and one of how many goes on to the next rung. What takes no time need not be simulated coarsely.
_GRAINS = {16: 5.0, 4: 0.5}
_ONE_OF = 3

#: Candidates of a round, and how many knobs are turned at once in those that are drawn.
_WIDTH = 27
_TURNS = (2, 3)

#: What is this much slower than the best by a coarse simulation is not looked at more closely.
_HOPELESS = 1.1

#: A round that gains less than this share has found nothing, and after so many of those in a row the search ends.
_WORTH_IT = 0.001
_IDLE_ROUNDS = 2

#: Simulations of a tuning where nobody says how many, and how near to the bound is near enough.
USUAL_BUDGET = 150
USUAL_TARGET = 0.01


@dataclass(frozen=True)
class Question:
    """What is to be tuned: a scenario as it is written, and what may be turned."""

    content: Mapping[str, Any]
    source: str
    overrides: tuple[str | Override, ...]
    knobs: tuple[Knob, ...]
    #: Policies to start with beside those that have a name.
    policies: tuple[Policy, ...]

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario as it is."""
        return scenario_from(self.content, self.source, self.overrides)

    def scenario_of(self, candidate: Candidate) -> Scenario:
        """Return the scenario with a candidate's keys."""
        return scenario_from(self.content, self.source, (*self.overrides, *_turned(candidate)))


def question_of(
    base: str | Path | Mapping[str, Any] | None,
    overrides: Sequence[str] = (),
    vary: Mapping[str, Sequence[str]] | None = None,
    fixed: Mapping[str, str | None] | None = None,
    policies: Sequence[str] = (),
) -> Question:
    """Return what is asked for; keys that are fixed to a value have it from the start."""
    content, source = read_base(base)
    vary, fixed = vary or {}, dict(fixed or {})
    check_asked(vary, fixed)
    set_to = [
        Override(f"{name}={value}", f"--fix {name}")
        for name, value in fixed.items()
        if name not in CHOICE_NAMES and value is not None
    ]
    for override in set_to:
        fixed[override.text.partition("=")[0]] = None
    common: tuple[str | Override, ...] = (*overrides, *chosen_policies(policies), *set_to)
    study = study_from(content, source, common)
    study.scenario.check_in_step()
    knobs = tuple(with_asked(usual_knobs(study.scenario), vary, fixed))
    for knob in knobs:
        for value in knob.values if knob.asked_for and not knob.is_choice else ():
            scenario_from(content, source, (*common, Override(f"{knob.name}={value}", f"--vary {knob.name}")))
    return Question(content, source, common, knobs, study.policies)


def tune(
    question: Question,
    *,
    budget: int = USUAL_BUDGET,
    target: float = USUAL_TARGET,
    seed: int = 1,
    finest: int = 1,
    engine: str = "auto",
    executor: Executor | None = None,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> Tuned:
    """Look for short iterations with at most `budget` simulations; stop within `target` of the bound.

    The same question and seed give the same answer, however many processes the executor has. Ctrl-C ends the search;
    what is returned then holds the trials that are finished.
    """
    if not 1 <= finest <= most_packets(question.scenario):
        raise InputError(f"grain {finest}; accepted: 1 to {most_packets(question.scenario)}")
    announce_simpy(question.scenario, question.policies, engine, finest, per_point=True)
    with executor or LocalProcesses() as running:
        search = _Search(question, running, budget, finest, engine, on_trial)
        try:
            stopped = search.run(target, random.Random(seed))
        except KeyboardInterrupt:
            stopped = "interrupted"
    first = provenance(question.scenario, [trial.candidate.policy for trial in decisive(search.trials, finest)])
    return Tuned(question.scenario, first, question.knobs, tuple(search.trials), finest, stopped, target)


def _turned(candidate: Candidate) -> list[Override]:
    return [Override(text, f"knob {text.partition('=')[0]}") for text in candidate.overrides]


class _Search:
    """What was tried so far, and what that leaves to try."""

    def __init__(
        self,
        question: Question,
        executor: Executor,
        budget: int,
        finest: int,
        engine: str,
        on_trial: Callable[[Trial], None],
    ):
        self.trials: list[Trial] = []
        self._question, self._executor, self._left = question, executor, budget
        self._finest, self._engine, self._on_trial = finest, engine, on_trial
        self._space = Space(question.knobs)
        self._asks_for_order = any(knob.asked_for and knob.name in ("switch", "queues") for knob in question.knobs)
        #: By what is simulated: candidates that differ in nothing that counts share a trial.
        self._known: dict[tuple[str, Policy, int], Trial] = {}
        self._scenarios: dict[tuple[tuple[str, str], ...], tuple[Scenario, str] | None] = {}

    @cached_property
    def _packet_seconds(self) -> float:
        return usual_seconds(self._question.scenario, [POLICIES["p3"]], 1)

    def run(self, target: float, draw: random.Random) -> str:
        """Try until there is a reason to stop; return it."""
        self._try_all(self._starts(), self._finest, "named")
        best, number, idle = self._best(), 0, 0
        while best.iteration_ps > (1 + target) * bound_ps(decisive(self.trials, self._finest)):
            if self._left <= 0:
                return "budget"
            if idle == _IDLE_ROUNDS:
                return "settled"
            number += 1
            self._round(number, self._pool(draw))
            before, best = best, self._best()
            idle = idle + 1 if best.iteration_ps > (1 - _WORTH_IT) * before.iteration_ps else 0
        return "target"

    def _best(self) -> Trial:
        best = best_of(decisive(self.trials, self._finest))
        if best is None:
            raise self._no_start()
        return best

    def _no_start(self) -> TensorExpressError:
        problem = next((trial.problem for trial in self.trials if trial.problem), "no policy is as was asked for")
        return InputError(f"{self._question.source}: nothing to start with: {problem}; accepted: other --fix or --vary")

    def _starts(self) -> list[Candidate]:
        """Return named policies and those of the scenario, as far as they are possible, and fifo."""
        named = (*POLICIES.values(), *self._question.policies)
        starts = [self._space.within(candidate_of(policy)) for policy in named]
        possible = [each for each in dict.fromkeys(starts) if self._space.contains(each) and self._fits(each)]
        return list(dict.fromkeys([candidate_of(POLICIES["fifo"]), *possible]))

    def _pool(self, draw: random.Random) -> list[Candidate]:
        """Return what a round begins with: all neighbours of the best, and some that are further from the best few."""
        ranked = sorted(
            (trial for trial in decisive(self.trials, self._finest) if trial.eligible),
            key=lambda trial: trial.iteration_ps,
        )
        pool = dict.fromkeys(each for each in self._space.neighbours(ranked[0].candidate) if self._fits(each))
        for _ in range(4 * _WIDTH):
            if len(pool) >= _WIDTH:
                break
            start = draw.choice(ranked[:3]).candidate
            drawn = self._space.drawn(start, draw.choice(_TURNS), draw)
            if drawn is not None and self._fits(drawn):
                pool[drawn] = None
        return [each for each in pool if self._trial(each, self._finest) is None]

    def _round(self, number: int, pool: Sequence[Candidate]) -> None:
        seconds, most = self._packet_seconds, most_packets(self._question.scenario)
        grains = [grain for grain, least in _GRAINS.items() if self._finest < grain <= most and seconds >= least]
        contenders = list(pool)
        for rung, grain in enumerate([*grains, self._finest], 1):
            gauge = self._gauge(grain)
            self._try_all([*([gauge] if gauge else []), *contenders], grain, f"{number}.{rung}")
            if grain != self._finest:
                contenders = self._better(contenders, grain, gauge)

    def _gauge(self, grain: int) -> Candidate | None:
        """Return what tells how far coarse times are off: the best so far that can be simulated coarsely."""
        coarse = [
            trial
            for trial in decisive(self.trials, self._finest)
            if self._grain(trial.candidate, grain) == grain > self._finest
        ]
        return min(coarse, key=lambda trial: trial.iteration_ps).candidate if coarse else None

    def _better(self, contenders: Sequence[Candidate], grain: int, gauge: Candidate | None) -> list[Candidate]:
        """Return the better third, with all that this grain does not tell from them, and without what is hopeless."""
        factor = 1.0
        if gauge is not None:
            fine, coarse = self._trial(gauge, self._finest), self._trial(gauge, grain)
            if fine is not None and coarse is not None and coarse.results:
                factor = fine.iteration_ps / coarse.iteration_ps
        best = self._best()
        expected: dict[int, float] = {}
        by_trial: dict[int, list[Candidate]] = {}
        for candidate in contenders:
            trial = self._trial(candidate, grain)
            if trial is None:  # the budget is used up
                continue
            by_trial.setdefault(id(trial), []).append(candidate)
            expected[id(trial)] = trial.iteration_ps * (factor if trial.grain > self._finest else 1.0)
        kept = sorted(by_trial, key=expected.__getitem__)[: -(-len(by_trial) // _ONE_OF)]
        near = [each for each in kept if expected[each] <= _HOPELESS * best.iteration_ps]
        return [candidate for each in near for candidate in by_trial[each]]

    def _try_all(self, candidates: Iterable[Candidate], wanted: int, stage: str) -> None:
        """Simulate what is not known yet, as far as the budget goes; trials are noted in the order of candidates."""
        asked: dict[tuple[str, Policy, int], tuple[Candidate, int]] = {}
        for candidate in candidates:
            key = self._key(candidate, wanted)
            if key not in self._known and key not in asked and len(asked) < self._left:
                asked[key] = candidate, self._grain(candidate, wanted)
        tasks = [self._task(number, *each) for number, each in enumerate(asked.values())]
        done: dict[int, Trial] = {}
        try:
            for task, outcome in self._executor.outcomes(tasks) if tasks else ():
                candidate, grain = list(asked.values())[task.number]
                failed = isinstance(outcome, TensorExpressError)
                trial = Trial(
                    candidate,
                    stage,
                    grain,
                    () if isinstance(outcome, TensorExpressError) else outcome.results,
                    str(outcome) if failed else "",
                    self._eligible(candidate),
                )
                done[task.number] = trial
                self._on_trial(trial)
        finally:
            for number, key in enumerate(asked):
                if number in done:
                    self._known[key] = done[number]
                    self.trials.append(done[number])
            self._left -= len(done)

    def _task(self, number: int, candidate: Candidate, grain: int) -> SimulationTask:
        question = self._question
        overrides = (*question.overrides, *_turned(candidate))
        return SimulationTask(
            number, candidate.label, question.content, question.source, overrides, candidate.policy, self._engine, grain
        )

    def _eligible(self, candidate: Candidate) -> bool:
        """Whether a candidate is as was asked for, and switches can do it; a user may ask for what they cannot."""
        possible = candidate.policy.deployment is not None or self._asks_for_order
        return possible and self._space.contains(candidate)

    def _grain(self, candidate: Candidate, wanted: int) -> int:
        """Return how finely a candidate is simulated where a grain is wanted: sums in switches, packet by packet."""
        if candidate.policy.in_switches or why_not_coarse(self._question.scenario) is not None:
            return 1
        return wanted

    def _trial(self, candidate: Candidate, wanted: int) -> Trial | None:
        return self._known.get(self._key(candidate, wanted))

    def _key(self, candidate: Candidate, wanted: int) -> tuple[str, Policy, int]:
        scenario, scenario_digest = self._known_scenario(candidate)
        policy, grain = candidate.policy, self._grain(candidate, wanted)
        sliced = policy.slice_bytes
        if grain > 1 and sliced:
            # Slices of a coarse simulation are at least a train.
            sliced = max(sliced, grain * scenario.framing.payload_bytes)
        if policy.in_switches and not any(layer.table for job in scenario.jobs for layer in job.workload.layers):
            sliced = 0
        return scenario_digest, replace(policy, name="any", slice_bytes=sliced), grain

    def _known_scenario(self, candidate: Candidate) -> tuple[Scenario, str]:
        found = self._scenarios[candidate.keys] if candidate.keys in self._scenarios else self._read(candidate)
        assert found is not None, "what cannot be read is not tried"
        return found

    def _read(self, candidate: Candidate) -> tuple[Scenario, str] | None:
        try:
            scenario = self._question.scenario_of(candidate)
            found = scenario, digest(scenario)
        except InputError:
            found = None
        self._scenarios[candidate.keys] = found
        return found

    def _fits(self, candidate: Candidate) -> bool:
        """Whether a candidate is possible in the scenario with its keys."""
        found = self._scenarios[candidate.keys] if candidate.keys in self._scenarios else self._read(candidate)
        # Sums in switches have no coarse simulation, and where others are coarse packet level takes too long.
        if found is None or (self._finest > 1 and candidate.policy.in_switches):
            return False
        try:
            checked_policies(found[0], [candidate.policy])
        except InputError:
            return False
        return True
