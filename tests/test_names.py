"""Names out of files and command lines stay names: none becomes a line, a formula, markup or a terminal's escape."""

from __future__ import annotations

import csv
import doctest
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.thorough import rest

from tensorexpress import errors, export, names
from tensorexpress.cli import main
from tensorexpress.errors import InputError
from tensorexpress.names import is_name, name_of_file
from tensorexpress.plan import Plan, make_plan
from tensorexpress.plan_file import plan_from_json, plan_to_json
from tensorexpress.policy import POLICIES, Policy
from tensorexpress.scenario import Job, Scenario, read_scenario
from tensorexpress.topologies import custom, read_p4_topology, star
from tensorexpress.workload import Layer, Workload, read_csv

HOSTILE = [
    "",
    "a\nNCCL_IB_TC=255",
    "a\rb",
    "a\u2028b",
    "a\u0085b",
    "\x1b[2Ja",
    "a\x00",
    "a\u202eb",
    "a\ufeffb",
    "=1+1",
    "-1",
    "@x",
    "+x",
    "<script>",
    'a"b',
    "a'b",
    "$(reboot)",
    "`x`",
    "$x^2$",
    "a\\b",
    "a;b",
    "a|b",
    "a#b",
    " a",
    "a ",
    "x" * 201,
    "\ud800",
]
HARMLESS = ["job0", "conv1/weights:0", "größe 2", "layer4.2.conv3", "tensorexpress:slice=50 KB,switch=strict", "層"]

PLACES: dict[str, Callable[[str], object]] = {
    "a scenario's name in Python": lambda name: replace(SCENARIO, name=name),
    "a job's name in Python": lambda name: replace(SCENARIO.jobs[0], name=name),
    "a layer": lambda name: Layer(name, 1, 1, 1),
    "a workload": lambda name: Workload(name, (Layer("a", 1, 1, 1),)),
    "a host": lambda name: custom([name, "b"], ["s"], [(name, "s"), ("b", "s")]),
    "a switch": lambda name: custom(["a", "b"], [name], [("a", name), ("b", name)]),
    "a cluster": lambda name: replace(star(2), name=name),
    "a policy": lambda name: Policy(name),
    "the document of a plan: scenario": lambda name: plan_with("scenario.name", name),
    "the document of a plan: job": lambda name: plan_with("scenario.jobs.0.name", name),
    "the document of a plan: layer": lambda name: plan_with("scenario.jobs.0.workload.layers.0.name", name),
    "the document of a plan: model": lambda name: plan_with("scenario.jobs.0.workload.name", name),
    "the document of a plan: policy": lambda name: plan_with("policy.name", name),
    "the document of a plan: host": lambda name: plan_with("scenario.cluster.hosts.0", name),
}

SCENARIO = read_scenario(overrides=["job.model=alexnet", "job.workers=2", "job.servers=1"])


def plan_with(path: str, value: str) -> Plan:
    document = plan_to_json(make_plan(SCENARIO, POLICIES["fifo"]))
    node: Any = document
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps:
        node = node[step]
    node[last] = value
    return plan_from_json(document)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_place_takes_a_name_that_could_be_more_than_a_name(place: str, name: str) -> None:
    with pytest.raises(InputError) as refusal:
        PLACES[place](name)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("name", HARMLESS)
def test_usual_names_are_taken(name: str) -> None:
    assert Job(name, SCENARIO.jobs[0].workload, (0,), (1,)).name == name
    assert replace(SCENARIO, name=name).name == name


@pytest.mark.parametrize("key", ["name", "job.name", "job.workers", "background.0.src", "compute.stragglers"])
def test_no_key_of_a_scenario_takes_such_a_name(key: str) -> None:
    for name in HOSTILE:
        if not name or name == "\ud800":  # the default name; what TOML cannot hold
            continue
        quoted = json.dumps(name)
        value = {"job.workers": f"[{quoted}]", "compute.stragglers": f"{{ {quoted} = 2.0 }}"}.get(key, quoted)
        result = CliRunner().invoke(main, ["plan", "--set", f"{key}={value}"])
        assert result.exit_code == 2, name
        assert result.stderr.count("\n") == 1
        assert result.stderr.strip().isprintable()


def test_a_name_in_a_topology_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    path.write_text(json.dumps({"hosts": {"h\n1": {}}, "switches": {"s1": {}}, "links": [["h\n1", "s1-p1"]]}))
    with pytest.raises(InputError, match="accepted: a name"):
        read_p4_topology(path)


def test_what_has_no_name_but_its_files_gets_one_that_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "=a\nb$.csv"
    path.write_text("layer_index,numel,forward_ns,backward_ns\n0,1,1,1\n")
    assert read_csv(path).name == "_=a_b_"
    scenario = tmp_path / "x\nNCCL_IB_TC=1.toml"
    scenario.write_text("seed = 1\n")
    assert read_scenario(scenario).name == "x_NCCL_IB_TC=1"


@given(st.text())
def test_every_file_has_a_name(stem: str) -> None:
    assert is_name(name_of_file(stem))


@given(st.text(max_size=30))
def test_a_name_is_one_cell_and_one_word_everywhere(name: str) -> None:
    if not is_name(name):
        return
    plan = make_plan(replace(SCENARIO, name=name, jobs=(replace(SCENARIO.jobs[0], name=name),)), POLICIES["fifo"])
    live = [line for line in export.nccl(plan).splitlines() if not line.startswith("#")]
    assert [line.partition("=")[0] for line in live] == ["NCCL_IB_TC", "NCCL_IB_SL"]
    assert name[0] not in "=+-@\t\r"
    assert not set(name) & set("<>&\"'`$\\;|#%")
    assert next(csv.reader(io.StringIO(",".join(["1", f'"{name}"'])))) == ["1", name]


@given(st.text())
def test_an_error_is_one_line_whatever_it_quotes(text: str) -> None:
    shown = str(InputError(f"found {text}"))
    assert shown.isprintable()
    assert not text.isprintable() or shown == f"found {text}"


@pytest.mark.parametrize("module", [errors, names])
def test_examples_in_the_documentation_hold(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


def test_scenarios_have_names() -> None:
    with pytest.raises(InputError, match="accepted: a name"):
        Scenario("a\nb", star(2), ())


@pytest.fixture(scope="module")
def plan_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert CliRunner().invoke(main, ["plan", "--set", "job.model=alexnet", "-o", str(path)]).exit_code == 0
    return str(path)


@rest(but=4)
@pytest.mark.parametrize("name", ["-batch", "-", "--", "..", ".", "a b", "a/b", "eth0;x", "x" * 16, "a\nb", "", "é"])
def test_no_verb_takes_an_interface_that_is_an_option_or_a_path(plan_path: str, name: str) -> None:
    for command in (
        ["deploy", plan_path, "--target", "linux", f"--dev={name}"],
        ["deploy", plan_path, "--target", "linux", f"--dev={name}", "--dry-run"],
        ["deploy", plan_path, "--target", "linux", f"--dev={name}", "--remove", "--dry-run"],
        ["export", plan_path, "--format", "sonic", f"--ports=Ethernet0,{name or '-'}"],
        ["switch", "--grpc", "127.0.0.1:0", f"--port=0@{name}"],
        *([["export", plan_path, "--format", "linux", f"--dev={name}"]] if name else []),
    ):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2, command
        assert result.stderr.count("\n") == 1
        assert "accepted" in result.stderr, result.stderr
