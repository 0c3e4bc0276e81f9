"""Clusters: hosts, switches and links; the usual topologies; routes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A full-duplex link between two named nodes, the same in both directions."""

    a: str
    b: str
    rate_bps: int
    delay_ps: int


@dataclass(frozen=True)
class Cluster:
    """Hosts, switches and the links between them. Directed link 2*i is links[i] from a to b, 2*i + 1 from b to a."""

    name: str
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    links: tuple[Link, ...]
    #: Largest IP packet in bytes.
    mtu: int = 1500
    #: Bytes a switch port can hold; 0 is no limit.
    buffer_bytes: int = 16_000_000
    #: Strict-priority queues per switch port.
    queues: int = 8
