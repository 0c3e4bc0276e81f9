"""Placements: the optimum is one, what is carried out is near it and fits, and what cannot be is said in one line."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.random import default_rng
from support.placements import all_places, all_trees, best_by_places, best_by_trees, best_whole, random_fabric
from support.thorough import examples, one_in, rest

from tensorexpress.errors import PlanError
from tensorexpress.fabric import LINK, SUM_RATE, Fabric, Resource, fabric_of
from tensorexpress.placement import Placement, closed_form, place, relax, what_more_brings
from tensorexpress.placement_programs import Parties
from tensorexpress.placement_rounding import SumPlaces, UpTree
from tensorexpress.topologies import custom, fat_tree, leaf_spine, star

GBPS = 1e9


def fabric_on(cluster, sum_rate_bps: int = 0) -> Fabric:
    return fabric_of(cluster, cluster.directed(), Counter(), 473, sum_rate_bps)


def toy(sum_rate_bps: int) -> tuple[Fabric, Parties]:
    """Three workers and two servers at one switch, all links 10 Gbps."""
    return fabric_on(star(5), sum_rate_bps), Parties("toy", (0, 1, 2), (3, 4))


class TestToy:
    """Optima found by hand."""

    def test_without_sums_servers_links_are_the_limit(self) -> None:
        fabric, parties = toy(0)
        placed = place(fabric, parties, "inart", "none")
        assert placed.rate_bps == pytest.approx(20 / 3 * GBPS)
        assert placed.bottleneck.kind == LINK

    def test_with_sums_workers_links_are(self) -> None:
        fabric, parties = toy(0)
        assert place(fabric, parties, "inart", "trees").rate_bps == pytest.approx(10 * GBPS)

    def test_trees_are_as_slow_as_their_switch(self) -> None:
        fabric, parties = toy(12 * 10**9)
        placed = place(fabric, parties, "inart", "trees")
        # Three workers bring 12 Gbps together.
        assert placed.rate_bps == pytest.approx(4 * GBPS)
        assert fabric.name_of(placed.bottleneck) == "summing rate of s0"

    def test_a_switch_that_sums_some_and_servers_the_rest(self) -> None:
        fabric, parties = toy(12 * 10**9)
        placed = place(fabric, parties, "inart", "once")
        # Split: 4 Gbps of every worker are summed, and the servers' links have 16 left for three. Whole: two workers of
        # one server are summed, at 5 Gbps, and all else goes directly.
        assert placed.bound_bps == pytest.approx((4 + 16 / 3) * GBPS)
        assert placed.rate_bps == pytest.approx(25 / 3 * GBPS)

    def test_a_slow_servers_link_gets_a_small_share(self) -> None:
        cluster = custom(
            ["a", "b", "c", "d"], ["s"], [["a", "s"], ["b", "s"], ["c", "s", "6 Gbps"], ["d", "s", "3 Gbps"]]
        )
        placed = place(fabric_on(cluster), Parties("two", (0, 1), (2, 3)), "inart", "trees")
        assert placed.is_closed_form
        assert placed.shares == pytest.approx((2 / 3, 1 / 3))
        assert placed.rate_bps == pytest.approx(9 * GBPS)
        equal = place(fabric_on(cluster), Parties("two", (0, 1), (2, 3)), "equal", "trees")
        assert equal.rate_bps == pytest.approx(6 * GBPS)
        assert equal.bound_bps == pytest.approx(9 * GBPS)

    def test_shares_follow_the_links_between_switches_where_these_are_the_limit(self) -> None:
        # Workers at one switch, a server behind each of two others: 2 and 6 Gbps lead there.
        links = [["a", "s"], ["b", "s"], ["c", "t"], ["d", "u"], ["s", "t", "2 Gbps"], ["s", "u", "6 Gbps"]]
        placed = place(fabric_on(custom(list("abcd"), list("stu"), links)), Parties("far", (0, 1), (2, 3)))
        assert not placed.is_closed_form
        assert placed.shares == pytest.approx((1 / 4, 3 / 4))
        assert placed.rate_bps == pytest.approx(8 * GBPS)

    def test_trees_part_where_one_link_would_carry_both(self) -> None:
        # One uplink of 5 Gbps to each of two spines: a tree over each, together as fast as the workers.
        fabric = fabric_on(leaf_spine(2, 2, 2, oversubscription=2))
        placed = place(fabric, Parties("spread", (0, 1), (2, 3)))
        assert placed.rate_bps == pytest.approx(10 * GBPS)
        spines = {fabric.target(arc) for choice in placed.choices for arc in choice.way.up.values()} - {4, 5}
        assert len(spines) == 2


@cache
def placed_at_random(seed: int, name: str, way: str) -> Placement:
    """Return a placement on a random fabric; several tests look at the same ones."""
    return place(*random_fabric(default_rng(seed)), name, way, seed=seed)


class TestRandomFabrics:
    """Two hundred small ones."""

    @rest(but=1)
    @one_in(5)
    @pytest.mark.parametrize("block", range(10))
    def test_the_optimum_is_that_of_another_program_and_method(self, block: int) -> None:
        for seed in range(20 * block, 20 * block + 20):
            fabric, parties = random_fabric(default_rng(seed))
            for way, other in (
                ("none", best_by_places(fabric, parties, sums=False)),
                ("once", best_by_places(fabric, parties, sums=True)),
                ("trees", best_by_trees(fabric, parties)),
            ):
                assert relax(fabric, parties, way).rate_bps == pytest.approx(other, rel=1e-5), (seed, way)

    @rest(but=1)
    @one_in(5)
    @pytest.mark.parametrize("block", range(10))
    def test_no_whole_placement_beats_the_optimum_and_no_draw_the_best_of_all(self, block: int) -> None:
        for seed in range(20 * block, 20 * block + 20):
            fabric, parties = random_fabric(default_rng(seed))
            servers = range(len(parties.servers))
            for way, choices in (
                ("none", [all_places(fabric, parties, server, sums=False) for server in servers]),
                ("once", [all_places(fabric, parties, server, sums=True) for server in servers]),
                ("trees", [all_trees(fabric, parties, server) for server in servers]),
            ):
                placed = placed_at_random(seed, "inart", way)
                best = best_whole(fabric, choices, most=300)
                assert placed.rate_bps <= placed.bound_bps * (1 + 1e-6), (seed, way)
                if best is not None:
                    assert placed.rate_bps <= best * (1 + 1e-6) <= placed.bound_bps * (1 + 1e-5), (seed, way)

    @rest(but=3)
    @pytest.mark.parametrize("way", ["none", "once", "trees"])
    @pytest.mark.parametrize("name", ["equal", "inart"])
    def test_every_capacity_is_kept_and_one_used_up(self, name: str, way: str) -> None:
        for seed in range(examples(60, part=6)):
            placed = placed_at_random(seed, name, way)
            assert placed.usage.max() == pytest.approx(1.0)
            assert sum(placed.shares) == pytest.approx(1.0)

    def test_ways_lead_from_workers_to_servers(self) -> None:
        for seed in range(examples(60)):
            fabric, parties = random_fabric(default_rng(seed))
            for way in ("once", "trees"):
                for server, choice in enumerate(placed_at_random(seed, "inart", way).choices):
                    root = fabric.switch_of(parties.servers[server])
                    for worker in parties.workers:
                        assert end_of_way(fabric, choice.way, worker) == root

    def test_shares_planned_are_no_worse_than_equal_ones(self) -> None:
        for seed in range(examples(60)):
            fabric, parties = random_fabric(default_rng(seed))
            relaxed = relax(fabric, parties, "trees")
            equal = relax(fabric, parties, "trees", [1 / len(parties.servers)] * len(parties.servers))
            assert relaxed.rate_bps >= equal.rate_bps * (1 - 1e-9)

    def test_prices_tell_what_a_little_more_brings(self) -> None:
        for seed in range(examples(40)):
            fabric, parties = random_fabric(default_rng(seed))
            relaxed = relax(fabric, parties, "trees")
            # Of a linear program: what all resources cost together is what it gains.
            assert float(relaxed.prices @ fabric.limits_bps) == pytest.approx(relaxed.rate_bps)


def end_of_way(fabric: Fabric, chosen: UpTree | SumPlaces, worker: int) -> int:
    """Follow the arcs from a worker's switch."""
    node = fabric.switch_of(worker)
    if isinstance(chosen, UpTree):
        arcs = chosen.way(fabric, node)
    else:
        arcs = chosen.to_place[worker] + chosen.onward.get(chosen.place[worker], ())
    for arc in arcs:
        assert fabric.source(arc) == node
        node = fabric.target(arc)
    return node


class TestImpossible:
    """One line that names what cannot be."""

    def test_no_way_between_two_switches(self) -> None:
        fabric, parties = toy(0)
        apart = replace(
            fabric, nodes=(*fabric.nodes, "s1"), links=(*fabric.links[:4], (4, 6)), sum_bps=(math.inf,) * 2,
            slots_bps=(math.inf,) * 2,
        )  # fmt: skip
        with pytest.raises(PlanError, match=r"no way over switches that can sum .* from worker h0 to server h4"):
            place(apart, parties)

    def test_a_link_with_nothing_left(self) -> None:
        fabric, parties = toy(0)
        with pytest.raises(PlanError, match="toy: background traffic leaves nothing of link h1-s0"):
            place(replace(fabric, rate_bps=(1.0, 0.0, 1.0, 1.0, 1.0)), parties)

    @pytest.mark.parametrize(("sum_bps", "slots_bps", "why"), [(0.0, 1.0, "summing rate is 0"), (1.0, 0.0, "no slot")])
    def test_a_switch_that_cannot_sum(self, sum_bps: float, slots_bps: float, why: str) -> None:
        fabric, parties = toy(0)
        cannot = replace(fabric, sum_bps=(sum_bps,), slots_bps=(slots_bps,))
        with pytest.raises(PlanError, match=f"switch s0 of host h0 cannot sum: its? .*{why}|it has no slot"):
            place(cannot, parties, "inart", "trees")
        # Where servers can do without it, they do.
        assert place(cannot, parties, "inart", "once").rate_bps == place(cannot, parties, "inart", "none").rate_bps

    def test_a_switch_between_that_cannot_sum_is_gone_around(self) -> None:
        fabric = fabric_on(leaf_spine(2, 2, 2))
        broken = replace(fabric, sum_bps=(math.inf, math.inf, 0.0, math.inf))
        (choice,) = place(broken, Parties("one", (0, 1), (2,))).choices
        assert [broken.nodes[broken.target(arc)] for arc in choice.way.way(broken, 4)] == ["s3", "s1"]

    def test_no_servers(self) -> None:
        with pytest.raises(PlanError, match="has no servers; accepted for a placement: one or more"):
            place(toy(0)[0], Parties("none", (0, 1), ()))

    def test_unknown_names(self) -> None:
        for names in (("innart", "trees"), ("inart", "treees")):
            with pytest.raises(PlanError, match="did you mean"):
                place(*toy(0), *names)


class TestMore:
    """What more would bring."""

    def placed(self, sum_rate_bps: int) -> Placement:
        return place(*toy(sum_rate_bps), "inart", "trees")

    def test_a_faster_switch_where_it_is_the_limit(self) -> None:
        more = {better.what: better.bound_bps for better in what_more_brings([self.placed(12 * 10**9)])}
        assert more["summing rate of s0"] == more["all switches' summing rate"] == pytest.approx(4.4 * GBPS)
        assert more["all links of workers"] == pytest.approx(4 * GBPS)

    def test_one_more_server_where_their_links_are(self) -> None:
        fabric = fabric_on(star(6))
        placed = place(fabric, Parties("job", (0, 1, 2), (3, 4)), "inart", "none")
        more = {better.what: better.bound_bps for better in what_more_brings([placed], spare=[5])}
        assert more["a server on h5"] == pytest.approx(10 * GBPS)
        assert more["all links of servers"] == pytest.approx(22 / 3 * GBPS)


class TestScale:
    def test_the_size_of_a_program_does_not_depend_on_workers(self) -> None:
        few, many = (place(fabric_on(leaf_spine(4, 2, hosts)), Parties("j", tuple(range(hosts * 3)), (hosts * 3,)))
                     for hosts in (2, 16))  # fmt: skip
        assert few.rate_bps == pytest.approx(many.rate_bps)

    def test_a_fat_tree_with_54_hosts_and_45_switches(self) -> None:
        placed = place(fabric_on(fat_tree(6)), Parties("j", tuple(range(50)), (50, 51, 52, 53)))
        assert placed.of_optimum == pytest.approx(1.0)


def test_same_seed_same_placement() -> None:
    fabric, parties = random_fabric(default_rng(5))
    first, second = (place(fabric, parties, "inart", "once", seed=3) for _ in range(2))
    assert first.choices[0].way == second.choices[0].way
    assert np.array_equal(first.usage, second.usage)


def test_the_closed_form_is_the_optimum_where_links_of_servers_decide() -> None:
    fabric, parties = toy(0)
    rate_bps, shares = closed_form(fabric, parties, "none")
    assert rate_bps == pytest.approx(relax(fabric, parties, "none").rate_bps)
    assert relax(fabric, parties, "none", shares).rate_bps == pytest.approx(rate_bps)
    assert fabric.place_of[Resource(LINK, 0)] == 0
    assert Resource(SUM_RATE, 0) not in fabric.place_of
