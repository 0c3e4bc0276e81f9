"""P4 expressions in native code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.bmv2.values import (
    Const,
    Expression,
    FieldRef,
    LastField,
    Lookahead,
    Named,
    Operator,
    Parameter,
    RegisterCell,
)
from tensorexpress.switch.program.codegen.expressions import BOOLEAN, COMPARISONS, is_boolean
from tensorexpress.switch.program.codegen.references import References
from tensorexpress.switch.program.native.code import IrFunction
from tensorexpress.switch.program.native.headers import HeaderCode
from tensorexpress.switch.program.native.layout import WordCell, words_of
from tensorexpress.switch.program.native.numbers import Arithmetic, Num, constant, truth
from tensorexpress.switch.program.native.regions import Extent, Region
from tensorexpress.switch.program.native.unit import Unit
from tensorexpress.switch.program.native.unsupported import Unsupported


class ExpressionCode:
    """Writes numbers and conditions in one function. `lookahead` is there in a parser alone.

    Where `low` is given, only that many bits of a number count: it may be any number that has these.
    """

    def __init__(self, unit: Unit, code: IrFunction, numbers: Arithmetic, headers: HeaderCode):
        self._unit = unit
        self._code = code
        self._numbers = numbers
        self._headers = headers
        self.parameters: Sequence[int] = ()
        self.lookahead: Callable[[Lookahead], Num] | None = None
        self.references: References[Num] = References(
            unit.program,
            count=lambda stack: Num(code.load(unit.layout.next[stack]), 64),
            index=self.number,
            equals=lambda number, value: numbers.compare("==", number, constant(value)),
            unsupported=_refused,
        )

    def number(self, expression: Expression, low: int | None = None) -> Num:
        """Return a number."""
        match expression:
            case Const(value):
                found = constant(value)
            case FieldRef(header, name):
                found = self._headers.read(header, name)
            case Parameter(index):
                found = self._parameter(index)
            case LastField():
                found = self._one_of(
                    [(condition, header, expression.field) for condition, header in self._last(expression)]
                )
            case RegisterCell(register, index):
                found = self.register(register, self.number(index))
            case Lookahead():
                if self.lookahead is None:
                    raise Unsupported("it looks ahead outside the parser")
                found = self.lookahead(expression)
            case Operator():
                found = self.operation(expression, low)
            case _:
                raise Unsupported(f"a {type(expression).__name__.lower()} stands where a number is expected")
        return self._numbers.cut(found, low)

    def _last(self, reference: LastField) -> list[tuple[str | None, str]]:
        return self.references.last_header(reference)

    def _one_of(self, choices: list[tuple[str | None, str, str]]) -> Num:
        """Return the field whose condition holds, 0 if none does."""

        def reader(header: str, name: str) -> Callable[[], Num]:
            return lambda: self._headers.read(header, name)

        return self._numbers.one_of([(condition, reader(header, name)) for condition, header, name in choices])

    def _parameter(self, index: int) -> Num:
        """Return an argument of the action; each takes whole words."""
        bits = self.parameters[index]
        offset = 8 * sum(words_of(width) for width in self.parameters[:index])
        return self._headers.read_cell(WordCell(offset, words_of(bits)), bits, "%args") if bits else constant(0)

    def register(self, name: str, index: Num) -> Num:
        """Return a register's cell; a cell that is not there is 0."""
        info = self._unit.program.arrays["register"][name]
        if info.bits == 0 or info.size == 0:
            return constant(0)
        region = Region(f"register {name!r}", Extent(8 * words_of(info.bits)))
        cell, is_there = self.cell(self._unit.layout.registers[name], index, info.size, region)
        found = self._headers.read_cell(WordCell(0, words_of(info.bits)), info.bits, cell)
        return self._numbers.choose(is_there, found, constant(0))

    def cell(self, pointer: int, index: Num, size: int, region: Region) -> tuple[str, str]:
        """Return a pointer to a cell of an array, and the condition that it is the one meant.

        Where the index is beyond the array, the pointer is to its first cell. The region is that of one cell.
        """
        assert size
        assert region.size
        code = self._code
        is_there = self._numbers.compare("<", index, constant(size))
        if index.signed:
            is_there = code.op(f"and i1 {is_there}, {self._numbers.compare('>=', index, constant(0))}")
        safe = code.op(f"select i1 {is_there}, i64 {self._numbers.fit(index, 64)}, i64 0")
        offset = code.op(f"mul i64 {safe}, {region.size.constant}")
        return code.element(offset, code.pointer(pointer, region), region), is_there

    def operation(self, expression: Operator, low: int | None = None) -> Num:
        """Return the result of an operator."""
        op, operands = expression.op, expression.operands
        if op in BOOLEAN:
            return truth(self.condition(expression))
        match op:
            case "access_field":
                targets = self.references.targets(expression)
                return self._one_of([(condition, to.header, to.field) for condition, to in targets])
            case "b2d":
                return truth(self.condition(operands[0]))
            case "?":
                yes, no = self.number(operands[1], low), self.number(operands[2], low)
                return self._numbers.choose(self.condition(operands[0]), yes, no)
            case "last_stack_index" | "size_stack":
                assert isinstance(operands[0], Named)
                count = Num(self._code.load(self._unit.layout.next[operands[0].name]), 64)
                small = self._numbers.narrow(count, 16)
                return self._numbers.binary("-", small, constant(1), None) if op == "last_stack_index" else small
            case "two_comp_mod" | "sat_cast" | "usat_cast":
                return self._cast(op, *operands)
            case "<<" | ">>":
                return self._shift(op, *operands, low=low)
            case "/" | "%":
                return self._numbers.divide(op, self.number(operands[0]), self.number(operands[1]))
        if len(operands) == 1:
            return self._unary(op, self.number(operands[0], low), low)
        return self._binary(op, *operands, low=low)

    def _cast(self, op: str, operand: Expression, width: Expression) -> Num:
        assert isinstance(width, Const)
        bits = width.value
        if op == "two_comp_mod":
            return self._numbers.wrap(self.number(operand, bits), bits, signed=True)
        if op == "usat_cast":
            return self._numbers.limit(self.number(operand), 0, (1 << bits) - 1)
        half = 1 << bits - 1
        return self._numbers.limit(self.number(operand), -half, half - 1)

    def _shift(self, op: str, left: Expression, right: Expression, *, low: int | None) -> Num:
        amount = self.number(right)
        if op == "<<":
            return self._numbers.shift_left(self.number(left, low), amount, low)
        needed = None if low is None or amount.known is None else low + max(amount.known, 0)
        return self._numbers.shift_right(self.number(left, needed), amount)

    def _binary(self, op: str, left: Expression, right: Expression, *, low: int | None) -> Num:
        if op not in ("+", "-", "*", "&", "|", "^"):
            raise Unsupported(f"it uses the operator {op!r}")
        if op == "&":  # what a mask hides need not be computed
            masks = [side.value for side in (left, right) if isinstance(side, Const) and side.value >= 0]
            low = min([max(mask.bit_length(), 1) for mask in masks] + ([low] if low is not None else []), default=low)
        return self._numbers.binary(op, self.number(left, low), self.number(right, low), low)

    def _unary(self, op: str, number: Num, low: int | None) -> Num:
        match op:
            case "+":
                return number
            case "-":
                return self._numbers.binary("-", constant(0), number, low)
            case "~":
                return self._numbers.complement(number, low)
        raise Unsupported(f"it uses the unary operator {op!r}")

    def condition(self, expression: Expression) -> str:
        """Return a condition, a number of one bit."""
        code = self._code
        match expression:
            case Const(value):
                return "true" if value else "false"
            case Operator("not", (operand,)):
                return code.op(f"xor i1 {self.condition(operand)}, true")
            case Operator("and" | "or" as op, (left, right)):
                return code.op(f"{op} i1 {self.condition(left)}, {self.condition(right)}")
            case Operator("valid", (header,)):
                return self._any([(condition, [name]) for condition, name in self.references.headers(header)])
            case Operator("valid_union", (union,)):
                unions = self._unit.program.unions
                return self._any(
                    [(condition, list(unions[name].headers)) for condition, name in self.references.unions(union)]
                )
            case Operator("==" | "!=" as op, (left, right)):
                same = self._equality(left, right)
                return same if op == "==" else code.op(f"xor i1 {same}, true")
            case Operator(op, (left, right)) if op in COMPARISONS:
                return self._numbers.compare(op, self.number(left), self.number(right))
            case Operator("?", (condition, yes, no)):
                choices = f"i1 {self.condition(yes)}, i1 {self.condition(no)}"
                return code.op(f"select i1 {self.condition(condition)}, {choices}")
            case Operator("d2b", (operand,)):
                return self._numbers.compare("!=", self.number(operand), constant(0))
        return self._numbers.compare("!=", self.number(expression), constant(0))

    def _any(self, cases: list[tuple[str | None, list[str]]]) -> str:
        """Return the condition that any header of the case that holds is valid."""
        found = "false"
        for condition, headers in cases:
            for header in headers:
                valid = self._headers.valid(header)
                if condition is not None:
                    valid = self._code.op(f"and i1 {condition}, {valid}")
                found = self._code.op(f"or i1 {found}, {valid}")
        return found

    def _equality(self, left: Expression, right: Expression) -> str:
        """Return the condition that numbers, booleans, varbits, headers or unions are equal."""
        if is_boolean(left) or is_boolean(right):
            unequal = self._code.op(f"xor i1 {self.condition(left)}, {self.condition(right)}")
            return self._code.op(f"xor i1 {unequal}, true")
        if isinstance(left, Named) and left.kind == "header_union":
            return self._same_union(left, right)
        if (isinstance(left, Named) and left.kind == "header") or (
            isinstance(left, Operator) and left.op in ("dereference_header_stack", "access_union_header")
        ):
            return self._same_header(left, right)
        if self._is_varbit(left) and self._is_varbit(right):
            return self._headers.same_varbit(left, right)
        return self._numbers.compare("==", self.number(left), self.number(right))

    def _is_varbit(self, operand: Expression) -> TypeGuard[FieldRef]:
        return isinstance(operand, FieldRef) and self._unit.program.field(operand).varbit

    def _same_header(self, left: Expression, right: Expression) -> str:
        found = "false"
        for first_condition, first in self.references.headers(left):
            for second_condition, second in self.references.headers(right):
                same = self._headers.equal(first, second)
                for condition in (first_condition, second_condition):
                    if condition is not None:
                        same = self._code.op(f"and i1 {condition}, {same}")
                found = self._code.op(f"or i1 {found}, {same}")
        return found

    def _same_union(self, left: Expression, right: Expression) -> str:
        ((_, first),) = self.references.unions(left)
        ((_, second),) = self.references.unions(right)
        unions = self._unit.program.unions
        found = "false"
        for one, other in zip(unions[first].headers, unions[second].headers, strict=True):
            found = self._code.op(f"or i1 {found}, {self._headers.equal(one, other)}")
        return found


def _refused(what: str) -> ProgramError:
    raise Unsupported(f"it uses {what}")
