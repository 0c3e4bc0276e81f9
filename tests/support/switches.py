"""Switches to deploy to, one like the other: the embedded one or, with TENSOREXPRESS_TARGET=bmv2, simple_switch_grpc.

TENSOREXPRESS_BMV2 names the program where simple_switch_grpc is not on PATH.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Protocol

import pytest

from tensorexpress.control.client import Connection, RemoteSwitch
from tensorexpress.doctor import bmv2_options
from tensorexpress.errors import NetworkError
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.switch.running import RunningSwitch
from tensorexpress.target.controlled import control_address


class TargetSwitch(Protocol):
    """A switch that runs, and answers at an address with device id 1."""

    address: str

    def start(self) -> None:
        """Start, or start again, at the same address; nothing of before is left."""

    def stop(self) -> None:
        """Stop as if the power failed."""


class EmbeddedSwitch:
    """The embedded switch, without any port: it forwards in a process of its own, and serves P4Runtime in this one."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="tensorexpress-")
        self.address = control_address(self._directory, 0)
        self._switch: RunningSwitch | None = None
        self.start()

    def start(self) -> None:
        os.makedirs(self._directory, 0o700, exist_ok=True)
        self._switch = RunningSwitch(LoopSettings({}), self.address)

    def stop(self) -> None:
        if self._switch is not None:
            self._switch.stop()
        self._switch = None
        shutil.rmtree(self._directory, ignore_errors=True)


class Bmv2Switch:
    """simple_switch_grpc, with the given interfaces as ports 0, 1, ..."""

    def __init__(self, program: str, interfaces: Sequence[str] = ()):
        self._program = program
        self._ports = [word for port, name in enumerate(interfaces) for word in ("-i", f"{port}@{name}")]
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = tempfile.mkdtemp(prefix="tensorexpress-")
        self.address = control_address(self._directory, 0)
        self.start()

    def start(self) -> None:
        os.makedirs(self._directory, 0o700, exist_ok=True)
        options = bmv2_options(self._program, _free_port())
        target = ["--grpc-server-addr", self.address, "--cpu-port", "255", "--priority-queues", "8"]
        self._process = subprocess.Popen(
            [self._program, *options, *self._ports, "--", *target], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not _answers(self.address):
            assert self._process.poll() is None, "simple_switch_grpc ended"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None
        shutil.rmtree(self._directory, ignore_errors=True)


def start_switch() -> TargetSwitch:
    """Return a running switch of the kind that the environment asks for."""
    if os.environ.get("TENSOREXPRESS_TARGET", "embedded") != "bmv2":
        return EmbeddedSwitch()
    program = shutil.which(os.environ.get("TENSOREXPRESS_BMV2", "simple_switch_grpc"))
    if program is None:
        pytest.skip("simple_switch_grpc is not on PATH, and TENSOREXPRESS_BMV2 names none")
    return Bmv2Switch(program)


def _answers(address: str) -> bool:
    try:
        Connection(RemoteSwitch("s0", address)).close()
    except NetworkError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
