"""Runs a program that ends with whoever started it: `python -P -m tensorexpress.target.tied PROGRAM [ARGUMENT...]`.

For programs that are not ours and watch no pipe. Linux sends them SIGKILL when the starting thread ends, however.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def command(*program: str) -> list[str]:
    """Return the command that runs a program tied to this process."""
    return [sys.executable, "-P", "-m", "tensorexpress.target.tied", str(os.getpid()), *program]


def main(parent: str, *program: str) -> None:
    """Become the program, unless the parent is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(parent):
        os.execvp(program[0], program)


if __name__ == "__main__":
    main(*sys.argv[1:])
