"""Functions that numba compiles once, kept on disk as machine code, and loaded without numba after that.

numba takes seconds of a processor to be there, and a process that only wants machine code needs none of it.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import llvmlite.binding as llvm

from tensorexpress.machine_code import compile_module, load, processor_key
from tensorexpress.user_cache import cached

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Let a function be compiled with those that call it; it cannot fail, so nobody looks whether it did.

    Python never calls what numba makes of it, so that needs no wrapper for that.
    """
    from numba import njit

    options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(_Function, njit(**options)(function))


class Library(NamedTuple):
    """Functions that numba compiles: what it is called, how many numbers each takes, and what they are made from."""

    name: str
    arguments: Mapping[str, int]
    #: Modules that have these functions; they are imported only to be compiled.
    modules: tuple[str, ...]
    #: All files that have a word in what is compiled, beside this one.
    sources: tuple[Path, ...]
    #: Those that take long or wait, while other threads of Python go on.
    waiting: tuple[str, ...] = ()

    def functions(self) -> list[Callable[..., int]]:
        """Return the functions; ImportError where they are not compiled yet and numba is not installed."""
        library, addresses = load(self._machine_code(), tuple(self.arguments))
        found = []
        for (name, count), address in zip(self.arguments.items(), addresses, strict=True):
            kind = ctypes.CFUNCTYPE if name in self.waiting else ctypes.PYFUNCTYPE
            function: Any = kind(ctypes.c_int64, *[ctypes.c_int64] * count)(address)
            function.library = library  # it lasts as long
            found.append(function)
        return found

    def _machine_code(self) -> bytes:
        """Return an object file, which is made anew whenever anything changes that it is made from."""
        key = hashlib.sha256(processor_key())
        for path in (*self.sources, Path(__file__)):
            key.update(path.read_bytes())
        return cached("functions", f"{self.name}-{key.hexdigest()}.o", lambda: compile_module(self._module()))

    def _module(self) -> Any:
        """Return all functions as one module of LLVM."""
        owners = [import_module(name) for name in self.modules]
        whole = llvm.parse_assembly("")
        for name, count in self.arguments.items():
            function = next(getattr(owner, name) for owner in owners if hasattr(owner, name))
            whole.link_in(llvm.parse_assembly(_text(function, count)))
        return whole


def _text(function: Callable[..., int], count: int) -> str:
    """Return a function as LLVM IR, under its own name and with its numbers alone.

    numba's own form also takes where to put the result and an exception, and returns whether there is one. Compiled
    functions raise none.
    """
    from numba import types

    dispatcher: Any = compiled(function)
    kinds = (types.int64,) * count
    dispatcher.compile(kinds)
    made = dispatcher.overloads[kinds]
    inner = made.fndesc.mangled_name
    numbers = ", ".join(f"i64 %a{index}" for index in range(count))
    wrapper = f"""
define i64 @{function.__name__}({numbers}) {{
  %result = alloca i64
  %exception = alloca ptr
  %status = call i32 @{inner}(ptr %result, ptr %exception, {numbers})
  %value = load i64, ptr %result
  ret i64 %value
}}
"""
    text: str = made.library.get_llvm_str()
    return text + wrapper
