"""Every kind of frame that docs/wire.md has a rule for, through the embedded switch and, where it is there, BMv2.

What is expected is the page's own table, in the page's own words. Frames are made by scapy and by hand, so that nothing
here is taken from the code that is tested.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw
from support.deployed import PROGRAM, planned
from support.network import BMV2, cable, needs_bmv2, needs_root
from support.switches import Bmv2Switch

from tensorexpress.control.client import Connection, RemoteSwitch
from tensorexpress.control.controls import exception_names
from tensorexpress.control.deploy import deploy, prepare
from tensorexpress.control.intent import Options
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.device import Switch
from tensorexpress.switch.operations import ReadCounter
from tensorexpress.switch.p4runtime.service import serve
from tensorexpress.switch.ports import InterfacePort

SCHEMA = ProgramSchema.of(PROGRAM)

PORT = 21592
GATEWAY = "02:54:58:00:00:01"
HOST_1 = "02:54:58:01:00:01"
#: docs/wire.md, eight queues. All frames ask with DSCP 46 for more than they may have.
DSCP_OF_QUEUE = [40, 34, 32, 26, 24, 18, 16, 0]
SENT_DSCP = 46
LAST = 7
#: Seven hosts. Job 0 is on ports 0 to 2, job 1 on 3 to 5, no job on 6. Tensor 2 of job 0 has queue 2.
PLAN = planned("tensorexpress:queues=equal")
TENSOR, QUEUE = 2, 2


@dataclass(frozen=True)
class Fate:
    """What becomes of a packet, as the second column of the page's table says."""

    slot: int = 0
    queue: int = LAST
    #: None: the DSCP stays as it is.
    dscp: int | None = None
    dropped: bool = False


ITS_QUEUE = Fate(slot=1, queue=QUEUE, dscp=DSCP_OF_QUEUE[QUEUE])
BEST_EFFORT = Fate(dscp=DSCP_OF_QUEUE[LAST])
OTHER = Fate()
#: Other traffic in which a switch sees no IP, and so no DSCP.
NO_IP = Fate()
DROPPED = Fate(dropped=True)

#: Cells of counters that are looked at: slot 0 and two jobs with eight queues each; there are fewer exceptions.
CELLS = 3 * 8

#: The third column: nothing, or the words of `status`.
UNCOUNTED = None


def header(payload: int, /, **changed: int) -> bytes:
    """The 32 bytes that docs/wire.md draws."""
    fields = {
        "magic": 0x5458, "version": 1, "kind": 0, "flags": 0, "job": 0, "worker": 0, "iteration": 3, "tensor": TENSOR,
        "queue": QUEUE, "reserved": 0, "chunk": 0, "chunks": 1, "slack": 1000, "payload": payload, "tail": 0,
    } | changed  # fmt: skip
    version_kind = fields.pop("version") << 4 | fields.pop("kind")
    magic = fields.pop("magic")
    return struct.pack("!HBBHHIHBBIIiHH", magic, version_kind, *fields.values())


def tensor(payload: bytes = b"gradient", /, **changed: int) -> Raw:
    return Raw(header(len(payload), **changed) + payload)


def values(flags: int = 0, **changed: int) -> Raw:
    """A packet of kind 4, with the 16 bytes and 256 numbers that docs/wire.md draws."""
    head = struct.pack("!IIHHBBBB", 7, 0, 4, 0, 128, 128, 0, flags)
    return tensor(head + bytes(range(256)) * 4, kind=4, **changed)


def parts(flags: int = 0, workers: int = 1, **changed: int) -> Raw:
    """A packet of kind 5: the same, and before it whose values are in."""
    head = struct.pack("!QIIHHBBBB", workers, 7, 0, 0, 0, 128, 128, 0, flags)
    return tensor(head + bytes(range(256)) * 4, kind=5, **changed)


def ethernet(source: int = 0, to: str = GATEWAY, **fields: Any) -> Ether:
    return Ether(src=f"02:54:58:01:00:0{source}", dst=to, **fields)


def ipv4(source: int = 0, **fields: Any) -> IP:
    return IP(**{"src": f"10.0.0.{source + 1}", "dst": "10.0.0.2", "tos": SENT_DSCP << 2, "flags": "DF"} | fields)


def ipv6(source: int = 0, **fields: Any) -> IPv6:
    return IPv6(**{"src": f"fd54:58::{source + 1}", "dst": "fd54:58::2", "tc": SENT_DSCP << 2} | fields)


def udp(**fields: Any) -> UDP:
    return UDP(**{"sport": 777, "dport": PORT} | fields)


def plain(payload: Raw | None = None, **fields: Any) -> Packet:
    """A tensor packet over IPv4 from host 0 to host 1, or whatever is given instead of the tensor."""
    return ethernet() / ipv4(**fields) / udp() / (payload or tensor())


def cut(packet: Packet, length: int) -> bytes:
    return bytes(packet)[:length]


def broken_checksum(packet: Packet) -> bytes:
    frame = bytearray(bytes(packet))
    frame[24] ^= 1
    return bytes(frame)


def with_words(words: int, version: int = 4) -> bytes:
    """An IPv4 packet that names another length of its header, or another version, with a checksum that is right."""
    return bytes(plain(version=version, ihl=words))


SIX = ethernet() / ipv6()
FROM_1_AT_0 = "in the name of host 1"

#: (what comes, the frame or the port and the frame, what becomes of it, counted as), as in docs/wire.md.
RULES: list[tuple[str, Packet | bytes | tuple[int, Packet], Fate, str | None]] = [
    # IPv4 with a wrong header checksum: dropped.
    ("wrong IPv4 checksum", broken_checksum(plain()), DROPPED, "bad checksum"),
    ("wrong IPv4 checksum, spoofed", broken_checksum(plain(src="10.0.0.2")), DROPPED, "bad checksum"),
    # To the port, at a host's port, with another source address than the host's: dropped.
    (FROM_1_AT_0, plain(src="10.0.0.2"), DROPPED, "spoofed"),
    (f"{FROM_1_AT_0}, IPv6", ethernet() / ipv6(1) / udp() / tensor(), DROPPED, "spoofed"),
    (f"{FROM_1_AT_0}, VLAN", ethernet() / Dot1Q(vlan=7) / ipv4(1) / udp() / tensor(), DROPPED, "spoofed"),
    (f"{FROM_1_AT_0}, options", plain(src="10.0.0.2", options=[IPOption_NOP()] * 4), DROPPED, "spoofed"),
    (f"{FROM_1_AT_0}, malformed", plain(tensor(magic=1), src="10.0.0.2"), DROPPED, "spoofed"),
    (f"{FROM_1_AT_0}, empty", ethernet() / ipv4(1) / udp(), DROPPED, "spoofed"),
    (f"{FROM_1_AT_0}, first fragment", plain(src="10.0.0.2", flags="MF"), DROPPED, "spoofed"),
    ("in the name of nobody", plain(src="0.0.0.0"), DROPPED, "spoofed"),
    ("in the name of its own target", plain(src="10.0.0.2", dst="10.0.0.2"), DROPPED, "spoofed"),
    ("in the name of the port's host, from elsewhere", (1, plain()), DROPPED, "spoofed"),
    # IPv6 with an extension header, at a host's port, with another source address than the host's: dropped.
    (f"{FROM_1_AT_0}, hop by hop", ethernet() / ipv6(1) / IPv6ExtHdrHopByHop() / udp() / tensor(), DROPPED, "spoofed"),
    (f"{FROM_1_AT_0}, routing", ethernet() / ipv6(1) / IPv6ExtHdrRouting() / udp() / tensor(), DROPPED, "spoofed"),
    (f"{FROM_1_AT_0}, destination", ethernet() / ipv6(1) / IPv6ExtHdrDestOpt() / udp() / tensor(), DROPPED, "spoofed"),
    (
        f"{FROM_1_AT_0}, options in fragments",
        ethernet() / ipv6(1) / IPv6ExtHdrFragment(m=1) / IPv6ExtHdrDestOpt() / udp() / tensor(),
        DROPPED,
        "spoofed",
    ),
    # Tensor packet of a job that may not enter at this port: best effort.
    ("another job's tensor", plain(tensor(job=1)), BEST_EFFORT, "stranger remarked"),
    ("a job that nobody has", plain(tensor(job=65535)), BEST_EFFORT, "stranger remarked"),
    ("a host without a job", (6, ethernet(6) / ipv4(6) / udp() / tensor()), BEST_EFFORT, "stranger remarked"),
    # Tensor packet: its queue.
    ("tensor packet", plain(), ITS_QUEUE, UNCOUNTED),
    ("IPv6", SIX / udp() / tensor(), ITS_QUEUE, UNCOUNTED),
    ("VLAN", ethernet() / Dot1Q(vlan=7, prio=7) / ipv4() / udp() / tensor(), ITS_QUEUE, UNCOUNTED),
    ("VLAN and IPv6", ethernet() / Dot1Q(vlan=7) / ipv6() / udp() / tensor(), ITS_QUEUE, UNCOUNTED),
    ("four bytes of options", plain(options=[IPOption_NOP()] * 4), ITS_QUEUE, UNCOUNTED),
    ("most options", plain(options=[IPOption_NOP()] * 40), ITS_QUEUE, UNCOUNTED),
    ("may be fragmented, is not", plain(flags=0), ITS_QUEUE, UNCOUNTED),
    ("reserved flag of IPv4", plain(flags="evil"), ITS_QUEUE, UNCOUNTED),
    ("no UDP checksum", ethernet() / ipv4() / udp(chksum=0) / tensor(), ITS_QUEUE, UNCOUNTED),
    ("no UDP checksum over IPv6", SIX / udp(chksum=0) / tensor(), ITS_QUEUE, UNCOUNTED),
    ("wrong UDP checksum", ethernet() / ipv4() / udp(chksum=1) / tensor(), ITS_QUEUE, UNCOUNTED),
    ("any source port", ethernet() / ipv4() / udp(sport=PORT) / tensor(), ITS_QUEUE, UNCOUNTED),
    ("no payload", plain(tensor(b"")), ITS_QUEUE, UNCOUNTED),
    ("large payload", plain(tensor(bytes(8900))), ITS_QUEUE, UNCOUNTED),
    ("padding", bytes(plain()) + bytes(46), ITS_QUEUE, UNCOUNTED),
    ("unknown kind, all flags", plain(tensor(kind=15, flags=255)), ITS_QUEUE, UNCOUNTED),
    ("reserved fields", plain(tensor(reserved=255, tail=65535)), ITS_QUEUE, UNCOUNTED),
    ("asks for queue 0", plain(tensor(queue=0)), ITS_QUEUE, UNCOUNTED),
    ("chunk beyond chunks", plain(tensor(chunk=9)), ITS_QUEUE, UNCOUNTED),
    ("no slack left", plain(tensor(slack=-(2**31))), ITS_QUEUE, UNCOUNTED),
    ("TTL 2", plain(ttl=2), ITS_QUEUE, UNCOUNTED),
    # Values to sum of a job that sums nowhere, and all that only claims to be such: dropped.
    ("values to sum", plain(values()), DROPPED, UNCOUNTED),
    ("a result of a host", plain(values(flags=1)), DROPPED, UNCOUNTED),
    ("values to sum, TTL 1", plain(values(), ttl=1), DROPPED, UNCOUNTED),
    ("values to sum, IPv6", SIX / udp() / values(), DROPPED, UNCOUNTED),
    ("values to sum, VLAN", ethernet() / Dot1Q(vlan=7) / ipv4() / udp() / values(), DROPPED, UNCOUNTED),
    ("values to sum, options", plain(values(), options=[IPOption_NOP()] * 4), DROPPED, UNCOUNTED),
    ("values to sum, padding", bytes(plain(values())) + bytes(46), DROPPED, UNCOUNTED),
    ("values to sum, too few", plain(tensor(bytes(1039), kind=4)), DROPPED, UNCOUNTED),
    ("values to sum, too many", plain(tensor(bytes(1041), kind=4)), DROPPED, UNCOUNTED),
    ("values to sum, none", plain(tensor(b"", kind=4)), DROPPED, UNCOUNTED),
    ("values to sum, another's name", plain(values(), src="10.0.0.2"), DROPPED, "spoofed"),
    ("values to sum, the router's name", plain(values(), src="169.254.1.1"), DROPPED, "spoofed"),
    ("values to sum, another job's", plain(values(job=1)), DROPPED, "stranger remarked"),
    ("values to sum, IPv4 checksum", broken_checksum(plain(values())), DROPPED, "bad checksum"),
    ("values to sum, UDP checksum", ethernet() / ipv4() / udp(chksum=1) / values(), DROPPED, "bad checksum"),
    ("values to sum, no UDP checksum", ethernet() / ipv4() / udp(chksum=0) / values(), DROPPED, "bad checksum"),
    ("values to sum, first fragment", plain(values(), flags="MF"), DROPPED, "malformed"),
    ("values to sum, cut", cut(plain(values()), -1), DROPPED, "malformed"),
    ("values to sum, payload length", plain(tensor(bytes(1040), kind=4, payload=1041)), DROPPED, "malformed"),
    ("values to sum, IPv4 length", plain(values(), len=1101), DROPPED, "bad checksum"),
    ("whose values", plain(parts()), DROPPED, UNCOUNTED),
    ("whose values, two of them", plain(parts(workers=3)), DROPPED, UNCOUNTED),
    ("whose values, nobody's", plain(parts(workers=0)), DROPPED, UNCOUNTED),
    ("whose values, a result", plain(parts(flags=1)), DROPPED, UNCOUNTED),
    ("whose values, IPv6", SIX / udp() / parts(), DROPPED, UNCOUNTED),
    ("whose values, VLAN", ethernet() / Dot1Q(vlan=7) / ipv4() / udp() / parts(), DROPPED, UNCOUNTED),
    ("whose values, padding", bytes(plain(parts())) + bytes(46), DROPPED, UNCOUNTED),
    ("whose values, as short as kind 4", plain(tensor(bytes(1040), kind=5)), DROPPED, UNCOUNTED),
    ("values to sum, as long as kind 5", plain(tensor(bytes(1048), kind=4)), DROPPED, UNCOUNTED),
    ("whose values, none", plain(tensor(b"", kind=5)), DROPPED, UNCOUNTED),
    ("whose values, another's name", plain(parts(), src="10.0.0.2"), DROPPED, "spoofed"),
    ("whose values, another job's", plain(parts(job=1)), DROPPED, "stranger remarked"),
    ("whose values, UDP checksum", ethernet() / ipv4() / udp(chksum=1) / parts(), DROPPED, "bad checksum"),
    ("whose values, first fragment", plain(parts(), flags="MF"), DROPPED, "malformed"),
    ("whose values, cut", cut(plain(parts()), -1), DROPPED, "malformed"),
    ("whose values, all values cut", cut(plain(parts()), -1024), DROPPED, "malformed"),
    # To the port and no tensor packet: best effort.
    ("wrong magic", plain(tensor(magic=0x5459)), BEST_EFFORT, "malformed"),
    ("version 0", plain(tensor(version=0)), BEST_EFFORT, "malformed"),
    ("version 2", plain(tensor(version=2)), BEST_EFFORT, "malformed"),
    ("payload length too small", plain(tensor(payload=7)), BEST_EFFORT, "malformed"),
    ("payload length too large", plain(tensor(payload=9)), BEST_EFFORT, "malformed"),
    ("largest payload length", plain(tensor(payload=65535)), BEST_EFFORT, "malformed"),
    (
        "lengths that agree modulo 65536",
        ethernet() / ipv4(len=20) / udp(len=0) / tensor(payload=65496),
        BEST_EFFORT,
        "malformed",
    ),
    *(
        (f"UDP length {length}", ethernet() / ipv4() / udp(len=length) / tensor(), BEST_EFFORT, "malformed")
        for length in (0, 7, 8, 47, 49, 65535)
    ),
    *((f"IPv4 length {length}", plain(len=length), BEST_EFFORT, "malformed") for length in (0, 20, 28, 67, 69, 65535)),
    *(
        (f"IPv6 length {length}", ethernet() / ipv6(plen=length) / udp() / tensor(), BEST_EFFORT, "malformed")
        for length in (0, 8, 47, 49, 65495, 65496, 65535)
    ),
    ("empty datagram", ethernet() / ipv4() / udp(), BEST_EFFORT, "malformed"),
    ("one byte", plain(Raw(b"\x54")), BEST_EFFORT, "malformed"),
    ("31 bytes", plain(Raw(header(0)[:31])), BEST_EFFORT, "malformed"),
    ("cut in the payload", cut(plain(), -1), BEST_EFFORT, "malformed"),
    ("cut in the header", cut(plain(), 14 + 20 + 8 + 31), BEST_EFFORT, "malformed"),
    ("cut behind UDP", cut(plain(), 14 + 20 + 8), BEST_EFFORT, "malformed"),
    ("cut, IPv6", cut(SIX / udp() / tensor(), -1), BEST_EFFORT, "malformed"),
    ("first fragment", plain(flags="MF"), BEST_EFFORT, "malformed"),
    ("first fragment that may not be one", plain(flags="MF+DF"), BEST_EFFORT, "malformed"),
    ("first fragment with options", plain(flags="MF", options=[IPOption_NOP()] * 4), BEST_EFFORT, "malformed"),
    ("first fragment, malformed", plain(Raw(b"\x54"), flags="MF"), BEST_EFFORT, "malformed"),
    ("first fragment, IPv6", SIX / IPv6ExtHdrFragment(m=1) / udp() / tensor(), BEST_EFFORT, "malformed"),
    ("only fragment, IPv6", SIX / IPv6ExtHdrFragment(m=0) / udp() / tensor(), BEST_EFFORT, "malformed"),
    # Fragment of a UDP packet without a UDP header: other traffic.
    ("later fragment", ethernet() / ipv4(flags=0, frag=1, proto=17) / tensor(), OTHER, "fragment"),
    ("middle fragment", ethernet() / ipv4(flags="MF", frag=100, proto=17) / tensor(), OTHER, "fragment"),
    ("last possible fragment", ethernet() / ipv4(flags=0, frag=8191, proto=17) / tensor(), OTHER, "fragment"),
    ("later fragment, IPv6", SIX / IPv6ExtHdrFragment(offset=1, nh=17) / tensor(), OTHER, "fragment"),
    ("first fragment cut in UDP", cut(plain(flags="MF"), 14 + 20 + 7), OTHER, "fragment"),
    ("later fragment, another's", ethernet() / ipv4(1, flags=0, frag=1, proto=17) / tensor(), OTHER, "fragment"),
    # IPv6 with an extension header before what it carries: other traffic.
    ("hop by hop", SIX / IPv6ExtHdrHopByHop() / udp() / tensor(), OTHER, UNCOUNTED),
    ("routing", SIX / IPv6ExtHdrRouting() / udp() / tensor(), OTHER, UNCOUNTED),
    ("destination options", SIX / IPv6ExtHdrDestOpt() / udp() / tensor(), OTHER, UNCOUNTED),
    ("options in a fragment", SIX / IPv6ExtHdrFragment(m=1) / IPv6ExtHdrDestOpt() / udp() / tensor(), OTHER, UNCOUNTED),
    # All else: other traffic.
    ("another UDP port", ethernet() / ipv4() / udp(dport=PORT + 1) / tensor(), OTHER, UNCOUNTED),
    ("from the port", ethernet() / ipv4() / udp(sport=PORT, dport=9) / tensor(), OTHER, UNCOUNTED),
    ("another port, IPv6", SIX / udp(dport=9) / tensor(), OTHER, UNCOUNTED),
    ("first fragment to another port", ethernet() / ipv4(flags="MF") / udp(dport=9) / tensor(), OTHER, UNCOUNTED),
    ("other traffic of another host", ethernet() / ipv4(1) / udp(dport=9) / tensor(), OTHER, UNCOUNTED),
    ("TCP", ethernet() / ipv4() / TCP(dport=PORT) / tensor(), OTHER, UNCOUNTED),
    ("TCP, later fragment", ethernet() / ipv4(flags=0, frag=1, proto=6) / tensor(), OTHER, UNCOUNTED),
    ("ICMP", ethernet() / ipv4() / ICMP() / tensor(), OTHER, UNCOUNTED),
    ("UDP-Lite", ethernet() / ipv4(proto=136) / Raw(bytes(udp(chksum=1) / tensor())), OTHER, UNCOUNTED),
    ("cut in UDP", cut(plain(), 14 + 20 + 7), OTHER, UNCOUNTED),
    ("IPv4 of version 6", with_words(5, version=6), OTHER, UNCOUNTED),
    ("IPv6 of version 4", ethernet() / ipv6(version=4) / udp() / tensor(), OTHER, UNCOUNTED),
    ("IPv4 header of four words", with_words(4), OTHER, UNCOUNTED),
    ("two VLAN tags", ethernet(to=HOST_1) / Dot1Q() / Dot1Q() / ipv4() / udp() / tensor(), NO_IP, UNCOUNTED),
    ("service tag", ethernet(to=HOST_1) / Dot1AD() / ipv4() / udp() / tensor(), NO_IP, UNCOUNTED),
    ("no IP at all", ethernet(to=HOST_1, type=0x88B5) / tensor(), NO_IP, UNCOUNTED),
    # Whatever is not dropped must still find its way.
    ("TTL 1", plain(ttl=1), DROPPED, "TTL expired"),
    ("TTL 0", plain(ttl=0), DROPPED, "TTL expired"),
    ("hop limit 1", ethernet() / ipv6(hlim=1) / udp() / tensor(), DROPPED, "TTL expired"),
    ("to nobody", plain(dst="10.9.9.9"), DROPPED, "no route"),
    ("to nobody, by Ethernet", ethernet(to="02:00:00:00:00:99") / ipv4() / udp() / tensor(), DROPPED, "no route"),
    ("cut in IPv4", cut(plain(), 14 + 19), DROPPED, "no route"),
]  # fmt: skip


class Wire(Protocol):
    """A switch with ports, and a controller's way to it."""

    target: RemoteSwitch
    #: Where frames of its own are counted that `send` sends beside each frame: slot * 8 + queue.
    own_cells: tuple[int, ...]

    def send(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Return what leaves the switch because of a frame; all counters are right when this returns."""

    def count(self, counter: str) -> list[int]:
        """Return the first cells of a counter; all that are of interest here are among them."""


class EmbeddedWire:
    """The embedded switch in this process, in virtual time."""

    own_cells = ()

    def __init__(self, cleanup: ExitStack):
        self._sent: list[tuple[int, bytes]] = []
        self._switch = Switch(lambda port, frame, _: self._sent.append((port, frame)))
        server = serve(self._switch, "127.0.0.1:0", cpu_port=255)
        cleanup.callback(server.stop)
        self.target = RemoteSwitch("s0", server.address)
        self._now_ps = 0

    def send(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        self._sent.clear()
        self._now_ps += 10**9
        self._switch.receive(port, frame, self._now_ps)
        return list(self._sent)

    def count(self, counter: str) -> list[int]:
        return [packets for packets, _ in self._switch.ask([ReadCounter(f"TensorIngress.{counter}", None)])[0]][:CELLS]


class Bmv2Wire:
    """simple_switch_grpc on cables. A frame of our own behind each frame tells when that one has passed."""

    own_cells = (LAST,)

    def __init__(self, cleanup: ExitStack):
        assert BMV2 is not None
        cables = [cleanup.enter_context(cable()) for _ in range(7)]
        self._ends = [InterfacePort(far) for _, far in cables]
        for end in self._ends:
            cleanup.callback(end.close)
        switch = Bmv2Switch(BMV2, [near for near, _ in cables])
        cleanup.callback(switch.stop)
        self.target = RemoteSwitch("s0", switch.address)

    def send(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        # By the same port in and, mostly, out, in the least urgent queue, so that nothing is behind it.
        follower = bytes(ethernet(port, to=HOST_1, type=0x88B6) / Raw(b"follower"))
        assert self._ends[port].send(frame)
        assert self._ends[port].send(follower)
        found: list[tuple[int, bytes]] = []
        while (1, follower) not in found:
            ready, _, _ = select.select(self._ends, [], [], 10)
            assert ready, "no frame comes through the switch"
            found += [(self._ends.index(end), data) for end in ready for data in end.receive(1)]
        return [each for each in found if each[1] != follower]

    def count(self, counter: str) -> list[int]:
        found = SCHEMA.find("counter", counter)
        queries = [p4runtime_pb2.Entity() for _ in range(min(CELLS, found.size))]
        for cell, query in enumerate(queries):
            query.counter_entry.counter_id, query.counter_entry.index.index = found.preamble.id, cell
        with Connection(self.target) as connection:
            answers = [message.counter_entry for message in connection.read(queries)]
        counts = {answer.index.index: answer.data.packet_count for answer in answers}
        return [counts[cell] for cell in range(len(queries))]


@contextmanager
def deployed(kind: type[EmbeddedWire] | type[Bmv2Wire], options: Options) -> Iterator[Wire]:
    with ExitStack() as cleanup:
        wire = kind(cleanup)
        (outcome,) = deploy(prepare(PLAN, ["s0"], options, PROGRAM), [wire.target])
        assert outcome.error is None
        yield wire


def dscp_of(frame: bytes) -> int | None:
    """The DSCP of a frame by hand; None where no IP is."""
    start = 18 if frame[12:14] == b"\x81\x00" else 14
    match frame[start - 2 : start]:
        case b"\x08\x00":
            return frame[start + 1] >> 2
        case b"\x86\xdd":
            return int.from_bytes(frame[start : start + 2], "big") >> 6 & 63
    return None


class Observer:
    """What a switch does with a frame: where it was put, what was counted, what left."""

    def __init__(self, wire: Wire):
        self._wire = wire
        self._counts = self._read()

    def _read(self) -> tuple[list[int], list[int]]:
        return self._wire.count("exceptions"), self._wire.count("classify.offered")

    def see(self, port: int, frame: bytes) -> tuple[Fate, str | None]:
        sent = self._wire.send(port, frame)
        before, self._counts = self._counts, self._read()
        exceptions, offered = (
            [cell for cell, (old, new) in enumerate(zip(*counts, strict=True)) for _ in range(new - old)]
            for counts in zip(before, self._counts, strict=True)
        )
        for cell in self._wire.own_cells:
            offered.remove(cell)
        (counted,) = [exception_names()[cell] for cell in exceptions] or [None]
        if not sent:
            assert offered == []
            return DROPPED, counted
        ((out, data),), (cell,) = sent, offered
        assert out == 1
        dscp = dscp_of(data)
        return Fate(*divmod(cell, 8), None if dscp == SENT_DSCP else dscp), counted


def cases() -> Iterator[tuple[str, int, bytes, Fate, str | None]]:
    for name, what, fate, counted in RULES:
        port, packet = what if isinstance(what, tuple) else (0, what)
        yield name, port, bytes(packet), fate, counted


def check_rules(kind: type[EmbeddedWire] | type[Bmv2Wire], options: Options, trusted: bool) -> None:
    wrong = {}
    with deployed(kind, options) as wire:
        observer = Observer(wire)
        for name, port, frame, fate, counted in cases():
            # With --trust-dscp, DSCP 46 lies above that of queue 0.
            wanted = Fate(queue=0) if trusted and fate is OTHER else fate
            seen = observer.see(port, frame)
            if seen != (wanted, counted):
                wrong[name] = f"{seen} instead of {(wanted, counted)}"
    assert wrong == {}


@pytest.mark.parametrize("trusted", [False, True])
def test_the_embedded_switch_treats_every_kind_of_frame_as_the_page_says(trusted: bool) -> None:
    check_rules(EmbeddedWire, Options(trust_dscp=trusted), trusted)


@needs_root
@needs_bmv2
@pytest.mark.parametrize("trusted", [False, True])
def test_bmv2_treats_every_kind_of_frame_as_the_page_says(trusted: bool) -> None:
    check_rules(Bmv2Wire, Options(trust_dscp=trusted), trusted)


def test_every_kind_of_frame_is_another() -> None:
    names = [name for name, *_ in RULES]
    assert len(names) == len(set(names))
    assert len({frame for _, _, frame, *_ in cases()}) >= len(names) - 2
