"""Bursts of segments as machine code: what `ArrayCodec` of segments.py does, but faster, and calls of the kernel.

The CRC-32 is computed by carry-less multiplication (PCLMULQDQ): a block is folded into one further on, that is,
multiplied by a power of x modulo the polynomial, which leaves the CRC of the whole as it is. Blocks are as wide as the
processor multiplies at once, and several are under way at a time.

`native.py` loads what is made of this, mostly without numba.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tensorexpress.compiled_functions import compiled
from tensorexpress.framing import SEGMENT_HEADER_BYTES, TRANSPORT_BYTES
from tensorexpress.host.layout import (
    CE,
    CONTROL,
    CONTROL_BYTES,
    CONTROL_HEADER_BYTES,
    FOUND_BYTES,
    FOUND_FLAGS,
    FOUND_MARKED,
    FOUND_NAME_BYTES,
    FOUND_STRIDE,
    H_CHUNK,
    H_CRC,
    H_FLAGS,
    H_LENGTH,
    H_OFFSET,
    H_SEQUENCE,
    H_SLACK,
    H_TRANSMISSION,
    IP_TOS,
    IPV6_TCLASS,
    NAME,
    NAME_BYTES,
    UDP_GRO,
    UDP_LEVEL,
)
from tensorexpress.switch.native.machine import copy, halves, octets, recvmsg, sendto, words

_cgutils: Any = cgutils

_BYTE, _HALF, _WORD = ir.IntType(8), ir.IntType(32), ir.IntType(64)

#: Bytes of a block, and how many vectors of blocks are folded at a time: as many as a multiplication takes cycles.
_BLOCK = 16
_ABREAST = 4

_WITHOUT_WAITING = int(socket.MSG_DONTWAIT)

#: The polynomial of Ethernet and zlib: x^32 and below, the highest power first.
_POLYNOMIAL = 0x104C11DB7


def _compared() -> tuple[int, ...]:
    """Return the bits of every word of the headers that are the same in all segments of a run."""
    same = bytearray(b"\xff" * SEGMENT_HEADER_BYTES)
    same[H_FLAGS] = 0
    for at in (H_SLACK, H_CRC, H_CHUNK, H_SEQUENCE, H_TRANSMISSION, H_OFFSET):
        same[at : at + 4] = bytes(4)
    return tuple(int.from_bytes(same[at : at + 8], "little", signed=True) for at in range(0, SEGMENT_HEADER_BYTES, 8))


_COMPARED = _compared()


def _reflected(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


def _divided(power: int) -> tuple[int, int]:
    """Return x^power divided by the polynomial: quotient and remainder."""
    quotient, rest = 0, 1 << power
    for shift in range(power - 32, -1, -1):
        if rest >> shift + 32 & 1:
            quotient |= 1 << shift
            rest ^= _POLYNOMIAL << shift
    return quotient, rest


def _factors(distance_bytes: int) -> list[int]:
    """Return what the two words of a block are multiplied by to be folded into the block at a distance.

    A product of words in which the first bit is the highest power is one bit short, so the factor has it.
    """
    return [_reflected(_divided(8 * distance_bytes + bits)[1], 32) << 1 for bits in (32, -32)]


#: To divide 32 bits by the polynomial without a division: what to multiply by for the quotient, and back.
_QUOTIENT, _BACK = _reflected(_divided(64)[0], 33), _reflected(_POLYNOMIAL, 33)


# What numba has no words for.


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Any, address: Any, kind: Any) -> Any:
    """Load from anywhere."""
    loaded = builder.load(_pointer(builder, address, kind))
    loaded.align = 1
    return loaded


def _lanes() -> int:
    """Return how many words the processor multiplies at once."""
    return 4 if get_host_cpu_features().get("vpclmulqdq", False) else 2


def _multiplied(builder: Any, left: Any, right: Any, halves: int) -> Any:
    """Return the products of one word of every block, the first or the second of each side, without carries."""
    suffix = "" if left.type.count == 2 else f".{64 * left.type.count}"
    kind = ir.FunctionType(left.type, [left.type, left.type, _BYTE])
    multiply = _cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.pclmulqdq{suffix}")
    return builder.call(multiply, [left, right, _BYTE(halves)])


def _folded(builder: Any, state: Any, distance_bytes: int, here: Any) -> Any:
    """Return blocks folded into those that are so far behind them."""
    factors = ir.Constant(state.type, _factors(distance_bytes) * (state.type.count // 2))
    low, high = (_multiplied(builder, state, factors, halves) for halves in (0x00, 0x11))
    return builder.xor(builder.xor(low, high), here)


@contextmanager
def _while(builder: Any, condition: Callable[[], Any]) -> Iterator[None]:
    """Repeat what is built inside as long as a condition holds, which is looked at before."""
    look, work, end = (builder.append_basic_block(name) for name in ("look", "work", "end"))
    builder.branch(look)
    with builder.goto_block(look):
        builder.cbranch(condition(), work, end)
    with builder.goto_block(work):
        yield
        builder.branch(look)
    builder.position_at_end(end)


def _fold(context: Any, address: Any, size: Any) -> Any:
    folded = types.UniTuple(types.int64, 4)  # type: ignore[no-untyped-call]
    one, wide = ir.VectorType(_WORD, 2), ir.VectorType(_WORD, _lanes())
    wide_bytes = 8 * wide.count
    step = _ABREAST * wide_bytes

    def starting(kind: Any) -> Any:
        return ir.Constant(kind, [0xFFFFFFFF, *[0] * (kind.count - 1)])

    def blocks_of(builder: Any, vectors: list[Any]) -> list[Any]:
        places = [ir.Constant(ir.VectorType(_HALF, 2), [at, at + 1]) for at in range(0, wide.count, 2)]
        return [builder.shuffle_vector(vector, vector, place) for vector in vectors for place in places]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, size = arguments
        state, at = _cgutils.alloca_once(builder, one), _cgutils.alloca_once(builder, _WORD)

        def is_left(size_bytes: int) -> Any:
            return builder.icmp_unsigned("<=", builder.add(builder.load(at), _WORD(size_bytes)), size)

        def here(kind: Any, offset: int = 0) -> Any:
            return _load(builder, builder.add(address, builder.add(builder.load(at), _WORD(offset))), kind)

        def go_on(size_bytes: int) -> None:
            builder.store(builder.add(builder.load(at), _WORD(size_bytes)), at)

        builder.store(_WORD(0), at)
        with builder.if_else(is_left(step)) as (is_long, is_short):
            with is_long:
                places = range(0, step, wide_bytes)
                vectors = [_cgutils.alloca_once(builder, wide) for _ in places]
                for vector, place in zip(vectors, places, strict=True):
                    first = here(wide, place)
                    builder.store(first if place else builder.xor(first, starting(wide)), vector)
                go_on(step)
                with _while(builder, lambda: is_left(step)):
                    for vector, place in zip(vectors, places, strict=True):
                        builder.store(_folded(builder, builder.load(vector), step, here(wide, place)), vector)
                    go_on(step)
                last, *others = blocks_of(builder, [builder.load(vector) for vector in vectors])
                for other in others:
                    last = _folded(builder, last, _BLOCK, other)
                builder.store(last, state)
            with is_short:
                builder.store(builder.xor(here(one), starting(one)), state)
                go_on(_BLOCK)
        with _while(builder, lambda: is_left(_BLOCK)):
            builder.store(_folded(builder, builder.load(state), _BLOCK, here(one)), state)
            go_on(_BLOCK)
        halves = builder.bitcast(builder.load(state), ir.VectorType(_HALF, 4))
        found = [builder.zext(builder.extract_element(halves, _HALF(index)), _WORD) for index in range(4)]
        return context.make_tuple(builder, folded, found)

    return folded(types.int64, types.int64), generate


def _step(context: Any, crc: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        empty = ir.Constant(ir.VectorType(_WORD, 2), [0, 0])

        def product(value: Any, factor: int) -> Any:
            left, right = (builder.insert_element(empty, word, _HALF(0)) for word in (value, _WORD(factor)))
            return builder.extract_element(_multiplied(builder, left, right, 0x00), _HALF(0))

        quotient = builder.and_(product(arguments[0], _QUOTIENT), _WORD(0xFFFFFFFF))
        return builder.lshr(product(quotient, _BACK), _WORD(32))

    return types.int64(types.int64), generate


def _get(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.bswap(_load(builder, arguments[0], _HALF)), _WORD)

    return types.int64(types.int64), generate


def _put(context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, value = arguments
        builder.store(builder.bswap(builder.trunc(value, _HALF)), _pointer(builder, address, _HALF)).align = 1
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), generate


def _word(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(builder, arguments[0], _WORD)

    return types.int64(types.int64), generate


#: Fold all whole blocks of some bytes at an address, at least one, into 32 bits each of the last one.
fold: Callable[[int, int], tuple[int, int, int, int]] = cast(Any, intrinsic(_fold))
#: What becomes of a CRC into which 32 bits were taken.
step: Callable[[int], int] = cast(Any, intrinsic(_step))
#: Read and write 32 bits in the order of the network.
get: Callable[[int], int] = cast(Any, intrinsic(_get))
put: Callable[[int, int], None] = cast(Any, intrinsic(_put))
#: Read 64 bits from anywhere.
word_at: Callable[[int], int] = cast(Any, intrinsic(_word))


# The functions.


@compiled
def crc_of(address: int, size: int) -> int:
    """Return the CRC-32 of at least 16 bytes at an address."""
    crc = 0
    for half in fold(address, size):
        crc = step(crc ^ half)
    memory = octets(address)
    for at in range(size - size % _BLOCK, size):
        crc = step(((crc ^ memory[at]) & 255) << 24) ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@compiled
def put_half(address: int, value: int) -> None:
    """Write 16 bits in the order of the network."""
    memory = octets(address)
    memory[0], memory[1] = value >> 8, value & 255


@compiled
def write_rows(
    header: int, memory: int, stride: int, first: int, count: int, payload: int, slack: int, last: int, last_flags: int,
    last_bytes: int,
) -> None:  # fmt: skip
    """Write segments of a burst from `first` on; `header` is that of its first one, with slack and CRC 0.

    The one with the number `last` has so many bytes of payload, and these flags beside its own. From the last one on,
    because the header may lie where the first one is written.
    """
    size = stride - SEGMENT_HEADER_BYTES
    chunk, sequence = get(header + H_CHUNK), get(header + H_SEQUENCE)
    transmission, offset = get(header + H_TRANSMISSION), get(header + H_OFFSET)
    for row in range(count - 1, -1, -1):
        start, number = memory + row * stride, first + row
        if start != header:
            copy(start, header, SEGMENT_HEADER_BYTES)
        put(start + H_CHUNK, chunk + number)
        put(start + H_SEQUENCE, sequence + number)
        put(start + H_TRANSMISSION, transmission + number)
        put(start + H_OFFSET, offset + number * size)
        length = size
        if number == last:
            octets(start)[H_FLAGS] |= last_flags
            length = last_bytes
            put_half(start + H_LENGTH, TRANSPORT_BYTES + length)
        copy(start + SEGMENT_HEADER_BYTES, payload + number * size, length)
        put(start + H_CRC, crc_of(start, SEGMENT_HEADER_BYTES + length))
        put(start + H_SLACK, slack)


def fill(memory: int, stride: int, count: int, payload: int, slack: int, last_flags: int) -> int:
    """Make a burst of the headers of its first segment, which are at `memory` with slack and CRC 0."""
    write_rows(memory, memory, stride, 0, count, payload, slack, count - 1, last_flags, stride - SEGMENT_HEADER_BYTES)
    return count


def send(
    descriptor: int, target: int, target_bytes: int, header: int, stage: int, stride: int, count: int, each: int,
    payload: int, slack: int, last_flags: int, last_bytes: int,
) -> int:  # fmt: skip
    """Write a burst at `stage` and send it, so many segments at a time; return how many there was room for.

    What is sent at a time stays in the processor's cache between the two. The last one may be shorter than the others.
    """
    sent = 0
    while sent < count:
        rows = min(each, count - sent)
        write_rows(header, stage, stride, sent, rows, payload, slack, count - 1, last_flags, last_bytes)
        size = rows * stride
        if sent + rows == count:
            size += SEGMENT_HEADER_BYTES + last_bytes - stride
        if sendto(descriptor, stage, size, _WITHOUT_WAITING, target, target_bytes) < 0:
            break
        sent += rows
    return sent


@compiled
def follows(memory: int, start: int, row: int, size: int) -> bool:
    """Whether the segment at `start` is the row-th after the first one, at `memory`."""
    differs = 0
    for index in range(len(_COMPARED)):
        differs |= (word_at(memory + 8 * index) ^ word_at(start + 8 * index)) & _COMPARED[index]
    mask = 0xFFFFFFFF
    return (
        differs == 0
        and get(start + H_CHUNK) == (get(memory + H_CHUNK) + row) & mask
        and get(start + H_SEQUENCE) == (get(memory + H_SEQUENCE) + row) & mask
        and get(start + H_TRANSMISSION) == (get(memory + H_TRANSMISSION) + row) & mask
        and get(start + H_OFFSET) == (get(memory + H_OFFSET) + row * size) & mask
    )


def check(memory: int, stride: int, count: int, right: int) -> int:
    """Say in a byte each which segments have the CRC of their bytes; return how many, or -1: they make no run.

    Slack and CRC are set to 0 on the way, if they make one.
    """
    for row in range(1, count):
        if not follows(memory, memory + row * stride, row, stride - SEGMENT_HEADER_BYTES):
            return -1
    found = 0
    for row in range(count):
        start = memory + row * stride
        said = get(start + H_CRC)
        put(start + H_CRC, 0)
        put(start + H_SLACK, 0)
        is_right = int(crc_of(start, stride) == said)
        octets(right)[row] = is_right
        found += is_right
    return found


@compiled
def is_right(start: int, stride: int) -> bool:
    """Whether a segment has the CRC of its bytes, which stay as they are."""
    said, slack = get(start + H_CRC), get(start + H_SLACK)
    put(start + H_CRC, 0)
    put(start + H_SLACK, 0)
    found = crc_of(start, stride)
    put(start + H_CRC, said)
    put(start + H_SLACK, slack)
    return found == said


@compiled
def note_control(message: int, size: int, found: int) -> None:
    """Read what the kernel says of what it received: the bytes of each datagram, and whether a switch marked it."""
    m, f = words(message), words(found)
    f[FOUND_STRIDE], f[FOUND_MARKED] = size, 0
    at, end = m[CONTROL], m[CONTROL] + m[CONTROL_BYTES]
    while at + CONTROL_HEADER_BYTES < end:
        length, what, value = words(at)[0], halves(at), at + CONTROL_HEADER_BYTES
        if what[2] == UDP_LEVEL and what[3] == UDP_GRO:
            f[FOUND_STRIDE] = halves(value)[0]
        elif what[3] == IP_TOS or what[3] == IPV6_TCLASS:
            f[FOUND_MARKED] = int(octets(value)[0] & 3 == CE)
        at += max(length + 7, CONTROL_HEADER_BYTES) // 8 * 8


@compiled
def is_from(message: int, source: int, source_bytes: int) -> bool:
    """Whether a message is from a socket address."""
    m = words(message)
    differs = (m[NAME_BYTES] & 0xFFFFFFFF) ^ source_bytes
    for at in range(source_bytes):
        differs |= octets(m[NAME])[at] ^ octets(source)[at]
    return differs == 0


def receive(
    descriptor: int, message: int, memory: int, header: int, first: int, stride: int, enough: int, most: int,
    source: int, source_bytes: int, target: int, found: int,
) -> int:  # fmt: skip
    """Receive segments that follow each other, and put their payload where it belongs; return how many.

    No more than `most`, and `enough` of them end it. They are the `first`-th and further ones after the segment with
    some header, from one source, not marked. The first datagrams that are something else stay in the memory, and
    `found` says what they are.
    """
    m, f, size = words(message), words(found), stride - SEGMENT_HEADER_BYTES
    name_bytes, control_bytes = m[NAME_BYTES], m[CONTROL_BYTES]
    f[FOUND_BYTES] = f[FOUND_FLAGS] = 0
    taken = 0
    while taken < enough:
        m[NAME_BYTES], m[CONTROL_BYTES] = name_bytes, control_bytes
        arrived = recvmsg(descriptor, message, _WITHOUT_WAITING)
        if arrived <= 0:
            break
        note_control(message, arrived, found)
        rows = arrived // stride
        is_expected = (
            f[FOUND_STRIDE] == stride
            and rows * stride == arrived
            and rows <= most - taken
            and f[FOUND_MARKED] == 0
            and is_from(message, source, source_bytes)
        )
        row = 0
        while is_expected and row < rows:
            start = memory + row * stride
            is_expected = follows(header, start, first + taken + row, size) and is_right(start, stride)
            row += 1
        if not is_expected:
            f[FOUND_BYTES] = arrived
            break
        for row in range(rows):
            start = memory + row * stride
            f[FOUND_FLAGS] |= octets(start)[H_FLAGS]
            copy(target + (taken + row) * size, start + SEGMENT_HEADER_BYTES, size)
        taken += rows
    f[FOUND_NAME_BYTES] = m[NAME_BYTES]
    m[NAME_BYTES], m[CONTROL_BYTES] = name_bytes, control_bytes
    return taken
