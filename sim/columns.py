"""Columns: where the compiled engine keeps what, in its one flat memory of int64.

A thing (a port, a flow, a message, a packet ...) is the address of its row, and `m[flow + F_WINDOW]` is a field of it.
"""

from __future__ import annotations

from tensorexpress.sim.flat_plan import NEVER as NEVER

NONE = -1

# Fields at the start of the memory.
(NOW, EVENTS, EVENT_COUNT, TOP_IS_FREE, STACK, FREE, FREE_COUNT, LOGGED, RUNNING, RETRANSMISSIONS, TIMEOUTS,
 TRANSMISSIONS, SEQUENCE, STATUS, DISCIPLINE, QUEUES, OWN, COMMON, SLACK_MODE, ECN, LOSS, SEED, HOST_ORDER, CREDIT,
 PAYLOAD, HEADER, ACK_SIZE, ACKS, ACK_EVERY, LARGEST_WINDOW, RTO_MIN, REORDERING, NEWER_SUMS, ROUNDS, OTHER_RANK,
 OTHER_SLACK, LOGGING, SOURCES, TRAINS, QUEUE_SHARE, CHUNK, HEAD_BYTES, SPARE, CELLS, CHECKSUMS, PREEMPTS,
 SERVER_SUMS, WHOLE_SUMS, SERVER_PACKETS, COLLISIONS, EVICTIONS, HEAD) = range(52)  # fmt: skip

# Packets. NEXT links a queue, a link or the free list; a PIFO's heap uses NEXT and RIGHT as its children. What a hop
# touches comes first, so that it shares a cache line. Where switches sum, TRANSMISSION is its number in the stream,
# ACKED_TO the adder to which it goes, and ASKS from which of its children; where slots are found by hash, SENT is whose
# values are in it, and MARKED whether it was sent again.
(P_NEXT, P_SIZE, P_HOP, P_END, P_KIND, P_RANK, P_ARRIVES, P_ENQUEUED, P_FLOW, P_MESSAGE, P_ITERATION, P_CHUNK,
 P_TRANSMISSION, P_SENT, P_ACKED_TO, P_MARKED, P_ASKS, P_SLACK, P_RIGHT, P_SEQUENCE,
 PACKET_COLUMNS) = range(21)  # fmt: skip
P_NUMBER, P_ADDER, P_CHILD, P_WORKERS, P_AGAIN = P_TRANSMISSION, P_ACKED_TO, P_ASKS, P_SENT, P_MARKED

# Ports, one per directed link; the columns from CONTROL on are a host's.
(L_INDEX, L_RATE, L_DELAY, L_IS_PACED, L_IS_HOST, L_IDLE, L_BUSY_UNTIL, L_HEAD, L_TAIL, L_CARRIED, L_BACKLOG, L_COMMON,
 L_WAITING, L_QUEUES, L_ROOT, L_BYTES, L_BUSY, L_DROPS, L_OTHER_DROPS, L_LOSSES, L_MARKS, L_PEAK, L_CONTROL,
 L_CONTROL_TAIL, L_SERVED, L_IN_FLIGHT, L_READY, L_READY_COUNT, L_OUT_LANE, L_SERVER_BUSY,
 PORT_COLUMNS) = range(31)  # fmt: skip

# Lanes of hosts: what is under way, and what waits.
S_NODE, S_BUSY, S_IS_OUT, S_TAKEN, S_HEAP, S_WAITING, LANE_COLUMNS = range(7)

Q_HEAD, Q_TAIL, Q_BYTES, Q_BOUND, QUEUE_COLUMNS = range(5)

# Flows; what choosing the next one to serve touches comes first.
(F_CURRENT, F_KEY, F_SERVED, F_PLACE, F_AT, F_IN_FLIGHT, F_WINDOW, F_SRC, F_PENDING, F_PENDING_COUNT, F_OLDEST,
 F_NEWEST, F_TRANSMISSIONS, F_UNASKED, F_DEADLINE, F_TIMEOUT, F_ARMED, F_PATH, F_PATH_END, F_BACK, F_BACK_END, F_DST,
 F_INDEX, F_SLOW_UNTIL, F_CUT_AGAIN, F_ALPHA, F_ROUND, F_ROUND_MARKED, F_RTT, F_RTT_DEVIATION, F_PROBE, F_STOOD, F_ACK,
 F_LAST_ACK, F_STREAM, FLOW_COLUMNS) = range(36)  # fmt: skip

# What a flow has beside where it is a stream, whose packets switches sum; its slots, of which those under way are
# linked in the order of sending; the adders of switches, their children and what they hold of every slot and set.
(R_SLOTS, R_PACKETS, R_ADDER, R_CHILD, R_FIRST_SLOT, R_MESSAGES, R_MESSAGES_END, STREAM_COLUMNS) = range(8)
(Z_NUMBER, Z_SENT, Z_UNDER_WAY, Z_AGAIN, Z_FIRST, Z_LAST, Z_NEWER, Z_EARLIER, Z_LATER,
 SLOT_COLUMNS) = range(10)  # fmt: skip
(A_SLOTS, A_SETS, A_EVERYBODY, A_UP, A_PARENT, A_CHILD, A_STREAM, A_CHILDREN, A_CHILDREN_END, A_CELLS,
 A_QUEUE, A_HASH, A_SERVER, A_ROUND_TRIP, A_ADD, A_UPDATE, A_DELAY, A_ANSWER, A_LAST_ANSWER,
 ADDER_COLUMNS) = range(20)  # fmt: skip
D_LINK, D_STREAM, D_BELOW, CHILD_COLUMNS = range(4)
V_NUMBER, V_SEEN, V_ANSWERED, SET_COLUMNS = range(4)
# Cells of switches; one without an ADDER is free. RANK and SLACK are those of the packet that took it.
K_ADDER, K_NUMBER, K_SEEN, K_TAKEN, K_RANK, K_SLACK, CELL_COLUMNS = range(7)
NOBODY = 0

# Messages; the columns from UNACKNOWLEDGED to EXPECTED start at zero in every iteration. Those that switches sum have a
# FIRST packet by number, the iteration COPIED whose packets may be sent, and an ANSWER that brings the sum back.
(M_INDEX, M_NODE, M_FLOW, M_BYTES, M_CHUNKS, M_SLICES, M_PACKETS, M_FIRST_CHUNK, M_RANK, M_SWITCH_RANK, M_LEAD, M_SLACK,
 M_TIMES, M_ITERATION, M_KEY, M_DEADLINE, M_UNACKNOWLEDGED, M_NEXT, M_LOST, M_LOST_FROM, M_RECEIVED, M_EXPECTED,
 M_FIRED, M_OUT, M_FIRST, M_COPIED, M_ANSWER, MESSAGE_COLUMNS) = range(28)  # fmt: skip

# Chunks; those in flight are linked in the order of sending, per flow. HAS is a bit of the state: received.
C_STATE, C_TRANSMISSION, C_EARLIER, C_LATER, C_MESSAGE, CHUNK_COLUMNS = range(6)
STATE, HAS = 3, 4

(N_KIND, N_THING, N_NEED, N_NEED_ALL, N_DEADLINE, N_SUCCESSORS, N_SUCCESSORS_END, N_DELAY, N_WORK, N_LANE,
 NODE_COLUMNS) = range(11)  # fmt: skip
MESSAGE_NODE, JOIN_NODE, GATE_NODE, GRADIENT_NODE, FORWARD_NODE, BACKWARD_NODE = range(6)

W_ITERATION, W_BACKWARD, W_WAITING, W_GATE, W_FIRST_GATE, W_LAST_GATE, WORKER_COLUMNS = range(7)

# Gates, one per layer of a worker. NODE, GRADIENT, FORWARD and BACKWARD are nodes.
(G_WORKER, G_OPENED, G_OPENED_BACKWARD, G_SLACK, G_NODE, G_GRADIENT, G_FORWARD, G_BACKWARD, G_TIMES,
 GATE_COLUMNS) = range(10)  # fmt: skip

B_FLOW, B_SIZE, B_SENT, B_GAPS, BACKGROUND_COLUMNS = range(5)

# Times of a message, and of a gate, per iteration.
T_READY, T_SENT, T_DELIVERED, T_TIMED_OUT, TIMES_COLUMNS = range(5)
T_FORWARD, T_BACKWARD, T_STARTED, T_STARTED_BACKWARD, T_OPENED, GATE_TIMES_COLUMNS = range(6)

RUN, FINISHED, GROW, STUCK = range(4)

#: Fields of `record.PACKET`, in its order.
LOG_COLUMNS = 8
