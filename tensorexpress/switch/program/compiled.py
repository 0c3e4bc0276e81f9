"""A program after compilation: the code that packets run through, and what its state is made of.

It is a plain value, so that one process can compile and another one run what came out.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import CodeType

from tensorexpress.errors import ProgramError
from tensorexpress.switch.operations import SetEntry
from tensorexpress.switch.program.bmv2.document import CONTRADICTIONS, contradiction
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.switch.program.bmv2.values import ArrayInfo, TableInfo
from tensorexpress.switch.program.codegen.generate import generate

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


def compile_program(document: bytes) -> CompiledProgram:
    """Compile a BMv2 JSON document; ProgramError says which part of it cannot be used."""
    program = read_program(document)
    try:
        generated = generate(program)
    except CONTRADICTIONS as error:
        raise contradiction(error) from None
    tables = program.tables
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
    )


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
