"""The source distribution holds what the checkout holds, so that its tests run from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: In a checkout, and of no use outside of it.
LEFT_OUT = {".gitignore"}


def files_of_the_checkout() -> set[str]:
    """Return the files that belong to the project, those not yet committed included."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("only a git checkout says which files belong to the project")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def test_the_sdist_holds_every_file_of_the_checkout(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    wanted = files_of_the_checkout()
    copy = tmp_path / "checkout"
    for name in wanted:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    build = "from setuptools import build_meta; build_meta.build_sdist('..')"
    subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        held = {member.name.partition("/")[2] for member in packed if member.isfile()}
    assert wanted - held == LEFT_OUT
