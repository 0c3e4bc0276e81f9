"""The tutorial: every command on the page is run, in order, in an empty directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from support.thorough import THOROUGH

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
HAS_TORCH = find_spec("torch") is not None


def script() -> str:
    """Return all sh blocks as one script; after the switch is started it waits for the line that a person would."""
    wait = 'grep -q "is ready" <(tail -n +1 -f --pid=$! switch.log)'
    blocks = [
        block
        for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
        if HAS_TORCH or not any(name in block for name in ("examples/torch", "layers.csv", "trained"))
    ]
    if not THOROUGH:  # half as many iterations say as much
        blocks = [re.sub(r"(?<=iterations=)\d+", lambda few: str((int(few[0]) + 1) // 2), block) for block in blocks]
    # Job control gives background processes a number and their own signals, as in a terminal.
    return "\n".join(["set -em", *(f"{block}\n{wait}" if "switch --rate" in block else block for block in blocks)])


def test_the_commands_of_the_tutorial_lead_where_it_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "tag.py").write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0])
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-c", script()], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "tensor 0 came through with DSCP 40" in PAGE
    assert "tensor 0 came through with DSCP 40" in ran.stdout
    assert "s0 at 127.0.0.1:9559: nothing to do" in ran.stdout
    # One more warms up.
    first, second, *_ = [int(count) + 1 for count in re.findall(r"iterations=(\d+)", script())]
    assert first != second
    assert f"every worker found every sum of {first} iterations exact" in ran.stdout
    assert "sums in switches: root s0 of h0 h1 h2; servers have none" in ran.stdout
    assert f"every worker found every sum of {second} iterations exact" in ran.stdout
    gain = re.search(r"^blocking +.*?([\d.]+) +([\d.]+) +[+-][\d.]+$", ran.stdout, re.MULTILINE)
    assert gain is not None, ran.stdout
    assert float(gain[1]) > 0
    if HAS_TORCH:
        assert "transformer on the CPU with 1 thread, batch 8" in ran.stdout
        assert "layers, 4 workers, 2 servers; compute " in ran.stdout
        assert ran.stdout.count("all of them are those of one process, bit for bit") == 2
        assert (tmp_path / "trained.html").stat().st_size > 10_000
    assert (tmp_path / "comparison.png").stat().st_size > 10_000
