"""The Internet checksum."""

from __future__ import annotations


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071); where 0 means "none", as in UDP, send `checksum(data) or 0xFFFF`.

    >>> hex(checksum(bytes.fromhex("45000073000040004011 0000 c0a80001c0a800c7")))
    '0xb861'
    """
    padded = data + b"\0" if len(data) % 2 else data
    # Adding 16-bit words with end-around carry is arithmetic modulo 0xffff.
    total = int.from_bytes(padded, "big")
    return 0xFFFF - (total % 0xFFFF or (0xFFFF if total else 0))
