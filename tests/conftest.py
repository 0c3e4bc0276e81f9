"""What all tests share: no example of a property test is measured against the clock."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from support.quick import Measure, Quick, longest_first, name_of
from support.thorough import examples, leave_out, leave_rest, tries_again

if TYPE_CHECKING:
    from support.switches import TargetSwitch

# `python -m pytest` puts the checkout on the path, and with it the half of the package that lies in tensorexpress/.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).parents[1]]

# All that is imported stays: whatever looks for garbage among it, until all tests are known, looks for nothing.
gc.disable()

# Whoever runs the tests may ignore these, as a shell does for what it starts behind itself, and then so would what the
# tests start and end by them.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# Which test compiles a library first depends on the machine's cache: the notice of that belongs to no test's log.
logging.getLogger("tensorexpress.compiled_functions").setLevel(logging.ERROR)

settings.register_profile(
    "tensorexpress",
    deadline=None,
    max_examples=examples(100),
    # The first example of some tests compiles the fast engine, and a random scenario takes long to draw.
    suppress_health_check=[HealthCheck.too_slow],
    # New examples are for whoever can look into a failure; continuous integration judges a change by the same ones.
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("tensorexpress")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the tests in tests/support/slow.txt")
    parser.addoption("--no-rest", action="store_true", help="leave out what is marked as the rest: `make test`")
    parser.addoption("--rest", action="store_true", help="only what `make test` leaves out: `make rest`")
    parser.addoption("--measure", action="store_true", help="write tests/support/slow.txt anew")


def pytest_configure(config: pytest.Config) -> None:
    for option, plugin in (("--quick", Quick), ("--measure", Measure)):
        if config.getoption(option):
            config.pluginmanager.register(plugin())
    if os.environ.get("TENSOREXPRESS_ENGINE") == "twins":
        from support.twins import twins_in_switches

        both = twins_in_switches()
        both.__enter__()
        config.add_cleanup(lambda: both.__exit__(None, None, None))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if tries_again(config):
        return
    leave_out(config, items)
    cases = Counter(name_of(item) for item in items)
    leave_rest(config, items)
    longest_first(items, cases)


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what was imported, which stays: a tenth of the time of all tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def target_switch() -> Iterator[TargetSwitch]:
    """A switch that answers P4Runtime: the embedded one, or with TENSOREXPRESS_TARGET=bmv2 simple_switch_grpc."""
    from support.switches import start_switch

    switch = start_switch()
    yield switch
    switch.stop()


@pytest.fixture(scope="module")
def one_nursery() -> Iterator[None]:
    """One process forks the hosts of all runs of a file; each run would start its own, a third of what it takes."""
    from tensorexpress.host.nursery import Nursery
    from tensorexpress.target import runner

    with closing(Nursery()) as nursery, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "Nursery", lambda: SimpleNamespace(fork=nursery.fork, close=lambda: None))
        yield
