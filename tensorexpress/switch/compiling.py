"""Programs compiled in a process of their own, with bounds on its time and memory.

Whatever a client sends as a program is worked on there. Neither the forwarding nor the controlling process waits for
Python while it happens, and a program that takes too much ends that process and nothing else.
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

from tensorexpress import tied
from tensorexpress.errors import ProgramError
from tensorexpress.program_engines import AUTO, PYTHON
from tensorexpress.switch.operations import Operation
from tensorexpress.switch.program.bmv2.document import contradiction
from tensorexpress.switch.program.compiled import compile_program
from tensorexpress.switch.program.engines import make_pipeline

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


def _compile(document: bytes, engine: str) -> Compiled:
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
            answer, _ = process.communicate(document)
        except BaseException:
            process.kill()
            raise
    if process.returncode and engine == AUTO:
        logger.warning("the program runs in Python, not in native code: %s", _why(process.returncode))
        return _compile(document, PYTHON)
    if process.returncode:
        raise ProgramError(_why(process.returncode))
    problem, compiled = pickle.loads(answer)
    if problem is not None:
        raise ProgramError(problem)
    assert isinstance(compiled, Compiled)
    return compiled


def _why(status: int) -> str:
    """Return why compiling ended without an answer."""
    if status == -signal.SIGXCPU:
        return f"the program takes more than {LONGEST_SECONDS} s to compile; make it smaller"
    if status < 0:
        return f"the program is too large or too deeply nested to compile ({signal.Signals(-status).name})"
    return _NO_MEMORY


def main(parent: int, engine: str) -> None:
    """Compile what comes on standard input and write (problem, Compiled) to standard output, one of them None."""
    tied.end_with_parent(parent)
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_SECONDS, LONGEST_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST_MEMORY_BYTES, LARGEST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        outcome: tuple[str | None, Compiled | None] = (None, _compiled(sys.stdin.buffer.read(), engine))
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
