"""tensorexpress tag: packets of a program that knows nothing of it, on a real wire and in real queues; root only."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.namespace_sockets import inside, open_socket
from support.network import needs_root

from tensorexpress import tc
from tensorexpress.cli import main
from tensorexpress.errors import InputError, NetworkError
from tensorexpress.target import bpf, namespaces
from tensorexpress.target.tag_program import PROGRAM, TagRule, program, tag_interface

NEAR, FAR = ("10.77.0.1", "fd77::1"), ("10.77.0.2", "fd77::2")
PORTS = (5001, 5002)

#: A server that answers every 3,000 bytes with one, and a client that sends as many to two ports when it is told to.
SERVER = """
import selectors, socket, sys
waiting = selectors.DefaultSelector()
for port in (5001, 5002):
    waiting.register(socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True), 1, "new")
print("listening", flush=True)
seen = {}
while True:
    for key, _ in waiting.select():
        if key.data == "new":
            waiting.register(key.fileobj.accept()[0], 1, "old")
            continue
        got = len(key.fileobj.recv(65536))
        if not got:
            waiting.unregister(key.fileobj)
            key.fileobj.close()
            continue
        before = seen.get(key.fd, 0)
        seen[key.fd] = before + got
        key.fileobj.sendall(b"." * (seen[key.fd] // 3000 - before // 3000))
"""
CLIENT = """
import socket, sys
open_ones = [socket.create_connection((sys.argv[1], port)) for port in (5001, 5002)]
print("connected", flush=True)
for line in sys.stdin:
    for each in open_ones:
        each.sendall(bytes(3000))
        assert each.recv(1) == b"."
    print("sent", flush=True)
"""

EGRESS = tc.Egress((40, 32, 0), rate_bps=10**9, buffer_bytes=16_000_000, mtu=1500)


class Machines:
    """Two machines and the wire between them; what leaves the near one waits in three queues by DSCP."""

    def __init__(self, near: str, far: str):
        self.near, self.far = near, far
        namespaces.ip([f"link add eth0 netns {near} type veth peer name eth0 netns {far}"])
        for name, own in ((near, NEAR), (far, FAR)):
            namespaces.ip(
                [f"addr add {own[0]}/24 dev eth0", f"addr add {own[1]}/64 dev eth0 nodad", "link set eth0 up"], name
            )
        lines = [" ".join(command[1:]) for command in tc.setup("eth0", EGRESS)]
        subprocess.run(["tc", "-n", near, "-batch", "-"], input="\n".join(lines), text=True, check=True)
        self.wire = open_socket(far, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.wire.bind(("eth0", 0))

    def execute(self, *words):
        return inside(self.near, lambda: CliRunner().invoke(main, ["tag", *map(str, words)]))

    def dscps(self) -> dict[int, set[int]]:
        """Return the DSCPs of the data that has come to every port since this was last asked; headers are right."""
        found = defaultdict(set)
        while select.select([self.wire], [], [], 0)[0]:
            frame, address = self.wire.recvfrom(65600)
            if address[2] == socket.PACKET_OUTGOING:
                continue
            packet, version = frame[14:], frame[14] >> 4
            if version == 4 and packet[9] == 6:
                words = [int.from_bytes(packet[at : at + 2], "big") for at in range(0, (packet[0] & 15) * 4, 2)]
                assert sum(words) % 0xFFFF == 0, "the checksum of the header"
                traffic, segment = packet[1], packet[(packet[0] & 15) * 4 : int.from_bytes(packet[2:4], "big")]
            elif version == 6 and packet[6] == 6:
                traffic = int.from_bytes(packet[:2], "big") >> 4 & 0xFF
                segment = packet[40 : 40 + int.from_bytes(packet[4:6], "big")]
            else:
                continue
            if len(segment) > (segment[12] >> 4) * 4:
                found[int.from_bytes(segment[2:4], "big")].add(traffic >> 2)
        return dict(found)

    def queued(self) -> dict[int, int]:
        shown = subprocess.run(
            ["tc", "-n", self.near, "-s", "-j", "qdisc", "show"], capture_output=True, text=True, check=True
        )
        return {queue: count.bytes for queue, count in tc.queue_counts(shown.stdout)["eth0"].items()}


@pytest.fixture
def machines():
    with namespaces.namespace() as near, namespaces.namespace() as far:
        made = Machines(near, far)
        with made.wire, started(far, SERVER) as (_, said):
            assert said == "listening"
            yield made


@contextmanager
def started(namespace, code, *arguments, cgroup=None):
    """Start a program of a few lines in a namespace, and in a cgroup; gives it and its first word."""
    words = ["nsenter", f"--net=/run/netns/{namespace}", sys.executable, "-S", "-c", code, *arguments]
    if cgroup is not None:
        words = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh", *words]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def send(client):
    client.stdin.write("go\n")
    client.stdin.flush()
    assert client.stdout.readline() == "sent\n"


@needs_root
@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_an_open_connection_is_tagged_by_port_on_the_wire_and_in_the_queues_until_that_is_removed(machines, family):
    with started(machines.near, CLIENT, FAR[family]) as (client, said):
        assert said == "connected"
        send(client)
        assert machines.dscps() == {5001: {0}, 5002: {0}}
        done = machines.execute("--dev", "eth0", "--port", "5001=40", "--port", "5100-5200=32")
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout == "eth0: tags packets with DSCP 40 for port 5001, DSCP 32 for ports 5100-5200\n"
        before = machines.queued()
        send(client)
        assert machines.dscps() == {5001: {40}, 5002: {0}}
        grown = {queue: size - before[queue] for queue, size in machines.queued().items()}
        assert grown[0] >= 3000
        assert grown[1] == 0
        assert grown[2] >= 3000
        # Once more, with other ports: the program is replaced.
        assert machines.execute("--dev", "eth0", "--port", "5002-5009", "--dscp", "32").exit_code == 0
        send(client)
        assert machines.dscps() == {5001: {0}, 5002: {32}}
        assert machines.execute("--dev", "eth0", "--remove").stdout == "eth0: tags removed\n"
        send(client)
        assert machines.dscps() == {5001: {0}, 5002: {0}}
        again = machines.execute("--dev", "eth0", "--remove", "--json", "-")
        assert json.loads(again.stdout) == {"device": "eth0", "removed": False}


@pytest.fixture
def cgroup():
    root = next(
        (root for root in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if Path(root, "cgroup.procs").is_file()), None
    )
    if root is None:
        pytest.skip("there are no cgroups of version 2 here")
    outer = Path(root, f"te-tag-{os.getpid()}")
    inner = outer / "inner"
    try:
        inner.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"cgroups cannot be made here: {error}")
    yield outer
    inner.rmdir()
    outer.rmdir()


@needs_root
def test_what_a_cgroup_sends_is_tagged_and_what_others_send_is_not(machines, cgroup):
    with ExitStack() as running:
        clients = [
            running.enter_context(started(machines.near, CLIENT, FAR[0], cgroup=where))[0]
            for where in (None, cgroup, cgroup / "inner")
        ]
        # By its path in the file system, and as /proc shows it.
        for path, tagged in ((str(cgroup), (0, 40, 40)), (f"/{cgroup.name}/inner", (0, 0, 40))):
            done = machines.execute("--dev", "eth0", "--cgroup", path, "--dscp", "40")
            assert (done.exit_code, done.stderr) == (0, "")
            for client, dscp in zip(clients, tagged, strict=True):
                send(client)
                assert machines.dscps() == {5001: {dscp}, 5002: {dscp}}


@needs_root
def test_sockets_that_a_process_has_open_are_tagged_by_their_ports_and_made_best_effort_again(machines):
    with started(machines.near, CLIENT, FAR[0]) as (client, _):
        done = machines.execute("--pid", client.pid, "--port", "5002", "--dscp", "32")
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout == f"process {client.pid}: 1 socket tagged with DSCP 32 for port 5002\n"
        before = machines.queued()
        send(client)
        assert machines.dscps() == {5001: {0}, 5002: {32}}
        assert machines.queued()[1] - before[1] >= 3000
        shown = json.loads(machines.execute("--pid", client.pid, "--dscp", "40", "--json", "-").stdout)
        assert sorted((each["remote_port"], each["dscp"]) for each in shown["sockets"]) == [(5001, 40), (5002, 40)]
        send(client)
        assert machines.dscps() == {5001: {40}, 5002: {40}}
        assert "2 sockets made best effort" in machines.execute("--pid", client.pid, "--remove").stdout
        send(client)
        assert machines.dscps() == {5001: {0}, 5002: {0}}


@needs_root
def test_a_queue_of_a_plan_stands_for_its_dscp(machines, tmp_path):
    path = tmp_path / "plan.json"
    small = ["--set", "job.workers=2", "--set", "job.servers=1", "--set", "cluster.queues=3"]
    assert CliRunner().invoke(main, ["plan", *small, "-o", str(path)]).exit_code == 0
    done = machines.execute("--dev", "eth0", "--plan", path, "--port", "5001=q1", "--port", "5002", "--queue", "0")
    assert done.stdout == "eth0: tags packets with DSCP 32 for port 5001, DSCP 40 for port 5002\n"


@needs_root
def test_what_the_kernel_refuses_is_one_line_and_leaves_what_was_there(machines):
    def attach_one_that_falls_off_its_end():
        bpf.attach(socket.if_nametoindex("eth0"), PROGRAM, [bpf.instruction(0xB7)])

    assert machines.execute("--dev", "eth0", "--port", "5001=40").exit_code == 0
    with pytest.raises(
        NetworkError, match=r"^the kernel does not load a program: Invalid argument: .*; tagging"
    ) as caught:
        inside(machines.near, attach_one_that_falls_off_its_end)
    assert "\n" not in str(caught.value)
    with started(machines.near, CLIENT, FAR[0]) as (client, _):
        send(client)
    assert machines.dscps() == {5001: {40}, 5002: {0}}


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NetworkError, match="what leaves by lo can be tagged by root alone; run with sudo"):
        tag_interface("lo", [TagRule(1, 2, 3)])


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 65535), st.integers(1, 65535), st.integers(0, 63)), min_size=1, max_size=64))
def test_programs_of_any_rules_have_whole_instructions_that_jump_forward_into_the_program(rows):
    made = program([TagRule(min(a, b), max(a, b), dscp) for a, b, dscp in rows])
    assert all(len(each) == 8 for each in made)
    for at, each in enumerate(made):
        jumps = each[0] & 7 == 5 and each[0] not in (0x85, 0x95)
        assert not jumps or at < at + 1 + int.from_bytes(each[2:4], "little", signed=True) < len(made)


def test_rules_have_their_bounds():
    assert TagRule(5, 9, 1).fits(1, 9)
    assert not TagRule(5, 9, 1).fits(4, 10)
    for wrong in ((0, 5, 1), (6, 5, 1), (1, 70000, 1), (1, 2, 64)):
        with pytest.raises(InputError):
            TagRule(*wrong)
    with pytest.raises(InputError, match="65 rules; accepted: 1 to 64"):
        program([TagRule(1, 2, 3)] * 65)
