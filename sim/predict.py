"""Predictions: several policies on one scenario, simulated on all cores and put side by side."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed, wait
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tensorexpress.errors import InputError, PolicyError
from tensorexpress.memory import check_memory
from tensorexpress.plan import make_plan
from tensorexpress.policy import Policy, parse_policy
from tensorexpress.queueing import not_compiled
from tensorexpress.replan import new_routes
from tensorexpress.results.side_by_side import JITTER, Result, SideBySide, side_by_side
from tensorexpress.scenario import Scenario, policy_problems
from tensorexpress.scenario_keys import USUAL_POLICIES
from tensorexpress.sim.cost import SIMPY_FACTOR, Cost, expected_cost, pace
from tensorexpress.sim.grain import (
    AUTO,
    check_grain,
    choose_grain,
    coarse_error,
    compared_grain,
    most_packets,
    why_not_coarse,
)
from tensorexpress.sim.run import load_engine, needed_bytes, simulate_coarsely
from tensorexpress.slots import grow_trees
from tensorexpress.trace import JobMetrics
from tensorexpress.units import counted

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

#: How long threads have to end after Ctrl-C.
_ENDING_S = 0.3

#: Runs with a little jitter that tell whether a scenario is near a threshold.
_JITTERED_RUNS = 2
_JITTERED_BELOW_SECONDS = 5

#: From how long on the machine's own pace is worth a look before the start.
LONG_SECONDS = 5


def predict(
    scenario: Scenario,
    policies: Sequence[Policy | str] = (),
    engine: str = "auto",
    progress: Callable[[str], None] | None = None,
    *,
    keeps_finished: bool = False,
    grain: int | str = AUTO,
    advanced: Callable[[float], None] | None = None,
    replan_ps: int | None = None,
    jittered: bool = False,
) -> SideBySide:
    """Simulate a scenario under each policy (by default the usual ones) and compare; they run on all cores at once.

    A policy may be given as text, as in a scenario file. What `read_study` returns is what this takes:
    `predict(*read_study("scenario.toml"))`.

    `grain` packets are moved as one; "auto" is packet level, 1, unless that would take long. A coarse prediction is
    made again at twice the grain to tell what the grain costs. `advanced` is told now and then which share is done.

    With `replan_ps`, routes are planned again that long after links or background traffic change (`replan.new_routes`).

    With `jittered`, each policy is simulated twice more with compute times that vary by `JITTER`: where that changes an
    iteration much, the scenario is near a threshold, and the result has the range (`SideBySide.range_ps`).

    Ctrl-C is a KeyboardInterrupt as always; with `keeps_finished` it ends the simulation early, and what is returned
    holds the policies that are finished, if there is any.
    """
    compared = checked_policies(scenario, policies or USUAL_POLICIES)
    packets = grain_of(scenario, compared, grain)
    announce_simpy(scenario, compared, engine, packets)
    load_engine(engine)
    stop = threading.Event()
    shares = _Shares(len(compared), advanced)

    def with_jitter(policy: Policy) -> tuple[JobMetrics, ...]:
        """Return the metrics of every job in runs with a little more jitter, one run after the other."""
        jitter = math.hypot(scenario.jitter, JITTER)
        found: list[JobMetrics] = []
        for number in range(_JITTERED_RUNS if jittered else 0):
            varied = replace(scenario, jitter=jitter, seed=scenario.seed + number)
            plan = make_plan(varied, policy)
            routes = () if replan_ps is None else new_routes(plan, replan_ps)
            found += Result.of(*simulate_coarsely(plan, packets, engine, stop.is_set, routes=routes)).jobs
        return tuple(found)

    def one(policy: Policy) -> tuple[Result, float | None, tuple[JobMetrics, ...]]:
        plan = make_plan(scenario, policy)
        routes = () if replan_ps is None else new_routes(plan, replan_ps)
        compares = packets > 1

        def simulated(grain: int, before: float, share: float) -> Result:
            moved = partial(shares.note, policy.name, before, share)
            return Result.of(*simulate_coarsely(plan, grain, engine, stop.is_set, moved, routes), routes)

        result = simulated(packets, 0.0, 2 / 3 if compares else 1.0)
        if not compares:
            return result, None, with_jitter(policy)
        other_grain = simulated(compared_grain(scenario, packets), 2 / 3, 1 / 3)
        pairs = zip(result.jobs, other_grain.jobs, strict=True)
        change = max(abs(other.iteration_ps / own.iteration_ps - 1) for own, other in pairs)
        return result, change, with_jitter(policy)

    done: dict[str, Result] = {}
    changes: dict[str, float] = {}
    varied: dict[str, tuple[tuple[float, ...], ...]] = {}
    # Threads are enough: the compiled engine runs outside the interpreter lock.
    futures = dict(zip(_start_all([partial(one, policy) for policy in compared]), compared, strict=True))
    try:
        for future in as_completed(futures):
            name = futures[future].name
            done[name], change, runs = future.result()
            if runs:
                jobs = len(scenario.jobs)
                varied[name] = tuple(tuple(run.iteration_ps for run in runs[job::jobs]) for job in range(jobs))
            if change is not None:
                changes[name] = change
            if progress is not None:
                with shares.lock:
                    progress(name)
    except BaseException as error:
        # One policy has failed, or Ctrl-C was pressed: the others need not go on.
        stop.set()
        for future in futures:
            future.cancel()
        # A simulation ends now. A plan that is being made ends later: its thread is left to itself.
        wait(futures, timeout=_ENDING_S)
        if not (keeps_finished and done and isinstance(error, KeyboardInterrupt)):
            raise
    finished = [done[policy.name] for policy in compared if policy.name in done]
    errors = {
        policy.name: coarse_error(scenario, policy, changes[policy.name])
        for policy in compared
        if policy.name in changes
    }
    return replace(side_by_side(finished, packets, changes, replan_ps, errors), jittered_ps=varied)


def _start_all(tasks: Sequence[Callable[[], Value]]) -> list[Future[Value]]:
    """Start tasks in threads, as many at a time as there are cores; the end of this process waits for none of them."""
    waiting = deque((Future[Value](), task) for task in tasks)
    futures = [future for future, _ in waiting]

    def work() -> None:
        while True:
            try:
                future, task = waiting.popleft()
            except IndexError:
                return
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except BaseException as error:
                    future.set_exception(error)

    for _ in range(min(len(tasks), os.cpu_count() or 1)):
        threading.Thread(target=work, daemon=True).start()
    return futures


class _Shares:
    """How far every policy is, told by threads, one at a time."""

    def __init__(self, policies: int, advanced: Callable[[float], None] | None):
        self.lock = threading.Lock()
        self._policies, self._advanced = policies, advanced
        self._done: dict[str, float] = {}

    def note(self, policy: str, before: float, share: float, part: float) -> None:
        """Note that so large a part of the policy's next share is done."""
        if self._advanced is not None:
            with self.lock:
                self._done[policy] = before + share * part
                self._advanced(sum(self._done.values()) / self._policies)


def grain_of(scenario: Scenario, policies: Sequence[Policy], grain: int | str) -> int:
    """Return how many packets are moved as one where `grain` is asked for; what does not fit into memory is refused."""
    if grain == AUTO:
        # What fits with no grain is refused before anybody looks for a good one, which takes long where much is sent.
        coarsest = 1 if why_not_coarse(scenario) is not None else most_packets(scenario)
        check_memory(scenario.name, needed_bytes(scenario, coarsest))
    packets = choose_grain(scenario, policies) if grain == AUTO else grain
    if not isinstance(packets, int):
        raise InputError(f"grain {grain!r}: accepted: a number of packets from 1 on, or {AUTO!r}")
    check_grain(scenario, packets, policies)
    check_memory(
        scenario.name,
        round(expected_cost(scenario, policies, packets).bytes),
        f"{counted(len(policies), 'simulation')}{f' with {packets} packets moved as one' if packets > 1 else ''}",
    )
    return packets


def affords_jitter(scenario: Scenario, policies: Sequence[Policy], grain: int, engine: str = "auto") -> bool:
    """Return whether a prediction takes so little time that runs with jitter may triple it."""
    return expected_cost(scenario, policies, grain, engine).seconds < _JITTERED_BELOW_SECONDS


def announced_cost(scenario: Scenario, policies: Sequence[Policy], grain: int, engine: str = "auto") -> Cost:
    """Return about how much time and memory `predict` will take on this machine, by the pace of a short simulation."""
    cost = expected_cost(scenario, policies, grain, engine)
    return cost if cost.seconds < LONG_SECONDS else cost._replace(seconds=cost.seconds * pace())


def why_simpy(policies: Sequence[Policy]) -> dict[str, str]:
    """Return {policy: choice} of all policies with a choice that only SimPy can simulate."""
    reasons = {policy.name: not_compiled(policy.discipline, policy.host_order) for policy in policies}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def announce_simpy(
    scenario: Scenario, policies: Sequence[Policy], engine: str, grain: int = 1, *, per_point: bool = False
) -> None:
    """Log that SimPy simulates some of the policies in place of the compiled engine, and the time that it takes."""
    reasons = why_simpy(policies) if engine == "auto" else {}
    if not reasons:
        return
    slow = [policy for policy in policies if policy.name in reasons]
    # Python's interpreter lock lets one of them go on at a time.
    seconds = sum(expected_cost(scenario, [policy], grain, engine).seconds for policy in slow)
    logger.warning(
        "tensorexpress: the compiled engine has no %s: SimPy simulates %s, some %d times slower, in about %s%s",
        ", ".join(dict.fromkeys(reasons.values())),
        ", ".join(reasons),
        SIMPY_FACTOR,
        format_duration(seconds),
        " a point" if per_point else "",
    )


def format_duration(seconds: float) -> str:
    """Return a duration for people.

    >>> [format_duration(seconds) for seconds in (0.2, 86, 300, 40_000)]
    ['1 s', '86 s', '5 min', '11 h']
    """
    if seconds < 120:
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def checked_policies(scenario: Scenario, policies: Sequence[Policy | str]) -> list[Policy]:
    """Return the policies as values; refuse what cannot be compared in this scenario."""
    scenario.check_in_step()
    compared = [parse_policy(policy) if isinstance(policy, str) else policy for policy in policies]
    if len({policy.name for policy in compared}) < len(compared):
        raise PolicyError(f"policies: {', '.join(policy.name for policy in compared)}; accepted: each policy once")
    for path, problem in policy_problems(scenario, compared):
        raise PolicyError(f"{scenario.name}: {path}: {problem}")
    for sums in dict.fromkeys(policy.sums for policy in compared if policy.in_switches):
        # Refuses what has no tree, before anything is simulated.
        grow_trees(scenario, sums)
    return compared
