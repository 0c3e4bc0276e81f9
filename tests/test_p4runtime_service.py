"""The P4Runtime service over gRPC: pipelines, arbitration, batches, streams, and clients that misbehave."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from support.runtime_support import (
    DELETE,
    DOCUMENT,
    INSERT,
    MODIFY,
    P4INFO,
    Client,
    StrictDataPath,
    codes,
    entity,
    id_of,
    refused_with,
    status_of,
    unpacked,
    update,
)

from tensorexpress.errors import InputError, NetworkError
from tensorexpress.p4runtime_messages import P4RuntimeStub, p4info_pb2, p4runtime_pb2
from tensorexpress.switch import operations as ops
from tensorexpress.switch.p4runtime import streams
from tensorexpress.switch.p4runtime.answers import LARGEST_DETAILED_BATCH
from tensorexpress.switch.p4runtime.listening import ServerTlsFiles
from tensorexpress.switch.p4runtime.mailbox import LARGEST_ADVICE, LARGEST_NEWS, LARGEST_NEWS_BYTES, Mailbox
from tensorexpress.switch.p4runtime.runtime import LARGEST_ATOMIC_BATCH
from tensorexpress.switch.p4runtime.service import RuntimeServer, serve
from tensorexpress.switch.p4runtime.stream_places import LARGEST_NUMBER_OF_STREAMS, STREAMS_OF_A_PEER, peer_of_address

VERIFY, SAVE, COMMIT_NEW, COMMIT, RECONCILE = 1, 2, 3, 4, 5
CONTINUE, ROLLBACK, ATOMIC = 0, 1, 2

OK, INVALID, NOT_FOUND, EXISTS, ABORTED = 0, 3, 5, 6, 10

L2_ENTRY = r"""
    table_entry {
      table_id: $l2_exact
      match { field_id: 1 exact { value: "\%03o" } }
      match { field_id: 2 exact { value: "\000" } }
      action { action { action_id: $forward params { param_id: 1 value: "\005" } } }
    }
"""


@pytest.fixture
def data_path() -> StrictDataPath:
    return StrictDataPath()


@pytest.fixture
def server(data_path: StrictDataPath) -> Iterator[RuntimeServer]:
    with serve(data_path, "127.0.0.1:0", cpu_port=255) as running:
        yield running


@pytest.fixture
def client(server: RuntimeServer) -> Iterator[Client]:
    """The primary, on a switch without a pipeline."""
    with Client(server.address) as one:
        one.join()
        yield one


@pytest.fixture
def loaded(client: Client) -> Client:
    """The primary, on a switch with the program."""
    client.set_pipeline()
    return client


def l2(kind: int, address: int) -> Any:
    return update(kind, L2_ENTRY % address)


def entries(client: Client, alias: str = "l2_exact") -> list[Any]:
    return [one.table_entry for one in client.read(entity(f"table_entry {{ table_id: ${alias} }}"))]


def l2_addresses(data_path: StrictDataPath) -> set[Any]:
    return {entry.key[0] for entry in data_path.entries if entry.table == "MyIngress.l2_exact"}


def test_the_version_of_the_api_is_told_to_anyone(server: RuntimeServer) -> None:
    with Client(server.address) as client:
        assert client.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest()).p4runtime_api_version == "1.4.1"


# Pipelines.


def config_of(client: Client, kind: int = 0) -> Any:
    request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=client.device_id, response_type=kind)
    return client.stub.GetForwardingPipelineConfig(request)


def test_a_config_is_given_back_as_it_was_set(client: Client) -> None:
    assert not config_of(client).HasField("config")
    client.set_pipeline(cookie=99)
    everything, cookie_only, p4info, device = (config_of(client, kind).config for kind in range(4))
    assert everything.p4info == p4info.p4info == P4INFO
    assert everything.p4_device_config == device.p4_device_config == DOCUMENT
    assert {one.cookie.cookie for one in (everything, cookie_only, p4info, device)} == {99}
    assert not cookie_only.p4_device_config
    assert not cookie_only.HasField("p4info")
    assert not p4info.p4_device_config
    assert not device.HasField("p4info")
    client.set_pipeline()
    assert not config_of(client).config.HasField("cookie")


def test_verify_changes_nothing(client: Client, data_path: StrictDataPath) -> None:
    client.set_pipeline(VERIFY)
    assert data_path.document == b""
    assert not config_of(client).HasField("config")
    with refused_with(grpc.StatusCode.FAILED_PRECONDITION):
        client.write(l2(INSERT, 1))


def test_a_commit_clears_the_state(loaded: Client) -> None:
    loaded.write(l2(INSERT, 1))
    loaded.set_pipeline()
    assert entries(loaded) == []


def test_writes_after_save_are_replayed_by_commit(loaded: Client, data_path: StrictDataPath) -> None:
    loaded.write(l2(INSERT, 1))
    loaded.set_pipeline(SAVE)
    assert entries(loaded) == []
    loaded.write(l2(INSERT, 2))
    assert l2_addresses(data_path) == {1}
    # Nothing has been counted by a program that does not run.
    with pytest.raises(grpc.RpcError) as error:
        loaded.read(entity("counter_entry {}"))
    assert codes(error.value) == [9]
    loaded.set_pipeline(COMMIT, with_config=False)
    assert l2_addresses(data_path) == {2}
    assert [one.match[0].exact.value for one in entries(loaded)] == [b"\2"]
    loaded.write(l2(INSERT, 3))
    assert l2_addresses(data_path) == {2, 3}


def test_reconcile_keeps_the_state(loaded: Client, data_path: StrictDataPath) -> None:
    forward = "action { action_id: $forward params { param_id: 1 value: '\\002' } }"
    loaded.write(
        l2(INSERT, 1),
        update(MODIFY, "register_entry { register_id: $last_seen index { index: 3 } data { bitstring: '\\007' } }"),
        update(MODIFY, "counter_entry { counter_id: $port_counter index { index: 1 } data { packet_count: 5 } }"),
        update(INSERT, f"action_profile_member {{ action_profile_id: $ecmp member_id: 1 {forward} }}"),
        update(
            INSERT, "action_profile_group { action_profile_id: $ecmp group_id: 1 members { member_id: 1 weight: 2 } }"
        ),
        update(DELETE, r'table_entry { table_id: $started match { field_id: 1 exact { value: "\022\064" } } }'),
        update(MODIFY, f"table_entry {{ table_id: $started is_default_action: true action {{ {forward} }} }}"),
    )
    everything = [
        entity(kind)
        for kind in (
            "table_entry { counter_data {} }",
            "action_profile_member {}",
            "action_profile_group {}",
            "register_entry {}",
            "counter_entry {}",
            "table_entry { table_id: $started is_default_action: true }",
        )
    ]
    before = loaded.read(*everything)
    loaded.set_pipeline(RECONCILE)
    assert loaded.read(*everything) == before
    assert data_path.groups == {("MyIngress.ecmp", 1): (1, 1)}


def test_reconcile_refuses_a_program_that_the_state_does_not_fit(loaded: Client) -> None:
    loaded.write(*(l2(INSERT, number) for number in range(1, 9)))
    smaller = p4info_pb2.P4Info()
    smaller.CopyFrom(P4INFO)
    next(table for table in smaller.tables if table.preamble.alias == "l2_exact").size = 4
    with refused_with(grpc.StatusCode.INVALID_ARGUMENT):
        loaded.set_pipeline(RECONCILE, p4info=smaller)
    assert len(entries(loaded)) == 8


def wider(field: str) -> Any:
    info = p4info_pb2.P4Info()
    info.CopyFrom(P4INFO)
    table = next(table for table in info.tables if table.preamble.alias == "routes")
    if field == "width":
        table.match_fields[0].bitwidth = 33
    elif field == "name":
        table.preamble.name = "MyIngress.roads"
    elif field == "kind":
        table.match_fields[0].match_type = 4
    else:
        next(register for register in info.registers).size = 7
    return info


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"document": b""}, "p4_device_config"),
        ({"document": b"\x7fELF"}, "p4_device_config"),
        ({"document": b"{"}, "not JSON"),
        ({"document": b"{}"}, "header_types"),
        ({"p4info": wider("width")}, "'dst' of table 'MyIngress.routes' has 33 bits in P4Info, 32 in BMv2 JSON"),
        ({"p4info": wider("name")}, "table 'MyIngress.routes' only in BMv2 JSON"),
        ({"p4info": wider("kind")}, "is ternary in P4Info, lpm in BMv2 JSON"),
        ({"p4info": wider("size")}, "has 7 cells in P4Info"),
    ],
)
@pytest.mark.parametrize("action", [VERIFY, SAVE, COMMIT_NEW, RECONCILE])
def test_a_config_that_cannot_run_is_refused_by_name(
    loaded: Client, parts: dict[str, Any], named: str, action: int
) -> None:
    loaded.write(l2(INSERT, 1))
    with pytest.raises(grpc.RpcError) as error:
        loaded.set_pipeline(action, **parts)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert named in error.value.details()
    assert len(entries(loaded)) == 1


def test_what_each_action_takes(client: Client) -> None:
    for action in (VERIFY, SAVE, COMMIT_NEW, RECONCILE):
        with refused_with(grpc.StatusCode.INVALID_ARGUMENT):
            client.set_pipeline(action, with_config=False)
    for action in (0, 17):
        with refused_with(grpc.StatusCode.INVALID_ARGUMENT):
            client.set_pipeline(action)
    with refused_with(grpc.StatusCode.NOT_FOUND):
        client.set_pipeline(COMMIT, with_config=False)
    client.set_pipeline(SAVE)
    with refused_with(grpc.StatusCode.INVALID_ARGUMENT):
        client.set_pipeline(COMMIT)


def test_the_wrapper_of_other_clients_is_opened(client: Client, data_path: StrictDataPath) -> None:
    size = len(DOCUMENT)
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    client.set_pipeline(document=b"\x08\x01\x12\x00\x1a" + length + DOCUMENT)
    assert data_path.document == DOCUMENT


def test_reads_writes_and_arbitration_go_on_while_a_program_is_verified(
    server: RuntimeServer, loaded: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    verify = server.service._verify

    def slowly(document: bytes) -> object:
        begun.set()
        assert go_on.wait(20)
        return verify(document)

    monkeypatch.setattr(server.service, "_verify", slowly)
    request = p4runtime_pb2.SetForwardingPipelineConfigRequest(action=COMMIT_NEW, **loaded.identity())
    request.config.p4info.CopyFrom(P4INFO)
    request.config.p4_device_config = DOCUMENT
    try:
        setting = loaded.stub.SetForwardingPipelineConfig.future(request)
        assert begun.wait(20)
        loaded.write(l2(INSERT, 1))
        assert len(entries(loaded)) == 1
        with Client(server.address, 9) as other:
            assert advice(other.join()) == (OK, 9)
            go_on.set()
            # Meanwhile another is primary, and what runs is not replaced.
            assert setting.exception(20).code() == grpc.StatusCode.PERMISSION_DENIED
        assert len(entries(loaded)) == 1
    finally:
        go_on.set()


# Who may write.


def test_a_write_is_checked_in_the_order_of_the_specification(server: RuntimeServer, client: Client) -> None:
    def write(**changes: Any) -> None:
        fields = {"updates": [l2(INSERT, 1)], **client.identity(), **changes}
        client.stub.Write(p4runtime_pb2.WriteRequest(**fields))

    wrong = p4runtime_pb2.Uint128(low=7)
    with refused_with(grpc.StatusCode.NOT_FOUND):
        write(device_id=2, election_id=wrong)
    with refused_with(grpc.StatusCode.NOT_FOUND):
        write(role="nobody", election_id=wrong)
    with refused_with(grpc.StatusCode.PERMISSION_DENIED):
        write(election_id=wrong)
    with refused_with(grpc.StatusCode.PERMISSION_DENIED):
        write(election_id=None)
    with refused_with(grpc.StatusCode.FAILED_PRECONDITION):
        write()
    with refused_with(grpc.StatusCode.FAILED_PRECONDITION):
        client.read(entity("table_entry {}"))
    client.set_pipeline()
    with refused_with(grpc.StatusCode.INVALID_ARGUMENT):
        write(atomicity=9)
    write()
    with Client(server.address, device_id=5) as other, refused_with(grpc.StatusCode.NOT_FOUND):
        other.read(entity("table_entry {}"))


def test_nobody_writes_without_a_stream(server: RuntimeServer) -> None:
    with Client(server.address, election_id=None) as client, refused_with(grpc.StatusCode.PERMISSION_DENIED):
        client.set_pipeline()


def advice(message: Any) -> tuple[int, int | None]:
    """Return status and election id of an arbitration message."""
    arbitration = message.arbitration
    election_id = arbitration.election_id.high << 64 | arbitration.election_id.low
    return arbitration.status.code, election_id if arbitration.HasField("election_id") else None


def test_the_highest_election_id_is_primary(server: RuntimeServer) -> None:
    high, low = 1 << 64, (1 << 64) - 1
    with Client(server.address, low) as first, Client(server.address, high) as second:
        assert advice(first.join()) == (OK, low)
        assert advice(second.join()) == (OK, high)
        assert advice(first.next()) == (EXISTS, high)
        with refused_with(grpc.StatusCode.PERMISSION_DENIED):
            first.set_pipeline()
        second.set_pipeline()
        # The primary goes: nobody is primary until somebody reaches the highest id that was ever seen.
        second.close()
        assert advice(first.next()) == (NOT_FOUND, high)
        first.claim(high - 1)
        assert advice(first.next()) == (NOT_FOUND, high)
        with refused_with(grpc.StatusCode.PERMISSION_DENIED):
            first.write(l2(INSERT, 1))
        first.claim(high)
        assert advice(first.next()) == (OK, high)
        first.write(l2(INSERT, 1))


def test_a_primary_may_step_back(server: RuntimeServer) -> None:
    with Client(server.address, 5) as first, Client(server.address, 3) as second:
        first.join()
        assert advice(second.join()) == (EXISTS, 5)
        first.claim(4)
        assert advice(first.next()) == (NOT_FOUND, 5)
        assert advice(second.next()) == (NOT_FOUND, 5)
        second.claim(6)
        assert advice(second.next()) == (OK, 6)
        assert advice(first.next()) == (EXISTS, 6)


def test_a_backup_that_changes_its_id_is_told_alone(server: RuntimeServer) -> None:
    with Client(server.address, 5) as first, Client(server.address, 3) as second:
        first.join()
        second.join()
        second.claim(4)
        assert advice(second.next()) == (EXISTS, 5)
        # The next thing that the primary hears is its own answer.
        first.claim(5)
        assert advice(first.next()) == (OK, 5)


def test_without_an_election_id_nobody_becomes_primary(server: RuntimeServer) -> None:
    with (
        Client(server.address, None) as standby,
        Client(server.address, 0) as zero,
        Client(server.address, None) as two,
    ):
        assert advice(standby.join()) == (NOT_FOUND, None)
        assert advice(two.join()) == (NOT_FOUND, None)
        # An id of zero is an id, the lowest one.
        assert advice(zero.join()) == (OK, 0)
        assert advice(standby.next()) == (EXISTS, 0)
        with refused_with(grpc.StatusCode.PERMISSION_DENIED):
            standby.set_pipeline()
        zero.set_pipeline()


def test_roles_have_primaries_of_their_own(server: RuntimeServer) -> None:
    with Client(server.address, 1) as default, Client(server.address, 1, role="metrics") as metrics:
        assert advice(default.join()) == (OK, 1)
        message = metrics.join()
        assert advice(message) == (OK, 1)
        assert message.arbitration.role.name == "metrics"
        default.set_pipeline()
        metrics.write(l2(INSERT, 1))
        assert default.refused(l2(INSERT, 1)) == [EXISTS]


def ended_with(client: Client) -> grpc.StatusCode:
    error = client.next()
    assert isinstance(error, grpc.RpcError), error
    assert error.details()
    code: grpc.StatusCode = error.code()
    return code


def test_arbitration_that_is_wrong_ends_the_stream(server: RuntimeServer, client: Client) -> None:
    with Client(server.address, client.election_id) as twin:
        twin.open().claim()
        assert ended_with(twin) == grpc.StatusCode.INVALID_ARGUMENT
    with Client(server.address, 9, device_id=2) as stranger:
        stranger.open().claim()
        assert ended_with(stranger) == grpc.StatusCode.NOT_FOUND
    for changes in ({"device_id": 2}, {"role": "other"}):
        with Client(server.address, 0) as turncoat:
            turncoat.join()
            turncoat.claim(**changes)
            assert ended_with(turncoat) == grpc.StatusCode.FAILED_PRECONDITION
    with Client(server.address, 9) as configured:
        message = p4runtime_pb2.MasterArbitrationUpdate(device_id=1)
        message.role.config.Pack(p4runtime_pb2.Uint128())
        configured.open().send(arbitration=message)
        assert ended_with(configured) == grpc.StatusCode.INVALID_ARGUMENT
    # None of them has disturbed the primary.
    client.set_pipeline()


def test_an_id_can_be_used_again_when_its_client_has_gone(server: RuntimeServer) -> None:
    for _ in range(2):
        with Client(server.address, 7) as client:
            assert advice(client.join()) == (OK, 7)


# Batches.


def test_every_update_of_a_batch_has_its_answer(loaded: Client) -> None:
    with pytest.raises(grpc.RpcError) as error:
        loaded.write(l2(INSERT, 1), l2(INSERT, 1), l2(DELETE, 9), update(INSERT), l2(INSERT, 2))
    assert codes(error.value) == [OK, EXISTS, NOT_FOUND, INVALID, OK]
    details = [unpacked(detail) for detail in status_of(error.value).details]
    assert [bool(detail.message) for detail in details] == [False, True, True, True, False]
    assert "MyIngress.l2_exact" in details[1].message
    assert len(entries(loaded)) == 2


@pytest.mark.parametrize("atomicity", [ROLLBACK, ATOMIC])
def test_all_or_nothing(loaded: Client, data_path: StrictDataPath, atomicity: int) -> None:
    before = dict(data_path.entries)
    refused = loaded.refused(l2(INSERT, 1), l2(INSERT, 2), l2(MODIFY, 3), l2(INSERT, 4), atomicity=atomicity)
    assert refused == [ABORTED, ABORTED, NOT_FOUND, ABORTED]
    assert entries(loaded) == []
    assert data_path.entries == before
    assert loaded.refused(l2(INSERT, 1), l2(INSERT, 2), atomicity=atomicity) == [OK, OK]
    # Between two packets: one batch of operations.
    assert len(data_path.batches[-1]) == 2


def test_a_refusal_of_many_updates_still_reaches_a_client_with_default_limits(
    loaded: Client, server: RuntimeServer
) -> None:
    loaded.write(*(l2(INSERT, number) for number in range(1, 11)))
    with grpc.insecure_channel(server.address) as channel:
        stub = P4RuntimeStub(channel)
        updates = [l2(INSERT, 1 + number % 10) for number in range(100)]
        with pytest.raises(grpc.RpcError) as error:
            stub.Write(p4runtime_pb2.WriteRequest(updates=updates, **loaded.identity()))
    assert codes(error.value) == [EXISTS] * 100


class GonePath(StrictDataPath):
    """A data path whose process has ended after the program was loaded."""

    def apply(self, operations: Any, *, atomic: bool = False) -> None:
        if operations:
            raise NetworkError("the process that forwards packets has ended")

    def ask(self, queries: Any) -> list[list[Any]]:
        raise NetworkError("the process that forwards packets has ended")

    packet_out = ask


def test_a_data_path_that_is_gone_is_unavailable_and_nothing_has_changed() -> None:
    with serve(GonePath(), "127.0.0.1:0") as server, Client(server.address) as client:
        client.join()
        client.set_pipeline()
        with refused_with(grpc.StatusCode.UNAVAILABLE):
            client.write(l2(INSERT, 1))
        assert entries(client) == []
        with refused_with(grpc.StatusCode.UNAVAILABLE):
            client.read(entity("counter_entry {}"))
        client.send(packet=packet_out())
        assert error_of(client).canonical_code == 14


def test_a_read_returns_what_it_can_and_a_code_for_each_request(loaded: Client) -> None:
    loaded.write(l2(INSERT, 1))
    request = p4runtime_pb2.ReadRequest(
        device_id=1,
        entities=[
            entity("table_entry { table_id: 7 }"),
            entity("table_entry { table_id: $l2_exact }"),
            p4runtime_pb2.Entity(),
            entity("extern_entry {}"),
        ],
    )
    found: list[Any] = []
    responses = loaded.stub.Read(request)
    with pytest.raises(grpc.RpcError) as error:
        found.extend(one for response in responses for one in response.entities)
    assert codes(error.value) == [INVALID, OK, INVALID, 12]
    assert len(found) == 1


def test_a_long_read_comes_in_pieces(loaded: Client) -> None:
    wildcard = entity("register_entry { register_id: $last_seen }")
    request = p4runtime_pb2.ReadRequest(device_id=1, entities=[wildcard] * 20)
    sizes = [len(response.entities) for response in loaded.stub.Read(request)]
    assert sum(sizes) == 20 * 32
    assert len(sizes) > 1


# Packets, digests, idle entries.


def packet_out(port: bytes = b"\3", queue: bytes = b"\1", payload: bytes = b"frame") -> Any:
    packet = p4runtime_pb2.PacketOut(payload=payload)
    packet.metadata.add(metadata_id=1, value=port)
    packet.metadata.add(metadata_id=2, value=queue)
    return packet


def error_of(client: Client) -> Any:
    message = client.next()
    assert message.WhichOneof("update") == "error", message
    return message.error


def test_a_packet_out_gets_its_header(loaded: Client, data_path: StrictDataPath) -> None:
    loaded.send(packet=packet_out())
    # Acknowledging an unknown digest is answered, and so tells when the packet has been worked on.
    loaded.send(digest_ack=p4runtime_pb2.DigestListAck(digest_id=1))
    assert error_of(loaded).HasField("digest_list_ack")
    assert data_path.frames == [bytes([3 << 7 >> 8, 3 << 7 & 0xFF | 1]) + b"frame"]


@pytest.mark.parametrize(
    "change",
    [
        lambda packet: packet.metadata.pop(),
        lambda packet: packet.metadata.add(metadata_id=3, value=b"\0"),
        lambda packet: packet.metadata.add(metadata_id=1, value=b"\0"),
        lambda packet: setattr(packet.metadata[0], "value", b"\2\0"),
        lambda packet: setattr(packet.metadata[0], "value", b""),
    ],
)
def test_a_packet_out_with_wrong_metadata_is_dropped_and_reported(
    loaded: Client, data_path: StrictDataPath, change: Any
) -> None:
    packet = packet_out()
    change(packet)
    loaded.send(packet=packet)
    error = error_of(loaded)
    assert error.canonical_code == INVALID
    assert error.packet_out.packet_out == packet
    assert data_path.frames == []


def test_only_the_primary_sends_packets(server: RuntimeServer, loaded: Client, data_path: StrictDataPath) -> None:
    with Client(server.address, 0) as backup:
        backup.join()
        backup.send(packet=packet_out())
        assert error_of(backup).canonical_code == 7
    with Client(server.address) as silent:
        silent.open().send(packet=packet_out())
        assert error_of(silent).canonical_code == 7
    assert data_path.frames == []


def test_without_a_pipeline_packets_go_nowhere(client: Client, server: RuntimeServer) -> None:
    server.notify(ops.CpuFrame(b"\1\2\3"))
    client.send(packet=packet_out())
    assert error_of(client).canonical_code == 9


def test_messages_that_v1model_does_not_know_are_reported(loaded: Client) -> None:
    request = p4runtime_pb2.StreamMessageRequest()
    request.other.Pack(p4runtime_pb2.Uint128())
    loaded.send(other=request.other)
    error = error_of(loaded)
    assert error.canonical_code == 12
    assert error.WhichOneof("details") == "other"


def test_a_packet_in_goes_to_the_primary_of_the_default_role(server: RuntimeServer, loaded: Client) -> None:
    with Client(server.address, 9, role="metrics") as metrics, Client(server.address, 0) as backup:
        metrics.join()
        backup.join()
        server.notify(ops.CpuFrame(b"\1"))
        server.notify(ops.CpuFrame(bytes([7 << 7 >> 8, 7 << 7 & 0xFF | 1 << 6]) + b"frame"))
        packet = loaded.next().packet
        assert packet.payload == b"frame"
        assert {one.metadata_id: one.value for one in packet.metadata} == {1: b"\7", 2: b"\1", 3: b"\0"}
        assert server.service.malformed_packets_in == 1
        for other in (metrics, backup):
            other.claim()
            assert other.next().HasField("arbitration")


def digest_entry(kind: int, **config: int) -> Any:
    entry = p4runtime_pb2.DigestEntry(digest_id=id_of("learn_t"))
    for name, value in config.items():
        setattr(entry.config, name, value)
    return update(kind, digest_entry=entry)


def learned(server: RuntimeServer, address: int) -> None:
    server.notify(ops.Digest(P4INFO.digests[0].preamble.name, (address, 3)))


def until_worked_on(server: RuntimeServer, primary: Client) -> None:
    """Wait until all notices so far have been worked on: they are in order, and a packet-in can be waited for."""
    server.notify(ops.CpuFrame(bytes(20)))
    assert primary.next().HasField("packet")


def addresses(digest_list: Any) -> list[bytes]:
    return [data.struct.members[0].bitstring for data in digest_list.data]


HOUR_NS = 3600 * 10**9


def test_digests_come_in_lists_without_what_is_not_acknowledged(server: RuntimeServer, loaded: Client) -> None:
    learned(server, 1)
    until_worked_on(server, loaded)
    loaded.write(digest_entry(INSERT, max_list_size=2, max_timeout_ns=HOUR_NS, ack_timeout_ns=HOUR_NS))
    for address in (2, 2, 3, 2, 3, 4, 5):
        learned(server, address)
    first, second = loaded.next().digest, loaded.next().digest
    assert (addresses(first), addresses(second)) == ([b"\2", b"\3"], [b"\4", b"\5"])
    assert first.digest_id == id_of("learn_t")
    assert first.list_id != second.list_id
    assert first.timestamp > 0
    assert first.data[0].struct.members[1].bitstring == b"\3"
    loaded.send(digest_ack=p4runtime_pb2.DigestListAck(digest_id=first.digest_id, list_id=first.list_id))
    loaded.send(digest_ack=p4runtime_pb2.DigestListAck(digest_id=1))
    assert error_of(loaded).canonical_code == INVALID
    for address in (2, 4, 5, 6):
        learned(server, address)
    assert addresses(loaded.next().digest) == [b"\2", b"\6"]


def test_digests_leave_at_their_timeout(server: RuntimeServer, loaded: Client) -> None:
    loaded.write(digest_entry(INSERT, max_timeout_ns=10**6))
    learned(server, 1)
    assert addresses(loaded.next().digest) == [b"\1"]
    loaded.write(digest_entry(MODIFY))
    learned(server, 1)
    assert addresses(loaded.next().digest) == [b"\1"]
    loaded.write(digest_entry(DELETE))
    learned(server, 7)
    until_worked_on(server, loaded)
    loaded.write(digest_entry(INSERT))
    learned(server, 8)
    assert addresses(loaded.next().digest) == [b"\10"]


def test_an_idle_entry_is_named_with_what_the_client_keeps_with_it(server: RuntimeServer, loaded: Client) -> None:
    insert = l2(INSERT, 1)
    insert.entity.table_entry.idle_timeout_ns = 10**9
    insert.entity.table_entry.metadata = b"cookie"
    insert.entity.table_entry.controller_metadata = 5
    loaded.write(insert)
    server.notify(ops.IdleEntry(ops.Entry("MyIngress.l2_exact", (99, 0))))
    server.notify(ops.IdleEntry(ops.Entry("MyIngress.l2_exact", (1, 0))))
    notification = loaded.next().idle_timeout_notification
    (entry,) = notification.table_entry
    written = insert.entity.table_entry
    assert list(entry.match) == list(written.match)
    assert (entry.idle_timeout_ns, entry.metadata, entry.controller_metadata) == (10**9, b"cookie", 5)
    assert notification.timestamp > 0


# Clients that misbehave.


def test_a_full_mailbox_drops_the_oldest_news_and_no_advice() -> None:
    mailbox = Mailbox()
    news = [b"%d" % number for number in range(LARGEST_NEWS + 3)]
    assert [mailbox.put_news(each) for each in news] == [0] * LARGEST_NEWS + [1] * 3
    mailbox.put_advice(b"advice")
    mailbox.close()
    assert list(iter(mailbox.take, None)) == [b"advice", *news[3:]]
    assert mailbox.refusal is None


def test_a_mailbox_is_full_by_bytes_too() -> None:
    mailbox = Mailbox()
    large = [bytes([number]) * (LARGEST_NEWS_BYTES // 4) for number in range(6)]
    assert [mailbox.put_news(each) for each in large] == [0, 0, 0, 0, 1, 1]
    assert mailbox.put_news(bytes(LARGEST_NEWS_BYTES)) == 4
    assert mailbox.put_news(bytes(LARGEST_NEWS_BYTES + 1)) == 1
    mailbox.close()
    assert [len(each) for each in iter(mailbox.take, None)] == [LARGEST_NEWS_BYTES]


def test_a_client_that_leaves_all_advice_unread_loses_its_stream() -> None:
    mailbox = Mailbox()
    for _ in range(LARGEST_ADVICE + 1):
        mailbox.put_advice(b"advice")
    assert mailbox.refusal is not None


def test_a_client_that_does_not_read_holds_up_nobody(server: RuntimeServer, loaded: Client) -> None:
    # Nothing takes the packets from this stream, so that gRPC's window and then the mailbox fill up.
    quiet = Client(server.address, 9)
    requests = iter([p4runtime_pb2.StreamMessageRequest(arbitration={"device_id": 1, "election_id": {"low": 9}})])
    hold = threading.Event()

    def talk() -> Iterator[Any]:
        yield from requests
        hold.wait()

    call = quiet.stub.StreamChannel(talk())
    assert next(call).arbitration.status.code == OK
    assert advice(loaded.next()) == (EXISTS, 9)
    while not server.service.dropped_messages and not server.service.dropped_notices:
        server.notify(ops.CpuFrame(bytes(1 << 12)))
    loaded.claim(10)
    assert advice(loaded.next()) == (OK, 10)
    loaded.write(l2(INSERT, 1))
    hold.set()
    quiet.channel.close()


@pytest.fixture
def newcomer() -> Iterator[Callable[..., Client]]:
    """Opens clients one after the other, and closes all in the end."""
    with ExitStack() as opened:
        yield lambda *arguments, **more: opened.enter_context(Client(*arguments, **more))


def displaced(client: Client, *said: str) -> None:
    """Expect that a client's stream ends to make room, with a line that names the limit and the fix."""
    error = client.next()
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for words in ("a newer stream needed this place", "close streams that are not needed", *said):
        assert words in error.details()


def test_a_newcomer_displaces_the_oldest_backup_of_a_peer_at_its_limit(
    server: RuntimeServer, loaded: Client, newcomer: Callable[..., Client]
) -> None:
    clients = [newcomer(server.address, None) for _ in range(STREAMS_OF_A_PEER + 1)]
    for client in clients:
        assert client.join().arbitration.status.code == EXISTS
    for client in clients[:2]:
        displaced(client, f"this machine has {STREAMS_OF_A_PEER} streams, the most of one peer")
    loaded.write(l2(INSERT, 1))
    assert len(entries(loaded)) == 1
    last = newcomer(server.address, 9)
    assert advice(last.join()) == (OK, 9)
    assert advice(clients[-1].next()) == (EXISTS, 9)


def test_primaries_of_a_peer_at_its_limit_make_no_room(
    server: RuntimeServer, loaded: Client, newcomer: Callable[..., Client]
) -> None:
    clients = [newcomer(server.address, 1, role=f"role {index}") for index in range(STREAMS_OF_A_PEER - 1)]
    for client in clients:
        assert client.join().arbitration.status.code == OK
    refused = newcomer(server.address, 2).open().next()
    assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "primaries make no room; close a stream that is not needed" in refused.details()
    clients[0].close()
    while True:  # the switch may not have seen the end yet
        again = newcomer(server.address, 2)
        answer = again.join()
        if not isinstance(answer, grpc.RpcError):
            break
    assert advice(answer) == (OK, 2)


def test_a_client_that_does_not_read_is_displaced_too(
    server: RuntimeServer, loaded: Client, newcomer: Callable[..., Client]
) -> None:
    hold = threading.Event()
    deaf = newcomer(server.address, None)

    def requests() -> Iterator[Any]:
        yield p4runtime_pb2.StreamMessageRequest(arbitration={"device_id": 1})
        for _ in range(200):  # each is answered by an error that repeats it
            yield p4runtime_pb2.StreamMessageRequest(packet={"payload": bytes(10_000)})
        hold.wait()

    call = deaf.stub.StreamChannel(requests())
    assert next(call).arbitration.status.code == EXISTS
    for _ in range(STREAMS_OF_A_PEER):
        assert newcomer(server.address, None).join().arbitration.status.code == EXISTS
    with pytest.raises(grpc.RpcError):
        list(call)
    hold.set()


def test_a_stream_whose_client_never_says_who_it_is_ends(
    server: RuntimeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ARBITRATION_S", 0.1)
    with Client(server.address, 5) as speaking, Client(server.address) as silent:
        speaking.join()
        silent.open()
        assert ended_with(silent) == grpc.StatusCode.ABORTED
        speaking.claim(6)
        assert advice(speaking.next()) == (OK, 6)


@pytest.mark.parametrize(
    ("atomicity", "updates"),
    [
        pytest.param(ROLLBACK, [l2(INSERT, 2), *[l2(INSERT, 1)] * LARGEST_DETAILED_BATCH], id="rollback"),
        pytest.param(ATOMIC, [l2(INSERT, 2), *[l2(INSERT, 1)] * LARGEST_DETAILED_BATCH], id="atomic"),
        # Every other one: more ranges than an answer has room for.
        pytest.param(CONTINUE, [l2(INSERT, 1), l2(MODIFY, 1)] * LARGEST_DETAILED_BATCH, id="too many to tell"),
    ],
)
def test_a_large_batch_that_cannot_be_told_leaves_everything_as_it_was(
    loaded: Client, data_path: StrictDataPath, atomicity: int, updates: list[Any]
) -> None:
    loaded.write(l2(INSERT, 1))
    before = dict(data_path.entries)
    with pytest.raises(grpc.RpcError) as error:
        loaded.write(*updates, atomicity=atomicity)
    assert error.value.code() == grpc.StatusCode.ABORTED
    assert error.value.details().startswith("nothing is done: ")
    assert ": MyIngress.l2_exact" in error.value.details()
    assert data_path.entries == before
    assert len(entries(loaded)) == 1


def test_packets_never_wait_for_more_updates_than_a_bound(loaded: Client, data_path: StrictDataPath) -> None:
    loaded.write(l2(INSERT, 1))
    before = dict(data_path.entries)
    with pytest.raises(grpc.RpcError) as error:
        loaded.write(l2(DELETE, 1), *[l2(INSERT, 1), l2(DELETE, 1)] * (LARGEST_ATOMIC_BATCH // 2), atomicity=ATOMIC)
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"accepted: at most {LARGEST_ATOMIC_BATCH}, or another atomicity" in error.value.details()
    assert data_path.entries == before


def test_a_large_batch_is_done_but_for_what_one_line_names(loaded: Client, data_path: StrictDataPath) -> None:
    loaded.write(l2(INSERT, 1))
    before, last = len(data_path.entries), LARGEST_DETAILED_BATCH
    with pytest.raises(grpc.RpcError) as error:
        loaded.write(l2(INSERT, 2), *[l2(INSERT, 1)] * last, l2(INSERT, 3), atomicity=CONTINUE)
    assert error.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert error.value.details().startswith(
        f"{last} of {last + 2} refused, the others are done: 1-{last} ALREADY_EXISTS; 1: MyIngress.l2_exact"
    )
    assert (len(data_path.entries), len(entries(loaded))) == (before + 2, 3)


@given(st.binary(max_size=200), st.sampled_from(["Write", "Read", "SetForwardingPipelineConfig", "StreamChannel"]))
def test_random_bytes_never_stop_the_service(shared: Client, data: bytes, method: str) -> None:
    path = f"/p4.v1.P4Runtime/{method}"
    error = None
    try:
        if method == "StreamChannel":
            list(shared.channel.stream_stream(path)(iter([data])))
        elif method == "Read":
            list(shared.channel.unary_stream(path)(data))
        else:
            shared.channel.unary_unary(path)(data)
    except grpc.RpcError as found:
        error = found
    # UNKNOWN without details would be an exception that nobody thought of.
    assert error is None or error.code() != grpc.StatusCode.UNKNOWN or status_of(error).details
    assert shared.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest()).p4runtime_api_version


@pytest.fixture(scope="module")
def shared() -> Iterator[Client]:
    with serve(StrictDataPath(), "127.0.0.1:0") as running, Client(running.address) as client:
        client.join()
        client.set_pipeline()
        yield client


# Addresses and certificates.


def test_a_taken_address_is_one_line(server: RuntimeServer) -> None:
    with pytest.raises(NetworkError, match="cannot listen on") as error:
        serve(StrictDataPath(), server.address)
    assert "\n" not in str(error.value)


def test_a_name_that_is_no_address_is_one_line() -> None:
    with pytest.raises(NetworkError, match="cannot listen on"):
        serve(StrictDataPath(), "no.such.host.invalid:0")
    with pytest.raises(InputError, match="is no address; accepted: HOST:PORT"):
        serve(StrictDataPath(), "localhost")


def test_the_port_is_free_after_a_stop(data_path: StrictDataPath) -> None:
    with serve(data_path, "127.0.0.1:0") as first:
        address = first.address
    with serve(data_path, address) as second:
        assert second.address == address
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        plain.bind(("127.0.0.1", int(second.address.rpartition(":")[2])))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an authority, and certificates of it for a server and a client."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority")
    for name in ("server", "client", "second", "third"):
        (directory / "names").write_text(f"subjectAltName=DNS:{name},DNS:localhost,IP:127.0.0.1\n")
        openssl("req", *key[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *sign)
    return directory


def certified_as(name: str, authority: Path) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        *((authority / file).read_bytes() for file in ("ca.pem", f"{name}.key", f"{name}.pem"))
    )


def version_over_tls(server: RuntimeServer, authority: Path, *, certified: bool) -> str:
    unknown = grpc.ssl_channel_credentials((authority / "ca.pem").read_bytes())
    credentials = certified_as("client", authority) if certified else unknown
    with grpc.secure_channel(server.address.replace("127.0.0.1", "localhost"), credentials) as channel:
        stub = P4RuntimeStub(channel)
        response = stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=20)
    return str(response.p4runtime_api_version)


def test_tls(authority: Path) -> None:
    files = ServerTlsFiles(authority / "server.pem", authority / "server.key")
    with serve(StrictDataPath(), "127.0.0.1:0", tls=files) as server:
        assert version_over_tls(server, authority, certified=False) == "1.4.1"
        with Client(server.address) as plain, refused_with(grpc.StatusCode.UNAVAILABLE):
            plain.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=20)


def test_mutual_tls(authority: Path) -> None:
    files = ServerTlsFiles(authority / "server.pem", authority / "server.key", client_ca=authority / "ca.pem")
    with serve(StrictDataPath(), "127.0.0.1:0", tls=files) as server:
        assert version_over_tls(server, authority, certified=True) == "1.4.1"
        with pytest.raises(grpc.RpcError) as error:
            version_over_tls(server, authority, certified=False)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE


def test_no_peer_keeps_another_out(authority: Path) -> None:
    files = ServerTlsFiles(authority / "server.pem", authority / "server.key", client_ca=authority / "ca.pem")
    with ExitStack() as ends, serve(StrictDataPath(), "127.0.0.1:0", tls=files) as server:
        address = server.address.replace("127.0.0.1", "localhost")

        def join(name: str, role: str = "") -> tuple[Client, Any]:
            client = ends.enter_context(Client(address, 1, role=role, credentials=certified_as(name, authority)))
            return client, client.join()

        first = [join("client", f"role {index}") for index in range(STREAMS_OF_A_PEER)]
        others = LARGEST_NUMBER_OF_STREAMS - STREAMS_OF_A_PEER
        second = [join("second", f"other {index}") for index in range(others)]
        assert {answer.arbitration.status.code for _, answer in first + second} == {OK}
        assert join("client", "more")[1].code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert advice(join("third")[1]) == (OK, 1)
        displaced(first[0][0], f"{LARGEST_NUMBER_OF_STREAMS} streams are open, the most of all peers")
        assert all(client.incoming.empty() for client, _ in second)


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:127.9.8.7:1", "this machine"),
        ("ipv6:%5B::1%5D:1", "this machine"),
        ("ipv6:%5B::ffff:127.0.0.1%5D:1", "this machine"),
        ("unix:", "this machine"),
        ("unix:/run/a:b.sock", "this machine"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:1", "192.0.2.7"),
        ("ipv6:%5B2001:db8:0:1:2::3%5D:1", "2001:db8:0:1::/64"),
        ("ipv6:%5Bfe80::3%25eth0%5D:1", "fe80::/64"),
    ],
)
def test_addresses_that_a_client_chooses_freely_are_one_peer(text: str, peer: str) -> None:
    assert peer_of_address(text) == peer


def test_files_that_are_no_certificates_are_named(authority: Path, tmp_path: Path) -> None:
    def refused(*files: Path) -> str:
        with pytest.raises(InputError) as error:
            serve(StrictDataPath(), "127.0.0.1:0", tls=ServerTlsFiles(*files))
        return str(error.value)

    certificate, key = authority / "server.pem", authority / "server.key"
    assert "missing.pem" in refused(tmp_path / "missing.pem", key)
    (tmp_path / "empty.pem").write_text("")
    assert "is no PEM file" in refused(certificate, tmp_path / "empty.pem")
    assert "is not the key of" in refused(certificate, authority / "client.key")


def test_text_form_and_message_give_the_same_config(client: Client) -> None:
    again = text_format.Parse(text_format.MessageToString(P4INFO), p4info_pb2.P4Info())
    client.set_pipeline(p4info=again)
    assert config_of(client).config.p4info == P4INFO
