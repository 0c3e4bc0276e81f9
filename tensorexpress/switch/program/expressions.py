"""P4 expressions as Python text. Numbers have no width while they are computed; a field that takes one wraps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.bmv2 import (
    Const,
    Expression,
    Field,
    FieldRef,
    LastField,
    Lookahead,
    Named,
    Operation,
    Parameter,
    RegisterCell,
)
from tensorexpress.switch.program.budgets import WIDEST_BITS
from tensorexpress.switch.program.scope import NEXT, VALID, Scope, Var

#: Text of an operand that is longer is computed before, so that no line grows with the depth of its expression.
_LONGEST_OPERAND = 500

_COMPARISONS = {"==", "!=", "<", "<=", ">", ">="}
_BOOLEAN = _COMPARISONS | {"and", "or", "not", "valid", "valid_union", "d2b"}
_ARITHMETIC = {"+", "-", "*", "&", "|", "^"}


@dataclass(frozen=True, slots=True)
class Code:
    """Python text of a value: `bits` bounds a value that is not negative, `signed` one that may be."""

    text: str
    bits: int | None = None
    signed: int | None = None
    atom: bool = False

    @property
    def inner(self) -> str:
        """The text as an operand of something else."""
        return self.text if self.atom else f"({self.text})"


def number(value: int) -> Code:
    """Return the text of a constant."""
    text = str(value) if -256 < value < 256 else hex(value)
    return Code(text, value.bit_length() if value >= 0 else None, value.bit_length() + 1, atom=value >= 0)


def masked(code: Code, bits: int) -> Code:
    """Return a value cut to an unsigned width."""
    if code.bits is not None and code.bits <= bits:
        return code
    return Code(f"{code.inner} & {hex((1 << bits) - 1)}", bits)


def wrapped(code: Code, item: Field) -> Code:
    """Return a value as a field stores it."""
    if not item.signed:
        return masked(code, item.bits)
    return _two_complement(code, item.bits)


def unsigned(code: Code, item: Field) -> Code:
    """Return a field's value as it stands in a key or on the wire."""
    return masked(code, item.bits) if item.signed else code


def _two_complement(code: Code, bits: int) -> Code:
    if (code.signed is not None and code.signed <= bits) or (code.bits is not None and code.bits < bits):
        return Code(code.text, code.bits, bits, code.atom)
    half = 1 << bits - 1
    return Code(f"({code.inner} + {hex(half)} & {hex(2 * half - 1)}) - {hex(half)}", None, bits)


class Expressions:
    """Writes expressions in one scope; `parameters` are the values of the action's parameters."""

    def __init__(self, scope: Scope):
        self.scope = scope
        self.parameters: Sequence[Code] = ()
        self.where = "the program"

    def value(self, expression: Expression) -> Code:
        """Return the text of a number."""
        match expression:
            case Const(value):
                return number(value)
            case FieldRef(header, name):
                return self.field(header, name)
            case Parameter(index):
                if index >= len(self.parameters):
                    raise self.unsupported(f"parameter {index}, which its action does not have")
                return self.parameters[index]
            case LastField():
                return self.last_field(expression)
            case RegisterCell(register, index):
                return self.register(register, self.value(index))
            case Lookahead():
                return self.lookahead(expression)
            case Operation():
                return self.operation(expression)
        raise self.unsupported(f"a {type(expression).__name__.lower()} where a number is expected")

    def bound(self, code: Code) -> Code:
        """Return a value that stands more than once: what has to be computed is, before, and has a name then.

        Computing it in vain does no harm: expressions change nothing and cannot fail.
        """
        if code.atom:
            return code
        name = self.scope.fresh("value", "")
        self.scope.lines.add(f"{name} = {code.text}")
        return Code(name, code.bits, code.signed, atom=True)

    def unsupported(self, what: str) -> ProgramError:
        """Return the error for something that cannot be run, with the place it stands in."""
        return ProgramError(f"{self.where} uses {what}; the embedded switch does not support that")

    def lookahead(self, expression: Lookahead) -> Code:
        """Only a parser looks ahead."""
        raise self.unsupported("lookahead outside the parser")

    def field(self, header: str, name: str) -> Code:
        """Return the text of a field."""
        found = self.scope.header(header).type.field(name)
        if found is None:
            raise self.unsupported(f"the field {header}.{name}, which is not there")
        text = self.scope.read(Var(header, name))
        if found.varbit:
            return Code(text, atom=True)
        return Code(text, None if found.signed else found.bits, found.bits if found.signed else None, atom=True)

    def last_header(self, reference: LastField) -> list[tuple[str | None, str]]:
        """Return the headers that the last element of a stack may be, each with the condition for it."""
        count = self.scope.read(Var(reference.stack, NEXT))
        headers = self.elements(reference.stack, reference.member)
        return [(f"{count} == {index + 1}", header) for index, header in enumerate(headers)]

    def elements(self, stack: str, member: str | None = None) -> list[str]:
        """Return the headers of a stack, or those of one member of a stack of unions."""
        program = self.scope.program
        if member is None:
            if stack not in program.stacks:
                raise self.unsupported(f"the stack {stack!r}, which is not there")
            return list(program.stacks[stack])
        unions = [program.unions[name] for name in program.union_stacks[stack]]
        return [union.headers[union.members.index(member)] for union in unions]

    def last_field(self, reference: LastField) -> Code:
        """Return the text of a field of the last element of a stack."""
        choices = [
            (condition, self.field(header, reference.field)) for condition, header in self.last_header(reference)
        ]
        return self.one_of(choices)

    def one_of(self, choices: Sequence[tuple[str | None, Code]]) -> Code:
        """Return the text of the first choice whose condition holds, 0 if none does."""
        if len(choices) == 1 and choices[0][0] is None:
            return choices[0][1]
        text = " else ".join(f"{code.inner} if {condition}" for condition, code in choices)
        widths = [code.bits for _, code in choices]
        bits = max(width or 0 for width in widths) if None not in widths else None
        signs = [code.signed or (None if code.bits is None else code.bits + 1) for _, code in choices]
        return Code(f"{text} else 0", bits, None if None in signs else max(sign or 0 for sign in signs))

    def register(self, name: str, index: Code) -> Code:
        """Return the text of a register's cell; a cell that is not there is 0."""
        info = self.scope.program.registers.get(name)
        if info is None:
            raise self.unsupported(f"the register {name!r}, which is not there")
        cells = self.scope.object("register", name)
        if index.bits is not None and 1 << index.bits <= info.size:
            return Code(f"{cells}[{index.text}]", info.bits, atom=True)
        if index.text.isdecimal() or index.text.startswith("0x"):
            return Code(f"{cells}[{index.text}]", info.bits, atom=True) if int(index.text, 0) < info.size else number(0)
        index = self.bound(index)
        guard = f"{index.inner} < {info.size}" if index.bits is not None else f"0 <= {index.inner} < {info.size}"
        return Code(f"{cells}[{index.text}] if {guard} else 0", info.bits)

    def headers(self, expression: Expression) -> list[tuple[str | None, str]]:
        """Return the headers that an expression may stand for, each with the condition for it."""
        match expression:
            case Named("header", name):
                return [(None, name)]
            case Operation("dereference_header_stack" | "dereference_stack", (Named(_, stack), index)):
                return self.indexed(self.elements(stack), index)
            case Operation("access_union_header", (union, Const(offset))):
                return [
                    (condition, self.scope.program.unions[name].headers[offset])
                    for condition, name in self.unions(union)
                ]
            case LastField():
                return self.last_header(expression)
        raise self.unsupported("an expression that is no header where one is expected")

    def unions(self, expression: Expression) -> list[tuple[str | None, str]]:
        """Return the unions that an expression may stand for, each with the condition for it."""
        match expression:
            case Named("header_union", name):
                return [(None, name)]
            case Operation("dereference_union_stack", (Named(_, stack), index)):
                return self.indexed(list(self.scope.program.union_stacks[stack]), index)
        raise self.unsupported("an expression that is no header union where one is expected")

    def indexed(self, names: list[str], index: Expression) -> list[tuple[str | None, str]]:
        """Return the elements that an index may choose; out of range there is none."""
        if isinstance(index, Const):
            return [(None, names[index.value])] if 0 <= index.value < len(names) else []
        text = self.bound(self.value(index)).text
        return [(f"{text} == {position}", name) for position, name in enumerate(names)]

    def targets(self, expression: Expression) -> list[tuple[str | None, FieldRef]]:
        """Return the fields that an assignment may go to, each with the condition for it."""
        match expression:
            case FieldRef():
                return [(None, expression)]
            case LastField():
                return [
                    (condition, FieldRef(header, expression.field))
                    for condition, header in self.last_header(expression)
                ]
            case Operation("access_field", (header, Const(offset))):
                return [
                    (condition, FieldRef(name, self.scope.header(name).type.fields[offset].name))
                    for condition, name in self.headers(header)
                ]
        raise self.unsupported("an assignment to something that is no field")

    def valid(self, header: str) -> str:
        """Return the text of a header's validity, which is 0 or 1."""
        return "1" if self.scope.header(header).metadata else self.scope.read(Var(header, VALID))

    def operation(self, expression: Operation) -> Code:
        """Return the text of an operator applied to numbers."""
        op, operands = expression.op, expression.operands
        if op in _BOOLEAN:
            return self.truth(expression)
        match op:
            case "access_field":
                return self.one_of(
                    [(condition, self.field(*_parts(target))) for condition, target in self.targets(expression)]
                )
            case "b2d":
                return self.truth(operands[0])
            case "?":
                yes, no = self.operand(operands[1]), self.operand(operands[2])
                return self.either(self.condition(operands[0]), yes, no)
            case "last_stack_index" | "size_stack":
                return self.stack_size(operands[0], 1 if op == "last_stack_index" else 0)
            case "two_comp_mod" | "sat_cast" | "usat_cast":
                return self.cast(op, self.operand(operands[0]), operands[1])
        values = [self.operand(operand) for operand in operands]
        if len(values) == 1:
            return self.unary(op, values[0])
        if op in ("<<", ">>"):
            return self.shift(op, values[0], values[1], operands[1])
        if op in ("/", "%"):
            return self.divide(op, values[0], values[1])
        if op in _ARITHMETIC:
            return self.arithmetic(op, values[0], values[1], operands)
        raise self.unsupported(f"the operator {op!r}")

    def operand(self, expression: Expression) -> Code:
        """Return the text of a number within an expression."""
        code = self.value(expression)
        return code if len(code.text) <= _LONGEST_OPERAND else self.bound(code)

    def either(self, condition: str, yes: Code, no: Code) -> Code:
        """Return the text of a choice between two values."""
        bits = None if yes.bits is None or no.bits is None else max(yes.bits, no.bits)
        signed = None if yes.signed is None or no.signed is None else max(yes.signed, no.signed)
        return Code(f"{yes.inner} if {condition} else {no.inner}", bits, signed)

    def truth(self, expression: Expression) -> Code:
        """Return the text of a boolean as 0 or 1."""
        match expression:
            case Const(value):
                return number(value)
            case Operation("d2b", (operand,)):
                code = self.value(operand)
                if code.bits is not None and code.bits <= 1:
                    return code
            case Operation("valid", (header,)):
                return self.one_of(
                    [(condition, Code(self.valid(name), 1, atom=True)) for condition, name in self.headers(header)]
                )
        return Code(f"1 if {self.condition(expression)} else 0", 1)

    def inner_truth(self, expression: Expression) -> str:
        """Return the text of a boolean as 0 or 1 that is an operand of something else."""
        code = self.truth(expression)
        return code.inner if len(code.text) <= _LONGEST_OPERAND else self.bound(code).text

    def stack_size(self, stack: Expression, less: int) -> Code:
        """Return the text of a stack's size, or of its last index."""
        assert isinstance(stack, Named)
        text = self.scope.read(Var(stack.name, NEXT))
        return Code(f"{text} - 1") if less else Code(text, 16, atom=True)

    def cast(self, op: str, code: Code, width: Expression) -> Code:
        """Return the text of a cast to a width, saturating or not."""
        assert isinstance(width, Const)
        bits = width.value
        if op == "two_comp_mod":
            return _two_complement(code, bits)
        if op == "usat_cast":
            if code.bits is not None:
                return Code(f"min({code.text}, {hex((1 << bits) - 1)})", bits, atom=True)
            return Code(f"max(0, min({code.text}, {hex((1 << bits) - 1)}))", bits, atom=True)
        half = 1 << bits - 1
        return Code(f"max(-{hex(half)}, min({code.text}, {hex(half - 1)}))", None, bits, atom=True)

    def unary(self, op: str, operand: Code) -> Code:
        """Return the text of a sign or a complement."""
        if op not in ("+", "-", "~"):
            raise self.unsupported(f"the unary operator {op!r}")
        return operand if op == "+" else Code(f"{op}{operand.inner}")

    def shift(self, op: str, left: Code, right: Code, constant: Expression) -> Code:
        """Return the text of a shift; no amount is too large."""
        if isinstance(constant, Const):
            amount = min(max(constant.value, 0), WIDEST_BITS)
            if left.bits is None:
                return Code(f"{left.inner} {op} {amount}", None, left.signed if op == ">>" else None)
            return Code(f"{left.inner} {op} {amount}", max(left.bits + (amount if op == "<<" else -amount), 0))
        if op == ">>":
            amount_text = right.inner if right.bits is not None else f"max(0, {right.text})"
            return Code(f"{left.inner} >> {amount_text}", left.bits, left.signed)
        if right.bits is not None and right.bits <= 8:
            bits = None if left.bits is None else left.bits + (1 << right.bits) - 1
            return Code(f"{left.inner} << {right.inner}", bits)
        return Code(f"{left.inner} << max(0, min({right.text}, {WIDEST_BITS}))")

    def divide(self, op: str, left: Code, right: Code) -> Code:
        """Return the text of a quotient or remainder; by zero it is 0."""
        python = "//" if op == "/" else "%"
        if right.text.isdecimal() and int(right.text):
            return Code(f"{left.inner} {python} {right.text}", left.bits)
        right = self.bound(right)
        return Code(f"{left.inner} {python} {right.text} if {right.text} else 0", left.bits)

    def arithmetic(self, op: str, left: Code, right: Code, operands: Sequence[Expression]) -> Code:
        """Return the text of a sum, product or bitwise operation, with what is known of its width."""
        bits: int | None = None
        if op == "&":
            known = [code.bits for code in (left, right) if code.bits is not None]
            bits = min(known, default=None)
            for code, mask in ((left, operands[1]), (right, operands[0])):
                if (
                    isinstance(mask, Const)
                    and code.bits is not None
                    and mask.value & (1 << code.bits) - 1 == (1 << code.bits) - 1
                ):
                    return code
        elif left.bits is not None and right.bits is not None:
            if op == "+":
                bits = max(left.bits, right.bits) + 1
            elif op == "*":
                bits = left.bits + right.bits
            elif op in "|^":
                bits = max(left.bits, right.bits)
        return Code(f"{left.inner} {op} {right.inner}", bits)

    def condition(self, expression: Expression) -> str:
        """Return the text of a boolean."""
        match expression:
            case Const(value):
                return "True" if value else "False"
            case Operation("d2b", (operand,)):
                return self.operand(operand).inner
            case Operation("not", (operand,)):
                return f"not {self.inner_condition(operand)}"
            case Operation("and" | "or" as op, (left, right)):
                return f"{self.inner_condition(left)} {op} {self.inner_condition(right)}"
            case Operation("valid"):
                return self.truth(expression).inner
            case Operation("valid_union", (union,)):
                return self.inner_or(union)
            case Operation("==" | "!=" as op, (left, right)):
                return self.equality(op, left, right)
            case Operation(op, (left, right)) if op in _COMPARISONS:
                return f"{self.operand(left).inner} {op} {self.operand(right).inner}"
            case Operation("?", (condition, yes, no)):
                choice = self.inner_condition(condition)
                return f"{self.inner_condition(yes)} if {choice} else {self.inner_condition(no)}"
        return self.value(expression).inner

    def inner_condition(self, expression: Expression) -> str:
        """Return the text of a boolean as an operand of something else."""
        text = self.condition(expression)
        if len(text) > _LONGEST_OPERAND:
            return self.bound(Code(text)).text
        return text if text.isidentifier() else f"({text})"

    def inner_or(self, union: Expression) -> str:
        """Return the text of whether any header of a union is valid."""
        cases = [
            (condition, " or ".join(self.valid(header) for header in self.scope.program.unions[name].headers))
            for condition, name in self.unions(union)
        ]
        return " or ".join(
            f"({text})" if condition is None else f"({condition} and ({text}))" for condition, text in cases
        )

    def equality(self, op: str, left: Expression, right: Expression) -> str:
        """Return the text of a comparison of numbers, booleans, headers or unions."""
        if _is_boolean(left) or _is_boolean(right):
            return f"{self.inner_truth(left)} {op} {self.inner_truth(right)}"
        if isinstance(left, Named) and left.kind in ("header", "header_union"):
            same = self.same_header(left, right) if left.kind == "header" else self.same_union(left, right)
            return same if op == "==" else f"not ({same})"
        if isinstance(left, Operation) and left.op in ("dereference_header_stack", "access_union_header"):
            same = self.same_header(left, right)
            return same if op == "==" else f"not ({same})"
        return f"{self.operand(left).inner} {op} {self.operand(right).inner}"

    def same_header(self, left: Expression, right: Expression) -> str:
        """Return the text of whether two headers are valid and equal."""
        cases = []
        for first_condition, first in self.headers(left):
            for second_condition, second in self.headers(right):
                parts = [part for part in (first_condition, second_condition) if part]
                cases.append(" and ".join([*parts, self.equal_headers(first, second)]))
        return " or ".join(f"({case})" for case in cases) or "False"

    def equal_headers(self, first: str, second: str) -> str:
        """Return the text of whether two given headers are valid and equal."""
        tests = [self.valid(first), self.valid(second)]
        for item in self.scope.header(first).type.fields:
            tests.append(f"{self.scope.read(Var(first, item.name))} == {self.scope.read(Var(second, item.name))}")
        return " and ".join(tests)

    def same_union(self, left: Expression, right: Expression) -> str:
        """Return the text of whether two unions have equal valid headers."""
        ((_, first),) = self.unions(left)
        ((_, second),) = self.unions(right)
        unions = self.scope.program.unions
        pairs = zip(unions[first].headers, unions[second].headers, strict=True)
        return " or ".join(f"({self.equal_headers(one, other)})" for one, other in pairs)


def _parts(reference: FieldRef) -> tuple[str, str]:
    return reference.header, reference.field


def _is_boolean(expression: Expression) -> bool:
    match expression:
        case Operation("?", (_, yes, _)):
            return _is_boolean(yes)
        case Operation(op):
            return op in _BOOLEAN
    return False
