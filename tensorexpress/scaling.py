"""Scaling: the same scenario in slow motion, for targets that cannot keep up with its links.

Rates are divided and times multiplied by one factor; sizes stay. Then every ratio of times is what it was: how much of
an iteration is blocking, what a policy gains, how many packets a window holds.
"""

from __future__ import annotations

from dataclasses import replace

from tensorexpress.cluster import Cluster, with_rates
from tensorexpress.errors import ScenarioError
from tensorexpress.plan import Plan, check_duration
from tensorexpress.scenario import Background, Change, Job, Scenario, Transport
from tensorexpress.units import format_rate, format_time
from tensorexpress.workload import LONGEST_PS, Workload

#: Two first digits of nice factors: whole ones among 1, 1.2, 1.5, 2, ... 8, 10, 12, 15, 20, ... A run takes no longer
#: than it must by more than a third.
_NICE = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)


def scale_scenario(scenario: Scenario, factor: int) -> Scenario:
    """Return the scenario `factor` times slower: rates divided, times multiplied, sizes as they are.

    Rates are rounded to whole bit/s; a simulated time is exactly `factor` times what it was where nothing is rounded.

    >>> from tensorexpress.scenario import read_scenario
    >>> slow = scale_scenario(read_scenario(overrides=["cluster.bandwidth=10 Gbps", "cluster.delay=1 us"]), 100)
    >>> slow.cluster.links[0]
    Link(a='h0', b='s0', rate_bps=100000000, delay_ps=100000000)
    """
    if type(factor) is not int or factor < 1:
        raise ScenarioError(f"{scenario.name}: scale is {factor!r}; accepted: a whole number of 1 or more")
    scale = _Scale(scenario.name, factor)
    return replace(
        scenario,
        cluster=scale.cluster(scenario.cluster),
        jobs=tuple(map(scale.job, scenario.jobs)),
        transport=scale.transport(scenario.transport),
        background=tuple(map(scale.background, scenario.background)),
        changes=tuple(map(scale.change, scenario.changes)),
    )


def scale_plan(plan: Plan, factor: int) -> Plan:
    """Return the plan of the scenario `factor` times slower: the same decisions, their times multiplied."""
    scenario = scale_scenario(plan.scenario, factor)
    check_duration(scenario)
    jobs = (
        replace(
            decided,
            job=job,
            slack_ps=tuple(slack_ps * factor for slack_ps in decided.slack_ps),
            transfer_ps=tuple(transfer_ps * factor for transfer_ps in decided.transfer_ps),
            regret_ps=decided.regret_ps * factor,
        )
        for decided, job in zip(plan.jobs, scenario.jobs, strict=True)
    )
    return replace(plan, scenario=scenario, jobs=tuple(jobs))


def factor_for(scenario: Scenario, fastest_bps: int, scaled_by: int = 1) -> int:
    """Return the least nice factor (1, 2, ... 10, 12, 15, 20, ...) by which no link is faster than `fastest_bps`.

    The factor is from a scenario `scaled_by` times as fast as this one.

    >>> from tensorexpress.scenario import read_scenario
    >>> factor_for(read_scenario(overrides=["cluster.bandwidth=10 Gbps"]), fastest_bps=60_000_000)
    200
    """
    needed = -(-scenario.greatest_rate_bps * scaled_by // fastest_bps)
    length = len(str(needed))
    factors = (digits * int(10**zeros) // 10 for zeros in (length - 1, length) for digits in _NICE)
    return next(factor for factor in factors if factor >= needed)


def longer_silence_ps(silence_ps: int, factor: int) -> int:
    """Return how long a host may be silent in slow motion: as many of the longer time-outs as before.

    It is at most as long as any time of a scenario, which hosts can count in 64 bits.

    >>> longer_silence_ps(10 * 10**12, factor=8), longer_silence_ps(10 * 10**12, factor=10**9)
    (80000000000000, 10000000000000000)
    """
    return min(silence_ps * factor, LONGEST_PS)


class _Scale:
    """One factor, and the scenario that errors name."""

    def __init__(self, name: str, factor: int):
        self._name, self._factor = name, factor

    def time(self, time_ps: int) -> int:
        if time_ps * self._factor > LONGEST_PS:
            raise ScenarioError(
                f"{self._name}: {format_time(time_ps)} times {self._factor} is more than {format_time(LONGEST_PS)}; "
                "accepted: a smaller scale, or shorter times"
            )
        return time_ps * self._factor

    def later(self, time_ps: int | None) -> int | None:
        """Return the later time; None, which stands for never, stays."""
        return None if time_ps is None else self.time(time_ps)

    def rate(self, rate_bps: int) -> int:
        """Return the slower rate; 0, which stands for no limit, stays."""
        slower_bps = (rate_bps + self._factor // 2) // self._factor
        if rate_bps and not slower_bps:
            raise ScenarioError(
                f"{self._name}: {format_rate(rate_bps)} divided by {self._factor} is less than 1 bit/s; "
                "accepted: a smaller scale, or faster links"
            )
        return slower_bps

    def cluster(self, cluster: Cluster) -> Cluster:
        links = (
            replace(with_rates(link, *map(self.rate, link.rates_bps)), delay_ps=self.time(link.delay_ps))
            for link in cluster.links
        )
        return replace(cluster, links=tuple(links), switch_rate_bps=self.rate(cluster.switch_rate_bps))

    def transport(self, transport: Transport) -> Transport:
        return replace(
            transport,
            rto_min_ps=self.time(transport.rto_min_ps),
            stack_rate_bps=self.rate(transport.stack_rate_bps),
            copy_rate_bps=self.rate(transport.copy_rate_bps),
            message_ps=self.time(transport.message_ps),
        )

    def job(self, job: Job) -> Job:
        return replace(
            job,
            workload=self.workload(job.workload),
            sum_rate_bps=self.rate(job.sum_rate_bps),
            local_rate_bps=self.rate(job.local_rate_bps),
            start_ps=self.time(job.start_ps),
            add_rate_bps=self.rate(job.add_rate_bps),
            update_rate_bps=self.rate(job.update_rate_bps),
            overhead_ps=self.time(job.overhead_ps),
        )

    def workload(self, workload: Workload) -> Workload:
        layers = (
            replace(layer, forward_ps=self.time(layer.forward_ps), backward_ps=self.time(layer.backward_ps))
            for layer in workload.layers
        )
        rate_bps = self.rate(workload.compression_rate_bps)
        return replace(workload, layers=tuple(layers), compression_rate_bps=rate_bps)

    def background(self, traffic: Background) -> Background:
        at_ps, until_ps = self.time(traffic.at_ps), self.later(traffic.until_ps)
        return replace(traffic, rate_bps=self.rate(traffic.rate_bps), at_ps=at_ps, until_ps=until_ps)

    def change(self, change: Change) -> Change:
        rate_bps = None if change.rate_bps is None else self.rate(change.rate_bps)
        return replace(change, at_ps=self.time(change.at_ps), until_ps=self.later(change.until_ps), rate_bps=rate_bps)
