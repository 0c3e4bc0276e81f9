"""Machine code optimised while packets pass what was there first: both do the same, and nothing is left behind."""

from __future__ import annotations

import logging
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.passes import document
from support.random_tables import RandomTables
from support.thorough import rest
from test_device_process import wires
from test_native_loop import DOCUMENTS, PORTS, SETTINGS, Loops, compiled, copies, memory_of, seeds_of, timed
from test_pipeline_stateful import command

from tensorexpress import machine_code, user_cache
from tensorexpress.errors import ProgramError
from tensorexpress.program_engines import NATIVE
from tensorexpress.switch import compiling
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.switch.native import words
from tensorexpress.switch.native.build import functions
from tensorexpress.switch.operations import MeterRates, ReadCounter, ReadRegister, SetMeter
from tensorexpress.switch.ports import WireSpec
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.switch.program.compiled import CompiledProgram, compile_program
from tensorexpress.switch.program.native.pipeline import NativePipeline
from tensorexpress.switch.running import RunningSwitch
from tensorexpress.switch.traffic import PortSettings

# What code does.


@cache
def first(name: str) -> CompiledProgram:
    """Return a program as it is before it is optimised, whatever was optimised before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_code, "kept_machine_code", lambda text: None)
        program = compile_program(DOCUMENTS[name], NATIVE, optimised=False)
    assert program.native is not None
    assert program.native.ir
    return program


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=rest() if name == "tensorexpress" else ()) for name in DOCUMENTS]
)
def test_memory_is_laid_out_by_the_program_and_not_by_how_its_code_was_made(name: str) -> None:
    early, late = first(name).native, compiled(name, NATIVE).native
    assert early is not None
    assert late is not None
    assert early.layout == late.layout
    assert early.code != late.code


@rest(but=3)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_code_is_swapped_under_random_traffic_and_nobody_can_tell(name: str) -> None:
    draws = read_program(DOCUMENTS[name])
    for seed, port in enumerate(SETTINGS):
        choose, draw = Random(seed), RandomTables(draws, seed)
        loops = Loops(name, ports=dict.fromkeys(range(PORTS), port), default=port)
        loops.do("apply", [*draw.first(), *copies(choose)])
        # One loop has optimised code and gets the other, one the other way round, with packets in all queues.
        codes = [compiled(name, NATIVE), first(name)]
        now_ps = 0
        for _ in range(6):
            for switch, code in zip(loops.switches, codes, strict=True):
                before = [*map(bytes, blocks(switch))]
                stages = pipeline_of(switch).stages
                switch.swap(code)
                assert [*map(bytes, blocks(switch))] == before
                assert pipeline_of(switch).stages != stages
            arena = loops.native._arena
            assert (arena[words.INGRESS], arena[words.EGRESS]) == pipeline_of(loops.native).stages
            codes.reverse()
            loops.do(
                "apply", [draw.operation() for _ in range(40)]
            )  # more than the first index of a table has room for
            arrivals = timed(choose, [draw.frame(seeds_of(name)) for _ in range(choose.randrange(1, 30))], now_ps)
            now_ps = arrivals[-1][2]
            loops.do("receive_many", arrivals)
        loops.run_out()


def pipeline_of(switch: Any) -> NativePipeline:
    pipeline = switch.configuration.program
    assert isinstance(pipeline, NativePipeline)
    return pipeline


def blocks(switch: Any) -> Iterator[Any]:
    """Yield the memory of a program: what is told and kept of packets, and its tables, registers and counters."""
    pipeline = pipeline_of(switch)
    yield pipeline.context.data
    for table in pipeline._tables.values():
        yield table.rows_block.data  # type: ignore[attr-defined]
    yield from (part for part in memory_of(switch) if not isinstance(part, list))


def test_code_of_another_program_is_refused_and_changes_nothing() -> None:
    loops = Loops("stateful")
    stages = pipeline_of(loops.native).stages
    with pytest.raises(ProgramError, match="this machine code is of another program"):
        loops.native.swap(compiled("matching", NATIVE))
    assert pipeline_of(loops.native).stages == stages
    loops.do("receive", 0, command(1, 3, 7), 0)


# Who makes it, and when.


class Optimiser:
    """Holds processes that optimise until they may, and knows all that were started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.begun = threading.Event()
        self._hold, self._release = os.pipe()
        self._start, self._answer = compiling._start, compiling._answer
        monkeypatch.setattr(compiling, "_start", self.start)
        monkeypatch.setattr(compiling, "_answer", self.answer)

    def start(self, call: str) -> subprocess.Popen[bytes]:
        self.calls.append(call.split("(")[0])
        process = self._start(self.spoilt(call))
        if call.startswith("optimise_here"):
            self.processes.append(process)
            self.begun.set()
        return process

    def spoilt(self, call: str) -> str:
        return call

    def answer(self, process: subprocess.Popen[bytes], given: bytes) -> bytes:
        if process in self.processes:
            handle = os.pidfd_open(process.pid)
            select.select([handle, self._hold], (), ())  # it may be ended while it waits
            os.close(handle)
        return self._answer(process, given)

    def let_go(self) -> None:
        os.write(self._release, b"x")

    def close(self) -> None:
        os.close(self._hold)
        os.close(self._release)


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which nothing is but the loop itself."""
    functions()
    kept = user_cache.cache_directory("functions")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shutil.copytree(kept, user_cache.cache_directory("functions"))
    monkeypatch.setattr(compiling, "_kept", {})
    compile_program.cache_clear()  # what this process has compiled is kept elsewhere
    return tmp_path


@pytest.fixture
def optimiser(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Optimiser]:
    made = Optimiser(monkeypatch)
    yield made
    made.close()


class Recorded(RunningSwitch):
    """A switch that notes what its forwarding process was given: what it was asked, and which code."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.given: list[tuple[str, bytes]] = []
        call = self.data_path._call

        def noted(what: str, *values: Any) -> Any:
            if what in ("prepare", "swap"):
                program = pickle.loads(values[0])
                self.given.append((what, program.native.code))
            return call(what, *values)

        self.data_path._call = noted  # type: ignore[method-assign]


@contextmanager
def switch_on_wires(name: str | None = "stateful") -> Iterator[tuple[Recorded, socket.socket, socket.socket]]:
    with ExitStack() as stack:
        ends = wires(stack, 2)
        specs = {number: (WireSpec(near, far.getsockname()), PortSettings()) for number, (far, near) in enumerate(ends)}
        switch = stack.enter_context(Recorded(LoopSettings(specs, engine=NATIVE), None))
        if name is not None:
            switch.data_path.load(document(name))
        yield switch, ends[0][0], ends[1][0]


#: Bytes behind each command: so many that a meter of 1 byte/s cannot let another frame pass while a test runs.
PADDING = 1485


def answered(left: socket.socket, right: socket.socket, *parts: int) -> bytes:
    left.send(command(*parts) + bytes(PADDING))
    return right.recv(2048)


def state(switch: RunningSwitch) -> list[list[Any]]:
    return switch.data_path.ask([ReadRegister("In.cells", None), ReadCounter("In.seen", None)])


def assert_nothing_is_left(optimiser: Optimiser) -> None:
    assert not [thread for thread in threading.enumerate() if thread.name == "optimisation"]
    assert not compiling._optimisations
    assert all(process.returncode is not None for process in optimiser.processes)
    for kind in ("native", "programs"):
        directory = user_cache.cache_directory(kind)
        names = [path.name for path in directory.iterdir()] if directory.exists() else []
        assert all(name.endswith((".o", ".pickle")) for name in names)


def kept_program() -> compiling.Compiled:
    """Return the one program that is on disk."""
    (path,) = user_cache.cache_directory("programs").iterdir()
    found = user_cache.kept("programs", path.name)
    assert found is not None
    program = pickle.loads(found)
    assert isinstance(program, compiling.Compiled)
    return program


def test_frames_pass_at_once_and_go_on_through_optimised_code_with_all_state(
    optimiser: Optimiser, caplog: pytest.LogCaptureFixture
) -> None:
    with switch_on_wires() as (switch, left, right):
        switch.data_path.apply([SetMeter("In.rates", 2, MeterRates(cir=1, cburst=1500, pir=1, pburst=3000))])
        answers = [answered(left, right, *parts) for parts in ((1, 3, 0x12345), (2, 3), (3, 2), (3, 2), (3, 2))]
        before = state(switch)
        assert before == [[0, 0, 0, 0x12345, 0, 0, 0, 0], [(0, 0)] * 2 + [(3, 4500), (2, 3000)] + [(0, 0)] * 4]
        assert [what for what, _ in switch.given] == ["prepare"]
        assert kept_program().ir
        optimiser.let_go()
        switch.data_path.wait_for_code()
        assert state(switch) == before
        (_, first_code), (swapped, code) = switch.given
        assert swapped == "swap"
        assert code != first_code
        # What was stored is found, and the meter has as little left as before.
        assert [answered(left, right, *parts) for parts in ((2, 3), (3, 2))] == [answers[1], answers[4]]
        assert state(switch)[1] == [(0, 0)] * 2 + [(4, 6000), (3, 4500)] + [(0, 0)] * 4
        kept = kept_program()
        assert not kept.ir
        assert pickle.loads(kept.program).native.code == code
    assert_nothing_is_left(optimiser)
    assert not caplog.messages
    # From now on it is there at once, and nothing is compiled.
    compiling._kept.clear()
    with switch_on_wires() as (switch, left, right):
        switch.data_path.wait_for_code()
        assert switch.given == [("prepare", code)]
        assert answered(left, right, 1, 3, 0x12345) == answers[0]
    assert optimiser.calls == ["compile_here", "optimise_here"]


@rest()
def test_a_stop_ends_the_optimisation_and_the_next_start_goes_on_from_there(optimiser: Optimiser) -> None:
    with switch_on_wires():
        optimiser.begun.wait()
    assert_nothing_is_left(optimiser)
    assert [process.returncode for process in optimiser.processes] == [-signal.SIGKILL]
    compiling._kept.clear()
    optimiser.let_go()
    with switch_on_wires() as (switch, left, right):
        switch.data_path.wait_for_code()
        assert [what for what, _ in switch.given] == ["prepare", "swap"]
        answered(left, right, 1, 3, 5)
    assert optimiser.calls == ["compile_here", "optimise_here", "optimise_here"]
    assert_nothing_is_left(optimiser)


@rest()
def test_a_program_that_is_replaced_is_not_optimised_any_more(
    optimiser: Optimiser, caplog: pytest.LogCaptureFixture
) -> None:
    with switch_on_wires() as (switch, left, right):
        optimiser.begun.wait()
        switch.data_path.load(document("switchboard"))
        assert optimiser.processes[0].returncode == -signal.SIGKILL
        frame = bytes([2, 0, 0, 0, 0, 1]).ljust(60, b"\0")
        left.send(frame)
        assert right.recv(2048) == frame
        optimiser.let_go()
        switch.data_path.wait_for_code()
        assert [what for what, _ in switch.given] == ["prepare", "prepare", "swap"]
        left.send(frame)
        assert right.recv(2048) == frame
    assert_nothing_is_left(optimiser)
    assert not caplog.messages


@rest()
def test_the_same_program_again_is_optimised_once(optimiser: Optimiser) -> None:
    with switch_on_wires() as (switch, left, right):
        optimiser.begun.wait()
        answered(left, right, 1, 3, 5)
        switch.data_path.load(document("stateful"))
        assert state(switch)[0] == [0] * 8
        optimiser.let_go()
        switch.data_path.wait_for_code()
        assert [what for what, _ in switch.given] == ["prepare", "prepare", "swap"]
    assert optimiser.calls == ["compile_here", "optimise_here"]
    assert_nothing_is_left(optimiser)


@rest()
def test_switches_of_one_process_share_an_optimisation_until_the_last_is_gone(optimiser: Optimiser) -> None:
    with switch_on_wires() as (staying, left, right):
        with switch_on_wires():
            optimiser.begun.wait()
        assert optimiser.processes[0].poll() is None
        optimiser.let_go()
        staying.data_path.wait_for_code()
        assert [what for what, _ in staying.given] == ["prepare", "swap"]
        answered(left, right, 1, 3, 5)
    assert optimiser.calls == ["compile_here", "optimise_here"]
    assert_nothing_is_left(optimiser)


def test_a_forwarding_process_that_dies_meanwhile_leaves_nothing(
    optimiser: Optimiser, caplog: pytest.LogCaptureFixture
) -> None:
    with switch_on_wires() as (switch, _, _):
        optimiser.begun.wait()
        pid = switch.data_path.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        switch.wait()
        optimiser.let_go()
        switch.data_path.wait_for_code()
        assert switch.stop() is None
    assert_nothing_is_left(optimiser)
    assert not caplog.messages
    assert not kept_program().ir


@rest()
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (
            "LONGEST_SECONDS = 1; compiling.optimise_program = lambda *given: any(iter(int, 1))",
            "the program takes more than 30 s to compile; make it smaller",
        ),
        ("LARGEST_MEMORY_BYTES = 1", "the program "),
    ],
    ids=["time", "memory"],
)
def test_an_optimisation_that_takes_too_much_leaves_the_code_that_is_there_and_one_line_says_so(
    spoil: str, why: str, optimiser: Optimiser, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        optimiser, "spoilt", lambda call: call if call.startswith("compile") else f"{spoil}; compiling.{call}"
    )
    optimiser.let_go()
    with caplog.at_level(logging.WARNING), switch_on_wires() as (switch, left, right):
        sent = answered(left, right, 1, 3, 5)
        switch.data_path.wait_for_code()
        (message,) = caplog.messages
        assert message.startswith(f"packets go on through machine code that is not optimised: {why}")
        assert [what for what, _ in switch.given] == ["prepare"]
        assert answered(left, right, 1, 3, 5) == sent
        assert kept_program().ir
    assert_nothing_is_left(optimiser)


def test_code_that_was_optimised_before_is_used_from_the_start(cache_home: Path) -> None:
    program = compile_program(document("stateful"), NATIVE)
    with switch_on_wires() as (switch, left, right):
        answered(left, right, 1, 3, 5)
        assert program.native is not None
        assert switch.given == [("prepare", program.native.code)]
        switch.data_path.wait_for_code()
        assert len(switch.given) == 1
