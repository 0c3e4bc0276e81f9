"""Hosts, flows and messages: what a host sends next, how far a window is open, what was lost."""

from __future__ import annotations

from tensorexpress import recovery
from tensorexpress.recovery import ALPHA_ONE, ALPHA_SHIFT
from tensorexpress.sim.columns import *
from tensorexpress.sim.flat_plan import PHASE, TIMER
from tensorexpress.sim.kernel.events import kick, new_packet, schedule
from tensorexpress.sim.kernel.memory import Memory, compiled
from tensorexpress.sim.kernel.queues import host_key
from tensorexpress.sim.kernel.ready import has_unsent, pop_pending, push_pending, refresh
from tensorexpress.sim.model import ACKED, IN_FLIGHT, LOST, UNSENT
from tensorexpress.sim.record import ACK, DATA

smoothed = compiled(recovery.smoothed)
timeout_after = compiled(recovery.timeout_after)
backed_off = compiled(recovery.backed_off)


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
    round_trip, deviation = smoothed(m[flow + F_RTT], m[flow + F_RTT_DEVIATION], sample)
    m[flow + F_RTT], m[flow + F_RTT_DEVIATION] = round_trip, deviation
    m[flow + F_TIMEOUT] = timeout_after(round_trip, deviation, m[RTO_MIN])


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
        m[flow + F_TIMEOUT] = backed_off(m[flow + F_TIMEOUT])
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
    m[message + M_KEY] = host_key(m, message)
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
def receive(m: Memory, packet: int) -> bool:
    """Take a chunk; return whether it completes its message."""
    message = m[packet + P_MESSAGE]
    iteration = m[packet + P_ITERATION]
    if iteration != m[message + M_ITERATION]:
        return False
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
    return complete


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
