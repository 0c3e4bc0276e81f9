"""What compiled functions can do with addresses: read and write memory, copy, call the program and the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORD = ir.IntType(64)


class Cells(Protocol):
    """SwitchMemory as an array of numbers."""

    def __getitem__(self, at: int) -> int: ...
    def __setitem__(self, at: int, value: int) -> None: ...


def _cells(kind: Any) -> Callable[[int], Cells]:
    def typed(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate  # type: ignore[no-untyped-call]

    return cast(Callable[[int], Cells], intrinsic(typed))


#: The memory at an address.
words, halves, octets = _cells(types.int64), _cells(types.int32), _cells(types.uint8)
#: The same of numbers that are not whole.
floats: Callable[[int], Any] = _cells(types.float32)


def _run_stage(context: Any, function: Any, program: Any, frame: Any, length: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_WORD, [_WORD] * 3)
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(*[types.int64] * 4), generate


#: Run a stage of a program, by its address, on a context and a frame of some length.
run_stage: Callable[[int, int, int, int], int] = cast(Any, intrinsic(_run_stage))


def _taken(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], _WORD.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


def _given(context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store_atomic(arguments[1], place, "release", 8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), generate


#: Read a word before all that is read after it, and write one after all that was read and written before it.
acquire: Callable[[int], int] = cast(Any, intrinsic(_taken))
release: Callable[[int, int], None] = cast(Any, intrinsic(_given))


def _of_libc(name: str, result: Any, *arguments: Any) -> Any:
    return types.ExternalFunction(name, result(*arguments))


#: into, source, bytes
copy: Callable[[int, int, int], int] = _of_libc("memcpy", types.int64, types.int64, types.int64, types.int64)
#: bytes; 0: there is no memory left
allocate: Callable[[int], int] = _of_libc("malloc", types.int64, types.uint64)
free: Callable[[int], None] = _of_libc("free", types.void, types.int64)
#: socket, messages, how many, flags, time limit
recvmmsg: Callable[[int, int, int, int, int], int] = _of_libc(
    "recvmmsg", types.int32, types.int32, types.int64, types.uint32, types.int32, types.int64
)
#: socket, messages, how many, flags
sendmmsg: Callable[[int, int, int, int], int] = _of_libc(
    "sendmmsg", types.int32, types.int32, types.int64, types.uint32, types.int32
)
#: socket, from, bytes, flags, address, its bytes
sendto: Callable[[int, int, int, int, int, int], int] = _of_libc(
    "sendto", types.int64, types.int32, types.int64, types.uint64, types.int32, types.int64, types.uint32
)
#: socket, into, bytes, flags
recv: Callable[[int, int, int, int], int] = _of_libc(
    "recv", types.int64, types.int32, types.int64, types.uint64, types.int32
)
#: socket, message, flags
recvmsg: Callable[[int, int, int], int] = _of_libc("recvmsg", types.int64, types.int32, types.int64, types.int32)
#: descriptors, how many, time limit, signals
ppoll: Callable[[int, int, int, int], int] = _of_libc(
    "ppoll", types.int32, types.int64, types.uint64, types.int64, types.int64
)
#: which clock, into
clock_gettime: Callable[[int, int], int] = _of_libc("clock_gettime", types.int32, types.int32, types.int64)
errno_at: Callable[[], int] = _of_libc("__errno_location", types.int64)
#: seconds and nanoseconds, into what is left of them
nanosleep: Callable[[int, int], int] = _of_libc("nanosleep", types.int32, types.int64, types.int64)
#: socket, level, option, from, bytes
setsockopt: Callable[[int, int, int, int, int], int] = _of_libc(
    "setsockopt", types.int32, types.int32, types.int32, types.int32, types.int64, types.uint32
)
