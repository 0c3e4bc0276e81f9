from __future__ import annotations

import csv
import doctest
import io
import json
import os
import pty
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.thorough import rest

from tensorexpress import vary
from tensorexpress.cli.sweep import sweep as command
from tensorexpress.errors import InputError
from tensorexpress.results import report, sweep_report
from tensorexpress.results.bands import COMPUTE_BOUND, MISSED, NETWORK_BOUND, PAYS, bands, summary, verdicts
from tensorexpress.results.sweep_plot import mapped_policy, plot_sweep
from tensorexpress.results.swept import Sweep
from tensorexpress.scenario import read_scenario
from tensorexpress.sim import sweep as module
from tensorexpress.sim.predict import predict
from tensorexpress.sim.sweep import sweep, usual_vary
from tensorexpress.vary import MOST_POINTS, number_of, parse_vary

LAYERS = (
    "layer_index,numel,forward_ns,backward_ns\n0,20000,200000,400000\n1,100000,300000,600000\n2,100000,300000,600000\n"
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of a scenario of a few hundred packets."""
    path = tmp_path_factory.mktemp("workload") / "layers.csv"
    path.write_text(LAYERS)
    return ["job.model=", f"job.csv={path}", "job.workers=2", "job.servers=1"]


@pytest.fixture(scope="module")
def over_bandwidth(small: list[str]) -> Sweep:
    """A sweep with both ends of the question: bandwidth that is short, and bandwidth in plenty."""
    return sweep(None, small, {"cluster.bandwidth": ("1 Gbps", "100 Gbps", "5 Gbps")}, processes=1)


def options(overrides: Sequence[str]) -> list[str]:
    return [argument for override in overrides for argument in ("--set", override)]


# What --vary takes


@given(st.lists(st.integers(0, 10**6), min_size=1, unique=True), st.sampled_from(["Gbps", "us", "KB", "MiB"]))
def test_listed_values_come_back_in_order_and_with_the_unit_of_the_last(numbers, unit):
    key, values = parse_vary(f"some.key = {', '.join(map(str, numbers))} {unit}")
    assert key == "some.key"
    assert values == tuple(f"{number} {unit}" for number in numbers)


@rest()
@given(st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True), min_size=1, unique=True))
def test_listed_words_come_back_as_they_are(words):
    assert parse_vary(f"job.model={','.join(words)}") == ("job.model", tuple(words))


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(2, 50), st.booleans())
def test_a_range_goes_from_its_start_to_its_stop_in_even_steps(start, stop, steps, logarithmic):
    written = f"{start} Mbps:{stop} Mbps:{steps}" + ":log" * logarithmic
    _, values = parse_vary(f"cluster.bandwidth={written}")
    numbers = [number_of(value) for value in values]
    assert values[0] == f"{start} Mbps"
    assert numbers[-1] == stop * 1e6
    assert numbers == sorted(numbers, reverse=start > stop)
    assert len(values) <= steps
    for index, number in enumerate(numbers if len(numbers) == steps else []):
        part = index / (steps - 1)
        exact = start * (stop / start) ** part if logarithmic else start + (stop - start) * part
        assert number == pytest.approx(exact * 1e6, rel=1e-3)


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(2, 40))
def test_between_whole_numbers_there_are_whole_numbers_each_once(start, stop, steps):
    for spacing in ("", ":log"):
        _, values = parse_vary(f"job.workers={start}:{stop}:{steps}{spacing}")
        assert len(set(map(int, values))) == len(values)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("cluster.bandwidth=5,10,25,50,100Gbps", ("5 Gbps", "10 Gbps", "25 Gbps", "50 Gbps", "100 Gbps")),
        ("cluster.bandwidth=10 Gbps,25", ("10 Gbps", "25 Gbps")),
        ("cluster.bandwidth=500 Mbps,1,10 Gbps", ("500 Mbps", "1 Gbps", "10 Gbps")),
        ("cluster.bandwidth=1 Gbps:100 Gbps:3:log", ("1 Gbps", "10 Gbps", "100 Gbps")),
        ("cluster.bandwidth=100 Mbps:10 Gbps:3:log", ("100 Mbps", "1 Gbps", "10 Gbps")),
        ("cluster.buffer=unlimited,1,2 MB", ("unlimited", "1 MB", "2 MB")),
        ("compute.jitter=0.0:0.1:3", ("0.0", "0.05", "0.1")),
        ("job.workers=2:6:9", ("2", "3", "4", "5", "6")),
        ("job.workers=2,2,4", ("2", "4")),
        ('job.workers=["h0","h1"],["h2"]', ('["h0","h1"]', '["h2"]')),
        ("name=5a,6", ("5a", "6")),
    ],
)
def test_forms_of_values(text, values):
    assert parse_vary(text)[1] == values


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cluster.bandwidth",
        "=1,2",
        "job.workers=",
        "job.workers=1,,2",
        "job.workers=1:2",
        "job.workers=1:2:3:4",
        "job.workers=1:2:3:lin",
        "job.workers=1:2:3:log:log",
        "job.workers=1:8:1",
        "job.workers=1:8:-3",
        "job.workers=1:8:2.5",
        f"job.workers=1:8:{MOST_POINTS + 1}",
        "job.workers=a:b:3",
        "job.workers=0:8:3:log",
        "cluster.bandwidth=1 us:10 Gbps:3",
        "cluster.bandwidth=1 parsec:2 parsec:3",
        "loss=1e999:1:3",
    ],
)
def test_what_is_no_list_and_no_range_is_refused_in_one_line(text):
    with pytest.raises(InputError, match=r"--vary .*accepted: KEY=V1,V2,\.\.\. or KEY=START:STOP:STEPS") as caught:
        parse_vary(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_gives_values_or_an_input_error(text):
    try:
        key, values = parse_vary(text)
    except InputError:
        return
    assert key
    assert all(values)


def test_without_a_key_the_bandwidth_goes_from_an_eighth_to_eight_times_its_own(small):
    (values,) = usual_vary(overrides=[*small, "cluster.bandwidth=40 Gbps"]).values()
    assert (values[0], values[5], values[10]) == ("5 Gbps", "40 Gbps", "320 Gbps")


# What is simulated


def test_every_point_equals_a_prediction_of_its_own(small, over_bandwidth):
    assert [point.values for point in over_bandwidth.points] == [("1 Gbps",), ("100 Gbps",), ("5 Gbps",)]
    for point in over_bandwidth.points:
        prediction = predict(read_scenario(overrides=[*small, f"cluster.bandwidth={point.values[0]}"]))
        assert [row.policy for row in point.results] == list(prediction.results)
        for row in point.results:
            assert row.metrics == prediction.results[row.policy].jobs[0]
            assert row.speedup == prediction.speedup(row.policy)
            assert row.of_optimal == prediction.of_optimal(row.policy)
            assert row.retransmissions == prediction.results[row.policy].trace.retransmissions


@rest()
def test_the_order_of_finishing_does_not_show(small):
    values = [f"{gbps} Gbps" for gbps in (1, 2, 5, 10, 50)]
    shuffled = random.Random(1).sample(values, len(values))
    alone = sweep(None, small, {"cluster.bandwidth": values}, ["fifo", "p3"], processes=1)
    beside = sweep(None, small, {"cluster.bandwidth": shuffled}, ["fifo", "p3"], processes=2)
    assert [point.values[0] for point in beside.points] == shuffled
    assert {point.values: point for point in beside.points} == {point.values: point for point in alone.points}


def test_two_keys_make_a_grid_in_which_the_last_varies_fastest(small):
    grid = {"cluster.bandwidth": ("1 Gbps", "10 Gbps"), "job.workers": ("1", "2", "3")}
    seen = []
    result = sweep(None, small, grid, ["tictac"], processes=1, on_point=seen.append)
    assert [point.values for point in result.points] == [(a, b) for a in ("1 Gbps", "10 Gbps") for b in "123"]
    assert sorted(seen, key=lambda point: point.values) == sorted(result.points, key=lambda point: point.values)
    assert result.total == 6


@rest()
def test_both_engines_give_the_same_sweep(small):
    over = {"cluster.queues": ("1", "2")}
    fast, simpy = (sweep(None, small, over, engine=engine, processes=1) for engine in ("fast", "simpy"))
    assert fast.points == simpy.points


def test_a_scenario_file_is_swept_and_fifo_is_always_compared_with(tmp_path):
    (tmp_path / "layers.csv").write_text(LAYERS)
    path = tmp_path / "mine.toml"
    path.write_text('policies = ["tictac"]\n[job]\ncsv = "layers.csv"\nworkers = 2\nservers = 1\n')
    result = sweep(path, [], {"cluster.mtu": ("1500", "9000")}, processes=1)
    assert result.scenario.name == "mine"
    assert [row.policy for row in result.points[0].results] == ["fifo", "tictac"]


@pytest.mark.parametrize(
    ("varied", "message"),
    [
        ({"cluster.bandwidth": ("1 Gbps", "0 Gbps")}, "point cluster.bandwidth=0 Gbps: --vary cluster.bandwidth: "),
        ({"job.workers": ("2", "-1")}, "point job.workers=-1: "),
        ({"cluster.bandwith": ("1 Gbps",)}, "did you mean 'bandwidth'"),
        ({"policies": ("fifo", "p3")}, "--policy"),
        ({"job.workers": ()}, "0 points"),
        ({"job.workers": ("1",) * 101, "seed": ("1",) * 100}, f"10100 points; accepted: 1 to {MOST_POINTS}"),
    ],
)
def test_a_point_that_cannot_be_stops_the_sweep_before_the_first_simulation(small, varied, message):
    seen = []
    with pytest.raises(InputError, match=r"^[^\n]*$") as caught:
        sweep(None, small, varied, on_point=seen.append)
    assert message in str(caught.value)
    assert seen == []


def test_what_is_wrong_at_every_point_is_said_without_a_point(small):
    with pytest.raises(InputError, match=r"^--set seed: "):
        sweep(None, [*small, "seed=-1"], {"job.workers": ("1", "2")})


def test_what_fails_in_a_process_names_its_point(small):
    with pytest.raises(InputError, match=r"point job.workers=1: unknown engine 'ns3'"):
        sweep(None, small, {"job.workers": ("1",)}, engine="ns3")


# What it means


def test_scheduling_pays_where_bandwidth_is_short_and_not_where_it_is_in_plenty(over_bandwidth):
    assert [outcome.verdict for outcome in verdicts(over_bandwidth, "job0")] == [PAYS, PAYS, COMPUTE_BOUND]
    (band,) = bands(over_bandwidth, "job0")
    assert band.lower is None
    assert 5e9 < band.upper < 100e9
    first, second = summary(over_bandwidth)
    assert "for cluster.bandwidth up to about " in first
    assert second.startswith("At 100 Gbps it is compute-bound")


def with_times(over_bandwidth: Sweep, times_ms: Mapping[str, tuple[float, float, float, float]]) -> Sweep:
    """Return a sweep with given times of fifo, p3, the optimum and compute at every bandwidth."""
    point = over_bandwidth.points[0]
    made = []
    for value, (fifo, p3, optimal, compute) in times_ms.items():
        rows = []
        for row, time in zip(point.results[:2], (fifo, p3), strict=True):
            metrics = replace(row.metrics, iteration_ps=time * 1e9, compute_ps=compute * 1e9)
            rows.append(replace(row, metrics=metrics, baseline_ps=fifo * 1e9, optimal_ps=optimal * 1e9))
        made.append(replace(point, values=(value,), results=tuple(rows)))
    varied = {"cluster.bandwidth": tuple(times_ms)}
    return replace(over_bandwidth, vary=varied, policies=over_bandwidth.policies[:2], points=tuple(made))


def test_verdicts_follow_from_the_four_times(over_bandwidth):
    made = with_times(
        over_bandwidth,
        {
            "1 Gbps": (1000, 990, 980, 100),
            "2 Gbps": (500, 490, 300, 100),
            "4 Gbps": (250, 200, 190, 100),
            "8 Gbps": (101, 101, 100, 100),
        },
    )
    assert [judged.verdict for judged in verdicts(made, "job0")] == [NETWORK_BOUND, MISSED, PAYS, COMPUTE_BOUND]
    paying, elsewhere = summary(made)
    assert "most at 4 Gbps, where p3 takes 200.00 ms and fifo 250.00 ms (1.25x)" in paying
    assert elsewhere.count("; ") == 2


def test_the_ends_of_a_band_are_interpolated_on_the_scale_of_the_key(over_bandwidth):
    times = {"1 Gbps": (100, 100, 90, 10), "100 Gbps": (110, 100, 90, 10), "10000 Gbps": (100, 100, 90, 10)}
    (band,) = bands(with_times(over_bandwidth, times), "job0", threshold=1.05)
    assert band.lower == pytest.approx(10e9)
    assert band.upper == pytest.approx(1000e9)


def test_two_bands_are_two(over_bandwidth):
    good, bad = (120, 100, 90, 10), (100, 100, 99, 10)
    made = with_times(over_bandwidth, {"1 Gbps": good, "2 Gbps": bad, "3 Gbps": good, "4 Gbps": good})
    first, second = bands(made, "job0")
    assert first.lower is None
    assert 1e9 < first.upper < 2e9 < second.lower < 3e9
    assert second.upper is None


def test_where_it_never_pays_that_is_said(over_bandwidth):
    made = with_times(over_bandwidth, {"1 Gbps": (100, 100, 99, 10), "2 Gbps": (100, 98, 97, 90)})
    assert summary(made)[0].startswith("Scheduling pays at none of the 2 points: the largest gain is 1.02x at 2 Gbps")


def test_what_ideal_gains_is_not_called_a_gain(over_bandwidth):
    assert {outcome.best.policy for outcome in verdicts(over_bandwidth, "job0")} <= {"p3", "tensorexpress"}
    assert mapped_policy(over_bandwidth) == "tensorexpress"


def test_a_key_on_which_nothing_depends_is_named(over_bandwidth):
    made = with_times(over_bandwidth, {"1 Gbps": (100, 90, 80, 70), "2 Gbps": (100, 90, 80, 70)})
    assert summary(made)[0].startswith("Nothing depends on cluster.bandwidth here")


# What is written


def test_csv_and_json_hold_every_metric_of_the_predictions(small, over_bandwidth):
    text = sweep_report.as_csv(list(over_bandwidth.vary), over_bandwidth.points)
    rows = list(csv.DictReader(io.StringIO(text)))
    written = json.loads(json.dumps(sweep_report.as_json(over_bandwidth)))["rows"]
    assert len(rows) == len(written) == 3 * 4
    expected = []
    for (bandwidth,) in (point.values for point in over_bandwidth.points):
        prediction = predict(read_scenario(overrides=[*small, f"cluster.bandwidth={bandwidth}"]))
        own = csv.DictReader(io.StringIO(report.as_csv(prediction)))
        expected += [{"cluster.bandwidth": bandwidth, **row} for row in own]
    assert rows == expected
    assert [{name: str(value) for name, value in row.items()} for row in written] == expected


@rest(but=1)
def test_the_command_writes_all_it_is_asked_for(small, tmp_path):
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("csv", "json", "png")}
    arguments = [*options(small), "--vary", "cluster.bandwidth=1,100Gbps", "--policy", "p3"]
    arguments += ["--csv", str(paths["csv"]), "--json", str(paths["json"]), "--plot", str(paths["png"])]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("1")] == [
        [value, "Gbps", policy] for value in ("1", "100") for policy in ("fifo", "p3")
    ]
    assert json.loads(paths["json"].read_text())["points"] == {"finished": 2, "total": 2}
    assert len(paths["csv"].read_text().splitlines()) == 1 + 2 * 2
    assert paths["png"].read_bytes().startswith(b"\x89PNG")
    assert sorted(tmp_path.iterdir()) == sorted(paths.values())


@rest(but=1)
@pytest.mark.parametrize(
    "varied",
    [
        {"cluster.bandwidth": ("5 Gbps",)},
        {"cluster.bandwidth": tuple(f"{gbps} Gbps" for gbps in range(1, 15))},
        {"cluster.delay": ("0 us", "1 us")},
        {"job.architecture": ("ps",)},
        {"cluster.bandwidth": ("1 Gbps", "100 Gbps"), "job.workers": ("1", "2")},
    ],
)
def test_any_one_or_two_keys_can_be_drawn(over_bandwidth, tmp_path, varied):
    known = over_bandwidth.points
    points = tuple(replace(known[index % 3], values=values) for index, values in enumerate(product(*varied.values())))
    for finished in (len(points), (len(points) + 1) // 2):
        result = replace(over_bandwidth, vary=varied, points=points[:finished])
        plot_sweep(result, tmp_path / "sweep.svg")
        text = (tmp_path / "sweep.svg").read_text()
        assert all(key in text for key in varied)
        assert (f"{finished} of {len(points)} points" in text) == (finished < len(points))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "job.workers=1", "--vary", "job.workers=2"], "--vary job.workers is given twice"),
        (["--vary", "job.workers=1:9"], "is no range"),
        (["--plot", "sweep.gif"], "'.gif'"),
        (["--csv", "no/such/directory/out.csv"], "directory that exists"),
        (["--vary", "seed=1,2", "--vary", "loss=0,0.1", "--vary", "warmup=1,2", "--plot", "a.png"], "3 keys"),
        (["--policy", "p4"], "unknown policy 'p4'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, arguments)
    assert getattr(result.exception, "exit_code", None) == 2
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
    assert list(tmp_path.iterdir()) == []


# How it ends


def start(arguments: Sequence[str], terminal: int) -> subprocess.Popen[str]:
    """Start a sweep in a process group of its own, as a shell does, with its progress bar on a terminal."""
    code = "from tensorexpress.cli import main; main(prog_name='tensorexpress')"
    command_line = [sys.executable, "-c", code, "sweep", *arguments]
    return subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=terminal, text=True, start_new_session=True)


def read_until(terminal: int, wanted: str) -> str:
    """Read what appears on a terminal until it contains some text."""
    seen = ""
    while wanted not in seen:
        seen += os.read(terminal, 1024).decode()
    return seen


def read_rest(terminal: int) -> str:
    """Read a terminal until every process that could write to it has ended."""
    seen = ""
    try:
        while text := os.read(terminal, 1024).decode():
            seen += text
    except OSError:  # how Linux says that the other side of a terminal is closed
        pass
    return seen


@rest()
@pytest.mark.skipif(sys.platform != "linux", reason="needs pseudo-terminals")
def test_ctrl_c_keeps_the_finished_points_and_leaves_no_process(small, tmp_path):
    ours, theirs = pty.openpty()
    # More points than could be finished before the signal arrives.
    arguments = [*options(small), "--vary", "seed=1:3000:3000", "--policy", "p3", "--engine", "simpy"]
    arguments += ["--csv", str(tmp_path / "out.csv"), "--json", str(tmp_path / "out.json")]
    arguments += ["--plot", str(tmp_path / "out.png")]
    process = start(arguments, theirs)
    os.close(theirs)
    read_until(ours, "2/3000")
    os.killpg(process.pid, signal.SIGINT)
    # Both end only when no process is left that holds the other side.
    table, errors = process.communicate()[0], read_rest(ours)
    os.close(ours)
    assert process.returncode == 130
    document = json.loads((tmp_path / "out.json").read_text())
    finished = document["points"]["finished"]
    assert 2 <= finished < 3000
    assert f"tensorexpress: stopped after {finished} of 3000 points" in errors
    assert "Traceback" not in errors
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert len(rows) == len(document["rows"]) == 2 * finished
    assert [int(row["seed"]) for row in rows] == sorted(int(row["seed"]) for row in rows)
    assert table.count("fifo ") >= finished
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.json", "out.png"]


@rest()
@pytest.mark.skipif(sys.platform != "linux", reason="needs pseudo-terminals")
def test_even_a_killed_sweep_leaves_its_finished_points_and_no_process(small, tmp_path):
    ours, theirs = pty.openpty()
    arguments = [*options(small), "--vary", "seed=1:3000:3000", "--policy", "p3", "--engine", "simpy"]
    process = start([*arguments, "--csv", str(tmp_path / "out.csv")], theirs)
    os.close(theirs)
    read_until(ours, "2/3000")
    process.kill()
    process.communicate()
    read_rest(ours)
    os.close(ours)
    (path,) = tmp_path.iterdir()
    assert path.name == "out.csv.part"
    assert len(list(csv.DictReader(io.StringIO(path.read_text())))) >= 2 * 2


def test_the_examples_of_the_modules_hold():
    assert all(doctest.testmod(one).failed == 0 for one in (module, vary))
