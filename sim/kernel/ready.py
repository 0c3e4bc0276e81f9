"""What may be sent: a host's flows that may send, and a flow's slices that have something to send."""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.sim.columns import *
from tensorexpress.sim.kernel.events import drop_first_pair, sift_up
from tensorexpress.sim.kernel.memory import Memory, halves

# A host's flows that may send: a binary heap whose entries have all that they are sorted by, so that no flow has to be
# looked at to find another's place, nor when entries move: where the entry of a flow is stands beside, by its place.


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
def first_ready(m: Memory, port: int) -> int:
    """Return the flow of a host that is served next, of those that may send. Flows lie in the order of places."""
    return m[FLOWS] + m[m[port + L_READY] + E_SERVED] % BY_PLACE * FLOW_COLUMNS


@compiled
def write_entry(m: Memory, entry: int, urgency: int, served: int) -> None:
    m[entry + E_URGENCY], m[entry + E_SERVED] = urgency, served
    halves(m, m[PLACES])[served % BY_PLACE] = entry


@compiled
def settle(m: Memory, heap: int, n: int, at: int, urgency: int, served: int) -> None:
    """Put a flow into the heap of n entries of which the one at an address is free, wherever it belongs."""
    i = (at - heap) // ENTRY_COLUMNS
    while i > 0:
        above = (i - 1) >> 1
        parent = heap + above * ENTRY_COLUMNS
        if not goes_before(m, urgency, served, parent):
            break
        write_entry(m, heap + i * ENTRY_COLUMNS, m[parent + E_URGENCY], m[parent + E_SERVED])
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
        write_entry(m, heap + i * ENTRY_COLUMNS, m[below + E_URGENCY], m[below + E_SERVED])
        i = child
    write_entry(m, heap + i * ENTRY_COLUMNS, urgency, served)


@compiled
def refresh(m: Memory, flow: int) -> None:
    """Enter, move or remove a flow among those that may send, after anything about it has changed."""
    full, in_flight = m[PAYLOAD] + m[HEADER], m[flow + F_IN_FLIGHT]
    is_open = in_flight == 0 or in_flight + full <= m[flow + F_WINDOW]
    place_ready(m, flow, m[flow + F_KEY] if is_open else NEVER)


@compiled
def find_next(m: Memory, flow: int) -> None:
    """Find out anew of which slice a flow sends next, after anything about its slices has changed."""
    current = halves(m, flow)[F_CURRENT]
    m[flow + F_KEY] = m[current + M_KEY] if current != NONE else first_pending_key(m, flow)


@compiled
def place_ready(m: Memory, flow: int, key: int) -> None:
    """Enter, move or remove a flow among those that may send, by the key of what it sends next; NEVER is nothing."""
    f, served = halves(m, flow), m[flow + F_SERVED]
    place, places = served % BY_PLACE, halves(m, m[PLACES])
    at = places[place]
    if key == NEVER and at == NONE:
        return
    port = f[F_SRC]
    heap, n = m[port + L_READY], m[port + L_READY_COUNT]
    if key != NEVER:
        urgency = key if f[F_CURRENT] == NONE else key - UNDER_WAY_FIRST
        if at == NONE:
            m[port + L_READY_COUNT] = n + 1
            settle(m, heap, n + 1, heap + n * ENTRY_COLUMNS, urgency, served)
        elif m[at + E_URGENCY] != urgency or m[at + E_SERVED] != served:
            settle(m, heap, n, at, urgency, served)
    else:
        places[place] = NONE
        m[port + L_READY_COUNT] = n - 1
        last = heap + (n - 1) * ENTRY_COLUMNS
        if last != at:
            settle(m, heap, n - 1, at, m[last + E_URGENCY], m[last + E_SERVED])


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
