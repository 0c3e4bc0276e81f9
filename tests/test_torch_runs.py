"""`run --script`: processes train a model over a real network, with the losses of one process.

TENSOREXPRESS_LONG_TRAINING=1 adds 200 steps of the examples, over priority, sums in the switch, and a loss of 5 %.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.errors import InputError
from tensorexpress.plan import make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.target.events import ProcessEvent
from tensorexpress.target.scripts import RunningScripts, TrainingScript
from tensorexpress.trace_file import read_trace

pytest.importorskip("torch", reason="needs the extra torch")

EXAMPLES = Path(__file__).parents[1] / "examples" / "torch"

SCRIPT = """
import os, sys
import torch
import tensorexpress.torch as te

session = te.join(steps=3)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 5))
DISTRIBUTE
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
for step in range(session.steps):
    random = torch.Generator().manual_seed(step)
    inputs = torch.randn(12, 20, generator=random)
    for own, classes in session.shards(inputs, inputs[:, :5].argmax(dim=1)):
        torch.nn.functional.cross_entropy(model(own), classes).backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    MORE
"""

SUMS = ("--policy", "tensorexpress+sum", "--set", "job.servers=0", "--set", "job.architecture=ring")

#: Rounding to whole numbers of 32 bits changes a gradient by less than this share of the largest one of its packet, for
#: which losses of so few steps differ by no more.
SUM_BOUND = 1e-5

#: In 200 steps of the examples, differences grow as training itself makes them grow: chosen above what runs gave
#: (1.6e-5 and 1.1e-3), not derived.
LONG_SUM_BOUND = {"transformer": 1e-4, "convnet": 1e-2}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_scenario(tmp_path)


def write_scenario(tmp_path: Path) -> Path:
    """Write a scenario and its layers beside the scripts of tests."""
    (tmp_path / "layers.csv").write_text(
        "layer_index,numel,forward_ns,backward_ns,name\n0,840,200000,200000,0\n1,205,200000,200000,2\n"
    )
    path = tmp_path / "small.toml"
    path.write_text(
        'policies = ["tensorexpress"]\niterations = 2\nwarmup = 1\n[cluster]\nbandwidth = "5 Mbps"\n'
        '[job]\ncsv = "layers.csv"\nworkers = 2\nservers = 1\n'
    )
    return path


ENGINE = "optimizer = session.distribute(model, torch.optim.SGD, lr=0.1, momentum=0.9)"
DDP = "model = session.ddp(model)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"


def filled(distribute: str, more: str, replaced: dict[str, str]) -> str:
    """Return the script with its gaps filled, and some of its text replaced."""
    text = SCRIPT.replace("DISTRIBUTE", distribute).replace("MORE", more)
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return text


def run(
    scenario: Path, more: str, *arguments: str, distribute: str = ENGINE, replaced: dict[str, str] | None = None
) -> Any:
    script = scenario.with_name("train.py")
    script.write_text(filled(distribute, more, replaced or {}))
    return CliRunner().invoke(main, ["run", str(scenario), "--script", str(script), "--wires", *arguments])


def processes_of(script: Path) -> list[str]:
    """Return the processes that run a script."""
    return [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and str(script).encode() in path.read_bytes()
    ]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    """Return what a run that is compared with its reference prints, and what it writes of its policy."""
    scenario = write_scenario(tmp_path_factory.mktemp("usual"))
    result = run(scenario, "", "--reference", "--check-sums", "--json", str(scenario.with_name("run.json")))
    assert result.exit_code == 0, result.output
    return result, json.loads(scenario.with_name("run.json").read_text())["policies"]["tensorexpress"]


@rest()
def test_a_run_of_a_script_has_the_losses_of_one_process_bit_for_bit(usual: tuple[Any, dict[str, Any]]) -> None:
    result, policy = usual
    assert re.search(
        r"Under tensorexpress the loss went from \S+ to \S+ in 3 steps; all of them are those", result.output
    )
    assert "Every sum was that of all workers' gradients, as far as rounding allows." in result.output
    assert len(policy["losses"]) == 3
    assert len(set(policy["losses"])) == 3
    assert policy["iteration_ms"] > policy["compute_ms"] > 0


@rest()
def test_ddp_over_sums_in_the_switch_that_lose_packets_stays_within_the_bound(
    small: Path, usual: tuple[Any, dict[str, Any]]
) -> None:
    output = small.with_name("run.json")
    result = run(small, "", "--check-sums", "--faults", "loss=5%", *SUMS, "--json", str(output), distribute=DDP)
    assert result.exit_code == 0, result.output
    assert "Every sum was that of all workers' gradients" in result.output
    losses = json.loads(output.read_text())["policies"]["tensorexpress+sum"]["losses"]
    assert losses == pytest.approx(usual[1]["losses"], rel=0, abs=SUM_BOUND)


@rest()
def test_a_script_that_waits_for_all_sums_is_predicted_with_a_barrier(
    small: Path, usual: tuple[Any, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = small.with_name("run.json")
    # A run starts its workers itself, whatever has started the run.
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    result = run(small, "", "-o", str(small.with_name("runs")), "--json", str(output), distribute=DDP)
    assert result.exit_code == 0, result.output
    assert "Under tensorexpress the script waited for all sums before each forward pass" in result.output
    path = str(small.with_name("runs") / "tensorexpress.trace")
    trace, plan = read_trace(path)
    assert plan.scenario.jobs[0].barrier
    assert plan == make_plan(plan.scenario, plan.policy)
    job = trace.jobs[0]
    assert np.all(job.updated_ps[:, :, 0] == job.updated_ps.max(axis=2))
    document = json.loads(output.read_text())
    assert document["policies"]["tensorexpress"]["waits_for_all"]
    assert isinstance(document["warnings"], list)
    assert CliRunner().invoke(main, ["compare", path]).exit_code == 0
    assert "waited for all sums" not in usual[0].output
    assert usual[1]["waits_for_all"] is False


#: A script that chooses its part of the data by itself, as a DistributedSampler does, and what it is given.
OWN_PART = {
    "for own, classes in session.shards(inputs, inputs[:, :5].argmax(dim=1)):": "if True:\n"
    "        own = inputs[session.worker :: session.workers]\n"
    "        classes = own[:, :5].argmax(dim=1)"
}


@rest(but=1)
@pytest.mark.parametrize(
    ("distribute", "more", "because"),
    [
        ("DDP", "", "the script never calls session.shards, so alone it has the data of one of 2 workers"),
        ("ENGINE", "", "the script never calls session.shards, so alone it has the data of one of 2 workers"),
        ("DDP", "assert torch.distributed.get_rank() == session.worker", "ValueError: Default process group has not"),
    ],
)
def test_a_reference_of_a_script_that_cannot_be_alone_sums_in_memory(
    small: Path, distribute: str, more: str, because: str
) -> None:
    own_part = OWN_PART if not more else {}
    result = run(small, more, "--reference", distribute={"DDP": DDP, "ENGINE": ENGINE}[distribute], replaced=own_part)
    assert result.exit_code == 0, result.output
    assert "The reference is a process for each worker, whose gradients are summed in memory" in result.output
    assert because in result.output
    assert "all of them are those of the reference, bit for bit" in result.output


@rest(but=1)
@pytest.mark.parametrize("distribute", [ENGINE, DDP])
def test_a_compiled_model_trains_as_the_one_before(small: Path, distribute: str) -> None:
    compiled = "torch.manual_seed(1)\nmodel[0] = torch.compile(model[0])\nmodel = torch.compile(model)\n"
    result = run(small, "", "--reference", distribute=compiled + distribute)
    assert result.exit_code == 0, result.output
    assert "all of them are those of one process, bit for bit" in result.output


@rest()
def test_a_reference_without_losses_or_with_other_steps_is_no_comparison(small: Path) -> None:
    no_loss = {".cross_entropy(model(own), classes).backward()": ".cross_entropy(model(own), classes).sum()"}
    result = run(small, "", "--reference", "--set", "job.workers=1", replaced=no_loss)
    assert result.exit_code == 2, result.output
    assert "--reference has no losses to compare" in result.output.splitlines()[-1]
    result = run(small, "", "--reference", "--set", "job.workers=1", replaced={"range(session.steps)": "range(2)"})
    assert result.exit_code == 2, result.output
    assert result.output.splitlines()[-1].endswith(
        "train.py (worker 0): the script made 2 steps; accepted: the 3 of the run (session.steps), which iterations "
        "and warmup of the scenario set"
    )


@rest()
def test_a_script_alone_that_has_the_data_of_one_worker_of_several_is_refused(small: Path) -> None:
    script = small.with_name("train.py")
    for distribute in (ENGINE, DDP):
        script.write_text(filled(distribute, "", OWN_PART))
        alone = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
        assert alone.returncode == 0, alone.stderr
        several = {**os.environ, "TENSOREXPRESS_WORKERS": "2"}
        result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=several)
        assert result.returncode == 1
        assert "NotAloneError: the script never calls session.shards" in result.stderr.splitlines()[-1]


def worst_difference(output: str) -> float:
    found = re.search(r"they differ from those of one process by (\S+) at most", output)
    return float(found[1]) if found else 0.0 if "bit for bit" in output else float("inf")


@rest(but=1)
def test_an_exception_in_a_script_is_one_line_with_its_place_and_nothing_is_left(small: Path) -> None:
    result = run(small, 'raise ValueError("no\\nmore")', "--set", "job.workers=1")
    line = SCRIPT.split("\n").index("    MORE") + 1
    script = small.with_name("train.py")
    assert result.exit_code == 2, result.output
    assert result.output.splitlines()[-1] == f"tensorexpress: error: {script}:{line} (worker 0): ValueError: no\\nmore"
    assert not processes_of(script)


def test_workers_that_start_with_other_parameters_are_refused(small: Path) -> None:
    plan = make_plan(read_scenario(small), parse_policy("fifo"))
    scripts = RunningScripts(plan, TrainingScript("train.py"))
    joined = [ProcessEvent("script", {"joined": digest}, script=worker) for worker, digest in enumerate("aab")]
    assert all(map(scripts.take, joined[1::-1]))
    with pytest.raises(InputError, match=r"train.py \(worker 2\) starts with other parameters than worker 0"):
        scripts.take(joined[2])
    scripts.end()


def test_what_does_not_go_with_a_script_is_refused_before_anything_is_started(small: Path) -> None:
    for arguments, message in (
        (("--check-sums",), "--check-sums without --script; accepted: with a script that trains"),
        (("--script", "nowhere.py"), "--script 'nowhere.py' is no file"),
        (("--script", __file__, "--scale", "2"), "--scale 2 with --script; accepted: 1"),
        (("--script", __file__, "--set", "cluster.bandwidth=10 Gbps"), "such as --set cluster.bandwidth="),
        (
            ("--script", __file__, "--set", "job.dtype=fp16"),
            "small has gradients of fp16; accepted with a script: fp32",
        ),
    ):
        result = CliRunner().invoke(main, ["run", str(small), "--wires", *arguments])
        assert result.exit_code == 2, result.output
        assert message in result.output


def test_a_missing_torch_is_an_error_that_names_the_cpu_build(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ends = set()
    for arguments in (
        ["run", str(small), "--script", __file__],
        ["profile", f"{__file__}:build", "-o", str(small.with_name("layers.csv"))],
    ):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1, result.output
        ends.add(result.output.splitlines()[-1])
    (line,) = ends
    assert line.startswith("tensorexpress: error: torch is not installed; install its CPU build")


@pytest.mark.skipif("TENSOREXPRESS_LONG_TRAINING" not in os.environ, reason="TENSOREXPRESS_LONG_TRAINING is not set")
@pytest.mark.parametrize("how", [(), ("--faults", "loss=5%"), (*SUMS, "--set", "cluster.bandwidth=5 Mbps")])
@pytest.mark.parametrize("model", ["transformer", "convnet"])
def test_200_steps_of_the_examples_have_the_losses_of_one_process(model: str, how: tuple[str, ...]) -> None:
    arguments = ["--set", "iterations=199", "--set", "warmup=1", "--policy", "tensorexpress", "--wires", *how]
    installed = str(Path(sys.executable).with_name("tensorexpress"))
    command = [installed, "run", f"{model}.toml", "--script", f"train_{model}.py", "--reference", "--check-sums"]
    result = subprocess.run([*command, *arguments], cwd=EXAMPLES, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    if "--policy" in how:
        assert worst_difference(result.stdout) <= LONG_SUM_BOUND[model]
    else:
        assert "all of them are those of one process, bit for bit" in result.stdout
