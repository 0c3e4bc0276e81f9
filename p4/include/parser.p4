// Ethernet, one VLAN tag, ARP, IPv4 with options, IPv6, fragments, UDP, and on the tensor port the TensorExpress header
// and values to sum.
#ifndef TENSOREXPRESS_PARSER
#define TENSOREXPRESS_PARSER

parser TensorParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: from_controller;
            default: ethernet;
        }
    }

    state from_controller {
        packet.extract(hdr.packet_out);
        transition ethernet;
    }

    state ethernet {
        packet.extract(hdr.ethernet);
        meta.type = hdr.ethernet.type;
        transition select(hdr.ethernet.type) {
            ETHERTYPE_VLAN: vlan;
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_IPV6: ipv6;
            ETHERTYPE_ARP: arp;
            default: accept;
        }
    }

    state vlan {
        packet.extract(hdr.vlan);
        meta.type = hdr.vlan.type;
        transition select(hdr.vlan.type) {
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_IPV6: ipv6;
            ETHERTYPE_ARP: arp;
            default: accept;
        }
    }

    state arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    // Fewer than five words cannot hold the header: leave the bytes alone rather than guess where the next one starts.
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.words) {
            (4, 5): ipv4_protocol;
            (4, 6 .. 15): ipv4_options;
            default: accept;
        }
    }

    state ipv4_options {
        packet.extract(hdr.ipv4_options, (bit<32>)(((bit<9>)hdr.ipv4.words - 5) << 5));
        transition ipv4_protocol;
    }

    state ipv4_protocol {
        transition select(hdr.ipv4.more_fragments, hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (0, 0, PROTOCOL_UDP): udp;
            (_, 0, PROTOCOL_UDP): first_fragment;
            (_, _, PROTOCOL_UDP): later_fragment;
            default: accept;
        }
    }

    state ipv6 {
        packet.extract(hdr.ipv6);
        transition select(hdr.ipv6.version, hdr.ipv6.next_header) {
            (6, PROTOCOL_UDP): udp;
            (6, IPV6_FRAGMENT): ipv6_fragment;
            (6, IPV6_HOP_BY_HOP): hidden;
            (6, IPV6_ROUTING): hidden;
            (6, IPV6_AUTHENTICATION): hidden;
            (6, IPV6_DESTINATION): hidden;
            (6, IPV6_MOBILITY): hidden;
            (6, IPV6_HOST_IDENTITY): hidden;
            (6, IPV6_SHIM): hidden;
            default: accept;
        }
    }

    state ipv6_fragment {
        packet.extract(hdr.ipv6_fragment);
        transition select(hdr.ipv6_fragment.fragment, hdr.ipv6_fragment.next_header) {
            (0, PROTOCOL_UDP): first_fragment;
            (_, PROTOCOL_UDP): later_fragment;
            default: hidden;
        }
    }

    state first_fragment {
        meta.fragment = true;
        transition udp;
    }

    state later_fragment {
        meta.fragment = true;
        transition accept;
    }

    state hidden {
        meta.hidden = true;
        transition accept;
    }

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.destination) {
            TENSOR_PORT: tensor_port;
            default: accept;
        }
    }

    state tensor_port {
        meta.to_tensor_port = true;
        transition select(packet.lookahead<bit<20>>()) {
            TENSOR_MAGIC ++ TENSOR_VERSION: tensor;
            default: accept;
        }
    }

    state tensor {
        packet.extract(hdr.tensor);
        transition select(hdr.tensor.kind, hdr.tensor.payload_length, hdr.udp.length) {
            (TENSOR_SUM, SUM_PAYLOAD_BYTES, SUM_UDP_BYTES): sum;
            (TENSOR_PART, PART_PAYLOAD_BYTES, PART_UDP_BYTES): part;
            default: accept;
        }
    }

    state part {
        packet.extract(hdr.part);
        transition sum;
    }

    state sum {
        packet.extract(hdr.sum);
        transition accept;
    }
}

#endif
