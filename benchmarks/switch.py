"""Packets per second through the embedded switch with our program, and through simple_switch_grpc where it is there.

Every way carries the same frames under the same plan, deployed by the same controller, in one run:

    in process    frames handed to the switch as bytes: no sockets, one core
    packed        the same, with frames handed over and taken in one piece of memory
    UDP wire      frames in datagrams, from one process to another
    veth          a Linux interface; needs root
    BMv2          simple_switch_grpc on the same veth interfaces

The embedded switch runs the program in each of its engines: in Python, and in native code.

Where sockets carry the frames, the sender keeps some of them under way: for BMv2 as many as its queues hold, for the
embedded switch so many that it is never the sender that is measured, and none that would be dropped. What comes out of
the other port is counted by the kernel, so that counting costs the switches nothing.

Last, two workers send packets of 256 values that the switch sums: every packet is added to a slot, and for every two of
them the sum goes back to both workers. Where slots are found by hash, the sum goes to a server, whose answer goes back.

Beside packets per second there are packets per second of processor time, of all processes of the switch together: that
is what can be compared where other programs run too.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median

import numpy as np

from tensorexpress import p4
from tensorexpress.addresses import GATEWAY_MAC, default_addresses
from tensorexpress.control.client import Connection, RemoteSwitch
from tensorexpress.control.deploy import deploy, prepare
from tensorexpress.control.intent import Options
from tensorexpress.doctor import BMV2, BMV2_VARIABLE, bmv2_options, find_bmv2
from tensorexpress.errors import NetworkError
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.program_engines import NATIVE, PYTHON
from tensorexpress.scenario import read_scenario
from tensorexpress.sums import VALUES, Pool, SummingSwitch, SumPlan
from tensorexpress.switch.engines import make_switch
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.switch.p4runtime.service import serve
from tensorexpress.switch.packed import PackedFrames, PortFrame
from tensorexpress.switch.ports import parse_port
from tensorexpress.switch.running import RunningSwitch
from tensorexpress.switch.traffic import PortSettings
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.header import Header, Kind
from tensorexpress.wire.sum_header import SumFlag, SumHeader, check_of

#: Tensor bytes of a frame: a small packet, and a full one of an MTU of 1500.
PAYLOADS = (64, 1400)
#: What the embedded switch is measured in.
SHOWN_ENGINES = (PYTHON, NATIVE)
#: Ports that a packet can leave by, in v1model.
PORTS = 2**9
#: Frames that come again and again.
FRAMES = 64
#: Packets that have not come out after this time are lost.
PATIENCE_S = 0.1
POLL_S = 20e-6

#: Workers that sum.
WORKERS = 2
#: Turns go round: each is newer than the one before (RFC 1982).
TURNS = [turn << 30 for turn in range(4)]

OFFLOADS_OFF = [word for name in ("tso", "gso", "gro", "tx", "rx", "sg") for word in (name, "off")]


@dataclass(frozen=True)
class UnderWay:
    """Packets under way at most, and those sent at once."""

    window: int
    burst: int

    @property
    def slots_at_once(self) -> int:
        """Slots of a burst, in which each worker sends a packet to sum."""
        return self.burst // WORKERS

    @property
    def slot_groups(self) -> int:
        """Bursts under way, which go through slots of their own."""
        return self.window // self.burst


#: What BMv2's queues hold, and what keeps the embedded switch busy.
LIGHT, HEAVY = UnderWay(64, 16), UnderWay(512, 64)


@dataclass(frozen=True)
class Rate:
    """Packets per second, and per second of the switch's processor time."""

    per_s: float
    per_cpu_s: float


def make_bench_plan() -> Plan:
    scenario = read_scenario(overrides=["job.workers=1", "job.servers=1", "cluster.hosts=2"])
    return make_plan(scenario, POLICIES["tensorexpress"])


def make_frames(payload: int) -> list[bytes]:
    """Return frames from host 0 to host 1, of many tensors."""
    source, target = default_addresses(("h0", "h1"))
    ends = FrameEnd(source.mac, source.ipv4, 1000), FrameEnd(GATEWAY_MAC, target.ipv4)
    return [
        build_frame(*ends, Header(0, 0, 0, tensor % 54, 0, 1, payload_bytes=payload).pack() + bytes(payload))
        for tensor in range(FRAMES)
    ]


def make_sum_plan(load: UnderWay) -> Plan:
    words = ["job.architecture=ring", f"job.workers={WORKERS}", f"cluster.hosts={WORKERS}"]
    plan = make_plan(read_scenario(overrides=words), POLICIES["tensorexpress"])
    pool = Pool(queue=0, first_slot=0, slots=load.slot_groups * load.slots_at_once, tensors=(0,), packets=(1,))
    children = tuple(2 * host for host in range(WORKERS))
    return replace(plan, jobs=(replace(plan.jobs[0], sums=(SumPlan((SummingSwitch(0, children),), (pool,)),)),))


def make_sum_bursts(load: UnderWay) -> list[list[list[bytes]]]:
    """Return bursts that follow each other, again and again: the frames of every worker, one for each slot."""
    random = np.random.default_rng(1)
    values = [random.integers(-(2**20), 2**20, VALUES, dtype=np.int32) for _ in range(WORKERS)]
    each = load.slots_at_once
    groups = [range(group * each, (group + 1) * each) for group in range(load.slot_groups)]
    return [
        [[_sum_frame(worker, values[worker], turn, slot) for slot in slots] for worker in range(WORKERS)]
        for turn in TURNS
        for slots in groups
    ]


def make_hashed_plan() -> Plan:
    words = [f"job.workers={WORKERS}", "job.servers=1", f"cluster.hosts={WORKERS + 1}"]
    return make_plan(read_scenario(overrides=words), POLICIES["atp"])


def make_hashed_arrivals() -> list[tuple[int, bytes]]:
    """Return (port, frame) that come again and again: what workers send of a packet, and the answer of the server."""
    random = np.random.default_rng(1)
    values = [random.integers(-(2**20), 2**20, VALUES, dtype=np.int32) for _ in range(WORKERS)]
    arrivals = []
    for sequence in range(FRAMES):
        for worker in range(WORKERS):
            frame = _sum_frame(worker, values[worker], sequence, 0, workers=1 << worker)
            arrivals.append((worker, frame))
        total, everyone = np.sum(values, axis=0, dtype=np.int32), (1 << WORKERS) - 1
        result = _sum_frame(WORKERS, total, sequence, 0, workers=everyone, flags=SumFlag.RESULT)
        arrivals.append((WORKERS, result))
    return arrivals


def _sum_frame(worker: int, values: np.ndarray, turn: int, slot: int, **more: int) -> bytes:
    addresses = default_addresses([f"h{host}" for host in range(WORKERS + 1)])
    ends = FrameEnd(addresses[worker].mac, addresses[worker].ipv4), FrameEnd(GATEWAY_MAC, addresses[0].ipv4)
    sums = SumHeader(epoch=1, turn=turn, slot=slot, check=check_of(values), exponent=0, needed=0, **more).pack()
    data, kind = sums + values.astype(">i4").tobytes(), Kind.PART if "workers" in more else Kind.SUM
    return build_frame(*ends, Header(0, worker, 0, 0, 0, 1, kind=kind, payload_bytes=len(data)).pack() + data)


def deploy_to(address: str, plan: Plan) -> None:
    deployment = prepare(plan, ["s0"], Options(), p4.load())
    (outcome,) = deploy(deployment, [RemoteSwitch("s0", address)])
    if outcome.error is not None:
        raise outcome.error


# In process


def in_process(
    plan: Plan, arrivals: list[tuple[int, bytes]], out: set[int], seconds: float, engine: str, *, packed: bool = False
) -> Rate:
    """Return packets per second of processor time, which for one thread that never waits is time.

    `arrivals` are (port, frame) that come again and again, for each of which a packet leaves by one of some ports.
    Frames are handed over and taken as bytes of Python, or packed.
    """
    sent, counted = 0, np.zeros(PORTS, np.int64)
    counted[list(out)] = 1

    def transmit(port: int, frame: bytes, time_ps: int) -> None:
        nonlocal sent
        sent += port in out

    def take(frames: Sequence[PortFrame]) -> None:
        nonlocal sent
        sent += int(counted[PackedFrames.of(frames).ports].sum())

    def arriving(now_ps: int) -> Sequence[PortFrame]:
        if not packed:
            return [(port, frame, now_ps) for port, frame in repeated]
        return PackedFrames(memory.data, memory.starts, memory.lengths, memory.ports, np.full(len(memory), now_ps))

    switch = make_switch(transmit, engine=engine)
    if packed:
        switch.transmit_many(take)
    server = serve(switch, "127.0.0.1:0", cpu_port=255)
    deploy_to(server.address, plan)
    server.stop()
    repeated = arrivals * max(1, 1000 // len(arrivals))
    memory = PackedFrames.of([(port, frame, 0) for port, frame in repeated])
    rates, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        sent, started = 0, time.process_time()
        switch.receive_many(arriving(time.monotonic_ns() * 1000))
        assert sent == len(repeated)
        rates.append(sent / (time.process_time() - started))
    return Rate(median(rates), median(rates))


# Through sockets


class MessageHeader(ctypes.Structure):
    """Linux's struct msghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_uint32),
        ("pieces", ctypes.c_void_p),
        ("piece_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class BatchedMessage(ctypes.Structure):
    """Linux's struct mmsghdr."""

    _fields_ = (("header", MessageHeader), ("sent_bytes", ctypes.c_uint))


class Piece(ctypes.Structure):
    """Linux's struct iovec."""

    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


def make_sender(endpoint: socket.socket, frames: list[bytes]) -> Callable[[], None]:
    """Return what sends a burst of frames with one system call."""
    pieces = (Piece * len(frames))(*(Piece(frame, len(frame)) for frame in frames))
    messages = (BatchedMessage * len(frames))()
    for index, message in enumerate(messages):
        message.header.pieces, message.header.piece_count = ctypes.addressof(pieces[index]), 1
    libc, descriptor = ctypes.CDLL(None, use_errno=True), endpoint.fileno()

    def send() -> None:
        # The frames must live as long as the messages that point at them.
        assert libc.sendmmsg(descriptor, messages, len(frames), 0) == len(pieces), os.strerror(ctypes.get_errno())

    return send


def received_by_interface(name: str) -> int:
    return int(Path(f"/sys/class/net/{name}/statistics/rx_packets").read_text())


def received_by_wire(port: int) -> int:
    """Return how many datagrams came to a UDP port that nobody reads: the kernel counts those it has no room for."""
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[1].partition(":")[2], 16) == port:
            return int(words[12])
    raise LookupError(port)


def processor_s() -> float:
    """Return the processor time of all processes that this one has started, and of those that they have."""
    parents, times = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        parents[pid], times[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    ticks = sum(times[pid] for pid in parents if os.getpid() in _ancestors(pid, parents))
    return ticks / os.sysconf("SC_CLK_TCK")


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


def measure(send: Callable[[], None], count: Callable[[], int], load: UnderWay, seconds: float) -> Rate:
    """Return how many packets per second come out while a load is kept under way."""
    warm_up(send, count, load)
    used_s = processor_s()
    sent = lost = 0
    base = before = count()
    started = progress_at = time.monotonic()
    while (now := time.monotonic()) < started + seconds:
        if sent - (before - base) - lost <= load.window - load.burst:
            send()
            sent += load.burst
        elif (found := count()) != before:
            before, progress_at = found, now
        elif now > progress_at + PATIENCE_S:
            lost, progress_at = sent - (before - base), now
        else:
            time.sleep(POLL_S)
    came, took_s = count() - base, time.monotonic() - started
    if lost:
        print(f"{lost} of {sent} packets were lost")
    return Rate(came / took_s, came / (processor_s() - used_s))


def warm_up(send: Callable[[], None], count: Callable[[], int], load: UnderWay) -> None:
    """Send until packets come out one for one; the first few may fill buffers."""
    for _ in range(20):
        before = count()
        send()
        until = time.monotonic() + PATIENCE_S
        while count() - before < load.burst and time.monotonic() < until:
            time.sleep(POLL_S)


@contextmanager
def embedded(engine: str, plan: Plan, *ports: str) -> Iterator[None]:
    """An embedded switch with a plan: the two processes that `tensorexpress switch` starts."""
    opened = {number: (spec, PortSettings()) for number, spec in map(parse_port, ports)}
    with RunningSwitch(LoopSettings(opened, engine=engine), "127.0.0.1:0") as switch:
        assert switch.address is not None
        deploy_to(switch.address, plan)
        switch.data_path.wait_for_code()
        yield


@contextmanager
def bmv2(program: str, plan: Plan, *ports: str) -> Iterator[None]:
    """A simple_switch_grpc with a plan."""
    words = [word for port in ports for word in ("-i", port)]
    address = f"127.0.0.1:{free_port()}"
    command = [program, *bmv2_options(program, free_port()), *words, "--"]
    command += ["--grpc-server-addr", address, "--priority-queues", "8", "--cpu-port", "255"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(address)
            deploy_to(address, plan)
            yield
        finally:
            process.terminate()


def wait_for(address: str) -> None:
    for _ in range(100):
        try:
            Connection(RemoteSwitch("s0", address)).close()
            return
        except NetworkError:
            time.sleep(0.1)
    raise TimeoutError(address)


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(type=kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def cables() -> Iterator[list[tuple[str, str]]]:
    """Two virtual cables with all offloads off, as BMv2 needs them."""
    names = [(f"teb{os.getpid()}{end}", f"tef{os.getpid()}{end}") for end in "ab"]
    try:
        for near, far in names:
            run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
            for end in (near, far):
                run("ip", "link", "set", end, "addrgenmode", "none", "up")
                run("ethtool", "-K", end, *OFFLOADS_OFF)
        yield names
    finally:
        for near, _ in names:
            subprocess.run(["ip", "link", "del", near], capture_output=True, check=False)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def through_wires(frames: list[bytes], seconds: float, engine: str) -> Rate:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink,
    ):
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for end in (source, sink):
            end.bind(("127.0.0.1", 0))
        ports = [(free_port(socket.SOCK_DGRAM), end.getsockname()[1]) for end in (source, sink)]
        source.connect(("127.0.0.1", ports[0][0]))
        wires = (f"{port}@udp:127.0.0.1:{local}-127.0.0.1:{remote}" for port, (local, remote) in enumerate(ports))
        with embedded(engine, make_bench_plan(), *wires):
            return measure(make_sender(source, frames), lambda: received_by_wire(ports[1][1]), HEAVY, seconds)


def through_cables(
    switch: Callable[..., AbstractContextManager[None]],
    names: list[tuple[str, str]],
    frames: list[bytes],
    load: UnderWay,
    seconds: float,
) -> Rate:
    (near_in, far_in), (near_out, far_out) = names
    ports = f"0@{near_in}", f"1@{near_out}"
    with switch(make_bench_plan(), *ports), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as source:
        source.bind((far_in, 0))
        send = make_sender(source, frames[: load.burst])
        return measure(send, lambda: received_by_interface(far_out), load, seconds)


def sums_through_cables(
    switch: Callable[..., AbstractContextManager[None]], names: list[tuple[str, str]], load: UnderWay, seconds: float
) -> Rate:
    """Return packets to sum per second, with a worker at each far end; as many packets return."""
    ports = (f"{port}@{near}" for port, (near, _) in enumerate(names))
    with switch(make_sum_plan(load), *ports), ExitStack() as cleanup:
        ends = []
        for _, far in names:
            ends.append(cleanup.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)))
            ends[-1].bind((far, 0))
        bursts = cycle(
            [
                [make_sender(end, frames) for end, frames in zip(ends, of_workers, strict=True)]
                for of_workers in make_sum_bursts(load)
            ]
        )

        def send() -> None:
            for sender in next(bursts):
                sender()

        return measure(send, lambda: sum(received_by_interface(far) for _, far in names), load, seconds)


def measure_all(payload: int, seconds: float) -> dict[str, Rate]:
    """Return packets per second by way, for frames with this much payload."""
    frames = make_frames(payload)
    arrivals = [(0, frame) for frame in frames]
    rates = {}
    for engine in SHOWN_ENGINES:
        rates[f"{engine}, in process"] = in_process(make_bench_plan(), arrivals, {1}, seconds, engine)
        if engine == NATIVE:
            rates[f"{engine}, packed"] = in_process(make_bench_plan(), arrivals, {1}, seconds, engine, packed=True)
        rates[f"{engine}, UDP wire"] = through_wires(frames, seconds, engine)
    if not has_cables():
        return rates
    with cables() as names:
        for engine in SHOWN_ENGINES:
            rates[f"{engine}, veth"] = through_cables(partial(embedded, engine), names, frames, HEAVY, seconds)
        program = said_bmv2()
        if program is not None:
            rates["BMv2"] = through_cables(partial(bmv2, program), names, frames, LIGHT, seconds)
    return rates


def measure_sums(seconds: float) -> dict[str, Rate]:
    """Return packets to sum per second by way."""
    arrivals = [
        (worker, frame) for burst in make_sum_bursts(HEAVY) for worker, frames in enumerate(burst) for frame in frames
    ]
    hashed, workers = make_hashed_arrivals(), set(range(WORKERS))
    rates = {}
    for engine in SHOWN_ENGINES:
        rates[f"{engine}, in process"] = in_process(make_sum_plan(HEAVY), arrivals, workers, seconds, engine)
        rates[f"{engine}, by hash"] = in_process(make_hashed_plan(), hashed, {*workers, WORKERS}, seconds, engine)
    rates[f"{NATIVE}, packed"] = in_process(make_sum_plan(HEAVY), arrivals, workers, seconds, NATIVE, packed=True)
    if not has_cables():
        return rates
    with cables() as names:
        for engine in SHOWN_ENGINES:
            rates[f"{engine}, veth"] = sums_through_cables(partial(embedded, engine), names, HEAVY, seconds)
        program = said_bmv2()
        if program is not None:
            rates["BMv2"] = sums_through_cables(partial(bmv2, program), names, LIGHT, seconds)
    return rates


def has_cables() -> bool:
    """Whether there can be virtual cables; says so where there cannot."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("ethtool")):
        print("veth and BMv2 are left out: they need root, ip and ethtool")
        return False
    return True


def said_bmv2() -> str | None:
    """Return simple_switch_grpc; says so where there is none."""
    program = find_bmv2()
    if program is None:
        print(f"BMv2 is left out: {BMV2} is not on PATH, and {BMV2_VARIABLE} names none")
    return program


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=5.0, help="how long each way is measured (5)")
    seconds = arguments.parse_args().seconds
    for payload in PAYLOADS:
        show(f"frames with {payload} bytes of tensor", measure_all(payload, seconds))
    rates = measure_sums(seconds)
    show(f"frames with {VALUES} values that the switch sums", rates)
    for way, rate in rates.items():
        print(f"  {way:20} {VALUES * rate.per_s:13,.0f} values/s {VALUES * rate.per_cpu_s:13,.0f} a processor second")


def show(what: str, rates: dict[str, Rate]) -> None:
    print(f"{what}, packets/s and packets per second of processor time:")
    beside = rates.get("BMv2")
    for way, rate in rates.items():
        ratios = (
            ""
            if beside is None or rate is beside
            else f"{rate.per_s / beside.per_s:.2f} and {rate.per_cpu_s / beside.per_cpu_s:.2f} x BMv2"
        )
        print(f"  {way:20} {rate.per_s:9,.0f} {rate.per_cpu_s:9,.0f}  {ratios}".rstrip())


if __name__ == "__main__":
    main()
