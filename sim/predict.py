"""Predictions: several policies on one scenario, side by side, with their distance to the optimum."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import numpy as np

from tensorexpress.deadline import lower_bound_ps
from tensorexpress.plan import JobPlan, Plan, early_ps, link_loads, make_plan
from tensorexpress.policy import POLICIES, Policy
from tensorexpress.scenario import Scenario
from tensorexpress.sim.run import simulate
from tensorexpress.trace import JobMetrics, JobTrace, Trace, measure_job


@dataclass(frozen=True)
class Result:
    """One policy: what was planned, what happened, and the metrics of every job."""

    plan: Plan
    trace: Trace
    jobs: tuple[JobMetrics, ...]


@dataclass(frozen=True)
class Prediction:
    """The policies of a scenario by name, in the order asked for; the first is what others are compared with."""

    scenario: Scenario
    results: dict[str, Result]
    #: Per job, the iteration time that no schedule can beat.
    optimal_ps: tuple[float, ...]

    @property
    def baseline(self) -> Result:
        """The result that speed-ups refer to: fifo if it is there, otherwise the first."""
        return self.results.get("fifo", next(iter(self.results.values())))

    def speedup(self, name: str, job: int = 0) -> float:
        """Return how many times shorter an iteration is than under the baseline."""
        return self.baseline.jobs[job].iteration_ps / self.results[name].jobs[job].iteration_ps

    def of_optimal(self, name: str, job: int = 0) -> float:
        """Return the lower bound over the iteration time: 1 means that nothing can be faster."""
        return self.optimal_ps[job] / self.results[name].jobs[job].iteration_ps


def job_bound_ps(plan: JobPlan, scenario: Scenario, trace: JobTrace) -> float:
    """Return the mean over the measured iterations of what no schedule can beat with this plan's slices and routes."""
    shared, of_hosts = link_loads(plan, scenario)
    own = np.repeat(of_hosts, plan.job.gpus_per_host, axis=0)
    spared_ps = early_ps(scenario)
    bounds = []
    for iteration in range(scenario.warmup, len(trace.backward_ps)):
        # The iteration starts with the last forward layer of one pass and ends before that of the next.
        forward = trace.forward_ps[iteration + 1].copy()
        forward[:, -1] = trace.forward_ps[iteration, :, -1]
        bounds.append(lower_bound_ps(forward, trace.backward_ps[iteration], shared, own) - spared_ps)
    return float(np.mean(bounds))


def predict(
    scenario: Scenario,
    policies: Sequence[Policy] = (),
    engine: str = "auto",
    progress: Callable[[str], None] | None = None,
    *,
    keeps_finished: bool = False,
) -> Prediction:
    """Simulate a scenario under each policy (by default its own) and compare; policies run on all cores at once.

    Ctrl-C is a KeyboardInterrupt as always; with `keeps_finished` it ends the simulation early, and what is returned
    holds the policies that are finished, if there is any.
    """
    policies = tuple(policies) or scenario.policies

    stop = threading.Event()

    def one(policy: Policy) -> Result:
        plan = make_plan(scenario, policy)
        trace = simulate(plan, engine, stop.is_set)
        return Result(plan, trace, tuple(measure_job(job, scenario.warmup) for job in trace.jobs))

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
    results = {policy.name: done[policy.name] for policy in policies if policy.name in done}
    return Prediction(scenario, results, optimal_ps(scenario, results))


def optimal_ps(scenario: Scenario, results: dict[str, Result]) -> tuple[float, ...]:
    """Return the least bound over the plans compared and the finest slicing: how to slice is for a policy to choose."""
    plans = [make_plan(scenario, POLICIES["ideal"]), *(result.plan for result in results.values())]
    trace = next(iter(results.values())).trace
    return tuple(
        min(job_bound_ps(plan.jobs[index], scenario, job) for plan in plans) for index, job in enumerate(trace.jobs)
    )
