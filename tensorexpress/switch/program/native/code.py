"""LLVM IR as text: a module of functions, each written block by block."""

from __future__ import annotations

from tensorexpress.switch.program.native.checking import ANY, RegionNumbers
from tensorexpress.switch.program.native.layout import SLOTS
from tensorexpress.switch.program.native.regions import FRAME_LENGTH, Extent, Region, Regions, excess, extent
from tensorexpress.switch.program.native.unsupported import Unsupported

#: What a module may cost: an instruction costs one for each 64 bits that it computes.
MOST_COST = 2**17

#: Bits of the widest number that native code computes with.
WIDEST_BITS = 2**13


class IrModule:
    """The text of a module, and what it may still cost. `context` has the pieces of what `%c` points to."""

    def __init__(self, context: Regions, *, checked: bool = False) -> None:
        self.context = context
        #: Numbers of regions, where every access is to be tested when the program runs.
        self.numbers = RegionNumbers() if checked else None
        #: The memory of the module itself in a checked build, as names and bytes, and the accesses that are tested.
        self.rooms: dict[str, int] = {}
        self.sites: list[str] = []
        self._functions: list[str] = []
        self._declarations: dict[str, None] = {}
        self._constants = 0
        self._cost = 0

    def spend(self, cost: int) -> None:
        """Take note of instructions; Unsupported when there are too many."""
        self._cost += cost
        if self._cost > MOST_COST:
            raise Unsupported(f"it becomes more than {MOST_COST} instructions")

    def add(self, function: IrFunction) -> None:
        """Add a function that is complete."""
        self._functions.append(function.text())

    def declare(self, declaration: str) -> None:
        """Say that there is something that a function uses."""
        self._declarations[declaration] = None

    def constant(self, data: bytes) -> str:
        """Return the name of some bytes that never change."""
        self._constants += 1
        name = f"@k{self._constants}"
        text = "".join(f"\\{byte:02x}" for byte in data)
        self.declare(f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{text}", align 8')
        self.rooms[name] = len(data)
        return name

    def room(self, size: int) -> str:
        """Return the name of some bytes of the module itself."""
        name = f"@room{len(self.rooms)}"
        self.declare(f"{name} = internal global [{size} x i8] zeroinitializer, align 16")
        self.rooms[name] = size
        return name

    def mark(self, *regions: Region) -> str:
        """Return a comment that names the regions of an access to the checked build, if this is one."""
        if self.numbers is None:
            return ""
        return f" ; in {' '.join(str(self.region(region)) for region in regions)}"

    def region(self, region: Region) -> int:
        """Return the number of a region in a checked build."""
        assert self.numbers is not None
        return ANY if region.is_any else self.numbers.number(region.name, self.rooms)

    def text(self) -> str:
        """Return the whole text."""
        return "\n".join([*self._declarations, *self._functions, ""])


class IrFunction:
    """A function that is being written. Its first parameter `%c` points to the context of the packet.

    Every pointer is known by the region that it points into and by its offset there, every value that becomes an offset
    or a size by its bound. An access that does not provably stay inside its region is Unsupported.
    """

    def __init__(self, module: IrModule, head: str):
        self.module = module
        self._head = head
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._values = self._labels = 0
        self._is_open = True
        #: The region of every pointer, and its offset there; what values are at most.
        self._places: dict[str, tuple[Region, Extent]] = {}
        self._bounds = {"%length": Extent(0, {FRAME_LENGTH: 1})}

    def text(self) -> str:
        """Return the text of the function."""
        return "\n".join([f"{self._head} {{", "entry:", *self._entry, "  br label %start", "start:", *self._lines, "}"])

    def op(self, text: str, bits: int = 64) -> str:
        """Write an instruction that has a result and return the name of that."""
        self._values += 1
        name = f"%v{self._values}"
        self.do(f"{name} = {text}", bits)
        return name

    def do(self, text: str, bits: int = 64) -> None:
        """Write an instruction; one that no path reaches is left out."""
        if self._is_open:
            self.module.spend(1 + bits // 64)
            self._lines.append(f"  {text}")

    def room(self, size: int) -> str:
        """Return the address of some bytes that are there while the function runs."""
        size = max(size, 1)
        if self.module.numbers is not None:
            name = self.module.room(size)
        else:
            self._values += 1
            name = f"%v{self._values}"
            self._entry.append(f"  {name} = alloca [{size} x i8], align 8")
        return self.place(name, Region(name, Extent(size)))

    def label(self) -> str:
        """Return the name of a block that is to come."""
        self._labels += 1
        return f"b{self._labels}"

    def start(self, label: str) -> None:
        """Begin a block; control falls into it from the one before."""
        self.go(label)
        self._lines.append(f"{label}:")
        self._is_open = True

    def go(self, label: str) -> None:
        """End the block: control goes to another one."""
        self._end(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        """End the block: where control goes depends on a condition."""
        self._end(f"br i1 {condition}, label %{yes}, label %{no}")

    def give_back(self, value: int | str) -> None:
        """End the function with a result."""
        self._end(f"ret i64 {value}")

    def switch(self, value: str, cases: list[tuple[int, str]], otherwise: str) -> None:
        """End the block: where control goes depends on a number of 64 bits."""
        listed = " ".join(f"i64 {number}, label %{label}" for number, label in cases)
        self._end(f"switch i64 {value}, label %{otherwise} [ {listed} ]")

    def _end(self, text: str) -> None:
        self.do(text)
        self._is_open = False

    def unless(self, condition: str) -> str:
        """Go on only where a condition does not hold; return the label of the block for where it does."""
        there, here = self.label(), self.label()
        self.branch(condition, there, here)
        self.start(here)
        return there

    def when(self, condition: str) -> str:
        """Go on only where a condition holds; return the label of the block that follows in any case."""
        here, after = self.label(), self.label()
        self.branch(condition, here, after)
        self.start(here)
        return after

    # Memory. Addresses are offsets in the context, or names of pointers.

    def place(self, pointer: str, region: Region) -> str:
        """Note that a pointer is to the start of a region; return the pointer."""
        self._places[pointer] = region, Extent()
        return pointer

    def bound(self, value: str, most: int | str | Extent) -> str:
        """Note that a value is not negative and at most so large, as what is written makes sure; return the value."""
        self._bounds[value] = extent(most)
        return value

    def at_most(self, value: str, most: int | str) -> str:
        """Write that a value is no larger than another one, and return it."""
        self.module.declare("declare i64 @llvm.umin.i64(i64, i64)")
        return self.bound(self.op(f"call i64 @llvm.umin.i64(i64 {value}, i64 {most})"), most)

    def _place(self, offset: int | str, base: str) -> tuple[Region, Extent]:
        """Return the region of an offset behind a pointer, and where that is in it."""
        if base == "%c":
            found = self.module.context.at(offset) if isinstance(offset, int) else None
            if found is None:
                raise Unsupported(f"it uses byte {offset} of a context that has no such byte")
            region, inside = found
            return region, Extent(inside)
        if base not in self._places:
            raise Unsupported(f"it uses memory behind {base}, of which nothing is known")
        region, start = self._places[base]
        return region, start + extent(offset)

    def inside(self, offset: int | str, size: int | str | Extent, base: str = "%c") -> Region:
        """Return the region of some bytes; Unsupported if they may be outside of it."""
        region, start = self._place(offset, base)
        end = start + extent(size)
        beyond = excess(end, region.size or Extent(0, {FRAME_LENGTH: 1}), self._bounds)
        if beyond is None or (region.size is not None and beyond > 0):
            raise Unsupported(f"it uses {end} bytes of {region}, which has {region.size}")
        region.used = max(region.used, beyond)
        return region

    def address(self, offset: int | str, base: str = "%c") -> str:
        """Return a pointer to an offset behind another one."""
        if offset == 0:
            return base
        place = self._place(offset, base)
        pointer = self.op(f"getelementptr i8, ptr {base}, i64 {offset}")
        self._places[pointer] = place
        return pointer

    def element(self, offset: str, base: str, region: Region) -> str:
        """Return a pointer to one of equal elements of an array, the one at an offset."""
        return self.place(self.op(f"getelementptr i8, ptr {base}, i64 {offset}"), region)

    def load(self, offset: int | str, bits: int = 64, base: str = "%c") -> str:
        """Return a number of whole bytes."""
        region = self.inside(offset, bits // 8, base)
        return self.op(f"load i{bits}, ptr {self.address(offset, base)}, align 1{self.module.mark(region)}", bits)

    def store(self, value: int | str, offset: int | str, bits: int = 64, base: str = "%c") -> None:
        """Store a number of whole bytes."""
        region = self.inside(offset, bits // 8, base)
        self.do(f"store i{bits} {value}, ptr {self.address(offset, base)}, align 1{self.module.mark(region)}", bits)

    def pointer(self, offset: int, region: Region, base: str = "%c") -> str:
        """Return a pointer that stands in memory, to the start of a region."""
        mark = self.module.mark(self.inside(offset, 8, base))
        return self.place(self.op(f"load ptr, ptr {self.address(offset, base)}, align 8{mark}"), region)

    def store_pointer(self, pointer: str, offset: int, base: str = "%c") -> None:
        """Store a pointer."""
        mark = self.module.mark(self.inside(offset, 8, base))
        self.do(f"store ptr {pointer}, ptr {self.address(offset, base)}, align 8{mark}")

    def frame_length(self) -> str:
        """Return how many bytes the frame has."""
        return self.bound(self.load(SLOTS["frame_length"]), FRAME_LENGTH)

    def copy(self, into: str, source: str, size: int | str) -> None:
        """Copy bytes that do not overlap, or are the same."""
        regions = self.inside(0, size, into), self.inside(0, size, source)
        self._copy(into, source, size, *regions)

    def copy_pieces(self, into: int, source: int, size: int) -> None:
        """Copy several whole pieces of the context into one that has room for them."""
        if size:
            regions = self.inside(into, size), self._whole(source, size)
            self._copy(self.address(into), self.address(source), size, *regions)

    def _copy(self, into: str, source: str, size: int | str, *regions: Region) -> None:
        self.module.declare("declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
        given = f"ptr {into}, ptr {source}, i64 {size}, i1 false"
        self.do(f"call void @llvm.memmove.p0.p0.i64({given}){self.module.mark(*regions)}")

    def clear(self, offset: int, size: int) -> None:
        """Fill part of a piece of the context, or several whole pieces, with zeros."""
        if not size:
            return
        region, at = self._place(offset, "%c")
        beyond = excess(at + Extent(size), region.size or Extent(), {})
        if beyond is None or beyond > 0:
            region = self._whole(offset, size)
        self.module.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        mark = self.module.mark(region, region)
        self.do(f"call void @llvm.memset.p0.i64(ptr {self.address(offset)}, i8 0, i64 {size}, i1 false){mark}")

    def _whole(self, offset: int, size: int) -> Region:
        """Return several whole pieces of the context as a region."""
        region = self.module.context.whole(offset, size)
        if region is None:
            raise Unsupported(f"it uses {size} bytes at byte {offset} of its context, which are no whole pieces")
        return region

    def hand(self, size: int | str, *pointers: str) -> int | str:
        """Return how many bytes behind pointers a function is handed; a checked build makes it 0 if any is outside."""
        for pointer in pointers:
            region = self.inside(0, size, pointer)
            if self.module.numbers is not None:
                function = self._head[self._head.index("@") : self._head.index("(")]
                self.module.sites.append(f"{function}: {size} bytes at {pointer} are handed on")
                given = f"ptr {pointer}, i64 {size}, i64 {self.module.region(region)}, i64 {len(self.module.sites) - 1}"
                size = self.bound(self.op(f"call i64 @te_size({given})"), size)
        return size

    def swapped(self, value: str, size: int) -> str:
        """Return a number of `size` bytes with its bytes in the opposite order."""
        if size == 1:
            return value
        bits = 8 * size
        if size % 2 == 0:
            self.module.declare(f"declare i{bits} @llvm.bswap.i{bits}(i{bits})")
            return self.op(f"call i{bits} @llvm.bswap.i{bits}(i{bits} {value})", bits)
        wide = self.op(f"zext i{bits} {value} to i{bits + 8}", bits)
        turned = self.swapped(wide, size + 1)
        low = self.op(f"lshr i{bits + 8} {turned}, 8", bits)
        return self.op(f"trunc i{bits + 8} {low} to i{bits}", bits)
