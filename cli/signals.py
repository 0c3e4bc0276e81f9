"""Signals that end a verb: what was set up is taken down, and what is finished is kept."""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import NoReturn

from tensorexpress.files import remove_temporaries

#: The exit status of what was interrupted: by convention 128 and the number of SIGINT.
INTERRUPTED = 130
#: After so long a signal is tried again that came where Python lets nothing be raised.
_AGAIN_S = 0.01
#: How long Python may take to run the handler of a signal in a verb that computes; then the process ends without it.
_UNSEEN_S = 0.5


@contextmanager
def stopped_by_signals(computes: bool = False) -> Iterator[None]:
    """Make SIGTERM, and the end of the terminal, do what Ctrl-C does: all that was set up is taken down again.

    A signal may come while Python is in a finalizer or a callback, the end of an import among them, where it drops
    what is raised. Such a signal comes once more.

    Python runs no handler during a long call of compiled code. A verb that only computes, and sets nothing up, ends
    then without one.
    """
    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread say so
        yield
        return
    came, seen = signal.SIGINT, threading.Event()
    report = sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = signal.Signals(number)
        seen.set()
        raise KeyboardInterrupt

    def again() -> None:
        time.sleep(_AGAIN_S)
        # To the main thread, which a call of the kernel may hold: a signal to this thread would not end that call.
        signal.pthread_kill(threading.main_thread().ident or 0, came)

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
        with _ended_if_unseen(seen, list(minded)) if computes else nullcontext():
            yield
    finally:
        sys.unraisablehook = report
        for number, handler in minded.items():
            signal.signal(number, handler)


@contextmanager
def _ended_if_unseen(seen: threading.Event, numbers: Collection[int]) -> Iterator[None]:
    """End this process when one of these signals comes and its handler does not set `seen` in time."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        with open(reading, "rb", buffering=0) as signals:
            while number := signals.read(1):  # written in C, whatever Python is at
                if number[0] in numbers and not seen.wait(_UNSEEN_S):
                    remove_temporaries()
                    os.write(2, b"tensorexpress: stopped\n")
                    os._exit(INTERRUPTED)

    threading.Thread(target=watch, name="unseen signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)


def leave(status: int) -> NoReturn:
    """End this process now: threads that still compute are not waited for."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
