"""Generated code of a control: its tables and conditions, in the order of the program."""

from __future__ import annotations

from collections.abc import Callable

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.bmv2.values import Control, TableInfo
from tensorexpress.switch.program.codegen.flow import Node, graph
from tensorexpress.switch.program.codegen.section import Section
from tensorexpress.switch.program.codegen.tables import TableWriter


class ControlWriter:
    """Writes the ingress or the egress control in one section of code."""

    def __init__(self, section: Section):
        self._context = section.context
        self._scope = section.context.scope
        self._lines = section.context.lines
        self._actions = section.actions
        self._tables = TableWriter(section)

    def control(self, control: Control) -> None:
        """Write a whole control; `exit` leaves the loop around it."""
        if control.start is None:
            return
        flow = graph(self._scope.work, control.start, {name: node.successors for name, node in control.nodes.items()})
        if flow.cycle is not None:
            kind = "table" if isinstance(control.nodes[flow.cycle], TableInfo) else "condition"
            raise ProgramError(
                f"BMv2 JSON: in {control.name!r} {kind} {flow.cycle!r} leads back to itself; controls have no loops; "
                "compile the program again with p4c-bm2-ss"
            )

        def body(name: str, go: Callable[[Node], None]) -> None:
            node = control.nodes[name]
            if isinstance(node, TableInfo):
                self._tables.table(node, go)
            else:
                self._context.where = f"condition {name!r}"
                self._actions.branch(node.expression, [node.next_true, node.next_false], go)

        if not flow.is_nestable():
            flow.write_loop(self._lines, "while True:", body)
            return
        if not self._has_exit(control):
            flow.write_nested(self._lines, body)
            return
        with self._lines.block("while True:"):
            flow.write_nested(self._lines, body)
            self._lines.add("break")

    def _has_exit(self, control: Control) -> bool:
        """Whether any action that the control may run leaves it early."""
        tables = [node for node in control.nodes.values() if isinstance(node, TableInfo)]
        actions = [self._scope.program.actions[number] for table in tables for number in table.actions.values()]
        return any(primitive.op == "exit" for action in actions for primitive in action.primitives)
