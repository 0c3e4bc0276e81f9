"""Reads expressions and primitives, and bounds the numbers that expressions may compute."""

from __future__ import annotations

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.bmv2.document import JsonNode
from tensorexpress.switch.program.bmv2.headers import HeaderReader
from tensorexpress.switch.program.bmv2.values import (
    VALIDITY,
    Const,
    Expression,
    FieldRef,
    LastField,
    Lookahead,
    Named,
    Operator,
    Parameter,
    Primitive,
    RegisterCell,
    Several,
    Text,
)
from tensorexpress.switch.program.budgets import (
    DEEPEST_EXPRESSION,
    LARGEST_HEADER,
    LONGEST_TEXT,
    WIDEST_BITS,
    WIDEST_NUMBER_BITS,
    beyond,
)
from tensorexpress.switch.program.externs import ARRAYS

#: Operators whose second operand is the width of the result.
_CASTS = frozenset({"two_comp_mod", "sat_cast", "usat_cast"})

#: What an expression may name, beside headers.
_NAMED = {"header_stack", "header_union", "header_union_stack", "calculation", *(f"{kind}_array" for kind in ARRAYS)}


class ExpressionReader:
    """Reads expressions over the headers of a document."""

    def __init__(self, headers: HeaderReader):
        self._headers = headers
        self._depth = 0
        #: Bits that the result of an operator may have, by the identity of its value.
        self._results: dict[int, int] = {}

    def expression(self, node: JsonNode) -> Expression:
        """Return the expression at a place."""
        self._depth += 1
        if self._depth > DEEPEST_EXPRESSION:
            raise ProgramError(f"the program nests more than {DEEPEST_EXPRESSION} expressions; use a variable between")
        found = self._read(node)
        self._depth -= 1
        return found

    def _read(self, node: JsonNode) -> Expression:
        kind, value = node["type"].text(), node["value"]
        match kind:
            case "expression":
                return self._operator(value) if value.get("op").value is not None else self.expression(value)
            case "hexstr":
                bits = node.get("bitwidth")
                return Const(value.hexadecimal(), None if bits.value is None else bits.width())
            case "bool":
                return Const(int(value.flag()), 1)
            case "string":
                return Text(value.text(LONGEST_TEXT))
            case "field":
                return self._field(value)
            case "stack_field":
                return self._last_field(LastField(value[0].text(), value[1].text()), node)
            case "union_stack_field":
                return self._last_field(LastField(value[0].text(), value[2].text(), value[1].text()), node)
            case "lookahead":
                return Lookahead(value[0].at_most(8 * LARGEST_HEADER, "bits"), value[1].width())
            case "runtime_data" | "local":
                return Parameter(value.number())
            case "register":
                return RegisterCell(value[0].text(), self.expression(value[1]))
            case "parameters_vector" | "field_list":
                # p4c writes an empty object for an empty list.
                return Several(tuple(self.expression(item) for item in value) if value.value not in ({}, None) else ())
            case "header":
                return Named(kind, self._headers.header(value))
            case _ if kind in _NAMED:
                return Named(kind, value.text())
        raise node.error(f"is of type {kind!r}, which the embedded switch does not support")

    def _field(self, value: JsonNode) -> Expression:
        if isinstance(value[0].value, dict):
            header: Expression = self._operator(value[0])
        else:
            header = Named("header", self._headers.header(value[0]))
        if value[1].text() == VALIDITY:
            return Operator("valid", (header,))
        return self._headers.field_ref(value)

    def _last_field(self, reference: LastField, node: JsonNode) -> LastField:
        self._headers.last_field(reference, node)
        return reference

    def _operator(self, node: JsonNode) -> Expression:
        op = node["op"].text()
        if op in ("access_field", "access_union_header"):
            return Operator(op, (self.expression(node["left"]), Const(node["right"].number())))
        parts = [node[part] for part in (["cond"] if op == "?" else []) + ["left", "right"]]
        operator = Operator(op, tuple(self.expression(part) for part in parts if part.value is not None))
        if not operator.operands:
            raise node.error("is an operator without operands")
        bits = self._result_bits(op, operator.operands)
        if bits > WIDEST_NUMBER_BITS:
            raise beyond(f"BMv2 JSON: {node.path}: the result of {op!r}", bits, WIDEST_NUMBER_BITS, "bits")
        self._results[id(operator)] = bits
        return operator

    def _result_bits(self, op: str, operands: tuple[Expression, ...]) -> int:
        """Return how many bits the result of an operator may have: numbers have no width while they are computed."""
        bits = [self._bits(operand) for operand in operands]
        constants = [operand.value for operand in operands[1:] if isinstance(operand, Const)]
        if op in _CASTS:
            if not constants or not 1 <= constants[0] <= WIDEST_BITS:
                raise ProgramError(f"BMv2 JSON: {op!r} to another width than 1 to {WIDEST_BITS} bits")
            return constants[0]
        if op == "*":
            return sum(bits)
        if op == "<<":
            return bits[0] + min(max(constants[0], 0) if constants else WIDEST_BITS, WIDEST_BITS)
        if op == "&" and constants and constants[0] >= 0:
            return min(bits)
        return max(bits, default=0) + (op in ("+", "-"))

    def _bits(self, expression: Expression) -> int:
        match expression:
            case Const(value):
                return value.bit_length()
            case FieldRef():
                return self._headers.field(expression).bits
            case Operator():
                return self._results.get(id(expression), 1)
        return WIDEST_BITS

    def primitive(self, node: JsonNode) -> Primitive:
        """Return one step of an action or of a parser state."""
        return Primitive(node["op"].text(), tuple(self.expression(item) for item in node["parameters"]))
