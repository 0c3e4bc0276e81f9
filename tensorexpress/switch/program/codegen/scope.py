"""What the writers of generated code share in one generation of a program: which variable is used where."""

from __future__ import annotations

from tensorexpress.switch.program.bmv2.values import Bmv2Program, HeaderInfo
from tensorexpress.switch.program.budgets import Work
from tensorexpress.switch.program.codegen.identifiers import Identifiers
from tensorexpress.switch.program.codegen.layout import Layouts
from tensorexpress.switch.program.codegen.lines import Lines
from tensorexpress.switch.program.codegen.variables import BYTES, NEXT, VALID, Usage, Var


class Scope:
    """The variables of one generation. `stage` and `lines` are where it is at; `usage` is what it found out so far."""

    def __init__(self, program: Bmv2Program, previous: Usage | None, work: Work):
        self.program = program
        self.work = work
        self.previous = previous
        self.identifiers = Identifiers(work)
        self.layouts = Layouts(program, previous, work)
        self.usage = Usage()
        self.stage = "ingress"
        self.lines = Lines()
        #: Characters of code that one step of a loop runs at most, by stage; only stages with loops are there.
        self.loop_costs: dict[str, int] = {}
        self.union_of = {header: union for union in program.unions.values() for header in union.headers}

    def read(self, var: Var) -> str:
        """Return the identifier of a variable whose value the program uses."""
        self.usage.wanted.add(var)
        return self.carry(var)

    def carry(self, var: Var) -> str:
        """Return the identifier of a variable that has to be there, though the program does not look at it."""
        self.usage.live[self.stage].add(var)
        if not self.lines.is_settled(var):
            self.usage.exposed[self.stage].add(var)
        return self.identifiers.of(var)

    def is_live(self, var: Var) -> bool:
        """Whether anything needs the value of a variable."""
        self.work.spend()
        return self.previous is None or any(var in live for live in self.previous.live.values())

    def write(self, var: Var) -> str | None:
        """Return the identifier of a variable that the program sets, None when nobody needs it."""
        self.usage.changed.add(var)
        return self.fill(var)

    def fill(self, var: Var) -> str | None:
        """Return the identifier of a variable that is set from outside, None when nobody needs it."""
        if not self.is_live(var):
            return None
        self.usage.written[self.stage].add(var)
        return self.identifiers.of(var)

    def header(self, name: str) -> HeaderInfo:
        """Return what is known of a header."""
        return self.program.headers[name]

    def nothing(self, var: Var) -> str:
        """Return the text of a variable's value before anything was stored in it."""
        if var.part == BYTES:
            return 'b""'
        if var.part in (VALID, NEXT) or var.header not in self.program.headers:
            return "0"
        for slot in self.layouts.slots(var.header) if not self.header(var.header).metadata else ():
            if var.part in slot.parts():
                if slot.mode == "raw":
                    return self.identifiers.constant(f"bytes({slot.size})")
                return 'b""' if slot.mode == "varbit" else "0"
        found = self.header(var.header).type.field(var.part) if isinstance(var.part, str) else None
        return 'b""' if found is not None and found.varbit else "0"
