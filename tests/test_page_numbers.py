"""Runs the scripts and sweeps of sections with tables: they must print every number with decimals in these tables."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.pages import section
from support.thorough import THOROUGH, rest

from tensorexpress.cli import main

ROOT = Path(__file__).parents[1]
SECTIONS = {
    "aggregation.md": ["### Order, sum, both"],
    "policies.md": [
        "## Deadlines, not layers",
        "## A window for every class",
        "### What the switch adds",
        "## Why slices of 32 KB",
    ],
    "training-today.md": ["## Where does priority help?"],
}
#: Sections whose scripts take minutes, because they simulate with the SimPy engine.
SLOW = {"## Deadlines, not layers"}


def printed_by(text: str) -> list[float]:
    """Return all numbers that the scripts and the sweeps of a section print."""
    printed = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language == "python" and ">>>" not in block:
            ran = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=True, cwd=ROOT)
            printed.append(ran.stdout)
        elif language == "sh":
            for line in block.replace("\\\n", " ").splitlines():
                program, *arguments = shlex.split(line)
                assert program == "tensorexpress", line
                result = CliRunner().invoke(main, arguments)
                assert result.exit_code == 0, result.output
                printed.append(result.stdout)
    return [float(number) for number in re.findall(r"\d+\.\d+", "\n".join(printed))]


def own_section(page: str, heading: str) -> str:
    """Return a section without the sections below it."""
    text, _, _ = re.sub(
        r"^```.*?^```",
        lambda code: code[0].replace("\n#", "\n #"),
        section(page, heading),
        flags=re.DOTALL | re.MULTILINE,
    ).partition("\n##")
    return text


@rest()
@pytest.mark.parametrize(("page", "heading"), [(page, heading) for page in SECTIONS for heading in SECTIONS[page]])
def test_a_script_prints_the_numbers_of_the_table_above_it(page: str, heading: str) -> None:
    if heading in SLOW and not THOROUGH:
        pytest.skip("takes minutes: a case of `make thorough`")
    text = own_section(page, heading)
    rows = "\n".join(re.findall(r"^\| .*\|$", text, re.MULTILINE)[1:])
    # Ratios (1.23x), rates and sizes of rows, and counts in millions are other forms of what a script prints.
    numbers = re.findall(r"(?<![\d.])\d+\.\d+(?!\d*x|\d| M| Gbps)", rows)
    assert len(numbers) > 5
    printed = printed_by(text)
    for number in numbers:
        half = 0.5 * 10 ** -len(number.partition(".")[2])
        assert any(abs(value - float(number)) <= half * 1.001 for value in printed), f"no script prints {number}"
