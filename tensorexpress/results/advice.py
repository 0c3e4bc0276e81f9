"""Advice: what to make of policies side by side, and above all why scheduling gains nothing where it does not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tensorexpress.graph import ARCHITECTURES
from tensorexpress.plan import Plan, link_loads, placements_for
from tensorexpress.policy import POLICIES
from tensorexpress.queueing import DISCIPLINES
from tensorexpress.recovery import newer_sums_of
from tensorexpress.results.changed import contrast, disturbances, met_iterations
from tensorexpress.results.side_by_side import JITTER, Result, SideBySide
from tensorexpress.slots import needed_slots, throughput_share
from tensorexpress.software import lane_work_ps
from tensorexpress.trace import busiest_link, drift_ps
from tensorexpress.units import LARGEST, PS_PER_MS, counted, format_ms, format_rate, format_size, format_time

#: A host that is busy for more than this share of the time is what an iteration waits for.
_BUSY = 0.9

#: Iteration times within this factor count as equal.
_EQUAL = 1.001

#: Gains and shares below this are called nothing.
_WORTH_IT = 0.02

#: By so much a mean differs from the median where a few iterations decide it.
_FEW_DECIDE = 0.05

#: A policy that is slower by more than this share is told of.
_SLOWER = 0.01

#: Where gains of a measured iteration and of its stall differ by more than this share, both are told.
_OTHER_COMPUTE = 0.25

#: Slices of this size are no reason for an iteration to take long.
_SMALL_SLICE_BYTES = POLICIES["tensorexpress"].slice_bytes

#: Packets under way for each cell of a switch, from which on many find none that is free.
_CROWDED = 0.1

#: From this part of the time on, a link is said to have none left.
_FULL = 0.9


def notes(compared: SideBySide) -> list[str]:
    """Return sentences, most important first; every one is about a difference that the numbers show."""
    several = len(compared.scenario.jobs) > 1
    found = []
    for index, job in enumerate(compared.scenario.jobs):
        prefix = f"{job.name}: " if several else ""
        found += [prefix + note for note in _of_one(compared, index)]
    about_all = (
        *_about_jobs_together(compared),
        *_about_parts(compared),
        *_about_network(compared),
        *_about_grain(compared),
    )
    return [*found, *about_all]


def _of_one(compared: SideBySide, job: int) -> Iterator[str]:
    yield from _about_threshold(compared, job)
    yield from _about_job(compared, job)
    yield from _about_changes(compared, job)
    yield from _about_drift(compared, job)


def _about_job(compared: SideBySide, job: int) -> Iterator[str]:
    yield from _about_what_is_owed(compared, job)
    yield from _about_policies(compared, job)


def _about_what_is_owed(compared: SideBySide, job: int) -> Iterator[str]:
    """Say where a few iterations are shorter than many can be."""
    best = _best(list(compared.results.values()), job)
    needed_ps = _tensors_ps(best)[job].max()
    if best.jobs[job].iteration_ps * _EQUAL < needed_ps:
        yield (
            f"{best.plan.policy.name} takes {format_ms(best.jobs[job].iteration_ps)} on average although a link needs "
            f"{format_ms(needed_ps)} for the bytes of an iteration: at the end, some are still to come to workers that "
            "are behind; raise iterations to see what lasts."
        )


def _about_policies(compared: SideBySide, job: int) -> Iterator[str]:
    base, optimal = compared.baseline.jobs[job], compared.optimal_ps[job]
    baseline = compared.baseline.plan.policy.name
    others = {name: r.jobs[job] for name, r in compared.results.items() if r is not compared.baseline}
    possible = base.iteration_ps / optimal - 1
    if possible < _WORTH_IT and _orders(compared.baseline):
        yield (
            f"{baseline} takes {format_ms(base.iteration_ps)}, within {possible:.1%} of the optimum; compare it with "
            "fifo (--policy fifo,...) to see what its order saves."
        )
        return
    slowest_ps = _slowest_compute_ps(compared.baseline, job)
    if (
        possible < _WORTH_IT
        and base.iteration_ps < slowest_ps * (1 + _WORTH_IT)
        and base.blocking_ps > slowest_ps * _WORTH_IT
    ):
        yield (
            f"Compute-bound: the slowest worker computes for {format_ms(slowest_ps)} of {format_ms(base.iteration_ps)} "
            f"and the others wait for it, so no order of packets can gain more than {possible:.1%}."
        )
        return
    if possible < _WORTH_IT and base.blocking_ps < _WORTH_IT * base.compute_ps:
        yield (
            f"Compute-bound: transfers hide behind compute ({baseline} blocks {format_ms(base.blocking_ps)} of "
            f"{format_ms(base.iteration_ps)}), so no order of packets can gain more than {possible:.1%}."
        )
        return
    if possible < _WORTH_IT:
        yield (
            f"Network-bound: {baseline} already takes {format_ms(base.iteration_ps)} and no schedule can take less "
            f"than {format_ms(optimal)}; order gains nothing, more bandwidth or fewer bytes would."
        )
        return
    if not others:
        return
    fastest = min(metrics.iteration_ps for metrics in others.values())
    # Of policies that are as good as equal, speak of the one named first.
    name, best = next(item for item in others.items() if item[1].iteration_ps <= fastest * _EQUAL)
    if not compared.tells_apart(name, job=job):
        unclear = [other for other in others if not compared.tells_apart(other, job=job)]
        yield f"This coarse simulation cannot tell {', '.join(unclear)} from {baseline}: {_errors(compared)}."
    elif best.iteration_ps < base.iteration_ps:
        removed, saved = base.blocking_ps - best.blocking_ps, base.iteration_ps - best.iteration_ps
        source = compared.results[name].trace.source
        if removed <= 0:
            saves = f"saves {format_ms(saved)} of the {format_ms(base.iteration_ps)} under {baseline}"
        elif source == "measured" and abs(removed - saved) > _OTHER_COMPUTE * max(removed, saved):
            # Compute was not the same: what an iteration gained is not what it stalled less.
            saves = (
                f"saves {format_ms(saved)} of the {format_ms(base.iteration_ps)} under {baseline}, which blocks "
                f"{format_ms(removed)} longer"
            )
        else:
            saves = f"removes {format_ms(removed)} of the {format_ms(base.blocking_ps)} for which {baseline} blocks"
        yield (
            f"{name} {saves}, {compared.speedup(name, job):.2f}x; {format_ms(best.iteration_ps - optimal)} are left to "
            "the optimum."
        )
    else:
        left = format_ms(base.iteration_ps - optimal)
        yield f"No policy here is faster than {baseline}; {left} are left to the optimum."
    for slower, metrics in others.items():
        if metrics.iteration_ps > base.iteration_ps * (1 + _SLOWER) and compared.tells_apart(slower, job=job):
            more = format_ms(metrics.iteration_ps - base.iteration_ps)
            yield f"{slower} is slower than {baseline} by {more}{why_slower(compared, slower, job)}."
    yield from _about_what_is_between(compared, job)
    yield from _about_switch_order(compared, job)
    yield from _about_sums(compared, job)


def why_slower(compared: SideBySide, name: str, job: int) -> str:
    """Return why order costs more than it gains under a policy, as far as that is known; "" where it is not."""
    plan, took_ps = compared.results[name].plan, compared.results[name].jobs[job].iteration_ps
    if not compared.tells_apart(name, job=job):
        return f", no more than what moving {compared.grain} packets as one may cost"
    planned = plan.jobs[job]
    if planned.sums:
        share = min(
            throughput_share(pool, needed_slots(tree, plan.scenario.directed()))
            for tree in planned.sums
            for pool in tree.pools
        )
        few = f": its slots reach {share:.0%} of what more cluster.switch_memory would; `plan` shows them"
        return few if share < 1 else ""
    work_ps = int(lane_work_ps(plan.scenario, [(planned.job, planned.graph)]).max())
    if work_ps > _BUSY * took_ps:
        return (
            f": the busiest host copies and handles {counted(len(planned.slices), 'slice')} of every worker for "
            f"{work_ps / took_ps:.0%} of the time; larger slices cost it less"
        )
    drops, of_baseline = (int(each.trace.links["drops"].sum()) for each in (compared.results[name], compared.baseline))
    if drops > 2 * of_baseline:
        return f": switches dropped {drops} packets, which had to be sent again"
    policy, longest_ps = plan.policy, compared.baseline.jobs[job].iteration_ps * (1 + _SLOWER)
    if not _orders(compared.results[name]):
        return ""
    if 0 < policy.slice_bytes <= _SMALL_SLICE_BYTES:
        return f": {_overtaking(plan, job)}" if _has_queues_to_spare(plan, job) else ""
    finer = [
        other
        for other, result in compared.results.items()
        if 0 < result.plan.policy.slice_bytes < (policy.slice_bytes or LARGEST)
        and result.jobs[job].iteration_ps <= longest_ps
    ]
    unit = f"slice of {format_size(policy.slice_bytes)}" if policy.slice_bytes else "tensor"
    proof = f", as under {finer[0]}" if finer else ""
    return (
        f": nothing of a {unit} comes back before all of it has come from every worker, and workers that are out of "
        f"step send different ones at a time; smaller slices let parts come back sooner{proof}"
    )


def _has_queues_to_spare(plan: Plan, job: int) -> bool:
    """Whether a policy puts tensors into more queues than it may need."""
    return plan.policy.orders_in_switches and plan.policy.queue_map != "fewest" and max(plan.jobs[job].queues) > 0


def _overtaking(plan: Plan, job: int) -> str:
    """Return why more queues than needed cost something; a full sort is as many as there are tensors."""
    sorts = DISCIPLINES[plan.policy.discipline].sorts()
    where = "where switches sort fully" if sorts else f"in {max(plan.jobs[job].queues) + 1} queues"
    what = "switch=strict,queues=fewest" if sorts else "queues=fewest"
    return f"{where}, workers that are ahead overtake those for whom sums wait; try {what}"


def _about_what_is_between(compared: SideBySide, job: int) -> Iterator[str]:
    """Say what the busiest link did under the best policy, where that is not near the optimum; machines do not tell."""
    best = _best(list(compared.results.values()), job)
    is_near = best.jobs[job].iteration_ps < compared.optimal_ps[job] * (1 + _WORTH_IT)
    if is_near or best.trace.source != "simulated":
        return
    name, busy = busiest_link(best.trace)
    link = best.trace.link_names.index(name)
    if best.routes or any(change.links for change in best.plan.scenario.changes):
        # How long an iteration occupies a link is another thing before routes or rates change than after.
        carries = f"is busy for {busy:.1%} of the time, and carries"
    else:
        tensors = _tensors_ps(best)[:, link].sum() * best.plan.scenario.rounds / best.trace.end_ps
        carries = (
            f"carries tensors for {tensors:.1%} of the time, acknowledgements and other traffic for "
            f"{max(0, busy - tensors):.1%}, and"
        )
    yield (
        f"Between {best.plan.policy.name} and the optimum: the busiest link, {name}, {carries} nothing for "
        f"{1 - busy:.1%}, in which gradients, sums or windows are not ready."
    )


def _about_jobs_together(compared: SideBySide) -> Iterator[str]:
    """Say where a link has no time left, so that one job can only gain what another loses."""
    jobs = compared.scenario.jobs
    if len(jobs) == 1:
        return
    yield from _about_shared_rates(compared)
    # Of all policies the one that is best for the jobs taken together.
    best = max(compared.results, key=lambda name: sum(compared.speedup(name, job) for job in range(len(jobs))))
    result = compared.results[best]
    shares = _tensors_ps(result) / np.array([[metrics.iteration_ps] for metrics in result.jobs])
    shares[:, (shares > 0).sum(axis=0) < 2] = 0
    link = int(shares.sum(axis=0).argmax())
    together = shares[:, link].sum()
    if together >= _FULL:
        parts = " and ".join(
            f"{share:.0%} for {job.name}" for job, share in zip(jobs, shares[:, link], strict=True) if share
        )
        for_long = f"{'at least ' if result.routes else ''}{min(together, 1):.0%} of the time"
        yield (
            f"Together: under {best}, {result.trace.link_names[link]} carries tensors for {for_long}"
            f", {parts}; a job can only gain there what others lose. The optimum of each is without the others."
        )


def _about_shared_rates(compared: SideBySide) -> Iterator[str]:
    """Say what jobs that are planned together have, and would have alone."""
    for name, result in compared.results.items():
        rates = [
            f"{each.parties.name} sends {format_rate(round(each.rate_bps))} and alone would send "
            f"{format_rate(round(each.alone_bps))}, so pays {each.pays:.0%}"
            for each in placements_for(result.plan.scenario, result.plan.policy)
        ]
        if rates:
            first = " at first" if result.routes else ""
            yield f"Together: {name} plans{first} that {'; '.join(rates)}."


def _tensors_ps(result: Result) -> NDArray[np.int64]:
    """Return how long an iteration of each job occupies each link, whichever of its routes are in force."""
    plans = (result.plan, *(each.replanned.plan for each in result.routes))
    return np.asarray(np.minimum.reduce([_tensors_of_plan_ps(plan) for plan in plans]))


def _tensors_of_plan_ps(plan: Plan) -> NDArray[np.int64]:
    """Return how long an iteration of each job occupies each link, with what is gathered again for backward passes."""
    occupied = []
    for job in plan.jobs:
        shared, own = link_loads(job, plan.scenario, plan.paths)
        times = 2 if ARCHITECTURES[job.job.architecture].regathers else 1
        occupied.append((shared + times * own).sum(axis=1))
    return np.array(occupied)


def _slowest_compute_ps(result: Result, job: int) -> float:
    """Return how long the slowest worker of each measured iteration computes in it, on average."""
    trace = result.trace.jobs[job]
    compute = (trace.forward_ps[1:] + trace.backward_ps).sum(axis=2)[result.trace.warmup :]
    return float(compute.max(axis=1).mean())


def _about_drift(compared: SideBySide, job: int) -> Iterator[str]:
    """Say so where more iterations would give another answer, and it is not the cluster that changed."""
    found, warmup = list(disturbances(compared.scenario)), compared.scenario.warmup
    if any(met_iterations(found, result.trace.jobs[job], warmup) for result in compared.results.values()):
        return
    drifts = {}
    for name, result in compared.results.items():
        drift = drift_ps(result.trace.jobs[job], compared.scenario.warmup)
        if drift is not None:
            drifts[name] = drift
    if drifts:
        changes = ", ".join(f"{name} {format_ms(first)} to {format_ms(last)}" for name, (first, last) in drifts.items())
        measured = compared.scenario.iterations
        yield f"Iterations have not settled ({changes}): measure more with --set iterations={max(10, 2 * measured)}."


def _about_threshold(compared: SideBySide, job: int) -> Iterator[str]:
    """Name the policies whose iteration time a little jitter changes, and the range of it."""
    ranges = {name: compared.range_ps(name, job) for name in compared.results}
    found = [
        f"{low / PS_PER_MS:.2f} to {format_ms(high)} under {name}"
        for name, (low, high) in ((name, each) for name, each in ranges.items() if each is not None)
    ]
    if found:
        # With jitter of its own, a scenario is simulated again with other draws of about the same spread.
        cause = (
            "with other draws of compute times"
            if compared.scenario.jitter
            else f"when compute times vary by {JITTER:.1%}"
        )
        yield (f"Near a threshold: {cause}, iterations take {', '.join(found)}; the table has one value of each range.")


def _about_changes(compared: SideBySide, job: int) -> Iterator[str]:
    """Say which iterations met a change of the cluster, and what they took; and which changes nobody met."""
    found, warmup = list(disturbances(compared.scenario)), compared.scenario.warmup
    if not found:
        return
    parts = []
    for name, result in compared.results.items():
        met, met_ps, others_ps = contrast(found, result.trace.jobs[job], warmup)
        taken = [f"{format_ms(met_ps)} in {met}"] if met_ps is not None else []
        taken += [f"{format_ms(others_ps)} in the others"] if others_ps is not None else []
        parts.append(f"{name} {', '.join(taken)}")
    yield (
        f"The cluster changes ({'; '.join(one.description for one in found)}). Of {compared.scenario.iterations} "
        f"measured iterations, those that meet a change take on average: {'; '.join(parts)}."
    )
    for one in found:
        if not any(one.met(result.trace.jobs[job]) for result in compared.results.values()):
            yield f"No iteration meets this change: {one.description}; measure more, or let it come earlier."
    if any(one.times_ps is not None for one in found):
        yield (
            "The optimum takes workers, and links in a single iteration, at their fastest, as no schedule can count on "
            "less; it is further off than in a cluster that stays as it is."
        )


def _orders(result: Result) -> bool:
    """Whether a policy does more than to serve in the order of arrival."""
    return result.plan.policy.orders_in_hosts or result.plan.policy.orders_in_switches


def _about_switch_order(compared: SideBySide, job: int) -> Iterator[str]:
    """Compare the best policy that orders in hosts alone with the best that orders in switches too."""
    in_hosts, in_switches = [], []
    for result in compared.results.values():
        policy = result.plan.policy
        if policy.in_switches:
            continue
        if policy.orders_in_switches:
            in_switches.append(result)
        elif policy.orders_in_hosts:
            in_hosts.append(result)
    if not in_hosts or not in_switches:
        return
    host, switch = (_best(group, job) for group in (in_hosts, in_switches))
    if not compared.tells_apart(host.plan.policy.name, switch.plan.policy.name, job):
        return
    gain = host.jobs[job].iteration_ps - switch.jobs[job].iteration_ps
    names = f"{switch.plan.policy.name} over {host.plan.policy.name}"
    worth_ps = _WORTH_IT * switch.jobs[job].iteration_ps
    if gain >= worth_ps:
        yield f"Order in the switch saves {format_ms(gain)} an iteration ({names})."
    elif gain <= -worth_ps and _has_queues_to_spare(switch.plan, job):
        yield f"Order in the switch costs {format_ms(-gain)} an iteration ({names}): {_overtaking(switch.plan, job)}."
    else:
        little = f"saves only {format_ms(gain)} an iteration" if gain > 0 else "saves nothing"
        yield f"Order in the switch {little} ({names}): {_why_not(compared, job, host)}."


def _about_sums(compared: SideBySide, job: int) -> Iterator[str]:
    """Say how much of the gain is order and how much is that switches sum, as far as the policies tell."""
    base, others = compared.baseline, list(compared.results.values())
    summing = [result for result in others if result.plan.policy.in_switches]
    if not summing or base in summing or _orders(base):
        return

    def saved_ps(result: Result, before: Result = base) -> float:
        return before.jobs[job].iteration_ps - result.jobs[job].iteration_ps

    alone = [result for result in summing if not _orders(result)]
    both = [result for result in summing if _orders(result)]
    ordering = [result for result in others if _orders(result) and not result.plan.policy.in_switches]
    if both and ordering and saved_ps(_best(both, job)) > 0:
        order, last = _best(ordering, job), _best(both, job)
        gain_ps, of_order_ps = saved_ps(last), saved_ps(order)
        yield (
            f"Of the {format_ms(gain_ps)} that {last.plan.policy.name} saves, {format_ms(of_order_ps)} "
            f"({of_order_ps / gain_ps:.0%}) are order ({order.plan.policy.name}) and "
            f"{format_ms(gain_ps - of_order_ps)} ({1 - of_order_ps / gain_ps:.0%}) sums in switches."
        )
    ways = {result.plan.policy.sums for result in alone}
    comparable = [result for result in both if result.plan.policy.sums in ways]
    if comparable:
        last = _best(comparable, job)
        # Of those that sum in the same way: another way gains or costs something of its own.
        first = _best([result for result in alone if result.plan.policy.sums == last.plan.policy.sums], job)
        yield (
            f"Sums in switches without any order take off {format_ms(saved_ps(first))} ({first.plan.policy.name}), and "
            f"order on top of them {format_ms(saved_ps(last, first))} ({last.plan.policy.name})."
        )


def _best(group: list[Result], job: int) -> Result:
    fastest = min(result.jobs[job].iteration_ps for result in group)
    return next(result for result in group if result.jobs[job].iteration_ps <= fastest * _EQUAL)


def _why_not(compared: SideBySide, job: int, host: Result) -> str:
    inputs = compared.scenario
    peak = int(host.trace.links["peak_bytes"].max())
    left = host.jobs[job].iteration_ps / compared.optimal_ps[job] - 1
    if inputs.cluster.queues == 1:
        return "the cluster has one queue per port; set cluster.queues"
    if peak < 4 * (inputs.cluster.mtu + inputs.transport.header_bytes):
        return f"packets hardly wait in switches (at most {format_size(peak)}), every queue holds one flow"
    if left < _WORTH_IT:
        return f"order in the hosts alone comes within {left:.1%} of the optimum"
    return (
        f"with a window of {format_size(inputs.transport.window_bytes)} at most {format_size(peak)} wait at a port, "
        "little beside what waits in hosts"
    )


def _about_grain(compared: SideBySide) -> Iterator[str]:
    """Say what was not simulated packet by packet, and how much that matters."""
    if compared.grain == 1:
        return
    said = f"Coarse: {compared.grain} packets moved as one (--grain {compared.grain})"
    if not compared.grain_errors:
        yield f"{said}; a smaller grain tells how much that matters, --grain 1 is packet level."
        return
    yield f"{said}: {_errors(compared)}. A smaller --grain is more exact, and slower; --grain 1 is packet level."
    dropped = [name for name, result in compared.results.items() if result.trace.links["drops"].any()]
    if dropped:
        yield f"What moved as one was dropped as one ({', '.join(dropped)}): only --grain 1 tells single losses."


def _errors(compared: SideBySide) -> str:
    """Return by how much iterations may be off packet level, for each policy."""
    errors = ", ".join(f"{error:.0%} ({name})" for name, error in compared.grain_errors.items())
    return f"iteration times may be off by {errors}"


def _about_parts(compared: SideBySide) -> Iterator[str]:
    """Say how much of the summing was left to servers, where slots are found by hash."""
    for name, result in compared.results.items():
        trace = result.trace
        if result.plan.policy.sums != "hashed" or not trace.server_sums:
            continue
        whole, packets = trace.whole_sums / trace.server_sums, trace.server_packets / trace.server_sums
        most = max(len(job.hosts) for job in compared.scenario.jobs)
        said = (
            f"Under {name}, {whole:.1%} of sums came whole from a switch; servers got {packets:.2f} packets for a sum, "
            f"where 1 is the fewest and {most} is all of them"
        )
        wanted = sum(pool.slots for job in result.plan.jobs for tree in job.sums for pool in tree.pools)
        cells = result.plan.jobs[0].sums[0].cells
        crowded = whole < 1 - _WORTH_IT and wanted > _CROWDED * cells
        few = f": workers have up to {wanted} packets under way, and a switch has {counted(cells, 'cell')}"
        yield f"{said}{f'{few}; a larger cluster.switch_memory has more' if crowded else ''}."


def _only_timeouts_tell(plan: Plan) -> bool:
    """Whether switches sum, and for some pool nothing else says that a packet is lost."""
    pools = [pool for job in plan.jobs for tree in job.sums for pool in tree.pools]
    return bool(pools) and (newer_sums_of(plan.policy) == 0 or min(pool.slots for pool in pools) == 1)


def _about_network(compared: SideBySide) -> Iterator[str]:
    for name, result in compared.results.items():
        drops, retransmissions = int(result.trace.links["drops"].sum()), result.trace.retransmissions
        if drops:
            less = "" if result.plan.policy.in_switches else "a smaller transport.window, transport.ecn or "
            yield (
                f"Under {name}, switches dropped {drops} packets ({retransmissions} sent again): {less}a larger "
                "cluster.buffer would avoid it."
            )
        elif (
            retransmissions > _WORTH_IT * result.trace.transmissions
            and not result.trace.links["losses"].any()
            # There, parts of sums are sent again that found no cell together.
            and result.plan.policy.sums != "hashed"
        ):
            yield (
                f"Under {name}, {result.trace.timeouts} time-outs fired for packets that only waited "
                f"({'for slower workers' if result.plan.policy.in_switches else 'starved in a low queue'}); a larger "
                "transport.rto_min would avoid it."
            )
        if _only_timeouts_tell(result.plan) and result.trace.links["losses"].any() and retransmissions:
            yield (
                f"Under {name}, a slot stands still for transport.rto_min "
                f"({format_time(result.plan.scenario.transport.rto_min_ps)}) at the least when a packet is lost: a few "
                "round trips would do, if hosts can keep to them."
            )
        for job, metrics in zip(compared.scenario.jobs, result.jobs, strict=True):
            apart_ps = abs(metrics.iteration_ps - metrics.iteration_median_ps)
            if retransmissions and apart_ps >= _FEW_DECIDE * metrics.iteration_ps:
                of = f" of {job.name}" if len(result.jobs) > 1 else ""
                yield (
                    f"Under {name}, iterations{of} take {format_ms(metrics.iteration_ps)} on average and "
                    f"{format_ms(metrics.iteration_median_ps)} in the median: time-outs of a few decide the mean, so "
                    "compare medians, or many iterations."
                )
            share = metrics.timed_out_ps / metrics.iteration_ps
            if share >= _WORTH_IT:
                of = f" of {job.name}" if len(result.jobs) > 1 else ""
                yield (
                    f"Under {name}, workers{of} stood still for up to {format_ms(metrics.timed_out_ps)} an "
                    f"iteration ({share:.1%}) for tensors of which a packet timed out."
                )
