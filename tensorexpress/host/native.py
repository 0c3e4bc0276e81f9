"""The machine code of kernel.py: made by numba once, kept on disk, and loaded without numba after that."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from llvmlite.binding import get_host_cpu_features
from numpy.typing import NDArray

from tensorexpress.switch.native import build

Bytes = NDArray[np.uint8]

_HERE = Path(__file__).parent
_SEGMENTS = build.Library(
    "segments",
    {"fill": 6, "check": 4},
    ("tensorexpress.host.kernel",),
    (_HERE / "kernel.py", *(Path(build.__file__).with_name(name) for name in ("machine.py", "build.py"))),
)

if not get_host_cpu_features().get("pclmul", False):
    raise ImportError("this processor does not multiply without carries")
_fill, _check = _SEGMENTS.functions()


class NativeCodec:
    """Machine code, about ten times as fast as arrays and zlib."""

    def __init__(self, memory: Bytes):
        self._memory, self._address = memory, _address_of(memory)

    def fill(self, stride: int, count: int, payload: Bytes, slack_us: int, last_flags: int) -> None:
        """Make a burst of the headers of its first segment."""
        _fill(self._address, stride, count, _address_of(payload), slack_us, last_flags)

    def check(self, stride: int, count: int) -> list[int] | None:
        """Return which segments lack the CRC of their bytes; None: they make no run."""
        right = bytearray(count)
        found = _check(self._address, stride, count, ctypes.addressof(ctypes.c_char.from_buffer(right)))
        if found == count:
            return []
        return None if found < 0 else [row for row in range(count) if not right[row]]


def _address_of(memory: Bytes) -> int:
    """Return where an array is, faster than its `ctypes` says."""
    address: int = memory.__array_interface__["data"][0]
    return address
