"""The loop in native code: the same as in Python frame for frame and picosecond for picosecond, whatever arrives."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.deployed import PROGRAM, framed, planned, tagged
from support.network import cable, needs_root
from support.passes import PROGRAMS, document
from support.random_tables import RandomTables
from support.summing import SummingNetwork, operations, random_sums, star_plan
from support.thorough import one_in, rest
from test_device_process import SECONDS, frame, running
from test_pipeline_programs import changed

from tensorexpress.control.deploy import entries
from tensorexpress.control.intent import Intent, Options
from tensorexpress.program_engines import NATIVE, PYTHON
from tensorexpress.switch.counted import BUFFER_FULL, REFUSED
from tensorexpress.switch.device import IDLE_CHECK_PS, Switch
from tensorexpress.switch.engines import make_switch
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.switch.native import arena, words
from tensorexpress.switch.native import device as native_device
from tensorexpress.switch.native.device import NativeSwitch
from tensorexpress.switch.native.port import NativePort
from tensorexpress.switch.operations import Notice, Operation, SetCloneSession, SetMulticastGroup
from tensorexpress.switch.packed import PackedFrames
from tensorexpress.switch.ports import InterfaceSpec
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.switch.program.compiled import CompiledProgram, compile_program
from tensorexpress.switch.program.native.pipeline import NativePipeline
from tensorexpress.switch.program.pipeline import Pipeline
from tensorexpress.switch.running import RunningSwitch
from tensorexpress.switch.traffic import PortSettings

DOCUMENTS = {**{name: document(name) for name in PROGRAMS}, "tensorexpress": PROGRAM.document}
PORTS = 4

#: Rates and buffers that packets have to wait and are dropped at, and some that they never are.
SETTINGS = [
    PortSettings(),
    PortSettings(rate_bps=10**7),
    PortSettings(rate_bps=10**9, queues=3, buffer_bytes=5000),
    PortSettings(rate_bps=3 * 10**8, discipline="fifo", buffer_bytes=0, overhead_bytes=0),
]

Arrivals = list[tuple[int, bytes, int]]


@cache
def compiled(name: str, engine: str) -> CompiledProgram:
    return compile_program(DOCUMENTS[name], engine)


class Loops:
    """A switch with the loop in Python and one with the loop in native code, asked the same things.

    `engine` is what the program runs in beside the loop in Python; beside that in native code it is native. `packed`
    hands frames to that, and takes them from it, in one piece of memory.
    """

    def __init__(self, name: str, engine: str = NATIVE, *, packed: bool = False, **options: Any):
        self._engine, self._packed = engine, packed
        self.sent: list[list[tuple[int, bytes, int]]] = [[], []]
        self.notices: list[list[Notice]] = [[], []]
        self.switches: list[Switch] = []
        for kind, sent, notices in zip((Switch, NativeSwitch), self.sent, self.notices, strict=True):
            switch: Switch = kind(lambda *left, sent=sent: sent.append(left), notices.append, **options)
            self.switches.append(switch)
        if packed:
            self.native.transmit_many(self.sent[1].extend)
        self.load(name)

    @property
    def native(self) -> NativeSwitch:
        assert isinstance(self.switches[1], NativeSwitch)
        return self.switches[1]

    def load(self, name: str) -> None:
        for switch, engine in zip(self.switches, (self._engine, NATIVE), strict=True):
            program = compiled(name, engine)
            configuration = switch.prepare(program)
            for entry in program.entries:
                configuration.apply(entry)
            switch.switch_over(configuration)

    def do(self, what: str, *arguments: Any) -> None:
        """Let both do something, and demand that all is the same afterwards."""
        for switch in self.switches:
            if self._packed and switch is self.native and what == "receive_many":
                switch.receive_many(*map(scattered, arguments))
            else:
                getattr(switch, what)(*arguments)
        self.compare()

    def compare(self) -> None:
        assert self.sent[0] == self.sent[1]
        assert self.notices[0] == self.notices[1]
        python, native = self.switches
        assert python.statistics() == native.statistics()
        assert python.next_event_ps() == native.next_event_ps()
        states = [memory_of(switch) if self._engine == NATIVE else state_of(switch) for switch in self.switches]
        assert list(states[0]) == list(states[1])

    def run_out(self) -> None:
        """Let everything leave that waits."""
        for switch in self.switches:
            while (due_ps := switch.next_event_ps()) is not None:
                switch.advance(due_ps)
        self.compare()


def scattered(arrivals: Arrivals) -> PackedFrames:
    """Return frames packed in any order, with gaps between them."""
    places, memory = [0] * len(arrivals), b"gap"
    for at in Random(len(arrivals)).sample(range(len(arrivals)), len(arrivals)):
        places[at], memory = len(memory), memory + arrivals[at][1] + b"gap"
    columns = [[len(frame), port, time_ps] for port, frame, time_ps in arrivals]
    return PackedFrames(memory, places, *np.array(columns, np.int64).reshape(-1, 3).T)


def state_of(switch: Switch) -> Iterator[Any]:
    """Yield all that the program of a switch has counted and stored."""
    program = switch.configuration.program
    assert isinstance(program, Pipeline)
    for registers in program._arrays["register"].values():
        yield registers.read(None)
    for counters in program._arrays["counter"].values():
        yield list(counters.read(None))
    for table in program._tables.values():
        yield [(row.packets, row.bytes, row.hit_us) for row in table.rows.values()]


def memory_of(switch: Switch) -> Iterator[Any]:
    """Yield the same as native code has it, which takes less time."""
    program = switch.configuration.program
    assert isinstance(program, NativePipeline)
    for registers in program._arrays["register"].values():
        yield registers.block.data
    for counters in program._arrays["counter"].values():
        yield counters.packets.data
        yield counters.bytes.data
    for table in program._tables.values():
        yield [(row.packets, row.bytes, row.hit_us) for row in table.rows.values()]


def copies(choose: Random) -> Iterator[Operation]:
    """Yield groups and sessions, some of them with ports of nobody."""
    for number in range(1, 4):
        replicas = tuple((choose.choice([0, 1, 2, 3, 3, 77]), choose.randrange(3)) for _ in range(choose.randrange(4)))
        yield SetMulticastGroup(number, replicas)
        yield SetCloneSession(number, replicas, choose.randrange(3), choose.choice([0, 20]))


def timed(choose: Random, frames: Iterable[bytes], now_ps: int = 0) -> Arrivals:
    """Let frames arrive at any port together, one after the other, or after a while."""
    arrivals = []
    for each in frames:
        now_ps += choose.choice([0, 0, choose.randrange(10**6), choose.randrange(10**8)])
        arrivals.append((choose.randrange(PORTS), each, now_ps))
    return arrivals


@rest(but=4)
@one_in(2)
@pytest.mark.parametrize(("given_ports", "packed"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_random_traffic_is_the_same_in_both_loops(name: str, given_ports: bool, packed: bool) -> None:
    program = read_program(DOCUMENTS[name])
    for seed, port in enumerate(SETTINGS):
        choose, draw = Random(seed), RandomTables(program, seed)
        given = dict.fromkeys(range(PORTS), port) if given_ports else None
        loops = Loops(name, packed=packed, ports=given, default=port)
        changes = [*draw.first(), *copies(choose)]
        loops.do("apply", changes)
        now_ps = 0
        for _ in range(8):
            changes = [*(draw.operation() for _ in range(4)), *(copies(choose) if choose.random() < 0.3 else ())]
            arrivals = timed(choose, [draw.frame(seeds_of(name)) for _ in range(choose.randrange(1, 30))], now_ps)
            now_ps = arrivals[-1][2] + choose.choice([0, 10**7])
            loops.do("apply", changes)
            loops.do("receive_many", arrivals)
            loops.do("advance", now_ps)
            loops.do("receive", 0, arrivals[0][1], now_ps)
            loops.do("packet_out", arrivals[0][1])
        loops.run_out()
        assert_all_records_accounted_for(loops.native)


def test_packed_frames_are_inside_their_memory_for_good() -> None:
    starts, ports = np.array([0, 4]), [0, 1]
    frames = PackedFrames(b"oneother", starts, [3, 4], ports, [5, 6])
    starts += 10**9
    assert list(frames) == [(0, b"one", 5), (1, b"ther", 6)] == [frames[0], *frames[1:]]
    for start, length in [(0, 9), (8, 1), (-1, 3), (3, -1), (2**63 - 1, 2**63 - 1), (-(2**63), 0), (9, 0)]:
        with pytest.raises(ValueError, match="not inside the 8 bytes"):
            PackedFrames(b"oneother", [0, start], [3, length], ports, [5, 6])
    with pytest.raises(ValueError, match="as many starts"):
        PackedFrames(b"oneother", [0], [3], ports, [5, 6])
    assert len(PackedFrames.of([])) == 0


def test_more_packed_frames_than_a_batch_leave_in_order_some_of_them_for_python() -> None:
    """A frame that is too long for native code, and times at which entries are looked at, divide a batch."""
    loops = Loops("switchboard", packed=True)
    sizes = [60] * 300 + [arena.LONGEST_FRAME_BYTES + 1] + [1400] * 300
    arrivals = [(0, frame(1, size=size, name=at), at * IDLE_CHECK_PS // 200) for at, size in enumerate(sizes)]
    loops.do("receive_many", arrivals)
    loops.do("receive_many", [])
    assert len(loops.sent[1]) == len(arrivals)


@rest(but=1)
@pytest.mark.parametrize("name", ["switchboard", "rounds", "tensorexpress"])
def test_the_epoch_of_native_code_moves_without_anybody_seeing_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_device, "FARTHEST_PS", 3 * 10**6)
    for packed in (False, True):
        test_random_traffic_is_the_same_in_both_loops(name, given_ports=True, packed=packed)


@pytest.mark.parametrize("days", [50, 60, 100, 120, 10**6])
def test_frames_may_come_however_much_later(days: int) -> None:
    """A picosecond of 53 days has 63 bits. Frames that have waited all the time leave when they would have."""
    for port in (*SETTINGS, PortSettings(rate_bps=1, buffer_bytes=0)):
        loops = Loops("switchboard", default=port)
        late_ps = days * 24 * 3600 * 10**12
        arrivals = [(0, frame(1, size=1400, name=name), now_ps) for name, now_ps in enumerate([0] * 9 + [late_ps] * 3)]
        loops.do("receive_many", arrivals)
        loops.do("receive", 0, frame(1, name=99), 2 * late_ps)
        loops.run_out()
        assert len(loops.sent[1]) + loops.native.statistics().ports[1].drops.get(BUFFER_FULL, 0) == 13
        assert_all_records_accounted_for(loops.native)


def seeds_of(name: str) -> list[bytes]:
    """Return frames that a program may know, to be changed."""
    if name == "tensorexpress":
        return [framed(tagged(0, 3, bytes(60))), framed(tagged(1, 5, bytes(1100)), source=4, to=5)]
    return [bytes(range(64)), bytes(64)]


#: Frames that both engines are to agree on; a million of them take some minutes.
FUZZED = int(os.environ.get("TENSOREXPRESS_FUZZ_FRAMES", "2000"))


@rest(but=5)
@pytest.mark.parametrize("name", [*PROGRAMS, "tensorexpress"])
def test_random_frames_are_the_same_in_python_and_in_native_code_alone(name: str) -> None:
    """Program and loop in Python beside program and loop in native code; tables are drawn anew now and then."""
    program, left, seed = read_program(DOCUMENTS[name]), FUZZED // (len(PROGRAMS) + 1), 0
    while left > 0:
        choose, draw = Random(seed), RandomTables(program, seed)
        loops = Loops(name, engine=PYTHON, default=SETTINGS[seed % len(SETTINGS)])
        changes = [*draw.first(), *copies(choose), *(deployed(8) if name == "tensorexpress" else ())]
        loops.do("apply", changes)
        now_ps = 0
        for _ in range(min(left, 20_000) // 100 + 1):
            operations_now = [draw.operation() for _ in range(2)]
            arrivals = timed(choose, [draw.frame(seeds_of(name)) for _ in range(100)], now_ps)
            now_ps = arrivals[-1][2]
            for switch in loops.switches:
                switch.apply(operations_now)
                switch.receive_many(arrivals)
            assert loops.sent[0] == loops.sent[1]
            for sent in loops.sent:
                sent.clear()
            left -= 100
        loops.run_out()
        seed += 1


def assert_all_records_accounted_for(switch: NativeSwitch) -> None:
    """Every record is whole, and free: nothing waits, nothing was written beyond an end, nothing is lost."""
    memory, free = switch._arena, set()
    for kind in range(words.SIZES):
        record = memory[words.FREE + kind]
        while record:
            at = memory.index(record)
            assert record not in free
            assert memory.cells[at + words.R_KIND] == kind
            free.add(record)
            record = memory.cells[at + words.R_NEXT]
    sizes = {record: words.SMALLEST_DATA << memory.cells[memory.index(record) + words.R_KIND] for record in free}
    between = memory[words.UNUSED] - memory.base - memory._end - sum(sizes.values()) - words.RECORD_BYTES * len(free)
    ports = [port for port in (*switch._ports.values(), switch._turns) if isinstance(port, NativePort)]
    port_words = [words.P_QUEUES + words.QUEUE_WORDS * len(port.depths) for port in ports]
    assert between == sum(-(-words.WORD * size // 64) * 64 for size in port_words)


@cache
def deployed(queues: int) -> list[Operation]:
    return operations(list(entries(Intent(planned(queues=queues), "s0", Options()))))


@settings(max_examples=15)
@given(
    rate_bps=st.one_of(st.none(), st.integers(10**6, 10**11)),
    queues=st.sampled_from([1, 3, 8]),
    buffer_bytes=st.sampled_from([0, 1, 2000, 20_000, 10**6]),
    discipline=st.sampled_from(["strict", "fifo"]),
    arrivals=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 7), st.integers(0, 1400), st.integers(0, 10**8)),
        min_size=1,
        max_size=80,
    ),
)
def test_tensors_under_a_plan_leave_at_the_same_picosecond(
    rate_bps: int | None, queues: int, buffer_bytes: int, discipline: str, arrivals: list[tuple[int, ...]]
) -> None:
    port = PortSettings(rate_bps=rate_bps, queues=queues, buffer_bytes=buffer_bytes, discipline=discipline)
    loops = Loops("tensorexpress", default=port)
    loops.do("apply", deployed(queues))
    now_ps, frames = 0, []
    for source, to, tensor, size, pause_ps in arrivals:
        now_ps += pause_ps
        frames.append((source, framed(tagged(source // 3, tensor, bytes(size)), source=source, to=to), now_ps))
    loops.do("receive_many", frames)
    loops.run_out()
    assert_all_records_accounted_for(loops.native)


@pytest.mark.parametrize("rate_bps", [None, 10**8])
def test_sums_and_their_copies_are_the_same_in_both_loops(rate_bps: int | None) -> None:
    network = SummingNetwork(star_plan(3, jobs=2))
    loops = Loops("tensorexpress", default=PortSettings(rate_bps=rate_bps))
    wanted = operations(list(entries(Intent(network.plan, "s0", Options()))))
    loops.do("apply", wanted)
    ports = {host: port for port, host in enumerate(range(7))}
    frames = [(ports[host], data, 10**7 * at) for at, (host, data) in enumerate(random_sums(Random(5), network, 200))]
    loops.do("receive_many", frames)
    loops.run_out()
    assert len(loops.sent[0]) > 10


def around(choose: Random) -> bytes:
    """Return a frame that goes one of the ways of rounds.p4, which tells in it what it knew of the packet."""
    return bytes([choose.randrange(9), choose.randrange(9)]) + bytes(choose.choice([0, 20, 58, 300]))


def cloned_copies() -> bytes:
    """Return rounds.p4 with clones, made at egress, of all copies."""
    changed = document("rounds").replace(b'"0x04"', b'"0x05"')
    assert changed != document("rounds")
    return changed


DOCUMENTS["cloned copies"] = cloned_copies()


@rest(but=4)
@pytest.mark.parametrize("spare_bytes", [None, 0, 1000, 3000])
@pytest.mark.parametrize("name", ["rounds", "cloned copies"])
def test_every_way_round_is_the_same_in_both_loops_however_little_memory_there_is(
    name: str, spare_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where native memory has no room, Python keeps the packets, and nobody sees a difference."""
    seen = 0
    if spare_bytes is not None:
        fixed_bytes = arena.Arena()[words.UNUSED] - arena.Arena().base
        page_bytes = 4096  # of 4 ports and a few packets
        monkeypatch.setattr(
            arena, "REGION_BYTES", (fixed_bytes + spare_bytes) // page_bytes * page_bytes + 2 * page_bytes
        )
    for seed, port in enumerate(SETTINGS):
        choose = Random(seed)
        loops = Loops(name, ports=dict.fromkeys(range(PORTS), port))
        replicas = ((1, 4), (2, 5), (1, 6), (3, 7), (77, 8))
        loops.do("apply", [SetMulticastGroup(3, replicas[: 2 + seed]), SetCloneSession(5, replicas[:seed], 1, 20)])
        for _ in range(2):
            loops.do("receive_many", timed(choose, [around(choose) for _ in range(60)], seen))
            seen = loops.switches[0]._now_ps
        loops.run_out()
        assert_all_records_accounted_for(loops.native)


def wide_numbers() -> bytes:
    """Return switchboard.p4 with priorities, ports and groups of 63 bits, most of which are set."""
    names = ("priority", "egress_spec", "mcast_grp")

    def widen(value: Any) -> None:
        value["header_types"].append({"name": "wide_t", "id": 99, "fields": [[name, 63, False] for name in names]})
        value["headers"].append({"name": "wide", "id": 99, "header_type": "wide_t", "metadata": True})
        value["field_aliases"] += [[f"standard_metadata.{name}", ["wide", name]] for name in names]

    text = changed("switchboard", widen).replace(b'"op": "&"', b'"op": "|"').replace(b'"0x07"', b'"0xfffffffffffffff0"')
    for name in names:
        text = text.replace(f'["standard_metadata", "{name}"]'.encode(), f'["wide", "{name}"]'.encode())
    return text


def test_numbers_that_no_queue_and_no_port_has_lead_nowhere() -> None:
    DOCUMENTS["wide numbers"] = wide_numbers()
    for port in SETTINGS:
        loops = Loops("wide numbers", engine=PYTHON, ports=dict.fromkeys(range(PORTS), port))
        sources = [b"\xff" * 6, bytes(6), bytes(range(6))]
        frames = [
            bytes([first, *[9] * 4, last]) + source for first in (0, 1, 255) for last in (1, 9) for source in sources
        ]
        loops.do("receive_many", [(0, each + bytes(50), 0) for each in frames])
        loops.run_out()


def test_entries_that_nothing_hits_are_told_of_at_the_same_time() -> None:
    loops = Loops("runtime")
    draw = RandomTables(read_program(DOCUMENTS["runtime"]), seed=1)
    changes = [*draw.first(), *(draw.operation() for _ in range(300))]
    loops.do("apply", changes)
    frames = [(0, draw.frame([bytes(64)]), number * IDLE_CHECK_PS // 7) for number in range(90)]
    loops.do("receive_many", frames)
    assert loops.notices[0]


def test_a_new_program_drops_what_waits_but_not_what_is_on_the_wire() -> None:
    loops = Loops("switchboard", default=PortSettings(rate_bps=10**6))
    loops.do("receive_many", [(0, frame(1, name=number), 0) for number in range(9)])
    loops.load("rounds")
    loops.run_out()
    assert [data for _, data, _ in loops.sent[1]] == [frame(1, name=0)]


def test_queues_that_only_python_has_keep_the_whole_switch_there() -> None:
    ports = {0: PortSettings(), 1: PortSettings(rate_bps=10**6, lowest_share=0.1)}
    assert type(make_switch(lambda *left: None, ports=ports, engine=NATIVE)) is Switch
    assert type(make_switch(lambda *left: None, ports={0: ports[0]}, engine=NATIVE)) is NativeSwitch


# Sockets.

ALL_PROTOCOLS = 3  # Linux's ETH_P_ALL


def exchange(left: socket.socket, right: socket.socket, count: int, size: int) -> None:
    """Send frames to a port, more than a batch at once, and take them out of another one."""
    for start in range(0, count, 100):
        sent = [frame(1, size=size, name=number) for number in range(start, start + 100)]
        for each in sent:
            left.send(each)
        assert [right.recv(65536) for _ in sent] == sent


@rest(but=1)
@pytest.mark.parametrize("rate_bps", [None, 10**9])
def test_frames_pass_from_wire_to_wire_in_batches(rate_bps: int | None) -> None:
    with running(ports={1: {"rate_bps": rate_bps, "buffer_bytes": 0}}, engine=NATIVE) as (switch, (left, right)):
        for size in (60, 1500, 9000):
            exchange(left, right, 300, size)
        left.send(b"")
        port = switch.data_path.statistics().ports[1]
        assert (port.tx_frames, port.drops) == (900, {})


def test_a_wire_that_nobody_listens_on_swallows_batches_as_a_cable_does() -> None:
    with running(engine=NATIVE) as (switch, (left, right)):
        right.close()
        for _ in range(10):
            left.send(frame(1))
        until = [switch.data_path.statistics().ports[1] for _ in range(SECONDS)]
        while until[-1].tx_frames < 10:
            until.append(switch.data_path.statistics().ports[1])
        assert until[-1].drops == {}


@needs_root
def test_frames_pass_from_cable_to_cable_and_what_is_too_long_is_refused() -> None:
    with ExitStack() as stack:
        names = [stack.enter_context(cable(mtu)) for mtu in (9000, 1500)]
        ends = [stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) for _ in names]
        for end, (_, far) in zip(ends, names, strict=True):
            end.bind((far, ALL_PROTOCOLS))
            end.settimeout(SECONDS)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**21)
        ports = {number: (InterfaceSpec(near), PortSettings()) for number, (near, _) in enumerate(names)}
        switch = stack.enter_context(RunningSwitch(LoopSettings(ports, engine=NATIVE), None))
        switch.data_path.load(DOCUMENTS["switchboard"])
        for _ in range(40):  # round the ring
            exchange(*ends, 100, 60)
        exchange(*ends, 100, 1500)
        tagged_frame = frame(1, size=80)[:12] + bytes.fromhex("81000005") + frame(1, size=80)[12:]
        for sent in (tagged_frame, frame(1, size=3000), frame(1, size=60)):
            ends[0].send(sent)
        assert [ends[1].recv(65536) for _ in range(2)] == [tagged_frame[:12] + tagged_frame[16:], frame(1, size=60)]
        assert switch.data_path.statistics().ports[1].drops == {REFUSED: 1}
