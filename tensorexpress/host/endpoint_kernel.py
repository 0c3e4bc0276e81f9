"""Endpoints as machine code: what `Endpoint` does with messages, over UDP wires and kernel sockets, without Python.

Messages of exchanges are for `exchange_kernel.py`; for others, Python is asked for memory and told when they are
complete. It is called when its timers are due: see `run_on`. `native_endpoint.py` is the other side of this.
"""

from __future__ import annotations

import errno
import socket

from tensorexpress.compiled_functions import compiled
from tensorexpress.framing import SEGMENT_HEADER_BYTES, TRANSPORT_BYTES
from tensorexpress.host.exchange_kernel import exchange_of, go_on_from, let_go_of, memory_for, node_for, take_message
from tensorexpress.host.flow import SPAN
from tensorexpress.host.flow_kernel import (
    acknowledge,
    burst_at,
    chosen,
    is_done,
    is_set,
    next_burst,
    next_event,
    occupied_ps,
    offer,
    put_bit,
    retire,
    room_for,
    row_of,
    tell,
    time_out,
    unwrapped,
)
from tensorexpress.host.flow_layout import *
from tensorexpress.host.frame_kernel import added, find_datagram, finish_udp, folded, is_equal, number_at
from tensorexpress.host.kernel import crc_of, get, is_right, note_control, put, put_half, write_rows
from tensorexpress.host.layout import (
    CONTROL_BYTES,
    CONTROL_ROOM,
    FOUND_MARKED,
    FOUND_STRIDE,
    FRAME_DATAGRAM,
    FRAME_DATAGRAM_BYTES,
    FRAME_IS_MARKED,
    H_CHUNK,
    H_CRC,
    H_FLAGS,
    H_FLOW,
    H_ITERATION,
    H_JOB,
    H_KIND,
    H_LENGTH,
    H_MESSAGE,
    H_OFFSET,
    H_SEQUENCE,
    H_SESSION,
    H_SLACK,
    H_TENSOR,
    H_TOTAL,
    H_TRANSMISSION,
    H_WORKER,
    IP_TOS,
    IPV6_TCLASS,
    NAME,
    NAME_BYTES,
    NAME_ROOM,
    OWN_IP_BYTES,
    UDP_LEVEL,
    UDP_SEGMENT,
)
from tensorexpress.host.scheduler import CATCH_UP_PS
from tensorexpress.switch.native.machine import (
    Cells,
    clock_gettime,
    copy,
    errno_at,
    halves,
    nanosleep,
    octets,
    ppoll,
    recv,
    recvmsg,
    sendto,
    setsockopt,
    words,
)
from tensorexpress.wire.header import HEADER_BYTES, MAGIC, MOST_SLACK_US, VERSION, Flag, Kind
from tensorexpress.wire.udp import STAMP_BYTES

_WITHOUT_WAITING = int(socket.MSG_DONTWAIT)
_REFUSED, _AGAIN, _NO_BUFFERS = errno.ECONNREFUSED, errno.EAGAIN, errno.ENOBUFS
_IO, _INVALID, _TOO_LONG = errno.EIO, errno.EINVAL, errno.EMSGSIZE
_NOT_PERMITTED, _NO_ACCESS = errno.EPERM, errno.EACCES
_IP, _IPV6, _SOCKET = map(int, (socket.IPPROTO_IP, socket.IPPROTO_IPV6, socket.SOL_SOCKET))
_SO_PRIORITY = int(socket.SO_PRIORITY)
_MONOTONIC = 1

#: Bytes of an IPv4 socket address.
_IPV4_PLACE_BYTES = 16

_ETHERNET_BYTES, _IPV4_BYTES, _UDP_BYTES = 14, 20, 8

_RETRANSMITTED, _LAST_OF_SLICE, _ASKS_ACK, _MARKED = map(
    int, (Flag.RETRANSMITTED, Flag.LAST_OF_SLICE, Flag.ASKS_ACK, Flag.MARKED)
)
_AT_ONCE = _RETRANSMITTED | _LAST_OF_SLICE | _ASKS_ACK
_PARAMETERS, _ACK, _CONTROL = map(int, (Kind.PARAMETERS, Kind.ACK, Kind.CONTROL))
_GOODBYE = 1
_MAGIC_AND_VERSION = MAGIC << 4 | VERSION

#: What is taken from the wire before it is time to acknowledge and to send.
_MOST_TAKEN, _MOST_TAKEN_BYTES = 256, 2**19

_PS_PER_US, _PS_PER_NS, _NS_PER_S = 10**6, 10**3, 10**9


@compiled
def clock_ps(core: int) -> int:
    """Return the time since the endpoint began."""
    c = words(core)
    clock_gettime(_MONOTONIC, c[TIME])
    t = words(c[TIME])
    return (t[0] * _NS_PER_S + t[1] - c[ORIGIN_NS]) * _PS_PER_NS


@compiled
def time_ps(core: int, now_ps: int) -> int:
    """Return the time that is given, or that of the clock."""
    return clock_ps(core) if now_ps == NONE else now_ps


@compiled
def signed(half: int) -> int:
    """Return what half a word stands for that has a sign."""
    return (half ^ 1 << 31) - (1 << 31)


# Frames that leave


@compiled
def clamped_us(slack_ps: int) -> int:
    """Return a slack in whole microseconds as the header can carry it."""
    return max(-MOST_SLACK_US - 1, min(MOST_SLACK_US, slack_ps // _PS_PER_US))


@compiled
def send_frame(c: Cells, size: int) -> None:
    """Send what is in the stage: headers of a frame of another length, and a datagram; without room it is lost."""
    frame, headers = c[LEAVING], c[FRAME_HEADER_BYTES]
    network, length = frame + _ETHERNET_BYTES, _UDP_BYTES + size
    if headers == _ETHERNET_BYTES + _IPV4_BYTES + _UDP_BYTES:
        put_half(network + 2, _IPV4_BYTES + length)
        put_half(network + 10, 0)
        total = ~folded(added(network, _IPV4_BYTES)) & 0xFFFF
        memory = octets(network)
        memory[10], memory[11] = total & 255, total >> 8
    else:
        put_half(network + 4, length)
    put_half(frame + headers - 4, length)
    finish_udp(frame, headers, length)
    total = headers + size
    if c[IS_STAMPED]:
        left_ns = c[ORIGIN_NS] + c[LEAVES_PS] // _PS_PER_NS
        put(frame + total, left_ns >> 32)
        put(frame + total + 4, left_ns)
        total += STAMP_BYTES
    sendto(c[DESCRIPTOR], frame, total, _WITHOUT_WAITING, 0, 0)


@compiled
def set_option(c: Cells, level: int, option: int, value: int) -> None:
    """Set an option of the socket."""
    halves(c[OPTION])[0] = value
    setsockopt(c[DESCRIPTOR], level, option, c[OPTION], 4)


@compiled
def prepare(c: Cells, route: int, stride: int, size: int) -> None:
    """Have the kernel mark what is sent next, and cut it (`KernelLink._be_of`, `_cut_at`)."""
    a = words(route)
    if a[A_TOS] != c[TOS] or a[A_PRIORITY] != c[PRIORITY]:
        # In this order: to set the class sets the priority, too.
        if a[A_PLACE_BYTES] == _IPV4_PLACE_BYTES:
            set_option(c, _IP, IP_TOS, a[A_TOS])
        else:
            set_option(c, _IPV6, IPV6_TCLASS, a[A_TOS])
        set_option(c, _SOCKET, _SO_PRIORITY, a[A_PRIORITY])
        c[TOS], c[PRIORITY] = a[A_TOS], a[A_PRIORITY]
    if c[TOGETHER] > 1 and stride != c[CUT_BYTES] and size > min(stride, c[CUT_BYTES]):
        set_option(c, UDP_LEVEL, UDP_SEGMENT, stride)
        c[CUT_BYTES] = stride


@compiled
def send_datagrams(c: Cells, route: int, start: int, stride: int, size: int) -> int:
    """Send datagrams that lie one after the other (`KernelLink.send`); return for how many bytes there was room."""
    a, sent = words(route), 0
    while sent < size:
        piece = min(c[TOGETHER] * stride, size - sent)
        prepare(c, route, stride, piece)
        place, place_bytes = a[A_PLACE], a[A_PLACE_BYTES]
        if sendto(c[DESCRIPTOR], start + sent, piece, _WITHOUT_WAITING, place, place_bytes) < 0:
            why = halves(errno_at())[0]
            if why in (_AGAIN, _NO_BUFFERS):
                return sent
            if (why in (_IO, _INVALID)) and piece > stride:
                # A path or driver cannot compute the checksums of segments: one by one from now on.
                set_option(c, UDP_LEVEL, UDP_SEGMENT, 0)
                c[TOGETHER], c[CUT_BYTES] = 1, 0
                continue
            if why in (_TOO_LONG, _NOT_PERMITTED, _NO_ACCESS):
                c[ERROR] = why
            # All else is a loss, which the transport survives.
        sent += piece
    return sent


@compiled
def send_held(c: Cells) -> bool:
    """Send the rest of a burst for which there was no room; return whether all of it has left."""
    stride = SEGMENT_HEADER_BYTES + c[PAYLOAD_BYTES]
    sent = send_datagrams(c, c[HELD_ROUTE], c[HELD] + c[HELD_AT], stride, c[HELD_BYTES])
    c[HELD_AT] += sent
    c[HELD_BYTES] -= sent
    return c[HELD_BYTES] == 0


@compiled
def send_burst(c: Cells, s: Cells, flags: int, now_ps: int) -> None:
    """Send the newest burst of a flow (`Endpoint._send_burst`)."""
    b = words(burst_at(s, s[S_BURST_COUNT] - 1))
    message = row_of(c[OUTGOING], b[B_MESSAGE], OUTGOING_WORDS)
    o, first, count = words(message), b[B_FIRST], b[B_COUNT]
    words(row_of(c[PEERS], s[S_PEER], PEER_WORDS))[P_SENT_PS] = now_ps
    c[N_SENT] += count
    size, run, headers = c[PAYLOAD_BYTES], c[RUN_HEADER], c[FRAME_HEADER_BYTES]
    stride = SEGMENT_HEADER_BYTES + size
    copy(run, message + WORD_BYTES * O_HEADER, SEGMENT_HEADER_BYTES)
    octets(run)[H_FLAGS] = flags & _RETRANSMITTED
    put(run + H_CHUNK, get(run + H_CHUNK) + first)
    put(run + H_SEQUENCE, b[B_SEQUENCE])
    put(run + H_TRANSMISSION, b[B_TRANSMISSION])
    put(run + H_OFFSET, first * size)
    slack, payload = clamped_us(o[O_DEADLINE_PS] - now_ps), o[O_PAYLOAD] + first * size
    last_flags = flags & (_LAST_OF_SLICE | _ASKS_ACK)
    last_bytes = o[O_LAST_BYTES] if flags & _LAST_OF_SLICE else size
    together = 1 if c[IS_WIRE] else c[TOGETHER]
    sent = 0
    while sent < count:
        rows = min(together, count - sent)
        total = rows * stride
        if sent + rows == count:
            total -= size - last_bytes
        write_rows(
            run, c[LEAVING] + headers, stride, sent, rows, payload, slack, count - 1, last_flags, last_bytes
        )  # fmt: skip
        if c[IS_WIRE]:
            copy(c[LEAVING], o[O_ROUTE], headers)
            send_frame(c, total)
        elif send_datagrams(c, o[O_ROUTE], c[LEAVING], stride, total) < total:
            # What it had room for of these comes twice, and does no harm.
            write_rows(
                run, c[HELD], stride, sent, count - sent, payload, slack, count - 1, last_flags, last_bytes
            )  # fmt: skip
            c[HELD_AT], c[HELD_BYTES] = 0, (count - sent) * stride - (size - last_bytes)
            c[HELD_ROUTE] = o[O_ROUTE]
            return
        sent += rows


@compiled
def send_ack(c: Cells, receiving: int, now_ps: int) -> None:
    """Acknowledge what has come of a flow (`Endpoint._send_ack`)."""
    r = words(receiving)
    peer = words(row_of(c[PEERS], r[R_PEER], PEER_WORDS))
    peer[P_SENT_PS] = now_ps
    c[N_ACKS_SENT] += 1
    c[LEAVES_PS] = now_ps
    start = c[LEAVING] + c[FRAME_HEADER_BYTES]
    copy(start, c[ACK_HEADER], SEGMENT_HEADER_BYTES)
    octets(start)[H_FLAGS] = _MARKED if r[R_MARKED] else 0
    put_half(start + H_WORKER, r[R_WORKER])
    put(start + H_ITERATION, r[R_ITERATION])
    put_half(start + H_FLOW, r[R_FLOW])
    put(start + H_SEQUENCE, r[R_EXPECTED])
    put(start + H_TRANSMISSION, r[R_TRANSMISSION])
    bits = max(0, r[R_END] - r[R_EXPECTED])
    size = (bits + 7) >> 3
    put_half(start + H_LENGTH, TRANSPORT_BYTES + size)
    bitmap = octets(start + SEGMENT_HEADER_BYTES)
    for at in range(size):
        bitmap[at] = 0
    for at in range(bits):
        if is_set(receiving + WORD_BYTES * R_BITS, r[R_EXPECTED] + at, ARRIVED_BITS):
            bitmap[at >> 3] |= 1 << (at & 7)
    put(start + H_CRC, crc_of(start, SEGMENT_HEADER_BYTES + size))
    put(start + H_SLACK, r[R_SLACK_US])
    size += SEGMENT_HEADER_BYTES
    if c[IS_WIRE]:
        copy(c[LEAVING], peer[P_ROUTE], c[FRAME_HEADER_BYTES])
        send_frame(c, size)
    else:  # without room it is lost
        send_datagrams(c, peer[P_ROUTE], start, size, size)


@compiled
def transmit(core: int, now_ps: int) -> bool:
    """Send all that may be sent now (`Scheduler.next_burst`); False where a flow has no room for what is on the way."""
    c = words(core)
    if c[HELD_BYTES] and not send_held(c):
        return True
    while not c[HELD_BYTES]:
        number = chosen(c)
        if number == NONE:
            c[IS_IDLE] = 1
            return True
        if c[RATE_BPS]:
            if now_ps < c[FREE_PS]:
                c[IS_IDLE] = 0
                return True
            c[FREE_PS] = max(c[FREE_PS], now_ps - (0 if c[IS_IDLE] else CATCH_UP_PS))
        flow = row_of(c[SENDING], number, SENDING_WORDS)
        s = words(flow)
        most = min(c[MOST_SEGMENTS], room_for(c, s[S_PROBING] != 0, now_ps))
        if most < 1:
            c[IS_IDLE] = 1
            return True
        if s[S_BURST_COUNT] == s[S_BURST_ROOM]:
            c[BLOCKED], c[BLOCKED_ON] = MORE_ROOM, number
            return False
        c[IS_IDLE] = 0
        if c[WEIGHS_TURNS]:
            c[SERVED_COUNT] = max(c[SERVED_COUNT], s[S_SERVED])
            s[S_SERVED] = c[SERVED_COUNT] + s[S_TURN]
        else:
            c[SERVED_COUNT] += 1
            s[S_SERVED] = c[SERVED_COUNT]
        before = s[S_IN_FLIGHT]
        flags = next_burst(c, flow, now_ps, most)
        c[LEAVES_PS] = now_ps
        if c[RATE_BPS]:
            c[LEAVES_PS] = c[FREE_PS]
            c[FREE_PS] += occupied_ps(s[S_IN_FLIGHT] - before, c[RATE_BPS])
        if c[CREDIT_BYTES] and room_for(c, s[S_PROBING] != 0, now_ps) < 1:
            flags |= _ASKS_ACK
        send_burst(c, s, flags, now_ps)
    return True


@compiled
def acknowledge_all(core: int, now_ps: int) -> int:
    """Send the acknowledgements that are due (`ReceiveFlow.acknowledgement`)."""
    c = words(core)
    for place in range(c[DUE_COUNT]):
        receiving = row_of(c[RECEIVING], words(c[DUE])[place], RECEIVING_WORDS)
        r = words(receiving)
        r[R_IS_DUE] = 0
        if r[R_AT_ONCE] or r[R_UNACKNOWLEDGED] >= c[ACK_EVERY]:
            send_ack(c, receiving, time_ps(core, now_ps))
            r[R_UNACKNOWLEDGED] = r[R_AT_ONCE] = r[R_MARKED] = 0
    c[DUE_COUNT] = 0
    return 0


@compiled
def give(core: int, now_ps: int) -> int:
    """Let time-outs strike that are due, and send what may be sent; 0 where Python has to make room first."""
    c = words(core)
    c[BLOCKED] = NOTHING
    for place in range(c[ACTIVE_COUNT]):
        time_out(c, row_of(c[SENDING], words(c[ACTIVE])[place], SENDING_WORDS), now_ps)
    return int(transmit(core, now_ps))


# Frames that come


@compiled
def accept(c: Cells, number: int, receiving: int, start: int, sequence: int, is_new: bool, marked: bool) -> None:
    """Note a segment (`ReceiveFlow.accept`)."""
    r, ring = words(receiving), receiving + WORD_BYTES * R_BITS
    if sequence > r[R_EXPECTED] or not is_new:
        r[R_AT_ONCE] = 1
    if is_new:
        put_bit(ring, sequence, ARRIVED_BITS, 1)
        r[R_END] = max(r[R_END], sequence + 1)
        while is_set(ring, r[R_EXPECTED], ARRIVED_BITS):
            put_bit(ring, r[R_EXPECTED], ARRIVED_BITS, 0)
            r[R_EXPECTED] += 1
    else:
        r[R_DUPLICATES] += 1
    known = r[R_TRANSMISSION]
    r[R_TRANSMISSION] = max(known, unwrapped(get(start + H_TRANSMISSION), max(known, 0)))
    r[R_UNACKNOWLEDGED] += 1
    if octets(start)[H_FLAGS] & _AT_ONCE:
        r[R_AT_ONCE] = 1
    if marked:
        c[N_MARKED] += 1
        r[R_MARKED] = r[R_AT_ONCE] = 1
    slack = get(start + H_SLACK)
    r[R_WORKER], r[R_ITERATION], r[R_SLACK_US] = number_at(start + H_WORKER), get(start + H_ITERATION), slack
    if not r[R_IS_DUE]:
        r[R_IS_DUE] = 1
        words(c[DUE])[c[DUE_COUNT]] = number
        c[DUE_COUNT] += 1


@compiled
def flow_of(table: int, width: int, first: int, flow: int) -> int:
    """Return a peer's flow of a number, of those that begin with a row; both kinds begin with the same words."""
    while first != NONE and words(row_of(table, first, width))[R_FLOW] != flow:
        first = words(row_of(table, first, width))[R_NEXT]
    return first


@compiled
def message_of(c: Cells, r: Cells, start: int) -> int:
    """Return the message of a flow that a segment belongs to, if it has begun."""
    kind, iteration = octets(start)[H_KIND] & 15, get(start + H_ITERATION)
    tensor, number, found = number_at(start + H_TENSOR), get(start + H_MESSAGE), r[R_MESSAGE]
    while found != NONE:
        i = words(row_of(c[INCOMING], found, INCOMING_WORDS))
        if i[I_NUMBER] == number and i[I_ITERATION] == iteration and i[I_TENSOR] == tensor and i[I_KIND] == kind:
            break
        found = i[I_NEXT]
    return found


@compiled
def begin(c: Cells, flow: int, now_ps: int) -> int:
    """Return the row of the message that begins with the segment that is next; `NONE`: see BLOCKED.

    It is BLOCKED on NOTHING where it is refused. What is not for an exchange is for Python (`Endpoint._begin`).
    """
    start = c[PENDING]
    exchange = exchange_of(c, number_at(start + H_JOB))
    if exchange == 0:
        c[BLOCKED], c[BLOCKED_ON] = NEW_MESSAGE, flow
        return NONE
    number, iteration, total = get(start + H_MESSAGE), get(start + H_ITERATION), get(start + H_TOTAL)
    node = node_for(words(exchange), number, c[PENDING_PEER], iteration, total)
    if node == NONE:
        return NONE
    if c[FREE_INCOMING_COUNT] == 0:
        c[BLOCKED] = MORE_ROWS
        return NONE
    memory = memory_for(exchange, node, now_ps + signed(get(start + H_SLACK)) * _PS_PER_US)
    if memory == 0:
        return NONE
    c[FREE_INCOMING_COUNT] -= 1
    row = words(c[FREE_INCOMING])[c[FREE_INCOMING_COUNT]]
    r = words(row_of(c[RECEIVING], flow, RECEIVING_WORDS))
    i = words(row_of(c[INCOMING], row, INCOMING_WORDS))
    i[I_FLOW], i[I_KIND], i[I_ITERATION] = flow, octets(start)[H_KIND] & 15, iteration
    i[I_TENSOR], i[I_NUMBER], i[I_MEMORY] = number_at(start + H_TENSOR), number, memory
    i[I_LENGTH] = i[I_MISSING] = total
    i[I_NEXT], i[I_EXCHANGE], i[I_NODE] = r[R_MESSAGE], exchange, node
    r[R_MESSAGE] = row
    return row


@compiled
def finish(core: int, r: Cells, message: int, now_ps: int) -> None:
    """Let go of a message that is complete."""
    c = words(core)
    i = words(row_of(c[INCOMING], message, INCOMING_WORDS))
    after = i[I_NEXT]
    if r[R_MESSAGE] == message:
        r[R_MESSAGE] = after
    else:
        at = r[R_MESSAGE]
        while words(row_of(c[INCOMING], at, INCOMING_WORDS))[I_NEXT] != message:
            at = words(row_of(c[INCOMING], at, INCOMING_WORDS))[I_NEXT]
        words(row_of(c[INCOMING], at, INCOMING_WORDS))[I_NEXT] = after
    if i[I_EXCHANGE]:
        words(c[FREE_INCOMING])[c[FREE_INCOMING_COUNT]] = message
        c[FREE_INCOMING_COUNT] += 1
        take_message(core, i[I_EXCHANGE], i[I_NODE], now_ps)
    else:
        tell(c, COME, message)


@compiled
def take_data(core: int, now_ps: int) -> bool:
    """Take the segment that is next (`Endpoint._take_data`); False where Python has to do something first."""
    c = words(core)
    start, size = c[PENDING], c[PENDING_BYTES] - SEGMENT_HEADER_BYTES
    if c[FREE_OUTGOING_COUNT] < c[MOST_SENT]:
        c[BLOCKED] = MORE_ROWS
        return False
    peer = words(row_of(c[PEERS], c[PENDING_PEER], PEER_WORDS))
    number = flow_of(c[RECEIVING], RECEIVING_WORDS, peer[P_RECEIVING], number_at(start + H_FLOW))
    if number == NONE:
        c[BLOCKED] = NEW_FLOW
        return False
    receiving = row_of(c[RECEIVING], number, RECEIVING_WORDS)
    r = words(receiving)
    sequence = unwrapped(get(start + H_SEQUENCE), r[R_EXPECTED])
    ahead = sequence - r[R_EXPECTED]
    if ahead > SPAN:
        c[N_RECEIVED] += 1
        c[N_IMPLAUSIBLE] += 1
        return True
    is_new = ahead >= 0 and not is_set(receiving + WORD_BYTES * R_BITS, sequence, ARRIVED_BITS)
    message = NONE
    if is_new:
        message = message_of(c, r, start)
        if message == NONE:
            message = begin(c, number, now_ps)
            if c[BLOCKED]:
                return False
            if message == NONE:
                c[N_RECEIVED] += 1
                c[N_REFUSED] += 1
                return True
        i, offset = words(row_of(c[INCOMING], message, INCOMING_WORDS)), get(start + H_OFFSET)
        if get(start + H_TOTAL) != i[I_LENGTH] or offset + size > i[I_LENGTH]:
            c[N_RECEIVED] += 1
            c[N_IMPLAUSIBLE] += 1
            return True
        copy(i[I_MEMORY] + offset, start + SEGMENT_HEADER_BYTES, size)
        i[I_MISSING] -= size
    c[N_RECEIVED] += 1
    accept(c, number, receiving, start, sequence, is_new, c[COME_MARKED] != 0)
    if message != NONE and words(row_of(c[INCOMING], message, INCOMING_WORDS))[I_MISSING] == 0:
        finish(core, r, message, now_ps)
    return True


@compiled
def take_ack(core: int, now_ps: int) -> None:
    """Take an acknowledgement (`Endpoint._take_ack`)."""
    c = words(core)
    start = c[PENDING]
    c[N_ACKS_RECEIVED] += 1
    peer = words(row_of(c[PEERS], c[PENDING_PEER], PEER_WORDS))
    number = flow_of(c[SENDING], SENDING_WORDS, peer[P_SENDING], number_at(start + H_FLOW))
    if number == NONE:
        return
    flow = row_of(c[SENDING], number, SENDING_WORDS)
    is_known = acknowledge(
        c, flow, get(start + H_SEQUENCE), get(start + H_TRANSMISSION), octets(start)[H_FLAGS] & _MARKED != 0,
        start + SEGMENT_HEADER_BYTES, c[PENDING_BYTES] - SEGMENT_HEADER_BYTES, now_ps,
    )  # fmt: skip
    if not is_known:
        c[N_IMPLAUSIBLE] += 1
    if is_done(words(flow)):
        retire(core, number)


@compiled
def take_datagram(core: int, now_ps: int) -> bool:
    """Take the datagram that is next (`Endpoint._take`); False where Python has to do something first."""
    c = words(core)
    start, size = c[PENDING], c[PENDING_BYTES]
    if c[PENDING_PEER] == NONE:
        c[N_STRANGERS] += 1
        return True
    is_segment = (
        size >= SEGMENT_HEADER_BYTES
        and number_at(start) << 4 | octets(start)[H_KIND] >> 4 == _MAGIC_AND_VERSION
        and number_at(start + H_LENGTH) == size - HEADER_BYTES
    )
    if not is_segment:
        c[N_MALFORMED] += 1
        return True
    if not is_right(start, size):
        c[N_CORRUPT] += 1
        return True
    if get(start + H_SESSION) != c[SESSION]:
        c[N_FOREIGN] += 1
        return True
    peer = words(row_of(c[PEERS], c[PENDING_PEER], PEER_WORDS))
    peer[P_HEARD_PS] = now_ps
    kind = octets(start)[H_KIND] & 15
    if kind <= _PARAMETERS:
        return take_data(core, now_ps)
    if kind == _ACK:
        take_ack(core, now_ps)
    elif kind == _CONTROL:
        if get(start + H_MESSAGE) == _GOODBYE and not peer[P_GONE]:
            peer[P_GONE] = 1
            tell(c, DEPARTED, c[PENDING_PEER])
    else:
        c[N_MALFORMED] += 1
    return True


@compiled
def peer_at(c: Cells, ip: int, port: int) -> int:
    """Return the peer that has an address; `NONE`: it is a stranger."""
    ip_bytes = words(c[OWN])[OWN_IP_BYTES]
    for number in range(c[PEER_COUNT]):
        peer = row_of(c[PEERS], number, PEER_WORDS)
        if words(peer)[P_PORT] == port and is_equal(peer + WORD_BYTES * P_IP, ip, ip_bytes):
            return number
    return NONE


@compiled
def receive_frame(c: Cells) -> int:
    """Receive the datagram of a frame from the wire; return the bytes of the frame, 0 where there is none."""
    f = words(c[FOUND])
    while True:
        size = recv(c[DESCRIPTOR], c[STAGE], c[STAGE_BYTES], _WITHOUT_WAITING)
        if size == 0 or (size < 0 and halves(errno_at())[0] == _REFUSED):
            continue  # an empty datagram, or word that the other end was not there: a cable does not tell
        if size < 0:
            return 0
        if not find_datagram(c[STAGE], size, c[OWN], c[FOUND]) or f[FRAME_DATAGRAM_BYTES] == 0:
            c[N_IGNORED] += 1
            return size
        datagram = c[STAGE] + f[FRAME_DATAGRAM]
        c[COME_AT], c[COME_BYTES] = datagram, f[FRAME_DATAGRAM_BYTES]
        c[COME_STRIDE], c[COME_MARKED] = f[FRAME_DATAGRAM_BYTES], f[FRAME_IS_MARKED]
        source = datagram - _UDP_BYTES - 2 * words(c[OWN])[OWN_IP_BYTES]
        c[PENDING_PEER] = peer_at(c, source, number_at(datagram - _UDP_BYTES))
        return size


@compiled
def receive_datagrams(c: Cells) -> int:
    """Receive a datagram, or several that the kernel joined; return their bytes, 0 where there are none."""
    m, f = words(c[RECEIVED]), words(c[FOUND])
    for _ in range(_MOST_TAKEN):
        m[NAME_BYTES], m[CONTROL_BYTES] = NAME_ROOM, CONTROL_ROOM
        size = recvmsg(c[DESCRIPTOR], c[RECEIVED], _WITHOUT_WAITING)
        if size < 0 and halves(errno_at())[0] == _AGAIN:
            return 0
        if size <= 0:
            continue  # nothing in it, or word that an earlier one did not get through
        note_control(c[RECEIVED], size, c[FOUND])
        c[COME_AT], c[COME_BYTES] = c[STAGE], size
        c[COME_STRIDE], c[COME_MARKED] = f[FOUND_STRIDE], f[FOUND_MARKED]
        ip = m[NAME] + (4 if words(c[OWN])[OWN_IP_BYTES] == 4 else 8)
        c[PENDING_PEER] = peer_at(c, ip, number_at(m[NAME] + 2))
        return size
    return 0  # the socket has nothing else to say


@compiled
def take_frames(core: int, now_ps: int) -> int:
    """Take what has arrived (`Endpoint.receive`); 0 where Python has to do something before it can go on."""
    c = words(core)
    if c[BLOCKED] == NEW_FLOW or c[BLOCKED] == NEW_MESSAGE or c[BLOCKED] == MORE_ROWS:
        c[BLOCKED] = NOTHING
        if not take_data(core, time_ps(core, now_ps)):
            return 0
    c[IS_LEFT] = 1
    taken = taken_bytes = 0
    while taken < _MOST_TAKEN and taken_bytes < _MOST_TAKEN_BYTES:
        if c[COME_BYTES] == 0:
            size = receive_frame(c) if c[IS_WIRE] else receive_datagrams(c)
            if size == 0:
                c[DRAINED_PS], c[IS_LEFT] = time_ps(core, now_ps), 0
                break
            taken += 1
            taken_bytes += size
            continue
        c[PENDING], c[PENDING_BYTES] = c[COME_AT], min(c[COME_BYTES], c[COME_STRIDE])
        c[COME_AT] += c[PENDING_BYTES]
        c[COME_BYTES] -= c[PENDING_BYTES]
        if not take_datagram(core, time_ps(core, now_ps)):
            return 0
    return 1


@compiled
def run_on(core: int, waits: int) -> int:
    """Take, give, rest and wait, until Python has something to do, or, without waiting, once.

    That is: memory for a message, room for a flow, words of what has come, its own timers, or a descriptor that it
    watches, of which there are as many as this returns.
    """
    c = words(core)
    while True:
        if c[PHASE] == TAKING:
            if not take_frames(core, NONE):
                return 0
            c[PHASE] = GIVING
            if c[EVENT_COUNT] or c[WAKE_PS] <= clock_ps(core):
                return 0
        if c[PHASE] == GIVING:
            acknowledge_all(core, NONE)
            if not give(core, clock_ps(core)):
                return 0
            c[PHASE] = WAITING
            if not waits or c[ERROR]:
                return 0
        c[PHASE] = TAKING
        t = words(c[TIME])
        if c[IS_LEFT]:
            continue
        if c[REST_PS]:
            t[0], t[1] = 0, c[REST_PS] // _PS_PER_NS
            nanosleep(c[TIME], 0)
        now = clock_ps(core)
        due = next_event(core, now)
        due = c[WAKE_PS] if due == NONE else min(due, c[WAKE_PS])
        left_ns = max(0, due - now + _PS_PER_NS - 1) // _PS_PER_NS
        t[0], t[1] = left_ns // _NS_PER_S, left_ns % _NS_PER_S
        octets(c[POLLED])[4] = READABLE | (WRITABLE if c[HELD_BYTES] else 0)
        ready = ppoll(c[POLLED], c[POLLED_COUNT], 0 if due == NEVER else c[TIME], 0)
        if ready < 0:  # a signal, for Python
            return 0
        for index in range(1, c[POLLED_COUNT]):
            if words(c[POLLED])[index] >> 48:
                return ready


def flows(core: int, what: int, first: int, second: int) -> int:
    """Do one of these, by its number; as one function they are compiled once, and what they share with them."""
    if what == RUN_ON:
        return run_on(core, first)
    if what == TAKE_FRAMES:
        return take_frames(core, first)
    if what == ACKNOWLEDGE_ALL:
        return acknowledge_all(core, first)
    if what == GIVE:
        return give(core, first)
    if what == NEXT_EVENT:
        return next_event(core, first)
    if what == OFFER:
        return offer(core, first, second)
    if what == GO_ON_FROM:
        return go_on_from(core, first, second)
    if what == LET_GO:
        return let_go_of(first)
    return retire(core, first)
