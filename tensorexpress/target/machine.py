"""What the machine did while it was measured with: how busy its cores were, and how long it did not run us at all."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

from tensorexpress.units import format_time

#: How often it is looked whether this machine runs at all, and what is more than a timer's usual lateness.
_TICK_NS, _STALL_NS = 5 * 10**6, 5 * 10**6

#: Up to this share of the time in which nothing ran, links make up for it (docs/linux.md has what it costs beyond).
_CALM = 0.03


class MachineWatch:
    """Watches the machine while it is entered; afterwards its attributes say what was seen.

    >>> with MachineWatch() as watch:
    ...     time.sleep(0.1)
    >>> 0 <= watch.busy <= 1
    True
    """

    def __init__(self) -> None:
        #: Share of all cores that were busy, or taken by other machines; near 1 it is this machine that is measured.
        self.busy = 0.0
        #: For which share of the time a thread that had slept long enough was not run, and the longest of these times.
        self.stalled, self.longest_stall_ps = 0.0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="machine", daemon=True)

    def __enter__(self) -> MachineWatch:
        self._before = _busy_and_all()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        busy, total = (after - before for before, after in zip(self._before, _busy_and_all(), strict=True))
        self.busy = busy / max(total, 1)

    @property
    def is_calm(self) -> bool:
        """Whether the machine was there enough of the time for its measurements to be those of the network."""
        return self.stalled <= _CALM

    @property
    def stalls(self) -> str:
        """What to say of a machine that was not calm."""
        return (
            f"this machine stood still for {self.stalled:.1%} of the time, {format_time(self.longest_stall_ps)} at "
            "most: other machines may share its cores"
        )

    def _watch(self) -> None:
        started_ns = before_ns = time.monotonic_ns()
        stalled_ns, longest_ns, ended = 0, 0, False
        while not ended:
            ended = self._ended.wait(_TICK_NS / 10**9)
            now_ns = time.monotonic_ns()
            late_ns = now_ns - before_ns - _TICK_NS
            if late_ns > _STALL_NS:
                stalled_ns, longest_ns = stalled_ns + late_ns, max(longest_ns, late_ns)
            before_ns = now_ns
        self.stalled, self.longest_stall_ps = stalled_ns / max(1, before_ns - started_ns), longest_ns * 1000


def _busy_and_all() -> tuple[int, int]:
    """Return the time that all cores have been busy, and that there has been, in the kernel's ticks."""
    ticks = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
