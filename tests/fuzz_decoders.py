"""Random and mutated byte strings for everything that reads bytes from the network or from captures.

SegmentRun by hand with as many as there is time for: python tests/fuzz_decoders.py --count 10000000
"""

from __future__ import annotations

import argparse
import struct
import time
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from random import Random

from tensorexpress.errors import CaptureError, HeaderError
from tensorexpress.host import captures
from tensorexpress.host.segments import SegmentBuffer, SegmentRun
from tensorexpress.switch.pcap import TimedFrame, file_header, parse_pcap, record
from tensorexpress.wire.frame import FrameEnd, build_frame, read_frame
from tensorexpress.wire.header import Header, Kind, is_header, unpack, unpack_many
from tensorexpress.wire.sum_header import read_sum

_ENDS = {
    version: [FrameEnd(bytes(6), ip_address(f"{prefix}{host}")) for host in (1, 2)]
    for version, prefix in ((4, "10.0.0."), (6, "fd00::"))
}


def seeds() -> list[bytes]:
    """Return good input of every kind, to be damaged."""
    tagged = Header(1, 2, 3, tensor=4, chunk=5, chunks=6, payload_bytes=8).pack() + b"12345678"
    run = SegmentRun(0, 0, 1, 2, 3, 4, 0, 0, 4, -1, 2, 99, 0, 10, 20, 5, 0, 8, segments=5)
    segments = bytes(SegmentBuffer(500).write(run, b"0123456789"))
    frames = [build_frame(*ends, data) for ends in _ENDS.values() for data in (tagged, segments, tagged * 3)]
    summed = Header(1, 2, 3, tensor=4, chunk=5, chunks=6, payload_bytes=1040, kind=Kind.SUM).pack() + bytes(1040)
    parts = Header(1, 2, 3, tensor=4, chunk=5, chunks=6, payload_bytes=1048, kind=Kind.PART).pack() + b"\1" * 1048
    tagged_vlan = frames[0][:12] + b"\x81\0\0\7" + frames[0][12:]
    capture = file_header() + b"".join(record(TimedFrame(number, frame)) for number, frame in enumerate(frames[:2]))
    return [
        tagged,
        segments,
        summed,
        parts,
        *frames,
        tagged_vlan,
        capture,
        *map(_pcapng, "<>", (1, 276), (frames[:2], frames[2:4])),
    ]


def _pcapng(order: str, link_type: int, frames: list[bytes]) -> bytes:
    """Return a capture in pcapng: a section, an interface with a resolution, frames, and a block to be skipped."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        length = struct.pack(order + "I", len(body) + 12)
        return struct.pack(order + "I", kind) + length + body + length

    section = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    interface = block(1, struct.pack(order + "HHIHHB3xHH", link_type, 0, 0, 9, 1, 9, 0, 0))
    packets = [block(6, struct.pack(order + "IIIII", 0, 0, 5, len(data), len(data)) + data) for data in frames]
    return section + interface + b"".join(packets) + block(5, bytes(12))


def damaged(random: Random, good: list[bytes]) -> bytes:
    """Return random bytes, or good ones with something flipped, cut, inserted, repeated or joined."""
    if random.random() < 0.1:
        return random.randbytes(random.randrange(120))
    data = bytearray(random.choice(good))
    for _ in range(random.choice((0, 1, 1, 2, 8))):
        at = random.randrange(len(data) + 1)
        match random.randrange(6):
            case 0 | 1 if at < len(data):
                data[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
            case 2:
                del data[at:]
            case 3:
                data[at:at] = random.randbytes(random.randrange(9))
            case 4:
                del data[at : at + random.randrange(9)]
            case 5:
                data += random.choice(good)[:at]
    return bytes(data)


_BUFFER = SegmentBuffer(2**16)


def _read_segments(data: bytes) -> None:
    _BUFFER.view[: len(data)] = data
    _BUFFER.read(0, len(data), 66)


def _unpack_many(data: bytes) -> None:
    for stride in (32, 40):
        is_header(unpack_many(data, stride_bytes=stride))


DECODERS: dict[str, Callable[[bytes], object]] = {
    "unpack": unpack,
    "unpack_many": _unpack_many,
    "read_sum": read_sum,
    "read_frame": read_frame,
    "read segments": _read_segments,
    "captures": lambda data: captures.tensor_rows(captures.decode([(0, data)])),
    "parse_pcap": lambda data: captures.tensor_rows(captures.decode(parse_pcap(data, cooked=True))),
}


def fuzz(count: int, seed: int) -> Counter[str]:
    """Give `count` byte strings to all decoders; return how often each took one, or refused it with its own error.

    Any other exception leaves here, with the bytes that caused it.
    """
    random, good, seen = Random(seed), seeds(), Counter[str]()
    for _ in range(count):
        data = damaged(random, good)
        for name, decoder in DECODERS.items():
            try:
                decoder(data)
            except (HeaderError, CaptureError):
                seen[f"{name} refused"] += 1
            except Exception as error:
                raise AssertionError(f"{name} fails with {error!r} on {data.hex()}") from error
            else:
                seen[f"{name} took"] += 1
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="byte strings (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    start = time.monotonic()
    for what, count in sorted(fuzz(arguments.count, arguments.seed).items()):
        print(f"{what:24} {count:>12,}")
    print(
        f"{arguments.count:,} byte strings in {time.monotonic() - start:.0f} s, seed {arguments.seed}: no other error"
    )


if __name__ == "__main__":
    main()
