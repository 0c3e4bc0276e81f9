"""Native code of the primitives that actions and parser states consist of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tensorexpress.switch.packet import DROP_PORT
from tensorexpress.switch.program.bmv2.values import (
    Const,
    Expression,
    FieldRef,
    Lookahead,
    Named,
    Operator,
    Several,
    Text,
)
from tensorexpress.switch.program.codegen.assignments import P4_14
from tensorexpress.switch.program.codegen.standard import standard_field
from tensorexpress.switch.program.codegen.variables import Var
from tensorexpress.switch.program.native.code import IrFunction
from tensorexpress.switch.program.native.expressions import ExpressionCode
from tensorexpress.switch.program.native.hashing import HashCode, call_python
from tensorexpress.switch.program.native.headers import HeaderCode
from tensorexpress.switch.program.native.layout import METER_BYTES, SLOTS, words_of
from tensorexpress.switch.program.native.numbers import Arithmetic, Num, constant
from tensorexpress.switch.program.native.regions import Extent, Region
from tensorexpress.switch.program.native.unit import Unit
from tensorexpress.switch.program.native.unsupported import Unsupported

#: Numbers that the switch itself uses stand in slots of 64 bits.
_SLOT_BITS = 63


class PrimitiveCode:
    """Writes primitives in one function; `where` is the part of the program that they stand in."""

    def __init__(self, unit: Unit, code: IrFunction, stage: str):
        self._unit = unit
        self._program = unit.program
        self._layout = unit.layout
        self._code = code
        self._stage = stage
        self.where = "the program"
        self.numbers = Arithmetic(code)
        self.headers = HeaderCode(unit, code, self.numbers)
        self.expressions = ExpressionCode(unit, code, self.numbers, self.headers)
        self.hashes = HashCode(unit, code, self.numbers, self.headers, self.expressions)
        self._references = self.expressions.references
        self.primitives: dict[str, Callable[..., None]] = {
            "assign": self._assign,
            "modify_field": self._assign,
            "set": self._assign,
            "assign_VL": self._assign,
            "assign_header": self._assign_header,
            "copy_header": self._assign_header,
            "assign_union": self._assign_union,
            "assign_header_stack": self._assign_stack,
            "assign_union_stack": self._assign_stack,
            "push": lambda stack, count: self._push(stack, count, 1),
            "pop": lambda stack, count: self._push(stack, count, -1),
            "add_header": self._add_header,
            "remove_header": self._remove_header,
            **{name: partial(self._compute, op) for name, op in P4_14.items()},
            "count": self._count,
            "execute_meter": self._execute_meter,
            "register_read": self._register_read,
            "register_write": self._register_write,
            "modify_field_with_hash_based_offset": self._hash,
            "modify_field_rng_uniform": self._random,
            "assert": partial(self._claim, "assert"),
            "assume": partial(self._claim, "assume"),
            "log_msg": self._log,
            "drop": self._drop,
            "mark_to_drop": self._drop,
            "generate_digest": lambda receiver, fields: self._decide("digest", fields),
            "clone_ingress_pkt_to_egress": self._clone,
            "clone_egress_pkt_to_egress": self._clone,
            "resubmit": partial(self._decide, "resubmit_fields"),
            "recirculate": partial(self._decide, "recirculate_fields"),
            "truncate": self._truncate,
            "no_op": lambda: None,
        }

    # Assignments.

    def needs(self, target: Expression) -> bool:
        """Whether anybody needs what is stored in a field."""
        return any(self._unit.is_live(Var(header, name)) for header, name in self._may_be(target))

    def _may_be(self, target: Expression) -> list[tuple[str, str]]:
        """Return the fields that a target may stand for."""
        if isinstance(target, FieldRef):
            return [(target.header, target.field)]
        return [(to.header, to.field) for _, to in self._references.targets(target)]

    def set_field(self, target: Expression, number: Num) -> None:
        """Write that a field takes a value, if anybody needs it."""
        for condition, to in self._references.targets(target):
            if self._unit.is_live(Var(to.header, to.field)):
                self._where(condition, lambda to=to: self.headers.write(to.header, to.field, number))  # type: ignore[misc]

    def _where(self, condition: str | None, write: Callable[[], None]) -> None:
        """Write something that is done where a condition holds."""
        if condition is None:
            write()
            return
        after = self._code.when(condition)
        write()
        self._code.start(after)

    def _assign(self, target: Expression, source: Expression) -> None:
        """target = source."""
        if not self.needs(target):
            if isinstance(source, Lookahead) and self.expressions.lookahead is not None:
                # A frame too short to look ahead in is an error though nobody needs what is there.
                self.expressions.number(source)
            return
        fields = [self._program.field(FieldRef(*name)) for name in self._may_be(target)]
        if fields[0].varbit:
            if not isinstance(target, FieldRef) or not isinstance(source, FieldRef):
                raise Unsupported("it assigns a varbit that is chosen by an index")
            self.headers.copy_varbit(target, source)
        else:
            widest = max(info.bits for info in fields)
            self.set_field(target, self.expressions.number(source, max(widest, 1)))

    def _compute(self, op: str, target: Expression, left: Expression, right: Expression | None = None) -> None:
        """target = left op right, or target = target op left."""
        operands = (target, left) if right is None else (left, right)
        self.set_field(target, self.expressions.operation(Operator(op, operands)))

    def _assign_header(self, target: Expression, source: Expression) -> None:
        """Copy a header, validity included."""
        pairs = [
            (first, second, into, out_of)
            for first, into in self._references.headers(target)
            for second, out_of in self._references.headers(source)
        ]
        self._one_case(pairs, self._copy_member)

    def _one_case(
        self, pairs: list[tuple[str | None, str | None, str, str]], write: Callable[[str, str], None]
    ) -> None:
        """Write what is done for the first pair whose conditions hold."""
        done = self._code.label()
        for first, second, into, out_of in pairs:
            condition = first or second
            if first is not None and second is not None:
                condition = self._code.op(f"and i1 {first}, {second}")
            after = self._code.when(condition) if condition is not None else None
            write(into, out_of)
            self._code.go(done)
            if after is not None:
                self._code.start(after)
        self._code.start(done)

    def _copy_member(self, into: str, out_of: str) -> None:
        """Write a copy of a header; from one that is not valid nothing is taken but that."""
        if self._program.headers[into].metadata:
            self.headers.copy_metadata(into, out_of)
            return
        invalid, done = self._code.label(), self._code.label()
        here = self._code.label()
        self._code.branch(self.headers.valid(out_of), here, invalid)
        self._code.start(here)
        self.headers.copy(into, out_of)
        self.headers.mark_valid(into)
        self._code.go(done)
        self._code.start(invalid)
        self.headers.mark_invalid(into)
        self._code.start(done)

    def _assign_union(self, target: Expression, source: Expression) -> None:
        """Copy all headers of a union."""
        unions = self._program.unions
        pairs = [
            (first, second, into, out_of)
            for first, into in self._references.unions(target)
            for second, out_of in self._references.unions(source)
        ]

        def copy(into: str, out_of: str) -> None:
            for pair in zip(unions[into].headers, unions[out_of].headers, strict=True):
                self._copy_member(*pair)

        self._one_case(pairs, copy)

    def _assign_stack(self, target: Expression, source: Expression) -> None:
        """Copy all elements of a stack, and how many there are."""
        assert isinstance(target, Named)
        assert isinstance(source, Named)
        stacks = self._program.stack_elements(target.name), self._program.stack_elements(source.name)
        for into, out_of in zip(*stacks, strict=True):
            for pair in zip(into, out_of, strict=True):
                self._copy_member(*pair)
        self._code.store(self._code.load(self._layout.next[source.name]), self._layout.next[target.name])

    def _push(self, stack: Expression, count: Expression, direction: int) -> None:
        """Push or pop a constant number of elements."""
        assert isinstance(stack, Named)
        assert isinstance(count, Const)
        if count.value:
            self.headers.shift_stack(stack.name, direction * count.value)

    def _add_header(self, header: Expression) -> None:
        """Make a header valid; one that was not is all zeros."""
        for condition, name in self._headers_of(header):
            valid = self.headers.valid(name)
            self._where(self._both(condition, self._code.op(f"xor i1 {valid}, true")), partial(self._add_one, name))

    def _remove_header(self, header: Expression) -> None:
        """Make a header invalid."""
        for condition, name in self._headers_of(header):
            self._where(self._both(condition, self.headers.valid(name)), partial(self._remove_one, name))

    def _headers_of(self, header: Expression) -> list[tuple[str | None, str]]:
        found = self._references.headers(header)
        return [(condition, name) for condition, name in found if not self._program.headers[name].metadata]

    def _both(self, first: str | None, second: str) -> str:
        return second if first is None else self._code.op(f"and i1 {first}, {second}")

    def _add_one(self, name: str) -> None:
        self.headers.clear(name)
        self.headers.mark_valid(name)
        self._resize(self.headers.place(name).fixed_bytes)

    def _remove_one(self, name: str) -> None:
        self._resize(-self.headers.place(name).fixed_bytes)
        self.headers.mark_invalid(name)

    def _resize(self, more_bytes: int) -> None:
        """Write that the packet has more or fewer bytes for whoever sees it next: egress, or egress again."""
        if self._stage == "ingress" or "clone_egress_pkt_to_egress" in self._program.primitives:
            length = self._code.load(SLOTS["length"])
            self._code.store(self._code.op(f"add i64 {length}, {more_bytes}"), SLOTS["length"])

    # Externs.

    def _count(self, counter: Expression, index: Expression) -> None:
        """Count this packet in a cell; one that is not there counts nothing."""
        assert isinstance(counter, Named)
        info = self._program.arrays["counter"][counter.name]
        number = self.expressions.number(index)
        if info.size == 0:
            return
        code, pointers = self._code, self._layout.counters[counter.name]
        for what, pointer, amount in (
            ("packets", pointers, "1"),
            ("bytes", pointers + 8, code.load(SLOTS["frame_length"])),
        ):
            region = Region(f"{what} of counter {counter.name!r}", Extent(8))
            cell, is_there = self.expressions.cell(pointer, number, info.size, region)
            counted = code.op(f"select i1 {is_there}, i64 {amount}, i64 0")
            code.store(code.op(f"add i64 {code.load(0, base=cell)}, {counted}"), 0, base=cell)

    def _register_read(self, target: Expression, register: Expression, index: Expression) -> None:
        """target = register[index]."""
        assert isinstance(register, Named)
        if self.needs(target):
            self.set_field(target, self.expressions.register(register.name, self.expressions.number(index)))

    def _register_write(self, register: Expression, index: Expression, value: Expression) -> None:
        """register[index] = value; a cell that is not there stays so."""
        assert isinstance(register, Named)
        info = self._program.arrays["register"][register.name]
        number = self.expressions.number(index)
        if info.bits == 0 or info.size == 0:
            return
        data = self.numbers.cut(self.expressions.number(value, info.bits), info.bits)
        words = words_of(info.bits)
        region = Region(f"register {register.name!r}", Extent(8 * words))
        cell, is_there = self.expressions.cell(self._layout.registers[register.name], number, info.size, region)
        after = self._code.when(is_there)
        self._code.store(self.numbers.fit(data, 64 * words), 0, 64 * words, cell)
        self._code.start(after)

    def _hash(self, target: Expression, base: Expression, calculation: Expression, size: Expression) -> None:
        """target = base + hash % size, where a size of 0 counts as 1."""
        assert isinstance(calculation, Named)
        if not self.needs(target):
            return
        result = self.hashes.hashed(self._program.calculations[calculation.name])
        modulus = self.expressions.number(size)
        is_zero = self.numbers.compare("==", modulus, constant(0))
        rest = self.numbers.divide("%", result, self.numbers.choose(is_zero, constant(1), modulus))
        self.set_field(target, self.numbers.binary("+", rest, self.expressions.number(base), None))

    def call(self, kind: str, name: str, arguments: list[Num]) -> str:
        """Write a call to Python and return its result, a number of 64 bits."""
        cells = self._layout.argument_cells([(number.bits, number.signed) for number in arguments])
        for cell, number in zip(cells, arguments, strict=True):
            self.headers.write_cell(cell, number)
        return call_python(self._code, self._unit.call(kind, name, cells))

    def load_slot(self, name: str) -> str:
        """Return what stands in a slot."""
        return self._code.load(SLOTS[name])

    def now(self) -> Num:
        """Return the time that meters and idle timeouts go by."""
        return Num(self._code.load(SLOTS["ingress_us" if self._stage == "ingress" else "egress_us"]), 64)

    def units(self, *, in_bytes: bool) -> Num:
        """Return what a packet takes from a meter."""
        return Num(self._code.load(SLOTS["frame_length"]), 64) if in_bytes else constant(1)

    def _execute_meter(self, meter: Expression, index: Expression, target: Expression) -> None:
        """target = colour of this packet."""
        assert isinstance(meter, Named)
        info, number = self._program.arrays["meter"][meter.name], self.expressions.number(index)
        units = self.units(in_bytes=info.in_bytes)
        if meter.name in self._layout.meters:
            colour = self._colour(meter.name, number, info.size, units)
        else:
            colour = self.call("meter", meter.name, [number, units, self.now()])
        self.set_field(target, self.numbers.narrow(Num(colour, 64), 2))

    def _colour(self, name: str, index: Num, size: int, units: Num) -> str:
        """Return the colour of this packet at a meter in memory; green at one that is not there."""
        code = self._code
        found = code.room(8)
        code.store(0, 0, base=found)
        region = Region(f"meter {name!r}", Extent(METER_BYTES))
        cell, is_there = self.expressions.cell(self._layout.meters[name], index, size, region)
        after = code.when(is_there)
        code.hand(METER_BYTES, cell)
        given = f"ptr {cell}, i64 {self.numbers.fit(units, 64)}, i64 {self.now().text}"
        code.store(code.op(f"call i64 @meter({given})"), 0, base=found)
        code.start(after)
        return code.load(0, base=found)

    def _random(self, target: Expression, low: Expression, high: Expression) -> None:
        """target = a number from low to high; left alone when low is above high."""
        if not self.needs(target):
            return
        lowest, highest = self.expressions.number(low), self.expressions.number(high)
        if highest.signed_bits > 64:
            raise Unsupported("it asks for random numbers of more than 63 bits")
        after = self._code.when(self.numbers.compare("<=", lowest, highest))
        found = Num(self.call("randint", "", [lowest, highest]), 64, signed=True)
        self.set_field(target, found)
        self._code.start(after)

    def _claim(self, word: str, condition: Expression) -> None:
        """Report when a condition does not hold."""
        held, broken = self._code.label(), self._code.label()
        self._code.branch(self.expressions.condition(condition), held, broken)
        self._code.start(broken)
        self.call("claim", f"{word} does not hold in {self.where}", [])
        self._code.start(held)

    def _log(self, message: Expression, values: Expression) -> None:
        """Log a message with the values in the place of its braces."""
        assert isinstance(message, Text)
        assert isinstance(values, Several)
        self.call("log", message.text, [self.expressions.number(item) for item in values.items])

    # Decisions.

    def _drop(self, metadata: Expression | None = None) -> None:
        """Send the packet nowhere; `metadata` is what stands for the standard metadata, which may be a copy of it."""
        for name, value in (("egress_spec", DROP_PORT), ("mcast_grp", 0)):
            target = standard_field(self._program, name)
            if isinstance(metadata, Named) and metadata.name != "standard_metadata":
                target = FieldRef(metadata.name, name)
            if target is not None and self._program.headers[target.header].type.field(target.field) is not None:
                self.set_field(target, constant(value))

    def _decide(self, what: str, value: Expression) -> None:
        """Write a decision about the packet itself."""
        self._code.store(self._slot_number(value), SLOTS[what])

    def _slot_number(self, value: Expression) -> str:
        number = self.expressions.number(value)
        if number.bits > _SLOT_BITS:
            raise Unsupported(f"it hands the switch a number of {number.bits} bits")
        return self.numbers.fit(number, 64)

    def _clone(self, session: Expression, fields: Expression) -> None:
        """Clone the packet when this control ends; the last clone asked for is the one that is made."""
        self._decide("clone_session", session)
        self._decide("clone_fields", fields)

    def _truncate(self, size: Expression) -> None:
        """Let no more than that many bytes leave; the smallest number asked for counts. None is -1, the greatest."""
        code, wanted = self._code, self._slot_number(size)
        known = code.load(SLOTS["truncate_bytes"])
        is_less = code.op(f"icmp ult i64 {wanted}, {known}")
        code.store(code.op(f"select i1 {is_less}, i64 {wanted}, i64 {known}"), SLOTS["truncate_bytes"])
