"""Runs a page of docs/ from top to bottom: Python as doctests, commands as commands, and their output compared."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tensorexpress.cli import main

DOCS = Path(__file__).parents[2] / "docs"

_BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def section(page: str, heading: str) -> str:
    """Return what stands under a heading of a page."""
    _, found, rest = (DOCS / page).read_text().partition(f"\n{heading}\n")
    assert found, f"{page} has no heading {heading!r}"
    level = heading.partition(" ")[0]
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def run_blocks(text: str, names: dict[str, Any] | None = None) -> int:
    """Run all blocks in the working directory and return how many outputs of commands were compared.

    A `text` block is what the commands of the `sh` block before it print. `names` are there for Python already.
    """
    names, printed, compared = dict(names or {}), "", 0
    for kind, block in _BLOCK.findall(text):
        if kind == "python":
            _run_python(block, names)
        elif kind == "sh":
            printed = "".join(_run_command(line) for line in block.replace("\\\n", " ").splitlines())
        else:
            assert printed.rstrip() == block.rstrip()
            compared += 1
    return compared


def _run_python(block: str, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(block, names, "a page", "a page", 0)
    assert test.examples, f"not written as a session: {block}"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    runner.run(test, out=said.append, clear_globs=False)
    assert runner.failures == 0, "".join(said)
    names.update(test.globs)


def _run_command(line: str) -> str:
    program, *arguments = shlex.split(line)
    assert program == "tensorexpress", line
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout
