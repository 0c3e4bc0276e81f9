"""Varbits as values: assigned, swapped, compared, hashed, emptied."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.passes import load, through

from tensorexpress.switch.program.hashes import crc16

PIPELINE = load("varbits")
SWAP, EQUAL, UNEQUAL, HASH, EMPTY = range(1, 6)

varbits = st.binary(max_size=16)


def after(what: int, one: bytes, two: bytes) -> tuple[int, bytes]:
    """Return the digest of the header, and what follows it."""
    out = through(PIPELINE, bytes([what, len(one), len(two), 0, 0]) + one + two)
    assert out is not None
    assert out[:3] == bytes([what, len(one), len(two)])
    return int.from_bytes(out[3:5]), out[5:]


@given(varbits, varbits)
def test_varbits_of_any_length_change_places(one: bytes, two: bytes) -> None:
    assert after(SWAP, one, two) == (0, two + one)


@given(varbits, varbits)
def test_varbits_are_equal_when_all_their_bytes_are(one: bytes, two: bytes) -> None:
    for first, second in ((one, two), (one, one), (one, one[:-1]), (two, two[:-1] + b"\0")):
        assert after(EQUAL, first, second) == (first == second, first + second)
        assert after(UNEQUAL, first, second) == (2 * (first != second), first + second)


@given(varbits, varbits)
def test_a_varbit_that_nobody_has_filled_is_empty(one: bytes, two: bytes) -> None:
    assert after(EMPTY, one, two) == (0, one)


@given(varbits, varbits)
def test_a_hash_takes_the_bytes_that_varbits_have(one: bytes, two: bytes) -> None:
    assert after(HASH, one, two) == (crc16(one + two), one + two)
