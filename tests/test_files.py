"""Files: whole or not at all, on the disk before they have their name; full disks; two who write to one directory."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress import files
from tensorexpress.cli import main
from tensorexpress.errors import InputError, StorageError
from tensorexpress.files import failures_kept, locked_directory, read_json, read_within, write_atomic

SMALL = ["--set", "job.model=alexnet", "--set", "job.workers=2", "--set", "job.servers=1", "--set", "iterations=1"]
FULL = "the disk is full; free room, or give another file"


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 64 KB that has no room left."""
    place = tmp_path_factory.mktemp("full")
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounts a small file system, which needs root")
    try:
        with open(place / "filler", "wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_full_disk_gives_a_line_that_says_so_and_leaves_nothing(full_disk: Path) -> None:
    with pytest.raises(StorageError) as failure:
        write_atomic(full_disk / "a.json", bytes(10_000))
    assert str(failure.value) == f"cannot write '{full_disk}/a.json': {FULL}"
    assert failure.value.exit_code == 1
    assert os.listdir(full_disk) == ["filler"]


def test_on_a_full_disk_what_was_there_stays(full_disk: Path) -> None:
    (full_disk / "filler").chmod(0o600)
    before = (full_disk / "filler").read_bytes()
    with pytest.raises(StorageError):
        write_atomic(full_disk / "filler", bytes(10_000))
    assert (full_disk / "filler").read_bytes() == before


@rest(but=2)
@pytest.mark.parametrize(
    "command",
    [
        ["plan", *SMALL, "-o", "{}/plan.json"],
        ["predict", *SMALL, "--json", "{}/a.json", "--csv", "{}/a.csv", "--trace", "{}/b.json"],
        ["predict", *SMALL, "--plot", "{}/a.png"],
        ["predict", *SMALL, "--save", "{}"],
        ["explain", *SMALL, "--json", "{}/a.json"],
        ["sweep", *SMALL, "--vary", "job.workers=1,2", "--csv", "{}/a.csv", "--processes", "1"],
        ["doctor", "--json", "{}/a.json"],
    ],
)
def test_the_table_is_printed_although_the_disk_is_full(full_disk: Path, command: list[str]) -> None:
    result = CliRunner().invoke(main, [word.format(full_disk) for word in command])
    assert result.exit_code == 1, result.output
    assert len(result.stdout.splitlines()) > 3
    assert result.stderr.count("\n") == 1
    assert FULL in result.stderr
    assert os.listdir(full_disk) == ["filler"]


@rest(but=1)
@pytest.mark.parametrize(
    "command",
    [
        ["report", *SMALL, "--no-explain", "-o", "{}/a.html"],
        ["predict", *SMALL, "--report", "{}/a.html"],
        ["models", "show", "resnet50", "--csv", "{}/a.csv"],
    ],
)
def test_a_file_that_a_full_disk_does_not_take_is_not_announced(full_disk: Path, command: list[str]) -> None:
    result = CliRunner().invoke(main, [word.format(full_disk) for word in command])
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("tensorexpress: error: cannot write")
    assert result.stderr.count("\n") == 1
    assert str(full_disk) not in result.stdout
    assert os.listdir(full_disk) == ["filler"]


@pytest.mark.parametrize("opened", [False, True], ids=["without a writer", "with one"])
def test_a_named_pipe_is_read_where_a_process_writes_to_it_and_refused_elsewhere(
    opened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if opened:
        with subprocess.Popen(["sh", "-c", f"printf '[1, 2]' > {shlex.quote(str(pipe))}"]):
            assert read_json(pipe, "give JSON") == [1, 2]
        return
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.01)
    with pytest.raises(InputError, match=r"cannot be read \(a pipe that no process writes to\); give JSON"):
        read_json(pipe, "give JSON")


def test_more_bytes_than_accepted_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "four").write_bytes(b"four")
    assert read_within(tmp_path / "four", 4) == b"four"
    for path, most_bytes in ((tmp_path / "four", 3), ("/dev/zero", 1000)):
        with pytest.raises(OSError, match=f"larger than {most_bytes} bytes"):
            read_within(path, most_bytes)


def test_a_device_that_is_full_is_said_so() -> None:
    result = CliRunner().invoke(main, ["plan", *SMALL, "-o", "/dev/full"])
    assert result.exit_code == 1
    assert "cannot write '/dev/full': the disk is full" in result.stderr


@rest(but=1)
@pytest.mark.parametrize("command", [["models"], ["predict", *SMALL, "--json", "-"]])
def test_a_full_disk_behind_standard_output_is_one_line(command: list[str]) -> None:
    program = [sys.executable, "-c", "from tensorexpress.cli import main; main()", *command]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, f"tensorexpress: error: cannot write to standard output: {FULL}\n")


def test_other_files_are_written_where_one_has_no_room(tmp_path: Path) -> None:
    def write_three() -> None:
        with failures_kept():
            written = [write_atomic(path, "c") for path in ("/dev/full", tmp_path / "c", "/dev/full")]
            assert written == [False, True, False]

    with pytest.raises(StorageError, match=r"'/dev/full'.*\(1 more could not be written\)"):
        write_three()
    assert (tmp_path / "c").read_text() == "c"


@pytest.mark.skipif(shutil.which("strace") is None, reason="looks at system calls with strace")
def test_data_is_on_the_disk_before_the_file_has_its_name(tmp_path: Path) -> None:
    script = "import sys; from tensorexpress.files import write_atomic; write_atomic(sys.argv[1], 'new')"
    log, program = tmp_path / "calls", [sys.executable, "-c", script, str(tmp_path / "file")]
    looking = ["strace", "-f", "-o", str(log), "-e", "trace=fsync,rename,renameat,renameat2"]
    if subprocess.run([*looking, *program], capture_output=True, check=False).returncode:
        pytest.skip("strace may not look here")
    calls = [line.split("(")[0].split()[-1] for line in log.read_text().splitlines() if "(" in line]
    assert calls[-3:] == ["fsync", "rename", "fsync"]


HOLDS = """
import sys
from tensorexpress.files import locked_directory
with locked_directory(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@rest()
def test_a_directory_that_another_process_writes_to_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "runs"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=r"runs' is being written to by another process"), locked_directory(place):
            pass
        for command in (["run", *SMALL, "--scale", "auto", "--wires", "-o"], ["predict", *SMALL, "--save"]):
            result = CliRunner().invoke(main, [*command, str(place)])
            assert result.exit_code == 2
            assert result.stderr.count("\n") == 1
            assert "is being written to by another process; give another directory" in result.stderr
        assert os.listdir(place) == [".tensorexpress.lock"]
        holder.kill()
    # It was killed, so the file is still there; the lock is not.
    assert os.listdir(place) == [".tensorexpress.lock"]
    with locked_directory(place):
        pass
    assert os.listdir(place) == []


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".tensorexpress.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="cannot write to"), locked_directory(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()
