"""The researcher's page: its blocks are one script, which prints what stands there and leaves table and figures."""

from __future__ import annotations

import ast
import csv
import os
import re
import subprocess
import sys
from pathlib import Path

from support.thorough import rest

import tensorexpress

PAGE = (Path(__file__).parents[1] / "docs" / "study.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_scripts_use_what_there_is() -> None:
    """Running them takes long; that names of the library are still there is known at once."""
    attributes = [
        node for block in blocks("python") for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Attribute)
    ]
    names = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "te"}
    assert {"predict", "sweep"} <= names
    assert all(hasattr(tensorexpress, name) for name in names)


@rest()
def test_the_scripts_print_what_the_page_says_and_leave_its_files(tmp_path: Path) -> None:
    *study, on_all_cores = blocks("python")
    printed = ""
    for name, script in (("study.py", "\n".join(study)), ("on_all_cores.py", on_all_cores)):
        (tmp_path / name).write_text(script)
        environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path)}
        ran = subprocess.run(
            [sys.executable, name], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        printed += ran.stdout
    assert printed == "".join(blocks("text"))
    rows = list(csv.DictReader((tmp_path / "bandwidth.csv").read_text().splitlines()))
    assert {row["version"] for row in rows} == {tensorexpress.__version__}
    first = min(row["scenario_digest"] for row in rows)
    made_by = f"tensorexpress {tensorexpress.__version__}, scenarios {first}".encode()
    assert made_by in (tmp_path / "bandwidth.png").read_bytes()
    assert made_by in (tmp_path / "bandwidth.pdf").read_bytes()
