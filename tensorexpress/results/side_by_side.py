"""Policies side by side: what came of each on one scenario, predicted or measured, and its distance to the optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tensorexpress.deadline import lower_bound_ps
from tensorexpress.plan import Plan, early_ps, link_loads, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.results.columns import Cells, JobResult, cells
from tensorexpress.results.provenance import Provenance, provenance
from tensorexpress.scenario import Scenario
from tensorexpress.trace import JobMetrics, JobTrace, Trace, busiest_link, measure_job


@dataclass(frozen=True)
class Result:
    """One policy: what was planned, what happened, and the metrics of every job."""

    plan: Plan
    trace: Trace
    jobs: tuple[JobMetrics, ...]

    @classmethod
    def of(cls, plan: Plan, trace: Trace) -> Result:
        """Return the result of a run of a plan, simulated or measured."""
        return cls(plan, trace, tuple(measure_job(job, plan.scenario.warmup) for job in trace.jobs))


@dataclass(frozen=True, eq=False)
class SideBySide:
    """The policies of a scenario by name, in the order asked for.

    Two are equal if the same happened: the same scenario, policies in the same order, plans and traces.
    """

    scenario: Scenario
    results: Mapping[str, Result]
    #: Per job, the iteration time that no schedule can beat.
    optimal_ps: tuple[float, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SideBySide):
            return NotImplemented
        # The order counts: without fifo, the first policy is what the others are compared with.
        return self.scenario == other.scenario and list(self.results.items()) == list(other.results.items())

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

    def job_results(self, name: str) -> list[JobResult]:
        """Return what came out for every job under a policy."""
        result = self.results[name]
        link, utilisation = busiest_link(result.trace)
        return [
            JobResult(
                policy=name,
                job=job.name,
                metrics=result.jobs[index],
                baseline_ps=self.baseline.jobs[index].iteration_ps,
                optimal_ps=self.optimal_ps[index],
                busiest_link=link,
                utilisation=utilisation,
                drops=int(result.trace.links["drops"].sum()),
                retransmissions=result.trace.retransmissions,
                source=result.trace.source,
            )
            for index, job in enumerate(self.scenario.jobs)
        ]

    @cached_property
    def provenance(self) -> Provenance:
        """What made this."""
        return provenance(self.scenario, [result.plan.policy for result in self.results.values()])

    def rows(self) -> list[Cells]:
        """Return one flat row per policy and job, as in CSV and for data frames; times are in milliseconds."""
        return [cells(result) | self.provenance.cells() for name in self.results for result in self.job_results(name)]


def side_by_side(results: Sequence[Result]) -> SideBySide:
    """Put results of one scenario side by side."""
    scenario = results[0].plan.scenario
    return SideBySide(scenario, {result.plan.policy.name: result for result in results}, _optimal_ps(scenario, results))


def _optimal_ps(scenario: Scenario, results: Sequence[Result]) -> tuple[float, ...]:
    """Return the least bound over the plans compared and the finest slicing: how to slice is for a policy to choose."""
    plans = [make_plan(scenario, POLICIES["ideal"]), *(result.plan for result in results)]
    return tuple(
        min(job_bound_ps(plan, number, job) for plan in plans) for number, job in enumerate(results[0].trace.jobs)
    )


def job_bound_ps(plan: Plan, number: int, trace: JobTrace) -> float:
    """Return the mean over the measured iterations of what no schedule can beat with a job's slices and paths."""
    scenario, planned = plan.scenario, plan.jobs[number]
    shared, of_hosts = link_loads(planned, scenario, plan.paths)
    own = np.repeat(of_hosts, planned.job.gpus_per_host, axis=0)
    spared_ps = early_ps(scenario)
    bounds = []
    for iteration in range(scenario.warmup, len(trace.backward_ps)):
        # The iteration starts with the last forward layer of one pass and ends before that of the next.
        forward = trace.forward_ps[iteration + 1].copy()
        forward[:, -1] = trace.forward_ps[iteration, :, -1]
        bounds.append(lower_bound_ps(forward, trace.backward_ps[iteration], shared, own) - spared_ps)
    return float(np.mean(bounds))
