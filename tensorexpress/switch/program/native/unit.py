"""What the writers of one program's native code share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorexpress.switch.program.bmv2.values import Bmv2Program
from tensorexpress.switch.program.codegen.generate import Generated
from tensorexpress.switch.program.codegen.standard import standard_variables
from tensorexpress.switch.program.codegen.variables import Var
from tensorexpress.switch.program.native.code import IrModule
from tensorexpress.switch.program.native.layout import Layout, WordCell
from tensorexpress.switch.program.native.regions import Region


@dataclass(frozen=True, slots=True)
class Upcall:
    """A call of native code to Python: what is called, by kind and name, and where its arguments are."""

    kind: str
    name: str
    arguments: tuple[WordCell, ...]


@dataclass
class Unit:
    """A program that is being written, and what the Python back end found out about it."""

    program: Bmv2Program
    generated: Generated
    module: IrModule
    layout: Layout
    calls: list[Upcall] = field(default_factory=list)
    #: Bytes that the inputs of a hash take at most, payload not counted, and the memory that they are put together in.
    scratch_bytes: int = 0
    scratch: Region = field(default_factory=lambda: Region("scratch", None))

    def __post_init__(self) -> None:
        self.standard = standard_variables(self.program)
        self._live = frozenset(var for stage in self.generated.usage.live.values() for var in stage)

    def is_live(self, var: Var) -> bool:
        """Whether anything needs the value of a variable."""
        return var in self._live

    def is_written(self, var: Var, stage: str) -> bool:
        """Whether a stage may give a variable a value."""
        return var in self.generated.usage.written[stage]

    def call(self, kind: str, name: str, arguments: Sequence[WordCell] = ()) -> int:
        """Return the number of a call to Python."""
        self.calls.append(Upcall(kind, name, tuple(arguments)))
        return len(self.calls) - 1
