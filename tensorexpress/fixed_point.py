"""Fixed point: blocks of floating-point numbers as whole numbers that switches can add, and back.

A block is what a packet carries. All workers scale it by the same power of two, which an *exponent* says: whole number
v stands for v quanta of 2**(exponent + headroom - 30). The headroom, ceil(log2 n) bits for n workers, is why no sum
leaves 32 bits. Whole numbers add up to the same bits in any order.

The error of a sum is at most n/2 quanta, half of one for every worker's rounding, and what its conversion to the
result's type rounds: docs/aggregation.md.

>>> block = np.linspace(-3, 3, VALUES, dtype=np.float32)
>>> needed = exponents_needed(block)
>>> total = to_floats(8 * to_integers(block, needed, workers=8).astype(np.int32), needed, workers=8)
>>> int(needed), bool((abs(total - 8.0 * block) <= rounding_error(needed, workers=8)).all())
(2, True)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorexpress.sums import VALUES

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int32]
#: Of every block one; a block alone has an array without dimensions.
Exponents = NDArray[np.int64]

#: Exponents are from here to there. The lowest one has quanta that no float32 is smaller than, with up to 64 workers.
#: The largest float32 needs one more than the highest, for which a bit is spare: see `to_integers`.
LOWEST, HIGHEST = -126, 127

#: Workers for which the above holds.
MOST_WORKERS = 64

_BITS = 30


def headroom_bits(workers: int) -> int:
    """Return the bits that are left free for the sum of so many workers.

    >>> [headroom_bits(workers) for workers in (1, 2, 3, 8, 64)]
    [0, 1, 2, 3, 6]
    """
    return (workers - 1).bit_length()


def quantum(exponents: Exponents | int, workers: int) -> Doubles:
    """Return what one stands for in blocks of these exponents."""
    size: Doubles = np.ldexp(1.0, np.asarray(exponents) + (headroom_bits(workers) - _BITS))
    return size


def rounding_error(exponents: Exponents | int, workers: int) -> Doubles:
    """Return how far a sum can be from that of the exact numbers, before it is converted to the result's type."""
    return workers / 2 * quantum(exponents, workers)


def in_blocks(elements: Floats) -> Floats:
    """Return numbers as rows of blocks; the last is filled up with zeros, and there is at least one.

    >>> in_blocks(np.ones(257, dtype=np.float32)).sum(axis=1).tolist()
    [256.0, 1.0]
    """
    blocks = max(1, -(-len(elements) // VALUES))
    if len(elements) == blocks * VALUES:
        return elements.reshape(blocks, VALUES)
    padded: Floats = np.zeros(blocks * VALUES, dtype=np.float32)
    padded[: len(elements)] = elements
    return padded.reshape(blocks, VALUES)


def are_finite(blocks: Floats) -> NDArray[np.bool_]:
    """Return which blocks hold neither infinity nor NaN."""
    return np.asarray(np.isfinite(blocks).all(axis=-1))


def exponents_needed(blocks: Floats) -> Exponents:
    """Return for every block the least exponent e with |x| < 2**e for all x in it, between lowest and highest.

    Blocks of zeros need the lowest, and so do those that are not finite: `are_finite` tells which.

    >>> exponents_needed(np.float32([[0.0, -0.0], [0.5, -1.0], [1e-45, 0.0], [3e38, 1.0]])).tolist()
    [-126, 1, -126, 127]
    """
    largest = np.abs(blocks).max(axis=-1)
    usable = np.isfinite(largest) & (largest > 0)
    exponents = np.frexp(np.where(usable, largest, 1))[1].astype(np.int64)
    return np.where(usable, exponents.clip(LOWEST, HIGHEST), LOWEST)


def to_integers(blocks: Floats, exponents: Exponents | int, workers: int) -> Integers:
    """Return blocks scaled by their exponents and rounded to whole numbers, those halfway to even ones.

    A block that needs a higher exponent, or is not finite, becomes zeros: it would not fit. The highest exponent
    also takes what lies beyond it, which uses up a bit that is free otherwise: the largest float32 of every worker
    adds up to 2**31 - 2**7.
    """
    exponents = np.asarray(exponents)
    free = _BITS - headroom_bits(workers)
    scaled = blocks.astype(np.float64) * np.ldexp(1.0, free - exponents)[..., None]
    limit = np.ldexp(1.0, np.where(exponents == HIGHEST, free + 1, free))
    # A comparison with NaN is false.
    fits = np.abs(scaled).max(axis=-1) < limit
    return np.rint(np.where(fits[..., None], scaled, 0)).astype(np.int32)


def to_floats(values: Integers, exponents: Exponents | int, workers: int) -> Doubles:
    """Return what sums of whole numbers stand for, exactly."""
    return values * quantum(exponents, workers)[..., None]


# Types of gradients


@dataclass(frozen=True)
class FloatType:
    """A type of gradients: how arrays of it become float32 and how exact sums become it."""

    #: Exactly, because float32 holds every number of the smaller types.
    widened: Callable[[NDArray[np.generic]], Floats]
    #: To the nearest number, halfway to the even one; what is too large becomes infinite.
    rounded: Callable[[Doubles], NDArray[np.generic]]


def _widened(elements: NDArray[np.generic]) -> Floats:
    return elements.astype(np.float32, copy=False)


def _rounded_to(dtype: type[np.floating]) -> Callable[[Doubles], NDArray[np.generic]]:
    def rounded(sums: Doubles) -> NDArray[np.generic]:
        with np.errstate(over="ignore", under="ignore"):
            return sums.astype(dtype)

    return rounded


def _bf16_widened(elements: NDArray[np.generic]) -> Floats:
    return (elements.astype(np.uint32) << 16).view(np.float32)


def _bf16_rounded(sums: Doubles) -> NDArray[np.generic]:
    # At once from float64: to round to float32 first and then again could end on the wrong side of half.
    exponents = np.maximum(np.frexp(sums)[1], -125)
    unit = np.ldexp(1.0, exponents - 8)
    nearest = _rounded_to(np.float32)(np.rint(sums / unit) * unit)
    return (nearest.view(np.uint32) >> 16).astype(np.uint16)


#: By the name that a workload has for it. numpy has no bf16: arrays of it are uint16, the upper half of a float32.
FLOAT_TYPES = {
    "fp32": FloatType(_widened, _rounded_to(np.float32)),
    "tf32": FloatType(_widened, _rounded_to(np.float32)),
    "fp16": FloatType(_widened, _rounded_to(np.float16)),
    "bf16": FloatType(_bf16_widened, _bf16_rounded),
}
