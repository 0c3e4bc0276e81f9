"""Generated code that moves whole headers: out of the frame, from one to another, back into bytes."""

from __future__ import annotations

from tensorexpress.switch.program.bmv2.values import FieldInfo
from tensorexpress.switch.program.codegen.context import Context
from tensorexpress.switch.program.codegen.layout import Slot, code_bits
from tensorexpress.switch.program.codegen.snippets import Snippet, unsigned
from tensorexpress.switch.program.codegen.variables import BYTES, NEXT, VALID, Var


class HeaderWriter:
    """Writes what happens to headers as wholes."""

    def __init__(self, context: Context):
        self._context = context
        self._scope = context.scope
        self._lines = context.lines

    def fixed_size(self, header: str) -> int:
        """Return the bytes of a header on the wire, a varbit not counted."""
        return sum(item.bits for item in self._scope.header(header).type.fields if not item.varbit) // 8

    def extract(self, header: str, at: str, varbit_size: str | None = None) -> None:
        """Write the extraction of a header that is known to be in the frame at this position."""
        start, offset = 0, at
        slots = self._scope.layouts.slots(header)
        for index, slot in enumerate(slots):
            if slot.mode == "varbit":
                self._unpack(header, slots[start:index], offset)
                offset = _plus(offset, sum(part.size for part in slots[start:index]))
                self._context.put(Var(header, slot.parts()[0]), f"frame[{offset} : {_plus(offset, varbit_size or 0)}]")
                offset, start = _plus(offset, varbit_size or 0), index + 1
        self._unpack(header, slots[start:], offset)
        if not self._scope.layouts.is_rebuilt(header):
            end = _plus(_plus(at, self.fixed_size(header)), varbit_size or 0)
            self._context.put(Var(header, BYTES), f"frame[{at} : {end}]")
        self.mark_valid(header)

    def _unpack(self, header: str, slots: tuple[Slot, ...], at: str) -> None:
        """Write the unpacking of a run of slots; those that nobody needs are passed over."""
        codes, targets, after = "", [], []
        for slot in slots:
            if not any(self._scope.is_live(Var(header, part)) for part in slot.parts()):
                codes += f"{slot.size}x"
                continue
            codes += "".join(slot.codes())
            names, statements = self._slot_targets(header, slot)
            targets += names
            after += statements
        if targets:
            unpack = self._scope.identifiers.constant(f'Struct(">{_squeezed(codes)}").unpack_from')
            self._lines.add(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {unpack}(frame, {at})")
        for statement in after:
            self._lines.add(statement)
        for part in (part for slot in slots for part in slot.parts()):
            if self._scope.is_live(Var(header, part)):
                self._lines.settle(Var(header, part))

    def _slot_targets(self, header: str, slot: Slot) -> tuple[list[str], list[str]]:
        """Return the names that a slot unpacks to, and the statements that make its variables of them."""
        codes, parts = slot.codes(), slot.parts()
        fields = slot.groups[0].fields
        plain = len(parts) == 1 and (slot.mode != "fields" or not fields[0].signed)
        if len(codes) == 1 and plain and (slot.mode == "raw" or code_bits(codes[0])):
            name = self._scope.fill(Var(header, parts[0]))
            assert name is not None
            return [name], []
        unit = self._scope.identifiers.once("unit", f"{header}.{fields[0].name}", Var(header, fields[0].name))
        if len(codes) == 2:
            names = [f"{unit}_high", f"{unit}_low"]
            whole = f"{names[0]} << {code_bits(codes[1])} | {names[1]}"
        else:
            names = [unit]
            whole = unit if code_bits(codes[0]) else f'int.from_bytes({unit}, "big")'
        if slot.mode == "unit" or (len(parts) == 1 and not fields[0].signed):
            return names, [f"{self._scope.fill(Var(header, parts[0]))} = {whole}"]
        statements = [] if whole == unit else [f"{unit} = {whole}"]
        for item, shift in zip(fields, slot.groups[0].shifts, strict=True):
            name = self._scope.fill(Var(header, item.name))
            if name is not None:
                statements.append(f"{name} = {_cut(unit, item, shift, slot.size * 8)}")
        return names, statements

    def packed(self, header: str) -> str:
        """Return the text of a header's bytes; the header is known to be valid."""
        if not self._scope.layouts.is_rebuilt(header):
            return self._scope.carry(Var(header, BYTES))
        runs: list[list[Slot]] = [[]]
        pieces: list[str] = []
        for slot in self._scope.layouts.slots(header):
            if slot.mode == "varbit":
                pieces += self._pack_run(header, runs[-1])
                pieces.append(self._scope.carry(Var(header, slot.parts()[0])))
                runs.append([])
            else:
                runs[-1].append(slot)
        pieces += self._pack_run(header, runs[-1])
        return " + ".join(pieces) or 'b""'

    def _pack_run(self, header: str, slots: list[Slot]) -> list[str]:
        """Return the text that packs a run of slots, as a list of at most one."""
        if not slots:
            return []
        codes, values = "", []
        for slot in slots:
            codes += "".join(slot.codes())
            values += self._slot_values(header, slot)
        pack = self._scope.identifiers.constant(f'Struct(">{_squeezed(codes)}").pack')
        return [f"{pack}({', '.join(values)})"]

    def _slot_values(self, header: str, slot: Slot) -> list[str]:
        """Return the texts of what a slot is packed from."""
        if slot.mode == "raw":
            return [self._scope.carry(Var(header, slot.parts()[0]))]
        whole = self.unit_value(header, slot)
        codes = slot.codes()
        if len(codes) == 2:
            low = code_bits(codes[1])
            assert low is not None
            return [f"{whole.inner} >> {low}", f"{whole.inner} & {hex((1 << low) - 1)}"]
        return [whole.text] if code_bits(codes[0]) else [f'{whole.inner}.to_bytes({slot.size}, "big")']

    def unit_value(self, header: str, slot: Slot) -> Snippet:
        """Return the text of a slot's fields as one number."""
        if slot.mode == "unit":
            return Snippet(self._scope.carry(Var(header, slot.parts()[0])), slot.size * 8, atom=True)
        group, texts = slot.groups[0], []
        for item, shift in zip(group.fields, group.shifts, strict=True):
            code = unsigned(Snippet(self._scope.carry(Var(header, item.name)), atom=True), item)
            texts.append(f"{code.inner} << {shift}" if shift else code.inner)
        return Snippet(" | ".join(texts), slot.size * 8, atom=len(texts) == 1 and texts[0].isidentifier())

    def mark_valid(self, header: str) -> None:
        """Write that a header is valid, and so no other member of its union."""
        self._context.put(Var(header, VALID), "1")
        union = self._scope.union_of.get(header)
        for other in union.headers if union else ():
            if other != header:
                self.mark_invalid(other)

    def mark_invalid(self, header: str) -> None:
        """Write that a header is not valid."""
        self._scope.usage.invalidated.add(header)
        self._context.put(Var(header, VALID), "0")
        if not self._scope.layouts.is_rebuilt(header):
            self._context.put(Var(header, BYTES), 'b""')

    def clear(self, header: str) -> None:
        """Write that all fields of a header are zero."""
        zeros: dict[str, list[str]] = {}
        for var in self._scope.layouts.variables(header):
            name = self._scope.fill(var)
            if name is not None:
                value = self._scope.nothing(var)
                if var.part == BYTES:
                    value = self._scope.identifiers.constant(f"bytes({self.fixed_size(header)})")
                zeros.setdefault(value, []).append(name)
        for value, names in zeros.items():
            self._lines.add(f"{' = '.join(names)} = {value}")
        for var in self._scope.layouts.variables(header):
            self._lines.settle(var)

    def copy(self, pairs: list[tuple[str, str]]) -> None:
        """Write that headers take the contents and validity of others of their type, all at once."""
        targets, sources, filled = [], [], []
        for target, source in pairs:
            self._scope.usage.invalidated.add(target)
            old = self._scope.layouts.variables(source)
            new = self._scope.layouts.variables(target)
            if not self._scope.header(target).metadata:
                old, new = [*old, Var(source, VALID)], [*new, Var(target, VALID)]
            for into, out_of in zip(new, old, strict=True):
                name = self._scope.fill(into)
                if name is not None:
                    targets.append(name)
                    sources.append(self._scope.carry(out_of))
                    filled.append(into)
        if targets:
            self._lines.add(f"{', '.join(targets)} = {', '.join(sources)}")
        for var in filled:
            self._lines.settle(var)

    def shift_stack(self, stack: str, distance: int) -> None:
        """Write a push (to higher indices) or pop (distance below zero) of a stack of headers or unions."""
        elements = self._scope.program.stack_elements(stack)
        distance = max(-len(elements), min(distance, len(elements)))
        kept = [
            (elements[position], elements[position - distance])
            for position in range(len(elements))
            if 0 <= position - distance < len(elements)
        ]
        self.copy([pair for target, source in kept for pair in zip(target, source, strict=True)])
        lost = range(distance) if distance > 0 else range(len(elements) + distance, len(elements))
        for position in lost:
            if 0 <= position < len(elements):
                for header in elements[position]:
                    self.mark_invalid(header)
        count = self._scope.fill(Var(stack, NEXT))
        if count is not None:
            self._scope.carry(Var(stack, NEXT))
            bound = f"min({len(elements)}, {count} + {distance})" if distance > 0 else f"max(0, {count} - {-distance})"
            self._lines.add(f"{count} = {bound}")


def _plus(text: str, more: int | str) -> str:
    """Return the text of a sum, computed where both are numbers."""
    if more == 0:
        return text
    if text.isdecimal() and isinstance(more, int):
        return str(int(text) + more)
    return f"{text} + {more}"


def _squeezed(codes: str) -> str:
    """Return struct codes with runs of padding merged, so that equal layouts look equal.

    >>> _squeezed("2x4xHB")
    '6xHB'
    """
    parts: list[str] = []
    skipped, digits = 0, ""
    for character in codes:
        if character.isdigit():
            digits += character
        elif character == "x":
            skipped += int(digits)
            digits = ""
        else:
            if skipped:
                parts.append(f"{skipped}x")
            parts.append(digits + character)
            skipped, digits = 0, ""
    return "".join(parts)


def _cut(unit: str, item: FieldInfo, shift: int, bits: int) -> str:
    """Return the text of a field cut out of the number of its group."""
    text = f"{unit} >> {shift}" if shift else unit
    if shift + item.bits < bits:
        text += f" & {hex((1 << item.bits) - 1)}"
    if item.signed:
        half = hex(1 << item.bits - 1)
        return f"(({text}) ^ {half}) - {half}"
    return text
