"""A pipeline that runs every packet in Python and in native code, and demands that both do the same.

What leaves, what is decided and all state (registers, counters, counts of entries) are compared after every stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import cache
from typing import Any

import pytest

from tensorexpress.program_engines import AUTO, NATIVE
from tensorexpress.switch import device
from tensorexpress.switch.operations import Entry, Operation, Query
from tensorexpress.switch.packet import EndlessLoop, SwitchPacket
from tensorexpress.switch.program.compiled import CompiledProgram, compile_program
from tensorexpress.switch.program.engines import make_pipeline
from tensorexpress.switch.program.native.pipeline import NativePipeline
from tensorexpress.switch.program.pipeline import Pipeline

#: What a pass decides about a packet.
DECISIONS = (
    "clone_session",
    "digests",
    "egress_spec",
    "length",
    "mcast_grp",
    "priority",
    "recirculate_fields",
    "resubmit_fields",
    "truncate_bytes",
)


@cache
def _compiled(document: bytes) -> CompiledProgram:
    """Return a program compiled once, though many tests start with one that nothing has happened to."""
    return compile_program(document, NATIVE)


class TwinPipelines(Pipeline):
    """The Python pipeline itself, with a native one beside it."""

    def __init__(self, program: bytes | CompiledProgram, seed: int = 0):
        compiled = _compiled(program) if isinstance(program, bytes) else program
        twin = make_pipeline(compiled, seed)
        assert isinstance(twin, NativePipeline)
        self.twin = twin
        self._seen: dict[str, tuple[list[int], bytes]] = {}
        super().__init__(compiled, seed)
        self._run = {"ingress": self.ingress, "egress": self.egress}
        self.ingress = lambda packet: self._both("ingress", packet)
        self.egress = lambda packet: self._both("egress", packet)
        if isinstance(program, bytes):
            for entry in compiled.entries:
                self.apply(entry)

    def _both(self, stage: str, packet: SwitchPacket) -> None:
        other, preserved = copy(packet), packet.preserved
        packet.state, other.state = packet.state or ((), ())
        packet.preserved, other.preserved = preserved or ((), ())
        endless = is_endless(self._run[stage], packet)
        assert is_endless(getattr(self.twin, stage), other) == endless, (stage, packet.frame.hex())
        self.compare()
        if endless:
            raise EndlessLoop
        # Without a session there is no clone that could keep fields.
        for name in (*DECISIONS, *(["clone_fields"] if packet.clone_session >= 0 else [])):
            mine, its = getattr(packet, name), getattr(other, name)
            assert mine == its, (stage, name, mine, its, packet.frame.hex())
        if stage == "egress":
            mine, its = packet.state[1], other.state[1]
            assert mine == its, (mine.hex(), its.hex(), packet.frame.hex())
        packet.state, packet.preserved = (packet.state, other.state), preserved

    def compare(self) -> None:
        """Demand that registers, counters and what entries count are the same."""
        assert self.malformed == self.twin.malformed
        assert self.broken_claims == self.twin.broken_claims
        for name, array in self._arrays["register"].items():
            # Most registers are large, and most packets change none.
            its = self.twin._arrays["register"][name]
            seen = self._seen.get(name)
            if seen is None or array.cells != seen[0] or its.block.data != seen[1]:
                assert array.read(None) == its.read(None), name
                self._seen[name] = array.read(None), bytes(its.block.data)
        for name, array in self._arrays["counter"].items():
            assert list(array.read(None)) == list(self.twin._arrays["counter"][name].read(None)), name
        for name, table in self._tables.items():
            mine = {place: (row.packets, row.bytes, row.hit_us) for place, row in table.rows.items()}
            its = {place: (row.packets, row.bytes, row.hit_us) for place, row in self.twin._tables[name].rows.items()}
            assert mine == its, name

    def deparse(self, packet: SwitchPacket) -> bytes:
        mine, its = copy(packet), copy(packet)
        mine.state, its.state = packet.state
        left = super().deparse(mine)
        assert left == self.twin.deparse(its)
        return left

    def preserve(self, packet: SwitchPacket, field_list: int) -> tuple[Any, ...]:
        mine, its = copy(packet), copy(packet)
        mine.state, its.state = packet.state
        preserved = super().preserve(mine, field_list), self.twin.preserve(its, field_list)
        return preserved if any(preserved) else ()

    def apply(self, operation: Operation) -> None:
        super().apply(operation)
        self.twin.apply(operation)

    def ask(self, query: Query) -> Iterable[Any]:
        mine, its = list(super().ask(query)), list(self.twin.ask(query))
        assert mine == its, query
        return mine

    def idle_entries(self, now_us: int) -> Iterator[Entry | None]:
        mine, its = list(super().idle_entries(now_us)), list(self.twin.idle_entries(now_us))
        assert mine == its
        return iter(mine)

    def dismantle(self) -> Iterator[None]:
        yield from super().dismantle()
        yield from self.twin.dismantle()


def both(document: bytes) -> Pipeline:
    """Return a program that packets pass in both engines, in Python alone where it cannot be native code."""
    program = compile_program(document, AUTO)
    if program.native is None:
        return Pipeline(document)
    twins = TwinPipelines(program)
    for entry in program.entries:
        twins.apply(entry)
    return twins


@cache
def _for_both(document: bytes) -> CompiledProgram:
    return compile_program(document, NATIVE)


def make_twins(program: CompiledProgram) -> TwinPipelines:
    return TwinPipelines(program)


@contextmanager
def twins_in_switches() -> Iterator[None]:
    """Let every switch of this process run its programs in both engines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "compile_program", lambda document, engine: _for_both(document))
        patch.setattr(device, "make_pipeline", make_twins)
        yield


def is_endless(run: Any, packet: SwitchPacket) -> bool:
    try:
        run(packet)
    except EndlessLoop:
        return True
    return False
