"""One meaning of loss: simulated flows, compiled ones and those of hosts give packets up at the same times."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.thorough import rest

from tensorexpress import recovery
from tensorexpress.host.endpoint import settings_of
from tensorexpress.host.flow import Ack, FlowSettings, Outgoing, SendFlow
from tensorexpress.host.tagging import Tagger
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES, Policy, parse_policy
from tensorexpress.results import advice
from tensorexpress.scenario import Job, Scenario, Transport, read_scenario
from tensorexpress.sim import fast, predict
from tensorexpress.sim.columns import LOSS, NOW, TIMEOUTS
from tensorexpress.sim.flat_plan import NO_LIMIT, FlatPlan, build
from tensorexpress.sim.kernel.native import kernel
from tensorexpress.sim.model import Model
from tensorexpress.topologies import custom
from tensorexpress.workload import Layer, Workload

MS = 10**9
ALL_LOST = (1 << 63) - 1


def one_flow(rto_min_ps: int) -> FlatPlan:
    """A worker that sends one packet to a server."""
    job = Job("job", Workload("one", (Layer("l0", 100, MS, MS),)), (0,), (1,))
    cluster = custom(["h0", "h1"], [], [("h0", "h1", "8 Gbps", 0)])
    transport = Transport(rto_min_ps=rto_min_ps)
    return build(make_plan(Scenario("one", cluster, (job,), transport, loss=0.5), Policy("whole")))


def simulated(program: FlatPlan) -> Iterator[int]:
    """Yield when time-outs strike in the SimPy model while every packet is lost."""
    model = Model(program)
    model.loss_threshold = ALL_LOST + 1
    seen = 0
    while True:
        model.env.step()
        if model.record.timeouts > seen:
            seen = model.record.timeouts
            yield int(model.env.now)


def compiled(program: FlatPlan) -> Iterator[int]:
    """Yield the same of the compiled engine, one event after the other."""
    memory = fast._Layout(program, 0).memory
    memory[LOSS] = ALL_LOST
    seen = 0
    while True:
        kernel(memory.ctypes.data, memory.ctypes.data, 0, 1)
        if memory[TIMEOUTS] > seen:
            seen = memory[TIMEOUTS]
            yield int(memory[NOW])


def on_a_host(rto_min_ps: int) -> Iterator[int]:
    """Yield the same of a host's flow."""
    flow = SendFlow(FlowSettings(payload_bytes=1000, overhead_bytes=100, rto_min_ps=rto_min_ps))
    flow.offer(Outgoing(400, 1000, key=0))
    now_ps = 0
    while True:
        assert flow.head() is not None
        flow.next_burst(now_ps, 1)
        now_ps = flow.deadline_ps
        flow.time_out(now_ps)
        yield now_ps


def gaps(times: Iterator[int], count: int) -> list[int]:
    strikes = [next(times) for _ in range(count)]
    return [later - earlier for earlier, later in pairwise(strikes)]


@pytest.mark.parametrize(
    ("rto_min_ms", "expected"), [(200, [400, 800, 1000, 1000, 1000]), (5, [10, 20, 40, 80, 160]), (3000, [3000] * 5)]
)
def test_a_time_out_that_strikes_again_and_again_doubles_up_to_a_second_everywhere(
    rto_min_ms: int, expected: list[int]
) -> None:
    program = one_flow(rto_min_ms * MS)
    for times in (simulated(program), compiled(program), on_a_host(rto_min_ms * MS)):
        assert gaps(times, 6) == [each * MS for each in expected]


@pytest.mark.parametrize(
    "text",
    [
        *(name for name, policy in POLICIES.items() if name != "ideal" and not policy.in_switches),
        "tensorexpress:switch=sp-pifo,queues=slack",
    ],
)
def test_simulated_and_real_flows_of_a_plan_take_the_same_gap_for_a_loss(text: str) -> None:
    scenario = read_scenario(overrides=["job.model=alexnet", "job.workers=2", "job.servers=1"])
    plan = make_plan(scenario, parse_policy(text))
    on_hosts = settings_of(plan, Tagger(plan, payload_bytes=8000)).flow.reordering
    assert (on_hosts or NO_LIMIT) == build(plan).reordering
    assert (on_hosts == 0) == ("slack" in text)


@given(st.lists(st.integers(1, 10**10), min_size=1, max_size=30), st.integers(1, 10**9))
def test_the_time_out_follows_the_same_samples_to_the_same_picosecond(samples: list[int], rto_min_ps: int) -> None:
    """The model is given the samples; the host's flow sees them as acknowledgements of one packet after the other."""
    model = Model(one_flow(rto_min_ps))
    simulated_flow = model.flows[0]
    host_flow = SendFlow(FlowSettings(payload_bytes=1000, overhead_bytes=100, rto_min_ps=rto_min_ps))
    now_ps = 0
    for number, sample_ps in enumerate(samples):
        host_flow.offer(Outgoing(400, 1000, key=0))
        host_flow.next_burst(now_ps, 1)
        now_ps += sample_ps
        host_flow.acknowledge(Ack(number + 1, 0, number), now_ps)
        simulated_flow.measured_round_trip(sample_ps)
        assert host_flow.timeout_ps == simulated_flow.timeout_ps


def test_doctests() -> None:
    assert doctest.testmod(recovery).failed == 0


SMALL = ["job.model=alexnet", "job.workers=3", "job.servers=2", "iterations=2"]


@rest()
def test_loss_of_one_packet_in_a_thousand_costs_no_policy_its_gain_and_time_outs_no_twentieth() -> None:
    for seed in range(3):
        compared = predict(read_scenario(overrides=[*SMALL, "loss=0.001", f"seed={seed}"]), ["fifo", "tensorexpress"])
        assert compared.speedup("tensorexpress") > 1.3
        for result in compared.results.values():
            assert result.trace.links["losses"].sum() > 100
            assert result.jobs[0].timed_out_ps < result.jobs[0].iteration_ps / 20


def test_long_time_outs_are_told_as_what_they_cost() -> None:
    compared = predict(read_scenario(overrides=[*SMALL, "loss=0.02", "transport.rto_min=1 s"]), ["tensorexpress"])
    (note,) = (note for note in advice.notes(compared) if "timed out" in note)
    assert note.startswith("Under tensorexpress, workers stood still for up to ")


def test_packets_that_starve_in_a_low_queue_are_not_taken_for_lost() -> None:
    """Hundreds of probes at the most, no window cut, and nothing sent again beside them."""
    (result,) = predict(read_scenario(overrides=["cluster.bandwidth=5 Gbps"]), ["tensorexpress"]).results.values()
    assert 0 < result.trace.timeouts == result.trace.retransmissions < result.trace.transmissions / 1000
    assert result.jobs[0].timed_out_ps == 0
