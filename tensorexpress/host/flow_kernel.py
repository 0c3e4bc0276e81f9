"""Flows as machine code: what `flow.py` and `scheduler.py` decide, on tables of words.

Every function here does what the one that it names does there; tests hold both to the same frames at the same times.
`endpoint_kernel.py` carries what they decide, `flow_layout.py` has the words.
"""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.host.blocks import let_go
from tensorexpress.host.flow import SPAN
from tensorexpress.host.flow_layout import *
from tensorexpress.recovery import ALPHA_ONE, ALPHA_SHIFT, LONGEST_TIMEOUT_PS
from tensorexpress.switch.native.machine import Cells, octets, words
from tensorexpress.wire.header import Flag

_HALF, _HALF_RANGE = 0xFFFFFFFF, 1 << 31
_RETRANSMITTED, _LAST_OF_SLICE, _ASKS_ACK = map(int, (Flag.RETRANSMITTED, Flag.LAST_OF_SLICE, Flag.ASKS_ACK))
_PS_PER_S, _PS_PER_US = 10**12, 10**6


# Rows and bits


@compiled
def row_of(table: int, number: int, width: int) -> int:
    """Return where a row of a table is."""
    return table + WORD_BYTES * width * number


@compiled
def counted(bits: int) -> int:
    """Return how many bits are set."""
    count = 0
    while bits:
        bits &= bits - 1
        count += 1
    return count


@compiled
def is_set(ring: int, number: int, room: int) -> bool:
    """Whether the bit of a number is set in a ring."""
    at = number & (room - 1)
    return words(ring)[at >> 6] >> (at & 63) & 1 != 0


@compiled
def put_bit(ring: int, number: int, room: int, value: int) -> None:
    """Set the bit of a number in a ring, or clear it."""
    at = number & (room - 1)
    bit = 1 << (at & 63)
    if value:
        words(ring)[at >> 6] |= bit
    else:
        words(ring)[at >> 6] &= ~bit


@compiled
def unwrapped(number: int, near: int) -> int:
    """Return the number, known modulo 2^32, that is nearest to another one."""
    return near + ((number - near + _HALF_RANGE) & _HALF) - _HALF_RANGE


@compiled
def tell(c: Cells, what: int, number: int) -> None:
    """Note what Python is to be told. There is room for one word of every row."""
    e = words(c[EVENTS] + 2 * WORD_BYTES * c[EVENT_COUNT])
    e[0], e[1] = what, number
    c[EVENT_COUNT] += 1


# Messages that wait: a skew heap in their own rows, so that nobody has to make room for it, the least one first


@compiled
def goes_before(c: Cells, one: int, other: int) -> bool:
    """Whether a message goes before another: by its key, then by its number."""
    a, b = words(row_of(c[OUTGOING], one, OUTGOING_WORDS)), words(row_of(c[OUTGOING], other, OUTGOING_WORDS))
    return a[O_KEY] < b[O_KEY] or (a[O_KEY] == b[O_KEY] and a[O_OFFERED] < b[O_OFFERED])


@compiled
def merge(c: Cells, into: int, one: int, other: int) -> None:
    """Make one heap of two, either of which may be empty; `into` is the word that leads to it."""
    while one != NONE and other != NONE:
        if goes_before(c, other, one):
            one, other = other, one
        words(into)[0] = one
        row = row_of(c[OUTGOING], one, OUTGOING_WORDS)
        o = words(row)
        into, one, o[O_RIGHT] = row + WORD_BYTES * O_LEFT, o[O_RIGHT], o[O_LEFT]
    words(into)[0] = other if one == NONE else one


@compiled
def offer(core: int, flow: int, message: int) -> int:
    """Take a message to be sent (`SendFlow.offer`, `Scheduler.activate`)."""
    c = words(core)
    row = row_of(c[SENDING], flow, SENDING_WORDS)
    s, o = words(row), words(row_of(c[OUTGOING], message, OUTGOING_WORDS))
    o[O_OFFERED], o[O_LEFT], o[O_RIGHT] = s[S_OFFERED], NONE, NONE
    s[S_OFFERED] += 1
    s[S_WAITING] += 1
    merge(c, row + WORD_BYTES * S_FIRST_WAITING, s[S_FIRST_WAITING], message)
    if not s[S_IS_ACTIVE]:
        s[S_IS_ACTIVE] = 1
        words(c[ACTIVE])[c[ACTIVE_COUNT]] = flow
        c[ACTIVE_COUNT] += 1
    return 0


@compiled
def next_waiting(c: Cells, flow: int) -> int:
    """Take the first message that waits."""
    s = words(flow)
    first = s[S_FIRST_WAITING]
    o = words(row_of(c[OUTGOING], first, OUTGOING_WORDS))
    s[S_WAITING] -= 1
    merge(c, flow + WORD_BYTES * S_FIRST_WAITING, o[O_LEFT], o[O_RIGHT])
    return first


@compiled
def retire(core: int, flow: int) -> int:
    """Leave out a flow that has nothing left to do, or nobody to do it for (`Scheduler.retire`)."""
    c = words(core)
    s, active = words(row_of(c[SENDING], flow, SENDING_WORDS)), words(c[ACTIVE])
    if s[S_IS_ACTIVE]:
        s[S_IS_ACTIVE] = 0
        at = 0
        while active[at] != flow:
            at += 1
        c[ACTIVE_COUNT] -= 1
        while at < c[ACTIVE_COUNT]:
            active[at] = active[at + 1]
            at += 1
    return 0


# A flow to a peer: `SendFlow`


@compiled
def burst_at(s: Cells, place: int) -> int:
    """Return the place-th burst of a flow that is not over, from the oldest on."""
    return row_of(s[S_BURSTS], (s[S_FIRST_BURST] + place) & (s[S_BURST_ROOM] - 1), BURST_WORDS)


@compiled
def bytes_of(c: Cells, o: Cells, first: int, bits: int) -> int:
    """Return the bytes on the wire of a set of segments of a message, counted from `first`."""
    size, last = counted(bits) * c[FULL_BYTES], o[O_SEGMENTS] - 1 - first
    if last < MOST_BURST and bits >> last & 1:
        size -= c[PAYLOAD_BYTES] - o[O_LAST_BYTES]
    return size


@compiled
def head_of(c: Cells, s: Cells) -> int:
    """Return whether what goes next is under way (0) or not (1); `NONE`: nothing may be sent."""
    if s[S_IN_FLIGHT] and s[S_IN_FLIGHT] + c[FULL_BYTES] > s[S_WINDOW] and not s[S_PROBING]:
        return NONE
    if s[S_FIRST_LOSING] != NONE:
        return 0
    if s[S_NEXT_SEQUENCE] - s[S_ARRIVED_TO] >= SPAN:
        return NONE
    if s[S_CURRENT] != NONE:
        return 0
    return 1 if s[S_WAITING] else NONE


@compiled
def key_of(c: Cells, s: Cells) -> int:
    """Return the key of what goes next."""
    message = s[S_FIRST_LOSING] if s[S_FIRST_LOSING] != NONE else s[S_CURRENT]
    if message == NONE:
        message = s[S_FIRST_WAITING]
    return words(row_of(c[OUTGOING], message, OUTGOING_WORDS))[O_KEY]


@compiled
def lose_message(c: Cells, s: Cells, message: int) -> None:
    """Put a message behind those that have lost segments; it is not among them."""
    o = words(row_of(c[OUTGOING], message, OUTGOING_WORDS))
    o[O_NEXT], o[O_BEFORE] = NONE, s[S_LAST_LOSING]
    if s[S_LAST_LOSING] == NONE:
        s[S_FIRST_LOSING] = message
    else:
        words(row_of(c[OUTGOING], s[S_LAST_LOSING], OUTGOING_WORDS))[O_NEXT] = message
    s[S_LAST_LOSING] = message


@compiled
def stop_losing(c: Cells, s: Cells, message: int) -> None:
    """Take a message out of those that have lost segments."""
    o = words(row_of(c[OUTGOING], message, OUTGOING_WORDS))
    if o[O_BEFORE] == NONE:
        s[S_FIRST_LOSING] = o[O_NEXT]
    else:
        words(row_of(c[OUTGOING], o[O_BEFORE], OUTGOING_WORDS))[O_NEXT] = o[O_NEXT]
    if o[O_NEXT] == NONE:
        s[S_LAST_LOSING] = o[O_BEFORE]
    else:
        words(row_of(c[OUTGOING], o[O_NEXT], OUTGOING_WORDS))[O_BEFORE] = o[O_BEFORE]


@compiled
def first_possible(s: Cells, o: Cells) -> int:
    """Return the first number of a message's segments that may be lost."""
    return max(o[O_FIRST_SEQUENCE], s[S_ARRIVED_TO])


@compiled
def take_again(c: Cells, flow: int, room: int, b: Cells) -> None:
    """Fill a burst with the first segments that were lost and follow each other (`SendFlow._again`)."""
    s = words(flow)
    message, lost = s[S_FIRST_LOSING], flow + WORD_BYTES * S_LOST
    o = words(row_of(c[OUTGOING], message, OUTGOING_WORDS))
    sequence = first_possible(s, o)
    while not is_set(lost, sequence, SENT_BITS):
        sequence += 1
    end, count = o[O_FIRST_SEQUENCE] + o[O_SEGMENTS], 0
    while count < room and sequence + count < end and is_set(lost, sequence + count, SENT_BITS):
        put_bit(lost, sequence + count, SENT_BITS, 0)
        count += 1
    o[O_LOST] -= count
    if o[O_LOST] == 0:
        stop_losing(c, s, message)
    s[S_AGAIN] += count
    b[B_MESSAGE], b[B_FIRST], b[B_COUNT] = message, sequence - o[O_FIRST_SEQUENCE], count


@compiled
def take_anew(c: Cells, flow: int, room: int, b: Cells) -> None:
    """Fill a burst with the next segments of the message under way (`SendFlow._anew`)."""
    s = words(flow)
    if s[S_CURRENT] == NONE:
        s[S_CURRENT] = next_waiting(c, flow)
        words(row_of(c[OUTGOING], s[S_CURRENT], OUTGOING_WORDS))[O_FIRST_SEQUENCE] = s[S_NEXT_SEQUENCE]
    message = s[S_CURRENT]
    o = words(row_of(c[OUTGOING], message, OUTGOING_WORDS))
    first = o[O_NEXT_UNSENT]
    count = min(room, min(o[O_SEGMENTS] - first, SPAN - (s[S_NEXT_SEQUENCE] - s[S_ARRIVED_TO])))
    o[O_NEXT_UNSENT] += count
    s[S_NEXT_SEQUENCE] += count
    if o[O_NEXT_UNSENT] == o[O_SEGMENTS]:
        s[S_CURRENT] = NONE
    b[B_MESSAGE], b[B_FIRST], b[B_COUNT] = message, first, count


@compiled
def next_burst(c: Cells, flow: int, now_ps: int, most: int) -> int:
    """Send at most `most` segments of a flow, at least one; return the flags of the last one (`SendFlow.next_burst`).

    The burst is the flow's newest one.
    """
    s = words(flow)
    room = max(1, min(most, (s[S_WINDOW] - s[S_IN_FLIGHT]) // c[FULL_BYTES]))
    if s[S_PROBING]:
        room, s[S_PROBING], s[S_PROBE] = 1, 0, s[S_NEXT_TRANSMISSION]
    again = s[S_FIRST_LOSING] != NONE
    b = words(burst_at(s, s[S_BURST_COUNT]))
    if again:
        take_again(c, flow, room, b)
    else:
        take_anew(c, flow, room, b)
    o = words(row_of(c[OUTGOING], b[B_MESSAGE], OUTGOING_WORDS))
    if o[O_SENT_PS] == NONE:
        o[O_SENT_PS] = now_ps
        if o[O_SENT_AT]:
            words(o[O_SENT_AT])[0] = now_ps
    b[B_SEQUENCE] = o[O_FIRST_SEQUENCE] + b[B_FIRST]
    b[B_TRANSMISSION], b[B_SENT_PS], b[B_IN_FLIGHT] = s[S_NEXT_TRANSMISSION], now_ps, (1 << b[B_COUNT]) - 1
    s[S_NEXT_TRANSMISSION] += b[B_COUNT]
    s[S_DEADLINE_PS] = now_ps + s[S_TIMEOUT_PS]
    s[S_IN_FLIGHT] += bytes_of(c, o, b[B_FIRST], b[B_IN_FLIGHT])
    s[S_BURST_COUNT] += 1
    flags = _LAST_OF_SLICE if b[B_FIRST] + b[B_COUNT] == o[O_SEGMENTS] else 0
    if again or s[S_IN_FLIGHT] + c[FULL_BYTES] > s[S_WINDOW]:
        flags |= _ASKS_ACK
    return flags | (_RETRANSMITTED if again else 0)


@compiled
def lose(c: Cells, flow: int, b: Cells, bits: int) -> None:
    """Take segments of a burst for lost (`SendFlow._lose`)."""
    s = words(flow)
    o = words(row_of(c[OUTGOING], b[B_MESSAGE], OUTGOING_WORDS))
    b[B_IN_FLIGHT] ^= bits
    s[S_IN_FLIGHT] -= bytes_of(c, o, b[B_FIRST], bits)
    if o[O_LOST] == 0:
        lose_message(c, s, b[B_MESSAGE])
    o[O_LOST] += counted(bits)
    for index in range(b[B_COUNT]):
        if bits >> index & 1:
            put_bit(flow + WORD_BYTES * S_LOST, b[B_SEQUENCE] + index, SENT_BITS, 1)


@compiled
def time_out(c: Cells, flow: int, now_ps: int) -> None:
    """Send the newest segment in flight again if the time-out has struck (`SendFlow.time_out`)."""
    s = words(flow)
    if not s[S_IN_FLIGHT] or now_ps < s[S_DEADLINE_PS]:
        return
    s[S_TIMEOUTS] += 1
    s[S_TIMEOUT_PS] = max(s[S_TIMEOUT_PS], min(2 * s[S_TIMEOUT_PS], LONGEST_TIMEOUT_PS))
    s[S_DEADLINE_PS] = now_ps + s[S_TIMEOUT_PS]
    place = s[S_BURST_COUNT] - 1
    while not words(burst_at(s, place))[B_IN_FLIGHT]:
        place -= 1
    b = words(burst_at(s, place))
    newest = b[B_COUNT] - 1
    while not b[B_IN_FLIGHT] >> newest & 1:
        newest -= 1
    lose(c, flow, b, 1 << newest)
    s[S_PROBING] = 1


@compiled
def measure_round_trip(c: Cells, s: Cells, transmission: int, now_ps: int) -> None:
    """Follow the round trip by the newest transmission that has arrived (`SendFlow._measure_round_trip`)."""
    if transmission <= s[S_SEEN]:
        return
    s[S_SEEN] = transmission
    place = s[S_BURST_COUNT] - 1
    while place >= 0 and words(burst_at(s, place))[B_TRANSMISSION] > transmission:
        place -= 1
    if place < 0:
        return
    b = words(burst_at(s, place))
    if transmission >= b[B_TRANSMISSION] + b[B_COUNT]:
        return
    sample = now_ps - b[B_SENT_PS]
    if s[S_ROUND_TRIP_PS] == 0:
        s[S_ROUND_TRIP_PS], s[S_DEVIATION_PS] = sample, sample // 2
    else:
        error = sample - s[S_ROUND_TRIP_PS]
        s[S_ROUND_TRIP_PS] += error >> 3
        s[S_DEVIATION_PS] += (abs(error) - s[S_DEVIATION_PS]) >> 2
    s[S_TIMEOUT_PS] = max(c[RTO_MIN_PS], s[S_ROUND_TRIP_PS] + 4 * s[S_DEVIATION_PS])


@compiled
def has_arrived(number: int, sequence: int, bitmap: int, size: int) -> bool:
    """Whether an acknowledgement says that a segment has arrived: all before a sequence, and a bitmap from there on."""
    at = number - sequence
    return at < 0 or (at < 8 * size and octets(bitmap)[at >> 3] >> (at & 7) & 1 != 0)


@compiled
def arrive(c: Cells, message: int, o: Cells, count: int) -> None:
    """Note that segments of a message have arrived."""
    o[O_UNARRIVED] -= count
    if o[O_UNARRIVED]:
        return
    if o[O_SENT_AT]:  # of an exchange
        let_go(o[O_BLOCK])
        words(c[FREE_OUTGOING])[c[FREE_OUTGOING_COUNT]] = message
        c[FREE_OUTGOING_COUNT] += 1
    else:
        tell(c, ARRIVED, message)


@compiled
def note_arrivals(c: Cells, flow: int, sequence: int, bitmap: int, size: int, end: int) -> int:
    """Take what has arrived out of what is in flight or lost; return bytes on the wire (`SendFlow._note_arrivals`)."""
    s, total = words(flow), 0
    for place in range(s[S_BURST_COUNT]):
        b = words(burst_at(s, place))
        if b[B_SEQUENCE] >= end or not b[B_IN_FLIGHT]:
            continue
        bits = b[B_IN_FLIGHT]
        if b[B_SEQUENCE] + b[B_COUNT] > sequence:
            for index in range(b[B_COUNT]):
                if not has_arrived(b[B_SEQUENCE] + index, sequence, bitmap, size):
                    bits &= ~(1 << index)
        if bits:
            o = words(row_of(c[OUTGOING], b[B_MESSAGE], OUTGOING_WORDS))
            b[B_IN_FLIGHT] ^= bits
            found = bytes_of(c, o, b[B_FIRST], bits)
            s[S_IN_FLIGHT] -= found
            total += found
            arrive(c, b[B_MESSAGE], o, counted(bits))
    message, lost = s[S_FIRST_LOSING], flow + WORD_BYTES * S_LOST
    while message != NONE:
        o = words(row_of(c[OUTGOING], message, OUTGOING_WORDS))
        following, last, count = o[O_NEXT], o[O_FIRST_SEQUENCE] + o[O_SEGMENTS] - 1, 0
        for number in range(first_possible(s, o), min(last + 1, end)):
            if is_set(lost, number, SENT_BITS) and has_arrived(number, sequence, bitmap, size):
                put_bit(lost, number, SENT_BITS, 0)
                count += 1
                total += c[FULL_BYTES]
                if number == last:
                    total -= c[PAYLOAD_BYTES] - o[O_LAST_BYTES]
        if count:
            o[O_LOST] -= count
            if o[O_LOST] == 0:
                stop_losing(c, s, message)
            arrive(c, message, o, count)
        message = following
    return total


@compiled
def open_window(c: Cells, s: Cells, size: int, marked: bool) -> None:
    """Open the window for acknowledged bytes, or close it by the share that was marked (`SendFlow._open_window`)."""
    if marked:
        s[S_SLOW_START_UNTIL] = min(s[S_SLOW_START_UNTIL], s[S_WINDOW])
    s[S_WINDOW] += size if s[S_WINDOW] < s[S_SLOW_START_UNTIL] else c[FULL_BYTES] * size // s[S_WINDOW]
    s[S_ROUND_BYTES] += size
    if marked:
        s[S_ROUND_MARKED] += size
    if s[S_ROUND_BYTES] >= s[S_WINDOW]:
        s[S_ALPHA] += (s[S_ROUND_MARKED] * ALPHA_ONE // s[S_ROUND_BYTES] - s[S_ALPHA]) >> ALPHA_SHIFT
        if s[S_ROUND_MARKED]:
            s[S_WINDOW] = max(c[FULL_BYTES], s[S_WINDOW] - s[S_WINDOW] * s[S_ALPHA] // (2 * ALPHA_ONE))
            s[S_SLOW_START_UNTIL] = s[S_WINDOW]
        s[S_ROUND_BYTES] = s[S_ROUND_MARKED] = 0
    s[S_WINDOW] = min(s[S_WINDOW], s[S_LARGEST_WINDOW])


@compiled
def lose_until(c: Cells, flow: int, transmission: int) -> bool:
    """Take for lost what is in flight and was sent no later than this (`SendFlow._lose_until`)."""
    s, any_lost = words(flow), False
    for place in range(s[S_BURST_COUNT]):
        b = words(burst_at(s, place))
        sent_by_then = transmission - b[B_TRANSMISSION] + 1
        if sent_by_then <= 0:
            break
        bits = b[B_IN_FLIGHT] & (1 << min(sent_by_then, MOST_BURST)) - 1
        if bits:
            any_lost = True
            lose(c, flow, b, bits)
    return any_lost


@compiled
def acknowledge(
    c: Cells, flow: int, sequence: int, transmission: int, marked: bool, bitmap: int, size: int, now_ps: int
) -> bool:
    """Take an acknowledgement (`SendFlow.acknowledge`); False: it is not of this flow, and changes nothing."""
    s = words(flow)
    sequence, transmission = unwrapped(sequence, s[S_ARRIVED_TO]), unwrapped(transmission, s[S_NEXT_TRANSMISSION])
    length = 8 * size
    while length and not octets(bitmap)[(length - 1) >> 3] >> ((length - 1) & 7) & 1:
        length -= 1
    end = sequence + length
    if sequence < 0 or end > s[S_NEXT_SEQUENCE] or transmission >= s[S_NEXT_TRANSMISSION]:
        return False
    measure_round_trip(c, s, transmission, now_ps)
    arrived_bytes = note_arrivals(c, flow, sequence, bitmap, size, end)
    s[S_ARRIVED_TO] = max(s[S_ARRIVED_TO], sequence)
    if arrived_bytes:
        open_window(c, s, arrived_bytes, marked)
        s[S_PROBING] = 0
        s[S_DEADLINE_PS] = now_ps + s[S_TIMEOUT_PS]
    lost_to = transmission - c[REORDERING]
    if transmission >= s[S_PROBE]:
        lost_to = max(lost_to, s[S_PROBE] - 1)
    if lose_until(c, flow, lost_to) and now_ps >= s[S_CUT_AGAIN_PS]:
        s[S_WINDOW] = max(c[FULL_BYTES], s[S_WINDOW] // 2)
        s[S_SLOW_START_UNTIL] = s[S_WINDOW]
        s[S_CUT_AGAIN_PS] = now_ps + s[S_ROUND_TRIP_PS]
    while s[S_BURST_COUNT] and not words(burst_at(s, 0))[B_IN_FLIGHT]:
        s[S_FIRST_BURST] += 1
        s[S_BURST_COUNT] -= 1
    return True


@compiled
def is_done(s: Cells) -> bool:
    """Whether every message of a flow has been acknowledged."""
    return s[S_BURST_COUNT] == 0 and s[S_WAITING] == 0 and s[S_FIRST_LOSING] == NONE and s[S_CURRENT] == NONE


# Which flow sends next: `Scheduler`


@compiled
def occupied_ps(size: int, rate_bps: int) -> int:
    """Return how long some bytes occupy a link, rounded up (`serialisation_ps`), in steps that fit a word."""
    seconds, rest = 8 * size // rate_bps, 8 * size % rate_bps
    whole_us, rest_us = rest * 10**6 // rate_bps, rest * 10**6 % rate_bps
    return seconds * _PS_PER_S + whole_us * _PS_PER_US - (-rest_us * 10**6 // rate_bps)


@compiled
def sent_in(time: int, rate_bps: int) -> int:
    """Return how many bytes a link sends in a time, rounded down, in steps that fit a word."""
    bits_us = time // _PS_PER_US * rate_bps
    rest = bits_us % (8 * 10**6) * 10**6 + time % _PS_PER_US * rate_bps
    return bits_us // (8 * 10**6) + rest // (8 * _PS_PER_S)


@compiled
def in_flight_bytes(c: Cells) -> int:
    """Return the bytes on the wire over all flows that are neither acknowledged nor given up."""
    total = 0
    for place in range(c[ACTIVE_COUNT]):
        total += words(row_of(c[SENDING], words(c[ACTIVE])[place], SENDING_WORDS))[S_IN_FLIGHT]
    return total


@compiled
def room_for(c: Cells, is_probing: bool, now_ps: int) -> int:
    """Return how many full segments credit and link let through now (`Scheduler._room`)."""
    room = 1 << 30
    if c[CREDIT_BYTES] and not is_probing:
        in_flight = in_flight_bytes(c)
        room = max((c[CREDIT_BYTES] - in_flight) // c[FULL_BYTES], 0 if in_flight else 1)
    if c[RATE_BPS]:
        room = min(room, max(1, sent_in(max(0, now_ps - c[FREE_PS]), c[RATE_BPS]) // c[FULL_BYTES]))
    return room


@compiled
def chosen(c: Cells) -> int:
    """Return the flow that goes next; `NONE`: none may send."""
    best, best_head, best_key, best_served = NONE, 0, 0, 0
    for place in range(c[ACTIVE_COUNT]):
        flow = words(c[ACTIVE])[place]
        s = words(row_of(c[SENDING], flow, SENDING_WORDS))
        head = head_of(c, s)
        if head == NONE:
            continue
        key, served = key_of(c, s), s[S_SERVED]
        if (
            best == NONE
            or head < best_head
            or (head == best_head and (key < best_key or (key == best_key and served < best_served)))
        ):
            best, best_head, best_key, best_served = flow, head, key, served
    return best


@compiled
def next_event(core: int, now_ps: int) -> int:
    """Return when there is something to do if nothing arrives: time-outs, or a free link; `NONE`: never."""
    c = words(core)
    due, waiting, probing = NEVER, False, False
    for place in range(c[ACTIVE_COUNT]):
        s = words(row_of(c[SENDING], words(c[ACTIVE])[place], SENDING_WORDS))
        if s[S_IN_FLIGHT]:
            due = min(due, s[S_DEADLINE_PS])
        if head_of(c, s) != NONE:
            waiting, probing = True, probing or s[S_PROBING] != 0
    if c[RATE_BPS] and waiting and not c[HELD_BYTES] and room_for(c, probing, now_ps) >= 1:
        due = min(due, c[FREE_PS])
    return NONE if due == NEVER else due
