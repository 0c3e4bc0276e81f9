"""Advice: what to make of policies side by side, and above all why scheduling gains nothing where it does not."""

from __future__ import annotations

from collections.abc import Iterator

from tensorexpress.results.side_by_side import Result, SideBySide
from tensorexpress.units import format_ms, format_size

#: Iteration times within this factor count as equal.
_EQUAL = 1.001

#: Gains and shares below this are called nothing.
_WORTH_IT = 0.02


def notes(compared: SideBySide) -> list[str]:
    """Return sentences, most important first; every one is about a difference that the numbers show."""
    several = len(compared.scenario.jobs) > 1
    found = []
    for index, job in enumerate(compared.scenario.jobs):
        prefix = f"{job.name}: " if several else ""
        found += [prefix + note for note in _about_job(compared, index)]
    return found + list(_about_network(compared))


def _about_job(compared: SideBySide, job: int) -> Iterator[str]:
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
    if best.iteration_ps < base.iteration_ps:
        removed, saved = base.blocking_ps - best.blocking_ps, base.iteration_ps - best.iteration_ps
        saves = (
            f"removes {format_ms(removed)} of the {format_ms(base.blocking_ps)} for which {baseline} blocks"
            if removed > 0
            else f"saves {format_ms(saved)} of the {format_ms(base.iteration_ps)} under {baseline}"
        )
        yield (
            f"{name} {saves}, {compared.speedup(name, job):.2f}x; {format_ms(best.iteration_ps - optimal)} are left to "
            "the optimum."
        )
    else:
        left = format_ms(base.iteration_ps - optimal)
        yield f"No policy here is faster than {baseline}; {left} are left to the optimum."
    for slower, metrics in others.items():
        if metrics.iteration_ps > base.iteration_ps * (1 + _WORTH_IT):
            yield f"{slower} is slower than {baseline} by {format_ms(metrics.iteration_ps - base.iteration_ps)}."
    yield from _about_switch_order(compared, job)


def _orders(result: Result) -> bool:
    """Whether a policy does more than to serve in the order of arrival."""
    return result.plan.policy.orders_in_hosts or result.plan.policy.orders_in_switches


def _about_switch_order(compared: SideBySide, job: int) -> Iterator[str]:
    """Compare the best policy that orders in hosts alone with the best that orders in switches too."""
    in_hosts, in_switches = [], []
    for result in compared.results.values():
        policy = result.plan.policy
        if policy.orders_in_switches:
            in_switches.append(result)
        elif policy.orders_in_hosts:
            in_hosts.append(result)
    if not in_hosts or not in_switches:
        return
    host, switch = (_best(group, job) for group in (in_hosts, in_switches))
    gain = host.jobs[job].iteration_ps - switch.jobs[job].iteration_ps
    names = f"{switch.plan.policy.name} over {host.plan.policy.name}"
    worth_ps = _WORTH_IT * switch.jobs[job].iteration_ps
    queues = max(switch.plan.jobs[job].queues) + 1
    if gain >= worth_ps:
        yield f"Order in the switch saves {format_ms(gain)} an iteration ({names})."
    elif gain <= -worth_ps and switch.plan.policy.queue_map != "fewest" and queues > 1:
        yield (
            f"Order in the switch costs {format_ms(-gain)} an iteration ({names}): in {queues} queues, workers that "
            "are ahead overtake those for whom sums wait; try queues=fewest."
        )
    else:
        little = f"saves only {format_ms(gain)} an iteration" if gain > 0 else "saves nothing"
        yield f"Order in the switch {little} ({names}): {_why_not(compared, job, host)}."


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


def _about_network(compared: SideBySide) -> Iterator[str]:
    for name, result in compared.results.items():
        drops, retransmissions = int(result.trace.links["drops"].sum()), result.trace.retransmissions
        if drops:
            yield (
                f"Under {name}, switches dropped {drops} packets ({retransmissions} sent again): a smaller "
                "transport.window, transport.ecn or a larger cluster.buffer would avoid it."
            )
        elif result.trace.timeouts and not result.trace.links["losses"].any():
            yield (
                f"Under {name}, {result.trace.timeouts} time-outs fired for packets that only waited "
                "(starved in a low queue); a larger transport.rto_min would avoid it."
            )
