"""Capture files: both ways through our codec and scapy's, and what is said of files that are none."""

from __future__ import annotations

import doctest
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress.errors import CaptureError, InputError
from tensorexpress.switch import pcap as module
from tensorexpress.switch.pcap import PcapWriter, TimedFrame, file_header, parse_pcap, read_pcap, record, write_pcap

FRAMES = st.lists(
    st.builds(TimedFrame, st.integers(0, 2**32 * 10**9 - 1), st.binary(min_size=1, max_size=200)), max_size=20
)


def encoded(frames, order="<", ns_per_unit=1, link_type=1, snaplen=65535):
    """A pcap file in any of its forms, written without our codec."""
    magic = {1000: 0xA1B2C3D4, 1: 0xA1B23C4D}[ns_per_unit]
    content = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, link_type)
    for time_ns, data in frames:
        seconds, ns = divmod(time_ns, 10**9)
        content += struct.pack(order + "IIII", seconds, ns // ns_per_unit, len(data), len(data)) + data
    return content


@given(FRAMES)
def test_what_is_written_is_read_back(frames):
    assert list(parse_pcap(file_header() + b"".join(map(record, frames)))) == frames


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("ns_per_unit", [1, 1000])
@given(frames=FRAMES)
def test_both_byte_orders_and_both_resolutions_are_read(order, ns_per_unit, frames):
    expected = [TimedFrame(time_ns - time_ns % ns_per_unit, data) for time_ns, data in frames]
    assert list(parse_pcap(encoded(frames, order, ns_per_unit))) == expected


def test_golden_bytes():
    content = file_header() + record(TimedFrame(1_000_000_002, b"\x01\x02\x03"))
    assert content.hex() == (
        "4d3cb2a1" "0200" "0400" "00000000" "00000000" "00000400" "01000000"
        "01000000" "02000000" "03000000" "03000000" "010203"
    )  # fmt: skip


def test_scapy_reads_what_we_write_and_we_read_what_scapy_writes(tmp_path):
    scapy_utils = pytest.importorskip("scapy.utils")
    frames = [TimedFrame(1_700_000_000_123_456_789 + i, bytes([i + 1]) * (i + 14)) for i in range(20)]
    write_pcap(tmp_path / "ours.pcap", frames)
    with scapy_utils.RawPcapReader(str(tmp_path / "ours.pcap")) as reader:
        theirs = [TimedFrame(meta.sec * 10**9 + meta.usec, data) for data, meta in reader]
    assert theirs == frames
    for nano, order in ((True, "<"), (False, ">")):
        with scapy_utils.RawPcapWriter(
            str(tmp_path / "theirs.pcap"), linktype=1, nano=nano, endianness=order
        ) as writer:
            writer.write_header(None)
            for frame in frames:
                writer.write_packet(
                    frame.data, sec=frame.time_ns // 10**9, usec=frame.time_ns % 10**9 // (1 if nano else 1000)
                )
        unit = 1 if nano else 1000
        assert read_pcap(tmp_path / "theirs.pcap") == [TimedFrame(f.time_ns - f.time_ns % unit, f.data) for f in frames]


def test_a_capture_is_whole_whenever_it_was_flushed(tmp_path):
    with PcapWriter(tmp_path / "growing.pcap") as capture:
        assert read_pcap(tmp_path / "growing.pcap") == []
        capture.write(5, b"frame")
        capture.flush()
        assert read_pcap(tmp_path / "growing.pcap") == [TimedFrame(5, b"frame")]


WHOLE = encoded([TimedFrame(0, b"frame"), TimedFrame(0, b"frames")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with bytes none"),
        (b"\x7fELF" + WHOLE, "starts with bytes 7f454c46, not with the magic number of pcap or pcapng"),
        (b"\n\r\r\n" + WHOLE, "the section at byte 0 has no byte-order magic"),
        (WHOLE[:20], "the file header ends at byte 20 of 24"),
        (WHOLE[:30], "the record at byte 24 has no whole header"),
        (WHOLE[:42], "the frame at byte 40 has 2 of its 5 bytes"),
        (WHOLE[:-1], "the frame at byte 61 has 5 of its 6 bytes"),
        (WHOLE + b"\xff" * 16, "the record at byte 67 claims 4294967295 bytes"),
        (encoded([], link_type=113), "link type 113 at byte 20; accepted: 1 (Ethernet)"),
        (encoded([]) + struct.pack("<IIII", 0, 0, 2, 60) + b"ab", "holds 2 of its 60 bytes; capture whole frames"),
    ],
)
def test_a_file_that_is_no_capture_is_refused_with_the_byte(tmp_path, content, message):
    path = tmp_path / "bad.pcap"
    path.write_bytes(content)
    with pytest.raises(CaptureError) as refused:
        read_pcap(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)


@given(st.binary(max_size=120).map(lambda tail: WHOLE[:40] + tail))
def test_garbage_is_read_or_refused_and_nothing_else(content):
    try:
        frames = list(parse_pcap(content))
    except CaptureError:
        return
    assert sum(16 + len(data) for _, data in frames) + 24 == len(content)


def test_files_that_cannot_be_opened_say_so(tmp_path):
    with pytest.raises(CaptureError, match="No such file"):
        read_pcap(tmp_path / "missing.pcap")
    with pytest.raises(InputError, match="it is a directory"):
        PcapWriter(tmp_path)
    with pytest.raises(InputError, match="No space left on device"):
        PcapWriter("/dev/full")


def test_doctests():
    assert doctest.testmod(module).failed == 0
