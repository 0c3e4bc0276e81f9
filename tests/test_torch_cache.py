"""`job.torch`: a model that a scenario names is profiled once, and its numbers are kept as long as they are good."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.thorough import rest

from tensorexpress.errors import TensorExpressError
from tensorexpress.plan import make_plan
from tensorexpress.plan_file import plan_text, read_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import Scenario, make_scenario, read_scenario
from tensorexpress.torch import profile_cache
from tensorexpress.user_cache import cache_directory

MODEL = """
import torch
import parts
print("told to the user")
with open(parts.LOG, "a") as log:
    log.write("built\\n")
def build():
    layers = torch.nn.Linear(4, parts.WIDTH), torch.nn.Linear(parts.WIDTH, 1)
    return torch.nn.Sequential(*layers), torch.ones(2, 4), torch.sum
"""
SCENARIO = '[job]\ntorch = "{}"\nworkers = 2\nservers = 1\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scenario, a model and what that imports; nothing is kept yet."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install 'tensorexpress[torch]'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(profile_cache, "_used", {})
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "model.py").write_text(MODEL)
    (inside / "parts.py").write_text(f"LOG = {str(tmp_path / 'log')!r}\nWIDTH = 3\n")
    (inside / "scenario.toml").write_text(SCENARIO.format("model.py:build"))
    return inside


@pytest.fixture
def built(folder: Path) -> Callable[[], int]:
    """How often the model was built."""
    log = folder.parent / "log"
    return lambda: len(log.read_text().splitlines()) if log.exists() else 0


def read(folder: Path, *overrides: str) -> Scenario:
    return read_scenario(str(folder / "scenario.toml"), list(overrides))


def refusal(folder: Path, *overrides: str) -> str:
    with pytest.raises(TensorExpressError) as caught:
        read(folder, *overrides)
    return str(caught.value)


@rest()
def test_a_model_is_profiled_once_until_a_file_of_it_changes(
    folder: Path, built: Callable[[], int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first = read(folder)
    workload = first.jobs[0].workload
    assert [(layer.name, layer.params) for layer in workload.layers] == [("0", 15), ("1", 4)]
    assert (workload.name, workload.batch, workload.dtype) == ("model", 2, "fp32")
    assert first.jobs[0].overhead_ps > 0
    told = capfd.readouterr()
    assert told.out == ""
    assert "profiling model.py:build, which runs it" in told.err
    assert "told to the user" in told.err

    monkeypatch.setattr(profile_cache, "_used", {})  # as in another process
    assert read(folder) == first
    assert read(folder, "job.overhead=0").jobs[0].overhead_ps == 0
    assert built() == 1
    assert [path.suffix for path in cache_directory("profiles").iterdir()] == [".json"]

    parts = folder / "parts.py"
    parts.write_text(parts.read_text().replace("WIDTH = 3", "WIDTH = 5"))
    assert [layer.params for layer in read(folder).jobs[0].workload.layers] == [25, 6]
    assert built() == 2


@rest(but=1)
def test_a_plan_holds_the_numbers_and_not_the_code_which_is_run_once_where_nothing_can_be_kept(
    folder: Path, built: Callable[[], int]
) -> None:
    kept = cache_directory("profiles")
    kept.mkdir(parents=True)
    kept.chmod(0o777)  # others could write what it holds
    (folder / "scenario.toml").write_text(SCENARIO.format("model:build"))  # a module beside it
    scenario = read(folder)
    assert read(folder) == scenario
    assert built() == 1
    assert not list(kept.iterdir())
    path = folder / "plan.json"
    text = plan_text(make_plan(scenario, POLICIES["fifo"]))
    path.write_text(text)
    assert read_plan(path).scenario.jobs == scenario.jobs
    assert not any(word in text for word in (":build", str(folder), '"torch"'))


def test_what_fails_is_said_in_a_line_and_not_kept(folder: Path) -> None:
    (folder / "model.py").write_text("def build():\n    print('{}')\n    return 1 / 0\n")
    where = f"{folder / 'scenario.toml'}: job.torch: model.py:build failed at model.py:3"
    assert refusal(folder).startswith(f"{where}: ZeroDivisionError: division by zero; mend it")
    (folder / "model.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    assert refusal(folder) == "model.py:build: profiling it ended with status -9 and no result"
    assert not list(cache_directory("profiles").iterdir())


@pytest.mark.parametrize("place", ["../outside.py", "link.py", "json", "os.path", "pkg.inner", "no.py"])
def test_a_scenario_runs_no_code_that_does_not_lie_beside_it(place: str, folder: Path) -> None:
    outside = folder.parent / "outside.py"
    outside.write_text(f"open({str(folder.parent / 'ran')!r}, 'w')\n")
    (folder / "link.py").symlink_to(outside)
    (folder / "pkg").symlink_to(folder.parent)
    (folder.parent / "inner.py").write_text(outside.read_text())
    (folder / "scenario.toml").write_text(SCENARIO.format(f"{place}:build"))
    message = refusal(folder)
    assert f"job.torch: {place}:build is no file in {str(folder)!r}; accepted: code beside the scenario" in message
    assert not (folder.parent / "ran").exists()


def test_whoever_names_code_on_the_command_line_may_name_any(folder: Path) -> None:
    outside = folder.parent / "outside.py"
    outside.write_text("build = 3\n")
    message = refusal(folder, f"job.torch={outside}:build")
    assert message.startswith(f"--set job.torch: {outside}:build: build is 3; accepted: FILE.py:FUNCTION")


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"torch": "model.py"}, "job.torch: found 'model.py'; accepted: FILE.py:FUNCTION or MODULE:FUNCTION"),
        ({"torch": 3}, "job.torch: found 3; accepted: FILE.py:FUNCTION or MODULE:FUNCTION, beside the scenario"),
        ({"torch": "a.py:b", "model": "vgg16"}, "job.torch: found beside model 'vgg16'; accepted: one of the two"),
        ({"torch": "a.py:b", "csv": "a.csv"}, "job.torch: found beside csv 'a.csv'; accepted: one of the two"),
        ({"torch": "a.py:b", "batch": 3}, "job.torch: found beside batch 3; accepted: one of the two"),
        ({"torch": "a.py:b", "dtype": "bf16"}, "job.torch: found beside dtype 'bf16'; accepted: one of the two"),
    ],
)
def test_what_does_not_go_together_is_refused(job: dict[str, object], message: str) -> None:
    with pytest.raises(TensorExpressError) as caught:
        make_scenario(job=job)
    assert message in str(caught.value)


def test_what_is_kept_and_makes_no_sense_is_not_good() -> None:
    good = json.dumps(
        {"files": {}, "name": "a", "dtype": "fp32", "batch": 1, "overhead_ps": 0, "layers": [["a", 1, 1, 1]]}
    )
    for content in (b"", b"[]", b'{"layers": [[1]]}', good.encode(), good.replace("[]", "[[0]]").encode()):
        assert not profile_cache._is_good(content)
