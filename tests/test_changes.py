"""Clusters that change: what may be written, what it means for rates and compute times."""

from __future__ import annotations

import doctest
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress import changes
from tensorexpress.changes import Change, ChangeStep, Paces, change_problems, slowed_ps
from tensorexpress.compute import compute_times, taken_times
from tensorexpress.errors import ScenarioError
from tensorexpress.scenario import Scenario, problems, read_scenario
from tensorexpress.topologies import custom, star

MS = 10**9
S = 10**12


def read(*keys: str) -> Scenario:
    return read_scenario(overrides=["iterations=4", *keys])


class TestReading:
    def test_a_link_changes_both_ways_or_one_way(self) -> None:
        (both,) = read("change.link=h1-s0", "change.rate=2.5 Gbps", "change.at=1 s", "change.until=3 s").changes
        assert both == Change(S, 3 * S, links=(2, 3), rate_bps=2_500_000_000)
        (back,) = read("change.link=s0>h1", "change.share=0.25").changes
        assert back == Change(links=(3,), share=0.25)

    def test_a_link_may_be_named_from_either_end_and_names_may_hold_dashes(self) -> None:
        cluster = custom(["gpu-0", "gpu-1"], ["tor-a"], [("gpu-0", "tor-a"), ("gpu-1", "tor-a")])
        assert changes.links_of("tor-a-gpu-1", cluster) == changes.links_of("gpu-1-tor-a", cluster) == (2, 3)
        assert changes.links_of("tor-a>gpu-0", cluster) == (1,)

    def test_cables_side_by_side_change_together(self) -> None:
        cables = [("h0", "s0"), ("s0", "s1"), ("s1", "s0"), ("h1", "s1")]
        cluster = custom(["h0", "h1"], ["s0", "s1"], cables)
        assert changes.links_of("s0-s1", cluster) == (2, 3, 4, 5)
        assert changes.links_of("s0>s1", cluster) == (2, 5)

    def test_a_worker_changes_at_a_time_or_with_an_iteration(self) -> None:
        timed, counted = read(
            "change.0.worker=h1", "change.0.factor=2", "change.0.at=1 ms",
            "change.1.worker=h1", "change.1.factor=1.5", "change.1.at_iteration=2", "change.1.until_iteration=4",
        ).changes  # fmt: skip
        assert timed == Change(MS, worker=1, factor=2.0)
        assert counted == Change(at_iteration=2, until_iteration=4, worker=1, factor=1.5)

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            (["link=h0-s9", "rate=1 Gbps"], "link: unknown link 'h0-s9'; accepted: A-B, or A>B for one direction"),
            (["link=h0", "rate=1 Gbps"], "link: unknown link 'h0'; accepted: A-B"),
            (["link=h0-s0", "rate=0"], "rate: found 0; accepted: a rate"),
            (["link=h0-s0", "share=0"], "share: found 0; accepted: a number from 0.01 to 1"),
            (["link=h0-s0", "share=0.5", "rate=1 Gbps"], "rate: found rate and share; accepted: one of the two"),
            (["link=h0-s0"], "rate: found neither rate nor share; accepted: one of the two"),
            (["link=h0-s0", "share=0.5", "factor=2"], "factor: found 2 without worker; accepted: only with a worker"),
            (["link=h0-s0", "share=0.5", "at_iteration=1"], "at_iteration: found 1 without worker; accepted: only"),
            (["worker=h1", "link=h0-s0", "share=0.5", "factor=2"], "link: found link and worker; accepted: one of"),
            (["at=1 s"], "link: found neither link nor worker; accepted: one of the two"),
            (["worker=h1"], "factor: is missing; accepted: how many times slower"),
            (["worker=h1", "factor=0"], "factor: found 0; accepted: a number from 0.01"),
            (["worker=h9", "factor=2"], "worker: host 'h9' is no worker of any job; accepted: a worker's host"),
            (["worker=x", "factor=2"], "worker: unknown host 'x'; Accepted: h0"),
            (["worker=h1", "factor=2", "share=0.5"], "share: found 0.5 without link; accepted: only with a link"),
            (["worker=h1", "factor=2", "at=2 s", "until=1 s"], "until: found 1 s; accepted: later than at, 2 s"),
            (["worker=h1", "factor=2", "at=1 s", "at_iteration=1"], "at_iteration: found beside a time; accepted:"),
            (["worker=h1", "factor=2", "at_iteration=5"], "at_iteration: found 5; accepted: 0 to 4"),
            (["worker=h1", "factor=2", "at_iteration=2", "until_iteration=2"], "until_iteration: found 2; accepted: a"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_is_refused_with_its_key(self, keys: Sequence[str], message: str) -> None:
        with pytest.raises(ScenarioError) as refusal:
            read(*(f"change.{key}" for key in keys))
        assert f"change.{message}" in str(refusal.value)
        assert "\n" not in str(refusal.value)

    @pytest.mark.parametrize(
        ("one", "other", "overlap"),
        [
            (Change(0, 5, links=(0, 1), share=0.5), Change(5, 9, links=(1,), share=0.5), False),
            (Change(0, 6, links=(0, 1), share=0.5), Change(5, 9, links=(1,), share=0.5), True),
            (Change(0, 6, links=(0,), share=0.5), Change(5, 9, links=(1,), share=0.5), False),
            (Change(0, None, links=(0,), share=0.5), Change(10**9, links=(0,), share=0.5), True),
            (Change(0, 9, worker=0, factor=2.0), Change(5, 9, worker=0, factor=2.0), True),
            (Change(0, 9, worker=0, factor=2.0), Change(at_iteration=0, worker=0, factor=2.0), False),
            (Change(at_iteration=0, worker=0, factor=2.0), Change(at_iteration=1, worker=0, factor=2.0), True),
        ],
    )
    def test_two_of_one_thing_come_one_after_the_other(self, one: Change, other: Change, overlap: bool) -> None:
        for pair in ((one, other), (other, one)):
            found = list(change_problems(pair, star(2), [0, 1], rounds=3))
            assert bool(found) is overlap
            assert all("overlaps change." in problem and "one after the other" in problem for _, problem in found)

    def test_links_and_workers_that_a_plan_file_could_name_are_looked_at(self) -> None:
        usual = read()
        for change, key in (
            (Change(links=(99,), share=0.5), "link"),
            (Change(links=(-1,), share=0.5), "link"),
            (Change(links=(0, 0), share=0.5), "link"),
            (Change(worker=99, factor=2.0), "worker"),
            (Change(worker=-1, factor=2.0), "worker"),
            (Change(worker=0, factor=float("nan")), "factor"),
            (Change(at_ps=-1, worker=0, factor=2.0), "at"),
        ):
            paths = [path for path, _ in problems(Scenario("x", usual.cluster, usual.jobs, changes=(change,)))]
            assert f"change.0.{key}" in paths


class TestRates:
    def test_a_change_that_begins_when_another_ends_takes_over(self) -> None:
        found = changes.rate_steps(
            [Change(9, 12, links=(0,), rate_bps=7), Change(5, 9, links=(0,), share=0.5)], [100, 200]
        )
        assert found == [ChangeStep(5, 0, 50), ChangeStep(9, 0, 7), ChangeStep(12, 0, 100)]

    def test_a_share_is_of_every_direction_and_stacks_reach_less(self) -> None:
        cluster = "cluster.receive_rate=5 Gbps"
        own = read(cluster, "change.link=h1-s0", "change.share=0.5")
        assert own.rate_steps() == [ChangeStep(0, 2, 5 * 10**9), ChangeStep(0, 3, 25 * 10**8)]
        reached = read("transport.rate_share=0.8", "change.link=h1-s0", "change.share=0.5")
        assert reached.rate_steps() == [ChangeStep(0, 2, 4 * 10**9), ChangeStep(0, 3, 4 * 10**9)]

    def test_slowest_and_fastest_know_whether_the_usual_rate_ever_holds(self) -> None:
        slow_from = read("change.link=h0>s0", "change.share=0.5", "change.at=1 s")
        assert (slow_from.slowest().rate_bps[0], slow_from.fastest().rate_bps[0]) == (5 * 10**9, 10**10)
        always = read("change.link=h0>s0", "change.share=0.5")
        assert (always.slowest().rate_bps[0], always.fastest().rate_bps[0]) == (5 * 10**9, 5 * 10**9)
        assert always.directed().rate_bps[0] == 10**10

    def test_a_faster_link_is_known_to_whoever_asks_for_the_fastest(self) -> None:
        assert read("change.link=h0>s0", "change.rate=40 Gbps").greatest_rate_bps == 40 * 10**9


class TestPaces:
    def test_a_layer_takes_as_long_as_when_it_starts(self) -> None:
        paces = Paces([Change(10, 20, worker=3, factor=2.5)])
        assert [paces.taken_ps(3, 4, start) for start in (9, 10, 19, 20)] == [4, 10, 10, 4]
        assert paces.taken_ps(2, 4, 15) == 4

    @given(st.integers(0, 10**16), st.integers(10_000, 10**9))
    def test_nothing_is_lost_in_two_steps(self, drawn_ps: int, pace: int) -> None:
        assert slowed_ps(drawn_ps, pace) == drawn_ps * pace // 10**6
        if slowed_ps(drawn_ps, pace) < 2**63:
            assert changes.slowed_all_ps(np.array([drawn_ps]), np.int64(pace)).tolist() == [drawn_ps * pace // 10**6]

    def test_an_iteration_is_slow_from_its_first_layer_to_its_last(self) -> None:
        slow_keys = ("change.worker=h1", "change.factor=2", "change.at_iteration=1", "change.until_iteration=3")
        usual, slow = read("job.workers=2"), read("job.workers=2", *slow_keys)
        [(forward, backward)] = compute_times(usual, usual.rounds)
        [(slow_forward, slow_backward)] = compute_times(slow, slow.rounds)
        times = slow_forward[:, 1] / forward[:, 1], slow_backward[:, 1] / backward[:, 1]
        assert (times[0][:, -1] == [1, 2, 2, 1, 1, 1]).all()
        assert (times[0][:, :-1] == np.array([1, 1, 2, 2, 1, 1])[:, None]).all()
        assert (times[1][:5] == np.array([1, 2, 2, 1, 1])[:, None]).all()
        assert (slow_forward[:, 0] == forward[:, 0]).all()

    def test_what_layers_took_follows_from_when_they_started(self) -> None:
        scenario = read("job.workers=2", "change.worker=h1", "change.factor=2", "change.at=1 s", "change.until=2 s")
        forward, backward = compute_times(scenario, scenario.rounds)[0]
        starts = np.zeros_like(forward)
        starts[2, :, 3] = S
        taken, taken_backward = taken_times(scenario, 0, starts, np.full_like(backward[:-1], 2 * S))
        expected = forward.copy()
        expected[2, 1, 3] *= 2
        assert np.array_equal(taken, expected)
        assert np.array_equal(taken_backward, backward[:-1])

    @given(st.integers(0, 10**15), st.integers(0, 10))
    def test_the_fastest_pace_counts_the_usual_one_only_where_it_holds(self, drawn_ps: int, start_ps: int) -> None:
        for change, fastest in (
            (Change(0, worker=0, factor=2.7), 2_700_000),
            (Change(1, worker=0, factor=2.7), 10**6),
            (Change(3, 5, worker=0, factor=0.3), 300_000),
        ):
            paces, starts = Paces([change]), np.full((1, 1, 1), start_ps)
            taken = paces.all_taken_ps([0], np.full((1, 1, 1), drawn_ps), starts)
            (least,) = paces.at_fastest_ps([0], taken, starts).ravel().tolist()
            # Rounded down twice.
            assert slowed_ps(drawn_ps, fastest) - 4 <= least <= slowed_ps(drawn_ps, fastest)


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(changes).failed == 0
