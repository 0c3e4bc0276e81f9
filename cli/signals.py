"""Signals that end a verb: what was set up is taken down, and what is finished is kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: The exit status of what was interrupted: by convention 128 and the number of SIGINT.
INTERRUPTED = 130


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Make SIGTERM, and the end of the terminal, do what Ctrl-C does: all that was set up is taken down again."""
    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread say so
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Who was started with nohup ignores the second, and goes on doing so.
    minded = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in minded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
