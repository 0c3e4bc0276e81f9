"""Packets per second through the embedded switch with our program, and through simple_switch_grpc where it is there.

Every way carries the same frames under the same plan, deployed by the same controller, in one run:

    in process    frames handed to the switch as bytes: no sockets, one core
    UDP wire      frames in datagrams, from one process to another
    veth          a Linux interface; needs root
    BMv2          simple_switch_grpc on the same veth interfaces

Where sockets carry the frames, the sender keeps WINDOW of them under way: as many as BMv2's queues hold, so that
neither switch is measured while it drops. What comes out of the other port is counted by the kernel, so that counting
costs the switches nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median

from tensorexpress import p4
from tensorexpress.addresses import GATEWAY_MAC, default_addresses
from tensorexpress.control.client import Connection, RemoteSwitch
from tensorexpress.control.deploy import deploy, prepare
from tensorexpress.control.intent import Options
from tensorexpress.errors import NetworkError
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.switch.device import Switch
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.switch.p4runtime.service import serve
from tensorexpress.switch.ports import parse_port
from tensorexpress.switch.running import RunningSwitch
from tensorexpress.switch.traffic import PortSettings
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.header import Header

#: Tensor bytes of a frame: a small packet, and a full one of an MTU of 1500.
PAYLOADS = (64, 1400)
#: Packets under way at most, and those sent at once.
WINDOW, BURST = 64, 16
#: Packets that have not come out after this time are lost.
PATIENCE_S = 0.1
POLL_S = 20e-6

OFFLOADS_OFF = [word for name in ("tso", "gso", "gro", "tx", "rx", "sg") for word in (name, "off")]


def make_bench_plan() -> Plan:
    scenario = read_scenario(overrides=["job.workers=1", "job.servers=1", "cluster.hosts=2"])
    return make_plan(scenario, POLICIES["tensorexpress"])


def make_frames(payload: int) -> list[bytes]:
    """Return a burst of frames from host 0 to host 1, each of another tensor."""
    source, target = default_addresses(("h0", "h1"))
    ends = FrameEnd(source.mac, source.ipv4, 1000), FrameEnd(GATEWAY_MAC, target.ipv4)
    return [
        build_frame(*ends, Header(0, 0, 0, tensor % 54, 0, 1, payload_bytes=payload).pack() + bytes(payload))
        for tensor in range(BURST)
    ]


def deploy_to(address: str) -> None:
    deployment = prepare(make_bench_plan(), ["s0"], Options(), p4.load())
    (outcome,) = deploy(deployment, [RemoteSwitch("s0", address)])
    if outcome.error is not None:
        raise outcome.error


# In process


def in_process(frames: list[bytes], seconds: float) -> float:
    """Return packets per second of CPU time, which for one thread that never waits is time."""
    sent = 0

    def transmit(port: int, frame: bytes, time_ps: int) -> None:
        nonlocal sent
        sent += port == 1

    switch = Switch(transmit)
    server = serve(switch, "127.0.0.1:0", cpu_port=255)
    deploy_to(server.address)
    server.stop()
    rates, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        sent, started = 0, time.process_time()
        for _ in range(20):
            for frame in frames:
                switch.receive(0, frame, time.monotonic_ns() * 1000)
        assert sent == 20 * BURST
        rates.append(sent / (time.process_time() - started))
    return median(rates)


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


class Message(ctypes.Structure):
    """Linux's struct mmsghdr."""

    _fields_ = (("header", MessageHeader), ("sent_bytes", ctypes.c_uint))


class Piece(ctypes.Structure):
    """Linux's struct iovec."""

    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


def make_sender(endpoint: socket.socket, frames: list[bytes]) -> Callable[[], None]:
    """Return what sends a burst of frames with one system call."""
    pieces = (Piece * len(frames))(*(Piece(frame, len(frame)) for frame in frames))
    messages = (Message * len(frames))()
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


def measure(send: Callable[[], None], count: Callable[[], int], seconds: float) -> float:
    """Return how many packets per second come out while WINDOW of them are kept under way."""
    warm_up(send, count)
    sent = lost = 0
    base = before = count()
    started = progress_at = time.monotonic()
    while (now := time.monotonic()) < started + seconds:
        if sent - (before - base) - lost <= WINDOW - BURST:
            send()
            sent += BURST
        elif (found := count()) != before:
            before, progress_at = found, now
        elif now > progress_at + PATIENCE_S:
            lost, progress_at = sent - (before - base), now
        else:
            time.sleep(POLL_S)
    rate = (count() - base) / (time.monotonic() - started)
    if lost:
        print(f"{lost} of {sent} packets were lost")
    return rate


def warm_up(send: Callable[[], None], count: Callable[[], int]) -> None:
    """Send until packets come out one for one; the first few may fill buffers."""
    for _ in range(20):
        before = count()
        send()
        until = time.monotonic() + PATIENCE_S
        while count() - before < BURST and time.monotonic() < until:
            time.sleep(POLL_S)


@contextmanager
def embedded(*ports: str) -> Iterator[None]:
    """An embedded switch with our plan: the two processes that `tensorexpress switch` starts."""
    opened = {number: (spec, PortSettings()) for number, spec in map(parse_port, ports)}
    with RunningSwitch(LoopSettings(opened), "127.0.0.1:0") as switch:
        assert switch.address is not None
        deploy_to(switch.address)
        yield


@contextmanager
def bmv2(program: str, *ports: str) -> Iterator[None]:
    """A simple_switch_grpc with our plan."""
    words = [word for port in ports for word in ("-i", port)]
    address = f"127.0.0.1:{free_port()}"
    command = [program, "--no-p4", "--device-id", "1", "--thrift-port", str(free_port()), "-L", "off", *words, "--"]
    command += ["--grpc-server-addr", address, "--priority-queues", "8", "--cpu-port", "255"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(address)
            deploy_to(address)
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


def through_wires(frames: list[bytes], seconds: float) -> float:
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
        with embedded(*wires):
            return measure(make_sender(source, frames), lambda: received_by_wire(ports[1][1]), seconds)


def through_cables(
    switch: Callable[..., AbstractContextManager[None]],
    names: list[tuple[str, str]],
    frames: list[bytes],
    seconds: float,
) -> float:
    (near_in, far_in), (near_out, far_out) = names
    with switch(f"0@{near_in}", f"1@{near_out}"), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as source:
        source.bind((far_in, 0))
        return measure(make_sender(source, frames), lambda: received_by_interface(far_out), seconds)


def measure_all(payload: int, seconds: float) -> dict[str, float]:
    """Return packets per second by way, for frames with this much payload."""
    frames = make_frames(payload)
    rates = {"in process": in_process(frames, seconds), "UDP wire": through_wires(frames, seconds)}
    if os.geteuid() or not (shutil.which("ip") and shutil.which("ethtool")):
        print("veth and BMv2 are left out: they need root, ip and ethtool")
        return rates
    with cables() as names:
        rates["veth"] = through_cables(embedded, names, frames, seconds)
        program = shutil.which(os.environ.get("TENSOREXPRESS_BMV2", "simple_switch_grpc"))
        if program is None:
            print("BMv2 is left out: simple_switch_grpc is not on PATH, and TENSOREXPRESS_BMV2 names none")
        else:
            rates["BMv2"] = through_cables(lambda *ports: bmv2(program, *ports), names, frames, seconds)
    return rates


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=5.0, help="how long each way is measured (5)")
    seconds = arguments.parse_args().seconds
    for payload in PAYLOADS:
        rates = measure_all(payload, seconds)
        print(f"frames with {payload} bytes of tensor, packets/s:")
        for way, rate in rates.items():
            ratio = f"  {rate / rates['BMv2']:.2f} x BMv2" if "BMv2" in rates and way != "BMv2" else ""
            print(f"  {way:10} {rate:9,.0f}{ratio}")


if __name__ == "__main__":
    main()
