"""Tasks on a Dask cluster that is there already, through its executor interface.

Workers get scenarios rather than files, so they need no file of this machine. They must have the same code: versions
are compared before the first task and, as workers may come later, with every task. Whoever runs a scheduler can have
its clients do anything, as what comes back is unpickled: connect to your own.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tensorexpress.errors import InputError, MachineError, NetworkError, SimulationError, TensorExpressError
from tensorexpress.policy import Policy
from tensorexpress.scenario import Scenario
from tensorexpress.sim.tasks import Outcome, SimulationTask, simulated
from tensorexpress.units import counted

#: Packages on which results depend, beside Python itself.
_PACKAGES = ("tensorexpress", "numpy", "numba", "scipy", "simpy", "distributed")

#: How long to wait for the scheduler to answer.
_CONNECT_SECONDS = 5

#: Tasks under way for every thread of the cluster: one that is simulated, and one that is there when that ends.
_AHEAD = 2

_ADDRESS = re.compile(r"(tcp|tls)://[^\s/]+:[0-9]{1,5}")

#: Where the code is that decides what comes out; the command line does not.
_CODE = ("tensorexpress", "tensorexpress.sim")
_ELSEWHERE = ("sim", "cli")

Value = TypeVar("Value")


@cache
def code_digest() -> str:
    """Return what two installations share if and only if their code is the same, wherever it lies."""
    content = sha256()
    for package in _CODE:
        root = Path(str(import_module(package).__file__)).parent
        for path in sorted(root.rglob("*.py")):
            inside = path.relative_to(root)
            if package == "tensorexpress" and inside.parts[0] in _ELSEWHERE:
                continue
            content.update(f"{package}/{inside.as_posix()}\n".encode() + path.read_bytes())
    return content.hexdigest()[:12]


def remote_outcome(scenario: Scenario, policy: Policy, engine: str, grain: int, expected: str) -> Outcome:
    """Return what comes of a task; executed by a worker, whose code must be that of who asks."""
    if code_digest() != expected:
        return MachineError(_other_code(_own_address(), code_digest(), expected))
    try:
        return simulated(scenario, policy, engine, grain)
    except TensorExpressError as error:
        return error


def _own_address() -> str:
    from distributed import get_worker

    return str(get_worker().address)


def _other_code(worker: str, found: str, expected: str) -> str:
    return (
        f"worker {worker} has other code of tensorexpress ({found}) than this machine ({expected}); install the same "
        "on both, and start the worker again"
    )


class DaskCluster:
    """Executes tasks on the workers of a scheduler; what is still under way when it is left is cancelled."""

    def __init__(self, address: str, wait_seconds: float = 60.0):
        if not _ADDRESS.fullmatch(address):
            raise InputError(f"scheduler {address!r}; accepted: an address such as tcp://10.0.0.1:8786")
        self._address, self._wait_seconds = address, wait_seconds
        self._client: Any = None
        self._executor: Any = None
        self._log_level = logging.NOTSET

    @property
    def expected_digest(self) -> str:
        """What workers' code is compared with."""
        return code_digest()

    def __enter__(self) -> DaskCluster:
        distributed = _import_distributed()
        # What it has to say of lost workers is said here in one line, where there is anything to do about it.
        self._log_level = logging.getLogger("distributed").level
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        try:
            self._client = self._reached(lambda: distributed.Client(self._address, timeout=_CONNECT_SECONDS))
            self._wait_for_workers()
            self._compare_versions()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self._executor = self._client.get_executor(pure=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._executor is not None:
                self._executor.shutdown(wait=False)
            if self._client is not None:
                self._client.close()
        self._client = self._executor = None
        logging.getLogger("distributed").setLevel(self._log_level)

    def outcomes(self, tasks: Sequence[SimulationTask]) -> Iterator[tuple[SimulationTask, Outcome]]:
        """Yield the tasks as they are finished, in any order; those of workers that are lost are done again."""
        waiting = iter(tasks)
        running: dict[Future[Outcome], SimulationTask] = {}

        def fill() -> None:
            most = _AHEAD * max(1, sum(self._client.nthreads().values()))
            while len(running) < most and (task := next(waiting, None)) is not None:
                running[self._submit(task)] = task

        self._reached(fill)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                outcome = self._outcome(task, future)
                self._reached(fill)
                yield task, outcome

    def _submit(self, task: SimulationTask) -> Future[Outcome]:
        arguments = (task.scenario(), task.policy, task.engine, task.grain, self.expected_digest)
        future: Future[Outcome] = self._executor.submit(remote_outcome, *arguments)
        return future

    def _outcome(self, task: SimulationTask, future: Future[Outcome]) -> Outcome:
        from distributed import KilledWorker

        try:
            return future.result()
        except KilledWorker as error:
            times = counted(error.allowed_failures + 1, "worker")
            raise SimulationError(
                f"{task.label}: {times} of {self._address} died over {task.policy.name}, the last at "
                f"{error.last_worker.address}, most likely for want of memory; try a smaller scenario, or workers with "
                "more memory and one thread each"
            ) from None
        except (CancelledError, OSError):
            raise NetworkError(self._lost()) from None

    def _lost(self) -> str:
        return f"scheduler {self._address} is gone; what was finished is kept; start it again, and its workers"

    def _reached(self, ask: Callable[[], Value]) -> Value:
        """Return what the scheduler answers; where it does not, say so."""
        try:
            with warnings.catch_warnings():
                # Versions are compared here, and what differs is refused.
                warnings.simplefilter("ignore")
                return ask()
        except (OSError, CancelledError) as error:  # a TimeoutError is one
            if self._executor is not None:
                raise NetworkError(self._lost()) from None
            raise NetworkError(
                f"scheduler {self._address} does not answer ({type(error).__name__}); accepted: the address that "
                "`dask scheduler` prints when it starts"
            ) from None

    def _wait_for_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=self._wait_seconds)
        except TimeoutError:
            raise NetworkError(
                f"scheduler {self._address} has no workers after {self._wait_seconds:g} s; start some with "
                f"`dask worker {self._address}`, or wait for them longer with --wait SECONDS"
            ) from None

    def _compare_versions(self) -> None:
        found = self._reached(lambda: self._client.get_versions(packages=list(_PACKAGES)))
        own = _versions(found["client"])
        for worker, theirs in sorted(found["workers"].items()):
            for package, version in _versions(theirs).items():
                if version != own[package]:
                    raise MachineError(
                        f"worker {worker} has {package} {version or 'not at all'}, this machine {own[package]}; "
                        "results could differ: install the same on both, and start the worker again"
                    )
        for worker, digest in sorted(self._reached(lambda: self._client.run(code_digest, on_error="return")).items()):
            if digest != self.expected_digest:
                raise MachineError(_other_code(worker, str(digest), self.expected_digest))


def _versions(found: Mapping[str, Any]) -> dict[str, str]:
    """Return what counts of the versions that a worker or client tells; of Python, what its pickles depend on."""
    packages = found["packages"]
    python = ".".join(str(packages["python"]).split(".")[:2])
    return {"python": python, **{name: packages[name] or "" for name in _PACKAGES}}


def _import_distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError:
        raise MachineError(
            "--scheduler needs the package distributed, which is not installed; try: pip install 'tensorexpress[dask]'"
        ) from None
