"""Background traffic in real runs: who sends it and when, where it waits, and that nobody takes it for tensors."""

from __future__ import annotations

import doctest
import signal
import struct
from dataclasses import replace
from ipaddress import ip_address
from itertools import takewhile
from pathlib import Path

import pytest
from support.network import needs_root
from support.thorough import rest
from support.training_run import Killer, check_consistent, small_plan
from support.virtual_network import VirtualLink, VirtualNetwork

from tensorexpress import background
from tensorexpress.addresses import GATEWAY_MAC
from tensorexpress.background import background_gaps, send_times_ps
from tensorexpress.classify import queue_map_of
from tensorexpress.errors import NetworkError
from tensorexpress.framing import ETHERNET_BYTES, SEGMENT_OVERHEAD_BYTES, Framing
from tensorexpress.host.background import BACKGROUND_PORT, BackgroundTraffic
from tensorexpress.host.endpoint import Endpoint, EndpointSettings
from tensorexpress.host.flow import FlowSettings
from tensorexpress.host.process import is_needed
from tensorexpress.host.tagging import BEST_EFFORT, Tag, TrafficClass
from tensorexpress.host.wire_link import WireLink
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.sim.run import simulate
from tensorexpress.target import Target
from tensorexpress.target.embedded import EmbeddedTarget
from tensorexpress.target.linux import LinuxTarget
from tensorexpress.target.runner import run_plan
from tensorexpress.target.speed import load_of
from tensorexpress.units import serialisation_ps
from tensorexpress.wire.frame import FrameEnd, build_frame, read_frame
from tensorexpress.wire.header import UDP_PORT, Header
from tensorexpress.wire.udp import lay_wire

pytestmark = pytest.mark.usefixtures("one_nursery")

MS = 10**9
WIRES = EmbeddedTarget(wires=True)
SESSION = 7

#: 50 packets of 1500 bytes, 1 ms from one to the next, from a host that has no other part in the run.
BURST = (
    "background.0.src=h3",
    "background.0.dst=h2",
    "background.0.rate=12 Mbps",
    "background.0.pattern=constant",
    "background.0.at=10 ms",
    "background.0.until=60500 us",
)


def test_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(background).failed == 0


# Runs


@rest(but=1)
@pytest.mark.parametrize(
    "target",
    [
        WIRES,
        pytest.param(EmbeddedTarget(), marks=needs_root),
        pytest.param(LinuxTarget(), marks=needs_root),
    ],
    ids=["wires", "veth", "linux"],
)
def test_all_of_a_burst_arrives_in_the_least_urgent_queue(target: Target, tmp_path: Path) -> None:
    run = run_plan(small_plan(tmp_path, *BURST), target)
    check_consistent(run)
    assert run.background == ((50, 50),)
    # On veth the kernel sends a few packets of its own.
    sent_bytes = run.trace.links["bytes"][run.trace.link_names.index("h3>s0")]
    assert 50 * (1500 + ETHERNET_BYTES) <= sent_bytes < 51 * (1500 + ETHERNET_BYTES)
    if target.name == "embedded":
        (served,) = [report.served for report in run.ports if report.port is None]
        other = {queue: packets for (slot, queue), packets in served.items() if slot == 0}
        assert other.keys() == {run.plan.scenario.cluster.queues - 1}
        assert 50 <= sum(other.values()) < 60


@rest()
def test_it_goes_on_until_the_last_job_is_done(tmp_path: Path) -> None:
    """Also at a host whose own job has been done for long."""
    jobs = [
        "job.0.workers=h0", "job.0.servers=h1", "job.1.model=", f"job.1.csv={tmp_path / 'layers.csv'}",
        "job.1.workers=h2", "job.1.servers=h3", "job.1.start=500 ms",
    ]  # fmt: skip
    source = ["background.0.src=h0", "background.0.dst=h4", "background.0.rate=3 Mbps"]
    run = run_plan(small_plan(tmp_path, "iterations=1", *jobs, *source, scale=0.1), WIRES)
    check_consistent(run)
    first, last = (job.updated_ps.max() for job in run.trace.jobs)
    assert first < 500 * MS < last
    gaps = background_gaps(run.plan.scenario)[0].tolist()
    due = sum(1 for _ in takewhile(lambda time_ps: time_ps < last, send_times_ps(gaps, 0, None)))
    ((sent, arrived),) = run.background
    assert sent >= due
    assert arrived <= sent


def test_who_only_sends_other_traffic_and_is_missing_is_named(tmp_path: Path) -> None:
    killer = Killer("h3", signal.SIGKILL)
    plan = small_plan(tmp_path, "iterations=1000", *BURST[:3], scale=0.1)
    assert [is_needed(plan, host) for host in range(4)] == [True] * 4
    with pytest.raises(NetworkError, match=r"h3 \(background traffic\) was ended by SIGKILL before the run was over"):
        run_plan(plan, WIRES, started=killer.started, progress=killer.progress)


def test_other_traffic_is_a_part_of_what_a_machine_is_asked_for() -> None:
    keys = ["job.workers=8", "job.servers=1", "background.0.src=h0", "background.0.dst=h1", "background.0.rate=1 Gbps"]
    scenario = read_scenario(overrides=[*keys, "background.0.packet=1500"])
    # A tenth of a link's bytes, in six times as many packets as tensors, each of which is a quarter of the work.
    assert load_of(scenario).links == pytest.approx(1 + 0.1 * Framing(9000).full_packet_bytes / (4 * 1500))


# Times, at a host whose clock is exact


class NotingLink(VirtualLink):
    """A link that notes when datagrams leave, and where to."""

    def __init__(self, network: VirtualNetwork, address: tuple[str, int]):
        super().__init__(network, address)
        self.left: list[tuple[int, int, TrafficClass]] = []

    def send(self, target: tuple[str, int], traffic: TrafficClass, data: memoryview | bytes, stride_bytes: int) -> int:
        self.left += [(self.network.now_ps, target[1], traffic)] * -(-len(data) // stride_bytes)
        return super().send(target, traffic, data, stride_bytes)


class Sending:
    """Host h0, with a link of 10 Mbps and background traffic of some keys, in virtual time."""

    def __init__(self, *keys: str):
        source = ["background.0.src=h0", "background.0.dst=h1", "background.0.rate=1 Mbps"]
        self.scenario = read_scenario(overrides=["job.workers=1", "job.servers=1", *source, *keys])
        self.network = VirtualNetwork()
        here, there = (("10.0.0.1", UDP_PORT), ("10.0.0.2", UDP_PORT))
        self.link = NotingLink(self.network, here)
        flow = FlowSettings(payload_bytes=1000, overhead_bytes=SEGMENT_OVERHEAD_BYTES, window_bytes=10**6)
        settings = EndpointSettings(flow, rate_bps=10**7)
        clock = self.network.clock_ps
        self.endpoint = Endpoint(self.link, {"peer": there}, settings, session=SESSION, clock_ps=clock)
        other = Endpoint(VirtualLink(self.network, there), {"peer": here}, settings, session=SESSION, clock_ps=clock)
        self.both = [self.endpoint, other]
        self.traffic = BackgroundTraffic(self.scenario, 0, ("10.0.0.1", "10.0.0.2"), SESSION, self.link)

    def start(self, start_ps: int) -> None:
        self.traffic.start(self.endpoint, start_ps)

    def run_until(self, time_ps: int) -> None:
        self.network.run(self.both, lambda: self.network.now_ps >= time_ps)

    def left_at(self, port: int) -> list[int]:
        return [time_ps for time_ps, to, _ in self.link.left if to == port]


@pytest.mark.parametrize("pattern", ["poisson", "constant"])
def test_packets_leave_at_the_times_of_the_simulator(pattern: str) -> None:
    keys = (f"background.0.pattern={pattern}", "background.0.at=100 ms", "background.0.until=900 ms", "seed=3")
    sending = Sending(*keys)
    sending.start(5 * MS)
    sending.endpoint.call_at(2000 * MS, lambda: None)
    sending.run_until(2000 * MS)
    gaps = background_gaps(sending.scenario)[0].tolist()
    due = [5 * MS + time_ps for time_ps in send_times_ps(gaps, 100 * MS, 900 * MS)]
    busy_ps = serialisation_ps(1500 + ETHERNET_BYTES, 10**7)
    expected, free_ps = [], 0
    for time_ps in due:
        expected.append(max(time_ps, free_ps))
        free_ps = expected[-1] + busy_ps
    assert sending.left_at(BACKGROUND_PORT) == expected
    # As many as the model sends, which ends when training does.
    assert len(due) == pytest.approx(800 * MS / (12_000 * 10**6), rel=0.3)


def test_the_simulator_sends_as_many_at_the_same_times() -> None:
    keys = ["background.0.until=50 ms", "background.0.pattern=poisson", "cluster.bandwidth=1 Gbps"]
    source = ["background.0.src=h9", "background.0.dst=h10", "background.0.rate=10 Mbps"]
    scenario = read_scenario(overrides=["job.workers=8", "job.servers=1", *source, *keys])
    trace = simulate(make_plan(scenario, POLICIES["fifo"]))
    times = list(send_times_ps(background_gaps(scenario)[0].tolist(), 0, 50 * MS))
    assert trace.links["bytes"][trace.link_names.index("h9>s0")] == len(times) * (1500 + ETHERNET_BYTES)


def test_it_goes_first_and_shares_the_link_with_messages() -> None:
    sending = Sending("background.0.pattern=constant")
    sending.endpoint.send("peer", Tag(job=0, worker=0, iteration=0, tensor=0), bytes(100_000))
    sending.start(0)
    sending.run_until(100 * MS)
    tensor_ps = serialisation_ps(1000 + SEGMENT_OVERHEAD_BYTES, 10**7)
    other_ps = serialisation_ps(1500 + ETHERNET_BYTES, 10**7)
    sent = sorted((time_ps, port) for time_ps, port, _ in sending.link.left)
    free_ps = 0
    for time_ps, port in sent:
        assert time_ps >= free_ps
        free_ps = time_ps + (other_ps if port == BACKGROUND_PORT else tensor_ps)
    # Packets are due every 12 ms; while the message lasts, one waits for a packet of it at the most.
    waited = [time_ps - 12 * MS * number for number, time_ps in enumerate(sending.left_at(BACKGROUND_PORT), start=1)]
    assert all(0 <= wait_ps < tensor_ps for wait_ps in waited)
    assert max(waited) > 0
    assert {traffic for _, port, traffic in sending.link.left if port == BACKGROUND_PORT} == {BEST_EFFORT}


def test_more_than_the_link_carries_leaves_nothing_to_messages() -> None:
    """As in the model: it is open loop, and first."""
    sending = Sending("background.0.rate=20 Mbps")
    sending.start(0)
    sending.run_until(20 * MS)
    sending.endpoint.send("peer", Tag(job=0, worker=0, iteration=0, tensor=0), bytes(10_000))
    sending.run_until(200 * MS)
    assert not sending.left_at(UDP_PORT)
    carried_bps = len(sending.left_at(BACKGROUND_PORT)) * (1500 + ETHERNET_BYTES) * 8 / 0.2
    assert carried_bps == pytest.approx(10**7, rel=0.05)


# Hostile datagrams


#: A tensor packet, to the last bit.
TENSOR = Header(0, 0, 0, tensor=0, chunk=0, chunks=1, payload_bytes=1440).pack().ljust(1472)

H0, H1 = (FrameEnd(bytes(6), ip_address(address)) for address in ("10.0.0.1", "10.0.0.2"))


def to_port(port: int, payload: bytes, source: FrameEnd = H0) -> bytes:
    return build_frame(source, replace(H1, port=port), payload)


def own_datagram(session: int = SESSION, number: int = 0, size: int = 1472) -> bytes:
    return struct.pack("!II", session, number).ljust(size, b"\0")


@pytest.mark.parametrize(
    ("frames", "arrived", "strangers", "at_transport"),
    [
        ([to_port(BACKGROUND_PORT, own_datagram())] * 3, 3, 0, 0),
        ([to_port(BACKGROUND_PORT, own_datagram(session=8))], 0, 1, 0),
        ([to_port(BACKGROUND_PORT, own_datagram(number=1))], 0, 1, 0),
        ([to_port(BACKGROUND_PORT, own_datagram(size=1471))], 0, 1, 0),
        ([to_port(BACKGROUND_PORT, own_datagram()[:7])], 0, 1, 0),
        ([to_port(BACKGROUND_PORT, own_datagram(), FrameEnd(bytes(6), ip_address("10.0.0.3")))], 0, 1, 0),
        ([to_port(BACKGROUND_PORT, own_datagram(), replace(H0, port=9))], 0, 1, 0),
        ([to_port(BACKGROUND_PORT, TENSOR)], 0, 1, 0),
        ([to_port(UDP_PORT, own_datagram())], 0, 0, 1),
        ([to_port(BACKGROUND_PORT + 1, own_datagram())], 0, 0, 0),
    ],
)
def test_only_what_is_of_a_source_counts_and_nothing_of_it_is_a_tensor(
    frames: list[bytes], arrived: int, strangers: int, at_transport: int
) -> None:
    keys = ["background.0.src=h0", "background.0.dst=h1", "background.0.rate=1 Mbps"]
    scenario = read_scenario(overrides=["job.workers=1", "job.servers=1", *keys])
    delivered: list[object] = []
    here, there = lay_wire()
    with here as wire, there as switch:
        link = WireLink(H1, GATEWAY_MAC, wire)
        flow = FlowSettings(payload_bytes=1000, overhead_bytes=SEGMENT_OVERHEAD_BYTES)
        peers = {"h0": ("10.0.0.1", UDP_PORT)}
        endpoint = Endpoint(link, peers, EndpointSettings(flow), session=SESSION, delivered=delivered.append)
        sink = BackgroundTraffic(scenario, 1, ("10.0.0.1", "10.0.0.2"), SESSION, link).sink
        for frame in frames:
            switch.send(frame)
        endpoint.receive()
    assert (sink.arrived[0], sink.strangers) == (arrived, strangers)
    assert (endpoint.counters.malformed + endpoint.counters.corrupt, endpoint.counters.received) == (at_transport, 0)
    assert not delivered


def test_a_switch_takes_it_for_other_traffic_even_if_it_looks_like_a_tensor() -> None:
    classes = queue_map_of(make_plan(read_scenario(), POLICIES["tensorexpress"]))
    seen = [read_frame(to_port(port, TENSOR)) for port in (UDP_PORT, BACKGROUND_PORT)]
    assert [classes.queue_of(each, admitted=True) for each in seen] == [0, classes.best_effort]
