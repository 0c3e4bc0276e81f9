"""Generated code of the primitives that assign: fields, whole headers, stacks and unions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tensorexpress.switch.program.bmv2.values import Const, Expression, FieldRef, Lookahead, Named, Operator
from tensorexpress.switch.program.codegen.context import Context
from tensorexpress.switch.program.codegen.expressions import ExpressionWriter
from tensorexpress.switch.program.codegen.headers import HeaderWriter
from tensorexpress.switch.program.codegen.snippets import Snippet, wrapped
from tensorexpress.switch.program.codegen.variables import NEXT, Var, decision

#: P4_14's primitives for arithmetic, which p4c emits for programs of that version.
P4_14 = {
    "add_to_field": "+",
    "subtract_from_field": "-",
    "add": "+",
    "subtract": "-",
    "bit_xor": "^",
    "bit_or": "|",
    "bit_and": "&",
    "shift_left": "<<",
    "shift_right": ">>",
}


class AssignmentWriter:
    """Writes assignments."""

    def __init__(self, context: Context, expressions: ExpressionWriter, headers: HeaderWriter):
        self._context = context
        self._scope = context.scope
        self._lines = context.lines
        self._expressions = expressions
        self._references = expressions.references
        self._headers = headers
        self.primitives: dict[str, Callable[..., None]] = {
            "assign": self._assign,
            "modify_field": self._assign,
            "set": self._assign,
            "assign_VL": self._assign,
            "assign_header": self._assign_header,
            "copy_header": self._assign_header,
            "assign_union": self._assign_union,
            "assign_header_stack": self._assign_stack,
            "assign_union_stack": self._assign_stack,
            "push": lambda stack, count: self._push(stack, count, 1),
            "pop": lambda stack, count: self._push(stack, count, -1),
            "add_header": self._add_header,
            "remove_header": self._remove_header,
            **{name: self._compute(op) for name, op in P4_14.items()},
        }

    def _one_case(self, cases: list[tuple[list[str | None], Callable[[], None]]]) -> None:
        """Write alternatives that exclude each other; one without a condition is the only one."""
        word = "if"
        for conditions, write in cases:
            known = [condition for condition in conditions if condition]
            if not known:
                write()
                continue
            with self._lines.block(f"{word} {' and '.join(known)}:"):
                write()
            word = "elif"

    def _store(self, targets: list[tuple[str | None, FieldRef]], value: Callable[[FieldRef], str]) -> None:
        """Write an assignment to whichever target is meant."""
        needed = [target for target in targets if self._scope.write(Var(target[1].header, target[1].field)) is not None]
        self._one_case(
            [([condition], partial(self._store_one, target, value)) for condition, target in needed],
        )

    def _store_one(self, target: FieldRef, value: Callable[[FieldRef], str]) -> None:
        """Write an assignment to one field."""
        self._context.put(Var(target.header, target.field), value(target))

    def set_field(self, target: Expression, code: Snippet) -> None:
        """Write that a field takes a value."""
        targets = self._references.targets(target)
        if (
            len(targets) > 1
            and not code.atom
            and any(self._scope.is_live(Var(to.header, to.field)) for _, to in targets)
        ):
            self._lines.add(f"data = {code.text}")
            code = Snippet("data", code.bits, code.signed, atom=True)
        self._store(targets, lambda to: wrapped(code, self._scope.program.field(to)).text)

    def needs(self, target: Expression) -> bool:
        """Whether anybody needs what is stored in a field; the expression is not yet written."""
        return any(self._scope.is_live(Var(to.header, to.field)) for _, to in self._references.targets(target))

    def _assign(self, target: Expression, source: Expression) -> None:
        """target = source."""
        if not self.needs(target):
            if isinstance(source, Lookahead) and self._context.lookahead is not None:
                # A frame too short to look ahead in is an error though nobody needs what is there.
                self._expressions.value(source)
            return
        found = self._scope.program.field(self._references.targets(target)[0][1])
        if found.varbit:
            self._store(self._references.targets(target), lambda to: self._expressions.value(source).text)
        else:
            self.set_field(target, self._expressions.value(source))

    def _compute(self, op: str) -> Callable[..., None]:
        """Return the writer of one of P4_14's primitives for arithmetic: target = left op right."""

        def write(target: Expression, left: Expression, right: Expression | None = None) -> None:
            operands = (target, left) if right is None else (left, right)
            self.set_field(target, self._expressions.operation(Operator(op, operands)))

        return write

    def _assign_header(self, target: Expression, source: Expression) -> None:
        """Copy a header, validity included."""
        self._one_case(
            [
                ([target_condition, source_condition], partial(self._copy_member, into, out_of))
                for target_condition, into in self._references.headers(target)
                for source_condition, out_of in self._references.headers(source)
            ]
        )

    def _copy_member(self, into: str, out_of: str) -> None:
        """Write a copy of a header; from one that is not valid nothing is taken but that."""
        if self._scope.header(into).metadata:
            self._headers.copy([(into, out_of)])
            return
        with self._lines.block(f"if {self._expressions.valid(out_of)}:"):
            self._headers.copy([(into, out_of)])
            self._headers.mark_valid(into)
        with self._lines.block("else:"):
            self._headers.mark_invalid(into)

    def _copy_members(self, pairs: list[tuple[str, str]]) -> None:
        """Write copies of headers one after the other."""
        for into, out_of in pairs:
            self._copy_member(into, out_of)

    def _assign_union(self, target: Expression, source: Expression) -> None:
        """Copy all headers of a union."""
        unions = self._scope.program.unions
        self._one_case(
            [
                (
                    [target_condition, source_condition],
                    partial(self._copy_members, list(zip(unions[into].headers, unions[out_of].headers, strict=True))),
                )
                for target_condition, into in self._references.unions(target)
                for source_condition, out_of in self._references.unions(source)
            ]
        )

    def _assign_stack(self, target: Expression, source: Expression) -> None:
        """Copy all elements of a stack, and how many there are."""
        assert isinstance(target, Named)
        assert isinstance(source, Named)
        elements = zip(
            self._scope.program.stack_elements(target.name),
            self._scope.program.stack_elements(source.name),
            strict=True,
        )
        self._copy_members([pair for into, out_of in elements for pair in zip(into, out_of, strict=True)])
        if self._scope.is_live(Var(target.name, NEXT)):
            self._context.put(Var(target.name, NEXT), self._scope.carry(Var(source.name, NEXT)))

    def _push(self, stack: Expression, count: Expression, direction: int) -> None:
        """Push or pop a constant number of elements."""
        assert isinstance(stack, Named)
        assert isinstance(count, Const)
        if count.value:
            self._headers.shift_stack(stack.name, direction * count.value)

    def _add_header(self, header: Expression) -> None:
        """Make a header valid; one that was not is all zeros."""
        self._one_case(
            [
                ([condition, f"not {self._expressions.valid(name)}"], partial(self._add_one, name))
                for condition, name in self._references.headers(header)
                if not self._scope.header(name).metadata
            ]
        )

    def _add_one(self, name: str) -> None:
        """Write that a header that was not valid is so."""
        self._headers.clear(name)
        self._headers.mark_valid(name)
        self._resize(self._headers.fixed_size(name))

    def _remove_header(self, header: Expression) -> None:
        """Make a header invalid."""
        self._one_case(
            [
                ([condition, self._expressions.valid(name)], partial(self._remove_one, name))
                for condition, name in self._references.headers(header)
                if not self._scope.header(name).metadata
            ]
        )

    def _remove_one(self, name: str) -> None:
        """Write that a header that was valid is not."""
        self._resize(-self._headers.fixed_size(name))
        self._headers.mark_invalid(name)

    def _resize(self, more_bytes: int) -> None:
        """Write that the packet has more or fewer bytes for whoever sees it next: egress, or egress again."""
        if self._scope.stage == "egress" and not self._clones_at_egress():
            return
        name = self._scope.fill(decision("size"))
        if name is not None and more_bytes:
            self._scope.carry(decision("size"))
            self._lines.add(f"{name} {'+' if more_bytes > 0 else '-'}= {abs(more_bytes)}")

    def _clones_at_egress(self) -> bool:
        """Whether any action clones a packet that has been through egress."""
        return "clone_egress_pkt_to_egress" in self._scope.program.primitives
