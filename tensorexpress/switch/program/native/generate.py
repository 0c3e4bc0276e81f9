"""A program as LLVM IR: a function for ingress and one for egress, which Python calls for every packet.

    ingress(context, frame, length)   parser, verify checksums, ingress control; returns 1 where something unusual was
                                      decided (a clone, ...), else 0
    egress(context, frame, length)    egress control; then, unless the packet is dropped, update checksums and deparser;
                                      returns twice the size of the output, and 1 more for something unusual

Both return less than 0 where the loops of the program were endless.

What is read and written, what is carried from one to the other and what may loop for how long, the Python back end has
found out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources

from tensorexpress.switch.packet import DROP_PORT, EGRESS_CLONE, INGRESS_CLONE
from tensorexpress.switch.program.bmv2.values import Bmv2Program, FieldRef
from tensorexpress.switch.program.budgets import Work
from tensorexpress.switch.program.codegen.generate import Generated
from tensorexpress.switch.program.codegen.standard import AT_EGRESS, AT_INGRESS, NO_DECISION
from tensorexpress.switch.program.codegen.variables import Var, decision
from tensorexpress.switch.program.native.actions import ENDLESS, ActionCode
from tensorexpress.switch.program.native.checking import CheckedLayout, checked_ir
from tensorexpress.switch.program.native.code import IrFunction, IrModule
from tensorexpress.switch.program.native.layout import SLOTS, Layout, WordCell
from tensorexpress.switch.program.native.numbers import Num, constant
from tensorexpress.switch.program.native.parser import ParserCode
from tensorexpress.switch.program.native.primitives import PrimitiveCode
from tensorexpress.switch.program.native.regions import FRAME_LENGTH, Extent, Region
from tensorexpress.switch.program.native.rows import RowLayout, member_words, row_layout
from tensorexpress.switch.program.native.tables import ControlCode
from tensorexpress.switch.program.native.unit import Unit, Upcall
from tensorexpress.switch.program.native.unsupported import Unsupported

_KEPT_DECISIONS = ("clone_session", "resubmit_fields", "recirculate_fields")


@dataclass(frozen=True)
class NativeLayout:
    """What Python has to know of the context that native code works on; offsets and sizes are in bytes."""

    size: int
    #: From the first to behind the last byte.
    state: tuple[int, int]
    #: Where egress leaves the state of a clone.
    clone: int
    #: The preserved fields of every list.
    kept: Mapping[int, tuple[int, int]]
    #: Name and values of every digest.
    digests: Mapping[int, tuple[str, tuple[WordCell, ...]]]
    registers: Mapping[str, int]
    counters: Mapping[str, int]
    meters: Mapping[str, int]
    tables: Mapping[str, tuple[int, RowLayout]]
    #: Where a profile is, and how large its members are.
    profiles: Mapping[str, tuple[int, int]]
    #: Bits of the parameters of actions, by their numbers.
    parameters: Mapping[int, tuple[int, ...]]
    calls: tuple[Upcall, ...]
    #: Bytes beside the frame that a hash's inputs and the headers that leave may take.
    scratch_bytes: int
    header_bytes: int
    #: What a checked build tests, None in any other.
    checks: CheckedLayout | None = None


def generate_native(program: Bmv2Program, generated: Generated, *, checked: bool = False) -> tuple[str, NativeLayout]:
    """Return the IR of a program; Unsupported says what of it cannot be native code.

    A checked build tests every access when it runs.
    """
    if sys.byteorder != "little":
        raise Unsupported("this processor has the high bytes of a number first")
    layout = Layout(program, generated)
    unit = Unit(program, generated, IrModule(layout.regions, checked=checked), layout)
    digests = _Generation(unit).run()
    if unit.scratch.used > unit.scratch_bytes:
        raise Unsupported(f"the inputs of its hashes take {unit.scratch.used} bytes of {unit.scratch_bytes}")
    native = NativeLayout(
        size=layout.size,
        state=(layout.state, layout.state_end),
        clone=layout.clone,
        kept={number: _span(list(cells.values())) for number, cells in layout.kept.items()},
        digests=digests,
        registers=layout.registers,
        counters=layout.counters,
        meters=layout.meters,
        tables={
            name: (layout.tables[name], row_layout(table, program.actions)) for name, table in program.tables.items()
        },
        profiles={
            name: (offset, 8 * member_words(name, program.tables.values(), program.actions))
            for name, offset in layout.profiles.items()
        },
        parameters={info.id: tuple(bits for _, bits in info.parameters) for info in program.actions.values()},
        calls=tuple(unit.calls),
        scratch_bytes=unit.scratch_bytes,
        header_bytes=header_bytes(program, layout),
    )
    text = unit.module.text() + resources.files(__package__).joinpath("runtime.ll").read_text()
    numbers = unit.module.numbers
    if numbers is None:
        return text, native
    room_bytes = {"output": native.header_bytes, "scratch": native.scratch_bytes}
    text = checked_ir(text, numbers, unit.module.rooms, unit.module.sites, room_bytes)
    checks = CheckedLayout(
        static=tuple(unit.module.rooms),
        extra=tuple(numbers.numbers),
        context=layout.regions.spans() | layout.regions.wholes,
        made_of_others=frozenset(layout.regions.wholes),
        sites=tuple(unit.module.sites),
    )
    return text, replace(native, checks=checks)


def header_bytes(program: Bmv2Program, layout: Layout) -> int:
    """Return how many bytes the headers that leave may take."""
    return sum(layout.headers[name].size for name in program.emitted if not program.headers[name].metadata)


def _span(cells: list[WordCell]) -> tuple[int, int]:
    return (cells[0].offset, cells[-1].offset + 8 * cells[-1].words) if cells else (0, 0)


class _Generation:
    """Writes the two functions and what they call."""

    def __init__(self, unit: Unit):
        self._unit = unit
        self._program = unit.program
        self._layout = unit.layout
        self._carried = frozenset(unit.generated.carried)

    def run(self) -> dict[int, tuple[str, tuple[WordCell, ...]]]:
        """Write everything; return where digests are."""
        for declaration in ("void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)", "i16 @llvm.bswap.i16(i16)"):
            self._unit.module.declare(f"declare {declaration}")
        work = Work()
        ParserCode(self._unit, work).parser()
        ControlCode(self._unit, "ingress", ActionCode(self._unit, "ingress", work)).control(self._program.ingress)
        ControlCode(self._unit, "egress", ActionCode(self._unit, "egress", work)).control(self._program.egress)
        digests = self._ingress()
        self._egress()
        return digests

    def _function(self, stage: str) -> tuple[IrFunction, PrimitiveCode]:
        """Return a stage that has begun: what starts with nothing does, and loops have their steps."""
        head = f"define i64 @{stage}(ptr noalias %c, ptr %frame, i64 %length)"
        code = IrFunction(self._unit.module, head)
        code.place("%frame", Region("frame", Extent(0, {FRAME_LENGTH: 1})))
        code.store_pointer("%frame", SLOTS["frame"])
        code.store("%length", SLOTS["frame_length"])
        code.store(self._unit.generated.steps.get(stage, 0), SLOTS["steps"])
        return code, PrimitiveCode(self._unit, code, stage)

    def _ingress(self) -> dict[int, tuple[str, tuple[WordCell, ...]]]:
        code, writer = self._function("ingress")
        code.clear(self._layout.state, self._layout.exposed_end - self._layout.state)
        self._begin_decisions(code, "ingress")
        self._set_standard(writer, AT_INGRESS, frozenset())
        self._restore(code, writer, self._unit.generated.usage.exposed["ingress"])
        self._call(code, "@parse")
        self._note_error(code, writer)
        self._verify(writer)
        self._call(code, "@ingress_control")
        for name in ("egress_spec", "mcast_grp", "priority"):
            var = self._unit.standard.get(name)
            if var is not None and self._unit.is_live(var) and isinstance(var.part, str):
                number = writer.headers.read(var.header, var.part)
                code.store(writer.numbers.fit(number, 64), SLOTS[name])
            else:
                code.store(0, SLOTS[name])
        self._keep(code, writer, "ingress")
        digests = self._digests(code, writer)
        code.give_back(self._unusual(code))
        self._unit.module.add(code)
        return digests

    def _egress(self) -> None:
        code, writer = self._function("egress")
        clear_metadata = (self._layout.exposed, self._layout.exposed_end - self._layout.exposed)
        code.clear(*clear_metadata)
        if "clone_ingress_pkt_to_egress" in self._program.primitives:
            self._reparse(code, writer)
        self._restore_clone(code, writer)
        self._set_standard(writer, AT_INGRESS | AT_EGRESS, self._carried)
        self._begin_decisions(code, "egress")
        self._call(code, "@egress_control")
        self._end_egress(code, writer)
        self._unit.module.add(code)

    def _call(self, code: IrFunction, function: str) -> None:
        """Write a call; where it met an endless loop, the stage ends so."""
        result = code.op(f"call i64 {function}(ptr %c)")
        after = code.when(code.op(f"icmp eq i64 {result}, {ENDLESS}"))
        code.give_back(-1)
        code.start(after)

    def _begin_decisions(self, code: IrFunction, stage: str) -> None:
        """Write that nothing is decided yet."""
        for name, none in NO_DECISION.items():
            # To recirculate is decided in ingress, too, and stands then.
            stands = (
                stage == "egress" and name == "recirculate_fields" and not self._unit.is_written(decision(name), stage)
            )
            if name != "size" and not stands:
                code.store(none, SLOTS[name])

    def _set_standard(self, writer: PrimitiveCode, texts: Mapping[str, str], carried: frozenset[Var]) -> None:
        """Write what fields of the standard metadata hold; the texts are those of the Python back end."""
        for name, text in texts.items():
            var = self._unit.standard.get(name)
            if var is None or var in carried or not self._unit.is_live(var):
                continue
            assert isinstance(var.part, str)
            slot = "frame_length" if text == "length" else text.removeprefix("packet.")
            number = constant(int(text)) if text.isdecimal() else Num(writer.load_slot(slot), 64)
            writer.headers.write(var.header, var.part, number)

    def _restore(self, code: IrFunction, writer: PrimitiveCode, needed: set[Var] | frozenset[Var]) -> None:
        """Write how fields that the pass before preserved come back."""
        preserved = code.load(SLOTS["preserved"])
        for number, cells in self._layout.kept.items():
            wanted = {item: cell for item, cell in cells.items() if Var(item.header, item.field) in needed}
            if wanted:
                after = code.when(code.op(f"icmp eq i64 {preserved}, {number}"))
                for item, cell in wanted.items():
                    writer.headers.write(item.header, item.field, self._cell(writer, item, cell))
                code.start(after)

    def _cell(self, writer: PrimitiveCode, item: FieldRef, cell: WordCell) -> Num:
        bits = self._program.field(item).bits
        return writer.headers.read_cell(cell, bits) if bits else constant(0)

    def _restore_clone(self, code: IrFunction, writer: PrimitiveCode) -> None:
        """Write what a clone keeps: of its metadata, what was preserved."""
        primitives = ("clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress")
        if not any(primitive in self._program.primitives for primitive in primitives):
            return
        kind = code.load(SLOTS["instance_type"])
        is_either = code.op(
            f"or i1 {code.op(f'icmp eq i64 {kind}, {INGRESS_CLONE}')}, {code.op(f'icmp eq i64 {kind}, {EGRESS_CLONE}')}"
        )
        after = code.when(is_either)
        self._restore(code, writer, self._carried)
        code.start(after)

    def _reparse(self, code: IrFunction, writer: PrimitiveCode) -> None:
        """Write that a clone that ingress asked for has the headers that the frame has."""
        kind = code.load(SLOTS["instance_type"])
        after = code.when(code.op(f"icmp eq i64 {kind}, {INGRESS_CLONE}"))
        code.store(self._unit.generated.steps.get("ingress", 0), SLOTS["steps"])
        code.clear(self._layout.state, self._layout.exposed_end - self._layout.state)
        self._set_standard(writer, AT_INGRESS, frozenset())
        self._call(code, "@parse")
        code.clear(self._layout.state_metadata, self._layout.exposed_end - self._layout.state_metadata)
        code.store(self._unit.generated.steps.get("egress", 0), SLOTS["steps"])
        code.start(after)

    def _note_error(self, code: IrFunction, writer: PrimitiveCode) -> None:
        """Write that a frame which ended the parser with an error is counted, and the field that says so."""
        error = code.load(SLOTS["parser_error"])
        no_error = self._program.errors.get("NoError", 0)
        wrong = code.op(f"zext i1 {code.op(f'icmp ne i64 {error}, {no_error}')} to i64")
        code.store(code.op(f"add i64 {code.load(SLOTS['malformed'])}, {wrong}"), SLOTS["malformed"])
        var = self._unit.standard.get("parser_error")
        if var is not None and self._unit.is_live(var) and isinstance(var.part, str):
            writer.headers.write(var.header, var.part, Num(error, 64))

    def _verify(self, writer: PrimitiveCode) -> None:
        var = self._unit.standard.get("checksum_error")
        if any(checksum.verify for checksum in self._program.checksums) and var and self._unit.is_live(var):
            assert isinstance(var.part, str)
            writer.headers.write(var.header, var.part, constant(0))
            writer.hashes.verify(constant(1), FieldRef(var.header, var.part))

    def _keep(self, code: IrFunction, writer: PrimitiveCode, stage: str) -> None:
        """Write what the next pass will want to have preserved, if there is to be one."""
        code.store(0, SLOTS["kept"])
        asked = [name for name in _KEPT_DECISIONS if self._unit.is_written(decision(name), stage)]
        if not asked:
            return
        wanted = "false"
        for name in asked:
            wanted = code.op(f"or i1 {wanted}, {code.op(f'icmp sge i64 {code.load(SLOTS[name])}, 0')}")
        after = code.when(wanted)
        for cells in self._layout.kept.values():
            for item, cell in cells.items():
                writer.headers.write_cell(cell, writer.expressions.number(item))
        code.store(1, SLOTS["kept"])
        code.start(after)

    def _unusual(self, code: IrFunction) -> str:
        """Return 1 where something was decided that few packets ask for, else 0."""
        found = code.op(f"icmp ne i64 {code.load(SLOTS['digest'])}, {NO_DECISION['digest']}")
        for name in ("truncate_bytes", *_KEPT_DECISIONS):
            is_asked = code.op(f"icmp sge i64 {code.load(SLOTS[name])}, 0")
            found = code.op(f"or i1 {found}, {is_asked}")
        return code.op(f"zext i1 {found} to i64")

    def _digests(self, code: IrFunction, writer: PrimitiveCode) -> dict[int, tuple[str, tuple[WordCell, ...]]]:
        """Write the values of the digest that was asked for; return where Python finds them."""
        found: dict[int, tuple[str, tuple[WordCell, ...]]] = {}
        if not self._unit.is_written(decision("digest"), "ingress"):
            return found
        for number, fields in self._program.digests.items():
            after = code.when(code.op(f"icmp eq i64 {code.load(SLOTS['digest'])}, {number}"))
            values = []
            for item in fields.fields:
                value = writer.expressions.number(item)
                values.append(writer.numbers.cut(value, value.bits) if isinstance(item, FieldRef) else value)
            cells = self._layout.argument_cells([(value.bits, value.signed) for value in values])
            for cell, value in zip(cells, values, strict=True):
                writer.headers.write_cell(cell, value)
            code.start(after)
            found[number] = (fields.name, cells)
        return found

    def _end_egress(self, code: IrFunction, writer: PrimitiveCode) -> None:
        """Write the end of egress: decisions, then the bytes that leave."""
        spec = self._unit.standard.get("egress_spec")
        may_drop = spec is not None and self._unit.is_written(spec, "egress")
        code.store(NO_DECISION["digest"], SLOTS["digest"])  # digests are for ingress alone
        self._keep(code, writer, "egress")
        if self._unit.is_written(decision("clone_session"), "egress"):
            self._keep_clone(code)
        if may_drop and spec is not None and isinstance(spec.part, str):
            port = writer.numbers.fit(writer.headers.read(spec.header, spec.part), 64)
            code.store(port, SLOTS["egress_spec"])
            after = code.when(code.op(f"icmp eq i64 {port}, {DROP_PORT}"))
            code.give_back(self._unusual(code))
            code.start(after)
        else:
            code.store(0, SLOTS["egress_spec"])
        writer.hashes.update()
        self._deparse(code, writer)

    def _keep_clone(self, code: IrFunction) -> None:
        """Write the state that a clone made in egress enters egress with: headers as they are now, no metadata."""
        after = code.when(code.op(f"icmp sge i64 {code.load(SLOTS['clone_session'])}, 0"))
        size = self._layout.state_end - self._layout.state
        code.copy_pieces(self._layout.clone, self._layout.state, size)
        metadata = self._layout.state_metadata - self._layout.state
        code.clear(self._layout.clone + metadata, size - metadata)
        code.start(after)

    def _deparse(self, code: IrFunction, writer: PrimitiveCode) -> None:
        """Write the headers that are valid and the payload into the output."""
        room = Extent(header_bytes(self._program, self._layout), {FRAME_LENGTH: 1})
        output = code.pointer(SLOTS["output"], Region("output", room))
        size_at, most = code.room(8), 0
        code.store(0, 0, base=size_at)
        for header in self._program.emitted:
            if self._program.headers[header].metadata:
                continue
            after = code.when(writer.headers.valid(header))
            at = code.bound(code.load(0, base=size_at), most)
            code.store(writer.headers.emit(header, output, at), 0, base=size_at)
            code.start(after)
            most += self._layout.headers[header].size
        size = code.bound(code.load(0, base=size_at), most)
        payload, rest = writer.headers.payload("%frame", "%length")
        code.copy(code.address(size, output), payload, rest)
        whole = code.op(f"add i64 {size}, {rest}")
        code.give_back(code.op(f"or i64 {code.op(f'shl i64 {whole}, 1')}, {self._unusual(code)}"))
