"""What one frame, one controller and one program may cost a switch: work and memory are bounded, in both loops."""

from __future__ import annotations

import pickle
import re
import socket
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
import test_native_loop
from google.protobuf import text_format
from support import tiny_programs as tiny
from support.passes import document, through
from support.runtime_support import DOCUMENT, FITTED, P4INFO, Client, update
from support.thorough import rest
from test_device_process import children, command, port_option, wires
from test_native_loop import Loops

from tensorexpress.cli.switch import statistics_table
from tensorexpress.errors import ProgramError
from tensorexpress.p4.define import CPU_PORT
from tensorexpress.p4runtime_messages import p4info_pb2, p4runtime_pb2
from tensorexpress.program_engines import NATIVE, PYTHON
from tensorexpress.switch import device
from tensorexpress.switch.counted import ALLOWANCE, LOOP, NO_MEMORY, NO_PORT, RELOADED, TOO_MANY_ROUNDS
from tensorexpress.switch.device import Switch
from tensorexpress.switch.engines import make_switch
from tensorexpress.switch.link import SwitchEnd
from tensorexpress.switch.loop import Loop, LoopSettings
from tensorexpress.switch.native.allowances import SharedAllowances
from tensorexpress.switch.native.words import COPIED_ARRIVAL
from tensorexpress.switch.operations import (
    MeterRates,
    Operation,
    SetCloneSession,
    SetMeter,
    SetMulticastGroup,
    WriteCounter,
    WriteRegister,
)
from tensorexpress.switch.p4runtime.batch import DELETE, INSERT, MODIFY
from tensorexpress.switch.p4runtime.digests import DigestQueue
from tensorexpress.switch.p4runtime.fitting import fit
from tensorexpress.switch.p4runtime.holdings import Holdings
from tensorexpress.switch.p4runtime.messages.digest_configs import DigestConfig
from tensorexpress.switch.p4runtime.p4info import read_p4info
from tensorexpress.switch.p4runtime.status import Code, Refused
from tensorexpress.switch.p4runtime.store import Recorder, Store
from tensorexpress.switch.packet import DROP_PORT, SwitchPacket
from tensorexpress.switch.program import pipeline as pipeline_module
from tensorexpress.switch.program.budgets import (
    BASE_BYTES,
    COPIES_IN_TURN,
    LEAST_MEMORY_BYTES,
    MOST_COPIES,
    MOST_COPY_BYTES,
    MOST_PORTS,
    MOST_REPLICAS,
    PLAIN_MEMORY,
    TURN_PS,
    SwitchMemory,
    cells_bytes,
)
from tensorexpress.switch.program.compiled import compile_program
from tensorexpress.switch.program.engines import make_pipeline
from tensorexpress.switch.program.pipeline import Pipeline
from tensorexpress.switch.traffic import PortSettings

Sent = list[tuple[int, bytes, int]]

engines = pytest.mark.parametrize("engine", [PYTHON, NATIVE])


def switch_with(document: bytes, engine: str, **options: Any) -> tuple[Switch, Sent]:
    """Return a switch that runs a program, and the list of the frames that it sends."""
    sent: Sent = []
    switch = make_switch(lambda *left: sent.append(left), engine=engine, **options)
    switch.load(document)
    return switch, sent


def run_out(switch: Switch) -> None:
    """Let everything leave that waits."""
    while (due_ps := switch.next_event_ps()) is not None:
        switch.advance(due_ps)


def to_any_port() -> bytes:
    """Return a program that sends each frame to the port that it begins with."""
    return tiny.forwarding(
        {"h": {"unused": 7, "port": 9}},
        extracted=["h"],
        ingress=[tiny.assign(tiny.field("standard_metadata", "egress_spec"), tiny.field("h", "port"))],
    )


@engines
def test_all_ports_that_do_not_exist_share_one_counter(engine: str) -> None:
    switch, sent = switch_with(to_any_port(), engine, ports={0: PortSettings()})
    numbers = [number for number in range(1, DROP_PORT) if number != CPU_PORT]
    for number in numbers:
        switch.receive(0, number.to_bytes(2, "big"), 0)
    switch.receive(0, bytes(2), 0)
    statistics = switch.statistics()
    assert [port for port, _, _ in sent] == [0]
    assert set(statistics.ports) == {0, CPU_PORT}
    assert statistics.drops == {NO_PORT: len(numbers)}
    assert f"ports that do not exist: {len(numbers)} no such port" in statistics_table(statistics)


@engines
def test_a_switch_with_any_port_makes_a_bounded_number_of_them(engine: str) -> None:
    switch, sent = switch_with(to_any_port(), engine)
    for number in range(MOST_PORTS + 9):
        switch.receive(number, bytes(2), 0)
    assert len(sent) == MOST_PORTS + 9
    assert len(switch.statistics().ports) == MOST_PORTS


#: Frames that begin with this byte are copied and go round; others are forwarded.
STORM = 1
STORM_FRAME, OTHER_FRAME = bytes([STORM]) + b"storm", b"\0other"
BYTE = {"h": {"kind": 8}}
RECIRCULATE = tiny.call("recirculate", 1)


def only_storms(*primitives: Any) -> list[Any]:
    """Return primitives that packets pass which are copies of a storm's frame."""
    return [tiny.skip_unless("h", "kind", STORM, len(primitives) + 1), *primitives]


def to_group() -> Any:
    return tiny.assign(tiny.field("standard_metadata", "mcast_grp"), tiny.number(1))


#: One frame becomes any number of packets, or any number of bytes.
STORMS = {
    "multicast, recirculated": tiny.forwarding(
        BYTE,
        extracted=["h"],
        # The first primitive of all programs is the way out, so that jumps count from there.
        ingress=[tiny.skip_unless("h", "kind", STORM, 3), to_group()],
        egress=only_storms(RECIRCULATE),
    ),
    "clones of clones": tiny.forwarding(
        BYTE, extracted=["h"], egress=only_storms(tiny.call("clone_egress_pkt_to_egress", 1, 1))
    ),
    "clones of clones, recirculated": tiny.forwarding(
        BYTE, extracted=["h"], egress=only_storms(tiny.call("clone_egress_pkt_to_egress", 1, 1), RECIRCULATE)
    ),
    "clones at ingress, recirculated": tiny.forwarding(
        BYTE,
        extracted=["h"],
        ingress=[tiny.skip_unless("h", "kind", STORM, 3), tiny.call("clone_ingress_pkt_to_egress", 1, 1)],
        egress=only_storms(RECIRCULATE),
    ),
    "a frame that grows": tiny.forwarding(
        {**BYTE, "wide": {f"f{place}": 4096 for place in range(100)}},
        extracted=["h"],
        ingress=[tiny.skip_unless("h", "kind", STORM, 3), tiny.add_header("wide")],
        egress=only_storms(RECIRCULATE),
    ),
}


def replicas(count: int) -> tuple[tuple[int, int], ...]:
    return tuple((place % 3 + 1, place) for place in range(count))


def stormy(name: str, *, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Loops:
    """Return both loops with a program that lets one frame become many."""
    monkeypatch.setitem(test_native_loop.DOCUMENTS, name, STORMS[name])
    loops = Loops(name, ports=dict.fromkeys(range(4), PortSettings(**options)))
    loops.do("apply", [SetMulticastGroup(1, replicas(1000)), SetCloneSession(1, replicas(3))])
    return loops


def drops(switch: Switch) -> Counter[str]:
    """Return packets by the reason for which a switch dropped them, over all ports."""
    statistics = switch.statistics()
    return sum((Counter(port.drops) for port in statistics.ports.values()), Counter(statistics.drops))


class Passes:
    """Counts the packets, and their bytes, that pass the program of a switch from now on."""

    def __init__(self, switch: Switch):
        self.packets = self.bytes = 0
        program = switch.configuration.program
        assert program is not None
        for stage in ("ingress", "egress"):
            setattr(program, stage, self._counted(getattr(program, stage)))

    def _counted(self, run: Callable[[SwitchPacket], None]) -> Callable[[SwitchPacket], None]:
        def count(packet: SwitchPacket) -> None:
            self.packets += 1
            self.bytes += len(packet.frame)
            run(packet)

        return count


@pytest.mark.parametrize("rate_bps", [None, 10**9])
@pytest.mark.parametrize("name", STORMS)
def test_one_frame_causes_a_bounded_number_of_copies_and_of_their_bytes(
    name: str, rate_bps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = stormy(name, monkeypatch=monkeypatch, rate_bps=rate_bps, buffer_bytes=0)
    passes = Passes(loops.switches[0])
    loops.do("receive_many", [(0, STORM_FRAME, 0), (0, OTHER_FRAME, 0)])
    loops.run_out()
    assert (tiny.OUT_PORT, OTHER_FRAME) in [left[:2] for left in loops.sent[0]]
    # A copy passes ingress, egress or both.
    assert passes.packets <= 2 * (MOST_COPIES + 2)
    assert passes.bytes <= 2 * (MOST_COPY_BYTES + 2 * len(STORM_FRAME))
    dropped = drops(loops.native)
    assert set(dropped) <= {ALLOWANCE, LOOP, NO_PORT}
    assert dropped[ALLOWANCE] > 0


@pytest.mark.parametrize("name", ["multicast, recirculated", "clones of clones, recirculated"])
def test_frames_of_other_ports_leave_between_the_copies_of_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = stormy(name, monkeypatch=monkeypatch)
    loops.do("receive", 0, STORM_FRAME, 0)
    for turn in range(1, 10):
        passes, now_ps = Passes(loops.switches[0]), turn * TURN_PS
        loops.do("receive", 2, OTHER_FRAME, now_ps)
        assert passes.packets <= 2 * (COPIES_IN_TURN + 1)
        assert loops.sent[0][-1] == (tiny.OUT_PORT, OTHER_FRAME, now_ps)
        assert loops.switches[0].next_event_ps() == now_ps + TURN_PS, "the storm is over before other frames come"
    loops.run_out()
    assert drops(loops.native)[ALLOWANCE] > 0


def test_what_goes_round_and_its_copies_take_a_bounded_amount_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames may come faster than their copies have turns."""
    monkeypatch.setattr(device, "MOST_WAITING", 3000)
    loops = stormy("multicast, recirculated", monkeypatch=monkeypatch)
    for _ in range(5):
        loops.do("receive", 0, STORM_FRAME, 0)
    assert drops(loops.native)[TOO_MANY_ROUNDS] > 0
    loops.do("receive", 0, OTHER_FRAME, 0)
    assert loops.sent[0][-1] == (tiny.OUT_PORT, OTHER_FRAME, 0)
    loops.load("multicast, recirculated")
    assert drops(loops.native)[RELOADED] > 0
    before = len(loops.sent[0])
    loops.run_out()
    assert len(loops.sent[0]) == before


def test_a_copy_of_a_frame_that_was_copied_long_ago_has_no_second_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedAllowances, "MOST", 2)
    allowances = SharedAllowances()
    copies = [number * COPIED_ARRIVAL + 1000 for number in range(1, 5)]
    assert allowances.of_copy(0, 60) is None
    first = [allowances.of_copy(copied, 60) for copied in copies]
    assert [allowance.take(MOST_COPIES, 60) for allowance in first if allowance] == [MOST_COPIES - 1000] * 4
    again = [allowances.of_copy(copied, 60) for copied in copies]
    assert [allowance.take(1, 60) for allowance in again if allowance] == [0] * 4


def entry(number: int) -> str:
    value = "".join(f"\\{octet:03o}" for octet in number.to_bytes(6, "big").lstrip(b"\0"))
    return f"""table_entry {{ table_id: $l2_exact
        match {{ field_id: 1 exact {{ value: "{value}" }} }} match {{ field_id: 2 exact {{ value: "\\0" }} }}
        action {{ action {{ action_id: $forward params {{ param_id: 1 value: "\\001" }} }} }} }}"""


def group(number: int, port: int = 1) -> str:
    copies = " ".join(f"replicas {{ egress_port: {port} instance: {instance} }}" for instance in range(40))
    return f"""packet_replication_engine_entry {{
        multicast_group_entry {{ multicast_group_id: {number} {copies} }} }}"""


def session(number: int) -> str:
    return f"""packet_replication_engine_entry {{
        clone_session_entry {{ session_id: {number} replicas {{ egress_port: 1 instance: 0 }} }} }}"""


def small_memory() -> SwitchMemory:
    return SwitchMemory(BASE_BYTES + 8 * 200_000)


def store_without_sizes(memory: SwitchMemory) -> Store:
    """Return the entities of a program whose P4Info gives no table a size."""
    unsized = p4info_pb2.P4Info()
    unsized.CopyFrom(P4INFO)
    for table in unsized.tables:
        table.size = 0
    fitted = fit(read_p4info(unsized), DOCUMENT)
    return Store(fitted.schema, Recorder(), fitted.initial, 255, memory)


@pytest.mark.parametrize("make", [entry, group, session])
def test_entities_of_every_kind_share_a_bound_on_their_memory(make: Callable[[int], str]) -> None:
    store = store_without_sizes(small_memory())
    before = store._holdings.bytes
    refusals = store.write([update(INSERT, make(number)) for number in range(1, 200)])
    made = refusals.index(next(filter(None, refusals)))
    assert 5 < made < 190
    for refusal in refusals[made:]:
        assert refusal is not None
        assert refusal.code == Code.RESOURCE_EXHAUSTED
        assert "of 200 KB; delete some, or start the switch with a larger --memory" in str(refusal)
    assert store._holdings.bytes <= store._holdings.most_bytes
    assert not any(store.write([update(DELETE, make(number)) for number in range(1, made + 1)]))
    assert store._holdings.bytes == before
    assert not any(store.write([update(INSERT, make(number)) for number in range(1, made + 1)]))


def test_a_refused_batch_gives_back_the_memory_that_it_took() -> None:
    store = store_without_sizes(small_memory())
    before = store._holdings.bytes
    batch = [update(INSERT, entry(number)) for number in range(1, 200)]
    assert any(store.write(batch, all_or_none=True))
    assert store._holdings.bytes == before


def test_a_group_has_a_bounded_number_of_replicas() -> None:
    copies = " ".join(f"replicas {{ egress_port: 1 instance: {instance} }}" for instance in range(MOST_REPLICAS + 1))
    text = f"packet_replication_engine_entry {{ multicast_group_entry {{ multicast_group_id: 1 {copies} }} }}"
    (refusal,) = store_without_sizes(PLAIN_MEMORY).write([update(INSERT, text)])
    assert refusal is not None
    assert refusal.code == Code.RESOURCE_EXHAUSTED
    assert str(refusal) == "multicast group 1: 1025 replicas; accepted: at most 1024"


def test_operations_for_a_saved_program_are_kept_up_to_a_bound() -> None:
    """A client may save a program and write to it for ever without committing it."""
    recorder = Recorder(small_memory())
    store = Store(FITTED.schema, recorder, FITTED.initial, 255)
    change = update(MODIFY, 'register_entry { register_id: $last_seen index { index: 0 } data { bitstring: "\\001" } }')
    with pytest.raises(Refused, match="no memory left") as refused:
        any(any(store.write([change])) for _ in range(200))
    assert refused.value.code == Code.RESOURCE_EXHAUSTED
    assert 5 < len(recorder.operations) < 190


def test_digests_that_a_client_does_not_take_have_a_bound_on_their_memory() -> None:
    held = Holdings(50_000)
    queues = [DigestQueue(DigestConfig(max_timeout_ns=0, max_list_size=5, ack_timeout_ns=10), held) for _ in range(2)]
    for number in range(1000):
        queues[number % 2].add((number, 2**4000), number)
    _, messages = queues[0].take(1000)
    assert len(messages) == 5
    assert 40_000 < held.bytes <= 50_000
    queues[0].acknowledge(1)
    assert held.bytes <= 50_000 - 5 * 1000
    for queue in queues:
        queue.clear()
    assert held.bytes == 0


def with_arrays(kind: str, arrays: int, cells: int, bits: int = 0) -> bytes:
    """Return a program with arrays of cells that nothing uses."""
    common = {"size": cells, "is_direct": False, "bitwidth": bits, "rate_count": 2, "type": "packets"}
    named = [{"name": f"a{id}", "id": id, **common} for id in range(arrays)]
    return tiny.forwarding(BYTE, extracted=["h"], **{f"{kind}_arrays": named})


@pytest.mark.parametrize(("kind", "arrays"), [("meter", 64), ("meter", 12), ("counter", 60)])
def test_registers_counters_and_meters_are_bounded_by_their_bytes(kind: str, arrays: int) -> None:
    """All of these have as few cells as are accepted."""
    with pytest.raises(ProgramError) as refused:
        compile_program(with_arrays(kind, arrays, 2**16))
    size = cells_bytes(kind, arrays * 2**16)
    assert str(refused.value) == (
        f"the program has {size} bytes of memory in all registers, counters and meters; "
        f"accepted: up to {PLAIN_MEMORY.program_bytes}"
    )
    compile_program(with_arrays(kind, 9, 2**16))


@engines
@pytest.mark.parametrize(("kind", "bits"), [("meter", 0), ("counter", 0), ("register", 8), ("register", 100)])
def test_no_array_takes_more_memory_than_it_is_charged(kind: str, bits: int, engine: str) -> None:
    cells = 4096
    compiled = compile_program(with_arrays(kind, 1, cells, bits), engine)
    make_pipeline(compiled)
    tracemalloc.start()
    try:
        pipeline = make_pipeline(compiled)
        for cell in range(cells):
            # Every cell holds numbers of its own, as large as they can be.
            operation: Operation = WriteRegister("a0", cell, 2**bits - 1 - cell % 2)
            if kind == "counter":
                operation = WriteCounter("a0", cell, 2**62 + cell, 2**62 - cell)
            elif kind == "meter":
                operation = SetMeter("a0", cell, MeterRates(10**9 + cell, 10**9 - cell, 10**10 + cell, 10**10 - cell))
            pipeline.apply(operation)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < cells_bytes(kind, cells, bits) + 100_000


def test_packets_that_wait_take_a_bounded_amount_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port's buffer may have no limit; what Python keeps has one all the same, and gives back what it took."""
    switch, sent = switch_with(
        to_any_port(),
        PYTHON,
        default=PortSettings(rate_bps=10**6, buffer_bytes=0),
        memory=SwitchMemory(BASE_BYTES + 8 * 100_000),
    )
    for _ in range(150):
        switch.receive(0, bytes([0, 1]) + bytes(1000), 0)
    assert 50 < switch.statistics().ports[1].drops[NO_MEMORY] < 100
    assert 190_000 < switch._waiting.bytes <= 200_000
    run_out(switch)
    assert switch._waiting.bytes == 0
    assert len(sent) == 150 - switch.statistics().ports[1].drops[NO_MEMORY]
    switch.receive(0, bytes([0, 1]) + bytes(1000), switch._now_ps)
    switch.receive(0, bytes([0, 1]) + bytes(1000), switch._now_ps)
    switch.load(to_any_port())
    assert switch._waiting.bytes == 0


def test_a_program_that_does_not_fit_the_memory_of_a_switch_is_refused() -> None:
    switch, _ = switch_with(to_any_port(), PYTHON, memory=SwitchMemory(LEAST_MEMORY_BYTES))
    with pytest.raises(ProgramError) as refused:
        switch.load(with_arrays("register", 1, 10**6, 30))
    assert str(refused.value) == (
        "the program has 40 MB of registers, counters and meters; accepted: up to 33.55 MB with a --memory of 536.9 MB"
    )


#: A frame that begins with this goes to the second port.
PROBE = 2

LEAST = SwitchMemory(LEAST_MEMORY_BYTES)

#: Memory that the system keeps when it is given back in pieces.
SLACK_BYTES = 2**24


def greedy() -> bytes:
    """Return a program with as much state as a switch takes, a table of any size, and storms."""
    registers = {"name": "r", "id": 0, "size": LEAST.program_bytes // 44, "bitwidth": 32}
    document = tiny.forwarding(
        {"h": {"kind": 8, "key": 32}},
        extracted=["h"],
        ingress=[
            tiny.skip_unless("h", "kind", PROBE, 3),
            tiny.assign(tiny.field("standard_metadata", "egress_spec"), tiny.number(2)),
            tiny.skip_unless("h", "kind", STORM, 5),
            to_group(),
        ],
        egress=only_storms(RECIRCULATE),
        register_arrays=[registers],
    )
    return tiny.with_table(document, "h", "key")


class Measured:
    """The resident memory of both processes of a switch, and by how much it may have grown so far."""

    def __init__(self, process: Any):
        self._process = process
        self._start = self.resident_bytes
        self._allowed = SLACK_BYTES

    @property
    def resident_bytes(self) -> int:
        pids = [self._process.pid, children(self._process)[0]]
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        return sum(1024 * int(re.search(r"^VmRSS:\s+(\d+)", text, re.MULTILINE)[1]) for text in texts)  # type: ignore[index]

    def allow(self, more_bytes: int) -> None:
        """Demand that no more has grown than was allowed before and is allowed now."""
        self._allowed += more_bytes
        assert self.resident_bytes - self._start <= self._allowed
        assert self.resident_bytes <= LEAST.total_bytes


@rest(but=1)
@engines
def test_a_switch_never_takes_more_memory_than_it_was_given(engine: str) -> None:
    info = text_format.Parse(tiny.table_info("h.key", 32, 0), p4info_pb2.P4Info())
    with ExitStack() as stack:
        ends = wires(stack, 3)
        ports = [option for number, (far, near) in enumerate(ends) for option in port_option(number, far, near)]
        given = ["--memory", "512 MiB", "--engine", engine, "--buffer", "0", "--rate", "1=1 Kbps"]
        process, ready = stack.enter_context(command(*ports, *given, "--grpc", "127.0.0.1:0"))
        client = stack.enter_context(Client(re.findall(r"P4Runtime at ([^;]+)", ready)[0]))
        client.join()
        client.set_pipeline(document=greedy(), p4info=info)
        measured = Measured(process)
        for _ in range(2):  # one program takes the place of the other
            client.set_pipeline(document=greedy(), p4info=info)
        measured.allow(2 * LEAST.program_bytes)
        client.write(update(INSERT, group(1, port=0)))
        assert fill_table(client) > 5000
        measured.allow(LEAST.entities_bytes)
        far, _ = ends[0]
        for _ in range(20):
            far.send(STORM_FRAME + bytes(1400))
            wait_for_probe(ends)
        measured.allow(0)
        for number in range(45_000):
            far.send(bytes([0]) + bytes(1400))
            if number % 100 == 0:
                wait_for_probe(ends)
        measured.allow(LEAST.packets_bytes)
        process.terminate()
        printed = process.stdout.read()
    assert NO_MEMORY in printed
    assert ALLOWANCE in printed


def key_of(number: int) -> Any:
    value = number.to_bytes(4, "big").lstrip(b"\0") or b"\0"
    return p4runtime_pb2.FieldMatch(field_id=1, exact={"value": value})


def fill_table(client: Client) -> int:
    """Insert entries until the switch has no memory for one more, and return how many it took."""
    action = p4runtime_pb2.TableAction(action=p4runtime_pb2.Action(action_id=tiny.ACTION_ID))
    made = 0
    while True:
        rows = [
            p4runtime_pb2.TableEntry(table_id=tiny.TABLE_ID, match=[key_of(number)], action=action)
            for number in range(made, made + 100)
        ]
        updates = [p4runtime_pb2.Update(type=INSERT, entity=p4runtime_pb2.Entity(table_entry=row)) for row in rows]
        refused = client.refused(*updates)
        if any(refused):
            assert set(refused) == {0, Code.RESOURCE_EXHAUSTED}
            return made + refused.count(0)
        made += len(updates)


def wait_for_probe(ends: Any) -> None:
    """Return when the switch has taken all frames that were sent before."""
    ends[0][0].send(bytes([PROBE]) + bytes(10))
    assert ends[2][0].recv(65536)[0] == PROBE


def test_no_more_than_two_programs_take_memory_at_a_time() -> None:
    """Programs may be replaced faster than the loop, beside packets and requests, takes old ones apart."""
    code = pickle.dumps(compile_program(with_arrays("register", 2, 10_000, 32)))
    with ExitStack() as stack:
        ends = [stack.enter_context(end) for _ in range(2) for end in socket.socketpair()]
        loop = Loop(LoopSettings({}), SwitchEnd(ends[0], ends[2]))
        stack.enter_context(loop._resources)
        replaced: list[Any] = []
        for _ in range(4):
            for step in loop._prepare(code):
                assert step is None
            assert not loop._chores
            for each in replaced:
                assert not any(array.cells for array in each._arrays["register"].values())
            replaced += [loop.switch.configuration.program] if loop.switch.configuration.program is not None else []
            loop._switch_over()
            assert len(loop._chores) <= 1


def test_all_tables_remember_a_bounded_number_of_keys_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "MOST_REMEMBERED", 12)
    pipeline = Pipeline(document("matching"))
    tables = [table for table in pipeline._tables.values() if table.info.key and not table.info.is_exact]
    assert len(tables) > 1
    choose, most = Random(1), 0
    for _ in range(300):
        through(pipeline, choose.randbytes(64))
        remembered = sum(len(table.known) for table in tables)
        assert remembered <= 12
        most = max(most, remembered)
    assert most > 1
