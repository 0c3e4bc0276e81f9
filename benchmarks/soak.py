"""Whether a switch stays as it was: memory, descriptors and loss while packets pass for long.

`tensorexpress switch` with native code carries a steady stream of small frames of tensors, on veth where there is root
and on UDP wires elsewhere. Now and then a controller deploys another plan, which reads all tables and writes what
differs. Resident memory and open descriptors of every process of the switch are sampled, and a straight line through
them says by how much they grow in an hour. Frames that came out are counted by the kernel; the switch itself says at
its end what it dropped and why.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from switch import (
    FRAMES,
    cables,
    deploy_to,
    free_port,
    has_cables,
    make_bench_plan,
    make_frames,
    make_sender,
    received_by_interface,
    received_by_wire,
)

from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.program_engines import NATIVE

PAYLOAD_BYTES = 64
DEPLOY_S = 5.0
SAMPLE_S = 1.0
#: Until then caches fill; it is no part of the line.
SETTLED = 0.2
#: A sender that was held up makes good what it owes: some bursts at once, the rest that much faster than the rate. All
#: at once would only show how long the kernel's queues are; never would count the machine's pauses as the switch's.
AT_ONCE = 8
CATCHING_UP = 1.3
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LAST_FRAMES_S = 1.0


@dataclass
class Samples:
    """What a process had, and when."""

    times_s: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def take(self, pid: int, now_s: float) -> None:
        self.times_s.append(now_s)
        self.memory_bytes.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES)
        self.descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))

    def an_hour(self, values: list[int]) -> float:
        """Return by how much a straight line through the settled part of values grows in an hour."""
        first = int(SETTLED * len(values))
        return float(np.polyfit(self.times_s[first:], values[first:], 1)[0]) * 3600


@dataclass(frozen=True)
class Way:
    """What carries the frames: options of the switch, how to send a burst, and how many have come out."""

    name: str
    options: list[str]
    send: Callable[[], None]
    count: Callable[[], int]


@contextmanager
def opened_way() -> Iterator[Way]:
    frames = make_frames(PAYLOAD_BYTES)
    with ExitStack() as opened:
        if has_cables():
            (near_in, far_in), (near_out, far_out) = opened.enter_context(cables())
            source = opened.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            source.bind((far_in, 0))
            options = ["--port", f"0@{near_in}", "--port", f"1@{near_out}"]
            yield Way("veth", options, make_sender(source, frames), lambda: received_by_interface(far_out))
            return
        source, sink = (opened.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(2))
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # nobody reads it: the kernel counts
        near = [free_port(socket.SOCK_DGRAM) for _ in range(2)]
        for end in (source, sink):
            end.bind(("127.0.0.1", 0))
        source.connect(("127.0.0.1", near[0]))
        options = []
        for number, end in enumerate((source, sink)):
            options += ["--port", f"{number}@udp:127.0.0.1:{near[number]}-127.0.0.1:{end.getsockname()[1]}"]
        yield Way("UDP wires", options, make_sender(source, frames), lambda: received_by_wire(sink.getsockname()[1]))


def processes_of(pid: int) -> list[int]:
    """Return a process and all that it has started and that are there now."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(int(child) for each in lists for child in each.read_text().split())]


def send_steadily(send: Callable[[], None], seconds: float, rate: float, link: Connection) -> None:
    """Send bursts at a rate from the moment that the other end says so; tell it how many frames there were."""
    link.recv()
    started, sent = time.monotonic(), 0
    least_s = FRAMES / (CATCHING_UP * rate)  # from burst to burst
    fastest_s = started
    while (now := time.monotonic()) < started + seconds:
        next_s = max(started + sent / rate, fastest_s)
        if now < next_s:
            time.sleep(next_s - now)
            continue
        send()
        sent += FRAMES
        fastest_s = max(fastest_s, now - AT_ONCE * least_s) + least_s
    link.send(sent)


def watch(address: str, samples: dict[int, Samples], link: Connection) -> tuple[int, int]:
    """Deploy plans in turn and take samples until the sender has ended; return how many it sent, and deployments."""
    plans = [make_bench_plan(), make_plan(make_bench_plan().scenario, POLICIES["fifo"])]
    deploy_to(address, plans[0])
    started, deployed = time.monotonic(), 0
    link.send("go")
    while not link.poll(SAMPLE_S):
        now_s = time.monotonic() - started
        for pid, kept in samples.items():
            kept.take(pid, now_s)
        if now_s > DEPLOY_S * (deployed + 1):
            deployed += 1
            deploy_to(address, plans[deployed % 2])
    return link.recv(), deployed


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--minutes", type=float, default=5.0, help="how long frames are sent (5)")
    arguments.add_argument("--rate", type=float, default=100_000, help="frames per second (100000)")
    given = arguments.parse_args()
    seconds, forked = 60 * given.minutes, multiprocessing.get_context("fork")
    with opened_way() as way:
        link, far = forked.Pipe()
        sender = forked.Process(target=send_steadily, args=(way.send, seconds, given.rate, far), daemon=True)
        sender.start()
        command = [sys.executable, "-c", "from tensorexpress.cli import main; main()", "switch", *way.options]
        command += ["--grpc", "127.0.0.1:0", "--engine", NATIVE]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as switch:
            try:
                assert switch.stdout is not None
                found = re.search(r"P4Runtime at (\S+);", switch.stdout.readline())
                assert found is not None
                samples = {pid: Samples() for pid in processes_of(switch.pid)}
                base = way.count()
                sent, deployed = watch(found[1], samples, link)
                time.sleep(LAST_FRAMES_S)
                came = way.count() - base
            finally:
                switch.send_signal(signal.SIGTERM)
            counted = switch.stdout.read()
    show(f"{way.name}, {given.minutes:g} minutes", seconds, sent, came, deployed, samples)
    print(counted, end="")


def show(what: str, seconds: float, sent: int, came: int, deployed: int, samples: dict[int, Samples]) -> None:
    print(f"{what}: {sent:,} frames sent, {sent / seconds:,.0f} a second; {sent - came:,} lost; {deployed} deployments")
    for number, kept in enumerate(samples.values()):
        name = "forwarding" if number else "controlling"
        first, *_, last = kept.memory_bytes[int(SETTLED * len(kept.memory_bytes)) :]
        print(
            f"  {name:12} {first / 2**20:7.1f} to {last / 2**20:7.1f} MiB, "
            f"{kept.an_hour(kept.memory_bytes) / 2**20:+.2f} MiB an hour; "
            f"{min(kept.descriptors)} to {max(kept.descriptors)} descriptors, "
            f"{kept.an_hour(kept.descriptors):+.2f} an hour"
        )


if __name__ == "__main__":
    main()
