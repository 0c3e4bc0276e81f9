"""Tuning: what comes out is no worse than any named policy, and is what was asked for, found again and usable."""

from __future__ import annotations

import csv
import doctest
import io
import json
import random
import tomllib
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import rest

from tensorexpress.cli.tune import tune as command
from tensorexpress.errors import InputError
from tensorexpress.knobs import Candidate, Space, candidate_of, usual_knobs
from tensorexpress.plan import make_plan
from tensorexpress.plan_file import read_plan
from tensorexpress.policy import CHOICE_NAMES, POLICIES, parse_policy, policy_text, with_choices, written_choices
from tensorexpress.results import tuned_report
from tensorexpress.results.tuned import Tuned
from tensorexpress.scenario import read_scenario, scenario_from
from tensorexpress.sim.predict import predict
from tensorexpress.sim.tasks import Outcome, SimulationTask, outcome_of
from tensorexpress.sim.tune import question_of, tune

LAYERS = (
    "layer_index,numel,forward_ns,backward_ns\n"
    "0,20000,200000,400000\n1,150000,300000,600000\n2,60000,300000,600000\n3,200000,100000,200000\n"
)


class Here:
    """Executes tasks in this process, in an order of its own; `most` of them, then somebody presses Ctrl-C."""

    def __init__(self, order: int = 0, most: int | None = None):
        self._order, self._left = random.Random(order), most
        self.tasks: list[SimulationTask] = []

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def outcomes(self, tasks: Sequence[SimulationTask]) -> Iterator[tuple[SimulationTask, Outcome]]:
        for task in self._order.sample(tasks, len(tasks)):
            if self._left is not None:
                if self._left == 0:
                    raise KeyboardInterrupt
                self._left -= 1
            self.tasks.append(task)
            yield task, outcome_of(task)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of a scenario of a few hundred packets in which order matters."""
    path = tmp_path_factory.mktemp("workload") / "layers.csv"
    path.write_text(LAYERS)
    return ["job.model=", f"job.csv={path}", "job.workers=3", "job.servers=2", "cluster.bandwidth=4 Gbps"]


@pytest.fixture(scope="module")
def tuned(small: list[str]) -> Tuned:
    return tune(question_of(None, small, fixed={"sum": "none"}), target=0.0, budget=45, executor=Here())


@given(st.sampled_from(sorted(POLICIES)), st.data())
def test_the_text_of_a_policy_says_all_of_its_choices(name, data):
    choices = written_choices(POLICIES[name])
    for choice in data.draw(st.lists(st.sampled_from(["slice", "credit"]), unique=True)):
        choices[choice] = data.draw(
            st.sampled_from(["8 KB", "250 KB", "1 MB", written_choices(POLICIES["fifo"])[choice]])
        )
    if choices["sum"] != "none":
        choices["credit"] = "none"
    text = policy_text(choices)
    assert parse_policy(text) == with_choices(POLICIES["fifo"], choices, text)


def test_docstrings_are_true():
    for module in (tuned_report,):
        assert doctest.testmod(module).failed == 0


@rest()
def test_what_comes_out_is_no_worse_than_any_named_policy_as_predict_sees_it(small, tuned):
    best = tuned.best
    scenario = scenario_from({}, "default", [*small, *best.candidate.overrides])
    own = predict(scenario, [best.candidate.policy], grain=1).results[best.candidate.policy.name].jobs[0].iteration_ps
    possible = [name for name, policy in POLICIES.items() if not policy.in_switches and policy.deployment is not None]
    named = predict(read_scenario(None, small), possible, grain=1)
    assert own == best.iteration_ps
    assert best.iteration_ps <= min(result.jobs[0].iteration_ps for result in named.results.values())
    assert tuned.best_named.iteration_ps == min(result.jobs[0].iteration_ps for result in named.results.values())
    assert tuned.bound_ps <= best.iteration_ps


def test_what_is_quick_at_packet_level_is_not_simulated_coarsely(tuned):
    assert {trial.grain for trial in tuned.trials} == {1}


def test_only_packet_level_decides_and_coarse_simulations_say_what_goes_there(small, monkeypatch):
    monkeypatch.setattr("tensorexpress.sim.tune._GRAINS", {16: 0.0, 4: 0.0})
    halved = tune(question_of(None, small, fixed={"sum": "none"}), target=0.0, budget=45, executor=Here())
    rungs = [[trial for trial in halved.trials if trial.stage == f"1.{rung}"] for rung in (1, 2, 3)]
    assert [{trial.grain for trial in rung} for rung in rungs] == [{16}, {4}, {1}]
    assert len(rungs[0]) > len(rungs[1]) > len(rungs[2])
    assert halved.best.grain == 1
    # The first of a rung is what others are measured by; of those after it the best go on, with what equals them.
    tried = {trial.candidate: trial.iteration_ps for trial in rungs[0][1:]}
    kept = [tried[trial.candidate] for trial in rungs[1][1:] if trial.candidate in tried]
    assert sorted(kept) == sorted(tried.values())[: len(kept)]


def test_the_order_of_finishing_does_not_show(small, tuned):
    again = tune(question_of(None, small, fixed={"sum": "none"}), target=0.0, budget=45, executor=Here(order=7))
    assert again == tuned


def test_no_more_is_simulated_than_the_budget_says(small, tuned):
    assert len(tuned.trials) <= 45
    here = Here()
    few = tune(question_of(None, small), target=0.0, budget=5, executor=here)
    assert len(here.tasks) == len(few.trials) == 5
    assert few.stopped == "budget"


def test_nothing_further_is_tried_where_a_named_policy_is_near_enough(small):
    plenty = tune(question_of(None, [*small, "cluster.bandwidth=100 Gbps"]), target=0.05, executor=Here())
    assert {trial.stage for trial in plenty.trials} == {"named"}
    assert plenty.stopped == "target"
    assert plenty.best.iteration_ps <= 1.05 * plenty.bound_ps


def test_of_few_candidates_the_best_is_found(small):
    vary = {"slice": ["16 KB", "64 KB", "whole"], "host": ["fifo", "priority"], "switch": ["fifo", "strict"]}
    fixed = {"sum": "none", "credit": "none", "queues": "optimal", "placement": "none", "cluster.queues": None}
    found = tune(question_of(None, small, vary, {**fixed, "job.bucket": None}), target=0.0, executor=Here())
    scenario = read_scenario(None, small)
    texts = [f"fifo:slice={s},host={h},switch={w}" for s, h, w in product(*vary.values())]
    every = predict(scenario, texts, grain=1)
    assert found.best.iteration_ps == min(result.jobs[0].iteration_ps for result in every.results.values())


def test_what_is_fixed_or_varied_holds_for_all_that_may_come_out(small):
    question = question_of(None, small, {"slice": ["16 KB", "64 KB"]}, {"switch": "fifo", "cluster.queues": "2"})
    found = tune(question, target=0.0, budget=30, executor=Here())
    eligible = [trial.candidate.policy for trial in found.trials if trial.eligible]
    assert eligible
    assert {policy.slice_bytes for policy in eligible} <= {16_000, 64_000}
    assert {policy.discipline for policy in eligible} == {"fifo"}
    assert found.scenario.cluster.queues == 2
    assert not any("cluster.queues" in dict(trial.candidate.keys) for trial in found.trials)


def test_by_itself_it_asks_for_no_more_hardware_than_there_is():
    scenario = read_scenario(None, ["cluster.queues=4", "job.workers=2"])
    hardware = {knob.name: knob.values for knob in usual_knobs(scenario) if knob.name.startswith("cluster.")}
    assert hardware == {"cluster.queues": ("1", "2")}


def test_more_hardware_that_was_asked_for_is_named(small):
    space = Space(question_of(None, small, {"cluster.queues": ["16"]}).knobs)
    candidate = space.within(candidate_of(POLICIES["tensorexpress"]))
    assert candidate.hardware == {"cluster.queues": "16"}
    plan = make_plan(read_scenario(None, [*small, *candidate.overrides]), candidate.policy)
    queues, network = tuned_report.needs(candidate, plan)
    assert queues.endswith("at every port of switches; 16 are there")
    assert network == "another network than the scenario's: cluster.queues=16"
    summing = candidate_of(POLICIES["switchml"])
    (sums,) = tuned_report.needs(summing, make_plan(read_scenario(None, small), summing.policy))
    assert sums.startswith("switches that sum gradients, in up to ")


@settings(max_examples=20)
@given(st.sampled_from(sorted(POLICIES)), st.integers(0, 2**31))
def test_drawn_candidates_and_neighbours_are_policies_that_go_together(name, seed):
    space = Space(usual_knobs(read_scenario(None, ["job.workers=2", "job.servers=1"])))
    start, draw = candidate_of(POLICIES[name]), random.Random(seed)
    for candidate in filter(None, [space.drawn(start, 3, draw), *space.neighbours(start)]):
        assert set(dict(candidate.choices)) == set(CHOICE_NAMES)
        assert parse_policy(candidate.policy.name) == candidate.policy


def test_ctrl_c_keeps_what_was_found(small):
    stopped = tune(question_of(None, small), target=0.0, executor=Here(most=4))
    assert stopped.stopped == "interrupted"
    assert len(stopped.trials) == 4
    assert stopped.best in stopped.trials


def test_a_fragment_makes_the_scenario_the_one_that_was_found(small, tuned):
    turned = Candidate(tuned.best.candidate.choices, (("cluster.queues", "4"), ("job.bucket", "1 MB")))
    text = tuned_report.fragment(turned, several_jobs=False)
    keys = tomllib.loads(text)
    assert parse_policy(keys.pop("policies")[0]) == turned.policy
    overrides = [f"{section}.{key}={value}" for section, own in keys.items() for key, value in own.items()]
    assert read_scenario(None, [*small, *overrides]) == read_scenario(None, [*small, *turned.overrides])


def test_the_command_writes_a_plan_that_other_verbs_take_and_all_that_was_tried(small, tmp_path):
    paths = {name: tmp_path / name for name in ("plan.json", "tuned.toml", "trials.json", "trials.csv")}
    arguments = [word for override in small for word in ("--set", override)]
    arguments += ["--fix", "sum=none", "--budget=24", "--within=0", "--processes=2", "-o", str(paths["plan.json"])]
    arguments += ["--fragment", str(paths["tuned.toml"]), "--json", str(paths["trials.json"])]
    result = CliRunner().invoke(command, [*arguments, "--csv", str(paths["trials.csv"])], catch_exceptions=False)
    assert result.exit_code == 0
    document = json.loads(paths["trials.json"].read_text())
    plan = read_plan(paths["plan.json"])
    best = document["best"]
    assert plan.policy == parse_policy(best["policy"])
    overrides = [f"{key}={value}" for key, value in best["keys"].items()]
    assert plan == make_plan(read_scenario(None, [*small, *overrides]), plan.policy)
    rows = list(csv.DictReader(io.StringIO(paths["trials.csv"].read_text())))
    assert len(rows) == len(document["rows"]) == 24
    packets = [float(row["iteration_ms"]) for row in rows if row["engine"] == "packet" and row["candidate"] != "ideal"]
    assert min(packets) == best["iteration_ms"]
    assert tomllib.loads(paths["tuned.toml"].read_text())["policies"] == [best["policy"]]
    assert f"- Best: {plan.policy.name}" in result.stdout
    assert sorted(tmp_path.iterdir()) == sorted(paths.values())


def test_a_candidate_that_cannot_be_simulated_is_noted_and_not_chosen(small):
    class Failing(Here):
        def outcomes(self, tasks):
            for task, outcome in super().outcomes(tasks):
                yield task, InputError("no room") if task.policy.name == "tensorexpress" else outcome

    found = tune(question_of(None, small, fixed={"sum": "none"}), budget=14, target=0.0, executor=Failing())
    failed = [trial for trial in found.trials if trial.problem]
    assert [trial.candidate.label for trial in failed] == ["tensorexpress"]
    assert found.best not in failed
    plan = make_plan(found.scenario, found.best.candidate.policy)
    assert "failed" in tuned_report.as_table(found, plan)


def test_jobs_that_share_a_network_count_by_their_ratios(tmp_path):
    path = Path(__file__).parents[1] / "examples" / "two-jobs.toml"
    (tmp_path / "layers.csv").write_text(LAYERS)
    overrides = ["job.model=", f"job.csv={tmp_path / 'layers.csv'}"]
    found = tune(question_of(path, overrides, fixed={"sum": "none"}), budget=8, target=0.0, executor=Here())
    first, second = (result.metrics.iteration_ps for result in found.best.results)
    assert found.best.iteration_ps == pytest.approx((first * second) ** 0.5)
    plan = make_plan(found.scenario, found.best.candidate.policy)
    assert any(line.startswith("By job: vision ") for line in tuned_report.summary(found, plan))
