"""Captures in pcapng and of Linux cooked frames: as scapy writes them, as the format allows them, and damaged."""

from __future__ import annotations

import doctest
import io
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from test_decode import ARRIVED, SENT

from tensorexpress.cli import main
from tensorexpress.errors import CaptureError
from tensorexpress.host.captures import decode, decode_file, tensor_rows
from tensorexpress.switch import captured
from tensorexpress.switch.captured import COOKED, COOKED_2, ETHERNET
from tensorexpress.switch.pcap import TimedFrame, parse_pcap, read_pcap, write_pcap

FRAMES = st.lists(st.builds(TimedFrame, st.integers(0, 2**60), st.binary(min_size=1, max_size=99)), max_size=9)


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def section(order: str = "<") -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str = "<", link_type: int = ETHERNET, resolution: int = 9, offset_s: int = 0) -> bytes:
    options = struct.pack(order + "HHB3x", 9, 1, resolution) + struct.pack(order + "HHq", 14, 8, offset_s)
    return block(order, 1, struct.pack(order + "HHI", link_type, 0, 0) + options + bytes(4))


def packet(order: str, ticks: int, data: bytes, number: int = 0, there_were: int | None = None) -> bytes:
    sizes = (len(data), len(data) if there_were is None else there_were)
    head = struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, *sizes)
    return block(order, 6, head + data + bytes(-len(data) % 4) + struct.pack(order + "HHI", 1, 0, 0))


@pytest.mark.parametrize("order", ["<", ">"])
@given(frames=FRAMES)
def test_both_byte_orders_are_read(order: str, frames: list[TimedFrame]) -> None:
    content = section(order) + interface(order) + b"".join(packet(order, *frame) for frame in frames)
    assert list(parse_pcap(content)) == frames


@pytest.mark.parametrize(
    ("resolution", "ticks", "time_ns"),
    [
        (9, 5, 5),
        (6, 5, 5000),
        (0, 5, 5 * 10**9),
        (12, 5000, 5),
        (0x80 | 10, 1024, 10**9),
        (0x80 | 32, 2**31, 5 * 10**8),
    ],
)
def test_time_stamps_are_of_the_resolution_that_the_interface_says(resolution: int, ticks: int, time_ns: int) -> None:
    content = section() + interface(resolution=resolution, offset_s=7) + packet("<", ticks, b"frame")
    assert list(parse_pcap(content)) == [TimedFrame(time_ns + 7 * 10**9, b"frame")]


def test_sections_of_both_orders_several_interfaces_and_unknown_blocks_go_together() -> None:
    content = (
        section() + interface() + interface(resolution=6) + block("<", 5, bytes(20)) + packet("<", 1, b"a", 1)
        + section(">") + block(">", 0x0BAD, b"custom") + interface(">") + packet(">", 2, b"b")
    )  # fmt: skip
    assert list(parse_pcap(content)) == [TimedFrame(1000, b"a"), TimedFrame(2, b"b")]


def test_packets_in_the_two_older_blocks_are_read() -> None:
    old = block("<", 2, struct.pack("<HHIIII", 0, 0, 0, 8, 3, 3) + b"old")
    simple = block("<", 3, struct.pack("<I", 6) + b"simple")
    assert list(parse_pcap(section() + interface() + old + simple)) == [TimedFrame(8, b"old"), TimedFrame(0, b"simple")]


def cooked(link_type: int, ethernet: bytes) -> bytes:
    sender, protocol, rest = ethernet[6:12], ethernet[12:14], ethernet[14:]
    if link_type == COOKED:
        return struct.pack("!HHH", 0, 1, 6) + sender + bytes(2) + protocol + rest
    return protocol + struct.pack("!HIHBB", 0, 3, 1, 0, 6) + sender + bytes(2) + rest


@pytest.mark.parametrize("link_type", [COOKED, COOKED_2])
def test_cooked_frames_hold_the_same_tensors_and_are_not_taken_for_ethernet(link_type: int, tmp_path: Path) -> None:
    content = section() + interface(link_type=link_type)
    content += b"".join(packet("<", time_ns, cooked(link_type, frame)) for time_ns, frame in SENT)
    (tmp_path / "any.pcapng").write_bytes(content)
    found, damage = decode_file(tmp_path / "any.pcapng")
    assert damage is None
    assert tensor_rows(found) == tensor_rows(decode(SENT))
    with pytest.raises(CaptureError, match=rf"link type {link_type} .*accepted: 1 \(Ethernet\)$"):
        read_pcap(tmp_path / "any.pcapng")


@pytest.mark.parametrize("writer", ["PcapNgWriter", "PcapWriter"])
@pytest.mark.parametrize("layer", ["Ether", "CookedLinux", "CookedLinuxV2"])
def test_what_scapy_writes_is_read(writer: str, layer: str, tmp_path: Path) -> None:
    layers, utils = pytest.importorskip("scapy.layers.l2"), pytest.importorskip("scapy.utils")
    path = tmp_path / "scapy"
    with getattr(utils, writer)(str(path)) as capture:
        for time_ns, frame in SENT[:-1]:  # the last is no frame for scapy either
            ethernet = layers.Ether(frame)
            if layer != "Ether":
                head = getattr(layers, layer)(proto=ethernet.type, lladdrtype=1, lladdrlen=6, src=ethernet.src)
                ethernet = head / ethernet.payload
            ethernet.time = time_ns / 10**9
            capture.write(ethernet)
    found, damage = decode_file(path)
    assert damage is None
    assert tensor_rows(found) == tensor_rows(decode(SENT[:-1]))


GOOD = section() + interface() + packet("<", 1, b"frame") + packet("<", 2, b"frames")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD[:6], "the block at byte 0 has no whole header"),
        (GOOD[:20], "the block at byte 0 has 20 of its 28 bytes; the file was cut off"),
        (GOOD[:-1], "the block at byte 120 has 47 of its 48 bytes; the file was cut off"),
        (GOOD[:-4] + bytes(4), "the block at byte 120 does not end with its length of 48"),
        (GOOD + struct.pack("<II", 6, 2**32 - 4), "claims 4294967292 bytes; accepted: at most"),
        (GOOD + struct.pack("<II", 99, 2**32 - 4), "has 8 of its 4294967292 bytes; the file was cut off"),
        (GOOD + struct.pack("<II", 99, 13), "the block at byte 168 claims 13 bytes"),
        (GOOD + packet("<", 3, b"x", number=7), "is of interface 7; described are 1"),
        (GOOD + packet("<", 3, b"x", there_were=9), "holds 1 of its 9 bytes; capture whole frames"),
        (GOOD + block("<", 6, struct.pack("<IIIII", 0, 0, 0, 60, 60)), "claims 60 bytes of a frame of 60"),
        (GOOD + block("<", 6, b"tiny"), "has no whole header"),
        (GOOD + block("<", 1, b"tiny"), "the interface at byte 168 has 4 bytes"),
        (section() + interface(resolution=0) + packet("<", 2**32, b"x"), "is of second 4294967296; accepted: 0 to"),
        (section() + interface(offset_s=-1) + packet("<", 1, b"x"), "is of second -1; accepted: 0 to 4294967295"),
        (section() + interface() * 4097, "is interface 4096 and one more"),
        (section() + interface(link_type=127) + packet("<", 1, b"x"), "link type 127 at byte 72"),
    ],
)
def test_a_damaged_file_is_refused_with_the_byte(content: bytes, message: str) -> None:
    with pytest.raises(CaptureError) as refused:
        list(parse_pcap(content))
    assert message in str(refused.value)


def test_a_cut_file_is_shown_up_to_where_it_was_cut(tmp_path: Path) -> None:
    write_pcap(tmp_path / "sent.pcap", SENT)
    write_pcap(tmp_path / "arrived.pcap", ARRIVED)
    whole = (tmp_path / "sent.pcap").read_bytes()
    (tmp_path / "sent.pcap").write_bytes(whole[:-3])
    write_pcap(tmp_path / "before.pcap", SENT[:-1])
    files = [str(tmp_path / name) for name in ("sent.pcap", "arrived.pcap", "before.pcap")]
    cut, before = (CliRunner().invoke(main, ["decode", name, files[1]]) for name in (files[0], files[2]))
    assert (before.exit_code, cut.exit_code) == (0, 2)
    assert cut.stdout == before.stdout
    assert cut.stderr.startswith(f"tensorexpress: error: {files[0]}: the frame at byte {len(whole) - 7} has 4 of its 7")
    assert cut.stderr.endswith("shown is what stands before, 8 frames\n")
    as_json = CliRunner().invoke(main, ["decode", files[0], "--json", "-"])
    assert (as_json.exit_code, as_json.stdout[0]) == (2, "{")


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="no limit of memory")
def test_a_file_that_claims_gigabytes_takes_little_memory(tmp_path: Path) -> None:
    hostile = {
        "record": struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 2**32 - 1, 1)
        + struct.pack("<IIII", 0, 0, *[2**31] * 2),
        "block": GOOD + struct.pack("<II", 6, 2**32 - 4),
        "unknown": GOOD + struct.pack("<II", 99, 2**32 - 4),
    }
    program = (
        "import resource, sys\n"
        "from tensorexpress.errors import CaptureError\n"
        "from tensorexpress.switch.pcap import read_pcap\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, used + 2**26))\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        read_pcap(path)\n"
        "    except CaptureError as error:\n"
        "        print(error)\n"
    )
    for name, content in hostile.items():
        (tmp_path / name).write_bytes(content)
        with (tmp_path / name).open("r+b") as file:
            file.truncate(2**28)  # sparse: it takes no room, and reads as zeros
    paths = [str(tmp_path / name) for name in hostile]
    ran = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True)
    assert ran.stderr == ""
    assert len(ran.stdout.splitlines()) == 3


def test_frames_come_one_by_one_however_long_the_file_is() -> None:
    class Endless(io.RawIOBase):
        """A file of frames without end."""

        def __init__(self) -> None:
            self.rest = section() + interface()

        def read(self, count: int = -1) -> bytes:
            self.rest = self.rest or packet("<", 1, b"frame")
            given, self.rest = self.rest[:count], self.rest[count:]
            return given

    from tensorexpress.switch import pcap

    frames = pcap._frames(captured.Source(Endless()), cooked=False)  # type: ignore[arg-type]
    assert [next(frames).data for _ in range(1000)] == [b"frame"] * 1000


def test_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(captured).failed == 0
