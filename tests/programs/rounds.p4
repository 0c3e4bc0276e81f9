// Every way a packet can go round in v1model. The first byte of a frame chooses the way; egress writes what it was told
// into the rest of the header. All packets leave at port 1 with the priority of their second byte.
#include <core.p4>
#include <v1model.p4>

const bit<8> RESUBMIT = 1;
const bit<8> RECIRCULATE = 2;
const bit<8> CLONE_AT_INGRESS = 3;
const bit<8> CLONE_AT_EGRESS = 4;
const bit<8> MULTICAST = 5;
const bit<8> DIGEST = 6;
const bit<8> TRUNCATE = 7;
const bit<8> FOR_EVER = 8;

header report_t {
    bit<8>  way;
    bit<8>  priority;
    bit<8>  passes;
    bit<8>  instance_type;
    bit<16> replication_id;
    bit<16> ingress_port;
    bit<16> enqueue_depth;
    bit<16> dequeue_depth;
    bit<32> waited_us;
    bit<48> arrived_us;
    bit<48> left_us;
}

struct headers_t {
    report_t report;
}

struct metadata_t {
    @field_list(1)
    bit<8> passes;
    bit<8> forgotten;
}

struct news_t {
    bit<8> way;
    bit<8> priority;
}

parser Parse(packet_in packet, out headers_t headers, inout metadata_t metadata, inout standard_metadata_t standard) {
    state start {
        packet.extract(headers.report);
        transition accept;
    }
}

control Verify(inout headers_t headers, inout metadata_t metadata) {
    apply {}
}

control Enter(inout headers_t headers, inout metadata_t metadata, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        standard.priority = headers.report.priority[2:0];
        metadata.forgotten = metadata.forgotten + 1;
        metadata.passes = metadata.passes + metadata.forgotten;
        bit<8> way = headers.report.way;
        if (way == RESUBMIT && standard.instance_type == 0) {
            headers.report.way = 0xff;
            resubmit_preserving_field_list(1);
        } else if (way == CLONE_AT_INGRESS) {
            headers.report.way = 0;
            clone_preserving_field_list(CloneType.I2E, 5, 1);
        } else if (way == MULTICAST) {
            standard.mcast_grp = 3;
        } else if (way == DIGEST) {
            digest<news_t>(1, {headers.report.way, headers.report.priority});
        } else if (way == TRUNCATE) {
            truncate(10);
        } else if (way == FOR_EVER) {
            resubmit_preserving_field_list(1);
        }
    }
}

control Leave(inout headers_t headers, inout metadata_t metadata, inout standard_metadata_t standard) {
    apply {
        bit<8> way = headers.report.way;
        if (way == RECIRCULATE) {
            headers.report.way = 0;
            recirculate_preserving_field_list(1);
        } else if (way == CLONE_AT_EGRESS) {
            headers.report.way = 0;
            clone_preserving_field_list(CloneType.E2E, 5, 1);
        }
        headers.report.passes = metadata.passes;
        headers.report.instance_type = standard.instance_type[7:0];
        headers.report.replication_id = standard.egress_rid;
        headers.report.ingress_port = (bit<16>) standard.ingress_port;
        headers.report.enqueue_depth = standard.enq_qdepth[15:0];
        headers.report.dequeue_depth = standard.deq_qdepth[15:0];
        headers.report.waited_us = standard.deq_timedelta;
        headers.report.arrived_us = standard.ingress_global_timestamp;
        headers.report.left_us = standard.egress_global_timestamp;
    }
}

control Update(inout headers_t headers, inout metadata_t metadata) {
    apply {}
}

control Deparse(packet_out packet, in headers_t headers) {
    apply {
        packet.emit(headers.report);
    }
}

V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Deparse()) main;
