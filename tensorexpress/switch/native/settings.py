"""Which ports native code can have; needs nothing of what makes it."""

from __future__ import annotations

from tensorexpress.queueing import DISCIPLINES, Fifo, StrictPriority
from tensorexpress.switch.traffic import PortSettings

_MOST_QUEUES = 256
#: Times of frames stay inside 64 bits.
_HIGHEST_RATE_BPS = 10**15


def can_be_native(settings: PortSettings) -> bool:
    """Whether native code has what a port does."""
    return (
        DISCIPLINES[settings.discipline] in (StrictPriority, Fifo)
        and not settings.lowest_share
        and settings.queues <= _MOST_QUEUES
        and (settings.rate_bps or 0) <= _HIGHEST_RATE_BPS
    )
