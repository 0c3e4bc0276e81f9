// IPv4 header checksums, and UDP's of packets to sum, because what is added cannot be told apart any more. All others'
// is mended where the change is made; see mark.p4.
#ifndef TENSOREXPRESS_CHECKSUM
#define TENSOREXPRESS_CHECKSUM

#define IPV4_SUM { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_length, \
                   hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.more_fragments, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, \
                   hdr.ipv4.source, hdr.ipv4.destination, hdr.ipv4_options.bytes }

// Pseudo header, UDP and all behind it, without the checksum, and without whose values they are: not all packets say.
#define UDP_SUM hdr.ipv4.source, hdr.ipv4.destination, 8w0, hdr.ipv4.protocol, hdr.udp.length, \
                hdr.udp.source, hdr.udp.destination, hdr.udp.length, hdr.tensor.magic, hdr.tensor.version, hdr.tensor.kind, \
                hdr.tensor.flags, hdr.tensor.job, hdr.tensor.worker, hdr.tensor.iteration, hdr.tensor.tensor, hdr.tensor.queue, \
                hdr.tensor.reserved, hdr.tensor.chunk, hdr.tensor.chunks, hdr.tensor.slack, hdr.tensor.payload_length, \
                hdr.tensor.reserved_tail, hdr.sum.epoch, hdr.sum.turn, hdr.sum.slot, hdr.sum.check, hdr.sum.exponent, \
                hdr.sum.needed, hdr.sum.culprit, hdr.sum.flags, hdr.sum.values0, hdr.sum.values1, hdr.sum.values2, \
                hdr.sum.values3

control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), IPV4_SUM, hdr.ipv4.checksum, HashAlgorithm.csum16);
        // Together with its checksum a packet comes to zero, whichever of its two zeros the checksum is.
        verify_checksum(hdr.sum.isValid() && !hdr.part.isValid() && hdr.ipv4.isValid(), { UDP_SUM, hdr.udp.checksum },
                        meta.zero, HashAlgorithm.csum16);
        verify_checksum(hdr.sum.isValid() && hdr.part.isValid() && hdr.ipv4.isValid(),
                        { UDP_SUM, hdr.part.workers, hdr.udp.checksum }, meta.zero, HashAlgorithm.csum16);
    }
}

control UpdateChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), IPV4_SUM, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

#endif
