"""Asynchronous training, simulated: what holds in every mode, closed forms, gradients, replicas and refusals."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import examples

from tensorexpress.commits import aggregate, order, scheduler
from tensorexpress.commits import settings as settings_module
from tensorexpress.commits.modes import COMMIT_MODES
from tensorexpress.commits.trace import CommitTrace
from tensorexpress.errors import ScenarioError
from tensorexpress.learning import PROBLEMS
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import Scenario, make_scenario, read_scenario
from tensorexpress.sim.asynchronous import simulate_commits
from tensorexpress.sim.predict import predict
from tensorexpress.units import PS_PER_SECOND, serialisation_ps
from tensorexpress.workload import Layer, Workload

MODES = list(COMMIT_MODES)

#: A model of 12.5 MB, 0.1 s of a link of 1 Gbps, that is computed in 0.2 s.
WORKLOAD = Workload("small", (Layer("a", 3_125_000, 10**11, 10**11),))
TRANSFER_PS = PS_PER_SECOND // 10


def training(workers: int = 4, updates: int = 60, job: Any = None, commits: Any = None, **more: Any) -> Scenario:
    return make_scenario(
        cluster={"bandwidth": "1 Gbps", "delay": 0},
        job={"model": WORKLOAD, "architecture": "async", "workers": workers, **(job or {})},
        transport={"header": 0},
        commits={"updates": updates, "target_loss": 0, **(commits or {})},
        **more,
    )


def trained(scenario: Scenario, mode: str) -> CommitTrace:
    return simulate_commits(scenario, COMMIT_MODES[mode])


@st.composite
def clusters(draw: st.DrawFn) -> Scenario:
    """Draw a cluster that changes: stragglers, slow links, bursts, pauses; any bound that can be met."""
    workers = draw(st.integers(1, 7))
    worker = st.integers(0, workers - 1).map("h{}".format)
    times = st.tuples(st.integers(0, 2000), st.integers(1, 3000)).map(
        lambda both: {"at": f"{both[0]} ms", "until": f"{both[0] + both[1]} ms"}
    )
    changes = [
        {"link": f"{draw(worker)}-s0", "share": draw(st.sampled_from([0.1, 0.5])), **draw(times)},
        {"worker": draw(worker), "factor": draw(st.sampled_from([0.5, 4.0])), **draw(times)},
    ]
    server = f"h{workers}"
    burst = {"src": "h0", "dst": server, "rate": draw(st.sampled_from(["300 Mbps", "2 Gbps"])), **draw(times)}
    return training(
        workers,
        updates=40,
        job={"add_rate": draw(st.sampled_from(["0", "4 Gbps"])), "update_rate": draw(st.sampled_from(["0", "9 Gbps"]))},
        commits={
            "tau": workers - 1 + draw(st.integers(0, 6)),
            "helpers": draw(st.integers(1, 3)),
            "divergence": draw(st.sampled_from([0, 0.5, 4])),
            "pause": draw(st.sampled_from(["0 ms", "500 ms"])),
            "server_fails": draw(st.sampled_from(["0 ms", "2 s"])),
        },
        compute={"jitter": draw(st.sampled_from([0, 0.3]))},
        change=draw(st.lists(st.sampled_from(changes), max_size=2, unique_by=str)),
        background=draw(st.sampled_from([[], [burst]])),
        seed=draw(st.integers(0, 3)),
    )


@given(clusters(), st.sampled_from(MODES))
@settings(deadline=None, max_examples=examples(80))
def test_the_facts_of_every_mode_hold_in_clusters_that_change(scenario: Scenario, mode: str) -> None:
    trace = trained(scenario, mode)
    assert trace.commits > 0
    assert (np.diff(trace.time_ps) >= 0).all()
    assert (trace.delay >= 0).all()
    if COMMIT_MODES[mode].bounded:
        assert trace.worst_delay <= scenario.commits.tau
    else:
        assert trace.dropped == 0
    if mode == "sync":
        assert trace.worst_delay == 0
    if not COMMIT_MODES[mode].summed:
        assert trace.sums == 0
    assert trace.divergence <= trace.divergence_bound * (1 + 1e-9)
    assert trace.distance <= trace.divergence + 1e-9


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_training_and_another_seed_another_one(mode: str) -> None:
    one, same, other = (trained(training(compute={"jitter": 0.2}, seed=seed), mode) for seed in (1, 1, 2))
    assert one.loss.tolist() == same.loss.tolist()
    assert one.time_ps.tolist() == same.time_ps.tolist()
    assert one.loss.tolist() != other.loss.tolist()


def test_a_worker_alone_pulls_computes_and_pushes_in_turn() -> None:
    trace = trained(training(workers=1, updates=5, commits={"helpers": 0, "replicas": 0}), "fifo")
    framing = training().framing
    packet_ps = serialisation_ps(framing.full_packet_bytes, 10**9)
    one_way_ps = serialisation_ps(12_500_000, 10**9) + packet_ps
    expected = [2 * TRANSFER_PS + one_way_ps + turn * (2 * TRANSFER_PS + 2 * one_way_ps) for turn in range(5)]
    assert trace.time_ps.tolist() == pytest.approx(expected, rel=1e-9)
    assert trace.delay.tolist() == [0] * 5


def test_in_step_an_iteration_is_the_slowest_worker_and_all_transfers() -> None:
    """Four workers push at once, 0.4 s, and are sent the model at once, 0.4 s; the slowest computes for 0.6 s."""
    trace = trained(training(updates=16, compute={"stragglers": {"h0": 3}}), "sync")
    rounds = np.unique(trace.time_ps)
    # The three others have pushed when the slowest begins to.
    assert np.diff(rounds) / PS_PER_SECOND == pytest.approx([0.4 + 0.6 + 0.1] * (len(rounds) - 1), rel=0.01)
    assert trace.server_in_bytes >= 4 * len(rounds) * 12_500_000


def test_order_keeps_the_link_busy_where_sharing_keeps_workers_in_step() -> None:
    """Without jitter all share all transfers, and nobody computes meanwhile; one after another, transfers overlap."""
    shared, ordered = (trained(training(updates=80), mode) for mode in ("fifo", "order"))
    assert shared.commits_per_second == pytest.approx(4 / 1.0, rel=0.03)
    assert ordered.commits_per_second == pytest.approx(1 / 0.1, rel=0.06)


def test_helpers_spare_the_server_bytes() -> None:
    scenario = training(workers=24, updates=200, commits={"helpers": 4})
    ordered, summed = (trained(scenario, mode) for mode in ("order", "aggregate"))
    assert summed.commits_per_second > 1.4 * ordered.commits_per_second
    assert summed.server_in_bytes / summed.commits < 0.75 * ordered.server_in_bytes / ordered.commits
    assert summed.summed > summed.commits / 3


def test_an_old_update_is_dropped_before_it_is_sent_if_somebody_orders() -> None:
    """A worker twenty times slower is always too late; only where nobody orders does it use the link for that."""
    scenario = training(updates=100, commits={"tau": 4}, compute={"stragglers": {"h0": 20}})
    bounded, ordered = (trained(scenario, mode) for mode in ("bounded", "order"))
    assert bounded.dropped > 0
    assert ordered.dropped > 0
    assert 0 not in ordered.host
    received = {trace.mode: trace.server_in_bytes / 12_500_000 for trace in (bounded, ordered)}
    assert received["bounded"] >= bounded.commits + bounded.dropped
    # What is still under way at the end was sent, too.
    assert received["order"] <= ordered.commits + len(training().jobs[0].workers)


def test_a_replica_that_may_lack_nothing_has_every_update_before_the_server() -> None:
    trace = trained(training(commits={"divergence": 0}), "mlfabric")
    assert (trace.divergence, trace.distance) == (0, 0)
    assert trace.commits > 10


def test_when_the_server_fails_the_replica_goes_on_and_without_one_all_begins_again() -> None:
    scenario = training(updates=120, commits={"server_fails": "3 s", "divergence": 2})
    without, replicated = (trained(scenario, mode) for mode in ("aggregate", "mlfabric"))
    failed_ps = 3 * PS_PER_SECOND
    for trace, starts_again in ((without, True), (replicated, False)):
        before, after = trace.loss[trace.time_ps < failed_ps][-1], trace.loss[trace.time_ps > failed_ps][0]
        assert (after > trace.start_loss - (trace.start_loss - before) / 2) == starts_again
    assert without.lost == (without.time_ps < failed_ps).sum()
    assert replicated.lost < without.lost / 2


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_are_those_of_the_loss(name: str) -> None:
    problem = PROBLEMS[name].make()
    rng = np.random.default_rng(3)
    everything = np.arange(problem.samples)
    point = problem.start + 0.1 * rng.normal(size=problem.start.shape)
    for _ in range(5):
        direction = rng.normal(size=point.shape)
        step = 1e-5
        difference = (problem.loss(point + step * direction) - problem.loss(point - step * direction)) / (2 * step)
        assert problem.gradient(point, everything) @ direction == pytest.approx(difference, rel=1e-5)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_worker_alone_learns_each_problem(name: str) -> None:
    scenario = make_scenario(
        job={"model": WORKLOAD, "architecture": "async", "workers": 1}, commits={"problem": name, "replicas": 0}
    )
    trace = trained(scenario, "fifo")
    assert trace.reached_ps is not None
    assert trace.loss[-1] <= scenario.commits.target_loss < trace.start_loss / 1.5


# What is refused


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ["job.workers=2", "commits.tau=0"],
            "--set commits.tau: found 0 with 2 workers; accepted: 1 or more, as of 2 updates computed from one version "
            "the last commits 1 version later, and would always be dropped",
        ),
        (["job.servers=2"], "--set job.servers: found 2 servers with architecture async; accepted: one, which"),
        (["job.colocated=true"], "--set job.colocated: found true with architecture async; accepted: false"),
        (["loss=0.01"], "--set loss: found 0.01 with architecture async; accepted: 0: transfers are fluids"),
        (["transport.preset=grpc"], "default: transport.copy_rate: found 8600000000 with architecture async"),
        (["commits.replicas=2"], "--set commits.replicas: found 2 replicas with architecture async; accepted: 0 or 1"),
        (["job.1.model=vgg16"], "job: found 2 jobs with architecture async; accepted: one job"),
        (["commits.replicas=0", "commits.modes=mlfabric"], "--set commits.modes: found mlfabric and no replica"),
        (["commits.helpers=0", "commits.modes=aggregate"], "--set commits.modes: found aggregate and no helpers"),
        (["commits.modes=mlfabrik"], "--set commits.modes: unknown mode 'mlfabrik'; did you mean 'mlfabric'?"),
        (["commits.helpers=h0", "job.workers=h0,h1"], "--set commits.helpers: found a host with two roles"),
        (["commits.problem=chess"], "--set commits.problem: unknown problem 'chess'"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_constraint(keys: list[str], message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        read_scenario(None, ["job.architecture=async", *keys])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_helpers_are_for_jobs_that_are_not_in_step() -> None:
    with pytest.raises(ScenarioError, match=r"commits.helpers: found 3 without a job of architecture async"):
        read_scenario(None, ["commits.helpers=3"])


def test_nothing_plans_iterations_of_a_job_that_has_none() -> None:
    scenario = training()
    for plans in (lambda: make_plan(scenario, POLICIES["fifo"]), lambda: predict(scenario)):
        with pytest.raises(ScenarioError, match=r"job.0.architecture: found async, which has no iterations to plan"):
            plans()


@pytest.mark.parametrize("module", [aggregate, order, scheduler, settings_module])
def test_examples_in_docstrings(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
