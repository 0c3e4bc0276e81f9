"""Real training traffic: worker and server processes over the embedded switch, faults, and who is killed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from support.network import needs_root
from support.thorough import rest
from support.training_run import Killer, check_consistent, check_queues, small_plan

from tensorexpress.cli.run_notes import notes_on, with_restarts
from tensorexpress.errors import NetworkError
from tensorexpress.sim.run import simulate
from tensorexpress.switch.faults import Faults
from tensorexpress.target import marks, namespaces
from tensorexpress.target.embedded import EmbeddedTarget
from tensorexpress.target.runner import run_plan
from tensorexpress.trace import measure_job

pytestmark = pytest.mark.usefixtures("one_nursery")

WIRES = EmbeddedTarget(wires=True)
SCRIPT = Path(__file__).with_name("support") / "training_run.py"


@rest(but=1)
def test_order_in_hosts_and_switch_brings_the_first_layer_back_sooner(tmp_path):
    first_ps = {}
    for policy in ("fifo", "tensorexpress"):
        run = run_plan(small_plan(tmp_path, policy=policy), WIRES)
        check_consistent(run)
        metrics = measure_job(run.trace.jobs[0], run.trace.warmup)
        first_ps[policy] = metrics.latency.first_ps
        # All that the plan moves went over the links, with headers and acknowledgements.
        assert (run.trace.links["bytes"] >= simulate(run.plan).links["bytes"] * 0.9).all()
    # It is a fifth in the simulator; the machine may be busy.
    assert first_ps["tensorexpress"] < first_ps["fifo"]


@rest()
def test_with_a_barrier_the_first_layer_comes_last(tmp_path):
    run = run_plan(small_plan(tmp_path, "job.barrier=true", "iterations=1", scale=0.1), WIRES)
    updated_ps = run.trace.jobs[0].updated_ps
    assert (updated_ps[:, :, 0] == updated_ps.max(axis=2)).all()


def test_every_tensor_passes_the_switch_in_its_planned_queue(tmp_path):
    check_queues(run_plan(small_plan(tmp_path), WIRES))


@pytest.mark.parametrize("overrides", [
    ["job.0.workers=h0,h1", "job.0.servers=h2", "job.1.model=", "job.1.csv={csv}", "job.1.workers=h3",
     "job.1.servers=h2", "job.1.start=20 ms"],
    ["job.workers=3", "job.servers=0", "job.architecture=ring", "job.bucket=40 KB"],
    ["job.workers=5", "job.servers=0", "job.architecture=tree", "compute.jitter=0.1"],
    *(pytest.param(each, marks=rest()) for each in [
        ["job.workers=3", "job.servers=2", "job.colocated=true", "job.shard=10 KB", "job.sum_rate=1 Gbps"],
        ["job.workers=2", "job.servers=1", "job.gpus_per_host=2", "job.local_rate=100 Mbps", "compute.jitter=0.1"],
        ["job.workers=3", "job.servers=0", "job.architecture=ring", "job.gpus_per_host=2"],
        # Hosts send as many bytes, as float32 numbers.
        ["job.workers=3", "job.servers=0", "job.architecture=ring", "job.dtype=bf16"],
        ["job.workers=2", "job.servers=1", "job.dtype=fp16", "job.compression=97", "job.compression_rate=1 Gbps"],
        ["cluster.topology=dumbbell", "cluster.left=2", "cluster.right=2", "job.workers=h0,h2", "job.servers=h1"],
    ]),
])  # fmt: skip
def test_servers_on_workers_several_jobs_rings_and_several_switches(overrides, tmp_path):
    overrides = [each.format(csv=tmp_path / "layers.csv") for each in overrides]
    plan = small_plan(tmp_path, "iterations=1", *overrides, scale=0.2)
    check_consistent(run_plan(plan, WIRES))


@rest()
@pytest.mark.parametrize(
    "policy", ["tensorexpress:switch=sp-pifo,queues=slack", "bytescheduler:slice=20 KB,credit=40 KB"]
)
def test_policies_that_rank_by_slack_or_have_credit_run_too(policy, tmp_path):
    check_consistent(run_plan(small_plan(tmp_path, "iterations=1", policy=policy, scale=0.3), WIRES))


@rest(but=1)
def test_with_loss_duplicates_reordering_and_damage_every_sum_is_exact(tmp_path):
    faults = Faults(loss=0.05, duplicate=0.02, reorder=0.05, corrupt=0.001)
    overrides = ["job.workers=8", "job.servers=2", "job.shard=1 KB", "cluster.mtu=1500", "transport.rto_min=20 ms"]
    plan = small_plan(tmp_path, "iterations=4", *overrides, scale=0.05)
    run = run_plan(plan, EmbeddedTarget(wires=True, faults=faults))
    check_consistent(run)
    harmed = sum((Counter(report.faults) for report in run.ports), Counter())
    assert min(harmed[kind] for kind in ("loss", "duplicate", "reorder")) > 0
    assert run.trace.links["losses"].sum() >= harmed["loss"]
    assert run.trace.retransmissions > 0
    assert not run.trace.links["drops"].any()


# A crash of native code ends a switch by SIGSEGV.
@rest(but=1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_run_survives_the_switch_and_leaves_nothing_behind(number, tmp_path, monkeypatch):
    killer = Killer("switch", number)
    plan = small_plan(tmp_path, "iterations=4", "transport.rto_min=20 ms", scale=0.1)
    # Sockets want a path that is shorter than those of pytest.
    with tempfile.TemporaryDirectory() as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        run = run_plan(plan, WIRES, started=killer.started, progress=killer.progress)
        check_consistent(run)
        assert not list(Path(made).iterdir())
    assert run.restarts == {"s0": 1}
    assert min(min(report.served.values(), default=0) for report in run.ports) >= 0
    assert [
        note for note in notes_on([run], WIRES) if "switch s0 ended during the run and was started again once" in note
    ]
    document = with_restarts({"policies": {"tensorexpress": {}}}, [run])
    assert document == {"policies": {"tensorexpress": {"restarted_switches": {"s0": 1}}}}
    assert killer.iterations == 5
    assert not [who for who, pid in killer.pids.items() if Path(f"/proc/{pid}").exists()]


@rest(but=1)
@pytest.mark.parametrize(("who", "number", "message"), [
    ("h1", signal.SIGKILL, r"h1 \(worker 1 of job0\) was ended by SIGKILL before the run was over"),
    ("h2", signal.SIGTERM, r"h2 \(server of job0\) was ended by SIGTERM before the run was over"),
    ("h1", signal.SIGSTOP, r"h1 at 10\.0\.0\.2:21592 has been silent for"),
])  # fmt: skip
def test_who_is_missing_is_named_and_the_others_stop(who, number, message, tmp_path):
    killer = Killer(who, number)
    plan = small_plan(tmp_path, "iterations=1000", scale=0.1)
    with pytest.raises(NetworkError, match=message) as caught:
        run_plan(plan, WIRES, silence_s=3, started=killer.started, progress=killer.progress)
    assert "\n" not in str(caught.value)
    for pid in killer.pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def wait_for_end(pids):
    """Wait until processes that are not our children have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            assert select.select([descriptor], [], [], 30)[0], f"process {pid} is still there"
            os.close(descriptor)


def killed_run(directory, cables):
    """Start a run in a process of its own, kill it when it runs, and return its pid and those of its children."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(directory), cables],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        pids = json.loads(process.stdout.readline())
        process.kill()
    return process.pid, pids


@rest(but=1)
def test_nothing_is_left_of_a_run_that_was_killed(tmp_path):
    _, pids = killed_run(tmp_path, "wires")
    assert len(pids) == 4
    wait_for_end(pids)


@rest()
@needs_root
def test_the_next_start_removes_namespaces_and_cables_of_a_run_that_was_killed(tmp_path):
    before = marked_names()
    _, pids = killed_run(tmp_path, "cables")
    wait_for_end(pids)
    left = marked_names() - before
    assert {name[9] for name in left} >= {"n", "v"}
    check_consistent(run_plan(small_plan(tmp_path, "iterations=1", scale=0.1), EmbeddedTarget()))
    assert not marked_names() & left
    assert not set(namespaces.remove_leftovers()) & left


def marked_names():
    there = [*os.listdir("/run/netns"), *os.listdir("/sys/class/net")]
    return {name for name in there if marks.mark_of(name) is not None}
