"""A program after compilation: the code that packets run through, and what its state is made of.

It is a plain value, so that one process can compile and another one run what came out.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType

from tensorexpress.errors import ProgramError, unknown
from tensorexpress.program_engines import ENGINES, NATIVE, PYTHON, is_checked
from tensorexpress.switch.operations import SetEntry
from tensorexpress.switch.program.bmv2.document import CONTRADICTIONS, contradiction
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.switch.program.bmv2.values import ArrayInfo, Bmv2Program, TableInfo
from tensorexpress.switch.program.budgets import LONGEST_NAME
from tensorexpress.switch.program.codegen.generate import Generated, generate
from tensorexpress.switch.program.native.generate import NativeLayout, generate_native
from tensorexpress.switch.program.native.unsupported import Unsupported

#: The most that a program's code may take; another process has to read it between two packets.
LARGEST_CODE_BYTES = 4 << 20


@dataclass(frozen=True)
class CompiledProgram:
    """What a pipeline is made from."""

    #: Python's marshalled code, and the text that it was compiled from.
    code: bytes
    source: str
    #: Identifiers under which the code finds objects, by kind and name: ("table", "In.routes"), ...
    objects: Mapping[tuple[str, str], str]
    #: What the counted identifiers stand for, in the program's words.
    labels: Mapping[str, str]
    #: Without their const entries, which may be many.
    tables: Mapping[str, TableInfo]
    entries: tuple[SetEntry, ...]
    profiles: tuple[str, ...]
    #: By kind, then by name.
    arrays: Mapping[str, Mapping[str, ArrayInfo]]
    value_sets: tuple[str, ...]
    #: Bytes at most of the objects that a packet carries from ingress to egress, in Python.
    state_bytes: int
    #: The same as machine code, where that was asked for and can be; else why it is not there.
    native: NativeCode | None = None
    not_native: str = ""


@dataclass(frozen=True)
class NativeCode:
    """The machine code of a program, as an object file of this processor, and what it works on."""

    code: bytes
    layout: NativeLayout
    #: The LLVM IR of it, where it is not optimised.
    ir: str = ""


#: A number of Python without its digits, and its place in a tuple.
_NUMBER_BYTES = 48


@lru_cache(maxsize=4)  # whoever tests a program makes a switch of it in every test
def compile_program(
    document: bytes, engine: str = PYTHON, *, optimised: bool = True, checked: bool | None = None
) -> CompiledProgram:
    """Compile a BMv2 JSON document; ProgramError says which part of it cannot be used.

    Machine code is added for the engines "auto" and "native"; for the latter it is an error when there can be none.
    It is there sooner if it need not be optimised. Checked, it tests every access to memory; None leaves that to the
    environment.
    """
    if engine not in ENGINES:
        raise ProgramError(unknown("engine", engine, ENGINES))
    program = read_program(document)
    try:
        generated = generate(program)
    except CONTRADICTIONS as error:
        raise contradiction(error) from None
    tables = program.tables
    native, not_native = None, ""
    if engine != PYTHON:
        native, not_native = _native(program, generated, optimised, is_checked() if checked is None else checked)
    if engine == NATIVE and native is None:
        raise ProgramError(f"the program cannot run as native code: {not_native}; choose the engine auto or python")
    return CompiledProgram(
        code=_marshalled(generated.source),
        source=generated.source,
        objects=generated.objects,
        labels=generated.labels,
        tables={name: replace(table, entries=()) for name, table in tables.items()},
        entries=tuple(SetEntry(*entry) for table in tables.values() for entry in table.entries),
        profiles=tuple(program.profiles),
        arrays=program.arrays,
        value_sets=tuple(program.value_sets),
        state_bytes=_state_bytes(program, generated),
        native=native,
        not_native=not_native,
    )


def _state_bytes(program: Bmv2Program, generated: Generated) -> int:
    """Return a bound on the memory of a packet's variables between ingress and egress, in Python."""
    headers = program.headers
    numbers = 0
    for var in generated.carried:
        item = headers[var.header].type.field(var.part) if isinstance(var.part, str) and var.header in headers else None
        numbers += _NUMBER_BYTES + (item.bits // 8 if item is not None else 0)
    # Headers that egress leaves as they are, as bytes.
    wire = [header.type.fields for header in headers.values() if not header.metadata]
    return numbers + sum(item.bits for fields in wire for item in fields) // 8


def _native(
    program: Bmv2Program, generated: Generated, optimised: bool, checked: bool
) -> tuple[NativeCode | None, str]:
    """Return a program as machine code, or None and why there is none."""
    try:
        from tensorexpress.machine_code import first_machine_code, kept_machine_code, to_machine_code
    except ImportError as error:
        return None, f"it needs {error.name}, which is not installed"
    try:
        text, layout = generate_native(program, generated, checked=checked)
        code, ir = to_machine_code(text) if optimised else kept_machine_code(text), ""
        if code is None:
            code, ir = first_machine_code(text), text
            if len(code) > LARGEST_CODE_BYTES:  # optimised, it is half as large
                code, ir = to_machine_code(text), ""
    except Unsupported as error:
        return None, str(error)
    except (*CONTRADICTIONS, RuntimeError) as error:  # of a document that p4c never wrote, or of LLVM
        return None, " ".join(f"{type(error).__name__} {error}".split())[:LONGEST_NAME]
    if len(code) > LARGEST_CODE_BYTES:
        return None, _too_large(code)
    return NativeCode(code, layout, ir), ""


def optimise_program(program: CompiledProgram, ir: str) -> CompiledProgram:
    """Return a program with its machine code optimised, which does the same in the same memory.

    Nothing is kept on disk, so that who does this may be ended in the middle of it.
    """
    from tensorexpress.machine_code import optimised_machine_code

    assert program.native is not None
    code = optimised_machine_code(ir)
    if len(code) > LARGEST_CODE_BYTES:
        raise ProgramError(_too_large(code))
    return replace(program, native=NativeCode(code, program.native.layout))


def _too_large(code: bytes) -> str:
    return f"it becomes {len(code)} bytes of machine code, and {LARGEST_CODE_BYTES} are the most"


def _marshalled(source: str) -> bytes:
    try:
        code: CodeType = compile(source, "<generated from BMv2 JSON>", "exec")
        marshalled = marshal.dumps(code)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ProgramError(f"the program is too deeply nested to run here ({error})") from None
    if len(marshalled) > LARGEST_CODE_BYTES:
        raise ProgramError(
            f"the program becomes {len(marshalled)} bytes of code; accepted: up to {LARGEST_CODE_BYTES}; shorten it"
        )
    return marshalled
