"""How fast hosts are: headers a second beside scapy, and goodput of the transport beside iperf3 on the same veth.

The transport twice: as hosts of runs have it, all machine code, and `Endpoint`, as whoever uses it as a library.

Run by hand: `python benchmarks/host.py`. The goodput part makes two network namespaces, which needs root, and measures
in turn; without root or iperf3 it says what is missing and prints the rest. Nothing is asserted about speed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tensorexpress.framing import Framing
from tensorexpress.host.endpoint import Endpoint, EndpointSettings
from tensorexpress.host.flow import FlowSettings
from tensorexpress.host.links import KernelLink
from tensorexpress.host.native_endpoint import NativeEndpoint
from tensorexpress.host.tagging import Tag
from tensorexpress.wire.header import Header, pack_many

MANY = 10_000
MESSAGE_BYTES = 4_000_000
WINDOW_BYTES = 2_000_000
ACKS_PER_WINDOW = 8
ENDPOINTS: dict[str, type[Endpoint]] = {"hosts of runs": NativeEndpoint, "Endpoint": Endpoint}
SENDER, RECEIVER = ("10.9.8.1", 21592), ("10.9.8.2", 21592)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["headers", "goodput"], help="one of the two parts")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each, in turn (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement (default: %(default)s)")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        gc.freeze()  # what is loaded by now stays, and need not be looked at again and again
        print(json.dumps(ROLES[arguments.role](json.loads(sys.stdin.readline()))), flush=True)
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that namespaces are taken down
    if arguments.only in (None, "headers"):
        compare_headers(arguments.rounds)
    if arguments.only in (None, "goodput"):
        compare_goodput(arguments.rounds, arguments.seconds)


# Headers


def compare_headers(rounds: int) -> None:
    """Print headers/s of the codec, one at a time and many at once, and of scapy."""
    chunks = np.arange(MANY)

    def one() -> None:
        for chunk in range(MANY):
            Header(1, 2, 3, 4, chunk, MANY, 5, 6, 7).pack()

    def many() -> None:
        pack_many(job=1, worker=2, iteration=3, tensor=4, chunk=chunks, chunks=MANY, queue=5, slack_us=6).tobytes()

    rates = {"one at a time": rate(one, MANY, rounds), f"{MANY:,} at once": rate(many, MANY, rounds)}
    try:
        from tensorexpress.wire.scapy_layer import TensorExpress
    except ImportError:
        print("without scapy: it is not installed; pip install 'tensorexpress[scapy]'")
    else:
        fewer = MANY // 100

        def scapy() -> None:
            for chunk in range(fewer):
                bytes(TensorExpress(job=1, worker=2, iteration=3, tensor=4, chunk=chunk, chunks=MANY, queue=5))

        rates["scapy"] = rate(scapy, fewer, rounds)
    base = rates.get("scapy")
    print(f"{'headers packed':16} {'headers/s':>14}" + (f" {'of scapy':>10}" if base else ""))
    for name, value in rates.items():
        print(f"{name:16} {value:>14,.0f}" + (f" {value / base:>9,.0f}x" if base else ""))
    print()


def rate(work: Callable[[], None], count: int, rounds: int) -> float:
    """Return how many of `count` a second, by the median of some rounds after one to warm up."""
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return count / median(times)


# Goodput


def compare_goodput(rounds: int, seconds: float) -> None:
    """Print Gbit/s of the transport and of iperf3 between two namespaces, for two MTUs."""
    reason = missing()
    if reason:
        print(f"without goodput: {reason}")
        return
    if shutil.which("iperf3") is None:
        print("without iperf3: it is not installed")
    for mtu in (1500, 9000):
        with two_namespaces(mtu) as cable:
            measures = {name: partial(transport, cable, mtu, seconds, name) for name in ENDPOINTS}
            if shutil.which("iperf3") is not None:
                measures["iperf3 TCP"] = partial(iperf, cable, seconds)
                measures["iperf3 UDP"] = partial(iperf, cable, seconds, "--udp", "--bitrate", "0")
            results: dict[str, list[float]] = {name: [] for name in measures}
            for _ in range(rounds):
                for name, measure in measures.items():
                    results[name].append(measure())
        print_goodput(mtu, results)


def print_goodput(mtu: int, results: dict[str, list[float]]) -> None:
    reference = results.get("iperf3 TCP")
    print(f"{f'MTU {mtu}':14} {'Gbit/s':>8} {'least':>8} {'most':>8}" + (f" {'of TCP':>8}" if reference else ""))
    for name, values in results.items():
        ratio = f" {median(values) / median(reference):>8.2f}" if reference else ""
        print(f"{name:14} {median(values):>8.2f} {min(values):>8.2f} {max(values):>8.2f}{ratio}")
    print()


def missing() -> str | None:
    """Return what keeps two namespaces from being made."""
    if sys.platform != "linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if shutil.which("ip") is None:
        return "iproute2 (`ip`) is not installed"
    return None


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Cable(NamedTuple):
    """The namespaces at both ends of a veth cable."""

    sender: str
    receiver: str


@contextmanager
def two_namespaces(mtu: int) -> Iterator[Cable]:
    """Two namespaces joined by a cable."""
    names = [f"te{os.getpid()}{end}" for end in "ab"]
    with ExitStack() as cleanup:
        for name in names:
            ip("netns", "add", name)
            cleanup.callback(ip, "netns", "del", name)
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, (address, _) in zip(names, (SENDER, RECEIVER), strict=True):
            ip("-n", name, "link", "set", "cable", "mtu", str(mtu), "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
        yield Cable(*names)


def inside(namespace: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, *command]


def iperf(cable: Cable, seconds: float, *options: str) -> float:
    """Return Gbit/s that iperf3's receiver saw with one stream."""
    server = subprocess.Popen(
        inside(cable.receiver, "iperf3", "--server", "--one-off", "--forceflush"), stdout=subprocess.PIPE, text=True
    )
    with server:
        assert server.stdout is not None
        for line in server.stdout:
            if "listening" in line:
                break
        command = inside(
            cable.sender, "iperf3", "--client", RECEIVER[0], "--time", str(max(1, round(seconds))), "--json", *options
        )
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        server.communicate()
    end = result["end"]
    received = end.get("sum_received", {}).get("bits_per_second") or end["sum"]["bits_per_second"] * (
        1 - end["sum"]["lost_percent"] / 100
    )
    return float(received) / 1e9


def transport(cable: Cable, mtu: int, seconds: float, endpoint: str) -> float:
    """Return Gbit/s of messages that the transport delivered and acknowledged."""
    given = json.dumps({"mtu": mtu, "seconds": seconds, "endpoint": endpoint}) + "\n"
    with ExitStack() as stack:
        ends = {}
        for role, namespace in (("receive", cable.receiver), ("send", cable.sender)):
            command = inside(namespace, sys.executable, __file__, "--role", role)
            ends[role] = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(ends[role].kill)
            stdin = ends[role].stdin
            assert stdin is not None
            stdin.write(given)
            stdin.flush()
        outputs = {role: process.communicate()[0] for role, process in ends.items()}
    return float(json.loads(outputs["send"])) / 1e9


def settings(given: dict[str, Any]) -> EndpointSettings:
    framing = Framing(given["mtu"])
    full_bytes = framing.payload_bytes + framing.header_bytes
    flow = FlowSettings(
        framing.payload_bytes,
        framing.header_bytes,
        window_bytes=WINDOW_BYTES,
        ack_every=WINDOW_BYTES // ACKS_PER_WINDOW // full_bytes,
    )
    return EndpointSettings(flow, silence_ps=10 * 10**12)


def send(given: dict[str, Any]) -> float:
    """Send messages for some seconds; return the bit/s that were acknowledged."""
    payload = np.random.default_rng(1).bytes(MESSAGE_BYTES)
    make = ENDPOINTS[given["endpoint"]]
    with make(KernelLink(SENDER), {"receiver": RECEIVER}, settings(given), session=1) as endpoint:
        first = endpoint.send("receiver", Tag(0, 0, 0, 0), payload)
        endpoint.run(until=lambda: first.done)  # the other end is there, and the window is open
        start, sent = time.perf_counter(), 0
        while time.perf_counter() - start < given["seconds"]:
            two = [endpoint.send("receiver", Tag(0, 0, sent + i, 1), payload) for i in range(2)]
            endpoint.run(until=lambda: two[0].done)  # noqa: B023 - it is done within the loop
            sent += 2
        endpoint.run(until=lambda: endpoint.idle)
        elapsed = time.perf_counter() - start
        endpoint.leave()
    return sent * MESSAGE_BYTES * 8 / elapsed


def receive(given: dict[str, Any]) -> int:
    """Take messages until the sender leaves; return how many."""
    buffers = [np.empty(MESSAGE_BYTES, dtype=np.uint8) for _ in range(4)]
    got: list[int] = []

    def buffer_for(source: str, tag: Tag, size: int) -> np.ndarray:
        return buffers[tag.iteration % len(buffers)]

    endpoint = ENDPOINTS[given["endpoint"]](
        KernelLink(RECEIVER),
        {"sender": SENDER},
        settings(given),
        session=1,
        buffer_for=buffer_for,
        delivered=lambda message: got.append(message.tag.iteration),
    )
    with endpoint:
        endpoint.run(until=lambda: endpoint.has_left("sender"))
        endpoint.leave()
    return len(got)


ROLES = {"send": send, "receive": receive}

if __name__ == "__main__":
    main()
