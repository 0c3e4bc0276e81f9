"""Knobs: what can be chosen for a scenario, choices of a policy and keys of the scenario, and candidates made of them.

A knob of a policy has the name of the choice ("slice"), one of the scenario the path of its key ("job.bucket"). What
begins with "cluster." is hardware: a candidate that changes it asks for another network than the scenario has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensorexpress.errors import InputError, PolicyError, unknown
from tensorexpress.policy import CHOICE_NAMES, POLICIES, Policy, policy_text, with_choices, written_choices
from tensorexpress.scenario import Scenario, policy_problems
from tensorexpress.scenario_keys import keys
from tensorexpress.units import format_size
from tensorexpress.vary import number_of

#: The smallest slice that is tried, how many sizes are, each twice the one before, and sizes of credit and buckets.
_LEAST_SLICE = 8_000
_SLICES = 10
_CREDITS = (250_000, 1_000_000, 4_000_000, 16_000_000)
_BUCKETS = (1_000_000, 4_000_000, 25_000_000)

#: Slices of one job from which smaller ones are left out: a simulation takes too long.
_MOST_SLICES = 50_000

#: Values of a knob of which all are tried; of more, those beside the one it has.
_FEW = 5

#: Values of a choice that stand for more than any size.
_NO_LIMIT = ("whole", "none", "unlimited")


@dataclass(frozen=True)
class Knob:
    """Something that can be chosen, and the values to choose from."""

    name: str
    #: As one writes them; of a key of the scenario, beside the scenario's own.
    values: tuple[str, ...]
    #: Whether a user gave the values, so that nothing else may come out.
    asked_for: bool = False

    @property
    def is_choice(self) -> bool:
        """Whether it is a choice of the policy."""
        return self.name in CHOICE_NAMES

    def others(self, value: str | None) -> list[str | None]:
        """Return the values beside one: the next ones where they are numbers, otherwise all."""
        sizes = {each: _size(each) for each in self.values}
        own = _size(value) if value is not None else None
        if not self.is_choice or own is None or None in sizes.values() or len(self.values) <= _FEW:
            kept: list[str | None] = [] if self.is_choice or self.asked_for else [None]
            return [each for each in [*kept, *self.values] if each != value]
        known = {each: size for each, size in sizes.items() if size is not None}
        below = [each for each, size in known.items() if size < own]
        above = [each for each, size in known.items() if size > own]
        return [
            *([max(below, key=known.__getitem__)] if below else []),
            *([min(above, key=known.__getitem__)] if above else []),
        ]

    def nearest(self, value: str) -> str:
        """Return the value that is nearest to another, which stays where the values are only proposals."""
        if not self.asked_for or value in self.values:
            return value
        own, sizes = _size(value), {each: _size(each) for each in self.values}
        if own is None or None in sizes.values():
            return self.values[0]
        return min(self.values, key=lambda each: abs(math.log((sizes[each] or 1) / own)))


def _size(value: str) -> float | None:
    """Return a value as a number above 0 to order it by; None for a word."""
    if value in _NO_LIMIT:
        return 1e18
    number = number_of(value)
    return max(number, 1.0) if number is not None else None


@dataclass(frozen=True)
class Candidate:
    """One way to do it: a policy, and keys of the scenario that are otherwise than there."""

    choices: tuple[tuple[str, str], ...]
    keys: tuple[tuple[str, str], ...] = ()

    @cached_property
    def policy(self) -> Policy:
        """The policy, under the shortest name that says all of it; PolicyError where choices do not go together."""
        text = policy_text(dict(self.choices))
        return with_choices(POLICIES["fifo"], dict(self.choices), text)

    @property
    def overrides(self) -> tuple[str, ...]:
        """The keys as --set takes them."""
        return tuple(f"{key}={value}" for key, value in self.keys)

    @property
    def label(self) -> str:
        """All of it on one line."""
        return " ".join([self.policy.name, *self.overrides])

    @property
    def hardware(self) -> dict[str, str]:
        """The keys that ask for another network than the scenario's."""
        return {key: value for key, value in self.keys if key.startswith("cluster.")}

    def changed(self, name: str, value: str | None) -> Candidate:
        """Return it with a knob turned; None is what the scenario has. What does not go with it is turned back."""
        if name in CHOICE_NAMES:
            assert value is not None, "a policy has a value for every choice"
            return Candidate(_consistent({**dict(self.choices), name: value}, name), self.keys)
        kept = {key: own for key, own in self.keys if key != name}
        return Candidate(self.choices, tuple(sorted((kept | ({name: value} if value is not None else {})).items())))


def candidate_of(policy: Policy) -> Candidate:
    """Return the candidate that a policy is in the scenario as it is."""
    return Candidate(tuple(written_choices(policy).items()))


def _consistent(choices: dict[str, str], turned: str) -> tuple[tuple[str, str], ...]:
    """Return choices that go together, and have one form where some of them mean nothing; `turned` is as it is."""
    sums = choices["sum"]
    if sums != "none":
        if turned == "credit" and choices["credit"] != "none":
            choices["sum"] = sums = "none"
        else:
            choices["credit"] = "none"
        if sums == "pool" or choices["placement"] == "load":
            choices["placement"] = "none"
    if choices["switch"] == "fifo" and sums == "none":
        choices["queues"] = written_choices(POLICIES["fifo"])["queues"]
    return tuple(choices.items())


def usual_knobs(scenario: Scenario) -> list[Knob]:
    """Return what is tried where nobody says otherwise: nothing that asks for more hardware than there is."""
    largest = max(sum(job.workload.tensor_bytes) for job in scenario.jobs)
    least = _LEAST_SLICE
    while largest // least > _MOST_SLICES:
        least *= 2
    slices = [least << power for power in range(_SLICES)]
    queues = [str(2**power) for power in range(6) if 2**power < scenario.cluster.queues]
    return [
        Knob("slice", (*map(format_size, slices), "whole")),
        Knob("host", ("priority", "fifo")),
        Knob("credit", (*map(format_size, _CREDITS), "none")),
        Knob("switch", ("strict", "fifo")),
        Knob("queues", ("fewest", "optimal", "equal")),
        Knob("sum", ("none", *_possible(scenario, "sum", ("pool", "front", "hashed")))),
        Knob("placement", ("none", *_possible_placements(scenario))),
        Knob("cluster.queues", tuple(queues)),
        Knob("job.bucket", ("0", *map(format_size, _BUCKETS))),
    ]


def _possible(scenario: Scenario, choice: str, values: Iterable[str]) -> Iterator[str]:
    for value in values:
        policy = with_choices(POLICIES["fifo"], {choice: value}, value)
        if not any(policy_problems(scenario, [policy])):
            yield value


def _possible_placements(scenario: Scenario) -> Iterable[str]:
    """Return the placements that may differ: with one switch there is one way to everywhere."""
    return _possible(scenario, "placement", ("load", "equal", "inart")) if len(scenario.cluster.switches) > 1 else ()


def check_asked(vary: Mapping[str, Sequence[str]], fixed: Mapping[str, str | None]) -> None:
    """Refuse what is no knob, and what is asked for in two ways."""
    known = {*CHOICE_NAMES, *(row.path for row in keys() if "." in row.path)}
    for name in (*vary, *fixed):
        # A number of a job, as in job.0.bucket, is for the scenario to check.
        plain = ".".join(step for step in name.split(".") if not step.isdigit())
        if plain not in known:
            raise InputError(unknown("knob", name, known))
        if name in vary and name in fixed:
            raise InputError(f"{name} is to be varied and to be fixed; accepted: one of the two")
    for name, value in fixed.items():
        if value is None and name in CHOICE_NAMES:
            raise InputError(
                f"--fix {name}: is a choice of policies, which scenarios do not have; accepted: {name}=VALUE"
            )


def with_asked(usual: Sequence[Knob], vary: Mapping[str, Sequence[str]], fixed: Mapping[str, str | None]) -> list[Knob]:
    """Return the knobs with the values that a user varies or fixes; a key that is fixed to None stays as it is."""
    asked = {name: Knob(name, tuple(values), asked_for=True) for name, values in vary.items()}
    asked |= {name: Knob(name, () if value is None else (value,), asked_for=True) for name, value in fixed.items()}
    for knob in asked.values():
        for value in knob.values if knob.is_choice else ():
            _checked_choice(knob.name, value)
    return [*(asked.pop(knob.name, knob) for knob in usual), *asked.values()]


def _checked_choice(choice: str, value: str) -> None:
    """Refuse a value that no policy has for a choice; what does not go with other choices is no matter here."""
    sorting = {"switch": "pifo"} if (choice, value) == ("queues", "slack") else {}
    try:
        with_choices(POLICIES["fifo"], {**sorting, choice: value}, choice)
    except PolicyError as error:
        raise InputError(f"{choice}={value}: {error}") from None


class Space:
    """The candidates that knobs make, those that were asked for kept to."""

    def __init__(self, knobs: Sequence[Knob]):
        #: A knob without a value stays as it is.
        self.knobs = [knob for knob in knobs if knob.values]
        self._asked = [knob for knob in knobs if knob.asked_for]

    def within(self, candidate: Candidate) -> Candidate:
        """Return the nearest candidate that is as was asked for."""
        choices, found = dict(candidate.choices), dict(candidate.keys)
        for knob in self._asked:
            if knob.is_choice:
                candidate = candidate.changed(knob.name, knob.nearest(choices[knob.name]))
            elif knob.values and found.get(knob.name) not in knob.values:
                candidate = candidate.changed(knob.name, knob.values[0])
        return candidate

    def contains(self, candidate: Candidate) -> bool:
        """Whether a candidate's choices go together, and are as was asked for."""
        try:
            _ = candidate.policy
        except PolicyError:
            return False
        return self.within(candidate) == candidate

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        """Return the candidates with one knob turned."""
        found = []
        for knob in self.knobs:
            own = dict(candidate.choices if knob.is_choice else candidate.keys).get(knob.name)
            found += [candidate.changed(knob.name, value) for value in knob.others(own)]
        return [each for each in dict.fromkeys(found) if each != candidate and self._worth_trying(each)]

    def _worth_trying(self, candidate: Candidate) -> bool:
        """Whether a candidate is possible, and what it turns by itself means something."""
        if not self.contains(candidate):
            return False
        has_classes = candidate.policy.orders_in_switches or candidate.policy.in_switches
        return has_classes or self._is_asked("cluster.queues") or "cluster.queues" not in dict(candidate.keys)

    def _is_asked(self, name: str) -> bool:
        return any(knob.name == name for knob in self._asked)

    def drawn(self, candidate: Candidate, turns: int, draw: random.Random) -> Candidate | None:
        """Return a candidate with some knobs turned anyhow, None if what came of it does not go together."""
        for knob in draw.sample(self.knobs, min(turns, len(self.knobs))):
            own: list[str | None] = [] if knob.is_choice or knob.asked_for else [None]
            candidate = candidate.changed(knob.name, draw.choice([*own, *knob.values]))
        return candidate if self._worth_trying(candidate) else None
