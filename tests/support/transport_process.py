"""A process of the transport's tests: a server that sums what workers send, or a worker that checks the sum."""

from __future__ import annotations

import json
import socket
import sys
from ipaddress import ip_address

import numpy as np

from tensorexpress.addresses import GATEWAY_MAC
from tensorexpress.errors import NetworkError
from tensorexpress.framing import SEGMENT_OVERHEAD_BYTES
from tensorexpress.host.endpoint import Endpoint, EndpointSettings
from tensorexpress.host.flow import FlowSettings
from tensorexpress.host.links import KernelLink
from tensorexpress.host.tagging import Tag, traffic_class
from tensorexpress.host.wire_link import WireLink
from tensorexpress.wire.dscp import default_dscps
from tensorexpress.wire.frame import FrameEnd as Host
from tensorexpress.wire.header import Kind

MS = 10**9


def gradient(worker: int, iteration: int, size: int) -> np.ndarray:
    return np.random.default_rng([worker, iteration]).integers(-9, 9, size).astype(np.float32)


def open_link(given: dict):
    local = tuple(given["address"])
    if "wire" not in given:
        return KernelLink(local, offload=given["offload"])
    here, there = (tuple(address) for address in given["wire"])
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wire.bind(here)
    wire.connect(there)
    return WireLink(Host(GATEWAY_MAC, ip_address(local[0]), local[1]), GATEWAY_MAC, wire)


def run(given: dict) -> Endpoint:
    size, iterations, peers = given["size"], given["iterations"], given["peers"]
    got: dict[tuple[str, int], np.ndarray] = {}
    begun: dict[tuple[str, int], np.ndarray] = {}

    def buffer_for(source: str, tag: Tag, _: int) -> np.ndarray:
        return begun.setdefault((source, tag.iteration), np.empty(size, dtype=np.float32))

    settings = EndpointSettings(
        FlowSettings(given["payload_bytes"], SEGMENT_OVERHEAD_BYTES, window_bytes=200_000, rto_min_ps=50 * MS),
        silence_ps=given["silence_ms"] * MS,
    )
    endpoint = Endpoint(
        open_link(given),
        {name: tuple(address) for name, address in peers.items()},
        settings,
        session=given["session"],
        buffer_for=buffer_for,
        delivered=lambda message: got.update(
            {(message.source, message.tag.iteration): begun[message.source, message.tag.iteration]}
        ),
    )
    sent = []
    traffic = traffic_class(0, default_dscps(8))
    with endpoint:
        for iteration in range(iterations):
            if given["worker"] is not None:
                own = gradient(given["worker"], iteration, size)
                sent.append(endpoint.send("server", Tag(0, given["worker"], iteration, 0, traffic=traffic), own))
                endpoint.run(until=lambda: ("server", iteration) in got)  # noqa: B023 - it is done within the loop
                total = sum(gradient(worker, iteration, size) for worker in range(given["workers"]))
                assert (got["server", iteration] == total).all()
            else:
                endpoint.run(until=lambda: all((name, iteration) in got for name in peers))  # noqa: B023
                total = sum(got[name, iteration] for name in peers)
                for name in peers:
                    tag = Tag(0, 0, iteration, 0, kind=Kind.PARAMETERS, traffic=traffic)
                    sent.append(endpoint.send(name, tag, total))
        endpoint.leave()
    return endpoint


if __name__ == "__main__":
    try:
        finished = run(json.loads(sys.argv[1]))
    except NetworkError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    print(json.dumps(vars(finished.counters)))
