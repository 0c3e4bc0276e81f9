"""The kernel as Python calls it: machine code that numba makes once, and that is loaded without numba after that."""

from __future__ import annotations

from collections.abc import Callable

from tensorexpress.compiled_functions import Library

_KERNEL = Library("kernel", {"kernel": 4}, ("tensorexpress.sim.kernel.loop",), ("kernel",), part="the simulator")
#: As `loop.kernel` says, with addresses for memory.
kernel: Callable[[int, int, int, int], int]
(kernel,) = _KERNEL.functions()
