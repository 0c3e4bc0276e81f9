"""Sums in switches: what workers send to be summed, and the slots in which switches add it up; see `adding.py`."""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.recovery import SUM_AGE_PS
from tensorexpress.sim.columns import *
from tensorexpress.sim.flat_plan import ANSWER, PHASE
from tensorexpress.sim.kernel.events import free_row, kick, new_packet, schedule, send_control, slack_of
from tensorexpress.sim.kernel.lanes import add_work
from tensorexpress.sim.kernel.memory import Memory, halves
from tensorexpress.sim.kernel.queues import enqueue, host_key, slack_now
from tensorexpress.sim.kernel.ready import place_ready, pop_pending, push_pending
from tensorexpress.sim.kernel.timers import arm, backed_off, measured_round_trip
from tensorexpress.sim.record import ADDEND, TOTAL

# Adders


@compiled
def add(m: Memory, packet: int) -> None:
    if m[CELLS] == 0:
        add_in_pool(m, packet)
    elif m[halves(m, packet)[P_ADDER] + A_SERVER] != NONE:
        add_part(m, packet)
    else:
        add_in_cell(m, packet)


@compiled
def add_in_pool(m: Memory, packet: int) -> None:
    p = halves(m, packet)
    adder, bit = p[P_ADDER], 1 << (p[P_ORIGIN] >> 1)
    at = set_at(m, adder, p[P_NUMBER])
    late = is_late(m, packet, at)
    is_new = not late and m[at + V_SEEN] & bit == 0
    if m[adder + A_SERVER] != NONE:
        work_at_server(m, adder, is_new, is_new, is_new)
    elif m[adder + A_ADD]:
        m[m[adder + A_BUSY]] = max(m[NOW], m[m[adder + A_BUSY]]) + m[adder + A_ADD]
    if late:
        return
    m[at + V_SEEN] |= bit
    if m[at + V_SEEN] != m[adder + A_EVERYBODY]:
        return
    if m[adder + A_UP] != NONE:
        leaves = leaves_at(m, adder)
        if leaves > m[NOW]:
            send_later(m, adder, packet, leaves, NONE)
        else:
            pass_up(m, adder, packet, 0, 0)
    elif is_new:
        answer(m, adder, packet, at, m[adder + A_CHILDREN], m[adder + A_CHILDREN_END])
    elif m[NOW] >= m[at + V_ANSWERED] + m[adder + A_ROUND_TRIP]:
        child = m[adder + A_CHILDREN] + (p[P_ORIGIN] >> 1) * CHILD_COLUMNS
        answer(m, adder, packet, at, child, child + CHILD_COLUMNS)


@compiled
def set_at(m: Memory, adder: int, number: int) -> int:
    slots = m[adder + A_SLOTS]
    turn = number // slots
    return m[adder + A_SETS] + (2 * (number - turn * slots) + turn % 2) * SET_COLUMNS


@compiled
def is_late(m: Memory, packet: int, at: int) -> bool:
    number = halves(m, packet)[P_NUMBER]
    if number > m[at + V_NUMBER]:
        m[at + V_NUMBER], m[at + V_SEEN] = number, 0
    return number < m[at + V_NUMBER]


@compiled
def work_at_server(m: Memory, adder: int, is_added: bool, is_complete: bool, is_whole: bool) -> None:
    m[SERVER_PACKETS] += 1
    m[SERVER_SUMS] += is_complete
    m[WHOLE_SUMS] += is_whole
    server = m[adder + A_SERVER]
    work = is_added * m[adder + A_ADD] + is_complete * m[adder + A_UPDATE]
    m[server + L_SERVER_BUSY] = max(m[NOW], m[server + L_SERVER_BUSY]) + work


@compiled
def leaves_at(m: Memory, adder: int) -> int:
    """Return when a sum leaves: when the server, or the switch, is through with all that came before."""
    server = m[adder + A_SERVER]
    if server != NONE:
        return max(m[NOW], m[server + L_SERVER_BUSY]) + m[adder + A_DELAY]
    return m[m[adder + A_BUSY]] if m[adder + A_ADD] else m[NOW]


@compiled
def answer(m: Memory, adder: int, packet: int, at: int, first_child: int, end: int) -> None:
    leaves = leaves_at(m, adder)
    m[at + V_ANSWERED] = leaves
    if leaves > m[NOW]:
        send_later(m, adder, packet, leaves, first_child if end - first_child == CHILD_COLUMNS else NONE)
    else:
        for child in range(first_child, end, CHILD_COLUMNS):
            pass_down(m, adder, packet, child)


@compiled
def send_later(m: Memory, adder: int, packet: int, leaves: int, child: int) -> None:
    """Keep a sum, for one child or all; they leave an adder in order, and only the first has an event."""
    copy = copied_packet(m, packet, TOTAL, m[adder + A_STREAM], adder + A_UP)
    c = halves(m, copy)
    m[copy + P_ARRIVES], c[P_ORIGIN], c[P_NEXT] = leaves, child, NONE
    if m[adder + A_ANSWER] == NONE:
        m[adder + A_ANSWER] = copy
        schedule(m, leaves, ANSWER * PHASE + adder)
    else:
        halves(m, m[adder + A_LAST_ANSWER])[P_NEXT] = copy
    m[adder + A_LAST_ANSWER] = copy


@compiled
def answered(m: Memory, adder: int) -> None:
    """Let the first sum that an adder keeps go: up, to one child, or to all."""
    kept = m[adder + A_ANSWER]
    k = halves(m, kept)
    following = k[P_NEXT]
    m[adder + A_ANSWER] = following
    if following != NONE:
        schedule(m, m[following + P_ARRIVES], ANSWER * PHASE + adder)
    if m[adder + A_UP] != NONE:
        pass_up(m, adder, kept, 0, 0)
    elif k[P_ORIGIN] != NONE:
        pass_down(m, adder, kept, k[P_ORIGIN])
    else:
        for child in range(m[adder + A_CHILDREN], m[adder + A_CHILDREN_END], CHILD_COLUMNS):
            pass_down(m, adder, kept, child)
    free_row(m, kept)


@compiled
def hand_down(m: Memory, adder: int, packet: int) -> None:
    if m[CELLS] and m[adder + A_SERVER] == NONE:
        cell = cell_at(m, adder, halves(m, packet)[P_NUMBER])
        if owns(m, adder, cell, packet):
            m[cell + K_ADDER] = NOBODY
    for child in range(m[adder + A_CHILDREN], m[adder + A_CHILDREN_END], CHILD_COLUMNS):
        pass_down(m, adder, packet, child)


@compiled
def pass_up(m: Memory, adder: int, packet: int, workers: int, again: int) -> None:
    copy = copied_packet(m, packet, ADDEND, m[adder + A_STREAM], adder + A_UP)
    c = halves(m, copy)
    c[P_ADDER], c[P_ORIGIN] = m[adder + A_PARENT], 2 * m[adder + A_CHILD] + again
    m[copy + P_WORKERS] = workers
    enqueue(m, m[adder + A_UP], copy)


@compiled
def pass_down(m: Memory, adder: int, packet: int, child: int) -> None:
    stream = m[child + D_STREAM]
    copy = copied_packet(m, packet, TOTAL, m[adder + A_STREAM] if stream == NONE else stream, child + D_LINK)
    halves(m, copy)[P_ADDER] = m[child + D_BELOW]
    port = m[child + D_LINK]
    if m[port + L_IS_HOST]:
        send_control(m, port, copy)
    else:
        enqueue(m, port, copy)


@compiled
def copied_packet(m: Memory, packet: int, kind: int, stream: int, hop: int) -> int:
    """Return what a switch makes of a packet, for the link whose address is at `hop`."""
    p = halves(m, packet)
    copy = new_packet(m, kind, stream, hop, hop + 1, p[P_SIZE], p[P_RANK], slack_of(m, packet))
    c = halves(m, copy)
    c[P_CHUNK] = p[P_CHUNK]
    c[P_NUMBER] = p[P_NUMBER]
    return copy


# Cells, where slots are found by hash, and servers that put parts together


@compiled
def cell_at(m: Memory, adder: int, number: int) -> int:
    checksum, table = m[adder + A_HASH] ^ 0xFFFFFFFF, m[CHECKSUMS]
    for shift in (24, 16, 8, 0):
        checksum = m[table + ((checksum ^ (number >> shift)) & 255)] ^ (checksum >> 8)
    return m[adder + A_CELLS] + (checksum ^ 0xFFFFFFFF) % m[CELLS] * CELL_COLUMNS


@compiled
def owns(m: Memory, adder: int, cell: int, packet: int) -> bool:
    return m[cell + K_ADDER] == adder and m[cell + K_NUMBER] == halves(m, packet)[P_NUMBER]


@compiled
def add_in_cell(m: Memory, packet: int) -> None:
    p = halves(m, packet)
    adder, workers, again = p[P_ADDER], m[packet + P_WORKERS], p[P_ORIGIN] & 1
    cell = cell_at(m, adder, p[P_NUMBER])
    if owns(m, adder, cell, packet):
        add_to_cell(m, adder, cell, packet)
    elif again or workers == m[adder + A_EVERYBODY]:
        pass_up(m, adder, packet, workers, again)
    elif m[cell + K_ADDER] == NOBODY:
        take_cell(m, adder, cell, packet)
    elif may_evict(m, adder, cell):
        m[EVICTIONS] += 1
        if m[cell + K_SEEN] != m[m[cell + K_ADDER] + A_EVERYBODY]:
            pass_up_cell(m, cell)
        take_cell(m, adder, cell, packet)
    else:
        m[COLLISIONS] += 1
        pass_up(m, adder, packet, workers, 0)


@compiled
def may_evict(m: Memory, adder: int, cell: int) -> bool:
    is_more_urgent = m[PREEMPTS] and m[adder + A_QUEUE] < m[m[cell + K_ADDER] + A_QUEUE]
    return bool(is_more_urgent or m[NOW] - m[cell + K_TAKEN] > SUM_AGE_PS)


@compiled
def take_cell(m: Memory, adder: int, cell: int, packet: int) -> None:
    p = halves(m, packet)
    m[cell + K_ADDER], m[cell + K_NUMBER], m[cell + K_SEEN] = adder, p[P_NUMBER], m[packet + P_WORKERS]
    m[cell + K_TAKEN], m[cell + K_RANK], m[cell + K_SLACK] = m[NOW], p[P_RANK], slack_of(m, packet)


@compiled
def add_to_cell(m: Memory, adder: int, cell: int, packet: int) -> None:
    workers, again, seen = m[packet + P_WORKERS], halves(m, packet)[P_ORIGIN] & 1, m[cell + K_SEEN]
    is_apart, is_known = workers & seen == 0, workers & seen == workers
    if again and (is_apart or is_known):
        pass_up(m, adder, packet, seen | workers, 1)
        m[cell + K_ADDER] = NOBODY
    elif is_apart:
        m[cell + K_SEEN] = seen | workers
        if seen | workers == m[adder + A_EVERYBODY]:
            pass_up(m, adder, packet, seen | workers, 0)
    elif again or not is_known:
        pass_up(m, adder, packet, workers, again)


@compiled
def pass_up_cell(m: Memory, cell: int) -> None:
    """Send what a cell holds up as it is."""
    adder, number = m[cell + K_ADDER], m[cell + K_NUMBER]
    flow = m[adder + A_STREAM]
    packets, size = m[halves(m, flow)[F_STREAM] + R_PACKETS], m[SUM_PACKET]
    copy = new_packet(m, ADDEND, flow, adder + A_UP, adder + A_UP + 1, size, m[cell + K_RANK], m[cell + K_SLACK])
    c = halves(m, copy)
    c[P_CHUNK], c[P_NUMBER] = number % packets, number
    c[P_ADDER], c[P_ORIGIN] = m[adder + A_PARENT], 2 * m[adder + A_CHILD] + 1
    m[copy + P_WORKERS] = m[cell + K_SEEN]
    enqueue(m, m[adder + A_UP], copy)


@compiled
def add_part(m: Memory, packet: int) -> None:
    p = halves(m, packet)
    adder, workers = p[P_ADDER], m[packet + P_WORKERS]
    everybody = m[adder + A_EVERYBODY]
    at = m[adder + A_SETS] + p[P_NUMBER] % (2 * m[adder + A_SLOTS]) * SET_COLUMNS
    late = is_late(m, packet, at)
    was_complete = not late and m[at + V_SEEN] == everybody
    is_apart = not late and workers & m[at + V_SEEN] == 0
    if is_apart:
        m[at + V_SEEN] |= workers
    is_complete = is_apart and m[at + V_SEEN] == everybody
    work_at_server(m, adder, is_apart, is_complete, is_complete and workers == everybody)
    asks_again = was_complete and m[NOW] >= m[at + V_ANSWERED] + m[adder + A_ROUND_TRIP]
    if is_complete or asks_again:
        answer(m, adder, packet, at, m[adder + A_CHILDREN], m[adder + A_CHILDREN_END])


# Streams


@compiled
def message_of(m: Memory, stream: int, number: int) -> int:
    """Return the message to which a packet belongs."""
    offset = number % m[stream + R_PACKETS]
    low, high = m[stream + R_MESSAGES], m[stream + R_MESSAGES_END]
    while high - low > 1:
        middle = (low + high) >> 1
        if halves(m, m[middle])[M_FIRST] <= offset:
            low = middle
        else:
            high = middle
    return m[low]


@compiled
def slot_at(m: Memory, stream: int, number: int) -> int:
    return m[stream + R_FIRST_SLOT] + number % m[stream + R_SLOTS] * SLOT_COLUMNS


@compiled
def start_stream(m: Memory, flow: int, message: int, iteration: int, deadline: int) -> None:
    s = halves(m, message)
    s[M_ITERATION], m[message + M_DEADLINE] = iteration, deadline
    m[message + M_KEY] = host_key(m, message)
    s[M_NEXT], s[M_RECEIVED] = 0, 0
    if m[message + M_OUT] == 0:
        copied_sum(m, flow, message)
    else:
        add_work(m, m[halves(m, flow)[F_SRC] + L_OUT_LANE], m[message + M_KEY], s[M_NODE])


@compiled
def copied_sum(m: Memory, flow: int, message: int) -> None:
    s = halves(m, message)
    f = halves(m, flow)
    stream = f[F_STREAM]
    s[M_COPIED] = s[M_ITERATION]
    first = s[M_ITERATION] * m[stream + R_PACKETS] + s[M_FIRST]
    for number in range(first, first + min(m[stream + R_SLOTS], s[M_CHUNKS])):
        if m[slot_at(m, stream, number) + Z_NUMBER] == number:
            push_pending(m, flow, number, message)
    refresh_stream(m, flow)
    kick(m, f[F_SRC])


@compiled
def refresh_stream(m: Memory, flow: int) -> None:
    """Enter, move or remove a stream among the flows that may send."""
    f = halves(m, flow)
    place_ready(m, flow, m[m[f[F_PENDING] + 1] + M_KEY] if f[F_PENDING_COUNT] else NEVER)


@compiled
def next_addend(m: Memory, flow: int) -> int:
    f = halves(m, flow)
    number = m[f[F_PENDING]]
    message = pop_pending(m, flow)
    s = halves(m, message)
    if s[M_NEXT] == 0:
        m[s[M_TIMES] + s[M_ITERATION] * TIMES_COLUMNS + T_SENT] = m[NOW]
    s[M_NEXT] += 1
    if not f[F_ARMED]:
        arm(m, flow, m[flow + F_TIMEOUT])
    refresh_stream(m, flow)
    return send_addend(m, flow, message, number)


@compiled
def send_addend(m: Memory, flow: int, message: int, number: int) -> int:
    """Return a packet that goes out now."""
    s = halves(m, message)
    f = halves(m, flow)
    now, stream = m[NOW], f[F_STREAM]
    at = slot_at(m, stream, number)
    f[F_TRANSMISSIONS] += 1
    if m[at + Z_UNDER_WAY]:
        leave(m, flow, at)
    else:
        m[at + Z_FIRST] = f[F_TRANSMISSIONS]
    m[at + Z_LAST], m[at + Z_NEWER] = f[F_TRANSMISSIONS], 0
    m[at + Z_SENT], m[at + Z_UNDER_WAY] = now, 1
    last = f[F_NEWEST]
    m[at + Z_EARLIER], m[at + Z_LATER] = last, NONE
    if last == NONE:
        f[F_OLDEST] = at
    else:
        m[last + Z_LATER] = at
    f[F_NEWEST] = at
    size, slack = m[SUM_PACKET], slack_now(m, message)
    packet = new_packet(m, ADDEND, flow, f[F_PATH], f[F_PATH_END], size, s[M_SWITCH_RANK], slack)
    p = halves(m, packet)
    p[P_MESSAGE] = message
    p[P_CHUNK] = number % m[stream + R_PACKETS]
    p[P_NUMBER] = number
    p[P_ADDER], p[P_ORIGIN] = m[stream + R_ADDER], 2 * m[stream + R_CHILD] + m[at + Z_AGAIN]
    m[packet + P_WORKERS] = 1 << m[stream + R_CHILD]
    return packet


@compiled
def leave(m: Memory, flow: int, at: int) -> None:
    """Take a slot out of those under way."""
    f = halves(m, flow)
    earlier, later = m[at + Z_EARLIER], m[at + Z_LATER]
    if earlier == NONE:
        f[F_OLDEST] = later
    else:
        m[earlier + Z_LATER] = later
    if later == NONE:
        f[F_NEWEST] = earlier
    else:
        m[later + Z_EARLIER] = earlier
    m[at + Z_UNDER_WAY] = 0


@compiled
def receive_total(m: Memory, packet: int) -> int:
    """Take a sum; return the message that it ends, NONE where it ends none."""
    p = halves(m, packet)
    flow, number, now = p[P_FLOW], p[P_NUMBER], m[NOW]
    f = halves(m, flow)
    stream = f[F_STREAM]
    at = slot_at(m, stream, number)
    if m[at + Z_NUMBER] != number or not m[at + Z_UNDER_WAY]:
        return NONE
    leave(m, flow, at)
    came(m, flow, m[at + Z_FIRST])
    message = message_of(m, stream, number)
    s = halves(m, message)
    if m[at + Z_AGAIN]:
        m[at + Z_AGAIN] = 0
    else:
        measured_round_trip(m, flow, now - m[at + Z_SENT])
    following = number + m[stream + R_SLOTS]
    m[at + Z_NUMBER] = following
    waits = message_of(m, stream, following)
    if halves(m, waits)[M_COPIED] == following // m[stream + R_PACKETS]:
        push_pending(m, flow, following, waits)
        refresh_stream(m, flow)
        kick(m, f[F_SRC])
    answer, iteration = s[M_ANSWER], s[M_ITERATION]
    t = halves(m, answer)
    if s[M_RECEIVED] == 0:
        times = t[M_TIMES] + iteration * TIMES_COLUMNS
        m[times + T_READY], m[times + T_SENT] = now, now
    s[M_RECEIVED] += 1
    if s[M_RECEIVED] < s[M_CHUNKS]:
        return NONE
    m[s[M_TIMES] + iteration * TIMES_COLUMNS + T_DELIVERED] = now
    t[M_ITERATION], m[answer + M_DEADLINE] = iteration, m[message + M_DEADLINE]
    return answer


@compiled
def came(m: Memory, flow: int, first: int) -> None:
    """Send again what counts as lost by the sum of a packet whose first transmission was this one; see `Gaps`."""
    at = halves(m, flow)[F_OLDEST]
    while at != NONE and m[at + Z_LAST] <= first:
        following = m[at + Z_LATER]
        m[at + Z_NEWER] += 1
        if m[at + Z_NEWER] == m[NEWER_SUMS]:
            send_again(m, flow, at)
        at = following


@compiled
def send_again(m: Memory, flow: int, at: int) -> None:
    f = halves(m, flow)
    m[RETRANSMISSIONS] += 1
    m[at + Z_AGAIN] = 1
    number = m[at + Z_NUMBER]
    message = message_of(m, f[F_STREAM], number)
    send_control(m, f[F_SRC], send_addend(m, flow, message, number))


@compiled
def stream_timer(m: Memory, flow: int) -> None:
    f = halves(m, flow)
    now = m[NOW]
    f[F_ARMED] = 0
    at = f[F_OLDEST]
    if at == NONE:
        return
    overdue = now - m[flow + F_TIMEOUT]
    if m[at + Z_SENT] <= overdue:
        m[TIMEOUTS] += 1
        m[flow + F_TIMEOUT] = backed_off(m[flow + F_TIMEOUT])
    last = f[F_NEWEST]
    while m[at + Z_SENT] <= overdue:
        following = m[at + Z_LATER]
        send_again(m, flow, at)
        if at == last:
            break
        at = following
    arm(m, flow, m[f[F_OLDEST] + Z_SENT] + m[flow + F_TIMEOUT] - now)
