"""Reads the parser: its states and where each of them goes."""

from __future__ import annotations

from collections.abc import Mapping

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.bmv2.document import JsonNode
from tensorexpress.switch.program.bmv2.expressions import ExpressionReader
from tensorexpress.switch.program.bmv2.headers import HeaderReader
from tensorexpress.switch.program.bmv2.values import (
    Const,
    Expression,
    FieldRef,
    LastField,
    Lookahead,
    Named,
    Operator,
    ParserState,
    Primitive,
    Transition,
)
from tensorexpress.switch.program.budgets import LARGEST_SELECT, beyond


class ParserReader:
    """Reads the states of a parser that may select on these value sets."""

    def __init__(self, headers: HeaderReader, expressions: ExpressionReader, value_sets: Mapping[str, int]):
        self._headers = headers
        self._expressions = expressions
        self._value_sets = value_sets

    def states(self, node: JsonNode) -> dict[str, ParserState]:
        """Return the states of a parser by name."""
        return {item["name"].text(): self._state(item) for item in node["parse_states"]}

    def _state(self, node: JsonNode) -> ParserState:
        key = tuple(self._expressions.expression(item) for item in node["transition_key"])
        if len(key) > LARGEST_SELECT:
            raise beyond(f"BMv2 JSON: {node.path}", len(key), LARGEST_SELECT, "parts in its key")
        return ParserState(
            name=node["name"].text(),
            steps=tuple(self._step(item) for item in node["parser_ops"]),
            key=key,
            transitions=tuple(self._transition(item, key) for item in node["transitions"]),
        )

    def _step(self, node: JsonNode) -> Primitive:
        op, parameters = node["op"].text(), list(node["parameters"])
        if op == "primitive":
            return self._expressions.primitive(parameters[0])
        if op == "shift":
            return Primitive("advance", (Const(8 * parameters[0].number()),))
        if op in ("extract", "extract_VL"):
            target, length = parameters[0], [self._expressions.expression(item) for item in parameters[1:]]
            return Primitive(op, (self._extract_target(target), *length))
        if op in ("set", "verify", "advance"):
            return Primitive(op, tuple(self._expressions.expression(item) for item in parameters))
        raise node.error(f"is the parser operation {op!r}, which the embedded switch does not support")

    def _extract_target(self, node: JsonNode) -> Expression:
        kind, value = node["type"].text(), node["value"]
        if kind == "regular":
            return Named("header", self._headers.header(value))
        if kind == "stack":
            return Named("header_stack", value.text())
        if kind == "union_stack":
            return LastField(value[0].text(), "", value[1].text())
        raise node.error(f"is of type {kind!r}; accepted: regular, stack, union_stack")

    def _transition(self, node: JsonNode, key: tuple[Expression, ...]) -> Transition:
        value, next_state = node["value"], node["next_state"].optional_text()
        # Older compilers wrote no type; the word itself or nothing then stands for the default.
        kind = node.get("type", "default" if value.value in (None, "default") else "hexstr").text()
        if kind == "default":
            return Transition(None, None, None, next_state)
        if kind == "parse_vset":
            name = value.text()
            if name not in self._value_sets:
                raise node.error(f"refers to {name!r}, a value set that the program does not have")
            return Transition(None, None, name, next_state)
        if kind != "hexstr":
            raise node.error(f"is of type {kind!r}; accepted: default, hexstr, parse_vset")
        values = self._split(value.hexadecimal(), key)
        masks = None if node["mask"].value is None else self._split(node["mask"].hexadecimal(), key)
        return Transition(values, masks, None, next_state)

    def _split(self, number: int, key: tuple[Expression, ...]) -> tuple[int, ...]:
        """Cut a number of byte-padded fields into the numbers of the fields."""
        parts = []
        for part in reversed(key):
            size = (self._width(part) + 7) // 8 * 8
            parts.append(number & ((1 << size) - 1))
            number >>= size
        return tuple(reversed(parts))

    def _width(self, expression: Expression) -> int:
        headers = self._headers
        match expression:
            case FieldRef(header, name):
                found = headers.headers[header].type.field(name)
            case LastField(stack, name, None):
                found = headers.headers[headers.stacks[stack][0]].type.field(name)
            case LastField(stack, name, member):
                union = headers.unions[headers.union_stacks[stack][0]]
                found = headers.headers[union.headers[union.members.index(str(member))]].type.field(name)
            case Lookahead(_, bits):
                return bits
            case Operator("valid", _):
                return 1
            case _:
                raise ProgramError("BMv2 JSON: a parser selects on something that is neither a field nor lookahead")
        assert found is not None
        return found.bits
