"""The engines that a P4 program can run in on an embedded switch, by the names that users give them."""

from __future__ import annotations

import os

#: Machine code where a program can be that and Python else; Python; machine code, or an error.
AUTO, PYTHON, NATIVE = ENGINES = ("auto", "python", "native")

#: Set to 1 in the environment, it has machine code of programs test every access to memory.
CHECKED_VARIABLE = "TENSOREXPRESS_CHECKED"


def is_checked() -> bool:
    """Return whether the environment asks for checked machine code."""
    return os.environ.get(CHECKED_VARIABLE, "") == "1"
