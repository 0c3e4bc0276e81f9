"""Generated code of the parser: states as nested statements, or as a loop where a state can come again."""

from __future__ import annotations

from collections.abc import Callable

from tensorexpress.switch.program.bmv2.values import (
    Const,
    Expression,
    LastField,
    Lookahead,
    Named,
    ParserState,
    Primitive,
    Transition,
)
from tensorexpress.switch.program.codegen.flow import Node, graph, write_bounded_loop
from tensorexpress.switch.program.codegen.section import Section
from tensorexpress.switch.program.codegen.snippets import Snippet, masked
from tensorexpress.switch.program.codegen.variables import NEXT, Var


class ParserWriter:
    """Writes the parser. `_position` is the offset in the frame where it is known when the program is loaded."""

    def __init__(self, section: Section):
        self._context = section.context
        self._scope = section.context.scope
        self._lines = section.context.lines
        self._expressions = section.expressions
        self._references = section.expressions.references
        self._headers = section.headers
        self._actions = section.actions
        self._context.lookahead = self._lookahead
        self._states = self._scope.program.states
        successors = {name: state.successors for name, state in self._states.items()}
        self._flow = graph(self._scope.work, self._scope.program.first_state, successors)
        self._nested = self._flow.is_nestable()
        self._offsets = self._find_offsets() if self._nested else {}
        self._position: int | None = None

    def parser(self) -> None:
        """Write the whole parser. It leaves the offset of the payload in `at` and the error in `parser_error`."""
        errors = self._scope.program.errors
        self._lines.add(f"parser_error = {errors.get('NoError', 0)}")
        if self._flow.start is None or not self._nested:
            self._lines.add("at = 0")
        if self._flow.start is None:
            return
        if self._nested:
            with self._lines.block("while True:"):
                self._flow.write_nested(self._lines, self._state)
                self._lines.add("break")
            return
        write_bounded_loop(self._scope, self._lines, self._flow, self._state)

    def _error(self, name: str) -> int:
        """Return the number of an error; 1 where the program does not declare it."""
        return self._scope.program.errors.get(name, 1)

    def _find_offsets(self) -> dict[str, int | None]:
        """Return where each state starts in the frame, None where that depends on the packet."""
        found: dict[str, set[int | None]] = {name: set() for name in self._states}
        if self._flow.start is not None:
            found[self._flow.start].add(0)
        for name in self._flow.order or ():
            starts = found[name]
            start = next(iter(starts)) if len(starts) == 1 else None
            end = self._end(start, self._states[name])
            for successor in self._states[name].successors:
                if successor is not None:
                    found[successor].add(end)
        return {name: next(iter(starts)) if len(starts) == 1 else None for name, starts in found.items()}

    def _end(self, start: int | None, state: ParserState) -> int | None:
        for step in state.steps:
            if start is None or step.op == "extract_VL":
                return None
            if step.op == "extract":
                start += self._headers.fixed_size(self._references.extractable(step.parameters[0])[0])
            elif step.op == "advance":
                bits = step.parameters[0]
                if not isinstance(bits, Const) or bits.value % 8:
                    return None
                start += bits.value // 8
        return start

    def _state(self, name: str, go: Callable[[Node], None]) -> None:
        """Write one state."""
        state = self._states[name]
        self._context.where = f"parser state {name!r}"
        self._position = self._offsets.get(name)
        for step in state.steps:
            self._step(step)
        after = self._position

        def leave(successor: Node) -> None:
            self._position = after
            if after is not None and (successor is None or self._offsets.get(successor) is None):
                self._lines.add(f"at = {after}")
            go(successor)

        self._select(state, leave)

    def _step(self, step: Primitive) -> None:
        """Write one operation of a state."""
        match step.op:
            case "extract":
                self._extract_next(step.parameters[0], None)
            case "extract_VL":
                self._extract_next(step.parameters[0], step.parameters[1])
            case "advance":
                self._advance(step.parameters[0])
            case "verify":
                with self._lines.block(f"if not {self._expressions.inner_condition(step.parameters[0])}:"):
                    self._fail(self._expressions.value(step.parameters[1]).text)
            case _:
                self._actions.primitive(step)

    def _fail(self, error: int | str) -> None:
        """Write that parsing ends here with an error."""
        self._lines.add(f"parser_error = {error}")
        if self._position is not None:
            self._lines.add(f"at = {self._position}")
        self._lines.add("break")

    def _require(self, size: int | str) -> None:
        """Write the check that so many bytes are left."""
        if size == 0:
            return
        if self._position is not None and isinstance(size, int):
            condition = f"length < {self._position + size}"
        else:
            condition = f"length - {self._here()} < {size}"
        with self._lines.block(f"if {condition}:"):
            self._fail(self._error("PacketTooShort"))

    def _here(self) -> str:
        """Return the text of the present offset."""
        return "at" if self._position is None else str(self._position)

    def _forward(self, size: int | str) -> None:
        """Write that so many bytes are behind."""
        if self._position is not None and isinstance(size, int):
            self._position += size
        elif self._position is not None:
            self._lines.add(f"at = {self._position} + {size}")
            self._position = None
        elif size != 0:
            self._lines.add(f"at += {size}")

    def _extract_next(self, target: Expression, varbit_bits: Expression | None) -> None:
        """Write an extraction into a header or the next element of a stack."""
        headers = self._references.extractable(target)
        varbit_size = None if varbit_bits is None else self._varbit_size(varbit_bits, headers[0])
        if isinstance(target, Named) and target.kind == "header":
            size = self._headers.fixed_size(headers[0])
            if varbit_size is None:
                self._require(size)
            self._headers.extract(headers[0], self._here(), varbit_size)
        else:
            size = self._extract_element(target, headers, varbit_size)
        self._forward(size)
        if varbit_size is not None:
            self._forward(varbit_size)

    def _extract_element(self, target: Expression, headers: list[str], varbit_size: str | None) -> int:
        """Write an extraction into the next element of a stack, whichever that is."""
        assert isinstance(target, Named | LastField)
        stack = target.name if isinstance(target, Named) else target.stack
        count = self._scope.carry(Var(stack, NEXT))
        with self._lines.block(f"if {count} >= {len(headers)}:"):
            self._fail(self._error("StackOutOfBounds"))
        size = self._headers.fixed_size(headers[0])
        if varbit_size is None:
            self._require(size)
        for position, header in enumerate(headers):
            with self._lines.block(f"{'el' if position else ''}if {count} == {position}:"):
                self._headers.extract(header, self._here(), varbit_size)
        self._scope.fill(Var(stack, NEXT))
        self._lines.add(f"{count} += 1")
        return size

    def _varbit_size(self, bits: Expression, header: str) -> str:
        """Write the checks of a varbit's width and return the name of its size in bytes."""
        self._lines.add(f"size_bits = {self._expressions.value(bits).text}")
        fixed = self._headers.fixed_size(header)
        with self._lines.block("if size_bits & 7 or size_bits < 0:"):
            self._fail(self._error("ParserInvalidArgument"))
        (longest,) = (item.bits for item in self._scope.header(header).type.fields if item.varbit)
        with self._lines.block(f"if length - {self._here()} < {fixed} + (size_bits >> 3):"):
            self._fail(self._error("PacketTooShort"))
        with self._lines.block(f"if size_bits > {longest}:"):
            self._fail(self._error("HeaderTooShort"))
        self._lines.add("varbit_size = size_bits >> 3")
        return "varbit_size"

    def _advance(self, bits: Expression) -> None:
        """Write that the parser passes over some bytes."""
        if isinstance(bits, Const) and bits.value % 8 == 0 and bits.value >= 0:
            self._require(bits.value // 8)
            self._forward(bits.value // 8)
            return
        self._lines.add(f"size_bits = {self._expressions.value(bits).text}")
        with self._lines.block("if size_bits & 7 or size_bits < 0:"):
            self._fail(self._error("ParserInvalidArgument"))
        self._require("(size_bits >> 3)")
        self._forward("(size_bits >> 3)")

    def _lookahead(self, expression: Lookahead) -> Snippet:
        """Write the check that the bits are there and return their text."""
        first, skipped = divmod(expression.offset_bits, 8)
        size = -(-(skipped + expression.bits) // 8)
        self._require(first + size)
        start = f"{self._here()} + {first}" if first else self._here()
        if size == 1:
            text = f"frame[{start}]"
        else:
            text = f'int.from_bytes(frame[{start} : {self._here()} + {first + size}], "big")'
        spare = size * 8 - skipped - expression.bits
        code = Snippet(f"{text} >> {spare}" if spare else text, size * 8 - spare, atom=not spare)
        return masked(code, expression.bits)

    def _select(self, state: ParserState, leave: Callable[[Node], None]) -> None:
        """Write the transition out of a state."""
        keys = [self._select_key(part, index) for index, part in enumerate(state.key)]
        written = 0
        for transition in state.transitions:
            condition = self._transition_condition(transition, keys)
            if condition is None:
                break
            with self._lines.block(f"{'el' if written else ''}if {condition}:"):
                leave(transition.next_state)
            written += 1
        default = next((item.next_state for item in state.transitions if item.is_default), None)
        if not written:
            leave(default)
            return
        with self._lines.block("else:"):
            leave(default)

    def _select_key(self, part: Expression, index: int) -> Snippet:
        """Return the text of one field of a select's key."""
        code = self._expressions.value(part)
        if code.signed is not None:
            code = masked(code, code.signed)
        if isinstance(part, Lookahead) or not code.atom:
            name = f"select{index}_"
            self._lines.add(f"{name} = {code.text}")
            return Snippet(name, code.bits, atom=True)
        return code

    def _transition_condition(self, transition: Transition, keys: list[Snippet]) -> str | None:
        """Return the text of when a transition is taken, None for always."""
        if transition.value_set is not None:
            members = self._scope.identifiers.object("value set", transition.value_set)
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
