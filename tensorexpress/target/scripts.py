"""Training scripts of a run: a process for each worker, which makes real gradients.

A script shares memory and a socket with the host that sends for it (script_memory.py), and has a second socket to this
process:

    to it       a line of JSON: which worker it is, of how many, the layers of the plan, and how many steps there are
    from it     lines of JSON: {"joined": DIGEST} when its model is ready to be trained, {"losses": [...],
                "waited_for_all": true, false or null} for every step, {"done": true} when it has ended as it should,
                {"error": TEXT} when it has not, {"not_alone": TEXT} when it cannot stand for all workers alone
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tensorexpress import tied
from tensorexpress.errors import InputError
from tensorexpress.host.nursery import SCRIPT_DESCRIPTOR
from tensorexpress.host.process import Scripts
from tensorexpress.host.script import layer_elements
from tensorexpress.plan import Plan
from tensorexpress.script_memory import ScriptMemory, new_memory
from tensorexpress.target.events import ProcessEvent
from tensorexpress.target.memory_sums import sums_in_memory

_JOB, _STANDARD_ERROR = 0, 2


@dataclass(frozen=True)
class TrainingScript:
    """A script to train with: as for Python, a file and what it is called with."""

    path: str
    arguments: tuple[str, ...] = ()
    #: Whether every sum is compared with that of all workers' gradients.
    checks: bool = False


def check_script(plan: Plan) -> None:
    """Refuse a plan that scripts cannot train."""
    scenario = plan.scenario
    (job, *others) = scenario.jobs
    workload = job.workload
    for wrong, message in (
        (others, f"{len(scenario.jobs)} jobs; accepted with a script: one"),
        (workload.dtype != "fp32", f"gradients of {workload.dtype}; accepted with a script: fp32"),
        (workload.compression != 1, f"a compression of {workload.compression:g}; accepted with a script: none"),
        (
            any(layer.table is not None for layer in workload.layers),
            "sparse tables; accepted with a script: layers without; make the CSV with `tensorexpress profile`",
        ),
    ):
        if wrong:
            raise InputError(f"{scenario.name} has {message}")


class _ScriptProcess:
    """The script of one worker. A thread reads what it says."""

    def __init__(self, worker: int, memory: int, process: subprocess.Popen[bytes], ours: socket.socket):
        """Know a process; without memory (-1) its script is alone."""
        self.worker, self.memory, self.process = worker, memory, process
        self._socket = ours
        self._reader: threading.Thread | None = None

    def listen(self, called: str, task: object, events: queue.SimpleQueue[ProcessEvent]) -> None:
        """Give it its task, and pass on what it says."""

        def read() -> None:
            with suppress(OSError), self._socket.makefile("rb") as lines:
                for line in lines:
                    events.put(ProcessEvent(called, json.loads(line), script=self.worker))
            events.put(ProcessEvent(called, {"ended": _status(self.process.pid)}, script=self.worker))

        self._reader = threading.Thread(target=read, name=f"reader of {called}", daemon=True)
        self._reader.start()
        with suppress(OSError):  # that it is gone is for the reader to notice
            self._socket.sendall(json.dumps(task).encode() + b"\n")

    def end(self) -> None:
        """End it, and whatever it has started, if it has not ended by itself."""
        # Nobody has waited for it yet, so that its number is nobody else's.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self._reader is not None:
            self._reader.join()
        self.process.wait()
        self._socket.close()


def _start(script: TrainingScript, worker: int, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a script; descriptors lead to this process, to its memory and to its host, the latter two if not -1."""
    arguments = (os.getpid(), *descriptors)
    code = f"from tensorexpress.torch.launch import main; main{arguments}"
    # What all say alike is said once, and not among the results.
    said = None if worker == 0 else subprocess.DEVNULL
    return tied.start(
        [sys.executable, "-P", "-c", code, script.path, *script.arguments],
        pass_fds=tuple(descriptor for descriptor in descriptors if descriptor >= 0),
        stdin=subprocess.DEVNULL,
        stdout=_STANDARD_ERROR if said is None else said,
        stderr=said,
        # Ctrl-C is for this process, which then ends the others.
        process_group=0,
        # Workers share the cores, and sums are the same in every run only with as many threads.
        env={"OMP_NUM_THREADS": "1", **os.environ},
    )


def _status(pid: int) -> int:
    """Return how a child ended, as `subprocess` has it, when it has; whoever waits for it can still do so."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


class RunningScripts:
    """The scripts of all workers of a plan's job."""

    def __init__(self, plan: Plan, script: TrainingScript, in_memory: bool = False):
        """Take note of what to start; `in_memory`: its gradients are summed by this process, and not by hosts."""
        self.events: queue.SimpleQueue[ProcessEvent] = queue.SimpleQueue()
        self._plan, self._script, self._in_memory = plan, script, in_memory
        self._elements = layer_elements(plan.jobs[_JOB])
        self._processes: list[_ScriptProcess] = []
        #: By worker: the end of its channel that is for its host.
        self._channels: list[socket.socket] = []
        self._digests: dict[int, str] = {}
        self._losses: dict[int, list[list[float]]] = {}
        self._waited_for_all: list[bool] = []
        self._done: set[int] = set()
        #: For what scripts tell each other outside of the network: where they find each other.
        self._directory = TemporaryDirectory(prefix="tensorexpress-")

    # Processes

    def start(self) -> None:
        """Start a process for every worker."""
        job, rounds = self._plan.jobs[_JOB], self._plan.scenario.rounds
        layers = [layer.name for layer in job.job.workload.layers]
        in_switches = [] if self._in_memory else sorted({piece.tensor for piece in job.summed})
        workers = len(job.job.workers)
        for worker in range(workers):
            memory = new_memory(self._elements, rounds)
            for_host, channel = socket.socketpair()
            ours, report = socket.socketpair()
            with channel, report:
                process = _start(self._script, worker, (report.fileno(), memory, channel.fileno()))
            self._channels.append(for_host)
            self._processes.append(_ScriptProcess(worker, memory, process, ours))
            task = {
                "worker": worker,
                "workers": workers,
                "steps": rounds,
                "layers": layers,
                "elements": self._elements,
                "in_switches": in_switches,
                "scenario": self._plan.scenario.name,
                "store": str(Path(self._directory.name, "store")),
            }
            self._processes[-1].listen(self._called(worker), task, self.events)

    def _called(self, worker: int) -> str:
        return f"{self._script.path} (worker {worker})"

    def shared_with(self, host: int) -> tuple[Scripts, tuple[int, ...]]:
        """Return what a host shares with scripts, as it will see it, and the descriptors to hand over."""
        own = [worker for worker, place in enumerate(self._plan.jobs[_JOB].job.workers) if place == host]
        known = range(len(self._processes)) if self._script.checks else own
        handed = [self._processes[worker].memory for worker in known]
        handed += [self._channels[worker].fileno() for worker in own]
        places = range(SCRIPT_DESCRIPTOR, SCRIPT_DESCRIPTOR + len(handed))
        memories = dict(zip(known, places, strict=False))
        channels = dict(zip(own, places[len(known) :], strict=True))
        return Scripts(memories, channels, self._script.checks), tuple(handed)

    @contextmanager
    def summed_in_memory(self) -> Iterator[None]:
        """Sum gradients of all scripts in this process, from when all are ready."""
        rounds = self._plan.scenario.rounds
        memories = [ScriptMemory(each.memory, self._elements, rounds) for each in self._processes]
        with sums_in_memory(memories, self._channels):
            yield

    def let_go(self) -> None:
        """Close what hosts have by now: who reads from them notices when they end."""
        for channel in self._channels:
            channel.close()
        for each in self._processes:
            if each.memory >= 0:
                os.close(each.memory)
                each.memory = -1

    def end(self) -> None:
        """End all scripts."""
        self.let_go()
        for each in self._processes:
            each.end()
        self._directory.cleanup()

    # What they say

    def take(self, event: ProcessEvent) -> bool:
        """Take what a script said; return False for anything else, and for failures."""
        if event.script < 0:
            return False
        if "joined" in event.message:
            self._digests[event.script] = event.message["joined"]
            self._check_equal()
        elif "losses" in event.message:
            self._losses.setdefault(event.script, []).append(event.message["losses"])
            if event.message["waited_for_all"] is not None:
                self._waited_for_all.append(event.message["waited_for_all"])
        elif "done" in event.message or "lost" in event.message:
            # One that has lost its host has nothing to tell that the end of the host does not.
            self._done.add(event.script)
        elif event.message.get("ended") == 0 and event.script not in self._done:
            raise InputError(
                f"{event.host} ended without training; accepted: a script that calls tensorexpress.torch.join() and "
                "then distribute(model, optimizer)"
            )
        else:
            return event.script in self._done and "ended" in event.message
        return True

    def take_or_fail(self, event: ProcessEvent) -> None:
        """Take a message of a script; raise its failure if it is one."""
        if not self.take(event):
            raise event.failure()

    def _check_equal(self) -> None:
        first = min(self._digests)
        for worker, digest in sorted(self._digests.items()):
            if digest != self._digests[first]:
                raise InputError(
                    f"{self._called(worker)} starts with other parameters than worker {first}; accepted: the same, as "
                    "with torch.manual_seed(...) before the model is made"
                )

    @property
    def have_joined(self) -> bool:
        """Whether all are ready to be trained."""
        return len(self._digests) == len(self._processes)

    @property
    def have_ended(self) -> bool:
        """Whether all have ended as they should."""
        return len(self._done) == len(self._processes)

    @property
    def losses(self) -> tuple[float, ...]:
        """The mean loss of every step, over all workers and all backward passes."""
        steps = zip(*self._losses.values(), strict=True)
        return tuple(mean_loss([loss for own in step for loss in own]) for step in steps)

    @property
    def wait_for_all(self) -> bool:
        """Whether most forward passes began with all sums there, as the first use of a parameter alone needs not."""
        return 2 * sum(self._waited_for_all) > len(self._waited_for_all)


def mean_loss(losses: Sequence[float]) -> float:
    """Return the mean of losses, whatever their order; nan where there is none."""
    return math.fsum(losses) / len(losses) if losses else math.nan


@dataclass(frozen=True)
class Reference:
    """The losses that a run should have."""

    losses: tuple[float, ...]
    #: Why they are not those of one process, but of one for each worker, with sums in memory; empty if they are.
    because: str = ""


def run_reference(plan: Plan, script: TrainingScript) -> Reference:
    """Return the losses that a script has without a network: alone or, if it cannot be, with sums in memory."""
    check_script(plan)
    rounds = plan.scenario.rounds
    losses, because = _run_alone(plan, script)
    if not because and len(losses) != rounds:
        because = f"alone, the script made {len(losses)} steps"
    if because:
        losses = _run_in_memory(plan, script)
    if all(map(math.isnan, losses)):
        raise InputError(
            f"{script.path}: --reference has no losses to compare: backward() was called on none; accepted: a script "
            "that calls session.record(loss)"
        )
    return Reference(losses, because)


def _run_in_memory(plan: Plan, script: TrainingScript) -> tuple[float, ...]:
    """Return the losses of a process for each worker, whose gradients are summed in memory."""
    with running_scripts(plan, script, in_memory=True) as scripts:
        while not scripts.have_joined:
            scripts.take_or_fail(scripts.events.get())
        with scripts.summed_in_memory():
            while not scripts.have_ended:
                scripts.take_or_fail(scripts.events.get())
        return scripts.losses


def _run_alone(plan: Plan, script: TrainingScript) -> tuple[tuple[float, ...], str]:
    """Return the losses of a script that is alone and stands for all workers; and why it cannot, if so."""
    ours, report = socket.socketpair()
    with report:
        process = _ScriptProcess(0, -1, _start(script, 0, (report.fileno(), -1, -1)), ours)
    events: queue.SimpleQueue[ProcessEvent] = queue.SimpleQueue()
    task = {"worker": 0, "workers": len(plan.jobs[_JOB].job.workers), "steps": plan.scenario.rounds}
    losses = []
    try:
        process.listen(f"{script.path} (alone)", task, events)
        while "done" not in (event := events.get()).message:
            if "not_alone" in event.message:
                return (), event.message["not_alone"]
            if "losses" not in event.message:
                raise event.failure()
            losses.append(mean_loss(event.message["losses"]))
    finally:
        process.end()
    return tuple(losses), ""


@contextmanager
def running_scripts(plan: Plan, script: TrainingScript, in_memory: bool = False) -> Iterator[RunningScripts]:
    """Start the scripts of a plan; none outlives the block."""
    check_script(plan)
    scripts = RunningScripts(plan, script, in_memory)
    try:
        scripts.start()
        yield scripts
    finally:
        scripts.end()
