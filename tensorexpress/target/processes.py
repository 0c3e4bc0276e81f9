"""The processes of a run: one for every host that takes part, beside those of scripts that make gradients."""

from __future__ import annotations

import io
import json
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from tensorexpress.errors import NetworkError
from tensorexpress.host.background import takes_part
from tensorexpress.host.nursery import WIRE_DESCRIPTOR, HostProcess, Nursery
from tensorexpress.host.process import Task, Wire, is_needed
from tensorexpress.plan import Plan
from tensorexpress.target import HostAccess, Network, WireAccess
from tensorexpress.target.events import ProcessEvent
from tensorexpress.target.scripts import RunningScripts
from tensorexpress.units import PS_PER_SECOND

#: How long all processes together may take to start.
_READY_S = 60.0


class _Host:
    """A host's process. A thread reads what it says, so that no process waits for another to be heard."""

    def __init__(self, called: str, task: Task, process: HostProcess, events: queue.SimpleQueue[ProcessEvent]):
        self.called = called
        self.process = process
        self._events = events
        self._reader = threading.Thread(target=self._read, name=f"reader of {called}", daemon=True)
        self._reader.start()
        self.say(task.to_json())

    def say(self, message: object) -> None:
        """Write one line; that a process is gone is for the reader to notice."""
        with suppress(OSError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def _read(self) -> None:
        for line in self.process.stdout:
            message = json.loads(line)
            content = self.process.stdout.read(message["result"]) if "result" in message else b""
            self._events.put(ProcessEvent(self.called, message, content))
        self._events.put(ProcessEvent(self.called, {"ended": self.process.wait()}))

    def end(self) -> None:
        """End the process, if it has not ended by itself."""
        self.process.kill()
        self._reader.join()
        self.process.close()


class RunningHosts:
    """The processes of all hosts that take part in a run, and of scripts that make their gradients."""

    def __init__(self, scripts: RunningScripts | None) -> None:
        self.events: queue.SimpleQueue[ProcessEvent] = queue.SimpleQueue() if scripts is None else scripts.events
        self.scripts = scripts
        #: By name of the host.
        self.processes: dict[str, _Host] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Return the pid of every host by its name."""
        return {name: each.process.pid for name, each in self.processes.items()}

    def wait_until_ready(self) -> None:
        """Wait until all have opened the network."""
        missing = {each.called for each in self.processes.values()}
        while missing or (self.scripts is not None and not self.scripts.have_joined):
            try:
                # Scripts may load data for as long as they like.
                event = self.events.get(timeout=_READY_S if missing else None)
            except queue.Empty:
                raise NetworkError(
                    f"{', '.join(sorted(missing))} did not start within {_READY_S:g} s; is the machine overloaded?"
                ) from None
            if self.scripts is not None and self.scripts.take(event):
                continue
            if "ready" not in event.message:
                raise event.failure()
            missing.remove(event.host)

    def say(self, message: object) -> None:
        """Tell all the same."""
        for each in self.processes.values():
            each.say(message)

    def collect(self, progress: Callable[[], None]) -> list[dict[str, NDArray[np.int64]]]:
        """Wait for what every host has seen; the first one that fails ends the run."""
        results: dict[str, bytes] = {}
        iterations, done = 0, set()
        while len(results) < len(self.processes) or (self.scripts is not None and not self.scripts.have_ended):
            event = self.events.get()
            if self.scripts is not None and self.scripts.take(event):
                continue
            if "result" in event.message:
                results[event.host] = event.content
            elif "done" in event.message:
                done.add(event.host)
                if len(done) == len(self.processes):
                    self.say("over")
            elif "iteration" in event.message:
                for _ in range(iterations, event.message["iteration"]):
                    progress()
                iterations = max(iterations, event.message["iteration"])
            elif event.host not in results:
                raise event.failure()
        return [_arrays(content) for content in results.values()]


def _arrays(content: bytes) -> dict[str, NDArray[np.int64]]:
    with np.load(io.BytesIO(content)) as archive:
        return dict(archive)


@contextmanager
def running_hosts(
    plan: Plan, network: Network, nursery: Nursery, silence_s: float, scripts: RunningScripts | None = None
) -> Iterator[RunningHosts]:
    """Start a process for every host that takes part; none outlives the block."""
    names = plan.scenario.cluster.hosts
    session, silence_ps, epoch = secrets.randbits(32), int(silence_s * PS_PER_SECOND), _epoch()
    addresses = tuple(network.hosts[name].address for name in names)
    hosts = RunningHosts(scripts)
    try:
        for index, name in enumerate(names):
            if is_needed(plan, index):
                access = network.hosts[name]
                shared, handed = (None, ()) if scripts is None else scripts.shared_with(index)
                task = Task(plan, index, addresses, _wire(access), session, silence_ps, epoch, shared)
                if isinstance(access, WireAccess):
                    process = nursery.fork(wire=access.descriptor, scripts=handed)
                else:
                    process = nursery.fork(namespace=access.namespace, scripts=handed)
                hosts.processes[name] = _Host(_called(plan, index), task, process, hosts.events)
        if scripts is not None:
            scripts.let_go()
        yield hosts
    finally:
        for each in hosts.processes.values():
            each.end()


def _epoch() -> int:
    """Return a number that is greater than those of all earlier runs, as RFC 1982 compares: sixteenths of a second.

    Two runs of a job are further apart, because it takes longer to start one.
    """
    return time.time_ns() * 16 // 10**9 % 2**32


def _called(plan: Plan, host: int) -> str:
    """Return what a host is called in messages: its name and what it does.

    >>> from tensorexpress.plan import make_plan
    >>> from tensorexpress.policy import POLICIES
    >>> from tensorexpress.scenario import read_scenario
    >>> _called(make_plan(read_scenario(), POLICIES["fifo"]), 8)
    'h8 (server of job0)'
    """
    roles = []
    for job in plan.scenario.jobs:
        roles += [f"worker {index} of {job.name}" for index, worker in enumerate(job.workers) if worker == host]
        roles += [f"server of {job.name}"] if host in job.servers else []
    roles += ["background traffic"] if takes_part(plan.scenario, host) else []
    return f"{plan.scenario.cluster.hosts[host]} ({', '.join(roles)})"


def _wire(access: HostAccess) -> Wire | None:
    if isinstance(access, WireAccess):
        return Wire(WIRE_DESCRIPTOR, access.mac.hex(), access.gateway_mac.hex(), access.stamped)
    return None
