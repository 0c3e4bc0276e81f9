"""Machine code of simulator, switch and hosts is made anew when a source changes that it was made from."""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from support.thorough import rest

from tensorexpress.compiled_functions import Library
from tensorexpress.compiled_sources import sources_of

LIBRARIES = {
    "tensorexpress.sim.kernel.native": "_KERNEL",
    "tensorexpress.switch.native.build": "_LOOP",
    "tensorexpress.host.native": "_SEGMENTS",
    "tensorexpress.host.native_endpoint": "_FLOWS",
}


def library(module: str) -> Library:
    pytest.importorskip("numba")
    found: Library = getattr(import_module(module), LIBRARIES[module])
    return found


def functions_in(module: str) -> Iterator[FunctionType]:
    """Yield the functions of a module as Python has them, those that numba compiles included."""
    for value in vars(import_module(module)).values():
        function = getattr(value, "py_func", None) or getattr(value, "_defn", value)
        if isinstance(function, FunctionType) and function.__module__ == module:
            yield function


def globals_of(code: CodeType) -> Iterator[str]:
    """Yield the names of the globals that code loads."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from globals_of(constant)


@cache
def assigned_in(path: str) -> set[str]:
    """Return the names that statements at the top level of a file assign to."""
    statements = [
        each for each in ast.parse(Path(path).read_text()).body if isinstance(each, ast.Assign | ast.AnnAssign)
    ]
    nodes = [node for statement in statements for node in ast.walk(statement)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def defining(name: str, value: int) -> set[str]:
    """Return the loaded modules of this package that assign a number to a name at their top level."""
    loaded = {each: module for each, module in sys.modules.items() if each.partition(".")[0] == "tensorexpress"}
    having = {each: module.__file__ for each, module in loaded.items() if getattr(module, name, None) == value}
    return {each for each, path in having.items() if path and name in assigned_in(path)}


@rest(but=2)
@pytest.mark.parametrize("module", LIBRARIES)
def test_sources_have_every_function_and_number_that_is_compiled_in(module: str) -> None:
    roots = library(module).modules
    sources = sources_of(roots)
    waiting = [function for root in roots for function in functions_in(root)]
    functions, numbers = set(waiting), 0
    while waiting:
        function = waiting.pop()
        assert function.__module__ in sources
        for name in globals_of(function.__code__):
            value = function.__globals__.get(name)
            used = getattr(value, "py_func", None) or getattr(value, "_defn", value)
            if isinstance(used, FunctionType) and used.__module__.startswith("tensorexpress."):
                if used not in functions:
                    functions.add(used)
                    waiting.append(used)
            elif isinstance(value, int) and not isinstance(value, bool):
                assert defining(name, value) & set(sources), f"{function.__module__}.{function.__name__} uses {name}"
                numbers += 1
    assert len(functions) > 5
    assert numbers > 20


@pytest.mark.parametrize("module", ["tensorexpress.host.native", "tensorexpress.host.native_endpoint"])
def test_hosts_are_compiled_anew_for_another_version_of_the_header(module: str) -> None:
    assert "tensorexpress.p4.define" in sources_of(library(module).modules)


def test_a_changed_source_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "scaling_by.py"
    made = Library("scaling", {"scaled": 1}, ("scaling_by",), part="an example")
    for factor in (2, 30, 2):  # of two lengths, or Python takes the bytecode of the source before
        source.write_text(f"FACTOR = {factor}\n\n\ndef scaled(number: int) -> int:\n    return FACTOR * number\n")
        sys.modules.pop("scaling_by", None)
        (scaled,) = made.functions()
        assert scaled(7) == 7 * factor
    assert len(list((tmp_path / "cache" / "tensorexpress" / "functions").glob("*.o"))) == 2
