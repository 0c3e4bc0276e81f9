"""The processor of this machine: what is kept of it, machine code and measured speeds, holds for its kind alone."""

from __future__ import annotations

import platform
from pathlib import Path

#: What lines of /proc/cpuinfo begin with that say what a processor is and what machine code it takes, on x86 and ARM.
_KIND = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")


def processor_kind() -> str:
    """Return what Linux says of the kind of the processor and of what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(_KIND)})) or platform.machine()
