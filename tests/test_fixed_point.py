"""Fixed point: no sum overflows, every sum is as near as is said, and the order of adding does not show."""

from __future__ import annotations

import doctest
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tensorexpress import fixed_point
from tensorexpress.fixed_point import (
    FLOAT_TYPES,
    HIGHEST,
    LOWEST,
    MOST_WORKERS,
    are_finite,
    exponents_needed,
    in_blocks,
    quantum,
    rounding_error,
    to_floats,
    to_integers,
)
from tensorexpress.workload import DTYPE_BYTES

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)

#: Blocks of a few numbers do: every number is on its own but for the exponent.
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
extremes = st.sampled_from([0.0, -0.0, SMALLEST, -SMALLEST, LARGEST, -LARGEST, 1.0, 2.0**-126, -(2.0**127)])
workers_of = st.integers(2, MOST_WORKERS)


@st.composite
def gradients(draw: st.DrawFn, elements: st.SearchStrategy[float] = finite | extremes) -> np.ndarray:
    """A block of every worker."""
    return draw(arrays.arrays(np.float32, (draw(workers_of), draw(st.integers(1, 4))), elements=elements))


def test_examples_hold() -> None:
    assert doctest.testmod(fixed_point).failed == 0


def test_golden_values() -> None:
    block = np.float32([1.0, -1.5, 0.1, 0.0, -0.0, 2.0**-30])
    assert exponents_needed(block) == 1
    assert to_integers(block, 1, workers=4).tolist() == [2**27, -3 * 2**26, 13421773, 0, 0, 0]
    assert to_integers(block, 4, workers=64).tolist() == [2**20, -3 * 2**19, 104858, 0, 0, 0]
    # Halfway to the even one.
    halves = np.float32([0.5, 1.5, 2.5, -0.5, -1.5]) * 2.0**-28
    assert to_integers(halves, 0, workers=4).tolist() == [0, 2, 2, 0, -2]
    assert to_floats(np.int32([2**27, -1]), np.int64(1), workers=4).tolist() == [1.0, -(2.0**-27)]


@given(gradients())
def test_no_sum_overflows_and_every_sum_is_within_the_stated_error(blocks: np.ndarray) -> None:
    workers, exponent = len(blocks), int(exponents_needed(blocks).max())
    values = to_integers(blocks, np.full(workers, exponent), workers)
    total = values.astype(np.int64).sum(axis=0)
    assert abs(total).max() < 2**31
    exact = blocks.astype(np.float64).sum(axis=0)
    # Doubles hold neither sum exactly where exponents lie far apart.
    inexact = 2.0**-52 * workers * np.abs(blocks.astype(np.float64)).sum(axis=0)
    error = abs(to_floats(total.astype(np.int32), exponent, workers) - exact)
    assert (error <= rounding_error(exponent, workers) + inexact).all()


@pytest.mark.parametrize("workers", range(1, MOST_WORKERS + 1))
@pytest.mark.parametrize("largest", [LARGEST, -LARGEST, float(np.nextafter(np.float32(1), np.float32(0)))])
def test_the_largest_numbers_of_all_workers_fit(workers: int, largest: float) -> None:
    block = np.float32([largest])
    value = int(to_integers(block, exponents_needed(block), workers)[0])
    assert abs(workers * value) < 2**31
    assert to_floats(np.int32([value]), exponents_needed(block), workers)[0] == pytest.approx(largest, rel=2**-23)


@given(gradients(), st.randoms(use_true_random=False))
def test_the_order_of_adding_does_not_show(blocks: np.ndarray, random: Random) -> None:
    workers, exponent = len(blocks), int(exponents_needed(blocks).max())
    values = list(to_integers(blocks, np.full(workers, exponent), workers))
    first = sum(values[1:], values[0])
    random.shuffle(values)
    other = sum(values[1:], values[0])
    assert first.dtype == np.int32
    assert first.tobytes() == other.tobytes()


@given(arrays.arrays(np.float32, (3, 4), elements=finite | extremes))
def test_a_block_needs_the_least_exponent_above_its_numbers(blocks: np.ndarray) -> None:
    for block, exponent in zip(blocks.astype(np.float64), exponents_needed(blocks).tolist(), strict=True):
        assert LOWEST <= exponent <= HIGHEST
        assert abs(block).max() < 2.0 ** (exponent + (exponent == HIGHEST))
        assert exponent == LOWEST or abs(block).max() >= 2.0 ** (exponent - 1)


@given(
    arrays.arrays(np.float32, (4, 3), elements=st.floats(width=32) | extremes),
    st.integers(LOWEST, HIGHEST),
    workers_of,
)
def test_what_does_not_fit_or_is_not_finite_becomes_zeros(blocks: np.ndarray, exponent: int, workers: int) -> None:
    finite_rows = are_finite(blocks)
    assert finite_rows.tolist() == [bool(np.isfinite(block).all()) for block in blocks]
    values = to_integers(blocks, np.full(4, exponent), workers)
    for block, row, is_finite, needed in zip(blocks, values, finite_rows, exponents_needed(blocks), strict=True):
        if not is_finite or needed > exponent:
            assert not row.any()
        else:
            assert (abs(to_floats(row, exponent, workers) - block) <= quantum(exponent, workers) / 2).all()
            assert (abs(row.astype(np.int64)) * workers < 2**31).all()


@given(st.integers(0, 1000))
def test_blocks_hold_all_numbers_and_zeros(count: int) -> None:
    numbers = np.arange(1, count + 1, dtype=np.float32)
    blocks = in_blocks(numbers)
    assert blocks.shape == (max(1, -(-count // 256)), 256)
    assert np.array_equal(blocks.ravel()[:count], numbers)
    assert not blocks.ravel()[count:].any()


# Types


def test_every_type_of_a_workload_has_a_way() -> None:
    assert FLOAT_TYPES.keys() == DTYPE_BYTES.keys()


@given(st.integers(0, 2**16 - 1))
def test_numbers_of_two_bytes_stay_what_they_are(bits: int) -> None:
    for name, dtype in (("fp16", np.float16), ("bf16", np.uint16)):
        element = np.array([bits], dtype=np.uint16).view(dtype)
        wide = FLOAT_TYPES[name].widened(element)
        if np.isfinite(wide).all():
            assert FLOAT_TYPES[name].rounded(wide.astype(np.float64)).tobytes() == element.tobytes()


def test_golden_values_of_bf16() -> None:
    wide = FLOAT_TYPES["bf16"].widened(np.uint16([0x3F80, 0xC000, 0x7F7F, 0x0001, 0x8000]))
    assert wide.tolist() == [1.0, -2.0, 3.3895313892515355e38, 2.0**-133, -0.0]
    # Just above half a unit is more than half, even where float32 cannot tell.
    sums = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-40, 3.4e38, -1e39, 2.0**-134, 2.0**-133])
    assert [hex(bits) for bits in FLOAT_TYPES["bf16"].rounded(sums).tolist()] == [
        "0x3f80", "0x3f82", "0x3f81", "0x7f80", "0xff80", "0x0", "0x1",
    ]  # fmt: skip


@given(st.floats(-1e38, 1e38))
def test_sums_are_rounded_to_the_nearest_number_of_two_bytes(number: float) -> None:
    rounded = FLOAT_TYPES["bf16"].rounded(np.array([number]))
    near = rounded.astype(np.int64) + np.array([-1, 0, 1])
    near = near[(near >= 0) & (near < 2**16)].astype(np.uint16)
    distances = abs(FLOAT_TYPES["bf16"].widened(near).astype(np.float64) - number)
    chosen = abs(FLOAT_TYPES["bf16"].widened(rounded).astype(np.float64) - number)
    assert chosen <= np.nanmin(distances)
