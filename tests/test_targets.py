"""Targets: namespaces as hosts, BMv2, and programs that end with who started them."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.network import needs_bmv2, needs_root
from support.training_run import Killer, check_queues, small_plan

from tensorexpress.addresses import default_address
from tensorexpress.errors import NetworkError, PlanError
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES, parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.target import embedded, marks, namespaces
from tensorexpress.target.bmv2 import Bmv2Target
from tensorexpress.target.cabling import cables
from tensorexpress.target.runner import run_plan
from tensorexpress.units import PS_PER_MS


@needs_root
@needs_bmv2
def test_on_bmv2_sums_are_exact_and_every_tensor_is_in_its_queue(tmp_path):
    run = run_plan(small_plan(tmp_path, "iterations=1", scale=0.3), Bmv2Target())
    check_queues(run)
    assert run.trace.links["bytes"].min() > 0


@needs_root
@needs_bmv2
def test_bmv2s_thrift_ports_cannot_be_reached_from_the_machines_own_network(tmp_path):
    networks = []

    def look(network, pids):
        networks.extend(os.readlink(f"/proc/{switch.pid}/ns/net") for switch in network.switches.values())

    run_plan(small_plan(tmp_path, "iterations=1", scale=0.1), Bmv2Target(), started=look)
    assert networks
    assert os.readlink("/proc/self/ns/net") not in networks


@needs_root
@needs_bmv2
def test_a_run_survives_bmv2(tmp_path):
    killer = Killer("switch", signal.SIGKILL)
    plan = small_plan(tmp_path, "iterations=4", "transport.rto_min=20 ms", scale=0.1)
    run = run_plan(plan, Bmv2Target(), started=killer.started, progress=killer.progress)
    assert killer.iterations == 5
    assert run.trace.retransmissions > 0
    with pytest.raises(ProcessLookupError):
        os.kill(killer.pids["switch"], 0)


@needs_root
def test_a_host_is_a_namespace_whose_router_is_the_switch():
    with namespaces.host(default_address(4), mtu=1400) as (name, here):
        shown = subprocess.run(["ip", "-n", name, "addr"], capture_output=True, text=True, check=True).stdout
        assert "02:54:58:01:00:04" in shown
        assert "inet 10.0.0.5/32" in shown
        assert "mtu 1400" in shown
        route = subprocess.run(
            ["ip", "-n", name, "route", "get", "10.0.0.1"], capture_output=True, text=True, check=True
        )
        assert "via 169.254.1.1 dev eth0" in route.stdout
        assert here in os.listdir("/sys/class/net")
    assert here not in os.listdir("/sys/class/net")
    assert name not in os.listdir("/run/netns")


HOLDS_DIRECTORY = """
from tensorexpress.target import marks
with marks.private_directory() as path:
    print(path, flush=True)
    input()
"""


def test_directories_of_dead_processes_go_and_those_of_living_ones_and_of_others_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    open_to_all = tmp_path / "tensorexpress-run-open"
    open_to_all.mkdir(mode=0o755)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_DIRECTORY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        other = Path(process.stdout.readline().strip())
        assert stat.S_IMODE(other.stat().st_mode) == 0o700
        (other / "0.sock").touch()
        with marks.private_directory() as own:
            assert {other, Path(own), open_to_all} == set(tmp_path.iterdir())
        process.kill()
    with marks.private_directory() as own:
        assert {Path(own), open_to_all} == set(tmp_path.iterdir())
    assert [open_to_all] == list(tmp_path.iterdir())


STAYS = """
from tensorexpress.target import namespaces
with namespaces.namespace() as name, namespaces.cable(1500) as (here, there):
    print(name, here, there, flush=True)
    input()
"""


def there(name):
    return name in os.listdir("/run/netns") or name in os.listdir("/sys/class/net")


@contextmanager
def process_with_a_network():
    """A process that has made a namespace and a cable; gives it and their names."""
    with subprocess.Popen(
        [sys.executable, "-c", STAYS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


@needs_root
def test_only_what_dead_processes_left_is_removed():
    with process_with_a_network() as (process, names):
        assert len(names) == 3
        assert all(len(name) <= 15 and str(process.pid) not in name for name in names)
        with namespaces.namespace() as own:
            assert not set(namespaces.remove_leftovers()) & {own, *names}
            assert all(map(there, [own, *names]))
    # Killed: nobody has cleaned up.
    assert all(map(there, names))
    assert set(namespaces.remove_leftovers()) & set(names) >= set(names[:2])
    assert not any(map(there, names))
    assert not set(namespaces.remove_leftovers()) & set(names)


@needs_root
def test_what_only_looks_like_ours_is_never_removed():
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    foreign = [f"te{gone.pid}n0", "teabcdefgn0"]
    with ExitStack() as cleanup:
        for name in foreign:
            namespaces.ip([f"netns add {name}"])
            cleanup.callback(namespaces.ip, [f"netns del {name}"])
        namespaces.ip(["link add teabcdefgv1 type veth"])
        cleanup.callback(namespaces.ip, ["link del teabcdefgv1"])
        namespaces.remove_leftovers()
        assert all(map(there, [*foreign, "teabcdefgv1"]))


@needs_root
def test_nothing_is_noted_of_a_process_that_has_cleaned_up():
    with namespaces.namespace() as name:
        mark = marks.mark_of(name)
        assert (marks.directory() / mark).exists()
        with namespaces.cable(1500):
            pass
        assert (marks.directory() / mark).exists()
    assert not (marks.directory() / mark).exists()


@pytest.mark.parametrize("poison", ["open to others", "a link", "a file"])
def test_a_directory_of_marks_that_others_could_write_is_not_used(tmp_path, poison):
    place = tmp_path / "marks"
    if poison == "open to others":
        place.mkdir()
        place.chmod(0o777)
    elif poison == "a link":
        place.symlink_to(tmp_path)
    else:
        place.write_text("")
    with pytest.raises(NetworkError, match=r"there is no directory to note namespaces in.*mode 0700"):
        marks.directory(place)
    assert marks.directory(place, tmp_path / "other") == tmp_path / "other"
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o700


@needs_root
def test_what_ip_refuses_is_one_line():
    with pytest.raises(NetworkError, match=r"ip: .*Cannot find device.*needs root") as caught:
        namespaces.ip(["link set nothing-here up"])
    assert "\n" not in str(caught.value)


def test_a_program_that_is_tied_ends_with_who_started_it():
    script = (
        "import subprocess\n"
        "from tensorexpress import tied\n"
        "child = tied.start(tied.command('sleep', '1000'))\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        descriptor = os.pidfd_open(child)
        parent.kill()
    assert parent.returncode == -signal.SIGKILL
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)


def test_a_switch_that_is_just_started_again_can_be_stopped(monkeypatch, tmp_path):
    switch = embedded.SupervisedSwitch(LoopSettings({}), f"unix:{tmp_path}/0.sock")
    start, restarting, stopping = embedded.RunningSwitch, threading.Event(), threading.Event()

    def start_when_it_is_being_stopped(*arguments):
        restarting.set()
        stopping.wait()
        time.sleep(0.1)
        return start(*arguments)

    monkeypatch.setattr(embedded, "RunningSwitch", start_when_it_is_being_stopped)
    os.kill(switch.running.data_path.pid, signal.SIGKILL)
    restarting.wait()
    stopping.set()
    switch.stop()
    with pytest.raises(NetworkError):
        switch.running.data_path.statistics()


def test_a_watch_sees_how_long_nothing_ran():
    script = (
        "import sys\n"
        "from tensorexpress.target.machine import MachineWatch\n"
        "with MachineWatch() as watch:\n"
        "    print(flush=True)\n"
        "    sys.stdin.readline()\n"
        "print(watch.longest_stall_ps, watch.stalled)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as watching:
        watching.stdout.readline()
        watching.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        watching.send_signal(signal.SIGCONT)
        longest_ps, share = watching.communicate("\n")[0].split()
    assert int(longest_ps) > 300 * PS_PER_MS
    assert 0.1 < float(share) < 1


def test_ports_follow_the_policy():
    scenario = read_scenario(overrides=["cluster.buffer=unlimited", "cluster.queues=4"])
    disciplines = {
        policy: embedded.port_settings(make_plan(scenario, parse_policy(policy)), 10**6).discipline
        for policy in ("fifo", "p3", "tensorexpress", "tensorexpress:switch=sp-pifo,queues=slack")
    }
    assert list(disciplines.values()) == ["fifo", "fifo", "strict", "strict"]
    settings = embedded.port_settings(make_plan(scenario, POLICIES["fifo"]), 10**6)
    assert (settings.queues, settings.rate_bps) == (4, 10**6)
    assert settings.buffer_bytes == 0


def test_hosts_without_a_switch_between_them_are_refused():
    scenario = read_scenario(
        overrides=[
            "cluster.topology=custom",
            'cluster.hosts=["a", "b"]',
            'cluster.links=[["a", "b"]]',
            "job.workers=1",
            "job.servers=1",
        ]
    )
    with pytest.raises(PlanError, match="a and b are joined without a switch"):
        list(cables(make_plan(scenario, POLICIES["fifo"])))
