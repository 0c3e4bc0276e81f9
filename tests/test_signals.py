"""What ends a verb early, as real processes: Ctrl-C, SIGTERM and the end of a terminal keep what is finished."""

import csv
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.cli.signals import stopped_by_signals
from tensorexpress.plan_file import read_plan

LAYERS = "layer_index,numel,forward_ns,backward_ns\n0,20000,200000,400000\n1,400000,200000,400000\n"

#: Answered in a moment with packets and slices of the usual size, and in many minutes with tiny ones.
SMALL = ("--set", "job.csv=layers.csv", "--set", "job.workers=2", "--set", "job.servers=1", "--engine", "simpy")
SLOW, SLOW_MTU = "tensorexpress:slice=60 B", 131


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "layers.csv").write_text(LAYERS)
    return tmp_path


@contextmanager
def watched(folder, *arguments):
    """Start a verb whose standard error is a terminal, and give it with what waits for a piece of text there."""
    ours, theirs = pty.openpty()
    verb = subprocess.Popen(
        [sys.executable, "-c", "from tensorexpress.cli import main; main()", *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""

    def wait_for(text):
        nonlocal seen
        while text.encode() not in seen:
            try:
                seen += os.read(ours, 4096)
            except OSError:
                pytest.fail(f"ended without {text!r}: {seen!r}")

    try:
        yield verb, wait_for
    finally:
        verb.kill()
        verb.wait()
        verb.stdout.close()
        os.close(ours)


@rest()
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_prediction_that_is_ended_shows_and_writes_the_policies_that_are_finished(ending, folder):
    with watched(folder, "predict", *SMALL, "--policy", f"fifo,{SLOW}", "--json", "kept.json") as (verb, wait_for):
        wait_for("1/2")
        verb.send_signal(ending)
        wait_for("tensorexpress: stopped after 1 of 2 policies")
        table = verb.stdout.read().decode()
    assert verb.wait() == 130
    assert [line.split()[0] for line in table.splitlines() if line.startswith(("fifo", "tensorexpress"))] == ["fifo"]
    assert list(json.loads((folder / "kept.json").read_text())["policies"]) == ["fifo"]


@rest(but=1)
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_sweep_that_is_ended_shows_and_writes_the_points_that_are_finished(ending, folder):
    vary = ("--vary", f"cluster.mtu=9000,{SLOW_MTU}", "--processes", "1", "--policy", "fifo")
    with watched(folder, "sweep", *SMALL, *vary, "--csv", "kept.csv") as (verb, wait_for):
        wait_for("1/2")
        verb.send_signal(ending)
        wait_for("tensorexpress: stopped after 1 of 2 points")
        table = verb.stdout.read().decode()
    assert verb.wait() == 130
    assert "9000" in table
    assert [row["cluster.mtu"] for row in csv.DictReader((folder / "kept.csv").read_text().splitlines())] == ["9000"]
    assert sorted(path.name for path in folder.iterdir()) == ["kept.csv", "layers.csv"]


@rest()
def test_a_search_that_is_ended_writes_the_plan_of_the_best_so_far(folder):
    start = ("--policy", SLOW, "--fix", "sum=none", "--within", "0", "--processes", "1")
    with watched(folder, "tune", *SMALL, *start, "-o", "kept.json") as (verb, wait_for):
        wait_for("7/")
        verb.send_signal(signal.SIGTERM)
        wait_for("tensorexpress: stopped after ")
        table = verb.stdout.read().decode()
    assert verb.wait() == 130
    assert "The search was interrupted." in table
    assert sorted(path.name for path in folder.iterdir()) == ["kept.json", "layers.csv"]
    assert f"- Best: {read_plan(folder / 'kept.json').policy.name}" in table


@rest()
def test_an_explanation_that_is_ended_says_so_and_leaves_nothing(folder):
    with watched(
        folder, "explain", *SMALL, "--policy", SLOW.replace("tensorexpress", "fifo"), "--json", "kept.json"
    ) as (verb, wait_for):
        wait_for("1/")
        verb.send_signal(signal.SIGTERM)
        wait_for("tensorexpress: stopped")
        assert verb.stdout.read() == b""
    assert verb.wait() == 130
    assert [path.name for path in folder.iterdir()] == ["layers.csv"]


#: Code that is in one call of compiled code for hours, in which Python runs no handler.
IN_COMPILED_CODE = """
import hashlib
from tensorexpress.cli.signals import stopped_by_signals
from tensorexpress.files import write_atomic
with stopped_by_signals(computes=True):
    print("computing", flush=True)
    hashlib.pbkdf2_hmac("sha512", b"", b"", 2**31 - 1)
"""

#: Code whose plan takes for ever to make when Ctrl-C comes.
IN_A_THREAD = """
import threading
from tensorexpress.cli.signals import leave
from tensorexpress.sim.predict import _start_all
started = threading.Event()
_start_all([lambda: (started.set(), threading.Event().wait())])
started.wait()
print("computing", flush=True)
{end}
"""

#: Code that has a process of its own simulate for many minutes, and prints its id.
IN_A_PROCESS = """
from tensorexpress.policy import parse_policy
from tensorexpress.sim.processes import LocalProcesses
from tensorexpress.sim.tasks import SimulationTask
if __name__ == "__main__":
    policy = parse_policy("tensorexpress:slice=60 B")
    content = {"cluster": {"mtu": 131}, "job": {"csv": "layers.csv", "workers": 2, "servers": 1}}
    task = SimulationTask(0, "it", content, "it", (), policy, "simpy")
    with LocalProcesses(1) as processes:
        outcomes = processes.outcomes([task])
        print(*(child.pid for child in processes._children.values()), flush=True)
        list(outcomes)
"""


@contextmanager
def computing(code):
    """Run code as a process that prints a line when it has come far enough, and give both."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process, process.stdout.readline().decode().strip()
        finally:
            process.kill()


def wait_for_work(pid, seconds):
    """Wait until a process has computed for so long from now on: it is past its start then, and waits for nothing."""

    def computed():
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    until = computed() + seconds * os.sysconf("SC_CLK_TCK")
    while computed() < until:
        time.sleep(0.01)


def ends(pid, do=lambda: None, watchdog_s=100):
    """Whether a process ends after something was done; the watchdog is far above what that takes."""
    descriptor = os.pidfd_open(pid)
    try:
        do()
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        return bool(waiting.poll(watchdog_s * 1000))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_a_long_call_of_compiled_code_ends_the_process(ending):
    with computing(IN_COMPILED_CODE) as (process, line):
        assert line == "computing"
        wait_for_work(process.pid, 0.2)
        assert ends(process.pid, lambda: process.send_signal(ending))
        assert (process.wait(), process.stderr.read()) == (130, b"tensorexpress: stopped\n")


@pytest.mark.parametrize(("end", "status"), [("", 0), ("leave(130)", 130)])
def test_no_end_of_a_process_waits_for_a_thread_that_makes_a_plan(end, status):
    with computing(IN_A_THREAD.format(end=end)) as (process, line):
        assert line == "computing"
        assert ends(process.pid)
        assert process.wait() == status


@rest()
def test_a_process_that_simulates_ends_with_the_one_that_started_it(folder):
    (folder / "starts.py").write_text(IN_A_PROCESS)
    with subprocess.Popen([sys.executable, "starts.py"], stdout=subprocess.PIPE, cwd=folder) as process:
        child = int(process.stdout.readline())
        wait_for_work(child, 2)
        assert ends(child, process.kill)


def test_who_ignores_the_end_of_the_terminal_goes_on_doing_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_where_python_drops_what_is_raised_comes_again(number):
    class Ends:
        def __del__(self):
            os.kill(os.getpid(), number)
            sum(range(1000))  # somewhere here Python sees the signal

    passed = []

    def verb():
        Ends()
        passed.append("the finalizer")
        signal.sigtimedwait([], 60)

    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), stopped_by_signals():
            verb()
    finally:
        signal.signal(number, before)
    assert passed


def test_signals_are_those_of_before_when_a_verb_has_ended():
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [sys.unraisablehook, *map(signal.getsignal, numbers)]
    CliRunner().invoke(main, ["models"])
    assert [sys.unraisablehook, *map(signal.getsignal, numbers)] == before
