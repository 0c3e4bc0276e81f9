"""Deploying to a real switch over real gRPC: the embedded one, or the one that TENSOREXPRESS_TARGET names."""

from __future__ import annotations

import json
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from support.switches import TargetSwitch, start_switch
from support.thorough import rest
from test_control import PROGRAM, SCHEMA, intents, wanted_by

from tensorexpress.addresses import default_addresses
from tensorexpress.cli import main
from tensorexpress.control import forward, guard, mark
from tensorexpress.control.client import ClientTls, Connection, ReceivedPacket, RemoteSwitch
from tensorexpress.control.controls import EXCEPTIONS
from tensorexpress.control.deploy import Event, PlannedDeployment, deploy, keep, prepare
from tensorexpress.control.entities import (
    Call,
    CloneEntry,
    CounterEntry,
    DefaultEntry,
    Entity,
    MeterEntry,
    MulticastEntry,
    Rates,
    RegisterEntry,
    TableEntry,
    initial_entities,
)
from tensorexpress.control.intent import Intent, Options
from tensorexpress.control.messages import ProgramSchema, parse_p4info
from tensorexpress.control.readings import read_array
from tensorexpress.control.reconcile import difference, read_entities, reconcile, write_changes
from tensorexpress.control.report import event_line
from tensorexpress.control.status import read_status
from tensorexpress.control_address import default_address
from tensorexpress.errors import NetworkError, ProgramError
from tensorexpress.p4 import P4Program
from tensorexpress.plan import Plan, make_plan
from tensorexpress.plan_file import plan_text
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.switch.device import Switch
from tensorexpress.switch.p4runtime import service
from tensorexpress.topologies import leaf_spine
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.header import Header

ROOT = Path(__file__).parents[1]
OTHER_PROGRAM = ROOT / "tests" / "programs" / "build" / "runtime"

#: How long a test waits for what must happen; it never waits for what must not.
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def plan() -> Plan:
    scenario = read_scenario(overrides=["job.model=alexnet", "job.workers=2", "job.servers=1"])
    return make_plan(scenario, POLICIES["tensorexpress"])


@pytest.fixture
def plan_path(plan: Plan, tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(plan_text(plan))
    return str(path)


@pytest.fixture(scope="module")
def lasting_switch() -> Iterator[TargetSwitch]:
    """A switch that several examples of one test share."""
    switch = start_switch()
    yield switch
    switch.stop()


@pytest.fixture(autouse=True)
def no_thread_stays_behind() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("stream of", "keeper of"))]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def refused(result: Result, code: int) -> str:
    """Return the one line that a command ended with."""
    assert result.exit_code == code, result.output
    [line] = result.stderr.splitlines()
    return line


def target_of(switch: TargetSwitch, **fields: Any) -> RemoteSwitch:
    return RemoteSwitch("s0", switch.address, **fields)


# Reconciling.


def normal(entities: Sequence[Entity]) -> dict[object, Entity]:
    """Return a state by identity; a meter without rates is as good as none."""
    return {entity.identity: entity for entity in entities if not (isinstance(entity, MeterEntry) and not entity.rates)}


@st.composite
def disturbances(draw: st.DrawFn, wanted: list[Entity]) -> list[Entity]:
    """What may have become of a switch: entries gone, changed, and some that nobody wanted."""
    state = []
    for entity in wanted:
        fate = draw(st.sampled_from(["keep", "keep", "lose", "change"]))
        if fate == "change":
            state.append(changed(entity))
        elif fate == "keep" or entity.is_permanent:
            state.append(entity)
    switched = Call("forward.switch_to", (("port", 7),))
    foreign: list[Entity] = [
        *(TableEntry(forward.L2, (("destination", 1 + mac),), switched) for mac in draw(st.sets(st.integers(0, 99)))),
        *(
            TableEntry(forward.IPV4, (("destination", (prefix << 16, 16)),), Call("forward.drop"))
            for prefix in draw(st.sets(st.integers(0x0B00, 0x0BFF), max_size=3))
        ),
        *(MulticastEntry(n, frozenset({(n, 1)})) for n in draw(st.sets(st.integers(2, 9), max_size=3))),
        *(CloneEntry(n, frozenset({(n, 0)})) for n in draw(st.sets(st.integers(1, 9), max_size=3))),
        *(
            MeterEntry(guard.JOB_METER, n, Rates(100, 200, 300, 400))
            for n in draw(st.sets(st.integers(9, 20), max_size=3))
        ),
    ]
    return state + foreign


def changed(entity: Entity) -> Entity:
    match entity:
        case (
            TableEntry(action=Call(action, ((name, value), *rest)))
            | DefaultEntry(action=Call(action, ((name, value), *rest)))
        ):
            return replace(entity, action=Call(action, ((name, value ^ 1), *rest)))
        case DefaultEntry(table=forward.MISS):
            return replace(entity, action=Call("forward.to_controller"))
        case MulticastEntry() | CloneEntry():
            return replace(entity, replicas=entity.replicas ^ {(3, 0)} or frozenset({(4, 4)}))
        case MeterEntry():
            return replace(entity, rates=Rates(1, 2, 3, 4))
        case _:
            return entity


@rest(but=1)
@given(st.data())
@settings(max_examples=6)
def test_whatever_is_on_a_switch_becomes_what_is_wanted_and_the_second_pass_is_empty(
    lasting_switch: TargetSwitch, data: st.DataObject
) -> None:
    intent = data.draw(intents())
    wanted = wanted_by(intent)
    with Connection(target_of(lasting_switch)) as connection:
        connection.become_primary()
        if data.draw(st.booleans(), label="fresh"):
            connection.push_pipeline(SCHEMA.p4info, PROGRAM.document, 0)
        reconcile(connection, PROGRAM, SCHEMA, wanted)
        state = data.draw(disturbances(wanted), label="disturbed")
        write_changes(connection, SCHEMA, difference(state, wanted))
        foreseen = reconcile(connection, PROGRAM, SCHEMA, wanted, dry_run=True)
        assert reconcile(connection, PROGRAM, SCHEMA, wanted) == foreseen
        assert normal(read_entities(connection, SCHEMA)) == normal(wanted)
        assert reconcile(connection, PROGRAM, SCHEMA, wanted).is_empty


def test_a_plan_can_follow_another_on_a_switch(target_switch: TargetSwitch) -> None:
    scenario = replace(read_scenario(), cluster=leaf_spine(2, 4, 6))
    for policy in ("tensorexpress", "fifo"):
        intent = Intent(make_plan(scenario, POLICIES[policy]), "s0")
        with Connection(target_of(target_switch)) as connection:
            connection.become_primary()
            reconcile(connection, PROGRAM, SCHEMA, wanted_by(intent))
            assert normal(read_entities(connection, SCHEMA)) == normal(wanted_by(intent))


def test_another_program_is_replaced_and_a_dry_run_says_so(target_switch: TargetSwitch, plan_path: str) -> None:
    other = ProgramSchema(parse_p4info(OTHER_PROGRAM.with_suffix(".p4info.txtpb").read_text()))
    with Connection(target_of(target_switch)) as connection:
        connection.become_primary()
        connection.push_pipeline(other.p4info, OTHER_PROGRAM.with_suffix(".json").read_bytes(), 7)
    at = ("--switch", f"s0={target_switch.address}")
    assert refused(run("status", *at), 1).endswith("runs another program; deploy a plan to it first")
    dry = run("deploy", plan_path, *at, "--dry-run")
    assert "program would be replaced, and all entries with it; 46 inserted" in dry.stdout
    with Connection(target_of(target_switch)) as connection:
        assert connection.read_pipeline() == (other.p4info, 7)
    assert "program replaced" in run("deploy", plan_path, *at).stdout
    assert "nothing to do" in run("deploy", plan_path, *at).stdout


def test_a_program_that_the_switch_cannot_run_is_the_users(target_switch: TargetSwitch, plan: Plan) -> None:
    broken = P4Program(b"{}", PROGRAM.p4info, PROGRAM.stamp)
    [outcome] = deploy(prepare(plan, ["s0"], Options(), broken), [target_of(target_switch)])
    assert isinstance(outcome.error, NetworkError | ProgramError)
    assert str(outcome.error).startswith(f"s0 at {target_switch.address}: ")
    assert "\n" not in str(outcome.error)


def test_cells_of_counters_and_registers_are_set_where_somebody_wants_them(target_switch: TargetSwitch) -> None:
    plain = initial_entities(SCHEMA)
    counted = CounterEntry(EXCEPTIONS, 2, packets=9)
    with Connection(target_of(target_switch)) as connection:
        connection.become_primary()
        assert reconcile(connection, PROGRAM, SCHEMA, [*plain, counted]).modified == (counted,)
        assert reconcile(connection, PROGRAM, SCHEMA, [*plain, counted]).is_empty
        assert reconcile(connection, PROGRAM, SCHEMA, plain).is_empty, "what nobody wants is the packets' own"
        assert read_array(connection, SCHEMA, EXCEPTIONS)[2] == counted
        asked = [RegisterEntry(guard.SAMPLED, 3, 1), RegisterEntry(guard.SAMPLED, 4, 0)]
        if read_array(connection, SCHEMA, guard.SAMPLED) is None:
            message = failure_of(lambda: reconcile(connection, PROGRAM, SCHEMA, [*plain, *asked]))
            assert "cannot read registers over P4Runtime; BMv2 implements neither reading nor setting them" in message
            return
        assert reconcile(connection, PROGRAM, SCHEMA, [*plain, *asked]).modified == (asked[0],)
        assert reconcile(connection, PROGRAM, SCHEMA, [*plain, *asked]).is_empty
        all_set = RegisterEntry.all_of(SCHEMA, guard.SAMPLED, 1)
        assert len(reconcile(connection, PROGRAM, SCHEMA, [*plain, *all_set]).modified) == 255
        assert {cell.value for cell in read_array(connection, SCHEMA, guard.SAMPLED)} == {1}


# The verb.


def test_a_second_deploy_writes_nothing(target_switch: TargetSwitch, plan_path: str) -> None:
    at = ("--switch", f"s0={target_switch.address}")
    foreseen = run("deploy", plan_path, *at, "--dry-run")
    assert foreseen.exit_code == 0, foreseen.output
    assert "program would be loaded; 46 inserted, 21 unchanged" in foreseen.stdout
    assert "+ forward.ipv4 destination=10.0.0.1/32 -> next_hop(" in foreseen.stdout
    first = run("deploy", plan_path, *at, "--json", "-")
    assert first.exit_code == 0, first.output
    [switch] = json.loads(first.stdout)["switches"]
    assert switch["program"] == "none"
    assert {row["place"]: row["inserted"] for row in switch["tables"]}["forward.l2"] == 5
    second = run("deploy", plan_path, *at)
    assert "nothing to do" in second.stdout
    rows = [line.split() for line in second.stdout.splitlines() if line.startswith("forward.l2")]
    assert rows == [["forward.l2", "0", "0", "0", "6"]]


def test_what_others_put_there_is_removed_and_a_dry_run_says_so(target_switch: TargetSwitch, plan_path: str) -> None:
    at = ("--switch", f"s0={target_switch.address}")
    run("deploy", plan_path, *at)
    stranger = TableEntry(forward.L2, (("destination", 0xAA),), Call("forward.switch_to", (("port", 9),)))
    with Connection(target_of(target_switch)) as connection:
        connection.become_primary()
        write_changes(connection, SCHEMA, difference([stranger], []))
    dry = run("deploy", plan_path, *at, "--dry-run")
    assert "- forward.l2 destination=00:00:00:00:00:aa -> switch_to(port=9)" in dry.stdout
    assert "1 deleted" in run("deploy", plan_path, *at).stdout
    assert "nothing to do" in run("deploy", plan_path, *at).stdout


def test_options_reach_the_tables(target_switch: TargetSwitch, plan_path: str, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.toml"
    hosts.write_text('h0 = {ipv4 = "192.168.7.1"}')
    options = ["--strangers", "drop", "--limit", "job0=1 Gbps", "--miss", "controller", "--trust-dscp"]
    at = ("--switch", f"s0={target_switch.address}", "--hosts", str(hosts))
    assert run("deploy", plan_path, *at, *options).exit_code == 0
    with Connection(target_of(target_switch)) as connection:
        found = read_entities(connection, SCHEMA)
    own = (("ipv4", 0xC0A80701), ("ipv6", int(default_addresses(["h0"])[0].ipv6)))
    assert TableEntry(guard.SOURCES, (("ingress_port", 0),), Call("guard.bind", own)) in found
    assert DefaultEntry(guard.ADMISSION, Call("guard.drop_stranger")) in found
    assert DefaultEntry(forward.MISS, Call("forward.to_controller")) in found
    assert MeterEntry(guard.JOB_METER, 1, Rates(125_000_000, 1_250_000, 125_000_000, 1_250_000)) in found
    assert sum(isinstance(entity, TableEntry) and entity.table == "classify.dscp_queue" for entity in found) == 64
    assert any(
        isinstance(entity, TableEntry) and entity.table == forward.IPV4 and entity.key[0][1] == (0xC0A80701, 32)
        for entity in found
    )


def test_hosts_are_bound_to_their_ports_unless_told_otherwise(target_switch: TargetSwitch, plan_path: str) -> None:
    at = ("--switch", f"s0={target_switch.address}")
    assert run("deploy", plan_path, *at).exit_code == 0
    loosened = run("deploy", plan_path, *at, "--no-bind-sources")
    assert "3 deleted" in loosened.stdout
    assert run("deploy", plan_path, *at, "--dry-run", "--bind-sources").stdout.count("+ guard.sources") == 3


def test_one_switch_that_fails_does_not_hide_the_others(target_switch: TargetSwitch, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    scenario = replace(read_scenario(), cluster=leaf_spine(2, 1, 6))
    path.write_text(plan_text(make_plan(scenario, POLICIES["tensorexpress"])))
    nobody = ("--switch", "s1=127.0.0.1:1", "--switch", "s2=127.0.0.1:1")
    result = run("deploy", str(path), "--switch", f"s0={target_switch.address}", *nobody)
    assert f"s0 at {target_switch.address}: program loaded" in result.stdout
    line = refused(result, 1)
    assert "2 of 3 switches failed: s1 at 127.0.0.1:1: nobody answers there" in line
    assert "s2 at 127.0.0.1:1" in line
    partial = run("deploy", str(path), "--switch", f"s0={target_switch.address}", "--partial")
    assert "nothing to do" in partial.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--switch", "s9=127.0.0.1"], "unknown switch 's9'; Accepted: s0"),
        (["--switch", "s0="], "--switch 's0='; accepted: NAME for this user's switch, or NAME=ADDRESS"),
        (["--switch", "s0=a:b"], "--switch 's0=a:b' is no address"),
        (["--switch", "s0=a:99999"], "--switch 's0=a:99999': port 99999 is out of range"),
        (["--switch", "s0=a", "--switch", "s0=b"], "--switch s0 is given twice"),
        (["--switch", "s0=a", "--device-id", "one"], "--device-id 'one'; accepted: a number"),
        (["--switch", "s0=a", "--device-id", "s1=1"], "--device-id 's1=1': no --switch s1; accepted: s0"),
        (["--switch", "s0=a", "--limit", "fast"], "--limit 'fast'; accepted: JOB=RATE"),
        (["--switch", "s0=a", "--limit", "job7=1 Gbps"], "unknown job 'job7'"),
        (["--switch", "s0=a", "--limit", "job0=0"], "no packet would pass"),
        (["--switch", "s0=a", "--hosts", "none.toml"], "none.toml: cannot be read"),
        (["--switch", "s0=a", "--tls-ca", "none.pem"], "--tls-ca 'none.pem': cannot be read"),
        (["--switch", "s0=a", "--tls-ca", __file__, "--tls-cert", __file__], "--tls-cert and --tls-key go together"),
        (["--switch", "s0=a", "--stay", "--dry-run"], "--stay goes with neither"),
        (["--switch", "s0=a", "--replan", "10"], "--replan goes with --stay and with all switches of the plan"),
        (["--switch", "s0=a", "--json", "/"], "it is a directory"),
    ],
)
def test_what_the_user_gave_is_refused_before_any_switch_is_asked(
    plan_path: str, arguments: list[str], message: str
) -> None:
    # This file mentions "-----BEGIN" in this comment, and so passes for a PEM file.
    assert message in refused(run("deploy", plan_path, *arguments), 2)


def test_every_switch_of_the_plan_must_be_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    scenario = replace(read_scenario(), cluster=leaf_spine(2, 1, 6))
    path.write_text(plan_text(make_plan(scenario, POLICIES["tensorexpress"])))
    line = refused(run("deploy", str(path), "--switch", "s0=127.0.0.1:1"), 2)
    assert "the plan has a switch s1 and 1 more that no --switch names" in line
    pifo = tmp_path / "pifo.json"
    pifo.write_text(plan_text(make_plan(scenario, POLICIES["ideal"])))
    assert "accepted for deployment" in refused(run("deploy", str(pifo), "--switch", "s0=a", "--partial"), 2)


# Connections that fail.


def failure_of(attempt: Callable[[], object]) -> str:
    with pytest.raises(NetworkError) as error:
        attempt()
    assert "\n" not in str(error.value)
    return str(error.value)


def primary(target: RemoteSwitch) -> None:
    with Connection(target) as connection:
        connection.become_primary()


def test_a_second_primary_is_told_who_is_and_how_to_take_over(target_switch: TargetSwitch, plan_path: str) -> None:
    at = ("--switch", f"s0={target_switch.address}")
    with Connection(target_of(target_switch, election_id=5)) as first:
        first.become_primary()
        line = refused(run("deploy", plan_path, *at), 1)
        assert "another controller is primary with election id 5, ours is 1" in line
        assert line.endswith("take over with --election-id 6")
        line = refused(run("deploy", plan_path, *at, "--election-id", "5"), 1)
        assert "another controller has election id 5 already" in line
        assert first.read_pipeline() is None
        assert run("deploy", plan_path, *at, "--election-id", "6").exit_code == 0
        assert run("deploy", plan_path, *at, "--dry-run").exit_code == 0
    assert run("deploy", plan_path, *at).exit_code == 0


def test_a_primary_that_was_taken_over_is_told_so(target_switch: TargetSwitch) -> None:
    with Connection(target_of(target_switch, election_id=5)) as first:
        first.become_primary()
        first.push_pipeline(SCHEMA.p4info, PROGRAM.document, 0)
        with Connection(target_of(target_switch, election_id=6)) as second:
            second.become_primary()
            session = CloneEntry(1, frozenset({(1, 0)}))
            message = failure_of(lambda: write_changes(first, SCHEMA, difference([session], [])))
            assert "is no longer ours to write (election id 5)" in message


def test_a_refused_batch_names_the_first_entry_refused_and_why(target_switch: TargetSwitch) -> None:
    sessions = [CloneEntry(n, frozenset({(1, 0)})) for n in range(1, 4)]
    with Connection(target_of(target_switch)) as connection:
        connection.become_primary()
        connection.push_pipeline(SCHEMA.p4info, PROGRAM.document, 0)
        write_changes(connection, SCHEMA, difference([sessions[1]], []))
        message = failure_of(lambda: write_changes(connection, SCHEMA, difference(sessions, [])))
        assert "refused 1 of 3 entries, first insert of clone sessions 2 -> ports 1: ALREADY_EXISTS" in message
        assert len([e for e in read_entities(connection, SCHEMA) if isinstance(e, CloneEntry)]) == 3


def test_a_switch_without_a_program_has_no_status(target_switch: TargetSwitch) -> None:
    line = refused(run("status", "--switch", f"s0={target_switch.address}"), 1)
    assert line.endswith(f"s0 at {target_switch.address}: runs no program; deploy a plan to it first")


@contextmanager
def embedded(address: str = "127.0.0.1:0", **options: Any) -> Iterator[str]:
    with service.serve(Switch(lambda port, frame, time_ps: None), address, **options) as server:
        yield server.address


def test_a_device_that_the_switch_is_not(plan_path: str) -> None:
    with embedded(device_id=4) as address:
        line = refused(run("deploy", plan_path, "--switch", f"s0={address}"), 1)
        assert "no device 1; accepted: 4; give its number with --device-id s0=NUMBER" in line
        assert run("deploy", plan_path, "--switch", f"s0={address}", "--device-id", "4", "--dry-run").exit_code == 0
        assert run("deploy", plan_path, "--switch", f"s0={address}", "--device-id", "s0=4").exit_code == 0


def test_nobody_answers() -> None:
    assert "nobody answers there" in failure_of(lambda: primary(RemoteSwitch("s0", "127.0.0.1:1")))
    assert "no host has that name" in failure_of(lambda: primary(RemoteSwitch("s0", "no.such.host.invalid:1")))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two authorities, and certificates: of a switch, of one elsewhere, of two controllers."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for ca in ("ca", "other"):
        openssl("req", "-x509", *key, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}")
    for name, names, ca in (
        ("switch", "IP:127.0.0.1", "ca"),
        ("elsewhere", "DNS:switch.example", "ca"),
        ("controller", "DNS:controller", "ca"),
        ("stranger", "DNS:controller", "other"),
    ):
        (directory / "names").write_text(f"subjectAltName={names}\n")
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        sign = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *sign)
    return directory


def test_tls_and_what_can_be_wrong_with_it(authority: Path, plan_path: str) -> None:
    def pem(name: str, kind: str = "pem") -> str:
        return str(authority / f"{name}.{kind}")

    def attempt(address: str, *tls: str | None) -> None:
        primary(RemoteSwitch("s0", address, tls=ClientTls(*tls) if tls else None))

    with embedded(tls=service.ServerTlsFiles(pem("switch"), pem("switch", "key"))) as address:
        attempt(address, pem("ca"))
        assert run("deploy", plan_path, "--switch", f"s0={address}", "--tls-ca", pem("ca")).exit_code == 0
        assert "not from the authority given with --tls-ca" in failure_of(lambda: attempt(address, pem("other")))
        assert "if it speaks TLS, give --tls-ca" in failure_of(lambda: attempt(address))
    with embedded(tls=service.ServerTlsFiles(pem("elsewhere"), pem("elsewhere", "key"))) as address:
        assert "for another name than the address" in failure_of(lambda: attempt(address, pem("ca")))
    with embedded(tls=service.ServerTlsFiles(pem("switch"), pem("switch", "key"), pem("ca"))) as address:
        attempt(address, pem("ca"), pem("controller"), pem("controller", "key"))
        assert "give the --tls-cert and --tls-key" in failure_of(lambda: attempt(address, pem("ca")))
        stranger = (pem("ca"), pem("stranger"), pem("stranger", "key"))
        assert "give the --tls-cert and --tls-key" in failure_of(lambda: attempt(address, *stranger))
    with embedded() as address:
        assert "it does not speak TLS" in failure_of(lambda: attempt(address, pem("ca")))


# A controller that stays.


class Standing:
    """A controller that stays, in threads of this process."""

    def __init__(self, deployment: PlannedDeployment, target: RemoteSwitch):
        self.events: queue.Queue[Event] = queue.Queue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=keep, args=(deployment, [target], self.events.put, self._stopping), name="standing controller"
        )
        self._thread.start()

    def wait_for(self, kind: str) -> Event:
        """Return the next event of a kind."""
        while True:
            event = self.events.get(timeout=PATIENCE_S)
            assert "\n" not in event_line(event, SCHEMA)
            if event.kind == kind:
                return event

    def __enter__(self) -> Standing:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def deployment(plan: Plan) -> PlannedDeployment:
    return prepare(plan, ["s0"], Options(), PROGRAM)


def assert_deployed(switch: TargetSwitch, deployment: PlannedDeployment) -> None:
    with Connection(target_of(switch)) as connection:
        assert normal(read_entities(connection, SCHEMA)) == normal(deployment.wanted["s0"])


def test_a_backup_takes_over_when_the_primary_goes(target_switch: TargetSwitch, deployment: PlannedDeployment) -> None:
    with Standing(deployment, target_of(target_switch, election_id=1)) as backup:
        assert backup.wait_for("primary").changes is not None
        with Standing(deployment, target_of(target_switch, election_id=2)) as first:
            first.wait_for("primary")
            event = backup.wait_for("backup")
            assert event_line(event, SCHEMA) == f"s0 at {target_switch.address}: backup; election id 2 is primary"
            with Connection(target_of(target_switch, election_id=9)) as vandal:
                vandal.become_primary()
                write_changes(vandal, SCHEMA, difference([], deployment.wanted["s0"]))
                assert backup.wait_for("backup").standing is not None
            # The vandal is gone: one of the two repairs what it did.
        taken = backup.wait_for("primary")
        assert taken.changes is not None
        assert_deployed(target_switch, deployment)


def test_a_restart_of_the_switch_is_survived(target_switch: TargetSwitch, deployment: PlannedDeployment) -> None:
    with Standing(deployment, target_of(target_switch)) as controller:
        controller.wait_for("primary")
        target_switch.stop()
        lost = controller.wait_for("lost")
        assert event_line(lost, SCHEMA).endswith("; trying again")
        target_switch.start()
        again = controller.wait_for("primary").changes
        assert again is not None
        assert again.program == "none"
        assert_deployed(target_switch, deployment)


def test_a_switch_that_comes_later_is_deployed_then(target_switch: TargetSwitch, deployment: PlannedDeployment) -> None:
    target_switch.stop()
    with Standing(deployment, target_of(target_switch)) as controller:
        controller.wait_for("lost")
        target_switch.start()
        controller.wait_for("primary")
        assert_deployed(target_switch, deployment)


@rest(but=1)
@pytest.mark.parametrize(
    ("number", "more"), [(signal.SIGTERM, []), (signal.SIGINT, []), (signal.SIGINT, ["--replan", "10"])]
)
def test_the_verb_stays_until_it_is_told_to_end(
    target_switch: TargetSwitch, plan_path: str, number: signal.Signals, more: list[str]
) -> None:
    program = Path(sys.executable).with_name("tensorexpress")
    arguments = ["deploy", plan_path, "--switch", f"s0={target_switch.address}", "--stay", *more]
    with subprocess.Popen(
        [program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={"PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"s0 at {target_switch.address}: primary; program loaded")
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


# Status.


def tensor_frame(job: int) -> bytes:
    ends = [FrameEnd(address.mac, address.ipv4) for address in default_addresses(["h0", "h1"])]
    return build_frame(*ends, Header(job, 0, 0, tensor=3, chunk=0, chunks=1).pack())


def test_status_counts_what_went_through(
    target_switch: TargetSwitch, deployment: PlannedDeployment, plan_path: str
) -> None:
    with Connection(target_of(target_switch)) as connection:
        connection.become_primary()
        reconcile(connection, PROGRAM, SCHEMA, deployment.wanted["s0"])
        fields = dict.fromkeys(SCHEMA.header_fields("packet_out").values(), 0)
        connection.packet_out(tensor_frame(job=0), fields)
        status = read_status(connection, PROGRAM, SCHEMA)
        while not status.rows("ports"):
            status = read_status(connection, PROGRAM, SCHEMA)
    assert status.exceptions["stranger remarked"] == 1
    assert [(row.job, row.queue, row.offered_packets) for row in status.rows("traffic")] == [(None, 0, 1)]
    assert [(row.port, row.packets, row.other_packets) for row in status.rows("ports")] == [(0, 0, 1)]
    assert {use.table: use.entries for use in status.tables}[mark.QUEUE_DSCP] == 16
    result = run("status", "--switch", f"s0={target_switch.address}", "--plan", plan_path)
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["stranger", "remarked", "1"] in rows
    assert ["forward.l2", "5", "4096"] in rows
    assert any(row[:4] == ["other", "traffic", "0", "1"] for row in rows)
    assert "longest queues: " in result.stdout
    document = json.loads(run("status", "--switch", f"s0={target_switch.address}", "--json", "-").stdout)
    assert document["switches"][0]["traffic"][0]["name"] == "other traffic"


def test_a_sample_of_a_job_comes_to_the_controller(plan: Plan) -> None:
    notices: list[Any] = []
    switch = Switch(lambda port, frame, time_ps: None, notices.append)
    with (
        service.serve(switch, "127.0.0.1:0", cpu_port=255) as server,
        Connection(RemoteSwitch("s0", server.address)) as connection,
    ):
        connection.become_primary()
        reconcile(connection, PROGRAM, SCHEMA, prepare(plan, ["s0"], Options(), PROGRAM).wanted["s0"])
        switch.receive(0, tensor_frame(job=0), 0)
        switch.advance(10**12)
        [notice] = notices
        server.notify(notice)
        packet = connection.listen(PATIENCE_S)
        status = read_status(connection, PROGRAM, SCHEMA)
    [row] = status.rows("traffic")
    assert (row.job, row.queue, row.offered_packets, row.served_packets) == (0, plan.jobs[0].queues[3], 1, 1)
    assert status.rows("ports") == (mark.PortBytes(1, 1, len(tensor_frame(job=0)), 0, 0),)
    assert isinstance(packet, ReceivedPacket)
    line = event_line(Event(RemoteSwitch("s0", "here:1"), "packet", packet=packet), SCHEMA)
    assert line.startswith("s0 at here:1: a packet of job 0 from port 0: worker 0, iteration 0, tensor 3, chunk 0 of 1")


@rest(but=1)
@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (
            {"lost": lambda: {0: 0, 3: 12}},
            "port  frames lost before they were taken\n3                                     12",
        ),
        ({"lost": lambda: {0: 0}}, "frames lost before they were taken: none"),
        ({}, "frames lost before they were taken: not told by this switch"),
    ],
)
def test_status_says_what_was_lost_before_it_was_taken(lost: dict[str, Any], said: str, plan_path: str) -> None:
    with embedded(**lost) as address:
        assert run("deploy", plan_path, "--switch", f"s0={address}").exit_code == 0
        result = run("status", "--switch", f"s0={address}")
    assert result.stdout.rstrip().endswith(said), result.stdout


# The page.


def test_the_page_says_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```(sh|text)\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    printed, compared = "", 0
    with ExitStack() as stack:
        runtime = stack.enter_context(tempfile.TemporaryDirectory())  # a path that is short enough for a socket
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        stack.enter_context(embedded(str(default_address(1, make=True)), cpu_port=255, lost=dict))
        for kind, block in blocks[: next(i for i, (_, block) in enumerate(blocks) if "simple_switch_grpc" in block)]:
            if kind == "text":
                assert printed.replace(runtime, "/run/user/1000").rstrip() == block.rstrip()
                compared += 1
            elif "tensorexpress switch" not in block:
                program, *arguments = shlex.split(block)
                result = run(*arguments)
                assert (program, result.exit_code) == ("tensorexpress", 0), result.output
                printed = result.stdout
    assert compared == 3
