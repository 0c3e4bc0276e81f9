"""Who can connect to a switch: addresses, sockets and their modes, and what is refused before anybody could."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.runtime_support import Client, StrictDataPath
from support.switches import EmbeddedSwitch
from support.thorough import rest
from test_device_process import command

from tensorexpress.cli import main
from tensorexpress.control_address import LONGEST_PATH_BYTES, default_address, parse_address
from tensorexpress.errors import InputError, NetworkError
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.p4runtime.service import RuntimeServer, serve

NOBODY = 65534


def version(address: str) -> str:
    with Client(parse_address(address, "address").for_grpc) as client:
        answer = client.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=20)
    return str(answer.p4runtime_api_version)


def served(path: Path) -> RuntimeServer:
    return serve(StrictDataPath(), f"unix:{path}")


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "0:0", "[::ffff:192.0.2.1]:0"])
def test_other_machines_are_let_in_only_when_the_user_says_so(address: str) -> None:
    with pytest.raises(InputError, match=r"can be reached from other machines.* or --insecure") as error:
        serve(StrictDataPath(), address)
    assert "\n" not in str(error.value)


def test_insecure_says_so() -> None:
    with serve(StrictDataPath(), "0.0.0.0:0", insecure=True) as server:
        assert version(server.address.replace("0.0.0.0", "127.0.0.1")) == "1.4.1"


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.3.2.1:0", "localhost:0"])
def test_loopback_needs_no_word(address: str) -> None:
    with serve(StrictDataPath(), address) as server:
        assert version(server.address) == "1.4.1"


@rest(but=3)
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:99999", "port 99999 is out of range; accepted: 0 to 65535"),
        ("localhost", "is no address; accepted: HOST:PORT, [IPV6]:PORT or unix:PATH"),
        ("unix-abstract:5", "is no address"),
        ("vsock:1:2", "is no address"),
        ("ipv4:127.0.0.1:5", "is no address"),
        ("[1.2.3.4]:5", "is no IPv6 address"),
        ("unix:", "names no path"),
        ("unix:" + "x" * (LONGEST_PATH_BYTES + 1), f"a path of {LONGEST_PATH_BYTES + 1} bytes; accepted: at most"),
    ],
)
def test_an_address_that_is_none_is_one_line(address: str, said: str) -> None:
    result = CliRunner().invoke(main, ["switch", "--grpc", address])
    assert result.exit_code == 2
    assert result.output.startswith(f"tensorexpress: error: --grpc {address!r}")
    assert said in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["switch", "--rate", "0"], "--rate '0' would send nothing"),
        (["switch", "--port", "1@lo", "--rate", "1=0 Mbps"], "--rate '0 Mbps' would send nothing"),
        (["switch", "--no-grpc"], "--no-grpc without a program"),
        (["switch", "--grpc", "[::]:9559"], "can be reached from other machines"),
        (["status", "--switch", "s0=127.0.0.1:99999"], "--switch 's0=127.0.0.1:99999': port 99999 is out of range"),
        (["status", "--switch", "s0=unix:"], "--switch 's0=unix:' names no path"),
    ],
)
def test_what_would_make_no_switch_or_an_open_one_is_refused(options: list[str], said: str) -> None:
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2
    assert said in result.output
    assert result.output.count("\n") == 1


def test_a_socket_is_of_its_user_alone_and_goes_with_the_switch(tmp_path: Path) -> None:
    path = tmp_path / "a b%20#?é.sock"
    before = os.umask(0)
    try:
        with served(path):
            assert version(f"unix:{path}") == "1.4.1"
            mode = path.stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o600
            assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


def test_a_socket_that_is_left_over_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with served(path):
        with pytest.raises(NetworkError, match="another process does; stop it"):
            served(path)
        assert version(f"unix:{path}") == "1.4.1"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory of this user, with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)


def test_a_switch_without_an_address_is_its_users_alone_and_commands_find_it(runtime: Path, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    assert CliRunner().invoke(main, ["plan", "--set", "job.workers=2", "-o", plan]).exit_code == 0
    with command("--device-id", "7") as (process, ready):
        path = runtime / "tensorexpress" / "switch-7.sock"
        assert f"P4Runtime at unix:{path};" in ready
        assert [stat.S_IMODE(each.lstat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]
        named = ("--switch", "s0", "--device-id", "7")
        deployed = CliRunner().invoke(main, ["deploy", plan, *named, "--partial"])
        assert deployed.stdout.startswith(f"s0 at unix:{path}: program loaded; "), deployed.output
        for verb in ("status", "doctor"):
            assert f"s0 at unix:{path}\n" in CliRunner().invoke(main, [verb, *named]).stdout
        assert connecting_as_nobody(str(path)) == "PermissionError\n"
        other = CliRunner().invoke(main, ["status", "--switch", "s0"])
        assert (other.exit_code, other.output.count("\n")) == (1, 1)
        assert f"s0 at unix:{path.parent}/switch-1.sock: no socket is there; start the switch" in other.output
        process.terminate()
        process.wait()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("verb", [("switch",), ("status", "--switch", "s0"), ("deploy", "p", "--switch", "s0")])
@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_that_other_users_may_enter_is_refused(runtime: Path, verb: tuple[str, ...], mode: int) -> None:
    directory = runtime / "tensorexpress"
    directory.mkdir()
    directory.chmod(mode)
    result = CliRunner().invoke(main, verb)
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert (
        f"{str(directory)!r} is no directory of mode 0700; chmod 0700 or remove it, or name a socket" in result.output
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(runtime: Path) -> None:
    directory = runtime / "tensorexpress"
    directory.mkdir(0o700)
    os.chown(directory, NOBODY, NOBODY)
    for make in (False, True):
        with pytest.raises(InputError, match=f"belongs to another user .uid {NOBODY}.; name a socket"):
            default_address(1, make=make)
    # Nor is a runtime directory of another user taken, which sudo may leave in the environment.
    os.chown(runtime, NOBODY, NOBODY)
    assert not default_address(1).path.startswith(str(runtime))


def test_a_link_is_no_directory_of_its_own(runtime: Path) -> None:
    (runtime / "elsewhere").mkdir(0o700)
    (runtime / "tensorexpress").symlink_to("elsewhere")
    with pytest.raises(InputError, match="is no directory of mode 0700"):
        default_address(1, make=True)


def test_without_a_runtime_directory_the_users_number_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "relative", "/nonexistent"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        user = os.geteuid()
        assert default_address(3).path in (
            f"/run/user/{user}/tensorexpress/switch-3.sock",
            f"/tmp/tensorexpress-{user}/switch-3.sock",
        )


def test_what_is_no_socket_stays_where_it_is(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("precious")
    link.symlink_to(file)
    for path in (file, link, tmp_path):
        with pytest.raises(InputError, match="no socket is there"):
            served(path)
    with pytest.raises(InputError, match="is no directory; make it first"):
        served(tmp_path / "missing" / "s.sock")
    assert file.read_text() == "precious"
    assert link.is_symlink()


def test_the_shell_of_p4runtime_speaks_over_a_socket(tmp_path: Path) -> None:
    shell = pytest.importorskip("p4runtime_sh.p4runtime", reason="p4runtime-shell is not installed")
    with served(tmp_path / "s.sock") as server:
        client = shell.P4RuntimeClient(1, server.address, (0, 1))
        try:
            assert client.api_version() == "1.4.1"
        finally:
            client.tear_down()


def connecting_as_nobody(path: str) -> str:
    """Return what another user of this machine meets who connects to a socket."""
    if os.geteuid() != 0:
        pytest.skip("only root can try as another user")
    script = (
        "import os, socket, sys\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "try: socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n"
        "except OSError as error: print(type(error).__name__)\n"
        "else: print('connected')\n"
    )
    return subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True).stdout


def test_another_user_cannot_connect() -> None:
    switch = EmbeddedSwitch()
    try:
        path = switch.address.removeprefix("unix:")
        assert connecting_as_nobody(path) == "PermissionError\n"
        # Not even where the directory is open to all: the socket itself is not.
        os.chmod(os.path.dirname(path), 0o755)
        assert connecting_as_nobody(path) == "PermissionError\n"
        os.chmod(path, 0o666)
        assert connecting_as_nobody(path) == "connected\n"
    finally:
        switch.stop()
