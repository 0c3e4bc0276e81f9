"""Endpoints whose messages machine code carries, against those that do it in Python: frame by frame, the same."""

from __future__ import annotations

import random
import socket
import threading
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

import pytest
from support.guarded import GuardedBlock
from support.thorough import examples

from tensorexpress.errors import InputError, NetworkError
from tensorexpress.framing import SEGMENT_HEADER_BYTES
from tensorexpress.host.assembly import Incoming
from tensorexpress.host.endpoint import Endpoint, EndpointSettings
from tensorexpress.host.flow import FlowSettings
from tensorexpress.host.layout import CE, IP_RECVTOS
from tensorexpress.host.links import KernelLink
from tensorexpress.host.segments import SegmentBuffer, SegmentRun, machine_code
from tensorexpress.host.tagging import Tag, TrafficClass, monotonic_ps
from tensorexpress.host.wire_link import WireLink
from tensorexpress.units import PS_PER_MS
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.header import UDP_PORT, Kind
from tensorexpress.wire.udp import lay_wire

pytestmark = pytest.mark.skipif(machine_code() is None, reason="no machine code of segments on this processor")

_GATEWAY = bytes.fromhex("020000000001")
_OVERHEAD_BYTES = 64 + 14 + 20 + 8 + 24
_LONGEST = 10_000

#: Frames that a host finds at once: of more, it is up to an endpoint how many it takes before it sends.
_TOGETHER = 15


def native() -> type[Endpoint]:
    from tensorexpress.host.native_endpoint import NativeEndpoint

    return NativeEndpoint


@dataclass
class Case:
    """How two hosts speak, and what happens to their frames."""

    seed: int
    settings: EndpointSettings
    #: Over which link: "wires", "wires of IPv6", "stamped wires" or "sockets".
    link: str = "wires"
    #: Of frames: the share that is lost, sent twice, held back, damaged, marked.
    shares: tuple[float, float, float, float, float] = (0, 0, 0, 0, 0)


class Host:
    """An endpoint at a wire, and the other end of that."""

    def __init__(self, number: int, case: Case):
        self.came: list[tuple[Any, ...]] = []
        self.endpoint: Endpoint
        ips = ("fd00::1", "fd00::2") if case.link == "wires of IPv6" else ("10.0.0.1", "10.0.0.2")
        here, self.wire = lay_wire()
        own = FrameEnd(bytes([2, 0, 0, 0, 1, number]), ip_address(ips[number]))
        self.link: WireLink | KernelLink = WireLink(own, _GATEWAY, here, stamped=case.link == "stamped wires")
        self.peer: Any = (ips[1 - number], UDP_PORT)
        self._headers = 62 if case.link == "wires of IPv6" else 42
        self._is_stamped = case.link == "stamped wires"

    def frames(self) -> list[bytes]:
        """Return the frames that the endpoint has sent."""
        found = []
        while True:
            try:
                found.append(self._next_frame())
            except BlockingIOError:
                return found

    def _next_frame(self) -> bytes:
        return self.wire.recv(_LONGEST)

    def send(self, frame: bytes, is_marked: bool) -> None:
        """Let a frame arrive; a switch may have marked it."""
        self.wire.send(_marked(frame) if is_marked and self._headers == 42 else frame)

    def compared(self, frame: bytes) -> bytes:
        """Return what is to be the same: of segments of several bursts that come together, acknowledgements repeat the
        slack of the first or of the last, which is why UDP checksums differ, too."""
        start = self._headers
        kind = frame[start + 2] & 15
        if kind in (Kind.ACK, Kind.CONTROL) or not self.endpoint.settings.rate_bps:
            frame = self.unstamped(frame)  # these say the time of the machine, which no test can know
        if kind != Kind.ACK:
            return frame
        return frame[: max(1, start - 2)] + frame[start : start + 24] + frame[start + 28 :]

    def unstamped(self, frame: bytes) -> bytes:
        """Return a frame as it leaves a switch."""
        return frame[:-8] if self._is_stamped else frame

    def close(self) -> None:
        self.endpoint.close()
        self.wire.close()


class SocketHost(Host):
    """An endpoint at a socket of the kernel; a frame is a datagram behind its traffic class."""

    def __init__(self, number: int, case: Case):
        self.came = []
        self.link = KernelLink(("127.0.0.1", 0))
        self.wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.wire.bind(("127.0.0.1", 0))
        self.wire.connect(self.link.address)
        self.wire.setblocking(False)
        self.wire.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        self.peer = self.wire.getsockname()
        self._headers, self._is_stamped = 1, False

    def _next_frame(self) -> bytes:
        data, [(_, _, tos)], _, _ = self.wire.recvmsg(_LONGEST, 100)
        return bytes(tos) + data

    def send(self, frame: bytes, is_marked: bool) -> None:
        self.wire.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CE if is_marked else 0)
        self.wire.send(frame[1:])


class Pair:
    """Two hosts, the clock that both read, and all that was seen between them."""

    def __init__(self, case: Case, kind: type[Endpoint]):
        self.now_ps = 10**15
        self.case, self.chance = case, random.Random(case.seed)
        self.seen: list[Any] = []
        self.held: list[tuple[int, bytes, bool]] = []
        self.delivered = [0, 0]
        self.sent: list[Any] = []
        self.hosts = [self._host(kind, number) for number in range(2)]

    def _host(self, kind: type[Endpoint], number: int) -> Host:
        host = (SocketHost if self.case.link == "sockets" else Host)(number, self.case)

        def delivered(message: Incoming) -> None:
            host.came.append((self.now_ps, message.source, message.tag, bytes(message.view)))

        def buffer_for(source: str, tag: Tag, size: int) -> bytearray | None:
            # Once in a while there is none yet; the same for both kinds, as it follows from the time and the message.
            is_refused = (self.now_ps // PS_PER_MS + tag.message) % 7 == 0
            return None if is_refused else bytearray(size)

        host.endpoint = kind(
            host.link,
            {f"host {1 - number}": host.peer},
            self.case.settings,
            session=77,
            buffer_for=buffer_for,
            delivered=delivered,
            clock_ps=lambda: self.now_ps,
        )
        return host

    def close(self) -> None:
        for host in self.hosts:
            host.close()

    def step(self) -> None:
        """Offer something, let both ends act, and carry what they sent to the other, or not."""
        chance = self.chance
        for number, host in enumerate(self.hosts):
            for _ in range(chance.choice((0, 0, 0, 1, 3))):
                self._offer(number, host)
            host.endpoint.receive()
            host.endpoint.advance()
            self.seen.append((self.now_ps, number, host.endpoint.next_event_ps()))
            for frame in host.frames():
                self.seen.append((self.now_ps, number, host.compared(frame)))
                self._carry(number, host.unstamped(frame))
        self.delivered = [0, 0]
        ready = [each for each in self.held if chance.random() < 0.5]
        for each in ready:
            self.held.remove(each)
            self.deliver(*each)
        self.now_ps += chance.choice((0, 10**6, 10**8, PS_PER_MS, 20 * PS_PER_MS))

    def _offer(self, number: int, host: Host) -> None:
        chance = self.chance
        size = chance.choice((0, 1, 37, 100, 101, 1000, 6000))
        tag = Tag(
            job=3,
            worker=number,
            iteration=len(self.sent) // 8,
            tensor=chance.randrange(3),
            message=len(self.sent),
            kind=chance.choice((Kind.GRADIENT, Kind.PARAMETERS)),
            queue=chance.randrange(3),
            chunk=chance.randrange(5),
            chunks=90,
            flow=chance.randrange(3),
            traffic=TrafficClass(dscp=chance.choice((0, 8, 46)), priority=0),
            rank=chance.randrange(4),
            deadline_ps=self.now_ps + chance.randrange(-(10**10), 10**10),
        )
        self.sent.append(host.endpoint.send(f"host {1 - number}", tag, chance.randbytes(size)))

    def _carry(self, number: int, frame: bytes) -> None:
        chance = self.chance
        lost, twice, held, damaged, marked = (chance.random() < share for share in self.case.shares)
        if lost:
            return
        if damaged:
            place = chance.randrange(len(frame))
            frame = frame[:place] + bytes([frame[place] ^ 1 << chance.randrange(8)]) + frame[place + 1 :]
        if held:
            self.held.append((number, frame, marked))
            return
        self.deliver(number, frame, marked)
        if twice:
            self.deliver(number, frame, marked)

    def deliver(self, number: int, frame: bytes, is_marked: bool = False) -> None:
        """Let a frame of one host arrive at the other, unless that has found many already."""
        if self.delivered[number] == _TOGETHER:
            self.held.append((number, frame, is_marked))
            return
        self.delivered[number] += 1
        self.hosts[1 - number].send(frame, is_marked)

    def summary(self) -> list[Any]:
        """Return what is to be the same, whoever carries messages."""
        return [
            *(host.came for host in self.hosts),
            *(vars(host.endpoint.counters) for host in self.hosts),
            *(
                (host.endpoint.retransmissions, host.endpoint.timeouts, host.endpoint.duplicates, host.endpoint.idle)
                for host in self.hosts
            ),
            [(message.done, message.sent_ps) for message in self.sent],
        ]


def assert_same(pairs: list[Pair], step: int) -> None:
    """See that both pairs did the same in a step, and forget it."""
    python, machine_code = (pair.seen for pair in pairs)
    assert python == machine_code, f"step {step}"
    for pair in pairs:
        pair.seen = []


def _marked(frame: bytes) -> bytes:
    """Return an IPv4 frame as a switch that marks it would send it."""
    from tensorexpress.wire.checksum import checksum

    network = bytearray(frame[14:34])
    network[1] |= 3
    network[10:12] = bytes(2)
    network[10:12] = checksum(bytes(network)).to_bytes(2, "big")
    return frame[:14] + bytes(network) + frame[34:]


def _case(seed: int) -> Case:
    chance = random.Random(seed)
    full = 100 + _OVERHEAD_BYTES
    flow = FlowSettings(
        payload_bytes=100,
        overhead_bytes=_OVERHEAD_BYTES,
        window_bytes=chance.choice((0, 3 * full, 10 * full, 100 * full)),
        initial_window_bytes=chance.choice((0, 0, 2 * full)),
        ack_every=chance.choice((1, 2, 4)),
        rto_min_ps=chance.choice((PS_PER_MS, 5 * PS_PER_MS)),
        reordering=chance.choice((0, 3)),
    )
    settings = EndpointSettings(
        flow,
        host_order=chance.choice(("fifo", "priority", "random")),
        credit_bytes=chance.choice((0, 0, 5 * full)),
        weighs_turns=chance.random() < 0.3,
        rate_bps=chance.choice((0, 10**6, 10**8)),
        job=3,
        control=TrafficClass(dscp=46, priority=6),
        silence_ps=chance.choice((0, 10**14)),
    )
    shares = tuple(chance.choice((0, 0, 0.05, 0.3)) for _ in range(5))
    link = chance.choice(("wires", "wires of IPv6", "stamped wires", "sockets"))
    return Case(seed, settings, link, shares)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(examples(200, part=8)))
def test_machine_code_sends_the_same_frames_at_the_same_times(seed: int) -> None:
    """Over 150 steps: loss, reordering, duplicates, damage, marks, windows, credit, rates, orders, refused messages."""
    pairs = [Pair(_case(seed), kind) for kind in (Endpoint, native())]
    try:
        for number in range(150):
            for pair in pairs:
                pair.step()
            assert_same(pairs, number)
        assert pairs[0].summary() == pairs[1].summary()
        assert any(host.came for host in pairs[1].hosts)
    finally:
        for pair in pairs:
            pair.close()


def _hostile(chance: random.Random, size: int) -> bytes:
    """Return a whole segment of the session that may say anything, most of it nearly possible."""
    near = (0, 1, 2, 99, 100, 8191, 8192, 8193, 2**16 - 1, 2**31, 2**32 - 1)
    payload = chance.randbytes(chance.choice((0, 1, 64, 100, 1025, size)))
    kind = chance.choice((0, 1, 2, 2, 3, 4, 15))
    run = SegmentRun(
        kind=kind,
        flags=chance.randrange(256),
        job=chance.randrange(2**16),
        worker=chance.randrange(2**16),
        iteration=chance.choice(near),
        tensor=chance.randrange(3),
        queue=chance.randrange(256),
        chunk=chance.choice(near),
        chunks=chance.choice(near),
        slack_us=chance.choice((-(2**31), -1, 0, 2**31 - 1)),
        payload_bytes=len(payload),
        session=77 if chance.random() < 0.95 else 78,
        flow=chance.randrange(4),
        sequence=chance.choice(near),
        transmission=chance.choice(near),
        message=0 if kind == Kind.CONTROL else chance.randrange(2),  # 1 would be a goodbye
        offset=chance.choice((0, 1, 100, 200, 2**32 - 1)),
        total_bytes=chance.choice((0, 100, 200, 300)),
    )
    buffer = SegmentBuffer(SEGMENT_HEADER_BYTES + len(payload))
    return bytes(buffer.write(run, payload))


@pytest.mark.parametrize("seed", range(examples(60, part=6)))
def test_what_a_hostile_peer_says_changes_nothing_that_it_would_not_change_in_python(seed: int) -> None:
    """Whole segments with impossible numbers: both kinds count them alike and answer alike."""
    chance = random.Random(seed)
    pairs = [Pair(replace(_case(seed), link="wires"), kind) for kind in (Endpoint, native())]
    ends = [FrameEnd(_GATEWAY, ip_address(ip)) for ip in ("10.0.0.2", "10.0.0.1")]
    try:
        for number in range(120):
            frame = build_frame(*ends, _hostile(chance, 500), dscp=0, ecn=2)
            for pair in pairs:
                pair.deliver(1, frame)
                pair.step()
            assert_same(pairs, number)
        assert pairs[0].summary() == pairs[1].summary()
    finally:
        for pair in pairs:
            pair.close()


def test_messages_are_kept_within_the_memory_that_they_were_given() -> None:
    """Behind the memory of every message is a page that nobody may touch."""
    chance, blocks = random.Random(5), []
    pair = Pair(replace(_case(1), link="wires", shares=(0.1, 0.1, 0.1, 0.1, 0)), native())

    def buffer_for(source: str, tag: Tag, size: int) -> memoryview:
        blocks.append(GuardedBlock(size))
        return blocks[-1].data[max(8, size) - size :]

    try:
        for host in pair.hosts:
            host.endpoint._buffer_for = buffer_for
        ends = [FrameEnd(_GATEWAY, ip_address(ip)) for ip in ("10.0.0.2", "10.0.0.1")]
        for _ in range(100):
            pair.deliver(1, build_frame(*ends, _hostile(chance, 500), dscp=0, ecn=2))
            pair.step()
    finally:
        pair.close()
    assert len(blocks) > 20


def test_a_peer_that_leaves_is_sent_nothing_more() -> None:
    pair = Pair(_case(0), native())
    try:
        one, other = (host.endpoint for host in pair.hosts)
        other._leaving, other._beat_ps = True, 1
        other._next_beat_ps = pair.now_ps
        other.advance()
        for frame in pair.hosts[1].frames():
            pair.deliver(1, frame)
        one.receive()
        assert one.has_left("host 1")
        assert one.idle
        with pytest.raises(NetworkError, match="host 1 has left"):
            one.send("host 1", Tag(0, 0, 0, 0), b"late")
        with pytest.raises(InputError, match="messages alone"):
            one.send_background(None)  # type: ignore[arg-type]
    finally:
        pair.close()


@pytest.mark.parametrize("over", ["wires", "sockets"])
def test_two_ends_run_by_the_clock_of_the_machine(over: str) -> None:
    """A message of many bursts; sockets cut and join them (GSO, GRO). Timers ring, and watched descriptors are read."""
    ends = [FrameEnd(bytes([2, 0, 0, 0, 1, number]), ip_address(f"10.0.0.{number + 1}")) for number in range(2)]
    if over == "wires":
        links: list[Any] = [WireLink(end, _GATEWAY, wire) for end, wire in zip(ends, lay_wire(), strict=True)]
        addresses = [(str(end.ip), UDP_PORT) for end in ends]
    else:
        links = [KernelLink(("127.0.0.1", 0)) for _ in ends]
        addresses = [link.address for link in links]
    flow = FlowSettings(payload_bytes=1000, overhead_bytes=_OVERHEAD_BYTES, window_bytes=100_000)
    settings = EndpointSettings(flow, rate_bps=10**9, silence_ps=5 * 10**12)
    content, came = random.Random(1).randbytes(300_001), []
    one, other = (
        native()(link, {"peer": address}, settings, session=5, delivered=came.append)
        for link, address in zip(links, reversed(addresses), strict=True)
    )
    readable, written = socket.socketpair()
    with one, other, readable, written:
        sent = one.send("peer", Tag(0, 0, 0, 0), content)
        seen: list[str] = []
        one.call_at(monotonic_ps() + PS_PER_MS, lambda: seen.append("timer"))
        one.watch(readable.fileno(), lambda: seen.append(readable.recv(10).decode()))
        written.send(b"word")
        receiver = threading.Thread(target=other.run, args=(lambda: bool(came),))
        receiver.start()
        one.run(until=lambda: sent.done and len(seen) == 2)
        receiver.join()
        assert bytes(came[0].view) == content
        assert one.idle
        assert sent.sent_ps > 0
        assert one.counters.sent >= 301
        assert sorted(seen) == ["timer", "word"]
