"""Sums in switches: what workers send to be summed, and the slots in which switches add it up; see `adding.py`."""

from __future__ import annotations

from tensorexpress.sim.columns import *
from tensorexpress.sim.kernel.events import kick, new_packet, send_control
from tensorexpress.sim.kernel.lanes import add_work
from tensorexpress.sim.kernel.memory import Memory, compiled
from tensorexpress.sim.kernel.queues import enqueue, host_key
from tensorexpress.sim.kernel.ready import place_ready, pop_pending, push_pending
from tensorexpress.sim.kernel.timers import arm, backed_off, measured_round_trip
from tensorexpress.sim.record import ADDEND, TOTAL

# Adders


@compiled
def add(m: Memory, packet: int) -> None:
    adder, number, bit = m[packet + P_ADDER], m[packet + P_NUMBER], 1 << m[packet + P_CHILD]
    slots = m[adder + A_SLOTS]
    turn = number // slots
    at = m[adder + A_SETS] + (2 * (number - turn * slots) + turn % 2) * SET_COLUMNS
    if number < m[at + V_NUMBER]:
        return
    if number > m[at + V_NUMBER]:
        m[at + V_NUMBER], m[at + V_SEEN] = number, 0
    is_new = m[at + V_SEEN] & bit == 0
    m[at + V_SEEN] |= bit
    if m[at + V_SEEN] != m[adder + A_EVERYBODY]:
        return
    if m[adder + A_UP] != NONE:
        pass_up(m, adder, packet)
    elif is_new:
        hand_down(m, adder, packet)
    else:
        pass_down(m, adder, packet, m[adder + A_CHILDREN] + m[packet + P_CHILD] * CHILD_COLUMNS)


@compiled
def hand_down(m: Memory, adder: int, packet: int) -> None:
    for child in range(m[adder + A_CHILDREN], m[adder + A_CHILDREN_END], CHILD_COLUMNS):
        pass_down(m, adder, packet, child)


@compiled
def pass_up(m: Memory, adder: int, packet: int) -> None:
    copy = copied_packet(m, packet, ADDEND, m[adder + A_STREAM], adder + A_UP)
    m[copy + P_ADDER], m[copy + P_CHILD] = m[adder + A_PARENT], m[adder + A_CHILD]
    enqueue(m, m[adder + A_UP], copy)


@compiled
def pass_down(m: Memory, adder: int, packet: int, child: int) -> None:
    stream = m[child + D_STREAM]
    copy = copied_packet(m, packet, TOTAL, m[adder + A_STREAM] if stream == NONE else stream, child + D_LINK)
    m[copy + P_ADDER] = m[child + D_BELOW]
    enqueue(m, m[child + D_LINK], copy)


@compiled
def copied_packet(m: Memory, packet: int, kind: int, stream: int, hop: int) -> int:
    """Return what a switch makes of a packet, for the link whose address is at `hop`."""
    copy = new_packet(m, kind, stream, hop, hop + 1, m[packet + P_SIZE], m[packet + P_RANK], m[packet + P_SLACK])
    m[copy + P_ITERATION] = m[packet + P_ITERATION]
    m[copy + P_CHUNK] = m[packet + P_CHUNK]
    m[copy + P_NUMBER] = m[packet + P_NUMBER]
    return copy


# Streams


@compiled
def message_of(m: Memory, stream: int, number: int) -> int:
    """Return the message to which a packet belongs."""
    offset = number % m[stream + R_PACKETS]
    low, high = m[stream + R_MESSAGES], m[stream + R_MESSAGES_END]
    while high - low > 1:
        middle = (low + high) >> 1
        if m[m[middle] + M_FIRST] <= offset:
            low = middle
        else:
            high = middle
    return m[low]


@compiled
def slot_at(m: Memory, stream: int, number: int) -> int:
    return m[stream + R_FIRST_SLOT] + number % m[stream + R_SLOTS] * SLOT_COLUMNS


@compiled
def start_stream(m: Memory, flow: int, message: int, iteration: int, deadline: int) -> None:
    m[message + M_ITERATION], m[message + M_DEADLINE] = iteration, deadline
    m[message + M_KEY] = host_key(m, message)
    m[message + M_NEXT], m[message + M_RECEIVED] = 0, 0
    if m[message + M_OUT] == 0:
        copied_sum(m, flow, message)
    else:
        add_work(m, m[m[flow + F_SRC] + L_OUT_LANE], m[message + M_KEY], m[message + M_NODE])


@compiled
def copied_sum(m: Memory, flow: int, message: int) -> None:
    stream = m[flow + F_STREAM]
    m[message + M_COPIED] = m[message + M_ITERATION]
    first = m[message + M_ITERATION] * m[stream + R_PACKETS] + m[message + M_FIRST]
    for number in range(first, first + min(m[stream + R_SLOTS], m[message + M_CHUNKS])):
        if m[slot_at(m, stream, number) + Z_NUMBER] == number:
            push_pending(m, flow, number, message)
    refresh_stream(m, flow)
    kick(m, m[flow + F_SRC])


@compiled
def refresh_stream(m: Memory, flow: int) -> None:
    """Enter, move or remove a stream among the flows that may send."""
    place_ready(m, flow, m[m[m[flow + F_PENDING] + 1] + M_KEY] if m[flow + F_PENDING_COUNT] else NEVER)


@compiled
def next_addend(m: Memory, flow: int) -> int:
    number = m[m[flow + F_PENDING]]
    message = pop_pending(m, flow)
    if m[message + M_NEXT] == 0:
        m[m[message + M_TIMES] + m[message + M_ITERATION] * TIMES_COLUMNS + T_SENT] = m[NOW]
    m[message + M_NEXT] += 1
    if not m[flow + F_ARMED]:
        arm(m, flow, m[flow + F_TIMEOUT])
    refresh_stream(m, flow)
    return send_addend(m, flow, message, number)


@compiled
def send_addend(m: Memory, flow: int, message: int, number: int) -> int:
    """Return a packet that goes out now."""
    now, stream = m[NOW], m[flow + F_STREAM]
    at = slot_at(m, stream, number)
    m[flow + F_TRANSMISSIONS] += 1
    if m[at + Z_UNDER_WAY]:
        leave(m, flow, at)
    else:
        m[at + Z_FIRST] = m[flow + F_TRANSMISSIONS]
    m[at + Z_LAST], m[at + Z_NEWER] = m[flow + F_TRANSMISSIONS], 0
    m[at + Z_SENT], m[at + Z_UNDER_WAY] = now, 1
    last = m[flow + F_NEWEST]
    m[at + Z_EARLIER], m[at + Z_LATER] = last, NONE
    if last == NONE:
        m[flow + F_OLDEST] = at
    else:
        m[last + Z_LATER] = at
    m[flow + F_NEWEST] = at
    size, slack = m[PAYLOAD] + m[HEADER], m[message + M_DEADLINE] - m[message + M_LEAD] - now
    packet = new_packet(
        m, ADDEND, flow, m[flow + F_PATH], m[flow + F_PATH_END], size, m[message + M_SWITCH_RANK], slack
    )
    m[packet + P_MESSAGE] = message
    m[packet + P_ITERATION] = m[message + M_ITERATION]
    m[packet + P_CHUNK] = number % m[stream + R_PACKETS]
    m[packet + P_NUMBER] = number
    m[packet + P_ADDER], m[packet + P_CHILD] = m[stream + R_ADDER], m[stream + R_CHILD]
    return packet


@compiled
def leave(m: Memory, flow: int, at: int) -> None:
    """Take a slot out of those under way."""
    earlier, later = m[at + Z_EARLIER], m[at + Z_LATER]
    if earlier == NONE:
        m[flow + F_OLDEST] = later
    else:
        m[earlier + Z_LATER] = later
    if later == NONE:
        m[flow + F_NEWEST] = earlier
    else:
        m[later + Z_EARLIER] = earlier
    m[at + Z_UNDER_WAY] = 0


@compiled
def receive_total(m: Memory, packet: int) -> int:
    """Take a sum; return the message that it ends, NONE where it ends none."""
    flow, number, now = m[packet + P_FLOW], m[packet + P_NUMBER], m[NOW]
    stream = m[flow + F_STREAM]
    at = slot_at(m, stream, number)
    if m[at + Z_NUMBER] != number or not m[at + Z_UNDER_WAY]:
        return NONE
    leave(m, flow, at)
    came(m, flow, m[at + Z_FIRST])
    message = message_of(m, stream, number)
    if m[at + Z_AGAIN]:
        m[at + Z_AGAIN] = 0
    else:
        measured_round_trip(m, flow, now - m[at + Z_SENT])
    following = number + m[stream + R_SLOTS]
    m[at + Z_NUMBER] = following
    waits = message_of(m, stream, following)
    if m[waits + M_COPIED] == following // m[stream + R_PACKETS]:
        push_pending(m, flow, following, waits)
        refresh_stream(m, flow)
        kick(m, m[flow + F_SRC])
    answer, iteration = m[message + M_ANSWER], m[message + M_ITERATION]
    if m[message + M_RECEIVED] == 0:
        times = m[answer + M_TIMES] + iteration * TIMES_COLUMNS
        m[times + T_READY], m[times + T_SENT] = now, now
    m[message + M_RECEIVED] += 1
    if m[message + M_RECEIVED] < m[message + M_CHUNKS]:
        return NONE
    m[m[message + M_TIMES] + iteration * TIMES_COLUMNS + T_DELIVERED] = now
    m[answer + M_ITERATION], m[answer + M_DEADLINE] = iteration, m[message + M_DEADLINE]
    return answer


@compiled
def came(m: Memory, flow: int, first: int) -> None:
    """Send again what counts as lost by the sum of a packet whose first transmission was this one; see `Gaps`."""
    at = m[flow + F_OLDEST]
    while at != NONE and m[at + Z_LAST] <= first:
        following = m[at + Z_LATER]
        m[at + Z_NEWER] += 1
        if m[at + Z_NEWER] == m[NEWER_SUMS]:
            send_again(m, flow, at)
        at = following


@compiled
def send_again(m: Memory, flow: int, at: int) -> None:
    m[RETRANSMISSIONS] += 1
    m[at + Z_AGAIN] = 1
    number = m[at + Z_NUMBER]
    message = message_of(m, m[flow + F_STREAM], number)
    send_control(m, m[flow + F_SRC], send_addend(m, flow, message, number))


@compiled
def stream_timer(m: Memory, flow: int) -> None:
    now = m[NOW]
    m[flow + F_ARMED] = 0
    at = m[flow + F_OLDEST]
    if at == NONE:
        return
    overdue = now - m[flow + F_TIMEOUT]
    if m[at + Z_SENT] <= overdue:
        m[TIMEOUTS] += 1
        m[flow + F_TIMEOUT] = backed_off(m[flow + F_TIMEOUT])
    last = m[flow + F_NEWEST]
    while m[at + Z_SENT] <= overdue:
        following = m[at + Z_LATER]
        send_again(m, flow, at)
        if at == last:
            break
        at = following
    arm(m, flow, m[m[flow + F_OLDEST] + Z_SENT] + m[flow + F_TIMEOUT] - now)
