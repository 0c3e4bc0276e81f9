"""Comparisons: a run beside its prediction, or two runs side by side."""

from __future__ import annotations

import doctest
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from support.strategies import plans
from test_calibration import CALIBRATION

from tensorexpress import trace_file
from tensorexpress.calibration import write_calibration
from tensorexpress.cli import main
from tensorexpress.errors import PlanError
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.results import compare as compare_module
from tensorexpress.results.compare import METRICS, TracedRun, Value, compare, differences, gain
from tensorexpress.results.compare_plot import draw_runs, usual_iteration
from tensorexpress.scenario import Scenario, read_scenario
from tensorexpress.sim import simulate
from tensorexpress.trace import JobTrace, Trace, measure_job
from tensorexpress.trace_file import read_trace, write_trace


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return read_scenario(
        overrides=["job.model=alexnet", "job.workers=2", "job.servers=1", "cluster.bandwidth=40 Mbps", "iterations=3"]
    )


def simulated(scenario: Scenario, policy: str) -> TracedRun:
    plan = make_plan(scenario, POLICIES[policy])
    return TracedRun(policy, simulate(plan), plan)


@pytest.fixture(scope="module")
def fifo(scenario: Scenario) -> TracedRun:
    return simulated(scenario, "fifo")


@pytest.fixture(scope="module")
def tensorexpress(scenario: Scenario) -> TracedRun:
    return simulated(scenario, "tensorexpress")


def slower(run: TracedRun, factor: int) -> TracedRun:
    """Return a "measured" run in which all took `factor` times as long."""

    def scaled(job: JobTrace) -> JobTrace:
        times = ("forward_ps", "backward_ps", "forward_start_ps", "backward_start_ps", "updated_ps")
        return replace(job, **{name: factor * getattr(job, name) for name in times})

    trace = replace(run.trace, source="measured", jobs=tuple(map(scaled, run.trace.jobs)))
    return replace(run, trace=trace)


def test_the_error_of_a_prediction_is_told_in_parts_of_the_measurement(fifo: TracedRun) -> None:
    for comparison in (compare(slower(fifo, 2), fifo), compare(fifo, slower(fifo, 2))):
        assert comparison.is_prediction
        assert comparison.reference.trace.source == "measured"
        values = comparison.jobs[0].metrics
        assert list(values) == list(METRICS)
        assert [value.change for value in values.values()] == [pytest.approx(-0.5)] * len(METRICS)


def test_metrics_are_those_of_the_trace(fifo: TracedRun, tensorexpress: TracedRun) -> None:
    comparison = compare(fifo, tensorexpress)
    assert not comparison.is_prediction
    metrics = [measure_job(run.trace.jobs[0], run.trace.warmup) for run in (fifo, tensorexpress)]
    assert comparison.jobs[0].metrics["blocking"] == Value(metrics[0].blocking_ps, metrics[1].blocking_ps)
    assert comparison.jobs[0].metrics["latency, p99"] == Value(metrics[0].latency.p99_ps, metrics[1].latency.p99_ps)


def test_tensors_have_their_queues_and_mean_latencies(fifo: TracedRun, tensorexpress: TracedRun) -> None:
    tensors = compare(fifo, tensorexpress).jobs[0].tensors
    job = fifo.trace.jobs[0]
    assert tuple(tensor.name for tensor in tensors) == job.layers
    means = (job.updated_ps - job.gradient_ps)[fifo.trace.warmup :].mean(axis=(0, 1))
    assert [tensor.latency.reference_ps for tensor in tensors] == pytest.approx(means.tolist())
    assert np.mean(means) == pytest.approx(measure_job(job, fifo.trace.warmup).latency.mean_ps)
    assert [tensor.queues[1] for tensor in tensors] == list(tensorexpress.plan.jobs[0].queues)


@settings(max_examples=25)
@given(plans())
def test_a_run_beside_itself_differs_in_nothing(plan: Plan) -> None:
    run = TracedRun("random", simulate(plan), plan)
    comparison = compare(run, run)
    values = [value for job in comparison.jobs for value in job.metrics.values()]
    values += [tensor.latency for job in comparison.jobs for tensor in job.tensors]
    assert {value.change for value in values} == {0.0}
    assert differences(plan, plan) == ""
    assert all(value == Value(0, 0) for job in gain(comparison, comparison) for value in job.values())


def test_a_change_from_nothing_has_no_percentage() -> None:
    assert Value(0.0, 0.0).change == 0.0
    assert Value(0.0, 1.0).change is None


def test_a_gain_is_measured_and_predicted(fifo: TracedRun, tensorexpress: TracedRun) -> None:
    pairs = [compare(slower(run, 2), run) for run in (fifo, tensorexpress)]
    gained = gain(*pairs)[0]["blocking"]
    fifo_ps, other_ps = (pair.jobs[0].metrics["blocking"].other_ps for pair in pairs)
    assert gained.other_ps == fifo_ps - other_ps > 0
    assert gained.reference_ps == pytest.approx(2 * gained.other_ps)


def test_runs_of_other_jobs_are_refused_on_one_line(fifo: TracedRun) -> None:
    other = simulated(read_scenario(overrides=["job.model=vgg16", "job.workers=2", "iterations=1"]), "fifo")
    with pytest.raises(
        PlanError, match=r"^fifo, predicted and fifo, predicted cannot .*the layers of job0 are"
    ) as error:
        compare(fifo, other)
    assert "\n" not in str(error.value)


def test_differences_are_named_once_for_all_links(scenario: Scenario) -> None:
    other = read_scenario(
        overrides=["job.model=alexnet", "job.workers=2", "job.servers=1", "cluster.bandwidth=50 Mbps", "iterations=9"]
    )
    one, two = (make_plan(each, POLICIES["fifo"]) for each in (scenario, other))
    assert differences(one, two) == "cluster.links.*.rate_bps is 40000000 and 50000000; iterations is 3 and 9"


def test_the_usual_iteration_has_the_median_blocking_time(fifo: TracedRun) -> None:
    job, trace = fifo.trace.jobs[0], fifo.trace
    starts = job.forward_start_ps.copy()
    starts[2:] += 5
    starts[3:] += 5
    starts[4:] -= 3  # the iterations after the warm-up wait 5, 5 and -3 ps longer
    uneven = replace(trace, jobs=(replace(job, forward_start_ps=starts),))
    waits = uneven.jobs[0].waits_ps[trace.warmup :, 0].sum(axis=1).tolist()
    assert waits[usual_iteration(uneven, 0) - trace.warmup] == sorted(waits)[1]


def test_a_figure_has_a_timeline_for_every_run(fifo: TracedRun, tensorexpress: TracedRun) -> None:
    figure = draw_runs([slower(fifo, 2), fifo, tensorexpress])
    titles = [axes.get_title(loc="left") for axes in figure.get_axes() if axes.get_title(loc="left")]
    assert [title.split(":")[0] for title in titles] == [
        "fifo, measured",
        "fifo, predicted",
        "tensorexpress, predicted",
    ]


# The verb


@pytest.fixture
def files(tmp_path: Path, fifo: TracedRun, tensorexpress: TracedRun) -> list[str]:
    """Files of a measured and a predicted run, and of one under another policy."""
    paths = [str(tmp_path / f"{name}.trace") for name in ("measured", "fifo", "tensorexpress")]
    # Measured, with the times of a simulation: its prediction is right.
    write_trace(paths[0], replace(fifo.trace, source="measured"), fifo.plan)
    write_trace(paths[1], fifo.trace, fifo.plan)
    write_trace(paths[2], tensorexpress.trace, tensorexpress.plan)
    return paths


def invoke(arguments: Sequence[str]) -> Result:
    result = CliRunner().invoke(main, ["compare", *arguments])
    assert result.exit_code == 0, result.output
    return result


def row(output: str, name: str) -> list[str]:
    line = next(line for line in output.splitlines() if line.startswith(f"{name}  "))
    return line.removeprefix(name).split()


def test_a_trace_alone_is_held_against_its_prediction(files: list[str]) -> None:
    output = invoke(files[:1]).output
    assert "- fifo, measured: 3 iterations" in output
    blocking = row(output, "blocking")
    assert blocking[0] == blocking[1]
    assert blocking[2] == "+0.0"
    assert "error" in output


def test_two_policies_of_one_scenario_are_compared_without_a_word(files: list[str]) -> None:
    output = invoke(files[1:]).output
    assert "differ:" not in output
    assert row(output, "blocking")[2].startswith("-")
    assert "change" in output


def test_two_traces_with_predictions_show_the_gain(files: list[str]) -> None:
    document = json.loads(invoke([files[0], files[2], "--predict", "--json", "-"]).output)
    gained = document["gain"]["job0"]["blocking"]
    assert gained["reference_ms"] == gained["other_ms"] > 0
    assert [each["is_prediction"] for each in document["comparisons"]] == [True, False]


def test_a_calibrated_prediction_says_for_which_target(files: list[str], tmp_path: Path) -> None:
    write_calibration(tmp_path / "c.json", CALIBRATION)
    output = invoke([files[0], "--calibration", str(tmp_path / "c.json")]).output
    assert "- fifo, predicted: 3 iterations on links as calibrated for the target embedded" in output
    assert "differ" not in output
    assert row(output, "blocking")[2] != "+0.0"


def test_tensors_are_shown_when_asked_for(files: list[str], fifo: TracedRun) -> None:
    output = invoke([*files[1:], "--tensors"]).output
    assert all(row(output, layer) for layer in fifo.trace.jobs[0].layers)
    assert "conv1" not in invoke(files[1:]).output


def test_a_picture_is_drawn(files: list[str], tmp_path: Path) -> None:
    invoke([*files[:2], "--plot", str(tmp_path / "both.png")])
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.trace"], "none.trace: cannot be read"),
        (["{0}", "--plot", "picture.bmp"], "its ending is '.bmp'"),
        (["{0}", "--json", "/nowhere/a.json"], "cannot write '/nowhere/a.json'"),
        (["{0}", "{1}", "--calibration", "c.json"], "add --predict"),
        (["{0}", "--calibration", "c.json"], "c.json: cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said_first(files: list[str], arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["compare", *(argument.format(*files) for argument in arguments)])
    assert result.exit_code == 2
    assert message in result.output


def test_predict_saves_a_trace_of_every_policy(tmp_path: Path) -> None:
    small = ["--set", "job.model=alexnet", "--set", "job.workers=2", "--set", "job.servers=1", "--set", "iterations=1"]
    policies = ["--policy", "fifo", "--policy", "tensorexpress:slice=50 KB"]
    result = CliRunner().invoke(main, ["predict", *small, *policies, "--save", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["fifo.trace", "tensorexpress:slice=50%20KB.trace"]
    trace, plan = read_trace(tmp_path / "new" / names[1])
    assert isinstance(trace, Trace)
    assert plan.policy.slice_bytes == 50_000
    refused = CliRunner().invoke(main, ["predict", *small, "--save", str(tmp_path / "new" / names[0])])
    assert refused.exit_code == 2
    assert "cannot write to" in refused.output


def test_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(compare_module).failed == 0
    assert doctest.testmod(trace_file).failed == 0
    page = Path(__file__).parent.parent / "docs" / "compare.md"
    assert doctest.testfile(str(page), module_relative=False).failed == 0
