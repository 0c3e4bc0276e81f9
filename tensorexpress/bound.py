"""Bounds: iteration times that no schedule on a plan's paths can beat; docs/deadlines.md proves them.

run_bound_ps        for the mean of a run's measured iterations, from where its workers stood when measuring began
Demand.busiest_ps   for the mean of many iterations: what the busiest link carries in each
scenario_bound_ps   for the mean of measured iterations of every schedule, from where all workers begin
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tensorexpress.any_slicing import Ways, least_bytes, ways_of
from tensorexpress.chain import NO_CHAIN, Chain, make_chain, occupied_ps, shortest_chain
from tensorexpress.changes import ChangeStep, Paces, carried_ps
from tensorexpress.deadline import gradients_ready_ps, next_starts_ps
from tensorexpress.graph import ARCHITECTURES
from tensorexpress.plan import JobPlan, Plan, carried_bytes, changed_links, early_ps
from tensorexpress.scenario import Scenario
from tensorexpress.software import lane_work_ps
from tensorexpress.trace import JobTrace
from tensorexpress.units import PS_PER_SECOND

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Demand:
    """What an iteration of a job asks of everything that serves one byte at a time, and how long its chains are."""

    #: By (worker, layer): how long the layers up to this one occupy a link with all that the worker waits for, and with
    #: what only it waits for; each on the link where that takes longest.
    waited_ps: Ints
    own_ps: Ints
    #: By link, for a whole iteration: what all workers wait for, and what each waits for on its own.
    shared_ps: Ints
    owned_ps: Ints
    #: And what workers gather again for their backward passes, part of it before those begin.
    again_ps: Ints
    #: How much earlier than that the last byte may be there.
    early_ps: int
    chain: Chain
    #: How long an iteration occupies the busiest lane of a host (`software.py`).
    lane_ps: int = 0
    #: Whether workers wait for each other's gradients.
    in_step: bool = True
    #: Of links whose rate changes: the steps, the usual rate, and the bytes of an iteration that all workers wait for;
    #: and bytes of a packet, which may end at the rate before a step.
    changing: tuple[tuple[tuple[ChangeStep, ...], int, int], ...] = ()
    packet_bytes: int = 0
    #: The host of every worker, and how their paces change: another schedule meets changes in other layers.
    hosts: tuple[int, ...] = ()
    paces: Paces = field(default_factory=lambda: Paces(()))
    #: Of a demand that holds for all slicings: the ways of a byte, and the bytes of an iteration.
    ways: Ways | None = None
    bytes: int = 0

    @property
    def busiest_ps(self) -> int:
        """How long an iteration occupies the link or lane that it occupies longest: no schedule keeps up a shorter one.

        A few iterations can be shorter if workers are further apart at their end than at their beginning.
        """
        if not self.in_step:
            # One of them may be served before all others, always.
            return int(self.own_ps[:, -1].min())
        return max(self.lane_ps, int((self.shared_ps + self.owned_ps + self.again_ps).max(initial=0)))

    def all_ps(self, iterations: int) -> int:
        """Return how long so many iterations occupy a link before the first worker begins another one.

        That worker waits for what all wait for of them all, and for the rest of all but the last: only who has that
        makes another gradient.
        """
        shared, others = iterations, iterations - 1
        if self.ways is not None:
            return int(self.ways.all_ps(shared, others) * self.bytes)
        return int((shared * self.shared_ps + others * (self.owned_ps + self.again_ps)).max(initial=0))


def make_demand(plan: Plan, number: int, later: Sequence[Plan] = ()) -> Demand:
    """Return what a job of a plan asks for.

    Where plans with other routes hold later, nobody knows what goes which way in an iteration in which they change:
    then only links count over which the same goes by all routes, and no chain.
    """
    planned, scenario = plan.jobs[number], plan.scenario
    uncertain = changed_links(plan, later)
    # Where links change, no schedule can count on more than the fastest rate.
    rates = np.array(scenario.fastest().rate_bps, dtype=np.int64)
    layers = len(planned.ranks)
    shared = np.zeros((len(rates), layers), dtype=np.int64)
    own: dict[int, dict[int, Ints]] = {host: {} for host in planned.job.hosts}
    owned_bytes = np.zeros(len(rates), dtype=np.int64)
    for link, before, after, hosts in carried_bytes(planned, scenario, plan.paths):
        if link in uncertain:
            continue
        shared[link] += before
        owned_bytes[link] += after.sum()
        for host in hosts if after.any() else ():
            own[host][link] = own[host].get(link, 0) + after
    spared_ps = early_ps(scenario)
    for_all = occupied_ps(np.cumsum(shared, axis=1), rates[:, None]).max(axis=0, initial=0)
    waited, owned = [], []
    for rows in own.values():
        links = np.array(list(rows), dtype=np.int64)
        bytes_ = np.array(list(rows.values()), dtype=np.int64).reshape(len(links), layers)
        alone = occupied_ps(np.cumsum(bytes_, axis=1), rates[links, None])
        together = occupied_ps(np.cumsum(bytes_ + shared[links], axis=1), rates[links, None])
        waited.append(np.maximum(for_all, together.max(axis=0, initial=0)))
        owned.append(alone.max(axis=0, initial=0))
    gpus = planned.job.gpus_per_host
    owned_ps = occupied_ps(owned_bytes, rates)
    return Demand(
        waited_ps=np.repeat(np.maximum(np.array(waited) - spared_ps, 0), gpus, axis=0),
        own_ps=np.repeat(np.maximum(np.array(owned) - spared_ps, 0), gpus, axis=0),
        shared_ps=occupied_ps(shared.sum(axis=1), rates),
        owned_ps=owned_ps,
        # It comes the same way as before.
        again_ps=owned_ps * ARCHITECTURES[planned.job.architecture].regathers,
        early_ps=spared_ps,
        chain=NO_CHAIN if later else make_chain(plan, number),
        lane_ps=int(_lanes_ps(planned, scenario).max(initial=0)),
        in_step=not planned.job.forward_only,
        changing=_changing_links(scenario, shared.sum(axis=1)),
        packet_bytes=plan.longest_packet_bytes,
        hosts=planned.job.workers,
        paces=Paces(scenario.changes),
    )


def make_least_demand(plan: Plan, number: int) -> Demand:
    """Return what a job asks for at least, however tensors are cut and shared among servers, on a plan's paths.

    The plan is of whole tensors: they have the fewest packets and messages.
    """
    job, scenario = plan.jobs[number].job, plan.scenario
    ways, spared_ps, front = ways_of(plan, number), early_ps(scenario), least_bytes(plan, number)
    for_all = ways.least_ps(ways.shared)
    byte_ps = np.array([ways.waited_ps(host) for host in dict.fromkeys(job.hosts)])
    waited, own = (
        np.maximum(np.floor(each[:, None] * front).astype(np.int64) - spared_ps, 0)
        for each in (np.maximum(byte_ps[:, 0], for_all), byte_ps[:, 1])
    )
    bps = np.array(scenario.fastest().rate_bps, dtype=np.float64)
    shared_bytes = np.floor(ways.least_of_each_ps() * front[-1] * bps / (8 * PS_PER_SECOND)).astype(np.int64)
    return Demand(
        waited_ps=np.repeat(waited, job.gpus_per_host, axis=0),
        own_ps=np.repeat(own, job.gpus_per_host, axis=0),
        shared_ps=np.array([int(for_all * front[-1])]),
        owned_ps=np.zeros(1, dtype=np.int64),
        again_ps=np.zeros(1, dtype=np.int64),
        early_ps=spared_ps,
        chain=shortest_chain(plan, number),
        lane_ps=_least_lane_ps(plan.jobs[number], scenario),
        in_step=not job.forward_only,
        changing=_changing_links(scenario, shared_bytes),
        packet_bytes=plan.longest_packet_bytes,
        hosts=job.workers,
        paces=Paces(scenario.changes),
        ways=ways,
        bytes=int(front[-1]),
    )


def is_steady_in(scenario: Scenario) -> bool:
    """Return whether iterations of a scenario differ by jitter at the most: nothing is lost, and nothing changes."""
    return not (scenario.loss or scenario.changes)


def _changing_links(scenario: Scenario, shared_bytes: Ints) -> tuple[tuple[tuple[ChangeStep, ...], int, int], ...]:
    usual_bps = scenario.directed().rate_bps
    by_link: dict[int, list[ChangeStep]] = {}
    for step in scenario.rate_steps():
        by_link.setdefault(step.thing, []).append(step)
    return tuple((tuple(steps), usual_bps[link], int(shared_bytes[link])) for link, steps in by_link.items())


def _shared_until_ps(demand: Demand, start_ps: int, iterations: int, grain: int) -> int:
    """Return when links can have carried what all workers wait for in so many iterations, the first byte at a time."""
    until_ps = start_ps + iterations * int(demand.shared_ps.max(initial=0))
    for steps, usual_bps, size in demand.changing:
        late_bytes = len(steps) * grain * demand.packet_bytes
        until_ps = max(until_ps, carried_ps(steps, usual_bps, start_ps, iterations * size - late_bytes))
    return until_ps


def _lanes_ps(planned: JobPlan, scenario: Scenario) -> Ints:
    """Return how long the lanes of every host are occupied, by (host, lane); no rows where software takes no time."""
    job, transport = planned.job, scenario.transport
    if not (transport.copy_rate_bps or transport.message_ps or job.add_rate_bps or job.update_rate_bps):
        return np.zeros((0, 1), dtype=np.int64)
    return lane_work_ps(scenario, [(job, planned.graph)])


def _least_lane_ps(whole: JobPlan, scenario: Scenario) -> int:
    """Return how long some lane is occupied at least, however tensors are cut and shared: the mean over hosts alike."""
    work_ps = _lanes_ps(whole, scenario)
    if not len(work_ps):
        return 0
    groups = [sorted(set(hosts)) for hosts in (whole.job.servers, whole.job.hosts) if hosts]
    return max(int(work_ps[group].mean(axis=0).max() * (1 - 1e-3)) for group in groups)


def run_bound_ps(demand: Demand, trace: JobTrace, warmup: int, grain: int = 1) -> float:
    """Return what the mean of the iterations after the warm-up cannot fall below under any schedule.

    Given are the compute times that were drawn and where the workers stood when measuring began. Of what changes at
    times, links and workers are taken at their fastest; but for what all workers wait for in all iterations, links have
    the rates that they have. So many packets are moved as one.
    """
    starts = trace.forward_start_ps[warmup, :, -1]
    *_, last_ps = _earliest_starts_ps(demand, trace, warmup, grain)
    return (last_ps - int(starts.min())) / (len(trace.backward_ps) - warmup)


def scenario_bound_ps(demand: Demand, trace: JobTrace, warmup: int, *, is_steady: bool, grain: int = 1) -> float:
    """Return what the mean of the iterations after the warm-up cannot fall below under any schedule of a scenario.

    Of the run only what is the same under all of them counts: the compute times that were drawn, and when workers start
    their last layer for the first time, for which nothing has to be sent.

    Of a steady scenario, schedules count that do not win back while measuring what they lost in the warm-up: those are
    bounded by many iterations, too. Elsewhere workers may stand anywhere when measuring begins.
    """
    iterations = len(trace.backward_ps) - warmup
    # A schedule with a slower warm-up meets slow links and workers earlier.
    fixed = replace(demand, changing=()) if warmup else demand
    first = 0 if is_steady else warmup
    starts_ps = list(_earliest_starts_ps(fixed, trace, first, grain, together=first > 0))
    mean_ps = (starts_ps[-1] - starts_ps[warmup - first]) / iterations
    many_ps = max(demand.all_ps(2) - demand.all_ps(1), demand.lane_ps)
    return max(mean_ps, many_ps) if is_steady and demand.in_step else mean_ps


def _earliest_starts_ps(
    demand: Demand, trace: JobTrace, first: int, grain: int, *, together: bool = False
) -> Iterator[int]:
    """Yield when the first worker starts its last layer at the earliest, in every pass from one on.

    In that one workers stand where they stood in the run, or all as far as the first: `together`.
    """
    forward_ps = demand.paces.at_fastest_ps(demand.hosts, trace.forward_ps, trace.forward_start_ps)
    backward_ps = demand.paces.at_fastest_ps(demand.hosts, trace.backward_ps, trace.backward_start_ps)
    starts = trace.forward_start_ps[first, :, -1]
    if together:
        starts = np.full_like(starts, starts.min())
    yield int(starts.min())
    ready = gradients_ready_ps(starts, forward_ps[first], backward_ps[first])
    # All workers wait for what is shared, so that of all iterations passes before the first of them is done.
    sent_ps = int(ready[:, -1].min())
    for iteration in range(first, len(trace.backward_ps)):
        ready = gradients_ready_ps(starts, forward_ps[iteration], backward_ps[iteration])
        forward = forward_ps[iteration + 1]
        if demand.in_step:
            opened = demand.chain.opened_ps(ready)
            starts = next_starts_ps(ready, forward, demand.waited_ps, demand.own_ps, opened)
        else:
            alone = zip(
                ready[:, None], forward[:, None], demand.waited_ps[:, None], demand.own_ps[:, None], strict=True
            )
            starts = np.concatenate([next_starts_ps(*worker) for worker in alone])
        passes = iteration + 1 - first
        shared_ps = _shared_until_ps(demand, sent_ps, passes, grain)
        all_ps = sent_ps + demand.all_ps(passes) if demand.in_step else 0
        yield max(int(starts.min()), max(shared_ps, all_ps) - demand.early_ps)
