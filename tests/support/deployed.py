"""The P4 program in the embedded switch with the entries of a plan, in virtual time; and frames to send through it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from tensorexpress import p4
from tensorexpress.addresses import GATEWAY_MAC, default_addresses
from tensorexpress.control.deploy import entries
from tensorexpress.control.entities import Entity
from tensorexpress.control.intent import Intent, Options
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.program_engines import NATIVE, PYTHON
from tensorexpress.scenario import read_scenario
from tensorexpress.switch.device import Switch
from tensorexpress.switch.operations import Notice, Operation, ReadCounter, WriteRegister
from tensorexpress.switch.p4runtime.fitting import Fitted, fit
from tensorexpress.switch.p4runtime.p4info import read_p4info
from tensorexpress.switch.p4runtime.store import Recorder, Store
from tensorexpress.switch.program.compiled import CompiledProgram, compile_program
from tensorexpress.switch.traffic import PortSettings
from tensorexpress.wire.checksum import checksum
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.header import UDP_PORT, Header

PROGRAM = p4.load()
SCHEMA = ProgramSchema.of(PROGRAM)
#: What switches of these tests run in; "twins" is both engines at once, packet for packet (support/twins.py).
ENGINE = os.environ.get("TENSOREXPRESS_ENGINE", PYTHON)
OFFERED = "TensorIngress.classify.offered"
BOUNDS = "TensorIngress.classify.bounds"
EXCEPTIONS = "TensorIngress.exceptions"
NO_OPTIONS = Options()


@cache
def compiled(document: bytes) -> CompiledProgram:
    return compile_program(document, NATIVE if ENGINE == "twins" else ENGINE)


@cache
def fitted(program: p4.P4Program = PROGRAM) -> Fitted:
    """Return what control processes know of a program: read once, though tests start hundreds of switches with it."""
    return fit(read_p4info(program.p4info), program.document)


def operations(wanted: Sequence[Entity], program: p4.P4Program = PROGRAM) -> list[Operation]:
    """Return entities as what a switch is told."""
    recorder, known = Recorder(), fitted(program)
    recorder.apply(known.initial.renamed)
    updates = [
        p4runtime_pb2.Update(type=_MODIFY if entity.is_permanent else _INSERT, entity=entity.encode(SCHEMA))
        for entity in wanted
    ]
    refusals = Store(known.schema, recorder, known.initial, cpu_port=255).write(updates)
    assert not any(refusals), refusals
    return recorder.operations


_INSERT, _MODIFY = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY

#: Two jobs on seven hosts: job 0 on ports 0 to 2, job 1 on ports 3 to 5, nothing on port 6.
SCENARIO = [
    "job.0.model=alexnet",
    "job.0.workers=2",
    "job.0.servers=1",
    "job.1.model=vgg16",
    "job.1.workers=2",
    "job.1.servers=1",
    "cluster.hosts=7",
]


@cache
def planned(policy: str = "tensorexpress", queues: int = 8) -> Plan:
    scenario = read_scenario(overrides=[*SCENARIO, f"cluster.queues={queues}"])
    return make_plan(scenario, parse_policy(policy))


class DeployedSwitch:
    """The P4 program in the embedded switch with a plan's entries; tells in which queue each frame was put."""

    def __init__(
        self,
        plan: Plan,
        options: Options = NO_OPTIONS,
        more: tuple[Entity, ...] = (),
        *,
        name: str = "s0",
        settings: PortSettings | None = None,
    ):
        #: (port, frame, time in ps) of all that left.
        self.sent: list[tuple[int, bytes, int]] = []
        self.notices: list[Notice] = []
        self._switch = Switch(
            lambda *departure: self.sent.append(departure), self.notices.append, default=settings or PortSettings()
        )
        program = compiled(PROGRAM.document)
        configuration = self._switch.prepare(program)
        for entry in program.entries:
            configuration.apply(entry)
        self._switch.switch_over(configuration)

        self._switch.apply(operations((*entries(Intent(plan, name, options)), *more)))
        self._counts = self.offered()
        self._now_ps = 0

    def offered(self) -> list[int]:
        return [packets for packets, _ in self._switch.ask([ReadCounter(OFFERED, None)])[0]]

    def forget_ranks(self) -> None:
        self._switch.apply([WriteRegister(BOUNDS, None, 0)])

    def slot_and_queue(self, port: int, frame: bytes, now_ps: int | None = None) -> tuple[int, int]:
        self._now_ps = self._now_ps + 10**6 if now_ps is None else now_ps
        self._switch.receive(port, frame, self._now_ps)
        before, self._counts = self._counts, self.offered()
        (cell,) = [index for index, pair in enumerate(zip(before, self._counts, strict=True)) if pair[0] != pair[1]]
        return divmod(cell, 8)

    def send(self, *arrivals: tuple[int, bytes], now_ps: int = 0) -> list[tuple[int, bytes, int]]:
        """Let (port, frame) arrive at once; return what left until nothing waits any more."""
        self.sent.clear()
        for port, frame in arrivals:
            self._switch.receive(port, frame, now_ps)
        while (due_ps := self._switch.next_event_ps()) is not None and due_ps < now_ps + 10**12:
            self._switch.advance(due_ps)
        return list(self.sent)

    def packet_out(self, frame: bytes) -> None:
        self._switch.packet_out(frame)

    def exceptions(self) -> list[int]:
        """Return the counters of what did not get what it asked for, in the order of define.p4."""
        return [packets for packets, _ in self._switch.ask([ReadCounter(EXCEPTIONS, None)])[0]]

    def apply(self, operations: Iterable[Operation]) -> None:
        self._switch.apply(list(operations))


ADDRESSES = default_addresses(tuple(f"h{i}" for i in range(7)))


def framed(
    payload: bytes,
    *,
    source: int = 0,
    to: int = 1,
    version: int = 4,
    port: int = UDP_PORT,
    source_port: int = 777,
    **ip: int,
) -> bytes:
    """Return the frame of a packet from one host to another by way of the router; `ip` is dscp, ecn, ttl."""
    sender, target = ADDRESSES[source], ADDRESSES[to]
    ips = (sender.ipv4, target.ipv4) if version == 4 else (sender.ipv6, target.ipv6)
    return build_frame(FrameEnd(sender.mac, ips[0], source_port), FrameEnd(GATEWAY_MAC, ips[1], port), payload, **ip)


def tagged(job: int = 0, tensor: int = 0, payload: bytes = b"gradient", **fields: int) -> bytes:
    header = Header(job, 1, 2, tensor, 3, 4, payload_bytes=len(payload))
    return replace(header, **fields).pack() + payload


def with_vlan(frame: bytes) -> bytes:
    return frame[:12] + bytes.fromhex("8100e00a") + frame[12:]


def with_ip(frame: bytes, ip: bytes) -> bytes:
    """Replace the IPv4 header of a frame; its checksum is mended."""
    blank = ip[:10] + bytes(2) + ip[12:]
    return frame[:14] + blank[:10] + checksum(blank).to_bytes(2, "big") + blank[12:] + frame[34:]


def with_options(frame: bytes) -> bytes:
    """Put eight bytes of IPv4 options (no operation) into a frame."""
    length = int.from_bytes(frame[16:18], "big") + 8
    return with_ip(frame, b"\x47" + frame[15:16] + length.to_bytes(2, "big") + frame[18:34] + bytes([1] * 8))


def as_fragment(frame: bytes, flags_and_offset: int) -> bytes:
    return with_ip(frame, frame[14:20] + flags_and_offset.to_bytes(2, "big") + frame[22:34])
