"""The hash and checksum algorithms of simple_switch, on bytes."""

from __future__ import annotations

import zlib
from binascii import crc_hqx
from collections.abc import Callable
from random import Random

Hash = Callable[[bytes], int]


def crc_table(polynomial: int) -> list[int]:
    """Return the remainders of all bytes for a polynomial that is written with its lowest power first."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        table.append(value)
    return table


_CRC16_TABLE = crc_table(0xA001)


def crc16(data: bytes) -> int:
    """Return the CRC-16 of ARC: polynomial 0x8005, reflected, starting at 0.

    >>> hex(crc16(b"123456789"))
    '0xbb3d'
    """
    remainder = 0
    for byte in data:
        remainder = remainder >> 8 ^ _CRC16_TABLE[(remainder ^ byte) & 0xFF]
    return remainder


def crc_ccitt(data: bytes) -> int:
    """Return the CRC-16 of polynomial 0x1021, starting at 0xffff.

    >>> hex(crc_ccitt(b"123456789"))
    '0x29b1'
    """
    return crc_hqx(data, 0xFFFF)


def csum16(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071): the complement of the one's complement sum of 16-bit words.

    >>> hex(csum16(bytes.fromhex("0001f203f4f5f6f7")))
    '0x220d'
    """
    total = int.from_bytes(data, "big") << 8 * (len(data) & 1)
    # A number modulo 65535 is the sum of its words modulo 65535; a sum that is not nothing folds to 65535, never to 0.
    return -total % 0xFFFF if total else 0xFFFF


def _xor(size: int) -> Hash:
    def xor(data: bytes) -> int:
        result = 0
        for start in range(0, len(data), size):
            result ^= int.from_bytes(data[start : start + size].ljust(size, b"\0"), "big")
        return result

    return xor


def identity(data: bytes) -> int:
    """Return the first eight bytes as a number.

    >>> identity(b"\\1\\2")
    258
    """
    return int.from_bytes(data[:8], "big")


_HASHES: dict[str, Hash] = {
    "crc16": crc16,
    "crc16_custom": crc16,
    "crc32": zlib.crc32,
    "crc32_custom": zlib.crc32,
    "crcCCITT": crc_ccitt,
    "csum16": csum16,
    "cksum16": csum16,
    "xor16": _xor(2),
    "xor32": _xor(4),
    "identity": identity,
}

#: Names of the algorithms that a program may use. The custom forms are as simple_switch starts them.
ALGORITHMS = frozenset(_HASHES) | {"random", "round_robin"}


def hash_function(algorithm: str, random: Random) -> Hash:
    """Return the function of an algorithm; `random` serves the one of that name."""
    if algorithm == "random":
        return lambda data: random.getrandbits(64)
    if algorithm == "round_robin":
        return _round_robin()
    return _HASHES[algorithm]


def _round_robin() -> Hash:
    count = -1

    def count_up(data: bytes) -> int:
        nonlocal count
        count += 1
        return count

    return count_up
