"""A switch that runs: two processes, real sockets, real time; what it did is read from its own captures."""

from __future__ import annotations

import gc
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.network import host, needs_root, neighbour
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.cli.switch import statistics_table
from tensorexpress.errors import InputError, NetworkError, ProgramError
from tensorexpress.program_engines import NATIVE, PYTHON
from tensorexpress.switch.counted import NOT_TAKEN
from tensorexpress.switch.device import Switch
from tensorexpress.switch.link import DataLink, LinkClosedError, SwitchEnd, start_process
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.switch.operations import ActionCall, CpuFrame, DeleteEntry, Entry, ReadRegister, SetEntry
from tensorexpress.switch.pcap import capture_name, read_pcap
from tensorexpress.switch.ports import InterfaceSpec, WireSpec
from tensorexpress.switch.program.compiled import compile_program
from tensorexpress.switch.running import RunningSwitch
from tensorexpress.switch.traffic import PortSettings

PROGRAMS = Path(__file__).parent / "programs" / "build"
PROGRAM, P4INFO = PROGRAMS / "switchboard.json", PROGRAMS / "switchboard.p4info.txtpb"
MACS = ("02:00:00:00:00:00", "02:00:00:00:00:01")
SECONDS = 20  # that anything may take on a busy machine before a test gives up


def frame(port, priority=0, size=60, name=0):
    """A frame that switchboard.p4 sends to a port, in the queue of a priority."""
    return (
        bytes([2, 0, 0, 0, 0, port]) + bytes([2, 0, 0, 0, 0, priority]) + b"\x88\xb5" + name.to_bytes(4, "big")
    ).ljust(size, b"\0")


#: Of this process alone, so that no other test takes a port between its choice and its use.
NEAR_HOST = f"127.1.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"


def wires(stack, count):
    """Return the far ends of UDP wires, and where the near ends are to be."""
    ends = []
    for _ in range(count):
        far = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        far.bind(("127.0.0.1", 0))
        far.settimeout(SECONDS)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**21)
        with socket.socket(type=socket.SOCK_DGRAM) as near:
            near.bind((NEAR_HOST, 0))
            address = near.getsockname()
        far.connect(address)
        ends.append((far, address))
    return ends


@contextmanager
def command(*arguments):
    """Run `tensorexpress switch` and give the process and the line it prints when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from tensorexpress.cli import main; main()", "switch", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        ready = process.stdout.readline()
        assert ready, process.stderr.read()
        yield process, ready
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def port_option(number, far, near):
    local, remote = (":".join(map(str, address)) for address in (near, far.getsockname()))
    return ["--port", f"{number}@udp:{local}-{remote}"]


def started_at(pid):
    """In ticks since the machine began."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def children(process):
    """The processes that a switch has started, from any of its threads, the one that forwards first.

    Another one may still optimise machine code.
    """
    lists = Path(f"/proc/{process.pid}/task").glob("*/children")
    started = [int(child) for each in lists for child in each.read_text().split()]
    return sorted(started, key=started_at)


def wait_for_end(pid):
    """Return when a process that need not be ours is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], (), (), SECONDS)[0], f"process {pid} lives on"
    finally:
        os.close(handle)


@contextmanager
def running(count=2, ports=None, **settings):
    """A switch with UDP wires; gives it and the far ends."""
    with ExitStack() as stack:
        ends = wires(stack, count)
        specs = {
            number: (WireSpec(near, far.getsockname()), PortSettings(**(ports or {}).get(number, {})))
            for number, (far, near) in enumerate(ends)
        }
        switch = stack.enter_context(RunningSwitch(LoopSettings(specs, **settings), None))
        switch.data_path.load(PROGRAM.read_bytes())
        yield switch, [far for far, _ in ends]


@rest(but=1)
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_command_forwards_and_stops_in_good_order(stop, tmp_path):
    with ExitStack() as stack:
        (left, near_left), (right, near_right) = wires(stack, 2)
        options = [*port_option(0, left, near_left), *port_option(1, right, near_right)]
        process, ready = stack.enter_context(
            command(*options, "--no-grpc", "--program", str(PROGRAM), "--rate", "1=1 Gbps", "--pcap", str(tmp_path))
        )
        assert ready.startswith(f"switch 1 is ready: no P4Runtime; ports 0@udp:{NEAR_HOST}:")
        assert ready.endswith("8 queues (strict); rate unlimited, 1 Gbps at port 1\n")
        for size in (1, 13, 14, 60, 1514, 9000):
            left.send(frame(1, size=100)[:size].ljust(size, b"\0"))
            assert len(right.recv(65536)) == size
        right.send(frame(0))
        assert left.recv(65536) == frame(0)
        started = children(process)
        process.send_signal(stop)
        output, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (0, "")
        for child in started:
            wait_for_end(child)
        assert re.search(r"^ +0 +6 +10602 +1 +60  -$", output, re.MULTILINE)
        assert [len(each.data) for each in read_pcap(tmp_path / capture_name(1, "out"))] == [1, 13, 14, 60, 1514, 9000]
        assert [each.data for each in read_pcap(tmp_path / capture_name(0, "out"))] == [frame(0)]


# A crash of native code ends the forwarding process by such a signal.
@rest(but=1)
@pytest.mark.parametrize(("victim", "number"), [("controlling", signal.SIGKILL), ("forwarding", signal.SIGSEGV)])
def test_when_one_process_is_killed_the_other_ends(victim, number):
    with command("--no-grpc", "--program", str(PROGRAM)) as (process, ready):
        assert "ports none" in ready
        started = children(process)
        os.kill(process.pid if victim == "controlling" else started[0], number)
        for child in started:
            wait_for_end(child)
        _, errors = process.communicate(timeout=SECONDS)
        if victim == "forwarding":
            assert process.returncode == 1
            assert errors == (
                "tensorexpress: error: the process that forwards packets has ended; start the switch again\n"
            )


SPIN = """
from tensorexpress.switch.link import start_process

class Loop:
    def __reduce__(self):
        return exec, ("print('spins', flush=True)\\nwhile True: pass",)

link = start_process()
print(link.pid, flush=True)
link.start(Loop())
"""


def test_a_forwarding_process_that_is_in_an_endless_loop_ends_with_the_controlling_one():
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True) as process:
        forwarding = int(process.stdout.readline())
        assert process.stdout.readline() == "spins\n"
        process.kill()
        wait_for_end(forwarding)


def test_a_switch_outlives_the_thread_that_started_it():
    links = []
    thread = threading.Thread(target=lambda: links.append(start_process()))
    thread.start()
    thread.join()
    (link,) = links
    link.start(LoopSettings({}))
    assert link.statistics().failures == {}
    assert link.stop() is not None


@rest(but=6)
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--port", "veth0"], 2, "port 'veth0'; accepted: NUMBER@INTERFACE"),
        (["--port", "0@nosuch0"], 2, "there is no interface 'nosuch0'"),
        (["--port", "0@udp:192.0.2.1:5-127.0.0.1:6"], 1, "cannot open the UDP wire 192.0.2.1:5-127.0.0.1:6"),
        (["--port", "0@lo", "--port", "0@lo"], 2, "--port 0 is given twice"),
        (["--port", "255@lo"], 2, "--port 255@lo has the number of the CPU port"),
        (["--rate", "fast"], 2, "'fast' is not a rate"),
        (["--rate", "3=1 Gbps"], 2, "--rate 3=... is of no port; give --port 3@..."),
        (["--lowest-share", "120%"], 2, "--lowest-share '120%'; accepted: 0% to below 100%"),
        (["--lowest-share", "5%", "--discipline", "fifo"], 2, "needs discipline strict"),
        (["--pcap", "/proc/nosuch"], 2, "cannot write to '/proc/nosuch': "),
        (["--program", "/nosuch.json"], 2, "cannot read '/nosuch.json': No such file"),
        (["--program", __file__], 2, "not"),
        (["--entries", "e"], 2, "--p4info and --entries go with --program"),
        (["--program", __file__, "--entries", "e"], 2, "--program needs --p4info"),
        (["--tls-cert", "c"], 2, "TLS needs --tls-cert and --tls-key"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments, status, message):
    serving = ["--no-grpc"] if "--program" in arguments else ["--grpc", "127.0.0.1:0"]
    result = CliRunner().invoke(main, ["switch", *serving, *arguments])
    assert message in result.stderr
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (status, "", 1)


def test_operations_answers_and_notices_cross_the_link():
    with running(cpu_port=7) as (switch, (left, right)):
        notices = switch.data_path
        with pytest.raises(ProgramError):
            notices.load(b"{}")
        left.send(frame(1))
        assert right.recv(65536) == frame(1)  # the refused program left the other one in place
        key = int.from_bytes(frame(1)[:6], "big")
        switch.data_path.apply([SetEntry(Entry("Choose.l2", (key,)), ActionCall("Choose.forward", (0,)))])
        left.send(frame(1))
        assert left.recv(65536) == frame(1)
        switch.data_path.packet_out(frame(0))
        assert left.recv(65536) == frame(0)
        statistics = switch.data_path.statistics()
        assert {number: port.tx_frames for number, port in statistics.ports.items()} == {0: 2, 1: 1, 7: 0}


def test_packets_to_the_cpu_port_arrive_as_notices():
    with ExitStack() as stack:
        ((far, near),) = wires(stack, 1)
        link = start_process()
        stack.callback(link.stop)
        link.start(LoopSettings({0: (WireSpec(near, far.getsockname()), PortSettings())}, cpu_port=7))
        link.load(PROGRAM.read_bytes())
        far.send(frame(7))
        assert next(link.notices()) == CpuFrame(frame(7))


def test_a_controller_that_does_not_read_its_notices_stops_no_packet():
    """Notices are dropped and counted; packets and requests go on."""
    with ExitStack() as stack:
        ends = wires(stack, 2)
        link = start_process()
        stack.callback(link.stop)
        ports = {n: (WireSpec(near, far.getsockname()), PortSettings()) for n, (far, near) in enumerate(ends)}
        link.start(LoopSettings(ports, cpu_port=7))
        link.load(PROGRAM.read_bytes())
        (left, _), (right, _) = ends
        rounds = 0
        while not link.statistics().dropped_notices:
            rounds += 1
            assert rounds < 1000, "notices have no bound"
            for _ in range(20):
                left.send(frame(7, size=9000))
            left.send(frame(1))
            assert right.recv(65536) == frame(1)
        assert link.statistics().ports[7].tx_frames == 20 * rounds


def test_requests_of_many_threads_take_turns():
    with running() as (switch, _):
        results = []

        def ask():
            for _ in range(20):
                results.append(switch.data_path.statistics().failures)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [{}] * 160


def test_a_link_whose_other_end_is_gone_says_so():
    here, there = socket.socketpair()
    notices_here, notices_there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link, end = DataLink(here, notices_here), SwitchEnd(there, notices_there)
    there.close()
    notices_there.close()
    end.notify(CpuFrame(b"frame"))
    assert end.dropped_notices == 1
    assert list(link.notices()) == []
    with pytest.raises(LinkClosedError):
        link.packet_out(b"")
    assert link.stop() is None


def test_a_long_answer_waits_for_its_reader():
    """The forwarding end never waits for room: what does not fit is sent when the other end has read."""
    here, there = socket.socketpair()
    notices = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link, end = DataLink(here, notices[0]), SwitchEnd(there, notices[1])
    long = [(0, number) for number in range(10**5)]
    had_to_wait = []

    def serve():
        request = None
        while request is None:
            select.select([end], (), ())
            request = end.next_request()
        end.part(long)
        end.answer(None)
        had_to_wait.append(end.has_answer)
        while end.has_answer:
            select.select((), [end], ())
            end.send_rest()

    server = threading.Thread(target=serve)
    server.start()
    assert link.ask([ReadRegister("any", None)]) == [list(range(10**5))]
    server.join()
    assert had_to_wait == [True]
    for each in (here, there, *notices):
        each.close()


@rest()
def test_a_request_sees_all_of_those_before_it_and_packets_pass_between_updates():
    """A frame sent while many updates are under way comes out before the last of them is done."""
    many = [SetEntry(Entry("Choose.l2", (number,)), ActionCall("Choose.forward", (0,))) for number in range(20_000)]
    back = SetEntry(Entry("Choose.l2", (int.from_bytes(frame(1)[:6], "big"),)), ActionCall("Choose.forward", (0,)))
    with running() as (switch, (left, right)):
        writer = threading.Thread(target=switch.data_path.apply, args=([*many, back],))
        writer.start()
        passed = 0
        while writer.is_alive():
            left.send(frame(1, name=passed))
            end = select.select([left, right], (), (), SECONDS)[0][0]
            assert end.recv(65536) == frame(1, name=passed)
            if end is left:
                break
            passed += 1
        writer.join()
        assert passed > 10
        left.send(frame(1))
        assert left.recv(65536) == frame(1)
        switch.data_path.apply([DeleteEntry(each.entry) for each in [*many, back]])
        switch.data_path.packet_out(frame(1))
        assert right.recv(65536) == frame(1)


def test_updates_that_are_to_be_atomic_are_done_between_the_same_two_packets():
    """The first and the last entry of a batch concern two frames: if the one has changed, so has the other."""
    keys = [int.from_bytes(frame(port)[:6], "big") for port in (1, 2)]

    def batch(way):
        numbers = [keys[0], *range(600), keys[1]]
        return [SetEntry(Entry("Choose.l2", (each,)), ActionCall("Choose.forward", (way,))) for each in numbers]

    with running(3) as (switch, (left, *others)):

        def way_of(port):
            left.send(frame(port))
            end = select.select(others, (), (), SECONDS)[0][0]
            assert end.recv(65536) == frame(port)
            return others.index(end) + 1

        switch.data_path.apply(batch(1))
        for way in (2, 1, 2, 1):
            writer = threading.Thread(target=switch.data_path.apply, args=(batch(way),), kwargs={"atomic": True})
            writer.start()
            while way_of(1) != way:
                pass
            assert way_of(2) == way
            writer.join()


def test_a_new_program_has_its_entries_before_the_first_packet():
    back = SetEntry(Entry("Choose.l2", (int.from_bytes(frame(1)[:6], "big"),)), ActionCall("Choose.forward", (0,)))
    with running() as (switch, (left, right)):
        loader = threading.Thread(target=switch.data_path.load, args=(PROGRAM.read_bytes(), [back]))
        loader.start()
        ends = []
        while not ends or loader.is_alive() or ends[-1] is right:
            left.send(frame(1))
            ends.append(select.select([left, right], (), (), SECONDS)[0][0])
            assert ends[-1].recv(65536) == frame(1)
        loader.join()
        assert ends == sorted(ends, key=[right, left].index)  # never the new program without its entry
        assert switch.data_path.statistics().ports[0].rx_frames == len(ends)


def test_the_forwarding_process_leaves_nothing_to_a_garbage_collector():
    """It has none, since it would make packets wait."""
    sent = []
    switch = Switch(lambda *each: sent.append(each), ports={0: PortSettings(), 1: PortSettings()})
    entries = [SetEntry(Entry("Choose.l2", (number,)), ActionCall("Choose.forward", (0,))) for number in range(100)]
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            configuration = switch.prepare(compile_program(PROGRAM.read_bytes()))
            gc.collect()  # the compiler's own, which is another process's
            replaced = switch.switch_over(configuration)
            switch.apply(entries)
            switch.receive(0, frame(1), 0)
            if replaced.program is not None:
                for _ in replaced.program.dismantle():
                    pass
        del replaced, configuration
        assert len(sent) == 3
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_standard_error_that_nobody_reads_stops_no_packet():
    """The forwarding process logs to a pipe that is full."""
    log = logging.LogRecord("switch", logging.ERROR, "", 0, "a line that is long enough %s", ("x" * 500,), None)
    script = (
        "import logging, pickle, sys; from tensorexpress.switch.loop import _UnblockedHandler\n"
        "handler = _UnblockedHandler()\n"
        "for _ in range(1000): handler.emit(logging.makeLogRecord(eval(sys.argv[1])))\n"
        "print('done', flush=True)\n"
    )
    command = [sys.executable, "-c", script, repr({"msg": log.getMessage()})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "done\n"
        said = process.stderr.read()
    assert said.startswith("a line that is long enough xxx")
    assert 0 < len(said) < 1000 * len(log.getMessage())


@rest(but=1)
@pytest.mark.parametrize("size", [60, 9000])
def test_frames_that_the_switch_was_too_slow_for_are_counted(size):
    """It stands still while a flood comes; afterwards every frame was either taken or counted as lost."""
    with running() as (switch, (left, _)):
        os.kill(switch.data_path.pid, signal.SIGSTOP)
        sent = 0
        try:
            while sent * size < 8 * 2**20:
                left.send(frame(1, size=size))
                sent += 1
        finally:
            os.kill(switch.data_path.pid, signal.SIGCONT)
        for _ in range(10_000):  # until the buffer is empty; between two of these requests, frames are taken
            port = switch.data_path.statistics().ports[0]
            if port.rx_frames + port.drops[NOT_TAKEN] == sent:
                break
        assert port.drops[NOT_TAKEN] > 0
        assert port.rx_frames + port.drops[NOT_TAKEN] == sent
        assert port.rx_bytes == size * port.rx_frames
        assert f"{port.drops[NOT_TAKEN]} receive buffer full" in statistics_table(switch.stop())


def test_a_program_that_cannot_be_compiled_leaves_the_one_that_runs():
    with running() as (switch, (left, right)):
        with pytest.raises(ProgramError, match="not JSON"):
            switch.data_path.load(b"no program")
        left.send(frame(1))
        assert right.recv(65536) == frame(1)


def test_an_unexpected_error_is_told_to_whoever_asked():
    with running() as (switch, _):
        with pytest.raises(NetworkError, match="the switch failed: KeyError"):
            switch.data_path.apply([SetEntry(Entry("no such table", (1,)), ActionCall("no such action"))])
        assert switch.data_path.statistics().failures == {}


def test_a_port_that_is_taken_fails_the_start_and_leaves_no_process():
    with ExitStack() as stack:
        ((far, near),) = wires(stack, 1)
        settings = LoopSettings({0: (WireSpec(near, far.getsockname()), PortSettings())})
        stack.enter_context(RunningSwitch(settings, None))
        with pytest.raises(NetworkError, match="in use"):
            RunningSwitch(settings, None)
        with pytest.raises(InputError, match="no interface"):
            RunningSwitch(LoopSettings({0: (InterfaceSpec("nosuch0"), PortSettings())}), None)


FORWARD_TO_0 = """
type: INSERT
entity { table_entry { table_id: %s
    match { field_id: 1 exact { value: "\\002\\000\\000\\000\\000\\001" } }
    action { action { action_id: %s params { param_id: 1 value: "\\000" } } } } }
"""


def test_a_p4runtime_client_programs_the_switch_and_exchanges_packets_with_it():
    pytest.importorskip("grpc")
    from google.protobuf import text_format
    from support.runtime_support import Client

    from tensorexpress.p4runtime_messages import p4info_pb2, p4runtime_pb2

    p4info = text_format.Parse(P4INFO.read_text(), p4info_pb2.P4Info())
    table = p4info.tables[0].preamble.id
    action = next(each.preamble.id for each in p4info.actions if each.preamble.alias == "forward")
    with ExitStack() as stack:
        (left, near_left), (right, near_right) = wires(stack, 2)
        options = [*port_option(0, left, near_left), *port_option(1, right, near_right), "--grpc", "127.0.0.1:0"]
        process, ready = stack.enter_context(command("--device-id", "9", *options))
        address = re.match(r"switch 9 is ready: P4Runtime at (127\.0\.0\.1:[1-9][0-9]*); ports 0@udp", ready)[1]
        client = stack.enter_context(Client(address, device_id=9))
        client.join()
        client.set_pipeline(document=PROGRAM.read_bytes(), p4info=p4info)
        left.send(frame(1))
        assert right.recv(65536) == frame(1)
        client.write(text_format.Parse(FORWARD_TO_0 % (table, action), p4runtime_pb2.Update()))
        right.send(frame(1))
        assert left.recv(65536) == frame(1)
        client.send(packet=p4runtime_pb2.PacketOut(payload=frame(0)))
        assert left.recv(65536) == frame(0)
        left.send(frame(255))
        assert client.next().packet.payload == frame(255)
        process.terminate()
        output, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (0, "")
        assert re.search(r"^ +255 +1 +60 +1 +60  -$", output, re.MULTILINE)


def test_a_controller_finds_the_program_and_entries_that_a_switch_started_with(tmp_path):
    pytest.importorskip("grpc")
    from google.protobuf import text_format
    from support.runtime_support import Client

    from tensorexpress.p4runtime_messages import p4info_pb2, p4runtime_pb2

    p4info = text_format.Parse(P4INFO.read_text(), p4info_pb2.P4Info())
    table = p4info.tables[0].preamble.id
    action = next(each.preamble.id for each in p4info.actions if each.preamble.alias == "forward")
    entries = tmp_path / "entries.txtpb"
    entries.write_text(f"updates {{ {FORWARD_TO_0 % (table, action)} }}")
    options = ["--program", str(PROGRAM), "--p4info", str(P4INFO), "--entries", str(entries), "--grpc", "127.0.0.1:0"]
    with ExitStack() as stack:
        (left, near_left), (right, near_right) = wires(stack, 2)
        ports = [*port_option(0, left, near_left), *port_option(1, right, near_right)]
        _, ready = stack.enter_context(command(*ports, *options))
        right.send(frame(1))
        assert left.recv(65536) == frame(1)
        address = re.match(r"switch 1 is ready: P4Runtime at (127\.0\.0\.1:[1-9][0-9]*);", ready)[1]
        client = stack.enter_context(Client(address))
        (found,) = client.read(p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry(table_id=table)))
        assert found.table_entry.action.action.action_id == action


RATE_BPS = 8 * 10**6
FRAME_BYTES = 1000
WIRE_BYTES = FRAME_BYTES + 24
PACKETS = 1000
#: Departures that the senders are ahead of: a third of a second for which they, or the switch, may be kept waiting.
AHEAD = 300


def share_a_link(directory, engine=PYTHON, **settings):
    """Two senders into port 2 at twice its rate or more; return what it took and sent, by its own captures."""
    ports = {2: {"rate_bps": RATE_BPS, "buffer_bytes": 4_000_000, **settings}}
    with running(3, ports, pcap=str(directory), engine=engine) as (_, (bulk, urgent, out)):

        def send_pair(number):
            pair = [(bulk, 0), (urgent, 7)]
            for sender, priority in pair if number % 2 else reversed(pair):
                sender.send(frame(2, priority, FRAME_BYTES, number))

        # The senders wait for no clock: they are paced by the frames that leave, two arrivals for every departure, or
        # four until they are far enough ahead. More at once might not find room in the sockets.
        sent = 30
        for number in range(sent):
            send_pair(number)
        for departures in range(PACKETS - AHEAD):
            out.recv(65536)
            for _ in range(2 if sent - departures < AHEAD else 1):
                send_pair(sent)
                sent += 1
    taken = [read_pcap(directory / capture_name(port, "in")) for port in (0, 1)]
    assert min(len(frames) for frames in taken) >= PACKETS - AHEAD
    return taken, read_pcap(directory / capture_name(2, "out"))


def priority_of(captured):
    return captured.data[11]


def output_rate_bps(sent):
    """Bits on the wire per second, between the most punctual departures of either half.

    A busy machine makes a departure late, never early, and later ones catch up: the punctual ones show the schedule.
    """
    frame_ns = WIRE_BYTES * 8 * 10**9 / RATE_BPS
    lateness = [(captured.time_ns - number * frame_ns, number) for number, captured in enumerate(sent)]
    half = len(sent) // 2
    (_, first), (_, last) = min(lateness[:half]), min(lateness[half:])
    return (last - first) * WIRE_BYTES * 8 * 10**9 / (sent[last].time_ns - sent[first].time_ns)


def longest_inversion(taken, sent):
    """Return the most bulk packets that left, one after the other, while an urgent one that had arrived waited."""
    arrived_ns = {captured.data: captured.time_ns for captured in taken[1]}
    urgent = [arrived_ns[captured.data] for captured in sent if priority_of(captured) == 7]
    longest = current = served = 0
    for captured in sent:
        if priority_of(captured) == 7:
            served += 1
            current = 0
        else:
            # It waited if it was there before this bulk packet's first bit, which left one packet time earlier.
            started_ns = captured.time_ns - WIRE_BYTES * 8 * 10**9 // RATE_BPS
            waiting = served < len(urgent) and urgent[served] < started_ns
            current = current + 1 if waiting else 0
        longest = max(longest, current)
    return longest


@rest(but=1)
@pytest.mark.parametrize(
    ("discipline", "engine", "keeps_order"),
    [("strict", PYTHON, True), ("strict", NATIVE, True), ("fifo", PYTHON, False)],
)
def test_on_a_shared_link_strict_priority_serves_the_urgent_first_and_fifo_does_not(
    tmp_path, discipline, engine, keeps_order
):
    taken, sent = share_a_link(tmp_path, engine, discipline=discipline)
    assert output_rate_bps(sent) == pytest.approx(RATE_BPS, rel=0.02)
    assert (longest_inversion(taken, sent) <= 1) == keeps_order
    urgent = [captured.data for captured in sent if priority_of(captured) == 7]
    assert urgent == sorted(urgent)


def test_a_share_for_the_least_urgent_queue_is_kept_on_the_wire(tmp_path):
    _, sent = share_a_link(tmp_path, lowest_share=0.25)
    both = sent[50 : PACKETS - AHEAD]  # while both queues have packets
    bulk = sum(priority_of(captured) == 0 for captured in both) / len(both)
    assert 0.25 - 1 / len(both) * 2 <= bulk
    assert output_rate_bps(sent) == pytest.approx(RATE_BPS, rel=0.02)


TRANSFER = """
import hashlib, socket, sys
role, address = sys.argv[1:]
data = bytes(range(251)) * 8000
if role == "serve":
    with socket.create_server((address, 5001)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
        with connection:
            got = b"".join(iter(lambda: connection.recv(65536), b""))
            connection.sendall(hashlib.sha256(got).digest())
else:
    with socket.create_connection((address, 5001), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    sys.exit(answer != hashlib.sha256(data).digest())
"""


@rest(but=1)
@needs_root
@pytest.mark.parametrize("rate_bps", [None, 100 * 10**6])
def test_two_hosts_whose_cards_do_everything_for_them_transfer_a_file(rate_bps, tmp_path):
    """TCP between namespaces, all offloads on: checksums and segments are finished by the switch."""
    addresses = ("10.78.0.1", "10.78.0.2")
    with ExitStack() as stack:
        hosts = [stack.enter_context(host(*each)) for each in zip(addresses, MACS, strict=True)]
        for (namespace, _), other in zip(hosts, (1, 0), strict=True):
            neighbour(namespace, addresses[other], MACS[other])
        ports = {n: (InterfaceSpec(name), PortSettings(rate_bps=rate_bps)) for n, (_, name) in enumerate(hosts)}
        switch = stack.enter_context(RunningSwitch(LoopSettings(ports, pcap=str(tmp_path)), None))
        switch.data_path.load(PROGRAM.read_bytes())
        inside = [["ip", "netns", "exec", namespace, sys.executable, "-c", TRANSFER] for namespace, _ in hosts]
        server = stack.enter_context(
            subprocess.Popen([*inside[0], "serve", addresses[0]], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(server.kill)
        assert server.stdout.readline() == "ready\n"
        subprocess.run([*inside[1], "send", addresses[0]], check=True, timeout=SECONDS)
        assert server.wait(SECONDS) == 0
        assert switch.data_path.statistics().failures == {}
    assert max(len(captured.data) for captured in read_pcap(tmp_path / capture_name(1, "in"))) <= 1514
