"""Reads what is beside parser and controls: hashes and checksums, arrays, action profiles, lists of fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensorexpress.switch.program.bmv2.document import JsonNode
from tensorexpress.switch.program.bmv2.expressions import ExpressionReader
from tensorexpress.switch.program.bmv2.headers import HeaderReader
from tensorexpress.switch.program.bmv2.values import (
    ArrayInfo,
    Calculation,
    CalculationInput,
    Checksum,
    Const,
    FieldList,
    FieldRef,
    Named,
    Operator,
    ProfileInfo,
)
from tensorexpress.switch.program.budgets import MOST_CELLS, MOST_REGISTER_BITS, PLAIN_MEMORY, beyond, state_bytes


class ExternReader:
    """Reads what actions and tables refer to by name."""

    def __init__(self, headers: HeaderReader, expressions: ExpressionReader):
        self._headers = headers
        self._expressions = expressions

    def calculation(self, node: JsonNode, name: str | None = None) -> Calculation:
        """Return a hash, under its own name or the one given."""
        return Calculation(
            name or node["name"].text(),
            node["algo"].text(),
            tuple(self._calculation_input(item) for item in node["input"]),
        )

    def _calculation_input(self, node: JsonNode) -> CalculationInput:
        kind = node["type"].text()
        if kind == "payload":
            return CalculationInput(kind, None)
        if kind == "header":
            return CalculationInput(kind, Named(kind, self._headers.header(node["value"])))
        value = self._expressions.expression(node)
        if isinstance(value, Const):
            return CalculationInput("const", value, node["bitwidth"].width())
        if isinstance(value, FieldRef):
            return CalculationInput("field", value, self._headers.field(value).bits)
        if value == Operator("valid", getattr(value, "operands", ())):
            return CalculationInput("field", value, 1)
        raise node.error(f"is of type {kind!r}; accepted in a calculation: field, hexstr, header, payload")

    def checksum(self, node: JsonNode, calculations: Mapping[str, Calculation]) -> Checksum:
        """Return a checksum over one of these calculations."""
        name = node["calculation"].text()
        if name not in calculations:
            raise node.error(f"refers to {name!r}, a calculation that the program does not have")
        condition = node.get("if_cond")
        return Checksum(
            self._headers.field_ref(node["target"]),
            name,
            node.get("verify", True).flag(),
            node.get("update", True).flag(),
            None if condition.value is None else self._expressions.expression(condition),
        )

    def profile(self, node: JsonNode) -> ProfileInfo:
        """Return an action profile."""
        selector = node.get("selector")
        name = node["name"].text()
        return ProfileInfo(
            name, node["max_size"].number(), None if selector.value is None else self.calculation(selector, name)
        )

    def arrays(self, root: JsonNode, kinds: Iterable[str]) -> dict[str, dict[str, ArrayInfo]]:
        """Return the arrays of these kinds; refuse those that together would take too much memory."""
        arrays = {kind: {name: self._array(node) for name, node in root[f"{kind}_arrays"].distinct()} for kind in kinds}
        _check_cells(arrays)
        return arrays

    def _array(self, node: JsonNode) -> ArrayInfo:
        direct = node.get("is_direct", False).flag()
        result = node.get("result_target")
        return ArrayInfo(
            name=node["name"].text(),
            size=0 if direct else node["size"].at_most(MOST_CELLS, "cells"),
            bits=node.get("bitwidth", 0).width(),
            in_bytes=node.get("type").value == "bytes",
            table=node["binding"].text() if direct else None,
            result=self._headers.field_ref(result) if result.value else None,
        )

    def field_list(self, node: JsonNode) -> FieldList:
        """Return a list of fields."""
        return FieldList(
            node["id"].number(),
            node["name"].text(),
            tuple(self._expressions.expression(item) for item in node["elements"]),
        )


def _check_cells(arrays: Mapping[str, Mapping[str, ArrayInfo]]) -> None:
    cells = sum(array.size for kind in arrays.values() for array in kind.values())
    if cells > MOST_CELLS:
        raise beyond("the program", cells, MOST_CELLS, "cells in all registers, counters and meters")
    bits = sum(array.size * array.bits for array in arrays["register"].values())
    if bits > MOST_REGISTER_BITS:
        raise beyond("the program", bits, MOST_REGISTER_BITS, "bits in all registers")
    size_bytes, most_bytes = state_bytes(arrays), PLAIN_MEMORY.program_bytes
    if size_bytes > most_bytes:
        raise beyond("the program", size_bytes, most_bytes, "bytes of memory in all registers, counters and meters")
