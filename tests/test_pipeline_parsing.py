"""The parser: what each state takes from the frame, and which error ends it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passes import load, through

from tensorexpress.switch.operations import SetValueSet

PIPELINE = load("parsing")
TOO_SHORT, STACK_FULL, HEADER_TOO_SHORT, BAD_MARK, OTHER = 1, 2, 3, 4, 9


def parsed(frame: bytes) -> tuple[tuple[int, int, int, int], bytes]:
    """Return (error, labels, last label, bits seen ahead) and the frame behind them."""
    out = through(PIPELINE, frame)
    assert out is not None
    return (out[0], out[1], out[2], out[3]), out[4:]


def label(value: int, last: int = 0) -> int:
    return value << 1 | last


@pytest.mark.parametrize(
    ("frame", "outcome"),
    [
        (b"", (TOO_SHORT, 0, 0, 0)),
        (bytes([1, label(5, 1)]), (0, 1, 5, 0)),
        (bytes([1, label(5), label(6), label(7, 1), 99]), (0, 3, 7, 0)),
        (bytes([1, label(5), label(6), label(7), label(8, 1)]), (STACK_FULL, 3, 7, 0)),
        (bytes([1, label(5), label(6)]), (TOO_SHORT, 2, 6, 0)),
        (bytes([2, 3, 1, 2, 3, 9]), (0, 0, 0, 0)),
        (bytes([2, 0, 9]), (0, 0, 0, 0)),
        (bytes([2, 9, *range(20)]), (HEADER_TOO_SHORT, 0, 0, 0)),
        (bytes([2, 9]), (TOO_SHORT, 0, 0, 0)),
        (bytes([4, 2, 0xFF, 0xA1, 0x23]), (0, 0, 0, 0)),
        (bytes([4, 2, 0xFF, 0xB1, 0x23]), (BAD_MARK, 0, 0, 0)),
        (bytes([4, 200, 0xA1, 0x23]), (TOO_SHORT, 0, 0, 0)),
        (bytes([0x47, 0x12, 0x34, 0x56]), (0, 0, 0, 0x34)),
        (bytes([0x4F, 0x12]), (TOO_SHORT, 0, 0, 0)),
        (bytes([0x80, 0xA0, 0x00]), (0, 0, 0, 0)),
        (bytes([0x8F, 0xC0, 0x00]), (BAD_MARK, 0, 0, 0)),
        (bytes([0x90, 0xC0, 0x00]), (0, 0, 0, 0)),
    ],
)
def test_the_parser_reports_what_it_met(frame: bytes, outcome: tuple[int, int, int, int]) -> None:
    found, rest = parsed(frame)
    assert found == outcome
    if frame[:1] != b"\4":
        assert rest == frame


def test_bytes_that_the_parser_advanced_over_do_not_come_back() -> None:
    assert parsed(bytes([4, 2, 0xFF, 0xA1, 0x23, 7]))[1] == bytes([4, 0xA1, 0x23, 7])


def test_an_error_leaves_what_was_parsed_and_counts_the_frame() -> None:
    pipeline = load("parsing")
    through(pipeline, b"\1\2")
    through(pipeline, bytes([1, label(5, 1)]))
    assert pipeline.malformed == 1


def test_a_union_in_a_stack_takes_whichever_member_comes() -> None:
    frame = bytes([3, 2, 0xAA, 0xBB, 0xCC, 1, 0x10, 0, 0xEE])
    assert parsed(frame)[1] == bytes([3, 2, 0xAA, 0xBB, 0xCC, 1, 0x11, 0, 0xEE])


def test_a_stack_of_unions_is_full_after_its_last() -> None:
    frame = bytes([3, 1, 0x10, 1, 0x20, 1, 0x30])
    assert parsed(frame) == ((STACK_FULL, 0, 0, 0), bytes([3, 1, 0x10, 1, 0x21, 1, 0x30]))


def test_a_value_set_decides_once_it_is_filled() -> None:
    pipeline = load("parsing")
    frame = bytes([0x20, 0x10, 0x00])
    assert through(pipeline, frame) == bytes(4) + frame
    pipeline.apply(SetValueSet("Parse.marked_kinds", ((0x20,), (0x21,))))
    assert through(pipeline, frame) == bytes([BAD_MARK, 0, 0, 0]) + frame
    pipeline.apply(SetValueSet("Parse.marked_kinds", ()))
    assert through(pipeline, frame) == bytes(4) + frame


@given(st.binary(max_size=8).map(lambda content: bytes([2, len(content)]) + content + b"tail"))
def test_a_varbit_keeps_every_length(frame: bytes) -> None:
    assert parsed(frame) == ((0, 0, 0, 0), frame)
