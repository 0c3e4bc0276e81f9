"""Captures: the tensor packets of recorded traffic, and what they say of tensors, queues and latencies."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, NamedTuple

from tensorexpress.errors import CaptureError, HeaderError
from tensorexpress.switch.pcap import capture_frames
from tensorexpress.text import grid
from tensorexpress.units import counted, format_size, format_time
from tensorexpress.wire.frame import read_frame
from tensorexpress.wire.header import HEADER_BYTES, Flag, Header, Kind, unpack

_TENSOR_KINDS = (Kind.GRADIENT, Kind.PARAMETERS)
_PS_PER_NS = 1000
_VLAN, _IPV4 = 0x8100, 0x0800


class TensorPacket(NamedTuple):
    """A packet of a tensor, and when it was seen."""

    time_ns: int
    dscp: int
    header: Header


@dataclass(frozen=True)
class Capture:
    """What a recording holds."""

    packets: list[TensorPacket]
    #: Acknowledgements and control packets.
    answers: int
    #: Packets to the tensor port that are no tensor packets.
    malformed: int
    #: All else.
    others: int


@dataclass(frozen=True)
class TensorRow:
    """What was seen of one tensor of a job, over all iterations and senders."""

    job: int
    tensor: int
    kind: str
    #: Queues that were asked for, and code points that were seen.
    queues: tuple[int, ...]
    dscps: tuple[int, ...]
    packets: int
    #: Bytes after the header.
    bytes: int
    #: Packets that were sent again.
    retransmitted: int
    #: Pairs of sender and iteration.
    transfers: int
    #: From the first packet of a transfer to its last.
    mean_latency_ps: int
    longest_latency_ps: int
    #: From one capture to the other, per packet; None without a second one, or if no packet is in both.
    mean_transit_ps: int | None = None
    longest_transit_ps: int | None = None
    #: Packets that the second capture does not hold.
    missing: int | None = None


def decode(frames: Iterable[tuple[int, bytes]]) -> Capture:
    """Return what recorded frames hold, each given with its time in nanoseconds.

    >>> from ipaddress import ip_address
    >>> from tensorexpress.wire.frame import FrameEnd, build_frame
    >>> ends = [FrameEnd(bytes(6), ip_address(f"10.0.0.{host}")) for host in (1, 2)]
    >>> decode([(5, build_frame(*ends, Header(1, 0, 0, 2, 0, 1).pack(), dscp=8))]).packets[0][:2]
    (5, 8)
    """
    packets: list[TensorPacket] = []
    answers = malformed = others = 0
    for time_ns, frame in frames:
        seen = read_frame(frame)
        headers = [seen.header] if seen.header is not None else list(_joined(frame)) if seen.to_tensor_port else []
        if not headers:
            malformed += seen.to_tensor_port
            others += not seen.to_tensor_port
        for header in headers:
            if header.kind in _TENSOR_KINDS:
                packets.append(TensorPacket(time_ns, seen.dscp or 0, header))
            else:
                answers += 1
    return Capture(packets, answers, malformed, others)


def decode_file(path: str | os.PathLike[str]) -> tuple[Capture, CaptureError | None]:
    """Return what the whole frames of a capture file hold, and what is wrong where it was cut off or damaged.

    A file without any whole frame is an error as it is.
    """
    damage: list[CaptureError] = []

    def whole_frames() -> Iterator[tuple[int, bytes]]:
        frames = 0
        try:
            for frame in capture_frames(path, cooked=True):
                frames += 1
                yield frame
        except CaptureError as error:
            if not frames:
                raise
            damage.append(CaptureError(f"{error}; shown is what stands before, {counted(frames, 'frame')}"))

    capture = decode(whole_frames())
    return capture, damage[0] if damage else None


def _joined(frame: bytes) -> Iterator[Header]:
    """Yield the headers of packets that a host recorded as one, before its network card would have cut them apart."""
    start = 18 if int.from_bytes(frame[12:14], "big") == _VLAN else 14
    is_ipv4 = int.from_bytes(frame[start - 2 : start], "big") == _IPV4
    udp = start + ((frame[start] & 15) * 4 if is_ipv4 else 40)
    rest = frame[udp + 8 : udp + int.from_bytes(frame[udp + 4 : udp + 6], "big")]
    headers = []
    while rest:
        size = HEADER_BYTES + int.from_bytes(rest[28:30], "big")
        try:
            headers.append(unpack(rest[:size]))
        except HeaderError:
            return
        rest = rest[size:]
    yield from headers


def tensor_rows(capture: Capture, later: Capture | None = None) -> list[TensorRow]:
    """Return a row for every tensor, by job, tensor and kind; `later` was recorded further on the packets' way."""
    by_tensor: dict[tuple[int, int, int], list[TensorPacket]] = defaultdict(list)
    for packet in capture.packets:
        by_tensor[packet.header.job, packet.header.tensor, packet.header.kind].append(packet)
    arrivals = None if later is None else _by_name(later.packets)
    return [_row(*key, packets, arrivals) for key, packets in sorted(by_tensor.items())]


_Name = tuple[int, int, int, int, int, int]


def _by_name(packets: Iterable[TensorPacket]) -> dict[_Name, list[int]]:
    """Return when each packet was seen; one that was sent again is there more than once."""
    times: dict[_Name, list[int]] = defaultdict(list)
    for packet in packets:
        times[_name(packet.header)].append(packet.time_ns)
    return times


def _name(header: Header) -> _Name:
    return header.job, header.worker, header.iteration, header.tensor, header.kind, header.chunk


def _row(
    job: int, tensor: int, kind: int, packets: list[TensorPacket], arrivals: Mapping[_Name, list[int]] | None
) -> TensorRow:
    spans: dict[tuple[int, int], list[int]] = defaultdict(list)
    for packet in packets:
        spans[packet.header.worker, packet.header.iteration].append(packet.time_ns)
    latencies = [(max(times) - min(times)) * _PS_PER_NS for times in spans.values()]
    row = TensorRow(
        job=job,
        tensor=tensor,
        kind=Kind(kind).name.lower(),
        queues=tuple(sorted({packet.header.queue for packet in packets})),
        dscps=tuple(sorted({packet.dscp for packet in packets})),
        packets=len(packets),
        bytes=sum(packet.header.payload_bytes for packet in packets),
        retransmitted=sum(bool(packet.header.flags & Flag.RETRANSMITTED) for packet in packets),
        transfers=len(spans),
        mean_latency_ps=round(fmean(latencies)),
        longest_latency_ps=max(latencies),
    )
    if arrivals is None:
        return row
    transits, missing = _transits(packets, arrivals)
    seen = {"mean_transit_ps": round(fmean(transits)), "longest_transit_ps": max(transits)} if transits else {}
    return TensorRow(**{**asdict(row), **seen, "missing": missing})


def _transits(packets: list[TensorPacket], arrivals: Mapping[_Name, list[int]]) -> tuple[list[int], int]:
    """Return how long packets took to the second capture, and how many it does not hold.

    Of a packet that was sent several times the n-th that was seen here is taken for the n-th that was seen there.
    """
    transits, missing = [], 0
    for name, sent in _by_name(packets).items():
        there = arrivals.get(name, [])
        transits += [(late - early) * _PS_PER_NS for early, late in zip(sent, there, strict=False)]
        missing += max(0, len(sent) - len(there))
    return transits, missing


def as_table(capture: Capture, rows: list[TensorRow]) -> str:
    """Return rows for a terminal, and below them what else was in the capture."""
    two = any(row.missing is not None for row in rows)
    titles = ["job", "tensor", "kind", "queue", "dscp", "packets", "bytes", "again", "transfers", "latency", "longest"]
    cells = [titles + ["transit", "longest", "missing"] * two, *(_cells(row, two) for row in rows)]
    rest = ", ".join(
        f"{counted(count, noun)}"
        for count, noun in (
            (capture.answers, "acknowledgement or control packet"),
            (capture.malformed, "malformed packet"),
            (capture.others, "other frame"),
        )
    )
    return "\n".join([*grid(cells), f"{counted(len(capture.packets), 'tensor packet')}; {rest}"])


def _cells(row: TensorRow, two: bool) -> list[str]:
    def time(ps: int | None) -> str:
        return "-" if ps is None else format_time(ps)

    cells = [
        str(row.job),
        str(row.tensor),
        row.kind,
        ",".join(map(str, row.queues)),
        ",".join(map(str, row.dscps)),
        str(row.packets),
        format_size(row.bytes),
        str(row.retransmitted),
        str(row.transfers),
        time(row.mean_latency_ps),
        time(row.longest_latency_ps),
    ]
    return cells + [time(row.mean_transit_ps), time(row.longest_transit_ps), str(row.missing)] * two


def as_json(capture: Capture, rows: list[TensorRow]) -> dict[str, Any]:
    """Return rows and counts as a JSON object."""
    return {
        "packets": len(capture.packets),
        "answers": capture.answers,
        "malformed": capture.malformed,
        "others": capture.others,
        "tensors": [asdict(row) for row in rows],
    }
