"""Programs over captures in virtual time, from Python and from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support import tiny_programs as tiny

from tensorexpress.cli import main
from tensorexpress.errors import CaptureError, ProgramError
from tensorexpress.switch import VirtualSwitch
from tensorexpress.switch.operations import ActionCall, CpuFrame, Entry, SetEntry, SetMulticastGroup
from tensorexpress.switch.pcap import TimedFrame, capture_name, read_pcap, write_pcap
from tensorexpress.switch.replay import replay
from tensorexpress.switch.traffic import PortSettings

PROGRAMS = Path(__file__).parent / "programs" / "build"
PROGRAM, P4INFO = PROGRAMS / "switchboard.json", PROGRAMS / "switchboard.p4info.txtpb"

ENTRIES = """
updates {{
  type: INSERT
  entity {{
    table_entry {{
      table_id: {table}
      match {{ field_id: 1 exact {{ value: "\\002\\000\\000\\000\\000\\001" }} }}
      action {{ action {{ action_id: {action} params {{ param_id: 1 value: "\\005" }} }} }}
    }}
  }}
}}
updates {{
  type: INSERT
  entity {{ packet_replication_engine_entry {{ multicast_group_entry {{
    multicast_group_id: 1
    replicas {{ egress_port: 3 instance: 1 }}
    replicas {{ egress_port: 4 instance: 2 }}
  }} }} }}
}}
"""


def frame(port, priority=0, size=60):
    return (bytes([2, 0, 0, 0, 0, port]) + bytes([2, 0, 0, 0, 0, priority]) + b"\x88\xb5").ljust(size, b"\0")


def ids():
    """The ids that p4c gave, so that no number is written here."""
    text = P4INFO.read_text()
    numbers = {}
    for block in text.split("preamble {")[1:]:
        number, name = (line.split(":")[1].strip() for line in block.splitlines()[1:3])
        numbers[name.strip('"')] = number
    return numbers


@pytest.fixture
def entries(tmp_path):
    pytest.importorskip("tensorexpress.p4runtime_messages")
    path = tmp_path / "entries.txtpb"
    path.write_text(ENTRIES.format(table=ids()["Choose.l2"], action=ids()["Choose.forward"]))
    return path


def test_three_lines_test_a_program():
    switch = VirtualSwitch(PROGRAM)
    assert switch.run({0: [frame(3), frame(4)], 1: [frame(3)]}) == {3: [frame(3), frame(3)], 4: [frame(4)]}


def test_a_switch_without_grpc_and_protobuf_runs_programs():
    code = f"""
import sys
for name in ("grpc", "google", "p4", "scapy"):
    sys.modules[name] = None
from tensorexpress.switch import VirtualSwitch
assert VirtualSwitch({str(PROGRAM)!r}).run({{0: [{frame(3)!r}]}}) == {{3: [{frame(3)!r}]}}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_entries_in_text_form_are_applied(entries):
    switch = VirtualSwitch(PROGRAM, P4INFO, entries)
    group = b"\xff" * 6 + frame(0)[6:]
    assert switch.run({0: [frame(1), frame(2)]}) == {5: [frame(1)], 2: [frame(2)]}
    assert switch.run({0: [group], 3: [group]}) == {3: [group], 4: [group, group]}


def test_operations_and_notices_from_python():
    switch = VirtualSwitch(PROGRAM.read_bytes())
    switch.apply([SetEntry(Entry("Choose.l2", (0x020000000001,)), ActionCall("Choose.forward", (255,)))])
    switch.apply([SetMulticastGroup(1, ((8, 0),))])
    assert switch.run({0: [frame(1)]}) == {}
    assert switch.notices == [CpuFrame(frame(1))]


@given(st.lists(st.binary(min_size=1, max_size=80), max_size=20))
def test_frames_of_any_bytes_pass_or_are_dropped_and_counted(frames):
    switch = _any_bytes_switch()
    before = switch.statistics().ports
    sent = switch.run({0: frames})
    after = switch.statistics()
    assert after.failures == {}

    def change(count):
        return sum(map(count, after.ports.values())) - sum(map(count, before.values()))

    out = sum(map(len, sent.values()))
    drops = change(lambda port: sum(port.drops.values()))
    notices = change(lambda port: port.tx_frames) - out
    assert out + drops + notices == len(frames)


_kept = []


def _any_bytes_switch():
    if not _kept:
        _kept.append(VirtualSwitch(PROGRAM))
    return _kept[0]


def test_frames_of_all_ports_are_merged_by_time_and_leave_on_time():
    """At a byte a microsecond, with 24 bytes beside each frame of 76."""
    switch = VirtualSwitch(PROGRAM, settings=PortSettings(rate_bps=8 * 10**6))
    start_ns = 1_700_000_000 * 10**9
    bulk, urgent = frame(9, 0, 76), frame(9, 7, 76)
    sent = switch.run_timed(
        {
            0: [TimedFrame(start_ns, bulk), TimedFrame(start_ns + 1000, bulk)],
            1: [TimedFrame(start_ns + 2000, urgent)],
        }
    )
    assert sent == {
        9: [
            TimedFrame(start_ns + 100_000, bulk),
            TimedFrame(start_ns + 200_000, urgent),
            TimedFrame(start_ns + 300_000, bulk),
        ]
    }


def test_captures_in_captures_out(tmp_path):
    write_pcap(tmp_path / "a.pcap", [TimedFrame(10, frame(1)), TimedFrame(30, b"\x02")])
    write_pcap(tmp_path / "b.pcap", [TimedFrame(20, frame(2)), TimedFrame(25, frame(1))])
    written = replay(VirtualSwitch(PROGRAM), {0: tmp_path / "a.pcap", 1: tmp_path / "b.pcap"}, tmp_path / "out")
    assert {port: path.name for port, path in written.items()} == {1: capture_name(1, "out"), 2: capture_name(2, "out")}
    assert read_pcap(written[1]) == [TimedFrame(10, frame(1)), TimedFrame(25, frame(1)), TimedFrame(30, b"\x02")]
    assert read_pcap(written[2]) == [TimedFrame(20, frame(2))]


def test_no_frames_give_no_frames():
    assert VirtualSwitch(PROGRAM).run({}) == {}


def run(*arguments):
    return CliRunner().invoke(main, ["switch", "replay", *map(str, arguments)])


def test_the_command_writes_one_capture_per_port(tmp_path, entries):
    write_pcap(tmp_path / "a.pcap", [TimedFrame(10, frame(1))])
    write_pcap(tmp_path / "b.pcap", [TimedFrame(20, frame(2))])
    result = run(
        PROGRAM, "--p4info", P4INFO, "--entries", entries,
        "--in", f"0={tmp_path}/a.pcap", "--in", f"1={tmp_path}/b.pcap", "--out", tmp_path / "out",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["port2-out.pcap", "port5-out.pcap"]
    assert result.stdout.splitlines()[-1] == str(tmp_path / "out" / "port5-out.pcap")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([PROGRAM, "--in", "0"], "--in '0'; accepted: PORT=FILE"),
        ([PROGRAM, "--in", "511=a.pcap"], "accepted: PORT=FILE with a port of 0 to 510"),
        ([PROGRAM, "--in", "0=a.pcap", "--in", "0=b.pcap"], "--in 0=... is given twice"),
        ([PROGRAM, "--in", "0=nosuch.pcap"], "cannot read 'nosuch.pcap': No such file"),
        ([PROGRAM, "--in", f"0={PROGRAM}"], "not with the magic number of pcap or pcapng"),
        (["nosuch.json", "--in", "0=a.pcap"], "cannot read 'nosuch.json'"),
        ([__file__, "--in", "0=a.pcap"], "test_replay_pcap.py: "),
        ([PROGRAM, "--entries", "e", "--in", "0=a.pcap"], "e: entries need the P4Info"),
        ([PROGRAM, "--entries", PROGRAM, "--p4info", P4INFO, "--in", "0=a.pcap"], "not a P4Runtime WriteRequest"),
        ([PROGRAM, "--entries", P4INFO, "--p4info", PROGRAM, "--in", "0=a.pcap"], "switchboard.p4info.txtpb: "),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(arguments, message, tmp_path):
    pytest.importorskip("tensorexpress.p4runtime_messages")
    result = run(*arguments, "--out", tmp_path)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_program_with_ports_beyond_those_of_v1model_is_refused_in_one_line(engine, tmp_path):
    standard = [[name, 64 if name == "egress_spec" else wide, signed] for name, wide, signed in tiny.STANDARD]
    document = tiny.program(
        {"e": ([["p", 64, False]], None)},
        {"h": "e"},
        [tiny.state("start", [tiny.extract("h")])],
        [tiny.assign(tiny.field("standard_metadata", "egress_spec"), tiny.field("h", "p"))],
    )
    document["header_types"][1]["fields"] = standard
    (tmp_path / "wide.json").write_bytes(tiny.text(document))
    write_pcap(tmp_path / "in.pcap", [TimedFrame(0, bytes(8))])
    result = run(tmp_path / "wide.json", "--engine", engine, "--in", f"0={tmp_path}/in.pcap", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "the standard metadata has bit<64> as 'egress_spec'; accepted: bit<9>" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("engine", ["python", "native"])
def test_frames_to_ports_beyond_32_bits_are_dropped_and_counted(engine, tmp_path):
    document = tiny.program(
        {"e": ([["p", 64, False]], None)},
        {"h": "e"},
        [tiny.state("start", [tiny.extract("h")])],
        [tiny.assign(tiny.field("scalars", "wide"), tiny.field("h", "p"))],
        scalars=[["wide", 63, False]],
        field_aliases=[["standard_metadata.egress_spec", ["scalars", "wide"]]],
    )
    (tmp_path / "wide.json").write_bytes(tiny.text(document))
    ports = [7, 2**32 - 1, 2**32, 2**63 - 1]
    write_pcap(tmp_path / "in.pcap", [TimedFrame(time, port.to_bytes(8)) for time, port in enumerate(ports)])
    result = run(tmp_path / "wide.json", "--engine", engine, "--in", f"0={tmp_path}/in.pcap", "--out", tmp_path / "out")
    assert result.exit_code == 0, (result.output, result.exception)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"port7-out.pcap", "port4294967295-out.pcap"}
    assert "ports that do not exist: 2 " in result.stdout


def test_options_of_a_switch_that_is_not_started_are_refused():
    result = CliRunner().invoke(main, ["switch", "--rate", "1 Gbps", "replay", "p.json", "--in", "0=a", "--out", "d"])
    assert result.exit_code == 2
    assert "--rate is given before replay; give options after it" in result.stderr


def test_errors_have_their_own_types(tmp_path):
    with pytest.raises(ProgramError):
        VirtualSwitch(b"{}")
    with pytest.raises(CaptureError):
        replay(VirtualSwitch(PROGRAM), {0: tmp_path / "missing.pcap"}, tmp_path)
