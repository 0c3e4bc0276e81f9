"""The forwarding process gives up rights, limits and system calls: a real one, asked from outside and inside."""

from __future__ import annotations

import os
import pickle
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.thorough import rest
from test_device_process import PROGRAM, frame, wait_for_end, wires

from tensorexpress.errors import NetworkError
from tensorexpress.program_engines import AUTO, PYTHON
from tensorexpress.switch import confinement
from tensorexpress.switch import link as link_module
from tensorexpress.switch.link import DataLink, LinkClosedError, start_process
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.switch.pcap import read_pcap
from tensorexpress.switch.ports import WireSpec
from tensorexpress.switch.program.budgets import MOST_GROWTH_BYTES
from tensorexpress.switch.running import RunningSwitch
from tensorexpress.switch.traffic import PortSettings

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="system calls are filtered on x86_64 and aarch64"
)

#: Starts a switch without ports, and prints a file of the process that forwards.
SHOW = """
import sys
from tensorexpress.switch.link import start_process
from tensorexpress.switch.loop import LoopSettings
link = start_process()
link.start(LoopSettings({}))
print(open(f"/proc/{link.pid}/{sys.argv[1]}").read())
assert link.stop() is not None
"""

NOTHING = f"{0:016x}"


def status(pid: int | None) -> dict[str, list[str]]:
    return read_status(Path(f"/proc/{pid}/status").read_text())


def read_status(text: str) -> dict[str, list[str]]:
    return {key: values.split() for key, _, values in (line.partition(":") for line in text.splitlines())}


class Asked:
    """Has the process that unpickles it evaluate an expression, as code of a frame that took it over would."""

    def __init__(self, expression: str):
        self.expression = expression

    def __reduce__(self) -> Any:
        return eval, (self.expression, {})


@pytest.fixture(scope="module", params=[PYTHON, AUTO])
def link(request: pytest.FixtureRequest) -> Iterator[DataLink]:
    """A forwarding process that has a program and is idle."""
    started = start_process(engine=request.param)
    try:
        started.start(LoopSettings({}, engine=request.param))
        started.load(PROGRAM.read_bytes())
        yield started
    finally:
        started.stop()


def from_inside(link: DataLink, expression: str) -> str:
    """Return the error that an expression meets in the forwarding process; an error without a line fails the test."""
    with pytest.raises(NetworkError) as error:
        link._call("swap", pickle.dumps(Asked(expression)))
    return str(error.value)


REFUSED = {
    "open to write": "__import__('os').open('/tmp/made', 0o102, 0o600)",
    "open to read": "__import__('os').open('/proc/self/status', 0)",
    "list a directory": "__import__('os').listdir('/')",
    "make a directory": "__import__('os').mkdir('/tmp/made')",
    "remove": "__import__('os').unlink('/tmp/made')",
    "a program": "__import__('os').execv('/bin/true', ['true'])",
    "a process": "__import__('os').fork()",
    "a thread": "__import__('_thread').start_new_thread(print, ())",
    "a network socket": "__import__('socket').socket()",
    "a packet socket": "__import__('socket').socket(17, 3, 0)",
    "a Unix socket": "__import__('socket').socketpair()",
    "a signal to its parent": f"__import__('os').kill({os.getpid()}, 0)",
    "another user": "__import__('os').setuid(0)",
    "a namespace": "__import__('ctypes').CDLL(None, use_errno=True).unshare(0x10000000) and 1/0",
    "tracing": "__import__('ctypes').CDLL(None, use_errno=True).ptrace(0, 0, 0, 0) and 1/0",
    "other limits": "__import__('resource').setrlimit(4, (0, 0))",
    "a pipe": "__import__('os').pipe()",
    "another directory": "__import__('os').chdir('/')",
}


@pytest.mark.parametrize("name", REFUSED)
def test_system_calls_that_forwarding_does_not_make_are_refused(link: DataLink, name: str) -> None:
    said = from_inside(link, REFUSED[name])
    assert said.startswith("the switch failed: "), said
    # ctypes returns -1 instead of an exception; a thread has an exception of Python's own.
    reasons = ("Operation not permitted", "ZeroDivisionError", "can't start new thread", "not allowed to raise")
    assert any(words in said for words in reasons), said
    assert link.statistics().failures == {}  # it forwards on


def test_messages_to_addresses_of_its_own_choice_are_refused() -> None:
    with ExitStack() as stack:
        ((far, near),) = wires(stack, 1)
        other = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        other.bind(("127.0.0.1", 0))
        link = start_process()
        stack.callback(link.close)
        link.start(LoopSettings({0: (WireSpec(near, far.getsockname()), PortSettings())}))
        wire = f"__import__('ctypes').CDLL(None, use_errno=True).sendto({wire_of(link)}, b'frame', 5, 0, "
        address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", other.getsockname()[1]) + bytes([127, 0, 0, 1])
        assert "ZeroDivisionError" in from_inside(link, f"{wire}{address + bytes(8)!r}, 16) == -1 and 1/0")
        assert "ZeroDivisionError" in from_inside(link, f"{wire}None, 0) == 5 and 1/0")
        assert far.recv(99) == b"frame"


def wire_of(link: DataLink) -> int:
    """Return the descriptor of the one UDP socket of a forwarding process."""
    inodes = {line.split()[9] for line in Path(f"/proc/{link.pid}/net/udp").read_text().splitlines()[1:]}
    links = {int(path.name): os.readlink(path) for path in Path(f"/proc/{link.pid}/fd").iterdir()}
    (found,) = (number for number, name in links.items() if name.removeprefix("socket:[").rstrip("]") in inodes)
    return found


def test_rights_are_gone(link: DataLink) -> None:
    found = status(link.pid)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert found[kind] == [NOTHING], kind
    assert found["NoNewPrivs"] == ["1"]
    assert found["Seccomp"] == ["2"]
    assert found["Threads"] == ["1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a user to give up")
def test_root_becomes_nobody(link: DataLink) -> None:
    found = status(link.pid)
    assert found["Uid"] == found["Gid"] == ["65534"] * 4
    assert found["Groups"] == []
    assert found["CapBnd"] == [NOTHING]
    assert status(os.getpid())["Uid"] == ["0"] * 4  # this process, which controls, is who it was


def limits(pid: int | None) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): line[26:].split()[1] for line in lines}


def test_limits_are_low(link: DataLink) -> None:
    found = limits(link.pid)
    assert found["Max processes"] == found["Max core file size"] == "0"
    assert int(found["Max open files"]) <= 16
    assert int(found["Max file size"]) <= 2**24 + 2**20  # beyond what is in the log
    now = int(status(link.pid)["VmSize"][0]) * 1024
    assert MOST_GROWTH_BYTES < int(found["Max address space"]) <= now + MOST_GROWTH_BYTES


def test_more_memory_than_the_budget_is_refused_and_forwarding_goes_on(link: DataLink) -> None:
    assert "MemoryError" in from_inside(link, f"bytearray({MOST_GROWTH_BYTES})")
    assert link.statistics().failures == {}


def test_a_user_namespace_without_that_user_gives_all_else_up() -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-Ur", "true"], check=False).returncode:
        pytest.skip("user namespaces are not to be had")
    show = ["unshare", "-Ur", sys.executable, "-c", SHOW, "status"]
    ran = subprocess.run(show, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    found = read_status(ran.stdout)
    assert found["Uid"] == [str(os.geteuid())] * 4
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert found[kind] == [NOTHING], kind
    assert (found["NoNewPrivs"], found["Seccomp"]) == (["1"], ["2"])


def test_a_machine_that_refuses_is_told_of_once_and_the_switch_goes_on() -> None:
    patched = (
        "import sys; from tensorexpress.switch import confinement as c; from tensorexpress.switch.loop import main\n"
        "c._program = lambda machine: None\n"
        "main(*map(int, sys.argv[1:]))"
    )
    here, there = socket.socketpair()
    notices = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptors = (there.fileno(), notices[1].fileno())
    command = [sys.executable, "-c", patched, *map(str, (os.getpid(), *descriptors))]
    with subprocess.Popen(command, pass_fds=descriptors, stderr=subprocess.PIPE, text=True) as process:
        link = DataLink(here, notices[0])
        link.start(LoopSettings({}))
        assert link.statistics().failures == {}
        assert status(process.pid)["CapEff"] == [NOTHING]
        assert link.stop() is not None
        assert process.stderr is not None
        assert process.stderr.read() == (
            "tensorexpress: the process that forwards packets keeps rights: this machine refused "
            f"a filter of system calls (not on {platform.machine()})\n"
        )
    there.close()
    notices[1].close()


SPIN = """
import pickle
from tensorexpress.switch.link import start_process
from tensorexpress.switch.loop import LoopSettings

class Asked:
    def __reduce__(self):
        return eval, ("print('spins', flush=True) or all(True for _ in iter(int, 1))", {})

link = start_process()
link.start(LoopSettings({}))
print(link.pid, flush=True)
link._call("swap", pickle.dumps(Asked()))
"""


def test_it_ends_with_its_parent_although_it_changed_its_user() -> None:
    """Linux forgets to end a process that changes its user."""
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "spins\n"
        process.kill()
        wait_for_end(pid)


def test_a_switch_stops_although_its_forwarding_process_answers_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(link_module, "ANSWER_SECONDS", 0.5)
    switch = RunningSwitch(LoopSettings({}), f"unix:{tmp_path}/s.sock")
    assert switch.address is not None
    os.kill(switch.data_path.pid or 0, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(switch.data_path.statistics)
        assert switch.stop() is None
        with pytest.raises(LinkClosedError):
            waiting.result()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_does_what_the_table_says(machine: str) -> None:
    """Every call with every kind of argument through a BPF interpreter, for both processors."""
    program = confinement._program(machine)
    assert program is not None
    column = list(confinement._PROCESSORS).index(machine)
    allowed = {each[column] for each in confinement.ALLOWED.values()} - {None}
    sendto = confinement._SENDTO[column]
    assert sendto not in allowed
    for number in range(600):
        verdict = run_filter(program, number, confinement._PROCESSORS[machine], [0] * 6)
        assert (verdict == confinement._ALLOW) == (number in allowed or number == sendto), number
        assert verdict in (confinement._ALLOW, confinement._REFUSE | 1)
    for address in (1, 1 << 32, 0x7FFF12345678):
        verdict = run_filter(program, sendto, confinement._PROCESSORS[machine], [3, 0, 0, 0, address, 16])
        assert verdict == confinement._REFUSE | 1
    for other in {*confinement._PROCESSORS.values(), 0x40000003} - {confinement._PROCESSORS[machine]}:
        assert run_filter(program, 0, other, [0] * 6) == confinement._KILL
    if machine == "x86_64":
        assert run_filter(program, 1 << 30, confinement._PROCESSORS[machine], [0] * 6) == confinement._KILL


def run_filter(program: list[tuple[int, int, int, int]], number: int, processor: int, arguments: list[int]) -> int:
    """Return the verdict of a filter on a system call."""
    data = number.to_bytes(4, "little") + processor.to_bytes(4, "little") + bytes(8)
    data += b"".join(each.to_bytes(8, "little") for each in arguments)
    loaded, at = 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        if code == 0x06:
            return operand
        if code == 0x20:
            loaded = int.from_bytes(data[operand : operand + 4], "little")
            at += 1
        else:
            holds = {0x15: loaded == operand, 0x35: loaded >= operand}[code]
            at += 1 + (if_true if holds else if_false)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_numbers_are_those_of_linux_headers(machine: str) -> None:
    """Through the C compiler, where there is one; the table of aarch64 is the one that new processors share."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    header = "sys/syscall.h" if machine == platform.machine() else "asm-generic/unistd.h"
    if compiler is None or (machine != platform.machine() and machine != "aarch64"):
        pytest.skip("no C compiler, or no headers of that processor")
    column = list(confinement._PROCESSORS).index(machine)
    names = {**confinement.ALLOWED, "sendto": confinement._SENDTO, "seccomp": confinement._SECCOMP}
    wanted = {name: each[column] for name, each in names.items() if each[column] is not None}
    text = f"#define __ARCH_WANT_NEW_STAT\n#include <{header}>\n" + "".join(
        f"= {name} __NR_{name}\n" for name in wanted
    )
    ran = subprocess.run([compiler, "-E", "-P", "-"], input=text, capture_output=True, text=True, check=True)
    rows = [line.split() for line in ran.stdout.splitlines() if line.startswith("= ")]
    assert {name: int(number) for _, name, number in rows} == wanted


@rest()
@pytest.mark.parametrize("engine", [PYTHON, AUTO])
def test_captures_grow_and_code_is_swapped_in_a_confined_process(engine: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        (left, near_left), (right, near_right) = wires(stack, 2)
        ports = {
            0: (WireSpec(near_left, left.getsockname()), PortSettings()),
            1: (WireSpec(near_right, right.getsockname()), PortSettings()),
        }
        link = start_process(engine=engine)
        stack.callback(link.close)
        link.start(LoopSettings(ports, engine=engine, pcap=str(tmp_path)))
        assert limits(link.pid)["Max file size"] == "unlimited"
        for _ in range(3):  # each program after the first replaces one
            link.load(PROGRAM.read_bytes())
            link.wait_for_code()
            left.send(frame(1))
            assert right.recv(65536) == frame(1)
        assert status(link.pid)["Seccomp"] == ["2"]
        assert link.stop() is not None
    assert [each.data for each in read_pcap(tmp_path / "port1-out.pcap")] == [frame(1)] * 3
