"""Generated code of the primitives that decide what becomes of the packet itself: drop, clone, send again, ..."""

from __future__ import annotations

from collections.abc import Callable

from tensorexpress.switch.packet import DROP_PORT
from tensorexpress.switch.program.bmv2.values import Expression, FieldRef, Named
from tensorexpress.switch.program.codegen.assignments import AssignmentWriter
from tensorexpress.switch.program.codegen.context import Context
from tensorexpress.switch.program.codegen.expressions import ExpressionWriter
from tensorexpress.switch.program.codegen.snippets import number
from tensorexpress.switch.program.codegen.standard import standard_field
from tensorexpress.switch.program.codegen.variables import decision


class DecisionWriter:
    """Writes decisions about the packet."""

    def __init__(self, context: Context, expressions: ExpressionWriter, assignments: AssignmentWriter):
        self._context = context
        self._scope = context.scope
        self._lines = context.lines
        self._expressions = expressions
        self._assignments = assignments
        self.primitives: dict[str, Callable[..., None]] = {
            "drop": self._drop,
            "mark_to_drop": self._drop,
            "generate_digest": self._digest,
            "clone_ingress_pkt_to_egress": self._clone,
            "clone_egress_pkt_to_egress": self._clone,
            "resubmit": lambda fields: self._decide("resubmit_fields", fields),
            "recirculate": lambda fields: self._decide("recirculate_fields", fields),
            "truncate": self._truncate,
            "exit": lambda: self._lines.add("break"),
            "no_op": lambda: None,
        }

    def _drop(self, metadata: Expression | None = None) -> None:
        """Send the packet nowhere; `metadata` is what stands for the standard metadata, which may be a copy of it."""
        for name, value in (("egress_spec", DROP_PORT), ("mcast_grp", 0)):
            target = standard_field(self._scope.program, name)
            if isinstance(metadata, Named) and metadata.name != "standard_metadata":
                target = FieldRef(metadata.name, name)
            if target is not None and self._scope.header(target.header).type.field(target.field) is not None:
                self._assignments.set_field(target, number(value))

    def _decide(self, what: str, value: Expression) -> None:
        """Write a decision about the packet itself."""
        self._context.put(decision(what), self._expressions.value(value).text)

    def _digest(self, receiver: Expression, fields: Expression) -> None:
        """Send a digest when ingress ends; the last one asked for is the one that is sent."""
        self._decide("digest", fields)

    def _clone(self, session: Expression, fields: Expression) -> None:
        """Clone the packet when this control ends; the last clone asked for is the one that is made."""
        self._decide("clone_session", session)
        self._decide("clone_fields", fields)

    def _truncate(self, size: Expression) -> None:
        """Let no more than that many bytes leave; the smallest number asked for counts."""
        text = self._context.bound(self._expressions.value(size)).inner
        known = "packet.truncate_bytes"
        self._lines.add(f"{known} = {text} if {known} is None else min({known}, {text})")
