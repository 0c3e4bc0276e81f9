"""Signals that end a verb: what was set up is taken down, and what is finished is kept."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: The exit status of what was interrupted: by convention 128 and the number of SIGINT.
INTERRUPTED = 130
#: After so long a signal is tried again that came where Python lets nothing be raised.
_AGAIN_S = 0.01


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Make SIGTERM, and the end of the terminal, do what Ctrl-C does: all that was set up is taken down again.

    A signal may come while Python is in a finalizer or a callback, the end of an import among them, where it drops
    what is raised. Such a signal comes once more.
    """
    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread say so
        yield
        return
    came = signal.SIGINT
    report = sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = signal.Signals(number)
        raise KeyboardInterrupt

    def again() -> None:
        time.sleep(_AGAIN_S)
        signal.raise_signal(came)

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if isinstance(what.exc_value, KeyboardInterrupt):
            # Not a Thread, whose start waits for it: nothing may be raised in here, either.
            _thread.start_new_thread(again, ())
        else:
            report(what)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # Who was started with nohup ignores the last, and goes on doing so; a shell does so with the first for what it
    # starts behind itself.
    minded = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in minded:
        signal.signal(number, interrupt)
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number, handler in minded.items():
            signal.signal(number, handler)
