"""What may be sent: a host's flows that may send, and a flow's slices that have something to send."""

from __future__ import annotations

from tensorexpress.sim.columns import *
from tensorexpress.sim.kernel.events import drop_first_pair, sift_up
from tensorexpress.sim.kernel.memory import Memory, compiled

# A host's flows that may send: a binary heap of flows, each of which knows its place in it (F_AT).


@compiled
def goes_before(m: Memory, a: int, b: int) -> bool:
    """Whether flow a is served before flow b: slices under way first, then by key, then in turn."""
    started_a, started_b = m[a + F_CURRENT] != NONE, m[b + F_CURRENT] != NONE
    if started_a != started_b:
        return started_a
    if m[a + F_KEY] != m[b + F_KEY]:
        return m[a + F_KEY] < m[b + F_KEY]
    if m[a + F_SERVED] != m[b + F_SERVED]:
        return m[a + F_SERVED] < m[b + F_SERVED]
    return m[a + F_PLACE] < m[b + F_PLACE]


@compiled
def settle(m: Memory, heap: int, n: int, i: int, flow: int) -> None:
    """Put a flow into the heap of n flows whose place i is free, wherever it belongs."""
    while i > 0:
        parent = m[heap + ((i - 1) >> 1)]
        if not goes_before(m, flow, parent):
            break
        m[heap + i] = parent
        m[parent + F_AT] = i
        i = (i - 1) >> 1
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and goes_before(m, m[heap + child + 1], m[heap + child]):
            child += 1
        below = m[heap + child]
        if not goes_before(m, below, flow):
            break
        m[heap + i] = below
        m[below + F_AT] = i
        i = child
    m[heap + i] = flow
    m[flow + F_AT] = i


@compiled
def refresh(m: Memory, flow: int) -> None:
    """Enter, move or remove a flow among those that may send, after anything about it has changed."""
    full = m[PAYLOAD] + m[HEADER]
    in_flight, current = m[flow + F_IN_FLIGHT], m[flow + F_CURRENT]
    key = NEVER
    if in_flight == 0 or in_flight + full <= m[flow + F_WINDOW]:
        key = m[current + M_KEY] if current != NONE else first_pending_key(m, flow)
    place_ready(m, flow, key)


@compiled
def place_ready(m: Memory, flow: int, key: int) -> None:
    """Enter, move or remove a flow among those that may send, by the key of what it sends next; NEVER is nothing."""
    m[flow + F_KEY] = key
    port, at = m[flow + F_SRC], m[flow + F_AT]
    heap, n = m[port + L_READY], m[port + L_READY_COUNT]
    if key != NEVER:
        if at == NONE:
            m[port + L_READY_COUNT] = n + 1
            settle(m, heap, n + 1, n, flow)
        else:
            settle(m, heap, n, at, flow)
    elif at != NONE:
        m[flow + F_AT] = NONE
        m[port + L_READY_COUNT] = n - 1
        last = m[heap + n - 1]
        if last != flow:
            settle(m, heap, n - 1, at, last)


# A flow's pending slices: a binary heap of (key, message).


@compiled
def push_pending(m: Memory, flow: int, key: int, message: int) -> None:
    heap = m[flow + F_PENDING]
    i = m[flow + F_PENDING_COUNT]
    m[flow + F_PENDING_COUNT] = i + 1
    sift_up(m, heap, i, key, message)


@compiled
def pop_pending(m: Memory, flow: int) -> int:
    n = m[flow + F_PENDING_COUNT] - 1
    m[flow + F_PENDING_COUNT] = n
    message = m[m[flow + F_PENDING] + 1]
    drop_first_pair(m, m[flow + F_PENDING], n)
    return message


@compiled
def first_pending_key(m: Memory, flow: int) -> int:
    """Return the key of the flow's first slice with something to send, NEVER when there is none."""
    heap = m[flow + F_PENDING]
    while m[flow + F_PENDING_COUNT]:
        key, message = m[heap], m[heap + 1]
        if m[message + M_KEY] == key and has_unsent(m, message):
            return key
        pop_pending(m, flow)
    return NEVER


@compiled
def has_unsent(m: Memory, message: int) -> bool:
    return m[message + M_LOST] > 0 or m[message + M_NEXT] < m[message + M_CHUNKS]
