"""The memory as compiled functions see it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model


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


class _Halves(types.CPointer):
    """A pointer to int32, whose values are int64 to all who use it: so no function is compiled twice."""


register_model(_Halves)(models.PointerModel)
HALF = ir.IntType(32)


def _half_at(builder: Any, arguments: Any) -> Any:
    return builder.gep(builder.bitcast(arguments[0], HALF.as_pointer()), [arguments[1]])


@lower_builtin(operator.getitem, _Halves, types.Integer)  # type: ignore[no-untyped-call, untyped-decorator]
def _get_half(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.sext(builder.load(_half_at(builder, arguments)), ir.IntType(64))


@lower_builtin(operator.setitem, _Halves, types.Integer, types.Integer)  # type: ignore[no-untyped-call, untyped-decorator]
def _set_half(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    builder.store(builder.trunc(arguments[2], HALF), _half_at(builder, arguments))
    return context.get_dummy_value()


def _halves(context: Any, memory: Any, row: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return _Halves(types.int64)(memory, types.int64), generate  # type: ignore[no-untyped-call]


#: Returns the memory from a row on as int32, two for every word: what has half a word there.
halves: Callable[[Memory, int], Memory] = cast(Any, intrinsic(_halves))


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
