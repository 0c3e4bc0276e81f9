"""Captures written by native code: the same files, byte for byte, as Python writes of the same frames and times."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.network import cable, needs_root
from support.passes import PROGRAMS
from support.random_tables import RandomTables
from support.thorough import one_in, rest
from test_device_process import SECONDS, frame
from test_native_loop import ALL_PROTOCOLS, DOCUMENTS, SETTINGS, compiled, copies, deployed, seeds_of

from tensorexpress.program_engines import NATIVE, PYTHON
from tensorexpress.switch import loop as loop_module
from tensorexpress.switch.counted import REFUSED
from tensorexpress.switch.emulated_cable import CableSettings
from tensorexpress.switch.faults import Faults
from tensorexpress.switch.link import SwitchEnd
from tensorexpress.switch.loop import BATCH, Loop, LoopSettings
from tensorexpress.switch.native import device as native_device
from tensorexpress.switch.native import trays
from tensorexpress.switch.native.device import NativeSwitch
from tensorexpress.switch.operations import Operation
from tensorexpress.switch.pcap import PcapWriter, TimedFrame, capture_name, file_header, read_pcap, record
from tensorexpress.switch.ports import InterfaceSpec, SocketSpec
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.switch.running import RunningSwitch
from tensorexpress.switch.traffic import PortSettings

PORTS = 4


class Clock:
    """A clock that the test moves, in the place of Python's `time` in the loop."""

    def __init__(self) -> None:
        self.now_ns = 5 * 10**9

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return 1_700_000_000 * 10**9 + self.now_ns


#: Where rounds.p4 writes when a packet came and left.
TIMES = slice(16, 28)


def frames_in(directory: Path) -> dict[str, list[bytes]]:
    """Return what captures hold, without times."""
    return {
        path.name: [each.data[: TIMES.start] + each.data[TIMES.stop :] for each in read_pcap(path)]
        for path in directory.iterdir()
    }


class CapturedLoop:
    """The loop of a forwarding process in this one, on sockets whose other ends the test has."""

    def __init__(self, stack: ExitStack, directory: Path, engine: str, **options: Any):
        self.directory, self.engine, self.clock = directory, engine, Clock()
        ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(PORTS)]
        control = [stack.enter_context(end) for _ in range(2) for end in socket.socketpair()]
        self.far = [stack.enter_context(far) for _, far in ends]
        ports = options.pop("ports", dict.fromkeys(range(PORTS), PortSettings()))
        specs = {number: (SocketSpec(near.detach()), ports[number]) for number, (near, _) in enumerate(ends)}
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(loop_module, "time", self.clock)
        given = LoopSettings(specs, pcap=str(directory), engine=engine, **options)
        self.loop = Loop(given, SwitchEnd(control[0], control[2]))
        #: Its other end is where the controlling process asks for something.
        self.control = control[1]
        patch.undo()
        stack.enter_context(self.loop._resources)

    def load(self, name: str, operations: list[Operation]) -> None:
        program = compiled(name, self.engine)
        configuration = self.loop.switch.prepare(program)
        for entry in program.entries:
            configuration.apply(entry)
        self.loop.switch.switch_over(configuration)
        self.loop.switch.apply(operations)

    def send(self, frames: list[tuple[int, bytes]]) -> None:
        for number, each in frames:
            self.far[number].send(each)

    def has_arrivals(self) -> bool:
        return bool(select.select(self.loop._ports.values(), (), (), 0)[0])

    def read(self) -> None:
        """Take what has left, and forget it."""
        while readable := select.select(self.far, (), (), 0)[0]:
            for end in readable:
                end.recv(2**17)

    def pass_on(self, frames: list[tuple[int, bytes]], wait_ns: int, *, read: bool = True) -> None:
        """Let frames arrive a while later, and do all that is to be done then; `read` takes what leaves."""
        self.clock.now_ns += wait_ns
        self.send(frames)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop_module, "time", self.clock)
            patch.setattr(loop_module, "select", SimpleNamespace(select=select_now))
            self.loop.take_turn()
            while self.has_arrivals():
                self.loop.take_turn()
        if read:
            self.read()


def select_now(readable: Any, writable: Any, others: Any, _: float) -> Any:
    """Wait for nothing: the clock stands still."""
    return select.select(readable, writable, others, 0)


@contextmanager
def both(directory: Path, **options: Any) -> Iterator[list[CapturedLoop]]:
    """A loop in Python and one in native code; their files are the same when they have ended."""
    with ExitStack() as stack:
        loops = [CapturedLoop(stack, directory / engine, engine, **options) for engine in (PYTHON, NATIVE)]
        assert isinstance(loops[1].loop.switch, NativeSwitch)
        yield loops
        statistics = [each.loop._statistics() for each in loops]
        assert statistics[0] == statistics[1]
    names = [capture_name(number, direction) for number in range(PORTS) for direction in ("in", "out")]
    for name in names:
        python, native = ((each.directory / name).read_bytes() for each in loops)
        assert python == native, name


FASTER = [PortSettings(), *(PortSettings(rate_bps=rate) for rate in (10**7, 10**9, 10**10))]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rates": {"ports": dict(enumerate(FASTER))},
    "buffers": {"ports": dict(enumerate(SETTINGS))},
    "faults": {"faults": Faults(loss=0.1, duplicate=0.1, reorder=0.1, corrupt=0.1)},
    "delays": {"cables": {1: CableSettings(arriving_ps=10**8, leaving_ps=10**7), 2: CableSettings(arriving_ps=5000)}},
    "losses": {"cables": {1: CableSettings(arriving_ps=10**8, leaving_ps=10**7), 2: CableSettings(leaving_loss=0.3)}},
}


@rest(but=8)
@one_in(2)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", [*PROGRAMS, "tensorexpress"])
def test_files_are_the_same_whatever_frames_ask_for(name: str, option: str, tmp_path: Path) -> None:
    """Clones, copies, packets that go round or are dropped, some of them in Python and some in native code."""
    choose, draw = Random(1), RandomTables(read_program(DOCUMENTS[name]), 1)
    changes = [*draw.first(), *copies(choose), *(deployed(8) if name == "tensorexpress" else ())]
    with both(tmp_path, **OPTIONS[option]) as loops:
        for each in loops:
            each.load(name, changes)
        for _ in range(25):
            now = [draw.operation() for _ in range(3)]
            count = choose.choice([0, 1, 3, 2 * BATCH])
            frames = [(choose.randrange(PORTS), draw.frame(seeds_of(name)) or b"x") for _ in range(count)]
            wait_ns = choose.choice([0, choose.randrange(10**4), choose.randrange(10**7)])
            for each in loops:
                each.loop.switch.apply(now)
                each.pass_on(frames, wait_ns)
        for each in loops:
            each.pass_on([], 10**10)


@settings(max_examples=15)
@given(
    tray_bytes=st.sampled_from([2048, 5000, 2**20]),
    most_bytes=st.sampled_from([1, 3000, 2**17]),
    turns=st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 7), st.integers(1, 1500)), max_size=70
            ),
            st.integers(0, 2 * 10**8),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_no_record_is_lost_or_out_of_order_where_trays_are_small(
    tray_bytes: int, most_bytes: int, turns: list[tuple[list[tuple[int, ...]], int]], tmp_path_factory: Any
) -> None:
    """Trays with room for one frame are emptied in the middle of batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trays, "TRAY_BYTES", tray_bytes)
        patch.setattr(native_device, "MOST_CAPTURED", most_bytes)
        with both(tmp_path_factory.mktemp("small"), ports=dict(enumerate(FASTER))) as loops:
            for each in loops:
                each.load("switchboard", [])
            for number, (drawn, wait_ns) in enumerate(turns):
                frames = [(source, frame(to, priority, size, number)) for source, to, priority, size in drawn]
                for each in loops:
                    each.pass_on(frames, wait_ns)


@pytest.mark.parametrize("tray_bytes", [2048, 2**20])
@pytest.mark.parametrize("name", ["switchboard", "rounds", "runtime", "headers"])
def test_turns_of_native_code_send_and_capture_what_turns_of_python_do(
    name: str, tray_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches, packets that are handed back in the middle of them, and trays that are full."""
    monkeypatch.setattr(trays, "TRAY_BYTES", tray_bytes)
    choose, draw, sent = Random(2), RandomTables(read_program(DOCUMENTS[name]), 2), 0
    changes = [*draw.first(), *copies(choose)]
    with ExitStack() as stack:
        python, native = (CapturedLoop(stack, tmp_path / engine, engine) for engine in (PYTHON, NATIVE))
        native.control.send(b"word")  # so that a turn is no longer than what there is to do
        for each in (python, native):
            each.load(name, changes)
        for _ in range(20):
            now = [draw.operation() for _ in range(3)]
            count = choose.choice([0, 1, 3, 2 * BATCH])
            frames = [(choose.randrange(PORTS), draw.frame(seeds_of(name)) or b"x") for _ in range(count)]
            sent += count
            python.loop.switch.apply(now)
            python.pass_on(frames, 0)
            native.loop.switch.apply(now)
            native.send(frames)
            while native.has_arrivals():
                started_ns = native.loop._started_ns
                native.loop.switch.forward(started_ns + 10**18, 0)
            native.read()
        statistics = [each.loop._statistics() for each in (python, native)]
        assert statistics[0] == statistics[1]
    captured = frames_in(tmp_path / NATIVE)
    assert frames_in(tmp_path / PYTHON) == captured
    assert sum(len(captured[capture_name(number, "in")]) for number in range(PORTS)) == sent


def test_records_are_written_as_of_the_clock_and_whole_frames(tmp_path: Path) -> None:
    sizes = [1, 14, 60, 1514, 9000, 65_000]
    with both(tmp_path) as loops:
        for each in loops:
            each.load("switchboard", [])
            for size in sizes:
                each.pass_on([(0, frame(1, size=100)[:size].ljust(size, b"\0"))], 1_000_000_007)
    times_ns = [1_700_000_000 * 10**9 + 5 * 10**9 + 1_000_000_007 * (1 + at) for at in range(len(sizes))]
    frames = [frame(1, size=100)[:size].ljust(size, b"\0") for size in sizes]
    expected = file_header() + b"".join(map(record, map(TimedFrame, times_ns, frames)))
    for name in (capture_name(0, "in"), capture_name(1, "out")):
        assert (tmp_path / NATIVE / name).read_bytes() == expected


def test_what_a_socket_refuses_is_in_no_capture(tmp_path: Path) -> None:
    """The other end of port 1 reads nothing, until there is no room for more; that of port 2 is gone."""
    with both(tmp_path) as loops:
        for each in loops:
            each.load("switchboard", [])
            with socket.socket(fileno=os.dup(each.loop._ports[1].fileno())) as near:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)
            each.far[2].close()
            each.far[2] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            for turn in range(20):
                sent = [(0, frame(1, size=9000, name=3 * turn + at)) for at in range(3)]
                each.pass_on([*sent, (0, frame(2))], 10**6, read=False)
            each.far[2].close()
        drops = [loops[1].loop._statistics().ports[number].drops for number in (1, 2)]
    out = [len(read_pcap(tmp_path / NATIVE / capture_name(number, "out"))) for number in (1, 2)]
    assert [drop[REFUSED] + count for drop, count in zip(drops, out, strict=True)] == [60, 20]
    assert min(out) > 0


def test_without_memory_for_trays_python_writes_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> Any:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(trays, "reserved", refuse)
    with both(tmp_path, ports=dict(enumerate(FASTER))) as loops:
        for each in loops:
            each.load("switchboard", [])
            for turn in range(5):
                each.pass_on([(at % 2, frame(at % 4, at % 8, name=at)) for at in range(20 * turn)], 10**6)
        assert not loops[1].loop._captured_directly


@pytest.mark.parametrize("engine", [PYTHON, NATIVE])
def test_a_full_disk_ends_captures_and_stops_no_packet(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: PcapWriter, records: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sent = [frame(1, name=name) for name in range(3 * BATCH)]
    with ExitStack() as stack:
        captured = CapturedLoop(stack, tmp_path, engine)
        captured.load("switchboard", [])
        captured.pass_on([(0, frame(1))], 0)
        monkeypatch.setattr(PcapWriter, "write_records", refuse)
        with caplog.at_level(logging.ERROR):
            for each in sent:
                captured.pass_on([(0, each)], 10**7, read=False)
                assert captured.far[1].recv(2**16) == each
        assert captured.loop._captures == {}
    assert [entry.message for entry in caplog.records] == ["captures end here: No space left on device"]


@needs_root
def test_frames_of_a_cable_are_captured_in_order_those_that_python_finishes_too(tmp_path: Path) -> None:
    """Frames with a VLAN tag, which the kernel has taken out, are for Python; those between them are not."""
    with ExitStack() as stack:
        names = [stack.enter_context(cable(1500)) for _ in range(2)]
        ends = [stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) for _ in names]
        for end, (_, far) in zip(ends, names, strict=True):
            end.bind((far, ALL_PROTOCOLS))
            end.settimeout(SECONDS)
        ports = {number: (InterfaceSpec(near), PortSettings()) for number, (near, _) in enumerate(names)}
        given = LoopSettings(ports, pcap=str(tmp_path), engine=NATIVE)
        switch = stack.enter_context(RunningSwitch(given, None))
        switch.data_path.load(DOCUMENTS["switchboard"])
        sent = []
        for name in range(50):
            plain = frame(1, size=80, name=name)
            sent.append(plain[:12] + bytes.fromhex("81000005") + plain[12:] if name % 3 == 1 else plain)
            ends[0].send(sent[-1])
        for _ in sent:
            ends[1].recv(65536)
    for name in (capture_name(0, "in"), capture_name(1, "out")):
        assert [each.data for each in read_pcap(tmp_path / name)] == sent
