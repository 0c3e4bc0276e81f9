"""The compiled functions: made by numba once, kept on disk as machine code, and loaded without numba after that."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from tensorexpress.switch.program.native.compiler import compile_module, load, processor_key
from tensorexpress.user_cache import cached


class Functions(NamedTuple):
    """What Python calls; numbers and addresses, as the functions of these names say."""

    run: Callable[[int, int], int]
    depart_at: Callable[[int, int, int], int]
    move_departures: Callable[[int, int], int]
    enqueue: Callable[[int, int, int, int, int], int]
    dequeue: Callable[[int, int], int]
    free_record: Callable[[int, int], int]
    free_sent: Callable[[int], int]
    take_datagrams: Callable[[int, int, int, int], int]
    take_slots: Callable[[int, int, int, int, int, int, int], int]
    release_slots: Callable[[int, int, int, int, int], int]
    send_all: Callable[[int, int], int]
    record_arrivals: Callable[[int, int], int]
    forward: Callable[[int, int, int, int], int]


#: How many numbers each of them takes.
_ARGUMENTS = {
    "run": 2,
    "depart_at": 3,
    "move_departures": 2,
    "enqueue": 5,
    "dequeue": 2,
    "free_record": 2,
    "free_sent": 1,
    "take_datagrams": 4,
    "take_slots": 7,
    "release_slots": 5,
    "send_all": 2,
    "record_arrivals": 2,
    "forward": 4,
}


class Library(NamedTuple):
    """Functions that numba compiles: what it is called, how many numbers each takes, and what they are made from."""

    name: str
    arguments: Mapping[str, int]
    #: Modules that have these functions; they are imported only to be compiled.
    modules: tuple[str, ...]
    #: All files that have a word in what is compiled.
    sources: tuple[Path, ...]
    #: Functions that wait, while other threads of Python go on.
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
        for path in self.sources:
            key.update(path.read_bytes())
        return cached("native", f"{self.name}-{key.hexdigest()}.o", lambda: compile_module(self._module()))

    def _module(self) -> Any:
        """Return all functions as one module of LLVM."""
        owners = [import_module(name) for name in self.modules]
        whole = llvm.parse_assembly("")
        for name, count in self.arguments.items():
            function = next(getattr(owner, name) for owner in owners if hasattr(owner, name))
            whole.link_in(llvm.parse_assembly(_text(function, count)))
        return whole


_HERE = Path(__file__).parent

_LOOP = Library(
    "loop",
    _ARGUMENTS,
    tuple(f"tensorexpress.switch.native.{name}" for name in ("steps", "queues", "sockets", "captures", "turns")),
    (
        *sorted(_HERE.glob("*.py")),
        *(_HERE.parent / name for name in ("packet.py", "traffic.py", "program/native/layout.py")),
    ),
    waiting=("forward",),
)


@cache
def functions() -> Functions:
    """Return the functions of the loop; ImportError where they are not compiled yet and numba is not installed."""
    return Functions(*_LOOP.functions())


def _text(function: Callable[..., int], count: int) -> str:
    """Return a function as LLVM IR, under its own name and with its numbers alone.

    numba's own form also takes where to put the result and an exception, and returns whether there is one. Compiled
    functions raise none.
    """
    from numba import types

    from tensorexpress.switch.native.machine import compiled

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
