"""Real training traffic that switches sum: worker processes over embedded switches, faults, and who is killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from support.network import needs_bmv2, needs_root
from support.summed_training import LEAF_SPINE, LEAF_SPINE_SERVERS, summed_plan
from support.thorough import one_in, rest
from support.training_run import Killer, check_consistent, small_plan

from tensorexpress.errors import NetworkError
from tensorexpress.switch.faults import Faults
from tensorexpress.target.bmv2 import Bmv2Target
from tensorexpress.target.embedded import EmbeddedTarget
from tensorexpress.target.runner import run_plan

pytestmark = pytest.mark.usefixtures("one_nursery")

WIRES = EmbeddedTarget(wires=True)


@rest(but=1)
@pytest.mark.parametrize(
    "policy", ["switchml", "tensorexpress+sum", "tensorexpress:sum=front", "tensorexpress:sum=hashed"]
)
def test_runs_have_the_trace_that_the_simulator_has(policy: str, tmp_path: Path) -> None:
    run = run_plan(summed_plan(tmp_path, "iterations=1", policy=policy), WIRES)
    check_consistent(run)
    assert not run.trace.links["losses"].any()
    # One packet goes up for every one that comes down, whatever the number of workers.
    sent = run.trace.links["bytes"][[0, 2, 4]]
    packets = sum(pool.packets_per_iteration for tree in run.plan.jobs[0].sums for pool in tree.pools)
    assert (sent >= 1138 * packets * 2).all()


@rest()
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


@needs_root
@needs_bmv2
@pytest.mark.parametrize("policy", ["libra", "atp"])
def test_bmv2_sums_exactly_before_servers(policy: str, tmp_path: Path) -> None:
    plan = summed_plan(tmp_path, "cluster.bandwidth=4 Mbps", "iterations=1", policy=policy)
    check_consistent(run_plan(plan, Bmv2Target()))


@rest()
def test_a_server_is_sent_what_a_worker_sends_however_many_there_are(tmp_path: Path) -> None:
    # No time-out on a machine that stands still for a while.
    plan = summed_plan(tmp_path, "iterations=1", "job.servers=1", "transport.rto_min=5 s", policy="libra")
    run = run_plan(plan, WIRES)
    check_consistent(run)
    # The links of h0 to the switch, and from the switch to h3, the server.
    sent, (received, answered) = run.trace.links["bytes"][0], run.trace.links["bytes"][[7, 6]]
    least = 1138 * plan.jobs[0].sums[0].pools[0].packets_per_iteration * 2
    for link_bytes in (sent, received, answered):
        # What is sent again because it seems lost is not much beside that.
        assert least <= link_bytes < 2 * least
    assert not run.trace.links["losses"].any()


BY_LEVEL = {
    "switchml": {"one level": (), "two levels": LEAF_SPINE},
    "libra": {"one level": (), "two levels": LEAF_SPINE_SERVERS},
    "atp": {"one level": (), "two levels": LEAF_SPINE_SERVERS},
}

everywhere = pytest.mark.parametrize(
    ("policy", "level"), [(policy, level) for policy, levels in BY_LEVEL.items() for level in levels]
)


@rest()
@one_in(2)
@everywhere
def test_with_loss_duplicates_reordering_and_damage_every_sum_is_exact(policy: str, level: str, tmp_path: Path) -> None:
    faults = Faults(loss=0.1, duplicate=0.05, reorder=0.1, corrupt=0.01)
    plan = summed_plan(tmp_path, "transport.rto_min=20 ms", *BY_LEVEL[policy][level], policy=policy)
    run = run_plan(plan, EmbeddedTarget(wires=True, faults=faults))
    check_consistent(run)
    harmed = sum((Counter(report.faults) for report in run.ports), Counter())
    assert min(harmed[kind] for kind in ("loss", "duplicate", "reorder", "corrupt")) > 0
    assert run.trace.retransmissions > 0


@rest()
@pytest.mark.parametrize("policy", ["libra", "atp"])
def test_a_host_is_worker_and_server_at_once(policy: str, tmp_path: Path) -> None:
    check_consistent(run_plan(summed_plan(tmp_path, "job.colocated=true", "job.servers=3", policy=policy), WIRES))


@rest()
@one_in(2)
@pytest.mark.parametrize(
    ("policy", "level", "number"),
    [
        ("switchml", "one level", signal.SIGSEGV),  # as when native code crashes
        ("libra", "one level", signal.SIGKILL),
        ("atp", "one level", signal.SIGSEGV),
        ("atp", "two levels", signal.SIGKILL),
    ],
)
def test_a_run_survives_a_switch_that_was_killed(
    policy: str, level: str, number: signal.Signals, tmp_path: Path
) -> None:
    killer = Killer("switch", number)
    changes = ("iterations=4", "transport.rto_min=20 ms", *BY_LEVEL[policy][level])
    plan = summed_plan(tmp_path, *changes, policy=policy)
    check_consistent(run_plan(plan, WIRES, started=killer.started, progress=killer.progress))
    assert killer.iterations == 5


@rest()
@one_in(2)
@pytest.mark.parametrize(("policy", "who", "number", "message"), [
    ("switchml", "h1", signal.SIGKILL, r"h1 \(worker 1 of job0\) was ended by SIGKILL before the run was over"),
    ("switchml", "h1", signal.SIGSTOP, r"h1 at 10\.0\.0\.2:21592 has been silent for"),
    ("libra", "h3", signal.SIGKILL, r"h3 \(server of job0\) was ended by SIGKILL before the run was over"),
    ("atp", "h1", signal.SIGKILL, r"h1 \(worker 1 of job0\) was ended by SIGKILL before the run was over"),
    ("atp", "h4", signal.SIGSTOP, r"h4 at 10\.0\.0\.5:21592 has been silent for"),
])  # fmt: skip
def test_who_is_missing_is_named_and_the_others_stop(
    policy: str, who: str, number: signal.Signals, message: str, tmp_path: Path
) -> None:
    killer = Killer(who, number)
    plan = summed_plan(tmp_path, "iterations=1000", policy=policy)
    with pytest.raises(NetworkError, match=message) as caught:
        run_plan(plan, WIRES, silence_s=3, started=killer.started, progress=killer.progress)
    assert "\n" not in str(caught.value)
    for pid in killer.pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    # The same slots, at once.
    check_consistent(run_plan(summed_plan(tmp_path, "iterations=1", policy=policy), WIRES))
