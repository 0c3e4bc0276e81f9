"""Jobs planned together: max-min fair by other means, within every capacity, and so when packets carry it out."""

from __future__ import annotations

import doctest
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.random import Generator, default_rng
from support.placements import TreePrograms, all_trees, random_fabric
from support.thorough import rest
from test_placed import three_leaves

from tensorexpress import placement_rounding
from tensorexpress.cli import main
from tensorexpress.errors import PlanError
from tensorexpress.fabric import Fabric, Floats, fabric_of
from tensorexpress.placement import place, place_together
from tensorexpress.placement_programs import Parties, optimum
from tensorexpress.placement_rounding import is_fairer, taken_by
from tensorexpress.plan import make_plan, placements_for
from tensorexpress.policy import parse_policy
from tensorexpress.scenario import Job, Scenario
from tensorexpress.sim.run import simulate
from tensorexpress.sums import SUM_FRAMING, VALUES
from tensorexpress.topologies import leaf_spine
from tensorexpress.trace import iterations_ps
from tensorexpress.workload import Layer, Workload

EXAMPLE = Path(__file__).parent.parent / "examples" / "inart-jobs.toml"

Hosts = tuple[tuple[int, ...], tuple[int, ...]]


def two_jobs(rng: Generator) -> tuple[Fabric, list[Parties]]:
    """Return a small random fabric with two jobs of one server each, on hosts that they may share."""
    fabric, parties = random_fabric(rng)
    hosts = rng.permutation(fabric.hosts).tolist()
    workers = int(rng.integers(1, len(hosts)))
    first = Parties("first", parties.workers, parties.servers[:1], parties.detour)
    return fabric, [first, Parties("second", tuple(hosts[:workers]), (hosts[-1],), parties.detour)]


def fairest_pair(taken: tuple[Floats, Floats], limits: Floats) -> list[float]:
    """Return what two jobs reach by what they take: as much as both can have, and what is left to one of them."""

    def most(own: Floats, left: Floats) -> float:
        return float((left[own > 0] / own[own > 0]).min())

    level = most(taken[0] + taken[1], limits)
    return [level, max(most(taken[job], limits - level * taken[1 - job]) for job in (0, 1))]


class TestTinyFabrics:
    def test_the_optimum_is_that_of_another_program(self) -> None:
        for seed in range(40):
            fabric, jobs = two_jobs(default_rng(seed))
            found = [each.rate_bps for each in optimum(fabric, jobs, "trees", [None, None])]
            others = TreePrograms(fabric, jobs)
            level = others.best_of_all()
            assert min(found) == pytest.approx(level, rel=1e-5), seed
            assert max(found) == pytest.approx(max(others.best_of(job, level) for job in (0, 1)), rel=1e-5), seed

    def test_no_pair_of_trees_is_fairer_than_the_optimum_and_none_drawn_fairer_than_the_fairest(self) -> None:
        reached = []
        for seed in range(40):
            fabric, jobs = two_jobs(default_rng(seed))
            bound = [each.rate_bps for each in optimum(fabric, jobs, "trees", [None, None])]
            best = [0.0, 0.0]
            for pair in product(*(all_trees(fabric, parties, 0) for parties in jobs)):
                rates = fairest_pair((pair[0].loads, pair[1].loads), fabric.limits_bps)
                best = rates if is_fairer(rates, best, 1e-9) else best
            drawn = [each.rate_bps for each in place_together(fabric, jobs, "inart", "trees", seed=seed)]
            assert not is_fairer(best, bound, 1e-6), seed
            assert not is_fairer(drawn, best, 1e-6), seed
            reached.append(min(drawn) / best[0])
        assert np.mean(reached) > 0.999

    @rest(but=1)
    @pytest.mark.parametrize("way", ["none", "once", "trees"])
    def test_no_capacity_is_exceeded_and_each_job_has_one_that_is_used_up(self, way: str) -> None:
        for seed in range(12):
            fabric, jobs = two_jobs(default_rng(seed))
            placed = place_together(fabric, jobs, "inart", way, seed=seed, draws=8)
            carried = sum(each.rate_bps * taken_by(each.choices, each.shares) for each in placed)
            assert (carried <= fabric.limits_bps * (1 + 1e-6)).all()
            for each in placed:
                assert each.usage * fabric.limits_bps == pytest.approx(carried)
                assert each.usage[fabric.place_of[each.bottleneck]] == pytest.approx(1.0)
                assert each.rate_bps <= each.alone_bps * (1 + 1e-9)


class TestRates:
    def test_one_job_is_placed_as_alone(self) -> None:
        fabric, (parties, _) = two_jobs(default_rng(3))
        (together,), alone = place_together(fabric, [parties]), place(fabric, parties)
        assert together.rate_bps == alone.rate_bps == alone.alone_bps
        assert together.choices[0].way == alone.choices[0].way
        assert alone.pays == 0

    def test_equal_jobs_have_equal_rates_and_pay_the_same(self) -> None:
        # Two workers and a server each; two uplinks of 5 Gbps lead to the leaf of all servers.
        cluster = leaf_spine(3, 2, 3, oversubscription=3)
        fabric = fabric_of(cluster, cluster.directed(), Counter(), 473, 0)
        jobs = [Parties(f"j{number}", (number, 3 + number), (6 + number,)) for number in range(3)]
        for each in place_together(fabric, jobs[:2]):
            assert each.rate_bps == pytest.approx(5e9)
            assert each.pays == pytest.approx(0)
        three = place_together(fabric, jobs)
        assert [each.bound_bps for each in three] == pytest.approx([10e9 / 3] * 3)
        # Trees are whole, so two of three share uplinks, and the third need not suffer for it.
        assert sorted(each.pays for each in three) == pytest.approx([0, 0.5, 0.5])

    def test_what_a_job_cannot_use_is_left_to_the_other(self) -> None:
        placed = placements_for(shared_scenario(three_leaves(6), FIRST, SECOND, 400, 400), parse_policy("inart"))
        assert [each.rate_bps for each in placed] == pytest.approx([2e9, 4e9], rel=1e-6)

    def test_a_job_that_cannot_be_placed_is_named(self) -> None:
        fabric, (first, second) = two_jobs(default_rng(3))
        with pytest.raises(PlanError, match="second: has no servers"):
            place_together(fabric, [first, Parties("second", second.workers, ())])


#: Workers and servers of two jobs under the same leaves.
FIRST: Hosts = ((0, 1, 3), (6,))
SECOND: Hosts = ((2, 4, 5), (7, 8))


def model_of(packets: int) -> Workload:
    """Return a model that takes no time but to send."""
    return Workload("at once", tuple(Layer(f"l{i}", packets // 4 * VALUES, 0, 0) for i in range(4)))


def shared_scenario(cluster: object, first: Hosts, second: Hosts, *packets: int) -> Scenario:
    jobs = tuple(
        Job(name, model_of(size), *hosts, shard_bytes=10_000)
        for name, size, hosts in zip(("first", "second"), packets, (first, second), strict=True)
    )
    return Scenario("shared", cluster, jobs, iterations=1, warmup=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("second", [SECOND, ((2, 4, 5), (6, 8)), ((0, 4, 5), (7,))])
@pytest.mark.parametrize("seed", [0, 3, 6])
def test_packets_reach_the_planned_rates(seed: int, second: Hosts) -> None:
    """With models as large as planned rates, jobs that reach them end at the same time."""
    policy, cluster = parse_policy("inart"), three_leaves(seed)
    placed = placements_for(shared_scenario(cluster, FIRST, second, 400, 400), policy)
    most = max(each.rate_bps for each in placed)
    sizes = [4 * round(600 * each.rate_bps / most) for each in placed]
    trace = simulate(make_plan(shared_scenario(cluster, FIRST, second, *sizes), policy), "fast")
    for size, each, job in zip(sizes, placed, trace.jobs, strict=True):
        reached_bps = 8 * size * SUM_FRAMING.full_packet_bytes * 10**12 / float(iterations_ps(job)[-1])
        assert reached_bps == pytest.approx(each.rate_bps, rel=0.03)


def test_plan_place_and_predict_say_what_jobs_pay() -> None:
    said = {
        verb: CliRunner().invoke(main, [verb, str(EXAMPLE), *more]).output
        for verb, more in (("place", []), ("plan", ["--policy", "inart"]), ("predict", ["--policy", "inart"]))
    }
    assert "vision    8 Gbps  6 Gbps   25%     link s0-s4" in said["place"]
    assert "alone on the network it would send 8 Gbps: sharing costs it 25%" in said["plan"]
    assert "vision sends 6 Gbps and alone would send 8 Gbps, so pays 25%; language sends 2 Gbps" in said["predict"]


def test_examples_in_documentation() -> None:
    assert doctest.testmod(placement_rounding).failed == 0
