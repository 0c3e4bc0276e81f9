"""The software path of hosts, held to closed forms: one worker, a pipeline of slices, sums one after another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from support.strategies import plans
from support.thorough import examples

from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import Policy
from tensorexpress.presets import PRESETS
from tensorexpress.scenario import Job, Scenario, Transport, read_scenario
from tensorexpress.sim.run import simulate
from tensorexpress.software import IN, OUT, lane_work_ps
from tensorexpress.topologies import star
from tensorexpress.trace import Trace
from tensorexpress.workload import Layer, Workload

US = 10**6
#: A byte takes 1 ns.
GBPS = 8 * 10**9
MTU = 1000
#: Packets of 1000 bytes on the wire, all of them tensor.
PLAIN = Transport(window_bytes=0, acks=False, header_bytes=0)
ENGINES = ("simpy", "fast")


def scenario(sizes_bytes: list[int], workers: int = 1, **changed: object) -> Scenario:
    """Workers and one server around a switch of 8 Gbps; compute takes 1 us a layer each way."""
    layers = tuple(Layer(f"l{i}", size // 4, US, US) for i, size in enumerate(sizes_bytes))
    of_job = {name: value for name, value in changed.items() if name in Job.__dataclass_fields__}
    of_transport = {name: value for name, value in changed.items() if name in Transport.__dataclass_fields__}
    return Scenario(
        "software",
        star(workers + 1, GBPS, delay=0, mtu=MTU, buffer=0),
        (Job("job", Workload("w", layers), tuple(range(workers)), (workers,), **of_job),),
        replace(PLAIN, **of_transport),
        iterations=1,
        warmup=0,
    )


def latencies_ps(inputs: Scenario, slice_bytes: int = 0, engine: str = "fast") -> list[int]:
    """Return how long each tensor of the first worker takes from gradient to parameters."""
    [job] = run(inputs, slice_bytes, engine).jobs
    return [int(latency) for latency in (job.updated_ps - job.gradient_ps)[0, 0]]


def run(inputs: Scenario, slice_bytes: int = 0, engine: str = "fast") -> Trace:
    return simulate(make_plan(inputs, Policy("plain", slice_bytes, "fifo", 0, "fifo")), engine)


def wire_ps(size: int) -> int:
    """Return how long a message takes over two links: its bytes once, and one packet more."""
    return (size + MTU) * 1000


@pytest.mark.parametrize("engine", ENGINES)
class TestClosedForms:
    def test_a_tensor_of_one_worker_is_copied_sent_copied_added_updated_and_all_the_way_back(self, engine: str) -> None:
        size = 80_000
        inputs = scenario(
            [size],
            copy_rate_bps=2 * GBPS,
            message_ps=3 * US,
            add_rate_bps=4 * GBPS,
            update_rate_bps=GBPS // 2,
        )
        copy_ps = size * 500 + 3 * US
        expected = 2 * (copy_ps + wire_ps(size) + copy_ps) + size * 250 + size * 2000
        assert latencies_ps(inputs, engine=engine) == [expected]

    @pytest.mark.parametrize("slices", [1, 2, 8, 40])
    def test_slices_pipeline_through_copy_wire_and_copy(self, engine: str, slices: int) -> None:
        # Copies as slow as the wire: each of six stages takes as long as a slice, and slices follow each other.
        size = 80_000
        one = size // slices
        expected = (slices + 6 - 1) * one * 1000 + 2 * MTU * 1000
        assert latencies_ps(scenario([size], copy_rate_bps=GBPS), one, engine) == [expected]

    def test_whole_tensors_gain_most_from_slicing_where_copies_are_slow(self, engine: str) -> None:
        inputs = scenario([400_000], copy_rate_bps=GBPS // 2)
        [whole], [sliced] = latencies_ps(inputs, engine=engine), latencies_ps(inputs, 4000, engine)
        # Ten times the time of the wire (2 + 1 + 2, there and back), or that of the slowest stage, a copy.
        assert whole == pytest.approx(10 * 400_000_000, rel=0.01)
        assert sliced == pytest.approx(2 * 400_000_000, rel=0.1)

    @pytest.mark.parametrize("workers", [1, 2, 5])
    def test_sums_grow_with_workers_and_updates_do_not(self, engine: str, workers: int) -> None:
        # What is added takes ten times as long as what arrives: gradients wait for each other at the server.
        size = 8000
        inputs = scenario([size], workers, add_rate_bps=GBPS // 100, update_rate_bps=GBPS // 10)
        first_ps = wire_ps(MTU) if workers > 1 else wire_ps(size)
        [latency] = latencies_ps(inputs, engine=engine)
        least = workers * size * 100_000 + size * 10_000
        assert least + first_ps <= latency <= least + workers * 2 * wire_ps(size)

    def test_what_comes_in_is_taken_in_order_of_arrival_one_at_a_time(self, engine: str) -> None:
        trace = run(scenario([4000, 4000, 4000], workers=2, copy_rate_bps=GBPS // 10), engine=engine)
        pushes = trace.jobs[0].transfers[:6]
        delivered = np.sort(pushes["delivered_ps"])
        assert (np.diff(delivered) >= 4000 * 10_000).all()

    def test_a_host_copies_in_its_own_order(self, engine: str) -> None:
        # Both gradients are ready while a third is copied; the first layer, ready last, is the most urgent.
        inputs = scenario([4000, 4000, 40_000], copy_rate_bps=GBPS)
        fifo, first = (
            simulate(make_plan(inputs, Policy("x", 0, order, 0, "fifo")), engine).jobs[0].transfers
            for order in ("fifo", "priority")
        )
        assert fifo["sent_ps"][0] > fifo["sent_ps"][1]
        assert first["sent_ps"][0] < first["sent_ps"][1]

    @pytest.mark.parametrize(("share", "limit_bps"), [(0.5, 0), (1.0, GBPS // 2), (0.5, GBPS // 2), (0.8, GBPS // 2)])
    def test_a_stack_slows_the_links_of_hosts(self, engine: str, share: float, limit_bps: int) -> None:
        inputs = scenario([8000], rate_share=share, stack_rate_bps=limit_bps)
        assert latencies_ps(inputs, engine=engine) == [2 * 2 * wire_ps(8000)]

    def test_overhead_lengthens_an_iteration_of_one_layer_by_itself(self, engine: str) -> None:
        plain, slow = (run(scenario([8000], overhead_ps=time), engine=engine).end_ps for time in (0, 7 * US))
        # The first pass, and the one after the only iteration.
        assert slow == plain + 2 * 7 * US

    def test_a_barrier_holds_the_first_layer_until_all_parameters_are_there(self, engine: str) -> None:
        for barrier in (False, True):
            # The first layer's slices overtake those of the last.
            inputs = scenario([4000, 4000, 80_000], workers=2, barrier=barrier)
            [job] = simulate(make_plan(inputs, Policy("x", 4000, "priority", 0, "fifo")), engine).jobs
            starts, last = job.forward_start_ps[1, :, 0], job.updated_ps[0].max(axis=1)
            assert (starts >= last).all() == barrier


def test_links_may_have_two_rates() -> None:
    inputs = scenario([8000])
    one_way = replace(inputs, cluster=star(2, GBPS, delay=0, mtu=MTU, buffer=0, send_rate=GBPS // 4))
    # Hosts send at a quarter, and what reaches them comes at the whole rate.
    assert latencies_ps(one_way) == [2 * (4 * 8000 + MTU) * 1000]
    other_way = replace(inputs, cluster=star(2, GBPS, delay=0, mtu=MTU, buffer=0, receive_rate=GBPS // 4))
    assert latencies_ps(other_way) == [2 * (4 * 8000 + MTU) * 1000]


@settings(max_examples=examples(60))
@given(plans())
def test_no_run_is_shorter_than_the_work_of_any_lane(plan: Plan) -> None:
    work = lane_work_ps(plan.scenario, [(job.job, job.graph) for job in plan.jobs])
    # All but the last iteration's pulls have been handled when the last forward pass ends, and those too.
    assert simulate(plan).end_ps >= plan.scenario.rounds * int(work.max())


def test_work_of_lanes_is_what_closed_forms_say() -> None:
    inputs = scenario([8000, 4000], workers=3, copy_rate_bps=GBPS, add_rate_bps=GBPS, update_rate_bps=GBPS)
    plan = make_plan(inputs, Policy("plain", 0, "fifo", 0, "fifo"))
    work = lane_work_ps(inputs, [(job.job, job.graph) for job in plan.jobs]) // 1000
    assert work[:3].tolist() == [[12_000, 12_000]] * 3
    # The server copies and adds for every worker, and updates once.
    assert (work[3, OUT], work[3, IN]) == (36_000, 36_000 + 36_000 + 12_000)


def test_a_message_that_stays_on_its_host_is_added_but_not_copied() -> None:
    alone = ["job.workers=1", "job.servers=1", "job.colocated=true"]
    inputs = read_scenario(overrides=[*alone, "transport.copy_rate=1 Gbps", "job.add_rate=8 Gbps"])
    plan = make_plan(inputs, Policy("plain", 0, "fifo", 0, "fifo"))
    work = lane_work_ps(inputs, [(job.job, job.graph) for job in plan.jobs])
    assert work.tolist() == [[0, 1000 * sum(inputs.jobs[0].workload.tensor_bytes)]]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_gives_what_is_not_written(name: str) -> None:
    read = read_scenario(overrides=[f"transport.preset={name}", "transport.message_cost=5 us"]).transport
    preset = PRESETS[name]
    assert (read.rate_share, read.stack_rate_bps, read.copy_rate_bps, read.message_ps) == (
        preset.rate_share,
        preset.stack_rate_bps,
        preset.copy_rate_bps,
        5 * US,
    )
