"""What the P4 program does to packets beside choosing their queue: forwarding, guarding, marking, sampling."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from support.deployed import ADDRESSES, DeployedSwitch, as_fragment, framed, planned, tagged

from tensorexpress.addresses import GATEWAY_MAC, format_mac
from tensorexpress.control.entities import Call, DefaultEntry
from tensorexpress.control.intent import Options
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.switch.operations import CpuFrame, WriteRegister
from tensorexpress.switch.traffic import PortSettings
from tensorexpress.wire.checksum import checksum
from tensorexpress.wire.frame import read_frame

PLAN = planned()
#: A frame of 1000 bytes and its 24 of overhead take 8.192 ms.
SLOW = PortSettings(rate_bps=10**6)
MALFORMED, REMARKED, DROPPED, OVER_RATE, BAD_CHECKSUM, TTL_EXPIRED, NO_ROUTE, SPOOFED, FRAGMENT = range(9)


@pytest.fixture(scope="module")
def switch() -> DeployedSwitch:
    return DeployedSwitch(PLAN)


def is_sound(frame: bytes) -> bool:
    """Whether scapy, asked to compute all checksums of a frame anew, comes to the same bytes."""
    parsed = Ether(frame)
    network = parsed[IP] if IP in parsed else parsed[IPv6]
    if IP in parsed:
        del network.chksum
    del network[UDP].chksum
    return bytes(parsed) == frame


# Forwarding


@pytest.mark.parametrize("version", [4, 6])
def test_a_routed_packet_reaches_its_host_with_one_ttl_less(switch: DeployedSwitch, version: int) -> None:
    frame = framed(tagged(), to=2, version=version, ttl=9)
    ((port, sent, _),) = switch.send((0, frame))
    parsed = Ether(sent)
    assert port == 2
    assert (parsed.src, parsed.dst) == (format_mac(GATEWAY_MAC), format_mac(ADDRESSES[2].mac))
    assert (parsed.ttl if version == 4 else parsed.hlim) == 8
    assert is_sound(sent)


def test_a_bridged_packet_keeps_its_ttl(switch: DeployedSwitch) -> None:
    frame = ADDRESSES[2].mac + framed(b"plain", to=2, port=9, ttl=1)[6:]
    assert switch.send((0, frame)) == [(2, frame, 0)]


@pytest.mark.parametrize(("version", "ttl"), [(4, 0), (4, 1), (6, 0), (6, 1)])
def test_an_expired_packet_is_dropped_and_counted(switch: DeployedSwitch, version: int, ttl: int) -> None:
    before = switch.exceptions()[TTL_EXPIRED]
    assert switch.send((0, framed(tagged(), version=version, ttl=ttl))) == []
    assert switch.exceptions()[TTL_EXPIRED] == before + 1


def test_a_wrong_ipv4_checksum_is_dropped_and_counted(switch: DeployedSwitch) -> None:
    frame = bytearray(framed(tagged()))
    frame[24] ^= 1
    before = switch.exceptions()[BAD_CHECKSUM]
    assert switch.send((0, bytes(frame))) == []
    assert switch.exceptions()[BAD_CHECKSUM] == before + 1


@pytest.mark.parametrize("frame", [b"", b"\0", bytes(13), bytes(60), bytes.fromhex("020000000001020000000002")])
def test_what_nobody_knows_is_dropped_and_counted(switch: DeployedSwitch, frame: bytes) -> None:
    before = switch.exceptions()[NO_ROUTE]
    assert switch.send((0, frame)) == []
    assert switch.exceptions()[NO_ROUTE] == before + 1


def test_what_nobody_knows_goes_to_the_controller_if_asked() -> None:
    switch = DeployedSwitch(PLAN, Options(miss="controller"))
    assert switch.send((3, bytes(60))) == []
    # The first 9 bits are the port of arrival, the other 7 the reason: 2, no route.
    assert switch.notices == [CpuFrame((3 << 7 | 2).to_bytes(2, "big") + bytes(60))]


def test_broadcast_reaches_all_but_its_sender(switch: DeployedSwitch) -> None:
    frame = b"\xff" * 6 + bytes(54)
    sent = switch.send((4, frame))
    assert [port for port, _, _ in sent] == [0, 1, 2, 3, 5, 6]
    assert {data for _, data, _ in sent} == {frame}


def test_arp_is_answered_in_the_name_of_a_host(switch: DeployedSwitch) -> None:
    asker, asked = ADDRESSES[1], ADDRESSES[5]
    request = Ether(src=format_mac(asker.mac), dst="ff:ff:ff:ff:ff:ff") / ARP(
        op=1, hwsrc=format_mac(asker.mac), psrc=str(asker.ipv4), pdst=str(asked.ipv4)
    )
    ((port, sent, _),) = switch.send((1, bytes(request)))
    answer = Ether(sent)
    assert port == 1
    assert (answer.src, answer.dst) == (format_mac(GATEWAY_MAC), format_mac(asker.mac))
    assert (answer[ARP].op, answer[ARP].hwsrc, answer[ARP].psrc) == (2, format_mac(GATEWAY_MAC), str(asked.ipv4))
    assert (answer[ARP].hwdst, answer[ARP].pdst) == (format_mac(asker.mac), str(asker.ipv4))


def leaf_spine_switch(name: str) -> DeployedSwitch:
    """Return a leaf, with hosts 0 and 1 (s0) or 2 and 3 (s1) at ports 0 and 1 and four spines at ports 2 to 5."""
    keys = {"topology": "leaf-spine", "leaves": 2, "spines": 4, "hosts_per_leaf": 2}
    overrides = [f"cluster.{key}={value}" for key, value in keys.items()]
    # Both hosts of the job are at one leaf, so the plan has no path between leaves: switches choose by themselves.
    scenario = read_scenario(overrides=[*overrides, "job.workers=1", "job.servers=1"])
    return DeployedSwitch(make_plan(scenario, POLICIES["tensorexpress"]), name=name)


def chosen_ports(switch: DeployedSwitch, to: int, version: int) -> list[int]:
    """Return the ports by which 400 flows to a host leave."""
    flows = (framed(b"plain", to=to, port=9, source_port=1000 + flow, version=version) for flow in range(400))
    return [switch.send((0, frame))[0][0] for frame in flows]


@pytest.mark.parametrize("version", [4, 6])
def test_flows_spread_over_equal_paths_and_each_keeps_its_own(version: int) -> None:
    switch = leaf_spine_switch("s0")
    first = chosen_ports(switch, 2, version)
    assert first == chosen_ports(switch, 2, version)
    assert all(60 <= first.count(port) <= 140 for port in range(2, 6))


def test_flows_that_meet_at_one_switch_part_at_the_next() -> None:
    first = chosen_ports(leaf_spine_switch("s0"), 2, 4)
    # At the other leaf the same flows but for their target, which would only permute the choices of a linear hash.
    second = chosen_ports(leaf_spine_switch("s1"), 0, 4)
    for port in range(2, 6):
        together = [there for here, there in zip(first, second, strict=True) if here == port]
        assert all(together.count(other) >= len(together) // 10 for other in range(2, 6))


# Guarding


@pytest.mark.parametrize("version", [4, 6])
def test_a_host_sends_tensors_in_its_own_name_alone(switch: DeployedSwitch, version: int) -> None:
    before = switch.exceptions()[SPOOFED]
    assert switch.send((2, framed(tagged(), source=0, version=version))) == []
    assert switch.exceptions()[SPOOFED] == before + 1
    assert len(switch.send((2, framed(tagged(), source=2, version=version)))) == 1
    assert len(switch.send((2, framed(b"plain", source=0, port=9, version=version)))) == 1


def test_a_host_may_send_in_any_name_if_asked() -> None:
    switch = DeployedSwitch(PLAN, Options(bind_sources=False))
    assert switch.slot_and_queue(2, framed(tagged(0, 0), source=0)) == (1, 0)


def test_between_switches_packets_come_in_the_name_of_many() -> None:
    leaf = leaf_spine_switch("s0")
    # Host 2 is at the other leaf: what it sends comes from a spine, at ports 2 to 5, and never from a host here.
    for port in range(2, 6):
        assert [out for out, _, _ in leaf.send((port, framed(tagged(), source=2, to=1)))] == [1]
    for port in (0, 1):
        assert leaf.send((port, framed(tagged(), source=2, to=1))) == []


def test_all_fragments_of_a_packet_take_one_path() -> None:
    leaf = leaf_spine_switch("s0")
    for source_port in range(50):
        whole = framed(b"plain", to=2, port=9, source_port=source_port)
        first, later = (as_fragment(whole, flags_and_offset) for flags_and_offset in (0x2000, 0x0001))
        assert leaf.send((0, first))[0][0] == leaf.send((0, later))[0][0]


def test_strangers_are_remarked_and_counted(switch: DeployedSwitch) -> None:
    before = switch.exceptions()[REMARKED]
    ((_, sent, _),) = switch.send((6, framed(tagged(), source=6, dscp=56)))
    assert read_frame(sent).dscp == 0
    assert switch.exceptions()[REMARKED] == before + 1


def test_strangers_are_dropped_if_asked() -> None:
    switch = DeployedSwitch(PLAN, Options(strangers="drop"))
    assert switch.send((6, framed(tagged(), source=6))) == []
    assert switch.exceptions()[DROPPED] == 1


def test_malformed_tensor_packets_are_forwarded_as_they_are_but_for_their_dscp(switch: DeployedSwitch) -> None:
    before = switch.exceptions()[MALFORMED]
    broken = framed(b"\x54\x59" + tagged()[2:], dscp=56)
    ((_, sent, _),) = switch.send((0, broken))
    assert read_frame(sent).dscp == 0
    assert sent[42:] == broken[42:]
    assert is_sound(sent)
    assert switch.exceptions()[MALFORMED] == before + 1


def test_a_job_over_its_rate_is_best_effort() -> None:
    switch = DeployedSwitch(PLAN, Options(limits={"job0": 8 * 10**6}))
    frame = framed(tagged(0, 0, bytes(8000)))
    queues = [switch.slot_and_queue(0, frame, now_ps=0)[1] for _ in range(100)]
    allowed = queues.index(7)
    assert set(queues[:allowed]) == {0}
    assert set(queues[allowed:]) == {7}
    assert switch.exceptions()[OVER_RATE] == 100 - allowed
    # A second later the job has its rate again.
    assert switch.slot_and_queue(0, frame, now_ps=10**12)[1] == 0


# Marking


def test_the_wait_is_deducted_from_the_slack_and_the_dscp_is_the_queues() -> None:
    payload = bytes(1000 - 42 - 32)
    frame = framed(tagged(0, 0, payload, slack_us=5000), ecn=1)
    sent = [data for _, data, _ in slow_switch_kept().send((0, frame), (0, frame), (0, frame), now_ps=10**12)]
    assert [read_frame(data).header.slack_us for data in sent] == [5000, 5000 - 8192, 5000 - 2 * 8192]
    assert {read_frame(data).dscp for data in sent} == {40}
    assert all(map(is_sound, sent))


extremes = st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from([-(2**31), -(2**31) + 1, 2**31 - 1, 0, 1, -1]))


@given(st.binary(max_size=40), extremes, st.sampled_from([4, 6]), st.booleans(), st.integers(0, 60_000))
def test_a_checksum_is_right_after_a_change_if_and_only_if_it_was_before(
    payload: bytes, slack_us: int, version: int, damaged: bool, source_port: int
) -> None:
    switch = slow_switch_kept()
    frame = framed(tagged(0, 0, payload, slack_us=slack_us), version=version, source_port=source_port)
    if damaged:
        frame = frame[:-1] + bytes([frame[-1] ^ 0x10])
    _, (_, sent, _) = switch.send((0, frame), (0, frame))
    assert is_sound(sent) != damaged
    if not damaged:
        assert read_frame(sent).header.slack_us == max(-(2**31), slack_us - waited_us(frame))


@cache
def slow_switch_kept() -> DeployedSwitch:
    return DeployedSwitch(PLAN, settings=SLOW)


def waited_us(frame: bytes) -> int:
    return (max(60, len(frame)) + 24) * 8


def test_a_packet_without_udp_checksum_still_has_none() -> None:
    frame = framed(tagged(0, 0))
    bare = frame[:40] + b"\0\0" + frame[42:]
    sent = slow_switch_kept().send((0, bare), (0, bare))
    assert [data[40:42] for _, data, _ in sent] == [b"\0\0", b"\0\0"]
    assert read_frame(sent[1][1]).header.slack_us < 0


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(("ecn", "marked"), [(0, 0), (1, 3), (2, 3), (3, 3)])
def test_packets_that_found_a_long_queue_are_marked_if_they_can_be(version: int, ecn: int, marked: int) -> None:
    threshold = DefaultEntry("mark.ecn", Call("mark.mark_over", (("packets", 2),)))
    switch = DeployedSwitch(PLAN, more=(threshold,), settings=SLOW)
    frame = framed(tagged(0, 0), version=version, ecn=ecn)
    sent = [data for _, data, _ in switch.send(*[(0, frame)] * 6)]
    found = [Ether(data).tos & 3 if version == 4 else Ether(data).tc & 3 for data in sent]
    # The first is on the wire at once; the others find 0 to 4 packets before them.
    assert found == [ecn] * 4 + [marked] * 2
    assert all(map(is_sound, sent))


# Packets to and from the controller


def test_one_packet_of_each_job_is_sampled() -> None:
    switch = DeployedSwitch(PLAN)
    long = framed(tagged(0, 3, bytes(400)))
    for port, frame in ((0, long), (0, long), (3, framed(tagged(1, 2), source=3)), (6, framed(tagged(1, 2), source=6))):
        switch.send((port, frame))
    samples = [notice.frame for notice in switch.notices if isinstance(notice, CpuFrame)]
    assert [sample[:2] for sample in samples] == [(port << 7 | 1).to_bytes(2, "big") for port in (0, 3)]
    assert samples[0][2:] == long[:126]
    switch.notices.clear()
    switch.apply([WriteRegister("TensorIngress.guard.sampled", 1, 0)])
    switch.send((0, long), (0, long))
    assert len(switch.notices) == 1


def test_the_controller_names_the_port_and_the_queue_of_its_packets(switch: DeployedSwitch) -> None:
    for queue in range(8):
        switch.sent.clear()
        before = switch.offered()
        switch.packet_out((3 << 7 | queue << 4).to_bytes(2, "big") + bytes(60))
        assert switch.sent == [(3, bytes(60), switch.sent[0][2])]
        assert [after - count for after, count in zip(switch.offered(), before, strict=True)].index(1) == queue


def test_checksum_of_nothing_and_of_odd_lengths() -> None:
    assert checksum(b"") == 0xFFFF
    assert checksum(b"\x01") == checksum(b"\x01\x00") == 0xFEFF
    assert checksum(b"\xff\xff") == 0
