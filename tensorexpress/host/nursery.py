"""Where hosts come from: a process that has imported what all of them need, and forks one after another.

A host that starts Python, imports everything and loads compiled code anew takes half a second of a processor; a fork
takes milliseconds. Whoever runs a plan has a `Nursery`, and tells it over a socket:

    to it       a line of JSON: the namespace of a host, and under which numbers it finds the descriptors that are
                beside it: standard input and output, its wire, if any, and what it shares with scripts
    from it     a line of JSON: {"pid": N} beside a pidfd when a host was forked, {"ended": N, "status": S} later on

The nursery has one thread, or forking would not be safe, and it ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from tensorexpress import tied
from tensorexpress.errors import NetworkError

#: The descriptor under which a host finds its wire, and the first of those that it shares with scripts.
WIRE_DESCRIPTOR = 3
SCRIPT_DESCRIPTOR = 4

#: The most descriptors that Linux hands over at once.
_MOST_AT_ONCE = 253

_LONGEST_MESSAGE = 4096
_NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_MOST_DESCRIPTORS = 2**20


class HostProcess:
    """A host that was forked, and the pipes to it."""

    def __init__(self, pid: int, pidfd: int, stdin: int, stdout: int, ended: Future[int]):
        self.pid = pid
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        self._pidfd, self._ended = pidfd, ended

    def kill(self) -> None:
        """End it, if it has not ended by itself: its pid may be somebody else's by then, its pidfd is not."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> int:
        """Return its status when it has ended: minus the signal if it was one, as `subprocess` does."""
        return self._ended.result()

    def close(self) -> None:
        """Close what leads to it."""
        for pipe in (self.stdin, self.stdout):
            with suppress(OSError):  # what was still to be written has no reader
                pipe.close()
        os.close(self._pidfd)


class Nursery:
    """The nursery of whoever runs a plan."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = (os.getpid(), theirs.fileno())
        with theirs:
            self._process = tied.start(
                [sys.executable, "-P", "-c", f"from tensorexpress.host.nursery import main; main{arguments}"],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # Ctrl-C is for this process, which then ends the others.
                process_group=0,
                # Linear algebra would have threads.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        self._ended: dict[int, Future[int]] = {}
        self._forked: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._listener.start()

    def fork(self, namespace: str | None = None, wire: int | None = None, scripts: Sequence[int] = ()) -> HostProcess:
        """Return a new host, in a network namespace or at the end of a wire; `scripts` is what it shares with them."""
        their_input, stdin = os.pipe()
        stdout, their_output = os.pipe()
        theirs = [their_input, their_output]
        wires = [] if wire is None else [(WIRE_DESCRIPTOR, wire)]
        places, handed = zip(*enumerate(theirs), *wires, *enumerate(scripts, SCRIPT_DESCRIPTOR), strict=True)
        request = json.dumps([namespace, places]).encode()
        try:
            socket.send_fds(self._socket, [request], handed)
            forked = self._forked.get()
        except OSError:
            forked = None
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        if forked is None:
            os.close(stdin)
            os.close(stdout)
            raise NetworkError("the process that starts hosts has ended; is there too little memory?")
        pid, pidfd = forked
        return HostProcess(pid, pidfd, stdin, stdout, self._ended[pid])

    def _listen(self) -> None:
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._socket, _LONGEST_MESSAGE, 1)
            if not message:
                break
            said = json.loads(message)
            if "pid" in said:
                self._ended[said["pid"]] = Future()
                self._forked.put((said["pid"], descriptors[0]))
            else:
                self._ended[said["ended"]].set_result(said["status"])
        for unknown in self._ended.values():
            if not unknown.done():
                unknown.set_result(-signal.SIGKILL)
        self._forked.put(None)

    def close(self) -> None:
        """End the nursery; hosts end when nobody holds their input any more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._process.wait()
        self._listener.join()
        self._socket.close()


# In the nursery.


def main(parent: int, descriptor: int) -> None:
    """Fork hosts until nobody asks for any more."""
    tied.end_with_parent(parent)
    from tensorexpress.host import process
    from tensorexpress.host.segments import machine_code

    if machine_code() is not None:
        import tensorexpress.host.native_endpoint  # noqa: F401
    # What is there now stays shared with all hosts.
    gc.freeze()
    requests = socket.socket(fileno=descriptor)
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not requests:
                    waiting.unregister(key.fileobj)
                    _bury(requests, key.data, key.fd)
                    continue
                message, descriptors, _, _ = socket.recv_fds(requests, _LONGEST_MESSAGE, _MOST_AT_ONCE)
                if not message:
                    return
                pid = os.fork()
                if pid == 0:
                    namespace, places = json.loads(message)
                    _become_host(namespace, places, descriptors, process.main)
                for each in descriptors:
                    os.close(each)
                pidfd = os.pidfd_open(pid)
                waiting.register(pidfd, selectors.EVENT_READ, pid)
                socket.send_fds(requests, [json.dumps({"pid": pid}).encode()], [pidfd])


def _bury(requests: socket.socket, pid: int, pidfd: int) -> None:
    """Tell how a host has ended."""
    _, status = os.waitpid(pid, 0)
    os.close(pidfd)
    requests.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())


def _become_host(
    namespace: str | None, places: Sequence[int], descriptors: Sequence[int], run: Callable[[], None]
) -> NoReturn:
    """Be a host in this process, and end with it; nothing of the nursery stays open."""
    status: object = 1
    try:
        os.setpgid(0, 0)
        _move(dict(zip(descriptors, places, strict=True)))
        if namespace is None or _enter(namespace):
            run()
            status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status if isinstance(status, int) else 1)


def _move(places: Mapping[int, int]) -> None:
    """Have descriptors under their numbers, beside standard error, and nothing else open."""
    beyond = max(2, *places.values(), *places) + 1
    # None may be overwritten before it was moved itself.
    for number, (descriptor, _) in enumerate(places.items()):
        os.dup2(descriptor, beyond + number)
    for number, place in enumerate(places.values()):
        os.dup2(beyond + number, place)
    kept = [-1, *sorted({2, *places.values()}), _MOST_DESCRIPTORS]
    for below, above in pairwise(kept):
        if below + 1 < above:  # an empty range that starts at 0 would be taken for all
            os.closerange(below + 1, above)


def _enter(namespace: str) -> bool:
    """Have the network of a namespace from now on; say why not, as hosts say what went wrong, and return False."""
    try:
        with open(_NAMESPACES / namespace) as there:
            if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        why = f"cannot enter network namespace {namespace}: {error.strerror}; was it removed meanwhile?"
        os.write(1, json.dumps({"error": why}).encode() + b"\n")
        return False
    return True
