"""tensorexpress export: a plan in the words of SONiC, NCCL and Linux."""

from __future__ import annotations

import doctest
import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.network import needs_root
from test_linux import plan_on

from tensorexpress import export
from tensorexpress.cli import main
from tensorexpress.errors import InputError, PlanError
from tensorexpress.plan import JobPlan, make_plan
from tensorexpress.plan_file import plan_text
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.target import namespaces
from tensorexpress.topologies import custom, star
from tensorexpress.wire.dscp import default_dscps

JOB = read_scenario(overrides=["job.model=alexnet"]).jobs[0]


def run(*arguments):
    return CliRunner().invoke(main, ["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def plan():
    return plan_on(star(hosts=3), "tensorexpress:queues=optimal")


@pytest.fixture
def plan_path(plan, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(plan_text(plan))
    return path


def test_examples_in_the_documentation_of_the_module_are_true():
    assert doctest.testmod(export).failed == 0


@pytest.mark.parametrize("queues", range(2, 9))
def test_sonic_serves_every_queue_of_the_plan_in_its_order(queues):
    tables = export.sonic(plan_on(star(hosts=3, queues=queues)), ["Ethernet0", "Ethernet8"])
    to_class, to_queue = (tables[name]["TENSOREXPRESS"] for name in ("DSCP_TO_TC_MAP", "TC_TO_QUEUE_MAP"))
    assert sorted(map(int, to_class)) == list(range(64))
    there = [int(to_queue[to_class[str(default_dscps(queues)[queue])]]) for queue in range(queues)]
    # SONiC serves the highest queue first, so the plan's queue 0 must be the highest there.
    assert there == sorted(there, reverse=True)
    assert len(set(there)) == queues
    assert to_queue[to_class["0"]] == "0"
    for port in ("Ethernet0", "Ethernet8"):
        assert tables["PORT_QOS_MAP"][port] == {"dscp_to_tc_map": "TENSOREXPRESS", "tc_to_queue_map": "TENSOREXPRESS"}
        for queue in there:
            scheduler = tables["QUEUE"][f"{port}|{queue}"]["scheduler"]
            assert tables["SCHEDULER"][scheduler] == {"type": "STRICT"}


def test_sonic_under_fifo_has_one_queue(plan):
    tables = export.sonic(plan_on(star(hosts=3), "fifo"))
    assert set(tables["DSCP_TO_TC_MAP"]["TENSOREXPRESS"].values()) == {"0"}
    assert set(tables["QUEUE"]) == {"Ethernet0|0", "Ethernet4|0", "Ethernet8|0"}


def test_sonic_needs_a_switch():
    with pytest.raises(PlanError, match="no switch"):
        export.sonic(plan_on(custom(["a", "b"], [], [("a", "b")])))


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 10**9)), min_size=1, max_size=20))
def test_half_of_a_jobs_bytes_are_as_urgent_as_its_median_queue(tensors):
    layers = tuple(replace(JOB.workload.layers[0], params=size) for _, size in tensors)
    job = replace(JOB, workload=replace(JOB.workload, layers=layers))
    plan = JobPlan(job, ranks=(), queues=tuple(queue for queue, _ in tensors), slack_ps=(), slices=())
    median, total = export.job_queue(plan, "median"), sum(size for _, size in tensors)
    assert 2 * sum(size for queue, size in tensors if queue <= median) >= total
    assert 2 * sum(size for queue, size in tensors if queue < median) < total
    assert export.job_queue(plan, "urgent") == min(queue for queue, _ in tensors)


def test_nccl_gets_the_dscp_as_the_byte_that_holds_it(plan):
    def variables(text):
        return dict(line.split("=") for line in text.splitlines() if not line.startswith("#"))

    median = export.job_queue(plan.jobs[0], "median")
    assert 0 < median < 7
    expected = {"NCCL_IB_TC": str(default_dscps(8)[median] << 2), "NCCL_IB_SL": str(7 - median)}
    assert variables(export.nccl(plan)) == expected
    assert variables(export.nccl(plan, job_class="urgent")) == {"NCCL_IB_TC": "160", "NCCL_IB_SL": "7"}
    assert variables(export.nccl(plan_on(star(hosts=3), "p3"))) == {"NCCL_IB_TC": "0", "NCCL_IB_SL": "0"}


def test_nccl_of_several_jobs_wants_to_know_which(tmp_path):
    scenario = tmp_path / "two.toml"
    job = 'model = "alexnet"\nworkers = 2\nservers = 1\n'
    scenario.write_text(f'name = "two"\n[[job]]\nname = "a"\n{job}[[job]]\nname = "b"\n{job}')
    both = make_plan(read_scenario(scenario), POLICIES["tensorexpress"])
    with pytest.raises(InputError, match="2 jobs and each needs its own file; give --job a"):
        export.nccl(both)
    assert export.nccl(both, "b").startswith("# b of two")
    with pytest.raises(InputError, match="unknown job 'c'"):
        export.nccl(both, "c")


@needs_root
def test_the_script_for_linux_sets_up_an_interface(plan_path, tmp_path):
    script = tmp_path / "queues.sh"
    assert run(plan_path, "--format", "linux", "--dev", "nic0", "-o", script).exit_code == 0
    with namespaces.namespace() as name:
        namespaces.ip(["link add nic0 type veth peer name far0"], name)
        for _ in range(2):  # a second time it begins anew
            subprocess.run(["ip", "netns", "exec", name, "sh", script], check=True, capture_output=True)
        shown = subprocess.run(["tc", "-n", name, "class", "show", "dev", "nic0"], capture_output=True, text=True)
    assert shown.stdout.count("prio") == 8


def test_formats_on_the_command_line(plan_path, tmp_path):
    document = json.loads(run(plan_path, "--format", "sonic", "--ports", "Ethernet0, Ethernet12").stdout)
    assert list(document["PORT_QOS_MAP"]) == ["Ethernet0", "Ethernet12"]
    assert run(plan_path, "--format", "nccl", "-o", tmp_path / "nccl.conf").stdout == ""
    assert "NCCL_IB_TC=" in (tmp_path / "nccl.conf").read_text()
    assert run(plan_path, "--format", "linux", "--rate", "1 Gbps").stdout.startswith("#!/bin/sh\n# eth0: 8 queues")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "sonic", "--job", "job0"], "--job goes with --format nccl or chakra only"),
        (["--format", "nccl", "--dev", "eth0"], "--dev goes with --format linux only"),
        (["--format", "linux", "--job-class", "urgent"], "--job-class goes with --format nccl only"),
        (["--format", "sonic", "--ports", "Ethernet0,,"], "different names with commas"),
        (["--format", "sonic", "--ports", "Ethernet0,Ethernet0"], "different names with commas"),
        (["--format", "nccl", "--job", "nobody"], "unknown job 'nobody'"),
        (["--format", "sonic", "-o", "/no/such/directory/file"], "cannot write"),
    ],
)
def test_bad_input_is_one_line(plan_path, options, message):
    result = run(plan_path, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_plans_whose_queues_no_dscp_can_name_are_refused(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(plan_text(plan_on(star(hosts=3), "ideal")))
    for name in export.FORMATS.keys() - {"chakra"}:  # which says nothing of queues
        result = run(path, "--format", name)
        assert result.exit_code == 2
        assert "accepted where queues follow the DSCP" in result.stderr


@pytest.mark.parametrize("page", ["linux.md", "export.md"])
def test_commands_in_the_documentation_print_what_stands_there(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[1] / "docs" / page).read_text()
    blocks = re.findall(r"```sh\n(.*?)```(?:\s*```text\n(.*?)```)?", text, re.DOTALL)
    assert blocks
    for commands, expected in blocks:
        for line in commands.splitlines():
            result = CliRunner().invoke(main, shlex.split(line)[1:])
            assert result.exit_code == 0, line
        if expected:
            assert result.stdout == expected
