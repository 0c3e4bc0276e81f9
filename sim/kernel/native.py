"""The kernel as Python calls it: machine code that numba makes once, and that is loaded without numba after that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tensorexpress import background, changes, queueing, recovery
from tensorexpress.compiled_functions import Library
from tensorexpress.sim import columns, flat_plan, model, record


def parts() -> tuple[Path, ...]:
    """Return the modules whose code or constants are compiled into the kernel."""
    constants = (columns, flat_plan, model, record, background, changes, queueing, recovery)
    return (*sorted(Path(__file__).parent.glob("*.py")), *(Path(str(module.__file__)) for module in constants))


#: As `loop.kernel` says, with addresses for memory.
kernel: Callable[[int, int, int, int], int]
(kernel,) = Library(
    "kernel", {"kernel": 4}, ("tensorexpress.sim.kernel.loop",), parts(), ("kernel",), part="the simulator"
).functions()
