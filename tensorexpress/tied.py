"""Processes that end with the process that started them, however it ends, and whatever they are doing.

A process of our own calls `end_with_parent` first of all; a program that is not ours is run by `command`, which does so
before it becomes that program. `start` starts either. The end is a SIGKILL from Linux, which no loop can put off.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have this process killed as soon as the parent is gone; end at once if it is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before Linux was told
        os._exit(1)


def command(*program: str) -> list[str]:
    """Return the command that runs a program tied to this process."""
    return [sys.executable, "-P", "-m", "tensorexpress.tied", str(os.getpid()), *program]


def start(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that ties itself to this one, as `subprocess.Popen` does with the same options.

    For Linux the parent is the thread that started the process, so that one thread, which never ends, starts them all.
    """
    return _starter().start(words, options)


class _Starter:
    """The thread that starts processes. It is a daemon: it ends when this process does and not before."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._orders: queue.SimpleQueue[tuple[Sequence[str], dict[str, Any], Future[subprocess.Popen[bytes]]]]
        self._orders = queue.SimpleQueue()
        threading.Thread(target=self._run, name="starter of processes", daemon=True).start()

    def start(self, words: Sequence[str], options: dict[str, Any]) -> subprocess.Popen[bytes]:
        started: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((words, options, started))
        return started.result()

    def _run(self) -> None:
        while True:
            words, options, started = self._orders.get()
            try:
                started.set_result(subprocess.Popen(words, **options))
            except BaseException as error:  # it goes to whoever asked
                started.set_exception(error)


_making = threading.Lock()
_made: list[_Starter] = []


def _starter() -> _Starter:
    """Return the starter of this process; one that was made before a fork has no thread here."""
    with _making:
        if not _made or _made[-1].pid != os.getpid():
            _made[:] = [_Starter()]
        return _made[-1]


def main(parent: str, *program: str) -> None:
    """Become the program, unless the parent is gone already."""
    end_with_parent(int(parent))
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(*sys.argv[1:])
