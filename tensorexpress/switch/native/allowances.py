"""The allowances of frames that native code has copied: copies carry the number of their frame."""

from __future__ import annotations

from tensorexpress.switch.allowance import Allowance
from tensorexpress.switch.native.words import COPIED_ARRIVAL


class SharedAllowances:
    """Allowances of the latest frames of which a copy asked for more than to be forwarded.

    A copy of an older frame has nothing left to take, so that no frame ever has two allowances.
    """

    #: Frames whose allowances are kept.
    MOST = 2**14

    def __init__(self) -> None:
        self._kept: dict[int, Allowance] = {}
        self._forgotten = 0

    def of_copy(self, copied: int, frame_bytes: int) -> Allowance | None:
        """Return the allowance of the frame that a packet is a copy of; None for a packet that is no copy.

        >>> allowances = SharedAllowances()
        >>> allowances.of_copy(COPIED_ARRIVAL + 1000, 60).take(10**6, 60)
        3096
        >>> allowances.of_copy(COPIED_ARRIVAL + 1000, 60).take(10**6, 60)
        0
        """
        if not copied:
            return None
        kept = self._kept
        allowance = kept.get(copied)
        if allowance is None:
            if copied <= self._forgotten:
                return Allowance(0, 0)
            allowance = kept[copied] = Allowance()
            allowance.take(copied % COPIED_ARRIVAL, frame_bytes)
            if len(kept) > self.MOST:
                oldest = next(iter(kept))
                del kept[oldest]
                self._forgotten = max(self._forgotten, oldest)
        return allowance
