"""Hosts that are forked: they begin with nothing but what they were given, and how they end is told."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tensorexpress.errors import NetworkError
from tensorexpress.host.nursery import WIRE_DESCRIPTOR, HostProcess, Nursery


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with closing(Nursery()) as found:
        yield found


def ended(host: HostProcess) -> int:
    """Return the status of a host when it has ended."""
    try:
        return host.wait()
    finally:
        host.close()


def open_in(host: HostProcess, expected: set[int]) -> set[int]:
    """Return the descriptors of a host, which closes what it is not to have as soon as it runs."""
    for _ in range(3000):
        found = {int(each.name) for each in Path(f"/proc/{host.pid}/fd").iterdir()}
        if found == expected:
            break
        time.sleep(0.01)
    return found


def test_a_host_has_its_pipes_and_its_wire_and_nothing_else(nursery: Nursery) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hosts = [nursery.fork(), nursery.fork(wire=theirs.fileno())]
        theirs.close()
        for host, expected in zip(hosts, ({0, 1, 2}, {0, 1, 2, WIRE_DESCRIPTOR}), strict=True):
            assert open_in(host, expected) == expected
            host.kill()
            assert ended(host) == -signal.SIGKILL
        # Nobody else holds the other end of the wire.
        assert ours.recv(1) == b""


def test_a_host_whose_starter_is_gone_ends(nursery: Nursery) -> None:
    host = nursery.fork()
    host.stdin.close()
    assert ended(host) == 1


def test_a_host_that_has_ended_cannot_be_killed_and_nobody_else_is(nursery: Nursery) -> None:
    host = nursery.fork()
    os.kill(host.pid, signal.SIGTERM)
    assert host.wait() == -signal.SIGTERM
    host.kill()
    host.close()


def test_a_namespace_that_is_not_there_is_told_of(nursery: Nursery) -> None:
    host = nursery.fork(namespace="nowhere")
    assert json.loads(host.stdout.read()) == {
        "error": "cannot enter network namespace nowhere: No such file or directory; was it removed meanwhile?"
    }
    assert ended(host) == 1


def test_without_a_nursery_there_are_no_hosts_and_nobody_waits_for_ever(nursery: Nursery) -> None:
    host = nursery.fork()
    os.kill(int(Path(f"/proc/{host.pid}/stat").read_text().split()[3]), signal.SIGKILL)
    assert host.wait() == -signal.SIGKILL
    host.kill()
    host.close()
    with pytest.raises(NetworkError, match="the process that starts hosts has ended"):
        nursery.fork()
