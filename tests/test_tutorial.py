"""The tutorial: every command on the page is run, in order, in a directory that is empty where a story begins."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.thorough import THOROUGH, rest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()


def blocks_of(first: int, last: int) -> list[str]:
    """Return the sh blocks of some chapters."""
    chapters = dict(re.findall(r"^## (\d+)\. (.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE))
    found = [
        block for n in range(first, last + 1) for block in re.findall(r"```sh\n(.*?)```", chapters[str(n)], re.DOTALL)
    ]
    if not THOROUGH:  # half as many iterations say as much
        found = [re.sub(r"(?<=iterations=)\d+", lambda few: str((int(few[0]) + 1) // 2), block) for block in found]
    return found


def follow(first: int, last: int, folder: Path) -> str:
    """Run all commands of some chapters in order, in a folder that has the examples alone, and return what they print.

    After the switch is started it waits for the line that a person would wait for.
    """
    wait = 'grep -q "is ready" <(tail -n +1 -f --pid=$! switch.log)'
    commands = [f"{block}\n{wait}" if "switch --rate" in block else block for block in blocks_of(first, last)]
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "tag.py").write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0])
    # Job control gives background processes a number and their own signals, as in a terminal.
    script = "\n".join(["set -em", *commands])
    with tempfile.TemporaryDirectory() as runtime:  # a path that is short enough for a socket
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": runtime,
        }
        ran = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def iterations(first: int, last: int) -> int:
    """Return how many iterations the run of some chapters has, with one that warms up."""
    (count,) = re.findall(r"iterations=(\d+)", "\n".join(blocks_of(first, last)))
    return int(count) + 1


def test_a_plan_is_put_on_a_switch_and_a_packet_comes_through(tmp_path: Path) -> None:
    printed = follow(1, 5, tmp_path)
    assert "tensor 0 came through with DSCP 40" in PAGE
    assert "tensor 0 came through with DSCP 40" in printed
    assert re.search("^s0 at unix:/.+/tensorexpress/switch-1.sock: nothing to do", printed, re.MULTILINE)


@rest()
def test_a_run_is_compared_with_its_prediction(tmp_path: Path) -> None:
    printed = follow(6, 7, tmp_path)
    assert f"every worker found every sum of {iterations(6, 7)} iterations exact" in printed
    gain = re.search(r"^blocking +.*?([\d.]+) +([\d.]+) +[+-][\d.]+$", printed, re.MULTILINE)
    assert gain is not None, printed
    assert float(gain[1]) > 0
    assert (tmp_path / "comparison.png").stat().st_size > 10_000


@rest()
def test_the_switch_sums(tmp_path: Path) -> None:
    printed = follow(8, 8, tmp_path)
    assert "sums in switches: root s0 of h0 h1 h2; servers have none" in printed
    assert f"every worker found every sum of {iterations(8, 8)} iterations exact" in printed


@rest()
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: pip install 'tensorexpress[torch]'")
def test_a_model_of_ones_own_is_profiled_predicted_and_trained(tmp_path: Path) -> None:
    printed = follow(9, 9, tmp_path)
    assert "transformer on the CPU with 1 thread, batch 8" in printed
    assert "layers, 4 workers, 2 servers; compute " in printed
    assert printed.count("all of them are those of one process, bit for bit") == 2
    assert (tmp_path / "trained.html").stat().st_size > 10_000


def test_no_command_of_the_page_is_left_out() -> None:
    assert len(blocks_of(1, 9)) == PAGE.count("```sh\n") > 0
