"""The wire format of protobuf, as little of it as traces need: fields of a message, and messages one after another.

What is decoded comes from outside: no number is longer than 64 bits, nothing reaches beyond the message it is in, and
whatever is wrong is a ValueError that says what.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

#: Bytes of the longest number, and the bits of it that count.
_LONGEST_VARINT = 10
_MASK = 2**64 - 1

_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}


def messages(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield every message of a file in which each follows its own length, and the byte at which it begins."""
    place = 0
    while place < len(content):
        size, place = varint(content, place)
        if size > len(content) - place:
            raise ValueError(f"a message of {size} bytes at byte {place}, where {len(content) - place} are left")
        yield place, content[place : place + size]
        place += size


def fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type and value of every field of a message; a value is a number, or bytes."""
    place = 0
    while place < len(message):
        key, place = varint(message, place)
        number, kind = key >> 3, key & 7
        if not number:
            raise ValueError("a field with number 0")
        if kind == VARINT:
            value, place = varint(message, place)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, place = varint(message, place)
        elif kind in _FIXED_BYTES:
            size = _FIXED_BYTES[kind]
        else:
            raise ValueError(f"a field of wire type {kind}")
        if size > len(message) - place:
            raise ValueError(f"a field of {size} bytes, where {len(message) - place} are left")
        yield number, kind, message[place : place + size]
        place += size


def varint(content: bytes, place: int) -> tuple[int, int]:
    r"""Return the number that begins at a byte, and where it ends.

    >>> varint(b"\xac\x02", 0)
    (300, 2)
    """
    value = 0
    for count in range(_LONGEST_VARINT):
        if place + count >= len(content):
            raise ValueError("a number that is cut off")
        byte = content[place + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & _MASK, place + count + 1
    raise ValueError(f"a number of more than {_LONGEST_VARINT} bytes")


def varints(content: bytes) -> Iterator[int]:
    """Yield the numbers of a packed field."""
    place = 0
    while place < len(content):
        value, place = varint(content, place)
        yield value


def signed(value: int) -> int:
    """Return a number of 64 bits as the int64 that it is."""
    return value - 2**64 if value >= 2**63 else value


def encode_varint(value: int) -> bytes:
    r"""Return a number as bytes; a negative one as an int64 is.

    >>> encode_varint(300)
    b'\xac\x02'
    """
    value &= _MASK
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_field(number: int, value: int | bytes | str) -> bytes:
    """Return a field of a message: a number as a varint, anything else with its length."""
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    return encode_varint(number << 3 | BYTES) + delimited(value.encode() if isinstance(value, str) else value)


def delimited(message: bytes) -> bytes:
    """Return a message behind its length."""
    return encode_varint(len(message)) + message
