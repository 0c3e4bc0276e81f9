from __future__ import annotations

import doctest
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.cli.explain import explain as command
from tensorexpress.errors import PolicyError
from tensorexpress.policy import POLICIES, Policy
from tensorexpress.results.explanation import JobExplanation, Step, summary
from tensorexpress.results.explanation_plot import plot_explanation
from tensorexpress.scenario import read_scenario
from tensorexpress.sim import explain as module
from tensorexpress.sim.explain import CHOICES, choices_of, explain, simulations
from tensorexpress.sim.predict import predict

LAYERS = (
    "layer_index,numel,forward_ns,backward_ns\n0,20000,200000,400000\n1,100000,300000,600000\n2,100000,300000,600000\n"
)


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Overrides of a scenario of a few hundred packets, in which communication and compute are of the same size."""
    path = tmp_path / "layers.csv"
    path.write_text(LAYERS)
    return ["job.model=", f"job.csv={path}", "job.workers=2", "job.servers=1", "cluster.bandwidth=5 Gbps"]


def test_the_steps_and_what_is_left_add_up_to_the_possible_gain_exactly(small):
    for policy in (POLICIES["tensorexpress"], POLICIES["bytescheduler"]):
        (job,) = explain(read_scenario(overrides=small), policy).jobs
        assert sum(step.gain_ps for step in job.steps) + job.left_ps == job.possible_ps
        assert job.possible_ps > 0


def test_the_first_and_the_last_step_are_fifo_and_the_policy(small):
    scenario, policy = read_scenario(overrides=small), POLICIES["tensorexpress"]
    (job,) = explain(scenario, policy).jobs
    prediction = predict(scenario, [POLICIES["fifo"], policy])
    for step, name in ((job.steps[0], "fifo"), (job.steps[-1], "tensorexpress")):
        metrics = prediction.results[name].jobs[0]
        assert (step.iteration_ps, step.blocking_ps) == (metrics.iteration_ps, metrics.blocking_ps)
        assert step.first_ps == metrics.latency.first_ps
        assert job.speedup(step.iteration_ps) == prediction.speedup(name)


def test_alone_and_last_are_gains_of_the_policies_they_stand_for(small):
    scenario, policy = read_scenario(overrides=small), POLICIES["p3"]
    (job,) = explain(scenario, policy).jobs
    sliced, ordered = Policy("sliced", slice_bytes=policy.slice_bytes), Policy("ordered", host_order="priority")
    results = predict(scenario, [POLICIES["fifo"], sliced, ordered, policy]).results
    fifo, only_sliced, only_ordered, both = (result.jobs[0].iteration_ps for result in results.values())
    slicing, order = job.steps[1:]
    assert (slicing.gain_ps, slicing.alone_ps) == (fifo - only_sliced,) * 2
    assert slicing.last_ps == only_ordered - both
    assert order.alone_ps == fifo - only_ordered
    assert (order.gain_ps, order.last_ps) == (only_sliced - both,) * 2


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        ("tictac", ["fifo", "host order"]),
        ("p3", ["fifo", "slicing", "host order"]),
        ("bytescheduler", ["fifo", "slicing", "host order", "credit"]),
        ("tensorexpress", ["fifo", "slicing", "host order", "switch order"]),
    ],
)
def test_there_is_a_step_for_each_choice_in_which_a_policy_differs_from_fifo(small, policy, steps):
    (job,) = explain(read_scenario(overrides=small), POLICIES[policy]).jobs
    assert [step.name for step in job.steps] == steps


def test_a_slack_rank_is_switched_on_together_with_the_discipline_that_it_needs(small):
    policy = replace(POLICIES["tensorexpress"], name="slack", discipline="pifo", queue_map="slack")
    (job,) = explain(read_scenario(overrides=small), policy).jobs
    assert job.steps[-1].name == "switch order"


def test_every_choice_of_a_policy_belongs_to_one_step():
    fields = [field for choice in CHOICES.values() for field in choice]
    assert sorted([*fields, "name"]) == sorted(Policy.__dataclass_fields__)


def test_an_explanation_takes_few_simulations():
    assert {name: simulations(policy) for name, policy in POLICIES.items() if choices_of(policy)} == {
        "random": 2,
        "tictac": 2,
        "switch-only": 2,
        "switchml": 2,
        "libra": 2,
        "atp": 2,
        "p3": 4,
        "inart": 4,
        "bytescheduler": 8,
        "tensorexpress": 8,
        "ideal": 8,
        "tensorexpress+sum": 8,
    }


def test_sums_in_the_switch_are_the_last_step(small):
    job = explain(read_scenario(overrides=small), POLICIES["tensorexpress+sum"]).jobs[0]
    assert [step.name for step in job.steps] == ["fifo", "host order", "switch order", "sums in the switch"]
    assert sum(step.gain_ps for step in job.steps) + job.left_ps == pytest.approx(job.possible_ps)


def test_fifo_cannot_be_explained_by_itself(small):
    with pytest.raises(PolicyError, match="same choices as fifo"):
        explain(read_scenario(overrides=small), POLICIES["fifo"])


def test_a_compute_bound_job_has_nothing_to_gain(small):
    scenario = read_scenario(overrides=[*small, "cluster.bandwidth=1 Tbps"])
    (job,) = explain(scenario, POLICIES["tensorexpress"]).jobs
    assert summary(job).startswith("There is nothing to gain: the job is compute-bound.")


def test_a_network_bound_job_has_nothing_to_gain():
    steps = (Step("fifo", 1010e9, 900e9, 900e9), Step("slicing", 1001e9, 891e9, 891e9, gain_ps=9e9))
    job = JobExplanation("job0", steps, compute_ps=110e9, optimal_ps=1000e9)
    assert summary(job).startswith("There is nothing to gain: the job is network-bound.")


def test_a_loss_is_called_a_loss(small):
    (job,) = explain(read_scenario(overrides=small), POLICIES["p3"]).jobs
    fifo, slicing, order = job.steps
    worse = replace(
        job, steps=(fifo, replace(slicing, gain_ps=-2e9), replace(order, iteration_ps=2 * fifo.iteration_ps))
    )
    assert "slicing costs 2.00 ms" in summary(worse)
    assert "gains nothing over fifo" in summary(worse)


def test_the_table_shows_the_numbers_of_the_json(small):
    arguments = [option for override in small for option in ("--set", override)]
    table = CliRunner().invoke(command, arguments, catch_exceptions=False).output
    document = json.loads(CliRunner().invoke(command, [*arguments, "--json", "-"], catch_exceptions=False).output)
    (job,) = document["jobs"].values()
    assert [step["name"] for step in job["steps"]] == ["fifo", "slicing", "host order", "switch order"]
    for step in job["steps"][1:]:
        line = next(line for line in table.splitlines() if line.startswith(f"+ {step['name']} "))
        cells = re.split(r"\s{2,}", line)
        assert cells[1] == f"{step['iteration_ms']:.2f}"
        assert cells[5] == f"{step['gain_ms']:+.2f}"
        assert cells[6] == f"{step['share']:.1%}"
    assert " ".join(table.split()).count(job["summary"]) == 1


def test_several_jobs_are_explained_one_by_one(small, tmp_path):
    scenario = read_scenario(
        overrides=[*small, "job.1.model=", f"job.1.csv={tmp_path / 'layers.csv'}", "job.1.workers=1"]
    )
    explanation = explain(scenario, POLICIES["p3"])
    assert [job.job for job in explanation.jobs] == ["job0", "job1"]
    plot_explanation(explanation, tmp_path / "jobs.svg")
    assert "job1" in (tmp_path / "jobs.svg").read_text()


def test_the_waterfall_is_drawn_even_when_nothing_is_gained(small, tmp_path):
    explanation = explain(read_scenario(overrides=[*small, "cluster.bandwidth=1 Tbps"]), POLICIES["p3"])
    plot_explanation(explanation, tmp_path / "explain.png")
    assert (tmp_path / "explain.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "fifo"], "same choices as fifo"),
        (["--policy", "p3,ideal"], "names 2 policies"),
        (["--policy", "p4"], "unknown policy 'p4'"),
        (["--plot", "explain.bmp"], "'.bmp'"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    result = CliRunner().invoke(command, arguments)
    assert getattr(result.exception, "exit_code", None) == 2
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_the_examples_of_the_module_hold():
    assert doctest.testmod(module).failed == 0


@rest(but=3)
@pytest.mark.parametrize(
    "odd",
    [
        [],
        ["cluster.bandwidth=100 Gbps"],
        ["cluster.bandwidth=100 Mbps"],
        ["loss=0.02", "seed=3"],
        ["job.colocated=true", "compute.jitter=0.1", "iterations=4"],
        ["job.workers=1"],
        ["cluster.buffer=30 KB"],
    ],
    ids=lambda odd: " ".join(odd) or "usual",
)
def test_sentences_say_what_is_saved_and_no_share_is_above_a_whole(small, odd):
    overrides = [word for key in [*small, *odd] for word in ("--set", key)]
    for verb in (
        ["predict"],
        ["predict", "--policy", "tensorexpress,fifo"],
        ["predict", "--policy", "p3"],
        ["explain"],
    ):
        result = CliRunner().invoke(main, [*verb, *overrides])
        assert result.exit_code == 0, result.output
        assert "adds" not in result.stdout
        assert [share for share in re.findall(r"([\d.]+) ?%", result.stdout) if float(share) > 100] == []
