"""Generated code of tables: the search for a row, and the actions that rows run."""

from __future__ import annotations

from collections.abc import Callable

from tensorexpress.switch.program.bmv2.values import VALIDITY, ActionInfo, KeyField, TableInfo
from tensorexpress.switch.program.codegen.flow import Node
from tensorexpress.switch.program.codegen.section import Section
from tensorexpress.switch.program.codegen.snippets import Snippet, masked, number, unsigned
from tensorexpress.switch.program.codegen.variables import Var


class TableWriter:
    """Writes the application of tables in one section of code."""

    def __init__(self, section: Section):
        self._context = section.context
        self._scope = section.context.scope
        self._lines = section.context.lines
        self._expressions = section.expressions
        self._assignments = section.assignments
        self._checksums = section.checksums
        self._actions = section.actions

    def table(self, table: TableInfo, go: Callable[[Node], None]) -> None:
        """Write the application of a table."""
        self._context.where = f"table {table.name!r}"
        if table.fixed_action is not None:
            action = self._scope.program.actions[table.actions[table.fixed_action.action]]
            self._actions.action(action, [number(argument) for argument in table.fixed_action.arguments])
            go(table.next_miss if table.by_hit else table.next_by_action[action.name])
            return
        name = self._scope.identifiers.object("table", table.name)
        self._lookup(table, name)
        if table.by_hit:
            self._run(table, None)
            with self._lines.block("if row.hit:"):
                go(table.next_hit)
            with self._lines.block("else:"):
                go(table.next_miss)
        elif len(set(table.successors)) > 1:
            self._run(table, go)
        else:
            self._run(table, None)
            go(table.successors[0])

    def _lookup(self, table: TableInfo, name: str) -> None:
        """Write the search for a row, and what a hit does before the action."""
        if not table.key:
            self._lines.add(f"row = {name}.default")
            return
        parts = [self._key(part) for part in table.key]
        if table.is_exact:
            key = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
            self._lines.add(f"row = {name}_known({key}) or {name}.default")
        else:
            key = parts[0] if len(parts) == 1 else "key"
            if len(parts) > 1:
                self._lines.add(f"key = ({', '.join(parts)})")
            self._lines.add(f"row = {name}_known({key}) or {name}.find({key})")
        if table.counts or table.ages or table.direct_meter is not None:
            with self._lines.block("if row.hit:"):
                self._on_hit(table)

    def _key(self, part: KeyField) -> str:
        """Return the text of one field of a key; a field of an invalid header is 0 there."""
        header, field = part.target.header, part.target.field
        if field == VALIDITY:
            return self._expressions.valid(header)
        code = unsigned(self._expressions.field(header, field), self._scope.program.field(part.target))
        if part.mask is not None:
            code = Snippet(f"{code.inner} & {hex(part.mask)}", code.bits)
        if self._is_zero_when_invalid(header, field):
            return code.text
        return f"{code.inner} if {self._expressions.valid(header)} else 0"

    def _is_zero_when_invalid(self, header: str, field: str) -> bool:
        """Whether a field cannot hold anything while its header is invalid."""
        if self._scope.header(header).metadata:
            return True
        previous = self._scope.previous
        return previous is None or (header not in previous.invalidated and Var(header, field) not in previous.changed)

    def _on_hit(self, table: TableInfo) -> None:
        """Write what a hit does to the row itself."""
        if table.counts:
            self._lines.add("row.packets += 1")
            self._lines.add("row.bytes += length")
        if table.ages:
            self._lines.add(f"row.hit_us = {self._context.now()}")
        if table.direct_meter is not None:
            meter = self._scope.program.arrays["meter"][table.direct_meter]
            assert meter.result is not None
            units = "length" if meter.in_bytes else "1"
            self._lines.add(f"data = row.meter.execute({units}, {self._context.now()})")
            self._assignments.set_field(meter.result, masked(Snippet("data", 2, atom=True), 2))

    def _pick(self, table: TableInfo) -> str:
        """Write the choice of a member for a table with a profile; return the name of the row whose action runs."""
        if table.profile is None:
            return "row"
        profile = self._scope.program.profiles[table.profile]
        self._lines.add("picked = row.choice or row")
        if profile.selector is None:
            return "picked"
        # BMv2 keeps 32 bits of the hash.
        with self._lines.block("if picked.members is not None:"):
            self._lines.add("members = picked.members")
            result = self._checksums.hashed(profile.selector)
            self._lines.add(f"picked = members[(({result}) & 0xffffffff) % len(members)] if members else nothing")
        return "picked"

    def _run(self, table: TableInfo, go: Callable[[Node], None] | None) -> None:
        """Write the actions of a table, each followed by what comes after it if that differs."""
        row = self._pick(table)
        actions = [self._scope.program.actions[number] for number in table.actions.values()]
        actions = sorted(actions, key=lambda action: not action.primitives)
        if go is None:
            actions = [action for action in actions if action.primitives]
        always = len(actions) == len(table.actions) and table.default is not None and table.profile is None
        if always and len(actions) == 1:
            self._unpack_and_run(table, actions[0], row, go)
            return
        if actions:
            self._lines.add(f"action = {row}.action")
        for position, action in enumerate(actions):
            last = always and position == len(actions) - 1
            head = "else:" if last else f"{'el' if position else ''}if action == {action.id}:"
            with self._lines.block(head):
                self._unpack_and_run(table, action, row, go)
        if go is not None and not always:
            with self._lines.block("else:"):
                go(table.next_default)

    def _unpack_and_run(
        self, table: TableInfo, action: ActionInfo, row: str, go: Callable[[Node], None] | None
    ) -> None:
        """Write one action with the arguments of a row."""
        self._scope.work.spend()
        names = [f"a{index}" for index in range(len(action.parameters))]
        if names:
            self._lines.add(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {row}.arguments")
        self._actions.action(
            action, [Snippet(name, bits, atom=True) for name, (_, bits) in zip(names, action.parameters, strict=True)]
        )
        if go is not None:
            go(table.next_by_action[action.name])
