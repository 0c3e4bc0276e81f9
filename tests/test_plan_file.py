"""Plan files: a plan survives the way to a file and back, and what is no plan is refused by the part that is not."""

from __future__ import annotations

import doctest
import json
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from support.strategies import plans

from tensorexpress import classify, p4, text
from tensorexpress.cli import main
from tensorexpress.errors import InputError, PlanError
from tensorexpress.plan import Plan, make_plan
from tensorexpress.plan_file import plan_from_json, plan_text, plan_to_json, read_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario


@given(plans())
def test_a_plan_read_back_is_the_plan(plan: Plan) -> None:
    assert plan_from_json(json.loads(plan_text(plan))) == plan


def test_a_plan_keeps_the_dscps_that_were_chosen_for_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    options = ["--set", "job.model=alexnet", "--set", "cluster.queues=3", "-o", str(path)]
    assert CliRunner().invoke(main, ["plan", *options]).exit_code == 0
    assert read_plan(path).dscps == (40, 32, 0)
    shown = CliRunner().invoke(main, ["plan", *options, "--dscp", "46, 10,0"])
    assert shown.exit_code == 0, shown.output
    assert "queue  DSCP  tensors" in shown.output
    assert read_plan(path).dscps == (46, 10, 0)


def test_a_plan_file_that_says_nothing_about_dscps_has_the_first_ones(document: dict[str, Any]) -> None:
    assert plan_from_json(put(document, "dscps", None)).dscps == (56, 48, 40, 32, 24, 16, 8, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("40,0,", "--dscp '40,0,'; accepted: whole numbers with commas between them"),
        ("cs5", "--dscp 'cs5'; accepted: whole numbers with commas between them"),
        ("40", "--dscp '40': 1 DSCPs for 8 queues; accepted: one for each of at most 8 queues"),
        ("99,7,6,5,4,3,2,1", "--dscp '99,7,6,5,4,3,2,1': DSCP 99; accepted: 0 to 63"),
        ("9" * 5000, "--dscp '9999"),
    ],
)
def test_dscps_that_cannot_be_are_refused_by_the_name_of_the_option(given: str, message: str) -> None:
    refused = CliRunner().invoke(main, ["plan", "--dscp", given])
    assert refused.exit_code == 2
    assert f"error: {message}" in refused.output.replace("Error", "error")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    scenario = read_scenario(overrides=["job.model=alexnet", "job.workers=2", "job.servers=1"])
    return plan_to_json(make_plan(scenario, POLICIES["tensorexpress"]))


def test_a_line_holds_one_tensor_so_that_plans_can_be_compared(document: dict[str, Any]) -> None:
    text = plan_text(plan_from_json(document))
    assert [line.strip() for line in text.splitlines() if '"fc3"' in line and '"queue"' in line] == [
        json.dumps(document["jobs"][0]["tensors"][7])
    ]


def put(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    changed = deepcopy(document)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    node: Any = changed
    for step in steps:
        node = node[step]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "recipe", "format is 'recipe'; accepted: 'tensorexpress plan'"),
        ("version", 2, "version is 2; accepted: 1; make the plan again"),
        ("scenario", None, "scenario is None; accepted: an object"),
        ("scenario.cluster.queues", "eight", "scenario.cluster.queues is 'eight'; accepted: a whole number"),
        ("scenario.cluster.queues", 0, "queues is 0; accepted: a whole number from 1 to 32"),
        ("scenario.cluster.colour", "red", "scenario.cluster: unknown key 'colour'"),
        ("scenario.jobs.0.workers.1", 99, "scenario: job.0.workers: found host 99; accepted: host 0 to 2"),
        ("scenario.seed", None, None),
        ("scenario.name", None, "scenario.name is missing"),
        ("policy.discipline", "random", "unknown switch discipline 'random'"),
        ("dscps", [40, 0], "2 DSCPs for 8 queues; accepted: one for each of at most 8 queues"),
        ("dscps", "CS5", "dscps is 'CS5'; accepted: a list"),
        ("dscps.0", 10**30, "DSCP 1000000000000000000000000000000; accepted: 0 to 63"),
        ("jobs", [], "jobs is []; accepted: one for each of the scenario's 1"),
        ("jobs.0.tensors.3.queue", 8, "jobs.0.tensors.3.queue is 8; accepted: 0 to 7"),
        ("jobs.0.tensors.3.rank", None, "jobs.0.tensors.3.rank is missing"),
        ("jobs.0.tensors.3.rank", True, "jobs.0.tensors.3.rank is True; accepted: a whole number"),
        ("jobs.0.tensors.0", None, "jobs.0.tensors does not hold the 8 tensors of alexnet"),
        ("jobs.0.slices.bytes", [1], "jobs.0.slices has columns of different lengths"),
        ("jobs.0.slices.tensor.0", 8, "jobs.0.slices.tensor holds 8; accepted: 0 to 7"),
    ],
)
def test_what_is_no_plan_is_refused_by_name(
    document: dict[str, Any], path: str, value: object, message: str | None
) -> None:
    changed = put(document, path, value)
    if message is None:
        assert plan_from_json(changed)
        return
    with pytest.raises(InputError) as refusal:
        plan_from_json(changed)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'"plan"', b"[" * 100_000])
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(PlanError, match=r"plan\.json: .*`tensorexpress plan`"):
        read_plan(path)


def test_the_verb_writes_a_plan_and_shows_every_tensor_in_a_queue(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    result = CliRunner().invoke(
        main, ["plan", "--set", "job.model=vgg16", "--set", "cluster.queues=4", "-o", str(path)]
    )
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()]
    assert sum(int(row[2]) for row in rows if row and row[0].isdigit()) == 16
    assert read_plan(path).policy == POLICIES["tensorexpress"]


def test_the_verb_takes_one_policy() -> None:
    result = CliRunner().invoke(main, ["plan", "--policy", "fifo,p3"])
    assert result.exit_code == 2
    assert "names 2 policies; accepted: one at a time" in result.output


@pytest.mark.parametrize("module", [text, classify, p4])
def test_examples_in_the_documentation_hold(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0
