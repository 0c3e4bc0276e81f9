"""The link between the process that controls and the process that forwards; each sees at once when the other is gone.

Requests and answers take turns on a stream socket. Each is short: what is long is sent in several, so that the
forwarding side never reads or writes for longer than packets can wait. Notices go the other way on a socket that keeps
messages apart; the kernel's buffer of it is their bound: when the controlling side is slow, notices are dropped and
counted, and packets are never held up.

Requests are pickled, as the forwarding side trusts this one. What comes back is not: `switch.reports` reads it.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from tensorexpress import tied
from tensorexpress.errors import NetworkError, ProgramError, TensorExpressError
from tensorexpress.program_engines import PYTHON
from tensorexpress.switch import reports
from tensorexpress.switch.compiling import Optimisation, compile_beside
from tensorexpress.switch.counted import Statistics
from tensorexpress.switch.operations import Notice, Operation, Query
from tensorexpress.switch.program.budgets import MOST_CELLS

_LENGTH = struct.Struct("!Q")
#: Operations and queries in one request, and the bytes that it may have: less than a millisecond's work to read.
_PIECE = 128
_LARGEST_PIECE_BYTES = 2**19
_READ_BYTES = 2**20
_NOTICE_BYTES = 2**18
_NOTICES_BUFFER_BYTES = 2**21
_STOP_SECONDS = 5
#: How long the other process may take to answer before it is ended when the switch stops.
ANSWER_SECONDS = 30
#: The longest answer, or part of one, that is read.
_LARGEST_ANSWER_BYTES = 2**25


class LinkClosedError(NetworkError):
    """The process at the other end is gone."""


#: How answers begin: any number of parts, then an answer or the error that the request met.
_PART, _ANSWER, _ERROR = b"P", b"A", b"E"

Answer = TypeVar("Answer")


def _packed(message: object) -> bytes:
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


def _pieces(what: str, items: Sequence[Operation | Query]) -> list[bytes]:
    """Return requests for all items, in order; ProgramError if one of them is too long for any."""
    pieces = [_packed((what, (items[first : first + _PIECE],))) for first in range(0, len(items), _PIECE)]
    if any(len(piece) > _LARGEST_PIECE_BYTES for piece in pieces):
        pieces = [_packed((what, ([item],))) for item in items]
    longest = max(map(len, pieces), default=0)
    if longest > _LARGEST_PIECE_BYTES:
        raise ProgramError(f"one update takes {longest} bytes; accepted: at most {_LARGEST_PIECE_BYTES}")
    return pieces


class DataLink:
    """The controlling end: a `DataPath` that any thread may use."""

    def __init__(
        self,
        requests: socket.socket,
        notices: socket.socket,
        process: subprocess.Popen[bytes] | None = None,
        engine: str = PYTHON,
    ):
        #: What programs are compiled for.
        self.engine = engine
        self._requests = requests
        self._notices = notices
        self._process = process
        self._turn = threading.RLock()
        #: What makes better code of the program that packets pass, where that was compiled in a hurry.
        self._optimisation: Optimisation | None = None

    @property
    def pid(self) -> int | None:
        """The process at the other end; None when this end did not start it."""
        return self._process.pid if self._process is not None else None

    def load(self, document: bytes, operations: Sequence[Operation] = ()) -> None:
        """Replace the program and all of its state, and do the operations before the first packet passes.

        ProgramError, with nothing changed, if the program cannot run. Packets pass the old program until the new one
        is complete. They may pass it for a while as code that is not optimised; other code then takes its place.
        """
        compiled = compile_beside(document, self.engine)
        pieces = _pieces("set_up", [*compiled.entries, *operations])
        with self._turn:
            self._call("prepare", compiled.program)
            self._send_all(pieces)
            self._call("switch_over")
            replaced, self._optimisation = self._optimisation, None
            if compiled.ir:
                self._optimisation = Optimisation.join(document, self.engine, compiled, self._swap)
        if replaced is not None:
            replaced.leave(self._swap)

    def _swap(self, optimisation: Optimisation, program: bytes) -> None:
        """Have packets pass optimised code, unless the program was replaced meanwhile."""
        with self._turn, suppress(LinkClosedError):
            if optimisation is self._optimisation:
                self._call("swap", program)

    def wait_for_code(self) -> None:
        """Return when no better code of the program is being made."""
        with self._turn:
            optimisation = self._optimisation
        if optimisation is not None:
            optimisation.wait()

    def apply(self, operations: Sequence[Operation], *, atomic: bool = False) -> None:
        """Do all of them, in order and in slices between packets; if `atomic`, all between the same two packets."""
        pieces = _pieces("gather" if atomic else "apply", list(operations))
        with self._turn:
            self._send_all(pieces)
            if atomic:
                self._call("apply_gathered")

    def ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        """Return the answer to every query; the cells of one array are those of one instant."""
        answers: list[list[Any]] = []
        with self._turn:
            for first in range(0, len(queries), _PIECE):
                answers += self._ask(queries[first : first + _PIECE])
        return answers

    def _ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        answers: list[list[Any]] = [[] for _ in queries]

        def take(part: Any) -> None:
            for number, cell in reports.cells(part):
                if number >= len(answers) or len(answers[number]) >= MOST_CELLS:
                    raise reports.bad_report()
                answers[number].append(cell)

        self._exchange(_packed(("ask", (list(queries),))), reports.nothing, take)
        return answers

    def packet_out(self, frame: bytes) -> None:
        """Let a frame, header of the controller included, enter at the CPU port."""
        self._call("packet_out", frame)

    def set_rate(self, port: int, rate_bps: int) -> None:
        """Give the link of a port another rate."""
        self._call("set_rate", port, rate_bps)

    def statistics(self) -> Statistics:
        """Return the counters of every port."""
        return self._ask_for(reports.read_statistics, "statistics")

    def lost(self) -> dict[int, int]:
        """Return how many frames that arrived at each port were never taken."""
        return self._ask_for(reports.numbers_by_port, "lost")

    def start(self, settings: object) -> None:
        """Have the other side open its ports; the error it met, if it cannot."""
        self._call("start", settings)

    def stop(self) -> Statistics | None:
        """End the other process; return its last counters, None when it was gone already."""
        try:
            return self._ask_for(reports.read_statistics, "stop")
        except LinkClosedError:
            return None
        finally:
            self.close()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Kill the other process if the work inside waits for it longer than ANSWER_SECONDS."""
        timer = threading.Timer(ANSWER_SECONDS, self._kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Hang up, which ends the other process; wait for it."""
        self._hang_up()
        self._requests.close()
        self._notices.close()
        with self._turn:
            optimisation = self._optimisation
        if optimisation is not None:
            optimisation.leave(self._swap)
        if self._process is not None:
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _hang_up(self) -> None:
        for end in (self._requests, self._notices):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def notices(self) -> Iterator[Notice]:
        """Yield notices as they come; ends when the other process is gone, or sends anything else."""
        while True:
            try:
                message = self._notices.recv(_NOTICE_BYTES)
            except OSError:
                return
            if not message:
                return
            try:
                notice = reports.decode_notice(message)
            except reports.BadReportError:
                return
            yield notice

    def _call(self, what: str, *arguments: object) -> None:
        self._exchange(_packed((what, arguments)), reports.nothing)

    def _ask_for(self, read: Callable[[Any], Answer], what: str) -> Answer:
        return self._exchange(_packed((what, ())), read)

    def _send_all(self, requests: Sequence[bytes]) -> None:
        for request in requests:
            self._exchange(request, reports.nothing)

    def _exchange(
        self, request: bytes, read: Callable[[Any], Answer], take: Callable[[Any], None] | None = None
    ) -> Answer:
        """Send a request and return its answer as `read` makes it, or raise the error; `take` gets its parts."""
        try:
            with self._turn:
                self._requests.sendall(request)
                kind, value = self._next_reply()
                while kind == _PART and take is not None:
                    take(value)
                    kind, value = self._next_reply()
                if kind == _ANSWER:
                    return read(value)
                refusal = reports.read_error(value)
        except OSError:
            raise _gone() from None
        except reports.BadReportError as error:
            self._hang_up()
            raise LinkClosedError(str(error)) from None
        raise refusal

    def _next_reply(self) -> tuple[bytes, Any]:
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if not 0 < size <= _LARGEST_ANSWER_BYTES:
            raise reports.bad_report()
        content = self._read(size)
        return content[:1], reports.decode(content[1:])

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
            self._notices.send(reports.encode_notice(notice))
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

    def part(self, value: object) -> None:
        """Send part of an answer; only while no other part of it waits."""
        self._send(_PART, value)

    def answer(self, value: object) -> None:
        """Answer the request that was made last: with what `switch.reports` reads, or None."""
        self._send(_ANSWER, value)

    def refuse(self, error: Exception) -> None:
        """Answer the request that was made last with an error."""
        if not isinstance(error, TensorExpressError):
            error = NetworkError(f"the switch failed: {type(error).__name__}: {error}")
        self._send(_ERROR, reports.encode_error(error))

    def _send(self, kind: bytes, value: object) -> None:
        content = kind + reports.encode(value)
        self._outgoing += _LENGTH.pack(len(content)) + content
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


def start_process(inherited: Sequence[int] = (), engine: str = PYTHON) -> DataLink:
    """Start the forwarding process, which inherits these descriptors, and return the link to it.

    It ends when this process does.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    notices_here, notices_there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    notices_there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NOTICES_BUFFER_BYTES)
    descriptors = (there.fileno(), notices_there.fileno())
    arguments = (os.getpid(), *descriptors)
    with there, notices_there:
        process = tied.start(
            [sys.executable, "-P", "-c", f"from tensorexpress.switch.loop import main; main{arguments}"],
            pass_fds=(*descriptors, *inherited),
            stdin=subprocess.DEVNULL,
            # Threads of numpy's libraries would do nothing, and keep capabilities that the process gives up.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            # Ctrl-C is for the controlling process, which then ends this one in good order.
            process_group=0,
        )
    return DataLink(here, notices_here, process, engine)
