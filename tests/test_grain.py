"""Grain: packets that are moved as one take as long as packets, near enough, and auto chooses how many."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from support.thorough import one_in, rest

from tensorexpress import memory
from tensorexpress.errors import InputError
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES, Policy, parse_policy
from tensorexpress.results.advice import notes
from tensorexpress.results.page.contents import Case, Contents
from tensorexpress.results.page.document import page
from tensorexpress.results.report import as_json, as_table
from tensorexpress.scenario import Job, Scenario, Transport, read_scenario
from tensorexpress.scenario_keys import USUAL_POLICIES
from tensorexpress.sim.cost import counts_of, expected_cost
from tensorexpress.sim.grain import choose_grain, coarse_error, coarsened, compared_grain, usual_seconds
from tensorexpress.sim.predict import grain_of, predict
from tensorexpress.sim.run import simulate, simulate_coarsely
from tensorexpress.topologies import custom, star
from tensorexpress.trace import iterations_ps, measure_job
from tensorexpress.workload import Layer, Workload

US = 10**6
USUAL = [POLICIES[name] for name in USUAL_POLICIES]

#: Scenarios that run at packet level in a moment, of very different kinds, and the grains that suit their size.
COMPARED = [
    ("job.workers=4 job.servers=2", (2, 4, 8)),
    ("job.workers=4 job.servers=2 cluster.mtu=1500 cluster.bandwidth=8Gbps", (16,)),
    ("job.workers=4 job.servers=4 cluster.bandwidth=3Gbps compute.jitter=0.05 iterations=4", (2, 4)),
    ("job.workers=4 job.architecture=ring cluster.bandwidth=5Gbps", (2, 8)),
    ("job.workers=6 job.servers=2 cluster.topology=leaf-spine cluster.leaves=2 cluster.spines=2"
     " cluster.hosts_per_leaf=4 cluster.oversubscription=2", (2,)),
]  # fmt: skip


def bare(cluster, layers: tuple[Layer, ...]) -> Scenario:
    """One worker and one server, no acknowledgements and no headers: nothing but trains on links."""
    transport = Transport(window_bytes=0, acks=False, header_bytes=0)
    return Scenario("bare", cluster, (Job("job", Workload("w", layers), (0,), (1,)),), transport)


def iteration_ps(plan, grain: int) -> float:
    coarse, trace = simulate_coarsely(plan, grain)
    return measure_job(trace.jobs[0], coarse.scenario.warmup).iteration_ps


@rest(but=1)
@one_in(4)
@pytest.mark.parametrize("policy", USUAL_POLICIES)
@pytest.mark.parametrize(("overrides", "grains"), COMPARED)
def test_an_iteration_takes_as_long_as_at_packet_level_within_two_percent(overrides, grains, policy):
    plan = make_plan(read_scenario(None, overrides.split()), POLICIES[policy])
    exact = iteration_ps(plan, 1)
    assert {grain: iteration_ps(plan, grain) / exact for grain in grains} == {
        grain: pytest.approx(1, abs=0.02) for grain in grains
    }


@pytest.mark.parametrize("grain", [2, 5, 16])
@pytest.mark.parametrize("second_bps", ["1 Gbps", "8 Gbps", "10 Gbps"])
def test_a_train_alone_arrives_with_its_last_packet(grain, second_bps):
    # 80 packets of 1000 bytes over two links: whichever is slower, packets follow each other without a gap.
    links = [("h0", "s", "8 Gbps", 5 * US), ("s", "h1", second_bps, 3 * US)]
    cluster = custom(["h0", "h1"], ["s"], links, mtu=1000, buffer=0)
    plan = make_plan(bare(cluster, (Layer("one", 20_000, US, US),)), Policy("whole"))
    exact, coarse = simulate(plan), simulate_coarsely(plan, grain)[1]
    assert coarse.transmissions < exact.transmissions
    assert iterations_ps(coarse.jobs[0]).tolist() == iterations_ps(exact.jobs[0]).tolist()


def test_a_train_of_one_packet_is_packet_level():
    plan = make_plan(read_scenario(None, ["job.workers=2", "job.servers=1"]), POLICIES["tensorexpress"])
    assert coarsened(plan, 1) is plan
    assert simulate_coarsely(plan, 1) == (plan, simulate(plan))


@rest()
@pytest.mark.parametrize("policy", USUAL_POLICIES)
def test_links_carry_what_they_carry_at_packet_level_headers_and_acknowledgements_included(policy):
    plan = make_plan(read_scenario(None, ["job.workers=4", "job.servers=2", "cluster.mtu=1500"]), POLICIES[policy])
    exact, (_, coarse) = simulate(plan), simulate_coarsely(plan, 32)
    # Where switches reorder a flow, packets that come early are acknowledged one by one; trains are not.
    tolerance = 0.005 if plan.policy.keeps_flows_in_order else 0.01
    for one, other in zip(exact.links["bytes"].tolist(), coarse.links["bytes"].tolist(), strict=True):
        assert other == pytest.approx(one, rel=tolerance)


def test_slices_grow_to_a_train_and_tensors_stay_what_they_are():
    scenario = read_scenario(None, ["job.workers=4", "job.architecture=ring"])
    plan = make_plan(scenario, POLICIES["tensorexpress"])
    coarse = coarsened(plan, 8)
    assert len(coarse.jobs[0].slices) < len(plan.jobs[0].slices)
    # A slice of a ring of four goes in four parts, each of which is a train.
    largest = max(piece.bytes for piece in coarse.jobs[0].slices)
    assert largest // 4 <= 8 * scenario.framing.payload_bytes < 2 * largest // 4
    assert coarse.policy == plan.policy
    assert sum(piece.bytes for piece in coarse.jobs[0].slices) == sum(piece.bytes for piece in plan.jobs[0].slices)
    assert coarse.jobs[0].queues == plan.jobs[0].queues
    whole = make_plan(scenario, POLICIES["fifo"])
    assert coarsened(whole, 8) is whole


def test_a_window_smaller_than_a_train_does_not_make_flows_wait():
    cluster = star(2, "1 Gbps", "1 us", mtu=1500, buffer=0)
    job = Job("job", Workload("w", (Layer("one", 10**6, US, US),)), (0,), (1,))
    plan = make_plan(Scenario("narrow", cluster, (job,), Transport(window_bytes=20_000)), POLICIES["fifo"])
    assert iteration_ps(plan, 64) == pytest.approx(iteration_ps(plan, 1), rel=0.02)


class TestAuto:
    def test_what_is_quick_is_simulated_packet_by_packet(self):
        assert choose_grain(read_scenario(), USUAL) == 1

    @pytest.mark.parametrize("overrides", ["job.servers=32", "job.architecture=ring", "job.architecture=tree"])
    def test_a_large_job_takes_the_least_grain_that_answers_soon(self, overrides):
        scenario = read_scenario(None, ["job.model=gpt2-xl", "job.workers=64", overrides])
        grain = choose_grain(scenario, USUAL)
        assert grain > 1
        assert usual_seconds(scenario, USUAL, grain) < 30 < usual_seconds(scenario, USUAL, grain // 2) * 1.5
        assert usual_seconds(scenario, USUAL, 1) > 100

    def test_what_only_packets_can_tell_is_simulated_packet_by_packet(self):
        large = read_scenario(None, ["job.model=gpt2-xl", "job.workers=64", "job.servers=32"])
        assert choose_grain(replace(large, loss=0.001), USUAL) == 1
        assert choose_grain(replace(large, transport=replace(large.transport, ecn_bytes=30_000)), USUAL) == 1

    def test_a_prediction_is_exact_unless_it_would_take_long(self):
        scenario = read_scenario(None, ["job.workers=1", "job.servers=1"])
        assert predict(scenario, ["fifo"]) == predict(scenario, ["fifo"], grain=1)


def test_a_coarse_prediction_says_so_and_what_it_cost():
    scenario = read_scenario(None, ["job.workers=2", "job.servers=1"])
    coarse, exact = (predict(scenario, ["fifo", "tensorexpress"], grain=grain) for grain in (4, 1))
    assert (coarse.grain, exact.grain, dict(exact.grain_changes)) == (4, 1, {})
    assert set(coarse.grain_changes) == set(coarse.results) == {"fifo", "tensorexpress"}
    assert all(change < 0.02 for change in coarse.grain_changes.values())
    said = as_json(coarse)["grain"]
    assert said == {
        "packets": 4,
        "changes_when_doubled": dict(coarse.grain_changes),
        "errors": dict(coarse.grain_errors),
    }
    assert coarse.grain_errors["fifo"] == coarse_error(scenario, POLICIES["fifo"], coarse.grain_changes["fifo"]) >= 0.02
    assert [note for note in notes(coarse) if note.startswith("Coarse: 4 packets moved as one")]
    assert not [note for note in notes(exact) if "Coarse" in note]


def test_a_coarse_prediction_claims_no_gain_that_its_error_could_undo():
    scenario = read_scenario(None, ["job.workers=2", "job.servers=1"])
    clear = predict(scenario, ["fifo", "p3", "tensorexpress"], grain=4)
    assert clear.tells_apart("tensorexpress")
    assert any(note.startswith("tensorexpress removes ") for note in notes(clear))
    gain = clear.speedup("tensorexpress")
    # What is off by half the gain both ways can be as fast as the other.
    error = (gain - 1) / (gain + 1)
    for factor, is_clear in ((0.99, True), (1.01, False)):
        compared = replace(clear, grain_errors=dict.fromkeys(clear.results, factor * error))
        assert compared.tells_apart("tensorexpress") is is_clear
    said = notes(compared)
    assert said[0].startswith(
        "This coarse simulation cannot tell p3, tensorexpress from fifo: iteration times may be off"
    )
    assert not [
        note for note in said if " removes " in note or "Order in the switch" in note or " slower " in note[:40]
    ]
    rows = as_json(compared)["policies"]
    assert [rows[name]["speedup"] for name in rows] == [1.0, None, None]
    assert rows["p3"]["jobs"]["job0"]["speedup"] is None
    table = [line.split() for line in as_table(compared).splitlines()]
    shown = {line[0]: "unclear" in line for line in table if line and line[0] in compared.results}
    assert shown == {"fifo": False, "p3": True, "tensorexpress": True}
    assert [row["speedup"] for row in compared.rows()] == [1.0, "", ""]
    html = page(Contents((Case(compared),)))
    assert "cannot tell p3, tensorexpress from fifo" in html
    assert f"{gain:.2f}×" not in html
    assert f"{gain:.2f}×" in page(Contents((Case(clear),)))


def test_the_announced_error_covers_what_a_grain_costs():
    """Some of the cases of `benchmarks/announce.py`, among them the worst of those found there."""
    for overrides, name, grain in (
        ("job.model=alexnet job.workers=2 job.servers=1 cluster.bandwidth=5Gbps", "p3", 64),
        ("job.model=vgg16 job.workers=2 job.servers=1 cluster.bandwidth=5Gbps", "p3", 16),
        ("job.workers=4 job.architecture=ring cluster.bandwidth=5Gbps", "tensorexpress", 16),
        ("job.model=alexnet job.workers=8 job.architecture=tree cluster.bandwidth=25Gbps", "fifo", 16),
        ("job.model=inception-v3 job.workers=4 job.servers=2 cluster.bandwidth=2Gbps", "fifo", 64),
    ):
        scenario, policy = read_scenario(None, overrides.split()), POLICIES[name]
        plan = make_plan(scenario, policy)
        exact, coarse, coarser = (iteration_ps(plan, each) for each in (1, grain, compared_grain(scenario, grain)))
        assert abs(coarse / exact - 1) <= coarse_error(scenario, policy, abs(coarser / coarse - 1)) < 0.2


@pytest.mark.parametrize("grain", [2, 1000, 1856])
def test_every_grain_has_an_error(grain):
    compared = predict(read_scenario(None, ["job.workers=1", "job.servers=1"]), ["fifo"], grain=grain)
    assert set(compared.grain_errors) == {"fifo"}


def test_progress_moves_inside_a_policy_and_never_back():
    shares: list[float] = []
    scenario = read_scenario(None, ["job.workers=8", "job.servers=4", "iterations=4"])
    predict(scenario, ["fifo"], grain=1, advanced=shares.append)
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1


@pytest.mark.parametrize("grain", [0, -3, 10**7])
def test_a_grain_that_is_no_number_of_packets_is_refused(grain):
    with pytest.raises(InputError, match=r"found no number of packets from 1 to \d+"):
        simulate_coarsely(make_plan(read_scenario(), parse_policy("fifo")), grain)


def test_a_word_that_is_no_grain_is_refused():
    with pytest.raises(InputError, match="grain 'coarse': accepted: a number of packets from 1 on, or 'auto'"):
        predict(read_scenario(), ["fifo"], grain="coarse")


@pytest.mark.parametrize(
    ("overrides", "name", "grain"),
    [
        ("job.workers=8 job.servers=4", "fifo", 1),
        ("job.workers=8 job.servers=4", "ideal", 4),
        ("job.workers=8 job.architecture=ring", "tensorexpress", 1),
        ("job.workers=8 job.architecture=fsdp", "p3", 8),
        ("job.workers=4", "switchml", 1),
    ],
)
def test_announced_costs_rest_on_counts_that_are_true(overrides, name, grain):
    scenario, policy = read_scenario(None, overrides.split()), parse_policy(name)
    coarse, trace = simulate_coarsely(make_plan(scenario, policy), grain)
    counts = counts_of(scenario, policy, grain)
    assert counts.transmissions == pytest.approx(trace.transmissions, rel=0.25)
    messages = sum(len(job.graph.src) - int(job.graph.under_way.sum()) for job in coarse.jobs)
    assert counts.messages == pytest.approx(messages, rel=0.01)


@rest()
def test_memory_is_announced_within_half_of_its_peak():
    """In a process of its own, whose peak is that of one simulation: those of two may overlap or follow each other."""
    code = (
        "import json, resource\n"
        "from tensorexpress.scenario import read_scenario\n"
        "from tensorexpress.sim.predict import announced_cost, checked_policies, predict\n"
        "scenario = read_scenario(None, ['job.workers=32', 'job.architecture=ring'])\n"
        "policies = checked_policies(scenario, ['tensorexpress'])\n"
        "cost = announced_cost(scenario, policies, 8)\n"
        "predict(scenario, policies, grain=8)\n"
        "print(json.dumps([cost.bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10]))\n"
    )
    announced, peak = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert peak / 1.5 < announced < 1.5 * peak
    assert peak > 250_000_000, "far more than a process that simulates nothing"


def test_what_does_not_fit_into_memory_is_refused_by_what_was_announced(monkeypatch):
    scenario = read_scenario(None, ["job.workers=32", "job.servers=16"])
    needed = expected_cost(scenario, USUAL).bytes
    assert needed > 5 * expected_cost(read_scenario(), USUAL[:1]).bytes / 2
    monkeypatch.setattr(memory, "installed_bytes", lambda: round(0.9 * needed))
    with pytest.raises(InputError, match=r"needs about .* of memory for 4 simulations; accepted: what fits"):
        grain_of(scenario, USUAL, "auto")
    assert grain_of(scenario, USUAL[:1], "auto") == 1
