"""UDP wires: nobody but the two ends gets a frame onto one, or an address of one."""

from __future__ import annotations

import doctest
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.switch.ports import SocketSpec
from tensorexpress.target.embedded import EmbeddedNetwork, EmbeddedTarget
from tensorexpress.wire import udp


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind(("127.0.0.1", 0))
        yield end


def test_a_wire_takes_frames_from_its_other_end_alone(stranger: socket.socket) -> None:
    here, there = udp.lay_wire()
    with here, there:
        for end in (here, there):
            stranger.sendto(b"forged", end.getsockname())
        here.send(b"frame")
        assert there.recv(100) == b"frame"
        for end in (here, there):
            with pytest.raises(BlockingIOError):
                end.recv(100)


@pytest.mark.parametrize("option", [None, socket.SO_REUSEADDR, socket.SO_REUSEPORT])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_no_other_socket_can_have_an_address_of_a_wire(option: int | None, host: str) -> None:
    here, there = udp.lay_wire()
    with here, there, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thief:
        if option is not None:
            thief.setsockopt(socket.SOL_SOCKET, option, 1)
        for end in (here, there):
            with pytest.raises(OSError, match="Address already in use"):
                thief.bind((host, end.getsockname()[1]))


def test_what_came_before_the_wire_was_laid_is_thrown_away(stranger: socket.socket) -> None:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as end:
        end.bind(("127.0.0.1", 0))
        stranger.sendto(b"early", end.getsockname())
        end.connect(("127.0.0.1", 9))
        udp.drain(end)
        with pytest.raises(BlockingIOError):
            end.recv(100)


def small_plan() -> Plan:
    scenario = read_scenario(overrides=["job.model=alexnet", "job.workers=1", "job.servers=1"])
    return make_plan(scenario, POLICIES["fifo"])


def switch_ends(network: EmbeddedNetwork) -> list[tuple[str, int]]:
    addresses = []
    for switch in network.switches.values():
        for spec, _ in switch.settings.ports.values():
            assert isinstance(spec, SocketSpec)
            with socket.socket(fileno=os.dup(spec.descriptor)) as end:
                addresses.append(end.getsockname())
    return addresses


def test_frames_of_a_stranger_never_reach_a_switch_of_a_run(stranger: socket.socket) -> None:
    with EmbeddedTarget(wires=True).start(small_plan()) as network:
        for address in switch_ends(network):
            for _ in range(20):
                stranger.sendto(bytes(60), address)
        hosts = [access.descriptor for access in network.hosts.values()]  # type: ignore[union-attr]
        with socket.socket(fileno=os.dup(hosts[0])) as first:
            first.send(bytes(60))
        (switch,) = network.switches.values()
        counted = 0
        while not counted:
            counted = sum(port.rx_frames for port in switch.running.data_path.statistics().ports.values())
        assert counted == 1


def test_addresses_do_not_follow_from_the_pid() -> None:
    """Another user who takes what earlier versions would have bound is in nobody's way."""
    pid = os.getpid()
    address = f"127.{64 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"
    with ExitStack() as held:
        for port in range(10_000, 10_100):
            taken = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            taken.bind((address, port))
        with EmbeddedTarget(wires=True).start(small_plan()) as network:
            assert all(host == "127.0.0.1" for host, _ in switch_ends(network))


def test_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(udp).failed == 0
