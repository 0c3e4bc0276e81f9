// What a packet carries on to the next hop: less slack, the DSCP of its queue, a mark where the queue was long.
#ifndef TENSOREXPRESS_MARK
#define TENSOREXPRESS_MARK

control Mark(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(SLOT_QUEUES, CounterType.packets_and_bytes) served;
    // What left by every port: in even cells of jobs, in odd ones of all others.
    counter(PORTS << 1, CounterType.packets_and_bytes) ports;
    // The longest queue that a packet found, per port and queue. Ports are pinned to threads in every target, so
    // that reading and writing one cell cannot interleave.
    register<bit<19>>(PORTS << 3) longest;
    bit<19> ecn_threshold = 0x7ffff;

    action mark_over(bit<19> packets) {
        ecn_threshold = packets;
    }

    table ecn {
        actions = { mark_over; }
        default_action = mark_over(0x7ffff);
    }

    action set_dscp(bit<6> dscp) {
        hdr.ipv4.dscp = dscp;
    }

    action set_dscp6(bit<6> dscp) {
        hdr.ipv6.dscp = dscp;
    }

    // For switches, NICs and qdiscs behind this one that know no P4.
    table queue_dscp {
        key = {
            meta.queue: exact @name("queue");
            hdr.ipv4.isValid(): exact @name("is_ipv4");
        }
        actions = {
            set_dscp;
            set_dscp6;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = 16;
    }

    apply {
        if (standard_metadata.instance_type == INSTANCE_INGRESS_CLONE) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = meta.sampled_at;
            hdr.packet_in.reason = REASON_SAMPLE;
            truncate(SAMPLE_BYTES);
        } else if (standard_metadata.instance_type == INSTANCE_REPLICATION
                   && standard_metadata.egress_port == standard_metadata.ingress_port && !meta.made) {
            mark_to_drop(standard_metadata);
        } else {
            served.count((bit<32>)(meta.slot ++ meta.queue));
            bit<1> is_other = 0;
            if (meta.slot == 0) {
                is_other = 1;
            }
            ports.count((bit<32>)(standard_metadata.egress_port ++ is_other));
            bit<19> depth;
            bit<32> cell = (bit<32>)(standard_metadata.egress_port ++ meta.queue);
            longest.read(depth, cell);
            if (standard_metadata.enq_qdepth > depth) {
                longest.write(cell, standard_metadata.enq_qdepth);
            }
            if (meta.trusted || meta.demoted) {
                queue_dscp.apply();
            }
            ecn.apply();
            if (standard_metadata.enq_qdepth > ecn_threshold) {
                if (hdr.ipv4.isValid() && (hdr.ipv4.ecn == ECN_CAPABLE_0 || hdr.ipv4.ecn == ECN_CAPABLE_1)) {
                    hdr.ipv4.ecn = ECN_CONGESTED;
                }
                if (hdr.ipv6.isValid() && (hdr.ipv6.ecn == ECN_CAPABLE_0 || hdr.ipv6.ecn == ECN_CAPABLE_1)) {
                    hdr.ipv6.ecn = ECN_CONGESTED;
                }
            }
            if (meta.trusted && standard_metadata.deq_timedelta != 0) {
                int<32> before = hdr.tensor.slack;
                hdr.tensor.slack = before |-| (int<32>)standard_metadata.deq_timedelta;
                // RFC 1624: the old value out, the new one in. The rest of the packet is not summed again, so damage
                // done before it came here is still seen by the receiver. A checksum of 0 means there is none.
                if (hdr.udp.checksum != 0) {
                    bit<16> sum;
                    hash(sum, HashAlgorithm.csum16, 16w0,
                         { ~hdr.udp.checksum, ~(bit<32>)before, (bit<32>)hdr.tensor.slack }, 17w65536);
                    hdr.udp.checksum = sum;
                    if (sum == 0) {
                        hdr.udp.checksum = 0xffff;
                    }
                }
            }
        }
    }
}

#endif
