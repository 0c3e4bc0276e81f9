"""Native code of the parser: its states as blocks of one function."""

from __future__ import annotations

from tensorexpress.switch.program.bmv2.values import (
    Expression,
    LastField,
    Lookahead,
    Named,
    ParserState,
    Primitive,
    Transition,
)
from tensorexpress.switch.program.budgets import Work
from tensorexpress.switch.program.codegen.flow import graph, reachable
from tensorexpress.switch.program.native.actions import WENT_ON, count_step, write_primitive
from tensorexpress.switch.program.native.code import IrFunction
from tensorexpress.switch.program.native.layout import SLOTS
from tensorexpress.switch.program.native.numbers import Num, constant
from tensorexpress.switch.program.native.primitives import PrimitiveCode
from tensorexpress.switch.program.native.regions import Extent, Region, extent
from tensorexpress.switch.program.native.unit import Unit
from tensorexpress.switch.program.native.unsupported import Unsupported

#: Bits with which sizes are computed that a frame asks for; those of its own fields are far narrower.
_SIZE_BITS = 128


class ParserCode:
    """Writes the parser. It leaves the offset of the payload and the error in the context."""

    def __init__(self, unit: Unit, work: Work):
        self._unit = unit
        self._program = unit.program
        self._code = IrFunction(unit.module, "define internal i64 @parse(ptr noalias %c)")
        self._writer = PrimitiveCode(unit, self._code, "ingress")
        self._expressions = self._writer.expressions
        self._expressions.lookahead = self._lookahead
        self._references = self._expressions.references
        self._numbers = self._writer.numbers
        self._work = work
        self._end = ""

    def parser(self) -> None:
        """Write the whole parser."""
        code, states, start = self._code, self._program.states, self._program.first_state
        code.store(self._program.errors.get("NoError", 0), SLOTS["parser_error"])
        code.store(0, self._unit.layout.at)
        labels: dict[str | None, str] = {name: code.label() for name in states}
        labels[None] = self._end = code.label()
        code.go(labels[start])
        successors = {name: state.successors for name, state in states.items()}
        bounded = start is not None and not graph(self._work, start, successors).is_nestable()
        for name in reachable(start, successors):
            state = states[name]
            code.start(labels[name])
            if bounded:
                count_step(code)
            self._writer.where = f"parser state {name!r}"
            for step in state.steps:
                self._step(step)
            self._select(state, labels)
        code.start(self._end)
        code.give_back(WENT_ON)
        self._unit.module.add(code)

    def _at(self) -> str:
        return self._code.load(self._unit.layout.at)

    def _forward(self, size: int | str) -> None:
        self._code.store(self._code.op(f"add i64 {self._at()}, {size}"), self._unit.layout.at)

    def _error(self, name: str) -> Num:
        """Return the number of an error; 1 where the program does not declare it."""
        return constant(self._program.errors.get(name, 1))

    def _fail_if(self, condition: str, error: Num) -> None:
        """Write that parsing ends here with an error if a condition holds."""
        after = self._code.when(condition)
        self._code.store(self._numbers.fit(error, 64), SLOTS["parser_error"])
        self._code.go(self._end)
        self._code.start(after)

    def _require(self, size: int | str) -> None:
        """Write the check that so many bytes are left."""
        left = self._code.op(f"sub i64 {self._code.load(SLOTS['frame_length'])}, {self._at()}")
        self._fail_if(self._code.op(f"icmp slt i64 {left}, {size}"), self._error("PacketTooShort"))

    def _window(self, size: Extent) -> str:
        """Return a pointer to the next bytes of the frame, of which so many are required."""
        frame = self._code.pointer(SLOTS["frame"], Region("frame", Extent()))
        return self._code.element(self._at(), frame, Region("frame", size))

    def _step(self, step: Primitive) -> None:
        """Write one operation of a state."""
        match step.op:
            case "extract":
                self._extract(step.parameters[0], None)
            case "extract_VL":
                self._extract(step.parameters[0], step.parameters[1])
            case "advance":
                size = self._whole_bytes(step.parameters[0])
                self._require(size)
                self._forward(size)
            case "verify":
                holds = self._expressions.condition(step.parameters[0])
                error = self._expressions.number(step.parameters[1])
                self._fail_if(self._code.op(f"xor i1 {holds}, true"), error)
            case _:
                write_primitive(self._writer, step)

    def _whole_bytes(self, bits: Expression) -> str:
        """Write that a number of bits has to be one of whole bytes, and return that; it may be far too large."""
        code, number = self._code, self._expressions.number(bits)
        if number.signed_bits > _SIZE_BITS:
            raise Unsupported(f"a size in the parser is computed with {number.bits} bits")
        wide = self._numbers.fit(number, _SIZE_BITS)
        kind = f"i{_SIZE_BITS}"
        is_odd = code.op(f"icmp ne {kind} {code.op(f'and {kind} {wide}, 7')}, 0")
        is_negative = code.op(f"icmp slt {kind} {wide}, 0")
        self._fail_if(code.op(f"or i1 {is_odd}, {is_negative}"), self._error("ParserInvalidArgument"))
        size = Num(code.op(f"lshr {kind} {wide}, 3"), _SIZE_BITS)
        # Beyond any frame is beyond any frame.
        return self._numbers.fit(self._numbers.limit(size, 0, 2**60), 64)

    def _extract(self, target: Expression, varbit_bits: Expression | None) -> None:
        """Write an extraction into a header or the next element of a stack."""
        headers = self._references.extractable(target)
        place = self._writer.headers.place(headers[0])
        for header in headers:
            if self._writer.headers.place(header).shape != place.shape:
                raise Unsupported(f"headers {headers[0]!r} and {header!r} of one stack are of different types")
        varbit_size = None if varbit_bits is None else self._varbit_size(varbit_bits, headers[0])
        size = Extent(place.fixed_bytes) + (Extent() if varbit_size is None else extent(varbit_size))
        if isinstance(target, Named) and target.kind == "header":
            if varbit_size is None:
                self._require(place.fixed_bytes)
            self._writer.headers.extract(headers[0], self._window(size), varbit_size)
        else:
            self._extract_element(target, headers, varbit_size, size)
        self._forward(place.fixed_bytes)
        if varbit_size is not None:
            self._forward(varbit_size)

    def _extract_element(self, target: Expression, headers: list[str], varbit_size: str | None, size: Extent) -> None:
        """Write an extraction into the next element of a stack, whichever that is."""
        assert isinstance(target, Named | LastField)
        code = self._code
        next_at = self._unit.layout.next[target.name if isinstance(target, Named) else target.stack]
        count = code.load(next_at)
        is_full = code.op(f"icmp uge i64 {count}, {len(headers)}")
        self._fail_if(is_full, self._error("StackOutOfBounds"))
        if varbit_size is None:
            self._require(self._writer.headers.place(headers[0]).fixed_bytes)
        done = code.label()
        labels = [code.label() for _ in headers]
        code.switch(count, list(enumerate(labels)), done)
        for header, label in zip(headers, labels, strict=True):
            code.start(label)
            self._writer.headers.extract(header, self._window(size), varbit_size)
            code.go(done)
        code.start(done)
        code.store(code.op(f"add i64 {count}, 1"), next_at)

    def _varbit_size(self, bits: Expression, header: str) -> str:
        """Write the checks of a varbit's width and return its size in bytes."""
        code, place = self._code, self._writer.headers.place(header)
        if place.varbit is None:
            raise Unsupported(f"it extracts a varbit of the header {header!r}, which has none")
        size = self._whole_bytes(bits)
        self._require(code.op(f"add i64 {size}, {place.fixed_bytes}"))
        self._fail_if(code.op(f"icmp ugt i64 {size}, {place.varbit_bytes}"), self._error("HeaderTooShort"))
        return code.bound(size, place.varbit_bytes)

    def _lookahead(self, expression: Lookahead) -> Num:
        """Write the check that the bits are there and return them."""
        if expression.bits == 0:
            return constant(0)
        size = -(-(expression.offset_bits + expression.bits) // 8)
        self._require(size)
        base = self._window(Extent(size))
        return Num(self._writer.headers.read_bits(base, expression.offset_bits, expression.bits), expression.bits)

    def _select(self, state: ParserState, labels: dict[str | None, str]) -> None:
        """Write the transition out of a state."""
        code = self._code
        keys = [self._expressions.number(part) for part in state.key]
        keys = [self._numbers.cut(key, key.bits) for key in keys]
        for transition in state.transitions:
            condition = self._condition(transition, keys)
            if condition is None:
                break
            after = code.label()
            code.branch(condition, labels[transition.next_state], after)
            code.start(after)
        code.go(labels[next((item.next_state for item in state.transitions if item.is_default), None)])

    def _condition(self, transition: Transition, keys: list[Num]) -> str | None:
        """Return when a transition is taken, None for always."""
        if transition.value_set is not None:
            held = self._writer.call("value set", transition.value_set, keys)
            return self._code.op(f"icmp ne i64 {held}, 0")
        if transition.values is None:
            return None
        tests = []
        masks = transition.masks or (None,) * len(keys)
        for key, value, mask in zip(keys, transition.values, masks, strict=True):
            everything = (1 << key.bits) - 1
            if mask is None or mask & everything == everything:
                tests.append(self._numbers.compare("==", key, constant(value)))
            elif mask:
                cut = self._numbers.binary("&", key, constant(mask), None)
                tests.append(self._numbers.compare("==", cut, constant(value & mask)))
        found = None
        for test in tests:
            found = test if found is None else self._code.op(f"and i1 {found}, {test}")
        return found
