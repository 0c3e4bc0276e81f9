"""Reads the parser: its states and where each of them goes."""

from __future__ import annotations

from collections.abc import Mapping

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
from tensorexpress.switch.program.budgets import LARGEST_HEADER, LARGEST_SELECT, beyond


class ParserReader:
    """Reads the states of a parser that may select on these value sets."""

    def __init__(self, headers: HeaderReader, expressions: ExpressionReader, value_sets: Mapping[str, int]):
        self._headers = headers
        self._expressions = expressions
        self._value_sets = value_sets

    def states(self, node: JsonNode) -> dict[str, ParserState]:
        """Return the states of a parser by name."""
        return {name: self._state(name, item) for name, item in node["parse_states"].distinct()}

    def _state(self, state: str, node: JsonNode) -> ParserState:
        key = tuple(self._expressions.expression(item) for item in node["transition_key"])
        if len(key) > LARGEST_SELECT:
            raise beyond(f"BMv2 JSON: {node.path}", len(key), LARGEST_SELECT, "parts in its key")
        return ParserState(
            name=state,
            steps=tuple(self._step(item) for item in node["parser_ops"]),
            key=key,
            transitions=tuple(self._transition(item, key) for item in node["transitions"]),
        )

    def _step(self, node: JsonNode) -> Primitive:
        op, parameters = node["op"].text(), node["parameters"]
        if op == "primitive":
            return self._expressions.primitive(parameters[0])
        if op == "shift":
            return Primitive("advance", (Const(8 * parameters[0].at_most(LARGEST_HEADER, "bytes")),))
        if op in ("extract", "extract_VL"):
            target, *length = parameters[0], *list(parameters)[1:]
            return Primitive(
                op, (self._extract_target(target), *(self._expressions.expression(item) for item in length))
            )
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
            bits = sum(self._width(part, node) for part in key)
            if bits != self._value_sets[name]:
                raise node.error(
                    f"has a key of {bits} bits; accepted: {self._value_sets[name]} of the value set {name!r}"
                )
            return Transition(None, None, name, next_state)
        if kind != "hexstr":
            raise node.error(f"is of type {kind!r}; accepted: default, hexstr, parse_vset")
        values = self._split(value, key)
        masks = None if node["mask"].value is None else self._split(node["mask"], key)
        return Transition(values, masks, None, next_state)

    def _split(self, node: JsonNode, key: tuple[Expression, ...]) -> tuple[int, ...]:
        """Cut a number of byte-padded fields into the numbers of the fields."""
        sizes = [(self._width(part, node) + 7) // 8 * 8 for part in key]
        parts, number = [], node.of_width(sum(sizes))
        for size in reversed(sizes):
            parts.append(number & ((1 << size) - 1))
            number >>= size
        return tuple(reversed(parts))

    def _width(self, expression: Expression, node: JsonNode) -> int:
        match expression:
            case FieldRef():
                return self._headers.field(expression).bits
            case LastField():
                return self._headers.last_field(expression, node).bits
            case Lookahead(_, bits):
                return bits
            case Operator("valid", _):
                return 1
        raise node.error("selects on something that is neither a field nor lookahead")
