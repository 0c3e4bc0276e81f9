"""The embedded switch beside BMv2: random frames through random tables give the same frames at the same ports."""

from __future__ import annotations

import random
import select
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.deployed import PROGRAM, framed, planned, tagged
from support.hashed_switch import random_parts, ways_of
from support.network import BMV2, cable, needs_bmv2, needs_root
from support.summing import TWO_JOBS, SummingNetwork, hashed_plan, parse, random_sums, star_plan
from support.switches import Bmv2Switch
from test_executors import cases

from tensorexpress.addresses import addresses_of
from tensorexpress.control.client import Connection, RemoteSwitch
from tensorexpress.control.deploy import deploy, entries, prepare
from tensorexpress.control.entities import Call, DefaultEntry, Entity, TableEntry
from tensorexpress.control.intent import Intent, Options
from tensorexpress.control.messages import ProgramSchema, encode, parse_p4info
from tensorexpress.p4 import define
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.plan import Plan
from tensorexpress.program_engines import NATIVE, PYTHON
from tensorexpress.switch.device import Switch
from tensorexpress.switch.engines import make_switch
from tensorexpress.switch.p4runtime.service import serve
from tensorexpress.switch.ports import InterfacePort
from tensorexpress.wire.frame import read_frame

PROGRAMS = Path(__file__).parent / "programs" / "build"

pytestmark = [
    needs_root,
    needs_bmv2,
]

EXACT, LPM, TERNARY, RANGE, OPTIONAL = 2, 3, 4, 5, 6

#: Frames that the kernel takes on a raw socket hold at least an Ethernet header.
SHORTEST = 14


class Pair:
    """The embedded switch, in both engines, and BMv2, with the same ports and asked the same things."""

    def __init__(self, ports: int, cleanup: ExitStack):
        assert BMV2 is not None
        cables = [cleanup.enter_context(cable()) for _ in range(ports)]
        self._ends = [InterfacePort(far) for _, far in cables]
        for end in self._ends:
            cleanup.callback(end.close)
        bmv2 = Bmv2Switch(BMV2, [near for near, _ in cables])
        cleanup.callback(bmv2.stop)
        self._sent: dict[str, list[tuple[int, bytes]]] = {}
        self._embedded = {engine: self._start(engine) for engine in (PYTHON, NATIVE)}
        servers = [serve(switch, "127.0.0.1:0", cpu_port=255) for switch in self._embedded.values()]
        for server in servers:
            cleanup.callback(server.stop)
        self.targets = [RemoteSwitch("s0", address) for address in (*(each.address for each in servers), bmv2.address)]
        self._now_ps = 0

    def _start(self, engine: str) -> Switch:
        sent = self._sent[engine] = []
        return make_switch(lambda port, frame, time_ps: sent.append((port, frame)), engine=engine)

    def load(self, p4info: Any, document: bytes, updates: list[Any]) -> None:
        """Let both run a program with entries; both take all of them."""
        for target in self.targets:
            with Connection(target) as connection:
                connection.become_primary()
                connection.push_pipeline(p4info, document, cookie=1)
                for update in updates:
                    connection.write([update])

    def embedded(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Return what leaves the embedded switch, the same whatever its engine."""
        self._now_ps += 10**9
        for engine, switch in self._embedded.items():
            self._sent[engine].clear()
            switch.receive(port, frame, self._now_ps)
        assert self._sent[PYTHON] == self._sent[NATIVE], f"port {port}, frame {frame.hex()}"
        return list(self._sent[PYTHON])

    def bmv2(self, port: int, frame: bytes, expected: int) -> list[tuple[int, bytes]]:
        """Return what leaves BMv2: as many frames as expected, or more, or what came within a second."""
        assert self._ends[port].send(frame)
        return self.collect(expected)

    def collect(self, expected: int, patience_s: float = 1.0) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while len(found) < expected:
            ready, _, _ = select.select(self._ends, [], [], patience_s)
            if not ready:
                break
            found += [(self._ends.index(end), frame) for end in ready for frame in end.receive(1)]
        return found

    def send_many(self, port: int, frames: list[bytes]) -> None:
        for frame in frames:
            assert self._ends[port].send(frame)

    def compare(self, port: int, frame: bytes, normal: Callable[[bytes], bytes] = bytes) -> None:
        """Let one frame pass both."""
        ours = self.embedded(port, frame)
        theirs = self.bmv2(port, frame, len(ours))
        assert shown(theirs, normal) == shown(ours, normal), f"port {port}, frame {frame.hex()}"

    def assert_silent(self) -> None:
        """Nothing is left: BMv2 sent no frame beside those that were compared."""
        assert self.collect(1, patience_s=0.3) == []


def shown(frames: list[tuple[int, bytes]], normal: Callable[[bytes], bytes]) -> list[tuple[int, str]]:
    return sorted((port, normal(frame).hex()) for port, frame in frames)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with ExitStack() as cleanup:
        yield Pair(7, cleanup)


@pytest.fixture
def fresh_pair() -> Iterator[Pair]:
    """Switches that never had a program: BMv2 keeps the copies of its groups when it is given another one."""
    with ExitStack() as cleanup:
        yield Pair(9, cleanup)


def without_wait(frame: bytes) -> bytes:
    """Blank the slack, from which a switch deducts what its own clock says, and the checksum that goes with it."""
    header = read_frame(frame).header
    if header is None:
        return frame
    start = frame.index(header.pack()[:11])
    return frame[: start - 2] + bytes(2) + frame[start : start + 24] + bytes(4) + frame[start + 28 :]


def mutated(choose: random.Random, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(choose.choice([0, 1, 1, 2, 5])):
        changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
    if choose.random() < 0.2:
        del changed[choose.randrange(SHORTEST, len(changed)) :]
    return bytes(changed)


def random_routes(choose: random.Random) -> list[TableEntry]:
    """Return prefixes, groups, queues and DSCPs at random, over the addresses that the frames use."""
    hop = lambda: Call(  # noqa: E731 - a new one at every call
        "forward.next_hop",
        (
            ("port", choose.randrange(7)),
            ("source", choose.getrandbits(48)),
            ("destination", choose.getrandbits(48)),
        ),
    )
    routes: dict[Any, TableEntry] = {}
    for _ in range(20):
        length = choose.randint(1, 31)
        value = (0x0A000000 | choose.getrandbits(4)) >> (32 - length) << (32 - length)
        spread = Call("forward.spread", (("group", 1), ("paths", 3), ("multiplier", choose.getrandbits(32))))
        action = choose.choice([hop(), spread, Call("forward.flood", (("group", 1),)), Call("forward.drop")])
        routes[value, length] = TableEntry("forward.ipv4", (("destination", (value, length)),), action)
    members = [TableEntry("forward.next_hops", (("group", 1), ("path", path)), hop()) for path in range(3)]
    dscps = [
        TableEntry(
            "classify.dscp_queue", (("dscp", dscp),), Call("classify.set_queue", (("queue", choose.randrange(8)),))
        )
        for dscp in choose.sample(range(64), 20)
    ]
    return [*routes.values(), *members, *dscps]


def updates_of(wanted: Sequence[Entity], schema: ProgramSchema) -> list[Any]:
    return [
        p4runtime_pb2.Update(
            type=p4runtime_pb2.Update.MODIFY if isinstance(entity, DefaultEntry) else p4runtime_pb2.Update.INSERT,
            entity=entity.encode(schema),
        )
        for entity in wanted
    ]


@pytest.mark.parametrize("seed", range(3))
def test_our_program_does_the_same_on_both(pair: Pair, seed: int) -> None:
    choose = random.Random(seed)
    plan = planned(choose.choice(["tensorexpress", "tensorexpress:queues=equal", "fifo"]))
    schema = ProgramSchema.of(PROGRAM)
    options = Options(strangers=choose.choice(["remark", "drop"]))
    wanted = [*entries(Intent(plan, "s0", options)), *random_routes(choose)]
    pair.load(schema.p4info, PROGRAM.document, updates_of(wanted, schema))
    bases = [(port, frame) for _, port, frame in cases() if len(frame) >= SHORTEST]
    for port, frame in bases:
        pair.compare(port, frame, without_wait)
    for _ in range(400):
        port, frame = choose.choice(bases)
        pair.compare(choose.choice([port, choose.randrange(7)]), mutated(choose, frame), without_wait)
    pair.assert_silent()


def compare_sums(
    pair: Pair, plan: Plan, arrivals: Iterable[tuple[int, bytes]], document: bytes = PROGRAM.document
) -> list[bytes]:
    """Let packets to sum pass both under a plan of one switch whose last host has nothing to do; return what came."""
    schema = ProgramSchema.of(PROGRAM)
    pair.load(schema.p4info, document, updates_of(entries(Intent(plan, "s0")), schema))
    # Frames at two ports may overtake each other in BMv2, unless something behind the first has come out.
    last = len(plan.scenario.cluster.hosts) - 1
    follower = addresses_of(plan.scenario.cluster)[last].mac + bytes(6) + bytes.fromhex("88b6") + bytes(46)
    made = []
    for port, frame in arrivals:
        ours = pair.embedded(port, frame)
        pair.send_many(port, [frame, follower])
        theirs = pair.collect(len(ours) + 1)
        assert shown(theirs, without_wait) == shown([*ours, (last, follower)], without_wait), f"{port}: {frame.hex()}"
        made += [each for _, each in theirs if read_frame(each).header is not None]
    pair.assert_silent()
    return made


@pytest.mark.parametrize("seed", range(3))
def test_packets_to_sum_become_the_same_on_both(fresh_pair: Pair, seed: int) -> None:
    network = SummingNetwork(star_plan(3, jobs=2))
    made = compare_sums(fresh_pair, network.plan, random_sums(random.Random(seed), network, 600))
    assert sum(parse(frame).sums.flags & 1 for frame in made) > 50


def aging_after(microseconds: int) -> bytes:
    """Return the program with another age at which cells are taken from their owners: each switch has its own clock."""
    age = f'"0x{define.SUM_AGE:012x}"'.encode()
    assert PROGRAM.document.count(age) == 1
    return PROGRAM.document.replace(age, f'"0x{microseconds:012x}"'.encode())


NEVER, AT_ONCE = 2**48 - 1, 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("policy", "age"), [("tensorexpress:sum=hashed", NEVER), ("atp", NEVER), ("atp", AT_ONCE)])
def test_packets_that_find_cells_by_hash_become_the_same_on_both(
    fresh_pair: Pair, policy: str, age: int, seed: int
) -> None:
    plan = hashed_plan(*TWO_JOBS, cells=3, policy=policy)
    network, ways = SummingNetwork(plan), ways_of(plan, "s0")
    parts = ((port, network.frame(port, content)) for port, content, *_ in random_parts(random.Random(seed), ways, 500))
    made = [parse(frame) for frame in compare_sums(fresh_pair, plan, parts, aging_after(age))]
    assert sum(content.sums.flags & 1 for content in made) > 30
    # Sums of one, some and all workers.
    assert {content.sums.workers.bit_count() for content in made} == {1, 2, 3}


def test_frames_of_one_queue_stay_in_order_on_both(pair: Pair) -> None:
    plan = planned()
    deployment = prepare(plan, ["s0"], Options(), PROGRAM)
    for target in pair.targets:
        (outcome,) = deploy(deployment, [target])
        assert outcome.error is None
    frames = [framed(tagged(0, tensor, bytes([index]))) for index in range(40) for tensor in (0, 7)]
    ours = [sent for frame in frames for sent in pair.embedded(0, frame)]
    pair.send_many(0, frames)
    theirs = pair.collect(len(ours))
    for dscp in (40, 0):
        assert [without_wait(frame) for _, frame in theirs if read_frame(frame).dscp == dscp] == [
            without_wait(frame) for _, frame in ours if read_frame(frame).dscp == dscp
        ]
    pair.assert_silent()


# Programs with every kind of table


def random_entries(choose: random.Random, p4info: Any, per_table: int) -> list[Any]:
    """Return valid entries for all tables that may be written, of few different values, so that frames hit."""
    updates: dict[Any, Any] = {}
    actions = {action.preamble.id: action for action in p4info.actions}
    for table in p4info.tables:
        if table.is_const_table or table.implementation_id:
            continue
        for number in range(per_table):
            entry = p4runtime_pb2.TableEntry(table_id=table.preamble.id)
            for field in table.match_fields:
                add_match(choose, entry, field)
            if any(field.match_type in (TERNARY, RANGE, OPTIONAL) for field in table.match_fields):
                entry.priority = 1 + number
            key = (entry.table_id, str(entry.match))
            scopes = [ref.id for ref in table.action_refs if ref.scope != 2]
            action = actions[choose.choice(scopes)]
            entry.action.action.action_id = action.preamble.id
            for param in action.params:
                value = encode(choose.getrandbits(min(param.bitwidth, 8)))
                entry.action.action.params.add(param_id=param.id, value=value)
            update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.INSERT)
            update.entity.table_entry.CopyFrom(entry)
            updates[key] = update
    return list(updates.values())


def few(choose: random.Random, bits: int) -> int:
    """Return one of a few values; frames are made of the same."""
    return choose.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF]) & (1 << bits) - 1


def add_match(choose: random.Random, entry: Any, field: Any) -> None:
    bits = field.bitwidth
    value, everything = few(choose, bits), (1 << bits) - 1
    if field.match_type == EXACT:
        entry.match.add(field_id=field.id).exact.value = encode(value)
    elif field.match_type == TERNARY and (mask := choose.choice([everything, few(choose, bits), everything - 1])):
        ternary = entry.match.add(field_id=field.id).ternary
        ternary.value, ternary.mask = encode(value & mask), encode(mask)
    elif field.match_type == LPM and (length := choose.randint(0, bits)):
        lpm = entry.match.add(field_id=field.id).lpm
        lpm.value, lpm.prefix_len = encode(value >> (bits - length) << (bits - length)), length
    elif field.match_type == RANGE:
        low, high = sorted((value, few(choose, bits)))
        if (low, high) != (0, everything):
            span = entry.match.add(field_id=field.id).range
            span.low, span.high = encode(low), encode(high)
    elif field.match_type == OPTIONAL and choose.random() < 0.5:
        entry.match.add(field_id=field.id).optional.value = encode(value)


# BMv2 ends when a program leaves a header stack or a register array, as `headers` and `stateful` do with random frames.
@pytest.mark.parametrize("name", ["arithmetic", "hashing", "matching", "parsing"])
@pytest.mark.parametrize("seed", range(2))
def test_programs_with_random_tables_do_the_same_on_both(pair: Pair, name: str, seed: int) -> None:
    choose = random.Random(seed)
    p4info = parse_p4info((PROGRAMS / f"{name}.p4info.txtpb").read_text())
    document = (PROGRAMS / f"{name}.json").read_bytes()
    pair.load(p4info, document, random_entries(choose, p4info, per_table=12))
    for _ in range(300):
        length = choose.choice([SHORTEST, 15, 16, 20, 40, 100])
        frame = bytes(few(choose, 8) for _ in range(length))
        pair.compare(choose.randrange(7), frame)
    pair.assert_silent()


# BMv2 leaves in a varbit that was not extracted what an earlier packet had there, and ends when it is hashed.
def test_varbits_of_any_length_do_the_same_on_both(pair: Pair) -> None:
    choose = random.Random(1)
    p4info = parse_p4info((PROGRAMS / "varbits.p4info.txtpb").read_text())
    pair.load(p4info, (PROGRAMS / "varbits.json").read_bytes(), [])
    for what in range(7):
        for _ in range(40):
            one, two = (bytes(choose.choices([1, 2], k=choose.choice([0, 1, 2, 3, 16]))) for _ in range(2))
            command = bytes([what, len(one), len(two), 0, 0])
            pair.compare(choose.randrange(7), (command + one + two).ljust(60, b"\0"))
    pair.assert_silent()
