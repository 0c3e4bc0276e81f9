// State between packets, and everything that sends a packet elsewhere than straight on.
#include <core.p4>
#include <v1model.p4>

header command_h {
    bit<8>  what;
    bit<16> index;
    bit<32> value;
    bit<8>  note;
}

struct headers { command_h command; }
struct metadata {
    @field_list(1) bit<8>  kept;
    @field_list(1) bit<16> other;
    bit<8> lost;
}
struct notice_t { bit<8> what; bit<32> value; bit<9> port; }

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.command);
        transition accept;
    }
}

// Its parameter is a copy of the standard metadata while it runs.
action drop_copy(inout standard_metadata_t given) { mark_to_drop(given); }

control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    register<bit<20>>(8) cells;
    counter(8, CounterType.packets_and_bytes) seen;
    meter(8, MeterType.bytes) rates;

    action leave(bit<8> note) { hdr.command.note = note; exit; }
    action add_up(bit<16> last) {
        bit<32> total = 0;
        for (bit<32> step = 1; step <= (bit<32>)last; step = step + 1) { total = total + step; }
        hdr.command.value = total;
    }
    table idle_table {
        key = { hdr.command.value: exact; }
        actions = { NoAction; }
        support_timeout = true;
        default_action = NoAction;
    }

    apply {
        bit<32> index = (bit<32>)hdr.command.index;
        standard_metadata.egress_spec = 1;
        seen.count(index);
        log_msg("command {} at {}", { hdr.command.what, index });
        if (hdr.command.what == 1) {
            cells.write(index, hdr.command.value[19:0]);
        } else if (hdr.command.what == 2) {
            bit<20> found;
            cells.read(found, index);
            hdr.command.value = (bit<32>)found;
        } else if (hdr.command.what == 3) {
            bit<8> colour;
            rates.execute_meter(index, colour);
            hdr.command.note = colour;
        } else if (hdr.command.what == 4) {
            random(hdr.command.value, 10, 20);
        } else if (hdr.command.what == 5) {
            digest<notice_t>(1, { hdr.command.what, hdr.command.value, standard_metadata.ingress_port });
        } else if (hdr.command.what == 6) {
            meta.kept = 0x66;
            meta.other = 0x6666;
            meta.lost = 0x99;
            hdr.command.note = 1;
            clone_preserving_field_list(CloneType.I2E, 5, 1);
        } else if (hdr.command.what == 7) {
            if (meta.kept == 0) {
                meta.kept = 0x77;
                meta.lost = 0x77;
                resubmit_preserving_field_list(1);
            } else {
                hdr.command.note = meta.kept + meta.lost;
            }
        } else if (hdr.command.what == 8) {
            standard_metadata.mcast_grp = hdr.command.index;
            standard_metadata.priority = 3;
        } else if (hdr.command.what == 9) {
            truncate(4);
        } else if (hdr.command.what == 10) {
            leave(0x10);
        } else if (hdr.command.what == 11) {
            mark_to_drop(standard_metadata);
        } else if (hdr.command.what == 18) {
            drop_copy(standard_metadata);
        } else if (hdr.command.what == 19) {
            add_up(hdr.command.index);
        } else if (hdr.command.what == 12) {
            assert(hdr.command.value == 0);
        } else if (hdr.command.what == 13) {
            idle_table.apply();
        } else if (hdr.command.what == 14 && meta.kept != 0) {
            hdr.command.note = meta.kept;
        }
        standard_metadata.egress_spec = standard_metadata.egress_spec + 1 - 1;
        if (hdr.command.what == 10) { hdr.command.note = 0xff; }
    }
}

control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.instance_type == 1) {
            hdr.command.note = meta.kept + meta.lost;
            hdr.command.index = meta.other;
        } else if (standard_metadata.instance_type == 2) {
            hdr.command.index = (bit<16>)meta.kept;
        } else if (hdr.command.what == 15) {
            meta.kept = 0x15;
            hdr.command.note = 0x51;
            clone_preserving_field_list(CloneType.E2E, 6, 1);
        } else if (hdr.command.what == 14 && hdr.command.note == 0) {
            meta.kept = 0x14;
            recirculate_preserving_field_list(1);
        } else if (hdr.command.what == 16) {
            mark_to_drop(standard_metadata);
        } else if (hdr.command.what == 17) {
            hdr.command.index = (bit<16>)standard_metadata.egress_port;
            hdr.command.value = standard_metadata.deq_timedelta;
            hdr.command.note = (bit<8>)standard_metadata.enq_qdepth;
        }
    }
}
control Verify(inout headers hdr, inout metadata meta) { apply { } }
control Update(inout headers hdr, inout metadata meta) { apply { } }

control Deparse(packet_out packet, in headers hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(Parse(), Verify(), In(), Out(), Update(), Deparse()) main;
