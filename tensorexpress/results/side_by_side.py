"""Policies side by side: what came of each on one scenario, predicted or measured, and its distance to the optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tensorexpress.bound import is_steady_in, make_demand, make_least_demand, scenario_bound_ps
from tensorexpress.errors import ScenarioError
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.replan import NewRoutes
from tensorexpress.results.columns import UNCLEAR, Cells, JobResult, cells
from tensorexpress.results.provenance import Provenance, provenance
from tensorexpress.scenario import Scenario
from tensorexpress.trace import JobMetrics, Trace, busiest_link, measure_job

#: Slices of a job from which on finer ones tell the bound nothing more, but take time and memory.
_MOST_SLICES = 50_000

#: How much compute times vary in runs that tell whether a scenario is near a threshold, and the share of an iteration
#: from which a change counts.
JITTER = 0.005
_MUCH = 0.02


@dataclass(frozen=True)
class Result:
    """One policy: what was planned, what happened, and the metrics of every job."""

    plan: Plan
    trace: Trace
    jobs: tuple[JobMetrics, ...]
    #: Routes that the plan got on the way.
    routes: tuple[NewRoutes, ...] = ()

    @classmethod
    def of(cls, plan: Plan, trace: Trace, routes: tuple[NewRoutes, ...] = ()) -> Result:
        """Return the result of a run of a plan, simulated or measured."""
        return cls(plan, trace, tuple(measure_job(job, plan.scenario.warmup) for job in trace.jobs), routes)


@dataclass(frozen=True, eq=False)
class SideBySide:
    """The policies of a scenario by name, in the order asked for.

    Two are equal if the same happened: the same scenario, policies in the same order, plans and traces.
    """

    scenario: Scenario
    results: Mapping[str, Result]
    #: Per job, the iteration time that no schedule can beat.
    optimal_ps: tuple[float, ...]
    #: How many packets were moved as one, and by which share iterations of each policy change at twice that; none where
    #: that was not tried.
    grain: int = 1
    grain_changes: Mapping[str, float] = field(default_factory=dict)
    #: By which share iterations of each policy may be off for the packets that were moved as one (`sim/grain.py`).
    grain_errors: Mapping[str, float] = field(default_factory=dict)
    #: How long after links or background traffic change other routes are in force; None where routes stay.
    replan_ps: int | None = None
    #: Per policy and job, iteration times of runs with a little jitter of compute times; none where that was not tried.
    jittered_ps: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)

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

    def tells_apart(self, name: str, other: str | None = None, job: int = 0) -> bool:
        """Return whether two policies differ by more than the errors of a coarse simulation; other: the baseline."""
        other = self.baseline.plan.policy.name if other is None else other
        if self.grain == 1 or name == other:
            return True
        own_ps, other_ps = (self.results[each].jobs[job].iteration_ps for each in (name, other))
        own, others = (self.grain_errors.get(each, 1.0) for each in (name, other))
        return own_ps * (1 + own) < other_ps * (1 - others) or other_ps * (1 + others) < own_ps * (1 - own)

    def range_ps(self, name: str, job: int = 0) -> tuple[float, float] | None:
        """Return the shortest and the longest iteration time with and without jitter, where those differ much.

        Much is more than the spread that is printed, and more than the jitter itself adds where workers wait for the
        slowest. None where a little jitter changes no more than that, or was not tried.
        """
        metrics = self.results[name].jobs[job]
        times = [metrics.iteration_ps, *(self.jittered_ps[name][job] if name in self.jittered_ps else ())]
        much_ps = max(metrics.spread_ps, _MUCH * metrics.iteration_ps)
        return (min(times), max(times)) if max(times) - min(times) > much_ps else None

    def shown_speedup(self, name: str, job: int = 0) -> str:
        """Return the speed-up over the baseline for people, or that a coarse simulation cannot tell."""
        return f"{self.speedup(name, job):.2f}×" if self.tells_apart(name, job=job) else UNCLEAR

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
                is_clear=self.tells_apart(name, job=index),
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


def side_by_side(
    results: Sequence[Result],
    grain: int = 1,
    grain_changes: Mapping[str, float] | None = None,
    replan_ps: int | None = None,
    grain_errors: Mapping[str, float] | None = None,
) -> SideBySide:
    """Put results of one scenario side by side."""
    scenario = results[0].plan.scenario
    for result in results:
        for job, metrics in zip(scenario.jobs, result.jobs, strict=True):
            if metrics.iteration_ps <= 0:
                raise ScenarioError(
                    f"{scenario.name}: iterations of {job.name} take no time: its layers compute for 0 s, and nothing "
                    "of it crosses a link; give layers times, or hosts that talk to each other"
                )
    by_name = {result.plan.policy.name: result for result in results}
    optimal_ps = _optimal_ps(scenario, results, grain)
    return SideBySide(scenario, by_name, optimal_ps, grain, grain_changes or {}, grain_errors or {}, replan_ps)


def _optimal_ps(scenario: Scenario, results: Sequence[Result], grain: int) -> tuple[float, ...]:
    """Return per job what no slicing, order or policy beats: of those that sum or place as the ones compared."""
    whole = make_plan(scenario, POLICIES["fifo"])
    return tuple(_job_bound_ps(whole, number, results, grain) for number in range(len(scenario.jobs)))


def _job_bound_ps(whole: Plan, number: int, results: Sequence[Result], grain: int) -> float:
    demands, is_steady = [make_least_demand(whole, number)], is_steady_in(whole.scenario)
    for result in results:
        policy = result.plan.policy
        if policy.in_switches or policy.placement != "none" or result.routes:
            demands.append(make_demand(result.plan, number, [each.replanned.plan for each in result.routes]))
    traces = [(result.trace.jobs[number], result.plan.scenario.warmup) for result in results]
    shortest_ps = min(result.jobs[number].iteration_ps for result in results)

    def least_ps(is_steady: bool) -> float:
        return min(
            scenario_bound_ps(demand, trace, warmup, is_steady=is_steady, grain=grain)
            for demand in demands
            for trace, warmup in traces
        )

    steady_ps = least_ps(is_steady=True) if is_steady else shortest_ps
    # Where one run catches up with its warm-up, another may do so even more.
    return steady_ps if is_steady and steady_ps <= shortest_ps else min(least_ps(is_steady=False), shortest_ps)
