"""P4Runtime over gRPC: the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from tensorexpress.control_address import parse_address
from tensorexpress.program_engines import PYTHON
from tensorexpress.switch.compiling import compile_beside
from tensorexpress.switch.operations import DataPath, Notice
from tensorexpress.switch.p4runtime.listening import ServerTlsFiles, listen
from tensorexpress.switch.p4runtime.runtime import (
    LARGEST_NUMBER_OF_READS,
    LARGEST_NUMBER_OF_REQUESTS,
    RuntimeService,
)
from tensorexpress.switch.p4runtime.stream_places import LARGEST_NUMBER_OF_STREAMS
from tensorexpress.switch.program.budgets import PLAIN_MEMORY, SwitchMemory

#: Threads beside those of all calls that have a place: for calls that look for one.
_SPARE_THREADS = 16
#: Programs and batches may be larger than the 4 MiB that gRPC takes by default.
LARGEST_REQUEST_BYTES = 8 << 20
#: Calls that gRPC lets in, of all clients and of one connection.
_LARGEST_NUMBER_OF_CALLS = 512
_CALLS_OF_A_CONNECTION = 128
#: How often an idle connection is probed, and how long it may take to answer.
_KEEPALIVE_MS = 10_000


def _handlers(service: RuntimeService) -> Any:
    """Return the methods for gRPC; each takes an iterator of serialised messages, also where there is just one."""
    methods = {
        name: grpc.stream_unary_rpc_method_handler(getattr(service, name), response_serializer=_serialised)
        for name in ("Write", "SetForwardingPipelineConfig", "GetForwardingPipelineConfig", "Capabilities")
    }
    methods["Read"] = grpc.stream_stream_rpc_method_handler(service.Read)
    methods["StreamChannel"] = grpc.stream_stream_rpc_method_handler(service.StreamChannel)
    return grpc.method_handlers_generic_handler("p4.v1.P4Runtime", methods)


def _serialised(message: Any) -> bytes:
    return bytes(message.SerializeToString())


@dataclass(frozen=True)
class RuntimeServer:
    """A running P4Runtime server; `address` has the port that it really listens on."""

    address: str
    service: RuntimeService
    _server: Any
    _workers: futures.ThreadPoolExecutor

    def notify(self, notice: Notice) -> None:
        """Take a notice from the data path; never waits."""
        self.service.notify(notice)

    def stop(self) -> None:
        """End all streams and requests, and free the port."""
        self._server.stop(grace=None).wait()
        self._workers.shutdown()
        self.service.stop()

    def __enter__(self) -> RuntimeServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def serve(
    data_path: DataPath,
    address: str,
    *,
    device_id: int = 1,
    cpu_port: int | None = None,
    tls: ServerTlsFiles | None = None,
    insecure: bool = False,
    engine: str = PYTHON,
    lost: Callable[[], Mapping[int, int]] | None = None,
    memory: SwitchMemory = PLAIN_MEMORY,
) -> RuntimeServer:
    """Serve P4Runtime for a data path at HOST:PORT, where port 0 lets the system choose one, or at unix:PATH.

    `cpu_port` is the data plane's number of the port that P4Runtime calls the CPU (0xfffffffd in replicas), and `lost`
    returns how many frames each port has lost. Raises NetworkError when the address cannot be used, InputError when it
    is none, when a file of `tls` cannot be read, or when other machines could control the switch and neither `tls` nor
    `insecure` says that they may.
    """
    wanted = parse_address(address, f"--grpc {address!r}", any_port=True)
    workers = futures.ThreadPoolExecutor(
        LARGEST_NUMBER_OF_STREAMS + LARGEST_NUMBER_OF_READS + LARGEST_NUMBER_OF_REQUESTS + _SPARE_THREADS
    )
    server = grpc.server(
        workers,
        maximum_concurrent_rpcs=_LARGEST_NUMBER_OF_CALLS,
        options=[
            ("grpc.max_receive_message_length", LARGEST_REQUEST_BYTES),
            ("grpc.max_concurrent_streams", _CALLS_OF_A_CONNECTION),
            # Without this two servers could share a port, each getting some of the clients.
            ("grpc.so_reuseport", 0),
            # A primary whose machine has vanished is gone only when its stream is.
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
        ],
    )
    listening = listen(server, wanted, tls, insecure=insecure)
    verify = partial(compile_beside, engine=engine)
    service = RuntimeService(data_path, device_id=device_id, cpu_port=cpu_port, verify=verify, lost=lost, memory=memory)
    server.add_generic_rpc_handlers((_handlers(service),))
    server.start()
    return RuntimeServer(str(listening), service, server, workers)
