"""A compiled program as a pipeline that packets can pass: in machine code where there is some, else in Python."""

from __future__ import annotations

from tensorexpress.processor import processor_kind
from tensorexpress.program_engines import PYTHON, is_checked
from tensorexpress.switch.program.compiled import CompiledProgram
from tensorexpress.switch.program.pipeline import Pipeline


def warm_up(engine: str) -> None:
    """Load what an engine needs, so that packets do not wait for it when the first program comes."""
    if engine != PYTHON:
        try:
            from tensorexpress.machine_code import start_linker
        except ImportError:  # then programs run in Python, and a line says why
            return
        start_linker()


def machine_key(engine: str) -> bytes:
    """Return what a program that is compiled for an engine depends on, of this machine.

    It is asked in control processes, where LLVM, which knows as much of the processor, would take 40 MB.
    """
    if engine == PYTHON:
        return b""
    from importlib import metadata  # it takes a tenth of what forwarding processes, which never ask, take to start

    try:
        version = metadata.version("llvmlite")
    except metadata.PackageNotFoundError:  # then the compiled program is one for Python, and says why
        return b"no LLVM"
    return f"{version}\0{processor_kind()}\0{is_checked()}".encode()


def make_pipeline(program: CompiledProgram, seed: int = 0) -> Pipeline:
    """Return a pipeline; const entries are left to the caller."""
    if program.native is None:
        return Pipeline(program, seed)
    from tensorexpress.switch.program.native.pipeline import NativePipeline  # it needs LLVM

    return NativePipeline(program, seed)
