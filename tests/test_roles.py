"""Asynchronous training with a process for every role: what commits, and what becomes of it when somebody is killed."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.commits.modes import COMMIT_MODES
from tensorexpress.errors import NetworkError, ScenarioError
from tensorexpress.roles.cohort import CohortRun, run_commits
from tensorexpress.roles.task import task_from, tasks_for
from tensorexpress.scenario import Scenario, make_scenario
from tensorexpress.workload import Layer, Workload

UPDATES = 60
#: More than any run commits that ends for another reason.
MANY = 5000

#: 40 KB at 20 Mbps: 16 ms a transfer.
WORKLOAD = Workload("small", (Layer("a", 10_000, 5 * 10**9, 5 * 10**9),))


def training(workers: int = 4, **commits: Any) -> Scenario:
    return make_scenario(
        cluster={"bandwidth": "20 Mbps"},
        job={"model": WORKLOAD, "architecture": "async", "workers": workers},
        commits={"updates": UPDATES, "target_loss": 0, "helpers": 1, "divergence": 3, **commits},
        compute={"jitter": 0.2},
    )


def killing(*names: str, after: int = 15) -> Callable[[CohortRun], None]:
    """Return what kills processes when so many updates are committed."""
    killed: list[str] = []

    def seen(run: CohortRun) -> None:
        if len(run.rows) >= after and not killed:
            killed.extend(names)
            for name in names:
                run.processes[name].kill()

    return seen


class AllCommitted(Exception):
    """Ends a run: every worker has committed again since processes were killed."""


def run_until_all_commit_after_killing(scenario: Scenario, mode: str, name: str, said: list[str]) -> CohortRun:
    """Return a run that ends once all other workers have committed twice since a process was killed.

    A busy machine may hold up a worker while others commit a hundred times.
    """
    kill, ran, killed_at = killing(name), list[CohortRun](), list[int]()

    def seen(run: CohortRun) -> None:
        ran[:] = [run]
        kill(run)
        if len(run.rows) >= 15:
            killed_at.append(len(run.rows))
            since = Counter(host for _, host, _, _ in run.rows[killed_at[0] :])
            if all(since[host] >= 2 for host in scenario.jobs[0].workers if name != f"worker h{host}"):
                raise AllCommitted

    with pytest.raises(AllCommitted):
        run_commits(scenario, mode, seen, said.append)
    return ran[0]


def check_ended(run: CohortRun) -> None:
    for process in run.processes.values():
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


@rest(but=1)
@pytest.mark.parametrize("mode", COMMIT_MODES)
def test_every_mode_commits_all_updates_within_its_bounds(mode: str) -> None:
    scenario = training()
    run = run_commits(scenario, mode)
    trace = run.trace(scenario)
    assert trace.commits >= UPDATES
    assert trace.loss[-1] < 0.95 * trace.start_loss
    assert set(trace.host) == set(scenario.jobs[0].workers)
    if COMMIT_MODES[mode].bounded:
        assert trace.worst_delay <= scenario.commits.tau
    if mode == "sync":
        assert trace.worst_delay == 0
    if mode == "mlfabric":
        assert 0 < trace.divergence <= trace.divergence_bound
    assert run.notes == []
    check_ended(run)


@rest()
def test_without_its_scheduler_updates_commit_as_they_come() -> None:
    said: list[str] = []
    run = run_until_all_commit_after_killing(training(updates=MANY), "order", "scheduler", said)
    (line,) = said
    assert re.fullmatch(r"order: the scheduler is gone: updates commit as they come from version \d+ on", line)
    check_ended(run)


def test_what_a_helper_had_is_offered_again_and_committed_once() -> None:
    said: list[str] = []
    scenario = training(workers=6, updates=MANY)
    run = run_until_all_commit_after_killing(scenario, "aggregate", "helper h7", said)
    assert said == ["aggregate: helper h7 is gone: what it had is offered again, and nobody sums in its place"]
    assert max(delay for _, _, delay, _ in run.rows) <= scenario.commits.tau


def test_the_replica_takes_over_within_its_bound() -> None:
    said: list[str] = []
    run = run_commits(training(), "mlfabric", killing("server", after=20), said.append)
    taken = next(line for line in said if "its replica goes on" in line)
    assert re.match(
        r"mlfabric: the server is gone: its replica goes on from version \d+, and \d+ committed updates are", taken
    )
    assert run.divergence <= run.divergence_bound
    # It goes on to the end: the replica counts from what it has.
    assert len(run.rows) >= UPDATES
    check_ended(run)


def test_without_a_replica_a_line_says_what_was_lost() -> None:
    ran: list[CohortRun] = []

    def seen(run: CohortRun) -> None:
        ran[:] = [run]
        killing("server")(run)

    with pytest.raises(
        NetworkError, match=r"order: server ended and nobody follows it: all \d+ committed updates are lost"
    ):
        run_commits(training(), "order", seen)
    check_ended(ran[0])


def test_without_its_replica_a_server_goes_on_alone() -> None:
    said: list[str] = []
    run = run_commits(training(), "mlfabric", killing("replica"), said.append)
    assert len(run.rows) >= UPDATES
    assert any("the replica is gone" in line for line in said)


@rest(but=1)
@pytest.mark.parametrize("mode", ["sync", "order"])
def test_without_one_worker_the_others_go_on(mode: str) -> None:
    said: list[str] = []
    run = run_until_all_commit_after_killing(training(updates=MANY), mode, "worker h2", said)
    assert said == [f"{mode}: worker h2 is gone: the others go on"]
    check_ended(run)


def test_the_command_prints_the_table_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "small.csv").write_text("layer_index,numel,forward_ns,backward_ns\n0,10000,5000000,5000000\n")
    keys = ("architecture=async", "model=", f"csv={tmp_path}/small.csv", "workers=2")
    words = [part for key in keys for part in ("--set", f"job.{key}")]
    words += ["--set", "cluster.bandwidth=20 Mbps", "--set", "commits.updates=10", "--set", "commits.modes=fifo"]
    ran = CliRunner().invoke(main, ["run", *words], standalone_mode=False)
    assert ran.exception is None
    assert "fifo" in ran.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.csv"]


def test_tasks_survive_the_pipe() -> None:
    scenario = training()
    for mode in COMMIT_MODES.values():
        for task in tasks_for(scenario, mode, "/nowhere"):
            assert task_from(json.loads(json.dumps(task.to_json()))) == task


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"commits": {"server_fails": "1 s"}}, "commits.server_fails: found a time; accepted: 0: kill the process"),
        ({"cluster": {"topology": "dumbbell"}}, "cluster.topology: found dumbbell; accepted: one switch, as in a star"),
        (
            {"background": {"src": "h0", "dst": "h1", "rate": "1 Mbps"}},
            "background: found other traffic; accepted: none",
        ),
    ],
)
def test_what_a_run_cannot_do_is_one_line(keys: dict[str, Any], message: str) -> None:
    scenario = make_scenario(**{"job": {"model": WORKLOAD, "architecture": "async", "workers": 2}, **keys})
    with pytest.raises(ScenarioError, match=re.escape(message)):
        run_commits(scenario, "fifo")
