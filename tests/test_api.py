"""The front door: what `import tensorexpress` gives, and what docs/api.md says that it does."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import tensorexpress

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
NAMES = {*tensorexpress._MODULE_OF, "__version__"}


def test_the_page_lists_exactly_the_names_there_are() -> None:
    rows = re.findall(r"^\| (`.+?) \|", PAGE.read_text(), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == NAMES


def test_every_example_of_the_page_prints_what_it_says() -> None:
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False)
    assert (failed, attempted) == (0, 10)


def test_every_name_is_there_and_is_the_one_of_its_module() -> None:
    for name, module in tensorexpress._MODULE_OF.items():
        assert getattr(tensorexpress, name) is getattr(sys.modules[f"tensorexpress.{module}"], name)
    assert set(dir(tensorexpress)) >= NAMES
    assert tensorexpress.__version__ == version("tensorexpress")
    with pytest.raises(AttributeError, match="has no attribute 'fifo'"):
        tensorexpress.fifo  # noqa: B018 - it is the looking that matters


def test_type_checkers_are_told_of_the_same_names() -> None:
    tree = ast.parse(Path(tensorexpress.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    told = {
        alias.asname: f"{node.module}".removeprefix("tensorexpress.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == tensorexpress._MODULE_OF


def test_import_brings_nothing_heavy_with_it() -> None:
    script = "import sys, tensorexpress; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"numpy", "numba", "simpy", "grpc", "matplotlib", "scapy", "click"} & set(ran.stdout.split())
