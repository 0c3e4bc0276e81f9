; What native code of every program calls. Numbers of the wire are big-endian; all else is as the processor has it.

; The row of a table that a key hits, the first row (the default) if none does.
;
; Rows are found by hash, under each combination of masks in use (a group) that the key is cut with. Rows of one group
; and one cut key are linked, the most urgent one first; ranges are compared row by row.
; Row:   0 action   8 packets  16 bytes  24 hit_us  32 next  40 group  48 priority  56 order  64 hash  72 choice  80 key
; Table: 0 rows     8 row_bytes  16 index  24 index_mask  32 groups  40 group_count  48 words  56 ranges  64 range_count

define internal i64 @mix(i64 %hash, i64 %word) alwaysinline {
  %a = xor i64 %hash, %word
  %b = mul i64 %a, -7046029254386353131
  %c = lshr i64 %b, 32
  %d = xor i64 %b, %c
  ret i64 %d
}

define internal ptr @find(ptr %table, ptr %key, ptr %cut) {
entry:
  %rows = load ptr, ptr %table
  %p8 = getelementptr i8, ptr %table, i64 8
  %row_bytes = load i64, ptr %p8
  %p16 = getelementptr i8, ptr %table, i64 16
  %index = load ptr, ptr %p16
  %p24 = getelementptr i8, ptr %table, i64 24
  %index_mask = load i64, ptr %p24
  %p32 = getelementptr i8, ptr %table, i64 32
  %groups = load ptr, ptr %p32
  %p40 = getelementptr i8, ptr %table, i64 40
  %group_count = load i64, ptr %p40
  %p48 = getelementptr i8, ptr %table, i64 48
  %words = load i64, ptr %p48
  br label %group

group:
  %g = phi i64 [ 0, %entry ], [ %g.next, %group.end ]
  %best = phi ptr [ %rows, %entry ], [ %best.next, %group.end ]
  %more = icmp ult i64 %g, %group_count
  br i1 %more, label %cut.start, label %done

cut.start:
  %mask.first = mul i64 %g, %words
  br label %cut.loop

cut.loop:
  %w = phi i64 [ 0, %cut.start ], [ %w.next, %cut.loop ]
  %hash = phi i64 [ %g, %cut.start ], [ %hash.next, %cut.loop ]
  %mask.at = add i64 %mask.first, %w
  %mask.p = getelementptr i64, ptr %groups, i64 %mask.at
  %mask = load i64, ptr %mask.p
  %key.p = getelementptr i64, ptr %key, i64 %w
  %key.w = load i64, ptr %key.p
  %cut.w = and i64 %key.w, %mask
  %cut.p = getelementptr i64, ptr %cut, i64 %w
  store i64 %cut.w, ptr %cut.p
  %hash.next = call i64 @mix(i64 %hash, i64 %cut.w)
  %w.next = add i64 %w, 1
  %w.more = icmp ult i64 %w.next, %words
  br i1 %w.more, label %cut.loop, label %probe

probe:
  %at = phi i64 [ %hash.next, %cut.loop ], [ %at.next, %probe.next ]
  %slot = and i64 %at, %index_mask
  %slot.p = getelementptr i32, ptr %index, i64 %slot
  %number32 = load i32, ptr %slot.p
  %number = zext i32 %number32 to i64
  %at.next = add i64 %at, 1
  switch i64 %number, label %candidate [ i64 0, label %group.end.none
                                         i64 4294967295, label %probe.next ]

candidate:
  %offset = mul i64 %number, %row_bytes
  %row = getelementptr i8, ptr %rows, i64 %offset
  %row.group.p = getelementptr i8, ptr %row, i64 40
  %row.group = load i64, ptr %row.group.p
  %same.group = icmp eq i64 %row.group, %g
  br i1 %same.group, label %same.loop, label %probe.next

same.loop:
  %s = phi i64 [ 0, %candidate ], [ %s.next, %same.word ]
  %s.more = icmp ult i64 %s, %words
  br i1 %s.more, label %same.word, label %chain

same.word:
  %s.at = add i64 %s, 10
  %s.row.p = getelementptr i64, ptr %row, i64 %s.at
  %s.row = load i64, ptr %s.row.p
  %s.cut.p = getelementptr i64, ptr %cut, i64 %s
  %s.cut = load i64, ptr %s.cut.p
  %s.next = add i64 %s, 1
  %s.same = icmp eq i64 %s.row, %s.cut
  br i1 %s.same, label %same.loop, label %probe.next

probe.next:
  br label %probe

chain:
  %link = phi ptr [ %row, %same.loop ], [ %link.next, %chain.next ]
  %admitted = call i1 @admits(ptr %table, ptr %link, ptr %key)
  br i1 %admitted, label %found, label %chain.more

chain.more:
  %link.p = getelementptr i8, ptr %link, i64 32
  %link.number = load i64, ptr %link.p
  %link.none = icmp eq i64 %link.number, 0
  br i1 %link.none, label %group.end.none, label %chain.next

chain.next:
  %link.offset = mul i64 %link.number, %row_bytes
  %link.next = getelementptr i8, ptr %rows, i64 %link.offset
  br label %chain

found:
  %first = icmp eq ptr %best, %rows
  br i1 %first, label %better, label %compare

compare:
  %priority.p = getelementptr i8, ptr %link, i64 48
  %priority = load i64, ptr %priority.p
  %best.priority.p = getelementptr i8, ptr %best, i64 48
  %best.priority = load i64, ptr %best.priority.p
  %higher = icmp sgt i64 %priority, %best.priority
  br i1 %higher, label %better, label %compare.order

compare.order:
  %equal = icmp eq i64 %priority, %best.priority
  %order.p = getelementptr i8, ptr %link, i64 56
  %order = load i64, ptr %order.p
  %best.order.p = getelementptr i8, ptr %best, i64 56
  %best.order = load i64, ptr %best.order.p
  %older = icmp slt i64 %order, %best.order
  %wins = and i1 %equal, %older
  br i1 %wins, label %better, label %group.end.none

better:
  br label %group.end

group.end.none:
  br label %group.end

group.end:
  %best.next = phi ptr [ %link, %better ], [ %best, %group.end.none ]
  %g.next = add i64 %g, 1
  br label %group

done:
  ret ptr %best
}

; Whether the ranges of a row hold the fields of a key. A range is a place in the key and a number of words; the row has
; its bounds behind its key, lowest words first.
define internal i1 @admits(ptr %table, ptr %row, ptr %key) {
entry:
  %p48 = getelementptr i8, ptr %table, i64 48
  %words = load i64, ptr %p48
  %p56 = getelementptr i8, ptr %table, i64 56
  %ranges = load ptr, ptr %p56
  %p64 = getelementptr i8, ptr %table, i64 64
  %count = load i64, ptr %p64
  %bounds.first = add i64 %words, 10
  br label %range

range:
  %r = phi i64 [ 0, %entry ], [ %r.next, %inside ]
  %bounds.at = phi i64 [ %bounds.first, %entry ], [ %bounds.next, %inside ]
  %more = icmp ult i64 %r, %count
  br i1 %more, label %one, label %yes

one:
  %r2 = mul i64 %r, 2
  %place.p = getelementptr i64, ptr %ranges, i64 %r2
  %place = load i64, ptr %place.p
  %size.p = getelementptr i8, ptr %place.p, i64 8
  %size = load i64, ptr %size.p
  %number = getelementptr i64, ptr %key, i64 %place
  %low = getelementptr i64, ptr %row, i64 %bounds.at
  %high = getelementptr i64, ptr %low, i64 %size
  %below = call i1 @less(ptr %number, ptr %low, i64 %size)
  br i1 %below, label %no, label %top

top:
  %above = call i1 @less(ptr %high, ptr %number, i64 %size)
  br i1 %above, label %no, label %inside

inside:
  %r.next = add i64 %r, 1
  %size2 = mul i64 %size, 2
  %bounds.next = add i64 %bounds.at, %size2
  br label %range

yes:
  ret i1 true

no:
  ret i1 false
}

; Whether a number of some words is less than another one.
define internal i1 @less(ptr %left, ptr %right, i64 %words) {
entry:
  br label %word

word:
  %w = phi i64 [ %words, %entry ], [ %next, %equal ]
  %none = icmp eq i64 %w, 0
  br i1 %none, label %no, label %look

look:
  %next = sub i64 %w, 1
  %left.p = getelementptr i64, ptr %left, i64 %next
  %l = load i64, ptr %left.p
  %right.p = getelementptr i64, ptr %right, i64 %next
  %r = load i64, ptr %right.p
  %differ = icmp ne i64 %l, %r
  br i1 %differ, label %decide, label %equal

equal:
  br label %word

decide:
  %less = icmp ult i64 %l, %r
  ret i1 %less

no:
  ret i1 false
}

; Put the numbers of rows that begin a chain into an empty index, from what they remember of their hashes.
define void @fill_index(ptr %table, ptr %heads, i64 %count) {
entry:
  %rows = load ptr, ptr %table
  %p8 = getelementptr i8, ptr %table, i64 8
  %row_bytes = load i64, ptr %p8
  %p16 = getelementptr i8, ptr %table, i64 16
  %index = load ptr, ptr %p16
  %p24 = getelementptr i8, ptr %table, i64 24
  %index_mask = load i64, ptr %p24
  br label %head

head:
  %h = phi i64 [ 0, %entry ], [ %h.next, %place ]
  %more = icmp ult i64 %h, %count
  br i1 %more, label %start, label %done

start:
  %head.p = getelementptr i32, ptr %heads, i64 %h
  %number32 = load i32, ptr %head.p
  %number = zext i32 %number32 to i64
  %offset = mul i64 %number, %row_bytes
  %row = getelementptr i8, ptr %rows, i64 %offset
  %hash.p = getelementptr i8, ptr %row, i64 64
  %hash = load i64, ptr %hash.p
  br label %probe

probe:
  %at = phi i64 [ %hash, %start ], [ %at.next, %probe ]
  %slot = and i64 %at, %index_mask
  %slot.p = getelementptr i32, ptr %index, i64 %slot
  %taken = load i32, ptr %slot.p
  %free = icmp eq i32 %taken, 0
  %at.next = add i64 %at, 1
  br i1 %free, label %place, label %probe

place:
  store i32 %number32, ptr %slot.p
  %h.next = add i64 %h, 1
  br label %head

done:
  ret void
}

; Whether so many bytes are the same.
define internal i1 @same(ptr %left, ptr %right, i64 %size) {
entry:
  br label %byte

byte:
  %at = phi i64 [ 0, %entry ], [ %next, %look ]
  %more = icmp ult i64 %at, %size
  br i1 %more, label %look, label %yes

look:
  %left.p = getelementptr i8, ptr %left, i64 %at
  %l = load i8, ptr %left.p
  %right.p = getelementptr i8, ptr %right, i64 %at
  %r = load i8, ptr %right.p
  %next = add i64 %at, 1
  %equal = icmp eq i8 %l, %r
  br i1 %equal, label %byte, label %no

yes:
  ret i1 true

no:
  ret i1 false
}

; Append bits of a source, which begins at a whole byte, to a buffer that has `at` bits already; return how many then.
define internal i64 @put(ptr %buffer, i64 %at, ptr %source, i64 %bits) {
entry:
  %after = add i64 %at, %bits
  %start = lshr i64 %at, 3
  %odd = and i64 %at, 7
  %rest = and i64 %bits, 7
  %aligned = icmp eq i64 %odd, 0
  br i1 %aligned, label %whole, label %bit

whole:
  %up = add i64 %bits, 7
  %size = lshr i64 %up, 3
  %into = getelementptr i8, ptr %buffer, i64 %start
  call void @llvm.memcpy.p0.p0.i64(ptr %into, ptr %source, i64 %size, i1 false)
  %exact = icmp eq i64 %rest, 0
  br i1 %exact, label %done, label %trim

trim:
  %last.at = sub i64 %size, 1
  %last.p = getelementptr i8, ptr %into, i64 %last.at
  %last = load i8, ptr %last.p
  %rest8 = trunc i64 %rest to i8
  %keep = lshr i8 -1, %rest8
  %keep.not = xor i8 %keep, -1
  %trimmed = and i8 %last, %keep.not
  store i8 %trimmed, ptr %last.p
  br label %done

bit:
  %b = phi i64 [ 0, %entry ], [ %b.next, %bit.next ]
  %more = icmp ult i64 %b, %bits
  br i1 %more, label %bit.copy, label %done

bit.copy:
  %from.byte = lshr i64 %b, 3
  %from.p = getelementptr i8, ptr %source, i64 %from.byte
  %from = load i8, ptr %from.p
  %b8 = trunc i64 %b to i8
  %from.bit = and i8 %b8, 7
  %shifted = shl i8 %from, %from.bit
  %top = and i8 %shifted, -128
  %to = add i64 %at, %b
  %to.byte = lshr i64 %to, 3
  %to.p = getelementptr i8, ptr %buffer, i64 %to.byte
  %to8 = trunc i64 %to to i8
  %to.bit = and i8 %to8, 7
  %value = lshr i8 %top, %to.bit
  %begins = icmp eq i8 %to.bit, 0
  %old.read = load i8, ptr %to.p
  %old = select i1 %begins, i8 0, i8 %old.read
  %new = or i8 %old, %value
  store i8 %new, ptr %to.p
  br label %bit.next

bit.next:
  %b.next = add i64 %b, 1
  br label %bit

done:
  ret i64 %after
}

; The Internet checksum (RFC 1071). The order of the bytes in a word does not matter to the sum, only to its bytes: words
; are added as the processor reads them, four at a time, and the sum is turned round at the end.
define internal i64 @csum16(ptr %data, i64 %size) {
entry:
  %whole = and i64 %size, -8
  br label %four

four:
  %at = phi i64 [ 0, %entry ], [ %at.next, %add ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %add ]
  %more = icmp ult i64 %at, %whole
  br i1 %more, label %add, label %byte

add:
  %p = getelementptr i8, ptr %data, i64 %at
  %value = load i64, ptr %p, align 1
  %low = and i64 %value, 4294967295
  %high = lshr i64 %value, 32
  %both = add i64 %low, %high
  %sum.next = add i64 %sum, %both
  %at.next = add i64 %at, 8
  br label %four

byte:
  %b = phi i64 [ %whole, %four ], [ %b.next, %byte.add ]
  %total = phi i64 [ %sum, %four ], [ %total.next, %byte.add ]
  %b.more = icmp ult i64 %b, %size
  br i1 %b.more, label %byte.add, label %fold

byte.add:
  %b.p = getelementptr i8, ptr %data, i64 %b
  %b.value = load i8, ptr %b.p
  %b.wide = zext i8 %b.value to i64
  %b.odd = and i64 %b, 1
  %b.shift = mul i64 %b.odd, 8
  %b.part = shl i64 %b.wide, %b.shift
  %total.next = add i64 %total, %b.part
  %b.next = add i64 %b, 1
  br label %byte

fold:
  %unfolded = phi i64 [ %total, %byte ], [ %folded, %fold.more ]
  %above = lshr i64 %unfolded, 16
  %below = and i64 %unfolded, 65535
  %is.folded = icmp eq i64 %above, 0
  br i1 %is.folded, label %done, label %fold.more

fold.more:
  %folded = add i64 %above, %below
  br label %fold

done:
  %word = trunc i64 %below to i16
  %turned = call i16 @llvm.bswap.i16(i16 %word)
  %inverse = xor i16 %turned, -1
  %result = zext i16 %inverse to i64
  ret i64 %result
}

; CRCs whose lowest power comes first, from a table of the remainders of all bytes.
define internal i64 @crc_reflected(ptr %data, i64 %size, ptr %table, i32 %initial) {
entry:
  br label %byte

byte:
  %at = phi i64 [ 0, %entry ], [ %at.next, %step ]
  %crc = phi i32 [ %initial, %entry ], [ %crc.next, %step ]
  %more = icmp ult i64 %at, %size
  br i1 %more, label %step, label %done

step:
  %p = getelementptr i8, ptr %data, i64 %at
  %value = load i8, ptr %p
  %low = trunc i32 %crc to i8
  %place = xor i8 %low, %value
  %place.wide = zext i8 %place to i64
  %entry.p = getelementptr i32, ptr %table, i64 %place.wide
  %remainder = load i32, ptr %entry.p, align 4
  %rest = lshr i32 %crc, 8
  %crc.next = xor i32 %rest, %remainder
  %at.next = add i64 %at, 1
  br label %byte

done:
  %result = zext i32 %crc to i64
  ret i64 %result
}

; The CRC of 16 bits whose highest power comes first, from a table of the remainders of all bytes.
define internal i64 @crc_ccitt(ptr %data, i64 %size, ptr %table) {
entry:
  br label %byte

byte:
  %at = phi i64 [ 0, %entry ], [ %at.next, %step ]
  %crc = phi i32 [ 65535, %entry ], [ %crc.next, %step ]
  %more = icmp ult i64 %at, %size
  br i1 %more, label %step, label %done

step:
  %p = getelementptr i8, ptr %data, i64 %at
  %value = load i8, ptr %p
  %high = lshr i32 %crc, 8
  %high8 = trunc i32 %high to i8
  %place = xor i8 %high8, %value
  %place.wide = zext i8 %place to i64
  %entry.p = getelementptr i32, ptr %table, i64 %place.wide
  %remainder = load i32, ptr %entry.p, align 4
  %shifted = shl i32 %crc, 8
  %rest = and i32 %shifted, 65535
  %crc.next = xor i32 %rest, %remainder
  %at.next = add i64 %at, 1
  br label %byte

done:
  %result = zext i32 %crc to i64
  ret i64 %result
}

; Words of `width` bytes (at most 8) combined by exclusive or; the last one is filled up with zeros.
define internal i64 @xor_words(ptr %data, i64 %size, i64 %width) {
entry:
  br label %byte

byte:
  %at = phi i64 [ 0, %entry ], [ %at.next, %step ]
  %place = phi i64 [ 0, %entry ], [ %place.next, %step ]
  %result = phi i64 [ 0, %entry ], [ %result.next, %step ]
  %more = icmp ult i64 %at, %size
  br i1 %more, label %step, label %done

step:
  %p = getelementptr i8, ptr %data, i64 %at
  %value = load i8, ptr %p
  %wide = zext i8 %value to i64
  %place.up = add i64 %place, 1
  %behind = sub i64 %width, %place.up
  %shift = mul i64 %behind, 8
  %part = shl i64 %wide, %shift
  %result.next = xor i64 %result, %part
  %wraps = icmp eq i64 %place.up, %width
  %place.next = select i1 %wraps, i64 0, i64 %place.up
  %at.next = add i64 %at, 1
  br label %byte

done:
  ret i64 %result
}

; The first eight bytes as a number.
define internal i64 @first_bytes(ptr %data, i64 %size) {
entry:
  %long = icmp ugt i64 %size, 8
  %count = select i1 %long, i64 8, i64 %size
  br label %byte

byte:
  %at = phi i64 [ 0, %entry ], [ %at.next, %step ]
  %result = phi i64 [ 0, %entry ], [ %result.next, %step ]
  %more = icmp ult i64 %at, %count
  br i1 %more, label %step, label %done

step:
  %p = getelementptr i8, ptr %data, i64 %at
  %value = load i8, ptr %p
  %wide = zext i8 %value to i64
  %up = shl i64 %result, 8
  %result.next = or i64 %up, %wide
  %at.next = add i64 %at, 1
  br label %byte

done:
  ret i64 %result
}


; The colour of a packet at a meter of two rates, which gives its units if it has them (externs.MeterCell).
; Meter: 0 is set  8 cir  16 cburst  24 committed  32 pir  40 pburst  48 peak  64 committed seen (i128)  80 peak seen

define internal i64 @meter(ptr %meter, i64 %units, i64 %now) {
entry:
  %set = load i64, ptr %meter
  %is.set = icmp ne i64 %set, 0
  br i1 %is.set, label %peak, label %green

peak:
  %peak.p = getelementptr i8, ptr %meter, i64 32
  %peak.seen = getelementptr i8, ptr %meter, i64 80
  %has.peak = call i1 @take(ptr %peak.p, ptr %peak.seen, i64 %units, i64 %now)
  br i1 %has.peak, label %committed, label %red

committed:
  %committed.p = getelementptr i8, ptr %meter, i64 8
  %committed.seen = getelementptr i8, ptr %meter, i64 64
  %has.committed = call i1 @take(ptr %committed.p, ptr %committed.seen, i64 %units, i64 %now)
  br i1 %has.committed, label %green, label %yellow

green:
  ret i64 0

yellow:
  ret i64 1

red:
  ret i64 2
}

; Fill a bucket (rate, burst, level) by the time since the switch started, and take units from it if it has them.
define internal i1 @take(ptr %bucket, ptr %seen.p, i64 %units, i64 %now) {
  %rate = load i64, ptr %bucket
  %burst.p = getelementptr i8, ptr %bucket, i64 8
  %burst = load i64, ptr %burst.p
  %level.p = getelementptr i8, ptr %bucket, i64 16
  %level = load i64, ptr %level.p
  %seen = load i128, ptr %seen.p, align 8
  %filled = call i128 @filled(i64 %now, i64 %rate)
  store i128 %filled, ptr %seen.p, align 8
  %more = sub i128 %filled, %seen
  %level.wide = sext i64 %level to i128
  %sum = add i128 %level.wide, %more
  %burst.wide = sext i64 %burst to i128
  %over = icmp sgt i128 %sum, %burst.wide
  %kept = select i1 %over, i128 %burst.wide, i128 %sum
  %new = trunc i128 %kept to i64
  %less = sub i64 %new, %units
  %short = icmp slt i64 %new, %units
  %left = select i1 %short, i64 %new, i64 %less
  store i64 %left, ptr %level.p
  %has = xor i1 %short, true
  ret i1 %has
}

; now * rate / 1000000, rounded down: whole seconds, then the rest in two halves that no number of 64 bits overflows.
define internal i128 @filled(i64 %now, i64 %rate) {
  %seconds = udiv i64 %now, 1000000
  %rest = urem i64 %now, 1000000
  %seconds.wide = zext i64 %seconds to i128
  %rate.wide = zext i64 %rate to i128
  %whole = mul i128 %seconds.wide, %rate.wide
  %rate.high = lshr i64 %rate, 32
  %rate.low = and i64 %rate, 4294967295
  %high = mul i64 %rest, %rate.high
  %high.whole = udiv i64 %high, 1000000
  %high.rest = urem i64 %high, 1000000
  %high.up = shl i64 %high.rest, 32
  %low = mul i64 %rest, %rate.low
  %both = add i64 %high.up, %low
  %low.whole = udiv i64 %both, 1000000
  %high.wide = zext i64 %high.whole to i128
  %high.placed = shl i128 %high.wide, 32
  %low.wide = zext i64 %low.whole to i128
  %part = add i128 %high.placed, %low.wide
  %result = add i128 %whole, %part
  ret i128 %result
}
