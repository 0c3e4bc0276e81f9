"""Runs every tensorexpress command of README.md and docs/: a page at a time, in a new folder and network namespace."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.pages import section
from support.thorough import rest

ROOT = Path(__file__).parents[1]
PAGES = {page.name: page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}

#: Pages whose commands another test runs.
OTHER_TESTS = {
    "tutorial.md": "test_tutorial.py",
    "import.md": "test_import.py",
    "p4runtime-shell.md": "test_client_pages.py",
    "scapy.md": "test_client_pages.py",
}
#: Sections whose commands another test runs.
OTHER_SECTIONS = {"switch.md": ["### A plan, offline"]}
#: Pages that profile and train PyTorch models.
NEEDS_TORCH = {"README.md", "profile.md", "train.md"}
#: Words of commands that get another value here: fewer simulations, and ends that exist on this machine.
REPLACED = {
    "sudo ": "",
    "seed=1:1000:1000": "seed=1:3:3",
    "tune --set job.model=bert-large": "tune --budget 8 --set job.model=bert-large",
    "tune examples/two-jobs.toml": "tune examples/two-jobs.toml --budget 8",
    "--attempts 3": "--attempts 1",
    "run examples/faults.toml": "run examples/faults.toml --set iterations=20",
    "job.workers=64 --set job.servers=16 --set iterations=10": "job.workers=16 --set iterations=2",
    "asynchronous-run.toml": "asynchronous-run.toml --set commits.target_loss=1.2",
    "--pid 4711 --port 5001": "--pid {pid} --port {port}",
    "tcp://10.0.0.1:8786": "tcp://127.0.0.1:8786",
}
MINE = r'[cluster]\nbandwidth = "25 Gbps"\n[job]\nmodel = "vgg16"\nworkers = 4\nservers = 4\n'
#: A command that starts a switch.
SWITCH = r"tensorexpress switch\b(?! replay)"
#: Commands that stay, and a text that they print once they can be used.
STAYING = {
    SWITCH: "is ready",
    r"^dask scheduler": "Scheduler at",
    r"^dask worker": "Registered to",
    r" --stay\b": "",
}
PLAN = "tensorexpress plan --set job.model=alexnet --set job.workers=2 --set job.servers=1 -o plan.json"
#: Commands that make files, groups and switches that a page takes for granted.
BEFORE = {
    "README.md": [
        """python -c 'from support.foreign_files import *; open("trace.json.gz", "wb").write(packed(profile()))'""",
        f"printf '{MINE}' > mine.toml",
    ],
    "dask.md": [
        "dask scheduler --port 8786 --no-dashboard",
        "dask worker tcp://127.0.0.1:8786 --nworkers 1 --nthreads 1 --no-dashboard",
    ],
    "doctor.md": ["tensorexpress switch"],
    "placement.md": [f"tensorexpress switch --grpc 127.0.0.1:{port}" for port in range(9559, 9563)],
    "report.md": ['tensorexpress calibrate --wires --rate "20 Mbps" -o calibration.json'],
    "run.md": ["tensorexpress plan examples/loop.toml --set iterations=2 -o plan.json"],
    "scenario.md": [r"printf '[job]\nmodel = \"vgg16\"\nworkers = 16\nservers = 8\n' > vgg16.toml"],
    "software-path.md": [f"printf '{MINE}' > mine.toml"],
    "switch.md": [
        PLAN,
        "tensorexpress deploy plan.json --entries .",
        "mv tensorexpress.json router.json; mv tensorexpress.p4info.txtpb router.p4info.txtpb",
        "mv s0.entries.txtpb entries.txtpb",
        """python -c 'from tensorexpress.switch.pcap import *; write_pcap("a.pcap", [TimedFrame(0, bytes(60))])'""",
        "cp a.pcap b.pcap",
    ],
    "tag.md": ["mkdir -p $(findmnt --noheadings --types cgroup2 --output TARGET)/training.slice", PLAN],
}


def commands(text: str) -> Iterator[str]:
    """Yield the commands in the blocks of a page that have no output of a console beside them."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language not in ("", "sh", "bash", "text"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(" +", " ", line.removeprefix("$ ")).strip()
            if re.match(r"(sudo )?tensorexpress [a-z]", line):
                yield line


def commands_here(page: Path) -> list[str]:
    text = page.read_text()
    for heading in OTHER_SECTIONS.get(page.name, ()):
        text = text.replace(section(page.name, heading), "")
    return list(commands(text))


def cases() -> list[object]:
    return [
        pytest.param(page, id=name) for name, page in PAGES.items() if name not in OTHER_TESTS and commands_here(page)
    ]


def _address(command: str) -> str:
    """Return the control address that a command names; empty: the default."""
    found = re.search(r"--grpc (\S+)", command)
    return found[1] if found else ""


class Terminal:
    """Runs commands in one folder and in one network namespace with the interfaces that pages name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._background: list[subprocess.Popen[bytes]] = []
        self._addresses: set[str] = set()
        user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
        self._holder = subprocess.Popen(
            ["unshare", *user, "--net", "sh", "-c", "echo ready; exec sleep infinity"], stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            pytest.skip("runs commands in a network namespace of its own, which this kernel refuses")
        enter_user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
        self._enter = ("nsenter", f"--target={self._holder.pid}", *enter_user, "--net")
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "tests"),
            "BROWSER": "true",  # `--open` starts it
            "XDG_RUNTIME_DIR": str(folder),
        }

    def make_interfaces(self) -> None:
        """Make eth0, veth0 and veth2, each with the other end of its cable."""
        for near, far in (("eth0", "eth1"), ("veth0", "veth1"), ("veth2", "veth3")):
            self.run(f"ip link add {near} type veth peer {far} && ip link set {near} up && ip link set {far} up")
        self.run("ip link set lo up")

    def run(self, command: str) -> str:
        """Run a command to its end and return its output."""
        if re.match(SWITCH, command) and _address(command) in self._addresses:
            self.stop()
        for words, line in STAYING.items():
            if re.search(words, command):
                return self._start(command, line)
        ran = subprocess.run(
            [*self._enter, "bash", "-c", command],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout[-3000:]}{ran.stderr}"
        return ran.stdout

    def _start(self, command: str, line: str) -> str:
        """Start a command that stays, and return its output up to a line with this text."""
        log = self._folder / f"background{len(self._background)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self._enter, "bash", "-c", f"exec {command}"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._background.append(process)
        if re.match(SWITCH, command):
            self._addresses.add(_address(command))
        while not (printed := log.read_text()) or line not in printed:
            assert process.poll() is None, f"{command}\n{log.read_text()}"
            time.sleep(0.05)
        return printed

    def stop(self) -> None:
        """End all commands that stay, the last one first."""
        self._addresses.clear()
        while self._background:
            process = self._background.pop()
            process.send_signal(signal.SIGTERM)
            assert process.wait() in (0, 130, 143), process.args

    def close(self) -> None:
        with suppress(AssertionError):
            self.stop()
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    opened = Terminal(folder)
    try:
        opened.make_interfaces()
        yield opened
    finally:
        opened.close()


def run_page(page: Path, folder: Path) -> None:
    """Run the commands of a page in a folder that has the examples alone."""
    if page.name in NEEDS_TORCH and find_spec("torch") is None:
        pytest.skip("profiles and trains PyTorch models; torch is not installed")
    shutil.copytree(ROOT / "examples", folder / "examples")
    with terminal(folder) as opened, socket.create_server(("127.0.0.1", 0)) as listening:
        own = {"pid": str(os.getpid()), "port": str(listening.getsockname()[1])}
        for command in [*BEFORE.get(page.name, ()), *commands_here(page)]:
            for written, used in REPLACED.items():
                command = command.replace(written, used)
            for name, value in own.items():
                command = command.replace(f"{{{name}}}", value)
            opened.run(command)


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[None]]]:
    """Start the pages whose tests were chosen, three at a time: most of them wait for links."""
    chosen = [
        item.callspec.params["page"]
        for item in request.session.items
        if item.path == Path(__file__) and hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(3) as pool:
        yield {page: pool.submit(run_page, page, tmp_path_factory.mktemp("page")) for page in chosen}


@rest()
@pytest.mark.parametrize("page", cases())
def test_every_command_of_a_page_runs(page: Path, running: dict[Path, Future[None]]) -> None:
    running[page].result()


def test_no_command_of_a_page_has_gaps() -> None:
    for name, page in PAGES.items():
        for command in commands(page.read_text()):
            assert "..." not in command, f"{name}: {command}"


def test_every_page_is_run_by_one_test() -> None:
    for page, test in OTHER_TESTS.items():
        assert page in PAGES
        assert page in (ROOT / "tests" / test).read_text(), f"{test} does not run {page}"
