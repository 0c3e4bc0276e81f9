// The TensorExpress switch: urgent tensors first. Each control is a file of its own under include/.
#include <core.p4>
#include <v1model.p4>

#include "include/define.p4"
#include "include/headers.p4"
#include "include/parser.p4"
#include "include/checksum.p4"
#include "include/guard.p4"
#include "include/lanes.p4"
#include "include/hashed.p4"
#include "include/aggregate.p4"
#include "include/forward.p4"
#include "include/classify.p4"
#include "include/mark.p4"

control TensorIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(EXCEPTIONS, CounterType.packets) exceptions;
    Guard() guard;
    Aggregate() aggregate;
    Forward() forward;
    Classify() classify;

    apply {
        if (standard_metadata.checksum_error == 1) {
            exceptions.count(BAD_CHECKSUM);
            mark_to_drop(standard_metadata);
            exit;
        }
        guard.apply(hdr, meta, standard_metadata, exceptions);
        // Values to sum go no further than the next switch, so that nobody sends a host what looks like a sum.
        if (hdr.tensor.isValid() && (hdr.tensor.kind == TENSOR_SUM || hdr.tensor.kind == TENSOR_PART)
            && !hdr.packet_out.isValid()) {
            aggregate.apply(hdr, meta, standard_metadata);
        } else {
            forward.apply(hdr, meta, standard_metadata, exceptions);
        }
        classify.apply(hdr, meta, standard_metadata);
    }
}

control TensorEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Mark() mark;
    Address() address;

    apply {
        mark.apply(hdr, meta, standard_metadata);
        if (meta.made) {
            address.apply(hdr, meta, standard_metadata);
        }
    }
}

control TensorDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(TensorParser(), VerifyChecksums(), TensorIngress(), TensorEgress(), UpdateChecksums(), TensorDeparser()) main;
