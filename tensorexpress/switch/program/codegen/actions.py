"""Generated code of actions: sequences of primitives, with the jumps that p4c lowers conditions to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tensorexpress.errors import ProgramError, unknown
from tensorexpress.switch.program.bmv2.values import ActionInfo, Const, Expression, Primitive
from tensorexpress.switch.program.codegen.context import Context
from tensorexpress.switch.program.codegen.expressions import ExpressionWriter
from tensorexpress.switch.program.codegen.flow import Node, graph, write_bounded_loop
from tensorexpress.switch.program.codegen.snippets import Snippet


class ActionWriter:
    """Writes actions; `primitives` are the writers of single steps, by BMv2's names."""

    def __init__(self, context: Context, expressions: ExpressionWriter, primitives: Mapping[str, Callable[..., None]]):
        self._context = context
        self._scope = context.scope
        self._lines = context.lines
        self._expressions = expressions
        self._primitives = primitives

    def action(self, info: ActionInfo, arguments: Sequence[Snippet]) -> None:
        """Write an action's body with these arguments."""
        outer, self._context.where = self._context.where, f"action {info.name!r}"
        self._context.parameters = arguments
        if any(primitive.op.startswith("_jump") for primitive in info.primitives):
            self._with_jumps(info)
        else:
            for primitive in info.primitives:
                self.primitive(primitive)
                if primitive.op == "exit":
                    break
        self._context.parameters = ()
        self._context.where = outer

    def primitive(self, primitive: Primitive) -> None:
        """Write one primitive."""
        write = self._primitives.get(primitive.op)
        if write is None:
            known = [name for name in self._primitives if name not in ("set",)]
            raise ProgramError(f"{self._context.where} uses an {unknown('primitive', primitive.op, known)}")
        write(*primitive.parameters)

    def _with_jumps(self, info: ActionInfo) -> None:
        """Write an action that has conditions: p4c lowers them to jumps, which become conditions again."""
        steps = info.primitives
        successors: dict[str, list[Node]] = {}

        def place(position: int) -> Node:
            return str(position) if position < len(steps) else None

        for position, step in enumerate(steps):
            if step.op == "_jump":
                successors[str(position)] = [place(_target(step.parameters[0]))]
            elif step.op == "_jump_if_zero":
                successors[str(position)] = [place(position + 1), place(_target(step.parameters[1]))]
            elif step.op == "exit":
                successors[str(position)] = [None]
            else:
                successors[str(position)] = [place(position + 1)]
        flow = graph(self._scope.work, place(0), successors)

        def body(node: str, go: Callable[[Node], None]) -> None:
            step = steps[int(node)]
            if step.op == "_jump":
                go(successors[node][0])
            elif step.op == "_jump_if_zero":
                self.branch(step.parameters[0], successors[node], go)
            else:
                self.primitive(step)
                go(successors[node][0])

        if flow.is_nestable():
            flow.write_nested(self._lines, body, step="jump")
        elif any(step.op == "exit" for step in steps):
            raise self._context.unsupported("exit within a loop")
        else:
            write_bounded_loop(self._scope, self._lines, flow, body)

    def branch(self, condition: Expression, successors: list[Node], go: Callable[[Node], None]) -> None:
        """Write an `if` whose second successor is taken when the condition does not hold."""
        with self._lines.block(f"if {self._expressions.condition(condition)}:"):
            go(successors[0])
        with self._lines.block("else:"):
            go(successors[1])


def _target(expression: Expression) -> int:
    assert isinstance(expression, Const)
    return expression.value
