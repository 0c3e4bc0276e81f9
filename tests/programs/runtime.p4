// One of everything that P4Runtime can read and write: the program of the P4Runtime tests.
#include <core.p4>
#include <v1model.p4>

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<1> sampled;
    bit<6> unused;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> queue;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<8> tos;
    bit<16> length;
    bit<16> id;
    bit<3> flags;
    bit<13> offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

struct headers_t {
    packet_out_t packet_out;
    packet_in_t packet_in;
    ethernet_t ethernet;
    ipv4_t ipv4;
}

struct learn_t {
    bit<48> address;
    bit<9> port;
}

struct metadata_t {
    bit<2> colour;
    bit<2> entry_colour;
    bit<12> tag;
    bit<1> trill;
}

const bit<9> CPU_PORT = 255;

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    value_set<bit<16>>(4) trill_types;

    state start {
        transition select(std.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }
    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x0800: parse_ipv4;
            trill_types: parse_trill;
            default: accept;
        }
    }
    state parse_trill {
        meta.trill = 1;
        transition accept;
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control MyIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(16, CounterType.packets_and_bytes) port_counter;
    meter(8, MeterType.bytes) port_meter;
    register<bit<32>>(32) last_seen;
    register<int<12>>(4) signed_cells;
    direct_counter(CounterType.packets_and_bytes) l2_counter;
    direct_meter<bit<2>>(MeterType.packets) acl_meter;
    @max_group_size(6)
    action_selector(HashAlgorithm.crc16, 12, 14) ecmp;
    action_profile(5) shared;

    action drop() {
        mark_to_drop(std);
    }
    action forward(bit<9> port) {
        std.egress_spec = port;
    }
    action forward_tagged(bit<9> port, bit<12> tag) {
        std.egress_spec = port;
        meta.tag = tag;
    }
    action multicast(bit<16> group) {
        std.mcast_grp = group;
    }
    action to_controller() {
        std.egress_spec = CPU_PORT;
    }
    action watch() {
        acl_meter.read(meta.entry_colour);
    }
    action watch_and_drop() {
        acl_meter.read(meta.entry_colour);
        mark_to_drop(std);
    }
    action rewrite(bit<48> address) {
        hdr.ethernet.dst = address;
    }
    action learn() {
        digest<learn_t>(1, { hdr.ethernet.src, std.ingress_port });
    }

    table l2_exact {
        key = {
            hdr.ethernet.dst: exact @name("dst");
            meta.trill: exact @name("trill");
        }
        actions = {
            forward;
            multicast;
            to_controller;
            @defaultonly drop;
            @tableonly forward_tagged;
        }
        default_action = drop();
        size = 32;
        counters = l2_counter;
        support_timeout = true;
    }
    table routes {
        key = { hdr.ipv4.dst: lpm @name("dst"); }
        actions = { forward_tagged; drop; }
        const default_action = drop();
        size = 16;
    }
    table acl {
        key = {
            hdr.ipv4.src: ternary @name("src");
            hdr.ipv4.length: range @name("length");
            hdr.ipv4.protocol: optional @name("protocol");
            std.ingress_port: exact @name("port");
        }
        actions = { watch; watch_and_drop; @defaultonly NoAction; }
        default_action = NoAction();
        size = 8;
        meters = acl_meter;
    }
    table nexthops {
        key = {
            hdr.ipv4.dst: exact @name("dst");
            hdr.ipv4.src: selector;
            hdr.ipv4.protocol: selector;
        }
        actions = { forward; forward_tagged; @defaultonly NoAction; }
        implementation = ecmp;
        size = 16;
    }
    table mirrors {
        key = { meta.tag: exact @name("tag"); }
        actions = { rewrite; drop; @defaultonly NoAction; }
        implementation = shared;
        size = 8;
    }
    table types {
        key = { hdr.ethernet.type: ternary @name("type"); }
        actions = { forward; drop; }
        default_action = drop();
        const entries = {
            0x0806: forward(1);
            0x8800 &&& 0xff00: forward(2);
        }
    }
    table started {
        key = { hdr.ethernet.type: exact @name("type"); }
        actions = { forward; drop; }
        default_action = drop();
        size = 8;
        entries = {
            0x1234: forward(3);
            0x5678: drop();
        }
    }
    table keyless {
        actions = { learn; @defaultonly NoAction; }
        default_action = NoAction();
    }

    apply {
        port_counter.count((bit<32>)std.ingress_port & 15);
        port_meter.execute_meter((bit<32>)std.ingress_port & 7, meta.colour);
        last_seen.write((bit<32>)std.ingress_port & 31, (bit<32>)std.packet_length);
        signed_cells.write(0, -5);
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
            exit;
        }
        keyless.apply();
        types.apply();
        started.apply();
        l2_exact.apply();
        if (hdr.ipv4.isValid()) {
            routes.apply();
            nexthops.apply();
            mirrors.apply();
            acl.apply();
        }
    }
}

control MyEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (std.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = std.ingress_port;
            hdr.packet_in.sampled = 1;
            hdr.packet_in.unused = 0;
        }
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(Parse(), Verify(), MyIngress(), MyEgress(), Update(), Deparse()) main;
