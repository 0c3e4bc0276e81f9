"""Functions that numba compiles once, kept on disk as machine code, and loaded without numba after that.

numba takes seconds of a processor to be there, and a process that only wants machine code needs none of it.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import llvmlite.binding as llvm

from tensorexpress.compiled_sources import sources_of
from tensorexpress.machine_code import compile_module, load, processor_key
from tensorexpress.user_cache import keep, kept

logger = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Let a function be compiled with those that call it; it cannot fail, so nobody looks whether it did.

    Python never calls what numba makes of it, so that needs no wrapper for that.
    """
    from numba import njit

    options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(_Function, njit(**options)(function))


class Library(NamedTuple):
    """Functions that numba compiles: their names with the count of numbers that each takes, and their modules."""

    name: str
    arguments: Mapping[str, int]
    #: Modules that have these functions; they are imported only to be compiled.
    modules: tuple[str, ...]
    #: Those that take long or wait, while other threads of Python go on.
    waiting: tuple[str, ...] = ()
    #: The part of the program that has these functions, as a notice to users calls it.
    part: str = "a library"

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
        """Return the object file that was made of the same sources on this processor, or a new one."""
        # The list of sources takes longer to find than to read, so it is kept beside the object file.
        place = hashlib.sha256(f"{__file__} {self}".encode()).hexdigest()
        listed = kept("functions", f"{self.name}-{place}.sources")
        if listed is not None:
            found = kept("functions", self._object_name(map(Path, listed.decode().split("\n"))))
            if found is not None:
                return found
        made = self._compile()
        sources = sorted({*sources_of(self.modules).values(), Path(__file__)})
        keep("functions", self._object_name(sources), made)
        keep("functions", f"{self.name}-{place}.sources", "\n".join(map(str, sources)).encode())
        return made

    def _object_name(self, sources: Iterable[Path]) -> str:
        """Return the name of the object file that is made of sources as they are now, on this processor."""
        key = hashlib.sha256(processor_key())
        for path in sources:
            key.update(path.read_bytes() if path.is_file() else b"")
        return f"{self.name}-{key.hexdigest()}.o"

    def _compile(self) -> bytes:
        """Return an object file of all functions; notices on standard error tell users of the wait."""
        import numba  # noqa: F401 - without it there is nothing to wait for

        with _announced(self.part):
            return compile_module(self._module())

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


@contextmanager
def _announced(part: str) -> Iterator[None]:
    """Log before and after a compilation; on a terminal, count the seconds in between."""
    logger.warning(
        "tensorexpress: compiling %s for this machine; it is kept, so this happens once, and takes some 10 CPU seconds",
        part,
    )
    start, done = time.monotonic(), threading.Event()

    def count() -> None:
        while not done.wait(1):
            print(f"\rcompiling {part}: {time.monotonic() - start:.0f} s", end="", file=sys.stderr, flush=True)

    counter = threading.Thread(target=count, daemon=True)
    if sys.stderr is not None and sys.stderr.isatty():
        counter.start()
    try:
        yield
    finally:
        done.set()
        if counter.is_alive():
            counter.join()
            print("\r", end="\x1b[K", file=sys.stderr, flush=True)
    logger.warning("tensorexpress: compiled %s in %.0f s", part, time.monotonic() - start)
