// Which packets are tensor packets, who may send them, which jobs may enter at which port, and how fast.
#ifndef TENSOREXPRESS_GUARD
#define TENSOREXPRESS_GUARD

control Guard(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata,
              counter exceptions) {
    meter(SLOTS, MeterType.bytes) job_meter;
    // 0: the next packet of the slot goes to the controller. A register says it once; the controller may ask again.
    register<bit<1>>(SLOTS) sampled;
    bit<2> colour = METER_GREEN;
    bool spoofed = false;

    // The addresses of the host at this port.
    action bind(ipv4_t ipv4, bit<128> ipv6) {
        spoofed = hdr.ipv4.isValid() ? hdr.ipv4.source != ipv4 : hdr.ipv6.source != ipv6;
    }

    // Ports between switches are not here: packets come there in the name of many.
    table sources {
        key = {
            standard_metadata.ingress_port: exact @name("ingress_port");
        }
        actions = {
            bind;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = SOURCES;
    }

    action admit(slot_t slot) {
        meta.slot = slot;
        job_meter.execute_meter((bit<32>)slot, colour);
    }

    action remark_stranger() {
        meta.trusted = false;
        meta.demoted = true;
        exceptions.count(STRANGER_REMARKED);
    }

    action drop_stranger() {
        exceptions.count(STRANGER_DROPPED);
        mark_to_drop(standard_metadata);
        exit;
    }

    table admission {
        key = {
            standard_metadata.ingress_port: exact @name("ingress_port");
            hdr.tensor.job: exact @name("job");
        }
        actions = {
            admit;
            remark_stranger;
            drop_stranger;
        }
        default_action = remark_stranger();
        size = ADMISSIONS;
    }

    action sample() {
        sampled.write((bit<32>)meta.slot, 1);
        meta.sampled_at = standard_metadata.ingress_port;
        clone_preserving_field_list(CloneType.I2E, SAMPLE_SESSION, SAMPLE_FIELDS);
    }

    apply {
        // What is hidden from us may be a tensor packet to the host that gets it.
        if (meta.to_tensor_port || meta.hidden) {
            sources.apply();
            if (spoofed) {
                exceptions.count(SPOOFED);
                mark_to_drop(standard_metadata);
                exit;
            }
        }
        // Lengths must agree all the way down, and the frame must hold what they say.
        bit<16> network_bytes = 0;
        bit<16> udp_offset = 0;
        if (hdr.ipv4.isValid()) {
            udp_offset = (bit<16>)hdr.ipv4.words << 2;
            network_bytes = hdr.ipv4.total_length;
        } else if (hdr.ipv6.isValid()) {
            udp_offset = 40;
            network_bytes = hdr.ipv6.payload_length + 40;
        }
        bit<32> frame_bytes = (bit<32>)network_bytes + 14;
        if (hdr.vlan.isValid()) {
            frame_bytes = frame_bytes + 4;
        }
        if (hdr.packet_out.isValid()) {
            frame_bytes = frame_bytes + 2;
        }
        // Wider than the fields, so that a length near 65535 cannot wrap around to one that fits.
        meta.trusted = hdr.tensor.isValid() && !meta.fragment
            && (bit<17>)hdr.tensor.payload_length + (bit<17>)(TENSOR_BYTES + UDP_BYTES) == (bit<17>)hdr.udp.length
            && (bit<17>)hdr.udp.length + (bit<17>)udp_offset == (bit<17>)network_bytes
            && frame_bytes <= standard_metadata.packet_length;
        if (meta.trusted) {
            if (admission.apply().hit && colour != METER_GREEN) {
                meta.demoted = true;
                exceptions.count(OVER_RATE);
            }
            if (meta.slot != 0) {
                bit<1> seen;
                sampled.read(seen, (bit<32>)meta.slot);
                if (seen == 0) {
                    sample();
                }
            }
        } else if (meta.to_tensor_port) {
            meta.demoted = true;
            exceptions.count(MALFORMED);
        } else if (meta.fragment && !hdr.udp.isValid()) {
            exceptions.count(FRAGMENT);
        }
    }
}

#endif
