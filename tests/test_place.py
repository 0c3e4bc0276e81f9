"""`tensorexpress place` and `plan --plot`: what they print and draw is what was planned."""

import json

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.plan import make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.results.fabric_plot import draw_fabric, positions
from tensorexpress.scenario import read_scenario
from tensorexpress.topologies import fat_tree

SPINES = ("cluster.topology=leaf-spine", "cluster.leaves=3", "cluster.spines=3", "cluster.hosts_per_leaf=3",
          "cluster.oversubscription=3", "job.workers=6", "job.servers=3", "job.model=alexnet")  # fmt: skip


def run(verb: str, *arguments: object) -> str:
    settings = [word for key in SPINES for word in ("--set", key)]
    result = CliRunner().invoke(main, [verb, *settings, *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_compares_placements_and_says_what_more_brings() -> None:
    printed = run("place", "--set", "cluster.switch_rate=12 Gbps")
    lines = [line.split() for line in printed.splitlines()]
    assert next(line[1:4] for line in lines if line[:1] == ["inart"]) == ["4", "Gbps", "100%"]
    assert next(line[3:5] for line in lines if line[:1] == ["load"]) == ["1.667", "Gbps"]
    assert ["all", "switches'", "summing", "rate", "4.4", "Gbps", "+10.0%"] in lines
    assert "summed by every switch on the way" in printed


def test_json_holds_shares_ways_and_links() -> None:
    document = json.loads(run("place", "--json", "-", "--no-more"))
    (job,) = document["jobs"]
    placed = job["placements"]["inart"]
    assert job["more"] == []
    assert placed["rate_bps"] <= placed["bound_bps"] == pytest.approx(10e9)
    assert sum(server["share"] for server in placed["servers"]) == pytest.approx(1)
    for server in placed["servers"]:
        assert set(server["ways"]) == {f"h{worker}" for worker in range(6)}
        assert all(way[-1] == "s2" for way in server["ways"].values())
    assert max(placed["links"].values()) == pytest.approx(1)


def test_a_spare_host_is_looked_at_as_a_server() -> None:
    assert "a server on h8" in run("place", "--set", "job.servers=2", "--sums", "none", "--placement", "load")


@rest(but=1)
@pytest.mark.parametrize("policy", ["inart", "fifo", "switchml"])
def test_plan_draws_the_network(policy: str, tmp_path) -> None:
    assert "the busiest link is" in run("plan", "--policy", policy, "--plot", tmp_path / "fabric.png")
    assert (tmp_path / "fabric.png").read_bytes().startswith(b"\x89PNG")


def test_plan_says_shares_and_rate() -> None:
    printed = run("plan", "--policy", "inart")
    assert "placement inart: shares h6 33.3%, h7 33.3%, h8 33.3%" in printed
    assert "every worker sends 10 Gbps, 100% of the 10 Gbps that no placement beats" in printed


def test_a_figure_shows_every_node_and_how_many_trees_switches_sum_for() -> None:
    plan = make_plan(read_scenario(None, list(SPINES)), parse_policy("inart"))
    (axes, _) = draw_fabric(plan).axes
    texts = [text.get_text() for text in axes.texts]
    assert set(texts) >= {*plan.scenario.cluster.nodes}
    # Both leaves of workers sum for all three servers.
    assert texts.count("3") == 2


def test_nodes_stand_in_tiers() -> None:
    places = positions(fat_tree(4))
    assert {tier: sum(1 for _, y in places.values() if y == tier) for tier in range(4)} == {0: 16, 1: 8, 2: 8, 3: 4}
    assert len(set(places.values())) == len(places)
