"""Hashes and checksums, against the standard library and RFC 1071 word by word."""

from __future__ import annotations

import struct
import zlib

from hypothesis import example, given
from hypothesis import strategies as st
from support.passes import load, through

from tensorexpress.switch.program.hashes import crc16, crc_ccitt, csum16

PIPELINE = load("hashing")
OUTPUT = struct.Struct(">HIHHQHB")


def rfc1071(data: bytes) -> int:
    total = 0
    for word in struct.unpack(f">{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def crc_bit_by_bit(data: bytes, polynomial: int, remainder: int) -> int:
    """A 16-bit CRC without reflection, from its definition."""
    for byte in data:
        remainder ^= byte << 8
        for _ in range(8):
            remainder = (remainder << 1 ^ (polynomial if remainder & 0x8000 else 0)) & 0xFFFF
    return remainder


def reflected(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


def bits(*fields: tuple[int, int]) -> bytes:
    """Fields of so many bits one after the other, filled up at the end."""
    text = "".join(f"{value:0{size}b}" for value, size in fields)
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


@given(st.binary(max_size=40))
def test_crc16_is_the_reflected_crc_of_its_definition(data: bytes) -> None:
    turned = bytes(reflected(byte, 8) for byte in data)
    assert crc16(data) == reflected(crc_bit_by_bit(turned, 0x8005, 0), 16)
    assert crc_ccitt(data) == crc_bit_by_bit(data, 0x1021, 0xFFFF)


@given(st.binary(max_size=60))
@example(b"")
@example(bytes(5))
@example(b"\xff\xff\xff\xff")
def test_csum16_is_the_internet_checksum(data: bytes) -> None:
    assert csum16(data) == rfc1071(data)


inputs = st.tuples(st.integers(0, 15), st.integers(0, 4095), st.integers(0, 2**32 - 1), st.integers(0, 255))


@given(inputs, st.binary(max_size=9), st.booleans())
@example((0, 0, 0, 0), b"", False)
@example((0, 0, 0, 255), b"", False)
@example((15, 4095, 2**32 - 1, 254), b"\xff\xff", True)
def test_hashes_and_checksums_of_fields(fields: tuple[int, int, int, int], payload: bytes, damaged: bool) -> None:
    a, b, c, d = fields
    before = bits((a, 4), (b, 12), (c, 32), (d, 8))
    plain = rfc1071(before) ^ damaged
    out = through(PIPELINE, before + struct.pack(">HH", plain, 0xBEEF) + payload)
    assert out is not None
    after = bits((a, 4), (b, 12), (c, 32), ((d + 1) % 256, 8))
    assert out[:7] == after
    assert struct.unpack(">HH", out[7:11]) == (rfc1071(after), rfc1071(after + payload))
    words = struct.pack(">IBx", c, d)
    assert OUTPUT.unpack(out[11 : 11 + OUTPUT.size]) == (
        crc16(bits((b, 12), (c, 32))),
        zlib.crc32(bits((a, 4), (c, 32), (d, 8))),
        rfc1071(words),
        struct.unpack(">H", words[:2])[0] ^ struct.unpack(">H", words[2:4])[0] ^ struct.unpack(">H", words[4:])[0],
        int.from_bytes(bits((b, 12), (c, 32)), "big") % (2**64 - 1),
        100 + zlib.crc32(struct.pack(">I", c)) % 7,
        damaged,
    )


def test_a_header_that_is_not_there_is_left_out_of_checksums() -> None:
    # Too short for the header of sums: nothing is verified or updated, and no output is computed.
    out = through(PIPELINE, bytes(7) + b"\1\2")
    assert out is not None
    assert OUTPUT.unpack(out[7 : 7 + OUTPUT.size])[-1] == 0
    assert out[-2:] == b"\1\2"
