"""tensorexpress deploy --target linux: on a real interface in a namespace of its own where root is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner
from support.network import needs_root
from support.thorough import rest
from test_linux import namespaces_there, plan_on

from tensorexpress import tc
from tensorexpress.cli import main
from tensorexpress.doctor import check_qdisc
from tensorexpress.plan_file import plan_text
from tensorexpress.target import namespaces
from tensorexpress.topologies import custom, star
from tensorexpress.wire.dscp import queue_of_dscp

TENSOREXPRESS = [sys.executable, "-c", "from tensorexpress.cli import main; main()"]


def run(*arguments):
    return CliRunner().invoke(main, ["deploy", *map(str, arguments)])


@pytest.fixture
def plan_path(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(plan_text(plan_on(star(hosts=3, bandwidth="2 Gbps"))))
    return path


@pytest.fixture
def machine():
    """A namespace with one cable, whose near end is called nic0: runs commands there."""
    with namespaces.namespace() as name:
        namespaces.ip(["link add nic0 type veth peer name far0", "link set nic0 up", "link set far0 up"], name)

        def execute(*words):
            inside = ["ip", "netns", "exec", name, *map(str, words)]
            return subprocess.run(inside, capture_output=True, text=True, check=False)

        yield execute
    assert name not in namespaces_there()


def root_qdisc(machine):
    qdiscs = json.loads(machine("tc", "-j", "qdisc", "show", "dev", "nic0").stdout)
    return next((qdisc["kind"], qdisc["handle"]) for qdisc in qdiscs if qdisc.get("root"))


def classes_and_filters(machine):
    """What tc shows, but for the handles that the kernel hands out in turn."""
    shown = "".join(machine("tc", what, "show", "dev", "nic0").stdout for what in ("class", "filter"))
    return sorted(re.sub("leaf [0-9a-f]+:", "leaf", shown).splitlines())


@needs_root
def test_queues_are_set_up_again_and_removed(machine, plan_path):
    before = root_qdisc(machine)
    words = [*TENSOREXPRESS, "deploy", plan_path, "--target", "linux", "--dev", "nic0"]
    for rate in ("1 Gbps", "100 Mbps"):
        done = machine(*words, "--rate", rate)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"nic0: 8 queues by DSCP share {rate}; each holds up to 9 MB\n"
        assert root_qdisc(machine) == ("htb", "7e:")
        classes = machine("tc", "class", "show", "dev", "nic0").stdout
        assert classes.count("prio") == 8
        assert f"root rate {rate.replace(' ', '').replace('bps', 'bit')} " in classes
    removed = machine(*words, "--remove")
    assert (removed.returncode, removed.stdout) == (0, "nic0: queues removed\n")
    assert root_qdisc(machine) == before
    again = machine(*words, "--remove")
    assert (again.returncode, again.stdout) == (0, "nic0: has no queues of tensorexpress; nothing to remove\n")


#: Sends frames of 1,500 bytes by nic0, which queue there.
SEND_FRAMES = """
import socket
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sending:
    sending.bind(("nic0", 0x88B5))
    for _ in range(100):
        sending.send(bytes(12) + bytes.fromhex("88b5") + bytes(1486))
"""


def counted(machine):
    """Handle, packets sent or waiting, and drops of every qdisc of nic0."""
    qdiscs = json.loads(machine("tc", "-s", "-j", "qdisc", "show", "dev", "nic0").stdout)
    return {each["handle"]: (each["packets"] + each["qlen"], each["drops"]) for each in qdiscs}


@needs_root
@pytest.mark.parametrize("queues", [8, 1])
def test_an_unchanged_plan_changes_nothing_and_no_packet_that_waits_is_lost(machine, tmp_path, queues):
    path = tmp_path / "plan.json"
    path.write_text(plan_text(plan_on(star(hosts=3, bandwidth="2 Gbps"), "tensorexpress" if queues > 1 else "fifo")))
    words = [*TENSOREXPRESS, "deploy", path, "--target", "linux", "--dev", "nic0", "--rate", "100 Kbps"]
    first = machine(*words)
    assert first.returncode == 0, first.stderr
    assert machine(sys.executable, "-c", SEND_FRAMES).returncode == 0
    before = counted(machine)
    assert sum(packets for packets, _ in before.values()) >= 200  # of the root, and of a queue
    again = machine(*words, "--json", "-")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["done"] is False
    after = counted(machine)
    assert after.keys() == before.keys()
    for handle, (packets, drops) in after.items():
        assert packets >= before[handle][0]
        assert drops == 0
    assert machine(*words).stdout == f"nic0: unchanged; {first.stdout.removeprefix('nic0: ')}"


@rest(but=1)
@needs_root
@pytest.mark.parametrize(("rate", "queues"), [("100 Kbps", 8), ("100 Kbps", 1), ("1 Gbps", 3)])
def test_status_shows_the_queues_of_an_interface(machine, tmp_path, rate, queues):
    path = tmp_path / "plan.json"
    plan = plan_on(star(hosts=3, bandwidth="2 Gbps", queues=max(2, queues)), "fifo" if queues == 1 else "tensorexpress")
    path.write_text(plan_text(plan))
    status = [*TENSOREXPRESS, "status", "--dev", "nic0"]
    without = machine(*status)
    assert without.returncode == 1
    assert without.stderr.startswith("tensorexpress: error: nic0: has no queues of tensorexpress; set them up with")
    assert without.stderr.count("\n") == 1
    assert machine(*TENSOREXPRESS, "deploy", path, "--target", "linux", "--dev", "nic0", "--rate", rate).returncode == 0
    assert machine(sys.executable, "-c", SEND_FRAMES).returncode == 0
    found = json.loads(machine(*status, "--json", "-").stdout)
    assert (found["device"], found["kind"]) == ("nic0", "htb")
    assert found["rate_bps"] == {"100 Kbps": 100_000, "1 Gbps": 10**9}[rate]
    assert len(found["queues"]) == queues
    assert sum(queue["packets"] + queue["waiting_packets"] for queue in found["queues"]) >= 100
    assert all(queue["drops"] == 0 for queue in found["queues"])
    # Every DSCP has the queue that the wire's rule gives it.
    shown = {dscp: number for number, queue in enumerate(found["queues"]) for dscp in queue["dscps"]}
    dscps = tc.dscps_of(plan)
    assert shown == {dscp: queue_of_dscp(dscp, dscps) for dscp in range(64)}
    table = machine(*status).stdout.splitlines()
    assert table[0].startswith(f"nic0: {queues} queue")
    assert [line.split()[0] for line in table[2:]] == [str(number) for number in range(queues)]


@needs_root
@pytest.mark.parametrize(
    "change",
    [
        "class change dev nic0 parent 7e:ff classid 7e:2 htb rate 8bit burst 1 ceil 50mbit prio 1 quantum 9014",
        "qdisc change dev nic0 parent 7e:3 bfifo limit 1000",
        "filter del dev nic0 parent 7e: protocol arp prio 1",
        "filter add dev nic0 parent 7e: protocol ip prio 3 u32 match u8 0 0 at 1 flowid 7e:4",
    ],
)
def test_queues_that_another_process_has_changed_are_set_up_again(machine, plan_path, change):
    words = [*TENSOREXPRESS, "deploy", plan_path, "--target", "linux", "--dev", "nic0", "--rate", "100 Mbps"]
    assert machine(*words).returncode == 0
    right = classes_and_filters(machine)
    assert machine("tc", *change.split()).returncode == 0
    again = machine(*words)
    assert (again.returncode, "unchanged" in again.stdout) == (0, False), again.stderr
    assert classes_and_filters(machine) == right


@needs_root
def test_the_commands_of_a_dry_run_do_what_deploy_does(machine, plan_path):
    words = ["deploy", plan_path, "--target", "linux", "--dev", "nic0", "--rate", "1 Gbps"]
    shown = CliRunner().invoke(main, [*map(str, words), "--dry-run"])
    for line in shown.output.splitlines():
        assert machine(*line.split()).returncode == 0, line
    by_hand = classes_and_filters(machine)
    assert machine(*TENSOREXPRESS, *words).returncode == 0
    assert classes_and_filters(machine) == by_hand
    assert len(by_hand) > 9 + 16


@needs_root
def test_queues_of_others_are_left_alone(machine, plan_path):
    assert machine("tc", "qdisc", "add", "dev", "nic0", "root", "handle", "5:", "pfifo").returncode == 0
    words = [*TENSOREXPRESS, "deploy", plan_path, "--target", "linux", "--dev", "nic0"]
    refused = machine(*words)
    assert refused.returncode == 1
    assert refused.stderr == (
        "tensorexpress: error: nic0 has a qdisc pfifo 5: that is not of tensorexpress; if it may go, "
        "run `tc qdisc del dev nic0 root` first\n"
    )
    assert machine(*words, "--remove").stdout == "nic0: has no queues of tensorexpress; nothing to remove\n"
    assert root_qdisc(machine) == ("pfifo", "5:")


@needs_root
def test_line_rate_is_prio_or_nothing_changes(machine, plan_path):
    before = root_qdisc(machine)
    done = machine(*TENSOREXPRESS, "deploy", plan_path, "--target", "linux", "--dev", "nic0", "--rate", "line")
    if check_qdisc("prio").state == "ok":
        assert root_qdisc(machine) == ("prio", "7e:")
    else:
        assert done.returncode == 1
        assert "prio bands 8" in done.stderr
        assert done.stderr.count("\n") == 1
        assert root_qdisc(machine) == before


@pytest.mark.skipif(shutil.which("tc") is None, reason="needs iproute2")
def test_an_interface_that_is_not_there(plan_path):
    result = run(plan_path, "--target", "linux", "--dev", "nic9")
    assert result.exit_code == 2
    assert "unknown interface 'nic9'" in result.stderr


def test_the_rate_is_that_of_the_plans_hosts(plan_path, tmp_path):
    document = json.loads(run(plan_path, "--target", "linux", "--dev", "eth0", "--dry-run", "--json", "-").stdout)
    assert document["dry_run"] is True
    assert "2000000000bit" in document["commands"][2]
    links = [("a", "s", "1 Gbps"), ("b", "s", "2 Gbps")]
    (tmp_path / "uneven.json").write_text(plan_text(plan_on(custom(["a", "b", "c"], ["s"], [*links, ("c", "s")]))))
    refused = run(tmp_path / "uneven.json", "--target", "linux", "--dev", "eth0", "--dry-run")
    assert refused.exit_code == 2
    assert "links of 1 Gbps to 10 Gbps; say with --rate which one" in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "linux"], "give --dev NAME"),
        (["--target", "linux", "--dev", "eth0", "--switch", "s0=localhost"], "--switch goes with --target p4"),
        (["--target", "linux", "--dev", "eth0", "--stay"], "--stay goes with --target p4"),
        (["--dev", "eth0"], "--dev goes with --target linux"),
        (["--remove"], "--remove goes with --target linux"),
        ([], "give --switch NAME for this user's switch"),
        (["--target", "linux", "--dev", "eth0", "--rate", "fast", "--dry-run"], "'fast' is not a rate"),
        (["--target", "linux", "--dev", "eth0", "--rate", "1 bps", "--dry-run"], "accepted by tc"),
        (["--target", "linux", "--dev", "a b", "--dry-run"], "is no name of an interface"),
    ],
)
def test_options_that_do_not_go_together(plan_path, options, message):
    result = run(plan_path, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
