"""Native code of hashes and checksums: inputs are put together in a buffer, bit after bit, and a function is called."""

from __future__ import annotations

import struct

from tensorexpress.switch.program.bmv2.values import Calculation, Checksum, Const, FieldRef, Named, Operator
from tensorexpress.switch.program.codegen.variables import Var
from tensorexpress.switch.program.hashes import ALGORITHMS, crc_table
from tensorexpress.switch.program.native.code import IrFunction
from tensorexpress.switch.program.native.expressions import ExpressionCode
from tensorexpress.switch.program.native.headers import HeaderCode
from tensorexpress.switch.program.native.layout import BYTES_AT, SLOTS
from tensorexpress.switch.program.native.numbers import Arithmetic, Num, constant, truth
from tensorexpress.switch.program.native.regions import Extent, Region, extent
from tensorexpress.switch.program.native.unit import Unit
from tensorexpress.switch.program.native.unsupported import Unsupported

_CRC16, _CRC32, _CCITT = 0xA001, 0xEDB88320, 0x1021


class HashCode:
    """Writes calculations over fields and the payload."""

    def __init__(
        self,
        unit: Unit,
        code: IrFunction,
        numbers: Arithmetic,
        headers: HeaderCode,
        expressions: ExpressionCode,
    ):
        self._unit = unit
        self._program = unit.program
        self._code = code
        self._numbers = numbers
        self._headers = headers
        self._expressions = expressions
        #: How many bits are in the buffer; None where that depends on the packet.
        self._position: int | None = 0
        self._at = ""
        self._most_bits = 0

    def hashed(self, calculation: Calculation) -> Num:
        """Return the result of a calculation."""
        code = self._code
        algorithm = calculation.algorithm
        if algorithm == "random":
            return Num(call_python(code, self._unit.call("random", "")), 64)
        if algorithm == "round_robin":
            count = code.load(SLOTS["round_robin"])
            code.store(code.op(f"add i64 {count}, 1"), SLOTS["round_robin"])
            return Num(count, 64)
        buffer = code.pointer(SLOTS["scratch"], self._unit.scratch)
        size = self._fill(calculation, buffer)
        size = str(code.hand(size, buffer))
        return self._computed(algorithm, buffer, size)

    def _computed(self, algorithm: str, data: str, size: str) -> Num:
        """Return what an algorithm makes of bytes."""
        given = f"ptr {data}, i64 {size}"
        match algorithm:
            case "csum16" | "cksum16":
                return self._called(f"@csum16({given})", 16)
            case "crc16" | "crc16_custom":
                return self._called(f"@crc_reflected({given}, ptr {self._table(crc_table(_CRC16))}, i32 0)", 16)
            case "crc32" | "crc32_custom":
                crc = self._called(f"@crc_reflected({given}, ptr {self._table(crc_table(_CRC32))}, i32 -1)", 32)
                return self._numbers.complement(crc, 32)
            case "crcCCITT":
                return self._called(f"@crc_ccitt({given}, ptr {self._table(_ccitt_table())})", 16)
            case "xor16":
                return self._called(f"@xor_words({given}, i64 2)", 16)
            case "xor32":
                return self._called(f"@xor_words({given}, i64 4)", 32)
            case "identity":
                return self._called(f"@first_bytes({given})", 64)
        raise Unsupported(f"it computes {algorithm!r}, which is none of {', '.join(sorted(ALGORITHMS))}")

    def _called(self, call: str, bits: int) -> Num:
        return self._numbers.narrow(Num(self._code.op(f"call i64 {call}"), 64), bits)

    def _table(self, remainders: list[int]) -> str:
        return self._unit.module.constant(struct.pack("<256I", *remainders))

    # Inputs.

    def _fill(self, calculation: Calculation, buffer: str) -> str:
        """Put the inputs into the buffer and return how many bytes they are; those of invalid headers are left out."""
        code = self._code
        self._at = code.room(8)
        self._position = 0
        self._most_bits = 0
        references: list[tuple[str, str]] = []
        with_payload = False
        for part in calculation.inputs:
            match part.value:
                case None:
                    with_payload = True
                case Named(_, header):
                    references += [(header, item.name) for item in self._program.headers[header].type.fields]
                    continue
                case FieldRef(header, name):
                    references.append((header, name))
                    continue
            self._put_fields(references, buffer)
            references = []
            if isinstance(part.value, Const):
                self._put_number(constant(part.value.value), part.bits, buffer)
            elif isinstance(part.value, Operator):
                self._put_number(truth(self._expressions.condition(part.value)), 1, buffer)
        self._put_fields(references, buffer)
        self._unit.scratch_bytes = max(self._unit.scratch_bytes, self._most_bits // 8 + 8)
        size = self._filled_bytes()
        code.bound(size, -(-self._most_bits // 8))
        return self._with_payload(buffer, size) if with_payload else size

    def _filled_bytes(self) -> str:
        code = self._code
        if self._position is None:
            return code.op(f"lshr i64 {code.op(f'add i64 {code.load(0, base=self._at)}, 7')}, 3")
        return str(-(-self._position // 8))

    def _lose_position(self) -> None:
        """Keep in memory from here on how many bits there are: that depends on the packet."""
        if self._position is not None:
            self._code.store(self._position, 0, base=self._at)
            self._position = None

    def _with_payload(self, buffer: str, size: str) -> str:
        code = self._code
        frame, length = code.pointer(SLOTS["frame"], Region("frame", Extent())), code.frame_length()
        payload, rest = self._headers.payload(frame, length)
        code.copy(code.address(size, buffer), payload, rest)
        return code.bound(code.op(f"add i64 {size}, {rest}"), extent(size) + extent(rest))

    def _put_fields(self, references: list[tuple[str, str]], buffer: str) -> None:
        """Append fields in a row, those of a header that is valid, as few pieces as they are."""
        position = 0
        while position < len(references):
            header = references[position][0]
            end = position
            while end < len(references) and references[end][0] == header:
                end += 1
            names = [name for _, name in references[position:end]]
            if self._program.headers[header].metadata:
                self._put_metadata(header, names, buffer)
            else:
                self._lose_position()
                after = self._code.when(self._headers.valid(header))
                self._put_header(header, names, buffer)
                self._code.start(after)
            position = end

    def _put_metadata(self, header: str, names: list[str], buffer: str) -> None:
        for name in names:
            if self._program.field(FieldRef(header, name)).varbit:
                self._put_varbit(FieldRef(header, name), buffer)
            else:
                self._put_number(self._headers.read(header, name), self._bits(header, name), buffer)

    def _put_varbit(self, field: FieldRef, buffer: str) -> None:
        self._lose_position()
        pointer, size = self._headers.varbit(field)
        self._most_bits += self._program.field(field).bits
        self._put(pointer, self._code.op(f"shl i64 {self._code.hand(size, pointer)}, 3"), buffer)

    def _bits(self, header: str, name: str) -> int:
        return self._program.field(FieldRef(header, name)).bits

    def _put_header(self, header: str, names: list[str], buffer: str) -> None:
        place = self._headers.place(header)
        position = 0
        while position < len(names):
            name = names[position]
            position += 1
            if place.varbit is not None and name == place.varbit.name:
                self._put_varbit(FieldRef(header, name), buffer)
                continue
            first, bits = place.bits[name], self._bits(header, name)
            while position < len(names) and place.bits.get(names[position]) == first + bits:
                bits += self._bits(header, names[position])
                position += 1
            self._most_bits += bits
            if first % 8 == 0:
                self._put(self._code.address(place.offset + BYTES_AT + first // 8), bits, buffer)
            elif bits:
                base = self._code.address(place.offset + BYTES_AT)
                self._put_number(Num(self._headers.read_bits(base, first, bits), bits), bits, buffer)

    def _put_number(self, number: Num, bits: int, buffer: str) -> None:
        """Append a number that was computed."""
        if bits == 0:
            return
        if self._position is not None:
            self._write(number, bits, buffer, self._position)
            self._position += bits
            self._most_bits += bits
            return
        size = -(-bits // 8)
        room = self._code.room(size)
        self._headers.write_bits(room, 0, 8 * size, self._left(number, bits, 8 * size))
        self._most_bits += bits
        self._put(room, bits, buffer)

    def _write(self, number: Num, bits: int, buffer: str, position: int) -> None:
        """Write a number behind so many bits of the buffer, and zeros up to the end of its last byte."""
        start, lead = divmod(position, 8)
        size = -(-(lead + bits) // 8)
        value = self._left(number, bits, 8 * size - lead)
        if lead:
            before = Num(self._code.load(start, 8, buffer), 8)
            shifted = self._numbers.shift_left(before, constant(8 * size - 8), None)
            both = self._numbers.binary("|", shifted, Num(value, 8 * size - lead), None)
            value = self._numbers.fit(both, 8 * size)
        self._code.store(self._code.swapped(value, size), start, 8 * size, buffer)

    def _left(self, number: Num, bits: int, width: int) -> str:
        """Return a number at the high end of a wider one."""
        cut = self._numbers.cut(number, bits)
        return self._numbers.fit(self._numbers.shift_left(cut, constant(width - bits), width), width)

    def _put(self, source: str, bits: int | str, buffer: str) -> None:
        code = self._code
        # All that is put is counted in `_most_bits` first.
        code.hand(-(-self._most_bits // 8), buffer)
        if isinstance(bits, int):
            code.hand(-(-bits // 8), source)
        at = code.load(0, base=self._at)
        code.store(code.op(f"call i64 @put(ptr {buffer}, i64 {at}, ptr {source}, i64 {bits})"), 0, base=self._at)

    # Checksums.

    def update(self) -> None:
        """Write the update of all checksums of the program."""
        for checksum in self._program.checksums:
            if checksum.update and self._unit.is_live(Var(checksum.target.header, checksum.target.field)):
                after = self._code.when(self._counts(checksum))
                result = self.hashed(self._program.calculations[checksum.calculation])
                self._headers.write(checksum.target.header, checksum.target.field, result)
                self._code.start(after)

    def verify(self, failed: Num, target: FieldRef) -> None:
        """Write the verification of all checksums; `target` takes a value where one is wrong."""
        for checksum in self._program.checksums:
            if checksum.verify:
                after = self._code.when(self._counts(checksum))
                result = self.hashed(self._program.calculations[checksum.calculation])
                info = self._program.field(checksum.target)
                found = self._numbers.cut(self._headers.read(checksum.target.header, checksum.target.field), info.bits)
                wrong = self._code.when(self._numbers.compare("!=", found, result))
                self._headers.write(target.header, target.field, failed)
                self._code.start(wrong)
                self._code.start(after)

    def _counts(self, checksum: Checksum) -> str:
        """Return whether the header of a checksum and its condition are there."""
        valid = self._headers.valid(checksum.target.header)
        if checksum.condition is None:
            return valid
        return self._code.op(f"and i1 {valid}, {self._expressions.condition(checksum.condition)}")


def call_python(code: IrFunction, number: int) -> str:
    """Write a call to Python and return its result, a number of 64 bits.

    It is handed the context, so that LLVM knows who else reads what is stored there.
    """
    function = code.pointer(SLOTS["upcall"], Region("function", Extent()))
    return code.op(f"call i64 {function}(i64 {number}, ptr %c)")


def _ccitt_table() -> list[int]:
    """Return the remainders of all bytes for the CRC whose highest power comes first."""
    table = []
    for byte in range(256):
        value = byte << 8
        for _ in range(8):
            value = (value << 1 ^ (_CCITT if value & 0x8000 else 0)) & 0xFFFF
        table.append(value)
    return table
