"""Messages between roles: a line of JSON and, behind it, bytes, over Unix sockets at the pace of emulated links."""

from __future__ import annotations

import asyncio
import json
import os
import traceback
from bisect import bisect_right
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Header = dict[str, Any]

#: Bytes that pass a link as one; links are shared by turns of so much.
_CHUNK_BYTES = 16_384

#: What a link makes up for in the middle of a message, when its process was late.
_LATE_S = 0.2

#: The longest line that anybody sends.
_LONGEST_LINE = 65_536

#: What ends a connection, whoever is at the other end.
ENDED = (asyncio.IncompleteReadError, ConnectionError, BrokenPipeError, OSError)


_beside: set[asyncio.Task[None]] = set()


def run_beside(work: Coroutine[Any, Any, None]) -> None:
    """Let something go on beside everything else; if it fails, so does the process, and all are told of its end."""
    task = asyncio.get_running_loop().create_task(work)
    _beside.add(task)
    task.add_done_callback(_ended)


def _ended(task: asyncio.Task[None]) -> None:
    _beside.discard(task)
    if not task.cancelled() and task.exception() is not None:
        traceback.print_exception(task.exception())
        os._exit(1)


class PacedLink:
    """One direction of a host's link: whoever wants to pass waits for its turn."""

    def __init__(self, steps: Sequence[tuple[float, int]], start: float):
        self._times = [start + time_s for time_s, _ in steps]
        self._rates = [rate for _, rate in steps]
        self._free = 0.0

    async def take(self, size_bytes: int, is_first: bool) -> None:
        """Wait until so many bytes have passed, the first of a message or more of one that is under way."""
        now = asyncio.get_running_loop().time()
        rate_bps = self._rates[max(0, bisect_right(self._times, now) - 1)]
        begins = max(self._free, now if is_first else now - _LATE_S)
        self._free = begins + size_bytes * 8 / rate_bps
        if self._free > now:
            await asyncio.sleep(self._free - now)


class Nic:
    """The two directions of a host's link, and how many bytes have passed."""

    def __init__(self, send: Sequence[tuple[float, int]], receive: Sequence[tuple[float, int]], start: float):
        self.out, self.into = PacedLink(send, start), PacedLink(receive, start)
        self.sent_bytes = self.received_bytes = 0


class RoleLink:
    """A connection to another role."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nic: Nic | None):
        self._reader, self._writer, self._nic = reader, writer, nic
        self._turn = asyncio.Lock()

    async def send(self, header: Header, payload: bytes = b"") -> None:
        """Send a message; its bytes at the pace of the own link."""
        async with self._turn:
            self._writer.write(json.dumps({**header, "bytes": len(payload)}).encode() + b"\n")
            for first in range(0, len(payload), _CHUNK_BYTES):
                chunk = payload[first : first + _CHUNK_BYTES]
                if self._nic is not None:
                    await self._nic.out.take(len(chunk), first == 0)
                    self._nic.sent_bytes += len(chunk)
                self._writer.write(chunk)
                await self._writer.drain()
            await self._writer.drain()

    async def receive(self) -> tuple[Header, bytes]:
        """Return the next message, when all of it has passed the own link."""
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError
        header: Header = json.loads(line)
        parts: list[bytes] = []
        left = int(header["bytes"])
        while left:
            part = await self._reader.readexactly(min(left, _CHUNK_BYTES))
            if self._nic is not None:
                await self._nic.into.take(len(part), not parts)
                self._nic.received_bytes += len(part)
            parts.append(part)
            left -= len(part)
        return header, b"".join(parts)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


def socket_of(folder: str, host: int) -> str:
    """Return where a host listens."""
    return str(Path(folder) / f"{host}.sock")


async def connect(folder: str, host: int, me: Header, nic: Nic | None) -> RoleLink:
    """Return a connection to a host, which is told who is there."""
    reader, writer = await asyncio.open_unix_connection(socket_of(folder, host), limit=_LONGEST_LINE)
    link = RoleLink(reader, writer, nic)
    await link.send({"kind": "hello", **me})
    return link


def packed(vector: Floats, size_bytes: int) -> bytes:
    """Return numbers as bytes, as many as an update of the model has."""
    content = vector.astype("<f8").tobytes()
    return content + bytes(max(0, size_bytes - len(content)))


def unpacked(payload: bytes, count: int) -> Floats:
    """Return so many numbers."""
    return np.frombuffer(payload, dtype="<f8", count=count).astype(np.float64)
