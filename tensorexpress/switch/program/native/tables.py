"""Native code of controls: tables and conditions as blocks, in the order of the program."""

from __future__ import annotations

from tensorexpress.switch.operations import ActionCall
from tensorexpress.switch.program.bmv2.values import VALIDITY, ActionInfo, Calculation, Control, KeyField, TableInfo
from tensorexpress.switch.program.codegen.flow import reachable
from tensorexpress.switch.program.match_kinds import BMV2_KINDS, RANGE
from tensorexpress.switch.program.native.actions import ENDLESS, LEFT, WENT_ON, ActionCode
from tensorexpress.switch.program.native.code import IrFunction
from tensorexpress.switch.program.native.layout import DESCRIPTOR, SLOTS, WordCell, words_of
from tensorexpress.switch.program.native.numbers import Num, constant, truth
from tensorexpress.switch.program.native.primitives import PrimitiveCode
from tensorexpress.switch.program.native.regions import Extent, Region
from tensorexpress.switch.program.native.rows import ROW, RowLayout, argument_words, member_words, row_layout
from tensorexpress.switch.program.native.unit import Unit
from tensorexpress.switch.program.native.unsupported import Unsupported


class ControlCode:
    """Writes one control as a function that says how it ended."""

    def __init__(self, unit: Unit, stage: str, actions: ActionCode):
        self._unit = unit
        self._program = unit.program
        self._stage = stage
        self._actions = actions
        self._code = IrFunction(unit.module, f"define internal i64 @{stage}_control(ptr noalias %c)")
        self._writer = PrimitiveCode(unit, self._code, stage)
        self._labels: dict[str | None, str] = {}

    def control(self, control: Control) -> None:
        """Write a whole control."""
        code = self._code
        self._labels = {name: code.label() for name in (*control.nodes, None)}
        self._left = self._labels[None]
        self._endless = code.label()
        code.go(self._labels[control.start])
        successors = {name: node.named_next for name, node in control.nodes.items()}
        for name in reachable(control.start, successors):
            node = control.nodes[name]
            code.start(self._labels[name])
            if isinstance(node, TableInfo):
                self._table(node)
            else:
                condition = self._writer.expressions.condition(node.expression)
                code.branch(condition, self._labels[node.next_true], self._labels[node.next_false])
        code.start(self._endless)
        code.give_back(ENDLESS)
        code.start(self._left)
        code.give_back(WENT_ON)
        self._unit.module.add(code)

    def _table(self, table: TableInfo) -> None:
        self._writer.where = f"table {table.name!r}"
        if table.fixed_action is not None:
            self._fixed(table, table.fixed_action)
            return
        code, layout = self._code, row_layout(table, self._program.actions)
        descriptor = self._unit.layout.tables[table.name]
        region = Region(f"rows of table {table.name!r}", Extent(layout.size))
        default = code.pointer(descriptor, region)
        row = code.place(self._found(table, layout, descriptor), region) if table.key else default
        is_hit = code.op(f"icmp ne ptr {row}, {default}")
        if table.counts or table.ages or table.direct_meter is not None:
            after = code.when(is_hit)
            self._on_hit(table, row)
            code.start(after)
        action, arguments = code.load(ROW["action"], base=row), code.address(layout.arguments, row)
        if table.profile is not None:
            action, arguments = self._pick(table.profile, row, action, arguments, 8 * layout.argument_words)
        self._run(table, action, arguments, is_hit)

    def _fixed(self, table: TableInfo, call: ActionCall) -> None:
        """Write a table that always does the same."""
        info = self._program.actions[table.actions[call.action]]
        data = b"".join(
            (argument & (1 << bits) - 1).to_bytes(8 * words_of(bits), "little")
            for argument, (_, bits) in zip(call.arguments, info.parameters, strict=True)
        )
        arguments = self._unit.module.constant(data) if data else "null"
        self._call(info, self._code.place(arguments, Region("constant", Extent(len(data)), is_any=True)))
        self._code.go(self._labels[table.next_miss if table.by_hit else table.next_by_action[info.name]])

    def _call(self, info: ActionInfo, arguments: str) -> None:
        """Write that an action runs; the control ends where it says so."""
        if not info.primitives:
            return
        code = self._code
        if info.parameters:
            code.hand(8 * argument_words(info), arguments)
        ended = code.op(f"call i64 {self._actions.function(info)}(ptr %c, ptr {arguments})")
        after = code.label()
        code.switch(ended, [(LEFT, self._left), (ENDLESS, self._endless)], after)
        code.start(after)

    def _found(self, table: TableInfo, layout: RowLayout, descriptor: int) -> str:
        """Write the search for a row."""
        code = self._code
        key, cut = code.room(8 * layout.words), code.room(8 * layout.words)
        offset = 0
        for part, words in zip(table.key, layout.key, strict=True):
            if BMV2_KINDS[part.kind].is_compared and part.kind != RANGE.name:
                raise Unsupported(f"table {table.name!r} matches by {part.kind!r}")
            self._writer.headers.write_cell(WordCell(offset, words), self._key(part), key)
            offset += 8 * words
        table_at = code.address(descriptor)
        code.hand(8 * len(DESCRIPTOR), table_at)
        code.hand(8 * layout.words, key, cut)
        return code.op(f"call ptr @find(ptr {table_at}, ptr {key}, ptr {cut})")

    def _key(self, part: KeyField) -> Num:
        """Return one field of a key; a field of an invalid header is 0 there."""
        header, field = part.target.header, part.target.field
        numbers, headers = self._writer.numbers, self._writer.headers
        if field == VALIDITY:
            return truth(headers.valid(header))
        number = numbers.cut(headers.read(header, field), part.bits)
        if part.mask is not None:
            number = numbers.binary("&", number, constant(part.mask), part.bits)
        if self._program.headers[header].metadata:
            return number
        return numbers.choose(headers.valid(header), number, constant(0))

    def _on_hit(self, table: TableInfo, row: str) -> None:
        """Write what a hit does to the row itself."""
        code = self._code
        if table.counts:
            for word, amount in (("packets", "1"), ("bytes", code.load(SLOTS["frame_length"]))):
                code.store(code.op(f"add i64 {code.load(ROW[word], base=row)}, {amount}"), ROW[word], base=row)
        if table.ages:
            code.store(self._writer.now().text, ROW["hit_us"], base=row)
        if table.direct_meter is not None:
            self._meter(table, table.direct_meter, row)

    def _meter(self, table: TableInfo, name: str, row: str) -> None:
        meter = self._program.arrays["meter"][name]
        if meter.result is None:
            raise Unsupported(f"the direct meter {name!r} has no result")
        distance = self._code.op(
            f"sub i64 {self._code.op(f'ptrtoint ptr {row} to i64')}, "
            f"{self._code.load(self._unit.layout.tables[table.name])}"
        )
        units = self._writer.units(in_bytes=meter.in_bytes)
        colour = self._writer.call("direct meter", table.name, [Num(distance, 64), units, self._writer.now()])
        self._writer.set_field(meter.result, self._writer.numbers.narrow(Num(colour, 64), 2))

    def _pick(self, name: str, row: str, action: str, arguments: str, argument_bytes: int) -> tuple[str, str]:
        """Write the choice of a profile's member; return the action that runs, and where its arguments are.

        A row's choice is 0 for its own action, n + 1 for member n, -n - 1 for group n.
        """
        code, profile = self._code, self._program.profiles[name]
        place = self._unit.layout.profiles[name]
        member_bytes = 8 * member_words(name, self._program.tables.values(), self._program.actions)
        chosen = code.room(16)
        code.store(action, 0, base=chosen)
        code.store_pointer(arguments, 8, chosen)
        member = code.room(8)
        choice = code.load(ROW["choice"], base=row)
        own, of_member, of_group = code.label(), code.label(), code.label()
        code.store(code.op(f"sub i64 {choice}, 1"), 0, base=member)
        others = code.label()
        code.branch(code.op(f"icmp eq i64 {choice}, 0"), own, others)
        code.start(others)
        code.branch(code.op(f"icmp sgt i64 {choice}, 0"), of_member, of_group)
        code.start(of_group)
        if profile.selector is None:
            code.go(own)
        else:
            self._choose_member(name, profile.selector, choice, member, chosen, own)
        code.start(of_member)
        offset = code.op(f"mul i64 {code.load(0, base=member)}, {member_bytes}")
        members = Region(f"members of profile {name!r}", Extent(member_bytes))
        picked = code.element(offset, code.pointer(place, members), members)
        code.store(code.load(0, base=picked), 0, base=chosen)
        code.store_pointer(code.address(8, picked), 8, chosen)
        code.start(own)
        least = Extent(min(argument_bytes, member_bytes - 8))
        return code.load(0, base=chosen), code.pointer(8, Region("arguments", least, is_any=True), chosen)

    def _choose_member(
        self, profile: str, selector: Calculation, choice: str, member: str, chosen: str, nothing: str
    ) -> None:
        """Write the choice of a group's member by hash; a group without members does nothing."""
        code = self._code
        number = code.op(f"xor i64 {choice}, -1")
        groups = Region(f"groups of profile {profile!r}", Extent(16))
        start = code.pointer(self._unit.layout.profiles[profile] + 8, groups)
        group = code.element(code.op(f"mul i64 {number}, 16"), start, groups)
        count = code.load(8, base=group)
        code.store(-1, 0, base=chosen)
        some = code.label()
        code.branch(code.op(f"icmp eq i64 {count}, 0"), nothing, some)
        code.start(some)
        # BMv2 keeps 32 bits of the hash.
        hashed = self._writer.numbers.cut(self._writer.hashes.hashed(selector), 32)
        place = code.op(f"urem i64 {self._writer.numbers.fit(hashed, 64)}, {count}")
        members = Region(f"members of a group of profile {profile!r}", Extent(8), is_any=True)
        chosen_member = code.element(code.op(f"mul i64 {place}, 8"), code.pointer(0, members, group), members)
        code.store(code.load(0, base=chosen_member), 0, base=member)

    def _run(self, table: TableInfo, action: str, arguments: str, is_hit: str) -> None:
        """Write the actions of a table, and what comes after each of them."""
        code = self._code
        after = code.label()
        infos = [self._program.actions[number] for number in table.actions.values()]
        labels = [code.label() for _ in infos]
        cases = [(info.id, label) for info, label in zip(infos, labels, strict=True)]
        nothing = code.label()
        code.switch(action, cases, nothing)
        for info, label in zip(infos, labels, strict=True):
            code.start(label)
            self._call(info, arguments)
            code.go(after if table.by_hit else self._labels[table.next_by_action[info.name]])
        code.start(nothing)
        code.go(after if table.by_hit else self._labels[table.next_default])
        code.start(after)
        if table.by_hit:
            code.branch(is_hit, self._labels[table.next_hit], self._labels[table.next_miss])
        else:
            code.go(self._left)
