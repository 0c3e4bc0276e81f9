"""A compiled program as a pipeline that packets can pass: in machine code where there is some, else in Python."""

from __future__ import annotations

from tensorexpress.program_engines import PYTHON
from tensorexpress.switch.program.compiled import CompiledProgram
from tensorexpress.switch.program.pipeline import Pipeline


def warm_up(engine: str) -> None:
    """Load what an engine needs, so that packets do not wait for it when the first program comes."""
    if engine != PYTHON:
        try:
            from tensorexpress.switch.program.native.compiler import start_linker
        except ImportError:  # then programs run in Python, and a line says why
            return
        start_linker()


def machine_key(engine: str) -> bytes:
    """Return what a program that is compiled for an engine depends on, of this machine."""
    if engine == PYTHON:
        return b""
    try:
        from tensorexpress.switch.program.native.compiler import processor_key
    except ImportError:  # then the compiled program is one for Python, and says why
        return b"no LLVM"
    return processor_key()


def make_pipeline(program: CompiledProgram, seed: int = 0) -> Pipeline:
    """Return a pipeline; const entries are left to the caller."""
    if program.native is None:
        return Pipeline(program, seed)
    from tensorexpress.switch.program.native.pipeline import NativePipeline  # it needs LLVM

    return NativePipeline(program, seed)
