"""Closed forms of clusters that change, on both engines, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensorexpress.bound import make_demand, run_bound_ps
from tensorexpress.plan import make_plan
from tensorexpress.plan_file import plan_from_json, plan_to_json
from tensorexpress.policy import POLICIES, Policy
from tensorexpress.results.advice import notes
from tensorexpress.results.changed import contrast, disturbances
from tensorexpress.results.side_by_side import SideBySide
from tensorexpress.scaling import scale_scenario
from tensorexpress.scenario import Background, Change, Job, Scenario, Transport, read_scenario
from tensorexpress.sim.flat_plan import build
from tensorexpress.sim.predict import predict
from tensorexpress.sim.record import OTHER
from tensorexpress.sim.run import execute, simulate
from tensorexpress.topologies import custom, star
from tensorexpress.trace import Trace, iterations_ps
from tensorexpress.workload import Layer, Workload

US = 10**6

#: Nothing but packets of 1000 bytes, each of which occupies a link of 8 Gbps for 1 us.
BARE = Transport(window_bytes=0, acks=False, header_bytes=0)
IN_ORDER = Policy("in order")
ENGINES = pytest.mark.parametrize("engine", ["simpy", "fast"])


def one_worker(packets: int, *changes: Change, compute_us: int = 2, iterations: int = 4) -> Scenario:
    """A worker with one layer of so many packets, and a server at the other end of a cable."""
    cable = custom(["h0", "h1"], [], [("h0", "h1", "8 Gbps", 0)], mtu=1000, buffer=0)
    layer = Layer("l0", 250 * packets, compute_us * US, compute_us * US)
    job = Job("job", Workload("one", (layer,)), (0,), (1,), shard_bytes=10**9)
    return Scenario("changing", cable, (job,), BARE, iterations=iterations, warmup=0, changes=changes)


def run(scenario: Scenario, engine: str, policy: Policy = IN_ORDER) -> Trace:
    return simulate(make_plan(scenario, policy), engine)


def lengths_us(trace: Trace) -> list[float]:
    return (iterations_ps(trace.jobs[0]) / US).tolist()


@ENGINES
class TestLinks:
    """An iteration computes for 4 us, pushes 100 packets and pulls them: 204 us. Its packets start 4 us after it."""

    def test_half_the_rate_for_a_third_of_the_time_takes_a_fifth_longer(self, engine: str) -> None:
        # 200 us of packets become 240 us, a third of which are 80 us.
        slow = Change(248 * US, 328 * US, links=(0, 1), share=0.5)
        assert lengths_us(run(one_worker(100, slow), engine)) == [204, 244, 204, 204]

    def test_a_quarter_of_the_rate_to_the_end_of_the_run(self, engine: str) -> None:
        slow = Change(408 * US, links=(0, 1), rate_bps=2 * 10**9)
        assert lengths_us(run(one_worker(100, slow), engine)) == [204, 204, 804, 804]

    def test_one_direction_leaves_the_other_as_it_is(self, engine: str) -> None:
        for link in (0, 1):
            slow = Change(links=(link,), share=0.5)
            assert lengths_us(run(one_worker(100, slow), engine)) == [304] * 4

    def test_a_link_may_get_faster(self, engine: str) -> None:
        fast = Change(204 * US, 300 * US, links=(0,), rate_bps=16 * 10**9)
        assert lengths_us(run(one_worker(100, fast), engine)) == [204, 154, 204, 204]

    def test_a_packet_under_way_ends_at_the_rate_at_which_it_started(self, engine: str) -> None:
        half_a_us = US // 2
        slow = Change(10 * US + half_a_us, 16 * US + half_a_us, links=(0,), share=0.5)
        program = build(make_plan(one_worker(20, slow, iterations=1), IN_ORDER))
        packets = execute(program, engine, record_packets=True).packets
        starts = (packets["time_ps"][packets["link"] == 0] / US).tolist()
        # The one of 10 us ends at 11 us, and that of 15 us, which began while the link was slow, at 17 us.
        assert starts[:12] == [4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 18]

    def test_a_change_counts_for_packets_that_start_in_its_first_instant_and_not_in_its_last(self, engine: str) -> None:
        slow = Change(10 * US, 12 * US, links=(0,), share=0.5)
        program = build(make_plan(one_worker(20, slow, iterations=1), IN_ORDER))
        packets = execute(program, engine, record_packets=True).packets
        assert (packets["time_ps"][packets["link"] == 0] / US).tolist()[5:9] == [9, 10, 12, 13]

    def test_one_after_the_other(self, engine: str) -> None:
        slow = (
            Change(100 * US, 120 * US, links=(0, 1), share=0.5),
            Change(120 * US, 160 * US, links=(0, 1), share=0.25),
        )
        # In 60 us go 10 + 10 packets where 60 would have gone.
        assert lengths_us(run(one_worker(100, *slow), engine)) == [244, 204, 204, 204]


@ENGINES
class TestWorkers:
    def test_a_straggler_in_some_iterations(self, engine: str) -> None:
        # A packet each way is 2 us on top of 200 us of computing.
        slow = Change(at_iteration=2, until_iteration=5, worker=0, factor=3.0)
        trace = run(one_worker(1, slow, compute_us=100, iterations=8), engine)
        assert lengths_us(trace) == [202, 202, 602, 602, 602, 202, 202, 202]
        # 3 of 8: a mean of C (1 + 3/8 (3 - 1)), and what the network takes.
        assert iterations_ps(trace.jobs[0]).mean() / US == 200 * (1 + 3 / 8 * 2) + 2

    def test_a_straggler_that_comes_at_a_time_and_goes(self, engine: str) -> None:
        # Iterations start every 202 us: from the middle of the second on, until the start of the third.
        slow = Change(302 * US, 404 * US, worker=0, factor=1.5)
        trace = run(one_worker(1, slow, compute_us=100), engine)
        # Its backward layer starts at 302 us and takes 150 us, also behind 404 us.
        assert lengths_us(trace) == [202, 252, 202, 202]
        assert trace.jobs[0].backward_ps[1].tolist() == [[150 * US]]
        assert (trace.jobs[0].blocking_ps == 2 * US).all()

    def test_all_wait_for_one(self, engine: str) -> None:
        def scenario(*changes: Change) -> Scenario:
            job = Job("job", Workload("one", (Layer("l0", 250, 50 * US, 50 * US),)), (0, 1, 2), (3,))
            cluster = star(4, "8 Gbps", 0, mtu=1000, buffer=0)
            return Scenario("three", cluster, (job,), BARE, iterations=6, warmup=0, changes=changes)

        slow = Change(at_iteration=1, until_iteration=3, worker=1, factor=2.0)
        usual, changed = (np.array(lengths_us(run(each, engine))) for each in (scenario(), scenario(slow)))
        # The pushes of three workers no longer meet where one of them is late: up to 2 us less.
        assert np.abs(changed - usual - [0, 100, 100, 0, 0, 0]).max() <= 2
        trace = run(scenario(slow), engine).jobs[0]
        assert (trace.blocking_ps[1:3, [0, 2]] >= 100 * US).all()

    def test_changes_come_on_top_of_stragglers(self, engine: str) -> None:
        slow = Change(at_iteration=1, until_iteration=2, worker=0, factor=3.0)
        scenario = replace(one_worker(1, slow, compute_us=100), stragglers=((0, 2.0),))
        assert lengths_us(run(scenario, engine)) == [402, 1202, 402, 402]


@ENGINES
def test_a_burst_sends_between_its_times_and_at_no_other(engine: str) -> None:
    cluster = star(4, "8 Gbps", 0, mtu=1000, buffer=0)
    job = Job("job", Workload("one", (Layer("l0", 250, 50 * US, 50 * US),)), (0,), (1,))
    # 1000 bytes on the wire each 10 us.
    burst = Background(2, 3, 8 * 10**8, 1000, "constant", at_ps=35 * US, until_ps=95 * US)
    scenario = Scenario("burst", cluster, (job,), BARE, (burst,), iterations=2, warmup=0)
    packets = execute(build(make_plan(scenario, IN_ORDER)), engine, record_packets=True).packets
    sent = packets[(packets["kind"] == OTHER) & (packets["link"] == 4)]
    assert (sent["time_ps"] / US).tolist() == [45, 55, 65, 75, 85]
    nothing = replace(burst, until_ps=45 * US)
    packets = execute(
        build(make_plan(replace(scenario, background=(nothing,)), IN_ORDER)), engine, record_packets=True
    ).packets
    assert not (packets["kind"] == OTHER).any()


@pytest.mark.parametrize("share", [0.5, 0.25, 0.1])
def test_the_bound_knows_how_long_a_link_is_slow(share: float) -> None:
    """Of 20 iterations, all but the first push over a slow link: 4 us of compute, 100 / share us, and 100 us back."""
    plan = make_plan(one_worker(100, Change(204 * US, links=(0,), share=share), iterations=20), IN_ORDER)
    trace, demand = simulate(plan, "fast").jobs[0], make_demand(plan, 0)
    took_ps, bound_ps = iterations_ps(trace).mean(), run_bound_ps(demand, trace, warmup=0)
    assert took_ps == pytest.approx((104 + (100 + 19 * 100 / share) / 20) * US)
    # From 4 us to 204 us, 200 of the 2000 packets can pass; of the others one may end at the rate before.
    pushes_us = 204 + 1799 / share
    # By single iterations alone it would be the 204 us of a fast one.
    assert 20 * bound_ps / US == pytest.approx(max(20 * 204, pushes_us))


@pytest.mark.parametrize("grain", [1, 4, 16])
def test_trains_meet_changes_as_packets_do_but_for_a_train(grain: int) -> None:
    from tensorexpress.sim.run import simulate_coarsely

    slow = Change(248 * US, 328 * US, links=(0, 1), share=0.5)
    _, trace = simulate_coarsely(make_plan(one_worker(100, slow), IN_ORDER), grain, "fast")
    # A train that is under way when a change comes ends as it began.
    assert np.abs(np.array(lengths_us(trace)) - [204, 244, 204, 204]).max() <= 2 * (grain - 1)


def test_changes_scale_with_everything_else() -> None:
    slow = Change(248 * US, 328 * US, links=(0, 1), rate_bps=4 * 10**9)
    late = Change(250 * US, 500 * US, worker=0, factor=2.0)
    scenario = one_worker(100, slow, late)
    usual, scaled = run(scenario, "fast"), run(scale_scenario(scenario, 50), "fast")
    assert (50 * iterations_ps(usual.jobs[0]) == iterations_ps(scaled.jobs[0])).all()


def test_a_plan_file_holds_them() -> None:
    changes = (
        Change(links=(0, 1), share=0.5, until_ps=5),
        Change(9, worker=0, factor=2.0),
        Change(at_iteration=1, worker=0, factor=0.5),
    )
    plan = make_plan(one_worker(3, *changes), IN_ORDER)
    assert plan_from_json(plan_to_json(plan)) == plan


def test_plans_are_those_of_the_cluster_outside_of_changes() -> None:
    usual, changed = (
        make_plan(one_worker(3, *changes), IN_ORDER) for changes in ((), (Change(links=(0,), share=0.1),))
    )
    assert replace(changed, scenario=usual.scenario) == usual


@pytest.fixture(scope="module")
def compared() -> SideBySide:
    overrides = [
        "job.model=alexnet", "job.workers=2", "job.servers=2", "iterations=6",
        "change.0.link=h0-s0", "change.0.share=0.25", "change.0.at=2 s", "change.0.until=2.5 s",
        "change.1.worker=h1", "change.1.factor=2", "change.1.at_iteration=5", "change.1.until_iteration=6",
        "change.2.worker=h0", "change.2.factor=2", "change.2.at=100 s",
    ]  # fmt: skip
    return predict(read_scenario(overrides=overrides), ["fifo", "tensorexpress"])


class TestWhatIsSaid:
    def test_which_iterations_met_a_change_and_what_they_took(self, compared: SideBySide) -> None:
        (said,) = [note for note in notes(compared) if note.startswith("The cluster changes (")]
        assert "h0-s0 at 0.25 of its rate from 2 s until 2.5 s; h1 2 times slower from iteration 5 until 6" in said
        for name, result in compared.results.items():
            met = contrast(list(disturbances(compared.scenario)), result.trace.jobs[0], warmup=1)
            assert met.met_ps is not None
            assert met.others_ps is not None
            assert met.met_ps > met.others_ps
            assert (
                f"{name} {met.met_ps / 10**9:.2f} ms in {met.met}, {met.others_ps / 10**9:.2f} ms in the others" in said
            )

    def test_that_a_change_came_too_late(self, compared: SideBySide) -> None:
        (late,) = [note for note in notes(compared) if note.startswith("No iteration meets this change")]
        assert "h0 2 times slower from 100 s; measure more, or let it come earlier." in late

    def test_that_the_optimum_is_of_the_fastest(self, compared: SideBySide) -> None:
        said = "The optimum takes workers, and links in a single iteration, at their fastest"
        assert any(note.startswith(said) for note in notes(compared))
        usual = predict(replace(compared.scenario, changes=()), ["fifo"])
        assert not any("fastest" in note or "changes" in note for note in notes(usual))

    def test_that_iterations_differ_is_no_reason_to_measure_more(self, compared: SideBySide) -> None:
        assert not any("have not settled" in note for note in notes(compared))


def test_policies_meet_a_change_of_an_iteration_alike() -> None:
    slow = ["change.worker=h1", "change.factor=2", "change.at_iteration=1"]
    scenario = read_scenario(overrides=["job.model=alexnet", "job.workers=2", "job.servers=1", *slow])
    one, other = (simulate(make_plan(scenario, POLICIES[name])).jobs[0] for name in ("fifo", "tensorexpress"))
    assert np.array_equal(one.forward_ps, other.forward_ps)
    assert np.array_equal(one.backward_ps, other.backward_ps)
