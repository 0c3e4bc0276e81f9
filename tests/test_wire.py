"""The header: golden bytes, every codec against every other, and one error for whatever does not decode."""

from __future__ import annotations

import doctest
import re
from dataclasses import asdict, replace
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.utils import checksum as scapy_checksum

from tensorexpress.errors import HeaderError, InputError
from tensorexpress.wire import checksum, dscp, frame, header, scapy_layer
from tensorexpress.wire.frame import FrameEnd, Seen, build_frame, read_frame
from tensorexpress.wire.header import (
    HEADER_BYTES,
    Header,
    Kind,
    clamp_slack_us,
    is_header,
    pack_many,
    unpack,
    unpack_many,
)
from tensorexpress.wire.scapy_layer import TensorExpress, TensorExpressPart, TensorExpressSum
from tensorexpress.wire.sum_header import SumHeader

ROOT = Path(__file__).parents[1]

GOLDEN = Header(
    job=0x0102,
    worker=0x0304,
    iteration=0x05060708,
    tensor=0x090A,
    chunk=0x0C0D0E0F,
    chunks=0x10111213,
    queue=0x0B,
    slack_us=-2,
    payload_bytes=4,
    kind=Kind.ACK,
    flags=0x81,
)
GOLDEN_BYTES = bytes.fromhex("5458 12 81 0102 0304 05060708 090a 0b 00 0c0d0e0f 10111213 fffffffe 0004 0000")

u8, u16, u32 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32))
headers = st.builds(
    Header,
    u16,
    u16,
    u32,
    u16,
    u32,
    u32,
    u8,
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 64),
    st.integers(0, 15),
    u8,
)


def test_golden_bytes_both_ways() -> None:
    assert GOLDEN.pack() == GOLDEN_BYTES
    assert unpack(GOLDEN_BYTES + b"data") == GOLDEN


@given(headers)
def test_scapy_gives_the_same_bytes_and_reads_them_back(tagged: Header) -> None:
    payload = bytes(tagged.payload_bytes)
    layer = TensorExpress(**asdict(tagged)) / payload
    assert bytes(layer) == tagged.pack() + payload
    seen = TensorExpress(tagged.pack() + payload)
    assert {name: int(getattr(seen, name)) for name in asdict(tagged)} == asdict(tagged)
    assert bytes(seen.payload) == payload


def test_scapy_finds_the_layer_on_its_port_and_leaves_padding_out() -> None:
    frame = bytes(Ether() / IP() / UDP(dport=header.UDP_PORT) / TensorExpress(job=5) / b"abc") + bytes(20)
    assert Ether(frame)[TensorExpress].job == 5
    assert Ether(frame)[TensorExpress].payload.load == b"abc"


def test_scapy_knows_the_header_of_values_to_sum() -> None:
    sums = SumHeader(epoch=2**32 - 1, turn=9, slot=513, check=65520, exponent=-2, needed=3, culprit=4, flags=2)
    layer = TensorExpressSum(
        epoch=2**32 - 1, turn=9, slot=513, check=65520, exponent=126, needed=131, culprit=4, flags="overflow"
    )
    assert bytes(layer) == sums.pack() == bytes.fromhex("ffffffff 00000009 0201fff0 7e830402")
    frame = bytes(Ether() / IP() / UDP(dport=header.UDP_PORT) / TensorExpress(kind=Kind.SUM) / layer / bytes(1024))
    assert Ether(frame)[TensorExpressSum].slot == 513
    assert Ether(frame)[TensorExpress].payload_bytes == 1040


def test_scapy_knows_the_header_of_values_that_say_whose_they_are() -> None:
    sums = SumHeader(epoch=1, turn=9, slot=513, check=2, exponent=-2, needed=3, workers=2**63 + 5)
    layers = TensorExpressPart(workers=2**63 + 5) / TensorExpressSum(
        epoch=1, turn=9, slot=513, check=2, exponent=126, needed=131
    )
    assert bytes(layers) == sums.pack() == bytes.fromhex("8000000000000005 00000001 00000009 02010002 7e830000")
    frame = bytes(Ether() / IP() / UDP(dport=header.UDP_PORT) / TensorExpress(kind=Kind.PART) / layers / bytes(1024))
    assert Ether(frame)[TensorExpressPart].workers == 2**63 + 5
    assert Ether(frame)[TensorExpressSum].slot == 513
    assert Ether(frame)[TensorExpress].payload_bytes == 1048
    assert [name for name, _ in p4_fields("part_h")] == ["workers"]


@given(st.lists(headers, min_size=1, max_size=20))
def test_many_headers_at_once_are_the_same_bytes(many: list[Header]) -> None:
    columns = {name: np.array([getattr(each, name) for each in many]) for name in asdict(many[0])}
    packed = pack_many(**columns).tobytes()
    assert packed == b"".join(each.pack() for each in many)
    records = unpack_many(packed)
    assert is_header(records).all()
    assert records["slack_us"].tolist() == [each.slack_us for each in many]


def test_headers_are_found_at_a_stride() -> None:
    frames = b"".join(replace(GOLDEN, chunk=i).pack() + b"data" for i in range(5))
    assert unpack_many(frames, stride_bytes=36)["chunk"].tolist() == [0, 1, 2, 3, 4]


@given(headers, st.integers(0, 64))
def test_a_header_packed_is_read_back_only_with_its_whole_payload(tagged: Header, size: int) -> None:
    data = tagged.pack() + bytes(size)
    if size == tagged.payload_bytes:
        assert unpack(data) == tagged
    else:
        with pytest.raises(HeaderError, match=f"found {size} bytes of payload"):
            unpack(data)


@given(st.one_of(st.binary(max_size=80), st.binary(max_size=60).map(lambda tail: GOLDEN_BYTES[:3] + tail)))
def test_whatever_the_bytes_decoding_gives_a_header_or_its_own_error(data: bytes) -> None:
    try:
        tagged = unpack(data)
    except HeaderError:
        assert data[:2] != b"TX" or data[2] >> 4 != 1 or len(data) < 32 or len(data) - 32 != int.from_bytes(data[28:30])
    else:
        assert unpack(tagged.pack() + data[HEADER_BYTES:]) == tagged
        assert tagged.payload_bytes == len(data) - HEADER_BYTES


@pytest.mark.parametrize(
    ("field", "value"),
    [("job", 2**16), ("tensor", -1), ("slack_us", 2**31), ("kind", 16), ("queue", 256), ("chunk", "1")],
)
def test_a_value_that_does_not_fit_is_named(field: str, value: int) -> None:
    with pytest.raises(HeaderError, match=f"{field} is {value!r}; accepted"):
        replace(GOLDEN, **{field: value}).pack()


def test_a_column_that_does_not_fit_is_named() -> None:
    with pytest.raises(HeaderError, match="job reaches from 0 to 65536; accepted: 0 to 65535"):
        pack_many(job=np.array([0, 65536]))
    with pytest.raises(HeaderError, match="unknown field 'jobs'; accepted: chunk, "):
        pack_many(jobs=1)
    with pytest.raises(HeaderError, match="found 33 bytes in strides of 32"):
        unpack_many(bytes(33))


@given(st.integers())
def test_a_slack_is_never_rounded_up(slack_ps: int) -> None:
    slack_us = clamp_slack_us(slack_ps)
    assert -(2**31) <= slack_us < 2**31
    if -(2**31) < slack_us < 2**31 - 1:
        assert slack_us * 10**6 <= slack_ps < (slack_us + 1) * 10**6


tables = st.one_of(
    st.integers(1, 8).map(dscp.default_dscps),
    st.integers(1, 8).map(lambda queues: tuple(range(8 * (queues - 1), -1, -8))),
    st.sets(st.integers(0, 63), min_size=1, max_size=8).map(lambda chosen: tuple(sorted(chosen, reverse=True))),
)


@given(tables)
def test_queue_and_dscp_are_inverse(table: tuple[int, ...]) -> None:
    assert dscp.check_dscps(table, len(table)) == table
    assert [dscp.queue_of_dscp(dscp.dscp_of_queue(queue, table), table) for queue in range(len(table))] == list(
        range(len(table))
    )


@given(tables)
def test_masks_find_every_dscp_in_its_queue_and_in_no_other(table: tuple[int, ...]) -> None:
    for value in range(64):
        found = [
            queue
            for queue in range(len(table))
            for block, mask in dscp.dscp_blocks(queue, table)
            if value & mask == block
        ]
        assert found == [dscp.queue_of_dscp(value, table)]


def test_the_default_dscps_leave_routing_protocols_and_scavengers_alone() -> None:
    # RFC 4594: CS6 and CS7 (48, 56 and all above CS6) are for network control. RFC 3662: CS1 (8) is below best effort.
    for queues in range(1, 9):
        table = dscp.default_dscps(queues)
        assert len(table) == queues
        assert table[-1] == 0
        assert all(8 < value < 48 for value in table[:-1])
        # Equipment that looks at the upper three bits alone may join queues, and must not turn them round.
        assert [value >> 3 for value in table] == sorted((value >> 3 for value in table), reverse=True)
        assert queues == 1 or table[0] == 40
        assert {dscp.queue_of_dscp(value, table) for value in range(48, 64)} == {0}


@pytest.mark.parametrize(
    ("table", "queues", "message"),
    [
        ((40, 0), 3, "2 DSCPs for 3 queues; accepted: one for each of at most 8 queues"),
        (tuple(range(9, 0, -1)), 9, "9 DSCPs for 9 queues; accepted: one for each of at most 8 queues"),
        ((64, 0), 2, "DSCP 64; accepted: 0 to 63"),
        ((8, -1), 2, "DSCP -1; accepted: 0 to 63"),
        ((40, 40), 2, "DSCP 40 before 40; accepted: the most urgent queue's first"),
        ((0, 40), 2, "DSCP 0 before 40; accepted: the most urgent queue's first"),
    ],
)
def test_dscps_that_do_not_tell_queues_apart_are_refused(table: tuple[int, ...], queues: int, message: str) -> None:
    with pytest.raises(InputError) as raised:
        dscp.check_dscps(table, queues)
    assert str(raised.value).startswith(message)


def ends(version: int) -> tuple[FrameEnd, FrameEnd]:
    first, second = ("10.0.0.1", "10.0.0.2") if version == 4 else ("fd00::1", "fd00::2")
    return FrameEnd(b"\2" * 6, ip_address(first), 1234), FrameEnd(b"\4" * 6, ip_address(second))


@given(headers, st.sampled_from([4, 6]), st.integers(0, 63), st.integers(0, 3))
def test_a_frame_is_what_scapy_would_build(tagged: Header, version: int, dscp_value: int, ecn: int) -> None:
    source, target = ends(version)
    data = tagged.pack() + bytes(tagged.payload_bytes)
    traffic_class = dscp_value << 2 | ecn
    network = (
        IP(src=str(source.ip), dst=str(target.ip), tos=traffic_class, flags="DF", id=0)
        if version == 4
        else IPv6(src=str(source.ip), dst=str(target.ip), tc=traffic_class)
    )
    ethernet = Ether(src="02:02:02:02:02:02", dst="04:04:04:04:04:04")
    expected = ethernet / network / UDP(sport=1234, dport=header.UDP_PORT) / data
    built = build_frame(source, target, data, dscp=dscp_value, ecn=ecn)
    assert built == bytes(expected)
    assert read_frame(built) == Seen(dscp_value, True, tagged)
    assert read_frame(built[:12] + b"\x81\0\0\7" + built[12:] + b"pad") == Seen(dscp_value, True, tagged)


@given(st.binary(max_size=120), st.integers(0, 120))
def test_reading_any_bytes_ends_well(data: bytes, cut: int) -> None:
    whole = build_frame(*ends(4), GOLDEN_BYTES + b"data")
    assert read_frame(data).header is None or len(data) >= 74
    assert read_frame(whole[:cut]).header is None or cut >= len(whole)


def p4_fields(name: str) -> list[tuple[str, int]]:
    source = (ROOT / "p4" / "include" / "headers.p4").read_text()
    body = re.search(rf"header {name} \{{(.*?)\}}", source, re.DOTALL)
    assert body is not None
    return [(field, int(bits)) for bits, field in re.findall(r"<(\d+)> (\w+);", body[1])]


def test_the_p4_header_of_sums_has_the_same_fields_in_the_same_places() -> None:
    ours = [(field.name, int(field.sz * 8)) for field in TensorExpressSum.fields_desc]
    assert ours == p4_fields("sum_h")


def test_the_p4_header_has_the_same_fields_in_the_same_places() -> None:
    widths = p4_fields("tensor_h")
    assert sum(bits for _, bits in widths) == 8 * HEADER_BYTES
    ours = [(field.name, field.sz * 8) for field in scapy_layer.TensorExpress.fields_desc]
    renamed = {"slack_us": "slack", "payload_bytes": "payload_length"}
    assert [(renamed.get(name, name), bits) for name, bits in ours] == widths


@given(st.sampled_from([b"", b"\0", b"\xff", b"\xff\0\1"]), st.integers(0, 9000), st.binary(max_size=40))
def test_a_checksum_is_that_of_scapy_however_long_the_data_is(piece: bytes, count: int, rest: bytes) -> None:
    data = piece * count + rest
    assert checksum.checksum(data) == scapy_checksum(data)


@pytest.mark.parametrize("module", [header, checksum, dscp, frame, scapy_layer])
def test_examples_in_the_documentation_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0


def test_examples_in_the_page_hold() -> None:
    result = doctest.testfile(str(ROOT / "docs" / "wire.md"), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 0
