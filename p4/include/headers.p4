// The headers on the wire, the two headers between switch and controller, and what travels beside a packet.
#ifndef TENSOREXPRESS_HEADERS
#define TENSOREXPRESS_HEADERS

typedef bit<48> mac_t;
typedef bit<32> ipv4_t;

@controller_header("packet_in")
header packet_in_h {
    bit<9> ingress_port;
    bit<7> reason;
}

@controller_header("packet_out")
header packet_out_h {
    bit<9> egress_port;
    bit<3> queue;
    bit<4> padding;
}

header ethernet_h {
    mac_t destination;
    mac_t source;
    bit<16> type;
}

header vlan_h {
    bit<3> priority;
    bit<1> drop_eligible;
    bit<12> id;
    bit<16> type;
}

header arp_h {
    bit<16> hardware_type;
    bit<16> protocol_type;
    bit<8> hardware_length;
    bit<8> protocol_length;
    bit<16> operation;
    mac_t sender_mac;
    ipv4_t sender_ip;
    mac_t target_mac;
    ipv4_t target_ip;
}

header ipv4_h {
    bit<4> version;
    bit<4> words;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_length;
    bit<16> identification;
    bit<2> flags;
    bit<1> more_fragments;
    bit<13> fragment;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    ipv4_t source;
    ipv4_t destination;
}

header ipv4_options_h {
    varbit<320> bytes;
}

header ipv6_h {
    bit<4> version;
    bit<6> dscp;
    bit<2> ecn;
    bit<20> flow_label;
    bit<16> payload_length;
    bit<8> next_header;
    bit<8> hop_limit;
    bit<128> source;
    bit<128> destination;
}

header ipv6_fragment_h {
    bit<8> next_header;
    bit<8> reserved;
    bit<13> fragment;
    bit<2> flags;
    bit<1> more_fragments;
    bit<32> identification;
}

header udp_h {
    bit<16> source;
    bit<16> destination;
    bit<16> length;
    bit<16> checksum;
}

// docs/wire.md draws this one.
header tensor_h {
    bit<16> magic;
    bit<4> version;
    bit<4> kind;
    bit<8> flags;
    bit<16> job;
    bit<16> worker;
    bit<32> iteration;
    bit<16> tensor;
    bit<8> queue;
    bit<8> reserved;
    bit<32> chunk;
    bit<32> chunks;
    int<32> slack;
    bit<16> payload_length;
    bit<16> reserved_tail;
}

// Between the two where packets say whose values are in them: a bit for each worker of the job.
header part_h {
    bit<64> workers;
}

// Sixty-four numbers of 32 bits, which are added without a carry from one to the next.
typedef bit<2048> lanes_t;

// docs/wire.md draws this one too, up to the values.
header sum_h {
    bit<32> epoch;
    bit<32> turn;
    bit<16> slot;
    bit<16> check;
    bit<8> exponent;
    bit<8> needed;
    bit<8> culprit;
    bit<8> flags;
    lanes_t values0;
    lanes_t values1;
    lanes_t values2;
    lanes_t values3;
}

struct headers_t {
    packet_in_h packet_in;
    packet_out_h packet_out;
    ethernet_h ethernet;
    vlan_h vlan;
    arp_h arp;
    ipv4_h ipv4;
    ipv4_options_h ipv4_options;
    ipv6_h ipv6;
    ipv6_fragment_h ipv6_fragment;
    udp_h udp;
    tensor_h tensor;
    part_h part;
    sum_h sum;
}

// Who sends values to sum, and where these are added up.
struct summand_t {
    // The child that sent them and all children; where packets say whose values are in, the workers below each.
    bit<64> own;
    bit<64> everyone;
    // Of cells that are found by hash: how many there are, the class of the sender, and whether classes matter.
    bit<32> cells;
    queue_t queue;
    bool preempts;
}

struct metadata_t {
    // Came to the tensor port; whether it is a tensor packet is for the guard to say.
    bool to_tensor_port;
    // A part of a UDP packet. Only the first holds the UDP header.
    bool fragment;
    // Behind IPv6 extension headers, where a host finds what a switch does not look for.
    bool hidden;
    // A tensor packet whose header may be believed.
    bool trusted;
    // Claimed to be a tensor packet, or was one that may not use its queue.
    bool demoted;
    // Sent by the controller, which names its queue.
    bool from_controller;
    // Made by this switch of what others sent, or handed down by it: `copy` says to whom in which tree.
    bool made;
    bit<16> tree;
    bit<16> copy;
    // Nobody writes it: what a checksum comes to if it is right.
    bit<16> zero;
    bit<16> type;
    slot_t slot;
    queue_t queue;
    queue_t lowest_queue;
    @field_list(SAMPLE_FIELDS)
    bit<9> sampled_at;
}

#endif
