"""Programs compiled in a process of their own, with bounds on its time and memory.

Whatever a client sends as a program is worked on there. Neither the forwarding nor the controlling process waits for
Python while it happens, and a program that takes too much ends that process and nothing else. What came out is kept for
its user: a switch that starts with a program which one had before starts at once.

To optimise machine code takes longer than all else. So packets pass a program as soon as it is machine code at all, and
another process with the same bounds optimises it meanwhile.
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
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tensorexpress import tied
from tensorexpress.errors import ProgramError, TensorExpressError
from tensorexpress.program_engines import AUTO, PYTHON
from tensorexpress.switch.operations import SetEntry
from tensorexpress.switch.program.bmv2.document import contradiction
from tensorexpress.switch.program.compiled import CompiledProgram, compile_program, optimise_program
from tensorexpress.switch.program.engines import machine_key, make_pipeline
from tensorexpress.user_cache import cached, keep

logger = logging.getLogger(__name__)

#: What compiling one program may take, and optimising it; our own takes about 1 s and 2 s.
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
    entries: tuple[SetEntry, ...]
    #: The LLVM IR of its machine code, where that is not optimised.
    ir: str = ""


#: A digest of a program, and the engine that it is compiled for.
_Key = tuple[bytes, str]

#: Takes what was optimised: a pickled `CompiledProgram`.
_Take = Callable[["Optimisation", bytes], None]

_one_at_a_time = threading.Lock()
_kept: dict[_Key, Compiled] = {}
#: Held for a moment, whenever one of these two changes.
_changing = threading.Lock()
_optimisations: dict[_Key, Optimisation] = {}


def compile_beside(document: bytes, engine: str = PYTHON) -> Compiled:
    """Compile BMv2 JSON for an engine in another process; ProgramError says why it cannot be."""
    key = _key(document, engine)
    kept = _kept.get(key)  # without waiting for whatever else is being compiled
    if kept is not None:
        return kept
    with _one_at_a_time:
        kept = _kept.get(key)
        if kept is None:
            kept = _compile(document, engine)
            _remember(key, kept)
        return kept


def _key(document: bytes, engine: str) -> _Key:
    return hashlib.sha256(document).digest(), engine


def _remember(key: _Key, compiled: Compiled) -> None:
    with _changing:
        if key not in _kept and len(_kept) >= _MOST_KEPT:
            del _kept[next(iter(_kept))]
        _kept[key] = compiled


class _NoAnswerError(Exception):
    """Compiling ended without saying what came of it."""


def _compile(document: bytes, engine: str) -> Compiled:
    call = f"compile_here({os.getpid()}, {engine!r})"
    try:
        answer = cached("programs", _name(document, engine), lambda: _answer(_start(call), document))
    except _NoAnswerError as why:
        if engine != AUTO:
            raise ProgramError(str(why)) from None
        logger.warning("the program runs in Python, not in native code: %s", why)
        return _compile(document, PYTHON)
    compiled = pickle.loads(answer)
    assert isinstance(compiled, Compiled)
    return compiled


def _name(document: bytes, engine: str) -> str:
    """Return what a compiled program is kept under: it is compiled anew when anything changes that it is made from."""
    made_by = _sources() + f"{sys.version}\0{engine}\0".encode() + machine_key(engine)
    digest = hashlib.sha256(made_by + b"\0" + document).hexdigest()
    return f"{digest}.pickle"


@cache
def _sources() -> bytes:
    """Return a digest of all files that have a word in what is compiled."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*")):
        if path.suffix in {".py", ".ll"}:
            digest.update(path.read_bytes())
    return digest.digest()


def _start(call: str) -> subprocess.Popen[bytes]:
    """Start a process that calls one of the functions below."""
    return tied.start(
        [sys.executable, "-P", "-c", f"from tensorexpress.switch import compiling; compiling.{call}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )


def _answer(process: subprocess.Popen[bytes], given: bytes) -> bytes:
    """Return the pickled `Compiled` that a process makes of what it is given."""
    with process:
        try:
            outcome, _ = process.communicate(given)
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


class Optimisation:
    """The machine code of a program being optimised in another process, for all in this one who run the program.

    It ends with the last of those who have joined it: then its process is gone, and its thread.
    """

    def __init__(self, document: bytes, engine: str, compiled: Compiled):
        self._document, self._engine, self._compiled = document, engine, compiled
        self._takers: list[_Take] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="optimisation", daemon=True)

    @staticmethod
    def join(document: bytes, engine: str, compiled: Compiled, take: _Take) -> Optimisation:
        """Have `take` called, in another thread, with this and the program as a `Compiled` has it, once it is there."""
        key = _key(document, engine)
        with _changing:
            joined = _optimisations.get(key)
            if joined is None:
                joined = _optimisations[key] = Optimisation(document, engine, compiled)
                joined._thread.start()
            joined._takers.append(take)
        return joined

    def leave(self, take: _Take) -> None:
        """Want it no more; if nobody else does, it has ended when this returns."""
        with _changing:
            if take in self._takers:
                self._takers.remove(take)
            if self._takers:
                return
            self._retire()
            if self._process is not None:
                self._process.kill()
        self._thread.join()

    def wait(self) -> None:
        """Return when it has come to an end, and all have what came of it."""
        self._thread.join()

    def _retire(self) -> None:
        """Let nobody join any more."""
        key = _key(self._document, self._engine)
        if _optimisations.get(key) is self:
            del _optimisations[key]

    def _run(self) -> None:
        why = ""
        try:
            self._make()
        except (OSError, TensorExpressError, _NoAnswerError) as error:
            why = str(error)
        with _changing:
            self._retire()
            takers = list(self._takers)
        if why and takers:
            logger.warning("packets go on through machine code that is not optimised: %s", why)
            return
        for take in takers:
            try:
                take(self, self._compiled.program)
            except TensorExpressError as error:
                logger.warning("packets go on through machine code that is not optimised: %s", error)

    def _make(self) -> None:
        with _changing:
            if not self._takers:  # all have left before it began
                return
            self._process = _start(f"optimise_here({os.getpid()})")
        answer = _answer(self._process, pickle.dumps(self._compiled, pickle.HIGHEST_PROTOCOL))
        keep("programs", _name(self._document, self._engine), answer)
        self._compiled = pickle.loads(answer)
        _remember(_key(self._document, self._engine), self._compiled)


def compile_here(parent: int, engine: str) -> None:
    """Compile a document that comes on standard input."""
    _work(parent, lambda given: _compiled(compile_program(given, engine, optimised=False)))


def optimise_here(parent: int) -> None:
    """Optimise a `Compiled` that comes on standard input."""
    _work(parent, lambda given: _optimised(pickle.loads(given)))


def _work(parent: int, make: Callable[[bytes], Compiled]) -> None:
    """Within bounds, write (problem, pickled Compiled), one of them None, to standard output."""
    tied.end_with_parent(parent)
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_SECONDS, LONGEST_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST_MEMORY_BYTES, LARGEST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        compiled = make(sys.stdin.buffer.read())
        outcome: tuple[str | None, bytes | None] = (None, pickle.dumps(compiled, pickle.HIGHEST_PROTOCOL))
    except ProgramError as error:
        outcome = (str(error), None)
    except (MemoryError, OSError):  # a library for which there is no memory is said not to be found
        outcome = (_NO_MEMORY, None)
    except Exception as error:  # of a document that p4c never wrote
        outcome = (str(contradiction(error)), None)
    sys.stdout.buffer.write(pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL))


def _compiled(program: CompiledProgram) -> Compiled:
    pipeline = make_pipeline(program)
    for entry in program.entries:  # what cannot be loaded fails here, not where packets pass
        pipeline.apply(entry)
    native = program.native
    lean = replace(program, source="", entries=(), native=native and replace(native, ir=""))
    return Compiled(pickle.dumps(lean, pickle.HIGHEST_PROTOCOL), program.entries, native.ir if native else "")


def _optimised(compiled: Compiled) -> Compiled:
    program = optimise_program(pickle.loads(compiled.program), compiled.ir)
    return _compiled(replace(program, entries=compiled.entries))
