from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress.errors import UnitError
from tensorexpress.units import (
    PS_PER_SECOND,
    format_rate,
    format_size,
    format_time,
    parse_rate,
    parse_size,
    parse_time,
    serialisation_ps,
)

PARSERS = (parse_time, parse_size, parse_rate)
SCALES = {
    parse_time: {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": 10**12},
    parse_size: {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    parse_rate: {"bps": 1, "Kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9, "Tbps": 10**12},
}
UNITS = [(parse, unit, scale) for parse, units in SCALES.items() for unit, scale in units.items()]


@pytest.mark.parametrize(("parse", "unit", "scale"), UNITS)
def test_every_unit_has_its_scale(parse, unit, scale):
    assert parse(f"3 {unit}") == 3 * scale


@pytest.mark.parametrize("text", ["10 Gbps", "10Gbps", " 10  Gbps ", "10 gbps", "10 GBPS", "1e1 Gbps", "+10.0 Gbps"])
def test_spacing_case_and_exponents_do_not_matter(text):
    assert parse_rate(text) == 10**10


def test_both_greek_letters_that_look_like_micro_are_micro():
    assert parse_time("2 \N{MICRO SIGN}s") == parse_time("2 \N{GREEK SMALL LETTER MU}s") == 2_000_000


def test_fractions_are_exact_and_not_those_of_binary_floats():
    assert parse_time("0.1 s") * 3 == parse_time("0.3 s") == 3 * 10**11


@pytest.mark.parametrize("parse", PARSERS)
def test_a_plain_number_is_in_the_base_unit(parse):
    assert parse(1500) == 1500
    assert parse(2.0) == 2
    assert parse("0") == 0


@pytest.mark.parametrize(
    "value",
    [
        "",
        "10",
        "Gbps",
        "10 Gbsp",
        "ten Gbps",
        "1.2.3 Gbps",
        ".",
        "10 Gbps 5",
        "1,5 Gbps",
        "1_000 Gbps",
        "nan",
        "1e9999999 Gbps",
        "1e99999999999999999999 Gbps",
        True,
        None,
        [],
        {},
        float("nan"),
        float("inf"),
    ],
)
def test_what_is_no_rate_is_refused_with_what_is_accepted(value):
    with pytest.raises(UnitError, match=r"is not a rate; accepted: a number and one of bps, Kbps, .* '10 Gbps'"):
        parse_rate(value)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("value", [-1, -0.5])
def test_negative_quantities_are_refused(parse, value):
    with pytest.raises(UnitError, match="is negative"):
        parse(value)


@pytest.mark.parametrize(
    ("value", "phrase"),
    [("1e30 GB", "is more than a size can be"), (10**18, "60 bits is no size"), (10**5000, "16610 bits is no size")],
    ids=["text", "large", "unprintable"],
)
def test_quantities_that_do_not_fit_64_bits_are_refused(value, phrase):
    with pytest.raises(UnitError, match=phrase):
        parse_size(value)


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.text())))
def test_parsing_returns_a_quantity_or_raises_a_unit_error_and_nothing_else(value):
    for parse in PARSERS:
        with contextlib.suppress(UnitError):
            assert 0 <= parse(value) <= 10**17


@given(st.sampled_from(UNITS), st.decimals(0, 10**4, places=3))
def test_a_quantity_is_its_number_times_its_unit(unit, number):
    parse, name, scale = unit
    assert parse(f"{number} {name}") == round(number * scale)


@given(st.integers(0, 10**17))
def test_what_is_printed_reads_back_within_its_four_digits(value):
    for parse, show in ((parse_time, format_time), (parse_size, format_size), (parse_rate, format_rate)):
        assert abs(parse(show(value)) - value) <= value * Decimal("0.0005")


def test_printing_picks_the_largest_unit_that_leaves_one_or_more():
    assert [format_time(10**n) for n in (0, 3, 6, 9, 12)] == ["1 ps", "1 ns", "1 us", "1 ms", "1 s"]
    assert [format_size(n) for n in (0, 999, 1500, 16_000_000, 2**30)] == [
        "0 B",
        "999 B",
        "1.5 KB",
        "16 MB",
        "1.074 GB",
    ]
    assert [format_rate(n) for n in (1, 25 * 10**9, 10**12)] == ["1 bps", "25 Gbps", "1 Tbps"]


@given(st.integers(0, 10**9), st.integers(1, 10**13))
def test_a_link_is_never_faster_than_its_rate_and_at_most_one_picosecond_slower(size, rate_bps):
    bit_ps = size * 8 * PS_PER_SECOND
    assert bit_ps <= serialisation_ps(size, rate_bps) * rate_bps < bit_ps + rate_bps
