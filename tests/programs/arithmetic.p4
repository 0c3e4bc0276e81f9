// Every operator of P4 that p4c turns into an expression, on operands taken from the packet.
#include <core.p4>
#include <v1model.p4>

header operands_h {
    bit<16> a;
    bit<16> b;
    int<16> s;
    int<16> t;
    bit<8>  n;
}

header results_h {
    bit<16> sum;
    bit<16> difference;
    bit<16> product;
    bit<16> saturated_sum;
    bit<16> saturated_difference;
    int<16> signed_sum;
    int<16> signed_saturated_sum;
    int<16> signed_saturated_difference;
    int<16> signed_product;
    bit<16> both;
    bit<16> either;
    bit<16> differing;
    bit<16> complement;
    bit<16> left;
    bit<16> right;
    int<16> signed_right;
    bit<16> swapped;
    bit<32> joined;
    bit<16> larger;
    bit<8>  comparisons;
    int<32> widened;
    int<8>  narrowed;
    bit<16> negated;
}

struct headers { operands_h operands; results_h results; }
struct metadata { }

parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.operands);
        transition accept;
    }
}

control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    apply {
        bit<16> a = hdr.operands.a;
        bit<16> b = hdr.operands.b;
        int<16> s = hdr.operands.s;
        int<16> t = hdr.operands.t;
        bit<8> n = hdr.operands.n;
        hdr.results.setValid();
        hdr.results.sum = a + b;
        hdr.results.difference = a - b;
        hdr.results.product = a * b;
        hdr.results.saturated_sum = a |+| b;
        hdr.results.saturated_difference = a |-| b;
        hdr.results.signed_sum = s + t;
        hdr.results.signed_saturated_sum = s |+| t;
        hdr.results.signed_saturated_difference = s |-| t;
        hdr.results.signed_product = s * t;
        hdr.results.both = a & b;
        hdr.results.either = a | b;
        hdr.results.differing = a ^ b;
        hdr.results.complement = ~a;
        hdr.results.left = a << n;
        hdr.results.right = a >> n;
        hdr.results.signed_right = s >> n;
        hdr.results.swapped = a[7:0] ++ a[15:8];
        hdr.results.joined = a ++ b;
        hdr.results.larger = a > b ? a : b;
        hdr.results.comparisons = (bit<1>)(a == b) ++ (bit<1>)(a != b) ++ (bit<1>)(a < b) ++ (bit<1>)(a <= b)
            ++ (bit<1>)(s > t) ++ (bit<1>)(s >= t) ++ (bit<1>)(a == 0 && b != 0) ++ (bit<1>)(!(s < 0) || t < 0);
        hdr.results.widened = (int<32>)s;
        hdr.results.narrowed = (int<8>)t;
        hdr.results.negated = -a;
        standard_metadata.egress_spec = 1;
    }
}

control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard_metadata) {
    apply { hdr.operands.setInvalid(); }
}

control Verify(inout headers hdr, inout metadata meta) { apply { } }
control Update(inout headers hdr, inout metadata meta) { apply { } }

control Deparse(packet_out packet, in headers hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(Parse(), Verify(), In(), Out(), Update(), Deparse()) main;
