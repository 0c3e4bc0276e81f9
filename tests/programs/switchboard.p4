// A switch for tests: the last byte of the destination is the port, the last three bits of the source the priority.
// A destination in the table goes where its entry says; a group address to multicast group 1; what is too short for an
// Ethernet header to port 1.
#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> type;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t {}

parser Parse(packet_in packet, out headers_t headers, inout metadata_t metadata, inout standard_metadata_t standard) {
    state start {
        packet.extract(headers.ethernet);
        transition accept;
    }
}

control Verify(inout headers_t headers, inout metadata_t metadata) {
    apply {}
}

control Choose(inout headers_t headers, inout metadata_t metadata, inout standard_metadata_t standard) {
    action forward(bit<9> port) {
        standard.egress_spec = port;
    }

    action by_number() {
        standard.egress_spec = (bit<9>) headers.ethernet.destination[7:0];
    }

    table l2 {
        key = { headers.ethernet.destination : exact; }
        actions = { forward; by_number; }
        default_action = by_number();
    }

    apply {
        if (!headers.ethernet.isValid()) {
            standard.egress_spec = 1;
        } else if (headers.ethernet.destination[40:40] == 1) {
            standard.mcast_grp = 1;
        } else {
            standard.priority = headers.ethernet.source[2:0];
            l2.apply();
        }
    }
}

control Leave(inout headers_t headers, inout metadata_t metadata, inout standard_metadata_t standard) {
    apply {
        if (standard.egress_rid != 0 && standard.egress_port == standard.ingress_port) {
            mark_to_drop(standard);
        }
    }
}

control Update(inout headers_t headers, inout metadata_t metadata) {
    apply {}
}

control Deparse(packet_out packet, in headers_t headers) {
    apply {
        packet.emit(headers.ethernet);
    }
}

V1Switch(Parse(), Verify(), Choose(), Leave(), Update(), Deparse()) main;
