"""The parts of the P4Runtime service that need no server: numbers, P4Info, arbitration, digests, entries in files."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runtime_support import DOCUMENT, P4INFO, P4INFO_TEXT, SCHEMA, with_ids

from tensorexpress.errors import ProgramError
from tensorexpress.p4runtime_messages import p4data_pb2, p4info_pb2
from tensorexpress.switch import operations as ops
from tensorexpress.switch.p4runtime import pipeline_config, values
from tensorexpress.switch.p4runtime.arbitration import LARGEST_NUMBER_OF_ROLES, Arbitration
from tensorexpress.switch.p4runtime.digests import DigestQueue
from tensorexpress.switch.p4runtime.entities import read_entries
from tensorexpress.switch.p4runtime.fitting import fit
from tensorexpress.switch.p4runtime.messages.digest_configs import DigestConfig
from tensorexpress.switch.p4runtime.p4info import P4Field, read_p4info
from tensorexpress.switch.p4runtime.packet_io import decode_header, encode_header, header_bytes
from tensorexpress.switch.p4runtime.status import Code, Refused
from tensorexpress.switch.p4runtime.values import Bits, Bool, Members, Names


def test_doctests() -> None:
    for module in (values, pipeline_config):
        assert doctest.testmod(module).failed == 0


def test_the_package_does_not_import_protobuf_or_grpc() -> None:
    code = "import sys, tensorexpress.switch; assert not {'grpc', 'google.protobuf', 'p4.v1'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


# Numbers. The tables are those of the specification's section on bytestrings.


@pytest.mark.parametrize(
    ("width", "number", "data"),
    [
        (8, 99, b"\x63"),
        (16, 99, b"\0\x63"),
        (16, 12388, b"\x30\x64"),
        (16, 12388, b"\0\x30\x64"),
        (12, 99, b"\0\0\x63"),
    ],
)
def test_unsigned_bytestrings_of_any_length_are_read(width: int, number: int, data: bytes) -> None:
    assert values.decode_bits(data, width, "x") == number
    assert values.encode_bits(number) == data.lstrip(b"\0")


@pytest.mark.parametrize(
    ("width", "data"), [(8, b"\1\x63"), (8, b""), (16, b"\1\0\x63"), (12, b"\x10\x63"), (12, b"\0\x40\x63")]
)
def test_unsigned_bytestrings_that_do_not_fit_are_refused(width: int, data: bytes) -> None:
    with pytest.raises(Refused) as refusal:
        values.decode_bits(data, width, "x")
    assert refusal.value.code == Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("width", "number", "data"),
    [
        (8, 99, b"\x63"),
        (8, -99, b"\x9d"),
        (8, -99, b"\xff\x9d"),
        (12, -739, b"\xfd\x1d"),
        (16, 0, b"\0\0"),
        (16, 0, b"\0"),
    ],
)
def test_signed_bytestrings_are_read(width: int, number: int, data: bytes) -> None:
    assert values.decode_signed(data, width, "x") == number


@pytest.mark.parametrize(("width", "data"), [(8, b"\0\x9d"), (12, b"\x8d\x1d"), (16, b"")])
def test_signed_bytestrings_that_do_not_fit_are_refused(width: int, data: bytes) -> None:
    with pytest.raises(Refused):
        values.decode_signed(data, width, "x")


@given(st.integers(1, 200).flatmap(lambda width: st.tuples(st.just(width), st.integers(0, 2**width - 1))))
def test_numbers_survive_and_are_written_in_the_shortest_way(case: tuple[int, int]) -> None:
    width, number = case
    data = values.encode_bits(number)
    assert values.decode_bits(data, width, "x") == number
    assert len(data) == 1 or data[0]
    signed = number - 2 ** (width - 1)
    assert values.decode_signed(values.encode_signed(signed), width, "x") == signed


NUMBERS = st.builds(Bits, st.integers(1, 64), st.booleans())
LEAVES = NUMBERS | st.just(Bool()) | st.builds(Bits, st.integers(1, 64), is_enum=st.just(True))
TYPES = st.recursive(
    LEAVES | st.just(Names(("a", "b"))) | st.just(Names(("NoError",), is_error=True)),
    lambda inner: st.builds(Members, st.sampled_from(["struct", "tuple"]), st.lists(inner, max_size=4).map(tuple)),
    max_leaves=6,
)


def data_of(kind: Any, numbers: Iterator[int]) -> Any:
    return p4data_pb2.P4Data(**values.encode_data(kind, numbers))


@given(TYPES)
def test_data_of_any_type_takes_as_many_values_as_it_has_leaves(kind: Any) -> None:
    supply = iter([0] * values.leaves(kind))
    data = data_of(kind, supply)
    assert next(supply, None) is None
    assert data.WhichOneof("data") is not None


@given(LEAVES, st.data())
def test_single_values_survive_as_data(kind: Any, data: Any) -> None:
    number = data.draw(st.integers(0, 1 if isinstance(kind, Bool) else 2**kind.width - 1))
    assert values.decode_data(kind, data_of(kind, iter((number,))), "x") == number


def test_names_are_written_for_enums() -> None:
    kind = Names(("IPv4", "Other"))
    assert data_of(kind, iter((1,))).enum == "Other"
    assert values.decode_data(kind, data_of(kind, iter((1,))), "x") == 1
    with pytest.raises(Refused, match="accepted: IPv4, Other"):
        values.decode_data(Names(("IPv4", "Other")), data_of(Names(("IPv6",)), iter((0,))), "x")


@given(
    st.lists(st.integers(1, 70), min_size=0, max_size=6).flatmap(
        lambda widths: st.tuples(st.just(widths), st.tuples(*(st.integers(0, 2**width - 1) for width in widths)))
    ),
    st.binary(max_size=20),
)
def test_a_controller_header_survives(case: tuple[list[int], tuple[int, ...]], payload: bytes) -> None:
    fields = tuple(P4Field(id, f"f{id}", width) for id, width in enumerate(case[0], start=1))
    packet = decode_header(fields, bytes(header_bytes(fields)) + payload)
    for metadata, value in zip(packet.metadata, case[1], strict=True):
        metadata.value = values.encode_bits(value)
    frame = encode_header(fields, packet.metadata) + payload
    assert decode_header(fields, frame) == packet
    if fields:
        assert decode_header(fields, frame[: header_bytes(fields) - 1]) is None


# P4Info and the program.


def test_text_and_message_give_the_same_schema() -> None:
    assert read_p4info(P4INFO) == SCHEMA == read_p4info(P4INFO_TEXT)


def changed(change: Any) -> Any:
    info = p4info_pb2.P4Info()
    info.CopyFrom(P4INFO)
    change(info)
    return info


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda info: info.tables[0].action_refs.add(id=5), "lists action 5"),
        (lambda info: info.value_sets[0].match[0].ClearField("bitwidth"), "without a width"),
        (lambda info: info.tables[0].match_fields[0].ClearField("match_type"), "accepted: exact, lpm"),
        (lambda info: info.tables.add().CopyFrom(info.tables[0]), "every id is above zero and used once"),
        (lambda info: setattr(info.counters[0].preamble, "id", 0), "every id is above zero"),
        (lambda info: info.digests[0].type_spec.struct.ClearField("name"), "which type_info lacks"),
        (lambda info: info.digests[0].type_spec.header_stack.SetInParent(), "'header_stack', which is not supported"),
    ],
)
def test_what_p4info_may_not_say(change: Any, named: str) -> None:
    with pytest.raises(ProgramError, match=named):
        read_p4info(changed(change))


@pytest.mark.parametrize("text", ["tables {", "nonsense", "{}", "tables: 5", "\0"])
def test_text_that_is_no_p4info(text: str) -> None:
    with pytest.raises(ProgramError, match="not a P4Info") as error:
        read_p4info(text)
    assert "\n" not in str(error.value)


def table(info: Any, alias: str) -> Any:
    return next(one for one in info.tables if one.preamble.alias == alias)


def action(info: Any, alias: str) -> Any:
    return next(one for one in info.actions if one.preamble.alias == alias)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda info: table(info, "acl").match_fields.pop(), "3 match fields in P4Info, 4 in BMv2 JSON"),
        (lambda info: table(info, "acl").action_refs.add(id=action(info, "forward").preamble.id), "not in BMv2 JSON"),
        (lambda info: action(info, "forward").params.pop(), "0 parameters in P4Info, 1 in BMv2 JSON"),
        (
            lambda info: setattr(action(info, "forward").params[0], "bitwidth", 8),
            "has 8 bits in P4Info, 9 in BMv2 JSON",
        ),
        (lambda info: table(info, "nexthops").ClearField("implementation_id"), "not the same action profile"),
        (lambda info: table(info, "acl").ClearField("direct_resource_ids"), "not the same direct meter"),
        (
            lambda info: setattr(info.registers[0].type_spec.bitstring.bit, "bitwidth", 9),
            "9 bits in P4Info, 32 in BMv2 JSON",
        ),
        (lambda info: setattr(info.action_profiles[0], "with_selector", False), "has a selector in only one"),
        (
            lambda info: info.type_info.structs["learn_t"].members.pop(),
            "has 1 values in P4Info, 2 in BMv2 JSON",
        ),
    ],
)
def test_p4info_that_does_not_fit_its_program(change: Any, named: str) -> None:
    with pytest.raises(ProgramError, match=named) as error:
        fit(read_p4info(changed(change)), DOCUMENT)
    assert "\n" not in str(error.value)


def test_what_p4c_left_out_of_the_program_cannot_be_written() -> None:
    def unused(info: Any) -> None:
        info.counters.add(size=4).preamble.CopyFrom(p4info_pb2.Preamble(id=7, name="MyIngress.unused"))

    schema = read_p4info(changed(unused))
    assert 7 in schema.counters
    assert 7 not in fit(schema, DOCUMENT).schema.counters


def test_what_the_program_starts_with() -> None:
    initial = fit(SCHEMA, DOCUMENT).initial
    by_name = {SCHEMA.tables[id].name: rows for id, rows in initial.rows.items()}
    constant, started = by_name["MyIngress.types"], by_name["MyIngress.started"]
    assert [row.entry.key for row in constant] == [((0x0806, 0xFFFF),), ((0x8800, 0xFF00),)]
    assert all(row.is_const for row in constant)
    assert [(row.entry.key, row.is_const) for row in started] == [((0x1234,), False), ((0x5678,), False)]
    defaults = {SCHEMA.tables[id].name: call for id, call in initial.defaults.items()}
    assert defaults["MyIngress.l2_exact"] == ops.ActionCall("MyIngress.drop")


# Arbitration.

Step = tuple[str, int, str, int | None]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["update", "update", "leave"]),
        st.integers(0, 4),
        st.sampled_from(["", "other"]),
        st.none() | st.integers(0, 6),
    )
)


@given(STEPS)
def test_arbitration_keeps_its_promises(steps: list[Step]) -> None:
    arbitration: Arbitration[int] = Arbitration()
    live: dict[int, tuple[str, int | None]] = {}
    highest: dict[str, int] = {}
    for kind, client, role, election_id in steps:
        before = {role: arbitration.primary(role) for role in ("", "other")}
        if kind == "leave":
            advice = arbitration.leave(client)
            role = live.pop(client, (role, None))[0]
        elif client in live and live[client][0] != role:
            with pytest.raises(Refused) as refusal:
                arbitration.update(client, role, election_id)
            assert refusal.value.code == Code.FAILED_PRECONDITION
            continue
        elif election_id is not None and (role, election_id) in [live[other] for other in live if other != client]:
            with pytest.raises(Refused) as refusal:
                arbitration.update(client, role, election_id)
            assert refusal.value.code == Code.INVALID_ARGUMENT
            continue
        else:
            advice = arbitration.update(client, role, election_id)
            live[client] = role, election_id
            if election_id is not None:
                highest[role] = max(election_id, highest.get(role, 0))
        primary = arbitration.primary(role)
        holders = [one for one, held in live.items() if held == (role, highest.get(role)) and held[1] is not None]
        # The primary holds the highest id ever seen; a client that fell back to it earlier has to claim it.
        assert primary is None or holders == [primary]
        assert arbitration.is_primary(role, highest.get(role)) == (primary is not None)
        told = {one for one, _ in advice}
        if primary != before[role]:
            assert told == {one for one, held in live.items() if held[0] == role}
        for one, what in advice:
            assert what.election_id == highest.get(role)
            backup = Code.NOT_FOUND if primary is None else Code.ALREADY_EXISTS
            assert what.code == (Code.OK if one == primary else backup)


def test_roles_are_limited() -> None:
    arbitration: Arbitration[int] = Arbitration()
    for number in range(1, LARGEST_NUMBER_OF_ROLES):
        arbitration.update(number, f"role {number}", 1)
    with pytest.raises(Refused) as refusal:
        arbitration.update(0, "one too many", 1)
    assert refusal.value.code == Code.RESOURCE_EXHAUSTED
    assert arbitration.update(0, "", 1)


# Digests.


def test_a_list_leaves_when_it_is_full_or_old() -> None:
    queue = DigestQueue(DigestConfig(max_timeout_ns=100, max_list_size=2))
    assert queue.due_ns() is None
    queue.add((1,), now_ns=5)
    queue.add((1,), now_ns=6)
    assert queue.due_ns() == 105
    queue.add((2,), now_ns=50)
    assert queue.due_ns() == 5
    assert queue.take(now_ns=50) == (1, [(1,), (2,)])
    assert queue.due_ns() is None


def test_unacknowledged_messages_are_not_sent_twice() -> None:
    queue = DigestQueue(DigestConfig(max_list_size=1, ack_timeout_ns=100))
    queue.add((1,), now_ns=0)
    first, _ = queue.take(now_ns=0)
    queue.add((1,), now_ns=50)
    assert queue.due_ns() is None
    queue.acknowledge(first)
    queue.add((1,), now_ns=60)
    assert queue.take(now_ns=60)[1] == [(1,)]
    queue.add((1,), now_ns=159)
    assert queue.due_ns() is None
    queue.add((1,), now_ns=160)
    assert queue.due_ns() == 160


# Entries in a file.

ROUTE = r"""
    updates {
      type: INSERT
      entity {
        table_entry {
          table_id: $routes
          match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } }
          action { action { action_id: $forward_tagged
            params { param_id: 1 value: "\x03" } params { param_id: 2 value: "\x00\x07" } } }
        }
      }
    }
"""


def test_entries_become_operations() -> None:
    entry = ops.Entry("MyIngress.routes", ((0x0A000000, 8),))
    call = ops.ActionCall("MyIngress.forward_tagged", (3, 7))
    assert read_entries(P4INFO_TEXT, with_ids(ROUTE)) == [ops.SetEntry(entry, call)]
    assert read_entries(P4INFO_TEXT, with_ids(ROUTE), DOCUMENT) == [ops.SetEntry(entry, call)]
    assert read_entries(P4INFO_TEXT, "") == []


def test_the_update_that_is_refused_is_named() -> None:
    with pytest.raises(ProgramError, match=r"update 2 is refused \(ALREADY_EXISTS\): MyIngress.routes"):
        read_entries(P4INFO_TEXT, with_ids(ROUTE + ROUTE))


def test_entries_of_the_program_are_known_with_the_program() -> None:
    entry = 'table_entry { table_id: $started match { field_id: 1 exact { value: "\\x12\\x34" } } }'
    delete = f"updates {{ type: DELETE entity {{ {entry} }} }}"
    assert read_entries(P4INFO_TEXT, with_ids(delete), DOCUMENT) == [
        ops.DeleteEntry(ops.Entry("MyIngress.started", (0x1234,)))
    ]
    with pytest.raises(ProgramError, match="NOT_FOUND"):
        read_entries(P4INFO_TEXT, with_ids(delete))


@settings(max_examples=30)
@given(st.text(max_size=80))
def test_any_text_is_entries_or_one_line(text: str) -> None:
    problem = ""
    try:
        read_entries(P4INFO_TEXT, text)
    except ProgramError as error:
        problem = str(error)
    assert "\n" not in problem


# The program of these tests.
