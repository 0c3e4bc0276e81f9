"""p4runtime-shell, unchanged, against the embedded switch: what it writes is what packets meet."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest
from support.runtime_support import MODIFY, PROGRAMS, update

from tensorexpress.p4runtime_messages import code_pb2
from tensorexpress.switch.device import Switch
from tensorexpress.switch.p4runtime.service import RuntimeServer, serve

sh: Any = pytest.importorskip("p4runtime_sh.shell", reason="p4runtime-shell is not installed (the extra `shell`)")
client: Any = pytest.importorskip("p4runtime_sh.p4runtime")

CPU_PORT = 255
MS = 10**9


class Lab:
    """A switch, its server, and what leaves its ports."""

    def __init__(self) -> None:
        self.left: queue.Queue[tuple[int, bytes]] = queue.Queue()
        self.server: RuntimeServer
        self.switch = Switch(
            lambda port, frame, time_ps: self.left.put((port, frame)),
            lambda notice: self.server.notify(notice),
            cpu_port=CPU_PORT,
        )
        self.server = serve(self.switch, "127.0.0.1:0", cpu_port=CPU_PORT)
        self.now_ps = 0

    def send(self, frame: bytes, port: int = 1) -> list[tuple[int, bytes]]:
        """Let a frame arrive and return the (port, frame) pairs that leave."""
        self.now_ps += MS
        self.switch.receive(port, frame, self.now_ps)
        self.switch.advance(self.now_ps + MS // 2)
        found = []
        while not self.left.empty():
            found.append(self.left.get())
        return found


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A switch with the program, and the shell connected to it."""
    lab = Lab()
    config = sh.FwdPipeConfig(str(PROGRAMS / "runtime.p4info.txtpb"), str(PROGRAMS / "runtime.json"))
    sh.setup(device_id=1, grpc_addr=lab.server.address, election_id=(0, 1), config=config, verbose=False)
    yield lab
    sh.teardown()
    lab.server.stop()


def frame(dst: int, kind: int = 0x9999, payload: bytes = b"payload") -> bytes:
    return dst.to_bytes(6, "big") + bytes(5) + b"\7" + kind.to_bytes(2, "big") + payload


def ipv4(dst: str, src: str = "10.9.9.9", protocol: int = 17, mac: int = 1) -> bytes:
    addresses = bytes(map(int, f"{src}.{dst}".split(".")))
    header = bytes([0x45, 0, 0, 20, 0, 0, 0, 0, 64, protocol, 0, 0]) + addresses
    return frame(mac, 0x0800, header)


def l2_entry(dst: str, action: str = "forward", **arguments: str) -> Any:
    entry = sh.TableEntry("MyIngress.l2_exact")(action=action)
    entry.match["dst"], entry.match["trill"] = dst, "0"
    for name, value in arguments.items():
        entry.action[name] = value
    return entry


def test_entries_are_inserted_read_modified_and_deleted(lab: Lab) -> None:
    assert lab.send(frame(2)) == []
    entry = l2_entry("00:00:00:00:00:02", port="4")
    entry.insert()
    assert lab.send(frame(2)) == [(4, frame(2))]
    entry.action["port"] = "6"
    entry.modify()
    assert lab.send(frame(2)) == [(6, frame(2))]
    (found,) = sh.TableEntry("MyIngress.l2_exact").read()
    assert found.match["dst"].exact.value == b"\2"
    assert found.action["port"].value == b"\6"
    with pytest.raises(client.P4RuntimeWriteException, match="ALREADY_EXISTS"):
        entry.insert()
    entry.delete()
    assert lab.send(frame(2)) == []
    with pytest.raises(client.P4RuntimeWriteException, match="NOT_FOUND"):
        entry.delete()
    assert list(sh.TableEntry("MyIngress.l2_exact").read()) == []


def test_the_default_action_is_set_and_put_back(lab: Lab) -> None:
    entry = sh.TableEntry("MyIngress.l2_exact")(action="forward", is_default=True)
    entry.action["port"] = "5"
    entry.modify()
    assert lab.send(frame(9)) == [(5, frame(9))]
    reset = sh.TableEntry("MyIngress.l2_exact")(is_default=True)
    reset.modify()
    assert lab.send(frame(9)) == []


def test_entries_of_the_program_itself_are_read(lab: Lab) -> None:
    found = list(sh.TableEntry("MyIngress.types").read())
    assert [one.match["type"].ternary.mask for one in found] == [b"\xff\xff", b"\xff\0"]
    assert found[0].priority > found[1].priority
    entry = sh.TableEntry("MyIngress.types")(action="drop", priority=3)
    entry.match["type"] = "0x0806&&&0xffff"
    with pytest.raises(client.P4RuntimeWriteException, match="PERMISSION_DENIED"):
        entry.insert()


def test_entries_without_const_can_be_deleted(lab: Lab) -> None:
    entry = sh.TableEntry("MyIngress.started")
    entry.match["type"] = "0x1234"
    (found,) = entry.read()
    found.delete()
    assert len(list(sh.TableEntry("MyIngress.started").read())) == 1


def test_counters_count_and_can_be_set(lab: Lab) -> None:
    l2_entry("2", port="4").insert()
    for _ in range(3):
        lab.send(frame(2), port=3)
    (cell,) = sh.CounterEntry("MyIngress.port_counter")(index=3).read()
    assert (cell.packet_count, cell.byte_count) == (3, 3 * len(frame(2)))
    assert len(list(sh.CounterEntry("MyIngress.port_counter").read())) == 16
    (direct,) = sh.DirectCounterEntry("MyIngress.l2_counter").read()
    assert direct.packet_count == 3
    cell.packet_count = 100
    cell.modify()
    lab.send(frame(2), port=3)
    (cell,) = sh.CounterEntry("MyIngress.port_counter")(index=3).read()
    assert cell.packet_count == 101


def test_meters_are_configured_and_read_back(lab: Lab) -> None:
    meter = sh.MeterEntry("MyIngress.port_meter")(index=2, cir=1000, cburst=100, pir=2000, pburst=200)
    meter.modify()
    cells = list(sh.MeterEntry("MyIngress.port_meter").read())
    assert [(cell.cir, cell.pburst) for cell in cells] == [(0, 0)] * 2 + [(1000, 200)] + [(0, 0)] * 5


def member(profile: str, id: int, port: int) -> None:
    one = sh.ActionProfileMember(profile)(member_id=id, action="forward")
    one.action["port"] = str(port)
    one.insert()


def test_a_group_spreads_flows_over_its_members(lab: Lab) -> None:
    for id, port in ((1, 11), (2, 12)):
        member("MyIngress.ecmp", id, port)
    group = sh.ActionProfileGroup("MyIngress.ecmp")(group_id=1)
    group.add(1).add(2)
    group.insert()
    entry = sh.TableEntry("MyIngress.nexthops")(group_id=1)
    entry.match["dst"] = "10.0.0.1"
    entry.insert()
    flows = [lab.send(ipv4("10.0.0.1", src=f"10.1.{low}.1")) for low in range(40)]
    assert {port for ((port, _),) in flows} == {11, 12}
    with pytest.raises(client.P4RuntimeWriteException, match="FAILED_PRECONDITION"):
        group.delete()
    group.clear()
    group.add(2)
    group.modify()
    flows = [lab.send(ipv4("10.0.0.1", src=f"10.1.{low}.1")) for low in range(40)]
    assert {port for ((port, _),) in flows} == {12}
    (found,) = sh.ActionProfileGroup("MyIngress.ecmp").read()
    assert [one.member_id for one in found.members] == [2]


def test_a_one_shot_is_read_back_as_it_was_written(lab: Lab) -> None:
    entry = sh.TableEntry("MyIngress.nexthops")
    entry.match["dst"] = "10.0.0.2"
    for port in (21, 22):
        action = sh.Action("MyIngress.forward")
        action["port"] = str(port)
        entry.oneshot.add(action, weight=port - 20)
    entry.insert()
    flows = [lab.send(ipv4("10.0.0.2", src=f"10.1.{low}.1")) for low in range(40)]
    assert {port for ((port, _),) in flows} == {21, 22}
    (found,) = sh.TableEntry("MyIngress.nexthops").read()
    actions = found.msg().action.action_profile_action_set.action_profile_actions
    assert [(one.weight, one.action.params[0].value) for one in actions] == [(1, b"\x15"), (2, b"\x16")]
    assert list(sh.ActionProfileMember("MyIngress.ecmp").read()) == []
    entry.delete()


def test_lpm_and_acl_entries_meet_packets(lab: Lab) -> None:
    for prefix, port in (("10.0.0.0/8", "31"), ("10.2.0.0/16", "32")):
        route = sh.TableEntry("MyIngress.routes")(action="forward_tagged")
        route.match["dst"] = prefix
        route.action["port"], route.action["tag"] = port, "7"
        route.insert()
    assert [port for port, _ in lab.send(ipv4("10.1.0.1"))] == [31]
    assert [port for port, _ in lab.send(ipv4("10.2.0.1"))] == [32]
    acl = sh.TableEntry("MyIngress.acl")(action="watch_and_drop", priority=10)
    acl.match["src"], acl.match["length"] = "10.3.0.0&&&255.255.0.0", "0..100"
    acl.match["protocol"], acl.match["port"] = "6", "1"
    acl.insert()
    assert lab.send(ipv4("10.1.0.1", src="10.3.7.7", protocol=6)) == []
    assert len(lab.send(ipv4("10.1.0.1", src="10.3.7.7", protocol=17))) == 1
    assert len(lab.send(ipv4("10.1.0.1", src="10.4.7.7", protocol=6))) == 1


def test_multicast_groups_replicate(lab: Lab) -> None:
    l2_entry("ff:ff:ff:ff:ff:ff", "multicast", group="5").insert()
    flooded = frame(0xFFFFFFFFFFFF)
    assert lab.send(flooded) == []
    group = sh.MulticastGroupEntry(5).add(2, 1).add(3, 1).add(3, 2)
    group.insert()
    assert sorted(port for port, _ in lab.send(flooded)) == [2, 3, 3]
    (found,) = sh.MulticastGroupEntry(0).read()
    assert len(found.replicas) == 3
    group.delete()
    assert lab.send(flooded) == []


def test_clone_sessions_are_written_and_read(lab: Lab) -> None:
    session = sh.CloneSessionEntry(7).add(2, 1)
    session.cos, session.packet_length_bytes = 3, 64
    session.insert()
    (found,) = sh.CloneSessionEntry(0).read()
    assert (found.session_id, found.cos, found.packet_length_bytes) == (7, 3, 64)


def test_a_packet_out_leaves_and_a_packet_in_arrives(lab: Lab) -> None:
    sh.PacketOut(payload=frame(8), egress_port="9", queue="0").send()
    assert lab.left.get(timeout=20) == (9, frame(8))
    l2_entry("3", "to_controller").insert()
    lab.send(frame(3), port=6)
    packet = sh.client.get_stream_packet("packet", timeout=20).packet
    assert packet.payload == frame(3)
    assert [one.value for one in packet.metadata] == [b"\6", b"\1", b"\0"]


def test_digests_arrive(lab: Lab) -> None:
    digest = sh.DigestEntry("learn_t")
    digest.ack_timeout_ns = 0
    digest.max_timeout_ns = 0
    digest.max_list_size = 1
    digest.insert()
    learn = sh.TableEntry("MyIngress.keyless")(action="learn", is_default=True)
    learn.modify()
    lab.send(frame(2), port=6)
    data = sh.client.get_stream_packet("digest", timeout=20).digest.data
    assert [one.bitstring for one in data[0].struct.members] == [b"\7", b"\6"]


def test_idle_entries_are_notified(lab: Lab) -> None:
    entry = l2_entry("2", port="4")
    entry.idle_timeout_ns = 2 * 10**9
    entry.insert()
    lab.switch.advance(10 * 10**12)
    message = sh.client.get_stream_packet("idle_timeout_notification", timeout=20)
    (idle,) = message.idle_timeout_notification.table_entry
    assert idle.match[0].exact.value == b"\2"
    assert idle.idle_timeout_ns == 2 * 10**9


def test_value_sets_steer_the_parser(lab: Lab) -> None:
    entry = l2_entry("2", port="4")
    entry.match["trill"] = "1"
    entry.insert()
    assert lab.send(frame(2, 0x22F3)) == []
    members = 'members { match { field_id: 1 exact { value: "\\x22\\xf3" } } }'
    ours = update(MODIFY, f"value_set_entry {{ value_set_id: $trill_types {members} }}")
    sh.client.write_update(sh.p4runtime_pb2.Update.FromString(ours.SerializeToString()))
    assert lab.send(frame(2, 0x22F3)) == [(4, frame(2, 0x22F3))]


def test_two_controllers_take_over_from_each_other(lab: Lab) -> None:
    backup = client.P4RuntimeClient(1, lab.server.address, (0, 0))
    try:
        assert backup.api_version() == "1.4.1"
        assert len(backup.get_p4info().tables) == 8
        sh.client.tear_down()
        message = backup.get_stream_packet("arbitration", timeout=20)
        assert message.arbitration.status.code == code_pb2.NOT_FOUND
        with pytest.raises(client.P4RuntimeException, match="PERMISSION_DENIED"):
            backup.set_fwd_pipe_config(PROGRAMS / "runtime.p4info.txtpb", PROGRAMS / "runtime.json")
        backup.election_id = (0, 2)
        backup.handshake()
        backup.set_fwd_pipe_config(PROGRAMS / "runtime.p4info.txtpb", PROGRAMS / "runtime.json")
    finally:
        backup.tear_down()
        sh.client = client.P4RuntimeClient(1, lab.server.address, (0, 3))
