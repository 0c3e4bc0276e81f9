"""The constants of include/define.p4, and the bits of its types; written by `tensorexpress p4 build`."""

ETHERTYPE_IPV4 = 2048
ETHERTYPE_ARP = 2054
ETHERTYPE_VLAN = 33024
ETHERTYPE_IPV6 = 34525
PROTOCOL_UDP = 17

# IPv6 headers that may have another one behind them.
IPV6_HOP_BY_HOP = 0
IPV6_ROUTING = 43
IPV6_FRAGMENT = 44
IPV6_AUTHENTICATION = 51
IPV6_DESTINATION = 60
IPV6_MOBILITY = 135
IPV6_HOST_IDENTITY = 139
IPV6_SHIM = 140

# The UDP port and the magic number spell "TX"; see docs/wire.md.
TENSOR_PORT = 21592
TENSOR_MAGIC = 21592
TENSOR_VERSION = 1
TENSOR_BYTES = 32
UDP_BYTES = 8

IPV4_BYTES = 20
ETHERNET_BYTES = 14
TENSOR_RETRANSMITTED = 1

# Packets whose values switches add up are all of one size, and of another one where they say whose values are in; see
# docs/wire.md. What else claims to be one is dropped.
TENSOR_SUM = 4
TENSOR_PART = 5
SUM_PAYLOAD_BYTES = 1040
SUM_UDP_BYTES = 1080
PART_PAYLOAD_BYTES = 1048
PART_UDP_BYTES = 1088
SUM_RESULT = 1
SUM_OVERFLOW = 2
# Beside these flags in a cell: its sum is complete and was sent.
SUM_SENT = 128
SUM_MODULUS = 65521
SUM_TTL = 64

CPU_PORT = 255
SAMPLE_SESSION = 255
SAMPLE_BYTES = 128
SAMPLE_FIELDS = 1

# standard_metadata.instance_type as simple_switch numbers it.
INSTANCE_INGRESS_CLONE = 1
INSTANCE_REPLICATION = 5

# Ranks are times plus slacks. A slack may be negative; the offset keeps every rank positive.
RANK_OFFSET = 4294967296

ECN_CAPABLE_1 = 1
ECN_CAPABLE_0 = 2
ECN_CONGESTED = 3

METER_GREEN = 0

# Why a packet did not get what it asked for: the index into `exceptions`.
MALFORMED = 0
STRANGER_REMARKED = 1
STRANGER_DROPPED = 2
OVER_RATE = 3
BAD_CHECKSUM = 4
TTL_EXPIRED = 5
NO_ROUTE = 6
SPOOFED = 7
FRAGMENT = 8
EXCEPTIONS = 9

# What becomes of packets to sum: the index into `events`.
SUM_CONTRIBUTION = 0
SUM_COMPLETED = 1
SUM_ANSWERED = 2
SUM_REPEATED = 3
SUM_LATE = 4
SUM_MISMATCH = 5
SUM_STRANGER = 6
SUM_OUT_OF_RANGE = 7
SUM_OVERFLOWED = 8
SUM_HANDED_DOWN = 9
SUM_MALFORMED = 10
SUM_PASSED = 11
SUM_COLLISION = 12
SUM_EVICTED = 13
SUM_FLUSHED = 14
SUM_FREED = 15
SUM_EVENTS = 16

# Why a packet goes to the controller.
REASON_SAMPLE = 1
REASON_NO_ROUTE = 2

# A slot is the small number that the controller gives a job on this switch; slot 0 is all other traffic.
SLOT_T_BITS = 8
QUEUE_T_BITS = 3
SLOTS = 256
SLOT_QUEUES = 2048
PORTS = 512

# Slots in which packets are added up. Each keeps the sums of two turns, so that it has two cells.
SUM_SLOTS = 1024
SUM_CELLS = 2048
# Copies of a packet that was summed have the number of the child they go to, from 1, or this one.
SUM_COPY_UP = 65535
SUM_OWNED = 1024
# Microseconds after which a cell that was found by hash is taken from its owner, who may have died.
SUM_AGE = 1000000
SUM_MEMBERS = 4096
SUM_COPIES = 8192

ADMISSIONS = 4096
SOURCES = 512
TENSORS = 32768
HOSTS_L2 = 4096
ROUTES_IPV4 = 4096
ROUTES_IPV6 = 2048
NEXT_HOPS = 2048
# What an aggregation switch of a fat-tree of 8-port switches needs when each of its 128 hosts talks to every other: at
# most 16 * 112 = 1,792; an edge switch 4 * 124 = 496. With 16-port switches and 1,024 hosts, an edge switch has 8,128.
PATHS = 16384
ARP_ANSWERS = 4096
