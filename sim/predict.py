"""Predictions: several policies on one scenario, simulated on all cores and put side by side."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from tensorexpress.errors import PolicyError
from tensorexpress.plan import make_plan
from tensorexpress.policy import Policy, parse_policy
from tensorexpress.results.side_by_side import Result, SideBySide, side_by_side
from tensorexpress.scenario import Scenario, policy_problems
from tensorexpress.scenario_keys import USUAL_POLICIES
from tensorexpress.sim.run import simulate


def predict(
    scenario: Scenario,
    policies: Sequence[Policy | str] = (),
    engine: str = "auto",
    progress: Callable[[str], None] | None = None,
    *,
    keeps_finished: bool = False,
) -> SideBySide:
    """Simulate a scenario under each policy (by default the usual ones) and compare; they run on all cores at once.

    A policy may be given as text, as in a scenario file. What `read_study` returns is what this takes:
    `predict(*read_study("scenario.toml"))`.

    Ctrl-C is a KeyboardInterrupt as always; with `keeps_finished` it ends the simulation early, and what is returned
    holds the policies that are finished, if there is any.
    """
    compared = _checked(scenario, policies or USUAL_POLICIES)
    stop = threading.Event()

    def one(policy: Policy) -> Result:
        plan = make_plan(scenario, policy)
        return Result.of(plan, simulate(plan, engine, stop.is_set))

    done: dict[str, Result] = {}
    # Threads are enough: the compiled engine runs outside the interpreter lock.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        futures = {pool.submit(one, policy): policy.name for policy in compared}
        try:
            for future in as_completed(futures):
                done[futures[future]] = future.result()
                if progress is not None:
                    progress(futures[future])
        except BaseException as error:
            # One policy has failed, or somebody has pressed Ctrl-C: the others need not go on.
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            if not (keeps_finished and done and isinstance(error, KeyboardInterrupt)):
                raise
    return side_by_side([done[policy.name] for policy in compared if policy.name in done])


def _checked(scenario: Scenario, policies: Sequence[Policy | str]) -> list[Policy]:
    """Return the policies as values; refuse what cannot be compared in this scenario."""
    compared = [parse_policy(policy) if isinstance(policy, str) else policy for policy in policies]
    if len({policy.name for policy in compared}) < len(compared):
        raise PolicyError(f"policies: {', '.join(policy.name for policy in compared)}; accepted: each policy once")
    for path, problem in policy_problems(scenario, compared):
        raise PolicyError(f"{scenario.name}: {path}: {problem}")
    return compared
