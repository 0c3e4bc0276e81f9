"""Training whose hot rows switches sum while cold ones go to servers: whole hosts in virtual time, and real runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.network import needs_bmv2, needs_root
from support.summed_training import LEAF_SPINE_SERVERS, PipelineNetwork, Training
from support.thorough import rest
from support.training_run import check_consistent
from support.virtual_network import FAULTLESS, Faults

from tensorexpress.graph import BRINGS_SUMS, KINDS
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.switch.faults import Faults as SwitchFaults
from tensorexpress.target.bmv2 import Bmv2Target
from tensorexpress.target.embedded import EmbeddedTarget
from tensorexpress.target.runner import run_plan

STATED = Faults(loss=0.1, duplication=0.05, reordering=0.1, corruption=0.01)

#: A dense layer; a table with rows of which some are hot; one with parameters beside it; one of which all rows are hot.
LAYERS = """layer_index,numel,forward_ns,backward_ns,keys,width,lookups,skew
0,700,2000000,2000000,,,,
1,32000,2000000,2000000,2000,16,150,1.05
2,1900,2000000,2000000,300,6,80,0.9
3,960,2000000,2000000,60,16,200,0.5
"""


def sparse_plan(directory: Path, *overrides: str, policy: str = "libra:slice=2 KB") -> Plan:
    """Return a plan for 3 workers and 2 servers, of which every table has 64 hot rows or all."""
    path = directory / "layers.csv"
    path.write_text(LAYERS)
    usual = ["job.model=", f"job.csv={path}", "job.workers=3", "job.servers=2", "job.hot_rows=64", "job.shard=0"]
    rest = ["cluster.bandwidth=40 Mbps", "iterations=1", "warmup=1"]
    plan = make_plan(read_scenario(None, [*usual, *rest, *overrides]), parse_policy(policy))
    assert plan.jobs[0].hot_rows == (0, 64, 64, 60)
    return plan


@rest(but=3)
@pytest.mark.parametrize(
    ("policy", "overrides", "faults"),
    [
        ("libra:slice=2 KB", (), FAULTLESS),
        ("libra:slice=2 KB", LEAF_SPINE_SERVERS, STATED),
        ("libra", ("job.colocated=true", "job.servers=3"), STATED),
        ("tensorexpress+sum:slice=2 KB", ("job.barrier=true",), FAULTLESS),
        ("tensorexpress+sum:slice=2 KB", ("job.barrier=true",), STATED),
        ("atp", (), STATED),
    ],
    ids=["front", "two levels", "colocated", "pool and barrier", "the same with faults", "hashed"],
)
def test_every_sum_is_exact_and_a_layer_waits_for_both_parts(
    tmp_path: Path, policy: str, overrides: tuple[str, ...], faults: Faults
) -> None:
    """Over the P4 program; hosts check every sum, those of hot rows and those of cold ones."""
    plan = sparse_plan(tmp_path, *overrides, policy=policy)
    training = Training(plan, PipelineNetwork(plan, faults, 1))
    training.run()
    job, graph = plan.jobs[0], plan.jobs[0].graph
    messages = len(graph.kind)
    seen = [station.transfers[0].arrays() for station in training.stations if 0 in station.transfers]
    for name in ("ready", "sent"):
        rows = np.concatenate([each[name] for each in seen])
        assert len(np.unique(rows[:, 0] * messages + rows[:, 1])) == len(rows)
    delivered = np.concatenate([each["delivered"] for each in seen])
    assert sorted(map(tuple, delivered[:, :2].tolist())) == [(i, n) for i in range(2) for n in range(messages)]
    brings_sums = np.isin(graph.kind, [KINDS.index(kind) for kind in BRINGS_SUMS])
    for worker in training.workers:
        expected = np.zeros_like(worker.updated_ps)
        own = brings_sums & (graph.dst == job.job.workers[worker.index])
        for iteration, number, time_ps in delivered[own[delivered[:, 1]]].tolist():
            tensor = graph.tensor[number]
            expected[iteration, tensor] = max(expected[iteration, tensor], time_ps)
        if job.job.barrier:
            expected[:, 0] = expected.max(axis=1)
        assert np.array_equal(worker.updated_ps, expected)
    assert bool(training.retransmissions) == (faults is STATED)


@rest()
def test_a_run_has_the_trace_that_the_simulator_has(tmp_path: Path) -> None:
    run = run_plan(sparse_plan(tmp_path, "cluster.bandwidth=10 Mbps"), EmbeddedTarget(wires=True))
    check_consistent(run)
    assert not run.trace.links["losses"].any()


def test_with_loss_duplicates_reordering_and_damage_every_sum_of_a_run_is_exact(tmp_path: Path) -> None:
    faults = SwitchFaults(loss=0.1, duplicate=0.05, reorder=0.1, corrupt=0.01)
    plan = sparse_plan(tmp_path, "cluster.bandwidth=10 Mbps", "transport.rto_min=20 ms")
    run = run_plan(plan, EmbeddedTarget(wires=True, faults=faults))
    check_consistent(run)
    assert run.trace.retransmissions > 0


@needs_root
@needs_bmv2
def test_bmv2_sums_exactly(tmp_path: Path) -> None:
    check_consistent(run_plan(sparse_plan(tmp_path, "cluster.bandwidth=4 Mbps"), Bmv2Target()))
