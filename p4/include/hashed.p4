// Cells found by hash, which all jobs share. A packet says whose values are in it: what finds its cell taken goes on as it
// is, and a switch above or the server adds it. Nothing is answered here. docs/aggregation-switch.md has the rules.
#ifndef TENSOREXPRESS_HASHED
#define TENSOREXPRESS_HASHED

#define SWAP(values) \
    values.read(held, cell); \
    values.write(cell, hdr.sum.values); \
    hdr.sum.values = held;

control Hashed(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata,
               in summand_t summand, counter events, register<bit<73>> owners, register<bit<88>> identities,
               register<bit<64>> seen, register<bit<40>> heads, register<lanes_t> values0, register<lanes_t> values1,
               register<lanes_t> values2, register<lanes_t> values3) {
    // What is needed to send a cell's content on in place of another's packet: job, pool, tree, port up, whether it may
    // not use its queue, class, queue asked for, chunks, slack; and when the cell was taken.
    register<bit<181>>(SUM_CELLS) ways;
    AddUp() add_up;

    action refuse(bit<32> event) {
        events.count(event);
        mark_to_drop(standard_metadata);
        exit;
    }

    apply {
        bit<32> cell;
        hash(cell, HashAlgorithm.crc32, 32w0, { hdr.tensor.job, hdr.sum.slot, hdr.sum.turn }, summand.cells);
        bit<73> owner;
        owners.read(owner, cell);
        bit<181> way;
        ways.read(way, cell);
        bit<73> claim = 1w1 ++ meta.slot ++ hdr.sum.epoch ++ hdr.sum.turn;
        bool is_own = owner == claim && way[164:149] == hdr.sum.slot;
        if (hdr.sum.flags & SUM_RESULT != 0) {
            if (is_own) {
                owners.write(cell, 0);
                events.count(SUM_FREED);
            }
        } else {
            bit<64> workers = hdr.part.workers;
            if (workers == 0 || workers & ~summand.own != 0) {
                refuse(SUM_STRANGER);
            }
            // What a plan with slots has left there is nobody's.
            bool is_held = owner[72:72] == 1;
            // Serial numbers (RFC 1982): how much newer the packet is, or with its top bit set how much older.
            bit<32> newer = hdr.sum.epoch - owner[63:32];
            if (is_held && owner[71:64] == meta.slot && newer != 0) {
                if (newer[31:31] == 1) {
                    refuse(SUM_LATE);
                }
                is_held = false;
            }
            bit<88> known;
            bit<64> before;
            bit<40> head;
            lanes_t held;
            identities.read(known, cell);
            seen.read(before, cell);
            heads.read(head, cell);
            bit<88> identity = hdr.tensor.iteration ++ hdr.tensor.tensor ++ hdr.tensor.chunk ++ hdr.sum.exponent;
            bit<48> age = standard_metadata.ingress_global_timestamp - way[47:0];
            bool is_sent_again = hdr.tensor.flags & TENSOR_RETRANSMITTED != 0;
            hdr.tensor.flags = hdr.tensor.flags & TENSOR_RETRANSMITTED;
            if (is_own) {
                if (known != identity) {
                    refuse(SUM_MISMATCH);
                }
                if (workers & before == 0) {
                    events.count(SUM_CONTRIBUTION);
                    add_up.apply(hdr, cell, head, events, values0, values1, values2, values3);
                    hdr.part.workers = workers | before;
                    if (is_sent_again) {
                        owners.write(cell, 0);
                        events.count(SUM_FLUSHED);
                    } else {
                        bit<8> sent = hdr.part.workers == summand.everyone ? SUM_SENT : 0;
                        seen.write(cell, hdr.part.workers);
                        heads.write(cell, hdr.sum.check ++ hdr.sum.needed ++ hdr.sum.culprit ++ (hdr.sum.flags | sent));
                        if (sent == 0) {
                            mark_to_drop(standard_metadata);
                            exit;
                        }
                        // It stays until there is a result, so that a late duplicate finds it.
                        events.count(SUM_COMPLETED);
                    }
                } else if (workers & ~before == 0) {
                    if (!is_sent_again) {
                        refuse(SUM_REPEATED);
                    }
                    owners.write(cell, 0);
                    events.count(SUM_FLUSHED);
                    values0.read(hdr.sum.values0, cell);
                    values1.read(hdr.sum.values1, cell);
                    values2.read(hdr.sum.values2, cell);
                    values3.read(hdr.sum.values3, cell);
                    hdr.part.workers = before;
                    hdr.sum.check = head[39:24];
                    hdr.sum.needed = head[23:16];
                    hdr.sum.culprit = head[15:8];
                    hdr.sum.flags = head[7:0] & SUM_OVERFLOW;
                } else {
                    events.count(SUM_PASSED);
                }
            } else if (is_sent_again || workers == summand.everyone) {
                events.count(SUM_PASSED);
                if (!is_held) {
                    owners.write(cell, 0);
                }
            } else if (is_held && age <= SUM_AGE && !(summand.preempts && summand.queue < way[122:120])) {
                events.count(SUM_COLLISION);
                events.count(SUM_PASSED);
            } else {
                events.count(SUM_CONTRIBUTION);
                owners.write(cell, claim);
                ways.write(cell, hdr.tensor.job ++ hdr.sum.slot ++ meta.tree ++ standard_metadata.egress_spec
                           ++ (bit<1>)meta.demoted ++ summand.queue ++ hdr.tensor.queue ++ hdr.tensor.chunks
                           ++ (bit<32>)hdr.tensor.slack ++ standard_metadata.ingress_global_timestamp);
                identities.write(cell, identity);
                seen.write(cell, workers);
                heads.write(cell, hdr.sum.check ++ hdr.sum.needed ++ hdr.sum.culprit ++ hdr.sum.flags);
                SWAP(values0)
                SWAP(values1)
                SWAP(values2)
                SWAP(values3)
                if (is_held) {
                    events.count(SUM_EVICTED);
                }
                if (!is_held || head[7:0] & SUM_SENT != 0) {
                    mark_to_drop(standard_metadata);
                    exit;
                }
                // From here on this is the packet of the one who was evicted, and nobody holds it again.
                meta.slot = owner[71:64];
                hdr.sum.epoch = owner[63:32];
                hdr.sum.turn = owner[31:0];
                hdr.tensor.job = way[180:165];
                hdr.sum.slot = way[164:149];
                meta.tree = way[148:133];
                standard_metadata.egress_spec = way[132:124];
                meta.demoted = way[123:123] == 1;
                hdr.tensor.queue = way[119:112];
                hdr.tensor.chunks = way[111:80];
                hdr.tensor.slack = (int<32>)way[79:48];
                hdr.tensor.iteration = known[87:56];
                hdr.tensor.tensor = known[55:40];
                hdr.tensor.chunk = known[39:8];
                hdr.sum.exponent = known[7:0];
                hdr.part.workers = before;
                hdr.sum.check = head[39:24];
                hdr.sum.needed = head[23:16];
                hdr.sum.culprit = head[15:8];
                hdr.sum.flags = head[7:0];
                hdr.tensor.flags = TENSOR_RETRANSMITTED;
            }
        }
    }
}

#endif
