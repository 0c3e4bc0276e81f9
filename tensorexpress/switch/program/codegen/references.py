"""Which headers, unions and fields an expression may stand for, each with the condition for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.bmv2.values import (
    Bmv2Program,
    Const,
    Expression,
    FieldRef,
    LastField,
    Named,
    Operator,
)

#: How generated code writes a number.
_Number = TypeVar("_Number")


class References(Generic[_Number]):
    """Finds what expressions refer to. Conditions are text of the code that is generated.

    `count` gives the size of a stack and `index` an index into one, as numbers that may be used more than once;
    `equals` writes the condition that such a number is a given one.
    """

    def __init__(
        self,
        program: Bmv2Program,
        *,
        count: Callable[[str], _Number],
        index: Callable[[Expression], _Number],
        equals: Callable[[_Number, int], str],
        unsupported: Callable[[str], ProgramError],
    ):
        self._program = program
        self._count = count
        self._index = index
        self._equals = equals
        self._unsupported = unsupported

    def last_header(self, reference: LastField) -> list[tuple[str | None, str]]:
        """Return the headers that the last element of a stack may be, each with the condition for it."""
        count = self._count(reference.stack)
        headers = self.elements(reference.stack, reference.member)
        return [(self._equals(count, index + 1), header) for index, header in enumerate(headers)]

    def elements(self, stack: str, member: str | None = None) -> list[str]:
        """Return the headers of a stack, or those of one member of a stack of unions."""
        program = self._program
        if member is None:
            return list(program.stacks[stack])
        unions = [program.unions[name] for name in program.union_stacks[stack]]
        return [union.headers[union.members.index(member)] for union in unions]

    def extractable(self, target: Expression) -> list[str]:
        """Return the headers that an extraction may fill: one, or the elements of a stack."""
        match target:
            case Named("header", name):
                return [name]
            case Named("header_stack", name):
                return self.elements(name)
            case LastField(stack, _, member):
                return self.elements(stack, member)
        raise self._unsupported("an extraction into something that is no header")

    def headers(self, expression: Expression) -> list[tuple[str | None, str]]:
        """Return the headers that an expression may stand for, each with the condition for it."""
        match expression:
            case Named("header", name):
                return [(None, name)]
            case Operator("dereference_header_stack" | "dereference_stack", (Named(_, stack), index)):
                return self._indexed(self.elements(stack), index)
            case Operator("access_union_header", (union, Const(offset))):
                return [
                    (condition, self._program.unions[name].headers[offset]) for condition, name in self.unions(union)
                ]
            case LastField():
                return self.last_header(expression)
        raise self._unsupported("an expression that is no header where one is expected")

    def unions(self, expression: Expression) -> list[tuple[str | None, str]]:
        """Return the unions that an expression may stand for, each with the condition for it."""
        match expression:
            case Named("header_union", name):
                return [(None, name)]
            case Operator("dereference_union_stack", (Named(_, stack), index)):
                return self._indexed(list(self._program.union_stacks[stack]), index)
        raise self._unsupported("an expression that is no header union where one is expected")

    def _indexed(self, names: list[str], index: Expression) -> list[tuple[str | None, str]]:
        """Return the elements that an index may choose; out of range there is none."""
        if isinstance(index, Const):
            return [(None, names[index.value])] if 0 <= index.value < len(names) else []
        number = self._index(index)
        return [(self._equals(number, position), name) for position, name in enumerate(names)]

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
            case Operator("access_field", (header, Const(offset))):
                return [
                    (condition, FieldRef(name, self._program.headers[name].type.fields[offset].name))
                    for condition, name in self.headers(header)
                ]
        raise self._unsupported("an assignment to something that is no field")
