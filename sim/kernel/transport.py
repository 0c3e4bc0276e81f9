"""Hosts, flows and messages: what a host sends next, how far a window is open, what was lost."""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.recovery import ALPHA_ONE, ALPHA_SHIFT
from tensorexpress.sim.columns import *
from tensorexpress.sim.flat_plan import ACKNOWLEDGE, PHASE
from tensorexpress.sim.kernel.events import (
    free_row,
    kick,
    new_packet,
    new_row,
    schedule,
    send_control,
    serialisation,
    slack_of,
)
from tensorexpress.sim.kernel.lanes import add_work, append_work
from tensorexpress.sim.kernel.memory import Memory, halves, prefetch
from tensorexpress.sim.kernel.queues import PIFO, SP_PIFO, host_key, slack_now
from tensorexpress.sim.kernel.ready import has_unsent, is_stream, pop_pending, push_pending, refresh
from tensorexpress.sim.kernel.sums import copied_sum, next_addend, start_stream, stream_timer
from tensorexpress.sim.kernel.timers import arm, backed_off, lost_up_to, measured_round_trip
from tensorexpress.sim.model import ACKED, IN_FLIGHT, LOST, UNSENT
from tensorexpress.sim.record import ACK, DATA

# Hosts


@compiled
def next_packet_of_host(m: Memory, port: int) -> int:
    packet = m[port + L_CONTROL]
    if packet != NONE:
        m[port + L_CONTROL] = halves(m, packet)[P_NEXT]
        return packet
    full = m[PAYLOAD] + m[HEADER]
    in_flight = m[port + L_IN_FLIGHT]
    if m[CREDIT] and in_flight and in_flight + full > m[CREDIT]:
        return NONE
    if m[port + L_READY_COUNT] == 0:
        return NONE
    flow = m[m[port + L_READY] + E_FLOW]
    f = halves(m, flow)
    if m[WEIGHS_TURNS]:
        m[port + L_SERVED] = max(m[port + L_SERVED], m[flow + F_SERVED] // BY_PLACE)
        served = m[port + L_SERVED] + m[flow + F_TURN]
    else:
        served = m[port + L_SERVED] + 1
        m[port + L_SERVED] = served
    m[flow + F_SERVED] = served * BY_PLACE + m[flow + F_SERVED] % BY_PLACE
    if is_stream(m, flow):
        return next_addend(m, flow)
    if f[F_CURRENT] == NONE:
        f[F_CURRENT] = pop_pending(m, flow)
    message = f[F_CURRENT]
    packet = send_chunk(m, flow, message)
    if not has_unsent(m, message):
        f[F_CURRENT] = NONE
    refresh(m, flow)
    expect_flow(m, m[m[port + L_READY] + E_FLOW])
    return packet


@compiled
def expect_flow(m: Memory, flow: int) -> None:
    """Fetch what sending from a flow will need."""
    prefetch(m, flow + LINE)
    prefetch(m, halves(m, flow)[F_CURRENT])


# Flows


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
def lost(m: Memory, flow: int) -> None:
    if m[NOW] >= m[flow + F_CUT_AGAIN]:
        full = m[PAYLOAD] + m[HEADER]
        window = max(full, m[flow + F_WINDOW] // 2)
        m[flow + F_WINDOW] = window
        m[flow + F_SLOW_UNTIL] = window
        m[flow + F_CUT_AGAIN] = m[NOW] + m[flow + F_RTT]


@compiled
def timer(m: Memory, flow: int) -> None:
    f = halves(m, flow)
    if is_stream(m, flow):
        stream_timer(m, flow)
        return
    now = m[NOW]
    f[F_ARMED] = 0
    if m[flow + F_IN_FLIGHT] == 0:
        return
    if now >= m[flow + F_DEADLINE]:
        m[TIMEOUTS] += 1
        m[flow + F_STOOD] += m[flow + F_TIMEOUT]
        m[flow + F_TIMEOUT] = backed_off(m[flow + F_TIMEOUT])
        m[flow + F_DEADLINE] = now + m[flow + F_TIMEOUT]
        send_probe(m, flow)
    arm(m, flow, m[flow + F_DEADLINE] - now)


@compiled
def send_probe(m: Memory, flow: int) -> None:
    f = halves(m, flow)
    newest = newest_in_flight(m, flow)
    message, chunk = newest // BY_MESSAGE, newest % BY_MESSAGE
    f[F_PROBE] = f[F_TRANSMISSIONS]
    packet = packet_of(m, flow, message, chunk)
    enter_network(m, flow, message, chunk, f[F_PROBE])
    halves(m, packet)[P_ASKS] = ONE_ACK
    m[RETRANSMISSIONS] += 1
    send_control(m, f[F_SRC], packet)


# Messages


@compiled
def share_of(m: Memory, message: int, column: int, chunk: int) -> int:
    total, chunks = halves(m, message)[column], halves(m, message)[M_CHUNKS]
    return total * (chunk + 1) // chunks - total * chunk // chunks


@compiled
def wire_bytes(m: Memory, message: int, chunk: int) -> int:
    carried = min(m[CHUNK], m[message + M_BYTES] - chunk * m[CHUNK])
    return carried + (share_of(m, message, M_PACKETS, chunk) if m[TRAINS] else 1) * m[HEADER]


@compiled
def start_message(m: Memory, message: int, deadline: int) -> bool:
    """Begin a message anew; return whether it is delivered at once because it stays on its host."""
    s = halves(m, message)
    now = m[NOW]
    iteration = s[M_FIRED]
    s[M_FIRED] = iteration + 1
    times = s[M_TIMES] + iteration * TIMES_COLUMNS
    m[times + T_READY] = now
    if m[message + M_SLACK] != NEVER:
        deadline = now + m[message + M_SLACK]
    flow, chunks, node = s[M_FLOW], s[M_CHUNKS], s[M_NODE]
    f = halves(m, flow)
    if is_stream(m, flow):
        start_stream(m, flow, message, iteration, deadline)
        return False
    if f[F_PATH] == f[F_PATH_END] or chunks == 0:
        m[times + T_SENT] = now
        if m[node + N_WORK] == 0:
            m[times + T_DELIVERED] = now
            return True
        s[M_ITERATION], m[message + M_DEADLINE] = iteration, deadline
        append_work(m, halves(m, node)[N_LANE], node)
        return False
    for chunk in range(s[M_UNACKNOWLEDGED], s[M_NEXT]):
        if halves(m, m[CHUNKS])[chunk_at(m, message, chunk)] & STATE == IN_FLIGHT:
            left_network(m, message, chunk)
    for chunk in range(chunks):
        halves(m, m[CHUNKS])[chunk_at(m, message, chunk)] = UNSENT
    s[M_ITERATION] = iteration
    m[message + M_DEADLINE] = deadline
    m[message + M_KEY] = host_key(m, message)
    for column in range(M_RECEIVED, M_LOST_FROM + 1):
        s[column] = 0
    if m[message + M_OUT] == 0:
        copied(m, message)
        return False
    s[M_NEXT] = chunks
    if f[F_CURRENT] == message:
        f[F_CURRENT] = NONE
    refresh(m, flow)
    add_work(m, m[f[F_SRC] + L_OUT_LANE], m[message + M_KEY], node)
    return False


@compiled
def copied(m: Memory, message: int) -> None:
    s = halves(m, message)
    flow = s[M_FLOW]
    f = halves(m, flow)
    if is_stream(m, flow):
        copied_sum(m, flow, message)
        return
    s[M_NEXT] = 0
    push_pending(m, flow, m[message + M_KEY], message)
    refresh(m, flow)
    kick(m, f[F_SRC])


@compiled
def chunk_at(m: Memory, message: int, chunk: int) -> int:
    """Return where a chunk is, by half words."""
    return halves(m, message)[M_FIRST_CHUNK] + chunk


@compiled
def send_chunk(m: Memory, flow: int, message: int) -> int:
    s = halves(m, message)
    f = halves(m, flow)
    now = m[NOW]
    iteration = s[M_ITERATION]
    again = s[M_LOST] > 0
    if again:
        chunk = s[M_LOST_FROM]
        while halves(m, m[CHUNKS])[chunk_at(m, message, chunk)] & STATE != LOST:
            chunk += 1
        s[M_LOST] -= 1
        s[M_LOST_FROM] = chunk + 1
        m[RETRANSMISSIONS] += 1
    else:
        chunk = s[M_NEXT]
        s[M_NEXT] = chunk + 1
        if chunk == 0:
            m[s[M_TIMES] + iteration * TIMES_COLUMNS + T_SENT] = now
    packet = packet_of(m, flow, message, chunk)
    p = halves(m, packet)
    if m[ACKS]:
        size = p[P_SIZE]
        enter_network(m, flow, message, chunk, p[P_TRANSMISSION])
        m[flow + F_DEADLINE] = now + m[flow + F_TIMEOUT]
        if not f[F_ARMED]:
            arm(m, flow, m[flow + F_TIMEOUT])
        m[flow + F_IN_FLIGHT] += size
        m[f[F_SRC] + L_IN_FLIGHT] += size
        p[P_ASKS] = max(asks_for_acks(m, flow, message, chunk), again) * ONE_ACK
    return packet


@compiled
def packet_of(m: Memory, flow: int, message: int, chunk: int) -> int:
    """Return a chunk as the flow's next transmission."""
    s = halves(m, message)
    f = halves(m, flow)
    size, rank = wire_bytes(m, message, chunk), s[M_SWITCH_RANK]
    packet = new_packet(m, DATA, flow, f[F_PATH], f[F_PATH_END], size, rank, slack_now(m, message))
    p = halves(m, packet)
    p[P_MESSAGE] = message
    p[P_ITERATION] = s[M_ITERATION]
    p[P_CHUNK] = chunk
    p[P_TRANSMISSION] = f[F_TRANSMISSIONS]
    f[F_TRANSMISSIONS] += 1
    m[packet + P_SENT] = m[NOW]
    return packet


@compiled
def asks_for_acks(m: Memory, flow: int, message: int, chunk: int) -> int:
    f = halves(m, flow)
    full = m[PAYLOAD] + m[HEADER]
    allowed = m[flow + F_WINDOW]
    if m[CREDIT]:
        allowed = min(allowed, m[CREDIT])
    every = min(m[ACK_EVERY], allowed // (2 * full))
    packets = share_of(m, message, M_PACKETS, chunk) if m[TRAINS] else 1
    f[F_UNASKED] += packets
    if f[F_UNASKED] < every:
        return 0
    f[F_UNASKED] = 0
    if packets <= 1 or every <= 1:
        return max(1, packets)
    return max(1, (packets + share_of(m, message, M_SLICES, chunk) * (every - 1)) // every)


@compiled
def entry_at(row: int, transmission: int) -> int:
    return row + C_FIRST + transmission % C_ENTRIES


@compiled
def enter_network(m: Memory, flow: int, message: int, chunk: int, transmission: int) -> None:
    """Note a chunk as in flight, in what is now the newest transmission of the flow."""
    f = halves(m, flow)
    at, c = chunk_at(m, message, chunk), halves(m, m[CHUNKS])
    prefetch(m, m[CHUNKS] + (at >> 1) + LINE)
    c[at] = (c[at] & HAS) | IN_FLIGHT | transmission % TOLD_APART * BY_TRANSMISSION
    if transmission % C_ENTRIES == 0:
        row, newest = new_row(m), f[F_NEWEST]
        r = halves(m, row)
        r[C_NEXT], r[C_BEFORE] = NONE, newest
        if newest == NONE:
            f[F_OLDEST] = row
        else:
            halves(m, newest)[C_NEXT] = row
        f[F_NEWEST] = row
    m[entry_at(f[F_NEWEST], transmission)] = message * BY_MESSAGE + chunk


@compiled
def settle_oldest(m: Memory, flow: int) -> None:
    """Forget the oldest transmission of a flow."""
    f = halves(m, flow)
    f[F_UNSETTLED] += 1
    if f[F_UNSETTLED] % C_ENTRIES == 0:
        row = f[F_OLDEST]
        r = halves(m, row)
        f[F_OLDEST] = r[C_NEXT]
        if r[C_NEXT] == NONE:
            f[F_NEWEST] = NONE
        free_row(m, row)


@compiled
def is_in_flight(m: Memory, entry: int, transmission: int) -> bool:
    half = halves(m, m[CHUNKS])[chunk_at(m, entry // BY_MESSAGE, entry % BY_MESSAGE)]
    return half & STATE == IN_FLIGHT and half // BY_TRANSMISSION == transmission % TOLD_APART


@compiled
def newest_in_flight(m: Memory, flow: int) -> int:
    """Return the entry of the last transmission that is in flight."""
    f = halves(m, flow)
    row, transmission = f[F_NEWEST], f[F_TRANSMISSIONS] - 1
    while not is_in_flight(m, m[entry_at(row, transmission)], transmission):
        if transmission % C_ENTRIES == 0:
            row = halves(m, row)[C_BEFORE]
        transmission -= 1
    return m[entry_at(row, transmission)]


@compiled
def left_network(m: Memory, message: int, chunk: int) -> None:
    """Account for a chunk that is acknowledged or given up."""
    at, flow = chunk_at(m, message, chunk), halves(m, message)[M_FLOW]
    halves(m, m[CHUNKS])[at] &= STATE | HAS
    size = wire_bytes(m, message, chunk)
    m[flow + F_IN_FLIGHT] -= size
    m[halves(m, flow)[F_SRC] + L_IN_FLIGHT] -= size


@compiled
def acknowledge_chunk(m: Memory, message: int, chunk: int) -> int:
    """Note a chunk as acknowledged; return its bytes if that is news."""
    at, c = chunk_at(m, message, chunk), halves(m, m[CHUNKS])
    state = c[at] & STATE
    if state == ACKED:
        return 0
    if state == IN_FLIGHT:
        left_network(m, message, chunk)
    elif state == LOST:
        halves(m, message)[M_LOST] -= 1
    c[at] |= ACKED
    return wire_bytes(m, message, chunk)


@compiled
def acknowledge(m: Memory, ack: int) -> None:
    a = halves(m, ack)
    message = a[P_MESSAGE]
    s = halves(m, message)
    if a[P_ITERATION] != s[M_ITERATION]:
        return
    flow = a[P_FLOW]
    f = halves(m, flow)
    prefetch(m, entry_at(f[F_OLDEST], f[F_UNSETTLED]))
    acked_to, is_marked = a[P_ACKED_TO] // ONE_ACK, a[P_ACKED_TO] & MARKED
    newly = 0
    for below in range(s[M_UNACKNOWLEDGED], acked_to):
        newly += acknowledge_chunk(m, message, below)
    newly += acknowledge_chunk(m, message, a[P_CHUNK])
    if acked_to > s[M_UNACKNOWLEDGED]:
        s[M_UNACKNOWLEDGED] = acked_to
    measured_round_trip(m, flow, m[NOW] - m[ack + P_SENT])
    if newly:
        acknowledged(m, flow, newly, is_marked)
    if f[F_PROBE] != NONE and m[flow + F_STOOD]:
        if a[P_TRANSMISSION] >= f[F_PROBE]:
            m[s[M_TIMES] + s[M_ITERATION] * TIMES_COLUMNS + T_TIMED_OUT] += m[flow + F_STOOD]
        m[flow + F_STOOD] = 0
    if lose_until(m, flow, lost_up_to(a[P_TRANSMISSION], f[F_PROBE], m[REORDERING])):
        lost(m, flow)
    if f[F_CURRENT] == message and not has_unsent(m, message):
        f[F_CURRENT] = NONE
    refresh(m, flow)
    kick(m, f[F_SRC])


@compiled
def lose_until(m: Memory, flow: int, last_transmission: int) -> bool:
    f = halves(m, flow)
    found = False
    for transmission in range(f[F_UNSETTLED], last_transmission + 1):
        entry = m[entry_at(f[F_OLDEST], transmission)]
        if is_in_flight(m, entry, transmission):
            lose(m, entry // BY_MESSAGE, entry % BY_MESSAGE)
            found = True
        settle_oldest(m, flow)
    return found


@compiled
def lose(m: Memory, message: int, chunk: int) -> None:
    s = halves(m, message)
    if not has_unsent(m, message):
        push_pending(m, s[M_FLOW], m[message + M_KEY], message)
    left_network(m, message, chunk)
    at, c = chunk_at(m, message, chunk), halves(m, m[CHUNKS])
    c[at] = (c[at] & HAS) | LOST
    if s[M_LOST] == 0 or chunk < s[M_LOST_FROM]:
        s[M_LOST_FROM] = chunk
    s[M_LOST] += 1


@compiled
def receive(m: Memory, packet: int) -> bool:
    """Take a chunk; return whether it completes its message."""
    p = halves(m, packet)
    message = p[P_MESSAGE]
    s = halves(m, message)
    iteration = p[P_ITERATION]
    if iteration != s[M_ITERATION]:
        return False
    chunk, chunks = p[P_CHUNK], s[M_CHUNKS]
    at, c = chunk_at(m, message, chunk), halves(m, m[CHUNKS])
    duplicate = c[at] & HAS != 0
    complete = False
    if not duplicate:
        c[at] |= HAS
        s[M_RECEIVED] += 1
        expected = s[M_EXPECTED]
        while expected < chunks and c[chunk_at(m, message, expected)] & HAS:
            expected += 1
        s[M_EXPECTED] = expected
        complete = s[M_RECEIVED] == chunks
    if m[ACKS] and (p[P_ASKS] or duplicate or complete or chunk >= s[M_EXPECTED]):
        send_ack(m, packet, message)
    return complete


@compiled
def send_ack(m: Memory, packet: int, message: int) -> None:
    p = halves(m, packet)
    flow = p[P_FLOW]
    f = halves(m, flow)
    size = max(1, p[P_ASKS] // ONE_ACK) * m[ACK_SIZE]
    ack = new_packet(m, ACK, flow, f[F_BACK], f[F_BACK_END], size, 0, slack_of(m, packet))
    a = halves(m, ack)
    a[P_MESSAGE] = message
    a[P_ITERATION] = p[P_ITERATION]
    a[P_CHUNK] = p[P_CHUNK]
    a[P_TRANSMISSION] = p[P_TRANSMISSION]
    m[ack + P_SENT] = m[packet + P_SENT]
    a[P_ACKED_TO] = halves(m, message)[M_EXPECTED] * ONE_ACK + (p[P_ASKS] & MARKED)
    if m[TRAINS]:
        send_beside(m, flow, ack)
    else:
        send_control(m, f[F_DST], ack)


@compiled
def send_beside(m: Memory, flow: int, ack: int) -> None:
    f = halves(m, flow)
    now, size = m[NOW], halves(m, ack)[P_SIZE]
    arrives = now
    for hop in range(f[F_BACK], f[F_BACK_END]):
        port = m[hop]
        occupied = serialisation(size, m[port + L_RATE])
        m[port + L_BYTES] += size
        m[port + L_BUSY] += occupied
        m[port + L_BUSY_UNTIL] = max(now, m[port + L_BUSY_UNTIL]) + occupied
        arrives += m[port + L_DELAY] + (0 if m[port + L_IS_PACED] else occupied)
        if not m[port + L_IS_HOST] and m[DISCIPLINE] != SP_PIFO and m[DISCIPLINE] != PIFO:
            waiting = m[m[port + L_QUEUES] + Q_BYTES] * m[QUEUE_SHARE] // 1_000_000
            arrives += serialisation(waiting, m[port + L_RATE])
    if f[F_ACK] == NONE:
        f[F_ACK] = ack
        schedule(m, arrives, ACKNOWLEDGE * PHASE + flow)
    else:
        last = f[F_LAST_ACK]
        arrives = max(arrives, m[last + P_ARRIVES])
        halves(m, last)[P_NEXT] = ack
    m[ack + P_ARRIVES] = arrives
    f[F_LAST_ACK] = ack


@compiled
def acknowledge_beside(m: Memory, flow: int) -> None:
    """Take the first of a flow's acknowledgements that travel beside trains."""
    f = halves(m, flow)
    ack = f[F_ACK]
    following = halves(m, ack)[P_NEXT]
    f[F_ACK] = following
    if following != NONE:
        schedule(m, m[following + P_ARRIVES], ACKNOWLEDGE * PHASE + flow)
    acknowledge(m, ack)
    free_row(m, ack)
