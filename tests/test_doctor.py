"""What doctor finds is there, what it misses is not, and nothing is otherwise after it has looked."""

from __future__ import annotations

import doctest
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from tensorexpress import doctor, p4
from tensorexpress.cli import main
from tensorexpress.control.client import CONNECT_S, Connection, RemoteSwitch, Standing
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.control.probe import Observer, check_switch, queues_finding
from tensorexpress.control.reconcile import cookie_of, read_entities
from tensorexpress.switch.device import Switch
from tensorexpress.switch.operations import CpuFrame
from tensorexpress.switch.p4runtime.service import serve
from tensorexpress.switch.traffic import PortSettings

CPU_PORT = 255
PROGRAM = p4.load()
SCHEMA = ProgramSchema.of(PROGRAM)
COMMAND = Path(sys.executable).parent / "tensorexpress"

needs_bmv2 = pytest.mark.skipif(
    doctor.find_bmv2() is None,
    reason=f"{doctor.BMV2} is not on PATH and {doctor.BMV2_VARIABLE} does not name it",
)


def by_name(findings):
    return {finding.name: finding for finding in findings}


def run(*arguments):
    return CliRunner().invoke(main, ["doctor", *arguments])


def make_program(directory, name, script):
    program = directory / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


# The machine.


def test_doctests():
    assert doctest.testmod(doctor).failed == 0


def test_the_verb_looks_at_the_machine_alone_and_names_every_check():
    result = run()
    assert result.exit_code == 0, result.output
    for finding in doctor.check_machine():
        assert f"  {finding.name} " in result.stdout


def test_json_holds_the_same_findings():
    document = json.loads(run("--json", "-").stdout)
    assert document["switches"] == {}
    assert [doctor.Finding(**finding).name for finding in document["machine"]] == list(by_name(doctor.check_machine()))


def test_tools_that_are_missing_are_notes_with_a_remedy(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != doctor.BMV2_VARIABLE}
    environment["PATH"] = str(tmp_path)
    ran = subprocess.run([COMMAND, "doctor", "--json", "-"], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = {finding["name"]: finding for finding in json.loads(ran.stdout)["machine"]}
    for name in ("p4c", "simple_switch_grpc", "ip", "tc", "ethtool"):
        assert found[name]["state"] == "note"
        assert "not on PATH" in found[name]["found"]
        assert found[name]["remedy"]
    assert all("tried" not in found[f"qdisc {kind}"]["found"] for kind in doctor.QDISCS)
    assert found["user namespaces"]["found"] == "unknown: no unshare"


@pytest.mark.parametrize(
    ("said", "state", "found"),
    [
        ("1.15.0-d2cb2c8a", "note", "1.15.0, without --priority-queues"),
        ("1.15.1", "ok", "1.15.1; start it with --priority-queues 8 behind --"),
        ("1.16.0-abc", "ok", "1.16.0; start it with --priority-queues 8 behind --"),
        ("hello", "note", "does not say a version"),
    ],
)
def test_bmv2_needs_a_version_with_priority_queues(said, state, found, tmp_path, monkeypatch):
    program = make_program(tmp_path, "any-name", f"echo {said}")
    monkeypatch.setenv(doctor.BMV2_VARIABLE, str(program))
    finding = doctor.check_bmv2()
    assert finding.state == state
    assert found in finding.found


def test_a_bmv2_that_the_environment_names_wrongly_is_named(monkeypatch):
    monkeypatch.setenv(doctor.BMV2_VARIABLE, "/nowhere/simple_switch_grpc")
    assert doctor.check_bmv2().found == "TENSOREXPRESS_BMV2=/nowhere/simple_switch_grpc is no program"


def test_p4c_says_its_version(tmp_path, monkeypatch):
    make_program(tmp_path, "p4c-bm2-ss", "echo 'p4c-bm2-ss'; echo 'Version 9.8.7 (SHA: 1 BUILD: Release)'")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_p4c() == doctor.Finding("p4c", "ok", "9.8.7")
    make_program(tmp_path, "p4c-bm2-ss", "exit 3")
    assert doctor.check_p4c().state == "note"


@pytest.mark.parametrize(
    ("script", "state", "found"),
    [
        ("exit 0", "ok", "there (tried)"),
        ("echo 'Error: Specified qdisc kind is unknown.' >&2; exit 2", "note", "not in this kernel (tried)"),
    ],
)
def test_a_qdisc_is_judged_by_what_tc_says_in_a_namespace(script, state, found, tmp_path, monkeypatch):
    make_program(tmp_path, "unshare", script)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = doctor.check_qdisc("prio")
    assert (finding.state, finding.found) == (state, found)


def test_a_qdisc_that_cannot_be_tried_is_looked_up(tmp_path, monkeypatch):
    make_program(tmp_path, "unshare", "echo 'unshare failed: Operation not permitted' >&2; exit 1")
    tried = doctor.check_qdisc("htb")
    monkeypatch.setenv("PATH", str(tmp_path))
    looked_up = doctor.check_qdisc("htb")
    assert "tried" not in looked_up.found
    if "tried" in tried.found and looked_up.found != "unknown":
        assert looked_up.state == tried.state


def test_trying_qdiscs_leaves_no_interface_behind():
    for kind in doctor.QDISCS:
        doctor.check_qdisc(kind)
    assert {"te0", "te1"}.isdisjoint(name for _, name in socket.if_nameindex())


@pytest.mark.skipif(
    shutil.which("setpriv") is None or os.geteuid() != 0, reason="gives up capabilities, which needs root and setpriv"
)
def test_capabilities_that_were_given_up_are_missed():
    ran = subprocess.run(
        ["setpriv", "--bounding-set=-net_raw", COMMAND, "doctor", "--json", "-"], capture_output=True, text=True
    )
    found = {finding["name"]: finding for finding in json.loads(ran.stdout)["machine"]}
    assert found["CAP_NET_RAW"]["found"] == "not held"
    assert found["CAP_NET_ADMIN"]["found"] == doctor.check_capability("CAP_NET_ADMIN").found


def test_a_port_in_use_is_seen_until_it_is_free():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        taken = doctor.check_port("port", address, "another")
        assert (taken.state, taken.found) == ("note", f"127.0.0.1:{address[1]}: Address already in use")
    assert doctor.check_port("port", address, "another").state == "ok"


# Switches.


class QueuedSwitch(Switch):
    """An embedded switch whose ports have some number of queues; it tells whoever serves it."""

    def __init__(self, queues):
        super().__init__(
            lambda *departure: None, lambda notice: self.notify(notice), default=PortSettings(queues=queues)
        )
        self.notify = None


class DeafSwitch(QueuedSwitch):
    """A switch whose controller's port is not where the program thinks."""

    def packet_out(self, frame):
        pass


@contextmanager
def embedded(data_path, *, loaded=True):
    """Serve a switch; gives how to reach it."""
    with serve(data_path, "127.0.0.1:0", cpu_port=CPU_PORT) as server:
        data_path.notify = server.notify
        target = RemoteSwitch("s0", server.address)
        if loaded:
            push_program(target)
        yield target


def push_program(target, document=PROGRAM.document):
    with Connection(target) as connection:
        connection.become_primary()
        connection.push_pipeline(SCHEMA.p4info, document, cookie_of(PROGRAM))
    wait_until_nobody_is_primary(target)


def wait_until_nobody_is_primary(target):
    """Return when the switch has noticed that whoever was primary has gone."""
    with Observer(target) as observer:
        message = observer.observe()
        while not (isinstance(message, Standing) and (message.is_vacant or message.is_primary)):
            message = observer.listen(CONNECT_S)
            assert message is not None, "somebody is still primary"


def state_of(target):
    with Connection(target) as connection:
        return connection.read_pipeline(), set(read_entities(connection, SCHEMA))


def test_eight_queues_are_found_and_nothing_is_changed():
    with embedded(QueuedSwitch(queues=8)) as target:
        before = state_of(target)
        result = run("--switch", f"s0={target.address}", "--json", "-")
        assert result.exit_code == 0, result.output
        findings = [doctor.Finding(**finding) for finding in json.loads(result.stdout)["switches"]["s0"]]
        assert {finding.state for finding in findings} == {"ok"}
        assert by_name(findings)["queues"].found == "all 8 queues that the program uses"
        assert by_name(findings)["sums"].found.startswith("1024 slots: enough for plans with a cluster.switch_memory")
        assert state_of(target) == before


@pytest.mark.parametrize("queues", [1, 3])
def test_missing_queues_are_a_problem_and_status_1(queues):
    with embedded(QueuedSwitch(queues)) as target:
        result = run("--switch", f"s0={target.address}")
        assert result.exit_code == 1
        assert f"{queues} of the 8 that the program uses; packets for the others are dropped silently" in result.stdout
        assert "--priority-queues 8" in result.stdout


def test_queues_that_the_program_does_not_use_are_not_missed():
    from tensorexpress.control.entities import Call, DefaultEntry
    from tensorexpress.p4runtime_messages import p4runtime_pb2

    entry = DefaultEntry("classify.queues", Call("classify.use_queues", (("lowest", 2),)))
    with embedded(QueuedSwitch(queues=3)) as target:
        with Connection(target) as connection:
            connection.become_primary()
            connection.write([p4runtime_pb2.Update(type=2, entity=entry.encode(SCHEMA))])
        wait_until_nobody_is_primary(target)
        assert by_name(check_switch(target, PROGRAM))["queues"].found == "all 3 queues that the program uses"


def test_a_controller_port_that_returns_nothing_is_told_from_a_missing_queue(monkeypatch):
    monkeypatch.setattr("tensorexpress.control.probe.RETURN_S", 0.1)
    with embedded(DeafSwitch(queues=8)) as target:
        finding = by_name(check_switch(target, PROGRAM))["queues"]
    assert finding.state == "problem"
    assert "not even through the lowest queue" in finding.found
    assert "--cpu-port 255" in finding.remedy


def test_a_packet_of_another_does_not_pass_for_the_probe():
    class Chatty(QueuedSwitch):
        def packet_out(self, frame):
            self.notify(CpuFrame(b"\0" * 80))
            super().packet_out(frame)

    with embedded(Chatty(queues=2)) as target:
        assert by_name(check_switch(target, PROGRAM))["queues"].found.startswith("2 of the 8")


def test_another_primary_is_left_alone_unless_it_may_be_taken_over():
    with embedded(QueuedSwitch(queues=8)) as target, Connection(target) as other:
        other.become_primary()
        found = by_name(check_switch(target, PROGRAM))
        assert found["primary"].found == "another controller, with election id 1"
        assert found["queues"].found == "not probed: another controller is primary"
        assert other.arbitrate().is_primary
        assert by_name(check_switch(target, PROGRAM, take_over=True))["queues"].state == "ok"


def test_looking_locks_out_no_controller():
    with embedded(QueuedSwitch(queues=8), loaded=False) as target:
        with Observer(target) as controller:
            controller.observe()
            controller.claim(5)
            controller.push_pipeline(SCHEMA.p4info, PROGRAM.document, cookie_of(PROGRAM))
        wait_until_nobody_is_primary(target)
        assert by_name(check_switch(target, PROGRAM))["queues"].state == "ok"
        wait_until_nobody_is_primary(target)
        with Observer(target) as controller:
            controller.observe()
            assert controller.claim(5).is_primary


def test_a_switch_without_our_program_is_not_probed():
    with embedded(QueuedSwitch(queues=1), loaded=False) as target:
        found = by_name(check_switch(target, PROGRAM))
        assert (found["program"].state, found["program"].found) == ("note", "none")
        assert found["queues"].found == "not probed: it does not run this program"
        assert not {"problem"} & {finding.state for finding in found.values()}


def test_another_device_is_a_problem_that_says_which_option_to_give():
    with embedded(QueuedSwitch(queues=8)) as target:
        result = run("--switch", f"s0={target.address}", "--device-id", "7")
    assert result.exit_code == 1
    assert "no device 7" in result.stdout
    assert "--device-id s0=NUMBER" in result.stdout


def test_an_address_that_answers_nothing_says_how_to_start_a_switch():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    result = run("--switch", f"s0=127.0.0.1:{port}")
    assert result.exit_code == 1
    assert "connection  problem" in result.stdout
    assert f"tensorexpress switch --grpc 127.0.0.1:{port} --device-id 1 starts one" in result.stdout


def test_one_bad_switch_does_not_keep_the_others_from_being_looked_at():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with embedded(QueuedSwitch(queues=8)) as target:
        result = run("--switch", f"s1=127.0.0.1:{port}", "--switch", f"s0={target.address}", "--json", "-")
    assert result.exit_code == 1
    switches = json.loads(result.stdout)["switches"]
    assert [finding["state"] for finding in switches["s1"]] == ["problem"]
    assert {finding["state"] for finding in switches["s0"]} == {"ok"}


def test_bad_options_are_one_line_and_status_2(tmp_path):
    result = run("--switch", "nowhere=")
    assert result.exit_code == 2
    assert result.stderr.startswith("tensorexpress: error: --switch 'nowhere='")
    missing = run("--switch", "s0=127.0.0.1", "--tls-ca", str(tmp_path / "missing.pem"))
    assert missing.exit_code == 2
    assert "cannot be read" in missing.stderr


@pytest.mark.parametrize(
    ("returned", "state"), [(range(8), "ok"), ([7], "problem"), ([0, 1], "problem"), ([], "problem")]
)
def test_only_all_queues_are_enough(returned, state):
    assert queues_finding(frozenset(returned), 7).state == state


# BMv2.


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize("thrift", [["--thrift-port", "9090"], []])
def test_bmv2_gets_a_port_of_thrift_if_it_was_built_with_thrift(thrift, tmp_path):
    program = tmp_path / "simple_switch_grpc"
    program.write_text(f"#!/bin/sh\necho '  -h  {' '.join(thrift[:1])}  arg'\n")
    program.chmod(0o755)
    assert doctor.bmv2_options(str(program), 9090) == ["--no-p4", "--device-id", "1", *thrift, "-L", "off"]


@contextmanager
def bmv2(*options):
    """Start simple_switch_grpc with our program; gives how to reach it."""
    address = f"127.0.0.1:{free_port()}"
    program = doctor.find_bmv2()
    command = [
        program,
        *doctor.bmv2_options(program, free_port()),
        "--",
        "--grpc-server-addr",
        address,
        "--cpu-port",
        str(CPU_PORT),
        *options,
    ]
    with ExitStack() as cleanup:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cleanup.enter_context(process)
        cleanup.callback(process.terminate)
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=30)
        target = RemoteSwitch("s0", address)
        push_program(target)
        yield target


@needs_bmv2
def test_bmv2_with_priority_queues_has_them():
    with bmv2("--priority-queues", "8") as target:
        before = state_of(target)
        found = by_name(check_switch(target, PROGRAM))
        assert {finding.state for finding in found.values()} == {"ok"}
        assert state_of(target) == before


@needs_bmv2
def test_bmv2_without_priority_queues_is_found_out():
    with bmv2() as target:
        result = run("--switch", f"s0={target.address}")
        assert result.exit_code == 1
        assert "1 of the 8 that the program uses" in result.stdout
