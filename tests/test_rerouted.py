"""Routes planned again in the simulator: both engines alike, at the planned rates, and nothing missing or twice."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import examples, one_in, rest
from test_engines import differences
from test_placed import AT_ONCE, PACKETS, both, scenario_on, three_leaves

from tensorexpress.changes import Change, links_of
from tensorexpress.cli import main
from tensorexpress.errors import PlanError
from tensorexpress.plan import Plan, changed_links, make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.replan import NewRoutes, moments, new_routes
from tensorexpress.results.side_by_side import Result, side_by_side
from tensorexpress.scenario import Background, Job, Scenario
from tensorexpress.sim import predict
from tensorexpress.sim.flat_plan import FlatPlan, build
from tensorexpress.sim.run import execute, simulate
from tensorexpress.sums import SUM_FRAMING
from tensorexpress.topologies import leaf_spine
from tensorexpress.trace import JobTrace

MS = 10**9
EXAMPLE = str(Path(__file__).parent.parent / "examples" / "inart-changing.toml")
POLICIES = ("inart", "tensorexpress:sum=front,placement=equal", "atp:placement=inart", "p3:placement=inart")


def disturbed(**more: object) -> Scenario:
    """Return a job over two spines, of which one is slow for a while and others use the other one later."""
    cluster = leaf_spine(3, 2, 3, oversubscription=3)
    slow = Change(at_ps=MS, until_ps=3 * MS, links=links_of("s0-s3", cluster), share=0.2)
    others = tuple(Background(host, 5, 10**9, 1500, "constant", 4 * MS, 6 * MS) for host in (2, 8))
    job = Job("job", AT_ONCE, (0, 1, 3, 4), (6, 7), shard_bytes=10_000)
    return Scenario("disturbed", cluster, (job,), iterations=3, warmup=0, changes=(slow,), background=others, **more)  # type: ignore[arg-type]


def program_of(plan: Plan, routes: Sequence[NewRoutes]) -> FlatPlan:
    return build(plan, routes=[(each.from_ps, each.replanned.plan) for each in routes])


def rate_bps(job: JobTrace, since_ps: int, until_ps: int) -> float:
    """Return at what rate workers sent in iterations that lie in a span as a whole."""
    starts = job.forward_start_ps[:, :, -1].min(axis=1).tolist()
    taken = [end - start for start, end in pairwise(starts) if since_ps <= start and end <= until_ps]
    assert taken
    return 8 * PACKETS * SUM_FRAMING.full_packet_bytes * 10**12 * len(taken) / sum(taken)


class TestEngines:
    @rest()
    @one_in(3)
    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("more", [{}, {"loss": 0.01}, {"jitter": 0.1}])
    def test_they_are_equal_in_every_packet(self, policy: str, more: dict[str, object]) -> None:
        plan = make_plan(disturbed(**more), parse_policy(policy))
        routes = new_routes(plan, MS // 10)
        assert routes
        program = program_of(plan, routes)
        one, other = (execute(program, engine, record_packets=True) for engine in ("simpy", "fast"))
        assert not differences(one, other)

    @rest()
    @settings(max_examples=examples(20))
    @given(
        seed=st.integers(0, 30),
        policy=st.sampled_from(POLICIES),
        at=st.integers(0, 4000),
        reaction=st.integers(0, 2000),
        share=st.sampled_from([0.05, 0.25, 0.6]),
    )
    def test_they_are_on_random_fabrics(self, seed: int, policy: str, at: int, reaction: int, share: float) -> None:
        cluster = three_leaves(seed)
        links = tuple(link for leaf in ("s0", "s2") for link in links_of(f"{leaf}-s{3 + seed % 2}", cluster))
        slow = Change(at_ps=at * 10**6, until_ps=(at + 3000) * 10**6, links=links, share=share)
        plan = make_plan(scenario_on(cluster, 6, 3, changes=(slow,)), parse_policy(policy))
        program = program_of(plan, new_routes(plan, reaction * 10**6))
        one, other = (execute(program, engine, record_packets=True) for engine in ("simpy", "fast"))
        assert not differences(one, other)


class TestCarriedOut:
    @rest(but=2)
    @pytest.mark.parametrize(("seed", "spine"), [(0, "s3"), (3, "s4"), (4, "s3"), (7, "s4")])
    def test_iterations_reach_what_is_planned_before_and_after(self, seed: int, spine: str) -> None:
        cluster = three_leaves(seed)
        links = tuple(link for leaf in ("s0", "s1", "s2") for link in links_of(f"{leaf}-{spine}", cluster))
        slow = Change(at_ps=20 * MS, links=links, share=0.25)
        plan, _ = both(replace(scenario_on(cluster, 6, 3, changes=(slow,)), iterations=40), "inart")
        (routes,) = new_routes(plan, 100 * MS)
        job = simulate(plan, "fast", routes=[routes]).jobs[0]
        end_ps = int(job.forward_start_ps.max())
        before_bps, after_bps = (rate_bps(job, *span) for span in ((20 * MS, 120 * MS), (120 * MS, end_ps)))
        assert before_bps == pytest.approx(routes.replanned.before_bps[0], rel=0.03)
        assert after_bps == pytest.approx(routes.replanned.after_bps[0], rel=0.03)
        assert after_bps > 1.3 * before_bps

    @pytest.mark.parametrize("policy", POLICIES)
    def test_every_message_arrives_and_every_sum_is_made_once(self, policy: str) -> None:
        plan = make_plan(disturbed(), parse_policy(policy))
        program = program_of(plan, new_routes(plan, MS // 10))
        record = execute(program, "fast")
        assert (record.delivered_ps >= 0).all()
        if plan.policy.in_switches:
            assert record.server_sums == 3 * PACKETS

    @pytest.mark.parametrize("policy", ["inart", "fifo:placement=inart"])
    def test_nothing_new_goes_by_the_old_routes(self, policy: str) -> None:
        plan = make_plan(replace(disturbed(), background=()), parse_policy(policy))
        routes = new_routes(plan, MS // 10)[0]
        packets = execute(program_of(plan, [routes]), "fast", record_packets=True).packets
        assert packets is not None
        there, _ = links_of("s0-s3", plan.scenario.cluster)
        assert there in changed_links(plan, [routes.replanned.plan])
        times_ps = packets["time_ps"][packets["link"] == there]
        # What waits for the slow link when routes change is all that still goes there.
        assert routes.from_ps < times_ps.max() < routes.from_ps + MS

    def test_without_other_routes_all_is_as_before(self) -> None:
        plan = make_plan(disturbed(), parse_policy("inart"))
        assert not differences(execute(build(plan), "fast"), execute(program_of(plan, []), "fast"))

    @rest(but=3)
    @pytest.mark.parametrize("policy", [*POLICIES, "fifo", "libra"])
    def test_no_bound_is_beaten(self, policy: str) -> None:
        for reaction_ps in (0, MS // 2, 2 * MS):
            plan = make_plan(disturbed(), parse_policy(policy))
            routes = new_routes(plan, reaction_ps)
            result = Result.of(plan, simulate(plan, "fast", routes=routes), routes)
            assert side_by_side([result]).of_optimal(plan.policy.name) <= 1


class TestPredicted:
    def test_the_library_plans_again_and_gains(self) -> None:
        (slow,) = disturbed().changes
        scenario = replace(disturbed(), background=(), changes=(replace(slow, until_ps=6 * MS),))
        stays, follows = (predict(scenario, ["inart"], replan_ps=each) for each in (None, MS // 10))
        assert moments(scenario) == [MS, 6 * MS]
        assert [each.changed_ps for each in follows.results["inart"].routes] == [MS, 6 * MS]
        assert follows.results["inart"].jobs[0].iteration_ps < 0.95 * stays.results["inart"].jobs[0].iteration_ps
        assert stays.results["inart"].routes == ()

    def test_what_has_no_routes_is_refused(self) -> None:
        scenario = disturbed()
        with pytest.raises(PlanError, match="policy 'switchml' has sums end in switches"):
            predict(scenario, ["switchml"], replan_ps=0)

    @rest()
    def test_the_table_and_json_say_when_and_what_it_brought(self, tmp_path: Path) -> None:
        quick = [EXAMPLE, "--set", "job.model=alexnet", "--set", "change.at=200 ms", "--set", "change.until=900 ms"]
        args = ["predict", *quick, "--set", "iterations=6", "--replan", "10 ms"]
        written = tmp_path / "prediction.json"
        said = CliRunner().invoke(main, [*args, "--policy", "libra:placement=equal,inart", "--json", str(written)])
        assert "routes planned again, in force 10 ms after links or background traffic change" in said.output
        assert "sums of job0 to" in said.output
        # The busiest link is that of all routes together, and how much of it are tensors is not said by one of them.
        assert re.search(r"the busiest link, \S+, is busy for [0-9.]+% of the time, and carries nothing", said.output)
        document = json.loads(written.read_text())
        first = document["policies"]["inart"]["routes"][0]
        assert (first["changed_ps"], first["from_ps"]) == (200 * MS, 210 * MS)
        assert first["jobs"]["job0"]["planned_again_bps"] > 2 * first["jobs"]["job0"]["planned_as_it_was_bps"]
        assert first["jobs"]["job0"]["iteration_after_ms"] > 0

    @rest()
    def test_a_page_says_when_routes_changed(self, tmp_path: Path) -> None:
        pages = {}
        for reaction in ("300 us", None):
            path = tmp_path / "page.html"
            options = [] if reaction is None else ["--replan", reaction]
            keys = ["--set", "job.model=alexnet", "--set", "change.at=200 ms", "--set", "change.until=900 ms"]
            done = CliRunner().invoke(main, ["predict", EXAMPLE, *keys, "--report", str(path), *options])
            assert done.exit_code == 0, done.output
            pages[reaction] = path.read_text()
        assert "in force 300 us after links or background traffic change" in pages["300 us"]
        assert "<td>200 ms</td><td>200.3 ms</td>" in pages["300 us"]
        assert "sums of job0 to" in pages["300 us"]
        assert "planned again" not in pages[None]
