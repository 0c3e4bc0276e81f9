"""Where a P4Runtime server listens, and who can connect there: sockets, their modes, and certificates."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import grpc

from tensorexpress.control_address import ControlAddress, TcpAddress, UnixAddress
from tensorexpress.errors import InputError, NetworkError
from tensorexpress.files import read_pem


@dataclass(frozen=True)
class ServerTlsFiles:
    """PEM files: the server's certificate and key, and the authority that clients' certificates must come from.

    Without an authority any client is served; with one, only clients that it vouches for.
    """

    certificate: str | Path
    key: str | Path
    client_ca: str | Path | None = None


def listen(server: Any, address: ControlAddress, tls: ServerTlsFiles | None, *, insecure: bool) -> ControlAddress:
    """Let a gRPC server listen, and return where it does: with the port that it really has.

    Raises InputError where other machines could control the switch without a word said about it.
    """
    credentials = _credentials(tls) if tls else None
    if isinstance(address, UnixAddress):
        with _private_socket(address):
            _bind(server, address, credentials)
        return address
    if credentials is None and not insecure and _reaches_others(address):
        raise InputError(
            f"{str(address)!r} can be reached from other machines, and without TLS anybody there controls the switch; "
            "listen on 127.0.0.1 or unix:PATH, give certificates with --tls-cert, --tls-key and --tls-ca, or --insecure"
        )
    return TcpAddress(address.host, _bind(server, address, credentials))


def _reaches_others(address: TcpAddress) -> bool:
    try:
        return not address.is_loopback()
    except OSError:
        raise _cannot_listen(address) from None


def _bind(server: Any, address: ControlAddress, credentials: Any) -> int:
    try:
        name = address.for_grpc
        port = server.add_secure_port(name, credentials) if credentials else server.add_insecure_port(name)
    except RuntimeError:
        port = 0
    if not port:
        raise _cannot_listen(address)
    return int(port)


def _cannot_listen(address: ControlAddress) -> NetworkError:
    return NetworkError(
        f"cannot listen on {str(address)!r}: the address is taken or is none of this machine's; "
        "give another HOST:PORT, port 0 for a free one, or unix:PATH"
    )


@contextmanager
def _private_socket(address: UnixAddress) -> Iterator[None]:
    """Make way for a socket, and let what is made inside be one of this user alone, from the first moment on."""
    _make_way(address)
    # Group and others get nothing; the user's own bits stay, as another thread may make a directory meanwhile.
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
    os.chmod(address.path, 0o600)


def _make_way(address: UnixAddress) -> None:
    """Remove the socket of a server that is gone; refuse where anything else is in the way."""
    path = address.path
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise InputError(f"cannot listen on {str(address)!r}: {directory!r} is no directory; make it first")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise NetworkError(f"cannot listen on {str(address)!r}: {error.strerror}; give another path") from None
    if not stat.S_ISSOCK(mode):
        raise InputError(f"cannot listen on {str(address)!r}: a file that is no socket is there; give another path")
    if _is_served(path):
        raise NetworkError(f"cannot listen on {str(address)!r}: another process does; stop it, or give another path")
    try:
        os.unlink(path)
    except OSError as error:
        raise NetworkError(
            f"cannot listen on {str(address)!r}: a socket is left there that cannot be removed ({error.strerror}); "
            "give another path"
        ) from None


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # not ours to connect to, or busy
    return True


def _credentials(tls: ServerTlsFiles) -> Any:
    certificate, key = read_pem("--tls-cert", tls.certificate), read_pem("--tls-key", tls.key)
    client_ca = read_pem("--tls-ca", tls.client_ca) if tls.client_ca is not None else None
    try:
        _check_pair(certificate, key)
    except ssl.SSLError:
        raise InputError(f"{str(tls.key)!r} is not the key of the certificate {str(tls.certificate)!r}") from None
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=client_ca, require_client_auth=client_ca is not None
    )


def _check_pair(certificate: bytes, key: bytes) -> None:
    """Raise SSLError unless these PEM texts are a certificate and its key."""
    with TemporaryFile() as of_certificate, TemporaryFile() as of_key:
        for file, content in ((of_certificate, certificate), (of_key, key)):
            file.write(content)
            file.flush()
        # OpenSSL takes names of files; a pipe could not be read twice.
        names = [f"/proc/self/fd/{file.fileno()}" for file in (of_certificate, of_key)]
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*names)
