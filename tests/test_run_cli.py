"""tensorexpress run: what it prints, what it writes, and what it refuses before anything is started."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.network import needs_root
from support.thorough import one_in, rest
from support.training_run import LAYERS, small_plan, write_workload

from tensorexpress.cli import main
from tensorexpress.cli.run_notes import notes_on
from tensorexpress.notes_file import read_notes
from tensorexpress.sim.run import simulate
from tensorexpress.switch.counted import NOT_TAKEN
from tensorexpress.target import PortReport, marks, runner, speed
from tensorexpress.target.embedded import EmbeddedTarget
from tensorexpress.target.machine import MachineWatch
from tensorexpress.target.runner import Run, least_duration_ps, run_plan
from tensorexpress.trace_file import read_trace
from tensorexpress.units import PS_PER_MS


def invoke(*arguments):
    return CliRunner().invoke(main, ["run", *map(str, arguments)])


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.toml"
    write_workload(tmp_path, scale=0.2)
    path.write_text(
        'iterations = 1\n[cluster]\nbandwidth = "40 Mbps"\n[job]\ncsv = "layers.csv"\nworkers = 2\nservers = 1\n'
    )
    return path


@rest(but=1)
def test_a_run_prints_a_table_and_writes_traces(scenario, tmp_path):
    outputs = ("-o", tmp_path / "runs", "--json", tmp_path / "metrics.json", "--csv", tmp_path / "metrics.csv")
    result = invoke(scenario, "--wires", *outputs)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == ("small: star, 3 hosts, 40 Mbps, 1 us, MTU 9000, 8 queues; iterations=1, job.csv=layers")
    assert [line.split()[0] for line in lines if line.startswith(("fifo", "tensorexpress "))][:2] == [
        "fifo",
        "tensorexpress",
    ]
    assert "every worker found every sum of 2 iterations exact" in result.output
    noted = read_notes(tmp_path / "runs")
    assert noted[0] == "Measured on the target embedded; every worker found every sum of 2 iterations exact."
    assert [f"- {note}" for note in noted] == lines[-len(noted) :]
    for policy in ("fifo", "tensorexpress"):
        trace, plan = read_trace(tmp_path / "runs" / f"{policy}.trace")
        assert (trace.source, trace.policy, plan.policy.name) == ("measured", policy, policy)
        assert plan.scenario.transport.header_bytes == 130
    policies = json.loads((tmp_path / "metrics.json").read_text())["policies"]
    assert policies["fifo"]["iteration_ms"] > policies["fifo"]["compute_ms"]
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [row["policy"] for row in rows] == list(policies)
    assert {row["source"] for row in rows} == {"measured"}


@rest()
def test_the_policies_that_a_scenario_names_are_run(scenario):
    result = invoke(scenario, "--wires", "--set", "policies=p3", "--json", "-")
    assert list(json.loads(result.output)["policies"]) == ["p3"]


@pytest.fixture(scope="module")
def calm_run(tmp_path_factory):
    return run_plan(small_plan(tmp_path_factory.mktemp("calm"), "iterations=1", scale=0.1), EmbeddedTarget(wires=True))


@rest()
def test_who_will_wait_for_long_is_told_so(scenario, calm_run, monkeypatch):
    monkeypatch.setattr(runner, "run_plan", lambda plan, target, **options: calm_run)
    result = invoke(scenario, "--wires", "--set", "iterations=999", "--policy", "fifo,p3")
    # Two policies, and two workers that share the server's link; packets have headers, too.
    payload_s = 2 * 1000 * 2 * sum(int(params * 0.2) * 4 for params, _ in LAYERS) * 8 / 40e6
    told = re.fullmatch(
        r"This takes (\d) min (\d+) s or more: 1000 iterations under fifo, p3; fewer take less "
        r"\(--set iterations=N\)\.\n",
        result.stderr,
    )
    assert payload_s <= int(told[1]) * 60 + int(told[2]) <= payload_s * 1.05


@pytest.mark.parametrize(("scale", "silence_s"), [("1", 3), ("8", 24), ("auto", 30), (str(10**6), 10_000)])
def test_a_host_may_be_silent_for_longer_in_slow_motion(scale, silence_s, scenario, calm_run, monkeypatch):
    """As long as the time-outs of the scenario, which slow motion makes longer too."""
    allowed = []

    def run(plan, target, **options):
        allowed.append(options["silence_s"])
        return calm_run

    monkeypatch.setattr(runner, "run_plan", run)
    monkeypatch.setattr(speed, "known_bps", lambda target, load: 10**9 if scale == "auto" else 10**10)
    options = ("--policy", "tensorexpress", "--silence", "3 s", "--set", "cluster.bandwidth=4 Gbps")
    result = invoke(scenario, "--wires", "--scale", scale, *options)
    assert result.exit_code == 0, result.output
    assert allowed == [silence_s]


def test_no_run_is_shorter_than_was_said(calm_run):
    job = calm_run.trace.jobs[0]
    assert 0 < least_duration_ps(calm_run.plan) <= job.updated_ps.max()


@pytest.mark.parametrize(("stalls", "attempts", "notes"), [
    ([0.01], 3, []),
    ([0.05], 1, ["- Under tensorexpress this machine stood still for 5.0% of the time, 70 ms at most: other machines "
     "may share its cores; run it again, as with --attempts 3, or look at the median of more iterations."]),
    ([0.5, 0.02], 3, ["- tensorexpress was run 2 times, because this machine stood still meanwhile; in the run that "
     "counts, the calmest, for 2.0% of the time."]),
    ([0.05, 0.5], 2, ["- tensorexpress was run 2 times, because this machine stood still meanwhile; in the run that "
     "counts, the calmest, for 5.0% of the time.", "- Under tensorexpress this machine stood still for 5.0% of the "
     "time, 70 ms at most: other machines may share its cores; run it again, as with --attempts 4, or look at the "
     "median of more iterations."]),
])  # fmt: skip
def test_where_the_machine_stood_still_it_is_told_of_and_tried_again(
    stalls, attempts, notes, scenario, calm_run, monkeypatch
):
    left = list(stalls)

    def stalled(plan, target, **options):
        watch = MachineWatch()
        watch.stalled, watch.longest_stall_ps = left.pop(0), 70 * PS_PER_MS
        return replace(calm_run, machine=watch)

    monkeypatch.setattr(runner, "run_plan", stalled)
    result = invoke(scenario, "--wires", "--policy", "tensorexpress", "--attempts", attempts)
    assert not left
    assert [line for line in result.output.splitlines() if "stood still" in line] == notes


def test_a_plan_file_is_run_as_it_is(scenario, tmp_path):
    plan = tmp_path / "plan.json"
    made = CliRunner().invoke(main, ["plan", str(scenario), "-o", str(plan)])
    assert made.exit_code == 0
    result = invoke(plan, "--wires", "--json", "-")
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.output)["policies"]) == ["tensorexpress"]
    other = invoke(scenario, "--plan", plan, "--set", "job.workers=3")
    assert other.exit_code == 2
    assert "is a plan for another scenario than small: cluster differs" in other.output


@rest(but=1)
def test_a_plan_that_tune_wrote_is_run_by_the_advised_command(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "known_bps", lambda target, load: 300 * 10**6)
    write_workload(tmp_path, scale=0.2)
    keys = ["job.csv=layers.csv", "job.workers=2", "job.servers=1", "iterations=1"]
    given = [word for key in keys for word in ("--set", key)]
    monkeypatch.chdir(tmp_path)
    tuned = CliRunner().invoke(main, ["tune", *given, "--budget", "2", "--processes", "1", "-o", "plan.json"])
    assert tuned.exit_code == 0, tuned.output
    refused = [invoke("--plan", "plan.json"), invoke("plan.json"), invoke("plan.json", "--scale", "3")]
    advised = {re.search(r"give --scale (\d+) or --scale auto", result.output)[1] for result in refused}
    assert len(advised) == 1
    for arguments in (["plan.json", "--scale", *advised], ["--plan", "plan.json", "--scale", "auto"]):
        result = invoke(*arguments, "--wires", "--json", "-")
        assert result.exit_code == 0, result.output
        assert len(json.loads(result.output)["policies"]) == 1


@pytest.mark.parametrize("arguments", [["--set", "iterations=2"], ["--policy", "fifo"]])
def test_options_that_a_plan_has_decided_are_refused(arguments, scenario, tmp_path):
    plan = tmp_path / "plan.json"
    assert CliRunner().invoke(main, ["plan", str(scenario), "-o", str(plan)]).exit_code == 0
    result = invoke(plan, *arguments)
    assert result.exit_code == 2
    option = arguments[0]
    assert result.output.startswith(f"tensorexpress: error: {option}: found with the plan {plan}, which has decided it")
    assert result.output.endswith(f"with `tensorexpress plan {' '.join(arguments)}`\n")


@pytest.mark.parametrize(("arguments", "status", "message"), [
    (["--set", "cluster.bandwidth=10 Gbps"], 2, "small: a link runs at 10 Gbps; the target embedded keeps up with 120 "
     "Mbps on this machine (MTU 9000, 1 busy link); give --scale 100 or --scale auto"),
    (["--scale", "fast"], 2, "--scale 'fast'; accepted: a whole number of 1 or more, or auto"),
    (["--faults", "loss=5"], 2, "the share '5' is not from 0% to 100%"),
    (["--faults", "loss=5%", "--target", "linux"], 2, "--faults, --wires and --veth are for the target embedded"),
    (["--policy", "ideal"], 2, "policy 'ideal' wants 'pifo'"),
    (["--set", "transport.acks=false"], 2, "transport.acks"),
])  # fmt: skip
def test_what_cannot_be_run_is_refused_in_one_line(arguments, status, message, scenario, monkeypatch):
    monkeypatch.setattr(speed, "known_bps", lambda target, load: 300 * 10**6)
    result = invoke(scenario, *arguments)
    assert result.exit_code == status
    assert message in result.output
    assert len(result.output.splitlines()) == 1


@rest(but=1)
@needs_root
@one_in(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("running", [False, True], ids=["while it is built", "while it runs"])
def test_a_run_that_is_stopped_takes_everything_down(running, number, scenario):
    found = set()

    def namespaces_of(pid):
        with suppress(OSError):  # it has ended
            for each in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):  # closed while we look
                    file = Path(os.readlink(f"/proc/{pid}/fd/{each}"))
                    found.update([file.name] if file.parent == marks.directory() else [])
        return [name for name in os.listdir("/run/netns") if marks.mark_of(name) in found]

    def children_of(pid):
        with suppress(OSError):  # it has ended
            return " ".join(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")).split()
        return []

    def has_come_far_enough(pid):
        if running:  # hosts are children of a child
            return any(len(children_of(child)) == 3 for child in children_of(pid))
        return len(namespaces_of(pid)) == 4

    code = "from tensorexpress.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "run", str(scenario), "--target", "linux", "--set", "iterations=500"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not has_come_far_enough(process.pid):
            assert process.poll() is None, process.stderr.read()
        assert namespaces_of(process.pid)
        process.send_signal(number)
        said = process.stderr.read()
    assert (process.returncode, said) == (130, "tensorexpress: stopped\n")
    assert not namespaces_of(process.pid)


def test_frames_that_a_switch_was_too_slow_to_take_are_in_the_notes(tmp_path):
    plan = small_plan(tmp_path, policy="fifo")
    ports = (PortReport("s0", 0, 9000, drops={NOT_TAKEN: 2}), PortReport("s0", 1, 9000, drops={NOT_TAKEN: 1}))
    notes = notes_on([Run(plan, simulate(plan), ports, MachineWatch())], EmbeddedTarget(wires=True))
    assert "- Under fifo switches lost 3 frames that came faster than they could take; close other programs, " in (
        "\n".join(notes)
    )
