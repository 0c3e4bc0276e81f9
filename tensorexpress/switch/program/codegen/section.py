"""One section of generated code and all who write it, each handed those that it needs."""

from __future__ import annotations

from tensorexpress.switch.program.codegen.actions import ActionWriter
from tensorexpress.switch.program.codegen.assignments import AssignmentWriter
from tensorexpress.switch.program.codegen.checksums import ChecksumWriter
from tensorexpress.switch.program.codegen.context import Context
from tensorexpress.switch.program.codegen.decisions import DecisionWriter
from tensorexpress.switch.program.codegen.expressions import ExpressionWriter
from tensorexpress.switch.program.codegen.externs import ExternWriter
from tensorexpress.switch.program.codegen.headers import HeaderWriter
from tensorexpress.switch.program.codegen.lines import Lines
from tensorexpress.switch.program.codegen.scope import Scope


class Section:
    """The writers of some lines. All of them add to these lines, and share where in the program they are."""

    def __init__(self, scope: Scope, lines: Lines):
        self.context = Context(scope, lines)
        self.expressions = ExpressionWriter(self.context)
        self.headers = HeaderWriter(self.context)
        self.checksums = ChecksumWriter(self.context, self.expressions, self.headers)
        self.assignments = AssignmentWriter(self.context, self.expressions, self.headers)
        externs = ExternWriter(self.context, self.expressions, self.checksums, self.assignments)
        decisions = DecisionWriter(self.context, self.expressions, self.assignments)
        primitives = {**self.assignments.primitives, **externs.primitives, **decisions.primitives}
        self.actions = ActionWriter(self.context, self.expressions, primitives)
