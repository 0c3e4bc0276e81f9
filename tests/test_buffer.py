"""One meaning of a buffer: the same arrivals find room, or none, in simulator, embedded switch and Linux."""

from __future__ import annotations

import doctest
import socket
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.namespace_sockets import mark
from support.network import needs_root
from support.scripted import Scripted
from support.thorough import examples
from test_linux import ends, plan_on

from tensorexpress import buffer as module
from tensorexpress.buffer import Buffer, most_in_queue, shares
from tensorexpress.queueing import DISCIPLINES
from tensorexpress.sim.replay import DROPPED, replay
from tensorexpress.switch.device import BUFFER_FULL, Switch
from tensorexpress.switch.traffic import ETHERNET_OVERHEAD_BYTES, PortSettings
from tensorexpress.target.linux import LinuxTarget
from tensorexpress.topologies import dumbbell, star
from tensorexpress.wire.dscp import default_dscps

US = 10**6
RATE_BPS = 8 * 10**6  # a byte a microsecond
FIELDS = [("time_ps", "i8"), ("src", "i8"), ("dst", "i8"), ("bytes", "i8"), ("rank", "i8")]


def test_doctests() -> None:
    assert doctest.testmod(module).failed == 0


@given(
    st.integers(1, 8),
    st.integers(1, 20_000),
    st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 7), st.integers(1, 3000))), max_size=60),
)
def test_a_packet_is_refused_exactly_when_what_queues_hold_beyond_their_own_part_exceeds_the_common_one(
    queues: int, buffer_bytes: int, steps: list[tuple[int, int] | None]
) -> None:
    port, held = Buffer(buffer_bytes, queues), [[] for _ in range(queues)]
    own, common = shares(buffer_bytes, queues)
    assert queues * own + common == buffer_bytes
    for step in steps:
        if step is None:
            queue = next((queue for queue in range(queues) if held[queue]), None)
            if queue is not None:
                port.release(queue, held[queue].pop(0))
            continue
        queue, size = step[0] % queues, step[1]
        wanted = [sum(sizes) + (size if index == queue else 0) for index, sizes in enumerate(held)]
        fits = sum(max(0, each - own) for each in wanted) <= common
        assert port.take(queue, size) == fits
        if fits:
            held[queue].append(size)
        assert port.queue_bytes == [sum(sizes) for sizes in held]
        assert sum(port.queue_bytes) <= buffer_bytes
        assert max(port.queue_bytes) <= most_in_queue(buffer_bytes, queues)


@given(st.integers(2, 8), st.integers(16, 10_000))
def test_whatever_fills_the_rest_an_empty_queue_has_its_own_part(queues: int, buffer_bytes: int) -> None:
    port = Buffer(buffer_bytes, queues)
    for queue in range(1, queues):
        while port.take(queue, 1):
            pass
    taken = 0
    while port.take(0, 1):
        taken += 1
    assert taken == shares(buffer_bytes, queues).own_bytes


def test_a_buffer_of_0_has_no_limit() -> None:
    port = Buffer(0, 4)
    assert all(port.take(3, 10**12) for _ in range(100))


ARRIVALS = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(84, 1500), st.integers(0, 7)), min_size=1, max_size=40
)


@pytest.mark.parametrize("discipline", ["strict", "fifo"])
@settings(max_examples=examples(60), deadline=None)
@given(arrivals=ARRIVALS, queues=st.integers(1, 8), buffer_bytes=st.sampled_from([0, 3000, 8000, 16_000]))
def test_simulator_and_embedded_switch_drop_the_same_packets_and_send_the_rest_at_the_same_time(
    discipline: str, arrivals: list[tuple[int, int, int]], queues: int, buffer_bytes: int
) -> None:
    # No two events are at one instant, which the switch, unlike the simulator, would take in the order of calls.
    arrivals = [
        (2000 * US + at_us * US + number, size, queue % queues)
        for number, (at_us, size, queue) in enumerate(sorted(arrivals))
    ]
    assert simulated(arrivals, discipline, queues, buffer_bytes, "simpy") == embedded(
        arrivals, discipline, queues, buffer_bytes
    )
    assert simulated(arrivals, discipline, queues, buffer_bytes, "fast") == embedded(
        arrivals, discipline, queues, buffer_bytes
    )


def simulated(
    arrivals: list[tuple[int, int, int]], discipline: str, queues: int, buffer_bytes: int, engine: str
) -> list[int]:
    """Return when packets that reach a switch at given times leave it; every one comes from a host of its own."""
    cluster = star(hosts=len(arrivals) + 1, bandwidth=RATE_BPS, delay=0, queues=queues, buffer=buffer_bytes)
    packets = [
        (at_ps - size * US, host, len(arrivals), size, queue) for host, (at_ps, size, queue) in enumerate(arrivals)
    ]
    return replay(cluster, np.array(packets, dtype=FIELDS), discipline, engine=engine).tolist()


def embedded(arrivals: list[tuple[int, int, int]], discipline: str, queues: int, buffer_bytes: int) -> list[int]:
    """Return the same of the embedded switch."""
    left = [DROPPED] * len(arrivals)

    def sent(port: int, frame: bytes, time_ps: int) -> None:
        left[frame[2]] = time_ps

    port = PortSettings(rate_bps=RATE_BPS, discipline=discipline, queues=queues, buffer_bytes=buffer_bytes)
    switch = Switch(sent, lambda notice: None, program=Scripted(), default=port)
    for number, (at_ps, size, queue) in enumerate(arrivals):
        frame = bytes([1, queues - 1 - queue, number]).ljust(size - ETHERNET_OVERHEAD_BYTES, b"\0")
        switch.receive(0, frame, at_ps)
    while (due_ps := switch.next_event_ps()) is not None:
        switch.advance(due_ps)
    assert left.count(DROPPED) == switch.statistics().ports[1].drops.get(BUFFER_FULL, 0)
    return left


#: A full packet: payload, UDP, IPv4, Ethernet with preamble and gap.
PAYLOAD_BYTES, WIRE_BYTES = 1472, 1538


@needs_root
@pytest.mark.parametrize(("policy", "queues"), [("tensorexpress", 2), ("tensorexpress", 8), ("fifo", 8)])
def test_linux_drops_as_many_packets_of_a_queue_as_the_simulator_while_the_others_are_short(
    policy: str, queues: int
) -> None:
    # A packet takes an eighth of a second on the link in the middle: while all arrive, next to nothing leaves.
    cluster = dumbbell(left=1, right=1, bandwidth="100 Mbps", bottleneck="100 Kbps", mtu=1500, queues=queues)
    cluster = replace(cluster, buffer_bytes=30 * WIRE_BYTES)
    plan = plan_on(cluster, policy)
    count = 50
    packets = np.array([(0, 0, 1, WIRE_BYTES, queues - 1)] * count, dtype=FIELDS)
    dropped = replay(cluster, packets, plan.policy.discipline).tolist().count(DROPPED)
    with LinuxTarget().start(plan) as network, ends(network, "h0", "h1") as (sender, receiver):
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        mark(sender, default_dscps(queues)[-1])
        for _ in range(count):
            sender.sendto(bytes(PAYLOAD_BYTES), receiver.getsockname())
        while network.report()[0].rx_bytes < count * WIRE_BYTES:
            pass
        trunk = network.report()[1]
    # htb lets a class send its first packet out of turn, and routers tell their neighbours a few things.
    assert dropped - 2 <= trunk.drops[BUFFER_FULL] <= dropped + 3
    assert dropped == count - 1 - most_in_queue(cluster.buffer_bytes, queues if policy != "fifo" else 1) // WIRE_BYTES


@pytest.mark.parametrize("name", DISCIPLINES)
def test_in_a_queue_of_its_own_traffic_that_does_not_slow_down_pushes_nobody_out(name: str) -> None:
    """Bulk fills a port at ten times its rate; of a few urgent packets none is lost where urgent means a queue."""
    cluster = star(hosts=12, bandwidth=RATE_BPS, delay=0, queues=4, buffer=16_000)
    bulk = [(number * 1000 * US, host, 11, 1000, 3) for number in range(20) for host in range(10)]
    urgent = [(number * 4000 * US + 500 * US, 10, 11, 1400, 0) for number in range(5)]
    left = replay(cluster, np.array(bulk + urgent, dtype=FIELDS), name).tolist()
    assert DROPPED in left[: len(bulk)]
    assert (DROPPED in left[len(bulk) :]) == (not DISCIPLINES[name].has_queues)
