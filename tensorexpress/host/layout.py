"""Numbers that Python and machine code share: where in memory things are, and what Linux calls them."""

from __future__ import annotations

#: Words of Linux's msghdr: who sent it, the pieces of memory that it fills, what else is known of it, their lengths.
NAME, NAME_BYTES, PIECES, PIECE_COUNT, CONTROL, CONTROL_BYTES = range(6)
MESSAGE_WORDS = 7

#: Room for any socket address, and for all that the kernel says of a message.
NAME_ROOM, CONTROL_ROOM = 32, 128

#: Words that say what was received and is not what was expected: bytes of all datagrams and of each, whether a switch
#: marked them, and the bytes of the address that they are from; and the flags of all segments that were expected.
FOUND_BYTES, FOUND_STRIDE, FOUND_MARKED, FOUND_NAME_BYTES, FOUND_FLAGS = range(5)
FOUND_WORDS = 5

#: Words that say who takes frames from a wire: the descriptor of its socket, the port, the address and its bytes.
OWN_WIRE, OWN_PORT, OWN_IP_BYTES, OWN_IP = range(4)
OWN_WORDS = 6

#: Words that say what was found in frames: the bytes of one that was not taken yet, where in it the datagram is, its
#: bytes, and whether a switch marked it; and of those that were taken bytes of each, marks, port and address.
(
    FRAME_PENDING_BYTES, FRAME_DATAGRAM, FRAME_DATAGRAM_BYTES, FRAME_IS_MARKED, FRAME_STRIDE, FRAME_MARKED,
    FRAME_SOURCE_PORT, FRAME_SOURCE,
) = range(8)  # fmt: skip
FRAME_WORDS = 9

WORD_BYTES = 8

#: Where the fields of a segment's headers begin, which docs/wire.md draws, in bytes.
H_KIND, H_FLAGS, H_JOB, H_WORKER, H_ITERATION, H_TENSOR, H_CHUNK, H_SLACK, H_LENGTH, H_CRC = (
    2, 3, 4, 6, 8, 12, 16, 24, 28, 32
)  # fmt: skip
H_SESSION, H_FLOW, H_SEQUENCE, H_TRANSMISSION, H_MESSAGE, H_OFFSET, H_TOTAL = 36, 40, 44, 48, 52, 56, 60

#: The length, level and kind before what the kernel says of a message.
CONTROL_HEADER_BYTES = 16

# Linux's udp.h and in.h; Python's socket module has only some of them.
UDP_LEVEL, UDP_SEGMENT, UDP_GRO = 17, 103, 104
IP_TOS, IP_RECVTOS = 1, 13
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, DO_NOT_FRAGMENT = 10, 23, 2
IPV6_RECVTCLASS, IPV6_TCLASS = 66, 67

#: ECN: "can be marked", sent with every segment; "has been marked" by a switch on the way.
ECT, CE = 2, 3
