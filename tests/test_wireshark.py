"""The Lua dissector shows every field of the header as the library wrote it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tensorexpress.framing import SUM_BYTES, WORKERS_BYTES
from tensorexpress.switch.pcap import TimedFrame, write_pcap
from tensorexpress.wire import DISSECTOR, header
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.header import Flag, Header, Kind
from tensorexpress.wire.sum_header import SumHeader

ENDS = {
    version: [FrameEnd(bytes(6), ip_address(address)) for address in addresses]
    for version, addresses in {4: ("10.0.0.1", "10.0.0.2"), 6: ("fd54:58::1", "fd54:58::2")}.items()
}

#: Field of the header -> the values at its ends.
ENDS_OF_FIELDS = {
    "job": (0, 0xFFFF),
    "worker": (0, 0xFFFF),
    "iteration": (0, 0xFFFFFFFF),
    "tensor": (0, 0xFFFF),
    "chunk": (0, 0xFFFFFFFF),
    "chunks": (0, 0xFFFFFFFF),
    "queue": (0, 0xFF),
    "slack_us": (-(2**31), 2**31 - 1),
    "kind": (0, 15),
    "flags": (0, 0xFF),
}


def dissected(path: Path, payloads: list[bytes], version: int = 4) -> list[dict[str, Any]]:
    """Return the layers that tshark sees in frames with these UDP payloads."""
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    write_pcap(path, [TimedFrame(0, build_frame(*ENDS[version], payload)) for payload in payloads])
    command = ["tshark", "-X", f"lua_script:{DISSECTOR}", "-r", str(path), "-T", "json", "--no-duplicate-keys"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return [frame["_source"]["layers"] for frame in json.loads(ran.stdout)]


def headers() -> list[Header]:
    random = Random(11)
    middle = {name: sum(ends) // 2 for name, ends in ENDS_OF_FIELDS.items()}
    made = [Header(**{**middle, name: value}) for name, ends in ENDS_OF_FIELDS.items() for value in ends]
    for _ in range(100):
        made.append(Header(**{name: random.randint(*ends) for name, ends in ENDS_OF_FIELDS.items()}))
    return made


@pytest.mark.parametrize("version", [4, 6])
def test_every_field_is_what_the_library_wrote(version: int, tmp_path: Path) -> None:
    sent = [Header(**{**asdict(one), "payload_bytes": size}) for size, one in enumerate(headers())]
    layers = dissected(tmp_path / "frames.pcap", [one.pack() + bytes(one.payload_bytes) for one in sent], version)
    for one, found in zip(sent, layers, strict=True):
        shown = found["tensorexpress"]
        assert {name: int(shown[f"tensorexpress.{name}"], 0) for name in asdict(one)} == asdict(one)
        rest = {
            name: int(shown[f"tensorexpress.{name}"], 0) for name in ("magic", "version", "reserved", "reserved_tail")
        }
        assert rest == {"magic": header.MAGIC, "version": header.VERSION, "reserved": 0, "reserved_tail": 0}
        bits = shown["tensorexpress.flags_tree"]
        for flag in Flag:
            assert flag.name is not None
            assert bits[f"tensorexpress.flags.{flag.name.lower()}"] == str(int(bool(one.flags & flag)))
        assert "_ws.expert" not in json.dumps(shown)
        assert int(found["data"]["data.len"]) == one.payload_bytes if one.payload_bytes else "data" not in found


def test_what_is_no_tensor_packet_is_left_alone_or_marked(tmp_path: Path) -> None:
    whole = Header(1, 2, 3, tensor=4, chunk=5, chunks=6, payload_bytes=10).pack() + bytes(10)
    other_magic, other_version = b"\0\0" + whole[2:], whole[:2] + b"\x20" + whole[3:]
    layers = dissected(tmp_path / "frames.pcap", [other_magic, other_version, whole[:31], whole[:-1], whole])
    assert ["tensorexpress" in one for one in layers] == [False, False, False, True, True]
    marked = ["tensorexpress.wrong_length" in json.dumps(one) for one in layers]
    assert marked == [False, False, False, True, False]


def test_the_list_of_packets_names_kinds_and_numbers(tmp_path: Path) -> None:
    made = [
        Header(1, 2, 0xFFFFFFFF, tensor=4, chunk=5, chunks=6, slack_us=-7, kind=kind, queue=3) for kind in (*Kind, 9)
    ]
    dissected(tmp_path / "frames.pcap", [one.pack() for one in made])
    command = ["tshark", "-X", f"lua_script:{DISSECTOR}", "-r", str(tmp_path / "frames.pcap")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    kinds = ["gradient", "parameters", "acknowledgement", "control", "sum", "part", "unknown kind"]
    for line, kind in zip(lines, kinds, strict=True):
        assert line.endswith(
            f"TensorExpress 74 {kind} job 1 worker 2 iteration 4294967295 tensor 4 chunk 5/6 queue 3 slack -7 us"
        )


def test_constants_are_those_of_the_codec() -> None:
    text = DISSECTOR.read_text()
    constants = {name: int(value, 0) for name, value in re.findall(r"^local ([A-Z_]+) = (\w+)$", text, re.MULTILINE)}
    wanted = {name: getattr(header, name) for name in ("UDP_PORT", "MAGIC", "VERSION", "HEADER_BYTES")}
    sums = {"KIND_SUM": Kind.SUM, "KIND_PART": Kind.PART, "SUM_BYTES": SUM_BYTES, "WORKERS_BYTES": WORKERS_BYTES}
    assert constants == wanted | sums


@pytest.mark.parametrize(("kind", "workers"), [(Kind.SUM, 0), (Kind.PART, 2**63 + 5)])
def test_what_switches_sum_is_shown_as_the_library_wrote_it(tmp_path: Path, kind: Kind, workers: int) -> None:
    sums = SumHeader(
        2**32 - 1, turn=9, slot=513, check=65520, exponent=-2, needed=3, culprit=4, flags=2, workers=workers
    )
    payload = sums.pack() + bytes(8)
    (found,) = dissected(
        tmp_path / "frames.pcap", [Header(1, 2, 3, 4, 5, 6, kind=kind, payload_bytes=len(payload)).pack() + payload]
    )
    assert int(found["tensorexpress"].get("tensorexpress.sum.workers", "0"), 0) == workers
    shown = {name: found["tensorexpress"][f"tensorexpress.sum.{name}"] for name in ("epoch", "turn", "slot", "check")}
    assert {name: int(value) for name, value in shown.items()} == {name: getattr(sums, name) for name in shown}
    assert found["tensorexpress"]["tensorexpress.sum.exponent"] == "126"
    assert found["tensorexpress"]["tensorexpress.sum.overflow"] == "1"
    assert int(found["data"]["data.len"]) == 8
