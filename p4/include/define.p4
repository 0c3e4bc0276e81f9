// Constants and sizes, each in one place. What the controller needs of them it reads from P4Info.
#ifndef TENSOREXPRESS_DEFINE
#define TENSOREXPRESS_DEFINE

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<16> ETHERTYPE_VLAN = 0x8100;
const bit<16> ETHERTYPE_IPV6 = 0x86dd;
const bit<8> PROTOCOL_UDP = 17;

// IPv6 headers that may have another one behind them.
const bit<8> IPV6_HOP_BY_HOP = 0;
const bit<8> IPV6_ROUTING = 43;
const bit<8> IPV6_FRAGMENT = 44;
const bit<8> IPV6_AUTHENTICATION = 51;
const bit<8> IPV6_DESTINATION = 60;
const bit<8> IPV6_MOBILITY = 135;
const bit<8> IPV6_HOST_IDENTITY = 139;
const bit<8> IPV6_SHIM = 140;

// The UDP port and the magic number spell "TX"; see docs/wire.md.
const bit<16> TENSOR_PORT = 0x5458;
const bit<16> TENSOR_MAGIC = 0x5458;
const bit<4> TENSOR_VERSION = 1;
const bit<16> TENSOR_BYTES = 32;
const bit<16> UDP_BYTES = 8;

const bit<16> IPV4_BYTES = 20;
const bit<32> ETHERNET_BYTES = 14;
const bit<8> TENSOR_RETRANSMITTED = 1;

// Packets whose values switches add up are all of one size, and of another one where they say whose values are in; see
// docs/wire.md. What else claims to be one is dropped.
const bit<4> TENSOR_SUM = 4;
const bit<4> TENSOR_PART = 5;
const bit<16> SUM_PAYLOAD_BYTES = 1040;
const bit<16> SUM_UDP_BYTES = 1080;
const bit<16> PART_PAYLOAD_BYTES = SUM_PAYLOAD_BYTES + 8;
const bit<16> PART_UDP_BYTES = SUM_UDP_BYTES + 8;
const bit<8> SUM_RESULT = 1;
const bit<8> SUM_OVERFLOW = 2;
// Beside these flags in a cell: its sum is complete and was sent.
const bit<8> SUM_SENT = 128;
const bit<17> SUM_MODULUS = 65521;
const bit<8> SUM_TTL = 64;

const bit<9> CPU_PORT = 255;
const bit<32> SAMPLE_SESSION = 255;
const bit<32> SAMPLE_BYTES = 128;
const bit<8> SAMPLE_FIELDS = 1;

// standard_metadata.instance_type as simple_switch numbers it.
const bit<32> INSTANCE_INGRESS_CLONE = 1;
const bit<32> INSTANCE_REPLICATION = 5;

// Ranks are times plus slacks. A slack may be negative; the offset keeps every rank positive.
const bit<48> RANK_OFFSET = 1 << 32;

const bit<2> ECN_CAPABLE_1 = 1;
const bit<2> ECN_CAPABLE_0 = 2;
const bit<2> ECN_CONGESTED = 3;

const bit<2> METER_GREEN = 0;

// Why a packet did not get what it asked for: the index into `exceptions`.
const bit<32> MALFORMED = 0;
const bit<32> STRANGER_REMARKED = 1;
const bit<32> STRANGER_DROPPED = 2;
const bit<32> OVER_RATE = 3;
const bit<32> BAD_CHECKSUM = 4;
const bit<32> TTL_EXPIRED = 5;
const bit<32> NO_ROUTE = 6;
const bit<32> SPOOFED = 7;
const bit<32> FRAGMENT = 8;
const bit<32> EXCEPTIONS = 9;

// What becomes of packets to sum: the index into `events`.
const bit<32> SUM_CONTRIBUTION = 0;
const bit<32> SUM_COMPLETED = 1;
const bit<32> SUM_ANSWERED = 2;
const bit<32> SUM_REPEATED = 3;
const bit<32> SUM_LATE = 4;
const bit<32> SUM_MISMATCH = 5;
const bit<32> SUM_STRANGER = 6;
const bit<32> SUM_OUT_OF_RANGE = 7;
const bit<32> SUM_OVERFLOWED = 8;
const bit<32> SUM_HANDED_DOWN = 9;
const bit<32> SUM_MALFORMED = 10;
const bit<32> SUM_PASSED = 11;
const bit<32> SUM_COLLISION = 12;
const bit<32> SUM_EVICTED = 13;
const bit<32> SUM_FLUSHED = 14;
const bit<32> SUM_FREED = 15;
const bit<32> SUM_EVENTS = 16;

// Why a packet goes to the controller.
const bit<7> REASON_SAMPLE = 1;
const bit<7> REASON_NO_ROUTE = 2;

// A slot is the small number that the controller gives a job on this switch; slot 0 is all other traffic.
typedef bit<8> slot_t;
typedef bit<3> queue_t;
const bit<32> SLOTS = 256;
const bit<32> SLOT_QUEUES = 2048;
const bit<32> PORTS = 512;

// Slots in which packets are added up. Each keeps the sums of two turns, so that it has two cells.
const bit<32> SUM_SLOTS = 1024;
const bit<32> SUM_CELLS = SUM_SLOTS << 1;
// Copies of a packet that was summed have the number of the child they go to, from 1, or this one.
const bit<16> SUM_COPY_UP = 0xffff;
const int SUM_OWNED = 1024;
// Microseconds after which a cell that was found by hash is taken from its owner, who may have died.
const bit<48> SUM_AGE = 1000000;
const int SUM_MEMBERS = 4096;
const int SUM_COPIES = 8192;

const int ADMISSIONS = 4096;
const int SOURCES = 512;
const int TENSORS = 32768;
const int HOSTS_L2 = 4096;
const int ROUTES_IPV4 = 4096;
const int ROUTES_IPV6 = 2048;
const int NEXT_HOPS = 2048;
// What an aggregation switch of a fat-tree of 8-port switches needs when each of its 128 hosts talks to every other: at
// most 16 * 112 = 1,792; an edge switch 4 * 124 = 496. With 16-port switches and 1,024 hosts, an edge switch has 8,128.
const int PATHS = 16384;
const int ARP_ANSWERS = 4096;

#endif
