"""Words that Python and the machine code of flows (`flow_kernel.py`) share; rows of tables are numbered from 0.

Sets of segments are bits: of a burst in one word, of a flow in a ring in which segment n is bit n modulo its length.
Times are in picoseconds since the endpoint began, so that they fit a word however long the machine is up.
"""

from __future__ import annotations

from tensorexpress.host.flow import SPAN

WORD_BYTES, WORD_BITS = 8, 64

#: Most segments of a burst: those of which a word has a bit each, without its sign.
MOST_BURST = 62

#: Bits of the rings: what a sender may have on the way, and what a receiver can tell apart, which is one more.
SENT_BITS, ARRIVED_BITS = SPAN, 2 * SPAN

NONE = -1

#: A time that does not come, a window without a limit; and what descriptors are polled for.
NEVER = 1 << 62
READABLE, WRITABLE = 1, 4

#: Of the whole endpoint. Tables are addresses, and so are the headers of acknowledgements and what sockets need.
(
    PHASE, WAKE_PS, REST_PS, ORIGIN_NS, DRAINED_PS, IS_LEFT, BLOCKED, BLOCKED_ON, ERROR,
    IS_WIRE, IS_STAMPED, LEAVES_PS, OWN, FOUND, RECEIVED, STAGE, STAGE_BYTES, LEAVING, FRAME_HEADER_BYTES,
    DESCRIPTOR, TOGETHER, TOS, PRIORITY, CUT_BYTES, OPTION, HELD, HELD_AT, HELD_BYTES, HELD_ROUTE,
    COME_AT, COME_BYTES, COME_STRIDE, COME_MARKED, PENDING, PENDING_BYTES, PENDING_PEER,
    POLLED, POLLED_COUNT, TIME, ACK_HEADER, RUN_HEADER,
    PEERS, PEER_COUNT, SENDING, RECEIVING, OUTGOING, INCOMING, ACTIVE, ACTIVE_COUNT, DUE, DUE_COUNT, EVENTS,
    EVENT_COUNT, SESSION, PAYLOAD_BYTES, FULL_BYTES, ACK_EVERY, RTO_MIN_PS, REORDERING, CREDIT_BYTES, RATE_BPS,
    WEIGHS_TURNS, MOST_SEGMENTS, SERVED_COUNT, FREE_PS, IS_IDLE,
    FREE_OUTGOING, FREE_OUTGOING_COUNT, FREE_INCOMING, FREE_INCOMING_COUNT, EXCHANGES, EXCHANGE_COUNT, MOST_SENT,
    HOST_ORDER,
    N_SENT, N_RECEIVED, N_ACKS_SENT, N_ACKS_RECEIVED, N_MARKED, N_STRANGERS, N_MALFORMED, N_CORRUPT, N_FOREIGN,
    N_IMPLAUSIBLE, N_REFUSED, N_IGNORED,
) = range(86)  # fmt: skip
CORE_WORDS = 86

#: How a kernel socket sends to a peer, by class of traffic: socket address, its bytes, byte of the class, priority.
#: Over a wire it is what frames begin with.
A_PLACE, A_PLACE_BYTES, A_TOS, A_PRIORITY = range(4)

#: What machine code can be asked to do.
RUN_ON, TAKE_FRAMES, ACKNOWLEDGE_ALL, GIVE, NEXT_EVENT, OFFER, RETIRE, GO_ON_FROM, LET_GO = range(9)

#: What the endpoint does next.
TAKING, GIVING, WAITING = range(3)

#: What it cannot go on without: a flow from a peer, memory for a message, rows for messages, room for what a flow has
#: on the way.
NOTHING, NEW_FLOW, NEW_MESSAGE, MORE_ROWS, MORE_ROOM = range(5)

#: What Python is told, with the row that it is about: all of a message has come, or was acknowledged; a peer leaves.
#: Of exchanges, with a node, behind the number of its exchange: a gate has opened; a sum is made and takes time; a sum
#: is wrong; a message is for a peer that has left; everything was given away.
COME, ARRIVED, DEPARTED, OPENED, DELAYED, WRONG, UNWANTED, GIVEN_AWAY = range(8)
BY_EXCHANGE = 1 << 32

#: Of a peer: port and address (two words), when it was last heard of and sent something, whether it is gone, its first
#: flows, and the route of acknowledgements to it.
P_PORT, P_IP, P_IP_REST, P_HEARD_PS, P_SENT_PS, P_GONE, P_SENDING, P_RECEIVING, P_ROUTE = range(9)
PEER_WORDS = 9

#: Of a flow to a peer, as `SendFlow` has it. Messages that wait are a heap, which begins with the first.
(
    S_FLOW, S_PEER, S_NEXT, S_IS_ACTIVE, S_IN_FLIGHT, S_LARGEST_WINDOW, S_WINDOW, S_DEADLINE_PS, S_TIMEOUT_PS, S_AGAIN,
    S_TIMEOUTS, S_PROBING, S_PROBE, S_SERVED, S_TURN, S_OFFERED, S_CURRENT, S_FIRST_LOSING, S_LAST_LOSING,
    S_NEXT_SEQUENCE, S_NEXT_TRANSMISSION, S_ARRIVED_TO, S_SEEN, S_SLOW_START_UNTIL, S_CUT_AGAIN_PS, S_ALPHA,
    S_ROUND_BYTES, S_ROUND_MARKED, S_ROUND_TRIP_PS, S_DEVIATION_PS, S_FIRST_WAITING, S_WAITING, S_BURSTS, S_BURST_ROOM,
    S_FIRST_BURST, S_BURST_COUNT, S_LOST,
) = range(37)  # fmt: skip
SENDING_WORDS = S_LOST + SENT_BITS // WORD_BITS

#: Of a burst: row of its message, segment of that, how many, number in the flow and of the transmission, when, and
#: which have neither arrived nor been given up.
B_MESSAGE, B_FIRST, B_COUNT, B_SEQUENCE, B_TRANSMISSION, B_SENT_PS, B_IN_FLIGHT = range(7)
BURST_WORDS = 8

#: Of a flow from a peer, as `ReceiveFlow` has it; what it says of the last segment is what an acknowledgement repeats.
(
    R_FLOW, R_PEER, R_NEXT, R_EXPECTED, R_END, R_TRANSMISSION, R_UNACKNOWLEDGED, R_AT_ONCE, R_MARKED, R_DUPLICATES,
    R_IS_DUE, R_MESSAGE, R_WORKER, R_ITERATION, R_SLACK_US, R_BITS,
) = range(16)  # fmt: skip
RECEIVING_WORDS = R_BITS + ARRIVED_BITS // WORD_BITS

#: Of a message that is sent, as `Outgoing` has it; with the headers of its first segment. While it waits it has its
#: number in the flow, and others of the heap below it. One of an exchange has a block of memory, and a word for when it
#: was sent.
(
    O_FLOW, O_KEY, O_LENGTH, O_SEGMENTS, O_LAST_BYTES, O_FIRST_SEQUENCE, O_NEXT_UNSENT, O_SENT_PS, O_LOST, O_UNARRIVED,
    O_PAYLOAD, O_DEADLINE_PS, O_ROUTE, O_NEXT, O_BEFORE, O_OFFERED, O_LEFT, O_RIGHT, O_BLOCK, O_SENT_AT, O_HEADER,
) = range(21)  # fmt: skip
OUTGOING_WORDS = O_HEADER + 8

#: Of a message that comes: its flow, what tells it from others, its memory, and the next one of the flow. Of one for an
#: exchange, that one's address, and the node.
(
    I_FLOW, I_KIND, I_ITERATION, I_TENSOR, I_NUMBER, I_MEMORY, I_LENGTH, I_MISSING, I_NEXT, I_EXCHANGE, I_NODE,
) = range(11)  # fmt: skip
INCOMING_WORDS = 11
