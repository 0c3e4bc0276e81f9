"""Bounds on the mean of measured iterations: they bind where something is forced, and nothing is below them.

That no simulated run, nor any stretch of one, is faster is held in test_oracles.py; for random schedules in
test_deadline.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from support.strategies import US, scenarios
from support.thorough import examples, rest

from tensorexpress.bound import make_demand, run_bound_ps
from tensorexpress.cluster import with_rates
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES, Policy, parse_policy
from tensorexpress.results.advice import notes
from tensorexpress.results.side_by_side import Result, SideBySide, side_by_side
from tensorexpress.scenario import Job, Scenario, Transport, read_scenario
from tensorexpress.sim.predict import predict
from tensorexpress.sim.run import simulate
from tensorexpress.topologies import star
from tensorexpress.trace import iterations_ps
from tensorexpress.units import format_ms
from tensorexpress.workload import Layer, Workload

EXAMPLES = Path(__file__).parent.parent / "examples"

#: Few large packets: what is forced does not depend on them, and simulations are quick.
LARGE_PACKETS = "cluster.mtu=65535"


def predicted(*overrides: str, policies: tuple[str, ...] = ("fifo",)) -> SideBySide:
    return predict(read_scenario(overrides=[LARGE_PACKETS, *overrides]), policies)


def test_nothing_is_left_to_gain_where_a_straggler_computes_all_the_time() -> None:
    compared = predicted("compute.stragglers.h0=2", "cluster.bandwidth=25 Gbps", policies=("fifo", "tensorexpress"))
    # The straggler's own forward and backward pass, of which every iteration has one of each.
    straggler_ps = compared.baseline.jobs[0].compute_ps
    assert straggler_ps == 2 * compared.scenario.jobs[0].workload.compute_ps
    assert 0.99 * straggler_ps <= compared.optimal_ps[0] <= compared.results["tensorexpress"].jobs[0].iteration_ps
    assert notes(compared)[0].startswith("Compute-bound: the slowest worker computes for ")


def test_jitter_makes_every_iteration_as_long_as_its_slowest_worker() -> None:
    compared = predicted("compute.jitter=0.2", "cluster.bandwidth=1 Tbps", "iterations=6")
    (trace,) = compared.baseline.trace.jobs
    slowest_ps = (trace.forward_ps[1:] + trace.backward_ps).sum(axis=2)[1:].max(axis=1).mean()
    # More than that of any one worker, and within 1 % what is reached.
    assert 1.05 * compared.baseline.jobs[0].compute_ps < compared.optimal_ps[0] == pytest.approx(slowest_ps, rel=0.1)
    assert compared.of_optimal("fifo") > 0.99


def test_the_uplink_of_a_rack_bounds_a_ring() -> None:
    overrides = ("job.model=vgg16", "job.architecture=ring", "cluster.topology=leaf-spine")
    compared = predicted(*overrides, "cluster.oversubscription=4")
    (job,) = compared.scenario.jobs
    uplink_bps = min(link.rate_bps for link in compared.scenario.cluster.links)
    # Between racks there is one hop of the ring each way, with every part but one, twice.
    forced_bits = 8 * 2 * sum(job.workload.tensor_bytes) * (len(job.workers) - 1) / len(job.workers)
    assert compared.optimal_ps[0] >= 0.99 * forced_bits * 10**12 / uplink_bps
    assert compared.of_optimal("fifo") <= 1


def one_packet(architecture: str, **changes: object) -> Plan:
    """A tensor of a packet for each of eight workers, which compute next to nothing, on links with a delay."""
    servers = (8,) if architecture == "ps" else ()
    tensor = Workload("packet", (Layer("layer", 200, 1, 1),))
    job = Job("job", tensor, tuple(range(8)), servers, architecture, **changes)  # type: ignore[arg-type]
    cluster = star(9, bandwidth="100 Gbps", delay=20 * US, mtu=1500, buffer=0)
    bare = Transport(window_bytes=0, acks=False, header_bytes=0)
    return make_plan(Scenario("latency", cluster, (job,), bare), Policy("fifo"))


@pytest.mark.parametrize(
    ("architecture", "changes", "steps"),
    [
        ("ps", {}, 2),
        ("ps", {"sum_rate_bps": 10**8}, 2),
        ("ring", {}, 14),
        # Up three levels to the root of eight, and down again.
        ("tree", {}, 6),
    ],
)
def test_chains_bound_what_only_latency_makes_long(architecture: str, changes: dict[str, int], steps: int) -> None:
    plan = one_packet(architecture, **changes)
    trace = simulate(plan, "fast")
    took_ps = float(iterations_ps(trace.jobs[0])[1:].mean())
    bound_ps = run_bound_ps(make_demand(plan, 0), trace.jobs[0], warmup=1)
    assert steps * 2 * 20 * US <= bound_ps <= took_ps
    # What is between is that packets of several workers meet at one link.
    assert bound_ps > 0.99 * took_ps


def test_a_run_that_ends_with_bytes_to_come_is_said_to_and_is_not_below_the_optimum() -> None:
    """As if one worker had got all its bytes of the last iteration before any other did."""
    compared = predicted("job.architecture=tree", "cluster.bandwidth=2 Gbps", "iterations=1")
    result, (job,) = compared.baseline, compared.baseline.trace.jobs
    needed_ps = make_demand(result.plan, 0).busiest_ps
    assert compared.optimal_ps[0] > 0.99 * needed_ps
    early = job.forward_start_ps.copy()
    early[-1, 3, -1] = early[-2, :, -1].min() + 0.9 * needed_ps
    trace = replace(result.trace, jobs=(replace(job, forward_start_ps=early),))
    ahead = side_by_side([Result.of(result.plan, trace)])
    # How much others may catch up is open then, so less is sure.
    assert ahead.optimal_ps[0] <= ahead.baseline.jobs[0].iteration_ps == pytest.approx(0.9 * needed_ps)
    assert "although a link needs" in notes(ahead)[0]


@settings(max_examples=examples(60))
@given(scenarios())
def test_no_policy_is_faster_than_what_is_shown_as_the_optimum(scenario: Scenario) -> None:
    plans = [make_plan(scenario, POLICIES[name]) for name in ("fifo", "p3", "tensorexpress")]
    results = [Result.of(plan, simulate(plan, "fast")) for plan in plans]
    assume(all(metrics.iteration_ps for result in results for metrics in result.jobs))
    compared = side_by_side(results)
    for name in compared.results:
        for job in range(len(scenario.jobs)):
            assert compared.of_optimal(name, job) <= 1 + 1e-12


@settings(max_examples=examples(40))
@given(scenarios(sums="pool"))
def test_nor_is_one_that_sums_in_switches(scenario: Scenario) -> None:
    plans = [make_plan(scenario, POLICIES[name]) for name in ("fifo", "tensorexpress", "switchml", "tensorexpress+sum")]
    results = [Result.of(plan, simulate(plan, "fast")) for plan in plans]
    assume(all(metrics.iteration_ps for result in results for metrics in result.jobs))
    compared = side_by_side(results)
    for name in compared.results:
        for job in range(len(scenario.jobs)):
            assert compared.of_optimal(name, job) <= 1 + 1e-12
    assert all(isinstance(note, str) for note in notes(compared))


@rest()
def test_notes_say_what_is_order_and_what_is_summing() -> None:
    compared = predicted(
        "cluster.bandwidth=2 Gbps", policies=("fifo", "tensorexpress", "switchml", "tensorexpress+sum")
    )
    base, order, sums, both = (result.jobs[0].iteration_ps for result in compared.results.values())
    share = (base - order) / (base - both)
    said = notes(compared)
    (note,) = [note for note in said if note.endswith("sums in switches.")]
    assert f"({share:.0%}) are order (tensorexpress)" in note
    assert f"({1 - share:.0%}) sums in switches" in note
    (note,) = [note for note in said if note.startswith("Sums in switches without any order take off ")]
    assert f"{format_ms(base - sums)} (switchml)" in note
    # Without a policy that only orders there is nothing to tell apart.
    assert not any("are order" in note for note in notes(predicted(policies=("fifo", "switchml"))))


def test_the_bound_of_many_workers_takes_little_memory_for_each_pair_of_hosts() -> None:
    scenario = read_scenario(overrides=["job.workers=512", "job.servers=8"])
    demand = make_demand(make_plan(scenario, POLICIES["ideal"]), 0)
    assert demand.waited_ps.shape == demand.own_ps.shape == (512, len(scenario.jobs[0].workload.layers))
    # All pushes meet at the servers, and all pulls leave them.
    assert demand.shared_ps.max() == pytest.approx(demand.owned_ps.max())
    assert np.all(demand.waited_ps[:, -1] >= demand.shared_ps.max())


def test_notes_say_what_is_between_the_best_policy_and_the_optimum() -> None:
    compared = predicted("cluster.bandwidth=2 Gbps", policies=("fifo", "p3"))
    (note,) = [note for note in notes(compared) if note.startswith("Between p3 and the optimum: the busiest link, ")]
    assert compared.of_optimal("p3") < 0.98
    assert "carries tensors for" in note


def test_what_is_gathered_again_counts_as_tensors_on_a_link() -> None:
    compared = predicted("job.architecture=fsdp", "cluster.bandwidth=2 Gbps", "job.prefetch=0", policies=("fifo", "p3"))
    (note,) = [note for note in notes(compared) if note.startswith("Between ")]
    others = re.search(r"other traffic for ([0-9.]+)%", note)
    assert others is not None
    # Large packets hardly need acknowledgements.
    assert float(others[1]) < 2


def test_notes_say_where_jobs_can_only_gain_what_others_lose() -> None:
    compared = predict(read_scenario(EXAMPLES / "two-jobs.toml", [LARGE_PACKETS]), ["fifo", "p3"])
    (note,) = [note for note in notes(compared) if note.startswith("Together: ")]
    assert "for vision and" in note
    assert "for language" in note


#: Orders at hosts and in switches, and slices of other sizes.
OTHERS = (
    "random", "p3", "bytescheduler", "tensorexpress", "ideal", "fifo:slice=500 B", "fifo:slice=2 KB,switch=strict",
    "tictac:slice=3 KB", "tensorexpress:slice=1 KB",
)  # fmt: skip


@settings(max_examples=examples(60))
@given(scenarios() | scenarios(disturbed=False))
def test_no_slicing_and_no_order_beats_what_is_shown_for_fifo_alone(scenario: Scenario) -> None:
    def result(policy: str) -> Result:
        plan = make_plan(scenario, parse_policy(policy))
        return Result.of(plan, simulate(plan, "fast"))

    fifo = result("fifo")
    assume(all(metrics.iteration_ps for metrics in fifo.jobs))
    shown_ps = side_by_side([fifo]).optimal_ps
    needs_acks = {"bytescheduler"} if not scenario.transport.acks else set()
    for policy in OTHERS:
        if policy not in needs_acks:
            for bound_ps, metrics in zip(shown_ps, result(policy).jobs, strict=True):
                assert bound_ps <= metrics.iteration_ps * (1 + 1e-9), policy


@pytest.mark.parametrize("changed", [(), ("compute.stragglers.h1=1.5",), ("compute.jitter=0.2",)])
def test_nor_does_one_where_servers_could_be_shared_better(changed: tuple[str, ...]) -> None:
    """Whole tensors put more on one server than on the other, and slices that are given out in turn less so."""
    keys = ("job.workers=3", "job.servers=2", "iterations=1", *changed)
    shown_ps = predicted(*keys).optimal_ps
    for policy in ("ideal", "tensorexpress"):
        assert shown_ps[0] <= predicted(*keys, policies=(policy,)).baseline.jobs[0].iteration_ps


@rest()
def test_a_straggler_and_the_link_of_its_first_tensor_decide_where_servers_are_fast() -> None:
    """Servers at the same rate serve all workers in turn; one that served the straggler first would be as fast."""
    rates = ("job.model=bert-base", "cluster.bandwidth=40 Gbps", "compute.stragglers.h3=2")
    scenario = read_scenario(overrides=rates)
    servers = {scenario.cluster.hosts[server] for server in scenario.jobs[0].servers}
    links = tuple(
        with_rates(link, 8 * link.rate_bps, 8 * link.rate_bps) if link.a in servers else link
        for link in scenario.cluster.links
    )
    fast = replace(scenario, cluster=replace(scenario.cluster, links=links, mtu=65535))
    (bound_ps,) = predict(scenario, ["ideal"]).optimal_ps
    compared = predict(fast, ["ideal"])
    assert compared.optimal_ps[0] == pytest.approx(bound_ps, rel=0.01)
    assert compared.of_optimal("ideal") > 0.985
