"""Messages read and written as plain values are those of protobuf, whatever is in them and whatever became of them."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import examples

from tensorexpress import plain_messages
from tensorexpress.p4runtime_messages import is_repeated, p4data_pb2, p4info_pb2, p4runtime_pb2
from tensorexpress.plain_messages import is_map, read_plainly, write_plainly

KINDS = [
    p4runtime_pb2.Entity,
    p4runtime_pb2.Update,
    p4runtime_pb2.ReadResponse,
    p4runtime_pb2.WriteRequest,
    p4runtime_pb2.StreamMessageResponse,
    p4data_pb2.P4Data,
    p4info_pb2.P4Info,
]
#: Messages hold messages of their own kind.
DEEPEST = 5

NUMBERS = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 2),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=200),
    FieldDescriptor.TYPE_STRING: st.text(max_size=5),
}


@st.composite
def contents(draw: st.DrawFn, descriptor: Any, depth: int = 0) -> dict[str, Any]:
    """Draw what a message holds: some of its fields, and of a oneof one at the most."""
    choices = [[field] for field in descriptor.fields if field.containing_oneof is None and _is_drawn(field, depth)]
    choices += [[field for field in one.fields if _is_drawn(field, depth)] for one in descriptor.oneofs]
    content = {}
    for choice in draw(st.lists(st.sampled_from(choices), max_size=4, unique_by=id)) if choices else []:
        if not choice:
            continue
        field = draw(st.sampled_from(choice))
        value = contents(field.message_type, depth + 1) if field.message_type else NUMBERS[field.type]
        content[field.name] = draw(st.lists(value, max_size=3) if is_repeated(field) else value)
    return content


def _is_drawn(field: Any, depth: int) -> bool:
    if field.message_type is None:
        return field.type in NUMBERS
    # Maps are no lists, and the values of some messages are of any kind.
    return depth < DEEPEST and not is_map(field) and not field.message_type.full_name.startswith("google.protobuf.")


kinds_and_contents = st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), contents(kind.DESCRIPTOR)))


def check_same(view: Any, message: Any) -> None:
    """Check that a view tells what the message tells."""
    for one in message.DESCRIPTOR.oneofs:
        assert view.WhichOneof(one.name) == message.WhichOneof(one.name)
    for field in message.DESCRIPTOR.fields:
        its, own = getattr(message, field.name), getattr(view, field.name)
        if is_map(field):
            assert dict(its) == dict(own)
        elif is_repeated(field):
            assert len(its) == len(own)
            for one, other in zip(own, its, strict=True):
                check_value(one, other, field)
        elif field.message_type is None:
            check_value(own, its, field)
        else:
            assert view.HasField(field.name) == message.HasField(field.name)
            if message.HasField(field.name):
                check_value(own, its, field)


def check_value(own: Any, its: Any, field: Any) -> None:
    if field.message_type is None:
        assert (own, type(own)) == (its, type(its))
    else:
        check_same(own, its)


@settings(max_examples=examples(600))
@given(kinds_and_contents)
def test_what_is_written_is_what_protobuf_makes_of_it(drawn: tuple[Any, dict[str, Any]]) -> None:
    kind, content = drawn
    assert kind.FromString(write_plainly(kind, content)) == kind(**content)


@settings(max_examples=examples(600))
@given(kinds_and_contents)
def test_what_is_read_is_what_protobuf_reads(drawn: tuple[Any, dict[str, Any]]) -> None:
    kind, content = drawn
    message = kind(**content)
    check_same(read_plainly(kind, message.SerializeToString()), message)


@settings(max_examples=examples(1500))
@given(kinds_and_contents, st.data())
def test_whatever_comes_is_read_or_refused_as_protobuf_does(drawn: tuple[Any, dict[str, Any]], data: Any) -> None:
    kind, content = drawn
    damaged = bytearray(kind(**content).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged)))
        end = data.draw(st.integers(place, min(len(damaged), place + 4)))
        damaged[place:end] = data.draw(st.binary(max_size=4))
    # A message twice is one in which all that is in it is there twice.
    given_bytes = bytes(damaged) * data.draw(st.integers(1, 2))
    try:
        message = kind.FromString(given_bytes)
    except Exception as error:  # protobuf in Python raises whatever it stumbles over
        with pytest.raises(type(error)):
            read_plainly(kind, given_bytes)
    else:
        check_same(read_plainly(kind, given_bytes), message)


def test_cells_and_entries_are_read_without_protobuf() -> None:
    entry = p4runtime_pb2.TableEntry(table_id=1 << 25 | 3, priority=7)
    entry.match.add(field_id=1).exact.value = b"\x01"
    entry.action.action.params.add(param_id=1, value=b"\x02")
    update = p4runtime_pb2.Update(type=1, entity=p4runtime_pb2.Entity(table_entry=entry))
    counter = p4runtime_pb2.CounterEntry(counter_id=1 << 28, index=p4runtime_pb2.Index(index=300))
    response = p4runtime_pb2.ReadResponse(entities=[p4runtime_pb2.Entity(counter_entry=counter)])
    for message in (update, response):
        assert isinstance(read_plainly(type(message), message.SerializeToString()), plain_messages.View)


def test_a_message_may_stand_where_a_content_may() -> None:
    entry = p4runtime_pb2.CounterEntry(counter_id=5)
    written = write_plainly(p4runtime_pb2.Entity, {"counter_entry": entry})
    assert p4runtime_pb2.Entity.FromString(written) == p4runtime_pb2.Entity(counter_entry=entry)


@pytest.mark.parametrize("number", [-1, 1 << 32])
def test_a_number_that_does_not_fit_is_not_written(number: int) -> None:
    with pytest.raises(ValueError, match=r"counter_id is -?\d+; accepted: 0 to 4294967295"):
        write_plainly(p4runtime_pb2.CounterEntry, {"counter_id": number})


def test_deep_nesting_is_left_to_protobuf() -> None:
    data = p4data_pb2.P4Data(bool=True).SerializeToString()
    for _ in range(2000):
        members = b"\x0a" + plain_messages.write_varint(len(data)) + data
        data = b"\x22" + plain_messages.write_varint(len(members)) + members
    with pytest.raises((DecodeError, RecursionError)):
        read_plainly(p4data_pb2.P4Data, data)
