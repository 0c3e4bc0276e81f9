"""The queues of a plan on a real interface of this machine, set up and taken away by `tc`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tensorexpress import tc
from tensorexpress.errors import InputError, NetworkError, unknown
from tensorexpress.names import check_interface

#: How tc shows the queues of an interface; classes have no JSON in usual versions of it.
_SHOW = (("tc", "-j", "-d", "qdisc"), ("tc", "-d", "class"), ("tc", "-j", "-d", "filter"))

#: Line between two of these.
_END = "---"

_INTERFACES = Path("/sys/class/net")


def run_tool(*command: str, lines: Sequence[str] = ()) -> str:
    """Run a tool of iproute2 and return what it prints; `lines` are what it reads where it is told `-batch -`."""
    if shutil.which(command[0]) is None:
        raise NetworkError(f"there is no program `{command[0]}`; install iproute2")
    ran = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise NetworkError(_refusal(command, ran.stderr, lines))
    return ran.stdout


def _refusal(command: Sequence[str], stderr: str, lines: Sequence[str]) -> str:
    failed = re.search(r"Command failed -:([0-9]+)", stderr)
    shown = f"{command[0]} {lines[int(failed[1]) - 1]}" if failed else " ".join(command)
    reason = next((line for line in stderr.splitlines() if line.strip()), "no reason given")
    return f"`{shown}`: {reason.removeprefix('Error: ').rstrip('.')}; `tensorexpress doctor` says what a kernel lacks"


def set_up(device: str, egress: tc.Egress) -> bool:
    """Give an interface its queues, or leave it as it was; False when it has them already, and nothing is done.

    An interface whose queues someone else has set up is refused, because they could not be put back.
    """
    _check(device)
    kind, handle = _root(device)
    if not _is_ours(handle) and not _is_default(handle):
        raise NetworkError(
            f"{device} has a qdisc {kind} {handle} that is not of tensorexpress; if it may go, "
            f"run `tc qdisc del dev {device} root` first"
        )
    if _is_ours(handle) and _shown_at(device) == _shown_after(egress):
        return False
    try:
        run_tool("tc", "-batch", "-", lines=[" ".join(command[1:]) for command in tc.setup(device, egress)])
    except BaseException:
        if not _is_default(_root(device)[1]):
            _remove(device)
        raise
    return True


def _shown_at(device: str) -> tc.Shown:
    return tc.shown(*(run_tool(*words, "show", "dev", device) for words in _SHOW))


def _shown_after(egress: tc.Egress) -> tc.Shown | None:
    """Return what tc shows after `tc.setup`; None on a machine that cannot try that on an interface of no use.

    tc rounds rates, bursts and limits in ways of its version and kernel. Loopback of a new namespace, which ends with
    this command, rounds them alike.
    """
    device = "lo"
    commands = [" ".join(command[1:]) for command in tc.setup(device, egress)]
    shows = [f"{shlex.join(words)} show dev {device}; echo {_END}" for words in _SHOW]
    try:
        printed = run_tool("unshare", "--net", "sh", "-ec", "\n".join(["tc -batch -", *shows]), lines=commands)
    except NetworkError:
        return None
    return tc.shown(*printed.split(f"{_END}\n")[: len(_SHOW)])


def read_state(device: str) -> tc.InterfaceState:
    """Return our queues on an interface, with their counters; NetworkError where it has none. Needs no root."""
    _check_there(device)
    shows = (("tc", "-s", "-j", "qdisc"), ("tc", "class"), ("tc", "-j", "filter"))
    state = tc.interface_state(*(run_tool(*words, "show", "dev", device) for words in shows))
    if state is None:
        raise NetworkError(
            f"{device}: has no queues of tensorexpress; set them up with "
            f"`tensorexpress deploy PLAN.json --target linux --dev {device}`"
        )
    return state


def take_away(device: str) -> bool:
    """Take our queues from an interface, which gets the kernel's default ones; False when it has none of ours."""
    _check(device)
    if not _is_ours(_root(device)[1]):
        return False
    _remove(device)
    return True


def _remove(device: str) -> None:
    for command in tc.remove(device):
        run_tool(*command)


def _check(device: str) -> None:
    _check_there(device)
    if os.geteuid() != 0:
        raise NetworkError(f"the queues of {device} can be changed by root alone; run with sudo, or with --dry-run")


def _check_there(device: str) -> None:
    if not (_INTERFACES / check_interface(device)).is_dir():
        raise InputError(unknown("interface", device, os.listdir(_INTERFACES)))


def _root(device: str) -> tuple[str, str]:
    return tc.root_of(run_tool("tc", "-j", "qdisc", "show", "dev", device), device)


def _is_ours(handle: str) -> bool:
    return handle == f"{tc.MAJOR}:"


def _is_default(handle: str) -> bool:
    return handle == "0:"
