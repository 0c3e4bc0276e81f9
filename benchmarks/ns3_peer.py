"""The ns-3 peer of the replay benchmark: builds `ns3_replay.cc` against the installed `ns3` wheel and runs it.

ns-3 gets the same packets and the same star network as our own replay, and gives back the time each packet
arrives at its destination, so that the two can be compared packet by packet and not only by speed. The times
are equal when
- `bytes * 8 / rate` is a whole number of picoseconds (ns-3 rounds to the nearest, we round up);
- no two packets reach one switch port in the same picosecond; random injection times make this rare;
- under strict priority, a packet that arrives as the port becomes free is a candidate to be served next. ns-3 does so
  where packet sizes differ by less than `delay * rate / 8` bytes (1250 at 10 Gbps and 1 us), and otherwise not
  always; `ns3_replay.cc` says why. Random times do not prevent this tie.

The peer is ns-3 as the wheel ships it: a release build with ns-3's log and assertion checks compiled in. A ratio to
it says nothing about an ns-3 built from source without them.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorexpress.errors import SimulationError, TensorExpressError

SOURCE = Path(__file__).with_name("ns3_replay.cc")

#: One record of the packet file `ns3_replay.cc` reads.
PACKET = np.dtype([("time_ps", "<i8"), ("src", "<i4"), ("dst", "<i4"), ("bytes", "<i4"), ("rank", "<i4")])

_COMPILER = "g++"
_MODULES = ("point-to-point", "network", "core")


def available() -> str | None:
    """Return None when the peer can be built here, otherwise one line that says why not."""
    try:
        metadata.distribution("ns3")
    except metadata.PackageNotFoundError:
        return "the ns3 wheel is not installed; pip install ns3"
    if shutil.which(_COMPILER) is None:
        return f"there is no {_COMPILER} to compile {SOURCE.name} with; install a C++ compiler"
    return None


def build(directory: Path) -> Path:
    """Compile the replay program into `directory`, unless it is there already, and return its path.

    The file's name holds a digest of source and compiler command, so a change of either compiles anew.
    """
    if reason := available():
        raise TensorExpressError(f"ns-3 cannot be built: {reason}")
    command = _compile_command()
    digest = hashlib.sha256(SOURCE.read_bytes() + "\0".join(command).encode()).hexdigest()
    program = directory / f"ns3_replay-{digest[:12]}"
    if not program.exists():
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(".part")
        result = subprocess.run([*command, "-o", str(unfinished)], capture_output=True, text=True)
        if result.returncode != 0:
            raise TensorExpressError(f"{_COMPILER} could not compile {SOURCE.name}: {_one_line(result.stderr)}")
        unfinished.rename(program)
    return program


def run(
    program: Path,
    packets: NDArray[np.void],
    *,
    hosts: int,
    rate_bps: int,
    delay_ps: int,
    discipline: str,
    queues: int,
) -> tuple[NDArray[np.int64], float]:
    """Replay `packets` through a star of `hosts` and return their arrival times in ps and ns-3's seconds.

    `packets` has the fields time_ps, src, dst, bytes, rank and is sorted by time_ps; `discipline` is "fifo" or
    "strict", and under "strict" a rank is one of `queues` queues, 0 the most urgent. The seconds are the wall
    time of ns-3's event loop alone, without reading files and building the network.
    """
    with tempfile.TemporaryDirectory() as scratch:
        packet_file, arrival_file = Path(scratch, "packets"), Path(scratch, "arrivals")
        # numpy converts structured arrays by position, so the fields are first put in the file's order.
        packets[list(PACKET.names or ())].astype(PACKET).tofile(packet_file)
        result = subprocess.run(
            [
                str(program),
                f"--packets={packet_file}",
                f"--arrivals={arrival_file}",
                f"--hosts={hosts}",
                f"--rate={rate_bps}",
                f"--delay={delay_ps}",
                f"--discipline={discipline}",
                f"--queues={queues}",
            ],
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            raise SimulationError(f"ns-3 stopped with status {result.returncode}: {_one_line(result.stderr)}")
        return np.fromfile(arrival_file, dtype="<i8").astype(np.int64), _seconds(result.stdout)


def _compile_command() -> list[str]:
    root = Path(str(metadata.distribution("ns3").locate_file("ns3")))
    libraries = [_library(root, module) for module in _MODULES]
    return [
        _COMPILER,
        "-std=c++20",
        "-O3",
        # As system headers, so that warnings are about our source alone.
        "-isystem",
        str(root / "include"),
        str(SOURCE),
        *map(str, libraries),
        f"-Wl,-rpath,{libraries[0].parent}",
    ]


def _library(root: Path, module: str) -> Path:
    # The name holds ns-3's version: libns3.44-core.so.
    found = sorted(root.glob(f"lib*/libns3*[0-9]-{module}.so"))
    if not found:
        raise TensorExpressError(f"the ns3 wheel holds no {module} library under {root}; reinstall it")
    return found[0]


def _seconds(report: str) -> float:
    # The program's last line reads "1000000 packets in 3.2 s".
    return float(report.split()[-2])


def _one_line(text: str) -> str:
    return " ".join(text.split())
