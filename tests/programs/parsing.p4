// All that a parser can do: select with masks, ranges and value sets, lookahead, advance, varbit, stacks, unions, errors.
#include <core.p4>
#include <v1model.p4>

error { BadMark }

header kind_h   { bit<8> kind; }
header label_h  { bit<7> value; bit<1> last; }
header option_h { bit<8> words; varbit<64> content; bit<8> tail; }
header small_h  { bit<8> tag; bit<8> value; }
header large_h  { bit<8> tag; bit<24> value; }
header mark_h   { bit<4> high; bit<12> low; }

header_union choice_u { small_h small; large_h large; }

header outcome_h {
    bit<8> failure;
    bit<8> labels;
    bit<8> last_label;
    bit<8> seen;
}

struct metadata { bit<8> seen; }

struct headers {
    outcome_h   outcome;
    kind_h      kind;
    label_h[3]  labels;
    option_h    option;
    choice_u[2] choices;
    mark_h      mark;
}

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    value_set<bit<8>>(4) marked_kinds;

    state start {
        packet.extract(hdr.kind);
        transition select(hdr.kind.kind) {
            marked_kinds: mark;
            1: labels;
            2: option;
            3: choice;
            4: skip;
            0x40 &&& 0xf0: peek;
            0x80 .. 0x8f: mark;
            default: accept;
        }
    }
    state labels {
        packet.extract(hdr.labels.next);
        transition select(hdr.labels.last.last) {
            0: labels;
            default: accept;
        }
    }
    state option {
        bit<8> words = packet.lookahead<bit<8>>();
        packet.extract(hdr.option, (bit<32>)words << 3);
        transition accept;
    }
    state choice {
        transition select(packet.lookahead<bit<8>>()) {
            1: small;
            2: large;
            default: accept;
        }
    }
    state small {
        packet.extract(hdr.choices.next.small);
        transition choice;
    }
    state large {
        packet.extract(hdr.choices.next.large);
        transition choice;
    }
    state skip {
        bit<8> size = packet.lookahead<bit<8>>();
        packet.advance((bit<32>)size << 3);
        transition mark;
    }
    state peek {
        meta.seen = packet.lookahead<bit<16>>()[7:0];
        transition accept;
    }
    state mark {
        packet.extract(hdr.mark);
        verify(hdr.mark.high == 0xa, error.BadMark);
        transition accept;
    }
}

control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    apply {
        hdr.outcome.setValid();
        if (standard_metadata.parser_error == error.PacketTooShort) {
            hdr.outcome.failure = 1;
        } else if (standard_metadata.parser_error == error.StackOutOfBounds) {
            hdr.outcome.failure = 2;
        } else if (standard_metadata.parser_error == error.HeaderTooShort) {
            hdr.outcome.failure = 3;
        } else if (standard_metadata.parser_error == error.BadMark) {
            hdr.outcome.failure = 4;
        } else if (standard_metadata.parser_error != error.NoError) {
            hdr.outcome.failure = 9;
        }
        if (hdr.labels[0].isValid()) { hdr.outcome.labels = 1; hdr.outcome.last_label = (bit<8>)hdr.labels[0].value; }
        if (hdr.labels[1].isValid()) { hdr.outcome.labels = 2; hdr.outcome.last_label = (bit<8>)hdr.labels[1].value; }
        if (hdr.labels[2].isValid()) { hdr.outcome.labels = 3; hdr.outcome.last_label = (bit<8>)hdr.labels[2].value; }
        if (hdr.choices[1].small.isValid()) { hdr.choices[1].small.value = hdr.choices[1].small.value + 1; }
        hdr.outcome.seen = meta.seen;
    }
}

control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) { apply { } }
control Verify(inout headers hdr, inout metadata meta) { apply { } }
control Update(inout headers hdr, inout metadata meta) { apply { } }

control Deparse(packet_out packet, in headers hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(Parse(), Verify(), In(), Out(), Update(), Deparse()) main;
