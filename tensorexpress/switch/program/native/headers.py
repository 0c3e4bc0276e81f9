"""Native code that reads and writes fields, and moves whole headers: out of the frame, to another one, and out."""

from __future__ import annotations

from tensorexpress.switch.program.bmv2.values import FieldRef
from tensorexpress.switch.program.codegen.variables import Var
from tensorexpress.switch.program.native.code import IrFunction
from tensorexpress.switch.program.native.layout import (
    BYTES_AT,
    VALID_AT,
    VARBIT_SIZE_AT,
    HeaderPlace,
    WordCell,
)
from tensorexpress.switch.program.native.numbers import Arithmetic, Num, constant
from tensorexpress.switch.program.native.regions import FRAME_LENGTH, Region, extent
from tensorexpress.switch.program.native.unit import Unit
from tensorexpress.switch.program.native.unsupported import Unsupported


class HeaderCode:
    """Writes what happens to headers and fields in one function."""

    def __init__(self, unit: Unit, code: IrFunction, numbers: Arithmetic):
        self._unit = unit
        self._program = unit.program
        self._layout = unit.layout
        self._code = code
        self._numbers = numbers
        self._union_of = {header: union for union in unit.program.unions.values() for header in union.headers}

    def place(self, header: str) -> HeaderPlace:
        """Return where a header is."""
        return self._layout.headers[header]

    # Numbers in memory.

    def read_cell(self, cell: WordCell, bits: int, base: str = "%c") -> Num:
        """Return a number of whole words that has so many bits."""
        wide = Num(self._code.load(cell.offset, 64 * cell.words, base), 64 * cell.words, cell.signed)
        return self._numbers.narrow(wide, bits)

    def write_cell(self, cell: WordCell, number: Num, base: str = "%c") -> None:
        """Store a number in whole words."""
        self._code.store(self._numbers.fit(number, 64 * cell.words), cell.offset, 64 * cell.words, base)

    def read_bits(self, base: str, first: int, bits: int) -> str:
        """Return bits of the wire as a number; `first` counts from the first bit at a pointer."""
        start, end = first // 8, -(-(first + bits) // 8)
        size = end - start
        raw = self._code.load(start, 8 * size, base)
        whole = Num(self._code.swapped(raw, size), 8 * size)
        return self._numbers.fit(self._numbers.shift_right(whole, constant(8 * end - first - bits)), bits)

    def write_bits(self, base: str, first: int, bits: int, value: str) -> None:
        """Store a number of so many bits on the wire, and leave the bits beside it as they are."""
        code, start, end = self._code, first // 8, -(-(first + bits) // 8)
        size = end - start
        width, spare = 8 * size, 8 * end - first - bits
        if bits < width:
            mask = ((1 << bits) - 1) << spare
            old = code.swapped(code.load(start, width, base), size)
            kept = self._numbers.binary("&", Num(old, width), constant(~mask & (1 << width) - 1), width)
            placed = self._numbers.shift_left(Num(value, bits), constant(spare), width)
            value = self._numbers.fit(self._numbers.binary("|", kept, placed, width), width)
        code.store(code.swapped(value, size), start, width, base)

    # Fields.

    def read(self, header: str, name: str) -> Num:
        """Return a field."""
        info = self._program.field(FieldRef(header, name))
        if info.varbit:
            raise Unsupported(f"{header}.{name}, a varbit, stands where a number is expected")
        if info.bits == 0:
            return constant(0)
        if self._program.headers[header].metadata:
            return self.read_cell(self._layout.fields[Var(header, name)], info.bits)
        place = self.place(header)
        base = self._code.address(place.offset + BYTES_AT)
        return Num(self.read_bits(base, place.bits[name], info.bits), info.bits, info.signed)

    def write(self, header: str, name: str, number: Num) -> None:
        """Store a number in a field, cut to its width."""
        info = self._program.field(FieldRef(header, name))
        if info.varbit:
            raise Unsupported(f"{header}.{name}, a varbit, is given a number")
        if info.bits == 0:
            return
        fitting = self._numbers.fit(number, info.bits)
        if self._program.headers[header].metadata:
            self.write_cell(self._layout.fields[Var(header, name)], Num(fitting, info.bits, info.signed))
            return
        place = self.place(header)
        self.write_bits(self._code.address(place.offset + BYTES_AT), place.bits[name], info.bits, fitting)

    # Varbits.

    def copy_varbit(self, into: FieldRef, source: FieldRef) -> None:
        """Give a varbit the bytes of another one."""
        if not self._program.field(source).varbit:
            raise Unsupported(f"{into.header}.{into.field}, a varbit, is given a number")
        target, origin = self._layout.varbit(into), self._layout.varbit(source)
        if target.most_bytes != origin.most_bytes:
            raise Unsupported("it copies a varbit to one of another width")
        pointer, size = self.varbit(source)
        self._code.store(size, target.size_at)
        self._code.copy(self._code.address(target.offset), pointer, size)

    def varbit(self, field: FieldRef) -> tuple[str, str]:
        """Return a pointer to the bytes of a varbit, and how many there are: no more than it has room for."""
        place = self._layout.varbit(field)
        return self._code.address(place.offset), self._code.at_most(self._code.load(place.size_at), place.most_bytes)

    def same_varbit(self, left: FieldRef, right: FieldRef) -> str:
        """Return the condition that two varbits have the same bytes."""
        code = self._code
        (one, size), (other, other_size) = self.varbit(left), self.varbit(right)
        as_long = code.op(f"icmp eq i64 {size}, {other_size}")
        compared = code.bound(code.op(f"select i1 {as_long}, i64 {size}, i64 0"), size)
        code.bound(compared, min(self._layout.varbit(field).most_bytes for field in (left, right)))
        same = code.op(f"call i1 @same(ptr {one}, ptr {other}, i64 {code.hand(compared, one, other)})")
        return code.op(f"and i1 {as_long}, {same}")

    # Validity.

    def valid(self, header: str) -> str:
        """Return the condition that a header is valid; metadata always is."""
        if self._program.headers[header].metadata:
            return "true"
        return self._code.op(f"trunc i8 {self._code.load(self.place(header).offset + VALID_AT, 8)} to i1")

    def mark_valid(self, header: str) -> None:
        """Make a header valid, and so no other member of its union."""
        self._code.store(1, self.place(header).offset + VALID_AT, 8)
        union = self._union_of.get(header)
        for other in union.headers if union else ():
            if other != header:
                self.mark_invalid(other)

    def mark_invalid(self, header: str) -> None:
        """Make a header invalid."""
        self._code.store(0, self.place(header).offset + VALID_AT, 8)

    def equal(self, left: str, right: str) -> str:
        """Return the condition that two headers are valid and equal."""
        code = self._code
        conditions = [self.valid(left), self.valid(right)]
        for item in self._program.headers[left].type.fields:
            if item.varbit:
                conditions.append(self.same_varbit(FieldRef(left, item.name), FieldRef(right, item.name)))
            else:
                conditions.append(self._numbers.compare("==", self.read(left, item.name), self.read(right, item.name)))
        found = conditions[0]
        for condition in conditions[1:]:
            found = code.op(f"and i1 {found}, {condition}")
        return found

    def payload(self, frame: str, length: str) -> tuple[str, str]:
        """Return a pointer to the bytes of the frame that the parser has left, and how many there are."""
        code = self._code
        at = code.at_most(code.load(self._layout.at), length)
        rest = code.bound(code.op(f"sub i64 {length}, {at}"), FRAME_LENGTH)
        return code.element(at, frame, Region("frame", extent(rest))), rest

    # Whole headers.

    def extract(self, header: str, source: str, varbit_size: str | None = None) -> None:
        """Take a header out of bytes of the frame."""
        code, place = self._code, self.place(header)
        target = code.address(place.offset + BYTES_AT)
        if place.varbit is None:
            code.copy(target, source, place.size)
        else:
            size = varbit_size or "0"
            code.store(size, place.offset + VARBIT_SIZE_AT)
            code.copy(target, source, place.varbit_at)
            source = code.address(place.varbit_at, source)
            code.copy(code.address(place.varbit_at, target), source, size)
            behind = place.varbit_at + place.varbit_bytes
            code.copy(code.address(behind, target), code.address(size, source), place.size - behind)
        self.mark_valid(header)

    def emit(self, header: str, into: str, at: str) -> str:
        """Append a header that is valid to bytes, `at` of which are there; return how many are there then."""
        code, place = self._code, self.place(header)
        source, target = code.address(place.offset + BYTES_AT), code.address(at, into)
        if place.varbit is None:
            code.copy(target, source, place.size)
            return code.op(f"add i64 {at}, {place.size}")
        code.copy(target, source, place.varbit_at)
        target = code.address(place.varbit_at, target)
        varbit, size = self.varbit(FieldRef(header, place.varbit.name))
        code.copy(target, varbit, size)
        behind = place.varbit_at + place.varbit_bytes
        code.copy(code.address(size, target), code.address(behind, source), place.size - behind)
        return code.op(f"add i64 {code.op(f'add i64 {at}, {place.fixed_bytes}')}, {size}")

    def clear(self, header: str) -> None:
        """Fill all fields of a header with zeros."""
        place = self.place(header)
        self._code.clear(place.offset + VARBIT_SIZE_AT, place.block_bytes - VARBIT_SIZE_AT)

    def copy(self, into: str, source: str) -> None:
        """Give a header the contents and validity of another one of its type."""
        target, origin = self.place(into), self.place(source)
        if target.shape != origin.shape:
            raise Unsupported(f"header {into!r} takes the contents of {source!r}, which is of another type")
        self._code.copy(self._code.address(target.offset), self._code.address(origin.offset), target.block_bytes)

    def copy_metadata(self, into: str, source: str) -> None:
        """Give all fields of a struct the values of another one of its type."""
        live = [item for item in self._program.headers[into].type.fields if self._unit.is_live(Var(into, item.name))]
        for item in live:
            if item.varbit:
                self.copy_varbit(FieldRef(into, item.name), FieldRef(source, item.name))
            else:
                self.write(into, item.name, self.read(source, item.name))

    def shift_stack(self, stack: str, distance: int) -> None:
        """Push (to higher indices) or pop (distance below zero) elements of a stack of headers or unions."""
        elements = self._program.stack_elements(stack)
        distance = max(-len(elements), min(distance, len(elements)))
        positions = range(len(elements))
        kept = [position for position in positions if 0 <= position - distance < len(elements)]
        # What is to be copied is not yet overwritten.
        for position in reversed(kept) if distance > 0 else kept:
            for into, source in zip(elements[position], elements[position - distance], strict=True):
                self.copy(into, source)
        for position in positions:
            if position not in kept:
                for header in elements[position]:
                    self.mark_invalid(header)
        count = Num(self._code.load(self._layout.next[stack]), 64)
        moved = self._numbers.binary("+", count, constant(distance), None)
        limited = self._numbers.limit(moved, 0, len(elements))
        self._code.store(self._numbers.fit(limited, 64), self._layout.next[stack])
