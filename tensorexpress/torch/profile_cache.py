"""Profiles for scenarios: a function that `job.torch` names is run once, in a process of its own, and its numbers kept.

Kept numbers are good as long as all of the user's files that were loaded to build the model are what they were, on the
same machine, with the same torch and as many threads. This process neither imports torch nor runs the user's code.

A scenario may come from somebody else. So a function that a file names must lie beside the file: a scenario alone can
run nothing, as little as a Makefile alone can. Whoever names one on a command line may name any.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorexpress import tied
from tensorexpress.errors import InputError, MachineError, WorkloadError
from tensorexpress.torch.profile_source import ModelSource, check_torch
from tensorexpress.user_cache import cached
from tensorexpress.workload import Layer, Workload

#: Counts up with what is kept and with how it is measured.
_VERSION = 1

#: What else decides how fast torch computes.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES")

#: Profiles that this process has used, by what they are kept under, so that all scenarios of a sweep have the same
#: numbers, also where nothing can be kept.
_used: dict[str, bytes] = {}


@dataclass(frozen=True)
class KeptProfile:
    """What a scenario takes of a profile."""

    workload: Workload
    overhead_ps: int


def profiled(source: ModelSource) -> KeptProfile:
    """Return the profile of what a function builds: the one that is kept, if it is still good, else a new one."""
    check_torch()
    key = _key(source)
    if key not in _used or not _is_good(_used[key]):
        _used[key] = cached("profiles", f"{key}.json", lambda: _measure(source), _is_good)
    kept = _read(_used[key])
    if kept is None:
        raise MachineError(f"{source}: its profile is no profile; remove it from the cache, then try again")
    return kept


def check_beside(source: ModelSource) -> None:
    """Raise WorkloadError unless the code of a function lies in its folder or below."""
    folder = source.folder.resolve()
    module = folder.joinpath(*source.place.split("."))
    places = [source.path] if source.path else [module.with_name(f"{module.name}.py"), module / "__init__.py"]
    if not any(os.path.isfile(place) and place.resolve().is_relative_to(folder) for place in places):
        raise WorkloadError(
            f"{source} is no file in {str(folder)!r}; accepted: code beside the scenario that names it, as it is run; "
            "other code with --set job.torch=..."
        )


def as_json(workload: Workload, overhead_ps: int, files: dict[str, str]) -> dict[str, Any]:
    """Return what is kept of a profile; `files` has the digest of every file of the user's that it came from."""
    layers = [[layer.name, layer.params, layer.forward_ps, layer.backward_ps] for layer in workload.layers]
    return {
        "files": files,
        "name": workload.name,
        "dtype": workload.dtype,
        "batch": workload.batch,
        "overhead_ps": overhead_ps,
        "layers": layers,
    }


def digest(path: Path) -> str:
    """Return what tells the content of a file from any other; "" where there is none to be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _key(source: ModelSource) -> str:
    place = str(source.path.resolve()) if source.path else f"{source.folder.resolve()} {source.place}"
    parts = [
        _VERSION,
        place,
        source.function,
        *(importlib.metadata.version(package) for package in ("tensorexpress", "torch")),
        sys.version,
        platform.node(),
        _processor(),
        len(os.sched_getaffinity(0)),
        *(os.environ.get(name, "") for name in _VARIABLES),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line
    return platform.machine()


def _measure(source: ModelSource) -> bytes:
    """Profile in a process of its own, which ends with this one, and return what is kept of it."""
    words = [sys.executable, "-P", "-m", "tensorexpress.torch.profile_process", str(os.getpid())]
    process = tied.start([*words, source.place, source.function, str(source.folder.resolve())], stdout=subprocess.PIPE)
    try:
        content, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    try:
        found = json.loads(content)
    except ValueError:
        raise MachineError(f"{source}: profiling it ended with status {process.returncode} and no result") from None
    if "error" in found:
        raise (WorkloadError if found["is_input"] else MachineError)(found["error"])
    return content


def _is_good(content: bytes) -> bool:
    """Whether what is kept can be read, and all files that it came from are what they were."""
    if _read(content) is None:
        return False
    files: dict[str, str] = json.loads(content)["files"]
    return bool(files) and all(digest(Path(path)) == found for path, found in files.items())


def _read(content: bytes) -> KeptProfile | None:
    try:
        found = json.loads(content)
        layers = tuple(Layer(*fields) for fields in found["layers"])
        workload = Workload(found["name"], layers, found["dtype"], batch=found["batch"])
        return KeptProfile(workload, int(found["overhead_ps"]))
    except (ValueError, TypeError, KeyError, InputError):
        return None
