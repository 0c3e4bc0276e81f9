"""Records of captured frames, in the form of `pcap.py`, in trays that Python empties into files."""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.switch.native.machine import Cells, copy, words
from tensorexpress.switch.native.words import *

_NS_PER_SECOND = 10**9


@compiled
def has_room(tray: int, size: int) -> bool:
    """Whether so many bytes can be written down; anything can where nobody captures it."""
    if tray == 0:
        return True
    y = words(tray)
    return y[Y_USED] + size <= y[Y_ROOM]


@compiled
def record_frame(m: Cells, tray: int, time_ns: int, frame: int, length: int) -> None:
    """Write a frame down for which there is room."""
    if tray == 0:
        return
    y = words(tray)
    at = tray + WORD * TRAY_WORDS + y[Y_USED]
    m[CAPTURE_HEAD] = time_ns // _NS_PER_SECOND | time_ns % _NS_PER_SECOND << 32
    m[CAPTURE_HEAD_2] = length | length << 32
    copy(at, m[SELF] + WORD * CAPTURE_HEAD, CAPTURE_HEAD_BYTES)
    copy(at + CAPTURE_HEAD_BYTES, frame, length)
    y[Y_USED] += CAPTURE_HEAD_BYTES + length
    m[CAPTURED] += CAPTURE_HEAD_BYTES + length


@compiled
def record_taken(m: Cells, time_ns: int) -> bool:
    """Write arrivals down that are not yet; False where there is no room for one of them."""
    while m[RECORDED] < m[ARRIVAL_COUNT]:
        a = words(m[ARRIVALS] + WORD * ARRIVAL_WORDS * m[RECORDED])
        tray = words(words(m[PORT_AT])[a[A_PORT]])[P_TAKEN]
        if not has_room(tray, CAPTURE_HEAD_BYTES + a[A_LENGTH]):
            return False
        record_frame(m, tray, time_ns, a[A_FRAME], a[A_LENGTH])
        m[RECORDED] += 1
    return True


def record_arrivals(memory: int, time_ns: int) -> int:
    """Write arrivals down that are not yet; 0 where there is no room for one of them."""
    return 1 if record_taken(words(memory), time_ns) else 0
