"""Frames under way on cables with delays: the other form of `emulated_cable.py`, for cables that lose nothing.

A line is one direction of the cable at a port: what is under way to it, in the order in which it set out. Frames arrive
at the time at which they had to, however late somebody looks.
"""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.switch.native.machine import Cells, copy, octets, words
from tensorexpress.switch.native.queues import give_back, new_record
from tensorexpress.switch.native.words import *

_PS_PER_NS = 1000
#: How long before the epoch something may have been sent that comes after it.
_MOST_BEFORE_NS = 10**9


@compiled
def set_out(p: Cells, line: int, record: int, length: int, sent_ps: int) -> None:
    """Let a frame set out whose last bit was sent at a time; it overtakes none of those before it."""
    r = words(record)
    p[line + LINE_LAST] = max(p[line + LINE_LAST], sent_ps + p[line + LINE_PS])
    r[R_NEXT], r[R_LENGTH], r[R_DUE] = 0, length, p[line + LINE_LAST]
    if p[line + LINE_HEAD] == 0:
        p[line + LINE_HEAD] = record
    else:
        words(p[line + LINE_TAIL])[R_NEXT] = record
    p[line + LINE_TAIL] = record


@compiled
def _due(p: Cells, line: int) -> int:
    return words(p[line + LINE_HEAD])[R_DUE] if p[line + LINE_HEAD] != 0 else NEVER


@compiled
def _take_off(p: Cells, line: int) -> int:
    """Return the first frame under way, which is there."""
    record = p[line + LINE_HEAD]
    p[line + LINE_HEAD] = words(record)[R_NEXT]
    return record


@compiled
def next_port(m: Cells, until_ps: int) -> int:
    """Return the port at which a frame arrives first by a time, the first such port of several; 0 where none does."""
    found = 0
    for index in range(m[DELAYED_COUNT]):
        port = words(m[DELAYED])[index]
        due_ps = _due(words(port), P_ARRIVING)
        if due_ps <= until_ps:
            found, until_ps = port, due_ps - 1
    return found


@compiled
def next_due(m: Cells, slack_ps: int) -> int:
    """Return when something is due: a frame at the far end of a cable or, so much later, one here or that leaves."""
    due_ps, there_ps = m[DUE], NEVER
    for index in range(m[DELAYED_COUNT]):
        p = words(words(m[DELAYED])[index])
        due_ps, there_ps = min(due_ps, _due(p, P_ARRIVING)), min(there_ps, _due(p, P_LEAVING))
    return min(due_ps + slack_ps, there_ps)


@compiled
def take_arrived(m: Cells, p: Cells) -> int:
    """Return the record of the first frame that is under way to a port; it is given back before the next arrives."""
    m[HELD_RECORD] = _take_off(p, P_ARRIVING)
    return m[HELD_RECORD]


@compiled
def give_back_arrived(m: Cells) -> None:
    """Let others have the record of the frame that arrived last."""
    if m[HELD_RECORD] != 0:
        give_back(m, m[HELD_RECORD])
        m[HELD_RECORD] = 0


@compiled
def hand_out(m: Cells, now_ps: int) -> bool:
    """Let frames that are at the ends of cables by now be sent; False where there is no room for all of them."""
    for index in range(m[DELAYED_COUNT]):
        p = words(words(m[DELAYED])[index])
        while _due(p, P_LEAVING) <= now_ps:
            if m[SENT_COUNT] == MOST_SENT:
                return False
            record = _take_off(p, P_LEAVING)
            note_sent(m, p, record, words(record)[R_LENGTH], words(record)[R_DUE])
    return True


@compiled
def note_sent(m: Cells, p: Cells, record: int, length: int, time_ps: int) -> None:
    """Note a frame that has left, for whoever sends it."""
    s = words(m[SENT] + WORD * SENT_WORDS * m[SENT_COUNT])
    m[SENT_COUNT] += 1
    s[S_PORT], s[S_RECORD], s[S_LENGTH], s[S_TIME] = p[P_NUMBER], record, length, time_ps


# Frames that come from a socket, and set out when they were sent.


@compiled
def read_stamps(m: Cells, p: Cells, now_ns: int) -> None:
    """Take stamps off arrivals, and let them be sent then; what a stamp says is true unless it was damaged."""
    started_ns = m[STARTED_NS]
    first_ns = started_ns - _MOST_BEFORE_NS
    for index in range(m[ARRIVAL_COUNT]):
        a = words(m[ARRIVALS] + WORD * ARRIVAL_WORDS * index)
        sent_ns = now_ns
        if p[P_ARRIVING + LINE_STAMP_BYTES] != 0:
            sent_ns = first_ns
            if a[A_LENGTH] >= STAMP_BYTES:
                a[A_LENGTH] -= STAMP_BYTES
                sent_ns = min(max(_stamp(a[A_FRAME] + a[A_LENGTH]), first_ns), now_ns)
        a[A_TIME] = (sent_ns - started_ns) * _PS_PER_NS


@compiled
def _stamp(address: int) -> int:
    content, value = octets(address), 0
    for index in range(STAMP_BYTES):
        value = value << 8 | int(content[index])
    return value


@compiled
def write_stamp(address: int, value: int) -> None:
    """Put a stamp behind a frame."""
    content = octets(address)
    for index in range(STAMP_BYTES):
        content[index] = value >> 8 * (STAMP_BYTES - 1 - index) & 0xFF


@compiled
def hold(m: Cells, p: Cells, line: int, frame: int, length: int, sent_ps: int) -> None:
    """Let a copy of a frame set out; one for which there is no memory is lost."""
    record = new_record(m, length)
    if record == 0:
        p[P_REFUSED] += 1
        return
    copy(record + RECORD_BYTES, frame, length)
    set_out(p, line, record, length, sent_ps)


@compiled
def hold_taken(m: Cells, p: Cells) -> None:
    """Let all arrivals set out on their way to a port; none is left."""
    for index in range(m[ARRIVAL_COUNT]):
        a = words(m[ARRIVALS] + WORD * ARRIVAL_WORDS * index)
        hold(m, p, P_ARRIVING, a[A_FRAME], a[A_LENGTH], a[A_TIME])
    m[ARRIVED] = m[ARRIVAL_COUNT] = m[RECORDED] = 0


@compiled
def move_lines(m: Cells, by_ps: int) -> None:
    """Let times be counted from an epoch that is so much later."""
    for index in range(m[DELAYED_COUNT]):
        p = words(words(m[DELAYED])[index])
        for line in (P_ARRIVING, P_LEAVING):
            p[line + LINE_LAST] -= by_ps
            record = p[line + LINE_HEAD]
            while record != 0:
                words(record)[R_DUE] -= by_ps
                record = words(record)[R_NEXT]


# What Python calls, with addresses.


def stamps_of(memory: int, port: int, now_ns: int) -> int:
    """Take stamps off the frames that were taken from a socket; then they can be written down."""
    read_stamps(words(memory), words(port), now_ns)
    return 0


def hold_arrivals(memory: int, port: int) -> int:
    """Let the frames that were taken from a socket set out on their way to a port."""
    hold_taken(words(memory), words(port))
    return 0


def hold_leaving(memory: int, port: int, frame: int, length: int, sent_ps: int) -> int:
    """Let a frame that Python has set out from a port."""
    hold(words(memory), words(port), P_LEAVING, frame, length, sent_ps)
    return 0


def due(memory: int) -> int:
    """Return when something is due; NEVER if nothing is."""
    return next_due(words(memory), 0)
