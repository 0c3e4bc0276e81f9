"""A program as Python source: one function for ingress, one for egress, one to parse a clone of the original packet.

    ingress(packet)   parser, verify checksums, ingress control; leaves decisions and `state` on the packet
    egress(packet)    egress control; then, unless the packet is dropped, update checksums and deparser
    reparse(packet)   gives a clone that ingress asked for the state it enters egress with

`state` is a tuple. Its first item is what resubmit, recirculate and clone preserve, by field list. After ingress the
variables that egress needs follow, and the bytes of headers that it does not look at: so they are put together once for
all copies of a packet. A packet that ends after ingress has no state, unless it asked for a clone or to be resubmitted.
After egress the packet's bytes follow, and the state with which a clone that egress asked for enters egress.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

from tensorexpress.errors import ProgramError
from tensorexpress.switch.packet import DROP_PORT, EGRESS_CLONE, INGRESS_CLONE
from tensorexpress.switch.program.bmv2.values import Bmv2Program, FieldList, FieldRef
from tensorexpress.switch.program.budgets import MOST_LOOP_CHARACTERS, MOST_STEPS, Work
from tensorexpress.switch.program.codegen.context import Context
from tensorexpress.switch.program.codegen.control import ControlWriter
from tensorexpress.switch.program.codegen.expressions import ExpressionWriter
from tensorexpress.switch.program.codegen.headers import HeaderWriter
from tensorexpress.switch.program.codegen.lines import Lines
from tensorexpress.switch.program.codegen.parser import ParserWriter
from tensorexpress.switch.program.codegen.scope import Scope
from tensorexpress.switch.program.codegen.section import Section
from tensorexpress.switch.program.codegen.snippets import unsigned
from tensorexpress.switch.program.codegen.standard import (
    AT_EGRESS,
    AT_INGRESS,
    MEASURED,
    NO_DECISION,
    V1MODEL_BITS,
    standard_variables,
)
from tensorexpress.switch.program.codegen.variables import PACKED, VALID, Usage, Var, decision, is_decision

#: Each generation leaves out what only the one before needed, so this bounds the longest chain of such needs.
_MOST_GENERATIONS = 200


@dataclass(frozen=True)
class Generated:
    """Source text, and the identifiers under which it finds objects, by kind and name: ("table", "In.routes"), ...

    `labels` says what every counted identifier stands for, in the program's words; none of these is in the source.
    """

    source: str
    objects: dict[tuple[str, str], str]
    labels: dict[str, str]
    #: What the generation found out, for other back ends: the variables that the stages use, those that ingress hands
    #: to egress, and the steps that all loops of a stage together may take, by stage.
    usage: Usage
    carried: tuple[Var, ...]
    steps: dict[str, int]


def generate(program: Bmv2Program) -> Generated:
    """Return the source of a program; ProgramError names what it cannot run."""
    usage: Usage | None = None
    work = Work()
    for _ in range(_MOST_GENERATIONS):
        generation = _Generation(program, usage, work)
        generation.run()
        if generation.scope.usage == usage:
            return generation.result()
        usage = generation.scope.usage
    raise ProgramError("the program is too large: what it uses is not settled; leave out what no packet needs")


def _slot(var: Var) -> str:
    """Return the slot of a packet that takes a decision."""
    return "length" if var == decision("size") else var.part[1]


class _Generation:
    """One run over the program, with what the run before found out."""

    def __init__(self, program: Bmv2Program, previous: Usage | None, work: Work):
        self.program = program
        self.scope = Scope(program, previous, work)
        self.functions: list[list[str]] = []
        #: Headers whose bytes ingress hands to egress.
        self.packed_early: list[str] = []
        self.standard = standard_variables(program)

    def run(self) -> None:
        """Generate all functions; their beginnings and ends depend on what their bodies use."""
        ingress, egress = self.ingress_body(), self.egress_body()
        self.scope.stage = "egress"
        deparser = self.deparser()
        carried = self.carried()
        self.scope.lines = ingress
        ingress_end = self.ingress_end(carried)
        self.functions = [
            self.function("ingress", self.ingress_start(), ingress, ingress_end),
            self.function("egress", self.egress_start(carried), egress, deparser),
        ]
        if self.clones("clone_ingress_pkt_to_egress"):
            self.functions.append(self.reparse(carried))

    def source(self) -> str:
        """Return the whole text."""
        preamble = [f"{name} = {text}" for name, text in self.scope.identifiers.preamble.items()]
        return "\n".join([*preamble, *(line for lines in self.functions for line in ["", "", *lines])]) + "\n"

    def result(self) -> Generated:
        """Return what came out."""
        scope = self.scope
        return Generated(
            self.source(),
            scope.identifiers.objects,
            scope.identifiers.labels,
            scope.usage,
            tuple(self.carried()),
            {stage: self.steps(cost) for stage, cost in scope.loop_costs.items()},
        )

    @staticmethod
    def steps(cost: int) -> int:
        """Return how many steps all loops of a pass may take, by the characters that one step runs at most."""
        return min(MOST_STEPS, MOST_LOOP_CHARACTERS // cost)

    @staticmethod
    def function(name: str, start: Lines, body: Lines, end: Lines) -> list[str]:
        """Return a function put together from its parts."""
        lines = [f"def {name}(packet):"]
        return lines + [f"    {line}" for part in (start, body, end) for line in part.text]

    def function_start(self) -> Lines:
        """Return what every function begins with; all loops of a pass draw from the same steps."""
        lines = Lines()
        lines.add("frame = packet.frame")
        lines.add("length = len(frame)")
        cost = self.scope.loop_costs.get(self.scope.stage)
        if cost is not None:
            lines.add(f"steps = iter(range({self.steps(cost)}))")
        return lines

    def clones(self, primitive: str) -> bool:
        """Whether any action may ask for that kind of copy of the packet."""
        return primitive in self.program.primitives

    def ingress_body(self) -> Lines:
        """Return parser, verification and control."""
        self.scope.stage = "ingress"
        lines = Lines()
        section = Section(self.scope, lines)
        ParserWriter(section).parser()
        no_error = self.program.errors.get("NoError", 0)
        with lines.block(f"if parser_error != {no_error}:" if no_error else "if parser_error:"):
            lines.add("malformed[0] += 1")
        self.store(lines, "parser_error", "parser_error")
        if any(checksum.verify for checksum in self.program.checksums) and self.is_live("checksum_error"):
            lines.add("checksum_error = 0")
            section.checksums.checksums(verify=True)
            self.store(lines, "checksum_error", "checksum_error")
        ControlWriter(Section(self.scope, lines)).control(self.program.ingress)
        return lines

    def is_live(self, name: str) -> bool:
        """Whether anybody reads a field of the standard metadata."""
        return name in self.standard and self.scope.is_live(self.standard[name])

    def store(self, lines: Lines, name: str, text: str) -> None:
        """Write what the switch itself stores in a field of the standard metadata."""
        if name in self.standard:
            Context(self.scope, lines).put(self.standard[name], text)

    def carried(self) -> list[Var]:
        """Return the variables that ingress hands to egress."""
        usage = self.scope.usage
        replaced = {self.standard[name] for name in AT_EGRESS if name in self.standard}
        needed = usage.live["egress"] & (usage.written["ingress"] | self.preserved_variables())
        return sorted(
            (var for var in needed if var not in replaced and not is_decision(var)),
            key=lambda var: self.scope.identifiers.of(var),
        )

    def preserved_variables(self) -> set[Var]:
        """Return the fields that a resubmit, recirculate or clone may bring into a pass."""
        return {
            Var(item.header, item.field)
            for fields in self.program.field_lists.values()
            for item in fields.fields
            if isinstance(item, FieldRef)
        }

    def initial(self, lines: Lines, variables: Iterable[Var], values: dict[Var, str]) -> None:
        """Write the values that variables start with."""
        plain: dict[str, list[str]] = {}
        for var in sorted(variables, key=lambda var: self.scope.identifiers.of(var)):
            plain.setdefault(values.get(var) or self.scope.nothing(var), []).append(self.scope.identifiers.of(var))
        for value, names in sorted(plain.items()):
            for first in range(0, len(names), 12):
                lines.add(f"{' = '.join(names[first : first + 12])} = {value}")

    def standard_values(self, texts: dict[str, str]) -> dict[Var, str]:
        """Return what fields of the standard metadata start with, cut to their widths where it may be wider."""
        values = {}
        for name, text in texts.items():
            var = self.standard.get(name)
            if var is not None:
                assert isinstance(var.part, str)
                bits = self.program.field(FieldRef(var.header, var.part)).bits
                is_wider = text in MEASURED or bits < V1MODEL_BITS.get(name, bits + 1)
                values[var] = f"{text} & {hex((1 << bits) - 1)}" if is_wider else text
        return values

    def decisions(self, stage: str) -> dict[Var, str]:
        """Return the decisions that a stage may take, with what stands for none."""
        written = self.scope.usage.written[stage]
        return {decision(name): none for name, none in NO_DECISION.items() if decision(name) in written}

    def ingress_start(self) -> Lines:
        """Return the values that ingress starts with."""
        self.scope.stage = "ingress"
        lines = self.function_start()
        values = self.standard_values(AT_INGRESS)
        needed = self.scope.usage.exposed["ingress"]
        decisions = self.decisions("ingress")
        self.initial(lines, {var for var in needed if not is_decision(var)} | set(decisions), values | decisions)
        self.restore(lines, needed)
        return lines

    def restore(self, lines: Lines, needed: set[Var]) -> None:
        """Write how metadata that the pass before preserved comes back."""
        lists = {number: self.restorable(fields, needed) for number, fields in self.program.field_lists.items()}
        if not any(pairs for pairs in lists.values()):
            return
        with lines.block("if packet.preserved:"):
            lines.add("index, members = packet.preserved")
            for number, pairs in lists.items():
                if pairs:
                    with lines.block(f"if index == {number}:"):
                        for position, name in pairs:
                            lines.add(f"{name} = members[{position}]")

    def restorable(self, fields: FieldList, needed: set[Var]) -> list[tuple[int, str]]:
        """Return the positions in a field list and the names of the variables that matter here."""
        return [
            (position, self.scope.identifiers.of(Var(item.header, item.field)))
            for position, item in enumerate(fields.fields)
            if isinstance(item, FieldRef) and Var(item.header, item.field) in needed
        ]

    def keep(self, lines: Lines, stage: str) -> None:
        """Write what the next pass will want to have preserved, if there is to be one."""
        names = [decision(name) for name in ("clone_session", "resubmit_fields", "recirculate_fields")]
        asked = [self.scope.identifiers.of(var) for var in names if var in self.scope.usage.written[stage]]
        if not asked:
            return
        writer = ExpressionWriter(Context(self.scope, lines))
        lists = []
        for number, fields in self.program.field_lists.items():
            texts = [writer.value(item).text for item in fields.fields]
            lists.append(f"{number}: ({', '.join(texts)}{',' if len(texts) == 1 else ''})")
        with lines.block(f"if {' or '.join(f'{name} >= 0' for name in asked)}:"):
            lines.add(f"kept = {{{', '.join(lists)}}}")

    def ingress_end(self, carried: list[Var]) -> Lines:
        """Return what ingress leaves on the packet."""
        self.scope.stage = "ingress"
        lines = Lines()
        for name in ("egress_spec", "mcast_grp", "priority"):
            var = self.standard.get(name)
            if var is not None and var in self.scope.usage.written["ingress"] | self.preserved_variables():
                lines.add(f"packet.{name} = {self.scope.carry(var)}")
        for var in self.decisions("ingress"):
            self.scope.carry(var)
            if var == decision("digest"):
                self.send_digests(lines)
            else:
                lines.add(f"packet.{_slot(var)} = {self.scope.identifiers.of(var)}")
        lines.add("kept = None")
        self.keep(lines, "ingress")
        condition = self.goes_on()
        with lines.block(f"if {condition}:") if condition else nullcontext():
            self.leave_state(lines, "kept", carried)
        return lines

    def goes_on(self) -> str:
        """Return the text of whether a packet does not end after ingress; empty where none does."""
        spec, group = self.standard.get("egress_spec"), self.standard.get("mcast_grp")
        written = self.scope.usage.written["ingress"]
        if spec is None or spec not in written:
            return ""
        texts = [f"{self.scope.carry(spec)} != {DROP_PORT}"]
        if group is not None and group in written | self.preserved_variables():
            texts.append(self.scope.carry(group))
        # What is cloned or resubmitted leaves what it preserves.
        again = [decision(name) for name in ("clone_session", "resubmit_fields")]
        texts += [f"{self.scope.carry(var)} >= 0" for var in again if var in written]
        return " or ".join(texts)

    def leave_state(self, lines: Lines, kept: str, carried: list[Var]) -> None:
        """Write the state with which a packet enters egress."""
        writer = HeaderWriter(Context(self.scope, lines))
        for header in self.packed_early:
            lines.add(f"{self.early_name(header)} = {self.emitted(writer, header)}")
        names = [self.scope.carry(var) for var in carried]
        lines.add(f"packet.state = ({kept}, at, {', '.join(names + self.early_names())})")

    def early_name(self, header: str) -> str:
        """Return the identifier of the bytes that ingress makes of a header."""
        return self.scope.identifiers.of(Var(header, PACKED))

    def early_names(self) -> list[str]:
        """Return the identifiers of all bytes that ingress makes of headers."""
        return [self.early_name(header) for header in self.packed_early]

    def send_digests(self, lines: Lines) -> None:
        """Write the digest that was asked for, with the values that its fields have at the end of ingress."""
        name = self.scope.identifiers.of(decision("digest"))
        context = Context(self.scope, lines)
        writer = ExpressionWriter(context)
        for number, fields in self.program.digests.items():
            with lines.block(f"if {name} == {number}:"):
                texts = []
                for item in fields.fields:
                    code = writer.value(item)
                    if isinstance(item, FieldRef):
                        code = unsigned(code, self.program.field(item))
                    texts.append(code.text)
                values = f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
                lines.add(f"packet.digests = [({context.text(fields.name)}, {values})]")

    def egress_body(self) -> Lines:
        """Return the egress control."""
        self.scope.stage = "egress"
        lines = Lines()
        ControlWriter(Section(self.scope, lines)).control(self.program.egress)
        return lines

    def egress_start(self, carried: list[Var]) -> Lines:
        """Return the values that egress starts with."""
        self.scope.stage = "egress"
        lines = self.function_start()
        from_ingress = self.clones("clone_ingress_pkt_to_egress")
        from_egress = self.clones("clone_egress_pkt_to_egress")
        if from_ingress:
            with lines.block(f"if packet.instance_type == {INGRESS_CLONE}:"):
                lines.add("reparse(packet)")
        if from_egress:
            with lines.block(f"if packet.instance_type == {EGRESS_CLONE}:"):
                lines.add("packet.state = packet.state[2]")
        names = [self.scope.identifiers.of(var) for var in carried]
        lines.add(f"_, at, {', '.join(names + self.early_names())} = packet.state")
        if from_ingress or from_egress:
            with lines.block(f"if packet.instance_type in ({INGRESS_CLONE}, {EGRESS_CLONE}):"):
                self.restore(lines, set(carried))
        values = self.standard_values(AT_INGRESS | AT_EGRESS)
        needed = self.scope.usage.exposed["egress"] - set(carried)
        decisions = self.decisions("egress")
        self.initial(lines, {var for var in needed if not is_decision(var)} | set(decisions), values | decisions)
        return lines

    def deparser(self) -> Lines:
        """Return the end of egress: decisions, then the bytes that leave."""
        bytes_lines = Lines()
        section = Section(self.scope, bytes_lines)
        section.checksums.checksums(verify=False)
        touched = self.touched_by_egress()
        pieces = []
        for header in self.program.emitted:
            if header in touched or not self.scope.layouts.is_rebuilt(header):
                pieces.append(self.emitted(section.headers, header))
            else:
                if header not in self.packed_early:
                    self.packed_early.append(header)
                pieces.append(self.early_name(header))
        bytes_lines.add(f'packet.state = (kept, b"".join(({", ".join([*pieces, "frame[at:]"])},)), clone)')
        lines = self.egress_decisions()
        lines.text += bytes_lines.text
        return lines

    def touched_by_egress(self) -> set[str]:
        """Return the headers that the egress control or checksums look at or change."""
        usage = self.scope.usage
        return {var.header for var in usage.live["egress"] | usage.written["egress"] | usage.exposed["egress"]}

    def egress_decisions(self) -> Lines:
        """Return what egress leaves on the packet; a dropped one goes no further."""
        lines = Lines()
        spec = self.standard.get("egress_spec")
        written = self.scope.usage.written
        may_drop = spec is not None and spec in written["egress"]
        lines.add(f"packet.egress_spec = {self.scope.carry(spec) if may_drop and spec else 0}")
        for var in self.decisions("egress"):
            # Digests are for ingress alone.
            if var != decision("digest"):
                lines.add(f"packet.{_slot(var)} = {self.scope.carry(var)}")
        if decision("clone_session") in written["ingress"] - written["egress"]:
            lines.add("packet.clone_session = -1")
        lines.add("kept = clone = None")
        self.keep(lines, "egress")
        if decision("clone_session") in written["egress"]:
            with lines.block(f"if {self.scope.identifiers.of(decision('clone_session'))} >= 0:"):
                lines.add(f"clone = {self.clone_state()}")
        if may_drop:
            with lines.block(f"if packet.egress_spec == {DROP_PORT}:"):
                lines.add('packet.state = (kept, b"", clone)')
                lines.add("return")
        return lines

    def emitted(self, writer: HeaderWriter, header: str) -> str:
        """Return the text of a header's bytes, none where it is invalid."""
        text = writer.packed(header)
        if not self.scope.layouts.is_rebuilt(header):
            return text
        return f'{text} if {self.scope.carry(Var(header, VALID))} else b""'

    def clone_state(self) -> str:
        """Return the text of the state that a clone made in egress enters egress with: headers as they are now."""
        texts = ["0" if self.is_metadata(var) else self.scope.carry(var) for var in self.carried()]
        return f"(None, at, {', '.join(texts + self.early_names())})"

    def reparse(self, carried: list[Var]) -> list[str]:
        """Return the function that parses the frame again: clones made in ingress carry the original headers."""
        self.scope.stage = "ingress"
        start, body, end = self.function_start(), Lines(), Lines()
        usage, self.scope.usage = self.scope.usage, Usage()
        ParserWriter(Section(self.scope, body)).parser()
        self.initial(end, [var for var in carried if self.is_metadata(var)], {})
        self.leave_state(end, "None", carried)
        needed = self.scope.usage.exposed["ingress"] | set(carried)
        self.scope.usage = usage
        self.initial(start, needed, self.standard_values(AT_INGRESS))
        return self.function("reparse", start, body, end)

    def is_metadata(self, var: Var) -> bool:
        """Whether a variable belongs to a struct of metadata."""
        header = self.program.headers.get(var.header)
        return header is not None and header.metadata
