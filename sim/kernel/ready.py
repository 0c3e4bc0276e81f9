"""What may be sent: a host's flows that may send, and a flow's slices that have something to send."""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.sim.columns import *
from tensorexpress.sim.kernel.events import drop_first_pair, sift_up
from tensorexpress.sim.kernel.memory import Memory

# A host's flows that may send: a binary heap whose entries have all that they are sorted by, so that no flow has to be
# looked at to find another's place. A flow knows where its entry is (F_AT).


@compiled
def goes_before(m: Memory, urgency: int, served: int, turn: int, other: int) -> bool:
    """Whether a flow is served before the one of another entry: slices under way first, then by key, then in turn."""
    if urgency != m[other + E_URGENCY]:
        return urgency < m[other + E_URGENCY]
    if served != m[other + E_SERVED]:
        return served < m[other + E_SERVED]
    return turn < m[other + E_PLACE]


@compiled
def move_entry(m: Memory, entry: int, to: int) -> None:
    flow = m[entry + E_FLOW]
    m[to + E_URGENCY], m[to + E_SERVED], m[to + E_PLACE] = m[entry + E_URGENCY], m[entry + E_SERVED], m[entry + E_PLACE]
    m[to + E_FLOW] = flow
    m[flow + F_AT] = to


@compiled
def settle(m: Memory, heap: int, n: int, at: int, flow: int, urgency: int, served: int, turn: int) -> None:
    """Put a flow into the heap of n entries of which the one at an address is free, wherever it belongs."""
    i = (at - heap) // ENTRY_COLUMNS
    while i > 0:
        above = (i - 1) >> 1
        parent = heap + above * ENTRY_COLUMNS
        if not goes_before(m, urgency, served, turn, parent):
            break
        move_entry(m, parent, heap + i * ENTRY_COLUMNS)
        i = above
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        below = heap + child * ENTRY_COLUMNS
        right = below + ENTRY_COLUMNS
        if child + 1 < n and goes_before(m, m[right + E_URGENCY], m[right + E_SERVED], m[right + E_PLACE], below):
            child += 1
            below = right
        if goes_before(m, urgency, served, turn, below):
            break
        move_entry(m, below, heap + i * ENTRY_COLUMNS)
        i = child
    entry = heap + i * ENTRY_COLUMNS
    m[entry + E_URGENCY], m[entry + E_SERVED], m[entry + E_PLACE], m[entry + E_FLOW] = urgency, served, turn, flow
    m[flow + F_AT] = entry


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
    at = m[flow + F_AT]
    if key == NEVER and at == NONE:
        return
    port, served = m[flow + F_SRC], m[flow + F_SERVED]
    heap, n = m[port + L_READY], m[port + L_READY_COUNT]
    if key != NEVER:
        urgency = key if m[flow + F_CURRENT] == NONE else key - UNDER_WAY_FIRST
        if at == NONE:
            m[port + L_READY_COUNT] = n + 1
            settle(m, heap, n + 1, heap + n * ENTRY_COLUMNS, flow, urgency, served, m[flow + F_PLACE])
        elif m[at + E_URGENCY] != urgency or m[at + E_SERVED] != served:
            settle(m, heap, n, at, flow, urgency, served, m[flow + F_PLACE])
    else:
        m[flow + F_AT] = NONE
        m[port + L_READY_COUNT] = n - 1
        last = heap + (n - 1) * ENTRY_COLUMNS
        if last != at:
            moved = m[last + E_FLOW]
            settle(m, heap, n - 1, at, moved, m[last + E_URGENCY], m[last + E_SERVED], m[last + E_PLACE])


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
