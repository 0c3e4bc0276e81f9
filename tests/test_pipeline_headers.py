"""Whole headers: added, removed, copied, compared, pushed, popped, chosen at run time."""

from __future__ import annotations

import pytest
from support.passes import egress, ingress, load, through

WIDE = bytes.fromhex("a5 0102030405 060708")
PIPELINE = load("headers")


def after(what: int, index: int = 0) -> str:
    out = through(PIPELINE, bytes([what, index, 0x11, 0x22]) + WIDE + b"\xee")
    assert out is not None
    assert out[-1] == 0xEE
    return out[:-1].hex()


@pytest.mark.parametrize(
    ("what", "index", "expected"),
    [
        (0, 0, "0000 1122" + WIDE.hex()),
        (1, 0, "0100 771122" + WIDE.hex()),
        (2, 0, "0200 22" + WIDE.hex()),
        (3, 0, "0300 1222" + WIDE.hex()),
        (3, 1, "0301 1123" + WIDE.hex()),
        # An index beyond the stack changes nothing.
        (3, 9, "0309 1122" + WIDE.hex()),
        # 0xa5 is 5 in three bits and 5 in five signed ones.
        (4, 0, "0400 1122" + WIDE.hex() + "a4" + WIDE.hex()[2:]),
        (5, 0, "05aa 1122" + WIDE.hex() * 2),
        (5, 1, "0501 1122" + WIDE.hex() + WIDE.hex()[:-6] + "000001"),
        (6, 0, "0600 1122"),
        # One member of a union at most is valid: the last that was made so.
        (7, 0, "07bb 1122" + WIDE.hex() + "05"),
        (7, 1, "07bb 1122" + WIDE.hex() + "1234"),
        # A header that comes back is all zeros.
        (8, 0, "0800 1122" + "00" * 9),
        # Copied from a header that is not there: the target is gone too, but keeps what was in it, as in BMv2.
        (10, 0, "0a08 1122"),
        (9, 0, "0900 1122" + WIDE.hex() + "ff123456789a000000"),
    ],
)
def test_headers_leave_as_the_program_says(what: int, index: int, expected: str) -> None:
    assert after(what, index) == expected.replace(" ", "")


def test_the_length_that_egress_sees_counts_headers_that_ingress_added_and_removed() -> None:
    frame = bytes([0, 0, 0x11, 0x22]) + WIDE
    lengths = []
    for what in (0, 6, 9):
        packet = ingress(PIPELINE, bytes([what]) + frame[1:])
        lengths.append(packet.length)
    assert lengths == [13, 4, 22]
    assert egress(PIPELINE, ingress(PIPELINE, bytes([9]) + frame[1:] + bytes(234))) is None
    assert egress(PIPELINE, ingress(PIPELINE, bytes([0]) + frame[1:] + bytes(234))) is not None


def test_a_packet_that_ends_within_its_headers_leaves_as_it_came() -> None:
    for size in range(14):
        frame = (bytes([0, 0, 0x11, 0x22]) + WIDE)[:size]
        assert through(PIPELINE, frame) == frame
