"""Finds the source files of compiled functions: machine code is made anew when one of them changes.

The search reads source code. It starts with the functions of some modules, looks up each name that they use in the
module that binds it, and goes on with the names in that statement. Annotations are not compiled, so they do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = __name__.partition(".")[0]


def sources_of(modules: Iterable[str]) -> dict[str, Path]:
    """Return {module: file} for the modules, and for all modules of this package whose code or constants they use.

    >>> list(sources_of(["tensorexpress.switch.native.queues"]))[:2]
    ['tensorexpress.buffer', 'tensorexpress.compiled_functions']
    """
    waiting = [(module, name) for module in modules for name in _bindings(module).statements]
    seen = set[tuple[str, str]]()
    while waiting:
        use = waiting.pop()
        if use not in seen:
            seen.add(use)
            waiting.extend(_bindings(use[0]).uses(use[1]))
    return {module: _bindings(module).path for module in sorted({module for module, _ in seen})}


class _Bindings:
    """The names that a module binds at its top level."""

    def __init__(self, module: str, path: Path):
        self.path = path
        self._module = module
        #: The statements that bind each name.
        self.statements: dict[str, list[ast.stmt]] = {}
        #: Imported names of this package with the module, and with the name there; None: the name is the module.
        self._imported: dict[str, tuple[str, str | None]] = {}
        self._starred: list[str] = []
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.ImportFrom):
                self._add_import(statement)
            elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.statements.setdefault(statement.name, []).append(statement)
            else:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        self.statements.setdefault(node.id, []).append(statement)

    def _add_import(self, statement: ast.ImportFrom) -> None:
        module = statement.module or ""
        if module.partition(".")[0] != _PACKAGE:
            return
        for alias in statement.names:
            if alias.name == "*":
                self._starred.append(module)
            elif _file_of(f"{module}.{alias.name}") is not None:
                self._imported[alias.asname or alias.name] = (f"{module}.{alias.name}", None)
            else:
                self._imported[alias.asname or alias.name] = (module, alias.name)

    def uses(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield (module, name) for each name of this package in the statements that bind a name, imports included."""
        if name in self._imported or name not in self.statements:
            yield from self._owners(name)
        for statement in self.statements.get(name, ()):
            for node in _compiled_nodes(statement):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    yield from self._owners(node.value.id, node.attr)
                elif isinstance(node, ast.Name):
                    yield from self._owners(node.id)

    def _owners(self, name: str, attribute: str | None = None) -> Iterator[tuple[str, str]]:
        """Yield the module that binds a name used here, and the name there; nothing for a local or a builtin name."""
        if name in self.statements:
            yield self._module, name
        if name in self._imported:
            module, there = self._imported[name]
            found = there if there is not None else attribute
            if found is not None:
                yield module, found
        for module in self._starred:
            if name in _bindings(module):
                yield module, name

    def __contains__(self, name: object) -> bool:
        own = name in self.statements or name in self._imported
        return own or any(name in _bindings(module) for module in self._starred)


@cache
def _bindings(module: str) -> _Bindings:
    path = _file_of(module)
    if path is None:
        raise ImportError(f"no source of {module}")
    return _Bindings(module, path)


@cache
def _file_of(module: str) -> Path | None:
    """Return the source file of a module; None if there is no such module."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(found.origin) if found is not None and found.origin else None


def _compiled_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a statement but those of annotations."""
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns"):
                children = value if isinstance(value, list) else [value]
                waiting.extend(child for child in children if isinstance(child, ast.AST))
