"""Whether urgent packets go first on a link that is shared, at the rates of real links: by the switch's own capture.

One host keeps the link to a third one full of the least urgent tensor, another sends single packets of the most urgent
one at random times. The switch writes what it took and sent. For every urgent packet, the others that left between its
arrival and its departure are counted: one may have been on the link already. All bytes that left, against the time
between the first and the last of them, are the rate.

Run by hand, without root: `python benchmarks/priority.py`. Nothing is asserted about speed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory

from switch import deploy_to

from tensorexpress.addresses import GATEWAY_MAC, default_addresses
from tensorexpress.framing import DATAGRAM_BYTES, FRAME_OVERHEAD_BYTES
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.program_engines import ENGINES, NATIVE
from tensorexpress.scenario import read_scenario
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.switch.pcap import capture_frames, capture_name
from tensorexpress.switch.ports import SocketSpec
from tensorexpress.switch.running import RunningSwitch
from tensorexpress.switch.traffic import PortSettings
from tensorexpress.units import format_rate
from tensorexpress.wire.frame import FrameEnd, build_frame, read_frame
from tensorexpress.wire.header import HEADER_BYTES, Header
from tensorexpress.wire.udp import lay_wire

MBPS = 10**6
#: Hosts and ports: who sends what is not urgent, who sends what is, and who gets both.
BULK, URGENT, SINK = range(3)
#: Part of the link that urgent packets have, and for how long the others that wait would keep it busy: longer than who
#: sends them may stand still.
URGENT_SHARE = 0.2
BACKLOG_S = 0.1
#: Bytes sent at once, and the pause after them: a socket takes no whole backlog.
BURST_BYTES, PAUSE_S = 100_000, 0.5e-3
SINK_BUFFER_BYTES = 2**25
#: Linux's option for root, who may have more than the system's limit.
SO_RCVBUFFORCE = 33
#: Where the sender's address is in a frame.
SOURCE_IP = slice(26, 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="20,100,500", help="Mbps of the link (default: %(default)s)")
    parser.add_argument("--mtu", type=int, default=9000, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each rate (default: %(default)s)")
    parser.add_argument("--engine", choices=ENGINES, default=NATIVE, help="of the switch (default: %(default)s)")
    given = parser.parse_args()
    print(f"embedded switch, {given.engine}, UDP wires, MTU {given.mtu}; less urgent packets before an urgent one:")
    print("      rate  sent at       of rate  urgent packets  overtaken by none, one, more")
    for rate_bps in (int(float(rate) * MBPS) for rate in given.rates.split(",")):
        with TemporaryDirectory() as directory:
            carry(rate_bps, given.mtu, given.seconds, given.engine, Path(directory))
            show(rate_bps, Path(directory))


def carry(rate_bps: int, mtu: int, seconds: float, engine: str, directory: Path) -> None:
    """Let a switch carry both kinds of packets for some time, and write captures."""
    plan = make_plan(
        read_scenario(overrides=["job.workers=2", "job.servers=1", "cluster.hosts=3"]), POLICIES["tensorexpress"]
    )
    layers = len(plan.jobs[0].ranks)
    with ExitStack() as opened:
        wires = [lay_wire() for _ in range(3)]
        for _, far in wires:
            opened.enter_context(far)
        ports = {
            number: (SocketSpec(near.fileno()), PortSettings(rate_bps if number == SINK else None, buffer_bytes=0))
            for number, (near, _) in enumerate(wires)
        }
        switch = opened.enter_context(
            RunningSwitch(LoopSettings(ports, engine=engine, pcap=str(directory)), "127.0.0.1:0")
        )
        assert switch.address is not None
        deploy_to(switch.address, plan)
        switch.data_path.wait_for_code()
        forked = multiprocessing.get_context("fork")
        over = forked.Event()
        # What arrives at the sink tells who keeps the link full how much has left.
        bulk, urgent, sink = (far for _, far in wires)
        senders = [
            forked.Process(
                target=keep_full, args=(bulk, sink, frames_of(BULK, layers - 1, mtu), rate_bps, over), daemon=True
            ),
            forked.Process(
                target=send_now_and_then, args=(urgent, frames_of(URGENT, 0, mtu), rate_bps, mtu, over), daemon=True
            ),
        ]
        for sender in senders:
            sender.start()
        time.sleep(seconds)
        over.set()
        for sender in senders:
            sender.join()


def frames_of(host: int, tensor: int, mtu: int) -> Callable[[int], bytes]:
    """Return what makes the frame of a number, of a tensor from a host to the sink."""
    addresses = default_addresses([f"h{number}" for number in range(3)])
    ends = FrameEnd(addresses[host].mac, addresses[host].ipv4), FrameEnd(GATEWAY_MAC, addresses[SINK].ipv4)
    size = mtu - DATAGRAM_BYTES - HEADER_BYTES

    def frame(number: int) -> bytes:
        header = Header(0, host, 0, tensor, number, 2**32 - 1, payload_bytes=size)
        return build_frame(*ends, header.pack() + bytes(size))

    return frame


def keep_full(
    wire: socket.socket, sink: socket.socket, frame: Callable[[int], bytes], rate_bps: int, over: Event
) -> None:
    """Keep so many bytes on their way to the sink that some always wait for its link."""
    under_way, at_once, one = 0, 0, frame(0)
    backlog_bytes = int(rate_bps * BACKLOG_S / 8)
    sink.setblocking(False)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF if os.geteuid() else SO_RCVBUFFORCE, SINK_BUFFER_BYTES)
    while not over.is_set():
        if under_way + len(one) <= backlog_bytes and at_once < BURST_BYTES:
            wire.send(one)
            under_way, at_once = under_way + len(one), at_once + len(one)
            continue
        try:
            arrived = sink.recv(2**16)
        except BlockingIOError:
            time.sleep(PAUSE_S)
            at_once = 0
            continue
        if arrived[SOURCE_IP] == one[SOURCE_IP]:
            under_way -= len(arrived)


def send_now_and_then(wire: socket.socket, frame: Callable[[int], bytes], rate_bps: int, mtu: int, over: Event) -> None:
    """Send single packets at random times, which take a part of the link in the mean."""
    drawn, number = random.Random(1), 0
    gap_s = mtu * 8 / (URGENT_SHARE * rate_bps)
    due_s = time.monotonic()
    while not over.is_set():
        due_s += drawn.expovariate(1 / gap_s)
        time.sleep(max(0.0, due_s - time.monotonic()))
        wire.send(frame(number))
        number += 1


def show(rate_bps: int, directory: Path) -> None:
    """Print what captures say."""
    arrived_ns = {
        read_frame(frame).header.chunk: time_ns
        for time_ns, frame in capture_frames(directory / capture_name(URGENT, "in"))
    }
    left = [
        (time_ns, len(frame), read_frame(frame).header)
        for time_ns, frame in capture_frames(directory / capture_name(SINK, "out"))
    ]
    overtaken: Counter[int] = Counter()
    others_ns: list[int] = []
    for time_ns, _, header in left:
        if header.worker == BULK:
            others_ns.append(time_ns)
        else:
            since_ns, before = arrived_ns[header.chunk], 0
            while before < len(others_ns) and others_ns[-1 - before] > since_ns:
                before += 1
            overtaken[before] += 1
    # The first to leave began before it was written down.
    size = sum(length + FRAME_OVERHEAD_BYTES for _, length, _ in left[1:])
    sent_bps = size * 8 * 10**9 / (left[-1][0] - left[0][0])
    more = sum(count for before, count in overtaken.items() if before > 1)
    print(
        f"{format_rate(rate_bps):>10}  {format_rate(round(sent_bps)):12}  {sent_bps / rate_bps:7.2%}  "
        f"{overtaken.total():14}  {overtaken[0]}, {overtaken[1]}, {more}; {max(overtaken)} at the most",
        flush=True,
    )


if __name__ == "__main__":
    main()
