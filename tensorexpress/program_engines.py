"""The engines that a P4 program can run in on an embedded switch, by the names that users give them."""

from __future__ import annotations

#: Machine code where a program can be that and Python else; Python; machine code, or an error.
AUTO, PYTHON, NATIVE = ENGINES = ("auto", "python", "native")
