"""Predictions: several policies on one scenario, simulated on all cores and put side by side."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from tensorexpress.plan import make_plan
from tensorexpress.policy import Policy
from tensorexpress.results.side_by_side import Result, SideBySide, side_by_side
from tensorexpress.scenario import Scenario
from tensorexpress.sim.run import simulate


def predict(
    scenario: Scenario,
    policies: Sequence[Policy] = (),
    engine: str = "auto",
    progress: Callable[[str], None] | None = None,
    *,
    keeps_finished: bool = False,
) -> SideBySide:
    """Simulate a scenario under each policy (by default its own) and compare; policies run on all cores at once.

    Ctrl-C is a KeyboardInterrupt as always; with `keeps_finished` it ends the simulation early, and what is returned
    holds the policies that are finished, if there is any.
    """
    policies = tuple(policies) or scenario.policies

    stop = threading.Event()

    def one(policy: Policy) -> Result:
        plan = make_plan(scenario, policy)
        return Result.of(plan, simulate(plan, engine, stop.is_set))

    done: dict[str, Result] = {}
    # Threads are enough: the compiled engine runs outside the interpreter lock.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        futures = {pool.submit(one, policy): policy.name for policy in policies}
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
    return side_by_side([done[policy.name] for policy in policies if policy.name in done])
