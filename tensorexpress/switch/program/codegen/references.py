"""Which headers, unions and fields an expression may stand for, each with the condition for it."""

from __future__ import annotations

from collections.abc import Callable

from tensorexpress.switch.program.bmv2.values import Const, Expression, FieldRef, LastField, Named, Operator
from tensorexpress.switch.program.codegen.context import Context
from tensorexpress.switch.program.codegen.snippets import Snippet
from tensorexpress.switch.program.codegen.variables import NEXT, Var


class References:
    """Finds what expressions refer to; `value` writes the index of a stack."""

    def __init__(self, context: Context, value: Callable[[Expression], Snippet]):
        self._context = context
        self._scope = context.scope
        self._value = value

    def last_header(self, reference: LastField) -> list[tuple[str | None, str]]:
        """Return the headers that the last element of a stack may be, each with the condition for it."""
        count = self._scope.read(Var(reference.stack, NEXT))
        headers = self.elements(reference.stack, reference.member)
        return [(f"{count} == {index + 1}", header) for index, header in enumerate(headers)]

    def elements(self, stack: str, member: str | None = None) -> list[str]:
        """Return the headers of a stack, or those of one member of a stack of unions."""
        program = self._scope.program
        if member is None:
            if stack not in program.stacks:
                raise self._context.unsupported(f"the stack {stack!r}, which is not there")
            return list(program.stacks[stack])
        unions = [program.unions[name] for name in program.union_stacks[stack]]
        return [union.headers[union.members.index(member)] for union in unions]

    def headers(self, expression: Expression) -> list[tuple[str | None, str]]:
        """Return the headers that an expression may stand for, each with the condition for it."""
        match expression:
            case Named("header", name):
                return [(None, name)]
            case Operator("dereference_header_stack" | "dereference_stack", (Named(_, stack), index)):
                return self._indexed(self.elements(stack), index)
            case Operator("access_union_header", (union, Const(offset))):
                return [
                    (condition, self._scope.program.unions[name].headers[offset])
                    for condition, name in self.unions(union)
                ]
            case LastField():
                return self.last_header(expression)
        raise self._context.unsupported("an expression that is no header where one is expected")

    def unions(self, expression: Expression) -> list[tuple[str | None, str]]:
        """Return the unions that an expression may stand for, each with the condition for it."""
        match expression:
            case Named("header_union", name):
                return [(None, name)]
            case Operator("dereference_union_stack", (Named(_, stack), index)):
                return self._indexed(list(self._scope.program.union_stacks[stack]), index)
        raise self._context.unsupported("an expression that is no header union where one is expected")

    def _indexed(self, names: list[str], index: Expression) -> list[tuple[str | None, str]]:
        """Return the elements that an index may choose; out of range there is none."""
        if isinstance(index, Const):
            return [(None, names[index.value])] if 0 <= index.value < len(names) else []
        text = self._context.bound(self._value(index)).text
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
            case Operator("access_field", (header, Const(offset))):
                return [
                    (condition, FieldRef(name, self._scope.header(name).type.fields[offset].name))
                    for condition, name in self.headers(header)
                ]
        raise self._context.unsupported("an assignment to something that is no field")
