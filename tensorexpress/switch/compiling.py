"""Programs compiled in a process of their own, with bounds on its time and memory.

Whatever a client sends as a program is worked on there. Neither the forwarding nor the controlling process waits for
Python while it happens, and a program that takes too much ends that process and nothing else. What came out is kept for
its user: a switch that starts with a program which one had before starts at once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tensorexpress import tied
from tensorexpress.errors import ProgramError
from tensorexpress.program_engines import AUTO, PYTHON
from tensorexpress.switch.operations import Operation
from tensorexpress.switch.program.bmv2.document import contradiction
from tensorexpress.switch.program.compiled import compile_program
from tensorexpress.switch.program.engines import machine_key, make_pipeline
from tensorexpress.user_cache import cached

logger = logging.getLogger(__name__)

#: What compiling one program may take; our own takes about half a second and 40 MB.
LONGEST_SECONDS = 30
LARGEST_MEMORY_BYTES = 1 << 30

_NO_MEMORY = f"the program takes more than {LARGEST_MEMORY_BYTES >> 20} MiB of memory to compile; make it smaller"

#: Programs kept: to verify, to save and to commit one compiles it once.
_MOST_KEPT = 4
#: How much of the processor compiling leaves to forwarding where both need it.
_NICENESS = 10


@dataclass(frozen=True)
class Compiled:
    """A program for the forwarding process."""

    #: A pickled `CompiledProgram`, without source and entries; no other process looks into it.
    program: bytes
    #: The const entries, to be set before the first packet.
    entries: Sequence[Operation]


_one_at_a_time = threading.Lock()
_kept: dict[tuple[bytes, str], Compiled] = {}


def compile_beside(document: bytes, engine: str = PYTHON) -> Compiled:
    """Compile BMv2 JSON for an engine in another process; ProgramError says why it cannot be."""
    key = hashlib.sha256(document).digest(), engine
    kept = _kept.get(key)  # without waiting for whatever else is being compiled
    if kept is not None:
        return kept
    with _one_at_a_time:
        if key not in _kept:
            compiled = _compile(document, engine)
            if len(_kept) >= _MOST_KEPT:
                del _kept[next(iter(_kept))]
            _kept[key] = compiled
        return _kept[key]


class _NoAnswerError(Exception):
    """Compiling ended without saying what came of it."""


def _compile(document: bytes, engine: str) -> Compiled:
    try:
        answer = cached("programs", f"{_key(document, engine)}.pickle", lambda: _answer(document, engine))
    except _NoAnswerError as why:
        if engine != AUTO:
            raise ProgramError(str(why)) from None
        logger.warning("the program runs in Python, not in native code: %s", why)
        return _compile(document, PYTHON)
    compiled = pickle.loads(answer)
    assert isinstance(compiled, Compiled)
    return compiled


def _key(document: bytes, engine: str) -> str:
    """Return what a compiled program is kept under: it is compiled anew when anything changes that it is made from."""
    made_by = _sources() + f"{sys.version}\0{engine}\0".encode() + machine_key(engine)
    return hashlib.sha256(made_by + b"\0" + document).hexdigest()


@cache
def _sources() -> bytes:
    """Return a digest of all files that have a word in what is compiled."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*")):
        if path.suffix in {".py", ".ll"}:
            digest.update(path.read_bytes())
    return digest.digest()


def _answer(document: bytes, engine: str) -> bytes:
    """Return a pickled `Compiled`, made in another process."""
    process = tied.start(
        [
            sys.executable,
            "-P",
            "-c",
            f"from tensorexpress.switch.compiling import main; main({os.getpid()}, {engine!r})",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    with process:
        try:
            outcome, _ = process.communicate(document)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise _NoAnswerError(_why(process.returncode))
    problem, answer = pickle.loads(outcome)
    if problem is not None:
        raise ProgramError(problem)
    assert isinstance(answer, bytes)
    return answer


def _why(status: int) -> str:
    """Return why compiling ended without an answer."""
    if status == -signal.SIGXCPU:
        return f"the program takes more than {LONGEST_SECONDS} s to compile; make it smaller"
    if status < 0:
        return f"the program is too large or too deeply nested to compile ({signal.Signals(-status).name})"
    return _NO_MEMORY


def main(parent: int, engine: str) -> None:
    """Compile what comes on standard input; write (problem, pickled Compiled), one of them None, to standard output."""
    tied.end_with_parent(parent)
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_SECONDS, LONGEST_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST_MEMORY_BYTES, LARGEST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        compiled = _compiled(sys.stdin.buffer.read(), engine)
        outcome: tuple[str | None, bytes | None] = (None, pickle.dumps(compiled, pickle.HIGHEST_PROTOCOL))
    except ProgramError as error:
        outcome = (str(error), None)
    except MemoryError:
        outcome = (_NO_MEMORY, None)
    except Exception as error:  # of a document that p4c never wrote
        outcome = (str(contradiction(error)), None)
    sys.stdout.buffer.write(pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL))


def _compiled(document: bytes, engine: str) -> Compiled:
    program = compile_program(document, engine)
    pipeline = make_pipeline(program)
    for entry in program.entries:  # what cannot be loaded fails here, not where packets pass
        pipeline.apply(entry)
    lean = replace(program, source="", entries=())
    return Compiled(pickle.dumps(lean, pickle.HIGHEST_PROTOCOL), program.entries)
