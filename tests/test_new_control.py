"""A P4 control with a table, registers, a counter and groups is its P4 file, its module, and its use in the program."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorexpress.control
from tensorexpress import p4
from tensorexpress.addresses import default_addresses
from tensorexpress.control import controls
from tensorexpress.control.client import Connection, RemoteSwitch
from tensorexpress.control.deploy import prepare
from tensorexpress.control.entities import RegisterEntry
from tensorexpress.control.intent import Options
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.control.reconcile import difference, reconcile, steps
from tensorexpress.control.report import status_json, status_table
from tensorexpress.control.status import read_status
from tensorexpress.p4 import P4Program
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.switch.device import Switch
from tensorexpress.switch.p4runtime import service
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.header import Header

CONTROLS = Path(__file__).parent / "controls"

pytestmark = pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[P4Program]:
    """Add the control to a copy of the P4 program, and its module to those of the controller."""
    sources = tmp_path / "p4"
    shutil.copytree(p4.HERE, sources, ignore=shutil.ignore_patterns("build", "__pycache__"))
    shutil.copy(CONTROLS / "tally.p4", sources / "include")
    top = sources / f"{p4.NAME}.p4"
    lines = {
        '#include "include/mark.p4"': '#include "include/tally.p4"',
        "Classify() classify;": "Tally() tally;",
        "classify.apply(hdr, meta, standard_metadata);": "tally.apply(hdr, meta, standard_metadata);",
    }
    text = top.read_text()
    for line, added in lines.items():
        assert line in text
        text = text.replace(line, f"{line}\n{added}")
    top.write_text(text)
    monkeypatch.setattr(p4, "HERE", sources)
    monkeypatch.setattr(tensorexpress.control, "__path__", [*tensorexpress.control.__path__, str(CONTROLS)])
    controls.controls.cache_clear()
    yield p4.build(p4.find_p4c(), tmp_path / "build")
    controls.controls.cache_clear()


@pytest.fixture
def plan() -> Plan:
    scenario = read_scenario(overrides=["job.model=alexnet", "job.workers=2", "job.servers=1"])
    return make_plan(scenario, POLICIES["tensorexpress"])


def tensor_frame() -> bytes:
    ends = [FrameEnd(address.mac, address.ipv4) for address in default_addresses(["h0", "h1", "h2"])]
    return build_frame(ends[0], ends[2], Header(job=0, worker=0, iteration=0, tensor=3, chunk=0, chunks=1).pack())


def test_a_new_control_is_deployed_in_its_order_read_and_told_of(program: P4Program, plan: Plan) -> None:
    schema = ProgramSchema.of(program)
    deployment = prepare(plan, ["s0"], Options(), program)
    wanted = deployment.wanted["s0"]
    own = {"tally.jobs", "tally.rounds", "multicast groups"}
    order = [{entity.place for _, entity in step} & own for step in steps(difference(wanted, []), schema)]
    assert order == [{"tally.rounds", "multicast groups"}, {"tally.jobs"}]
    sent: list[int] = []
    switch = Switch(lambda port, frame, time_ps: sent.append(port))
    with service.serve(switch, "127.0.0.1:0", cpu_port=255) as server:
        target = RemoteSwitch("s0", server.address)
        with Connection(target) as connection:
            connection.become_primary()
            foreseen = reconcile(connection, program, schema, wanted, dry_run=True)
            assert reconcile(connection, program, schema, wanted) == foreseen
            assert RegisterEntry("tally.rounds", 1, 2) in foreseen.modified
            assert reconcile(connection, program, schema, wanted).is_empty
            for arrival in range(4):
                switch.receive(0, tensor_frame(), arrival)
            switch.advance(10**12)
            status = read_status(connection, program, schema)
    # Two of four packets go to port 2, where the server is; the others to all workers but the one they came from.
    assert sorted(sent) == [1, 1, 2, 2]
    assert "slot  packets\n1           2" in status_table(status)
    assert status_json({target: status})["switches"][0]["told"] == [{"slot": 1, "packets": 2}]
