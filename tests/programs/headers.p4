// What a program may do to whole headers: add, remove, copy, compare, push and pop, index at run time, unions.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> what; bit<8> index; }
header item_h    { bit<8> value; }
header wide_h    { bit<3> top; int<5> middle; bit<40> bottom; bit<24> end; }
header small_h   { bit<8> value; }
header large_h   { bit<16> value; }
header_union choice_u { small_h small; large_h large; }

struct headers {
    command_h command;
    item_h[4] items;
    wide_h    wide;
    wide_h    other;
    choice_u  choice;
}
struct metadata { }

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.command);
        packet.extract(hdr.items.next);
        packet.extract(hdr.items.next);
        packet.extract(hdr.wide);
        transition accept;
    }
}

control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    bit<8> index = hdr.command.index;
    apply {
        if (hdr.command.what == 1) {
            hdr.items.push_front(1);
            hdr.items[0].setValid();
            hdr.items[0].value = 0x77;
        } else if (hdr.command.what == 2) {
            hdr.items.pop_front(1);
        } else if (hdr.command.what == 3) {
            hdr.items[index].value = hdr.items[index].value + 1;
        } else if (hdr.command.what == 4) {
            hdr.other = hdr.wide;
            hdr.other.middle = hdr.other.middle - 1;
        } else if (hdr.command.what == 5) {
            hdr.other = hdr.wide;
            if (index != 0) { hdr.other.end = 1; }
            if (hdr.other == hdr.wide) { hdr.command.index = 0xaa; }
        } else if (hdr.command.what == 6) {
            hdr.wide.setInvalid();
        } else if (hdr.command.what == 7) {
            hdr.choice.small.setValid();
            hdr.choice.small.value = 5;
            if (index != 0) {
                hdr.choice.large.setValid();
                hdr.choice.large.value = 0x1234;
            }
            if (hdr.choice.isValid()) { hdr.command.index = 0xbb; }
        } else if (hdr.command.what == 8) {
            hdr.wide.setInvalid();
            hdr.wide.setValid();
        } else if (hdr.command.what == 9) {
            hdr.other.setValid();
            hdr.other.top = 7;
            hdr.other.middle = -1;
            hdr.other.bottom = 0x123456789a;
        }
        if (hdr.command.what == 10) {
            hdr.wide = hdr.other;
            hdr.command.index = hdr.wide.end[7:0];
        }
        standard_metadata.egress_spec = 1;
    }
}

control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    apply { if (standard_metadata.packet_length > 255) { mark_to_drop(standard_metadata); } }
}
control Verify(inout headers hdr, inout metadata meta) { apply { } }
control Update(inout headers hdr, inout metadata meta) { apply { } }

control Deparse(packet_out packet, in headers hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(Parse(), Verify(), In(), Out(), Update(), Deparse()) main;
