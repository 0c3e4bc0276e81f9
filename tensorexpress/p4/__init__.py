"""The P4 program: assembled from one control per file, and what p4c made of it.

It is the directory `p4/` of a checkout, which installs as `tensorexpress/p4/program`. There is no Python in it: a
package `p4` of ours would hide that of P4Runtime from whoever starts Python in a checkout. Its `build/` holds p4c's
JSON for BMv2 and P4Info, so that nobody needs a P4 compiler, and a stamp that says which sources and which p4c they
came from. `define.py` here holds the constants of its `include/define.p4` for Python.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensorexpress.errors import InputError, MachineError, ProgramError
from tensorexpress.files import make_directory, write_atomic
from tensorexpress.text import json_text

_PACKAGE = Path(__file__).parent
HERE = next(path for path in (_PACKAGE / "program", _PACKAGE.parents[1] / "p4") if path.is_dir())
BUILD = HERE / "build"
NAME = "tensorexpress"
DEFINE = _PACKAGE / "define.py"


@dataclass(frozen=True)
class Stamp:
    """Where a build came from."""

    #: SHA-256 over the names and contents of all P4 sources.
    sources: str
    #: What `p4c-bm2-ss --version` said.
    p4c: str


@dataclass(frozen=True)
class P4Program:
    """What a switch needs to run a P4 program, and a controller to talk about it."""

    #: BMv2 JSON.
    document: bytes
    #: P4Info in text form.
    p4info: str
    stamp: Stamp


def source_files() -> list[Path]:
    """Return the P4 sources, in an order that is the same everywhere."""
    return sorted([*HERE.glob("*.p4"), *HERE.glob("include/*.p4")])


def source_hash() -> str:
    """Return the hash that a build of the present sources is stamped with."""
    digest = hashlib.sha256()
    for path in source_files():
        digest.update(f"{path.relative_to(HERE).as_posix()}\n{path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def included() -> list[str]:
    """Return the names of the files that the program is made of, in its order.

    >>> included()[:2]
    ['define', 'headers']
    """
    return re.findall(r'^#include "include/(\w+)\.p4"', (HERE / f"{NAME}.p4").read_text(), re.MULTILINE)


def define_text() -> str:
    """Return what `define.py` has to be, by `include/define.p4`."""
    from tensorexpress.p4.constants import module_text

    return module_text((HERE / "include" / "define.p4").read_text())


def load(directory: Path = BUILD) -> P4Program:
    """Return the program as it was built last.

    >>> load().stamp.sources == source_hash()
    True
    """
    try:
        return P4Program(
            document=(directory / f"{NAME}.json").read_bytes(),
            p4info=(directory / f"{NAME}.p4info.txtpb").read_text(),
            stamp=Stamp(**json.loads((directory / "stamp.json").read_text())),
        )
    except (OSError, ValueError, TypeError) as error:
        raise ProgramError(f"{directory}: holds no build ({error}); make one with `tensorexpress p4 build`") from None


def find_p4c(path: str | None = None) -> str:
    """Return the compiler to use: the one named, or p4c's BMv2 compiler on PATH."""
    found = shutil.which(path or "p4c-bm2-ss")
    if found is not None:
        return found
    if path is not None:
        raise InputError(f"--p4c {path!r}: is no program; accepted: the path or name of p4c's p4c-bm2-ss")
    raise MachineError("p4c-bm2-ss is not on PATH; install p4c, or name its BMv2 compiler with --p4c")


def p4c_version(p4c: str) -> str:
    """Return the version that a compiler says it has."""
    try:
        ran = subprocess.run([p4c, "--version"], capture_output=True, check=False)
    except OSError as error:  # found by its name, and yet no program
        raise InputError(f"{p4c}: {error.strerror}; accepted: p4c's p4c-bm2-ss") from None
    version = re.search(r"Version (\S+)", (ran.stdout + ran.stderr).decode(errors="replace"))
    if version is None:
        raise InputError(f"{p4c} --version does not say a version; accepted: p4c's p4c-bm2-ss")
    return version[1]


def compile_source(p4c: str, source: Path, *, accepts_warnings: bool = False) -> tuple[dict[str, Any], str]:
    """Return BMv2 JSON and P4Info of a P4 source; ProgramError with p4c's words if it has any, warnings included."""
    with tempfile.TemporaryDirectory() as scratch:
        json_path, p4info_path = Path(scratch, "out.json"), Path(scratch, "out.p4info.txtpb")
        command = [p4c, "--arch", "v1model", "-o", str(json_path), "--p4runtime-files", str(p4info_path), source.name]
        # Compiled in place, so that no path of this machine finds its way into the output.
        ran = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=False)
        if ran.returncode or (ran.stderr.strip() and not accepts_warnings):
            raise ProgramError(f"p4c refuses {source.name}: {' '.join((ran.stderr or ran.stdout).split())}")
        return _without_source_info(json.loads(json_path.read_bytes())), p4info_path.read_text()


def build(p4c: str, directory: Path = BUILD) -> P4Program:
    """Compile the program and replace the build in `directory`; the package's own takes its constants along."""
    stamp = Stamp(source_hash(), p4c_version(p4c))
    document, p4info = compile_source(p4c, HERE / f"{NAME}.p4")
    make_directory(directory)
    write_atomic(directory / f"{NAME}.json", json_text(document))
    write_atomic(directory / f"{NAME}.p4info.txtpb", p4info)
    write_atomic(directory / "stamp.json", json_text(asdict(stamp)))
    if directory == BUILD:
        write_atomic(DEFINE, define_text())
    return load(directory)


def _without_source_info(node: Any) -> Any:
    """Drop line numbers: they would change the build with every comment, and halve its use in a diff."""
    if isinstance(node, dict):
        return {key: _without_source_info(value) for key, value in node.items() if key != "source_info"}
    return [_without_source_info(item) for item in node] if isinstance(node, list) else node
