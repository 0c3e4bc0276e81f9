"""Every option that names a file, given paths that are none: one line each, nothing half-written, no wait for ever."""

from __future__ import annotations

import os
import resource
import shlex
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress import files
from tensorexpress.cli import main
from tensorexpress.p4 import load
from tensorexpress.switch.pcap import TimedFrame, write_pcap
from tensorexpress.target import speed

#: Commands with "@" for an input.
INPUTS = (
    "predict @",
    "predict --set job.csv=@",
    "predict --set cluster.topology=p4 --set cluster.file=@",
    "predict small.toml --calibration @",
    "sweep @",
    "tune @",
    "explain @",
    "profile @:build",
    "import @",
    "hot @",
    "place @",
    "plan @",
    "switch replay @ --in 0=frames.pcap --out made",
    "switch replay program.json --in 0=@ --out made",
    "switch replay program.json --p4info @ --entries entries --in 0=frames.pcap --out made",
    "switch replay program.json --p4info info --entries @ --in 0=frames.pcap --out made",
    "switch --grpc 127.0.0.1:0 --tls-cert @ --tls-key key.pem",
    "switch --grpc 127.0.0.1:0 --tls-cert key.pem --tls-key @",
    "switch --grpc 127.0.0.1:0 --tls-cert key.pem --tls-key key.pem --tls-ca @",
    "switch --no-grpc --program @",
    "switch --no-grpc --program program.json --p4info @",
    "switch --no-grpc --program program.json --p4info info --entries @",
    "deploy @ --switch s0=127.0.0.1:1",
    "deploy plan.json --switch s0=127.0.0.1:1 --hosts @",
    "deploy plan.json --switch s0=127.0.0.1:1 --tls-ca @",
    "deploy plan.json --switch s0=127.0.0.1:1 --tls-cert @ --tls-key key.pem",
    "deploy plan.json --switch s0=127.0.0.1:1 --tls-cert key.pem --tls-key @",
    "status --switch s0=127.0.0.1:1 --plan @",
    "status --switch s0=127.0.0.1:1 --tls-ca @",
    "tag --dev lo --port 80 --queue 0 --plan @",
    "tag --dev lo --dscp 8 --cgroup @",
    "run @",
    "run --plan @",
    "run --script @",
    "calibrate @ --baseline 'fifo=1 s'",
    "compare @",
    "compare runs/fifo.trace @",
    "compare runs/fifo.trace --predict --calibration @",
    "report @",
    "report small.toml --calibration @",
    "export @ --format nccl",
    "decode @",
    "doctor --switch s0=127.0.0.1:1 --tls-ca @",
)

#: Commands with "@" for an output; they succeed where it can be written.
OUTPUTS = (
    "predict small.toml --json @",
    "predict small.toml --csv @",
    "predict small.toml --plot @",
    "predict small.toml --report @",
    "predict small.toml --trace @",
    "predict small.toml --save @",
    "sweep small.toml --vary seed=1,2 --processes 1 --json @",
    "sweep small.toml --vary seed=1,2 --processes 1 --csv @",
    "sweep small.toml --vary seed=1,2 --processes 1 --plot @",
    "tune small.toml --budget 1 --processes 1 -o @",
    "tune small.toml --budget 1 --processes 1 --fragment @",
    "tune small.toml --budget 1 --processes 1 --json @",
    "tune small.toml --budget 1 --processes 1 --csv @",
    "explain small.toml --policy p3 --json @",
    "explain small.toml --policy p3 --plot @",
    "models show vgg16 --csv @",
    "import words.txt --unit ns -o @",
    "hot counts.csv --keys 10 --json @",
    "hot counts.csv --keys 10 --plot @",
    "hot counts.csv --keys 10 -o @",
    "place small.toml --json @",
    "plan small.toml --plot @",
    "plan small.toml -o @",
    "switch replay program.json --in 0=frames.pcap --out @",
    "compare runs/fifo.trace runs/fifo.trace --json @",
    "compare runs/fifo.trace runs/fifo.trace --plot @",
    "report small.toml --no-explain -o @",
    "export plan.json --format nccl -o @",
    "decode frames.pcap --json @",
    "doctor --json @",
)

#: What a path may be beside a file of the right kind.
NO_INPUTS = {
    "missing": "missing/file",
    "folder": "folder",
    "below a file": "small.toml/file",
    "pipe": "pipe",
    "socket": "socket",
    "endless": "/dev/zero",
    "not text": "binary",
    "long": "a" * 300,
    "loop": "loop",
}
NO_OUTPUTS = {
    "missing": "missing/file",
    "folder": "folder",
    "below a file": "small.toml/file",
    "full": "/dev/full",
    "socket": "socket",
    "long": "a" * 300,
    "loop": "loop",
}

#: Longest wait of one command, far above what any takes: this ends waits without end.
_WATCHDOG_S = 120
#: Memory that a command may take beside what this process has.
_MEMORY_BYTES = 3 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a file of every kind that is right, and with paths that are no files."""
    here = tmp_path_factory.mktemp("paths")
    (here / "folder").mkdir()
    (here / "folder" / "file").touch()
    (here / "layers.csv").write_text("layer_index,numel,forward_ns,backward_ns\n0,20000,200000,400000\n")
    (here / "small.toml").write_text(
        'policies = ["fifo"]\niterations = 1\n[job]\ncsv = "layers.csv"\nworkers = 2\nservers = 1\n'
    )
    (here / "counts.csv").write_text("key,count\n7,3\n8,1\n")
    (here / "words.txt").write_text("DATA\n1\nconv1 -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 4000 5\n")
    (here / "key.pem").write_text("-----BEGIN NOTHING-----\n")
    (here / "entries").touch()
    (here / "binary").write_bytes(b"\xff\x00\xfe" * 50)
    write_pcap(here / "frames.pcap", [TimedFrame(5, bytes(60))])
    program = load()
    (here / "program.json").write_bytes(program.document)
    (here / "info").write_text(program.p4info)
    os.mkfifo(here / "pipe")
    (here / "loop").symlink_to("loop")
    with pytest.MonkeyPatch.context() as patch, socket.socket(socket.AF_UNIX) as listening:
        patch.chdir(here)
        listening.bind("socket")
        for command in ("plan small.toml -o plan.json", "predict small.toml --save runs"):
            assert CliRunner().invoke(main, shlex.split(command)).exit_code == 0
        yield here


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    found = {path: path.lstat() for path in folder.rglob("*")}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@contextmanager
def bounded() -> Iterator[None]:
    """End what waits or reads without end by an exception."""

    def bark(number: int, frame: object) -> None:
        raise AssertionError("waits without end")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(_WATCHDOG_S)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check_one_line(command: str, path: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.05)
    monkeypatch.setattr(speed, "known_bps", lambda target, load: 10**8)
    before = listing(folder)
    with bounded():
        result = CliRunner().invoke(main, shlex.split(command.replace("@", path)))
    assert isinstance(result.exception, SystemExit), (result.output, result.exception)
    assert result.exit_code in (1, 2), result.output
    assert result.stderr.startswith("tensorexpress: error: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.rstrip("\n").isprintable(), result.stderr
    assert listing(folder) == before


@rest(but=20)
@pytest.mark.parametrize("path", NO_INPUTS.values(), ids=list(NO_INPUTS))
@pytest.mark.parametrize("command", INPUTS)
def test_an_input_that_is_no_file_is_one_line(command, path, folder, monkeypatch):
    check_one_line(command, path, folder, monkeypatch)


@rest(but=10)
@pytest.mark.parametrize(
    ("command", "path"),
    [
        pytest.param(command, path, id=f"{command}: {name}")
        for command in OUTPUTS
        for name, path in NO_OUTPUTS.items()
        # A directory may be there, and is made where it is not.
        if name not in ("missing", "folder") or not command.endswith(("--save @", "--out @"))
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(command, path, folder, monkeypatch):
    check_one_line(command, path, folder, monkeypatch)
