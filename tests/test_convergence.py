"""`predict` of asynchronous training: table, JSON, CSV, figure and sentences say what the traces hold."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tensorexpress.cli import main
from tensorexpress.commits.trace import CommitTrace
from tensorexpress.errors import ScenarioError
from tensorexpress.results.convergence import Convergence, curve, notes
from tensorexpress.results.convergence_plot import draw_convergence
from tensorexpress.scenario import Scenario, read_scenario
from tensorexpress.sim.train import train

KEYS = ("job.architecture=async", "job.workers=4", "commits.target_loss=0.6", "compute.jitter=0.2")
OPTIONS = [part for key in KEYS for part in ("--set", key)]


@pytest.fixture(scope="module")
def found() -> Convergence:
    return train(read_scenario(None, KEYS), seeds=3)


def trace(mode: str, reached_s: float | None, loss: float = 0.5) -> CommitTrace:
    """Return a training of one commit a second whose loss reaches the target, or does not."""
    seconds = np.arange(1, 11)
    return CommitTrace(
        mode=mode,
        time_ps=seconds * 10**12,
        host=seconds % 2,
        delay=seconds % 3,
        loss=np.full(10, loss),
        start_loss=1.0,
        target_loss=0.6,
        reached_ps=None if reached_s is None else round(reached_s * 10**12),
        dropped=0,
        lost=0,
        sums=0,
        summed=0,
        server_in_bytes=10,
        server_out_bytes=10,
    )


def made(**seconds: list[float | None]) -> Convergence:
    scenario = read_scenario(None, KEYS)
    return Convergence(scenario, {mode: tuple(trace(mode, each) for each in own) for mode, own in seconds.items()})


def test_speedups_are_those_of_the_same_seed_over_fifo() -> None:
    compared = made(sync=[8.0, 8.0], fifo=[4.0, 6.0], order=[2.0, 2.0])
    assert (compared.baseline, compared.speedups("order"), compared.speedups("sync")) == ("fifo", [2, 3], [0.5, 0.75])
    assert "order gets there first, 4.00 times as soon as sync and 2.50 times as soon as fifo." in notes(compared)


def test_seeds_that_never_get_there_are_counted_and_not_averaged() -> None:
    compared = made(fifo=[4.0, None], order=[2.0, 3.0])
    assert (compared.reached("fifo"), compared.speedups("order")) == ([4.0], [2.0])
    assert "fifo does not reach the target within 5000 updates with 1 seed; commits.updates allows more." in notes(
        compared
    )
    row = next(line for line in compared.as_table().splitlines() if line.startswith("fifo"))
    assert row.split()[1:4] == ["4.00", "-", "1/2"]


def test_a_mode_that_diverges_is_said_to() -> None:
    scenario = read_scenario(None, KEYS)
    compared = Convergence(scenario, {"fifo": (trace("fifo", None, loss=float("inf")),)})
    assert "fifo diverges with 1 seed: steps of 0.3 are too large for a delay of 1.0." in notes(compared)


def test_every_mode_learns_and_the_table_has_a_row_for_it(found: Convergence) -> None:
    lines = found.as_table().splitlines()
    for mode in found.scenario.commits.modes:
        (row,) = (line.split() for line in lines if line.split()[:1] == [mode])
        assert float(row[1]) == pytest.approx(np.mean(found.reached(mode)), abs=0.006)
        assert row[3] == "3/3"
    assert lines[2] == "seeds 1 to 3: means, and how far off they are (95 % confidence)"


def test_curves_begin_at_the_start_and_end_at_the_last_commit(found: Convergence) -> None:
    for traces in found.traces.values():
        points = list(curve(traces[0]))
        assert points[0] == (0, traces[0].start_loss)
        assert points[-1] == (traces[0].end_ps, traces[0].loss[-1])
        assert len(points) <= 201


def test_the_figure_has_a_curve_for_every_mode_and_the_target(found: Convergence) -> None:
    losses, delays = draw_convergence(found).subfigs[0].axes
    labels = [line.get_label() for line in losses.get_lines()]
    assert [label for label in labels if not str(label).startswith("_")] == list(found.traces)
    assert any(set(np.asarray(line.get_ydata())) == {0.6} for line in losses.get_lines())
    assert len(delays.get_lines()) == len(found.traces) + 1


def test_the_command_prints_the_table_and_writes_files(tmp_path: Path) -> None:
    files = {kind: tmp_path / f"loss.{kind}" for kind in ("json", "csv", "png")}
    options = ["--json", str(files["json"]), "--csv", str(files["csv"]), "--plot", str(files["png"]), "--seeds", "2"]
    ran = CliRunner().invoke(main, ["predict", *OPTIONS, *options], standalone_mode=False)
    assert ran.exception is None
    assert ran.stdout.startswith("default: star, 8 hosts, 10 Gbps")
    document = json.loads(files["json"].read_text())
    assert list(document["modes"]) == ["sync", "fifo", "bounded", "order", "aggregate", "mlfabric"]
    assert document["scenario"]["commits"]["helpers"] == ["h5", "h6"]
    assert len(document["modes"]["order"]["seconds_to_loss"]["by_seed"]) == 2
    rows = list(csv.DictReader(io.StringIO(files["csv"].read_text())))
    assert [(row["mode"], row["seed"]) for row in rows[:3]] == [("sync", "1"), ("sync", "2"), ("fifo", "1")]
    assert float(rows[0]["seconds_to_loss"]) == document["modes"]["sync"]["seconds_to_loss"]["by_seed"][0]
    assert files["png"].read_bytes().startswith(b"\x89PNG")


def test_only_an_asynchronous_job_is_trained() -> None:
    with pytest.raises(ScenarioError, match=r"default: job.architecture: found no async"):
        train(read_scenario())


def test_a_scenario_made_by_hand_is_checked_too() -> None:
    scenario: Scenario = read_scenario(None, KEYS)
    wrong = replace(scenario, commits=replace(scenario.commits, tau=1))
    with pytest.raises(ScenarioError, match=r"default: commits.tau: found 1 with 4 workers; accepted: 3 or more"):
        train(wrong)
