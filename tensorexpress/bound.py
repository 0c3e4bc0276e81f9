"""Bounds: iteration times that no schedule of a plan's slices on its paths can beat; docs/deadlines.md proves them.

run_bound_ps        for the mean of a run's measured iterations, from where its workers stood when measuring began
Demand.busiest_ps   for the mean of many iterations: what the busiest link carries in each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tensorexpress.chain import NO_CHAIN, Chain, make_chain, occupied_ps
from tensorexpress.changes import ChangeStep, Paces, carried_ps
from tensorexpress.deadline import gradients_ready_ps, next_starts_ps
from tensorexpress.graph import ARCHITECTURES
from tensorexpress.plan import JobPlan, Plan, carried_bytes, changed_links, early_ps
from tensorexpress.scenario import Scenario
from tensorexpress.software import lane_work_ps
from tensorexpress.trace import JobTrace

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

    @property
    def busiest_ps(self) -> int:
        """How long an iteration occupies the link or lane that it occupies longest: no schedule keeps up a shorter one.

        A few iterations can be shorter if workers are further apart at their end than at their beginning.
        """
        if not self.in_step:
            # One of them may be served before all others, always.
            return int(self.own_ps[:, -1].min())
        return max(self.lane_ps, int((self.shared_ps + self.owned_ps + self.again_ps).max(initial=0)))


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
        lane_ps=_busiest_lane_ps(planned, scenario),
        in_step=not planned.job.forward_only,
        changing=_changing_links(scenario, shared.sum(axis=1)),
        packet_bytes=plan.longest_packet_bytes,
        hosts=planned.job.workers,
        paces=Paces(scenario.changes),
    )


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


def _busiest_lane_ps(planned: JobPlan, scenario: Scenario) -> int:
    job, transport = planned.job, scenario.transport
    if not (transport.copy_rate_bps or transport.message_ps or job.add_rate_bps or job.update_rate_bps):
        return 0
    return int(lane_work_ps(scenario, [(job, planned.graph)]).max())


def run_bound_ps(demand: Demand, trace: JobTrace, warmup: int, grain: int = 1) -> float:
    """Return what the mean of the iterations after the warm-up cannot fall below under any schedule.

    Given are the compute times that were drawn and where the workers stood when measuring began. Of what changes at
    times, links and workers are taken at their fastest; but for what all workers wait for in all iterations, links have
    the rates that they have. So many packets are moved as one.
    """
    forward_ps = demand.paces.at_fastest_ps(demand.hosts, trace.forward_ps, trace.forward_start_ps)
    backward_ps = demand.paces.at_fastest_ps(demand.hosts, trace.backward_ps, trace.backward_start_ps)
    starts = trace.forward_start_ps[warmup, :, -1]
    began_ps, iterations = int(starts.min()), len(trace.backward_ps) - warmup
    ready = gradients_ready_ps(starts, forward_ps[warmup], backward_ps[warmup])
    # All workers wait for what is shared, so that of all iterations passes before the first of them is done.
    shared_ps = _shared_until_ps(demand, int(ready[:, -1].min()), iterations, grain) - demand.early_ps
    for iteration in range(warmup, len(trace.backward_ps)):
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
    return (max(int(starts.min()), shared_ps) - began_ps) / iterations
