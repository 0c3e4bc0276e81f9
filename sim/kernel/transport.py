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
from tensorexpress.sim.kernel.memory import Memory, halves, octets, prefetch
from tensorexpress.sim.kernel.queues import PIFO, SP_PIFO, host_key, slack_now
from tensorexpress.sim.kernel.ready import (
    find_next,
    first_ready,
    has_unsent,
    is_stream,
    pop_pending,
    push_pending,
    refresh,
)
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
    flow = first_ready(m, port)
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
        find_next(m, flow)
    refresh(m, flow)
    if m[port + L_READY_COUNT]:
        expect_flow(m, first_ready(m, port))
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
    run = newest_in_flight(m, flow)
    r = halves(m, run)
    # From now on the probe is the transmission of this chunk, and nothing after it is in flight.
    r[C_END] -= 1
    message, chunk = r[C_MESSAGE], r[C_CHUNK] + r[C_END] - r[C_FIRST]
    f[F_PROBE] = f[F_TRANSMISSIONS]
    packet = packet_of(m, flow, message, chunk)
    start_run(m, flow, message, chunk, f[F_PROBE])
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
    if m[ACKS]:
        for chunk in range(s[M_UNACKNOWLEDGED], s[M_NEXT]):
            if state_of(m, message, chunk) == IN_FLIGHT:
                left_network(m, message, chunk)
    s[M_ITERATION] = iteration
    m[message + M_DEADLINE] = deadline
    m[message + M_KEY] = host_key(m, message)
    for column in range(M_RECEIVED, M_RUN + 1):
        s[column] = 0
    if m[message + M_OUT] == 0:
        copied(m, message)
        return False
    s[M_NEXT] = chunks
    if f[F_CURRENT] == message:
        f[F_CURRENT] = NONE
    find_next(m, flow)
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
    find_next(m, flow)
    refresh(m, flow)
    kick(m, f[F_SRC])


# Chunks


@compiled
def chunks_of(m: Memory, message: int) -> Memory:
    """Return the chunks of a message, a byte each, which are told only if one was out of order."""
    return octets(m, halves(m, message)[M_TOLD])


@compiled
def state_of(m: Memory, message: int, chunk: int) -> int:
    s = halves(m, message)
    if s[M_TOLD]:
        return chunks_of(m, message)[chunk] & STATE
    if chunk < s[M_UNACKNOWLEDGED]:
        return ACKED
    return IN_FLIGHT if chunk < s[M_NEXT] else UNSENT


@compiled
def set_state(m: Memory, message: int, chunk: int, state: int) -> None:
    c = chunks_of(m, message)
    c[chunk] = c[chunk] & HAS | state


@compiled
def tell(m: Memory, message: int) -> None:
    """Write down for every chunk of a message what its row has said so far, because one is out of order."""
    s = halves(m, message)
    if s[M_TOLD]:
        return
    c = octets(m, s[M_STATES])
    for chunk in range(s[M_CHUNKS]):
        c[chunk] = state_of(m, message, chunk) | (HAS if chunk < s[M_EXPECTED] else 0)
    s[M_TOLD] = s[M_STATES]


@compiled
def send_chunk(m: Memory, flow: int, message: int) -> int:
    s = halves(m, message)
    f = halves(m, flow)
    now = m[NOW]
    iteration = s[M_ITERATION]
    again = s[M_LOST] > 0
    if again:
        chunk = s[M_LOST_FROM]
        while state_of(m, message, chunk) != LOST:
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
        size, transmission = p[P_SIZE], p[P_TRANSMISSION]
        if s[M_TOLD]:
            set_state(m, message, chunk, IN_FLIGHT)
        # Most chunks follow the one before them, and go on with its run.
        if again or s[M_RUN] != f[F_NEWEST]:
            start_run(m, flow, message, chunk, transmission)
        if not again:
            s[M_RUN] = f[F_NEWEST]
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
def start_run(m: Memory, flow: int, message: int, chunk: int, transmission: int) -> None:
    """Begin a run with what is now the newest transmission of the flow."""
    f = halves(m, flow)
    run, newest = new_row(m), f[F_NEWEST]
    r = halves(m, run)
    r[C_MESSAGE], r[C_ITERATION], r[C_CHUNK] = message, halves(m, message)[M_ITERATION], chunk
    r[C_FIRST], r[C_END] = transmission, GOES_ON
    r[C_NEXT], r[C_BEFORE] = NONE, newest
    if newest == NONE:
        f[F_OLDEST] = run
    else:
        n = halves(m, newest)
        n[C_NEXT] = run
        if n[C_END] == GOES_ON:
            n[C_END] = transmission
    f[F_NEWEST] = run


@compiled
def forget_oldest(m: Memory, flow: int) -> None:
    """Forget the oldest run of a flow."""
    f = halves(m, flow)
    run = f[F_OLDEST]
    following, s = halves(m, run)[C_NEXT], halves(m, halves(m, run)[C_MESSAGE])
    if s[M_RUN] == run:
        s[M_RUN] = 0
    f[F_OLDEST] = following
    if following == NONE:
        f[F_NEWEST] = NONE
    free_row(m, run)


@compiled
def is_in_flight(m: Memory, run: int, transmission: int) -> bool:
    r = halves(m, run)
    message, chunk = r[C_MESSAGE], r[C_CHUNK] + transmission - r[C_FIRST]
    return halves(m, message)[M_ITERATION] == r[C_ITERATION] and state_of(m, message, chunk) == IN_FLIGHT


@compiled
def end_of(m: Memory, flow: int, run: int) -> int:
    end = halves(m, run)[C_END]
    return halves(m, flow)[F_TRANSMISSIONS] if end == GOES_ON else end


@compiled
def newest_in_flight(m: Memory, flow: int) -> int:
    """Return the last run with something in flight, which is its last transmission: all after that is forgotten."""
    run = halves(m, flow)[F_NEWEST]
    r = halves(m, run)
    r[C_END] = end_of(m, flow, run)
    while r[C_FIRST] == r[C_END] or not is_in_flight(m, run, r[C_END] - 1):
        if r[C_FIRST] < r[C_END]:
            r[C_END] -= 1
        else:
            run = r[C_BEFORE]
            r = halves(m, run)
    return run


@compiled
def left_network(m: Memory, message: int, chunk: int) -> None:
    """Account for a chunk that is acknowledged or given up."""
    flow = halves(m, message)[M_FLOW]
    size = wire_bytes(m, message, chunk)
    m[flow + F_IN_FLIGHT] -= size
    m[halves(m, flow)[F_SRC] + L_IN_FLIGHT] -= size


@compiled
def acknowledge_chunk(m: Memory, message: int, chunk: int) -> int:
    """Note a chunk as acknowledged; return its bytes if that is news."""
    s = halves(m, message)
    state = state_of(m, message, chunk)
    if state == ACKED:
        return 0
    if state == IN_FLIGHT:
        left_network(m, message, chunk)
    elif state == LOST:
        s[M_LOST] -= 1
    if s[M_TOLD]:
        set_state(m, message, chunk, ACKED)
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
    acked_to, is_marked = a[P_ACKED_TO] // ONE_ACK, a[P_ACKED_TO] & MARKED
    if a[P_CHUNK] >= acked_to:
        tell(m, message)
    newly = 0
    for below in range(s[M_UNACKNOWLEDGED], acked_to):
        newly += acknowledge_chunk(m, message, below)
    if acked_to > s[M_UNACKNOWLEDGED]:
        s[M_UNACKNOWLEDGED] = acked_to
    newly += acknowledge_chunk(m, message, a[P_CHUNK])
    measured_round_trip(m, flow, m[NOW] - m[ack + P_SENT])
    if newly:
        acknowledged(m, flow, newly, is_marked)
    if f[F_PROBE] != NONE and m[flow + F_STOOD]:
        if a[P_TRANSMISSION] >= f[F_PROBE]:
            m[s[M_TIMES] + s[M_ITERATION] * TIMES_COLUMNS + T_TIMED_OUT] += m[flow + F_STOOD]
        m[flow + F_STOOD] = 0
    found = False
    # If all of a message was sent in order, in the oldest run, nothing was sent before what is acknowledged now.
    if s[M_TOLD] or s[M_RUN] != f[F_OLDEST]:
        found = lose_until(m, flow, lost_up_to(a[P_TRANSMISSION], f[F_PROBE], m[REORDERING]))
    if found:
        lost(m, flow)
    if f[F_CURRENT] == message and not has_unsent(m, message):
        f[F_CURRENT] = NONE
    if found or s[M_TOLD]:
        # Other acknowledgements say nothing about what is to be sent.
        find_next(m, flow)
    refresh(m, flow)
    kick(m, f[F_SRC])


@compiled
def lose_until(m: Memory, flow: int, last_transmission: int) -> bool:
    f = halves(m, flow)
    found = False
    while f[F_OLDEST] != NONE:
        run = f[F_OLDEST]
        r, end = halves(m, run), end_of(m, flow, run)
        while r[C_FIRST] < end and r[C_FIRST] <= last_transmission:
            if is_in_flight(m, run, r[C_FIRST]):
                lose(m, r[C_MESSAGE], r[C_CHUNK])
                found = True
            r[C_FIRST] += 1
            r[C_CHUNK] += 1
        if r[C_FIRST] < end:
            break
        forget_oldest(m, flow)
    return found


@compiled
def lose(m: Memory, message: int, chunk: int) -> None:
    s = halves(m, message)
    if not has_unsent(m, message):
        push_pending(m, s[M_FLOW], m[message + M_KEY], message)
    left_network(m, message, chunk)
    tell(m, message)
    set_state(m, message, chunk, LOST)
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
    chunk = p[P_CHUNK]
    if chunk > s[M_EXPECTED]:
        tell(m, message)
    duplicate = chunk < s[M_EXPECTED] or (s[M_TOLD] and chunks_of(m, message)[chunk] & HAS != 0)
    complete = False
    if not duplicate:
        if s[M_TOLD]:
            take_chunk(m, message, chunk)
        else:
            s[M_EXPECTED] += 1
        s[M_RECEIVED] += 1
        complete = s[M_RECEIVED] == s[M_CHUNKS]
    if m[ACKS] and (p[P_ASKS] or duplicate or complete or chunk >= s[M_EXPECTED]):
        send_ack(m, packet, message)
    return complete


@compiled
def take_chunk(m: Memory, message: int, chunk: int) -> None:
    """Note that the receiver has a chunk of a message that is told."""
    s, c = halves(m, message), chunks_of(m, message)
    c[chunk] |= HAS
    while s[M_EXPECTED] < s[M_CHUNKS] and c[s[M_EXPECTED]] & HAS:
        s[M_EXPECTED] += 1


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
