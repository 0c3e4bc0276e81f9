"""What workers and servers are made of: gradients, slices of them, and the plans that hosts can run."""

from __future__ import annotations

import doctest
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress import compute
from tensorexpress.errors import InputError
from tensorexpress.host import gradients
from tensorexpress.host.gradients import Gradients, elements_of
from tensorexpress.host.process import Task, Wire, check_runnable, jobs_of, peers_of, task_from_json
from tensorexpress.host.tagging import Tagger
from tensorexpress.host.training import LONGEST_REST_PS, rest_ps
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES, parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.target import cabling, runner
from tensorexpress.target.embedded import EmbeddedTarget
from tensorexpress.target.linux import LinuxTarget
from tensorexpress.target.runner import check_sums
from tensorexpress.units import serialisation_ps


@cache
def planned(*overrides, policy="tensorexpress"):
    return make_plan(read_scenario(overrides=["job.workers=2", "job.servers=1", *overrides]), parse_policy(policy))


@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(0, 10**6), st.integers(0, 10**6))
def test_sums_of_gradients_are_known_exactly(seed, workers, iteration, tensor):
    made = Gradients(seed, workers, 50)
    part = slice(7, 50)
    # From the last worker to the first, which rounding would show.
    total = sum((made.of(worker, iteration, tensor, part) for worker in reversed(range(workers))), np.float32(0))
    assert np.array_equal(total, made.total(iteration, tensor, part))


def test_gradients_differ_by_worker_iteration_and_tensor():
    made = Gradients(1, 8, 1000)
    parts = {
        made.of(worker, iteration, tensor, slice(0, 1000)).tobytes()
        for worker in range(8)
        for iteration in range(10)
        for tensor in range(10)
    }
    # Two of them may meet at one place of the table by chance.
    assert len(parts) >= 0.9 * 8 * 10 * 10


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=5), st.integers(1, 3000), st.integers(1, 4))
def test_slices_hold_every_element_once(params, slice_bytes, servers):
    plan = planned(f"job.servers={servers}", "job.shard=100", "cluster.hosts=6")
    layers = tuple(replace(plan.jobs[0].job.workload.layers[0], params=count) for count in params)
    job = replace(plan.scenario.jobs[0], workload=replace(plan.jobs[0].job.workload, layers=layers))
    policy = replace(POLICIES["tensorexpress"], slice_bytes=slice_bytes)
    cut = make_plan(replace(plan.scenario, jobs=(job,)), policy).jobs[0]
    held = [[] for _ in params]
    for piece, part in zip(cut.slices, elements_of(cut), strict=True):
        held[piece.tensor] += range(part.start, part.stop)
    assert held == [list(range(count)) for count in params]


def test_a_task_survives_its_way_to_another_process():
    plan = planned()
    task = Task(plan, 1, ("10.0.0.1", "10.0.0.2"), Wire(9, "0102", "0304"), 7, 10**12, epoch=11)
    assert task_from_json(task.to_json()) == task


def test_hosts_know_their_jobs_and_peers():
    plan = planned("job.0.workers=h0,h1", "job.0.servers=h2", "job.1.workers=h3,h4", "job.1.servers=h2")
    assert [jobs_of(plan, host) for host in range(5)] == [[0], [0], [0, 1], [1], [1]]
    assert [peers_of(plan, host) for host in range(5)] == [{2}, {2}, {0, 1, 3, 4}, {2}, {2}]
    colocated = planned("job.workers=3", "job.servers=3", "job.colocated=true")
    assert peers_of(colocated, 0) == {1, 2}
    ring = planned("job.workers=4", "job.servers=0", "job.architecture=ring")
    assert [peers_of(ring, host) for host in range(4)] == [{1, 3}, {0, 2}, {1, 3}, {0, 2}]


@pytest.mark.parametrize(("overrides", "message"), [
    (["transport.acks=false", "transport.window=0", "cluster.buffer=0"], "transport.acks is false; accepted: true"),
    (["job.architecture=fsdp", "job.servers=0"], "job0 is of architecture fsdp; accepted: training with another arch"),
    (["job.forward_only=true"], "job0 is forward_only; accepted: training with another architecture"),
    (["background.0.src=h0", "background.0.dst=h1", "background.0.rate=1 Mbps", "background.0.packet=45"],
     r"background\.0\.packet is 45; accepted: 46 or more"),
])  # fmt: skip
def test_what_hosts_cannot_do_is_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        check_runnable(planned(*overrides))


def test_sums_are_refused_where_switches_cannot_add():
    summed = make_plan(read_scenario(overrides=["job.workers=8", "job.servers=1"]), POLICIES["switchml"])
    check_sums(summed, EmbeddedTarget())
    with pytest.raises(InputError, match="policy 'switchml' has switches sum, and those of the target linux cannot"):
        check_sums(summed, LinuxTarget())


def test_plans_have_packets_as_long_as_those_of_hosts():
    plan = make_plan(read_scenario(overrides=["cluster.mtu=1500"]), POLICIES["fifo"])
    assert plan.framing.payload_bytes == Tagger(plan).payload_bytes == 1408
    check_runnable(plan)
    other = make_plan(read_scenario(overrides=["transport.header=98"]), POLICIES["fifo"])
    with pytest.raises(InputError, match=r"transport\.header is 98 and .*; accepted: 130 and 130, which hosts send"):
        check_runnable(other)


@given(
    window=st.integers(10_000, 10**6),
    rate=st.integers(10**6, 10**11),
    delay_us=st.integers(0, 10_000),
    credit=st.sampled_from([0, 10_000, 64_000, 10**6]),
)
def test_hosts_rest_no_longer_than_windows_allow(window, rate, delay_us, credit):
    changes = (f"cluster.bandwidth={rate} bps", f"cluster.delay={delay_us} us", f"transport.window={window} B")
    plan = planned(*changes, policy=f"tensorexpress:credit={credit} B")
    rest = rest_ps(plan, rate)
    assert 0 <= rest <= LONGEST_REST_PS
    if rest:
        assert rest > serialisation_ps(plan.framing.full_packet_bytes, rate)
        least = min(filter(None, (window, credit)))
        round_trip_ps = serialisation_ps(plan.framing.full_packet_bytes, rate) + 4 * delay_us * 10**6
        # Both ends may rest for all of it.
        assert 2 * rest + round_trip_ps <= serialisation_ps(least, rate)


def test_hosts_rest_where_that_saves_something_and_spoils_nothing():
    fast = ("cluster.bandwidth=500 Mbps", "cluster.delay=1 us")
    assert rest_ps(planned(*fast), 500 * 10**6) > serialisation_ps(9000, 500 * 10**6)
    assert rest_ps(planned(*fast), 20 * 10**6) == 0
    assert rest_ps(planned(*fast, policy="switchml"), 500 * 10**6) == 0
    assert rest_ps(planned(*fast, "transport.ecn=60 KB"), 500 * 10**6) == 0
    assert rest_ps(planned(*fast, "transport.initial_window=10 KB"), 500 * 10**6) == 0


def test_compute_times_are_those_of_the_workload():
    scenario = read_scenario(overrides=["job.workers=2", "job.servers=1", "compute.stragglers.h1=2"])
    [(forward, backward)] = compute.compute_times(scenario, 3)
    assert forward.shape == backward.shape == (4, 2, len(scenario.jobs[0].workload.layers))
    assert (forward[:, 0] == [layer.forward_ps for layer in scenario.jobs[0].workload.layers]).all()
    assert (forward[:, 1] == 2 * forward[:, 0]).all()


@pytest.mark.parametrize("module", [compute, gradients, cabling, runner])
def test_examples_in_the_documentation_are_true(module):
    assert doctest.testmod(module).failed == 0
