"""Where everything is in the memory that compiled functions and Python share; all in words of 64 bits."""

from __future__ import annotations

from tensorexpress.switch.program.budgets import MOST_REPLICAS as MOST_REPLICAS
from tensorexpress.switch.program.native.layout import SLOTS, TOLD
from tensorexpress.wire.udp import STAMP_BYTES as STAMP_BYTES

WORD = 8

#: A time that never comes; what is added to it stays inside 64 bits.
NEVER = 2**62

#: Ports have 9 bits in v1model, groups 16.
PORTS, GROUPS = 2**9, 2**16

#: Frames of a batch from a socket, from a ring, where they stay until they are done, and of what Python hands over at
#: once; frames that may have left before somebody takes them.
BATCH = 64
RING_BATCH = 256
MOST_ARRIVALS = 2048
MOST_SENT = 4096

#: What a copy and its arrival are numbered by: this many times the number of the arrival among those copied, plus the
#: copies; 0 is a packet that is no copy.
COPIED_ARRIVAL = 2 * MOST_REPLICAS

#: Free records are kept by their size, a power of two; the smallest has this many bytes of data.
SMALLEST_DATA = 512
SIZES = 11

# The head.
(
    SELF,  # its address
    INGRESS,  # the stages of the program, as addresses
    EGRESS,
    CONTEXT,
    STATE,
    STATE_BYTES,
    SAVED,  # room for a state
    MARGIN,  # bytes that a frame may become longer by
    LONGEST,  # bytes of a frame that the program has room for; NONE_FITS: packets pass it in Python
    PORT_AT,  # number of a port -> its address
    PORT_LIST,
    PORT_COUNT,
    EPOCH_US,  # what native code counts picoseconds from
    DUE,  # when the next frame leaves, and at which port
    DUE_PORT,
    GROUP_AT,  # number of a group -> the address of its copies: how many, then port and replication id of each
    UNUSED,  # the memory that never was a record
    END,
    ARRIVALS,
    ARRIVED,  # arrivals that are done
    ARRIVAL_COUNT,
    SENT,
    SENT_COUNT,
    RX_MESSAGES,
    TX_MESSAGES,
    SLOTS_TAKEN,  # of the ring of a port: arrivals are in them
    SLOTS_PORT,
    AT_PORT,  # what Python is to go on with: port, time, result of a stage, record, output, copies that are done
    AT_TIME,
    RESULT,
    RECORD,
    OUTPUT,
    GROUP,
    COPIES_DONE,
    COPY_LENGTH,
    COPY_PRIORITY,
    COPIED,  # the number of the last arrival that was copied, and how many copies were made of it, by COPIED_ARRIVAL
    CAPTURED,  # bytes in all trays
    CAPTURE_HEAD,  # two words: what stands before a frame in a capture
    CAPTURE_HEAD_2,
    RECORDED,  # arrivals that are written down
    REACHED,  # the time until when all is done that is due
    ARRIVAL_PORT,  # the arrival that is being handled, or was last: port, frame and its bytes
    ARRIVAL_FRAME,
    ARRIVAL_BYTES,
    DELAYED,  # ports on cables with a delay
    DELAYED_COUNT,
    SLACK,  # how much later than it is due something may be done inside the switch, and nobody outside sees it
    REST_NS,  # for how long frames that come may wait in sockets while others are under way; 0: they may not
    HELD_RECORD,  # what the last arrival is in if it came by a cable with a delay
    HOLDING,  # the port that arrivals are under way to; 0: they are there
    WATCHED,  # descriptors that say when there is something to do, first of ports on delayed cables, last of Python
    WATCHED_PORTS,  # the ports of all but the last
    WATCHED_COUNT,
    WATCHED_DELAYED,  # how many are of ports on delayed cables
    WATCHED_NEXT,  # the one that is looked at next
    STARTED_NS,  # what native code counts from, on the clock that stamps have
    IS_FOR_PYTHON,  # whether a ring has a frame that Python has to finish
    SECONDS,  # room for a time of the kernel
    NANOSECONDS,
    FREE,  # the first free record of every size
) = range(61)
HEAD_WORDS = FREE + SIZES

# An arrival, and a frame that has left.
A_PORT, A_TIME, A_FRAME, A_LENGTH, ARRIVAL_WORDS = range(5)
S_PORT, S_RECORD, S_LENGTH, S_TIME, SENT_WORDS = range(5)

# A line of frames under way: how long they are, whether they say when they were sent, and those that are.
LINE_PS, LINE_STAMP_BYTES, LINE_HEAD, LINE_TAIL, LINE_LAST, LINE_WORDS = range(6)

# A port.
(
    P_SELF,  # its address
    P_NUMBER,
    P_RATE,  # 0: none
    P_OVERHEAD,
    P_QUEUE_COUNT,
    P_HAS_QUEUES,
    P_LOWEST,
    P_TOP_PRIORITY,
    P_OWN_LIMIT,
    P_COMMON_LIMIT,
    P_COMMON_BYTES,
    P_WAITING,
    P_IN_FLIGHT,  # a record; 0: the link is idle; IN_PYTHON: Python has the frame
    P_IN_FLIGHT_BYTES,
    P_DEPARTS,
    P_RX_FRAMES,
    P_RX_BYTES,
    P_TX_FRAMES,
    P_TX_BYTES,
    P_INGRESS_DROPS,
    P_EGRESS_DROPS,
    P_BUFFER_FULL,
    P_NO_QUEUE,
    P_REFUSED,
    P_DESCRIPTOR,  # the socket that takes its frames
    P_TAKEN,  # the tray for records of frames that it takes, and of those that it sends; 0: nobody captures them
    P_SENT,
    P_RING,  # the ring that its frames come in, 0 if they do by a socket; the address of its position, and its bytes
    P_RING_POSITION,
    P_SLOT_BYTES,
    P_RING_BYTES,
    P_ARRIVING,  # two lines
) = range(32)
P_LEAVING = P_ARRIVING + LINE_WORDS
P_QUEUES = P_LEAVING + LINE_WORDS
IN_PYTHON = -1
NONE_FITS = -1
Q_HEAD, Q_TAIL, Q_DEPTH, Q_BYTES, Q_DEEPEST, QUEUE_WORDS = range(6)

# A record: a packet that waits, its frame and then its state in the data; or a frame that leaves.
R_NEXT, R_KIND, R_IS_FOREIGN, R_LENGTH, R_QUEUE, R_SIZE, R_COPIED, R_TOLD = range(8)
R_DUE = R_SIZE  # of a frame under way
RECORD_WORDS = R_TOLD + len(TOLD) + 1
RECORD_BYTES = WORD * -(-RECORD_WORDS // 8) * 8

# A tray: records of a capture, in the form of its file, until Python takes them.
Y_USED, Y_ROOM, TRAY_WORDS = range(3)
CAPTURE_HEAD_BYTES = 16
#: Bytes that trays may hold together before they are emptied: little, so that it takes no time in which frames should
#: leave.
MOST_CAPTURED = 2**17

# The slots of a program's context, in words.
(
    C_PRESERVED,
    C_TRUNCATE,
    C_RECIRCULATE,
    C_EGRESS_SPEC,
    C_MCAST_GRP,
    C_OUTPUT,
    C_FAILED,
) = (
    SLOTS[name] // WORD
    for name in (
        "preserved",
        "truncate_bytes",
        "recirculate_fields",
        "egress_spec",
        "mcast_grp",
        "output",
        "failed",
    )
)
C_TOLD = SLOTS[TOLD[0]] // WORD
TOLD_WORDS = len(TOLD)
(
    T_INGRESS_PORT,
    T_INGRESS_US,
    T_INSTANCE_TYPE,
    T_EGRESS_PORT,
    T_EGRESS_RID,
    T_EGRESS_US,
    T_ENQ_US,
    T_ENQ_QDEPTH,
    T_DEQ_TIMEDELTA,
    T_DEQ_QDEPTH,
    T_LENGTH,
    T_PRIORITY,
) = range(TOLD_WORDS)

# Why native code returns.
(
    DONE,
    FULL,  # frames that have left are to be taken
    NOT_BEGUN,  # the last arrival is for Python
    AFTER_INGRESS,  # it has passed ingress; all else is for Python
    AFTER_EGRESS,  # a packet at a port without a rate has passed egress
    SERVED,  # a packet on its way to the link has passed egress
    TO_COPY,  # copies of the last arrival are to be made
    TO_SERVE,  # the next packet of a port is for Python
    TO_DEPART,  # Python has the frame whose last bit leaves
    TO_EMPTY,  # trays are to be emptied
) = range(10)

# Linux's struct mmsghdr and iovec, in words; the length is half a word.
MESSAGE_WORDS, MESSAGE_PIECES, MESSAGE_PIECE_COUNT, MESSAGE_LENGTH = 8, 2, 3, 7
PIECE_WORDS = 2
# struct pollfd is one word: the descriptor, what is asked for, and what there is.
ASKED, FOUND = 2**32, 2**48
