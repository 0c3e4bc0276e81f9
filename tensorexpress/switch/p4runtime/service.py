"""P4Runtime over gRPC: the server, its address and its certificates."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from p4.v1 import p4runtime_pb2

from tensorexpress.errors import InputError, NetworkError
from tensorexpress.switch.compiling import compile_beside
from tensorexpress.switch.operations import DataPath, Notice
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
class TlsFiles:
    """PEM files: the server's certificate and key, and the authority that clients' certificates must come from.

    Without an authority any client is served; with one, only clients that it vouches for.
    """

    certificate: str | Path
    key: str | Path
    client_ca: str | Path | None = None


@dataclass(frozen=True)
class Server:
    """A running P4Runtime server; `address` has the port that it really listens on."""

    address: str
    port: int
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
    lost: Callable[[], Mapping[int, int]] | None = None,
) -> Server:
    """Serve P4Runtime for a data path at `host:port`; port 0 lets the system choose one.

    `cpu_port` is the data plane's number of the port that P4Runtime calls the CPU (0xfffffffd in replicas), and `lost`
    returns how many frames each port has lost. Raises
    NetworkError when the address cannot be used, InputError when it is none or a file of `tls` cannot be read.
    """
    if not re.fullmatch(r".+:[0-9]+", address):
        raise InputError(f"{address!r} is no address to listen on; give host:port, such as '127.0.0.1:9559'")
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
    port = _listen(server, address, tls)
    service = RuntimeService(data_path, device_id=device_id, cpu_port=cpu_port, verify=compile_beside, lost=lost)
    server.add_generic_rpc_handlers((_handlers(service),))
    server.start()
    return Server(f"{address.rpartition(':')[0]}:{port}", port, service, server, workers)


def _listen(server: Any, address: str, tls: TlsFiles | None) -> int:
    credentials = _credentials(tls) if tls else None
    try:
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise NetworkError(
            f"cannot listen on {address!r}: the address is taken or is none of this machine's; "
            "give another host:port, or port 0 for a free one"
        )
    return int(port)


def _credentials(tls: TlsFiles) -> Any:
    certificate, key = _pem(tls.certificate), _pem(tls.key)
    client_ca = _pem(tls.client_ca) if tls.client_ca is not None else None
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tls.certificate, tls.key)
    except ssl.SSLError:
        raise InputError(f"{str(tls.key)!r} is not the key of the certificate {str(tls.certificate)!r}") from None
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=client_ca, require_client_auth=client_ca is not None
    )


def _pem(path: str | Path) -> bytes:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror}; give a PEM file") from None
    if b"-----BEGIN" not in content:
        raise InputError(f"{str(path)!r} is not a PEM file; give one that begins with '-----BEGIN'")
    return content
