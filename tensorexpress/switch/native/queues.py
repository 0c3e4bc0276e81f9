"""Records, buffers and strict-priority queues: the other form of `buffer.py` and `traffic.py`."""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.switch.native.machine import Cells, words
from tensorexpress.switch.native.words import *
from tensorexpress.switch.traffic import SHORTEST_FRAME_BYTES
from tensorexpress.units import PS_PER_SECOND

_BITS_PS = 8 * PS_PER_SECOND


@compiled
def new_record(m: Cells, data_bytes: int) -> int:
    """Return a record with room for so many bytes of data; 0 when there is none."""
    kind, room = 0, SMALLEST_DATA
    while room < data_bytes:
        kind += 1
        room *= 2
    if kind >= SIZES:
        return 0
    record = m[FREE + kind]
    if record != 0:
        m[FREE + kind] = words(record)[R_NEXT]
    else:
        record = m[UNUSED]
        if record + RECORD_BYTES + room > m[END]:
            return 0
        m[UNUSED] = record + RECORD_BYTES + room
        words(record)[R_KIND] = kind
    words(record)[R_IS_FOREIGN] = 0
    return record


@compiled
def give_back(m: Cells, record: int) -> None:
    """Let others have a record."""
    r = words(record)
    r[R_NEXT] = m[FREE + r[R_KIND]]
    m[FREE + r[R_KIND]] = record


@compiled
def queue_at(p: Cells, queue: int) -> int:
    """Return where a queue is in its port."""
    return P_QUEUES + QUEUE_WORDS * queue


@compiled
def queue_of(p: Cells, priority: int) -> int:
    """Return the queue that a priority waits in."""
    return p[P_LOWEST] - priority if p[P_HAS_QUEUES] else 0


@compiled
def wire_bytes(p: Cells, frame_bytes: int) -> int:
    """Return what a frame weighs on the wire, and in the buffer."""
    return max(frame_bytes, SHORTEST_FRAME_BYTES) + p[P_OVERHEAD]


@compiled
def wire_ps(p: Cells, frame_bytes: int) -> int:
    """Return how long a frame occupies a link that has a rate."""
    return (wire_bytes(p, frame_bytes) * _BITS_PS + p[P_RATE] - 1) // p[P_RATE]


@compiled
def admit(p: Cells, queue: int, size: int) -> bool:
    """Let so many bytes wait in a queue; False when there is no room for them."""
    at, own = queue_at(p, queue), p[P_OWN_LIMIT]
    before = p[at + Q_BYTES]
    after = before + size
    if after > own:
        common = p[P_COMMON_BYTES] + after - max(before, own)
        if common > p[P_COMMON_LIMIT]:
            return False
        p[P_COMMON_BYTES] = common
    p[at + Q_BYTES] = after
    p[at + Q_DEEPEST] = max(p[at + Q_DEEPEST], after)
    return True


@compiled
def dismiss(p: Cells, queue: int, size: int) -> None:
    """Note that so many bytes of a queue wait no longer."""
    at, own = queue_at(p, queue), p[P_OWN_LIMIT]
    before = p[at + Q_BYTES]
    after = before - size
    if before > own:
        p[P_COMMON_BYTES] -= before - max(after, own)
    p[at + Q_BYTES] = after


@compiled
def append(p: Cells, record: int, queue: int, size: int, now_us: int) -> None:
    """Let a packet that was admitted wait at the end of a queue."""
    r, at = words(record), queue_at(p, queue)
    r[R_NEXT], r[R_QUEUE], r[R_SIZE] = 0, queue, size
    r[R_TOLD + T_ENQ_US] = now_us
    r[R_TOLD + T_ENQ_QDEPTH] = p[at + Q_DEPTH]
    if p[at + Q_TAIL] != 0:
        words(p[at + Q_TAIL])[R_NEXT] = record
    else:
        p[at + Q_HEAD] = record
    p[at + Q_TAIL] = record
    p[at + Q_DEPTH] += 1
    p[P_WAITING] += 1


@compiled
def first(p: Cells) -> int:
    """Return the packet that is served next; 0 when none waits."""
    if p[P_WAITING] != 0:
        for queue in range(p[P_QUEUE_COUNT]):
            record = p[queue_at(p, queue) + Q_HEAD]
            if record != 0:
                return record
    return 0


@compiled
def remove(p: Cells, record: int, now_us: int) -> None:
    """Take the first packet out of its queue."""
    r = words(record)
    at = queue_at(p, r[R_QUEUE])
    dismiss(p, r[R_QUEUE], r[R_SIZE])
    p[at + Q_HEAD] = r[R_NEXT]
    if r[R_NEXT] == 0:
        p[at + Q_TAIL] = 0
    p[at + Q_DEPTH] -= 1
    p[P_WAITING] -= 1
    r[R_TOLD + T_DEQ_QDEPTH] = p[at + Q_DEPTH]
    r[R_TOLD + T_DEQ_TIMEDELTA] = now_us - r[R_TOLD + T_ENQ_US]


# What Python calls, with addresses.


def enqueue(port: int, record: int, priority: int, length: int, now_us: int) -> int:
    """Let a packet wait; 0 when the buffer has no room for it."""
    p = words(port)
    queue, size = queue_of(p, priority), wire_bytes(p, length)
    if not admit(p, queue, size):
        return 0
    append(p, record, queue, size, now_us)
    return 1


def dequeue(port: int, now_us: int) -> int:
    """Return the packet that is served next; 0 when none waits."""
    p = words(port)
    record = first(p)
    if record != 0:
        remove(p, record, now_us)
    return record


def free_record(memory: int, record: int) -> int:
    """Let others have a record."""
    give_back(words(memory), record)
    return 0


def free_sent(memory: int) -> int:
    """Let others have the records of all frames that have left: somebody has read them."""
    m = words(memory)
    for index in range(m[SENT_COUNT]):
        give_back(m, words(m[SENT] + WORD * SENT_WORDS * index)[S_RECORD])
    m[SENT_COUNT] = 0
    return 0
