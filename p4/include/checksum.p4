// IPv4 header checksums. UDP's is mended where the change is made; see mark.p4.
#ifndef TENSOREXPRESS_CHECKSUM
#define TENSOREXPRESS_CHECKSUM

#define IPV4_SUM { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_length, \
                   hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.more_fragments, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, \
                   hdr.ipv4.source, hdr.ipv4.destination, hdr.ipv4_options.bytes }

control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), IPV4_SUM, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control UpdateChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), IPV4_SUM, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

#endif
