"""From arrival to departure: the other form of `device.py`, for packets that ask for nothing unusual.

`run` goes on until everything is done that is due, or until something comes that is for Python. Python then finishes
that one event, and calls again.
"""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.switch.native.cables import (
    give_back_arrived,
    hand_out,
    move_lines,
    next_port,
    note_sent,
    set_out,
    take_arrived,
)
from tensorexpress.switch.native.machine import Cells, copy, run_stage, words
from tensorexpress.switch.native.queues import (
    admit,
    append,
    dismiss,
    first,
    give_back,
    new_record,
    queue_of,
    remove,
    wire_bytes,
    wire_ps,
)
from tensorexpress.switch.native.words import *
from tensorexpress.switch.packet import DROP_PORT, NORMAL, REPLICATED
from tensorexpress.switch.program.budgets import MOST_COPY_BYTES

_PS_PER_US = 10**6

#: Returned by `_forward` where there is no memory left; nothing is changed then.
_NO_MEMORY = -1


@compiled
def _us(m: Cells, now_ps: int) -> int:
    """Return a time as packets are told it."""
    return m[EPOCH_US] + now_ps // _PS_PER_US


@compiled
def _note_departure(m: Cells, p: Cells, time_ps: int) -> None:
    """Note when the last bit of the frame on a link leaves; of several at once, those of the lowest port do first."""
    p[P_DEPARTS] = time_ps
    if time_ps < m[DUE] or (time_ps == m[DUE] and p[P_NUMBER] < words(m[DUE_PORT])[P_NUMBER]):
        m[DUE], m[DUE_PORT] = time_ps, p[P_SELF]


@compiled
def _take_departure(m: Cells) -> int:
    """Return the port where a frame leaves next, and find the one after it."""
    found = m[DUE_PORT]
    words(found)[P_DEPARTS] = m[DUE] = NEVER
    for index in range(m[PORT_COUNT]):
        p = words(words(m[PORT_LIST])[index])
        if p[P_DEPARTS] < NEVER:
            _note_departure(m, p, p[P_DEPARTS])
    return found


@compiled
def _send(m: Cells, p: Cells, record: int, length: int, now_ps: int) -> None:
    """Let a frame leave."""
    p[P_TX_FRAMES] += 1
    p[P_TX_BYTES] += length
    if p[P_LEAVING + LINE_PS] != 0:
        set_out(p, P_LEAVING, record, length, now_ps)
    else:
        note_sent(m, p, record, length, now_ps)


@compiled
def _put_on_wire(m: Cells, p: Cells, record: int, length: int, now_ps: int) -> None:
    """Let a frame occupy the idle link."""
    p[P_IN_FLIGHT], p[P_IN_FLIGHT_BYTES] = record, length
    _note_departure(m, p, now_ps + wire_ps(p, length))


@compiled
def _pass_egress(m: Cells, frame: int, length: int, output: int) -> int:
    """Take the packet that the context tells of through egress; return what that returned, -1 if it failed."""
    c = words(m[CONTEXT])
    c[C_PRESERVED] = c[C_TRUNCATE] = c[C_RECIRCULATE] = -1
    c[C_OUTPUT] = output + RECORD_BYTES
    result = run_stage(m[EGRESS], m[CONTEXT], frame, length)
    return result if c[C_FAILED] == 0 else -1


@compiled
def _hand_back(m: Cells, p: Cells, now_ps: int, result: int, record: int, output: int) -> None:
    """Note what Python needs to go on with a packet."""
    m[AT_PORT], m[AT_TIME], m[RESULT], m[RECORD], m[OUTPUT] = p[P_NUMBER], now_ps, result, record, output


@compiled
def _forward(m: Cells, p: Cells, frame: int, length: int, now_ps: int) -> int:
    """Take the packet that the context tells of to a port; return DONE or why Python is to go on."""
    c = words(m[CONTEXT] + WORD * C_TOLD)
    now_us = _us(m, now_ps)
    if c[T_PRIORITY] < 0 or c[T_PRIORITY] > p[P_TOP_PRIORITY]:  # a field of 64 bits may be what is below 0 here
        p[P_NO_QUEUE] += 1
        return DONE
    c[T_EGRESS_PORT] = p[P_NUMBER]
    if p[P_RATE] != 0 and p[P_IN_FLIGHT] != 0:
        return _let_wait(m, p, frame, length, now_us)
    output = new_record(m, length + m[MARGIN])
    if output == 0:
        return _NO_MEMORY
    if p[P_RATE] != 0:
        queue, size = queue_of(p, c[T_PRIORITY]), wire_bytes(p, c[T_LENGTH])
        if not admit(p, queue, size):
            give_back(m, output)
            p[P_BUFFER_FULL] += 1
            return DONE
        dismiss(p, queue, size)
    c[T_EGRESS_US] = c[T_ENQ_US] = now_us
    c[T_ENQ_QDEPTH] = c[T_DEQ_TIMEDELTA] = c[T_DEQ_QDEPTH] = 0
    result = _pass_egress(m, frame, length, output)
    if result < 0 or result & 1:
        _hand_back(m, p, now_ps, result, 0, output)
        return AFTER_EGRESS if p[P_RATE] == 0 else SERVED
    if words(m[CONTEXT])[C_EGRESS_SPEC] == DROP_PORT:
        p[P_EGRESS_DROPS] += 1
        give_back(m, output)
    elif p[P_RATE] == 0:
        _send(m, p, output, result >> 1, now_ps)
    else:
        _put_on_wire(m, p, output, result >> 1, now_ps)
    return DONE


@compiled
def _let_wait(m: Cells, p: Cells, frame: int, length: int, now_us: int) -> int:
    """Put the packet that the context tells of into its queue."""
    c = words(m[CONTEXT] + WORD * C_TOLD)
    queue, size = queue_of(p, c[T_PRIORITY]), wire_bytes(p, c[T_LENGTH])
    record = new_record(m, length + WORD + m[STATE_BYTES])
    if record == 0:
        return _NO_MEMORY
    if not admit(p, queue, size):
        give_back(m, record)
        p[P_BUFFER_FULL] += 1
        return DONE
    r = words(record)
    for index in range(TOLD_WORDS):
        r[R_TOLD + index] = c[index]
    r[R_LENGTH], r[R_COPIED] = length, m[COPIED] if m[GROUP] != 0 else 0
    copy(record + RECORD_BYTES, frame, length)
    copy(state_in(record, length), m[STATE], m[STATE_BYTES])
    append(p, record, queue, size, now_us)
    return DONE


@compiled
def state_in(record: int, length: int) -> int:
    """Return where the state of a packet is, behind its frame."""
    return record + RECORD_BYTES + (length + WORD - 1) // WORD * WORD


@compiled
def _serve(m: Cells, p: Cells, now_ps: int) -> int:
    """Put the next packet that survives egress on the idle link."""
    now_us = _us(m, now_ps)
    while p[P_WAITING] != 0:
        record = first(p)
        r = words(record)
        length = r[R_LENGTH]
        output = 0 if r[R_IS_FOREIGN] else new_record(m, length + m[MARGIN])
        if output == 0:
            _hand_back(m, p, now_ps, 0, 0, 0)
            return TO_SERVE
        remove(p, record, now_us)
        r[R_TOLD + T_EGRESS_US] = now_us
        c = words(m[CONTEXT])
        for index in range(TOLD_WORDS):
            c[C_TOLD + index] = r[R_TOLD + index]
        copy(m[STATE], state_in(record, length), m[STATE_BYTES])
        result = _pass_egress(m, record + RECORD_BYTES, length, output)
        if result < 0 or result & 1:
            _hand_back(m, p, now_ps, result, record, output)
            return SERVED
        give_back(m, record)
        if c[C_EGRESS_SPEC] != DROP_PORT:
            _put_on_wire(m, p, output, result >> 1, now_ps)
            return DONE
        p[P_EGRESS_DROPS] += 1
        give_back(m, output)
    return DONE


@compiled
def _let_leave(m: Cells, now_ps: int) -> int:
    """Let everything leave that is due, each frame at its own time."""
    while m[DUE] <= now_ps:
        if m[SENT_COUNT] == MOST_SENT:
            return FULL
        time_ps, p = m[DUE], words(_take_departure(m))
        if p[P_IN_FLIGHT] == IN_PYTHON:
            _hand_back(m, p, time_ps, 0, 0, 0)
            return TO_DEPART
        _send(m, p, p[P_IN_FLIGHT], p[P_IN_FLIGHT_BYTES], time_ps)
        p[P_IN_FLIGHT] = 0
        why = _serve(m, p, time_ps)
        if why != DONE:
            return why
    return DONE


@compiled
def _port(m: Cells, number: int) -> int:
    """Return the address of a port; 0 where native code has none of that number."""
    return words(m[PORT_AT])[number] if 0 <= number < PORTS else 0


@compiled
def _arrive(m: Cells, port: int, frame: int, length: int, now_ps: int) -> int:
    """Take a frame through ingress, and on to where ingress sends it."""
    m[GROUP] = 0
    m[AT_PORT], m[AT_TIME] = port, now_ps
    m[ARRIVAL_PORT], m[ARRIVAL_FRAME], m[ARRIVAL_BYTES] = port, frame, length
    if _port(m, port) == 0 or length > m[LONGEST]:
        return NOT_BEGUN
    arrival, c = words(_port(m, port)), words(m[CONTEXT])
    arrival[P_RX_FRAMES] += 1
    arrival[P_RX_BYTES] += length
    c[C_PRESERVED] = c[C_TRUNCATE] = c[C_RECIRCULATE] = -1
    told = words(m[CONTEXT] + WORD * C_TOLD)
    told[T_INGRESS_PORT], told[T_INGRESS_US] = port, _us(m, now_ps)
    told[T_INSTANCE_TYPE], told[T_EGRESS_RID], told[T_LENGTH] = NORMAL, 0, length
    result = run_stage(m[INGRESS], m[CONTEXT], frame, length)
    m[RESULT] = result
    if result != 0 or c[C_FAILED] != 0:
        return AFTER_INGRESS
    if c[C_MCAST_GRP] != 0:
        return _replicate(m, c[C_MCAST_GRP], frame, length, now_ps)
    number = c[C_EGRESS_SPEC]
    if number == DROP_PORT:
        arrival[P_INGRESS_DROPS] += 1
        return DONE
    leaving = _port(m, number)
    if leaving == 0:
        return AFTER_INGRESS
    why = _forward(m, words(leaving), frame, length, now_ps)
    return why if why != _NO_MEMORY else AFTER_INGRESS


@compiled
def _replicate(m: Cells, group: int, frame: int, length: int, now_ps: int) -> int:
    """Take copies of a packet to where its group has them."""
    listed = words(m[GROUP_AT])[group] if 0 < group < GROUPS else 0
    if listed == 0 or words(listed)[0] * length > MOST_COPY_BYTES:
        return AFTER_INGRESS
    copies, told = words(listed), words(m[CONTEXT] + WORD * C_TOLD)
    m[COPIED] = (m[COPIED] // COPIED_ARRIVAL + 1) * COPIED_ARRIVAL + copies[0]
    copy(m[SAVED], m[STATE], m[STATE_BYTES])
    m[GROUP], m[COPY_LENGTH], m[COPY_PRIORITY] = group, told[T_LENGTH], told[T_PRIORITY]
    for index in range(copies[0]):
        if index:
            copy(m[STATE], m[SAVED], m[STATE_BYTES])
        told[T_INSTANCE_TYPE], told[T_LENGTH], told[T_PRIORITY] = REPLICATED, m[COPY_LENGTH], m[COPY_PRIORITY]
        told[T_EGRESS_RID] = copies[2 + 2 * index]
        why = _forward(m, words(copies[1 + 2 * index]), frame, length, now_ps)
        if why != DONE:
            m[COPIES_DONE] = index if why == _NO_MEMORY else index + 1
            return TO_COPY if why == _NO_MEMORY else why
    m[GROUP] = 0
    return DONE


@compiled
def _let_leave_before(m: Cells, time_ps: int) -> int:
    """Let everything leave that is due before something arrives, for whose copies there has to be room."""
    why = _let_leave(m, time_ps)
    return FULL if why == DONE and m[SENT_COUNT] > MOST_SENT - MOST_REPLICAS else why


@compiled
def _let_arrive(m: Cells, until_ps: int) -> int:
    """Handle what cables with a delay bring by a time, each at the time at which it had to be there.

    What all until then was done without came too late.
    """
    while True:
        give_back_arrived(m)
        port = next_port(m, until_ps)
        if port == 0:
            return DONE
        p = words(port)
        r = words(p[P_ARRIVING + LINE_HEAD])
        time_ps = max(r[R_DUE], m[REACHED])
        why = _let_leave_before(m, time_ps)
        if why != DONE:
            return why
        m[REACHED] = time_ps
        why = _arrive(m, p[P_NUMBER], take_arrived(m, p) + RECORD_BYTES, r[R_LENGTH], time_ps)
        if why != DONE:
            return why


@compiled
def _go_on(m: Cells, now_ps: int) -> int:
    """Handle arrivals, each after what leaves until then, and then what leaves until now."""
    while m[ARRIVED] < m[ARRIVAL_COUNT]:
        a = words(m[ARRIVALS] + WORD * ARRIVAL_WORDS * m[ARRIVED])
        why = _let_arrive(m, a[A_TIME])
        if why == DONE:
            why = _let_leave_before(m, a[A_TIME])
        if why != DONE:
            return why
        m[ARRIVED] += 1
        why = _arrive(m, a[A_PORT], a[A_FRAME], a[A_LENGTH], a[A_TIME])
        if why != DONE:
            return why
    why = _let_arrive(m, now_ps)
    return _let_leave(m, now_ps) if why == DONE else why


@compiled
def handle(m: Cells, now_ps: int) -> int:
    """Handle all that is due; return DONE, or why Python is to go on."""
    c = words(m[CONTEXT])
    output = c[C_OUTPUT]
    why = _go_on(m, now_ps)
    c[C_OUTPUT] = output
    if why == DONE:
        m[REACHED] = now_ps
        return DONE if hand_out(m, now_ps) else FULL
    return why


def run(memory: int, now_ps: int) -> int:
    """Handle all that is due; return DONE, or why Python is to go on."""
    return handle(words(memory), now_ps)


def move_times(memory: int, by_ps: int) -> int:
    """Let times be counted from an epoch that is so much later; nothing leaves before it."""
    m = words(memory)
    for index in range(m[PORT_COUNT]):
        p = words(words(m[PORT_LIST])[index])
        if p[P_DEPARTS] < NEVER:
            p[P_DEPARTS] -= by_ps
    if m[DUE] < NEVER:
        m[DUE] -= by_ps
    m[REACHED] -= by_ps
    move_lines(m, by_ps)
    return 0


def depart_at(memory: int, port: int, time_ps: int) -> int:
    """Note when a frame that Python has put on a link leaves."""
    _note_departure(words(memory), words(port), time_ps)
    return 0
