"""The two engines mean the same: every observation of every packet is equal, whatever is simulated."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import SUMMED, US, paced_plans, plans, policies, scenarios
from support.thorough import examples, one_in, rest

from tensorexpress.errors import InputError, SimulationError
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import Policy, parse_policy
from tensorexpress.scenario import Background, Job, Scenario, Transport
from tensorexpress.sim import fast, model
from tensorexpress.sim.flat_plan import build
from tensorexpress.sim.grain import coarsened
from tensorexpress.sim.record import Record
from tensorexpress.sim.run import execute, simulate
from tensorexpress.sim_engines import ENGINES
from tensorexpress.topologies import star
from tensorexpress.workload import Layer, Workload

WORKLOAD = Workload(
    "four", tuple(Layer(f"l{i}", params, 50 * US, 100 * US) for i, params in enumerate((300, 12_000, 5_000, 30_000)))
)
POLICIES = (
    "fifo",
    "tictac",
    "bytescheduler:slice=20 KB,credit=30 KB",
    "p3:slice=10 KB",
    "tensorexpress:slice=10 KB",
    "tensorexpress:slice=10 KB,queues=equal",
    "ideal:queues=optimal",
    "ideal:switch=sp-pifo,queues=optimal",
    "ideal:switch=sp-pifo,queues=slack",
    "ideal",
)


def crowded(architecture: str, loss: float = 0.0, ecn_bytes: int = 0, window_bytes: int = 60_000) -> Scenario:
    """Four workers whose traffic meets in one switch with little buffer, and a stranger's packets beside."""
    servers = (4, 5) if architecture == "ps" else ()
    return Scenario(
        "crowded",
        star(7, "1 Gbps", "1 us", mtu=1500, buffer=40_000, queues=3),
        (Job("job", WORKLOAD, (0, 1, 2, 3), servers, architecture, shard_bytes=10_000),),
        Transport(window_bytes, ecn_bytes=ecn_bytes, rto_min_ps=2000 * US),
        (Background(6, 1, 100 * 10**6),),
        jitter=0.1,
        loss=loss,
        iterations=1,
    )


def differences(one: Record, other: Record) -> list[str]:
    """Return the names of the observations in which two records differ."""
    return [f.name for f in fields(Record) if not np.array_equal(getattr(one, f.name), getattr(other, f.name))]


@rest(but=8)
@one_in(3)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("loss", "ecn_bytes"), [(0.0, 0), (0.01, 1500)])
@pytest.mark.parametrize("architecture", ["ps", "ring", "fsdp"])
def test_engines_are_equal_on_every_architecture_discipline_loss_and_ecn(
    architecture: str, ecn_bytes: int, loss: float, policy: str
) -> None:
    program = build(make_plan(crowded(architecture, loss, ecn_bytes), parse_policy(policy)))
    reference = model.run(program, record_packets=True)
    assert differences(reference, fast.run(program, record_packets=True)) == []
    # The comparison is about what it says it is about.
    assert reference.transmissions == len(reference.packets) > 500
    assert (reference.link_losses.sum() > 0) == (loss > 0)
    assert (reference.link_marks.sum() > 0) == (ecn_bytes > 0)


@rest(but=1)
@settings(max_examples=examples(300))
@given(plans() | paced_plans(), st.sampled_from([1, 1, 2, 5]))
def test_engines_are_equal_packet_for_packet_on_random_scenarios(plan: Plan, grain: int) -> None:
    program = build(coarsened(plan, grain), grain, plan)
    assert differences(model.run(program, record_packets=True), fast.run(program, record_packets=True)) == []


@settings(max_examples=examples(200))
@given(plans(sums=SUMMED, sparse=None) | paced_plans(sums=SUMMED))
def test_engines_are_equal_packet_for_packet_where_switches_sum(plan: Plan) -> None:
    program = build(plan)
    assert differences(model.run(program, record_packets=True), fast.run(program, record_packets=True)) == []


@settings(max_examples=examples(60))
@given(plans() | plans(sums=SUMMED), st.sampled_from([US // 10, US, 20 * US]))
def test_engines_are_equal_when_most_timeouts_are_premature(plan: Plan, rto_min_ps: int) -> None:
    # No background: where the time-out is shorter than the round trip, a run is long.
    impatient = replace(plan.scenario.transport, rto_min_ps=rto_min_ps)
    program = build(make_plan(replace(plan.scenario, transport=impatient, background=()), plan.policy))
    assert differences(model.run(program, record_packets=True), fast.run(program, record_packets=True)) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_seed_gives_the_same_bytes(engine: str) -> None:
    program = build(make_plan(crowded("ps", loss=0.01), parse_policy("ideal")))
    first, second = (execute(program, engine, record_packets=True) for _ in range(2))
    assert differences(first, second) == []
    assert first.packets.tobytes() == second.packets.tobytes()


def test_another_seed_loses_other_packets() -> None:
    scenario = replace(crowded("ps", loss=0.01), jitter=0.0, background=())
    one, other = (
        execute(build(make_plan(replace(scenario, seed=seed), parse_policy("fifo"))), "fast", record_packets=True)
        for seed in (1, 2)
    )
    assert not np.array_equal(one.packets, other.packets)


def test_without_chance_the_seed_changes_nothing() -> None:
    scenario = replace(crowded("ring"), jitter=0.0, background=())
    one, other = (
        execute(build(make_plan(replace(scenario, seed=seed), parse_policy("p3"))), "fast", record_packets=True)
        for seed in (1, 2)
    )
    assert differences(one, other) == []


@settings(max_examples=examples(50))
@given(scenarios(), policies(credit=False), policies(credit=False))
def test_no_policy_changes_the_compute_times_or_the_background_drawn(
    scenario: Scenario, one: Policy, other: Policy
) -> None:
    a, b = build(make_plan(scenario, one)), build(make_plan(scenario, other))
    for name in ("forward_ps", "backward_ps", "background_gaps_ps", "worker_start_ps"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


@settings(max_examples=20)
@given(plans())
def test_recording_packets_changes_nothing_else(plan: Plan) -> None:
    program = build(plan)
    for engine in ("simpy", "fast"):
        without, with_packets = execute(program, engine), execute(program, engine, record_packets=True)
        assert differences(without, with_packets) == ["packets"]


def test_both_engines_and_auto_give_the_same_trace() -> None:
    plan = make_plan(crowded("ps"), parse_policy("tensorexpress"))
    simpy_, fast_, auto = (simulate(plan, engine) for engine in ("simpy", "fast", "auto"))
    for other in (fast_, auto):
        assert np.array_equal(simpy_.links, other.links)
        assert np.array_equal(simpy_.jobs[0].transfers, other.jobs[0].transfers)
        assert np.array_equal(simpy_.jobs[0].forward_start_ps, other.jobs[0].forward_start_ps)
        assert (simpy_.end_ps, simpy_.transmissions) == (other.end_ps, other.transmissions)


def test_memory_that_was_expected_too_small_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    program = build(make_plan(crowded("ps", loss=0.01), parse_policy("tensorexpress:slice=10 KB")))
    expected = fast.run(program, record_packets=True)
    monkeypatch.setattr(fast, "_expected_words", lambda program: 5000)
    assert not differences(fast.run(program, record_packets=True), expected)


def test_what_does_not_fit_into_half_words_is_not_run_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    program = build(make_plan(crowded("ps"), parse_policy("fifo")))
    assert fast.what_is_not_compiled(program) is None
    monkeypatch.setattr(fast, "MOST_PACKETS", 5)
    assert "more than 5 packets of a flow" in str(fast.what_is_not_compiled(program))
    monkeypatch.setattr(fast, "MOST_WORDS", 5000)
    with pytest.raises(SimulationError, match="more than 16 GiB"):
        fast.run(program)


def test_an_unknown_engine_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"unknown engine 'slow'.*auto, fast, simpy"):
        simulate(make_plan(crowded("ps"), parse_policy("fifo")), "slow")
