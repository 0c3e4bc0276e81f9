"""Columns: where the compiled engine keeps what, in its one flat memory of int64.

A thing (a port, a flow, a message, a packet ...) is the address of its row, and `m[flow + F_WINDOW]` is a field of it.
"""

from __future__ import annotations

from tensorexpress.sim.flat_plan import NEVER as NEVER

NONE = -1

# Fields at the start of the memory.
(NOW, EVENTS, EVENT_COUNT, TOP_IS_FREE, SLEEPERS, SLEEPER_COUNT, OPEN_UNTIL, BUCKETS, BUCKET_SHIFT, BUCKETED,
 FREE_EVENT, STACK, FREE, FREE_COUNT, LOGGED, RUNNING, RETRANSMISSIONS, TIMEOUTS, TRANSMISSIONS, SEQUENCE, STATUS,
 DISCIPLINE, QUEUES, OWN, COMMON, SLACK_MODE, ECN, LOSS, SEED, HOST_ORDER, CREDIT, PAYLOAD, HEADER, ACK_SIZE, ACKS,
 ACK_EVERY, LARGEST_WINDOW, RTO_MIN, REORDERING, NEWER_SUMS, ROUNDS, OTHER_RANK, OTHER_SLACK, LOGGING,
 TRAINS, QUEUE_SHARE, CHUNK, HEAD_BYTES, SPARE, CELLS, CHECKSUMS, PREEMPTS, SUM_PACKET, SERVER_SUMS, WHOLE_SUMS,
 SERVER_PACKETS, COLLISIONS, EVICTIONS, WEIGHS_TURNS, FLOWS, PLACES, HEAD) = range(62)  # fmt: skip

# Events that wait in buckets, of each of which the first is known.
Y_TIME, Y_PLACE, Y_NEXT, EVENT_COLUMNS = range(4)
BUCKET_COUNT = 1024

# Words of a cache line. Rows that are many, and that every packet touches, start with one.
LINE = 8

# Of rows that are many, addresses and counts have half a word each: such columns, here called small, count in halves
# from the start of the row, and `halves(m, packet)[P_SIZE]` is one of them. So a program has MOST_WORDS at the most.
MOST_WORDS = 1 << 31

# Packets, one cache line: many wait in a large cluster. NEXT links a queue, a link or the free list. Of columns that
# share a place, one is used at a time: a packet is on a link or in a queue; data ASKS for acknowledgements, and one of
# these tells what is ACKED_TO, both times ONE_ACK, plus MARKED. Where switches sum, TRANSMISSION is its number in the
# stream, ADDER where it goes, ORIGIN from which of its children, twice, and one more if it was sent again; where slots
# are found by hash, WORKERS is whose values are in it.
P_ARRIVES, P_SENT = range(2)
(P_NEXT, P_SIZE, P_HOP, P_END, P_KIND, P_RANK, P_FLOW, P_MESSAGE, P_ITERATION, P_CHUNK, P_TRANSMISSION,
 P_ACKED_TO) = range(4, 16)  # small  # fmt: skip
P_ENQUEUED, P_ASKS = P_ARRIVES, P_ACKED_TO
ONE_ACK, MARKED = 2, 1
P_NUMBER, P_ADDER, P_ORIGIN, P_WORKERS = P_TRANSMISSION, P_ACKED_TO, P_ITERATION, P_SENT
PACKET_COLUMNS = LINE

# Behind a packet that has a slack, or waits in the heap of a PIFO, whose children are NEXT and RIGHT.
P_SLACK, P_SORTED_BY, P_SEQUENCE, P_RIGHT = range(PACKET_COLUMNS, PACKET_COLUMNS + 4)
LONG_PACKET_COLUMNS = 2 * LINE

# Ports, one per directed link, a cache line each for the link and for what is sent on it, which is the buffer of a
# switch or, in the same place, the flows of a host; then the rest. A packet on a link knows when the NEXT one on it
# ARRIVES. FILLED has a bit for every queue in which something waits.
(L_HEAD, L_TAIL, L_BUSY_UNTIL, L_BYTES, L_RATE, L_DELAY, L_IS_HOST, L_IS_PACED,
 L_IDLE, L_BUSY, L_QUEUES, L_FILLED, L_COMMON, L_BACKLOG, L_PEAK, L_ROOT,
 L_INDEX, L_CARRIED, L_DROPS, L_OTHER_DROPS, L_LOSSES, L_MARKS, L_OUT_LANE, L_SERVER_BUSY,
 PORT_COLUMNS) = range(25)  # fmt: skip
(L_CONTROL, L_CONTROL_TAIL, L_SERVED, L_IN_FLIGHT, L_READY, L_READY_COUNT) = range(L_QUEUES, L_QUEUES + 6)

# Lanes of hosts: what is under way, and what waits.
S_NODE, S_BUSY, S_IS_OUT, S_TAKEN, S_HEAP, S_WAITING, LANE_COLUMNS = range(7)

Q_HEAD, Q_TAIL, Q_BYTES, Q_BOUND, QUEUE_COLUMNS = range(5)

# Flows, two cache lines for what sending and acknowledgements touch, and one for the rest. KEY is that of the slice of
# which it sends next: the CURRENT one, or the first that is pending. OLDEST and NEWEST are the ends of its list of
# runs. A stream, whose packets switches sum, has no window, and is never UNASKED. SERVED is when it was its turn, times
# BY_PLACE, plus its place among the flows of all hosts.
F_SERVED, F_WINDOW, F_IN_FLIGHT, F_DEADLINE, F_TIMEOUT, F_KEY = range(6)
F_CURRENT, F_SRC, F_TRANSMISSIONS, F_NEWEST = range(12, 16)  # small
F_SLOW_UNTIL, F_ROUND, F_RTT, F_RTT_DEVIATION = range(LINE, LINE + 4)
F_PATH, F_PATH_END, F_PENDING, F_PENDING_COUNT, F_ARMED, F_OLDEST, F_UNASKED, F_PROBE = range(24, 32)  # small
F_STOOD, F_CUT_AGAIN, F_ALPHA, F_ROUND_MARKED, F_TURN = range(2 * LINE, 2 * LINE + 5)
F_BACK, F_BACK_END, F_DST, F_INDEX, F_ACK, F_LAST_ACK = range(42, 48)  # small
F_STREAM, BY_PLACE, FLOW_COLUMNS = F_UNASKED, 1 << 22, 3 * LINE

# A host's flows that may send, an entry each. What is under way has a smaller URGENCY than all that is not: keys are
# times, and what is NEVER due is 2^60. SERVED tells the place of the flow; where its entry is stands there, in half a
# word from PLACES on, so that entries move without a look at the rows of flows.
E_URGENCY, E_SERVED, ENTRY_COLUMNS = range(3)
UNDER_WAY_FIRST = 2 * NEVER

# What a flow has beside where it is a stream, whose packets switches sum; its slots, of which those under way are
# linked in the order of sending; the adders of switches, their children and what they hold of every slot and set.
(R_SLOTS, R_PACKETS, R_ADDER, R_CHILD, R_FIRST_SLOT, R_MESSAGES, R_MESSAGES_END, STREAM_COLUMNS) = range(8)
(Z_NUMBER, Z_SENT, Z_UNDER_WAY, Z_AGAIN, Z_FIRST, Z_LAST, Z_NEWER, Z_EARLIER, Z_LATER,
 SLOT_COLUMNS) = range(10)  # fmt: skip
(A_SLOTS, A_SETS, A_EVERYBODY, A_UP, A_PARENT, A_CHILD, A_STREAM, A_CHILDREN, A_CHILDREN_END, A_CELLS,
 A_QUEUE, A_HASH, A_SERVER, A_ROUND_TRIP, A_ADD, A_UPDATE, A_DELAY, A_ANSWER, A_LAST_ANSWER, A_BUSY,
 ADDER_COLUMNS) = range(21)  # fmt: skip
D_LINK, D_STREAM, D_BELOW, CHILD_COLUMNS = range(4)
V_NUMBER, V_SEEN, V_ANSWERED, SET_COLUMNS = range(4)
# Cells of switches; one without an ADDER is free. RANK and SLACK are those of the packet that took it.
K_ADDER, K_NUMBER, K_SEEN, K_TAKEN, K_RANK, K_SLACK, CELL_COLUMNS = range(7)
NOBODY = 0

# Messages, two cache lines: what packets touch, and the rest. RUN is that of the chunk before NEXT. The columns from
# RECEIVED to RUN start at zero in every iteration. Those that switches sum have a FIRST packet by number, the iteration
# COPIED whose packets may be sent, and an ANSWER that brings the sum back, where others keep what these do without.
M_KEY, M_BYTES = range(2)
(M_ITERATION, M_CHUNKS, M_RECEIVED, M_EXPECTED, M_UNACKNOWLEDGED, M_NEXT, M_LOST, M_LOST_FROM, M_TOLD, M_RUN,
 M_FLOW, M_SWITCH_RANK) = range(4, 16)  # small  # fmt: skip
M_DEADLINE, M_LEAD, M_SLACK, M_OUT = range(LINE, LINE + 4)
M_INDEX, M_NODE, M_SLICES, M_PACKETS, M_FIRED, M_STATES, M_TIMES = range(24, 31)  # small
M_FIRST, M_COPIED, M_ANSWER, MESSAGE_COLUMNS = M_EXPECTED, M_UNACKNOWLEDGED, M_LOST_FROM, 2 * LINE

# As long as the chunks of a message arrive and are acknowledged in order, its row says all about them: those below
# UNACKNOWLEDGED are acknowledged, those from there to NEXT in flight, and those below EXPECTED have arrived. Once one
# is out of order, the message is TOLD, which is then where STATES are: a byte for every chunk, its state and whether
# the receiver HAS it.
STATE, HAS = 3, 4

# What a flow has transmitted, from the oldest that may be in flight on, is a list of runs, rows like those of packets:
# transmissions from FIRST up to END of chunks of one message, one after the other from CHUNK on. The newest usually
# GOES_ON up to the newest transmission of its flow. Most are acknowledged in the order of sending; what has left the
# network meanwhile is passed over.
C_NEXT, C_BEFORE, C_MESSAGE, C_ITERATION, C_CHUNK, C_FIRST, C_END = range(7)  # small
GOES_ON = -1

# Nodes, a cache line each.
N_DEADLINE, N_DELAY, N_WORK = range(3)
N_KIND, N_THING, N_NEED, N_NEED_ALL, N_SUCCESSORS, N_SUCCESSORS_END, N_LANE = range(6, 13)  # small
NODE_COLUMNS = LINE
MESSAGE_NODE, JOIN_NODE, GATE_NODE, GRADIENT_NODE, FORWARD_NODE, BACKWARD_NODE = range(6)

W_ITERATION, W_BACKWARD, W_WAITING, W_GATE, W_FIRST_GATE, W_LAST_GATE, W_PACE, WORKER_COLUMNS = range(8)

# Gates, one per layer of a worker. NODE, GRADIENT, FORWARD and BACKWARD are nodes.
(G_WORKER, G_OPENED, G_OPENED_BACKWARD, G_SLACK, G_NODE, G_GRADIENT, G_FORWARD, G_BACKWARD, G_TIMES,
 GATE_COLUMNS) = range(10)  # fmt: skip

B_FLOW, B_SIZE, B_SENT, B_GAPS, B_UNTIL, BACKGROUND_COLUMNS = range(6)

# A change of the cluster: the word that it writes, and what.
X_WORD, X_VALUE, CHANGE_COLUMNS = range(3)

# Times of a message, and of a gate, per iteration.
T_READY, T_SENT, T_DELIVERED, T_TIMED_OUT, TIMES_COLUMNS = range(5)
T_FORWARD, T_BACKWARD, T_STARTED, T_STARTED_BACKWARD, T_OPENED, GATE_TIMES_COLUMNS = range(6)

RUN, FINISHED, GROW, STUCK = range(4)

#: Fields of `record.PACKET`, in its order.
LOG_COLUMNS = 8
