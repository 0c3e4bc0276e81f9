"""Results as values: rows for data frames and CSV, equality, and what made them in every file."""

from __future__ import annotations

import csv
import doctest
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.thorough import rest

import tensorexpress
from tensorexpress import trace_file
from tensorexpress.cli import main
from tensorexpress.results import provenance as module
from tensorexpress.results import report
from tensorexpress.results.advice import notes
from tensorexpress.results.columns import COLUMNS
from tensorexpress.results.provenance import digest
from tensorexpress.results.side_by_side import Result, SideBySide, side_by_side
from tensorexpress.scenario import Scenario, read_scenario
from tensorexpress.sim.predict import predict
from tensorexpress.sim.run import simulate
from tensorexpress.trace import JobMetrics, iterations_ps
from tensorexpress.units import PS_PER_MS, format_ms

EXAMPLES = Path(__file__).parent.parent / "examples"

SMALL = ("name=small", "job.model=alexnet", "job.workers=2", "job.servers=1", "iterations=1", "seed=7")


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return read_scenario(None, [*SMALL, "job.1.model=alexnet", "job.1.workers=1", "job.1.servers=1"])


@pytest.fixture(scope="module")
def prediction(scenario: Scenario) -> SideBySide:
    return predict(scenario, ["fifo", "tensorexpress"])


def options(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def test_there_is_a_row_for_every_policy_and_job_with_every_column(prediction):
    rows = prediction.rows()
    assert [(row["policy"], row["job"]) for row in rows] == [
        (policy, job) for policy in ("fifo", "tensorexpress") for job in ("job0", "job1")
    ]
    for row in rows:
        assert set(COLUMNS) < set(row)
        job = ("job0", "job1").index(row["job"])
        assert row["speedup"] == prediction.speedup(row["policy"], job)
        assert row["iteration_ms"] == prediction.results[row["policy"]].jobs[job].iteration_ps / 1e9
        assert (row["scenario"], row["seed"], row["source"]) == ("small", 7, "simulated")
        assert row["version"] == tensorexpress.__version__


def test_rows_are_what_the_csv_holds(prediction):
    written = list(csv.DictReader(io.StringIO(report.as_csv(prediction))))
    assert written == [{name: str(value) for name, value in row.items()} for row in prediction.rows()]


@rest()
def test_the_same_question_has_an_equal_answer():
    few_packets = read_scenario(None, [*SMALL, "cluster.mtu=60000", "job.workers=1"])
    made = [predict(few_packets, ["fifo", "tensorexpress:slice=500 KB"], engine=engine) for engine in ("fast", "simpy")]
    assert made[0] == made[1]


def test_a_picosecond_an_order_or_a_policy_makes_a_difference(scenario, prediction):
    fifo, ours = prediction.results.values()
    assert side_by_side([fifo, ours]) == prediction
    assert side_by_side([ours, fifo]) != prediction
    assert side_by_side([fifo]) != prediction
    job = fifo.trace.jobs[0]
    later = np.array(job.updated_ps)
    later[0, 0, 0] += 1
    trace = replace(fifo.trace, jobs=(replace(job, updated_ps=later), *fifo.trace.jobs[1:]))
    assert trace != fifo.trace
    assert trace.jobs[1] == fifo.trace.jobs[1]
    assert side_by_side([Result.of(fifo.plan, trace), ours]) != prediction
    assert prediction != "a prediction"
    assert fifo.trace != "a trace"


def test_a_trace_that_was_written_and_read_is_equal(prediction, tmp_path):
    result = prediction.results["fifo"]
    path = tmp_path / "fifo.trace"
    trace_file.write_trace(path, result.trace, result.plan)
    assert trace_file.read_trace(path) == (result.trace, result.plan)


def test_scenarios_have_one_digest_if_the_same_happens_in_them(scenario):
    assert digest(replace(scenario, name="other")) == digest(scenario)
    different = [replace(scenario, seed=8), replace(scenario, loss=0.1), replace(scenario, iterations=2)]
    assert len({digest(one) for one in (scenario, *different)}) == 4
    assert digest(scenario) == digest(
        read_scenario(None, [*SMALL, "job.1.model=alexnet", "job.1.workers=1", "job.1.servers=1"])
    )


def test_a_measured_run_is_reported_as_one(scenario, prediction):
    measured = [
        Result.of(result.plan, replace(simulate(result.plan), source="measured"))
        for result in prediction.results.values()
    ]
    assert {row["source"] for row in side_by_side(measured).rows()} == {"measured"}
    assert report.as_json(side_by_side(measured))["policies"]["fifo"]["source"] == "measured"


def test_a_measured_gain_that_is_not_that_of_the_stall_is_told_beside_it():
    def measured(longer_ms):
        """Return measured runs of both policies; the second takes so much longer than its stall explains."""
        results = [
            replace(Result.of(each.plan, replace(each.trace, source="measured")), jobs=each.jobs[:1])
            for each in predict(read_scenario(None, SMALL), ["fifo", "tensorexpress"]).results.values()
        ]
        job = results[1].jobs[0]
        job = replace(job, iteration_ps=job.iteration_ps + longer_ms * 1e9)
        return side_by_side([results[0], replace(results[1], jobs=(job,))])

    same, other = measured(0), measured(200)
    fifo, best = (each.jobs[0] for each in other.results.values())
    removed, saved = fifo.blocking_ps - best.blocking_ps, fifo.iteration_ps - best.iteration_ps
    assert removed > 1.4 * saved > 0
    assert "for which fifo blocks" in report.as_json(same)["notes"][0]
    assert (
        f"saves {saved / 1e9:.2f} ms of the {fifo.iteration_ps / 1e9:.2f} ms under fifo, which blocks "
        in (report.as_json(other)["notes"][0])
    )


def test_every_json_says_what_made_it(tmp_path):
    own = digest(read_scenario(None, list(SMALL)))
    runner, traces = CliRunner(), tmp_path / "traces"
    outputs = {
        "predict": ["--policy", "fifo,p3", "--save", str(traces)],
        "explain": ["--policy", "p3"],
        "sweep": ["--policy", "p3", "--vary", "cluster.queues=8", "--processes", "1"],
    }
    for verb, arguments in outputs.items():
        path = tmp_path / f"{verb}.json"
        result = runner.invoke(main, [verb, *options(*SMALL), *arguments, "--json", str(path)])
        assert result.exit_code == 0, result.output
        told = json.loads(path.read_text())["provenance"]
        assert told == {
            "version": tensorexpress.__version__,
            "scenario": "small",
            "digest": own,
            "seed": 7,
            "policies": ["fifo", "p3"],
        }
    compared = tmp_path / "compare.json"
    paths = [str(traces / f"{policy}.trace") for policy in ("fifo", "p3")]
    assert runner.invoke(main, ["compare", *paths, "--json", str(compared)]).exit_code == 0
    (comparison,) = json.loads(compared.read_text())["comparisons"]
    told = {comparison[which]["provenance"]["digest"] for which in ("reference", "other")}
    assert told == {own}


def test_plans_and_traces_say_which_version_made_them(prediction, tmp_path):
    result = prediction.results["fifo"]
    trace_file.write_trace(tmp_path / "fifo.trace", result.trace, result.plan)
    with zipfile.ZipFile(tmp_path / "fifo.trace") as archive:
        plan = json.loads(archive.read("plan.json"))
    assert plan["made_by"] == f"tensorexpress {tensorexpress.__version__}"


@rest()
def test_a_sweep_says_at_every_point_what_made_it():
    from tensorexpress.sim.sweep import sweep

    base = {"name": "small", "seed": 7, "iterations": 1, "job": {"model": "alexnet", "workers": 2, "servers": 1}}
    result = sweep(base, [], {"cluster.queues": np.array([1, 8])}, ["p3"], processes=1)
    own = [digest(read_scenario(None, [*SMALL, f"cluster.queues={queues}"])) for queues in (1, 8)]
    rows = result.rows()
    assert [row["scenario_digest"] for row in rows] == [own[0], own[0], own[1], own[1]]
    assert [row["cluster.queues"] for row in rows] == ["1", "1", "8", "8"]
    assert result == sweep(base, [], {"cluster.queues": ["1", "8"]}, ["p3"], processes=1)


def test_examples_in_docstrings():
    assert doctest.testmod(module).failed == 0


def test_medians_stand_beside_means_where_time_outs_of_a_few_iterations_decide() -> None:
    keys = (
        f"job.csv={EXAMPLES / 'sums.csv'}",
        "job.workers=3",
        "job.servers=2",
        "cluster.bandwidth=5 Mbps",
        "iterations=10",
    )
    slow = (*keys, "cluster.delay=10 ms", "transport.rto_min=1 s")

    def shown(*changed: str) -> tuple[JobMetrics, list[str]]:
        compared = predict(read_scenario(overrides=[*slow, *changed]), ["switchml"])
        (metrics,) = compared.baseline.jobs
        lengths_ps = iterations_ps(compared.baseline.trace.jobs[0])[compared.scenario.warmup :]
        assert metrics.iteration_median_ps == np.median(lengths_ps)
        (row,) = compared.rows()
        assert row["iteration_median_ms"] == metrics.iteration_median_ps / PS_PER_MS
        return metrics, [note for note in notes(compared) if "in the median" in note]

    metrics, (note,) = shown("loss=0.005")
    assert metrics.iteration_median_ps < 0.9 * metrics.iteration_ps
    assert f"{format_ms(metrics.iteration_ps)} on average and {format_ms(metrics.iteration_median_ps)} in the m" in note
    assert shown()[1] == []
