// Values of a packet are added to those of a cell, sixty-four at once, and with them what the packet says of its values.
#ifndef TENSOREXPRESS_LANES
#define TENSOREXPRESS_LANES

const bit<64> TOP_2 = 0x8000000080000000;
const bit<256> TOP_8 = TOP_2 ++ TOP_2 ++ TOP_2 ++ TOP_2;
const bit<1024> TOP_32 = TOP_8 ++ TOP_8 ++ TOP_8 ++ TOP_8;
// The top bit of every lane.
const lanes_t TOP = TOP_32 ++ TOP_32;

// Lanes are added without their top bits, so that nothing carries over, and the top bits as what they are: sums modulo 2.
// Where two numbers have one sign and their sum another, it did not fit. The sum is read back, because a compiler would
// put its whole expression wherever a variable is used.
#define ADD(values) \
    values.read(held, cell); \
    values.write(cell, ((held & ~TOP) + (hdr.sum.values & ~TOP)) ^ ((held ^ hdr.sum.values) & TOP)); \
    values.read(total, cell); \
    overflow = overflow | ((held ^ total) & (hdr.sum.values ^ total)); \
    hdr.sum.values = total;

// The head of a cell holds check, needed, culprit and flags.
control AddUp(inout headers_t hdr, in bit<32> cell, in bit<40> head, counter events, register<lanes_t> values0,
              register<lanes_t> values1, register<lanes_t> values2, register<lanes_t> values3) {
    apply {
        lanes_t held;
        lanes_t total;
        lanes_t overflow = 0;
        ADD(values0)
        ADD(values1)
        ADD(values2)
        ADD(values3)
        bit<17> check = (bit<17>)hdr.sum.check + (bit<17>)head[39:24];
        if (check >= SUM_MODULUS) {
            check = check - SUM_MODULUS;
        }
        hdr.sum.check = check[15:0];
        if (head[23:16] > hdr.sum.needed) {
            hdr.sum.needed = head[23:16];
        }
        if (head[15:8] > hdr.sum.culprit) {
            hdr.sum.culprit = head[15:8];
        }
        hdr.sum.flags = hdr.sum.flags | head[7:0];
        if (overflow & TOP != 0) {
            hdr.sum.flags = hdr.sum.flags | SUM_OVERFLOW;
            events.count(SUM_OVERFLOWED);
        }
    }
}

#endif
