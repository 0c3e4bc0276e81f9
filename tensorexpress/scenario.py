"""Scenarios: a cluster, the jobs on it, and what disturbs them; read from TOML."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorexpress.cluster import Cluster
from tensorexpress.policy import Policy
from tensorexpress.workload import Workload


@dataclass(frozen=True)
class Transport:
    """The reliable windowed transport between hosts."""

    #: Most bytes a flow (a pair of hosts of one job) may have unacknowledged; 0 is no limit.
    window_bytes: int = 1_000_000
    #: Bytes of the window at the start and after nothing has been lost; 0 starts with the whole window.
    initial_window_bytes: int = 0
    #: Packets a receiver takes before it acknowledges; gaps, marks and ends of slices are acknowledged at once.
    ack_every: int = 4
    #: False leaves acknowledgements out: an idealisation for lossless studies against closed forms.
    acks: bool = True
    #: Least retransmission time-out; the actual one follows the measured round trip.
    rto_min_ps: int = 10 * 10**9
    #: Bytes in a switch queue from which packets are marked (ECN); 0 is off.
    ecn_bytes: int = 0
    #: Bytes on the wire that are not tensor: preamble, gap, Ethernet, IP, UDP and our header.
    header_bytes: int = 98
    #: Bytes of an acknowledgement on the wire.
    ack_bytes: int = 118


@dataclass(frozen=True)
class Job:
    """One training job: a workload on some hosts."""

    name: str
    workload: Workload
    #: Indices of the hosts that compute.
    workers: tuple[int, ...]
    #: Indices of the hosts that sum; empty for a ring. A host may be both.
    servers: tuple[int, ...] = ()
    #: "ps" (parameter servers) or "ring" (ring all-reduce).
    architecture: str = "ps"
    #: Tensors of at least this many bytes are split over all servers; smaller ones stay on one.
    shard_bytes: int = 1_000_000
    #: Bit/s at which a server sums; 0 is at once.
    sum_rate_bps: int = 0
    #: When the first iteration starts.
    start_ps: int = 0


@dataclass(frozen=True)
class Background:
    """Open-loop traffic from one host to another."""

    src: int
    dst: int
    rate_bps: int
    packet_bytes: int = 1500
    #: "constant" or "poisson" gaps between packets.
    pattern: str = "poisson"


@dataclass(frozen=True)
class Scenario:
    """Everything a prediction depends on but the policy."""

    name: str
    cluster: Cluster
    jobs: tuple[Job, ...]
    transport: Transport = Transport()
    background: tuple[Background, ...] = ()
    #: Relative standard deviation of compute times, drawn per worker and iteration.
    jitter: float = 0.0
    #: How many times slower the named workers compute, as (host, factor).
    stragglers: tuple[tuple[int, float], ...] = ()
    #: Probability that a packet is lost on a link.
    loss: float = 0.0
    seed: int = 1
    #: Iterations measured, after `warmup` ones that are not.
    iterations: int = 2
    warmup: int = 1
    policies: tuple[Policy, ...] = field(default=())
