"""P4Runtime over gRPC: the server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import grpc
from p4.v1 import p4runtime_pb2

from tensorexpress.control_address import parse_address
from tensorexpress.switch.operations import DataPath, Notice
from tensorexpress.switch.p4runtime.listening import TlsFiles, listen
from tensorexpress.switch.p4runtime.runtime import (
    LARGEST_NUMBER_OF_READS,
    LARGEST_NUMBER_OF_STREAMS,
    RuntimeService,
    parse,
    refusing,
)

#: Threads beside those that streams and reads can hold: for requests that end by themselves.
_OTHER_REQUESTS = 16
#: Programs are larger than the 4 MiB that gRPC takes by default.
_LARGEST_REQUEST_BYTES = 64 << 20
#: How often an idle connection is probed, and how long it may take to answer.
_KEEPALIVE_MS = 10_000


def _handlers(service: RuntimeService) -> Any:
    """Return the methods for gRPC.

    They parse requests themselves: gRPC would log a traceback for every malformed one, and a stream that begins with
    one would never let the server stop.
    """
    methods = {
        name: grpc.unary_unary_rpc_method_handler(_unary(kind, getattr(service, name)), response_serializer=_serialised)
        for name, kind in (
            ("Write", p4runtime_pb2.WriteRequest),
            ("SetForwardingPipelineConfig", p4runtime_pb2.SetForwardingPipelineConfigRequest),
            ("GetForwardingPipelineConfig", p4runtime_pb2.GetForwardingPipelineConfigRequest),
            ("Capabilities", p4runtime_pb2.CapabilitiesRequest),
        )
    }
    methods["Read"] = grpc.unary_stream_rpc_method_handler(
        _unary(p4runtime_pb2.ReadRequest, service.Read), response_serializer=_serialised
    )
    methods["StreamChannel"] = grpc.stream_stream_rpc_method_handler(
        service.StreamChannel, response_serializer=_serialised
    )
    return grpc.method_handlers_generic_handler("p4.v1.P4Runtime", methods)


def _serialised(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _unary(kind: Any, behaviour: Callable[[Any, Any], Any]) -> Callable[[bytes, Any], Any]:
    def handle(data: bytes, context: Any) -> Any:
        with refusing(context):
            request = parse(kind, data)
        return behaviour(request, context)

    return handle


@dataclass(frozen=True)
class Server:
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

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def serve(
    data_path: DataPath,
    address: str = "127.0.0.1:9559",
    *,
    device_id: int = 1,
    cpu_port: int | None = None,
    tls: TlsFiles | None = None,
    insecure: bool = False,
) -> Server:
    """Serve P4Runtime for a data path at HOST:PORT, where port 0 lets the system choose one, or at unix:PATH.

    `cpu_port` is the data plane's number of the port that P4Runtime calls the CPU (0xfffffffd in replicas). Raises
    NetworkError when the address cannot be used, InputError when it is none, when a file of `tls` cannot be read, or
    when other machines could control the switch and neither `tls` nor `insecure` says that they may.
    """
    from tensorexpress.switch.program.pipeline import Pipeline

    wanted = parse_address(address, "--grpc", any_port=True)
    workers = futures.ThreadPoolExecutor(LARGEST_NUMBER_OF_STREAMS + LARGEST_NUMBER_OF_READS + _OTHER_REQUESTS)
    server = grpc.server(
        workers,
        options=[
            ("grpc.max_receive_message_length", _LARGEST_REQUEST_BYTES),
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
    service = RuntimeService(data_path, device_id=device_id, cpu_port=cpu_port, verify=Pipeline)
    server.add_generic_rpc_handlers((_handlers(service),))
    server.start()
    return Server(str(listening), service, server, workers)
