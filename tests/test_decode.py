"""tensorexpress decode: captures as a table, and decoders that survive every byte string."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from click.testing import CliRunner
from fuzz_decoders import DECODERS, fuzz

from tensorexpress.cli import main
from tensorexpress.host import captures
from tensorexpress.host.captures import decode, tensor_rows
from tensorexpress.switch.pcap import TimedFrame, write_pcap
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.header import Flag, Header, Kind

ENDS = [FrameEnd(bytes(6), ip_address(f"10.0.0.{host}"), 21592) for host in (1, 2)]
US = 1000


def packet(chunk: int, payload: int = 100, dscp: int = 56, **changes: int) -> bytes:
    values = {"job": 0, "worker": 1, "iteration": 0, "tensor": 0, "chunks": 3, "queue": 0, **changes}
    header = Header(chunk=chunk, payload_bytes=payload, **values)
    return build_frame(*ENDS, header.pack() + bytes(payload), dscp=dscp)


SENT = [
    TimedFrame(0, packet(0)),
    TimedFrame(10 * US, packet(1)),
    TimedFrame(30 * US, packet(2, payload=50)),
    TimedFrame(40 * US, packet(1, flags=Flag.RETRANSMITTED)),
    TimedFrame(100 * US, packet(0, iteration=1)),
    TimedFrame(50 * US, packet(0, tensor=3, queue=7, dscp=0, kind=Kind.PARAMETERS)),
    TimedFrame(60 * US, packet(0, kind=Kind.ACK)),
    TimedFrame(61 * US, build_frame(*ENDS, b"not ours")),
    TimedFrame(62 * US, b"neither"),
]
ARRIVED = [
    TimedFrame(time_ns + 5 * US, data) for number, (time_ns, data) in enumerate(SENT) if number not in (1, 4)
]  # fmt: skip


def test_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(captures).failed == 0


def test_a_row_says_what_was_seen_of_a_tensor() -> None:
    first, second = tensor_rows(decode(SENT))
    assert (first.job, first.tensor, first.kind, first.queues, first.dscps) == (0, 0, "gradient", (0,), (56,))
    assert (first.packets, first.bytes, first.retransmitted, first.transfers) == (5, 450, 1, 2)
    assert (first.mean_latency_ps, first.longest_latency_ps) == (20_000_000, 40_000_000)
    assert (second.tensor, second.kind, second.queues, second.dscps) == (3, "parameters", (7,), (0,))
    assert first.missing is None


def test_a_second_capture_tells_how_long_packets_took_and_which_are_missing() -> None:
    first, second = tensor_rows(decode(SENT), decode(ARRIVED))
    # Of chunk 1, sent twice, the first that arrived counts as the first that was sent.
    assert (first.longest_transit_ps, first.missing) == (35_000_000, 2)
    assert (second.mean_transit_ps, second.missing) == (5_000_000, 0)


def test_what_is_no_tensor_packet_is_counted() -> None:
    capture = decode(SENT)
    assert (len(capture.packets), capture.answers, capture.malformed, capture.others) == (6, 1, 1, 1)


def test_packets_that_a_host_recorded_as_one_are_told_apart() -> None:
    headers = [Header(0, 1, 0, tensor=0, chunk=chunk, chunks=3, payload_bytes=20) for chunk in range(3)]
    joined = build_frame(*ENDS, b"".join(header.pack() + bytes(20) for header in headers))
    assert [packet.header for packet in decode([(7, joined)]).packets] == headers
    cut = [*headers[:2], replace(headers[2], payload_bytes=19)]
    damaged = build_frame(*ENDS, b"".join(header.pack() + bytes(20) for header in cut))
    assert decode([(7, damaged)]).malformed == 1


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["decode", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_table_and_the_json_say_the_same(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("sent.pcap", "arrived.pcap")]
    for name, frames in zip(files, (SENT, ARRIVED), strict=True):
        write_pcap(name, frames)
    code, output, _ = run(*files)
    assert code == 0
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[0] == (
        "job tensor kind queue dscp packets bytes again transfers latency longest transit longest missing"
    )  # fmt: skip
    assert lines[1] == "0 0 gradient 0 56 5 450 B 1 2 20 us 40 us 15 us 35 us 2"
    assert lines[-1] == (
        "6 tensor packets; 1 acknowledgement or control packet, 1 malformed packet, 1 other frame"
    )  # fmt: skip
    code, output, _ = run(*files, "--json", "-")
    document = json.loads(output)
    assert [row["packets"] for row in document["tensors"]] == [5, 1]
    assert document["tensors"][0]["missing"] == 2


def test_an_empty_capture_is_an_empty_table(tmp_path: Path) -> None:
    write_pcap(tmp_path / "empty.pcap", [])
    code, output, _ = run(str(tmp_path / "empty.pcap"))
    assert code == 0
    assert len(output.splitlines()) == 2


@pytest.mark.parametrize("content", [None, b"", b"no pcap at all", b"\n\r\r\n" + bytes(40)])
def test_what_is_no_capture_is_refused_on_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.pcap"
    if content is not None:
        path.write_bytes(content)
    code, output, errors = run(str(path))
    assert (code, output) == (2, "")
    assert errors.startswith("tensorexpress: error: ")
    assert errors.count("\n") == 1


def test_decoders_raise_nothing_but_their_own_errors() -> None:
    """A bounded run; `python tests/fuzz_decoders.py --count 10000000` is the long one."""
    seen = fuzz(10_000, seed=20)
    assert all(seen[f"{name} took"] for name in DECODERS)
    assert all(seen[f"{name} refused"] for name in ("unpack", "unpack_many", "parse_pcap"))
