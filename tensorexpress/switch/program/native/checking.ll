; What the checked build calls before every access. A region is three words: its start, its end, and 1 if it is made of
; others. Its number is -1 for any region, less for those of the module itself in @te_static, and 0 or more for those in
; @te_extra, where Python and @te_begin put them.
; An access outside is noted (address, size, region, site) and not made: a load reads zeros, a store goes to @te_waste, a
; copy has no bytes.

@te_extra = global [EXTRA x [3 x i64]] zeroinitializer, align 16
@te_count = global i64 0
@te_found = global i64 0
@te_first = global [NOTED x [4 x i64]] zeroinitializer, align 16
@te_zeros = internal constant [WIDEST x i8] zeroinitializer, align 16
@te_waste = internal global [WIDEST x i8] zeroinitializer, align 16

define internal i1 @te_within(ptr %region, i64 %at, i64 %size) alwaysinline {
  %start = load i64, ptr %region
  %end.p = getelementptr i8, ptr %region, i64 8
  %end = load i64, ptr %end.p
  %behind = icmp uge i64 %at, %start
  %before = icmp ule i64 %at, %end
  %left = sub i64 %end, %at
  %fits = icmp ule i64 %size, %left
  %both = and i1 %behind, %before
  %all = and i1 %both, %fits
  ret i1 %all
}

; Whether a region of a list, of those that are not made of others, has some bytes.
define internal i1 @te_any(ptr %list, i64 %count, i64 %at, i64 %size) {
entry:
  br label %next

next:
  %n = phi i64 [ 0, %entry ], [ %n.next, %one ]
  %more = icmp ult i64 %n, %count
  br i1 %more, label %one, label %no

one:
  %region = getelementptr [3 x i64], ptr %list, i64 %n
  %kind.p = getelementptr i8, ptr %region, i64 16
  %kind = load i64, ptr %kind.p
  %simple = icmp eq i64 %kind, 0
  %within = call i1 @te_within(ptr %region, i64 %at, i64 %size)
  %found = and i1 %simple, %within
  %n.next = add i64 %n, 1
  br i1 %found, label %yes, label %next

yes:
  ret i1 true

no:
  ret i1 false
}

; Whether some bytes are outside of a region.
define internal i1 @te_outside(ptr %p, i64 %size, i64 %region, i64 %site) noinline {
entry:
  %at = ptrtoint ptr %p to i64
  %empty = icmp eq i64 %size, 0
  br i1 %empty, label %fine, label %full

full:
  %any = icmp eq i64 %region, -1
  br i1 %any, label %static, label %known

known:
  %own = icmp slt i64 %region, 0
  %own.number = sub i64 -2, %region
  %own.p = getelementptr [3 x i64], ptr @te_static, i64 %own.number
  %other.p = getelementptr [3 x i64], ptr @te_extra, i64 %region
  %region.p = select i1 %own, ptr %own.p, ptr %other.p
  %within = call i1 @te_within(ptr %region.p, i64 %at, i64 %size)
  br i1 %within, label %fine, label %bad

static:
  %in.static = call i1 @te_any(ptr @te_static, i64 STATIC, i64 %at, i64 %size)
  br i1 %in.static, label %fine, label %extra

extra:
  %count = load i64, ptr @te_count
  %in.extra = call i1 @te_any(ptr @te_extra, i64 %count, i64 %at, i64 %size)
  br i1 %in.extra, label %fine, label %bad

bad:
  %found = load i64, ptr @te_found
  %found.next = add i64 %found, 1
  store i64 %found.next, ptr @te_found
  %is.noted = icmp ult i64 %found, NOTED
  br i1 %is.noted, label %note, label %outside

note:
  %row = getelementptr [4 x i64], ptr @te_first, i64 %found
  store i64 %at, ptr %row
  %size.p = getelementptr i8, ptr %row, i64 8
  store i64 %size, ptr %size.p
  %region.at = getelementptr i8, ptr %row, i64 16
  store i64 %region, ptr %region.at
  %site.p = getelementptr i8, ptr %row, i64 24
  store i64 %site, ptr %site.p
  br label %outside

outside:
  ret i1 true

fine:
  ret i1 false
}

; The address to load from.
define internal ptr @te_load(ptr %p, i64 %size, i64 %region, i64 %site) alwaysinline {
  %outside = call i1 @te_outside(ptr %p, i64 %size, i64 %region, i64 %site)
  %safe = select i1 %outside, ptr @te_zeros, ptr %p
  ret ptr %safe
}

; The address to store at.
define internal ptr @te_store(ptr %p, i64 %size, i64 %region, i64 %site) alwaysinline {
  %outside = call i1 @te_outside(ptr %p, i64 %size, i64 %region, i64 %site)
  %safe = select i1 %outside, ptr @te_waste, ptr %p
  ret ptr %safe
}

; How many bytes to copy or to fill.
define internal i64 @te_size(ptr %p, i64 %size, i64 %region, i64 %site) alwaysinline {
  %outside = call i1 @te_outside(ptr %p, i64 %size, i64 %region, i64 %site)
  %safe = select i1 %outside, i64 0, i64 %size
  ret i64 %safe
}

define internal void @te_set(i64 %region, ptr %start, i64 %size) alwaysinline {
  %p = getelementptr [3 x i64], ptr @te_extra, i64 %region
  %from = ptrtoint ptr %start to i64
  %to = add i64 %from, %size
  store i64 %from, ptr %p
  %end.p = getelementptr i8, ptr %p, i64 8
  store i64 %to, ptr %end.p
  ret void
}

; Begin a stage: the frame, and the memory for what leaves and for the inputs of hashes, which is as large as agreed on.
define internal void @te_begin(ptr %c, ptr %frame, i64 %length) {
  call void @te_set(i64 FRAME, ptr %frame, i64 %length)
  %output.p = getelementptr i8, ptr %c, i64 OUTPUT_SLOT
  %output = load ptr, ptr %output.p
  %output.size = add i64 %length, OUTPUT_BYTES
  call void @te_set(i64 OUTPUT, ptr %output, i64 %output.size)
  %scratch.p = getelementptr i8, ptr %c, i64 SCRATCH_SLOT
  %scratch = load ptr, ptr %scratch.p
  %scratch.size = add i64 %length, SCRATCH_BYTES
  call void @te_set(i64 SCRATCH, ptr %scratch, i64 %scratch.size)
  ret void
}

; End a stage: as in an endless loop, if an access was outside.
define internal i64 @te_end(i64 %result) {
  %found = load i64, ptr @te_found
  %none = icmp eq i64 %found, 0
  %ended = select i1 %none, i64 %result, i64 -1
  ret i64 %ended
}

define i64 @ingress(ptr %c, ptr %frame, i64 %length) {
  call void @te_begin(ptr %c, ptr %frame, i64 %length)
  %result = call i64 @stage_of_ingress(ptr %c, ptr %frame, i64 %length)
  %ended = call i64 @te_end(i64 %result)
  ret i64 %ended
}

define i64 @egress(ptr %c, ptr %frame, i64 %length) {
  call void @te_begin(ptr %c, ptr %frame, i64 %length)
  %result = call i64 @stage_of_egress(ptr %c, ptr %frame, i64 %length)
  %ended = call i64 @te_end(i64 %result)
  ret i64 %ended
}
