"""Expressions, against the same arithmetic in plain Python."""

from __future__ import annotations

import struct

from hypothesis import example, given
from hypothesis import strategies as st
from support.passes import document, load, through

from tensorexpress.switch.program.pipeline import Pipeline

PIPELINE = load("arithmetic")
RESULTS = struct.Struct(">5H4h4H2HhHIHBibH")

u16 = st.integers(0, 2**16 - 1)
s16 = st.integers(-(2**15), 2**15 - 1)


def wrap(value: int, bits: int) -> int:
    """A number as a signed field of that width holds it."""
    half = 1 << bits - 1
    return (value + half) % (2 * half) - half


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def expected(a: int, b: int, s: int, t: int, n: int) -> tuple[int, ...]:
    flags = [a == b, a != b, a < b, a <= b, s > t, s >= t, a == 0 and b != 0, not s < 0 or t < 0]
    return (
        (a + b) % 2**16,
        (a - b) % 2**16,
        a * b % 2**16,
        clamp(a + b, 0, 2**16 - 1),
        clamp(a - b, 0, 2**16 - 1),
        wrap(s + t, 16),
        clamp(s + t, -(2**15), 2**15 - 1),
        clamp(s - t, -(2**15), 2**15 - 1),
        wrap(s * t, 16),
        a & b,
        a | b,
        a ^ b,
        a ^ 0xFFFF,
        (a << n) % 2**16,
        a >> n,
        s >> n,
        (a & 0xFF) << 8 | a >> 8,
        a << 16 | b,
        max(a, b),
        sum(flag << 7 - place for place, flag in enumerate(flags)),
        s,
        wrap(t, 8),
        -a % 2**16,
    )


@given(u16, u16, s16, s16, st.integers(0, 255))
@example(0, 0, 0, 0, 0)
@example(2**16 - 1, 1, -(2**15), -(2**15), 255)
@example(2**16 - 1, 2**16 - 1, 2**15 - 1, 2**15 - 1, 16)
def test_every_operator_gives_what_python_gives(a: int, b: int, s: int, t: int, n: int) -> None:
    out = through(PIPELINE, struct.pack(">HHhhB", a, b, s, t, n) + b"rest")
    assert out is not None
    assert RESULTS.unpack(out[:-4]) == expected(a, b, s, t, n)
    assert out[-4:] == b"rest"


@given(u16, u16)
@example(5, 0)
def test_division_by_zero_gives_zero(a: int, b: int) -> None:
    # p4c lets v1model divide constants only; other compilers' programs may divide what is in the packet.
    frame = struct.pack(">HHhhB", a, b, 0, 0, 0)
    quotient, remainder = (RESULTS.unpack(through(pipeline, frame) or b"")[2] for pipeline in DIVIDING)
    assert (quotient, remainder) == ((a // b, a % b) if b else (0, 0))


DIVIDING = [Pipeline(document("arithmetic").replace(b'"op":"*"', b'"op":"' + op + b'"')) for op in (b"/", b"%")]
