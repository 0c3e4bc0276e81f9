"""All processes of asynchronous training: started together, watched, and ended together.

Who dies is told in a line. Without a scheduler updates commit as they come; what a helper had is offered again; a
replica takes over from its server. Only when nobody is left to commit does training end with an error.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from tensorexpress.commits.modes import COMMIT_MODES, CommitMode
from tensorexpress.commits.trace import CommitTrace
from tensorexpress.errors import NetworkError, ScenarioError
from tensorexpress.learning import PROBLEMS
from tensorexpress.roles.task import RoleTask, tasks_for
from tensorexpress.scenario import Scenario
from tensorexpress.tied import start

#: How long processes have to come up, and to begin together.
_STARTS_WITHIN_S = 60
_BEGINS_AFTER_S = 0.2

#: Nothing is committed for so many times what a round of all workers takes: then nobody is there any more.
_ROUNDS_OF_SILENCE = 20

#: Bytes that an update may have: all of them really pass.
_MOST_BYTES = 50_000_000


@dataclass(frozen=True)
class RoleProcess:
    """A role, and the pipes to it."""

    pid: int
    stdin: BinaryIO
    stdout: BinaryIO
    #: The process that forked it, and buries it in the end: as long as it is there, nobody else has the pid.
    first: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it, if it has not ended by itself."""
        if self.first.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def write(self, line: str) -> None:
        """Write a line to it, if it is there: its end is told elsewhere."""
        with suppress(BrokenPipeError):
            self.stdin.write(line.encode() + b"\n")
            self.stdin.flush()


@dataclass
class CohortRun:
    """What a run has told so far, and in the end."""

    mode: str
    notes: list[str] = field(default_factory=list)
    rows: list[tuple[int, int, int, float]] = field(default_factory=list)
    dropped: int = 0
    lost: int = 0
    sums: int = 0
    summed: int = 0
    divergence: float = 0.0
    divergence_bound: float = 0.0
    server_in_bytes: int = 0
    server_out_bytes: int = 0
    version: int = 0
    reached_ps: int | None = None
    #: Process of every role, such as "server" or "worker h0", while they live.
    processes: dict[str, RoleProcess] = field(default_factory=dict)

    def take(self, header: Mapping[str, Any]) -> bool:
        """Take what a process tells; return whether training is over."""
        if "commit" in header:
            seconds, hosts, delays, loss = header["commit"]
            time_ps = round(seconds * 1e12)
            self.rows += [(time_ps, host, delay, loss) for host, delay in zip(hosts, delays, strict=True)]
            if len(hosts) > 1 and self.mode != "sync":
                self.sums += 1
                self.summed += len(hosts)
            self.divergence = max(self.divergence, header["divergence"][0])
            self.divergence_bound = header["divergence"][1] or self.divergence_bound
            self.server_in_bytes, self.server_out_bytes = header["bytes"]
            self.version = int(header["version"])
            if header["reached"] and self.reached_ps is None:
                self.reached_ps = time_ps
            return bool(header["over"])
        if "takes_over" in header:
            self.lost += max(0, self.version - int(header["takes_over"]))
            self.notes.append(
                f"the server is gone: its replica goes on from version {header['takes_over']}, and {self.lost} "
                f"committed updates are lost, norms of {self.divergence:.3g} at the most of {self.divergence_bound:.3g}"
            )
            self.version = int(header["takes_over"])
        elif "note" in header:
            self.notes.append(header["note"])
        self.dropped += int(header.get("dropped", 0))
        return False

    def trace(self, scenario: Scenario) -> CommitTrace:
        """Return what happened, as a simulation would."""
        columns = list(zip(*self.rows, strict=True)) or [(), (), (), ()]
        problem = PROBLEMS[scenario.commits.problem].make()
        return CommitTrace(
            mode=self.mode,
            time_ps=np.array(columns[0], dtype=np.int64),
            host=np.array(columns[1], dtype=np.int64),
            delay=np.array(columns[2], dtype=np.int64),
            loss=np.array(columns[3], dtype=np.float64),
            start_loss=problem.loss(problem.start),
            target_loss=scenario.commits.target_loss,
            reached_ps=self.reached_ps,
            dropped=self.dropped,
            lost=self.lost,
            sums=self.sums,
            summed=self.summed,
            server_in_bytes=self.server_in_bytes,
            server_out_bytes=self.server_out_bytes,
            divergence=self.divergence,
            divergence_bound=self.divergence_bound,
        )


def run_commits(
    scenario: Scenario,
    mode: CommitMode | str,
    seen: Callable[[CohortRun], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> CohortRun:
    """Train with a process for every role; `seen` is called after every commit, `say` with what is worth a line."""
    chosen = COMMIT_MODES[mode] if isinstance(mode, str) else mode
    _check(scenario)
    with tempfile.TemporaryDirectory(prefix="tensorexpress-") as folder:
        tasks = tasks_for(scenario, chosen, folder)
        run = CohortRun(chosen.name)
        with _started(tasks, scenario, run) as told:
            _watch(run, told, _silence_s(tasks[-1]), seen, say)
    return run


def _check(scenario: Scenario) -> None:
    if not scenario.is_async:
        raise ScenarioError(f"{scenario.name}: job.architecture: found no async; accepted: a job of architecture async")
    size_bytes = sum(scenario.jobs[0].workload.tensor_bytes)
    for path, found, accepted in (
        (
            "job.model",
            size_bytes > _MOST_BYTES and f"{size_bytes} bytes an update",
            f"up to {_MOST_BYTES}, which really pass",
        ),
        ("cluster.topology", len(scenario.cluster.switches) != 1 and scenario.cluster.name, "one switch, as in a star"),
        ("background", scenario.background and "other traffic", "none: nobody sends it in runs of async"),
        ("commits.server_fails", scenario.commits.server_fails_ps and "a time", "0: kill the process instead"),
        ("change", any(c.by_iteration for c in scenario.changes) and "at_iteration", "changes at a time"),
    ):
        if found:
            raise ScenarioError(f"{scenario.name}: {path}: found {found}; accepted: {accepted}")


def _silence_s(task: RoleTask) -> float:
    rates = [rate for steps in (task.send_steps, task.receive_steps) for own in steps.values() for _, rate in own]
    slowest = max(factor for _, factor in task.slower_steps)
    transfers_s = 2 * len(task.workers) * task.update_bytes * 8 / min(rates)
    return 10 + _ROUNDS_OF_SILENCE * (transfers_s + slowest * (task.compute_s + task.overhead_s) + task.pause_s)


Told = queue.SimpleQueue[tuple[str, dict[str, Any] | None]]


@contextmanager
def _started(tasks: list[RoleTask], scenario: Scenario, run: CohortRun) -> Iterator[Told]:
    """Start all processes, let them begin together, and end them all, whatever happens."""
    told: Told = queue.SimpleQueue()
    with _forked(len(tasks)) as processes:
        for task, process in zip(tasks, processes, strict=True):
            name = (
                f"{task.role} {scenario.cluster.hosts[task.host]}" if task.role in ("helper", "worker") else task.role
            )
            run.processes[name] = process
            process.write(json.dumps(task.to_json()))
            threading.Thread(target=_listen, args=(name, process, told), daemon=True).start()
        waiting = set(run.processes)
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while waiting:
            name, header = _next(told, deadline - time.monotonic(), "came up")
            if header is None:
                raise NetworkError(f"{name} ended before the start; its own message is above")
            waiting.discard(name)
        begin = time.monotonic() + _BEGINS_AFTER_S
        for process in run.processes.values():
            process.write(repr(begin))
        yield told


@contextmanager
def _forked(number: int) -> Iterator[list[RoleProcess]]:
    """Start so many processes, which wait for their tasks, and end them all."""
    to_roles, from_roles = [os.pipe() for _ in range(number)], [os.pipe() for _ in range(number)]
    theirs = [(to_role[0], from_role[1]) for to_role, from_role in zip(to_roles, from_roles, strict=True)]
    pipes = [
        (os.fdopen(to_role[1], "wb"), os.fdopen(from_role[0], "rb"))
        for to_role, from_role in zip(to_roles, from_roles, strict=True)
    ]
    words = [sys.executable, "-P", "-m", "tensorexpress.roles.process", str(os.getpid())]
    first = start(
        [*words, *(f"{read}:{write}" for read, write in theirs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[end for pair in theirs for end in pair],
    )
    processes: list[RoleProcess] = []
    try:
        for end in (end for pair in theirs for end in pair):
            os.close(end)
        assert first.stdout is not None
        line = first.stdout.readline()
        if not line:
            raise NetworkError("roles ended before the start; their own message is above")
        pids = json.loads(line)["pids"]
        processes += [RoleProcess(pid, *pair, first) for pid, pair in zip(pids, pipes, strict=True)]
        yield processes
    finally:
        for process in processes:
            process.kill()
        first.communicate()  # all have ended when it has
        for pipe in (pipe for pair in pipes for pipe in pair):
            with suppress(OSError):  # what was still to be written has no reader
                pipe.close()


def _listen(name: str, process: RoleProcess, told: Told) -> None:
    try:
        for line in process.stdout:
            told.put((name, json.loads(line)))
    except ValueError:
        pass  # closed, or cut off in the middle of a line
    told.put((name, None))


def _next(told: Told, timeout_s: float, what: str) -> tuple[str, dict[str, Any] | None]:
    try:
        return told.get(timeout=max(0.0, timeout_s))
    except queue.Empty:
        raise NetworkError(f"nothing {what} for {timeout_s:.0f} s; is this machine overloaded? Try again") from None


def _watch(
    run: CohortRun,
    told: Told,
    silence_s: float,
    seen: Callable[[CohortRun], None] | None,
    say: Callable[[str], None] | None,
) -> None:
    """Listen to all until training is over, or can never be."""
    alive = set(run.processes)
    deadline = time.monotonic() + silence_s
    while True:
        name, header = _next(told, deadline - time.monotonic(), f"was committed in {run.mode}")
        notes = len(run.notes)
        if header is None:
            alive.discard(name)
            _note_end(run, name, alive)
        else:
            over = run.take(header)
            if "commit" in header:
                deadline = time.monotonic() + silence_s
                if seen is not None:
                    seen(run)
            if over:
                return
        for note in run.notes[notes:]:
            if say is not None:
                say(f"{run.mode}: {note}")


def _note_end(run: CohortRun, name: str, alive: set[str]) -> None:
    """Say what the end of a process means; refuse to go on without anybody who commits, or computes."""
    role = name.split()[0]
    if role in ("server", "replica") and not alive & {"server", "replica"}:
        raise NetworkError(
            f"{run.mode}: {name} ended and nobody follows it: all {run.version} committed updates are lost"
        )
    if role == "worker":
        if not any(other.startswith("worker") for other in alive):
            raise NetworkError(f"{run.mode}: all workers ended after {run.version} committed updates")
        run.notes.append(f"{name} is gone: the others go on")
    elif role == "helper":
        run.notes.append(f"{name} is gone: what it had is offered again, and nobody sums in its place")
