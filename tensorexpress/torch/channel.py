"""A training script's way to the host that sends for it."""

from __future__ import annotations

import socket
import time
from typing import Protocol

from tensorexpress.script_memory import ScriptMemory, wake


class HostLostError(BaseException):
    """The host is gone. Whoever runs the script knows why, and ends it: nothing in it should go on after this."""


class SumChannel(Protocol):
    """Takes gradients that lie in the memory, and puts their sums there."""

    memory: ScriptMemory

    def wake(self) -> None:
        """Say that there is something new in the memory."""
        ...

    def wait(self) -> None:
        """Return when there may be something new in the memory."""
        ...


def stall(channel: SumChannel) -> None:
    """Wait once for sums; the time counts as stall, wherever the script is."""
    begun_ns = time.monotonic_ns()
    channel.wait()
    channel.memory.add_stall(time.monotonic_ns() - begun_ns)


class HostChannel:
    """The channel to a host's process."""

    def __init__(self, memory: ScriptMemory, connection: socket.socket):
        self.memory, self._connection = memory, connection

    def wake(self) -> None:
        """Have the host look at the memory."""
        wake(self._connection)

    def wait(self) -> None:
        """Wait until the host has something to tell."""
        try:
            said = self._connection.recv(4096)
        except ConnectionResetError:
            said = b""
        if not said:
            raise HostLostError
