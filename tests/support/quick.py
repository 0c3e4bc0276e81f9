"""The fast tier: `pytest --quick` leaves out the tests in slow.txt, and `pytest --measure` finds out which those are.

They are the tests that start processes (switches, hosts, workers of a sweep, iproute2, the command line) and those that
take more than 0.3 s of a processor, all their parameters together; each stands there with its seconds. Whoever adds
such a test measures its file, and is told if it belongs to the rest, too (`thorough.py`).
"""

from __future__ import annotations

import multiprocessing.util
import resource
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.thorough import WAITED_FOR_S

LIST = Path(__file__).with_name("slow.txt")
QUICK_S = 0.3


def read_list() -> dict[str, str]:
    """Return the tests that the fast tier leaves out, each with the reason."""
    return dict(line.split(maxsplit=1) for line in LIST.read_text().splitlines())


def name_of(item: pytest.Item) -> str:
    """Return what a test is called in the list: its file and name, without parameters."""
    return f"{item.path.name}::{item.nodeid.split('::', 1)[1].split('[')[0]}"


def longest_first(items: list[pytest.Item], cases: Mapping[str, int]) -> None:
    """Sort tests so that files which take long begin early: of several at a time, none is left over in the end.

    `cases` is how many a test has, of which perhaps not all are tried.
    """
    seconds = {name: float(reason.split()[0]) for name, reason in read_list().items()}
    costs: dict[str, float] = defaultdict(float)
    for item in items:
        costs[item.path.name] += seconds.get(name := name_of(item), 0) / cases[name]
    items.sort(key=lambda item: -costs[item.path.name])


class Quick:
    """A plugin of pytest that leaves out the tests of the list."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        slow = read_list()
        config.hook.pytest_deselected(items=[item for item in items if name_of(item) in slow])
        items[:] = [item for item in items if name_of(item) not in slow]


class Measure:
    """A plugin of pytest that writes the list anew, as far as it is about the files whose tests it has seen."""

    def __init__(self) -> None:
        self._processes = 0
        self._costs: dict[str, list[float]] = defaultdict(lambda: [0, 0])
        self._marked = set[str]()
        sys.addaudithook(self._look_at)
        spawn = multiprocessing.util.spawnv_passfds  # the one way to start a process that tells no audit hook

        def counted(*arguments: Any) -> int:
            self._processes += 1
            return spawn(*arguments)

        multiprocessing.util.spawnv_passfds = counted

    def _look_at(self, event: str, _: Any) -> None:
        self._processes += event in {"subprocess.Popen", "os.fork", "os.posix_spawn"}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        processes, seconds = self._processes, _cpu_s()
        result = yield
        costs = self._costs[name_of(item)]
        costs[0] += self._processes - processes
        costs[1] += _cpu_s() - seconds
        if item.get_closest_marker("rest"):
            self._marked.add(name_of(item))
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, (_, seconds) in self._costs.items():
            if seconds > WAITED_FOR_S and name not in self._marked:
                terminalreporter.line(f"{name} takes {seconds:.1f} s: which cases are for support.thorough.rest?")

    def pytest_sessionfinish(self) -> None:
        seen = {name.split("::")[0] for name in self._costs}
        slow = {name: reason for name, reason in read_list().items() if name.split("::")[0] not in seen}
        for name, (processes, seconds) in self._costs.items():
            if processes or seconds > QUICK_S:
                slow[name] = f"{seconds:.1f} s" + ", starts processes" * bool(processes)
        LIST.write_text("".join(f"{name} {slow[name]}\n" for name in sorted(slow)))


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
