"""What goes first: disciplines and buffers of switch ports, and host orders. The other form of `queueing.py`."""

from __future__ import annotations

from tensorexpress import queueing
from tensorexpress.compiled_functions import compiled
from tensorexpress.queueing import HOST_ORDERS, Pifo, SpPifo, StrictPriority
from tensorexpress.sim.columns import *
from tensorexpress.sim.kernel.events import free_row, kick
from tensorexpress.sim.kernel.memory import Memory, halves, prefetch
from tensorexpress.sim.record import DATA, OTHER

STRICT, SP_PIFO, PIFO = StrictPriority.code, SpPifo.code, Pifo.code
PRIORITY, RANDOM = HOST_ORDERS["priority"].code, HOST_ORDERS["random"].code

shuffled = compiled(queueing.shuffled)


@compiled
def host_key(m: Memory, message: int) -> int:
    """Return what the host order sorts a message by that is ready now."""
    s = halves(m, message)
    if m[HOST_ORDER] == PRIORITY:
        return m[message + M_DEADLINE] - m[message + M_LEAD]
    return shuffled(s[M_ITERATION], s[M_INDEX]) if m[HOST_ORDER] == RANDOM else m[NOW]


@compiled
def slack_now(m: Memory, message: int) -> int:
    """Return the slack of what is sent of a message now, where switches look at that."""
    return m[message + M_DEADLINE] - m[message + M_LEAD] - m[NOW] if m[SLACK_MODE] else 0


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
        rank_a, rank_b = m[a + P_SORTED_BY], m[b + P_SORTED_BY]
        if rank_b < rank_a or (rank_b == rank_a and m[b + P_SEQUENCE] < m[a + P_SEQUENCE]):
            a, b = b, a
        # a goes onto the merged right spine, which becomes its parent's left child.
        if last == NONE:
            root = a
        else:
            halves(m, last)[P_NEXT] = a
        right = m[a + P_RIGHT]
        m[a + P_RIGHT] = halves(m, a)[P_NEXT]
        halves(m, a)[P_NEXT] = NONE
        last = a
        a = right
    halves(m, last)[P_NEXT] = b if a == NONE else a
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
def beyond_own(m: Memory, held: int) -> int:
    """Return how much of what a queue holds is in the part of the buffer that queues share; see `buffer.py`."""
    return max(0, held - m[OWN])


@compiled
def enqueue(m: Memory, port: int, packet: int) -> None:
    p = halves(m, packet)
    size = p[P_SIZE]
    now = m[NOW]
    rank = now + m[packet + P_SLACK] if m[SLACK_MODE] else p[P_RANK]
    queue = choose_queue(m, port, rank)
    found = m[queue + Q_BYTES]
    common = m[port + L_COMMON] + beyond_own(m, found + size) - beyond_own(m, found)
    if common > m[COMMON]:
        m[port + (L_OTHER_DROPS if p[P_KIND] == OTHER else L_DROPS)] += 1
        free_row(m, packet)
        return
    m[port + L_COMMON] = common
    if m[DISCIPLINE] == PIFO:
        m[packet + P_SORTED_BY] = rank
        m[packet + P_SEQUENCE] = m[SEQUENCE]
        m[SEQUENCE] += 1
        p[P_NEXT] = NONE
        m[packet + P_RIGHT] = NONE
        m[port + L_ROOT] = meld(m, m[port + L_ROOT], packet)
    else:
        p[P_NEXT] = NONE
        if m[queue + Q_HEAD] == NONE:
            m[queue + Q_HEAD] = packet
        else:
            halves(m, m[queue + Q_TAIL])[P_NEXT] = packet
        m[queue + Q_TAIL] = packet
        m[port + L_FILLED] |= 1 << (queue - m[port + L_QUEUES]) // QUEUE_COLUMNS
    m[queue + Q_BYTES] = found + size
    m[packet + P_ENQUEUED] = now
    if m[ECN] and p[P_KIND] == DATA and found >= m[ECN]:
        p[P_ASKS] |= MARKED
        m[port + L_MARKS] += 1
    backlog = m[port + L_BACKLOG] + size
    m[port + L_BACKLOG] = backlog
    if backlog > m[port + L_PEAK]:
        m[port + L_PEAK] = backlog
    kick(m, port)


@compiled
def next_packet_of_switch(m: Memory, port: int) -> int:
    queue = m[port + L_QUEUES]
    if m[DISCIPLINE] == PIFO:
        packet = m[port + L_ROOT]
        if packet == NONE:
            return NONE
        m[port + L_ROOT] = meld(m, halves(m, packet)[P_NEXT], m[packet + P_RIGHT])
    else:
        filled = m[port + L_FILLED]
        if filled == 0:
            return NONE
        index = 0
        while filled >> index & 1 == 0:
            index += 1
        queue += index * QUEUE_COLUMNS
        packet = m[queue + Q_HEAD]
        following = halves(m, packet)[P_NEXT]
        m[queue + Q_HEAD] = following
        if following == NONE:
            m[port + L_FILLED] = filled - (1 << index)
        else:
            # It has waited long enough to be in no cache any more.
            prefetch(m, following)
    size = halves(m, packet)[P_SIZE]
    held = m[queue + Q_BYTES]
    m[queue + Q_BYTES] = held - size
    m[port + L_COMMON] -= beyond_own(m, held) - beyond_own(m, held - size)
    m[port + L_BACKLOG] -= size
    if m[SLACK_MODE]:
        m[packet + P_SLACK] -= m[NOW] - m[packet + P_ENQUEUED]
    return packet
