"""Generated code of the parser: states as nested statements, or as a loop where a state can come again."""

from __future__ import annotations

from collections.abc import Callable

from tensorexpress.switch.program.actions import ActionWriter
from tensorexpress.switch.program.bmv2 import (
    Const,
    Expression,
    LastField,
    Lookahead,
    Named,
    ParserState,
    Primitive,
    Transition,
)
from tensorexpress.switch.program.expressions import Code, masked
from tensorexpress.switch.program.flow import Node
from tensorexpress.switch.program.scope import NEXT, Lines, Scope, Var


class ParserWriter(ActionWriter):
    """Writes the parser. `position` is the offset in the frame where it is known when the program is loaded."""

    def __init__(self, scope: Scope, lines: Lines):
        super().__init__(scope, lines)
        self.states = scope.program.states
        successors = {name: _successors(state) for name, state in self.states.items()}
        self.flow = self.flow_of(scope.program.first_state, successors)
        self.nested = self.flow.is_nestable()
        self.offsets = self._offsets() if self.nested else {}
        self.position: int | None = None

    def parser(self) -> None:
        """Write the whole parser. It leaves the offset of the payload in `at` and the error in `parser_error`."""
        errors = self.scope.program.errors
        self.lines.add(f"parser_error = {errors.get('NoError', 0)}")
        if self.flow.start is None or not self.nested:
            self.lines.add("at = 0")
        if self.flow.start is None:
            return
        if self.nested:
            with self.lines.block("while True:"):
                self.flow.write_nested(self.lines, self.state)
                self.lines.add("break")
            return
        self.loop(self.flow, self.state)

    def error(self, name: str) -> int:
        """Return the number of an error; 1 where the program does not declare it."""
        return self.scope.program.errors.get(name, 1)

    def _offsets(self) -> dict[str, int | None]:
        """Return where each state starts in the frame, None where that depends on the packet."""
        found: dict[str, set[int | None]] = {name: set() for name in self.states}
        assert self.flow.start is not None or not self.states
        if self.flow.start is not None:
            found[self.flow.start].add(0)
        for name in self.flow.order or ():
            starts = found[name]
            start = next(iter(starts)) if len(starts) == 1 else None
            end = self._end(start, self.states[name])
            for successor in _successors(self.states[name]):
                if successor is not None:
                    found[successor].add(end)
        return {name: next(iter(starts)) if len(starts) == 1 else None for name, starts in found.items()}

    def _end(self, start: int | None, state: ParserState) -> int | None:
        for step in state.steps:
            if start is None or step.op == "extract_VL":
                return None
            if step.op == "extract":
                start += self.fixed_size(self.extractable(step.parameters[0])[0])
            elif step.op == "advance":
                bits = step.parameters[0]
                if not isinstance(bits, Const) or bits.value % 8:
                    return None
                start += bits.value // 8
        return start

    def extractable(self, target: Expression) -> list[str]:
        """Return the headers that an extraction may fill: one, or the elements of a stack."""
        match target:
            case Named("header", name):
                return [name]
            case Named("header_stack", name):
                return self.elements(name)
            case LastField(stack, _, member):
                return self.elements(stack, member)
        raise self.unsupported("an extraction into something that is no header")

    def state(self, name: str, go: Callable[[Node], None]) -> None:
        """Write one state."""
        state = self.states[name]
        self.where = f"parser state {name!r}"
        self.position = self.offsets.get(name)
        for step in state.steps:
            self.step(step)
        after = self.position

        def leave(successor: Node) -> None:
            self.position = after
            if after is not None and (successor is None or self.offsets.get(successor) is None):
                self.lines.add(f"at = {after}")
            go(successor)

        self.select(state, leave)

    def step(self, step: Primitive) -> None:
        """Write one operation of a state."""
        match step.op:
            case "extract":
                self.extract_next(step.parameters[0], None)
            case "extract_VL":
                self.extract_next(step.parameters[0], step.parameters[1])
            case "advance":
                self.advance(step.parameters[0])
            case "verify":
                with self.lines.block(f"if not {self.inner_condition(step.parameters[0])}:"):
                    self.fail(self.value(step.parameters[1]).text)
            case _:
                self.primitive(step)

    def fail(self, error: int | str) -> None:
        """Write that parsing ends here with an error."""
        self.lines.add(f"parser_error = {error}")
        if self.position is not None:
            self.lines.add(f"at = {self.position}")
        self.lines.add("break")

    def require(self, size: int | str) -> None:
        """Write the check that so many bytes are left."""
        if size == 0:
            return
        if self.position is not None and isinstance(size, int):
            condition = f"length < {self.position + size}"
        else:
            condition = f"length - {self.here()} < {size}"
        with self.lines.block(f"if {condition}:"):
            self.fail(self.error("PacketTooShort"))

    def here(self) -> str:
        """Return the text of the present offset."""
        return "at" if self.position is None else str(self.position)

    def forward(self, size: int | str) -> None:
        """Write that so many bytes are behind."""
        if self.position is not None and isinstance(size, int):
            self.position += size
        elif self.position is not None:
            self.lines.add(f"at = {self.position} + {size}")
            self.position = None
        elif size != 0:
            self.lines.add(f"at += {size}")

    def extract_next(self, target: Expression, varbit_bits: Expression | None) -> None:
        """Write an extraction into a header or the next element of a stack."""
        headers = self.extractable(target)
        varbit_size = None if varbit_bits is None else self.varbit_size(varbit_bits, headers[0])
        if isinstance(target, Named) and target.kind == "header":
            size = self.fixed_size(headers[0])
            if varbit_size is None:
                self.require(size)
            self.extract(headers[0], self.here(), varbit_size)
        else:
            size = self.extract_element(target, headers, varbit_size)
        self.forward(size)
        if varbit_size is not None:
            self.forward(varbit_size)

    def extract_element(self, target: Expression, headers: list[str], varbit_size: str | None) -> int:
        """Write an extraction into the next element of a stack, whichever that is."""
        assert isinstance(target, Named | LastField)
        stack = target.name if isinstance(target, Named) else target.stack
        count = self.scope.carry(Var(stack, NEXT))
        with self.lines.block(f"if {count} >= {len(headers)}:"):
            self.fail(self.error("StackOutOfBounds"))
        size = self.fixed_size(headers[0])
        if varbit_size is None:
            self.require(size)
        for position, header in enumerate(headers):
            with self.lines.block(f"{'el' if position else ''}if {count} == {position}:"):
                self.extract(header, self.here(), varbit_size)
        self.scope.fill(Var(stack, NEXT))
        self.lines.add(f"{count} += 1")
        return size

    def varbit_size(self, bits: Expression, header: str) -> str:
        """Write the checks of a varbit's width and return the name of its size in bytes."""
        self.lines.add(f"size_bits = {self.value(bits).text}")
        fixed = self.fixed_size(header)
        with self.lines.block("if size_bits & 7 or size_bits < 0:"):
            self.fail(self.error("ParserInvalidArgument"))
        longest = next(item.bits for item in self.scope.header(header).type.fields if item.varbit)
        with self.lines.block(f"if length - {self.here()} < {fixed} + (size_bits >> 3):"):
            self.fail(self.error("PacketTooShort"))
        with self.lines.block(f"if size_bits > {longest}:"):
            self.fail(self.error("HeaderTooShort"))
        self.lines.add("varbit_size = size_bits >> 3")
        return "varbit_size"

    def advance(self, bits: Expression) -> None:
        """Write that the parser passes over some bytes."""
        if isinstance(bits, Const) and bits.value % 8 == 0 and bits.value >= 0:
            self.require(bits.value // 8)
            self.forward(bits.value // 8)
            return
        self.lines.add(f"size_bits = {self.value(bits).text}")
        with self.lines.block("if size_bits & 7 or size_bits < 0:"):
            self.fail(self.error("ParserInvalidArgument"))
        self.require("(size_bits >> 3)")
        self.forward("(size_bits >> 3)")

    def assign(self, target: Expression, source: Expression) -> None:
        """target = source; a frame too short to look ahead in is an error though nobody needs what is there."""
        if isinstance(source, Lookahead) and not self.needs(target):
            self.value(source)
        super().assign(target, source)

    def lookahead(self, expression: Lookahead) -> Code:
        """Write the check that the bits are there and return their text."""
        first, skipped = divmod(expression.offset_bits, 8)
        size = -(-(skipped + expression.bits) // 8)
        self.require(first + size)
        start = f"{self.here()} + {first}" if first else self.here()
        if size == 1:
            text = f"frame[{start}]"
        else:
            text = f'int.from_bytes(frame[{start} : {self.here()} + {first + size}], "big")'
        spare = size * 8 - skipped - expression.bits
        code = Code(f"{text} >> {spare}" if spare else text, size * 8 - spare, atom=not spare)
        return masked(code, expression.bits)

    def select(self, state: ParserState, leave: Callable[[Node], None]) -> None:
        """Write the transition out of a state."""
        keys = [self.select_key(part, index) for index, part in enumerate(state.key)]
        written = 0
        for transition in state.transitions:
            condition = self.transition_condition(transition, keys)
            if condition is None:
                break
            with self.lines.block(f"{'el' if written else ''}if {condition}:"):
                leave(transition.next_state)
            written += 1
        default = next((item.next_state for item in state.transitions if _is_default(item)), None)
        if not written:
            leave(default)
            return
        with self.lines.block("else:"):
            leave(default)

    def select_key(self, part: Expression, index: int) -> Code:
        """Return the text of one field of a select's key."""
        code = self.value(part)
        if code.signed is not None:
            code = masked(code, code.signed)
        if isinstance(part, Lookahead) or not code.atom:
            name = f"select{index}_"
            self.lines.add(f"{name} = {code.text}")
            return Code(name, code.bits, atom=True)
        return code

    def transition_condition(self, transition: Transition, keys: list[Code]) -> str | None:
        """Return the text of when a transition is taken, None for always."""
        if transition.value_set is not None:
            members = self.scope.object("value set", transition.value_set)
            return f"{members}.holds({', '.join(key.text for key in keys)})"
        if transition.values is None:
            return None
        tests = []
        masks = transition.masks or (None,) * len(keys)
        for key, value, mask in zip(keys, transition.values, masks, strict=True):
            everything = (1 << (key.bits or 0)) - 1
            if mask is None or (key.bits is not None and mask & everything == everything):
                tests.append(f"{key.text} == {hex(value)}")
            elif mask:
                tests.append(f"{key.text} & {hex(mask)} == {hex(value & mask)}")
        return " and ".join(tests) or None


def _is_default(transition: Transition) -> bool:
    if transition.value_set is not None:
        return False
    return transition.values is None or (transition.masks is not None and not any(transition.masks))


def _successors(state: ParserState) -> list[Node]:
    found: list[Node] = []
    for transition in state.transitions:
        found.append(transition.next_state)
        if _is_default(transition):
            return found
    return [*found, None]
