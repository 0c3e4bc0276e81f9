"""Frames of UDP wires as machine code: what `build_frame` and `datagram_in` do in Python, for many frames at a time.

`native.py` loads what is made of this, mostly without numba.
"""

from __future__ import annotations

import errno
import socket

from tensorexpress.compiled_functions import compiled
from tensorexpress.framing import SEGMENT_HEADER_BYTES
from tensorexpress.host.kernel import word_at, write_rows
from tensorexpress.host.layout import (
    CE,
    FRAME_DATAGRAM,
    FRAME_DATAGRAM_BYTES,
    FRAME_IS_MARKED,
    FRAME_MARKED,
    FRAME_PENDING_BYTES,
    FRAME_SOURCE,
    FRAME_SOURCE_PORT,
    FRAME_STRIDE,
    OWN_IP,
    OWN_IP_BYTES,
    OWN_PORT,
    OWN_WIRE,
    UDP_LEVEL,
    WORD_BYTES,
)
from tensorexpress.switch.native.machine import copy, errno_at, halves, octets, recv, sendto, words

_WITHOUT_WAITING = int(socket.MSG_DONTWAIT)
_REFUSED = errno.ECONNREFUSED

_ETHERNET_BYTES, _UDP_BYTES = 14, 8
_IPV4_BYTES, _IPV6_BYTES = 20, 40


# The Internet checksum of words whose bytes are swapped is the checksum with its bytes swapped (RFC 1071): all sums are
# of words as this processor reads them, the lower byte first.


@compiled
def added(address: int, size: int) -> int:
    """Return the sum of some bytes, as 16-bit words or longer ones, which the checksum does not tell apart."""
    total = 0
    for at in range(0, size - 7, 8):
        word = word_at(address + at)
        total += (word & 0xFFFFFFFF) + (word >> 32 & 0xFFFFFFFF)
    memory = octets(address)
    for at in range(size - size % 8, size):
        total += memory[at] << 8 * (at & 1)
    return total


@compiled
def folded(total: int) -> int:
    """Return a sum in 16 bits, with every carry added in again."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@compiled
def number_at(address: int) -> int:
    """Return 16 bits in the order of the network."""
    memory = octets(address)
    return memory[0] << 8 | memory[1]


@compiled
def sum_of_udp(network: int, addresses: int, address_bytes: int, udp: int, length: int) -> int:
    """Return the sum over a UDP datagram and the pseudo-header that goes before it."""
    pseudo = added(network + addresses, address_bytes) + ((length & 255) << 8 | length >> 8) + (UDP_LEVEL << 8)
    return folded(pseudo + added(udp, length))


@compiled
def finish_udp(frame: int, headers: int, length: int) -> None:
    """Write the checksum of the UDP datagram of a frame, in which it is 0, behind so many bytes of headers."""
    network, udp = frame + _ETHERNET_BYTES, frame + headers - _UDP_BYTES
    if headers == _ETHERNET_BYTES + _IPV4_BYTES + _UDP_BYTES:
        total = sum_of_udp(network, 12, 8, udp, length)
    else:
        total = sum_of_udp(network, 8, 32, udp, length)
    found = ~total & 0xFFFF
    if found == 0:  # which would mean that there is none
        found = 0xFFFF
    memory = octets(udp)
    memory[6], memory[7] = found & 255, found >> 8


def send_frames(
    descriptor: int, headers: int, last_headers: int, header_bytes: int, run: int, stage: int, stride: int, count: int,
    payload: int, slack: int, last_flags: int, last_bytes: int,
) -> int:  # fmt: skip
    """Send the segments of a run behind headers of a frame, the last one behind its own; `run` is the first's header.

    Frames for which there is no room are lost, as on a cable.
    """
    for row in range(count):
        size = stride
        if row == count - 1:
            headers, size = last_headers, SEGMENT_HEADER_BYTES + last_bytes
        copy(stage, headers, header_bytes)
        write_rows(run, stage + header_bytes, stride, row, 1, payload, slack, count - 1, last_flags, last_bytes)
        finish_udp(stage, header_bytes, _UDP_BYTES + size)
        sendto(descriptor, stage, header_bytes + size, _WITHOUT_WAITING, 0, 0)
    return count


def send_frame(descriptor: int, headers: int, header_bytes: int, stage: int, content: int, size: int) -> int:
    """Send one datagram behind the headers of a frame; return what the kernel says."""
    copy(stage, headers, header_bytes)
    copy(stage + header_bytes, content, size)
    finish_udp(stage, header_bytes, _UDP_BYTES + size)
    return sendto(descriptor, stage, header_bytes + size, _WITHOUT_WAITING, 0, 0)


@compiled
def is_equal(one: int, other: int, size: int) -> bool:
    """Whether some bytes are the same at two places."""
    differs = 0
    for at in range(size):
        differs |= octets(one)[at] ^ octets(other)[at]
    return differs == 0


@compiled
def find_datagram(frame: int, size: int, own: int, found: int) -> bool:
    """Whether a frame holds a UDP datagram that a kernel would give to a socket of `own`; say where, if it does."""
    o, f, memory = words(own), words(found), octets(frame)
    network = frame + _ETHERNET_BYTES
    if o[OWN_IP_BYTES] == 4:
        udp = _ETHERNET_BYTES + _IPV4_BYTES
        if size < udp + _UDP_BYTES or number_at(frame + 12) != 0x0800 or memory[14] != 0x45 or memory[23] != UDP_LEVEL:
            return False
        if folded(added(network, _IPV4_BYTES)) != 0xFFFF or number_at(frame + 20) & 0x3FFF:
            return False
        total, traffic_class, addresses = _ETHERNET_BYTES + number_at(frame + 16), memory[15], 12
    else:
        udp = _ETHERNET_BYTES + _IPV6_BYTES
        if size < udp + _UDP_BYTES or number_at(frame + 12) != 0x86DD or memory[20] != UDP_LEVEL:
            return False
        total, traffic_class, addresses = udp + number_at(frame + 18), number_at(frame + 14) >> 4, 8
    length = number_at(frame + udp + 4)
    source = network + addresses
    if length < _UDP_BYTES or udp + length != total or total > size or number_at(frame + udp + 2) != o[OWN_PORT]:
        return False
    if not is_equal(source + o[OWN_IP_BYTES], own + WORD_BYTES * OWN_IP, o[OWN_IP_BYTES]):
        return False
    is_summed = memory[udp + 6] | memory[udp + 7]
    if is_summed and sum_of_udp(network, addresses, 2 * o[OWN_IP_BYTES], frame + udp, length) != 0xFFFF:
        return False
    f[FRAME_DATAGRAM], f[FRAME_DATAGRAM_BYTES] = udp + _UDP_BYTES, length - _UDP_BYTES
    f[FRAME_IS_MARKED] = int(traffic_class & 3 == CE)
    return True


def receive_frames(own: int, stage: int, stage_bytes: int, memory: int, most_bytes: int, found: int) -> int:
    """Receive datagrams of one sender and size, one after the other, in frames for `own`; return their bytes.

    A shorter one may be the last of them. The first frame that is anything else waits in the stage, with its bytes in
    `found`, and is the first one next time: if no bytes were received, it is not for `own` at all, and for somebody
    else to look at.
    """
    o, f = words(own), words(found)
    ip_bytes, source = o[OWN_IP_BYTES], found + WORD_BYTES * FRAME_SOURCE
    received = 0
    while True:
        size = f[FRAME_PENDING_BYTES]
        if size == 0:
            size = recv(o[OWN_WIRE], stage, stage_bytes, _WITHOUT_WAITING)
        if size == 0 or (size < 0 and halves(errno_at())[0] == _REFUSED):
            continue  # an empty datagram, or word that the other end was not there: a cable does not tell
        if size < 0:
            return received
        f[FRAME_PENDING_BYTES] = size
        if not find_datagram(stage, size, own, found) or f[FRAME_DATAGRAM_BYTES] == 0:
            return received
        length, port = f[FRAME_DATAGRAM_BYTES], number_at(stage + f[FRAME_DATAGRAM] - _UDP_BYTES)
        there = stage + f[FRAME_DATAGRAM] - _UDP_BYTES - 2 * ip_bytes
        if received == 0:
            copy(source, there, ip_bytes)
            f[FRAME_SOURCE_PORT], f[FRAME_STRIDE], f[FRAME_MARKED] = port, length, f[FRAME_IS_MARKED]
        elif (
            length > f[FRAME_STRIDE]
            or received + length > most_bytes
            or f[FRAME_IS_MARKED] != f[FRAME_MARKED]
            or port != f[FRAME_SOURCE_PORT]
            or not is_equal(source, there, ip_bytes)
        ):
            return received
        copy(memory + received, stage + f[FRAME_DATAGRAM], length)
        received += length
        f[FRAME_PENDING_BYTES] = 0
        if length < f[FRAME_STRIDE]:
            return received
