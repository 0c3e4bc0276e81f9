"""What packets cost a host: two endpoints in this process, with no network between them but loopback."""

from __future__ import annotations

from contextlib import ExitStack
from ipaddress import ip_address
from statistics import median

from tensorexpress.calibration import HostCost
from tensorexpress.framing import Framing
from tensorexpress.host.endpoint import Endpoint, EndpointSettings
from tensorexpress.host.flow import FlowSettings
from tensorexpress.host.links import Address, HostLink, KernelLink
from tensorexpress.host.tagging import Tag, monotonic_ps
from tensorexpress.host.wire_link import WireLink
from tensorexpress.units import PS_PER_SECOND
from tensorexpress.wire.frame import FrameEnd as Host
from tensorexpress.wire.header import UDP_PORT
from tensorexpress.wire.udp import lay_wire

#: Packets of each size; half a second together.
_PACKETS = 1000

_SMALL_BYTES = 4


def measure_host_cost(mtu: int, wires: bool) -> HostCost:
    """Return what it takes to send and to receive a packet over a socket, or over a UDP wire: a median of many."""
    framing = Framing(mtu)
    large = framing.payload_bytes
    small_ps, large_ps = (_one_way_ps(size, mtu, wires) for size in (_SMALL_BYTES, large))
    byte_ps = max(0.0, (large_ps - small_ps) / (large - _SMALL_BYTES))
    return HostCost(round(max(0.0, small_ps - byte_ps * (_SMALL_BYTES + framing.header_bytes))), round(byte_ps))


def _one_way_ps(size: int, mtu: int, wires: bool) -> float:
    """Return the median time from giving a message of one packet to one endpoint to its delivery by the other."""
    (one, one_address), (other, other_address) = _wire_pair() if wires else _socket_pair()
    framing = Framing(mtu)
    settings = EndpointSettings(FlowSettings(framing.payload_bytes, framing.header_bytes))
    delivered_ps: list[int] = []
    payload, times_ps = bytes(size), []
    with ExitStack() as links:
        sender = links.enter_context(Endpoint(one, {"other": other_address}, settings, session=1))
        receiver = links.enter_context(
            Endpoint(
                other,
                {"one": one_address},
                settings,
                session=1,
                delivered=lambda _: delivered_ps.append(monotonic_ps()),
            )
        )
        for number in range(_PACKETS):
            start_ps = monotonic_ps()
            sender.send("other", Tag(0, 0, number, 0), payload)
            sender.advance()
            while len(delivered_ps) <= number and monotonic_ps() < start_ps + PS_PER_SECOND:
                receiver.receive()
            times_ps.append(monotonic_ps() - start_ps)
            receiver.advance()
            sender.receive()
    return median(times_ps)


def _socket_pair() -> tuple[tuple[HostLink, Address], tuple[HostLink, Address]]:
    one, other = (KernelLink(("127.0.0.1", 0)) for _ in range(2))
    return (one, one.address), (other, other.address)


def _wire_pair() -> tuple[tuple[HostLink, Address], tuple[HostLink, Address]]:
    """Return the two ends of a wire, as if each were the other's switch."""
    here, there = lay_wire()
    ends = [Host(bytes([2, 0, 0, 0, 0, number]), ip_address(f"10.0.0.{number}")) for number in (1, 2)]
    return (
        (WireLink(ends[0], ends[1].mac, here), ("10.0.0.1", UDP_PORT)),
        (WireLink(ends[1], ends[0].mac, there), ("10.0.0.2", UDP_PORT)),
    )
