"""Every console block of the README and of docs/ is run, and must print what stands there."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import main

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


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@rest()
def test_python_blocks_of_the_readme_run():
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
