"""What a controller has set: a program that is loaded, and where copies of packets go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tensorexpress.switch.operations import Entry, Operation, Query, SetCloneSession, SetMulticastGroup
from tensorexpress.switch.packet import SwitchPacket
from tensorexpress.switch.program.compiled import CompiledProgram


class LoadedProgram(Protocol):
    """What the switch needs of a loaded program; `pipeline.Pipeline` is one."""

    @property
    def state_bytes(self) -> int:
        """Bytes that a packet carries from ingress to egress."""
        ...

    def ingress(self, packet: SwitchPacket) -> None:
        """Run parser, checksum verification and ingress control."""
        ...

    def egress(self, packet: SwitchPacket) -> None:
        """Run egress control and checksum update."""
        ...

    def deparse(self, packet: SwitchPacket) -> bytes:
        """Return the frame as it leaves."""
        ...

    def preserve(self, packet: SwitchPacket, field_list: int) -> tuple[Any, ...]:
        """Return the metadata that the next pass keeps."""
        ...

    def apply(self, operation: Operation) -> None:
        """Change tables and externs."""
        ...

    def ask(self, query: Query) -> Iterable[Any]:
        """Read tables and externs."""
        ...

    def idle_entries(self, now_us: int) -> Iterable[Entry | None]:
        """Return the entries whose idle timeout has passed, and None for others that were looked at."""
        ...

    def swap(self, program: CompiledProgram) -> None:
        """Run the same program as other machine code from now on, with all state as it is."""
        ...

    def dismantle(self) -> Iterable[None]:
        """Give all memory back in small steps; no packet comes any more."""
        ...


class Configuration:
    """What a controller has set: a program with its state, and where copies of packets go."""

    def __init__(self, program: LoadedProgram | None = None) -> None:
        self.program = program
        #: Group -> (port, replication id) of its copies.
        self.groups: dict[int, tuple[tuple[int, int], ...]] = {}
        self.sessions: dict[int, SetCloneSession] = {}
        #: How often groups were set.
        self.group_changes = 0

    def apply(self, operation: Operation) -> None:
        """Do one operation."""
        if isinstance(operation, SetMulticastGroup):
            self.groups[operation.group] = operation.replicas
            self.group_changes += 1
        elif isinstance(operation, SetCloneSession):
            self.sessions[operation.session] = operation
        elif self.program is not None:
            self.program.apply(operation)

    def ask(self, query: Query) -> Iterable[Any]:
        """Return the answer to a query."""
        return self.program.ask(query) if self.program is not None else ()
