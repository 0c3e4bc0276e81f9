"""What takes root, for users who are not: a verb begins again as root of a user namespace of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.training_run import write_workload

from tensorexpress.cli import main
from tensorexpress.errors import NetworkError
from tensorexpress.target import namespaces

COMMAND = Path(sys.executable).parent / "tensorexpress"

#: Root is somebody else for these tests; the files of root are still that user's own.
AS_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000") if os.geteuid() == 0 else ()

#: Of namespaces of its own, a user has just the one that makes it this user.
WITHOUT_NAMESPACES = (
    "unshare", "--user", "--map-root-user",
    "sh", "-c", 'echo 1 > /proc/sys/user/max_user_namespaces && exec unshare --user --map-user=1000 "$@"', "sh",
)  # fmt: skip


def works(*command):
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_own_root = pytest.mark.skipif(
    not works(*AS_USER, *namespaces._AS_OWN_ROOT, "ip", "link", "add", "near", "type", "veth", "peer", "name", "far"),
    reason="users may not be root in a namespace of their own here, with veth",
)


@pytest.fixture
def scenario(tmp_path):
    write_workload(tmp_path, scale=0.05)
    path = tmp_path / "small.toml"
    path.write_text(
        'iterations = 1\npolicies = ["fifo"]\n[cluster]\nbandwidth = "20 Mbps"\n'
        '[job]\ncsv = "layers.csv"\nworkers = 2\nservers = 1\n'
    )
    return path


def run_as_user(*arguments):
    return subprocess.run([*AS_USER, COMMAND, "run", *arguments], capture_output=True, text=True, check=False)


def interfaces():
    return set(os.listdir("/sys/class/net"))


@needs_own_root
@pytest.mark.parametrize("how", [("--target", "linux"), ("--veth",)], ids=" ".join)
def test_users_run_what_takes_root(scenario, how):
    before = interfaces()
    ran = run_as_user(scenario, *how, "-o", scenario.parent / "runs")
    assert ran.returncode == 0, ran.stderr
    target = how[1] if len(how) == 2 else "embedded"
    assert f"Measured on the target {target}; every worker found every sum of 2 iterations exact" in ran.stdout
    assert (scenario.parent / "runs" / "fifo.trace").stat().st_uid == os.geteuid()
    assert interfaces() == before


@needs_own_root
def test_what_is_wrong_is_said_once(scenario):
    ran = run_as_user(scenario, "--target", "linux", "--policy", "tensorexpress+sum")
    assert ran.returncode == 2
    assert ran.stderr.startswith("tensorexpress: error: ")
    assert ran.stderr.count("\n") == 1


@pytest.mark.skipif(not works(*WITHOUT_NAMESPACES, "true"), reason="user namespaces cannot be used up here")
def test_where_users_may_not_be_root_it_is_said_why(scenario):
    ran = subprocess.run(
        [*WITHOUT_NAMESPACES, COMMAND, "run", scenario, "--veth"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == NetworkError.exit_code
    assert ran.stderr == (
        "tensorexpress: error: network namespaces need root; run as root, or take the target embedded with --wires, "
        "which needs none; nor may this user be root in a namespace of its own: unshare: unshare failed: No space left "
        "on device\n"
    )


def test_only_a_command_of_its_own_begins_again(scenario, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "execvp", lambda *arguments: pytest.fail("another program would end here"))
    result = CliRunner().invoke(main, ["run", str(scenario), "--veth"])
    assert result.exit_code == NetworkError.exit_code
    assert result.stderr.startswith("tensorexpress: error: network namespaces need root; ")


def test_without_unshare_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetworkError, match="needs the program `unshare`; install util-linux"):
        namespaces.as_own_root(["true"])
