"""What may be sent: a host's flows that may send, and a flow's slices that have something to send."""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.sim.columns import *
from tensorexpress.sim.kernel.events import drop_first_pair, sift_up
from tensorexpress.sim.kernel.memory import Memory, halves

# A host's flows that may send: a binary heap whose entries have all that they are sorted by, so that no flow has to be
# looked at to find another's place. A flow knows where its entry is (F_AT).


@compiled
def is_stream(m: Memory, flow: int) -> bool:
    """Whether switches sum what the flow sends: that has no window."""
    return m[flow + F_WINDOW] == 0


@compiled
def goes_before(m: Memory, urgency: int, served: int, other: int) -> bool:
    """Whether a flow is served before the one of another entry: slices under way first, then by key, then in turn."""
    if urgency != m[other + E_URGENCY]:
        return urgency < m[other + E_URGENCY]
    return served < m[other + E_SERVED]


@compiled
def move_entry(m: Memory, entry: int, to: int) -> None:
    flow = m[entry + E_FLOW]
    m[to + E_URGENCY], m[to + E_SERVED], m[to + E_FLOW] = m[entry + E_URGENCY], m[entry + E_SERVED], flow
    halves(m, flow)[F_AT] = to


@compiled
def settle(m: Memory, heap: int, n: int, at: int, flow: int, urgency: int, served: int) -> None:
    """Put a flow into the heap of n entries of which the one at an address is free, wherever it belongs."""
    i = (at - heap) // ENTRY_COLUMNS
    while i > 0:
        above = (i - 1) >> 1
        parent = heap + above * ENTRY_COLUMNS
        if not goes_before(m, urgency, served, parent):
            break
        move_entry(m, parent, heap + i * ENTRY_COLUMNS)
        i = above
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        below = heap + child * ENTRY_COLUMNS
        right = below + ENTRY_COLUMNS
        if child + 1 < n and goes_before(m, m[right + E_URGENCY], m[right + E_SERVED], below):
            child += 1
            below = right
        if goes_before(m, urgency, served, below):
            break
        move_entry(m, below, heap + i * ENTRY_COLUMNS)
        i = child
    entry = heap + i * ENTRY_COLUMNS
    m[entry + E_URGENCY], m[entry + E_SERVED], m[entry + E_FLOW] = urgency, served, flow
    halves(m, flow)[F_AT] = entry


@compiled
def refresh(m: Memory, flow: int) -> None:
    """Enter, move or remove a flow among those that may send, after anything about it has changed."""
    full = m[PAYLOAD] + m[HEADER]
    in_flight, current = m[flow + F_IN_FLIGHT], halves(m, flow)[F_CURRENT]
    key = NEVER
    if in_flight == 0 or in_flight + full <= m[flow + F_WINDOW]:
        key = m[current + M_KEY] if current != NONE else first_pending_key(m, flow)
    place_ready(m, flow, key)


@compiled
def place_ready(m: Memory, flow: int, key: int) -> None:
    """Enter, move or remove a flow among those that may send, by the key of what it sends next; NEVER is nothing."""
    f = halves(m, flow)
    at = f[F_AT]
    if key == NEVER and at == NONE:
        return
    port, served = f[F_SRC], m[flow + F_SERVED]
    heap, n = m[port + L_READY], m[port + L_READY_COUNT]
    if key != NEVER:
        urgency = key if f[F_CURRENT] == NONE else key - UNDER_WAY_FIRST
        if at == NONE:
            m[port + L_READY_COUNT] = n + 1
            settle(m, heap, n + 1, heap + n * ENTRY_COLUMNS, flow, urgency, served)
        elif m[at + E_URGENCY] != urgency or m[at + E_SERVED] != served:
            settle(m, heap, n, at, flow, urgency, served)
    else:
        f[F_AT] = NONE
        m[port + L_READY_COUNT] = n - 1
        last = heap + (n - 1) * ENTRY_COLUMNS
        if last != at:
            moved = m[last + E_FLOW]
            settle(m, heap, n - 1, at, moved, m[last + E_URGENCY], m[last + E_SERVED])


# A flow's pending slices: a binary heap of (key, message).


@compiled
def push_pending(m: Memory, flow: int, key: int, message: int) -> None:
    f = halves(m, flow)
    heap = f[F_PENDING]
    i = f[F_PENDING_COUNT]
    f[F_PENDING_COUNT] = i + 1
    sift_up(m, heap, i, key, message)


@compiled
def pop_pending(m: Memory, flow: int) -> int:
    f = halves(m, flow)
    n = f[F_PENDING_COUNT] - 1
    f[F_PENDING_COUNT] = n
    message = m[f[F_PENDING] + 1]
    drop_first_pair(m, f[F_PENDING], n)
    return message


@compiled
def first_pending_key(m: Memory, flow: int) -> int:
    """Return the key of the flow's first slice with something to send, NEVER when there is none."""
    f = halves(m, flow)
    heap = f[F_PENDING]
    while f[F_PENDING_COUNT]:
        key, message = m[heap], m[heap + 1]
        if m[message + M_KEY] == key and has_unsent(m, message):
            return key
        pop_pending(m, flow)
    return NEVER


@compiled
def has_unsent(m: Memory, message: int) -> bool:
    s = halves(m, message)
    return s[M_LOST] > 0 or s[M_NEXT] < s[M_CHUNKS]
