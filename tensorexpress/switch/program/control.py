"""Generated code of a control: tables, conditions and the actions that tables run."""

from __future__ import annotations

from collections.abc import Callable

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.actions import ActionWriter
from tensorexpress.switch.program.bmv2 import VALIDITY, ActionInfo, Condition, Control, KeyField, TableInfo
from tensorexpress.switch.program.expressions import Code, masked, number, unsigned
from tensorexpress.switch.program.flow import Node
from tensorexpress.switch.program.scope import Var


class ControlWriter(ActionWriter):
    """Writes the ingress or the egress control."""

    def control(self, control: Control) -> None:
        """Write a whole control; `exit` leaves the loop around it."""
        if control.start is None:
            return
        for name, node in control.nodes.items():
            for successor in _successors(node):
                if successor is not None and successor not in control.nodes:
                    raise ProgramError(f"BMv2 JSON: after {name!r} follows {successor!r}, which is not there")
        flow = self.flow_of(control.start, {name: _successors(node) for name, node in control.nodes.items()})
        if flow.cycle is not None:
            kind = "table" if isinstance(control.nodes[flow.cycle], TableInfo) else "condition"
            raise ProgramError(
                f"BMv2 JSON: in {control.name!r} {kind} {flow.cycle!r} leads back to itself; controls have no loops; "
                "compile the program again with p4c-bm2-ss"
            )

        def body(name: str, go: Callable[[Node], None]) -> None:
            node = control.nodes[name]
            if isinstance(node, TableInfo):
                self.table(node, go)
            else:
                self.where = f"condition {name!r}"
                self.branch(node.expression, [node.next_true, node.next_false], go)

        if not flow.is_nestable():
            flow.write_loop(self.lines, "while True:", body)
            return
        if not self.has_exit(control):
            flow.write_nested(self.lines, body)
            return
        with self.lines.block("while True:"):
            flow.write_nested(self.lines, body)
            self.lines.add("break")

    def has_exit(self, control: Control) -> bool:
        """Whether any action that the control may run leaves it early."""
        tables = [node for node in control.nodes.values() if isinstance(node, TableInfo)]
        actions = [self.scope.program.actions[number] for table in tables for number in table.actions.values()]
        return any(primitive.op == "exit" for action in actions for primitive in action.primitives)

    def table(self, table: TableInfo, go: Callable[[Node], None]) -> None:
        """Write the application of a table."""
        self.where = f"table {table.name!r}"
        if not table.key and table.default is not None and table.default_is_const and not table.counts:
            action = self.scope.program.actions[table.actions[table.default.action]]
            self.action(action, [number(argument) for argument in table.default.arguments])
            go(table.next_miss if table.by_hit else table.next_by_action[action.name])
            return
        name = self.scope.object("table", table.name)
        self.lookup(table, name)
        if table.by_hit:
            self.run(table, None)
            with self.lines.block("if row.hit:"):
                go(table.next_hit)
            with self.lines.block("else:"):
                go(table.next_miss)
        elif len(set(_successors(table))) > 1:
            self.run(table, go)
        else:
            self.run(table, None)
            go(_successors(table)[0])

    def lookup(self, table: TableInfo, name: str) -> None:
        """Write the search for a row, and what a hit does before the action."""
        if not table.key:
            self.lines.add(f"row = {name}.default")
            return
        parts = [self.key(part) for part in table.key]
        if all(part.kind == "exact" for part in table.key):
            key = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
            self.lines.add(f"row = {name}_known({key}) or {name}.default")
        else:
            key = parts[0] if len(parts) == 1 else "key"
            if len(parts) > 1:
                self.lines.add(f"key = ({', '.join(parts)})")
            self.lines.add(f"row = {name}_known({key}) or {name}.find({key})")
        if table.counts or table.ages or table.direct_meter is not None:
            with self.lines.block("if row.hit:"):
                self.on_hit(table)

    def key(self, part: KeyField) -> str:
        """Return the text of one field of a key; a field of an invalid header is 0 there."""
        header, field = part.target.header, part.target.field
        if field == VALIDITY:
            return self.valid(header)
        code = unsigned(self.field(header, field), self.scope.program.field(part.target))
        if part.mask is not None:
            code = Code(f"{code.inner} & {hex(part.mask)}", code.bits)
        if self.is_zero_when_invalid(header, field):
            return code.text
        return f"{code.inner} if {self.valid(header)} else 0"

    def is_zero_when_invalid(self, header: str, field: str) -> bool:
        """Whether a field cannot hold anything while its header is invalid."""
        if self.scope.header(header).metadata:
            return True
        previous = self.scope.previous
        return previous is None or (header not in previous.invalidated and Var(header, field) not in previous.changed)

    def on_hit(self, table: TableInfo) -> None:
        """Write what a hit does to the row itself."""
        if table.counts:
            self.lines.add("row.packets += 1")
            self.lines.add("row.bytes += length")
        if table.ages:
            self.lines.add(f"row.hit_us = {self.now()}")
        if table.direct_meter is not None:
            meter = self.scope.program.meters.get(table.direct_meter)
            if meter is None or meter.result is None:
                raise self.unsupported(f"the direct meter {table.direct_meter!r}, which is not there")
            units = "length" if meter.in_bytes else "1"
            self.lines.add(f"data = row.meter.execute({units}, {self.now()})")
            self.set_field(meter.result, masked(Code("data", 2, atom=True), 2))

    def pick(self, table: TableInfo) -> str:
        """Write the choice of a member for a table with a profile; return the name of the row whose action runs."""
        if table.profile is None:
            return "row"
        profile = self.scope.program.profiles[table.profile]
        self.lines.add("picked = row.choice or row")
        if profile.selector is None:
            return "picked"
        # BMv2 keeps 32 bits of the hash.
        with self.lines.block("if picked.members is not None:"):
            self.lines.add("members = picked.members")
            result = self.hashed(profile.selector)
            self.lines.add(f"picked = members[(({result}) & 0xffffffff) % len(members)] if members else nothing")
        return "picked"

    def run(self, table: TableInfo, go: Callable[[Node], None] | None) -> None:
        """Write the actions of a table, each followed by what comes after it if that differs."""
        row = self.pick(table)
        actions = [self.scope.program.actions[number] for number in table.actions.values()]
        actions = sorted(actions, key=lambda action: not action.primitives)
        if go is None:
            actions = [action for action in actions if action.primitives]
        always = len(actions) == len(table.actions) and table.default is not None and table.profile is None
        if always and len(actions) == 1:
            self.unpack_and_run(table, actions[0], row, go)
            return
        if actions:
            self.lines.add(f"action = {row}.action")
        for position, action in enumerate(actions):
            last = always and position == len(actions) - 1
            head = "else:" if last else f"{'el' if position else ''}if action == {action.id}:"
            with self.lines.block(head):
                self.unpack_and_run(table, action, row, go)
        if go is not None and not always:
            with self.lines.block("else:"):
                go(table.next_default)

    def unpack_and_run(self, table: TableInfo, action: ActionInfo, row: str, go: Callable[[Node], None] | None) -> None:
        """Write one action with the arguments of a row."""
        self.scope.work.spend()
        names = [f"a{index}" for index in range(len(action.parameters))]
        if names:
            self.lines.add(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {row}.arguments")
        self.action(
            action, [Code(name, bits, atom=True) for name, (_, bits) in zip(names, action.parameters, strict=True)]
        )
        if go is not None:
            go(table.next_by_action[action.name])


def _successors(node: TableInfo | Condition) -> list[Node]:
    if isinstance(node, Condition):
        return [node.next_true, node.next_false]
    if node.by_hit:
        return [node.next_hit, node.next_miss]
    found: list[Node] = list(node.next_by_action.values())
    return found if node.default is not None and node.profile is None else [*found, node.next_default]
