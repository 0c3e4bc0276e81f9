// All kinds of match, const entries, a selector, a direct counter and a direct meter. Each table writes its own byte.
#include <core.p4>
#include <v1model.p4>

header key_h {
    bit<16> a;
    bit<8>  b;
    bit<32> address;
    bit<8>  exact_found;
    bit<8>  lpm_found;
    bit<8>  ternary_found;
    bit<8>  range_found;
    bit<8>  optional_found;
    bit<8>  const_found;
    bit<8>  selected;
    bit<8>  metered;
}
header extra_h { bit<8> value; }

struct headers { key_h key; extra_h extra; }
struct metadata { bit<2> colour; }

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.key);
        transition select(hdr.key.b) {
            255: extra;
            default: accept;
        }
    }
    state extra {
        packet.extract(hdr.extra);
        transition accept;
    }
}

control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) exact_hits;
    direct_meter<bit<2>>(MeterType.packets) entry_meter;

    action set_exact(bit<8> value) { hdr.key.exact_found = value; exact_hits.count(); }
    action set_lpm(bit<8> value) { hdr.key.lpm_found = value; }
    action set_ternary(bit<8> value) { hdr.key.ternary_found = value; }
    action set_range(bit<8> value) { hdr.key.range_found = value; }
    action set_optional(bit<8> value) { hdr.key.optional_found = value; }
    action set_const(bit<8> value) { hdr.key.const_found = value; }
    action set_selected(bit<8> value) { hdr.key.selected = value; }
    action set_metered(bit<8> value) { hdr.key.metered = value; entry_meter.read(meta.colour); }

    table exact_table {
        key = { hdr.key.a: exact; hdr.key.b: exact; hdr.extra.value: exact; }
        actions = { set_exact; NoAction; }
        counters = exact_hits;
        default_action = NoAction;
    }
    table lpm_table {
        key = { hdr.key.b: exact; hdr.key.address: lpm; }
        actions = { set_lpm; NoAction; }
        default_action = NoAction;
    }
    table ternary_table {
        key = { hdr.key.a: ternary; hdr.key.address: lpm; hdr.key.b: exact; }
        actions = { set_ternary; NoAction; }
        default_action = NoAction;
    }
    table range_table {
        key = { hdr.key.a: range; hdr.key.b: ternary; }
        actions = { set_range; NoAction; }
        default_action = NoAction;
    }
    table optional_table {
        key = { hdr.key.a: optional; hdr.key.b: optional; }
        actions = { set_optional; NoAction; }
        default_action = NoAction;
    }
    table const_table {
        key = { hdr.key.a: ternary; }
        actions = { set_const; }
        const default_action = set_const(9);
        const entries = {
            0x0001: set_const(1);
            0x0000 &&& 0x0002: set_const(2);
            0x1000 &&& 0xf000: set_const(3);
        }
    }
    @name("members") action_selector(HashAlgorithm.crc16, 32w16, 32w16) members;
    table selected_table {
        key = { hdr.key.b: exact; hdr.key.a: selector; hdr.key.address: selector; }
        actions = { set_selected; NoAction; }
        implementation = members;
    }
    table metered_table {
        key = { hdr.key.b: exact; }
        actions = { set_metered; NoAction; }
        meters = entry_meter;
        default_action = NoAction;
    }

    apply {
        if (!exact_table.apply().hit) { hdr.key.exact_found = 0xee; }
        switch (lpm_table.apply().action_run) {
            NoAction: { hdr.key.lpm_found = 0xdd; }
            default: { }
        }
        ternary_table.apply();
        range_table.apply();
        optional_table.apply();
        const_table.apply();
        selected_table.apply();
        metered_table.apply();
        if (meta.colour != 0) { hdr.key.metered = 0xc0 | (bit<8>)meta.colour; }
        standard_metadata.egress_spec = 1;
    }
}

control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) { apply { } }
control Verify(inout headers hdr, inout metadata meta) { apply { } }
control Update(inout headers hdr, inout metadata meta) { apply { } }

control Deparse(packet_out packet, in headers hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(Parse(), Verify(), In(), Out(), Update(), Deparse()) main;
