"""Ports: their names, wires with real sockets, interfaces on real virtual cables, and what a network card would do."""

from __future__ import annotations

import doctest
import os
import select
import socket
import struct
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.network import host, ip, needs_root, neighbour
from support.thorough import rest

from tensorexpress.errors import InputError, NetworkError
from tensorexpress.switch import offload, ports
from tensorexpress.switch.offload import VIRTIO_HEADER, checksum, finish
from tensorexpress.switch.ports import InterfaceSpec, WireSpec, open_port, parse_port, pipe

NEEDS_CHECKSUM = 1
TCP4, UDP4_FRAGMENTS, TCP6, UDP_SEGMENTS = 1, 3, 4, 5
HOST_MAC, OTHER_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"


def all_frames(port, count, seconds=10):
    """Frames of a port until there are as many as expected, or none has come for too long."""
    frames = []
    while len(frames) < count and select.select([port], (), (), seconds)[0]:
        frames += port.receive(64)
    return frames


def free_wire():
    """Two free addresses of this machine."""
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        return one.getsockname(), two.getsockname()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0@veth0", (0, InterfaceSpec("veth0"))),
        ("510@s1-eth1", (510, InterfaceSpec("s1-eth1"))),
        ("3@udp:10.0.0.1:1-10.0.0.2:65535", (3, WireSpec(("10.0.0.1", 1), ("10.0.0.2", 65535)))),
        ("3@udp:my-host:1-other-host:2", (3, WireSpec(("my-host", 1), ("other-host", 2)))),
        ("3@udp:[::1]:1-[::1]:2", (3, WireSpec(("::1", 1), ("::1", 2)))),
    ],
)
def test_ports_have_names(text, expected):
    assert parse_port(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("veth0", "accepted: NUMBER@INTERFACE or NUMBER@udp:LOCAL:PORT-REMOTE:PORT"),
        ("0@", "accepted: NUMBER@INTERFACE"),
        ("x@veth0", "has the number 'x'; accepted: 0 to 510"),
        ("511@veth0", "has the number '511'; accepted: 0 to 510"),
        ("-1@veth0", "has the number '-1'"),
        ("99999999999999999999@veth0", "accepted: 0 to 510"),
        ("0@a name that is too long", "is no name of an interface"),
        ("0@udp:127.0.0.1:9000", "0@udp:127.0.0.1:9000-127.0.0.1:9001"),
        ("0@udp:127.0.0.1:0-127.0.0.1:9001", "names UDP port 0; accepted: 1 to 65535"),
        ("0@udp:127.0.0.1:70000-127.0.0.1:9001", "names UDP port 70000"),
    ],
)
def test_names_that_are_none_are_refused(text, message):
    with pytest.raises(InputError) as refused:
        parse_port(text)
    assert message in str(refused.value)


def test_a_pipe_carries_frames_of_any_length_both_ways():
    left, right = pipe()
    frames = [b"\x01" * size for size in (1, 13, 60, 1514, 9000, 65_000)]
    for sender, receiver in ((left, right), (right, left)):
        assert receiver.receive(10) == []
        assert all(map(sender.send, frames))
        assert receiver.receive(4) + receiver.receive(4) == frames
    left.close()
    right.close()


def test_a_wire_carries_frames_between_two_addresses_and_takes_none_from_elsewhere():
    here, there = free_wire()
    left, right = open_port(WireSpec(here, there)), open_port(WireSpec(there, here))
    with socket.socket(type=socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"stranger", there)
        stranger.sendto(b"", there)
    frames = [bytes([1]) * size for size in (1, 60, 1514, 65_000)]
    assert all(map(left.send, frames))
    assert all_frames(right, len(frames)) == frames
    left.close()
    right.close()


def test_a_wire_nobody_listens_on_swallows_frames_as_a_cable_does():
    here, there = free_wire()
    port = open_port(WireSpec(here, there))
    assert all(port.send(b"frame") for _ in range(10))
    assert port.receive(10) == []
    assert not port.send(bytes(70_000))
    port.close()


def test_an_address_that_is_taken_or_is_not_here_is_refused():
    here, there = free_wire()
    port = open_port(WireSpec(here, there))
    with pytest.raises(NetworkError, match="in use; give two addresses of one family"):
        open_port(WireSpec(here, there))
    port.close()
    with pytest.raises(NetworkError, match=r"192\.0\.2\.1:1"):
        open_port(WireSpec(("192.0.2.1", 1), ("192.0.2.2", 2)))
    with pytest.raises(InputError, match="give an IP address"):
        open_port(WireSpec(("no.such.host.invalid", 1), ("127.0.0.1", 2)))


def test_an_interface_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(InputError, match=r"there is no interface 'nosuch0'; there are: .*lo"):
        open_port(InterfaceSpec("nosuch0"))


@needs_root
def test_an_interface_that_is_down_is_refused_with_what_to_do():
    with host("10.77.0.1", HOST_MAC) as (_, here):
        ip("link", "set", here, "down")
        with pytest.raises(NetworkError, match=f"interface '{here}' is down; ip link set {here} up"):
            open_port(InterfaceSpec(here))


@needs_root
def test_who_may_not_open_an_interface_is_told_what_to_do():
    os.seteuid(65534)
    try:
        with pytest.raises(NetworkError, match="may not open interface 'lo'; run as root or with CAP_NET_RAW"):
            open_port(InterfaceSpec("lo"))
    finally:
        os.seteuid(0)


# What a network card does.


@given(st.binary(min_size=2, max_size=300))
def test_the_checksum_is_that_of_rfc_1071(data):
    padded = data + b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    assert checksum(data) == (0xFFFF - total or 0xFFFF)


@given(
    frame=st.binary(max_size=80),
    header=st.builds(
        VIRTIO_HEADER.pack,
        st.integers(0, 255),
        st.sampled_from((0, TCP4, UDP4_FRAGMENTS, TCP6, UDP_SEGMENTS, 0x81, 0xFF)),
        st.just(0),
        *[st.one_of(st.integers(0, 100), st.integers(0, 65535))] * 3,
    ),
)
def test_any_header_of_the_kernel_is_taken(frame, header):
    """Even one that does not fit the frame: the frame is then passed on, or dropped, as it is."""
    kind = header[1] & ~0x80
    finished = finish(frame, header)
    if kind not in (TCP4, TCP6, UDP_SEGMENTS):
        assert list(map(len, finished)) == ([] if kind else [len(frame)])


def scapy_frame(layers, size):
    """Return a frame as the kernel hands it over, its checksum unfinished, where transport starts, and the payload."""
    scapy_all = pytest.importorskip("scapy.all")
    payload = bytes(i * 7 % 251 for i in range(size))
    whole = layers(scapy_all) / scapy_all.Raw(payload)
    return scapy_all, bytes(whole), payload


def checked(scapy_all, frame):
    """Assert that a frame is as scapy, which fills in lengths and checksums itself, would have built it."""
    dissected = scapy_all.Ether(frame)
    for layer in (scapy_all.IP, scapy_all.IPv6, scapy_all.TCP, scapy_all.UDP):
        if layer in dissected:
            for name in ("len", "plen", "chksum"):
                dissected[layer].fields.pop(name, None)
    rebuilt = bytes(dissected)
    assert rebuilt == frame
    return scapy_all.Ether(frame)


@rest(but=8)
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("size", [1, 1000, 1001, 3500])
def test_tcp_is_cut_into_segments_that_are_right_on_their_own(version, tagged, size):
    def layers(s):
        link = s.Ether(dst=OTHER_MAC) / s.Dot1Q(vlan=5) if tagged else s.Ether(dst=OTHER_MAC)
        network = (
            s.IP(src="10.0.0.1", dst="10.0.0.2", id=65535) if version == 4 else s.IPv6(src="fe80::1", dst="fe80::2")
        )
        return link / network / s.TCP(sport=1, dport=2, seq=2**32 - 1500, flags="FPAC", options=[("NOP", None)] * 4)

    s, whole, payload = scapy_frame(layers, size)
    transport = 14 + 4 * tagged + (20 if version == 4 else 40)
    header = VIRTIO_HEADER.pack(NEEDS_CHECKSUM, (TCP4 if version == 4 else TCP6) | 0x80, 0, 1000, transport, 16)
    segments = [checked(s, segment) for segment in finish(whole, header)]
    assert b"".join(bytes(segment[s.TCP].payload) for segment in segments) == payload
    assert all(len(segment[s.TCP].payload) <= 1000 for segment in segments)
    sequence = [segment[s.TCP].seq for segment in segments]
    assert sequence == [(2**32 - 1500 + 1000 * i) % 2**32 for i in range(len(segments))]
    flags = [str(segment[s.TCP].flags) for segment in segments]
    first, last = "C" if len(segments) > 1 else "FPAC", "FPA" if len(segments) > 1 else "FPAC"
    assert first in flags[0]
    assert flags[-1] == last
    assert set(flags[1:-1]) <= {"A"}
    if version == 4:
        assert [segment[s.IP].id for segment in segments] == [(65535 + i) % 2**16 for i in range(len(segments))]


def test_udp_is_cut_into_datagrams():
    s, whole, payload = scapy_frame(
        lambda s: s.Ether(dst=OTHER_MAC) / s.IP(src="10.0.0.1", dst="10.0.0.2") / s.UDP(), 2500
    )
    segments = [checked(s, each) for each in finish(whole, VIRTIO_HEADER.pack(1, UDP_SEGMENTS, 0, 1000, 34, 6))]
    assert [len(segment[s.UDP].payload) for segment in segments] == [1000, 1000, 500]
    assert b"".join(bytes(segment[s.UDP].payload) for segment in segments) == payload


def test_fragments_of_udp_which_the_kernel_no_longer_makes_are_dropped():
    assert finish(bytes(100), VIRTIO_HEADER.pack(1, UDP4_FRAGMENTS, 0, 1000, 34, 6)) == []


SEND_UDP = """
import socket, sys
with socket.socket(type=socket.SOCK_DGRAM) as sender:
    sender.setsockopt(socket.IPPROTO_UDP, 103, int(sys.argv[1]))  # UDP_SEGMENT
    sender.sendto(bytes(i % 251 for i in range(int(sys.argv[2]))), ("10.77.0.2", 9))
"""


@needs_root
def test_an_interface_gives_frames_as_a_cable_would():
    s = pytest.importorskip("scapy.all")
    with host("10.77.0.1", HOST_MAC) as (namespace, here):
        neighbour(namespace, "10.77.0.2", OTHER_MAC)
        with closing(open_port(InterfaceSpec(here))) as port:
            run = ["ip", "netns", "exec", namespace, sys.executable, "-c", SEND_UDP]
            # Five datagrams in one frame, longer than a slot of the ring, and a short one by itself.
            subprocess.run([*run, "1000", "4500"], check=True)
            subprocess.run([*run, "0", "1"], check=True)
            frames = [checked(s, frame) for frame in all_frames(port, 6)]
        assert [len(frame[s.UDP].payload) for frame in frames] == [1000, 1000, 1000, 1000, 500, 1]


@needs_root
def test_an_interface_takes_every_frame_of_others_and_none_of_its_own():
    """More than the ring has slots, with and without VLAN tag; and an interface that is down does not wake us."""
    with host("10.77.0.1", HOST_MAC) as (namespace, here), closing(open_port(InterfaceSpec(here))) as port:
        assert port.send(bytes(6) + b"\x02" * 6 + b"\x12\x34" + bytes(46))
        assert not port.send(bytes(3000))
        assert not port.send(b"")
        assert port.receive(64) == []
        for ethertype in ("1234", "8100000512348100", "88a8e00681000007"):
            start = b"\xff" * 6 + b"\2" * 6 + bytes.fromhex(ethertype)
            command = [sys.executable, "-c", SEND_FRAMES, start.hex()]
            subprocess.run(["ip", "netns", "exec", namespace, *command], check=True)
            assert all_frames(port, 3000) == [start + number.to_bytes(4, "big").ljust(44) for number in range(3000)]
        ip("link", "set", here, "down")
        assert not port.send(bytes(60))
        assert port.receive(64) == []
        assert select.select([port], (), (), 0) == ([], [], [])


SEND_FRAMES = """
import socket, sys
name = [name for _, name in socket.if_nameindex() if name.startswith("te")][0]
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
    sender.bind((name, 0))
    for number in range(3000):
        sender.send(bytes.fromhex(sys.argv[1]) + number.to_bytes(4, "big").ljust(44))
"""


@contextmanager
def virtual_cable():
    """A virtual cable with both ends here, for frames that are sent as they are; gives the names of its ends."""
    near, far = f"te{os.getpid()}near", f"te{os.getpid()}far"
    ip("link", "add", near, "type", "veth", "peer", "name", far)
    try:
        for end in (near, far):
            ip("link", "set", end, "addrgenmode", "none")
            ip("link", "set", end, "up")
        yield near, far
    finally:
        ip("link", "del", near)


@needs_root
def test_an_interface_counts_the_frames_that_found_its_ring_full():
    with virtual_cable() as (near, far), closing(open_port(InterfaceSpec(near))) as port:
        assert port.lost() == 0
        sent = 10_000
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
            sender.bind((far, 0))
            for _ in range(sent):
                sender.send(bytes(1514))
        lost = port.lost()
        assert lost > 0
        assert len(all_frames(port, sent - lost)) == sent - lost
        assert not port.receive(1)
        assert port.lost() == lost


@needs_root
def test_a_frame_that_is_longer_than_its_slot_and_has_no_room_for_a_copy_is_lost_and_counted():
    """Without a copy the ring has only its beginning: half a frame must not be taken for a whole one."""
    with virtual_cable() as (near, far), closing(open_port(InterfaceSpec(near))) as port:
        for end in (near, far):  # longer ones from now on
            ip("link", "set", end, "mtu", "9000")
        sent = 2000
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
            sender.bind((far, 0))
            for _ in range(sent):
                sender.send(bytes(9014))
        frames = []
        while select.select([port], (), (), 0)[0]:
            frames += port.receive(64)
        assert {len(frame) for frame in frames} == {9014}
        assert 0 < port.lost() == sent - len(frames)


def test_a_wire_counts_the_frames_that_found_its_buffer_full():
    near, far = free_wire()
    with closing(open_port(WireSpec(near, far))) as port, socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.bind(far)
        sender.connect(near)
        sent = 0
        while not port.lost():
            sender.send(bytes(1500))
            sent += 1
        lost = port.lost()
        assert len(all_frames(port, sent - lost)) == sent - lost


def test_doctests():
    assert doctest.testmod(ports).failed == 0
    assert doctest.testmod(offload).failed == 0
