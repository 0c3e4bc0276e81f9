// Where a packet goes: L2 by exact address, IPv4 and IPv6 by the path that is planned for its two hosts, or else by
// longest prefix over one or several next hops.
#ifndef TENSOREXPRESS_FORWARD
#define TENSOREXPRESS_FORWARD

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata,
                counter exceptions) {
    bool routed = false;
    bool missed = false;
    bit<16> ecmp_group = 0;
    bit<16> ecmp_paths = 0;
    bit<16> ecmp_path = 0;
    bit<32> ecmp_multiplier = 1;

    action drop() {
        exceptions.count(NO_ROUTE);
        mark_to_drop(standard_metadata);
        exit;
    }

    action to_controller() {
        exceptions.count(NO_ROUTE);
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = standard_metadata.ingress_port;
        hdr.packet_in.reason = REASON_NO_ROUTE;
        standard_metadata.egress_spec = CPU_PORT;
    }

    action expire() {
        exceptions.count(TTL_EXPIRED);
        mark_to_drop(standard_metadata);
        exit;
    }

    action switch_to(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    action flood(bit<16> group) {
        standard_metadata.mcast_grp = group;
    }

    // The frame is addressed to the switch as a router.
    action route() {
        routed = true;
    }

    table l2 {
        key = {
            hdr.ethernet.destination: exact @name("destination");
        }
        actions = {
            switch_to;
            flood;
            route;
            drop;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = HOSTS_L2;
    }

    action next_hop(bit<9> port, mac_t source, mac_t destination) {
        standard_metadata.egress_spec = port;
        hdr.ethernet.source = source;
        hdr.ethernet.destination = destination;
    }

    // Several next hops. The multiplier, an odd number, is another on every switch, so that switches choose independently
    // of each other: a CRC is linear, and with a mere seed all flows that met at one switch would stay together.
    action spread(bit<16> group, bit<16> paths, bit<32> multiplier) {
        ecmp_group = group;
        ecmp_paths = paths;
        ecmp_multiplier = multiplier;
    }

    // Pairs of hosts whose way from here on is planned. All that goes between them takes it, fragments too.
    table ipv4_paths {
        key = {
            hdr.ipv4.source: exact @name("source");
            hdr.ipv4.destination: exact @name("destination");
        }
        actions = {
            next_hop;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = PATHS;
    }

    table ipv6_paths {
        key = {
            hdr.ipv6.source: exact @name("source");
            hdr.ipv6.destination: exact @name("destination");
        }
        actions = {
            next_hop;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = PATHS;
    }

    table ipv4 {
        key = {
            hdr.ipv4.destination: lpm @name("destination");
        }
        actions = {
            next_hop;
            spread;
            flood;
            drop;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = ROUTES_IPV4;
    }

    table ipv6 {
        key = {
            hdr.ipv6.destination: lpm @name("destination");
        }
        actions = {
            next_hop;
            spread;
            flood;
            drop;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = ROUTES_IPV6;
    }

    table next_hops {
        key = {
            ecmp_group: exact @name("group");
            ecmp_path: exact @name("path");
        }
        actions = {
            next_hop;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = NEXT_HOPS;
    }

    // What becomes of packets that no table knows.
    table miss {
        actions = {
            drop;
            to_controller;
        }
        default_action = drop();
    }

    action answer(mac_t address) {
        hdr.ethernet.destination = hdr.ethernet.source;
        hdr.ethernet.source = address;
        hdr.arp.operation = 2;
        ipv4_t asked = hdr.arp.target_ip;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = address;
        hdr.arp.sender_ip = asked;
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }

    // Answers requests in the name of hosts behind routers, so that hosts need no static entries.
    table arp {
        key = {
            hdr.arp.target_ip: exact @name("target");
        }
        actions = {
            answer;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = ARP_ANSWERS;
    }

    apply {
        if (hdr.packet_out.isValid()) {
            standard_metadata.egress_spec = hdr.packet_out.egress_port;
            meta.from_controller = true;
            meta.queue = hdr.packet_out.queue;
            hdr.packet_out.setInvalid();
        } else if (!(hdr.arp.isValid() && hdr.arp.operation == 1 && arp.apply().hit)) {
            missed = !l2.apply().hit;
            if (routed) {
                if (hdr.ipv4.isValid()) {
                    if (hdr.ipv4.ttl <= 1) {
                        expire();
                    }
                    hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
                    if (!ipv4_paths.apply().hit) {
                        missed = !ipv4.apply().hit;
                    }
                } else if (hdr.ipv6.isValid()) {
                    if (hdr.ipv6.hop_limit <= 1) {
                        expire();
                    }
                    hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
                    if (!ipv6_paths.apply().hit) {
                        missed = !ipv6.apply().hit;
                    }
                } else {
                    missed = true;
                }
            }
            if (ecmp_group != 0) {
                // The hash sees what all packets of a flow have in common, so that they stay in order on one path. Later
                // fragments have no ports, so that for the first they do not count either.
                bit<32> ports = 0;
                if (hdr.udp.isValid() && !meta.fragment) {
                    ports = hdr.udp.source ++ hdr.udp.destination;
                }
                bit<32> flow;
                if (hdr.ipv4.isValid()) {
                    hash(flow, HashAlgorithm.crc32, 32w0,
                         { hdr.ipv4.source, hdr.ipv4.destination, hdr.ipv4.protocol, ports }, 33w0x100000000);
                } else {
                    hash(flow, HashAlgorithm.crc32, 32w0,
                         { hdr.ipv6.source, hdr.ipv6.destination, hdr.ipv6.next_header, ports }, 33w0x100000000);
                }
                flow = flow * ecmp_multiplier;
                hash(ecmp_path, HashAlgorithm.identity, 16w0, { flow[31:16] }, ecmp_paths);
                missed = !next_hops.apply().hit;
            }
            if (missed) {
                miss.apply();
            }
        }
    }
}

#endif
