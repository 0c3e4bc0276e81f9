"""The memory as compiled functions see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


class Memory(Protocol):
    """A pointer to int64."""

    def __getitem__(self, at: int) -> int: ...
    def __setitem__(self, at: int, value: int) -> None: ...


def _pointer(context: Any, address: Any) -> Any:
    """Return the memory at an address. A bare pointer compiles and runs much faster than an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), generate  # type: ignore[no-untyped-call]


pointer: Callable[[int], Memory] = cast(Any, intrinsic(_pointer))


def _halves(context: Any, memory: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int32)(memory), generate  # type: ignore[no-untyped-call]


#: Returns the same memory as int32, two for every word.
halves: Callable[[Memory], Memory] = cast(Any, intrinsic(_halves))


def _prefetch(context: Any, memory: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, kind, "llvm.prefetch.p0i8"
        )
        address = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), byte)
        # To be written, too; to be kept in all caches; data.
        builder.call(function, [address, word(1), word(3), word(1)])
        return context.get_dummy_value()

    return types.none(memory, types.int64), generate


#: Asks for a cache line that will be needed soon, so that nobody waits for it then.
prefetch: Callable[[Memory, int], None] = cast(Any, intrinsic(_prefetch))
