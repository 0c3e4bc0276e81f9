"""A compiled program as a pipeline that packets can pass: in machine code where there is some, else in Python."""

from __future__ import annotations

from tensorexpress.switch.program.compiled import CompiledProgram
from tensorexpress.switch.program.pipeline import Pipeline


def make_pipeline(program: CompiledProgram, seed: int = 0) -> Pipeline:
    """Return a pipeline; const entries are left to the caller."""
    if program.native is None:
        return Pipeline(program, seed)
    from tensorexpress.switch.program.native.pipeline import NativePipeline  # it needs LLVM

    return NativePipeline(program, seed)
