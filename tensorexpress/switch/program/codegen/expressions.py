"""P4 expressions as Python text."""

from __future__ import annotations

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
from tensorexpress.switch.program.codegen.context import Context
from tensorexpress.switch.program.codegen.references import References
from tensorexpress.switch.program.codegen.snippets import (
    Snippet,
    arithmetic,
    cast,
    either,
    number,
    one_of,
    shift,
)
from tensorexpress.switch.program.codegen.variables import NEXT, VALID, Var

#: Text of an operand that is longer is computed before, so that no line grows with the depth of its expression.
_LONGEST_OPERAND = 500

COMPARISONS = {"==", "!=", "<", "<=", ">", ">="}
BOOLEAN = COMPARISONS | {"and", "or", "not", "valid", "valid_union", "d2b"}
_ARITHMETIC = {"+", "-", "*", "&", "|", "^"}


class ExpressionWriter:
    """Writes numbers and booleans; what has to be computed before is added to the lines of the context."""

    def __init__(self, context: Context):
        self._context = context
        self._scope = context.scope
        self.references: References[str] = References(
            context.scope.program,
            count=lambda stack: self._scope.read(Var(stack, NEXT)),
            index=lambda index: context.bound(self.value(index)).text,
            equals=lambda number, value: f"{number} == {value}",
            unsupported=context.unsupported,
        )

    def value(self, expression: Expression) -> Snippet:
        """Return the text of a number."""
        match expression:
            case Const(value):
                return number(value)
            case FieldRef(header, name):
                return self.field(header, name)
            case Parameter(index):
                return self._context.parameters[index]
            case LastField():
                return self._last_field(expression)
            case RegisterCell(register, index):
                return self.register(register, self.value(index))
            case Lookahead():
                return self._lookahead(expression)
            case Operator():
                return self.operation(expression)
        raise self._context.unsupported(f"a {type(expression).__name__.lower()} where a number is expected")

    def field(self, header: str, name: str) -> Snippet:
        """Return the text of a field."""
        found = self._scope.program.field(FieldRef(header, name))
        text = self._scope.read(Var(header, name))
        if found.varbit:
            return Snippet(text, atom=True)
        return Snippet(text, None if found.signed else found.bits, found.bits if found.signed else None, atom=True)

    def _last_field(self, reference: LastField) -> Snippet:
        """Return the text of a field of the last element of a stack."""
        choices = [
            (condition, self.field(header, reference.field))
            for condition, header in self.references.last_header(reference)
        ]
        return one_of(choices)

    def register(self, name: str, index: Snippet) -> Snippet:
        """Return the text of a register's cell; a cell that is not there is 0."""
        info = self._scope.program.arrays["register"][name]
        cells = self._scope.identifiers.object("register", name)
        if index.bits is not None and 1 << index.bits <= info.size:
            return Snippet(f"{cells}[{index.text}]", info.bits, atom=True)
        if index.text.isdecimal() or index.text.startswith("0x"):
            return (
                Snippet(f"{cells}[{index.text}]", info.bits, atom=True) if int(index.text, 0) < info.size else number(0)
            )
        index = self._context.bound(index)
        guard = f"{index.inner} < {info.size}" if index.bits is not None else f"0 <= {index.inner} < {info.size}"
        return Snippet(f"{cells}[{index.text}] if {guard} else 0", info.bits)

    def valid(self, header: str) -> str:
        """Return the text of a header's validity, which is 0 or 1."""
        return "1" if self._scope.header(header).metadata else self._scope.read(Var(header, VALID))

    def operation(self, expression: Operator) -> Snippet:
        """Return the text of an operator applied to numbers."""
        op, operands = expression.op, expression.operands
        if op in BOOLEAN:
            return self.truth(expression)
        match op:
            case "access_field":
                return one_of(
                    [
                        (condition, self.field(*_parts(target)))
                        for condition, target in self.references.targets(expression)
                    ]
                )
            case "b2d":
                return self.truth(operands[0])
            case "?":
                yes, no = self._operand(operands[1]), self._operand(operands[2])
                return either(self.condition(operands[0]), yes, no)
            case "last_stack_index" | "size_stack":
                return self._stack_size(operands[0], 1 if op == "last_stack_index" else 0)
            case "two_comp_mod" | "sat_cast" | "usat_cast":
                return cast(op, self._operand(operands[0]), operands[1])
        values = [self._operand(operand) for operand in operands]
        if len(values) == 1:
            return self._unary(op, values[0])
        if op in ("<<", ">>"):
            return shift(op, values[0], values[1], operands[1])
        if op in ("/", "%"):
            return self._divide(op, values[0], values[1])
        if op in _ARITHMETIC:
            return arithmetic(op, values[0], values[1], operands)
        raise self._context.unsupported(f"the operator {op!r}")

    def _operand(self, expression: Expression) -> Snippet:
        """Return the text of a number within an expression."""
        code = self.value(expression)
        return code if len(code.text) <= _LONGEST_OPERAND else self._context.bound(code)

    def truth(self, expression: Expression) -> Snippet:
        """Return the text of a boolean as 0 or 1."""
        match expression:
            case Const(value):
                return number(value)
            case Operator("d2b", (operand,)):
                code = self.value(operand)
                if code.bits is not None and code.bits <= 1:
                    return code
            case Operator("valid", (header,)):
                return one_of(
                    [
                        (condition, Snippet(self.valid(name), 1, atom=True))
                        for condition, name in self.references.headers(header)
                    ]
                )
        return Snippet(f"1 if {self.condition(expression)} else 0", 1)

    def _inner_truth(self, expression: Expression) -> str:
        """Return the text of a boolean as 0 or 1 that is an operand of something else."""
        code = self.truth(expression)
        return code.inner if len(code.text) <= _LONGEST_OPERAND else self._context.bound(code).text

    def _stack_size(self, stack: Expression, less: int) -> Snippet:
        """Return the text of a stack's size, or of its last index."""
        assert isinstance(stack, Named)
        text = self._scope.read(Var(stack.name, NEXT))
        return Snippet(f"{text} - 1") if less else Snippet(text, 16, atom=True)

    def _divide(self, op: str, left: Snippet, right: Snippet) -> Snippet:
        """Return the text of a quotient or remainder; by zero it is 0."""
        python = "//" if op == "/" else "%"
        if right.text.isdecimal() and int(right.text):
            return Snippet(f"{left.inner} {python} {right.text}", left.bits)
        right = self._context.bound(right)
        return Snippet(f"{left.inner} {python} {right.text} if {right.text} else 0", left.bits)

    def condition(self, expression: Expression) -> str:
        """Return the text of a boolean."""
        match expression:
            case Const(value):
                return "True" if value else "False"
            case Operator("d2b", (operand,)):
                return self._operand(operand).inner
            case Operator("not", (operand,)):
                return f"not {self.inner_condition(operand)}"
            case Operator("and" | "or" as op, (left, right)):
                return f"{self.inner_condition(left)} {op} {self.inner_condition(right)}"
            case Operator("valid"):
                return self.truth(expression).inner
            case Operator("valid_union", (union,)):
                return self._inner_or(union)
            case Operator("==" | "!=" as op, (left, right)):
                return self._equality(op, left, right)
            case Operator(op, (left, right)) if op in COMPARISONS:
                return f"{self._operand(left).inner} {op} {self._operand(right).inner}"
            case Operator("?", (condition, yes, no)):
                choice = self.inner_condition(condition)
                return f"{self.inner_condition(yes)} if {choice} else {self.inner_condition(no)}"
        return self.value(expression).inner

    def inner_condition(self, expression: Expression) -> str:
        """Return the text of a boolean as an operand of something else."""
        text = self.condition(expression)
        if len(text) > _LONGEST_OPERAND:
            return self._context.bound(Snippet(text)).text
        return text if text.isidentifier() else f"({text})"

    def _inner_or(self, union: Expression) -> str:
        """Return the text of whether any header of a union is valid."""
        cases = [
            (condition, " or ".join(self.valid(header) for header in self._scope.program.unions[name].headers))
            for condition, name in self.references.unions(union)
        ]
        return " or ".join(
            f"({text})" if condition is None else f"({condition} and ({text}))" for condition, text in cases
        )

    def _equality(self, op: str, left: Expression, right: Expression) -> str:
        """Return the text of a comparison of numbers, booleans, headers or unions."""
        if is_boolean(left) or is_boolean(right):
            return f"{self._inner_truth(left)} {op} {self._inner_truth(right)}"
        if isinstance(left, Named) and left.kind in ("header", "header_union"):
            same = self._same_header(left, right) if left.kind == "header" else self._same_union(left, right)
            return same if op == "==" else f"not ({same})"
        if isinstance(left, Operator) and left.op in ("dereference_header_stack", "access_union_header"):
            same = self._same_header(left, right)
            return same if op == "==" else f"not ({same})"
        return f"{self._operand(left).inner} {op} {self._operand(right).inner}"

    def _same_header(self, left: Expression, right: Expression) -> str:
        """Return the text of whether two headers are valid and equal."""
        cases = []
        for first_condition, first in self.references.headers(left):
            for second_condition, second in self.references.headers(right):
                parts = [part for part in (first_condition, second_condition) if part]
                cases.append(" and ".join([*parts, self._equal_headers(first, second)]))
        return " or ".join(f"({case})" for case in cases) or "False"

    def _equal_headers(self, first: str, second: str) -> str:
        """Return the text of whether two given headers are valid and equal."""
        tests = [self.valid(first), self.valid(second)]
        for item in self._scope.header(first).type.fields:
            tests.append(f"{self._scope.read(Var(first, item.name))} == {self._scope.read(Var(second, item.name))}")
        return " and ".join(tests)

    def _same_union(self, left: Expression, right: Expression) -> str:
        """Return the text of whether two unions have equal valid headers."""
        ((_, first),) = self.references.unions(left)
        ((_, second),) = self.references.unions(right)
        unions = self._scope.program.unions
        pairs = zip(unions[first].headers, unions[second].headers, strict=True)
        return " or ".join(f"({self._equal_headers(one, other)})" for one, other in pairs)

    def _unary(self, op: str, operand: Snippet) -> Snippet:
        """Return the text of a sign or a complement."""
        return operand if op == "+" else Snippet(f"{op}{operand.inner}")

    def _lookahead(self, expression: Lookahead) -> Snippet:
        """Return the text of bits of the frame; only a parser looks ahead."""
        assert self._context.lookahead is not None
        return self._context.lookahead(expression)


def _parts(reference: FieldRef) -> tuple[str, str]:
    return reference.header, reference.field


def is_boolean(expression: Expression) -> bool:
    """Whether an expression is a boolean, which is compared as one."""
    match expression:
        case Operator("?", (_, yes, _)):
            return is_boolean(yes)
        case Operator(op):
            return op in BOOLEAN
    return False
