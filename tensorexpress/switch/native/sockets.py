"""Batches of frames from the kernel and to it: many for one system call, or without any from a ring."""

from __future__ import annotations

import errno
import socket

from tensorexpress.compiled_functions import compiled
from tensorexpress.switch.native.cables import write_stamp
from tensorexpress.switch.native.captures import has_room, record_frame
from tensorexpress.switch.native.machine import (
    Cells,
    acquire,
    errno_at,
    halves,
    octets,
    recvmmsg,
    release,
    sendmmsg,
    words,
)
from tensorexpress.switch.native.queues import give_back
from tensorexpress.switch.native.words import *
from tensorexpress.switch.offload import VIRTIO_HEADER

_WITHOUT_WAITING = int(socket.MSG_DONTWAIT)
_HALF = 2**32 - 1
_VIRTIO_BYTES = VIRTIO_HEADER.size
_STATUS_PLAIN = 1
_PS_PER_NS = 1000

_REFUSED, _INTERRUPTED = errno.ECONNREFUSED, errno.EINTR

#: An entry of what was sent that is in the kernel's hands.
_GONE = -1


@compiled
def _note_arrival(m: Cells, port: int, now_ps: int, frame: int, length: int) -> None:
    a = words(m[ARRIVALS] + WORD * ARRIVAL_WORDS * m[ARRIVAL_COUNT])
    m[ARRIVAL_COUNT] += 1
    a[A_PORT], a[A_TIME], a[A_FRAME], a[A_LENGTH] = port, now_ps, frame, length


@compiled
def take_batch(m: Cells, port: int, descriptor: int, now_ps: int) -> int:
    """Make arrivals of the datagrams of a socket; return how many there were. An empty one is no frame."""
    m[ARRIVED] = m[ARRIVAL_COUNT] = m[RECORDED] = 0
    count = recvmmsg(descriptor, m[RX_MESSAGES], BATCH, _WITHOUT_WAITING, 0)
    for index in range(count):
        message = words(m[RX_MESSAGES] + WORD * MESSAGE_WORDS * index)
        length = message[MESSAGE_LENGTH] & _HALF
        if length:
            _note_arrival(m, port, now_ps, words(message[MESSAGE_PIECES])[0], length)
    return count


def take_datagrams(memory: int, port: int, descriptor: int, now_ps: int) -> int:
    """Make arrivals of the datagrams of a socket; return how many there were."""
    return take_batch(words(memory), port, descriptor, now_ps)


@compiled
def _is_plain(slot: int, slot_bytes: int) -> bool:
    """Whether a slot holds a whole frame that nobody has to finish."""
    s = words(slot)
    link, kept = s[1] >> 32 & 0xFFFF, s[1] & _HALF
    if s[0] & _HALF != _STATUS_PLAIN or s[0] >> 32 & _HALF != kept or link < _VIRTIO_BYTES or link + kept > slot_bytes:
        return False
    header, found = octets(slot + link - _VIRTIO_BYTES), 0
    for index in range(_VIRTIO_BYTES):
        found |= header[index]
    return found == 0


@compiled
def take_ring(m: Cells, port: int, now_ps: int) -> int:
    """Make arrivals of the frames in the ring of a port, up to one that Python has to finish; return how many.

    They stay there until `release_ring`.
    """
    m[ARRIVED] = m[ARRIVAL_COUNT] = m[RECORDED] = 0
    p = words(port)
    position = words(p[P_RING_POSITION])[0]
    while m[ARRIVAL_COUNT] < RING_BATCH:
        slot = p[P_RING] + position
        if acquire(slot) & _STATUS_PLAIN == 0 or not _is_plain(slot, p[P_SLOT_BYTES]):
            break
        s = words(slot)
        _note_arrival(m, p[P_NUMBER], now_ps, slot + (s[1] >> 32 & 0xFFFF), s[1] & _HALF)
        position = (position + p[P_SLOT_BYTES]) % p[P_RING_BYTES]
    m[SLOTS_PORT], m[SLOTS_TAKEN] = port, m[ARRIVAL_COUNT]
    return m[ARRIVAL_COUNT]


@compiled
def release_ring(m: Cells) -> None:
    """Let the kernel have slots again whose frames have arrived, or were copied."""
    while m[SLOTS_TAKEN] > 0:
        p = words(m[SLOTS_PORT])
        position = words(p[P_RING_POSITION])
        release(p[P_RING] + position[0], 0)
        position[0] = (position[0] + p[P_SLOT_BYTES]) % p[P_RING_BYTES]
        m[SLOTS_TAKEN] -= 1


def take_slots(memory: int, port: int, now_ps: int) -> int:
    """Make arrivals of the frames in the ring of a port; return how many there are."""
    return take_ring(words(memory), port, now_ps)


def release_slots(memory: int) -> int:
    """Let the kernel have the slots of arrivals again."""
    release_ring(words(memory))
    return 0


@compiled
def _record_sent(m: Cells, p: Cells, first: int, count: int, time_ns: int) -> None:
    """Write messages down that were sent, if somebody captures them; there is room for them."""
    for index in range(first, first + count):
        piece = words(words(m[TX_MESSAGES] + WORD * MESSAGE_WORDS * index)[MESSAGE_PIECES])
        record_frame(m, p[P_SENT], time_ns, piece[0], piece[1] - p[P_LEAVING + LINE_STAMP_BYTES])


@compiled
def _send_messages(m: Cells, p: Cells, count: int, time_ns: int) -> None:
    """Send a batch of frames; those that the interface does not take are dropped."""
    done = 0
    while done < count:
        sent = sendmmsg(p[P_DESCRIPTOR], m[TX_MESSAGES] + WORD * MESSAGE_WORDS * done, count - done, _WITHOUT_WAITING)
        if sent <= 0:
            why = halves(errno_at())[0]
            if why == _INTERRUPTED:
                continue
            if why != _REFUSED:
                p[P_REFUSED] += 1
                done += 1
                continue
            sent = 1  # a cable does not say that nobody listens, so neither does a wire
        if p[P_SENT] != 0:
            _record_sent(m, p, done, sent, time_ns)
        done += sent


@compiled
def _send_of_port(m: Cells, start: int, time_ns: int) -> int:
    """Send a batch of what left at the port of an entry, that and later ones; return how many these are.

    They are none where their capture has no room left.
    """
    number, count, captured = words(m[SENT] + WORD * SENT_WORDS * start)[S_PORT], 0, 0
    p = words(words(m[PORT_AT])[number])
    for index in range(start, m[SENT_COUNT]):
        s = words(m[SENT] + WORD * SENT_WORDS * index)
        if s[S_PORT] != number:
            continue
        captured += CAPTURE_HEAD_BYTES + s[S_LENGTH]
        if not has_room(p[P_SENT], captured):
            break
        message = words(m[TX_MESSAGES] + WORD * MESSAGE_WORDS * count)
        piece = words(message[MESSAGE_PIECES])
        piece[0], piece[1] = s[S_RECORD] + RECORD_BYTES, s[S_LENGTH] + p[P_LEAVING + LINE_STAMP_BYTES]
        if p[P_LEAVING + LINE_STAMP_BYTES] != 0:
            write_stamp(piece[0] + s[S_LENGTH], m[STARTED_NS] + s[S_TIME] // _PS_PER_NS)
        s[S_PORT] = _GONE
        give_back(m, s[S_RECORD])  # nobody takes it before it is sent
        count += 1
        if count == BATCH:
            break
    _send_messages(m, p, count, time_ns)
    return count


@compiled
def send_left(m: Cells, time_ns: int) -> bool:
    """Send everything that has left, in order at every port, and write it down as sent at a time.

    False where something could not be written down: somebody is to empty trays, and to call again.
    """
    for index in range(m[SENT_COUNT]):
        left = words(m[SENT] + WORD * SENT_WORDS * index)[S_PORT] != _GONE
        if left and _send_of_port(m, index, time_ns) == 0:
            return False
    m[SENT_COUNT] = 0
    return True


def send_all(memory: int, time_ns: int) -> int:
    """Send everything that has left; 0 where trays are to be emptied first."""
    return 1 if send_left(words(memory), time_ns) else 0
