"""The command line as a person meets it: good input, bad input, and what is left behind."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import VERBS, main

#: A question that is answered in a moment: one small layer beside a large one.
LAYERS = "layer_index,numel,forward_ns,backward_ns\n0,20000,200000,400000\n1,400000,200000,400000\n"


@pytest.fixture
def small(tmp_path):
    (tmp_path / "layers.csv").write_text(LAYERS)
    scenario = tmp_path / "small.toml"
    scenario.write_text(
        'name = "small"\npolicies = ["fifo", "tensorexpress"]\n'
        '[cluster]\nbandwidth = "10 Gbps"\n[job]\ncsv = "layers.csv"\nworkers = 2\nservers = 1\n'
    )
    return scenario


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb):
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_json_has_every_metric_of_every_policy(small):
    result = run("predict", small, "--json", "-")
    document = json.loads(result.stdout)
    assert document["scenario"]["name"] == "small"
    assert list(document["policies"]) == ["fifo", "tensorexpress"]
    fifo, better = document["policies"].values()
    assert fifo["speedup"] == 1.0
    assert better["speedup"] == pytest.approx(fifo["iteration_ms"] / better["iteration_ms"])
    assert 0 < better["of_optimal"] <= 1.0
    assert set(fifo["latency_ms"]) == {"mean", "p50", "p99", "first"}
    assert fifo["iteration_ms"] == pytest.approx(fifo["compute_ms"] + fifo["blocking_ms"], rel=0.01)
    assert {"blocking_worst_ms", "utilisation", "drops", "retransmissions"} <= set(fifo)


def test_both_engines_print_the_same(small):
    assert run("predict", small, "--engine", "simpy").output == run("predict", small, "--engine", "fast").output


def test_csv_agrees_with_json(small):
    rows = list(csv.DictReader(io.StringIO(run("predict", small, "--csv", "-").stdout)))
    document = json.loads(run("predict", small, "--json", "-").stdout)
    for row in rows:
        metrics = document["policies"][row["policy"]]
        assert float(row["iteration_ms"]) == metrics["iteration_ms"]
        assert float(row["latency_p99_ms"]) == metrics["latency_ms"]["p99"]


def test_all_outputs_are_written(small, tmp_path):
    names = {"--json": "a.json", "--csv": "a.csv", "--plot": "a.svg", "--trace": "trace.json"}
    result = run("predict", small, *(x for option, name in names.items() for x in (option, tmp_path / name)))
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert "small: star" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.toml"], "missing.toml: cannot be read"),
        (["--set", "job.model=vgg61"], "unknown model 'vgg61'; did you mean"),
        (["--set", "cluster.bandwidth=fast"], "--set cluster.bandwidth: 'fast' is not a rate; accepted:"),
        (["--set", "cluster.bandwith=1 Gbps"], "did you mean 'bandwidth'"),
        (["--set", "job.workers=-3"], "found -3; accepted: a count from 1"),
        (["--set", "job.batch=0"], "job.batch"),
        (["--policy", "tensorxpress"], "did you mean 'tensorexpress'"),
        (["--policy", "fifo:switch=foo"], "unknown switch discipline 'foo'"),
        (["--plot", "a.bmp"], "accepted: .png, .svg, .pdf"),
        (["--json", "nowhere/a.json"], "cannot write 'nowhere/a.json': No such file or directory"),
        pytest.param(
            ["--set", "job.workers=90000", "--set", "job.model=gpt2-xl"], "of memory; accepted: what fits", marks=rest()
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("predict", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("tensorexpress: error: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_scenario_names_file_and_line(tmp_path):
    scenario = tmp_path / "cut.toml"
    scenario.write_text('name = "cut"\n[cluster\n')
    result = run("predict", scenario)
    assert result.exit_code == 2
    assert "cut.toml:2: not TOML" in result.stderr


def test_a_custom_discipline_is_refused_by_the_compiled_engine_only(small, monkeypatch):
    from tensorexpress.queueing import DISCIPLINES, Fifo

    class Mine(Fifo):
        """One of the user's own, though it does nothing else."""

    monkeypatch.setitem(DISCIPLINES, "mine", Mine)
    refused = run("predict", small, "--policy", "fifo:switch=mine", "--engine", "fast")
    assert refused.exit_code == 2
    assert "engine 'fast' has no discipline 'mine'; use engine 'simpy'" in refused.stderr
    assert run("predict", small, "--policy", "fifo:switch=mine").exit_code == 0


def test_a_policy_that_only_simpy_simulates_is_announced_with_its_time(small, monkeypatch, caplog):
    from tensorexpress.queueing import DISCIPLINES, Fifo

    class Mine(Fifo):
        """One of the user's own, though it does nothing else."""

    monkeypatch.setitem(DISCIPLINES, "mine", Mine)
    assert run("predict", small, "--policy", "fifo,fifo:switch=mine").exit_code == 0
    (said,) = [message for message in caplog.messages if "SimPy" in message]
    assert "no discipline 'mine': SimPy simulates fifo:switch=mine, some 160 times slower, in about 1 s" in said
    caplog.clear()
    for asked in (["fifo", "--engine", "fast"], ["fifo:switch=mine", "--engine", "simpy"]):
        assert run("predict", small, "--policy", *asked).exit_code == 0
    assert not [message for message in caplog.messages if "SimPy" in message], "chosen, or not used"
    swept = run("sweep", small, "--vary", "seed=1,2", "--policy", "fifo:switch=mine", "--processes", "1")
    assert "a point" in " ".join(caplog.messages), swept.output


def test_a_prediction_near_a_threshold_has_a_range(tmp_path):
    tree = ["job.workers=8", "job.architecture=tree", "iterations=2"]
    found = {}
    for bandwidth in ("2 Gbps", "10 Gbps"):
        options = [word for each in (*tree, f"cluster.bandwidth={bandwidth}") for word in ("--set", each)]
        result = run("predict", *options, "--policy", "tensorexpress", "--json", tmp_path / "out.json")
        document = json.loads((tmp_path / "out.json").read_text())
        low, high = document["jitter"]["iteration_range_ms"]["tensorexpress"]["job0"]
        own = document["policies"]["tensorexpress"]["iteration_ms"]
        assert low <= own <= high
        note = f"Near a threshold: when compute times vary by 0.5%, iterations take {low:.2f} to {high:.2f} ms under"
        assert (note in result.stdout) == (high - low > 0.02 * own), result.stdout
        found[bandwidth] = high / low - 1
    assert found["2 Gbps"] > 0.2 > 0.02 > found["10 Gbps"]
    options += ["--set", "cluster.bandwidth=2 Gbps", "--set", "compute.jitter=0.05"]
    assert "Near a threshold: with other draws of compute times, iterations" in run("predict", *options).stdout


@pytest.mark.parametrize("verb", ["predict", "explain"])
def test_without_numba_one_line_says_how_to_get_it(verb, tmp_path):
    code = "import sys; sys.modules['numba'] = None\nfrom tensorexpress.cli import main\nmain()"
    command = [sys.executable, "-c", code, verb, "--set", "job.workers=2", "--set", "job.servers=1"]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    assert ended.returncode == 1
    assert ended.stderr == (
        "tensorexpress: error: the compiled simulator needs numba, which is not installed; pip install numba, or "
        "choose --engine simpy, which is slower\n"
    )


def test_the_installed_command_runs_and_imports_nothing_heavy_for_help():
    code = "import sys; from tensorexpress.cli import main\nimport tensorexpress.scenario, tensorexpress.plan\n"
    code += "print({'numba', 'simpy', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
    command = Path(sys.executable).parent / "tensorexpress"
    assert "predict" in subprocess.run([command, "--help"], capture_output=True, text=True).stdout


@rest(but=1)
@pytest.mark.parametrize(
    ("overrides", "policies", "said"),
    [
        (["cluster.bandwidth=100 Gbps"], "fifo,tensorexpress", "Compute-bound"),
        (["job.batch=1", "cluster.bandwidth=1 Gbps"], "fifo:slice=32 KB,tensorexpress", "Network-bound"),
        (["job.servers=2", "cluster.queues=1"], "fifo,p3:slice=32 KB,tensorexpress", "one queue per port"),
        (["job.architecture=ring"], "fifo,p3,tensorexpress", "every queue holds one flow"),
        (["job.workers=8", "compute.jitter=0.05"], "fifo,p3,tensorexpress:queues=optimal", "try queues=fewest"),
    ],
)
def test_where_scheduling_gains_nothing_the_notes_say_why(overrides, policies, said):
    options = [x for override in ("job.workers=4", *overrides) for x in ("--set", override)]
    result = run("predict", *options, "--policy", policies)
    assert result.exit_code == 0, result.output
    assert said in result.stdout


@pytest.mark.parametrize("engine", ["simpy", "fast"])
def test_a_simulation_stops_when_it_is_told_to(engine):
    from tensorexpress.errors import StoppedError
    from tensorexpress.plan import make_plan
    from tensorexpress.policy import POLICIES
    from tensorexpress.scenario import read_scenario
    from tensorexpress.sim import simulate

    # Far more than the engines look ahead, so that a simulation that does not listen would go on for minutes.
    inputs = read_scenario(None, ["job.workers=32", "job.servers=16", "cluster.mtu=1500", "iterations=20"])
    with pytest.raises(StoppedError):
        simulate(make_plan(inputs, POLICIES["fifo"]), engine, lambda: True)


def test_tab_completion_is_as_the_readme_says():
    environment = {**os.environ, "_TENSOREXPRESS_COMPLETE": "bash_source"}
    command = Path(sys.executable).parent / "tensorexpress"
    script = subprocess.run([command], env=environment, capture_output=True, text=True).stdout
    assert "complete -o nosort -F" in script
    asked = {"_TENSOREXPRESS_COMPLETE": "bash_complete", "COMP_WORDS": "tensorexpress pre", "COMP_CWORD": "1"}
    found = subprocess.run([command], env={**os.environ, **asked}, capture_output=True, text=True).stdout
    assert found.split() == ["plain,predict"]


@pytest.mark.parametrize("bandwidth", ["100 bps", "7 Kbps"])
def test_links_on_which_a_packet_outlasts_all_time_outs_are_refused_by_their_name(tmp_path, bandwidth):
    (tmp_path / "small.csv").write_text("layer_index,numel,forward_ns,backward_ns\n0,100000,1000,1000\n")
    slow = ["--set", f"job.csv={tmp_path}/small.csv", "--set", f"cluster.bandwidth={bandwidth}"]
    result = run("predict", *slow, "--policy", "fifo")
    assert result.exit_code == 2
    assert f"on a link of {bandwidth}, and what is not acknowledged within 1 s is sent again" in result.stderr
    assert "accepted: links of 7.231 Kbps or more" in result.stderr
    assert run("predict", *slow, "--policy", "fifo", "--set", "cluster.buffer=0").exit_code == 0, "no time-outs"


def test_what_keeps_messages_from_arriving_is_named_by_what_was_counted(monkeypatch):
    from tensorexpress.errors import SimulationError
    from tensorexpress.plan import make_plan
    from tensorexpress.policy import POLICIES
    from tensorexpress.scenario import read_scenario
    from tensorexpress.sim import fast, run

    # A time-out at every packet: without the bound, flows send the same packets again for ever.
    monkeypatch.setattr(run, "check_timeouts", lambda plan, program: None)
    monkeypatch.setattr(fast, "BUDGET", 20_000)
    monkeypatch.setattr(fast, "PATIENCE", 50)
    slow = ["job.workers=4", "job.servers=1", "cluster.bandwidth=100 Kbps", "transport.rto_min=1 us"]
    for overrides, cause in (
        ([*slow[:2], "cluster.bandwidth=1 Mbps", "loss=0.9"], "packets were lost on links; take a smaller loss"),
        (slow, "time-outs have sent packets again that only waited"),
    ):
        with pytest.raises(SimulationError, match=cause):
            run.simulate(make_plan(read_scenario(None, overrides), POLICIES["fifo"]))


def test_a_huge_layer_is_predicted_with_little_memory(tmp_path):
    from tensorexpress.results import side_by_side
    from tensorexpress.scenario import read_scenario
    from tensorexpress.sim.predict import predict

    (tmp_path / "huge.csv").write_text("layer_index,numel,forward_ns,backward_ns\n0,100000000000,1000,1000\n")
    huge = read_scenario(None, [f"job.csv={tmp_path}/huge.csv", "job.workers=2", "job.servers=1"])
    made = []
    with pytest.MonkeyPatch.context() as patch:
        real = side_by_side.make_plan
        patch.setattr(side_by_side, "make_plan", lambda *of: made.append(real(*of)) or made[-1])
        compared = predict(huge, ["fifo"], grain=1024)
    assert [len(plan.jobs[0].slices) <= 50_000 for plan in made] == [True]
    assert 0.5 < compared.of_optimal("fifo") <= 1


def test_slices_that_do_not_fit_into_memory_are_refused_before_they_are_cut(monkeypatch):
    from tensorexpress import memory
    from tensorexpress.errors import ScenarioError
    from tensorexpress.plan import make_plan
    from tensorexpress.policy import parse_policy
    from tensorexpress.scenario import read_scenario

    monkeypatch.setattr(memory, "installed_bytes", lambda: 10_000_000)
    with pytest.raises(ScenarioError, match=r"for the [0-9,]+ slices of policy p3:slice=1 KB; accepted: what fits"):
        make_plan(read_scenario(), parse_policy("p3:slice=1 KB"))


def test_what_does_not_fit_into_memory_is_planned_and_not_simulated(monkeypatch):
    from tensorexpress import memory
    from tensorexpress.errors import ScenarioError
    from tensorexpress.plan import make_plan
    from tensorexpress.policy import POLICIES
    from tensorexpress.scenario import read_scenario
    from tensorexpress.sim.run import needed_bytes, simulate

    inputs = read_scenario(None, ["cluster.mtu=1500"])
    monkeypatch.setattr(memory, "installed_bytes", lambda: needed_bytes(inputs) - 1)
    plan = make_plan(inputs, POLICIES["fifo"])
    with pytest.raises(ScenarioError, match="of memory; accepted: what fits into"):
        simulate(plan)
