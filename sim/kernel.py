"""The kernel of the compiled engine: `model.py` once more, over a flat memory, with numba.

Functions carry the names of their twins in `model.py`, where they are documented. All state is one array of int64,
laid out by `fast.py`; see `columns.py`. One array keeps calls between compiled functions cheap and compilation short,
and lets the kernel stop at any event (to grow, to let Ctrl-C through) and go on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from tensorexpress.sim.columns import *
from tensorexpress.sim.model import ACKED, ALPHA_ONE, ALPHA_SHIFT, IN_FLIGHT, LOST, UNSENT
from tensorexpress.sim.program import ARRIVE, BACKGROUND, COMPUTE, GAPS, JOIN, PHASE, TIMER, TRANSMIT
from tensorexpress.sim.record import ACK, DATA, OTHER


class Memory(Protocol):
    """A pointer to int64."""

    def __getitem__(self, at: int) -> int: ...
    def __setitem__(self, at: int, value: int) -> None: ...


#: Packets that one event can create at the most, and a little more.
SPARE_PACKETS = 4

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _pointer(context: Any, address: Any) -> Any:
    """Return the memory at an address. A bare pointer compiles and runs much faster than an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), generate  # type: ignore[no-untyped-call]


pointer: Callable[[int], Memory] = cast(Any, intrinsic(_pointer))


def compiled(function: _Function) -> _Function:
    """Compile a part of the kernel; Python never calls it, so it needs no wrapper for that."""
    options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(_Function, njit(nogil=True, **options)(function))


# Events: a binary heap of (time, place inside the instant). No two events share both.


@compiled
def schedule(m: Memory, time: int, place: int) -> None:
    n = m[EVENT_COUNT]
    if m[TOP_IS_FREE]:
        # The event being handled still has the first place: one that follows from it takes it over.
        m[TOP_IS_FREE] = 0
        sift_down(m, m[EVENTS], n, time, place)
    else:
        m[EVENT_COUNT] = n + 1
        sift_up(m, m[EVENTS], n, time, place)


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
def new_packet(m: Memory, kind: int, flow: int, hop: int, end: int, size: int, rank: int, slack: int) -> int:
    packet = m[FREE]
    m[FREE] = m[packet + P_NEXT]
    m[FREE_COUNT] -= 1
    m[packet + P_KIND] = kind
    m[packet + P_FLOW] = flow
    m[packet + P_HOP] = hop
    m[packet + P_END] = end
    m[packet + P_SIZE] = size
    m[packet + P_RANK] = rank
    m[packet + P_SLACK] = slack
    m[packet + P_MESSAGE] = NONE
    m[packet + P_ITERATION] = NONE
    m[packet + P_CHUNK] = NONE
    m[packet + P_MARKED] = 0
    m[packet + P_NEXT] = NONE
    return packet


@compiled
def free_packet(m: Memory, packet: int) -> None:
    m[packet + P_NEXT] = m[FREE]
    m[FREE] = packet
    m[FREE_COUNT] += 1


@compiled
def is_lost(seed: int, link: int, count: int, threshold: int) -> bool:
    x = (
        np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
        + np.uint64(link) * np.uint64(0xBF58476D1CE4E5B9)
        + np.uint64(count) * np.uint64(0x94D049BB133111EB)
    )
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bool(np.int64((x ^ (x >> np.uint64(31))) >> np.uint64(1)) < threshold)


# Ports


@compiled
def kick(m: Memory, port: int) -> None:
    if m[port + L_IDLE]:
        m[port + L_IDLE] = 0
        schedule(m, m[NOW], TRANSMIT * PHASE + port)


@compiled
def transmit(m: Memory, log: Memory, port: int) -> None:
    """Send the port's next packet, or leave the port idle."""
    if m[port + L_IS_HOST]:
        packet = next_packet_of_host(m, port)
    else:
        packet = next_packet_of_switch(m, port)
    if packet == NONE:
        m[port + L_IDLE] = 1
        return
    now = m[NOW]
    size = m[packet + P_SIZE]
    rate = m[port + L_RATE]
    occupied = (size * 8_000_000_000_000 + rate - 1) // rate
    m[port + L_BYTES] += size
    m[port + L_BUSY] += occupied
    m[TRANSMISSIONS] += 1
    if m[LOGGING]:
        row = m[LOGGED] * LOG_COLUMNS
        m[LOGGED] += 1
        message = m[packet + P_MESSAGE]
        log[row + 0] = now
        log[row + 1] = m[port + L_INDEX]
        log[row + 2] = m[packet + P_KIND]
        log[row + 3] = m[m[packet + P_FLOW] + F_INDEX]
        log[row + 4] = NONE if message == NONE else m[message + M_INDEX]
        log[row + 5] = m[packet + P_ITERATION]
        log[row + 6] = m[packet + P_CHUNK]
        log[row + 7] = size
    # Packets on one link arrive in the order of sending: only the first needs an event.
    arrives = now + m[port + L_DELAY] + (0 if m[port + L_IS_PACED] else occupied)
    m[packet + P_ARRIVES] = arrives
    m[packet + P_NEXT] = NONE
    if m[port + L_HEAD] == NONE:
        m[port + L_HEAD] = packet
        schedule(m, arrives, ARRIVE * PHASE + port)
    else:
        m[m[port + L_TAIL] + P_NEXT] = packet
    m[port + L_TAIL] = packet
    schedule(m, now + occupied, TRANSMIT * PHASE + port)


@compiled
def deliver(m: Memory, port: int) -> None:
    """Take the first packet off a link and hand it to the far end, unless the link loses it."""
    packet = m[port + L_HEAD]
    following = m[packet + P_NEXT]
    m[port + L_HEAD] = following
    if following != NONE:
        schedule(m, m[following + P_ARRIVES], ARRIVE * PHASE + port)
    m[port + L_CARRIED] += 1
    if m[LOSS] and is_lost(m[SEED], m[port + L_INDEX], m[port + L_CARRIED], m[LOSS]):
        m[port + L_LOSSES] += 1
        free_packet(m, packet)
        return
    hop = m[packet + P_HOP] + 1
    m[packet + P_HOP] = hop
    if hop < m[packet + P_END]:
        enqueue(m, m[hop], packet)
        return
    kind = m[packet + P_KIND]
    if kind == DATA:
        receive(m, packet)
    elif kind == ACK:
        acknowledge(m, packet)
    free_packet(m, packet)


# Switch ports


@compiled
def meld(m: Memory, a: int, b: int) -> int:
    """Join two skew heaps ordered by (rank, sequence); return the root."""
    if a == NONE:
        return b
    if b == NONE:
        return a
    root = NONE
    last = NONE
    while a != NONE and b != NONE:
        rank_a, rank_b = m[a + P_RANK], m[b + P_RANK]
        if rank_b < rank_a or (rank_b == rank_a and m[b + P_SEQUENCE] < m[a + P_SEQUENCE]):
            a, b = b, a
        # a goes onto the merged right spine, which becomes its parent's left child.
        if last == NONE:
            root = a
        else:
            m[last + P_NEXT] = a
        right = m[a + P_RIGHT]
        m[a + P_RIGHT] = m[a + P_NEXT]
        m[a + P_NEXT] = NONE
        last = a
        a = right
    m[last + P_NEXT] = b if a == NONE else a
    return root


@compiled
def choose_queue(m: Memory, port: int, rank: int) -> int:
    """Return the queue in which a packet of this rank waits."""
    first = m[port + L_QUEUES]
    if m[DISCIPLINE] == STRICT:
        return first + rank * QUEUE_COLUMNS
    if m[DISCIPLINE] != SP_PIFO:
        return first
    end = first + m[QUEUES] * QUEUE_COLUMNS
    for queue in range(end - QUEUE_COLUMNS, first - 1, -QUEUE_COLUMNS):
        if rank >= m[queue + Q_BOUND]:
            m[queue + Q_BOUND] = rank
            return queue
    inversion = m[first + Q_BOUND] - rank
    for queue in range(first, end, QUEUE_COLUMNS):
        m[queue + Q_BOUND] -= inversion
    return first


@compiled
def enqueue(m: Memory, port: int, packet: int) -> None:
    size = m[packet + P_SIZE]
    other = size if m[packet + P_KIND] == OTHER else 0
    if m[BUFFER] and (m[port + L_BACKLOG] + size > m[BUFFER] or (other and m[port + L_OTHER] + other > m[BUFFER] // 2)):
        m[port + (L_OTHER_DROPS if other else L_DROPS)] += 1
        free_packet(m, packet)
        return
    m[port + L_OTHER] += other
    now = m[NOW]
    rank = now + m[packet + P_SLACK] if m[SLACK_MODE] else m[packet + P_RANK]
    queue = choose_queue(m, port, rank)
    found = m[queue + Q_BYTES]
    if m[DISCIPLINE] == PIFO:
        m[packet + P_RANK] = rank
        m[packet + P_SEQUENCE] = m[SEQUENCE]
        m[SEQUENCE] += 1
        m[packet + P_NEXT] = NONE
        m[packet + P_RIGHT] = NONE
        m[port + L_ROOT] = meld(m, m[port + L_ROOT], packet)
    else:
        m[packet + P_NEXT] = NONE
        if m[queue + Q_HEAD] == NONE:
            m[queue + Q_HEAD] = packet
        else:
            m[m[queue + Q_TAIL] + P_NEXT] = packet
        m[queue + Q_TAIL] = packet
    m[queue + Q_BYTES] = found + size
    m[packet + P_ENQUEUED] = now
    if m[ECN] and m[packet + P_KIND] == DATA and found >= m[ECN]:
        m[packet + P_MARKED] = 1
        m[port + L_MARKS] += 1
    m[port + L_WAITING] += 1
    backlog = m[port + L_BACKLOG] + size
    m[port + L_BACKLOG] = backlog
    if backlog > m[port + L_PEAK]:
        m[port + L_PEAK] = backlog
    kick(m, port)


@compiled
def next_packet_of_switch(m: Memory, port: int) -> int:
    if m[port + L_WAITING] == 0:
        return NONE
    queue = m[port + L_QUEUES]
    if m[DISCIPLINE] == PIFO:
        packet = m[port + L_ROOT]
        m[port + L_ROOT] = meld(m, m[packet + P_NEXT], m[packet + P_RIGHT])
    else:
        while m[queue + Q_HEAD] == NONE:
            queue += QUEUE_COLUMNS
        packet = m[queue + Q_HEAD]
        m[queue + Q_HEAD] = m[packet + P_NEXT]
    size = m[packet + P_SIZE]
    m[queue + Q_BYTES] -= size
    m[port + L_BACKLOG] -= size
    m[port + L_WAITING] -= 1
    if m[packet + P_KIND] == OTHER:
        m[port + L_OTHER] -= size
    if m[SLACK_MODE]:
        m[packet + P_SLACK] -= m[NOW] - m[packet + P_ENQUEUED]
    return packet


# Hosts


@compiled
def send_control(m: Memory, port: int, packet: int) -> None:
    if m[port + L_CONTROL] == NONE:
        m[port + L_CONTROL] = packet
    else:
        m[m[port + L_CONTROL_TAIL] + P_NEXT] = packet
    m[port + L_CONTROL_TAIL] = packet
    kick(m, port)


@compiled
def next_packet_of_host(m: Memory, port: int) -> int:
    packet = m[port + L_CONTROL]
    if packet != NONE:
        m[port + L_CONTROL] = m[packet + P_NEXT]
        return packet
    full = m[PAYLOAD] + m[HEADER]
    in_flight = m[port + L_IN_FLIGHT]
    if m[CREDIT] and in_flight and in_flight + full > m[CREDIT]:
        return NONE
    if m[port + L_READY_COUNT] == 0:
        return NONE
    flow = m[m[port + L_READY]]
    m[port + L_SERVED] += 1
    m[flow + F_SERVED] = m[port + L_SERVED]
    if m[flow + F_CURRENT] == NONE:
        m[flow + F_CURRENT] = pop_pending(m, flow)
    message = m[flow + F_CURRENT]
    packet = send_chunk(m, flow, message)
    if not has_unsent(m, message):
        m[flow + F_CURRENT] = NONE
    refresh(m, flow)
    return packet


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


# Flows


@compiled
def arm(m: Memory, flow: int, delay: int) -> None:
    m[flow + F_ARMED] = 1
    schedule(m, m[NOW] + delay, TIMER * PHASE + flow)


@compiled
def acknowledged(m: Memory, flow: int, size: int, marked: int) -> None:
    full = m[PAYLOAD] + m[HEADER]
    window = m[flow + F_WINDOW]
    if marked:
        m[flow + F_SLOW_UNTIL] = min(m[flow + F_SLOW_UNTIL], window)
    window += size if window < m[flow + F_SLOW_UNTIL] else full * size // window
    m[flow + F_ROUND] += size
    if marked:
        m[flow + F_ROUND_MARKED] += size
    if m[flow + F_ROUND] >= window:
        share = m[flow + F_ROUND_MARKED] * ALPHA_ONE // m[flow + F_ROUND]
        m[flow + F_ALPHA] += (share - m[flow + F_ALPHA]) >> ALPHA_SHIFT
        if m[flow + F_ROUND_MARKED]:
            window = max(full, window - window * m[flow + F_ALPHA] // (2 * ALPHA_ONE))
            m[flow + F_SLOW_UNTIL] = window
        m[flow + F_ROUND] = 0
        m[flow + F_ROUND_MARKED] = 0
    m[flow + F_WINDOW] = min(window, m[LARGEST_WINDOW])
    m[flow + F_DEADLINE] = m[NOW] + m[flow + F_TIMEOUT]


@compiled
def lost(m: Memory, flow: int, in_flight_before: int) -> None:
    if m[NOW] >= m[flow + F_CUT_AGAIN]:
        full = m[PAYLOAD] + m[HEADER]
        window = max(full, min(m[flow + F_WINDOW], in_flight_before) // 2)
        m[flow + F_WINDOW] = window
        m[flow + F_SLOW_UNTIL] = window
        m[flow + F_CUT_AGAIN] = m[NOW] + m[flow + F_RTT]


@compiled
def measured_round_trip(m: Memory, flow: int, sample: int) -> None:
    if m[flow + F_RTT] == 0:
        m[flow + F_RTT] = sample
        m[flow + F_RTT_DEVIATION] = sample // 2
    else:
        error = sample - m[flow + F_RTT]
        m[flow + F_RTT] += error >> 3
        m[flow + F_RTT_DEVIATION] += (abs(error) - m[flow + F_RTT_DEVIATION]) >> 2
    expected = m[flow + F_RTT] + 4 * m[flow + F_RTT_DEVIATION]
    m[flow + F_TIMEOUT] = max(m[RTO_MIN], expected)


@compiled
def timer(m: Memory, flow: int) -> None:
    now = m[NOW]
    m[flow + F_ARMED] = 0
    if m[flow + F_IN_FLIGHT] == 0:
        return
    if now >= m[flow + F_DEADLINE]:
        m[TIMEOUTS] += 1
        lose_until(m, flow, m[flow + F_TRANSMISSIONS])
        full = m[PAYLOAD] + m[HEADER]
        m[flow + F_SLOW_UNTIL] = max(full, m[flow + F_WINDOW] // 2)
        m[flow + F_WINDOW] = full
        m[flow + F_TIMEOUT] *= 2
        m[flow + F_DEADLINE] = now + m[flow + F_TIMEOUT]
        refresh(m, flow)
        kick(m, m[flow + F_SRC])
    arm(m, flow, m[flow + F_DEADLINE] - now)


# Messages


@compiled
def wire_bytes(m: Memory, message: int, chunk: int) -> int:
    if chunk == m[message + M_CHUNKS] - 1:
        return m[message + M_BYTES] - chunk * m[PAYLOAD] + m[HEADER]
    return m[PAYLOAD] + m[HEADER]


@compiled
def has_unsent(m: Memory, message: int) -> bool:
    return m[message + M_LOST] > 0 or m[message + M_NEXT] < m[message + M_CHUNKS]


@compiled
def start_message(m: Memory, message: int, deadline: int) -> bool:
    """Begin a message anew; return whether it is delivered at once because it stays on its host."""
    now = m[NOW]
    iteration = m[message + M_FIRED]
    m[message + M_FIRED] = iteration + 1
    times = m[message + M_TIMES] + iteration * TIMES_COLUMNS
    m[times + T_READY] = now
    flow, chunks = m[message + M_FLOW], m[message + M_CHUNKS]
    if m[flow + F_PATH] == m[flow + F_PATH_END] or chunks == 0:
        m[times + T_SENT] = now
        m[times + T_DELIVERED] = now
        return True
    for chunk in range(m[message + M_UNACKNOWLEDGED], m[message + M_NEXT]):
        if m[chunk_at(m, message, chunk) + C_STATE] & STATE == IN_FLIGHT:
            left_network(m, message, chunk)
    for chunk in range(chunks):
        m[chunk_at(m, message, chunk) + C_STATE] = UNSENT
    m[message + M_ITERATION] = iteration
    m[message + M_KEY] = m[message + M_RANK] if m[HOST_ORDER] == BY_RANK else now
    m[message + M_DEADLINE] = deadline
    for column in range(M_UNACKNOWLEDGED, M_FIRED):
        m[message + column] = 0
    push_pending(m, flow, m[message + M_KEY], message)
    refresh(m, flow)
    kick(m, m[flow + F_SRC])
    return False


@compiled
def chunk_at(m: Memory, message: int, chunk: int) -> int:
    return m[message + M_FIRST_CHUNK] + chunk * CHUNK_COLUMNS


@compiled
def send_chunk(m: Memory, flow: int, message: int) -> int:
    now = m[NOW]
    iteration = m[message + M_ITERATION]
    again = m[message + M_LOST] > 0
    if again:
        chunk = m[message + M_LOST_FROM]
        while m[chunk_at(m, message, chunk) + C_STATE] & STATE != LOST:
            chunk += 1
        m[message + M_LOST] -= 1
        m[message + M_LOST_FROM] = chunk + 1
        m[RETRANSMISSIONS] += 1
    else:
        chunk = m[message + M_NEXT]
        m[message + M_NEXT] = chunk + 1
        if chunk == 0:
            m[m[message + M_TIMES] + iteration * TIMES_COLUMNS + T_SENT] = now
    size = wire_bytes(m, message, chunk)
    slack = m[message + M_DEADLINE] - m[message + M_LEAD] - now
    rank = m[message + M_SWITCH_RANK]
    packet = new_packet(m, DATA, flow, m[flow + F_PATH], m[flow + F_PATH_END], size, rank, slack)
    transmission = m[flow + F_TRANSMISSIONS]
    m[flow + F_TRANSMISSIONS] = transmission + 1
    m[packet + P_MESSAGE] = message
    m[packet + P_ITERATION] = iteration
    m[packet + P_CHUNK] = chunk
    m[packet + P_TRANSMISSION] = transmission
    m[packet + P_SENT] = now
    if m[ACKS]:
        at = chunk_at(m, message, chunk)
        m[at + C_STATE] = (m[at + C_STATE] & HAS) | IN_FLIGHT
        m[at + C_TRANSMISSION] = transmission
        last = m[flow + F_NEWEST]
        m[at + C_EARLIER] = last
        m[at + C_LATER] = NONE
        if last == NONE:
            m[flow + F_OLDEST] = at
        else:
            m[last + C_LATER] = at
        m[flow + F_NEWEST] = at
        if m[flow + F_IN_FLIGHT] == 0:
            m[flow + F_DEADLINE] = now + m[flow + F_TIMEOUT]
        if not m[flow + F_ARMED]:
            arm(m, flow, m[flow + F_TIMEOUT])
        m[flow + F_IN_FLIGHT] += size
        m[m[flow + F_SRC] + L_IN_FLIGHT] += size
        m[packet + P_ASKS] = asks_for_ack(m, flow) or again
    return packet


@compiled
def asks_for_ack(m: Memory, flow: int) -> bool:
    full = m[PAYLOAD] + m[HEADER]
    allowed = m[flow + F_WINDOW]
    if m[CREDIT]:
        allowed = min(allowed, m[CREDIT])
    m[flow + F_UNASKED] += 1
    if m[flow + F_UNASKED] >= min(m[ACK_EVERY], allowed // (2 * full)):
        m[flow + F_UNASKED] = 0
        return True
    return False


@compiled
def left_network(m: Memory, message: int, chunk: int) -> None:
    """Account for a chunk that is acknowledged or given up."""
    at, flow = chunk_at(m, message, chunk), m[message + M_FLOW]
    earlier, later = m[at + C_EARLIER], m[at + C_LATER]
    if earlier == NONE:
        m[flow + F_OLDEST] = later
    else:
        m[earlier + C_LATER] = later
    if later == NONE:
        m[flow + F_NEWEST] = earlier
    else:
        m[later + C_EARLIER] = earlier
    size = wire_bytes(m, message, chunk)
    m[flow + F_IN_FLIGHT] -= size
    m[m[flow + F_SRC] + L_IN_FLIGHT] -= size


@compiled
def acknowledge_chunk(m: Memory, message: int, chunk: int) -> int:
    """Note a chunk as acknowledged; return its bytes if that is news."""
    at = chunk_at(m, message, chunk)
    state = m[at + C_STATE] & STATE
    if state == ACKED:
        return 0
    if state == IN_FLIGHT:
        left_network(m, message, chunk)
    elif state == LOST:
        m[message + M_LOST] -= 1
    m[at + C_STATE] |= ACKED
    return wire_bytes(m, message, chunk)


@compiled
def acknowledge(m: Memory, ack: int) -> None:
    message = m[ack + P_MESSAGE]
    if m[ack + P_ITERATION] != m[message + M_ITERATION]:
        return
    flow = m[ack + P_FLOW]
    acked_to = m[ack + P_ACKED_TO]
    newly = 0
    for below in range(m[message + M_UNACKNOWLEDGED], acked_to):
        newly += acknowledge_chunk(m, message, below)
    newly += acknowledge_chunk(m, message, m[ack + P_CHUNK])
    if acked_to > m[message + M_UNACKNOWLEDGED]:
        m[message + M_UNACKNOWLEDGED] = acked_to
    measured_round_trip(m, flow, m[NOW] - m[ack + P_SENT])
    if newly:
        acknowledged(m, flow, newly, m[ack + P_MARKED])
    before = m[flow + F_IN_FLIGHT]
    if lose_until(m, flow, m[ack + P_TRANSMISSION] - m[REORDERING]):
        lost(m, flow, before)
    if m[flow + F_CURRENT] == message and not has_unsent(m, message):
        m[flow + F_CURRENT] = NONE
    refresh(m, flow)
    kick(m, m[flow + F_SRC])


@compiled
def lose_until(m: Memory, flow: int, last_transmission: int) -> bool:
    found = False
    at = m[flow + F_OLDEST]
    while at != NONE and m[at + C_TRANSMISSION] <= last_transmission:
        message = m[at + C_MESSAGE]
        lose(m, message, (at - m[message + M_FIRST_CHUNK]) // CHUNK_COLUMNS)
        found = True
        at = m[flow + F_OLDEST]
    return found


@compiled
def lose(m: Memory, message: int, chunk: int) -> None:
    if not has_unsent(m, message):
        push_pending(m, m[message + M_FLOW], m[message + M_KEY], message)
    left_network(m, message, chunk)
    at = chunk_at(m, message, chunk)
    m[at + C_STATE] = (m[at + C_STATE] & HAS) | LOST
    if m[message + M_LOST] == 0 or chunk < m[message + M_LOST_FROM]:
        m[message + M_LOST_FROM] = chunk
    m[message + M_LOST] += 1


@compiled
def receive(m: Memory, packet: int) -> None:
    message = m[packet + P_MESSAGE]
    iteration = m[packet + P_ITERATION]
    if iteration != m[message + M_ITERATION]:
        return
    chunk, chunks = m[packet + P_CHUNK], m[message + M_CHUNKS]
    at = chunk_at(m, message, chunk)
    duplicate = m[at + C_STATE] & HAS != 0
    complete = False
    if not duplicate:
        m[at + C_STATE] |= HAS
        m[message + M_RECEIVED] += 1
        expected = m[message + M_EXPECTED]
        while expected < chunks and m[chunk_at(m, message, expected) + C_STATE] & HAS:
            expected += 1
        m[message + M_EXPECTED] = expected
        complete = m[message + M_RECEIVED] == chunks
    if m[ACKS] and (
        m[packet + P_ASKS] or m[packet + P_MARKED] or duplicate or complete or chunk >= m[message + M_EXPECTED]
    ):
        send_ack(m, packet, message)
    if complete:
        m[m[message + M_TIMES] + iteration * TIMES_COLUMNS + T_DELIVERED] = m[NOW]
        fire_successors(m, m[message + M_NODE], m[message + M_DEADLINE])


@compiled
def send_ack(m: Memory, packet: int, message: int) -> None:
    flow = m[packet + P_FLOW]
    slack = m[packet + P_SLACK]
    ack = new_packet(m, ACK, flow, m[flow + F_BACK], m[flow + F_BACK_END], m[ACK_SIZE], 0, slack)
    m[ack + P_MESSAGE] = message
    m[ack + P_ITERATION] = m[packet + P_ITERATION]
    m[ack + P_CHUNK] = m[packet + P_CHUNK]
    m[ack + P_TRANSMISSION] = m[packet + P_TRANSMISSION]
    m[ack + P_SENT] = m[packet + P_SENT]
    m[ack + P_ACKED_TO] = m[message + M_EXPECTED]
    m[ack + P_MARKED] = m[packet + P_MARKED]
    send_control(m, m[flow + F_DST], ack)


# The graph and the workers


@compiled
def fire_successors(m: Memory, node: int, deadline: int) -> None:
    stack = m[STACK]
    m[stack], m[stack + 1] = node, deadline
    depth = 1
    while depth:
        depth -= 1
        node, deadline = m[stack + 2 * depth], m[stack + 2 * depth + 1]
        for i in range(m[node + N_SUCCESSORS], m[node + N_SUCCESSORS_END]):
            successor = m[i]
            m[successor + N_NEED] -= 1
            if deadline < m[successor + N_DEADLINE]:
                m[successor + N_DEADLINE] = deadline
            if m[successor + N_NEED] == 0:
                m[successor + N_NEED] = m[successor + N_NEED_ALL]
                earliest = m[successor + N_DEADLINE]
                m[successor + N_DEADLINE] = NEVER
                if fire(m, successor, earliest):
                    m[stack + 2 * depth], m[stack + 2 * depth + 1] = successor, earliest
                    depth += 1


@compiled
def fire(m: Memory, node: int, deadline: int) -> bool:
    """Do what a node stands for; return whether its successors can be counted down at once."""
    thing = m[node + N_THING]
    if m[node + N_KIND] == MESSAGE_NODE:
        return start_message(m, thing, deadline)
    if m[node + N_KIND] == GATE_NODE:
        open_gate(m, thing)
        return False
    if m[node + N_DELAY] == 0:
        return True
    # Nobody counts this node down before it has fired: its row can hold what it carries.
    m[node + N_DEADLINE] = deadline
    schedule(m, m[NOW] + m[node + N_DELAY], JOIN * PHASE + node)
    return False


@compiled
def open_gate(m: Memory, gate: int) -> None:
    opened = m[gate + G_OPENED]
    m[m[gate + G_TIMES] + opened * GATE_TIMES_COLUMNS + T_OPENED] = m[NOW]
    m[gate + G_OPENED] = opened + 1
    worker = m[gate + G_WORKER]
    if m[worker + W_WAITING] == gate:
        m[worker + W_WAITING] = NONE
        start_forward(m, worker)


@compiled
def start_forward(m: Memory, worker: int) -> None:
    """Start the worker's next forward layer, or let it wait at the gate."""
    iteration, gate = m[worker + W_ITERATION], m[worker + W_GATE]
    if m[gate + G_OPENED] < iteration:
        m[worker + W_WAITING] = gate
        return
    times = m[gate + G_TIMES] + iteration * GATE_TIMES_COLUMNS
    m[times + T_STARTED] = m[NOW]
    schedule(m, m[NOW] + m[times + T_FORWARD], COMPUTE * PHASE + worker)


@compiled
def start_backward(m: Memory, worker: int) -> None:
    times = m[m[worker + W_GATE] + G_TIMES] + m[worker + W_ITERATION] * GATE_TIMES_COLUMNS
    schedule(m, m[NOW] + m[times + T_BACKWARD], COMPUTE * PHASE + worker)


@compiled
def computed(m: Memory, worker: int) -> None:
    """A worker has finished what it computed: go on to the next layer of the pass, or to the other pass."""
    gate = m[worker + W_GATE]
    if m[worker + W_ITERATION] == NONE:
        m[worker + W_ITERATION] = 0
        start_forward(m, worker)
    elif m[worker + W_BACKWARD]:
        fire_successors(m, m[gate + G_GRADIENT], m[NOW] + m[gate + G_SLACK])
        if gate > m[worker + W_FIRST_GATE]:
            m[worker + W_GATE] = gate - GATE_COLUMNS
            start_backward(m, worker)
        else:
            m[worker + W_BACKWARD] = 0
            m[worker + W_ITERATION] += 1
            start_forward(m, worker)
    elif gate < m[worker + W_LAST_GATE]:
        m[worker + W_GATE] = gate + GATE_COLUMNS
        start_forward(m, worker)
    elif m[worker + W_ITERATION] < m[ROUNDS]:
        m[worker + W_BACKWARD] = 1
        start_backward(m, worker)
    else:
        m[RUNNING] -= 1
        if m[RUNNING] == 0:
            m[STATUS] = FINISHED


@compiled
def background(m: Memory, source: int) -> None:
    flow = m[source + B_FLOW]
    packet = new_packet(
        m, OTHER, flow, m[flow + F_PATH], m[flow + F_PATH_END], m[source + B_SIZE], m[OTHER_RANK], m[OTHER_SLACK]
    )
    send_control(m, m[flow + F_SRC], packet)
    m[source + B_SENT] += 1
    gap = m[m[source + B_GAPS] + m[source + B_SENT] % GAPS]
    schedule(m, m[NOW] + gap, BACKGROUND * PHASE + source)


# The compiled code is kept on disk; other threads run while it does.
@njit(cache=True, nogil=True, error_model="numpy")
def kernel(memory: int, log_memory: int, log_rows: int, budget: int) -> None:
    """Handle events until all workers have finished, a table is full, or the budget is used up."""
    m, log = pointer(memory), pointer(log_memory)
    events = m[EVENTS]
    m[STATUS] = RUN
    for _ in range(budget):
        if m[EVENT_COUNT] == 0:
            m[STATUS] = STUCK
            return
        if m[FREE_COUNT] < SPARE_PACKETS or (m[LOGGING] and m[LOGGED] == log_rows):
            m[STATUS] = GROW
            return
        m[NOW] = m[events]
        place = m[events + 1]
        m[TOP_IS_FREE] = 1
        phase = place // PHASE
        thing = place - phase * PHASE
        if phase == TRANSMIT:
            transmit(m, log, thing)
        elif phase == ARRIVE:
            deliver(m, thing)
        elif phase == COMPUTE:
            computed(m, thing)
            if m[STATUS] == FINISHED:
                return
        elif phase == TIMER:
            timer(m, thing)
        elif phase == JOIN:
            deadline = m[thing + N_DEADLINE]
            m[thing + N_DEADLINE] = NEVER
            fire_successors(m, thing, deadline)
        else:
            background(m, thing)
        if m[TOP_IS_FREE]:
            m[TOP_IS_FREE] = 0
            m[EVENT_COUNT] -= 1
            drop_first_pair(m, events, m[EVENT_COUNT])
