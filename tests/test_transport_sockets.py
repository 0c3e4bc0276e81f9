"""The transport over real sockets: several processes on loopback, over UDP wires, and in network namespaces."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from ipaddress import ip_address
from itertools import groupby
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.network import ip, needs_root
from support.thorough import rest
from support.virtual_network import VirtualLink, VirtualNetwork

from tensorexpress.addresses import GATEWAY_MAC
from tensorexpress.errors import NetworkError
from tensorexpress.framing import SEGMENT_HEADER_BYTES, SEGMENT_OVERHEAD_BYTES
from tensorexpress.host import links, segments, wire_link
from tensorexpress.host.endpoint import Endpoint, EndpointSettings
from tensorexpress.host.flow import FlowSettings
from tensorexpress.host.layout import CE, ECT
from tensorexpress.host.links import Arrival, KernelLink
from tensorexpress.host.segments import SegmentBuffer, SegmentRun, part_of
from tensorexpress.host.tagging import Tag, TrafficClass
from tensorexpress.host.wire_link import WireLink
from tensorexpress.wire.frame import FrameEnd as Host
from tensorexpress.wire.frame import build_frame
from tensorexpress.wire.udp import lay_wire, unstamped

PROCESS = Path(__file__).with_name("support") / "transport_process.py"
URGENT = TrafficClass(dscp=56, priority=6)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(count)]
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]


def configuration(address, peers, worker, **changes):
    return {
        "address": address,
        "peers": peers,
        "worker": worker,
        "workers": 1,
        "size": 100_000,
        "iterations": 3,
        "payload_bytes": 1408,
        "session": 99,
        "offload": True,
        "silence_ms": 20_000,
        **changes,
    }


@contextmanager
def processes(configurations, namespaces=None):
    """Start a process for every configuration; none of them outlives the block."""
    with ExitStack() as stack:
        started = []
        for number, each in enumerate(configurations):
            inside = ["ip", "netns", "exec", namespaces[number]] if namespaces else []
            process = stack.enter_context(
                subprocess.Popen(
                    [*inside, sys.executable, str(PROCESS), json.dumps(each)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            started.append(process)
        yield started


def outcomes(configurations, namespaces=None):
    with processes(configurations, namespaces) as started:
        results = [process.communicate(timeout=60) for process in started]
        assert [process.returncode for process in started] == [0] * len(started), results
    return [json.loads(output) for output, _ in results]


@rest(but=1)
@pytest.mark.parametrize("offload", [True, False])
def test_sums_are_exact_between_processes_on_loopback(offload):
    workers = 3
    server, *others = [("127.0.0.1", port) for port in free_ports(1 + workers)]
    shared = {"workers": workers, "offload": offload}
    outcomes(
        [configuration(server, {f"worker {i}": address for i, address in enumerate(others)}, None, **shared)]
        + [configuration(address, {"server": server}, i, **shared) for i, address in enumerate(others)]
    )


def test_sums_are_exact_over_a_udp_wire():
    ends = [("127.0.0.1", port) for port in free_ports(2)]
    server, worker = ("10.0.0.1", 21592), ("10.0.0.2", 21592)
    outcomes(
        [
            configuration(server, {"worker": worker}, None, wire=ends, size=20_000),
            configuration(worker, {"server": server}, 0, wire=ends[::-1], size=20_000),
        ]
    )


@contextmanager
def joined_namespaces(mtu):
    """Two namespaces with a cable between them."""
    names = [f"te{os.getpid()}x{end}" for end in "ab"]
    with ExitStack() as cleanup:
        for name in names:
            ip("netns", "add", name)
            cleanup.callback(ip, "netns", "del", name)
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "link", "set", "cable", "mtu", str(mtu), "up")
            ip("-n", name, "addr", "add", f"10.0.0.{number + 1}/24", "dev", "cable")
        yield names


@rest(but=1)
@needs_root
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_sums_are_exact_between_namespaces(mtu):
    server, worker = ("10.0.0.1", 21592), ("10.0.0.2", 21592)
    shared = {"payload_bytes": mtu - 92, "size": 500_000}
    with joined_namespaces(mtu) as namespaces:
        results = outcomes(
            [
                configuration(server, {"worker": worker}, None, **shared),
                configuration(worker, {"server": server}, 0, **shared),
            ],
            namespaces,
        )
    assert all(each["corrupt"] == each["malformed"] == each["strangers"] == 0 for each in results)


@rest(but=1)
@needs_root
@pytest.mark.parametrize("offload", [True, False])
def test_packets_that_do_not_fit_the_mtu_are_refused_and_not_fragmented(offload):
    server, worker = ("10.0.0.1", 21592), ("10.0.0.2", 21592)
    with joined_namespaces(mtu=1500) as namespaces:
        alone = configuration(worker, {"server": server}, 0, payload_bytes=1409, offload=offload)
        with processes([alone], namespaces[1:]) as (process,):
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == (
        "datagrams of 1473 bytes to 10.0.0.1 do not fit its route's MTU; "
        "set cluster.mtu to that of the interface (`ip route get 10.0.0.1`)\n"
    )


def test_who_is_killed_is_named_by_the_other():
    server, worker = [("127.0.0.1", port) for port in free_ports(2)]
    endless = {"iterations": 10**9, "silence_ms": 3000}
    both = [
        configuration(server, {"worker 0": worker}, None, **endless),
        configuration(worker, {"server": server}, 0, **endless),
    ]
    with processes(both) as (survivor, victim):
        victim.kill()
        _, errors = survivor.communicate(timeout=60)
    assert survivor.returncode == 1
    assert errors.startswith(f"worker 0 at 127.0.0.1:{worker[1]} has been silent for 3")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize(("host", "level", "option"), [
    ("127.0.0.1", socket.IPPROTO_IP, 13),
    ("::1", socket.IPPROTO_IPV6, 66),
])  # fmt: skip
def test_every_packet_has_the_dscp_of_its_class_and_can_be_marked(offload, host, level, option):
    link = KernelLink((host, 0), offload=offload)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((host, 0))
        receiver.settimeout(5)
        receiver.setsockopt(level, option, 1)
        seen = []
        for traffic in (URGENT, TrafficClass(0, 0), TrafficClass(8, 1)):
            assert link.send(receiver.getsockname()[:2], traffic, b"abcd" * 3 + b"e", 4)
            for _ in range(4):
                data, ancillary, _, _ = receiver.recvmsg(100, 100)
                seen.append((data, ancillary[0][2][0]))
    link.close()
    assert seen == [(data, dscp << 2 | ECT) for dscp in (56, 0, 8) for data in (b"abcd", b"abcd", b"abcd", b"e")]


def test_an_address_that_is_taken_or_not_ours_is_named():
    link = KernelLink(("127.0.0.1", 0))
    with pytest.raises(
        NetworkError, match=rf"cannot receive at 127\.0\.0\.1:{link.address[1]}: Address already in use"
    ):
        KernelLink(link.address)
    link.close()
    with pytest.raises(NetworkError, match=r"cannot receive at 192\.0\.2\.1:1: Cannot assign requested address"):
        KernelLink(("192.0.2.1", 1))


def host(number: int, version: int = 4, port: int = 21592) -> Host:
    return Host(
        bytes([2, 0, 0, 0, 0, number]), ip_address(f"10.0.0.{number}" if version == 4 else f"fd00::{number}"), port
    )


def use_machine_code(in_machine_code: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let links of wires have machine code, or none."""
    if in_machine_code and segments.machine_code() is None:
        pytest.skip("no machine code on this processor")
    if not in_machine_code:
        monkeypatch.setattr(wire_link, "machine_code", lambda: None)


def taken_from(link: WireLink) -> list[tuple[bytes, tuple[str, int], bool]]:
    """Return all datagrams that a link has received, who sent each and whether it was marked."""
    taken = []
    while (arrival := link.receive()) is not None:
        whole = bytes(link.buffer.view[arrival.start : arrival.start + arrival.size_bytes])
        for at in range(0, len(whole), arrival.stride_bytes):
            taken.append((whole[at : at + arrival.stride_bytes], arrival.source, arrival.marked))
    return taken


@pytest.mark.parametrize("in_machine_code", [False, True], ids=["python", "machine code"])
@pytest.mark.parametrize("version", [4, 6])
def test_a_wire_takes_what_is_for_this_host_and_whole(version, in_machine_code, monkeypatch):
    use_machine_code(in_machine_code, monkeypatch)
    here, wire = lay_wire()
    own, other = host(1, version), host(2, version)
    link = WireLink(own, GATEWAY_MAC, here)
    with wire:
        wire.settimeout(5)
        good = build_frame(other, own, b"hello", dscp=8, ecn=CE)
        bad = [good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :] for at in range(12, len(good))]
        elsewhere = [build_frame(other, host(3, version), b"hello"), build_frame(other, host(1, version, 7), b"hello")]
        for frame in (*bad, *elsewhere, good[:40], b"", good + b"padding"):
            wire.send(frame)
        arrivals = taken_from(link)
        link.send((str(other.ip), other.port), URGENT, b"abcd", 4)
        sent = wire.recv(1000)
    link.close()
    # IPv6 has no checksum of its own; what its traffic class, flow label and hop limit hold is not protected.
    unprotected = {4: [], 6: [(b"hello", (str(other.ip), 21592))] * 5}[version]
    assert [arrival[:2] for arrival in arrivals] == [*unprotected, (b"hello", (str(other.ip), 21592))]
    assert arrivals[-1][2]
    assert sent == build_frame(own, Host(GATEWAY_MAC, other.ip), b"abcd", dscp=56, ecn=ECT)


def test_frames_say_when_they_had_to_leave_where_a_switch_wants_to_know() -> None:
    here, wire = lay_wire()
    link = WireLink(host(1), GATEWAY_MAC, here, stamped=True)
    with wire:
        wire.settimeout(5)
        before_ns = time.monotonic_ns()
        for leaves_ps in (7_000, None):
            link.leaves_ps = leaves_ps
            link.send((str(host(2).ip), host(2).port), URGENT, b"abcd", 4)
        after_ns = time.monotonic_ns()
        (late, late_ns), (now, now_ns) = unstamped(wire.recv(1000)), unstamped(wire.recv(1000))
    link.close()
    assert late == now == build_frame(host(1), Host(GATEWAY_MAC, host(2).ip), b"abcd", dscp=56, ecn=ECT)
    assert late_ns == 7
    assert before_ns <= now_ns <= after_ns


RUN = SegmentRun(0, 1, 3, 2, 5, 7, 1, 90, 200, -50, 0, 99, 4, 2**32 - 3, 12, 8, 0, 123_456)


@pytest.mark.parametrize("version", [4, 6])
@given(
    size=st.integers(0, 1600),
    missing=st.integers(0, 1600),
    segments_sent=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    flags=st.sampled_from([0, 4, 255]),
)
def test_frames_of_machine_code_are_those_of_python(version, size, missing, segments_sent, seed, flags):
    if segments.machine_code() is None:
        pytest.skip("no machine code on this processor")
    run = RUN._replace(payload_bytes=size, segments=segments_sent, slack_us=seed - 2**31)
    # The last one may be shorter.
    last = max(0, size - missing)
    payload = memoryview(Random(seed).randbytes(size * (segments_sent - 1) + last))
    own, other = host(1, version), host(2, version)
    target, frames = (str(other.ip), other.port), []
    here, wire = lay_wire()
    with closing(WireLink(own, GATEWAY_MAC, here)) as link, wire:
        assert link.send_run(target, URGENT, run, payload, flags) == segments_sent
        while len(frames) < segments_sent:
            frames.append(wire.recv(10_000))
        datagrams = []
        for number in range(segments_sent):
            part = part_of(run, number, 1)._replace(
                start=0, payload_bytes=last if number == segments_sent - 1 else size
            )
            own_flags = flags if number == segments_sent - 1 else 0
            content = payload[number * size : number * size + part.payload_bytes]
            datagrams.append(bytes(SegmentBuffer(2**11).write(part, content, own_flags)))
        there = Host(GATEWAY_MAC, other.ip, other.port)
        assert frames == [build_frame(own, there, each, dscp=URGENT.dscp, ecn=ECT) for each in datagrams]
        link.send(target, URGENT, b"".join(datagrams), run.stride_bytes)
        assert [wire.recv(10_000) for _ in frames] == frames


@st.composite
def any_frames(draw: st.DrawFn, version: int) -> list[bytes]:
    """Return frames of a few senders, most of them for host 1, some damaged, cut or filled up."""
    frames = []
    for _ in range(draw(st.integers(1, 12))):
        target = host(draw(st.sampled_from([1, 1, 1, 3])), version, draw(st.sampled_from([21592, 21592, 7])))
        source = host(draw(st.integers(2, 3)), draw(st.sampled_from([version, version, 10 - version])))
        if source.ip.version != version:
            target = host(1, source.ip.version)
        content = draw(st.binary(min_size=0, max_size=9)) * draw(st.integers(0, 40))
        frame = bytearray(build_frame(source, target, content, ecn=draw(st.sampled_from([0, ECT, CE]))))
        if draw(st.booleans()):
            at = draw(st.integers(0, len(frame) - 1))
            frame[at] ^= draw(st.integers(1, 255))
        if draw(st.integers(0, 3)) == 0:
            frame = frame[: draw(st.integers(1, len(frame)))]
        frames.append(bytes(frame) + bytes(draw(st.sampled_from([0, 0, 4]))))
    return frames


@pytest.mark.parametrize("version", [4, 6])
@given(data=st.data())
def test_machine_code_takes_the_frames_that_python_takes(version, data):
    if segments.machine_code() is None:
        pytest.skip("no machine code on this processor")
    frames = data.draw(any_frames(version))
    outcomes = []
    for module in (segments.machine_code(), None):
        here, wire = lay_wire()
        with pytest.MonkeyPatch.context() as patched, wire:
            patched.setattr(wire_link, "machine_code", lambda module=module: module)
            with closing(WireLink(host(1, version), GATEWAY_MAC, here)) as link:
                for frame in frames:
                    wire.send(frame)
                outcomes.append((taken_from(link), link.ignored))
    assert outcomes[0] == outcomes[1]


class Keeping(KernelLink):
    """A link that has received more than is taken at a time, so that its socket is empty."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0))
        self.kept = [Arrival(("10.6.6.6", 1), 0, 100, 100, False)] * 100

    def receive(self) -> Arrival | None:
        return self.kept.pop() if self.kept else super().receive()


def test_what_a_link_keeps_is_taken_without_waiting_for_more() -> None:
    with Endpoint(Keeping(), {}, UNLIMITED, session=7) as end:
        end.run(until=lambda: end.counters.strangers == 100)


class Forwarded:
    """What an endpoint sent: bursts of datagrams, some of which were changed on the way, from one socket."""

    def __init__(self, random: Random):
        network = VirtualNetwork()
        sender, _ = VirtualLink(network, ("10.0.0.1", 1)), VirtualLink(network, ("10.0.0.2", 1))
        end = Endpoint(sender, {"peer": ("10.0.0.2", 1)}, UNLIMITED, session=7, clock_ps=network.clock_ps)
        self.contents = {number: random.randbytes(random.choice([900, 40_000, 123_456])) for number in range(3)}
        for number, content in self.contents.items():
            end.send("peer", Tag(0, 0, 1, tensor=2, message=number, flow=random.randrange(2)), content)
        end.advance()
        self.datagrams = [datagram for _, datagram in sender.sent]

    def bursts(self, random: Random) -> Iterator[bytes]:
        """Yield datagrams joined as the kernel joins them, most of them in order, a few twice, late or damaged."""
        waiting, fault = list(self.datagrams), random.choice([0.0, 0.02, 0.2])
        while waiting:
            burst = [waiting.pop(0) for _ in range(min(len(waiting), random.randint(1, 20)))]
            if random.random() < fault:
                random.shuffle(burst)
            if random.random() < fault:
                burst.append(burst[0])
            if random.random() < fault:
                at = random.randrange(len(burst))
                damaged = bytearray(burst[at])
                damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
                burst[at] = bytes(damaged)
            for _, group in groupby(burst, key=len):
                yield b"".join(group)


FULL_BYTES = 1000 + SEGMENT_HEADER_BYTES
UNLIMITED = EndpointSettings(FlowSettings(1000, SEGMENT_OVERHEAD_BYTES, window_bytes=0))


@pytest.mark.parametrize("local", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("seed", range(12))
def test_machine_code_receives_what_python_receives(local: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if segments.machine_code() is None:
        pytest.skip("no machine code on this processor")
    forwarded, outcomes = Forwarded(Random(seed)), []
    for module in (segments.machine_code(), None):
        monkeypatch.setattr(links, "machine_code", lambda module=module: module)
        with closing(KernelLink((local, 0))) as there, closing(KernelLink((local, 0))) as stranger:
            got = []
            end = Endpoint(
                link := KernelLink((local, 0)), {"peer": there.address}, UNLIMITED, session=7, delivered=got.append
            )
            with end:
                random = Random(seed)
                for burst in forwarded.bursts(random):
                    source = stranger if random.random() < 0.05 else there
                    assert source.send(link.address, URGENT, burst, min(len(burst), FULL_BYTES)) == len(burst)
                    if random.random() < 0.5:
                        end.receive()
                for _ in range(100):
                    end.receive()
                contents = sorted((message.tag.message, bytes(message.view)) for message in got)
                assert all(content == forwarded.contents[number] for number, content in contents)
                outcomes.append((contents, replace(end.counters, acks_sent=0), end.duplicates))
    assert outcomes[0] == outcomes[1]
