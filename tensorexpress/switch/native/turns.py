"""Turns without Python: waiting for sockets and for the clock, and doing what there is to do then.

The other form of `Loop.take_turn`, for ports that are UDP wires or interfaces. `forward` goes on until there is
something for Python: word on its descriptor, a time, an event that native code hands back, a frame that only Python can
finish, or trays to be emptied.
"""

from __future__ import annotations

import select
import time

from tensorexpress.compiled_functions import compiled
from tensorexpress.switch.native.cables import hold_taken, next_due, read_stamps
from tensorexpress.switch.native.captures import record_taken
from tensorexpress.switch.native.machine import Cells, clock_gettime, nanosleep, ppoll, words
from tensorexpress.switch.native.sockets import release_ring, send_left, take_batch, take_ring
from tensorexpress.switch.native.steps import handle
from tensorexpress.switch.native.words import *

_CLOCK = int(time.CLOCK_MONOTONIC)
_NS_PER_SECOND = 10**9
_PS_PER_NS = 1000
_READABLE = ASKED * int(select.POLLIN)


@compiled
def _now_ns(m: Cells) -> int:
    clock_gettime(_CLOCK, m[SELF] + WORD * SECONDS)
    return m[SECONDS] * _NS_PER_SECOND + m[NANOSECONDS]


@compiled
def _wait(m: Cells, wait_ns: int) -> None:
    """Wait until there is something to take, or for some time."""
    w = words(m[WATCHED])
    for index in range(m[WATCHED_COUNT]):
        w[index] = w[index] % ASKED | _READABLE
    m[SECONDS], m[NANOSECONDS] = wait_ns // _NS_PER_SECOND, wait_ns % _NS_PER_SECOND
    found = ppoll(m[WATCHED], m[WATCHED_COUNT], m[SELF] + WORD * SECONDS, 0)
    m[WATCHED_NEXT] = 0 if found > 0 else m[WATCHED_COUNT]


@compiled
def _rest(m: Cells, rest_ns: int) -> None:
    """Do nothing for some time, whatever comes: what one frame costs is mostly being woken up for it."""
    if rest_ns > 0:
        m[SECONDS], m[NANOSECONDS] = 0, rest_ns
        nanosleep(m[SELF] + WORD * SECONDS, 0)


@compiled
def _do_due(m: Cells, now_ps: int, clock_ns: int) -> int:
    """Handle arrivals that were taken, and send all that is due; return DONE or why Python is to go on.

    Captures have times of a clock that is so far from that of the system.
    """
    if m[RECORDED] < m[ARRIVAL_COUNT] and not record_taken(m, clock_ns + _now_ns(m)):
        return TO_EMPTY
    why = handle(m, now_ps)
    if m[ARRIVED] == m[ARRIVAL_COUNT] and why == DONE:
        release_ring(m)
    if m[SENT_COUNT] != 0 and not send_left(m, clock_ns + _now_ns(m)) and why == DONE:
        return TO_EMPTY
    return why


@compiled
def _hold_next(m: Cells, clock_ns: int) -> bool:
    """Let all frames set out that have come from cables with a delay; False where trays are to be emptied first.

    That is before anything is done that is due: they may have to arrive first.
    """
    while True:
        if m[HOLDING] != 0:
            if not record_taken(m, clock_ns + _now_ns(m)):
                return False
            hold_taken(m, words(m[HOLDING]))
            release_ring(m)
            m[HOLDING] = 0
        if m[WATCHED_NEXT] >= m[WATCHED_DELAYED]:
            return True
        port = _take_watched(m, 0)
        if port != 0:
            read_stamps(m, words(port), _now_ns(m))
            m[HOLDING] = port


@compiled
def _take_watched(m: Cells, now_ps: int) -> int:
    """Take a batch of frames from the port that is looked at next, if it has any; return the port, 0 if it has none."""
    index = m[WATCHED_NEXT]
    m[WATCHED_NEXT] += 1
    watched, number = words(m[WATCHED])[index], words(m[WATCHED_PORTS])[index]
    if watched < FOUND:
        return 0
    port = words(m[PORT_AT])[number]
    if words(port)[P_RING] == 0:
        take_batch(m, number, watched % ASKED, now_ps)
    elif take_ring(m, port, now_ps) == 0:
        m[IS_FOR_PYTHON] = 1
        return 0
    return port


@compiled
def _take_next(m: Cells) -> bool:
    """Take a batch of frames from the next port that has any; False where none is left.

    They arrive now, but before anything leaves that is not sent yet.
    """
    while m[WATCHED_NEXT] < m[WATCHED_COUNT] - 1:
        if _take_watched(m, min((_now_ns(m) - m[STARTED_NS]) * _PS_PER_NS, m[DUE] - 1)) != 0:
            return True
    return False


@compiled
def _is_called(m: Cells) -> bool:
    """Whether there is word for Python, or a frame in a ring that it has to finish."""
    return m[IS_FOR_PYTHON] != 0 or (m[WATCHED_NEXT] < m[WATCHED_COUNT] and words(m[WATCHED])[m[WATCHED_NEXT]] >= FOUND)


def forward(memory: int, until_ns: int, clock_ns: int) -> int:
    """Take frames and send them until a time, or until there is word for Python; return DONE, or why it is to go on."""
    m = words(memory)
    started_ns = m[STARTED_NS]
    while True:
        now_ns = _now_ns(m)
        if not _hold_next(m, clock_ns):
            return TO_EMPTY
        why = _do_due(m, (now_ns - started_ns) * _PS_PER_NS, clock_ns)
        if why != DONE:
            return why
        if _take_next(m):
            continue
        if _is_called(m) or now_ns >= until_ns:
            return DONE
        if m[CAPTURED] >= MOST_CAPTURED:
            return TO_EMPTY
        due_ns, due_ps = until_ns, next_due(m, m[SLACK])
        if due_ps < NEVER:
            due_ns = min(due_ns, started_ns - -due_ps // _PS_PER_NS)
            _rest(m, min(due_ns - now_ns, m[REST_NS]))
        _wait(m, max(0, due_ns - _now_ns(m)))
