"""Presets: what is known of the software of some transports, for hosts that nobody has measured.

Figures and their sources are in docs/software-path.md; what is marked as an estimate here is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

_US = 10**6
_GBPS = 10**9


@dataclass(frozen=True)
class Preset:
    """Values of keys of [transport], by the fields that they fill."""

    rate_share: float = 1.0
    stack_rate_bps: int = 0
    copy_rate_bps: int = 0
    message_ps: int = 0


#: By the name that `transport.preset` gives them.
PRESETS = {
    "none": Preset(),
    # One core's worth of Linux TCP (Cai et al., SIGCOMM 2021); a message's system calls and wake-ups are an estimate.
    "tcp-kernel": Preset(stack_rate_bps=42 * _GBPS, message_ps=10 * _US),
    # ps-lite over ZeroMQ, one van a host: BytePS's docs and maintainers (issue 237); copy and message are estimates.
    "ps-lite": Preset(stack_rate_bps=20 * _GBPS, copy_rate_bps=40 * _GBPS, message_ps=30 * _US),
    # TensorFlow's protobuf, 537 MB/s through two single-threaded copies (issue 10530); message is an estimate.
    "grpc": Preset(copy_rate_bps=8_600_000_000, message_ps=100 * _US),
    # ps-lite over RDMA, without copies (BytePS issue 179); message is an estimate.
    "rdma": Preset(stack_rate_bps=65 * _GBPS, message_ps=2 * _US),
}
