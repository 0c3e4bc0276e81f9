// Which of the strict-priority queues a packet waits in. Queue 0 is the most urgent.
#ifndef TENSOREXPRESS_CLASSIFY
#define TENSOREXPRESS_CLASSIFY

control Classify(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    // SP-PIFO: per port and queue the rank that the queue takes at least. Ingress is one thread in every target.
    register<bit<48>>(PORTS << 3) bounds;
    counter(SLOT_QUEUES, CounterType.packets_and_bytes) offered;
    bool by_slack = false;

    action use_queues(queue_t lowest) {
        meta.lowest_queue = lowest;
    }

    // How many queues the ports of this switch have, as the number of the lowest.
    table queues {
        actions = { use_queues; }
        default_action = use_queues(7);
    }

    action set_queue(queue_t queue) {
        meta.queue = queue;
    }

    table dscp_queue {
        key = {
            hdr.ipv4.dscp: exact @name("dscp");
        }
        actions = {
            set_queue;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = 64;
    }

    table dscp6_queue {
        key = {
            hdr.ipv6.dscp: exact @name("dscp");
        }
        actions = {
            set_queue;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = 64;
    }

    table tensor_queue {
        key = {
            hdr.tensor.job: exact @name("job");
            hdr.tensor.tensor: exact @name("tensor");
        }
        actions = {
            set_queue;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = TENSORS;
    }

    // The job is trusted to name its queue, but none more urgent than this one.
    action queue_asked(queue_t most_urgent) {
        meta.queue = most_urgent;
        if (hdr.tensor.queue > (bit<8>)most_urgent) {
            meta.queue = meta.lowest_queue;
            if (hdr.tensor.queue < (bit<8>)meta.lowest_queue) {
                meta.queue = (queue_t)hdr.tensor.queue;
            }
        }
    }

    action queue_by_slack() {
        by_slack = true;
    }

    // Jobs that are not here have the queues of their tensors from `tensor_queue`.
    table job_mode {
        key = {
            hdr.tensor.job: exact @name("job");
        }
        actions = {
            queue_asked;
            queue_by_slack;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = 256;
    }

#define TRY(q) \
    if (!found && meta.lowest_queue >= q) { \
        bounds.read(bound, first + q); \
        if (rank >= bound) { \
            found = true; \
            meta.queue = q; \
            bounds.write(first + q, rank); \
        } \
    }
#define LOWER(q) bounds.read(bound, first + q); bounds.write(first + q, bound |-| inversion);

    apply {
        queues.apply();
        if (!meta.from_controller) {
            meta.queue = meta.lowest_queue;
            if (meta.trusted && !meta.demoted) {
                tensor_queue.apply();
                job_mode.apply();
                if (by_slack && standard_metadata.mcast_grp == 0) {
                    bit<32> first = (bit<32>)standard_metadata.egress_spec << 3;
                    bit<48> rank = standard_metadata.ingress_global_timestamp + RANK_OFFSET
                        + (bit<48>)(int<48>)hdr.tensor.slack;
                    bit<48> bound = 0;
                    bool found = false;
                    TRY(7)
                    TRY(6)
                    TRY(5)
                    TRY(4)
                    TRY(3)
                    TRY(2)
                    TRY(1)
                    TRY(0)
                    if (!found) {
                        // More urgent than anything before it: queue 0, and all bounds fall by the inversion this made.
                        bit<48> inversion = bound - rank;
                        meta.queue = 0;
                        LOWER(7)
                        LOWER(6)
                        LOWER(5)
                        LOWER(4)
                        LOWER(3)
                        LOWER(2)
                        LOWER(1)
                        LOWER(0)
                    }
                }
            } else if (!meta.to_tensor_port && hdr.ipv4.isValid()) {
                dscp_queue.apply();
            } else if (!meta.to_tensor_port && hdr.ipv6.isValid()) {
                dscp6_queue.apply();
            }
        }
        if (meta.queue > meta.lowest_queue) {
            meta.queue = meta.lowest_queue;
        }
        // v1model serves the highest priority first.
        standard_metadata.priority = meta.lowest_queue - meta.queue;
        offered.count((bit<32>)(meta.slot ++ meta.queue));
    }
}

#endif
