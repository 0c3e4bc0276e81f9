"""Confidence: how far off a mean or a share that was measured may be, with a confidence of 95 %."""

from __future__ import annotations

#: Student's t for 95 % and 1, 2, ... degrees of freedom; beyond, the last will do.
_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)

#: The same for infinitely many.
_NORMAL_95 = 1.96


def student_t(freedom: int) -> float:
    """Return how many standard errors a mean may be off, by its degrees of freedom (1 or more).

    >>> student_t(2), student_t(1000)
    (4.3, 2.1)
    """
    return _T_95[min(freedom, len(_T_95)) - 1]


def wilson(hits: int, tries: int) -> tuple[float, float]:
    """Return between what a probability is of which `tries` independent tries, one or more, had `hits` hits.

    Wilson's interval stays inside 0 to 1, and is not empty where all tries were hits.

    >>> low, high = wilson(10, 10)
    >>> round(low, 2), high
    (0.72, 1.0)
    """
    z2, share = _NORMAL_95**2, hits / tries
    middle = (share + z2 / (2 * tries)) / (1 + z2 / tries)
    half = _NORMAL_95 * (share * (1 - share) / tries + z2 / (4 * tries**2)) ** 0.5 / (1 + z2 / tries)
    # What rounding leaves over at the ends is no probability.
    return max(0.0, middle - half) if hits else 0.0, min(1.0, middle + half) if hits < tries else 1.0
