"""Quantities: integer picoseconds, bytes and bit/s; parsing ("10 Gbps", "2 us") and printing them.

Everything inside tensorexpress is an integer in a base unit, so that two engines can agree exactly. A plain
number is taken to be in the base unit already.
"""

from __future__ import annotations

import re
from decimal import Decimal, DecimalException

from tensorexpress.errors import UnitError

PS_PER_SECOND = 10**12
PS_PER_MS = 10**9

#: Largest quantity accepted, so that sums and products stay inside 64 bits.
LARGEST = 10**17

_TIME = {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": 10**12}
_SIZE = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_RATE = {"bps": 1, "Kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9, "Tbps": 10**12}

_QUANTITY = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9]*)\s*\Z")


def _parse(value: object, what: str, units: dict[str, int], example: str) -> int:
    accepted = f"accepted: a number and one of {', '.join(units)}, such as {example!r}"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UnitError(f"{value!r} is not a {what}; {accepted}")
    if isinstance(value, int) and abs(value) > LARGEST:  # before it is printed: Python refuses very long integers
        raise UnitError(f"a number of {value.bit_length()} bits is no {what}; accepted: 0 to {LARGEST}")
    match = _QUANTITY.match(str(value))
    if match is None:
        raise UnitError(f"{value!r} is not a {what}; {accepted}")
    number, unit = match.groups()
    if unit:
        scale = {name.casefold(): factor for name, factor in units.items()}.get(unit.casefold())
    else:
        scale = 1 if not isinstance(value, str) or number.strip("+-0.") == "" else None
    if scale is None:
        raise UnitError(f"{value!r} is not a {what}; {accepted}")
    try:
        amount = Decimal(number) * scale
    except DecimalException:
        raise UnitError(f"{value!r} is not a {what}; {accepted}") from None
    if amount < 0:
        raise UnitError(f"{value!r} is negative; a {what} is zero or more")
    if amount > LARGEST:
        raise UnitError(f"{value!r} is more than a {what} can be here ({LARGEST} {next(iter(units))})")
    return round(amount)


def parse_time(value: object) -> int:
    """Return a time in picoseconds.

    >>> parse_time("2 us")
    2000000
    """
    return _parse(value, "time", _TIME, "2 us")


def parse_size(value: object) -> int:
    """Return a size in bytes; KB, MB, GB are powers of ten, KiB, MiB, GiB of two.

    >>> parse_size("200 KB")
    200000
    """
    return _parse(value, "size", _SIZE, "200 KB")


def parse_limit(value: object) -> int:
    """Return a size in bytes that is a limit; 0 and "unlimited" are none.

    >>> parse_limit("unlimited"), parse_limit("1 MB")
    (0, 1000000)
    """
    return 0 if value == "unlimited" else parse_size(value)


def parse_rate(value: object) -> int:
    """Return a rate in bit/s.

    >>> parse_rate("10 Gbps")
    10000000000
    """
    return _parse(value, "rate", _RATE, "10 Gbps")


def _format(value: int, units: dict[str, int]) -> str:
    # Repeated scales (µs beside us, powers of two beside powers of ten) are for reading only.
    steps = {scale: name for name, scale in reversed(units.items()) if str(scale).strip("0") == "1"}
    for scale in sorted(steps, reverse=True):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {steps[scale]}"
    return f"{value} {next(iter(units))}"


def format_time(ps: int) -> str:
    """Return picoseconds as a person writes them.

    >>> format_time(2_500_000)
    '2.5 us'
    """
    return _format(ps, _TIME)


def format_size(size: int) -> str:
    """Return bytes as a person writes them.

    >>> format_size(200_000)
    '200 KB'
    """
    return _format(size, _SIZE)


def format_rate(bps: int) -> str:
    """Return bit/s as a person writes them.

    >>> format_rate(10**10)
    '10 Gbps'
    """
    return _format(bps, _RATE)


def format_ms(ps: float) -> str:
    """Return picoseconds in milliseconds with two decimals, as sentences about iterations have them.

    >>> format_ms(65_866_511_012)
    '65.87 ms'
    """
    return f"{ps / PS_PER_MS:.2f} ms"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "queue"), counted(8, "queue")
    ('1 queue', '8 queues')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def serialisation_ps(size: int, rate_bps: int) -> int:
    """Return how long `size` bytes occupy a link, rounded up so that no link is faster than its rate.

    >>> serialisation_ps(1250, 10**10)
    1000000
    """
    return -(-size * 8 * PS_PER_SECOND // rate_bps)
