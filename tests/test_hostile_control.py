"""Clients that mean harm, against a switch in processes of its own: it forwards on, stays small, obeys its primary.

TENSOREXPRESS_HOSTILE multiplies all counts: with 100 there are 10,000 mutated programs and batches of 100,000 updates.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from support.runtime_support import Client, status_of
from test_device_process import (
    FORWARD_TO_0,
    P4INFO,
    PROGRAM,
    children,
    command,
    frame,
    port_option,
    wait_for_end,
    wires,
)

from tensorexpress.p4runtime_messages import P4RuntimeStub, p4info_pb2, p4runtime_pb2
from tensorexpress.switch.p4runtime.answers import LARGEST_DETAILED_BATCH
from tensorexpress.switch.p4runtime.runtime import LARGEST_NUMBER_OF_READS
from tensorexpress.switch.p4runtime.service import LARGEST_REQUEST_BYTES
from tensorexpress.switch.p4runtime.stream_places import LARGEST_NUMBER_OF_STREAMS

SCALE = int(os.environ.get("TENSOREXPRESS_HOSTILE", "1"))
CONFIGS = 100 * SCALE
UPDATES = min(5000 * SCALE, 100_000)
FLOOD = 100 * min(SCALE, 20)

LARGEST_MEMORY_KB = 300_000
MOST_THREADS = 150
VERIFY = 1

DOCUMENT = PROGRAM.read_bytes()
INFO = text_format.Parse(P4INFO.read_text(), p4info_pb2.P4Info())
TABLE = INFO.tables[0].preamble.id
SECONDS = 60


class Probe(threading.Thread):
    """Sends one frame after the other through the switch, and waits for each."""

    def __init__(self, left: socket.socket, right: socket.socket):
        super().__init__(daemon=True)
        self._ends = left, right
        self._over = threading.Event()
        self.passed = 0
        self.lost: str | None = None

    def run(self) -> None:
        left, right = self._ends
        while not self._over.wait(0.002):
            sent = frame(1, name=self.passed)
            try:
                left.send(sent)
                assert right.recv(65536) == sent
            except (OSError, AssertionError) as error:
                self.lost = f"frame {self.passed}: {error!r}"
                return
            self.passed += 1

    def stop(self) -> None:
        self._over.set()
        self.join()


class Victim:
    """The switch, its primary, and what must hold whatever is done to it."""

    def __init__(self, process: Any, address: str, probe: Probe):
        self.process, self.address, self.probe = process, address, probe
        self.forwarding = children(process)[0]
        self.primary = Client(address, 1)
        assert self.primary.join().arbitration.status.code == 0

    def raw(self) -> grpc.Channel:
        """Return another client's channel, which need not keep to anything."""
        return grpc.insecure_channel(
            self.address,
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)],
        )

    def check(self) -> None:
        """Forwarding goes on, the primary is obeyed, and no process has grown."""
        before = self.probe.passed
        while self.probe.passed < before + 3 and self.probe.lost is None:
            pass
        assert self.probe.lost is None
        self.primary.write(modify_default())
        assert len(self.primary.read(default_entry())) == 1
        for pid in (self.process.pid, self.forwarding):
            status = Path(f"/proc/{pid}/status").read_text()
            assert number(status, "VmHWM") < LARGEST_MEMORY_KB, status
            assert number(status, "Threads") < MOST_THREADS, status


def number(status: str, key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+)", status, re.MULTILINE)
    assert found is not None
    return int(found[1])


def default_entry() -> Any:
    return p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry(table_id=TABLE, is_default_action=True))


def modify_default() -> Any:
    """An update that is always done: the default action back to that of the program."""
    return p4runtime_pb2.Update(type=2, entity=default_entry())


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    path = tmp_path_factory.mktemp("control") / "s.sock"
    with ExitStack() as stack:
        (left, near_left), (right, near_right) = wires(stack, 2)
        options = [*port_option(0, left, near_left), *port_option(1, right, near_right), "--grpc", f"unix:{path}"]
        process, _ = stack.enter_context(command(*options, "--program", str(PROGRAM), "--p4info", str(P4INFO)))
        probe = Probe(left, right)
        probe.start()
        victim = Victim(process, f"unix:{path}", probe)
        yield victim
        victim.primary.close()
        probe.stop()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (0, "")
        wait_for_end(victim.forwarding)
        assert list(path.parent.iterdir()) == []


@pytest.fixture
def victim(switch: Victim) -> Iterator[Victim]:
    switch.check()
    yield switch
    switch.check()


# Programs.


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside a JSON document."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


HOSTILE = [
    *(None, True, -1, 0, 2**31, 2**64, 10**30, 0.5, "", "x" * 1000, "\n__import__('os')._exit(1)\n", "\ud800"),
    *([], {}, [[]], {"op": "-"}, {"type": "expression", "value": {}}),
]
WAYS = list(places(json.loads(DOCUMENT)))


def mutated(chance: random.Random) -> bytes:
    """Return the program with a few values replaced, removed, doubled or moved; sometimes with its bytes damaged."""
    document = json.loads(DOCUMENT)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        *way, last = chance.choice(WAYS)
        try:
            holder = document
            for key in way:
                holder = holder[key]
            deed = chance.randrange(4)
            if deed == 0:
                holder[last] = copy.deepcopy(chance.choice(HOSTILE))
            elif deed == 1:
                del holder[last]
            elif deed == 2:
                holder[last] = [holder[last]] * chance.choice([2, 100])
            else:
                holder[last] = json.loads(json.dumps(document))[chance.choice(sorted(document))]
        except (KeyError, IndexError, TypeError):
            continue
    data = bytearray(json.dumps(document).encode())
    if chance.random() < 0.2:
        for _ in range(5):
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def mutated_info(chance: random.Random) -> bytes:
    data = bytearray(INFO.SerializeToString())
    if chance.random() < 0.5:
        for _ in range(chance.choice([1, 3, 10])):
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def field(tag: int, content: bytes) -> bytes:
    """Return a field of bytes as protobuf writes it."""
    size, length = len(content), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([tag << 3 | 2, *length, size]) + content


def set_config(victim: Victim, info: bytes, document: bytes) -> grpc.StatusCode:
    """Have a config verified, by the primary; return the code of the answer."""
    request = p4runtime_pb2.SetForwardingPipelineConfigRequest(action=VERIFY, **victim.primary.identity())
    data = request.SerializeToString() + field(5, field(1, info) + field(2, document))
    call = victim.primary.channel.unary_unary("/p4.v1.P4Runtime/SetForwardingPipelineConfig")
    try:
        call(data, timeout=SECONDS)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def test_mutated_programs_are_verified_or_refused_in_a_line(victim: Victim) -> None:
    chance = random.Random(10)
    seen = {set_config(victim, mutated_info(chance), mutated(chance)) for _ in range(CONFIGS)}
    assert seen <= {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}, seen
    assert set_config(victim, INFO.SerializeToString(), DOCUMENT) == grpc.StatusCode.OK


@pytest.mark.parametrize(
    "document",
    [b"\0" * 3_000_000, b"{" * 3_000_000, b"[" * 3_000_000, b'{"a":' * 500_000, b"x" * 8_000_000, b'{"program": "'],
    ids=["zeros", "braces", "brackets", "nested", "letters", "cut"],
)
def test_garbage_is_refused(victim: Victim, document: bytes) -> None:
    assert set_config(victim, INFO.SerializeToString(), document) == grpc.StatusCode.INVALID_ARGUMENT


def test_a_p4info_of_a_million_parts_is_refused(victim: Victim) -> None:
    assert set_config(victim, b"\x12\0" * 1_000_000, DOCUMENT) == grpc.StatusCode.RESOURCE_EXHAUSTED


# Streams and requests that go nowhere.


@contextmanager
def pending(channel: grpc.Channel, method: str, first: list[bytes], count: int) -> Iterator[list[Any]]:
    """Open calls that send the first messages and then nothing, and read nothing."""
    over = threading.Event()

    def silence() -> Iterator[bytes]:
        yield from first
        over.wait()

    opened = [channel.stream_stream(f"/p4.v1.P4Runtime/{method}")(silence()) for _ in range(count)]
    try:
        yield opened
    finally:
        for call in opened:
            call.cancel()
        over.set()


def test_streams_that_never_arbitrate_make_room(victim: Victim) -> None:
    with ExitStack() as stack:
        for _ in range(FLOOD // 50):
            stack.enter_context(pending(stack.enter_context(victim.raw()), "StreamChannel", [], 50))
        for election_id in range(100, 110):
            with Client(victim.address, election_id, role="other") as newcomer:
                assert newcomer.join().arbitration.status.code == 0
        victim.check()


def test_a_flood_that_arbitrates_does_not_push_the_primary_out(victim: Victim) -> None:
    hello = p4runtime_pb2.StreamMessageRequest(arbitration={"device_id": 1}).SerializeToString()
    with victim.raw() as channel, pending(channel, "StreamChannel", [hello], LARGEST_NUMBER_OF_STREAMS + 8):
        victim.check()


@pytest.mark.parametrize("method", ["Write", "Capabilities", "SetForwardingPipelineConfig", "Read"])
def test_requests_without_a_message_hold_nobody_up(victim: Victim, method: str) -> None:
    with victim.raw() as channel, pending(channel, method, [], 30 * min(SCALE, 4)):
        victim.check()


def test_streams_that_nobody_reads_stay_small(victim: Victim) -> None:
    # Each is answered with an error that repeats it.
    packet = p4runtime_pb2.StreamMessageRequest(packet={"payload": bytes(500_000)}).SerializeToString()
    with ExitStack() as stack:
        for _ in range(4):
            channel = stack.enter_context(victim.raw())
            stack.enter_context(pending(channel, "StreamChannel", [packet] * 100 * min(SCALE, 10), 1))
        victim.check()


def test_reads_that_nobody_reads_make_room(victim: Victim) -> None:
    action = next(each.preamble.id for each in INFO.actions if each.preamble.alias == "forward")
    large = text_format.Parse(FORWARD_TO_0 % (TABLE, action), p4runtime_pb2.Update())
    large.entity.table_entry.match[0].exact.value = b"no host"[:6]
    large.entity.table_entry.metadata = bytes(1024)
    victim.primary.write(large)
    everything = p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry(table_id=TABLE))
    request = p4runtime_pb2.ReadRequest(device_id=1, entities=[everything] * 150).SerializeToString()
    with victim.raw() as channel, pending(channel, "Read", [request], LARGEST_NUMBER_OF_READS + 4):
        victim.check()
    large.type = p4runtime_pb2.Update.DELETE
    victim.primary.write(large)


# Batches.


def missing_entry() -> Any:
    entity = p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry(table_id=TABLE + 1))
    return p4runtime_pb2.Update(type=1, entity=entity)


def refused_batch(victim: Victim, *updates: Any) -> grpc.RpcError:
    """Return the error that a client with default limits gets for a batch."""
    request = p4runtime_pb2.WriteRequest(**victim.primary.identity()).SerializeToString()
    data = request + b"".join(field(4, update.SerializeToString()) for update in updates)
    with victim.raw() as channel, pytest.raises(grpc.RpcError) as error:
        channel.unary_unary("/p4.v1.P4Runtime/Write")(data, timeout=10 * SECONDS)
    return error.value


def test_a_batch_of_failing_updates_of_any_size_is_answered(victim: Victim) -> None:
    bad = missing_entry()
    error = refused_batch(victim, *[bad] * LARGEST_DETAILED_BATCH)
    assert error.code() == grpc.StatusCode.UNKNOWN
    assert len(status_of(error).details) == LARGEST_DETAILED_BATCH
    error = refused_batch(victim, *[modify_default()] * 10, *[bad] * UPDATES, modify_default())
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert f"{UPDATES} of {UPDATES + 11} refused, the others are done: 10-{UPDATES + 9} INVALID_ARGUMENT; 10: " in (
        error.details()
    )
    error = refused_batch(victim, *[modify_default(), bad] * (UPDATES // 2))
    assert error.code() == grpc.StatusCode.ABORTED
    assert f"nothing is done: {UPDATES // 2} of {UPDATES // 2 * 2} updates refused" in error.details()
    assert "1 INVALID_ARGUMENT, 3 INVALID_ARGUMENT, " in error.details()


# Bytes.


def test_clients_that_come_and_vanish_leave_nothing(victim: Victim) -> None:
    path = victim.address.removeprefix("unix:")
    chance = random.Random(11)
    before = len(os.listdir(f"/proc/{victim.process.pid}/fd"))
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for turn in range(FLOOD):
        with socket.socket(socket.AF_UNIX) as plain:
            plain.connect(path)
            if turn % 3:
                plain.sendall((preface if turn % 3 == 1 else b"") + chance.randbytes(chance.randrange(1, 5000)))
        if turn % 10 == 0:
            with victim.raw() as channel, pending(channel, "StreamChannel", [], 3):
                pass
    victim.check()
    while len(os.listdir(f"/proc/{victim.process.pid}/fd")) > before + 5:
        victim.check()


def nested(depth: int) -> bytes:
    """Return an update of a register with data of structs inside structs."""
    data = b""
    while depth:
        data, depth = field(4, field(1, data)), depth - 1
    return field(4, field(2, field(12, field(3, data))))


TOO_MUCH = {
    "too large": ("Write", bytes(LARGEST_REQUEST_BYTES + 1)),
    "parts of an update": ("Write", field(4, field(2, field(2, b"\x12\0" * 2_000_000)))),
    "empty updates": ("Write", field(4, b"") * 20_000),
    "groups": ("Write", b"\x0b" * 100_000),
    "nested": ("Write", nested(200)),
    "nested deeply": ("Write", nested(3000)),
    "entities": ("Read", field(3, b"") * 1_000_000),
    "parts of an entity": ("Read", field(3, field(2, b"\x12\0" * 2_000_000))),
    "parts of a packet": ("StreamChannel", field(2, b"\x12\0" * 2_000_000)),
    "role": ("StreamChannel", field(1, b"\x08\x01" + field(2, field(3, b"x" * 1_000_000)))),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_much_of_anything_is_refused_in_a_line(victim: Victim, name: str) -> None:
    method, content = TOO_MUCH[name]
    start = p4runtime_pb2.WriteRequest(**victim.primary.identity()) if method == "Write" else None
    if method == "Read":
        start = p4runtime_pb2.ReadRequest(device_id=1)
    data = (start.SerializeToString() if start else b"") + content
    with victim.raw() as channel, pytest.raises(grpc.RpcError) as error:
        list(channel.stream_stream(f"/p4.v1.P4Runtime/{method}")(iter([data]), timeout=SECONDS))
    refused = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED
    assert error.value.code() in refused or status_of(error.value).details, error.value


def test_the_largest_messages_of_many_clients_at_once(victim: Victim) -> None:
    message = p4runtime_pb2.StreamMessageRequest(packet={"payload": bytes(LARGEST_REQUEST_BYTES - 100)})
    data = message.SerializeToString()
    with ExitStack() as stack:
        for _ in range(8):
            channel = stack.enter_context(victim.raw())
            stack.enter_context(pending(channel, "StreamChannel", [data], 1))
        victim.check()


def test_a_stranger_may_not_write(victim: Victim) -> None:
    with victim.raw() as channel:
        stub = P4RuntimeStub(channel)
        deeds: list[Callable[[], Any]] = [
            lambda: stub.Write(p4runtime_pb2.WriteRequest(device_id=1, updates=[modify_default()])),
            lambda: stub.SetForwardingPipelineConfig(p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=1)),
        ]
        for deed in deeds:
            with pytest.raises(grpc.RpcError) as error:
                deed()
            assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED
