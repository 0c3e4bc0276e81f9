// Packets of the children of this switch become one: their values are added up in slots. A switch sends the sum up, to
// the next switch or to a server, as a child of it; the root of a tree without a server sends it down to all instead.
// docs/aggregation-switch.md says why that is safe.
#ifndef TENSOREXPRESS_AGGREGATE
#define TENSOREXPRESS_AGGREGATE

control Aggregate(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(SUM_EVENTS, CounterType.packets) events;
    AddUp() add_up;
    Hashed() hashed;
    // What is in a cell, which is a slot and the lowest bit of its turn. Ingress is one thread in every target.
    // Whether it was found by hash, the job's slot in meters and counters, epoch, turn.
    register<bit<73>>(SUM_CELLS) owners;
    // Iteration, tensor, chunk, exponent.
    register<bit<88>>(SUM_CELLS) identities;
    // A bit for every child whose values are in.
    register<bit<64>>(SUM_CELLS) seen;
    // Check, needed, culprit, flags.
    register<bit<40>>(SUM_CELLS) heads;
    register<lanes_t>(SUM_CELLS) values0;
    register<lanes_t>(SUM_CELLS) values1;
    register<lanes_t>(SUM_CELLS) values2;
    register<lanes_t>(SUM_CELLS) values3;

    summand_t summand = { 0, 0, 1, 0, false };
    bool is_root = false;
    bool is_repeated = false;
    bit<64> before = 0;

    action refuse(bit<32> event) {
        events.count(event);
        mark_to_drop(standard_metadata);
        exit;
    }

    // Which tree of which job has a slot, by its number in the whole plan.
    action of_tree(bit<16> tree) {
        meta.tree = tree;
    }

    // The same of a pool whose cells are found by hash, and which has a number in place of slots.
    action of_pool(bit<16> tree, bit<32> cells, queue_t queue, bit<1> preempts) {
        meta.tree = tree;
        summand.cells = cells;
        summand.queue = queue;
        summand.preempts = preempts == 1;
    }

    table slots {
        key = {
            hdr.tensor.kind: exact @name("kind");
            hdr.tensor.job: exact @name("job");
            hdr.sum.slot: exact @name("slot");
        }
        actions = {
            of_tree;
            of_pool;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = SUM_OWNED;
    }

    // A child of the root, which sends sums to a group of all children, or to one by its copy.
    action add_at_root(bit<64> mask, bit<64> all, bit<16> copy, bit<16> group) {
        summand.own = mask;
        summand.everyone = all;
        is_root = true;
        meta.copy = copy;
        standard_metadata.mcast_grp = group;
    }

    // A child of a switch that has another one above it, or a server.
    action add_below(bit<64> mask, bit<64> all, bit<9> up) {
        summand.own = mask;
        summand.everyone = all;
        meta.copy = SUM_COPY_UP;
        standard_metadata.egress_spec = up;
    }

    // Who may add, and only in its own name. A worker is a child by its number at this switch.
    table members {
        key = {
            standard_metadata.ingress_port: exact @name("ingress_port");
            meta.tree: exact @name("tree");
            hdr.tensor.worker: exact @name("worker");
        }
        actions = {
            add_at_root;
            add_below;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = SUM_MEMBERS;
    }

    action hand_down(bit<16> group) {
        standard_metadata.mcast_grp = group;
    }

    // Where sums of a tree come from: the switch above, or the server.
    table from_above {
        key = {
            standard_metadata.ingress_port: exact @name("ingress_port");
            meta.tree: exact @name("tree");
        }
        actions = {
            hand_down;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = SUM_MEMBERS;
    }

    apply {
        // Neither an IPv6 packet nor a fragment, a VLAN tag, options or padding: what leaves again is of this form alone.
        if (!hdr.sum.isValid() || !hdr.ipv4.isValid() || hdr.ipv4.words != 5 || meta.fragment || hdr.udp.checksum == 0
            || hdr.ipv4.total_length != hdr.udp.length + IPV4_BYTES
            || standard_metadata.packet_length != (bit<32>)hdr.ipv4.total_length + ETHERNET_BYTES) {
            refuse(SUM_MALFORMED);
        }
        // Its form is right, so that it was for its job that the guard did not trust it.
        if (!meta.trusted) {
            refuse(SUM_STRANGER);
        }
        if (!slots.apply().hit) {
            refuse(SUM_OUT_OF_RANGE);
        }
        bool is_result = hdr.sum.flags & SUM_RESULT != 0;
        if (is_result) {
            if (!from_above.apply().hit) {
                refuse(SUM_STRANGER);
            }
            events.count(SUM_HANDED_DOWN);
        } else {
            if (!members.apply().hit) {
                refuse(SUM_STRANGER);
            }
            hdr.sum.flags = hdr.sum.flags & SUM_OVERFLOW;
        }
        if (hdr.part.isValid()) {
            hashed.apply(hdr, meta, standard_metadata, summand, events, owners, identities, seen, heads, values0, values1,
                         values2, values3);
        } else if (!is_result) {
            bit<32> cell = (bit<32>)(hdr.sum.slot ++ hdr.sum.turn[0:0]);
            bit<88> identity = hdr.tensor.iteration ++ hdr.tensor.tensor ++ hdr.tensor.chunk ++ hdr.sum.exponent;
            // Serial numbers (RFC 1982): how much newer the packet is, or with its top bit set how much older.
            bit<73> owner;
            owners.read(owner, cell);
            bit<32> newer = hdr.sum.epoch - owner[63:32];
            if (newer == 0) {
                newer = hdr.sum.turn - owner[31:0];
            }
            if (owner[72:64] != 1w0 ++ meta.slot || (newer != 0 && newer[31:31] == 0)) {
                // Nobody needs any more what was here, whether or not it was ever complete.
                owners.write(cell, 1w0 ++ meta.slot ++ hdr.sum.epoch ++ hdr.sum.turn);
                identities.write(cell, identity);
                values0.write(cell, hdr.sum.values0);
                values1.write(cell, hdr.sum.values1);
                values2.write(cell, hdr.sum.values2);
                values3.write(cell, hdr.sum.values3);
            } else if (newer != 0) {
                refuse(SUM_LATE);
            } else {
                bit<88> known;
                identities.read(known, cell);
                if (known != identity) {
                    refuse(SUM_MISMATCH);
                }
                bit<40> head;
                heads.read(head, cell);
                seen.read(before, cell);
                if (before & summand.own != 0) {
                    if (before != summand.everyone) {
                        refuse(SUM_REPEATED);
                    }
                    is_repeated = true;
                    events.count(SUM_ANSWERED);
                    values0.read(hdr.sum.values0, cell);
                    values1.read(hdr.sum.values1, cell);
                    values2.read(hdr.sum.values2, cell);
                    values3.read(hdr.sum.values3, cell);
                    hdr.sum.check = head[39:24];
                    hdr.sum.needed = head[23:16];
                    hdr.sum.culprit = head[15:8];
                    hdr.sum.flags = head[7:0];
                } else {
                    add_up.apply(hdr, cell, head, events, values0, values1, values2, values3);
                }
            }
            if (!is_repeated) {
                events.count(SUM_CONTRIBUTION);
                before = before | summand.own;
                seen.write(cell, before);
                heads.write(cell, hdr.sum.check ++ hdr.sum.needed ++ hdr.sum.culprit ++ hdr.sum.flags);
                if (before != summand.everyone) {
                    mark_to_drop(standard_metadata);
                    exit;
                }
                events.count(SUM_COMPLETED);
            }
            if (is_root) {
                hdr.sum.flags = hdr.sum.flags | SUM_RESULT;
                if (is_repeated) {
                    standard_metadata.mcast_grp = 0;
                    standard_metadata.egress_spec = standard_metadata.ingress_port;
                }
            }
            hdr.tensor.flags = 0;
        }
        if (!is_result) {
            bit<16> checksum;
            if (hdr.part.isValid()) {
                hash(checksum, HashAlgorithm.csum16, 16w0, { UDP_SUM, hdr.part.workers }, 17w65536);
            } else {
                hash(checksum, HashAlgorithm.csum16, 16w0, { UDP_SUM }, 17w65536);
            }
            hdr.udp.checksum = checksum;
            if (checksum == 0) {
                hdr.udp.checksum = 0xffff;
            }
        }
        meta.made = true;
        hdr.ipv4.ttl = SUM_TTL;
    }
}

// In egress: whom a copy is for.
control Address(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action drop() {
        mark_to_drop(standard_metadata);
    }

    // The checksum is mended (RFC 1624): each copy differs from the others, and from what a server sent, in this alone.
    action readdress(mac_t mac_from, mac_t mac_to, ipv4_t ipv4_from, ipv4_t ipv4_to, bit<16> worker) {
        bit<16> checksum;
        hash(checksum, HashAlgorithm.csum16, 16w0,
             { ~hdr.udp.checksum, ~hdr.ipv4.source, ~hdr.ipv4.destination, ~hdr.udp.source, ~hdr.tensor.worker,
               ipv4_from, ipv4_to, TENSOR_PORT, worker },
             17w65536);
        hdr.udp.checksum = checksum;
        hdr.ethernet.source = mac_from;
        hdr.ethernet.destination = mac_to;
        hdr.ipv4.source = ipv4_from;
        hdr.ipv4.destination = ipv4_to;
        hdr.udp.source = TENSOR_PORT;
        hdr.tensor.worker = worker;
    }

    table copies {
        key = {
            meta.tree: exact @name("tree");
            meta.copy: exact @name("copy");
        }
        actions = {
            readdress;
            drop;
        }
        default_action = drop();
        size = SUM_COPIES;
    }

    apply {
        if (standard_metadata.egress_rid != 0) {
            meta.copy = standard_metadata.egress_rid;
        }
        copies.apply();
        if (hdr.udp.checksum == 0) {
            hdr.udp.checksum = 0xffff;
        }
    }
}

#endif
