"""P4Info and program of one run of p4c belong together, even where they do not say the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from support.runtime_support import DOCUMENT, P4INFO, Client, StrictDataPath, id_of, status_of, unpacked

from tensorexpress.errors import ProgramError
from tensorexpress.p4runtime_messages import p4info_pb2, p4runtime_pb2
from tensorexpress.switch.p4runtime.fitting import fit
from tensorexpress.switch.p4runtime.p4info import parse_p4info, read_p4info
from tensorexpress.switch.p4runtime.pipeline_config import read_config
from tensorexpress.switch.p4runtime.service import serve

DEAD, ERRORS = 0x0201BEEF, 0x0201E440


def with_strange_tables() -> Any:
    """Return a P4Info with a table that p4c removed from the program, and one that matches an `error`."""
    info = p4info_pb2.P4Info()
    info.CopyFrom(P4INFO)
    known = next(table for table in info.tables if table.preamble.id == id_of("l2_exact"))
    for id, name in ((DEAD, "MyIngress.dead"), (ERRORS, "MyIngress.by_error")):
        table = info.tables.add()
        table.CopyFrom(known)
        del table.direct_resource_ids[:]
        table.implementation_id = 0
        table.preamble.id, table.preamble.name, table.preamble.alias = id, name, name.split(".")[1]
    for field in info.tables[-1].match_fields:
        field.ClearField("bitwidth")
    return info


def with_table_by_error() -> bytes:
    """Return the program with that second table, too."""
    value = json.loads(DOCUMENT)
    tables = value["pipelines"][0]["tables"]
    (known,) = [table for table in tables if table["name"] == "MyIngress.l2_exact"]
    tables.append(known | {"name": "MyIngress.by_error"})
    return json.dumps(value).encode()


@pytest.fixture
def client() -> Iterator[Client]:
    with serve(StrictDataPath(), "127.0.0.1:0", cpu_port=255) as server, Client(server.address) as one:
        one.join()
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=one.device_id, action=3)
        request.election_id.low = 1
        request.config.p4info.CopyFrom(with_strange_tables())
        request.config.p4_device_config = with_table_by_error()
        one.stub.SetForwardingPipelineConfig(request)
        yield one


def entry(table_id: int) -> Any:
    update = p4runtime_pb2.Update(type=1)
    table_entry = update.entity.table_entry
    table_entry.table_id = table_id
    for number, value in ((1, b"\1"), (2, b"\0")):
        match = table_entry.match.add(field_id=number)
        match.exact.value = value
    table_entry.action.action.action_id = id_of("forward")
    table_entry.action.action.params.add(param_id=1, value=b"\5")
    return update


def reason(client: Client, update: Any) -> str:
    """Return why an update is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        client.write(update)
    (detail,) = status_of(caught.value).details
    return str(unpacked(detail).message)


@pytest.mark.parametrize(
    ("table", "says"), [(DEAD, "MyIngress.dead: p4c left this table out"), (ERRORS, "MyIngress.by_error: .* no width")]
)
def test_writes_to_a_table_that_cannot_be_used_are_refused_and_reads_give_nothing(
    client: Client, table: int, says: str
) -> None:
    assert re.search(says, reason(client, entry(table)))
    default = p4runtime_pb2.Update(type=2)
    default.entity.table_entry.table_id = table
    default.entity.table_entry.is_default_action = True
    assert re.search(says, reason(client, default))
    for filters in ({}, {"is_default_action": True}, {"time_since_last_hit": {}}):
        entity = p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry(table_id=table, **filters))
        assert list(client.read(entity)) == []


def test_other_tables_are_written_and_read_as_ever(client: Client) -> None:
    client.write(entry(id_of("l2_exact")))
    for id in (0, id_of("l2_exact")):
        read = client.read(p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry(table_id=id)))
        assert [one.table_entry for one in read if one.table_entry.table_id == id_of("l2_exact")] == [
            entry(id_of("l2_exact")).entity.table_entry
        ]


@pytest.mark.parametrize("count", [1, 3])
def test_where_each_has_a_table_that_the_other_lacks_they_are_of_two_programs(count: int) -> None:
    info = p4info_pb2.P4Info()
    info.CopyFrom(P4INFO)
    for table in info.tables[:count]:
        table.preamble.name += "_2"
    with pytest.raises(ProgramError, match=r"table '.*_2' is only in P4Info, table 'MyIngress.*' only in BMv2 JSON"):
        fit(read_p4info(info), DOCUMENT)


def test_a_p4info_text_beyond_its_budget_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProgramError, match="has 4194305 bytes of P4Info; accepted: up to 4194304"):
        parse_p4info("{" * (2**22 + 1))


def nested_structs(depth: int, ends: bool) -> Any:
    """Return a P4Info with a digest of structs that have the next one twice; the last has bits or the first."""
    info = p4info_pb2.P4Info()
    digest = info.digests.add()
    digest.preamble.id, digest.preamble.name = 7, "news"
    digest.type_spec.struct.name = "s0"
    for number in range(depth):
        for name in ("a", "b"):
            member = info.type_info.structs[f"s{number}"].members.add(name=name)
            if number < depth - 1:
                member.type_spec.struct.name = f"s{number + 1}"
            elif ends:
                member.type_spec.bitstring.bit.bitwidth = 8
            else:
                member.type_spec.struct.name = "s0"
    return info


def wide_register() -> Any:
    info = p4info_pb2.P4Info()
    info.registers.add().type_spec.bitstring.bit.bitwidth = 2**31 - 1
    return info


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (nested_structs(64, ends=True), "'news' has data of more than 4096 members"),
        (nested_structs(1, ends=False), "more than 4096 members|contain each other"),
        (wide_register(), "has 2147483647 bits; accepted: up to 4096"),
    ],
)
def test_types_of_data_are_bounded(info: Any, says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        read_p4info(info)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (bytes(2**22 + 1), "has 4194305 bytes of p4_device_config; accepted: up to 4194304"),
        (b"\x08\x01" * 2**20, "not BMv2 JSON"),
        (b"\x1a\xff\xff\xff\xff\x0f{", "not JSON"),
        (b"{" * 2**20, "not JSON"),
    ],
)
def test_garbage_is_refused_for_what_it_is(data: bytes, says: str) -> None:
    message = p4runtime_pb2.ForwardingPipelineConfig(p4info=P4INFO, p4_device_config=data)
    with pytest.raises(ProgramError, match=says):
        read_config(message)


@pytest.mark.parametrize("text", ["{" * 10**6, "tables { " * 10**5, "\0" * 10**6])
def test_a_text_that_is_no_p4info_is_refused_in_one_short_line(text: str) -> None:
    with pytest.raises(ProgramError, match="not a P4Info in text form") as caught:
        parse_p4info(text)
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)
