"""Real training traffic that switches sum: worker processes over embedded switches, faults, and who is killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from support.network import needs_root
from support.summed_training import LEAF_SPINE, summed_plan
from support.training_run import Killer, check_consistent, small_plan

from tensorexpress.doctor import find_bmv2
from tensorexpress.errors import NetworkError
from tensorexpress.switch.faults import Faults
from tensorexpress.target.bmv2 import Bmv2Target
from tensorexpress.target.embedded import EmbeddedTarget
from tensorexpress.target.runner import run_plan

WIRES = EmbeddedTarget(wires=True)

needs_bmv2 = pytest.mark.skipif(find_bmv2() is None, reason="simple_switch_grpc is not here (TENSOREXPRESS_BMV2)")


@pytest.mark.parametrize("policy", ["switchml", "tensorexpress+sum"])
def test_runs_have_the_trace_that_the_simulator_has(policy: str, tmp_path: Path) -> None:
    run = run_plan(summed_plan(tmp_path, "iterations=1", policy=policy), WIRES)
    check_consistent(run)
    assert not run.trace.links["losses"].any()
    # One packet goes up for every one that comes down, whatever the number of workers.
    sent = run.trace.links["bytes"][[0, 2, 4]]
    assert (sent >= 1138 * sum(pool.packets_per_iteration for pool in run.plan.jobs[0].sums[0].pools) * 2).all()


def test_servers_of_other_policies_have_no_part(tmp_path: Path) -> None:
    started: dict[str, int] = {}
    plan = small_plan(tmp_path, "iterations=1", policy="switchml", scale=0.1)
    run = run_plan(plan, WIRES, started=lambda network, pids: started.update(pids))
    check_consistent(run)
    assert started.keys() == {"h0", "h1"}


@needs_root
def test_runs_go_over_namespaces_too(tmp_path: Path) -> None:
    check_consistent(run_plan(summed_plan(tmp_path, "iterations=1"), EmbeddedTarget()))


@needs_root
@needs_bmv2
@pytest.mark.parametrize("overrides", [(), LEAF_SPINE], ids=["one level", "two levels"])
def test_bmv2_sums_exactly(overrides: tuple[str, ...], tmp_path: Path) -> None:
    plan = summed_plan(tmp_path, "cluster.bandwidth=4 Mbps", "iterations=1", *overrides)
    check_consistent(run_plan(plan, Bmv2Target()))


@pytest.mark.parametrize("overrides", [(), LEAF_SPINE], ids=["one level", "two levels"])
def test_with_loss_duplicates_reordering_and_damage_every_sum_is_exact(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    faults = Faults(loss=0.1, duplicate=0.05, reorder=0.1, corrupt=0.01)
    plan = summed_plan(tmp_path, "transport.rto_min=20 ms", *overrides)
    run = run_plan(plan, EmbeddedTarget(wires=True, faults=faults))
    check_consistent(run)
    harmed = sum((Counter(report.faults) for report in run.ports), Counter())
    assert min(harmed[kind] for kind in ("loss", "duplicate", "reorder", "corrupt")) > 0
    assert run.trace.retransmissions > 0


@pytest.mark.parametrize("overrides", [(), LEAF_SPINE], ids=["one level", "two levels"])
def test_a_run_survives_a_switch_that_was_killed(overrides: tuple[str, ...], tmp_path: Path) -> None:
    killer = Killer("switch", signal.SIGKILL)
    plan = summed_plan(tmp_path, "iterations=4", "transport.rto_min=20 ms", *overrides)
    check_consistent(run_plan(plan, WIRES, started=killer.started, progress=killer.progress))
    assert killer.iterations == 5


@pytest.mark.parametrize(("who", "number", "message"), [
    ("h1", signal.SIGKILL, r"h1 \(worker 1 of job0\) was ended by SIGKILL before the run was over"),
    ("h1", signal.SIGSTOP, r"h1 at 10\.0\.0\.2:21592 has been silent for"),
    ("h0", signal.SIGSTOP, r"h0 at 10\.0\.0\.1:21592 has been silent for"),
])  # fmt: skip
def test_who_is_missing_is_named_and_the_others_stop(
    who: str, number: signal.Signals, message: str, tmp_path: Path
) -> None:
    killer = Killer(who, number)
    plan = summed_plan(tmp_path, "iterations=1000")
    with pytest.raises(NetworkError, match=message) as caught:
        run_plan(plan, WIRES, silence_s=3, started=killer.started, progress=killer.progress)
    assert "\n" not in str(caught.value)
    for pid in killer.pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    # The same slots, at once.
    check_consistent(run_plan(summed_plan(tmp_path, "iterations=1"), WIRES))
