"""The Internet checksum."""

from __future__ import annotations

import sys

import numpy as np

#: From so many bytes on, an array of words is added up faster than one long number is divided.
_MANY_BYTES = 1024


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071); where 0 means "none", as in UDP, send `checksum(data) or 0xFFFF`.

    >>> hex(checksum(bytes.fromhex("45000073000040004011 0000 c0a80001c0a800c7")))
    '0xb861'
    """
    # Adding 16-bit words with end-around carry is arithmetic modulo 0xffff, and so is adding longer words.
    if len(data) < _MANY_BYTES:
        total = int.from_bytes(data, "big") << len(data) % 2 * 8
    else:
        words = np.frombuffer(data + bytes(-len(data) % 4), dtype=np.uint32)
        total = int(words.sum(dtype=np.uint64))
        # The sum of words whose bytes are swapped is the sum with its bytes swapped: a product with 2^8.
        total <<= 8 if sys.byteorder == "little" else 0
    return 0xFFFF - (total % 0xFFFF or (0xFFFF if total else 0))
