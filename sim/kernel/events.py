"""Events, each a pair of time and place inside the instant, no two of which share both; and packets.

What happens before OPEN_UNTIL is in a binary heap. What happens soon after that waits in buckets of equal length,
without an order, and all else (timers, layers that compute) in a heap of its own: most of it sleeps while packets come
and go. When the first heap is empty the next bucket is opened. So that heap stays small however large the cluster is.
"""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.sim.columns import *
from tensorexpress.sim.flat_plan import PHASE, TRANSMIT
from tensorexpress.sim.kernel.memory import Memory, halves


@compiled
def serialisation(size: int, rate: int) -> int:
    """Return how long bytes occupy a link; the other form of `units.serialisation_ps`."""
    if size < 1 << 20:
        return (size * 8_000_000_000_000 + rate - 1) // rate
    # In two steps, because the product of a long train would not fit.
    whole = size * 8_000_000
    return whole // rate * 1_000_000 + (whole % rate * 1_000_000 + rate - 1) // rate


@compiled
def schedule(m: Memory, time: int, place: int) -> None:
    if time >= m[OPEN_UNTIL]:
        if time - m[OPEN_UNTIL] < BUCKET_COUNT - 1 << m[BUCKET_SHIFT]:
            put_into_bucket(m, time, place)
        else:
            schedule_sleeper(m, time, place)
        return
    n = m[EVENT_COUNT]
    if m[TOP_IS_FREE]:
        # The event being handled still has the first place: one that follows from it takes it over.
        m[TOP_IS_FREE] = 0
        sift_down(m, m[EVENTS], n, time, place)
    else:
        m[EVENT_COUNT] = n + 1
        sift_up(m, m[EVENTS], n, time, place)


@compiled
def schedule_sleeper(m: Memory, time: int, place: int) -> None:
    m[SLEEPER_COUNT] += 1
    sift_up(m, m[SLEEPERS], m[SLEEPER_COUNT] - 1, time, place)


@compiled
def bucket_of(m: Memory, time: int) -> int:
    return m[BUCKETS] + ((time >> m[BUCKET_SHIFT]) & (BUCKET_COUNT - 1))


@compiled
def put_into_bucket(m: Memory, time: int, place: int) -> None:
    event, bucket = m[FREE_EVENT], bucket_of(m, time)
    m[FREE_EVENT] = m[event + Y_NEXT]
    m[event + Y_TIME], m[event + Y_PLACE], m[event + Y_NEXT] = time, place, m[bucket]
    m[bucket] = event
    m[BUCKETED] += 1


@compiled
def open_bucket(m: Memory) -> None:
    """Open the next bucket that has something in it, or none if only sleepers are left."""
    width = 1 << m[BUCKET_SHIFT]
    if m[BUCKETED] == 0:
        m[OPEN_UNTIL] = (m[m[SLEEPERS]] >> m[BUCKET_SHIFT]) + 1 << m[BUCKET_SHIFT]
        return
    bucket = bucket_of(m, m[OPEN_UNTIL])
    while m[bucket] == NONE:
        m[OPEN_UNTIL] += width
        bucket = bucket_of(m, m[OPEN_UNTIL])
    m[OPEN_UNTIL] += width
    event = m[bucket]
    m[bucket] = NONE
    while event != NONE:
        sift_up(m, m[EVENTS], m[EVENT_COUNT], m[event + Y_TIME], m[event + Y_PLACE])
        m[EVENT_COUNT] += 1
        m[BUCKETED] -= 1
        following = m[event + Y_NEXT]
        m[event + Y_NEXT] = m[FREE_EVENT]
        m[FREE_EVENT] = event
        event = following


@compiled
def kick(m: Memory, port: int) -> None:
    if m[port + L_IDLE]:
        m[port + L_IDLE] = 0
        schedule(m, m[NOW], TRANSMIT * PHASE + port)


@compiled
def send_control(m: Memory, port: int, packet: int) -> None:
    if m[port + L_CONTROL] == NONE:
        m[port + L_CONTROL] = packet
    else:
        halves(m, m[port + L_CONTROL_TAIL])[P_NEXT] = packet
    m[port + L_CONTROL_TAIL] = packet
    kick(m, port)


@compiled
def sift_up(m: Memory, heap: int, i: int, first: int, second: int) -> None:
    """Put a pair into a binary heap whose place i is free."""
    while i > 0:
        parent = (i - 1) >> 1
        at = heap + 2 * parent
        if m[at] < first or (m[at] == first and m[at + 1] <= second):
            break
        m[heap + 2 * i] = m[at]
        m[heap + 2 * i + 1] = m[at + 1]
        i = parent
    m[heap + 2 * i] = first
    m[heap + 2 * i + 1] = second


@compiled
def drop_first_pair(m: Memory, heap: int, n: int) -> None:
    """Remove the first of n + 1 pairs of a binary heap."""
    sift_down(m, heap, n, m[heap + 2 * n], m[heap + 2 * n + 1])


@compiled
def sift_down(m: Memory, heap: int, n: int, first: int, second: int) -> None:
    """Put a pair into a binary heap of n pairs whose first place is free."""
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        at = heap + 2 * child
        if child + 1 < n and (m[at + 2] < m[at] or (m[at + 2] == m[at] and m[at + 3] < m[at + 1])):
            child += 1
            at += 2
        if first < m[at] or (first == m[at] and second <= m[at + 1]):
            break
        m[heap + 2 * i] = m[at]
        m[heap + 2 * i + 1] = m[at + 1]
        i = child
    m[heap + 2 * i] = first
    m[heap + 2 * i + 1] = second


# Packets


@compiled
def new_row(m: Memory) -> int:
    """Return a free row: the one that became free last, which is still in a cache."""
    row = m[FREE]
    m[FREE] = halves(m, row)[P_NEXT]
    m[FREE_COUNT] -= 1
    return row


@compiled
def new_packet(m: Memory, kind: int, flow: int, hop: int, end: int, size: int, rank: int, slack: int) -> int:
    packet = new_row(m)
    p = halves(m, packet)
    p[P_KIND] = kind
    p[P_FLOW] = flow
    p[P_HOP] = hop
    p[P_END] = end
    p[P_SIZE] = size
    p[P_RANK] = rank
    p[P_MESSAGE] = NONE
    p[P_ITERATION] = NONE
    p[P_CHUNK] = NONE
    p[P_NEXT] = NONE
    if m[SLACK_MODE]:
        m[packet + P_SLACK] = slack
    return packet


@compiled
def slack_of(m: Memory, packet: int) -> int:
    """Return the slack of a packet, which it has where switches look at that."""
    return m[packet + P_SLACK] if m[SLACK_MODE] else 0


@compiled
def free_row(m: Memory, row: int) -> None:
    halves(m, row)[P_NEXT] = m[FREE]
    m[FREE] = row
    m[FREE_COUNT] += 1
