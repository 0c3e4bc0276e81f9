"""Takes frames through a program without queues: what the pipeline's own tests need of a switch."""

from __future__ import annotations

from pathlib import Path

from support.twins import TwinPipelines
from tensorexpress.switch.packet import DROP_PORT, SwitchPacket
from tensorexpress.switch.program.pipeline import Pipeline

BUILD = Path(__file__).parents[1] / "programs" / "build"

#: The programs that the pipeline's tests run; each covers a group of features.
PROGRAMS = sorted(path.stem for path in BUILD.glob("*.json"))


def document(name: str) -> bytes:
    return (BUILD / f"{name}.json").read_bytes()


def load(name: str) -> Pipeline:
    """Return a program that every packet passes in Python and in native code."""
    return TwinPipelines(document(name))


def ingress(pipeline: Pipeline, frame: bytes, port: int = 0, now_us: int = 0) -> SwitchPacket:
    packet = SwitchPacket(frame, port, now_us)
    pipeline.ingress(packet)
    return packet


def egress(pipeline: Pipeline, packet: SwitchPacket) -> bytes | None:
    """Return the bytes that leave, None if egress drops the packet."""
    packet.egress_port = packet.egress_spec
    pipeline.egress(packet)
    return None if packet.egress_spec == DROP_PORT else pipeline.deparse(packet)


def through(pipeline: Pipeline, frame: bytes, port: int = 0, now_us: int = 0) -> bytes | None:
    """Return what a frame leaves as, None if it is dropped."""
    packet = ingress(pipeline, frame, port, now_us)
    return None if packet.egress_spec == DROP_PORT else egress(pipeline, packet)
