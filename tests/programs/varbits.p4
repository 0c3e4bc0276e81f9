// What a program may do to varbits: assign, swap, compare, hash, empty.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> what; bit<8> first; bit<8> second; bit<16> digest; }
header part_h    { varbit<128> content; }

struct headers {
    command_h command;
    part_h    one;
    part_h    two;
}
struct metadata { }

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.command);
        packet.extract(hdr.one, 8 * (bit<32>)hdr.command.first);
        packet.extract(hdr.two, 8 * (bit<32>)hdr.command.second);
        transition accept;
    }
}

control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    varbit<128> aside;
    apply {
        if (hdr.command.what == 1) {
            aside = hdr.one.content;
            hdr.one.content = hdr.two.content;
            hdr.two.content = aside;
        } else if (hdr.command.what == 2) {
            if (hdr.one.content == hdr.two.content) { hdr.command.digest = 1; }
        } else if (hdr.command.what == 3) {
            if (hdr.one.content != hdr.two.content) { hdr.command.digest = 2; }
        } else if (hdr.command.what == 4) {
            aside = hdr.two.content;
            hash(hdr.command.digest, HashAlgorithm.crc16, (bit<16>)0, { hdr.one.content, aside }, (bit<32>)65536);
        }
        standard_metadata.egress_spec = 1;
    }
}

control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    varbit<128> empty;
    apply {
        if (hdr.command.what == 5) { hdr.two.content = empty; }
    }
}
control Verify(inout headers hdr, inout metadata meta) { apply { } }
control Update(inout headers hdr, inout metadata meta) { apply { } }

control Deparse(packet_out packet, in headers hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(Parse(), Verify(), In(), Out(), Update(), Deparse()) main;
