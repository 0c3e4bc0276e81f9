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
from support.strategies import SUMMED, plans

from tensorexpress import classify, p4, text
from tensorexpress.cli import main
from tensorexpress.errors import InputError, PlanError
from tensorexpress.plan import Plan, make_plan
from tensorexpress.plan_file import plan_from_json, plan_text, plan_to_json, read_plan
from tensorexpress.policy import POLICIES, parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.sim.run import simulate


@given(plans() | plans(sums=SUMMED))
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
        ("version", 1, "version is 1; accepted: 6; make the plan again"),
        ("scenario", None, "scenario is None; accepted: an object"),
        ("scenario.cluster.queues", "eight", "scenario.cluster.queues is 'eight'; accepted: a whole number"),
        ("scenario.cluster.queues", 0, "queues is 0; accepted: a whole number from 1 to 32"),
        ("scenario.cluster.colour", "red", "scenario.cluster: unknown key 'colour'"),
        ("scenario.jobs.0.workers.1", 99, "scenario: job.0.workers: found host 99; accepted: host 0 to 2"),
        ("scenario.jobs.0.workload.dtype", "int8", "alexnet: unknown dtype 'int8'"),
        ("scenario.jobs.0.workload.compression", 0, "alexnet has a compression of 0.0; accepted: 1 to 10000"),
        ("scenario.jobs.0.workload.compression", 2, "jobs.0.tensors.0.bytes is 93184; accepted: what the plan's"),
        ("scenario.seed", None, None),
        ("scenario.name", None, "scenario.name is missing"),
        ("policy.discipline", "random", "unknown switch discipline 'random'"),
        ("dscps", [40, 0], "2 DSCPs for 8 queues; accepted: one for each of at most 8 queues"),
        ("dscps", None, "the plan.dscps is missing"),
        ("dscps", "CS5", "dscps is 'CS5'; accepted: a list"),
        ("dscps.0", 10**30, "DSCP 1000000000000000000000000000000; accepted: 0 to 63"),
        ("paths", None, "the plan.paths is missing; make the plan again"),
        ("paths", {}, "paths is {}; accepted: a list"),
        ("paths.0", 7, "paths.0 is 7; accepted: a list"),
        ("paths.0", [0, 2], "paths.0 is [0, 2]; accepted: two hosts, and links between them"),
        ("paths.0", None, "paths has none from h0 to h2, who talk; accepted: one for each way"),
        ("paths.0.0", 9, "paths.0: there is no host 9; accepted: 0 to 2"),
        ("paths.0.1", -1, "paths.0: there is no host -1; accepted: 0 to 2"),
        ("paths.0.2", 10**40, "paths.0: there is no link 10000"),
        ("paths.0.2", 0.5, "paths.0.2 is 0.5; accepted: a whole number"),
        ("paths.0.2", True, "paths.0.2 is True; accepted: a whole number"),
        ("paths.0.3", 1, "paths.0: it passes h0 twice; accepted: every node once"),
        ("paths.0.3", 3, "paths.0: it ends at h1; accepted: a way from one host to another, here to h2"),
        ("paths.1", [0, 2, 0, 5], "paths.0 is another from h0 to h2; accepted: one"),
        (
            "paths",
            [[0, 1, 0, 3], [0, 2, 0, 5], [1, 2, 2, 5], [2, 0, 4, 1], [2, 1, 4, 3]],
            "paths.0 is from h0 to h1, who do not talk; leave it out",
        ),
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


@pytest.fixture(scope="module")
def summed() -> dict[str, Any]:
    """Two workers at each of two leaves, which two spines join: links 8 on are between switches."""
    leaves = ["cluster.topology=leaf-spine", "cluster.leaves=2", "cluster.spines=2", "cluster.hosts_per_leaf=2"]
    scenario = read_scenario(overrides=["job.model=alexnet", "job.workers=4", "job.architecture=ring", *leaves])
    return plan_to_json(make_plan(scenario, parse_policy("tensorexpress+sum:queues=equal")))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("jobs.0.sums", None, "jobs.0.sums is missing; make the plan again"),
        ("jobs.0.sums", 7, "jobs.0.sums is 7; accepted: a list"),
        ("policy.sums", "none", "jobs.0.sums is [{"),
        ("policy.sums", "mixed", "unknown sum 'mixed'; Accepted: front, hashed, none, pool"),
        ("policy.sums", "hashed", "'hashed', and scenario: job.0.architecture: found ring; accepted: ps"),
        ("policy.credit_bytes", 9, "credit counts what is not acknowledged"),
        ("scenario.cluster.mtu", 1099, "scenario: cluster.mtu: found 1099; accepted: 1100 or more"),
        ("scenario.cluster.switch_memory_bytes", -1, "switch_memory_bytes is -1; accepted: 0 (no limit) to"),
        ("scenario.cluster.switch_memory_bytes", 2112, "slots from 0 on; accepted: 1 or more of the 1 that a switch"),
        ("scenario.jobs.0.forward_only", True, "forward_only: found true"),
        ("jobs.0.sums.0.switches", [], "jobs.0.sums.0.switches is []; accepted: one at least"),
        ("jobs.0.sums.0.switches.0.switch", 4, "switches.0.switch is 4; accepted: a switch of the cluster, each once"),
        ("jobs.0.sums.0.switches.0.switch", 10**40, "switches.0.switch is 1000"),
        ("jobs.0.sums.0.switches.0.up", 8, "switches.0.up is 8; accepted: -1 for the first"),
        ("jobs.0.sums.0.switches.1.up", -1, "switches.1.up is -1; accepted: -1 for the first, then a link"),
        ("jobs.0.sums.0.switches.1.up", 10**40, "switches.1.up is 1000"),
        ("jobs.0.sums.0.switches.1.up", 0, "switches.1.up is 0; accepted: -1 for the first, then a link"),
        ("jobs.0.sums.0.switches.1.children", [2, 0], "switches.1.children is [2, 0]; accepted: 1 to 64 links"),
        ("jobs.0.sums.0.switches.1.children.0", 10**40, "switches.1.children is [1000"),
        ("jobs.0.sums.0.switches.1", None, "sums.0.switches have no s0, the switch of a worker"),
        ("jobs.0.sums.0.switches.1.switch", 3, "switches.1.up is 8; accepted: -1 for the first, then a link"),
        ("jobs.0.sums.0.pools", [], "jobs.0.sums.0.pools are not of the tensors that are in one queue"),
        ("jobs.0.sums.0.pools.0.queue", 1, "jobs.0.sums.0.pools are not of the tensors that are in one queue"),
        ("jobs.0.sums.0.pools.0.packets.0", 10**40, "jobs.0.sums.0.pools are not of the tensors"),
        ("jobs.0.sums.0.pools.0.slots", 0, "pools.0 has 0 slots from 0 on; accepted: 1 or more of the 473"),
        ("jobs.0.sums.0.pools.0.slots", 10**40, "pools.0 has 1000"),
        ("jobs.0.sums.0.pools.0.first_slot", -1, "pools.0 has 16 slots from -1 on"),
        ("jobs.0.sums.0.pools.1.first_slot", 7, "slot 7 is given away twice in switch s2's tree"),
        ("jobs.0.sums.0.pools.1.first_slot", 400, None),
        ("jobs.0.tensors.7.queue", 0, "jobs.0.sums.0.pools are not of the tensors that are in one queue"),
        ("jobs.0.slices.server.0", -1, "jobs.0.slices.server holds -1; accepted: who sums for job0: 6"),
        ("jobs.0.slices.tensor.0", 1, "jobs.0.slices hold"),
    ],
)
def test_sums_that_no_switch_makes_are_refused_by_name(
    summed: dict[str, Any], path: str, value: object, message: str | None
) -> None:
    test_what_is_no_plan_is_refused_by_name(summed, path, value, message)


def at_servers(sums: str) -> dict[str, Any]:
    """Four workers and two servers at a switch."""
    scenario = read_scenario(overrides=["job.model=alexnet", "job.workers=4", "job.servers=2"])
    return plan_to_json(make_plan(scenario, parse_policy(f"tensorexpress+sum:queues=equal,sum={sums}")))


@pytest.mark.parametrize("sums", ["front", "hashed"])
def test_a_plan_whose_sums_end_at_servers_comes_back(sums: str) -> None:
    document = at_servers(sums)
    assert plan_to_json(plan_from_json(document)) == document


@pytest.mark.parametrize(
    ("sums", "path", "value", "message"),
    [
        ("front", "jobs.0.sums.0", None, "jobs.0.sums has (server, cells) [(5, 0)]; accepted for sum=front: [(4, 0), "),
        ("front", "jobs.0.sums.0.server", 0, "jobs.0.sums has (server, cells) [(0, 0), (5, 0)]"),
        ("front", "jobs.0.sums.0.cells", 512, "jobs.0.sums has (server, cells) [(4, 512), (5, 0)]"),
        ("front", "policy.sums", "hashed", "accepted for sum=hashed: [(4, 512), (5, 512)]"),
        ("front", "policy.sums", "pool", "accepted for sum=pool: [(-1, 0)]"),
        ("front", "jobs.0.sums.0.switches.0.up", -1, "up is -1; accepted: the link to h4 for the first"),
        ("front", "jobs.0.sums.0.switches.0.up", 11, "up is 11; accepted: the link to h4 for the first"),
        ("front", "jobs.0.slices.server.0", 5, "jobs.0.sums.0.pools are not of the tensors"),
        ("front", "jobs.0.slices.server", [4] * 8, "jobs.0.sums.0.pools are not of the tensors"),
        ("front", "jobs.0.slices.server.0", 3, "jobs.0.slices.server holds 3; accepted: who sums for job0: 4, 5"),
        ("hashed", "jobs.0.sums.0.cells", 64, "jobs.0.sums has (server, cells) [(4, 64), (5, 512)]"),
        ("hashed", "jobs.0.sums.0.pools.0.slots", 8, "jobs.0.sums.0.pools have other slots than a worker may"),
        ("hashed", "jobs.0.sums.1.pools.0.first_slot", 0, "jobs.0.sums.1.pools have other slots than a worker may"),
    ],
)
def test_sums_that_end_elsewhere_are_refused(sums: str, path: str, value: object, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        plan_from_json(put(at_servers(sums), path, value))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_plan_that_sums_in_pieces_is_refused(summed: dict[str, Any]) -> None:
    slices = summed["jobs"][0]["slices"]
    size = slices["bytes"][0]
    cut = {
        "tensor": [0, *slices["tensor"]],
        "bytes": [1, size - 1, *slices["bytes"][1:]],
        "server": [6, *slices["server"]],
        "summed": [True, *slices["summed"]],
    }
    with pytest.raises(PlanError, match=r"parts of tensors; accepted where switches sum: each whole"):
        plan_from_json(put(summed, "jobs.0.slices", cut))


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


def test_the_verb_sums_up_paths_where_there_are_several_switches_and_lists_them_on_request() -> None:
    keys = ["cluster.topology=leaf-spine", "cluster.leaves=2", "cluster.spines=2", "cluster.hosts_per_leaf=2"]
    jobs = ["job.model=alexnet", 'job.workers=["h0","h1"]', 'job.servers=["h3"]']
    options = [word for key in (*keys, *jobs) for word in ("--set", key)]
    summed_up = CliRunner().invoke(main, ["plan", *options])
    assert "\n4 paths, the same under every policy; the busiest link is " in summed_up.output
    assert "by switch:port" not in summed_up.output
    listed = CliRunner().invoke(main, ["plan", *options, "--paths"])
    rows = [line.split() for line in listed.output.split("by switch:port\n")[1].splitlines()]
    assert [row[:2] for row in rows] == [["h0", "h3"], ["h1", "h3"], ["h3", "h0"], ["h3", "h1"]]
    # Port 2 of a leaf is that to the first spine, 3 to the second: one worker takes each.
    assert {row[2] for row in rows[:2]} == {"s0:2", "s0:3"}
    assert "paths" not in CliRunner().invoke(main, ["plan", "--set", "job.model=alexnet"]).output


def test_paths_changed_by_hand_are_taken_as_they_are(tmp_path: Path) -> None:
    overrides = ["cluster.topology=leaf-spine", "cluster.leaves=2", "cluster.spines=2", "cluster.hosts_per_leaf=2"]
    scenario = read_scenario(overrides=["job.model=alexnet", "job.workers=2", 'job.servers=["h3"]', *overrides])
    document = plan_to_json(make_plan(scenario, POLICIES["fifo"]))
    # Both workers over the second spine.
    by_hand = [[src, dst, *links[:1], *other, *links[-1:]] for (src, dst, *links), other in zip(
        document["paths"], ([10, 15], [10, 15], [14, 11], [14, 11]), strict=True
    )]  # fmt: skip
    plan = plan_from_json({**document, "paths": by_hand})
    assert [[path.src, path.dst, *path.links] for path in plan.paths] == by_hand
    carried = simulate(plan).links["bytes"]
    names = scenario.cluster.link_names
    assert carried[names.index("s0>s2")] == 0 < carried[names.index("s0>s3")]


def test_the_verb_takes_one_policy() -> None:
    result = CliRunner().invoke(main, ["plan", "--policy", "fifo,p3"])
    assert result.exit_code == 2
    assert "names 2 policies; accepted: one at a time" in result.output


@pytest.mark.parametrize("module", [text, classify, p4])
def test_examples_in_the_documentation_hold(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0
