"""Every console block of the README and of docs/ is run, and must print what stands there."""

import re
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.scenario import read_study

ROOT = Path(__file__).parent.parent


def console_blocks():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            command, _, expected = block.partition("\n")
            marks = () if page.name == "README.md" else rest()
            yield pytest.param(command, expected, id=f"{page.name}: {command}", marks=marks)


@cache  # some commands stand on two pages
def run(command):
    prompt, program, *arguments = shlex.split(command)
    assert (prompt, program) == ("$", "tensorexpress")
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(("command", "expected"), list(console_blocks()))
def test_a_console_block_prints_what_it_says(command, expected, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = run(command)
    assert result.exit_code == 0, result.output
    assert result.stdout.rstrip() == expected.rstrip()


def texts(picture):
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())


@rest()
def test_the_picture_of_the_readme_is_what_predict_draws(tmp_path):
    result = CliRunner().invoke(main, ["predict", "--plot", str(tmp_path / "predict.svg")])
    assert result.exit_code == 0, result.output
    assert len(texts(tmp_path / "predict.svg")) > 20
    assert texts(ROOT / "docs" / "predict.svg") == texts(tmp_path / "predict.svg")


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@rest()
def test_python_blocks_of_the_readme_run():
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})


def shell_predictions():
    """Yield the scenario and overrides of every `predict` in a sh block of the README that needs no file of its own."""
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["tensorexpress", "predict"] and "layers.csv" not in line:
                sets = [word for before, word in pairwise(words) if before == "--set"]
                scenario = next((word for word in words if word.endswith(".toml")), None)
                yield pytest.param(scenario, sets, id=line.partition("#")[0].strip())


@pytest.mark.parametrize(("scenario", "overrides"), list(shell_predictions()))
def test_scenarios_that_the_readme_predicts_are_accepted(scenario, overrides, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert read_study(scenario, overrides).scenario.jobs
