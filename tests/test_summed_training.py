"""Training whose gradients switches sum, with whole hosts in virtual time: every update is exact, and told."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.summed_training import (
    LEAF_SPINE,
    LEAF_SPINE_SERVERS,
    PipelineNetwork,
    Training,
    over_reference,
    summed_plan,
)
from support.thorough import one_in, rest
from support.training_run import small_plan
from support.virtual_network import FAULTLESS, Faults, VirtualNetwork

from tensorexpress.errors import InputError, NetworkError
from tensorexpress.host.process import check_runnable, peers_of
from tensorexpress.host.summing import child_number
from tensorexpress.plan import Plan
from tensorexpress.policy import parse_policy

MS = 10**9
STATED = Faults(loss=0.1, duplication=0.05, reordering=0.1, corruption=0.01)
MakeNetwork = Callable[[Plan, Faults, int], VirtualNetwork]

on_both = pytest.mark.parametrize("network_of", [over_reference, PipelineNetwork])


@rest(but=1)
@on_both
@one_in(4)
@pytest.mark.parametrize("policy", ["switchml", "tensorexpress+sum"])
@pytest.mark.parametrize("overrides", [(), LEAF_SPINE], ids=["one level", "two levels"])
@pytest.mark.parametrize("faults", [FAULTLESS, STATED], ids=["faultless", "faults"])
def test_every_update_is_exact_and_told(
    tmp_path: Path, network_of: MakeNetwork, policy: str, overrides: tuple[str, ...], faults: Faults
) -> None:
    plan = summed_plan(tmp_path, *overrides, policy=policy)
    training = Training(plan, network_of(plan, faults, 1))
    training.run()
    graph = plan.jobs[0].graph
    for worker, station in zip(training.workers, training.stations, strict=True):
        assert (worker.updated_ps > 0).all()
        seen = station.transfers[0].arrays()
        own = np.flatnonzero((graph.src == worker.index) | (graph.dst == worker.index))
        for rows in seen.values():
            expected = {(iteration, number) for iteration in range(4) for number in own.tolist()}
            assert {(iteration, number) for iteration, number, _ in rows.tolist()} == expected
        assert (seen["ready"] <= seen["sent"]).all()
        assert (seen["sent"] <= seen["delivered"]).all()
    assert bool(training.retransmissions) == (faults is STATED)


END_AT_SERVERS = ["libra", "tensorexpress:sum=front", "atp", "tensorexpress:sum=hashed"]
PLACES = pytest.mark.parametrize(
    "overrides",
    [
        (),
        LEAF_SPINE_SERVERS,
        ("job.colocated=true", "job.workers=3", "job.servers=3"),
        # So little memory that hardly any packet finds its slot free.
        ("cluster.switch_memory=9 KB", "job.servers=1", "cluster.delay=50 us"),
    ],
    ids=["one level", "two levels", "colocated", "crowded"],
)


@rest(but=2)
@on_both
@one_in(6)
@pytest.mark.parametrize("policy", END_AT_SERVERS)
@PLACES
@pytest.mark.parametrize("faults", [FAULTLESS, STATED], ids=["faultless", "faults"])
def test_every_update_is_exact_and_told_where_sums_end_at_servers(
    tmp_path: Path, network_of: MakeNetwork, policy: str, overrides: tuple[str, ...], faults: Faults
) -> None:
    plan = summed_plan(tmp_path, *overrides, policy=policy)
    training = Training(plan, network_of(plan, faults, 1))
    training.run()
    job = plan.jobs[0]
    assert len(job.sums) == len(job.job.servers)
    messages = {(iteration, number) for iteration in range(4) for number in range(len(job.graph.kind))}
    seen = [station.transfers[0].arrays() for station in training.stations if 0 in station.transfers]
    assert len(seen) == len(job.job.workers)
    for name in ("ready", "sent", "delivered"):
        rows = [(iteration, number) for each in seen for iteration, number, _ in each[name].tolist()]
        assert sorted(rows) == sorted(messages)
    for worker in training.workers:
        assert (worker.updated_ps > 0).all()
    if faults is STATED or not overrides:
        assert bool(training.retransmissions) == (faults is STATED)


@rest(but=1)
@one_in(2)
@pytest.mark.parametrize("policy", ["switchml", "tensorexpress+sum", *END_AT_SERVERS])
@pytest.mark.parametrize("levels", ["one level", "two levels"])
def test_the_p4_program_sums_exactly_over_many_iterations(tmp_path: Path, policy: str, levels: str) -> None:
    iterations = int(os.environ.get("TENSOREXPRESS_ITERATIONS", "10"))
    at_servers = parse_policy(policy).sums_end_at_servers
    overrides = () if levels == "one level" else LEAF_SPINE_SERVERS if at_servers else LEAF_SPINE
    # One row of iterations warms up.
    plan = summed_plan(tmp_path, *overrides, f"iterations={iterations - 1}", policy=policy, scale=0.03)
    training = Training(plan, PipelineNetwork(plan, STATED, 1))
    training.run(most_events=10**6 * iterations)
    for worker in training.workers:
        assert worker.updated_ps.shape[0] == iterations
        assert (worker.updated_ps > 0).all()


@rest(but=1)
@on_both
@one_in(2)
@pytest.mark.parametrize("policy", ["inart", "atp:placement=equal"])
@pytest.mark.parametrize("faults", [FAULTLESS, STATED], ids=["faultless", "faults"])
def test_every_update_is_exact_where_tensors_are_split_over_servers(
    tmp_path: Path, network_of: MakeNetwork, policy: str, faults: Faults
) -> None:
    plan = summed_plan(tmp_path, *LEAF_SPINE_SERVERS, "job.shard=4 KB", policy=policy)
    split = Counter(piece.tensor for piece in plan.jobs[0].slices)
    assert set(split.values()) == {1, 2}
    training = Training(plan, network_of(plan, faults, 1))
    training.run()
    for worker in training.workers:
        assert (worker.updated_ps > 0).all()


@rest(but=1)
@on_both
def test_a_run_is_not_hurt_by_one_that_was_broken_off_in_the_same_slots(
    tmp_path: Path, network_of: MakeNetwork
) -> None:
    plan = summed_plan(tmp_path, "job.workers=4", *LEAF_SPINE)
    network = network_of(plan, STATED, 3)
    first = Training(plan, network)
    # What the first run sent last is still on its way when the second one begins.
    first.run(until=lambda: len(network.on_the_way) > 2 and (first.workers[0].updated_ps[1] > 0).any())
    assert not first.workers[0].done
    second = Training(plan, network, epoch=6)
    second.run()
    assert all((worker.updated_ps > 0).all() for worker in second.workers)


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_the_p4_program_sums_exactly_whatever_links_do(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = summed_plan(tmp_path_factory.mktemp("plan"), *LEAF_SPINE, "iterations=2", scale=0.03)
    faults = Faults(loss=0.2, duplication=0.2, reordering=0.4, corruption=0.05)
    Training(plan, PipelineNetwork(plan, faults, seed)).run()


@on_both
def test_several_jobs_share_a_switch_and_types_of_two_bytes_are_summed(tmp_path: Path, network_of: MakeNetwork) -> None:
    jobs = ["job.0.workers=h0,h1", "job.1.model=", f"job.1.csv={tmp_path / 'layers.csv'}", "job.1.workers=h2,h3"]
    rings = [f"job.{job}.{key}" for job in range(2) for key in ("servers=0", "architecture=ring")]
    plan = small_plan(tmp_path, *jobs, *rings, "job.0.dtype=bf16", policy="switchml", scale=0.1)
    training = Training(plan, network_of(plan, FAULTLESS, 0))
    training.run()
    assert {job for station in training.stations for job in station.transfers} == {0, 1}


def test_with_a_barrier_the_first_layer_waits_for_all(tmp_path: Path) -> None:
    plan = summed_plan(tmp_path, "job.barrier=true", policy="tensorexpress+sum")
    training = Training(plan, over_reference(plan))
    training.run()
    for worker in training.workers:
        assert (worker.updated_ps[:, 0] == worker.updated_ps.max(axis=1)).all()


def test_a_wrong_sum_is_an_error(tmp_path: Path) -> None:
    plan = summed_plan(tmp_path)
    training = Training(plan, over_reference(plan))
    gradients = training.stations[0]._roles[0, 4]._tensors  # type: ignore[attr-defined]
    gradients._sums = gradients._sums + 1
    with pytest.raises(
        NetworkError, match=r"h0: in iteration 0, .* from the switch is not the sum of all gradients: el"
    ):
        training.run()


@on_both
@pytest.mark.parametrize("culprit", [0, 3])
def test_a_gradient_that_is_not_finite_is_told_with_its_worker(
    culprit: int, tmp_path: Path, network_of: MakeNetwork
) -> None:
    plan = summed_plan(tmp_path, *LEAF_SPINE)
    training = Training(plan, network_of(plan, FAULTLESS, 0))
    gradients = training.stations[culprit]._roles[0, 4]._tensors  # type: ignore[attr-defined]
    gradients._table = np.full_like(gradients._table, np.nan)
    message = rf"^worker {culprit}'s gradient of tensor 3 \(.*\) in iteration 0 has values that are not finite$"
    with pytest.raises(NetworkError, match=message):
        training.run()


def test_children_have_the_numbers_that_switches_know_them_by(tmp_path: Path) -> None:
    plan = summed_plan(tmp_path, *LEAF_SPINE)
    (sums,) = plan.jobs[0].sums
    assert sums is not None
    assert [child_number(plan, sums, host) for host in range(4)] == [0, 1, 0, 1]
    assert [peers_of(plan, host) for host in range(4)] == [{1, 2, 3}, {0}, {0}, {0}]


@pytest.mark.parametrize(("overrides", "message"), [
    (["job.gpus_per_host=2"], "job0 has 2 workers on a host; accepted with sum=pool: one; only predict can have more"),
    (["job.workers=65", "cluster.topology=leaf-spine", "cluster.leaves=5", "cluster.spines=1",
      "cluster.hosts_per_leaf=13"], "job0 has 65 workers; accepted with sum=pool: 64 at most"),
])  # fmt: skip
def test_what_hosts_cannot_do_with_sums_is_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        check_runnable(summed_plan(tmp_path, *overrides))


def test_plans_with_sums_can_be_run(tmp_path: Path) -> None:
    check_runnable(summed_plan(tmp_path))
