"""The values that a sweep gives to a scenario key: lists and ranges, with units."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from tensorexpress.errors import InputError, UnitError
from tensorexpress.units import format_rate, format_size, format_time, parse_rate, parse_size, parse_time

#: Most points of a sweep; what is larger is a slip of the finger rather than a question.
MOST_POINTS = 10_000

_QUANTITIES: tuple[tuple[Callable[[object], int], Callable[[int], str]], ...] = (
    (parse_rate, format_rate),
    (parse_size, format_size),
    (parse_time, format_time),
)

_NUMBER = re.compile(r"([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµ]*)")


def parse_vary(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the key and the values of "KEY=V1,V2,...", "KEY=START:STOP:STEPS" or "KEY=START:STOP:STEPS:log".

    A number without a unit takes that of the next value that has one, or else of the last. Between whole numbers
    without a unit there are only whole ones; other values of a range are rounded to four digits.

    >>> parse_vary("cluster.bandwidth=10,25,100 Gbps")
    ('cluster.bandwidth', ('10 Gbps', '25 Gbps', '100 Gbps'))
    >>> parse_vary("job.workers=2:32:5:log")
    ('job.workers', ('2', '4', '8', '16', '32'))
    >>> parse_vary("cluster.delay=0:2 us:5")
    ('cluster.delay', ('0 us', '500 ns', '1 us', '1.5 us', '2 us'))
    """
    key, equals, written = (part.strip() for part in text.partition("="))
    # A comma inside brackets belongs to a value that is a list or a table.
    parts = [part.strip() for part in re.split(r",(?![^\[{]*[\]}])", written)]
    try:
        if not key or not equals:
            raise ValueError("found no KEY=")
        if not all(parts):
            raise ValueError("found an empty value")
        values = _range(parts[0]) if len(parts) == 1 and ":" in parts[0] else _with_units(parts)
    except ValueError as error:
        raise InputError(
            f"--vary {text!r}: {error}; accepted: KEY=V1,V2,... or KEY=START:STOP:STEPS[:log], "
            "such as cluster.bandwidth=1:100 Gbps:9:log"
        ) from None
    return key, tuple(dict.fromkeys(values))


def number_of(value: str) -> float | None:
    """Return a value as a number, in ps, bytes or bit/s where it has a unit; None for what is no number.

    >>> number_of("25 Gbps"), number_of("0.5"), number_of("resnet50")
    (25000000000.0, 0.5, None)
    """
    measured = _measured(value)
    return measured[1] if measured else None


def formatter(value: str) -> Callable[[float], str]:
    """Return what writes other numbers the way a value is written: with the same kind of unit, or without.

    >>> formatter("25 Gbps")(4e8)
    '400 Mbps'
    """
    measured = _measured(value)
    if measured is None or measured[0] is None:
        return "{:.4g}".format
    write = _QUANTITIES[measured[0]][1]
    return lambda number: write(round(number))


def _measured(value: str) -> tuple[int | None, float] | None:
    """Return the place of a value's unit in _QUANTITIES, None without one, and its number; None for what is none."""
    match = _NUMBER.fullmatch(value)
    if match is None:
        return None
    if not match[2]:
        return None, float(match[1])
    for place, (parse, _) in enumerate(_QUANTITIES):
        try:
            return place, float(parse(value))
        except UnitError:
            continue
    return None


def _with_units(values: Sequence[str]) -> list[str]:
    """Give every number without a unit that of the next value that has one, or else of the last."""
    matches = [_NUMBER.fullmatch(value) for value in values]
    units = [match[2] if match else "" for match in matches]
    last = next(filter(None, reversed(units)), "")
    completed = []
    for index, (value, match) in enumerate(zip(values, matches, strict=True)):
        unit = next(filter(None, units[index:]), last)
        with_unit = f"{match[1]} {unit}".rstrip() if match else value
        # Text such as "5a" only looks like a number with a unit.
        completed.append(with_unit if _measured(with_unit) else value)
    return completed


def _range(written: str) -> list[str]:
    """Return the values of "START:STOP:STEPS" or "START:STOP:STEPS:log"; a ValueError says what is wrong."""
    parts = [part.strip() for part in written.split(":")]
    logarithmic = parts[3:] == ["log"]
    if len(parts) != 3 + logarithmic:
        raise ValueError(f"{written!r} is no range")
    if not re.fullmatch("[0-9]{1,9}", parts[2]) or not 2 <= int(parts[2]) <= MOST_POINTS:
        raise ValueError(f"STEPS is {parts[2]!r}, not a whole number from 2 to {MOST_POINTS}")
    first, last = _with_units(parts[:2])
    (kind, start), (other, stop) = _measured(first) or (-1, 0.0), _measured(last) or (-2, 0.0)
    if kind != other or not math.isfinite(start + stop):
        raise ValueError(f"{first!r} and {last!r} are not two numbers of one kind")
    if logarithmic and min(start, stop) <= 0:
        raise ValueError("a logarithmic range starts and ends above 0")
    whole = all(re.fullmatch("[-+]?[0-9]+", end) for end in (first, last))
    write = "{:.0f}".format if whole else formatter(first)
    parts_of_way = [step / (int(parts[2]) - 1) for step in range(1, int(parts[2]) - 1)]
    between = [start * (stop / start) ** p if logarithmic else start + (stop - start) * p for p in parts_of_way]
    # Rounding must not lead past an end of a narrow range.
    inside = [text for text in map(write, between) if min(start, stop) < (number_of(text) or 0.0) < max(start, stop)]
    return [first, *inside, last]
