"""The kernel itself: links, and a loop that handles event after event."""

from __future__ import annotations

import numpy as np

from tensorexpress.background import GAPS
from tensorexpress.compiled_functions import compiled
from tensorexpress.sim.columns import *
from tensorexpress.sim.flat_plan import (
    ACKNOWLEDGE,
    ANSWER,
    ARRIVE,
    BACKGROUND,
    COMPUTE,
    JOIN,
    PHASE,
    TIMER,
    TRANSMIT,
    WORK,
)
from tensorexpress.sim.kernel.events import (
    drop_first_pair,
    free_row,
    new_packet,
    open_bucket,
    schedule,
    send_control,
    serialisation,
)
from tensorexpress.sim.kernel.memory import Memory, halves, pointer, prefetch
from tensorexpress.sim.kernel.queues import enqueue, next_packet_of_switch
from tensorexpress.sim.kernel.sums import add, answered, hand_down, receive_total
from tensorexpress.sim.kernel.training import computed, take_in, work
from tensorexpress.sim.kernel.transport import (
    acknowledge,
    acknowledge_beside,
    next_packet_of_host,
    receive,
    timer,
)
from tensorexpress.sim.record import ACK, ADDEND, DATA, OTHER, TOTAL


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


@compiled
def passing_ps(m: Memory, port: int, packet: int, occupied: int) -> int:
    """Return how long after it starts to occupy a link a packet or train can be passed on; see `Port.passing_ps`."""
    p = halves(m, packet)
    size = p[P_SIZE]
    if size <= m[HEAD_BYTES]:
        return 0 if m[port + L_IS_PACED] else occupied
    rest = size - m[HEAD_BYTES]
    if m[port + L_IS_PACED]:
        head, tail = 0, serialisation(rest, m[port + L_RATE])
    else:
        head, tail = serialisation(m[HEAD_BYTES], m[port + L_RATE]), occupied
    hop = p[P_HOP] + 1
    if hop == p[P_END]:
        return tail
    return max(head, tail - serialisation(rest, m[m[hop] + L_RATE]))


@compiled
def expect(m: Memory, packet: int) -> None:
    """Fetch what a packet on its last link will need where it arrives."""
    p = halves(m, packet)
    flow, message = p[P_FLOW], p[P_MESSAGE]
    prefetch(m, message)
    if p[P_KIND] == ACK:
        prefetch(m, flow)
        prefetch(m, flow + LINE)
    elif p[P_ASKS]:
        prefetch(m, flow + 2 * LINE)


@compiled
def iteration_of(m: Memory, packet: int) -> int:
    p = halves(m, packet)
    if p[P_KIND] == ADDEND or p[P_KIND] == TOTAL:
        return p[P_NUMBER] // m[halves(m, p[P_FLOW])[F_STREAM] + R_PACKETS]
    return p[P_ITERATION]


@compiled
def transmit(m: Memory, log: Memory, port: int) -> None:
    """Send the port's next packet, or leave the port idle."""
    if m[NOW] < m[port + L_BUSY_UNTIL]:
        schedule(m, m[port + L_BUSY_UNTIL], TRANSMIT * PHASE + port)
        return
    if m[port + L_IS_HOST]:
        packet = next_packet_of_host(m, port)
    else:
        packet = next_packet_of_switch(m, port)
    if packet == NONE:
        m[port + L_IDLE] = 1
        return
    now, p = m[NOW], halves(m, packet)
    size = p[P_SIZE]
    occupied = serialisation(size, m[port + L_RATE])
    m[port + L_BYTES] += size
    m[port + L_BUSY] += occupied
    m[TRANSMISSIONS] += 1
    if m[LOGGING]:
        row = m[LOGGED] * LOG_COLUMNS
        m[LOGGED] += 1
        message = p[P_MESSAGE]
        log[row + 0] = now
        log[row + 1] = m[port + L_INDEX]
        log[row + 2] = p[P_KIND]
        log[row + 3] = halves(m, p[P_FLOW])[F_INDEX]
        log[row + 4] = NONE if message == NONE else halves(m, message)[M_INDEX]
        log[row + 5] = iteration_of(m, packet)
        log[row + 6] = p[P_CHUNK]
        log[row + 7] = size
    if p[P_HOP] + 1 == p[P_END]:
        expect(m, packet)
    else:
        prefetch(m, p[P_HOP] + 1)
    # Packets on one link arrive in the order of sending: only the first needs an event.
    arrives = now + m[port + L_DELAY] + passing_ps(m, port, packet, occupied)
    p[P_NEXT] = NONE
    if m[port + L_HEAD] == NONE:
        m[port + L_HEAD] = packet
        schedule(m, arrives, ARRIVE * PHASE + port)
    else:
        before = m[port + L_TAIL]
        halves(m, before)[P_NEXT], m[before + P_ARRIVES] = packet, arrives
    m[port + L_TAIL] = packet
    m[port + L_BUSY_UNTIL] = now + occupied
    schedule(m, now + occupied, TRANSMIT * PHASE + port)


@compiled
def arrive_total(m: Memory, packet: int) -> None:
    """Hand a sum on to all below, or take it at a worker."""
    p = halves(m, packet)
    if p[P_ADDER] != NONE:
        hand_down(m, p[P_ADDER], packet)
        return
    answer = receive_total(m, packet)
    if answer != NONE:
        take_in(m, halves(m, answer)[M_NODE])


@compiled
def deliver(m: Memory, port: int) -> None:
    """Take the first packet off a link and hand it to the far end, unless the link loses it."""
    packet = m[port + L_HEAD]
    p = halves(m, packet)
    following = p[P_NEXT]
    m[port + L_HEAD] = following
    if following != NONE:
        schedule(m, m[packet + P_ARRIVES], ARRIVE * PHASE + port)
    if m[LOSS]:
        m[port + L_CARRIED] += 1
        if is_lost(m[SEED], m[port + L_INDEX], m[port + L_CARRIED], m[LOSS]):
            m[port + L_LOSSES] += 1
            free_row(m, packet)
            return
    hop = p[P_HOP] + 1
    p[P_HOP] = hop
    if hop < p[P_END]:
        enqueue(m, m[hop], packet)
        return
    kind = p[P_KIND]
    if kind == DATA:
        if receive(m, packet):
            take_in(m, halves(m, p[P_MESSAGE])[M_NODE])
    elif kind == ACK:
        acknowledge(m, packet)
    elif kind == ADDEND:
        add(m, packet)
    elif kind == TOTAL:
        arrive_total(m, packet)
    free_row(m, packet)


@compiled
def background(m: Memory, source: int) -> None:
    flow = m[source + B_FLOW]
    f = halves(m, flow)
    packet = new_packet(m, OTHER, flow, f[F_PATH], f[F_PATH_END], m[source + B_SIZE], m[OTHER_RANK], m[OTHER_SLACK])
    send_control(m, f[F_SRC], packet)
    m[source + B_SENT] += 1
    due = m[NOW] + m[m[source + B_GAPS] + m[source + B_SENT] % GAPS]
    if due < m[source + B_UNTIL]:
        schedule(m, due, BACKGROUND * PHASE + source)


@compiled
def sleeper_is_next(m: Memory) -> bool:
    if m[SLEEPER_COUNT] == 0 or m[EVENT_COUNT] == 0:
        return m[SLEEPER_COUNT] > 0
    sleepers, events = m[SLEEPERS], m[EVENTS]
    return m[sleepers] < m[events] or (m[sleepers] == m[events] and m[sleepers + 1] < m[events + 1])


@compiled
def nothing_is_open(m: Memory) -> bool:
    return m[EVENT_COUNT] == 0 and (m[SLEEPER_COUNT] == 0 or m[m[SLEEPERS]] >= m[OPEN_UNTIL])


def kernel(memory: int, log_memory: int, log_rows: int, budget: int) -> int:
    """Handle events until all workers have finished, a table is full, or the budget is used up."""
    m, log = pointer(memory), pointer(log_memory)
    events = m[EVENTS]
    m[STATUS] = RUN
    for _ in range(budget):
        if nothing_is_open(m):
            if m[BUCKETED] == 0 and m[SLEEPER_COUNT] == 0:
                return STUCK
            open_bucket(m)
            continue
        if m[FREE_COUNT] < m[SPARE] or (m[LOGGING] and m[LOGGED] == log_rows):
            return GROW
        if sleeper_is_next(m):
            m[NOW], place = m[m[SLEEPERS]], m[m[SLEEPERS] + 1]
            m[SLEEPER_COUNT] -= 1
            drop_first_pair(m, m[SLEEPERS], m[SLEEPER_COUNT])
        else:
            m[NOW], place = m[events], m[events + 1]
            m[TOP_IS_FREE] = 1
        phase = place // PHASE
        thing = place - phase * PHASE
        if phase == TRANSMIT:
            transmit(m, log, thing)
        elif phase == ARRIVE:
            deliver(m, thing)
        elif phase == ACKNOWLEDGE:
            acknowledge_beside(m, thing)
        elif phase == TIMER:
            timer(m, thing)
        elif phase == COMPUTE:
            computed(m, thing)
            if m[STATUS] == FINISHED:
                return FINISHED
        elif phase == JOIN:
            take_in(m, thing)
        elif phase == ANSWER:
            answered(m, thing)
        elif phase == WORK:
            work(m, thing)
        elif phase == BACKGROUND:
            background(m, thing)
        else:
            m[m[thing + X_WORD]] = m[thing + X_VALUE]
        if m[TOP_IS_FREE]:
            m[TOP_IS_FREE] = 0
            m[EVENT_COUNT] -= 1
            drop_first_pair(m, events, m[EVENT_COUNT])
    return RUN
