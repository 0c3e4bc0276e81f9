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


class _Octets(types.CPointer):
    """The same for int8."""


def _register(narrow: type, bits: int) -> None:
    """Let compiled functions get and set the parts of words to which such a pointer points."""
    part = ir.IntType(bits)

    def at(builder: Any, arguments: Any) -> Any:
        return builder.gep(builder.bitcast(arguments[0], part.as_pointer()), [arguments[1]])

    def get(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.sext(builder.load(at(builder, arguments)), ir.IntType(64))

    def put(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(builder.trunc(arguments[2], part), at(builder, arguments))
        return context.get_dummy_value()

    register_model(narrow)(models.PointerModel)
    lower: Any = lower_builtin
    lower(operator.getitem, narrow, types.Integer)(get)
    lower(operator.setitem, narrow, types.Integer, types.Integer)(put)


_register(_Halves, 32)
_register(_Octets, 8)


def _narrowed(narrow: type) -> Any:
    def from_row_on(context: Any, memory: Any, row: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.gep(arguments[0], [arguments[1]])

        return narrow(types.int64)(memory, types.int64), generate

    return intrinsic(from_row_on)


#: Returns the memory from a row on as int32, two for every word: what has half a word there.
halves: Callable[[Memory, int], Memory] = _narrowed(_Halves)

#: Returns the memory from a row on as int8, eight for every word.
octets: Callable[[Memory, int], Memory] = _narrowed(_Octets)


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
