"""How long packets wait in the embedded switch while a controller keeps it busy.

A probe of its own process sends a frame every millisecond through a running switch, on UDP wires, and measures how long
each one takes; the same frames go to a process that only sends them back. Meanwhile a P4Runtime client writes tables,
reads everything, and loads programs. The echo, and the quiet phase of the same run, show what the machine itself adds.
Times of arrival are those of the kernel. The target: on an idle machine no frame waits for 20 ms, whatever the
controller does.
"""

from __future__ import annotations

import argparse
import json
import re
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format
from switch import deploy_to, make_bench_plan, make_frames

from tensorexpress import p4
from tensorexpress.p4runtime_messages import P4RuntimeStub, p4info_pb2, p4runtime_pb2

PROGRAMS = Path(__file__).parents[1] / "tests" / "programs" / "build"
TARGET_MS = 20
PERIOD_S = 0.001
#: Frames that have not come back this long after the last one are lost.
PATIENCE_S = 3.0
SO_TIMESTAMPNS = 35
#: Who writes: the primary of device 1.
WHO = {"device_id": 1, "election_id": p4runtime_pb2.Uint128(low=10**6)}
INSERT, MODIFY, DELETE = 1, 2, 3
VERIFY, VERIFY_AND_COMMIT, RECONCILE_AND_COMMIT = 1, 3, 5


# The probe, in a process of its own


def probe(source: socket.socket, sink: socket.socket, echo: socket.socket, frames: Sequence[bytes]) -> None:
    """Send a numbered frame every millisecond, through the switch and to the echo, until standard input has a line.

    Then print when each was sent, and the delays of both, in nanoseconds.
    """
    for end in (sink, echo):
        end.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        end.setblocking(False)
    sent: list[int] = []
    forwarded: dict[int, int] = {}
    echoed: dict[int, int] = {}
    stopping = False
    print("ready", flush=True)
    due = time.monotonic()
    while not stopping or (len(forwarded) < len(sent) and time.monotonic() < due + PATIENCE_S):
        wait = 0.01 if stopping else max(0.0, due - time.monotonic())
        readable, _, _ = select.select([sink, echo] if stopping else [sink, echo, sys.stdin], (), (), wait)
        stopping = stopping or sys.stdin in readable
        take(sink, forwarded)
        take(echo, echoed)
        if not stopping and time.monotonic() >= due:
            frame = frames[len(sent) % len(frames)] + struct.pack(">I", len(sent))
            sent.append(time.time_ns())
            source.send(frame)
            echo.send(frame)
            due = max(due + PERIOD_S, time.monotonic())
    delays = (
        [at, *(came[number] - at if number in came else None for came in (forwarded, echoed))]
        for number, at in enumerate(sent)
    )
    json.dump(list(delays), sys.stdout)


def take(sink: socket.socket, arrived: dict[int, int]) -> None:
    """Note when each frame that is there arrived; its number is its last four bytes."""
    while True:
        try:
            frame, ancillary, _, _ = sink.recvmsg(2048, 64)
        except OSError:
            return
        seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
        arrived[struct.unpack(">I", frame[-4:])[0]] = seconds * 10**9 + nanoseconds


#: The peer: as little as a process that is woken for every frame can do.
ECHO = """
import socket, sys
end = socket.socket(type=socket.SOCK_DGRAM)
end.bind(("127.0.0.1", int(sys.argv[1])))
while True:
    frame, sender = end.recvfrom(2048)
    end.sendto(frame, sender)
"""


# The controller


class Client:
    """The primary of a switch."""

    def __init__(self, address: str):
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._stub = P4RuntimeStub(self._channel)
        # Requests are serialised before they are timed: in pure Python that takes as long as the switch does.
        self._write = self._channel.unary_unary("/p4.v1.P4Runtime/Write")
        claim = p4runtime_pb2.StreamMessageRequest(arbitration=p4runtime_pb2.MasterArbitrationUpdate(**WHO))
        self._stream = self._stub.StreamChannel(self._requests(claim))
        next(self._stream)

    def _requests(self, claim: Any) -> Iterator[Any]:
        yield claim
        while True:
            time.sleep(3600)

    def close(self) -> None:
        self._stream.cancel()
        self._channel.close()

    def write(self, request: bytes) -> None:
        self._write(request)

    def read_all(self) -> int:
        """Read every table's entries with their counters, and every array; return how many entities there were."""
        request = p4runtime_pb2.ReadRequest(device_id=1)
        request.entities.add().table_entry.counter_data.SetInParent()
        request.entities.add().counter_entry.SetInParent()
        request.entities.add().register_entry.SetInParent()
        return sum(len(response.entities) for response in self._stub.Read(request))

    def set_pipeline(self, action: int, p4info: Any, document: bytes) -> None:
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(action=action, **WHO)
        request.config.p4info.CopyFrom(p4info)
        request.config.p4_device_config = document
        self._stub.SetForwardingPipelineConfig(request)


@dataclass(frozen=True)
class Phase:
    """What the controller did, and when."""

    name: str
    start_ns: int
    end_ns: int


class Phases:
    """Notes when each thing was done."""

    def __init__(self) -> None:
        self.done: list[Phase] = []

    def run(self, name: str, work: Callable[[], object]) -> None:
        start_ns = time.time_ns()
        work()
        self.done.append(Phase(name, start_ns, time.time_ns()))
        time.sleep(0.2)


def tables(count: int) -> tuple[Any, bytes, dict[str, list[bytes]]]:
    """Return P4Info and JSON of matching.p4, its tables made large enough, and entities for each of its tables."""
    room = str(2 * count)
    text = re.sub(r"size: 1024\b", f"size: {room}", (PROGRAMS / "matching.p4info.txtpb").read_text())
    document = re.sub(r'"max_size":1024\b', f'"max_size":{room}', (PROGRAMS / "matching.json").read_text()).encode()
    p4info = text_format.Parse(text, p4info_pb2.P4Info())
    makers: dict[str, Callable[[Any, int], None]] = {"exact": _exact, "lpm": _lpm, "ternary": _ternary}
    return p4info, document, {name: _entries(p4info, name, maker, count) for name, maker in makers.items()}


def _entries(p4info: Any, name: str, add_match: Callable[[Any, int], None], count: int) -> list[bytes]:
    ids = {each.preamble.alias: each.preamble.id for each in [*p4info.tables, *p4info.actions]}
    entries = []
    for number in range(count):
        entity = p4runtime_pb2.Entity()
        entry = entity.table_entry
        entry.table_id = ids[f"{name}_table"]
        add_match(entry, number)
        entry.action.action.action_id = ids[f"set_{name}"]
        entry.action.action.params.add(param_id=1, value=bytes([number % 255 + 1]))
        entries.append(bytes(entity.SerializeToString()))
    return entries


def _number(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def _exact(entry: Any, number: int) -> None:
    for field, value in enumerate((number & 0xFFFF, number >> 16, 0), start=1):
        entry.match.add(field_id=field).exact.value = _number(value)


def _lpm(entry: Any, number: int) -> None:
    entry.match.add(field_id=1).exact.value = _number(number & 0xFF)
    match = entry.match.add(field_id=2).lpm
    match.prefix_len = 24 - number % 4
    match.value = _number(number >> 2 << 12 & 0xFFFFFFFF)


def _ternary(entry: Any, number: int) -> None:
    match = entry.match.add(field_id=1).ternary
    match.mask = _number((0xFFFF, 0xFF00, 0xF0F0)[number % 3])
    match.value = _number(number & int.from_bytes(match.mask, "big"))
    prefix = entry.match.add(field_id=2).lpm
    prefix.prefix_len, prefix.value = 24, _number(number << 8)
    entry.match.add(field_id=3).exact.value = b"\0"
    entry.priority = number + 1


def request(kind: int, entries: Sequence[bytes]) -> bytes:
    """Return a WriteRequest that does the same to all entities, put together by hand, which is quicker."""
    updates = [b"\x08" + bytes([kind]) + b"\x12" + bytes([len(entity)]) + entity for entity in entries]
    whole: bytes = p4runtime_pb2.WriteRequest(**WHO).SerializeToString()
    return whole + b"".join(b"\x22" + bytes([len(update)]) + update for update in updates)


# Put together


@contextmanager
def probed_switch(frames: str) -> Iterator[tuple[str, Callable[[], list[list[Any]]]]]:
    """Start a switch and the probe; give the switch's address and what ends the probe and returns its figures."""
    ends = [free_address() for _ in range(5)]
    wires = [f"{port}@udp:{ends[2 * port]}-{ends[2 * port + 1]}" for port in range(2)]
    start = [
        sys.executable,
        "-c",
        "from tensorexpress.cli import main; main()",
        "switch",
        "--grpc",
        "127.0.0.1:0",
    ]
    options = [word for wire in wires for word in ("--port", wire)]
    with subprocess.Popen([*start, *options], stdout=subprocess.PIPE, text=True) as switch:
        assert switch.stdout is not None
        found = re.search(r"P4Runtime at (\S+);", switch.stdout.readline())
        assert found is not None
        echo = subprocess.Popen([sys.executable, "-c", ECHO, ends[4].split(":")[1]])
        prober = subprocess.Popen(
            [sys.executable, __file__, "--probe", frames, *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert prober.stdout is not None

        def finish() -> list[list[Any]]:
            measured: list[list[Any]] = json.loads(prober.communicate("stop\n")[0])
            return measured

        try:
            assert prober.stdout.readline() == "ready\n"
            yield found[1], finish
        finally:
            for process in (prober, echo):
                process.kill()
                process.wait()
            switch.terminate()
            switch.communicate()


def free_address() -> str:
    with socket.socket(type=socket.SOCK_DGRAM) as end:
        end.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{end.getsockname()[1]}"


def run_probe(frames: str, ends: Sequence[str]) -> None:
    """Be the probe: frames of matching.p4, or of the plan that is deployed."""
    matching = [struct.pack(">HBI8x", key, 0, key << 8) for key in range(64)]
    sent = matching if frames == "matching" else make_frames(64)
    near_in, far_in, near_out, far_out, echoing = (("127.0.0.1", int(end.split(":")[1])) for end in ends)
    source, sink, echo = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(3))
    for end, far, near in ((source, far_in, near_in), (sink, far_out, near_out), (echo, ("127.0.0.1", 0), echoing)):
        end.bind(far)
        end.connect(near)
    probe(source, sink, echo, sent)


def show(phases: Sequence[Phase], measured: Sequence[Sequence[Any]]) -> None:
    print(f"{'':34} {'took':>7} {'probes':>7} {'lost':>5} {'median':>7} {'p99':>7} {'worst':>7}   echo's p99, worst")
    for phase in phases:
        during = [each for each in measured if phase.start_ns <= each[0] <= phase.end_ns]
        forwarded, echoed = (
            sorted(each[way] / 1e6 for each in during if each[way] is not None) or [float("nan")] for way in (1, 2)
        )
        figures = statistics.median(forwarded), percentile(forwarded), forwarded[-1]
        peer = f"{percentile(echoed):9.2f} {echoed[-1]:7.2f}"
        over = f"  over {TARGET_MS} ms" if forwarded[-1] > max(TARGET_MS, echoed[-1]) else ""
        took = (phase.end_ns - phase.start_ns) / 1e6
        lost = sum(each[1] is None for each in during)
        print(
            f"{phase.name:34} {took:7.0f} {len(during):7} {lost:5} "
            + " ".join(f"{figure:7.2f}" for figure in figures)
            + f" {peer}{over}"
        )


def percentile(ordered: Sequence[float]) -> float:
    return ordered[int(0.99 * (len(ordered) - 1))]


def measure_tables(count: int) -> None:
    """Write, read and reconcile large tables of every kind."""
    p4info, document, entries = tables(count)
    prepared = {
        (kind, name): request(number, chosen)
        for name, chosen in entries.items()
        for kind, number in (("insert", INSERT), ("modify", MODIFY), ("delete", DELETE))
    }
    with probed_switch("matching") as (address, finish):
        client, phases = Client(address), Phases()
        client.set_pipeline(VERIFY_AND_COMMIT, p4info, document)
        time.sleep(0.5)
        phases.run("quiet", lambda: time.sleep(3))
        for name in entries:
            for kind in ("insert", "modify", "delete"):
                phases.run(f"{kind} {count:,} {name}", lambda kind=kind, name=name: client.write(prepared[kind, name]))  # type: ignore[misc]
        client.write(prepared["insert", "exact"])
        phases.run(f"read {count:,} entries and counters", client.read_all)
        phases.run(
            f"reconcile with {count:,} entries", lambda: client.set_pipeline(RECONCILE_AND_COMMIT, p4info, document)
        )
        phases.run("the same program without them", lambda: client.set_pipeline(VERIFY_AND_COMMIT, p4info, document))
        client.close()
        show(phases.done, finish())


def measure_programs() -> None:
    """Load our own program beside itself."""
    own = p4.load()
    p4info = text_format.Parse(own.p4info, p4info_pb2.P4Info())
    with probed_switch("plan") as (address, finish):
        deploy_to(address, make_bench_plan())
        client, phases = Client(address), Phases()
        time.sleep(0.5)
        phases.run("quiet", lambda: time.sleep(3))
        phases.run("verify our program", lambda: client.set_pipeline(VERIFY, p4info, own.document))
        # Another text, so that nobody can know it already.
        for number in range(3):
            changed = own.document + b" " * (number + 1)
            phases.run(
                "reconcile with our program",
                lambda changed=changed: client.set_pipeline(RECONCILE_AND_COMMIT, p4info, changed),  # type: ignore[misc]
            )
        client.close()
        show(phases.done, finish())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--entries", type=int, default=30_000, help="updates of one request (30000)")
    arguments.add_argument("--probe", nargs=6, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.probe:
        run_probe(given.probe[0], given.probe[1:])
        return
    print("tables of every kind, probes at 1 kHz, delays in ms:")
    measure_tables(given.entries)
    print("our own program:")
    measure_programs()


if __name__ == "__main__":
    main()
