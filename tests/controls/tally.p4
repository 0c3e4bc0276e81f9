// A control with a table, registers, a counter and a group: every so many packets of a job, one goes to all its ports.
#ifndef TENSOREXPRESS_TALLY
#define TENSOREXPRESS_TALLY

control Tally(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<32>>(SLOTS) seen;
    register<bit<8>>(SLOTS) rounds;
    counter(SLOTS, CounterType.packets) told;

    action tell(bit<16> group) {
        bit<32> before;
        bit<8> all;
        rounds.read(all, (bit<32>)meta.slot);
        seen.read(before, (bit<32>)meta.slot);
        before = before + 1;
        if (before == (bit<32>)all) {
            before = 0;
            told.count((bit<32>)meta.slot);
            standard_metadata.mcast_grp = group;
        }
        seen.write((bit<32>)meta.slot, before);
    }

    table jobs {
        key = {
            hdr.tensor.job: exact @name("job");
        }
        actions = {
            tell;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = 256;
    }

    apply {
        if (meta.trusted) {
            jobs.apply();
        }
    }
}

#endif
