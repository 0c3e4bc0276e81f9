"""Generated code of hashes and checksums.

The Internet checksum is a sum of 16-bit words modulo 65535. So no bytes are put together for it: every field is added
at its place within its word, wide fields as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorexpress.switch.program.bmv2.values import Calculation, Checksum, Const, FieldRef, Named, Operator
from tensorexpress.switch.program.codegen.context import Context
from tensorexpress.switch.program.codegen.expressions import ExpressionWriter
from tensorexpress.switch.program.codegen.headers import HeaderWriter
from tensorexpress.switch.program.codegen.layout import Slot
from tensorexpress.switch.program.codegen.snippets import Snippet, number, unsigned
from tensorexpress.switch.program.codegen.variables import Var

#: Sums of numbers that are so wide are folded before a remainder is found.
_WIDE_BITS = 1024


@dataclass(frozen=True, slots=True)
class HashInput:
    """One input of a calculation: `header` is what must be valid for it to count, None where nothing must."""

    code: Snippet
    bits: int
    header: str | None
    is_bytes: bool = False


class ChecksumWriter:
    """Writes calculations over fields and the payload."""

    def __init__(self, context: Context, expressions: ExpressionWriter, headers: HeaderWriter):
        self._context = context
        self._scope = context.scope
        self._lines = context.lines
        self._expressions = expressions
        self._headers = headers

    def _inputs(self, calculation: Calculation) -> tuple[list[HashInput], bool]:
        """Return the inputs with fields that fill a group merged, and whether the payload follows them."""
        items: list[HashInput] = []
        references: list[tuple[str, str]] = []
        with_payload = False
        for part in calculation.inputs:
            match part.value:
                case None:
                    with_payload = True
                case Named(_, header):
                    self._scope.work.spend(len(self._scope.header(header).type.fields))
                    references += [(header, item.name) for item in self._scope.header(header).type.fields]
                    continue
                case FieldRef(header, name):
                    references.append((header, name))
                    continue
            items += self._field_items(references)
            references = []
            if isinstance(part.value, Const):
                items.append(HashInput(number(part.value.value & (1 << part.bits) - 1), part.bits, None))
            elif isinstance(part.value, Operator):
                items.append(HashInput(self._expressions.truth(part.value), 1, None))
        return items + self._field_items(references), with_payload

    def _field_items(self, references: list[tuple[str, str]]) -> list[HashInput]:
        """Return the inputs for fields in a row, each run that fills a group as one number."""
        items: list[HashInput] = []
        position = 0
        while position < len(references):
            header, name = references[position]
            slot = self._unit_slot(references, position)
            if slot is not None:
                self._scope.usage.wanted.add(Var(header, slot.groups[0].unit))
                items.append(HashInput(self._headers.unit_value(header, slot), slot.size * 8, header))
                position += len(slot.groups[0].fields)
                continue
            found = self._scope.header(header).type.field(name)
            assert found is not None
            needed = None if self._scope.header(header).metadata else header
            code = unsigned(self._expressions.field(header, name), found)
            items.append(HashInput(code, found.bits, needed, found.varbit))
            position += 1
        return items

    def _unit_slot(self, references: list[tuple[str, str]], position: int) -> Slot | None:
        """Return the slot all of whose fields stand from a position on; None if there is none."""
        header = references[position][0]
        if self._scope.header(header).metadata:
            return None
        for slot in self._scope.layouts.slots(header):
            for group in slot.groups:
                self._scope.work.spend()
                fields = [(header, item.name) for item in group.fields]
                if slot.mode != "varbit" and references[position : position + len(fields)] == fields:
                    # What nobody looked into before is a number of its own from the next generation on.
                    return slot if slot.mode != "raw" else Slot((group,), "fields" if len(fields) == 1 else "unit")
        return None

    def hashed(self, calculation: Calculation, known_valid: str | None = None) -> str:
        """Return the text of a calculation's result; `known_valid` is a header that was checked already."""
        items, with_payload = self._inputs(calculation)
        guards, usual = self._usual(items, known_valid)
        slow = self._bytes_text(items, with_payload, known_valid)
        if calculation.algorithm in ("csum16", "cksum16"):
            self._write_total(self._word_sum(usual, with_payload) if usual is not None else "", slow, guards)
            self._write_folds(max((item.bits for item in items), default=0))
            return "-total % 0xffff if total else 0xffff"
        function = self._scope.identifiers.object("hash", calculation.algorithm)
        if usual is None:
            return f"{function}({slow})"
        fast = self._packed_items(usual) + (" + frame[at:]" if with_payload else "")
        return f"{function}({fast} if {' and '.join(guards)} else {slow})" if guards else f"{function}({fast})"

    def _usual(self, items: list[HashInput], known_valid: str | None) -> tuple[list[str], list[HashInput] | None]:
        """Return the inputs of the usual case and the conditions for it: headers are there, those with a varbit not.

        There is no usual case, None, where a varbit is always an input.
        """
        variable = {item.header for item in items if item.is_bytes}
        if variable & {None, known_valid}:
            return [], None
        needed = dict.fromkeys(item.header for item in items)
        guards = [
            f"not {self._expressions.valid(header)}" if header in variable else self._expressions.valid(header)
            for header in needed
            if header is not None and header != known_valid
        ]
        return guards, [item for item in items if item.header not in variable]

    def _write_total(self, fast: str, slow: str, guards: list[str]) -> None:
        """Write the sum of words: from the fields in the usual case, else through bytes."""
        through_bytes = f"total = word_sum({slow})"
        if not fast:
            self._lines.add(through_bytes)
        elif not guards:
            self._lines.add(f"total = {fast}")
        else:
            with self._lines.block(f"if {' and '.join(guards)}:"):
                self._lines.add(f"total = {fast}")
            with self._lines.block("else:"):
                self._lines.add(through_bytes)

    def _write_folds(self, bits: int) -> None:
        """Write how a wide sum is made narrower: halves are added up much faster than a remainder is found."""
        while bits >= _WIDE_BITS:
            bits = -(-bits // 32) * 16
            self._lines.add(f"total = (total >> {bits}) + (total & {hex((1 << bits) - 1)})")

    def _word_sum(self, items: list[HashInput], with_payload: bool) -> str:
        """Return the text of the sum of all 16-bit words."""
        size = sum(item.bits for item in items)
        end = -(-size // 16) * 16
        terms, position = [], 0
        for item in items:
            position += item.bits
            shift = (end - position) % 16
            if item.code.text != "0":
                terms.append(f"({item.code.inner} << {shift})" if shift else item.code.inner)
        if with_payload:
            odd = -(-size // 8) % 2
            parity = "length - at & 1" if not odd else "length - at + 1 & 1"
            terms.append(f'(int.from_bytes(frame[at:], "big") << 8 * ({parity}))')
        return " + ".join(terms) or "0"

    def _packed_items(self, items: list[HashInput]) -> str:
        """Return the text of the inputs packed into bytes, bit after bit."""
        size = sum(item.bits for item in items)
        whole = -(-size // 8)
        terms, position = [], 0
        for item in items:
            position += item.bits
            shift = whole * 8 - position
            terms.append(f"{item.code.inner} << {shift}" if shift else item.code.inner)
        return f'({" | ".join(terms) or "0"}).to_bytes({whole}, "big")'

    def _bytes_text(self, items: list[HashInput], with_payload: bool, known_valid: str | None) -> str:
        """Return the text of the inputs packed into bytes where invalid headers are left out."""
        pairs = []
        for item in items:
            if item.is_bytes:
                pair = f'(int.from_bytes({item.code.text}, "big"), 8 * len({item.code.text}))'
            else:
                pair = f"({item.code.text}, {item.bits})"
            if item.header is not None and item.header != known_valid:
                pair = f"{pair} if {self._expressions.valid(item.header)} else (0, 0)"
            pairs.append(pair)
        return f"pack_bits({', '.join(pairs)})" + (" + frame[at:]" if with_payload else "")

    def checksums(self, verify: bool) -> None:
        """Write the verification or the update of all checksums of the program."""
        for checksum in self._scope.program.checksums:
            if checksum.verify if verify else checksum.update:
                self._checksum(checksum, verify)

    def _checksum(self, checksum: Checksum, verify: bool) -> None:
        """Write one verification or update; it is left out where the header or the condition is not there."""
        header = checksum.target.header
        guards = [] if self._scope.header(header).metadata else [self._expressions.valid(header)]
        if checksum.condition is not None:
            condition = self._expressions.condition(checksum.condition)
            if condition not in (*guards, "True"):
                guards.append(f"({condition})" if guards else condition)
        if guards:
            with self._lines.block(f"if {' and '.join(guards)}:"):
                self._checksum_body(checksum, verify)
        else:
            self._checksum_body(checksum, verify)

    def _checksum_body(self, checksum: Checksum, verify: bool) -> None:
        """Write what happens to a checksum that counts."""
        target = checksum.target
        item = self._scope.program.field(target)
        calculation = self._scope.program.calculations[checksum.calculation]
        if verify:
            result = self.hashed(calculation, target.header)
            field = unsigned(self._expressions.field(target.header, target.field), item)
            with self._lines.block(f"if {field.inner} != ({result}):"):
                self._lines.add("checksum_error = 1")
            return
        var = Var(target.header, target.field)
        if self._scope.write(var) is not None:
            result = self.hashed(calculation, target.header)
            narrow = item.bits < (16 if calculation.algorithm == "csum16" else 64)
            self._context.put(var, f"({result}) & {hex((1 << item.bits) - 1)}" if narrow else result)
