"""The link between the process that controls and the process that forwards; each sees at once when the other is gone.

Requests and answers take turns on a stream socket. Notices go the other way on a socket that keeps messages apart; the
kernel's buffer of it is their bound: when the controlling side is slow, notices are dropped and counted, and packets
are never held up.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from tensorexpress import tied
from tensorexpress.errors import NetworkError, TensorExpressError
from tensorexpress.switch.device import Statistics
from tensorexpress.switch.operations import Notice, Operation, Query

_LENGTH = struct.Struct("!Q")
_READ_BYTES = 2**20
_NOTICE_BYTES = 2**18
_NOTICES_BUFFER_BYTES = 2**21
_STOP_SECONDS = 5


class LinkClosedError(NetworkError):
    """The process at the other end is gone."""


def _packed(message: object) -> bytes:
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


class DataLink:
    """The controlling end: a `DataPath` that any thread may use."""

    def __init__(self, requests: socket.socket, notices: socket.socket, process: subprocess.Popen[bytes] | None = None):
        self._requests = requests
        self._notices = notices
        self._process = process
        self._turn = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process at the other end; None when this end did not start it."""
        return self._process.pid if self._process is not None else None

    def load(self, document: bytes) -> None:
        """Replace the program and all of its state; ProgramError, with nothing changed, if it cannot run."""
        self._call("load", document)

    def apply(self, operations: Sequence[Operation]) -> None:
        """Do all of them between two packets."""
        self._call("apply", list(operations))

    def ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        """Return the answer to every query, all of one instant."""
        answers: list[list[Any]] = self._call("ask", list(queries))
        return answers

    def packet_out(self, frame: bytes) -> None:
        """Let a frame, header of the controller included, enter at the CPU port."""
        self._call("packet_out", frame)

    def statistics(self) -> Statistics:
        """Return the counters of every port."""
        statistics: Statistics = self._call("statistics")
        return statistics

    def start(self, settings: object) -> None:
        """Have the other side open its ports; the error it met, if it cannot."""
        self._call("start", settings)

    def stop(self) -> Statistics | None:
        """End the other process; return its last counters, None when it was gone already."""
        try:
            statistics: Statistics = self._call("stop")
        except LinkClosedError:
            return None
        finally:
            self.close()
        return statistics

    def close(self) -> None:
        """Hang up, which ends the other process; wait for it."""
        for end in (self._requests, self._notices):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        if self._process is not None:
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def notices(self) -> Iterator[Notice]:
        """Yield what the switch has to tell, waiting for it; ends when the other process is gone."""
        while True:
            try:
                message = self._notices.recv(_NOTICE_BYTES)
            except OSError:
                return
            if not message:
                return
            yield pickle.loads(message)

    def _call(self, what: str, *arguments: object) -> Any:
        try:
            with self._turn:
                self._requests.sendall(_packed((what, arguments)))
                (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
                answer = self._read(size)
        except OSError:
            raise _gone() from None
        failed, value = pickle.loads(answer)
        if failed:
            raise value
        return value

    def _read(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            part = self._requests.recv(min(size - len(content), _READ_BYTES))
            if not part:
                raise _gone()
            content += part
        return bytes(content)


def _gone() -> LinkClosedError:
    return LinkClosedError("the process that forwards packets has ended; start the switch again")


class SwitchEnd:
    """The forwarding end: never waits."""

    def __init__(self, requests: socket.socket, notices: socket.socket):
        requests.setblocking(False)
        notices.setblocking(False)
        self._requests = requests
        self._notices = notices
        self._incoming = bytearray()
        self._outgoing = b""
        #: Notices that the controlling side was too slow for.
        self.dropped_notices = 0

    def fileno(self) -> int:
        """Return what to wait on for requests."""
        return self._requests.fileno()

    @property
    def has_answer(self) -> bool:
        """Whether part of an answer waits to be sent."""
        return bool(self._outgoing)

    def notify(self, notice: Notice) -> None:
        """Tell the controlling side something, or drop it when too much waits there already."""
        try:
            self._notices.send(pickle.dumps(notice, pickle.HIGHEST_PROTOCOL))
        except OSError:
            self.dropped_notices += 1

    def next_request(self) -> tuple[str, tuple[Any, ...]] | None:
        """Return a request that is complete; None while it is not, LinkClosedError when there will be none."""
        try:
            part = self._requests.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            raise LinkClosedError("the controlling process has ended") from None
        if not part:
            raise LinkClosedError("the controlling process has ended")
        self._incoming += part
        if len(self._incoming) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._incoming)
        if len(self._incoming) < _LENGTH.size + size:
            return None
        # The other side sends its next request only after the answer to this one, so nothing follows it.
        request: tuple[str, tuple[Any, ...]] = pickle.loads(memoryview(self._incoming)[_LENGTH.size :])
        self._incoming = bytearray()
        return request

    def answer(self, value: object) -> None:
        """Answer the request that was made last."""
        self._outgoing = _packed((False, value))
        self.send_rest()

    def refuse(self, error: Exception) -> None:
        """Answer the request that was made last with an error."""
        if not isinstance(error, TensorExpressError):
            error = NetworkError(f"the switch failed: {type(error).__name__}: {error}")
        self._outgoing = _packed((True, error))
        self.send_rest()

    def send_rest(self) -> None:
        """Send as much of an answer as can be sent without waiting."""
        try:
            sent = self._requests.send(self._outgoing)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._outgoing)  # nobody reads it; the next read says so
        self._outgoing = self._outgoing[sent:]


def start_process() -> DataLink:
    """Start the forwarding process and return the link to it. It ends when this process does."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    notices_here, notices_there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    notices_there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NOTICES_BUFFER_BYTES)
    descriptors = (there.fileno(), notices_there.fileno())
    arguments = (os.getpid(), *descriptors)
    with there, notices_there:
        process = tied.start(
            [sys.executable, "-P", "-c", f"from tensorexpress.switch.loop import main; main{arguments}"],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            # Ctrl-C is for the controlling process, which then ends this one in good order.
            process_group=0,
        )
    return DataLink(here, notices_here, process)
