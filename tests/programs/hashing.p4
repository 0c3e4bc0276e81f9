// Hashes of fields that do not end at whole bytes, and checksums with and without the payload.
#include <core.p4>
#include <v1model.p4>

header input_h {
    bit<4>  a;
    bit<12> b;
    bit<32> c;
    bit<8>  d;
}
header output_h {
    bit<16> crc16;
    bit<32> crc32;
    bit<16> csum16;
    bit<16> xor16;
    bit<64> identity;
    bit<16> bounded;
    bit<8>  damaged;
}
header sums_h {
    bit<16> plain;
    bit<16> with_payload;
}

struct headers { input_h input; sums_h sums; output_h output; }
struct metadata { }

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.input);
        packet.extract(hdr.sums);
        transition accept;
    }
}

control Verify(inout headers hdr, inout metadata meta) {
    apply {
        verify_checksum(hdr.sums.isValid(), { hdr.input.a, hdr.input.b, hdr.input.c, hdr.input.d, 8w0 },
                        hdr.sums.plain, HashAlgorithm.csum16);
    }
}

control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    apply {
        hdr.output.setValid();
        if (hdr.input.isValid()) {
            hash(hdr.output.crc16, HashAlgorithm.crc16, 16w0, { hdr.input.b, hdr.input.c }, 32w0x10000);
            hash(hdr.output.crc32, HashAlgorithm.crc32, 32w0, { hdr.input.a, hdr.input.c, hdr.input.d }, 64w0x100000000);
            hash(hdr.output.csum16, HashAlgorithm.csum16, 16w0, { hdr.input.c, hdr.input.d }, 32w0x10000);
            hash(hdr.output.xor16, HashAlgorithm.xor16, 16w0, { hdr.input.c, hdr.input.d }, 32w0x10000);
            hash(hdr.output.identity, HashAlgorithm.identity, 64w0, { hdr.input.b, hdr.input.c }, 64w0xffffffffffffffff);
            hash(hdr.output.bounded, HashAlgorithm.crc32, 16w100, { hdr.input.c }, 16w7);
        }
        hdr.output.damaged = (bit<8>)standard_metadata.checksum_error;
    }
}

control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    apply { hdr.input.d = hdr.input.d + 1; }
}

control Update(inout headers hdr, inout metadata meta) {
    apply {
        update_checksum(hdr.sums.isValid(), { hdr.input.a, hdr.input.b, hdr.input.c, hdr.input.d, 8w0 },
                        hdr.sums.plain, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.sums.isValid(), { hdr.input.a, hdr.input.b, hdr.input.c, hdr.input.d },
                                     hdr.sums.with_payload, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(Parse(), Verify(), In(), Out(), Update(), Deparse()) main;
