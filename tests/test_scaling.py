"""Scaling: a scenario in slow motion is the same scenario, as far as whole picoseconds and bits can tell."""

from __future__ import annotations

import doctest
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import policies, scenarios
from support.thorough import examples, rest

from tensorexpress import scaling
from tensorexpress.errors import ScenarioError
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES, Policy
from tensorexpress.scaling import factor_for, scale_plan, scale_scenario
from tensorexpress.scenario import Scenario, read_scenario
from tensorexpress.sim import simulate
from tensorexpress.trace import measure_job

#: With round rates nothing is rounded: 8 * 10**12 / (factor * rate) is whole, and so is every time on a link.
FACTORS = st.sampled_from([1, 2, 5, 10, 50, 200, 1000])


def at_rate(scenario: Scenario, rate_bps: int) -> Scenario:
    """Return the scenario with all links at one rate."""
    links = tuple(replace(link, rate_bps=rate_bps) for link in scenario.cluster.links)
    return replace(scenario, cluster=replace(scenario.cluster, links=links))


def check_times_scale(scenario: Scenario, policy: Policy, factor: int) -> None:
    original = simulate(make_plan(scenario, policy))
    scaled = simulate(make_plan(scale_scenario(scenario, factor), policy))
    assert scaled.end_ps == factor * original.end_ps
    assert scaled.transmissions == original.transmissions
    for one, other in zip(original.jobs, scaled.jobs, strict=True):
        assert np.array_equal(factor * one.forward_start_ps, other.forward_start_ps)
        assert np.array_equal(factor * one.updated_ps, other.updated_ps)
        assert np.array_equal(factor * one.transfers["sent_ps"], other.transfers["sent_ps"])
        before, after = measure_job(one, original.warmup), measure_job(other, scaled.warmup)
        assert after.blocking_ps == pytest.approx(factor * before.blocking_ps, rel=1e-12)
        assert after.iteration_ps == pytest.approx(factor * before.iteration_ps, rel=1e-12)


@settings(max_examples=examples(100))
@given(scenarios(disturbed=False), policies(credit=False), FACTORS)
def test_every_time_of_a_scaled_run_is_the_factor_times_the_original(
    scenario: Scenario, policy: Policy, factor: int
) -> None:
    check_times_scale(at_rate(scenario, 10**9), policy, factor)


@rest(but=1)
@pytest.mark.parametrize(
    ("architecture", "policy"),
    [
        (architecture, name)
        for architecture in ("servers=2", "architecture=ring")
        for name, policy in POLICIES.items()
        if architecture == "servers=2" or not policy.sums_end_at_servers
    ],
)
def test_windows_credit_and_acknowledgements_scale_too(architecture: str, policy: str) -> None:
    # Nothing times out: round trips are smoothed in whole picoseconds, so time-outs scale only nearly.
    overrides = ["job.model=alexnet", "job.workers=3", f"job.{architecture}", "iterations=1", "transport.rto_min=1 s"]
    scenario = read_scenario(overrides=overrides)
    check_times_scale(scenario, POLICIES[policy], 200)


@settings(max_examples=examples(50))
@given(scenarios(disturbed=False), policies(credit=False), FACTORS)
def test_a_scaled_plan_is_the_plan_of_the_scaled_scenario(scenario: Scenario, policy: Policy, factor: int) -> None:
    plan = make_plan(at_rate(scenario, 10**9), policy)
    again = make_plan(scale_scenario(plan.scenario, factor), policy)
    assert scale_plan(plan, factor) == again


@given(scenarios(), FACTORS)
def test_sizes_and_all_that_has_no_unit_stay(scenario: Scenario, factor: int) -> None:
    scaled = scale_scenario(scenario, factor)
    assert [job.workload.tensor_bytes for job in scaled.jobs] == [job.workload.tensor_bytes for job in scenario.jobs]
    of_time = {"rto_min_ps": 0, "stack_rate_bps": 0, "copy_rate_bps": 0, "message_ps": 0}
    assert replace(scaled.transport, **of_time) == replace(scenario.transport, **of_time)
    assert replace(scaled.cluster, links=scenario.cluster.links) == scenario.cluster
    assert scaled.transport.rto_min_ps == factor * scenario.transport.rto_min_ps
    assert scaled.transport.message_ps == factor * scenario.transport.message_ps
    assert [job.overhead_ps for job in scaled.jobs] == [factor * job.overhead_ps for job in scenario.jobs]
    assert scaled.jitter == scenario.jitter
    assert scaled.loss == scenario.loss
    assert [round(job.sum_rate_bps * factor) for job in scaled.jobs] == [job.sum_rate_bps for job in scenario.jobs]
    assert [traffic.rate_bps * factor for traffic in scaled.background] == [b.rate_bps for b in scenario.background]
    assert [change.share for change in scaled.changes] == [change.share for change in scenario.changes]
    for slow, own in zip((*scaled.changes, *scaled.background), (*scenario.changes, *scenario.background), strict=True):
        assert (slow.at_ps, slow.until_ps) == (factor * own.at_ps, own.until_ps and factor * own.until_ps)


def test_a_factor_of_one_changes_nothing() -> None:
    scenario = read_scenario()
    assert scale_scenario(scenario, 1) == scenario


@given(st.integers(1, 10**12), st.integers(1, 10**12))
def test_the_factor_is_the_least_nice_one_that_the_target_keeps_up_with(rate_bps: int, fastest_bps: int) -> None:
    factor = factor_for(at_rate(read_scenario(), rate_bps), fastest_bps)
    first = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    products = {round(digit * 10**power, 1) for power in range(14) for digit in first}
    nice = sorted(product for product in products if product % 1 == 0)
    assert factor in nice
    assert rate_bps <= factor * fastest_bps
    assert factor == 1 or rate_bps > nice[nice.index(factor) - 1] * fastest_bps


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (0, "scale is 0; accepted: a whole number of 1 or more"),
        (2.5, "scale is 2.5; accepted: a whole number of 1 or more"),
        (10**11, "10 Gbps divided by 100000000000 is less than 1 bit/s; accepted: a smaller scale, or faster links"),
        (10**9, "times 1000000000 is more than 1e+04 s; accepted: a smaller scale, or shorter times"),
    ],
)
def test_a_factor_that_cannot_be_is_refused(factor: int, message: str) -> None:
    with pytest.raises(ScenarioError) as refusal:
        scale_scenario(read_scenario(), factor)
    assert message in str(refusal.value)


def test_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(scaling).failed == 0
