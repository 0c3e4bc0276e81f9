"""Tasks in processes of this machine, as many at a time as there are cores.

Processes rather than threads: Ctrl-C then ends a simulation in the middle, the parts of it that are not compiled run
side by side too, and so does the SimPy engine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType

from tensorexpress.errors import SimulationError
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import scenario_from
from tensorexpress.sim.run import simulate
from tensorexpress.sim.tasks import Outcome, SimulationTask, outcome_of
from tensorexpress.tied import end_with_parent


class LocalProcesses:
    """Executes tasks in processes that it starts when they are needed, and that end with it."""

    def __init__(self, most: int | None = None):
        self._most = most or os.cpu_count() or 1
        self._children: dict[Connection, BaseProcess] = {}
        self._compiled = False

    def __enter__(self) -> LocalProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.join()
        self._children.clear()

    def outcomes(self, tasks: Sequence[SimulationTask]) -> Iterator[tuple[SimulationTask, Outcome]]:
        """Yield the tasks as they are finished, in any order."""
        with _interrupts_held():
            for _ in range(min(self._most, len(tasks)) - len(self._children)):
                self._start()
        if not self._compiled and any(task.engine != "simpy" for task in tasks):
            _compile_once()
            self._compiled = True
        return _dispatch(tasks, self._children)

    def _start(self) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        child = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
        child.start()
        self._children[ours] = child
        theirs.close()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back what ends this process while others start; they inherit it and never see one: ending them is ours."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # It would start with the first process, and lift the hold.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _compile_once() -> None:
    """Fill the cache of compiled code, so that not every process compiles for itself; quick if it is filled."""
    content = {"iterations": 1, "warmup": 0, "cluster": {"mtu": 65535}, "job": {"workers": 1, "servers": 1}}
    simulate(make_plan(scenario_from(content, "warm-up"), POLICIES["fifo"]), "fast")


def _dispatch(
    tasks: Sequence[SimulationTask], connections: Iterable[Connection]
) -> Iterator[tuple[SimulationTask, Outcome]]:
    waiting = iter(tasks)
    running: dict[Connection, SimulationTask] = {}

    def give_next(connection: Connection) -> None:
        task = next(waiting, None)
        if task is not None:
            running[connection] = task
            # If the process has died, that shows when its result is read.
            with suppress(OSError):
                connection.send(task)

    for connection in connections:
        give_next(connection)
    while running:
        ready = wait(list(running))
        for connection in [one for one in running if one in ready]:
            task = running.pop(connection)
            outcome = _outcome(task, connection)
            give_next(connection)
            yield task, outcome


def _outcome(task: SimulationTask, connection: Connection) -> Outcome:
    try:
        outcome: Outcome = connection.recv()
    except (EOFError, OSError):
        raise SimulationError(
            f"{task.label}: the process that simulated {task.policy.name} died, most likely for want of memory; "
            "try a smaller scenario or fewer processes"
        ) from None
    return outcome


def _serve(connection: Connection, parent: int) -> None:
    """Simulate what comes until the other side hangs up or ends; the body of a process."""
    end_with_parent(parent)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        with suppress(BrokenPipeError):
            connection.send(outcome_of(task))
