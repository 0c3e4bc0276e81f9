"""LLVM IR as text: a module of functions, each written block by block."""

from __future__ import annotations

from tensorexpress.switch.program.native.unsupported import Unsupported

#: What a module may cost: an instruction costs one for each 64 bits that it computes.
MOST_COST = 2**17

#: Bits of the widest number that native code computes with.
WIDEST_BITS = 2**13


class IrModule:
    """The text of a module, and what it may still cost."""

    def __init__(self) -> None:
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
        return name

    def text(self) -> str:
        """Return the whole text."""
        return "\n".join([*self._declarations, *self._functions, ""])


class IrFunction:
    """A function that is being written. Its first parameter `%c` points to the context of the packet."""

    def __init__(self, module: IrModule, head: str):
        self.module = module
        self._head = head
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._values = self._labels = 0
        self._is_open = True

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
        self._values += 1
        name = f"%v{self._values}"
        self._entry.append(f"  {name} = alloca [{max(size, 1)} x i8], align 8")
        return name

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

    def address(self, offset: int | str, base: str = "%c") -> str:
        """Return a pointer to an offset behind another one."""
        return base if offset == 0 else self.op(f"getelementptr i8, ptr {base}, i64 {offset}")

    def load(self, offset: int | str, bits: int = 64, base: str = "%c") -> str:
        """Return a number of whole bytes."""
        return self.op(f"load i{bits}, ptr {self.address(offset, base)}, align 1", bits)

    def store(self, value: int | str, offset: int | str, bits: int = 64, base: str = "%c") -> None:
        """Store a number of whole bytes."""
        self.do(f"store i{bits} {value}, ptr {self.address(offset, base)}, align 1", bits)

    def pointer(self, offset: int) -> str:
        """Return a pointer that stands in the context."""
        return self.op(f"load ptr, ptr {self.address(offset)}, align 8")

    def copy(self, into: str, source: str, size: int | str) -> None:
        """Copy bytes that do not overlap, or are the same."""
        self.module.declare("declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
        self.do(f"call void @llvm.memmove.p0.p0.i64(ptr {into}, ptr {source}, i64 {size}, i1 false)")

    def clear(self, offset: int, size: int) -> None:
        """Fill part of the context with zeros."""
        if size:
            self.module.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
            self.do(f"call void @llvm.memset.p0.i64(ptr {self.address(offset)}, i8 0, i64 {size}, i1 false)")

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
