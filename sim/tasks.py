"""Tasks: single simulations that can be done anywhere, and what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from tensorexpress.errors import TensorExpressError
from tensorexpress.plan import make_plan
from tensorexpress.policy import Policy
from tensorexpress.results.columns import JobResult
from tensorexpress.results.provenance import Provenance
from tensorexpress.results.side_by_side import Result, side_by_side
from tensorexpress.scenario import Scenario, scenario_from
from tensorexpress.scenario_document import Override, read_toml
from tensorexpress.sim.predict import checked_policies, grain_of
from tensorexpress.sim.run import simulate_coarsely


@dataclass(frozen=True)
class SimulationTask:
    """One simulation, small enough to be sent to a process."""

    #: What it is for, to whoever asks for it.
    number: int
    #: The same in words, for error messages.
    label: str
    content: Mapping[str, Any]
    source: str
    overrides: tuple[str | Override, ...]
    policy: Policy
    engine: str
    #: Packets that are moved as one.
    grain: int = 1

    def scenario(self) -> Scenario:
        """Return what is simulated; files that it names are read."""
        return scenario_from(self.content, self.source, self.overrides)


@dataclass(frozen=True)
class Simulated:
    """What came out of a task: a result for every job."""

    results: tuple[JobResult, ...]
    provenance: Provenance


#: What comes of a task: results, or what a person should know of why there are none.
Outcome: TypeAlias = Simulated | TensorExpressError


class Executor(Protocol):
    """Where tasks are done; what it set up is taken down when it is left."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def outcomes(self, tasks: Sequence[SimulationTask]) -> Iterator[tuple[SimulationTask, Outcome]]:
        """Yield the tasks as they are finished, in any order."""


def read_base(base: str | Path | Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
    """Return what a scenario file or a dict of keys holds, and what errors call it; None is the default scenario."""
    if isinstance(base, Mapping):
        return base, "scenario"
    return ({}, "default") if base is None else (read_toml(str(base)), str(base))


def result_of(task: SimulationTask, outcome: Outcome) -> Simulated:
    """Return results; an error of a task is raised, and names it."""
    if isinstance(outcome, TensorExpressError):
        raise type(outcome)(f"{task.label}: {outcome}")
    return outcome


def outcome_of(task: SimulationTask) -> Outcome:
    """Return what comes of a task."""
    try:
        return simulated(task.scenario(), task.policy, task.engine, task.grain)
    except TensorExpressError as error:
        return error


def simulated(scenario: Scenario, policy: Policy, engine: str, grain: int) -> Simulated:
    """Return what came out for every job."""
    checked = checked_policies(scenario, [policy])
    packets = grain_of(scenario, checked, grain)
    result = Result.of(*simulate_coarsely(make_plan(scenario, policy), packets, engine))
    compared = side_by_side([result], packets)
    return Simulated(tuple(compared.job_results(policy.name)), compared.provenance)
