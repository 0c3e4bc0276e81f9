"""What this machine can do for tensorexpress, and what to do about what it cannot.

Every check is a function that looks and returns a Finding. Nothing is changed: qdiscs are tried out in a network
namespace of their own, which ends with the process that made it.
"""

from __future__ import annotations

import gzip
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from tensorexpress import p4
from tensorexpress.buffer import OTHERWISE
from tensorexpress.control_address import default_address
from tensorexpress.errors import InputError, MachineError, ProgramError
from tensorexpress.text import grid
from tensorexpress.units import PS_PER_SECOND, format_time

#: Environment variable that names simple_switch_grpc where it is not on PATH.
BMV2_VARIABLE = "TENSOREXPRESS_BMV2"
BMV2 = "simple_switch_grpc"

#: The first simple_switch_grpc with --priority-queues.
BMV2_NEEDED = (1, 15, 1)

#: Where BMv2 listens by default: P4Runtime, and its own Thrift server.
GRPC_ADDRESS = ("127.0.0.1", 9559)
THRIFT_ADDRESS = ("0.0.0.0", 9090)

#: Numbers from Linux's headers: socket options, and bits of a set of capabilities.
SOL_UDP, UDP_SEGMENT = 17, 103
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13}
_RIGHTS = "run as root to make or use interfaces; ports --port N@udp:... need no rights"

#: Kind of qdisc -> the least that `tc qdisc add` wants to know about one, and what its absence means.
QDISCS = {
    "htb": ("default 1", "without it Linux has no queues that share a rate by priority"),
    "prio": ("bands 8", "htb with classes of different prio does the same"),
    "netem": ("delay 1ms", "only for trials with delay and loss"),
    "mqprio": ("num_tc 2 map 0 1 queues 1@0 1@1 hw 0", "only for the queues of a network card"),
}

#: A program that takes longer to say its version is not waited for.
_LONGEST_RUN_S = 10

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """What a check found. A note limits what can be done; a problem keeps something from working as it should."""

    name: str
    state: State
    found: str
    #: What to do; empty when there is nothing to do.
    remedy: str = ""


def report(title: str, findings: Sequence[Finding]) -> str:
    """Return findings as a table, each remedy below what it is for.

    >>> print(report("s0", [Finding("answers", "ok", "yes"), Finding("program", "note", "none", "deploy a plan")]))
    s0
      answers    ok  yes
      program  note  none
                     -> deploy a plan
    """
    lines = [title]
    heads = grid([[f"  {finding.name}", finding.state] for finding in findings])
    for head, finding in zip(heads, findings, strict=True):
        lines.append(f"{head}  {finding.found}")
        if finding.remedy:
            lines.append(f"{' ' * len(head)}  -> {finding.remedy}")
    return "\n".join(lines)


def as_json(machine: Sequence[Finding], switches: dict[str, list[Finding]]) -> dict[str, Any]:
    """Return all findings as a JSON document."""
    return {
        "machine": [asdict(finding) for finding in machine],
        "switches": {name: [asdict(finding) for finding in findings] for name, findings in switches.items()},
    }


def check_machine() -> list[Finding]:
    """Return what this machine has and may do."""
    return [
        check_python(),
        check_p4runtime(),
        check_scapy(),
        check_build(),
        check_p4c(),
        check_bmv2(),
        check_buffers(),
        check_tool("ip", "-V", "iproute2"),
        check_tool("tc", "-V", "iproute2"),
        check_tool("ethtool", "--version", "ethtool"),
        *(check_qdisc(kind) for kind in QDISCS),
        *(check_capability(name) for name in CAPABILITIES),
        check_user_namespaces(),
        check_socket(),
        check_port("port of P4Runtime", GRPC_ADDRESS, f"{BMV2} ... -- --grpc-server-addr HOST:PORT"),
        check_port("port of Thrift", THRIFT_ADDRESS, f"{BMV2} --thrift-port PORT"),
        check_udp_segmentation(),
        check_cores(),
        check_clock(),
    ]


# Python, and what is installed beside tensorexpress.


def check_python() -> Finding:
    """Which Python runs this."""
    return Finding("Python", "ok", f"{platform.python_implementation()} {platform.python_version()}")


def check_p4runtime() -> Finding:
    """Whether a P4Runtime switch can be served and programmed."""
    return _check_packages(
        "P4Runtime", "p4", ("grpcio", "p4runtime", "protobuf"), ("grpc", "tensorexpress.p4runtime_messages")
    )


def check_scapy() -> Finding:
    """Whether packets can be crafted with scapy."""
    return _check_packages("scapy", "scapy", ("scapy",), ("scapy.packet",))


def _check_packages(name: str, extra: str, packages: Sequence[str], modules: Sequence[str]) -> Finding:
    """Import what an extra brings: packages that are there may still not go together."""
    try:
        for module in modules:
            import_module(module)
    except ModuleNotFoundError as error:
        return Finding(name, "note", f"{error.name} is not installed", f"pip install 'tensorexpress[{extra}]'")
    except Exception as error:  # whatever a broken package does when it is imported
        return Finding(
            name,
            "note",
            f"cannot be imported: {_one_line(str(error))}",
            f"pip install 'tensorexpress[{extra}]' into an environment of its own; it brings versions that go together",
        )
    return Finding(name, "ok", ", ".join(f"{package} {version(package)}" for package in packages))


# The P4 program, its compiler and BMv2.


def check_build() -> Finding:
    """Whether the P4 program that is deployed is that of the P4 sources."""
    name = "P4 program"
    try:
        stamp = p4.load().stamp
    except ProgramError as error:
        return Finding(name, "problem", str(error), "tensorexpress p4 build, or install tensorexpress again")
    if stamp.sources != p4.source_hash():
        return Finding(name, "problem", f"older than its sources (p4c {stamp.p4c})", "tensorexpress p4 build")
    return Finding(name, "ok", f"built from its sources by p4c {stamp.p4c}")


def check_p4c() -> Finding:
    """Whether the P4 program can be compiled again."""
    try:
        return Finding("p4c", "ok", p4.p4c_version(p4.find_p4c()))
    except (InputError, MachineError, OSError) as error:
        found, _, _ = str(error).partition(";")
        return Finding(
            "p4c", "note", found, "only for changing the P4 program: install p4c, then tensorexpress p4 build"
        )


def find_bmv2() -> str | None:
    """Return the simple_switch_grpc to use: the one the environment names, or the one on PATH."""
    return shutil.which(os.environ.get(BMV2_VARIABLE) or BMV2)


def bmv2_options(program: str, thrift_port: int) -> list[str]:
    """Return the general options to start a simple_switch_grpc with; one built without Thrift knows no port for it."""
    thrift = ["--thrift-port", str(thrift_port)] if _has_thrift(program) else []
    return ["--no-p4", "--device-id", "1", *thrift, "-L", "off"]


@cache
def _has_thrift(program: str) -> bool:
    ran = _run(program, "--help")
    return ran is not None and "--thrift-port" in ran.stdout + ran.stderr


def check_bmv2() -> Finding:
    """Whether BMv2 is here and has priority queues."""
    named = os.environ.get(BMV2_VARIABLE)
    path = find_bmv2()
    if path is None:
        return Finding(
            BMV2,
            "note",
            f"{BMV2_VARIABLE}={named} is no program" if named else "not on PATH",
            f"only for running on BMv2: install it, or name it with {BMV2_VARIABLE}; tensorexpress switch needs none",
        )
    said = _version_in(_run(path, "--version"))
    if said is None:
        return Finding(BMV2, "note", f"{path} does not say a version", f"name BMv2's {BMV2} with {BMV2_VARIABLE}")
    if _as_numbers(said) < BMV2_NEEDED:
        needed = ".".join(map(str, BMV2_NEEDED))
        return Finding(BMV2, "note", f"{said}, without --priority-queues", f"install {needed} or later")
    return Finding(BMV2, "ok", f"{said}; start it with --priority-queues 8 behind --")


def check_buffers() -> Finding:
    """Which targets cannot share a port's buffer between its queues as plans and simulator do."""
    found = "; ".join(f"{target} {otherwise}" for target, otherwise in OTHERWISE.items())
    return Finding(
        "port buffers", "note", found, "where packets are dropped, compare with runs of the embedded switch instead"
    )


# Tools, qdiscs and permissions.


def check_tool(name: str, version_option: str, package: str) -> Finding:
    """Whether a tool of Linux networking is here."""
    path = shutil.which(name)
    if path is None:
        return Finding(name, "note", "not on PATH", f"install {package}, or add /usr/sbin to PATH")
    return Finding(name, "ok", _version_in(_run(path, version_option)) or path)


def check_qdisc(kind: str) -> Finding:
    """Whether the kernel has a kind of qdisc: tried out where that is possible, else looked up."""
    name = f"qdisc {kind}"
    is_there, how = _try_qdisc(kind), "tried"
    if is_there is None:
        is_there, how = _look_qdisc_up(kind), "by the kernel's configuration"
    if is_there is None:
        return Finding(name, "note", "unknown", "run tensorexpress doctor as root, with ip, tc and unshare on PATH")
    if is_there:
        return Finding(name, "ok", f"there ({how})")
    return Finding(
        name,
        "note",
        f"not in this kernel ({how})",
        f"{QDISCS[kind][1]}; modprobe sch_{kind}, or use a kernel that has it",
    )


def _try_qdisc(kind: str) -> bool | None:
    """Put a qdisc on a cable in a namespace that ends with the process; None when that cannot be tried."""
    cable = "ip link add te0 numtxqueues 2 type veth peer name te1"
    script = f"{cable} && tc qdisc add dev te0 root {kind} {QDISCS[kind][0]}"
    # Root may just make a namespace; others may where they are allowed to be root in one of their own.
    for becoming_root in ((), ("--user", "--map-root-user")):
        ran = _run("unshare", *becoming_root, "--net", "sh", "-c", script)
        if ran is not None and ran.returncode == 0:
            return True
        if ran is not None and re.search("qdisc kind is unknown|qdisc not found", ran.stderr):
            return False
    return None


def _look_qdisc_up(kind: str) -> bool | None:
    """Find a qdisc among the modules and in the configuration of the running kernel; None when neither is there."""
    release = platform.release()
    lists = [_text(Path("/lib/modules", release, name)) for name in ("modules.builtin", "modules.dep")]
    if any(f"/sch_{kind}.ko" in text for text in lists if text):
        return True
    configuration = _text(Path("/proc/config.gz")) or _text(Path(f"/boot/config-{release}"))
    if configuration is not None:
        return re.search(f"^CONFIG_NET_SCH_{kind.upper()}=[ym]$", configuration, re.MULTILINE) is not None
    return False if all(lists) else None


def check_capability(name: str) -> Finding:
    """Whether this process may do what takes a capability."""
    status = _text(Path("/proc/self/status"))
    held = re.search(r"^CapEff:\s*([0-9a-f]+)$", status or "", re.MULTILINE)
    if held is None:
        return Finding(name, "note", "unknown: no /proc", _RIGHTS)
    if int(held[1], 16) >> CAPABILITIES[name] & 1:
        return Finding(name, "ok", "held")
    return Finding(name, "note", "not held", _RIGHTS)


def check_user_namespaces() -> Finding:
    """Whether a user may make network namespaces without being root."""
    name = "user namespaces"
    ran = _run("unshare", "--user", "--map-root-user", "true")
    if ran is None:
        return Finding(name, "note", "unknown: no unshare", "install util-linux")
    if ran.returncode == 0:
        return Finding(name, "ok", "allowed")
    reason = _one_line(ran.stderr)
    return Finding(name, "note", f"not allowed ({reason})", "run as root what needs interfaces of its own")


# What is free, and how fast it is.


def check_port(name: str, address: tuple[str, int], otherwise: str) -> Finding:
    """Whether a switch can listen where it does unless told otherwise."""
    shown = f"{address[0]}:{address[1]}"
    with socket.socket() as listener:
        # As servers do: connections that are closed already do not keep a port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            remedy = f"look at it with --switch, if it is a switch; start another with {otherwise}"
            return Finding(name, "note", f"{shown}: {os.strerror(error.errno or 0)}", remedy)
    return Finding(name, "ok", f"{shown} is free")


def check_socket() -> Finding:
    """Return whether `tensorexpress switch` can listen at its default address."""
    name = "socket of P4Runtime"
    try:
        address = default_address(1)
    except InputError as error:
        found, _, remedy = str(error).partition("; ")
        return Finding(name, "note", found, remedy)
    if os.path.lexists(address.path):
        return Finding(name, "note", f"{address} is there", "look at its switch with --switch s0; others: --device-id")
    return Finding(name, "ok", f"{address} is free")


def check_udp_segmentation() -> Finding:
    """Whether the kernel cuts one large write into many datagrams."""
    name = "UDP segmentation"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        try:
            sender.setsockopt(SOL_UDP, UDP_SEGMENT, 1400)
        except OSError as error:
            return Finding(
                name, "note", f"no UDP_SEGMENT ({error.strerror})", "senders are slower; use Linux 4.18 or later"
            )
    return Finding(name, "ok", "UDP_SEGMENT is there")


def check_cores() -> Finding:
    """How many cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores > 1:
        return Finding("cores", "ok", str(cores))
    return Finding(
        "cores", "note", "1", "a switch forwards on one core and is controlled on another; rates will be lower"
    )


def check_clock() -> Finding:
    """How finely time can be told."""
    resolution_ps = round(time.get_clock_info("monotonic").resolution * PS_PER_SECOND)
    found = f"resolution {format_time(resolution_ps)}"
    if resolution_ps <= 10**6:
        return Finding("clock", "ok", found)
    return Finding("clock", "note", found, "waits shorter than this are measured as zero")


# Looking.


def _run(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Run a program and return what it said; None when there is none, or it does not end."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=_LONGEST_RUN_S
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None


def _version_in(ran: subprocess.CompletedProcess[str] | None) -> str | None:
    found = re.search(r"\d+(\.\d+)+", ran.stdout + ran.stderr) if ran is not None else None
    return found[0] if found else None


def _as_numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _text(path: Path) -> str | None:
    """Return a file's text, unpacked where it is packed; None when it cannot be read."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, ValueError):
        return None


def _one_line(text: str) -> str:
    return " ".join(text.split())
