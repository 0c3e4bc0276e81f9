"""Where the writers of one stretch of code stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.bmv2.values import Lookahead
from tensorexpress.switch.program.codegen.lines import Lines
from tensorexpress.switch.program.codegen.scope import Scope
from tensorexpress.switch.program.codegen.snippets import Snippet
from tensorexpress.switch.program.codegen.variables import Var


class Context:
    """A stretch of code that is being written: its lines, the part of the program it comes from, and that one's terms.

    `parameters` are the values of the action's parameters; `lookahead` writes what a parser sees of the frame, None
    outside of one.
    """

    def __init__(self, scope: Scope, lines: Lines):
        self.scope = scope
        self.lines = scope.lines = lines
        self.where = "the program"
        self.parameters: Sequence[Snippet] = ()
        self.lookahead: Callable[[Lookahead], Snippet] | None = None

    def unsupported(self, what: str) -> ProgramError:
        """Return the error for something that cannot be run, with the place it stands in."""
        return ProgramError(f"{self.where} uses {what}; the embedded switch does not support that")

    def bound(self, code: Snippet) -> Snippet:
        """Return a value that stands more than once: what has to be computed is, before, and has a name then.

        Computing it in vain does no harm: expressions change nothing and cannot fail.
        """
        if code.atom:
            return code
        name = self.scope.identifiers.fresh("value", "")
        self.scope.lines.add(f"{name} = {code.text}")
        return Snippet(name, code.bits, code.signed, atom=True)

    def put(self, var: Var, text: str) -> None:
        """Write that a variable takes a value from outside the program, if anybody needs it."""
        name = self.scope.fill(var)
        if name is not None:
            self.lines.add(f"{name} = {text}")
            self.lines.settle(var)

    def now(self) -> str:
        """Return the text of the time that meters and idle timeouts go by."""
        return "packet.ingress_us" if self.scope.stage == "ingress" else "packet.egress_us"

    def text(self, text: str) -> str:
        """Return the identifier under which generated code finds a text of the program."""
        return self.scope.identifiers.object("text", text)
